"""Frames: frozen values whose annotated fields define their encoding.

Every frame has the same header: protocol version, kind, session, plan digest, round, attempt,
sender, lattice and ring, length of the body. A receiver checks the header against its plan before
it reads the body. The body consists of the fields that are annotated with a :class:`Part`, in
order. These annotations encode, decode and check the fields, and document them in the manual.
Contents are masked or public, but ``repr`` shows only the kind.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

from cloister.core.errors import RemoteProtocolError
from cloister.hazmat.prg import KEY_BYTES
from cloister.hazmat.ring import RING_BITS, Words, from_bytes, to_bytes
from cloister.hazmat.shamir import SHARE_BYTES
from cloister.hazmat.signing import SIGNATURE_BYTES, verify
from cloister.privacy.chain import SignedStatement, Statement
from cloister.protocol.exchanges import ANSWER, EXCHANGES, Kind
from cloister.protocol.plan import Plan

BEFORE = -1
"""The round number of confirmations of the key agreement."""

VECTOR = "payload"
"""The name of the one pad of a round; all blocks of a round form one vector."""

CONFIRM_LABEL = b"cloister/1/confirm"
"""The label of a silo's signature on a confirmation."""

SUM_LABEL = b"cloister/1/sum"
"""The label of the aggregator's signature on the one sum, or the one cohort, that it sends."""

DEALT_LABEL = b"cloister/1/dealt"
"""The label of a silo's signature on the commitments to the shares that it accepted."""

BEGUN_LABEL = b"cloister/1/begun"
"""The label of a silo's signature on the nonce of a period."""

SHARES_LABEL = b"cloister/1/shares"
"""The label of a silo's signature on the shares that it gives."""

AGGREGATOR = ""
"""Sender of the aggregator's frames; no silo can have this name."""

NO_SIGNATURE = bytes(SIGNATURE_BYTES)
_T = TypeVar("_T")
_MAGIC = b"CLST"  # no stored answer begins with it, see `_BOUND` of the client
# Big-endian: magic, version, kind, session, plan digest, round, attempt, frac_bits, ring bits,
# length of the sender's name, length of the body.
_HEADER = struct.Struct(">4sHB16s32sIIBBBI")
_KIND_AT = 6  # offset of the kind in the header, behind magic (4) and version (2)
_HASH_BYTES = 32  # SHA-256, and every Ed25519 or X25519 public key
_MOST_STATEMENT = (1 << 16) - 1  # lists of confirmations store its length in two bytes
_STATEMENT = struct.Struct(f">{SIGNATURE_BYTES}s{_HASH_BYTES}sQH")  # see `encode_statement`


# Encoding of fields -----------------------------------------------------------------------------


class _Body:
    """A reader of the body of a frame in round `t` of a plan."""

    def __init__(self, plan: Plan, t: int, data: bytes) -> None:
        self.plan, self.round = plan, t
        self._data, self._place = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._place

    def take(self, size: int) -> bytes:
        taken = self._data[self._place : self._place + size]
        if len(taken) < size:
            raise RemoteProtocolError(f"frame is cut: {self.left} bytes left, {size} are required.")
        self._place += size
        return taken


@dataclass(frozen=True)
class Part:
    """The encoding of a field: its text in the manual, and functions to and from bytes."""

    rule: str
    write: Callable[[Plan, Any], bytes]  # the plan has the places of silos and the rounds
    read: Callable[[_Body], Any]


def _fixed(size: int) -> Part:
    return Part(f"{size} bytes", lambda _, value: value, lambda body: body.take(size))


def _rest(most: int) -> Part:
    # Bytes beyond `most` stay unread, and `decode` refuses a frame with unread bytes.
    return Part("the rest", lambda _, value: value, lambda body: body.take(min(body.left, most)))


def _number(size: int) -> Part:
    return Part(
        f"a number of {size} bytes",
        lambda _, value: value.to_bytes(size, "big"),
        lambda body: int.from_bytes(body.take(size), "big"),
    )


