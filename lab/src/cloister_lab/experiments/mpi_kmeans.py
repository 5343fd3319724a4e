"""Time the rounds of a federated job over MPI, for the table beside SPU.

    mpirun -np 3 python -m mpi4py -m cloister_lab.experiments.mpi_kmeans FILE METHOD [DELAY]

FILE is a NumPy archive with records ``X`` in the box [-1, 1] and starting ``centres``, of which
only the number counts. DELAY is waited for before each leg, in seconds, as the paper does: messages
to several silos travel together. Rank 0 is the aggregator and writes one line of JSON: the seconds
and bytes of every round, up and down, of all silos.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.randomness import new_key
from cloister.federation.transports.mpi import MpiTransport, hand_out, serve, world
from cloister.privacy.budget import Budget
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.session import Transport, run_rounds
from cloister.secagg.masks import GroupMask
from cloister_lab.experiments.datasets import Dataset, min_max
from cloister_lab.experiments.sweep import TASKS, plan_for

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

EPSILON = 1.0
JOBS = 20


class Counted:
    """A transport that adds up the bytes of what it carries, over a line with a delay."""

    def __init__(self, transport: Transport, delay: float = 0.0) -> None:
        self._transport = transport
        self._delay = delay
        self.total = 0

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Carry frames, and count them and their answers."""
        if self._delay:
            time.sleep(self._delay)
        answers = self._transport.exchange(frames)
        if self._delay:
            time.sleep(self._delay)
        self.total += sum(map(len, frames.values())) + sum(map(len, answers.values()))
        return answers


def main(file: str, method: str, delay: str = "0") -> None:
    """Play one rank in some jobs, one after the other."""
    comm = world()
    with np.load(Path(file), allow_pickle=False) as archive:
        data = min_max(archive["X"], "synth", len(archive["centres"]))
    rounds = [measured for _ in range(JOBS) for measured in _job(comm, data, method, float(delay))]
    if comm.rank == 0:
        seconds, sizes = zip(*rounds, strict=True)
        sys.stdout.write(json.dumps({"seconds": seconds, "bytes": sizes}, allow_nan=False) + "\n")


def _job(comm: Comm, data: Dataset, method: str, delay: float) -> list[tuple[float, int]]:
    """Run a job; return the seconds and bytes of its rounds at the aggregator."""
    silos = [f"silo-{index}" for index in range(comm.size - 1)]
    budget = Budget(EPSILON, data.delta)
    plan = plan_for(TASKS[method], data, budget, 0, len(silos), n_clusters=data.n_clusters)
    plan = replace(plan, run_id=hand_out(comm, bytes.fromhex(plan.run_id), 0).hex())
    if comm.rank:
        key = hand_out(comm, new_key(), 1)
        own = np.array_split(data.records, len(silos))[comm.rank - 1]
        client = Client(plan, silos[comm.rank - 1], [own], GroupMask(key))
        comm.Barrier()
        serve(comm, client.handle)
        return []
    comm.Barrier()
    inner = MpiTransport(comm, silos)
    transport, rounds = Counted(inner, delay), []
    begun, before = time.perf_counter(), 0
    for _ in run_rounds(Aggregator(plan, DiscreteNoise()), transport):
        now = time.perf_counter()
        rounds.append((now - begun, transport.total - before))
        begun, before = now, transport.total
    inner.close()
    return rounds


if __name__ == "__main__":
    main(*sys.argv[1:4])
