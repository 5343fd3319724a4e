"""The meaning of a cell, which depends only on the cell, its column's type and public settings.

Containers store one cell in many ways. Each cell is first assigned a kind, in any container:

=============  =====================================================================
kind           cells
=============  =====================================================================
missing        None, null, NA, NaT, a masked cell; NaN and infinite numbers
truth value    ``bool`` of Python, NumPy, Arrow
number         integers, floats, decimals, fractions; complex numbers that are real
day            dates and moments; the day of a moment by its own clock and zone
text           texts and bytes
other          everything else: lists, durations, times of day, ...
=============  =====================================================================

The declared type then gives the kind a meaning. ``wrong`` is a cell of a wrong type. The column's
rule ``missing`` applies to it and to a missing cell.

===========  ==================  ================  =================  =====================
kind         number, integer     boolean           category           date
===========  ==================  ================  =================  =====================
truth value  1 or 0              itself            the word true or   wrong
                                                   false, else 1 or 0
number       itself; wrong for   1 or 0, or as     the category with  as its digits; four of
             ``integer`` if not  spelled; else     this number as     them, or a number in the
             whole               wrong             name; else wrong   bounds, are a year
day          wrong               wrong             its ISO text       itself
text         its number or       a spelling, yes,  the category, or   a date by `format` or
             truth value; else   no, y, n, t, f;   its number or      ISO 8601, or its number;
             wrong               or its number     truth value; else  else wrong; two digits of a
                                                   wrong              year, by the bounds
other        wrong               wrong             wrong              wrong
===========  ==================  ================  =================  =====================

The number of a text is ``[+-]digits[.digits][e[+-]digits]``, with the signs that the settings
declare. Its truth value is true or false. It is missing if it is empty, ``?``, ``-``, na, n/a, nan,
nat, null, none, <na> or an infinity. Case and blanks around the text do not matter. A cell that is
read as a word of `absent` is missing, and so is a wrong cell with the text of such a word.
"""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags, Floats
from cloister.core.dates import day_of, decimal_years
from cloister.data.dialect import PLAIN, Dialect

if TYPE_CHECKING:
    from cloister.data.schema import Column

Words = Sequence[tuple[str, int]]
"""Each word that a cell may contain, with the number of its category."""

_NUMBER = r"\A\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\z"
_MISSING = r"(?i)\A\s*(na|n/a|nan|nat|<na>|null|none|\?|-|[+-]?inf(inity)?)?\s*\z"
_TRUE = r"(?i)\A\s*true\s*\z"
_FALSE = r"(?i)\A\s*false\s*\z"
_YES = r"(?i)\A\s*(t|yes|y)\s*\z"
_NO = r"(?i)\A\s*(f|no|n)\s*\z"
_BLANKS = " \t\n\f\r"  # as \s has them
_IS_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_YEARS = (1000.0, 10000.0)  # numbers of four digits before the point


class Read(NamedTuple):
    """Cells as numbers, and flags for a wrong type; None if the type cannot be wrong."""

    values: NDArray[Any]  # NaN for none; the code of a category, the year of a day
    wrong: Flags | None = None


class Days(NamedTuple):
    """Cells that are days or moments, by their own clock."""

    days: NDArray[np.datetime64]  # M8[D]; NaT for none
    seconds: NDArray[np.int64] | None = None  # since midnight; None if all are at midnight


class Coded(NamedTuple):
    """Cells as places in a list of the distinct cells of a column; -1 for no cell."""

    distinct: Any
    places: NDArray[np.int64]


