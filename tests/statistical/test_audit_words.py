"""The tests of noise are wrong no more often than they say, and see what they should.

Sound noise here comes from fixed streams, so nothing can fail by chance. Power is shown far from
the limit: every defect below gives a p-value under 1e-8, in short vectors and in long ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from cloister.audit import noise
from cloister.audit.checks import ALPHA
from cloister.audit.noise_laws import (
    Drawn,
    Law,
    correlated,
    independence,
    law,
    normal_scores,
    repeats,
    summary,
)
from cloister.core.randomness import public_generator
from cloister.hazmat.discrete import discrete_gaussian, discrete_laplace
from cloister.hazmat.ring import Integers
from cloister.privacy.noise import NoiseKind
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import toy_plan

SCALE = 40_000
SHORT, LONG = (250, 24), (60, 4000)


def drawn(shape: tuple[int, int], kind: Law = "gaussian", seed: int = 0) -> Drawn:
    stream = public_generator("words", kind, *shape, seed).bytes
    sample = discrete_gaussian if kind == "gaussian" else discrete_laplace
    words = sample(SCALE, shape[0] * shape[1], stream).reshape(shape)
    half = shape[1] // 2
    blocks = (slice(0, half), slice(half, shape[1]))[half == 0 :]
    return Drawn("test", words, np.full(shape[1], float(SCALE)), kind, blocks)


def p_values(sample: Drawn, seed: int = 0) -> dict[str, float]:
    rng = public_generator("places", seed)
    scores = normal_scores(sample, rng)
    return {
        "law": summary(law(sample, scores))[0],
        "independence": summary(independence(scores, rng))[0],
        "repeats": summary(repeats([sample]))[0],
    }


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("shape", [SHORT, (3000, 1), LONG])
def test_sound_noise_passes(shape: tuple[int, int], kind: Law) -> None:
    assert min(p_values(drawn(shape, kind)).values()) > 1e-4


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_tests_are_wrong_no_more_often_than_they_say(kind: Law) -> None:
    """Of 300 sound tables each test calls at most a twentieth unlikely at a twentieth."""
    tables, unlikely, most = 300, dict[str, int](), 0
    for seed in range(tables):
        sample = drawn((40, 6), kind, seed)
        rng = public_generator("often", seed)
        scores = normal_scores(sample, rng)
        tests = [*law(sample, scores), *independence(scores, rng), *repeats([sample])]
        for number, test in enumerate(tests):
            name = f"{number} {test.name}"
            unlikely[name] = unlikely.get(name, 0) + (test.p_value < 0.05)
            most = max(most, number)
    limit = stats.binom.ppf(1 - 1e-4, tables, 0.05)
    assert {name: times for name, times in unlikely.items() if times > limit} == {}
    assert most > 20


def repeat_rows(words: Integers) -> Integers:
    changed = words.copy()
    changed[len(words) // 2] = -words[3]
    return changed


def at(place: int, change: Callable[[Integers, Integers], Integers]) -> Callable:
    """Change one column, given itself and the whole table."""

    def changed(words: Integers) -> Integers:
        found = words.copy()
        found[:, place] = change(words[:, place], words)
        return found

    return changed


def after(lag: int) -> Callable[[Integers], Integers]:
    """Let every second run of `lag` jobs repeat the run before it."""

    def changed(words: Integers) -> Integers:
        again = np.arange(len(words)) // lag % 2 == 1
        return np.where(again[:, None], np.roll(words, lag, axis=0), words)

    return changed


SIGNS = public_generator("signs")

DEFECTS: dict[str, tuple[str, Callable[[Integers], Integers]]] = {
    "a fifth less": ("law", lambda w: w * 4 // 5),
    "a bare word": ("law", at(5, lambda one, w: 0 * one)),
    "a constant word": ("law", at(5, lambda one, w: 0 * one + SCALE)),
    "one of two values": ("law", at(5, lambda one, w: np.where(one > 0, SCALE, -SCALE))),
    "a fifth of a word": ("law", at(2, lambda one, w: one // 5)),
    "a coarser lattice": ("law", at(2, lambda one, w: one // 8 * 8)),
    "a bare job": ("law", lambda w: np.where(np.arange(len(w))[:, None] == 7, 0, w)),
    "two words alike": ("repeats", at(9, lambda one, w: w[:, 3])),
    "alike, turned and scaled": ("repeats", at(9, lambda one, w: -3 * w[:, 3] // 2)),
    "alike but for signs": (
        "repeats",
        at(9, lambda one, w: np.abs(w[:, 3]) * SIGNS.choice((-1, 1), len(w))),
    ),
    "a word of the job before": ("repeats", at(9, lambda one, w: -np.roll(w[:, 3], 1))),
    "a job that comes again": ("repeats", repeat_rows),
    "the last job again": ("repeats", after(1)),
    "jobs again, five later": ("repeats", after(5)),
    "halves that cancel": (
        "independence",
        lambda w: np.concatenate([w[:, : w.shape[1] // 2], -w[:, : w.shape[1] // 2]], axis=1),
    ),
}


@pytest.mark.parametrize("shape", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_seen_wherever_it_is(defect: str, shape: tuple[int, int]) -> None:
    check, change = DEFECTS[defect]
    sample = drawn(shape)
    bent = Drawn("bent", change(sample.elements), sample.scales, sample.law, sample.blocks)
    assert p_values(bent)[check] < ALPHA


@pytest.mark.parametrize(("part", "alarms"), [(0.95, True), (1.0, False), (1.05, True)])
def test_a_twentieth_of_sigma_is_seen_in_twenty_thousand_words(part: float, alarms: bool) -> None:
    sample = drawn((1000, 20))
    words = np.rint(part * sample.elements).astype(np.int64)
    bent = Drawn("bent", words, sample.scales, sample.law, sample.blocks)
    assert (p_values(bent)["law"] < ALPHA) == alarms


def test_a_weak_tie_of_many_words_is_seen_though_no_two_are_alike() -> None:
    """The last word is a sum of all others: no pair is correlated by more than 0.21."""
    sample = drawn(SHORT)
    rest = sample.elements[:, :-1].sum(axis=1) / np.sqrt(SHORT[1] - 1)
    words = np.column_stack([sample.elements[:, :-1], np.rint(-rest).astype(np.int64)])
    bent = Drawn("bent", words, sample.scales, sample.law, sample.blocks)
    assert p_values(bent)["independence"] < ALPHA


def test_the_law_of_a_correlation_is_that_of_students_t() -> None:
    for r, n in ((0.1, 30), (0.5, 12), (0.9, 5)):
        t = r * np.sqrt((n - 1) / (1 - r * r))
        assert correlated(r, n) == pytest.approx(2 * stats.t.sf(t, n - 1), rel=1e-9)


# --- drawing


class Counting:
    """Gives out whole numbers in order, from where the source before ended."""

    label = "a test"
    asked: ClassVar[list[int]] = []

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        self.asked.append(size)
        return np.arange(size) + sum(self.asked[:-1])


@pytest.mark.parametrize(("width", "at_once"), [(2, 50), (3, 33), (70, 1), (300, 1)])
def test_few_elements_are_drawn_for_several_jobs_at_once_and_given_out_once(
    width: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"n_clusters": 1, "n_features": width - 1, "rounds": 1}
    plan = toy_plan(FastLloyd(**sizes, first_radius=1.4, radius=0.8, public_seed=1))
    monkeypatch.setattr(Counting, "asked", [])
    monkeypatch.setattr(noise, "system_noise", Counting)
    assert plan.length(0) == width
    found = noise.drawn_by(plan, 205, None).elements
    assert (found == np.arange(205 * width).reshape(205, width)).all()
    jobs = [at_once] * (205 // at_once) + [205 % at_once]
    assert Counting.asked == [width * of for of in jobs if of]


def test_a_given_source_serves_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "asked", [])
    noise.drawn_by(plan := toy_plan(), 7, Counting)
    assert Counting.asked == [plan.length(0)] * 7 * plan.rounds
