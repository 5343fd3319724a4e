"""The canonical text of a source: equal for equal computations, on every Python."""

from __future__ import annotations

import json
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloister.core.syntax import Import, read_syntax

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "tests/vectors/syntax.json").read_text())
GUARDED = "from typing import TYPE_CHECKING\n"


def cases(names: tuple[str, ...], table: Mapping[str, tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Return a mark for a table of cases with a name each."""
    return pytest.mark.parametrize(names, list(table.values()), ids=list(table))


def text(source: str) -> str:
    return read_syntax(source.encode("utf-8", "surrogatepass")).text


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_every_python_writes_the_same_text(vector: dict[str, str]) -> None:
    """Continuous integration runs this on each version that a wheel is built for."""
    assert text(vector["source"]) == vector["text"]


@cases(
    ("before", "after"),
    {
        "comment": ("a = 1", "# why\na = 1  # because"),
        "layout": ("a = f(1, 2)", "a = f(\n    1,\n    2,\n)\n\n"),
        "parentheses": ("a = 1 + 2 * 3", "a = (1 + (2 * 3))"),
        "spelling of constants": ("a = 255, 'b', 1e3", 'a = 0xff, "b", 1000.0'),
        "docstring of a module": ("a = 1", "'''What it is.'''\na = 1"),
        "docstring of a function": ("def f(): return 1", "def f():\n    'doc'\n    return 1"),
        "docstring of a class": ("class A:\n    b = 1", "class A:\n    'doc'\n    b = 1"),
        "text below a field": ("class A:\n    b: int", "class A:\n    b: int\n    'what b is'"),
        "annotations of a function": (
            "def f(a, *b, c=1, **d): pass",
            "def f(a: int, *b: str, c: x.Y[int | None] = 1, **d: 'Z') -> list[int]: pass",
        ),
        "annotation of a constant": ("a = 1", "a: int = 1"),
        "annotation of a name": ("a = 1", "b: int\na = 1"),
        "annotation of an attribute": (
            "def f(self):\n    self.a = 1",
            "def f(self):\n    self.a: int = 1",
        ),
        "lazy annotation": (
            "from __future__ import annotations\ndef f(a): pass",
            "from __future__ import annotations\ndef f(a: g(1)) -> (lambda: 2): pass",
        ),
        "type-only imports": ("a = 1", GUARDED + "if TYPE_CHECKING:\n    import b\na = 1"),
        "type-only imports of a module": (
            "import typing\na = 1",
            "import typing\nif typing.TYPE_CHECKING:\n    from b import c\na = 1",
        ),
        "type-only imports under an alias": (
            "a = 1",
            "from typing import TYPE_CHECKING as T\nif T:\n    import b\na = 1",
        ),
        "alternative of type-only imports": (
            "import c",
            GUARDED + "if TYPE_CHECKING:\n    import b\nelse:\n    import c",
        ),
        "not type-only": ("import c", GUARDED + "if not TYPE_CHECKING:\n    import c"),
        "type-only names of a class": (
            "class A:\n    b = 1",
            GUARDED + "class A:\n    if TYPE_CHECKING:\n        c: int\n    b = 1",
        ),
        "encoding": ("a = 'é'", "# -*- coding: utf-8 -*-\na = 'é'"),
    },
)
def test_how_it_is_written_leaves_no_trace(before: str, after: str) -> None:
    assert text(before) == text(after)


@cases(
    ("before", "after"),
    {
        "constant": ("a = 1", "a = 2"),
        "zero and False": ("a = 0", "a = False"),
        "integer and real": ("a = 1", "a = 1.0"),
        "True and 1": ("a = True", "a = 1"),
        "real and complex": ("a = 0.0", "a = 0j"),
        "negative zero": ("a = 0.0", "a = -0.0"),
        "text and bytes": ("a = 'b'", "a = b'b'"),
        "text and number": ("a = '1'", "a = 1"),
        "None and its name": ("a = None", "a = 'None'"),
        "no value and None": ("def f(): return", "def f(): return None"),
        "dots": ("a = ...", "a = '...'"),
        "raw text": (r"a = '\n'", r"a = r'\n'"),
        "surrogates": (r"a = '\ud83d\ude00'", r"a = '\U0001f600'"),
        "large integers": (f"a = 0x{'f' * 5000}", f"a = 0x{'f' * 4999}e"),
        "last bit of a real": ("a = 0.1", "a = 0.10000000000000002"),
        "operator": ("a = b < c", "a = b <= c"),
        "precedence": ("a = b * (c + d)", "a = b * c + d"),
        "order": ("a = 1\nb = a", "b = a\na = 1"),
        "default": ("def f(a=1): pass", "def f(a=2): pass"),
        "default of a lambda": ("f = lambda a=1: a", "f = lambda a=2: a"),
        "default of a keyword": ("def f(*, a, b=1): pass", "def f(*, a=1, b): pass"),
        "kind of a parameter": ("def f(a, /, b): pass", "def f(a, b): pass"),
        "decorator": ("@g\ndef f(): pass", "def f(): pass"),
        "order of decorators": ("@g\n@h\ndef f(): pass", "@h\n@g\ndef f(): pass"),
        "assertion": ("assert a", "pass"),
        "star": ("f(*a)", "f(a)"),
        "walrus": ("if (a := 1): pass", "if 1: pass"),
        "field": ("class A:\n    b: int = 1", "class A:\n    b = 1"),
        "rule of a field": (
            "class A:\n    b: Annotated[int, Range(1)]",
            "class A:\n    b: Annotated[int, Range(2)]",
        ),
        "field without a value": ("class A:\n    b: int", "class A:\n    pass"),
        "order of fields": (
            "class A:\n    b: int\n    c: int",
            "class A:\n    c: int\n    b: int",
        ),
        "field below a condition": (
            "class A:\n    if b:\n        c: int",
            "class A:\n    if b:\n        c: str",
        ),
        "lazy fields": (
            "from __future__ import annotations\nclass A:\n    b: int",
            "from __future__ import annotations\nclass A:\n    b: str",
        ),
        "when fields are evaluated": (
            "class A:\n    b: int",
            "from __future__ import annotations\nclass A:\n    b: int",
        ),
        "walrus in an annotation": ("def f(a: int): pass", "def f(a: (b := 1)): pass"),
        "call in an annotation": ("a: int = 1", "a: g() = 1"),
        "local name": (
            "def f():\n    return a",
            "def f():\n    a: int\n    return a",
        ),
        "f-string and text": ("a = f'{b}'", "a = '{b}'"),
        "conversion": ("a = f'{b!r}'", "a = f'{b!s}'"),
        "format": ("a = f'{b:>3}'", "a = f'{b:<3}'"),
        "braces": ("a = f'{{b}}'", "a = f'{b}'"),
        "text of an f-string": ("a = f'b{c}'", "a = f'{c}b'"),
        "pattern": ("match a:\n case None: b", "match a:\n case False: b"),
        "capture": ("match a:\n case c: b", "match a:\n case _: b"),
        "import": ("import a", "import b as a"),
        "place of an import": ("from a import b", "from .a import b"),
        "alias": ("from a import b", "from a import c as b"),
        "generator": ("def f():\n    pass", "def f():\n    yield"),
        "asynchronous": ("def f(): pass", "async def f(): pass"),
        "else of a loop": (
            "for a in b:\n    c\nelse:\n    d",
            "for a in b:\n    c\nd",
        ),
        "guard of another module": (
            "from a import TYPE_CHECKING",
            "from a import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b",
        ),
        "guard without an import": ("a = 1", "a = 1\nif TYPE_CHECKING:\n    import b"),
        "guard that is set": (
            GUARDED + "TYPE_CHECKING = True",
            GUARDED + "TYPE_CHECKING = True\nif TYPE_CHECKING:\n    b = 1",
        ),
        "guard of another alias": (
            "from a import X as TYPE_CHECKING\n" + GUARDED,
            "from a import X as TYPE_CHECKING\n" + GUARDED + "if TYPE_CHECKING:\n    b = 1",
        ),
        "guard that a star may bring": (
            GUARDED + "from a import *",
            GUARDED + "from a import *\nif TYPE_CHECKING:\n    b = 1",
        ),
        "guard that is a parameter": (
            GUARDED + "class A:\n    f = lambda TYPE_CHECKING: 1",
            GUARDED
            + "class A:\n    f = lambda TYPE_CHECKING: 1\n    if TYPE_CHECKING:\n        b = 1",
        ),
        "guard set from outside": (
            "import typing\ntyping.TYPE_CHECKING = True",
            "import typing\ntyping.TYPE_CHECKING = True\nif typing.TYPE_CHECKING:\n    b = 1",
        ),
        "guard set by name": (
            "import typing\nsetattr(typing, 'TYPE_CHECKING', True)",
            "import typing\nsetattr(typing, 'TYPE_CHECKING', True)\n"
            "if typing.TYPE_CHECKING:\n    b = 1",
        ),
        "guard set as a global": (
            GUARDED + "globals().update(a=1)",
            GUARDED + "globals().update(a=1)\nif TYPE_CHECKING:\n    b = 1",
        ),
        "guard of typing's namesake": (
            "import a as typing",
            "import a as typing\nif typing.TYPE_CHECKING:\n    b = 1",
        ),
        "guard and more": (GUARDED, GUARDED + "if TYPE_CHECKING or a:\n    b = 1"),
        "not the guard": (GUARDED, GUARDED + "if not TYPE_CHECKING:\n    b = 1"),
        "names that a guard makes local": (
            GUARDED + "def f():\n    return a",
            GUARDED + "def f():\n    if TYPE_CHECKING:\n        a = 1\n    return a",
        ),
        "generator behind a guard": (
            GUARDED + "def f():\n    return a",
            GUARDED + "def f():\n    if TYPE_CHECKING:\n        yield\n    return a",
        ),
    },
)
def test_what_it_computes_leaves_a_trace(before: str, after: str) -> None:
    assert text(before) != text(after)


def test_a_guard_is_false_wherever_it_is_used() -> None:
    assert text(GUARDED + "a = 1 if TYPE_CHECKING else 2") == text("a = 1 if False else 2")


def test_imports_are_those_that_run() -> None:
    source = GUARDED + (
        "if TYPE_CHECKING:\n    import a\ndef f():\n    from b.c import d as e\n"
        "try:\n    from . import g\nexcept ImportError:\n    import h.i\n"
        "match j:\n    case 1:\n        from ..k import m\n"
    )
    assert set(read_syntax(source.encode()).imports) == {
        Import("b.c", "d", alias="e"),
        Import("", "g", 1),
        Import("h.i"),
        Import("k", "m", 2),
    }


def test_words_tell_attributes_and_computed_names() -> None:
    source = "a.b; getattr(c, '__doc__'); getattr(d, e); '{0.__dict__}'.format(f)"
    words = read_syntax(source.encode()).words
    assert {"a", ".b", ".__doc__", "getattr()", ".__dict__"} <= words
    assert "getattr()" not in read_syntax(b"getattr(a, 'b')").words
    assert "getattr()" in read_syntax(b"map(getattr, a, b)").words
    assert "getattr()" in read_syntax(b"(a + b).format(c)").words


def test_our_sources_keep_their_text_without_their_comments() -> None:
    for path in sorted((ROOT / "src/cloister/tasks").rglob("*.py")):
        lines = path.read_text().splitlines(keepends=True)
        with path.open("rb") as file:
            for token in reversed(list(tokenize.tokenize(file.readline))):
                if token.type == tokenize.COMMENT:
                    row, column = token.start
                    lines[row - 1] = lines[row - 1][:column] + "\n"
        assert text("".join(lines)) == read_syntax(path.read_bytes()).text, path
