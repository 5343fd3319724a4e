"""Tasks: one file per published algorithm; pure functions of public state and local records."""

from __future__ import annotations

from cloister.tasks.auto import Auto
from cloister.tasks.base import Block, Released, Task
from cloister.tasks.count import Count
from cloister.tasks.dp_em import DPEM
from cloister.tasks.feddp_init import FedDPInit
from cloister.tasks.grid_synopsis import EUGkM, Hybrid
from cloister.tasks.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd
from cloister.tasks.lsh_tree import LSHTree

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Auto,
        Count,
        DPEM,
        EUGkM,
        FastLloyd,
        FedDPInit,
        GLloyd,
        Hybrid,
        LSHTree,
        Lloyd,
        SuLloyd,
    )
}
"""Every task that ships, by its name."""

__all__ = [
    "DPEM",
    "TASKS",
    "Auto",
    "Block",
    "Count",
    "EUGkM",
    "FastLloyd",
    "FedDPInit",
    "GLloyd",
    "Hybrid",
    "LSHTree",
    "Lloyd",
    "Released",
    "SuLloyd",
    "Task",
]
