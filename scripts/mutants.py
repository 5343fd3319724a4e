"""Mutation testing of the functions that privacy depends on.

    python scripts/mutants.py                        # every mutant without a result, about a night
    python scripts/mutants.py --sample 100           # so many of each group; another seed each day
    python scripts/mutants.py --only noise-scale --page docs/results/mutants.md

A mutant is the source of one function with one small change. A test that fails on it kills it.
``scripts/mutants.toml`` lists the functions and the tests; ``scripts/survivors.toml`` explains
mutants that no test kills. Results are JSON lines, by digest of the module and of the mutant, so a
later run continues where one was stopped, and a change of a module discards its results only. With
``--sample``, rates are those of the sample for each group of which not all mutants were tried.

Pytest imports and collects the tests of a group once. Each mutant is then a forked process. It
replaces the code of one function in place, so that every importer sees it, runs the tests that
reach this statement, likely killers first, and ends at the first failure. Only the fork ever holds
the mutant: no file of the checkout changes. Where collecting starts threads, each fork collects.

Why not a library: mutmut 3.8 imports a changed copy of ``src``, but the import hook of our editable
install finds the original first; it also leaves out properties and cached functions. cosmic-ray
8.7 starts pytest for each mutant, 3 s in place of 0.04 s, and writes mutants into the checkout.
Both choose whole files, neither draws a sample, and neither knows clips or swapped arguments.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import datetime
import hashlib
import inspect
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import time
import tomllib
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from fnmatch import fnmatch
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import CodeType, FunctionType, ModuleType
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy: threads do not survive a fork

import pytest  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
TARGETS, SURVIVORS = ROOT / "scripts/mutants.toml", ROOT / "scripts/survivors.toml"
RESULTS = ROOT / "build/mutants.jsonl"
LONGEST = 40  # seconds of tests on one mutant, as they take without it

OPERATORS = (
    "Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, In NotIn, NotIn In, "
    "Is IsNot, IsNot Is, And Or, Or And, Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Mult, "
    "Mod FloorDiv, Pow Mult, LShift RShift, RShift LShift, BitAnd BitOr, BitOr BitAnd, "
    "BitXor BitAnd"
)
SWAPS = {
    getattr(ast, kind): [getattr(ast, other) for other in others]
    for kind, *others in map(str.split, OPERATORS.split(","))
}
PAIRS = (("min", "max"), ("minimum", "maximum"), ("any", "all"), ("floor", "ceil"))
NAMES = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
UNWRAPPED = {
    *("clip", "abs", "absolute", "min", "max", "minimum", "maximum", "ceil", "floor", "round"),
    *("rint", "trunc", "sqrt", "isqrt", "sorted", "unique", "int"),
}
COMMUTES = {"min", "max", "minimum", "maximum", "hypot", "isinstance", "getattr"}
# These change speed, memory or a message, and no number.
QUIET_KEYWORDS = {"dtype", "copy", "strict", "out", "casting", "label"}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "defaults", "kw_defaults", "exc"}


@dataclass(frozen=True)
class Edit:
    """One change of a syntax tree: the child of `parent` in `field` becomes `new`."""

    operator: str
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST
    line: int  # of the statement around it

    def swap(self) -> ast.AST:
        """Put `new` in place and return what was there."""
        children = getattr(self.parent, self.field)
        if self.index is None:
            setattr(self.parent, self.field, self.new)
            return children
        old, children[self.index] = children[self.index], self.new
        return old

    def undo(self, old: ast.AST) -> None:
        """Put the old child back."""
        replace(self, new=old).swap()


def edits(root: ast.AST, line: int) -> Iterator[Edit]:
    """Yield every change that the operators make below a function or an assignment."""
    for name, value in ast.iter_fields(root):
        if name in SKIPPED_FIELDS:
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or is_text(child):
                continue
            index = i if isinstance(value, list) else None
            at = child.lineno if isinstance(child, ast.stmt) else line
            for operator, new in changes(child, name):
                if not isinstance(new, ast.operator | ast.cmpop | ast.boolop):
                    ast.fix_missing_locations(ast.copy_location(new, child))
                yield Edit(operator, root, name, index, new, at)
            yield from edits(child, at)


def is_text(node: ast.AST) -> bool:
    """Return whether a node is a docstring, a message or a line of a log."""
    if isinstance(node, ast.JoinedStr):
        return True
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.Call) and ast.unparse(value.func).startswith(("_log.", "warnings."))
    )


def changes(node: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield what each operator makes of one node, which is in field `place` of its parent."""
    for kind in SWAPS.get(type(node), ()):
        yield "swap operator", kind()
    if place == "test" and not isinstance(node, ast.Compare | ast.Constant):
        yield "negate condition", ast.UnaryOp(ast.Not(), node)
    if place == "ifs":
        yield "drop filter", ast.Constant(True)
    match node:
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield "constant", ast.Constant(node.value + 1)
            yield "constant", ast.Constant(node.value - 1)
        case ast.Constant(value=float()):
            # 5 % is what a statistical test of this house must see.
            values = (node.value * 1.05, node.value * 0.95) if node.value else (1.0,)
            yield from (("constant", ast.Constant(value)) for value in values)
        case ast.UnaryOp():
            yield "drop sign", node.operand
        case ast.BoolOp():
            for i in range(len(node.values)):
                rest = node.values[:i] + node.values[i + 1 :]
                one = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield "drop operand", one
        case ast.IfExp():
            yield "swap branches", ast.IfExp(node.test, node.orelse, node.body)
        case ast.Slice():
            yield from slice_changes(node)
        case ast.Call():
            yield from call_changes(node)
        case ast.Return(value=ast.expr()):
            yield "drop result", ast.Return(ast.Constant(None))
        case ast.Continue():
            yield "swap jump", ast.Break()
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Break():
            yield "drop statement", ast.Pass()
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "drop statement", ast.Pass()


