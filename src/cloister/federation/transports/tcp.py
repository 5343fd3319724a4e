"""Links over TCP. Servers listen, all others dial."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from cloister.core.errors import CloisterError, PlanError, TransportError
from cloister.federation.transports.links import (
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
"""Largest number of unauthenticated connections; one more closes the oldest."""

_SHAKING = 10.0  # seconds for each message of a stranger
_NAME_BYTES = 64
_TICK = 0.02  # seconds between two looks at who is there


class TcpLink(Carrier):
    """One end of a TCP connection, which the link owns and closes."""

    def __init__(self, connection: socket.socket, timeout: float = TIMEOUT) -> None:
        super().__init__(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A duplicate, since each direction has separate time-outs.
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
                        "the other party closed the link before the run ended; check its log."
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
        slow = f"nothing was read within {self.timeout:g} s; check the log of the other party."
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
    """Turn an OSError of a socket into a TransportError."""
    try:
        yield
    except OSError as error:
        if slow is not None and isinstance(error, TimeoutError):
            raise slow from None
        raise TransportError(
            "the connection is broken; check the log of the other party."
        ) from error


def address_of(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises
    ------
    PlanError
        If the address has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise PlanError(f"address must be HOST:PORT, got {address!r}.")
    return host.strip("[]"), int(port)


def dial(address: str, name: str, timeout: float = TIMEOUT) -> TcpLink:
    """Connect to a server that listens at `address`, and send the own name.

    Repeated until `timeout` seconds have passed, as parties start at different times.

    Raises
    ------
    TransportError
        If no server listens there in time.
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
                    f"no server listens at {address} after {timeout:g} s; start the server there."
                ) from error
            time.sleep(0.05)
    link.send(name.encode())
    return link


def let_in(
    address: str,
    expected: Collection[str],
    seal: Callable[[str, Link], Link],
    timeout: float = TIMEOUT,
) -> dict[str, tuple[TcpLink, Link]]:
    """Listen until all expected parties have dialled; return their carriers and sealed links.

    Legitimate parties authenticate within milliseconds. So slow strangers exclude no party: of more
    than :data:`STRANGERS` connections, the oldest is closed.

    Parameters
    ----------
    address : str
        HOST:PORT of an interface of this machine.
    seal : callable
        Turns a name and a link into a sealed link, or raises. A connection that fails is closed,
        and the party with that name may still connect.
    timeout : float
        Seconds for all parties to connect, and for each message after that.

    Raises
    ------
    TransportError
        If a party does not connect in time.
    """
    deadline = time.monotonic() + timeout
    inside: dict[str, tuple[TcpLink, Link]] = {}
    outside: list[TcpLink] = []
    lock = Lock()

    def admit(link: TcpLink) -> None:
        sealed: Link | None = None
        with suppress(CloisterError):
            name = link.receive(_NAME_BYTES).decode(errors="replace")
            if name in expected:
                sealed = seal(name, link)
        with lock:
            if link in outside:  # it was not sent away
                outside.remove(link)
                if sealed is not None and name not in inside:
                    link.timeout = timeout
                    inside[name] = link, sealed
                    return
        link.close(at_once=True)

    door = _door(address)
    try:
        while missing := sorted(set(expected) - set(inside)):
            if time.monotonic() > deadline:
                raise TransportError(
                    f"{missing[0]!r} did not connect within {timeout:g} s; start it with the same "
                    "session file."
                )
            try:
                link = TcpLink(door.accept()[0], _SHAKING)
            except OSError:  # nobody came, the stranger is gone already, or no descriptors are left
                time.sleep(_TICK)
                continue
            with lock:
                outside.append(link)
                if len(outside) > STRANGERS:
                    outside.pop(0).close(at_once=True)
            Thread(target=admit, args=(link,), daemon=True).start()
        return inside
    finally:
        door.close()
        with lock:
            for link in (*outside, *(link for link, _ in inside.values() if missing)):
                link.close(at_once=True)
            outside.clear()


def _door(address: str) -> socket.socket:
    host, port = address_of(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        door = socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise TransportError(f"cannot listen at {address}: {error.strerror}.") from error
    door.settimeout(_TICK)
    return door