@dataclass(frozen=True)
class CellType:
    """The declared type of a column, with its words and settings.

    Parameters
    ----------
    kind : {"number", "integer", "boolean", "category", "date"}
    words : sequence of (str, int)
        Each word and its code, for a category or for a boolean with spellings.
    form : str
        Format of a date for strptime; ISO 8601 is always read.
    low, high : float
        Public bounds. A number within those of a date is a year.
    dialect : Dialect
        Signs in the numbers of texts.
    absent : tuple of str
        Further words for a missing cell; so is each cell that is read as one of them.
    """

    kind: str = "number"
    words: Words = ()
    form: str = ""
    low: float = math.inf
    high: float = -math.inf
    dialect: Dialect = PLAIN
    absent: tuple[str, ...] = ()

    @classmethod
    def of(cls, column: Column, dialect: Dialect = PLAIN) -> CellType:
        """Return the type of the cells of a schema's column."""
        kind, words, bounds = column.type, column.words, (column.min, column.max)
        return cls(kind, words, column.format, *bounds, dialect, column.absent)

    def read(self, cells: Any) -> Read:
        """Read cells as a source stores them.

        Parameters
        ----------
        cells : ndarray, Arrow array, list of objects, or Coded
            A NumPy array of truth values, numbers or moments; a list may contain any objects.
        """
        if isinstance(cells, Coded):
            return _spread(self.read(cells.distinct), cells.places)
        if self.absent:
            values, wrong = replace(self, absent=()).read(cells)
            values = np.where(np.isin(values, self._absent), np.nan, values)
            return Read(values, wrong if wrong is None else self._unnamed(cells, wrong))
        if isinstance(cells, np.ndarray):
            return self._of_array(cells)
        return self._of_objects(cells) if isinstance(cells, list) else self._of_arrow(cells)

    def _unnamed(self, cells: Any, wrong: Flags) -> Flags:
        """Return the wrong cells among `wrong` whose text is no word of `absent`."""
        words = {unicodedata.normalize("NFC", word.strip()) for word in self.absent}
        wrong = wrong.copy()
        for i in np.flatnonzero(wrong).tolist():
            wrong[i] = unicodedata.normalize("NFC", shown(cells[i])) not in words
        return wrong

    @cached_property
    def _absent(self) -> Floats:
        """The words for a missing cell as numbers, as far as the type reads them."""
        values: Floats = replace(self, absent=()).read(list(self.absent)).values
        return values[np.isfinite(values)]

    # Containers -----------------------------------------------------------------------------------

    def _of_array(self, cells: NDArray[Any]) -> Read:
        match cells.dtype.kind:
            case "b":
                return self.of_truths(cells)
            case "i" | "u" | "f":
                return self.of_numbers(cells)
            case "M":
                return self.of_days(_days_of(cells))
            case "m":  # tolist() would turn durations into numbers
                return self._of_objects(list(cells))
            case _:
                return self._of_objects(cells.tolist())

    def _of_arrow(self, cells: Any) -> Read:
        import pyarrow as pa
        import pyarrow.types as types

        kind = cells.type
        if isinstance(kind, pa.BaseExtensionType):
            is_truth = kind.extension_name == "arrow.bool8"
            return self._of_arrow(cells.storage.cast(pa.bool_()) if is_truth else cells.storage)
        if (coded := coded_of(cells)) is not None:
            return self.read(coded)
        if types.is_boolean(kind):
            return _nulled(cells, self.of_truths(array_of(cells, absent=0).astype(np.bool_)))
        if types.is_integer(kind) or types.is_floating(kind):
            return self.of_numbers(array_of(cells))
        if types.is_decimal(kind):  # through texts, so that a value is rounded only once
            return self.of_numbers(array_of(cells.cast(pa.large_string()).cast(pa.float64())))
        if is_text(kind):
            return self.of_texts(cells)
        if types.is_date(kind) or types.is_timestamp(kind):
            with suppress(pa.ArrowInvalid):  # a time zone that this system does not know
                return self.of_days(_days_of(moments_of(cells)))
        present = array_of(cells.is_valid()).astype(np.bool_)
        return Read(np.full(len(cells), np.nan), present)

    def _of_objects(self, cells: list[Any]) -> Read:
        """Read objects, each by its own class."""
        import pyarrow as pa

        classes = set(map(id, map(type, cells)))  # a class may be unhashable
        if classes <= _PLAIN_NUMBERS:  # the common case, in a tenth of the time
            with suppress(OverflowError):
                return self.of_numbers(np.array(cells, dtype=np.float64))
        if classes <= _PLAIN_TEXTS:
            with suppress(pa.ArrowException, UnicodeError):
                return self.of_texts(pa.array(cells, type=pa.large_string()))
        plain = [_plain(cell) for cell in cells]
        kinds = np.array([kind for kind, _ in plain], dtype=np.int8)
        values, wrong = np.full(len(cells), np.nan), kinds == _OTHER
        readers: dict[int, Callable[[list[Any]], Read]] = {
            _TRUTH: lambda some: self.of_truths(np.array(some, dtype=np.bool_)),
            _REAL: lambda some: self.of_numbers(np.array(some, dtype=np.float64)),
            _DAY: lambda some: self.of_days(Days(*map(np.array, zip(*some, strict=True)))),
            _TEXT: lambda some: self.of_texts(pa.array(some, type=pa.large_binary())),
        }
        for kind, read in readers.items():
            at = np.flatnonzero(kinds == kind)
            if len(at):
                cells_of_kind = read([plain[i][1] for i in at.tolist()])
                values[at] = cells_of_kind.values
                wrong[at] = False if cells_of_kind.wrong is None else cells_of_kind.wrong
        return Read(values, wrong)

    # Kinds of cells -------------------------------------------------------------------------------

    def of_numbers(self, values: NDArray[Any]) -> Read:
        """Read numbers; shape (rows,), NaN for a missing cell."""
        match self.kind:
            case "category" | "boolean":
                codes = self._codes(values.astype(np.float64, copy=False))
                return Read(codes, np.isnan(codes) & np.isfinite(values))
            case "date":
                return self._years(values.astype(np.float64, copy=False))
        return Read(values)  # the encoder flags an integer that is not whole

    def of_truths(self, values: Flags) -> Read:
        """Read truth values; shape (rows,)."""
        match self.kind:
            case "date":
                return Read(np.full(len(values), np.nan), np.ones(len(values), dtype=np.bool_))
            case "category":
                both = self.of_numbers(np.array([0.0, 1.0])).values
                for truth, code in self._truth_words.items():
                    both[truth] = code
                codes = both[values.astype(np.int64)]
                return Read(codes, np.isnan(codes))
        return Read(values.astype(np.float64))

    def of_days(self, found: Days) -> Read:
        """Read days."""
        present = ~np.isnat(found.days)
        match self.kind:
            case "date":
                return Read(decimal_years(found.days))
            case "category":
                codes = np.full(len(present), np.nan)
                for i in np.flatnonzero(present).tolist():
                    codes[i] = self._named.get(_iso(found, i), math.nan)
                return Read(codes, present & np.isnan(codes))
        return Read(np.full(len(present), np.nan), present)

    def of_texts(self, texts: Any) -> Read:
        """Read an Arrow array of texts or bytes, which need not be valid UTF-8."""
        import pyarrow as pa

        texts = texts.cast(pa.large_binary())
        if self.kind in ("number", "integer"):
            return self._numbers_of(texts)
        encoded = texts.dictionary_encode()  # such columns repeat few distinct words
        places = array_of(encoded.indices.cast(pa.int64()), absent=-1).astype(np.int64)
        words = encoded.dictionary
        values = _text_values(self.dialect.plain(words))
        return _spread(values.read_as(self, self._type_values(words)), places)

    # ----------------------------------------------------------------------------------------------

    def _numbers_of(self, texts: Any) -> Read:
        """Read texts; if all are numbers, with Arrow's reader, which is ten times as fast."""
        import pyarrow as pa

        if not self.dialect.has_signs:
            with suppress(pa.ArrowException):
                values = array_of(texts.cast(pa.large_string()).cast(pa.float64()))
                if all_plain(texts, values):
                    return Read(values)
        return _text_values(self.dialect.plain(texts)).read_as(self)

    def _type_values(self, texts: Any) -> Floats:
        """Return the value of each text that only this type reads; NaN for other texts."""
        words = [text_of(text).strip(_BLANKS) for text in texts.to_pylist()]
        if self.kind == "date":
            return decimal_years(np.array([self._day(word) for word in words], "M8[D]"))
        values = np.full(len(words), np.nan)
        if self.kind == "boolean":
            values[_matches(texts, _YES)], values[_matches(texts, _NO)] = 1.0, 0.0
        for i, word in enumerate(words):
            values[i] = self._named.get(unicodedata.normalize("NFC", word), values[i])
        return values

    @cached_property
    def _named(self) -> dict[str, float]:
        """The code of each word in Unicode's composed form; of equal words, the first code."""
        pairs = [(unicodedata.normalize("NFC", word), code) for word, code in self.words]
        return dict(reversed(pairs))  # the first of equal words is written last

    @cached_property
    def _truth_words(self) -> dict[int, float]:
        """The codes of the words true and false, by 1 and 0."""
        named = {word.lower(): code for word, code in reversed(self.words)}
        return {truth: named[word] for truth, word in enumerate(("false", "true")) if word in named}

    @cached_property
    def _by_number(self) -> tuple[Floats, Floats]:
        """The numbers among the words, ascending, and the code of each."""
        implied = {0.0: 0.0, 1.0: 1.0} if self.kind == "boolean" else self._truth_words
        codes = {float(number): float(code) for number, code in implied.items()}
        codes |= {_value(word): float(code) for word, code in reversed(self.words)}
        # NaN, the value of a word that is no number, has no place in a sorted array.
        finite = sorted((number, code) for number, code in codes.items() if math.isfinite(number))
        pairs = np.array(finite).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _codes(self, numbers: Floats) -> Floats:
        """Return the code of the word that is each number; NaN if there is no such word."""
        keys, codes = self._by_number
        if not len(keys):
            return np.full(len(numbers), np.nan)
        at = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
        return np.where(keys[at] == numbers, codes[at], np.nan)

    def _years(self, numbers: Floats) -> Read:
        """Read numbers as dates, by their digits, or as years."""
        is_year = (numbers >= _YEARS[0]) & (numbers < _YEARS[1])
        is_year |= (numbers >= self.low) & (numbers <= self.high)
        years = np.where(is_year, numbers, np.nan)
        for i in np.flatnonzero(np.isfinite(numbers) & (~is_year | bool(self.form))).tolist():
            day = np.array([self._day(_digits(numbers[i]))], "M8[D]")
            if not np.isnat(day[0]):
                years[i] = decimal_years(day)[0]
        return Read(years, np.isnan(years) & np.isfinite(numbers))

    def _day(self, text: str) -> datetime.date | None:
        """Return a text as a day; of a year in two digits, the only one within the bounds."""
        day = _day(text, self.form)
        if day is None or "%y" not in self.form or _day(text, "") == day:
            return day
        within = []
        for year in (day.year - 100, day.year, day.year + 100):
            with suppress(ValueError):  # 29 February
                one = day.replace(year=year)
                if self.low <= float(decimal_years(np.array(one))) <= self.high:
                    within.append(one)
        # A day in two centuries has no meaning; one in none is out of range.
        return within[0] if len(within) == 1 else None if within else day


