"""Privacy units: one spelling for each identifier, and the rows of each that count.

The unit of privacy is the normalised identifier. Two persons who have one normalised identifier are
one unit: removing one of the two may also change which rows of the other are kept, so that each of
them has twice the bound. `cloister check` lists such identifiers to their owner.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np

from cloister.arrays import Flags, Integers
from cloister.data.cells import Coded, array_of, is_absent, text_of

_WHOLE = re.compile(r"([+-]?)(\d+)(?:\.0*)?")
# characters that show nothing, besides those of the categories Cc and Cf
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_LONGEST = 1 << 16  # characters of an identifier; Python writes no integer of so many digits


def unit_name(cell: Any) -> str | None:
    """Write an identifier as text, the same for 7, 7.0, b"7" and " 7 "; None where there is none.

    A float is none from the number on at which its type skips integers (2^53 of float64): what
    was written there may be another identifier. Neither is what is longer than 65,536 characters.
    """
    if is_absent(cell):
        return None
    if isinstance(cell, bytes | bytearray | memoryview):
        try:
            cell = bytes(cell).decode()
        except UnicodeDecodeError:
            return f"0x{bytes(cell).hex()}"  # identifiers that are not text must not become one
    if isinstance(cell, float | np.floating):
        if not abs(cell) < 2.0 ** (np.finfo(type(cell)).nmant + 1):  # nor is NaN or infinity
            return None
        cell = int(cell) if float(cell).is_integer() else float(cell)
    if isinstance(cell, Decimal):
        if not cell.is_finite():
            return None
        cell = format(cell.normalize(), "f") if -_LONGEST < cell.adjusted() < _LONGEST else ""
    if isinstance(cell, datetime.datetime) and cell.time() == datetime.time.min:
        cell = cell.date()  # midnight is how some containers hold a day
    if isinstance(cell, int) and cell.bit_length() > 3 * _LONGEST:
        return None
    try:
        name = str(cell).strip()
    except ValueError:  # of an integer too long to be written
        return None
    return name if 0 < len(name) <= _LONGEST else None


def one_unit(name: str) -> str:
    """Write a unit as its person would be known by: "7", "7.0", "07" and "\u200b7" are one."""
    plain = unicodedata.normalize("NFKC", name)
    seen = _UNSEEN.sub("", "".join(c for c in plain if unicodedata.category(c) != "Cf")).strip()
    # keys of bytes may be nothing but control characters, and are units all the same
    text = "".join(c for c in seen if unicodedata.category(c) != "Cc").strip() or seen
    if not (whole := _WHOLE.fullmatch(text)):
        return text
    sign, digits = whole.groups()
    digits = "".join(str(unicodedata.decimal(digit)) for digit in digits).lstrip("0")
    return f"-{digits}" if sign == "-" and digits else digits or "0"


def unit_names(cells: Any) -> tuple[list[str | None], Integers]:
    """Return the different names in a column of identifiers, and the place of each row's, or -1.

    Parameters
    ----------
    cells : ndarray, Arrow array, list of objects, or Coded
        As sources give them; bytes of a text table are text.
    """
    if isinstance(cells, Coded):
        distinct, places = _present(cells.places)
        names, rows = unit_names([cells.distinct[i] for i in distinct.tolist()])
        return names, np.append(rows, -1)[places]
    if isinstance(cells, np.ndarray):
        cells = cells.tolist()
    if isinstance(cells, list):
        places = {name: i for i, name in enumerate(dict.fromkeys(map(unit_name, cells)))}
        rows = np.array([places[unit_name(cell)] for cell in cells], dtype=np.int64)
        return list(places), rows
    import pyarrow as pa

    if pa.types.is_nested(cells.type) or isinstance(cells.type, pa.BaseExtensionType):
        return unit_names([str(cell) for cell in _objects_of(cells)])
    is_coded = pa.types.is_dictionary(cells.type)
    encoded = cells if is_coded else cells.dictionary_encode()
    coded = Coded(
        list(_objects_of(encoded.dictionary)),
        array_of(encoded.indices.cast(pa.int64()), absent=-1).astype(np.int64),
    )
    return unit_names(coded)


def _present(places: Integers) -> tuple[Integers, Integers]:
    """Return the places that occur, in order of appearance, and the number of each row's; or -1."""
    found, first, inverse = np.unique(places, return_index=True, return_inverse=True)
    order = np.argsort(first)
    order = order[found[order] >= 0]
    number = np.full(len(found), -1, dtype=np.int64)
    number[order] = np.arange(len(order))
    return found[order], number[inverse]


def as_text(cells: Any) -> Coded:
    """Return the bytes that a text table was read as, an Arrow array, as the texts they are."""
    import pyarrow as pa

    encoded = cells.dictionary_encode()
    places = array_of(encoded.indices.cast(pa.int64()), absent=-1).astype(np.int64)
    return Coded([text_of(word) for word in encoded.dictionary.to_pylist()], places)


def _objects_of(cells: Any) -> Iterator[Any]:
    """Yield Arrow cells as Python objects; days and moments that Python has not, as numbers."""
    import pyarrow as pa

    if not pa.types.is_temporal(cells.type):
        yield from cells.to_pylist()
        return
    for cell in cells:
        try:
            yield cell.as_py()
        except (OverflowError, ValueError):
            yield cell.value


class UnitLimit:
    """Keep the first `max_rows` usable records of each unit, through all chunks of one pass.

    Bad rows are left out first: a row that a job cannot use takes no place of its unit.

    Parameters
    ----------
    spellings : bool
        Whether to remember in which ways each unit was written, for its owner.
    """

    def __init__(self, max_rows: int | None, *, spellings: bool = False) -> None:
        self._max_rows = max_rows
        self._seen: dict[str, int] = {}
        self._ways: dict[str, dict[str, None]] | None = {} if spellings else None
        self.without_unit = self.beyond = 0

    @property
    def merged(self) -> tuple[tuple[str, ...], ...]:
        """Identifiers that are one unit though they were written in several ways."""
        return tuple(tuple(ways) for ways in (self._ways or {}).values() if len(ways) > 1)

    def keep(self, units: Any, usable: Flags) -> Flags:
        """Return which rows of the next chunk stay; `units` is a column of cells, or None."""
        if self._max_rows is None or not len(usable):
            return usable
        written, places = unit_names(units)
        names = [one_unit(name) if name else None for name in written]
        number = {name: i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
        if self._ways is not None:
            for name, way in zip(names, written, strict=True):
                if name and way:
                    self._ways.setdefault(name, {})[way] = None
        # two spellings of one unit share a number; -1 stands for no unit
        numbers = np.array([number.get(name or "", -1) for name in names] + [-1], dtype=np.int64)
        codes = numbers[places]
        self.without_unit += int((usable & (codes < 0)).sum())
        usable = usable & (codes >= 0)
        before = np.array([self._seen.get(name, 0) for name in number] + [0], dtype=np.int64)
        place = before[codes]
        place[usable] += _rank(codes[usable])
        keep: Flags = usable & (place < self._max_rows)
        self.beyond += int((usable & ~keep).sum())
        added = np.bincount(codes[keep], minlength=len(number))
        for name, i in number.items():
            if added[i]:
                self._seen[name] = int(before[i] + added[i])
        return keep


def _rank(codes: Integers) -> Integers:
    """Return how often each entry's value occurred before it."""
    order = np.argsort(codes, kind="stable")
    arranged = codes[order]
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - np.searchsorted(arranged, arranged)
    return rank
