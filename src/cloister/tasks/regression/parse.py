"""Formulas as text, such as ``y ~ age + C(arm) + site + offset(log(t))``.

The package formulaic splits the text and expands its operators. It never sees the calls: its own
parser runs Python code on the left of ``~``. Calls are read here by Python's grammar alone, and
only those of a closed list become terms. Only the party that writes a plan reads text.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cloister.core.errors import PlanError
from cloister.tasks.regression.expressions import (
    MOST_DEPTH,
    MOST_POWER,
    Expression,
    expression_of,
)
from cloister.tasks.regression.formula import MOST_TERMS, Formula

MOST_LETTERS = 2000
_MOST_TOKENS = 400
_FUNCTIONS = ("log", "log1p", "sqrt", "exp")
CALLS = ("C", "I", *_FUNCTIONS, "bs", "cut", "offset", "exposure")
"""Functions of a formula; ``Treatment`` is valid inside ``C``."""
_OF_RECORDS = frozenset(
    [
        *("center", "scale", "standardize", "poly", "cr", "cc", "cs", "ns", "te", "lag", "bin"),
        *("quantile", "rank", "mean", "std", "median", "min", "max", "zscore"),
    ]
)
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_OPERATORS = frozenset(["~", "+", "-", "*", "/", ":", "**", "^", "in"])
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
        record. Names that are no words stand between backticks.

    Raises
    ------
    PlanError
        For everything else, by name. Also if the package formulaic is missing.
    """
    _check_text(text)
    tokenize, parser_of = _formulaic()
    # Each call becomes a word that formulaic takes for a column.
    factors: dict[str, Expression] = {}
    try:
        parts = (part for token in tokenize(text) for part in _split(token))
        tokens = [_as_word(part, factors) for part in parts]
        if len(tokens) > _MOST_TOKENS:
            raise PlanError(f"formula must have at most {_MOST_TOKENS} names and signs.")
        left, right = parser_of(tokens)
    except PlanError:
        raise
    except Exception as error:  # the errors of formulaic have several bases
        reason = str(error).splitlines()[0].split("⧛")[0].rstrip(" .")
        raise PlanError(
            f"formula must be like 'y ~ x + C(arm)', got {_short(text)}: {reason}."
        ) from None
    if len(left) != 1 or len(left[0]) != 1:
        raise PlanError(
            f"formula must have one target on the left, like 'y ~ x', got {_short(text)}; write "
            "arithmetic in I()."
        )
    target = _known(left[0][0], factors)
    terms: list[tuple[Expression, ...]] = []
    offsets: list[Expression] = []
    intercept = False
    for names in right:
        found = [_known(name, factors) for name in names]
        if not found:
            intercept = True
        elif any(factor[0] in ("offset", "exposure") for factor in found):
            offsets.append(_offset(found))
        else:
            terms.append(tuple(found))
    if target[0] in ("offset", "exposure"):
        raise PlanError("offset and exposure must be on the right of a formula.")
    parsed = Formula(target, tuple(terms), intercept, tuple(offsets))
    return Formula.from_dict(parsed.to_dict())  # the check that a plan's reader makes, too


def _check_text(text: str) -> None:
    if not isinstance(text, str) or not 0 < len(text) <= MOST_LETTERS:
        raise PlanError(f"formula must be a text of at most {MOST_LETTERS} letters.")
    if strange := [c for c in text if unicodedata.category(c)[0] == "C" or c in "{}\\;@$"]:
        raise PlanError(
            f"formula must not have the sign {strange[0]!r}; use names, + - : * / ** and "
            f"{', '.join(CALLS)}."
        )
    outside = _QUOTED.sub("", text)
    # Python reads compatible letters as one name, so a text would not mean what it shows.
    if unicodedata.normalize("NFKC", outside) != outside:
        raise PlanError(
            "formula must have names in Unicode's form NFKC; write other names between backticks."
        )
    depth = deepest = 0
    for sign in outside:
        depth += (sign in "([") - (sign in ")]")
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH or re.search(r"[-+*/~:]{8}", re.sub(r"\s", "", outside)):
        raise PlanError(
            f"formula must have at most {MOST_DEPTH} levels of brackets, and few signs."
        )


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


