"""Every error the package raises.

::

    CloisterError
    ├── PlanError            a parameter or plan is not acceptable      (also a ValueError)
    ├── DataError            a file, schema or array is not usable      (also a ValueError)
    ├── BudgetExceeded       a release would cost more than is left
    ├── LedgerError          the ledger was changed, rolled back or is not readable
    ├── ProtocolError
    │   ├── LocalProtocolError    we broke a rule of the protocol
    │   └── RemoteProtocolError   another party did
    └── TransportError       a frame could not be carried

    PrivacyWarning           a result that is not, or is less, private than a reader may think
    AccuracyWarning          a result that says less of the records than a reader may think
    DataLossWarning          rows of a source are left out; raised in the owner's own process

A message is one sentence: the name, the rule, the value, the way out. It never contains a record,
a key or a value before noise. Two are for the owner of a file alone, count rows and quote words: a
`DataLossWarning`, and the `DataError` of a run that would lose too many rows.
"""

from __future__ import annotations

from collections.abc import Iterable


class CloisterError(Exception):
    """Base of all errors of this package."""


class PlanError(CloisterError, ValueError):
    """A parameter, or a combination of parameters, is refused before anything is spent."""


def raise_if_any(sentences: Iterable[str]) -> None:
    """Raise a PlanError if a rule is broken; of several, the first counts."""
    for sentence in sentences:
        raise PlanError(sentence)


class DataError(CloisterError, ValueError):
    """A file, table or schema cannot be used; raised before anything is spent."""


class BudgetExceeded(CloisterError):
    """The ledger refuses a release because its cost exceeds what is left."""


class LedgerError(CloisterError):
    """The ledger does not verify, or is used against its rules."""


class ProtocolError(CloisterError):
    """A rule of the protocol was broken."""


class LocalProtocolError(ProtocolError):
    """We were asked to do something that the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """Another party sent something that the protocol forbids."""


class TransportError(CloisterError):
    """A frame could not be carried to the other party or back."""


class PrivacyWarning(UserWarning):
    """A result is not private, or is so under conditions the reader should know."""


class UncountedWarning(UserWarning):
    """A release is private, but no ledger adds its cost to that of others."""


class AccuracyWarning(UserWarning):
    """A result is private, but says less of the records than the reader may think."""


class DataLossWarning(UserWarning):
    """Some rows of a source are left out; counts rows and quotes words, for their owner alone."""
