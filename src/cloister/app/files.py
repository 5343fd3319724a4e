"""The files of a job: those that silos' records are read from, and those that a release leaves."""

from __future__ import annotations

import csv
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.app.release import Release
from cloister.core.display import Table
from cloister.core.errors import DataError, PlanError
from cloister.data.schema import Schema, read_text
from cloister.protocol.task import pipeline_steps

if TYPE_CHECKING:
    from cloister.data import Records

_PACKED = (".gz", ".bz2", ".zst")
OnRows = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class SiloFiles:
    """The files of the silos of a job, and how they are written.

    Parameters
    ----------
    paths : mapping of silo name to Path
    baskets : sequence of str
        Layouts of market baskets, ``[FILE=]lines[:DELIMITER]`` or ``[FILE=]long:BASKET,ITEM``.
    reading : Path, optional
        TOML file with the decimal sign, encoding and other settings of each file.
    cache_dir : Path, optional
        Folder for plain records while the job runs, so that each file is read once.
    """

    paths: Mapping[str, Path]
    baskets: Sequence[str] = ()
    reading: Path | None = None
    cache_dir: Path | None = None

    def read(
        self,
        schema: Schema,
        columns: Sequence[str] | None,
        *,
        silos: Iterable[str] | None = None,
        counter: Callable[[str], OnRows | None] = lambda silo: None,
    ) -> dict[str, Records]:
        """Read the records of all silos, or of some `silos`.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns of the schema that the job uses; all by default.
        counter : function of silo name
            Returns a function that receives how many rows were read so far, or None.
        """
        from cloister.data import read_source

        check_layouts(self.paths.values(), self.baskets)
        schemas = schemas_of(schema, self.paths.values(), self.reading)
        return {
            silo: read_source(
                source_of(self.paths[silo], self.baskets),
                schemas[self.paths[silo]],
                columns=columns,
                cache_dir=self.cache_dir,
                on_rows=counter(silo),
            )
            for silo in silos or self.paths
        }


def name_silos(files: Iterable[Path]) -> dict[str, Path]:
    """Return the files by silo; a silo has the name of its file, with a number if that is taken."""
    silos: dict[str, Path] = {}
    for path in files:
        if path.resolve() in {other.resolve() for other in silos.values()}:
            raise PlanError(f"file {str(path)!r} is given twice; its records would count twice.")
        stem = Path(path.stem).stem if path.suffix.lower() in _PACKED else path.stem
        name, number_of = stem or path.name, 2
        while name in silos:
            name, number_of = f"{stem}-{number_of}", number_of + 1
        silos[name] = path
    return silos


def source_of(path: Path, baskets: Sequence[str]) -> Any:
    """Return what :func:`cloister.data.read_source` reads: a file, or the baskets in it.

    A layout of the file itself, ``FILE=LAYOUT``, comes before one of all files.
    """
    from cloister.data import Baskets

    layouts = [text for text in baskets if _layout_of(text)[0] is None]
    layouts += [layout for file, layout in map(_layout_of, baskets) if file in _names_of(path)]
    return Baskets.parse(path, layouts[-1]) if layouts else path


def schemas_of(
    schema: Schema, files: Iterable[Path], reading: Path | None, *, others: bool = False
) -> dict[Path, Schema]:
    """Return the schema by which each file is read; all have one digest.

    The settings may name `others` than these files.
    """
    try:
        given = {} if reading is None else tomllib.loads(read_text(reading, "reading settings"))
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"file {str(reading)!r} is not TOML: {error}.") from None
    paths = list(files)
    if (unknown := given.keys() - {path.name for path in paths}) and not others:
        raise PlanError(f"file {str(reading)!r} names no file of this command: {min(unknown)!r}.")
    schemas = {}
    for path in paths:
        settings = given.get(path.name, {})
        if not isinstance(settings, dict):
            raise PlanError(f"{path.name!r} in file {str(reading)!r} must be a table of settings.")
        schemas[path] = schema.written_as(**settings)
    return schemas


def check_layouts(files: Iterable[Path], baskets: Sequence[str]) -> None:
    """Raise a PlanError for a layout of a file that is not read."""
    known = {name for path in files for name in _names_of(path)}
    for file, _ in map(_layout_of, baskets):
        if file is not None and file not in known:
            raise PlanError(f"baskets must name a file of this command, got {file!r}.")


def _layout_of(text: str) -> tuple[str | None, str]:
    """Return the file and the layout in ``[FILE=]LAYOUT``."""
    found = re.fullmatch(r"(.+?)=((?:lines|long)(?::.*)?)", text)
    return (found[1], found[2]) if found else (None, text)


def _names_of(path: Path) -> tuple[str, str]:
    return (str(path), path.name)


def prepare_folder(folder: Path) -> None:
    """Make the folder for results and try to write there, before anything is spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(
            f"folder {os.fspath(folder)!r} cannot be written: {error.strerror}; give another --out."
        ) from None


def write_release(release: Release, folder: Path, schema: Schema | None = None) -> dict[str, Path]:
    """Write the model and the tables of a release, and return the files by name.

    The model is written first, so that a paid release is safe whatever fails later. Tables are
    those of the optional member ``tables_of(plan, results, schema)`` of a task, each a data frame
    or a :class:`~cloister.core.display.Table`; they need the schema.
    """
    files = {"model": folder / "model.json"}
    release.save(files["model"])
    *_, last = pipeline_steps(release.plan.task)
    tables = getattr(last, "tables_of", None)
    if tables is not None and schema is not None:
        for name, table in tables(release.plan, release.results, schema).items():
            files[name] = folder / f"{name}.csv"
            _write_table(table, files[name])
    return files


def _write_table(table: Any, path: Path) -> None:
    """Write a table of ours or a data frame as CSV; floats round-trip exactly."""
    if isinstance(table, Table):
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows((table.headings, *table.rows))
    else:
        table.to_csv(path, index=False, lineterminator="\n")
