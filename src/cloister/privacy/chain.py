"""The entries of a ledger: a hash chain and its replay, without file, clock or decision.

:mod:`ledger` decides on new entries and stores the chain on disk. This module only reads the chain.
:class:`State` is a pure function of its entries, and raises for a chain that no ledger writes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, Self

from cloister.core.errors import LedgerError
from cloister.hazmat.signing import Identity, fingerprint_of, verify
from cloister.privacy.budget import Budget
from cloister.privacy.events import (
    ComposedEvent,
    Event,
    HorizonEvent,
    Mechanism,
    RepeatedEvent,
    mechanism_counts,
)
from cloister.privacy.filter import Cost, Limits, PricingRule, Split, total
from cloister.privacy.packages import read_event

# Format 1 had no answers, secrets and heads of peers; 2 had no statements and no recovered jobs.
FORMAT = 3
BEFORE_FIRST = "0" * 64
STATEMENT_LABEL = b"cloister/1/statement"
# Kinds of entries that an older copy may lack: without them it has at least the same costs.
_RETURNED = ("ledger", "reserve", "close", "copied")


@dataclass(frozen=True)
class Entry:
    """One link of the chain.

    Parameters
    ----------
    seq : int, from 1
    body : str
        Canonical JSON: an object with ``kind``, ``at`` (UTC) and the fields of that kind.
    hash : str, 64 hexadecimal digits
        SHA-256 of the previous entry's 32 bytes (32 zero bytes before the first) and ``body``.
    """

    seq: int
    body: str
    hash: str

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON object of the entry."""
        fields: dict[str, Any] = json.loads(self.body)
        return fields


@dataclass(frozen=True)
class Statement:
    """A silo's statement on its ledger in a job: the last entry, and the cost of the job.

    Parameters
    ----------
    plan : str, 64 hexadecimal digits
        Digest of the job's plan.
    events : Event
        The whole reservation of the job.
    head : str, 64 hexadecimal digits
        The last entry at the time of the statement.
    height : int, >= 0
        Orders the statements of a silo; see :class:`State`.
    """

    dataset: str
    study: str
    job: str
    plan: str
    events: Event
    head: str
    height: int

    @cached_property
    def text(self) -> str:
        """The signed JSON text, equal to that of :func:`canonical`."""
        names = (field.name for field in fields(self) if field.name != "events")
        texts = {name: canonical(getattr(self, name)) for name in names}
        # Joined by hand, since the events of a job have one long text in each of its rounds.
        texts["events"] = _text_of(self.events)
        return "{" + ",".join(f'"{name}":{texts[name]}' for name in sorted(texts)) + "}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the statement with this text."""
        try:
            fields = json.loads(text)
            statement = cls(**{**fields, "events": read_event(fields["events"])})
            names = (statement.dataset, statement.study, statement.job)
            digests = (statement.plan, statement.head)
            texts, height = (*names, *digests), statement.height
            lengths = {len(bytes.fromhex(digest)) for digest in digests}
            if not all(isinstance(text, str) for text in texts) or type(height) is not int:
                raise ValueError("names must be texts, and a height a number")
            # SQLite stores signed integers of 64 bits.
            if lengths != {32} or not 0 <= height < 2**63:
                raise ValueError("a digest must have 32 bytes, and a height be below 2^63")
            # Another text of the same values would need another signature.
            if statement.text != text:
                raise ValueError("the text of a statement must be canonical")
        except Exception as error:  # a text of another party may cause any error
            raise LedgerError("a statement cannot be read; request it again.") from error
        return statement


@dataclass(frozen=True)
class SignedStatement:
    """The text of a statement, and the signature of the silo that made it.

    Only :meth:`genuine` verifies the signature.
    """

    text: str
    signature: bytes
    public: bytes

    @classmethod
    def of(cls, said: Statement, identity: Identity) -> Self:
        """Return a statement with its signature by an identity."""
        return cls(
            text := said.text, identity.sign(STATEMENT_LABEL, text.encode()), identity.public
        )

    @classmethod
    def about(cls, said: Statement, signature: bytes, public: bytes) -> Self:
        """Return a statement with the signature of another party, if the statement is known."""
        signed = cls(said.text, signature, public)
        vars(signed)["said"] = said  # parsing the text of thousands of rounds in each is slow
        return signed

    @property
    def genuine(self) -> bool:
        """True if the owner of the key signed the text."""
        return verify(self.public, self.signature, STATEMENT_LABEL, self.text.encode())

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key."""
        return fingerprint_of(self.public)

    @cached_property
    def said(self) -> Statement:
        """The statement; raises LedgerError if the text is not a statement."""
        return Statement.read(self.text)


@dataclass(frozen=True)
class JobRecord:
    """The state of a job in the ledger.

    Parameters
    ----------
    events : Event
        The whole reservation.
    rounds : tuple of int
        Committed rounds.
    charged : ComposedEvent
        The spent events: the whole reservation while the job is open, then the committed rounds.
    reserved_at : str
        Time of the reservation in UTC, as ISO 8601 text by the owner's clock.
    tariff : PricingRule
        Rule that charges its mechanisms to the limits of the data set.
    cost : Cost
        Its charge to these limits.
    """

    job: str
    dataset: str
    study: str
    events: Event = field(repr=False)  # pages of numbers, as are `charged`
    rounds: tuple[int, ...]
    charged: ComposedEvent = field(repr=False)
    is_open: bool
    reserved_at: str
    tariff: PricingRule
    cost: Cost

    @property
    def counts(self) -> bool:
        """False for a job that ended before its first round, such as a declined one."""
        # A recovered job has no round, but its whole reservation is charged.
        return self.is_open or bool(self.charged.events)


def canonical(value: Any) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces, ASCII, no NaN."""
    return _CANONICAL.encode(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=100)
