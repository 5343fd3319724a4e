"""The options of each task, from where it declares them: for plans, command lines and pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from math import ceil, floor, log10
from typing import Annotated, Any, Literal, TypeVar, get_args

from cloister.core.declared import Declaration, Whole, declarations, declared
from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier, gdp_part
from cloister.protocol.task import PublicFacts, Task, check_task_class

_Task = TypeVar("_Task")
Noise = Literal["gaussian", "laplace"]
"""Laws of noise that a task may let its user choose from."""


@dataclass(frozen=True)
class AtMostRecords:
    """Marks an option that may not be larger than the public number of records."""


Clusters = Annotated[Whole, AtMostRecords(), "number of clusters"]
PublicSeed = Annotated[int, "seed of all public random choices, known to everybody"]
Target = Annotated[str, "column that is predicted"]
Keep = Annotated[tuple[str, ...], "columns that are left as they are"]


@declared
class NoOptions:
    """The options of a task that declares none."""


def options_of(task: type[Task]) -> tuple[Declaration, ...]:
    """Return what a user may choose of a task."""
    return declarations(getattr(task, "Options", NoOptions))


def check_known(task: type[Task], given: Iterable[str]) -> None:
    """Refuse the name of an option that a task has not, and name those that it has."""
    names = [one.name for one in options_of(task)]
    if alien := [name for name in given if name not in names]:
        raise _misfit(task, f"it has no option {alien[0]!r}")


def _misfit(task: type[Task], reason: str) -> PlanError:
    names = ", ".join(one.name for one in options_of(task))
    return PlanError(
        f"options of task {task.name!r} do not fit: {reason}; its options are {names or 'none'}."
    )


def options_bounded_by_n(task: type[Task], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the options that may not be larger than the public number of records."""
    return {
        one.name: given[one.name]
        for one in options_of(task)
        if AtMostRecords() in get_args(one.kind) and isinstance(given.get(one.name), int)
    }


def design(task: type[Task], facts: PublicFacts, given: Mapping[str, Any]) -> Task:
    """Return a task designed from public facts and options by name, or refuse these."""
    check_task_class(task, getattr(task, "__name__", "task"))
    if list(signature(task.design).parameters) != ["facts", "options"]:
        raise PlanError(
            f"design of task {task.name!r} must take (facts, options), got other parameters; "
            "declare its options in a class Options."
        )
    return task.design(facts, checked_options(task, given))


def checked_options(task: type[Task], given: Mapping[str, Any]) -> object:
    """Return the ``Options`` of a task, made of options by name; raise PlanError for others."""
    check_known(task, given)
    if absent := [o.name for o in options_of(task) if o.required and o.name not in given]:
        raise _misfit(task, f"{absent[0]!r} must be given")
    options: object = getattr(task, "Options", NoOptions)(**given)
    return options


def noise_multiplier_for(facts: PublicFacts, pure: bool = False) -> float | None:
    """Return noise over sensitivity of one Gaussian release for the whole budget, if any.

    A budget with ``delta = 0`` has no Gaussian noise: None where a task may be `pure`, else it is
    refused.
    """
    if facts.budget is None or (pure and facts.budget.delta == 0):
        return None
    return gaussian_noise_multiplier(facts.budget.epsilon, facts.budget.delta)


def epsilon_for(budget: Budget, factor: float, *, pure: bool = False) -> float:
    """Return an epsilon of two digits at which noise is so many times smaller.

    It is `pure` for Laplace noise and without delta.
    """
    if pure or not budget.delta:
        return two_digits(budget.epsilon * factor)
    return two_digits(gdp_part(budget, factor**2).epsilon)


def two_digits(epsilon: float) -> float:
    """Return the smallest number of two digits that is no smaller, but for rounding."""
    digit = 10.0 ** (floor(log10(epsilon)) - 1)
    return ceil(epsilon / digit * (1 - 1e-12)) * digit


def build_task(task: type[_Task], facts: PublicFacts, options: object, **chosen: Any) -> _Task:
    """Return a task of the fields that were chosen; the others are options or else public facts."""
    found = dict(chosen)
    for one in declarations(task):  # type: ignore[arg-type]  # classes are hashable
        for source in (options, facts):
            if hasattr(source, one.name):
                found.setdefault(one.name, getattr(source, one.name))
    return task(**found)


def require_budget(budget: Budget | None, hint: str = "give it") -> Budget:
    """Return the budget, or say that the task cannot be designed without one."""
    if budget is None:
        raise PlanError(f"budget is needed to design the task; {hint}.")
    return budget
