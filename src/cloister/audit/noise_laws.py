"""Tests of the distribution of noise, in a table of one row per job and one column per element.

This module is independent of the audited method. If the noise is that of the plan, the numbers of
:func:`normal_scores` are independent and standard normal. So each test below has an exact
distribution, or a bound, and its error probability is independent of the plan. The tests cover

- the distribution of all elements, of each block, of each **position** and of each row;
- each pair of elements of a job, in value and in size;
- the residual of an element given all earlier ones, by [B33]_, which is too small if any sum of
  elements lacks noise;
- elements of one job and of the next ones, and all lags of the whole sequence;
- repeated vectors, also scaled or with opposite sign, and repeated values.

References
----------
.. [B33] Bartlett, "On the theory of statistical regression", Proceedings of the Royal Society of
   Edinburgh 53, 1933: the squared diagonal of the triangular factor of a normal matrix is
   independent chi-square, with one degree of freedom less from column to column.
.. [M90] Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality", Annals of
   Probability 18, 1990.
.. [M89] McDiarmid, "On the method of bounded differences", 1989.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb, exp, pi, sqrt
from typing import Literal

import numpy as np
from scipy import special, stats

from cloister.audit.bounds import correlated, uniform_fit
from cloister.protocol.task import Floats, Integers

Law = Literal["gaussian", "laplace"]

_MOST = 1e9  # largest number of multiplications of a test of all pairs
_FEWEST = 400  # smallest number of jobs of such a test
_NEXT = 3  # number of earlier jobs that are compared element by element
_NEIGHBOURS = 6  # neighbours in the order of directions that are compared
_VECTORS = 60_000  # largest number of vectors whose directions are compared
_TAIL = 45.0  # exp(-45) is below every threshold of an alarm, for any number of tests


@dataclass(frozen=True)
class Drawn:
    """Noise of many jobs, in the order in which it was drawn.

    Parameters
    ----------
    name : str
        Name of the source or profile.
    elements : ndarray of shape (jobs, n), int64
    scales : ndarray of shape (n,)
        Sigma, or scale, of each element in the plan.
    blocks : tuple of slice
        The elements of each single draw.
    """

    name: str
    elements: Integers
    scales: Floats
    law: Law
    blocks: tuple[slice, ...]


@dataclass(frozen=True)
class Test:
    """The p-value of one test, multiplied by the number of cases it was chosen from."""

    name: str
    p_value: float

    def __str__(self) -> str:
        return f"{self.name} {min(self.p_value, 1.0):.2g}"


def normal_scores(drawn: Drawn, rng: np.random.Generator | None = None) -> Floats:
    """Return noise as standard normal numbers; shape (jobs, elements).

    A discrete distribution has steps; each draw gets a random place on its step, or the middle.
    """
    elements, scale = drawn.elements, drawn.scales
    place = rng.random(elements.shape) if rng else np.full(elements.shape, 0.5)
    if drawn.law == "gaussian":
        # P(z - 1/2 < sigma N < z + 1/2) equals P(Z = z) up to a factor 1 + 1 / (24 sigma^2).
        scores: Floats = (elements + (place - 0.5)) / np.sqrt(scale**2 + 1 / 12)
        return scores
    ratio = np.exp(-1 / scale)
    size = np.abs(elements).astype(np.float64)
    beyond = ratio ** (size + 1) / (1 + ratio)  # P(Z > size)
    step = ratio**size * (1 - ratio) / (1 + ratio)
    # The quantiles of 0 and 1 are infinite.
    above = np.clip(beyond + place * step, 1e-300, 1 - 1e-16)
    away: Floats = -special.ndtri(above)
    return np.where(elements < 0, -away, away)


# The law ------------------------------------------------------------------------------------------


def law(drawn: Drawn, scores: Floats) -> list[Test]:
    """Test the distribution of all elements, of blocks, of positions and of rows."""
    jobs = len(scores)
    tests = [Test(f"{name} of all elements", p) for name, p in _fits(scores.reshape(-1, 1))]
    places = np.clip(special.ndtr(scores.ravel()), 1e-300, 1 - 1e-16)
    tests.append(Test("bins of all elements", uniform_fit(places)["bins"]))
    for number, block in enumerate(drawn.blocks):
        block_scores = scores[:, block]
        block_tests = [
            Test(f"{name} of block {number + 1}", p)
            for name, p in _fits(block_scores.reshape(-1, 1))
        ]
        rows = (block_scores**2).sum(axis=1)
        block_tests.append(
            Test(f"spread in a row of block {number + 1}", _spread(rows, block_scores.shape[1]))
        )
        tests += [Test(t.name, t.p_value * len(drawn.blocks)) for t in block_tests]
    if jobs > 1:
        tests += [Test(f"{name} of an element", p) for name, p in _fits(scores)]
    tests.append(Test("zeros", _zeros(drawn)))
    if jobs >= 30 and drawn.scales.min() >= 256:
        common = np.gcd.reduce(drawn.elements, axis=0)
        # All are multiples of m with probability at most (1/m + 1/scale)^jobs.
        chance = 3 * (0.5 + 1 / 256) ** jobs * common.size
        tests.append(Test("common divisor of an element", chance if (common > 1).any() else 1.0))
    return tests


def _fits(scores: Floats) -> Iterator[tuple[str, float]]:
    """Yield p-values of the worst column: of its variance, its mean and its distribution."""
    n, columns = scores.shape
    yield "spread", _spread((scores**2).sum(axis=0), n)
    # A union bound over the columns and the two sides of each distribution.
    centre = np.abs(scores.sum(axis=0)).max() / sqrt(n)
    yield "mean", columns * 2 * float(special.ndtr(-centre))
    places = np.sort(special.ndtr(scores), axis=0)
    steps = np.arange(n + 1)[:, None] / n
    distance = float(max((steps[1:] - places).max(), (places - steps[:-1]).max()))
    yield "distance", columns * 2 * exp(-2 * n * distance**2)  # [M90]_


def _spread(squares: Floats, freedom: int) -> float:
    """Return the p-value of the smallest and the largest sum of squares."""
    # Sums of squares of normal numbers are chi-squared.
    low = special.gammainc(freedom / 2, squares.min() / 2)
    high = special.gammaincc(freedom / 2, squares.max() / 2)
    return float(2 * squares.size * min(low, high))


def _zeros(drawn: Drawn) -> float:
    """Return the p-value of the number of elements without noise."""
    scale = float(drawn.scales.min())
    # In both distributions P(0) is at most the density at 0 of the continuous one.
    probability = 1 / (sqrt(2 * pi) * scale) if drawn.law == "gaussian" else 1 / (2 * scale)
    zeros = int((drawn.elements == 0).sum())
    return float(stats.binom.sf(zeros - 1, drawn.elements.size, min(1.0, probability)))


# Independence -------------------------------------------------------------------------------------


def independence(scores: Floats, rng: np.random.Generator) -> list[Test]:
    """Test the independence of the elements of a job and of consecutive jobs.

    If there are too many elements for all pairs, groups are summed, also with random signs.
    """
    tests = [Test("lags", _lags(scores.ravel()))]
    elements = scores.shape[1]
    rows = max(_FEWEST, int(_MOST / elements**2))
    tables = [("", scores[:rows])] if elements**2 * _FEWEST <= _MOST else []
    if elements > len(scores) // 2 or not tables:
        width = max(1, min(len(scores) // 4, int(sqrt(_MOST / len(scores)))))
        tables += [(f" {name}", fold(scores)) for name, fold in _folds(width, elements, rng)]
    for name, table in tables:
        tests += [Test(f"{what}{name}", p_value) for what, p_value in _alike(table)]
    return tests


def _alike(table: Floats) -> Iterator[tuple[str, float]]:
    """Yield p-values of all pairs of columns, and of residuals of columns given earlier ones."""
    jobs, columns = table.shape
    if columns > 1:
        yield (
            "pairs of elements",
            _pairs(np.concatenate([table, _largeness(table)], axis=1), columns),
        )
        yield "what is left of an element", _left(table)
    for first in (0, 1):  # pairs of consecutive jobs form a row, from the first or second job on
        paired = table[first : first + (jobs - first) // 2 * 2].reshape(-1, 2 * columns)
        if len(paired) >= 4:
            yield "what is left after a job", _left(paired)
    for lag in range(1, _NEXT + 1):
        if jobs > lag + 8:
            yield f"elements {lag} jobs apart", _apart(table, lag)


def _largeness(scores: Floats) -> Floats:
    """Return the absolute values of normal numbers, transformed to normal numbers."""
    sizes: Floats = -special.ndtri(np.clip(2 * special.ndtr(-np.abs(scores)), 1e-300, 1 - 1e-16))
    return sizes


def _folds(
    width: int, elements: int, rng: np.random.Generator
) -> Iterator[tuple[str, Callable[[Floats], Floats]]]:
    """Yield functions that sum elements to fewer standard normal numbers."""
    padded = -(-elements // width) * width
    count = np.full(padded, 1.0)
    count[elements:] = 0

    def summed(signs: Floats, *, beside: bool) -> Callable[[Floats], Floats]:
        def fold(scores: Floats) -> Floats:
            table = np.zeros((len(scores), padded))
            table[:, :elements] = scores * signs
            shape, axis = ((width, -1), 2) if beside else ((-1, width), 1)
            sums = table.reshape(len(scores), *shape).sum(axis=axis)
            squares = count.reshape(shape).sum(axis=axis - 1)
            kept: Floats = sums[:, squares > 0] / np.sqrt(squares[squares > 0])
            return kept

        return fold

    for beside in (True, False):
        name = "beside each other" if beside else "far apart"
        yield name, summed(np.ones(elements), beside=beside)
        yield f"{name}, random signs", summed(rng.choice((-1.0, 1.0), elements), beside=beside)


def _pairs(table: Floats, elements: int) -> float:
    """Return the p-value of the largest correlation of two columns; exact, of known mean 0."""
    unit = table / np.sqrt((table**2).sum(axis=0))
    correlations = np.abs(unit.T @ unit)
    columns = len(correlations)
    np.fill_diagonal(correlations, 0.0)
    if columns > elements:  # an element and its own size
        diagonal = np.arange(elements)
        correlations[diagonal, diagonal + elements] = correlations[
            diagonal + elements, diagonal
        ] = 0.0
    return comb(columns, 2) * correlated(float(correlations.max()), len(table))


def _left(table: Floats) -> float:
    """Return the p-value of the smallest residual of a column given all earlier ones [B33]_."""
    rows, columns = table.shape
    # As many columns as rows explain any column, so a quarter of the rows stays free.
    columns = min(columns, rows * 3 // 4)
    if columns < 1:
        return 1.0
    freedom, parts = rows - np.arange(columns), [table[:, :columns]]
    if columns < table.shape[1]:
        parts.append(table[:, -columns:])
    diagonals = [np.diag(np.linalg.qr(block, mode="r")) ** 2 for block in parts]
    p_value = min(float(special.gammainc(freedom / 2, d / 2).min()) for d in diagonals)
    return float(len(parts) * columns * p_value)


def _apart(table: Floats, lag: int) -> float:
    """Return the p-value of the largest correlation of elements of jobs `lag` apart."""
    before, after = table[:-lag], table[lag:]
    products = before.T @ after
    squares = (before**2).sum(axis=0), (after**2).sum(axis=0)
    correlations = np.abs(products) / np.sqrt(np.outer(*squares))
    diagonal = np.diag(products).copy()
    # The values of one element in two jobs overlap, so they are not independent vectors.
    np.fill_diagonal(correlations, 0.0)
    n, elements = before.shape
    among_all = elements**2 * correlated(float(correlations.max()), n)
    own_later = elements * float(_drift(diagonal, squares[0], n).min())
    return 2 * float(min(among_all, own_later))


def _lags(sequence: Floats) -> float:
    """Return the p-value of the largest autocovariance of a sequence, over all lags."""
    n = sequence.size
    if n < 16:
        return 1.0
    # Padded to twice its length, since the transform is circular.
    spectrum = np.fft.rfft(sequence, 2 * n)
    sums = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[1 : n - 8]
    squares = np.cumsum(sequence**2)
    lags = np.arange(1, n - 8)
    return float(lags.size * _drift(sums, squares[n - 1 - lags], n - lags).min())


def _drift(sums: Floats, squares: Floats, terms: Floats | Integers | int) -> Floats:
    """Return bounds on p-values of sums of products with a known past.

    Given its past, each term is normal with known variance. With V the sum of variances,
    ``exp(a S - a^2 V / 2)`` therefore has mean 1 for each a. (Ville, Markov.)
    """
    # Optimal for V near its mean and p near exp(-_TAIL). It must not depend on the sums.
    a = np.sqrt(2 * _TAIL / np.asarray(terms, dtype=np.float64))
    bounds: Floats = 2 * np.exp(np.minimum(0.0, a * a * squares / 2 - a * np.abs(sums)))
    return bounds


# Repetitions --------------------------------------------------------------------------------------


def repeats(samples: Sequence[Drawn]) -> list[Test]:
    """Test for repeated vectors and values: anywhere, scaled, or with opposite sign."""
    by_size: dict[int, list[Floats]] = {}
    by_scale: dict[tuple[str, float], list[Integers]] = {}
    tests = []
    for drawn in samples:
        scores = normal_scores(drawn)
        for block in drawn.blocks:
            block_scores = scores[:, block]
            by_size.setdefault(block_scores.shape[1], []).append(block_scores)
        for scale in np.unique(drawn.scales):
            of_scale = drawn.elements[:, drawn.scales == scale].ravel()
            by_scale.setdefault((drawn.law, float(scale)), []).append(of_scale)
        if len(drawn.elements) > 1:
            tests.append(Test("elements of two jobs", _same_as_before(drawn)))
        if len(drawn.elements) >= 6:
            pairs = len(drawn.elements) // 2 * 2
            later = np.concatenate([scores[0:pairs:2], scores[1:pairs:2]], axis=1)
            tests.append(Test("elements alike in all jobs", _directions(scores.T)))
            tests.append(Test("elements alike a job later", _directions(later.T)))
            tests.append(Test("elements alike in size", _directions(_largeness(scores).T)))
    for size, parts in by_size.items():
        if size >= 3:
            tests.append(Test(f"vectors of {size} elements", _directions(np.concatenate(parts))))
    for (kind, scale), values in by_scale.items():
        tests.append(Test("values", _values(np.concatenate(values), kind, scale)))
    return tests


def _same_as_before(drawn: Drawn) -> float:
    """Return the p-value of the element that most often equals its value in the previous job."""
    equal = (drawn.elements[1:] == drawn.elements[:-1]).sum(axis=0)
    again = len(drawn.elements) - 1
    # Given the first, the second is equal with at most the probability of the commonest value.
    p_words = np.asarray(stats.binom.sf(equal - 1, again, np.minimum(1.0, 1 / (2 * drawn.scales))))
    whole = float(np.log(np.maximum(1.0, 2 * drawn.scales)).sum())
    rows = int((drawn.elements[1:] == drawn.elements[:-1]).all(axis=1).sum())
    p_rows = again * exp(-min(whole, 700.0)) if rows else 1.0
    return float(2 * min(p_words.min() * equal.size, p_rows))


def _directions(vectors: Floats) -> float:
    """Return the p-value of the two most parallel vectors among neighbours in order."""
    vectors = vectors[:_VECTORS]
    vectors = vectors[(vectors != 0).any(axis=1)]
    count, size = vectors.shape
    if count < 2:
        return 1.0
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    # A vector and its negative have one direction. Parallel vectors are close in the order of any
    # coordinate, so only neighbours are compared; the union bound counts all pairs.
    unit *= np.where(unit[:, :1] < 0, -1, 1)
    unit = unit[np.argsort(unit[:, 0], kind="stable")]
    # The squared sine is 1 - r^2 without cancellation.
    sines = [
        float(_sines(unit[step:], unit[:-step]).min())
        for step in range(1, min(_NEIGHBOURS, count - 1) + 1)
    ]
    return comb(count, 2) * float(special.betainc((size - 1) / 2, 0.5, min(sines)))


def _sines(left: Floats, right: Floats) -> Floats:
    """Return squared sines of angles between rows of unit length."""
    cosine = (left * right).sum(axis=1, keepdims=True)
    sines: Floats = np.minimum(1.0, ((left - cosine * right) ** 2).sum(axis=1))
    return sines


def _values(values: Integers, kind: str, scale: float) -> float:
    """Bound the probability of so few distinct absolute values, by [M89]_.

    One element changes the count by one. Two draws have the same absolute value with at most twice
    the probability of the same value.
    """
    n = values.size
    same = 1 / (2 * sqrt(pi) * scale) if kind == "gaussian" else 1 / (4 * scale)
    repeated = n - np.unique(np.abs(values)).size
    beyond = repeated - comb(n, 2) * min(1.0, 2 * same)
    return exp(-2 * beyond**2 / n) if beyond > 0 and n else 1.0


def summary(tests: Sequence[Test]) -> tuple[float, str]:
    """Return the p-value of all tests together, and a text that names the two smallest."""
    if not tests:
        return 1.0, "nothing to test"
    p_value = min(1.0, len(tests) * min(test.p_value for test in tests))
    worst = sorted(tests, key=lambda test: test.p_value)[:2]
    return p_value, f"p {p_value:.2g} in {len(tests)} tests; least: {', '.join(map(str, worst))}"
