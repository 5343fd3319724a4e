"""A design is the same at every party: on every machine, with every library of linear algebra."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister import Budget, Plan
from cloister.app.job import make_plan
from cloister.app.question import differences
from cloister.data.schema import schema_of
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of

VECTORS = Path(__file__).parents[2] / "vectors" / "designs.json"
KERNELS = ("Prescott", "Nehalem", "Sandybridge", "Haswell", "SkylakeX", "Zen")
FUNCTIONS = ("log", "log2", "log10", "exp", "expm1", "log1p", "pow", "erf", "erfc", "sin", "cos",
             "hypot")  # fmt: skip
UFUNCS = ("log", "log2", "log10", "exp", "expm1", "log1p", "power", "tanh", "sin", "cos", "hypot")
STAYS = ("declarations", "installed", "code_of", "_declared")  # caches that hold no number


def plans() -> dict[str, Plan]:
    """Return the plan of the example of each task, with an equal nonce."""
    return {name: plan_of(name) for name in TASKS}


def plan_of(name: str) -> Plan:
    task = TASKS[name]
    example, budget = example_of(task), Budget(2.0, 1e-6) if task.private else None
    schema = schema_of(tuple(example.columns))
    about = {"budget": budget, "nominal_n": 5000, **example.options}
    return replace(make_plan(task, schema, ("a", "b"), **about), run_id="0" * 32)


def digests() -> dict[str, str]:
    """Return a hash of each design, without the code of the task and the text of the question."""
    return {
        name: hashlib.sha256(
            replace(plan, code=None, question="").canonical_json().encode()
        ).hexdigest()
        for name, plan in plans().items()
    }


def test_designs_are_those_of_the_vectors() -> None:
    """Made by another version of Python; ``python tests/unit/app/test_designs.py`` makes them."""
    kept = json.loads(VECTORS.read_text())
    assert digests() == kept


def nearby(value: float, seed: int, *about: object) -> float:
    """Return a number, or one of its neighbours, by a hash of the arguments."""
    way = zlib.crc32(repr((seed, about)).encode()) % 3
    return (value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf))[way]


@contextmanager
def another_machine(seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let functions of the libraries of mathematics err in the last bit, as elsewhere."""
    originals: dict[Any, Callable[..., Any]] = {}

    def erring(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def near(*args: Any, **options: Any) -> Any:
            found = function(*args, **options)
            if np.ndim(found) == 0:
                return type(found)(nearby(float(found), seed, name, args))
            ends = np.where(np.arange(found.size) % 2, np.inf, -np.inf).reshape(found.shape)
            return np.nextafter(found, ends)

        return near

    for name in FUNCTIONS:
        originals[getattr(math, name)] = erring(name, getattr(math, name))
    modules = [m for n, m in sys.modules.items() if n.startswith("cloister")]
    for module in [math, *modules]:
        for name in FUNCTIONS:
            if (function := getattr(module, name, None)) in originals:
                monkeypatch.setattr(module, name, originals[function])
    for name in UFUNCS:
        monkeypatch.setattr(np, name, erring(name, getattr(np, name)))
    clear_caches()
    yield
    monkeypatch.undo()
    clear_caches()


def clear_caches() -> None:
    for found in gc.get_objects():
        if type(found) is functools._lru_cache_wrapper:  # `isinstance` asks proxies of the dead
            ours = (getattr(found, "__module__", "") or "").startswith("cloister")
            if ours and found.__name__ not in STAYS:
                found.cache_clear()


def test_designs_do_not_rest_on_the_last_bits_of_logarithms_and_powers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those differ between the libraries of machines, and silos refuse another design."""
    before = plans()
    for seed in range(5):
        with another_machine(seed, monkeypatch):
            after = plans()
        for name, plan in before.items():
            assert differences(plan, after[name]) == [], name


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_designs_are_the_same_on_every_kernel_of_openblas(kernel: str) -> None:
    code = "import json, sys; from test_designs import digests; print(json.dumps(digests()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OPENBLAS_CORETYPE": kernel, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads(VECTORS.read_text())


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(digests(), indent=1) + "\n")
