"""All experiments, by name."""

from __future__ import annotations

from cloister.experiments import all_methods, fastlloyd, subcluster_figures, table3
from cloister.experiments.classify import CLASSIFY
from cloister.experiments.coefficients import COEFFICIENTS
from cloister.experiments.coverage import COVERAGE
from cloister.experiments.credit import CREDIT
from cloister.experiments.evaluate import EVALUATE
from cloister.experiments.gap import GAP
from cloister.experiments.learning import LEARNING
from cloister.experiments.maxcover_figure import MAX_COVER
from cloister.experiments.rules import RULES
from cloister.experiments.run import Experiment
from cloister.experiments.select_k import SELECT_K

_ALL: tuple[Experiment, ...] = (
    fastlloyd.FIG2,
    fastlloyd.FIG4,
    fastlloyd.FIG5,
    table3.TABLE3,
    all_methods.ALL,
    GAP,
    subcluster_figures.SUBCLUSTER,
    MAX_COVER,
    COVERAGE,
    COEFFICIENTS,
    SELECT_K,
    CLASSIFY,
    CREDIT,
    EVALUATE,
    LEARNING,
    RULES,
)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
"""What ``cloister experiments run`` knows."""
