"""Names that moved work for one release, and say where they are now."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module

import pytest

from cloister import estimators
from cloister.core.deprecated import LAB, MODULES, NAMES, STAY

Run = Callable[..., subprocess.CompletedProcess[str]]
OPTIONAL = {
    "cloister.federation.flare.controller",
    "cloister.federation.flare.executor",
    "cloister.federation.flare.transport",
}


@pytest.mark.parametrize("old", MODULES)
def test_a_module_is_found_under_its_old_name(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if MODULES[old] in OPTIONAL:
        pytest.importorskip("nvflare")
    package, _, name = old.rpartition(".")
    if package == "cloister.estimators" and name in estimators.__all__:
        # the old module hides a function of that name, which other tests call
        monkeypatch.setattr(estimators, name, getattr(estimators, name))
    sys.modules.pop(old, None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        module = import_module(old)
    assert module is import_module(MODULES[old])
    assert module.__spec__ is not None
    assert module.__spec__.name == MODULES[old]
    told = [str(w.message) for w in seen if w.category is DeprecationWarning]
    assert (f"{old} is {MODULES[old]} now; the old name goes with the next release." in told) == (
        old not in STAY
    )


@pytest.mark.parametrize("old", NAMES)
def test_a_name_resolves_in_the_module_that_had_it(old: str) -> None:
    (module, _, name), (home, _, today) = (n.rpartition(".") for n in (old, NAMES[old]))
    with pytest.warns(DeprecationWarning, match=NAMES[old]) as seen:
        value = getattr(import_module(module), name)
    assert value is getattr(import_module(home), today)
    assert seen[0].filename == __file__


def test_submodules_move_with_their_package() -> None:
    with pytest.warns(DeprecationWarning, match=r"cloister_lab\.curator\.cover"):
        module = import_module("cloister.curator.cover")
    assert module is import_module("cloister_lab.curator.cover")


def test_a_name_that_never_was_is_no_attribute() -> None:
    import cloister.audit
    import cloister.protocol.task
    import cloister.tasks

    for module in (cloister, cloister.audit, cloister.protocol.task, cloister.tasks):
        with pytest.raises(AttributeError, match="nothing"):
            _ = module.nothing  # type: ignore[attr-defined]


def test_without_the_laboratory_one_sentence_says_how_to_get_it(without_lab: Run) -> None:
    code = """
import warnings
from importlib import import_module
import cloister
from cloister.core.deprecated import INSTALL_LAB_HINT, LAB, MODULES, NAMES
warnings.simplefilter("ignore")
for old, today in {**MODULES, **NAMES}.items():
    if not today.startswith(LAB):
        continue
    try:
        if old in MODULES:
            import_module(old)
        else:
            getattr(import_module(old.rpartition(".")[0]), old.rpartition(".")[2])
    except ImportError as error:
        assert str(error) == f"{old} is part of the laboratory now; {INSTALL_LAB_HINT}.", error
        print(old)
"""
    moved = [old for old, today in (MODULES | NAMES).items() if today.startswith(LAB)]
    done = without_lab(code)
    assert done.stdout.split() == moved, done.stderr


def test_what_stays_in_the_product_is_found_without_the_laboratory(without_lab: Run) -> None:
    code = """
import warnings
from importlib import import_module
import cloister
from cloister import estimators
from cloister.core.deprecated import LAB, MODULES, NAMES
warnings.simplefilter("ignore")
for old, today in MODULES.items():
    if not today.startswith((LAB, "cloister.federation.flare")):
        import_module(old)
for old, today in NAMES.items():
    if not today.startswith(LAB):
        getattr(import_module(old.rpartition(".")[0]), old.rpartition(".")[2])
print("found")
"""
    done = without_lab(code)
    assert done.stdout == "found\n", done.stderr


def test_what_checks_of_others_import_stays_without_a_warning() -> None:
    code = """
import warnings
warnings.simplefilter("error", DeprecationWarning)
from cloister.audit import audit_task
from cloister.data.records import read_source
from cloister import make_plan
from cloister.app.in_process import run_plan
from cloister.federation.local import LocalFederation
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import DiscreteNoise
from cloister.tasks import TASKS
from cloister.tasks.kmeans import FastLloyd
print("quiet")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "quiet\n", done.stderr
