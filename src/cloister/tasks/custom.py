"""A decorator for custom tasks: five required members, and defaults for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import get_annotations
from math import prod
from typing import Any, TypeVar, dataclass_transform

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import declared
from cloister.core.derived import derived
from cloister.core.display import Display
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.rows import sum_of_rows
from cloister.protocol.task import PublicFacts
from cloister.tasks.options import build_task

_Class = TypeVar("_Class", bound=type)
REQUIRED = ("name", "blocks", "rows", "update", "results")
"""Members that every task must have."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def task(cls: _Class) -> _Class:
    """Turn a class with the members in :data:`REQUIRED` into a task.

    The class declares its public numbers as fields, as for
    :func:`~cloister.core.declared.declared`. The fields of its class `Options` are the user's
    options. A field with the name of an option or of a public fact takes its value.

    ==============  ==================================================================
    member          default
    ==============  ==================================================================
    ``private``     True
    ``profiles``    all three
    ``mechanism``   ``"gaussian"``
    ``rounds``      1
    ``n_features``  number of columns, a field
    ``frac_bits``   16, a field
    ``design``      fills the fields of the task
    ``start``       an empty state
    ``describe``    the names and the sizes of the blocks
    ``forecast``    nothing
    ``displays``    all results, as tables, bars and heat maps
    ``contribute``  the sum of the rows
    ==============  ==================================================================

    Raises
    ------
    PlanError
        If a required member is missing.

    Examples
    --------
    >>> from cloister.protocol.task import Rows
    >>> from cloister.protocol.task import Block
    >>> @task
    ... class Rounded:
    ...     name = "rounded"
    ...     def blocks(self, t): return (Block.counting("n", (1,), 1.0),)
    ...     def rows(self, t, state, records): return (Rows.dense(1 << 16 - 0 * records[:, :1]),)
    ...     def update(self, t, state, released): return {"n": released["n"].in_records()[0]}
    ...     def results(self, state, grid): return {"n": state["n"] / 2**16}
    >>> Rounded(n_features=2).describe()
    'The sums n (1 number) are released with gaussian noise.'
    """
    if missing := [name for name in REQUIRED if not hasattr(cls, name)]:
        raise PlanError(f"task {cls.__name__!r} must have {', '.join(REQUIRED)}; add {missing[0]}.")
    annotations = get_annotations(cls)
    for name, value in _VALUES.items():
        if name not in annotations and not hasattr(cls, name):
            setattr(cls, name, value)
    kind: Any = cls  # typed as Any, because a type variable has no member `rows`
    for name, member in {**_METHODS, "contribute": _by_rows(kind.rows)}.items():
        if not hasattr(cls, name):
            setattr(cls, name, member)
    fields: dict[str, Any] = {"n_features": "int", "frac_bits": "int"}

    cls.__annotations__ = {
        **{k: v for k, v in fields.items() if k not in annotations},
        **annotations,
    }
    if "frac_bits" not in annotations:
        cls.frac_bits = 16  # type: ignore[attr-defined]  # a field with a default
    return declared(cls)


def _design(cls: type[Any], facts: PublicFacts, options: object) -> Any:
    """Return a task whose fields take the options or public facts of the same names."""
    return build_task(cls, facts, options)


def _describe(self: Any) -> str:
    """Return the names and the sizes of the blocks of the first round."""
    sizes = {block.name: prod(block.shape) for block in self.blocks(0)}
    named = ", ".join(f"{name} ({counted(n, 'number')})" for name, n in sizes.items())
    times = "" if self.rounds == 1 else f", in each of {self.rounds} rounds,"
    return f"The sums {named}{times} are released with {self.mechanism} noise."


def _start(self: Any) -> State:
    """Return an empty state."""
    return {}


def _forecast(self: Any, noise_std: float, nominal_n: int, grid: Grid) -> Results:
    """Return no results: the error of a custom task is unknown before the release."""
    return {}


def _displays(
    self: Any, results: Mapping[str, Floats], columns: tuple[str, ...]
) -> tuple[Display, ...]:
    """Return displays of all results: tables of numbers, bars of vectors, maps of matrices."""
    return derived(results, columns)


def _by_rows(rows: Callable[..., Any]) -> Callable[..., Integers]:
    """Return a method `contribute` that sums the rows."""

    def contribute(self: Any, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of the rows of the records."""
        return sum_of_rows(self, t, state, records, partial(rows, self, t, state))

    return contribute


_VALUES: Mapping[str, Any] = {
    "private": True,
    "profiles": frozenset({"local", "group", "pairwise"}),
    "mechanism": "gaussian",
    "rounds": 1,
}
_METHODS: Mapping[str, Callable[..., Any] | classmethod[Any, Any, Any]] = {
    "design": classmethod(_design),
    "describe": _describe,
    "start": _start,
    "forecast": _forecast,
    "displays": _displays,
}
