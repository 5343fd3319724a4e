"""The replay of a release: every number of its model must follow from its released words.

:func:`contradiction` names the first field that does not. It trusts no value of a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np

from cloister.app.release import NOT_PRIVATE, release_of, sums_of, words_of
from cloister.core.arrays import GridState
from cloister.privacy import accounting
from cloister.privacy.events import ComposedEvent, Event, event_from_dict, mechanism_counts
from cloister.privacy.noise import AGGREGATOR_NOISE, SILOS_NOISE, DiscreteNoise
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress, ReleasedSum

TOLERANCE = 1e-9
"""Largest difference of a number, relative to it where it exceeds 1."""
_MOST_EDGES = 64  # bounds the time for a model that no rounding explains
_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,60}")


def contradiction(document: Mapping[str, Any], words: bytes, plan: Plan) -> str | None:
    """Return the first field of a model that its words and plan contradict, or None.

    Parameters
    ----------
    document : mapping
        The values of the model, of any types.
    words : bytes
        The file of the released words.
    plan : Plan
        The plan that was read from the model, with the code of its task.
    """
    if _text(document.get("plan")) != plan.canonical_json():
        return "plan"  # it has further keys, or values that the reader would convert
    if document.get("plan_digest") != plan.digest.hex():
        return "plan_digest"
    if document.get("sums") != hashlib.sha256(words).hexdigest():
        return "sums"
    # A stranger's words may cause any error in the code of a task.
    with np.errstate(all="ignore"):
        try:
            sums = sums_of(plan, json.loads(words)["rounds"])
            if words_of(plan, sums) != words:
                return "sums"
            if not _complete(plan, sums):
                return "survivors"
            expected = release_of(plan, _states(plan, sums, document), sums, _noise(plan, document))
        except Exception:
            return "sums"
    expected = replace(expected, spent=_spent(plan, document))
    # Through JSON, so that tuples are lists as in the file.
    values = json.loads(json.dumps({**expected.to_dict(), "versions": _versions(document)}))
    within = plan.budget is None or (
        accounting.epsilon(plan.events(), plan.budget.delta)
        <= plan.budget.epsilon * (1 + TOLERANCE)
    )
    return difference(document, values) if within else "privacy.epsilon"


def difference(claimed: Any, expected: Any, place: str = "") -> str | None:
    """Return the place of the first value that differs from the expected one, or None.

    Numbers may differ by :data:`TOLERANCE`. Types, names, lengths and signs of zeros must be equal.
    """
    if type(claimed) is not type(expected):
        return place or "format"
    if isinstance(expected, dict):
        if strange := sorted(claimed.keys() ^ expected.keys()):
            return f"{place}.{strange[0]}".lstrip(".")
        pairs = ((f"{place}.{key}".lstrip("."), key) for key in sorted(expected))
        found = (difference(claimed[key], expected[key], inner) for inner, key in pairs)
        return next((one for one in found if one), None)
    if isinstance(expected, list):
        if len(claimed) != len(expected):
            return place
        both = enumerate(zip(claimed, expected, strict=True))
        found = (difference(one, other, f"{place}[{at}]") for at, (one, other) in both)
        return next((one for one in found if one), None)
    if isinstance(expected, float):
        return None if _gap(claimed, expected) <= 1 else place
    return None if claimed == expected else place


def _gap(claimed: float, expected: float) -> float:
    """Return the difference of two numbers in units of the tolerance."""
    if claimed == expected or (math.isnan(claimed) and math.isnan(expected)):
        same = expected != 0 or math.copysign(1, claimed) == math.copysign(1, expected)
        return 0.0 if same else math.inf
    gap = abs(claimed - expected) / (TOLERANCE * max(1.0, abs(expected)))
    return math.inf if math.isnan(gap) else gap


def _complete(plan: Plan, sums: Sequence[ReleasedSum]) -> bool:
    """Return True if each round has enough silos of the plan, in its order."""
    return len(sums) == plan.rounds and all(
        len(one.survivors) >= plan.min_silos
        and one.survivors == tuple(name for name in plan.silos if name in one.survivors)
        for one in sums
    )


def _states(
    plan: Plan, sums: Sequence[ReleasedSum], document: Mapping[str, Any]
) -> Iterator[GridState]:
    """Yield the states that the words lead to, rounded as the party of the model rounded them."""
    progress, history = Progress(plan), document.get("history")
    yield progress.state
    for t, released in enumerate(sums, 1):
        progress.receive(released.words, released.survivors)
        claimed = history[t] if isinstance(history, list) and t < len(history) else None
        _follow(plan, progress, claimed)
        yield progress.state


def _follow(plan: Plan, progress: Progress, claimed: Any) -> None:
    """Adopt the other grid point of elements on an edge where the claimed results are closer."""
    # Silos adopt one silo's state, whose floats may differ in the last bits from those of here.
    gap = _distance(plan, progress.state, claimed)
    if gap <= 1:
        return
    for name, at, other in islice(progress.edges(TOLERANCE), _MOST_EDGES):
        state = {**progress.state, name: progress.state[name].copy()}
        state[name].flat[at] = other
        if (now := _distance(plan, state, claimed)) < gap:
            progress.adopt(state)
            gap = now


def _distance(plan: Plan, state: GridState, claimed: Any) -> float:
    """Return the sum of the gaps of claimed results; infinity if they have other shapes."""
    found = {name: np.asarray(v) for name, v in plan.task.results(state, plan.grid).items()}
    try:
        given = {name: np.asarray(claimed[name], dtype=np.float64) for name in found}
    except Exception:  # of any type, since a stranger wrote it
        return math.inf
    if any(given[name].shape != found[name].shape for name in found):
        return math.inf
    gaps = (
        np.abs(given[name] - value) / (TOLERANCE * np.maximum(1.0, np.abs(value)))
        for name, value in found.items()
    )
    return float(sum(np.nansum(gap) for gap in gaps))


def _noise(plan: Plan, document: Mapping[str, Any]) -> str:
    """Return the label of the noise that a party of the plan can claim: the given one, if any."""
    if not plan.task.private:
        return NOT_PRIVATE
    labels = [DiscreteNoise.label]
    if plan.profile == "group" and plan.fingerprints:
        labels = [AGGREGATOR_NOISE]
    elif plan.profile == "pairwise":
        labels.append(SILOS_NOISE)  # of a coordinator
    return next((label for label in labels if label == document.get("noise")), labels[0])


def _spent(plan: Plan, document: Mapping[str, Any]) -> Event:
    """Return the events of the plan, after a noisy count if a job on one machine bought one."""
    planned = plan.events()
    try:
        claimed = event_from_dict(document["spent"])
    except Exception:  # of any type, since a stranger wrote it
        return planned
    if plan.fingerprints or not isinstance(claimed, ComposedEvent) or len(claimed.events) != 2:
        return planned
    (count, rest), kinds = claimed.events, {type(event) for event in mechanism_counts(planned)}
    counted = mechanism_counts(count)
    bought = rest == planned and list(counted.values()) == [1] and {*map(type, counted)} <= kinds
    return claimed if bought else planned


def _versions(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of a model as far as they can be any: only its signers know them."""
    given = document.get("versions")
    given = given if isinstance(given, dict) else {}
    named = {name: given.get(name) for name in ("cloister", "numpy")}
    return {
        name: text if isinstance(text, str) and _VERSION.fullmatch(text) else version(name)
        for name, text in named.items()
    }


def _text(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return ""
