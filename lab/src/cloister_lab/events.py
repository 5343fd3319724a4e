"""Event kinds of the laboratory, which come in by the entry-point group ``cloister.events``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import last_true
from cloister.privacy.events import LossEvent

_TAIL = 46  # of the loss of a max cover, in its own unit: e**-46 is 1e-20


@dataclass(frozen=True)
class CoverEvent(LossEvent):
    """All picks of one max cover, however many and from whatever sets of balls.

    A pick draws a ball with probability in proportion to ``exp(pick_epsilon * c / 2)``, where c is
    the number of records in it that no ball drawn before holds. A record so counts until it is
    covered, which is why the number of picks does not matter (docs/proofs/max_cover.md).

    Parameters
    ----------
    pick_epsilon : float, > 0 and finite
    """

    kind: ClassVar[str] = "cover"

    pick_epsilon: float

    def rough_epsilon(self) -> float:
        """Return an epsilon at delta = 1e-6, by a closed formula."""
        pick_epsilon = self._rounded
        if pick_epsilon > 700:  # exp would overflow; nobody wants it
            return math.inf
        log_r, a = pick_epsilon / 2, math.expm1(pick_epsilon / 2)
        return max(log_r, a * math.log(-math.expm1(-log_r) / 1e-6) - log_r)

    def losses(self, width: float) -> Any:
        """Return the pessimistic privacy loss distribution, see :func:`cover_delta`."""
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld import privacy_loss_distribution as pld

        # Losses begin at -ln r, beyond which delta falls by e for each expm1(pick_epsilon / 2).
        pick_epsilon = self._rounded
        low = math.floor(-pick_epsilon / 2 / width)
        high = math.ceil(_TAIL * math.expm1(pick_epsilon / 2) / width)

        def loss(first: int, last: int, added: bool) -> Any:
            grid = range(first, last + 1)
            deltas = [cover_delta(pick_epsilon, step * width, added=added) for step in grid]
            return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(width, first, last, deltas)

        # The reversed pair has the negated losses, hence the mirrored grid.
        return pld.PrivacyLossDistribution(loss(-high, -low, True), loss(low, high, False))

    @property
    def _rounded(self) -> float:
        """The epsilon of a pick; one whose part would vanish is rounded up."""
        return max(self.pick_epsilon, 1e-100)


def cover_delta(pick_epsilon: float, epsilon: float, *, added: bool) -> float:
    """Return the hockey-stick divergence of a max cover with and without one record.

    That is the largest ``P(S) - exp(epsilon) Q(S)``, whatever the other records and the balls are;
    if `added`, P is the one with the record. Epsilon may be negative.

    Notes
    -----
    The pair (without, with) is at most as far apart as exponential variables of rates 1 and
    ``r = exp(pick_epsilon / 2)``, and comes as near to them as one likes: the time to be covered
    gets a hazard that is at most r times as large. docs/proofs/max_cover.md, theorem 1.
    """
    # The loss of Exp(1) against Exp(r) at x is (r - 1) x - ln r; it is never below -ln r.
    log_r, a = pick_epsilon / 2, math.expm1(pick_epsilon / 2)
    if added:  # 1 - e^x + e^x D(-x) is the divergence of a pair the other way round
        if epsilon >= log_r:
            return 0.0
        other = cover_delta(pick_epsilon, -epsilon, added=False)
        return max(0.0, -math.expm1(epsilon) + math.exp(epsilon) * other)
    if epsilon <= -log_r:
        return -math.expm1(epsilon)
    # The best event is all beyond x = (epsilon + ln r) / (r - 1), where the loss passes epsilon.
    return -math.expm1(-log_r) * math.exp(-(epsilon + log_r) / a)


def cover_pick_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest `pick_epsilon` of a max cover that is (epsilon, delta)-DP as a whole.

    References
    ----------
    docs/proofs/max_cover.md, theorem 1; compare Nguyen, Chaturvedi, Xu, AAAI 2021, Theorem 5.
    """
    budget = Budget(epsilon, delta)
    if budget.delta == 0:
        raise PlanError("delta must be above 0 for a max cover, got 0.0.")
    return _pick_epsilon(budget)


@lru_cache(maxsize=256)
def _pick_epsilon(budget: Budget) -> float:
    def allowed(pick_epsilon: float) -> bool:
        return pick_epsilon / 2 <= budget.epsilon and all(
            cover_delta(pick_epsilon, budget.epsilon, added=added) <= budget.delta
            for added in (False, True)
        )

    return last_true(allowed)