def _sized(size: Part) -> Part:
    return Part(
        f"bytes behind {size.rule}",
        lambda plan, value: size.write(plan, len(value)) + value,
        lambda body: body.take(size.read(body)),
    )


def _many(item: Part, count: Part) -> Part:
    return Part(
        f"{count.rule}, then for each: {item.rule}",
        lambda plan, items: count.write(plan, len(items)) + _join(plan, item, items),
        lambda body: tuple(item.read(body) for _ in range(count.read(body))),
    )


def _all(item: Part, behind: int = 0) -> Part:
    """Return the encoding of items that fill the body up to `behind` bytes from its end."""

    def read(body: _Body) -> tuple[Any, ...]:
        items = []
        while body.left > behind:  # every item has at least one byte, so this ends
            items.append(item.read(body))
        return tuple(items)

    return Part(f"for each: {item.rule}", lambda plan, items: _join(plan, item, items), read)


def _join(plan: Plan, item: Part, items: Iterable[Any]) -> bytes:
    return b"".join(item.write(plan, value) for value in items)


def _by_silo(value: Part, behind: int = 0) -> Part:
    pairs = _all(
        Part(
            f"{_SILO.rule}, {value.rule}",
            lambda plan, pair: _SILO.write(plan, pair[0]) + value.write(plan, pair[1]),
            lambda body: (_SILO.read(body), value.read(body)),
        ),
        behind,
    )
    return Part(
        pairs.rule,
        lambda plan, mapping: pairs.write(plan, mapping.items()),
        lambda body: _different(pairs.read(body)),
    )


def _different(pairs: Sequence[tuple[str, _T]]) -> dict[str, _T]:
    values = dict(pairs)
    # A repeated silo could count twice towards a quorum.
    if len(values) != len(pairs):
        raise RemoteProtocolError("a silo is listed twice in a frame.")
    return values


def _read_silo(body: _Body) -> str:
    place: int = _SHORT.read(body)
    silos = body.plan.silos
    if place >= len(silos):
        raise RemoteProtocolError(f"silo number must be below {len(silos)}, got {place}.")
    return silos[place]


def _read_lead(body: _Body) -> str:
    silos: tuple[str, ...] = _SILOS.read(body)
    if len(silos) != 1:
        raise _misfit(Kind.ADOPT)
    return silos[0]


_SHORT, _LONG, _KEY, _HASH = _number(2), _number(8), _fixed(KEY_BYTES), _fixed(_HASH_BYTES)
_LIST = _all(_sized(_number(4)))
_SILO = Part(
    "a silo's place in 2 bytes",
    lambda plan, silo: _SHORT.write(plan, plan.silos.index(silo)),
    _read_silo,
)
_SILOS = _many(_SILO, _SHORT)
# A list of one: ADOPT has the encoding of every list of silos.
_LEAD = Part("one silo, in a list", lambda plan, lead: _SILOS.write(plan, (lead,)), _read_lead)
# Writes no bytes, since the plan determines the number.
_HELD_ROUNDS = Part(
    "under pairwise masks, as many as rounds",
    lambda plan, count: b"",
    lambda body: body.plan.rounds if body.plan.profile == "pairwise" else 0,
)
_ELEMENTS = Part(
    "8 bytes for each number of the round",
    lambda _, elements: to_bytes(elements),
    lambda body: from_bytes(body.take(body.left), body.plan.length(body.round)),
)
# The types of fields, for annotations below.
Hash = Annotated[bytes, _HASH]
Signature = Annotated[bytes, _fixed(SIGNATURE_BYTES)]
Silos = Annotated[tuple[str, ...], _SILOS]
Boxes = Annotated[tuple[bytes, ...], _LIST]
Sealed = Annotated[bytes, _rest(sys.maxsize)]  # the frame's length bounds it
Said = Annotated[bytes, _rest(_MOST_STATEMENT)]
Opened = Annotated[Mapping[str, bytes], _by_silo(_KEY)]
RoundsOfKeys = Annotated[tuple[bytes, ...], _many(_KEY, _HELD_ROUNDS)]
Elements = Annotated[Words, _ELEMENTS]


