"""Shared by all tests: repeatable examples, one thread per process, and where public data lie."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import settings

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy: small products gain nothing from threads

# Numbers of examples belong to the profiles; a test that sets its own says why.
settings.register_profile("ci", derandomize=True, max_examples=20, deadline=None, database=None)
settings.register_profile("nightly", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# What a folder of tests costs or needs; a test may carry more marks of its own.
MARKS = {
    "slow": ("chaos", "docs", "examples", "experiments", "flare", "mpi", "statistical"),
    "network": ("chaos", "federation", "flare", "mpi", "service", "silo"),
    "statistical": ("statistical",),
    "nightly": ("browser", "chaos", "lab", "statistical"),
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no folder of which the gate selects nothing; `make collect` imports all."""
    own = collection_path.relative_to(config.rootpath).parts
    if config.option.markexpr == "not nightly" and not set(MARKS["nightly"]).isdisjoint(own):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test by its folder."""
    for item in items:
        own = item.path.relative_to(config.rootpath).parts
        for mark, folders in MARKS.items():
            if any(folder in own for folder in folders):
                item.add_marker(mark)


def pytest_collection_finish() -> None:
    """Keep what was collected out of every later search for garbage: it stays until the end.

    Searches are rarer than in a program that runs for long, since most of them find nothing.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache and a ledger of our own: what a user's hold would change what a command does.

    A command charges a ledger in the folder of its results, as if each test were a user.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("CLOISTER_LEDGER", "out/ledger.db")
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public benchmark tables beside the checkout; skips where there is none."""
    folder = Path(__file__).resolve().parents[1] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("public benchmark tables are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], Any]:
    """A function that imports a second implementation, which only tests need.

    Without it the test is skipped. The nightly run sets CLOISTER_REQUIRE_ORACLES, and there the
    test fails: an oracle that is skipped everywhere is none.
    """
    required = os.environ.get("CLOISTER_REQUIRE_ORACLES", "0") not in {"", "0"}
    return import_module if required else pytest.importorskip


# What makes a process behave as if the laboratory were not installed.
_WITHOUT_LAB = """
import importlib.metadata as metadata, os, sys
sys.path = [place for place in sys.path if not os.path.isdir(os.path.join(place, "cloister_lab"))]
found = metadata.entry_points
metadata.entry_points = lambda **k: [e for e in found(**k) if "cloister_lab" not in e.value]
"""


@pytest.fixture(scope="session")
def without_lab() -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs code, with its arguments, in a process that has no laboratory."""

    def run(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", _WITHOUT_LAB + code, *argv]
        return subprocess.run(command, capture_output=True, text=True)

    return run


def _reachable(root: object) -> list[object]:
    """Return every object that attributes, containers, closures and bound methods lead to.

    Code is not followed (modules, classes, globals of functions): what two parties in one process
    share by importing the same package is not a path from one to the other.
    """
    found: dict[int, object] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in found or isinstance(thing, type | ModuleType):
            continue
        found[id(thing)] = thing
        if isinstance(thing, FunctionType):
            waiting += [cell.cell_contents for cell in thing.__closure__ or ()]
            waiting += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        else:
            waiting += gc.get_referents(thing)
    return list(found.values())


@pytest.fixture(scope="session")
def reachable() -> Callable[[object], list[object]]:
    """A function from an object to everything it holds."""
    return _reachable
