"""Links over TCP: whole messages, each with its length in front.

Nothing here is secret or authenticated: every link is sealed before it is used
(:mod:`cloister.mpc.sealed`). Servers listen, all others dial.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from threading import Condition, Semaphore, Thread

from cloister.errors import CloisterError, PlanError, RemoteProtocolError, TransportError
from cloister.mpc.links import TIMEOUT, Link

MOST_BYTES = (1 << 30) + (1 << 16)
"""Of one message: the largest item of material, and what seals it."""

HELLO_BYTES = 4096
"""Of a message before both ends have shown who they are."""

_HEADER = 8
_SLOWEST = 1e6  # bytes a second that a message in transit must make, on average
_SHAKING = 10.0  # seconds that a stranger may take to show who it is
_STRANGERS = 16  # who may do so at once


class TcpLink:
    """One end of a TCP connection, non-blocking underneath.

    Parameters
    ----------
    connection : socket
        Connected; owned from here on.
    timeout : float
        Seconds to wait for a message to come, or for the other end to read.
    limit : int
        Largest message that is taken in, in bytes.
    """

    def __init__(
        self, connection: socket.socket, timeout: float = TIMEOUT, limit: int = MOST_BYTES
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.timeout, self.limit = timeout, limit
        self._connection = connection
        self._backlog: deque[memoryview] = deque()
        self._changed = Condition()
        self._failure: str | None = None
        self._writer: Thread | None = None

    def send(self, body: bytes) -> None:
        """Send a message; what the network does not take at once goes out in the background.

        Raises
        ------
        TransportError
            If the other end is gone, or did not read for too long.
        """
        with self._changed:
            if self._failure is not None:
                raise TransportError(self._failure)
            self._backlog += (memoryview(len(body).to_bytes(_HEADER, "big")), memoryview(body))
            if self._writer is None:
                self._write()  # most messages go out here, without a change of threads
                if self._failure is not None:
                    raise TransportError(self._failure)
                if self._backlog:
                    self._writer = Thread(target=self._drain, daemon=True)
                    self._writer.start()

    def receive(self) -> bytes:
        """Return the next message; see :meth:`Link.receive`."""
        deadline = time.monotonic() + self.timeout
        size = int.from_bytes(self._exactly(_HEADER, deadline), "big")
        if size > self.limit:
            raise RemoteProtocolError(
                f"a message must have at most {self.limit} bytes, got one of {size}; "
                "compute in smaller batches."
            )
        return bytes(self._exactly(size, deadline + size / _SLOWEST))

    def close(self, *, at_once: bool = False) -> None:
        """Close the link, when all that was sent has left or at once."""
        with self._changed:
            if self._failure is None and not at_once:
                self._changed.wait_for(lambda: not self._backlog, self.timeout)
            self._failure = "the link is closed."
            self._backlog.clear()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, size: int, deadline: float) -> bytearray:
        body = bytearray(size)
        view = memoryview(body)
        try:
            while view:
                try:
                    count = self._connection.recv_into(view)
                except BlockingIOError:
                    self._wait(deadline, to_read=True)
                    continue
                if not count:
                    raise TransportError(
                        "the other party closed it before the run was over; see what it says."
                    )
                view = view[count:]
        except (OSError, ValueError) as error:  # a closed socket is no longer a number
            raise TransportError("the connection is broken; see what the other says.") from error
        return body

    def _wait(self, deadline: float, *, to_read: bool) -> None:
        ends = [self._connection]
        left = max(0.0, deadline - time.monotonic())
        if not any(select.select(ends if to_read else [], [] if to_read else ends, [], left)):
            did = "no message came" if to_read else "nothing was read"
            raise TransportError(f"{did} within {self.timeout:g} s; see what the other party says.")

    def _write(self) -> None:
        """Write as much as the network takes; the caller holds the lock."""
        try:
            while self._backlog:
                # Header and body leave in one packet.
                ahead = [self._backlog[i] for i in range(min(2, len(self._backlog)))]
                count = self._connection.sendmsg(ahead)
                while self._backlog and count >= len(self._backlog[0]):
                    count -= len(self._backlog.popleft())
                if count:
                    self._backlog[0] = self._backlog[0][count:]
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self._failed("the other party is gone; see what it says.")

    def _drain(self) -> None:
        """Write the backlog in the background."""
        while True:
            with self._changed:
                self._write()
                if not self._backlog:
                    self._writer = None
                    self._changed.notify_all()
                    return
            try:
                self._wait(time.monotonic() + self.timeout, to_read=False)
            except (TransportError, OSError, ValueError) as error:
                with self._changed:
                    said = error if isinstance(error, TransportError) else "the link is broken."
                    self._failed(str(said))
                    self._writer = None
                    self._changed.notify_all()
                return

    def _failed(self, why: str) -> None:
        self._failure = self._failure or why
        self._backlog.clear()

    def __repr__(self) -> str:
        return f"TcpLink(timeout={self.timeout:g})"


def address_of(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises
    ------
    PlanError
        If it is not of this form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise PlanError(f"address must be HOST:PORT, got {address!r}.")
    return host.strip("[]"), int(port)


def dial(address: str, name: str, timeout: float = TIMEOUT) -> TcpLink:
    """Connect to a server that listens at `address`, and say the own name.

    Tries again until `timeout` seconds have passed: parties start when they like.

    Raises
    ------
    TransportError
        If nobody listens there in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            left = max(0.05, deadline - time.monotonic())
            link = TcpLink(socket.create_connection(address_of(address), left), timeout)
            link.send(name.encode())
            return link
        except OSError as error:
            if time.monotonic() > deadline:
                raise TransportError(
                    f"nobody listens at {address} after {timeout:g} s; start the server there."
                ) from error
            time.sleep(0.05)


