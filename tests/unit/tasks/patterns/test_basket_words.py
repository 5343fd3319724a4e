"""Baskets as bits of words, and in parts."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.hazmat.fixedpoint import round_to_grid
from cloister.tasks.patterns import apriori
from cloister.tasks.patterns.apriori import Apriori, _counts, _words

ITEMS = 8


@pytest.mark.parametrize("before", [(), (3,), (3, 2)])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 200])
def test_rows_of_flags_are_counted_in_words_of_64(n: int, before: tuple[int, ...]) -> None:
    flags = np.random.default_rng(n).random((*before, n)) < 0.5
    words = _words(flags)
    assert words.shape == (*before, (n + 63) // 64)
    assert (_counts(words) == flags.sum(axis=-1)).all()


@pytest.mark.parametrize("limit", ["weight", "truncate"])
def test_baskets_in_many_parts_add_what_each_adds(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apriori, "_CHUNK_ROWS", 7)
    options = {"max_size": 3, "min_support": 0.1, "basket_size": 2, "most_candidates": 30}
    task = Apriori(n_features=ITEMS, limit=limit, **options)  # type: ignore[arg-type]
    state = {name: round_to_grid(value, 16) for name, value in task.start().items()}
    rng = np.random.default_rng(0)
    baskets = np.where(rng.random((20, ITEMS)) < 0.4, 1 << 16, -1 << 16).astype(np.int32)
    whole = task.contribute(0, state, baskets)
    assert whole.any()
    assert (whole == sum(task.contribute(0, state, basket[None]) for basket in baskets)).all()
