"""All experiments, by name."""

from __future__ import annotations

from cloister_lab.experiments import (
    all_methods,
    auto_ablation,
    classify,
    coefficients,
    coverage,
    credit,
    evaluate,
    fastlloyd,
    gap,
    generated,
    leaks,
    learning,
    maxcover_figure,
    reconstruction,
    rules,
    select_k,
    subcluster_figures,
    table3,
    trust,
    verdicts,
)
from cloister_lab.experiments.run import Experiment
from cloister_lab.experiments.yardstick import experiment as yardstick

_WHAT = {
    "fastlloyd-fig2": "FastLloyd Figs. 2, 6, 7, 8: NICV, silhouette, Davies-Bouldin, centre error",
    "fastlloyd-fig3": "FastLloyd Fig. 3: area over columns of two Gaussians, and over clusters",
    "fastlloyd-fig4": "FastLloyd Fig. 4: area over columns and clusters on mixtures",
    "fastlloyd-fig5": "FastLloyd Fig. 5: radius, strategy and post-processing",
    "fastlloyd-table3": "FastLloyd Table 3: time and bytes of an iteration over MPI beside SPU "
    "(ABY3, CHEETAH)",
    "all-methods": "our own figure: all methods on all tables, by the gap they close",
    "gap": "how much of FastLloyd's loss against the non-private optimum auto makes good",
    "generated": "auto on generated tables in two and three columns, beside an earlier version",
    "auto-ablation": "what each part of auto adds on generated tables: it is taken away",
    "subcluster": "SubCluster's Fig. 3 and 4: gap to Lloyd's loss, published and private variants",
    "maxcover": "Max cover's figure: objective by k on MNIST's test images and 64 Gaussians",
    "coverage": "how often the noise intervals of centres and sizes hold their target",
    "verdicts": "whether intervals and verdicts of clusters hold the answer of k-means",
    "coefficients": "whether intervals of regression coefficients hold scikit-learn's, "
    "table by table",
    "select-k": "which number of clusters is chosen from released counts",
    "classify": "accuracy of private classifiers on Adult beside scikit-learn and diffprivlib",
    "credit": "private credit scoring: forests, naive Bayes, logistic, and ensembles "
    "of silos' own models",
    "evaluate": "error of privately released measures of a classifier on Adult",
    "learning": "one logistic regression in the clear, by federated learning, secure "
    "sum + DP, and full MPC",
    "leaks": "attacks on open federated learning, exact secure computation and our releases, "
    "beside plans' bounds",
    "reconstruction": "rows rebuilt from means and covariances: exact statistics, and our releases",
    "trust": "counts and k-means at one epsilon, under four models of trust",
    "rules": "frequent itemsets that are found over silos, and what their intervals cover",
    "yardstick": "whether released numbers hold the textbook's answer, on public tables",
}
_RUN = {
    "fastlloyd-fig2": (fastlloyd.units_tables, fastlloyd.draw_tables, 20, 60 * 60),
    "fastlloyd-fig3": (fastlloyd.units_areas, fastlloyd.draw_areas, 10, 10 * 60),
    "fastlloyd-fig4": (fastlloyd.units_mixtures, fastlloyd.draw_mixtures, 10, 80 * 60),
    "fastlloyd-fig5": (fastlloyd.units_ablation, fastlloyd.draw_ablation, 10, 17 * 60),
    "fastlloyd-table3": (table3.units, table3.figures, 10, 2 * 3600),
    "all-methods": (all_methods.units, all_methods.figures, 15, 2 * 3600),
    "gap": (gap.units, gap.figures, 10, 20 * 60),
    "generated": (generated.units, generated.figures, 5, 8 * 60),
    "auto-ablation": (auto_ablation.units, auto_ablation.figures, 15, 13 * 60),
    "subcluster": (subcluster_figures.units, subcluster_figures.figures, 5, 400),
    "maxcover": (maxcover_figure.units, maxcover_figure.figures, 10, 800),
    "coverage": (coverage.units, coverage.figures, 30, 1800),
    "verdicts": (verdicts.units, verdicts.figures, 10, 20 * 60),
    "coefficients": (coefficients.units, coefficients.figures, 5, 300),
    "select-k": (select_k.units, select_k.figures, 5, 1200),
    "classify": (classify.units, classify.figures, 10, 10 * 60),
    "credit": (credit.units, credit.figures, 15, 15 * 60),
    "evaluate": (evaluate.units, evaluate.figures, 10, 120),
    "learning": (learning.units, learning.figures, 10, 20 * 60),
    "leaks": (leaks.units, leaks.figures, 50, 12 * 60),
    "reconstruction": (reconstruction.units, reconstruction.figures, 5, 15 * 60),
    "trust": (trust.units, trust.figures, 5, 60),
    "rules": (rules.units, rules.figures, 10, 15 * 60),
    "yardstick": (yardstick.units, yardstick.figures, 45, 36 * 3600),
}
"""Units, figures, and about how many seconds the small and the full version take."""

EXPERIMENTS: dict[str, Experiment] = {
    name: Experiment(name, what, *_RUN[name]) for name, what in _WHAT.items()
}
"""What ``cloister experiments run`` knows."""
