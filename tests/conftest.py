"""Shared by all tests: repeatable examples, one thread per process, and where public data lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy: small products gain nothing from threads

# Numbers of examples belong to the profiles; a test that sets its own says why.
settings.register_profile("ci", derandomize=True, max_examples=40, deadline=None, database=None)
settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public benchmark tables beside the checkout; skips where there is none."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("public benchmark tables are not beside this checkout")
    return folder
