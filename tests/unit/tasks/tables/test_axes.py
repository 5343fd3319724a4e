"""Cells of columns: categories as they are, numbers by public edges, the same at every silo."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.protocol.task import PublicColumn
from cloister.tasks.columns import grid_of
from cloister.tasks.tables.axes import Axis, axes_of

AGE = PublicColumn("age", 0.0, 100.0)
SEX = PublicColumn("sex", 0.0, 2.0, ("f", "m", "x"))


def test_a_number_on_an_edge_is_in_the_upper_bin_also_where_the_edge_is_no_grid_step() -> None:
    (axis,) = axes_of([SEX, AGE], ["age"], {"age": (33.3, 70.0)}, 16)
    ages = np.array([0.0, 33.2, 33.3, 69.9, 70.0, 100.0])
    records = grid_of([SEX, AGE], 16).encode(np.column_stack([np.zeros(6), ages]))
    assert axis.cells(records, 16).tolist() == [0, 0, 1, 1, 2, 2]
    assert axis.labels == ("below 33.3", "33.3 to 70", "70 or more")


def test_categories_are_their_own_cells_whatever_a_record_holds() -> None:
    (axis,) = axes_of([SEX, AGE], ["sex"], {}, 4)
    assert axis == Axis(0, ("f", "m", "x"))
    assert len(axis) == 3
    records = np.array([[-(2**31), 0], [-16, 0], [0, 0], [16, 0], [2**31 - 1, 0]], dtype=np.int32)
    assert axis.cells(records, 4).tolist() == [0, 0, 1, 2, 2]


def test_records_outside_the_box_have_the_outermost_bins() -> None:
    (axis,) = axes_of([AGE], ["age"], {"age": (50.0,)}, 16)
    far = np.array([[-(2**31)], [2**31 - 1]], dtype=np.int32)
    assert axis.cells(far, 16).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("names", "edges", "message"),
    [
        (["age"], {}, "edges must be given for 'age'"),
        (["sex"], {"sex": (1.0,)}, "'sex' has categories"),
        (["age"], {"age": (0.0, 50.0)}, r"inside \(0, 100\)"),
        (["age"], {"age": (50.0, 100.0)}, r"inside \(0, 100\)"),
        (["age"], {"age": (50.0, 50.0000001)}, "at least one grid step"),
        (["work"], {}, "one of 2"),
    ],
)
def test_what_is_no_axis_is_refused(
    names: list[str], edges: dict[str, tuple[float, ...]], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        axes_of([AGE, SEX], names, edges, 16)
