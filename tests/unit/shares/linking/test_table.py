"""A linked question at a desk: the whole session in one process, and what it refuses."""

from __future__ import annotations

import warnings
from pathlib import Path
from threading import current_thread
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister.core.errors import (
    BudgetExceeded,
    CloisterError,
    DataError,
    DataLossWarning,
    PlanError,
    UncountedWarning,
)
from cloister.data.schema import Schema
from cloister.estimators.release import say_uncounted
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.shares.linking import (
    Column,
    Linear,
    Linked,
    LinkedTable,
    Logistic,
    Means,
    Part,
    Side,
    Table,
    rows,
    table,
)
from cloister.shares.linking.keys import tags
from cloister.shares.linking.plan import warnings_for
from cloister.shares.linking.rows import prepare
from cloister.shares.mpc.dealer import Dealer
from cloister.shares.mpc.ending import Stopped
from cloister.shares.mpc.parties import Account

from .people import FIRST, PARTS, SECOND, frames, sides


def question(**more: Any) -> LinkedTable:
    own = sides(310, 300)
    given: dict[str, Any] = {
        "key": "national_id",
        "parts": PARTS,
        "sides": {"crm": own[0], "cards": own[1]},
        "analyses": [Table(of=("group", "shop"))],
        "epsilon": 1.0,
        "keys_per_person": 1,
    }
    return LinkedTable(**{**given, **more})


def tables(overlap: float = 0.5) -> dict[str, Any]:
    return dict(zip(("crm", "cards"), frames(300, 290, overlap), strict=True))


def test_a_desk_runs_the_session_of_all_parties(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("clients", cap=Budget(1.0, 1e-6), unit="national_id")
    asked = question()
    found = asked.run_here(tables(), {"crm": Account(ledger, "clients")})
    # Six deviations of the noise of both servers: 2e-9.
    noise = 2**0.5 * asked.program.size_noise.sigma
    assert abs(found.size.value - 145) < 6 * noise
    assert found.answers[0].estimates["counts"].values.shape == (3, 5)
    assert found.size.low <= found.size.value <= found.size.high
    # One session is one charge, of what was promised.
    assert len(ledger.jobs("clients")) == 1
    assert 0.999 < ledger.spent("clients") <= 1.0
    with pytest.raises(BudgetExceeded):
        asked.run_here(tables(), {"crm": Account(ledger, "clients")})
    assert len(ledger.jobs("clients")) == 1


def test_a_desk_charges_a_ledger_or_warns_that_none_counts(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).open_dataset("clients", cap=Budget(1.0, 1e-6), unit="national_id")
    asked = question()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked.run_here(tables(), ledger=path, dataset="clients")
    assert 0.999 < Ledger(path).spent("clients") <= 1.0
    with pytest.raises(BudgetExceeded):
        asked.run_here(tables(), ledger=path, dataset="clients")
    with pytest.raises(PlanError, match="dataset is required"):
        asked.run_here(tables(), ledger=path)
    with pytest.raises(PlanError, match=r"accounts must be of crm, cards, got \['crn'\]"):
        asked.run_here(tables(), {"crn": Account(Ledger(path), "clients")})
    with pytest.raises(PlanError, match="without a ledger"):
        asked.run_here(tables(), {}, ledger=path)
    say_uncounted.cache_clear()
    with pytest.warns(UncountedWarning):
        asked.run_here(tables())


def test_the_charge_is_the_budget_whatever_the_weights() -> None:
    for weights in ((None, None), (0.3, 0.6), (0.01, None)):
        analyses = [Table(of=("group",), weight=weights[0]), Table(of=("shop",), weight=weights[1])]
        event = question(analyses=analyses).program.event()
        price = epsilon(event, 1e-6)
        assert price <= 1.0
        assert price > (0.95 if weights[1] == 0.6 else 0.999)


def test_a_plan_warns_of_too_few_persons_for_each_kind_of_answer() -> None:
    """A linear model of 3 terms, its target and 1 has 15 products; epsilon counts twice there."""
    analyses = [
        Table(of=("group",)),
        Linear(of=("x", "group"), target="z"),
        Logistic(of=("x",), target="y"),
    ]
    for epsilon_, needs in ((1.0, ("150", "75,000", "4,000")), (2.0, ("75", "18,750", "2,000"))):
        program = question(analyses=analyses, epsilon=epsilon_).program
        said = list(warnings_for(program, 1))
        assert [text.split(" needs about ")[1].split()[0] for text in said] == list(needs)
        assert not list(warnings_for(program, 75_000))


def test_few_matches_withhold_all_but_the_size() -> None:
    found = question(least_matches=5_000).run_here(tables())
    assert found.answers == ()
    assert found.to_dict()["analyses"] == []


@pytest.mark.parametrize(
    ("stops", "where"),
    [
        ("crm", "folder"),  # before it has a link
        ("cards", "tags"),
        ("cards", "account"),
        ("desk-dealer", "deal"),
        ("desk-server-1", "join"),
    ],
)
def test_a_party_that_stops_ends_all_others_with_the_class_of_its_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stops: str, where: str
) -> None:
    ended: dict[str, BaseException] = {}
    take, own = table.take_part, current_thread
    part_of: dict[Any, str] = {}
    names: set[str] = set()

    def recorded(session: Any, name: str, *given: Any, **named: Any) -> Any:
        part_of[own()] = name
        names.add(name)
        try:
            if where == "folder" and name == stops:
                raise MemoryError
            return take(session, name, *given, **named)
        except BaseException as error:
            ended[name] = error
            raise

    def failing(place: Any, method: str) -> None:
        before = getattr(place, method)

        def then(*given: Any, **named: Any) -> Any:
            if part_of.get(own()) == stops:
                raise MemoryError
            return before(*given, **named)

        monkeypatch.setattr(place, method, then)

    monkeypatch.setattr(table, "_PATIENCE", 60.0)
    monkeypatch.setattr(table, "take_part", recorded)
    places: dict[str, tuple[Any, str]] = {
        "tags": (rows.Prepared, "tagged"),
        "account": (Account, "reserve"),
        "deal": (Dealer, "_deal"),
        "join": (Linked, "run"),
    }
    if where in places:
        failing(*places[where])
    ledgers = {name: Ledger(tmp_path / f"{name}.db") for name in tables()}
    for name, ledger in ledgers.items():
        ledger.open_dataset(name, cap=Budget(1.0, 1e-6), unit="national_id")
    with pytest.raises(MemoryError):
        question().run_here(tables(), {n: Account(one, n) for n, one in ledgers.items()})
    assert len(names) == 5
    for name in names - {stops}:
        assert isinstance(ended[name], Stopped), (name, ended[name])
        assert (ended[name].party, ended[name].reason) == (stops, "MemoryError")
        assert f"'{stops}' stopped with MemoryError" in str(ended[name])
    # Nothing is charged where nobody has sent a share, and never more than the budget.
    sent = where in ("deal", "join")
    for name, ledger in ledgers.items():
        assert ledger.spent(name) == (pytest.approx(1.0, abs=1e-3) if sent else 0.0)
        assert ledger.spent(name) <= 1.0


