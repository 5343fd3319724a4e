"""Twenty-five kills at random moments, with a seed that is logged; 200 are a command.

And every step of a job: signals to either side, a cut cable, a cable cut within a frame. And the
coordinator that never returns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from cloister.cli import main
from cloister.federation.local import COORDINATOR

from .kit import SIDES, SILOS, Beaten, Blow, Moment
from .run import LEGS, campaign

pytestmark = pytest.mark.usefixtures("forked_parties")

KILLS = 25


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beaten]:
    with Beaten(tmp_path_factory.mktemp("federation")) as beaten:
        yield beaten


def test_twenty_five_kills_change_no_result_and_no_charge(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}: python tests/chaos/run.py --kills {KILLS} --seed {seed}")
    trials = list(campaign(tmp_path, KILLS, seed, say=True))
    broken = [trial for trial in trials if trial.error]
    assert not broken, f"seed {seed}: {broken[0].suite} {broken[0].blows}: {broken[0].error}"
    assert sum(len(trial.blows) for trial in trials) >= KILLS


def test_a_cut_cable_at_every_step_of_a_round_changes_nothing(federation: Beaten) -> None:
    """Each leg of a pairwise job, cut before the silo has an answer, or before it is sent."""
    whens = cycle(("asked", "answers"))
    for leg, t in LEGS:
        federation.recover(
            "pairwise", [Blow("east", "cut", Moment("east", next(whens), leg, t), 0.2)]
        )


def test_a_signal_at_every_step_of_a_round_changes_nothing(federation: Beaten) -> None:
    """Each leg once; ``run.py --every-step`` goes through all signals, sides and legs."""
    sides, hows = cycle(SIDES), cycle(("kill", "kill", "term"))
    for leg, t in LEGS:
        party, when = next(sides)
        blow = Blow(party, next(hows), Moment(party, when, leg, t), 0.1)
        federation.recover("pairwise", [blow])


@pytest.mark.parametrize("how", ["cut", "hold", "swallow"])
@pytest.mark.parametrize("bytes_more", [1, 200])
def test_a_cable_that_fails_within_a_frame_changes_nothing(
    federation: Beaten, how: str, bytes_more: int
) -> None:
    moment = Moment("south", "answers", "upload", 2)
    federation.recover("group", [Blow("south", how, moment, 0.3, after=bytes_more)])


def test_when_the_coordinator_never_returns_owners_withdraw_and_keep_what_did_not_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Beaten(tmp_path) as federation:
        plan, moment = federation.plan("pairwise"), Moment(COORDINATOR, "heard", "upload", 2)
        federation.set_trap(moment)
        job = federation.fed.propose(plan)
        assert federation.wait_for(moment, time.monotonic(), job)
        federation.strike(Blow(COORDINATOR, "kill", moment))
        for silo in SILOS:
            assert federation.charged(silo, job) == ((0, 1, 2), True)
            config = str(federation.fed.config(silo))
            assert (
                main(["jobs", "withdraw", job, "--reason", "nobody asks", "--config", config]) == 0
            )
            federation.fed.kill(silo)
            federation.fed.start(silo)
        for silo in SILOS:
            charged = federation.eventually(
                lambda silo=silo: federation.charged(silo, job), lambda charged: not charged[1]
            )
            assert charged == ((0, 1, 2), False), "what left stays charged, and nothing else"
            assert federation.model(silo, job) is None
        federation.fed.start(COORDINATOR)
        assert federation.fed.wait_job(job)["state"] == "failed"
