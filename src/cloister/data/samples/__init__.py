"""Public records of real patients for examples, shipped with the package.

``README.md`` in this folder documents their source.
"""

from __future__ import annotations

import gzip
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

HOSPITALS = ("north", "east", "south")
SCHEMA = "patients.toml"
ACCEPTED_LOSS = 0.1
"""Share of rows that may be excluded: about one in twelve people lacks a measurement."""
_TABLE = "patients.csv.gz"


def load_patients() -> pd.DataFrame:
    """Return 16,097 participants of the health survey NHANES, 2009 to 2012.

    Returns
    -------
    DataFrame of shape (16097, 10)
        One row per participant. Columns: ``patient`` (a number), ``sex``, ``age`` (years),
        ``height`` (cm), ``weight`` (kg), ``bmi``, ``pulse``, ``systolic``, ``diastolic`` (mmHg)
        and ``diabetes``. A value that was not measured is missing.

    References
    ----------
    Centers for Disease Control and Prevention, National Health and Nutrition Examination Survey
    Data, 2009-2012. Public domain.
    """
    import pandas as pd

    with (files(__name__) / _TABLE).open("rb") as stream:
        return pd.read_csv(stream, compression="gzip")


def write_patients(folder: Path) -> dict[str, Path]:
    """Write the patients as the files of three hospitals, and their schema ``patients.toml``.

    Parameters
    ----------
    folder : path
        An existing folder; files of these names are replaced.

    Returns
    -------
    dict of str to Path
        The file of each hospital, by its name.
    """
    here = files(__name__)
    heading, *rows = gzip.decompress((here / _TABLE).read_bytes()).splitlines(keepends=True)
    written = {name: folder / f"{name}.csv" for name in HOSPITALS}
    # Every third row, so that each hospital has patients from the whole survey.
    for i, path in enumerate(written.values()):
        path.write_bytes(heading + b"".join(rows[i :: len(HOSPITALS)]))
    (folder / SCHEMA).write_bytes((here / SCHEMA).read_bytes())
    return written
