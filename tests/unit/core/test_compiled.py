"""Which code runs the loops over records, and what compiled ones refuse."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cloister import DPKMeans
from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core import compiled
from cloister.core.errors import PlanError
from cloister.data import read_source
from cloister.data.schema import Column, Schema
from cloister.federation.settings import SiloSettings
from cloister.federation.silo.site import Site
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.testing import ZeroNoise

ONE = 1 << 16
RECORDS = np.array([[0, 0], [3, 4]], dtype=np.int32)
CENTRES = np.array([[0, 1], [3, 3]])

needs_compiled = pytest.mark.skipif(
    compiled.instruction_sets() == [compiled.NUMPY],
    reason="nothing is compiled: there was no compiler",
)


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(compiled.CHOICE, raising=False)
    compiled.instruction_set.cache_clear()
    yield
    compiled.instruction_set.cache_clear()


def test_the_best_one_is_used_unless_another_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = compiled.instruction_sets()
    assert there[-1] == compiled.NUMPY
    assert compiled.instruction_set() == there[0]
    for name in there:
        monkeypatch.setenv(compiled.CHOICE, name)
        compiled.instruction_set.cache_clear()
        assert compiled.instruction_set() == name
        assert nearest_centres(RECORDS, CENTRES).tolist() == [0, 1]


def test_one_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.CHOICE, "abacus")
    with pytest.raises(PlanError, match=r"CLOISTER_KERNEL must be one of .*numpy here, got"):
        compiled.instruction_set()


@pytest.mark.parametrize(
    ("centres", "one"),
    [
        (CENTRES, 1 << 25),
        (CENTRES, 0),
        (np.array([[1 << 25, 0]]), ONE),
        (np.full((1, 2), -(1 << 62)), ONE),
        (np.zeros((2, 1 << 17), dtype=np.int64), ONE),
        (np.full((1, 40), 1 << 24), 1 << 24),
        (np.zeros((0, 2), dtype=np.int64), ONE),
    ],
)
def test_what_floats_do_not_hold_is_left_to_numpy(centres: np.ndarray, one: int) -> None:
    assert not compiled.has_distances(RECORDS, centres, one)


def test_one_fit_of_a_process_says_that_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "_native", None)
    compiled.say_slow.cache_clear()
    model = DPKMeans(2, epsilon=1.0, bounds=(0, 9), nominal_n=2)
    with pytest.warns(UserWarning, match="run in NumPy, several times slower .* install") as said:
        model.fit(RECORDS).fit(RECORDS)
    ours = [one for one in said if "NumPy" in str(one.message)]
    assert [Path(one.filename).name for one in ours] == [Path(__file__).name]
    compiled.instruction_set.cache_clear()
    compiled.say_slow.cache_clear()
    monkeypatch.setenv(compiled.CHOICE, compiled.NUMPY)  # whoever asks for it knows
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled.say_slow()
    compiled.say_slow.cache_clear()


@needs_compiled
def test_compiled_loops_refuse_what_they_cannot_compute_exactly() -> None:
    assert compiled.has_distances(RECORDS, CENTRES, ONE)
    for records, centres, one in (
        (RECORDS, CENTRES, 0),
        (RECORDS, CENTRES, 1 << 25),
        (RECORDS, CENTRES[:, :1], ONE),
        (RECORDS, CENTRES[:0], ONE),
        (RECORDS, CENTRES << 30, ONE),
    ):
        with pytest.raises(ValueError, match=r"must|too large"):
            compiled.nearest_of(records, centres, one=one)
    with pytest.raises(ValueError, match="radius"):
        compiled.clipped_sums(RECORDS, CENTRES, np.array([0, 1]), unit=ONE, one=ONE)
    with pytest.raises(ValueError, match="radius"):
        compiled.clipped_sums(RECORDS, CENTRES, np.array([1]), unit=ONE, one=ONE)
    with pytest.raises(ValueError, match="unit"):
        compiled.clipped_sums(RECORDS, CENTRES, np.array([1, 1]), unit=0, one=ONE)


@needs_compiled
def test_an_instruction_set_that_is_not_there_never_runs() -> None:
    from cloister.core import _native

    with pytest.raises(ValueError, match="abacus"):
        _native.nearest(RECORDS, CENTRES, one=ONE, isa="abacus")
    with pytest.raises(TypeError):
        _native.nearest(RECORDS.astype(np.int64), CENTRES, one=ONE, isa="numpy")  # type: ignore[arg-type]  # on purpose


def test_the_lines_that_the_proof_cites_are_there() -> None:
    root = Path(__file__).parents[3]
    page = root / "docs" / "proofs" / "kernel.md"
    if not page.is_file():
        pytest.skip("docs are not beside the tests")
    cited = re.findall(r"^\| ([A-Z]) \| `(.+?)` \| `(.+)` \|$", page.read_text(), re.MULTILINE)
    assert "".join(letter for letter, _, _ in cited) == "ABCDEFGHIJKLMNOPQ"
    for _, file, line in cited:
        source, line = (root / file).read_text(), line.replace("\\|", "|")
        assert "".join(line.split()) in "".join(source.split()), f"{file} lost {line}"


def lloyd_plan(rounds: int = 10) -> tuple[Schema, Plan]:
    columns = [Column(name=name, type="number", min=-1, max=1) for name in "ab"]
    schema = Schema(dataset="squares", unit="row", columns=columns)
    facts = {"budget": Budget(1.0, 1e-6), "nominal_n": 9000}
    return schema, make_plan(
        TASKS["fastlloyd"], schema, ["silo-0"], **facts, n_clusters=100, rounds=rounds
    )


@needs_compiled
def test_a_job_in_one_process_has_the_same_results_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema, plan = lloyd_plan()
    assert plan.task.sort_records_pays  # type: ignore[attr-defined]  # of Lloyd's loop
    assert not lloyd_plan(2)[1].task.sort_records_pays  # type: ignore[attr-defined]  # it would not pay
    table = np.random.default_rng(0).uniform(-1, 1, (9000, 2))
    sums = []
    for switch in ("on", "off"):
        monkeypatch.setenv(compiled.ORDER, switch)
        records = read_source(table, schema, chunk_rows=2000)
        assert (records.in_order is records) == (switch == "off")
        assert records.in_order.fingerprint(b"k" * 16) == records.fingerprint(b"k" * 16)
        sums.append(run_plan(plan, {"silo-0": records}, noise=ZeroNoise()).to_dict()["history"])
        first = [next(iter(records.in_order)) for _ in range(2)]
        assert first[0] is first[1]  # made once
    assert sums[0] == sums[1]
    assert list(read_source(table[:0], schema).in_order) == []
    monkeypatch.setenv(compiled.ORDER, "maybe")
    with pytest.raises(PlanError, match="CLOISTER_ORDERED must be on or off, got 'maybe'"):
        compiled.can_order()


@needs_compiled
@pytest.mark.parametrize("ordered", [False, True])
def test_a_silo_over_a_network_orders_records_only_where_its_owner_says_so(ordered: bool) -> None:
    assert SiloSettings.model_fields["ordered_records"].default is False
    schema, plan = lloyd_plan()
    source = SimpleNamespace(source=lambda: np.zeros((9, 2)), cache_dir=None, workers=None)
    settings = SimpleNamespace(data=source, ordered_records=ordered)
    site = Site(settings, schema, None, None)  # type: ignore[arg-type]  # as much as it reads
    (table,) = site.records(plan)
    assert (getattr(table, "tree", None) is not None) == ordered
