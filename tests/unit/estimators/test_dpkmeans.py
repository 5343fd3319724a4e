"""``DPKMeans``: scikit-learn's manners, every kind of table, and nothing spent on a mistake."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator
from sklearn.utils.validation import has_fit_parameter

from cloister import Budget, DPKMeans, DPLinearRegression, Ledger, Schema
from cloister.core.errors import BudgetExceeded, DataError, LedgerError, PlanError
from cloister.tasks.clustering.auto import Auto
from cloister.testing import UNMET_CHECKS, ZeroNoiseKMeans

RNG = np.random.default_rng(0)
X = np.vstack([RNG.normal(c, 0.1, (150, 2)) for c in ((-0.6, -0.6), (0.6, 0.5), (0.6, -0.7))])
FRAME = pd.DataFrame(X, columns=["a", "b"])
SCHEMA = Schema(
    dataset="ward",
    unit="row",
    columns=[
        {"name": "a", "type": "number", "min": -1, "max": 1},
        {"name": "b", "type": "number", "min": -1, "max": 1, "missing": "midpoint"},
    ],
)


def model(cls: Any = DPKMeans, **changes: Any) -> Any:
    options: dict[str, Any] = {"epsilon": 5.0, "bounds": (-1, 1), "nominal_n": 450, **changes}
    if "rounds" in options:
        options.setdefault("algorithm", "fastlloyd")
    return cls(options.pop("n_clusters", 3), **options)


# --- scikit-learn ---------------------------------------------------------------------------------

# scikit-learn skips checks that compare two fits of an estimator that says it is not
# deterministic, but this one it runs. Noise is fresh in every fit and never seeded to pass.
COMPARES_TWO_FITS = {"check_fit_idempotent": "two fits draw two noises"}
EXPECTED = {**COMPARES_TWO_FITS, **UNMET_CHECKS}
SKIPPED = {
    "check_pipeline_consistency",
    "check_transformer_data_not_an_array",
    "check_transformer_general",
    "check_array_api_input",  # needs an environment variable
}


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_pass_but_for_those_that_compare_two_fits() -> None:
    # Bounds that fit scikit-learn's tables: in a wider box the noise would hide their clusters.
    estimator = DPKMeans(3, epsilon=1e6, bounds=(-10, 10), nominal_n=100)
    results = check_estimator(
        estimator, expected_failed_checks=EXPECTED, on_skip=None, on_fail="raise"
    )
    by_status: dict[str, set[str]] = {}
    for result in results:
        by_status.setdefault(result["status"], set()).add(result["check_name"])
    assert set(by_status) <= {"passed", "skipped", "xfail"}
    assert by_status["xfail"] <= set(EXPECTED)
    assert by_status["skipped"] <= SKIPPED
    assert len(by_status["passed"]) >= 35


DOUBLE = ZeroNoiseKMeans(3, epsilon=1e6, bounds=(-100, 100), nominal_n=100)


def _checks() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks = list(estimator_checks_generator(DOUBLE))
    left_out = {"check_array_api_input", *UNMET_CHECKS}
    return [c for c in checks if getattr(c[1], "func", c[1]).__name__ not in left_out]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "check"),
    _checks(),
    ids=lambda part: getattr(getattr(part, "func", part), "__name__", "double"),
)
def test_every_check_passes_without_noise(estimator: Any, check: Any) -> None:
    check(estimator)


def test_it_says_what_it_is() -> None:
    tags = model().__sklearn_tags__()
    assert tags.non_deterministic
    assert not tags.input_tags.sparse
    assert tags.estimator_type == "clusterer"


def test_it_clones_and_shows_its_parameters(tmp_path: Path) -> None:
    ledger = Ledger(None)
    original = model(ledger=ledger, dataset="d", algorithm="glloyd", rounds=3)
    copied = clone(original)
    assert copied.ledger is ledger  # a copy that could spend the same budget twice must not exist
    assert copied.get_params() == original.get_params()
    assert "epsilon=5.0" in repr(original)
    assert clone(model(bounds=SCHEMA)).bounds == SCHEMA


def test_it_works_at_the_end_of_a_pipeline() -> None:
    pipeline = make_pipeline(FunctionTransformer(lambda table: np.asarray(table) / 2), model())
    assert pipeline.fit(X).predict(X[:5]).shape == (5,)
    assert pipeline.transform(X[:5]).shape == (5, 3)


def test_output_can_be_pandas() -> None:
    fitted = model().fit(FRAME).set_output(transform="pandas")
    assert list(fitted.transform(FRAME[:2]).columns) == ["dpkmeans0", "dpkmeans1", "dpkmeans2"]


# --- What a fit gives -----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fastlloyd", "glloyd", "sulloyd"])
def test_learned_attributes_have_their_shapes_and_meaning(algorithm: str) -> None:
    fitted = model(algorithm=algorithm).fit(X)
    assert fitted.cluster_centers_.shape == fitted.centers_half_width_.shape == (3, 2)
    assert fitted.cluster_sizes_.shape == fitted.sizes_half_width_.shape == (3,)
    assert np.abs(fitted.cluster_centers_).max() <= 1
    # With little probability noise leaves an interval not known.
    assert not (fitted.centers_half_width_ <= 0).any()
    middle = (fitted.centers_low_ + fitted.centers_high_) / 2
    low = pytest.approx(fitted.centers_low_, nan_ok=True)
    assert middle - fitted.centers_half_width_ == low
    assert len(fitted.history_) == fitted.n_iter_ + 1 == fitted.plan_.rounds + 1
    assert 0.99 * 5.0 < fitted.spent_ <= 5.0
    assert fitted.delta_ == 1e-6
    assert fitted.n_features_in_ == 2
    assert fitted.labels_.shape == (450,)
    assert fitted.labels_.dtype == np.int32
    assert fitted.result_.plan is fitted.plan_


def test_clusters_are_found() -> None:
    fitted = model(ZeroNoiseKMeans, random_state=0).fit(X)
    found = fitted.cluster_centers_[np.lexsort(fitted.cluster_centers_.T)]
    assert found.tolist() == pytest.approx(
        np.array([[0.6, -0.7], [-0.6, -0.6], [0.6, 0.5]]), abs=0.05
    )
    assert fitted.cluster_sizes_.tolist() == [150, 150, 150]
    assert np.bincount(fitted.labels_).tolist() == [150, 150, 150]
    assert "not private" in fitted.result_.noise


def test_centres_come_in_the_units_of_the_table() -> None:
    scaled = X * [10, 1000] + [50, 0]
    options = {"random_state": 0, "rounds": 4}
    plain = model(ZeroNoiseKMeans, **options).fit(X)
    bounds = ([40, -1000], [60, 1000])
    units = model(ZeroNoiseKMeans, bounds=bounds, **options).fit(scaled)
    expected = plain.cluster_centers_ * [10, 1000] + [50, 0]
    assert np.allclose(units.cluster_centers_, expected, atol=0.1)
    assert np.array_equal(units.labels_, plain.labels_)


def test_predict_transform_and_score_agree() -> None:
    fitted = model().fit(X)
    distances = fitted.transform(X)
    chosen = np.take_along_axis(distances, fitted.predict(X)[:, None], axis=1)[:, 0]
    assert (chosen <= distances.min(axis=1) + 2**-14).all()  # labels are of rounded records
    assert np.array_equal(fitted.predict(X), fitted.labels_)
    assert fitted.score(X) == pytest.approx(-(distances.min(axis=1) ** 2).sum())


def plain_labels(fitted: DPKMeans, table: Any) -> list[int]:
    """Return the definition: clip and round a record and the centres, compare whole numbers."""
    one, (low, high) = 1 << fitted.frac_bits, fitted.bounds
    middle, half = (high + low) / 2, (high - low) / 2
    centres = [[round((c - middle) / half * one) for c in r] for r in fitted.cluster_centers_]
    labels = []
    for record in table.tolist():
        if not np.isfinite(record).all():
            labels.append(-1)
            continue
        steps = [round((min(max(x, low), high) - middle) * (one / half)) for x in record]
        gaps = [sum((a - b) ** 2 for a, b in zip(steps, c, strict=True)) for c in centres]
        labels.append(gaps.index(min(gaps)))
    return labels


ODD_CELLS = [np.nan, np.inf, -np.inf, -0.0, 0.0, -1.0, 1.0, np.nextafter(1, 2), 3.0, -1e30, 1e300]
TABLES = {
    "float64": lambda table: table,
    "float32": lambda table: table.astype(np.float32),
    "Fortran order": np.asfortranarray,
    "every second row": lambda table: np.repeat(table, 2, axis=0)[::2],
    "backwards": lambda table: table[::-1, ::-1],
    "one row": lambda table: table[:1],
    "nothing but gaps": lambda table: np.full_like(table, np.nan),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("frac_bits", [8, 16])
def test_labels_are_those_of_plain_whole_numbers(kind: str, frac_bits: int) -> None:
    rng = np.random.default_rng(7)
    table = rng.uniform(-1.2, 1.2, (400, 3))
    table[rng.random(table.shape) < 0.1] = rng.choice(ODD_CELLS)
    for cell, odd in enumerate(ODD_CELLS):
        table[cell + 1, cell % 3] = odd
    table = TABLES[kind](table)
    fitted = model(n_clusters=6, frac_bits=frac_bits, max_loss=1.0).fit(table)
    assert fitted.labels_.dtype == np.int32
    assert fitted.labels_.tolist() == plain_labels(fitted, table)
    finite = np.isfinite(table).all(axis=1)
    if finite.any():
        assert np.array_equal(fitted.predict(table[finite]), fitted.labels_[finite])


@pytest.mark.filterwarnings("ignore")
def test_whole_numbers_and_empty_tables_get_labels() -> None:
    whole = np.random.default_rng(0).integers(-3, 4, (60, 2))
    fitted = model(bounds=(-2, 2)).fit(whole)
    assert fitted.labels_.tolist() == plain_labels(fitted, whole.astype(float))
    assert np.array_equal(model(n_clusters=2).fit_predict(whole) >= 0, np.full(60, True))
    assert model().fit(np.empty((0, 2))).labels_.shape == (0,)


def test_each_label_stands_at_its_row_through_many_chunks() -> None:
    table = np.random.default_rng(1).uniform(-1, 1, (140_000, 1)).astype(np.float32)
    table[[0, 65_535, 65_536, 139_999]] = np.nan
    fitted = model(ZeroNoiseKMeans, random_state=0, rounds=2, nominal_n=len(table)).fit(table)
    gone = np.isnan(table[:, 0])
    assert (fitted.labels_ == -1).nonzero()[0].tolist() == gone.nonzero()[0].tolist()
    assert np.array_equal(fitted.labels_[~gone], fitted.predict(table[~gone]))


def test_rows_beyond_those_of_one_unit_have_no_label() -> None:
    people = FRAME.assign(person=["p", "p", "p", None, *map(str, range(446))])
    by_person = Schema(dataset="ward", unit="person", max_rows=2, columns=SCHEMA.columns)
    fitted = model(ZeroNoiseKMeans, bounds=by_person, random_state=0, rounds=3).fit(people)
    assert fitted.cluster_sizes_.sum() == 448
    assert (fitted.labels_ == -1).nonzero()[0].tolist() == [2, 3]


def test_rows_of_a_database_have_no_labels(tmp_path: Path) -> None:
    from contextlib import closing
    from sqlite3 import connect

    from cloister.data import SqlQuery

    with closing(connect(tmp_path / "ward.db")) as database:
        FRAME.to_sql("ward", database, index=False)
    source = SqlQuery(f"sqlite:///{tmp_path / 'ward.db'}", "SELECT a, b FROM ward")
    fitted = model(bounds=SCHEMA).fit(source)
    assert not hasattr(fitted, "labels_")


def test_no_table_is_copied_to_find_its_labels() -> None:
    import tracemalloc

    table = np.random.default_rng(0).uniform(-1, 1, (400_000, 6)).astype(np.float32)
    fitted = model().fit(table[:1000])
    for ask in (fitted.predict, fitted.score):
        tracemalloc.start()
        ask(table)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * len(table) + 8 * 2**20 < table.nbytes + 2**20


def test_random_state_seeds_the_start_and_never_the_noise() -> None:
    one, two = (model(algorithm="fastlloyd", random_state=3).fit(X) for _ in range(2))
    assert np.array_equal(one.history_[0]["centres"], two.history_[0]["centres"])
    assert not np.array_equal(one.cluster_centers_, two.cluster_centers_)
    other = model(algorithm="fastlloyd", random_state=4).fit(X)
    assert not np.array_equal(one.history_[0]["centres"], other.history_[0]["centres"])


def test_notebooks_show_released_numbers_only() -> None:
    unfitted = model()._repr_mimebundle_()
    assert "n_clusters" in unfitted["text/html"]  # the parameters, as scikit-learn shows them
    fitted = model(bounds=SCHEMA).fit(FRAME.rename(columns={}))
    html = fitted._repr_mimebundle_()["text/html"]
    for shown in (
        "epsilon 5",
        "delta 1e-06",
        '<th scope="col">a</th>',
        "operating system",
        "95 % confidence intervals. Intervals marked",
    ):
        assert shown in html
    assert "label" not in html
    names = Schema(
        dataset="d",
        unit="row",
        columns=[{"name": "<script>", "type": "number", "min": -1, "max": 1}],
    )
    hostile = model(bounds=names).fit(pd.DataFrame({"<script>": X[:, 0]}))
    assert "<script>" not in hostile._repr_mimebundle_()["text/html"]


# --- Every kind of table --------------------------------------------------------------------------


def sources(folder: Path) -> dict[str, Any]:
    FRAME.to_csv(folder / "t.csv", index=False)
    FRAME.to_parquet(folder / "t.parquet")
    return {
        "array": X,
        "float32": X.astype(np.float32).astype(np.float64),
        "list": X.tolist(),
        "pandas": FRAME,
        "polars": pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}),
        "csv": folder / "t.csv",
        "csv as text": str(folder / "t.csv"),
        "parquet": folder / "t.parquet",
    }


KINDS = ["array", "list", "pandas", "polars", "csv", "csv as text", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bounds", [(-1, 1), SCHEMA], ids=["bounds", "schema"])
def test_every_kind_of_table_gives_the_same_centres(kind: str, bounds: Any, tmp_path: Path) -> None:
    options = {"random_state": 0, "rounds": 3, "bounds": bounds}
    expected = model(ZeroNoiseKMeans, **options).fit(X)
    fitted = model(ZeroNoiseKMeans, **options).fit(sources(tmp_path)[kind])
    assert np.array_equal(fitted.cluster_centers_, expected.cluster_centers_)
    in_memory = not kind.startswith(("csv", "parquet"))
    assert hasattr(fitted, "labels_") == in_memory
    if in_memory:
        assert np.array_equal(fitted.labels_, expected.labels_)


def test_an_arrow_table_is_read_by_a_schema() -> None:
    table = pa.table({"id": ["p"] * 450, "b": X[:, 1], "a": X[:, 0]})
    options = {"random_state": 0, "rounds": 3, "bounds": SCHEMA}
    expected = model(ZeroNoiseKMeans, **options).fit(X)
    fitted = model(ZeroNoiseKMeans, **options).fit(table)
    assert np.array_equal(fitted.cluster_centers_, expected.cluster_centers_)
    assert np.array_equal(fitted.labels_, expected.labels_)


@pytest.mark.parametrize("silos", [1, 2, 3, 8])
def test_a_list_is_one_silo_each_and_gives_the_pooled_centres(silos: int) -> None:
    options = {"random_state": 0, "rounds": 4}
    pooled = model(ZeroNoiseKMeans, **options).fit(X)
    parts = np.array_split(X, silos)
    fitted = model(ZeroNoiseKMeans, **options).fit(parts)
    assert np.array_equal(fitted.cluster_centers_, pooled.cluster_centers_)
    assert fitted.plan_.silos == tuple(f"silo-{i}" for i in range(silos))
    assert fitted.plan_.profile == ("local" if silos == 1 else "group")
    assert hasattr(fitted, "labels_") == (silos == 1)


def test_silos_may_be_files_tables_and_empty(tmp_path: Path) -> None:
    kinds = sources(tmp_path)
    nobody = FRAME[:0]
    for parts in ([kinds["csv"], kinds["parquet"]], [FRAME, kinds["polars"]], [FRAME, nobody]):
        fitted = model().fit(parts)
        assert np.isfinite(fitted.cluster_centers_).all()
        assert fitted.feature_names_in_.tolist() == ["a", "b"]


def test_silos_are_matched_by_the_names_of_their_columns() -> None:
    swapped = FRAME[["b", "a"]]
    options = {"random_state": 0, "rounds": 3}
    for bounds in (SCHEMA, {"b": (-1, 1), "a": (-1, 1)}):
        fitted = model(ZeroNoiseKMeans, bounds=bounds, **options).fit([FRAME[:200], swapped[200:]])
        pooled = model(ZeroNoiseKMeans, bounds=bounds, **options).fit(FRAME)
        assert np.array_equal(fitted.cluster_centers_, pooled.cluster_centers_)
    for other in (FRAME[["a"]], FRAME.rename(columns={"b": "zz"}), FRAME.assign(zz=1.0)):
        with pytest.raises(DataError, match=r"same columns: silo 1 .*'(b|zz)'"):
            model().fit([FRAME, other])
    with pytest.raises(DataError, match="silo 1 has no column names"):
        model().fit([FRAME, FRAME.to_numpy()])


def test_a_fit_of_silos_forgets_the_labels_of_the_fit_before() -> None:
    fitted = model().fit(FRAME)
    assert hasattr(fitted, "labels_")
    fitted.fit([X[:200], X[200:]])
    assert not hasattr(fitted, "labels_")
    assert not hasattr(fitted, "feature_names_in_")


# --- Records that are not as they should be -------------------------------------------------------


def test_missing_cells_follow_the_schema_and_stop_nothing() -> None:
    holes = FRAME.astype(object)
    holes.loc[3, "a"] = None  # dropped
    holes.loc[4, "b"] = np.nan  # midpoint
    holes.loc[5, "a"] = "unknown"  # of the wrong type: missing
    fitted = model(ZeroNoiseKMeans, bounds=SCHEMA, random_state=0, rounds=3).fit(holes)
    assert fitted.cluster_sizes_.sum() == 448
    assert (fitted.labels_ == -1).nonzero()[0].tolist() == [3, 5]
    kept = holes.drop(index=[3, 5])
    assert (fitted.predict(kept) == fitted.labels_[fitted.labels_ >= 0]).all()


def test_other_columns_of_a_table_are_not_read() -> None:
    wide = FRAME.assign(day=pd.Timestamp("2026-01-01"), name="nobody")
    fitted = model(bounds=SCHEMA).fit(wide)
    assert fitted.labels_.shape == (450,)
    assert fitted.feature_names_in_.tolist() == ["a", "b"]


def test_records_beyond_the_bounds_are_clipped() -> None:
    far = np.vstack([X, [[1e6, -1e6], [np.float64(1e300), 0]]])
    fitted = model().fit(far)
    assert np.abs(fitted.cluster_centers_).max() <= 1
    assert np.isfinite(fitted.cluster_centers_).all()


@pytest.mark.parametrize("rows", [1, 2])
def test_fewer_records_than_clusters_are_fitted(rows: int) -> None:
    for nominal_n in (450, None):
        fitted = model(nominal_n=nominal_n).fit(X[:rows])
        assert np.isfinite(fitted.cluster_centers_).all()


def test_duplicates_and_constant_columns_are_fitted() -> None:
    same = np.tile([[0.25, 1.0]], (100, 1))
    fitted = model(ZeroNoiseKMeans, n_clusters=2, rounds=7, random_state=0).fit(same)
    assert np.abs(fitted.cluster_centers_ - [0.25, 1.0]).max(axis=1).min() < 1e-4
    one = model(n_clusters=1).fit(X[:, :1])
    assert one.cluster_centers_.shape == (1, 1)


# --- Nothing is spent on a mistake ----------------------------------------------------------------


@pytest.fixture
def ledger() -> Any:
    ledger = Ledger(None)
    ledger.open_dataset("d", cap=Budget(10.0, 1e-6))
    yield ledger
    ledger.dispose()


@pytest.mark.parametrize("nominal_n", [450, None])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"epsilon": "1"}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 0.0}, "delta"),
        ({"bounds": None}, "bounds"),
        ({"bounds": "from data"}, "would leak"),
        ({"bounds": (1, -1)}, "min must be below max"),
        ({"bounds": ([0, 0, 0], [1, 1, 1])}, "for 2 columns"),
        ({"bounds": 5}, "bounds"),
        ({"bounds": (0, float("nan"))}, ""),
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": 2.5}, "n_clusters"),
        ({"n_clusters": True}, "n_clusters"),
        ({"algorithm": "lloyd"}, "not private"),
        ({"algorithm": "kmeans"}, "algorithm"),
        ({"algorithm": "glloyd", "alpha": 0.5}, "alpha must be omitted"),
        ({"alpha": -1.0}, "alpha"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.7}, "rounds"),
        ({"rounds": "3"}, "rounds"),
        ({"frac_bits": 3}, "frac_bits"),
        ({"frac_bits": 16.5}, "frac_bits"),
        ({"frac_bits": 40}, "frac_bits"),
    ],
)
def test_a_mistake_is_told_before_anything_is_spent(
    change: dict[str, Any], match: str, nominal_n: int | None, ledger: Ledger
) -> None:
    options = {"nominal_n": nominal_n, "ledger": ledger, "dataset": "d", **change}
    with pytest.raises(PlanError, match=match or None):
        model(**options).fit(X)
    assert ledger.spent("d") == 0


@pytest.mark.parametrize("nominal_n", [0, -5, 2.5, "450", True])
def test_nominal_n_is_a_whole_number(nominal_n: Any) -> None:
    with pytest.raises(PlanError, match="nominal_n"):
        model(nominal_n=nominal_n).fit(X)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    fitted = model(nominal_n=np.int64(450), rounds=np.int32(3), n_clusters=np.uint8(2)).fit(X)
    assert fitted.plan_.nominal_n == 450
    assert len(fitted.plan_.digest) == 32


def test_too_many_clusters_for_nominal_n_are_refused() -> None:
    with pytest.raises(PlanError, match="at most nominal_n=2"):
        model(nominal_n=2).fit(X)


@pytest.mark.parametrize(
    "table",
    [
        np.zeros(5),
        np.zeros((5, 2)) + 1j,
        [],
        "no-such-file.csv",
        [np.zeros((3, 2)), "no-such-file.csv"],
        [np.zeros((3, 2)), np.zeros((3, 3))],
        [np.zeros((3, 2)), 5],
        pd.DataFrame({"a": ["x"], "b": [1.0]}),
    ],
)
def test_a_table_that_is_none_is_told_before_anything_is_spent(table: Any, ledger: Ledger) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # scikit-learn's own words for arrays
        model(ledger=ledger, dataset="d", nominal_n=None).fit(table)
    assert ledger.spent("d") == 0


def test_a_column_the_schema_needs_is_missed_before_anything_is_spent(ledger: Ledger) -> None:
    for table in (FRAME[["a"]], FRAME.to_numpy()[:, :1]):
        with pytest.raises(DataError):
            model(bounds=SCHEMA, ledger=ledger, dataset="d", nominal_n=None).fit(table)
    assert ledger.spent("d") == 0


def test_a_ledger_needs_the_name_of_the_data(ledger: Ledger) -> None:
    with pytest.raises(PlanError, match="dataset"):
        model(ledger=ledger).fit(X)
    with pytest.raises(LedgerError, match="other"):
        model(ledger=ledger, dataset="other").fit(X)


def test_a_ledger_refuses_the_fit_that_would_overspend(ledger: Ledger, tmp_path: Path) -> None:
    fit = model(ledger=ledger, dataset="d")
    fit.fit(X)
    spent = ledger.spent("d")
    assert spent == pytest.approx(fit.spent_)
    with pytest.raises(BudgetExceeded):
        model(ledger=ledger, dataset="d", epsilon=9.0).fit(X)
    assert ledger.spent("d") == spent

    path = tmp_path / "ledger.db"
    on_disk = Ledger(path)
    on_disk.open_dataset("ward", cap=Budget(6.0, 1e-6))
    model(ledger=path, bounds=SCHEMA).fit(X)
    assert Ledger(path).spent("ward") == pytest.approx(5.0, rel=1e-3)


def test_epsilon_and_bounds_have_no_default() -> None:
    with pytest.raises(TypeError, match="epsilon"):
        DPKMeans(3, bounds=(-1, 1))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="bounds"):
        DPKMeans(3, epsilon=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        DPKMeans(3, 1.0, (-1, 1))  # type: ignore[misc]


# --- The paid count -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fastlloyd", "glloyd", "sulloyd"])
def test_without_nominal_n_two_percent_buy_a_count(algorithm: str) -> None:
    fitted = model(nominal_n=None, algorithm=algorithm).fit(X)
    assert fitted.delta_ == 1e-6
    assert 4.95 < fitted.spent_ <= 5.0
    assert fitted.plan_.budget.epsilon < 4.97
    assert fitted.plan_.nominal_n == pytest.approx(450, abs=400)


def test_the_number_of_rows_reaches_no_public_number() -> None:
    digests = set()
    for rows in (449, 450):
        fitted = model(random_state=0).fit(X[:rows])
        document = {**fitted.plan_.to_dict(), "run_id": ""}
        digests.add(json.dumps(document, sort_keys=True))
    assert len(digests) == 1


# --- Save and load --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fastlloyd", "glloyd", "sulloyd"])
def test_a_model_survives_its_file(algorithm: str, tmp_path: Path) -> None:
    fitted = model(algorithm=algorithm, relocate_empty=False, frac_bits=18).fit(X)
    fitted.save(tmp_path / "m.json")
    loaded = DPKMeans.load(tmp_path / "m.json")
    assert np.array_equal(loaded.cluster_centers_, fitted.cluster_centers_)
    assert np.array_equal(loaded.predict(X), fitted.predict(X))
    assert np.array_equal(loaded.transform(X), fitted.transform(X))
    assert (loaded.spent_, loaded.delta_) == (fitted.spent_, fitted.delta_)
    for name in ("n_clusters", "epsilon", "nominal_n", "algorithm", "relocate_empty", "frac_bits"):
        assert getattr(loaded, name) == getattr(fitted, name)
    assert loaded.rounds == fitted.n_iter_
    assert not hasattr(loaded, "labels_")
    clone(loaded).fit(X)  # its parameters are parameters


def test_labels_and_records_are_not_saved(tmp_path: Path) -> None:
    fitted = model().fit(X)
    fitted.save(tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    assert "labels" not in text
    for value in X.ravel():
        assert repr(float(value)) not in text


def test_names_of_columns_survive_the_file(tmp_path: Path) -> None:
    fitted = model().fit(FRAME)
    fitted.save(tmp_path / "m.json")
    loaded = DPKMeans.load(tmp_path / "m.json")
    assert np.array_equal(loaded.predict(FRAME), fitted.predict(FRAME))
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(FRAME[["b", "a"]])
    with pytest.raises(PlanError, match=r"must be a schema or its path, got \{.*omit bounds"):
        DPKMeans.load(tmp_path / "m.json", bounds={"a": (-1, 1)})  # type: ignore[arg-type]


def test_a_file_of_another_task_is_refused(tmp_path: Path) -> None:
    from cloister import run_job
    from cloister.data import array_records
    from cloister.tasks.clustering.kmeans import Lloyd
    from cloister.tasks.count import Count
    from cloister.testing import toy_schema

    schema = toy_schema()
    records = {"a": array_records(X, schema.grid())}
    run_job(Count, schema, records, epsilon=1.0, nominal_n=450).save(tmp_path / "count.json")
    run_job(Lloyd, schema, records, epsilon=None, n_clusters=2).save(tmp_path / "lloyd.json")
    for name in ("count", "lloyd"):
        with pytest.raises(DataError, match=name):
            DPKMeans.load(tmp_path / f"{name}.json")


def test_an_unfitted_model_is_not_saved(tmp_path: Path) -> None:
    from sklearn.exceptions import NotFittedError

    for call in (lambda m: m.save(tmp_path / "m.json"), lambda m: m.predict(X)):
        with pytest.raises(NotFittedError):
            call(model())


def test_the_double_says_that_it_is_not_private() -> None:
    fitted = model(ZeroNoiseKMeans).fit(X)
    assert "not private" in fitted._repr_mimebundle_()["text/html"]
    assert isinstance(fitted.plan_.task, Auto)


def test_labels_are_not_stored_with_the_model() -> None:
    model = DPKMeans(2, epsilon=1.0, bounds=(-1, 1), nominal_n=20).fit(np.zeros((20, 2)))
    assert len(model.labels_) == 20
    stored = pickle.loads(pickle.dumps(model))  # noqa: S301  # made two calls ago
    assert not hasattr(stored, "labels_")
    assert (stored.cluster_centers_ == model.cluster_centers_).all()


def test_a_budget_too_small_for_a_count_asks_for_nominal_n() -> None:
    with pytest.raises(PlanError, match="nominal_n must be given"):
        DPKMeans(2, epsilon=0.1, delta=0.01, bounds=(-1, 1)).fit(np.zeros((20, 2)))


def test_a_weight_of_a_record_is_refused_with_a_way_out() -> None:
    line = DPLinearRegression(epsilon=1.0, bounds=(-1, 1), target_bounds=(-1, 1))
    for kind in (model(), line):
        with pytest.raises(PlanError, match=r"sample_weight must be None.*max_rows"):
            kind.fit(X, X[:, 0], sample_weight=np.ones(len(X)))
        with pytest.raises(TypeError, match="'weights'"):
            kind.fit(X, X[:, 0], weights=np.ones(len(X)))
        assert not has_fit_parameter(kind, "sample_weight")  # as scikit-learn asks
    model(bounds=(-1, 1)).fit(X, sample_weight=None)


def test_a_missing_value_is_answered_with_the_rule_of_the_schema() -> None:
    fitted = model().fit(X)
    for missing in (np.nan, np.inf):
        with pytest.raises(DataError, match="schema as bounds, whose rule 'missing'"):
            fitted.predict(np.full((1, X.shape[1]), missing))
