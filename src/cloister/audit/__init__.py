"""Audits that anyone can run: is the claimed curve of a method true?

A claim of differential privacy cannot be proven by runs, but it can be refuted by them. Whoever does
not trust a proof, a sampler or a build can try to: :func:`audit_task` for a method of ours,
:func:`audit_method` for a curator's, and :mod:`cloister.audit.adversary` for whole systems.
"""

from __future__ import annotations

from cloister.audit.checks import Audit, Finding, audit_plan, audit_task

__all__ = ["Audit", "Finding", "audit_plan", "audit_task"]
