"""Leave out the slots without a person, up to a noisy number that both servers learn.

Each server adds a public number of dummies and marks a secret number of them to be kept. Then all
rows are shuffled twice, in an order of each server. The marks are opened: a person, a marked dummy
and no other row is kept. Each server knows its draw, so the other server's draw is what hides the
number of persons. The unknown order of the other server hides which rows they are.

References
----------
Bater, He, Ehrich, Machanavajjhala and Rogers, "Shrinkwrap", 2018: intermediate results of noisy
size. Chase, Ghosh and Poburinnaya, "Secret shared shuffle", 2020: a shuffle with dealt masks.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from cloister.hazmat.ring import Words, from_bytes, to_bytes
from cloister.shares.linking.merge import Joined
from cloister.shares.mpc.material import Shuffle, order_of
from cloister.shares.mpc.server import Server

_TAIL = 13.0
"""Deviations between the mean number of dummies and its ends. A draw is beyond them with a chance
below 1e-36, less than what the proof of the lattice leaves out (docs/proofs/kmeans.md)."""


def most_dummies(sigma: int) -> int:
    """Return the number of dummies of each server, of which it keeps half on average."""
    return 2 * ceil(_TAIL * sigma)


def shrink(server: Server, joined: Joined, sigma: int) -> tuple[Joined, int]:
    """Return kept rows and size (semi-honest; the dealer with either server sees all).

    Parameters
    ----------
    sigma : int
        Parameter of each server's discrete Gaussian draw, in persons.

    Returns
    -------
    joined : Joined
        All persons and the marked dummies, in an order that nobody knows.
    size : int
        Number of persons plus both draws; public to both servers and to the dealer.
    """
    n, spare = len(joined.there), most_dummies(sigma)
    widths = [part.shape[1] for part in joined.parts]
    rows = np.zeros((n + 2 * spare, 1 + sum(widths)), np.uint64)
    # Bit 0: the row is kept. Bit 1: it is a person.
    rows[:n, 0] = joined.there * np.uint64(3)
    rows[:n, 1:] = np.concatenate(joined.parts, axis=1)
    drawn = int(server.noise.draw("gaussian", sigma, 1)[0])
    kept = min(max(spare // 2 + drawn, 0), spare)
    start = n + spare * server.index
    rows[start : start + kept, 0] = 1  # in this server's share alone, so the other does not see it
    # After both, no server knows where a row of the joined table is.
    for holder in (0, 1):
        rows = shuffle(server, rows, holder)
    # Opened without a mask: given their number, the marks are in a uniform order.
    own = np.packbits((rows[:, 0] & np.uint64(1)).astype(bool))
    other = np.frombuffer(server.swap([own.tobytes()])[0], np.uint8)
    server.see(other)
    stay = np.unpackbits(own ^ other, count=len(rows)).astype(bool)
    found = rows[stay]
    ends = np.cumsum(widths)[:-1]
    parts = tuple(np.ascontiguousarray(p) for p in np.split(found[:, 1:], ends, axis=1))
    there = (found[:, 0] >> np.uint64(1) & np.uint64(1)).astype(bool)
    return Joined(there, parts), len(found) - spare


def shuffle(server: Server, rows: Words, holder: int) -> Words:
    """Return rows in a holder's order (semi-honest; the dealer with either server sees all).

    The other server sends its share under masks a. The dealer shares a in the order, by XOR. One
    message, 8 bytes a word in one direction.
    """
    (keys, masks), derived = server.take(Shuffle(holder, *rows.shape))
    if server.index != holder:
        server.give(to_bytes((rows ^ masks).ravel()))
        return derived()
    masked = from_bytes(server.get(), rows.size).reshape(rows.shape)
    server.see(masked.ravel())
    return (rows ^ masked)[order_of(keys)] ^ derived()
