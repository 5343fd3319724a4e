"""``cloister compare``: methods x epsilons x data sets x repeats, with real masks and real noise.

Every run is a whole job: plan, masked vectors of several silos, exact discrete noise from the
operating system. Only the metrics look at the data, so whatever comes out of here is stamped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from cloister.errors import PlanError
from cloister.jobs import make_plan, run_plan
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.randomness import public_generator
from cloister.schema import Schema
from cloister.task import Floats, Task
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd
from cloister_lab import metrics as measures
from cloister_lab.experiments.datasets import Convention, Dataset, load, title
from cloister_lab.experiments.figures import draw_nicv
from cloister_lab.experiments.pool import progress_bar, run_all
from cloister_lab.experiments.records import (
    AREA,
    METRICS,
    STAMP,
    Cell,
    Mean,
    Row,
    append_rows,
    commit,
    load_rows,
    machine_kind,
    summarise,
    write_means,
)
from cloister_lab.experiments.reference import Verdict, check_means
from cloister_lab.tasks.balcan import Balcan
from cloister_lab.tasks.dp_em import DPEM
from cloister_lab.tasks.feddp_init import FedDPInit
from cloister_lab.tasks.grid_synopsis import EUGkM, Hybrid
from cloister_lab.tasks.lsh_tree import LSHTree
from cloister_lab.tasks.max_cover import MaxCoverHistogram
from cloister_lab.tasks.subcluster import KMeansGuaranteeDP, SubClusterDP

METHODS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Lloyd,
        SuLloyd,
        GLloyd,
        FastLloyd,
        Auto,
        EUGkM,
        Hybrid,
        LSHTree,
        FedDPInit,
        DPEM,
        Balcan,
        MaxCoverHistogram,
        KMeansGuaranteeDP,
        SubClusterDP,
    )
}
"""What can be compared, by name."""

USUAL_METHODS = (Lloyd.name, SuLloyd.name, GLloyd.name, FastLloyd.name, Auto.name)
"""What is compared unless others are asked for; they run on tables of any width."""

QUICK_METRICS = tuple(name for name in METRICS if name not in ("silhouette", "dunn"))
"""Metrics whose time does not grow with the square of the number of records."""

PAPER_NOTE = (
    "Preset fastlloyd-paper: bounds, number of records and delta are read from the data, as in "
    "the papers. For comparison with published figures only: on private data no guarantee would "
    "hold."
)
_PAPER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    SuLloyd.name: {"post": "none"},
    GLloyd.name: {"post": "none"},
}
_SILHOUETTE_SAMPLE = 2000
_T = TypeVar("_T")


def compare(
    datasets: Sequence[Dataset],
    methods: Sequence[str],
    epsilons: Sequence[float],
    *,
    repeats: int = 10,
    repeats_for: Mapping[str, int] | None = None,
    silos: int = 2,
    metrics: Collection[str] = QUICK_METRICS,
    jobs: int = 1,
    done: Iterable[Row] = (),
    on_rows: Callable[[Sequence[Row], int, int], None] | None = None,
) -> list[Row]:
    """Run every method at every epsilon on every data set, several times.

    Parameters
    ----------
    datasets : sequence of Dataset
    methods : sequence of str
        Of `METHODS`. One that is not private runs once a repeat, with epsilon infinity.
    epsilons : sequence of float, > 0
    repeats : int, >= 1
    repeats_for : mapping of str to int, optional
        Another number for some data sets.
    silos : int, >= 1
        The records are dealt to so many silos of equal size, anew in each repeat.
    metrics : collection of str
        Of `METRICS`; NICV is always among them.
    jobs : int, >= 1
        Processes, each with one thread.
    done : iterable of Row
        Rows of earlier runs; the same runs are not made again.
    on_rows : function, optional
        Called as each repeat ends: with its new rows, the number of runs finished so far, and the
        number of all runs.

    Returns
    -------
    list of Row
        Of all runs asked for, those of `done` included, in the order of the arguments.

    Raises
    ------
    PlanError
        Before the first run.
    """
    cells = [
        (data, [make_cell(data, m, e, silos) for m in methods for e in _epsilons_of(m, epsilons)])
        for data in datasets
    ]
    counts = {data.name: (repeats_for or {}).get(data.name, repeats) for data in datasets}
    _check(cells, metrics, jobs, counts)
    rows: dict[tuple[Cell, int], Row | None] = {
        (cell, repeat): None
        for data, experiments in cells
        for cell in experiments
        for repeat in range(counts[data.name])
    }
    rows |= {key: row for row in done if (key := (row.cell, row.repeat)) in rows}
    units = []
    for data, experiments in cells:
        for repeat in range(counts[data.name]):
            missing = [cell for cell in experiments if rows[cell, repeat] is None]
            if missing:
                units.append(partial(run_repeat, data, missing, repeat, tuple(metrics)))
    for new in run_all(units, jobs):
        rows |= {(row.cell, row.repeat): row for row in new}
        if on_rows:
            on_rows(new, sum(row is not None for row in rows.values()), len(rows))
    return [row for row in rows.values() if row is not None]


def make_cell(data: Dataset, method: str, epsilon: float, silos: int) -> Cell:
    """Name one experiment.

    Raises
    ------
    PlanError
        If the method is not known.
    """
    if method not in METHODS:
        raise PlanError(f"methods must be among {list(METHODS)}, got {method!r}.")
    task = METHODS[method]
    pure = getattr(task, "mechanism", "") == "laplace"
    return Cell(
        dataset=data.name,
        method=method,
        epsilon=float(epsilon) if task.private else math.inf,
        delta=(0.0 if pure else data.delta) if task.private else 1.0,
        silos=silos,
        n_clusters=data.n_clusters,
        nominal_n=data.nominal_n,
        convention=data.convention,
        schema_digest=data.schema.digest()[:16],
        version=version("cloister"),
    )


def make_cell_plan(data: Dataset, cell: Cell, repeat: int, **options: Any) -> Plan:
    """Write the plan of one run; the repeat seeds the public starting centres.

    Options of the method come before those of the papers.
    """
    task = METHODS[cell.method]
    return make_plan(
        task,
        data.schema,
        [f"silo-{index}" for index in range(cell.silos)],
        budget=Budget(cell.epsilon, cell.delta) if task.private else None,
        nominal_n=cell.nominal_n,
        n_clusters=cell.n_clusters,
        public_seed=repeat,
        **(
            dict(_PAPER_OPTIONS.get(cell.method, {}))
            if cell.convention == "fastlloyd-paper"
            else {}
        )
        | options,
    )


def run_repeat(
    data: Dataset,
    cells: Sequence[Cell],
    repeat: int,
    metrics: Collection[str],
    **options: Any,
) -> list[Row]:
    """Run some experiments on one split of the records, from the same starting centres."""
    order = public_generator(repeat, "split", data.name).permutation(len(data.records))
    shuffled, values = data.records[order], data.values
    rows = []
    for cell in cells:
        plan = make_cell_plan(data, cell, repeat, **options)
        parts = np.array_split(shuffled, cell.silos)
        result = run_plan(plan, {s: [part] for s, part in zip(plan.silos, parts, strict=True)})
        centres = plan.grid.normalise(result.results["centres"])
        rows.append(
            Row(
                **asdict(cell),
                repeat=repeat,
                **measure(data, values, centres, metrics),
                n_features=plan.grid.n_features,
                rounds=plan.rounds,
                noise=result.noise,
                plan_digest=plan.digest.hex(),
                commit=commit(),
                machine=machine_kind(),
            )
        )
    return rows


def measure(
    data: Dataset, values: Floats, centres: Floats, metrics: Collection[str]
) -> dict[str, Any]:
    """Return NICV and the other metrics asked for; exact on data, not a release.

    Parameters
    ----------
    data : Dataset
    values : ndarray of shape (n_samples, n_features), coordinates of the box
        Its records.
    centres : ndarray of shape (n_clusters, n_features), coordinates of the box
    metrics : collection of str
    """
    from sklearn.metrics import pairwise_distances_argmin

    nicv = measures.nicv(values, centres)
    labels = pairwise_distances_argmin(values, centres)
    known: dict[str, Callable[[], float]] = {
        "centroid_mse": lambda: measures.centroid_mse(centres, data.reference_centres),
        "cost_gap": lambda: measures.cost_gap(nicv, data.reference_nicv),
        "empty_clusters": lambda: float(measures.empty_clusters(values, centres)),
        "bcss": lambda: measures.bcss(values, labels),
        "davies_bouldin": lambda: measures.davies_bouldin(values, labels),
        "calinski_harabasz": lambda: measures.calinski_harabasz(values, labels),
        "silhouette": lambda: measures.silhouette(values, labels, sample_size=_SILHOUETTE_SAMPLE),
        "dunn": lambda: measures.dunn(values, labels),
    }
    return {"nicv": nicv, **{name: f() for name, f in known.items() if name in metrics}}


def _epsilons_of(method: str, epsilons: Sequence[float]) -> Iterable[float]:
    """Return the epsilons at which a method runs: one for a method that has none."""
    if method in METHODS and not METHODS[method].private:
        return (math.inf,)
    return dict.fromkeys(epsilons)


def _check(
    cells: Sequence[tuple[Dataset, Sequence[Cell]]],
    metrics: Collection[str],
    jobs: int,
    repeats: Mapping[str, int],
) -> None:
    """Find mistakes before anything runs; every plan is written once."""
    if len(repeats) != len(cells):
        raise PlanError("data sets must have different names; rename a file.")
    if unknown := [name for name in metrics if name not in METRICS]:
        raise PlanError(f"metrics must be among {list(METRICS)}, got {unknown[0]!r}.")
    for name, value in {
        "jobs": jobs,
        **{f"repeats of {n!r}": r for n, r in repeats.items()},
    }.items():
        if value < 1:
            raise PlanError(f"{name} must be >= 1, got {value}.")
    for data, experiments in cells:
        for cell in experiments:
            make_cell_plan(data, cell, 0)
        if {"centroid_mse", "cost_gap"} & set(metrics):
            _ = data.reference_nicv  # computed once, here, and sent to the processes


# --- Command line ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``cloister compare``."""
    parser.description = f"Compare methods on public data ({STAMP})."
    add = parser.add_argument
    add(
        "--methods",
        type=_names,
        default=list(USUAL_METHODS),
        help=f"of {','.join(METHODS)}; by default {','.join(USUAL_METHODS)}",
    )
    add("--epsilons", type=_list_of(float), required=True, metavar="E,E,...")
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


