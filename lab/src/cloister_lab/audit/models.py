"""Mutants of the tasks that use one model in another: effects, and regression with missing cells.

Each has one line that its task does not have, after the sums of the task itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cloister.core.arrays import GridState, Integers, Records, State
from cloister.protocol.rows import summed
from cloister.protocol.task import NO_VALUE, NoisyBlock
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.regression.engine import BITS
from cloister.tasks.regression.imputed import ImputedRegression, Versions
from cloister.tasks.regression.rounds import LAST, ROUNDS
from cloister.tasks.regression.weighing import SCORE
from cloister.tasks.state import part_of

_KEPT: dict[str, Integers] = {}


class UncutScore(TreatmentEffect):
    """Does not cut the score of the average effect."""

    rows = None  # type: ignore[assignment]  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, the first one of scores of any length."""
        total = super().contribute(t, state, records)
        if t == ROUNDS:
            known, aim = self._read(state)
            with np.errstate(all="ignore"):
                scores = self._scores(known, aim, records)[0].values[0]
                whole = np.trunc(SCORE * scores / aim.cuts[0] * (1 << BITS))
            total[0] = np.clip(np.nan_to_num(whole), -(2.0**40), 2.0**40).sum()
        return total


class BothArms(TreatmentEffect):
    """Adds a record to the balance of both arms."""

    rows = None  # type: ignore[assignment]  # as above

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, with those of each arm in the other one, too."""
        total = super().contribute(t, state, records)
        if t == ROUNDS:
            arms = total[-self.blocks(t)[-1].size :].reshape(2, -1)
            arms += arms[::-1].copy()
        return total


class ExactPropensity(TreatmentEffect):
    """Makes the last step of the propensity model from exact sums, which it kept."""

    rows = None  # type: ignore[assignment]  # as above

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, and keep those before the step."""
        total = super().contribute(t, state, records)
        if t == LAST:
            _KEPT["propensity"] = total[: self.blocks(t)[0].size]
        return total

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the next state, the one after the step from exact sums."""
        name = self.blocks(t)[0].name
        if t == LAST and "propensity" in _KEPT:
            released = {**released, name: replace(released[name], values=_KEPT["propensity"])}
        return super().update(t, state, released)


class WholeVersions(ImputedRegression):
    """Counts each version of a record as a record."""

    rows = None  # type: ignore[assignment]  # as above

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, in the round of places with each version as a record."""
        total = super().contribute(t, state, records)
        if t == ROUNDS:
            versions = Versions.of(self._imputers(state), records).records
            known = self.analysis.known(part_of(state, "analysis."))
            (rows, *_) = self.analysis.model.rows(0, known, versions, None)
            (block, *_) = self.analysis.blocks(0)
            total[: block.size] = summed(rows, block)
        return total


class FilledByOthers(ImputedRegression):
    """Fills a missing cell with the mean of the silo's other records."""

    rows = None  # type: ignore[assignment]  # as above

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of filled records."""
        filled = records.copy()
        for column in self.incomplete:
            lacks = records[:, column] == NO_VALUE
            filled[lacks, column] = int(records[~lacks, column].mean()) if not lacks.all() else 0
        return super().contribute(t, state, filled)


class ExactImputer(ImputedRegression):
    """Makes the last step of an imputer from exact sums, which it kept."""

    rows = None  # type: ignore[assignment]  # as above

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums, and keep those before the step."""
        total = super().contribute(t, state, records)
        if t == LAST:
            _KEPT["imputer"] = total[: self.blocks(t)[0].size]
        return total

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the next state, the one after the step from exact sums."""
        name = self.blocks(t)[0].name
        if t == LAST and "imputer" in _KEPT:
            released = {**released, name: replace(released[name], values=_KEPT["imputer"])}
        return super().update(t, state, released)
