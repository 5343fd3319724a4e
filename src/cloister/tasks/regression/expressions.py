"""Expressions over the columns of a record: their public bounds, and their values.

An expression is a nested tuple, such as ``("log", ("column", "age"))``. It is plain data that a
plan carries, and its operations are those of :data:`SHAPES`. No text is ever run.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from fractions import Fraction
from itertools import pairwise
from math import inf, isfinite, nextafter
from typing import Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.protocol.task import PublicColumn
from cloister.tasks.columns import position

Expression = tuple[Any, ...]
"""An operation and its parts; a part is an expression, a number, a text or a tuple of numbers."""
Interval = tuple[float, float]

MOST_DEPTH = 24
MOST_POWER = 8
_MOST_NUMBERS = 1000  # knots, edges or silos, of which a plan has at most so many
_LARGEST = 1e100  # as for the bounds of a schema
_EXACT = Context(prec=40, Emax=400, Emin=-400, traps=[Overflow, InvalidOperation, DivisionByZero])
FUNCTIONS = {"log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "exp": np.exp}
"""Functions of one number."""

# Parts: "e" an expression, "n" a number, "t" a text, "i" an integer, "N" numbers, "T" texts.
SHAPES: Mapping[str, str] = {
    "column": "t",
    "number": "n",
    **dict.fromkeys("+-*/", "ee"),
    "**": "ei",
    **dict.fromkeys(FUNCTIONS, "e"),
    "spline": "eNii",  # all knots, degree, which function of the basis
    "steps": "tnni",  # code of a category: column, first value, step, number of categories
    "class": "eN",  # code of the class between edges, each class with its upper edge
    "site": "T",  # code of the silo that holds the record
    "is": "ei",  # 1 if a code has this value
}
"""The parts of each operation."""
CODES = ("steps", "class", "site")
"""Operations whose value is the code of a category."""


def expression_of(value: Any, shapes: Mapping[str, str] = SHAPES, depth: int = 0) -> Expression:
    """Return an expression from lists or tuples, such as those of a plan.

    Raises
    ------
    PlanError
        If it has an unknown operation, parts of a wrong kind, or too many levels.
    """
    if not (isinstance(value, list | tuple) and value and isinstance(value[0], str)):
        raise PlanError(f"an expression must be a list with an operation, got {_short(value)}.")
    operation, parts = value[0], value[1:]
    kinds = shapes.get(operation)
    if kinds is None or len(kinds) != len(parts):
        raise PlanError(
            f"an expression must be one of {', '.join(shapes)}, each with its parts, got "
            f"{_short(value)}."
        )
    if depth > MOST_DEPTH:
        raise PlanError(f"an expression must have at most {MOST_DEPTH} levels; write it shorter.")
    found = (operation, *(_part(k, p, shapes, depth) for k, p in zip(kinds, parts, strict=True)))
    if not _is_sound(found):
        raise PlanError(f"an expression has parts that do not fit each other: {_short(found)}.")
    return found


def _is_sound(expression: Expression) -> bool:
    """Return False if an operation has parts that no record could make sense of."""
    match expression:
        case ("**", _, power):
            return bool(1 <= power <= MOST_POWER)
        case ("spline", _, knots, degree, which):
            rises = all(a <= b for a, b in pairwise(knots))
            return rises and 1 <= degree <= MOST_POWER and which + degree + 1 < len(knots)
        case ("class", _, edges):
            return all(a < b for a, b in pairwise(edges))
        case ("steps", _, _, step, count):
            return bool(step > 0 and count >= 2)
        case ("site", silos):
            return len(set(silos)) == len(silos) >= 2
        case ("is", code, _):
            return code[0] in CODES
    return True


def _part(kind: str, part: Any, shapes: Mapping[str, str], depth: int) -> Any:
    if kind == "e":
        return expression_of(part, shapes, depth + 1)
    if kind in "NT":
        if isinstance(part, list | tuple) and 0 < len(part) <= _MOST_NUMBERS:
            return tuple(_part(kind.lower(), each, shapes, depth) for each in part)
    elif kind == "t":
        if isinstance(part, str):
            return part
    elif not isinstance(part, bool):
        if kind == "n" and isinstance(part, int | float) and abs(part) <= _LARGEST:
            return float(part) + 0.0  # -0.0 and 0.0 must give the same digest
        if kind == "i" and isinstance(part, int) and 0 <= part < 1 << 31:
            return part
    raise PlanError(f"an expression has a part that does not fit its operation: {_short(part)}.")


def _short(value: Any) -> str:
    return repr(value)[:60]


def label_of(expression: Expression) -> str:
    """Return an expression as text, as in a formula."""
    text = _text(expression)
    return f"I({text})" if expression[0] in _STRENGTH else text


_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2, "**": 4}


def _text(expression: Expression, least: int = 0) -> str:
    """Return the text of an expression, in brackets if it binds less than `least`."""
    match expression:
        case ("column", name):
            return str(name)
        case ("number", value):
            text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
            return f"({text})" if value < 0 and least else text
        case ("+" | "-" | "*" | "/" as sign, left, right):
            strength = _STRENGTH[sign]
            text = f"{_text(left, strength)} {sign} {_text(right, strength + 1)}"
        case ("**", base, power):
            strength, text = 4, f"{_text(base, 5)} ** {power}"
        case ("spline", inner, _, degree, which):
            return f"bs({_text(inner)}, degree={degree})[{which}]"
        case ("steps", name, *_):
            return str(name)
        case ("class", inner, _):
            return f"cut({_text(inner)})"
        case ("site", _):
            return "site"
        case ("is", code, which):
            return f"{_text(code)}={which}"
        case (function, inner):
            return f"{function}({_text(inner)})"
        case _:
            raise PlanError(f"an expression must be one of {', '.join(SHAPES)}.")
    return f"({text})" if strength < least else text


# Bounds -------------------------------------------------------------------------------------------


def bounds_of(expression: Expression, columns: Mapping[str, PublicColumn]) -> Interval:
    """Return public bounds of the values of an expression, data units.

    They hold for all values of the columns in their boxes, whatever the records are. They do not
    depend on the machine: arithmetic is that of fractions, logarithms have 40 digits, and ends are
    rounded outward.

    Raises
    ------
    PlanError
        If a column is missing or has categories, or if there is no finite bound.
    """
    match expression:
        case ("column", name):
            column = columns[name]
            return column.low, column.high
        case ("number", value):
            return value, value
        case ("+" | "-" | "*" | "/" as sign, left, right):
            a, b = bounds_of(left, columns), bounds_of(right, columns)
            if sign == "*" and left == right:  # a square is never below 0
                return _power(a, 2)
            if sign == "/" and b[0] <= 0 <= b[1]:
                raise PlanError(
                    f"{label_of(expression)} has no finite bound: {_text(right)} is from "
                    f"{b[0]:g} to {b[1]:g} and may be 0; add a public number to it."
                )
            return _combined(sign, a, b)
        case ("**", base, power):
            return _power(bounds_of(base, columns), power)
        case ("log" | "log1p" | "sqrt" | "exp" as function, inner):
            return _monotone(function, bounds_of(inner, columns), expression)
        case ("spline", *_):
            return 0.0, 1.0
        case ("steps", _, _, _, count):
            return 0.0, float(count - 1)
        case ("class", _, edges):
            return 0.0, float(len(edges))
        case ("site", silos):
            return 0.0, float(len(silos) - 1)
        case _:
            return 0.0, 1.0


def _combined(sign: str, a: Interval, b: Interval) -> Interval:
    (low, high), (c, d) = map(Fraction, a), map(Fraction, b)
    if sign == "+":
        return _outward(low + c, high + d)
    if sign == "-":
        return _outward(low - d, high - c)
    if sign == "*":
        corners = [low * c, low * d, high * c, high * d]
    else:
        corners = [low / c, low / d, high / c, high / d]
    return _outward(min(corners), max(corners))


def _power(of: Interval, power: int) -> Interval:
    ends = [Fraction(end) ** power for end in of]
    # An even power falls up to 0, and rises from there.
    least = Fraction(0) if power % 2 == 0 and of[0] <= 0 <= of[1] else min(ends)
    return _outward(least, max(ends))


def _monotone(function: str, of: Interval, expression: Expression) -> Interval:
    if function == "log1p":  # a float of 1 + x may be rounded, so this interval is
        function, of = "log", _combined("+", of, (1.0, 1.0))
    if (function == "log" and of[0] <= 0) or (function == "sqrt" and of[0] < 0):
        raise PlanError(
            f"{label_of(expression)} has no finite bound: its argument reaches "
            f"{'0' if function == 'log' else 'numbers below 0'}; give the column a public lower "
            "bound above 0, or use log1p."
        )
    exact = {"log": _EXACT.ln, "sqrt": _EXACT.sqrt, "exp": _EXACT.exp}[function]
    try:
        low, high = (Fraction(exact(Decimal(end))) for end in of)
    except Overflow:
        raise _unbounded(label_of(expression)) from None
    return _outward(low, high)


def _outward(low: Fraction, high: Fraction) -> Interval:
    """Return the ends as floats, rounded away from the interval."""
    if max(-low, high) > _LARGEST:
        raise _unbounded("an expression of the formula")
    down, up = float(low), float(high)
    return (
        down if Fraction(down) <= low else nextafter(down, -inf),
        up if Fraction(up) >= high else nextafter(up, inf),
    )


def _unbounded(what: str) -> PlanError:
    return PlanError(
        f"{what} has no finite bound: its values may exceed {_LARGEST:g}; give narrower bounds in "
        "the schema, or a smaller power."
    )


def names_in(expression: Expression) -> frozenset[str]:
    """Return the names of the columns in an expression."""
    if expression[0] in ("column", "steps"):
        return frozenset([expression[1]])
    inner = zip(SHAPES[expression[0]], expression[1:], strict=True)
    return frozenset().union(*(names_in(part) for kind, part in inner if kind == "e"))


# Values -------------------------------------------------------------------------------------------


def values_of(expression: Expression, table: Mapping[str, Floats], site: str | None) -> Floats:
    """Return the values of an expression; shape (n_samples,), not yet cut to its bounds.

    Parameters
    ----------
    table : mapping of a column's name to ndarray of shape (n_samples,), data units
    site : str or None
        The silo that holds all of these records; None for a record of no silo.

    Notes
    -----
    Each value depends on its own record alone: every operation is element by element.
    """
    match expression:
        case ("column", name):
            return table[name]
        case ("number", value):
            return np.full(_length(table), value)
        case ("+", left, right):
            return values_of(left, table, site) + values_of(right, table, site)
        case ("-", left, right):
            return values_of(left, table, site) - values_of(right, table, site)
        case ("*", left, right):
            return values_of(left, table, site) * values_of(right, table, site)
        case ("/", left, right):
            return values_of(left, table, site) / values_of(right, table, site)
        case ("**", base, power):
            values = factor = values_of(base, table, site)
            for _ in range(power - 1):  # a product is rounded alike on every machine
                values = values * factor
            return values
        case ("log" | "log1p" | "sqrt" | "exp" as function, inner):
            return np.asarray(FUNCTIONS[function](values_of(inner, table, site)))
        case ("spline", inner, knots, degree, which):
            return _spline(values_of(inner, table, site), knots, degree, which)
        case ("steps", name, first, step, count):
            # Half a step belongs to the next category, so that a record has exactly one.
            found = np.floor((table[name] - first) / step + 0.5)
            return np.asarray(np.clip(found, 0, count - 1))
        case ("class", inner, edges):
            return np.searchsorted(edges, values_of(inner, table, site)).astype(np.float64)
        case ("site", silos):
            at = float(silos.index(site)) if site in silos else -1.0
            return np.full(_length(table), at)
        case ("is", code, which):  # whole numbers, which floats hold exactly
            return np.asarray(values_of(code, table, site) == which, dtype=np.float64)
        case _:
            raise PlanError(f"an expression must be one of {', '.join(SHAPES)}.")


def _length(table: Mapping[str, Floats]) -> int:
    return len(next(iter(table.values())))


def _spline(values: Floats, knots: tuple[float, ...], degree: int, which: int) -> Floats:
    """Return one function of a B-spline basis; values beyond the outer knots are moved to them."""
    from scipy.interpolate import BSpline  # slow to import, and few formulas need it

    weights = np.zeros(len(knots) - degree - 1)
    weights[which] = 1.0
    spline = BSpline(np.asarray(knots), weights, degree, extrapolate=False)
    return np.asarray(spline(np.clip(values, knots[0], knots[-1])))


# Categories ---------------------------------------------------------------------------------------


def code_of_column(column: PublicColumn) -> tuple[Expression, tuple[str, ...]]:
    """Return the code of a column and the names of its categories.

    Raises
    ------
    PlanError
        If the column has numbers that are not few whole steps.
    """
    if column.categories:
        return ("steps", column.name, 0.0, 1.0, column.levels), column.categories
    count = round((column.high - column.low) / column.step) + 1 if column.step else 0
    if not 2 <= count <= _MOST_STEPS:  # more would be a word of the sum for each value
        raise PlanError(
            f"C({column.name}) must have categories, or at most {_MOST_STEPS} whole steps; write "
            f"cut({column.name}, edges=[...]) with public edges."
        )
    names = (f"{column.low + column.step * k:g}" for k in range(count))
    return ("steps", column.name, column.low, column.step, count), tuple(names)


_MOST_STEPS = 50


def check_rising(numbers: tuple[float, ...], within: Interval, what: str) -> None:
    """Raise PlanError unless numbers rise strictly inside an interval."""
    inside = all(within[0] < number < within[1] for number in numbers)
    if not (numbers and inside and all(a < b for a, b in pairwise(numbers))):
        raise PlanError(
            f"{what} must rise strictly between the public bounds {within[0]:g} and "
            f"{within[1]:g}, got {_short(numbers)}."
        )


def number_bounds(
    expression: Expression, columns: Mapping[str, PublicColumn], label: str
) -> Interval:
    """Return bounds as :func:`bounds_of`; raise PlanError if they are equal."""
    low, high = bounds_of(expression, columns)
    if not (isfinite(low) and isfinite(high) and low < high):
        raise PlanError(f"{label} is the same number in every record; remove it.")
    return float(low), float(high)


def column_named(name: str, columns: Mapping[str, PublicColumn]) -> PublicColumn:
    """Return a column of the formula, or raise PlanError with similar names."""
    known = tuple(columns.values())
    return known[position(known, name, "a name in the formula")]
