"""Tidy records of runs: one row each, in a CSV that survives being cut off, and their means."""

from __future__ import annotations

import csv
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cloister.errors import DataError
from cloister_lab import metrics

STAMP = "exact metrics on data: not a release"
"""Written on everything a comparison gives out."""

AREA = "nicv_area"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What all repeats of one experiment share.

    Parameters
    ----------
    dataset, method : str
    epsilon : float
        Infinite for a method that is not private.
    delta : float
        0 for pure differential privacy; 1 for a method that is not private.
    convention : {"public", "fastlloyd-paper"}
    schema_digest : str
        Of columns and bounds, 16 hexadecimal digits.
    version : str
        Of this package.
    """

    dataset: str
    method: str
    epsilon: float
    delta: float
    silos: int
    n_clusters: int
    nominal_n: int
    convention: str
    schema_digest: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Row(Cell):
    """One run of one method.

    Parameters
    ----------
    repeat : int
        Also the public seed of starting centres and of the split into silos; noise has none.
    nicv, ... : float or None
        Metrics in coordinates of the box ``[-1, 1]``; None where one was not asked for.
    commit : str
        Of the checkout that ran, empty for an installed package.
    """

    repeat: int
    nicv: float
    centroid_mse: float | None = None
    cost_gap: float | None = None
    empty_clusters: float | None = None
    bcss: float | None = None
    davies_bouldin: float | None = None
    calinski_harabasz: float | None = None
    silhouette: float | None = None
    dunn: float | None = None
    n_features: int
    rounds: int
    noise: str
    plan_digest: str
    commit: str
    machine: str
    stamp: str = STAMP

    @property
    def cell(self) -> Cell:
        """The experiment of which this is one repeat."""
        return Cell(**{field.name: getattr(self, field.name) for field in fields(Cell)})


METRICS = (
    "nicv",
    "centroid_mse",
    "cost_gap",
    "empty_clusters",
    "bcss",
    "davies_bouldin",
    "calinski_harabasz",
    "silhouette",
    "dunn",
)
"""Columns of a row that hold a metric."""

_PARSE: Mapping[Any, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
}
_FIELDS = fields(Row)


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A metric of one method over all repeats, with a 95 % interval of its mean (Student's t).

    Parameters
    ----------
    epsilon : float or None
        None for `nicv_area`, the area under NICV over epsilon.
    sem, low, high : float or None
        None for a single run.
    """

    dataset: str
    method: str
    epsilon: float | None
    metric: str
    runs: int
    mean: float
    sem: float | None
    low: float | None
    high: float | None
    stamp: str = STAMP


def load_rows(path: Path) -> list[Row]:
    """Read stored rows; a last line that was cut off is taken out of the file.

    Raises
    ------
    DataError
        If the file is not a table of runs of this version.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    table = csv.DictReader(whole.decode().splitlines())
    if whole and table.fieldnames != [field.name for field in _FIELDS]:
        raise DataError(f"{str(path)!r} has other columns than runs have now; use another folder.")
    try:
        return [
            Row(**{field.name: _PARSE[field.type](line[field.name]) for field in _FIELDS})
            for line in table
        ]
    except (ValueError, TypeError) as error:
        raise DataError(f"{str(path)!r} cannot be read; use another folder.") from error


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file; what was written stays if the next run is interrupted."""
    with path.open("a", newline="") as file:
        _write(file, rows, Row, heading=file.tell() == 0)


def write_means(path: Path, means: Sequence[Mean]) -> None:
    """Write a summary anew."""
    with path.open("w", newline="") as file:
        _write(file, means, Mean, heading=True)


def summarise(rows: Iterable[Row]) -> list[Mean]:
    """Average every metric over the repeats of each cell, and NICV over epsilon.

    Returns
    -------
    list of Mean
        Cells in the order of their first row.
    """
    rows = list(rows)
    means = []
    for cell in _grouped(rows, lambda row: row.cell):
        for metric in METRICS:
            values = [value for row in cell if (value := getattr(row, metric)) is not None]
            if values:
                first = cell[0]
                means.append(_mean(first.dataset, first.method, first.epsilon, metric, values))
    for curves in _grouped(rows, lambda row: (row.dataset, row.method)):
        areas = [_area(curve) for curve in _grouped(curves, lambda row: row.repeat)]
        known = [area for area in areas if area is not None]
        if known:
            means.append(_mean(curves[0].dataset, curves[0].method, None, AREA, known))
    return means


def machine_kind() -> str:
    """Return what kind of machine this is, without its name."""
    return f"{os.cpu_count()}-core {platform.machine()} {platform.system()}"


@cache
def commit() -> str:
    """Return the commit if this package runs from its own checkout, else an empty text."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _write(file: Any, records: Sequence[Any], kind: type[Any], *, heading: bool) -> None:
    writer = csv.writer(file, lineterminator="\n")
    if heading:
        writer.writerow([field.name for field in fields(kind)])
    writer.writerows(["" if v is None else v for v in astuple(record)] for record in records)


def _grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[list[Row]]:
    """Group rows by a key, groups in the order of their first row."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _area(curve: Sequence[Row]) -> float | None:
    """Return the area under NICV over epsilon of one repeat."""
    points = sorted((row.epsilon, row.nicv) for row in curve if math.isfinite(row.epsilon))
    if len(points) < 2:
        return None
    return metrics.nicv_area(*zip(*points, strict=True))


def _mean(
    dataset: str, method: str, epsilon: float | None, metric: str, values: Sequence[float]
) -> Mean:
    from scipy.special import stdtrit

    n, mean = len(values), float(np.mean(values))
    sem = half = None
    if n > 1 and math.isfinite(mean):
        sem = float(np.std(values, ddof=1)) / math.sqrt(n)
        half = float(stdtrit(n - 1, 0.975)) * sem
    return Mean(
        dataset=dataset,
        method=method,
        epsilon=epsilon,
        metric=metric,
        runs=n,
        mean=mean,
        sem=sem,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
    )
