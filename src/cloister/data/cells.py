"""One column of cells as it was found, read as numbers: what holds none becomes NaN."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np

from cloister.arrays import Flags, Floats

_NUMBER = r"\A\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\z"
_MISSING = r"(?i)\A\s*(na|n/a|nan|null|none|\?|-)?\s*\z"
_TRUE = r"(?i)\A\s*(true|t|yes|y)\s*\z"
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


def as_numbers(cells: Any, boolean: bool) -> tuple[Floats, Flags]:
    """Read one column of cells as float64, NaN where there is none; mark cells of a wrong type."""
    if isinstance(cells, np.ndarray):
        return cells, np.zeros(len(cells), dtype=bool)
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = decoded(cells)
    if not is_text(cells.type):
        if pa.types.is_boolean(cells.type):
            cells = cells.cast(pa.uint8())
        return _floats(cells), np.zeros(len(cells), dtype=bool)

    def says(pattern: str) -> Flags:
        found = pc.match_substring_regex(texts, pattern=pattern).fill_null(False)
        return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)

    texts = cells.cast(pa.large_binary())
    is_number = says(_NUMBER)
    if is_number.all():  # the common case, at a third of the price
        return _floats(pc.ascii_trim_whitespace(cells.cast(pa.large_string()))), ~is_number
    is_missing = says(_MISSING) | np.asarray(cells.is_null(), dtype=bool)
    # only what matched is read as text: the rest need not even be valid UTF-8
    digits = pc.if_else(pa.array(is_number), texts, pa.scalar(b"nan", pa.large_binary()))
    values = _floats(pc.ascii_trim_whitespace(digits.cast(pa.large_string())))
    if boolean:
        true, false = says(_TRUE), says(_FALSE)
        values = np.where(true, 1.0, np.where(false, 0.0, values))
        is_number = is_number | true | false
    return values, ~is_number & ~is_missing


def as_codes(cells: Any, categories: Sequence[str]) -> tuple[Floats, Flags]:
    """Read one column of cells as numbers of categories; mark cells that hold anything else.

    A cell is a category's text but for blanks around, or a number that this text says: 1 and 1.0
    are the category "1". Where "true" and "false" are categories, cells may be truth values.
    """
    if isinstance(cells, np.ndarray):
        return _codes_of(cells, categories)
    import pyarrow as pa

    encoded = cells if pa.types.is_dictionary(cells.type) else cells.dictionary_encode()
    found, wrong = _codes_of(encoded.dictionary, categories)
    place = np.asarray(encoded.indices.cast(pa.int64()).fill_null(-1))  # -1 is the last: no cell
    return np.append(found, np.nan)[place], np.append(wrong, False)[place]


def _codes_of(cells: Any, categories: Sequence[str]) -> tuple[Floats, Flags]:
    """Read cells that need not be all of a column, so that each text is looked up once."""
    truth = _TRUTH.keys() <= {name.lower() for name in categories}
    numbers, wrong = as_numbers(cells, truth)
    found = np.full(len(numbers), np.nan)
    for code in reversed(range(len(categories))):  # where two say one number, the first has it
        found[numbers == _value(categories[code])] = code
    if not isinstance(cells, np.ndarray) and is_text(cells.type):
        exact = _exact_codes(cells, categories)
        found = np.where(np.isnan(exact), found, exact)
    return found, np.isnan(found) & (np.isfinite(numbers) | wrong)


def _exact_codes(texts: Any, categories: Sequence[str]) -> Floats:
    """Return the code of each text that is a category; they need not be valid UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    binary = texts.cast(pa.large_binary())
    trimmed = pc.replace_substring_regex(binary, pattern=r"\A\s+|\s+\z", replacement="")
    known = [name.encode() for name in categories]
    # text tables are read as Latin-1, so that any byte can be read; UTF-8 then looks like this
    known += [name.decode("latin1").encode() for name in known]
    place = pc.index_in(trimmed, value_set=pa.array(known, pa.large_binary()), skip_nulls=True)
    # Each category is known twice, in two encodings, and both stand for one code.
    return _floats(place) % len(categories)


def _value(category: str) -> float:
    """Return the number that a category says, NaN if none."""
    with suppress(ValueError):
        lower = category.lower()
        return _TRUTH[lower] if lower in _TRUTH else float(category.replace("_", " "))
    return math.nan


def _floats(cells: Any) -> Floats:
    """Convert an Arrow array of numbers or of digits; null becomes NaN."""
    import pyarrow as pa

    numbers = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float64)


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
