"""Frames: frozen values and their byte codec.

Every frame has the same header: protocol version, kind, session, plan digest, round, attempt,
sender, lattice and ring, length of the body. A receiver refuses a frame whose header is not of its
plan before it looks at the body. Contents are masked or public, but ``repr`` shows only the kind.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

from cloister.errors import RemoteProtocolError
from cloister.hazmat.ring import RING_BITS, Words, from_bytes, to_bytes
from cloister.protocol.plan import PROTOCOL_VERSION, Plan

AGGREGATOR = ""
"""Sender of the aggregator's frames; no silo can have this name."""

_MAGIC = b"CLST"
_HEADER = struct.Struct(">4sHB16s32sIIBBBI")
_HASH_BYTES = 32
_CONFIRMATION = struct.Struct(f">H{_HASH_BYTES}s{_HASH_BYTES}s")


class Kind(IntEnum):
    """What a frame is."""

    OPEN = 1
    UPLOAD = 2
    REPLY = 3
    CONFIRM = 4
    CLOSE = 5
    DONE = 6


@dataclass(frozen=True)
class Confirmation:
    """A silo's word on what it was told to unmask in a round.

    Parameters
    ----------
    silo : str
    result_hash : bytes of length 32
        Over plan, round, survivors and masked sum.
    mac : bytes of length 32
        Under the group key.
    """

    silo: str
    result_hash: bytes
    mac: bytes = field(repr=False)


@dataclass(frozen=True)
class Open:
    """The aggregator opens round `round` and hands out the confirmations of the one before."""

    kind: ClassVar[Kind] = Kind.OPEN
    round: int
    confirmations: tuple[Confirmation, ...] = field(default=(), repr=False)
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


@dataclass(frozen=True)
class Close:
    """The last round is over; the confirmations of it."""

    kind: ClassVar[Kind] = Kind.CLOSE
    round: int
    confirmations: tuple[Confirmation, ...] = field(default=(), repr=False)
    sender: str = AGGREGATOR


@dataclass(frozen=True)
class Done:
    """The silo has the result."""

    kind: ClassVar[Kind] = Kind.DONE
    round: int
    sender: str


Message = Open | Upload | Reply | Confirm | Close | Done


def encode(plan: Plan, message: Message) -> bytes:
    """Return the frame of a message under `plan`."""
    body = _encode_body(plan, message)
    sender = message.sender.encode()
    header = _HEADER.pack(
        _MAGIC,
        PROTOCOL_VERSION,
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
    if magic != _MAGIC or version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"frame is not of protocol version {PROTOCOL_VERSION}; use the same version everywhere."
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
    from_silo = kind in (Kind.UPLOAD, Kind.CONFIRM, Kind.DONE)
    if from_silo != (sender in plan.silos) or (not from_silo and sender != AGGREGATOR):
        raise RemoteProtocolError("sender is not a party that may send this kind of frame.")
    return _decode_body(plan, kind, t, sender, rest[name_len:])


def _encode_body(plan: Plan, message: Message) -> bytes:
    match message:
        case Open() | Close():
            order = {name: index for index, name in enumerate(plan.silos)}
            return b"".join(
                _CONFIRMATION.pack(order[c.silo], c.result_hash, c.mac)
                for c in message.confirmations
            )
        case Upload():
            return message.state_tag + to_bytes(message.words)
        case Reply():
            members = b"".join(
                plan.silos.index(name).to_bytes(2, "big") for name in message.survivors
            )
            return len(message.survivors).to_bytes(2, "big") + members + to_bytes(message.words)
        case Confirm():
            return message.result_hash + message.mac
        case Done():
            return b""


def _decode_body(plan: Plan, kind: int, t: int, sender: str, body: bytes) -> Message:
    match kind:
        case Kind.OPEN:
            return Open(t, _decode_confirmations(plan, body))
        case Kind.CLOSE:
            return Close(t, _decode_confirmations(plan, body))
        case Kind.UPLOAD:
            words = from_bytes(body[_HASH_BYTES:], plan.length(t))
            return Upload(t, sender, body[:_HASH_BYTES], words)
        case Kind.REPLY:
            if len(body) < 2 or len(body) < 2 + 2 * (count := int.from_bytes(body[:2], "big")):
                raise RemoteProtocolError("reply is cut inside its list of survivors.")
            survivors = tuple(
                _silo(plan, int.from_bytes(body[i : i + 2], "big"))
                for i in range(2, 2 + 2 * count, 2)
            )
            return Reply(t, survivors, from_bytes(body[2 + 2 * count :], plan.length(t)))
        case Kind.CONFIRM:
            if len(body) != 2 * _HASH_BYTES:
                raise RemoteProtocolError("confirmation must hold a hash and a tag.")
            return Confirm(t, sender, body[:_HASH_BYTES], body[_HASH_BYTES:])
        case Kind.DONE if not body:
            return Done(t, sender)
    raise RemoteProtocolError(f"frame of kind {kind} is unknown or has a body that does not fit.")


def _decode_confirmations(plan: Plan, body: bytes) -> tuple[Confirmation, ...]:
    if len(body) % _CONFIRMATION.size:
        raise RemoteProtocolError("list of confirmations is cut.")
    confirmations = tuple(
        Confirmation(_silo(plan, index), result_hash, mac)
        for index, result_hash, mac in _CONFIRMATION.iter_unpack(body)
    )
    if len({c.silo for c in confirmations}) != len(confirmations):
        raise RemoteProtocolError("a silo is listed twice among the confirmations.")
    return confirmations


def _silo(plan: Plan, index: int) -> str:
    if index >= len(plan.silos):
        raise RemoteProtocolError(f"silo number must be below {len(plan.silos)}, got {index}.")
    return plan.silos[index]
