"""The listener in front of TLS, whose connections any host on the network can open.

An accepted connection waits in one of two crowds, each bounded in total and per address. Until its
first byte it costs a descriptor only; TLS, with its memory, starts with that byte. Then it shakes
hands, until it presented a certificate. Legitimate clients send immediately and handshake within
milliseconds, so a full crowd drops its oldest member, not the newest.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

BACKLOG = 128  # connections that the system keeps for us to accept
SILENT, SHAKING = (512, 256), (128, 64)  # most in a crowd: in all, and of one address
SECONDS = 10.0  # to speak, and again to shake hands
_GOODBYE_SECONDS = 5.0  # for the other end to take leave of TLS
_AT_ONCE = 8  # accepted between two looks at open streams
_PAUSE = 1.0  # seconds without descriptors or memory before accepting again
_A_HANDSHAKE = b"\x16"  # the first byte of TLS
_FORGET_UNREAD = struct.pack("ii", 1, 0)  # close without waiting for the other end

_ENDLESS = 1 << 20  # descriptors, where the system names no limit

_LOG = logging.getLogger(__name__)
_Member = TypeVar("_Member", bound=Hashable)


class ConnectionQuota(Generic[_Member]):
    """A bounded collection of members in the order of arrival, with the address of each.

    Parameters
    ----------
    most, most_of_one : int
        Bounds in total, and per address.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most, self.most_of_one = most, most_of_one
        self._of: dict[str, dict[_Member, None]] = {}
        self._address: dict[_Member, str] = {}

    def __len__(self) -> int:
        return len(self._address)

    def __contains__(self, member: object) -> bool:
        return member in self._address

    def add(self, member: _Member, address: str) -> _Member | None:
        """Add a member; return the member that is dropped for it, if the crowd was full.

        It is the oldest of this address if the address is at its bound, or else the oldest of the
        address with most members.
        """
        leaves = None
        if len(self._of.get(address, ())) >= self.most_of_one:
            leaves = self._oldest(address)
        elif len(self) >= self.most:
            leaves = self._oldest(max(self._of, key=lambda one: len(self._of[one])))
        if leaves is not None:
            self.remove(leaves)
        self._of.setdefault(address, {})[member] = None
        self._address[member] = address
        return leaves

    def remove(self, member: _Member) -> bool:
        """Remove a member; return True if it was present."""
        address = self._address.pop(member, None)
        if address is None:
            return False
        del self._of[address][member]
        if not self._of[address]:
            del self._of[address]
        return True

    def members(self) -> tuple[_Member, ...]:
        """Return all members."""
        return tuple(self._address)

    def _oldest(self, address: str) -> _Member:
        return next(iter(self._of[address]))


class TlsListener:
    """The acceptor of connections, which passes on those whose TLS handshake succeeds.

    Parameters
    ----------
    listener : socket
        A listening socket; closed by :meth:`close`.
    new_protocol : function
        Returns the protocol that serves a connection after TLS.
    silent, shaking : (int, int)
        Largest number of connections in each crowd, in total and per address.
    seconds : float
        Time limit for the first byte, and again for the handshake.

    Notes
    -----
    Everything runs in the event loop.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        new_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        silent: tuple[int, int] = SILENT,
        shaking: tuple[int, int] = SHAKING,
        seconds: float = SECONDS,
    ) -> None:
        self._listener = listener
        self._context = context
        self._new_protocol = new_protocol
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self.silent: ConnectionQuota[socket.socket] = ConnectionQuota(*silent)
        self.shaking: ConnectionQuota[socket.socket] = ConnectionQuota(*shaking)
        self._deadlines: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._open = False

    def open(self) -> None:
        """Accept connections from now on."""
        self._open = True
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop accepting connections, and close those that have not passed yet."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listener)
            self._listener.close()
        for connection in self.silent.members():
            self._leave(connection)
        for connection in self.shaking.members():
            _break_off(connection)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or no memory: the crowds must thin out first
                _LOG.error("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE, self._again)
                return
            connection.setblocking(False)
            self._wait_for_words(connection, network_of(str(peer[0])))

    def _again(self) -> None:
        if self._open:
            self._loop.add_reader(self._listener, self._accept)

    def _wait_for_words(self, connection: socket.socket, address: str) -> None:
        oldest = self.silent.add(connection, address)
        if oldest is not None:
            self._leave(oldest)
        self._loop.add_reader(connection, self._spoke, connection, address)
        self._deadlines[connection] = self._loop.call_later(self._seconds, self._leave, connection)

    def _leave(self, connection: socket.socket) -> None:
        """Close a silent connection."""
        self._stop_waiting(connection)
        _break_off(connection)
        connection.close()

    def _stop_waiting(self, connection: socket.socket) -> None:
        self.silent.remove(connection)
        self._deadlines.pop(connection).cancel()
        self._loop.remove_reader(connection)

    def _spoke(self, connection: socket.socket, address: str) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if first != _A_HANDSHAKE:
            self._leave(connection)
            return
        self._stop_waiting(connection)
        oldest = self.shaking.add(connection, address)
        if oldest is not None:
            _break_off(oldest)  # its handshake fails and closes it
        handshake = self._loop.create_task(self._shake_hands(connection))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._new_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=_GOODBYE_SECONDS,
            )
        except OSError as error:  # TLS says no, or the other end is gone: daily bread of a port
            error.with_traceback(None)  # its frames hold megabytes until the next full collection
        finally:
            self.shaking.remove(connection)


def room(limits: tuple[int, int] | None) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the bounds of both crowds, which leave most descriptors to parties.

    Parameters
    ----------
    limits : (int, int) or None
        As returned by :func:`descriptors`.
    """
    if limits is None:
        return SILENT, SHAKING
    now, _ = limits
    return (
        (min(SILENT[0], now // 4), min(SILENT[1], now // 8)),
        (min(SHAKING[0], now // 8), min(SHAKING[1], now // 16)),
    )


def network_of(address: str) -> str:
    """Return the network of an address: itself, or with IPv6 its network of 64 bits."""
    with suppress(ValueError):
        known = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(known, ipaddress.IPv6Address):
            if known.ipv4_mapped is not None:
                return str(known.ipv4_mapped)
            return str(ipaddress.IPv6Network((known, 64), strict=False))
    return address


def _break_off(connection: socket.socket) -> None:
    """End a connection in both directions, also for readers in other threads."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET_UNREAD)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def descriptors(*, raised: bool = False) -> tuple[int, int] | None:
    """Return the current and the largest number of files and connections of this process.

    Parameters
    ----------
    raised : bool
        If True, raise the current limit to the largest first.

    Returns
    -------
    (int, int) or None
        None on systems without such a limit.
    """
    if sys.platform == "win32":
        return None
    import resource

    now, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENDLESS if hard == resource.RLIM_INFINITY else hard
    if raised and now < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            now = most
    return now, most
