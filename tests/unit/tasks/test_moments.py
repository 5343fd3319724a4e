"""Sums of products, and the sign of a direction."""

from __future__ import annotations

import numpy as np

from cloister.tasks.moments import n_products, products, products_by_label, with_one_sign


def test_the_largest_entry_of_a_direction_is_positive() -> None:
    found = with_one_sign(np.array([[0.1, -0.9], [0.3, 0.2]]))
    assert found.tolist() == [[-0.1, 0.9], [0.3, 0.2]]


def test_of_entries_that_rounding_may_order_the_first_decides() -> None:
    """As in two columns of one category, whose entries differ in their sign alone."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        pair = np.array([-0.5, 0.5]) + rng.uniform(-1e-12, 1e-12, 2)
        assert with_one_sign(pair)[0] > 0


def test_a_direction_of_zeros_stays() -> None:
    assert (with_one_sign(np.zeros((2, 3))) == 0).all()


def test_products_by_label_are_those_of_each_row_added_up() -> None:
    rng = np.random.default_rng(1)
    rows, labels = rng.integers(-9, 10, (2000, 3)), rng.integers(0, 4, 2000)
    found = products_by_label(labels, 5, lambda at, _: rows[at].astype(np.float64))
    assert found.shape == (5, n_products(3))
    for label in range(5):  # nobody has the last label
        assert (found[label] == products(rows[labels == label]).sum(axis=0)).all()