# The operators ------------------------------------------------------------------------------------


def _formulaic() -> tuple[Any, Any]:
    """Return a function from text to tokens, and one from tokens to both sides' terms."""
    try:
        from formulaic.parser import DefaultFormulaParser
        from formulaic.parser.algos.tokenize import tokenize
        from formulaic.parser.algos.tokens_to_ast import tokens_to_ast
        from formulaic.parser.types import Token
        from formulaic.parser.utils import merge_operator_tokens, replace_tokens
    except ImportError:
        raise PlanError(
            "formulas need the extra: pip install 'cloister[formula]'; or give columns and target."
        ) from None
    # Multi-part formulas have no meaning here.
    parser = DefaultFormulaParser(include_intercept=False, feature_flags={"twosided"})

    def word(text: str, kind: str) -> Any:
        return Token(text, kind=kind)

    def sides(tokens: Iterable[Any]) -> tuple[list[list[str]], list[list[str]]]:
        tokens = list(tokens)
        tildes = [i for i, token in enumerate(tokens) if token.token == "~"]
        if len(tildes) != 1:
            raise PlanError("formula must have one '~' between its target and its terms.")
        one, plus = word("1", "value"), word("+", "operator")
        left, right = tokens[: tildes[0]], [one, plus, *tokens[tildes[0] + 1 :]]
        # "+ 0" removes the intercept as "- 1" does.
        right = list(replace_tokens(right, "0", [word("-", "operator"), one], kind=one.kind))
        return terms(left), terms(list(merge_operator_tokens(right, symbols={"+", "-"})))

    def terms(tokens: list[Any]) -> list[list[str]]:
        tree = tokens_to_ast(tokens, parser.operator_resolver)
        if tree is None:
            return []
        _size(tree)
        return [
            [factor.expr for factor in term.factors if factor.expr != "1"]
            for term in tree.to_terms(context={})
        ]

    return tokenize, sides


def _split(token: Any) -> Iterator[Any]:
    """Yield a token; the signs of ``~ -`` are two."""
    operator = token.kind is type(token).Kind.OPERATOR
    yield from token.split("~", after=True) if operator else (token,)


def _as_word(token: Any, factors: dict[str, Expression]) -> Any:
    """Return a token without code, and keep what it stands for."""
    kinds = type(token).Kind
    if token.kind is kinds.OPERATOR and token.token not in _OPERATORS:
        signs = re.sub(r"[-+]", "", token.token)  # such as "+-"
        if signs:
            raise PlanError(
                f"formula must not have the sign {token.token[:10]!r}; use + - : * / ** or I()."
            )
    if token.kind is kinds.CONTEXT and token.token not in "()":
        raise PlanError(f"formula must not have the sign {token.token!r}; use brackets ().")
    if token.kind is kinds.VALUE:
        if token.token not in ("0", "1") and not token.token.isdecimal():
            raise PlanError(
                f"formula must not have {token.token[:20]!r} as a term; write numbers and texts "
                "inside I(), C() or cut(), and the names of columns in place of '.'."
            )
        return token
    if token.kind not in (kinds.NAME, kinds.PYTHON):
        return token
    factor = ("column", token.token) if token.kind is kinds.NAME else _factor(token.token)
    # Equal factors are one word, and different factors two. With a blank, no word is a number.
    word = next((word for word, other in factors.items() if other == factor), f"{token.token} ")
    while factors.setdefault(word, factor) != factor:
        word += " "
    return type(token)(word, kind="name")


def _known(word: str, factors: Mapping[str, Expression]) -> Expression:
    if word not in factors:
        raise PlanError(f"formula must not have {word!r} as a term; write numbers inside I().")
    return factors[word]


