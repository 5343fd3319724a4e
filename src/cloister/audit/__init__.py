"""Audits that anyone can run: they try to refute the claimed curve of a method.

Runs cannot prove a claim of differential privacy, but they can refute one. Whoever does not trust a
proof, a sampler or a build can try: :func:`audit_task`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister.audit.checks import Audit, Finding, audit_plan, audit_task
from cloister.core.deprecated import old_name

__all__ = ["Audit", "Finding", "audit_plan", "audit_task"]


if not TYPE_CHECKING:  # type checkers shall see today's names only

    def __getattr__(name: str) -> Any:
        return old_name(__name__, name)
