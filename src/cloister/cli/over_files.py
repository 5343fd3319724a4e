"""The commands that run one task over files: ``cluster``, ``classify``, ..., ``run``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cloister.app.files import prepare_folder
from cloister.app.release import Release
from cloister.cli.examples import example_over_files
from cloister.cli.options import (
    add_job_arguments,
    add_kmeans_arguments,
    add_options,
    add_set_argument,
    add_task_arguments,
    kmeans_task,
    named_task,
    named_values,
    no_predictions,
    options_from,
    refuse_given,
    schema_of_model,
    task_options,
)
from cloister.cli.output import Output
from cloister.cli.release import after_charge, run_over_files, write_results
from cloister.core.errors import PlanError
from cloister.data.schema import Schema, catalogue_schema
from cloister.protocol.task import Classifier, Regressor, Task
from cloister.tasks import TASKS
from cloister.tasks.options import check_known

TaskOptions = tuple[type[Task], dict[str, Any]]


@dataclass(frozen=True)
class TaskCommand:
    """A command that runs one task over files, one for each silo.

    Parameters
    ----------
    declare : function of parser
        Declares the options beyond those of every job.
    chosen : function of args
        Returns the task and its options.
    catalogue : bool
        If True, a catalogue of items may replace the schema.
    closing : str
        Text to show at the end.
    usage : str
        Options of the task in the example of the help.
    """

    declare: Callable[[argparse.ArgumentParser], None]
    chosen: Callable[[argparse.Namespace], TaskOptions]
    catalogue: bool = False
    closing: str = ""
    usage: str = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        add_job_arguments(parser, catalogue=self.catalogue)
        self.declare(parser)
        if self.usage:
            parser.epilog = example_over_files(parser.prog.rpartition(" ")[2], self.usage)

    def run(self, args: argparse.Namespace, out: Output) -> Mapping[str, Any] | None:
        """Run the job, and write and show its release."""
        if getattr(args, "mpi", False):
            from cloister.cli.mpi import run_rank  # mpi4py is an extra

            return run_rank(args, out)
        # Before the run, which reads the schema from this file.
        written = _written_schema(args) if self.catalogue else {}
        release, charge = run_over_files(args, *self.chosen(args), out)
        with after_charge(charge, args.out / "model.json"):
            document = write_results(
                release,
                charge,
                args.out,
                out,
                schema=Schema.load(args.schema),
                written=written,
            )
        if self.closing:
            out.say(self.closing)
        return document


# cluster ------------------------------------------------------------------------------------------


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    add_kmeans_arguments(parser)


# classify, regress --------------------------------------------------------------------------------


def _add_training(methods: Sequence[str], target: str, parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument("--target", required=True, metavar="COLUMN", help=target)
    group.add_argument("--method", choices=methods, default=methods[0])
    group.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="COLUMN=CATEGORY",
        help="linear and logistic: category with which the others of its column are compared "
        "(default: the first); may be repeated",
    )
    group.add_argument(
        "--prepare",
        action="append",
        default=[],
        metavar="STEP[:NAME=VALUE,...]",
        help="a preparation step, such as bounds, standardise or pca:n_components=5; may be "
        "repeated; all steps are one plan with one cost",
    )
    group.add_argument(
        "--shares",
        type=_shares,
        metavar="S,S,...",
        help="shares of the budget, one for each step including the last",
    )
    add_set_argument(group)


def _shares(text: str) -> list[float]:
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers such as 0.2,0.8, got {text!r}") from None


def _trained(args: argparse.Namespace) -> TaskOptions:
    """Return the task of a command line, after its preparation steps, if any."""
    task = TASKS[args.method]
    options = {"target": args.target, **task_options(task, args.set)}
    if args.reference:
        # Naive Bayes and forests have no coefficients to compare.
        check_known(task, ["reference"])
        options["reference"] = _references(args.reference)
    if not args.prepare:
        refuse_given(args.shares, "--shares is valid only with --prepare")
        return task, options
    steps = [_step(text) for text in args.prepare]
    shares = {"shares": args.shares} if args.shares else {}
    # One plan, so that the steps share one budget and one release.
    return TASKS["pipeline"], {"steps": [*steps, (task.name, options)], **shares}


def _references(texts: Sequence[str]) -> dict[str, str]:
    """Read ``COLUMN=CATEGORY``, at most once for each column."""
    references: dict[str, str] = {}
    for text in texts:
        column, _, category = text.partition("=")
        if not (column and category) or column in references:
            raise PlanError(
                f"reference must be COLUMN=CATEGORY, once for each column, got {text!r}."
            )
        references[column] = category
    return references


def _step(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``pca:n_components=5,...``."""
    name, _, rest = text.partition(":")
    return name, named_values(rest.split(",") if rest else ())


# evaluate -----------------------------------------------------------------------------------------


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("evaluation")
    group.add_argument("--model", type=Path, metavar="MODEL", help="model.json of a job")
    group.add_argument("--truth", metavar="COLUMN", help="default: the model's target")
    for name in ("prediction", "score"):
        group.add_argument(
            f"--{name}",
            metavar="COLUMN",
            help=f"without a model: column of {name}s, each computed from its record alone",
        )
    add_set_argument(group)


