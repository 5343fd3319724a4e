"""The replay of a release: every value of its model must follow from its released words.

:func:`contradiction` names the first field that does not. It trusts no value of a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from cloister.app.release import NOT_PRIVATE, release_of, sums_of
from cloister.core.arrays import GridState
from cloister.privacy.events import ComposedEvent, Event, event_from_dict, mechanism_counts
from cloister.privacy.noise import AGGREGATOR_NOISE, SILOS_NOISE, DiscreteNoise
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress, ReleasedSum, results_at, words_of

TOLERANCE = 1e-9
"""Largest difference of a number, relative to it where it exceeds 1."""
_MOST_EDGES = 64  # bounds the time for a model that no rounding explains
_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,60}")


def contradiction(document: Mapping[str, Any], words: bytes, plan: Plan) -> str | None:
    """Return the first field of a model that its words or its plan contradict, or None.

    Parameters
    ----------
    document : mapping
        The values of the model, of any types.
    words : bytes
        The file of the released words.
    plan : Plan
        The plan that was read from the model, with the code of its task.
    """
    if document.get("plan_digest") != plan.digest.hex():
        return "plan_digest"
    if document.get("sums") != hashlib.sha256(words).hexdigest():
        return "sums"
    history = document.get("history")
    if not isinstance(history, list) or len(history) != plan.rounds + 1:
        return "history"
    try:
        with np.errstate(all="ignore"):
            sums = sums_of(plan, json.loads(words)["rounds"])
            if words_of(plan, sums) != words:
                return "sums"
            if not _complete(plan, sums):
                return "survivors"
            found = release_of(plan, _states(plan, sums, history), sums, _noise(plan, document))
    except Exception:  # of any kind: a stranger wrote the words, and a task is code
        return "sums"
    expected = replace(found, spent=_spent(plan, document)).to_dict()
    if _are_versions(document.get("versions")):  # which only the signers of the model know
        expected["versions"] = document["versions"]
    # Through JSON, so that tuples are lists as in the file.
    return difference(document, json.loads(json.dumps(expected, allow_nan=False)))


def difference(claimed: Any, expected: Any, place: str = "") -> str | None:
    """Return the place of the first value that differs from the expected one, or None.

    Numbers may differ by :data:`TOLERANCE`. Types, names, lengths and signs of zeros must be equal.
    """
    if type(claimed) is not type(expected):
        return place
    if isinstance(expected, dict):
        if strange := sorted(claimed.keys() ^ expected.keys()):
            return f"{place}.{strange[0]}".lstrip(".")
        inner = ((f"{place}.{k}".lstrip("."), claimed[k], expected[k]) for k in sorted(expected))
    elif isinstance(expected, list):
        if len(claimed) != len(expected):
            return place
        both = enumerate(zip(claimed, expected, strict=True))
        inner = ((f"{place}[{at}]", one, other) for at, (one, other) in both)
    else:
        same = _near(claimed, expected) if isinstance(expected, float) else claimed == expected
        return None if same else place
    return next(filter(None, (difference(one, other, at) for at, one, other in inner)), None)


def _near(claimed: float, expected: float) -> bool:
    if claimed == expected:
        return expected != 0 or math.copysign(1, claimed) == math.copysign(1, expected)
    if not (math.isfinite(claimed) and math.isfinite(expected)):
        return math.isnan(claimed) and math.isnan(expected)
    return abs(claimed - expected) <= TOLERANCE * max(1.0, abs(expected))


def _complete(plan: Plan, sums: Sequence[ReleasedSum]) -> bool:
    """Return True if each round has enough silos of the plan, in its order."""
    return len(sums) == plan.rounds and all(
        len(one.survivors) >= plan.min_silos
        and one.survivors == tuple(name for name in plan.silos if name in one.survivors)
        for one in sums
    )


def _states(plan: Plan, sums: Sequence[ReleasedSum], history: Sequence[Any]) -> Iterator[GridState]:
    """Yield the states that the words lead to, rounded as the party of the model rounded them."""
    progress = Progress(plan)
    yield progress.state
    for released, claimed in zip(sums, history[1:], strict=True):
        progress.receive(released.words, released.survivors)
        # Silos adopt one silo's state, whose floats may differ in the last bits from those of here.
        gap = _distance(plan, progress.state, claimed)
        edges = islice(progress.edges(TOLERANCE), _MOST_EDGES if gap > TOLERANCE else 0)
        for name, at, other in list(edges):
            state = {**progress.state, name: progress.state[name].copy()}
            state[name].flat[at] = other
            if (now := _distance(plan, state, claimed)) < gap:
                progress.adopt(state)
                gap = now
        yield progress.state


def _distance(plan: Plan, state: GridState, claimed: Any) -> float:
    """Return the sum of the differences of claimed results; infinity if they are no numbers."""
    found = results_at(plan, state)
    try:
        gaps = (np.abs(np.asarray(claimed[name], float) - found[name]) for name in found)
        return float(sum(map(np.nansum, gaps)))
    except Exception:  # of any kind: a stranger wrote them
        return math.inf


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
    except Exception:  # of any kind, as above
        return planned
    if plan.fingerprints or not isinstance(claimed, ComposedEvent) or len(claimed.events) != 2:
        return planned
    (count, rest), kinds = claimed.events, {type(event) for event in mechanism_counts(planned)}
    counted = mechanism_counts(count)
    bought = rest == planned and list(counted.values()) == [1] and {*map(type, counted)} <= kinds
    return claimed if bought else planned


def _are_versions(given: Any) -> bool:
    return (
        isinstance(given, dict)
        and given.keys() == {"cloister", "numpy"}
        and all(isinstance(text, str) and _VERSION.fullmatch(text) for text in given.values())
    )
