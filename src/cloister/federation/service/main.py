"""The coordinator's process: database, audit file, streams, jobs and the TLS port together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from cloister.federation.pki import server_context
from cloister.federation.service.app import make_app
from cloister.federation.service.audit import Audit
from cloister.federation.service.gate import Enrolled
from cloister.federation.service.hub import Hub
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.process import prepare
from cloister.federation.service.server import Server, serve
from cloister.federation.service.store import Store
from cloister.privacy.noise import DiscreteNoise, NoiseSource

if TYPE_CHECKING:
    from cloister.federation.settings import CoordinatorSettings


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
