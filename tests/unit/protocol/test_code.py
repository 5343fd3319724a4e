"""The digest of a task's code is of what it computes, and of what runs, not of later files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cloister.protocol.code import (
    _code,
    _followed,
    _Home,
    _is_table,
    _sources,
    _Weight,
    _weight,
    code_of,
    preload_digests,
)
from cloister.tasks import TASKS, Catalogue
from cloister.tasks.count import Count

TASK = """
from cloister.tasks.count import Count


class Counted(Count):
    name = "counted"
"""
_FOLDERS = count()


def cases(names: tuple[str, ...], table: Mapping[str, tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Return a mark for a table of cases with a name each."""
    return pytest.mark.parametrize(names, list(table.values()), ids=list(table))


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Return the digest of a class of `module` in a folder with some files; nothing is executed."""

    def of(files: dict[str, str], module: str = "pkg.task", name: str = "Counted") -> str:
        folder = tmp_path / str(next(_FOLDERS))
        for path, content in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode())
        loaded = ModuleType(module)
        *_, last = module.split(".")
        loaded.__file__ = str(folder.joinpath(*module.split(".")).with_suffix(".py"))
        if module.startswith("cloister_task_"):
            loaded.__file__ = str(folder / f"{last.removeprefix('cloister_task_')}.py")
        monkeypatch.setitem(sys.modules, module, loaded)
        kind = type(name, (Count,), {"__module__": module, "__qualname__": name})
        code = _code(kind)
        assert code is not None
        return code.digest

    return of


PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/task.py": TASK,
    "pkg/other.py": "UNUSED = 1\n",
    "pkg/sub/__init__.py": "",
    "pkg/sub/deep.py": "DEEP = 1\n",
    "pkg/helper.py": "def half(x):\n    'Return half.'\n    return x / 2\n",
    "pkg/weights.json": "[1]",
}


def with_line(line: str, **more: str) -> dict[str, str]:
    return {**PACKAGE, "pkg/task.py": line + "\n" + TASK, **more}


@cases(
    ("files", "changed", "content"),
    {
        "own file": (PACKAGE, "pkg/task.py", TASK + "    x = 1\n"),
        "import": (with_line("from pkg.helper import half"), "pkg/helper.py", "half = abs\n"),
        "relative import": (with_line("from .helper import half"), "pkg/helper.py", "half = abs\n"),
        "relative import of a module": (
            with_line("from . import helper"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "relative import from below": (
            with_line(
                "from .sub.deep import DEEP",
                **{"pkg/sub/deep.py": "from ..helper import half as DEEP\n"},
            ),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "import within a function": (
            with_line("def f():\n    from pkg.helper import half"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "import in a branch": (
            with_line("try:\n    import pkg.helper as h\nexcept ImportError:\n    h = 1"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "package": (PACKAGE, "pkg/__init__.py", "import numpy\nnumpy.sqrt = abs\n"),
        "package of an import": (
            with_line("from pkg.sub.deep import DEEP"),
            "pkg/sub/__init__.py",
            "from . import deep\ndeep.DEEP = 2\n",
        ),
        "star": (with_line("from pkg.helper import *"), "pkg/helper.py", "half = abs\n"),
        "names in __all__": (
            with_line("from pkg.sub import *", **{"pkg/sub/__init__.py": "__all__ = ['deep']"}),
            "pkg/sub/deep.py",
            "DEEP = 2\n",
        ),
        "data by the file's place": (
            with_line("W = open(__file__[:-7] + 'weights.json').read()"),
            "pkg/weights.json",
            "[2]",
        ),
        "data by resources": (
            with_line("from importlib.resources import files; W = files('pkg')"),
            "pkg/weights.json",
            "[2]",
        ),
        "data by pkgutil": (
            with_line("import pkgutil; W = pkgutil.get_data('pkg', 'weights.json')"),
            "pkg/weights.json",
            "[2]",
        ),
        "data by numpy": (
            with_line("import numpy as np; W = np.loadtxt('w.csv')", **{"pkg/data/w.csv": "1"}),
            "pkg/data/w.csv",
            "2",
        ),
        "data in a folder of another package": (
            with_line("from pathlib import Path", **{"pkg/sub/w.csv": "1"}),
            "pkg/sub/w.csv",
            "2",
        ),
        "data of its package in any case": (PACKAGE, "pkg/weights.json", "[2]"),
        "guard that is not typing's": (
            with_line(
                "from .flags import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .helper import half",
                **{"pkg/flags.py": "TYPE_CHECKING = True\n"},
            ),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "guard that another module sets": (
            with_line(
                "import typing\nfrom . import late",
                **{
                    "pkg/late.py": "import typing\ntyping.TYPE_CHECKING = True\n",
                    "pkg/used.py": "1",
                },
            ),
            "pkg/used.py",
            "2",
        ),
        "dynamic import": (
            with_line("import importlib; h = importlib.import_module('pkg.' + 'helper')"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "dynamic import by its own name": (
            with_line("from importlib import import_module as get; h = get('pkg.helper')"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "__import__": (with_line("h = __import__('pkg.helper')"), "pkg/helper.py", "half = abs\n"),
        "exec": (with_line("exec('from pkg.helper import half')"), "pkg/helper.py", "half = abs\n"),
        "eval": (with_line("h = eval('1')"), "pkg/helper.py", "half = abs\n"),
        "loaded modules": (
            with_line("import sys; h = sys.modules['pkg.helper']"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "package as a value": (
            with_line("import pkg; h = pkg.helper.half"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "package by a dotted import": (
            with_line("import pkg.other; h = pkg.helper.half"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "package within a package": (
            with_line("from pkg import sub; h = sub.deep"),
            "pkg/sub/deep.py",
            "DEEP = 2\n",
        ),
        "lazy names of a module": (
            with_line(
                "from pkg.lazy import half",
                **{"pkg/lazy.py": "def __getattr__(n):\n    return getattr(pkg.helper, n)\n"},
            ),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "lazy names by assignment": (
            with_line("from pkg.lazy import half", **{"pkg/lazy.py": "__getattr__ = g\n"}),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "lazy names by import": (
            with_line(
                "from pkg.lazy import half",
                **{"pkg/lazy.py": "from .other import UNUSED as __getattr__\n"},
            ),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "builtins of a builtin": (
            with_line("h = print.__self__"),
            "pkg/helper.py",
            "half = abs\n",
        ),
        "path of a package": (
            with_line("", **{"pkg/__init__.py": "__path__.append('elsewhere')\n"}),
            "pkg/other.py",
            "UNUSED = 2\n",
        ),
        "name that no source has": (
            with_line("from pkg.sub import made_by_somebody"),
            "pkg/other.py",
            "UNUSED = 2\n",
        ),
        "module that is compiled": (
            with_line("from pkg.fast import f", **{"pkg/fast.abi3.so": "1"}),
            "pkg/fast.abi3.so",
            "2",
        ),
        "source behind a compiled module": (
            with_line("from pkg.helper import half", **{"pkg/helper.abi3.so": "1"}),
            "pkg/helper.abi3.so",
            "2",
        ),
        "docstring that is read": (
            with_line("from .helper import half; X = len(half.__doc__)"),
            "pkg/helper.py",
            PACKAGE["pkg/helper.py"].replace("Return half", "Give half"),
        ),
        "docstring by getattr": (
            with_line("from .helper import half; X = len(getattr(half, '__doc__'))"),
            "pkg/helper.py",
            PACKAGE["pkg/helper.py"].replace("Return half", "Give half"),
        ),
        "docstring by a computed name": (
            with_line("from .helper import half; X = len(getattr(half, '__d' + name))"),
            "pkg/helper.py",
            PACKAGE["pkg/helper.py"].replace("Return half", "Give half"),
        ),
        "docstring by a format": (
            with_line("from .helper import half; X = '{0.__doc__}'.format(half)"),
            "pkg/helper.py",
            PACKAGE["pkg/helper.py"].replace("Return half", "Give half"),
        ),
        "docstring by a pattern": (
            with_line("match f:\n    case object(__doc__=d): X = d"),
            "pkg/task.py",
            "match f:\n    case object(__doc__=d): X = d  # 1\n" + TASK,
        ),
        "own docstring": (
            with_line("'''3'''\nX = int(__doc__)"),
            "pkg/task.py",
            "'''4'''\nX = int(__doc__)\n" + TASK,
        ),
        "inspect": (
            with_line("import inspect; from .helper import half; X = inspect.getdoc(half)"),
            "pkg/helper.py",
            PACKAGE["pkg/helper.py"].replace("Return half", "Give half"),
        ),
        "source lines": (
            with_line("from linecache import getline"),
            "pkg/task.py",
            "from linecache import getline  # 1\n" + TASK,
        ),
        "line numbers": (
            with_line("def f(e): return e.__traceback__.tb_lineno"),
            "pkg/task.py",
            "\ndef f(e): return e.__traceback__.tb_lineno\n" + TASK,
        ),
        "singledispatch": (
            with_line(
                "from functools import singledispatch\n@singledispatch\ndef f(a): pass\n"
                "@f.register\ndef g(a: int): pass"
            ),
            "pkg/task.py",
            "from functools import singledispatch\n@singledispatch\ndef f(a): pass\n"
            "@f.register\ndef g(a: str): pass\n" + TASK,
        ),
        "type hints": (
            with_line("from typing import get_type_hints\ndef f(a: int): pass"),
            "pkg/task.py",
            "from typing import get_type_hints\ndef f(a: str): pass\n" + TASK,
        ),
        "annotations": (
            with_line("def f(a: int): pass\nX = f.__annotations__"),
            "pkg/task.py",
            "def f(a: str): pass\nX = f.__annotations__\n" + TASK,
        ),
        "library that may read annotations": (
            with_line("from numba import njit\n@njit\ndef f(a: int): pass"),
            "pkg/task.py",
            "from numba import njit\n@njit\ndef f(a: str): pass\n" + TASK,
        ),
        "package beside its own": (
            with_line("from pkg_helpers.half import half", **{"pkg_helpers/half.py": "half = 1\n"}),
            "pkg_helpers/half.py",
            "half = 2\n",
        ),
        "source that this Python cannot read": (
            with_line("from .new import f", **{"pkg/new.py": "f = = 1\n"}),
            "pkg/new.py",
            "f = = 2\n",
        ),
    },
)
def test_what_changes_the_task_changes_the_digest(
    digest, files: dict[str, str], changed: str, content: str
) -> None:  # type: ignore[no-untyped-def]
    assert files[changed] != content
    assert digest(files) == digest(files)
    assert digest(files) != digest({**files, changed: content})


@cases(
    ("changed", "content"),
    {
        "comment": ("pkg/task.py", "# a comment\n" + TASK),
        "docstring": ("pkg/task.py", "'A docstring.'\n" + TASK),
        "end of lines": ("pkg/task.py", TASK.replace("\n", "\r\n")),
        "type-only import": (
            "pkg/task.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pkg.other\n" + TASK,
        ),
        "docstring of a package": ("pkg/__init__.py", "'A package.'\n"),
        "module that is not imported": ("pkg/other.py", "UNUSED = 2\n"),
        "package that is not imported": ("pkg/sub/__init__.py", "X = 2\n"),
        "data of a package that is not imported": ("pkg/sub/w.csv", "2"),
        "types for checkers": ("pkg/task.pyi", "X: int\n"),
        "bytecode": ("pkg/__pycache__/task.pyc", "1"),
    },
)
def test_what_changes_no_task_changes_no_digest(digest, changed: str, content: str) -> None:  # type: ignore[no-untyped-def]
    assert digest(PACKAGE) == digest({**PACKAGE, changed: content})


LONE = "cloister_task_lone"


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("from helper import half", "helper.py"),
        ("import helpers.half as h", "helpers/half.py"),
        ("from importlib import import_module; h = import_module('helper')", "helper.py"),
        ("W = open('weights.json')", "weights.json"),
        ("from pathlib import Path; W = Path(__file__).with_name('weights.json')", "weights.json"),
    ],
)
def test_what_is_beside_a_lone_file_counts_where_it_is_used(
    digest, line: str, changed: str
) -> None:  # type: ignore[no-untyped-def]
    files = {"lone.py": line + "\n" + TASK, "helper.py": "1", "helpers/half.py": "1"}
    files["weights.json"] = files["records.csv"] = "1"
    before = digest(files, LONE)
    assert before != digest({**files, changed: "2"}, LONE)
    assert before == digest({**files, "records.csv": "2"}, LONE)  # nobody named it


def test_the_digest_names_module_and_class(digest) -> None:  # type: ignore[no-untyped-def]
    files = {"a.py": TASK, "b.py": TASK}
    assert digest(files, "a") == digest(files, "a")
    assert digest(files, "a") != digest(files, "b")
    assert digest(files, "a") != digest(files, "a", "Other")


def test_a_class_that_a_function_made_counts_with_all_files(digest) -> None:  # type: ignore[no-untyped-def]
    """Its arguments may come from any of them."""
    name = "made.<locals>.Counted"
    changed = {**PACKAGE, "pkg/other.py": "UNUSED = 2\n"}
    assert digest(PACKAGE, name=name) != digest(changed, name=name)


@pytest.mark.parametrize("line", ["import cloister", "from cloister import Schema, DPKMeans"])
def test_names_that_the_package_looks_up_are_followed_to_all_of_it(digest, line: str) -> None:  # type: ignore[no-untyped-def]
    """A task of others takes what it needs from the module that has it."""
    files = with_line(line)
    commented = {**files, "pkg/task.py": files["pkg/task.py"] + "# a comment\n"}
    assert digest(files) != digest(commented)


def test_a_file_that_changes_after_a_process_began_is_not_its_code(tmp_path: Path) -> None:
    file = tmp_path / "counted_once.py"
    file.write_text(TASK)
    tasks = Catalogue({"counted": f"{file}:Counted"})
    preload_digests(tasks, ["counted"])
    first = code_of(tasks["counted"](n_features=1))  # type: ignore[call-arg]
    file.write_text(TASK.replace("counted", "recounted"))
    assert tasks["counted"].name == "counted"
    _code.cache_clear()
    assert code_of(tasks["counted"](n_features=1)) == first  # type: ignore[call-arg]


def test_a_task_that_cannot_be_imported_stops_no_start(tmp_path: Path) -> None:
    file = tmp_path / "broken_task.py"
    file.write_text("raise OSError\n")
    preload_digests(Catalogue({"broken": f"{file}:Broken"}), ["broken", "unknown"])


def test_a_task_of_ours_has_the_version_that_is_installed() -> None:
    code = code_of(Count(n_features=1))
    assert code is not None
    assert code.distribution == "cloister"


def test_whether_loops_are_compiled_is_no_other_code() -> None:
    """A silo with a compiler and one without sum the same, and must not refuse each other."""
    found = _sources(TASKS["fastlloyd"])
    assert "cloister.core.compiled" in found
    assert not [name for name in found if "_native" in name]


@pytest.mark.parametrize("name", TASKS)
def test_the_text_of_few_sources_is_the_code_of_a_task(name: str) -> None:
    """None of them names an estimator, a command or a report, and none needs its bytes."""
    kind = TASKS[name]
    home = _Home.of(kind)
    assert home is not None
    found = _followed(home)
    heavy = {module for module, path in found.items() if _weight(home, module, path)}
    assert heavy == set(), "what is refused needs a reason in cloister.protocol.code"
    assert max(_weight(home, module, path) for module, path in found.items()) is _Weight.TEXT
    sources = _sources(kind)
    assert len(sources) <= 40
    rooms = ("core", "hazmat", "privacy", "tasks")
    above = {m for m in sources if not m.startswith(tuple(f"cloister.{r}" for r in rooms))}
    protocol = ("cloister.protocol", "cloister.protocol.task", "cloister.protocol.rows")
    assert above <= {"cloister", *protocol}
    assert "cloister.core.catalogue" not in sources


def test_the_catalogue_is_a_table() -> None:
    """So a line more changes the digest of no task."""
    assert _is_table(Path(sys.modules["cloister.core.catalogue"].__file__ or ""))
    assert not _is_table(Path(sys.modules["cloister.tasks"].__file__ or ""))


def test_a_digest_imports_nothing_and_an_agent_loads_no_estimator() -> None:
    """The modules of an agent, and a task that most policies allow, in a fresh process."""
    code = """
import sys
import cloister.federation.silo.main
from cloister.protocol.code import preload_digests
from cloister.tasks import installed
tasks = installed()
tasks["describe"]
before = {name for name in sys.modules if name.startswith("cloister")}
preload_digests(tasks, ["describe"])
after = {name for name in sys.modules if name.startswith("cloister")}
heavy = {"sklearn", "pandas", "pyarrow", "matplotlib", "scipy.stats", "cloister.estimators"}
print(sorted(after - before), sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]
