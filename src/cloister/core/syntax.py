"""The canonical text of a Python source: what it computes, without how it is written.

Two sources with the same text compute the same. Comments, docstrings, layout, annotations of
functions and variables, and the bodies of ``if TYPE_CHECKING`` leave no trace in it. Annotations
in the body of a class stay, because dataclasses and declared options read them as rules.

The text is the same in every Python from 3.11 on: it is written here, field by field, and not by
``ast.dump``, whose output changes between versions. Only the standard library is imported, so that
any interpreter can check ``tests/vectors/syntax.json``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeGuard

Scope = Literal["module", "class", "function"]

_WITHOUT_MEANING = {"ctx", "kind", "type_comment", "type_ignores"}
"""Fields that follow from the place of a node, or that Python does not read."""
_HARMLESS = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.Starred),
    *(ast.BinOp, ast.BitOr, ast.expr_context),
)
"""What an annotation may be made of if it shall not count, although Python may evaluate it."""
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
_TEMPLATES = {"format", "format_map"}
_DUNDER = re.compile(r"__\w+__")
_NAMESPACES = {"globals", "locals", "vars", "exec", "eval"}
"""Functions that may bind a name of a module without a statement that says so."""
GUARD = "TYPE_CHECKING"


@dataclass(frozen=True)
class Import:
    """An import statement that runs, wherever it stands.

    Parameters
    ----------
    module : str
        As written: ``"a.b"``, or ``""`` in ``from . import c``.
    name : str or None
        What is taken from the module; None where the module itself is imported.
    level : int
        Number of leading dots.
    alias : str or None
        The name after ``as``.
    """

    module: str
    name: str | None = None
    level: int = 0
    alias: str | None = None


@dataclass(frozen=True)
class Syntax:
    """What a source says to Python.

    Parameters
    ----------
    text : str
        Equal for sources that compute the same way.
    imports : tuple of Import
    words : frozenset of str
        Names that are used: ``"name"``, ``".attribute"``, ``"def name"`` of functions and classes
        outside of classes, and names with two underscores on each side within strings.
        ``"getattr()"`` and its like stand for attributes whose name is computed.
    bound : frozenset of str
        Names that are assigned, defined or imported anywhere in the source.
    strings : frozenset of str
        Constants that are text.
    """

    text: str
    imports: tuple[Import, ...]
    words: frozenset[str]
    bound: frozenset[str]
    strings: frozenset[str]


def read_syntax(source: bytes) -> Syntax:
    """Return what a source says to Python.

    Raises
    ------
    SyntaxError, ValueError
        If this Python cannot read it.
    """
    tree = ast.parse(source)
    text: list[str] = []
    kept: list[tuple[ast.AST, Scope]] = []
    # Most sources name no guard, and need no search for what binds it.
    rules = _Rules.of(tree) if GUARD.encode() in source else _Rules(lazy=_is_lazy(tree))
    _write(tree, rules, text, kept)
    nodes = [node for node, _ in kept]
    return Syntax(
        "".join(text),
        tuple(_imports(nodes)),
        frozenset(_words(kept)) - {""},
        frozenset(name for node in nodes for name in _names_bound(node)),
        frozenset(
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ),
    )


@dataclass(frozen=True)
class _Rules:
    """What is known of a whole source before its statements are read.

    Parameters
    ----------
    guards : frozenset of str
        Names that are ``typing.TYPE_CHECKING`` wherever they are used.
    modules : frozenset of str
        Names that are the module ``typing`` wherever they are used.
    lazy : bool
        Whether no annotation is ever evaluated (``from __future__ import annotations``).
    """

    guards: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    lazy: bool = False

    @classmethod
    def of(cls, tree: ast.Module) -> _Rules:
        """Trust a name only if the top of the source imports it and nothing binds it again."""
        bound: Counter[str] = Counter()
        tampered = False
        for node in ast.walk(tree):
            bound.update(_names_bound(node))
            tampered |= _sets_guard(node)
            tampered |= isinstance(node, ast.Name) and node.id in _NAMESPACES
        guards: Counter[str] = Counter()
        modules: Counter[str] = Counter()
        for node in tree.body:
            if isinstance(node, ast.Import):
                modules.update(a.asname or a.name for a in node.names if a.name == "typing")
            elif isinstance(node, ast.ImportFrom) and node.module == "typing" and not node.level:
                guards.update(a.asname or a.name for a in node.names if a.name == GUARD)
        if tampered or bound["*"]:
            return cls(lazy=_is_lazy(tree))

        def only(names: Counter[str]) -> frozenset[str]:
            return frozenset(name for name, times in names.items() if bound[name] == times)

        return cls(only(guards), only(modules), _is_lazy(tree))

    def is_guard(self, node: object) -> bool:
        """Return whether an expression is ``typing.TYPE_CHECKING``, which is false at run time."""
        if isinstance(node, ast.Name):
            return node.id in self.guards
        return (
            isinstance(node, ast.Attribute)
            and node.attr == GUARD
            and isinstance(node.value, ast.Name)
            and node.value.id in self.modules
        )

    def dropped(self, annotation: ast.expr | None) -> bool:
        """Return whether an annotation changes nothing: never evaluated, or to no effect."""
        if annotation is None or self.lazy:
            return True
        return all(isinstance(node, _HARMLESS) for node in ast.walk(annotation))

    def statements(self, body: Iterable[ast.stmt], scope: Scope) -> Iterator[ast.stmt]:
        """Yield the statements that run, each without what does not count.

        Within a function even a statement that never runs makes its names local, so that bodies
        of ``if TYPE_CHECKING`` and bare annotations keep their place there.
        """
        for node in body:
            if isinstance(node, ast.Expr) and _is_text(node.value):
                continue
            if isinstance(node, ast.If) and scope != "function":
                if self.is_guard(node.test):
                    yield from self.statements(node.orelse, scope)
                    continue
                if _is_not(node.test) and self.is_guard(node.test.operand):
                    yield from self.statements(node.body, scope)
                    continue
            if isinstance(node, ast.ImportFrom) and node.module == "typing" and not node.level:
                names = [a for a in node.names if (a.asname or a.name) not in self.guards]
                if names:
                    yield ast.ImportFrom(node.module, names, node.level)
            elif isinstance(node, ast.AnnAssign) and scope != "class":
                yield from self._unannotated(node, scope)
            else:
                yield node

    def _unannotated(self, node: ast.AnnAssign, scope: Scope) -> Iterator[ast.stmt]:
        """Yield an assignment without its annotation, or nothing where nothing remains."""
        if not self.dropped(node.annotation):
            yield node
        elif node.value is not None:
            yield ast.Assign([node.target], node.value)
        elif scope == "function" or not isinstance(node.target, ast.Name):
            yield node  # `fields` leaves the annotation out

    def fields(self, node: ast.AST, scope: Scope) -> Iterator[tuple[str, object, Scope]]:
        """Yield name, value and scope of each field that counts and is not empty."""
        for name in _field_names(node._fields):
            value: Any = getattr(node, name, None)
            inner = scope
            if name == "body" and isinstance(node, ast.ClassDef):
                inner = "class"
            elif name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = "function"
            if name in {"annotation", "returns"}:
                rule = scope == "class" and isinstance(node, ast.AnnAssign)
                if not rule and self.dropped(value):
                    continue
            elif name in {"body", "orelse", "finalbody"} and isinstance(value, list):
                value = list(self.statements(value, inner))
            elif name == "values" and _is_template(node):
                value = _joined(value)
            elif name == "format_spec" and isinstance(value, ast.JoinedStr):
                value = value if _joined(value.values) else None
            if value is not None and value != []:
                yield name, value, inner


@cache
def _field_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names) - _WITHOUT_MEANING))


def _is_lazy(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in tree.body
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_not(node: ast.expr) -> TypeGuard[ast.UnaryOp]:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_template(node: ast.AST) -> bool:
    return type(node).__name__ in {"JoinedStr", "TemplateStr"}  # the second is new in Python 3.14


def _joined(values: Iterable[ast.expr]) -> list[ast.expr]:
    """Return the parts of an f-string; versions of Python cut the text between them differently."""
    parts: list[ast.expr] = []
    for part in values:
        last = parts[-1] if parts else None
        if not (isinstance(part, ast.Constant) and isinstance(part.value, str)):
            parts.append(part)
        elif isinstance(last, ast.Constant) and isinstance(last.value, str):
            parts[-1] = ast.Constant(last.value + part.value)
        elif part.value:
            parts.append(part)
    return parts


def _write(
    tree: ast.Module, rules: _Rules, text: list[str], kept: list[tuple[ast.AST, Scope]]
) -> None:
    """Append the text of a source, and the nodes that it is of with the scope of each.

    A stack of its own takes the place of recursion: Python reads longer sums than it can recurse.
    """
    guarded = bool(rules.guards or rules.modules)
    stack: list[str | tuple[object, Scope]] = [(tree, "module")]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            text.append(item)
            continue
        value, scope = item
        if guarded and rules.is_guard(value):
            text.append(_constant(False))
        elif isinstance(value, ast.Constant):
            kept.append((value, scope))
            text.append(_constant(value.value))
        elif isinstance(value, ast.AST):
            kept.append((value, scope))
            text.append(f"{type(value).__name__}(")
            stack.append(")")
            for name, field, inner in reversed(list(rules.fields(value, scope))):
                stack += [",", (field, inner), f"{name}="]
        elif isinstance(value, list):
            text.append("[")
            stack.append("]")
            for part in reversed(value):
                stack += [",", (part, scope)]
        else:  # a name, a number of dots, or an absent entry of a list
            text.append(_literal(value))


def _constant(value: object) -> str:
    return f"Constant({_literal(value)})"


def _literal(value: object) -> str:
    """Return a text that only equal values of one type have, and that all versions write."""
    kind = type(value).__name__
    match value:
        case bool() | None:
            return str(value)
        case int():
            return f"{kind} {value:x}"  # decimal digits are limited
        case float():
            return f"{kind} {value.hex()}"
        case complex():
            return f"{kind} {value.real.hex()} {value.imag.hex()}"
        case str():
            return ascii(value)  # `repr` asks which characters this version can print
    return repr(value)


def _imports(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, alias=alias.asname) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                yield Import(module, alias.name, node.level, alias.asname)


def _names_bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds in its scope, ``"*"`` for names that it does not say."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    elif isinstance(node, ast.MatchMapping):
        yield from filter(None, [node.rest])
    else:  # functions, classes, type parameters, patterns, handlers of exceptions
        yield from filter(None, [getattr(node, "name", None)])


def _sets_guard(node: ast.AST) -> bool:
    """Return whether a node may change the guard of a module, from within or from outside."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
            return name == GUARD
        case ast.Constant(value=name) | ast.keyword(arg=name):
            return bool(name == GUARD)
    return False