def run(args: argparse.Namespace) -> int:
    """Run ``cloister compare``; return the exit code.

    Raises
    ------
    CloisterError
        For mistakes in the options, before the first run.
    """
    quiet, as_json = getattr(args, "quiet", False), getattr(args, "json", False)
    if args.check_reference and not args.preset:
        raise PlanError("check_reference needs the papers' conventions; add --preset.")
    datasets = _load_all(args)
    args.out.mkdir(parents=True, exist_ok=True)
    runs = args.out / "runs.csv"
    done = load_rows(runs)
    with progress_bar(quiet) as bar:
        task = bar.add_task("runs", total=None)

        def save(new: Sequence[Row], finished: int, total: int) -> None:
            append_rows(runs, new)
            bar.update(task, completed=finished, total=total)

        rows = compare(
            datasets,
            args.methods,
            args.epsilons,
            repeats=args.repeats,
            repeats_for=args.repeats_for,
            silos=args.silos,
            metrics=args.metrics,
            jobs=args.jobs,
            done=done,
            on_rows=save,
        )
    means = summarise(rows)
    write_means(args.out / "summary.csv", means)
    draw_nicv(means, args.out)
    verdict = check_means(means) if args.check_reference else None
    if as_json:
        json.dump(_document(args, means, verdict), sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif not quiet:
        _show(Console(), args, means, verdict)
    elif verdict:
        for missed in (bar.text for bar in verdict.bars if not bar.holds):
            Console(stderr=True).print(f"MISSED  {missed}", soft_wrap=True)
    return 0 if verdict is None or verdict.holds else 1


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


def _document(
    args: argparse.Namespace, means: Sequence[Mean], verdict: Verdict | None
) -> dict[str, Any]:
    """Return what is shown as JSON values; JSON has no infinity, so None stands for it."""
    document: dict[str, Any] = {
        "stamp": STAMP,
        "out": str(args.out),
        "means": [
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in asdict(mean).items()
            }
            for mean in means
        ],
    }
    if args.preset:
        document["preset"] = PAPER_NOTE
    if verdict:
        document["reference"] = asdict(verdict) | {"holds": verdict.holds}
    return document