def _evaluation(args: argparse.Namespace) -> TaskOptions:
    arguments = {name: getattr(args, name) for name in ("truth", "prediction", "score")}
    options: dict[str, Any] = {k: value for k, value in arguments.items() if value is not None}
    if args.model:
        task, model_options = about_model(args)
        options |= model_options
    elif options.keys() & {"prediction", "score"}:
        task = TASKS["evaluation"]
    else:
        raise PlanError("give --model, or --truth with --prediction or --score.")
    return task, options | task_options(task, args.set)


def about_model(args: argparse.Namespace) -> TaskOptions:
    """Return the task that evaluates a released model, and the options that hold the model.

    The job of this command line then uses the columns of the model.
    """
    # The model defines them.
    refuse_given(args.columns, "with --model, --columns are those of the model")
    result = Release.load(args.model)
    # A model can be applied only to its own columns.
    args.columns = schema_of_model(args.schema, result.plan).names
    task = result.plan.task
    if isinstance(task, Classifier | Regressor):
        kind = "evaluation" if isinstance(task, Classifier) else "regression-evaluation"
        return TASKS[kind], {"model": task, "released": result.results}
    # A clustering is recognised by its results, since many tasks release centres.
    if "centres" not in result.results:
        raise no_predictions(task)
    if task.name == "pipeline":
        raise PlanError(
            "model is a pipeline that clusters transformed columns, which cannot be evaluated; "
            "give a model that clusters the original columns."
        )
    return TASKS["cluster-quality"], {"centres": result.results["centres"]}


# outliers, rules, run -----------------------------------------------------------------------------


def command_of(name: str) -> TaskCommand:
    """Return the command of a task of the catalogue, which has the name of the task."""
    task = TASKS[name]

    def declare(parser: argparse.ArgumentParser) -> None:
        add_options(parser.add_argument_group(name), task, {})
        parser.set_defaults(absent=getattr(task, "absent", {}))

    usage: str = getattr(task, "usage", "")
    return TaskCommand(declare, partial(_chosen_by_options, name), usage=usage)


def _add_outliers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("outliers")
    add_options(group, TASKS["outliers"], {"group": {"metavar": "COLUMN"}})


def _add_rules(parser: argparse.ArgumentParser) -> None:
    sensitive = {
        # Each occurrence is one set of items.
        "action": "append",
        "nargs": "+",
        "default": [],
        "metavar": "ITEM",
        "type": str,
        "help": "do not release sets with all these items; may be repeated",
    }
    add_options(parser.add_argument_group("rules"), TASKS["apriori"], {"sensitive": sensitive})


def _chosen_by_options(name: str, args: argparse.Namespace) -> TaskOptions:
    """Return the task and its options, after the steps that its columns require, if any."""
    task, options = TASKS[name], options_from(args, TASKS[name])
    if not hasattr(task, "steps_before"):
        return task, options
    return after_steps(task, options, Schema.load(args.schema), args.columns)


def after_steps(
    task: type[Task], options: dict[str, Any], schema: Schema, columns: Sequence[str] | None
) -> TaskOptions:
    """Return a task and its options, after the steps that its columns require, if any."""
    steps_before = getattr(task, "steps_before", None)
    used = schema.select(columns) if columns else schema
    if steps_before and (before := steps_before(used.public, options)):
        return TASKS["pipeline"], {"steps": [*before, (task.name, options)]}
    return task, options


def _written_schema(args: argparse.Namespace) -> dict[str, Path]:
    """Write the schema of a catalogue to the results folder and return its path."""
    if not args.catalogue:
        refuse_given(
            args.dataset, "--dataset is valid only with --catalogue, since a schema has a data set"
        )
        return {}
    schema = catalogue_schema(args.catalogue, dataset=args.dataset or "baskets")
    prepare_folder(args.out)
    path: Path = args.out / "schema.toml"
    # The results of a folder belong to one schema.
    if path.exists() and Schema.load(path) != schema:
        raise PlanError(
            f"file {str(path)!r} has another schema; give another --out, or use --schema."
        )
    path.write_text(schema.to_toml(), encoding="utf-8")
    args.schema = path
    return {"schema": path}


def _add_any(parser: argparse.ArgumentParser) -> None:
    add_task_arguments(parser)
    parser.add_argument(
        "--mpi",
        action="store_true",
        help="under mpirun: rank 0 is the aggregator, rank i reads only FILE number i",
    )


cluster = TaskCommand(_add_cluster, kmeans_task)
classify = TaskCommand(
    partial(
        _add_training,
        ("naive-bayes", "logistic", "forest", "shapes"),
        "column of categories to predict",
    ),
    _trained,
)
regress = TaskCommand(
    partial(
        _add_training,
        ("linear", "forest-regression", "shapes-regression"),
        "column of numbers to predict",
    ),
    _trained,
)
rules = TaskCommand(_add_rules, partial(_chosen_by_options, "apriori"), catalogue=True)
evaluate = TaskCommand(_add_evaluation, _evaluation)
outliers = TaskCommand(
    _add_outliers,
    partial(_chosen_by_options, "outliers"),
    closing="To flag the records of a file locally by this model: cloister predict.",
)
run = TaskCommand(_add_any, named_task)
