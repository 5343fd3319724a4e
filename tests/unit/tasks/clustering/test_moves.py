"""Tables of centres that have nothing to show are left out."""

from __future__ import annotations

import numpy as np

from cloister.tasks.clustering.clusters import movement


def test_a_table_of_moves_without_a_known_centre_is_left_out() -> None:
    ranges = np.array([2.0, 2.0])
    start = {"centres": np.zeros((2, 2)), "half_width": np.ones((2, 2))}
    unknown = {"centres": np.ones((2, 2)), "half_width": np.ones((2, 2))}
    known = {"centres": np.ones((2, 2)), "half_width": np.full((2, 2), 0.1)}
    assert movement([start, unknown], ranges) == ()
    (table,) = movement([start, unknown, known], ranges)
    assert [row[0] for row in table.rows] == ["round 2"]