def _text_of(events: Event) -> str:
    """Return the canonical text of events; cached, since every round of a job needs it."""
    return canonical(events.to_dict())


def link(text: str, previous: str = "") -> str:
    """Return the hash of a link in a chain.

    The ledger hashes the previous hash and then the entry. A line of the audit file contains the
    previous hash. Any change, removal or move of a link changes all later hashes.
    """
    return hashlib.sha256(bytes.fromhex(previous) + text.encode()).hexdigest()


@dataclass
class Dataset:
    """A data set with its unit of privacy, its caps and their split into limits."""

    unit: str
    cap: Budget
    split: Split
    study_epsilons: dict[str, float] = field(default_factory=dict)

    @property
    def tariff(self) -> PricingRule:
        """Tariff of a job without a tariff that was fixed before it began."""
        # A function of the split alone, so that no result can influence it.
        return PricingRule("apart" if self.split.pure else "covered")

    def limits(self, epsilon: float = math.inf) -> Limits:
        """Return the limits of the lifetime cap, or of a smaller cap within it."""
        return Limits(Budget(min(epsilon, self.cap.epsilon), self.cap.delta), self.split)


@dataclass(frozen=True)
class Charge:
    """The event of a committed round, and the keyed tag of its frame."""

    event: Event
    frame_tag: str


@dataclass
class Job:
    """A reservation and its use; ``unspent`` and ``spent`` add up to ``events``."""

    job: str
    dataset: str
    study: str
    events: Event
    content: str | None
    reserved_at: str
    tariff: PricingRule
    cost: Cost
    unspent: Counter[Mechanism]
    spent: Counter[Mechanism] = field(default_factory=Counter)
    rounds: dict[int, Charge] = field(default_factory=dict)
    is_open: bool = True
    height: int = 0  # of the entry before the reservation
    # Height of the entry before a close without an answer, so that no statement on it was signed.
    unanswered_at: int | None = None

    def covers(self, event: Event, round: int) -> bool:
        """Return True if the rest of the reservation contains ``event``, as that of a round."""
        # Each period of a horizon is a round with the event of the whole, which is spent once.
        if isinstance(self.events, HorizonEvent):
            return event == self.events and 0 <= round < self.events.periods
        return all(n <= self.unspent[e] for e, n in mechanism_counts(event).items())

    @property
    def charged(self) -> Counter[Mechanism]:
        """The spent events: the whole reservation while the job is open, then its rounds."""
        return self.spent + self.unspent if self.is_open else self.spent

    def spend_all(self) -> None:
        """End the job, and count its whole reservation as spent."""
        self.is_open = False
        self.spent.update(self.unspent)
        self.unspent.clear()
        self.cost = self.tariff.cost(self.events)

    def record(self) -> JobRecord:
        """Return the job as a frozen value."""
        return JobRecord(
            job=self.job,
            dataset=self.dataset,
            study=self.study,
            events=self.events,
            rounds=tuple(sorted(self.rounds)),
            charged=composed(self.charged),
            is_open=self.is_open,
            reserved_at=self.reserved_at,
            tariff=self.tariff,
            cost=self.cost,
        )


