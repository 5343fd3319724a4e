"""The coefficients of a released regression, for programs in other languages."""

from __future__ import annotations

from typing import Any

from cloister.app.release import Release, target_of
from cloister.core.plain import plain
from cloister.protocol.task import pipeline_steps

CONTRACT = 1
"""Version of the document. It grows if a key changes its meaning or goes, not if one is added."""


def coefficients_of(release: Release) -> dict[str, Any]:
    """Return the key ``coefficients`` of a JSON document; nothing for a task without them.

    A task may have a member ``coefficients(results, columns)``. It returns the keys of its model,
    see :func:`cloister.tasks.regression.report.coefficients_of`. A number that is not known is
    None, so that a covariance stays a matrix of numbers.
    """
    plan = release.plan
    *_, last = pipeline_steps(plan.task)
    of_task = getattr(last, "coefficients", None)
    if of_task is None:
        return {}
    document = {
        "contract": CONTRACT,
        **dict(target_of(plan)),
        **of_task(release.results, plan.columns),
        "epsilon": release.epsilon() if plan.budget else None,
        "delta": plan.budget.delta if plan.budget else None,
        "digest": plan.digest.hex(),
    }
    return {"coefficients": plain(document)}
