"""Privacy units: one spelling for each identifier, and a limit on the rows of each unit.

The unit of privacy is the normalised identifier. Two persons with the same normalised identifier
are one unit. Removal of one of them may also change which rows of the other are kept, so the bound
doubles for both. `cloister check` lists such identifiers for the owner.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags, Integers
from cloister.data.cells import Coded, array_of, coded_of, is_absent, moments_of, text_of

Admits = Callable[[str], bool]
_WHOLE = re.compile(r"([+-]?)(\d+)(?:\.0*)?")
# Invisible characters outside the categories Cc and Cf.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_WRITERS = ("__str__", "__repr__")
_BASE = 0x9E3779B97F4A7C15  # odd, so that its powers modulo 2^64 mix the bits of cells
Marks = NDArray[np.uint64]
_NO_MARKS: Marks = np.empty(0, dtype=np.uint64)
_LONGEST = 1 << 16  # characters; Python refuses to convert integers of so many digits to text


def unit_name(cell: Any) -> str | None:
    """Return an identifier as text, equal for 7, 7.0, b"7" and " 7 "; None if there is none.

    A float is no identifier from 2^53 on (for float64), where its type skips integers and the
    original identifier may be another one. Nor is text of more than 65,536 characters.
    """
    try:
        name = None if is_absent(cell) else _name(cell)
    except Exception:  # from an integer that is too long, or the code of a foreign class
        return None
    name = name.strip() if name else ""
    return name if 0 < len(name) <= _LONGEST else None


def _name(cell: Any) -> str | None:
    """Return an object as text in its built-in form, which a subclass cannot change."""
    match cell:
        case str():
            return str.__str__(cell)
        case bytes() | bytearray() | memoryview():
            key = memoryview(cell).tobytes()
            try:
                return key.decode()
            except UnicodeDecodeError:  # distinct identifiers must stay distinct
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
            # One complex number makes all numbers of a pandas column complex.
            return _name(float(cell.real))
        case Decimal():
            is_short = cell.is_finite() and -_LONGEST < cell.adjusted() < _LONGEST
            # Without normalize(), which would round to the digits of the context.
            return _shortest(format(cell, "f")) if is_short else None
        case np.datetime64() | datetime.date():
            return _day_name(cell)
    if [getattr(type(cell), name) for name in _WRITERS] == [getattr(object, n) for n in _WRITERS]:
        return None  # the default text is the address in memory, which differs in every run
    return str.__str__(str(cell))


def _shortest(number: str) -> str:
    """Return a number without trailing zeros in its fraction."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def _day_name(cell: Any) -> str | None:
    """Return a day or moment as text by its own clock; midnight counts as a day."""
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
    """Return the normalised identifier of a unit: equal for "7", "7.0", "07" and "\u200b7"."""
    plain = unicodedata.normalize("NFKC", name)
    seen = _UNSEEN.sub("", "".join(c for c in plain if unicodedata.category(c) != "Cf")).strip()
    # A key of bytes may consist of control characters only, and is still a unit.
    text = "".join(c for c in seen if unicodedata.category(c) != "Cc").strip() or seen
    if not (whole := _WHOLE.fullmatch(text)):
        return text
    sign, digits = whole.groups()
    digits = "".join(str(unicodedata.decimal(digit)) for digit in digits).lstrip("0")
    return f"-{digits}" if sign == "-" and digits else digits or "0"


def unit_names(cells: Any) -> tuple[list[str | None], Integers]:
    """Return the distinct names in a column of identifiers and the index of each row, or -1.

    Parameters
    ----------
    cells : ndarray, Arrow array, list of objects, or Coded
        Cells as the source stores them; bytes of a text table are text.
    """
    if isinstance(cells, Coded):
        distinct, places = _present(cells.places)
        names, rows = unit_names([cells.distinct[i] for i in distinct.tolist()])
        return names, np.append(rows, -1)[places]
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind == "O":
            return unit_names(cells.tolist())
        distinct_cells, rows = np.unique(cells, return_inverse=True)
        # Stay NumPy objects: Python has neither float32 nor nanoseconds.
        objects = list(distinct_cells) if cells.dtype.kind in "fM" else distinct_cells.tolist()
        return unit_names(Coded(objects, rows))
    if isinstance(cells, list):
        row_names = [unit_name(cell) for cell in cells]
        order = {name: i for i, name in enumerate(dict.fromkeys(row_names))}
        return list(order), np.array([order[name] for name in row_names], dtype=np.int64)
    import pyarrow as pa

    coded = coded_of(cells)
    if coded is None:
        try:
            coded = coded_of(cells.dictionary_encode())
        except pa.ArrowException:  # types without a dictionary form, such as lists
            return unit_names(_objects_of(cells))
    assert coded is not None
    return unit_names(Coded(_objects_of(coded.distinct), coded.places))


def _present(places: Integers) -> tuple[Integers, Integers]:
    """Return the places that occur, in order of appearance, and each row's index in them, or -1."""
    distinct, first, inverse = np.unique(places, return_index=True, return_inverse=True)
    order = np.argsort(first)
    order = order[distinct[order] >= 0]
    number = np.full(len(distinct), -1, dtype=np.int64)
    number[order] = np.arange(len(order))
    return distinct[order], number[inverse]


