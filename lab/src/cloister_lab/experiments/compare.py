"""``cloister compare``: methods x epsilons x data sets x repeats, with real masks and real noise.

Every run is a whole job: plan, masked vectors of several silos, exact discrete noise from the
operating system. Only the metrics look at the data, so whatever comes out of here is stamped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from cloister.cli.output import Output
from cloister.core.display import Table
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.datasets import Convention, Dataset, load, title
from cloister_lab.experiments.figures import draw_nicv
from cloister_lab.experiments.records import STAMP, MeanOf, Means, TidyRow
from cloister_lab.experiments.reference import Verdict, check_means
from cloister_lab.experiments.run import run_units, units_of
from cloister_lab.experiments.sweep import (
    METHODS,
    METRICS,
    TASKS,
    areas,
    plan_of,
    run_source,
    takes_epsilon,
)

QUICK_METRICS = tuple(name for name in METRICS if name not in ("silhouette", "dunn"))
"""Metrics whose time does not grow with the square of the number of records."""

AREA = "nicv_area"
PAPER_NOTE = (
    "Preset fastlloyd-paper: bounds, number of records and delta are read from the data, as in "
    "the papers. For comparison with published figures only: on private data no guarantee would "
    "hold."
)
_CELL = ("dataset", "method", "epsilon")
_SIDE_BY_SIDE = 7  # methods in one table on the screen
_T = TypeVar("_T")


def compare(
    datasets: Sequence[Dataset],
    methods: Sequence[str],
    epsilons: Sequence[float],
    runs: Path,
    *,
    repeats: int = 10,
    repeats_for: Mapping[str, int] | None = None,
    silos: int = 2,
    metrics: Collection[str] = QUICK_METRICS,
    jobs: int = 1,
    quiet: bool = True,
) -> list[TidyRow]:
    """Run every method at every epsilon on every data set, several times.

    A method that is not private runs once a repeat, with epsilon infinity. Records are dealt to
    silos of equal size, anew in each repeat. A `PlanError` is raised before the first run.

    Parameters
    ----------
    methods : sequence of str
        Of `TASKS`.
    runs : Path
        A CSV. Runs that it has are not made again; others are added as each ends.
    repeats_for : mapping of str to int, optional
        Another number for some data sets.
    metrics : collection of str
        Of `METRICS`; NICV is always among them.

    Returns
    -------
    list of mapping
        A row for each run asked for, in the order of the arguments.
    """
    counts = {data.name: (repeats_for or {}).get(data.name, repeats) for data in datasets}
    _check(datasets, methods, epsilons, silos, metrics, counts)
    units = [
        replace(unit, key=f"{_about(data)} {unit.key}")
        for data in datasets
        for method in methods
        for unit in units_of(
            run_source,
            source=[data],
            method=[method],
            epsilons=[(epsilon,) for epsilon in _epsilons_of(method, epsilons)],
            repeat=range(counts[data.name]),
            metrics=[tuple(sorted(metrics))],
            silos=[silos],
        )
    ]
    return run_units(units, runs, jobs=jobs, quiet=quiet)


def _about(data: Dataset) -> str:
    """Return all public numbers of a table."""
    digest = data.schema.digest()[:16]
    return f"{data.name} {digest} {data.convention} k={data.n_clusters} n={data.nominal_n}"


def _epsilons_of(method: str, epsilons: Sequence[float]) -> Iterable[float]:
    """Return the epsilons at which a method runs: one for a method that has none."""
    return dict.fromkeys(epsilons) if takes_epsilon(method) else (math.inf,)


def _check(
    datasets: Sequence[Dataset],
    methods: Sequence[str],
    epsilons: Sequence[float],
    silos: int,
    metrics: Collection[str],
    repeats: Mapping[str, int],
) -> None:
    """Find mistakes before anything runs; every plan is written once."""
    if len(repeats) != len(datasets):
        raise PlanError("data sets must have different names; rename a file.")
    if unknown := [name for name in metrics if name not in METRICS]:
        raise PlanError(f"metrics must be among {list(METRICS)}, got {unknown[0]!r}.")
    if few := [name for name, count in repeats.items() if count < 1]:
        raise PlanError(f"repeats of {few[0]!r} must be >= 1, got {repeats[few[0]]}.")
    if unknown := [name for name in methods if name not in TASKS]:
        raise PlanError(f"methods must be among {list(TASKS)}, got {unknown[0]!r}.")
    for data in datasets:
        for method in methods:
            for epsilon in _epsilons_of(method, epsilons):
                plan_of(data, method, epsilon, 0, silos)
        if {"centroid_mse", "cost_gap"} & set(metrics):
            _ = data.reference_nicv  # computed once, here, and sent to the processes


def summarise(rows: Sequence[TidyRow]) -> list[TidyRow]:
    """Return every metric's mean over the repeats of each cell, and NICV's area over epsilon.

    Returns
    -------
    list of mapping
        With ``runs``, ``mean``, ``sem``, ``low`` and ``high`` (the 95 % confidence interval; empty
        for one run). The area has no epsilon.
    """
    long: list[TidyRow] = [
        {**{name: row[name] for name in _CELL}, "metric": metric, "value": row[metric]}
        for row in rows
        for metric in METRICS
    ]
    long += [{**row, "metric": AREA, "value": row["area"]} for row in areas(rows)]
    means = tidy.means_of(long, (*_CELL, "metric"), "value")
    return [
        {
            **dict(zip((*_CELL, "metric"), key, strict=True)),
            "runs": of.runs,
            "mean": of.mean,
            "sem": None if math.isnan(of.error) else of.error,
            "low": None if of.half_or_none is None else of.mean - of.half,
            "high": None if of.half_or_none is None else of.mean + of.half,
            "stamp": STAMP,
        }
        for key, of in means.items()
    ]


# --- Command line ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``cloister compare``."""
    parser.description = f"Compare methods on public data ({STAMP})."
    add = parser.add_argument
    add(
        "--methods",
        type=_names,
        default=list(METHODS),
        help=f"of {','.join(TASKS)}; by default {','.join(METHODS)}",
    )
    add("--epsilons", type=_numbers, required=True, metavar="E,E,...")
    add(
        "--datasets",
        type=_names,
        default=["iris", "wine"],
        metavar="NAME,...",
        help="iris, wine, wdbc, digits, names of tables in --data-dir, or paths of CSV or Parquet",
    )
    add("--data-dir", type=Path, help="folder of NAME.csv.gz, NAME.csv or NAME.parquet")
    add("--k-for", type=_pairs(int), default={}, metavar="NAME=K,...", help="number of clusters")
    add("--schema-for", type=_pairs(Path), default={}, metavar="NAME=FILE,...")
    add("--nominal-n-for", type=_pairs(int), default={}, metavar="NAME=N,...")
    add("--repeats", type=int, default=10)
    add("--repeats-for", type=_pairs(int), default={}, metavar="NAME=R,...")
    add("--silos", type=int, default=2)
    add("--metrics", type=_names, default=list(QUICK_METRICS), help="of " + ",".join(METRICS))
    add("--jobs", type=int, default=1, help="processes, each with one thread")
    add("--out", type=Path, required=True, help="folder; a repeated call goes on where it stopped")
    add(
        "--preset",
        choices=[name for name in get_args(Convention) if name != "public"],
        help="the papers' conventions, for comparison with published figures only",
    )
    add(
        "--check-reference",
        action="store_true",
        help="compare with the published figures; exit code 1 if a bar is missed",
    )


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Run ``cloister compare``.

    Raises
    ------
    CloisterError
        For mistakes in the options, before the first run.
    """
    if args.check_reference and not args.preset:
        raise PlanError("check_reference needs the papers' conventions; add --preset.")
    datasets = _load_all(args)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = compare(
        datasets,
        args.methods,
        args.epsilons,
        args.out / "runs.csv",
        repeats=args.repeats,
        repeats_for=args.repeats_for,
        silos=args.silos,
        metrics=args.metrics,
        jobs=args.jobs,
        quiet=args.quiet or args.json,
    )
    means = summarise(rows)
    tidy.write_table(args.out / "summary.csv", means)
    draw_nicv(tidy.cells_of(rows, _CELL, "nicv"), args.out)
    nicv = tidy.means_of(rows, _CELL, "nicv")
    verdict = check_means(nicv) if args.check_reference else None
    out.code = 0 if verdict is None or verdict.holds else 1
    return _show(out, args, means, nicv | tidy.means_of(areas(rows), _CELL, "area"), verdict)


def _load_all(args: argparse.Namespace) -> list[Dataset]:
    """Load every table with its public numbers."""
    per_name = {
        "n_clusters": args.k_for,
        "nominal_n": args.nominal_n_for,
        "schema": {name: Schema.load(path) for name, path in args.schema_for.items()},
    }
    titles = [title(name) for name in args.datasets]
    for option, given in {**per_name, "repeats": args.repeats_for}.items():
        if unknown := sorted(given.keys() - set(titles)):
            raise PlanError(
                f"{option} is given for {unknown[0]!r}, which is not among the data sets {titles}."
            )
    return [
        load(
            name,
            convention=args.preset or "public",
            data_dir=args.data_dir,
            **{option: given.get(key) for option, given in per_name.items()},
        )
        for key, name in zip(titles, args.datasets, strict=True)
    ]


def _show(
    out: Output,
    args: argparse.Namespace,
    means: Sequence[TidyRow],
    nicv: Means,
    verdict: Verdict | None,
) -> dict[str, Any]:
    """Write NICV by data set, epsilon and method, and what the bars say of it; return all of it."""
    document: dict[str, Any] = {"stamp": STAMP, "out": str(args.out), "means": means}
    if args.preset:
        out.say(PAPER_NOTE)
        document["preset"] = PAPER_NOTE
    methods = list(dict.fromkeys(str(key[1]) for key in nicv))
    for first in range(0, len(methods), _SIDE_BY_SIDE):
        shown = methods[first : first + _SIDE_BY_SIDE]
        rows = _rows(nicv, shown)
        out.table(Table(f"NICV, mean ± 95 % ({STAMP})", ("data set", "ε", *shown), rows))
    if verdict:
        _show_verdict(out, verdict)
        document["reference"] = asdict(verdict) | {"holds": verdict.holds}
    out.say(f"Runs, summary and figures are in {args.out}; {STAMP}.")
    return document


def _rows(nicv: Means, methods: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return a row for each data set and epsilon; the area, whose epsilon is None, comes last."""
    places = sorted(
        dict.fromkeys((str(dataset), epsilon) for dataset, _, epsilon in nicv),
        key=lambda place: (place[0], place[1] is None, float(place[1] or 0)),
    )
    return tuple(
        (
            dataset,
            "area" if epsilon is None else f"{epsilon:g}",
            *(_interval(nicv.get((dataset, method, epsilon))) for method in methods),
        )
        for dataset, epsilon in places
    )


