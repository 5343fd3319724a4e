"""Columns by name, categories by number, and the design matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.job import make_plan
from cloister.core.errors import PlanError
from cloister.data.schema import schema_of
from cloister.hazmat.fixedpoint import Grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import PublicColumn, Task
from cloister.tasks.columns import (
    Encoding,
    bins_of,
    categories_of,
    codes,
    count_cells,
    in_batches,
    position,
)
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.survival.survival import Survival
from cloister.tasks.tables.table1 import Table1
from cloister.tasks.tables.tabulate import Tabulate

COLUMNS = (
    PublicColumn("age", 0.0, 120.0),
    PublicColumn("work", 0.0, 2.0, ("private", "state", "none")),
    PublicColumn("smokes", 0.0, 1.0, ("0", "1")),
)


@pytest.mark.parametrize("levels", [2, 3, 7, 42, 1000])
@pytest.mark.parametrize("frac_bits", [12, 16, 24])
def test_the_number_of_a_category_survives_the_grid(levels: int, frac_bits: int) -> None:
    grid = Grid(low=(0,), high=(levels - 1,), frac_bits=frac_bits)
    numbers = np.arange(levels)
    steps = grid.encode(numbers[:, None])[:, 0]
    assert codes(steps, levels, frac_bits).tolist() == numbers.tolist()


@pytest.mark.parametrize("levels", [2, 5])
def test_whatever_is_on_the_grid_is_a_category(levels: int) -> None:
    found = codes(np.array([-(1 << 31), -5, 0, 5, (1 << 31) - 1], np.int64), levels, 4)
    assert found.min() >= 0
    assert found.max() < levels


@given(data=st.data(), frac_bits=st.integers(4, 24), parts=st.integers(2, 1 << 16))
def test_categories_and_bins_are_those_of_plain_integers(
    data: st.DataObject, frac_bits: int, parts: int
) -> None:
    """Also of values beside the box, of every stride, and whatever integers they fit."""
    one = 1 << frac_bits
    edges = st.sampled_from([-(2**31), -one - 1, -one, -1, 0, 1, one - 1, one, one + 1, 2**31 - 1])
    drawn = data.draw(st.lists(edges | st.integers(-one, one), max_size=20))
    nearest = [((v + one) * (parts - 1) + one) // (2 * one) for v in drawn]
    below = [(v + one) * parts // (2 * one) for v in drawn]
    for dtype in (np.int32, np.int64):
        table = np.array([drawn, drawn], dtype=dtype)
        for values in (table[0], np.asfortranarray(table)[1]):
            for found, plain in (
                (codes(values, parts, frac_bits), nearest),
                (bins_of(values, parts, frac_bits), below),
            ):
                assert found.dtype == np.int64
                assert found.tolist() == [min(max(v, 0), parts - 1) for v in plain]


@pytest.mark.parametrize("parts", range(2, 20))
def test_a_bin_begins_with_the_first_grid_value_at_its_edge(parts: int) -> None:
    steps = np.arange(-16, 17)
    below = [min((v + 16) * parts // 32, parts - 1) for v in steps.tolist()]
    assert bins_of(steps, parts, 4).tolist() == below


@given(data=st.data(), frac_bits=st.integers(4, 24))
def test_cells_are_counted_as_records_one_by_one(data: st.DataObject, frac_bits: int) -> None:
    """In tables of any columns, and in many parts."""
    one = 1 << frac_bits
    cells = data.draw(st.lists(st.integers(2, 300), min_size=1, max_size=4))
    columns = range(len(cells))
    binned = data.draw(st.tuples(*[st.booleans()] * len(cells)))
    some = st.lists(st.sampled_from(columns), min_size=1, max_size=2, unique=True)
    tables = data.draw(st.lists(some, min_size=1, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    records = rng.integers(-one - 3, one + 4, (50_000, len(cells)), dtype=np.int32)
    found = count_cells(records, tables, cells, binned, frac_bits)
    coded = [
        (bins_of if b else codes)(records[:, j], n, frac_bits)
        for j, (n, b) in enumerate(zip(cells, binned, strict=True))
    ]
    for count, table in zip(found, tables, strict=True):
        plain = np.zeros([cells[j] for j in table], dtype=np.int64)
        np.add.at(plain, tuple(coded[j] for j in table), 1)
        assert count.tolist() == plain.ravel().tolist()


def test_the_design_has_numbers_as_they_are_then_one_hot_then_the_intercept() -> None:
    grid = Grid(low=(0, 0, 0), high=(120, 2, 1), frac_bits=4)
    encoding = Encoding(levels=(0, 3, 2), frac_bits=4, skip=(2,))
    design = encoding.rows(grid.encode([[120.0, 1.0, 0.0], [60.0, 2.0, 1.0]]))
    assert design.tolist() == [[16, 0, 16, 0, 16], [0, 0, 0, 16, 16]]
    assert encoding.width == 5
    assert encoding.names(COLUMNS) == (
        *("age", "work=private", "work=state", "work=none"),
        "intercept",
    )


def test_a_column_that_is_not_there_is_named() -> None:
    assert position(COLUMNS, "work") == 1
    with pytest.raises(PlanError, match=r"target must be a column of the schema.*got 'income'"):
        position(COLUMNS, "income")
    many = [PublicColumn(name, 0.0, 1.0) for name in ("canned beer", *map(str, range(168)))]
    nearest = r"one of 169 \(canned beer, \.\.\.\), got 'beer'"
    with pytest.raises(PlanError, match=nearest):
        position(many, "beer")
    with pytest.raises(PlanError, match=r"one of 169 \(canned beer, 0, 1, \.\.\.\), got 'x'"):
        position(many, "x")
    with pytest.raises(PlanError, match="got one of numbers"):
        categories_of(COLUMNS, "age")
    assert categories_of(COLUMNS, "smokes") == ("0", "1")


@pytest.mark.parametrize("rows", [0, 1, 1024, 2500])
def test_a_function_sees_tables_of_one_length_only(rows: int) -> None:
    records = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2)
    lengths = set()

    def answer(part: np.ndarray) -> np.ndarray:
        lengths.add(len(part))
        return part.sum(axis=1)

    assert (in_batches(answer, records) == records.sum(axis=1)).all()
    assert lengths == {1024}


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (Table1, {"by": "site"}),
        (Survival, {"time": "months", "event": "smokes", "by": "site"}),
        (Tabulate, {"means": ("weight",), "by": ("site",)}),
        (TreatmentEffect, {"treatment": "smokes", "outcome": "weight", "covariates": ("site",)}),
    ],
)
def test_a_task_that_cannot_use_the_silo_names_the_remedy(
    task: type[Task], options: dict[str, Any]
) -> None:
    columns = (
        PublicColumn("months", 0.0, 60.0, step=1.0),
        PublicColumn("weight", 0.0, 100.0),
        PublicColumn("smokes", 0.0, 1.0, ("0", "1")),
    )
    about = {"budget": Budget(2.0, 1e-6), "nominal_n": 50_000}
    with pytest.raises(PlanError, match=r"cannot name 'site', .* give each file this column"):
        make_plan(task, schema_of(columns), ("a", "b"), **about, **options)
