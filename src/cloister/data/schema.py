"""The data contract on which all silos agree before any record is read.

A schema defines the columns, their public bounds, the rules for values that are missing or out of
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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cloister.core.dates import day_of, decimal_years, nearest_day
from cloister.core.errors import PlanError, choosing
from cloister.core.files import toml_of
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Contract, Grid
from cloister.protocol.task import BOOLEAN, PublicColumn

FILL_IN = "FILL IN"  # prefix of a placeholder of `init_schema`
# Settings for the format of one silo's file, which the silos need not agree on.
_WRITING = ("decimal", "thousands", "encoding", "delimiter", "multiline", "unit_header")
_OF_FILES = ("format", "spellings", "absent", "header")  # the same for a column
# Codecs of Python that do not encode a file of text, or raise for some bytes in any error mode.
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")
_FORMAT = 1  # part of the digest: increase it if the meaning of a key changes
_LARGEST = 1e100  # |bound|; avoids overflow in all arithmetic on the box
_NARROWEST = 1e-100  # max - min; avoids underflow
_DELIMITERS = ",;\t|"
_WORD_LISTS = ("values", "levels")  # other headers of the categories in codebooks
_OTHER_TYPES = {  # names of the types in codebooks
    **dict.fromkeys(("numeric", "float", "decimal", "continuous"), "number"),
    **dict.fromkeys(("int", "count"), "integer"),
    **dict.fromkeys(("bool", "binary", "yes/no", "yes-no"), "boolean"),
    **dict.fromkeys(("nominal", "ordinal", "categorical", "factor"), "category"),
}
_MOST_ITEMS = 10_000  # of a catalogue, since each item takes 4 bytes of every record


Bound = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
Silos = Annotated[int, Field(ge=1)]


class _Contract(BaseModel):
    """A frozen value whose validation raises a `PlanError` of one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            subject = f"column {values.get('name')!r}: " if isinstance(self, Column) else ""
            raise PlanError(subject + _sentence(error)) from None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # Without defaults: the representation of a model has that of its schema.
        for name, value in super().__repr_args__():
            if value != type(self).model_fields[str(name)].default:
                yield name, value


