"""Approximate Cox regression: what one record adds is bounded, and its bound rests on one check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloister.core.arrays import Floats, Integers
from cloister.protocol.rows import kept
from cloister.tasks.regression import newton
from cloister.tasks.survival.cox_approximate import NULL

from .cases import DESIGNS

CASE = DESIGNS["cox-approximate, all"]


def test_frames_are_a_function_of_the_plan() -> None:
    task = CASE.build()
    blocks = [task.blocks(t) for t in range(task.rounds)]
    for state in CASE.states(task, 0):
        for t, of_round in enumerate(blocks):
            words = task.contribute(t, state, CASE.worst(task))
            assert words.shape == (sum(block.size for block in of_round),)
    assert sum(block.weight for of_round in blocks for block in of_round) == pytest.approx(1.0)


def test_a_record_adds_one_vector_whatever_the_number_of_pieces() -> None:
    """Its events and hazards in all pieces are one row of each block."""
    task, records = CASE.build(), CASE.worst(CASE.build())
    for state in CASE.states(task, 1):
        for t in range(task.rounds):
            for rows, block in zip(task.rows(t, state, records), task.blocks(t), strict=True):
                assert len(rows.cells) == len(records)
                assert kept(rows, block).all()


def test_vectors_that_are_not_checked_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant divides by half of the cut, and leaves out the check of the norm."""

    def unchecked(vectors: Floats, cut: float) -> Integers:
        lengths = np.maximum(np.sqrt((vectors**2).sum(axis=0)), cut)
        whole = np.trunc(2 * vectors / lengths * (1 << 20))
        return np.ascontiguousarray(np.nan_to_num(whole).T).astype(np.int64)

    task, records = CASE.build(), CASE.worst(CASE.build())
    state = CASE.start(task)
    state["hazard"] = np.arange(len(state["hazard"])) << 16
    state["cut"][:] = 1
    assert kept(task.rows(NULL, state, records)[0], task.blocks(NULL)[0]).all()
    monkeypatch.setattr(newton, "ball", unchecked)
    assert not kept(task.rows(NULL, state, records)[0], task.blocks(NULL)[0]).all()


def test_pieces_share_the_time_of_a_record() -> None:
    """Hazards add up to the one at its time, and the event is in one piece."""
    task = replace(CASE, columns=CASE.columns[:3]).build()
    known = task._read(CASE.start(task))
    known = replace(
        known, hazard=np.linspace(0, 2, task.cells + 1), pieces=np.array([0.2, 0.5, 0.5])
    )
    one = 1 << 16
    months = np.array([0.0, 6.0, 11.9, 12.5, 40.0, 59.9])
    records = np.stack([months / 30 * one - one, *[np.full(6, one)] * 2], axis=1).astype(np.int32)
    rows = np.ones((task._width, 6))
    events, hazards = task._of_pieces(known, rows, records)
    time, _ = task._exits(records)
    assert np.allclose(hazards.sum(axis=0), np.interp(time, task._ends, known.hazard))
    assert events.sum(axis=0).tolist() == [1.0] * 6
    assert events.argmax(axis=0).tolist() == [0, 0, 0, 1, 3, 3]
