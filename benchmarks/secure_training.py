"""Training on shares by real processes, beside SPU and training in the clear.

    python benchmarks/secure_training.py [--spu PYTHON] [--repeats 3]

Logistic regression on 3,000 rows x 10 columns of three silos, 20 steps; k-means on 10,000 x 2 with
5 centres, by iteration; a two-layer network. Two servers and a dealer are processes of their own
over loopback TCP, with sealed links and no added delay. scikit-learn and NumPy train in the clear
on the same rows; SPU (three parties, ABY3, no dealer) runs in PYTHON, an interpreter that has it
(``spu==0.9.5 jax==0.4.34 jaxlib==0.4.34 numpy==1.26.4``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from cloister.shares.mpc import decode
from cloister.shares.mpc.opening import MARKS
from cloister.shares.mpc.training import KMeansOnShares, LogisticOnShares, NetworkOnShares

sys.path.insert(0, str(Path(__file__).parent))
from share_processes import Outcome, run_processes

Floats = NDArray[np.float64]
OWNERS = ("north", "south", "west")


def train(model: Any, columns: Sequence[NDArray[Any]], repeats: int) -> Outcome:
    """Split the rows over three silos, each with some room to spare, and train."""
    parts = [np.array_split(column, len(OWNERS)) for column in columns]
    tables = {
        owner: model.table(*part)
        for owner, part in zip(OWNERS, zip(*parts, strict=True), strict=True)
    }
    return run_processes(model, tables, repeats)


def said(model: LogisticOnShares | KMeansOnShares) -> str:
    """Return what an opening is; nothing is charged here, the records are made up."""
    if model.opening == "exact":
        return MARKS["exact"]
    return f"private, epsilon {model.epsilon:g} at delta {model.delta:g} for all rounds"


def in_spu(python: str | None, program: str, X: Floats, start: Floats) -> str:
    """Return what SPU takes for one iteration or step."""
    if python is None:
        return "SPU: not measured, no --spu"
    from cloister_lab.experiments import spu_kmeans
    from cloister_lab.experiments.environments import run_script

    arguments = ["ABY3", "5", "FILE", program]
    done = run_script(Path(python), spu_kmeans.__file__, arguments, {"X": X, "centres": start})
    if isinstance(done, str):
        return f"SPU: not measured, {done}"
    sent = f"{done['bytes'] / 1e6:.2f} MB sent by all three" if done["bytes"] else "bytes unknown"
    seconds = ", ".join(f"{s:.3f}" for s in sorted(done["seconds"]))
    return f"SPU {done['spu']} ABY3: {seconds} s, {sent}"


def logistic(repeats: int, spu: str | None) -> None:
    """Twenty steps on 3,000 x 10, exact and private; scikit-learn on the same scaled rows."""
    draw = np.random.default_rng(0)
    d, n = 10, 3000
    X = draw.uniform(-1, 1, (n, d))
    y = (draw.random(n) < 1 / (1 + np.exp(-3 * X @ draw.normal(size=d)))).astype(int)
    box: dict[str, Any] = {"owners": OWNERS, "rows": n // 3, "low": (-1.0,) * d, "high": (1.0,) * d}
    # Rows are about 1.8 long: of length 1 after division, the curvature is 1/8 and steps can be 8.
    model = LogisticOnShares(**box, radius=1.8, steps=20, step=4.0)
    peer = LogisticRegression(C=1e6).fit(X, y)
    design = np.hstack([X / np.maximum(np.linalg.norm(X, axis=1), 1.8)[:, None], np.ones((n, 1))])
    clear = np.zeros(d + 1)
    before = perf_counter()
    for _ in range(20):
        clear -= 4 / n * (design.T @ (1 / (1 + np.exp(-design @ clear)) - y))
    seconds = perf_counter() - before
    for chosen in (model, replace(model, epsilon=2.0)):
        done = train(chosen, (X, y), repeats)
        weights = decode(done.results["weights"])
        coefficients, intercept = chosen.model(weights)
        accuracy = np.mean((X @ coefficients + intercept > 0) == y)
        apart = np.abs(weights - clear).max()
        print(f"logistic 3,000 x 10, 20 steps, {chosen.opening}: {done}")
        print(
            f"  weights at most {apart:.2g} from the same steps in floats; accuracy "
            f"{accuracy:.4f}, scikit-learn to convergence {peer.score(X, y):.4f}"
        )
        print(f"  {said(chosen)}")
    print(f"  the same steps in NumPy, in the clear: {seconds:.4f} s")
    print(f"  one step in {in_spu(spu, 'logistic', np.hstack([X, y[:, None]]), np.zeros((d, 1)))}")


def kmeans(repeats: int, spu: str | None) -> None:
    """Iterations on 10,000 x 2 with 5 centres."""
    draw = np.random.default_rng(1)
    blobs = draw.uniform(-0.8, 0.8, (5, 2))
    X = np.clip(blobs[draw.integers(5, size=10_000)] + draw.normal(0, 0.06, (10_000, 2)), -1, 1)
    start = X[draw.choice(len(X), 5, replace=False)]
    box: dict[str, Any] = {"owners": OWNERS, "rows": 3334, "low": (-1.0,) * 2, "high": (1.0,) * 2}
    model = KMeansOnShares(**box, centres=tuple(map(tuple, start.tolist())), iterations=5)
    clear = start.copy()
    for _ in range(5):
        label = ((X[:, None] - clear) ** 2).sum(axis=2).argmin(axis=1)
        for j in set(label.tolist()):
            clear[j] = X[label == j].mean(axis=0)
    for chosen in (model, replace(model, epsilon=2.0)):
        done = train(chosen, (X,), repeats)
        centres = chosen.model(decode(done.results["centres"]))
        loss, best = (
            ((X[:, None] - c) ** 2).sum(axis=2).min(axis=1).mean() for c in (centres, clear)
        )
        print(f"k-means 10,000 x 2, 5 centres, 5 iterations, {chosen.opening}: {done}")
        print(
            f"  {done.online_s / 5:.3f} s and {2 * done.bytes_between / 5e6:.2f} MB by both "
            f"servers an iteration; centres at most {np.abs(centres - clear).max():.2g} from "
            f"Lloyd's in floats; mean squared distance {loss:.5f}, in the clear {best:.5f}"
        )
        print(f"  {said(chosen)}")
    print(f"  one iteration in {in_spu(spu, 'kmeans', X, start)}")


def network(repeats: int) -> None:
    """Twenty steps of a network with 16 hidden units on 3,000 x 10."""
    draw = np.random.default_rng(2)
    X = draw.uniform(-1, 1, (3000, 10))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    model = NetworkOnShares(
        owners=OWNERS, rows=1000, low=(-1.0,) * 10, high=(1.0,) * 10, hidden=16, steps=20
    )
    print(f"network 10-16-2, 3,000 rows, 20 steps, exact: {train(model, (X, y), repeats)}")
    print(f"  {MARKS[model.opening]}")


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spu", help="an interpreter that has SPU")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    logistic(options.repeats, options.spu)
    kmeans(options.repeats, options.spu)
    network(options.repeats)


if __name__ == "__main__":
    main()