class State:
    """The replayed chain: a pure function of its entries.

    ``seq``, ``head`` and ``at`` are the number, hash and time of the last entry. ``latest`` is the
    latest time of all entries, or of those since the owner confirmed the clock. ``heads`` has the
    number of every hash so far.

    ``height`` counts entries as a Lamport clock: it is at least the height of every recovered
    statement. A later statement therefore has a larger height, even after entries were lost.
    ``heights`` has the height of each hash of the chain and of those statements.
    ``charged_since_copy`` is True if a round was charged after the entry of the last backup.
    ``kept`` is the height of the last entry without which more could be spent: a charge, a data
    set, a cap. Without a reservation or a close, nothing more can be spent.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.head = BEFORE_FIRST
        self.at = self.latest = ""
        self.heads: dict[str, int] = {}
        self.height = 0
        self.heights: dict[str, int] = {}
        self.charged_since_copy = False
        self.kept = 0
        self._recovered: set[tuple[str, str]] = set()  # head and job of each recovered statement
        self.datasets: dict[str, Dataset] = {}
        self.jobs: dict[str, Job] = {}
        self._totals: dict[tuple[str, str], Counter[Mechanism]] = {}
        self._contents: dict[str, list[str]] = {}

    def contains(self, statement: Statement) -> bool:
        """Return True if the chain has the entries up to a statement, or recovered its job."""
        # Two jobs may be signed for at one head, so a recovered head stands for one job only.
        if (statement.head, statement.job) in self._recovered:
            return True
        # A job that is closed as unanswered was answered by a later ledger, which this one lacks.
        job = self.jobs.get(statement.job)
        return statement.head in self.heads and (job is None or job.unanswered_at is None)

    def shown_above(self, signed: int) -> int:
        """Return the height above which a peer must show statements.

        `signed` is the height of the newest head that the peer signed. The chain has the jobs of
        all statements up to it, except jobs that were closed as unanswered after that head. Of
        those the peer must show every statement since their reservation.
        """
        unanswered = (
            job.height
            for job in self.jobs.values()
            if job.unanswered_at is not None and job.unanswered_at >= signed
        )
        return min([signed, *unanswered])

    def dataset(self, name: str) -> Dataset:
        """Return a data set, or raise LedgerError if it was never opened."""
        if name not in self.datasets:
            raise LedgerError(f"data set {name!r} is not in the ledger; open it with a cap first.")
        return self.datasets[name]

    def job(self, name: str) -> Job:
        """Return a job, or raise LedgerError if it was never reserved."""
        if name not in self.jobs:
            raise LedgerError(f"job {name!r} is not in the ledger; reserve its budget first.")
        return self.jobs[name]

    def charged(self, dataset: str, study: str | None = None) -> ComposedEvent:
        """Return the spent events of a data set, or of one study on it."""
        total: Counter[Mechanism] = Counter()
        for (of_dataset, of_study), counts in self._totals.items():
            if of_dataset == dataset and study in (None, of_study):
                total.update(counts)
        return composed(total)

    def cost(self, dataset: str, study: str | None = None, year: int | None = None) -> Cost:
        """Return the charges of a data set's jobs: all, or those of a study or calendar year."""
        # Times are ISO texts, so the year is a prefix.
        at = "" if year is None else f"{year:04d}-"
        return total(
            job.cost
            for job in self.jobs.values()
            if job.dataset == dataset
            and study in (None, job.study)
            and job.reserved_at.startswith(at)
        )

    def other_owner(self, tag: str | None, dataset: str) -> str | None:
        """Return another data set that has this content, unless ``dataset`` has it too."""
        owners = [] if tag is None else self._contents.get(tag, [])
        return None if dataset in owners else next(iter(owners), None)

    def apply(self, entry: Entry) -> None:
        """Add one entry. Raise if its link to the chain is wrong, or the rules forbid it here."""
        try:
            if entry.seq != self.seq + 1 or entry.hash != link(entry.body, self.head):
                raise LedgerError(f"entry {self.seq + 1} was changed, removed or moved.")
            fields = entry.fields
            self.at = fields.pop("at")
            datetime.fromisoformat(self.at)
            self.latest = max(self.latest, self.at)  # all in UTC, so texts are in order of time
            kind = fields.pop("kind")
            getattr(self, f"_apply_{kind}")(**fields)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise LedgerError(f"entry {self.seq + 1} could not have been written.") from error
        self.seq, self.head = entry.seq, entry.hash
        self.heads[entry.hash] = entry.seq
        self.height += 1
        self.heights[entry.hash] = self.height
        if kind not in _RETURNED or fields.get("whole"):
            self.kept = self.height

    def _apply_ledger(self, format: int, nonce: str) -> None:
        if self.seq or not 1 <= format <= FORMAT or len(nonce) != 32:
            raise ValueError("only the first entry has the format and a nonce")

    def _apply_dataset(
        self,
        dataset: str,
        unit: str,
        cap: dict[str, float],
        split: dict[str, float] | None = None,
    ) -> None:
        if not self.seq or dataset in self.datasets:
            raise ValueError("a data set must be opened once, after the first entry")
        budget = Budget(**cap)
        # Entries of versions without limits have no split.
        shares = Split.default(budget) if split is None else Split(**split)
        self.datasets[dataset] = Dataset(unit, budget, shares)

    def _apply_cap(self, dataset: str, cap: dict[str, float]) -> None:
        self.datasets[dataset].cap = Budget(**cap)

    def _apply_study_cap(self, dataset: str, study: str, epsilon: float) -> None:
        self.datasets[dataset].study_epsilons[study] = epsilon

    def _apply_reserve(
        self,
        dataset: str,
        study: str,
        job: str,
        events: dict[str, Any],
        content: str | None,
        confirmed: bool,
        tariff: dict[str, Any] | None = None,
    ) -> None:
        if job in self.jobs or dataset not in self.datasets:
            raise ValueError("a job must be reserved once, on a known data set")
        # Entries of versions without limits have no tariff, and must still be readable.
        rule = self.datasets[dataset].tariff if tariff is None else PricingRule.from_dict(tariff)
        self._reserve(job, dataset, study, read_event(events), rule, content)
        if content is not None:
            owners = self._contents.setdefault(content, [])
            if dataset not in owners:
                owners.append(dataset)

    def _reserve(
        self,
        job: str,
        dataset: str,
        study: str,
        events: Event,
        tariff: PricingRule,
        content: str | None = None,
    ) -> Job:
        counts, cost = Counter(mechanism_counts(events)), tariff.cost(events)
        reserved = Job(
            job, dataset, study, events, content, self.at, tariff, cost, counts, height=self.height
        )
        self.jobs[job] = reserved
        # A reservation already counts as spent, so that two jobs cannot use the same budget.
        self._totals.setdefault((dataset, study), Counter()).update(counts)
        return reserved

    def _apply_charge(self, job: str, round: int, event: dict[str, Any], frame: str) -> None:
        charged, done = self.jobs[job], read_event(event)
        if round in charged.rounds or not charged.is_open or not charged.covers(done, round):
            raise ValueError("a round must be charged once, within the reservation")
        counts = mechanism_counts(done)
        if isinstance(charged.events, HorizonEvent) and charged.rounds:
            counts = {}  # the first period has spent the whole price
        charged.rounds[round] = Charge(done, frame)
        self.charged_since_copy = True
        # Totals do not change: the reservation already counts as spent.
        charged.unspent.subtract(counts)
        charged.spent.update(counts)

    def _apply_close(self, job: str, whole: bool = False, unanswered: bool = False) -> None:
        closed = self.jobs[job]
        if not closed.is_open or (unanswered and (whole or closed.rounds)):
            raise ValueError("a job must be closed once, and unanswered only without rounds")
        closed.unanswered_at = self.height if unanswered else None
        if whole:
            closed.spend_all()
            return
        closed.is_open = False
        closed.cost = closed.tariff.cost(composed(closed.spent))
        self._totals[closed.dataset, closed.study].subtract(closed.unspent)

    def _apply_recover(self, statement: str, signature: str, public: str) -> None:
        if not SignedStatement(statement, bytes.fromhex(signature), bytes.fromhex(public)).genuine:
            raise ValueError("a recovered statement must have the silo's signature")
        signed = Statement.read(statement)
        counts = Counter(mechanism_counts(signed.events))
        job = self.jobs.get(signed.job)
        if job is None:
            # Not by the cheapest tariff now: a choice after the job would let it exceed the cap.
            rule = self.dataset(signed.dataset).tariff
            job = self._reserve(signed.job, signed.dataset, signed.study, signed.events, rule)
        elif job.dataset != signed.dataset or Counter(mechanism_counts(job.events)) != counts:
            raise ValueError("a job has one reservation")
        elif not job.is_open:  # its unused events were returned, and may have been used since
            self._totals[job.dataset, job.study].update(job.unspent)
        # The lost rounds are unknown, so the whole reservation counts.
        job.spend_all()
        self.height = max(self.height, signed.height)
        self.heights[signed.head] = signed.height
        self._recovered.add((signed.head, signed.job))

    def _apply_clock(self) -> None:
        # The owner confirms that a wrong clock wrote the entries of a later time.
        self.latest = self.at

    def _apply_copied(self) -> None:
        # Later rounds of the original are unknown here, so its whole reservations count as spent.
        if not self.seq:
            raise ValueError("only a ledger can be copied")
        self.charged_since_copy = False
        for job in self.jobs.values():
            if job.is_open:
                job.spend_all()


def composed(counts: Counter[Mechanism]) -> ComposedEvent:
    """Return counted mechanisms as one event."""
    return ComposedEvent(tuple(RepeatedEvent(e, n) for e, n in counts.items() if n > 0))
