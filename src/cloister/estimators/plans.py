"""The plan of a fit before it runs: its cost, expected error and refusals, from public facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloister.app.forecast import (
    expected,
    forecast_of,
    plan_warnings,
    unknown_error,
    wanted_budget,
)
from cloister.app.job import Job
from cloister.app.text import attacker_sentence
from cloister.core.arrays import Results
from cloister.core.display import Table
from cloister.core.errors import LedgerError, PlanError
from cloister.estimators.release import BudgetParameters
from cloister.privacy.filter import cheapest_pricing
from cloister.protocol.plan import Plan

if TYPE_CHECKING:
    from cloister.privacy.budget import Budget


@dataclass(frozen=True, repr=False)
class FitPlan:
    """Cost and expected error of a fit.

    Parameters
    ----------
    plan : Plan
        Without `nominal_n` it is for the fewest records that the task allows.
    warnings : tuple of str
        Warnings of a fit, on its accuracy and privacy, each with a remedy.
    sized : bool
        False without `nominal_n`; the expected error is then not known.
    refusal : str
        Why the ledger would refuse the fit; empty if it would not, or without a ledger.
    """

    plan: Plan
    warnings: tuple[str, ...]
    sized: bool
    refusal: str = ""

    @property
    def cost(self) -> Budget | None:
        """Epsilon and delta of one fit."""
        return self.plan.budget

    @property
    def margins(self) -> Results:
        """Half-widths of the 95 % intervals for the noise, by name, data units; none if unsized."""
        return forecast_of(self.plan) if self.sized else {}

    @property
    def tables(self) -> tuple[Table, ...]:
        """The margins as tables, by column where the task has one for each."""
        return expected(self.plan) if self.sized else ()

    def describe(self) -> str:
        """Return cost, expected error and warnings as text, as `print` does."""
        return repr(self)

    def __repr__(self) -> str:
        plan = self.plan
        lines = [f"cost: {plan.budget}, unit of privacy: {plan.unit}, rounds: {plan.rounds}"]
        if plan.budget:
            lines.append(attacker_sentence(plan.events(), plan.unit))
        for table in self.tables:
            lines += ["", table.title, *("  " + "  ".join(map(str, row)) for row in table.rows)]
        if not self.sized:
            lines.append("expected error: not known without nominal_n")
        elif unknown := unknown_error(self.plan):
            lines.append(unknown)
        lines += [f"warning: {warning}" for warning in self.warnings]
        lines += [f"refused: {self.refusal}"] if self.refusal else []
        return "\n".join(lines)


def plan_of_fit(
    job: Job, spending: BudgetParameters, want: Mapping[str, float] | None = None
) -> FitPlan:
    """Return the plan of a fit; nothing is spent.

    With `want`, the plan has the least epsilon for these half-widths.
    """
    sized = job.nominal_n is not None
    if want:
        if not sized or job.plan.budget is None:
            raise PlanError("want needs nominal_n and a private task; give nominal_n.")
        budget = wanted_budget(
            lambda budget: replace(job, epsilon=budget.epsilon).plan, job.plan.budget.delta, want
        )
        job = replace(job, epsilon=budget.epsilon)
    warnings = plan_warnings(job.plan, job.schema, sized=sized)
    return FitPlan(job.plan, warnings, sized, _refusal(job.plan, spending))


def _refusal(plan: Plan, spending: BudgetParameters) -> str:
    """Return why the ledger would refuse a plan; empty if it would not."""
    if spending.ledger is None:
        return ""
    try:
        account = spending.account()
        assert account is not None
        ledger, dataset = account.ledger, account.dataset
        limits, cost = ledger.limits(dataset), ledger.cost(dataset)
    except (LedgerError, PlanError) as error:
        return str(error)
    if cheapest_pricing(plan.events(), [(limits, cost)]) is not None:
        return ""
    left = ledger.remaining(dataset)
    return f"data set {dataset!r} has epsilon {left:.3g} left; use a smaller epsilon."
