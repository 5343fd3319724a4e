"""The layout of a plan: the blocks that every round sums, independent of the task's code.

Adding vectors, adding noise and keeping a ledger take three facts of each block. They are its
length, the largest change by one record and its share of the budget. The plan carries these facts.
An aggregator reads no others, and a silo checks them against its own task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from math import isclose
from typing import Annotated, Any, Self

from cloister.core.declared import AtLeastZero, Range, Share, declared
from cloister.core.errors import PlanError, raise_if_any
from cloister.protocol.task import Block, Mechanism, Task, UnitTask

MAX_ROUNDS = 1000  # bounds the work of a party that checks a stranger's plan
_SAME_SHARE = 1e-12  # shares contain logarithms, whose last bits differ between machines


@declared
class Layout:
    """The blocks of each round, and the distribution of their noise.

    Parameters
    ----------
    mechanism : {"gaussian", "laplace", "none"}
    frames : tuple of tuple of Block
        The distinct rounds, each once.
    order : tuple of int
        Number of the frame of each round.
    rate : float in (0, 1]
        Probability with which a unit of privacy takes part in a round.
    noise_multiplier : float
        For ``rate < 1``: noise over sensitivity of a block of weight 1; else 0.

    Raises
    ------
    PlanError
        If a weight, a bound or a length is invalid.
    """

    mechanism: Mechanism
    frames: tuple[tuple[Block, ...], ...]
    order: tuple[Annotated[int, Range(0)], ...]
    rate: Share = 1.0
    noise_multiplier: AtLeastZero = 0.0

    def __post_init__(self) -> None:
        raise_if_any(self._rules())

    def _rules(self) -> Iterator[str]:
        """Yield a sentence for each violated rule."""
        if not all(number < len(self.frames) for number in self.order):
            yield "order of a layout must name its frames by number; design it again."
        for block in (block for frame in self.frames for block in frame):
            yield from _rules_of_block(block)
        weight = sum(block.weight for t in range(self.rounds) for block in self.blocks(t))
        # Shares of the squared mu, or of epsilon for Laplace noise: both compose by addition.
        if not 0 < weight <= 1 + 1e-9:  # the sum of many shares may exceed 1 by rounding
            yield f"weights of all blocks must sum to at most 1, got {weight:.6g}."

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the layout of a task; equal rounds are stored once."""
        if not 1 <= task.rounds <= MAX_ROUNDS:
            raise PlanError(
                f"rounds of task {task.name!r} must be in [1, {MAX_ROUNDS}], got {task.rounds}."
            )
        rounds = [task.blocks(t) for t in range(task.rounds)]
        frames = tuple(dict.fromkeys(rounds))
        numbers = {frame: number for number, frame in enumerate(frames)}
        sampled = isinstance(task, UnitTask) and task.rate < 1
        return cls(
            mechanism=task.mechanism,
            frames=frames,
            order=tuple(numbers[frame] for frame in rounds),
            rate=task.rate if sampled else 1.0,  # type: ignore[attr-defined]  # narrowed by sampled
            noise_multiplier=task.noise_multiplier if sampled else 0.0,  # type: ignore[attr-defined]
        )

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.order)

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of round `t`."""
        return self.frames[self.order[t]]

    def same_as(self, other: Layout) -> bool:
        """Return True if all integers and names are equal, and shares up to rounding."""
        local, remote = self._exact(), other._exact()
        return local == remote and all(
            isclose(a, b, rel_tol=_SAME_SHARE)
            for a, b in zip(self._shares(), other._shares(), strict=True)
        )

    def _exact(self) -> tuple[object, ...]:
        rounds = (self.blocks(t) for t in range(self.rounds))
        return self.mechanism, [[(b.name, b.shape, b.l1, b.l2_squared) for b in r] for r in rounds]

    def _shares(self) -> list[float]:
        weights = [block.weight for t in range(self.rounds) for block in self.blocks(t)]
        return [self.rate, self.noise_multiplier, *weights]

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read a layout written by :meth:`to_dict`."""
        names = {field.name for field in fields(cls)}
        if document.keys() != names:
            raise PlanError(f"layout must have {', '.join(sorted(names))}; design it again.")
        frames = tuple(tuple(_block(entry) for entry in frame) for frame in document["frames"])
        return cls(**{**document, "frames": frames})


def _block(entry: Mapping[str, Any]) -> Block:
    # JSON has lists only, but frames are keys of a dict and so must be hashable.
    return Block(**{**entry, "shape": tuple(entry["shape"])})


def _rules_of_block(block: Block) -> Iterator[str]:
    sizes: Sequence[object] = block.shape
    if not isinstance(block.name, str) or not all(_is_whole(size, 0) for size in sizes):
        yield f"block {block.name!r} must have a name and a shape, got {block.shape!r}."
    if not (_is_whole(block.l1, 1) and _is_whole(block.l2_squared, 1)):
        yield (
            f"sensitivities of block {block.name!r} must be integers >= 1, got {block.l1!r} and "
            f"{block.l2_squared!r}."
        )
    if not (isinstance(block.weight, float | int) and 0 < block.weight <= 1 + 1e-9):
        yield f"weight of block {block.name!r} must be in (0, 1], got {block.weight!r}."


def _is_whole(value: object, least: int) -> bool:
    # bool is a subclass of int, and a plan is read from JSON that a stranger may have written.
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
