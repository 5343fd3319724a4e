"""Privacy units: one spelling for each identifier, and the rows of each that count.

The unit of privacy is the normalised identifier. Two persons who have one normalised identifier are
one unit: removing one of the two may also change which rows of the other are kept, so that each of
them has twice the bound. `cloister check` lists such identifiers to their owner.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np

from cloister.core.arrays import Flags, Integers
from cloister.data.cells import Coded, array_of, coded_of, is_absent, moments_of, text_of

_WHOLE = re.compile(r"([+-]?)(\d+)(?:\.0*)?")
# characters that show nothing, besides those of the categories Cc and Cf
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_WRITERS = ("__str__", "__repr__")
_LONGEST = 1 << 16  # characters of an identifier; Python writes no integer of so many digits


def unit_name(cell: Any) -> str | None:
    """Write an identifier as text, the same for 7, 7.0, b"7" and " 7 "; None where there is none.

    A float is none from the number on at which its type skips integers (2^53 of float64): what
    was written there may be another identifier. Neither is what is longer than 65,536 characters.
    """
    try:
        name = None if is_absent(cell) else _name(cell)
    except Exception:  # of an integer too long to be written, of classes that are not ours
        return None
    name = name.strip() if name else ""
    return name if 0 < len(name) <= _LONGEST else None


def _name(cell: Any) -> str | None:
    """Write an object as its own class has it, not as a class made of that one may write it."""
    match cell:
        case str():
            return str.__str__(cell)
        case bytes() | bytearray() | memoryview():
            key = memoryview(cell).tobytes()
            try:
                return key.decode()
            except UnicodeDecodeError:  # identifiers that are not text must not become one
                return f"0x{key.hex()}"
        case bool():
            return str(cell)
        case int():
            return int.__repr__(cell) if cell.bit_length() <= 3 * _LONGEST else None
        case float() | np.floating():
            digits = 52 if isinstance(cell, float) else np.finfo(type(cell)).nmant
            number = float.__float__(cell) if isinstance(cell, float) else float(cell)
            if not abs(number) < 2.0 ** (digits + 1):  # nor is NaN or infinity
                return None
            return str(int(number)) if number.is_integer() else repr(number)
        case complex() | np.complexfloating() if cell.imag == 0:
            return _name(float(cell.real))  # as pandas writes numbers beside a complex one
        case Decimal():
            is_short = cell.is_finite() and -_LONGEST < cell.adjusted() < _LONGEST
            # not normalised, which would round it to the digits of the context
            return _shortest(format(cell, "f")) if is_short else None
        case np.datetime64() | datetime.date():
            return _day_name(cell)
    if [getattr(type(cell), name) for name in _WRITERS] == [getattr(object, n) for n in _WRITERS]:
        return None  # its text would be where it is in memory
    return str.__str__(str(cell))


def _shortest(number: str) -> str:
    """Return a number without the zeros that end its fraction."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def _day_name(cell: Any) -> str | None:
    """Write a day or moment by its own clock; midnight is how some containers hold a day."""
    if isinstance(cell, np.datetime64):
        if np.isnat(cell):
            return None
        unit, _ = np.datetime_data(cell.dtype)
        exact = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}.get(unit, unit)
        text = str(np.datetime_as_string(cell.astype(f"M8[{exact}]")))
    elif isinstance(cell, datetime.datetime):
        text = cell.replace(tzinfo=None).isoformat()
    else:
        text = cell.isoformat()
    day, _, time = text.partition("T")
    time = _shortest(time)
    return day if time in ("", "00:00:00") else f"{day} {time}"


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
        if cells.dtype.kind == "O":
            return unit_names(cells.tolist())
        found, rows = np.unique(cells, return_inverse=True)
        # Python has neither float32 nor nanoseconds
        objects = list(found) if cells.dtype.kind in "fM" else found.tolist()
        return unit_names(Coded(objects, rows))
    if isinstance(cells, list):
        written = [unit_name(cell) for cell in cells]
        order = {name: i for i, name in enumerate(dict.fromkeys(written))}
        return list(order), np.array([order[name] for name in written], dtype=np.int64)
    import pyarrow as pa

    coded = coded_of(cells)
    if coded is None:
        try:
            coded = coded_of(cells.dictionary_encode())
        except pa.ArrowException:  # of types that have no dictionary, such as lists
            return unit_names(_objects_of(cells))
    assert coded is not None
    return unit_names(Coded(_objects_of(coded.distinct), coded.places))


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


def _objects_of(cells: Any) -> list[Any]:
    """Return Arrow cells as objects of Python and NumPy."""
    import pyarrow as pa

    types, kind = pa.types, cells.type
    if (coded := coded_of(cells)) is not None:  # in a dictionary
        distinct = [*_objects_of(coded.distinct), None]
        return [distinct[place] for place in coded.places.tolist()]
    if types.is_floating(kind):  # as they are: Python has no float32
        return list(array_of(cells))
    if types.is_date(kind) or types.is_timestamp(kind):
        with suppress(pa.ArrowInvalid):
            return list(moments_of(cells))
        return list(moments_of(cells.cast(pa.timestamp(kind.unit))))  # of a zone not known here
    return [_object_of(cell) for cell in cells] if types.is_temporal(kind) else cells.to_pylist()


def _object_of(cell: Any) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError):  # a time that Python has not
        return cell.value


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
