"""Keys of persons: normalisation by named rules, tags, and the owners' secret of a session.

Owners write one person's key differently. A rule brings it to one text, or to None, and then the
row takes no part. Nothing is guessed: 01/02/2003 is two days and so no key.

A tag is 62 bits of HMAC-SHA256 under a secret that only the owners know. Servers and the dealer
therefore cannot test identifiers, even if they work together. Two persons have one tag with a
chance of 2^-62 a pair. Such a pair is an error of one row, and no loss of privacy.
"""

from __future__ import annotations

import datetime
import hmac
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from cloister.core.declared import Range, declared
from cloister.core.errors import PlanError
from cloister.data.cells import is_absent
from cloister.data.units import unit_name
from cloister.hazmat.prg import Usage, derive, join
from cloister.hazmat.ring import Words
from cloister.shares.linking.merge import OWNER_BITS

Name = Literal["digits", "code", "text", "date", "email"]
_SIGNS = re.compile(r"[\s.\-/]")
_MOST_BYTES = 1 << 10


@declared
class Part:
    """One part of a key, and the rule that brings it to one text."""

    rule: Name
    width: Annotated[int, Range(0, 64), "digits are filled with zeros to so many; 0 for any"] = 0

    def __post_init__(self) -> None:
        if self.width and self.rule != "digits":
            raise PlanError(f"width is for the rule 'digits', got {self.rule!r} with {self.width}.")

    def text_of(self, cell: Any) -> str | None:
        """Return the one text of a cell, or None if it is no key."""
        if is_absent(cell) or (isinstance(cell, np.datetime64) and np.isnat(cell)):
            return None
        if isinstance(cell, datetime.date):
            # Without a time of day, which another owner may not have.
            cell = cell.strftime("%Y-%m-%d")
        elif isinstance(cell, np.datetime64):
            cell = str(np.datetime_as_string(cell, unit="D"))
        elif isinstance(cell, float | np.floating) and not float(cell).is_integer():
            return None  # its digits without a point would be another number
        # 7, 7.0 and " 7 " become one text; a float from 2^53 on is no identifier.
        name = unit_name(cell)
        # Another version of Python may know a character that this one does not.
        if name is None or any(unicodedata.category(c) in ("Cn", "Cs") for c in name):
            return None
        found = _RULES[self.rule](name)
        if found and self.width:
            found = found.zfill(self.width) if len(found) <= self.width else None
        return found if found and len(found.encode()) <= _MOST_BYTES else None


def keys_of(columns: Sequence[Iterable[Any]], parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """Return the key of each row, empty where a part is none.

    Parameters
    ----------
    columns : sequence of iterables of cells
        One for each part, of equally many rows.
    """
    texts = [
        [part.text_of(cell) for cell in column] for column, part in zip(columns, parts, strict=True)
    ]
    whole = zip(*texts, strict=True)
    return [() if None in key else tuple(filter(None, key)) for key in whole]


def tags(secret: bytes, session: str, keys: Iterable[tuple[str, ...]]) -> Words:
    """Return the tag of each key; the two lowest bits are 0.

    Parameters
    ----------
    secret : bytes of length 32
        The owners' secret of the session.
    session : str
        The id of the session.
    """
    own = derive(secret, Usage.LINK_TAG, session.encode())
    digests = (hmac.digest(own, join(part.encode() for part in key), "sha256") for key in keys)
    words = np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")
    return words.astype(np.uint64) & ~OWNER_BITS


def _digits(name: str) -> str | None:
    # A column of integers that was once one of floats is written as "123.0".
    whole = re.fullmatch(r"(\d+)\.0?", name)
    text = whole[1] if whole else _SIGNS.sub("", unicodedata.normalize("NFKC", name))
    # Of any script, but nothing else than digits: "12a" is no number with a slip.
    return "".join(str(unicodedata.digit(c)) for c in text) if text.isdecimal() else None


def _code(name: str) -> str | None:
    text = _SIGNS.sub("", unicodedata.normalize("NFKC", name)).upper()
    return text if re.fullmatch("[0-9A-Z]+", text) else None


def _text(name: str) -> str | None:
    apart = unicodedata.normalize("NFKD", name)
    bare = "".join(c for c in apart if not unicodedata.combining(c)).casefold()
    return " ".join(re.findall(r"[^\W_]+", unicodedata.normalize("NFC", bare))) or None


def _date(name: str) -> str | None:
    # Only this form: newer versions of Python read more, and some forms have two meanings.
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", name):
        return None
    try:
        return datetime.date.fromisoformat(name).isoformat()
    except ValueError:
        return None


def _email(name: str) -> str | None:
    text = unicodedata.normalize("NFKC", name).casefold()
    return text if re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", text) else None


_RULES: Mapping[str, Callable[[str], str | None]] = {
    "digits": _digits,
    "code": _code,
    "text": _text,
    "date": _date,
    "email": _email,
}