def _words(kept: Iterable[tuple[ast.AST, Scope]]) -> Iterator[str]:
    named: set[int] = set()  # `getattr` where its second argument says which attribute
    for node, scope in kept:  # a call comes before its parts
        if _sets_guard(node):
            yield f"{GUARD} ="
        match node:
            case ast.Call(func=ast.Name(id=name) as function, args=[_, ast.Constant(str(at)), *_]):
                if name in _BY_NAME:
                    named.add(id(function))
                    yield from (at, f".{at}")
            case ast.Name(id=name):
                computed = name in _BY_NAME and id(node) not in named
                yield f"{name}()" if computed else name
            case ast.Attribute(attr=name, value=value):
                yield f".{name}"
                if name in _TEMPLATES and not isinstance(value, ast.Constant):
                    yield "getattr()"  # a computed template may name attributes
            case ast.Import(names=aliases):
                for a in aliases:
                    yield from (*a.name.split("."), a.asname or "")
            case ast.ImportFrom(module=module, names=aliases):
                yield from (module or "").split(".")
                yield from (w for a in aliases for w in (a.name, f".{a.name}", a.asname or ""))
            case ast.MatchClass(kwd_attrs=names):
                yield from (f".{name}" for name in names)
            case ast.Constant(value=str(value)):
                for name in _DUNDER.findall(value):
                    yield from (name, f".{name}")
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if scope != "class":
                yield f"def {name}"
