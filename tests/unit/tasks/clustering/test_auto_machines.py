"""All parties find the same states of ``auto``, whatever library and processor adds for them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

RUN = """
from hashlib import sha256
from math import isqrt, sqrt
import numpy as np
from cloister import Budget
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.task import Released
from cloister.tasks.clustering.auto import Auto
from cloister.testing import toy_task

digest = sha256()
for d in (2, 3):
    rng = np.random.default_rng(d)
    middles = rng.uniform(-0.7, 0.7, (6, d))
    values = np.clip(rng.normal(np.repeat(middles, 200, axis=0), 0.1), -1, 1)
    table = np.rint(values * 2**16).astype(np.int32)
    task = toy_task(Auto, budget=Budget(1.0, 1e-6), n_features=d, nominal_n=1200, n_clusters=6)
    state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    for t in range(task.rounds):
        words, released = task.contribute(t, state, table), {}
        for block in task.blocks(t):
            part, words = words[: block.size].reshape(block.shape), words[block.size :]
            std = isqrt(block.l2_squared) / (task.mu * sqrt(block.weight))
            noise = np.rint(rng.normal(0, std, block.shape)).astype(np.int64)
            released[block.name] = Released(part + noise, std)
        new = task.update(t, state, released)
        state = {name: round_to_grid(v, 16) for name, v in new.items()}
        for name in sorted(state):
            digest.update(name.encode() + state[name].astype("<i8").tobytes())
print(digest.hexdigest())
"""


@cache
def digest_under(**settings: str) -> str:
    """Return the digest of all states of two whole runs in a process with such settings."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN],
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return found.stdout.strip()


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="these kernels are for x86-64"
)
@pytest.mark.parametrize("kernels", ["Haswell", "Prescott"])
def test_states_do_not_depend_on_the_kernels_of_openblas(kernels: str) -> None:
    """Prescott's add in other orders than Haswell's, as two libraries do."""
    assert digest_under(OPENBLAS_CORETYPE=kernels) == digest_under()


def test_states_do_not_depend_on_the_vector_units_that_numpy_uses() -> None:
    features = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if not features:
        pytest.skip("numpy has no code for this processor alone")
    assert digest_under(NPY_DISABLE_CPU_FEATURES=" ".join(features)) == digest_under()
