"""``cloister doctor``: find the problems that would stop a party, and their remedies."""

from __future__ import annotations

import argparse
import errno
import os
import platform
import shutil
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloister.cli.checks import (
    OFFLINE,
    Check,
    Look,
    examined,
    fail,
    failed,
    ok,
    reason,
    schema_of,
    show,
    warn,
)
from cloister.cli.output import Output
from cloister.cli.parsers import add_config
from cloister.core.compiled import NUMPY, WITHOUT, instruction_set
from cloister.core.errors import CloisterError
from cloister.core.numerals import counted
from cloister.federation.joining import agreed
from cloister.federation.pki import KeyFolder, client_context, peer_of
from cloister.federation.service.client import Rest, probe
from cloister.federation.settings import (
    AnalystSettings,
    CoordinatorSettings,
    ScorerSettings,
    SiloSettings,
    load_settings,
)
from cloister.privacy.ledger import Ledger
from cloister.protocol.plan import PROTOCOL_VERSION

_TIMEOUT = 10.0  # seconds for each step over the network
_SKEW_WARN, _SKEW_FAIL = 5.0, 300.0  # seconds; certificates are valid 5 minutes before issue
_DESCRIPTORS = 1024  # connections before TLS take up to 640, and each silo takes one
_DISK_WARN, _DISK_FAIL = 1 << 30, 50 << 20  # bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "the party's configuration file")


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    settings = load_settings(args.config)
    # Offline checks first: a wrong file would make the others fail without a useful message.
    checks = [_versions(), _loops(), *examined(settings, OFFLINE), *examined(settings, _LIVE)]
    return {"file": args.config, "role": settings.role, "checks": show(out, checks)}


# On this machine ----------------------------------------------------------------------------------


def _versions() -> Check:
    found = (
        f"cloister {version('cloister')}, protocol {PROTOCOL_VERSION}, Python "
        f"{platform.python_version()}, {ssl.OPENSSL_VERSION}"
    )
    if ssl.HAS_TLSv1_3:
        return ok("versions", found)
    return fail("versions", found, "install a Python whose OpenSSL has TLS 1.3.")


def _loops() -> Check:
    """Report the instruction set of the loops over records."""
    if (instructions := instruction_set()) != NUMPY:
        return ok("loops over records", f"compiled, {instructions}")
    return ok("loops over records", WITHOUT)


def _descriptors(_: CoordinatorSettings | ScorerSettings) -> Iterator[Check]:
    """Check the limit of connections and files, which a service raises to its maximum."""
    from cloister.federation.service.listener import descriptors

    if (limits := descriptors()) is None:
        return
    now, most = limits
    found = f"at most {most} open files and connections" + f", now {now}" * (now < most)
    if most < _DESCRIPTORS:
        hint = "raise the hard limit, with LimitNOFILE=65536 in the unit or with ulimit -Hn."
        yield warn("descriptors", found, hint)
    else:
        yield ok("descriptors", found)


def _disks(settings: CoordinatorSettings | SiloSettings | ScorerSettings) -> Iterator[Check]:
    # Each file may be on another disk.
    files = [settings.audit_log]
    if isinstance(settings, SiloSettings):
        files += [settings.ledger, settings.results / "a job"]
    elif isinstance(settings, ScorerSettings):
        files.append(settings.queries)
    elif (database := _sqlite_file(settings.database)) is not None:
        files.append(database)
    for folder in sorted({_existing(file.parent) for file in files}):
        free = shutil.disk_usage(folder).free
        found = f"{free / (1 << 30):.1f} GiB free at {folder}"
        state = fail if free < _DISK_FAIL else warn
        if free < _DISK_WARN:
            hint = "free some space; a full disk stops rounds but loses no data."
            yield state("disk", found, hint)
        else:
            yield ok("disk", found)


