"""Evaluation of a released classifier: noisy tables of counts over test records.

A silo applies the model to its own test records. A record contributes one cell of a confusion
matrix and one cell of a histogram of scores, which are summed, masked and noised. All measures are
computed from these two tables after the release (:mod:`cloister.tasks.scores`). One budget
therefore covers all of them, including their intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results
from cloister.core.declared import Hint, Length, Range, Rule, declared
from cloister.core.display import Curve, Display, Estimate, Heatmap, around
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    CONTRAST,
    COUNT_BITS,
    INTERVAL_95,
    POSITIVE,
    SHARE,
    Block,
    Classifier,
    PublicColumn,
    PublicFacts,
    Ranges,
    Rows,
)
from cloister.tasks import scores
from cloister.tasks.columns import categories_of, codes, in_batches
from cloister.tasks.evaluation.layers import NOTE, BySilo, Evaluated, Model, ModelResults, place_of
from cloister.tasks.examples import BOOLEAN, Example
from cloister.tasks.interval_tables import MARGINS, curve_of, number_of, table_of
from cloister.tasks.options import build_task, noise_multiplier_for

# Even, so that even odds are an edge between two bins.
Bins = Annotated[int, Range(2, 1024), Rule("even", lambda n: n % 2 == 0)]
_VAGUE = 0.5  # a group of scores with a wider interval is not drawn
_CONFUSION_SHARE = 0.3  # of the budget, if there are scores, too


@declared
class Evaluation(Evaluated):
    """Measures of a classifier on records that the silos hold back.

    Parameters
    ----------
    classes : tuple of str
        Classes of truth and prediction, at least 2.
    score : int, optional
        Column of scores of the last of two classes, without a model.
    probability : bool
        If True, scores are probabilities: a column with the bounds 0 and 1.
    n_bins : int, even
        Number of bins of the histogram of scores.

    Notes
    -----
    Two tables are summed. In the first a record adds one to one of ``n_classes**2`` cells. In the
    second it adds one to one cell of ``n_bins * 2`` for each of `heads` scores. There is one score
    for two classes, else one of each class against the rest. The first table has 30 % of the
    budget, the second 70 %. Common sums of the two are combined
    (:func:`cloister.tasks.scores.consistent`).
    """

    name: ClassVar[str] = "evaluation"
    title: ClassVar[str] = "Quality of the predictions"
    models: ClassVar[tuple[type, str]] = (Classifier, "classifier")
    ranges: ClassVar[Ranges] = {
        **dict.fromkeys(("accuracy", "balanced_accuracy", "precision", "recall"), SHARE),
        **dict.fromkeys(("f1", "macro_f1", "auc", "macro_auc", "brier"), SHARE),
        **dict.fromkeys(("roc_tpr", "calibration_observed"), SHARE),
        **{"kappa": CONTRAST, "log_loss": POSITIVE},
    }
    example: ClassVar[Example] = Example(
        (BOOLEAN, PublicColumn("score", 0.0, 1.0)), {"truth": "smokes", "score": "score"}
    )

    @declared
    class Options:
        model: Model = None
        released: ModelResults = field(default_factory=dict)
        truth: Annotated[str | None, "column of the true class; the model's if None"] = None
        prediction: Annotated[str | None, "column of predicted classes, without a model"] = None
        score: Annotated[str | None, "column of scores of the second of two classes"] = None
        n_bins: Annotated[
            Bins | None, "of scores, an even number; chosen from the noise by default"
        ] = None
        by_silo: BySilo = False

    classes: Annotated[tuple[str, ...], Length(2, 64), Hint("merge rare classes")]
    score: int | None = None
    probability: bool = True
    n_bins: Bins = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score is not None and len(self.classes) != 2:
            raise PlanError(
                f"score is for two classes, got {len(self.classes)}; give a prediction or a model."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the bins from budget and nominal number; see :func:`~.scores.number_of_bins`."""
        source, columns = cls.source(facts, options), facts.columns
        classes = categories_of(columns, columns[source["truth"]].name)
        if (predicted := source["prediction"]) is not None and columns[
            predicted
        ].categories != classes:
            raise PlanError(
                f"prediction {options.prediction!r} must have the categories of the truth, "
                f"{classes}, got {columns[predicted].categories}; change the schema."
            )
        score = place_of(columns, options.score, "score")
        return build_task(
            cls,
            facts,
            options,
            **source,
            classes=classes,
            score=score,
            # Only public bounds of 0 and 1 show that a score is meant as a probability.
            probability=score is None or (facts.low[score], facts.high[score]) == (0.0, 1.0),
            n_bins=options.n_bins
            or scores.number_of_bins(  # without a budget, as for the multiplier 1
                (noise_multiplier_for(facts, pure=True) or 1.0) / facts.nominal_n
            ),
        )

    @property
    def answers(self) -> tuple[int | None, ...]:
        """Columns of predictions and of scores."""
        return (self.prediction, self.score)

    @property
    def heads(self) -> int:
        """Number of scores of a record; 0 if there are only predictions."""
        if self.model is None and self.score is None:
            return 0
        # For two classes, the score of one determines that of the other.
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def predicts(self) -> bool:
        """True if records have a predicted class."""
        return self.model is not None or self.prediction is not None or self.probability

    @property
    def _joined(self) -> bool:
        """True if the prediction determines the half of the bins that holds the score."""
        # A separate column of predictions may contradict the scores.
        return self.heads == 1 and self.prediction is None and self.predicts

    def describe(self) -> str:
        counts = {
            "with each predicted class": self.predicts,
            f"with scores in each of {self.n_bins} bins": self.heads > 0,
        }
        of_class = "the records of each class"
        counted = " and ".join(f"{of_class} {text}" for text, used in counts.items() if used)
        return self.described(
            f"Silos count {counted}; the sums are released with noise, "
            "and accuracy, area under the curve and other measures are computed from them."
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of both tables; with `silos`, each has a layer for each silo."""
        layers, k = self.layers, len(self.classes)
        share = 1.0 if not self.heads else _CONFUSION_SHARE if self.predicts else 0.0
        # A record is in one cell of the first table, and in one cell per head of the second.
        tables = []
        if self.predicts:
            tables.append(Block.counting("confusion", (layers, k, k), share))
        if h := self.heads:
            shape = (layers, h, 2, self.n_bins)
            tables.append(Block.counting("scores", shape, 1 - share, h))
        return tuple(tables)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return a one in a cell of each table; with `silos`, in its first layer."""
        k, b = len(self.classes), self.n_bins
        truth = codes(records[:, self.truth], k, self.frac_bits)
        answers, unit, parts = in_batches(self._answers, records), 1 << COUNT_BITS, []
        if self.predicts:
            parts.append(Rows.at([truth * k + answers[:, -1]], [unit]))
        if self.heads:
            # With one head, the members are the records of the second class.
            members = (truth == (h if self.heads > 1 else 1) for h in range(self.heads))
            # Numbered as in the block: head, then other or member, then bin.
            cells = [2 * b * h + m * b + answers[:, h] for h, m in enumerate(members)]
            parts.append(Rows.at(cells, [unit] * self.heads))
        return tuple(parts)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the counts of records in fine units; with `silos`, in the first layer."""
        k, b = len(self.classes), self.n_bins
        truth = codes(records[:, self.truth], k, self.frac_bits)
        # Guards against the table's length only, see `in_batches`.
        answers = in_batches(self._answers, records)
        parts = []
        if self.predicts:
            parts.append(np.bincount(truth * k + answers[:, -1], minlength=k * k))
        for head in range(self.heads):
            member = truth == (head if self.heads > 1 else 1)
            parts.append(np.bincount(member * b + answers[:, head], minlength=2 * b))
        return self.first_layer(np.concatenate(parts).astype(np.int64) << COUNT_BITS)

    def _answers(self, records: Records) -> Integers:
        """Return the bin of each score, then the prediction; shape (n_samples, heads + 1)."""
        bins, predicted = (
            self._of_columns(records) if self.model is None else self._of_model(records)
        )
        # From the bins, so that both tables count the same and can be combined.
        if self._joined:
            predicted = (bins[:, 0] >= self.n_bins // 2).astype(np.int64)
        return np.column_stack([bins, predicted]).astype(np.int64)

    def _of_model(self, records: Records) -> tuple[Integers, Integers]:
        """Return bins and predictions of the model."""
        # A value that is no number counts as no preference: a record is always in exactly one cell.
        assert self.model is not None
        predicted = self.model.probabilities(self._arrays, records)
        predicted = np.nan_to_num(predicted, nan=1 / len(self.classes), posinf=1.0, neginf=0.0)
        if self.heads == 1:
            bins = scores.probability_bins(predicted[:, 1], predicted[:, 0], self.n_bins)[:, None]
        else:
            # Each class against the rest.
            rest = predicted.sum(axis=1, keepdims=True) - predicted
            bins = scores.probability_bins(predicted, rest, self.n_bins)
        return bins, predicted.argmax(axis=1).astype(np.int64)

    def _of_columns(self, records: Records) -> tuple[Integers, Integers]:
        """Return bins and predictions in columns of the records; zeros for missing columns."""
        bins = np.zeros((len(records), self.heads), dtype=np.int64)
        predicted = np.zeros(len(records), dtype=np.int64)
        if self.score is not None:
            unit = (records[:, self.score] / (1 << self.frac_bits) + 1) / 2
            if self.probability:
                bins[:, 0] = scores.probability_bins(unit, 1 - unit, self.n_bins)
            else:
                bins[:, 0] = scores.unit_bins(unit, self.n_bins)
        if self.prediction is not None:
            levels = len(self.classes)
            predicted = codes(records[:, self.prediction], levels, self.frac_bits)
        return bins, predicted

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the 95 % margin of error of a cell of the first table, in records."""
        # Most measures are ratios of cells, so their errors depend on the unknown counts.
        name = self.blocks(0)[0].name
        half_width = INTERVAL_95["gaussian"] * noise_std / (1 << COUNT_BITS)
        return {f"{name}_half_width": np.array([half_width])}

    def measured(
        self, tables: Results, noise: Mapping[str, float], layers: int
    ) -> dict[str, Floats]:
        """Return the sum of `layers` layers, and every measure with its 95 % noise interval.

        Returns
        -------
        dict
            ``confusion`` of shape (n_classes, n_classes), ``scores`` of shape (heads, 2, n_bins)
            (others, members), their ``..._half_width`` of shape (1,). Of shape (1,): ``accuracy``,
            ``balanced_accuracy``, ``macro_f1``, ``kappa``, ``log_loss``, ``brier`` (two classes)
            and, with more than one head, ``macro_auc``. Of shape (n_classes,): ``precision``,
            ``recall``, ``f1``. Of shape (heads,): ``auc``. Each has ``..._low`` and ``..._high``.
            ``auc_blur`` of shape (heads,): largest shift of the area by the bins. ``roc_fpr``,
            ``roc_tpr`` of shape (heads, n_bins + 1). ``calibration_predicted`` and
            ``calibration_observed`` of shape (heads, n_groups).
        """
        # Noises of layers are independent, so their variances add up.
        noise = {name: sqrt(layers) * std for name, std in noise.items()}
        results: dict[str, Floats] = {}
        measures: dict[str, Estimate] = {}
        for name, std in noise.items():
            results[name] = tables[name]
            results[f"{name}_half_width"] = np.array([INTERVAL_95["gaussian"] * std])
        heads, confusion, variance = self._made_consistent(tables, noise)
        if confusion is not None:
            measures |= scores.confusion_measures(confusion, variance)
        if heads:
            measures |= self._of_scores(heads)
            results["auc_blur"] = np.array([scores.area(head)[1] for head in heads])
            curves = [scores.roc_curve(head) for head in heads]
            results["roc_fpr"] = np.stack([fpr for fpr, _ in curves])
            measures["roc_tpr"] = _stacked([tpr for _, tpr in curves])
        if heads and self.probability:
            tables_of = [scores.calibration(head, self._of_bins) for head in heads]
            results["calibration_predicted"] = np.stack([predicted for predicted, _ in tables_of])
            measures["calibration_observed"] = _stacked([seen for _, seen in tables_of])
        return results | scores.as_results(measures)

    def _of_scores(self, heads: list[scores.ScoreHistogram]) -> dict[str, Estimate]:
        areas = _stacked([scores.area(head)[0] for head in heads])
        measures = {"auc": areas}
        if len(heads) > 1:
            measures["macro_auc"] = scores.mean_of(areas, same_records=True)
            measures["log_loss"] = scores.multiclass_log_loss(heads, self._of_bins)
        elif self.probability:
            measures |= scores.probability_measures(heads[0], self._of_bins)
        return measures

    @property
    def _of_bins(self) -> Floats:
        """The probability at the middle of each bin."""
        return scores.unit_to_probability((np.arange(self.n_bins) + 0.5) / self.n_bins)

    def _made_consistent(
        self, tables: Results, noise: Mapping[str, float]
    ) -> tuple[list[scores.ScoreHistogram], Floats | None, float]:
        """Return histograms and a matrix with equal common sums, and the matrix's variance."""
        variance = {name: std**2 for name, std in noise.items()}
        confusion = tables.get("confusion")
        if not self.heads:
            assert confusion is not None
            return [], confusion, variance["confusion"]
        heads = []
        for head, histogram in enumerate(tables["scores"]):
            member = head if self.heads > 1 else 1
            parts = []
            for side, counts in enumerate(histogram):
                totals, total_variance = _known_totals(confusion, member, side, self._joined)
                total_variance *= variance.get("confusion", 0.0)
                if totals is None:
                    parts.append((counts, variance["scores"] * np.eye(self.n_bins)))
                else:
                    parts.append(
                        scores.consistent(counts, variance["scores"], totals, total_variance)
                    )
            (others, cov_others), (members, cov_members) = parts
            heads.append(scores.ScoreHistogram(others, members, cov_others, cov_members))
        if confusion is None:
            return heads, None, 0.0
        if self._joined:  # the matrix follows from the halves of the combined histograms
            halves = [heads[0].others.reshape(2, -1), heads[0].members.reshape(2, -1)]
            half = self.n_bins // 2
            return (
                heads,
                np.array([part.sum(axis=1) for part in halves]),
                float(heads[0].cov_members[:half, :half].sum()),  # the counts are correlated
            )
        return heads, confusion, variance["confusion"]

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return displays of measures, confusion matrix, ROC curves and calibration."""
        shown: list[Display] = [self.table_of_model(results)]
        if "confusion" in results:
            half_width = float(results["confusion_half_width"][0])
            truth = tuple(f"is {name}" for name in self.classes)
            predicted = tuple(f"predicted {name}" for name in self.classes)
            shown.append(
                Heatmap(
                    "Confusion matrix",
                    around(results["confusion"], half_width, labels=(truth, predicted)),
                    f"Noisy counts of test records. {MARGINS}",
                )
            )
        if "precision" in results:
            of_class = {name: name for name in ("precision", "recall", "f1")}
            shown.append(table_of("Each class", self.classes, of_class, results, NOTE))
        for head in range(self.heads):
            shown += self._curves(results, head)
        return (*shown, *self.tables_of_silos(results))

    def _curves(self, results: Results, head: int) -> list[Display]:
        of = self.classes[head if self.heads > 1 else 1]
        area = number_of(results, "auc", head)
        shown: list[Display] = [
            curve_of(
                f"ROC curve of {of}",
                results["roc_fpr"][head],
                results,
                "roc_tpr",
                head,
                axes=("false positive rate", "true positive rate"),
                note=f"Area {area.value:.3f} [{area.low:.3f}, {area.high:.3f}]. {NOTE}",
            )
        ]
        if "calibration_predicted" in results:
            named = ("predicted", "observed", "observed_low", "observed_high")
            rows = np.stack([results[f"calibration_{name}"][head] for name in named])
            clear = rows[3] - rows[2] < _VAGUE
            note = f"Groups with very few records are not shown. {NOTE}"
            # If all groups are vague, a chart of all is better than an empty one.
            places, *ends = rows[:, clear] if clear.any() else rows
            axes, unit = ("predicted probability",), "observed share"
            observed = Estimate(*ends, axes=axes, unit=unit)
            shown.append(Curve(f"Calibration of {of}", places, observed, note))
        return shown


def _known_totals(
    confusion: Floats | None, member: int, side: int, joined: bool
) -> tuple[Floats | None, float]:
    """Return the matrix's totals of one side of a histogram, and the number of cells in each."""
    if confusion is None:
        return None, 0.0
    k = len(confusion)
    if k == 2 and joined:  # the halves of the bins are the two predictions
        return confusion[side], 1.0
    members = confusion[member].sum()
    if side == 1:
        return np.array([members]), float(k)  # a row of k cells
    return np.array([confusion.sum() - members]), float(k * (k - 1))  # all other rows


def _stacked(parts: Sequence[Estimate]) -> Estimate:
    values, lows, highs = (
        np.stack([getattr(part, end) for part in parts]) for end in ("values", "low", "high")
    )
    # All have population intervals, because areas, curves and shares always do.
    ends = [part.population for part in parts if part.population is not None]
    wide = (np.stack([low for low, _ in ends]), np.stack([high for _, high in ends]))
    return Estimate(values, lows, highs, population=wide)
