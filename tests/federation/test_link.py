"""``cloister link``: plan, check, and a session of three processes from files to answers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister.app.text import cell_text
from cloister.cli import main
from cloister.core.display import Estimate, Table, bare, between
from cloister.federation.pki import KeyFolder, local_federation
from cloister.privacy.ledger import Ledger
from cloister.shares.commands import compute
from cloister.shares.linking.answer import Answer
from cloister.shares.linking.found import Found
from cloister.tasks.tables import inference

NAMES = ("registry", "bank", "retailer")
OPTIONS: dict[str, Any] = {
    "key": "national_id",
    "parts": [{"rule": "digits", "width": 11}],
    "sides": {
        "crm": {
            "rows": 400,
            "key": ["nid"],
            "columns": [{"name": "segment", "categories": ["gold", "plain"]}],
        },
        "cards": {
            "rows": 300,
            "key": ["nid"],
            "columns": [
                {"name": "spent", "low": 0.0, "high": 100.0},
                {"name": "default", "categories": ["false", "true"]},
            ],
        },
    },
    "analyses": [
        {"kind": "table", "of": ["segment", "default"], "weight": 0.5},
        {"kind": "means", "number": "spent", "by": "segment"},
    ],
    "epsilon": 5.0,
    "keys_per_person": 1,
    "least_matches": 20,
}
SCHEMAS = {
    "bank": '[[columns]]\nname = "segment"\ntype = "category"\ncategories = ["gold", "plain"]\n',
    "retailer": (
        '[[columns]]\nname = "spent"\ntype = "number"\nmin = 0\nmax = 100\n'
        '[[columns]]\nname = "default"\ntype = "boolean"\n'
    ),
}
POLICY = 'secure_programs = ["linked"]\nmax_epsilon_per_job = 5.5\nlink_keys = ["national_id"]\n'
RULES = {
    "bank": POLICY + 'link_with = ["retailer"]\nlink_columns = ["segment"]',
    "retailer": POLICY + 'link_with = ["bank"]\nlink_columns = ["spent", "default"]',
}
DATA = {"bank": "crm=crm.csv", "retailer": "cards=cards.csv"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return local_federation(tmp_path_factory.mktemp("link"), NAMES)


@pytest.fixture
def folder(keys: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the session, and with data and settings of both owners."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        ports = {"bank": a.getsockname()[1], "retailer": b.getsockname()[1]}
    pins = {name: KeyFolder(keys[name]).identity().fingerprint for name in NAMES}
    parties = {
        name: {"fingerprint": pin}
        | ({"address": f"127.0.0.1:{ports[name]}"} if name in ports else {})
        for name, pin in pins.items()
    }
    document = {
        "id": np.random.default_rng().bytes(16).hex(),
        "program": "linked",
        "options": OPTIONS,
        "dealer": "registry",
        "servers": ["bank", "retailer"],
        "owners": {"crm": "bank", "cards": "retailer"},
        "receivers": ["bank", "retailer"],
        "parties": parties,
    }
    (tmp_path / "session.json").write_text(json.dumps(document))
    peers = "\n".join(f'"{name}" = "{pin}"' for name, pin in pins.items())
    for name, rules in RULES.items():
        (tmp_path / f"{name}.toml").write_text(
            f'role = "silo"\nname = "{name}"\ncoordinator = "https://localhost:8443"\n'
            f'keys = "{keys[name]}"\ncap_epsilon = 6.0\nschema_file = "{name}.schema.toml"\n'
            f'ledger = "{name}.db"\n[data]\nfile = "{DATA[name].split("=")[1]}"\n'
            f"[policy]\n{rules}\n[peers]\n{peers}\n"
        )
        head = f'dataset = "{name}"\nunit = "nid"\nmax_rows = 1\n'
        (tmp_path / f"{name}.schema.toml").write_text(head + SCHEMAS[name])
    draw = np.random.default_rng(0)
    ids = draw.choice(10**9, 500, replace=False)
    crm = pd.DataFrame({"nid": ids[:380], "segment": draw.choice(["gold", "plain"], 380)})
    cards = pd.DataFrame({"nid": ids[200:490], "spent": draw.uniform(0, 100, 290)})
    cards["default"] = draw.random(290) < 0.3
    cards["nid"] = [f"{nid:011d}" for nid in cards.nid]
    crm.to_csv("crm.csv", index=False)
    cards.to_csv("cards.csv", index=False)
    return tmp_path


def command(keys: Mapping[str, Path], name: str) -> list[str]:
    own = []
    if name in DATA:
        own = ["--settings", f"{name}.toml", "--data", DATA[name], "--out", f"{name}.json"]
        own += ["--report", f"{name}.html"]
    return ["link", "run", "session.json", "--as", name, "--keys", str(keys[name]), *own, "--json"]


def check(name: str) -> list[str]:
    own = ["--as", name, "--settings", f"{name}.toml", "--data", DATA[name], "--json"]
    return ["link", "check", "session.json", *own]


def test_three_processes_answer_from_two_files(keys: Mapping[str, Path], folder: Path) -> None:
    """Each owner is a server; 180 persons are in both, six deviations of the noise are 1e-9."""
    assert [main(check(name)) for name in DATA] == [0, 0]
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "cloister", *command(keys, name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in NAMES
    }
    said = {name: process.communicate(timeout=120) for name, process in running.items()}
    for name, process in running.items():
        assert process.returncode == 0, said[name]
    found = [json.loads((folder / f"{name}.json").read_text()) for name in DATA]
    assert found[0]["results"] == found[1]["results"]
    assert found[0]["private"] is True
    value, low, high = found[0]["results"]["size"]
    assert abs(value - 180) < 6 * (high - low) / 2 / 1.96
    table, means = found[0]["results"]["analyses"]
    assert table["counts"]["labels"] == [["gold", "plain"], ["false", "true"]]
    assert np.abs(np.sum(table["counts"]["value"]) - 180) < 60
    assert all(0 < mean < 100 for mean in np.ravel(means["means"]["value"]))
    assert "results" not in json.loads(said["registry"][0])
    for name in DATA:
        page = (folder / f"{name}.html").read_text(encoding="utf-8")
        assert "retailer, owner of cards" in page
        assert "one process" not in page
    # The session is used up, and both ledgers have one charge.
    assert main(command(keys, "bank")) == 3
    for name in DATA:
        assert main(["budget", "show", f"{name}.db"]) == 0


def test_a_plan_says_who_sees_what_and_what_it_costs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["link", "plan", "session.json", "--expected", "30", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    text = plan["approval"]["bank"]
    for words in (
        "cards at retailer by national_id",
        "Nobody learns who is in more than one table",
        "epsilon 5, delta 1e-06 of your ledger for every person of crm with at most 1 of these",
        "registry together with bank or with retailer could see all rows",
    ):
        assert words in text
    own = "session.json --as bank"
    data = "--settings SETTINGS --data crm=FILE"
    assert plan["commands"]["bank"] == [
        f"cloister link check {own} {data}",
        f"cloister link run {own} --keys KEYS {data} --out result.json",
    ]
    assert plan["commands"]["registry"] == [
        "cloister link run session.json --as registry --keys KEYS"
    ]
    assert plan["uploads"] == 8 * (400 * 2 + 300 * 2)
    assert "needs about 40 persons at this epsilon" in plan["doubts"][0]


def test_an_owner_checks_its_file_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("crm.csv").open("a") as file:
        file.write("12,gold\n0000000012,plain\n,gold\n")
    asked = ["link", "check", "session.json", "--as", "bank", "--settings", "bank.toml"]
    assert main([*asked, "--data", "crm=crm.csv"]) == 0
    assert "crm, rows without a key" in capsys.readouterr().out
    assert main([*asked, "--data", "crm=crm.csv", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["crm"]
    assert counts == {
        "persons": 381,
        "places": 400,
        "no_key": 1,
        "repeated": 1,
        "differing": 1,
        "beyond": 0,
        "incomplete": 0,
    }


def test_a_check_warns_of_values_beyond_their_bounds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.read_csv("cards.csv", dtype=str)
    table["spent"] = table.spent.where(table.index >= 29, "101")
    table.to_csv("cards.csv", index=False)
    assert main(check("retailer")) == 0
    said = capsys.readouterr()
    assert "'spent' of table 'cards': 10.0% of its values are above its bounds" in said.err
    # Exact counts are for the owner's eyes, and a document may be passed on.
    assert json.loads(said.out)["warnings"] == []


def test_a_check_that_finds_many_rows_lost_freezes_nothing(
    folder: Path, keys: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(keys["bank"].rglob("*.checked"))
    with Path("crm.csv").open("a") as file:
        file.write("".join(f"{9000 + i},Gold\n" for i in range(18)))
    asked = ["link", "check", "session.json", "--as", "bank", "--settings", "bank.toml"]
    assert main([*asked, "--data", "crm=crm.csv", "--max-loss", "0.01"]) == 4
    assert "18 of 398 rows are left out" in capsys.readouterr().err
    assert set(keys["bank"].rglob("*.checked")) == before
    assert main([*asked, "--data", "crm=crm.csv"]) == 0
    assert len(set(keys["bank"].rglob("*.checked")) - before) == 1


DESK = f"ed25519:{64 * '0'}"
PUBLISHED = {
    '"receivers": ["bank", "retailer"]': '"receivers": ["desk"]',
    '"parties": {': f'"parties": {{"desk": {{"fingerprint": "{DESK}"}}, ',
    "[peers]": f'[peers]\ndesk = "{DESK}"',
}
# Who guesses a further part of the key learns whether a person has it.
FURTHER = {
    '"width": 11}]': '"width": 11}, {"rule": "text"}]',
    '"key": ["nid"]': '"key": ["nid", "diagnosis"]',
}


@pytest.mark.parametrize(
    ("changes", "code", "why"),
    [
        (PUBLISHED, 3, "must set allow_publish"),
        ({'link_keys = ["national_id"]': ""}, 3, "'national_id' is not among link_keys here"),
        (FURTHER, 3, "'diagnosis' is not among link_columns here"),
        ({"cap_epsilon = 6.0": "cap_epsilon = 4.0"}, 5, "costs more than 4,"),
    ],
)
def test_a_check_asks_the_policy_and_the_ledger(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], code: int, why: str
) -> None:
    for file in (folder / "bank.toml", folder / "session.json"):
        text = file.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        file.write_text(text)
    assert main(check("bank")) == code
    said = capsys.readouterr()
    assert why in said.err + said.out
    assert "crm persons" not in said.out


KILLED = """
import os, signal, sys
from cloister.cli import main
from cloister.privacy.ledger import Ledger
from cloister.shares.mpc import parties, sealed
where, name = {places}[sys.argv[1]]
write = getattr(where, name)
def then(*given, **named):
    write(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(where, name, then)
sys.exit(main(sys.argv[2:]))
"""
PLACES = """{
    "reserved": (Ledger, "reserve"), "marked": (parties, "_use_once"),
    "charged": (Ledger, "commit"), "closed": (Ledger, "close"), "served": (parties, "_serve"),
}"""


def ended(
    keys: Mapping[str, Path], moment: str = "", program: str = KILLED, timeout: str = "30"
) -> dict[str, tuple[int, str]]:
    """Run all parties; return the code and the words of each. The bank dies at a moment."""
    killed = [sys.executable, "-c", program.replace("{places}", PLACES), moment]
    running = {
        name: subprocess.Popen(
            [
                *(
                    killed
                    if (moment or program != KILLED) and name == "bank"
                    else [sys.executable, "-m", "cloister"]
                ),
                *command(keys, name),
                *("--timeout", timeout),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in NAMES
    }
    said = {name: process.communicate(timeout=180)[0] for name, process in running.items()}
    return {name: (process.returncode, said[name]) for name, process in running.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["reserved", "marked", "charged", "closed", "served"])
def test_a_killed_owner_ends_the_session_for_all_with_one_charge(
    keys: Mapping[str, Path], folder: Path, moment: str
) -> None:
    assert [main(check(name)) for name in DATA] == [0, 0]
    first = ended(keys, moment)
    assert first["bank"][0] == -signal.SIGKILL
    if moment != "served":  # then all shares of results have left, and the others are done
        assert all(first[name][0] > 0 for name in NAMES if name != "bank"), first
    again = ended(keys)
    assert all(code > 0 for code, _ in again.values()), again
    early = moment == "reserved"  # the retailer has nothing to pay, and its session ends, too
    assert early or all("used here already" in again[name][1] for name in DATA)
    for name in DATA:
        ledger = Ledger(f"{name}.db")
        assert len(ledger.jobs()) == 1
        assert (0 if early and name == "retailer" else 4.9) <= ledger.spent(name) <= 5.0
        assert not early or name == "bank" or ledger.spent(name) == 0


FAILING = """
import sys
from cloister.cli import main
from cloister.shares.linking.rows import Prepared
def failing(*given):
    raise MemoryError
Prepared.tagged = failing
sys.exit(main(sys.argv[2:]))
"""


def test_an_owner_that_stops_ends_the_other_processes_and_nobody_is_charged(
    keys: Mapping[str, Path], folder: Path
) -> None:
    assert [main(check(name)) for name in DATA] == [0, 0]
    done = ended(keys, program=FAILING, timeout="120")
    assert all(code > 0 for code, _ in done.values()), done
    for name in ("registry", "retailer"):
        assert "'bank' stopped with MemoryError; read its own message there" in done[name][1]
    for name in DATA:
        assert Ledger(f"{name}.db").spent(name) == 0


@pytest.mark.parametrize("how", ["not checked", "a row more", "other columns"])
def test_a_run_takes_no_other_table_than_the_checked_one(
    keys: Mapping[str, Path], folder: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """It is refused before anybody is dialled and before a ledger is charged."""
    if how != "not checked":
        assert main(check("bank")) == 0
    if how == "a row more":
        with Path("crm.csv").open("a") as file:
            file.write("12,gold\n")
    elif how == "other columns":
        text = Path("session.json").read_text()
        Path("session.json").write_text(text.replace('"weight": 0.5', '"weight": 0.6'))
    assert main(command(keys, "bank")) == 3
    said = capsys.readouterr()
    assert "run 'cloister link check' and approve what it shows" in said.err + said.out
    assert Ledger("bank.db").jobs() == ()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('link_keys = ["national_id"]', "", "'national_id' is not among link_keys here"),
        ('link_with = ["retailer"]', "", "'retailer' is not among link_with here"),
        ('link_columns = ["segment"]', "", "'segment' is not among link_columns here"),
        ('secure_programs = ["linked"]', "", "not among those allowed here"),
        ("max_epsilon_per_job = 5.5", "max_epsilon_per_job = 4.0", "epsilon must be at most 4"),
    ],
)
def test_a_session_beyond_an_owners_rules_is_refused_before_anything_is_sent(
    keys: Mapping[str, Path],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    why: str,
) -> None:
    file = folder / "bank.toml"
    file.write_text(file.read_text().replace(old, new))
    assert main(command(keys, "bank")) == 3
    said = capsys.readouterr()
    assert why in said.err + said.out
    assert not (folder / "bank.db").exists()


def test_the_unit_of_the_ledger_must_be_the_key(
    keys: Mapping[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "bank.schema.toml"
    file.write_text(file.read_text().replace('unit = "nid"\nmax_rows = 1', 'unit = "row"'))
    assert main(command(keys, "bank")) == 3
    said = capsys.readouterr()
    assert "the schema must have unit 'nid'" in said.err + said.out


def test_answers_are_written_by_place_with_their_intervals() -> None:
    said: list[str] = []

    class Lines:
        def paragraph(self, text: str) -> None:
            said.append(text)

        def table(self, table: Table) -> None:
            for row in (table.headings, *table.rows):
                said.append(" ".join([table.title, *map(cell_text, row)]))

    low, high = np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([[2.0, 3.0], [4.0, np.nan]])
    counts = Estimate(
        np.array([[1.0, 2.0], [3.0, np.nan]]),
        low,
        high,
        population=(low - 1, high + 1),
        axes=("a", "b"),
        labels=(("x", "y"), ("u", "v")),
    )
    estimates = {"counts": counts, "odds_ratio": bare(np.array(2.0))}
    tests = {"chi2": inference.Tested(*map(np.array, (5.0, 1.0, 0.0123)))}
    one = Answer("table", estimates, tests, "Not the maximum.", ("a", "b"))
    program = SimpleNamespace(found=lambda results: Found(between(100.0, 90.0, 110.0), (one,)))
    session: Any = SimpleNamespace(program=program)
    out: Any = Lines()
    document = compute._shown(session, {}, None, out)
    text = " ".join(said)
    for words in (
        "size 100 [90, 110]",
        "table of a, b: counts x 1.0 [0.0, 2.0] [-1.0, 3.0] 2.0 [1.0, 3.0] [0.0, 4.0]",
        "table of a, b: counts y 3.0 [2.0, 4.0] [1.0, 5.0] not known",
        "odds ratio 2",
        "p of chi2 0.012",
        "± and [ , ] are 95 % confidence intervals",
        "table of a, b: Not the maximum.",
    ):
        assert words in text, words
    assert document["analyses"][0]["counts"]["value"] == [[1.0, 2.0], [3.0, None]]
