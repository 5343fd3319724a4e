"""Recompute the public side of a job from its plan and its released sums alone.

``python -m cloister.protocol.replay`` does so in an interpreter that has seen no record. A task
that keeps information about records in memory cannot access it there. States and results must be
equal to the last bit.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.arrays import Integers, Records
from cloister.hazmat.ring import to_words
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress, results_at
from cloister.protocol.task import Task, nested_tasks

Trace = Mapping[str, Any]
"""The outcome as JSON-able values: *states*, *results* of each, *displays* of the last, and *sums*
of some records."""

_NOT_IMPORTED = 3  # exit code; Python itself uses 1 and 2


def replay(plan: Plan, released: Sequence[Integers], records: Records) -> Trace:
    """Replay a job from its released sums, then sum some records at each state.

    Parameters
    ----------
    released : sequence of ndarray of int64
        The noisy sum of each round.
    records : ndarray of shape (n, n_features), int32
        Records to sum, after all states and results are computed.

    Returns
    -------
    mapping
        Numbers are encoded as bytes, so that equality holds to the last bit.
    """
    task, progress = plan.task, Progress(plan)
    # Records come last: states and results cannot depend on records that the task never saw.
    for values in released:
        progress.receive(to_words(values), plan.silos)
    results = [results_at(plan, state) for state in progress.states]
    return {
        "states": [written(state) for state in progress.states],
        "results": [written(result) for result in results],
        "displays": shown(plan, results[-1]),
        "sums": [
            written({"words": task.contribute(t, state, records)})
            for t, state in enumerate(progress.states[: plan.rounds])
        ],
    }


def shown(plan: Plan, results: Mapping[str, Any]) -> str:
    """Return the displays of results as text with all digits."""
    with np.printoptions(threshold=sys.maxsize, precision=17):  # 17 digits determine a float
        return repr(plan.task.displays(results, plan.columns))


def replay_elsewhere(plan: Plan, released: Sequence[Integers], records: Records) -> Trace | None:
    """Run :func:`replay` in a fresh interpreter and an empty folder.

    Returns
    -------
    mapping, or None
        Empty if the task fails there. None if another interpreter cannot import its class, which a
        function or the running script defines.
    """
    kinds = list(dict.fromkeys(type(task) for task in nested_tasks(plan.task)))
    if not all(map(_can_be_imported, kinds)):
        return None
    request = {
        # Absolute, since the other interpreter runs in another folder.
        "path": [str(Path(entry).resolve()) for entry in sys.path],
        "tasks": [
            (k.__module__, getattr(sys.modules[k.__module__], "__file__", None), k.__qualname__)
            for k in kinds
        ],
        "plan": plan.to_dict(),
        "released": [values.tolist() for values in released],
        "records": records.tolist(),
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", "from cloister.protocol.replay import main; main()"],
            input=json.dumps(request, allow_nan=False),
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(request["path"])},
            check=False,
        )
    if done.returncode:
        return None if done.returncode == _NOT_IMPORTED else {}
    trace: Trace = json.loads(done.stdout.splitlines()[-1])  # a task may have printed before it
    return trace


def main() -> None:
    """Read a job from standard input and write its trace to standard output."""
    request = json.load(sys.stdin)
    try:
        tasks = [_imported(*place) for place in request["tasks"]]
    except Exception:  # importing another author's file may raise any error
        sys.exit(_NOT_IMPORTED)
    plan = Plan.from_dict(request["plan"], {task.name: task for task in tasks})
    width = plan.grid.n_features
    records = np.array(request["records"], dtype=np.int32).reshape(-1, width)
    released = [np.array(values, dtype=np.int64) for values in request["released"]]
    # On a new line, since the task may have printed before.
    sys.stdout.write("\n" + json.dumps(replay(plan, released, records), allow_nan=False) + "\n")


def _can_be_imported(kind: type[Task]) -> bool:
    """Return True if another interpreter can import the same class."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        return False
    # A later class of the same name may have replaced it in its module.
    try:
        current: object = attrgetter(kind.__qualname__)(module)
    except AttributeError:
        return False
    return current is kind


def _imported(name: str, file: str | None, kind: str) -> type[Task]:
    """Import a class by the name of its module, or from the file that defined it."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        spec = spec_from_file_location(name, file) if file else None
        if spec is None or spec.loader is None:
            raise
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    task: type[Task] = attrgetter(kind)(module)
    return task


def written(arrays: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return arrays as text: type, shape and bytes."""
    by_name = {name: np.asarray(value) for name, value in sorted(arrays.items())}
    return {
        name: [array.dtype.str, str(array.shape), array.tobytes().hex()]
        for name, array in by_name.items()
    }
