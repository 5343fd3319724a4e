"""Jobs at the coordinator: proposed, decided by their silos, run, resumed, ended.

::

    proposed ──> running ──> done
       │            ├──────> failed
       ├──> declined│
       └────────────┴──────> cancelled

A job starts when every member has decided, or at the approval time-out, with the silos that
approved if they are enough. It ends as soon as too many declined. These decisions protect no
records: each silo follows its own policy and ledger.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cloister.core.errors import (
    CloisterError,
    LedgerError,
    PlanError,
    ProtocolError,
    TransportError,
    raise_if_any,
)
from cloister.federation.service.audit import Audit
from cloister.federation.service.hub import Hub
from cloister.federation.service.logs import place_of
from cloister.federation.service.store import Store, StoredJob
from cloister.federation.settings import QuotaSettings
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.aggregator import Aggregator, box_name
from cloister.protocol.lifecycle import ENDED, MOST_REASON, CoordinatorState
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import Proposer
from cloister.protocol.session import RoundDone, Transport, run_rounds

MAX_OPEN = 500  # jobs that are proposed or running
_LONGEST_NAME = 64  # characters of a silo's name in a certificate
_READ_PLANS = 50  # kept in memory; one may take megabytes
_TICK = 1.0  # seconds between two looks at the clock
_HOUR, _DAY = 3600.0, 86400.0
_PERIOD = 60.0  # seconds until silos are asked again for a period that they have not frozen
_RETRY = 10.0  # seconds before a job is taken up again whose database was not usable
_RECENT = 100  # ended jobs of which a silo is told when it connects
_CONVICTIONS = b"convictions"  # name of the record of a job's evidence
_STOPPING = 5.0  # seconds for running rounds to notice the end of the service

_SHOWN_OF_JOB = (
    *("id", "state", "reason", "silos", "approved", "rounds", "rounds_done", "survivors"),
    *("proposed_at", "started_at", "ended_at"),
)

_OUTLINE = ("id", "state", "task", "study", "proposer", "proposed_at", "started_at", "ended_at")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Cohort:
    """A transport to the silos that take part; the others receive no frames."""

    inner: Transport
    silos: frozenset[str]

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        wanted = {silo: frame for silo, frame in frames.items() if silo in self.silos}
        return self.inner.exchange(wanted) if wanted else {}


@dataclass(frozen=True)
class _BackgroundWork:
    """Background work in a separate thread while silos compute, so that no round waits for it."""

    thread: ThreadPoolExecutor
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    begun: deque[Future[None]] = field(default_factory=deque)

    def begin(self) -> None:
        """Start all waiting work; may be called from any thread."""
        while self.waiting:
            self.begun.append(self.thread.submit(self.waiting.popleft()))

    def check(self) -> None:
        """Raise the first error of the work so far."""
        while self.begun and self.begun[0].done():
            self.begun.popleft().result()

    def finish(self) -> None:
        """Complete all work, and raise its first error."""
        self.begin()
        for future in self.begun:
            future.result()


@dataclass
class _Running:
    """A thread that runs a job, and the event that stops it."""

    thread: threading.Thread
    stop: threading.Event


@dataclass
class Jobs:
    """The operations of the coordinator on jobs; any thread may call them.

    Parameters
    ----------
    round_timeout, grace, approval_timeout : float, seconds
        Longest wait for a silent silo, an absent silo and an undecided silo.
    new_noise : function
        Returns the noise source of a job under profile "group"; from the operating system by
        default.
    """

    store: Store
    streams: Hub
    audit: Audit
    round_timeout: float = 300.0
    grace: float = 60.0
    approval_timeout: float = 604800.0
    new_noise: Callable[[], NoiseSource] = DiscreteNoise
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    _running: dict[str, _Running] = field(default_factory=dict, init=False, repr=False)
    _plans: dict[str, Plan] = field(default_factory=dict, init=False, repr=False)
    _retry_at: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _woken: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False)
    _shut_out: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _proposals: dict[str, deque[float]] = field(default_factory=dict, init=False, repr=False)
    _met: set[str] = field(default_factory=set, init=False, repr=False)
    _all_at: float = field(default=0.0, init=False, repr=False)
    _tidy_at: float = field(default=0.0, init=False, repr=False)
    _closing: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    # The service's life -----------------------------------------------------------------------

    def start(self) -> None:
        """Resume the jobs of an earlier process, and poll the clock from now on."""
        self.audit.write("start")
        self.look()
        threading.Thread(target=self._watch, name="jobs-clock", daemon=True).start()

    def close(self) -> None:
        """Stop all rounds; running jobs stay in that state and resume at the next start."""
        self._closing.set()
        with self._lock:
            running = list(self._running.values())
        for one in running:
            one.stop.set()
        for one in running:
            one.thread.join(_STOPPING)

    def look(self) -> None:
        """Start, decline and resume the jobs that are due now."""
        now = time.monotonic()
        all_of_them = now >= self._all_at  # a decision may have come while the database was away
        if all_of_them:
            self._all_at = now + _RETRY
        for job, state, proposed_at in self.store.open_jobs():
            if state == "proposed":
                if all_of_them or time.time() >= proposed_at + self.approval_timeout:
                    self._settle(job)
            elif job not in self._running and now >= self._retry_at.get(job, 0.0):
                self._launch(self._known(job))
        if now >= self._tidy_at:
            self._tidy_at = now + _HOUR
            self._forget(self.store.ended_before(time.time() - self.quotas.kept_days * _DAY))

    def _watch(self) -> None:
        while not self._closing.wait(_TICK):
            try:
                self.look()
            except CloisterError as error:
                _LOG.error("%s", error)
            except Exception:
                _LOG.exception("unexpected error; the clock continues")

    # Requests of analysts and operators -------------------------------------------------------

    def submit(
        self,
        document: Mapping[str, Any],
        proposer: Mapping[str, str],
        *,
        name: str,
        fingerprint: str,
    ) -> StoredJob:
        """Propose a job to its members.

        Parameters
        ----------
        document : mapping
            The plan, as returned by :meth:`~cloister.protocol.plan.Plan.to_dict`.
        proposer : mapping
            Name, fingerprint, public key and signature over the plan's digest, as silos check them.
        name, fingerprint : str
            Of the certificate of the connection.

        Raises
        ------
        PlanError
            If the plan cannot run over a network, is not signed by its sender, or exceeds the
            quotas.
        """
        # Before the plan is read, since reading is the cost of a flood of bad plans.
        self._check_rate(name, fingerprint)
        plan = Plan.from_dict(document)
        raise_if_any(_rules_of_network(plan))
        plan.check_network()
        raise_if_any(_rules_of_proposer(plan, Proposer(**proposer), name, fingerprint))
        raise_if_any(self._rules_of_members(plan))
        by_state, _ = self.store.counts()
        if by_state["proposed"] + by_state["running"] >= MAX_OPEN:
            raise PlanError(
                f"{MAX_OPEN} jobs are open at the coordinator; wait until some have ended, or "
                "cancel them."
            )
        with self._lock:
            self._make_room(name, fingerprint, len(plan.canonical_json()))
            fresh = self.store.propose(plan.run_id, plan.to_dict(), proposer)
        if not fresh:
            raise PlanError(
                f"run_id {plan.run_id!r} was used before; omit it for a new one and sign the plan "
                "again."
            )
        self.audit.write(
            "proposed", job=plan.run_id, by=name, plan=plan.digest.hex(), silos=list(plan.silos)
        )
        job = self._known(plan.run_id)
        for silo in set(self.streams.connected()) & set(job.silos):
            self._offer(silo, job)
        for silo in set(self._shut_out) & set(job.silos):
            self._without(silo, job.id)
        return self._known(job.id)

    def _check_rate(self, name: str, fingerprint: str) -> None:
        """Count a proposal, valid or not, unless its proposer sent too many."""
        now, most = time.monotonic(), self.quotas.proposals_per_hour
        with self._lock:
            made = self._proposals.setdefault(fingerprint, deque())
            while made and made[0] < now - _HOUR:
                made.popleft()
            if len(made) >= most:
                minutes = (made[0] + _HOUR - now) / 60
                raise PlanError(
                    f"{name!r} may propose {most} jobs an hour; wait {minutes:.0f} minutes."
                )
            made.append(now)

    def _make_room(self, name: str, fingerprint: str, length: int) -> None:
        """Delete a proposer's oldest jobs for a new one, unless too many of them are open."""
        kept = self.store.kept(fingerprint)
        if kept.open >= self.quotas.open_jobs:
            raise PlanError(
                f"{name!r} may have {self.quotas.open_jobs} open jobs; wait until some have ended, "
                "or cancel them."
            )
        most, ended = self.quotas.kept_mib << 20, deque(kept.ended)
        jobs, size, gone = len(kept.bytes) + 1, sum(kept.bytes.values()) + length, []
        while ended and (jobs > self.quotas.kept_jobs or size > most):
            gone.append(ended.popleft())
            jobs, size = jobs - 1, size - kept.bytes[gone[-1]]
        if size > most:
            raise PlanError(
                f"plans of {name!r} may have {self.quotas.kept_mib} MiB together; wait until some "
                "of them have ended, or cancel them."
            )
        self._forget(gone)

    def _forget(self, jobs: Sequence[str]) -> None:
        if jobs:
            self.store.forget(jobs)
            for job in jobs:
                self._plans.pop(job, None)
            self.audit.write("forgotten", jobs=list(jobs))

    def cancel(self, job: str, by: str) -> bool:
        """Cancel a job permanently; return False if it had ended already."""
        with self._lock:
            if not self._end(job, "cancelled", f"cancelled by {by}."):
                return False
            if job in self._running:
                self._running[job].stop.set()
        return True

    def view(self, job: StoredJob) -> dict[str, Any]:
        """Return the entry of a job in a list for users."""
        return {
            **{name: getattr(job, name) for name in _SHOWN_OF_JOB},
            **{name: job.plan[name] for name in ("profile", "study", "budget")},
            "readers": [reader["name"] for reader in job.plan.get("readers", ())],
            "task": job.plan["task"]["name"],
            "proposer": job.proposer["name"],
        }

    def outline(self, job: StoredJob) -> dict[str, Any]:
        """Return the entry of a job in a list for analysts whom it does not concern."""
        entry = self.view(job)
        return {name: entry[name] for name in _OUTLINE}

    def box(self, job: StoredJob, silo: str, fingerprint: str) -> bytes | None:
        """Return the box of a silo for the reader with a fingerprint, or None."""
        for reader in self._plan(job).readers:
            if reader.fingerprint == fingerprint:
                return self.store.answer_to(job.id, box_name(silo, reader))
        return None

    def _plan(self, job: StoredJob) -> Plan:
        """Return a job's plan, cached since it never changes and takes milliseconds to check."""
        if job.id not in self._plans:
            if len(self._plans) >= _READ_PLANS:
                # All together, since a plan is read again within milliseconds.
                self._plans.clear()
            self._plans[job.id] = Plan.from_dict(job.plan)
        return self._plans[job.id]

    def details(self, job: StoredJob) -> dict[str, Any]:
        """Return all details of a job for users."""
        decisions = self.store.decisions(job.id)
        plan = self._plan(job)
        return {
            **self.view(job),
            "describe": plan.describe(),
            "digest": plan.digest.hex(),
            "plan": dict(job.plan),
            "proposal": dict(job.proposer),
            "decisions": [vars(decision) for decision in decisions],
            "refusals": dict(self.store.refusals(job.id)),
            "waiting_for": self._waiting_for(job, {d.silo for d in decisions}),
        }

    def _waiting_for(self, job: StoredJob, decided: set[str]) -> str:
        """Return a description of the pending event of a job; empty if there is none."""
        if job.state == "proposed":
            undecided = [silo for silo in job.silos if silo not in decided]
            hours = (job.proposed_at + self.approval_timeout - time.time()) / 3600
            return f"decisions of {', '.join(undecided)}, for {max(hours, 0):.1f} more hours"
        absent = [silo for silo in job.approved if silo not in self.streams.connected()]
        if job.state == "running" and absent:
            return f"streams of {', '.join(absent)}, {self.grace:g} seconds in each exchange"
        if job.state == "running" and self._is_renewed(job.id):
            return f"period {job.rounds_done + 1}, which every silo has to freeze"
        return ""

    # Messages of silos ------------------------------------------------------------------------

    def connected(self, silo: str) -> None:
        """Offer a connected silo its open jobs, and inform it of ended ones.

        Jobs that it declined are not offered again while this service runs.
        """
        was_shut_out = self._shut_out.pop(silo, None) is not None
        again = was_shut_out or silo not in self._met
        declined = frozenset() if again else self.store.declined_by(silo)
        self._met.add(silo)
        for job in self.store.jobs(states=("proposed", "running"), silo=silo, brief=True):
            if job.state == "running" and silo not in job.approved:
                self._too_late(silo, job)
            elif job.id not in declined:
                self._offer(silo, self._known(job.id))
        for job in self.store.jobs(states=ENDED, silo=silo, limit=_RECENT, brief=True):
            self._tell_end(silo, job)

    def decided(self, silo: str, job: str, approved: bool, reason: str) -> None:
        """Store a silo's decision; the last one before the start counts."""
        reason = _shortened(reason)
        with self._lock:
            known = self.store.job(job, brief=True)
            if known is None or silo not in known.silos:
                _LOG.warning("decision on a job that is not the silo's", extra=_ids(job, silo))
                self._tell(silo, job, "failed", "the coordinator has no such job for this silo.")
                return
            if self.store.decide(job, silo, approved, reason):
                what = "approved" if approved else "declined"
                self.audit.write("decided", job=job, silo=silo, decision=what, reason=reason)
                _LOG.info("%s", what, extra=_ids(job, silo))
                self._settle(job)
            elif known.ended:
                self._tell_end(silo, known)
            elif silo not in known.approved:
                self._too_late(silo, known)
            elif self._is_renewed(job):
                if approved:
                    self._wake(job, silo)
                else:
                    self._leave(job, silo, reason)
            elif not approved:
                self._refused(job, silo, f"withdrawn: {reason}")

    def _is_renewed(self, job: str) -> bool:
        return self._plan(self._known(job)).horizon is not None

    def _wake(self, job: str, silo: str) -> None:
        """Ask the silos of a horizon now: one of them has frozen its next period."""
        self._woken.setdefault(job, set()).add(silo)
        self._retry_at.pop(job, None)

    def _leave(self, job: str, silo: str, reason: str) -> None:
        """End a horizon, as each later release would hold earlier sums of the silo that left."""
        if job in self._running:
            self._running[job].stop.set()
        self._end(job, "failed", f"silo {silo!r} left, so the horizon ends: {reason}")

    def shut_out(self, silo: str, reason: str) -> None:
        """Decline jobs on behalf of a silo with an invalid certificate, until it returns.

        A running job continues; its rounds count the silo as dropped.
        """
        if silo in self._shut_out or silo in self.streams.connected():
            return
        self._shut_out[silo] = reason
        for job in self.store.jobs(states=("proposed",), silo=silo, brief=True):
            self._without(silo, job.id)

    @property
    def excluded(self) -> dict[str, str]:
        """The reason for each silo whose certificate is not valid, as far as it tried."""
        return dict(self._shut_out)

    def _without(self, silo: str, job: str) -> None:
        reason = self._shut_out.get(silo)
        with self._lock:
            if reason is not None and self.store.decide(job, silo, False, reason):
                self.audit.write("decided", job=job, silo=silo, decision="shut out", reason=reason)
                self._settle(job)

    def _refused(self, job: str, silo: str, reason: str) -> None:
        reason = _shortened(reason)
        # A period that is not frozen yet is asked for again and again.
        if self._is_renewed(job) and self.store.refusals(job).get(silo) == reason:
            return
        self.store.refuse(job, silo, reason)
        self.audit.write("refusal", job=job, silo=silo, reason=reason)
        _LOG.warning("refused: %s", reason, extra=_ids(job, silo))

    # From proposed to ended -------------------------------------------------------------------

    def _settle(self, job: str) -> None:
        """Start or decline a proposed job if all silos decided or the time is over."""
        with self._lock:
            known = self._known(job, brief=True)
            if known.state != "proposed":
                return
            decisions = {decision.silo: decision for decision in self.store.decisions(job)}
            undecided = [silo for silo in known.silos if silo not in decisions]
            approved = tuple(s for s in known.silos if s in decisions and decisions[s].approved)
            least, possible = int(known.plan["min_silos"]), len(approved) + len(undecided)
            over = time.time() >= known.proposed_at + self.approval_timeout
            # Once too many declined, waiting would only keep the budget of others reserved.
            if undecided and not over and possible >= least:
                return
            if len(approved) < least:
                against = [one for one in decisions.values() if not one.approved]
                reasons = [f"{one.silo}: {one.reason.rstrip('.')}" for one in against]
                counted = f"{len(approved)} of {len(known.silos)} silos approved"
                if over:
                    reasons += [f"{silo}: no decision in time" for silo in undecided]
                elif undecided:
                    counted = f"at most {possible} of {len(known.silos)} silos can still approve"
                counted += ", but the plan requires"
                # Lists shorten a reason, so who declined comes first.
                self._end(job, "declined", "; ".join([*reasons, f"{counted} {least}"]))
            elif self.store.start(job, approved):
                self.audit.write("started", job=job, silos=list(approved))
                known = self._known(job)
                for silo in known.silos:
                    if silo not in approved:
                        self._too_late(silo, known)
                self._launch(known)

    def _launch(self, job: StoredJob) -> None:
        """Run a job in a separate thread, unless it has one."""
        with self._lock:
            if self._closing.is_set():
                return
            if job.id in self._running or self._known(job.id, brief=True).state != "running":
                return
            stop = threading.Event()
            name = f"job-{job.id[:8]}"
            thread = threading.Thread(target=self._work, args=(job, stop), name=name, daemon=True)
            self._running[job.id] = _Running(thread, stop)
            thread.start()

    def _work(self, job: StoredJob, stop: threading.Event) -> None:
        try:
            self._run(job, stop)
        except LedgerError as error:  # nothing was released; the database may come back
            _LOG.error("%s", error, extra=_ids(job.id))
            self._retry_at[job.id] = time.monotonic() + _RETRY
        finally:
            with self._lock:
                self._running.pop(job.id, None)

    def _run(self, job: StoredJob, stop: threading.Event) -> None:
        """Run the rounds of a job to the end, or until it is stopped or a period has to wait."""
        with self._lock:
            woken = self._woken.pop(job.id, set())
        for silo in woken:  # every refusal so far is older than what it froze
            self.store.forget_refusal(job.id, silo)
        aggregator = None
        try:
            plan = self._plan(job)
            aggregator = Aggregator(plan, self.new_noise(), self.store)
            try:
                self._run_rounds(job, aggregator, stop)
            finally:
                self._record_faults(job, aggregator)
            if stop.is_set():
                return
            self._end(job.id, "done")
        except LedgerError:
            raise
        except (PlanError, ProtocolError, TransportError) as error:
            # A stop breaks the carrier, too, and is no failure of the job.
            if stop.is_set():
                return
            if self._waits(job, aggregator):
                _LOG.info("a period waits: %s", error, extra=_ids(job.id))
            else:
                self._end(job.id, "failed", str(error))
        except Exception as error:
            _LOG.exception("unexpected error in a job", extra=_ids(job.id))
            self._end(job.id, "failed", f"unexpected {place_of(error).split()[0]}; see the log.")

    def _waits(self, job: StoredJob, aggregator: Aggregator | None) -> bool:
        """Return True if a job waits for all silos of a period; it continues as after a restart."""
        if aggregator is None or aggregator.plan.horizon is None or aggregator.convictions:
            return False
        wait = 0.0 if job.id in self._woken else _PERIOD
        self._retry_at[job.id] = time.monotonic() + wait
        return True

    def _run_rounds(self, job: StoredJob, aggregator: Aggregator, stop: threading.Event) -> None:
        with ThreadPoolExecutor(1, "aside") as thread:
            aside = _BackgroundWork(thread)
            carrier = self.streams.transport(
                job.id,
                round_timeout=self.round_timeout,
                grace=self.grace,
                stop=stop,
                on_refusal=lambda silo, reason: self._refused(job.id, silo, reason),
                on_sent=aside.begin,
            )
            cohort = _Cohort(carrier, frozenset(job.approved))
            # One attempt: the carrier repeats requests on every stream that returns in time.
            for done in run_rounds(aggregator, cohort, attempts=1):
                if stop.is_set():
                    return
                aside.check()
                # Both begin when the next frames are on their way, while silos compute.
                aside.waiting.append(partial(self._round_done, job, done))
                aside.waiting.append(aggregator.prepare)
            aside.finish()

    def _record_faults(self, job: StoredJob, aggregator: Aggregator) -> None:
        """Record the silos whose frames did not count, and the evidence against the convicted."""
        for silo, why in aggregator.faults.items():
            self._refused(job.id, silo, f"left out: {why}.")
        if aggregator.convictions:
            proofs = [conviction.to_dict() for conviction in aggregator.convictions]
            self.store.record(job.id, _CONVICTIONS, json.dumps(proofs, allow_nan=False).encode())
            for conviction in aggregator.convictions:
                self.audit.write(
                    "convicted", job=job.id, silo=conviction.silo, reason=str(conviction)
                )

    def _convictions(self, job: str) -> list[Any]:
        """Return the recorded evidence of a job, which silos verify."""
        kept = self.store.answer_to(job, _CONVICTIONS)
        return [] if kept is None else json.loads(kept)

    def _round_done(self, job: StoredJob, done: RoundDone) -> None:
        if done.round < job.rounds_done:
            return  # said by an earlier life of the service
        self.store.progress(job.id, done.round + 1, done.survivors)
        self.audit.write("round", job=job.id, round=done.round, survivors=list(done.survivors))
        _LOG.info(
            "round %d of %d done with %d silos",
            done.round + 1,
            done.rounds,
            len(done.survivors),
            extra={"job": job.id, "round": done.round},
        )

    def _end(self, job: str, state: CoordinatorState, reason: str = "") -> bool:
        """End a job once, and inform its silos; return True if this call ended it."""
        if not self.store.end(job, state, reason):
            return False
        event = "finished" if state == "done" else state
        self.audit.write(event, job=job, reason=reason)
        _LOG.info("%s: %s", event, reason or "all rounds released", extra=_ids(job))
        self._retry_at.pop(job, None)
        known = self._known(job, brief=True)
        for silo in set(self.streams.connected()) & set(known.silos):
            self._tell_end(silo, known)
        return True

    # Small things -----------------------------------------------------------------------------

    def _rules_of_members(self, plan: Plan) -> Iterator[str]:
        known = {silo.name: silo.fingerprint for silo in self.store.silos()}
        for silo, fingerprint in zip(plan.silos, plan.fingerprints, strict=True):
            if known.get(silo, fingerprint) != fingerprint:
                yield (
                    f"silo {silo!r} connects with fingerprint {known[silo]}, but the plan has "
                    f"{fingerprint}; compare them over another channel."
                )

    def _known(self, job: str, *, brief: bool = False) -> StoredJob:
        known = self.store.job(job, brief=brief)
        if known is None:
            raise LedgerError(f"job {job!r} is missing in the database; restore its newest copy.")
        return known

    def _offer(self, silo: str, job: StoredJob) -> None:
        with suppress(TransportError):  # it is offered again when the silo returns
            # The time lets the silo detect that its own clock is wrong.
            document = {"plan": dict(job.plan), "proposer": dict(job.proposer), "time": time.time()}
            self.streams.offer(silo, job.id, document)

    def _tell(self, silo: str, job: str, status: str, reason: str) -> None:
        with suppress(TransportError):  # it is told again when the silo returns
            self.streams.end(silo, job, status, reason, self._convictions(job))

    def _tell_end(self, silo: str, job: StoredJob) -> None:
        if job.state == "done" and silo not in job.approved:
            self._too_late(silo, job)
        else:
            self._tell(silo, job.id, job.state, job.reason)

    def _too_late(self, silo: str, job: StoredJob) -> None:
        self._tell(silo, job.id, "cancelled", f"the job started without {silo!r}.")


