"""``cloister demo``: three simulated hospitals on real, public data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from cloister.app.files import SiloFiles, prepare_folder
from cloister.app.job import Job
from cloister.app.payment import Account, Charge
from cloister.app.progress import warnings_to
from cloister.app.release import Release
from cloister.cli.output import Output
from cloister.cli.release import write_results
from cloister.core.arrays import Floats
from cloister.core.display import Cell, Estimate, Table
from cloister.data.samples import ACCEPTED_LOSS, SCHEMA, write_patients
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.tasks.clustering import weighted
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.clusters import all_at_once
from cloister.tasks.clustering.synopsis import squared_distances

COLUMNS = ("age", "bmi", "systolic")
EPSILON, DELTA = 1.0, 1e-6
LIFETIME_CAP = Budget(10.0, DELTA)  # allows about sixty repetitions of the demonstration
NOMINAL_N = 15_000
CLUSTERS = 3
STORY = (
    "Three hospitals each have the records of some of 16,097 participants of the American health "
    "survey NHANES. Together they find three groups by age, body mass index (bmi) and systolic "
    "blood pressure. No hospital discloses a row or a sum: each sends masked numbers, and noise "
    "is added before the total can be read."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("cloister-demo"),
        metavar="DIR",
        help="folder for all results (default: %(default)s)",
    )


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    out.paragraph(STORY)
    out.say()
    prepare_folder(args.out)
    files = write_patients(args.out)
    schema = Schema.load(args.out / SCHEMA)
    job = Job(
        task=Auto,
        schema=schema,
        silos=tuple(files),
        options={"n_clusters": CLUSTERS, "public_seed": 1},
        epsilon=EPSILON,
        delta=DELTA,
        nominal_n=NOMINAL_N,
        columns=COLUMNS,
        max_loss=ACCEPTED_LOSS,
    )
    silos = SiloFiles(paths=files).read(schema, COLUMNS)
    path = args.out / "ledger.db"
    # A separate ledger: a demonstration must not spend the user's budget.
    ledger = Ledger(path)
    ledger.open_dataset(schema.dataset, cap=LIFETIME_CAP, unit=schema.unit)
    charge = Charge(Account(ledger, schema.dataset), path, "default")
    with out.progress() as on_round, warnings_to(out.warn_locally):
        result = job.run(silos, account=charge.account, on_round=on_round)
    records = np.concatenate([chunk for silo in silos.values() for chunk in silo])
    # Allowed only because the patients are public records.
    comparison = cost_of_privacy(result, records)
    document = write_results(result, charge, args.out, out, schema=schema, comparison=comparison)
    out.paragraph(
        "One person in twelve lacks a measurement and is left out. A run on your own files stops "
        "above 5 % unless you accept more with --max-loss."
    )
    out.paragraph(
        "The intervals of all centres hold together in 95 of 100 runs. They hold the centres that "
        "k-means finds without privacy."
    )
    paths = " ".join(str(path) for path in files.values())
    out.say(f"Next: open {args.out / 'report.html'}, or run the same on the files yourself:")
    out.say(
        f"  cloister cluster {paths} --schema {args.out / SCHEMA} "
        f"--columns {','.join(COLUMNS)} --k 4 --epsilon 1 --nominal-n {NOMINAL_N} "
        f"--max-loss {ACCEPTED_LOSS} "
        f"--ledger {path} --out {args.out / 'mine'}"
    )
    return document


def cost_of_privacy(result: Release, records: np.ndarray[Any, Any]) -> Table:
    """Return a table of released centres next to those of k-means on all records, without privacy.

    For public records only: the column "without privacy" is exact and has no protection.
    """
    grid, released = result.plan.grid, result.results
    points = records / grid.one
    best = without_privacy(points, CLUSTERS)
    errors = [
        float(squared_distances(centres, points).min(axis=0).mean())
        for centres in (grid.normalise(released["centres"]), best)
    ]
    exact = grid.decode(best)
    # Clusters have no order, so each released centre is compared with the nearest exact one.
    near = np.abs(exact[None] - released["centres"][:, None]) / grid.half_range
    ends = (released[name] for name in ("centres", "low", "high"))
    centres = Estimate(released["centres"], *all_at_once(*ends))
    rows: list[tuple[Cell, ...]] = [
        (f"cluster {j}, {name}", centres[j, c], float(exact[near[j].sum(1).argmin(), c]))
        for j in range(CLUSTERS)
        for c, name in enumerate(result.plan.columns)
    ]
    rows.append(("mean squared distance, scaled", *errors))
    note = (
        "In brackets: 95 % confidence intervals (privacy noise only) for all cells together. The "
        "last column and the last row are exact, which only public records allow."
    )
    return Table("The cost of privacy here", ("", "released", "without privacy"), tuple(rows), note)


def without_privacy(points: Floats, n_clusters: int) -> Floats:
    """Return the centres of plain k-means, the best of ten starts, in grid coordinates."""
    centres = weighted.cluster(
        weighted.on_lattice(points),
        weighted.parts_of(np.ones(len(points))),
        n_clusters,
        public_seed=0,
        restarts=10,
    )
    return centres / weighted.ONE
