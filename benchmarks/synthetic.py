"""Look-alike records: error of small tables, a classifier trained on them, and intervals.

    python benchmarks/synthetic.py --data adult_full.csv.gz [--peer-python PYTHON] [--out FILE]
    python benchmarks/synthetic.py --data german_credit.csv.gz --bins public --out german.json
    python benchmarks/synthetic.py --data adult_full.csv.gz --bootstrap RUNS

Every cell is a process of its own with one thread: it releases from four fifths of the records, and
draws as many. Errors are mean total variations between the tables of these and of the drawn
records, over all columns, pairs and triples, on one public binning; "auc" is of gradient boosting
that was trained on the drawn records, on the fifth that was held out. ``--peer-python`` names a
Python that has dpmm 0.1.9 (below 3.12), whose MST and AIM then run on the same bins, with all
records in one place; without it they are skipped. ``--bootstrap`` counts how often intervals of
statistics hold that are of look-alike records: the population is the file, samples are of 5,000.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

EPSILONS = (0.1, 0.5, 1.0, 4.0)
SEEDS = (0, 1, 2)
DELTA = 1e-6
STRUCTURES = ("pairs", "target", "star", "independent")
PEERS = {"MST": (0.1, 0.5, 1.0, 4.0), "AIM": (0.1, 0.5, 1.0)}
BARS = {  # largest 2-way error, least AUC
    0.1: (0.070, 0.86),
    0.5: (0.034, 0.895),
    1.0: (0.027, 0.90),
    4.0: (0.024, 0.90),
}


@dataclass(frozen=True)
class Contract:
    """What is public of a table: boxes of its codebook, edges that anybody would take, a target."""

    target: str
    event: str
    boxes: dict[str, tuple[float, float]]
    edges: dict[str, tuple[float, ...]]


ADULT = Contract(
    "income",
    ">50K",
    {
        "age": (0, 120),
        "fnlwgt": (0, 1_500_000),
        "education_num": (1, 16),
        "capital_gain": (0, 100_000),
        "capital_loss": (0, 5_000),
        "hours_per_week": (1, 99),
    },
    {
        "age": (20, 23, 25, 28, 30, 33, 35, 38, 40, 43, 46, 50, 55, 60, 65, 70),
        "fnlwgt": tuple(range(50_000, 425_000, 25_000)),
        "education_num": tuple(i + 0.5 for i in range(1, 16)),
        "capital_gain": (1, 3_000, 4_000, 5_000, 7_000, 8_000, 10_000, 15_000, 50_000),
        "capital_loss": (1, 1_500, 1_700, 1_850, 1_900, 2_000, 2_200, 2_400),
        "hours_per_week": (10, 16, 20, 21, 25, 30, 35, 38, 40, 41, 45, 46, 50, 51, 55, 60, 61),
    },
)
GERMAN = Contract(
    "credit",
    "2",
    {
        "month": (1, 84),
        "credit_amount": (0, 20_000),
        "investment_as_income_percentage": (1, 4),
        "residence_since": (1, 4),
        "age": (18, 100),
        "number_of_credits": (1, 4),
        "people_liable_for": (1, 2),
    },
    {
        "month": (7, 10, 13, 16, 19, 25, 31, 37, 49),
        "credit_amount": (1_000, 1_500, 2_000, 2_500, 3_000, 4_000, 5_000, 7_000, 10_000),
        "investment_as_income_percentage": (1.5, 2.5, 3.5),
        "residence_since": (1.5, 2.5, 3.5),
        "age": (23, 26, 30, 35, 40, 45, 50, 60),
        "number_of_credits": (1.5, 2.5, 3.5),
        "people_liable_for": (1.5,),
    },
)
SIX = ("age", "marital_status", "relationship", "race", "sex", "income")
SAMPLE = 5_000
_HERE = Path(__file__).parent


def table(path: Path) -> tuple[Any, Contract]:
    """Return the records, and what is public of them; what is not known is a category."""
    import pandas as pd

    frame = pd.read_csv(path, keep_default_na=False)
    contract = GERMAN if GERMAN.target in frame.columns else ADULT
    return frame.astype({contract.target: "str"}), contract


def schema_of(frame: Any, contract: Contract) -> Any:
    """Return boxes of the codebook, and its categories, all of which occur."""
    from cloister import Schema

    boxes = contract.boxes
    columns = [
        {"name": name, "type": "integer", "min": boxes[name][0], "max": boxes[name][1]}
        if name in boxes
        else {"name": name, "type": "category", "categories": sorted(frame[name].unique())}
        for name in frame.columns
    ]
    return Schema(dataset="records", unit="row", columns=columns)


def levels_of(frame: Any, schema: Any, contract: Contract) -> tuple[Any, list[int]]:
    """Return the public level of each cell, and how many levels each column has."""
    import numpy as np

    cells, sizes = [], []
    for column in schema.columns:
        own = frame[column.name].to_numpy()
        if column.name in contract.edges:
            cells.append(np.searchsorted(contract.edges[column.name], own, side="right"))
            sizes.append(len(contract.edges[column.name]) + 1)
        else:
            cells.append([column.categories.index(cell) for cell in own])
            sizes.append(len(column.categories))
    return np.array(cells, dtype=np.int64).T, sizes


def ours(job: dict[str, Any], frame: Any, schema: Any, contract: Contract) -> Any:
    """Return records of our own."""
    from cloister.app.job import run_job
    from cloister.data import read_source
    from cloister.estimators.synthesiser import records_of
    from cloister.tasks import TASKS
    from cloister.testing import SimulatedNoise

    own: dict[str, Any] = {"structure": job["structure"], "public_seed": job["seed"]}
    if job["structure"] in ("target", "star"):
        own["target"] = contract.target
    if job["bins"] == "public":
        own["edges"] = contract.edges
    before = TASKS["synthesise"].steps_before(schema.public, own)
    result = run_job(
        TASKS["pipeline" if before else "synthesise"],
        schema,
        {"all": read_source(frame, schema)},
        epsilon=job["epsilon"],
        delta=DELTA,
        nominal_n=len(frame),
        noise=SimulatedNoise(job["seed"]),
        **({"steps": [*before, ("synthesise", own)]} if before else own),
    )
    return records_of(result, schema)


def theirs(
    job: dict[str, Any], frame: Any, schema: Any, contract: Contract
) -> tuple[Any, float, float]:
    """Return records of a peer, from its own Python, with its seconds and gigabytes."""
    import numpy as np
    import pandas as pd

    levels, sizes = levels_of(frame, schema, contract)
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "in.npz"), Path(folder, "out.npz")
        np.savez(given, levels=levels, sizes=sizes)
        words = [job["structure"], job["epsilon"], DELTA, job["seed"], given, found]
        command = [job["peer"], str(_HERE / "synthetic_peers.py"), *map(str, words)]
        subprocess.run(command, check=True, timeout=job["timeout"], stdout=subprocess.DEVNULL)
        out = np.load(found)
    rng = np.random.default_rng(job["seed"])
    columns = {}
    for j, column in enumerate(schema.columns):
        drawn = out["levels"][:, j]
        if column.name in contract.edges:
            edges = np.ceil([column.min, *contract.edges[column.name], column.max + 1])
            low, high = edges[drawn], edges[drawn + 1]
            columns[column.name] = np.floor(low + rng.random(len(low)) * (high - low))
        else:
            columns[column.name] = np.array(column.categories)[drawn]
    return pd.DataFrame(columns), float(out["seconds"]), float(out["gigabytes"])


def errors(real: Any, made: Any, sizes: list[int]) -> dict[str, float]:
    """Return the mean total variation of all tables of one, two and three columns."""
    import numpy as np

    found = {}
    for ways in (1, 2, 3):
        gaps = []
        for columns in combinations(range(len(sizes)), ways):
            shape = [sizes[j] for j in columns]
            parts = [
                np.bincount(
                    np.ravel_multi_index(tuple(rows[:, columns].T), shape), minlength=np.prod(shape)
                )
                / len(rows)
                for rows in (real, made)
            ]
            gaps.append(np.abs(parts[0] - parts[1]).sum() / 2)
        found[f"{ways}-way"] = float(np.mean(gaps))
    return found


def area(train: Any, test: Any, schema: Any, contract: Contract) -> float:
    """Return the area under the curve, on real records, of a model trained on others."""
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    def features(frame: Any) -> Any:
        own = {
            c.name: frame[c.name].astype(float)
            if c.name in contract.boxes
            else pd.Categorical(frame[c.name], categories=c.categories)
            for c in schema.columns
            if c.name != contract.target
        }
        return pd.DataFrame(own)

    model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0)
    label = train[contract.target] == contract.event
    if label.nunique() < 2:
        return 0.5
    model.fit(features(train), label)
    scores = model.predict_proba(features(test))[:, 1]
    return float(roc_auc_score(test[contract.target] == contract.event, scores))


def peak() -> float:
    """Return the largest memory of this process so far, in gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def one(job: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one cell."""
    import numpy as np

    frame, contract = table(Path(job["data"]))
    schema = schema_of(frame, contract)
    order = np.random.default_rng(job["seed"]).permutation(len(frame))
    cut = len(frame) * 4 // 5
    train, test = (frame.iloc[part].reset_index(drop=True) for part in (order[:cut], order[cut:]))
    del frame
    start, before = time.process_time(), peak()
    if job["structure"] in PEERS:
        made, seconds, gigabytes = theirs(job, train, schema, contract)
    else:
        made = train if job["structure"] == "real" else ours(job, train, schema, contract)
        seconds, gigabytes = time.process_time() - start, peak()
    real, sizes = levels_of(train, schema, contract)
    drawn, _ = levels_of(made, schema, contract)
    return {
        **{name: job[name] for name in ("structure", "bins", "epsilon", "seed")},
        **errors(real, drawn, sizes),
        "auc": area(made, test, schema, contract),
        "seconds": seconds,
        "gigabytes": gigabytes,
        "table_gigabytes": before,
    }


def bootstrap(
    path: Path, runs: int, epsilons: Sequence[float], structures: Sequence[str]
) -> list[str]:
    """Return a Markdown table: how often intervals hold, of the bootstrap and without any noise."""
    import numpy as np

    from cloister import DPSynthesiser, PlanError
    from cloister.testing import SimulatedNoise

    class Seeded(DPSynthesiser):
        @staticmethod
        def _new_noise() -> Any:
            return SimulatedNoise(seed)

    frame, contract = table(path)
    frame = frame[list(SIX)]
    schema = schema_of(frame, contract)

    def cells(records: Any) -> Any:
        rich, woman = records["income"] == ">50K", records["sex"] == "Female"
        return np.array([[(a & b).sum() for a in (~rich, rich)] for b in (~woman, woman)])

    def share(records: Any) -> float:
        return float(cells(records)[1, 1] / cells(records)[1].sum())

    def odds(records: Any) -> float:
        (a, b), (c, d) = cells(records) + 0.5
        return float(np.log(a * d / b / c))

    def usual(records: Any, statistic: Any) -> float:
        n = cells(records)
        if statistic is odds:
            return float(1.96 * np.sqrt((1 / (n + 0.5)).sum()))
        return float(1.96 * np.sqrt(share(records) * (1 - share(records)) / n[1].sum()))

    rows = ["| epsilon | tables | statistic | as if real | bootstrap | runs |"]
    rows.append("|---|---|---|---|---|---|")
    for epsilon, structure in product(epsilons, structures):
        held: dict[str, list[tuple[bool, bool]]] = {"share": [], "odds": []}
        for seed in range(runs):
            model = Seeded(
                structure,
                target=contract.target if structure == "star" else None,
                epsilon=epsilon,
                delta=DELTA,
                bounds=schema,
                nominal_n=SAMPLE,
                edges={"age": (25, 35, 45, 55, 65)},
                random_state=seed,
            ).fit(frame.sample(SAMPLE, random_state=seed))
            for name, statistic in (("share", share), ("odds", odds)):
                try:
                    _, low, high = model.interval_of(statistic, ["sex", "income"])
                except PlanError:  # not chosen
                    continue
                alike, truth = model.sample(SAMPLE), statistic(frame)
                naive = abs(statistic(alike) - truth) <= usual(alike, statistic)
                held[name].append((naive, low <= truth <= high))
        for name, hits in held.items():
            if hits:
                naive, covered = np.mean(hits, axis=0)
                cells_ = f"{structure} | {name} | {naive:.2f} | {covered:.2f} | {len(hits)}"
                rows.append(f"| {epsilon:g} | {cells_} |")
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def lines(found: list[dict[str, Any]]) -> list[str]:
    """Return a Markdown table, a row for each method and epsilon, means over seeds."""
    import numpy as np

    names = ("1-way", "2-way", "3-way", "auc", "seconds", "gigabytes")
    rows = ["| records | bins | epsilon | 1-way | 2-way | 3-way | AUC | s | GB | runs |"]
    rows.append("|---|---|---|---|---|---|---|---|---|---|")
    keys = dict.fromkeys((f["structure"], f["bins"], f["epsilon"]) for f in found)
    for structure, bins, epsilon in sorted(keys, key=lambda k: (k[2], k[1], list(keys).index(k))):
        own = [
            f
            for f in found
            if (f["structure"], f["bins"], f["epsilon"]) == (structure, bins, epsilon)
        ]
        means = [float(np.mean([f[name] for f in own])) for name in names]
        cells = [f"{m:.3f}" for m in means[:4]] + [f"{means[4]:.1f}", f"{means[5]:.2f}"]
        rows.append(f"| {structure} | {bins} | {epsilon:g} | {' | '.join(cells)} | {len(own)} |")
    return rows


def main() -> None:
    """Run all cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=_HERE / "synthetic.json")
    parser.add_argument("--peer-python", help="a Python with dpmm 0.1.9")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--structures", nargs="*", default=["real", *STRUCTURES, *PEERS])
    parser.add_argument("--bins", nargs="*", default=["public", "private"])
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--bootstrap", type=int, metavar="RUNS", help="intervals, and nothing else")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bootstrap:
        warnings.simplefilter("ignore")
        epsilons = [epsilon for epsilon in args.epsilons if epsilon >= 0.5]
        structures = [name for name in ("pairs", "star") if name in args.structures]
        print("\n".join(bootstrap(args.data, args.bootstrap, epsilons, structures)))
        return
    if args.one:
        print(json.dumps(one(json.loads(args.one))))
        return
    found: list[dict[str, Any]] = []
    for structure, bins, epsilon, seed in product(
        args.structures, args.bins, args.epsilons, args.seeds
    ):
        peer = structure in PEERS
        if structure == "real" and (bins, epsilon) != ("public", args.epsilons[0]):
            continue
        if peer and (bins == "private" or epsilon not in PEERS[structure] or seed != args.seeds[0]):
            continue
        if peer and not args.peer_python:
            print(f"{structure} is skipped: dpmm needs --peer-python.", file=sys.stderr)
            continue
        job = {
            "data": str(args.data),
            "structure": structure,
            "bins": bins,
            "epsilon": epsilon,
            "seed": seed,
            "peer": args.peer_python,
            "timeout": args.timeout,
        }
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        done = subprocess.run(
            [sys.executable, __file__, "--data", str(args.data), "--one", json.dumps(job)],
            capture_output=True,
            text=True,
            env={**os.environ, **threads},
        )
        if done.returncode:
            print(
                structure,
                bins,
                epsilon,
                seed,
                done.stderr.strip().splitlines()[-1],
                file=sys.stderr,
            )
            continue
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
