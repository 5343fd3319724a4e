"""Frames: frozen values and their byte codec.

Every frame has the same header: protocol version, kind, session, plan digest, round, attempt,
sender, lattice and ring, length of the body. A receiver refuses a frame whose header is not of its
plan before it looks at the body. Contents are masked or public, but ``repr`` shows only the kind.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from cloister.errors import RemoteProtocolError
from cloister.hazmat.prg import KEY_BYTES
from cloister.hazmat.ring import RING_BITS, Words, from_bytes, to_bytes
from cloister.hazmat.shamir import SHARE_BYTES
from cloister.hazmat.signing import SIGNATURE_BYTES
from cloister.privacy.chain import SignedStatement, Statement
from cloister.protocol.exchanges import ANSWER, Kind
from cloister.protocol.plan import Plan

BEFORE = -1
"""The round in which silos agree on keys, where confirmations name one."""

VECTOR = "payload"
"""All blocks of a round travel in one vector, under one pad of this name."""

CONFIRM_LABEL = b"cloister/1/confirm"
"""What a silo signs when it confirms."""

AGGREGATOR = ""
"""Sender of the aggregator's frames; no silo can have this name."""

_MAGIC = b"CLST"
_HEADER = struct.Struct(">4sHB16s32sIIBBBI")
_KIND_AT = 6  # place of the kind in the header
_HASH_BYTES = 32
_VOUCHED = struct.Struct(f">{_HASH_BYTES}s{_HASH_BYTES}s{SIGNATURE_BYTES}s")
_CONFIRMATION = struct.Struct(f">H{_HASH_BYTES}s{_HASH_BYTES}s{SIGNATURE_BYTES}sH")
_OPENED = struct.Struct(f">H{KEY_BYTES}s")
_SEEN = struct.Struct(">HQ")
_TIME = struct.Struct(">Q")
_STATEMENT = struct.Struct(f">{SIGNATURE_BYTES}s{_HASH_BYTES}sQH")
NO_SIGNATURE = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True)
class Confirmation:
    """A silo's word on what it was told to unmask in a round.

    Parameters
    ----------
    silo : str
    result_hash : bytes of length 32
        Over plan, round, survivors and masked sum; over the roster before the first round.
    mac : bytes of length 32
        Under the group key.
    signature : bytes of length 64
        By the silo's identity; zeros where all parties are in one process.
    statement : bytes
        What the silo signed of its ledger, see :func:`encode_statement`; empty where all parties
        are in one process. Tag and signature cover it.
    """

    silo: str
    result_hash: bytes
    mac: bytes = field(repr=False)
    signature: bytes = field(default=NO_SIGNATURE, repr=False)
    statement: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Open:
    """The aggregator opens round `round` and hands out what belongs to the one before.

    Parameters
    ----------
    round : int
    confirmations : tuple of Confirmation
    opened : mapping of silo to bytes of length 32
        Under pairwise masks, the seed of each survivor and the private key of each lost member.
    """

    kind: ClassVar[Kind] = Kind.OPEN
    round: int
    confirmations: tuple[Confirmation, ...] = field(default=(), repr=False)
    opened: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Upload:
    """A silo's masked vector and the keyed tag of the public state it was made from."""

    kind: ClassVar[Kind] = Kind.UPLOAD
    round: int
    sender: str
    state_tag: bytes = field(repr=False)
    words: Words = field(repr=False)


@dataclass(frozen=True)
class Reply:
    """The masked, noised sum over one committed set of survivors."""

    kind: ClassVar[Kind] = Kind.REPLY
    round: int
    survivors: tuple[str, ...]
    words: Words = field(repr=False)
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Confirm:
    """A silo's own confirmation, on its way to the others."""

    kind: ClassVar[Kind] = Kind.CONFIRM
    round: int
    sender: str
    result_hash: bytes
    mac: bytes = field(repr=False)
    signature: bytes = field(default=NO_SIGNATURE, repr=False)
    statement: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Close:
    """The last round is over; what belongs to it, as in :class:`Open`."""

    kind: ClassVar[Kind] = Kind.CLOSE
    round: int
    confirmations: tuple[Confirmation, ...] = field(default=(), repr=False)
    opened: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Done:
    """The silo has the result."""

    kind: ClassVar[Kind] = Kind.DONE
    round: int
    sender: str