class Column(_Contract):
    """One column of the records.

    Parameters
    ----------
    name : str
        Name in the header of every file.
    type : {"number", "integer", "boolean", "category", "date"}
        A cell of another type counts as missing. A date is a number: its year with a fraction, so
        that 2 July 2021 is 2021.5.
    min, max : float, data units, ``min < max``
        Public bounds: from a codebook, a guideline or physics; never from the records. Those of a
        date may be dates. Categories and booleans have no bounds.
    categories : sequence of str, at least 2, only for a category
        All categories of the codebook; category i has the number i, from 0. Any other text in a
        cell counts as missing.
    step : float > 0, data units, only for a number
        Every value is a multiple of it: 3 for quarterly visits in months, 0.5 for half points.
        Integers have the step 1. Other values are not rounded to it.
    measure : str
        Unit of measure, free text. All silos must agree on it.
    missing : {"drop", "keep", "min", "max", "midpoint"} or float in [min, max]
        Drop the record, or insert this value; for a category also one of the categories. A record
        that is kept is left out by every task but ``imputed-regression``.
    out_of_range : {"clip", "drop"}
        Move the value to the nearer bound, or drop the record.
    format : str, only for a date
        Format of dates in this silo's file, for strptime; by default as 2021-07-02. Silos need not
        agree on it.
    spellings : mapping of a category to other words for it; of "true" and "false" for a boolean
        Other words for it in this silo's file. Silos need not agree on them.
    absent : sequence of str
        Further words for a missing cell in this silo's file, such as ``999``. Silos need not agree
        on them.
    header : str
        Name in the header of this silo's file, if it is another. Silos need not agree on it.
    """

    name: str
    type: Literal["number", "integer", "boolean", "category", "date"]
    min: Bound
    max: Bound
    step: Annotated[float, Field(gt=0, le=_LARGEST, allow_inf_nan=False)] | None = None
    measure: str = ""
    missing: str | float = "drop"
    out_of_range: Literal["clip", "drop"] = "clip"
    categories: tuple[str, ...] = Field(default=(), strict=False)
    format: str = ""
    spellings: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(default={})
    absent: tuple[str, ...] = Field(default=(), strict=False)
    header: str = ""

    @model_validator(mode="before")
    @classmethod
    def _public_bounds(cls, values: Any) -> Any:
        """Raise if a bound is absent or text; the message names the sources of public bounds."""
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
        # Of an unknown type, pydantic's message on the type comes first.
        for bound in ("min", "max") if known else ():
            value = values[bound] = _as_bound(values.get(bound), kind)
            if value is None or isinstance(value, str):
                kind = "day such as 2020-01-31" if kind == "date" else "number"
                raise ValueError(
                    f"{bound} must be a public {kind}, got {value!r}; use the bound from a "
                    "codebook, a guideline or physics, because a bound read from the records "
                    f"discloses one of them{choosing('bounds')}."
                )
            if not isinstance(value, bool) and isinstance(value, int | float):
                values[bound] = float(value) + 0.0  # -0.0 and 0.0 must give the same digest
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.max - self.min >= _NARROWEST:
            raise ValueError(f"min must be below max, got ({self.min}, {self.max}).")
        if self.type == "boolean" and (self.min, self.max) != (0.0, 1.0):
            raise ValueError("a boolean has the bounds 0 and 1; remove min and max.")
        if self.format and self.type != "date":
            raise ValueError('format is valid only for type = "date"; remove it.')
        if self.step is not None and self.type != "number":
            raise ValueError('step is valid only for type = "number"; remove it.')
        self._check_categories()
        self._check_spellings()
        self._check_missing()
        return self

    def _check_spellings(self) -> None:
        named = self.categories or (BOOLEAN if self.type == "boolean" else ())
        if unknown := [name for name in self.spellings if name not in named]:
            raise ValueError(
                f"spellings must have categories of the column as keys, got {unknown[0]!r}."
            )
        words = [*named, *(word for also in self.spellings.values() for word in also)]
        if repeated := [word for word in words if not word.strip() or words.count(word) > 1]:
            raise ValueError(
                "a spelling must not be blank and must belong to one category, got "
                f"{repeated[0]!r}."
            )

    @property
    def words(self) -> tuple[tuple[str, int], ...]:
        """Each word that a cell may contain, with its category's number; empty for other types."""
        named = self.categories
        if self.spellings and not named:
            named = BOOLEAN
        others = ((word, name) for name, also in self.spellings.items() for word in also)
        return (
            *((name, code) for code, name in enumerate(named)),
            *((word.strip(), named.index(name)) for word, name in others),
        )

    def _check_categories(self) -> None:
        if (self.type == "category") != bool(self.categories):
            raise ValueError(
                'categories are required for type = "category" and valid only there; list all '
                "categories that a cell may have."
            )
        if self.categories and (self.min, self.max) != (0.0, _last_code(self.categories)):
            raise ValueError("the bounds of a category are its numbers; remove min and max.")
        if bad := [name for name in self.categories if not name or name != name.strip()]:
            raise ValueError(
                f"a category must not be empty, nor begin or end with blanks, got {bad[0]!r}."
            )

    def _check_missing(self) -> None:
        if isinstance(self.missing, float):
            allowed = not self.categories and self.min <= self.missing <= self.max
        else:
            values = self.categories or ("min", "max", "midpoint")
            allowed = self.missing in ("drop", "keep", *values)
        if not allowed:
            rule = "'drop', 'keep', 'min', 'max', 'midpoint' or "
            rule += f"a number in [{self.min}, {self.max}]"
            if self.categories:
                rule = "'drop', 'keep' or one of the categories"
            raise ValueError(f"missing must be {rule}, got {self.missing!r}.")

    @property
    def fill_value(self) -> float:
        """Value of a missing cell, data units; NaN if the record is dropped, or the cell kept."""
        if isinstance(self.missing, float):
            return self.missing
        if self.missing == "drop" or self.keeps_missing:
            return math.nan
        if self.categories:
            return float(self.categories.index(self.missing))
        midpoint = (self.min + self.max) / 2
        return {"min": self.min, "max": self.max, "midpoint": midpoint}[self.missing]

    @property
    def filled(self) -> str:
        """The text of `fill_value`, empty if the record is dropped."""
        if math.isnan(self.fill_value):
            return ""
        if self.categories:
            return self.categories[int(self.fill_value)]
        return str(nearest_day(self.fill_value)) if self.type == "date" else f"{self.fill_value:g}"

    @property
    def keeps_missing(self) -> bool:
        """True if a record that lacks a cell of the column is kept without a value for it."""
        return self.missing == "keep" and "keep" not in self.categories

    @property
    def public(self) -> PublicColumn:
        """The public part of the column, which a task may use."""
        names = BOOLEAN if self.type == "boolean" else self.categories
        step = 1.0 if self.type == "integer" else self.step or 0.0
        # A value that is filled in between two multiples would be read as one of them.
        if step and not math.isnan(self.fill_value):
            multiple = round(self.fill_value / step) * step
            step *= math.isclose(multiple, self.fill_value, rel_tol=1e-9, abs_tol=1e-9 * step)
        date, incomplete = self.type == "date", self.keeps_missing
        return PublicColumn(self.name, self.min, self.max, names, step, date, incomplete)


