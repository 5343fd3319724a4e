"""Event kinds of other packages, which a ledger may hold.

They come by the entry-point group ``cloister.events``: its names are kinds as JSON has them. No
task imports this module, so that none loads code that its digest does not cover.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cloister.core.errors import LedgerError
from cloister.privacy.events import Event, LossEvent, UnknownKind, event_from_dict

GROUP = "cloister.events"
_GET = {"cover": ", as 'pip install cloister-lab' does"}  # of kinds that were in this package once


def read_event(document: Mapping[str, Any]) -> Event:
    """Return the event of a document; load the packages that name its kind, if need be.

    Raises
    ------
    LedgerError
        If no package that is installed has an event of this kind.
    """
    try:
        return event_from_dict(document)
    except UnknownKind as error:
        if error.kind in (kinds := _kinds()):
            return event_from_dict(document, kinds)
        raise LedgerError(
            f"event {error.kind!r} is of a package that is not installed, so its cost is not "
            f"known; install that{_GET.get(str(error.kind), '')}."
        ) from None


@cache
def _kinds() -> Mapping[str, type[LossEvent]]:
    """Return the class of each kind that an installed package has."""
    from importlib.metadata import entry_points

    return {entry.name: entry.load() for entry in entry_points(group=GROUP)}
