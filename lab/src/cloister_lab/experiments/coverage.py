"""How often the noise intervals of released centres and sizes hold what they say they hold.

The target of an interval is the value the same statistic would have had without noise, given the
public state it was asked with. So each run is made as usual, and in each round the task is also
shown the exact sum with a noise of zero: both ends of its interval are then the target. Exact sums
never leave this process, and only shares of hits are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import sqrt
from pathlib import Path

import numpy as np

from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.task import GridState, Integers, NoisyBlock, Records, State, Task
from cloister_lab.experiments.datasets import Dataset
from cloister_lab.experiments.records import STAMP, Cell, TidyRow, prose, write_page
from cloister_lab.experiments.run import Settings, Unit, command_of, units_of
from cloister_lab.experiments.sweep import TASKS, Named, loaded, plan_for, tables
from cloister_lab.tasks.lsh_tree import LSHTree
from cloister_lab.tasks.one_round import OneRound

ALLOWED = (0.93, 0.97)
"""What the coverage of intervals of nominal 95 % must lie between, over all data sets."""

METHODS = (
    *("glloyd", "fastlloyd", "dpem", "feddp-init"),
    *("kmeans-guarantee-dp", "subcluster-dp", "lshtree", "balcan", "maxcover-histogram"),
    "one-round",
)
"""Private methods with Gaussian sums, but for `auto`: see :mod:`.verdicts`."""

_DATASETS = ("s1", "g2mg_8_30", "yeast", "adult")
_SMALL = ("iris", "wine")
_EPSILON = 1.0
_RUNS, _SMALL_RUNS, _BLOCK = 1000, 20, 50
_QUIET = 1e-6  # of a step: so little noise that both ends of an interval are its target
_ROUNDED = 2  # grid steps that rounding may put between them


@dataclass(frozen=True)
class Coverage:
    """Hits of the intervals of one method on one data set, pooled over runs.

    Parameters
    ----------
    centre_hits, centre_trials : int
        Over runs, centres and columns; a centre whose exact cluster was empty has no target.
    size_hits, size_trials : int
        Over runs and centres; that nothing was given to a centre is known without an interval.
    centre_inside : int
        How many released coordinates, shrunk or folded as they may be, lie in their interval.
    empty : int
        Centres without a target.
    """

    dataset: str
    method: str
    epsilon: float
    runs: int
    centre_hits: int
    centre_trials: int
    size_hits: int
    size_trials: int
    centre_inside: int
    empty: int

    @property
    def centres(self) -> float:
        """Share of coordinates of centres whose interval holds its target."""
        return self.centre_hits / max(1, self.centre_trials)

    @property
    def sizes(self) -> float:
        """Share of sizes whose interval holds the exact size."""
        return self.size_hits / max(1, self.size_trials)

    @property
    def holds(self) -> bool:
        """Whether both shares may be as near to the nominal 95 % as is asked, so many runs."""
        low, high = ALLOWED
        shares = ((self.centres, self.centre_trials), (self.sizes, self.size_trials))
        return all(
            low - error <= share <= high + error
            for share, trials in shares
            for error in [_two_errors(share, trials)]
        )


def measure(
    data: Dataset,
    task: type[Task],
    epsilon: float,
    *,
    runs: int,
    noise: NoiseSource | None = None,
    first_seed: int = 0,
) -> Coverage:
    """Run a task many times, each from its own public start, and count the hits.

    Its state has ``centres``, ``low``, ``high``, ``sizes`` and ``size_half_width``. Run `i` starts
    from the public seed ``first_seed + i``. The noise is from the operating system unless a test
    gives another.
    """
    source, budget = noise or DiscreteNoise(), Budget(epsilon, data.delta)
    tallies = []
    for seed in range(first_seed, first_seed + runs):
        plan = plan_for(task, data, budget, seed, 1, n_clusters=data.n_clusters)
        tallies.append(_tally(plan, data.records, source))
    return Coverage(data.name, task.name, epsilon, runs, *(map(sum, zip(*tallies, strict=True))))


def _tally(plan: Plan, records: Records, noise: NoiseSource) -> tuple[int, ...]:
    """Return the numbers of :class:`Coverage` for one run."""
    state, exact = _last_interval(plan, records, noise)
    low, high = state["low"], state["high"]
    known = (exact["high"] - exact["low"] <= _ROUNDED).all(axis=1)  # an empty cluster: the box
    target = (exact["low"] + exact["high"]) // 2
    hits = ((low <= target) & (target <= high))[known]
    inside = ((low <= state["centres"]) & (state["centres"] <= high))[known]
    asked = state["size_half_width"] > 0
    size_hits = (np.abs(state["sizes"] - exact["sizes"]) <= state["size_half_width"])[asked]
    sums = (hits.sum(), hits.size, size_hits.sum(), size_hits.size, inside.sum(), (~known).sum())
    return tuple(map(int, sums))


def _last_interval(plan: Plan, records: Records, noise: NoiseSource) -> tuple[GridState, GridState]:
    """Return the last state, and what it would be without the noise that set its intervals."""
    task, law = plan.task, plan.task.mechanism
    if law == "none":
        raise PlanError(f"task {task.name!r} adds no noise, so it has no intervals; leave it out.")
    state = _on_grid(plan, task.start())
    exact = state
    for t in range(task.rounds):
        blocks = task.blocks(t)
        summed = task.contribute(t, state, records)
        quiet, noisy = {}, {}
        start = 0
        for block in blocks:
            values: Integers = summed[start : start + block.size]
            start += block.size
            quiet[block.name] = NoisyBlock(values.reshape(block.shape), _QUIET)
            drawn = noise.draw(law, plan.noise_scale(block), block.size)
            noised = (values + drawn).reshape(block.shape)
            noisy[block.name] = NoisyBlock(noised, plan.noise_std(block))
        after = _on_grid(plan, task.update(t, state, noisy))
        if "low" in after and not (  # a round may leave the intervals of an earlier one
            "low" in state
            and np.array_equal(after["low"], state["low"])
            and np.array_equal(after["high"], state["high"])
        ):
            exact = _on_grid(plan, task.update(t, state, quiet))
            if isinstance(task, LSHTree):  # of the leaves that noisy means put together
                _, groups = task.group(state["leaves"], noisy["sums"])
                exact = _on_grid(plan, task.measure(groups, quiet["sums"]))
            elif isinstance(task, OneRound):  # of the cubes that noisy counts put together
                parts = task.group(noisy["counts"])
                exact = _on_grid(plan, task.measure(state, parts, quiet))
        state = after
    return state, exact


def _on_grid(plan: Plan, state: State) -> GridState:
    return {name: round_to_grid(value, plan.task.frac_bits) for name, value in state.items()}


def pooled(cells: Iterable[Coverage], *, over_datasets: bool = False) -> Iterator[Coverage]:
    """Add up the cells of each method and data set, or of each method over its data sets."""
    groups: dict[tuple[str, str, float], list[Coverage]] = {}
    for cell in cells:
        dataset = "all" if over_datasets else cell.dataset
        groups.setdefault((dataset, cell.method, cell.epsilon), []).append(cell)
    for key, group in groups.items():
        yield Coverage(*key, **{n: sum(getattr(cell, n) for cell in group) for n in _TALLIES})


_KEYS = ("dataset", "method", "epsilon")
_TALLIES = tuple(f.name for f in fields(Coverage) if f.name not in _KEYS)


# --- The experiment -------------------------------------------------------------------------------


def units(settings: Settings) -> list[Unit]:
    """Return blocks of runs of every method on every table."""
    runs = settings.runs(_RUNS, _SMALL_RUNS)
    return [
        unit
        for table in tables(_DATASETS if settings.full else _SMALL, settings)
        for method in METHODS
        for first in range(0, runs, _BLOCK)
        for unit in units_of(
            _block,
            table=[table],
            method=[method],
            first=[first],
            runs=[min(_BLOCK, runs - first)],
        )
    ]


def _block(table: Named, method: str, first: int, runs: int) -> list[TidyRow]:
    """Return the tally of some runs."""
    cell = measure(loaded(table), TASKS[method], _EPSILON, runs=runs, first_seed=first)
    return [asdict(cell)]


# --- What is shown --------------------------------------------------------------------------------


def figures(rows: Sequence[TidyRow], folder: Path) -> list[Path]:
    """Write what the rows show."""
    cells = [Coverage(**{name: row[name] for name in (*_KEYS, *_TALLIES)}) for row in rows]  # type: ignore[arg-type]  # as written by asdict
    cells.sort(key=lambda cell: METHODS.index(cell.method))
    text = as_markdown(cells, command_of("coverage", folder))
    return [write_page(folder / "coverage.md", [text], stamped=False)]


def as_markdown(cells: Sequence[Coverage], command: str) -> str:
    """Return the page of results: a row per method and data set, and one for each method."""
    totals = list(pooled(cells, over_datasets=True))
    inside = "Every method is" if all(cell.holds for cell in totals) else "Not every method is"
    low, high = ALLOWED
    rows = map(_row, (*pooled(cells), *totals))
    return "\n".join(
        prose(
            *("coverage", rows),
            command=command,
            stamp=STAMP,
            allowed_0=low,
            allowed_1=high,
            verdict=f"{inside} inside.",
        )
    )


def _row(cell: Coverage) -> Cell:
    return {
        **asdict(cell),
        "name": f"**{cell.method}**" if cell.dataset == "all" else cell.method,
        "centres": cell.centres,
        "centres_error": _two_errors(cell.centres, cell.centre_trials),
        "sizes": cell.sizes,
        "sizes_error": _two_errors(cell.sizes, cell.size_trials),
        "inside": cell.centre_inside / max(1, cell.centre_trials),
    }


def _two_errors(share: float, trials: int) -> float:
    """Return two standard errors of a share."""
    return 2 * sqrt(share * (1 - share) / max(1, trials))
