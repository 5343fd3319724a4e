"""IBM's diffprivlib on one problem; a script for an environment of its own.

It is run by another Python, which has diffprivlib and not this package::

    python -P diffprivlib_models.py MODEL FILE

MODEL is ``GaussianNB`` or ``LogisticRegression``. FILE is a NumPy archive with training records
``X`` and classes ``y``, records ``X_test``, an ``epsilon``, and what the model needs: bounds
``low`` and ``high``, or a ``data_norm``. Noise is fresh. One line of JSON has the ``probabilities``
of the classes of each test record and the ``seconds`` of the fit.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np


def fitted(model: str, problem: Any) -> Any:
    """Return a fitted model of the problem."""
    from diffprivlib import models  # type: ignore[import-not-found]  # of another environment

    epsilon = float(problem["epsilon"])
    if model == "GaussianNB":
        made = models.GaussianNB(epsilon=epsilon, bounds=(problem["low"], problem["high"]))
    else:
        made = models.LogisticRegression(
            epsilon=epsilon, data_norm=float(problem["data_norm"]), max_iter=1000
        )
    return made.fit(problem["X"], problem["y"])


def main(model: str, file: str) -> None:
    """Fit, predict, and write one line."""
    warnings.simplefilter("ignore")
    problem = np.load(file)
    begin = time.perf_counter()
    made = fitted(model, problem)
    seconds = time.perf_counter() - begin
    with np.errstate(all="ignore"):
        found = np.nan_to_num(made.predict_proba(problem["X_test"]), nan=1 / len(made.classes_))
    document = {"probabilities": np.round(found, 6).tolist(), "seconds": seconds}
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
