"""Formulas as text, such as ``y ~ age + C(arm) + site + offset(log(t))``.

The package formulaic splits the text and expands its operators. It never sees a call: its parser
runs Python code on the left of ``~``. Calls are read here by Python's grammar alone, and only
those of a closed list become terms. Only the party that writes a plan reads text.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from cloister.core.errors import PlanError
from cloister.tasks.regression.expressions import FUNCTIONS, MOST_POWER, Expression
from cloister.tasks.regression.formula import MOST_TERMS, Factor, Formula

MOST_LETTERS = 2000  # keeps Python's grammar far from the end of its stack
_MOST_TOKENS = 400
_TERMS = ("C", "bs", "cut", "offset", "exposure")
CALLS = ("I", *FUNCTIONS, *_TERMS)
"""Functions of a formula; ``Treatment`` is valid inside ``C``."""
# Known from other packages; the message about them names what to write instead.
_OF_RECORDS = frozenset(
    [
        *("center", "scale", "standardize", "poly", "cr", "cc", "cs", "ns", "te", "lag", "bin"),
        *("quantile", "rank", "mean", "std", "median", "min", "max", "zscore"),
    ]
)
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_QUOTED = re.compile(r"`([^`]*)`")
_PLACE = "quoted_name_{}_"


def parse_formula(text: str) -> Formula:
    """Return the terms of a formula; nothing of the text is run.

    Parameters
    ----------
    text : str
        As in R: ``target ~ terms``, with ``+ - : * / **``, ``C(column, Treatment("level"))``,
        ``I()`` of arithmetic, log, log1p, sqrt, exp, ``bs(column, knots=[...])``,
        ``cut(column, edges=[...])``, ``offset()``, ``exposure()``, and ``site`` for the silo of a
        record. Put names that are no words between backticks.

    Raises
    ------
    PlanError
        For everything else, by name. Also if the package formulaic is missing.
    """
    _check_text(text)
    factors: dict[str, Factor] = {}  # by the word that replaces each of them
    try:
        left, right = _both_sides(text, factors)
    except PlanError:
        raise
    except Exception as error:  # the errors of formulaic have several bases
        # Further lines of its messages show the text with colours for a terminal.
        reason = (str(error).splitlines() or [""])[0].rstrip(" .")
        raise PlanError(f"formula must be like 'y ~ x', got {_short(text)}: {reason}.") from None
    if len(left) != 1 or len(left[0]) != 1:
        raise PlanError(
            f"formula must have one target on its left, got {_short(text)}; write sums in I()."
        )
    [[target]] = left
    terms = [term for term in right if term]  # the empty product is the intercept
    offsets = [term for term in terms if any(factor[0] in _TERMS[3:] for factor in term)]
    if target[0] in _TERMS[3:] or any(len(term) > 1 for term in offsets):
        raise PlanError("offset and exposure must be terms on the right without ':' or '*'.")
    return Formula(
        target=target,
        terms=tuple(term for term in terms if term not in offsets),
        intercept=len(terms) < len(right),
        # The logarithm of an exposure is an offset, for every family with a log link.
        offsets=tuple(("log", of) if kind == "exposure" else of for [(kind, of)] in offsets),
    )


def _check_text(text: str) -> None:
    if not isinstance(text, str) or not 0 < len(text) <= MOST_LETTERS:
        raise PlanError(f"formula must be a text of at most {MOST_LETTERS} letters.")
    # Braces are code in other packages; hidden letters could show another formula than is read.
    if strange := [c for c in text if unicodedata.category(c)[0] == "C" or c in "{}"]:
        raise PlanError(f"formula must not have the sign {strange[0]!r}; use {', '.join(CALLS)}.")
    outside = _QUOTED.sub("", text)
    # Python's grammar takes compatible letters for one, and would read another column.
    if unicodedata.normalize("NFKC", outside) != outside:
        raise PlanError(
            "formula must have names in Unicode's form NFKC; write other names between backticks."
        )


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


# The operators ------------------------------------------------------------------------------------

_Terms = list[tuple[Factor, ...]]


def _both_sides(text: str, factors: dict[str, Factor]) -> tuple[_Terms, _Terms]:
    """Return the terms on the left and the right of ``~``; an intercept is a term of no factor."""
    try:
        from formulaic.parser.algos.tokenize import tokenize
        from formulaic.parser.types import Token
        from formulaic.parser.utils import merge_operator_tokens, replace_tokens
    except ImportError:
        raise PlanError(
            "formulas need the extra: pip install 'cloister[formula]'; or name target and columns."
        ) from None
    tokens: list[Any] = []
    for token in tokenize(text):
        # The tokenizer joins the signs of "~ -1".
        parts = token.split("~", after=True) if token.kind is Token.Kind.OPERATOR else [token]
        tokens += [_without_code(part, factors) for part in parts]
    tildes = [i for i, token in enumerate(tokens) if token.token == "~"]
    if len(tildes) != 1 or len(tokens) > _MOST_TOKENS:
        raise PlanError(
            f"formula must have one '~' between its target and its terms, and at most "
            f"{_MOST_TOKENS} names and signs."
        )
    one, plus, minus = (Token(sign, kind=kind) for sign, kind in _ADDED)
    right = [one, plus, *tokens[tildes[0] + 1 :]]
    # "+ 0" removes the intercept as "- 1" does.
    right = list(replace_tokens(right, "0", [minus, one], kind=one.kind))
    right = list(merge_operator_tokens(right, symbols={"+", "-"}))
    return _expanded(tokens[: tildes[0]], factors), _expanded(right, factors)


_ADDED = (("1", "value"), ("+", "operator"), ("-", "operator"))


def _without_code(token: Any, factors: dict[str, Factor]) -> Any:
    """Return a token without code; a name or a call becomes a word for its factor."""
    kind = token.kind.value
    bracket = kind == "context" and token.token not in "()"
    if bracket or (kind == "value" and not token.token.isdecimal()):
        raise PlanError(
            f"formula must not have {_short(token.token)} as a term; write numbers and texts "
            "inside I(), C() or cut(), and the names of columns in place of '.'."
        )
    if kind not in ("name", "python"):
        return token
    factor = ("column", token.token) if kind == "name" else _factor(token.token)
    # Equal factors are one word, and different factors two. With a blank, no word is a number.
    word = next((word for word, other in factors.items() if other == factor), f"{token.token} ")
    while factors.setdefault(word, factor) != factor:
        word += " "
    return type(token)(word, kind="name")


def _expanded(tokens: Sequence[Any], factors: Mapping[str, Factor]) -> _Terms:
    """Return the terms of one side of a formula."""
    from formulaic.parser import DefaultFormulaParser
    from formulaic.parser.algos.tokens_to_ast import tokens_to_ast

    # Formulas of several parts or stages have no meaning here.
    parser = DefaultFormulaParser(include_intercept=False, feature_flags={"twosided"})
    tree = tokens_to_ast(tokens, parser.operator_resolver)
    if tree is None:
        return []
    _size(tree)
    words = [[f.expr for f in term.factors if f.expr != "1"] for term in tree.to_terms(context={})]
    if unknown := [word for term in words for word in term if word not in factors]:
        raise PlanError(
            f"formula must not have {unknown[0]!r} as a term; write numbers inside I()."
        )
    return [tuple(factors[word] for word in term) for term in words]


def _size(node: Any) -> int:
    """Return a bound on the number of terms; raise PlanError before formulaic makes too many."""
    if not hasattr(node, "operator"):
        return 1
    left, *right = sizes = [_size(part) for part in node.args]
    total = sum(sizes)
    if node.operator.symbol in ("**", "^"):
        power = str(getattr(node.args[1], "token", ""))
        if not (power.isdecimal() and 1 <= int(power) <= MOST_POWER):
            raise PlanError(f"a power of terms must be an integer in [1, {MOST_POWER}].")
        total = left ** int(power)
    elif node.operator.symbol in (":", "*"):
        total += left * right[0]
    if total > 4 * MOST_TERMS:  # terms that are equal are counted twice here
        raise PlanError(f"formula must have at most {MOST_TERMS} terms; remove interactions.")
    return total


# The calls ----------------------------------------------------------------------------------------


def _factor(source: str) -> Factor:
    """Return the factor of a call, read by Python's grammar."""
    if _PLACE[:12] in source:  # could stand for a name between backticks
        raise PlanError(f"formula must not have names like {_PLACE!r}; use others.")
    # Names between backticks need not be words of Python.
    names = {_PLACE.format(at): name for at, name in enumerate(_QUOTED.findall(source))}
    places = iter(names)
    try:
        tree = ast.parse(_QUOTED.sub(lambda _: next(places), source), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise PlanError(
            f"formula must have calls like log(age), got {_short(source)}; write names that are no "
            "words, or words of Python, between backticks."
        ) from None
    return _Reader(names).factor(tree.body)


class _Reader:
    """A reader of Python's syntax trees that knows the calls of a formula, and nothing else.

    Parameters
    ----------
    quoted : mapping
        Names between backticks by their places.
    """

    def __init__(self, quoted: Mapping[str, str]) -> None:
        self._quoted = quoted

    def factor(self, node: ast.expr) -> Factor:
        """Return a factor of a term: a call."""
        match node:
            case ast.Call(func=ast.Name(id="C"), args=[ast.Name(id=name)], keywords=[]):
                return ("C", self._quoted.get(name, name), "")
            case ast.Call(func=ast.Name(id="C"), args=[ast.Name(id=name), contrast], keywords=[]):
                return ("C", self._quoted.get(name, name), _reference(contrast))
            case ast.Call(func=ast.Name(id="bs" | "cut" as name), args=[inner, *others]):
                # A second argument is a number of knots or bins in other packages.
                return (name, self.number(inner), *self._options(name, node.keywords, others))
            case ast.Call(func=ast.Name(id="offset" | "exposure" as name), args=[inner]) if (
                not node.keywords
            ):
                return (name, self.number(inner))
            case ast.Call():
                return self.number(node)
        raise _refused(node)

    def number(self, node: ast.expr) -> Expression:
        """Return an expression of numbers."""
        match node:
            case ast.Name(id=name):
                return ("column", self._quoted.get(name, name))
            # True is an int in Python.
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return ("number", value)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                of = self.number(inner)
                return ("number", -of[1]) if of[0] == "number" else ("-", ("number", 0.0), of)
            case ast.BinOp(op=ast.Pow(), left=left, right=ast.Constant(value=int() as power)) if (
                1 <= power <= MOST_POWER
            ):
                return ("**", self.number(left), int(power))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _SIGNS:
                return (_SIGNS[type(op)], self.number(left), self.number(right))
            case ast.Call(func=ast.Name(id="I"), args=[inner], keywords=[]):
                return self.number(inner)
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in FUNCTIONS:
                return (name, self.number(inner))
        raise _refused(node)

    def _options(
        self, name: str, options: list[ast.keyword], others: list[ast.expr]
    ) -> tuple[Any, ...]:
        """Return knots and degree of ``bs``, or edges of ``cut``."""
        wanted = "knots" if name == "bs" else "edges"
        given: dict[str | None, ast.expr] = {option.arg: option.value for option in options}
        match given.pop(wanted, None), given.pop("degree", ast.Constant(3)):
            # Without others: knots from the records, such as by `df`, are no public numbers.
            case ast.List(elts=parts) | ast.Tuple(elts=parts), ast.Constant(value=degree) if (
                not given and not others
            ):
                found = [self.number(part) for part in parts]
            case _:
                found, degree = [], 0
        if not found or any(each[0] != "number" for each in found):
            raise PlanError(
                f"{name}() must be like {name}(age, {wanted}=[40, 60]); give public {wanted} as "
                "numbers, since others depend on the records."
            )
        numbers = tuple(each[1] for each in found)
        return (numbers, degree) if name == "bs" else (numbers,)


def _reference(node: ast.expr) -> str:
    """Return the level of ``Treatment("level")``."""
    match node:
        case (
            ast.Call(func=ast.Name(id="Treatment"), args=[ast.Constant(value=level)], keywords=[])
            | ast.Call(
                func=ast.Name(id="Treatment"),
                args=[],
                keywords=[ast.keyword(arg="reference", value=ast.Constant(value=level))],
            )
        ) if isinstance(level, str | int | float) and level != "":
            return level if isinstance(level, str) else f"{level:g}"
    raise PlanError(f'the contrast of C() must be like Treatment("placebo"), got {_source(node)}.')


def _refused(node: ast.expr) -> PlanError:
    called = node.func if isinstance(node, ast.Call) else None
    name = called.id if isinstance(called, ast.Name) else ""
    if name in _OF_RECORDS:
        return PlanError(
            f"{name}() depends on the records; give public knots or numbers in its place, such as "
            "I(age - 50) or bs(age, knots=[40, 60])."
        )
    if name in CALLS:
        terms = " It must be a term, not part of an expression." if name in _TERMS else ""
        return PlanError(f"{name}() must have one expression in its brackets.{terms}")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return PlanError(f"a power must be an integer in [1, {MOST_POWER}]; write sqrt() or exp().")
    return PlanError(
        f"formula must not have {_source(node)}; it may have columns, numbers, + - * / ** and "
        f"{', '.join(CALLS)}."
    )


def _source(node: ast.expr) -> str:
    try:
        return _short(ast.unparse(node))
    except RecursionError:  # deeper than `unparse` can follow
        return type(node).__name__
