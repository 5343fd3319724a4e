"""The program on the shares of two owners: answers of the joined records, and their noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2_contingency

from cloister.core.declared import as_tuples
from cloister.core.errors import PlanError
from cloister.privacy.noise import DiscreteNoise
from cloister.shares.linking import view
from cloister.shares.linking.found import Found
from cloister.shares.linking.plan import approval
from cloister.shares.linking.program import Linked
from cloister.shares.mpc import dealer
from cloister.shares.mpc.material import Shuffle
from cloister.shares.mpc.session import _program

from .people import frames, on_shares
from .test_secret import session

OPTIONS: dict[str, Any] = {
    "key": "national_id",
    "parts": ({"rule": "digits", "width": 11},),
    "sides": {
        "crm": {
            "rows": 310,
            "key": ("id",),
            "columns": (
                {"name": "group", "categories": ("a", "b", "c")},
                {"name": "x", "low": 0.0, "high": 1.0},
            ),
        },
        "cards": {
            "rows": 300,
            "key": ("id",),
            "columns": (
                {"name": "shop", "categories": ("p", "q", "r", "s", "t")},
                {"name": "z", "low": -1.0, "high": 3.0},
                {"name": "y", "categories": ("false", "true")},
            ),
        },
    },
    "epsilon": 1.0,
    "keys_per_person": 1,
}


def released(program: Linked, tables: Any) -> Found:
    """Return the estimates of a run of both servers."""
    own = [
        program.prepare(name, table).tagged(b"k" * 32, "s")
        for name, table in zip(program.frame.sides, tables, strict=True)
    ]
    names = tuple(program.frame.sides)
    (a, b), _ = on_shares(
        lambda server, shares: program.run(server, dict(zip(names, shares, strict=True))), own
    )
    return program.found({what: a[what] + b[what] for what in a})


def linked(*analyses: dict[str, Any], **more: Any) -> Linked:
    return Linked(**{**OPTIONS, "analyses": analyses, **more})


NEARLY_EXACT = {"epsilon": 500.0, "delta": 1e-3}


def test_a_table_is_that_of_the_joined_records() -> None:
    tables = frames(300, 290, 0.5)
    program = linked({"kind": "table", "of": ("group", "shop")}, **NEARLY_EXACT)
    found = released(program, tables)
    whole = tables[0].merge(tables[1], on="id")
    clear = whole.groupby(["group", "shop"]).size().unstack(fill_value=0).to_numpy()
    assert abs(found.size.value - len(whole)) < 9 * program.size_noise.sigma  # 2e-10
    counts = found.answers[0].estimates["counts"]
    assert counts.axes == ("group", "shop")
    assert np.abs(counts.values - clear).max() < 1
    assert found.answers[0].tests["chi2"].df == 8


def merged(n: int = 300, m: int = 290, overlap: float = 0.9, how: Any = "inner") -> Any:
    """Return two tables and the join in the clear, numbers rounded to their levels."""
    tables = frames(n, m, overlap)
    for table, name, low, high in ((tables[0], "x", 0.0, 1.0), (tables[1], "z", -1.0, 3.0)):
        level = np.rint((table[name] - low) / (high - low) * 4095)
        table[name] = low + level / 4095 * (high - low)
    return tables, tables[0].merge(tables[1], on="id", how=how)


def test_means_are_those_of_the_groups() -> None:
    tables, whole = merged()
    (answer,) = released(
        linked({"kind": "means", "number": "z", "by": "group"}, **NEARLY_EXACT), tables
    ).answers
    clear = whole.groupby("group").z.mean().to_numpy()
    means = answer.estimates["means"]
    assert np.abs(means.values - clear).max() < 0.02
    # Six deviations of the noise, of which the interval has 1.96 on each side: 2e-9 a group.
    assert (np.abs(means.values - clear) <= 6 / 1.96 * (means.high - means.low) / 2).all()
    assert np.abs(answer.estimates["counts"].values - whole.groupby("group").size()).max() < 1


def test_least_squares_are_those_of_the_joined_records() -> None:
    tables, whole = merged()
    whole["z"] = whole.z  # no relation: the coefficients are those of chance
    given = {"kind": "linear", "of": ("x", "group", "y"), "target": "z"}
    (answer,) = released(linked(given, **NEARLY_EXACT), tables).answers
    found = answer.estimates["coefficients"]
    assert found.labels == (("x", "group=b", "group=c", "y=true", "(constant)"),)
    columns = [whole.x, whole.group == "b", whole.group == "c", whole.y, np.ones(len(whole))]
    design = np.column_stack(columns).astype(float)
    clear, left, *_ = np.linalg.lstsq(design, whole.z.to_numpy(), rcond=None)
    assert np.abs(found.values - clear).max() < 0.05
    # The textbook's standard errors, with hardly any noise.
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * left[0] / (len(whole) - 5))
    assert found.population is not None
    half = (found.population[1] - found.population[0]) / 2
    assert np.abs(half / (1.96 * errors) - 1).max() < 0.1


def test_correlations_are_those_of_the_joined_records() -> None:
    tables, whole = merged()
    given = {"kind": "correlation", "of": ("x", "z", "y")}
    (answer,) = released(linked(given, **NEARLY_EXACT), tables).answers
    found = answer.estimates["correlations"]
    clear = whole[["x", "z", "y"]].astype(float).corr().to_numpy()
    assert np.abs(found.values - clear).max() < 0.01
    assert found.population is not None
    # Fisher's interval.
    low = np.tanh(np.arctanh(clear[0, 1]) - 1.96 / np.sqrt(len(whole) - 3))
    assert abs(found.population[0][0, 1] - low) < 0.01


def test_a_logistic_model_takes_the_steps_of_the_clear_one() -> None:
    tables, whole = merged()
    given = {"kind": "logistic", "of": ("x", "z"), "target": "y"}
    program = linked(given, **NEARLY_EXACT)
    found = released(program, tables)
    coefficients = found.answers[0].estimates["coefficients"]
    scale = int(65536 / (4095 * 2**0.5)) * 4095 / 65536
    boxed = np.column_stack([2 * whole.x - 1, (whole.z - 1) / 2]) * scale
    design = np.column_stack([boxed, np.ones(len(whole))])
    weights = last = np.zeros(3)
    for _ in range(24):
        left = 1 / (1 + np.exp(-design @ weights)) - whole.y
        moved = weights - 4.0 / found.size.value * design.T @ left + 0.8 * (weights - last)
        last, weights = weights, moved
    slopes = weights[:2] * scale / [0.5, 2.0]
    constant = weights[2] - slopes @ [0.5, 1.0]
    assert np.abs(coefficients.values - [*slopes, constant]).max() < 0.1
    assert np.isnan(coefficients.low).all()
    assert "24 steps of gradient descent, not the maximum" in found.answers[0].note
    assert "not the maximum" in found._repr_html_()
    assert found.answers[0].to_dict()["note"] == found.answers[0].note


def test_the_default_steps_come_near_the_maximum_of_the_likelihood() -> None:
    tables, _ = merged()
    known = tables[0].set_index("id").group.reindex(tables[1].id).to_numpy()
    tables[1]["y"] = np.random.default_rng(1).random(290) < np.where(known == "a", 0.8, 0.3)
    given = {"kind": "logistic", "of": ("group",), "target": "y"}
    (answer,) = released(linked(given, **NEARLY_EXACT), tables).answers
    share = tables[0].merge(tables[1], on="id").groupby("group").y.mean().to_numpy()
    odds = np.log(share / (1 - share))
    found = answer.estimates["coefficients"].values
    # Six steps of 8 without momentum were 0.32 away; the noise is 0.015.
    assert np.abs(found - [odds[1] - odds[0], odds[2] - odds[0], odds[0]]).max() < 0.25


def test_k_means_takes_the_steps_of_the_clear_one() -> None:
    tables, whole = merged()
    given = {"kind": "kmeans", "of": ("x", "z"), "n_clusters": 3, "iterations": 3}
    program = linked(given, **NEARLY_EXACT)
    (answer,) = released(program, tables).answers
    one, budget = program.funded["1"]
    model = one.program(program.frame, budget, 9, 9)  # type: ignore[attr-defined]
    centres = np.array(model.centres)
    rows = np.column_stack([2 * whole.x - 1, (whole.z - 1) / 2]) * 4095 / 4096
    for _ in range(3):
        label = ((rows[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        centres = np.array([rows[label == j].mean(axis=0) for j in range(3)])
    clear = [0.5, 1.0] + centres * [0.5, 2.0]
    assert np.abs(answer.estimates["centres"].values - clear).max() < 0.05
    assert "3 iterations" in answer.note


def test_answers_are_shown_as_those_of_other_results() -> None:
    tables, _ = merged()
    found = released(
        linked(
            {"kind": "table", "of": ("group", "shop")},
            {"kind": "table", "of": ("group", "shop", "y")},
            {"kind": "means", "number": "z", "by": "group"},
            **NEARLY_EXACT,
        ),
        tables,
    )
    frame = found.to_frame()
    assert frame.loc[("Persons in the join", "size", "persons"), "value"] == found.size.value
    counts = found.answers[0].estimates["counts"].values
    assert frame.loc[("table of group, shop: counts", "b", "q"), "value"] == counts[1, 1]
    means = frame.loc["means of z, group: means"]
    assert means.value.tolist() == found.answers[2].estimates["means"].values.tolist()
    assert means.population_low.notna().all()
    p = frame.loc[("table of group, shop: tests", "p of chi2", "value"), "value"]
    assert p == np.ravel(found.answers[0].tests["chi2"].p)[0]
    cells = frame.loc["table of group, shop, y: counts"]
    assert len(cells) == 30
    titles = [shown.title for shown in found.displays()]
    assert len(set(titles)) == len(titles)
    assert found.plot("means of z, group: means").get_title() == "means of z, group: means"
    for title in titles:
        assert title in found._repr_html_()


def test_a_file_with_the_first_name_of_n_clusters_is_read() -> None:
    given = {"kind": "kmeans", "of": ("x", "z")}
    first, now = (linked({**given, name: 3}) for name in ("clusters", "n_clusters"))
    assert first.funded == now.funded


@pytest.mark.parametrize("how", ["left", "outer"])
def test_persons_of_one_owner_have_a_level_missing(how: str) -> None:
    tables, whole = merged(overlap=0.4, how=how)
    program = linked(
        {"kind": "table", "of": ("group", "shop")},
        {"kind": "table", "of": ("has_cards", "group")},
        {"kind": "means", "number": "z", "by": "group"},
        {"kind": "correlation", "of": ("x", "z")},
        how=how,
        **NEARLY_EXACT,
    )
    found = released(program, tables)
    assert abs(found.size.value - len(whole)) < 9 * program.size_noise.sigma
    first, second, means, correlation = found.answers
    filled = whole.fillna({"group": "missing", "shop": "missing"})
    for answer, columns in ((first, ["group", "shop"]),):
        counts = answer.estimates["counts"]
        for i, a in enumerate(counts.labels[0]):
            for j, b in enumerate(counts.labels[1]):
                clear = ((filled[columns[0]] == a) & (filled[columns[1]] == b)).sum()
                assert abs(counts.values[i, j] - clear) < 1
    # Tests are of persons with both: no person lacks both, which is no dependence.
    clear = chi2_contingency(pd.crosstab(whole.group, whole.shop), correction=False)
    assert first.tests["chi2"].df == clear.dof
    # Twelve deviations of the noise.
    assert first.tests["chi2"].statistic == pytest.approx(clear.statistic, abs=4)
    has = second.estimates["counts"]
    assert has.labels[0] == ("false", "true")
    assert np.abs(has.values.sum(axis=1) - [whole.z.isna().sum(), whole.z.notna().sum()]).max() < 2
    known = filled.dropna(subset=["z"]).groupby("group").z.mean()
    labels = means.estimates["means"].labels[0]
    values = dict(zip(labels, means.estimates["means"].values, strict=True))
    assert all(abs(values[name] - known[name]) < 0.05 for name in known.index)
    clear = whole[["x", "z"]].dropna().corr().iloc[0, 1]
    assert abs(correlation.estimates["correlations"].values[0, 1] - clear) < 0.03


def test_a_coefficient_in_strong_noise_is_not_known() -> None:
    tables, _ = merged()
    given = {"kind": "linear", "of": ("x", "group", "y"), "target": "z"}
    # Of 261 persons the released size is 9 deviations above 1, so the answer is not withheld.
    program = linked(given, epsilon=0.2, size_weight=0.9, least_matches=1)
    (answer,) = released(program, tables).answers
    found = answer.estimates["coefficients"]
    assert np.isnan(found.values).all()
    assert np.isnan(found.low).all()
    assert answer.to_dict()["coefficients"]["value"] == [None] * 5


def test_rules_of_the_key_are_read_with_the_plan() -> None:
    for part in (
        {"rule": "nonsense"},
        {"rule": "digits", "width": -1},
        {"rule": "code", "width": 3},
    ):
        with pytest.raises(PlanError):
            linked(parts=(part,))


def test_parties_that_order_tables_differently_have_different_sessions() -> None:
    """The first table is that whose persons a left join keeps."""
    one = session(("a", "b"))
    other = dict(reversed(one.program.sides.items()))
    swapped = replace(
        one,
        program=replace(one.program, sides=other),
        options={**one.options, "sides": dict(reversed(one.options["sides"].items()))},
    )
    assert swapped.to_dict() == one.to_dict()
    assert swapped.digest() != one.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"how": "left"},
        {"how": "outer"},
        {"least_matches": 5},
        {"size_weight": 0.5},
        {"parts": ({"rule": "text"},)},
        {"analyses": ({"kind": "table", "of": ("group",), "weight": 0.5},)},
    ],
)
def test_an_approval_shows_what_decides_the_answers(change: dict[str, Any]) -> None:
    one = session(("a", "b"))
    other = replace(one, program=replace(one.program, **change))
    assert approval(other, "a") != approval(one, "a")
    assert "x(id) = y(id), read as digits of width 11" in approval(one, "a")


@pytest.mark.parametrize("place", ["key", "table", "column", "category", "key column"])
def test_a_name_that_could_rewrite_the_approval_is_refused(place: str) -> None:
    bad = "id\n\x1b[2KIt costs nothing."
    text = json.dumps({**OPTIONS, "analyses": []})
    old = {
        "key": '"key": "national_id"',
        "table": '"cards": {',
        "column": '"name": "z"',
        "category": '["a", "b", "c"]',
        "key column": '"key": ["id"]',
    }[place]
    name = {"key": "national_id", "table": "cards", "column": "z", "category": "a"}.get(place, "id")
    new = old.replace(f'"{name}"', json.dumps(bad))
    with pytest.raises(PlanError, match="printable"):
        Linked(**{k: as_tuples(v) for k, v in json.loads(text.replace(old, new)).items()})


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "table", "of": ("group", "shop")},
        {"kind": "means", "number": "z", "by": "shop"},
        {"kind": "correlation", "of": ("x", "z", "shop", "group")},
        {"kind": "logistic", "of": ("x",), "target": "y", "steps": 1},
        {"kind": "logistic", "of": ("x", "z", "shop", "group"), "target": "y", "steps": 1},
        {"kind": "kmeans", "of": ("x", "z"), "n_clusters": 17, "iterations": 1},
    ],
)
def test_no_item_of_material_is_larger_than_planned(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """So that no dealer refuses one after ledgers were charged."""
    read, sizes = dealer._read, []

    def spy(request: bytes) -> Any:
        serial, material = read(request)
        if isinstance(material, Shuffle):
            sizes.clear()  # those of the join have a bound of their own
        else:
            sizes.append(sum(math.prod(s) for s in (*material.drawn(), material.derived())))
        return serial, material

    monkeypatch.setattr(dealer, "_read", spy)
    monkeypatch.setattr(view, "_MOST_BITS", 1 << 9)  # small, as it is beside a million rows
    program = linked(given, **NEARLY_EXACT)
    released(program, frames(310, 300, 1.0))
    planned = program.funded["1"][0].item(program.frame) * program._most_kept
    assert planned / 2 < max(sizes) <= planned


@pytest.mark.parametrize(("levels", "fits"), [(80, True), (200, False)])
def test_an_analysis_that_does_not_fit_a_message_is_refused_with_the_plan(
    levels: int, fits: bool
) -> None:
    columns = ({"name": "group", "categories": tuple(map(str, range(levels)))},)
    sides = {
        "crm": {"rows": 700_000, "key": ("id",), "columns": columns},
        "cards": {**OPTIONS["sides"]["cards"], "rows": 700_000},
    }
    asked = partial(linked, {"kind": "means", "number": "z", "by": "group"}, sides=sides)
    if fits:
        assert asked().how == "inner"
    else:
        with pytest.raises(PlanError, match="it does not fit one message"):
            asked()


# What a server could find out ---------------------------------------------------------------------


class Known(DiscreteNoise):
    """The draws of a server that looks at them, or that draws too little."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.drawn: list[Any] = []

    def draw(self, kind: Any, scale: int, size: int) -> Any:
        self.drawn.append(super().draw(kind, max(1, int(self.factor * scale)), size))
        return self.drawn[-1]