class Schema(_Contract):
    """The columns of the records of every silo, their rules, and the unit of privacy.

    Parameters
    ----------
    dataset : str
        The owner's name for the data, under which the ledger charges; not part of the digest.
    unit : str
        Unit of privacy: ``"row"``; ``"silo"``, all records of a silo together; or the column that
        identifies the person. If this is one of `columns`, all rows of a silo with the same value
        are one privacy unit. Federated learning requires this, and no other task accepts it.
    columns : sequence of Column or of mappings
        The features, in the order of every vector.
    max_rows : int >= 1, required with a unit column that is not one of the columns
        Maximum number of records of one unit at each silo; the first ones of the file are used.
    max_silos_per_person : int >= 1
        Maximum number of silos that may have records of one person.
    decimal : {".", ","}
        Decimal sign of numbers in this silo's file. Silos need not agree on it, nor on the
        following settings.
    thousands : str
        Sign between groups of three digits: ``"."``, ``","``, ``"'"`` or a blank.
    encoding : str
        Python's name of the encoding of this silo's text file, if it is not UTF-8, UTF-16 or
        Latin-1.
    delimiter : str, one character
        Sign between the fields of this silo's text file, if its header line does not show it.
    multiline : bool
        If True, a quoted cell of this silo's text file may contain line ends. Otherwise a line end
        closes the record.
    unit_header : str
        Name of the unit column in the header of this silo's file, if it is another.
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
    unit_header: str = ""
    columns: tuple[Column, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="before")
    @classmethod
    def _all_columns(cls, values: Any) -> Any:
        """Raise one error for all wrong columns, grouped by mistake."""
        columns = values.get("columns") if isinstance(values, Mapping) else None
        if not isinstance(columns, list | tuple):
            return values
        valid: list[Any] = []
        wrong: dict[str, list[str]] = {}
        # All mistakes together, so that the author need not correct and rerun for each column.
        for column in columns:
            try:
                valid.append(Column(**column) if isinstance(column, Mapping) else column)
            except PlanError as error:
                name, mistake = repr(column.get("name")), str(error)
                wrong.setdefault(mistake.removeprefix(f"column {name}: "), []).append(name)
        if wrong:
            raise ValueError(
                " Also: ".join(
                    f"column{'s' * (len(names) > 1)} {', '.join(names)}: {mistake}"
                    for mistake, names in wrong.items()
                )
            )
        return {**values, "columns": valid}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_twice(self.names)
        _refuse_twice(self.headers, "columns must have different headers")
        if self.decimal == self.thousands:
            raise ValueError(f"thousands and decimal must differ, got {self.decimal!r} for both.")
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
                "delimiter must be one ASCII character other than a quote or a line end, got "
                f"{self.delimiter!r}."
            )
        if self.dataset.startswith(FILL_IN):
            raise ValueError("dataset is still a placeholder; choose a name for the data.")
        if self.unit in self.names:
            self._check_unit(self.columns[self.names.index(self.unit)])
        if self.unit_column is None and self.max_rows is not None:
            raise ValueError(
                f'max_rows is valid only with a unit column; remove it for unit = "{self.unit}".'
            )
        if self.unit_column is not None and self.max_rows is None:
            raise ValueError(
                f"max_rows is required with unit = {self.unit!r}; set the maximum number of rows "
                "of one unit at each silo."
            )
        return self

    def _check_unit(self, column: Column) -> None:
        """Raise if the rules of a unit column could merge two privacy units."""
        named = column.type in ("integer", "category")
        if not named or (column.out_of_range, column.missing) != ("drop", "drop"):
            raise ValueError(
                f"unit {self.unit!r} is one of the columns, so its type must be "
                '"integer" or "category", and its missing and out_of_range must be "drop".'
            )

    @property
    def unit_column(self) -> str | None:
        """The separate column whose values identify the person, or None."""
        return None if self.unit in ("row", "silo", *self.names) else self.unit

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def __getitem__(self, name: str) -> Column:
        """Return a column; raise KeyError for another name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"no column {name!r}; the schema has {', '.join(self.names)}")

    @property
    def headers(self) -> tuple[str, ...]:
        """Names of the columns in this silo's file."""
        return tuple(column.header or column.name for column in self.columns)

    @property
    def unit_in_file(self) -> str | None:
        """Name of the separate unit column in this silo's file, or None."""
        return self.unit_column and (self.unit_header or self.unit_column)

    @property
    def group_size(self) -> int:
        """Largest number of records that one unit of privacy has over all silos."""
        return (self.max_rows or 1) * self.max_silos_per_person

    def describe_unit(self) -> str:
        """Return a short description of the unit that the guarantee protects."""
        silos = f"at up to {counted(self.max_silos_per_person, 'silo')}"
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
        """The public parts of the columns, in order, which a task may use."""
        return tuple(column.public for column in self.columns)

    def select(self, names: Iterable[str]) -> Self:
        """Return a schema of some of the columns.

        It is another contract with another digest, because it would keep records that the whole
        schema drops. A job over some columns uses the whole schema, see the `columns` of
        :func:`~cloister.app.job.make_plan` and :func:`~cloister.data.read_source`. Columns keep
        their order; a column that is the privacy unit must be selected.
        """
        wanted = frozenset(_names_of(names))
        if unknown := wanted.difference(self.names):
            raise PlanError(
                f"the schema has no column {min(unknown)!r}; select some of its columns."
            )
        if self.unit in self.names and self.unit not in wanted:
            raise PlanError(f"columns must include the unit of privacy, {self.unit!r}.")
        chosen = tuple(column for column in self.columns if column.name in wanted)
        return type(self)(**{**dict(self), "columns": chosen})

    def written_as(
        self, *, columns: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any
    ) -> Self:
        """Return the schema for a file in another format; its digest is the same.

        Parameters
        ----------
        columns : mapping of a name to settings, optional
            `format`, `spellings`, `absent` or `header` of some columns.
        settings
            `decimal`, `thousands`, `encoding`, `delimiter`, `multiline`, `unit_header`.

        Raises
        ------
        PlanError
            If the schema has no such column, or a setting does not concern the file format.

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
            raise PlanError(f"the schema has no column {unknown[0]!r}; change some of its columns.")
        keys = [*settings, *(f"columns.{name}.{key}" for name in changes for key in changes[name])]
        known = [*_WRITING, *(f"columns.{name}.{key}" for name in changes for key in _OF_FILES)]
        # Any other key would change the digest, on which the silos agreed.
        if invalid := [key for key in keys if key not in known]:
            raise PlanError(
                f"{invalid[0]!r} is not a setting of the file format; use "
                f"{', '.join(_WRITING)}, or {', '.join(_OF_FILES)} of a column."
            )
        changed = tuple(
            type(column)(**{**dict(column), **changes[column.name]})
            if column.name in changes
            else column
            for column in self.columns
        )
        return type(self)(**{**dict(self), **settings, "columns": changed})

    def format_settings(self) -> dict[str, Any]:
        """Return the settings of the file format that are not the default, see `written_as`."""
        settings = {key: getattr(self, key) for key in _WRITING}
        plain = {"decimal": ".", "multiline": False}
        chosen = {key: value for key, value in settings.items() if value != plain.get(key, "")}
        columns = {
            column.name: {key: value for key in _OF_FILES if (value := getattr(column, key))}
            for column in self.columns
        }
        changed = {name: keys for name, keys in columns.items() if keys}
        return {**chosen, **({"columns": changed} if changed else {})}

    def grid(self, frac_bits: int = 16) -> Grid:
        """Return the public box of the columns with its lattice."""
        low = tuple(column.min for column in self.columns)
        high = tuple(column.max for column in self.columns)
        return Grid(low=low, high=high, frac_bits=frac_bits)

    def contract(self, frac_bits: int = 16, columns: Iterable[str] | None = None) -> Contract:
        """Return the contract of records that are read by the schema or some of its columns."""
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
            for key in _OF_FILES:
                del column[key]
            # Only a category has the key, so that digests from before categories stay valid.
            if not column["categories"]:
                del column["categories"]
            if column["step"] is None:  # likewise, as only some numbers have a step
                del column["step"]
        return {"schema": _FORMAT, **agreed}

    def digest(self) -> str:
        """Return the SHA-256 of the agreed part in canonical JSON, as 64 hexadecimal digits."""
        text = json.dumps(self.agreed(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def propose(
        cls,
        table: Any,
        bounds: Mapping[str, Any] | None = None,
        *,
        dataset: str = "unnamed",
        unit: str = "row",
        max_rows: int | None = None,
        missing: Mapping[str, str | float] | None = None,
    ) -> Self:
        """Return a schema of a table's columns; only their names and declared types are read.

        Parameters
        ----------
        table : DataFrame of pandas or polars, Arrow table, or path
            A text file declares no types.
        bounds : mapping of a name to (low, high), a list of categories, text or None
            Public facts; text as in ``"0..120"``, ``"female|male"`` or ``"yes-no"``. None leaves a
            column out. Truth values need no entry. In a column of numbers or dates, two of these
            are bounds in any sequence; categories are then texts, such as ``["1", "2"]``.
        dataset, unit, max_rows
            As in `Schema`. The unit column needs no entry.
        missing : mapping of a name to a rule, optional
            Rules for missing cells as in `Column`, such as ``{"age": "keep"}``; by default "drop".

        Raises
        ------
        PlanError
            With a list of the columns that need bounds.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [50, 60], "ill": [True, False], "name": ["x", "y"]})
        >>> Schema.propose(frame, {"age": (0, 120), "name": None}).names
        ('age', 'ill')
        """
        from cloister.data.records import column_kinds  # which imports this module

        for name, public in (("bounds", bounds), ("missing", missing)):
            if not isinstance(public, Mapping | None):
                raise PlanError(
                    f"{name} must be a mapping from the names of columns, such as "
                    f"{{'age': {'(0, 120)' if name == 'bounds' else repr('keep')}}}, "
                    f"got {public!r}."
                )
        given, rules = bounds or {}, missing or {}
        given = {name: public for name, public in given.items() if name != unit}
        kinds = {name: kind for name, kind in column_kinds(table).items() if name != unit}
        if unknown := [name for name in (*given, *rules) if name not in kinds]:
            raise PlanError(f"the table has no column {unknown[0]!r}; it has {', '.join(kinds)}.")
        kinds = {name: kind for name, kind in kinds.items() if given.get(name, "") is not None}
        lacking = [name for name, kind in kinds.items() if name not in given and kind != "boolean"]
        if lacking:
            listed = ", ".join(f"{name!r} ({kinds[name] or 'unknown type'})" for name in lacking)
            forms = {"category": "a list of categories", "": "(low, high) or a list of categories"}
            entries = ", ".join(
                f"{name!r}: {forms.get(kinds[name], '(low, high)')}" for name in lacking[:5]
            )
            raise PlanError(
                f"public bounds are needed of {listed}: give bounds={{{entries}"
                f"{', ...' if lacking[5:] else ''}}}, or None to leave a column out, and missing="
                '{name: "keep"} where a regression will impute missing cells. Use a codebook or a '
                "guideline, because bounds from the records disclose one of them"
                f"{choosing('bounds')}."
            )
        columns = tuple(
            Column(
                name=name,
                **_proposed(name, given.get(name, "yes-no"), kind),
                missing=rules.get(name, "drop"),
            )
            for name, kind in kinds.items()
        )
        return cls(dataset=dataset, unit=unit, max_rows=max_rows, columns=columns)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a schema from a TOML file, or from JSON if the name ends in ``.json``."""
        content = _read(path)
        try:
            return cls(**content)
        except PlanError as error:
            raise PlanError(f"schema {os.fspath(path)!r}: {error}") from None

    def __str__(self) -> str:
        return self.to_toml()

    def to_toml(self) -> str:
        """Return TOML text that `load` reads as an equal schema."""
        head = self.model_dump(exclude={"columns"}, exclude_none=True)
        head = {key: value for key, value in head.items() if key not in _WRITING or value}
        return tomli_w.dumps({**head, "columns": [_toml_keys(column) for column in self.columns]})


