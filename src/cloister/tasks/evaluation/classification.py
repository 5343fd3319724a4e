"""How good a released model is: every record held back adds itself to public tables of counts.

A silo applies the model to its own test records. Of a record only one cell of a confusion matrix
and one cell of a histogram of scores leave it, summed with those of all others, masked and noised.
All measures are made from these two tables after release (:mod:`cloister.tasks.scores`), so one
budget pays for all of them, their intervals included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import sqrt
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from cloister.declared import Range, Whole, declared
from cloister.display import Curve, Display, Heatmap
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.task import (
    FINE,
    INTERVAL_95,
    Block,
    Classifier,
    Floats,
    GridState,
    Integers,
    Mechanism,
    Profile,
    PublicColumn,
    PublicFacts,
    Records,
    Released,
    State,
)
from cloister.tasks import scores
from cloister.tasks.columns import categories_of, codes, in_batches, position
from cloister.tasks.evaluation.layers import (
    COLUMNS,
    NOTE,
    SINGLE,
    Numbers,
    between,
    check_source,
    first_layer,
    moved,
    named,
    noted,
    plain,
    table_of,
    table_of_measures,
    table_of_silos,
    truth_of,
)
from cloister.tasks.examples import BOOLEAN, Example
from cloister.tasks.options import made

_MOST_CLASSES = 64
_VAGUE = 0.5  # a group of scores whose interval is as wide says nothing in a picture
_CONFUSION_SHARE = 0.3  # of the budget, where there are scores too


@declared
class Evaluation:
    """Measures of a classifier on records that the silos hold back.

    Parameters
    ----------
    classes : tuple of str
        Of truth and prediction, at least 2.
    truth : int
        Column of the true class.
    model : Classifier, optional
        Applied by each silo to its own records.
    released : mapping
        The model's results, as numbers.
    prediction, score : int, optional
        Columns of predicted classes and of scores of the last of two classes, where there is no
        model; at least one.
    probability : bool
        Whether scores are probabilities: a column with the bounds 0 and 1.
    n_bins : int, even, in [2, 1024]
        Of the histogram of scores.
    silos : tuple of str
        Where each silo's measures are released, too: the silos, in the plan's order.

    Notes
    -----
    Two tables are summed. In the first a record adds one to one of ``n_classes**2`` cells. In the
    second it adds one to one cell of ``n_bins * 2`` for each of `heads` scores: one score if there
    are two classes, else one of each class against the rest. The first has 3 parts in 10 of the
    budget, the second 7; what each says of the other's sums is used
    (:func:`cloister.tasks.scores.consistent`).

    With `silos`, the tables have a layer for each silo. A record is in one silo and so still in one
    cell of each table, and the noise of a cell is the same. ADR 16 has the rest.
    """

    name: ClassVar[str] = "evaluation"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 1

    example: ClassVar[Example] = Example(
        (BOOLEAN, PublicColumn("score", 0.0, 1.0)), {"truth": "smokes", "score": "score"}
    )

    @declared
    class Options:
        """What a user may choose."""

        model: Annotated[Any, "a trained classifier that is part of the plan"] = None
        released: Annotated[Numbers, "the results of the model"] = field(default_factory=dict)
        truth: Annotated[str | None, "column of the true class; the model's if None"] = None
        prediction: Annotated[str | None, "column of told classes, without a model"] = None
        score: Annotated[str | None, "column of scores of the second of two classes"] = None
        n_bins: Annotated[
            Annotated[int, Range(2, 1024)] | None, "of scores, an even number; by the noise if None"
        ] = None
        by_silo: Annotated[bool, "release the measures of each silo by itself, too"] = False

    n_features: Whole
    classes: tuple[str, ...]
    truth: int
    model: Any = None
    released: Numbers = field(default_factory=dict)
    prediction: int | None = None
    score: int | None = None
    probability: bool = True
    n_bins: Annotated[int, Range(2, 1024)] = 32
    silos: tuple[str, ...] = ()
    frac_bits: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "released", plain(self.released))
        if not 2 <= len(self.classes) <= _MOST_CLASSES:
            raise PlanError(
                f"classes must be 2 to {_MOST_CLASSES}, got {len(self.classes)}; join rare ones."
            )
        if self.n_bins % 2:
            raise PlanError(f"n_bins must be even, got {self.n_bins}; give one more.")
        check_source(self.model, self.released, (self.prediction, self.score), self.n_features)
        if self.model is not None and tuple(self.model.classes) != self.classes:
            raise PlanError(
                f"classes must be those of the model, {tuple(self.model.classes)}, got "
                f"{self.classes}; evaluate with the schema of the model."
            )
        if self.score is not None and len(self.classes) != 2:
            raise PlanError(
                f"score is for two classes, got {len(self.classes)}; give a prediction or a model."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the bins from budget and nominal number; see :func:`~.scores.number_of_bins`."""
        model, columns = options.model, facts.columns
        if model is not None and not isinstance(model, Classifier):
            raise PlanError(
                f"model must be a classifier of ours, got {named(model)}; 'regression-evaluation' "
                "is for one that tells a number, and a model of others is not part of a plan."
            )
        truth = truth_of(model, columns, options.truth)
        classes = categories_of(columns, columns[truth].name)
        told = options.prediction
        if told is not None and categories_of(columns, told) != classes:
            raise PlanError(
                f"prediction {told!r} must have the categories of the truth, {classes}."
            )
        score = None if options.score is None else position(columns, options.score, "score")
        return made(
            cls,
            facts,
            options,
            classes=classes,
            truth=truth,
            model=model,
            prediction=None if told is None else position(columns, told),
            score=score,
            probability=score is None or (facts.low[score], facts.high[score]) == (0.0, 1.0),
            n_bins=options.n_bins
            or scores.number_of_bins(_noise_over_n(facts.budget, facts.nominal_n)),
            silos=facts.silos if options.by_silo else (),
        )

    @property
    def heads(self) -> int:
        """Number of scores of a record; 0 if only predictions are known."""
        if self.model is None and self.score is None:
            return 0
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def predicts(self) -> bool:
        """Whether it is known what class a record is told to be."""
        return self.model is not None or self.prediction is not None or self.probability

    @property
    def _joined(self) -> bool:
        """Whether the prediction says in which half of the bins the score is."""
        return self.heads == 1 and self.prediction is None and self.predicts

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        what = ["how many records of each class are told to be of each class"] * self.predicts
        what += [f"how many records of each class have scores in each of {self.n_bins} bins"] * (
            self.heads > 0
        )
        source = COLUMNS
        if self.model is not None:
            source = "A released model is applied to the records of each silo, there. "
        return (
            f"{source}Silos count {' and '.join(what)}; the sums are released with noise, and "
            "accuracy, area under the curve and other measures are made from them."
            + f" Each of {len(self.silos)} silos has sums of its own."
            * bool(self.silos)
        )

    def start(self) -> State:
        """Return the state before the round."""
        return {
            **{block.name: np.zeros(block.shape) for block in self.blocks(0)},
            "noise": np.zeros(len(self.blocks(0))),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return both tables, with a layer for each silo if that is asked for."""
        layers, k, one = max(1, len(self.silos)), len(self.classes), 1 << FINE
        share = 1.0 if not self.heads else _CONFUSION_SHARE if self.predicts else 0.0
        # a record is in one cell of the first table, and in one of each head's of the second
        tables = []
        if self.predicts:
            tables.append(Block("confusion", (layers, k, k), one, one**2, share))
        if h := self.heads:
            shape = (layers, h, 2, self.n_bins)
            tables.append(Block("scores", shape, h * one, h * one**2, 1 - share))
        return tuple(tables)

    def placed(self, t: int, silo: str, total: Integers) -> Integers:
        """Move sums from the first layer to that of one silo."""
        return moved(total, self.blocks(t), self.silos.index(silo))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the counts of some records, in fine units; with `silos`, those of the first."""
        k, b = len(self.classes), self.n_bins
        truth = codes(records[:, self.truth], k, self.frac_bits)
        answers = in_batches(self._answers, records)  # guards against the table's length only
        parts = []
        if self.predicts:
            parts.append(np.bincount(truth * k + answers[:, -1], minlength=k * k))
        for head in range(self.heads):
            member = truth == (head if self.heads > 1 else 1)
            parts.append(np.bincount(member * b + answers[:, head], minlength=2 * b))
        return first_layer(np.concatenate(parts).astype(np.int64) << FINE, self.blocks(t))

    def _answers(self, records: Records) -> Integers:
        """Return the bin of each score, then the prediction; shape (n_samples, heads + 1)."""
        bins, predicted = (
            self._of_columns(records) if self.model is None else self._of_model(records)
        )
        if self._joined:
            predicted = (bins[:, 0] >= self.n_bins // 2).astype(np.int64)
        return np.column_stack([bins, predicted]).astype(np.int64)

    def _of_model(self, records: Records) -> tuple[Integers, Integers]:
        """Return bins and predictions; what is no number counts as no preference."""
        assert self.model is not None
        told = self.model.probabilities(self._arrays, records)
        told = np.nan_to_num(told, nan=1 / len(self.classes), posinf=1.0, neginf=0.0)
        if self.heads == 1:
            bins = scores.probability_bins(told[:, 1], told[:, 0], self.n_bins)[:, None]
        else:
            rest = told.sum(axis=1, keepdims=True) - told
            bins = scores.probability_bins(told, rest, self.n_bins)
        return bins, told.argmax(axis=1).astype(np.int64)

    def _of_columns(self, records: Records) -> tuple[Integers, Integers]:
        """Return bins and predictions that the records hold; zeros for what they do not."""
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

    @cached_property
    def _arrays(self) -> dict[str, Floats]:
        return {name: np.asarray(v, dtype=np.float64) for name, v in self.released.items()}

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the noisy tables, in records."""
        return noted(released)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the half-width of the 95 % interval of a cell of the first table, in records."""
        name = self.blocks(0)[0].name
        half_width = INTERVAL_95["gaussian"] * noise_std / (1 << FINE)
        return {f"{name}_half_width": np.array([half_width])}

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the tables and every measure with the ends of its 95 % noise interval.

        Returns
        -------
        dict
            ``confusion`` of shape (n_classes, n_classes), ``scores`` of shape (heads, 2, n_bins)
            (others, members), their ``..._half_width`` of shape (1,). Of shape (1,): ``accuracy``,
            ``balanced_accuracy``, ``macro_f1``, ``kappa``, ``log_loss``, ``brier`` (two classes)
            and, with more than one head, ``macro_auc``; of shape (n_classes,): ``precision``,
            ``recall``, ``f1``; of shape (heads,): ``auc``; each with ``..._low`` and ``..._high``.
            ``auc_blur`` of shape (heads,): how far bins can have moved the area. ``roc_fpr``,
            ``roc_tpr`` of shape (heads, n_bins + 1); ``calibration_predicted`` and
            ``calibration_observed`` of shape (heads, n_groups). With `silos`, ``silo_accuracy`` and
            so on have a row for each silo.
        """
        tables = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        noise = dict(zip((block.name for block in self.blocks(0)), tables["noise"], strict=True))
        layers = max(1, len(self.silos))
        pooled = self._measured(
            {name: tables[name].sum(axis=0) for name in noise},
            {name: sqrt(layers) * std for name, std in noise.items()},
        )
        if not self.silos:
            return pooled
        each = [
            self._measured({name: tables[name][layer] for name in noise}, noise)
            for layer in range(layers)
        ]
        rows = {
            f"silo_{key}": np.concatenate([part[key] for part in each])
            for key in each[0]
            if key.removesuffix("_low").removesuffix("_high").removesuffix("_population") in SINGLE
        }
        return {**pooled, **rows}

    def _measured(self, tables: Mapping[str, Floats], noise: Mapping[str, float]) -> dict[str, Any]:
        """Return all results of one layer, or of their sum."""
        found: dict[str, Floats] = {}
        measures: dict[str, scores.Estimate] = {}
        for name, std in noise.items():
            found[name] = tables[name]
            found[f"{name}_half_width"] = np.array([INTERVAL_95["gaussian"] * std])
        heads, confusion, variance = self._made_consistent(tables, noise)
        if confusion is not None:
            measures |= scores.confusion_measures(confusion, variance)
        if heads:
            measures |= self._of_scores(heads)
            found["auc_blur"] = np.array([scores.area(head)[1] for head in heads])
            curves = [scores.roc_curve(head) for head in heads]
            found["roc_fpr"] = np.stack([fpr for fpr, _ in curves])
            measures["roc_tpr"] = _stacked([tpr for _, tpr in curves])
        if heads and self.probability:
            tables_of = [scores.calibration(head, self._told) for head in heads]
            found["calibration_predicted"] = np.stack([told for told, _ in tables_of])
            measures["calibration_observed"] = _stacked([seen for _, seen in tables_of])
        return found | scores.as_results(measures)

    def _of_scores(self, heads: list[scores.ScoreHistogram]) -> dict[str, scores.Estimate]:
        areas = _stacked([scores.area(head)[0] for head in heads])
        measures = {"auc": areas}
        if len(heads) > 1:
            measures["macro_auc"] = scores.mean_of(areas, same_records=True)
            measures["log_loss"] = scores.multiclass_log_loss(heads, self._told)
        elif self.probability:
            measures |= scores.probability_measures(heads[0], self._told)
        return measures

    @property
    def _told(self) -> Floats:
        """The probability that each bin stands for."""
        return scores.unit_to_probability((np.arange(self.n_bins) + 0.5) / self.n_bins)

    def _made_consistent(
        self, tables: Mapping[str, Floats], noise: Mapping[str, float]
    ) -> tuple[list[scores.ScoreHistogram], Floats | None, float]:
        """Return histograms and matrix that agree where they count the same, and its variance."""
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
        if self._joined:
            halves = [heads[0].others.reshape(2, -1), heads[0].members.reshape(2, -1)]
            half = self.n_bins // 2
            return (
                heads,
                np.array([part.sum(axis=1) for part in halves]),
                float(heads[0].cov_members[:half, :half].sum()),
            )
        return heads, confusion, variance["confusion"]

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        """Return measures, confusion matrix, ROC curves and calibration."""
        shown: list[Display] = [table_of_measures(results)]
        if "confusion" in results:
            half_width = float(results["confusion_half_width"][0])
            shown.append(
                Heatmap(
                    "Confusion matrix",
                    tuple(f"is {name}" for name in self.classes),
                    tuple(f"told {name}" for name in self.classes),
                    results["confusion"],
                    margin=np.full(results["confusion"].shape, half_width),
                    note="Noisy numbers of test records; ± is 95 % of the noise.",
                )
            )
        if "precision" in results:
            of_class = ("precision", "recall", "f1")
            shown.append(table_of("Each class", self.classes, of_class, "", results, NOTE))
        for head in range(self.heads):
            shown += self._curves(results, head)
        if self.silos:
            shown.append(table_of_silos(results, self.silos, NOTE))
        return tuple(shown)

    def _curves(self, results: Mapping[str, Floats], head: int) -> list[Display]:
        of = self.classes[head if self.heads > 1 else 1]
        shown: list[Display] = [
            Curve(
                f"ROC curve of {of}",
                results["roc_fpr"][head],
                results["roc_tpr"][head],
                results["roc_tpr_low"][head],
                results["roc_tpr_high"][head],
                axes=("false positive rate", "true positive rate"),
                note=f"Area {_in_words(results, 'auc', head)}. {NOTE}",
            )
        ]
        if "calibration_predicted" in results:
            named = ("predicted", "observed", "observed_low", "observed_high")
            told, seen, low, high = (results[f"calibration_{name}"][head] for name in named)
            kept = high - low < _VAGUE
            if kept.any():
                told, seen, low, high = (part[kept] for part in (told, seen, low, high))
            shown.append(
                Curve(
                    f"Calibration of {of}",
                    told,
                    seen,
                    low,
                    high,
                    axes=("predicted probability", "share that came true"),
                    note=f"Groups with hardly any records are left out. {NOTE}",
                )
            )
        return shown


def _noise_over_n(budget: Budget | None, nominal_n: int) -> float:
    """Return the noise multiplier over the number of records."""
    if budget is None or budget.delta == 0:
        return 1.0 / nominal_n
    return gaussian_noise_multiplier(budget.epsilon, budget.delta) / nominal_n


def _known_totals(
    confusion: Floats | None, member: int, side: int, joined: bool
) -> tuple[Floats | None, float]:
    """Return what a matrix says of sums of a histogram's side, and how many cells it adds up."""
    if confusion is None:
        return None, 0.0
    k = len(confusion)
    if k == 2 and joined:  # the halves of the bins are the two predictions
        return confusion[side], 1.0
    own = confusion[member].sum()
    if side == 1:
        return np.array([own]), float(k)
    return np.array([confusion.sum() - own]), float(k * (k - 1))


def _stacked(parts: Sequence[scores.Estimate]) -> scores.Estimate:
    values, lows, highs = (
        np.stack([getattr(part, end) for part in parts]) for end in ("value", "low", "high")
    )
    ends = [part.population for part in parts if part.population is not None]
    wide = (np.stack([low for low, _ in ends]), np.stack([high for _, high in ends]))
    return scores.Estimate(values, lows, highs, population=wide)


def _in_words(results: Mapping[str, Floats], name: str, i: int) -> str:
    found = between(results, name, i)
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
