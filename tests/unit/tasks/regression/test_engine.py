"""Without noise the engine gives the maximum of the likelihood; with it, what noise leaves."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.core.arrays import Floats
from cloister.core.randomness import public_generator
from cloister.tasks.regression.engine import (
    BITS,
    Curvature,
    Gradient,
    Prior,
    ball,
    by_unit,
    lengths,
    matrix_of,
    moved,
    packed_of,
    products,
    sandwich,
)
from cloister.tasks.regression.families import FAMILIES, Family, family_of
from cloister.tasks.regression.tails import CLASSES, Tail, class_of, cut_of_squares, falling

N = 3000
RNG = public_generator("tests of the engine")
X = np.stack(
    [RNG.uniform(-1, 1, N), np.where(RNG.random(N) < 0.4, 1.0, 0.0), RNG.uniform(0, 10, N)]
)
ROWS = np.vstack([X, np.ones(N)])
ETA = np.array([0.3, -0.4, 0.05, 0.1]) @ ROWS
OFFSET = np.log(RNG.uniform(0.5, 2, N))
WEIGHTS = RNG.integers(1, 4, N) / 3
TARGETS = {
    "gaussian": ETA + RNG.normal(0, 0.5, N),
    "binomial": np.where(RNG.random(N) < 1 / (1 + np.exp(-ETA)), 1.0, 0.0),
    "poisson": RNG.poisson(np.exp(ETA + OFFSET)).astype(float),
    "negative-binomial": RNG.poisson(np.exp(ETA) * RNG.gamma(2, 0.5, N)).astype(float),
    "gamma": np.exp(ETA) * RNG.gamma(3, 1 / 3, N),
}


def prior_of(family: Family, target: Floats, rows: Floats = ROWS) -> Prior:
    null = np.zeros(len(rows))
    null[-1] = family.margin(float(target.mean()))
    return Prior(null, np.full(len(rows), 2.0), np.ones(len(rows), dtype=bool))


def sums(
    family: Family, weights: Floats, target: Floats, offset: Floats | float, counted: Floats | float
) -> tuple[Floats, Floats]:
    """Return gradient and curvature at weights, as payloads without cut or lattice."""
    residual, weight = family.score(weights @ ROWS + offset, target)
    gradient = (ROWS * (counted * residual)).sum(axis=1)
    return gradient, matrix_of((products(ROWS) * (counted * weight)).sum(axis=1))


def fitted(
    name: str, offset: Floats | float = 0.0, counted: Floats | float = 1.0, steps: int = 12
) -> tuple[Floats, Floats]:
    """Return weights after steps without noise, and the inverse of the curvature there."""
    family, target = family_of(name, 0.5), TARGETS[name]
    prior = prior_of(family, target)
    weights = prior.null
    for _ in range(steps):
        gradient, matrix = sums(family, weights, target, offset, counted)
        at = Gradient(weights, gradient, 0.0)
        found = moved(weights, [at], Curvature(matrix, 0.0), prior, drift=family.drift)
        weights = found.weights
    return weights, found.inverse


def test_least_squares_are_those_of_the_textbook_after_one_step() -> None:
    weights, inverse = fitted("gaussian", steps=1)
    exact = np.linalg.lstsq(ROWS.T, TARGETS["gaussian"], rcond=None)[0]
    error = 0.5 * np.sqrt(np.diag(inverse))
    assert np.abs(weights - exact).max() < 1e-9 * error.min()


@pytest.mark.parametrize(("name", "offset"), [("binomial", 0.0), ("poisson", 0.0)])
def test_steps_lead_to_the_solution_of_a_library(name: str, offset: float) -> None:
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    model = (
        LogisticRegression(C=np.inf, tol=1e-12, solver="newton-cholesky")
        if name == "binomial"
        else PoissonRegressor(alpha=0.0, tol=1e-12, solver="newton-cholesky")
    )
    model.fit(X.T, TARGETS[name])
    weights, inverse = fitted(name, offset)
    gap = np.append(np.ravel(model.coef_), model.intercept_) - weights
    assert np.abs(gap / np.sqrt(np.diag(inverse))).max() < 1e-6  # the library's own tolerance


@pytest.mark.parametrize("name", FAMILIES)
def test_the_gradient_vanishes_after_a_few_steps(name: str) -> None:
    weights, inverse = fitted(name, OFFSET, WEIGHTS)
    gradient, _ = sums(family_of(name, 0.5), weights, TARGETS[name], OFFSET, WEIGHTS)
    assert np.abs(inverse @ gradient / np.sqrt(np.diag(inverse))).max() < 1e-9


@pytest.mark.parametrize(
    ("name", "offset", "counted"),
    [(name, 0.0, 1.0) for name in FAMILIES]
    + [("poisson", OFFSET, 1.0), ("gaussian", 0.0, WEIGHTS), ("binomial", 0.0, WEIGHTS)],
)
def test_weights_and_errors_are_those_of_statsmodels(
    name: str, offset: Floats | float, counted: Floats | float
) -> None:
    sm = pytest.importorskip("statsmodels.api")
    families = {
        "gaussian": sm.families.Gaussian(),
        "binomial": sm.families.Binomial(),
        "poisson": sm.families.Poisson(),
        "negative-binomial": sm.families.NegativeBinomial(alpha=0.5),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
    }
    model = sm.GLM(
        TARGETS[name],
        ROWS.T,
        family=families[name],
        offset=np.zeros(N) + offset,
        var_weights=np.ones(N) * counted,
    )
    exact = model.fit(tol=1e-14, maxiter=100)
    weights, inverse = fitted(name, offset, counted)
    assert np.abs((weights - exact.params) / exact.bse).max() < 1e-9
    assert np.sqrt(np.diag(inverse) * exact.scale) == pytest.approx(exact.bse, rel=1e-6)


def test_products_of_gradients_of_units_are_the_cluster_robust_covariance() -> None:
    sm = pytest.importorskip("statsmodels.api")
    owner = np.repeat(np.arange(N // 5), 5)
    family, target = family_of("poisson"), TARGETS["poisson"]
    weights, _ = fitted("poisson", OFFSET)
    residual, _ = family.score(weights @ ROWS + OFFSET, target)
    gradients = by_unit(ROWS * residual, owner)
    squares = matrix_of(products(gradients).sum(axis=1))
    gradient, matrix = sums(family, weights, target, OFFSET, 1.0)
    prior = prior_of(family, target)
    here = Gradient(weights, gradient, 0.0)
    found = moved(weights, [here], Curvature(matrix, 0.0), prior, drift=family.drift)
    covariance = sandwich(found, squares, 0.0, prior.kept)
    model = sm.GLM(target, ROWS.T, family=sm.families.Poisson(), offset=OFFSET)
    robust = model.fit(
        tol=1e-14,
        cov_type="cluster",
        cov_kwds={"groups": owner, "use_correction": False, "df_correction": False},
    )
    assert covariance == pytest.approx(robust.cov_params(), rel=1e-6)


# Payloads -----------------------------------------------------------------------------------------


def test_a_ball_bounds_the_norm_of_any_vector_and_some_reach_it() -> None:
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.integers(-9, 9, (1, 4000))
    vectors = rng.normal(0, 1, (7, 4000)) * size
    vectors[:, :3] = np.array([np.nan, np.inf, -np.inf])
    for cut in (1e-3, 1.0, 1e6):
        whole = ball(vectors, cut)
        norms = (whole.astype(object) ** 2).sum(axis=1)
        assert max(norms) <= 4**BITS
        assert max(norms) > 0.9999 * 4**BITS
        assert not whole[:3].any()
        short = lengths(vectors) < cut / 2
        kept = vectors[:, short].T / cut
        assert np.abs(whole[short] / 2**BITS - kept).max(initial=0) <= 2.0**-BITS


def test_products_have_the_square_of_the_length_and_are_unpacked() -> None:
    rows = np.random.default_rng(1).normal(0, 1, (5, 9))
    assert lengths(products(rows)) == pytest.approx(lengths(rows) ** 2)
    matrix = matrix_of(products(rows).sum(axis=1))
    assert matrix == pytest.approx(rows @ rows.T)
    assert matrix_of(packed_of(matrix)) == pytest.approx(matrix)


def test_rows_of_a_unit_are_added_before_they_are_cut() -> None:
    values = np.array([[1.0, 2.0, 4.0], [1.0, -2.0, 4.0]])
    assert by_unit(values, None) is values
    assert by_unit(values, np.array([1, 0, 1])).tolist() == [[2.0, 5.0], [-2.0, 5.0]]


# Noise --------------------------------------------------------------------------------------------


def test_a_direction_below_its_noise_is_not_known_and_stays_at_the_null_model() -> None:
    matrix = np.diag([1000.0, 1e-3, 1000.0])
    prior = Prior(np.zeros(3), np.full(3, 2.0), np.ones(3, dtype=bool))
    here = Gradient(np.zeros(3), np.array([1000.0, 50.0, 0.0]), 20.0)
    found = moved(np.zeros(3), [here], Curvature(matrix, 20.0), prior, drift=0.0, last=True)
    assert found.known.tolist() == [True, False, True]
    assert abs(found.weights[1]) < 0.1
    assert np.sqrt(found.noise[1, 1]) > 1.5
    assert found.weights[0] == pytest.approx(1.0, abs=0.01)


def test_what_left_the_equations_has_no_weight_and_changes_no_other() -> None:
    matrix = np.array([[50.0, 40.0, 3.0], [40.0, 90.0, 1.0], [3.0, 1.0, 60.0]])
    here = Gradient(np.zeros(3), np.array([5.0, 500.0, 4.0]), 0.0)
    prior = Prior(np.zeros(3), np.full(3, 2.0), np.array([True, False, True]))
    found = moved(np.zeros(3), [here], Curvature(matrix, 0.0), prior, drift=0.0)
    kept = np.ix_([0, 2], [0, 2])
    assert found.weights[[0, 2]] == pytest.approx(np.linalg.solve(matrix[kept], [5.0, 4.0]))
    assert found.weights[1] == 0
    assert not found.known[1]


def test_a_curvature_is_drawn_to_an_earlier_one_by_their_noise() -> None:
    now, before = Curvature(np.eye(2) * 90.0, 1.0), Curvature(np.eye(2) * 60.0, 2.0)
    least_squares = now.drawn_to(before, same=True)
    assert least_squares.matrix[0, 0] == pytest.approx((4 * 90 + 60) / 5)
    assert least_squares.noise_std == pytest.approx(np.sqrt(0.8))
    assert now.drawn_to(before, same=False).matrix == pytest.approx(now.matrix)  # scaled first


# Cuts ---------------------------------------------------------------------------------------------


def test_without_noise_a_cut_is_the_price_of_what_it_takes_away() -> None:
    sizes = np.abs(np.random.default_rng(2).normal(0, 1, 20_000))
    counts = np.bincount(class_of(sizes), minlength=len(CLASSES)).astype(float)
    cut, excess = Tail.of(counts, 1e-6, 6.0, len(sizes)).cut(1e-6)
    assert cut == pytest.approx(6.0)  # noise costs nothing, so nothing is cut
    assert excess == pytest.approx(0.0, abs=1e-6)
    cheap, dear = (Tail.of(counts, 1.0, 6.0, len(sizes)).cut(price) for price in (10.0, 3000.0))
    assert cheap[0] > dear[0]
    for cut, excess in (cheap, dear):
        lost = np.maximum(sizes - cut, 0).sum()
        assert 0.7 * lost < excess < 2 * 0.7 * lost + 30


def test_a_tail_that_may_be_flatter_asks_for_a_longer_cut() -> None:
    """Sizes of a normal law, and a few far ones that noise hides."""
    sizes = np.concatenate([np.abs(np.random.default_rng(0).normal(size=20_000)), np.full(60, 9.0)])
    counts = np.bincount(class_of(sizes), minlength=len(CLASSES)).astype(float)
    counts += np.random.default_rng(1).normal(0, 18.0, len(counts))
    (short, lost), (long, more) = (
        Tail.of(counts, 18.0, 200.0, len(sizes), steepest).cut(30.0) for steepest in (4.0, 1.9)
    )
    assert long > 1.3 * short
    assert more > lost


def test_a_cut_of_squares_falls_with_its_price() -> None:
    sizes = np.abs(np.random.default_rng(2).normal(0, 1, 20_000))
    counts = np.bincount(class_of(sizes), minlength=len(CLASSES)).astype(float)
    cuts = [cut_of_squares(counts, 1.0, len(sizes), price) for price in (1.0, 300.0, 1e5)]
    assert cuts == sorted(cuts, reverse=True)
    assert cuts[0] > cuts[-1]


def test_sizes_that_are_not_numbers_are_in_the_last_class() -> None:
    assert class_of(np.array([np.nan, np.inf, 0.0])).tolist() == [64, 64, 0]


def test_counts_that_fall_keep_their_sum_and_the_classes_of_usual_sizes() -> None:
    """Beyond the class that half of the units reach, a rise is averaged away."""
    counts = np.array([100.0, 700.0, 600.0, 200.0, 260.0, -30.0, 10.0])
    found = falling(counts, 1800.0)
    np.testing.assert_allclose(found, [100.0, 700.0, 600.0, 230.0, 230.0, -10.0, -10.0])
    np.testing.assert_array_equal(falling(found, 1800.0), found)


def test_the_lost_squares_of_a_known_tail_are_nearly_counted() -> None:
    sizes = np.abs(np.random.default_rng(3).standard_t(6, 20_000))
    counts = np.bincount(class_of(sizes), minlength=len(CLASSES)).astype(float)
    tail = Tail.of(counts, 1e-6, 60.0, len(sizes))
    cut, lost = tail.cut_of_squares(300.0)
    exact = np.maximum(sizes**2 - cut**2, 0.0).sum()
    assert exact <= lost <= 1.5 * exact
    assert tail.cut_of_squares(1000.0)[0] < cut


def test_a_cut_that_minds_less_what_it_takes_away_is_smaller() -> None:
    sizes = np.abs(np.random.default_rng(3).standard_t(3, 20_000))
    counts = np.bincount(class_of(sizes), minlength=len(CLASSES)).astype(float)
    tail = Tail.of(counts, 5.0, 60.0, 20_000)
    (usual, excess), (smaller, more) = (tail.cut(40.0, weight) for weight in (1.0, 0.5))
    assert smaller < usual
    assert more > excess == tail.excess(np.array([usual]))[0]