def reading_file(schemas: Mapping[str, Schema]) -> str:
    """Return the TOML of reading settings, from the schema of each file by its name."""
    return tomli_w.dumps({name: schema.format_settings() for name, schema in schemas.items()})


def schema_of(columns: Sequence[PublicColumn]) -> Schema:
    """Return a schema with these columns, for generated records."""
    schema_columns = [
        Column(
            name=public.name,
            type=(
                "boolean"
                if public.categories == BOOLEAN
                else "category"
                if public.categories
                else "date"
                if public.date
                else "number"
            ),
            min=public.low,
            max=public.high,
            categories=() if public.categories == BOOLEAN else public.categories,
            step=public.step or None,
            missing="keep" if public.incomplete else "drop",
        )
        for public in columns
    ]
    return Schema(dataset="example", unit="row", columns=tuple(schema_columns))


def init_schema(
    columns: Sequence[str],
    codebook: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    dataset: str | None = None,
    unit: str = "row",
    max_rows: int | None = None,
) -> str:
    """Draft a schema from column names and a public codebook, without reading any values.

    Parameters
    ----------
    columns : sequence of str
        Names from a file's header, see `cloister.data.header`.
    codebook : path, or mapping of a column's name to its keys, optional
        CSV with the header ``name,type,min,max,measure`` (and optionally ``categories``,
        ``missing``, ``out_of_range``), or TOML with the same keys in ``[[columns]]`` or in one
        table per column. In a CSV cell, ``|`` separates categories.
    dataset : str, optional
        The owner's name for the data.
    unit, max_rows : str and int, optional
        As in `Schema`.

    Returns
    -------
    str
        TOML. It has a placeholder, which `Schema.load` refuses, for each value that the codebook
        does not give.
    """
    _refuse_twice(_names_of(columns))
    entries = {} if codebook is None else codebook
    if not isinstance(entries, Mapping):
        entries = read_codebook(entries)
    head = tomli_w.dumps({"dataset": dataset or f"{FILL_IN}: your own name for the data"})
    if max_rows is None:
        head += 'unit = "row"  # or the column that identifies the person, with max_rows = ...\n'
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
    """Return the schema of market baskets from the public names of the items.

    Parameters
    ----------
    items : sequence of str, or path of a text file with one on each line
        Items of a price list or a range of goods, at most 10000. Never from the baskets, whose
        rare items identify a person. Their order is part of the digest.
    dataset, max_silos_per_person
        As in `Schema`; the unit of privacy is one basket.

    Returns
    -------
    Schema
        One boolean column for each item. It reads `cloister.data.Baskets`, or a table with a column
        of truth values for each item.
    """
    where = ""
    if isinstance(items, str | os.PathLike):
        where = f" of {os.fspath(items)!r}"
        lines = read_text(items, f"catalogue {os.fspath(items)!r}").splitlines()
        items = [line for line in lines if line.strip()]
    names = [str(item).strip() for item in items]
    if not 1 <= len(names) <= _MOST_ITEMS:
        raise PlanError(
            f"items{where} must be 1 to {_MOST_ITEMS}, got {len(names)}; list only items that the "
            "analyses need."
        )
    _refuse_twice(names, f"items{where} must be different")
    columns = tuple(Column(name=name, type="boolean", min=0.0, max=1.0) for name in names)
    return Schema(
        dataset=dataset, unit="row", max_silos_per_person=max_silos_per_person, columns=columns
    )


