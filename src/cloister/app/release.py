"""``Release``: the released answer of a job and its plan, and the file that stores both."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.arrays import Floats, GridState
from cloister.core.errors import CloisterError, DataError
from cloister.core.files import read_json
from cloister.core.plain import plain
from cloister.hazmat.ring import from_bytes
from cloister.privacy import accounting
from cloister.privacy.events import Event, event_from_dict, mechanism_counts
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.plan import Plan
from cloister.protocol.progress import SUMS_FORMAT, Progress, ReleasedSum, results_at, words_of
from cloister.protocol.task import Classifier, Regressor, Task, Transformer
from cloister.tasks import installed

MODEL_FORMAT = "cloister-model/1"
NOT_PRIVATE = "none: not private"
"""Label of the noise of a task that is not private."""
_SUFFIX = ".sums"


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
    sums : tuple of ReleasedSum
        The released words of each round, from which all results follow; empty without them.
    """

    plan: Plan
    results: Mapping[str, Floats]
    history: tuple[Mapping[str, Floats], ...] = field(repr=False)
    spent: Event = field(repr=False)
    noise: str
    survivors: tuple[tuple[str, ...], ...] = field(repr=False)
    sums: tuple[ReleasedSum, ...] = field(default=(), repr=False)

    def epsilon(self) -> float:
        """Return the epsilon spent at the plan's delta; infinity for a task that is not private."""
        if self.plan.budget is None:
            return float("inf")
        return accounting.epsilon(self.spent, self.plan.budget.delta)

    def privacy(self) -> dict[str, Any]:
        """Return the privacy guarantee as JSON-able values, for an accountant of another party."""
        plan, budget = self.plan, self.plan.budget
        return {
            "unit": plan.unit,
            "max_rows": plan.max_rows,
            "max_silos_per_person": plan.max_silos_per_person,
            "neighbours": "add or remove one unit",
            "epsilon": self.epsilon() if budget else None,
            "delta": budget.delta if budget else None,
            # Noise is relative to the sensitivity of a whole unit.
            "mechanisms": [
                {**mechanism.to_dict(), "count": times}
                for mechanism, times in mechanism_counts(self.spent).items()
            ],
            "composition": "adaptive, of all mechanisms",
        }

    @property
    def sums_digest(self) -> str | None:
        """SHA-256 of the file of the released words, in hexadecimal; None without words."""
        return hashlib.sha256(words_of(self.plan, self.sums)).hexdigest() if self.sums else None

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON-able values: public numbers, without labels or records.

        Numbers that are not known are None, so that the file is read back;
        :func:`~cloister.app.unknown.results_with_reasons` has the reasons.
        """
        return {
            "format": MODEL_FORMAT,
            "plan": self.plan.to_dict(),
            "plan_digest": self.plan.digest.hex(),
            "results": plain(self.results),
            "history": plain(self.history),
            "spent": self.spent.to_dict(),
            "noise": self.noise,
            "survivors": self.survivors,
            "privacy": self.privacy(),
            "sums": self.sums_digest,
            "versions": {name: _version(name) for name in ("cloister", "numpy")},
        }

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], tasks: Mapping[str, type[Task]] | None = None
    ) -> Release:
        """Return the release of a saved model; its plan must have the digest it was saved with."""
        plan = plan_of_model(document, tasks)
        # A changed plan would state a cost and a noise that the results do not have.
        if plan.digest.hex() != document.get("plan_digest"):
            raise DataError("plan of the model was changed: its digest differs; use the original.")
        if not plan.opened:
            raise DataError(
                f"task {plan.task.name!r} of the model is not installed; install its package, "
                "or give its file."
            )
        try:
            # A coordinator saves noisy sums only; the results follow from them.
            if document["format"] == SUMS_FORMAT:
                return of_sums(plan, document["rounds"])
            release = cls(
                plan=plan,
                results=_arrays(document["results"]),
                history=tuple(_arrays(state) for state in document["history"]),
                spent=event_from_dict(document["spent"]),
                noise=str(document["noise"]),
                survivors=tuple(tuple(map(str, names)) for names in document["survivors"]),
            )
            _check_usable(release)
        except CloisterError:
            raise
        except Exception as error:  # of any kind: a stranger wrote the model, and a task is code
            raise DataError(
                f"model does not fit its task {plan.task.name!r} ({type(error).__name__}); use the "
                "original, which 'cloister verify' accepts."
            ) from None
        return release

    def save(self, path: str | Path) -> None:
        """Write the model, and its words to a file next to it; floats round-trip exactly."""
        from pydantic_core import to_json

        document, file = self.to_dict(), Path(path)
        if self.sums:
            words_file(file).write_bytes(words_of(self.plan, self.sums))
        # json writes numbers, which are almost all of the file, ten times slower.
        numbers = {name: document.pop(name) for name in ("history", "results")}
        rest = json.dumps(document, sort_keys=True, allow_nan=False).removesuffix("}").encode()
        file.write_bytes(rest + b", " + to_json(numbers)[1:] + b"\n")

    @classmethod
    def load(cls, path: str | Path, tasks: Mapping[str, type[Task]] | None = None) -> Release:
        """Read a model written by :meth:`save`; `tasks` adds tasks to the installed ones."""
        document, words = read_json(Path(path), "model"), words_file(Path(path))
        release = cls.from_dict(document, tasks)
        if document["format"] != MODEL_FORMAT or not document.get("sums") or not words.is_file():
            return release
        # Kept, so that a model that is saved again can still be verified.
        try:
            kept = replace(release, sums=sums_of(release.plan, read_json(words, "words")["rounds"]))
            if kept.sums_digest != document["sums"]:
                raise ValueError("another digest")
        except Exception:  # of any kind: a stranger wrote it
            raise DataError(
                f"{str(words)!r} does not have the released words of its model; use the original."
            ) from None
        return kept


def words_file(model: Path) -> Path:
    """Return the file of the released words of a model."""
    return model.with_name(model.name + _SUFFIX)


def plan_of_model(document: Any, tasks: Mapping[str, type[Task]] | None = None) -> Plan:
    """Return the plan of a model or of published sums; `tasks` adds to the installed tasks.

    Its task may be unknown, and its digest is not compared.
    """
    format_name = document.get("format") if isinstance(document, Mapping) else None
    if isinstance(document, Mapping) and {"session", "opening"} <= document.keys():
        raise DataError(
            "model must be of a job, got the result of a session on secret shares, which nobody "
            "can verify: its sums are opened by receivers alone, and no owner signs them. Compare "
            "it with the result of another receiver."
        )
    if format_name not in (MODEL_FORMAT, SUMS_FORMAT):
        raise DataError(f"model must have format {MODEL_FORMAT!r}, got {str(format_name)[:50]!r}.")
    known: Mapping[str, type[Task]] = ChainMap(tasks or {}, installed())  # type: ignore[arg-type]  # never written
    try:
        return Plan.from_dict(document["plan"], known)
    except CloisterError:
        raise
    except Exception as error:  # of any kind, as above
        raise DataError(
            f"plan of the model cannot be read ({type(error).__name__}); use the original."
        ) from None


def release_of(
    plan: Plan, states: Iterable[GridState], sums: Iterable[ReleasedSum], noise: str
) -> Release:
    """Return the release of a job, in the users' units.

    Parameters
    ----------
    states : iterable of mappings
        The public state before the first round and after each round.
    sums : iterable of ReleasedSum
        The released words of each round.
    noise : str
        The source of the noise.
    """
    history = tuple(results_at(plan, state) for state in states)
    label, kept = noise if plan.task.private else NOT_PRIVATE, tuple(sums)
    survivors = tuple(one.survivors for one in kept)
    return Release(plan, history[-1], history, plan.events(), label, survivors, kept)


def sums_of(plan: Plan, rounds: Iterable[Mapping[str, Any]]) -> tuple[ReleasedSum, ...]:
    """Return the released words of each round of a document."""
    return tuple(
        ReleasedSum(
            tuple(done["survivors"]),
            from_bytes(b64decode(done["words"], validate=True), plan.length(t)),
        )
        for t, done in enumerate(rounds)
    )


def of_sums(plan: Plan, rounds: Iterable[Mapping[str, Any]]) -> Release:
    """Return the release that follows from published words."""
    progress = Progress(plan)
    for done in sums_of(plan, rounds):
        progress.receive(done.words, done.survivors)
    # With the label of its silos, so that the file of a reader is the one that they signed.
    return release_of(plan, progress.states, progress.sums, DiscreteNoise.label)


_version = cache(version)
"""The version of a package, which a process reads from its files once."""


def _check_usable(release: Release) -> None:
    """Use a model as commands do, so that wrong results raise here and not in a command."""
    from cloister.app.present import present  # here, because it imports this module

    # A model with the term site predicts for records of a silo; any silo does.
    task = release.plan.task_at(release.plan.silos[0])
    results, last = release.results, release.history[-1]
    same = (np.array_equal(last[name], value, equal_nan=True) for name, value in results.items())
    if results.keys() != last.keys() or not all(same):
        raise ValueError("the results are not those of the last round")
    with np.errstate(all="ignore"):
        for display in present(release).displays:
            list(getattr(display, "numbers", tuple)())
        probe = np.zeros((1, release.plan.grid.n_features), dtype=np.int32)
        if isinstance(task, Classifier):
            task.probabilities(results, probe)
        elif isinstance(task, Regressor):
            task.predict(results, probe)
        elif isinstance(task, Transformer):
            task.transform(results, probe)


def _arrays(values: Mapping[str, Any]) -> dict[str, Floats]:
    return {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}


def target_of(plan: Plan) -> list[tuple[str, str]]:
    """Return the name of the column that a job predicts or compares with, if any."""
    # `target` of a model, `truth` of an evaluation.
    at = getattr(plan.task, "target", getattr(plan.task, "truth", None))
    return [] if at is None else [("target", plan.columns[at])]