@cache
def body_of(message: type) -> Mapping[str, Part]:
    """Return the fields in the body of a frame, in order, and their encodings."""
    # Cached, because resolving annotations is slow and a round has many frames.
    hints = get_type_hints(message, include_extras=True)
    return {
        name: part
        for name, hint in hints.items()
        for part in getattr(hint, "__metadata__", ())
        if isinstance(part, Part)
    }


# Frames -----------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Confirmation:
    """A silo's signed confirmation of the sum that it received in a round.

    Parameters
    ----------
    result_hash : bytes of length 32
        Over plan, round, survivors and masked sum; over the roster before the first round.
    received : bytes of length 64
        The aggregator's signature on that hash, which proves that the silo was sent this sum; zeros
        if all parties are in one process. Tag and signature cover it.
    mac : bytes of length 32
        Under the group key.
    signature : bytes of length 64
        By the silo's identity; zeros if all parties are in one process.
    statement : bytes
        The silo's signed ledger statement, see :func:`encode_statement`; empty if all parties are
        in one process. Tag and signature cover it.
    """

    silo: Annotated[str, _SILO]
    result_hash: Hash
    mac: Hash
    signature: Signature = NO_SIGNATURE
    received: Signature = NO_SIGNATURE
    statement: Annotated[bytes, _sized(_SHORT)] = b""


_CONFIRMATIONS = _many(
    Part(
        ", ".join(part.rule for part in body_of(Confirmation).values()),
        lambda plan, one: _body(plan, one),
        lambda body: Confirmation(**_values(Confirmation, body)),
    ),
    _SHORT,
)
Confirmations = Annotated[
    tuple[Confirmation, ...],
    Part(
        _CONFIRMATIONS.rule,
        _CONFIRMATIONS.write,
        lambda body: tuple(_different([(c.silo, c) for c in _CONFIRMATIONS.read(body)]).values()),
    ),
]


@dataclass(frozen=True, repr=False)
class Begin:
    """The aggregator's request for the nonce of a period."""

    kind: ClassVar[Kind] = Kind.BEGIN
    round: int
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Begun:
    """The nonce that a silo drew when it froze a period, signed."""

    kind: ClassVar[Kind] = Kind.BEGUN
    round: int
    sender: str
    nonce: Hash
    signature: Signature = NO_SIGNATURE


def _read_begun(body: _Body) -> Begun:
    silo = _SILO.read(body)
    return Begun(body.round, silo, **_values(Begun, body))


_BEGUN = Part(
    f"{_SILO.rule}, {', '.join(part.rule for part in body_of(Begun).values())}",
    lambda plan, one: _SILO.write(plan, one.sender) + _body(plan, one),
    _read_begun,
)
# Writes no bytes, since the plan determines the number.
_OF_HORIZON = Part(
    "of a horizon, as many as silos",
    lambda plan, count: b"",
    lambda body: 0 if body.plan.horizon is None else len(body.plan.silos),
)
BegunAll = Annotated[tuple[Begun, ...], _many(_BEGUN, _OF_HORIZON)]


@dataclass(frozen=True, repr=False)
class Open:
    """The aggregator's opening of a round, with confirmations and secrets of the previous round.

    Under pairwise masks, ``opened`` has the seed of each survivor and the private key of each lost
    member. In a horizon, ``begun`` has the nonce of each silo in the plan's order.
    """

    kind: ClassVar[Kind] = Kind.OPEN
    round: int
    begun: BegunAll = field(default=(), kw_only=True)
    confirmations: Confirmations = ()
    opened: Opened = field(default_factory=dict)
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Upload:
    """A silo's masked vector and the keyed tag of the public state it was computed from."""

    kind: ClassVar[Kind] = Kind.UPLOAD
    round: int
    sender: str
    state_tag: Hash
    elements: Elements