def differences(first: Schema, second: Schema) -> list[tuple[str, str, Any, Any]]:
    """Return the differences of two schemas; empty if and only if their digests are equal.

    Returns
    -------
    list of (column, key, value in the first, value in the second)
        The column is "" for a key of the schema as a whole. A value is None if one of them has
        none. A column's "place" is its number in the order, from 1; it is compared if both have the
        column.
    """
    facts_1, facts_2 = _facts(first), _facts(second)
    rows: list[tuple[str, str, Any, Any]] = []
    for name in {**facts_1, **facts_2}:
        left, right = facts_1.get(name), facts_2.get(name)
        if left is None or right is None:
            rows.append((name, "column", "yes" if left else None, "yes" if right else None))
            continue
        keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
        rows += [(name, key, left.get(key), right.get(key)) for key in keys]
    return rows


def _facts(schema: Schema) -> dict[str, dict[str, Any]]:
    """Return the agreed keys of the schema as a whole, under "", and of each column."""
    agreed = schema.agreed()
    columns = enumerate(agreed.pop("columns"), start=1)
    return {"": agreed} | {column["name"]: {**column, "place": at} for at, column in columns}


def _names_of(columns: Iterable[str]) -> tuple[str, ...]:
    names = () if isinstance(columns, str | os.PathLike) else tuple(columns)
    if not names:
        raise PlanError(
            f"columns must be a list of one or more names, got {columns!r}; use header() to read "
            "those of a file."
        )
    return names


