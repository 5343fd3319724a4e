"""Does it pay to relocate centres that noise alone explains? NICV with and without, on a grid.

    python benchmarks/relocation.py [--method fastlloyd] [--runs 6] [--out relocation.csv]

Tables are mixtures of normal clusters with the stated numbers of records, columns and clusters, in
a box that fits them and in one five times as wide. Each cell is a plan with simulated noise on
public data; printed is the median over runs of NICV with relocation over NICV without, beside what
the plan knows: how many times its noise the count of an average cluster is. The summary at the end
is the table of docs/adr/0027-relocate-where-it-pays.md.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import median

import numpy as np

from cloister.app.job import make_plan
from cloister.core.randomness import public_generator
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget, default_delta
from cloister.tasks import TASKS
from cloister.testing import rerun
from cloister_lab.metrics import nicv

SIZES, CLUSTERS, EPSILONS = (1000, 5000, 20_000), (3, 10, 30, 60), (0.1, 0.5, 1.0, 4.0)
COLUMNS, WIDTHS = (2, 8), (1.0, 5.0)
EDGES = (0, 1, 2, 4, 8, 32, np.inf)
SPREAD = 0.06


@dataclass(frozen=True)
class Cell:
    """One plan; `ratio` below 1 says that relocation helps."""

    n: int
    d: int
    k: int
    width: float
    epsilon: float
    clear: float
    relocated: float
    left: float
    ratio: float


def table(n: int, d: int, k: int, width: float, seed: int) -> np.ndarray:
    """Return a mixture in the box [-1, 1]; in a wide one, off its middle."""
    rng = public_generator(seed, "relocation", n, d, k)
    centres = rng.uniform(-0.85, 0.85, (k, d))
    points = centres[rng.integers(0, k, n)] + SPREAD * rng.normal(size=(n, d))
    return np.clip(points, -1, 1) / width + (0.3 if width > 1 else 0.0)


def cells(method: str, runs: int) -> Iterator[Cell]:
    """Run the grid."""
    for n, d, k, width, epsilon in product(SIZES, COLUMNS, CLUSTERS, WIDTHS, EPSILONS):
        found: dict[bool, list[float]] = {True: [], False: []}
        for seed in range(runs):
            columns = tuple(
                Column(name=f"x{j}", type="number", min=-1.0, max=1.0) for j in range(d)
            )
            schema = Schema(dataset="mixture", unit="row", columns=columns)
            points = table(n, d, k, width, seed)
            records = schema.grid().encode(points)
            for relocate in found:
                plan = make_plan(
                    TASKS[method],
                    schema,
                    ("silo-0",),
                    budget=Budget(epsilon, default_delta(n)),
                    nominal_n=n,
                    n_clusters=k,
                    public_seed=seed,
                    relocate_empty=relocate,
                    **({"estimate": False} if method == "fastlloyd" else {}),
                )
                rng = public_generator(seed, "noise", relocate)
                found[relocate].append(nicv(points, rerun(plan, records, rng)["centres"]))
        (block,) = plan.task.blocks(plan.rounds - 1)
        word = plan.task.payload(plan.rounds - 1).count_weight
        clear = n / k / (plan.noise_std(block) / word)
        ratios = [a / b for a, b in zip(found[True], found[False], strict=True)]
        both = median(found[True]) * width**2, median(found[False]) * width**2
        yield Cell(n, d, k, width, epsilon, clear, *both, median(ratios))


def summary(rows: list[Cell]) -> Iterator[str]:
    """Yield the median, the best and the worst ratio between two places of `clear`."""
    yield "| average count over its noise | box | cells | median | best | worst |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for (low, high), width in product(pairwise(EDGES), WIDTHS):
        ratios = [row.ratio for row in rows if low <= row.clear < high and row.width == width]
        box = "fits" if width == 1 else f"{width:g} times as wide"
        numbers = f"{median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f}"
        yield f"| {low:g} to {high:g} | {box} | {len(ratios)} | {numbers} |"


def main() -> None:
    """Print a row for each cell as it comes, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="fastlloyd", choices=("fastlloyd", "glloyd", "sulloyd"))
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for cell in cells(args.method, args.runs):
        rows.append(cell)
        print(*(f"{value:.4g}" for value in asdict(cell).values()), flush=True)
    print(*summary(rows), sep="\n")
    if args.out:
        with args.out.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, asdict(rows[0]))
            writer.writeheader()
            writer.writerows(map(asdict, rows))


if __name__ == "__main__":
    main()
