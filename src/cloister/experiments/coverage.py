"""How often the noise intervals of released centres and sizes hold what they say they hold.

The target of an interval is the value the same statistic would have had without noise, given the
public state it was asked with. So each run is made as usual, and in each round the task is also
shown the exact sum with a noise of zero: both ends of its interval are then the target. Exact sums
never leave this process, and only shares of hits are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from cloister.errors import PlanError
from cloister.experiments.datasets import Dataset
from cloister.experiments.records import STAMP
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.jobs import make_plan
from cloister.privacy.budget import Budget
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.tasks.base import GridState, Integers, Records, Released, State, Task

NOMINAL = 0.95
_QUIET = 1e-6  # of a step: so little noise that both ends of an interval are its target
_ROUNDED = 2  # grid steps that rounding may put between them
ALLOWED = (0.93, 0.97)
METHODS = ("glloyd", "fastlloyd")
"""Private methods with Gaussian sums that are measured unless others are named."""

DATASETS = ("s1", "adult", "g2mg_8_30", "yeast", "birch2")


@dataclass(frozen=True)
class Coverage:
    """Hits of the intervals of one method on one data set, pooled over runs.

    Parameters
    ----------
    dataset, method : str
    epsilon : float
    runs : int
    centre_hits, centre_trials : int
        Over runs, centres and columns; a centre whose exact cluster was empty has no target.
    size_hits, size_trials : int
        Over runs and centres.
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
        """Whether both shares are as near to the nominal 95 % as is asked."""
        return all(ALLOWED[0] <= share <= ALLOWED[1] for share in (self.centres, self.sizes))


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

    Parameters
    ----------
    data : Dataset
    task : type
        With ``centres``, ``low``, ``high``, ``sizes`` and ``size_half_width`` in its state.
    epsilon : float, > 0
    runs : int, >= 1
    noise : NoiseSource, optional
        From the operating system unless a test gives another.
    first_seed : int
        Run `i` starts from the public seed ``first_seed + i``.

    Returns
    -------
    Coverage
    """
    source = noise or DiscreteNoise()
    tallies = [
        _tally(_plan(data, task, epsilon, first_seed + run), data.records, source)
        for run in range(runs)
    ]
    return Coverage(data.name, task.name, epsilon, runs, *(map(sum, zip(*tallies, strict=True))))


def _plan(data: Dataset, task: type[Task], epsilon: float, seed: int) -> Plan:
    return make_plan(
        task,
        data.schema,
        ("silo-0",),
        budget=Budget(epsilon, data.delta),
        nominal_n=data.nominal_n,
        n_clusters=data.n_clusters,
        public_seed=seed,
    )


def _tally(plan: Plan, records: Records, noise: NoiseSource) -> tuple[int, ...]:
    """Return the numbers of :class:`Coverage` for one run."""
    state, exact = _last_interval(plan, records, noise)
    low, high = state["low"], state["high"]
    known = (exact["high"] - exact["low"] <= _ROUNDED).all(axis=1)  # an empty cluster: the box
    target = (exact["low"] + exact["high"]) // 2
    hits = ((low <= target) & (target <= high))[known]
    inside = ((low <= state["centres"]) & (state["centres"] <= high))[known]
    size_hits = np.abs(state["sizes"] - exact["sizes"]) <= state["size_half_width"]
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
            quiet[block.name] = Released(values.reshape(block.shape), _QUIET)
            drawn = noise.draw(law, plan.noise_scale(block), block.size)
            noised = (values + drawn).reshape(block.shape)
            noisy[block.name] = Released(noised, plan.noise_std(block))
        after = _on_grid(plan, task.update(t, state, noisy))
        if "low" in after and not (  # a round may leave the intervals of an earlier one
            "low" in state
            and np.array_equal(after["low"], state["low"])
            and np.array_equal(after["high"], state["high"])
        ):
            exact = _on_grid(plan, task.update(t, state, quiet))
        state = after
    return state, exact


def _on_grid(plan: Plan, state: State) -> GridState:
    return {name: round_to_grid(value, plan.task.frac_bits) for name, value in state.items()}


def pooled(cells: Iterable[Coverage]) -> Iterator[Coverage]:
    """Add up the cells of each method over its data sets."""
    by_method: dict[str, list[Coverage]] = {}
    for cell in cells:
        by_method.setdefault(cell.method, []).append(cell)
    for method, group in by_method.items():
        names = (
            *("runs", "centre_hits", "centre_trials", "size_hits", "size_trials"),
            *("centre_inside", "empty"),
        )
        sums = {name: sum(getattr(cell, name) for cell in group) for name in names}
        yield Coverage("all", method, group[0].epsilon, **sums)


def as_markdown(cells: Sequence[Coverage], command: str) -> str:
    """Return the page of results: a row per method and data set, and one for each method."""
    rows = [_row(cell) for cell in (*cells, *pooled(cells))]
    verdict = (
        "Every method is inside."
        if all(cell.holds for cell in pooled(cells))
        else "Not every method is inside."
    )
    return "\n".join(
        (
            "# Do the intervals hold what they say",
            "",
            f"Made by `{command}`; {STAMP}.",
            "",
            "Each released centre and size has a 95 % interval of its noise. Its target is the "
            "value the same statistic would have had without noise, given the released state it "
            "was asked with, before the centre was shrunk, shortened or folded. The table counts "
            "how often the target was inside, over all runs, centres and columns. Asked are "
            f"{ALLOWED[0]:.0%} to {ALLOWED[1]:.0%} over all data sets. {verdict}",
            "",
            "| method | data set | epsilon | runs | centres | sizes | centre in its own interval | "
            "no target |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            "± is two standard errors, as if all intervals were independent. *No target* counts "
            "centres that no record was near to: their mean without noise does not exist. *Centre "
            "in its own interval* is below 100 % where a centre was shrunk or brought back into "
            "the box: it is drawn with the interval of what was measured. Where the set of means "
            "that fit has two pieces, because a count is near its noise, the gap between them is "
            "shown as well, so that there the share is above 95 %.",
            "",
        )
    )


def _row(cell: Coverage) -> str:
    """Return one row of the table."""
    name = f"**{cell.method}**" if cell.dataset == "all" else cell.method

    def share(hits: int, trials: int) -> str:
        part = hits / max(1, trials)
        return f"{part:.2%} ± {2 * sqrt(part * (1 - part) / max(1, trials)):.2%}"

    return (
        f"| {name} | {cell.dataset} | {cell.epsilon:g} | {cell.runs:,} | "
        f"{share(cell.centre_hits, cell.centre_trials)} | "
        f"{share(cell.size_hits, cell.size_trials)} | "
        f"{cell.centre_inside / max(1, cell.centre_trials):.1%} | {cell.empty:,} |"
    )