@dataclass(frozen=True, repr=False)
class Reply:
    """The masked, noised sum over one committed set of survivors, signed by the aggregator."""

    kind: ClassVar[Kind] = Kind.REPLY
    round: int
    survivors: Silos
    signature: Signature = field(default=NO_SIGNATURE, kw_only=True)  # `elements` end the frame
    elements: Elements
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Confirm:
    """A silo's own confirmation, for the aggregator to forward."""

    kind: ClassVar[Kind] = Kind.CONFIRM
    round: int
    sender: str
    result_hash: Hash
    mac: Hash
    signature: Signature = NO_SIGNATURE
    received: Signature = NO_SIGNATURE
    statement: Said = b""


@dataclass(frozen=True, repr=False)
class Close:
    """The end of the last round, with confirmations and secrets as in :class:`Open`."""

    kind: ClassVar[Kind] = Kind.CLOSE
    round: int
    confirmations: Confirmations = ()
    opened: Opened = field(default_factory=dict)
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Done:
    """A silo's receipt for the result, with its box for each reader of the plan, in order."""

    kind: ClassVar[Kind] = Kind.DONE
    round: int
    sender: str
    boxes: Boxes = ()


@dataclass(frozen=True, repr=False)
class Invite:
    """The aggregator's request for keys."""

    kind: ClassVar[Kind] = Kind.INVITE
    round: int = 0
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Keys:
    """A silo's public keys for one job, with its ledger's head and its clock.

    Parameters
    ----------
    identity : bytes of length 32
        Its Ed25519 public key, whose fingerprint the plan contains.
    box : bytes of length 32
        X25519 public key for sealed boxes.
    head : bytes of length 32
        The last entry of its ledger.
    time : int
        Seconds since 1970 by its clock, at the first request.
    pair, commitments : tuple of bytes of length 32
        Under pairwise masks one for each round, otherwise empty.
    seen : mapping of silo to int
        The height of the newest head of its ledger that a peer signed in an earlier job, or less
        if jobs were closed as unanswered since. The peer returns all statements of this silo
        above that height.
    signature : bytes of length 64
        By the identity, over all other fields and the plan.
    """

    kind: ClassVar[Kind] = Kind.KEYS
    sender: str
    identity: Hash
    box: Hash
    head: Hash
    time: Annotated[int, _LONG]
    pair: RoundsOfKeys
    commitments: RoundsOfKeys
    seen: Annotated[Mapping[str, int], _by_silo(_LONG, behind=SIGNATURE_BYTES)]
    signature: Signature = NO_SIGNATURE
    round: int = 0


def _read_roster(body: _Body) -> tuple[Message, ...]:
    frames = _LIST.read(body)
    # Kinds are checked first: nested rosters would make `decode` recurse to any depth.
    if any(frame[_KIND_AT : _KIND_AT + 1] != bytes([Kind.KEYS]) for frame in frames):
        raise _misfit(Kind.ROSTER)
    return tuple(decode(body.plan, frame) for frame in frames)


_ROSTER = Part(
    "for each silo: its frame of keys, behind a number of 4 bytes",
    lambda plan, keys: _LIST.write(plan, [encode(plan, one) for one in keys]),
    _read_roster,
)


@dataclass(frozen=True, repr=False)
class Roster:
    """The signed keys of all silos that take part, in the plan's order.

    Parameters
    ----------
    aggregator : bytes of length 32
        Ed25519 public key with which the aggregator signs cohort and sums of this job.
    """

    kind: ClassVar[Kind] = Kind.ROSTER
    aggregator: Hash = field(default=bytes(_HASH_BYTES), kw_only=True)
    keys: Annotated[tuple[Keys, ...], _ROSTER]
    round: int = 0
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Secrets:
    """A silo's sealed box for each silo of the roster, itself included, in order."""

    kind: ClassVar[Kind] = Kind.SECRETS
    sender: str
    boxes: Boxes
    round: int = 0


