"""All experiments, by name."""

from __future__ import annotations

from cloister_lab.experiments import all_methods, fastlloyd, subcluster_figures, table3
from cloister_lab.experiments.classify import CLASSIFY
from cloister_lab.experiments.coefficients import COEFFICIENTS
from cloister_lab.experiments.coverage import COVERAGE
from cloister_lab.experiments.credit import CREDIT
from cloister_lab.experiments.evaluate import EVALUATE
from cloister_lab.experiments.gap import GAP
from cloister_lab.experiments.learning import LEARNING
from cloister_lab.experiments.maxcover_figure import MAX_COVER
from cloister_lab.experiments.rules import RULES
from cloister_lab.experiments.run import Experiment
from cloister_lab.experiments.select_k import SELECT_K

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
