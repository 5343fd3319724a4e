"""The effect of a treatment: a model of who gets it, one of the outcome, and a sum at both.

Both models take their five rounds together. The last of these also counts sizes for the next one.
A sixth round sums the terms of both effects at the released models, see
:mod:`cloister.tasks.regression.weighing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import hypot, sqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Length, Range, Whole, declared
from cloister.core.display import Display, Estimate, Summary, Table, around
from cloister.core.errors import PlanError
from cloister.core.numerals import NOT_KNOWN
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.rows import summed
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import in_cache, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import (
    INTERVALS,
    MARGINS,
    WITH_POPULATION,
    bars_of,
    number_of,
)
from cloister.tasks.options import build_task, noise_multiplier_for
from cloister.tasks.regression.design import PLACES, Placed, term_of
from cloister.tasks.regression.engine import BITS, ball
from cloister.tasks.regression.families import family_of
from cloister.tasks.regression.newton import ball_block
from cloister.tasks.regression.rounds import LAST, ROUNDS, SHARES, Known, Model
from cloister.tasks.regression.tails import CLASSES, SAME_WAY, Tail, class_of, falling
from cloister.tasks.regression.weighing import (
    ESTIMANDS,
    LEAST,
    SCORE,
    SCORED,
    Scores,
    balance_cut,
    balance_of,
    balance_payload,
    effect_of,
    effect_rows,
    estimate_of,
    scores_of,
)
from cloister.tasks.state import decode_state, encode_state, part_of, prefixed

_MODELS, _BALANCE_SHARE = {"propensity": 0.25, "outcome": 0.30}, 0.03  # of the budget
_DIFFERENCE_SHARE = 0.02
# Of the estimand that is asked for, and of the other one.
_SIZES, _SCORES, _CHANGES = (0.05, 0.015), (0.245, 0.05), (0.03, 0.01)
# Largest and usual factor of a residual in a score; of "ate" by the share of the smaller arm.
_END = {"ate": 1 / LEAST, "ato": 4.0}
_FAR = {"ate": 2.5, "ato": 2.0}
_SLOPES = np.array([1.0, 0.5])  # usual largest slope of both, in the largest score and row
_BALANCED = 0.1  # standardised difference
_ONE_WAY = 1 / SAME_WAY  # a false model of the outcome leaves the residuals of an end one sign
_TIGHT = 0.6  # weight of what a cut takes away beside noise: it is stated, but is often less
# Deviations of noise above which a count of sizes is relied on, of the estimand that is asked for
# and of the other one. Its counts are noisier: a larger number would hide rare events.
_SURE = (3.0, 2.0)
_LABELS = {
    "ato": "on average where both arms are likely (overlap)",
    "ate": "on average over all records",
    "naive": "difference of means, not adjusted",
}
_WHEN = ("before", "after overlap weighting")  # whichever effect is the main one
_BALANCE = (
    "[ , ] are 95 % confidence intervals (privacy noise only). Balanced: the whole interval is "
    f"within {_BALANCED}."
)
_SMALL = "the spread of the column, or an arm, is too small for the noise"
_HIDDEN = (
    "Noise hides a coefficient of a model that it needs: give more records, or join categories."
)
_Z = INTERVAL_95["gaussian"]


@dataclass(frozen=True)
class _Aim:
    """The public state of the last round.

    `cuts` are lengths to which scores and balance are cut; `lost` is what they likely take away, of
    both effects.
    """

    propensity: Floats  # weights of the models
    outcome: Floats
    cuts: Floats
    lost: Floats
    sums: Floats  # one block after another, and their noise
    noise: Floats


@declared
class TreatmentEffect(Gaussian):
    """The average effect of a treatment on an outcome, if no other cause of both is left out.

    Parameters
    ----------
    treatment, outcome, covariates : int, int, tuple of int
        Columns; the treatment has two categories, and the second is treated.
    levels, low, high : tuple with an entry for each column
        Number of categories, 0 for numbers; and the box, data units.
    names : tuple of str
        Covariates, one for each category.
    arms : tuple of str
        Names of the categories of the treatment.
    estimand : {"ato", "ate"}
        The effect of the summary, of overlap or the average one; the other has more noise.
    bins : tuple of int
        Number of bins of a histogram, of both models.

    Notes
    -----
    A record adds vectors whose integer norm is checked. docs/proofs/treatment.md
    """

    name: ClassVar[str] = "treatment-effect"
    title: ClassVar[str] = "Effect of a treatment"
    has_effects: ClassVar[bool] = True
    error_depends_on: ClassVar[str] = "the spread of the outcome and the overlap of both arms"
    without_site: ClassVar[str] = (
        "no covariate is known to be the silo. If none holds its name and silos differ both in the "
        "share of the treated and in the outcome, the effect includes the difference between "
        "silos; add a column of categories with the name of the silo as a covariate."
    )
    usage: ClassVar[str] = "--treatment treated --outcome score"
    rounds: ClassVar[int] = ROUNDS + 1

    example: ClassVar[Example] = Example(
        MIXED, {"treatment": "smokes", "outcome": "weight", "n_units": 20_000}
    )

    @declared
    class Options:
        treatment: Annotated[str, "column of two categories; the second is treated"]
        outcome: Annotated[str, "column of numbers or of two categories"]
        covariates: Annotated[
            tuple[str, ...], "all common causes of both columns; all other columns by default"
        ] = ()
        estimand: Annotated[
            Literal["ato", "ate"],
            "ato: where both arms are likely; ate: over all records. The other one has more noise",
        ] = "ato"
        n_units: Annotated[Whole | None, "public number of records; nominal_n by default"] = None

    n_features: Whole
    treatment: Annotated[int, Range(0)]
    outcome: Annotated[int, Range(0)]
    covariates: Annotated[tuple[Annotated[int, Range(0)], ...], Length(1)]
    levels: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    names: tuple[str, ...]
    arms: tuple[str, ...]
    estimand: Literal["ato", "ate"] = "ato"
    bins: tuple[Annotated[int, Range(2, 1024)], ...] = (64, 64)
    frac_bits: int = 16

    def __post_init__(self) -> None:
        used = [self.treatment, self.outcome, *self.covariates]
        if len(set(used)) < len(used) or max(used) >= self.n_features:
            raise PlanError(
                "treatment, outcome and covariates must be different columns of "
                f"{self.n_features}, got {used}."
            )
        if self.levels[self.treatment] != 2 or self.levels[self.outcome] not in (0, 2):
            raise PlanError(
                "treatment must be a column of two categories, and outcome one of numbers or of "
                "two categories; choose others, or join categories."
            )
        if any(self.levels[j] == 1 for j in self.covariates):
            raise PlanError("covariates must not have a single category; leave out those.")

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the sums; raise PlanError if noise would hide a model."""
        columns = facts.columns
        treatment = position(columns, options.treatment, "treatment")
        outcome = position(columns, options.outcome, "outcome")
        # Several rows of a unit may be in both arms.
        if facts.group_size > 1:
            raise PlanError(
                "treatment-effect needs one record of each unit; join the records of a unit, or "
                "declare max_rows = 1 in the schema."
            )
        chosen = [position(columns, name, "covariates") for name in options.covariates]
        covariates = chosen or [j for j in range(len(columns)) if j not in (treatment, outcome)]
        used = [columns[j] for j in covariates]
        task = build_task(
            cls,
            facts,
            options,
            treatment=treatment,
            outcome=outcome,
            covariates=tuple(covariates),
            names=tuple(chain.from_iterable(map(_names_of, used))),
            arms=columns[treatment].categories,
        )
        units, multiplier = options.n_units or facts.nominal_n, noise_multiplier_for(facts) or 0.0
        models = task._models
        # As if both had the smaller share: near the limit, errors are twice the textbook's.
        share = min(_MODELS.values())
        needed = max(model.fewest(multiplier, share) for model in models.values())
        if units < needed:
            raise PlanError(
                f"nominal_n must be at least {needed:,} for {len(task.names)} covariates and "
                f"categories at this budget, got {units:,}: noise would hide the models; raise "
                "epsilon, or name fewer covariates."
            )
        bins = (
            models[name].design.enough_bins(units, multiplier, SHARES[PLACES] * share)
            for name, share in _MODELS.items()
        )
        return replace(task, bins=tuple(bins))

    def describe(self) -> str:
        return (
            "Five rounds fit two models side by side: the probability of the treatment, and the "
            "outcome from covariates and treatment. A sixth round sums, at these models, the terms "
            "of the average effect and of the effect of overlap, with means of covariates in both "
            "arms. Each record adds vectors that are cut to public lengths."
        )

    # Models ---------------------------------------------------------------------------------------

    @cached_property
    def _models(self) -> dict[str, Model]:
        """The propensity model and the outcome model, whose last term is the treatment."""
        *covariates, treatment, outcome = (
            term_of(j, self.levels[j], self.low[j], self.high[j], self.frac_bits)
            for j in (*self.covariates, self.treatment, self.outcome)
        )
        terms = {
            "propensity": (tuple(covariates), treatment),
            "outcome": ((*covariates, treatment), outcome),
        }
        return {
            name: Model(
                family=family_of("binomial" if target.levels else "gaussian"),
                terms=of_rows,
                target=target,
                bins=bins,
            )
            for bins, (name, (of_rows, target)) in zip(self.bins, terms.items(), strict=True)
        }

    def start(self) -> State:
        """Return the state before the first round."""
        models, blocks = self._models, self.blocks(ROUNDS)
        aim = _Aim(
            propensity=np.zeros(models["propensity"].design.width),
            outcome=np.zeros(models["outcome"].design.width),
            cuts=np.ones(len(SCORED) + 1),
            lost=np.zeros(len(ESTIMANDS)),
            sums=np.zeros(sum(block.size for block in blocks)),
            noise=np.zeros(len(blocks)),
        )
        return _encoded({name: model.start() for name, model in models.items()}, aim)

    def _read(self, state: GridState) -> tuple[dict[str, Known], _Aim]:
        """Return the state of both models, and of the last round."""
        known = {}
        for name, model in self._models.items():
            found = decode_state(Known, part_of(state, f"{name}_"), self.frac_bits)
            levels = [len(term.levels) for term in model.terms]
            known[name] = replace(found, fit=found.fit.defined(levels))
        aim = decode_state(_Aim, part_of(state, "aim_"), self.frac_bits)
        return known, replace(aim, cuts=np.maximum(aim.cuts, CLASSES[0]))

    # Sums -----------------------------------------------------------------------------------------

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of both models; then those of effects, slopes and balance."""
        models = self._models
        if t < ROUNDS:
            found = [
                replace(block, name=f"{name}_{block.name}", weight=share * block.weight)
                for name, share in _MODELS.items()
                for block in models[name].blocks(t)
            ]
            if t == LAST:
                found += [
                    Block.counting(f"{name}_sizes", (len(CLASSES),), self._share(_SIZES, name))
                    for name in ESTIMANDS
                ]
            return tuple(found)
        entries = 2 + 3 * len(self.names)
        slopes = sum(model.design.width for model in models.values())
        found = [ball_block(name, 3, self._share(_SCORES, name)) for name in ESTIMANDS]
        found.append(ball_block("naive", 3, _DIFFERENCE_SHARE))
        for name in ESTIMANDS:
            found.append(ball_block(f"{name}_slopes", slopes, self._share(_CHANGES, name)))
        # A record is in one arm, whose bounds are those of the block.
        balance = replace(ball_block("balance", entries, _BALANCE_SHARE), shape=(2, entries))
        return (*found, balance)

    def _share(self, shares: tuple[float, float], name: str) -> float:
        return shares[name != self.estimand]

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the rows of records to each block."""
        return tuple(self._rows(t, *self._read(state), records))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of all blocks over records."""
        known, blocks = self._read(state), self.blocks(t)
        total = np.zeros(sum(block.size for block in blocks), dtype=np.int64)
        for part in in_cache(records):
            rows = self._rows(t, *known, part)
            total += np.concatenate([summed(*pair) for pair in zip(rows, blocks, strict=True)])
        return total

    def _rows(
        self, t: int, known: Mapping[str, Known], aim: _Aim, records: Records
    ) -> Iterator[Rows]:
        if t < ROUNDS:
            for name, model in self._models.items():
                yield from model.rows(t, known[name], records, None)
            if t < LAST:
                return
            aim = replace(aim, **{name: one.fit.weights for name, one in known.items()})
        with np.errstate(all="ignore"):  # a dishonest state has any numbers; balls leave them out
            scores, columns, treated = self._scores(known, aim, records)
            if t == LAST:
                for values in scores.values[: len(ESTIMANDS)]:
                    yield Rows.at([class_of(np.abs(values))], [1 << COUNT_BITS])
                return
            for parts in zip(scores.values, scores.weights, aim.cuts[:-1], strict=True):
                yield Rows.dense(effect_rows(*parts))
            for slopes, longest in zip(scores.slopes, self._longest(aim), strict=True):
                yield Rows.dense(ball(slopes, longest))
            payload = balance_payload(columns, scores.overlap)
            yield Rows(treated * len(payload), ball(payload, aim.cuts[-1]))

    def _longest(self, aim: _Aim) -> Floats:
        """Return the lengths to which slopes are cut, of both estimands."""
        return np.asarray(aim.cuts[: len(_SLOPES)] * _SLOPES * sqrt(len(aim.propensity)))

    def _scores(
        self, known: Mapping[str, Known], aim: _Aim, records: Records
    ) -> tuple[Scores, Floats, Integers]:
        """Return scores, columns of the balance, and the arm of each record."""
        propensity, outcome = self._models["propensity"], self._models["outcome"]
        placed, of_outcome = (one.fit.columns for one in known.values())
        treated = np.asarray(propensity.target.of(records), dtype=np.int64)
        rows, arms = propensity.design.rows(placed, records), []
        for place in _in_arms(of_outcome):
            arms.append(outcome.design.rows(of_outcome, records))
            arms[-1][-2] = place  # in place of the record's own treatment
        means = [outcome.mean_of(aim.outcome, one) for one in arms]
        targets = outcome.targets(of_outcome, records)
        # About their share, as numbers are about their centre.
        share = _share(of_outcome) if outcome.target.levels else 0.0
        family = outcome.family
        scores = scores_of(
            propensity.mean_of(aim.propensity, rows),
            treated > 0,
            targets - np.where(treated, means[1], means[0]),
            means[1] - means[0] - self._usual(aim, of_outcome),
            rows,
            [
                one * family.weight(mean, family.alpha)
                for one, mean in zip(arms, means, strict=True)
            ],
            targets - share,
            _share(placed),
        )
        return scores, np.stack(list(_columns_of(propensity, placed, records))), treated

    def _usual(self, aim: _Aim, placed: Placed) -> float:
        """Return the effect at the centres of covariates: a public number near the effects."""
        rows = np.zeros((len(aim.outcome), 2))
        rows[-1], rows[-2] = 1.0, _in_arms(placed)
        control, treated = self._models["outcome"].mean_of(aim.outcome, rows)
        return float(treated - control)

    # What follows ---------------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the state with both models one round on, the cuts, or the last sums."""
        known, aim = self._read(state)
        if t == ROUNDS:
            read = [released[block.name].in_records(BITS) for block in self.blocks(t)]
            sums = np.concatenate([words.ravel() for words, _ in read])
            return _encoded(
                known, replace(aim, sums=sums, noise=np.array([std for _, std in read]))
            )
        known = {
            name: model.update(t, known[name], part_of(released, f"{name}_"))
            for name, model in self._models.items()
        }
        aim = self._aimed(known, aim, released) if t == LAST else aim
        return _encoded(known, aim)

    def _aimed(
        self, known: Mapping[str, Known], aim: _Aim, released: Mapping[str, NoisyBlock]
    ) -> _Aim:
        """Return the weights of the last round, and cuts from counts of sizes."""
        # The sizes are those at the weights before the last step, which is short.
        models = self._models
        placed, of_outcome = (one.fit.columns for one in known.values())
        # With two categories it has a known end, and so has a score: nothing is longer.
        of_two = models["outcome"].target.levels
        residual = 1.0 if of_two else models["outcome"].residuals(of_outcome)[1] / 2
        share, most = _share(placed), dict(_END if of_two else _FAR)
        smaller = min(share, 1 - share)
        most["ate"] /= smaller
        cuts, lost = [], []
        for name in ESTIMANDS:
            counts, noise_std = released[f"{name}_sizes"].in_records()
            counts = falling(counts, placed.n)
            sure = self._share(_SURE, name)
            tail = Tail.of(counts, noise_std, most[name] * residual, placed.n, sure=sure)
            part = self._share(_SIZES, name) / self._share(_SCORES, name)
            cut, excess = tail.cut(_Z * noise_std * sqrt(part) / SCORE, _TIGHT)
            cuts.append(cut)
            lost.append(_ONE_WAY * excess)
        is_number = placed.rare == 0
        numbers = float((placed.spread * is_number) @ placed.spread)
        categories = sum(len(term.levels) > 0 for term in models["propensity"].terms)
        balance = balance_cut(numbers, categories, float((placed.reach * is_number).max()))
        solutions = [model.solution(known[name]) for name, model in models.items()]
        return replace(
            aim,
            # Errors of both models count as a product, so a propensity may be drawn to its share.
            # An outcome that is drawn to its centre would leave a bias where weights have an end.
            propensity=solutions[0].likely,
            outcome=solutions[1].weights,
            # No outcome of the box is cut in the difference: a small arm is not seen in counts.
            cuts=np.array([*cuts, residual / smaller, balance]),
            lost=np.array(lost),
        )

    # Results --------------------------------------------------------------------------------------

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return no forecast: tails of the outcome and the overlap of the arms decide."""
        return {}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return effects, balance and sizes of the arms.

        Returns
        -------
        dict
            ``ate`` and ``ato``, and ``naive``, the difference of the means of both arms: shape
            (1,), data units, with noise and population intervals. ``smd_before`` and ``smd_after``
            of shape (n_names,), with noise intervals. ``arm_size`` of shape (2,), with
            ``arm_size_half_width``. ``known_models`` of shape (2,), 1 if noise hides no coefficient
            of the propensity model or of the outcome model; else no effect is known.
        """
        known, aim = self._read(state)
        models = self._models
        placed, of_outcome = (one.fit.columns for one in known.values())
        solutions = [model.solution(known[name]) for name, model in models.items()]
        # Without one common cause, an effect would be wrong in a way that no interval shows.
        certain = [bool(one.known.all()) for one in solutions]
        # Scores are in the unit of the outcome model, which follows from released counts.
        unit = models["outcome"].unit(of_outcome)
        names, sizes = zip(
            *((block.name, block.size) for block in self.blocks(ROUNDS)), strict=True
        )
        parts = np.split(aim.sums, np.cumsum(sizes)[:-1])
        sums = dict(zip(names, zip(parts, aim.noise, strict=True), strict=True))
        usual = self._usual(aim, of_outcome) if all(certain) else np.nan
        found: dict[str, Sequence[float]] = {
            "naive": effect_of(sums["naive"], aim.cuts[-2], units=_units(placed))
        }
        for k, name in enumerate(ESTIMANDS):
            slopes = sums[f"{name}_slopes"][0] * self._longest(aim)[k]
            by_models = _by_models(slopes, [one.noise for one in solutions])
            value, *variances = effect_of(sums[name], aim.cuts[k], aim.lost[k], by_models)
            found[name] = value + usual, *variances
        results: dict[str, Floats] = {}
        for name, effect in found.items():
            values = np.array(effect) * [unit, unit**2, unit**2]
            results |= estimate_of(*values[:, None]).named(name)
        words, noise_std = sums["balance"]
        balance = balance_of(words.reshape(2, -1) * aim.cuts[-1], noise_std * aim.cuts[-1])
        return {
            **results,
            **balance.before.named("smd_before"),
            **balance.after.named("smd_after"),
            "arm_size": balance.sizes,
            "arm_size_half_width": np.full(2, _Z * balance.size_std),
            "known_models": np.array(certain, dtype=np.float64),
        }

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the effect and the balance of covariates."""
        effect, after = number_of(results, self.estimand), Estimate.of(results, "smd_after")
        outcome, treatment = columns[self.outcome], f"{columns[self.treatment]}={self.arms[1]}"
        if not np.isfinite(effect.value):
            unknown = f"The effect of {treatment} on {outcome} is not known."
            return Summary(result=unknown, reliability=_HIDDEN)
        # Only what is sure: noise alone must not cast doubt on the effect.
        apart = np.flatnonzero((after.low > _BALANCED) | (after.high < -_BALANCED))
        differ = f"{_WHEN[1]}, arms still differ in {', '.join(self.names[j] for j in apart)}"
        return Summary(
            result=(f"{treatment} changes {outcome} by ", effect, f", {_LABELS[self.estimand]}."),
            reliability=("It differs" if effect.is_distinct else "It is not shown to differ")
            + " from 0 beyond noise and sampling. It is causal only if the covariates hold all "
            "common causes of both columns.",
            remarks=(differ,) if apart.size else (),
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return effects, arms, and the balance of covariates as a table and a picture."""
        pairs = list(
            zip(
                *(Estimate.of(results, f"smd_{w}").cells() for w in ("before", "after")),
                strict=True,
            )
        )
        # The mark goes with every number of its row when they are exported.
        mark = "balanced after weighting"
        rows = tuple(
            (name, *map(_or_text, pair), mark if _farthest(pair[1]) < _BALANCED else "")
            for name, pair in zip(self.names, pairs, strict=True)
        )
        unknown = any(NOT_KNOWN in row for row in rows)
        note = f"{_BALANCE} {NOT_KNOWN}: {_SMALL}." if unknown else _BALANCE
        picture = bars_of(
            "Balance of covariates",
            [f"{name}, {when}" for name in self.names for when in _WHEN],
            list(chain.from_iterable(pairs)),
            INTERVALS,
            "standardised difference",
        )
        of = f"{columns[self.treatment]}={self.arms[1]} on {columns[self.outcome]}"
        effects = tuple(
            (text, _or_text(number_of(results, name))) for name, text in _LABELS.items()
        )
        sizes = around(results["arm_size"], results["arm_size_half_width"], normal=True).cells()
        return (
            Table(f"Effect of {of}", ("", "effect"), effects, WITH_POPULATION),
            Table("Arms", ("", "records"), tuple(zip(self.arms, sizes, strict=True)), MARGINS),
            Table("Balance", ("", *_WHEN, ""), rows, note),
            replace(picture, points=True, marks=(-_BALANCED, _BALANCED)),
        )