def slice_changes(node: ast.Slice) -> Iterator[tuple[str, ast.AST]]:
    """Yield slices with another bound; constant bounds are changed as constants."""
    for name in ("lower", "upper"):
        bound = getattr(node, name)
        if bound is None:
            continue
        moved = [None]
        if not isinstance(bound, ast.Constant | ast.UnaryOp):
            moved.append(ast.BinOp(bound, ast.Add(), ast.Constant(1)))
        for other in moved:
            parts = {"lower": node.lower, "upper": node.upper, "step": node.step, name: other}
            yield "slice bound", ast.Slice(**parts)


def call_changes(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    """Yield calls of another function, with other arguments, or what they are applied to."""
    function, arguments = node.func, node.args
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name in NAMES:
        other: ast.expr = ast.Name(NAMES[name], ast.Load())
        if isinstance(function, ast.Attribute):
            other = ast.Attribute(function.value, NAMES[name], ast.Load())
        yield "swap function", ast.Call(other, arguments, node.keywords)
    if name in UNWRAPPED:
        own = arguments[:1]
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) not in (
            *("np", "math"),
        ):
            own = [function.value]
        if name in ("min", "max", "minimum", "maximum") and len(arguments) > 1:
            own = arguments[:2]
        for argument in own:
            if not isinstance(argument, ast.Starred | ast.GeneratorExp):
                yield "drop call", argument
    if len(arguments) > 1 and name not in COMMUTES:
        *first, left, right = arguments
        if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred):
            yield "swap arguments", ast.Call(function, [*first, right, left], node.keywords)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in QUIET_KEYWORDS:
            rest = node.keywords[:i] + node.keywords[i + 1 :]
            yield "drop argument", ast.Call(function, arguments, rest)


