"""The examples in docstrings run and print what they say; every parameter is documented."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

import cloister
from cloister import estimators
from cloister.tasks.options import options_of

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


# Parameters ---------------------------------------------------------------------------------------

ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : .*)?$")
ELSEWHERE = re.compile(r"\b[Aa]s (?:for|in) .*?:(?:class|func|meth):`~?([\w.]+)`", re.DOTALL)


def described(text: str) -> dict[str, str]:
    """Return what the Parameters section of a docstring says of each name."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", text, re.S | re.M)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.group(1).splitlines() if section else ():
        if entry := ENTRY.match(line):
            names = [name.lstrip("*") for name in entry.group(1).split(", ")]
            found |= dict.fromkeys(names, "")
        found |= {name: f"{found[name]}\n{line}" for name in names}
    return found


def documentation(kind: Any) -> dict[str, str]:
    """Return what a class says of its parameters, and what those that it is made of say."""
    parts = reversed(kind.__mro__) if inspect.isclass(kind) else [kind]
    declared = {one.name: one.help for one in options_of(kind)} if hasattr(kind, "Options") else {}
    return declared | {
        k: v for part in parts for k, v in described(inspect.cleandoc(part.__doc__ or "")).items()
    }


def undocumented(kind: Any) -> set[str]:
    """Return the parameters of which neither the docstring nor the place that it names speaks."""
    own = described(inspect.cleandoc(kind.__doc__ or ""))
    absent = set()
    for name in inspect.signature(kind).parameters:
        places = ELSEWHERE.findall(own.get(name, ""))
        if name not in own or not all(name in documentation(found(kind, p)) for p in places):
            absent.add(name)
    return absent


def found(kind: Any, path: str) -> Any:
    """Return what a reference in a docstring names: from anywhere, or of the same module."""
    near = getattr(importlib.import_module(kind.__module__), path, None)
    return near if near is not None else pkgutil.resolve_name(path)


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_parameter_is_documented_here_or_where_the_docstring_says(name: str) -> None:
    assert undocumented(getattr(estimators, name)) == set()


def test_a_parameter_that_nobody_documents_is_noticed() -> None:
    def one(shown: int, epsilon: float, reach: float, absent: int) -> None:
        """Do something.

        Parameters
        ----------
        shown : int
        epsilon, reach
            As for every :class:`~cloister.estimators.base.PrivateEstimator`.
        """

    assert undocumented(one) == {"reach", "absent"}