def _encoded(models: Mapping[str, Known], aim: _Aim) -> State:
    state = prefixed("aim_", encode_state(aim))
    for name, known in models.items():
        state |= prefixed(f"{name}_", encode_state(known))
    return state


def _names_of(column: PublicColumn) -> list[str]:
    return [f"{column.name}={label}" for label in column.categories] or [column.name]


def _in_arms(placed: Placed) -> Floats:
    """Return the entry of the treatment in a row of the outcome model, in both arms."""
    treated = 1.0 if placed.reference[-1] == 0 else -1.0
    places = np.array([-treated, treated]) - placed.centre[-1]
    return np.asarray(places * placed.scale[-1] * placed.shown[-1])


def _columns_of(model: Model, placed: Placed, records: Records) -> Iterator[Floats]:
    """Yield numbers as in a row, and indicators of all categories about their shares."""
    for j, (term, part) in enumerate(zip(model.terms, model.design.slots, strict=True)):
        values, centres = np.asarray(term.of(records), dtype=np.float64), placed.centre[part]
        if not term.levels:
            yield (values - centres[0]) * placed.scale[part][0]
            continue
        # About the share, so that the noise in the sizes of arms cancels.
        shares = (centres + 1) / 2
        for k, share in enumerate(np.insert(shares, placed.reference[j], 1 - shares.sum())):
            yield (values == k) - share


def _share(placed: Placed) -> float:
    """Return the public share of the treated, from the columns of the propensity model."""
    return float(np.clip((placed.target[0] + 1) / 2, 1e-3, 1 - 1e-3))


def _units(placed: Placed) -> tuple[float, float]:
    """Return the number of units, and its error, in which those of both arms are counted, too."""
    share = _share(placed)
    odds = share / (1 - share)
    return placed.n, placed.n_std * hypot(odds - 1 / odds, odds)


def _by_models(slopes: Floats, errors: Sequence[Floats]) -> float:
    """Return the variance of a sum of scores by the errors of both models."""
    # To first order: 0 if both models are true, and the part of a false one otherwise. With what
    # noise in the slopes adds: without it, thin overlap and a false model held .87.
    parts = np.split(slopes, [len(errors[0])])
    return sum(float(part @ error @ part) for part, error in zip(parts, errors, strict=True))


def _or_text(cell: Estimate) -> Estimate | str:
    return cell if np.isfinite(cell.value) else NOT_KNOWN


def _farthest(cell: Estimate) -> float:
    return float(max(abs(cell.low), abs(cell.high)))