@dataclass
class Source:
    """The syntax tree of one module, and its functions and constants by qualified name."""

    name: str

    @cached_property
    def module(self) -> ModuleType:
        """The imported module."""
        return import_module(self.name)

    @cached_property
    def tree(self) -> ast.Module:
        """The tree that mutants of this module share; one of them is in place at a time."""
        return ast.parse(Path(str(self.module.__file__)).read_text())

    @cached_property
    def digest(self) -> str:
        """Of the code without comments and layout."""
        return digest_of(ast.unparse(self.tree))

    @cached_property
    def nodes(self) -> dict[str, ast.AST]:
        """Functions by qualified name, and assignments of one name."""
        found: dict[str, ast.AST] = {}

        def visit(body: Iterable[ast.AST], path: str) -> None:
            for node in body:
                if isinstance(node, ast.FunctionDef):
                    found[path + node.name] = node
                elif isinstance(node, ast.ClassDef):
                    visit(node.body, f"{path}{node.name}.")
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found[path + node.targets[0].id] = node
                elif isinstance(node, ast.If):
                    visit(node.body + node.orelse, path)

        visit(self.tree.body, "")
        return found

    def lines_of(self, mutant: Mutant) -> tuple[set[int], set[int]]:
        """Return the lines of the mutant's statement, and those of the functions around it.

        Of a constant, these are the statements and functions that mention it.
        """
        node = self.nodes[mutant.function]
        if isinstance(node, ast.FunctionDef):
            return {mutant.line}, set(range(node.lineno, node.end_lineno + 1))
        own, around = set(), set()
        for function in self.nodes.values():
            if isinstance(function, ast.FunctionDef) and mutant.function in mentioned(function):
                around |= set(range(function.lineno, function.end_lineno + 1))
                statements = (n for n in ast.walk(function) if isinstance(n, ast.stmt))
                own |= {one.lineno for one in statements if mutant.function in mentioned(one)}
        return own, around

    def instrument(self) -> None:
        """Make every statement of the functions call ``reached_by_test`` first, for good."""
        functions = {n: node for n, node in self.nodes.items() if isinstance(node, ast.FunctionDef)}
        bodies = [
            body
            for function in functions.values()
            for node in ast.walk(function)
            for _, body in ast.iter_fields(node)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt)
        ]
        for body in bodies:
            for statement in reversed(body[:]):
                call = ast.parse(f"reached_by_test({(self.name, statement.lineno)})").body[0]
                for node in ast.walk(call):
                    ast.copy_location(node, statement)
                body.insert(body.index(statement), call)
        for name in functions:
            self.install(name)

    def install(self, name: str) -> None:
        """Make the running package use the tree's version of a function or constant.

        A function keeps its identity, so that every reference to it runs the new code. Constants
        that the module computes with it are computed again.
        """
        if isinstance(self.nodes[name], ast.Assign):
            self._rebind(name)
            return
        code = compile(self.tree, str(self.module.__file__), "exec", dont_inherit=True)
        function_of(self.module, name).__code__ = code_named(code, name)
        for other, node in self.nodes.items():
            if isinstance(node, ast.Assign) and "." not in other and name in mentioned(node):
                self._rebind(other)

    def _rebind(self, name: str) -> None:
        node = self.nodes[name]
        old = vars(self.module)[name]
        value = eval(
            compile(ast.Expression(node.value), self.name, "eval", dont_inherit=True),
            vars(self.module),
        )
        for module in own_modules():
            if vars(module).get(name) is old:
                setattr(module, name, value)


sources = cache(Source)


def mentioned(node: ast.AST) -> set[str]:
    """Return the plain names below a node."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def digest_of(*texts: str) -> str:
    """Return 20 hexadecimal digits."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


def own_modules() -> list[ModuleType]:
    """Return the modules of the package that are imported."""
    return [m for n, m in list(sys.modules.items()) if n.partition(".")[0] == "cloister" and m]


def function_of(module: ModuleType, name: str) -> FunctionType:
    """Return the function behind a qualified name, without property, class method or cache."""
    value: Any = module
    for part in name.split("."):
        value = vars(value)[part]
    function = plain_function(value)
    if function.__code__.co_qualname != name:  # wrapped by one that does not say so
        inner = [cell.cell_contents for cell in function.__closure__ or ()]
        function = next(f for f in inner if getattr(f, "__qualname__", "") == name)
    return function


def plain_function(value: Any) -> Any:
    """Return what properties, class methods, static methods and caches wrap."""
    for attribute in ("fget", "func", "__func__"):
        value = getattr(value, attribute, None) or value
    return inspect.unwrap(value) if callable(value) else value


def code_named(code: CodeType, name: str) -> CodeType:
    """Return the code object of a qualified name inside that of a module."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                return constant
            if name.startswith(constant.co_qualname + "."):
                return code_named(constant, name)
    raise LookupError(name)


def clear_caches() -> None:
    """Forget what functions of the package computed before a mutant was in place."""
    for module in own_modules():
        for value in list(vars(module).values()):
            members = list(vars(value).values()) if isinstance(value, type) else []
            for member in (value, *members):
                if hasattr(member, "cache_clear"):
                    member.cache_clear()


def called_from(entry: str, package: str) -> dict[str, set[str]]:
    """Return every function of a package that methods named `entry` lead to, by module.

    Names that a function mentions are looked up in its class, its module and the classes that its
    module knows. So a few functions come in that share a name with one that is called.
    """
    for info in walk_packages(import_module(package).__path__, f"{package}."):
        import_module(info.name)
    waiting: list[tuple[Any, type | None]] = []
    for module in own_modules():
        for kind in classes_of(module) if module.__name__.startswith(package) else ():
            if kind.__module__ == module.__name__ and entry in vars(kind):
                waiting.append((vars(kind)[entry], kind))
    found: dict[str, set[str]] = defaultdict(set)
    seen: set[Any] = set()
    while waiting:
        value, owner = waiting.pop()
        function = plain_function(value)
        if not isinstance(function, FunctionType) or (function, owner) in seen:
            continue
        seen.add((function, owner))
        if function.__module__.startswith(package):
            found[function.__module__].add(function.__qualname__)
        else:
            continue
        names = names_in(function.__code__)
        scope = function.__globals__
        kinds = {owner} if owner else set()
        kinds |= {v for n, v in scope.items() if n in names and isinstance(v, type)}
        for name in names:
            value = scope.get(name)
            if isinstance(value, ModuleType):
                waiting += [(vars(value).get(other), None) for other in names]
            elif not isinstance(value, type):
                waiting.append((value, None))
            for kind in kinds:
                relatives = (*kind.__mro__, *heirs(kind))
                waiting += [(vars(base)[name], kind) for base in relatives if name in vars(base)]
    return found


def classes_of(module: ModuleType) -> list[type]:
    """Return the classes in a module's namespace."""
    return [value for value in vars(module).values() if isinstance(value, type)]


