"""The result of one check of an audit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check of an audit.

    Parameters
    ----------
    alarms : bool
        True if the claim is refuted.
    evidence : str
        A sentence with the numbers.
    """

    check: str
    alarms: bool
    evidence: str
