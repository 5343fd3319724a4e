"""Limits for jobs with any noise distribution, each chosen adaptively after earlier results.

A cap is split once, when a data set is opened, into three limits. They bound a sum of pure
epsilons, a sum of squared GDP parameters, and a sum of failure deltas. Each job is charged to them
by numbers that are known before it starts, and only the sums are compared with the limits. No
choice between limits is possible afterwards, and therefore the cap holds (docs/proofs/ledger.md).
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
_HALVINGS = 20  # of the search for the share of the limits that a whole job takes


@dataclass(frozen=True)
class Cost:
    """Amounts that jobs take from the three limits; costs add up.

    Parameters
    ----------
    pure_epsilon : float, >= 0
    mu_squared : float, >= 0
        Squared parameter of Gaussian differential privacy.
    failure_delta : float, >= 0
        Probability that the guarantee of a job priced as a whole fails.
    """

    pure_epsilon: float = 0.0
    mu_squared: float = 0.0
    failure_delta: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return total((self, other))


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs, rounded once."""
    terms = list(costs)
    # fsum, since the order of jobs must not decide whether one more fits.
    return Cost(
        math.fsum(cost.pure_epsilon for cost in terms),
        math.fsum(cost.mu_squared for cost in terms),
        math.fsum(cost.failure_delta for cost in terms),
    )


@dataclass(frozen=True)
class Split:
    """Division of the cap of a data set into limits; fixed when the data set is opened.

    Parameters
    ----------
    pure : float in [0, 1]
        Share of epsilon for pure mechanisms (Laplace noise) and for jobs priced as a whole.
    failure : float in [0, 1]
        Share of delta for jobs priced as a whole: mixed noise distributions, sampled clients,
        events of other packages. They use both shares, so it must be 0 if `pure` is 0.

    Raises
    ------
    PlanError
        If a share is outside [0, 1], or `failure` is above 0 and `pure` is 0.

    Notes
    -----
    The rest is for Gaussian noise. So the default suits all jobs with Gaussian noise, and
    ``Split(1, 1)`` suits one job with any noise distribution.
    """

    pure: float = 0.0
    failure: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            share = checked(f"the {name} share of a cap", value, Range(0, 1))
            object.__setattr__(self, name, share)
        if self.failure and not self.pure:
            raise PlanError(
                f"the failure share of a cap must be 0 if its pure share is 0, got "
                f"{self.failure:g}: a job charged as a whole uses both; give a pure share too."
            )

    def __str__(self) -> str:
        return f"pure share {self.pure:g}, failure share {self.failure:g}"

    @classmethod
    def default(cls, cap: Budget) -> Self:
        """Return the default split of a data set: the whole cap for Gaussian noise.

        A delta of 0 admits no Gaussian noise, so the whole cap is then for pure mechanisms.
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

        It is the first split that admits the job: the default, all pure, or all for a whole job.
        One of them does if the price of the job at the cap's delta is within the cap. If the price
        is above the cap, the default is returned, and the ledger will refuse the job.
        """
        default = cls.default(cap)
        for split in (default, cls(1.0), cls(1.0, 1.0)):
            if cheapest_pricing(events, [(Limits(cap, split), Cost())]):
                return split
        return default


@dataclass(frozen=True)
class PricingRule:
    """Rule that charges the mechanisms of one job; fixed when the job is reserved.

    Parameters
    ----------
    kind : {"apart", "covered", "whole"}
        ``apart``: Gaussian noise by its mu, sampled or not, Laplace noise by its epsilon.
        ``covered``: the same, but Laplace noise by the mu of a less private Gaussian mechanism.
        ``whole``: the job by one epsilon and delta, from its first round on.
    epsilon, delta : float
        Price of a whole job, else 0.
    """

    kind: Literal["apart", "covered", "whole"]
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("apart", "covered", "whole"):
            raise PlanError(f"a tariff must be apart, covered or whole, got {self.kind!r}.")

    def cost(self, events: Event) -> Cost:
        """Return the cost of mechanisms of the job: all of them, or those of its rounds so far.

        A whole job has the same cost for any number of its rounds, except none.
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
        # For Gaussian noise 2 rho = mu**2; a sampled round is charged as one without sampling.
        return Cost(mu_squared=n * 2 * zcdp_rho(mechanism))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return asdict(self) if self.kind == "whole" else {"kind": self.kind}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the pricing rule of a description by :meth:`to_dict`."""
        return cls(**fields)


