"""One compute server: its index, its link to the other server, its material, and its costs."""

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
    """The communication costs of one server.

    Parameters
    ----------
    rounds : int
        Number of openings; each waits once for the other server.
    bytes_sent : int
        Bytes to the other server, which sends as many back.
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
        Link to the other server, sealed against all other parties, especially the dealer.
    supply : Supply
        This server's end of the dealer's material.
    watch : callable, optional
        Receives the words of each incoming message, for tests of a server's view.
    noise : NoiseSource, optional
        Source of this server's noise in programs with noise; by default the operating system's. No
        other party may know its draws, including the dealer and the other server.
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
        """Return this server's share of public values: the values at server 0, zeros at 1."""
        words = encode(values, frac_bits)
        return words if self.index == 0 else np.zeros_like(words)

    def take(self, material: Material) -> tuple[list[Words], Callable[[], Words]]:
        """Return this server's shares of the next item of material; see :meth:`Supply.take`."""
        return self.supply.take(material)

    def expect(self, *materials: Material) -> None:
        """Request items before they are taken, in this order; see :meth:`Supply.expect`."""
        self.supply.expect(*materials)

    def open(self, *shares: Words, sharing: Sharing = Sharing.SUM) -> list[Words]:
        """Open values to both servers, in one round.

        Opened values must be masked by fresh material, or be results of the program.

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
        """Exchange equally many bytes with the other server, in one round."""
        # The number of the round reveals servers that are out of step.
        message = self.cost.rounds.to_bytes(WORD_BYTES, "big") + b"".join(bodies)
        self._peer.send(message)
        # Both servers send before they receive, so neither waits for the other's send.
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
        """Send bytes to the other server, which receives them with :meth:`get`; one round."""
        self._peer.send(body)
        self.cost.rounds += 1
        self.cost.bytes_sent += len(body)

    def get(self) -> bytes:
        """Return bytes of the other server, which the caller must check."""
        self.cost.rounds += 1
        return self._peer.receive()

    def refresh(self, share: Words) -> Words:
        """Return a fresh share of the same value, in one round.

        Results are refreshed before they are sent. Their shares then reveal only their sum, even to
        a receiver that knows shares from which they were computed.
        """
        # The difference of two streams adds to zero over both servers, and each knows both.
        own = new_key()
        other = self.swap([own])[0]
        mine, theirs = (expand_share(key, share.shape) for key in (own, other))
        return share + mine - theirs

    def see(self, words: NDArray[np.unsignedinteger]) -> None:
        """Pass received words to the observer, if any."""
        if self._watch is not None:
            self._watch(words)

    def __repr__(self) -> str:
        return f"Server({self.index}, {self.cost})"
