"""Tables for comparisons: public data, the public numbers a plan needs, records on the grid.

There are two conventions. ``public`` is what a real job may do: bounds from a schema or a
codebook, a round contract value for the number of records, the default delta.
``fastlloyd-paper`` is what the papers do: bounds from the table itself, its exact length, and a
delta of that length. The second is unsafe on private data and serves comparison with published
figures only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cloister.core.errors import DataError, PlanError
from cloister.data import header, read_floats, read_source
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import default_delta
from cloister.protocol.task import Floats, Records
from cloister_lab.metrics import nicv

Convention = Literal["public", "fastlloyd-paper"]

SUFFIXES = (".csv.gz", ".csv", ".parquet", ".npz")
"""Files that a data folder may hold for a name, in the order they are looked for."""

LITERATURE_CLUSTERS: Mapping[str, int] = {
    "adult": 3,
    "birch2": 100,
    "breast": 2,
    "digits": 10,
    "iris": 3,
    "lsun": 3,
    "mnist": 10,
    "mnist_t10k": 10,
    "s1": 15,
    "wdbc": 2,
    "wine": 3,
    "yeast": 10,
}
"""Cluster counts under which these tables are used in the literature."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A public table on the grid, with the public numbers of its plans.

    Parameters
    ----------
    records : ndarray of shape (n_samples, n_features), int32, grid steps
    """

    name: str
    schema: Schema
    records: Records
    n_clusters: int
    nominal_n: int
    convention: Convention = "public"

    def dataset(self) -> Dataset:
        """Return itself: a table at hand is a source of records, too."""
        return self

    @property
    def delta(self) -> float:
        """The default delta; of the papers ``1 / (N ln N)``."""
        if self.convention == "public":
            return default_delta(self.nominal_n)
        return 1 / (self.nominal_n * log(self.nominal_n))

    @property
    def values(self) -> Floats:
        """Records in coordinates of the box ``[-1, 1]``, in which all metrics are measured."""
        one = self.schema.grid().one
        return self.records / float(one)

    @cached_property
    def reference_centres(self) -> Floats:
        """Centres of scikit-learn's k-means on the same table, in coordinates of the box."""
        from sklearn.cluster import KMeans

        model = KMeans(self.n_clusters, n_init=10, random_state=0).fit(self.values)
        return np.asarray(model.cluster_centers_, dtype=np.float64)

    @cached_property
    def reference_nicv(self) -> float:
        """NICV of the reference centres."""
        return nicv(self.values, self.reference_centres)


def load(
    name: str,
    *,
    convention: Convention = "public",
    data_dir: str | Path | None = None,
    n_clusters: int | None = None,
    schema: Schema | None = None,
    nominal_n: int | None = None,
) -> Dataset:
    """Load a table by name or path.

    Parameters
    ----------
    name : str
        Path of a CSV or Parquet file, or of a NumPy archive with an array ``X``; or a name for
        which `data_dir` has one; or ``iris``, ``wine``, ``wdbc``, ``digits``, which ship with
        scikit-learn.
    n_clusters : int, optional
        The literature's for the tables it knows.
    schema, nominal_n : Schema and int, optional
        Required for a file under the public convention, refused under the papers'.

    Raises
    ------
    DataError
        If there is no such table.
    PlanError
        If a public number is missing, or given where the papers take it from the table.
    """
    path = _find(name, data_dir)
    known_as = title(name)
    if path is None and name not in BUNDLED:
        raise DataError(
            f"data set {name!r} is neither a file, nor in the data folder, nor one of "
            f"{sorted(BUNDLED)}."
        )
    k = _literature_clusters(known_as) if n_clusters is None else n_clusters
    if k is None:
        raise PlanError(f"n_clusters of {known_as!r} must be given; use --k-for {known_as}=K.")
    if convention == "fastlloyd-paper":
        if schema is not None or nominal_n is not None:
            raise PlanError(
                f"bounds and nominal_n of {known_as!r} are read from the table under the papers' "
                "convention; leave the schema and nominal_n out."
            )
        return min_max(_sklearn_table(name) if path is None else _table(path), known_as, k)
    if path is None:
        bundled = BUNDLED[name]
        table = _sklearn_table(name)
        schema = schema or bundled.schema(name, header(table))
        return _dataset(table, known_as, schema, k, nominal_n or bundled.nominal_n)
    if schema is None or nominal_n is None:
        raise PlanError(
            f"{'schema' if schema is None else 'nominal_n'} of {known_as!r} must be given, because "
            f"bounds and sizes are public choices; use --schema-for {known_as}=FILE and "
            f"--nominal-n-for {known_as}=N."
        )
    return _dataset(_table(path), known_as, schema, k, nominal_n)


