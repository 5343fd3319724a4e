"""``cloister evaluate``: how good a released model is, measured on files it has not seen."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cloister.cli.options import add_job_arguments, schema_of_model
from cloister.cli.output import Output, add_flags
from cloister.cli.release import finish, release
from cloister.cli.run import task_options
from cloister.errors import PlanError
from cloister.jobs import JobResult
from cloister.task import Classifier, Regressor, Task
from cloister.tasks import TASKS
from cloister.tasks.preparation.pipeline import Pipeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_job_arguments(parser)
    group = parser.add_argument_group("evaluation")
    group.add_argument("--model", type=Path, metavar="MODEL", help="model.json of a job")
    group.add_argument("--truth", metavar="COLUMN", help="default: the model's target")
    group.add_argument(
        "--prediction",
        metavar="COLUMN",
        help="where there is no model; each told from its own record alone",
    )
    group.add_argument(
        "--score",
        metavar="COLUMN",
        help="where there is no model; each told from its own record alone",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the task's own, such as n_bins=64; may be repeated",
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Release measures; return the exit code."""
    out = Output.of(args)
    given = {name: getattr(args, name) for name in ("truth", "prediction", "score")}
    columns = {name: value for name, value in given.items() if value is not None}
    options: dict[str, Any] = dict(columns)
    if args.model:
        task, about = about_model(args)
        options |= about
    elif columns.keys() & {"prediction", "score"}:
        task = TASKS["evaluation"]
    else:
        raise PlanError("model must be given, or truth with prediction or score.")
    options |= task_options(task, args.set)
    result, charge = release(args, task, options, out)
    return finish(result, charge, args.out, out, command="evaluate")


def about_model(args: argparse.Namespace) -> tuple[type[Task], dict[str, Any]]:
    """Return the task that measures a released model, and what its plan says of the model.

    The job of this command line then takes the columns of the model.
    """
    if args.columns:
        raise PlanError("columns are those of the model; leave them out.")
    result = JobResult.load(args.model)
    args.columns = schema_of_model(args.schema, result.plan).names
    task = result.plan.task
    if isinstance(task, Classifier | Regressor):
        kind = "evaluation" if isinstance(task, Classifier) else "regression-evaluation"
        return TASKS[kind], {"model": task, "released": result.results}
    if "centres" in result.results and isinstance(task, Pipeline):
        raise PlanError(
            "model clusters what its pipeline makes of the columns, and a measure would need its "
            "steps; give one that clusters the columns themselves."
        )
    if "centres" in result.results:
        return TASKS["cluster-quality"], {"centres": result.results["centres"]}
    raise PlanError(
        f"model is of task {task.name!r}, which tells nothing about a record; give one that "
        "classifies, regresses or clusters."
    )