def _show(
    console: Console, args: argparse.Namespace, means: Sequence[Mean], verdict: Verdict | None
) -> None:
    """Print NICV by data set, epsilon and method."""
    if args.preset:
        console.print(PAPER_NOTE)
    found = {(m.dataset, m.epsilon, m.method): m for m in means if m.metric in ("nicv", AREA)}
    methods = list(dict.fromkeys(m.method for m in means))
    table = _table(f"NICV, mean ± 95 % ({STAMP})", ("data set", "ε", *methods))
    for dataset in dict.fromkeys(m.dataset for m in means):
        epsilons = {epsilon for name, epsilon, _ in found if name == dataset}
        # the area, whose epsilon is None, comes last
        for epsilon in sorted(epsilons, key=lambda e: (e is None, e or 0)):
            label = "area" if epsilon is None else f"{epsilon:g}"
            cells = (found.get((dataset, epsilon, method)) for method in methods)
            table.add_row(dataset, label, *map(_interval, cells))
        table.add_row()
    console.print(table)
    if verdict:
        _show_verdict(console, verdict)
    console.print(f"Runs, summary and figures are in {args.out}; {STAMP}.", soft_wrap=True)


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for heading in headings:
        table.add_column(heading, overflow="fold")  # never shorten a number
    return table


