"""A task that says nothing of its display: all its numbers are shown, with their intervals."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from cloister.app.job import run_job
from cloister.app.present import present
from cloister.app.report import as_table, render_report
from cloister.app.report.notebook import release_frame
from cloister.core.arrays import Results
from cloister.core.derived import derived, displays_of
from cloister.core.display import Bars, Display, Heatmap, Table
from cloister.data.schema import Column, Schema
from cloister.tasks.count import Count
from cloister.testing import ZeroNoise

COLUMNS = ("age", "pay")
RESULTS: Results = {
    "records": np.array([90.0]),
    "records_half_width": np.array([4.0]),
    "mean_age": np.array([40.0]),
    "mean_age_low": np.array([39.0]),
    "mean_age_high": np.array([42.0]),
    "by_column": np.array([1.0, 2.0]),
    "rates": np.array([0.1, 0.2, 0.3]),
    "rates_low": np.array([0.0, 0.1, 0.2]),
    "rates_high": np.array([0.2, 0.3, 0.4]),
    "rates_population_low": np.zeros(3),
    "rates_population_high": np.ones(3),
    "pairs": np.arange(6.0).reshape(3, 2),
    "cube": np.arange(8.0).reshape(2, 2, 2),
}


def shown() -> dict[str, Display]:
    return {one.title: one for one in derived(RESULTS, COLUMNS)}


def test_numbers_are_one_table_vectors_bars_and_matrices_heat_maps() -> None:
    kinds = {title: type(one) for title, one in shown().items()}
    assert kinds == {
        "Results": Table,
        "By column": Bars,
        "Rates": Bars,
        "Pairs": Heatmap,
        "Cube": Heatmap,
    }


def test_each_number_has_the_interval_that_results_hold() -> None:
    texts = {title: as_table(one).rows for title, one in shown().items()}
    frame = release_frame(tuple(shown().values()))
    assert frame.loc[("Results", "Records", "value"), "low"] == 86.0
    assert frame.loc[("Results", "Mean age", "value"), "high"] == 42.0
    assert frame.loc[("Rates", "1", "value"), "population_high"] == 1.0
    assert texts["By column"] == (("age", "1"), ("pay", "2"))
    assert texts["Pairs"][2] == ("2", "4", "5")
    assert len(texts["Cube"]) == 4


def test_one_margin_is_that_of_all_results_that_it_fits() -> None:
    found = derived({"counts": np.ones(3), "half_width": np.full(3, 0.5)}, COLUMNS)
    (bars,) = found
    assert isinstance(bars, Bars)
    assert bars.estimate.margin is not None
    assert bars.estimate.margin.tolist() == [0.5] * 3
    (alone,) = derived({"half_width": np.ones(1)}, COLUMNS)
    assert isinstance(alone, Table)


def test_a_display_of_its_own_comes_first() -> None:
    table = Table("mine", ("",), ())
    own = SimpleNamespace(displays=lambda results, columns: (table,))
    assert displays_of(own, RESULTS, COLUMNS) == (table,)
    assert displays_of(SimpleNamespace(), RESULTS, COLUMNS)[0].title == "Results"


class Plain(Count):
    """A count that is shown as its results are."""

    displays = staticmethod(derived)


def test_a_release_without_displays_of_its_own_has_every_face() -> None:
    column = Column(name="age", type="number", min=0, max=100)
    schema = Schema(dataset="ward", unit="row", columns=(column,))
    records = {"a": [np.zeros((90, 1), dtype=np.int32)]}
    done = run_job(Plain, schema, records, epsilon=2.0, nominal_n=90, noise=ZeroNoise())
    assert present(done).result.startswith("Count: 90.0 ± ")
    assert "Results" in render_report(done)
    assert release_frame(present(done).displays)["value"].tolist() == [90.0]
