"""A silo's agent, which answers the coordinator's messages.

A message in, messages out; it uses no socket.

It sends masked vectors and signed confirmations of the job's client, ``approved``, and ``declined``
with a reason. Reasons about plan, policy, budget or protocol are sent verbatim. All other reasons
might depend on records, so the coordinator receives "local problem" only.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from cloister.app.horizon import RELEASES, Horizon, HorizonFolder
from cloister.app.in_process import CONTENT_KEY
from cloister.app.release import Release, release_of, words_file
from cloister.core.errors import (
    BudgetExceeded,
    CloisterError,
    LedgerError,
    PlanError,
    ProtocolError,
    TransportError,
)
from cloister.data import Records
from cloister.data.partitions import PartitionedRecords
from cloister.federation.release_signatures import SUFFIX, Attestation
from cloister.federation.service.audit import Audit
from cloister.federation.service.logs import place_of
from cloister.federation.silo import periods
from cloister.federation.silo.periods import Periods
from cloister.federation.silo.site import Site
from cloister.federation.silo.store import Job, Store, summary_row
from cloister.federation.transports.http import Kind, Message, in_json, printable
from cloister.hazmat.ring import to_bytes
from cloister.privacy import accounting
from cloister.privacy.chain import SignedStatement
from cloister.privacy.events import ComposedEvent
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import AGGREGATOR_NOISE
from cloister.protocol import lifecycle
from cloister.protocol.client import Client
from cloister.protocol.code import code_mismatch
from cloister.protocol.convictions import Conviction
from cloister.protocol.exchanges import Kind as FrameKind
from cloister.protocol.keys import CLOCK_SECONDS
from cloister.protocol.lifecycle import GRANTED, OPEN, UNDECIDED, SiloState
from cloister.protocol.messages import decode
from cloister.protocol.plan import MAX_PLAN_MODEL, Plan, study_name
from cloister.protocol.proposal import Proposer
from cloister.protocol.task import Task, pipeline_steps

LOCAL_PROBLEM = "local problem; see the silo's log"
MODEL = "model.json"

_PROPOSER = [field.name for field in fields(Proposer)]
_MOST_WAITING = 1000  # jobs that a coordinator can make this silo keep undecided
_MOST_DECLINED, _A_DAY = 1000, 86400.0  # and declined, within so many seconds
_MOST_CONVICTIONS = 1000  # of one job, as many as it may have silos
_ENVELOPE = 4096  # bytes of an offer besides its plan

_log = logging.getLogger("cloister.federation.silo")

Data = Records | PartitionedRecords | Periods
"""What a silo sums in a job: records, or the frozen sums of periods."""


class Agent:
    """The behaviour of a silo towards a coordinator, without the connection.

    Parameters
    ----------
    site : Site
        Settings, schema, policy and tasks of the silo; refuses plans and reads records.
    join : function of (plan, records)
        Returns the job's client, with this ledger as its journal.
    noise_label : str
        Source of the silo's own noise under profile "pairwise".
    wait : function of seconds
        Waits for an upload slot; returns True if the agent must stop meanwhile.

    Notes
    -----
    Messages of one job must arrive in sequence. Messages of two jobs may come from two threads, and
    :meth:`look` and offers from a third.
    """

    def __init__(
        self,
        site: Site,
        *,
        store: Store,
        ledger: Ledger,
        audit: Audit,
        join: Callable[[Plan, Data], Client],
        noise_label: str,
        wait: Callable[[float], bool],
        on_waiting: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self.name = site.settings.name
        self._site = site
        self._dataset = site.schema.dataset
        self._results = site.settings.results
        self._store = store
        self._ledger = ledger
        self._audit = audit
        self._join = join
        self._tasks = site.tasks
        self._noise_label = noise_label
        self._wait = wait
        self._on_waiting = on_waiting
        self._plans: dict[str, Plan] = {}
        self._clients: dict[str, Client] = {}
        self._shown: dict[str, int] = {}  # periods whose release was written, by job
        self._frozen: dict[str, int] = {}  # periods of which the coordinator was told, by job
        self._reported: dict[str, SiloState | None] = {}  # jobs offered on this connection
        self._noting = threading.Lock()
        self._ending = threading.RLock()
        self._ends: dict[str, tuple[SiloState, str]] = {}  # told, and not yet acted on
        self._troubles: dict[str, str] = {}  # local errors of open jobs, for the owner
        self._over: dict[str, bool] = {}  # to close in the ledger, and whether as a whole
        self._unsaved: set[str] = set()  # results that could not be written yet
        self._clock_error: float | None = None  # seconds ahead of the coordinator
        # An earlier process may have sent rounds of these jobs that no file here records, if older
        # copies of the files were restored.
        self._granted_before = frozenset(store.states(GRANTED))
        self._ran_before = store.ran()
        self._settle()
        self._prune()

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def connected(self) -> None:
        """Forget the states reported on an earlier connection."""
        self._reported.clear()
        self._clock_error = None

    def takes_part(self, job: str) -> bool:
        """Return True if this silo answers frames of the job."""
        return self._store.state(job) in GRANTED

    def on_message(self, message: Message) -> list[Message]:
        """Return the answers to a message of the coordinator."""
        match message.kind:
            case Kind.OFFER:
                return self._offered(message)
            case Kind.ASK:
                return self._asked(message)
            case Kind.END:
                self._ended(message)
                return []
        raise TransportError(f"a silo does not accept messages of kind {message.kind!r}.")

    def prepare(self, job: str) -> None:
        """Draw the noise of a job's next round ahead of its message."""
        client = self._clients.get(job)
        if client is not None:
            client.prepare()

    def look(self) -> list[Message]:
        """Act on decisions since the last call; return the messages for the coordinator.

        Work that failed before, for example because a disk was full, is tried again.
        """
        self._catch_up()
        for job in self._store.states((SiloState.ACCEPTED,)):
            self._reserve(job)
        self._note()
        answers = []
        for job, reported in list(self._reported.items()):
            known = self._store.get(job)
            if known is None or known.state in (*UNDECIDED, reported):
                continue
            if reported not in GRANTED or known.state not in GRANTED:
                answers.append(_decision(known))
            if known.state in OPEN:
                self._reported[job] = known.state
            else:
                del self._reported[job]  # nothing more will happen to it
        return [*answers, *self._ready()]

    def _ready(self) -> list[Message]:
        """Repeat the approval of each job whose owner has frozen a period since the last call."""
        answers = []
        for job in self._reported:
            known = self._store.get(job)
            if known is None or known.state not in (SiloState.APPROVED, SiloState.RUNNING):
                continue
            plan = self._plan(known)
            if plan.horizon is not None:
                try:
                    frozen = Periods.of(self._site, plan).count
                except LedgerError as error:
                    self._tell_once("the periods cannot be read", job, error)
                    continue
                if self._frozen.get(job, 0) != frozen:
                    answers.append(_decision(known))
                self._frozen[job] = frozen
        return answers

    # Offers ----------------------------------------------------------------------------------

    def _offered(self, message: Message) -> list[Message]:
        job = message.job
        try:
            plan, proposer, asked_at = _read_offer(message, self._tasks)
        except PlanError as error:
            _log.warning("an offer was declined: %s", error, extra={"job": job})
            return [_declined(job, str(error))]
        self._compare_clocks(asked_at)
        known = self._store.get(job)
        # Of a declined job only the brief of its plan is stored.
        if known is not None and known.plan not in (plan.canonical_json(), _brief(plan)):
            self._audit.write("changed plan refused", job=job, silo=self.name)
            return [_declined(job, "the plan of this job was changed; submit it as a new job.")]
        if known is None and (reason := self._kept_or_reason(plan, proposer)):
            _log.warning("an offer was declined and not kept: %s", reason, extra={"job": job})
            return [_declined(job, reason)]
        self._reported[job] = None
        return self.look()

    def _kept_or_reason(self, plan: Plan, proposer: Mapping[str, Any]) -> str | None:
        """Store a new job with its first decision, or return the reason to discard it."""
        reason = self._site.refusal(plan, proposer)
        if reason is None and len(self._store.states((SiloState.WAITING,))) >= _MOST_WAITING:
            reason = f"{_MOST_WAITING} jobs already wait for this silo's owner."
        state, by, text = SiloState.WAITING, "", plan.canonical_json()
        if reason is not None:
            # Declined plans of analysts must not fill the disk.
            if self._store.declined_since(_A_DAY) >= _MOST_DECLINED:
                return reason
            state, by, text = SiloState.DECLINED, "policy", _brief(plan)
        elif self._site.policy.rules.standing:
            reason = self._not_standing(plan)
            if reason is None:
                state, by = SiloState.ACCEPTED, "standing rule"
        self._store.add(plan.run_id, text, proposer, state, reason=reason or "", by=by)
        self._prune()
        return None

    def _not_standing(self, plan: Plan) -> str | None:
        """Return why the standing rule does not cover a plan, or None."""
        convicted = self._store.convicted()
        for fingerprint in plan.fingerprints:
            if fingerprint in convicted:
                return (
                    f"the standing rule does not cover this job: {convicted[fingerprint]}; decide "
                    "on it, or see 'cloister jobs reinstate'."
                )
        epsilon = plan.budget.epsilon if plan.budget else math.inf
        tasks = [task.name for task in pipeline_steps(plan.task)]
        return self._site.policy.rules.outside_standing(tasks, epsilon)

    def _prune(self) -> None:
        """Delete old jobs that ended, except those with an open reservation in the ledger."""
        if len(self._store.states()) <= self._site.settings.kept_jobs:
            return
        booked = {job.job for job in self._ledger.jobs(self._dataset) if job.is_open}
        self._store.prune(self._site.settings.kept_jobs, booked)

    def _reserve(self, job: str) -> None:
        """Reserve the whole cost of an accepted job, which must precede its approval."""
        known = self._store.get(job)
        assert known is not None
        plan = self._plan(known)
        reason, by = self._site.refusal(plan, known.proposer), "policy"
        if reason is None:
            reason, by = self._wrong_clock(), "clock"
        if reason is None:
            reason, by = self._book_or_reason(plan), "ledger"
        if reason is not None:
            self._store.move(job, lifecycle.DENY, reason=reason, by=by)
        elif not self._store.move(job, lifecycle.RESERVE):
            reason = "withdrawn meanwhile"
        if reason is not None:
            self._forget(job)

    def _compare_clocks(self, coordinators: float | None) -> None:
        """Record the lead of the local clock; the smallest lead is closest to the truth."""
        if coordinators is None:
            return
        # Time that an offer waited in a queue adds to the apparent lead.
        ahead = time.time() - coordinators
        if self._clock_error is None or abs(ahead) < abs(self._clock_error):
            self._clock_error = ahead

    def _wrong_clock(self) -> str | None:
        """Return the reason to book no job by this clock, or None."""
        if self._clock_error is None or abs(self._clock_error) <= CLOCK_SECONDS:
            return None
        return (
            f"the clock of {self.name!r} is {self._clock_error:+.0f} s from the coordinator's, "
            f"more than {CLOCK_SECONDS} s; set one of them, so that jobs can be reserved."
        )

    def _book_or_reason(self, plan: Plan) -> str | None:
        try:
            self._book(plan)
        except BudgetExceeded as error:
            return str(error)
        except Exception as error:
            self._tell_locally("the job could not be reserved", plan.run_id, error)
            return LOCAL_PROBLEM
        return None

    def _book(self, plan: Plan) -> Data:
        """Read the records and reserve the job for them, or check that they are unchanged."""
        if plan.horizon is not None:
            stored = Periods.of(self._site, plan)
            if not any(one.job == plan.run_id for one in self._ledger.jobs(self._dataset)):
                stored.create()
            self._reserve_for(plan, None)
            return stored
        records = self._site.records(plan)
        self._reserve_for(plan, records.fingerprint(CONTENT_KEY))
        return records

    def _reserve_for(self, plan: Plan, content: bytes | None) -> None:
        study, policy = self._study(plan), self._site.policy
        policy.cap_study(self._ledger, self._dataset, study)
        self._ledger.reserve(
            dataset=self._dataset,
            study=study,
            job=plan.run_id,
            events=plan.events(),
            content=content,
            year_epsilon=policy.rules.max_epsilon_per_year,
            task=plan.task.name,
        )

    def _study(self, plan: Plan) -> str:
        """Return the name under which the ledger sums the costs of a plan's study.

        It is the canonical spelling, or an older spelling in the ledger; of several, the one with
        the largest cost.
        """
        name, known = study_name(plan.study), self._ledger.jobs(self._dataset)
        for job in known:
            if job.job == plan.run_id:
                return job.study
        alike = {job.study for job in known if _same_study(job.study, name)}
        return max(alike, key=lambda one: self._ledger.spent(self._dataset, one), default=name)

    # Frames ----------------------------------------------------------------------------------

    def _asked(self, message: Message) -> list[Message]:
        """Answer a frame of the job's aggregator, or refuse it."""
        asked_at = time.time()
        try:
            frame = self._answer(message.job, message.body)
            if self._stopped_before_slot(message.job, frame, asked_at):
                return []  # to send early would tell how long it took
        except (ProtocolError, BudgetExceeded, PlanError) as error:
            _log.warning("a frame was refused: %s", error, extra={"job": message.job})
            reason = str(error)
        except Exception as error:
            self._tell_locally("a frame could not be answered", message.job, error)
            reason = LOCAL_PROBLEM
        else:
            return [Message(Kind.ANSWER, message.number, message.job, frame)]
        finally:
            self._note()
        return [Message(Kind.REFUSE, message.number, message.job, in_json(reason=reason))]

    def _answer(self, job: str, frame: bytes) -> bytes:
        client = self._client(job)
        answer = client.handle(frame)
        if client.finished or client.plan.horizon is not None:
            self._finish(client)
        self._check_granted(job)  # the owner may have withdrawn while we computed
        return answer

    def _client(self, job: str) -> Client:
        """Return the job's client; after a restart it resumes from the ledger."""
        known = self._check_granted(job)
        if job not in self._clients:
            plan = self._plan(known)
            if known.state == SiloState.APPROVED:
                self._start(known, plan)
            elif reason := code_mismatch(plan):  # installed since the job began
                raise PlanError(reason)
            self._clients[job] = self._join(plan, self._book(plan))
        return self._clients[job]

    def _start(self, known: Job, plan: Plan) -> None:
        """Check the policy once more; from the first frame on, changes affect other jobs only."""
        reason = self._site.refusal(plan, known.proposer)
        if reason is not None:
            self._store.move(plan.run_id, lifecycle.REFUSE, reason=reason, by="policy")
            self._forget(plan.run_id)
            raise PlanError(reason)
        self._store.move(plan.run_id, lifecycle.BEGIN)

    def _check_granted(self, job: str) -> Job:
        known = self._store.get(job)
        if known is None or known.state not in GRANTED:
            state = "not known" if known is None else known.state.value
            raise PlanError(
                f"job {job} is {state} at silo {self.name!r}, so the silo sends nothing."
            )
        return known

    def _attested(self, plan: Plan) -> Callable[[bytes, bytes], Attestation]:
        """Return the function that signs a model, or a horizon, and its words as this silo."""
        said = self._ledger.statement(plan.run_id, plan.digest.hex(), plan.events())
        identity = self._site.identity
        ledger = SignedStatement.of(said, identity)
        return lambda model, words: Attestation.of(model, words, self.name, ledger, identity)

    def _finish(self, client: Client) -> None:
        """Store the result; answers are kept until the coordinator ends the job.

        If the result cannot be written, a later poll writes it, and the job runs until then.
        """
        plan = client.plan
        with self._ending:
            if self._store.state(plan.run_id) != SiloState.RUNNING:
                return
            noise = self._noise_label if plan.profile == "pairwise" else AGGREGATOR_NOISE
            try:
                if plan.horizon is not None:
                    self._show(client, noise)
                else:
                    result = release_of(plan, client.history, client.sums, noise)
                    _save(result, self._results / plan.run_id, self._attested(plan))
            except OSError as error:
                if plan.run_id not in self._unsaved:
                    self._unsaved.add(plan.run_id)
                    _log.error(
                        "the result cannot be written (%s); make room for it in %r",
                        error.strerror,
                        str(self._results),
                        extra={"job": plan.run_id},
                    )
                return
            self._unsaved.discard(plan.run_id)
            if client.finished:
                self._store.move(plan.run_id, lifecycle.FINISH)

    def _finish_or_tell(self, client: Client) -> None:
        """Store the result; tell if that fails, for example without the state of a horizon."""
        try:
            self._finish(client)
        except LedgerError as error:  # other jobs of this silo must go on
            self._tell_once("the result cannot be kept", client.plan.run_id, error)

    def _show(self, client: Client, noise: str) -> None:
        """Note and write the periods that were released since the last call."""
        plan, frames = client.plan, [to_bytes(released.words) for released in client.sums]
        assert plan.horizon is not None
        if self._shown.get(plan.run_id, 0) == len(frames):
            return
        # Noted first: a ledger from a copy would send a period again.
        stored = Periods.of(self._site, plan)
        stored.note(frames, periods.sent_of(self._ledger, plan.run_id))
        horizon = Horizon(plan, plan.horizon)
        folder = HorizonFolder(self._results / plan.run_id, horizon, self._site.schema)
        folder.publish(frames, noise)
        signed = self._attested(plan)(*horizon.signed_parts(frames))
        signed.save(folder.path / (RELEASES + SUFFIX))
        self._shown[plan.run_id] = len(frames)

    def _stopped_before_slot(self, job: str, frame: bytes, asked_at: float) -> bool:
        """Delay an upload to a multiple of the plan's slot, independent of its computing time."""
        # The time of an upload could depend on the records; a slot hides all but its number.
        plan = self._clients[job].plan
        slot = plan.upload_slot
        if not slot or decode(plan, frame).kind != FrameKind.UPLOAD:
            return False
        now = time.time()
        due = (asked_at // slot + 1) * slot
        if due < now:  # too slow for this slot: the next one
            due = (now // slot + 1) * slot
        return self._wait(due - now)

    # Ends ------------------------------------------------------------------------------------

    def _ended(self, message: Message) -> None:
        """Handle the coordinator's message that no request of this job will follow."""
        final, reason = _read_end(message)
        convicted = self._convict(message)
        if convicted and final == SiloState.FAILED:
            reason = f"{reason} {self._lost_to(message.job, convicted)}"
        self._ends[message.job] = final, reason
        self._end(message.job)

    def _convict(self, message: Message) -> dict[str, str]:
        """Keep the offences whose evidence holds; return them by silo."""
        known, found = self._store.get(message.job), {}
        claims = _read_convictions(message)
        if not claims or known is None or known.state not in GRANTED:
            return {}
        with suppress(Exception):  # without its answers in the job this silo can verify nothing
            client = self._client(message.job)
            fingerprints = dict(zip(client.plan.silos, client.plan.fingerprints, strict=False))
            for one in claims:
                if one.silo == self.name:
                    _log.error("this silo is accused: %s", one, extra={"job": message.job})
                elif one.silo in fingerprints and client.is_proved(one):
                    self._store.convict(fingerprints[one.silo], one.silo, message.job, str(one))
                    self._audit.write("convicted", job=message.job, silo=one.silo, reason=str(one))
                    _log.error("convicted: %s", one, extra={"job": message.job})
                    found[one.silo] = str(one)
        return found

    def _lost_to(self, job: str, convicted: Mapping[str, str]) -> str:
        """Return the sentence on the budget that a job without a result cost."""
        plan = self._clients[job].plan
        rounds = next((len(one.rounds) for one in self._ledger.jobs() if one.job == job), 0)
        # The first period of a horizon spends its whole price.
        spent = (
            ComposedEvent(tuple(plan.event(t) for t in range(rounds)))
            if plan.horizon is None
            else plan.events()
        )
        names, offences = ", ".join(map(repr, convicted)), "; ".join(convicted.values())
        if plan.budget is None or not rounds:
            return f"Nothing was charged. Convicted: {offences}."
        epsilon = accounting.epsilon(spent, plan.budget.delta)
        return f"Epsilon {epsilon:.3g} of this silo is lost to {names}: {offences}."

    def _end(self, job: str) -> None:
        with self._ending:
            known = self._store.get(job)
            if known is None or known.state not in OPEN:
                self._ends.pop(job, None)
                return
            final, reason = self._ends[job]
            whole = (self._results / job / MODEL).is_file()
            if final == SiloState.DONE:
                # Not if this very process approved it, and was never asked for a frame.
                whole = known.state != SiloState.APPROVED or job in self._granted_before
                if self._is_unsaved(job):
                    return
                if self._store.state(job) != SiloState.FINISHED:
                    final = SiloState.FAILED
                    reason = "the job is done, but this silo did not receive all of its messages."
            if final == SiloState.FAILED and job in self._troubles:
                reason = f"{reason} At this silo: {self._troubles[job]}"
            step = lifecycle.CLOSES[final]
            self._store.move(job, step, reason=reason, by=known.decided_by or "coordinator")
            del self._ends[job]
            self._forget(job, whole=whole)
        self._note()

    def _is_unsaved(self, job: str) -> bool:
        """Return True if a result exists that still cannot be written."""
        client = None
        with suppress(Exception):  # a crash came between the last answer and its result
            client = self._client(job)
        if client is None or not client.finished:
            return False
        self._finish_or_tell(client)
        return self._store.state(job) == SiloState.RUNNING

    def _forget(self, job: str, *, whole: bool = False) -> None:
        """Delete the stored answers of a job; release its unused budget unless `whole`.

        If rounds may have been sent that the ledger does not record, no budget is released.
        """
        self._clients.pop(job, None)
        self._plans.pop(job, None)
        self._troubles.pop(job, None)
        self._unsaved.discard(job)
        self._shown.pop(job, None)
        self._frozen.pop(job, None)
        periods.forget(self._site, job)
        self._over[job] = whole or job in self._ran_before
        self._close_over()

    def _close_over(self) -> None:
        """Close ended jobs in the ledger; jobs that a full disk leaves open are closed later."""
        for job, whole in list(self._over.items()):
            close_job(self._ledger, job, whole=whole)
            self._over.pop(job, None)

    def _catch_up(self) -> None:
        """Repeat work that failed when it was due."""
        for client in list(self._clients.values()):
            if client.finished or client.plan.horizon is not None:
                self._finish_or_tell(client)
        for job in list(self._ends):
            self._end(job)
        self._close_over()

    def _settle(self) -> None:
        """Complete work that a crash interrupted: no ended job keeps a reservation."""
        states = self._store.states()
        for record in self._ledger.jobs(self._dataset):
            state = states.get(record.job)
            if record.is_open and state not in (None, *OPEN):
                self._over[record.job] = record.job in self._ran_before
            elif record.is_open and state == SiloState.RUNNING:
                known = self._store.get(record.job)
                assert known is not None
                if len(record.rounds) == self._plan(known).rounds:
                    self._is_unsaved(record.job)
        for path in periods.states(self._site):
            if states.get(path.stem) not in OPEN:
                periods.forget(self._site, path.stem)
        self._close_over()
        self._note()

    def _note(self) -> None:
        """Write every change of state to the audit file, including those by owner's commands."""
        with self._noting:
            for job in self._store.unreported():
                if job.state == SiloState.WITHDRAWN:
                    self._forget(job.id)
                self._audit.write(
                    job.state.value,
                    job=job.id,
                    silo=self.name,
                    by=job.decided_by,
                    reason=job.reason,
                )
                _log.info("job is %s", job.state.value, extra={"job": job.id})
                self._store.note(job)
                if job.state == SiloState.WAITING:
                    self._on_waiting(job)

    def _plan(self, job: Job) -> Plan:
        if job.id not in self._plans:
            try:
                self._plans[job.id] = Plan.from_dict(json.loads(job.plan), self._tasks)
            except (ValueError, PlanError) as error:
                raise LedgerError(
                    f"the plan of job {job.id} was changed in the file of jobs; restore its copy."
                ) from error
        return self._plans[job.id]

    def _tell_locally(self, what: str, job: str, error: Exception) -> None:
        """Log the reason of a local error, without text that could come from a record.

        The owner reads it with the job, too; it is not sent.
        """
        why = str(error) if isinstance(error, CloisterError) else place_of(error)
        self._troubles[job] = why
        _log.error("%s: %s", what, why, extra={"job": job})

    def _tell_once(self, what: str, job: str, error: CloisterError) -> None:
        """Log an error that each poll meets again."""
        if self._troubles.get(job) != str(error):
            self._tell_locally(what, job, error)


def close_job(ledger: Ledger, job: str, *, whole: bool = False) -> None:
    """Close a job in the ledger, if present; charge the rounds that were sent, or the `whole`."""
    if any(record.job == job for record in ledger.jobs()):
        ledger.close(job, whole=whole)
        ledger.forget_frames(job)


# Messages ----------------------------------------------------------------------------------------


def _read_offer(
    message: Message, tasks: Mapping[str, type[Task]]
) -> tuple[Plan, Mapping[str, Any], float | None]:
    """Return plan, proposer and time of an offer; raise PlanError if it is malformed."""
    try:
        if len(message.body) > MAX_PLAN_MODEL + _ENVELOPE:
            raise PlanError(f"it has {len(message.body)} bytes.")
        document = message.fields()
        plan = Plan.from_dict(document["plan"], tasks)
        plan.check_network()
        given = document.get("proposer") or {}
        if not isinstance(given, dict):
            raise PlanError("proposer must be a table of name, fingerprint, public and signature.")
        proposer = {name: printable(given.get(name, "")) for name in _PROPOSER} if given else {}
        asked_at = None if document.get("time") is None else float(document["time"])
    except PlanError as error:
        raise PlanError(f"the plan cannot be read: {error}") from None
    except Exception:  # whatever a stranger's document does to the reader
        raise PlanError("the plan cannot be read; use the same version at every party.") from None
    if plan.run_id != message.job:
        raise PlanError(f"the plan is for job {plan.run_id}, but was offered as job {message.job}.")
    return plan, proposer, asked_at


def _brief(plan: Plan) -> str:
    return summary_row(plan.to_dict(), plan.digest)


def _same_study(kept: str, name: str) -> bool:
    """Return True if a name in the ledger denotes this study."""
    # A ledger may hold names from before the rule for names.
    try:
        return study_name(kept) == name
    except PlanError:
        return False


def _read_end(message: Message) -> tuple[SiloState, str]:
    """Return the final state of a job and the coordinator's reason."""
    try:
        document = message.fields()
        status, reason = document.get("status"), printable(document.get("reason") or "")
    except TransportError:
        status, reason = "failed", "the coordinator gave no reason."
    final = {
        "done": SiloState.DONE,
        "cancelled": SiloState.CANCELLED,
        "declined": SiloState.DECLINED_ELSEWHERE,
    }
    return final.get(str(status), SiloState.FAILED), reason


def _read_convictions(message: Message) -> list[Conviction]:
    """Return the offences that the coordinator claims; they are not verified yet."""
    try:
        claims = message.fields().get("convictions") or []
        return [Conviction.from_dict(claim) for claim in claims[:_MOST_CONVICTIONS]]
    except (TransportError, ProtocolError, TypeError, KeyError):
        return []


def _decision(job: Job) -> Message:
    if job.state in GRANTED:
        return Message(Kind.DECISION, 0, job.id, in_json(decision="approved", reason=""))
    reason = job.reason
    if job.state == SiloState.WITHDRAWN:
        reason = "withdrawn by its owner."
    elif job.state != SiloState.DECLINED:
        reason = f"the job is {job.state.value} here; submit it as a new job."
    return _declined(job.id, reason)


def _declined(job: str, reason: str) -> Message:
    return Message(Kind.DECISION, 0, job, in_json(decision="declined", reason=reason))


def _save(result: Release, folder: Path, attest: Callable[[bytes, bytes], Attestation]) -> None:
    """Write the model completely or not at all, after its words and the signature over both."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = folder / f".{MODEL}.new"
    result.save(fresh)
    attest(fresh.read_bytes(), words_file(fresh).read_bytes()).save(folder / (MODEL + SUFFIX))
    for made, name in ((words_file(fresh), words_file(folder / MODEL)), (fresh, folder / MODEL)):
        # Flushed before it is renamed: after a power loss, the name must not point to missing data.
        with open(made, "rb") as written:
            os.fsync(written.fileno())
        made.replace(name)