BAD: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": 0.0},
    "keys_per_person": {"keys_per_person": 0},
    "two or three": {"sides": {"crm": sides(10)[0]}},
    "at most one": {"sides": {}},
    "add up to at most 1": {"analyses": [Table(of=("group",), weight=0.99)]},
    "must use columns": {"analyses": [Table(of=("income",))]},
    "must have categories": {"analyses": [Table(of=("x",))]},
    "one owner's": {"sides": {"a": sides(9)[0], "b": sides(9)[0]}},
    "same columns": {"how": "union", "analyses": []},
    "key columns": {"parts": (*PARTS, *PARTS)},
}


@pytest.mark.parametrize("why", [why for why in BAD if why != "at most one"])
def test_what_does_not_fit_is_refused_in_a_sentence(why: str) -> None:
    with pytest.raises(PlanError, match=why) as refused:
        question(**BAD[why]).program  # noqa: B018
    assert str(refused.value).count(". ") == 0


def test_truth_values_are_categories_with_names() -> None:
    with pytest.raises(
        PlanError, match="got \\(False, True\\); truth values are 'false' and 'true'"
    ):
        Column(name="x", categories=(False, True))  # type: ignore[arg-type]


def test_a_key_is_no_column_and_persons_fit_their_places() -> None:
    with pytest.raises(PlanError, match="never a column"):
        Side(rows=9, key=("x",), columns=FIRST)
    small = {"crm": Side(rows=100, key=("id",), columns=FIRST), "cards": sides(9, 300)[1]}
    with pytest.raises(DataError, match="columns group, x has more persons than the 100 places"):
        question(sides=small).run_here(tables())
    with pytest.raises(CloisterError):
        question().run_here({"crm": tables()["crm"]})


