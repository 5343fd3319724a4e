"""How a text table is written: its encoding and the signs in its numbers."""

from __future__ import annotations

import codecs
import io
import re
from dataclasses import dataclass
from typing import Any

_COMMA = r"\A\s*[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?\s*\z"
_SPACES = (" ", "\u00a0", "\u202f")  # a space between digits is one of these


@dataclass(frozen=True)
class Dialect:
    """What a silo's schema says of how its file is written.

    Parameters
    ----------
    decimal : "." or ","
        Sign before the fraction of a number. A point that does not group digits is one, too.
    thousands : str
        The sign between groups of three digits; empty if there is none.
    encoding : str
        As Python names it; empty for UTF-8, or Latin-1 in cells that are not UTF-8.
    delimiter : str
        Between the fields of a line; empty for the one that the header line shows.
    multiline : bool
        Whether a cell in quotes may hold line ends. Otherwise a line end closes the record.
    """

    decimal: str = "."
    thousands: str = ""
    encoding: str = ""
    delimiter: str = ""
    multiline: bool = False

    @property
    def has_signs(self) -> bool:
        """Whether numbers are written in another way than 1234.5."""
        return (self.decimal, self.thousands) != (".", "")

    def plain(self, texts: Any) -> Any:
        """Return an Arrow column of bytes in which numbers are written as 1234.5."""
        for sign in _SPACES if self.thousands == " " else filter(None, [self.thousands]):
            for seen in {sign, sign.encode().decode("latin1")}:  # UTF-8 that was read as Latin-1
                part, rest = re.escape(seen), re.escape(self.decimal)
                # a group does not begin with 0: of 0.819 the point is a decimal sign
                grouped = rf"\A\s*[+-]?[1-9]\d{{0,2}}({part}\d{{3}})+({rest}\d*)?\s*\z"
                texts = _replaced(texts, grouped, seen, "")
        return _replaced(texts, _COMMA, ",", ".") if self.decimal == "," else texts


PLAIN = Dialect()


def _replaced(texts: Any, pattern: str, old: str, new: str) -> Any:
    """Replace a sign in the cells that a pattern matches."""
    import pyarrow.compute as pc

    at = pc.fill_null(pc.match_substring_regex(texts, pattern=pattern), False)
    return pc.if_else(at, pc.replace_substring(texts, pattern=old, replacement=new), texts)


class Recoded(io.RawIOBase):
    """A stream of bytes in some encoding, read as UTF-8; what cannot be decoded never stops it."""

    def __init__(self, stream: Any, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._rest, self._ended = b"", False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes and return how many; 0 at the end."""
        # As full as can be: a block of Arrow's that is short could not hold a long line.
        while len(self._rest) < len(buffer) and not self._ended:
            block = self._stream.read(len(buffer))
            self._ended = not block
            self._rest += self._decoder.decode(block, self._ended).encode("utf-8", "replace")
        n = min(len(buffer), len(self._rest))
        buffer[:n], self._rest = self._rest[:n], self._rest[n:]
        return n
