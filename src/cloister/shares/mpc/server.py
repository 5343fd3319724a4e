"""One compute server: its index, its link to the other, its material, and what it all costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.errors import RemoteProtocolError
from cloister.core.randomness import new_key
from cloister.federation.transports.links import Link
from cloister.hazmat.ring import WORD_BYTES, Words, from_bytes, to_bytes
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.shares.mpc.dealer import Supply
from cloister.shares.mpc.material import Material, Sharing
from cloister.shares.mpc.shares import FRAC_BITS, encode, expand_share

Watch = Callable[[NDArray[np.unsignedinteger]], None]


@dataclass
class Cost:
    """What one server spent.

    Parameters
    ----------
    rounds : int
        Openings; each waits once for the other server.
    bytes_sent : int
        To the other server; as many come back.
    """

    rounds: int = 0
    bytes_sent: int = 0


class Server:
    """One of the two compute servers of a run; the dealer with either of them sees everything.

    Both servers run the same program with the same public arguments; only their shares differ.

    Parameters
    ----------
    index : {0, 1}
    peer : Link
        To the other server, sealed against everybody else, the dealer above all.
    supply : Supply
        This server's end of the dealer's material.
    watch : callable, optional
        Gets the words of each message that arrives: for tests of what a server sees.
    noise : NoiseSource, optional
        What this server adds where a program asks for noise; the operating system's by default.
        Nobody else may know it, the dealer and the other server included.
    """

    def __init__(
        self,
        index: int,
        peer: Link,
        supply: Supply,
        watch: Watch | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.index = index
        self.supply = supply
        self.cost = Cost()
        self._peer = peer
        self._watch = watch
        self.noise = noise or DiscreteNoise()

    def constant(self, values: ArrayLike, frac_bits: int = FRAC_BITS) -> Words:
        """Return this server's share of public values: server 0 has them, server 1 zeros."""
        words = encode(values, frac_bits)
        return words if self.index == 0 else np.zeros_like(words)

    def take(self, material: Material) -> tuple[list[Words], Callable[[], Words]]:
        """Return this server's shares of the next item of material; see :meth:`Supply.take`."""
        return self.supply.take(material)

    def open(self, *shares: Words, sharing: Sharing = Sharing.SUM) -> list[Words]:
        """Open values to both servers, in one round.

        What is opened must be masked by fresh material, or be a result of the program.

        Raises
        ------
        RemoteProtocolError
            If the other server is at another step or opens other shapes.
        """
        others = self.swap([to_bytes(share.ravel()) for share in shares])
        opened = []
        for share, body in zip(shares, others, strict=True):
            other = from_bytes(body, share.size).reshape(share.shape)
            self.see(other.ravel())
            opened.append(sharing.join(share, other))
        return opened

    def swap(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Send the other server these bytes and return as many of its own, in one round."""
        message = self.cost.rounds.to_bytes(WORD_BYTES, "big") + b"".join(bodies)
        self._peer.send(message)
        answer = self._peer.receive()
        if len(answer) != len(message) or answer[:WORD_BYTES] != message[:WORD_BYTES]:
            raise RemoteProtocolError(
                f"step {self.cost.rounds} needs {len(message)} bytes of the other server, got "
                f"{len(answer)}; it runs another program, or another step of it."
            )
        self.cost.rounds += 1
        self.cost.bytes_sent += len(message)
        ends = np.cumsum([WORD_BYTES, *(len(body) for body in bodies)]).tolist()
        return [answer[start:end] for start, end in pairwise(ends)]

    def give(self, body: bytes) -> None:
        """Send the other server bytes, which it takes with :meth:`get`; one round."""
        self._peer.send(body)
        self.cost.rounds += 1
        self.cost.bytes_sent += len(body)

    def get(self) -> bytes:
        """Return bytes that the other server gives; who calls this checks them."""
        self.cost.rounds += 1
        return self._peer.receive()

    def refresh(self, share: Words) -> Words:
        """Return a fresh share of the same value, in one round.

        What leaves the servers is refreshed first: its two shares then say nothing but their sum,
        whatever the receiver knows of the shares it was computed from.
        """
        own = new_key()
        other = self.swap([own])[0]
        mine, theirs = (expand_share(key, share.shape) for key in (own, other))
        return share + mine - theirs

    def see(self, words: NDArray[np.unsignedinteger]) -> None:
        """Show what arrived to whoever watches."""
        if self._watch is not None:
            self._watch(words)

    def __repr__(self) -> str:
        return f"Server({self.index}, {self.cost})"