@dataclass(frozen=True)
class Invite:
    """The aggregator asks for keys."""

    kind: ClassVar[Kind] = Kind.INVITE
    round: int = 0
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Keys:
    """A silo's public keys for one job, and where its ledger and its clock stand.

    Parameters
    ----------
    sender : str
    identity : bytes of length 32
        Its Ed25519 public key, whose fingerprint stands in the plan.
    box : bytes of length 32
        X25519 public key for sealed boxes.
    pair, commitments : tuple of bytes of length 32
        Under pairwise masks one for each round, otherwise empty.
    head : bytes of length 32
        The last entry of its ledger.
    time : int
        Seconds since 1970 by its clock, when it was first asked.
    seen : mapping of silo to int
        The height of the newest head of its ledger that a peer signed in an earlier job: of later
        statements of this silo that peer shows all it has.
    signature : bytes of length 64
        By the identity, over all of this under the plan.
    """

    kind: ClassVar[Kind] = Kind.KEYS
    sender: str
    identity: bytes
    box: bytes
    pair: tuple[bytes, ...]
    commitments: tuple[bytes, ...]
    head: bytes
    time: int
    seen: Mapping[str, int]
    signature: bytes = field(default=NO_SIGNATURE, repr=False)
    round: int = 0


@dataclass(frozen=True)
class Roster:
    """The keys of all silos that take part, as they signed them, in the plan's order."""

    kind: ClassVar[Kind] = Kind.ROSTER
    keys: tuple[Keys, ...]
    round: int = 0
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Secrets:
    """A silo's sealed box for each silo of the roster, itself included, in order."""

    kind: ClassVar[Kind] = Kind.SECRETS
    sender: str
    boxes: tuple[bytes, ...] = field(repr=False)
    round: int = 0


@dataclass(frozen=True)
class Deal:
    """The silos whose secrets came, and their boxes for one silo."""

    kind: ClassVar[Kind] = Kind.DEAL
    cohort: tuple[str, ...]
    boxes: tuple[bytes, ...] = field(repr=False)
    round: int = 0
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Ready:
    """A silo has the keys; its confirmation of who takes part."""

    kind: ClassVar[Kind] = Kind.READY
    sender: str
    result_hash: bytes
    mac: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    statement: bytes = field(default=b"", repr=False)
    round: int = 0


@dataclass(frozen=True)
class Unmask:
    """The confirmations of a round; a silo that finds enough gives its shares."""

    kind: ClassVar[Kind] = Kind.UNMASK
    round: int
    confirmations: tuple[Confirmation, ...] = field(repr=False)
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Shares:
    """A silo's share of one secret of each member of the round, in order."""

    kind: ClassVar[Kind] = Kind.SHARES
    round: int
    sender: str
    shares: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class AskState:
    """The states of silos differ; the lead silo is asked for its own."""

    kind: ClassVar[Kind] = Kind.ASK_STATE
    round: int
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class SealedState:
    """The lead silo's public state, sealed to the group."""

    kind: ClassVar[Kind] = Kind.STATE
    round: int
    sender: str
    box: bytes = field(repr=False)


@dataclass(frozen=True)
class Adopt:
    """The lead silo's sealed state, for a silo whose state differs."""

    kind: ClassVar[Kind] = Kind.ADOPT
    round: int
    lead: str
    box: bytes = field(repr=False)
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Adopted:
    """The tag of the state that a silo has after adopting."""

    kind: ClassVar[Kind] = Kind.ADOPTED
    round: int
    sender: str
    state_tag: bytes = field(repr=False)


Message = (
    Open
    | Upload
    | Reply
    | Confirm
    | Close
    | Done
    | Invite
    | Keys
    | Roster
    | Secrets
    | Deal
    | Ready
    | Unmask
    | Shares
    | AskState
    | SealedState
    | Adopt
    | Adopted
)
_FROM_SILO = frozenset(ANSWER.values())


