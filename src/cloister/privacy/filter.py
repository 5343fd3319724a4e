"""Limits that hold for jobs of any law, chosen one after another in the light of results.

A cap is cut once, when a data set is opened, into three limits: a sum of pure epsilons, a sum of
squared GDP parameters, and a sum of deltas of failure. Each job is charged to them by numbers that
are known before it starts, and the sums are compared, nothing else. So whoever chooses the jobs
cannot choose between limits afterwards, which is what makes the cap hold (docs/proofs/ledger.md).
:mod:`accounting` prices one plan, whose mechanisms are fixed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, Self

from cloister.core.declared import Range
from cloister.core.errors import PlanError
from cloister.privacy.accounting import epsilon, gdp_epsilon, pure_epsilon, zcdp_rho
from cloister.privacy.budget import Budget, checked
from cloister.privacy.calibration import gdp_mu_for
from cloister.privacy.events import (
    Event,
    LaplaceEvent,
    LossEvent,
    Mechanism,
    NonPrivateEvent,
    mechanism_counts,
)

# Rounding slack when a sum is compared with its limit: three events of a third each must fit.
SLACK = 1e-9
_HALVINGS = 20  # of the search for the part of the limits that a whole job takes


@dataclass(frozen=True)
class Cost:
    """What jobs take of the three limits; costs add up.

    Parameters
    ----------
    pure_epsilon : float, >= 0
    mu_squared : float, >= 0
        Squared parameter of Gaussian differential privacy.
    failure_delta : float, >= 0
        Probability that a job priced as a whole keeps nothing of its promise.
    """

    pure_epsilon: float = 0.0
    mu_squared: float = 0.0
    failure_delta: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return total((self, other))


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs, rounded once."""
    parts = list(costs)
    return Cost(
        math.fsum(cost.pure_epsilon for cost in parts),
        math.fsum(cost.mu_squared for cost in parts),
        math.fsum(cost.failure_delta for cost in parts),
    )


@dataclass(frozen=True)
class Split:
    """How the cap of a data set is cut into limits; fixed when the data set is opened.

    Parameters
    ----------
    pure : float in [0, 1]
        Part of epsilon for pure mechanisms (Laplace noise) and for jobs priced as a whole.
    failure : float in [0, 1]
        Part of delta for jobs priced as a whole: mixed laws, sampled clients, events of other
        packages. They take of both, so it is 0 where `pure` is.

    Raises
    ------
    PlanError
        If a share is not a part, or there is one for failure alone.

    Notes
    -----
    The rest is for Gaussian noise. So the default suits all jobs with Gaussian noise, and
    ``Split(1, 1)`` suits one job of any law.
    """

    pure: float = 0.0
    failure: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            share = checked(f"the {name} share of a cap", value, Range(0, 1))
            object.__setattr__(self, name, share)
        if self.failure and not self.pure:
            raise PlanError(
                f"the failure share of a cap must be 0 where its pure share is, got "
                f"{self.failure:g}: a job charged as a whole takes of both."
            )

    def __str__(self) -> str:
        return f"pure share {self.pure:g}, failure share {self.failure:g}"

    @classmethod
    def default(cls, cap: Budget) -> Self:
        """Return the split of a data set for which none was given: all for Gaussian noise.

        With a delta of 0 no Gaussian noise can be, and all is for pure mechanisms.
        """
        return cls(0.0 if cap.delta else 1.0)

    @classmethod
    def given(cls, cap: Budget, pure: float | None, failure: float | None) -> Self | None:
        """Return the split with the shares that are not None, or None if none is given."""
        if pure is failure is None:
            return None
        default = cls.default(cap)
        return cls(
            default.pure if pure is None else pure,
            default.failure if failure is None else failure,
        )

    @classmethod
    def split_for(cls, events: Event, cap: Budget) -> Self:
        """Return the split of a data set that is opened for one job of these mechanisms.

        It is the first that accepts the job of: the default, all pure, all for a whole job. Some
        split does if the job's own price at the cap's delta is within the cap. If it is above, the
        default is returned, and the ledger will refuse the job.
        """
        default = cls.default(cap)
        for split in (default, cls(1.0), cls(1.0, 1.0)):
            if cheapest_pricing(events, [(Limits(cap, split), Cost())]):
                return split
        return default