def title(name: str) -> str:
    """Return what a data set is called in results: its name, or its file's without the suffix."""
    return next((Path(name).name.removesuffix(s) for s in SUFFIXES if name.endswith(s)), name)


def min_max(table: Any, name: str, n_clusters: int) -> Dataset:
    """Scale each column of complete rows by its least and largest value, as the papers do.

    Notes
    -----
    One record can move these bounds and the length, so no guarantee holds for private data.
    """
    X = read_floats(table)
    X = X[np.isfinite(X).all(axis=1)]
    if len(X) < 2:
        raise DataError(f"data set {name!r} must have two complete rows, got {len(X)}.")
    low, high = X.min(axis=0), X.max(axis=0)
    high = np.where(high > low, high, low + 1)
    schema = plain_schema(name, header(table), list(zip(low.tolist(), high.tolist(), strict=True)))
    records = schema.grid().encode(X)
    return Dataset(name, schema, records, n_clusters, len(X), "fastlloyd-paper")


@dataclass(frozen=True)
class Bundled:
    """What is public of a table that ships with scikit-learn.

    Parameters
    ----------
    loader : str
        Name of the function in ``sklearn.datasets``.
    nominal_n : int
        A round number, not the length.
    bounds : sequence of (low, high)
        Round numbers around the ranges that scikit-learn's description of the table states; one
        pair stands for all columns.
    """

    loader: str
    nominal_n: int
    bounds: Sequence[tuple[float, float]]

    def schema(self, name: str, columns: Sequence[str]) -> Schema:
        """Return the contract of the table."""
        return plain_schema(name, columns, self.bounds)


BUNDLED: Mapping[str, Bundled] = {
    "iris": Bundled("load_iris", 150, ((4, 8), (2, 5), (1, 7), (0, 3))),
    "wine": Bundled(
        "load_wine",
        200,
        (
            *((11, 15), (0.5, 6), (1, 3.5), (10, 30), (70, 170), (0.5, 4), (0, 5.5), (0.1, 0.7)),
            *((0.2, 4), (1, 13), (0.4, 2), (1, 4), (250, 1700)),
        ),
    ),
    "wdbc": Bundled(
        "load_breast_cancer",
        600,
        (
            *((6, 30), (9, 40), (40, 190), (100, 2600), (0.05, 0.2), (0, 0.4), (0, 0.5)),
            *((0, 0.25), (0.1, 0.35), (0.04, 0.1)),
            *((0, 3), (0, 5), (0, 22), (0, 550), (0, 0.035), (0, 0.15), (0, 0.4), (0, 0.06)),
            *((0, 0.08), (0, 0.03)),
            *((7, 40), (12, 50), (50, 260), (180, 4300), (0.05, 0.25), (0, 1.1), (0, 1.3)),
            *((0, 0.3), (0.15, 0.7), (0.05, 0.21)),
        ),
    ),
    "digits": Bundled("load_digits", 1800, ((0, 16),)),
}
"""Tables that need no file."""


def _dataset(source: Any, name: str, schema: Schema, k: int, nominal_n: int) -> Dataset:
    """Put a table on the grid by the rules of its schema."""
    chunks: list[NDArray[np.int32]] = list(read_source(source, schema))
    if not chunks:
        raise DataError(f"data set {name!r} has no usable row under its schema.")
    return Dataset(name, schema, np.concatenate(chunks), k, nominal_n)


def plain_schema(
    name: str, columns: Sequence[str], bounds: Sequence[tuple[float, float]]
) -> Schema:
    """Return a schema of numbers; one pair of bounds stands for all columns."""
    pairs = bounds if len(bounds) > 1 else list(bounds) * len(columns)
    return Schema(
        dataset=name,
        unit="row",
        columns=tuple(
            Column(name=column, type="number", min=low, max=high)
            for column, (low, high) in zip(columns, pairs, strict=True)
        ),
    )


def _sklearn_table(name: str) -> Any:
    """Return a bundled table as a DataFrame."""
    from sklearn import datasets

    return getattr(datasets, BUNDLED[name].loader)(as_frame=True).data


def _table(path: Path) -> Any:
    """Return what is read: a file itself, or the array X of a NumPy archive."""
    if path.suffix != ".npz":
        return path
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["X"].astype(np.float64)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{str(path)!r} must be a NumPy archive with an array X.") from error


def _find(name: str, data_dir: str | Path | None) -> Path | None:
    """Return the file a name stands for, if there is one."""
    if name.endswith(SUFFIXES):
        return Path(name)
    folder = [Path(data_dir) / f"{name}{suffix}" for suffix in SUFFIXES] if data_dir else []
    return next((path for path in folder if path.exists()), None)


def _literature_clusters(name: str) -> int | None:
    return 2 if name.startswith("g2mg_") else LITERATURE_CLUSTERS.get(name)