def _refuse_twice(names: Iterable[str], rule: str = "columns must have different names") -> None:
    if repeated := sorted(name for name, times in Counter(names).items() if times > 1):
        raise PlanError(f"{rule}, got {repeated[0]!r} more than once; remove one.")


def _draft(name: str, entry: Mapping[str, Any] | None) -> str:
    """Return the TOML of one column, with placeholders for values not in the codebook."""
    needed = {
        "type": f"{FILL_IN}: number, integer, boolean, category or date",
        "min": f"{FILL_IN}: lowest value a codebook allows, not the lowest in the file",
        "max": f"{FILL_IN}: highest value a codebook allows, not the highest in the file",
    }
    if (entry or {}).get("type") == "category":
        listed = f"{FILL_IN}: a list of all categories a codebook allows, not those in the file"
        needed = {"type": "category", "categories": listed}
    keys = {key: value for key, value in (entry or {}).items() if value not in ("", None)}
    if keys.get("type") == "boolean":
        keys = {"min": 0.0, "max": 1.0, **keys}
    if needed.keys() <= keys.keys():
        return "\n" + tomli_w.dumps({"columns": [_toml_keys(Column(**{**keys, "name": name}))]})
    note = "\n# complete this block, or delete it if the column is not to be used\n"
    return note + tomli_w.dumps({"columns": [{"name": name, **needed, **keys}]})


