"""Encoding of messages of encrypted scoring: a mark, a few public fields as JSON, and blobs.

::

    b"CLSC" | version, 1 byte | length of the JSON, 4 bytes | JSON | (length, 4 bytes | blob) ...

Numbers are big-endian. A reader knows the number of blobs before it decodes a message.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cloister.core.errors import RemoteProtocolError

MOST_BLOB = 1 << 19
"""Largest size of a key or a ciphertext, bytes."""
# Four letters and the version.
_MARK = b"CLSC\x01"
_MOST_JSON = 4096


def pack(kind: str, fields: Mapping[str, str | int], blobs: Sequence[bytes]) -> bytes:
    """Encode a message."""
    head = json.dumps(
        {"kind": kind, **fields}, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()
    parts = [part for blob in (head, *blobs) for part in (len(blob).to_bytes(4, "big"), blob)]
    return b"".join((_MARK, *parts))


def most_bytes(blobs: int) -> int:
    """Return the largest length of a message with `blobs` blobs."""
    return len(_MARK) + 4 + _MOST_JSON + blobs * (4 + MOST_BLOB)


def unpack(
    kind: str, names: Collection[str], data: bytes, blobs: int
) -> tuple[dict[str, Any], list[bytes]]:
    """Decode another party's message, which must have exactly these fields and blobs.

    A field is text or a whole number.

    Raises
    ------
    RemoteProtocolError
        If the message is malformed; the error quotes nothing of it.
    """
    try:
        head, *found = _parts(data, blobs + 1)
        fields = json.loads(head)
        right = fields.pop("kind") == kind and fields.keys() == set(names)
        right = right and all(isinstance(value, str | int) for value in fields.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right = False
    if not right:
        raise RemoteProtocolError(
            f"{kind} must have {blobs} parts of at most {MOST_BLOB} bytes, as this version writes "
            "them; it is damaged, of another version, or not for this model."
        )
    return fields, found


def _parts(data: bytes, count: int) -> list[bytes]:
    """Return the JSON and the blobs; raise ValueError if lengths do not match."""
    # A length is compared with its limit before the bytes are copied.
    parts, place = [], len(_MARK)
    for most in (_MOST_JSON, *[MOST_BLOB] * (count - 1)):
        size = int.from_bytes(data[place : place + 4], "big")
        if size > most:
            break
        parts.append(data[place + 4 : place + 4 + size])
        place += 4 + size
    if not isinstance(data, bytes) or data[: len(_MARK)] != _MARK or place != len(data):
        raise ValueError
    return parts
