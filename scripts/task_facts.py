"""Prints the code of each task of a release, and hashes of all that its example says, as JSON.

    python scripts/task_facts.py FOLDER

The folder has the sources of the release. :mod:`earlier` runs this file once for each release.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

import numpy as np

# The sources of an installed checkout would come before those of the folder.
sys.meta_path[:] = [
    each for each in sys.meta_path if "ditable" not in type(each).__name__ + type(each).__module__
]
sys.path.insert(0, sys.argv[1])

# ruff: noqa: E402 -- imports must follow the change of the path

import cloister
from cloister import Budget
from cloister.app.job import make_plan
from cloister.data.schema import schema_of
from cloister.protocol.code import code_of
from cloister.protocol.task import nested_tasks
from cloister.tasks import TASKS
from cloister.tasks.examples import Example, example_of, numbers
from cloister.tasks.options import options_of
from cloister.testing import _noise, _on_grid


def literals(kind: Any) -> Iterator[Any]:
    """Yield the choices of an option."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from literals(part)


def variants(kind: Any, example: Any) -> Iterator[dict[str, Any]]:
    """Yield the options of the example, and each option once with other values."""
    yield {}
    names = [column.name for column in example.columns]
    for option in options_of(kind):
        value = example.options.get(option.name, option.default)
        if isinstance(value, bool):
            values = [not value]
        elif isinstance(value, int):
            values = [value + 1, 2 * value]
        elif isinstance(value, float):
            values = [value / 2]
        else:
            values = [*literals(option.kind), *names, *([name] for name in names)]
        yield from ({option.name: other} for other in values if other != value)


def sums(plan: Any, columns: Any) -> Iterator[bytes]:
    """Yield the sums and states of all rounds on made-up records, with seeded noise."""
    rng = np.random.default_rng(7)
    low, high = (np.array([getattr(c, end) for c in columns]) for end in ("low", "high"))
    values = low + (high - low) * rng.random((300, len(low)))
    whole = [bool(c.categories) for c in columns]
    values[:, whole] = np.rint(values[:, whole])
    task = plan.task
    records, state = plan.grid.encode(values), _on_grid(task, task.start())
    for t in range(plan.rounds):
        exact = task.contribute(t, state, records)
        yield exact.tobytes()
        state = _on_grid(task, task.update(t, state, plan.decode(t, exact + _noise(plan, t, rng))))
        for key in sorted(state):
            yield key.encode() + np.ascontiguousarray(state[key]).tobytes()


def says(
    kind: Any, example: Any, other: dict[str, Any], epsilon: float = 2.0, nominal_n: int = 300
) -> tuple[Any, str]:
    """Return the plan of an example and a hash of all that it says; a refusal has no plan."""
    budget = Budget(epsilon, 1e-6) if kind.private else None
    about = {"budget": budget, "nominal_n": nominal_n, **example.options, **other}
    said = hashlib.sha256()
    try:
        plan = make_plan(kind, schema_of(tuple(example.columns)), ("a", "b"), **about)
        plan = replace(plan, run_id="0" * 32)
        said.update(replace(plan, code=None).canonical_json().encode())
        for part in sums(plan, [c for c in example.columns if c.name in plan.columns]):
            said.update(part)
    except Exception as error:  # the options do not fit; the reason may be in other words
        return None, type(error).__name__
    return plan, said.hexdigest()


def wider(kind: Any) -> Iterator[Any]:
    """Yield examples with more columns."""
    own = getattr(kind, "example", None)
    for size in (3, 5, 20):
        if own is None:
            yield example_of(kind, n_features=size, n_clusters=4)
        else:
            yield Example((*own.columns, *numbers(size)), own.options)


found = {}
for name, kind in TASKS.items():
    if kind.__module__.partition(".")[0] != "cloister":
        continue
    example = example_of(kind)
    said = [says(kind, example, other) for other in variants(kind, example)]
    said += [
        says(kind, each, {}, epsilon, nominal_n)
        for each in (example, *wider(kind))
        for epsilon, nominal_n in ((0.5, 5000), (8.0, 300))
    ]
    plan, _ = said[0]
    if plan is None:
        print(name, *said[0], file=sys.stderr)
        continue
    kinds = dict.fromkeys(type(one) for one in nested_tasks(plan.task))
    found[name] = {
        "kinds": " ".join(f"{k.__module__}:{k.__qualname__}" for k in kinds),
        "code": code_of(plan.task).digest,
        "said": [text for _, text in said],
    }
if not str(cloister.__file__).startswith(sys.argv[1]):
    sys.exit(f"{cloister.__file__} is not in {sys.argv[1]}")
json.dump(found, sys.stdout)
