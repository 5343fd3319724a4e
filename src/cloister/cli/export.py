"""``cloister export``: a release for R, SAS and Stata, or a model for scikit-learn or ONNX."""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.app.release import Release
from cloister.app.report.notebook import release_frame
from cloister.cli.options import add_model_task, load_model
from cloister.cli.output import Output
from cloister.core.dates import decimal_years
from cloister.core.derived import displays_of
from cloister.core.errors import PlanError
from cloister.core.files import write_text
from cloister.core.hooks import MODEL_WRITERS

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = "numbers.csv"
_LABELS = {
    # Statistical packages show these labels with the columns.
    "table": "Table of the release",
    "row": "Row of that table",
    "column": "Column of that table",
    "value": "Released value",
    "low": "95% CI of the noise: low",
    "high": "95% CI of the noise: high",
    "population_low": "95% CI with sampling: low",
    "population_high": "95% CI with sampling: high",
    "mark": "Mark of the release",
    "day": "Released value as a date",
}
PICKLE = (
    "joblib.load reads this pickle, and a pickle may run any code: load it only from a source that "
    "you trust, with this version of scikit-learn; --to onnx writes a file without code."
)
_TEXTS = ("table", "row", "column", "mark", "day")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", type=Path, metavar="FILE", help="model.json of a job")
    parser.add_argument(
        "--to",
        choices=("numbers", *MODEL_WRITERS),
        default="numbers",
        help="all numbers with their intervals, or a predictor for other software "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="OUT",
        help="folder for numbers, or file for a model",
    )
    add_model_task(parser)


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Write all released numbers with import scripts, or a model for other software."""
    result = load_model(args)
    if args.to != "numbers":
        return _model(args, result, out)
    if args.out.suffix.lower() in (".csv", ".r", ".sas", ".do", ".docx", ".xlsx"):
        raise PlanError(f"--out must be a folder, which gets {NUMBERS}, got {args.out.name!r}.")
    shown = displays_of(result.plan.task, result.results, result.plan.columns)
    frame = _with_years(release_frame(shown).reset_index())
    texts = {NUMBERS: frame.to_csv(index=False), **_scripts(list(frame.columns))}
    # A folder, because each program has a separate script.
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(args.out / name, text)
        out.say(f"written  {args.out / name}")
    return {"files": [args.out / name for name in texts], "numbers": len(frame)}


def _with_years(frame: pd.DataFrame) -> pd.DataFrame:
    """Return numbers with dates as years, as in a schema, and the dates in a column of texts.

    One date among numbers would make a column of texts of them in other software.
    """
    days = frame["value"].map(lambda value: isinstance(value, date))
    if not days.any():
        return frame

    texts = frame["value"].where(days, "").astype(str)
    numbers = {str(name): frame[name].map(_number) for name in frame if name not in _TEXTS}
    return frame.assign(**numbers, day=texts)


def _number(value: Any) -> float:
    """Return a number, or a date as a year."""
    if not isinstance(value, date):
        return float(value)
    return float(decimal_years(np.array([value], dtype="M8[D]"))[0])


def _model(args: argparse.Namespace, result: Release, out: Output) -> dict[str, Any]:
    """Write a model that predicts without cloister."""
    write_text(args.out, MODEL_WRITERS[args.to].load()(result))
    out.say(f"written  {args.out}")
    # ONNX files contain only numbers, so they need no warning.
    if args.to == "sklearn":
        out.warn(PICKLE)
    return {"files": [args.out]}


def _scripts(names: list[str]) -> dict[str, str]:
    """Return scripts that import the numbers with their labels into R, SAS and Stata."""
    labels = {name: _LABELS[name] for name in names}
    quoted = ",\n  ".join(f'{name} = "{label}"' for name, label in labels.items())
    sas = "\n  ".join(f'{name} = "{label}"' for name, label in labels.items())
    # SAS would otherwise cut text at 8 characters.
    kinds = " ".join(f"{name} :$200." if name in _TEXTS else name for name in names)
    stata = "\n".join(f'label variable {name} "{label}"' for name, label in labels.items())
    return {
        "numbers.R": (
            f'numbers <- read.csv("{NUMBERS}", encoding = "UTF-8")\n'
            f"labels <- c(\n  {quoted}\n)\n"
            'for (name in names(labels)) attr(numbers[[name]], "label") <- labels[[name]]\n'
        ),
        "numbers.sas": (
            f'data numbers;\n  infile "{NUMBERS}" dsd firstobs=2 truncover encoding="utf-8";\n'
            f"  input {kinds};\n  label\n  {sas};\nrun;\n"
        ),
        "numbers.do": f'import delimited "{NUMBERS}", clear encoding("UTF-8")\n{stata}\n',
    }
