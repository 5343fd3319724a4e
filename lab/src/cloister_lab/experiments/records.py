"""Tidy rows of runs in a CSV that survives being cut off, their means, and tables of them."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from cloister.core.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

STAMP = "exact metrics on data: not a release"
"""Written on everything an experiment gives out."""

Value = str | int | float | None
TidyRow = Mapping[str, Value]
"""One observation; all rows of an experiment have the same columns."""

Key = tuple[Value, ...]
"""Values of some columns, on which rows agree."""

_TEXT = ("unit", "dataset", "method", "commit", "version", "stamp", "machine", "plan_digest")
"""Columns of text, even where it looks like a number."""


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


# --- Tidy rows in a file --------------------------------------------------------------------------


def load_tidy(path: Path) -> list[TidyRow]:
    """Read rows, an empty field as None; a last line that was cut off is removed from the file."""
    import pandas as pd

    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    if not whole:
        return []
    frame = pd.read_csv(
        path,
        dtype=dict.fromkeys(_TEXT, str),
        keep_default_na=False,
        na_values=["", "nan"],
        engine="python",  # reads every number back as it was
    ).astype(object)
    return _rows(frame)


def append_tidy(path: Path, rows: Sequence[TidyRow]) -> None:
    """Add rows to a file in one write; a `DataError` if it has other columns."""
    import pandas as pd

    if not rows:
        return
    new = not path.exists() or not path.stat().st_size
    frame = _frame(rows)
    if not new:
        columns = pd.read_csv(path, nrows=0).columns
        if set(columns) != set(frame.columns):
            raise DataError(
                f"{str(path)!r} has other columns than its experiment has now; use another folder."
            )
        frame = frame[columns]
    with path.open("a", newline="") as file:
        file.write(frame.to_csv(None, index=False, header=new, lineterminator="\n"))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows anew, as a CSV with six digits of each number or mean; return its path."""
    _frame(rows).map(_rounded).to_csv(path, index=False, lineterminator="\n")
    return path


