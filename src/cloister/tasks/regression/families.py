"""Families of generalized linear models: the residual and the weight of a record at its margin.

A margin is the product of a row with weights, plus an offset. With the canonical link, the gradient
of the log-likelihood is the sum of rows times residuals. Its curvature is the sum of products of
rows times weights. Residuals and weights of other links are those of Fisher's scoring.

References
----------
.. [MN89] McCullagh, Nelder, "Generalized Linear Models", 2nd edition, Chapman and Hall 1989.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.tasks.regression.tails import STEEPEST

_FARTHEST = 30.0  # margin, beyond which an exponential no longer grows
_RARE, _RARE_COUNT = 0.2, 0.2  # means below which events may hide behind the noise of counts
_LEAST_SHARE, _LEAST_MEAN = 0.01, 0.02  # of a null model
_STEEPEST_LINEAR = 1.9


@dataclass(frozen=True)
class Family:
    """A distribution of the target with its link.

    Parameters
    ----------
    mean : function
        Mean of the target at a margin.
    margin : function
        Margin of a public mean, which is kept away from the ends of its range.
    factor, weight : function of (mean, alpha)
        Residual over the difference of target and mean, and Fisher's weight of a record.
    drift : float
        Half of the relative change of the curvature for a margin that changes by 1.
    dispersed : bool
        Whether the variance has a free factor, which squared residuals estimate.
    alpha : float, >= 0
        Over-dispersion of the negative binomial distribution, a public number.
    """

    name: str
    mean: Callable[[Floats], Floats]
    margin: Callable[[float], float]
    factor: Callable[[Floats, float], Floats]
    weight: Callable[[Floats, float], Floats]
    drift: float = 0.5
    dispersed: bool = False
    alpha: float = 0.0

    @property
    def link(self) -> str:
        """Name of the function from a mean to its margin, as in R."""
        return {"gaussian": "identity", "binomial": "logit"}.get(self.name, "log")

    @property
    def linear(self) -> bool:
        """True if the margin is the mean, so that the curvature is that of least squares."""
        return self.name == "gaussian"

    @property
    def steepest(self) -> float:
        """Largest power by which the numbers of large gradients fall.

        Residuals of least squares have no bound: a few that are far larger than all others may hide
        behind the noise of counts.
        """
        return _STEEPEST_LINEAR if self.linear else STEEPEST

    @property
    def counts(self) -> bool:
        """True if the target is a number of events."""
        return self.name in ("poisson", "negative-binomial")

    def score(self, margin: Floats, target: Floats) -> tuple[Floats, Floats]:
        """Return residual and weight of each record at its margin, both of its shape."""
        mean = self.mean(margin)
        return (target - mean) * self.factor(mean, self.alpha), self.weight(mean, self.alpha)

    def growth(self, weight: float) -> float:
        """Return the factor by which most weights may grow from that at the null model."""
        if self.linear:
            return 1.0
        return min(0.25 / weight, 2.0) if self.name == "binomial" else 2.0

    def drift_at(self, mean: float) -> float:
        """Return the drift near a mean: weights of rare events change like those of counts."""
        return max(self.drift, abs(0.5 - mean)) if self.name == "binomial" else self.drift

    def least_size(self, mean: float) -> float:
        """Return the residual to which smaller ones are raised where sizes are counted.

        Few records have an event that is rare. Without the rise, their sizes would be in classes
        that noise hides.
        """
        if self.name == "binomial" and not _RARE < mean < 1 - _RARE:
            return max(mean, 1 - mean)
        return 1.0 if self.counts and mean < _RARE_COUNT else 0.0


def exponential(margin: Floats) -> Floats:
    """Return the exponential of a margin that is kept in a range without overflow."""
    return np.asarray(np.exp(np.clip(margin, -_FARTHEST, _FARTHEST)))


def _expit(margin: Floats) -> Floats:
    return 1 / (1 + exponential(-margin))


def _logarithm(mean: float) -> float:
    return float(np.log(max(mean, _LEAST_MEAN)))


def _logit(share: float) -> float:
    share = float(np.clip(share, _LEAST_SHARE, 1 - _LEAST_SHARE))
    return float(np.log(share / (1 - share)))


# Functions with names: a task is sent to workers, and a fitted model is stored.


def _same(value: Any) -> Any:
    return value


def _ones(mean: Floats, alpha: float) -> Floats:
    return np.ones_like(mean)


def _of_share(mean: Floats, alpha: float) -> Floats:
    return mean * (1 - mean)


def _of_count(mean: Floats, alpha: float) -> Floats:
    return mean


def _over_dispersed(mean: Floats, alpha: float) -> Floats:
    return 1 / (1 + alpha * mean)


def _of_dispersed(mean: Floats, alpha: float) -> Floats:
    return mean / (1 + alpha * mean)


def _relative(mean: Floats, alpha: float) -> Floats:
    return 1 / mean


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("gaussian", _same, _same, _ones, _ones, drift=0.0, dispersed=True),
        Family("binomial", _expit, _logit, _ones, _of_share, drift=0.25),
        Family("poisson", exponential, _logarithm, _ones, _of_count),
        Family("negative-binomial", exponential, _logarithm, _over_dispersed, _of_dispersed),
        Family("gamma", exponential, _logarithm, _relative, _ones, dispersed=True),
    )
}
"""Families by name. The gamma family has the logarithm as its link."""


def family_of(name: str, alpha: float = 0.0) -> Family:
    """Return a family; `alpha` is ignored by all but the negative binomial."""
    return replace(FAMILIES[name], alpha=alpha)
