"""Methods that are not sums: they need all records in one place, at one curator.

They stand beside the tasks for comparison. The federated service does not know them.
"""

from __future__ import annotations

from cloister_lab.curator.base import CuratorMethod
from cloister_lab.curator.blocks import Gupt, SampleAggregate
from cloister_lab.curator.decaying import DecayingLloyd
from cloister_lab.curator.max_cover import MaxCover
from cloister_lab.curator.privgene import PrivGene
from cloister_lab.curator.published import KMeansGuarantee, SubCluster

METHODS: dict[str, type[CuratorMethod]] = {
    method.name: method
    for method in (
        *(MaxCover, Gupt, DecayingLloyd, PrivGene),
        *(SampleAggregate, KMeansGuarantee, SubCluster),
    )
}
"""Every method that ships, by its name."""

__all__ = [
    "METHODS",
    "CuratorMethod",
    "DecayingLloyd",
    "Gupt",
    "KMeansGuarantee",
    "MaxCover",
    "PrivGene",
    "SampleAggregate",
    "SubCluster",
]
