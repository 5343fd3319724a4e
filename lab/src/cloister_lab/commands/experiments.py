"""``cloister experiments``: run, list and draw the experiments on public data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cloister.cli.output import Output
from cloister.core.display import Table
from cloister.core.errors import DataError, PlanError
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.records import STAMP
from cloister_lab.experiments.run import (
    Experiment,
    Settings,
    draw_experiment,
    folder_of,
    run_experiment,
    shares,
)

_OUT = Path("results")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = f"Run, list and draw experiments on public data ({STAMP})."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="all experiments, and about how long each takes")

    runner = actions.add_parser("run", help="run some; a repeated call goes on where it stopped")
    add = runner.add_argument
    add("names", nargs="+", choices=tuple(EXPERIMENTS), metavar="NAME")
    _add_folder(runner)
    add("--jobs", type=int, default=1, help="processes, each with one thread")
    add("--data", type=Path, help="folder of NAME.csv.gz, NAME.csv, NAME.parquet or NAME.npz")
    add("--repeats", type=int, help="instead of the experiment's own number")
    add(
        "--minutes",
        type=float,
        help="as many repeats as fit; shared out among the experiments named",
    )
    add(
        "--datasets",
        default="",
        metavar="NAME,...",
        help="only these, where the experiment has several; for one NAME",
    )

    drawer = actions.add_parser("figures", help="draw what has been stored")
    drawer.add_argument("name", nargs="?", choices=tuple(EXPERIMENTS), metavar="NAME")
    _add_folder(drawer)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--full", action="store_true", help="the whole experiment rather than its small version"
    )
    parser.add_argument("--out", type=Path, default=_OUT, help="folder of results")


def run(args: argparse.Namespace, out: Output) -> dict[str, object]:
    """Do what is asked.

    Raises
    ------
    CloisterError
        For mistakes in the options, or where nothing is stored.
    """
    return _ACTIONS[args.action](args, out)


def _list(_: argparse.Namespace, out: Output) -> dict[str, object]:
    rows = tuple(
        (e.name, e.what, _duration(e.seconds_small), _duration(e.seconds_full))
        for e in EXPERIMENTS.values()
    )
    out.table(Table("Experiments", ("name", "what", "small", "full, one core"), rows))
    shown = ("name", "what", "seconds_small", "seconds_full")
    listed = [{name: getattr(e, name) for name in shown} for e in EXPERIMENTS.values()]
    return {"stamp": STAMP, "experiments": listed}


def _run(args: argparse.Namespace, out: Output) -> dict[str, object]:
    chosen = [EXPERIMENTS[name] for name in dict.fromkeys(args.names)]
    if args.datasets and len(chosen) > 1:
        raise PlanError("datasets belong to one experiment; name only that one.")
    if args.data and not args.data.is_dir():
        raise PlanError(f"data must be a folder, got {str(args.data)!r}.")
    settings = Settings(
        out=args.out,
        full=args.full,
        jobs=args.jobs,
        data_dir=args.data,
        repeats=args.repeats,
        only=tuple(name.strip() for name in args.datasets.split(",") if name.strip()),
        minutes=args.minutes,
    )
    written = []
    for experiment, own in shares(chosen, settings):
        folder = folder_of(experiment, settings)
        rows = run_experiment(experiment, own, quiet=args.quiet or args.json)
        files = experiment.figures(rows, folder)
        out.say(f"{len(rows):,} rows and {len(files)} files are in {folder}")
        written.append(_written(experiment, folder, files) | {"rows": len(rows)})
    out.say(f"({STAMP}).")
    return {"stamp": STAMP, "experiments": written}


def _draw(args: argparse.Namespace, out: Output) -> dict[str, object]:
    """Draw one experiment, or all that have rows."""
    settings = Settings(out=args.out, full=args.full)
    folders = {e.name: folder_of(e, settings) for e in EXPERIMENTS.values()}
    names = [args.name] if args.name else [n for n, folder in folders.items() if folder.is_dir()]
    if not names:
        raise DataError(f"no experiment has rows in {str(args.out)!r}; run one first.")
    written = []
    for name in names:
        files = draw_experiment(EXPERIMENTS[name], settings)
        for file in files:
            out.say(str(file))
        written.append(_written(EXPERIMENTS[name], folders[name], files))
    return {"stamp": STAMP, "figures": written}


_ACTIONS = {"list": _list, "run": _run, "figures": _draw}


def _written(experiment: Experiment, folder: Path, files: Sequence[Path]) -> dict[str, object]:
    shown = [str(file) for file in files]
    return {"stamp": STAMP, "name": experiment.name, "folder": str(folder), "files": shown}


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
