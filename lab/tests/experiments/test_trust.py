"""Four models of trust: their noise is what their laws say, and the page shows it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cloister.privacy.budget import default_delta
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.run import Settings, draw_experiment, run_experiment
from cloister_lab.experiments.trust import (
    MODELS,
    epsilon_of_a_person,
    noise_of,
    noisy_counts,
    shuffled_epsilon,
)

models = pytest.mark.parametrize("model", MODELS)


@models
def test_estimates_are_unbiased_with_the_stated_noise(model: str) -> None:
    """The seed is fixed. A deviation of 2,000 draws is known to 1.6 %; the limits are six times."""
    n, rng = 4096, np.random.default_rng(1)
    counts = np.array([20, 0, n - 20])
    drawn = np.array([noisy_counts(model, counts, n, rng)[0] for _ in range(2000)])
    std = noise_of(model, n)
    assert np.abs(drawn.mean(axis=0) - counts).max() < 6 * drawn.std(axis=0).max() / math.sqrt(2000)
    assert drawn[:, 1].std() == pytest.approx(std, rel=0.1)


@models
def test_less_trust_means_more_noise(model: str) -> None:
    order = list(MODELS)
    if model != order[0]:
        before = order[order.index(model) - 1]
        assert noise_of(before, 8192) < noise_of(model, 8192)


@pytest.mark.parametrize("n", [10, 512, 8192, 10**6])
def test_persons_answer_with_what_mixing_allows_and_no_more(n: int) -> None:
    own = epsilon_of_a_person("shuffled", n)
    assert own >= 1
    if own > 1:
        delta = default_delta(n)
        assert shuffled_epsilon(own, n, delta) <= 1 + 1e-9
        assert own <= math.log(n / (16 * math.log(2 / delta)))
    assert epsilon_of_a_person("local", n) == 1


def test_the_page_has_a_row_for_each_model(tmp_path: Path) -> None:
    settings = Settings(tmp_path, repeats=2)
    run_experiment(EXPERIMENTS["trust"], settings, quiet=True)
    page = next(f for f in draw_experiment(EXPERIMENTS["trust"], settings) if f.suffix == ".md")
    text = page.read_text(encoding="utf-8")
    assert all(f"| {model} | {trusted} |" in text for model, trusted in MODELS.items())
    assert "times if local" in text
