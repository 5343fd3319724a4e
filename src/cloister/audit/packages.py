"""Extensions of ``cloister audit`` by other packages: methods that are not tasks, and mutants.

The entry-point group ``cloister.audits`` has two names. ``methods`` is a sequence of
:class:`Method`, ``mutants`` one of :class:`Mutant`. The laboratory registers both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from cloister.audit.checks import Audit, Finding

GROUP = "cloister.audits"
NOT_JUDGED = "COULD NOT JUDGE"


@dataclass(frozen=True)
class Method:
    """A method that is not a task, and its audit.

    Parameters
    ----------
    private : bool
        True if the method claims to be private.
    audit : function
        Called with a budget and the keywords `n_features`, `n_clusters`, `nominal_n`, `runs`.
    """

    name: str
    private: bool
    audit: Callable[..., Audit]


@dataclass(frozen=True)
class Mutant:
    """A method with one known defect, and the check that must catch it.

    Parameters
    ----------
    check : function
        Returns the findings of that check.
    """

    name: str
    defect: str
    check: Callable[[], Sequence[Finding]]

    @property
    def caught(self) -> Finding | None:
        """The first finding that alarms; one without an alarm if the check itself stopped."""
        try:
            return next((finding for finding in self.check() if finding.alarms), None)
        except Exception as error:  # a planted error may break anything, but no other verdict
            return Finding(NOT_JUDGED, False, f"{type(error).__name__}: {error}")


def methods() -> dict[str, Method]:
    """Return the methods of all installed packages, by name."""
    return {method.name: method for method in _registered("methods")}


def mutants() -> tuple[Mutant, ...]:
    """Return the mutants of all installed packages."""
    return tuple(_registered("mutants"))


def _registered(name: str) -> Iterator[Any]:
    for entry in entry_points(group=GROUP, name=name):
        yield from entry.load()
