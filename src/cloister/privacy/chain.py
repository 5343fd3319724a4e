"""What the entries of a ledger mean: a hash chain, and its replay. No file, no clock, no decision.

:mod:`ledger` decides what may be appended and keeps the chain on disk. Here the chain is only
read: :class:`State` is a pure function of its entries, and refuses a chain that could not have
been written.
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
    Mechanism,
    RepeatedEvent,
    mechanism_counts,
)
from cloister.privacy.filter import Cost, Limits, PricingRule, Split, total
from cloister.privacy.packages import read_event

# 1 had no answers, secrets and heads of peers; 2 had no statements and no recovered jobs.
FORMAT = 3
BEFORE_FIRST = "0" * 64
STATEMENT_LABEL = b"cloister/1/statement"


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
    """What a silo says of its ledger in a job: where it stands, and what the job may cost.

    Parameters
    ----------
    plan : str, 64 hexadecimal digits
        Digest of the job's plan.
    events : Event
        The whole reservation of the job.
    head : str, 64 hexadecimal digits
        The last entry when this was said.
    height : int, >= 0
        Puts the statements of a silo in order: see :class:`State`.
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
        """The one JSON text that is signed: that of :func:`canonical`."""
        told = (field.name for field in fields(self) if field.name != "events")
        texts = {name: canonical(getattr(self, name)) for name in told}
        texts["events"] = _text_of(self.events)
        return "{" + ",".join(f'"{name}":{texts[name]}' for name in sorted(texts)) + "}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the statement with this text."""
        try:
            fields = json.loads(text)
            said = cls(**{**fields, "events": read_event(fields["events"])})
            texts = (said.dataset, said.study, said.job, said.plan, said.head)
            heads = (bytes.fromhex(said.plan), bytes.fromhex(said.head))
            if not all(isinstance(text, str) for text in texts) or type(said.height) is not int:
                raise ValueError("names are texts, a height is a number")
            if {len(head) for head in heads} != {32} or not 0 <= said.height < 2**63:
                raise ValueError("a digest has 32 bytes, a height is below 2^63")
            if said.text != text:
                raise ValueError("a statement has one text")
        except Exception as error:  # whatever a stranger's text does to the reader
            raise LedgerError("a statement cannot be read; ask for it again.") from error
        return said