def heirs(kind: type) -> list[type]:
    """Return the classes below a class, at any depth."""
    below = kind.__subclasses__() if kind is not type else []
    return below + [heir for one in below for heir in heirs(one)]


def names_in(code: CodeType) -> set[str]:
    """Return the names that code and the code inside it mention."""
    inner = [names_in(c) for c in code.co_consts if isinstance(c, CodeType)]
    return set(code.co_names).union(*inner)


@dataclass(frozen=True)
class Mutant:
    """A change of one function or constant, as its lines before and after."""

    group: str
    module: str
    function: str
    line: int
    operator: str
    was: str
    becomes: str
    key: str
    edit: Edit = field(repr=False, compare=False)

    @property
    def place(self) -> str:
        """Module and qualified name."""
        return f"{self.module}:{self.function}"

    def install(self) -> None:
        """Put the mutant into the running package; there is no way back but the fork's end."""
        self.edit.swap()
        sources(self.module).install(self.function)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the change itself."""
        return {name: value for name, value in vars(self).items() if name != "edit"}


def mutants_of(group: str, module: str, name: str) -> list[Mutant]:
    """Return the mutants of one function or constant, no two of the same text."""
    source = sources(module)
    node = source.nodes[name]
    before = ast.unparse(node)
    found: dict[str, Mutant] = {}
    for edit in edits(node, node.lineno):
        old = edit.swap()
        after = ast.unparse(node)
        edit.undo(old)
        if after != before and after not in found:
            was, becomes = difference(before, after)
            key = digest_of(source.digest, name, after)
            found[after] = Mutant(
                group, module, name, edit.line, edit.operator, was, becomes, key, edit
            )
    return list(found.values())


def difference(before: str, after: str) -> tuple[str, str]:
    """Return the lines that only one of two texts has, joined by bars."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[3:]
    sides = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in ("-", "+"))
    was, becomes = (" | ".join(side) for side in sides)
    return was, becomes


@dataclass(frozen=True)
class Group:
    """Functions that share a target for the kill rate.

    Parameters
    ----------
    name, title : str
    least : float in (0, 1]
        Smallest share of the mutants that tests must kill.
    tests : list of str
        Files and folders, from the root of the checkout.
    functions : mapping of str to list of str
        By module, patterns of qualified names.
    """

    name: str
    title: str
    least: float
    tests: list[str]
    functions: Mapping[str, Iterable[str]]

    @cached_property
    def mutants(self) -> list[Mutant]:
        """All mutants, in the order of modules and lines."""
        found = []
        for module, patterns in self.functions.items():
            nodes = sources(module).nodes
            names = [n for n in nodes if chosen(n, nodes[n], patterns)]
            if missing := [
                p for p in patterns if not any(fnmatch(n, p.lstrip("!")) for n in nodes)
            ]:
                raise SystemExit(f"{TARGETS.name}: {module} has no {missing}")
            for name in names:
                found += mutants_of(self.name, module, name)
        return found

    @cached_property
    def tests_digest(self) -> str:
        """Of the text of all tests: a survivor is tried again when they change."""
        files = [f for t in self.tests for f in sorted((ROOT / t).rglob("*.py")) or [ROOT / t]]
        return digest_of(*(file.read_text() for file in files if file.is_file()))


def chosen(name: str, node: ast.AST, patterns: Iterable[str]) -> bool:
    """Return whether patterns name a function; constants must be named without a wildcard."""
    if isinstance(node, ast.Assign):
        return name in patterns
    if any(p[:1] == "!" and fnmatch(name, p[1:]) for p in patterns):
        return False
    return any(fnmatch(name, p) for p in patterns)


def read_groups() -> list[Group]:
    """Read the targets."""
    groups = []
    for one in tomllib.loads(TARGETS.read_text())["group"]:
        functions = one.get("functions", {})
        if "calls" in one:
            left_out = one.get("without", [])
            functions = {
                module: sorted(n for n in names if not any(fnmatch(n, p) for p in left_out))
                for module, names in sorted(called_from(**one["calls"]).items())
            }
        groups.append(Group(one["name"], one["title"], one["least"], one["tests"], functions))
    return groups


