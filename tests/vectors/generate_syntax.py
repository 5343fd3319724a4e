"""Write syntax.json: a source for each statement and expression of Python 3.11, with its text.

A digest of code is comparable between silos only if every Python writes these texts. Run it again
after a change of :mod:`cloister.core.syntax` that is meant to change digests; every plan that was
made before is refused then.
"""

from __future__ import annotations

import json
from pathlib import Path

from cloister.core.syntax import read_syntax

SOURCES = {
    "nothing": "",
    "docstring": '"""What this is."""\n',
    "assignment": "a = b = 1\na += 2\n(c, *d), [e] = (1, 2), [3]\nx.y = z[0] = 4\n",
    "annotated": "a: int = 1\nb: str\nc.d: int = 2\n",
    "annotated lazily": "from __future__ import annotations\na: f() = 1\n",
    "annotation with a call": "a: f() = 1\ndef g(x: h(1)) -> (lambda: 2): pass\n",
    "fields": "class A(B, metaclass=M):\n    'doc'\n    a: int = 1\n    b: 'str'\n    c = 2\n",
    "function": (
        "@f\n@g(1)\ndef h(a, /, b: int, c=1, *d, e, f=2, **k) -> int:\n    'doc'\n    return a\n"
    ),
    "local annotations": "def f():\n    a: int = 1\n    b: int\n    self.c: int = 2\n",
    "async": (
        "async def f():\n    async with a as b: pass\n    async for c in d: await e\n"
        "    return [x async for x in y]\n"
    ),
    "generator": "def f():\n    x = yield\n    y = yield 1\n    yield from z\n    return\n",
    "lambda": "f = lambda a, b=1, *c, d=2, **e: (a, b)\n",
    "scopes": "def f():\n    global a\n    def g():\n        nonlocal b\n",
    "if": "if a: b\nelif c: d\nelse: e\nf = 1 if g else 2\n",
    "loops": (
        "for a in b:\n    continue\nelse:\n    c\nwhile d:\n    break\nelse:\n    pass\n"
        "for (x, y), in z: ...\n"
    ),
    "with": "with a, b as c, (d): pass\nwith (e as f, g): pass\n",
    "try": (
        "try: a\nexcept B as b: c\nexcept (D, E): raise\nexcept: raise F from g\nelse: h\n"
        "finally: i\ntry: j\nexcept* K: l\n"
    ),
    "assert and delete": "assert a, 'b'\nassert c\ndel d, e[0], f.g\n",
    "imports": (
        "import a\nimport b.c as d, e.f\nfrom g import h as i, j\nfrom . import k\n"
        "from ..l.m import n\nfrom o import *\n"
    ),
    "operators": (
        "a + b - c * d / e // f % g ** h @ i\nj << k >> l & m | n ^ o\n-p, +q, ~r, not s\n"
        "t and u or v\n"
    ),
    "comparisons": "a < b <= c == d != e > f >= g\nh is i is not j\nk in l not in m\n",
    "calls": "f(a, *b, c=1, **d)\nf()()\nf(x for x in y)\n",
    "comprehensions": (
        "[a for b in c if d if e for f in g]\n{h for i in j}\n{k: l for m in n}\n(o for p in q)\n"
    ),
    "displays": "[1, *a]\n(1,)\n()\n{1, 2}\n{}\n{1: 2, **b}\n{**c, 3: 4}\n",
    "subscripts": "a[1], a[1:2], a[::3], a[:, None], a[1:2, ..., *b], a[()], a[b:=1]\n",
    "walrus": "if (a := b): c\n",
    "match": (
        "match a:\n    case 1 | -2 | 'b': c\n    case None | True | False: d\n"
        "    case [e, *f, _]: g\n    case [*_]: g\n    case {'h': i, **j}: k\n"
        "    case L(m, n=o) if p: q\n    case (r.s as t): u\n    case 1+2j: v\n    case _: w\n"
    ),
    "numbers": (
        "0, 1, 1_000, 0x_ff, 0o17, 0b11, -1\n0.0, -0.0, 1e3, 1e999, 5e-324, 0.1, 1.\n"
        "0j, 1j, -0j, 1e999j\n0x" + "f" * 4000 + "\n"
    ),
    "constants": "True, False, None, ..., __debug__\n",
    "equal constants of other types": "0, 0.0, 0j, False, '', b''\n1, 1.0, True, 1j, '1', b'1'\n",
    "strings": (
        "x = ['a', \"b\", '''c\nd''', r'\\n', '\\n', u'e', 'f' 'g', '\\x00\\x7f\\xff', 'é',"
        " '\\U0001f600', '\\ud83d\\ude00', '\\N{EM DASH}', 'quote \\' and \"']\n"
    ),
    "bytes": "x = [b'a', rb'\\n', b'\\n', b'\\xff', b'a' b'b', b'\\'']\n",
    "f-strings": (
        "x = [f'', f'a', f'{a}', f'{a}b{c}', 'd' f'{e}' 'f', f'{g!r}{h!s}{i!a}',"
        " f'{{j}}', f'{{{k}}}']\n"
    ),
    "formats": (
        "x = [f'{a:}', f'{a:>3}', f'{a:{b}}', f'{a:{b}.{c}f}', f'{a!r:^{b}}', f'{a:%H:%M}',"
        " f'{a:x{b}y{c}z}']\n"
    ),
    "debugging f-strings": "x = [f'{a=}', f'{ a = }', f'{a=!s}', f'{a=:>3}', f'b{a+c=}']\n",
    "f-strings within": (
        "x = [f'{f\"{a}\"}', f'{a[\"b\"]}', f'{a if b else c}', f'{(lambda: 1)()}']\n"
    ),
    "f-strings of many parts": "x = (f'a{b}'\n     'c'\n     f'd{e}' rf'\\{f}' f'''\n{g}''')\n",
    "escapes in f-strings": (
        "x = [f'\\n{a}\\t', f'\\x41{a}', f'\\N{EM DASH}{a}', rf'\\n{a}', f'\\ud800{a}']\n"
    ),
    "guard": (
        "from typing import TYPE_CHECKING, Any\n"
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "if not TYPE_CHECKING:\n    c\nd = 1 if TYPE_CHECKING else 2\n"
    ),
    "guard of the module": "import typing as t\nif t.TYPE_CHECKING: import a\n",
    "guard of another": "from a import TYPE_CHECKING\nif TYPE_CHECKING: import b\n",
    "guard in a function": (
        "from typing import TYPE_CHECKING\ndef f():\n    if TYPE_CHECKING: a = 1\n    return a\n"
    ),
    "a long sum": "a = " + " + ".join(["1"] * 500) + "\n",
    "identifiers": "é = ﬁ = Ω = 1\n",
    "continued lines": "a = 1 + \\\n    2\nif a: b; c\n",
}


def vectors() -> list[dict[str, str]]:
    return [
        {"name": name, "source": source, "text": read_syntax(source.encode()).text}
        for name, source in SOURCES.items()
    ]


if __name__ == "__main__":
    path = Path(__file__).with_name("syntax.json")
    path.write_text(json.dumps(vectors(), indent=1, ensure_ascii=True) + "\n")