@dataclass(frozen=True, repr=False)
class Deal:
    """The silos whose boxes arrived, and their boxes for one silo."""

    kind: ClassVar[Kind] = Kind.DEAL
    cohort: Silos
    signature: Signature = field(default=NO_SIGNATURE, kw_only=True)  # on the hash of the cohort
    boxes: Boxes
    round: int = 0
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Ready:
    """A silo's confirmation that it has the keys, and of the cohort.

    Parameters
    ----------
    dealt : bytes of length 32
        Hash of the commitments to its shares of all secrets, which it compared with the shares.
    acceptance : bytes of length 64
        Its signature on that hash, which convicts it if it gives another share later.
    """

    kind: ClassVar[Kind] = Kind.READY
    sender: str
    result_hash: Hash
    mac: Hash
    signature: Signature
    received: Signature = NO_SIGNATURE
    dealt: Hash = bytes(_HASH_BYTES)
    acceptance: Signature = NO_SIGNATURE
    statement: Said = b""
    round: int = 0


@dataclass(frozen=True, repr=False)
class Unmask:
    """The confirmations of a round, on which a silo decides whether to send its shares."""

    kind: ClassVar[Kind] = Kind.UNMASK
    round: int
    confirmations: Confirmations
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Shares:
    """A silo's share of one secret of each member of the round, for one sum, signed."""

    kind: ClassVar[Kind] = Kind.SHARES
    round: int
    sender: str
    result_hash: Hash
    signature: Signature
    shares: Annotated[Mapping[str, bytes], _by_silo(_fixed(SHARE_BYTES))]


@dataclass(frozen=True, repr=False)
class AskState:
    """The aggregator's request for the lead silo's state, sent if states differ."""

    kind: ClassVar[Kind] = Kind.ASK_STATE
    round: int
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class SealedState:
    """The lead silo's public state, sealed to the group."""

    kind: ClassVar[Kind] = Kind.STATE
    round: int
    sender: str
    box: Sealed


@dataclass(frozen=True, repr=False)
class Adopt:
    """The lead silo's sealed state, for a silo whose state differs."""

    kind: ClassVar[Kind] = Kind.ADOPT
    round: int
    lead: Annotated[str, _LEAD]
    box: Sealed
    sender: str = AGGREGATOR


@dataclass(frozen=True, repr=False)
class Adopted:
    """The tag of the state that a silo adopted."""

    kind: ClassVar[Kind] = Kind.ADOPTED
    round: int
    sender: str
    state_tag: Hash


_OfKeys = Invite | Keys | Roster | Secrets | Deal | Ready
_OfRounds = Begin | Begun | Open | Upload | Reply | Confirm | Unmask | Shares
_OfStates = AskState | SealedState | Adopt | Adopted
Message = _OfKeys | _OfRounds | _OfStates | Close | Done
FRAMES: Mapping[int, type[Message]] = {message.kind: message for message in get_args(Message)}
"""The class of each kind of frame."""
_FROM_SILO = frozenset(ANSWER.values())  # silos only answer
_BEFORE_ROUNDS = frozenset(
    kind for one in EXCHANGES if one.part == "keys" for kind in (one.request, one.answer)
)


def encode(plan: Plan, message: Message) -> bytes:
    """Return the frame of a message under `plan`."""
    body = _body(plan, message)
    sender = message.sender.encode()
    # The order of fields is that of `_HEADER`.
    header = _HEADER.pack(
        _MAGIC,
        plan.protocol,
        message.kind,
        bytes.fromhex(plan.run_id),
        plan.digest,
        message.round,
        0,  # attempt: a round is never repeated, so there is only one
        plan.grid.frac_bits,
        RING_BITS,
        len(sender),
        len(body),
    )
    return header + sender + body