def _frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return rows as they are: whole numbers with gaps between them stay whole."""
    import pandas as pd

    return pd.DataFrame(list(rows), dtype=object)


def _rows(frame: DataFrame) -> list[TidyRow]:
    """Return rows with None where a field is empty."""
    found: list[TidyRow] = frame.where(frame.notna(), None).to_dict("records")  # type: ignore[assignment]  # names of columns are text
    return found


def _rounded(value: Value | MeanOf) -> Value:
    plain = value.mean if isinstance(value, MeanOf) else value
    return float(f"{plain:.6g}") if isinstance(plain, float) else plain


_BOOTSTRAPS = 2000

# --- Numbers and means ----------------------------------------------------------------------------


@dataclass(frozen=True)
class MeanOf:
    """A mean over rows, with a 95 % confidence interval (Student's t).

    Parameters
    ----------
    error : float
        Standard error; NaN for one row.
    values : tuple of float
        What the mean is of, for :attr:`interval`.
    """

    mean: float
    error: float
    runs: int
    values: tuple[float, ...] = field(default=(), repr=False, compare=False)

    @property
    def half(self) -> float:
        """Margin of error; NaN for one row."""
        from scipy.special import stdtrit

        return float(stdtrit(self.runs - 1, 0.975)) * self.error

    @property
    def half_or_none(self) -> float | None:
        """Margin of error as a field of a row: empty where it is not known."""
        return None if math.isnan(self.half) else self.half

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean by the bootstrap; NaN for one row.

        It never leaves the range of the values, as Student's does where they are bounded. Its
        level is widened as for Student's law [Hes15]_: of three values it is all of their range.

        References
        ----------
        .. [Hes15] T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American
           Statistician 69, 2015; section 5.3, the expanded percentile interval.
        """
        import numpy as np
        from scipy.special import ndtr, stdtrit

        n = len(self.values)
        if n < 2:  # of one row nothing is known; means read from a table have no values
            return self.mean - self.half, self.mean + self.half
        tail = ndtr(math.sqrt(n / (n - 1)) * stdtrit(n - 1, 0.025))
        drawn = np.random.default_rng(0).choice(self.values, (_BOOTSTRAPS, n)).mean(axis=1)
        low, high = np.quantile(drawn, (tail, 1 - tail))
        return float(low), float(high)

    def __format__(self, digits: str) -> str:
        """Return the mean, and the margin of error after ±, in a format such as ``.3f``."""
        shown = format(self.mean, digits)
        return shown if math.isnan(self.half) else f"{shown} ± {format(self.half, digits)}"


Means = Mapping[Key, MeanOf]
Cell = dict[str, Any]
"""Values on which rows agree, how many there are (``runs``), and means of other columns."""


def means_of(rows: Iterable[TidyRow], by: Sequence[str], column: str) -> dict[Key, MeanOf]:
    """Average a column over all rows that agree in some others, in the order of their first row.

    Rows in which the column is empty are left out.
    """
    import numpy as np

    kept = [row for row in rows if row[column] is not None]
    if not kept:
        return {}
    frame = _frame(kept).astype({column: float})
    groups = frame.groupby(list(by), sort=False, dropna=False)[column]
    with np.errstate(invalid="ignore"):  # infinite values have a mean and no interval
        found = groups.agg(["mean", "sem", "count", tuple]).reset_index()
    keys = _rows(found[list(by)].astype(object))  # None again where a value is missing
    numbers = zip(found["mean"], found["sem"], found["count"], found["tuple"], strict=True)
    return {
        tuple(key[name] for name in by): MeanOf(float(mean), float(error), int(runs), values)
        for key, (mean, error, runs, values) in zip(keys, numbers, strict=True)
    }


def cells_of(rows: Iterable[TidyRow], by: Sequence[str], *columns: str) -> list[Cell]:
    """Return the means of some columns for each combination of values that has the first one.

    Returns
    -------
    list of dict
        Values of the columns in `by`, ``runs``, and each mean, or None where a column is empty.
    """
    rows = list(rows)
    means = {column: means_of(rows, by, column) for column in columns}
    return [
        {
            **dict(zip(by, key, strict=True)),
            "runs": first.runs,
            **{column: of.get(key) for column, of in means.items()},
        }
        for key, first in means[columns[0]].items()
    ]


def paired(
    rows: Iterable[TidyRow], by: Sequence[str], column: str, method: str, other: str
) -> dict[Key, MeanOf]:
    """Return the mean difference of a column, `method` less `other`, over the same repeats.

    Keys with fewer than two repeats of both methods are left out.
    """
    found: dict[str, dict[Key, float]] = {method: {}, other: {}}
    for row in rows:
        if row["method"] in found and row[column] is not None:
            key = tuple(row[name] for name in (*by, "repeat"))
            found[str(row["method"])][key] = number(row, column)
    apart: list[TidyRow] = [
        {**dict(zip(by, key[:-1], strict=True)), "apart": found[method][key] - theirs}
        for key, theirs in found[other].items()
        if key in found[method]
    ]
    return {key: mean for key, mean in means_of(apart, by, "apart").items() if mean.runs > 1}


def starts(rows: Iterable[TidyRow]) -> str:
    """Say how many repeats each data set has had."""
    repeats: dict[Value, set[Value]] = {}
    for row in rows:
        repeats.setdefault(row["dataset"], set()).add(row["repeat"])
    counts: dict[int, list[str]] = {}
    for name, of_name in repeats.items():
        counts.setdefault(len(of_name), []).append(str(name))
    said = []
    for count, names in sorted(counts.items(), reverse=True):
        where = ", ".join(names) if len(names) < 4 else f"each of {len(names)} data sets"
        said.append(f"{count} {'start' if count == 1 else 'starts'} on {where}")
    return ", ".join(said)


def number(row: TidyRow, column: str) -> float:
    """Return a number of a row; NaN where the field is empty."""
    value = row[column]
    return math.nan if value is None else float(value)


# --- Pages ----------------------------------------------------------------------------------------


class _Shown(Formatter):
    """Formats fields of a row; what is missing, or has a missing part, is a dash."""

    def get_field(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        head = name.split(".")[0]
        return (None, head) if kwargs[head] is None else super().get_field(name, args, kwargs)

    def format_field(self, value: Any, spec: str) -> str:
        return "-" if value is None else str(super().format_field(value, spec))


def prose(name: str, rows: Iterable[Mapping[str, Any]] = (), **values: object) -> list[str]:
    """Return the lines of a page: those of a file beside this package, filled in.

    A line that begins with ``| {`` is the format of a table's row, and stands for all `rows`; any
    other has formats of `values`. A field that is None is shown as a dash.
    """
    show = _Shown().vformat
    lines: list[str] = []
    for line in (Path(__file__).parent / "pages" / f"{name}.md").read_text("utf-8").splitlines():
        filled = rows if line.startswith("| {") else [values]
        lines += [text for row in filled for text in show(line, (), row).split("\n")]
    return lines


def markdown(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the lines of a table of texts under the names of the first row's fields."""
    headings = list(rows[0]) if rows else []
    lines = [headings, ["---"] * len(headings), *(row.values() for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def write_page(path: Path, lines: Iterable[str], *, stamped: bool = True) -> Path:
    """Write a page of results, with the stamp at its end unless its text has it."""
    ends = ["", f"({STAMP})", ""] if stamped else [""]
    path.write_text("\n".join([*lines, *ends]), "utf-8")
    return path


def not_measured(rows: Iterable[TidyRow], label: str = "{method}: {skipped}") -> list[str]:
    """Return the lines that say what was skipped and why."""
    skipped = sorted({label.format_map(row) for row in rows if row["skipped"]})
    return ["", "Not measured: " + "; ".join(skipped) + "."] if skipped else []
