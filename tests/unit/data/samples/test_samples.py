"""The patients that ship: what they are, that a schema reads them, and what groups they form."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans

from cloister.app.job import run_job
from cloister.cli.demo import CLUSTERS, COLUMNS, cost_of_privacy, without_privacy
from cloister.data import read_source
from cloister.data.samples import ACCEPTED_LOSS, HOSPITALS, SCHEMA, load_patients, write_patients
from cloister.data.schema import Schema
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.synopsis import squared_distances


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("patients")
    written = write_patients(folder)
    schema = Schema.load(folder / SCHEMA)
    return {
        name: np.concatenate(list(read_source(path, schema, columns=COLUMNS)))
        for name, path in written.items()
    }


def test_the_table_is_small_and_has_every_patient_once() -> None:
    assert (files("cloister.data.samples") / "patients.csv.gz").stat().st_size < 300_000  # type: ignore[attr-defined]
    patients = load_patients()
    assert patients.shape == (16_097, 10)
    assert patients["patient"].is_unique
    assert patients["age"].between(8, 80).all()


def test_hospitals_share_the_patients(tmp_path: Path) -> None:
    written = write_patients(tmp_path)
    assert tuple(written) == HOSPITALS
    lines = [path.read_text().splitlines() for path in written.values()]
    assert len({part[0] for part in lines}) == 1
    assert sum(len(part) - 1 for part in lines) == len(load_patients())
    assert Schema.load(tmp_path / SCHEMA).names == tuple(load_patients().columns[1:])


def test_most_rows_can_be_used(records: dict[str, np.ndarray]) -> None:
    assert sum(map(len, records.values())) == 14_720


def test_without_privacy_is_what_scikit_learn_finds(records: dict[str, np.ndarray]) -> None:
    points = np.concatenate(list(records.values())) / (1 << 16)
    peer = KMeans(CLUSTERS, n_init=10, random_state=0).fit(points)
    found = without_privacy(points, CLUSTERS)
    error = squared_distances(found, points).min(axis=0).sum()
    assert error == pytest.approx(peer.inertia_, rel=1e-4)


def test_every_cluster_stands_beside_its_own_answer_without_privacy(tmp_path: Path) -> None:
    """A size is 110 standard deviations of its noise: that one does not stand out is no chance.

    An interval of a centre is at most one year or mmHg wide, a tenth of the 10 that 5 leaves.
    """
    written = write_patients(tmp_path)
    schema = Schema.load(tmp_path / SCHEMA)
    silos = {name: read_source(path, schema, columns=COLUMNS) for name, path in written.items()}
    result = run_job(
        Auto,
        schema,
        silos,
        epsilon=1.0,
        nominal_n=15_000,
        columns=COLUMNS,
        max_loss=ACCEPTED_LOSS,
        n_clusters=CLUSTERS,
        public_seed=1,
    )
    assert (result.results["sizes"] > 10 * result.results["size_half_width"]).all()
    points = np.concatenate([part for read in silos.values() for part in read])
    table = cost_of_privacy(result, points)
    assert len(table.rows) == CLUSTERS * len(COLUMNS) + 1
    for name, released, exact in table.rows[:-1]:
        assert abs(released.value - exact) < 5, name  # type: ignore[union-attr,operator]
    *_, (_, released, exact) = table.rows
    assert exact <= released < 1.05 * exact  # type: ignore[operator]
