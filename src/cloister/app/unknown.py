"""Results as JSON with a reason in place of each value that is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.plain import plain
from cloister.core.units import is_p_value
from cloister.protocol.plan import noun_of
from cloister.protocol.task import pipeline_steps

NOISY = "too much noise"
"""The reason if a task gives no other."""
Reasons = Mapping[str, str | Sequence[str]]
"""A text for all values of a result, or one for each place of its first axis; "" is `NOISY`."""


def unknown(reason: str) -> dict[str, Any]:
    """Return a value that is not known, in the types of JSON."""
    return {"value": None, "reason": reason or NOISY}


def results_with_reasons(release: Release) -> dict[str, Any]:
    """Return results in the types of JSON, with a reason for each value that is not known.

    Such a value is ``{"value": None, "reason": "..."}``, also inside a list. Infinite values are
    "Infinity" and "-Infinity".

    A task may have a member ``reasons(results)``, which returns :data:`Reasons` by name. A name
    also gives the reasons of results whose names begin with it, such as the ends of an interval.
    """
    *_, last = pipeline_steps(release.plan.task)
    of_task = getattr(last, "reasons", None)
    given: Reasons = of_task(release.results) if of_task else {}
    return {
        name: _with_reasons(values, _reasons(name, given, release))
        for name, values in release.results.items()
    }


def _reasons(name: str, given: Reasons, release: Release) -> str | Sequence[str]:
    plan = release.plan
    if plan.group_size > 1 and is_p_value(name):
        return f"one {noun_of(plan.unit)} may have {plan.group_size} records"
    return next((given[stem] for stem in given if f"{name}_".startswith(f"{stem}_")), NOISY)


def _with_reasons(values: Floats, reasons: str | Sequence[str]) -> Any:
    if isinstance(reasons, str):
        return plain(values, unknown(reasons))
    places = zip(values, reasons, strict=True)
    return [plain(part, unknown(reason)) for part, reason in places]