@dataclass(frozen=True)
class _TextValues:
    """The values of texts that every type reads; shape (texts,) each."""

    numbers: Floats  # NaN for a text that is no number
    truths: Floats  # 1 or 0; NaN for a text that is no truth value
    missing: Flags

    def read_as(self, kind: CellType, type_values: Floats | None = None) -> Read:
        """Return the texts as a declared type reads them; `type_values` take precedence."""
        is_number, is_truth = ~np.isnan(self.numbers), ~np.isnan(self.truths)
        values, wrong = np.full(len(self.missing), np.nan), ~self.missing
        for at, read in (
            (is_number, kind.of_numbers(self.numbers[is_number])),
            (is_truth, kind.of_truths(self.truths[is_truth] == 1)),
        ):
            values[at] = read.values
            wrong[at] = False if read.wrong is None else read.wrong
        if type_values is not None:
            read_by_type = ~np.isnan(type_values)
            values[read_by_type], wrong[read_by_type] = type_values[read_by_type], False
        return Read(values, wrong)


def _text_values(texts: Any) -> _TextValues:
    """Read an Arrow array of bytes in which numbers are written with a point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers, truths = np.full(len(texts), np.nan), np.full(len(texts), np.nan)
    # Only the matches are decoded, since the other bytes may be invalid UTF-8.
    is_number = _matches(texts, _NUMBER)
    digits = pc.ascii_trim_whitespace(texts.filter(_mask(is_number)).cast(pa.large_string()))
    numbers[is_number] = array_of(digits.cast(pa.float64()))
    truths[_matches(texts, _TRUE)], truths[_matches(texts, _FALSE)] = 1.0, 0.0
    missing = _matches(texts, _MISSING) | array_of(texts.is_null()).astype(np.bool_)
    return _TextValues(numbers, truths, missing)


def _matches(texts: Any, pattern: str) -> Flags:
    import pyarrow.compute as pc

    matches = pc.match_substring_regex(texts, pattern=pattern)
    return array_of(matches, absent=False).astype(np.bool_)


def _mask(flags: Flags) -> Any:
    """Return an Arrow array of truth values; ``pa.array`` would import pandas."""
    import pyarrow as pa

    bits = pa.py_buffer(np.packbits(flags, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, bits])


def _nulled(cells: Any, read: Read) -> Read:
    """Return cells as they were read, with the nulls of Arrow as missing cells."""
    if not cells.null_count:
        return read
    present = array_of(cells.is_valid()).astype(np.bool_)
    return Read(
        np.where(present, read.values, np.nan),
        None if read.wrong is None else read.wrong & present,
    )


def _spread(read: Read, places: NDArray[np.int64]) -> Read:
    """Return a column from its distinct cells and the place of each row; -1 is a missing cell."""
    values = np.append(read.values.astype(np.float64, copy=False), np.nan)
    wrong = np.zeros(len(values), dtype=np.bool_)
    if read.wrong is not None:
        wrong[:-1] = read.wrong
    return Read(values[places], wrong[places])


def all_plain(cells: Any, values: NDArray[Any]) -> bool:
    """Return True if Arrow's `values` of text cells are correct: all cells present are finite.

    The rules of this module differ from Arrow's only for texts such as inf and nan.
    """
    return bool(np.isfinite(values).sum() == len(cells) - cells.null_count)


def _value(word: str) -> float:
    """Return a word as a number, NaN if it is none."""
    return float(word) if _IS_NUMBER.fullmatch(word.strip(_BLANKS)) else math.nan


def _digits(number: float) -> str:
    """Write a number as a text table would: 20210702, not 20210702.0."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e16 else repr(number)


