"""Shared by tests of benchmarks: a file of that folder as a module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def benchmark_named() -> Callable[[str], ModuleType]:
    """Imports a benchmark by the name of its file."""

    def imported(name: str) -> ModuleType:
        path = Path(__file__).parents[3] / "benchmarks" / f"{name}.py"
        spec = spec_from_file_location(f"benchmarks_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return imported
