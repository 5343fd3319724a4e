"""Does the time of a draw tell the size of its noise? AUC of the time, for each exact sampler.

    python benchmarks/noise_time.py [--draws 50000]

Each draw is timed alone and labelled: its largest value, in absolute terms, is above or below the
median of all draws. Printed are the area under the ROC curve of "a longer draw has larger noise",
and the upper end of the 99 % interval of its distance from one half, added to one half (DeLong,
DeLong and Clarke-Pearson 1988). A time without information has 0.5, and the bar is 0.52. Other
load on the machine adds noise to the times: run this on an idle one.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from functools import partial
from itertools import product
from time import perf_counter_ns

import numpy as np
from scipy.stats import norm, rankdata

from cloister.core.arrays import Flags, Floats, Integers
from cloister.core.randomness import SecretStream
from cloister.hazmat.discrete import discrete_gaussian, discrete_laplace

SAMPLERS = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}
SCALES, SIZES = (10, 2**20), (1, 16)
BAR = 0.52


def timed(draw: Callable[[], Integers], draws: int) -> tuple[Floats, Integers]:
    """Return nanoseconds and the largest absolute value of each draw; both (draws,)."""
    took, largest = np.empty(draws), np.empty(draws, np.int64)
    for _ in range(200):  # tables and caches are warm
        draw()
    for i in range(draws):
        before = perf_counter_ns()
        values = draw()
        took[i] = perf_counter_ns() - before
        largest[i] = np.abs(values).max()
    return took, largest


def area(times: Floats, above: Flags) -> tuple[float, float]:
    """Return the area under the ROC curve and its standard error, by DeLong's method."""
    ranks, one, two = rankdata(times), rankdata(times[above]), rankdata(times[~above])
    m, n = one.size, two.size
    of_above, of_below = (ranks[above] - one) / n, 1 - (ranks[~above] - two) / m
    error = np.sqrt(of_above.var(ddof=1) / m + of_below.var(ddof=1) / n)
    return float(of_above.mean()), float(error)


def main() -> None:
    """Time all samplers and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draws", type=int, default=50_000)
    draws = options.parse_args().draws
    rand = SecretStream()
    gc.disable()
    for (law, sampler), scale, size in product(SAMPLERS.items(), SCALES, SIZES):
        times, largest = timed(partial(sampler, scale, size, rand), draws)
        auc, error = area(times, largest > np.median(largest))
        upper = 0.5 + abs(auc - 0.5) + float(norm.ppf(0.995)) * error
        verdict = "holds" if upper < BAR else "MISSED"
        what = f"{law:9} scale {scale:<8} {size:2} words {np.median(times) / 1000:6.0f} us"
        print(f"{what}  AUC {auc:.4f}, at most {upper:.4f}: {verdict}", flush=True)


if __name__ == "__main__":
    main()