def _toml_keys(column: Column) -> dict[str, Any]:
    """Return the keys of a column in a file, without bounds of a category and empty settings."""
    values = column.model_dump()
    for key in ("min", "max") if column.categories else ("categories",):
        del values[key]
    if column.step is None:
        del values["step"]
    if column.type == "date":
        values |= {key: _day_or_years(values[key]) for key in ("min", "max")}
    return {key: value for key, value in values.items() if value or key not in _OF_FILES}


def _day_or_years(bound: float) -> date | float:
    """Return the bound of a date as a day, if that is the same bound."""
    day = nearest_day(bound)
    return day if _as_bound(day, "date") == bound else bound


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_charset(name: str) -> bool:
    """Return True if a name is an encoding of text whose decoder can replace invalid bytes."""
    try:
        "".encode(name)
        return codecs.lookup(name).name not in _NO_CHARSETS
    except (LookupError, UnicodeError):
        return False


def _as_bound(value: Any, kind: str) -> Any:
    """Return the bound of a column; that of a date may be a day, or text in ISO 8601."""
    if kind == "date" and isinstance(value, str):
        with suppress(ValueError):  # the caller's message covers text that is no date
            value = day_of(value)
    return float(decimal_years(np.array(value))) if isinstance(value, date) else value


def _last_code(categories: Any) -> float:
    """Return the number of the last category; raise unless there are two different ones."""
    names = list(categories) if isinstance(categories, list | tuple) else []
    if len(names) < 2 or len(set(map(str, names))) != len(names):
        raise ValueError(f"categories must be at least 2 different texts, got {categories!r}.")
    return len(names) - 1.0


