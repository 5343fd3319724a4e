"""Schemas and baskets on the command line, and a silo whose records are baskets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.cli import main
from cloister.data.schema import Schema, catalogue_schema
from cloister.federation.settings import DataSettings
from cloister.federation.silo.site import Site
from cloister.privacy.budget import Budget
from cloister.tasks.count import Count

BASKETS = "milk,tea\ntea,bread\n\n"
LONG = "item,receipt\nmilk,1\ntea,2\ntea,1\nbread,2\n,3\n"
TABLE = "milk,tea,salt\n1,1,0\n0,1,0\n0,0,0\n"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "items.txt": "milk\ntea\nsalt\n",
        "lines.txt": BASKETS,
        "long.csv": LONG,
        "table.csv": TABLE,
    }.items():
        Path(name).write_text(text)
    Path("shop.toml").write_text(catalogue_schema("items.txt", dataset="shop").to_toml())
    return tmp_path


def document(capsys: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_catalogue_is_made_from_a_public_list_and_never_overwritten(shop: Path, capsys) -> None:
    command = ["schema", "catalogue", "items.txt", "--dataset", "shop", "--out", "new.toml"]
    assert main([*command, "--json"]) == 0
    assert document(capsys)["digest"] == Schema.load("shop.toml").digest()
    assert Path("new.toml").read_text() == Path("shop.toml").read_text()
    assert main(command) == 3
    Path("items.txt").write_text("milk\nmilk\n")
    assert main([*command[:-1], "other.toml"]) == 3
    assert not Path("other.toml").exists()


def test_hash_shows_the_digest_and_nothing_else(shop: Path, capsys) -> None:
    assert main(["schema", "hash", "shop.toml"]) == 0
    assert capsys.readouterr().out == Schema.load("shop.toml").digest() + "\n"


def test_diff_shows_what_silos_do_not_agree_on(shop: Path, capsys) -> None:
    other = catalogue_schema(["tea", "salt", "bread"], dataset="another shop")
    Path("other.toml").write_text(other.to_toml())
    assert main(["schema", "diff", "shop.toml", "other.toml"]) == 1
    shown = capsys.readouterr().out
    for word in ("milk", "bread", "place", "shop.toml", "other.toml", other.digest()):
        assert word in shown
    assert main(["schema", "diff", "shop.toml", "other.toml", "--json"]) == 1
    found = document(capsys)
    assert {"column": "tea", "key": "place", "first": 2, "second": 1} in found["differences"]
    Path("same.toml").write_text(Path("shop.toml").read_text().replace('"shop"', '"mine"'))
    assert main(["schema", "diff", "shop.toml", "same.toml"]) == 0
    assert "The schemas agree." in capsys.readouterr().out


def test_validate_shows_categories(shop: Path, capsys) -> None:
    words = [f"word {i}" for i in range(9)]
    rules = Schema(
        dataset="d", unit="row", columns=[{"name": "x", "type": "category", "categories": words}]
    )
    Path("d.toml").write_text(rules.to_toml())
    assert main(["schema", "validate", "d.toml"]) == 0
    assert "word 0, word 1, word 2, word 3, word 4, word 5, and 3 more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "baskets", "unknown", "bad"),
    [
        ("lines.txt", "lines", 1, 0),
        ("long.csv", "long:receipt,item", 1, 0),
        ("table.csv", "", 0, 0),
    ],
)
def test_check_reads_baskets_as_it_is_told(
    shop: Path, capsys, file: str, baskets: str, unknown: int, bad: int
) -> None:
    told = ["--baskets", baskets] if baskets else []
    assert main(["check", file, "--schema", "shop.toml", "--json", *told]) == 0
    report = document(capsys)
    assert (report["rows"], report["unknown_items"], report["bad_lines"]) == (3, unknown, bad)
    assert main(["check", file, "--schema", "shop.toml", *told]) == 0
    assert ("items outside the catalogue" in capsys.readouterr().out) == bool(unknown)


def test_baskets_are_read_only_where_that_is_said(shop: Path, capsys) -> None:
    command = ["run", "lines.txt", "--schema", "shop.toml", "--task", "count", "--epsilon", "9"]
    command += ["--nominal-n", "3", "--quiet", "--cap-epsilon", "9", "--out"]
    assert main([*command, "out"]) == 4
    assert "--baskets lines" in capsys.readouterr().err
    assert not Path("out/ledger.db").exists()
    assert main([*command, "out", "--baskets", "rows"]) == 3
    assert main([*command, "out", "--baskets", "lines"]) == 0


@pytest.mark.parametrize(
    "values",
    [
        {"file": "lines.txt", "baskets": "lines"},
        {"file": "long.csv", "baskets": "long:receipt,item"},
        {"file": "table.csv"},
    ],
)
def test_a_silo_of_a_federation_reads_baskets(shop: Path, values: dict[str, str]) -> None:
    class Settings:
        data = DataSettings.model_validate(values)
        ordered_records = False

    schema = Schema.load("shop.toml")
    site = Site(Settings(), schema, None, None)  # type: ignore[arg-type]  # it only reads
    expected = np.array([[1, 1, -1], [-1, 1, -1], [-1, -1, -1]])
    for chosen in (["milk", "tea", "salt"], ["milk", "salt"]):
        about = {"budget": Budget(1.0, 1e-6), "nominal_n": 10, "columns": chosen}
        plan = make_plan(Count, schema, ("a", "b"), **about)
        held = [schema.names.index(name) for name in chosen]
        found = np.concatenate(list(site.records(plan)))
        assert found.tolist() == (expected[:, held] << plan.grid.frac_bits).tolist()
