"""Files as people export them: each is read as the truth, or refused with the word of a cell.

A set of files is drawn from a seed: nine countries, each file in its own encoding, delimiter,
number signs, date layout, words and codes. The truth of each cell is known. A file that is
accepted must give exactly the true records; the owner is told the words of rows that it loses.
"""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.core.dates import decimal_years
from cloister.core.errors import DataError
from cloister.data import check_file, loss_notice, read_rows, refuse_loss
from cloister.data.check import fitted
from cloister.data.schema import Schema

COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "type": "integer", "min": 0, "max": 110},
    {"name": "income", "type": "number", "min": 0, "max": 200_000},
    {"name": "marker", "type": "number", "min": 0, "max": 20},
    {"name": "smoker", "type": "boolean"},
    {"name": "sex", "type": "category", "categories": ["female", "male"]},
    {"name": "visit", "type": "date", "min": date(2010, 1, 1), "max": date(2026, 1, 1)},
    {"name": "born", "type": "date", "min": date(1925, 1, 1), "max": date(2010, 1, 1)},
]
SCHEMA = Schema(dataset="dirty", unit="row", columns=COLUMNS)
ROWS = 60


@dataclass(frozen=True)
class Country:
    """What files of a country have in common."""

    decimal: str
    thousands: tuple[str, ...]
    dates: tuple[str, ...]
    yes_no: tuple[tuple[str, str], ...]  # true, false
    sexes: tuple[tuple[str, str], ...]  # female, male
    none: tuple[str, ...]
    note: str


COUNTRIES = {
    "de": Country(
        ",", (".", " ", ""), ("%d.%m.%Y", "%d.%m.%y", "%Y-%m-%d", "%d.%m.%Y %H:%M"),
        (("J", "N"), ("ja", "nein"), ("1", "0"), ("wahr", "falsch"), ("x", ""), ("1", "2")),
        (("female", "male"), ("weiblich", "männlich"), ("w", "m"), ("F", "M")),
        ("leer", "k.A.", "fehlt"), "Quelle: Register, Stand März 2021; ohne Gewähr",
    ),
    "ch": Country(
        ".", ("'", "’", ""), ("%d.%m.%Y", "%Y-%m-%d"),
        (("J", "N"), ("oui", "non"), ("WAHR", "FALSCH")),
        (("female", "male"), ("Frau", "Mann")), ("k. A.",), "Total",
    ),
    "fr": Country(
        ",", ("\u202f", "\u00a0", " ", ""), ("%d/%m/%Y", "%d/%m/%y", "%Y-%m-%d"),
        (("oui", "non"), ("O", "N"), ("vrai", "faux"), ("V", "F")),
        (("female", "male"), ("femme", "homme"), ("F", "H")), ("manquant", "nd"), "Source : INSEE",
    ),
    "es": Country(
        ",", (".", ""), ("%d/%m/%Y", "%d-%m-%Y"),
        (("S", "N"), ("sí", "no"), ("1", "0")),
        (("female", "male"), ("mujer", "varón"), ("M", "H")), ("vacío", "s/d"), "Total general",
    ),
    "it": Country(
        ",", (".", ""), ("%d/%m/%Y", "%d/%m/%Y %H:%M:%S"),
        (("S", "N"), ("sì", "no"), ("vero", "falso")),
        (("female", "male"), ("F", "M"), ("donna", "uomo")), ("vuoto", "n.d."), "Fonte: ISTAT",
    ),
    "pl": Country(
        ",", ("\u00a0", " ", ""), ("%d.%m.%Y", "%Y-%m-%d"),
        (("tak", "nie"), ("T", "N")),
        (("female", "male"), ("kobieta", "mężczyzna"), ("K", "M")), ("brak",), "Źródło: GUS",
    ),
    "br": Country(
        ",", (".", ""), ("%d/%m/%Y",),
        (("S", "N"), ("sim", "não")),
        (("female", "male"), ("feminino", "masculino")), ("vazio",), "Fonte: IBGE",
    ),
    "us": Country(
        ".", (",", ""), ("%m/%d/%Y", "%m/%d/%y", "%Y-%m-%d", "%Y%m%d"),
        (("Y", "N"), ("yes", "no"), ("TRUE", "FALSE"), ("1", "0"), ("1", "2"), ("-1", "0")),
        (("female", "male"), ("F", "M"), ("Female", "Male"), ("1", "2")),
        ("N/A", "missing", "."), "Source: survey",
    ),
    "uk": Country(
        ".", (",", ""), ("%d/%m/%Y", "%d-%m-%Y", "%d/%m/%Y %H:%M"),
        (("Y", "N"), ("yes", "no"), ("1.0", "0.0")),
        (("female", "male"), ("f", "m"), ("FEMALE", "MALE")), ("NULL", "unknown"), "© Crown",
    ),
}  # fmt: skip
assert len(COUNTRIES) == 9
CODES = {"age": ("999", "-9", "-1"), "income": ("999999", "-1"), "marker": ("99.9", "-9")}
FAR = {"visit": date(9999, 12, 31), "born": date(1900, 1, 1)}


