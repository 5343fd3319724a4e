"""The result of one check of an audit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What one check of an audit found.

    Parameters
    ----------
    alarms : bool
        Whether the claim is refuted.
    evidence : str
        In words, with the numbers.
    """

    check: str
    alarms: bool
    evidence: str
