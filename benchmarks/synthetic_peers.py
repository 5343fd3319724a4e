"""One run of a peer on levels that a file has; for ``synthetic.py``, in a Python with dpmm 0.1.9.

python benchmarks/synthetic_peers.py MST|AIM EPSILON DELTA SEED IN.npz OUT.npz
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import pandas as pd
from dpmm.models.aim import AIMGM
from dpmm.models.mst import MSTGM

SETTINGS = {
    "MST": (MSTGM, {"n_iters": 2000}),
    "AIM": (AIMGM, {"rounds": 40, "max_model_size": 2}),
}


def main() -> None:
    """Fit, draw as many records, write them with time and memory."""
    method, epsilon, delta, seed, given, out = sys.argv[1:]
    data = np.load(given)
    names = [f"c{j}" for j in range(data["levels"].shape[1])]
    frame = pd.DataFrame(data["levels"], columns=names)
    kind, settings = SETTINGS[method]
    state = np.random.RandomState(int(seed))  # what the peers take; their noise protects nobody
    domain = dict(zip(names, map(int, data["sizes"]), strict=True))
    start = time.process_time()
    model = kind(
        epsilon=float(epsilon), delta=float(delta), random_state=state, n_jobs=1, **settings
    )
    model.set_random_state(state)
    model.set_domain(domain)
    model.check_fit(frame)
    model.fit(frame)
    made = model.generate(n_records=len(frame))
    seconds = time.process_time() - start
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    levels = made[names].to_numpy().astype(np.int64)
    np.savez(out, levels=levels, seconds=seconds, gigabytes=gigabytes)


if __name__ == "__main__":
    main()
