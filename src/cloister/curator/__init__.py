"""Methods that are not sums: they need all records in one place, at one curator.

They stand beside the tasks for comparison. The federated service does not know them.
"""

from __future__ import annotations

from cloister.curator.base import CuratorMethod

__all__ = ["CuratorMethod"]
