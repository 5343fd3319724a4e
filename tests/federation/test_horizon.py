"""An answer that is renewed by real agents: frozen by its owners, released period by period."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cloister.app.horizon import RELEASES, HorizonFolder
from cloister.cli import main
from cloister.cli.verify import CODES
from cloister.console.guard import Guard
from cloister.console.silo import silo_app
from cloister.core.errors import CloisterError, PlanError
from cloister.data.schema import Schema
from cloister.federation.local import ANALYST, COORDINATOR, LocalFederation
from cloister.federation.release_signatures import SUFFIX
from cloister.federation.settings import SiloSettings, load_role
from cloister.federation.silo.site import Site
from cloister.privacy.events import HorizonEvent
from cloister.privacy.ledger import Ledger
from cloister.tasks import TASKS
from cloister.testing import zero_noise_command

pytestmark = pytest.mark.usefixtures("forked_parties")

SILOS = ("north", "east", "south")
KINDS = ["burn", "cut", "fall"]
SCHEMA = Schema(
    dataset="visits",
    unit="patient",
    max_rows=1,
    columns=[{"name": "kind", "type": "category", "categories": KINDS}],
)
PERIODS = 3


def arrivals(folder: Path, silo: str, period: int) -> tuple[Path, np.ndarray]:
    """Write the arrivals of a silo in a period; return the file and the count of each kind."""
    counts = np.array([10 * period, 3, len(silo)])
    rows = [f"{silo}-{period}-{i},{k}" for i, k in enumerate(np.repeat(KINDS, counts))]
    path = folder / f"{silo}-{period}.csv"
    path.write_text("patient,kind\n" + "".join(f"{row}\n" for row in rows))
    return path, counts


@pytest.fixture(params=["pairwise", "group"])
def federation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalFederation]:
    tables = {silo: arrivals(tmp_path, silo, 1)[0] for silo in SILOS}
    policies = {silo: {"tasks": ["tabulate"], "standing": False} for silo in SILOS}
    with LocalFederation(
        *(tmp_path / "f", SCHEMA, tables), policies=policies, command=zero_noise_command
    ) as made:
        made.profile = request.param  # type: ignore[attr-defined]
        made.start()
        made.wait_connected()
        yield made


def opened(federation: LocalFederation, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Propose a horizon and let every owner approve it; return its id and what they read."""
    words = (
        f"jobs submit --schema {federation.folder}/north/schema.toml --task tabulate --set "
        f'tables=[["kind"]] --silos {",".join(SILOS)} --epsilon 1 --nominal-n 300 --periods '
        f"{PERIODS} --profile {federation.profile} --json"  # type: ignore[attr-defined]
    )
    assert main([*words.split(), "--config", str(federation.config(ANALYST))]) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    for silo in SILOS:
        config = str(federation.config(silo))
        while main(["jobs", "show", job, "--config", config]) != 0:  # not offered yet
            capsys.readouterr()
        text = " ".join(capsys.readouterr().out.split())
        accepted = ["--accept-aggregator-noise", "--quiet"]
        assert main(["jobs", "approve", job, "--config", config, *accepted]) == 0
    federation.wait_job(job, ("running",))
    return job, text


def freeze(federation: LocalFederation, silo: str, job: str, period: int, file: Path) -> int:
    config = str(federation.config(silo))
    return main(["horizon", "freeze", job, str(period), str(file), "--config", config, "--quiet"])


def wait_released(federation: LocalFederation, job: str, periods: int) -> dict[str, Any]:
    """Wait until every silo has written the releases of some periods."""
    found: dict[str, Any] = {}

    def there() -> bool:
        for silo in SILOS:
            try:
                found[silo] = HorizonFolder.load(federation.results(silo, job).parent, TASKS)
            except CloisterError:
                return False
        return all(len(one.frames()) == periods for one in found.values())

    federation._wait(there, 300, f"release of period {periods}")
    return found


