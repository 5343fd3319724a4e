"""Max cover's figure: the objective against the number of clusters, with what it is compared to.

The published figure is on the 60,000 training images of MNIST and on 50,000 records of 64 Gaussians
in 100 columns. Here it is the 10,000 test images, and 20,000 records of a mixture of ours of the
same kind, because the paper states neither spread nor places of its own. The paper's sizes are
``mnist_train`` and ``gaussians_50000``, for who names them.

References
----------
.. [NCX21] Nguyen, Chaturvedi, Xu, "Differentially Private k-Means via Exponential Mechanism and
   Max Cover", AAAI 2021, arXiv:2009.01220, section 5.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cloister.core.randomness import public_generator
from cloister.protocol.task import Floats
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister_lab.curator.max_cover import MaxCover
from cloister_lab.experiments.datasets import Dataset, load, plain_schema
from cloister_lab.experiments.figures import draw_panels, panels_of
from cloister_lab.experiments.records import (
    Cell,
    TidyRow,
    Value,
    cells_of,
    markdown,
    number,
    prose,
    starts,
    write_page,
    write_table,
)
from cloister_lab.experiments.run import Settings, Unit, units_of
from cloister_lab.experiments.sweep import loaded, release
from cloister_lab.metrics import nicv
from cloister_lab.tasks.balcan import Balcan
from cloister_lab.tasks.max_cover import MaxCoverHistogram

EPSILON = 1.0
LLOYD = "lloyd, 10 iterations"
METHODS = (
    LLOYD,
    MaxCover.name,
    MaxCoverHistogram.name,
    Balcan.name,
    FastLloyd.name,
    Auto.name,
)
IMAGES, TRAINING = "mnist_t10k", "mnist_train"
GAUSSIANS, MANY = "gaussians", "gaussians_50000"
_SIZES = {IMAGES: 10_000, TRAINING: 60_000, GAUSSIANS: 20_000, MANY: 50_000}
_IMAGE_KS, _GAUSSIAN_KS = (2, 5, 10, 20, 40), (8, 16, 32, 64, 96)
_LLOYD_ITERATIONS = 10
_REPEATS = 5


@dataclass(frozen=True)
class Images:
    """Images of MNIST under public numbers: pixels from 0 to 255, 10,000 or 60,000 records."""

    data_dir: Path
    name: str = IMAGES

    def dataset(self) -> Dataset:
        """Read the table."""
        schema = plain_schema(self.name, [f"x{j}" for j in range(28 * 28)], [(0.0, 255.0)])
        size = _SIZES[self.name]
        return load(self.name, data_dir=self.data_dir, schema=schema, nominal_n=size, n_clusters=10)


@dataclass(frozen=True)
class Gaussians:
    """64 normal clusters of equal size in 100 columns, cut to the box.

    Means are uniform in [20, 80], standard deviations 10, the public box is [0, 100].
    """

    n_samples: int
    name: str = GAUSSIANS
    n_features: int = 100
    n_clusters: int = 64

    def dataset(self) -> Dataset:
        """Draw the table; it is always the same."""
        rng = public_generator(0, self.name, self.n_samples)
        means = rng.uniform(20, 80, (self.n_clusters, self.n_features))
        label = np.arange(self.n_samples) % self.n_clusters
        values = means[label] + rng.normal(0, 10, (self.n_samples, self.n_features))
        names = [f"x{j}" for j in range(self.n_features)]
        schema = plain_schema(self.name, names, [(0.0, 100.0)])
        records = schema.grid().encode(values)
        return Dataset(self.name, schema, records, self.n_clusters, self.n_samples)


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    return [
        unit
        for source, ks in _sources(settings)
        for unit in units_of(
            objective,
            source=[source],
            k=ks if settings.full else (8, 64),
            repeat=range(settings.runs(_REPEATS, 1)),
            method=METHODS,
        )
    ]


def _sources(settings: Settings) -> Iterator[tuple[Images | Gaussians, Sequence[int]]]:
    """Yield tables with their numbers of clusters."""
    # The paper's sizes take hours, so only who names them runs them.
    usual = {IMAGES, GAUSSIANS}
    for name in [n for n in _SIZES if n in settings.only or (n in usual and settings.wants(n))]:
        file = settings.file(name, (".npz",))
        if name in (GAUSSIANS, MANY) and (settings.full or name == GAUSSIANS):
            yield Gaussians(_SIZES[name] if settings.full else 2_000, name), _GAUSSIAN_KS
        elif settings.full and file:
            yield Images(file.parent, name), _IMAGE_KS


def objective(source: Images | Gaussians, method: str, k: int, repeat: int) -> list[TidyRow]:
    """Run one method from one public seed.

    Returns
    -------
    list of mapping
        One row; ``nicv`` is the objective over the number of records, in coordinates of the box.
    """
    data = replace(loaded(source), n_clusters=k)
    begun = time.perf_counter()
    centres = _centres(data, method, repeat)
    seconds = time.perf_counter() - begun
    return [
        {
            "dataset": data.name,
            "n_samples": len(data.records),
            "n_features": data.records.shape[1],
            "method": method,
            "private": "no" if method == LLOYD else "yes",
            "epsilon": None if method == LLOYD else EPSILON,
            "delta": None if method == LLOYD else data.delta,
            "k": k,
            "repeat": repeat,
            "nicv": nicv(data.values, centres),
            "seconds": seconds,
        }
    ]


def _centres(data: Dataset, method: str, seed: int) -> Floats:
    """Return what a method releases, in coordinates of the box."""
    if method == LLOYD:
        from sklearn.cluster import KMeans

        model = KMeans(
            data.n_clusters, n_init=1, max_iter=_LLOYD_ITERATIONS, random_state=seed
        ).fit(data.values)
        return np.asarray(model.cluster_centers_, dtype=np.float64)
    return release(data, method, EPSILON, seed, silos=1).centres


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Draw a panel for each table, and write the page and the means."""
    by = ("dataset", "n_samples", "n_features", "method", "k")
    cells = cells_of(rows, by, "nicv", "seconds")
    panel = "{dataset}, N = {n_samples}, {n_features} columns"
    figure = draw_panels(
        out / "maxcover.png",
        panels_of(cells, panel, "{method}", "k", "nicv"),
        title="Max cover: objective by number of clusters",
        x_label="k",
        y_label="objective / N, mean and 95 % interval",
        x_log=True,
        note=f"ε = {EPSILON:g}; lloyd has no privacy",
    )
    shown = (*by, "nicv", "half_width", "runs", "seconds")
    table = [{**cell, "half_width": cell["nicv"].half_or_none} for cell in cells]
    means = [{name: row[name] for name in shown} for row in table]
    page = write_page(out / "maxcover.md", _page(rows, cells))
    return [figure, page, write_table(out / "maxcover.csv", means)]


