"""What ships, by name: tasks, the commands that they are, and the public names of the package.

Nothing is imported here, so that a list of names costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see of the package
    from cloister.app.in_process import run_plan as run_plan
    from cloister.app.job import Job as Job
    from cloister.app.job import make_plan as make_plan
    from cloister.app.job import run_job as run_job
    from cloister.app.payment import Account as Account
    from cloister.app.release import Release as Release
    from cloister.data import Baskets as Baskets
    from cloister.data.schema import Column as Column
    from cloister.data.schema import Schema as Schema
    from cloister.data.schema import catalogue_schema as catalogue_schema
    from cloister.estimators.association import RuleSet as RuleSet
    from cloister.estimators.association import mine_rules as mine_rules
    from cloister.estimators.cox import DPCox as DPCox
    from cloister.estimators.ensemble import DPSiloEnsemble as DPSiloEnsemble
    from cloister.estimators.federated_learning import FederatedLearner as FederatedLearner
    from cloister.estimators.forest import DPRandomForestClassifier as DPRandomForestClassifier
    from cloister.estimators.kmeans import DPKMeans as DPKMeans
    from cloister.estimators.linear_model import DPLinearRegression as DPLinearRegression
    from cloister.estimators.linear_model import DPLogisticRegression as DPLogisticRegression
    from cloister.estimators.measures import Measures as Measures
    from cloister.estimators.measures import cluster_quality as cluster_quality
    from cloister.estimators.measures import evaluate as evaluate
    from cloister.estimators.naive_bayes import DPNaiveBayes as DPNaiveBayes
    from cloister.estimators.outliers import DPOutlierDetector as DPOutlierDetector
    from cloister.estimators.prepare import DPPCA as DPPCA
    from cloister.estimators.prepare import DPBounds as DPBounds
    from cloister.estimators.prepare import DPStandardScaler as DPStandardScaler
    from cloister.estimators.prepare import dp_describe as dp_describe
    from cloister.estimators.prepare import dp_quantiles as dp_quantiles
    from cloister.estimators.prepare import dp_statistics as dp_statistics
    from cloister.estimators.scorecard import DPScorecard as DPScorecard
    from cloister.estimators.select_k import KSelection as KSelection
    from cloister.estimators.select_k import select_k as select_k
    from cloister.estimators.survival import DPKaplanMeier as DPKaplanMeier
    from cloister.estimators.survival import DPLogRank as DPLogRank
    from cloister.estimators.synthesiser import DPSynthesiser as DPSynthesiser
    from cloister.estimators.table import DPTable as DPTable
    from cloister.privacy.budget import Budget as Budget
    from cloister.privacy.filter import Split as Split
    from cloister.privacy.ledger import Ledger as Ledger
    from cloister.protocol.plan import Plan as Plan
    from cloister.protocol.task import Task as Task
    from cloister.tasks import TASKS as TASKS
    from cloister.tasks.clustering.stability import Stability as Stability

PLACES = {
    "apriori": "patterns.apriori:Apriori",
    "auto": "clustering.auto:Auto",
    "bounds": "preparation.bounds:Bounds",
    "cluster-quality": "evaluation.cluster_quality:ClusterQuality",
    "count": "count:Count",
    "cox": "survival.cox:Cox",
    "describe": "tables.describe:Describe",
    "discretise": "preparation.discretise:Discretise",
    "evaluation": "evaluation.classification:Evaluation",
    "fastlloyd": "clustering.kmeans:FastLloyd",
    "fedavg": "supervised.fedavg:FedAvg",
    "fedavg-regression": "supervised.fedavg:FedAvgRegression",
    "forest": "supervised.forest:RandomForest",
    "glloyd": "clustering.kmeans:GLloyd",
    "linear": "supervised.linear:Linear",
    "lloyd": "clustering.kmeans:Lloyd",
    "logistic": "supervised.logistic:Logistic",
    "naive-bayes": "supervised.naive_bayes:NaiveBayes",
    "outliers": "patterns.outliers:Outliers",
    "pca": "preparation.pca:PCA",
    "pipeline": "preparation.pipeline:Pipeline",
    "quantiles": "preparation.quantiles:Quantiles",
    "regression-evaluation": "evaluation.regression:RegressionEvaluation",
    "scorecard": "tables.scorecard:Scorecard",
    "selectk": "clustering.select_k:SelectK",
    "standardise": "preparation.standardise:Standardise",
    "statistics": "preparation.statistics:Statistics",
    "sulloyd": "clustering.kmeans:SuLloyd",
    "survival": "survival.survival:Survival",
    "synthesise": "synthesis.synthesise:Synthesise",
    "tabulate": "tables.tabulate:Tabulate",
}
"""Where each task is, below ``cloister.tasks``."""

COMMANDS: dict[str, str] = {
    "cox": "what multiplies the hazard of an event: hazard ratios by Cox regression",
    "describe": "what is in every column: shares, quantiles, means and deviations",
    "scorecard": "which columns tell who has an event, whether they are stable, who is selected",
    "survival": "how long until an event: curves, medians, rates, log-rank test",
    "synthesise": "draw look-alike records from noisy tables",
    "tabulate": "count records in tables, means by group, and test what differs",
}
"""Tasks that are a command of their own name, and what this does."""

HOME = {
    "Account": "cloister.app.payment",
    "Baskets": "cloister.data",
    "Budget": "cloister.privacy.budget",
    "Column": "cloister.data.schema",
    "DPCox": "cloister.estimators.cox",
    "DPKMeans": "cloister.estimators.kmeans",
    "DPScorecard": "cloister.estimators.scorecard",
    "DPStandardScaler": "cloister.estimators.prepare",
    "DPPCA": "cloister.estimators.prepare",
    "DPBounds": "cloister.estimators.prepare",
    "DPOutlierDetector": "cloister.estimators.outliers",
    "DPLinearRegression": "cloister.estimators.linear_model",
    "DPLogisticRegression": "cloister.estimators.linear_model",
    "DPKaplanMeier": "cloister.estimators.survival",
    "DPLogRank": "cloister.estimators.survival",
    "DPNaiveBayes": "cloister.estimators.naive_bayes",
    "DPRandomForestClassifier": "cloister.estimators.forest",
    "DPSiloEnsemble": "cloister.estimators.ensemble",
    "DPSynthesiser": "cloister.estimators.synthesiser",
    "DPTable": "cloister.estimators.table",
    "FederatedLearner": "cloister.estimators.federated_learning",
    "Release": "cloister.app.release",
    "KSelection": "cloister.estimators.select_k",
    "Job": "cloister.app.job",
    "Ledger": "cloister.privacy.ledger",
    "Measures": "cloister.estimators.measures",
    "Plan": "cloister.protocol.plan",
    "RuleSet": "cloister.estimators.association",
    "Schema": "cloister.data.schema",
    "TASKS": "cloister.tasks",
    "Split": "cloister.privacy.filter",
    "Task": "cloister.protocol.task",
    "cluster_quality": "cloister.estimators.measures",
    "dp_describe": "cloister.estimators.prepare",
    "dp_quantiles": "cloister.estimators.prepare",
    "dp_statistics": "cloister.estimators.prepare",
    "evaluate": "cloister.estimators.measures",
    "catalogue_schema": "cloister.data.schema",
    "make_plan": "cloister.app.job",
    "mine_rules": "cloister.estimators.association",
    "run_job": "cloister.app.job",
    "run_plan": "cloister.app.in_process",
    "Stability": "cloister.tasks.clustering.stability",
    "select_k": "cloister.estimators.select_k",
}
"""Where each public name is; its module is loaded when the name is first used."""
