"""Coefficients of a model: intervals, contrasts, reference categories and pictures.

Coefficients of the categories of one column are known up to a constant, so only the difference of
two is meaningful. Its interval needs their covariance: noise that two categories share cancels, and
noise of opposite sign counts twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import floor, log10, sqrt
from typing import Annotated, Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.display import Bars, Estimate, Summary, between
from cloister.core.errors import PlanError
from cloister.protocol.task import INTERVAL_95, PublicColumn
from cloister.tasks.columns import position, step_text
from cloister.tasks.interval_tables import SAID, bars_of, listing
from cloister.tasks.population import population_interval, sampled
from cloister.tasks.significance import clear, how_sure

Reference = Annotated[
    Mapping[str, Any] | None,
    "category to which others of a column are compared; the first if None",
]
ReferenceOfFrequent = Annotated[
    Mapping[str, Any] | None,
    "category to which others of a column are compared. If None, it is the most frequent one by "
    "noisy counts, or the first with a formula; it is the first if only other columns have one",
]
_SHOWN = 20
_LARGEST_EXPONENT = 700.0  # a float overflows just above exp(709)


def coefficient_results(
    values: Floats, low: Floats, high: Floats, sampling_variance: Floats | None
) -> dict[str, Floats]:
    """Return ``coef`` and ``intercept``, the last entry, with the ends of their intervals.

    All arrays have the shape (..., n_columns_of_design + 1). Without a variance of sampling there
    are no population intervals.
    """
    estimate = Estimate(values, low, high)
    if sampling_variance is not None:
        estimate = sampled(estimate, sampling_variance)
    constant = estimate.mapped(lambda part: part[..., -1]).named("intercept")
    return {**estimate.mapped(lambda part: part[..., :-1]).named("coef"), **constant}


def coefficient_bars(
    title: str,
    names: Sequence[str],
    coefficients: Iterable[Estimate],
    boxes: Floats,
    unit: str,
) -> Bars:
    """Return a picture of the largest changes, each over half of the box of its column."""

    def over(box: float, coefficient: Estimate) -> Estimate:
        return coefficient.mapped(lambda part: part * box)

    changes = list(map(over, boxes.tolist(), coefficients))
    values = np.array([change.value for change in changes])
    best = np.argsort(-np.abs(values), kind="stable")[:_SHOWN]  # ties in the order of the columns
    return bars_of(title, [names[i] for i in best], [changes[i] for i in best], unit=unit)


def effects_of(
    names: Sequence[str],
    levels: Sequence[int],
    reference: Sequence[int],
    half_boxes: Floats,
    dates: Collection[str] = (),
) -> tuple[list[str], Floats]:
    """Return names of readable effects, and the changes of the columns in the rows of a matrix.

    A category is compared with its reference. A number changes by a power of ten, at most half its
    box; those of `dates` are years. Reference categories and the intercept have no effect.
    `half_boxes` are those of the design, of shape (width,); the matrix has the shape
    (n_effects, width).
    """
    matrix = to_reference(levels, reference)
    texts: list[str] = []
    for level, chosen in zip(levels, reference, strict=True):
        place = len(texts)
        if level:
            first = names[place + chosen].partition("=")[2]
            texts += [f"{name} against {first}" for name in names[place : place + level]]
        else:
            step = 10.0 ** floor(log10(half_boxes[place]))
            matrix[place] *= step
            texts.append(f"{names[place]} (per {step_text(step, names[place] in dates)})")
    kept = np.flatnonzero(matrix[:-1].any(axis=1))
    return [texts[i] for i in kept], matrix[kept]


def effects_summary(
    title: str,
    names: Sequence[str],
    effects: Sequence[Estimate],
    *,
    nothing: str,
    ratios: bool = False,
) -> Summary:
    """Return sentences with the clearest effects; `ratios` shows the powers of logarithms."""
    if not effects:
        return Summary(
            result=(f"{title} are not known.",),
            reliability="Noise hides all of them: give more records, or a larger budget.",
        )
    null = "1" if ratios else "0"
    places = clear(effects)
    shown = [one.mapped(power_of) if ratios else one for one in effects]
    parts = listing((f"{names[i]} ", shown[i]) for i in places[:SAID])
    return Summary(
        result=(f"{title}: ", *parts, ".") if len(places) else nothing,
        reliability=how_sure(len(places), len(effects), f"effects differ from {null}"),
    )


def power_of(logarithm: Floats) -> Floats:
    """Return the ratio with a logarithm, which is bounded so that the ratio is finite."""
    return np.asarray(np.exp(np.clip(logarithm, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)))


def combination(
    weights: Floats,
    values: Floats,
    noise: Floats,
    sampling: Floats | None = None,
    *,
    middle: Floats | None = None,
) -> Estimate:
    """Return a weighted sum of coefficients with its 95 % intervals.

    Parameters
    ----------
    weights, values : ndarray of shape (n_coefficients,)
    noise : ndarray of shape (n_coefficients, n_coefficients)
        Covariance of the noise in the coefficients.
    sampling : ndarray of the same shape, optional
        Covariance over samples of this size; with it the sum has a population interval.
    middle : ndarray of shape (n_coefficients,), optional
        Coefficients at the centre of the intervals; by default `values`.
    """
    middle = values if middle is None else middle
    used = np.flatnonzero(weights)  # others may be not known
    weights, values, middle = weights[used], values[used], middle[used]
    noise = noise[np.ix_(used, used)]
    centre = float(weights @ middle)
    margin = INTERVAL_95["gaussian"] * sqrt(max(float(weights @ noise @ weights), 0.0))
    low, high = centre - margin, centre + margin
    # The intervals are exact around `middle`, from which `values` may be drawn to 0.
    value = min(max(float(weights @ values), low), high)
    if sampling is None:
        return between(value, low, high)
    variance = float(weights @ sampling[np.ix_(used, used)] @ weights)
    ends = population_interval(np.array(value), np.array(low), np.array(high), variance)
    return between(value, low, high, population=(float(ends[0]), float(ends[1])))


def difference(names: Sequence[str], level: str, reference: str) -> Floats:
    """Return the weights of the first named coefficient minus the second.

    Raises
    ------
    PlanError
        If one of the two is not among `names`, for example ``work=field``.
    """
    weights = np.zeros(len(names))
    for name, sign in ((level, 1.0), (reference, -1.0)):
        if name not in names:
            few = ", ".join([*names[:5], *(["..."] if len(names) > 5 else [])])
            raise PlanError(f"a contrast must have two coefficients of {few}; got {name!r}.")
        # Added, so that a coefficient minus itself is 0.
        weights[list(names).index(name)] += sign
    return weights


def to_reference(levels: Sequence[int], reference: Sequence[int]) -> Floats:
    """Return the matrix from coefficients to those relative to reference categories.

    Parameters
    ----------
    levels : sequence of int
        Number of categories of each column of the model; 0 for numbers.
    reference : sequence of int
        Code of the reference category of each column; ignored for numbers.

    Returns
    -------
    ndarray of shape (width, width)
        Maps coefficients of the design, the intercept last. Coefficients of reference categories
        become 0, and their effects are added to the intercept.
    """
    width = 1 + sum(level or 1 for level in levels)
    matrix, place = np.eye(width), 0
    for level, chosen in zip(levels, reference, strict=True):
        if level:
            # The difference is free of the constant that a column's coefficients share.
            matrix[place : place + level, place + chosen] -= 1.0
            matrix[-1, place + chosen] += 1.0
        place += level or 1
    return matrix


def chosen_references(
    columns: Sequence[PublicColumn], reference: Mapping[str, str] | None, target: str
) -> tuple[int, ...]:
    """Return the code of the reference category of each column, by default its first.

    Raises
    ------
    PlanError
        If a column or a category is not one of the schema, or the column is the target.
    """
    chosen = [0] * len(columns)
    for name, category in (reference or {}).items():
        index = position(columns, name, "reference")
        # The target is no column of the design, so it has no coefficients to compare.
        labels = columns[index].categories if name != target else ()
        if str(category) not in labels:
            rule = (
                f"one of {', '.join(labels[:20])}"
                if labels
                else "of a column of categories other than the target"
            )
            raise PlanError(f"reference of {name!r} must be {rule}; got {category!r}.")
        chosen[index] = labels.index(str(category))
    return tuple(chosen)


def check_references(reference: Sequence[int], levels: Sequence[int]) -> None:
    """Raise PlanError unless each column has a valid reference category."""
    complete = len(reference) == len(levels)
    # A plan comes from another party, so the codes are checked again: they index coefficients.
    if not complete or not all(0 <= r < max(n, 1) for r, n in zip(reference, levels, strict=True)):
        raise PlanError(f"reference needs a category of each column, got {tuple(reference)!r}.")
