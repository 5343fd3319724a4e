"""Time encrypted scoring beside TenSEAL by hand and scikit-learn in the clear.

    python benchmarks/encrypted_scoring.py

prints a table and writes ``encrypted_scoring.json`` beside this file: a logistic model of 30
columns asked about 1,000 rows, medians of 9 runs, one process, one thread. Message lengths are
those of the bytes that travel; keys are sent once and are a line of their own.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tenseal as ts
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cloister.shares.inference.encrypted import ClientKeys, ScoringClient, ScoringServer
from cloister.shares.inference.limits import QueryLimit
from cloister.shares.inference.linear import linear_scorer

N_ROWS, N_COLUMNS, RUNS = 1000, 30, 9
rng = np.random.default_rng(0)
X = rng.normal(3, 2, (N_ROWS, N_COLUMNS))
y = (X @ rng.normal(size=N_COLUMNS) + rng.normal(size=N_ROWS) > 3).astype(int)
MODEL = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
EXPECTED, LOGITS = MODEL.predict_proba(X)[:, 1], MODEL.decision_function(X)


class Clock:
    """Median times of named steps, milliseconds: by the wall, and of the processor."""

    def __init__(self) -> None:
        self.steps: dict[str, list[float]] = {}

    def __call__(self, name: str, step: Any) -> Any:
        begun, used = time.perf_counter(), time.process_time()
        done = step()
        self.steps.setdefault(name, []).append(1e3 * (time.perf_counter() - begun))
        self.steps.setdefault(f"{name}, processor", []).append(1e3 * (time.process_time() - used))
        return done

    def medians(self) -> dict[str, float]:
        return {name: median(times) for name, times in self.steps.items()}


def ours() -> dict[str, float]:
    clock, scorer = Clock(), linear_scorer(MODEL, (X.min(axis=0), X.max(axis=0)))
    with tempfile.TemporaryDirectory() as folder:
        limit = QueryLimit(10**9, Path(folder) / "limit.db")
        server = ScoringServer(scorer, limit, rows=N_ROWS, hides="features")
        keys = ClientKeys.new()
        server.admit("caller", keys.public)
        client, errors = ScoringClient(server.offer, keys), []
        for _ in range(RUNS):
            request = clock("client encrypts", lambda: client.encrypt_features(X))
            reply = clock("server", lambda r=request: server.predict("caller", r))
            found = clock("client decrypts", lambda r=reply: client.decrypt_prediction(r))
            logit = np.log(found[:, 1] / found[:, 0])
            near = np.abs(LOGITS) < 15  # beyond, a probability near 1 holds no logit
            errors.append(
                (np.abs(found[:, 1] - EXPECTED).max(), np.abs(logit - LOGITS)[near].max())
            )
    own = server.offer
    return {
        **clock.medians(),
        "bytes up": len(request),
        "bytes down": len(reply),
        "bytes of the public key": len(keys.public),
        "error of a probability": max(e for e, _ in errors),
        "error of a logit": max(e for _, e in errors),
        "bits that hide the weights, 1 answer": client._scheme.parameters.weights_hidden_bits(
            scorer.norm
        ),
        "bits that hide the key, 2^20 scores": client._scheme.parameters.key_hidden_bits(
            scorer.norm, 2**20
        ),
        "rows of a batch": own.rows,
    }


def by_hand() -> dict[str, float]:
    """Score as TenSEAL's users write it: bare sums, which tell the caller all weights."""
    clock = Clock()
    scaler, last = MODEL[0], MODEL[-1]
    weights = last.coef_[0] / scaler.scale_
    bias = float(last.intercept_[0] - weights @ scaler.mean_)
    context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60])
    context.global_scale = 2.0**40
    public = context.copy()
    public.make_context_public()
    sent = public.serialize(save_galois_keys=False, save_relin_keys=False)
    held = ts.context_from(sent)
    errors = []

    def encrypt() -> list[bytes]:
        return [ts.ckks_vector(context, column.tolist()).serialize() for column in X.T]

    def score(columns: list[bytes]) -> bytes:
        total = None
        for column, weight in zip(columns, weights.tolist(), strict=True):
            term = ts.ckks_vector_from(held, column) * weight
            total = term if total is None else total + term
        return (total + bias).serialize()

    for _ in range(RUNS):
        columns = clock("client encrypts", encrypt)
        reply = clock("server", lambda c=columns: score(c))
        found = clock(
            "client decrypts", lambda r=reply: np.array(ts.ckks_vector_from(context, r).decrypt())
        )
        errors.append(
            (np.abs(1 / (1 + np.exp(-found)) - EXPECTED).max(), np.abs(found - LOGITS).max())
        )
    return {
        **clock.medians(),
        "bytes up": sum(map(len, columns)),
        "bytes down": len(reply),
        "bytes of the public key": len(sent),
        "error of a probability": max(e for e, _ in errors),
        "error of a logit": max(e for _, e in errors),
    }


def in_the_clear() -> dict[str, float]:
    clock = Clock()
    for _ in range(RUNS):
        clock("server", lambda: MODEL.predict_proba(X))
    return clock.medians()


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> None:
    found = {
        "cloister": ours(),
        "TenSEAL by hand": by_hand(),
        "scikit-learn in the clear": in_the_clear(),
    }
    names = list(found["cloister"])
    machine = f"{os.cpu_count()}-core {platform.machine()}"
    print(f"{N_ROWS} rows x {N_COLUMNS} columns, times in ms, {machine}")
    print("| | " + " | ".join(found) + " |")
    print("|---|" + "---:|" * len(found))
    for name in names:
        print(f"| {name} | " + " | ".join(shown(one.get(name)) for one in found.values()) + " |")
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