def decode(plan: Plan, frame: bytes) -> Message:
    """Decode a frame under `plan`; raise RemoteProtocolError if it does not fit the plan."""
    # Checks go from cheap to expensive; no length of a stranger's frame is trusted.
    if len(frame) < _HEADER.size:
        raise RemoteProtocolError(f"frame is cut: {len(frame)} bytes are less than a header.")
    magic, version, kind, session, digest, t, attempt, frac_bits, ring_bits, name_len, body_len = (
        _HEADER.unpack_from(frame)
    )
    if magic != _MAGIC or version != plan.protocol:
        raise RemoteProtocolError(
            f"frame has another protocol version than {plan.protocol}; use the same version at "
            "every party."
        )
    if session != bytes.fromhex(plan.run_id) or digest != plan.digest:
        raise RemoteProtocolError("frame belongs to another plan or run; the digests differ.")
    if attempt != 0 or frac_bits != plan.grid.frac_bits or ring_bits != RING_BITS:
        raise RemoteProtocolError("frame has another attempt, lattice or ring than the plan.")
    rest = frame[_HEADER.size :]
    if len(rest) != name_len + body_len:
        raise RemoteProtocolError(
            f"frame must have {name_len + body_len} bytes behind its header, got {len(rest)}."
        )
    rounds = 1 if kind in _BEFORE_ROUNDS else plan.rounds
    if t >= rounds:
        raise RemoteProtocolError(f"round must be below {rounds}, got {t}.")
    try:
        sender = rest[:name_len].decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("sender is not a name of this plan.") from error
    from_silo = kind in _FROM_SILO
    if from_silo != (sender in plan.silos) or (not from_silo and sender != AGGREGATOR):
        raise RemoteProtocolError("sender is not a party that may send this kind of frame.")
    message_type = FRAMES.get(kind)
    if message_type is None:
        raise _misfit(kind)
    body = _Body(plan, t, rest[name_len:])
    values = _values(message_type, body)
    if body.left:  # each message has one encoding only
        raise _misfit(kind)
    return message_type(round=t, sender=sender, **values)


def _body(plan: Plan, message: Message | Confirmation) -> bytes:
    parts = body_of(type(message)).items()  # type: ignore[arg-type]  # classes are hashable
    return b"".join(part.write(plan, getattr(message, name)) for name, part in parts)


def _values(message: type, body: _Body) -> dict[str, Any]:
    return {name: part.read(body) for name, part in body_of(message).items()}


def _misfit(kind: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"frame of kind {kind} is unknown or has a body that does not fit.")


def encode_list(plan: Plan, parts: Iterable[bytes]) -> bytes:
    """Concatenate parts, each after its length."""
    return _LIST.write(plan, parts)


def decode_list(plan: Plan, body: bytes) -> tuple[bytes, ...]:
    """Return the parts of a list; raise RemoteProtocolError if it is cut."""
    parts: tuple[bytes, ...] = _LIST.read(_Body(plan, 0, body))
    return parts


def kind_of(frame: bytes) -> Kind:
    """Return the kind of a frame that this process encoded."""
    return Kind(frame[_KIND_AT])


def result_hash(plan: Plan, reply: Reply) -> bytes:
    """Return SHA-256 over plan, round, survivors and masked sum: public, and equal at all silos."""
    return hashlib.sha256(encode(plan, replace(reply, signature=NO_SIGNATURE))).digest()


def confirmed(plan: Plan, t: int, one: Confirmation) -> tuple[bytes, ...]:
    """Return the parts that tag and signature of a confirmation of round `t` cover."""
    # With `received`, so that nobody can take the proof out of an honest silo's confirmation.
    said = (one.silo.encode(), one.result_hash, one.received, one.statement)
    return (plan.digest, str(t).encode(), *said)


def is_confirmed(plan: Plan, t: int, one: Confirmation, public: bytes) -> bool:
    """Return True if the owner of `public` signed a confirmation of round `t`."""
    return verify(public, one.signature, CONFIRM_LABEL, *confirmed(plan, t, one))


