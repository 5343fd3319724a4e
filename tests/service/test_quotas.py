"""What one proposer may take of the coordinator: jobs at once, an hour, and kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloister.core.errors import PlanError
from cloister.federation.service.store import Store
from cloister.federation.settings import QuotaSettings
from cloister.protocol import plan as plan_module
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS

from .federation import IDENTITIES, SILOS, Coordinator, network_plan


@contextmanager
def coordinator(folder: Path, **quotas: Any) -> Iterator[Coordinator]:
    made = Coordinator(
        f"sqlite:///{folder / 'coordinator.db'}",
        folder,
        options={"quotas": QuotaSettings(**quotas)},
    )
    try:
        yield made
    finally:
        made.close()


def kept(there: Coordinator) -> list[str]:
    return [job.id for job in there.store.jobs(brief=True)][::-1]


def test_one_proposer_has_so_many_open_jobs_and_the_next_one_has_its_own(tmp_path: Path) -> None:
    with coordinator(tmp_path, open_jobs=2) as there:
        first = there.submit()
        there.submit()
        with pytest.raises(PlanError, match="'ana' may have 2 open jobs"):
            there.submit()
        there.submit(by="bob")
        there.jobs.cancel(first, "ana")
        there.submit()


def test_one_proposer_makes_so_many_proposals_an_hour_sound_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with coordinator(tmp_path, proposals_per_hour=3) as there:
        there.submit()
        with pytest.raises(PlanError, match="fingerprints must name"):
            there.submit(network_plan(fingerprints=()))
        there.submit()
        now[0] += 600
        with pytest.raises(PlanError, match="may propose 3 jobs an hour; wait 50 minutes"):
            there.submit()
        there.submit(by="bob")
        now[0] += 3001
        there.submit()


def test_the_oldest_ended_jobs_of_a_proposer_make_room_and_no_others(tmp_path: Path) -> None:
    with coordinator(tmp_path, kept_jobs=3) as there:
        of_bob = there.submit(by="bob")
        there.jobs.cancel(of_bob, "bob")
        is_open = there.submit()
        ended = [there.submit() for _ in range(2)]
        for job in ended:
            there.decide(job, a="no", b="no")
            there.jobs.cancel(job, "ana")
        newest = there.submit()
        assert kept(there) == [of_bob, is_open, ended[1], newest]
        assert there.store.decisions(ended[0]) == ()
        lines = (tmp_path / "audit.jsonl").read_text().splitlines()
        assert json.loads(lines[-2])["event"] == "forgotten"
        assert json.loads(lines[-2])["jobs"] == [ended[0]]


def long_plan(silos: int) -> Plan:
    """Return a plan of some 140 bytes a silo."""
    names = tuple(f"silo-{number:04d}-{'x' * 54}" for number in range(silos))
    pins = tuple(f"ed25519:{number:064x}" for number in range(silos))
    least = silos // 2 + 1
    fields = {"silos": names, "fingerprints": pins, "min_silos": least}
    return Plan.from_dict({**network_plan().to_dict(), **fields}, TASKS)


def test_long_plans_make_room_for_themselves_or_are_refused(tmp_path: Path) -> None:
    with coordinator(tmp_path, kept_mib=1) as there:
        fit = (1 << 20) // len(long_plan(300).canonical_json())
        jobs = [there.submit(long_plan(300)) for _ in range(fit)]
        with pytest.raises(PlanError, match="plans of 'ana' may have 1 MiB together"):
            there.submit(long_plan(300))
        there.submit(long_plan(300), by="bob")
        there.jobs.cancel(jobs[5], "ana")
        there.submit(long_plan(300))
        assert jobs[5] not in kept(there)
        assert len(kept(there)) == fit + 1


def test_what_ended_long_ago_is_forgotten_and_what_is_open_never(tmp_path: Path) -> None:
    with coordinator(tmp_path, kept_days=1e-9) as there:
        is_open, ended = there.submit(), there.submit()
        there.jobs.cancel(ended, "ana")
        there.jobs.look()
        assert kept(there) == [is_open]
        there.decide(ended, a=True)
        assert there.streams.ends[-1][1:] == (
            ended,
            "failed",
            "the coordinator has no such job for this silo.",
        )


def test_a_plan_over_a_network_has_a_limited_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "MAX_PLAN", 1 << 16)
    with coordinator(tmp_path) as there:
        assert len(long_plan(1000).canonical_json()) > (1 << 16) + 2 * 512
        with pytest.raises(PlanError, match="over a network must have at most 66560 bytes"):
            there.submit(long_plan(1000))
        names = ("a", "b", "c" * 65)
        plan = Plan.from_dict({**network_plan().to_dict(), "silos": names}, TASKS)
        with pytest.raises(PlanError, match="a silo name must have at most 64 characters"):
            there.submit(plan)
        assert kept(there) == []


def test_a_list_of_jobs_reads_no_plan_and_shows_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coordinator(tmp_path) as there:
        for _ in range(3):
            there.submit(by="bob")
        whole = [there.jobs.view(job) for job in there.store.jobs()]
        brief = there.store.jobs(brief=True)
        assert [there.jobs.view(job) for job in brief] == whole
        assert all(len(job.plan) == 7 for job in brief)
        assert there.jobs.view(there.store.job(brief[0].id, brief=True) or brief[1]) == whole[0]


def test_a_database_made_before_there_were_briefs_opens_and_shows_its_jobs(
    tmp_path: Path, database_url: str, execute: Callable[[str, str], None]
) -> None:
    made = Coordinator(database_url, tmp_path)
    jobs = [made.submit() for _ in range(2)]
    views = [made.jobs.view(job) for job in made.store.jobs()]
    made.close()
    execute(database_url, "DROP TABLE briefs")
    store = Store(database_url)
    assert [made.jobs.view(job) for job in store.jobs(brief=True)] == views
    assert set(store.kept(IDENTITIES["ana"].fingerprint).bytes) == set(jobs)
    store.close()


def test_a_silo_that_is_shut_out_declines_and_is_asked_again_when_it_returns(
    tmp_path: Path,
) -> None:
    with coordinator(tmp_path) as there:
        before = there.submit()
        there.streams.up = {"a", "b"}
        there.jobs.shut_out("c", "the certificate of 'c' was revoked; enrol again.")
        after = there.submit()
        for job in (before, after):
            (said,) = there.store.decisions(job)
            assert (said.silo, said.approved) == ("c", False)
            assert "was revoked" in said.reason
        there.streams.up = set(SILOS)
        there.jobs.connected("c")
        assert {job for silo, job, _ in there.streams.offers if silo == "c"} == {before, after}
        there.decide(after, c=True, a=True, b=True)
        assert there.ended(after).approved == SILOS


def test_a_silo_that_returns_is_not_shown_again_what_it_declined(tmp_path: Path) -> None:
    with coordinator(tmp_path) as there:
        first, second = there.submit(), there.submit()
        there.decide(first, b="no")
        there.streams.offers.clear()
        there.jobs.connected("b")
        assert len(there.streams.offers) == 2, "nobody knows what this silo forgot meanwhile"
        there.streams.offers.clear()
        there.jobs.connected("b")
        assert [job for _, job, _ in there.streams.offers] == [second]


def test_nobody_is_shut_out_by_an_old_certificate_while_its_new_one_is_connected(
    tmp_path: Path,
) -> None:
    with coordinator(tmp_path) as there:
        there.jobs.shut_out("c", "the certificate of 'c' was revoked; enrol again.")
        assert there.store.decisions(there.submit()) == ()
