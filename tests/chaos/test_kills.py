"""Twenty-five kills at random moments, with a seed that is logged; 200 are a command."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .kit import Beaten, Blow, Moment, steps
from .run import campaign

KILLS = 25


@pytest.mark.xdist_group("chaos")
def test_twenty_five_kills_change_no_result_and_no_charge(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}: python tests/chaos/run.py --kills {KILLS} --seed {seed}")
    trials = list(campaign(tmp_path, KILLS, seed, say=True))
    broken = [trial for trial in trials if trial.error]
    assert not broken, f"seed {seed}: {broken[0].suite} {broken[0].blows}: {broken[0].error}"
    assert sum(len(trial.blows) for trial in trials) >= KILLS


@pytest.mark.xdist_group("chaos")
def test_a_cut_cable_at_every_step_of_a_round_changes_nothing(tmp_path: Path) -> None:
    """Each leg of a pairwise job, cut before the silo's answer leaves, or after it arrived."""
    legs = [(leg, t) for leg, t in steps("pairwise") if t <= 1]
    with Beaten(tmp_path) as federation:
        for place, (leg, t) in enumerate(legs):
            when = ("asked", "answers")[place % 2]
            blow = Blow("east", "cut", Moment("east", when, leg, t), 0.2)
            federation.recover("pairwise", [blow])
