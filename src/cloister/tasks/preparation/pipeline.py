"""Pipelines: the rounds of several tasks in sequence, under one plan and one cost.

The release of a step may transform the records of later steps
(:class:`~cloister.protocol.task.Transformer`). Each silo transforms its records row by row, with a
function that is public after the release of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, chain
from math import ceil, sqrt
from typing import Annotated, Any, ClassVar, Self, cast

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Length, Share, declared
from cloister.core.derived import displays_of
from cloister.core.display import Display
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier, gdp_part
from cloister.protocol.task import (
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Rows,
    Task,
    Transformer,
    has_rows,
)
from cloister.tasks.columns import grid_of
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import build_task, design, options_of, require_budget
from cloister.tasks.state import part_of, prefixed

_PREPARING_SHARE = 0.1  # default share of the budget for each step before the last
_PREDICTED = ("target", "truth")  # options with the name of a column that must stay unchanged


_Predict = Callable[[Results, Records], Floats]


@declared
class Pipeline(Gaussian):
    """Steps that transform records, followed by a last step with the main result.

    Parameters
    ----------
    steps : tuple of Task
        All but the last are transformers.
    shares : tuple of float, one for each step, sum at most 1
        Shares of the squared GDP parameter of the whole.
    names : tuple of str
        Names of the columns before the first step.
    low, high : tuple of float, data units
        Bounds of these columns.

    Notes
    -----
    A transformer maps one record to one record of the same lattice. So a step's own bounds hold
    for its transformed records after any release. Costs of Gaussian releases add up; step i has
    `shares[i]` of the whole. docs/proofs/preparation.md has the proof.
    """

    name: ClassVar[str] = "pipeline"

    example: ClassVar[Example] = Example(
        MIXED,
        {
            "steps": [["standardise", {}], ["naive-bayes", {"target": "smokes"}]],
            "least_signal": 0.0,
        },
    )

    @declared
    class Options:
        steps: Annotated[
            tuple[tuple[str, Mapping[str, Any]], ...],
            Length(1),
            "names of tasks with their options, such as [['bounds', {}], ['auto', {}]]",
        ]
        shares: Annotated[
            tuple[Share, ...] | None,
            "shares of the budget, one for each step; if None, a tenth for each before the last",
        ] = None
        least_signal: Annotated[
            AtLeastZero, "smallest ratio of a step's largest possible sum to its noise"
        ] = 2.0

    steps: Annotated[tuple[Task, ...], Length(1)]
    shares: tuple[Share, ...]
    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    frac_bits: int = 16

    def __post_init__(self) -> None:
        _check_shares(self.shares, len(self.steps))
        # A plan may come from another party, so every step is checked here and not only in design.
        width = len(self.names)
        for i, step in enumerate(self.steps):
            gaussian = step.private and step.mechanism == "gaussian"
            changes = isinstance(step, Transformer)
            last = i == len(self.steps) - 1
            if not gaussian or step.profiles != self.profiles or not (changes or last):
                raise PlanError(
                    f"step {step.name!r} cannot be part of a pipeline here; use a step with "
                    "Gaussian noise under every trust model, and transformers before the last."
                )
            if (step.n_features, step.frac_bits) != (width, self.frac_bits):
                raise PlanError(
                    f"step {step.name!r} must accept the {width} columns that reach it, with "
                    f"{self.frac_bits} frac_bits, got {step.n_features} with {step.frac_bits}; "
                    "design the pipeline again."
                )
            width = width if last else len(self._before[i].output)
        # In the instance, not as properties: from Python 3.12 on, isinstance of a protocol looks
        # attributes up statically.
        vars(self).update(self._abilities())

    @cached_property
    def _before(self) -> tuple[Transformer, ...]:
        """The steps before the last, which transform records."""
        return cast(tuple[Transformer, ...], self.steps[:-1])

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design each step for its share of the budget and the columns that reach it."""
        from cloister.tasks import TASKS  # imported here, because it contains this class, too

        budget = require_budget(facts.budget)
        names = [name for name, _ in options.steps]
        cls._check_names(names, TASKS)
        before = len(names) - 1
        usual = (*[_PREPARING_SHARE] * before, 1 - _PREPARING_SHARE * before)
        shares = options.shares or usual
        _check_shares(shares, len(names))
        last = options.steps[-1][1]
        kept = tuple(last[name] for name in _PREDICTED if name in last)
        designed: list[Task] = []
        here = facts  # public facts as the step finds them
        for (name, given), share in zip(options.steps, shares, strict=True):
            # A step chooses lengths and rounds by its budget; the plan alone sets the noise.
            here = replace(here, budget=gdp_part(budget, share))
            keeps = _kept(TASKS[name], kept) if len(designed) < before else {}
            step = design(TASKS[name], here, {**keeps, **given})
            designed.append(step)
            if isinstance(step, Transformer):
                here = replace(here, n_features=len(step.output), columns=step.output)
        task = build_task(cls, facts, options, steps=tuple(designed), shares=shares)
        # Before any budget is spent, and by public numbers alone.
        task._check_signals(budget, facts.nominal_n, options.least_signal)
        return task

    @classmethod
    def _check_names(cls, names: Sequence[str], tasks: Mapping[str, type[Task]]) -> None:
        """Raise PlanError for a task that cannot be a step at its position; list the valid ones."""
        preparing = [name for name, task in tasks.items() if hasattr(task, "transform")]
        last = [
            name
            for name, task in tasks.items()
            if task.private
            and getattr(task, "mechanism", "") == cls.mechanism
            and name != cls.name
            and not hasattr(task, "contribute_sampled")  # steps do not know its privacy units
        ]
        places = [("before the last one", preparing)] * (len(names) - 1)
        for name, (where, valid) in zip(
            names, [*places, ("where it is the last", last)], strict=True
        ):
            if name not in valid:
                raise PlanError(
                    f"a step must be one of {', '.join(sorted(valid))} {where}, got {name!r}."
                )

    @property
    def n_features(self) -> int:
        """Number of columns before the first step."""
        return len(self.names)

    @property
    def last_step_columns(self) -> tuple[str, ...]:
        """Names of the columns that reach the last step."""
        return self._names[-1]

    @cached_property
    def _names(self) -> tuple[tuple[str, ...], ...]:
        """Names of the columns that reach each step."""
        after = (tuple(column.name for column in step.output) for step in self._before)
        return (self.names, *after)

    @property
    def last_step_grid(self) -> Grid:
        """The grid of the records that reach the last step; its results are in these units."""
        return self._grids[-1]

    @property
    def rounds(self) -> int:
        return sum(step.rounds for step in self.steps)

    def describe(self) -> str:
        """Describe each step and its share of the budget."""
        sentences = (
            f"Step {i} of {len(self.steps)} ({share:.0%} of the budget): {step.describe()}"
            for i, (step, share) in enumerate(zip(self.steps, self.shares, strict=True), start=1)
        )
        return " ".join(sentences)

    def start(self) -> State:
        state: dict[str, Floats] = {}
        for i, step in enumerate(self.steps):
            state |= prefixed(f"{i}.", step.start())
        return state

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of the current step, with its share of the budget."""
        i, step_round = self._place(t)
        return tuple(
            # The weights of a step sum to 1, so those of the pipeline sum to the sum of shares.
            replace(block, weight=block.weight * self.shares[i])
            for block in self.steps[i].blocks(step_round)
        )

    @property
    def rows(self) -> Callable[[int, GridState, Records], tuple[Rows, ...]] | None:
        """The rows of the current step, from transformed records; None if a step has no rows."""
        return self._rows if all(map(has_rows, self.steps)) else None

    def _rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        i, step_round = self._place(t)
        step: Any = self.steps[i]
        rows: tuple[Rows, ...] = step.rows(
            step_round, part_of(state, f"{i}."), self._reaching(i, state, records)
        )
        return rows

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the contribution of the current step for the transformed records."""
        i, step_round = self._place(t)
        records = self._reaching(i, state, records)
        return self.steps[i].contribute(step_round, part_of(state, f"{i}."), records)

    def _reaching(self, i: int, state: GridState, records: Records) -> Records:
        """Return the records as they reach step `i`."""
        one = 1 << self.frac_bits
        for j, step in enumerate(self._before[:i]):
            results = step.results(part_of(state, f"{j}."), self._grids[j])
            # A hostile state may drive a transformer out of the box; the bounds of a step hold
            # for records of the grid only.
            records = np.clip(step.transform(results, records), -one, one)
        return records

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Update the state of the current step; the states of other steps are unchanged."""
        i, step_round = self._place(t)
        after = self.steps[i].update(step_round, part_of(state, f"{i}."), released)
        same = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        return {**same, **prefixed(f"{i}.", after)}

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        return self.steps[-1].forecast(noise_std, nominal_n, self._grids[-1])

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the results of all steps; those before the last as ``NAME.RESULT``."""
        found: dict[str, Floats] = {}
        for i, (step, label) in enumerate(zip(self.steps, self._labels, strict=True)):
            found |= prefixed(label, step.results(part_of(state, f"{i}."), self._grids[i]))
        return found

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the displays of all steps, in reverse order."""
        reaching = (columns, *self._names[1:])
        shown = [
            displays_of(step, self.results_of(i, results), reaching[i])
            for i, step in enumerate(self.steps)
        ]
        return tuple(chain.from_iterable(reversed(shown)))

    def _abilities(self) -> Iterator[tuple[str, Any]]:
        """Yield the attributes of a predictor, if the last step is one, for original records."""
        last = self.steps[-1]
        if hasattr(last, "target"):
            yield "target", self.names.index(self.last_step_columns[last.target])
        if hasattr(last, "classes"):
            yield "classes", last.classes
        for name in ("probabilities", "predict"):
            if hasattr(last, name):
                yield name, partial(self._through, getattr(last, name))

    def _through(self, predict: _Predict, results: Results, records: Records) -> Floats:
        for i, step in enumerate(self._before):  # no clip: these records enter no sum
            records = step.transform(self.results_of(i, results), records)
        return predict(self.results_of(len(self.steps) - 1, results), records)

    def _check_signals(self, budget: Budget, nominal_n: int, least: float) -> None:
        """Raise PlanError for a step that would release noise alone; suggest a sufficient plan."""
        whole = [_signal(step, budget, nominal_n) for step in self.steps]
        signals = [signal * sqrt(share) for signal, share in zip(whole, self.shares, strict=True)]
        weakest = min(range(len(signals)), key=signals.__getitem__)
        if signals[weakest] >= least:
            return
        factor = least / signals[weakest]  # a signal is proportional to mu and to the records
        suggestions = [f"epsilon >= {gdp_part(budget, factor**2).epsilon:.2g}"]
        suggestions.append(f"nominal_n >= {ceil(factor * nominal_n)}")
        if self._before and whole[-1] >= least:
            suggestions.append(f"the step {self.steps[-1].name!r} alone")
        raise PlanError(
            f"budget too small for step {weakest + 1}, {self.steps[weakest].name!r}: its largest "
            f"possible sum is {signals[weakest]:.2g} times its noise, required is {least:g}; use "
            f"about {' or '.join(suggestions)}."
        )

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(step.rounds for step in self.steps))

    def _place(self, t: int) -> tuple[int, int]:
        """Return the step of a round, and the round within that step."""
        i = next(i for i, end in enumerate(self._ends) if t < end)
        return i, t - (self._ends[i] - self.steps[i].rounds)

    @cached_property
    def _grids(self) -> tuple[Grid, ...]:
        """The grid of the records that reach each step."""
        after = (grid_of(step.output, self.frac_bits) for step in self._before)
        return (Grid(self.low, self.high, self.frac_bits), *after)

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        """Prefixes of the names of each step's results."""
        names = [step.name for step in self._before]  # a repeated name gets a number
        labels = (
            f"{name}-{names[:i].count(name) + 1}." if name in names[:i] else f"{name}."
            for i, name in enumerate(names)
        )
        return (*labels, "")

    def results_of(self, i: int, results: Results) -> dict[str, Floats]:
        """Return the results of one step, without the prefix."""
        if label := self._labels[i]:
            return part_of(results, label)
        others = tuple(self._labels[:-1])  # the last step has no prefix
        return {name: value for name, value in results.items() if not name.startswith(others)}


def _check_shares(shares: tuple[float, ...], n_steps: int) -> None:
    """Raise PlanError unless there is a share for each step and their sum is at most 1."""
    if len(shares) != n_steps or sum(shares) > 1 + 1e-9:  # a sum of floats may round above 1
        raise PlanError(
            f"shares must have one entry for each of {n_steps} steps and a sum of at most 1, got "
            f"{shares}; without shares, the last step gets the rest."
        )


def _kept(task: type[Task], kept: tuple[str, ...]) -> dict[str, Any]:
    """Return the option `keep` for a step, if its task has it."""
    has = kept and any(option.name == "keep" for option in options_of(task))
    return {"keep": kept} if has else {}


def _signal(step: Task, budget: Budget, nominal_n: int) -> float:
    """Return the largest sum of equal records over its noise, with the whole budget.

    A record that reaches its L1 and its L2 bound adds ``l2_squared / l1`` to each element.
    """
    noise = gaussian_noise_multiplier(budget.epsilon, budget.delta)
    blocks = (block for t in range(step.rounds) for block in step.blocks(t))
    largest = max(sqrt(block.weight * block.l2_squared) / block.l1 for block in blocks)
    return nominal_n * largest / noise
