"""A file that loses records is refused at a desk, and shown with its remedy to its owner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloister.cli import main

REMEDY = 'spellings = { true = ["J"] }'
SCHEMA = """dataset = "loans"
unit = "row"
[[columns]]
name = "default"
type = "boolean"
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOISTER_LEDGER", str(tmp_path / "ledger.db"))
    (tmp_path / "bank.csv").write_text("default\n" + "J\n" * 300 + "N\n" * 1700)
    (tmp_path / "other.csv").write_text("default\n" + "y\n" * 300 + "n\n" * 1700)
    (tmp_path / "loans.toml").write_text(SCHEMA)
    (tmp_path / "mended.toml").write_text(f"{SCHEMA}{REMEDY}\n")
    return tmp_path


def tabulate(*more: str, schema: str = "loans.toml") -> int:
    job = ["--tables", "default", "--epsilon", "1", "--cap-epsilon", "9", "--nominal-n", "4000"]
    return main(["tabulate", "bank.csv", "other.csv", "--schema", schema, *job, *more])


def test_a_run_stops_before_it_spends_and_says_how_to_mend_it(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tabulate("--out", "a") == 4
    said = capsys.readouterr()
    assert "300 of 2,000 rows of file 'bank.csv' (15.0%) are left out" in said.err
    assert REMEDY in said.err
    assert "--max-loss 0.16" in said.err
    assert not (desk / "ledger.db").exists()
    assert not (desk / "a").exists()
    assert tabulate("--out", "b", schema="mended.toml") == 0


def test_max_loss_lets_a_run_go_on_and_the_owner_hears_of_it_nowhere_else(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tabulate("--out", "a", "--max-loss", "0.15", "--json") == 0
    said = capsys.readouterr()
    assert REMEDY in said.err
    assert "left out" not in said.out
    assert "'J'" not in said.out
    for file in (desk / "a").iterdir():
        assert "spellings" not in file.read_text()
    assert tabulate("--out", "b", "--max-loss", "1.5") == 3
    assert "max_loss must be a number from 0 to 1" in capsys.readouterr().err


def test_check_shows_rows_causes_and_remedies(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "bank.csv", "--schema", "loans.toml"]) == 4
    said = capsys.readouterr()
    assert "rows left out  300 (15.0%)" in said.out
    assert REMEDY in said.err
    assert main(["check", "bank.csv", "--schema", "loans.toml", "--max-loss", "0.15"]) == 0
    assert REMEDY in capsys.readouterr().err
    assert main(["check", "bank.csv", "--schema", "mended.toml"]) == 0
    assert not capsys.readouterr().err
    main(["check", "bank.csv", "--schema", "loans.toml", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["lost"], document["too_much_lost"]) == (300, True)
    assert document["columns"][0]["lost_values"] == ["J"]


def test_check_lists_identifiers_that_are_one_unit(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "visits.csv").write_text("id,default\n07,y\n7,n\n7.0,n\n8,n\n")
    owned = SCHEMA.replace('unit = "row"', 'unit = "id"\nmax_rows = 3')
    (desk / "visits.toml").write_text(owned)
    assert main(["check", "visits.csv", "--schema", "visits.toml"]) == 0
    assert "one unit: '07', '7', '7.0'" in capsys.readouterr().out


def test_each_file_of_baskets_may_have_a_layout(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "milk,bread\nmilk\nbread\nmilk,bread\n" * 50
    (desk / "north.txt").write_text(lines)
    (desk / "south.csv").write_text(
        "receipt,item\n" + "".join(f"r{i},milk\nr{i},bread\n" for i in range(200))
    )
    (desk / "east.txt").write_text(lines.replace(",", ";"))
    (desk / "goods.txt").write_text("milk\nbread\n")
    job = ["rules", "north.txt", "south.csv", "east.txt", "--catalogue", "goods.txt"]
    job += ["--epsilon", "2", "--cap-epsilon", "9", "--nominal-n", "600", "--min-support", "0.2"]
    assert main([*job, "--baskets", "lines", "--out", "a"]) == 4
    said = capsys.readouterr().err
    assert "items of file 'south.csv'" in said
    assert "items of file 'east.txt'" in said
    assert "another layout of baskets: 'long:receipt,item'" in said
    assert "another layout of baskets: 'lines:;'" in said
    assert "'north.txt'" not in said
    own = ["--baskets", "lines", "--baskets", "south.csv=long:receipt,item"]
    own += ["--baskets", "east.txt=lines:;"]
    assert main([*job, *own, "--out", "b"]) == 0
    assert main([*job, *own, "--baskets", "west.txt=lines", "--out", "c"]) == 3
    assert "baskets must name a file of this command, got 'west.txt'" in capsys.readouterr().err


def test_each_file_may_be_written_in_its_own_way(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "own.toml").write_text(f'["bank.csv".columns.default]\n{REMEDY}\n')
    assert tabulate("--out", "a", "--reading", "own.toml") == 0
    assert not [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    check = ["check", "bank.csv", "--schema", "loans.toml", "--reading", "own.toml"]
    assert main(check) == 0
    (desk / "own.toml").write_text(f'["x.csv"]\n["bank.csv".columns.default]\n{REMEDY}\n')
    assert main(check) == 0  # settings of several files, of which one is looked at
    (desk / "own.toml").write_text(
        f'["x.csv"]\n["other.csv"]\n["bank.csv".columns.default]\n{REMEDY}\n'
    )
    assert tabulate("--out", "more", "--reading", "own.toml") == 0  # all its files have settings
    for text, says in (
        ('["west.csv"]', "names no file of this command: 'west.csv'"),
        ('["bank.csv"]\nunit = "id"', "'unit' is not a setting of the file format"),
        ('["bank.csv".columns.default]\nmin = 1', "'columns.default.min' is not a setting"),
        ('["bank.csv".columns.other]\nformat = "%d"', "the schema has no column 'other'"),
        ('"bank.csv" = 1', "must be a table of settings"),
        ('["bank.csv"]\ncolumns = 1', "columns must be a table of settings"),
        ("[", "is not TOML"),
    ):
        (desk / "own.toml").write_text(text)
        assert tabulate("--out", "b", "--reading", "own.toml") == 3
        assert says in capsys.readouterr().err
