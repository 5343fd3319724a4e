"""The examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import cloister

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(cloister.__path__, "cloister.")
    if not any(part.startswith("_") for part in module.name.split("."))
)


@pytest.mark.parametrize("name", ["cloister", *MODULES])
def test_examples_of_a_module_print_what_they_say(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=OPTIONS).failed == 0


def test_what_people_call_has_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = {
        test.name
        for name in ("cloister.estimators.kmeans", "cloister.testing")
        for test in finder.find(importlib.import_module(name))
        if test.examples
    }
    assert "cloister.estimators.kmeans.DPKMeans" in with_examples
    assert "cloister.testing.check_transport" in with_examples
