"""What a task is: what to sum, what to do with the answer, and how to say so.

A task is a frozen value of public numbers with pure methods. It has no keys, no noise, no files.
Each round it turns public state and local records into one integer vector whose change by one
record is bounded by an integer; everything else (masking, noise, accounting, transport, command
line, report) is done for it. To add one, write a class with these members in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import log, prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np

from cloister.core.arrays import Floats as Floats
from cloister.core.arrays import GridState as GridState
from cloister.core.arrays import Integers as Integers
from cloister.core.arrays import Records as Records
from cloister.core.arrays import Results as Results
from cloister.core.arrays import State as State
from cloister.core.declared import Whole, declared
from cloister.core.deprecated import old_name
from cloister.core.display import Display
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget

Mechanism = Literal["gaussian", "laplace", "none"]
Profile = Literal["local", "group", "pairwise"]
INTERVAL_95: Mapping[Mechanism, float] = {
    "gaussian": 1.96,
    "laplace": log(20) / sqrt(2),
    "none": 0.0,
}
"""Half-width of the central 95 % of each law, in its standard deviations."""
FINE = 16
"""A record counts ``2**FINE`` where it counts 1, so that the noise is on a fine lattice."""


@dataclass(frozen=True)
class Block:
    """One array in the vector that is summed in a round.

    Parameters
    ----------
    shape : tuple of int
        Known from the plan alone; data-dependent lengths are padded to their maximum.
    l1 : int, > 0
        Largest L1 norm of what one record adds, in integers.
    l2_squared : int, > 0
        Largest squared L2 norm of what one record adds, in integers.
    weight : float in (0, 1]
        Part of the task's budget (squared GDP parameter, or epsilon of a Laplace task); the
        weights of all blocks of all rounds sum to 1.
    """

    name: str
    shape: tuple[int, ...]
    l1: int
    l2_squared: int
    weight: float

    @classmethod
    def of_units(
        cls, name: str, shape: tuple[int, ...], weight: float, times: int = 1, one: int = 1 << FINE
    ) -> Self:
        """Return a block in at most so many elements of which a record adds at most `one`."""
        return cls(name, shape, times * one, times * one**2, weight)

    @property
    def size(self) -> int:
        """Number of integers."""
        return prod(self.shape)


@dataclass(frozen=True)
class Released:
    """A block after noise: public from here on.

    Parameters
    ----------
    values : ndarray of the block's shape, int64
    noise_std : float
        Standard deviation of the noise in each of them, in integers; 0 without noise.
    """

    values: Integers
    noise_std: float

    def real(self, bits: int = FINE) -> tuple[Floats, float]:
        """Return both in units of ``2**bits`` integers: counts in records."""
        return from_grid(self.values, bits), self.noise_std / (1 << bits)


@dataclass(frozen=True)
class PublicColumn:
    """What a task may know of a column: the part of the schema that is not about cells.

    Parameters
    ----------
    low, high : float, data units, ``low < high``
        The box; the codes of the first and last category where there are categories.
    categories : tuple of str
        Empty for a column of numbers; ``("0", "1")`` for a boolean.
    """

    name: str
    low: float
    high: float
    categories: tuple[str, ...] = ()

    @property
    def levels(self) -> int:
        """Number of categories; 0 for a column of numbers."""
        return len(self.categories)


@declared
class PublicFacts:
    """What everybody knows before a job, and what a task may be designed from.

    Parameters
    ----------
    nominal_n : int, >= 1
        Public contract value for the number of records in all silos.
    budget : Budget or None
        None for a task that is not private.
    columns : tuple of PublicColumn
        Those that the job uses, in order; `n_features` is their number.
    unit : str
        Privacy unit of the schema.
    """

    n_features: Whole
    nominal_n: Whole
    budget: Budget | None
    frac_bits: int = 16
    columns: tuple[PublicColumn, ...] = ()
    silos: tuple[str, ...] = ()
    unit: str = "row"

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        return tuple(column.name for column in self.columns)

    @property
    def low(self) -> tuple[float, ...]:
        """Lower end of each column's box."""
        return tuple(column.low for column in self.columns)

    @property
    def high(self) -> tuple[float, ...]:
        """Upper end of each column's box."""
        return tuple(column.high for column in self.columns)

    @property
    def categories(self) -> tuple[tuple[str, ...], ...]:
        """Categories of each column, none for one of numbers."""
        return tuple(column.categories for column in self.columns)

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of categories of each column, 0 for one of numbers."""
        return tuple(column.levels for column in self.columns)


@runtime_checkable
class Task(Protocol):
    """The protocol every task follows; implementations are frozen dataclasses.

    A task with options of its own has them as ``Options``, a class of
    :func:`~cloister.core.declared.declared`.

    Attributes
    ----------
    name : str
        What it is called in plans and on the command line.
    title : str, optional
        What its report is called; a model that finds groups or predicts has a title anyway.
    private : bool
        Whether its release, with the plan's noise, satisfies the stated guarantee.
    profiles : frozenset of {"local", "group", "pairwise"}
        Trust models under which every frame is a function of the plan alone.
    """

    name: ClassVar[str]
    private: ClassVar[bool]
    profiles: ClassVar[frozenset[Profile]]

    @property
    def n_features(self) -> int:
        """Number of columns."""

    @property
    def frac_bits(self) -> int:
        """Fineness of the grid."""

    @property
    def rounds(self) -> int:
        """Number of noisy sums; fixed before any record is seen."""

    @property
    def mechanism(self) -> Mechanism:
        """Law of the noise."""

    @classmethod
    def design(cls, facts: PublicFacts, options: Any) -> Self:
        """Choose every public number of the task from public facts and its ``Options``."""

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""

    def start(self) -> State:
        """Return the public state before the first round; independent of the records."""

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the layout of round `t`, at its plan maximum."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the integer vector of round `t` for some records (blocks one after another)."""

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the next public state from what was released; costs no privacy."""

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the expected margins of error, before anything is spent; may be empty.

        They are in the users' units, by name, ``..._half_width``: those of `results`, or of what
        results are made of. `noise_std` is of each integer of the last round's first block.
        """

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the final answer in the users' units."""

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the tables and pictures of the report."""


class Gaussian:
    """What tasks have in common whose noise is Gaussian, under every trust model."""

    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"


_MEMBERS = (
    *("name", "private", "profiles", "rounds", "design", "describe", "start", "blocks"),
    *("contribute", "update", "forecast", "results", "displays"),
)


def check_follows(kind: object, place: str) -> type[Task]:
    """Return a class that follows the protocol of tasks, or refuse what was found at a place."""
    if not isinstance(kind, type):
        raise PlanError(f"task {place!r} must be a class that follows the protocol of tasks.")
    public = getattr(kind, "__dataclass_fields__", {})  # those without default are no attributes
    if missing := [name for name in _MEMBERS if not hasattr(kind, name) and name not in public]:
        was = " (it was called 'exhibits')" if missing[0] == "displays" else ""
        raise PlanError(
            f"task {place!r} must follow the protocol of tasks, but has no {missing[0]!r}{was}; "
            "the decorator cloister.tasks.custom.task adds defaults."
        )
    return kind


def inside(records: Records, frac_bits: int) -> Records:
    """Return the records within the box of the grid; one outside it must add nothing to a sum.

    A task proves its bounds for coordinates of at most ``2**frac_bits`` steps. Whoever reads
    records keeps to that; here it no longer matters whether they did. A PlanError refuses anything
    but int32 of shape (n, n_features).
    """
    if records.ndim != 2 or records.dtype != np.int32:
        raise PlanError(
            "records must be tables of int32 grid steps with 2 dimensions, got "
            f"{records.dtype} with {records.ndim}; read them with read_source."
        )
    one = 1 << frac_bits
    tree = getattr(records, "tree", None)  # of read-only rows: it knows their largest coordinate
    if tree is not None and tree.one <= one:
        return records
    if records.size == 0 or (records.max() <= one and records.min() >= -one):
        return records
    return records[((records <= one) & (records >= -one)).all(axis=1)]


def tasks_inside(value: object) -> Iterator[Task]:
    """Yield a task and every task that its fields hold: steps, models that it applies, and so on.

    Of all of them a party needs the code; :func:`steps_of` yields those that sum records.
    """
    if is_dataclass(value) and isinstance(value, Task):  # a protocol is slow to check
        yield value
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from tasks_inside(part)


def steps_of(task: Task) -> Iterator[Task]:
    """Yield a task and every step of a pipeline, at any depth."""
    yield task
    for step in getattr(task, "steps", ()):
        if isinstance(step, Task):
            yield from steps_of(step)


@runtime_checkable
class Transformer(Task, Protocol):
    """A task whose results say how to change records, row by row."""

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The columns after the change; known from the plan alone."""

    def transform(self, results: Results, records: Records) -> Records:
        """Return one grid record for each grid record.

        Parameters
        ----------
        results : mapping
            What :meth:`Task.results` returned.
        records : ndarray of shape (n_samples, n_features), int32

        Returns
        -------
        ndarray of shape (n_samples, len(output)), int32
        """


