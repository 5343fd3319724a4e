"""Links over TCP. Servers listen, all others dial."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from cloister.errors import CloisterError, PlanError, TransportError
from cloister.transports.links import (
    HEADER,
    MOST_BYTES,
    SLOWEST,
    TIMEOUT,
    Carrier,
    Link,
    check_size,
    late,
)

STRANGERS = 64
"""Who may show at once who they are; one more sends away the one that came first."""

_SHAKING = 10.0  # seconds for each message of a stranger
_NAME_BYTES = 64


class TcpLink(Carrier):
    """One end of a TCP connection, which it owns from here on."""

    def __init__(self, connection: socket.socket, timeout: float = TIMEOUT) -> None:
        super().__init__(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Each direction has time-outs of its own.
        self._reading, self._writing = connection, connection.dup()
        self._writer = ThreadPoolExecutor(1)

    def receive(self, most: int = MOST_BYTES) -> bytes:
        """Return the next message."""
        deadline = time.monotonic() + self.timeout
        size = int.from_bytes(self._exactly(HEADER, deadline), "big")
        check_size(size, most)
        return bytes(self._exactly(size, deadline + size / SLOWEST))

    def _exactly(self, size: int, deadline: float) -> bytearray:
        body = bytearray(size)
        view = memoryview(body)
        with _explained(late(self.timeout)):
            while view:
                self._reading.settimeout(self._until(deadline))
                count = self._reading.recv_into(view)
                if not count:
                    raise TransportError(
                        "the other party closed it before the run was over; see what it says."
                    )
                view = view[count:]
        return body

    def _begin(self, data: bytes) -> list[Future[None]]:
        view = memoryview(data)
        if not self._leaving:  # most messages go out here, without a change of threads
            with _explained(), suppress(BlockingIOError):
                self._writing.settimeout(0)
                view = view[self._writing.send(view) :]
        return [self._writer.submit(self._drain, view)] if view else []

    def _drain(self, view: memoryview) -> None:
        slow = f"nothing was read within {self.timeout:g} s; see what the other party says."
        with _explained(TransportError(slow)):
            self._writing.settimeout(self.timeout)
            while view:
                view = view[self._writing.send(view) :]

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._reading.shutdown(socket.SHUT_RDWR)  # wakes who reads or writes
        self._writer.shutdown()
        self._reading.close()
        self._writing.close()


@contextmanager
def _explained(slow: TransportError | None = None) -> Iterator[None]:
    """Say in a sentence why a socket failed."""
    try:
        yield
    except OSError as error:
        if slow is not None and isinstance(error, TimeoutError):
            raise slow from None
        raise TransportError("the connection is broken; see what the other party says.") from error


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
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise TransportError(
                    f"nobody listens at {address} after {timeout:g} s; start the server there."
                ) from error
            time.sleep(0.05)
    link.send(name.encode())
    return link


class Listener:
    """Where a server waits for those who dial.

    Who belongs here is through in milliseconds. So strangers who take their time keep nobody out:
    of more than :data:`STRANGERS` the first is hung up on.

    Parameters
    ----------
    address : str
        HOST:PORT of an interface of this machine.
    expected : iterable of str
        Names of those who will dial.
    seal : callable
        Turns a name and a link into a sealed link, or raises: who fails is hung up on, and the one
        that the name belongs to may still come.
    timeout : float
        Seconds, for links that were sealed.

    Attributes
    ----------
    arrivals : dict of Future
        By name; has the sealed link once that party is there.
    """

    def __init__(
        self,
        address: str,
        expected: Iterable[str],
        seal: Callable[[str, Link], Link],
        timeout: float = TIMEOUT,
    ) -> None:
        host, port = address_of(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=64)
        except OSError as error:
            raise TransportError(f"cannot listen at {address}: {error.strerror}.") from error
        self.arrivals: dict[str, Future[Link]] = {name: Future() for name in expected}
        self._seal, self._timeout = seal, timeout
        self._strangers: list[TcpLink] = []
        self._arrived: list[TcpLink] = []
        self._lock = Lock()
        Thread(target=self._accept, daemon=True).start()

    def close(self, *, at_once: bool = False) -> None:
        """Stop listening and close every link."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        for link in (*self._arrived, *self._strangers):
            link.close(at_once=at_once)

    def _accept(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                connection, _ = self._socket.accept()
                link = TcpLink(connection, _SHAKING)
            except OSError:
                time.sleep(0.05)  # it is closed, the stranger is gone, or no descriptors are left
                continue
            with self._lock:
                self._strangers.append(link)
                if len(self._strangers) > STRANGERS:
                    self._strangers.pop(0).close(at_once=True)
            Thread(target=self._admit, args=(link,), daemon=True).start()

    def _admit(self, link: TcpLink) -> None:
        """Let somebody in who seals the link under an expected name, or hang up."""
        sealed: Link | None = None
        with suppress(CloisterError):
            name = link.receive(_NAME_BYTES).decode(errors="replace")
            if name in self.arrivals:
                sealed = self._seal(name, link)
        with self._lock:
            if link in self._strangers:  # it was not sent away
                self._strangers.remove(link)
                if sealed is not None and not self.arrivals[name].done():
                    link.timeout = self._timeout
                    self._arrived.append(link)
                    self.arrivals[name].set_result(sealed)
                    return
        link.close(at_once=True)
