"""The declared options of each task, for plans, command lines and pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from math import ceil, floor, log10
from typing import Annotated, Any, Literal, TypeVar, get_args

from cloister.core.declared import Declaration, Range, Whole, declarations, declared
from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier, gdp_part
from cloister.protocol.task import PublicFacts, Task, check_task_class

_Task = TypeVar("_Task")
Noise = Literal["gaussian", "laplace"]
"""Distributions of noise that a task may offer to its user."""


@dataclass(frozen=True)
class AtMostRecords:
    """Marker of an option that may not be larger than the public number of records."""


Clusters = Annotated[Whole, AtMostRecords(), "number of clusters"]
PublicSeed = Annotated[int, "seed of all public random choices, known to everybody"]
Target = Annotated[str, "column that is predicted"]
Keep = Annotated[tuple[str, ...], "columns that are left as they are"]
Dates = tuple[Annotated[int, Range(0)], ...]
"""The columns of dates of a task, which are years with a fraction; a public fact."""


@declared
class NoOptions:
    """The options of a task that declares none."""


def options_of(task: type[Task]) -> tuple[Declaration, ...]:
    """Return the declarations of a task's options."""
    return declarations(getattr(task, "Options", NoOptions))


def check_known(task: type[Task], given: Iterable[str]) -> None:
    """Raise PlanError for an unknown option and list the valid ones.

    The optional member `absent` of a task maps an option of another task to a sentence on it.
    """
    names = [option.name for option in options_of(task)]
    if unknown := [name for name in given if name not in names]:
        other = getattr(task, "absent", {}).get(unknown[0], "")
        but = f", but {other}" if other else ""
        raise _option_error(task, f"it has no option {unknown[0]!r}{but}")


def _option_error(task: type[Task], reason: str) -> PlanError:
    names = ", ".join(option.name for option in options_of(task))
    return PlanError(
        f"options of task {task.name!r} do not fit: {reason}; its options are {names or 'none'}."
    )


def options_bounded_by_n(task: type[Task], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the options that may not be larger than the public number of records."""
    return {
        option.name: given[option.name]
        for option in options_of(task)
        if AtMostRecords() in get_args(option.kind) and isinstance(given.get(option.name), int)
    }


def design(task: type[Task], facts: PublicFacts, given: Mapping[str, Any]) -> Task:
    """Return a task designed from public facts and options by name, or raise PlanError."""
    check_task_class(task, getattr(task, "__name__", "task"))
    if list(signature(task.design).parameters) != ["facts", "options"]:
        raise PlanError(
            f"design of task {task.name!r} must take (facts, options), got other parameters; "
            "declare its options in a class Options."
        )
    return task.design(facts, checked_options(task, given))


def checked_options(task: type[Task], given: Mapping[str, Any]) -> object:
    """Return the ``Options`` of a task, made of options by name; raise PlanError for others."""
    # Before the call of Options: its own error would not list the valid names.
    check_known(task, given)
    if missing := [o.name for o in options_of(task) if o.required and o.name not in given]:
        raise _option_error(task, f"{missing[0]!r} must be given")
    options: object = getattr(task, "Options", NoOptions)(**given)
    return options


def noise_multiplier_for(facts: PublicFacts, pure: bool = False) -> float | None:
    """Return noise over the norm of a record of one Gaussian release for the whole budget, if any.

    With ``delta = 0`` there is no Gaussian noise. The result is then None if the task may be
    `pure`; otherwise PlanError is raised.
    """
    if facts.budget is None or (pure and facts.budget.delta == 0):
        return None
    multiplier = gaussian_noise_multiplier(facts.budget.epsilon, facts.budget.delta)
    return multiplier * facts.group_size


def epsilon_for(budget: Budget, factor: float, *, pure: bool = False) -> float:
    """Return an epsilon of two digits at which the noise is `factor` times smaller.

    `pure` is True for Laplace noise; a budget without delta implies it.
    """
    if pure or not budget.delta:
        # The scale of Laplace noise is inverse to epsilon.
        return two_digits(budget.epsilon * factor)
    # A GDP budget is a squared parameter, and the noise is inverse to the parameter.
    return two_digits(gdp_part(budget, factor**2).epsilon)


def two_digits(epsilon: float) -> float:
    """Return `epsilon` rounded up to two significant digits."""
    digit = 10.0 ** (floor(log10(epsilon)) - 1)
    return ceil(epsilon / digit * (1 - 1e-12)) * digit  # a float just above two digits stays


def build_task(task: type[_Task], facts: PublicFacts, options: object, **chosen: Any) -> _Task:
    """Return a task with the fields in `chosen`; the other fields are options or public facts."""
    values = dict(chosen)
    for field in declarations(task):  # type: ignore[arg-type]  # classes are hashable
        for source in (options, facts):  # an option overrides a public fact of the same name
            if hasattr(source, field.name):
                values.setdefault(field.name, getattr(source, field.name))
    return task(**values)


def require_budget(budget: Budget | None, hint: str = "give it") -> Budget:
    """Return the budget; raise PlanError if it is None."""
    if budget is None:
        raise PlanError(f"budget is needed to design the task; {hint}.")
    return budget
