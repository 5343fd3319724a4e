"""Noise as jobs draw it under each trust profile, through the product's own parties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cloister.app.in_process import make_clients, run_clients
from cloister.audit.noise_laws import Drawn
from cloister.audit.runs import Ahead, Log, MakeNoise, system_noise, watched_plan
from cloister.core.errors import CloisterError, PlanError
from cloister.hazmat.ring import Integers, to_integers
from cloister.hazmat.signing import Identity
from cloister.privacy.noise import NoiseKind
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.plan import Plan
from cloister.protocol.task import PerSiloTask, Profile, SitedTask, UnitTask

_SILOS = 3  # silos of a job that is not local
_AT_ONCE = 100  # smallest number of elements per draw, as small draws are slow


class NoiseSizeError(CloisterError):
    """Jobs drew another number of elements than their plan has."""


def in_profiles(plan: Plan) -> list[Plan]:
    """Return the plan under each profile in which its task can run."""
    plans = (in_profile(plan, profile) for profile in sorted(plan.task.profiles))
    return [other for other in plans if other is not None]


def in_profile(plan: Plan, profile: Profile) -> Plan | None:
    """Return the plan under another profile; None if the task cannot run under it."""
    if profile == plan.profile:
        return plan
    task = plan.task
    if isinstance(task, PerSiloTask) and task.silos:  # its layers belong to the plan's silos
        return None
    if isinstance(task, SitedTask) and task.sites:  # likewise its terms
        return None
    silos = tuple(f"silo-{i}" for i in range(1 if profile == "local" else _SILOS))
    alone = isinstance(task, UnitTask) and task.alone and profile == "pairwise"
    try:
        return replace(
            plan,
            silos=silos,
            profile=profile,
            min_silos=_SILOS if alone else 0,
            collusion=_SILOS - 1 if alone else 0,
            fingerprints=(),
        )
    except PlanError:
        return None


def noise_of(plan: Plan) -> Drawn:
    """Return an empty table of a plan's noise, with its scales and the blocks of one draw.

    Under "pairwise" every silo draws; its share and those of other honest silos must suffice.
    """
    blocks = [block for t in range(plan.rounds) for block in plan.task.blocks(t)]
    pairwise = plan.profile == "pairwise"
    scale_of = plan.share_scale if pairwise else plan.noise_scale
    scales = np.concatenate([np.full(b.size, float(scale_of(b))) for b in blocks])
    drawers = len(plan.silos) if pairwise else 1
    ends = np.cumsum([block.size for block in blocks] * drawers)
    starts = np.concatenate([[0], ends[:-1]])
    return Drawn(
        plan.profile,
        np.zeros((0, drawers * scales.size), dtype=np.int64),
        np.tile(scales, drawers),
        "laplace" if plan.task.mechanism == "laplace" else "gaussian",
        tuple(slice(int(a), int(b)) for a, b in zip(starts, ends, strict=True)),
    )


def drawn_by(plan: Plan, jobs: int, make_noise: MakeNoise | None) -> Drawn:
    """Draw the noise of new jobs through their parties, round by round.

    Parameters
    ----------
    make_noise : function, optional
        Returns the source of each job; by default the product's own.

    Raises
    ------
    NoiseSizeError
        If a source returns more or fewer elements than a job has.
    """
    draw = _shares if plan.profile == "pairwise" else _of_aggregators
    drawn, rows = noise_of(plan), list(draw(plan, jobs, make_noise))
    wrong = {row.size for row in rows} - {drawn.scales.size}
    if wrong:
        raise NoiseSizeError(
            f"a job under {plan.profile!r} drew {min(wrong)} elements of noise, and its plan has "
            f"{drawn.scales.size}"
        )
    return replace(drawn, elements=np.array(rows))


def _of_aggregators(plan: Plan, jobs: int, make_noise: MakeNoise | None) -> Iterator[Integers]:
    """Yield the noise that an aggregator draws in each job.

    The product's own source serves several jobs if each draws few elements, in one draw.
    """
    few = _AT_ONCE // sum(plan.length(t) for t in range(plan.rounds))
    at_once = max(few, 1) if make_noise is None else 1
    for first in range(0, jobs, at_once):
        here = min(at_once, jobs - first)
        aggregator = Aggregator(plan, Ahead((make_noise or system_noise)(), here))
        for _ in range(here):
            yield np.concatenate([to_integers(aggregator._draw(t)) for t in range(plan.rounds)])


def _shares(plan: Plan, jobs: int, make_noise: MakeNoise | None) -> Iterator[Integers]:
    """Yield the shares of all silos in each job, one silo after the other."""
    table = np.zeros((0, plan.grid.n_features), dtype=np.int32)
    records = {silo: [table] for silo in plan.silos}
    # An identity serves many jobs; the secret of a job, from which its shares derive, is new.
    identities = {silo: Identity.new() for silo in plan.silos}
    signed = replace(plan, fingerprints=tuple(i.fingerprint for i in identities.values()))
    for _ in range(jobs):
        noise = make_noise() if make_noise else None
        clients = make_clients(signed, records, noise=noise, identities=identities).values()
        rows = [[client._share_of_noise(t) for client in clients] for t in range(plan.rounds)]
        yield np.concatenate([share for of_silo in zip(*rows, strict=True) for share in of_silo])


class _Recorded:
    """A noise source that stores its draws."""

    label = "recorded"

    def __init__(self, make_noise: MakeNoise | None) -> None:
        self._source = (make_noise or system_noise)()
        self.drawn: list[Integers] = []

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Draw from the inner source and store a copy."""
        drawn = self._source.draw(kind, scale, size)
        self.drawn.append(drawn.copy())  # a copy, since the caller may add to the array
        return drawn


@dataclass(frozen=True)
class Job:
    """Noise of one whole job.

    Parameters
    ----------
    noise : ndarray of shape (n,), int64
        The answers less the sums of records.
    drawn : ndarray of shape (n,), int64, or None
        The draws of the source, or of all silos together. None if clients are sampled, since their
        sums are unknown.
    """

    noise: Integers
    drawn: Integers | None


def whole_job(plan: Plan, make_noise: MakeNoise | None) -> Job:
    """Run a job with clients, masks, frames and an aggregator over no records."""
    log = Log()
    watched = watched_plan(plan, log)
    table = np.zeros((0, plan.grid.n_features), dtype=np.int32)
    recorded = _Recorded(make_noise)
    rounds = range(plan.rounds)
    records = {silo: [table] for silo in plan.silos}
    clients = make_clients(watched, records, noise=make_noise() if make_noise else None)
    shares = recorded.drawn
    if plan.profile == "pairwise":
        parties = clients.values()
        shares = [np.sum([c._share_of_noise(t) for c in parties], axis=0) for t in rounds]
    for _ in run_clients(clients, recorded):
        pass
    noise = np.concatenate([log.noise(t) for t in rounds])
    return Job(noise, np.concatenate(shares) if plan.rate == 1 else None)
