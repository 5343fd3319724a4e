"""Tasks: one file per published algorithm; pure functions of public state and local records."""

from __future__ import annotations

from cloister.tasks.apriori import Apriori
from cloister.tasks.auto import Auto
from cloister.tasks.balcan import Balcan
from cloister.tasks.base import Block, Released, Task
from cloister.tasks.bounds import Bounds
from cloister.tasks.cluster_quality import ClusterQuality
from cloister.tasks.count import Count
from cloister.tasks.dp_em import DPEM
from cloister.tasks.evaluate import Evaluation
from cloister.tasks.evaluate_regression import RegressionEvaluation
from cloister.tasks.fedavg import FedAvg, FedAvgRegression
from cloister.tasks.feddp_init import FedDPInit
from cloister.tasks.forest import RandomForest
from cloister.tasks.grid_synopsis import EUGkM, Hybrid
from cloister.tasks.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd
from cloister.tasks.linear import Linear
from cloister.tasks.logistic import Logistic
from cloister.tasks.lsh_tree import LSHTree
from cloister.tasks.max_cover import MaxCoverHistogram
from cloister.tasks.naive_bayes import NaiveBayes
from cloister.tasks.outliers import Outliers
from cloister.tasks.pca import PCA
from cloister.tasks.pipeline import Pipeline
from cloister.tasks.quantiles import Quantiles
from cloister.tasks.select_k import SelectK
from cloister.tasks.standardise import Standardise
from cloister.tasks.statistics import Statistics
from cloister.tasks.subcluster import KMeansGuaranteeDP, SubClusterDP

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Apriori,
        Auto,
        Balcan,
        Bounds,
        ClusterQuality,
        Count,
        DPEM,
        EUGkM,
        Evaluation,
        FastLloyd,
        FedAvg,
        FedAvgRegression,
        FedDPInit,
        GLloyd,
        Hybrid,
        KMeansGuaranteeDP,
        LSHTree,
        Linear,
        Lloyd,
        Logistic,
        MaxCoverHistogram,
        NaiveBayes,
        Outliers,
        RandomForest,
        RegressionEvaluation,
        PCA,
        Pipeline,
        Quantiles,
        SelectK,
        Standardise,
        Statistics,
        SubClusterDP,
        SuLloyd,
    )
}
"""Every task that ships, by its name."""

__all__ = [
    "DPEM",
    "PCA",
    "TASKS",
    "Apriori",
    "Auto",
    "Balcan",
    "Block",
    "Bounds",
    "ClusterQuality",
    "Count",
    "EUGkM",
    "Evaluation",
    "FastLloyd",
    "FedAvg",
    "FedAvgRegression",
    "FedDPInit",
    "GLloyd",
    "Hybrid",
    "KMeansGuaranteeDP",
    "LSHTree",
    "Linear",
    "Lloyd",
    "Logistic",
    "MaxCoverHistogram",
    "NaiveBayes",
    "Outliers",
    "Pipeline",
    "Quantiles",
    "RandomForest",
    "RegressionEvaluation",
    "Released",
    "SelectK",
    "Standardise",
    "Statistics",
    "SuLloyd",
    "SubClusterDP",
    "Task",
]
