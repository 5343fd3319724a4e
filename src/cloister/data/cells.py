"""One column of cells as it was found, read as numbers: what holds none becomes NaN."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Flags, Floats
from cloister.data.dialect import PLAIN, Dialect
from cloister.dates import day_of, decimal_years

Words = Sequence[tuple[str, int]]
"""Each word that a cell may hold, with the number of its category."""

_NUMBER = r"\A\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\z"
_MISSING = r"(?i)\A\s*(na|n/a|nan|null|none|\?|-)?\s*\z"
_TRUE = r"(?i)\A\s*(true|t|yes|y)\s*\z"
_BLANKS = b" \t\n\f\r"  # as \s has them
_FALSE = r"(?i)\A\s*(false|f|no|n)\s*\z"
_WHOLE = re.compile(r"([+-]?)(\d+)(?:\.0*)?")
# characters that show nothing, besides those of the categories Cc and Cf
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_TRUTH = {"false": 0.0, "true": 1.0}


def unit_name(value: Any) -> str | None:
    """Write a name as text, the same for 7, 7.0, b"7" and " 7 "; None where there is none."""
    if value is None or _is_na(value):
        return None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"0x{value.hex()}"  # two identifiers that are not text must not become one
    if isinstance(value, float):
        if math.isnan(value):
            return None
        value = int(value) if value.is_integer() else value
    return str(value).strip() or None


def one_unit(name: str) -> str:
    """Write a unit as its person would be known by: "7", "7.0", "07" and "\u200b7" are one.

    Two people who get one name lose rows; one person who kept two names would lose privacy.
    """
    plain = unicodedata.normalize("NFKC", name)
    seen = _UNSEEN.sub("", "".join(c for c in plain if unicodedata.category(c) != "Cf")).strip()
    # keys of bytes may be nothing but control characters, and are units all the same
    text = "".join(c for c in seen if unicodedata.category(c) != "Cc").strip() or seen
    if not (whole := _WHOLE.fullmatch(text)):
        return text
    sign, digits = whole.groups()
    digits = "".join(str(unicodedata.decimal(digit)) for digit in digits).lstrip("0")
    return f"-{digits}" if sign == "-" and digits else digits or "0"


def as_numbers(
    cells: Any, boolean: bool, dialect: Dialect = PLAIN
) -> tuple[NDArray[Any], Flags | None]:
    """Read one column of cells as numbers, NaN where there is none; days are decimal years.

    Also return which cells are of a wrong type; None where none can be.
    """
    import pyarrow as pa

    if isinstance(cells, np.ndarray):
        return cells, None
    cells = decoded(cells)
    if is_day(cells.type):
        days = cells.cast(pa.date32(), safe=False).cast(pa.int32())
        found = array_of(days.fill_null(0)).astype("M8[D]")
        there = array_of(days.is_valid()).astype(np.bool_)
        return np.where(there, decimal_years(found), math.nan), None
    if not is_text(cells.type):
        return array_of(cells), None
    if boolean:  # a few words, each often
        return _each_once(cells, lambda words: _numbers_of(words, True))
    if dialect != PLAIN:
        cells = dialect.plain(cells.cast(pa.large_binary()))
    return _numbers_of(cells, False)


def as_years(cells: Any, form: str) -> tuple[NDArray[Any], Flags | None]:
    """Read one column of dates, written in a format of strptime, as decimal years."""
    if isinstance(cells, np.ndarray) or not is_text(decoded(cells).type):
        return as_numbers(cells, False)
    return _each_once(decoded(cells), lambda words: _years_of(words, form))


def _years_of(words: Any, form: str) -> tuple[Floats, Flags]:
    import pyarrow as pa

    days: list[date | None] = []
    for word in words.cast(pa.large_binary()).to_pylist():
        days.append(None)
        with suppress(ValueError, OverflowError):
            days[-1] = day_of((word or b"").decode("latin1").strip(), form)
    years = decimal_years(np.array(days, dtype="M8[D]"))
    numbers, wrong = _read_texts(words, False)
    return years, np.isnan(years) & (wrong | np.isfinite(numbers))


def _numbers_of(texts: Any, boolean: bool) -> tuple[Floats, Flags | None]:
    """Read texts as Arrow does where it reads numbers only, which is ten times as fast."""
    import pyarrow as pa

    with suppress(pa.ArrowException):
        values = array_of(texts.cast(pa.large_string()).cast(pa.float64()))
        if all_plain(texts, values):
            return values, None
    return _read_texts(texts, boolean)


def all_plain(cells: Any, values: NDArray[Any]) -> bool:
    """Return whether Arrow's `values` of text cells are right: finite, but where no cell is.

    Of what it reads as a number, the rules of this module deny only words such as inf and nan.
    """
    return bool(np.isfinite(values).sum() == len(cells) - cells.null_count)


def _read_texts(cells: Any, boolean: bool) -> tuple[Floats, Flags]:
    """Read texts by the rules that say which of them are numbers, missing or of a wrong type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = cells.cast(pa.large_binary())

    def says(pattern: str) -> tuple[Any, Flags]:
        found = pc.match_substring_regex(texts, pattern=pattern)
        return found, array_of(found, absent=False).astype(np.bool_)

    # only what matched is read as text: the rest need not even be valid UTF-8
    at, is_number = says(_NUMBER)
    values = np.full(len(texts), np.nan)
    digits = pc.ascii_trim_whitespace(texts.filter(at).cast(pa.large_string()))
    values[is_number] = array_of(digits.cast(pa.float64()))
    is_missing = says(_MISSING)[1] | array_of(texts.is_null()).astype(np.bool_)
    if boolean:
        true, false = says(_TRUE)[1], says(_FALSE)[1]
        values[true], values[false] = 1.0, 0.0
        is_number = is_number | true | false
    return values, ~is_number & ~is_missing