def _rules_of_network(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each rule of networks that a plan violates."""
    if bad := [name for name in plan.silos if not name.isprintable()]:
        yield f"a silo name must be printable, got {bad[0]!r}."
    if bad := [name for name in plan.silos if len(name) > _LONGEST_NAME]:
        yield (
            f"a silo name must have at most {_LONGEST_NAME} characters, as in a certificate, got "
            f"{bad[0][:20]!r} of {len(bad[0])}."
        )
    if plan.profile == "local":
        yield "profile 'local' is for one silo in one process; run it there."
    if not plan.fingerprints:
        yield (
            "fingerprints must name the silos' signing keys in a job over a network; put them in "
            "the plan in the order of its silos."
        )


def _rules_of_proposer(
    plan: Plan, proposer: Proposer, name: str, fingerprint: str
) -> Iterator[str]:
    """Yield a sentence if the sender of a proposal did not sign it."""
    if (proposer.name, proposer.fingerprint) != (name, fingerprint):
        yield (
            f"proposer must be {name!r} with fingerprint {fingerprint}, as in the certificate, got "
            f"{_shortened(proposer.name)!r}; sign with the identity of that certificate."
        )
    if not proposer.signed(plan):
        yield (
            "proposer's signature does not match this plan and fingerprint; sign the plan's "
            "digest again, and write the signature in hexadecimal digits."
        )


def _shortened(reason: str) -> str:
    """Return the stored part of another party's text: printable and bounded."""
    return "".join(c if c.isprintable() else " " for c in reason[:MOST_REASON])


def _ids(job: str, silo: str | None = None) -> dict[str, str]:
    return {"job": job} if silo is None else {"job": job, "silo": silo}