def _day(text: str, form: str) -> datetime.date | None:
    """Return a text as a day, or None if it is none."""
    with suppress(ValueError, OverflowError):
        return day_of(text, form)
    return None


def text_of(cell: bytes) -> str:
    """Return the text of a cell of bytes, decoded as UTF-8 or, if that fails, as Latin-1."""
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return cell.decode("latin1")


# Objects ------------------------------------------------------------------------------------------

_NOTHING, _TRUTH, _REAL, _DAY, _TEXT, _COMPLEX, _OTHER = range(7)
_ABSENT = ("NoneType", "NAType", "NaTType", "MaskedConstant")
_PLAIN_NUMBERS = frozenset(map(id, (float, int, type(None))))
_PLAIN_TEXTS = frozenset(map(id, (str, type(None))))


def _plain(cell: Any) -> tuple[int, Any]:
    """Return the kind of an object, and the object as a plain value of its kind."""
    try:
        cls: type = type(cell)
        kind = _kind_of(cls)
        if kind == _COMPLEX:  # one complex number makes all numbers of a pandas column complex
            number = complex(cell)
            return (_REAL, number.real) if number.imag == 0 else (_OTHER, None)
        return kind, _PLAIN[kind](cell)
    except Exception:  # the code of a foreign class may raise anything
        return _OTHER, None