_ORDER = (
    *((MaxCover.name, Balcan.name), (MaxCoverHistogram.name, MaxCover.name)),
    *((Auto.name, other) for other in METHODS if other not in (LLOYD, Auto.name)),
)


def _page(rows: Sequence[TidyRow], cells: Sequence[Cell]) -> list[str]:
    """Return the page: a table of means for each data set, and who is ahead."""
    deltas = {row["dataset"]: row for row in rows if row["delta"] is not None}
    said = "; ".join(
        f"{row['delta']:.2g} on {name}, where n^-1.5 is {number(row, 'n_samples') ** -1.5:.2g}"
        for name, row in deltas.items()
    )
    lines = prose("maxcover", starts=starts(rows), deltas=said, epsilon=EPSILON)
    for name in dict.fromkeys(cell["dataset"] for cell in cells):
        of_name = [cell for cell in cells if cell["dataset"] == name]
        of_table: dict[Value, dict[str, str]] = {}
        for cell in of_name:
            line = of_table.setdefault(cell["method"], {"method": str(cell["method"])})
            line[f"k = {cell['k']}"] = f"{cell['nicv']:.4g}"
        headings = ["method", *(f"k = {k}" for k in sorted({c["k"] for c in of_name}))]
        filled = [{n: line.get(n, "-") for n in headings} for line in of_table.values()]
        lines += ["", f"## {name}", "", *markdown(filled)]
    at = {(cell["dataset"], cell["k"], cell["method"]): cell["nicv"].mean for cell in cells}
    columns = dict.fromkeys(key[:2] for key in at)
    order = [
        {
            "pair": f"{one}, {other}",
            "cells": len(both),
            "ahead": sum(at[*column, one] < at[*column, other] for column in both),
        }
        for one, other in _ORDER
        if (both := [c for c in columns if (*c, one) in at and (*c, other) in at])
    ]
    return lines + prose("maxcover-order", order)
