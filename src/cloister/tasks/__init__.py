"""Tasks: one file per published algorithm; pure functions of public state and local records."""

from __future__ import annotations

from cloister.tasks.auto import Auto
from cloister.tasks.balcan import Balcan
from cloister.tasks.base import Block, Released, Task
from cloister.tasks.count import Count
from cloister.tasks.dp_em import DPEM
from cloister.tasks.feddp_init import FedDPInit
from cloister.tasks.grid_synopsis import EUGkM, Hybrid
from cloister.tasks.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd
from cloister.tasks.lsh_tree import LSHTree
from cloister.tasks.max_cover import MaxCoverHistogram
from cloister.tasks.select_k import SelectK
from cloister.tasks.subcluster import KMeansGuaranteeDP, SubClusterDP

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Auto,
        Balcan,
        Count,
        DPEM,
        EUGkM,
        FastLloyd,
        FedDPInit,
        GLloyd,
        Hybrid,
        KMeansGuaranteeDP,
        LSHTree,
        Lloyd,
        MaxCoverHistogram,
        SelectK,
        SubClusterDP,
        SuLloyd,
    )
}
"""Every task that ships, by its name."""

__all__ = [
    "DPEM",
    "TASKS",
    "Auto",
    "Balcan",
    "Block",
    "Count",
    "EUGkM",
    "FastLloyd",
    "FedDPInit",
    "GLloyd",
    "Hybrid",
    "KMeansGuaranteeDP",
    "LSHTree",
    "Lloyd",
    "MaxCoverHistogram",
    "Released",
    "SelectK",
    "SuLloyd",
    "SubClusterDP",
    "Task",
]
