"""Leaks: each attack works where nothing hides the record, and a plan's bound holds or is refuted.

Games without noise are functions of public seeds. With noise, a true bound is refuted by chance at
most twice in 1e8 runs of a test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.audit.bounds import Check
from cloister.core.randomness import public_generator
from cloister.privacy import accounting
from cloister.tasks.supervised.local_training import Network
from cloister.testing import ZeroNoise
from cloister_lab.experiments import leak_attacks as attacks
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.leak_attacks import Game, PartOfNoise, Setting, digits, see
from cloister_lab.experiments.leaks import (
    ATTACKS,
    SETTINGS,
    Cell,
    cells_of,
    figures,
    units,
    verdicts,
)
from cloister_lab.experiments.records import TidyRow
from cloister_lab.experiments.run import Settings

OPEN, EXACT = Setting("open", in_clear=True), Setting("exact")
RELEASE = Setting("release", 1.0, 1.0)
RARELY = 1e-8


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round rather than four, at the same cost."""
    monkeypatch.setattr(attacks, "ROUNDS", 1)


def hits(game: Game, games: int, there: bool) -> int:
    return sum(game.play(public_generator("test", i), there).hit for i in range(games))


def check(game: Game, games: int) -> Check:
    """Return the plan's bound of the advantage against that of some games."""
    found = [hits(game, games, there) for there in (True, False)]
    return Check(0.0, accounting.delta(game.cost, 0.0), found[0], found[1], games, RARELY)


def test_what_is_seen_is_a_silos_upload_the_exact_sum_or_the_noised_one() -> None:
    table = digits()
    plan = attacks.averaging(table, 1.0, 6, 2)
    silos = table.deal(0, [1, 2, 3, 4, 5], there=True)
    views = {setting: see(plan, setting, silos) for setting in (OPEN, EXACT, RELEASE)}
    start = views[OPEN].states[0]
    own, everybody = (
        plan.task.contribute(0, start, records)
        for records in (silos["a"], np.concatenate(list(silos.values())))
    )
    assert np.array_equal(views[OPEN].sums[0], own)
    assert np.array_equal(views[EXACT].sums[0], everybody)
    noise = views[RELEASE].sums[0] - everybody
    expected = plan.noise_scale(plan.task.blocks(0)[0])
    # of 650 normal numbers; a third off is twelve standard deviations
    assert 0.67 < noise.std() / expected < 1.33


def test_the_model_an_attack_sees_is_the_one_that_a_job_returns() -> None:
    table = digits()
    plan = attacks.averaging(table, 1.0, 6, 3)
    silos = table.deal(0, [1, 2, 3, 4, 5], there=True)
    returned = run_plan(plan, {k: [v] for k, v in silos.items()}, noise=ZeroNoise())
    seen = attacks.model_of(plan, EXACT, see(plan, EXACT, silos))
    assert np.allclose(returned.results["parameters"], seen.ravel(), atol=1e-3)


def test_a_part_of_the_noise_is_a_part_of_its_scale() -> None:
    assert not PartOfNoise(0.0).draw("gaussian", 1000, 5).any()
    drawn = PartOfNoise(0.1).draw("gaussian", 1000, 4000)
    assert 80 < drawn.std() < 120  # 18 standard deviations


@pytest.mark.parametrize("hidden", [0, 16])
def test_a_dense_layers_gradient_of_one_row_is_the_row(hidden: int) -> None:
    rng = np.random.default_rng(0)
    network = Network(8, 3, "softmax", hidden)
    x = np.append(rng.uniform(-1, 1, 7), 1.0)
    moved = network.train(rng.normal(size=network.size), x[None, None], np.eye(3)[None, :1], 1, 1.0)
    first = moved[0][: 8 * (hidden or 3)].reshape(8, -1)
    found = attacks.invert_dense(first)
    known = np.isfinite(found).all(axis=1)
    assert known.sum() >= 2
    assert np.allclose(found[known], x[:-1], atol=1e-6)


def test_of_a_batch_a_class_gives_away_its_mean() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-1, 1, (4, 7)), np.ones(4)])
    labels = np.array([0, 1, 1, 2])  # and nobody of class 3
    moved = Network(8, 4, "softmax").train(np.zeros(32), X[None], np.eye(4)[None, labels], 1, 1.0)
    found = attacks.invert_dense(moved[0].reshape(8, 4))
    for number in range(3):
        assert np.allclose(found[number], X[labels == number, :-1].mean(axis=0))


def test_gradient_inversion_is_exact_for_a_row_and_fades_with_the_batch() -> None:
    likeness = []
    for batch in (1, 32):
        game = attacks.gradient_inversion(OPEN, 0, batch=batch)
        found = [game.play(public_generator("test", i), True) for i in range(4)]
        likeness.append(np.mean([outcome.likeness for outcome in found]))
        if batch == 1:
            assert all(outcome.hit for outcome in found)
    assert likeness[0] > 0.999 > 0.95 > likeness[1]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("setting", [OPEN, EXACT])
