"""Audits that try to refute the claimed privacy curve of a method.

Runs cannot prove a claim of differential privacy, but they can refute one. :func:`audit_task` tests
a claim without trust in the proof, the sampler or the build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister.audit.checks import Audit, Finding, audit_plan, audit_task
from cloister.core.deprecated import resolve

__all__ = ["Audit", "Finding", "audit_plan", "audit_task"]


if not TYPE_CHECKING:  # type checkers see the current names only

    def __getattr__(name: str) -> Any:
        return resolve(__name__, name)
