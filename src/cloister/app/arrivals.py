"""A silo's state of a horizon: who arrived how often, and the exact sum of each period.

It stays at the silo, on a disk with the protection of the records. A period is *frozen* in one
transaction: its sum, a nonce, a keyed fingerprint of its records and the count of each unit that
arrived. From then on the sum is never computed again. It is *noted* before its release is shown.
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cloister.core.arrays import Integers
from cloister.core.errors import DataError, LedgerError
from cloister.core.randomness import new_key
from cloister.core.sqlite import connect, explained, keep_private, transaction
from cloister.hazmat.ring import from_bytes, to_bytes, to_integers, to_words

_TABLES = (
    "CREATE TABLE facts (horizon TEXT NOT NULL, secret BLOB NOT NULL)",
    "CREATE TABLE units (unit BLOB PRIMARY KEY, periods INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE periods (period INTEGER PRIMARY KEY, content BLOB NOT NULL, "
    "sums BLOB NOT NULL, nonce BLOB NOT NULL, link BLOB NOT NULL, released BLOB)",
)
_COUNT = "INSERT INTO units VALUES (?, 1) ON CONFLICT (unit) DO UPDATE SET periods = periods + 1"
ENDED = "so the horizon ends; open another one"


def frozen_periods(path: Path) -> int:
    """Return the number of frozen periods in a state, without reading its units and sums."""
    return len(nonces(path)) if path.is_file() else 0


def nonces(path: Path) -> list[bytes]:
    """Return the nonces of the frozen periods in a state, without reading its units and sums."""
    _check_there(path)
    with explained(f"state {str(path)!r}"):
        connection = connect(path)
        try:
            rows = connection.execute("SELECT nonce FROM periods ORDER BY period").fetchall()
        finally:
            connection.close()
    return [bytes(nonce) for (nonce,) in rows]


def _check_there(path: Path) -> None:
    if not path.is_file():  # connecting would create it
        raise LedgerError(
            f"state {str(path)!r} of a silo is missing, and earlier releases hold its sums, "
            f"{ENDED}."
        )


class Arrivals:
    """The state of one silo in one horizon.

    Parameters
    ----------
    path : Path
        File made by :meth:`create`.
    horizon : str
        Digest of the horizon.
    max_periods : int
        Largest number of periods in which the rows of a unit are read.

    Raises
    ------
    LedgerError
        If the file is missing, damaged or of another horizon.
    """

    key: bytes
    """Secret key of this silo's fingerprints."""

    def __init__(self, path: Path, horizon: str, max_periods: int) -> None:
        _check_there(path)
        self._path, self._most = path, max_periods
        with explained(f"state {str(path)!r}"):
            self._connection = connect(path)
        with self._open() as connection:
            of, self.key = connection.execute("SELECT horizon, secret FROM facts").fetchone()
            if of != horizon:
                raise LedgerError(
                    f"state {str(path)!r} belongs to another horizon; use its own folder."
                )
            self._check_chain(connection)
            self._start_period(connection)

    @classmethod
    def create(cls, path: Path, horizon: str) -> None:
        """Make the state before the first period, in a new file."""
        keep_private(path)
        with explained(f"state {str(path)!r}"):
            connection = connect(path, log=True)
            try:
                with transaction(connection):
                    for table in _TABLES:
                        connection.execute(table)
                    connection.execute("INSERT INTO facts VALUES (?, ?)", (horizon, new_key()))
            finally:
                connection.close()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with explained(f"state {str(self._path)!r}"), transaction(self._connection):
            yield self._connection

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @property
    def frozen(self) -> int:
        """Number of frozen periods."""
        return self._number("SELECT count(*) FROM periods")

    @property
    def noted(self) -> int:
        """Number of periods whose release was noted."""
        return self._number("SELECT count(released) FROM periods")

    def compare(self, done: int) -> None:
        """Compare the state with the number of periods in the ledger.

        Raises
        ------
        LedgerError
            If the state or the ledger was restored from a copy.
        """
        has = f"state {str(self._path)!r} has {self.frozen} periods, and its ledger {done}"
        if self.frozen < done:
            raise LedgerError(f"{has}: the state was restored from a copy, {ENDED}.")
        # One more may be frozen, which is not in the ledger yet.
        if self.noted > done or self.frozen > done + 1:
            raise LedgerError(f"{has}: the ledger was restored from a copy, {ENDED}.")

    def _number(self, query: str) -> int:
        with self._open() as connection:
            (number,) = connection.execute(query).fetchone()
        return int(number)

    def admits(self, unit: str) -> bool:
        """Return True if the rows of a unit count in the next period; remember that it arrived."""
        # Keyed, so that the file alone names nobody.
        name = hmac.digest(self.key, unit.encode(errors="surrogatepass"), "sha256")
        if name in self._used_up:
            return False
        self._arrived.add(name)
        return True

    def repeats(self, content: bytes) -> bool:
        """Return True if the next period has the records and only units of an earlier period."""
        with self._open() as connection:
            kept = [of for (of,) in connection.execute("SELECT content FROM periods")]
        return content in kept and set() < self._arrived <= self._known

    def freeze(self, period: int, content: bytes, sums: Integers) -> None:
        """Store the sum of a period with a new nonce and count its units, in one transaction.

        Parameters
        ----------
        period : int, from 0
            The next period; raises LedgerError for any other.
        content : bytes
            Keyed fingerprint of the records.
        sums : ndarray of shape (size,), int64
        """
        # A silo that is restored and freezes the period again has another nonce for other sums.
        stored, nonce = to_bytes(to_words(sums)), new_key()
        with self._open() as connection:
            (frozen,) = connection.execute("SELECT count(*) FROM periods").fetchone()
            if frozen != period:
                raise LedgerError(
                    f"period {frozen + 1} is next in {str(self._path)!r}, not {period + 1}; the "
                    "sum of a frozen period is never computed again."
                )
            link = self._link(self._last_link(connection), content, stored, nonce)
            row = (period, content, stored, nonce, link)
            connection.execute("INSERT INTO periods VALUES (?, ?, ?, ?, ?, NULL)", row)
            connection.executemany(_COUNT, [(unit,) for unit in sorted(self._arrived)])
            self._start_period(connection)

    def check_content(self, period: int, content: bytes) -> None:
        """Raise a DataError if a frozen period has other records."""
        with self._open() as connection:
            query = "SELECT content, released FROM periods WHERE period = ?"
            kept, released = connection.execute(query, (period,)).fetchone()
        if hmac.compare_digest(kept, content):
            return
        if released is not None:
            raise DataError(
                f"period {period + 1} is closed: it was released with other records, and these "
                "were not counted; release them in a later period."
            )
        raise DataError(
            f"period {period + 1} was frozen with other records than these; give the file "
            "with which it was interrupted."
        )

    def sums(self, size: int) -> Integers:
        """Return the exact sums of all frozen periods, shape (periods, size); local, no release."""
        with self._open() as connection:
            rows = connection.execute("SELECT sums FROM periods ORDER BY period").fetchall()
        return np.stack([to_integers(from_bytes(stored, size)) for (stored,) in rows])

    def nonce(self, period: int) -> bytes:
        """Return the nonce that was drawn when a period was frozen."""
        with self._open() as connection:
            query = "SELECT nonce FROM periods WHERE period = ?"
            (nonce,) = connection.execute(query, (period,)).fetchone()
        return bytes(nonce)

    def note(self, period: int, frame: bytes) -> None:
        """Note that a period was released with these bytes."""
        digest = hashlib.sha256(frame).digest()
        with self._open() as connection:
            query = "SELECT released FROM periods WHERE period = ?"
            (noted,) = connection.execute(query, (period,)).fetchone()
            # A ledger that was rolled back would release the period again, with other noise.
            if noted not in (None, digest):
                raise LedgerError(
                    f"period {period + 1} was released with other noise than the ledger has, so "
                    f"one of them was restored from a copy, {ENDED}."
                )
            connection.execute("UPDATE periods SET released = ? WHERE period = ?", (digest, period))

    def is_noted(self, period: int, frame: bytes) -> bool | None:
        """Return True if a period was released with these bytes; None if it is not noted here."""
        with self._open() as connection:
            query = "SELECT released FROM periods WHERE period = ?"
            (noted,) = connection.execute(query, (period,)).fetchone() or (None,)
        # A state keeps digests, as it needs no released words.
        return None if noted is None else noted == hashlib.sha256(frame).digest()

    def forget(self) -> None:
        """Delete the exact sums and the counts of units, after the last period."""
        with self._open() as connection:
            connection.execute("DELETE FROM units")
            connection.execute("DELETE FROM periods")
            connection.execute("UPDATE facts SET secret = ?", (bytes(len(self.key)),))
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log has the deleted rows

    def _start_period(self, connection: sqlite3.Connection) -> None:
        # In memory: a query for each unit of a file would take longer than reading it.
        counts = connection.execute("SELECT unit, periods FROM units").fetchall()
        self._known = {unit for unit, _ in counts}
        self._used_up = {unit for unit, periods in counts if periods >= self._most}
        self._arrived: set[bytes] = set()

    def _last_link(self, connection: sqlite3.Connection) -> bytes:
        query = "SELECT link FROM periods ORDER BY period DESC LIMIT 1"
        (link,) = connection.execute(query).fetchone() or (b"",)
        return bytes(link)

    def _link(self, *parts: bytes) -> bytes:
        # Of digests, so that no two tuples have the same bytes.
        joined = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hmac.digest(self.key, b"cloister/period\0" + joined, "sha256")

    def _check_chain(self, connection: sqlite3.Connection) -> None:
        """Raise a LedgerError if a stored sum was changed or is missing."""
        before, columns = b"", "period, content, sums, nonce, link"
        rows = connection.execute(f"SELECT {columns} FROM periods ORDER BY period")
        for place, (period, content, stored, nonce, link) in enumerate(rows):
            before = self._link(before, content, stored, nonce)
            if place != period or not hmac.compare_digest(before, link):
                raise LedgerError(
                    f"sum of period {period + 1} in {str(self._path)!r} was changed, {ENDED}."
                )
