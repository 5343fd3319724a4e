"""What one dishonest silo answers in place of the truth, signed with its own keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cloister.hazmat.prg import Usage
from cloister.hazmat.signing import Identity
from cloister.protocol.client import Client
from cloister.protocol.convictions import OF_SHARES, OF_SUM
from cloister.protocol.messages import (
    BEFORE,
    CONFIRM_LABEL,
    SHARES_LABEL,
    Adopted,
    Confirm,
    Confirmation,
    Message,
    Ready,
    Secrets,
    Shares,
    Upload,
    confirmation_of,
    confirmed,
    given,
)
from cloister.protocol.plan import Plan

Cheat = Callable[[Message, Client, Identity], Message | None]


def signed(client: Client, identity: Identity, t: int, one: Confirmation) -> Confirmation:
    """Return a confirmation under the keys of a dishonest silo."""
    parts = confirmed(client.plan, t, one)
    mac = client._masker.tag(Usage.CONFIRM, *parts)
    return replace(one, mac=mac, signature=identity.sign(CONFIRM_LABEL, *parts))


def like(message: Confirm | Ready, one: Confirmation) -> Confirm | Ready:
    fields = ("result_hash", "mac", "signature", "received", "statement")
    return replace(message, **{name: getattr(one, name) for name in fields})


# Each returns a false answer, or the honest one where the silo does not cheat.


def bad_signature(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Confirm):
        return replace(message, result_hash=bytes(32))
    return message


def no_signature(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Confirm):
        return replace(message, signature=bytes(64))
    return message


def bad_tag(message: Message, client: Client, identity: Identity) -> Message:
    """Only the silos can check it; the signature covers all but the tag."""
    return replace(message, mac=bytes(32)) if isinstance(message, Confirm) else message


def bad_statement(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Confirm):
        one = replace(confirmation_of(message), statement=b"another")
        return like(message, signed(client, identity, message.round, one))
    return message


def false_hash(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Confirm):
        one = replace(confirmation_of(message), result_hash=bytes([7] * 32))
        return like(message, signed(client, identity, message.round, one))
    return message


def no_receipt(message: Message, client: Client, identity: Identity) -> Message:
    """The right hash, without the aggregator's signature on it."""
    if isinstance(message, Confirm):
        one = replace(confirmation_of(message), received=bytes(64))
        return like(message, signed(client, identity, message.round, one))
    return message


def false_ready(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Ready):
        one = replace(confirmation_of(message), result_hash=bytes([7] * 32))
        return like(message, signed(client, identity, BEFORE, one))
    return message


def unsigned_ready(message: Message, client: Client, identity: Identity) -> Message:
    return replace(message, signature=bytes(64)) if isinstance(message, Ready) else message


def other_acceptance(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Ready):
        return replace(message, dealt=bytes(32))
    return message


def resigned(message: Shares, identity: Identity, plan: Plan, **changes: object) -> Shares:
    changed = replace(message, **changes)  # type: ignore[arg-type]  # fields by name
    return replace(changed, signature=identity.sign(SHARES_LABEL, *given(plan, changed)))


def false_share(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Shares):
        first = next(iter(message.shares))
        wrong = {**message.shares, first: bytes([0] + [5] * 65)}
        return resigned(message, identity, client.plan, shares=wrong)
    return message


def all_shares_false(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Shares):
        wrong = dict.fromkeys(message.shares, bytes(66))
        return resigned(message, identity, client.plan, shares=wrong)
    return message


def unsigned_share(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Shares):
        return replace(message, shares=dict.fromkeys(message.shares, bytes(66)))
    return message


def other_kind_of_share(message: Message, client: Client, identity: Identity) -> Message:
    """The share of a survivor's key, which nobody may give with that of its seed."""
    if isinstance(message, Shares):
        held = client._masker.held  # type: ignore[attr-defined]  # of pairwise masks only
        keys = {name: held[name][message.round][1] for name in message.shares}
        return resigned(message, identity, client.plan, shares=keys)
    return message


def shares_of_another_sum(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Shares):
        return resigned(message, identity, client.plan, result_hash=bytes(32))
    return message


def false_state(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Upload | Adopted):
        return replace(message, state_tag=bytes(32))
    return message


def short_boxes(message: Message, client: Client, identity: Identity) -> Message:
    if isinstance(message, Secrets):
        return replace(message, boxes=message.boxes[:-1])
    return message


def silence(message: Message, client: Client, identity: Identity) -> Message | None:
    return None


def silence_in_rounds(message: Message, client: Client, identity: Identity) -> Message | None:
    return None if isinstance(message, Upload | Confirm | Shares) else message


UNNAMED = (silence, silence_in_rounds, bad_tag)
CHEATS = (
    *(bad_signature, no_signature, bad_tag, bad_statement, false_hash, no_receipt),
    *(false_ready, unsigned_ready, other_acceptance),
    *(false_share, all_shares_false, unsigned_share, other_kind_of_share, shares_of_another_sum),
    *(false_state, short_boxes, silence, silence_in_rounds),
)
CONVICTED = {
    false_hash: OF_SUM,
    no_receipt: OF_SUM,
    false_ready: OF_SUM,
    false_share: OF_SHARES,
    all_shares_false: OF_SHARES,
}