def check_who_is_late(
    federation: LocalFederation, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every party reads that only north has frozen period 1."""

    def coordinator_knows() -> bool:
        return set(federation.job(job)["refusals"]) == {"east", "south"}

    federation._wait(coordinator_knows, 60, "north is no longer among the late silos")
    capsys.readouterr()
    for silo, due in {
        "north": "period 1 is frozen here and waits for other silos",
        "east": f"period 1 waits for you: cloister horizon freeze {job[:8]} 1 FILE",
    }.items():
        config = str(federation.config(silo))
        for words in (["show", job], ["list"]):
            assert main(["jobs", *words, "--config", config]) == 0
            assert due in " ".join(capsys.readouterr().out.split())
        guard = Guard(silo_app(Site.of(load_role(Path(config), SiloSettings))), 8765)
        owner = TestClient(guard, base_url=f"http://127.0.0.1:8765{guard.root}")
        assert due in owner.get(guard.link).text


def test_owners_freeze_and_agents_release_each_period_at_one_price(
    federation: LocalFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, text = opened(federation, capsys)
    for sentence in (
        "periods 3; epsilon is the price of all of them together",
        "stored at a silo the exact sum of each period",
        "if a person's data are erased",
    ):
        assert sentence in text
    total, each = np.zeros(3), {}
    for period in range(1, PERIODS + 1):
        counts = np.zeros(3)
        for silo in SILOS:
            file, own = arrivals(tmp_path, silo, period)
            counts += own
            if period == 1 and silo == "south":
                assert freeze(federation, silo, job, 2, file) != 0  # the first one is next
                shown = federation.job(job)
                assert shown["rounds_done"] == 0
                assert shown["waiting_for"] == "period 1, which every silo has to freeze"
            assert freeze(federation, silo, job, period, file) == 0
            if period == 1 and silo == "north":
                check_who_is_late(federation, job, capsys)
            assert freeze(federation, silo, job, period, file) == 0  # a repeat changes nothing
            other, _ = arrivals(tmp_path, "elsewhere", period)
            assert freeze(federation, silo, job, period, other) != 0
        total += counts
        each[period] = counts
        folders = wait_released(federation, job, period)
        for folder in folders.values():
            assert folder.frames() == folders["north"].frames()
            for name, exact in (("so far", total), ("latest", counts)):
                answer = folder.horizon.latest(folder.released(), name).results
                np.testing.assert_allclose(answer["table_1.counts"], exact, atol=1e-6)
    assert federation.wait_job(job)["state"] == "done"
    for silo in SILOS:
        ledger = Ledger(federation.folder / silo / "ledger.db")
        (one,) = ledger.jobs()
        assert isinstance(one.events, HorizonEvent)
        assert one.rounds == (0, 1, 2)
        assert ledger.spent("visits") == pytest.approx(1, abs=1e-3)
        ledger.dispose()
        federation._wait(lambda silo=silo: not states(federation, silo), 60, "states are deleted")
    if federation.profile == "group":  # else its files say that the noise was simulated
        folders = [federation.results(silo, job).parent for silo in SILOS]
        signed = [str(folder / (RELEASES + SUFFIX)) for folder in folders]
        assert main(["verify", str(folders[0]), "--signed", *signed]) == 0
        assert main(["verify", str(folders[0])]) == CODES["not verifiable"]
    capsys.readouterr()
    assert main(["jobs", "result", job, "--config", str(federation.config("north"))]) != 0
    assert "cloister horizon show" in capsys.readouterr().err
    folder = str(federation.results("north", job).parent)
    assert main(["horizon", "show", folder]) == 0
    assert "3 of 3" in capsys.readouterr().out


def test_a_silo_that_leaves_ends_the_horizon_with_a_sentence(
    federation: LocalFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, _ = opened(federation, capsys)
    for silo in SILOS:
        assert freeze(federation, silo, job, 1, arrivals(tmp_path, silo, 1)[0]) == 0
    wait_released(federation, job, 1)
    config = str(federation.config("east"))
    assert main(["jobs", "withdraw", job, "--config", config, "--quiet"]) == 0
    shown = federation.wait_job(job)
    assert shown["state"] == "failed"
    assert "silo 'east' left, so the horizon ends" in shown["reason"]
    for silo in SILOS:
        federation._wait(lambda silo=silo: not states(federation, silo), 60, "states are deleted")
        assert freeze(federation, silo, job, 2, arrivals(tmp_path, silo, 2)[0]) != 0
        ledger = Ledger(federation.folder / silo / "ledger.db")
        assert ledger.spent("visits") == pytest.approx(1, abs=1e-3)  # nothing comes back
        ledger.dispose()
    wait_released(federation, job, 1)  # what was released stays


def test_a_horizon_that_waits_is_cancelled_and_costs_what_was_sent(
    federation: LocalFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for period in (1, 2):  # before the first upload, and after the first release
        job, _ = opened(federation, capsys)
        if period == 2:
            for silo in SILOS:
                assert freeze(federation, silo, job, 1, arrivals(tmp_path, silo, 1)[0]) == 0
            wait_released(federation, job, 1)
            # In period 1 the cancellation could come before the upload of this silo or after it.
            assert freeze(federation, "north", job, 2, arrivals(tmp_path, "north", 2)[0]) == 0
            # Files of SQLite's log may vanish at any time.
            kept = [path for path in states(federation, "north") if path.suffix == ".db"]
            assert [oct(path.stat().st_mode)[-3:] for path in kept] == ["600"]
        assert main(["jobs", "cancel", job, "--config", str(federation.config(ANALYST))]) == 0
        capsys.readouterr()
        assert federation.wait_job(job)["state"] == "cancelled"
        for silo in SILOS:
            federation._wait(lambda silo=silo: not states(federation, silo), 60, "no state is left")
            ledger = Ledger(federation.folder / silo / "ledger.db")
            is_closed = partial(_is_closed, ledger)
            federation._wait(is_closed, 60, "the ledger closes")
            assert ledger.spent("visits") == pytest.approx(period - 1, abs=1e-3)
            ledger.dispose()


@pytest.mark.parametrize("federation", ["group"], indirect=True)
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_silo_whose_state_is_lost_answers_in_other_jobs(
    damage: str,
    federation: LocalFederation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job, _ = opened(federation, capsys)
    for silo in SILOS:
        assert freeze(federation, silo, job, 1, arrivals(tmp_path, silo, 1)[0]) == 0
    wait_released(federation, job, 1)
    federation.kill("north")
    for path in states(federation, "north"):
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(b"no database" * 1000)
    federation.start("north")
    federation.wait_connected()
    # Now the coordinator asks all silos again.
    assert freeze(federation, "east", job, 2, arrivals(tmp_path, "east", 2)[0]) == 0
    log = federation.log("north")
    found = "is missing" if damage == "missing" else "cannot be"
    federation._wait(lambda: found in log.read_text(), 60, "the owner is warned")
    other, _ = opened(federation, capsys)
    assert other != job
    capsys.readouterr()
    assert main(["jobs", "list", "--config", str(federation.config("north"))]) == 0
    listed = capsys.readouterr().out
    assert f"period 1 waits for you: cloister horizon freeze {other[:8]} 1 FILE" in listed


@pytest.mark.parametrize("federation", ["group"], indirect=True)
def test_a_silo_restored_from_a_copy_refuses_a_period_that_it_sent(
    federation: LocalFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, _ = opened(federation, capsys)
    for period in (1, 2):
        for silo in SILOS:
            assert freeze(federation, silo, job, period, arrivals(tmp_path, silo, period)[0]) == 0
        wait_released(federation, job, period)
        federation.kill("north")
        if period == 1:
            shutil.copytree(federation.folder / "north", tmp_path / "copy")
        else:
            shutil.rmtree(federation.folder / "north")
            shutil.copytree(tmp_path / "copy", federation.folder / "north")
        federation.start("north")
        federation.wait_connected()
    other, _ = arrivals(tmp_path, "elsewhere", 2)
    assert freeze(federation, "north", job, 2, other) == 0  # its files do not show that it was sent
    why = "'north' is in the sum of period 2 and has not sent it, so its files were restored"

    def is_told() -> bool:
        return why in federation.job(job)["refusals"].get("north", "")

    federation._wait(is_told, 120, "the refusal of a restored silo")


def test_lost_rows_are_shown_before_a_period_is_frozen(
    federation: LocalFederation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, _ = opened(federation, capsys)
    path = tmp_path / "lossy.csv"
    path.write_text("patient,kind\n" + "".join(f"{i},burn\n,cut\n" for i in range(20)))

    def stop(*_: Any) -> None:
        raise PlanError("it stops here.")

    monkeypatch.setattr("cloister.app.arrivals.Arrivals.freeze", stop)
    config = str(federation.config("north"))
    words = ["horizon", "freeze", job, "1", str(path), "--config", config, "--max-loss", "1"]
    assert main(words) != 0
    said = capsys.readouterr().err
    assert "it stops here." in said
    assert "20 of 40" in said


def _is_closed(ledger: Ledger) -> bool:
    return not ledger.jobs()[-1].is_open


def states(federation: LocalFederation, silo: str) -> list[Path]:
    return list((federation.folder / silo / "ledger.periods").glob("*.db*"))


@pytest.mark.nightly
def test_processes_that_are_killed_at_any_time_release_the_same_periods(
    federation: LocalFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, _ = opened(federation, capsys)
    total, frames = np.zeros(3), []
    for period, victims in enumerate((SILOS, (COORDINATOR,), (*SILOS, COORDINATOR)), 1):
        for silo in SILOS:
            file, counts = arrivals(tmp_path, silo, period)
            total += counts
            assert freeze(federation, silo, job, period, file) == 0
        # Wherever they are: an agent sees a frozen period within a fraction of a second.
        for round in range(3):
            time.sleep(0.15 * round)
            for name in victims:
                federation.kill(name)
            federation.start(*victims)
            federation.wait_connected()
        folder = wait_released(federation, job, period)["south"]
        assert folder.frames()[:-1] == frames
        frames = folder.frames()
        answer = folder.horizon.latest(folder.released(), "so far").results
        np.testing.assert_allclose(answer["table_1.counts"], total, atol=1e-6)
    assert federation.wait_job(job)["state"] == "done"
    for silo in SILOS:
        ledger = Ledger(federation.folder / silo / "ledger.db")
        assert ledger.spent("visits") == pytest.approx(1, abs=1e-3)
        ledger.dispose()
