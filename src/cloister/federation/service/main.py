"""The coordinator's process: database, audit file, streams, jobs and the TLS port together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from cloister.core.errors import TransportError
from cloister.federation.pki import (
    KeyFolder,
    Peer,
    peer_of,
    revoked_serials,
    server_context,
    version_of,
)
from cloister.federation.service.app import NotEnrolled, Scope, make_app
from cloister.federation.service.audit import Audit
from cloister.federation.service.door import descriptors
from cloister.federation.service.hub import Hub
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.logs import place_of
from cloister.federation.service.process import prepare
from cloister.federation.service.server import Server, peer_certificate
from cloister.federation.service.store import Store
from cloister.privacy.noise import DiscreteNoise, NoiseSource

if TYPE_CHECKING:
    from cloister.federation.settings import CoordinatorSettings

_LOG = logging.getLogger(__name__)


def run(
    settings: CoordinatorSettings,
    *,
    noise: NoiseSource | None = None,
    ready: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a coordinator until a signal stops it.

    Parameters
    ----------
    noise : NoiseSource, optional
        A double for tests; by default noise of the operating system for every job.
    ready : function, optional
        Called with the port once it is open.
    stop : Event, optional
        Ends the service soon after it is set.
    """
    # Before the port opens: a wrong mode of a key or a locked database must stop the start.
    keys = prepare(settings.keys)
    store = Store(settings.database)
    audit = Audit(settings.audit_log)
    enrolled = Enrolled(keys)
    jobs: Jobs  # the hub reports to it, and it speaks through the hub
    hub = Hub(
        on_connect=lambda silo: jobs.connected(silo),
        on_decision=lambda silo, job, approved, reason: jobs.decided(silo, job, approved, reason),
        identify=enrolled,
        on_shut_out=lambda silo, reason: jobs.shut_out(silo, reason),
        max_message_bytes=settings.max_message_bytes,
    )
    jobs = Jobs(
        store,
        hub,
        audit,
        round_timeout=settings.round_timeout,
        grace=settings.grace,
        approval_timeout=settings.approval_timeout,
        new_noise=DiscreteNoise if noise is None else lambda: noise,
        quotas=settings.quotas,
    )
    try:
        server = Server(
            make_app(jobs, hub, enrolled),
            settings.listen,
            server_context(keys),
            max_message_bytes=settings.max_message_bytes,
        )
        serve(server, stop, ready, jobs)
    finally:
        jobs.close()
        store.close()
        audit.close()


def serve(
    server: Server,
    stop: threading.Event | None = None,
    ready: Callable[[int], None] | None = None,
    jobs: Jobs | None = None,
) -> None:
    """Serve in a thread, so that jobs stop before their streams are closed."""
    stop = stop or threading.Event()
    descriptors(raised=True)
    with ThreadPoolExecutor(1, "server") as threads:
        serving = threads.submit(server.run)
        # A server that fails by itself must end the process.
        serving.add_done_callback(lambda _: stop.set())
        try:
            if jobs:
                jobs.start()
            _LOG.info("listening at port %d", server.port)
            if ready:
                ready(server.port)
            stop.wait()
            if serving.done():
                serving.result()
        finally:
            if jobs:
                jobs.close()
            server.stop()
        if error := serving.exception():
            _LOG.warning("error while closing: %s", place_of(error))


class Enrolled:
    """A function from a connection to the party in its certificate, if it is still valid.

    Parameters
    ----------
    keys : KeyFolder
        Keys of the coordinator; a new revocation list in it takes effect immediately.

    Notes
    -----
    It is called for every open stream each second, so an unchanged file is not read again.
    """

    def __init__(self, keys: KeyFolder) -> None:
        self._keys = keys
        self._files = (keys.path / "crl.pem", keys.path / "ca.pem")
        self._read: tuple[object, frozenset[int]] | None = None

    def __call__(self, scope: Scope) -> Peer:
        """Return the peer of a connection; raise :class:`TransportError` if it is invalid."""
        certificate = peer_certificate(scope)
        if certificate is None:
            raise TransportError("a client certificate of this federation is needed; enrol first.")
        peer = _peer(certificate)
        if peer.serial in self._revoked():
            raise NotEnrolled(peer, "was revoked")
        if peer.not_after < datetime.now(UTC):
            raise NotEnrolled(peer, "has expired")
        return peer

    def _revoked(self) -> frozenset[int]:
        files = tuple(map(version_of, self._files))
        if self._read is None or self._read[0] != files:
            self._read = files, revoked_serials(self._keys)
        return self._read[1]


# Cached, because decoding a certificate is slow.
_peer = lru_cache(maxsize=1024)(peer_of)
