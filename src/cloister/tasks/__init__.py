"""Tasks: one file per published algorithm; pure functions of public state and local records."""

from __future__ import annotations

from cloister.tasks.base import Block, Released, Task
from cloister.tasks.count import Count
from cloister.tasks.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Count, FastLloyd, GLloyd, Lloyd, SuLloyd)
}
"""Every task that ships, by its name."""

__all__ = ["TASKS", "Block", "Count", "FastLloyd", "GLloyd", "Lloyd", "Released", "SuLloyd", "Task"]