def as_codes(cells: Any, words: Words) -> tuple[Floats, Flags]:
    """Read one column of cells as numbers of categories; also return which hold anything else.

    A cell is a word but for blanks around, or a number that this word says: 1 and 1.0 are "1".
    Where "true" and "false" are words, cells may be truth values.
    """
    if isinstance(cells, np.ndarray):
        return _codes_of(cells, words)
    return _each_once(cells, lambda found: _codes_of(found, words))


def _each_once(
    cells: Any, read: Callable[[Any], tuple[Floats, Flags | None]]
) -> tuple[Floats, Flags]:
    """Read each of the different cells of a column, and put together what it holds of them."""
    import pyarrow as pa

    encoded = cells if pa.types.is_dictionary(cells.type) else cells.dictionary_encode()
    found, wrong = read(encoded.dictionary)
    place = array_of(encoded.indices.cast(pa.int64()), absent=-1)  # the last: no cell
    wrong = np.zeros(len(found), dtype=bool) if wrong is None else wrong
    return np.append(found, np.nan)[place], np.append(wrong, False)[place]


def _codes_of(cells: Any, words: Words) -> tuple[Floats, Flags]:
    """Read cells that need not be all of a column, so that each text is looked up once."""
    truth = _TRUTH.keys() <= {word.lower() for word, _ in words}
    is_words = not isinstance(cells, np.ndarray) and is_text(cells.type)
    numbers, wrong = _numbers_of(cells, truth) if is_words else as_numbers(cells, truth)
    numbers = numbers.astype(np.float64, copy=False)  # 0.1 of 32 bits is not the category 0.1
    found = np.full(len(numbers), np.nan)
    for word, code in reversed(words):  # where two say one number, the first has it
        found[numbers == _value(word)] = code
    if is_words:
        exact = _exact_codes(cells, words)
        found = np.where(np.isnan(exact), found, exact)
    other = np.isfinite(numbers) if wrong is None else np.isfinite(numbers) | wrong
    return found, np.isnan(found) & other


def _exact_codes(texts: Any, words: Words) -> Floats:
    """Return the code of each text that is a word; they need not be valid UTF-8."""
    import pyarrow as pa

    # text tables are read as Latin-1, so that any byte can be read; UTF-8 then looks like this
    names = [(word.encode(), code) for word, code in words]
    looks = [(name.decode("latin1").encode(), code) for name, code in names]
    codes: dict[bytes | None, float] = dict(reversed([*names, *looks]))
    found = texts.cast(pa.large_binary()).to_pylist()
    trimmed = (None if word is None else word.strip(_BLANKS) for word in found)
    return np.array([codes.get(word, math.nan) for word in trimmed], dtype=np.float64)


def _value(category: str) -> float:
    """Return the number that a category says, NaN if none."""
    with suppress(ValueError):
        lower = category.lower()
        return _TRUTH[lower] if lower in _TRUTH else float(category.replace("_", " "))
    return math.nan


def array_of(cells: Any, absent: float = math.nan) -> NDArray[Any]:
    """Return an Arrow array of numbers or truth values as it lies in memory, and not to be written.

    Where a cell is null stands `absent`. Arrow's own conversion would import pandas.
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
    is_there = np.from_dlpack(cells.is_valid().cast(pa.uint8())).view(np.bool_)
    return np.where(is_there, np.from_dlpack(bare), absent)


def objects_of(cells: Any) -> Iterator[Any]:
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


def is_day(kind: Any) -> bool:
    """Return whether an Arrow type is of days, or of moments."""
    import pyarrow.types as types

    return bool(types.is_date(kind) or types.is_timestamp(kind))


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text, or bytes, which is what text tables are read as."""
    import pyarrow.types as types

    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _text(cell: Any) -> bytes | None:
    """Write one Python object as the cell of a text table would say it."""
    if isinstance(cell, str):  # the common case
        return cell.encode("utf-8", "replace")
    if cell is None or _is_na(cell) or isinstance(cell, bytes):
        return cell if isinstance(cell, bytes) else None
    if isinstance(cell, bool | np.bool_):
        return b"true" if cell else b"false"
    if isinstance(cell, Real):  # but not decimal.Decimal, which says itself as text
        try:
            number = float(cell)
            return None if math.isnan(number) else repr(number).encode()
        except OverflowError:
            return None
    return str(cell).encode("utf-8", "replace")


def _is_na(cell: Any) -> bool:
    """Return whether a cell is pandas' NA or NaT, which must not be compared."""
    return type(cell).__name__ in ("NAType", "NaTType")


def text_cells(cells: Iterable[Any]) -> Any:
    """Return Python objects as an Arrow column of texts."""
    import pyarrow as pa

    return pa.array([_text(cell) for cell in cells], type=pa.large_binary())


def unit_cells(cells: Iterable[Any]) -> Any:
    """Return units as an Arrow column of their names."""
    import pyarrow as pa

    names = (unit_name(cell) for cell in cells)
    encoded = [None if name is None else name.encode("utf-8", "replace") for name in names]
    return pa.array(encoded, type=pa.large_binary())


def decoded(cells: Any) -> Any:
    """Undo an Arrow dictionary."""
    import pyarrow as pa

    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
