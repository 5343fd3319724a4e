"""The canonical text of a Python source: its computation, independent of its style.

Two sources with the same text compute the same. The text does not contain comments, docstrings,
layout, annotations of functions and variables, or the bodies of ``if TYPE_CHECKING``. It contains
annotations in the body of a class, because dataclasses and declared options use them as rules.

The text is the same in every Python from 3.11 on. It is therefore written here, field by field:
the output of ``ast.dump`` changes between versions. Only the standard library is imported, so that
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
"""Fields that follow from the place of a node, or that Python ignores."""
_HARMLESS = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.Starred),
    *(ast.BinOp, ast.BitOr, ast.expr_context),
)
"""Nodes of an annotation without effect, although Python may evaluate it."""
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
_TEMPLATES = {"format", "format_map"}
_DUNDER = re.compile(r"__\w+__")
_NAMESPACES = {"globals", "locals", "vars", "exec", "eval"}
"""Functions that may bind a name of a module without a visible statement."""
GUARD = "TYPE_CHECKING"


@dataclass(frozen=True)
class Import:
    """An import statement that runs, at any place of a source.

    Parameters
    ----------
    module : str
        As written: ``"a.b"``, or ``""`` in ``from . import c``.
    name : str or None
        The imported name of the module; None if the module itself is imported.
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
    """The canonical text of a source, with its imports, names and strings.

    Parameters
    ----------
    text : str
        Equal for sources that compute the same way.
    imports : tuple of Import
    words : frozenset of str
        The names in use: ``"name"``, ``".attribute"``, ``"def name"`` of functions and classes
        outside of classes, and names with two underscores on each side within strings.
        ``"getattr()"`` and the like are attributes with a computed name.
    bound : frozenset of str
        Names that the source assigns, defines or imports anywhere.
    strings : frozenset of str
        Constants that are text.
    """

    text: str
    imports: tuple[Import, ...]
    words: frozenset[str]
    bound: frozenset[str]
    strings: frozenset[str]


def read_syntax(source: bytes) -> Syntax:
    """Return the syntax of a source.

    Raises
    ------
    SyntaxError, ValueError
        If this Python cannot read it.
    """
    tree = ast.parse(source)
    text: list[str] = []
    kept: list[tuple[ast.AST, Scope]] = []
    # Most sources have no guard, so the search for its bindings is not needed.
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
    """Facts about a whole source that decide which of its statements count.

    Parameters
    ----------
    guards : frozenset of str
        Names that are ``typing.TYPE_CHECKING`` in the whole source.
    modules : frozenset of str
        Names that are the module ``typing`` in the whole source.
    lazy : bool
        True if no annotation is ever evaluated (``from __future__ import annotations``).
    """

    guards: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    lazy: bool = False

    @classmethod
    def of(cls, tree: ast.Module) -> _Rules:
        """Return the rules; a name is trusted if only the top of the source binds it."""
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
        # If the source may rebind the guard, its branches may run and must stay in the text.
        if tampered or bound["*"]:
            return cls(lazy=_is_lazy(tree))

        def only(names: Counter[str]) -> frozenset[str]:
            return frozenset(name for name, times in names.items() if bound[name] == times)

        return cls(only(guards), only(modules), _is_lazy(tree))

    def is_guard(self, node: object) -> bool:
        """Return True if an expression is ``typing.TYPE_CHECKING``, which is False at run time."""
        if isinstance(node, ast.Name):
            return node.id in self.guards
        return (
            isinstance(node, ast.Attribute)
            and node.attr == GUARD
            and isinstance(node.value, ast.Name)
            and node.value.id in self.modules
        )

    def dropped(self, annotation: ast.expr | None) -> bool:
        """Return True if an annotation changes nothing: not evaluated, or without effect."""
        if annotation is None or self.lazy:
            return True
        return all(isinstance(node, _HARMLESS) for node in ast.walk(annotation))

    def statements(self, body: Iterable[ast.stmt], scope: Scope) -> Iterator[ast.stmt]:
        """Yield the statements that run, without their parts that change nothing.

        In a function, a statement that never runs still makes its names local. Bodies of
        ``if TYPE_CHECKING`` and bare annotations are therefore kept there.
        """
        for node in body:
            if isinstance(node, ast.Expr) and _is_text(node.value):
                continue  # a docstring, or a text that Python drops
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
        """Yield an assignment without its annotation, or nothing if nothing remains."""
        if not self.dropped(node.annotation):
            yield node
        elif node.value is not None:
            yield ast.Assign([node.target], node.value)
        elif scope == "function" or not isinstance(node.target, ast.Name):
            yield node  # `fields` leaves the annotation out

    def fields(self, node: ast.AST, scope: Scope) -> Iterator[tuple[str, object, Scope]]:
        """Yield name, value and scope of each field that counts and is not empty."""
        # Empty fields are omitted, since later versions of Python add fields with defaults.
        for name in _field_names(node._fields):
            value: Any = getattr(node, name, None)
            inner = scope
            if name == "body" and isinstance(node, ast.ClassDef):
                inner = "class"
            elif name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = "function"
            if name in {"annotation", "returns"}:
                # In a class the annotation may be a rule, as of a dataclass.
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
    """Return the parts of an f-string with adjacent texts joined.

    Versions of Python divide the text of an f-string differently.
    """
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
    """Append the text of a source to `text`, and its nodes with their scopes to `kept`.

    An explicit stack replaces recursion, since Python parses longer sums than it can recurse into.
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
            # Reversed, since the stack returns the last item first.
            for name, field, inner in reversed(list(rules.fields(value, scope))):
                stack += [",", (field, inner), f"{name}="]
        elif isinstance(value, list):
            text.append("[")
            stack.append("]")
            for part in reversed(value):
                stack += [",", (part, scope)]
        else:  # a name, a number of dots, or None in a list
            text.append(_literal(value))


def _constant(value: object) -> str:
    return f"Constant({_literal(value)})"


def _literal(value: object) -> str:
    """Return a text that identifies a value and its type, the same in all versions of Python."""
    kind = type(value).__name__
    match value:
        case bool() | None:
            return str(value)
        case int():
            return f"{kind} {value:x}"  # Python limits the length of decimal texts
        case float():
            return f"{kind} {value.hex()}"
        case complex():
            return f"{kind} {value.real.hex()} {value.imag.hex()}"
        case str():
            return ascii(value)  # `repr` depends on the version's printable characters
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
    """Yield the names that a node binds in its scope; ``"*"`` for names that are not visible."""
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
    """Return True if a node may change the guard of this module or of another one."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
            return name == GUARD
        case ast.Constant(value=name) | ast.keyword(arg=name):
            return bool(name == GUARD)
    return False


def _words(kept: Iterable[tuple[ast.AST, Scope]]) -> Iterator[str]:
    named: set[int] = set()  # `getattr` with a constant name as second argument
    for node, scope in kept:  # a call precedes its parts
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
