"""The laws of every training program on shares, each written once; the programs are in a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cloister.core.errors import DataError, PlanError
from cloister.shares.mpc.training import LogisticOnShares

from .programs import PROGRAMS

every = pytest.mark.parametrize("name", PROGRAMS)


@pytest.mark.parametrize(
    ("name", "change"), [(n, c) for n, program in PROGRAMS.items() for c in program.changes]
)
def test_training_on_shares_is_training_in_the_clear(name: str, change: dict[str, Any]) -> None:
    program = PROGRAMS[name]
    model = replace(program.model, **change)
    trained, clear = program.trained(model, program.tables(model)), program.clear(model)
    for one, other in zip(trained, clear, strict=True):
        assert np.abs(one - other).max() < 1e-3
    X = np.concatenate([part[0] for part in program.parts])
    predicted = [program.predicted(model, X, *found) for found in (trained, clear)]
    assert (predicted[0] == predicted[1]).all()


@every
def test_rows_without_a_record_change_nothing_whatever_values_they_have(name: str) -> None:
    """Random values in place of zeros: validity multiplies them out on shares."""
    program = PROGRAMS[name]
    wider = replace(program.model, **program.padded)
    padded, draw = program.tables(wider), np.random.default_rng(3)
    assert sum((table[:, -1] == 0).any() for table in padded) >= 2
    for table in padded:
        missing = table[:, -1] == 0
        assert not table[missing].any()
        shape = (int(missing.sum()), table.shape[1] - 1)
        table[missing, :-1] = draw.integers(0, 2**64, size=shape, dtype=np.uint64)
    trained, clear = program.trained(wider, padded), program.clear(program.model)
    for one, other in zip(trained, clear, strict=True):
        assert np.abs(one - other).max() < 1e-3


@pytest.mark.parametrize(
    ("name", "change"), [(n, c) for n, program in PROGRAMS.items() for c in program.bad_parameters]
)
def test_bad_public_parameters_are_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        replace(PROGRAMS[name].model, **change)


@pytest.mark.parametrize("change", [{"step": 1e-4, "nominal_n": 1 << 30}, {"penalty": 1e-18}])
def test_a_step_too_small_for_the_ring_is_refused_before_a_ledger_is_charged(
    change: dict[str, Any],
) -> None:
    options: dict[str, Any] = {"owners": ("a",), "rows": 4, "low": (0.0,), "high": (1.0,)}
    with pytest.raises(PlanError, match="a step must be larger"):
        LogisticOnShares(**options, epsilon=1.0, **change)


def test_a_step_too_small_for_the_ring_is_refused_before_a_row_is_shared() -> None:
    with pytest.raises(PlanError, match="a step must be larger"):
        replace(PROGRAMS["network"].model, step=1e-6, nominal_n=1 << 30)


@pytest.mark.parametrize(
    ("name", "bad"), [(n, bad) for n, program in PROGRAMS.items() for bad in program.bad_records]
)
def test_bad_records_are_refused_before_they_are_shared_and_not_shown(name: str, bad: Any) -> None:
    with pytest.raises(DataError) as refused:
        PROGRAMS[name].model.table(*bad)
    for private in ("1.2345", "41", "61"):  # a value, and the numbers of records
        assert private not in str(refused.value)


@every
def test_an_owners_file_holds_features_and_the_label_in_its_last_column(name: str) -> None:
    program = PROGRAMS[name]
    words = program.model.words("north", np.column_stack(program.parts[0]))
    assert (words == program.model.table(*program.parts[0])).all()
    assert words.shape == program.model.tables()["north"]
    for no_table in (5.0, [1.0, 2.0]):
        with pytest.raises(DataError, match=r"table of \d columns"):
            program.model.words("north", no_table)


@pytest.mark.parametrize(("name", "rounds"), [("kmeans", "iterations"), ("logistic", "steps")])
def test_the_opening_names_its_kind_and_costs(name: str, rounds: str) -> None:
    model = PROGRAMS[name].model
    assert (model.opening, model.event()) == ("exact", None)
    private = replace(model, epsilon=2.0, max_rows=2, max_silos=3)
    assert (private.opening, private.event()) == ("private", private.noise.event())
    assert (private.noise.records, private.noise.rounds) == (6, getattr(model, rounds))


def test_a_network_offers_an_exact_opening_only() -> None:
    model = PROGRAMS["network"].model
    assert (model.opening, model.event()) == ("exact", None)
    assert not hasattr(model, "epsilon")