@dataclass(frozen=True)
class Limits:
    """The limits of a cap: a privacy filter.

    If :meth:`admits` accepted every job, all releases together keep the cap. Jobs may be chosen in
    any way, and each may depend on earlier results.

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
        """Return the largest share of a limit that a cost takes; infinity for a limit of 0."""
        # Each limit holds separately, so unused room of one cannot serve another.
        pairs = zip(asdict(cost).values(), asdict(self.room).values(), strict=True)
        return max(_share(value, limit) for value, limit in pairs)

    def admits(self, so_far: Cost, cost: Cost) -> bool:
        """Return True if the cost fits into the limits in addition to earlier charges."""
        return self.share(so_far + cost) <= 1 + SLACK

    def left(self, so_far: Cost) -> Cost:
        """Return the remaining amount of each limit, or 0 for all if one is exceeded."""
        if not self.admits(so_far, Cost()):
            return Cost()
        pairs = zip(asdict(so_far).values(), asdict(self.room).values(), strict=True)
        return Cost(*(max(0.0, limit - value) for value, limit in pairs))

    def epsilon_left(self, so_far: Cost) -> float:
        """Return the largest epsilon, at the cap's delta, of one more job.

        It is for a job with Gaussian noise, or for a pure or whole job if that may cost more.
        """
        left = self.left(so_far)
        return max(gdp_epsilon(math.sqrt(left.mu_squared), self.cap.delta), left.pure_epsilon)

    def epsilon(self, so_far: Cost) -> float:
        """Return the epsilon of a cap with the same delta, whose limits equal this cost.

        It is a guarantee for jobs that were chosen beforehand. For jobs that depend on earlier
        results, the guarantee is the cap.
        """
        if _share(so_far.failure_delta, self.room.failure_delta) > 1 + SLACK:
            return math.inf
        gaussian = gdp_epsilon(math.sqrt(so_far.mu_squared), _gaussian_delta(self.cap, self.split))
        return so_far.pure_epsilon + gaussian


def cheapest_pricing(events: Event, filters: Sequence[tuple[Limits, Cost]]) -> PricingRule | None:
    """Return the tariff that takes the smallest share of any limit, or None if no tariff fits.

    `filters` are the limits that must admit the job, each with its charges so far.
    """
    for tariff in tariffs(events, [limits for limits, _ in filters]):
        if all(limits.admits(so_far, tariff.cost(events)) for limits, so_far in filters):
            return tariff
    return None


def tariffs(events: Event, filters: Sequence[Limits]) -> list[PricingRule]:
    """Return the possible tariffs of a job, ordered by their largest share of a limit."""
    # One whole price per filter: a price for the lifetime cap may not fit the study's or year's.
    whole = (_whole(events, limits.room) for limits in filters)
    rules = [PricingRule("apart"), PricingRule("covered"), *(tariff for tariff in whole if tariff)]
    # The sort is stable, so every machine chooses the same one of equal tariffs.
    return sorted(rules, key=lambda tariff: max(f.share(tariff.cost(events)) for f in filters))


def gdp_cover(epsilon: float) -> float:
    """Return the smallest mu such that every pure epsilon-DP mechanism is mu-GDP.

    Notes
    -----
    It is ``2 Phi^-1(e**epsilon / (1 + e**epsilon))``, at most ``1.2533 epsilon``, and nearly that
    for a small epsilon. Randomised response is the least private such mechanism. Its trade-off
    function is a chord polygon of that of mu-GDP (docs/proofs/ledger.md, lemma 2).
    """
    from scipy.special import expit, ndtri  # not needed by a ledger that only charges rounds

    linear = math.sqrt(math.pi / 2) * epsilon
    if epsilon < 1e-4:  # the quantile near 1/2 would lose its digits
        return linear
    # By the lower tail, since e**epsilon / (1 + e**epsilon) rounds to 1 for a large epsilon.
    return float(-2 * ndtri(expit(-epsilon)))


def _whole(events: Event, room: Cost) -> PricingRule | None:
    """Return the tariff of a whole job, which takes the same smallest share of both limits."""
    if not (room.pure_epsilon and room.failure_delta):
        return None

    def price(share: float) -> float:
        return epsilon(events, share * room.failure_delta)

    # More delta lowers the price, and the limit grows with the share, so they cross once. `high`
    # always fits, so the search may stop at any step.
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


def _share(value: float, limit: float) -> float:
    # A job that takes nothing from a limit fits, even if the limit is 0.
    if value == 0:
        return 0.0
    return value / limit if limit and math.isfinite(value) else math.inf


def _gaussian_delta(cap: Budget, split: Split) -> float:
    return (1 - split.failure) * cap.delta


@lru_cache(maxsize=256)
def _room(cap: Budget, split: Split) -> Cost:
    # The shares of epsilon, and those of delta, add up to the cap's (docs/proofs/ledger.md).
    gaussian_epsilon, gaussian_delta = (1 - split.pure) * cap.epsilon, _gaussian_delta(cap, split)
    mu = gdp_mu_for(gaussian_epsilon, gaussian_delta) if gaussian_epsilon and gaussian_delta else 0
    return Cost(split.pure * cap.epsilon, mu * mu, split.failure * cap.delta)