def _interval(mean: MeanOf | None) -> str:
    if mean is None:
        return ""
    return f"{mean.mean:.4g}" + ("" if math.isnan(mean.half) else f" ± {mean.half:.2g}")


def _show_verdict(out: Output, verdict: Verdict) -> None:
    """Write the ratios to the published figures and the bars."""
    rows = tuple(
        (
            *(cell.dataset, f"{cell.epsilon:g}", f"{cell.ours:.4g} ± {cell.sem:.2g}"),
            *(f"{cell.published:.4g}", f"{cell.ratio:.3f}", cell.verdict),
        )
        for cell in verdict.cells
    )
    headings = ("data set", "ε", "ours", "published", "ratio", "")
    out.table(Table("FastLloyd's NICV over that of the published code", headings, rows))
    for bar in verdict.bars:
        if bar.holds:
            out.say(f"holds   {bar.text}")
        else:
            out.warn(f"MISSED  {bar.text}")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[float]:
    return [float(part) for part in _names(text)]


def _pairs(kind: Callable[[str], _T]) -> Callable[[str], dict[str, _T]]:
    """Return an argument type for ``NAME=VALUE,...``."""

    def parse(text: str) -> dict[str, _T]:
        parts = [part.partition("=") for part in _names(text)]
        return {name.strip(): kind(value.strip()) for name, _, value in parts}

    parse.__name__ = "NAME=VALUE list"
    return parse