class Listener:
    """Where a server waits for those who dial; each is sealed before it counts as there.

    Parameters
    ----------
    address : str
        HOST:PORT of an interface of this machine.
    expected : collection of str
        Names of those who will dial. Who says another name is hung up on.
    seal : callable
        Turns a name and a link into a sealed link, or raises: who fails is hung up on, and the one
        that the name belongs to may still come.
    timeout : float
        Seconds, for links that were sealed.
    """

    def __init__(
        self,
        address: str,
        expected: Collection[str],
        seal: Callable[[str, Link], Link],
        timeout: float = TIMEOUT,
    ) -> None:
        host, port = address_of(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=64)
        except OSError as error:
            raise TransportError(f"cannot listen at {address}: {error.strerror}.") from error
        self._expected, self._seal, self._timeout = frozenset(expected), seal, timeout
        self._arrived: dict[str, tuple[TcpLink, Link]] = {}
        self._changed = Condition()
        self._slots = Semaphore(_STRANGERS)
        Thread(target=self._accept, daemon=True).start()

    def links(self) -> dict[str, Link]:
        """Wait for all that are expected and return their links, by name.

        Raises
        ------
        TransportError
            If somebody does not come in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._arrived) == len(self._expected), self._timeout)
            missing = sorted(self._expected - set(self._arrived))
            if missing:
                raise TransportError(
                    f"{missing[0]!r} did not come within {self._timeout:g} s; start it with the "
                    "same session file."
                )
            return {name: link for name, (_, link) in self._arrived.items()}

    def close(self, *, at_once: bool = False) -> None:
        """Stop listening and close every link."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        for connection, _ in self._arrived.values():
            connection.close(at_once=at_once)

    def _accept(self) -> None:
        while True:
            self._slots.acquire()
            try:
                connection, _ = self._socket.accept()
            except (OSError, ValueError):
                if self._socket.fileno() < 0:
                    return  # closed
                time.sleep(0.05)  # the stranger is gone already, or there are no descriptors left
                self._slots.release()
                continue
            Thread(target=self._admit, args=(connection,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        try:
            link = TcpLink(connection, _SHAKING, HELLO_BYTES)
            name = link.receive().decode(errors="replace")
            if name not in self._expected or name in self._arrived:
                raise RemoteProtocolError("somebody dialled who is not expected.")
            sealed = self._seal(name, link)
            with self._changed:
                if name in self._arrived:
                    raise RemoteProtocolError("somebody dialled twice.")
                link.timeout, link.limit = self._timeout, MOST_BYTES
                self._arrived[name] = link, sealed
                self._changed.notify_all()
        except (CloisterError, OSError):
            connection.close()
        finally:
            self._slots.release()