def test_rows_without_a_key_or_after_the_first_are_left_out() -> None:
    first, _ = frames(50, 50, 1.0)
    first["id"] = first["id"].astype(object)
    first.iloc[3, 0] = None
    first.iloc[4, 0] = "12a"
    first.iloc[5, 0] = first.iloc[6, 0]
    first.iloc[7, 1] = None
    first.iloc[8, 2] = np.nan  # in a column without an analysis
    ready = question().program.prepare("crm", first)
    assert (ready.no_key, ready.repeated, ready.incomplete) == (2, 1, 1)
    assert len(ready.keys) == 46
    assert "46" not in repr(ready)


def test_a_table_that_loses_many_rows_stops_before_anything_is_charged(tmp_path: Path) -> None:
    misspelt = tables()
    misspelt["crm"]["group"] = misspelt["crm"]["group"].astype(str).str.upper()
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("clients", cap=Budget(1.0, 1e-6), unit="national_id")
    account = {"crm": Account(ledger, "clients")}
    with pytest.raises(
        DataError,
        match=r"table 'crm': 300 of 300 .* Column 'group': .*\(300 rows\)\. Correct this\.$",
    ) as all_:
        question().run_here(misspelt, account)
    assert "max_loss" not in str(all_.value)
    some = tables()
    some["crm"]["group"] = [*["unheard of"] * 30, *some["crm"]["group"].iloc[30:]]
    with pytest.raises(DataError, match=r"30 of 300 rows .* 30 with a missing .*max_loss=0.11"):
        question().run_here(some, account)
    assert ledger.spent("clients") == 0
    with pytest.warns(DataLossWarning, match=r"'unheard of' not understood.* \(30 rows\)\."):
        question().run_here(some, account, max_loss=0.11)


def test_the_owner_is_told_of_few_lost_rows_and_of_their_columns() -> None:
    few = tables()
    few["crm"]["group"] = [*[None] * 3, *few["crm"]["group"].iloc[3:]]
    few["cards"]["id"] = [*["12a"] * 2, *few["cards"]["id"].iloc[2:]]
    with pytest.warns(DataLossWarning) as told:
        question().run_here(few)
    said = [str(one.message) for one in told if one.category is DataLossWarning]
    assert said == [
        "table 'crm': 3 of 300 rows are left out, 3 with a missing or unreadable cell. "
        "Column 'group': missing or out of range (3 rows).",
        "table 'cards': 2 of 290 rows are left out, 2 without a key. "
        "Key column 'id': 2 cells are no key by rule 'digits' of width 11.",
    ]


def test_a_column_without_an_analysis_costs_no_row_and_is_not_uploaded() -> None:
    whole = tables()["crm"]
    program = question().program
    ready = program.prepare("crm", whole.assign(x=np.nan))
    assert not list(ready.notices("crm"))
    assert ready.content() == program.prepare("crm", whole).content()
    assert ready.content() == program.prepare("crm", whole.drop(columns="x")).content()
    # All cells of the column are at its lowest value.
    place = ready.side.fields[1]
    assert not place.bits_of(ready.rows).any()


def test_rows_of_a_key_that_differ_count_as_lost_and_the_same_ones_do_not() -> None:
    first, other = frames(300, 290, 0.5)
    same = {"crm": pd.concat([first, first]), "cards": other}
    asked = question(analyses=[Means(number="x", by="group")])
    asked.run_here(same)
    changed = {"crm": pd.concat([first, first.assign(x=0.0)]), "cards": other}
    with pytest.raises(
        DataError,
        match=r"300 unlike the first .* one row for each key.*=0.51",
    ):
        asked.run_here(changed)
    ready = asked.program.prepare("crm", changed["crm"])
    assert (ready.repeated, ready.differing) == (300, 300)
    assert asked.program.prepare("crm", same["crm"]).differing == 0


def test_many_values_beyond_their_bounds_are_announced() -> None:
    far = tables()
    far["cards"]["z"] = far["cards"]["z"].where(np.arange(290) >= 29, 9.0)
    asked = question(analyses=[Means(number="z", by="group")])
    with pytest.warns(DataLossWarning, match=r"'z' of table 'cards': 10.0% of .* above its bounds"):
        asked.run_here(far)
    few = asked.program.prepare("cards", tables()["cards"].assign(z=[9.0] * 14 + [0.0] * 276))
    assert few.outside == [(0, 0), (0, 14), (0, 0)]
    assert not list(few.notices("cards"))