def encode(plan: Plan, message: Message) -> bytes:
    """Return the frame of a message under `plan`."""
    body = _encode_body(plan, message)
    sender = message.sender.encode()
    header = _HEADER.pack(
        _MAGIC,
        plan.protocol,
        message.kind,
        bytes.fromhex(plan.run_id),
        plan.digest,
        message.round,
        0,  # attempt: a round is never run again, so there is only one
        plan.grid.frac_bits,
        RING_BITS,
        len(sender),
        len(body),
    )
    return header + sender + body


def decode(plan: Plan, frame: bytes) -> Message:
    """Read a frame under `plan`.

    Raises
    ------
    RemoteProtocolError
        If the frame is cut, of another plan, session or version, or its parts do not fit.
    """
    if len(frame) < _HEADER.size:
        raise RemoteProtocolError(f"frame is cut: {len(frame)} bytes are less than a header.")
    magic, version, kind, session, digest, t, attempt, frac_bits, ring_bits, name_len, body_len = (
        _HEADER.unpack_from(frame)
    )
    if magic != _MAGIC or version != plan.protocol:
        raise RemoteProtocolError(
            f"frame is not of protocol version {plan.protocol}; use the same version everywhere."
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
    if t >= plan.rounds:
        raise RemoteProtocolError(f"round must be below {plan.rounds}, got {t}.")
    try:
        sender = rest[:name_len].decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("sender is not a name of this plan.") from error
    from_silo = kind in _FROM_SILO
    if from_silo != (sender in plan.silos) or (not from_silo and sender != AGGREGATOR):
        raise RemoteProtocolError("sender is not a party that may send this kind of frame.")
    return _decode_body(plan, kind, t, sender, rest[name_len:])


def kind_of(frame: bytes) -> Kind:
    """Return the kind of a frame of ours."""
    return Kind(frame[_KIND_AT])


def result_hash(plan: Plan, reply: Reply) -> bytes:
    """Return SHA-256 over plan, round, survivors and masked sum: public, and the same for all."""
    return hashlib.sha256(encode(plan, reply)).digest()


def confirmed(plan: Plan, t: int, silo: str, digest: bytes, statement: bytes) -> tuple[bytes, ...]:
    """Return the parts that a silo's tag and signature vouch for in round `t`."""
    return (plan.digest, str(t).encode(), silo.encode(), digest, statement)


def encode_statement(said: Statement, signature: bytes) -> bytes:
    """Return a signed statement as confirmations carry it.

    Signature, head, height, length of the data set's name, that name and the study's. What else
    was signed (job, digest of the plan and the events) stands in the plan.
    """
    head, dataset = bytes.fromhex(said.head), said.dataset.encode()
    fixed = _STATEMENT.pack(signature, head, said.height, len(dataset))
    return fixed + dataset + said.study.encode()


def decode_statement(plan: Plan, public: bytes, data: bytes) -> SignedStatement:
    """Return what the owner of `public` signed of its ledger in the job of `plan`.

    Raises
    ------
    RemoteProtocolError
        If it did not, or of another job.
    """
    try:
        signature, head, height, size = _STATEMENT.unpack_from(data)
        names = data[_STATEMENT.size :]
        said = Statement(
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
    signed = SignedStatement(said.text, signature, public)
    if size > len(names) or height >= 2**63 or not signed.genuine:
        raise RemoteProtocolError("the statement of a silo's ledger is not signed by it.")
    return signed


def keys_signed(plan: Plan, keys: Keys) -> tuple[bytes, ...]:
    """Return the parts of a silo's keys that its identity signs."""
    return (plan.digest, keys.sender.encode(), _encode_keys(plan, keys))


def _encode_body(plan: Plan, message: Message) -> bytes:
    match message:
        case Open() | Close():
            confirmations = _encode_confirmations(plan, message.confirmations)
            return confirmations + b"".join(
                _OPENED.pack(plan.silos.index(silo), secret)
                for silo, secret in message.opened.items()
            )
        case Unmask():
            return _encode_confirmations(plan, message.confirmations)
        case Upload():
            return message.state_tag + to_bytes(message.words)
        case Reply():
            return _encode_names(plan, message.survivors) + to_bytes(message.words)
        case Confirm() | Ready():
            return message.result_hash + message.mac + message.signature + message.statement
        case Keys():
            return _encode_keys(plan, message) + message.signature
        case Roster():
            return encode_list(encode(plan, keys) for keys in message.keys)
        case Secrets():
            return encode_list(message.boxes)
        case Deal():
            return _encode_names(plan, message.cohort) + encode_list(message.boxes)
        case Shares():
            return b"".join(message.shares)
        case SealedState():
            return message.box
        case Adopt():
            return _encode_names(plan, (message.lead,)) + message.box
        case Adopted():
            return message.state_tag
        case Done() | Invite() | AskState():
            return b""


def _decode_body(plan: Plan, kind: int, t: int, sender: str, body: bytes) -> Message:
    match kind:
        case Kind.OPEN | Kind.CLOSE:
            confirmations, rest = _decode_confirmations(plan, body)
            opened = _decode_opened(plan, rest)
            return (Open if kind == Kind.OPEN else Close)(t, confirmations, opened)
        case Kind.UNMASK:
            confirmations, rest = _decode_confirmations(plan, body)
            if not rest:
                return Unmask(t, confirmations)
        case Kind.UPLOAD:
            words = from_bytes(body[_HASH_BYTES:], plan.length(t))
            return Upload(t, sender, body[:_HASH_BYTES], words)
        case Kind.REPLY:
            survivors, rest = _decode_names(plan, body)
            return Reply(t, survivors, from_bytes(rest, plan.length(t)))
        case Kind.CONFIRM | Kind.READY:
            if not _VOUCHED.size <= len(body) < _VOUCHED.size + 2**16:
                raise RemoteProtocolError("confirmation must hold a hash, a tag and a signature.")
            parts = *_VOUCHED.unpack_from(body), body[_VOUCHED.size :]
            return Confirm(t, sender, *parts) if kind == Kind.CONFIRM else Ready(sender, *parts)
        case Kind.KEYS:
            return _decode_keys(plan, sender, body)
        case Kind.ROSTER:
            frames = decode_list(body)
            if all(frame[_KIND_AT : _KIND_AT + 1] == bytes([Kind.KEYS]) for frame in frames):
                keys = (decode(plan, frame) for frame in frames)
                return Roster(tuple(k for k in keys if isinstance(k, Keys)))
        case Kind.SECRETS:
            return Secrets(sender, decode_list(body))
        case Kind.DEAL:
            cohort, rest = _decode_names(plan, body)
            return Deal(cohort, decode_list(rest))
        case Kind.SHARES:
            if len(body) % SHARE_BYTES == 0:
                shares = (body[i : i + SHARE_BYTES] for i in range(0, len(body), SHARE_BYTES))
                return Shares(t, sender, tuple(shares))
        case Kind.STATE:
            return SealedState(t, sender, body)
        case Kind.ADOPT:
            lead, box = _decode_names(plan, body)
            if len(lead) == 1:
                return Adopt(t, lead[0], box)
        case Kind.ADOPTED if len(body) == _HASH_BYTES:
            return Adopted(t, sender, body)
        case Kind.DONE if not body:
            return Done(t, sender)
        case Kind.INVITE if not body:
            return Invite()
        case Kind.ASK_STATE if not body:
            return AskState(t)
    raise RemoteProtocolError(f"frame of kind {kind} is unknown or has a body that does not fit.")


def _encode_names(plan: Plan, names: tuple[str, ...]) -> bytes:
    places = b"".join(plan.silos.index(name).to_bytes(2, "big") for name in names)
    return len(names).to_bytes(2, "big") + places


def _decode_names(plan: Plan, body: bytes) -> tuple[tuple[str, ...], bytes]:
    """Read a list of silos; return it and the rest."""
    end = 2 + 2 * int.from_bytes(body[:2], "big")
    if len(body) < max(2, end):
        raise RemoteProtocolError("list of silos is cut.")
    places = (int.from_bytes(body[i : i + 2], "big") for i in range(2, end, 2))
    return tuple(_silo(plan, place) for place in places), body[end:]


def encode_list(parts: Iterable[bytes]) -> bytes:
    """Return each part with its length before it."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def decode_list(body: bytes) -> tuple[bytes, ...]:
    """Return the parts of a list; raises RemoteProtocolError if it is cut."""
    parts, place = [], 0
    while place < len(body):
        end = place + 4 + int.from_bytes(body[place : place + 4], "big")
        if len(body) < place + 4 or len(body) < end:
            raise RemoteProtocolError("list in a frame is cut.")
        parts.append(body[place + 4 : end])
        place = end
    return tuple(parts)


def _encode_keys(plan: Plan, keys: Keys) -> bytes:
    seen = b"".join(_SEEN.pack(plan.silos.index(s), height) for s, height in keys.seen.items())
    per_round = b"".join(keys.pair) + b"".join(keys.commitments)
    return keys.identity + keys.box + keys.head + _TIME.pack(keys.time) + per_round + seen


def _decode_keys(plan: Plan, sender: str, body: bytes) -> Keys:
    rounds = plan.rounds if plan.profile == "pairwise" else 0
    sizes = [32, 32, _HASH_BYTES, _TIME.size, *[32] * (2 * rounds)]
    fixed, place = [], 0
    for size in sizes:
        fixed.append(body[place : place + size])
        place += size
    rest, signature = body[place:-SIGNATURE_BYTES], body[-SIGNATURE_BYTES:]
    if len(body) < place + SIGNATURE_BYTES or len(rest) % _SEEN.size:
        raise RemoteProtocolError("keys of a silo are cut.")
    seen = {_silo(plan, index): height for index, height in _SEEN.iter_unpack(rest)}
    if len(seen) * _SEEN.size != len(rest):
        raise RemoteProtocolError("a silo is listed twice among the keys of a silo.")
    identity, box, head, time = fixed[:4]
    pair, commitments = tuple(fixed[4 : 4 + rounds]), tuple(fixed[4 + rounds :])
    (seconds,) = _TIME.unpack(time)
    return Keys(sender, identity, box, pair, commitments, head, seconds, seen, signature)


def _encode_confirmations(plan: Plan, confirmations: tuple[Confirmation, ...]) -> bytes:
    return len(confirmations).to_bytes(2, "big") + b"".join(
        _CONFIRMATION.pack(
            plan.silos.index(c.silo), c.result_hash, c.mac, c.signature, len(c.statement)
        )
        + c.statement
        for c in confirmations
    )


def _decode_confirmations(plan: Plan, body: bytes) -> tuple[tuple[Confirmation, ...], bytes]:
    """Read confirmations; return them and the rest."""
    confirmations, place = [], 2
    for _ in range(int.from_bytes(body[:2], "big")):
        end = place + _CONFIRMATION.size
        if len(body) < end:
            raise RemoteProtocolError("list of confirmations is cut.")
        index, said, mac, signature, size = _CONFIRMATION.unpack_from(body, place)
        place = end + size
        statement = body[end:place]
        confirmations.append(Confirmation(_silo(plan, index), said, mac, signature, statement))
    if len(body) < place:
        raise RemoteProtocolError("list of confirmations is cut.")
    if len({c.silo for c in confirmations}) != len(confirmations):
        raise RemoteProtocolError("a silo is listed twice among the confirmations.")
    return tuple(confirmations), body[place:]


def _decode_opened(plan: Plan, body: bytes) -> dict[str, bytes]:
    if len(body) % _OPENED.size:
        raise RemoteProtocolError("list of what opens the masks is cut.")
    opened = {_silo(plan, index): secret for index, secret in _OPENED.iter_unpack(body)}
    if len(opened) * _OPENED.size != len(body):
        raise RemoteProtocolError("a silo is listed twice among what opens the masks.")
    return opened


def _silo(plan: Plan, index: int) -> str:
    if index >= len(plan.silos):
        raise RemoteProtocolError(f"silo number must be below {len(plan.silos)}, got {index}.")
    return plan.silos[index]