@dataclass(frozen=True)
class Made:
    """A file's bytes, and its true records in data units; None for a missing cell."""

    content: bytes
    truth: list[list[Any]]
    what: dict[str, Any]  # how the file was written, for messages


def _people(rng: random.Random) -> list[list[Any]]:
    """Draw true records, with columns that programs round in different ways."""
    large = rng.random() < 0.5  # incomes from 1,000 on only
    cents = rng.choice((0, 0, 2))
    return [
        [
            rng.randrange(0, 101),
            round(rng.uniform(1000 if large else 0, 99_999), cents),
            round(rng.uniform(0, 15), 3),
            int(rng.random() < 0.3),
            rng.randrange(2),
            date(2011, 1, 1) + timedelta(rng.randrange(5000)),
            date(1926, 1, 1) + timedelta(rng.randrange(30_000)),
        ]
        for _ in range(ROWS)
    ]


def made(rng: random.Random) -> Made:
    """Draw one file."""
    name = rng.choice(list(COUNTRIES))
    country = COUNTRIES[name]
    sign = rng.choice(country.thousands)
    missing_rate = rng.choice((0.0, 0.0, 0.02, 0.2))
    plain_none = rng.choice(("", "NA", "-", *country.none))
    is_code = rng.random() < 0.4
    layout = rng.choice(country.dates)
    yes, no = rng.choice(country.yes_no)
    sexes = rng.choice(country.sexes)
    fixed = rng.random() < 0.5  # as many places in every cell of a column
    unit = rng.choice(("", "", "", "", " EUR"))
    truth = _people(rng)
    written: list[list[str]] = []
    places = 2 if any(row[1] != int(row[1]) for row in truth) else 0

    def number(value: float, places: int) -> str:
        text = f"{value:,.{places}f}" if fixed or not places else f"{value:,}"
        if not fixed and text.endswith(".0"):
            text = text[:-2]
        return text.replace(",", "\0").replace(".", country.decimal).replace("\0", sign)

    for row in truth:
        age, income, marker, smoker, sex, visit, born = row
        cells = [
            str(age), number(income, places) + unit, number(marker, 3), yes if smoker else no,
            sexes[sex], visit.strftime(layout), born.strftime(layout),
        ]  # fmt: skip
        for j, column in enumerate(COLUMNS):
            if rng.random() >= missing_rate / len(COLUMNS) * 3:
                continue
            row[j], kind = None, column["name"]
            if is_code and kind in CODES:
                cells[j] = CODES[kind][rng.randrange(len(CODES[kind])) if rng.random() < 0.1 else 0]
                cells[j] = cells[j].replace(".", country.decimal)
            elif is_code and kind in FAR and "%Y" in layout:
                cells[j] = FAR[kind].strftime(layout)
            else:
                cells[j] = plain_none
        written.append(cells)
    order = list(range(len(COLUMNS)))
    rng.shuffle(order)
    names = [COLUMNS[j]["name"] for j in order]
    table = [[row[j] for j in order] for row in written]
    pad = rng.random() < 0.2
    names = [f" {name} " for name in names] if pad else names
    if rng.random() < 0.3:  # a column of row numbers
        names, table = ["", *names], [[str(i), *row] for i, row in enumerate(table)]
    delimiter = rng.choice((";", "\t", "|", ","))
    text = io.StringIO()
    quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    writer = csv.writer(
        text, delimiter=delimiter, quoting=quoting, lineterminator=rng.choice(("\n", "\r\n", "\r"))
    )
    tail = rng.choice(("", "", "blank", "note", "total"))
    title = rng.random() < 0.05
    if title:
        writer.writerow(["Export 2021"])
    writer.writerows([names, *table])
    if tail == "blank":
        writer.writerows([[], [""] * len(names), []])
    elif tail == "note":
        writer.writerow([country.note])
    elif tail == "total":
        writer.writerow([country.note, *[""] * (len(names) - 2), "4711"])
    encoding = rng.choice(("utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"))
    what = {
        "country": name, "thousands": sign, "dates": layout, "yes": yes, "no": no, "sexes": sexes,
        "none": plain_none, "codes": is_code, "missing": missing_rate, "fixed": fixed, "unit": unit,
        "delimiter": delimiter, "tail": tail, "title": title, "encoding": encoding,
    }  # fmt: skip
    return Made(text.getvalue().encode(encoding, "replace"), truth, what)