def sent(plan: Plan, t: int, digest: bytes) -> tuple[bytes, ...]:
    """Return the parts that the aggregator's signature on the sum of round `t` covers."""
    return (plan.digest, str(t).encode(), digest)


def was_sent(plan: Plan, t: int, digest: bytes, signature: bytes, aggregator: bytes) -> bool:
    """Return True if the aggregator of this public key signed a hash as that of its one sum."""
    return verify(aggregator, signature, SUM_LABEL, *sent(plan, t, digest))


def accepted(plan: Plan, ready: Ready) -> tuple[bytes, ...]:
    """Return the parts that a silo's signature on its accepted shares covers."""
    # With the hash of the cohort, as commitments are in its order.
    return (plan.digest, ready.sender.encode(), ready.result_hash, ready.dealt)


def given(plan: Plan, shares: Shares) -> tuple[bytes, ...]:
    """Return the parts that a silo's signature on its shares covers."""
    # The whole frame, so that its sum, its round and its shares cannot be exchanged.
    return (plan.digest, encode(plan, replace(shares, signature=NO_SIGNATURE)))


def begun_signed(plan: Plan, begun: Begun) -> tuple[bytes, ...]:
    """Return the parts that a silo's signature on the nonce of a period covers."""
    return (plan.digest, encode(plan, replace(begun, signature=NO_SIGNATURE)))


def is_begun(plan: Plan, begun: Begun, public: bytes) -> bool:
    """Return True if the owner of `public` signed the nonce of a period."""
    return verify(public, begun.signature, BEGUN_LABEL, *begun_signed(plan, begun))


def session_of(plan: Plan, nonces: Sequence[bytes] = ()) -> str:
    """Return the name that all pads of a job have in common, or those of a period with `nonces`."""
    # A pad is for one vector. Frozen sums that differ have nonces that differ.
    of_period = "" if plan.horizon is None else "/" + hashlib.sha256(b"".join(nonces)).hexdigest()
    return plan.digest.hex() + of_period


def confirmation_of(message: Confirm | Ready) -> Confirmation:
    """Return the confirmation in a silo's frame."""
    return Confirmation(
        message.sender,
        message.result_hash,
        message.mac,
        message.signature,
        message.received,
        message.statement,
    )


def encode_statement(said: Statement, signature: bytes) -> bytes:
    """Encode a signed statement for a confirmation.

    The encoding has signature, head, height, length of the data set's name, that name and the
    study's. The other signed fields (job, digest of the plan, events) follow from the plan.
    """
    head, dataset = bytes.fromhex(said.head), said.dataset.encode()
    fixed = _STATEMENT.pack(signature, head, said.height, len(dataset))
    return fixed + dataset + said.study.encode()


def decode_statement(plan: Plan, public: bytes, data: bytes) -> SignedStatement:
    """Decode a ledger statement that the owner of `public` signed in the job of `plan`."""
    try:
        signature, head, height, size = _STATEMENT.unpack_from(data)
        names = data[_STATEMENT.size :]
        statement = Statement(
            dataset=names[:size].decode(),
            study=names[size:].decode(),
            job=plan.run_id,
            plan=plan.digest.hex(),
            events=plan.events(),
            head=head.hex(),
            height=height,
        )
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError("the statement of a silo's ledger is cut.") from error
    signed = SignedStatement.about(statement, signature, public)
    # SQLite stores heights in signed 64 bits. A name longer than the data would read short.
    if size > len(names) or height >= 2**63 or not signed.genuine:
        raise RemoteProtocolError("the statement of a silo's ledger is not signed by that silo.")
    return signed


def keys_signed(plan: Plan, keys: Keys) -> tuple[bytes, ...]:
    """Return the parts of a silo's keys that its identity signs."""
    return (plan.digest, keys.sender.encode(), _body(plan, keys)[:-SIGNATURE_BYTES])
