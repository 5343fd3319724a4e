"""The dialect of a text table: its encoding, delimiter and number signs."""

from __future__ import annotations

import codecs
import io
import re
from dataclasses import dataclass
from typing import Any

_COMMA = r"\A\s*[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?\s*\z"
_SPACES = (" ", "\u00a0", "\u202f")  # programs write a space between digits as one of these


@dataclass(frozen=True)
class Dialect:
    """The settings in a silo's schema for the format of its text file.

    Parameters
    ----------
    decimal : "." or ","
        Decimal sign of a number. A point that does not group digits is always a decimal sign.
    thousands : str
        The sign between groups of three digits; empty if there is none.
    encoding : str
        Python's name of the encoding; empty for UTF-8, or Latin-1 in cells that are not UTF-8.
    delimiter : str
        The sign between the fields of a line; empty to detect it in the header line.
    multiline : bool
        If True, a cell in quotes may contain line ends. Otherwise a line end closes the record.
    """

    decimal: str = "."
    thousands: str = ""
    encoding: str = ""
    delimiter: str = ""
    multiline: bool = False

    @property
    def has_signs(self) -> bool:
        """True if numbers are written in another form than 1234.5."""
        return (self.decimal, self.thousands) != (".", "")

    def plain(self, texts: Any) -> Any:
        """Return an Arrow column of bytes in which numbers are written as 1234.5."""
        for sign in _SPACES if self.thousands == " " else filter(None, [self.thousands]):
            for form in {sign, sign.encode().decode("latin1")}:  # UTF-8 that was read as Latin-1
                group, decimal = re.escape(form), re.escape(self.decimal)
                # A group does not begin with 0: the point of 0.819 is a decimal sign.
                grouped = rf"\A\s*[+-]?[1-9]\d{{0,2}}({group}\d{{3}})+({decimal}\d*)?\s*\z"
                texts = _replaced(texts, grouped, form, "")
        return _replaced(texts, _COMMA, ",", ".") if self.decimal == "," else texts


PLAIN = Dialect()


def _replaced(texts: Any, pattern: str, old: str, new: str) -> Any:
    """Replace a sign in the cells that a pattern matches."""
    import pyarrow.compute as pc

    at = pc.fill_null(pc.match_substring_regex(texts, pattern=pattern), False)
    return pc.if_else(at, pc.replace_substring(texts, pattern=old, replacement=new), texts)


class Recoded(io.RawIOBase):
    """A stream in another encoding, read as UTF-8; invalid bytes are replaced and never raise."""

    def __init__(self, stream: Any, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._rest, self._ended = b"", False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes and return their number; 0 at the end."""
        # Filled completely: Arrow cannot parse a line that is longer than a short block.
        while len(self._rest) < len(buffer) and not self._ended:
            block = self._stream.read(len(buffer))
            self._ended = not block
            self._rest += self._decoder.decode(block, self._ended).encode("utf-8", "replace")
        n = min(len(buffer), len(self._rest))
        buffer[:n], self._rest = self._rest[:n], self._rest[n:]
        return n
