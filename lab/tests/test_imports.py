"""What the laboratory imports: the product through its front, and each library in its place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "cloister_lab"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# Methods that run in a plan must not need what draws and measures them.
LAYERS = (
    "events",
    "lloyd",
    "tasks",
    "curator",
    "estimators",
    "metrics",
    "parties",
    "audit",
    "experiments",
    "commands",
)
# Third-party libraries and the modules that may import them; numpy is welcome everywhere.
LIBRARIES = {
    "scipy": {"metrics", "audit", "experiments"},
    "sklearn": {"metrics", "experiments", "curator", "estimators"},
    "pandas": {"experiments", "commands"},
    "rich": {"experiments", "commands"},
    "matplotlib": {"experiments"},
    "PIL": {"experiments"},
    "joblib": {"experiments"},
    "dp_accounting": {"events"},
    "threadpoolctl": {"experiments", "curator"},
    "mpi4py": {"experiments.mpi_kmeans"},
    "jax": {"experiments.spu_kmeans"},  # a script of another environment
    "spu": {"experiments.spu_kmeans"},
    "diffprivlib": {"experiments.diffprivlib_models"},  # a script of another environment
}


def imports(path: Path) -> Iterator[str]:
    """Yield every imported name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") > 1])
def test_methods_need_no_experiment(name: str) -> None:
    here = LAYERS.index(name.split(".")[1])
    for imported in imports(MODULES[name]):
        if imported.startswith("cloister_lab."):
            assert LAYERS.index(imported.split(".")[1]) <= here, f"{name} imports {imported}"


@pytest.mark.parametrize("name", list(MODULES))
def test_a_library_is_imported_in_its_place(name: str) -> None:
    inner = name.removeprefix("cloister_lab.")
    for imported in imports(MODULES[name]):
        library = imported.split(".")[0]
        if library in {"cloister", "cloister_lab", "numpy"} | set(sys.stdlib_module_names):
            continue
        assert any(inner.startswith(place) for place in LIBRARIES[library]), (name, imported)


def test_looking_a_task_up_loads_no_experiment() -> None:
    code = """
import sys
from cloister.tasks import installed
installed()["balcan"]
heavy = {"pandas", "matplotlib", "cloister_lab.experiments", "cloister_lab.curator"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