Line = tuple[str, int]  # module and number


def in_order(
    mutant: Mutant,
    reach: Mapping[Line, set[str]],
    seconds: Mapping[str, float],
    killed: Mapping[str, int],
) -> list[str]:
    """Return the tests that reach a mutant, those first that are likely to kill it soon.

    First what killed other mutants of the function, then what is fast and runs lines of it that
    few tests run: a test of a rule is one of the few that break it.
    """
    own, around = sources(mutant.module).lines_of(mutant)
    near = set().union(*(reach.get((mutant.module, line), ()) for line in own))
    worth = dict.fromkeys(near, 0.0)
    for line in around:
        tests = reach.get((mutant.module, line), set())
        for name in tests & near:
            worth[name] += 1 / len(tests)
    return sorted(near, key=lambda n: (-killed.get(n, 0), -worth[n] / (0.2 + seconds[n]), n))


class Runner:
    """A plugin that runs mutants in place of the tests that pytest collected.

    Parameters
    ----------
    group : Group
    mutants : list of Mutant
        To be tried, in order.
    report : function of (Mutant, dict)
        Called with each outcome.
    until : float
        No mutant starts after this time, by the monotonic clock.
    marks : str
        Expression that chooses tests.
    longest : float
        Seconds of tests on one mutant, as they take without it.
    """

    def __init__(
        self,
        group: Group,
        mutants: list[Mutant],
        report: Callable[[Mutant, dict[str, Any]], None],
        until: float,
        marks: str,
        longest: float,
    ) -> None:
        self.group, self.mutants, self.report, self.until = group, mutants, report, until
        self.longest = longest
        self.marks, self.tests = marks, [t for t in group.tests if (ROOT / t).exists()]
        code = digest_of(*(file.read_text() for file in sorted((ROOT / "src").rglob("*.py"))))
        name = digest_of(code, group.tests_digest, marks, *group.functions)
        self.stored = ROOT / f"build/mutants-{name}.pickle"
        self.seen: set[Line] = set()
        self.by_fixture: dict[str, set[Line]] = defaultdict(set)
        self.failed = self.has_threads = False
        self.loop: Callable[[list[pytest.Item]], object]

    def run(self) -> None:
        """Find out what tests reach, then try every mutant."""
        self.stored.parent.mkdir(exist_ok=True)
        if not self.stored.exists():
            in_fork(lambda: self.session(self.tests, self.store_baseline))
        if in_fork(lambda: self.session(self.tests, self.try_if_alone)):
            # Threads do not survive a fork, and a lock that they hold is never opened. So each
            # fork collects its tests itself, from a process that only imports them.
            in_fork(lambda: self.try_all(None))

    def session(self, tests: list[str], loop: Callable[[list[pytest.Item]], object]) -> bool:
        """Let pytest collect tests and call `loop` with them; return whether threads were there."""
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        self.loop = loop
        options = ["-q", "-p", "no:cacheprovider", "--tb=no", "-m", self.marks]
        code = pytest.main([*options, "--rootdir", str(ROOT), *tests], plugins=[self])
        # A test that fails without a mutant is left out, and ends no session.
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise SystemExit(f"pytest could not collect {tests}")
        return self.has_threads

    def pytest_collection(self) -> None:
        """Make property tests repeatable, and spare them the search for a smaller example."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings(phases=phases, report_multiple_bugs=False))
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do something else with the tests than to run them once."""
        self.base = session.config._tmp_path_factory.getbasetemp()
        self.loop(session.items)
        return True

    def store_baseline(self, items: list[pytest.Item]) -> None:
        """Write what a run without a mutant tells."""
        self.stored.write_bytes(pickle.dumps(self.baseline(items)))

    def try_if_alone(self, items: list[pytest.Item]) -> None:
        """Try every mutant, unless the collection of the tests started threads."""
        self.has_threads = len(os.listdir("/proc/self/task")) > 1
        if not self.has_threads:
            self.try_all(items)

    def try_all(self, items: list[pytest.Item] | None) -> None:
        """Try every mutant on collected tests; if None, each fork collects its own."""
        clear_caches()
        # Our own file, not one from elsewhere.
        reach, seconds, modules = pickle.loads(self.stored.read_bytes())  # noqa: S301
        for name in modules - sys.modules.keys():  # or each fork would import them again
            with suppress(Exception):
                import_module(name)
        killers: dict[str, Counter[str]] = defaultdict(Counter)
        for mutant in self.mutants:
            if time.monotonic() > self.until:
                break
            killed = killers[mutant.place]
            names = in_order(mutant, reach, seconds, killed)
            outcome = self.outcome(mutant, {name: seconds[name] for name in names}, items)
            killed[outcome["by"]] += 1
            self.report(mutant, outcome)
            for folder in self.base.iterdir() if items else ():
                shutil.rmtree(folder, ignore_errors=True)

    def baseline(
        self, items: list[pytest.Item]
    ) -> tuple[dict[Line, set[str]], dict[str, float], set[str]]:
        """Run all tests without a mutant.

        Returns the tests that reach each line, their seconds, and the modules that they import.
        """
        builtins.reached_by_test = self.seen.add  # type: ignore[attr-defined]
        for module in self.group.functions:
            sources(module).instrument()
        reach: dict[Line, set[str]] = defaultdict(set)
        seconds = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            clear_caches()
            self.seen.clear()
            start = time.process_time()  # not that of other processes
            self.failed = False
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = time.process_time() - start
            if self.failed:
                print_line(f"fails without a mutant, so it is left out: {item.nodeid}")
                continue
            for name in getattr(item, "fixturenames", ()):
                self.seen |= self.by_fixture[name]
            for line in self.seen:
                reach[line].add(item.nodeid)
        return dict(reach), seconds, set(sys.modules)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Note what a shared fixture reaches, for every test that uses it."""
        before = set(self.seen)
        self.seen.clear()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.by_fixture[fixturedef.argname] |= self.seen
            self.seen |= before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of any phase."""
        self.failed |= report.failed

    def outcome(
        self, mutant: Mutant, seconds: Mapping[str, float], items: list[pytest.Item] | None
    ) -> dict[str, Any]:
        """Run tests, in the order of `seconds`, on one mutant in a process of its own."""
        start = time.perf_counter()
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os._exit(self.run_child(mutant, seconds, items, write))
            except BaseException:  # whatever a mutant raises outside a test
                os._exit(1)
        os.close(write)
        with open(read) as pipe:
            ran = pipe.read().splitlines()
        _, status = os.waitpid(child, 0)
        name = "killed"
        if os.WIFSIGNALED(status):
            name = "timeout" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
        elif os.WEXITSTATUS(status) in (0, 3):
            name = {0: "survived", 3: "invalid"}[os.WEXITSTATUS(status)]
        last = ran[-1] if ran and name in ("killed", "timeout") else ""
        seconds = round(time.perf_counter() - start, 2)
        return {"outcome": name, "by": last, "tests_run": len(ran), "seconds": seconds}

    def run_child(
        self,
        mutant: Mutant,
        seconds: Mapping[str, float],
        items: list[pytest.Item] | None,
        write: int,
    ) -> int:
        """Install the mutant and run tests up to the first failure; return the exit status."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a time-out ends the process
        signal.setitimer(signal.ITIMER_REAL, 60)
        limit = 12 << 30  # a mutant that asks for more memory fails
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            mutant.install()
        except ValueError:  # a closure of another shape cannot be put into the function
            return 3
        if items is None and seconds:
            files = list(dict.fromkeys(name.partition("::")[0] for name in seconds))
            self.session(files, lambda found: os._exit(self.run_tests(found, seconds, write)))
        return self.run_tests(items or [], seconds, write)

    def run_tests(self, items: list[pytest.Item], seconds: Mapping[str, float], write: int) -> int:
        """Run tests, in the order of `seconds`, up to the first failure; return 1 after one."""
        found = {item.nodeid: item for item in items}
        chosen, total = [], 0.0
        for name in seconds:
            if name in found and total <= self.longest:
                chosen.append(found[name])
                total += seconds[name]
        after = [*chosen[1:], None] if chosen else []
        for item, following in zip(chosen, after, strict=True):
            os.write(write, f"{item.nodeid}\n".encode())
            signal.setitimer(signal.ITIMER_REAL, 20 + 30 * seconds[item.nodeid])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return 1
        return 0


def in_fork(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a fork of this process, which stays as it was."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with open(write, "wb") as pipe:
                pickle.dump(function(), pipe)
            status = 0
        except BaseException:
            print_line(traceback.format_exc())
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        body = pipe.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a session of pytest did not come to its end")
    return pickle.loads(body)  # noqa: S301 - from our own fork


def run_group(
    group: Group,
    mutants: list[Mutant],
    results: Path,
    until: float,
    marks: str,
    longest: float = LONGEST,
) -> None:
    """Try mutants of one group, in a fork that imports its tests, and append the outcomes."""
    digest = group.tests_digest  # before the tests are imported: they may change meanwhile

    def report(mutant: Mutant, outcome: dict[str, Any]) -> None:
        record = {**mutant.to_dict(), **outcome, "tests": digest}
        with results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if outcome["outcome"] != "killed":
            print_line(
                f"{outcome['outcome']}: {mutant.place}, line {mutant.line}\n"
                f"    - {mutant.was}\n    + {mutant.becomes}"
            )

    Runner(group, mutants, report, until, marks, longest).run()


_terminal = os.dup(2)


def print_line(text: str) -> None:
    """Print to the terminal, also while pytest captures what tests print."""
    os.write(_terminal, f"{text}\n".encode())


def lines_of_file(path: Path) -> int:
    """Return the number of lines, 0 if there is no file."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Return the latest result of each mutant, by key."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {record["key"]: record for record in map(json.loads, lines)}


