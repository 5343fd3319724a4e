"""Plain k-means on points, without noise: the nearest centre, and Lloyd's loop."""

from __future__ import annotations

import numpy as np

from cloister.protocol.task import Floats, Integers


def nearest(points: Floats, centres: Floats) -> Integers:
    """Return the number of the nearest centre of each point; the first one wins a tie."""
    middle = centres.mean(axis=0)  # products of small numbers lose fewer digits
    directions = centres - middle
    scores = (directions**2).sum(axis=1) - 2 * ((points - middle) @ directions.T)
    labels: Integers = scores.argmin(axis=1).astype(np.int64)
    return labels


def lloyd(points: Floats, centres: Floats, rounds: int) -> Floats:
    """Return the centres after some rounds; one that no point is nearest to stays."""
    for _ in range(rounds):
        labels = nearest(points, centres)
        counts = np.bincount(labels, minlength=len(centres))[:, None]
        sums = np.zeros_like(centres)
        np.add.at(sums, labels, points)
        centres = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    return centres
