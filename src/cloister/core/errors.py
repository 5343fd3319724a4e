"""All errors and warnings of the package.

::

    CloisterError
    ├── PlanError            a parameter or plan is not acceptable      (also a ValueError)
    ├── DataError            a file, schema or array is not usable      (also a ValueError)
    │   └── AbsentColumns         the header of a file lacks columns
    ├── BudgetExceeded       a release would cost more than is left
    ├── LedgerError          the ledger was changed, rolled back or is not readable
    ├── ProtocolError
    │   ├── LocalProtocolError    this party broke a rule of the protocol
    │   └── RemoteProtocolError   another party broke a rule of the protocol
    └── TransportError       a frame could not be carried

    PrivacyWarning           a result that is not private, or less than a reader may expect
    AccuracyWarning          a result that is less accurate than a reader may expect
    DataLossWarning          rows of a source are excluded, or many values are clipped; raised in
                             the owner's process

A message is one sentence: the name, the rule, the value, the remedy. It never contains a record, a
key or a value before noise. Only its owner sees rows counted and words of a file quoted: in a
`DataLossWarning`, and in the `DataError` of a run that would lose too many rows.
"""

from __future__ import annotations

from collections.abc import Iterable


class CloisterError(Exception):
    """Base of all errors of this package."""


class PlanError(CloisterError, ValueError):
    """A parameter, or a combination of parameters, is refused before anything is spent."""


def choosing(what: str) -> str:
    """Return the end of a sentence that asks for `what`: where tables help to choose it."""
    return f" (tables: docs/results/choosing.md#{what})"


def raise_if_any(sentences: Iterable[str]) -> None:
    """Raise a PlanError with the first sentence, if there is one."""
    # The iterable may be lazy, and a later rule may rely on the earlier ones.
    for sentence in sentences:
        raise PlanError(sentence)


class DataError(CloisterError, ValueError):
    """A file, table or schema cannot be used; raised before anything is spent."""


class AbsentColumns(DataError):
    """The header of a file lacks columns; the message has their names alone, which are public."""


class BudgetExceeded(CloisterError):
    """The ledger refuses a release because its cost exceeds what is left."""


class LedgerError(CloisterError):
    """The ledger does not verify, or is used against its rules."""


class ProtocolError(CloisterError):
    """A rule of the protocol was broken."""


class LocalProtocolError(ProtocolError):
    """A caller asked this party for an action that the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """Another party sent something that the protocol forbids."""


class TransportError(CloisterError):
    """A frame could not be carried to the other party or back."""


class PrivacyWarning(UserWarning):
    """A result is not private, or is private under conditions that the reader should know."""


class UncountedWarning(UserWarning):
    """A release is private, but no ledger adds its cost to that of other releases."""


class AccuracyWarning(UserWarning):
    """A result is private, but less accurate than the reader may expect."""


class DataLossWarning(UserWarning):
    """Some rows of a source are excluded, or many values of a column are clipped to its bounds.

    It counts rows and quotes words for their owner alone.
    """
