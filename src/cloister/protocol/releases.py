"""The code of tasks in the release before this one, so that silos of both can take part in one job.

The file ``earlier.json`` has the digests of tasks that compute the same in both releases: equal
plans, sums and states for equal records and answers. ``scripts/earlier.py`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from cloister.core.errors import PlanError
from cloister.protocol.plan import Code
from cloister.protocol.task import Task, nested_tasks

UNTOLD = ""
"""The release of a silo that does not name one: releases before 0.3.0 do not."""


@cache
def _earlier() -> tuple[str, dict[str, str]]:
    """Return the release before this one, and digests by the classes of a task."""
    found = json.loads(Path(__file__).with_name("earlier.json").read_text(encoding="utf-8"))
    return found["release"], found["tasks"]


def earlier_code(task: Task) -> Code | None:
    """Return the code of a task in the release before, or None if it computes something else."""
    release, digests = _earlier()
    kinds = dict.fromkeys(type(one) for one in nested_tasks(task))
    digest = digests.get(" ".join(f"{kind.__module__}:{kind.__qualname__}" for kind in kinds))
    return None if digest is None else Code("cloister", release, digest)


def code_for(task: Task, code: Code | None, releases: Iterable[str]) -> Code | None:
    """Return the code that a plan names, so that every member accepts it.

    Parameters
    ----------
    code : Code, optional
        The code that is installed here.
    releases : iterable of str
        The releases of members, as far as they are known.

    Raises
    ------
    PlanError
        If a member has the release before, in which the task computes something else.
    """
    release, _ = _earlier()
    if not {release, UNTOLD} & {*releases}:
        return code
    if (earlier := earlier_code(task)) is None:
        raise PlanError(
            f"a silo has cloister {release}, where task {task.name!r} computes something else; "
            "upgrade that silo, or plan without it."
        )
    return earlier
