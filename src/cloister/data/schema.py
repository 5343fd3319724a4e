"""The data contract: what every silo agrees on before any record is read.

A schema names the columns, their public bounds, what happens to a value that is missing or out of
range, and the unit of privacy. All of it is public; silos compare it by `Schema.digest`.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cloister.core.dates import day_of, decimal_years
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Contract, Grid
from cloister.protocol.task import PublicColumn

FILL_IN = "FILL IN"  # how a placeholder of `init_schema` begins
_WRITING = (
    "decimal",
    "thousands",
    "encoding",
    "delimiter",
    "multiline",
)  # of the schema, how a silo's own file writes
_OF_FILES = ("format", "spellings")  # of a column, likewise
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")
_FORMAT = 1  # enters the digest: raise it when the meaning of a key changes
_LARGEST = 1e100  # |bound|; far from overflow in any arithmetic on the box
_NARROWEST = 1e-100  # max - min; far from underflow
_DELIMITERS = ",;\t|"
_OTHER_TYPES = {  # what codebooks call them
    **dict.fromkeys(("numeric", "float", "decimal", "continuous"), "number"),
    **dict.fromkeys(("int", "count"), "integer"),
    **dict.fromkeys(("bool", "binary", "yes/no"), "boolean"),
    **dict.fromkeys(("nominal", "ordinal", "categorical", "factor"), "category"),
}
_MOST_ITEMS = 10_000  # of a catalogue; a record has an integer of 4 bytes for each


Bound = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
Silos = Annotated[int, Field(ge=1)]


class _Contract(BaseModel):
    """A frozen value whose mistakes are one sentence, a `PlanError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            subject = f"column {values.get('name')!r}: " if isinstance(self, Column) else ""
            raise PlanError(subject + _sentence(error)) from None


class Column(_Contract):
    """One column of the records.

    Parameters
    ----------
    name : str
        As in the header of every file.
    type : {"number", "integer", "boolean", "category", "date"}
        A cell that is not of this type counts as missing. A date is a number: its year with a
        fraction, so that 2 July 2021 is 2021.5.
    min, max : float, data units, ``min < max``
        Public bounds: from a codebook, a guideline, physics; never from the records. Those of a
        date may be dates. Categories and booleans have none.
    categories : sequence of str, at least 2, only for a category
        Every category a cell may hold, from the codebook; the i-th stands for the number i, from 0.
        Anything else in a cell counts as missing.
    measure : str
        Unit of measure, free text, agreed like the rest.
    missing : {"drop", "min", "max", "midpoint"} or float in [min, max]
        Drop the record, or put this value in; for a category "drop" or one of the categories.
    out_of_range : {"clip", "drop"}
        Move the value to the nearer bound, or drop the record.
    format : str, only for a date
        How this silo's file writes dates, as strptime has it; by default as 2021-07-02. Not agreed.
    spellings : mapping of a category to other words for it; of "true" and "false" for a boolean
        Words by which this silo's file writes it. Not agreed.
    """

    name: str
    type: Literal["number", "integer", "boolean", "category", "date"]
    min: Bound
    max: Bound
    measure: str = ""
    missing: str | float = "drop"
    out_of_range: Literal["clip", "drop"] = "clip"
    categories: tuple[str, ...] = Field(default=(), strict=False)
    format: str = ""
    spellings: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _public_bounds(cls, values: Any) -> Any:
        """Refuse absent bounds, and text in place of bounds, and say where bounds come from."""
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        name = values.get("name")
        if isinstance(name, str) and (not name.strip() or name != name.strip()):
            raise ValueError("a name must not be empty, nor begin or end with blanks.")
        if values.get("type") == "boolean":
            values = {"min": 0.0, "max": 1.0, **values}
        if values.get("type") == "category":
            values = {"min": 0.0, "max": _last_code(values.get("categories")), **values}
        kind = str(values.get("type"))
        known = kind.startswith(FILL_IN) or kind in get_args(cls.model_fields["type"].annotation)
        for bound in ("min", "max") if known else ():  # else the type is what is wrong
            given = values[bound] = _as_bound(values.get(bound), kind)
            if given is None or isinstance(given, str):
                raise ValueError(
                    f"{bound} must be a public number, got {given!r}; write the bound that a "
                    "codebook, a guideline or physics gives, because a bound read from the "
                    "records discloses one of them."
                )
            if not isinstance(given, bool) and isinstance(given, int | float):
                values[bound] = float(given) + 0.0  # one zero, one digest
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.max - self.min >= _NARROWEST:
            raise ValueError(f"min must be below max, got ({self.min}, {self.max}).")
        if self.type == "boolean" and (self.min, self.max) != (0.0, 1.0):
            raise ValueError("a boolean has the bounds 0 and 1; leave min and max out.")
        if self.format and self.type != "date":
            raise ValueError('format goes with type = "date" and only there; leave it out.')
        self._check_categories()
        self._check_spellings()
        self._check_missing()
        return self

    def _check_spellings(self) -> None:
        named = self.categories or (("false", "true") if self.type == "boolean" else ())
        if strange := [name for name in self.spellings if name not in named]:
            raise ValueError(f"spellings must be of its categories, got {strange[0]!r}.")
        words = [*named, *(word for also in self.spellings.values() for word in also)]
        if twice := [word for word in words if not word.strip() or words.count(word) > 1]:
            raise ValueError(f"a spelling must be one word of one category, got {twice[0]!r}.")

    @property
    def words(self) -> tuple[tuple[str, int], ...]:
        """Each word that a cell may hold, with its category's number; none if it needs no list."""
        named = self.categories
        if self.spellings and not named:
            named = ("false", "true")
        others = ((word, name) for name, also in self.spellings.items() for word in also)
        return (
            *((name, code) for code, name in enumerate(named)),
            *((word.strip(), named.index(name)) for word, name in others),
        )

    def _check_categories(self) -> None:
        if (self.type == "category") != bool(self.categories):
            raise ValueError(
                'categories go with type = "category" and only there; list all a cell may hold.'
            )
        if self.categories and (self.min, self.max) != (0.0, _last_code(self.categories)):
            raise ValueError("a category has the bounds of its numbers; leave min and max out.")
        if bad := [name for name in self.categories if not name or name != name.strip()]:
            raise ValueError(f"a category must not be empty or have blanks around, got {bad[0]!r}.")

    def _check_missing(self) -> None:
        if isinstance(self.missing, float):
            allowed = not self.categories and self.min <= self.missing <= self.max
        else:
            allowed = self.missing in ("drop", *(self.categories or ("min", "max", "midpoint")))
        if not allowed:
            rule = f"'drop', 'min', 'max', 'midpoint' or a number in [{self.min}, {self.max}]"
            rule = "'drop' or one of the categories" if self.categories else rule
            raise ValueError(f"missing must be {rule}, got {self.missing!r}.")

    @property
    def fill_value(self) -> float:
        """What a missing cell becomes, data units; NaN where the record is dropped."""
        if isinstance(self.missing, float):
            return self.missing
        if self.missing == "drop":
            return math.nan
        if self.categories:
            return float(self.categories.index(self.missing))
        midpoint = (self.min + self.max) / 2
        return {"min": self.min, "max": self.max, "midpoint": midpoint}[self.missing]

    @property
    def public(self) -> PublicColumn:
        """What a task may know of the column."""
        names = ("0", "1") if self.type == "boolean" else self.categories
        return PublicColumn(self.name, self.min, self.max, names)


class Schema(_Contract):
    """What the records of every silo look like, and whom the guarantee protects.

    Parameters
    ----------
    dataset : str
        The owner's own name for the data, under which the ledger books; not part of the digest.
    unit : str
        Unit of privacy: ``"row"``; ``"silo"``, all records of a silo together; or the column that
        says whose record it is. If that is one of `columns`, all rows of a silo with one value are
        one privacy unit, as federated learning needs it, and no other task takes the schema.
    columns : sequence of Column or of mappings
        The features, in the order of every vector.
    max_rows : int >= 1, required with a unit column that is not one of the columns
        At most this many records of one unit are used at each silo: the first ones of the file.
    max_silos_per_person : int >= 1
        At how many silos one person's records may be.
    decimal : {".", ","}
        Sign before the fraction of a number in this silo's file. Not agreed.
    thousands : str
        Sign between groups of three digits: ``"."``, ``","``, ``"'"`` or a blank. Not agreed.
    encoding : str
        Of this silo's text file, as Python names it, where names or words are not in UTF-8, UTF-16
        or Latin-1. Not agreed.
    delimiter : str, one character
        Between the fields of this silo's text file, where its header line does not show it. Not
        agreed.
    multiline : bool
        Whether a quoted cell of this silo's text file may hold line ends. Otherwise a line end
        closes the record. Not agreed.
    """

    dataset: str = Field(min_length=1)
    unit: str = Field(min_length=1)
    max_rows: int | None = Field(default=None, ge=1)
    max_silos_per_person: Silos = 1
    decimal: Literal[".", ","] = "."
    thousands: Literal["", ".", ",", "'", "’", " "] = ""
    encoding: str = ""
    delimiter: str = ""
    multiline: bool = False
    columns: tuple[Column, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="before")
    @classmethod
    def _all_columns(cls, values: Any) -> Any:
        """Refuse every wrong column at once; those of one mistake together."""
        columns = values.get("columns") if isinstance(values, Mapping) else None
        if not isinstance(columns, list | tuple):
            return values
        made: list[Any] = []
        wrong: dict[str, list[str]] = {}
        for one in columns:
            try:
                made.append(Column(**one) if isinstance(one, Mapping) else one)
            except PlanError as error:
                name, mistake = repr(one.get("name")), str(error)
                wrong.setdefault(mistake.removeprefix(f"column {name}: "), []).append(name)
        if wrong:
            raise ValueError(
                " Also: ".join(
                    f"column{'s' * (len(names) > 1)} {', '.join(names)}: {mistake}"
                    for mistake, names in wrong.items()
                )
            )
        return {**values, "columns": made}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_twice(self.names)
        if self.decimal == self.thousands:
            raise ValueError(f"thousands must be another sign than decimal, got {self.decimal!r}.")
        if self.encoding and not _is_charset(self.encoding):
            raise ValueError(
                f"encoding must be one that Python knows, such as 'cp1252', got {self.encoding!r}."
            )
        if (
            len(self.delimiter) > 1
            or self.delimiter in tuple('"\r\n')
            or not self.delimiter.isascii()
        ):
            raise ValueError(
                "delimiter must be one ASCII character, no quote and no line end, got "
                f"{self.delimiter!r}."
            )
        if self.dataset.startswith(FILL_IN):
            raise ValueError("dataset still holds a placeholder; write your own name for the data.")
        if self.unit in self.names:
            self._check_unit(self.columns[self.names.index(self.unit)])
        if self.unit_column is None and self.max_rows is not None:
            raise ValueError(
                f'max_rows goes with a unit column; leave it out where unit = "{self.unit}".'
            )
        if self.unit_column is not None and self.max_rows is None:
            raise ValueError(
                f"max_rows is required with unit = {self.unit!r}; say how many rows of one unit "
                "may count at each silo."
            )
        return self

    def _check_unit(self, column: Column) -> None:
        """Refuse a column of privacy units in which two of them could become one."""
        named = column.type in ("integer", "category")
        if not named or (column.out_of_range, column.missing) != ("drop", "drop"):
            raise ValueError(
                f"unit {self.unit!r} must not be one of the columns, unless its type is "
                '"integer" or "category" and its missing and out_of_range are "drop".'
            )

    @property
    def unit_column(self) -> str | None:
        """The column beside the others whose values say whose a record is."""
        return None if self.unit in ("row", "silo", *self.names) else self.unit

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def group_size(self) -> int:
        """Largest number of records that one unit of privacy has over all silos."""
        return (self.max_rows or 1) * self.max_silos_per_person

    def describe_unit(self) -> str:
        """Say in plain words whom the guarantee protects."""
        silos = f"at up to {self.max_silos_per_person} silos"
        if self.max_silos_per_person == 1:
            silos = "at one silo only"
        if self.unit == "row":
            return f"one row, {silos}"
        if self.unit == "silo":
            return "one silo with all of its records"
        if self.unit_column is None:
            return f"all rows with the same {self.unit!r}, {silos}"
        return f"all rows with the same {self.unit!r}, at most {self.max_rows} a silo, {silos}"

    @property
    def public(self) -> tuple[PublicColumn, ...]:
        """What a task may know of the columns, in order."""
        return tuple(column.public for column in self.columns)

    def select(self, names: Iterable[str]) -> Self:
        """Return what the schema says of some columns.

        It is another contract, with another digest: it would keep records that the whole drops. A
        job over some columns is planned and read by the whole one, see the `columns` of
        :func:`~cloister.app.job.make_plan` and :func:`~cloister.data.read_source`. Columns keep
        their order; one that is the privacy unit must not be left out.
        """
        wanted = frozenset(_names_of(names))
        if unknown := wanted.difference(self.names):
            raise PlanError(f"columns must be of the schema, which has no {min(unknown)!r}.")
        if self.unit in self.names and self.unit not in wanted:
            raise PlanError(f"columns must hold the unit of privacy, {self.unit!r}.")
        chosen = tuple(column for column in self.columns if column.name in wanted)
        return type(self)(**{**dict(self), "columns": chosen})

    def written_as(
        self, *, columns: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any
    ) -> Self:
        """Return the schema for a file that is written in another way; its digest is the same.

        Parameters
        ----------
        columns : mapping of a name to settings, optional
            `format` or `spellings` of some columns.
        settings
            `decimal`, `thousands`, `encoding`, `delimiter`, `multiline`.

        Raises
        ------
        PlanError
            If the schema has no such column, or a setting is no setting of reading.

        Examples
        --------
        >>> ward = Schema(dataset="w", unit="row", columns=[{"name": "ill", "type": "boolean"}])
        >>> german = ward.written_as(decimal=",", columns={"ill": {"spellings": {"true": ["J"]}}})
        >>> german.digest() == ward.digest()
        True
        """
        changes = {} if columns is None else columns
        if not (isinstance(changes, Mapping) and all(map(_is_mapping, changes.values()))):
            raise PlanError(f"columns must be a table of settings for each name, got {columns!r}.")
        if unknown := [name for name in changes if name not in self.names]:
            raise PlanError(f"columns must be of the schema, which has no {unknown[0]!r}.")
        given = [*settings, *(f"columns.{name}.{key}" for name in changes for key in changes[name])]
        known = [*_WRITING, *(f"columns.{name}.{key}" for name in changes for key in _OF_FILES)]
        if strange := [key for key in given if key not in known]:
            raise PlanError(
                f"{strange[0]!r} is no setting of how a file is written; take one of "
                f"{', '.join(_WRITING)}, or format or spellings of a column."
            )
        written = tuple(
            type(one)(**{**dict(one), **changes[one.name]}) if one.name in changes else one
            for one in self.columns
        )
        return type(self)(**{**dict(self), **settings, "columns": written})

    def grid(self, frac_bits: int = 16) -> Grid:
        """Return the public box of the columns with its lattice."""
        low = tuple(column.min for column in self.columns)
        high = tuple(column.max for column in self.columns)
        return Grid(low=low, high=high, frac_bits=frac_bits)

    def contract(self, frac_bits: int = 16, columns: Iterable[str] | None = None) -> Contract:
        """Return by what records of the schema, or of some of its columns, are read."""
        chosen = self if columns is None else self.select(columns)
        return Contract(
            grid=chosen.grid(frac_bits),
            columns=chosen.names,
            unit=self.unit,
            max_rows=self.max_rows or 1,
            schema_digest=self.digest(),
        )

    def agreed(self) -> dict[str, Any]:
        """Return the part that all silos share, as plain JSON values."""
        agreed = self.model_dump(mode="json", exclude={"dataset", *_WRITING})
        for column in agreed["columns"]:
            del column["format"], column["spellings"]
            if not column["categories"]:
                del column["categories"]
        return {"schema": _FORMAT, **agreed}

    def digest(self) -> str:
        """Return the SHA-256 of the agreed part in canonical JSON, as 64 hexadecimal digits."""
        text = json.dumps(self.agreed(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a schema from a TOML file, or from JSON where the name ends in ``.json``."""
        content = _read(path)
        try:
            return cls(**content)
        except PlanError as error:
            raise PlanError(f"schema {os.fspath(path)!r}: {error}") from None

    def to_toml(self) -> str:
        """Return the text that `load` reads back to an equal schema."""
        head = self.model_dump(exclude={"columns"}, exclude_none=True)
        head = {key: value for key, value in head.items() if key not in _WRITING or value}
        return tomli_w.dumps({**head, "columns": [_written(column) for column in self.columns]})


def schema_of(columns: Sequence[PublicColumn]) -> Schema:
    """Return a schema with these columns, for records that are made up."""
    made = [
        Column(
            name=public.name,
            type="category" if public.categories else "number",
            min=public.low,
            max=public.high,
            categories=public.categories,
        )
        for public in columns
    ]
    return Schema(dataset="example", unit="row", columns=tuple(made))


def init_schema(
    columns: Sequence[str],
    codebook: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    dataset: str | None = None,
    unit: str = "row",
    max_rows: int | None = None,
) -> str:
    """Draft a schema from column names and a public codebook; values are never looked at.

    Parameters
    ----------
    columns : sequence of str
        Names from a file's header, see `cloister.data.header`.
    codebook : path, or mapping of a column's name to its keys, optional
        CSV with the header ``name,type,min,max,measure`` (and ``categories``, ``missing``,
        ``out_of_range`` if wanted), or TOML with the same keys in ``[[columns]]`` or in one table
        per column. Categories stand in one cell with ``|`` between.
    dataset : str, optional
        The owner's name for the data.
    unit, max_rows : str and int, optional
        As in `Schema`.

    Returns
    -------
    str
        TOML. What the codebook does not say is a placeholder, which `Schema.load` refuses.
    """
    _refuse_twice(_names_of(columns))
    entries = {} if codebook is None else codebook
    if not isinstance(entries, Mapping):
        entries = read_codebook(entries)
    head = tomli_w.dumps({"dataset": dataset or f"{FILL_IN}: your own name for the data"})
    if max_rows is None:
        head += 'unit = "row"  # or the column that says whose record it is, with max_rows = ...\n'
    else:
        head += tomli_w.dumps({"unit": unit, "max_rows": max_rows})
    head += "max_silos_per_person = 1\n"
    return head + "".join(_draft(name, entries.get(name)) for name in columns)


def catalogue_schema(
    items: Sequence[str] | str | os.PathLike[str],
    *,
    dataset: str,
    max_silos_per_person: int = 1,
) -> Schema:
    """Make the schema of market baskets from the public names of the items.

    Parameters
    ----------
    items : sequence of str, or path of a text file with one on each line
        From a price list or a range of goods; never from the baskets, whose rare items identify
        somebody. At most 10000. Their order is part of the digest.
    dataset, max_silos_per_person
        As in `Schema`; the unit of privacy is one basket.

    Returns
    -------
    Schema
        One boolean column for each item. Read baskets by it with `cloister.data.Baskets`, or a
        table that has a column of truth values for each item.
    """
    where = ""
    if isinstance(items, str | os.PathLike):
        where = f" of {os.fspath(items)!r}"
        lines = read_text(items, f"catalogue {os.fspath(items)!r}").splitlines()
        items = [line for line in lines if line.strip()]
    names = [str(item).strip() for item in items]
    if not 1 <= len(names) <= _MOST_ITEMS:
        raise PlanError(
            f"items{where} must be 1 to {_MOST_ITEMS}, got {len(names)}; leave out what no "
            "question is about."
        )
    _refuse_twice(names, f"items{where} must be different")
    columns = tuple(Column(name=name, type="boolean", min=0.0, max=1.0) for name in names)
    return Schema(
        dataset=dataset, unit="row", max_silos_per_person=max_silos_per_person, columns=columns
    )


def differences(first: Schema, second: Schema) -> list[tuple[str, str, Any, Any]]:
    """Return what two schemas do not agree on; empty exactly where their digests are equal.

    Returns
    -------
    list of (column, key, of the first, of the second)
        The column is "" for what holds for the schema as a whole. A value is None where one of
        them has none. A column's "place" is its number in the order, from 1; it is compared where
        both have the column.
    """
    left, right = _facts(first), _facts(second)
    found: list[tuple[str, str, Any, Any]] = []
    for name in {**left, **right}:
        one, two = left.get(name), right.get(name)
        if one is None or two is None:
            found.append((name, "column", "yes" if one else None, "yes" if two else None))
            continue
        keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
        found += [(name, key, one.get(key), two.get(key)) for key in keys]
    return found


def _facts(schema: Schema) -> dict[str, dict[str, Any]]:
    """Return what is agreed of the schema as a whole, under "", and of each column."""
    agreed = schema.agreed()
    columns = enumerate(agreed.pop("columns"), start=1)
    return {"": agreed} | {column["name"]: {**column, "place": at} for at, column in columns}


def _names_of(columns: Iterable[str]) -> tuple[str, ...]:
    names = () if isinstance(columns, str | os.PathLike) else tuple(columns)
    if not names:
        raise PlanError(
            f"columns must be a list of one or more names, got {columns!r}; header() reads those "
            "of a file."
        )
    return names


def _refuse_twice(names: Iterable[str], rule: str = "columns must have different names") -> None:
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise PlanError(f"{rule}, {twice[0]!r} stands twice; remove one.")


def _draft(name: str, entry: Mapping[str, Any] | None) -> str:
    """Return the block of one column, with placeholders for what the codebook leaves open."""
    needed = {
        "type": f"{FILL_IN}: number, integer, boolean, category or date",
        "min": f"{FILL_IN}: lowest value a codebook allows, not the lowest in the file",
        "max": f"{FILL_IN}: highest value a codebook allows, not the highest in the file",
    }
    if (entry or {}).get("type") == "category":
        listed = f"{FILL_IN}: a list of all categories a codebook allows, not those in the file"
        needed = {"type": "category", "categories": listed}
    given = {key: value for key, value in (entry or {}).items() if value not in ("", None)}
    if given.get("type") == "boolean":
        given = {"min": 0.0, "max": 1.0, **given}
    if needed.keys() <= given.keys():
        return "\n" + tomli_w.dumps({"columns": [_written(Column(**{**given, "name": name}))]})
    note = "\n# complete this block, or delete it if the column is not to be used\n"
    return note + tomli_w.dumps({"columns": [{"name": name, **needed, **given}]})


def _written(column: Column) -> dict[str, Any]:
    """Return what a file says of a column; bounds and categories only where they say something."""
    values = column.model_dump()
    for key in ("min", "max") if column.categories else ("categories",):
        del values[key]
    return {key: value for key, value in values.items() if value or key not in _OF_FILES}


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_charset(name: str) -> bool:
    """Return whether an encoding is of characters, and takes any bytes when told to replace."""
    try:
        "".encode(name)
        return codecs.lookup(name).name not in _NO_CHARSETS
    except (LookupError, UnicodeError):
        return False


def _as_bound(given: Any, kind: str) -> Any:
    """Return the bound of a column; that of a date may be a day, or say one."""
    if kind == "date" and isinstance(given, str):
        with suppress(ValueError):
            given = day_of(given)
    return float(decimal_years(np.array(given))) if isinstance(given, date) else given


def _last_code(categories: Any) -> float:
    """Return the number of the last category; there are at least two different ones."""
    names = list(categories) if isinstance(categories, list | tuple) else []
    if len(names) < 2 or len(set(map(str, names))) != len(names):
        raise ValueError("categories must be at least 2 different texts.")
    return len(names) - 1.0


def read_text(path: str | os.PathLike[str], label: str) -> str:
    """Return the text of a file that messages call `label`, or raise a PlanError."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # a ValueError is of the path, or of its text
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise PlanError(f"{label} cannot be read: {why}.") from None


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the top-level table of a TOML or JSON file."""
    name = os.fspath(path)
    text = read_text(path, repr(name))
    try:
        content = json.loads(text) if name.lower().endswith(".json") else tomllib.loads(text)
    except ValueError as error:  # of tomllib and json alike
        raise PlanError(f"{name!r} is not valid: {error}.") from None
    if not isinstance(content, dict):
        raise PlanError(f"{name!r} must hold a table of keys, got a {type(content).__name__}.")
    return content


def read_codebook(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Return what a codebook, or a schema, says of each column, by its name."""
    name = os.fspath(path)
    if name.lower().endswith((".toml", ".json")):
        content = _read(path)
        rows = content.get("columns")
        if not isinstance(rows, list):
            rows = [{**row, "name": key} for key, row in content.items() if isinstance(row, dict)]
        return {str(row["name"]): row for row in rows if isinstance(row, dict) and "name" in row}
    lines = read_text(path, f"codebook {name!r}").splitlines()
    header = lines[0] if lines else ""
    table = csv.DictReader(lines, delimiter=max(_DELIMITERS, key=header.count))
    if "name" not in (table.fieldnames or ()):
        raise PlanError(f"codebook {name!r} needs a header with name,type,min,max,measure.")
    known = set(Column.model_fields)
    found: dict[str, dict[str, Any]] = {}
    for row in table:
        kind = str(read_cell("type", row.get("type") or "", ""))
        entry = {
            key: read_cell(key, value, kind)
            for key, value in row.items()
            if key in known and isinstance(value, str)
        }
        if kind == "boolean" and entry.get("categories"):  # its words are its own
            entry["type"] = "category"
        found[str(row["name"]).strip()] = entry
    return found


def read_cell(key: str, text: str, kind: str) -> str | float | tuple[str, ...]:
    """Read a cell of a codebook, in the row of a column of some type.

    Between categories stands ``|`` or, if there is none, a semicolon, a comma or a slash.
    """
    text = text.strip()
    if key == "categories":
        parts = text.split("|") if "|" in text else re.split("[;,/]", text)
        return tuple(part.strip() for part in parts) if text else ""
    if key == "type":
        return _OTHER_TYPES.get(text.lower(), text)
    if key not in ("min", "max", "missing") or (key == "missing" and kind == "category"):
        return text
    try:
        return float(text)
    except ValueError:
        return text


def _sentence(error: ValidationError) -> str:
    """Return the first mistake as a sentence; a schema is public, so its values may be shown."""
    first = error.errors(include_url=False)[0]
    where = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] == "extra_forbidden":
        return f"{where!r} is not a key of a schema; remove it, or correct its spelling."
    if first["type"] == "missing":
        return f"{where!r} is missing; every schema has to give it."
    rule = re.sub(r"^\w+ should", "must", first["msg"])
    value = first["input"]
    shown = f", got {value!r}" if isinstance(value, str | int | float | None) else ""
    return f"{where} {rule}{shown}."
