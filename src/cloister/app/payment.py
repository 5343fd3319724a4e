"""Accounts of jobs: the ledger, the data set in it, and the limits of a new data set."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.core.errors import BudgetExceeded, PlanError
from cloister.core.numerals import number
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.privacy.filter import Cost, Limits, Split, cheapest_pricing
from cloister.protocol.plan import Plan

if TYPE_CHECKING:
    from cloister.privacy.events import Event
    from cloister.privacy.ledger import Ledger

LEDGER_VARIABLE = "CLOISTER_LEDGER"
NOT_COUNTED = (
    "Not counted there: spending of another user, another machine or another ledger, and releases "
    "of Python code without this ledger."
)


@dataclass(frozen=True)
class Account:
    """The ledger and the data set that a job is charged to.

    Parameters
    ----------
    dataset : str
        The owner's name of the data set, opened in the ledger with a lifetime cap.
    confirm_same_content : bool
        If True, the owner confirms that the same records may have a second budget under this name.
    """

    ledger: Ledger
    dataset: str
    confirm_same_content: bool = False

    def reserve(self, plan: Plan, content: bytes | None, events: Event | None = None) -> None:
        """Reserve the cost of a whole plan, or that of `events`.

        It raises before anything is spent or sent.
        """
        # Costs of rows and of persons protect different things, and cannot be added up.
        unit = self.ledger.unit(self.dataset)
        if unit != plan.unit:
            raise PlanError(
                f"unit of privacy of the plan is {plan.unit!r}, but the ledger counts {unit!r} for "
                f"{self.dataset!r}; use a schema with that unit, or open a data set of another "
                "name with the unit of the schema."
            )
        self.ledger.reserve(
            dataset=self.dataset,
            study=plan.study,
            job=plan.run_id,
            events=events or plan.events(),
            content=content,
            confirm_same_content=self.confirm_same_content,
            task=plan.task.name,
        )

    def close(self, plan: Plan) -> None:
        """Release the unused part of the plan's reservation, and delete its stored frames."""
        self.ledger.close(plan.run_id)
        # Frames are kept to answer a repeated request, and no request follows the end of a job.
        self.ledger.forget_frames(plan.run_id)


@dataclass(frozen=True)
class Charge:
    """The account of a job, and the path of its ledger."""

    account: Account
    path: Path
    study: str

    def lines(self) -> list[tuple[str, str]]:
        """Return the cap and the spending of the data set as (name, text)."""
        ledger, dataset = self.account.ledger, self.account.dataset
        cap, spent = ledger.cap(dataset), ledger.spent(dataset)
        lines = [
            ("data set", dataset),
            ("study", self.study),
            ("ledger", self.path.name),
            ("lifetime cap", f"epsilon {number(cap.epsilon)} at delta {cap.delta:.2g}"),
            ("spent by all jobs together", f"epsilon {number(spent)}"),
            ("left for one more job", left_for_one_more(ledger.remaining(dataset))),
        ]
        # A study without a separate cap has the cap of the data set, which is shown above.
        if (limit := ledger.cap(dataset, self.study)) != cap:
            lines.append(("cap of this study", f"epsilon {number(limit.epsilon)}"))
        return lines

    @property
    def share(self) -> float:
        """The spent part of the lifetime cap's epsilon, in [0, 1]."""
        ledger, dataset = self.account.ledger, self.account.dataset
        return min(1.0, ledger.spent(dataset) / ledger.cap(dataset).epsilon)

    def to_dict(self) -> dict[str, Any]:
        """Return the cap and the spending of the data set as JSON-able values."""
        ledger, dataset = self.account.ledger, self.account.dataset
        cap = ledger.cap(dataset)
        return {
            "ledger": str(self.path),
            "dataset": dataset,
            "study": self.study,
            "cap_epsilon": cap.epsilon,
            "delta": cap.delta,
            "spent_epsilon": ledger.spent(dataset),
            "remaining_epsilon": ledger.remaining(dataset),
        }

    def close(self) -> None:
        """Close the ledger's file."""
        self.account.ledger.dispose()


