"""The dealer of material, and each server's end of it.

The dealer knows shapes only: it receives no share, no opened value and no message between the
servers. Server 1 requests each item by number. Server 0 receives only its key, from which it
expands all its shares.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from cloister.core.declared import as_tuples
from cloister.core.errors import LocalProtocolError, RemoteProtocolError
from cloister.core.randomness import new_key
from cloister.federation.transports.links import Link
from cloister.hazmat.prg import KEY_BYTES, PadContext, Usage, expand
from cloister.hazmat.ring import WORD_BYTES, Words, from_bytes, to_bytes
from cloister.shares.mpc.material import (
    BitAsWord,
    Bits,
    Material,
    Pick,
    Product,
    Shuffle,
    Square,
    Truncation,
)

MOST_WORDS = 1 << 27
"""Largest size of one item, a gibibyte; a larger request is refused before anything is drawn."""

_KINDS: Mapping[str, type[Material]] = {
    kind.__name__: kind for kind in (Product, Square, Truncation, Bits, BitAsWord, Pick, Shuffle)
}
_END = b"end"


class Dealer:
    """The dealer of random material to two servers; with either of them it sees everything.

    Parameters
    ----------
    links : (Link, Link)
        To server 0 and to server 1.
    """

    def __init__(self, links: tuple[Link, Link]) -> None:
        self._links = links
        self._keys = (new_key(), new_key())
        self.items = 0

    def serve(self) -> int:
        """Deal until server 1 reports the end of the run; return the number of items.

        Raises
        ------
        RemoteProtocolError
            If a request is malformed, too large, or for a number that was dealt before.
        """
        # Different keys, so that neither server can expand the other's shares.
        for link, key in zip(self._links, self._keys, strict=True):
            link.send(key)
        while (request := self._links[1].receive()) != _END:
            self._links[1].send(self._deal(request))
        return self.items

    def _deal(self, request: bytes) -> bytes:
        serial, material = _read(request)
        # An item that is used twice would mask two values with one mask.
        if serial != self.items:
            raise RemoteProtocolError(
                f"material must be requested in order, next is number {self.items}, got {serial}; "
                "an item that was dealt is never dealt again."
            )
        self.items += 1
        drawn_by, derived_by = material.sharing
        own = [_drawn(key, index, serial, material) for index, key in enumerate(self._keys)]
        value = material.derive(*(drawn_by.join(*pair) for pair in zip(*own, strict=True)))
        rest = derived_by.rest(value, _derived(self._keys[0], serial, material))
        return _number(serial) + to_bytes(rest.ravel())

    def __repr__(self) -> str:
        return f"Dealer(items={self.items})"


class Supply:
    """One server's end of the dealer: it expands the server's shares, each item once.

    Parameters
    ----------
    index : {0, 1}
    link : Link
        To the dealer.
    """

    def __init__(self, index: int, link: Link) -> None:
        self._index = index
        self._link = link
        self._key = link.receive()
        if len(self._key) != KEY_BYTES:
            raise RemoteProtocolError(
                f"the dealer's key must have {KEY_BYTES} bytes, got {len(self._key)}."
            )
        self._asked = self._taken = self._awaited = 0
        self._expected: deque[Material] = deque()
        self.bytes_received = KEY_BYTES

    def expect(self, *materials: Material) -> None:
        """Request the next items now, so that their ways to the dealer and back are no rounds.

        They are then taken in this order, and no others before them. Until then, another call does
        nothing: a part of a program need not know what the whole has requested.
        """
        if self._expected:  # two requests for one item would put all later ones out of step
            return
        for material in materials:
            self._ask(material)
        self._expected += materials

    def _ask(self, material: Material) -> None:
        serial, self._asked = self._asked, self._asked + 1
        if self._index == 1:
            request = [serial, type(material).__name__, *vars(material).values()]
            self._link.send(json.dumps(request, allow_nan=False).encode())

    def take(self, material: Material) -> tuple[list[Words], Callable[[], Words]]:
        """Return this server's shares of the next item.

        Returns
        -------
        drawn : list of ndarray, uint64
        derived : callable
            Returns the share of the derived array. The dealer works while the servers open values,
            so call it as late as possible, in the order of the items.
        """
        serial, self._taken = self._taken, self._taken + 1
        if not self._expected:
            self._ask(material)
        elif (expected := self._expected.popleft()) != material:
            raise LocalProtocolError(
                f"item {serial} of the material was requested as {expected}, and is no {material}."
            )
        drawn = _drawn(self._key, self._index, serial, material)
        return drawn, lambda: self._derived(serial, material)

    def close(self) -> None:
        """Report the end of the run to the dealer."""
        if self._index == 1:
            self._link.send(_END)

    def _derived(self, serial: int, material: Material) -> Words:
        if serial != self._awaited:
            raise LocalProtocolError(
                f"material is used once and in order: next is number {self._awaited}, got {serial}."
            )
        self._awaited += 1
        if self._index == 0:
            return _derived(self._key, serial, material)
        # Server 1's share depends on server 0's, so it cannot be expanded from a key.
        body = self._link.receive()
        self.bytes_received += len(body)
        if body[:WORD_BYTES] != _number(serial):
            raise RemoteProtocolError(f"the dealer sent another item than number {serial}.")
        shape = material.derived()
        return from_bytes(body[WORD_BYTES:], prod(shape)).reshape(shape)

    def __repr__(self) -> str:
        return f"Supply(server={self._index}, taken={self._taken})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("Supply holds a key and cannot be stored; start a new run.")


def _drawn(key: bytes, index: int, serial: int, material: Material) -> list[Words]:
    """Return a server's shares of the drawn arrays: one stream, split into the shapes."""
    sizes = [prod(shape) for shape in material.drawn()]
    words = _expand(key, serial, f"drawn {index}", sum(sizes))
    parts = np.split(words, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, material.drawn(), strict=True)]


def _derived(key: bytes, serial: int, material: Material) -> Words:
    """Return server 0's share of the derived array."""
    shape = material.derived()
    return _expand(key, serial, "derived 0", prod(shape)).reshape(shape)


def _expand(key: bytes, serial: int, what: str, size: int) -> Words:
    """Return the stream of one array; number and name separate any two streams."""
    return expand(key, PadContext("", serial, 0, what, ""), size, Usage.MATERIAL)


def _number(serial: int) -> bytes:
    return serial.to_bytes(WORD_BYTES, "big")


def _read(request: bytes) -> tuple[int, Material]:
    """Return number and material of a request; raise RemoteProtocolError if it is malformed."""
    try:
        serial, name, *fields = json.loads(request)
        # Only kinds of this table are constructed, with fields that are checked below.
        material = _KINDS[name](*(as_tuples(field) for field in fields))
        # In Python integers, which cannot overflow for shapes of any size.
        shapes = (*material.drawn(), material.derived())
        words = sum(prod(shape) for shape in shapes)
        sizes = [size for shape in shapes for size in shape]
        sound = type(serial) is int and all(type(size) is int and size >= 0 for size in sizes)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RemoteProtocolError(
            "a request for material must name a number, a kind and its shapes; the sender runs "
            "another version."
        ) from error
    if not sound or words > MOST_WORDS:
        raise RemoteProtocolError(
            f"an item must have at most {MOST_WORDS} words of non-negative shapes, got {words}; "
            "compute in smaller batches."
        )
    return serial, material