def _interval(mean: Mean | None) -> str:
    if mean is None:
        return ""
    if mean.high is None:
        return f"{mean.mean:.4g}"
    return f"{mean.mean:.4g} ± {mean.high - mean.mean:.2g}"


def _show_verdict(console: Console, verdict: Verdict) -> None:
    """Print the ratios to the published figures and the bars."""
    table = _table(
        "FastLloyd's NICV over that of the published code",
        ("data set", "ε", "ours", "published", "ratio", ""),
    )
    for cell in verdict.cells:
        table.add_row(
            cell.dataset,
            f"{cell.epsilon:g}",
            f"{cell.ours:.4g} ± {cell.sem:.2g}",
            f"{cell.published:.4g}",
            f"{cell.ratio:.3f}",
            cell.verdict,
        )
    console.print(table)
    for bar in verdict.bars:
        console.print(f"{'holds ' if bar.holds else 'MISSED'}  {bar.text}")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _list_of(kind: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """Return an argument type for ``A,B,...``."""

    def parse(text: str) -> list[_T]:
        return [kind(part) for part in _names(text)]

    parse.__name__ = f"list of {kind.__name__}"
    return parse


def _pairs(kind: Callable[[str], _T]) -> Callable[[str], dict[str, _T]]:
    """Return an argument type for ``NAME=VALUE,...``."""

    def parse(text: str) -> dict[str, _T]:
        parts = [part.partition("=") for part in _names(text)]
        return {name.strip(): kind(value.strip()) for name, _, value in parts}

    parse.__name__ = "NAME=VALUE list"
    return parse
