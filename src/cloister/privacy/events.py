"""Events: the mechanisms that were applied to records, as frozen values.

An event has no units: its noise is relative to sensitivity, under add/remove-one-unit neighbours.
Values are immutable and hashable, and a round trip through JSON is exact. :mod:`accounting`
computes their cost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeAlias

from cloister.core.declared import Declaration, Range, validate
from cloister.core.errors import PlanError
from cloister.privacy.budget import checked

_DIGEST = re.compile("[0-9a-f]{64}")
MAX_COUNT = 2**53  # the largest count that a float still holds exactly


class UnknownKind(PlanError):
    """The kind of an event is unknown."""

    def __init__(self, kind: object) -> None:
        super().__init__(f"kind of an event must be one that to_dict writes, got {kind!r}.")
        self.kind = kind


class _Numbers:
    """Base of mechanisms: a few positive numbers, of which `rate` is below 1."""

    kind: ClassVar[str]  # in JSON

    def __post_init__(self) -> None:
        hint = "; a release without noise is NonPrivateEvent()"
        for name, value in vars(self).items():
            # A rate of 1 would be another event for the same mechanism.
            allowed = Range(above=0, below=1) if name == "rate" else Range(above=0)
            object.__setattr__(self, name, checked(name, value, allowed, hint))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {"event": self.kind, **vars(self)}


@dataclass(frozen=True)
class GaussianEvent(_Numbers):
    """One Gaussian mechanism: noise of std ``s`` on a vector of L2 sensitivity ``D``.

    Parameters
    ----------
    noise_multiplier : float, > 0 and finite; equal to ``s / D``
    """

    kind: ClassVar[str] = "gaussian"

    noise_multiplier: float


@dataclass(frozen=True)
class SampledGaussianEvent(_Numbers):
    """One Gaussian mechanism over units that each took part by an independent secret coin.

    Parameters
    ----------
    noise_multiplier : float, > 0 and finite; noise std divided by the L2 sensitivity of one unit
    rate : float in (0, 1)
        Probability of a coin (Poisson sampling); for 1, use :class:`GaussianEvent`.
    """

    kind: ClassVar[str] = "sampled_gaussian"

    noise_multiplier: float
    rate: float


@dataclass(frozen=True)
class LaplaceEvent(_Numbers):
    """One Laplace mechanism: noise of scale ``b`` on a vector of L1 sensitivity ``D``.

    Parameters
    ----------
    noise_multiplier : float, > 0 and finite; equal to ``b / D``, so the event is ``D / b``-DP
    """

    kind: ClassVar[str] = "laplace"

    noise_multiplier: float


@dataclass(frozen=True)
class NonPrivateEvent(_Numbers):
    """A release without noise; its epsilon is infinite."""

    kind: ClassVar[str] = "non_private"


@dataclass(frozen=True)
class HorizonEvent:
    """The releases of all periods of a horizon: one Gaussian mechanism on all of them together.

    Parameters
    ----------
    noise_multiplier : float, > 0 and finite
        Noise std divided by the L2 norm of the change of all releases by one unit.
    periods : int in [1, 2**53]
    digest : str, 64 hexadecimal digits
        SHA-256 of the public description of the horizon, with its matrix.
    """

    noise_multiplier: float
    periods: int
    digest: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", self.whole.noise_multiplier)
        validate(Declaration("periods", Annotated[int, Range(1, MAX_COUNT)], None), self.periods)
        if not (isinstance(self.digest, str) and _DIGEST.fullmatch(self.digest)):
            raise PlanError(f"digest must be 64 hexadecimal digits, got {str(self.digest)[:70]!r}.")

    @property
    def whole(self) -> GaussianEvent:
        """The mechanism that has its price."""
        return GaussianEvent(self.noise_multiplier)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {"event": "horizon", **vars(self)}


class LossEvent(_Numbers):
    """Base of mechanisms of other packages: frozen dataclasses of a few positive numbers.

    Only the distribution of its privacy loss is known.
    """

    def rough_epsilon(self) -> float:
        """Return an epsilon at delta = 1e-6, to scale a grid; infinity if there is none."""
        raise NotImplementedError

    def losses(self, width: float) -> Any:
        """Return a pessimistic privacy loss distribution of dp_accounting, in steps of `width`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ComposedEvent:
    """Composition of ``events`` on the same records, possibly adaptive; empty for no event."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        events = tuple(self.events)
        for event in events:
            _check_event(event)
        # A tuple of the events, since a list would make the value mutable and not hashable.
        object.__setattr__(self, "events", events)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.events)  # cached: thousands of rounds, and each of them needs the hash

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {"event": "composed", "events": [event.to_dict() for event in self.events]}


@dataclass(frozen=True)
class RepeatedEvent:
    """``event`` repeated ``count`` times, the same as the composition of that many copies.

    Parameters
    ----------
    count : int in [0, 2**53]
    """

    event: Event
    count: int

    def __post_init__(self) -> None:
        _check_event(self.event)
        validate(Declaration("count", Annotated[int, Range(0, MAX_COUNT)], None), self.count)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {"event": "repeated", "count": self.count, "of": self.event.to_dict()}


Mechanism: TypeAlias = (
    GaussianEvent | SampledGaussianEvent | LaplaceEvent | NonPrivateEvent | LossEvent
)
_KINDS: Mapping[str, type[Mechanism]] = {
    GaussianEvent.kind: GaussianEvent,
    SampledGaussianEvent.kind: SampledGaussianEvent,
    LaplaceEvent.kind: LaplaceEvent,
    NonPrivateEvent.kind: NonPrivateEvent,
}
Event: TypeAlias = Mechanism | ComposedEvent | RepeatedEvent | HorizonEvent


def event_from_dict(
    data: Mapping[str, Any], others: Mapping[str, type[LossEvent]] | None = None
) -> Event:
    """Return the event of a description by ``to_dict``; the round trip is exact.

    Parameters
    ----------
    others : mapping of str to class, optional
        Event kinds of other packages, such as :mod:`cloister.privacy.packages` loads.
    """
    if not isinstance(data, Mapping):
        raise PlanError(f"an event must be a JSON object, got {type(data).__name__}.")
    fields = dict(data)
    kind = fields.pop("event", None)
    try:
        match kind:
            case "composed":
                parts = fields.pop("events")
                return ComposedEvent(
                    tuple(event_from_dict(part, others) for part in parts), **fields
                )
            case "repeated":
                return RepeatedEvent(event_from_dict(fields.pop("of"), others), **fields)
            case "horizon":
                return HorizonEvent(**fields)
        # The kinds of this package first, so that no other package can change their cost.
        for kinds in (_KINDS, others or {}):
            for name, mechanism in kinds.items():
                if name == kind:
                    return mechanism(**fields)
    except (TypeError, KeyError) as error:
        raise PlanError(f"event {kind!r} has missing, unknown or ill-typed keys.") from error
    raise UnknownKind(kind)


def mechanism_counts(event: Event) -> dict[Mechanism, int]:
    """Return the number of each distinct mechanism in ``event``, in a canonical order.

    Every accountant uses this multiset alone. So no nesting, repetition or order of the same
    mechanisms can change a cost.
    """
    counts: dict[Mechanism, int] = {}
    _count(event, 1, counts)
    return dict(sorted(counts.items(), key=_rank))


def holds(event: Event, kind: type[Mechanism]) -> bool:
    """Return True if a mechanism of class ``kind`` occurs in ``event``."""
    return any(isinstance(mechanism, kind) for mechanism in mechanism_counts(event))


def _count(event: Event, times: int, counts: dict[Mechanism, int]) -> None:
    if times == 0:
        return  # an event that never happened must not make a release count as not private
    match event:
        case ComposedEvent(events):
            for part in events:
                _count(part, times, counts)
        case RepeatedEvent(part, count):
            _count(part, times * count, counts)
        case HorizonEvent():
            _count(event.whole, times, counts)
        case _:
            counts[event] = counts.get(event, 0) + times


def _rank(item: tuple[Mechanism, int]) -> tuple[str, tuple[float, ...]]:
    # A fixed order, since sums of floats depend on it and parties must agree on a cost.
    event = item[0]
    return type(event).__name__, tuple(vars(event).values())


def _check_event(event: object) -> None:
    if not isinstance(event, Event):
        raise PlanError(f"an event is needed, got {type(event).__name__}.")