def is_absent(cell: Any) -> bool:
    """Return True if an object marks a missing cell; by name, since NA cannot be compared."""
    return type(cell).__name__ in _ABSENT


@cache
def _kind_of(cls: type) -> int:
    """Return the kind of the cells of a class."""
    if cls.__name__ in _ABSENT:
        return _NOTHING
    for kind, classes in (
        (_TRUTH, (bool, np.bool_)),
        (_OTHER, (np.timedelta64,)),  # first, since NumPy makes it a subclass of its integers
        (_REAL, (Real, Decimal, np.integer, np.floating)),
        (_DAY, (datetime.date, np.datetime64)),
        (_COMPLEX, (complex, np.complexfloating)),
        (_TEXT, (str, bytes, bytearray, memoryview)),
    ):
        if issubclass(cls, classes):
            return kind
    return _OTHER


def _float(cell: Any) -> float:
    try:
        if isinstance(cell, float):  # a subclass may override it, but containers ignore that too
            return float.__float__(cell)
        return int.__float__(cell) if isinstance(cell, int) else float(cell)
    except OverflowError:  # beyond all floats, so every rule treats it as infinite
        return math.inf
    except (ValueError, ArithmeticError):  # a signalling NaN
        return math.nan


def _bytes(cell: Any) -> bytes:
    if isinstance(cell, str):
        return str.encode(cell, "utf-8", "replace")
    return memoryview(cell).tobytes()


def _moment(cell: Any) -> tuple[np.datetime64, int]:
    """Return the day of a date or a moment by its own clock, and the seconds since midnight."""
    if isinstance(cell, np.datetime64):
        days, seconds = _days_of(np.array([cell]))
        return days[0], 0 if seconds is None else int(seconds[0])
    # Built from its fields, since pandas supports years that Python's dates do not.
    month = np.datetime64(cell.year - 1970, "Y").astype("M8[M]") + (cell.month - 1)
    day = month.astype("M8[D]") + (cell.day - 1)
    if not isinstance(cell, datetime.datetime):
        return day, 0
    return day, cell.hour * 3600 + cell.minute * 60 + cell.second