@dataclass(frozen=True)
class SignedStatement:
    """The text of a statement, and the signature of the silo that made it.

    Nothing is verified before :meth:`genuine` is asked.
    """

    text: str
    signature: bytes
    public: bytes

    @classmethod
    def of(cls, said: Statement, identity: Identity) -> Self:
        """Sign a statement."""
        return cls(
            text := said.text, identity.sign(STATEMENT_LABEL, text.encode()), identity.public
        )

    @classmethod
    def about(cls, said: Statement, signature: bytes, public: bytes) -> Self:
        """Return what somebody else signed, where the statement is known before its text."""
        signed = cls(said.text, signature, public)
        vars(signed)["said"] = said  # a text of thousands of rounds is not read in each of them
        return signed

    @property
    def genuine(self) -> bool:
        """Whether the owner of the key signed the text."""
        return verify(self.public, self.signature, STATEMENT_LABEL, self.text.encode())

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key."""
        return fingerprint_of(self.public)

    @cached_property
    def said(self) -> Statement:
        """The statement; raises LedgerError if the text is that of none."""
        return Statement.read(self.text)


@dataclass(frozen=True)
class JobRecord:
    """What the ledger knows of a job.

    Parameters
    ----------
    events : Event
        Everything that was reserved.
    rounds : tuple of int
        Rounds that were committed.
    charged : ComposedEvent
        What counts as spent: the whole reservation while the job is open, then what it committed.
    reserved_at : str
        When, in UTC, as ISO 8601 text by the owner's clock.
    tariff : PricingRule
        How its mechanisms are charged to the limits of the data set.
    cost : Cost
        What it is charged.
    """

    job: str
    dataset: str
    study: str
    events: Event
    rounds: tuple[int, ...]
    charged: ComposedEvent
    is_open: bool
    reserved_at: str
    tariff: PricingRule
    cost: Cost


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=100)
def _text_of(events: Event) -> str:
    """Return the canonical text of events, which every statement in every round of a job has."""
    return canonical(events.to_dict())


def link(text: str, previous: str = "") -> str:
    """Return the hash of a link in a chain.

    The ledger hashes the previous hash and then the entry; a line of the audit file names the
    previous hash itself. No link can be changed, removed or moved without changing all after it.
    """
    return hashlib.sha256(bytes.fromhex(previous) + text.encode()).hexdigest()


@dataclass
class Dataset:
    """A data set, its unit of privacy, its caps and how they are cut into limits."""

    unit: str
    cap: Budget
    split: Split
    study_epsilons: dict[str, float] = field(default_factory=dict)

    @property
    def tariff(self) -> PricingRule:
        """By what a job is charged of which nobody chose a tariff before it began."""
        return PricingRule("apart" if self.split.pure else "covered")

    def limits(self, epsilon: float = math.inf) -> Limits:
        """Return the limits of the lifetime cap, or of a smaller cap that is a part of it."""
        return Limits(Budget(min(epsilon, self.cap.epsilon), self.cap.delta), self.split)


@dataclass(frozen=True)
class Charge:
    """What one round cost, and the keyed tag of the frame that left."""

    event: Event
    frame_tag: str


@dataclass
class Job:
    """A reservation and what became of it; ``unspent`` and ``spent`` add up to ``events``."""

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

    def covers(self, event: Event) -> bool:
        """Return whether ``event`` lies within what is left of the reservation."""
        return all(n <= self.unspent[e] for e, n in mechanism_counts(event).items())

    @property
    def charged(self) -> Counter[Mechanism]:
        """What counts as spent: all of it while the job is open, then what was committed."""
        return self.spent + self.unspent if self.is_open else self.spent

    def spend_all(self) -> None:
        """End the job with all that was reserved counted as spent."""
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
    """The chain, replayed: a pure function of its entries.

    ``seq``, ``head`` and ``at`` are the number, hash and time of the last entry; ``latest`` is the
    latest time of all, or of those since the owner set the clock right; ``heads`` has the number of
    every hash so far. ``height`` counts entries and passes every statement that the chain has taken
    in again, as a Lamport clock does: so a later statement has a larger one, also after entries
    were lost. ``heights`` has that of each hash of the chain and of those statements.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.head = BEFORE_FIRST
        self.at = self.latest = ""
        self.heads: dict[str, int] = {}
        self.height = 0
        self.heights: dict[str, int] = {}
        self.datasets: dict[str, Dataset] = {}
        self.jobs: dict[str, Job] = {}
        self._totals: dict[tuple[str, str], Counter[Mechanism]] = {}
        self._contents: dict[str, list[str]] = {}

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
        """Return everything that counts as spent on a data set, or by one study on it."""
        total: Counter[Mechanism] = Counter()
        for (of_dataset, of_study), counts in self._totals.items():
            if of_dataset == dataset and study in (None, of_study):
                total.update(counts)
        return composed(total)

    def cost(self, dataset: str, study: str | None = None, year: int | None = None) -> Cost:
        """Return what a data set's jobs are charged: all, or those of a study or calendar year."""
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
        """Add one entry, after checking its link to the chain and that it is possible here."""
        try:
            if entry.seq != self.seq + 1 or entry.hash != link(entry.body, self.head):
                raise LedgerError(f"entry {self.seq + 1} was changed, removed or moved.")
            fields = entry.fields
            self.at = fields.pop("at")
            datetime.fromisoformat(self.at)
            self.latest = max(self.latest, self.at)
            getattr(self, f"_apply_{fields.pop('kind')}")(**fields)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise LedgerError(f"entry {self.seq + 1} could not have been written.") from error
        self.seq, self.head = entry.seq, entry.hash
        self.heads[entry.hash] = entry.seq
        self.height += 1
        self.heights[entry.hash] = self.height

    def _apply_ledger(self, format: int, nonce: str) -> None:
        if self.seq or not 1 <= format <= FORMAT or len(nonce) != 32:
            raise ValueError("the first entry, and no other, names the format and a nonce")

    def _apply_dataset(
        self,
        dataset: str,
        unit: str,
        cap: dict[str, float],
        split: dict[str, float] | None = None,
    ) -> None:
        if not self.seq or dataset in self.datasets:
            raise ValueError("a data set is opened once, after the first entry")
        budget = Budget(**cap)
        # An entry that was written before there were limits has no split.
        cut = Split.default(budget) if split is None else Split(**split)
        self.datasets[dataset] = Dataset(unit, budget, cut)

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
            raise ValueError("a job is reserved once, on a known data set")
        # without one it was written before there were limits: its history is kept all the same
        by = self.datasets[dataset].tariff if tariff is None else PricingRule.from_dict(tariff)
        self._reserve(job, dataset, study, read_event(events), by, content)
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
        known = Job(job, dataset, study, events, content, self.at, tariff, cost, counts)
        self.jobs[job] = known
        self._totals.setdefault((dataset, study), Counter()).update(counts)
        return known

    def _apply_charge(self, job: str, round: int, event: dict[str, Any], frame: str) -> None:
        known, done = self.jobs[job], read_event(event)
        if round in known.rounds or not known.is_open or not known.covers(done):
            raise ValueError("a round is charged once, within the reservation")
        counts = mechanism_counts(done)
        known.rounds[round] = Charge(done, frame)
        known.unspent.subtract(counts)
        known.spent.update(counts)

    def _apply_close(self, job: str, whole: bool = False) -> None:
        known = self.jobs[job]
        if not known.is_open:
            raise ValueError("a job is closed once")
        if whole:
            known.spend_all()
            return
        known.is_open = False
        known.cost = known.tariff.cost(composed(known.spent))
        self._totals[known.dataset, known.study].subtract(known.unspent)

    def _apply_recover(self, statement: str, signature: str, public: str) -> None:
        if not SignedStatement(statement, bytes.fromhex(signature), bytes.fromhex(public)).genuine:
            raise ValueError("only what the silo signed is recovered")
        said = Statement.read(statement)
        counts = Counter(mechanism_counts(said.events))
        known = self.jobs.get(said.job)
        if known is None:
            # not by what is cheapest now: who chooses a tariff after the job passes the cap
            by = self.dataset(said.dataset).tariff
            known = self._reserve(said.job, said.dataset, said.study, said.events, by)
        elif known.dataset != said.dataset or Counter(mechanism_counts(known.events)) != counts:
            raise ValueError("a job has one reservation")
        elif not known.is_open:  # what it did not use was returned
            self._totals[known.dataset, known.study].update(known.unspent)
        known.spend_all()
        self.height = max(self.height, said.height)
        self.heights[said.head] = said.height

    def _apply_clock(self) -> None:
        # Entries of a later time were written by a clock that was wrong, says the owner.
        self.latest = self.at

    def _apply_copied(self) -> None:
        # What the original commits after this is unknown here, so all that it may commit is spent.
        if not self.seq:
            raise ValueError("only a ledger can be copied")
        for job in self.jobs.values():
            if job.is_open:
                job.spend_all()


def composed(counts: Counter[Mechanism]) -> ComposedEvent:
    """Return counted mechanisms as one event."""
    return ComposedEvent(tuple(RepeatedEvent(e, n) for e, n in counts.items() if n > 0))