def read_text(path: str | os.PathLike[str], label: str) -> str:
    """Return the text of a file that messages call `label`, or raise a PlanError."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # a ValueError comes from the path or its content
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise PlanError(f"{label} cannot be read: {reason}.") from None


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the top-level table of a TOML or JSON file."""
    name = os.fspath(path)
    text = read_text(path, repr(name))
    try:
        content = json.loads(text) if name.lower().endswith(".json") else toml_of(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{name!r} is not valid: {error}.") from None
    if not isinstance(content, dict):
        raise PlanError(f"{name!r} must be a table of keys, got a {type(content).__name__}.")
    return content


def read_codebook(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Return the keys of each column in a codebook or a schema, by its name."""
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
    try:
        fields, rows = table.fieldnames or (), list(table)
    except csv.Error as error:
        raise PlanError(f"codebook {name!r} cannot be read: {error}.") from None
    if "name" not in fields:
        raise PlanError(
            f"codebook {name!r} needs a header with name,type,min,max,categories,missing,measure."
        )
    known = set(Column.model_fields)
    entries: dict[str, dict[str, Any]] = {}
    for row in rows:
        kind = str(read_cell("type", row.get("type") or "", ""))
        cells = {key: value for key, value in row.items() if isinstance(value, str)}
        if words := [cells[key] for key in _WORD_LISTS if cells.get(key) and kind == "category"]:
            cells.setdefault("categories", words[0])
        entry = {key: read_cell(key, text, kind) for key, text in cells.items() if key in known}
        if kind == "boolean" and entry.get("categories"):  # a boolean column has fixed words
            entry["type"] = "category"
        entries[str(row["name"]).strip()] = entry
    return entries


def read_cell(key: str, text: str, kind: str) -> str | float | tuple[str, ...]:
    """Return the value of a cell of a codebook, in the row of a column of type `kind`.

    Categories are separated by ``|`` or, if there is none, by a semicolon, a comma or a slash.
    """
    text = text.strip()
    if key in ("categories", "absent"):
        names = text.split("|") if "|" in text else re.split("[;,/]", text)
        return tuple(name.strip() for name in names) if text else ""
    if key == "type":
        return _OTHER_TYPES.get(text.lower(), text)
    if key not in ("min", "max", "missing") or (key == "missing" and kind == "category"):
        return text
    try:
        return float(text)
    except ValueError:
        return text


def _proposed(name: str, given: Any, kind: str) -> dict[str, Any]:
    """Return the type and bounds of a column from what a user gives for it."""
    if isinstance(given, str):
        return read_bounds(given, kind)
    # A set has no order, on which codes and the digest depend.
    if isinstance(given, Mapping | Set) or not isinstance(given, Iterable):
        raise PlanError(
            f"bounds of {name!r} must be (low, high), a list of categories, text or None, got a "
            f"{type(given).__name__}: {given!r}."
        )
    values = tuple(given.tolist() if hasattr(given, "tolist") else given)
    if kind == "boolean" and values == (0, 1):  # as in bounds of an array
        return read_bounds("yes-no")
    own = kind if kind in ("number", "integer", "date") else ""
    are_texts = all(isinstance(value, str) for value in values)
    if isinstance(given, tuple) and len(values) == 2 and are_texts and all(map(_is_day, values)):
        own = "date"  # a frame may hold dates without a declared type
    is_pair = len(values) == 2 and (isinstance(given, tuple) or own) and not are_texts
    if is_pair or (own == "date" and len(values) == 2):
        is_date = any(isinstance(end, date) for end in values)
        kind = own or ("date" if is_date else "number")
        return {"type": kind, "min": values[0], "max": values[1]}
    return {"type": "category", "categories": tuple(map(str, values))}


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return "-" in text  # eight digits may be a code


def read_bounds(text: str, kind: str = "") -> dict[str, Any]:
    """Return the type and the public bounds of a column from a short text.

    Parameters
    ----------
    text : str
        ``0..120``, ``2010-01-01..2026-01-01``, ``female|male`` or ``yes-no``.
    kind : str
        The declared type; by default that of the text.
    """
    if text.strip().lower() in ("yes-no", "no-yes", "boolean"):
        return {"type": "boolean", "min": 0.0, "max": 1.0}
    low, dots, high = text.partition("..")
    if not dots:
        return {"type": "category", "categories": read_cell("categories", text, "category")}
    ends = [read_cell("min", end, "") for end in (low, high)]
    is_number = all(isinstance(end, float) for end in ends)
    own = kind if kind in ("number", "integer", "date") else "number" if is_number else "date"
    return {"type": own, "min": ends[0], "max": ends[1]}


def _sentence(error: ValidationError) -> str:
    """Return the first mistake as a sentence; it may quote values, since a schema is public."""
    first = error.errors(include_url=False)[0]
    where = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] == "extra_forbidden":
        return f"{where!r} is not a key of a schema; remove it, or correct its spelling."
    if first["type"] == "missing":
        return f"{where!r} is missing, but every schema must have it; add it."
    rule = re.sub(r"^\w+ should", "must", first["msg"])
    value = first["input"]
    shown = f", got {value!r}" if isinstance(value, str | int | float | None) else ""
    return f"{where} {rule}{shown}."
