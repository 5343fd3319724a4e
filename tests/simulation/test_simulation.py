"""A simulated federation: seeds in the gate, many more at night, and every schedule of a small job.

A seed that fails prints its history and the command that replays it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from itertools import count

import pytest

from . import exhaustive, interleaved
from .exhaustive import Schedule
from .mutants import MUTANTS, Mutant
from .simulate import Failed, jobs_of, simulate
from .world import Broken, Crash, Fuse, World

GATE = 100  # jobs
NIGHTLY = int(os.environ.get("SIMULATION_JOBS", "20000"))
PARTS = 10  # tests of the gate, so that a failure stops a tenth of the seeds


def seeds(first: int, jobs: int) -> Iterator[int]:
    """Yield as many seeds as have so many jobs."""
    so_far = 0
    for seed in count(first):
        if so_far >= jobs:
            return
        so_far += jobs_of(seed)
        yield seed


@pytest.mark.parametrize("part", range(PARTS))
def test_seeded_jobs(part: int) -> None:
    for seed in seeds(1000 * part, GATE // PARTS):
        simulate(seed)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_seeded_jobs(part: int) -> None:
    for seed in seeds(1_000_000 * (part + 1), NIGHTLY // PARTS):
        simulate(seed)


@pytest.mark.skipif("SIMULATION_SEED" not in os.environ, reason="set SIMULATION_SEED to a seed")
def test_replay() -> None:
    print("\n".join(simulate(int(os.environ["SIMULATION_SEED"])).trace))


def test_a_seed_has_one_history() -> None:
    for seed in (3, 8):
        assert simulate(seed).trace == simulate(seed).trace


# --- Every schedule -------------------------------------------------------------------------------

# Messages, pairs of answers that follow each other, and points of all disks of the canonical run.
SIZES = {"pairwise": (60, 20, 128), "group": (48, 16, 106)}


THIRDS = [
    pytest.param(third, marks=[pytest.mark.nightly] if third else [], id=f"from-{third}")
    for third in range(3)
]


@pytest.mark.parametrize("third", THIRDS)
@pytest.mark.parametrize("profile", SIZES)
def test_every_death_and_every_message_twice(profile: str, third: int) -> None:
    """In the gate every third death: before and after commits in turn, and all kinds of message."""
    plan = exhaustive.small_plan(profile)
    run = exhaustive.run(plan, Schedule())
    assert (run.messages, run.pairs, run.world.points) == SIZES[profile]
    for dies in range(third, run.world.points, 3):
        # Beside it the message that comes twice and the order change from one point to the next.
        exhaustive.run(plan, Schedule(dies * 7 % run.messages, dies % run.pairs, dies))


@pytest.mark.parametrize("third", THIRDS)
def test_a_job_goes_on_without_a_silo_and_every_message_comes_twice(third: int) -> None:
    exhaustive.drop_outs(slice(third, None, 3))


def test_a_job_goes_on_although_a_silo_lies() -> None:
    exhaustive.lies()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_job_with_one_mask_of_all_goes_on_although_a_silo_lies() -> None:
    exhaustive.lies("group")


def test_old_copies_of_a_ledger_of_two_jobs_at_once() -> None:
    interleaved.some()


@pytest.mark.nightly
@pytest.mark.slow
def test_old_copies_of_a_ledger_of_two_jobs_in_every_order() -> None:
    interleaved.every()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("profile", SIZES)
def test_every_death_times_every_message_twice(profile: str) -> None:
    """In canonical order all of them, and of the other orders one in so many, others each night."""
    plan = exhaustive.small_plan(profile)
    every = int(os.environ.get("SIMULATION_EVERY", "20"))
    place = int(os.environ.get("SIMULATION_PLACE", date.today().toordinal())) % every
    schedules = exhaustive.schedules(plan, orders=True)
    tried = 0
    for number, schedule in enumerate(schedules):
        if schedule.swapped is None or number % every == place:
            exhaustive.run(plan, schedule)
            tried += 1
    print(f"{profile}: {tried} of {number + 1} schedules, place {place} of {every}")
    messages, _, points = SIZES[profile]
    assert tried > messages * points


# --- The simulation itself ------------------------------------------------------------------------


def test_a_party_dies_at_the_point_that_its_fuse_names() -> None:
    world = World(1, fuses={"a": Fuse(1)}, acting="a")
    world.point("before")
    with pytest.raises(Crash):
        world.point("after")
    with pytest.raises(Crash):  # of a `finally`
        world.point("before")


def test_no_handler_of_the_product_catches_a_death_or_a_broken_law() -> None:
    assert not issubclass(Crash, Exception)
    assert not issubclass(Broken, Exception)


def _simulate_from(seed: int, most: int = 40) -> None:
    """Play histories until one fails."""
    for one in range(seed, seed + most):
        simulate(one)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    schedules = {None: exhaustive.drop_outs, "lies": exhaustive.lies, "copies": interleaved.some}
    seed = mutant.seed
    # The history of a seed also follows from the digest of the code, so later seeds are tried.
    run: Callable[[], object] = (
        partial(_simulate_from, seed) if isinstance(seed, int) else schedules[seed]
    )
    with mutant.applied(), pytest.raises(Failed):
        run()