def _size(node: Any) -> int:
    """Return a bound on the number of terms of a formula, before formulaic makes them."""
    if not hasattr(node, "operator"):
        return 1
    symbol, parts = node.operator.symbol, list(node.args)
    sizes = [_size(part) for part in parts]
    total = sum(sizes)
    if symbol in ("**", "^"):
        power = getattr(parts[1], "token", "")
        if not (str(power).isdecimal() and 1 <= int(power) <= MOST_POWER):
            raise PlanError(f"a power of terms must be an integer in [1, {MOST_POWER}].")
        total = sizes[0] ** int(power)
    elif symbol == ":":
        total = sizes[0] * sizes[1]
    elif symbol == "*":
        total += sizes[0] * sizes[1]
    if total > 4 * MOST_TERMS:
        raise PlanError(f"formula must have at most {MOST_TERMS} terms; remove interactions.")
    return total


def _offset(factors: list[Expression]) -> Expression:
    if len(factors) > 1:
        raise PlanError("offset and exposure must be terms of their own, without ':' or '*'.")
    [(kind, inner)] = factors
    return ("log", inner) if kind == "exposure" else inner


# The calls ----------------------------------------------------------------------------------------


def _factor(source: str) -> Expression:
    """Return the factor of a call, read by Python's grammar."""
    if _PLACE[:12] in source:
        raise PlanError(f"formula must not have names like {_PLACE!r}; use others.")
    names = dict(enumerate(_QUOTED.findall(source)))
    places = iter(names)
    plain = _QUOTED.sub(lambda _: _PLACE.format(next(places)), source)
    try:
        tree = ast.parse(plain, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise PlanError(
            f"formula must have calls like log(age), got {_short(source)}; write names that are no "
            "words, or words of Python, between backticks."
        ) from None
    reader = _Reader({_PLACE.format(at): name for at, name in names.items()})
    return reader.factor(tree.body)


class _Reader:
    """A reader of Python's syntax trees that knows the calls of a formula, and nothing else.

    Parameters
    ----------
    quoted : mapping
        Names between backticks by their places.
    """

    def __init__(self, quoted: Mapping[str, str]) -> None:
        self._quoted = quoted

    def factor(self, node: ast.expr) -> Expression:
        """Return a factor of a term: a call."""
        name, given, keywords = self._call(node)
        if name == "C":
            return self._category(given, keywords)
        if name in ("bs", "cut"):
            return self._with_numbers(name, given, keywords)
        if name in ("offset", "exposure", "I"):
            inner = self.number(*self._one(name, given, keywords))
            return inner if name == "I" else (name, inner)
        return self.number(node)

    def number(self, node: ast.expr, depth: int = 0) -> Expression:
        """Return an expression of numbers."""
        if depth > MOST_DEPTH:
            raise PlanError(f"formula must have at most {MOST_DEPTH} levels; write it shorter.")
        match node:
            case ast.Name(id=name):
                return ("column", self._quoted.get(name, name))
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return expression_of(("number", value))
            case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                return self.number(inner, depth + 1)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                of = self.number(inner, depth + 1)
                return ("number", -of[1]) if of[0] == "number" else ("-", ("number", 0.0), of)
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return ("**", self.number(left, depth + 1), self._power(right))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _SIGNS:
                parts = self.number(left, depth + 1), self.number(right, depth + 1)
                return (_SIGNS[type(op)], *parts)
            case ast.Call():
                name, given, keywords = self._call(node)
                [inner] = self._one(name, given, keywords)
                if name == "I":
                    return self.number(inner, depth + 1)
                if name in _FUNCTIONS:
                    return (name, self.number(inner, depth + 1))
                raise PlanError(f"{name}() must be a term of its own, not part of an expression.")
        raise _refused(node)

    def _call(self, node: ast.expr) -> tuple[str, list[ast.expr], dict[str, ast.expr]]:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            raise _refused(node)
        name = node.func.id
        if name in _OF_RECORDS:
            raise PlanError(
                f"{name}() depends on the records, so a formula must not have it; give public "
                "knots or numbers, such as I(age - 50) or bs(age, knots=[40, 60])."
            )
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        starred = any(isinstance(part, ast.Starred) for part in node.args)
        if name not in CALLS or starred or len(keywords) < len(node.keywords):
            raise _refused(node)
        return name, node.args, keywords

    def _one(
        self, name: str, given: list[ast.expr], keywords: Mapping[str, ast.expr]
    ) -> tuple[ast.expr]:
        if len(given) != 1 or keywords:
            raise PlanError(f"{name}() must have one expression in its brackets.")
        return (given[0],)

    def _power(self, node: ast.expr) -> int:
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_POWER:
            raise PlanError(
                f"a power must be an integer in [1, {MOST_POWER}]; write sqrt(x) for others."
            )
        return value

    def _category(self, given: list[ast.expr], keywords: Mapping[str, ast.expr]) -> Expression:
        match given:
            case [ast.Name(id=name)] if not keywords:
                return ("C", self._quoted.get(name, name), "")
            case [ast.Name(id=name), contrast] if not keywords:
                return ("C", self._quoted.get(name, name), self._reference(contrast))
        raise PlanError('C() must be like C(arm) or C(arm, Treatment("placebo")).')

    def _reference(self, node: ast.expr) -> str:
        match node:
            case (
                ast.Call(
                    func=ast.Name(id="Treatment"),
                    args=[ast.Constant(value=value)],
                    keywords=[],
                )
                | ast.Call(
                    func=ast.Name(id="Treatment"),
                    args=[],
                    keywords=[ast.keyword(arg="reference", value=ast.Constant(value=value))],
                )
            ) if isinstance(value, str | int | float) and value != "":
                return value if isinstance(value, str) else f"{value:g}"
        raise PlanError(
            f'the contrast of C() must be like Treatment("placebo"), got {_source(node)}.'
        )

    def _with_numbers(
        self, name: str, given: list[ast.expr], keywords: Mapping[str, ast.expr]
    ) -> Expression:
        option = "knots" if name == "bs" else "edges"
        allowed = {"knots", "degree", "include_intercept"} if name == "bs" else {"edges"}
        if len(given) != 1 or option not in keywords or set(keywords) - allowed:
            what = f", got {min(set(keywords) - allowed)!r}" if set(keywords) - allowed else ""
            raise PlanError(
                f"{name}() must be like {name}(age, {option}=[40, 60]){what}; give public "
                f"{option}, since others depend on the records."
            )
        inner, numbers = self.number(given[0]), self._numbers(keywords[option])
        if name == "cut":
            return ("cut", inner, numbers)
        degree = self._power(keywords["degree"]) if "degree" in keywords else 3
        match keywords.get("include_intercept"):
            case None | ast.Constant(value=False):
                return ("bs", inner, numbers, degree, 0)
            case ast.Constant(value=True):
                return ("bs", inner, numbers, degree, 1)
        raise PlanError("include_intercept of bs() must be True or False.")

    def _numbers(self, node: ast.expr) -> tuple[float, ...]:
        if isinstance(node, ast.List | ast.Tuple) and node.elts:
            found = [self.number(part) for part in node.elts]
            if all(part[0] == "number" for part in found):
                return tuple(part[1] for part in found)
        raise PlanError(f"knots and edges must be lists of numbers, got {_source(node)}.")


def _refused(node: ast.expr) -> PlanError:
    return PlanError(
        f"formula must not have {_source(node)}; it may have columns, numbers, + - * / ** and "
        f"{', '.join(CALLS)}."
    )


def _source(node: ast.expr) -> str:
    try:
        text = ast.unparse(node)
    except RecursionError:
        text = type(node).__name__
    return repr(text if len(text) <= 50 else f"{text[:50]}...")
