"""Messages of encrypted scoring as bytes: a mark, a few public fields as JSON, and blobs.

::

    b"CLSC" | version, 1 byte | length of the JSON, 4 bytes | JSON | (length, 4 bytes | blob) ...

Numbers are big-endian. Whoever reads one knows how large it may be before it looks inside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cloister.errors import RemoteProtocolError

_MARK = b"CLSC\x01"
_MOST_JSON = 4096


def pack(kind: str, fields: Mapping[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Return a message."""
    head = json.dumps({"kind": kind, **fields}, sort_keys=True, separators=(",", ":")).encode()
    parts = [part for blob in (head, *blobs) for part in (len(blob).to_bytes(4, "big"), blob)]
    return b"".join((_MARK, *parts))


def unpack(
    kind: str, fields: Mapping[str, type], data: bytes, blobs: int, most_bytes: int
) -> tuple[dict[str, Any], list[bytes]]:
    """Return the fields and blobs of a message of others.

    Parameters
    ----------
    kind : str
    fields : mapping of str to type
        Which there must be, and no others.
    data : bytes
    blobs : int
        How many there must be.
    most_bytes : int
        Of one blob.

    Raises
    ------
    RemoteProtocolError
        If anything is not as it must be; nothing of the message is in the error.
    """
    if not isinstance(data, bytes) or len(data) > (blobs + 1) * (most_bytes + 4) + _MOST_JSON:
        raise RemoteProtocolError(
            f"{kind} must be bytes of at most {blobs} parts of {most_bytes}; send it again."
        )
    parts = _parts(data)
    found = _fields(parts[0]) if parts else {}
    good = found.pop("kind", None) == kind and found.keys() == fields.keys()
    if not good or any(type(found[name]) is not of for name, of in fields.items()):
        raise RemoteProtocolError(
            f"{kind} is damaged, or is another message or version; send it again."
        )
    if len(parts) != blobs + 1 or any(len(part) > most_bytes for part in parts[1:]):
        raise RemoteProtocolError(
            f"{kind} must have {blobs} parts of at most {most_bytes} bytes, got {len(parts) - 1}; "
            "take the offer of this model."
        )
    return found, parts[1:]


def _parts(data: bytes) -> list[bytes]:
    """Return the JSON and the blobs; nothing if lengths do not fit."""
    if not data.startswith(_MARK):
        return []
    parts, place = [], len(_MARK)
    while place < len(data):
        end = place + 4 + int.from_bytes(data[place : place + 4], "big")
        if end > len(data) or place + 4 > len(data):
            return []
        parts.append(data[place + 4 : end])
        place = end
    return parts


def _fields(head: bytes) -> dict[str, Any]:
    try:
        found = json.loads(head) if len(head) <= _MOST_JSON else None
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
