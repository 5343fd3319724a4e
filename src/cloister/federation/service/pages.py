"""Pages of the coordinator: connected silos and the states of jobs, but never a result.

Reading them requires a certificate of the federation, and they contain no forms. Host names need no
check against DNS rebinding. A page of another site reaches this port under a name that is not in
the coordinator's certificate, so a browser ends that connection.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from starlette.responses import HTMLResponse

from cloister.core.display import Table
from cloister.core.html import page
from cloister.federation.pki import Peer
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.render import facts, members, moment, priced, progress
from cloister.federation.service.store import SeenSilo, StoredJob, concerns
from cloister.federation.service.web import sent
from cloister.protocol.lifecycle import ENDED, MEANING

_ENDED_SHOWN = 50  # jobs, the newest
_PAGES = (("/", "Overview"),)


def overview(jobs: Jobs, connected: Collection[str], caller: Peer) -> HTMLResponse:
    """Return the page of all silos and jobs; a silo gets its own jobs and no list of silos.

    Other analysts' jobs are shown to an analyst in outline.

    Parameters
    ----------
    connected : collection of str
        The silos that have a stream now.
    """
    silo = caller.name if caller.role == "silo" else None
    now_open = jobs.store.jobs(states=("proposed", "running"), silo=silo, brief=True)
    ended = jobs.store.jobs(states=ENDED, silo=silo, limit=_ENDED_SHOWN, brief=True)
    mine = {job.id for job in (*now_open, *ended) if concerns(job, caller)}
    return _live(
        "overview",
        path="/",
        title=f"Jobs of {silo}" if silo else "Silos and jobs",
        silos=None if silo else _silos(jobs.store.silos(), connected, jobs.excluded),
        mine=mine,
        open=[
            (*_row(job, job.id in mine), _standing(jobs, job) if job.id in mine else "")
            for job in now_open
        ],
        ended=[(*_row(job, job.id in mine), _explained(job, job.id in mine)) for job in ended],
    )


def one_job(jobs: Jobs, job: StoredJob) -> HTMLResponse:
    """Return the page of a job: its decisions, refusals, progress and description."""
    details = jobs.details(job)
    return _live(
        "job",
        path=None if job.ended else f"/jobs/{job.id}",
        title=f"Job {job.id[:12]}",
        job=details,
        facts=facts(details),
        members=members(details),
    )


def _live(view: str, **values: object) -> HTMLResponse:
    now = moment(time.time())
    return sent(page("coordinator.html", view=view, now=now, pages=_PAGES, **values))


def _row(job: StoredJob, whole: bool) -> tuple[str, ...]:
    task, state = job.plan["task"]["name"], str(job.state)
    # Price and progress tell what is asked, which concerns its parties only.
    if whole:
        task = priced(task, job.plan["budget"])
        state = f"{state}, {progress(vars(job))} rounds"
    return job.id, state, job.proposer["name"], task, moment(job.proposed_at)


def _explained(job: StoredJob, whole: bool) -> str:
    # A reason may begin with a name, so it cannot begin with a capital.
    reason = f" Reason: {job.reason}" if whole and job.reason else ""
    return f"{MEANING[job.state]}{reason}"


def _silos(
    seen: Sequence[SeenSilo], connected: Collection[str], excluded: Mapping[str, str]
) -> Table:
    def stream(silo: SeenSilo) -> str:
        at = moment(silo.seen_at)  # of the newest stream's opening
        if silo.name in connected:
            return f"since {at}"
        return ": ".join(filter(None, (f"no; last opened {at}", excluded.get(silo.name))))

    rows = tuple((silo.name, stream(silo), moment(silo.not_after.timestamp())) for silo in seen)
    return Table("Silos that ever connected", ("silo", "connected", "certificate until"), rows)


def _standing(jobs: Jobs, job: StoredJob) -> str:
    """Return the silos that approved, declined, or are undecided, as one text."""
    decisions = jobs.store.decisions(job.id)
    said = {one.silo: "approved" if one.approved else "declined" for one in decisions}

    words = {silo: said.get(silo, "undecided") for silo in job.silos}
    groups = {
        word: [silo for silo in words if words[silo] == word]
        for word in ("approved", "declined", "undecided")
    }
    return "; ".join(f"{word}: {', '.join(silos)}" for word, silos in groups.items() if silos)
