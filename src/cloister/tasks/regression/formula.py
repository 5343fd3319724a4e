"""The design of a regression: columns with public bounds, from the terms of a formula.

:mod:`cloister.tasks.regression.parse` reads a formula from text. A plan carries its terms, never
the text. Every party expands the terms by the columns of the schema, in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import combinations, pairwise, product
from typing import Any, Self, TypeVar

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.declared import declarations, declared
from cloister.core.errors import PlanError
from cloister.protocol.task import PublicColumn
from cloister.tasks.columns import SITE, check_site
from cloister.tasks.regression.expressions import (
    CODES,
    MOST_POWER,
    SHAPES,
    Expression,
    check_rising,
    code_of_column,
    column_named,
    expression_of,
    label_of,
    names_in,
    number_bounds,
    values_of,
)

MOST_TERMS = 512
"""Largest number of terms of a formula, and of columns of its design."""
_Kind = TypeVar("_Kind")
_FACTORS: Mapping[str, str] = {
    **{name: kinds for name, kinds in SHAPES.items() if name not in (*CODES, "spline", "is")},
    "C": "tt",  # column, reference category or ""
    "cut": "eN",
    "bs": "eNi",  # inner knots, degree
}


Factor = tuple[Any, ...]
"""An expression, or a category before the schema is known."""


@declared
class Formula:
    """The terms of a formula, before the schema is known: an option of a plan.

    Parameters
    ----------
    target : tuple
        Expression of the target.
    terms : tuple of tuple of tuple
        The factors whose product is a term.
    offsets : tuple of tuple
        Expressions that are added to the margin with the coefficient 1.
    """

    target: Factor
    terms: tuple[tuple[Factor, ...], ...]
    intercept: bool = True
    offsets: tuple[Factor, ...] = ()

    def __post_init__(self) -> None:
        if len(self.terms) + len(self.offsets) > MOST_TERMS or not all(self.terms):
            raise PlanError(f"formula must have at most {MOST_TERMS} terms, each of a factor.")
        # A plan may come from another party, so what the parser made is checked here.
        terms = tuple(tuple(expression_of(f, _FACTORS) for f in term) for term in self.terms)
        offsets = tuple(expression_of(offset, _FACTORS) for offset in self.offsets)
        object.__setattr__(self, "target", expression_of(self.target, _FACTORS))
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "offsets", offsets)

    def to_dict(self) -> dict[str, Any]:
        """Return the formula as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Return the formula that :meth:`to_dict` wrote; raise PlanError for anything else."""
        return _rebuilt(cls, written)


@declared
class Term:
    """A column of a design: a number with public bounds, or a category.

    Parameters
    ----------
    name : str
        As in a table of coefficients.
    low, high : float, data units, ``low < high``
        Public bounds of its values; of a category, its first and last code.
    expression : tuple
        See :mod:`cloister.tasks.regression.expressions`.
    levels : tuple of str
        Names of the categories; empty for a number.
    whole : bool
        Whether a category has a column for each level, as without an intercept. Else one level is
        the reference and has none.
    reference : int or None
        Code of the reference if the formula names it.
    """

    name: str
    low: float
    high: float
    expression: Expression
    levels: tuple[str, ...] = ()
    whole: bool = False
    reference: int | None = None

    def __post_init__(self) -> None:
        # Equal numbers must give one text, and so one digest.
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        object.__setattr__(self, "expression", expression_of(self.expression))
        of_category = self.expression[0] in CODES
        known = self.reference is None or 0 <= self.reference < len(self.levels)
        if not (self.low < self.high and known and bool(self.levels) == of_category):
            raise PlanError(f"term {self.name!r} is not complete; design the task again.")

    def values(self, table: Mapping[str, Floats], site: str | None = None) -> Floats:
        """Return the value, or the code of the category, of each record; shape (n_samples,).

        Parameters
        ----------
        table : mapping of a column's name to ndarray of shape (n_samples,), data units
        site : str, optional
            The silo that holds these records. Without it, the code of a silo is -1.

        Notes
        -----
        Numbers are cut to the bounds, which then hold on every machine and for every record.
        """
        with np.errstate(all="ignore"):  # a forged record may give any number
            values = values_of(self.expression, table, site)
        # `fmin` and `fmax` prefer the bound to NaN.
        return values if self.levels else np.fmin(np.fmax(values, self.low), self.high)

    def on_grid(
        self, columns: Sequence[PublicColumn], frac_bits: int, site: str | None = None
    ) -> Callable[[Records], Floats | Integers]:
        """Return the function from grid records to codes, or to numbers in ``[-1, 1]``.

        Parameters
        ----------
        columns : sequence of PublicColumn
            The columns of the records.
        """
        used = names_in(self.expression)

        def of(records: Records) -> Floats | Integers:
            values = self.values(decoded(records, columns, frac_bits, used), site)
            if self.levels:
                return values.astype(np.int64)
            return 2 * (values - self.low) / (self.high - self.low) - 1

        return of


@declared
class Design:
    """The columns of a regression, its target and its offset.

    Parameters
    ----------
    offset : Term or None
        A number that is added to the margin; the logarithm of an exposure is one.
    """

    target: Term
    terms: tuple[Term, ...]
    intercept: bool = True
    offset: Term | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """The silos that have terms; empty without ``site`` in the formula."""
        return next(filter(None, (_sites_in(term.expression) for term in self.terms)), ())

    def to_dict(self) -> dict[str, Any]:
        """Return the design as JSON-able values: what a plan carries."""
        # Terms as lists: in a plan a mapping with a `name` is a task.
        return {
            "target": _as_list(self.target),
            "terms": [_as_list(term) for term in self.terms],
            "intercept": self.intercept,
            "offset": _as_list(self.offset) if self.offset else None,
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Return the design that :meth:`to_dict` wrote; raise PlanError for anything else."""
        if not isinstance(written, Mapping) or not isinstance(written.get("terms"), list | tuple):
            raise PlanError("a design must be a mapping with a list of terms; design it again.")
        parts = {name: written[name] for name in written if name != "terms"}
        # What is no list is no term, and fails the check of the fields.
        parts |= {name: _as_term(parts.get(name)) for name in ("target", "offset")}
        return _rebuilt(cls, {**parts, "terms": tuple(map(_as_term, written["terms"]))})

    def matrix(
        self, table: Mapping[str, Floats], site: str | None = None
    ) -> tuple[tuple[str, ...], Floats]:
        """Return names and values of all columns, with indicators in place of categories.

        A category without a named reference has its first level as reference.

        Returns
        -------
        names : tuple of str
            The intercept, if any, is the first.
        values : ndarray of shape (n_samples, n_columns)
        """
        rows = len(next(iter(table.values())))
        columns = {"intercept": np.ones(rows)} if self.intercept else {}
        for term in self.terms:
            values = term.values(table, site)
            if not term.levels:
                columns[term.name] = values
                continue
            for code, level in enumerate(term.levels):
                if term.whole or code != (term.reference or 0):
                    columns[f"{term.name}={level}"] = (values == code).astype(np.float64)
        return tuple(columns), np.stack([*columns.values()], axis=1)


