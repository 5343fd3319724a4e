"""``cloister demo``: three simulated hospitals on real, public data."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cloister.cli.output import Output
from cloister.cli.release import Charge, finish, prepare_folder
from cloister.data import read_source
from cloister.jobs import Account, run_job
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.schema import Column, Schema
from cloister.tasks.clustering.auto import Auto

HOSPITALS = ("hospital-north", "hospital-east", "hospital-south")
EPSILON, DELTA = 1.0, 1e-6
LIFETIME_CAP = Budget(10.0, DELTA)  # so that the demonstration can be repeated about sixty times
NOMINAL_N = 450
SCHEMA = Schema(
    dataset="demo-diabetes",
    unit="row",
    columns=(
        # Bounds as a study protocol would set them, not the extremes of these patients.
        Column(name="age", type="number", min=18, max=90, measure="years"),
        Column(name="body_mass_index", type="number", min=15, max=45, measure="kg/m2"),
        Column(
            name="blood_pressure", type="number", min=60, max=140, measure="mmHg, mean arterial"
        ),
    ),
)
_POSITIONS = (0, 2, 3)  # of these columns in scikit-learn's table
STORY = (
    "Three hospitals each hold some of the patients of a diabetes study (Efron et al. 2004, as "
    "shipped with scikit-learn). Together they look for three groups by age, body mass index and "
    "blood pressure. No hospital shows a row, or a sum, to anyone: each sends masked numbers, and "
    "noise is added before the total can be read."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("cloister-demo"),
        metavar="DIR",
        help="folder for all results (default: %(default)s)",
    )


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Run the demonstration."""
    out.paragraph(STORY)
    out.say()
    records = patients()
    silos = {name: read_source(records[i::3], SCHEMA) for i, name in enumerate(HOSPITALS)}
    prepare_folder(args.out)
    path = args.out / "ledger.db"
    ledger = Ledger(path)
    ledger.open_dataset(SCHEMA.dataset, cap=LIFETIME_CAP)
    charge = Charge(Account(ledger, SCHEMA.dataset), path, "default")
    with out.progress() as on_round:
        result = run_job(
            Auto,
            SCHEMA,
            silos,
            epsilon=EPSILON,
            delta=DELTA,
            nominal_n=NOMINAL_N,
            account=charge.account,
            on_round=on_round,
            n_clusters=3,
            public_seed=1,
        )
    document = finish(result, charge, args.out, out)
    out.say(f"Next: open {args.out / 'report.html'}, or 'cloister budget show {path}'.")
    return document


def patients() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return age, body mass index and blood pressure of 442 patients, without importing sklearn."""
    found = find_spec("sklearn")
    folders = found.submodule_search_locations if found else None
    table = Path((folders or ["."])[0], "datasets", "data", "diabetes_data_raw.csv.gz")
    if table.is_file():
        return np.loadtxt(table)[:, _POSITIONS]
    from sklearn.datasets import load_diabetes

    raw: np.ndarray[Any, np.dtype[np.float64]] = load_diabetes(scaled=False).data
    return raw[:, _POSITIONS]
