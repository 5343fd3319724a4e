"""The public state of a job, which every party computes alike from the released sums."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloister.core.arrays import GridState, Results, State
from cloister.core.units import for_units
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.ring import Words, to_bytes, to_integers, to_words
from cloister.protocol.plan import Plan
from cloister.protocol.task import NoisyBlock, pipeline_steps

SUMS_FORMAT = "cloister-sums/1"


@dataclass(frozen=True)
class ReleasedSum:
    """The noised sum of a round, and the silos that contributed to it."""

    survivors: tuple[str, ...]
    words: Words


def sums_to_dict(plan: Plan, sums: Sequence[ReleasedSum]) -> dict[str, Any]:
    """Return the noised sums of a job as JSON-able values.

    Carrying the sums takes no code of the task; computing the result from them does.
    """
    return {
        "format": SUMS_FORMAT,
        "plan": plan.to_dict(),
        "plan_digest": plan.digest.hex(),
        "rounds": [
            {"survivors": released.survivors, "words": b64encode(to_bytes(released.words)).decode()}
            for released in sums
        ],
    }


def results_at(plan: Plan, state: GridState) -> Results:
    """Return the results of a state, in the users' units.

    A task without a state before the first round has no results of that state either.
    """
    results = plan.task.results(state, plan.grid) if state else {}
    steps = pipeline_steps(plan.task)
    ranges = {name: ends for step in steps for name, ends in getattr(step, "ranges", {}).items()}
    return for_units(results, plan.group_size, ranges)


def words_of(plan: Plan, sums: Iterable[ReleasedSum]) -> bytes:
    """Return the canonical text of the released words of a job, as silos sign and store it."""
    document = sums_to_dict(plan, tuple(sums))
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


class Progress:
    """The state before the first round and after each; a function of the plan and the releases."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._latest: State = plan.task.start()  # in floats, to compare with other machines' states
        self.states: list[GridState] = [self._on_grid(self._latest)]
        self.sums: list[ReleasedSum] = []  # of each round, from which all states follow

    @property
    def survivors(self) -> tuple[tuple[str, ...], ...]:
        """The silos in the sum of each round."""
        return tuple(released.survivors for released in self.sums)

    @property
    def rounds(self) -> int:
        """Number of released rounds."""
        return len(self.sums)

    @property
    def state(self) -> GridState:
        """The current state."""
        return self.states[-1]

    def receive(self, elements: Words, survivors: Sequence[str]) -> None:
        """Update the state with the unmasked sum of the next round.

        Raises
        ------
        RemoteProtocolError
            If it is outside the range of honest silos; the state is then unchanged.
        """
        t = self.rounds
        released = self._plan.decode(t, to_integers(elements), len(survivors))
        if self._plan.horizon is None:
            self.take(t, released)
        else:  # the sums of all periods are by the state before the first one
            self.states.append(self.state)
        self.sums.append(ReleasedSum(tuple(survivors), elements))

    def take(self, t: int, released: Mapping[str, NoisyBlock]) -> None:
        """Update the state with the released blocks of round `t`."""
        # From the state on the grid, which is equal at all silos; floats may differ in last bits.
        self._latest = self._plan.task.update(t, self.state, released)
        self.states.append(self._on_grid(self._latest))

    def adopt(self, state: GridState) -> None:
        """Replace the current state by another party's."""
        self.states[-1] = state

    def edges(self, drift: float) -> Iterator[tuple[str, int, int]]:
        """Yield the elements that a machine whose floats differ by `drift` may round otherwise.

        Each is the name and flat index of an element of the state, and its other grid point.
        """
        bits = self._plan.grid.frac_bits
        for name, value in self._latest.items():
            steps, kept = np.ravel(value) * float(1 << bits), self.state[name].ravel()
            low = np.floor(steps)
            reach = drift * np.maximum(float(1 << bits), np.abs(steps))
            for at in np.flatnonzero(np.abs(steps - low - 0.5) <= reach):
                yield name, int(at), int(2 * low[at] + 1 - kept[at])

    def distance(self, state: GridState) -> float:
        """Return the largest difference of a state on the grid from the local one in floats."""
        scale = 1 << self._plan.grid.frac_bits
        return max(
            (float(abs(state[name] / scale - value).max()) for name, value in self._latest.items()),
            default=0.0,
        )

    def encoded(self) -> list[bytes]:
        """Return the current state as bytes: names and numbers, sorted by name."""
        parts = []
        # Sorted, so that the bytes are independent of the order in which a task fills its state.
        for name in sorted(self.state):
            parts += [name.encode(), to_bytes(to_words(self.state[name].ravel()))]
        return parts

    def _on_grid(self, state: State) -> GridState:
        return {name: round_to_grid(v, self._plan.grid.frac_bits) for name, v in state.items()}
