"""Each clip enforces the bound its docstring states, and changes nothing that is inside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.privacy.clipping import clip_box, clip_l1, clip_l2

TABLES = arrays(np.float64, (7, 3), elements=st.floats(-1e6, 1e6))
BOUNDS = st.floats(1e-3, 1e3)
NORMS = {clip_l2: 2, clip_l1: 1}


@pytest.mark.parametrize("clip", NORMS)
@given(X=TABLES, bound=BOUNDS)
def test_clip_bounds_every_row_and_is_idempotent(clip, X, bound):
    clipped = clip(X, bound)
    norms = np.linalg.norm(clipped, ord=NORMS[clip], axis=1)
    assert (norms <= bound * (1 + 1e-12)).all()
    np.testing.assert_allclose(clip(clipped, bound), clipped, rtol=1e-12)


@pytest.mark.parametrize("clip", NORMS)
@given(X=TABLES, bound=BOUNDS)
def test_clip_keeps_direction_and_rows_inside(clip, X, bound):
    clipped = clip(X, bound)
    inside = np.linalg.norm(X, ord=NORMS[clip], axis=1) <= bound
    assert (clipped[inside] == X[inside]).all()
    assert (np.sign(clipped) * np.sign(X) >= 0).all()


@given(X=TABLES, bound=BOUNDS)
def test_clip_box_bounds_every_entry_and_is_idempotent(X, bound):
    clipped = clip_box(X, -bound, bound)
    assert np.abs(clipped).max() <= bound
    assert (clip_box(clipped, -bound, bound) == clipped).all()


def test_clip_does_not_change_its_argument():
    X = np.array([[3.0, 4.0]])
    np.testing.assert_allclose(clip_l2(X, 1.0), [[0.6, 0.8]])
    assert (X == [[3.0, 4.0]]).all()