Reasons = Mapping[tuple[str, str, str], tuple[str, str]]


def read_reasons() -> Reasons:
    """Return (verdict, reason) of explained survivors, by place and lines before and after."""
    found = {}
    for one in tomllib.loads(SURVIVORS.read_text()).get("survivor", []):
        if one["verdict"] not in ("equivalent", "accepted"):
            raise SystemExit(f"{SURVIVORS.name}: verdict must be equivalent or accepted: {one}")
        for becomes in one["becomes"] if isinstance(one["becomes"], list) else [one["becomes"]]:
            found[one["place"], one["was"], becomes] = one["verdict"], one["reason"]
    return found


@dataclass(frozen=True)
class Score:
    """Counts of one group or a sample of it, and its survivors with verdict and reason."""

    group: Group
    sample: str
    counts: Counter[str]
    survivors: list[tuple[Mutant, str, str]]
    slow: list[Mutant]

    @property
    def tried(self) -> int:
        """Mutants with a result that are not proved equivalent."""
        return sum(self.counts[name] for name in ("killed", "timeout", "accepted", "unexplained"))

    @property
    def rate(self) -> float:
        """Share of them that tests killed."""
        return (self.counts["killed"] + self.counts["timeout"]) / max(self.tried, 1)


def score(
    group: Group,
    results: Mapping[str, Mapping[str, Any]],
    reasons: Reasons,
    size: int | None = None,
    seed: int = 0,
) -> Score:
    """Count the results of the mutants that the present source has, or of a sample of them."""
    counts: Counter[str] = Counter()
    survivors, slow = [], []
    chosen, sample = group.mutants, "all"
    if size is not None and not all(mutant.key in results for mutant in chosen):
        keys = sampled(chosen, size, seed)
        chosen = [mutant for mutant in chosen if mutant.key in keys]
        sample = f"{len(chosen):,}, seed {seed}"
    for mutant in chosen:
        record = results.get(mutant.key)
        outcome = record["outcome"] if record else "untried"
        if outcome == "timeout":
            slow.append(mutant)
        if outcome == "survived":
            why = reasons.get((mutant.place, mutant.was, mutant.becomes), ("unexplained", ""))
            outcome = why[0]
            survivors.append((mutant, *why))
        counts[outcome] += 1
    return Score(group, sample, counts, survivors, slow)


