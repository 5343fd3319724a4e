"""The task protocol: what each record contributes and how the noisy sum is used.

A task is a frozen value of public numbers with pure methods. It has no keys, no noise, no files. In
each round it maps public state and local records to one integer vector. An integer bounds the
change of that vector by one record. The other rooms provide masking, noise, accounting, transport,
command line and report. To add a task, write a class with these members in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import inf, log, prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np

from cloister.core.arrays import Floats as Floats
from cloister.core.arrays import GridState as GridState
from cloister.core.arrays import Integers as Integers
from cloister.core.arrays import Ranges as Ranges
from cloister.core.arrays import Records as Records
from cloister.core.arrays import Results as Results
from cloister.core.arrays import State as State
from cloister.core.declared import Whole, declared
from cloister.core.deprecated import resolve
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
"""Half-width of the central 95 % of each distribution, in its standard deviations."""
NO_VALUE = np.iinfo(np.int32).max
"""Grid value of a cell that is missing and kept; it is outside the box of every grid."""
BOOLEAN = ("false", "true")
"""The categories of a boolean. Spellings of a file are not among them: silos need not agree."""
COUNT_BITS = 16
"""Bits of a count: a record adds ``2**FINE`` to its cell, so that the noise has a fine lattice."""


@dataclass(frozen=True)
class Block:
    """One array in the vector that is summed in a round.

    Parameters
    ----------
    shape : tuple of int
        Follows from the plan alone; data-dependent lengths are padded to their maximum.
    l1 : int, > 0
        Largest L1 norm of the contribution of one record, in integers.
    l2_squared : int, > 0
        Largest squared L2 norm of the contribution of one record, in integers.
    weight : float in (0, 1]
        Share of the task's budget (squared GDP parameter, or epsilon of a Laplace task); the
        weights of all blocks of all rounds sum to 1.
    """

    name: str
    shape: tuple[int, ...]
    l1: int
    l2_squared: int
    weight: float

    @classmethod
    def counting(
        cls,
        name: str,
        shape: tuple[int, ...],
        weight: float,
        times: int = 1,
        one: int = 1 << COUNT_BITS,
    ) -> Self:
        """Return a block in which a record adds at most `one` to at most `times` elements."""
        return cls(name, shape, times * one, times * one**2, weight)

    @property
    def size(self) -> int:
        """Number of integers."""
        return prod(self.shape)


@dataclass(frozen=True)
class Rows:
    """Contributions of records to one block: `m` records, each with a row of `w` integers.

    Parameters
    ----------
    cells : ndarray of int64, shape (m,) or (m, w)
        The first cell of a run of `w` cells, or every cell. A row may not name a cell twice.
    values : ndarray of int64, shape (m, w) or (w,)
        The integers that a record adds to its cells; of shape (w,) if all records add the same.
    """

    cells: Integers
    values: Integers

    @classmethod
    def at(cls, cells: Sequence[Integers], values: Sequence[int] | Integers) -> Self:
        """Return rows of some cells, each given for all records: arrays of shape (m,)."""
        return cls(np.stack(cells, axis=1), np.asarray(values, dtype=np.int64))

    @classmethod
    def dense(cls, values: Integers) -> Self:
        """Return rows from the first cell of the block on; `values` of shape (m, w)."""
        return cls(np.zeros(len(values), dtype=np.int64), values)


@dataclass(frozen=True)
class NoisyBlock:
    """A block after noise: public from here on.

    Parameters
    ----------
    values : ndarray of the block's shape, int64
    noise_std : float
        Standard deviation of the noise of each value, in integers; 0 without noise.
    """

    values: Integers
    noise_std: float

    def in_records(self, bits: int = COUNT_BITS) -> tuple[Floats, float]:
        """Return values and deviation in units of ``2**bits`` integers: counts in records."""
        return from_grid(self.values, bits), self.noise_std / (1 << bits)


@dataclass(frozen=True)
class PublicColumn:
    """The facts of a column that a task may use: the schema without its rules for cells.

    Parameters
    ----------
    low, high : float, data units, ``low < high``
        The box; for a column of categories, the codes of the first and the last.
    categories : tuple of str
        Empty for a column of numbers; `BOOLEAN` for a boolean.
    step : float, data units, >= 0
        Every value is a multiple of it, for example 1 for integers; 0 if any number is possible.
    date : bool
        Whether its numbers are dates: years with a fraction.
    incomplete : bool
        Whether records may have the value `NO_VALUE` in it. A task leaves such records out, unless
        it names the column in its attribute ``incomplete``.
    """

    name: str
    low: float
    high: float
    categories: tuple[str, ...] = ()
    step: float = 0.0
    date: bool = False
    incomplete: bool = False

    @property
    def levels(self) -> int:
        """Number of categories; 0 for a column of numbers."""
        return len(self.categories)

    @property
    def is_boolean(self) -> bool:
        """True if its categories are truth values, which may also be written as 0 and 1."""
        return self.categories in (BOOLEAN, ("0", "1"))


@declared
class PublicFacts:
    """The public facts before a job, from which a task is designed.

    Parameters
    ----------
    nominal_n : int, >= 1
        Public contract value for the number of records in all silos.
    budget : Budget or None
        None for a task that is not private.
    columns : tuple of PublicColumn
        The columns of the job, in order; `n_features` is their number.
    unit : str
        Privacy unit of the schema.
    group_size : int, >= 1
        Largest number of records of one privacy unit; noise grows with it.
    """

    n_features: Whole
    nominal_n: Whole
    budget: Budget | None
    frac_bits: int = 16
    columns: tuple[PublicColumn, ...] = ()
    silos: tuple[str, ...] = ()
    unit: str = "row"
    group_size: Whole = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        return tuple(column.name for column in self.columns)

    @property
    def low(self) -> tuple[float, ...]:
        """Lower bound of each column."""
        return tuple(column.low for column in self.columns)

    @property
    def high(self) -> tuple[float, ...]:
        """Upper bound of each column."""
        return tuple(column.high for column in self.columns)

    @property
    def dates(self) -> tuple[int, ...]:
        """Indices of the columns of dates."""
        return tuple(j for j, column in enumerate(self.columns) if column.date)

    @property
    def categories(self) -> tuple[tuple[str, ...], ...]:
        """Categories of each column; empty for a column of numbers."""
        return tuple(column.categories for column in self.columns)

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of categories of each column; 0 for a column of numbers."""
        return tuple(column.levels for column in self.columns)


