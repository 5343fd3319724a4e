"""What `asv` follows from commit to commit: loops over records and fits of `benchmarks/run.py`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parents[1]))  # asv runs this from a folder of its own

from run import MEAN_OF, Problem, Shape, clustered, fit


class Loops:
    """Loops over uniform records, by the best instruction set of the machine."""

    params: ClassVar = [list(MEAN_OF)]
    timer = staticmethod(time.process_time)

    def setup(self, shape: Shape) -> None:
        self.problem = Problem.of(shape)

    def time_step(self, shape: Shape) -> None:
        self.problem.step()

    def time_clipped_step(self, shape: Shape) -> None:
        self.problem.clipped_step()

    def time_encode(self, shape: Shape) -> None:
        self.problem.encoded()


class Fits:
    """Whole fits."""

    params: ClassVar = [["fastlloyd", "auto"]]
    timer = staticmethod(time.process_time)

    def setup(self, algorithm: str) -> None:
        self.X = clustered(100_000, 8, 10)

    def time_fit(self, algorithm: str) -> None:
        fit(self.X, 10, algorithm)