def _as_list(term: Term) -> list[Any]:
    return list(asdict(term).values())


def _as_term(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    names = [declaration.name for declaration in declarations(Term)]
    # Terms of another length have a part too few or too many.
    return _rebuilt(Term, dict(zip(names, value, strict=False)) if len(value) == len(names) else {})


def _rebuilt(kind: type[_Kind], written: Any) -> _Kind:
    """Return a value from its fields; raise PlanError if some are missing or unknown."""
    try:
        return kind(**written)
    except TypeError:
        names = ", ".join(declaration.name for declaration in declarations(kind))  # type: ignore[arg-type]  # classes are hashable
        raise PlanError(f"a {kind.__name__.lower()} must have {names}; design it again.") from None


def _sites_in(expression: Expression) -> tuple[str, ...]:
    if expression[0] == "site":
        return tuple(expression[1])
    inner = zip(SHAPES[expression[0]], expression[1:], strict=True)
    return next(filter(None, (_sites_in(part) for kind, part in inner if kind == "e")), ())


# From a formula to a design -----------------------------------------------------------------------


def design_of(
    formula: Formula, columns: Sequence[PublicColumn], silos: Sequence[str] = ()
) -> Design:
    """Return the design of a formula over the columns of a schema.

    Categories become indicators. As in R, a level of a category is left out where the other terms
    have its column in their span.

    Parameters
    ----------
    silos : sequence of str
        The silos of the plan, for the term ``site``.

    Raises
    ------
    PlanError
        If a name is not one of the columns, a column has no finite bounds, or there are too many.
    """
    expansion = _Expansion({column.name: column for column in columns}, tuple(silos))
    target = expansion.target(formula.target)
    terms = tuple(expansion.terms(formula))
    if not terms and not formula.intercept:
        raise PlanError("formula must have a term or an intercept; write 'y ~ 1' for a mean.")
    offset = None
    if formula.offsets:
        numbers = [expansion.number(each) for each in formula.offsets]
        offset = expansion.term(reduce(lambda a, b: ("+", a, b), numbers), "offset")
    return Design(target=target, terms=terms, intercept=formula.intercept, offset=offset)


@dataclass(frozen=True)
class _Category:
    """A factor with levels: its code, and the code of its reference if that is named."""

    name: str
    code: Expression
    levels: tuple[str, ...]
    reference: int | None


def _category_term(one: _Category, whole: bool = False) -> Term:
    return Term(
        name=one.name,
        low=0.0,
        high=float(len(one.levels) - 1),
        expression=one.code,
        levels=one.levels,
        whole=whole,
        reference=one.reference,
    )


_Numbers = tuple[tuple[str, Expression], ...]  # names and expressions of a factor's columns


@dataclass(frozen=True)
class _Expansion:
    columns: Mapping[str, PublicColumn]
    silos: tuple[str, ...]

    def term(self, expression: Expression, name: str) -> Term:
        low, high = number_bounds(expression, self.columns, name)
        return Term(name=name, low=low, high=high, expression=expression)

    def target(self, factor: Expression) -> Term:
        if factor[0] in ("C", "cut", "bs") or factor == ("column", SITE):
            raise PlanError(
                "the target of a formula must be a column or an expression of numbers, got "
                f"{_named(factor)}; write it on the right."
            )
        column = self._column(factor[1]) if factor[0] == "column" else None
        if column is None or not column.categories:
            return self.term(self.number(factor), label_of(factor))
        code, levels = code_of_column(column)
        return _category_term(_Category(column.name, code, levels, None))

    def terms(self, formula: Formula) -> Iterator[Term]:
        """Yield the columns of all terms, those of fewer factors first."""
        references = _references(formula)
        # Products of numbers and of categories, each with one level left out, that are there.
        spanned: set[tuple[frozenset[str], frozenset[str]]] = set()
        if formula.intercept:
            spanned.add((frozenset(), frozenset()))
        count, names = 0, set()
        for factors in sorted(formula.terms, key=len):
            for term in self._of_factors(factors, references, spanned):
                count += len(term.levels) or 1
                if count > MOST_TERMS:
                    raise PlanError(
                        f"formula must make at most {MOST_TERMS} columns; join rare categories, or "
                        "remove interactions."
                    )
                if term.name in names:
                    raise PlanError(f"formula has two terms {term.name!r}; remove one of them.")
                names.add(term.name)
                yield term

    def _of_factors(
        self,
        factors: Sequence[Expression],
        references: Mapping[str, str],
        spanned: set[tuple[frozenset[str], frozenset[str]]],
    ) -> Iterator[Term]:
        categories: dict[str, _Category] = {}
        numbers: dict[str, _Numbers] = {}
        for factor in factors:
            found = self._factor(factor, references)
            if isinstance(found, _Category):
                categories[found.name] = found
            else:
                numbers[_named(factor)] = found
        of_numbers = frozenset(numbers)
        subsets = [
            subset for size in range(len(categories) + 1)
            for subset in combinations(categories, size)
        ]  # fmt: skip
        missing = [s for s in subsets if (of_numbers, frozenset(s)) not in spanned]
        spanned.update((of_numbers, frozenset(subset)) for subset in missing)
        for coding in _codings(missing):
            used = [(categories[name], reduced) for name, reduced in coding.items()]
            if len(used) == 1 and not numbers:
                [(one, reduced)] = used
                yield _category_term(one, not reduced)
            else:
                yield from self._products(used, list(numbers.values()))

    def _products(
        self, categories: Sequence[tuple[_Category, bool]], numbers: Sequence[_Numbers]
    ) -> Iterator[Term]:
        """Yield the products of a level of each category and a column of each number."""
        parts: list[_Numbers] = [
            tuple(
                (f"{one.name}={level}", ("is", one.code, code))
                for code, level in enumerate(one.levels)
                if not (reduced and code == (one.reference or 0))
            )
            for one, reduced in categories
        ]
        for chosen in product(*parts, *numbers):
            expression = reduce(lambda a, b: ("*", a, b), [each for _, each in chosen])
            yield self.term(expression, ":".join(name for name, _ in chosen))

    def _factor(self, factor: Expression, references: Mapping[str, str]) -> _Category | _Numbers:
        match factor:
            case ("C", name, _):
                return self._category(name, references.get(name, ""))
            case ("column", name) if name == SITE or self._column(name).levels:
                column = self.columns.get(name)
                if column is None or not column.is_boolean:  # a boolean is a number
                    return self._category(name, references.get(name, ""))
            case ("cut", inner, edges):
                number = self.number(inner)
                bounds = number_bounds(number, self.columns, _named(factor))
                check_rising(edges, bounds, f"edges of {_named(factor)}")
                ends = ["", *(f"{edge:g}" for edge in edges), ""]
                levels = tuple(
                    f"{low or '-inf'} to {high or 'inf'}" for low, high in pairwise(ends)
                )
                return _Category(_named(factor), ("class", number, edges), levels, None)
            case ("bs", inner, knots, degree):
                return self._spline(inner, knots, degree)
        return ((label_of(factor), self.number(factor)),)

    def _category(self, name: str, reference: str) -> _Category:
        if name == SITE:
            check_site(self.columns, self.silos)
            code: Expression = ("site", self.silos)
            levels = self.silos
        else:
            code, levels = code_of_column(self._column(name))
        if reference and reference not in levels:
            raise PlanError(
                f"reference of {name!r} must be one of {', '.join(levels[:20])}, got "
                f"{reference[:50]!r}."
            )
        return _Category(name, code, levels, levels.index(reference) if reference else None)

    def _spline(self, inner: Expression, knots: tuple[float, ...], degree: int) -> _Numbers:
        number, name = self.number(inner), label_of(inner)
        low, high = number_bounds(number, self.columns, name)
        check_rising(knots, (low, high), f"knots of {name}")
        if not 1 <= degree <= MOST_POWER:
            raise PlanError(f"degree of bs({name}) must be in [1, {MOST_POWER}], got {degree}.")
        # Outer knots are the public bounds; those of the records would disclose two of them.
        every = (*[low] * (degree + 1), *knots, *[high] * (degree + 1))
        return tuple(
            (f"bs({name})[{which}]", ("spline", number, every, degree, which))
            for which in range(1, len(knots) + degree + 1)  # the first is in the span of others
        )

    def number(self, expression: Expression) -> Expression:
        """Return an expression whose booleans are 0 or 1; raise PlanError for categories in it."""
        match expression:
            case ("column", name):
                if name == SITE and name not in self.columns:
                    raise PlanError(f"{SITE!r} is a category, not a number; write it alone.")
                column = self._column(name)
                if column.is_boolean:
                    return ("is", ("steps", name, 0.0, 1.0, 2), 1)
                if column.levels:
                    raise PlanError(
                        f"{name!r} has categories and cannot be part of an expression; write it "
                        "alone or in C()."
                    )
                return expression
            case ("C" | "cut" | "bs", *_):
                raise PlanError(f"{_named(expression)} must be a term, not part of an expression.")
        return (
            expression[0],
            *(self.number(part) if isinstance(part, tuple) else part for part in expression[1:]),
        )

    def _column(self, name: str) -> PublicColumn:
        return column_named(name, self.columns)


def _references(formula: Formula) -> dict[str, str]:
    """Return the reference category of each column that has one in the formula."""
    named: dict[str, str] = {}
    for factor in (factor for term in formula.terms for factor in term):
        if factor[0] == "C" and factor[2] and named.setdefault(factor[1], factor[2]) != factor[2]:
            raise PlanError(f"C({factor[1]}) must have one reference in a formula, got two.")
    return named


def _named(factor: Expression) -> str:
    match factor:
        case ("C", name, _):
            return f"C({name})"
        case ("cut" | "bs" as function, inner, numbers, *_):
            return f"{function}({label_of(inner)}, [{', '.join(f'{x:g}' for x in numbers)}])"
    return label_of(factor)


def _codings(missing: Sequence[tuple[str, ...]]) -> list[dict[str, bool]]:
    """Return the codings of a term's categories that span what is missing; True is reduced.

    A subset of the categories stands for products of all of them with one level left out each. A
    product with a whole category is the product with it reduced, and that without it.
    """
    codings: list[dict[str, bool]] = []
    for subset in missing:
        coding = dict.fromkeys(subset, True)
        while True:
            without = {
                tuple(other for other in coding.items() if other[0] != name): name
                for name, reduced in coding.items()
                if reduced
            }
            part = next((each for each in codings if tuple(each.items()) in without), None)
            if part is None:
                break
            codings.remove(part)
            coding[without[tuple(part.items())]] = False
        codings.append(coding)
    return codings


def decoded(
    records: Records,
    columns: Sequence[PublicColumn],
    frac_bits: int,
    names: Collection[str] | None = None,
) -> dict[str, Floats]:
    """Return grid records as a table of data units, all of its columns or those in `names`.

    Each column is an array of shape (n_samples,). The column without a name has the length only.
    """
    one = float(1 << frac_bits)
    table = {"": np.zeros(len(records))}  # an expression may name no column, such as the silo
    for j, column in enumerate(columns):
        if names is None or column.name in names:
            half, middle = (column.high - column.low) / 2, (column.high + column.low) / 2
            table[column.name] = records[:, j] / one * half + middle
    return table