@dataclass(frozen=True, kw_only=True)
class Payment:
    """The user's choice of ledger and cap for a job.

    Parameters
    ----------
    ledger : Path, optional
        File of the ledger; :func:`default_ledger` by default.
    cap_epsilon : float, optional
        Lifetime cap of a data set that is new in the ledger.
    confirm_same_content : bool
        As in :class:`Account`.
    ask : function of str
        Asks the user a question and returns the answer, or None if no user is present.
    say : function of str
        Receives a sentence if a data set is opened.
    """

    ledger: Path | None = None
    cap_epsilon: float | None = None
    confirm_same_content: bool = False
    ask: Callable[[str], str | None] = lambda question: None
    say: Callable[[str], None] = lambda sentence: None

    def open(self, schema: Schema, plan: Plan, *, silo: str | None = None) -> Charge | None:
        """Open the ledger and, if needed, create the data set; None for a job without a budget.

        Raises before any file is modified. With `silo`, the file name of the ledger contains the
        name of the silo.
        """
        # Imported here: a job without a budget does not load SQLAlchemy.
        from cloister.privacy.ledger import Ledger

        if plan.budget is None:
            return None
        path = self.ledger or default_ledger()
        if silo is not None:
            path = path.with_stem(f"{path.stem}.{silo}")
        ledger = Ledger(path) if path.exists() else None
        if ledger is not None and schema.dataset in ledger.datasets():
            self._check_cap(ledger.limits(schema.dataset), schema.dataset)
        else:
            cap = Budget(self._new_cap(schema, plan.budget, path), plan.budget.delta)
            split = _new_split(plan, cap)
            # Only unusual limits are shown; most users have no use for the default ones.
            limits = "" if split == Split.default(cap) else f" and the limits {split}"
            if path == default_ledger():
                # The ledger itself raises, with a better message, if its file cannot be created.
                with suppress(OSError):
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            ledger = ledger or Ledger(path)
            ledger.open_dataset(schema.dataset, cap=cap, unit=schema.unit, split=split)
            self.say(
                f"Data set {schema.dataset!r} is new in ledger {path}, with the lifetime cap {cap}"
                f"{limits}. {NOT_COUNTED}"
            )
        account = Account(ledger, schema.dataset, self.confirm_same_content)
        return Charge(account, path, plan.study)

    def _check_cap(self, limits: Limits, dataset: str) -> None:
        """Raise a PlanError if the cap differs from the one in the ledger."""
        # A run that asks for another cap would else seem to have it.
        if self.cap_epsilon not in (None, limits.cap.epsilon):
            raise PlanError(
                f"cap_epsilon of data set {dataset!r} is {limits.cap.epsilon:g} in the ledger, got "
                f"{self.cap_epsilon:g}; omit it, or change the cap with 'cloister budget cap'."
            )

    def _new_cap(self, schema: Schema, budget: Budget, path: Path) -> float:
        """Return the lifetime cap of a data set that is new in the ledger."""
        cap = self.cap_epsilon
        if cap is None:
            # Asked once, since later runs read the cap from the ledger.
            answer = self.ask(
                f"Data set {schema.dataset!r} is new here. How much may all releases from it ever "
                f"cost together? This run costs epsilon {budget.epsilon:g}.\n"
                "Lifetime cap, epsilon: "
            )
            # A text that is no number leaves None, and the error below names the option.
            with suppress(ValueError):
                cap = None if answer is None else float(answer)
        if cap is None:
            raise PlanError(
                f"cap_epsilon must be given: data set {schema.dataset!r} is new in ledger "
                f"{os.fspath(path)!r}, and every data set has a lifetime cap; add --cap-epsilon."
            )
        if cap < budget.epsilon:
            raise PlanError(
                f"cap_epsilon must be at least epsilon={budget.epsilon:g}, got {cap:g}; lower one "
                "or raise the other."
            )
        return cap


def _new_split(plan: Plan, cap: Budget) -> Split:
    """Return the limits of a new data set, which never change and must admit its first job."""
    split = Split.split_for(plan.events(), cap)
    if cheapest_pricing(plan.events(), [(Limits(cap, split), Cost())]) is None:
        raise BudgetExceeded(
            f"a lifetime cap of {cap} is too small for this job; give a larger cap."
        )
    return split


def default_ledger() -> Path:
    """Return the ledger that commands charge by default: one file for all jobs of a user.

    A ledger per run would give no protection, since it would not contain earlier spending.
    """
    if path := os.environ.get(LEDGER_VARIABLE):
        return Path(path)
    folder = os.environ.get("XDG_DATA_HOME") or Path.home() / (
        "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    )
    return Path(folder) / "cloister" / "ledger.db"


def left_for_one_more(epsilon: float) -> str:
    """Return the text of the most that one more job may cost.

    It is more than the cap minus the spending, since costs compose to less than their sum.
    """
    return f"epsilon {number(epsilon)} (jobs together cost less than the sum of their epsilons)"
