"""Lies, full disks and locked files in a federation of real processes over mutual TLS.

Whatever a party says, every result that any silo holds is the pooled result of the silos that the
coordinator committed to, every ledger is sound, and whoever lied is left out or ends the job.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cloister.federation.local import COORDINATOR

from .kit import SILOS, Beaten, Moment

LIAR = "east"
HONEST = tuple(silo for silo in SILOS if silo != LIAR)
pytestmark = pytest.mark.usefixtures("forked_parties")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beaten]:
    folder = tmp_path_factory.mktemp("federation")
    script = Path(__file__).with_name("liar.py")
    limits = {"grace": 1.5, "round_timeout": 6.0, "max_message_bytes": 2**20}
    with Beaten(folder, script, **limits) as beaten:
        yield beaten


def lied(
    federation: Beaten, profile: str, who: str, **lie: Any
) -> tuple[dict[str, Any], list[Any]]:
    """Run a job in which a party lies; return how it is shown and its committed survivors."""
    folder = federation.fed.folder / who
    federation.fed.wait_connected()
    (folder / "lie.json").write_text(json.dumps(lie))
    plan = federation.plan(profile)
    job = federation.fed.propose(plan)
    try:
        shown = federation.fed.wait_job(job)
    finally:
        (folder / "lie.json").unlink()
    assert f"{job} {lie['what']}" in (folder / "lies.log").read_text(), "the lie was never told"
    committed = federation.committed(job)
    expected = federation.pooled(plan, committed)
    if shown["state"] == "done":
        federation.fed.wait_results(job, *HONEST)
    for silo in SILOS:
        if model := federation.model(silo, job):
            assert len(committed) == plan.rounds
            assert model["history"] == expected, f"{silo} took a result that is nobody's"
    charges = [tuple(range(n)) for n in range(plan.rounds + 1)]
    federation.check_books(job, dict.fromkeys(SILOS, charges))
    return shown, committed


WORDS = (
    "other job",
    "other plan",
    "cut",
    "header only",
    "longer",
    "empty",
    "other lattice",
    "sender",
)


@pytest.mark.parametrize("what", [*WORDS, "replayed", "other round", "oversized"])
def test_a_silo_whose_upload_is_not_of_this_round_is_left_out_of_the_sum(
    federation: Beaten, what: str
) -> None:
    shown, committed = lied(
        federation, "pairwise", LIAR, what=what, kind="upload", round=1, to=[LIAR]
    )
    assert shown["state"] == "done"
    assert committed == [SILOS, HONEST, HONEST, HONEST]


@pytest.mark.parametrize("kind", ["confirm", "shares"])
@pytest.mark.parametrize("what", ["cut", "replayed", "altered sum"])
def test_a_silo_that_confirms_or_shares_falsely_stops_nobody_or_ends_the_job(
    federation: Beaten, kind: str, what: str
) -> None:
    shown, committed = lied(federation, "pairwise", LIAR, what=what, kind=kind, round=1, to=[LIAR])
    assert committed[:2] == [SILOS, SILOS], "what was uploaded is in the sum"
    if shown["state"] == "failed":  # what only the other silos can see to be wrong
        assert what == "altered sum"
        assert not any(federation.model(silo, shown["id"]) for silo in SILOS)


@pytest.mark.parametrize("what", [*WORDS[:-1], "other round"])
def test_no_silo_uploads_for_a_round_that_was_opened_wrongly(federation: Beaten, what: str) -> None:
    shown, committed = lied(
        federation, "pairwise", COORDINATOR, what=what, kind="open", round=1, to=SILOS
    )
    assert shown["state"] == "failed"
    assert len(committed) == 1
    for silo in SILOS:
        assert federation.charged(silo, shown["id"]) == ((0,), False)
        assert shown["refusals"][silo]


@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_a_sum_that_was_altered_for_one_silo_is_nobodys_result(
    federation: Beaten, profile: str
) -> None:
    shown, _ = lied(
        federation, profile, COORDINATOR, what="altered sum", kind="reply", round=1, to=[LIAR]
    )
    assert federation.model(LIAR, shown["id"]) is None


def test_a_round_that_is_opened_again_is_answered_with_the_first_bytes_or_not_at_all(
    federation: Beaten,
) -> None:
    """The coordinator asks in round 2 with the frame that opened round 0."""
    shown, committed = lied(
        federation, "group", COORDINATOR, what="replayed", kind="open", round=2, to=SILOS
    )
    assert shown["state"] == "failed"
    assert len(committed) == 2
    for silo in SILOS:
        assert federation.charged(silo, shown["id"]) == ((0, 1), False)


@pytest.mark.parametrize("what", ["replayed", "cut", "other job"])
def test_a_reply_that_is_not_of_this_round_is_confirmed_by_nobody(
    federation: Beaten, what: str
) -> None:
    shown, _ = lied(federation, "group", COORDINATOR, what=what, kind="reply", round=1, to=SILOS)
    assert shown["state"] == "failed"
    assert not any(federation.model(silo, shown["id"]) for silo in SILOS)


# Machines -----------------------------------------------------------------------------------------


def test_a_locked_ledger_delays_a_job_and_changes_nothing(federation: Beaten) -> None:
    expected = federation.undisturbed("pairwise")
    moment = Moment(LIAR, "asked", "upload", 1)
    federation.set_trap(moment)
    job = federation.fed.propose(federation.plan("pairwise"))
    assert federation.wait_for(moment, time.monotonic(), job)
    ledger = federation.fed.folder / LIAR / "ledger.db"
    with closing(sqlite3.connect(ledger, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        federation.untrap(moment)
        time.sleep(1.5)
        other.execute("ROLLBACK")
    assert federation.fed.wait_job(job)["state"] == "done"
    federation.fed.wait_results(job)
    for silo in SILOS:
        model = federation.model(silo, job)
        assert model is not None
        assert model["history"] == expected
    federation.check_books(job, {silo: [(0, 1, 2, 3)] for silo in SILOS})


def test_a_silo_with_a_full_disk_is_left_out_and_charged_for_nothing_that_did_not_leave(
    federation: Beaten,
) -> None:
    moment = Moment(LIAR, "asked", "upload", 1)
    federation.set_trap(moment)
    plan = federation.plan("pairwise")
    job = federation.fed.propose(plan)
    assert federation.wait_for(moment, time.monotonic(), job)
    process = federation.fed.processes[LIAR].pid
    unlimited = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (1, unlimited[1]))  # no file grows any more
    federation.untrap(moment)
    try:
        shown = federation.fed.wait_job(job)
        assert shown["state"] == "done"
        committed = federation.committed(job)
        assert committed == [SILOS, HONEST, HONEST, HONEST]
        federation.fed.wait_results(job, *HONEST)
        expected = federation.pooled(plan, committed)
        for silo in HONEST:
            model = federation.model(silo, job)
            assert model is not None
            assert model["history"] == expected
        assert shown["refusals"][LIAR] == "local problem; see the silo's log"
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, unlimited)
    federation.fed.kill(LIAR)
    federation.fed.start(LIAR)
    federation.fed.wait_connected(LIAR)
    charges = {silo: [(0, 1, 2, 3)] for silo in HONEST} | {LIAR: [(0,)]}
    federation.check_books(job, charges)
