"""Which library lives where, who may create randomness or print, and what an import loads.

Which room may import which is in pyproject.toml, under importlinter.

The tree is read with ``ast``; nothing is imported, but for the check of what ``import cloister``
pulls in, which runs in a process of its own.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "cloister"
UNIT = PACKAGE.parents[1] / "tests" / "unit"
MODULES = {
    ".".join(("cloister", *path.relative_to(PACKAGE).with_suffix("").parts)): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# Third-party libraries and the modules that may import them; numpy is welcome everywhere.
LIBRARIES = {
    "cryptography": {"core.randomness", "hazmat", "federation.pki"},
    "scipy": {
        "privacy",
        "audit",
        "tasks.regression",
        "tasks.survival",
        "tasks.tables",
        "estimators.synthesiser",
    },
    "formulaic": {"tasks.regression.parse"},
    "dp_accounting": {"privacy.accounting"},
    "sqlalchemy": {"data.sources", "federation.service.store"},
    "pydantic": {
        "app.request",
        "data.schema",
        "federation.settings",
        "federation.service.app",
    },
    "pydantic_core": {"app.release"},
    "pandas": {
        "audit.sources",
        "data.samples",
        "data",
        "cli",
        "tasks.patterns.association",
        "tasks.patterns.apriori",
        "tasks.synthesis",
        "estimators.association",
        "estimators.horizon",
        "estimators.measures",
        "estimators.prepare",
        "estimators.record_functions",
        "estimators.results",
        "estimators.survival",
        "estimators.scorecard",
        "privacy.ledger",
        "estimators.table",
        "estimators.synthesiser",
        "shares.inference.export",
        "shares.linking.found",
        "app.report.notebook",
    },
    "polars": {"data"},
    "python_calamine": {"data"},
    "pyarrow": {"data", "cli", "audit.sources"},
    "sklearn": {
        "estimators",
        "cli",
        "testing",
        "shares.inference.export",
        "shares.inference.linear",
    },
    "rich": {"cli", "app.progress"},
    "IPython": {"app.progress"},
    "fastapi": {"federation.service", "shares.inference.service"},
    "starlette": {"federation.service", "shares.inference.service", "console"},
    "uvicorn": {"federation.service.server", "console.server"},
    "websockets": {"federation.transports.http"},
    "prometheus_client": {"federation.service.app"},
    "tomli_w": {"data.schema", "federation.local", "cli.site"},
    "httpx": {"federation.service.client"},
    "mpi4py": {"federation.transports.mpi", "cli.mpi"},
    "nvflare": {"federation.flare"},
    "matplotlib": {
        "app.report",
        "audit",
        "estimators.horizon",
        "estimators.results",
        "shares.linking.found",
    },
    "jinja2": {"core.html"},
    "torch": {"estimators.federated_learning"},
    "distributed": {"data.dask"},
    "onnx": {"shares.inference.imports", "shares.inference.export"},
    "shtab": {"cli.completion"},
    "tenseal": {"shares.inference.ckks"},
}
LAZY = {
    "torch",
    "distributed",
    "onnx",
    "shtab",
    "tenseal",
    "mpi4py",
    "dp_accounting",
    "IPython",
    "jinja2",
    "matplotlib",
    "pandas",
    "polars",
    "pyarrow",
}


@cache
def tree_of(name: str) -> ast.Module:
    """Return a module, read once for all rules."""
    return ast.parse(MODULES[name].read_text())


@cache
def imports(name: str) -> tuple[tuple[str, bool], ...]:
    """Return every name that a module imports with whether it is imported when the module is."""
    return tuple(_imports(tree_of(name)))


@cache
def calls(name: str) -> tuple[tuple[str, int], ...]:
    """Return what a module calls, as it is written, and where."""
    return tuple(
        (ast.unparse(node.func), node.lineno)
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Call)
    )


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
    while waiting:
        node, at_import = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            assert node.module is not None
            yield from ((f"{node.module}.{alias.name}", at_import) for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ):
            at_import = False
        # No expression has an import in it.
        waiting += [
            (inner, at_import)
            for inner in ast.iter_child_nodes(node)
            if isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]


def unit(name: str) -> str:
    """Return the room of a module of ours: ``cloister.tasks.count.Count`` is of ``tasks``."""
    return name.split(".")[1]


def among(name: str, allowed: set[str]) -> bool:
    inner = name.removeprefix("cloister.")
    return any(inner == entry or inner.startswith(entry + ".") for entry in allowed)


INNER = [name for name in MODULES if name != "cloister.__init__"]


def test_quick_names_tests_that_are_there() -> None:
    """``make quick`` is not part of the gate: a file that was renamed would end it."""
    root = UNIT.parents[1]
    text = (root / "Makefile").read_text().replace("\\\n", " ")
    (named,) = (line for line in text.splitlines() if line.startswith("QUICK := "))
    paths = [word for word in named.split() if word.startswith("tests/")]
    assert len(paths) > 10
    assert not [path for path in paths if not (root / path).exists()]


def test_unit_tests_stand_where_their_modules_do() -> None:
    folders = {path.parent for path in UNIT.rglob("test_*.py")}
    strange = [
        str(f.relative_to(UNIT)) for f in folders if not (PACKAGE / f.relative_to(UNIT)).is_dir()
    ]
    assert not strange


def test_a_library_is_imported_in_its_one_place() -> None:
    for name in list(MODULES):
        for imported, at_import in imports(name):
            library = imported.split(".")[0]
            if library == "cloister" or library in sys.stdlib_module_names or library == "numpy":
                continue
            assert library in LIBRARIES, f"{name} imports {library}, which has no place yet"
            assert among(name, LIBRARIES[library]), f"{name} imports {library}"
            assert not (at_import and library in LAZY), f"{name} must import {library} inside"


def test_nobody_imports_the_testing_kit() -> None:
    for name in list(MODULES):
        for imported, _ in imports(name):
            assert not imported.startswith("cloister.testing"), f"{name} imports {imported}"


def test_the_product_imports_nothing_of_the_laboratory() -> None:
    for name in list(MODULES):
        for imported, _ in imports(name):
            assert not imported.startswith("cloister_lab"), f"{name} imports {imported}"


# Names that create randomness. numpy's generators are for public choices and simulation.
SECRET = {"os.urandom", "os.getrandom", "secrets", "uuid.uuid4", "random.SystemRandom"}
SEEDED = {"default_rng", "RandomState", "Generator", "PCG64", "MT19937", "Philox", "SFC64"}


def test_only_randomness_creates_randomness() -> None:
    for name in [n for n in INNER if n != "cloister.core.randomness"]:
        for imported, _ in imports(name):
            top = imported.split(".")[0]
            assert top not in {"secrets", "random"}, f"{name} imports {imported}"
            assert imported not in SECRET, f"{name} imports {imported}"
        simulation = unit(name) == "testing"
        for called, line in calls(name):
            assert called not in SECRET, f"{name}:{line} calls {called}"
            of_numpy = called.startswith(("np.random.", "numpy.random."))
            assert simulation or not of_numpy, f"{name}:{line} calls {called}"
            assert called.rpartition(".")[2] not in SEEDED or simulation, f"{name}:{line}"


def test_nobody_prints_but_the_command_line() -> None:
    for name in [n for n in INNER if unit(n) != "cli"]:
        for called, line in calls(name):
            assert called != "print", f"{name}:{line} prints"


def test_json_is_written_without_words_that_are_not_json() -> None:
    """Without ``allow_nan=False`` NaN is written, which other readers of JSON refuse."""
    lab = PACKAGE.parents[1] / "lab" / "src"
    for path in (*MODULES.values(), *lab.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "json", f"{path.name}:{node.lineno} hides the module"
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("dump", "dumps")  # few, of which the text is made
                and ast.unparse(node.func) in ("json.dump", "json.dumps")
            ):
                strict = "allow_nan=False" in map(ast.unparse, node.keywords)
                assert strict, f"{path.name}:{node.lineno} may write NaN"


HEAVY = (
    "sklearn pandas pyarrow polars scipy matplotlib sqlalchemy dp_accounting pydantic rich jinja2"
)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import cloister", HEAVY),
        # a silo agent and the aggregator: no tables, no estimator, no report, no ledger yet
        (
            "import cloister.protocol.client, cloister.protocol.aggregator, cloister.secagg.masks",
            "sklearn pandas pyarrow polars matplotlib sqlalchemy dp_accounting pydantic rich",
        ),
        (
            "from cloister import run_job, Schema",
            "sklearn pandas pyarrow polars matplotlib rich jinja2",
        ),
        (
            "from cloister import DPKMeans",
            "sqlalchemy fastapi matplotlib polars dp_accounting jinja2 "
            "cloister.estimators.forest cloister.tasks.supervised.forest",
        ),
        ("from cloister import DPNaiveBayes", "sqlalchemy cloister.estimators.forest"),
        ("from cloister.cli import main; show(main, '--help')", f"numpy cryptography {HEAVY}"),
        (
            "from cloister.cli import main; show(main, 'silo', '--help')",
            "sklearn scipy pandas pyarrow sqlalchemy rich fastapi",
        ),
        (
            "from cloister.cli import main; show(main, 'doctor', '--help')",
            "sklearn scipy pandas pyarrow fastapi",
        ),
        (
            "import cloister.federation.silo.main",
            "sklearn scipy pandas pyarrow polars matplotlib sqlalchemy dp_accounting rich jinja2 "
            "fastapi cloister.shares",
        ),
        (
            "import cloister.federation.service.main",
            "sklearn scipy pandas pyarrow polars matplotlib dp_accounting rich jinja2",
        ),
    ],
)
def test_an_import_pulls_in_no_more_than_it_needs(statement: str, absent: str) -> None:
    code = f"""
import contextlib, io, sys
def show(main, *argv):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
        main(argv)
    assert "usage" in said.getvalue()
{statement}
print(*sorted(set('{absent}'.split()) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_importing_touches_no_file_socket_environment_or_seed() -> None:
    code = """
import builtins, os, socket, sys
import numpy  # looks at the environment by itself
before = numpy.random.get_state()[1].tolist()
def refuse(*args, **kwargs):
    raise RuntimeError("a side effect at import")
builtins.open = socket.socket = os.getenv = os.urandom = refuse
type(os.environ).__getitem__ = refuse
import cloister, cloister.core.errors
assert numpy.random.get_state()[1].tolist() == before
print("quiet")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "quiet", done.stderr