def left_over(factor: float, overlap: float, runs: int = 60) -> Any:
    """Return sizes and counts that a server knows after it takes off its noise, over sigma."""
    program = linked({"kind": "table", "of": ("group", "shop")}, epsilon=3.0)
    names = tuple(program.frame.sides)
    own = [
        program.prepare(name, table).tagged(b"k" * 32, "s")
        for name, table in zip(names, frames(4, 4, overlap), strict=True)
    ]
    known, other = Known(), Known(factor)

    def repeated(server: Any, shares: Any) -> Any:
        tables = dict(zip(names, shares, strict=True))
        return [program.run(server, tables) for _ in range(runs)]

    (a, b), _ = on_shares(repeated, own, noise=(known, other))
    ((_, noise),) = program.noises()
    found = []
    for i, (one, two) in enumerate(zip(a, b, strict=True)):
        size = (one["size"] + two["size"]).view(np.int64) - known.drawn[2 * i]
        words = (one["1"] + two["1"]).view(np.int64).ravel() - known.drawn[2 * i + 1]
        found.append(np.append(size / program.size_noise.sigma, words / noise.sigma))
    return np.array(found)


@pytest.mark.nightly
def test_a_server_that_takes_off_its_noise_has_one_draw_left_in_every_number() -> None:
    """60 runs of 16 numbers: a spread 14 % off is six deviations, 2e-9.

    Four persons more in both tables move the numbers by their size over sigma, and no further.
    """
    none, all_ = left_over(1.0, 0.0), left_over(1.0, 1.0)
    for found in (none, all_):
        assert abs(found.std(axis=0).mean() - 1) < 0.14
    program = linked({"kind": "table", "of": ("group", "shop")}, epsilon=3.0)
    moved = all_.mean(axis=0) - none.mean(axis=0)
    expected = 4 / program.size_noise.sigma
    assert abs(moved[0] - expected) < 6 * (2 / 60) ** 0.5
    assert abs(left_over(0.7, 1.0).std(axis=0).mean() - 1) > 0.14


@pytest.mark.parametrize(
    ("old", "new", "known"),
    [
        ('"of": ["x"]', '"columns": ["x"]', "columns"),
        ('"high": 1.0', '"hihg": 1.0', "hihg"),
        ('"width": 11', '"wdith": 11', "wdith"),
        ('"how": "inner"', '"hwo": "inner"', "hwo"),
    ],
)
def test_an_unknown_option_of_a_session_is_named(old: str, new: str, known: str) -> None:
    analyses = [{"kind": "logistic", "target": "y", "of": ["x"]}]
    text = json.dumps({**OPTIONS, "analyses": analyses, "how": "inner"})
    assert old in text
    with pytest.raises(PlanError, match=rf"must be a table with .*'{known}' is unknown"):
        _program("linked", json.loads(text.replace(old, new)), {"linked": Linked})


def test_an_owner_of_two_tables_reads_what_to_do() -> None:
    one = session(("a", "b"))
    owners = dict.fromkeys(one.owners, next(iter(one.owners.values())))
    with pytest.raises(PlanError, match="join the files of an owner to one table first"):
        replace(one, owners=owners)