def test_who_knows_the_others_always_tells_from_what_is_exact(setting: Setting) -> None:
    game = attacks.membership_known(setting, 0)
    assert hits(game, 5, True) == 5
    assert hits(game, 5, False) == 0
    guess = attacks.attribute(setting, 0, known=True)
    assert hits(guess, 5, True) == 5


@pytest.mark.usefixtures("quick")
def test_a_release_keeps_its_bound_and_one_without_noise_is_caught() -> None:
    assert check(attacks.membership_known(EXACT, 0), 36).alarms
    kept = check(attacks.membership_known(RELEASE, 0), 36)
    assert 0.05 < kept.delta < 0.15
    assert not kept.alarms


def test_a_stranger_tells_an_atypical_record_from_the_exact_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attacks, "ROUNDS", 1)
    monkeypatch.setattr(attacks, "SHADOWS", 25)
    game = attacks.membership_stranger(EXACT, 0, atypical=True)
    assert hits(game, 12, True) - hits(game, 12, False) >= 7


@pytest.mark.parametrize(
    "prepare", [attacks.model_inversion, attacks.linear_reconstruction, attacks.moves_of_clusters]
)
@pytest.mark.parametrize("setting", [OPEN, EXACT])
def test_pictures_and_patients_are_found_in_what_is_exact(
    prepare: Callable[[Setting, int], Game], setting: Setting
) -> None:
    game = prepare(setting, 0)
    assert hits(game, 3, True) >= 2
    assert hits(game, 2, False) == 0


def test_overlapping_sums_cost_what_all_jobs_of_a_silo_cost_together() -> None:
    for epsilon in (1.0, 8.0):
        game = attacks.linear_reconstruction(Setting("release", epsilon, 1.0), 0)
        assert accounting.epsilon(game.cost, 1e-6) <= epsilon * (1 + 1e-6)
    assert np.linalg.matrix_rank(attacks.overlapping()) == attacks.overlapping().shape[1]


# --- What is shown --------------------------------------------------------------------------------


def cell(hits: int, false_hits: int, bound: float, setting: str = "our release, ε = 1") -> Cell:
    return Cell("membership-known", setting, 300, hits, false_hits, bound, None, None)


def test_an_advantage_is_refuted_only_beyond_chance() -> None:
    above = cell(250, 50, 0.1)
    low, high = above.interval()
    assert low < above.advantage < high
    assert above.advantage == pytest.approx(2 / 3)
    assert above.refuted(1e-6)
    assert not cell(170, 130, 0.1).refuted(0.05)  # 0.13 seen, by chance
    wide = above.interval(1e-6)
    assert wide[0] < low
    assert wide[1] > high


def test_verdicts_count_cells_and_name_what_caught_too_little_noise() -> None:
    broken = "ε = 1 promised, a tenth of the noise"
    said = verdicts([cell(160, 150, 0.1), cell(280, 20, 0.1, broken)])
    assert "refuted in 0 of 1 cells" in said["releases"]
    assert said["broken"] == "Caught by 1 of 1 attacks: membership, others known."
    assert "refuted in 1 of 1" in verdicts([cell(280, 20, 0.1)])["releases"]
    assert "others known" in verdicts([cell(150, 150, 0.1)])["harmless"]


def test_the_page_adds_up_parts_and_says_what_the_exact_model_gives_away(tmp_path: Path) -> None:
    rows: list[TidyRow] = [
        {
            "dataset": "digits",
            "method": "membership-atypical",
            "setting": setting,
            "part": part,
            "games": 50,
            "with": 45 if "exact" in setting else 26,
            "without": 5 if "exact" in setting else 25,
            "bound": 0.1 if SETTINGS[setting].part else 1.0,
            "likeness": None,
            "aside": None,
        }
        for setting in SETTINGS
        for part in range(2)
    ]
    assert {found.games for found in cells_of(rows)} == {100}
    files = figures(rows, tmp_path)
    assert [file.name for file in files] == ["leaks.md", "leaks.csv", "leaks.png"]
    page = files[0].read_text()
    assert "advantage of 0.80" in page
    assert "and of 0.02 from our release" in page
    assert "nan" not in page
    assert "{" not in page


def test_every_attack_runs_in_every_setting_and_the_full_version_has_more_targets() -> None:
    assert EXPERIMENTS["leaks"].units is units
    small, full = (units(Settings(Path(), full=full)) for full in (False, True))
    assert len(small) == len(ATTACKS) * len(SETTINGS)
    assert len({unit.key for unit in full}) == len(full) > len(small)
    assert len(units(Settings(Path(), only=("wdbc",)))) < len(small)