@dataclass(frozen=True)
class PricingRule:
    """How the mechanisms of one job are charged; fixed when the job is reserved.

    Parameters
    ----------
    kind : {"apart", "covered", "whole"}
        ``apart``: Gaussian noise by its mu, sampled or not, Laplace noise by its epsilon.
        ``covered``: the same, but Laplace noise by the mu of a Gaussian mechanism that tells more.
        ``whole``: the job by one epsilon and delta, from its first round on.
    epsilon, delta : float
        For a whole job, else 0.
    """

    kind: Literal["apart", "covered", "whole"]
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("apart", "covered", "whole"):
            raise PlanError(f"a tariff is apart, covered or whole, got {self.kind!r}.")

    def cost(self, events: Event) -> Cost:
        """Return what mechanisms of the job cost: all of them, or those that it came to.

        A whole job costs the same whatever part of it was run.
        """
        counts = mechanism_counts(events)
        if self.kind == "whole" and counts:
            return Cost(pure_epsilon=self.epsilon, failure_delta=self.delta)
        return total(self._of(mechanism, n) for mechanism, n in counts.items())

    def _of(self, mechanism: Mechanism, n: int) -> Cost:
        match mechanism:
            case NonPrivateEvent() | LossEvent():
                return Cost(math.inf, math.inf)  # neither pure nor covered by any mu
            case LaplaceEvent() if self.kind == "apart":
                return Cost(pure_epsilon=n * pure_epsilon(mechanism))
            case LaplaceEvent():
                return Cost(mu_squared=n * gdp_cover(pure_epsilon(mechanism)) ** 2)
        # For Gaussian noise 2 rho = mu**2; a sampled round is charged as one that is not.
        return Cost(mu_squared=n * 2 * zcdp_rho(mechanism))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return asdict(self) if self.kind == "whole" else {"kind": self.kind}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_dict` described."""
        return cls(**fields)


@dataclass(frozen=True)
class Limits:
    """The limits of a cap: a privacy filter.

    Whatever jobs are chosen, and however each depends on what came before, all releases together
    keep the cap as long as every job was accepted by :meth:`admits`.

    References
    ----------
    docs/proofs/ledger.md; Smith and Thakurta, arXiv:2210.17520, for the Gaussian part.
    """

    cap: Budget
    split: Split

    @property
    def room(self) -> Cost:
        """The three limits."""
        return _room(self.cap, self.split)

    def share(self, cost: Cost) -> float:
        """Return the largest part that a cost takes of any limit, infinity if there is no room."""
        # The three limits hold side by side; the fullest decides: no limit lends to another.
        pairs = zip(asdict(cost).values(), asdict(self.room).values(), strict=True)
        return max(_part(value, limit) for value, limit in pairs)

    def admits(self, so_far: Cost, cost: Cost) -> bool:
        """Return whether the cost fits beside what was charged before."""
        return self.share(so_far + cost) <= 1 + SLACK

    def left(self, so_far: Cost) -> Cost:
        """Return what is left of each limit; of none if one is exceeded."""
        if not self.admits(so_far, Cost()):
            return Cost()
        pairs = zip(asdict(so_far).values(), asdict(self.room).values(), strict=True)
        return Cost(*(max(0.0, limit - value) for value, limit in pairs))

    def epsilon_left(self, so_far: Cost) -> float:
        """Return the largest epsilon, at the cap's delta, of one more job of the law that suits.

        That is a job with Gaussian noise, or a pure or whole one if more is left for it.
        """
        left = self.left(so_far)
        return max(gdp_epsilon(math.sqrt(left.mu_squared), self.cap.delta), left.pure_epsilon)

    def epsilon(self, so_far: Cost) -> float:
        """Return the epsilon of a cap, of the same delta, whose limits are just this cost.

        It is a guarantee for jobs that were chosen beforehand. For jobs chosen in the light of
        results the guarantee is that of the cap.
        """
        if _part(so_far.failure_delta, self.room.failure_delta) > 1 + SLACK:
            return math.inf
        gaussian = gdp_epsilon(math.sqrt(so_far.mu_squared), _gaussian_delta(self.cap, self.split))
        return so_far.pure_epsilon + gaussian


def cheapest_pricing(events: Event, filters: Sequence[tuple[Limits, Cost]]) -> PricingRule | None:
    """Return the tariff that takes the least part of any limit, or None if no tariff fits.

    `filters` are those that must admit the job, with what each has charged so far.
    """
    for tariff in tariffs(events, [limits for limits, _ in filters]):
        if all(limits.admits(so_far, tariff.cost(events)) for limits, so_far in filters):
            return tariff
    return None


def tariffs(events: Event, filters: Sequence[Limits]) -> list[PricingRule]:
    """Return the tariffs that a job can have, first the one that takes the least of any limit."""
    # One whole price per filter: what suits the lifetime cap may not fit the study's or year's.
    whole = (_whole(events, limits.room) for limits in filters)
    known = [PricingRule("apart"), PricingRule("covered"), *(tariff for tariff in whole if tariff)]
    # The sort is stable: at equal shares the tariff named first wins, on every machine.
    return sorted(known, key=lambda tariff: max(f.share(tariff.cost(events)) for f in filters))


def gdp_cover(epsilon: float) -> float:
    """Return the smallest mu such that every pure epsilon-DP mechanism is mu-GDP.

    Notes
    -----
    ``2 Phi^-1(e**epsilon / (1 + e**epsilon))``, about ``1.2533 epsilon`` for small ones and never
    above that: randomised response is the worst, and its trade-off function is a chord polygon of
    that of mu-GDP (docs/proofs/ledger.md, lemma 2).
    """
    from scipy.special import expit, ndtri  # a ledger that only charges rounds never needs it

    linear = math.sqrt(math.pi / 2) * epsilon
    if epsilon < 1e-4:  # where the quantile would lose its digits
        return linear
    # By the lower tail: e**epsilon / (1 + e**epsilon) rounds to 1 for a large epsilon.
    return float(-2 * ndtri(expit(-epsilon)))


def _whole(events: Event, room: Cost) -> PricingRule | None:
    """Return a job priced as a whole: it takes one part, the least that will do, of both limits."""
    if not (room.pure_epsilon and room.failure_delta):
        return None

    def price(part: float) -> float:
        return epsilon(events, part * room.failure_delta)

    # More delta lowers the price while the limit grows with the part, so they cross once; `high`
    # always fits, and the search may stop anywhere.
    low, high = 0.0, 1.0
    if price(high) > room.pure_epsilon * (1 + SLACK):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if price(middle) <= middle * room.pure_epsilon:
            high = middle
        else:
            low = middle
    return PricingRule("whole", price(high), high * room.failure_delta)


def _part(value: float, limit: float) -> float:
    # A job that takes nothing of a limit fits, also where the limit is 0.
    if value == 0:
        return 0.0
    return value / limit if limit and math.isfinite(value) else math.inf


def _gaussian_delta(cap: Budget, split: Split) -> float:
    return (1 - split.failure) * cap.delta


@lru_cache(maxsize=256)
def _room(cap: Budget, split: Split) -> Cost:
    # The parts of epsilon, and those of delta, add up to the cap's (docs/proofs/ledger.md).
    gaussian_epsilon, gaussian_delta = (1 - split.pure) * cap.epsilon, _gaussian_delta(cap, split)
    mu = gdp_mu_for(gaussian_epsilon, gaussian_delta) if gaussian_epsilon and gaussian_delta else 0
    return Cost(split.pure * cap.epsilon, mu * mu, split.failure * cap.delta)
