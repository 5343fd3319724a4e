"""The plan of look-alike records: what is chosen from public numbers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import PublicColumn
from cloister.tasks.preparation.discretise import BINS, Discretise
from cloister.tasks.synthesis.synthesise import Synthesise, _columns
from cloister.testing import toy_task


def column(name: str, levels: int) -> PublicColumn:
    return PublicColumn(
        name, 0.0, max(levels - 1.0, 1.0), tuple(f"{name}{i}" for i in range(levels))
    )


COLUMNS = (column("a", 3), column("b", 20), column("c", 4), PublicColumn("x", 0.0, 10.0))


def designed(columns: tuple[PublicColumn, ...] = COLUMNS, **given: Any) -> Synthesise:
    edges = {"x": (2.0, 5.0)} if columns is COLUMNS else {}
    facts = {"nominal_n": 40_000, "budget": Budget(1.0, 1e-6), "edges": edges, **given}
    task = toy_task(Synthesise, n_features=len(columns), columns=columns, **facts)
    assert isinstance(task, Synthesise)
    return task


def test_rounds_and_shares_are_those_of_the_structure() -> None:
    def parts(**given: Any) -> list[list[tuple[str, float]]]:
        task = designed(**given)
        return [[(b.name, b.weight) for b in task.blocks(t)] for t in range(task.rounds)]

    assert parts() == [[("one_way", 0.2)], [("pairs", 0.2)], [("tables", 0.6)]]
    assert parts(structure="target", target="a") == parts()
    assert parts(structure="star", target="a") == [[("one_way", 0.2), ("tables", 0.8)]]
    assert parts(structure="independent") == [[("one_way", 1.0)]]


def test_vectors_are_as_long_as_the_plan_says() -> None:
    task = designed()
    (one_way,), (pairs,), (chosen,) = (task.blocks(t) for t in range(3))
    one = 1 << 16
    assert (one_way.size, one_way.l2_squared) == (3 + 20 + 4 + 3, 4 * one**2)
    coarse = [min(n, task.groups) for n in (3, 20, 4, 3)]
    words = sum(coarse[a] * coarse[b] for a in range(4) for b in range(a + 1, 4))
    assert (pairs.size, pairs.l2_squared) == (words, 6 * one**2)
    assert (chosen.size, chosen.l2_squared) == (1 << 14, 12 * one**2)


def test_groups_follow_from_the_noise_of_a_pair() -> None:
    for n in (2_000, 40_000, 10**7):
        s = gaussian_noise_multiplier(1.0, 1e-6) * np.sqrt(6 / 0.2)
        wanted = np.clip(np.floor(np.sqrt(n / (8 * s))), 3, 16)
        assert designed(nominal_n=n).groups == wanted


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"nominal_n": 20}, "tables of 4 columns.*noise would exceed them"),
        ({"nominal_n": 800, "structure": "pairs"}, "structure 'pairs' chooses pairs.*'star'"),
        ({"structure": "star"}, "target must be given with structure"),
        ({"target": "a"}, "target must be given with structure"),
        ({"structure": "star", "target": "z"}, "target must be a column"),
        ({"edges": {}}, "edges must be given for 'x'"),
        ({"ordered": ("z",)}, "must be a column of the schema"),
        ({"most_words": 90}, "most_words must be at least 200"),
        ({"columns": (column("a", 3),)}, "columns must be 2 to 64, got 1"),
        ({"columns": tuple(column(f"c{i}", 2) for i in range(65))}, "2 to 64, got 65"),
        ({"columns": (column("a", 3), column("b", 257))}, "column 1 has 257; group them"),
        (
            {
                "columns": tuple(column(f"c{i}", 99) for i in range(60)),
                "nominal_n": 10**10,
                "most_words": 10**6,
            },
            "tables of all pairs must have at most 131072 cells",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PlanError, match=sentence):
        designed(**given)


def test_where_noise_would_exceed_pairs_the_default_is_single_columns() -> None:
    assert designed(nominal_n=800).structure == "independent"
    assert "have none" in designed(nominal_n=800).describe()
    assert designed(nominal_n=40_000).structure == "pairs"


def test_a_star_and_columns_alone_take_fewer_records() -> None:
    assert designed(nominal_n=800, structure="star", target="a").rounds == 1
    assert designed((column("a", 3),), nominal_n=800, structure="independent").rounds == 1
    assert designed(nominal_n=100, least_signal=0.0).groups == 3


def test_a_plan_says_what_is_measured_and_how_precisely() -> None:
    assert "6 pairs of columns" in designed().describe()
    assert "of each column with column 0" in designed(structure="star", target="a").describe()
    found = designed().forecast(1000.0, 40_000, None)  # type: ignore[arg-type]  # no grid is needed
    assert set(found) == {"level_half_width", "cell_half_width"}
    assert set(designed(structure="independent").forecast(1e3, 40_000, None)) == {  # type: ignore[arg-type]
        "level_half_width"
    }


def test_bins_come_first_where_a_column_of_numbers_has_no_edges() -> None:
    assert Synthesise.steps_before(COLUMNS, {}) == [("discretise", {"keep": ()})]
    assert Synthesise.steps_before(COLUMNS, {"edges": {"x": (2.0,)}}) == []
    assert Synthesise.steps_before(COLUMNS[:3], {}) == []
    more = (*COLUMNS, PublicColumn("y", 0.0, 1.0))
    assert Synthesise.steps_before(more, {"edges": {"x": (2.0,)}}) == [
        ("discretise", {"keep": ("x",)})
    ]


def test_a_value_that_many_records_share_has_a_bin_of_its_own() -> None:
    """As capital gains, of which most are 0 and few are large."""
    from cloister.app.job import run_job
    from cloister.data.schema import Schema
    from cloister.testing import SimulatedNoise

    rng = np.random.default_rng(0)
    gain = np.where(rng.random(20_000) < 0.9, 0, rng.lognormal(8, 1, 20_000).clip(0, 99_999))
    schema = Schema(
        dataset="toy",
        unit="row",
        columns=[
            {"name": "gain", "type": "number", "min": -1000, "max": 100_000},
            {"name": "work", "type": "category", "categories": ["a", "b"]},
        ],
    )
    records = schema.grid().encode(np.column_stack([gain, rng.integers(0, 2, 20_000)]))
    result = run_job(
        Discretise,
        schema,
        {"a": [records]},
        epsilon=2.0,
        nominal_n=20_000,
        noise=SimulatedNoise(0),
    )
    (edges,) = result.results["edges"]
    assert (np.diff(edges) >= 0).all()
    assert len(edges) == len(BINS) + 1
    assert (edges[0], edges[-1]) == (-1000, 100_000)
    task = result.plan.task
    assert isinstance(task, Discretise)
    assert task.output[0].categories == BINS
    assert task.output[1].categories == ("a", "b")
    changed = task.transform(result.results, records)
    one = 1 << 16
    bins = np.rint((changed[:, 0] + one) / (2 * one) * (len(BINS) - 1)).astype(int)
    assert (changed[:, 1] == records[:, 1]).all()
    of_zero = set(bins[gain == 0])
    assert len(of_zero) == 1
    assert (gain[bins == of_zero.pop()] < 200).all()
    assert len(set(bins[gain > 0])) >= 3
    assert "Bins" in [display.title for display in task.displays(result.results, schema.names)]


def test_a_row_of_columns_ends_at_its_filling_of_minus_one() -> None:
    assert _columns([0.0, 2.0, -1.0]) == (0, 2)