@runtime_checkable
class Task(Protocol):
    """The protocol of every task; implementations are frozen dataclasses.

    A task with options declares them as ``Options``, a class decorated with
    :func:`~cloister.core.declared.declared`.

    Attributes
    ----------
    name : str
        Name in plans and on the command line.
    title : str, optional
        Title of its report; a model that finds groups or predicts has a default title.
    private : bool
        True if its release, with the plan's noise, satisfies the stated guarantee.
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
        """Distribution of the noise."""

    @classmethod
    def design(cls, facts: PublicFacts, options: Any) -> Self:
        """Choose every public number of the task from public facts and its ``Options``."""

    def describe(self) -> str:
        """Describe the sums and the release in plain sentences."""

    def start(self) -> State:
        """Return the public state before the first round; independent of the records."""

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the layout of round `t`, at its plan maximum."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the integer vector of round `t` for some records: all blocks, concatenated."""

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the next public state from the released blocks; costs no privacy."""

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the expected margins of error, before any budget is spent; may be empty.

        They are in the users' units, by name, ``..._half_width``: margins of `results`, or of
        numbers from which results are computed. `noise_std` is the deviation of each integer in the
        last round's first block.
        """

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the estimates in the users' units."""

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the tables and pictures of the report."""


class Gaussian:
    """A base class of tasks with Gaussian noise, under every trust model.

    A task names the possible values of its results with population intervals in `ranges`.
    """

    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    ranges: ClassVar[Ranges] = {}


SHARE, CONTRAST, POSITIVE = (0.0, 1.0), (-1.0, 1.0), (0.0, inf)
"""Ranges of shares, of differences of shares and of numbers of at least 0."""

# The members that `check_task_class` requires of a class.
_MEMBERS = (
    *("name", "private", "profiles", "rounds", "design", "describe", "start", "blocks"),
    *("contribute", "update", "forecast", "results", "displays"),
)


def check_task_class(kind: object, place: str) -> type[Task]:
    """Return `kind` if it follows the protocol of tasks; raise PlanError otherwise."""
    if not isinstance(kind, type):
        raise PlanError(f"task {place!r} must be a class that follows the protocol of tasks.")
    public = getattr(kind, "__dataclass_fields__", {})  # fields without default are no attributes
    if missing := [name for name in _MEMBERS if not hasattr(kind, name) and name not in public]:
        was = " (it was called 'exhibits')" if missing[0] == "displays" else ""
        raise PlanError(
            f"task {place!r} must follow the protocol of tasks, but has no {missing[0]!r}{was}; "
            "the decorator cloister.tasks.custom.task adds defaults."
        )
    return kind


def records_in_box(records: Records, frac_bits: int) -> Records:
    """Return the records inside the box of the grid; records outside must add nothing to a sum.

    A task proves its bounds for coordinates of at most ``2**frac_bits`` steps. Readers of records
    clip to that range; this check makes the proof independent of them. Raises PlanError for
    anything except int32 of shape (n, n_features).
    """
    if records.ndim != 2 or records.dtype != np.int32:
        raise PlanError(
            "records must be tables of int32 grid steps with 2 dimensions, got "
            f"{records.dtype} with {records.ndim}; read them with read_source."
        )
    scale = 1 << frac_bits
    tree = getattr(records, "tree", None)  # an index of read-only rows with their largest value
    if tree is not None and tree.one <= scale:
        return records
    # The common case, without a copy: two passes over the table, but no mask of its size.
    if records.size == 0 or (records.max() <= scale and records.min() >= -scale):
        return records
    return records[((records <= scale) & (records >= -scale)).all(axis=1)]


def records_of(task: Task, records: Records) -> Records:
    """Return the records that a task sums: those in the box, with the missing cells that it takes.

    Cells of its columns ``incomplete`` may be `NO_VALUE`. Any other task leaves such records out,
    since they are outside the box.
    """
    columns = list(getattr(task, "incomplete", ()))
    if not columns:
        return records_in_box(records, task.frac_bits)
    filled = records.copy()
    filled[:, columns] = np.where(records[:, columns] == NO_VALUE, 0, records[:, columns])
    scale = 1 << task.frac_bits
    return records[((filled <= scale) & (filled >= -scale)).all(axis=1)]


def nested_tasks(value: object) -> Iterator[Task]:
    """Yield a task and every task in its fields: steps, models that it applies, and so on.

    A party needs the code of all of them; :func:`pipeline_steps` yields those that sum records.
    """
    if is_dataclass(value) and isinstance(value, Task):  # isinstance with a protocol is slow
        yield value
        value = {member.name: getattr(value, member.name) for member in fields(value)}
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for entry in value:
            yield from nested_tasks(entry)


def has_rows(task: Task | type[Task]) -> bool:
    """Return True if a task declares the row of each record; `contribute` is then a fast kernel."""
    rows = getattr(task, "rows", None)
    return callable(rows) or isinstance(rows, property)  # a pipeline has rows if all steps have


def pipeline_steps(task: Task) -> Iterator[Task]:
    """Yield a task and every step of a pipeline, at any depth."""
    yield task
    for step in getattr(task, "steps", ()):
        if isinstance(step, Task):
            yield from pipeline_steps(step)


@runtime_checkable
class Transformer(Task, Protocol):
    """A task whose results define a function from records to records, row by row."""

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The columns of the transformed records; a function of the plan alone."""

    def transform(self, results: Results, records: Records) -> Records:
        """Return one grid record for each grid record.

        Parameters
        ----------
        results : mapping
            The return value of :meth:`Task.results`.
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
        """Return the probability of each class; the target column of the records is not used.

        Parameters
        ----------
        results : mapping
            The return value of :meth:`Task.results`.
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
class UnitTask(Task, Protocol):
    """A task that protects all records of a privacy unit together, which may be a whole silo.

    :meth:`Task.contribute` receives all records of a silo as one table, so that a unit's records
    stay together.
    """

    @property
    def clients(self) -> str:
        """The privacy unit.

        "row", each record; "silo", all records of a silo; or a column: all records of a silo with
        the same value in that column.
        """

    @property
    def rate(self) -> float:
        """Probability, above 0, with which a unit takes part in a round."""

    @property
    def noise_multiplier(self) -> float:
        """Noise over sensitivity of a block of weight 1, for ``rate < 1``.

        Every party prices it against the budget. It is 0 if all units take part, since the budget
        then determines the noise.
        """

    @property
    def alone(self) -> bool:
        """If True, each silo's own noise must satisfy the guarantee (local DP)."""

    def contribute_sampled(
        self, t: int, state: GridState, records: Records, coins: Callable[[int], bytes]
    ) -> Integers:
        """Return the sum of :meth:`Task.contribute` over units sampled with coins.

        Parameters
        ----------
        coins : function
            ``coins(n)`` returns n secret uniform bytes; each unit uses separate coins. The running
            time must not depend on them, since the aggregator can observe it.
        """


@runtime_checkable
class PerSiloTask(Task, Protocol):
    """A task that can release estimates per silo, if the silo's owner allows it."""

    @property
    def silos(self) -> tuple[str, ...]:
        """Silos of the plan with a separate layer in every vector; empty without layers."""

    def to_silo_layer(self, t: int, silo: str, total: Integers) -> Integers:
        """Move the sum of :meth:`Task.contribute` in round `t` to the layer of one silo.

        `contribute` is independent of the silo and fills the first layer.
        """


@runtime_checkable
class SitedTask(Task, Protocol):
    """A task whose model has terms of single silos, if the silo's owner allows it.

    Each silo computes its sums with :meth:`at_silo` of its name, which is public. Frames, bounds
    and noise are the same at all silos.
    """

    @property
    def sites(self) -> tuple[str, ...]:
        """Silos of the plan that have terms in the model; empty without such terms."""

    def at_silo(self, silo: str) -> Task:
        """Return the task for the records of one silo; raise PlanError for another name."""


if not TYPE_CHECKING:  # type checkers see the current names only

    def __getattr__(name: str) -> Any:
        return resolve(__name__, name)
