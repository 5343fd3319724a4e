"""Coefficients of regressions as JSON, which Python makes and the package of R reads.

    python tests/cli/coefficient_vectors.py r/tests/testthat/vectors

Records and noise have seeds. A file has the document of ``--json`` and the intervals that a reader
must find from it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cloister import Schema
from cloister.app.coefficients import coefficients_of
from cloister.app.job import run_job
from cloister.app.release import Release
from cloister.core.plain import plain
from cloister.data import read_source
from cloister.tasks import TASKS
from cloister.tasks.regression.parse import parse_formula
from cloister.testing import SimulatedNoise

SILOS = ("north", "east", "south")
SCHEMA = Schema(
    dataset="vectors",
    unit="row",
    columns=[
        {"name": "age", "type": "number", "min": 0, "max": 100},
        {"name": "arm", "type": "category", "categories": ["placebo", "low", "high"]},
        {"name": "years", "type": "number", "min": 0.5, "max": 10},
        {"name": "pressure", "type": "number", "min": 50, "max": 250},
        {"name": "ill", "type": "boolean"},
        {"name": "falls", "type": "number", "min": 0, "max": 50},
    ],
)
CASES = {
    "gaussian": ("pressure ~ age + C(arm, Treatment('low')) + site", "gaussian", 1.0),
    "binomial": ("ill ~ age * arm", "binomial", 1.0),
    "poisson": ("falls ~ age + arm + offset(log(years))", "poisson", 0.5),
}
"""Formula, family and epsilon of each file; noise hides the rare arm."""
INCOMPLETE = Schema(
    dataset="vectors",
    unit="row",
    columns=[
        *(column.model_dump() for column in SCHEMA.columns),
        {"name": "weight", "type": "number", "min": 20, "max": 140, "missing": "keep"},
    ],
)
IMPUTED = {"target": "pressure", "covariates": ("age", "arm", "weight")}
"""Options of the last file, whose records lack cells."""
NAMES = (*CASES, "imputed")


def table(silo: int) -> pd.DataFrame:
    """Return the records of a silo; the arm "high" is rare."""
    rng = np.random.RandomState(silo)  # with the same numbers in every NumPy, as the files need
    age, years = rng.uniform(20, 90, 2000), rng.uniform(1, 9, 2000)
    arm = rng.choice(3, 2000, p=[0.5, 0.495, 0.005])
    margin = 0.03 * (age - 60) + 0.5 * arm
    return pd.DataFrame(
        {
            "age": age,
            "arm": np.array(["placebo", "low", "high"])[arm],
            "years": years,
            "pressure": 90 + 0.5 * age + 3 * arm + 4 * silo + rng.normal(0, 10, 2000),
            "ill": (rng.random_sample(2000) < 1 / (1 + np.exp(-margin))).astype(int),
            "falls": rng.poisson(0.2 * years * np.exp(margin / 2)),
        }
    )


def incomplete(silo: int) -> pd.DataFrame:
    """Return the records with a weight, which is mostly missing where pressure is high."""
    rng, records = np.random.RandomState(100 + silo), table(silo)
    weight = 60 + 0.2 * records["age"] + rng.normal(0, 12, 2000)
    pressure = records["pressure"] + 0.3 * (weight - 70)
    lacks = rng.random_sample(2000) < 1 / (1 + np.exp((140 - pressure) / 10))
    return records.assign(pressure=pressure, weight=weight.where(~lacks))


def released(
    task: str,
    schema: Schema,
    of: Callable[[int], pd.DataFrame],
    epsilon: float,
    options: Mapping[str, Any],
) -> Release:
    """Return the release of a job over all silos."""
    return run_job(
        TASKS[task],
        schema,
        {silo: read_source(of(k), schema) for k, silo in enumerate(SILOS)},
        epsilon=epsilon,
        nominal_n=6000,
        noise=SimulatedNoise(11),
        **options,
    )


def vector(name: str) -> dict[str, Any]:
    """Return the content of a file."""
    if name in CASES:
        formula, family, epsilon = CASES[name]
        terms = parse_formula(formula).to_dict()
        options = {"target": formula.split()[0], "family": family, "formula": terms}
        release = released("glm", SCHEMA, table, epsilon, options)
    else:
        release = released("imputed-regression", INCOMPLETE, incomplete, 4.0, IMPUTED)
    found = release.results

    def ends(stem: str, last: str, kind: str) -> list[Any]:
        return [
            np.append(found[f"{stem}{kind}_{end}"], found.get(f"{last}{kind}_{end}", []))
            for end in ("low", "high")
        ]

    intervals = {
        "noise": ends("coef", "intercept", ""),
        "total": ends("coef", "intercept", "_population"),
    }
    if "mixed_coef" in found:
        intervals["random_intercept"] = ends("mixed_coef", "", "_population")
    return {**coefficients_of(release), "intervals": plain(intervals)}


def text_of(document: dict[str, Any]) -> str:
    """Return a file without what differs between runs: the digest of a plan with a nonce."""
    document["coefficients"]["digest"] = "0" * 64
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name in NAMES:
        (folder / f"{name}.json").write_text(text_of(vector(name)), encoding="utf-8")
