"""The capabilities of the package: one row for each task, with its command, classes and question.

The module imports nothing, so that a list of names is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the public names, for type checkers and editors
    from cloister.app.job import Job as Job
    from cloister.app.job import make_plan as make_plan
    from cloister.app.job import run_job as run_job
    from cloister.data import Baskets as Baskets
    from cloister.data.schema import Schema as Schema
    from cloister.estimators.association import mine_rules as mine_rules
    from cloister.estimators.cox import DPCox as DPCox
    from cloister.estimators.cox import DPCoxApproximate as DPCoxApproximate
    from cloister.estimators.ensemble import DPSiloEnsemble as DPSiloEnsemble
    from cloister.estimators.federated_learning import FederatedLearner as FederatedLearner
    from cloister.estimators.forest import DPForestRegressor as DPForestRegressor
    from cloister.estimators.forest import DPRandomForestClassifier as DPRandomForestClassifier
    from cloister.estimators.horizon import Horizon as Horizon
    from cloister.estimators.kmeans import DPKMeans as DPKMeans
    from cloister.estimators.linear_model import (
        DPGeneralizedLinearRegressor as DPGeneralizedLinearRegressor,
    )
    from cloister.estimators.linear_model import DPLinearRegression as DPLinearRegression
    from cloister.estimators.linear_model import DPLogisticRegression as DPLogisticRegression
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
    from cloister.estimators.prepare import dp_table1 as dp_table1
    from cloister.estimators.scorecard import DPScorecard as DPScorecard
    from cloister.estimators.select_k import select_k as select_k
    from cloister.estimators.shapes import DPShapesClassifier as DPShapesClassifier
    from cloister.estimators.shapes import DPShapesRegressor as DPShapesRegressor
    from cloister.estimators.survival import DPKaplanMeier as DPKaplanMeier
    from cloister.estimators.survival import DPLogRank as DPLogRank
    from cloister.estimators.synthesiser import DPSynthesiser as DPSynthesiser
    from cloister.estimators.table import DPTable as DPTable
    from cloister.estimators.treatment import DPTreatmentEffect as DPTreatmentEffect
    from cloister.privacy.budget import Budget as Budget
    from cloister.privacy.ledger import Ledger as Ledger
    from cloister.protocol.plan import Plan as Plan
    from cloister.shares.linking import LinkedTable as LinkedTable

_FOLLOWED = {
    "time": ("time", "day", "week", "month", "year", "follow"),
    "event": ("event", "dead", "die", "death", "status", "relapse"),
}
_GUESSED = ("pred", "prob", "score", "guess")

# A row has the keys of `Capability`. It is data, so that a look-up imports no task.
ROWS = {
    "apriori": {
        "task": "patterns.apriori:Apriori",
        "python": ("association:mine_rules",),
        "question": {
            "title": "What goes together? (yes-no columns)",
            "start": {"min_support": "0.05"},
            "suits": "yes-no",
            "least": 2,
        },
    },
    "auto": {
        "task": "clustering.auto:Auto",
        "python": ("kmeans:DPKMeans",),
        "question": {
            "title": "Which groups are there?",
            "start": {"n_clusters": "3"},
            "suits": "number",
        },
    },
    "bounds": {"task": "preparation.bounds:Bounds", "python": ("prepare:DPBounds",)},
    "cluster-quality": {
        "task": "evaluation.cluster_quality:ClusterQuality",
        "python": ("measures:cluster_quality",),
    },
    "count": {"task": "count:Count"},
    "cox": {
        "task": "survival.cox:Cox",
        "names": ("time", "event", "covariates", "strata"),
        "only": ("covariates",),
        "command": "estimate hazard ratios of an event by Cox regression",
        "python": ("cox:DPCox",),
        "question": {
            "title": "What hastens an event? (hazard ratios)",
            "roles": {"time": "number", "event": "yes-no", "strata": "named"},
            "optional": ("strata",),
            "hints": _FOLLOWED,
            "start": {"nominal_events": ""},
            "most": 2,
        },
    },
    "cox-approximate": {
        "task": "survival.cox_approximate:CoxApproximate",
        "names": ("time", "event", "covariates"),
        "only": ("covariates",),
        "command": "approximate hazard ratios of many covariates",
        "python": ("cox:DPCoxApproximate",),
        "question": {
            "title": "What hastens an event? (many columns)",
            "roles": {"time": "number", "event": "yes-no"},
            "hints": _FOLLOWED,
            "start": {"nominal_events": "2000"},
            "forecast": False,
        },
    },
    "describe": {
        "task": "tables.describe:Describe",
        "command": "describe every column: shares, quantiles, means and deviations",
        "python": ("prepare:dp_describe",),
        "question": {"title": "What is in these files?"},
    },
    "discretise": {"task": "preparation.discretise:Discretise"},
    "evaluation": {
        "task": "evaluation.classification:Evaluation",
        "names": ("truth", "prediction", "score"),
        "only": ("prediction", "score"),
        "python": ("measures:evaluate",),
        "question": {
            "title": "How good is a score? (yes or no)",
            "roles": {"truth": "yes-no", "score": "number"},
            "hints": {"score": _GUESSED},
            "least": 0,
            "most": 0,
        },
    },
    "fastlloyd": {"task": "clustering.kmeans:FastLloyd"},
    "fedavg": {
        "task": "supervised.fedavg:FedAvg",
        "python": ("federated_learning:FederatedLearner",),
    },
    "fedavg-regression": {"task": "supervised.fedavg:FedAvgRegression"},
    "forest": {
        "task": "supervised.forest:RandomForest",
        "python": ("forest:DPRandomForestClassifier",),
        "question": {"title": "Who will? (many decision trees)", "roles": {"target": "named"}},
    },
    "forest-regression": {
        "task": "supervised.forest_regression:ForestRegression",
        "python": ("forest:DPForestRegressor",),
        "question": {
            "title": "How much? (many decision trees)",
            "roles": {"target": "number"},
        },
    },
    "glloyd": {"task": "clustering.kmeans:GLloyd"},
    "glm": {
        "task": "regression.glm:GeneralizedLinear",
        "names": ("target", "covariates", "formula", "offset", "exposure", "weights"),
        "only": ("covariates", "formula"),
        "python": ("linear_model:DPGeneralizedLinearRegressor",),
        "question": {
            "title": "How many events? (model of counts)",
            "roles": {"target": "number", "exposure": "number"},
            "optional": ("exposure",),
            "start": {"family": "poisson"},
            "forecast": False,
        },
    },
    "imputed-regression": {
        "task": "regression.imputed:ImputedRegression",
        "names": ("target", "covariates"),
        "only": ("covariates",),
        "command": "fit a regression to records with missing cells, which models complete",
        "python": ("linear_model:DPGeneralizedLinearRegressor",),
        "question": {
            "title": "What if cells are missing? (models complete them)",
            "roles": {"target": "any"},
            "start": {"family": "gaussian"},
            "forecast": False,
        },
    },
    "linear": {
        "task": "supervised.linear:Linear",
        "python": ("linear_model:DPLinearRegression",),
        "question": {
            "title": "How much? (predict a number)",
            "roles": {"target": "number"},
            "forecast": False,
        },
    },
    "lloyd": {"task": "clustering.kmeans:Lloyd"},
    "logistic": {
        "task": "supervised.logistic:Logistic",
        "python": ("linear_model:DPLogisticRegression", "ensemble:DPSiloEnsemble"),
        "question": {
            "title": "Who will? (predict a category)",
            "roles": {"target": "named"},
            "forecast": False,
        },
    },
    "naive-bayes": {
        "task": "supervised.naive_bayes:NaiveBayes",
        "python": ("naive_bayes:DPNaiveBayes",),
    },
    "outliers": {
        "task": "patterns.outliers:Outliers",
        "python": ("outliers:DPOutlierDetector",),
        "question": {"title": "Which records are unusual?", "forecast": False},
    },
    "pca": {"task": "preparation.pca:PCA", "python": ("prepare:DPPCA",)},
    "pipeline": {"task": "preparation.pipeline:Pipeline"},
    "quantiles": {"task": "preparation.quantiles:Quantiles", "python": ("prepare:dp_quantiles",)},
    "regression-evaluation": {
        "task": "evaluation.regression:RegressionEvaluation",
        "names": ("truth", "prediction"),
        "only": ("prediction",),
        "question": {
            "title": "How good are predictions? (numbers)",
            "roles": {"prediction": "number", "truth": "number"},
            "hints": {"prediction": _GUESSED},
            "least": 0,
            "most": 0,
        },
    },
    "scorecard": {
        "task": "tables.scorecard:Scorecard",
        "names": ("target", "characteristics", "over", "group", "decision"),
        "only": ("characteristics",),
        "command": "rank columns by their power to predict an event; their stability and selection",
        "python": ("scorecard:DPScorecard",),
        "question": {
            "title": "Which columns predict an event? (scorecard)",
            "roles": {"target": "yes-no", "over": "named", "group": "named"},
            "optional": ("over", "group"),
            "bins": 5,
        },
    },
    "selectk": {
        "task": "clustering.select_k:SelectK",
        "python": ("select_k:select_k",),
        "question": {
            "title": "How many groups are there?",
            "start": {"min_clusters": "2", "max_clusters": "8"},
            "suits": "number",
        },
    },
    "shapes": {
        "task": "supervised.shapes:ShapesClassifier",
        "python": ("shapes:DPShapesClassifier",),
        "question": {
            "title": "Who will? (effects of columns as pictures)",
            "roles": {"target": "named"},
            "forecast": False,
        },
    },
    "shapes-regression": {
        "task": "supervised.shapes_regression:ShapesRegression",
        "python": ("shapes:DPShapesRegressor",),
        "question": {
            "title": "How much? (effects of columns as pictures)",
            "roles": {"target": "number"},
            "forecast": False,
        },
    },
    "standardise": {
        "task": "preparation.standardise:Standardise",
        "python": ("prepare:DPStandardScaler",),
    },
    "statistics": {
        "task": "preparation.statistics:Statistics",
        "python": ("prepare:dp_statistics",),
    },
    "sulloyd": {"task": "clustering.kmeans:SuLloyd"},
    "survival": {
        "task": "survival.survival:Survival",
        "names": ("time", "event", "by"),
        "only": ("time",),
        "command": "estimate the time until an event: curves, medians, rates, log-rank test",
        "python": ("survival:DPKaplanMeier", "survival:DPLogRank"),
        "question": {
            "title": "How long until an event? (curves)",
            "roles": {"time": "number", "event": "yes-no", "by": "named"},
            "optional": ("by",),
            "hints": _FOLLOWED,
            "start": {"tau": ""},
            "least": 0,
            "most": 0,
        },
    },
    "synthesise": {
        "task": "synthesis.synthesise:Synthesise",
        "command": "draw synthetic records from noisy tables",
        "python": ("synthesiser:DPSynthesiser",),
        "question": {
            "title": "May I have look-alike records? (synthetic data)",
            "least": 2,
            "bins": 8,
        },
    },
    "table1": {
        "task": "tables.table1:Table1",
        "command": "compare groups as in Table 1 of a paper: means, shares, differences, tests",
        "python": ("prepare:dp_table1",),
        "question": {"title": "How do groups differ? (Table 1)", "roles": {"by": "named"}},
    },
    "tabulate": {
        "task": "tables.tabulate:Tabulate",
        "names": ("tables", "means", "by"),
        "only": ("tables", "means"),
        "command": "count records in tables, compute means by group, and test differences",
        "python": ("table:DPTable",),
        "question": {"title": "How many in each category? (counts)", "most": 2, "bins": 4},
    },
    "treatment-effect": {
        "task": "regression.effect:TreatmentEffect",
        "names": ("treatment", "outcome", "covariates"),
        "only": ("covariates",),
        "command": "estimate the effect of a treatment, adjusted for covariates",
        "python": ("treatment:DPTreatmentEffect",),
        "question": {
            "title": "Does a treatment work? (adjusted effect)",
            "roles": {"treatment": "yes-no", "outcome": "number"},
            "hints": {"treatment": ("treat", "arm", "drug", "exposed")},
            "forecast": False,
        },
    },
}
"""One row for each task of the package, by its name; see :mod:`cloister.core.capability`."""

OTHERS = {
    "Baskets": "cloister.data",
    "Budget": "cloister.privacy.budget",
    "Horizon": "cloister.estimators.horizon",
    "Job": "cloister.app.job",
    "Ledger": "cloister.privacy.ledger",
    "LinkedTable": "cloister.shares.linking",
    "Plan": "cloister.protocol.plan",
    "Schema": "cloister.data.schema",
    "make_plan": "cloister.app.job",
    "run_job": "cloister.app.job",
}
"""The modules of the public names that belong to no task."""
