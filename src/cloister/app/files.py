"""The files of a job: the sources of the silos' records, and the files of a release."""

from __future__ import annotations

import csv
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.app.release import Release, words_file
from cloister.core.display import Table
from cloister.core.errors import DataError, PlanError
from cloister.core.files import toml_of
from cloister.data.schema import Schema, read_text
from cloister.protocol.task import pipeline_steps

if TYPE_CHECKING:
    from cloister.data import Records
    from cloister.data.units import Admits

MODEL = "model.json"  # users and scripts rely on this name
_PACKED = (".gz", ".bz2", ".zst")
OnRows = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class SiloFiles:
    """The files of the silos of a job, and their formats.

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
        admits: Mapping[str, Admits] = {},
    ) -> dict[str, Records]:
        """Read the records of all silos, or of some `silos`.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns of the schema that the job uses; all by default.
        counter : function of silo name
            Returns a function that receives the number of rows read so far, or None.
        admits : mapping of silo name to function
            Whether the rows of a unit are read, as in `read_source`.
        """
        # Imported here: a command that reads no record does not load the readers of tables.
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
                admits=admits.get(silo),
            )
            for silo in silos or self.paths
        }


def name_silos(files: Iterable[Path]) -> dict[str, Path]:
    """Return the files by silo, named as its file, with a number if that name is taken."""
    silos: dict[str, Path] = {}
    for path in files:
        # Resolved, since a link or a relative path may name the same records.
        if path.resolve() in {other.resolve() for other in silos.values()}:
            raise PlanError(f"file {str(path)!r} is given twice; its records would count twice.")
        # The silo of "a.csv.gz" is "a", as that of "a.csv".
        stem = Path(path.stem).stem if path.suffix.lower() in _PACKED else path.stem
        name, suffix = stem or path.name, 2
        while name in silos:
            name, suffix = f"{stem}-{suffix}", suffix + 1
        silos[name] = path
    return silos


def source_of(path: Path, baskets: Sequence[str]) -> Any:
    """Return the source for :func:`cloister.data.read_source`: a file, or the baskets in it.

    A layout of the file itself, ``FILE=LAYOUT``, takes precedence over a layout of all files.
    """
    from cloister.data import Baskets

    layouts = [text for text in baskets if _layout_of(text)[0] is None]
    # After the general layouts, since the last one is used.
    layouts += [layout for file, layout in map(_layout_of, baskets) if file in _names_of(path)]
    return Baskets.parse(path, layouts[-1]) if layouts else path


def schemas_of(
    schema: Schema,
    files: Iterable[Path],
    reading: Path | None,
    *,
    others: bool = False,
    wider: bool = False,
) -> dict[Path, Schema]:
    """Return the schema for reading each file; all have the same digest.

    With `others`, the settings may also name files that are not in `files`. So they may if all of
    `files` have settings. With `wider`, they may name columns that the schema leaves out.
    """
    settings_of = read_settings(reading)
    paths = list(files)
    names = {path.name for path in paths}
    unknown = settings_of.keys() - names
    # A typing error would else leave a file with the default decimal sign.
    if unknown and not others and not names <= settings_of.keys():
        raise PlanError(f"file {str(reading)!r} names no file of this command: {min(unknown)!r}.")
    schemas = {}
    for path in paths:
        settings = settings_of.get(path.name, {})
        if not isinstance(settings, dict):
            raise PlanError(f"{path.name!r} in file {str(reading)!r} must be a table of settings.")
        if wider and isinstance(columns := settings.get("columns"), dict):
            kept = {name: keys for name, keys in columns.items() if name in schema.names}
            settings = {**settings, "columns": kept}
        schemas[path] = schema.written_as(**settings)
    return schemas


def read_settings(reading: Path | None) -> dict[str, Any]:
    """Return the reading settings of each file, by its name."""
    text = "" if reading is None else read_text(reading, "reading settings")
    try:
        return toml_of(text)
    except ValueError as error:
        raise PlanError(f"file {str(reading)!r} is not TOML: {error}.") from None


def check_layouts(files: Iterable[Path], baskets: Sequence[str]) -> None:
    """Raise a PlanError for a layout of a file that is not read."""
    # A user may name a file by its path or, as in the settings, by its name.
    names = {name for path in files for name in _names_of(path)}
    for file, _ in map(_layout_of, baskets):
        if file is not None and file not in names:
            raise PlanError(f"baskets must name a file of this command, got {file!r}.")


def _layout_of(text: str) -> tuple[str | None, str]:
    """Return the file and the layout in ``[FILE=]LAYOUT``."""
    match = re.fullmatch(r"(.+?)=((?:lines|long)(?::.*)?)", text)
    return (match[1], match[2]) if match else (None, text)


def _names_of(path: Path) -> tuple[str, str]:
    return (str(path), path.name)


def prepare_folder(folder: Path) -> None:
    """Create the folder for results and try to write there, before anything is spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A trial: permissions do not show whether a file system accepts a file.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(
            f"folder {os.fspath(folder)!r} cannot be written: {error.strerror}; give another --out."
        ) from None


def refuse_results(folder: Path) -> None:
    """Raise a PlanError if a folder holds a release, before another one is paid for.

    A job that stopped before its release was written may be run again with the same folder.
    """
    # The model is written first, so a folder without one holds nothing that was paid for.
    if (model := folder / MODEL).exists():
        raise PlanError(
            f"file {os.fspath(model)!r} exists already and is not replaced; give another --out."
        )


def write_release(release: Release, folder: Path, schema: Schema | None = None) -> dict[str, Path]:
    """Write the model and the tables of a release, and return the files by name.

    The model is written first, so that a later failure does not lose a paid release. The tables
    come from the optional member ``tables_of(plan, results, schema)`` of a task. Each is a data
    frame or a :class:`~cloister.core.display.Table`; they require the schema.
    """
    files = {"model": folder / MODEL}
    release.save(files["model"])
    files["sums"] = words_file(files["model"])
    *_, last = pipeline_steps(release.plan.task)
    tables = getattr(last, "tables_of", None)
    if tables is not None and schema is not None:
        for name, table in tables(release.plan, release.results, schema).items():
            files[name] = folder / f"{name}.csv"
            _write_table(table, files[name])
    return files


def _write_table(table: Any, path: Path) -> None:
    """Write a :class:`Table` or a data frame as CSV; floats round-trip exactly."""
    if isinstance(table, Table):
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows((table.headings, *table.rows))
    else:
        # pandas would use the line end of the system; files must not differ between systems.
        table.to_csv(path, index=False, lineterminator="\n")
