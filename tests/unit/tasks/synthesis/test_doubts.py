"""A pair that the release shows to be dependent, and synthetic records do not, is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cloister import DPSynthesiser
from cloister.app.present import doubts_of
from cloister.core.arrays import Floats
from cloister.testing import zero_noise

N = 4000
RNG = np.random.default_rng(0)
AGE = RNG.uniform(0, 100, N)
RECORDS = pd.DataFrame({"age": AGE, "income": AGE + RNG.normal(0, 10, N), "luck": RNG.random(N)})


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
    said = [doubt for doubt in doubts_of(found) if "synthetic records" in doubt]
    assert len(said) == (not kept)
    assert all("shows: age × income; raise epsilon" in sentence for sentence in said)
