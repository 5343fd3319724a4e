"""Formulas: bounds of a design hold for all records, and no text does more than name columns."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from math import exp, inf, isfinite, nextafter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.core.errors import PlanError
from cloister.protocol.task import PublicColumn
from cloister.tasks.regression.expressions import Expression, bounds_of
from cloister.tasks.regression.formula import Formula, design_of

ENDS = st.sampled_from([-1e6, -3.0, -1.0, -0.1, 0.0, 0.1, 1 / 3, 1.0, 2.0, 7.0, 1e6])
NAMES = ("a", "b", "c")


@st.composite
def boxes(draw: st.DrawFn) -> dict[str, PublicColumn]:
    made = {}
    for name in NAMES:
        low, high = sorted(draw(st.lists(ENDS, min_size=2, max_size=2, unique=True)))
        made[name] = PublicColumn(name, low, high)
    return made


LEAVES = st.one_of(
    st.sampled_from(NAMES).map(lambda name: ("column", name)),
    st.sampled_from([-2.5, -1.0, 0.0, 0.3, 1.0, 50.0]).map(lambda value: ("number", value)),
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*/"), inner, inner),
        st.tuples(st.just("**"), inner, st.integers(1, 4)),
        st.tuples(st.sampled_from(["log", "log1p", "sqrt", "exp"]), inner),
    ),
    max_leaves=8,
)


EXACT = Context(prec=60, Emax=10**6, Emin=-(10**6))


def exact(expression: Expression, record: dict[str, Fraction]) -> Fraction:
    """Return the value of an expression for one record, with 60 digits."""
    match expression:
        case ("column", name):
            return record[name]
        case ("number", value):
            return Fraction(value)
        case ("+", left, right):
            return exact(left, record) + exact(right, record)
        case ("-", left, right):
            return exact(left, record) - exact(right, record)
        case ("*", left, right):
            return exact(left, record) * exact(right, record)
        case ("/", left, right):
            return exact(left, record) / exact(right, record)
        case ("**", base, power):
            return exact(base, record) ** power
    function, inner = expression
    of = exact(inner, record) + (function == "log1p")
    decimal = EXACT.divide(Decimal(of.numerator), Decimal(of.denominator))
    functions = {"log": EXACT.ln, "log1p": EXACT.ln, "sqrt": EXACT.sqrt, "exp": EXACT.exp}
    return Fraction(functions[function](decimal))


PLACES = st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 2), Fraction(1, 1000)])


@given(EXPRESSIONS, boxes(), st.lists(st.tuples(*[PLACES] * 3), min_size=1, max_size=8))
@settings(max_examples=max(150, settings().max_examples), deadline=None)
def test_bounds_hold_for_every_record(
    expression: Expression,
    columns: dict[str, PublicColumn],
    places: list[tuple[Fraction, Fraction, Fraction]],
) -> None:
    try:
        low, high = bounds_of(expression, columns)
    except PlanError:
        return
    assert isfinite(low)
    for place in places:
        record = {
            name: Fraction(c.low) + (Fraction(c.high) - Fraction(c.low)) * part
            for (name, c), part in zip(columns.items(), place, strict=True)
        }
        slack = Fraction(1, 10**45)  # relative, for the digits of `exact`
        value = exact(expression, record)
        assert Fraction(low) - slack * abs(value) <= value <= Fraction(high) + slack * abs(value)


@given(EXPRESSIONS, boxes(), st.integers(0, 2**32))
@settings(max_examples=max(80, settings().max_examples))
def test_a_column_of_a_design_never_leaves_its_bounds(
    expression: Expression, columns: dict[str, PublicColumn], seed: int
) -> None:
    formula = Formula(target=("column", "a"), terms=((expression,),))
    try:
        [term] = design_of(formula, list(columns.values())).terms
    except PlanError:
        return
    rng = np.random.default_rng(seed)
    forged = {name: rng.choice([np.nan, np.inf, -np.inf, 0.0, 1e300, -5.0], 40) for name in NAMES}
    values = term.values(forged)
    assert values.min() >= term.low
    assert values.max() <= term.high
    # The value of a record does not depend on others.
    alone = [term.values({n: column[i : i + 1] for n, column in forged.items()}) for i in range(40)]
    np.testing.assert_array_equal(np.concatenate(alone), values)


@given(st.floats(1e-90, 1e90), st.floats(1e-90, 1e90))
def test_bounds_are_outward_and_tight(first: float, second: float) -> None:
    low, high = sorted((first, second))
    columns = {"a": PublicColumn("a", low, high)}
    a = ("column", "a")
    for function, digits in (("log", EXACT.ln), ("sqrt", EXACT.sqrt)):
        found = bounds_of((function, a), columns)
        for outer, end, sign in ((found[0], low, 1), (found[1], high, -1)):
            best = Fraction(digits(Decimal(end)))
            assert sign * Fraction(outer) <= sign * best  # and the next float is beyond it
            assert sign * Fraction(nextafter(outer, sign * inf)) >= sign * best
    third = bounds_of(("/", a, ("number", 3.0)), columns)
    assert Fraction(third[0]) <= Fraction(low) / 3 <= Fraction(nextafter(third[0], 1e300))
    assert Fraction(third[1]) >= Fraction(high) / 3 >= Fraction(nextafter(third[1], 0.0))


def test_exact_results_are_exact_bounds() -> None:
    columns = {"a": PublicColumn("a", -1.0, 4.0), "b": PublicColumn("b", 1.0, 4.0)}
    a, b = ("column", "a"), ("column", "b")
    assert bounds_of(("**", a, 2), columns) == (0.0, 16.0)
    assert bounds_of(("*", a, a), columns) == (0.0, 16.0)
    assert bounds_of(("**", a, 3), columns) == (-1.0, 64.0)
    assert bounds_of(("sqrt", b), columns) == (1.0, 2.0)
    assert bounds_of(("log", b), columns)[0] == 0.0
    assert bounds_of(("exp", ("-", b, b)), columns)[1] >= exp(3.0)
    assert bounds_of(("/", a, b), columns) == (-1.0, 4.0)


PIECES = st.sampled_from(
    [
        *("y", "a", "b", "site", "`a`", "1", "0", "2", "'a'", ".", "~", "+", "-", "*", "/", ":"),
        *("**", "^", "%in%", "(", ")", "[", "]", "{", "}", ",", "=", "log(", "I(", "C(", "bs("),
        *("cut(", "offset(", "exposure(", "knots=", "Treatment(", "lambda", "__import__(", ".x"),
        *("|", "\\", "`", '"', "é", "ａ", "\u202e", "\n", "if", "#", "@", "exec("),
    ]
)


@given(st.lists(PIECES, max_size=20).map(" ".join) | st.lists(PIECES, max_size=20).map("".join))
@settings(max_examples=max(60, settings().max_examples), deadline=None)
def test_any_text_gives_a_design_or_a_sentence(text: str) -> None:
    pytest.importorskip("formulaic")
    from cloister.tasks.regression.parse import parse_formula

    columns = tuple(PublicColumn(name, 1.0, 2.0) for name in ("y", "a", "b"))
    reason = "."
    try:
        design_of(parse_formula(f"y ~ {text}"), columns, ("north", "south"))
    except PlanError as refused:
        reason = str(refused)
    assert reason.endswith(".")
    assert "\n" not in reason
