"""Broken federations, each of which lacks one sentence of PROTOCOL.md in a function of `src`.

A mutant replaces a text in the source of one function. If that text is not there any more, somebody
changed the function, and the mutant with it; then write it again, it has a meaning that stays.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest


@dataclass(frozen=True)
class Mutant:
    """A function with another text.

    Parameters
    ----------
    name : str
        What the mutant does wrong.
    where : str
        Module, class if any, and function.
    was, becomes : str
        Texts in the source of the function.
    seed : int, None or str
        A seed that catches it. None: a drop-out under :func:`exhaustive.drop_outs` does. "lies":
        :func:`exhaustive.lies` does. "copies": :func:`interleaved.some` does.
    """

    name: str
    where: str
    was: str
    becomes: str
    seed: int | str | None = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the function inside."""
        holder, name, globals_of = _found(self.where)
        original = inspect.unwrap(getattr(holder, name))
        source = textwrap.dedent(inspect.getsource(original))
        assert source.count(self.was) == 1, f"{self.where} does not have {self.was!r} once"
        made: dict[str, Any] = {}
        code = compile(source.replace(self.was, self.becomes), f"<mutant of {self.where}>", "exec")
        exec("from __future__ import annotations", made)
        exec(code, globals_of, made)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holder, name, made[name])
            yield


def _found(where: str) -> tuple[Any, str, dict[str, Any]]:
    """Return the module or class of a function, its name, and the names that it sees."""
    module, _, rest = where.partition(":")
    holder: Any = import_module(f"cloister.{module}")
    globals_of = vars(holder)
    *classes, name = rest.split(".")
    for one in classes:
        holder = getattr(holder, one)
    return holder, name, globals_of


_CLIENT, _KEYS = "protocol.client:Client.", "protocol.keys:KeyAgreement."
_LEDGER, _STATE = "privacy.ledger:Ledger.", "privacy.chain:State."
_AGGREGATOR, _STORE = "protocol.aggregator:Aggregator.", "federation.service.store:Store."

SILO = (
    Mutant(
        "an upload leaves before its charge is durable",
        _CLIENT + "_open",
        "frame = self._journal.commit(",
        "frame = upload; (lambda **_: None)(",
    ),
    Mutant(
        "a retry is masked again, with fresh noise",
        _CLIENT + "_sent",
        "frame = self._journal.frame(self.plan.run_id, t)",
        "self._noise = __import__('cloister.privacy.noise').privacy.noise.DiscreteNoise()\n"
        "    frame = encode(self.plan, self._upload(t))",
        seed=7,
    ),
    Mutant(
        "a second sum of a round is confirmed",
        _CLIENT + "_promise_all",
        "if self._bound[t] != answers[0][1]:",
        "self._bound[t] = answers[0][1]\n    if len(kept) < len(answers):\n"
        "        return answers[-1][1]\n    if False:",
        seed=2013,
    ),
    Mutant(
        "what a silo confirmed is forgotten with its memory",
        _CLIENT + "_promise_all",
        "kept = self._journal.record_all(self.plan.run_id, answers)",
        "kept = (self._bound.get(t, answers[0][1]), answers[-1][1])",
        seed=1,
    ),
    Mutant(
        "shares asked for late are of all members' seeds",
        _CLIENT + "_give_shares",
        "self._masker.shares(t, members, reply.survivors)",
        "self._masker.shares(t, members, reply.survivors if self._pending else members)",
        seed=None,
    ),
    Mutant(
        "survivors are not checked for order, nor for this silo",
        _CLIENT + "_confirm",
        "if survivors != in_order or self.silo not in survivors:",
        "if False:",
        seed=21,
    ),
    Mutant(
        "a sum of few survivors is confirmed",
        _CLIENT + "_confirm",
        "if len(survivors) < self._quorum:",
        "if False:",
        seed=1011,
    ),
    Mutant(
        "a sum that few confirmed is opened",
        _CLIENT + "_check_confirmations",
        "if len(agree) < self._quorum:",
        "if not agree:",
        seed=6,
    ),
    Mutant(
        "a forged confirmation counts",
        _CLIENT + "_checked_confirmation",
        "if not genuine:",
        "if False:",
        seed=6,
    ),
    Mutant(
        "a second roster is accepted",
        _KEYS + "secrets",
        "if self._roster is not None and self._roster != roster:",
        "if False:",
        seed=29,
    ),
    Mutant(
        "keys are made again when they are asked for again",
        _CLIENT + "_answer",
        "return kept or self._promise(frame, encode(self.plan, self._keys.keys()))",
        "return encode(self.plan, self._keys.keys())",
    ),
    Mutant(
        "what peers say of their ledgers is not kept",
        _CLIENT + "_check_confirmations",
        "self._peer_statements = tuple(statements)",
        "self._peer_statements = ()",
    ),
    Mutant(
        "one confirmation that does not count ends the job",
        _CLIENT + "_check_confirmations",
        'faults.append(str(error).rstrip("."))',
        "raise",
        seed=611,
    ),
    Mutant(
        "confirmations carry an answer that is not durable",
        _CLIENT + "_promise",
        "kept = self._journal.record(self.plan.run_id, request, answer)",
        "kept = answer",
        seed=1,
    ),
    Mutant(
        "the tag of a state covers the names in it only",
        _CLIENT + "_state_tag",
        "*self._progress.encoded()]",
        "*self._progress.encoded()[::2]]",
        seed=1025,
    ),
    Mutant(
        "keys may be signed by any member of the plan",
        "protocol.keys:check_keys",
        "if fingerprint_of(keys.identity) != pinned:",
        "if fingerprint_of(keys.identity) not in plan.fingerprints:",
        seed=6008,
    ),
    Mutant(
        "a job that ran before a restart gives its budget back",
        "federation.silo.agent:Agent._forget",
        "self._over[job] = whole or job in self._ran_before",
        "self._over[job] = whole",
        seed=2,
    ),
    Mutant(
        "a silo takes the coordinator's word for an offence",
        _CLIENT + "is_proved",
        "and is_proved(self.plan, agreement.roster, agreement.cohort, conviction)",
        "",
        seed=2,
    ),
    Mutant(
        "a confirmation of another sum counts",
        _CLIENT + "_checked_confirmation",
        "if one.result_hash != digest:",
        "if False:",
        seed=20054,
    ),
)
LEDGER = (
    Mutant(
        "a ledger behind its owner's statements goes on",
        _LEDGER + "_check_claims",
        "if missing := self._missing(connection):",
        "if missing := []:",
        seed=29,
    ),
    Mutant(
        "a charge has no frame",
        _LEDGER + "_commit",
        "connection.execute(ledger_file.INSERT_FRAME, (job, round, frame))",
        "pass",
        seed=1,
    ),
    Mutant(
        "a job is reserved beyond the cap",
        _LEDGER + "reserve",
        "if tariff is None:",
        "tariff = tariff or self._state.dataset(dataset).tariff\n        if tariff is None:",
        seed=8,
    ),
    Mutant(
        "a closed job costs nothing",
        _STATE + "_apply_close",
        "closed.cost = closed.tariff.cost(composed(closed.spent))",
        "closed.cost = Cost()",
        seed=2,
    ),
    Mutant(
        "the last answer to a request counts, not the first",
        _LEDGER + "record_all",
        "stored.append(answer if earlier is None else earlier)",
        "stored.append(answer)",
        seed=1,
    ),
    Mutant(
        "the secret of a job is not kept",
        _LEDGER + "secret",
        "connection.execute(ledger_file.INSERT_SECRET, (job, *row))",
        "pass",
        seed=1,
    ),
    Mutant(
        "a recovered job is not charged",
        _STATE + "_apply_recover",
        "job.spend_all()",
        "job.is_open, job.cost = False, Cost()",
        seed=13,
    ),
    Mutant(
        "a recovered head stands for all jobs that were signed at it",
        _STATE + "contains",
        "if (statement.head, statement.job) in self._recovered:",
        "if any(head == statement.head for head, _ in self._recovered):",
        seed="copies",
    ),
    Mutant(
        "what peers showed stops the first job only",
        _LEDGER + "_check_newest",
        "    self._check_claims(connection)\n    return self._checked_head_file()",
        "    return self._checked_head_file()",
        seed="copies",
    ),
    Mutant(
        "a charge does not write the head beside the ledger",
        _LEDGER + "commit",
        "    self._note_charge(job)\n    return stored",
        "    return stored",
        seed=1,
    ),
    Mutant(
        # Opening moves a head that a crash left behind, and so does each frame: without both.
        "a head that a crash left behind is not moved",
        _LEDGER + "_move_head",
        "self._write_head_file(self._state.head)",
        "pass",
        seed=2013,
    ),
    Mutant(
        "answers after one that was refused are recorded",
        _LEDGER + "record_all",
        "break",
        "continue",
        seed=5014,
    ),
    Mutant(
        "a job without rounds goes on in a copy",
        _STATE + "_apply_copied",
        "if job.is_open:",
        "if job.is_open and job.rounds:",
        seed="copies",
    ),
    Mutant(
        "a job is resumed with other records",
        "privacy.ledger:_check_resumed",
        '        ("content", job.content, tag),\n',
        "",
        seed=9000,
    ),
)
COORDINATOR = (
    Mutant(
        "an answer leaves before it is durable",
        _AGGREGATOR + "combine",
        "answer = self._journal.commit(job=self.plan.run_id, round=t, event=event, frame=frame)",
        "answer = frame",
        seed=8,
    ),
    Mutant(
        "a sum of too few silos is answered",
        _AGGREGATOR + "combine",
        "if len(uploads) < self.quorum:",
        "if not uploads:",
        seed=11,
    ),
    Mutant(
        "survivors are all members, whether they sent or not",
        _AGGREGATOR + "combine",
        "tuple(upload.sender for upload in uploads)",
        "self._members",
        seed=2,
    ),
    Mutant(
        "the roster is forgotten with the memory",
        _AGGREGATOR + "roster",
        "self._journal.record(self.plan.run_id, _ROSTER, frame)",
        "pass",
        seed=4000,
    ),
    Mutant(
        "different public states are added",
        _AGGREGATOR + "combine",
        "uploads = [upload for upload in uploads if upload.sender not in differing]",
        "uploads = list(uploads)",
        seed="lies",
    ),
    Mutant(
        "fewer silos than open the masks are a quorum",
        "protocol.plan:Plan.quorum",
        "return max(self.min_silos, share_threshold(cohort, self.collusion))",
        "return self.min_silos",
        seed=7,
    ),
    Mutant(
        "a share of the key counts for one of the seed",
        _AGGREGATOR + "_check_shares",
        "== committed[member][0 if member in survivors else 1]",
        "in committed[member]",
        seed="lies",
    ),
    Mutant(
        "the last answer of a round counts, not the first",
        _STORE + "commit",
        "return bytes(row.frame)",
        "return frame",
        seed=2014,
    ),
    Mutant(
        "a late frame counts in the next round",
        _AGGREGATOR + "accept",
        "if message.sender != silo or of_round != self._round:",
        "if message.sender != silo:",
        seed=None,
    ),
)
MUTANTS = SILO + LEDGER + COORDINATOR

# Not caught in 150 seeds: the older statement hides a round only from a backup that has the job as
# open, where its whole reservation counts anyway.
ALIVE = (
    Mutant(
        "of a peer's statements the oldest is kept",
        "privacy.ledger:_put_statements",
        "row = (signed.fingerprint, job, height,",
        "row = (signed.fingerprint, job, -height,",
    ),
)
