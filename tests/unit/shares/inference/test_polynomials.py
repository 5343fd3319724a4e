"""Fitted activations: the published numbers, their errors, and what symmetry makes zero."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.shares.inference.polynomials import FUNCTIONS, fit

# activation, radius: published coefficients, and the largest error
PUBLISHED = [
    ("sigmoid", 8, (0.5, 0.150115, 0, -0.00159282), 0.114),
    ("sigmoid", 8, (0.5, 0.1913, 0, -0.00459558, 0, 4.222e-5), 0.061),
    ("sigmoid", 8, (0.5, 0.216892, 0, -0.00819408, 0, 1.6591e-4, 0, -1.2e-6), 0.032),
    ("sigmoid", 4, (0.5, 0.216606, 0, -0.00660418), 0.038),
    ("relu", 4, (0.375, 0.5, 0.117182), 0.375),
    ("relu", 4, (0.234387, 0.5, 0.205068, 0, -0.00640773), 0.234),
]


@pytest.mark.parametrize(("activation", "radius", "published", "error"), PUBLISHED)
def test_published_coefficients_are_the_least_squares_ones(
    activation: str, radius: int, published: tuple[float, ...], error: float
) -> None:
    found = fit(activation, len(published) - 1, radius)
    np.testing.assert_allclose(found, published, rtol=4e-3)  # rounded: the seventh has two digits
    x = np.linspace(-radius, radius, 10_001)
    off = np.abs(np.polynomial.polynomial.polyval(x, found) - FUNCTIONS[activation](x))
    assert off.max() == pytest.approx(error, abs=6e-4)


@pytest.mark.parametrize(("activation", "radius", "published", "error"), PUBLISHED)
def test_a_fit_is_what_an_ordinary_least_squares_solver_finds(
    activation: str, radius: int, published: tuple[float, ...], error: float
) -> None:
    u = (np.arange(20_000) + 0.5) / 10_000 - 1  # midpoints: an independent way to the integrals
    design = np.vander(u, len(published), increasing=True)
    solved = np.linalg.lstsq(design, FUNCTIONS[activation](radius * u), rcond=None)[0]
    fitted = fit(activation, len(published) - 1, radius) * radius ** np.arange(len(published))
    np.testing.assert_allclose(fitted, solved, rtol=1e-6, atol=1e-7)


def test_relu_on_four_has_the_coefficients_that_integrals_give_by_hand() -> None:
    # |u| on [-1, 1] is 1/2 + 5/8 P2 - 3/16 P4 in Legendre polynomials
    quadratic = [4 * 3 / 32, 0.5, 15 / 128]
    np.testing.assert_allclose(fit("relu", 2, 4.0), quadratic, rtol=1e-12)


def test_the_absolute_value_has_no_odd_term_so_a_cubic_fit_is_the_quadratic_one() -> None:
    cubic = fit(np.abs, 3, 4.0)
    assert cubic[1] == 0
    assert cubic[3] == 0
    np.testing.assert_allclose(cubic[:3], fit(np.abs, 2, 4.0), rtol=1e-12)
    np.testing.assert_allclose(fit("relu", 3, 4.0)[:3], fit("relu", 2, 4.0), rtol=1e-12)


@pytest.mark.parametrize("radius", [1.0, 8.0])
@pytest.mark.parametrize("degree", range(1, 16))
def test_what_symmetry_makes_zero_is_exactly_zero_at_every_degree(
    degree: int, radius: float
) -> None:
    odd, even = slice(1, None, 2), slice(0, None, 2)
    assert not fit(np.abs, degree, radius)[odd].any()
    assert not fit("relu", degree, radius)[3::2].any()
    assert not fit("tanh", degree, radius)[even].any()
    assert not fit("sigmoid", degree, radius)[2::2].any()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gelu", 2, 4.0), "activation"),
        (("relu", 0, 4.0), "degree"),
        (("relu", 2, float("inf")), "radius"),
    ],
)
def test_a_bad_fit_is_refused(arguments: tuple[str, int, float], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        fit(*arguments)