def _existing(folder: Path) -> Path:
    """Return the nearest existing folder, since the first job creates the folder of results."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _ledger(settings: SiloSettings) -> Iterator[Check]:
    """Check the ledger, the file of its newest head, and its lifetime cap."""
    path = settings.ledger
    head = path.with_name(f"{path.name}.head")
    if not path.exists():
        if head.exists():
            found = f"{path} is missing, but {head.name} shows that it existed"
            yield fail("ledger", found, "restore the newest copy; see cloister budget.")
        else:
            yield ok("ledger", f"none yet at {path}; the first start creates it")
        return
    try:
        # Opened as the agent opens it, so that its refusal appears here.
        ledger = Ledger(path)
        try:
            ledger.verify()
            found = f"{counted(len(ledger.entries()), 'entry')} verified, head {ledger.head()[:16]}"
            yield ok("ledger", found)
            if ledger.export()["countersigned"] and not head.exists():
                found = f"{head} is missing, the newest head that peers counter-signed"
                hint = "find out why it was removed; the next round writes it again."
                yield warn("ledger head", found, hint)
            yield from _cap(ledger, settings)
        finally:
            ledger.dispose()
    except CloisterError as error:
        hint = "do not run jobs until its verification succeeds; see cloister budget."
        yield fail("ledger", str(error), hint)


def _cap(ledger: Ledger, settings: SiloSettings) -> Iterator[Check]:
    """Compare cap, limits and unit of the data set, whose differences stop a starting agent."""
    schema = schema_of(settings)
    if schema is None or schema.dataset not in ledger.datasets():
        return
    recorded = (str(ledger.cap(schema.dataset)), ledger.unit(schema.dataset))
    configured = (str(settings.cap), schema.unit)
    split = ledger.limits(schema.dataset).split
    # None takes the split that the ledger has.
    if settings.split not in (None, split):
        found = f"{split} in the ledger; {settings.split} in the settings"
        hint = "correct pure_share and failure_share; those of a ledger cannot change."
        yield fail("limits", found, hint)
    if recorded != configured:
        found = (
            f"{recorded[0]}, unit {recorded[1]!r} in the ledger; {configured[0]}, unit "
            f"{configured[1]!r} in the settings"
        )
        hint = "correct cap_epsilon and cap_delta, or change the cap with 'cloister budget cap'."
        yield fail("lifetime cap", found, hint)


def _data(settings: SiloSettings) -> Iterator[Check]:
    """Compare the names of columns, without reading a record."""
    from cloister.data import Baskets, header

    # A wrong schema is reported by an earlier check.
    source, schema = settings.data.source(), schema_of(settings)
    if schema is None:
        return
    wanted = (*schema.headers, *filter(None, [schema.unit_in_file]))
    try:
        if isinstance(source, Baskets):  # baskets have a catalogue instead of a header
            source.table(schema.names)
            wanted, available = schema.names, set(schema.names)
        else:
            available = set(header(source))
    except CloisterError as error:
        yield fail("columns", str(error), "correct the section [data].")
        return
    if absent := [name for name in wanted if name not in available]:
        listed = ", ".join(map(repr, absent))
        yield fail("columns", f"no column {listed}", "correct the header or the schema.")
    else:
        yield ok("columns", f"all {len(wanted)} columns that are read exist")


def _loss(settings: SiloSettings) -> Iterator[Check]:
    """Check the share of rows that are left out; the result contains no count of records."""
    from cloister.federation.silo.site import CLIPPED, IN_DOUBT, LEFT_OUT, TOO_MUCH_LOST, Site

    try:
        # The same test as at the agent's start.
        site = Site.of(settings)
        report = site.reading()
    except (CloisterError, OSError, ValueError):
        return  # the checks of keys, schema and data report it
    if site.loses_too_much(report):
        found, _, hint = TOO_MUCH_LOST.partition("; ")
        yield fail("rows left out", found, hint)
        return
    if report.causes:
        found, _, hint = LEFT_OUT.partition("; ")
        yield warn("rows left out", found, hint)
    else:
        yield ok("rows left out", "no more than the owner accepts")
    if report.doubts:
        found, _, hint = IN_DOUBT.partition("; ")
        yield warn("meaning of cells", found, hint)
    if report.clips:
        found, _, hint = CLIPPED.partition("; ")
        yield warn("bounds", found, hint)


def _port(settings: CoordinatorSettings | ScorerSettings) -> Iterator[Check]:
    """Try to listen; if the port is in use, check that this party uses it."""
    from cloister.federation.service.server import bound

    host = settings.listen.rpartition(":")[0].strip("[]")
    try:
        bound(settings.listen).close()
        yield ok("port", f"{settings.listen} is free")
    except OSError as error:
        # A running party is not a problem, but another program on its port is.
        if error.errno == errno.EADDRINUSE:
            yield _listener(settings, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host))
            return
        text = os.strerror(error.errno or 0) if error.errno else str(error)
        yield fail("port", f"{settings.listen}: {text}", "choose an address of this machine.")


def _listener(settings: CoordinatorSettings | ScorerSettings, host: str) -> Check:
    port, keys = int(settings.listen.rpartition(":")[2]), KeyFolder(settings.keys)
    peer = None
    with suppress(OSError, CloisterError):
        context = client_context(keys)
        context.check_hostname = False  # the fingerprint below identifies the party
        with (
            socket.create_connection((host, port), _TIMEOUT) as raw,
            context.wrap_socket(raw) as tls,
        ):
            peer, local = peer_of(tls.getpeercert(True) or b""), keys.peer()
    if peer is None or (peer.role, peer.fingerprint) != (local.role, local.fingerprint):
        found = f"{settings.listen} is in use by another program"
        return fail("port", found, "stop that program, or choose another port.")
    if peer.serial != local.serial:
        found = f"{settings.listen}: this {settings.role} runs with an earlier certificate"
        return warn("port", found, "restart it, so that it loads the one in its folder.")
    return ok("port", f"{settings.listen}: this {settings.role} listens there")


def _sqlite_file(url: str) -> Path | None:
    prefix = "sqlite:///"
    return Path(url.removeprefix(prefix)) if url.startswith(prefix) else None


def _database(settings: CoordinatorSettings) -> Iterator[Check]:
    """Check that the database answers, without a change or a lock in it."""
    from cloister.federation.service.store import reach

    url = settings.database
    if (file := _sqlite_file(url)) is None:
        try:
            yield ok("database", f"{reach(url)} answers")
        except CloisterError as error:
            hint = "check that the database runs, and its address, access rights and firewalls."
            yield fail("database", str(error), hint)
        return
    needed = [(file.parent, os.W_OK | os.X_OK)] + [(file, os.R_OK | os.W_OK)] * file.exists()
    # Opening it would create the file, and could wait for the lock of a running coordinator.
    if denied := [path for path, mode in needed if not os.access(path, mode)]:
        hint = "create the folder; give it and the file to the account that runs this party."
        yield fail("database", f"{denied[0]} is not writable", hint)
    else:
        yield ok("database", f"{file} is writable")


# Over the network ---------------------------------------------------------------------------------


def _network(settings: SiloSettings | AnalystSettings) -> Iterator[Check]:
    """Check each step of a connection to the coordinator, up to the first failure."""
    dns = _dns(settings)
    yield dns
    if failed([dns]):
        return
    try:
        context = client_context(KeyFolder(settings.keys))
    except (CloisterError, OSError) as error:
        yield fail("tls", reason(error), "restore the keys folder, or enrol again.")
    else:
        yield from _talk(settings, context)


def _dns(settings: SiloSettings | AnalystSettings) -> Check:
    host = urlsplit(settings.proxy or settings.coordinator).hostname or ""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        key = "proxy" if settings.proxy else "coordinator"
        hint = f"check the name in {key!r} and this machine's DNS."
        return fail("dns", f"{host!r} does not resolve", hint)
    return ok("dns", f"{host} is {', '.join(sorted({str(entry[4][0]) for entry in entries}))}")


def _talk(settings: SiloSettings | AnalystSettings, context: ssl.SSLContext) -> Iterator[Check]:
    """Request /healthz and check each step: connection, handshake, answer and clock."""
    where, hop = urlsplit(settings.coordinator), "connection"
    reached = f"{where.hostname}:{where.port or 443}"
    if settings.proxy:
        proxy, hop = urlsplit(settings.proxy), "proxy"
        reached += f" by proxy {proxy.hostname}:{proxy.port or (443, 80)[proxy.scheme == 'http']}"
    # The client reports each step, so that a failure is located without further requests.
    times: dict[str, float] = {}
    handshakes: list[Check] = []

    def trace(event: str, info: Mapping[str, Any]) -> None:
        times[event] = time.time()
        if event == f"{hop}.start_tls.complete":  # the certificate is gone with the connection
            handshakes.append(_handshake(info["return_value"].get_extra_info("ssl_object")))

    answer: tuple[int, str] | None = None
    error = CloisterError("no answer")
    try:
        answer = probe(settings.coordinator, context, settings.proxy, _TIMEOUT, trace)
    except CloisterError as failure:
        error = failure
    if f"{hop}.start_tls.started" not in times:
        hint = "check that it runs, its address and port, firewalls, and 'proxy' if it is set."
        yield fail("tcp", f"{reached}: {_cause(error)}", hint)
        return
    yield ok("tcp", f"{reached} is reachable")
    yield from handshakes
    if answer is not None:
        sent = times["http11.send_request_headers.started"]
        # The middle of request and answer is the best estimate of the time of the answer.
        yield from _answered(*answer, (sent + time.time()) / 2)
    elif isinstance(root := _root(error), ssl.SSLCertVerificationError):
        hint = "use the enrolled host name, this federation's ca.pem, and a correct clock."
        yield fail("tls", f"its certificate: {root.verify_message}", hint)
    else:  # under TLS 1.3 a server rejects a client's certificate only after the handshake
        hint = (
            "if it is the coordinator, it rejects this party's certificate: check that it was "
            "enrolled, has not expired and was not revoked."
        )
        yield fail("coordinator" if handshakes else "tls", _cause(error), hint)


def _peers(settings: SiloSettings) -> Iterator[Check]:
    """Compare pins and schema with what the coordinator saw, which is a reason to ask only."""
    peers = {name: pin for name, pin in settings.peers.items() if name != settings.name}
    seen: dict[str, dict[str, Any]] | None = None
    # The steps above report an error; an earlier version does not answer.
    with suppress(CloisterError, OSError, KeyError, TypeError):
        context = client_context(KeyFolder(settings.keys))
        with Rest(settings.coordinator, context, settings.proxy) as rest:
            seen = {str(silo["name"]): silo for silo in rest.silos()}
    connected = {name: silo.get("fingerprint") for name, silo in (seen or {}).items()}
    met = [name for name in peers if name in connected]
    absent = {name: pin for name, pin in peers.items() if name not in connected}
    # A key that changed since the words were compared connects as pinned.
    wrong = list(_unlike(peers, connected, "connects"))
    wrong = wrong or list(_unlike(absent, agreed(settings.keys), "joined"))
    for found in wrong:
        hint = "compare name and fingerprint with the silo's owner, not with the coordinator's."
        yield warn("pins", found, hint)
    if seen is None:
        return
    if not wrong:
        yield ok("pins", f"{len(met)} of {len(peers)} pinned silos have connected, as pinned")
    schema = schema_of(settings)
    own = "" if schema is None else schema.digest()
    others = [name for name in met if own and seen[name].get("schema") not in (None, "", own)]
    if others:
        found = f"{', '.join(map(repr, others))}: the schema differs from this silo's"
        yield warn("schemas", found, "compare the files with cloister schema digest.")


def _unlike(peers: Mapping[str, str], known: Mapping[str, str | None], verb: str) -> Iterator[str]:
    """Yield a sentence for each pin that is not the key of its silo."""
    names = {key: name for name, key in known.items()}
    for name, pin in peers.items():
        if name in known and known[name] != pin:
            yield f"{name!r} {verb} with {known[name]}, not with its pin"
        elif name not in known and pin in names:
            yield f"the key pinned for {name!r} {verb} as {names[pin]!r}"


def _root(error: BaseException) -> BaseException:
    """Return the first error in the chain that led to this one."""
    earlier = error.__cause__ or error.__context__
    return error if earlier is None else _root(earlier)


def _cause(error: Exception) -> str:
    root = _root(error)
    return reason(root) if isinstance(root, Exception) else type(root).__name__


def _handshake(tls: ssl.SSLObject) -> Check:
    peer = peer_of(tls.getpeercert(True) or b"")
    shown: dict[str, Any] = tls.getpeercert() or {}
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind != "URI"]
    found = f"{tls.version()}, for {', '.join(names)}, until {peer.not_after:%Y-%m-%d}"
    if peer.role != "coordinator":
        hint = "check the address; another party of the federation listens there."
        return fail("tls", f"the certificate is that of a {peer.role}", hint)
    # Enough time to renew it before the federation stops.
    if (peer.not_after - datetime.now(UTC)).days < 30:
        return warn("tls", found, "ask the coordinator's operator to renew it.")
    return ok("tls", found)


def _answered(status: int, date: str, now: float) -> Iterator[Check]:
    if status != 200:
        hint = "check that this party's certificate was issued, not expired and not revoked."
        yield fail("coordinator", f"/healthz answers HTTP {status}", hint)
        return
    yield ok("coordinator", "answers")
    try:
        remote = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        found = "the coordinator does not send its time"
        yield warn("clock", found, "compare the clocks manually.")
        return
    ahead = now - (remote + 0.5)  # it sends whole seconds, rounded down
    found = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the coordinator"
    if abs(ahead) <= _SKEW_WARN:
        yield ok("clock", found)
        return
    state = fail if abs(ahead) > _SKEW_FAIL else warn
    yield state("clock", found, "set this machine's clock by NTP; ask the operator to do the same.")


_LIVE: Mapping[type, tuple[Look, ...]] = {
    CoordinatorSettings: (_descriptors, _port, _database, _disks),
    SiloSettings: (_disks, _ledger, _data, _loss, _network, _peers),
    AnalystSettings: (_network,),
    ScorerSettings: (_descriptors, _port, _disks),
}
"""The checks of each role beyond files: services, disks and the network."""