def _years(cell: Any) -> float:
    """Return a true cell as the reader's number, NaN if it is missing."""
    if cell is None:
        return np.nan
    return float(decimal_years(np.array(cell))) if isinstance(cell, date) else float(cell)


def _read(path: Path, schema: Schema) -> Any:
    """Return every row of a file in data units, clipped as a job sees it."""
    rows = read_rows(path, schema)
    low, high = ([getattr(one, end) for one in schema.columns] for end in ("min", "max"))
    return np.clip(rows, low, high)


def verdict(
    path: Path, schema: Schema, rows: Any, truth: Any, names: Sequence[str]
) -> tuple[str, str]:
    """Return what becomes of the records of some columns, and what the owner hears.

    "right" gives the true records, perhaps without rows that a notice counts; "refused" gives
    none; "wrong" is anything else.
    """
    report = check_file(path, schema, names)
    try:
        refuse_loss([report], roles={"smoker", "sex"} & set(names))
    except DataError as error:
        return "refused", str(error)
    notice, n = loss_notice(report), len(truth)
    rows, truth = (table[:, [name in names for name in SCHEMA.names]] for table in (rows, truth))
    used, complete = ~np.isnan(rows).any(axis=1), ~np.isnan(truth).any(axis=1)
    assert report.used == used.sum()
    same = np.isclose(rows[:n], truth, atol=1e-9).all(axis=1)
    is_lost = (complete & ~used[:n]).any()
    is_right = not used[n:].any() and same[used[:n]].all() and (notice or not is_lost)
    return ("right" if is_right else "wrong"), notice


def ways(path: Path, file: Made) -> list[tuple[str, Schema]]:
    """Return the schemas by which owners read a file: as it is, mended, and with known words."""
    words = {
        "smoker": {"spellings": {"true": [file.what["yes"]], "false": [file.what["no"]]}},
        "sex": {"spellings": dict(zip(("female", "male"), file.what["sexes"], strict=True))},
    }
    words["sex"]["spellings"] = {
        key: [word] for key, word in words["sex"]["spellings"].items() if word != key
    }
    taken = ("", "true", "false", "TRUE", "FALSE")
    words["smoker"]["spellings"] = {
        key: [word] for key, (word,) in words["smoker"]["spellings"].items() if word not in taken
    }
    known = SCHEMA.written_as(columns=words)
    mended = [("plain", SCHEMA)]
    for name, start in (("mended", SCHEMA), ("known", known)):
        with suppress(DataError):
            schema, _, _ = fitted(path, start)
            assert schema.digest() == SCHEMA.digest()
            mended.append((name, schema))
    return mended


def outcomes(
    seed: int, folder: Path, *, alone: int, files: int = 3
) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Return the verdicts on a set of files, and on some of their columns `alone`."""
    rng, found = random.Random(seed), []
    for i in range(files):
        file = made(rng)
        path = folder / f"{seed}-{i}.csv"
        path.write_bytes(file.content)
        truth = np.array([[_years(cell) for cell in row] for row in file.truth])
        for way, schema in ways(path, file):
            try:
                rows = _read(path, schema)
            except DataError as error:
                found.append((f"{way} file", "refused", str(error), file.what))
                continue
            for names in (SCHEMA.names, *((name,) for name in rng.sample(SCHEMA.names, alone))):
                kind, message = verdict(path, schema, rows, truth, names)
                place = "file" if names == SCHEMA.names else "column"
                found.append((f"{way} {place}", kind, message, {**file.what, "columns": names}))
    return found


def quotes(message: str) -> bool:
    """Return True if a refusal names a column with a cell or its defect, or the header."""
    return "'" in message and re.search(
        "not understood|missing|may be|mean|mark|no column|last row", message
    )


def check(seed: int, folder: Path, **limits: int) -> None:
    for _, kind, message, what in outcomes(seed, folder, **limits):
        assert kind != "wrong", (message, what)
        assert kind != "refused" or quotes(message), (message, what)


@pytest.mark.parametrize("seed", range(18))
def test_a_dirty_file_is_read_as_the_truth_or_refused(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, alone=1, files=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(412))
def test_many_dirty_files_are_read_as_the_truth_or_refused(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, alone=len(COLUMNS))