def size_of(group: Group, sizes: Iterable[str]) -> int | None:
    """Return the size of a group's sample, from entries "N" and "GROUP=N"; None for all."""
    found = dict(one.rpartition("=")[::2] for one in sizes)
    size = found.get(group.name, found.get(""))
    return None if size is None else int(size)


def sampled(mutants: list[Mutant], size: int | None, seed: int) -> set[str]:
    """Return the keys of a sample without replacement; of all mutants if there are no more."""
    keys = {mutant.key for mutant in mutants}
    if size is None or size >= len(keys):
        return keys
    return set(random.Random(seed).sample(sorted(keys), size))


def page(scores: list[Score]) -> str:
    """Return the results page."""
    lines = [
        "# Mutants",
        "",
        "A mutant is the code of one function with one small change: a comparison, an operator, a",
        "constant, a bound, a dropped statement. Tests must fail on it.",
        "`python scripts/mutants.py` makes and tries them; its option `--page` writes this page.",
        "",
        "The kill rate is the share of tried mutants that tests kill, without those that a proof",
        "shows to be equivalent to the code. A mutant that runs into the time limit is killed.",
        "",
        "Of a large group a sample is tried, drawn without replacement from a seed. It is the same",
        "for the same code. Tests are written for what lives, so the rate is that of a sample that",
        "somebody looked at: of a fresh one fewer mutants are killed.",
        "",
        "| Functions | mutants | sample | tried | killed | of them by time limit | equivalent "
        "| accepted | unexplained | kill rate | required |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in scores:
        n, group = one.counts, one.group
        tried = sum(n.values()) - n["untried"] - n["invalid"]
        rate = f"{100 * one.rate:.1f} %" if one.tried else "–"
        lines.append(
            f"| {group.title} | {len(group.mutants):,} | {one.sample} | {tried} "
            f"| {n['killed'] + n['timeout']} | {n['timeout']} | {n['equivalent']} "
            f"| {n['accepted']} | {n['unexplained']} | {rate} | {100 * group.least:.0f} % |"
        )
    for one in scores:
        if one.survivors:
            lines += ["", f"## Survivors: {one.group.title}", ""]
        by_reason: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
        for mutant, verdict, reason in one.survivors:
            by_reason[verdict, reason].append(mutant)
        for (verdict, reason), mutants in sorted(by_reason.items()):
            lines += [f"{verdict.capitalize()}. {reason}".strip(), "", "```diff"]
            for mutant in mutants:
                lines += [f"  {mutant.place}", f"- {mutant.was}", f"+ {mutant.becomes}"]
            lines += ["```", ""]
    slow = [mutant for one in scores for mutant in one.slow]
    if slow:
        lines += ["", "## Ended by the time limit", "", "```diff"]
        for mutant in slow:
            lines += [f"  {mutant.place}", f"- {mutant.was}", f"+ {mutant.becomes}"]
        lines.append("```")
    return "\n".join(lines).rstrip() + "\n"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Mutation testing of privacy-critical functions.")
    parser.add_argument(
        "--sample",
        nargs="+",
        metavar="N|GROUP=N",
        default=(),
        help="try a sample of so many mutants of each group, or of one",
    )
    today = datetime.date.today().toordinal()
    parser.add_argument("--seed", type=int, default=today, help="of the sample; the day by default")
    parser.add_argument("--only", nargs="+", metavar="GROUP", help="groups to try; all by default")
    parser.add_argument("--match", default="*", help="pattern of MODULE:FUNCTION to try")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no mutant after these")
    parser.add_argument("--marks", default="not slow and not network and not statistical")
    parser.add_argument(
        "--seconds", type=float, default=LONGEST, help="of tests on a mutant; with fewer, more live"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="results, JSON lines")
    parser.add_argument("--page", type=Path, help="write the results page to this file")
    parser.add_argument("--list", action="store_true", help="count mutants and try none")
    return parser.parse_args()


def main() -> int:
    """Try mutants, print the rates, and return 1 if one is below its target."""
    options = arguments()
    os.chdir(ROOT)
    groups = read_groups()
    if unknown := {*(options.only or ())} - {group.name for group in groups}:
        raise SystemExit(f"no group {sorted(unknown)}; groups are {[g.name for g in groups]}")
    groups = [group for group in groups if not options.only or group.name in options.only]
    everything = [m for group in groups for m in group.mutants if fnmatch(m.place, options.match)]
    results, tried = read_results(options.results), 0
    wanted = set()
    for group in groups:
        own = [mutant for mutant in everything if mutant.group == group.name]
        wanted |= sampled(own, size_of(group, options.sample), options.seed)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    start, until = time.monotonic(), time.monotonic() + 60 * options.minutes
    for group in groups if not options.list else ():
        waiting = [m for m in everything if m.group == group.name and m.key in wanted]
        waiting = [m for m in waiting if not is_done(results.get(m.key), group)]
        if waiting and time.monotonic() < until:
            print_line(f"{group.title}: {len(waiting)} mutants to try")
            before = lines_of_file(options.results)
            run_group(group, waiting, options.results, until, options.marks, options.seconds)
            tried += lines_of_file(options.results) - before
    results = read_results(options.results)
    reasons = read_reasons()
    scores = [
        score(group, results, reasons, size_of(group, options.sample), options.seed)
        for group in groups
    ]
    for one in scores:
        counts = ", ".join(f"{n} {name}" for name, n in sorted(one.counts.items()))
        print(f"{one.group.name}: {100 * one.rate:.1f} % killed of {one.tried} ({counts})")
    minutes = (time.monotonic() - start) / 60
    print(f"{tried} mutants tried in {minutes:.1f} minutes")
    if options.page:
        options.page.write_text(page(scores))
    return int(any(one.tried and one.rate < one.group.least for one in scores))


def is_done(record: Mapping[str, Any] | None, group: Group) -> bool:
    """Return whether a result counts: survivors are tried again when their tests change."""
    if record is None:
        return False
    return record["outcome"] != "survived" or record["tests"] == group.tests_digest


if __name__ == "__main__":
    sys.exit(main())
