"""A pair that the release shows to be dependent, and synthetic records do not, is named."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cloister import DPSynthesiser
from cloister.app.present import doubts_of
from cloister.core.arrays import Floats
from cloister.tasks.synthesis.attenuation import correlation_in
from cloister.testing import zero_noise

N = 4000
RNG = np.random.default_rng(0)
AGE = RNG.uniform(0, 100, N)
RECORDS = pd.DataFrame({"age": AGE, "income": AGE + RNG.normal(0, 10, N), "luck": RNG.random(N)})

NORMAL = RNG.normal(size=(2, 200_000))
DRAWS = RNG.normal(size=(200, 19, 19))


def uniform(law: Floats) -> Floats:
    """Return a law without dependence, of the same length."""
    return np.full_like(law, law.mean())


@pytest.mark.parametrize("kept", [True, False])
def test_a_dependence_that_is_not_kept_is_named(kept: bool) -> None:
    kind = zero_noise(DPSynthesiser)
    bounds = {"age": (0, 100), "income": (-50, 150), "luck": (0, 1)}
    edges = {"age": (25, 50, 75), "income": (25, 50, 75), "luck": (0.5,)}
    found = kind(epsilon=1.0, bounds=bounds, nominal_n=N, edges=edges).fit(RECORDS).result_
    if not kept:
        found = replace(found, results={**found.results, "law": uniform(found.results["law"])})
    said = [doubt for doubt in doubts_of(found) if "less than half" in doubt]
    assert len(said) == (not kept)
    assert all("shows: age × income; raise epsilon" in sentence for sentence in said)


@pytest.mark.parametrize(("bins", "weaker"), [(2, True), (20, False)])
@pytest.mark.parametrize("public", [True, False])
def test_correlations_that_bins_weaken_are_named(bins: int, weaker: bool, public: bool) -> None:
    """Of age and income, .94; luck depends on neither."""
    kind = zero_noise(DPSynthesiser)
    high = 1000 if weaker else 150  # a last bin up to a bound that is far beyond the records
    bounds = {"age": (0, 100), "income": (-50, high if not public else 150), "luck": (0, 1)}
    ends = np.linspace(0, 100, bins + 1)[1:-1].tolist()
    edges = {"age": ends, "income": ends, "luck": (0.5,)} if public else None
    model = kind(epsilon=50.0, bounds=bounds, nominal_n=N, edges=edges).fit(RECORDS)
    alike = model.sample(N)
    assert (alike["age"].corr(alike["income"]) < 0.75) == weaker
    said = [doubt for doubt in doubts_of(model.result_) if "correlations are weaker" in doubt]
    assert len(said) == weaker
    for sentence in said:
        found = re.search(r"shows: age × income (0\.\d\d) in place of about (0\.\d\d);", sentence)
        assert found
        assert abs(float(found[1]) - alike["age"].corr(alike["income"])) < 0.03
        assert abs(float(found[2]) - RECORDS["age"].corr(RECORDS["income"])) < 0.05


def test_independent_columns_are_said_to_be_so() -> None:
    kind = zero_noise(DPSynthesiser)
    bounds = {"age": (0, 100), "income": (-50, 150), "luck": (0, 1)}
    for structure in ("independent", "pairs"):
        model = kind(structure, epsilon=1.0, bounds=bounds, nominal_n=N).fit(RECORDS)
        said = [doubt for doubt in doubts_of(model.result_) if "are independent" in doubt]
        assert len(said) == (structure == "independent")


@pytest.mark.parametrize("r", [-0.5, 0.0, 0.3, 0.74, 0.94])
@pytest.mark.parametrize("cuts", [1, 2, 18])
def test_the_correlation_in_a_table_is_that_of_normal_numbers(r: float, cuts: int) -> None:
    """In cells of any number and size; four deviations of sampling."""
    ends = np.quantile(NORMAL[0], np.linspace(0, 1, cuts + 2) ** 2)
    second = r * NORMAL[0] + np.sqrt(1 - r * r) * NORMAL[1]
    cells = [np.searchsorted(ends[1:-1], numbers) for numbers in (NORMAL[0], second)]
    table = np.zeros((cuts + 1, cuts + 1))
    np.add.at(table, tuple(cells), 1.0)
    found, noise = correlation_in(table, 100.0)
    assert abs(found - r) < 0.015
    # The deviation is that of tables with other noise, up to the noise of their margins.
    draws = DRAWS[:, : cuts + 1, : cuts + 1]
    spread = np.std([correlation_in(table + 100 * draw, 0.0)[0] for draw in draws])
    assert spread < 2 * noise
    assert r or abs(spread / noise - 1) < 0.25
