"""Work out the public side of a job again, from its plan and its released sums alone.

``python -m cloister.protocol.replay`` does it in an interpreter that has seen no record: what a
task kept from its records anywhere in memory is not there. States and results must come out the
same to the last bit.
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
from cloister.protocol.progress import Progress
from cloister.protocol.task import Task, tasks_inside

Trace = Mapping[str, Any]
"""What comes out, as JSON-able values: *states*, *results* of each, what is shown of the last, and
*sums* of some records."""

_NOT_IMPORTED = 3


def replay(plan: Plan, released: Sequence[Integers], records: Records) -> Trace:
    """Follow a job by what it released; only then let the task see records.

    Parameters
    ----------
    released : sequence of ndarray of int64
        The noisy sum of each round.
    records : ndarray of shape (n, n_features), int32
        Their sums at each state come last.

    Returns
    -------
    mapping
        Numbers are written as the bytes they are, so that equal means equal to the last bit.
    """
    task, progress = plan.task, Progress(plan)
    for values in released:
        progress.receive(to_words(values), plan.silos)
    results = [task.results(state, plan.grid) for state in progress.states]
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
    """Return what a report shows of results, as text with all digits."""
    with np.printoptions(threshold=sys.maxsize, precision=17):
        return repr(plan.task.displays(results, plan.columns))


def replay_elsewhere(plan: Plan, released: Sequence[Integers], records: Records) -> Trace | None:
    """Return what :func:`replay` returns in a fresh interpreter and an empty folder.

    Returns
    -------
    mapping, or None
        Empty if the task fails there. None if its class cannot be imported by another interpreter:
        it was made by a function, or stands in the script that runs.
    """
    kinds = list(dict.fromkeys(type(task) for task in tasks_inside(plan.task)))
    if not all(map(_can_be_imported, kinds)):
        return None
    given = {
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
            input=json.dumps(given),
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(given["path"])},
            check=False,
        )
    if done.returncode:
        return None if done.returncode == _NOT_IMPORTED else {}
    found: Trace = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Read a job from standard input and write what comes out of it."""
    given = json.load(sys.stdin)
    try:
        tasks = [_imported(*place) for place in given["tasks"]]
    except Exception:  # whatever another's file does
        sys.exit(_NOT_IMPORTED)
    plan = Plan.from_dict(given["plan"], {task.name: task for task in tasks})
    width = plan.grid.n_features
    records = np.array(given["records"], dtype=np.int32).reshape(-1, width)
    released = [np.array(values, dtype=np.int64) for values in given["released"]]
    sys.stdout.write("\n" + json.dumps(replay(plan, released, records)) + "\n")


def _can_be_imported(kind: type[Task]) -> bool:
    """Return whether another interpreter finds the same class."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        return False
    try:
        found: object = attrgetter(kind.__qualname__)(module)
    except AttributeError:
        return False
    return found is kind


def _imported(name: str, file: str | None, kind: str) -> type[Task]:
    """Return a class by the name of its module, or from the file that it was executed from."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        spec = spec_from_file_location(name, file) if file else None
        if spec is None or spec.loader is None:
            raise
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    found: type[Task] = attrgetter(kind)(module)
    return found


def written(arrays: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return arrays as text: kind, shape and bytes."""
    found = {name: np.asarray(value) for name, value in sorted(arrays.items())}
    return {
        name: [array.dtype.str, str(array.shape), array.tobytes().hex()]
        for name, array in found.items()
    }