@runtime_checkable
class Classifier(Task, Protocol):
    """A task whose results predict the class of a record."""

    @property
    def target(self) -> int:
        """The column that holds the class."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Every class, in the order of the schema."""

    def probabilities(self, results: Results, records: Records) -> Floats:
        """Return the probability of each class; the target column of the records is not looked at.

        Parameters
        ----------
        results : mapping
            What :meth:`Task.results` returned.
        records : ndarray of shape (n_samples, n_features), int32

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """


@runtime_checkable
class Regressor(Task, Protocol):
    """A task whose results predict a number for a record, in the units of its target column."""

    @property
    def target(self) -> int:
        """The column that holds the number."""

    def predict(self, results: Results, records: Records) -> Floats:
        """Return the predicted target; shape (n_samples,), data units of the target."""


@runtime_checkable
class ByUnit(Task, Protocol):
    """A task that protects all records of a privacy unit together, which may be a whole silo.

    All records of a silo come to :meth:`Task.contribute` as one table, so that a unit's records
    stay together.
    """

    @property
    def clients(self) -> str:
        """The privacy unit.

        "row", each record; "silo", all records of a silo; or a column: the records of a silo with
        one value in it.
        """

    @property
    def rate(self) -> float:
        """Probability, above 0, with which a unit takes part in a round."""

    @property
    def noise_multiplier(self) -> float:
        """Noise over sensitivity of a block of weight 1, for ``rate < 1``.

        Every party prices it against the budget; 0 where all units take part and the budget says
        enough.
        """

    @property
    def alone(self) -> bool:
        """Whether each silo's own noise must be enough for its units."""

    def contribute_sampled(
        self, t: int, state: GridState, records: Records, coins: Callable[[int], bytes]
    ) -> Integers:
        """Return what :meth:`Task.contribute` returns for units chosen by coins.

        Parameters
        ----------
        coins : function
            Returns so many secret uniform bytes; each unit needs coins of its own. Work must not
            depend on them, since its time can be seen.
        """


@runtime_checkable
class BySilo(Task, Protocol):
    """A task that can release something of each silo by itself, where its owner allows that."""

    @property
    def silos(self) -> tuple[str, ...]:
        """Silos of the plan with a layer of their own in every vector; none if empty."""

    def placed(self, t: int, silo: str, total: Integers) -> Integers:
        """Move what :meth:`Task.contribute` summed in round `t` to the layer of one silo.

        `contribute` knows no silo and fills the first layer.
        """


if not TYPE_CHECKING:  # type checkers shall see today's names only

    def __getattr__(name: str) -> Any:
        return old_name(__name__, name)
