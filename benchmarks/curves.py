"""How the cost of a step grows with records, columns, clusters and silos, and where it bends.

    python benchmarks/curves.py [--quick] [--out FILE] [--picture FILE]

prints a table and, unless ``--quick``, writes `curves.json` and `docs/img/curves.svg`. A point is
the least of several times of the processor, in one thread. No point is extrapolated: more records
than a block are the same block again, as chunks of a table larger than the caches are.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))  # where another script imports this one

from run import machine

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.data import read_source
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.clustering.lloyd_kernel import sum_near_centres

HERE = Path(__file__).parent
ONE = 1 << 16
BLOCK_CELLS = 1 << 23  # 32 MiB of records: beyond the caches of most machines
LONGEST = 2.0  # seconds after which a point is not repeated
FLAT = 1.5  # times the least cost of a unit: beyond, a curve has bent


@dataclass(frozen=True)
class Curve:
    """Seconds by a number; ``cost`` is of a unit: a record, a cell, a distance, a silo."""

    name: str
    fixed: str  # what stays the same
    axis: str
    unit: str
    numbers: tuple[int, ...]
    seconds: tuple[float, ...]
    units: tuple[float, ...]  # how many a point has

    @property
    def costs(self) -> tuple[float, ...]:
        """Nanoseconds for a unit."""
        return tuple(1e9 * s / n for s, n in zip(self.seconds, self.units, strict=True))

    @property
    def flat(self) -> tuple[int, int]:
        """The first and the last number whose cost of a unit is near the least."""
        least = min(self.costs)
        near = [x for x, cost in zip(self.numbers, self.costs, strict=True) if cost <= FLAT * least]
        return near[0], near[-1]


def step(n: int, d: int, k: int) -> float:
    """Return the seconds of a step of Lloyd's algorithm over `n` records."""
    rows = min(n, max(1, BLOCK_CELLS // d))
    rng = np.random.default_rng(d * k)
    block = rng.integers(-ONE, ONE + 1, (rows, d), dtype=np.int32)
    centres = rng.integers(-ONE, ONE + 1, (k, d))
    options = {"radius_squared": 1 << 62, "relative": True, "count_weight": 1, "one": ONE}

    def whole() -> None:
        for start in range(0, n, rows):
            sum_near_centres(block[: n - start], centres, **options)

    return least(whole)


def least(call: Callable[[], None]) -> float:
    """Return the least of five times, of one if that took long."""
    times: list[float] = []
    while len(times) < 5 and sum(times) < LONGEST:
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return min(times)


def federation(silos: int, profile: str) -> float:
    """Return the seconds of a round of silos that are all in this process, 100 records each."""
    columns = [Column(name=name, type="number", min=-1, max=1) for name in "ab"]
    schema = Schema(dataset="curve", unit="row", columns=columns)
    names = [f"silo-{i}" for i in range(silos)]
    about: dict[str, Any] = {"budget": Budget(1.0, 1e-6), "nominal_n": 100 * silos}
    plan = make_plan(
        FastLloyd, schema, names, **about, n_clusters=5, rounds=2, profile=profile, estimate=False
    )
    table = np.random.default_rng(0).uniform(-1, 1, (100, 2))
    times = [time.process_time()]
    run_plan(
        plan,
        {name: read_source(table, schema) for name in names},
        on_round=lambda _: times.append(time.process_time()),
    )
    return times[2] - times[1]  # in the first, all agree on keys


def powers(first: int, last: int, factor: int = 10) -> tuple[int, ...]:
    """Return a number and its multiples by a factor."""
    return (first,) if first * factor > last else (first, *powers(first * factor, last, factor))


def curves(quick: bool) -> Iterator[Curve]:
    """Measure all."""
    numbers = powers(1000, 10**5 if quick else 10**9)
    yield curve("records", "d = 8, k = 10", "record", numbers, lambda n: (step(n, 8, 10), n))
    for k in (10, 100):
        numbers = powers(1, 64 if quick else 4096, 4)

        def cells(d: int, k: int = k) -> tuple[float, float]:
            n = max(1, BLOCK_CELLS // d // (8 if quick else 1))
            return step(n, d, k), n * d

        yield curve("columns", f"k = {k}", "cell of a record", numbers, cells)
    for d in (2, 8):
        numbers = (1, 3, *powers(10, 100 if quick else 10**4), *(() if quick else (3000,)))

        def distances(k: int, d: int = d) -> tuple[float, float]:
            n = min(10**6, 2 * 10**9 // k) // (100 if quick else 1)
            return step(n, d, k), n * k

        yield curve("clusters", f"d = {d}", "record and cluster", tuple(sorted(numbers)), distances)
    for profile, most in (("group", 1000), ("pairwise", 100)):
        numbers = tuple(n for n in (3, 10, 30, 100, 300, 1000) if n <= (10 if quick else most))
        yield curve(
            "silos",
            f"{profile} masks",
            "silo",
            numbers,
            lambda silos, profile=profile: (federation(silos, profile), silos),
        )


def curve(
    axis: str,
    fixed: str,
    unit: str,
    numbers: tuple[int, ...],
    measure: Callable[[int], tuple[float, float]],
) -> Curve:
    """Measure one."""
    seconds, units = zip(*map(measure, numbers), strict=True)
    return Curve(f"{axis}, {fixed}", fixed, axis, unit, numbers, seconds, units)


def draw(found: Sequence[Curve], path: Path) -> None:
    """Draw the cost of a unit: where a curve is level, the whole grows in proportion."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    axes = dict(zip(dict.fromkeys(c.axis for c in found), figure.subplots(2, 2).flat, strict=True))
    for one in found:
        place = axes[one.axis]
        place.plot(one.numbers, one.costs, "o-", label=one.fixed)
        place.set(xscale="log", yscale="log", xlabel=one.axis, ylabel=f"ns for a {one.unit}")
        place.legend()
    figure.suptitle(f"Processor time: {machine()}")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small numbers; nothing is written")
    parser.add_argument("--out", type=Path, help="write the document here")
    parser.add_argument("--picture", type=Path, help="draw here")
    args = parser.parse_args()
    found = []
    with threadpool_limits(1):
        for one in curves(args.quick):
            found.append(one)
            for number, seconds, cost in zip(one.numbers, one.seconds, one.costs, strict=True):
                print(f"{one.name:28} {number:>13,} {seconds:10.4g} s {cost:12.4g} ns/{one.unit}")
    rows = [
        {
            "what": one.name,
            "unit": one.unit,
            "least": min(one.costs),
            "flat": one.flat,
            "numbers": one.numbers,
            "seconds": one.seconds,
        }
        for one in found
    ]
    packages = ("cloister", "numpy")
    document = {
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "results": rows,
    }
    if out := args.out or (None if args.quick else HERE / "curves.json"):
        out.write_text(json.dumps(document, indent=1) + "\n")
    if picture := args.picture or (
        None if args.quick else HERE.parent / "docs" / "img" / "curves.svg"
    ):
        draw(found, picture)


if __name__ == "__main__":
    main()
