"""What a person changes for an owner that has a row of it, too, and keeps that row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.hazmat.ring import to_integers
from cloister.shares.linking.program import Linked
from cloister.shares.mpc.opening import NoiseOnShares

from .people import on_shares
from .test_views import Still

FIRST = (
    {"name": "group", "categories": ("a", "b", "c")},
    {"name": "x", "low": -1.0, "high": 1.0},
)
SECOND = (
    {"name": "shop", "categories": ("p", "q")},
    {"name": "z", "low": -1.0, "high": 1.0},
)


def program(how: Any) -> Linked:
    """Return a program of all sums, and k-means, on the columns of a join."""
    shop, z = ("group", "x") if how == "union" else ("shop", "z")
    return Linked(
        key="id",
        parts=({"rule": "digits"},),
        sides={
            "A": {"rows": 3, "key": ("id",), "columns": FIRST},
            "B": {"rows": 3, "key": ("id",), "columns": FIRST if how == "union" else SECOND},
        },
        analyses=(
            {"kind": "table", "of": tuple(dict.fromkeys(("group", shop)))},
            {"kind": "means", "number": "x", "by": shop},
            {"kind": "correlation", "of": tuple(dict.fromkeys(("x", z, "group")))},
            {"kind": "kmeans", "of": ("x",), "n_clusters": 2, "iterations": 1},
            *([{"kind": "table", "of": ("has_B",)}] if how in ("left", "outer") else []),
        ),
        how=how,
        epsilon=4.0,
        keys_per_person=1,
        least_matches=2,
    )


def changed(monkeypatch: pytest.MonkeyPatch, how: str, honest: int) -> list[float]:
    """Return the change of each sum over its bound when one owner's row of a person goes.

    The other owner's row of that person stays, with values at the other ends.
    """
    of, own = program(how), []
    for side, code in zip(of.frame.sides.values(), (0, 1), strict=True):
        table = np.zeros(side.shape, np.uint64)
        table[:, 0] = [4, 8, 12]
        table[1, 1:] = side.packed(np.array([[code, 2.0 * code - 1]]))[0]
        own.append(table)
    less = [table.copy() for table in own]
    less[honest][:, 1:] = 0
    add, seen = NoiseOnShares.add, ([], [])

    def spy(self: NoiseOnShares, server: Any, sums: Any) -> Any:
        seen[server.index].append((self.sensitivity, sums.ravel()))
        return add(self, server, sums)

    monkeypatch.setattr(NoiseOnShares, "add", spy)

    def opened(tables: Any) -> list[Any]:
        for log in seen:
            log.clear()
        on_shares(
            lambda server, shares: of.run(server, dict(zip(of.sides, shares, strict=True))),
            tables,
            noise=(Still(), Still()),
        )
        return [(s, to_integers(a + b)) for (s, a), (_, b) in zip(*seen, strict=True)]

    return [
        math.sqrt(sum(int(v) ** 2 for v in with_it - without)) / bound
        for (bound, with_it), (_, without) in zip(opened(own), opened(less), strict=True)
    ]


@pytest.mark.parametrize("honest", [0, 1])
@pytest.mark.parametrize("how", ["inner", "left", "outer", "union"])
def test_a_row_beside_another_owners_row_changes_each_sum_by_at_most_its_bound(
    monkeypatch: pytest.MonkeyPatch, how: str, honest: int
) -> None:
    """A person that stays in the join moves to another cell: two counts change, and not one."""
    found = changed(monkeypatch, how, honest)
    assert max(found) <= 1
    # The table's bound is attained, but for the rounding up of a square root.
    moved = how == "outer" or (how == "left" and honest) or (how == "union" and not honest)
    assert (found[0] > 0.99) == (moved or how == "inner")


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "correlation", "of": ("x", "has_B")},
        {"kind": "logistic", "of": ("x",), "target": "has_B"},
        {"kind": "linear", "of": ("x",), "target": "has_B"},
    ],
)
def test_a_column_that_is_1_for_all_complete_persons_is_in_no_model(given: Any) -> None:
    with pytest.raises(PlanError, match="'has_B' must be in tables, or the groups of means, only"):
        replace(program("left"), analyses=(given,))


@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_a_target_predicts_not_itself(kind: str) -> None:
    given = {"kind": kind, "of": ("x", "shop"), "target": "shop"}
    with pytest.raises(PlanError, match="'shop' must be named once; a target is no predictor"):
        replace(program("inner"), analyses=(given,))


def test_a_column_with_the_name_of_who_is_there_is_refused() -> None:
    """It would be counted in place of that category, or the category in its place."""
    one = program("left")
    sides = {**one.sides, "A": {**one.sides["A"], "columns": ({"name": "has_B", "high": 1.0},)}}
    with pytest.raises(PlanError, match="'has_B' must be one owner's; rename it"):
        replace(one, sides=sides, analyses=())
    assert replace(one, sides=sides, analyses=(), how="inner").frame.column("has_B").high == 1.0