def shown(cell: Any) -> str:
    """Return any cell as text for its owner."""
    try:
        cell = cell.as_py() if hasattr(cell, "as_py") else cell
        return (text_of(cell) if isinstance(cell, bytes) else str(cell)).strip()
    except Exception:  # a year outside Python's range, a list that contains itself, a foreign class
        return f"({type(cell).__name__})"


_PLAIN: dict[int, Callable[[Any], Any]] = {
    _NOTHING: lambda _: None,
    _TRUTH: bool,
    _REAL: _float,
    _DAY: _moment,
    _TEXT: _bytes,
    _OTHER: lambda _: None,
}


# Days ---------------------------------------------------------------------------------------------

_DAY_SECONDS = 86400
_PER_SECOND = {unit: 1000**i for i, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))}
_SECONDS = {"h": 3600, "m": 60}


def _days_of(moments: NDArray[Any]) -> Days:
    """Return the days of NumPy's moments."""
    unit, count = np.datetime_data(moments.dtype)
    if unit not in (*_PER_SECOND, *_SECONDS):
        return Days(moments.astype("M8[D]"))
    if count != 1:
        moments = moments.astype(f"M8[{unit}]")
    # In integers, since NumPy cannot convert the finest units to days.
    ticks = moments.view(np.int64) if moments.dtype.isnative else moments.astype(np.int64)
    if unit in _SECONDS:
        days, since = np.divmod(ticks, _DAY_SECONDS // _SECONDS[unit])
        seconds = since * _SECONDS[unit]
    else:
        days, seconds = np.divmod(ticks // _PER_SECOND[unit], _DAY_SECONDS)
    is_none = np.isnat(moments)
    days, seconds = (
        np.where(is_none, np.datetime64("NaT"), days.astype("M8[D]")),
        seconds * ~is_none,
    )
    return Days(days, seconds if seconds.any() else None)


def moments_of(cells: Any) -> NDArray[np.datetime64]:
    """Return Arrow's dates and moments as NumPy's, by the clock of their zone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, is_days = cells.type, pa.types.is_date32(cells.type)
    if pa.types.is_timestamp(kind):
        cells = pc.local_timestamp(cells)  # moments without a zone stay unchanged
    unit = "D" if is_days else "ms" if pa.types.is_date64(kind) else kind.unit
    ticks = array_of(cells.cast(pa.int32() if is_days else pa.int64()).fill_null(0))
    moments = ticks.astype(np.int64).view(f"M8[{unit}]")
    present = array_of(cells.is_valid()).astype(np.bool_)
    return np.where(present, moments, np.datetime64("NaT"))


def _iso(cells: Days, i: int) -> str:
    """Return a day in ISO 8601; a moment with its time, as in text tables."""
    text = str(cells.days[i])
    if cells.seconds is None or not cells.seconds[i]:
        return text
    minutes, second = divmod(int(cells.seconds[i]), 60)
    return f"{text} {minutes // 60:02}:{minutes % 60:02}:{second:02}"


# Arrow --------------------------------------------------------------------------------------------


def array_of(cells: Any, absent: float = math.nan) -> NDArray[Any]:
    """Return an Arrow array of numbers or truth values as a read-only view of its memory.

    A null becomes `absent`. Arrow's conversion is not used, because it would import pandas.
    """
    import pyarrow as pa

    types, kind = pa.types, cells.type
    if types.is_boolean(kind):
        cells = cells.cast(pa.uint8())
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        cells = cells.cast(pa.float64(), safe=False)
    if not cells.null_count:
        return np.from_dlpack(cells)
    memory = [None, cells.buffers()[1]]
    bare = pa.Array.from_buffers(cells.type, len(cells), memory, offset=cells.offset)
    present = np.from_dlpack(cells.is_valid().cast(pa.uint8())).view(np.bool_)
    return np.where(present, np.from_dlpack(bare), absent)


def coded_of(cells: Any) -> Coded | None:
    """Return an Arrow array that stores each distinct cell once in that form; else None."""
    import pyarrow as pa

    if pa.types.is_dictionary(cells.type):
        places = array_of(cells.indices.cast(pa.int64()), absent=-1).astype(np.int64)
        return Coded(cells.dictionary, places)
    if pa.types.is_run_end_encoded(cells.type):  # Arrow cannot decode runs of every type
        rows = np.arange(cells.offset, cells.offset + len(cells))
        return Coded(cells.values, np.searchsorted(array_of(cells.run_ends), rows, side="right"))
    return None


def is_text(kind: Any) -> bool:
    """Return True if an Arrow type is text, or bytes, the type of cells of text tables."""
    import pyarrow.types as types

    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )
