"""The exchanges of a job: every frame that the aggregator sends, and the one answer to it.

Two rules apply. Every exchange is in this table. The round loop waits for the answer listed here,
and a party refuses a frame of any other kind or direction. The table does not define the order:
:func:`~cloister.protocol.session.run_rounds` does, and each party checks it.

Theory of operation
-------------------
The aggregator sends requests and silos answer; a silo sends no other frames. A request may arrive
late, twice, or again after a restart of either side. So each answer is a function of the request,
is durable before it is sent, and consists of the same bytes on every repetition.

A job has two parts. First the silos **agree on keys** through an untrusted aggregator. Silos in one
process, or with FastLloyd's group key, skip this part. Then come the **rounds**, all alike::

    aggregator   OPEN t ......... REPLY t ......... UNMASK t ........ OPEN t+1 or CLOSE
    silo               UPLOAD t         CONFIRM t         SHARES t          UPLOAD t+1 or DONE

- UPLOAD carries a silo's masked vector. Before it nothing is charged; from then on the round is
  charged even if it never completes.
- REPLY carries the one sum of the round, over one set of survivors, signed by the aggregator. A
  silo that accepts it is bound to it, and its CONFIRM commits it to that sum towards the others. It
  cannot read the sum yet.
- With pairwise masks, a silo that finds enough confirmations of its sum in UNMASK sends SHARES. For
  each member it is a share of the seed or of the private key, never both.
- The next OPEN, or CLOSE, carries the confirmations and the opened secrets. A silo then unmasks the
  sum, checks its range, and computes the next public state.
- Machines may round differently. Every UPLOAD has a keyed tag of the state it was computed from. If
  tags differ, the silos adopt the lead silo's sealed state before the sum is computed.

A horizon is a job with a round for each period, days apart. Each ends with CLOSE, so that silos
read a period when it is released. Each begins with BEGIN, and waits until all silos answer it::

    aggregator   BEGIN t ........ OPEN t ......
    silo               BEGUN t          UPLOAD t

Records are frozen with the period, and so after the keys. A silo that was restored from a copy of
its files may freeze other records for a period that it has sent. BEGUN therefore has a nonce that
the silo drew when it froze the period, and OPEN has those of all silos. Pads depend on all of
them, and a silo's noise on its own. A silo is bound to the first list of nonces of a period.

Answers that do not pass the checks of all parties count as missing. What a silo signed convicts it,
see :mod:`~cloister.protocol.convictions`.

A round is never repeated with other survivors or other noise. Its answer is repeated, or the job
ends, and rounds that were sent stay charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """The kinds of frames; the numbers are those on the wire."""

    # An aggregator's request is followed by the silo's answer. Numbers are never reused.
    OPEN = 1
    UPLOAD = 2
    REPLY = 3
    CONFIRM = 4
    CLOSE = 5
    DONE = 6
    INVITE = 7
    KEYS = 8
    ROSTER = 9
    SECRETS = 10
    DEAL = 11
    READY = 12
    UNMASK = 13
    SHARES = 14
    ASK_STATE = 15
    STATE = 16
    ADOPT = 17
    ADOPTED = 18
    BEGIN = 19
    BEGUN = 20


@dataclass(frozen=True)
class Exchange:
    """A row of the table.

    Parameters
    ----------
    request, answer : Kind
        Kind of the aggregator's frame, and of the silo's.
    part : str
        Part of the job: keys, rounds or end.
    sent : str
        Content of the request, and of the answer.
    durable : str
        Content that is on the silo's disk before it answers.
    """

    request: Kind
    answer: Kind
    part: str
    sent: str
    durable: str


# In the order of a job, as the manual prints it. `sent` names the request's content first.
EXCHANGES = (
    # Keys. Recorded, because a second set of keys would carry another time and ledger head.
    Exchange(
        Kind.INVITE,
        Kind.KEYS,
        "keys",
        "public keys, signed, with the head of the silo's ledger and its clock",
        "the keys, and the secret from which they are derived",
    ),
    # A silo seals to the one roster that it saw first.
    Exchange(
        Kind.ROSTER,
        Kind.SECRETS,
        "keys",
        "the keys of all silos and of the aggregator; a sealed box for each silo, with commitments",
        "the boxes",
    ),
    Exchange(
        Kind.DEAL,
        Kind.READY,
        "keys",
        "the boxes for this silo, the signed cohort; its signed confirmation and ledger statement",
        "the roster to which it is bound",
    ),
    # Before the rounds of a horizon. It is refused until the owner has frozen the period.
    Exchange(
        Kind.BEGIN,
        Kind.BEGUN,
        "round of a horizon",
        "the number of the period; the nonce of the silo's frozen sums, signed",
        "the sums, the nonce and its signature",
    ),
    # Rounds. The only exchange that charges: bytes and charge are durable in one transaction.
    Exchange(
        Kind.OPEN,
        Kind.UPLOAD,
        "round",
        "the secrets that open the previous sum, and the nonces of a period; a masked vector, and "
        "a tag of the public state",
        "the nonces to which the silo is bound; then the vector and its charge, in one step",
    ),
    # States differ if machines round differently; the next two exchanges repair that.
    Exchange(
        Kind.ASK_STATE,
        Kind.STATE,
        "round, where states differ",
        "the lead silo's public state, sealed to the others",
        "the box",
    ),
    Exchange(
        Kind.ADOPT,
        Kind.ADOPTED,
        "round, where states differ",
        "that state; the tag of the state that the silo has now",
        "the tag",
    ),
    # A silo confirms one sum per round, so that no two sums of a round can be opened.
    Exchange(
        Kind.REPLY,
        Kind.CONFIRM,
        "round",
        "the masked, noised sum and its survivors, signed; a signed confirmation of both",
        "the sum to which it is bound",
    ),
    # Not recorded: the shares are a function of the recorded confirmation.
    Exchange(
        Kind.UNMASK,
        Kind.SHARES,
        "round, with pairwise masks",
        "the confirmations; one share of one secret of each member, signed",
        "follows from the sum that it confirmed",
    ),
    Exchange(
        Kind.CLOSE,
        Kind.DONE,
        "end",
        "the secrets that open the last sum, or a period's; a receipt, with the result sealed to "
        "each reader",
        "the receipt and its boxes",
    ),
)
ANSWER = {exchange.request: exchange.answer for exchange in EXCHANGES}
"""The answer to each request of the aggregator."""