def test_a_number_without_its_largest_value_is_refused() -> None:
    with pytest.raises(PlanError, match="'spent' must have high"):
        Column(name="spent")
    assert Column(name="late", categories=("no", "yes")).high is None
    with pytest.raises(PlanError, match="'late' must have high or categories, not both"):
        Column(name="late", high=1.0, categories=("no", "yes"))


def test_a_unit_of_the_schema_has_no_more_keys_than_the_program_pays_for() -> None:
    """A key of two parts gives a client several; so do two spellings, of which the unit is one."""
    table = pd.DataFrame(
        {
            "id": ["7", "007", "8", "8", "8", None],
            "card": list("abcdef"),
            "group": list("abcabc"),
            "x": 0.5,
        }
    )
    parts = (Part(rule="digits"), Part(rule="code"))
    side = Side(rows=9, key=("id", "card"), columns=FIRST)
    columns = tuple(column.schema() for column in FIRST)
    schema = Schema(dataset="crm", unit="id", max_rows=1, columns=columns)
    for most, kept in ((1, [("7", "A"), ("8", "C")]), (2, [("7", "A"), ("007", "B"), ("8", "C")])):
        ready = prepare(side, parts, table, schema, most)
        assert list(ready.keys)[: len(kept)] == kept
        assert (len(ready.keys), ready.beyond) == {1: (2, 3), 2: (4, 1)}[most]
        assert ready.no_key == 1


@pytest.mark.parametrize(
    ("column", "allowed"),
    [
        (Column(name="late", categories=("no", "yes")), r"categories = \['false', 'true'\]"),
        (Column(name="spent", high=9.0), r"low = 0.0, high = 5.0"),
        (Column(name="age", high=9.0), r"no such column"),
    ],
)
def test_a_column_unlike_the_schema_is_refused_with_what_the_schema_has(
    column: Column, allowed: str
) -> None:
    read: Any = (Column(name="late", categories=("false", "true")), Column(name="spent", high=5.0))
    schema = Schema(dataset="crm", unit="id", max_rows=1, columns=tuple(c.schema() for c in read))
    side = Side(rows=9, key=("id",), columns=(column,))
    with pytest.raises(PlanError, match=rf"{column.name!r} .* which has {allowed};"):
        prepare(side, (Part(rule="digits"),), pd.DataFrame({"id": ["7"]}), schema, 1)


def test_a_digest_names_keys_and_rows_and_no_session() -> None:
    table = frames(50, 50, 1.0)[0]
    program = question(analyses=[Means(number="x", by="group")]).program
    first, again = (program.prepare("crm", table) for _ in range(2))
    assert first.content() == again.content()
    assert (first.tagged(b"a" * 32, "s") != again.tagged(b"b" * 32, "t")).any()
    for column, cell in (
        ("id", 1),
        ("x", 0.123),
        ("group", "c" if table.group.iloc[0] != "c" else "a"),
    ):
        changed = table.copy()
        changed.iloc[0, list(table).index(column)] = cell
        assert program.prepare("crm", changed).content() != first.content()


def test_two_keys_with_one_tag_stop_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = question().program.prepare("crm", frames(50, 50, 1.0)[0])

    def collides(*given: Any) -> Any:
        found = tags(*given)
        found[3] = found[9]
        return found

    monkeypatch.setattr(rows, "tags", collides)
    table = ready.tagged(b"k" * 32, "s")
    assert len(np.unique(table[:, 0])) == 310
    assert (table[:, 1] & np.uint64(1)).sum() == 49


def test_columns_are_rounded_to_levels_of_their_width() -> None:
    column = Column(name="x", low=-1.0, high=1.0, bits=2)
    assert column.levels(np.array([-5.0, -1.0, 0.3, 1.0, 9.0])).tolist() == [0, 0, 2, 3, 3]
    assert Column(name="g", categories=tuple("abcde")).width == 3
    assert sides(9)[0].fields[1].bit == 3
    assert SECOND[1].top == 4095


def test_exactly_the_accepted_share_of_the_rows_may_be_left_out() -> None:
    """29 of 100 rows are 0.29, though 0.29 times 100 is a float below 29."""
    side = sides(100)[0]
    keys = [(str(i),) for i in range(71)]
    ready = rows.Prepared(side, keys, side.packed(np.zeros((71, 2))), no_key=29)
    ready.refuse_loss("crm", 0.29)
    with pytest.raises(DataError, match=r"accept it with --max-loss 0\.29 "):
        ready.refuse_loss("crm", 0.28)
