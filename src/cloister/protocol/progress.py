"""The public state of a job: what every party that sees the released sums works out alike."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cloister.core.arrays import GridState, State
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.ring import Words, to_bytes, to_integers, to_words
from cloister.protocol.plan import Plan

SUMS_FORMAT = "cloister-sums/1"


@dataclass(frozen=True)
class ReleasedSum:
    """The noised sum of a round, and the silos whose records are in it."""

    survivors: tuple[str, ...]
    words: Words


def sums_to_dict(plan: Plan, sums: Sequence[ReleasedSum]) -> dict[str, Any]:
    """Return the noised sums of a job as JSON-able values.

    Whoever carried the sums need not know what they mean: whoever has the code of the task works
    the result out.
    """
    return {
        "format": SUMS_FORMAT,
        "plan": plan.to_dict(),
        "plan_digest": plan.digest.hex(),
        "rounds": [
            {"survivors": one.survivors, "words": b64encode(to_bytes(one.words)).decode()}
            for one in sums
        ],
    }


class Progress:
    """The state before the first round and after each; a function of the plan and the releases."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._latest: State = plan.task.start()
        self.states: list[GridState] = [self._on_grid(self._latest)]
        self.survivors: list[tuple[str, ...]] = []

    @property
    def rounds(self) -> int:
        """Number of rounds that were released."""
        return len(self.survivors)

    @property
    def state(self) -> GridState:
        """The current state."""
        return self.states[-1]

    def receive(self, elements: Words, survivors: Sequence[str]) -> None:
        """Go on with the unmasked sum of the next round.

        Raises
        ------
        RemoteProtocolError
            If it is outside what honest silos can reach; the state is then as before.
        """
        t = self.rounds
        released = self._plan.decode(t, to_integers(elements), len(survivors))
        # From the state on the grid, on which all agree; the finer one only serves to compare.
        self._latest = self._plan.task.update(t, self.state, released)
        self.states.append(self._on_grid(self._latest))
        self.survivors.append(tuple(survivors))

    def adopt(self, state: GridState) -> None:
        """Put another party's state in the place of the current one."""
        self.states[-1] = state

    def distance(self, state: GridState) -> float:
        """Return by how much a state on the grid differs from ours before it was rounded."""
        one = 1 << self._plan.grid.frac_bits
        return max(
            (float(abs(state[name] / one - value).max()) for name, value in self._latest.items()),
            default=0.0,
        )

    def encoded(self) -> list[bytes]:
        """Return the current state as bytes: names and numbers in one order."""
        parts = []
        for name in sorted(self.state):
            parts += [name.encode(), to_bytes(to_words(self.state[name].ravel()))]
        return parts

    def _on_grid(self, state: State) -> GridState:
        return {name: round_to_grid(v, self._plan.grid.frac_bits) for name, v in state.items()}
