"""The program on the shares of two owners: answers of the joined records, and their noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloister.shares.linking.program import Found, Linked

from .people import frames, on_shares

OPTIONS: dict[str, Any] = {
    "key": "national_id",
    "parts": ({"rule": "digits", "width": 11},),
    "sides": {
        "crm": {
            "rows": 310,
            "key": ("id",),
            "columns": (
                {"name": "group", "categories": ("a", "b", "c")},
                {"name": "x", "low": 0.0, "high": 1.0},
            ),
        },
        "cards": {
            "rows": 300,
            "key": ("id",),
            "columns": (
                {"name": "shop", "categories": ("p", "q", "r", "s", "t")},
                {"name": "z", "low": -1.0, "high": 3.0},
                {"name": "y", "categories": ("false", "true")},
            ),
        },
    },
    "epsilon": 1.0,
    "keys_per_person": 1,
}


def released(program: Linked, tables: Any) -> Found:
    """Return the estimates of a run of both servers."""
    own = [
        program.prepare(name, table).tagged(b"k" * 32, "s")
        for name, table in zip(program.frame.sides, tables, strict=True)
    ]
    names = tuple(program.frame.sides)
    (a, b), _ = on_shares(
        lambda server, shares: program.run(server, dict(zip(names, shares, strict=True))), own
    )
    return program.found({what: a[what] + b[what] for what in a})


def linked(*analyses: dict[str, Any], **more: Any) -> Linked:
    return Linked(**{**OPTIONS, "analyses": analyses, **more})


NEARLY_EXACT = {"epsilon": 500.0, "delta": 1e-3}


def test_a_table_is_that_of_the_joined_records() -> None:
    tables = frames(300, 290, 0.5)
    program = linked({"kind": "table", "of": ("group", "shop")}, **NEARLY_EXACT)
    found = released(program, tables)
    whole = tables[0].merge(tables[1], on="id")
    clear = whole.groupby(["group", "shop"]).size().unstack(fill_value=0).to_numpy()
    assert abs(found.size.value - len(whole)) < 10
    counts = found.answers[0].estimates["counts"]
    assert counts.axes == ("group", "shop")
    assert np.abs(counts.values - clear).max() < 1
    assert found.answers[0].tests["chi2"].df == 8
