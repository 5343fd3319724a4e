"""Coefficients that the penalty decides under wide bounds are named, and have no interval."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from cloister import DPLogisticRegression
from cloister.app.present import present
from cloister.core.errors import AccuracyWarning
from cloister.testing import zero_noise

N = 6000
RNG = np.random.default_rng(1)
X = pd.DataFrame({"age": RNG.uniform(18, 80, N), "income": RNG.lognormal(8.2, 0.4, N)})
MARGIN = -1 + 0.03 * (X["age"] - 50) - 0.4 * (X["income"] - 3900) / 1000
Y = RNG.random(N) < 1 / (1 + np.exp(-MARGIN))


def fitted(most: float, penalty: float) -> DPLogisticRegression:
    bounds = {"age": (18, 80), "income": (0, most)}
    kind = zero_noise(DPLogisticRegression)
    given = {"classes": [False, True], "nominal_n": N, "epsilon": 1.0}
    return kind(bounds=bounds, C=penalty, **given).fit(X, Y)  # type: ignore[no-any-return]


def test_a_penalty_that_decides_a_coefficient_is_named() -> None:
    with pytest.warns(AccuracyWarning, match="penalty decides the coefficients of income, whose"):
        model = fitted(most=200_000, penalty=1.0)
    results = model.result_.results
    assert results["penalised"].tolist() == [[0, 1]]
    assert np.isnan(results["coef_population_low"]).tolist() == [[False, True]]
    assert np.isfinite(results["coef_low"]).all()
    # The other column keeps its interval in sums of coefficients.
    assert np.isfinite(model.odds_ratio("age").population).all()
    assert present(model.result_).result.startswith("Penalised odds ratios of y")


@pytest.mark.parametrize(("most", "penalty"), [(15_000, 1.0), (200_000, np.inf)])
def test_records_that_outweigh_the_penalty_raise_no_doubt(most: float, penalty: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        results = fitted(most, penalty).result_.results
    assert not results["penalised"].any()
    low, high = (results[f"coef_population_{end}"][0, 1] for end in ("low", "high"))
    assert low < -0.0004 < high
