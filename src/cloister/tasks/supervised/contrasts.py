"""Contrasts: differences of coefficients, with intervals that know their covariance.

Coefficients of the categories of one column are told up to a constant, so a single one says
nothing; the difference of two does. Its interval needs their covariance: the noise that two
categories share cancels, and the noise that pulls them apart counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Annotated, Any

import numpy as np

from cloister.display import Between
from cloister.errors import PlanError
from cloister.task import INTERVAL_95, Floats, PublicColumn
from cloister.tasks.columns import position
from cloister.tasks.population import population_interval


def combination(
    weights: Floats,
    values: Floats,
    noise: Floats,
    sampling: Floats | None = None,
    *,
    around: Floats | None = None,
) -> Between:
    """Return a weighted sum of coefficients with its 95 % intervals.

    Parameters
    ----------
    weights, values : ndarray of shape (n_coefficients,)
    noise : ndarray of shape (n_coefficients, n_coefficients)
        Covariance of the noise in the coefficients.
    sampling : ndarray of the same shape, optional
        Covariance over samples of this size; with it the sum has a population interval.
    around : ndarray of shape (n_coefficients,), optional
        Coefficients that the intervals are about; by default `values`.

    Returns
    -------
    Between
    """
    middle = float(weights @ (values if around is None else around))
    spread = INTERVAL_95["gaussian"] * sqrt(max(float(weights @ noise @ weights), 0.0))
    low, high = middle - spread, middle + spread
    value = min(max(float(weights @ values), low), high)
    if sampling is None:
        return Between(value, low, high)
    ends = population_interval(
        np.array(value), np.array(low), np.array(high), float(weights @ sampling @ weights)
    )
    return Between(value, low, high, population=(float(ends[0]), float(ends[1])))


def difference(names: Sequence[str], level: str, reference: str) -> Floats:
    """Return the weights of the first named coefficient less the second.

    Parameters
    ----------
    names : sequence of str
        Of the coefficients, such as ``work=field``.
    level, reference : str

    Raises
    ------
    PlanError
        If a name is not one of `names`.
    """
    weights = np.zeros(len(names))
    for name, sign in ((level, 1.0), (reference, -1.0)):
        if name not in names:
            few = ", ".join([*names[:5], *(["..."] if len(names) > 5 else [])])
            raise PlanError(f"a contrast is of two coefficients of {few}; got {name!r}.")
        weights[list(names).index(name)] += sign
    return weights


def to_reference(levels: Sequence[int], reference: Sequence[int]) -> Floats:
    """Return the matrix from coefficients to those that compare categories with a reference.

    Parameters
    ----------
    levels : sequence of int
        Of each column of the model: 0 for numbers, else the number of categories.
    reference : sequence of int
        Of each column: the number of its reference category; not looked at for numbers.

    Returns
    -------
    ndarray of shape (width, width)
        Maps coefficients of the design, the intercept last, to the same without the reference
        categories, whose coefficients become 0 and whose effects join the intercept.
    """
    width = 1 + sum(level or 1 for level in levels)
    matrix, place = np.eye(width), 0
    for level, chosen in zip(levels, reference, strict=True):
        if level:
            matrix[place : place + level, place + chosen] -= 1.0
            matrix[-1, place + chosen] += 1.0
        place += level or 1
    return matrix


Reference = Annotated[
    Mapping[str, Any] | None,
    "category that others of a column are compared with; the first if None",
]


def chosen_references(
    columns: Sequence[PublicColumn], reference: Mapping[str, str] | None, target: str
) -> tuple[int, ...]:
    """Return the number of the reference category of each column, by default its first.

    Parameters
    ----------
    columns : sequence of PublicColumn
    reference : mapping of column to category, optional
    target : str
        The column that is told, which has no reference.

    Raises
    ------
    PlanError
        If a column or a category is not one of the schema, or the column is the target.
    """
    chosen = [0] * len(columns)
    for name, category in (reference or {}).items():
        at = position(columns, name, "reference")
        if name == target:
            raise PlanError(
                f"reference is of columns besides the target, got {name!r}; leave it out."
            )
        words = columns[at].categories
        if str(category) not in words:
            rule = f"one of {', '.join(words[:20])}" if words else "of a column of categories"
            raise PlanError(f"reference of {name!r} must be {rule}; got {category!r}.")
        chosen[at] = words.index(str(category))
    return tuple(chosen)