def as_text(cells: Any) -> Coded:
    """Return the cells of a text table, an Arrow array of bytes, as texts."""
    import pyarrow as pa

    encoded = cells.dictionary_encode()
    places = array_of(encoded.indices.cast(pa.int64()), absent=-1).astype(np.int64)
    return Coded([text_of(word) for word in encoded.dictionary.to_pylist()], places)


def _objects_of(cells: Any) -> list[Any]:
    """Return Arrow cells as objects of Python and NumPy."""
    import pyarrow as pa

    types, kind = pa.types, cells.type
    if (coded := coded_of(cells)) is not None:  # nested in a dictionary
        distinct = [*_objects_of(coded.distinct), None]
        return [distinct[place] for place in coded.places.tolist()]
    if types.is_floating(kind):  # stay NumPy numbers: Python has no float32
        return list(array_of(cells))
    if types.is_date(kind) or types.is_timestamp(kind):
        with suppress(pa.ArrowInvalid):
            return list(moments_of(cells))
        # A time zone that this system does not know.
        return list(moments_of(cells.cast(pa.timestamp(kind.unit))))
    return [_object_of(cell) for cell in cells] if types.is_temporal(kind) else cells.to_pylist()


def _object_of(cell: Any) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError):  # a time outside Python's range
        return cell.value


class UnitLimit:
    """Selection of the first `max_rows` usable records of each unit, over the chunks of one pass.

    Bad rows are excluded first: a row that a job cannot use does not count for its unit. The counts
    of rows are for their owner alone.

    Parameters
    ----------
    admits : function of str, optional
        Whether rows of a normalised unit are kept at all. It is called for units with a row that
        would be kept, and may depend on earlier records of the same unit.
    spellings : bool
        If True, the spellings of each unit are kept for its owner.
    """

    def __init__(
        self, max_rows: int | None, admits: Admits | None = None, *, spellings: bool = False
    ) -> None:
        self._max_rows, self._admits = max_rows, admits
        self._seen: dict[str, int] = {}
        self._ways: dict[str, dict[str, None]] | None = {} if spellings else None
        self._marks: tuple[list[Marks], list[Marks]] = ([], [])  # of rows that are kept, and beyond
        self.without_unit = self.beyond = self.not_admitted = 0

    @property
    def merged(self) -> tuple[tuple[str, ...], ...]:
        """The spellings of each unit that has several."""
        return tuple(tuple(ways) for ways in (self._ways or {}).values() if len(ways) > 1)

    @property
    def repeated(self) -> int:
        """Number of rows beyond the limit that equal a row of their unit that is kept."""
        kept, beyond = (np.concatenate([_NO_MARKS, *marks]) for marks in self._marks)
        return int(np.isin(beyond, kept).sum())

    def keep(self, units: Any, usable: Flags, marks: Marks | None = None) -> Flags:
        """Return flags of the rows of the next chunk that are kept.

        Parameters
        ----------
        units : column of cells, or None
        marks : ndarray of shape (rows,), optional
            Those of :func:`marks_of`, to find repeated rows.
        """
        if self._max_rows is None or not len(usable):
            return usable
        spellings, places = unit_names(units)
        names = [one_unit(name) if name else None for name in spellings]
        number = {name: i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
        if self._ways is not None:
            for name, spelling in zip(names, spellings, strict=True):
                if name and spelling:
                    self._ways.setdefault(name, {})[spelling] = None
        # Two spellings of one unit share a number; -1 means no unit.
        numbers = np.array([number.get(name or "", -1) for name in names] + [-1], dtype=np.int64)
        codes = numbers[places]
        self.without_unit += int((usable & (codes < 0)).sum())
        usable = usable & (codes >= 0)
        before = np.array([self._seen.get(name, 0) for name in number] + [0], dtype=np.int64)
        place = before[codes]
        place[usable] += _rank(codes[usable])
        keep: Flags = usable & (place < self._max_rows)
        if self._admits is not None:
            present = np.bincount(codes[keep], minlength=len(number)).astype(bool)
            # Only named units with a row: one without a usable row did not arrive.
            refused = [
                here and not self._admits(name) for name, here in zip(number, present, strict=True)
            ]
            # Not beyond max_rows: their owner must look at earlier records, not at this table.
            not_admitted = usable & np.array([*refused, False])[codes]
            self.not_admitted += int(not_admitted.sum())
            keep &= ~not_admitted
            usable = usable & ~not_admitted
        self.beyond += int((usable & ~keep).sum())
        if marks is not None:
            own = np.array([hash(name) for name in number] + [0], dtype=np.int64).view(np.uint64)
            of_units = marks + own[codes]
            for several, rows in zip(self._marks, (keep, usable & ~keep), strict=True):
                several.append(of_units[rows])
        added = np.bincount(codes[keep], minlength=len(number))
        for name, i in number.items():
            if added[i]:
                self._seen[name] = int(before[i] + added[i])
        return keep


def marks_of(steps: NDArray[np.int32], flags: NDArray[np.uint8]) -> Marks:
    """Return a hash of each row, from its cells and their flags; for exact counts, no secret."""
    n = steps.shape[1]
    powers = np.cumprod(np.full(2 * n, _BASE, dtype=np.uint64))
    cells = steps.astype(np.int64).view(np.uint64)
    marks: Marks = cells @ powers[:n] + flags.astype(np.uint64) @ powers[n:]
    return marks


def _rank(codes: Integers) -> Integers:
    """Return the number of earlier entries that are equal to each entry."""
    order = np.argsort(codes, kind="stable")
    arranged = codes[order]
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - np.searchsorted(arranged, arranged)
    return rank
