"""Memory that a process keeps: fewer faults of pages for the arrays of each step."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import numpy as np
from cloister.core.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(5):
    words = [np.ones(1 << 18) for _ in range(20)]
    del words
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    words = [np.ones(1 << 18) for _ in range(20)]
    del words
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_arrays_of_later_steps_cost_few_faults() -> None:
    """Of 40 MB a step, 10,240 pages; without it, all of them may come anew."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS, "kept"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2000
