"""Event kinds of other packages, which a ledger may contain.

They come from the entry-point group ``cloister.events``, whose names are the kinds in JSON. No
task imports this module, so that no task loads code outside its digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cloister.core.errors import LedgerError
from cloister.privacy.events import Event, LossEvent, UnknownKind, event_from_dict

GROUP = "cloister.events"
_GET = {"cover": ", as 'pip install cloister-lab' does"}  # of kinds that moved to another package


def read_event(document: Mapping[str, Any]) -> Event:
    """Return the event of a document; load the packages with its kind if needed.

    Raises
    ------
    LedgerError
        If no installed package has an event of this kind.
    """
    # First without packages, since loading them is slow and few ledgers need them.
    try:
        return event_from_dict(document)
    except UnknownKind as error:
        if error.kind in (kinds := _kinds()):
            return event_from_dict(document, kinds)
        raise LedgerError(
            f"package of event {error.kind!r} is not installed, so the cost of the event is "
            f"unknown; install it{_GET.get(str(error.kind), '')}."
        ) from None


@cache
def _kinds() -> Mapping[str, type[LossEvent]]:
    """Return the class of each event kind of the installed packages."""
    # Imported here: it reads the metadata of all packages, and is rarely needed.
    from importlib.metadata import entry_points

    return {entry.name: entry.load() for entry in entry_points(group=GROUP)}
