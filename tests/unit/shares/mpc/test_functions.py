"""Functions on shares: right over their whole stated range, and a server sees uniform words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.errors import CloisterError
from cloister.shares.mpc import (
    argmax,
    argmax_one_hot,
    clip,
    combine,
    decode,
    divide,
    encode,
    exp,
    maximum,
    reciprocal,
    run_here,
    sigmoid,
    softmax,
    tanh,
)

Words = NDArray[np.uint64]
UNIT = 2.0**-16
FAR = [-(2.0**28), -1e4, -64.0, -8.0001, -8.0, -UNIT, 0.0, UNIT, 8.0, 8.0001, 64.0, 1e4, 2.0**28]


def opened(program: Callable[..., Words], *secrets: Words) -> Words:
    (first, second), _ = run_here(program, *secrets, timeout=20)
    return combine(first, second)


def over_the_range(low: float, high: float, size: int = 2_000) -> Words:
    """Both ends, and values spread evenly over the octaves between."""
    generator = np.random.default_rng(1)
    middle = np.exp(generator.uniform(np.log(low), np.log(high), size))
    return np.clip(encode([low, high, *middle]), encode(low), encode(high))


# The largest of many ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 10, 13])
def test_argmax_is_exact_and_ties_go_to_the_lowest_index(n: int) -> None:
    votes = np.random.default_rng(n).integers(-2, 3, (100, n))  # five values: ties in most rows
    words = votes.astype(np.int64).view(np.uint64)
    assert (opened(argmax, words) == votes.argmax(axis=1)).all()
    assert (opened(argmax_one_hot, words) == np.eye(n)[votes.argmax(axis=1)]).all()
    assert (opened(maximum, words).view(np.int64) == votes.max(axis=1)).all()


def test_every_pattern_of_ties_among_five_goes_to_the_lowest_index() -> None:
    patterns = np.array([[i >> j & 1 for j in range(5)] for i in range(32)])
    assert (opened(argmax, patterns.astype(np.uint64)) == patterns.argmax(axis=1)).all()


def test_the_largest_is_exact_up_to_2_62_and_along_the_last_axis() -> None:
    edges = np.array([[2**62 - 1, -(2**62) + 1, 0], [-1, -2, -(2**61)]], np.int64)
    for x in (edges, edges.T, edges[None]):
        found = opened(maximum, np.ascontiguousarray(x).view(np.uint64))
        assert (found.view(np.int64) == x.max(axis=-1)).all()
    assert opened(argmax, edges.view(np.uint64)).tolist() == [0, 0]
    cube = np.arange(24).reshape(2, 3, 4)
    assert (opened(argmax, cube.astype(np.uint64)) == cube.argmax(axis=-1)).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_the_largest_of_none_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CloisterError, match="pass at least one"):
        opened(argmax, np.zeros(shape, np.uint64))


# Bounded functions ------------------------------------------------------------------------------


def test_clipping_is_exact() -> None:
    x = np.array([*FAR, -1.5, 2.25, 2.25 + UNIT])
    found = opened(lambda s, v: clip(s, v, -1.5, 2.25), encode(x))
    assert (found == encode(np.clip(decode(encode(x)), -1.5, 2.25))).all()
    with pytest.raises(CloisterError, match="low must not be above high"):
        opened(lambda s, v: clip(s, v, 1, -1), encode(x))


def test_sigmoid_is_right_everywhere_and_never_leaves_0_and_1_by_a_unit() -> None:
    """The range as an integer is what the sensitivity of a noisy training step rests on."""
    x = decode(encode([*np.linspace(-12, 12, 8_001), *FAR]))
    found = opened(sigmoid, encode(x))
    assert np.abs(decode(found) - 1 / (1 + np.exp(-np.clip(x, -500, 500)))).max() < 2e-4
    assert found.view(np.int64).min() >= 0
    assert found.view(np.int64).max() <= 1 << 16


def test_the_polynomial_of_the_sigmoid_stays_so_far_inside_that_rounding_cannot_matter() -> None:
    """Rounding moves a result by less than two units; the polynomial keeps ten away from 1.

    Two neighbours of 4,000 points differ by less than 3e-4 times the slope, which is below 3.
    """
    from cloister.shares.mpc.functions import _SIGMOID

    p = np.polynomial.Polynomial(_SIGMOID)(np.linspace(-1, 1, 40_001))
    assert p.max() < 1 - 10 * UNIT
    assert p.min() > 0.5 - 12 * UNIT


def test_tanh_is_right_everywhere() -> None:
    x = decode(encode([*np.linspace(-6, 6, 2_001), *FAR]))
    found = decode(opened(tanh, encode(x)))
    assert np.abs(found - np.tanh(x)).max() < 4e-4
    assert np.abs(found).max() <= 1


def test_exp_is_right_for_every_value_up_to_0() -> None:
    x = -decode(encode([*np.linspace(0, 13, 4_001), *np.abs(FAR)]))
    found = opened(exp, encode(x))
    assert np.abs(decode(found) - np.exp(x)).max() < 2 * UNIT
    assert found.view(np.int64).min() >= -1
    assert found.view(np.int64).max() <= (1 << 16) + 1


@pytest.mark.parametrize("n", [2, 5, 10])
def test_softmax_is_right_for_small_and_for_enormous_scores(n: int) -> None:
    generator = np.random.default_rng(n)
    for size in (0.0, 1.0, 30.0, 2.0**26):
        x = decode(encode(generator.normal(size=(100, n)).clip(-3, 3) * size))
        clear = np.exp(x - x.max(axis=1, keepdims=True))
        clear /= clear.sum(axis=1, keepdims=True)
        found = opened(softmax, encode(x))
        assert np.abs(decode(found) - clear).max() < (5 + n) * UNIT
        assert -n - 5 <= found.view(np.int64).min()
        assert found.view(np.int64).max() <= (1 << 16) + n + 5


def test_a_softmax_whose_sum_could_leave_the_range_of_its_reciprocal_is_refused() -> None:
    """Each exponential may be a unit low: of 2^15 of them half of the least sum could be gone."""
    assert 1 - ((1 << 15) - 1 + 1) * UNIT >= 0.5
    with pytest.raises(CloisterError, match="fewer than 32768 scores"):
        opened(softmax, np.zeros((1, 1 << 15), np.uint64))


# Division ---------------------------------------------------------------------------------------

RANGES = [
    (UNIT, 2.0**-10),
    (UNIT, 2.0**7),
    (0.3, 0.4),
    (0.5, 11.0),
    (1.0, 2.0**20),
    (100.0, 120.0),
    (2.0**10, 2.0**28),
    (1.0, 2.0**24 - 1),
]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_reciprocal_is_right_over_the_whole_stated_range(low: float, high: float) -> None:
    x = over_the_range(low, high)
    found = decode(opened(lambda s, v: reciprocal(s, v, low, high), x))
    clear = 1 / decode(x)
    assert (np.abs(found - clear) < UNIT + clear * 2**-20).all()


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_division_is_right_for_every_denominator_and_numerators_of_both_signs(
    low: float, high: float
) -> None:
    y = over_the_range(low, high)
    generator = np.random.default_rng(2)
    x = encode(generator.uniform(-1, 1, y.size) * np.minimum(2.0**20, decode(y) * 2**15))
    found = decode(opened(lambda s, a, b: divide(s, a, b, low, high), x, y))
    clear = decode(x) / decode(y)
    assert (np.abs(found - clear) < (1 + 1 / decode(y)) * UNIT + np.abs(clear) * 2**-20).all()


def test_division_broadcasts() -> None:
    x, y = encode([[1.0, 2.0], [3.0, 4.0]]), encode([[2.0], [8.0]])
    found = decode(opened(lambda s, a, b: divide(s, a, b, 1, 10), x, y))
    assert np.abs(found - [[0.5, 1.0], [0.375, 0.5]]).max() < 2 * UNIT


def test_below_its_range_a_reciprocal_stops_growing_instead_of_running_away() -> None:
    for low, high in RANGES[2:]:
        found = decode(opened(lambda s, v, r=(low, high): reciprocal(s, v, *r), encode([0.0])))
        assert 0 < found[0] * low < 16


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (-1, 1), (2, 1), (1, 1), (1, 2.0**29), (2.0**-17, 1), (np.nan, 1), (1, np.inf)],
)
def test_a_range_that_does_not_fit_the_ring_is_refused(low: float, high: float) -> None:
    with pytest.raises(CloisterError, match="must have"):
        opened(lambda s, v: reciprocal(s, v, low, high), encode([1.0]))


def test_a_range_of_too_many_octaves_is_refused() -> None:
    with pytest.raises(CloisterError, match="times low"):
        opened(lambda s, v: reciprocal(s, v, UNIT, 2.0**20), encode([1.0]))


# What a server sees -----------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "argmax": argmax,
    "maximum": maximum,
    "clip": lambda s, x: clip(s, x, -1, 1),
    "sigmoid": sigmoid,
    "exp": exp,
    "softmax": softmax,
    "reciprocal": lambda s, x: reciprocal(s, x, 1, 16),
    "divide": lambda s, x: divide(s, x, x, 1, 16),
}


def far_from_uniform(seen: list[NDArray[Any]]) -> float:
    """Return how many deviations the bytes' chi-square lies above that of uniform bytes."""
    body = np.concatenate([np.ascontiguousarray(words).view(np.uint8).ravel() for words in seen])
    counts = np.bincount(body, minlength=256)
    chi = ((counts - body.size / 256) ** 2 / (body.size / 256)).sum()
    return float((chi - 255) / np.sqrt(2 * 255))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_each_server_sees_is_uniform_and_of_one_shape_whatever_the_values(name: str) -> None:
    """Beyond 8 deviations of a chi-square with 255 degrees of freedom: below 1e-10 a view."""
    shapes = set()
    for secret in (np.zeros((100, 8), np.uint64), np.full((100, 8), np.uint64(2**55 - 1))):
        seen: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(3):
            before = [len(view) for view in seen]
            run_here(FUNCTIONS[name], secret, watch=[view.append for view in seen], timeout=20)
            for view, start in zip(seen, before, strict=True):
                shapes.add(tuple(words.shape for words in view[start:]))
        for view in seen:
            # Bits come one a byte, seven-eighths zero; padding of short rows is masked as well.
            body = [w if w.dtype == np.uint64 else np.packbits(w) for w in view]
            assert far_from_uniform(body) < 8
    assert len(shapes) == 1, "what is sent must not depend on values"
