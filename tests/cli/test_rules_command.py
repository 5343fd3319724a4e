"""``cloister rules``: from files of baskets to tables and a report; mistakes cost nothing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from cloister.app.release import Release
from cloister.cli import main
from cloister.data.schema import Schema
from cloister.estimators.association import RuleSet

ITEMS = ("bread", "butter", "milk", "tea", "jam, red")
Said = pytest.CaptureFixture[str]
OPTIONS = ["--epsilon", "4", "--nominal-n", "1500", "--min-support", "0.05", "--out", "out"]
OPTIONS += ["--cap-epsilon", "4"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        held = rng.random((750, 5)) < (0.4, 0.1, 0.3, 0.2, 0.2)
        held[:, 1] |= held[:, 0] & (rng.random(750) < 0.5)
        quoted = [f'"{item}"' for item in ITEMS]
        lines = [",".join(quoted[j] for j in np.flatnonzero(row)) for row in held]
        Path(f"{name}.txt").write_text("\n".join(lines) + "\n")
        header = ",".join(quoted)
        cells = "\n".join(",".join(map(str, row)) for row in held.astype(int))
        Path(f"{name}.csv").write_text(f"{header}\n{cells}\n")
    Path("items.txt").write_text("\n".join(ITEMS) + "\n")
    return tmp_path


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_lines_of_baskets_become_tables_a_report_and_a_contract(shop: Path, capsys: Said) -> None:
    command = ["rules", "north.txt", "south.txt", "--baskets", "lines", "--catalogue", "items.txt"]
    assert main([*command, *OPTIONS]) == 0
    said = capsys.readouterr().out
    assert "Frequent itemsets" in said
    assert "bread → butter" in said
    assert "written  out/schema.toml" in said
    sets, rules = rows_of("out/itemsets.csv"), rows_of("out/rules.csv")
    assert {"bread", "butter", "bread + butter"} <= {row["items"] for row in sets}
    found = RuleSet(Release.load("out/model.json"))
    assert len(sets) == len(found.itemsets)
    assert [(r["antecedent"], r["consequent"]) for r in rules] == [
        (" + ".join(r.antecedent), " + ".join(r.consequent)) for r in found.rules
    ]
    assert float(rules[0]["lift"]) == found.rules[0].lift.value
    report = Path("out/report.html").read_text()
    assert "Graph of the rules" in report
    assert "<svg" in report
    schema = Schema.load("out/schema.toml")
    assert schema.names == ITEMS
    assert main([*command, *OPTIONS, "--out", "again"]) == 5, (
        "the lifetime cap of the new ledger is spent"
    )


def test_a_schema_and_one_hot_tables_do_too_and_sensitive_sets_are_nowhere(
    shop: Path, capsys: Said
) -> None:
    assert main(["schema", "catalogue", "items.txt", "--dataset", "shop", "--out", "s.toml"]) == 0
    capsys.readouterr()
    command = ["rules", "north.csv", "south.csv", "--schema", "s.toml", *OPTIONS, "--json"]
    more = ["--sensitive", "bread", "butter", "--sensitive", "tea", "--max-size", "3"]
    assert main([*command, *more]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "rules"
    assert document["task"] == "apriori"
    assert set(document["files"]) == {"model", "sums", "itemsets", "rules", "report"}
    for row in rows_of("out/itemsets.csv"):
        items = set(row["items"].split(" + "))
        assert "tea" not in items
        assert not items >= {"bread", "butter"}
    assert document["charged"]["dataset"] == "shop"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--catalogue", "items.txt", "--schema", "s.toml"], 2, "not allowed with"),
        ([], 2, "--schema --catalogue is required"),
        (["--catalogue", "items.txt", "--sensitive", "beer"], 3, "sensitive item"),
        (["--catalogue", "items.txt", "--max-size", "5"], 3, "max_size"),
        (["--catalogue", "none.txt"], 3, "cannot be read"),
        (["--schema", "s.toml", "--dataset", "x"], 3, "--dataset is valid only with --catalogue"),
    ],
)
def test_mistakes_are_one_sentence_and_cost_nothing(
    shop: Path, capsys: Said, words: list[str], code: int, message: str
) -> None:
    assert main(["rules", "north.txt", "--baskets", "lines", *OPTIONS, *words]) == code
    said = capsys.readouterr()
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not (shop / "out" / "ledger.db").exists()
    assert not (shop / "out" / "model.json").exists()


def test_a_schema_that_lies_there_is_not_overwritten(shop: Path, capsys: Said) -> None:
    (shop / "out").mkdir()
    assert main(["schema", "catalogue", "items.txt", "--dataset", "a", "--out", "s.toml"]) == 0
    mine = Path("s.toml").read_text()
    Path("out/schema.toml").write_text(mine)
    command = ["rules", "north.txt", "--baskets", "lines", "--catalogue", "items.txt", *OPTIONS]
    assert main(command) == 3
    assert "another schema" in capsys.readouterr().err
    assert Path("out/schema.toml").read_text() == mine
    assert main([*command, "--dataset", "a"]) == 0
