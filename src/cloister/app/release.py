"""``Release``: the released answer of a job and its plan, and the file that stores both."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.arrays import Floats, GridState
from cloister.core.errors import DataError
from cloister.hazmat.ring import from_bytes
from cloister.privacy import accounting
from cloister.privacy.events import Event, event_from_dict
from cloister.privacy.noise import SILOS_NOISE
from cloister.protocol.plan import Plan
from cloister.protocol.progress import SUMS_FORMAT, Progress
from cloister.protocol.task import Task
from cloister.tasks import installed

MODEL_FORMAT = "cloister-model/1"


@dataclass(frozen=True)
class Release:
    """The released answer of a job, and the public facts about it.

    Parameters
    ----------
    results : mapping of str to ndarray
        The results of the task, in data units.
    history : tuple of such mappings
        The public state before the first round and after each round.
    spent : Event
        The mechanisms that were applied to the records in all rounds, with the noisy count.
    noise : str
        The source of the noise.
    survivors : tuple of tuple of str
        The silos whose records are in each round's sum.
    """

    plan: Plan
    results: Mapping[str, Floats]
    history: tuple[Mapping[str, Floats], ...] = field(repr=False)
    spent: Event = field(repr=False)
    noise: str
    survivors: tuple[tuple[str, ...], ...] = field(repr=False)

    def epsilon(self) -> float:
        """Return the epsilon spent at the plan's delta; infinity for a task that is not private."""
        if self.plan.budget is None:
            return float("inf")
        return accounting.epsilon(self.spent, self.plan.budget.delta)

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON-able values: public numbers, without labels or records."""
        return {
            "format": MODEL_FORMAT,
            "plan": self.plan.to_dict(),
            "plan_digest": self.plan.digest.hex(),
            "results": {name: value.tolist() for name, value in self.results.items()},
            "history": [
                {name: value.tolist() for name, value in state.items()} for state in self.history
            ],
            "spent": self.spent.to_dict(),
            "noise": self.noise,
            "survivors": self.survivors,
            "versions": {name: version(name) for name in ("cloister", "numpy")},
        }

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], tasks: Mapping[str, type[Task]] | None = None
    ) -> Release:
        """Return the release of a saved model; its plan must have the digest it was saved with."""
        format_name = document.get("format") if isinstance(document, Mapping) else None
        if format_name not in (MODEL_FORMAT, SUMS_FORMAT):
            raise DataError(f"model must have format {MODEL_FORMAT!r}, got {format_name!r}.")
        try:
            known: Mapping[str, type[Task]] = ChainMap(tasks or {}, installed())  # type: ignore[arg-type]  # never written
            plan = Plan.from_dict(document["plan"], known)
            # A changed plan would state a cost and a noise that the results do not have.
            if plan.digest.hex() != document["plan_digest"]:
                raise DataError(
                    "plan of the model was changed: its digest differs; use the original."
                )
            if not plan.opened:
                raise DataError(
                    f"task {plan.task.name!r} of the model is not installed; install its package, "
                    "or give its file."
                )
            # A coordinator saves noisy sums only; the results follow from them.
            if format_name == SUMS_FORMAT:
                return _of_sums(plan, document["rounds"])
            return cls(
                plan=plan,
                results=_arrays(document["results"]),
                history=tuple(_arrays(state) for state in document["history"]),
                spent=event_from_dict(document["spent"]),
                noise=document["noise"],
                survivors=tuple(tuple(names) for names in document["survivors"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"model is not complete: {error}; save it again.") from error

    def save(self, path: str | Path) -> None:
        """Write the model as JSON; floats round-trip exactly."""
        from pydantic_core import to_json

        document = self.to_dict()
        # json writes numbers, which are almost all of the file, ten times slower.
        numbers = {name: document.pop(name) for name in ("history", "results")}
        rest = json.dumps(document, sort_keys=True).removesuffix("}").encode()
        Path(path).write_bytes(
            rest + b", " + to_json(numbers, inf_nan_mode="constants")[1:] + b"\n"
        )

    @classmethod
    def load(cls, path: str | Path, tasks: Mapping[str, type[Task]] | None = None) -> Release:
        """Read a model written by :meth:`save`; `tasks` adds tasks to the installed ones."""
        try:
            document = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"model {str(path)!r} cannot be read: {error}.") from error
        return cls.from_dict(document, tasks)


def release_of(
    plan: Plan,
    states: Iterable[GridState],
    survivors: Iterable[tuple[str, ...]],
    noise: str,
) -> Release:
    """Return the release of a job, in the users' units.

    Parameters
    ----------
    states : iterable of mappings
        The public state before the first round and after each round.
    survivors : iterable of tuple of str
        The silos in each round's sum.
    noise : str
        The source of the noise.
    """
    # A task without a state before the first round has no results of that state either.
    history = tuple(plan.task.results(state, plan.grid) if state else {} for state in states)
    label = noise if plan.task.private else "none: not private"
    return Release(plan, history[-1], history, plan.events(), label, tuple(survivors))


def _of_sums(plan: Plan, rounds: Iterable[Mapping[str, Any]]) -> Release:
    progress = Progress(plan)
    for t, done in enumerate(rounds):
        elements = from_bytes(b64decode(done["words"], validate=True), plan.length(t))
        progress.receive(elements, done["survivors"])
    return release_of(plan, progress.states, progress.survivors, SILOS_NOISE)


def _arrays(values: Mapping[str, Any]) -> dict[str, Floats]:
    return {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}


def target_of(plan: Plan) -> list[tuple[str, str]]:
    """Return the name of the column that a job predicts or compares with, if any."""
    # `target` of a model, `truth` of an evaluation.
    at = getattr(plan.task, "target", getattr(plan.task, "truth", None))
    return [] if at is None else [("target", plan.columns[at])]
