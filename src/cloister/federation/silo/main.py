"""The process of a silo's agent: settings, files and connection together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from cloister.core.errors import LedgerError, PlanError, TransportError
from cloister.federation.pki import KeyFolder, client_context, is_open_to_others
from cloister.federation.service.audit import Audit
from cloister.federation.service.process import prepare
from cloister.federation.settings import SiloSettings
from cloister.federation.silo import periods
from cloister.federation.silo.agent import Agent, Data
from cloister.federation.silo.connection import serve
from cloister.federation.silo.notify import notice_of, tell
from cloister.federation.silo.site import Site
from cloister.federation.transports.http import PATH, Stream, StreamClient
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.client import Client
from cloister.protocol.code import preload_digests
from cloister.protocol.plan import Plan


def open_agent(
    settings: SiloSettings,
    *,
    noise: NoiseSource | None = None,
    wait: Callable[[float], bool],
) -> Agent:
    """Return the agent of a silo, with the files of its settings opened.

    Parameters
    ----------
    noise : NoiseSource, optional
        The silo's own noise under profile "pairwise"; by default from the operating system.
    wait : function of seconds
        See :class:`Agent`.

    Raises
    ------
    PlanError, DataError, LedgerError, TransportError
        If settings, schema, ledger or keys cannot be used.
    """
    KeyFolder(settings.keys).check_private()
    site = Site.of(settings)
    # Another account that can write the ledger could reset its charges.
    stored = (part for path in periods.states(site) for part in _parts(path))
    for file in (*_parts(settings.ledger), *_parts(site.store_path), *stored):
        if is_open_to_others(file):
            raise LedgerError(f"others may read or write {str(file)!r}; chmod 600 it.")
    ledger = site.ledger()
    # The digests must describe the code that this process runs, even if files change later.
    preload_digests(site.tasks, site.policy.rules.tasks)

    def join(plan: Plan, records: Data) -> Client:
        return Client(
            plan, settings.name, records, None, ledger, identity=site.identity, noise=noise
        )

    return Agent(
        site,
        store=site.store(),
        ledger=ledger,
        audit=Audit(settings.audit_log),
        join=join,
        noise_label=(noise or DiscreteNoise).label,
        wait=wait,
        on_waiting=lambda job: tell(settings.notify, notice_of(settings.name, job)),
    )


def _parts(database: Path) -> list[Path]:
    """Return the files of a database, and the head file of a ledger."""
    return [database.with_name(database.name + end) for end in ("", "-wal", "-shm", ".head")]


def run(
    settings: SiloSettings,
    *,
    noise: NoiseSource | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a silo's agent until `stop` is set; parameters and errors as in :func:`open_agent`.

    Raises
    ------
    DataError
        If more rows of the data are excluded than the owner accepts. The check happens here only,
        since the answers to a job must not depend on it.
    """
    stop = stop or threading.Event()
    keys = prepare(settings.keys)
    site = Site.of(settings)
    site.check_loss()
    agent = open_agent(settings, noise=noise, wait=stop.wait)

    def dial() -> Stream:
        """Dial with the folder's current certificate, so that a renewal needs no restart."""
        try:
            context = client_context(keys)
        except PlanError as error:  # in the middle of an installation
            raise TransportError(str(error)) from None
        limit = settings.max_message_bytes
        client = StreamClient(
            settings.coordinator, context, settings.proxy, max_message_bytes=limit
        )
        # Not believed by anybody: it lets doctor warn of a schema that differs.
        return client.connect(f"{PATH}?schema={site.schema.digest()}")

    client_context(keys)  # a folder without keys is told at once
    serve(agent, dial, stop, where=settings.coordinator)
