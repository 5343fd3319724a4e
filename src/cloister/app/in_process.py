"""Run a plan over silos in this process.

The plan, task, client and aggregator are those of a job over a network; the transport is a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cloister.app.release import Release, release_of
from cloister.core.errors import PlanError
from cloister.core.randomness import new_key
from cloister.hazmat.signing import Identity
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client, Source
from cloister.protocol.journal import AnswerJournal, Journal
from cloister.protocol.plan import Plan
from cloister.protocol.session import RoundDone, Transport, run_rounds
from cloister.secagg.masks import GroupMask, Masker, NoMask

if TYPE_CHECKING:
    from cloister.app.payment import Account

SiloRecords = Mapping[str, Source]
OnRound = Callable[[RoundDone], None]
Handler = Callable[[bytes], bytes]

CONTENT_KEY = b"cloister/records"
"""Key of the fingerprints of records. It is public; a ledger adds a secret key."""


class InProcess:
    """Transport that passes frames to functions in this process.

    Parameters
    ----------
    handlers : mapping of silo name to function
        Each takes a frame and returns the answer, such as ``client.handle``.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = dict(handlers)

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Call each named silo once and return the answers. Errors of a silo are raised."""
        # In one process no silo can be silent, so no error stands for a silo that dropped out.
        return {silo: self._handlers[silo](frame) for silo, frame in frames.items()}


def run_plan(
    plan: Plan,
    silos: SiloRecords,
    *,
    noise: NoiseSource | None = None,
    account: Account | None = None,
    on_round: OnRound | None = None,
) -> Release:
    """Run a plan over silos in this process.

    Parameters
    ----------
    silos : mapping of silo name to iterable of int32 arrays, or to a function
        Grid records of each member, in chunks, iterable once a round; see
        :class:`~cloister.protocol.client.Client`.
    noise : NoiseSource, optional
        Exact discrete noise from the operating system by default; tests pass another source.
    account : Account, optional
        It reserves the whole plan before the first round, and charges each round before its sum
        leaves.
    """
    check_records(plan, silos)
    if plan.readers:
        raise PlanError(
            "readers must be empty for a run in one process, which shows the result to its owner "
            "alone; propose the plan to a coordinator, or leave them out."
        )
    # Sorting makes the time of a sum depend on the records; here no other party can measure it.
    if getattr(plan.task, "sort_records_pays", False):
        silos = {name: getattr(records, "in_order", records) for name, records in silos.items()}
    source = noise or DiscreteNoise()
    clients = make_clients(plan, silos, noise=noise)
    client = next(iter(clients.values()))  # any: in one process all clients finish the job
    plan = client.plan
    if account:
        account.reserve(plan, content_of(silos))
    try:
        for done in run_clients(clients, source, account.ledger if account else None):
            if on_round:
                on_round(done)
    finally:
        # An error must not leave budget reserved for rounds that will not run.
        if account:
            account.close(plan)
    return release_of(plan, client.history, client.sums, source.label)


def make_clients(
    plan: Plan,
    silos: SiloRecords,
    *,
    masker: Masker | None = None,
    noise: NoiseSource | None = None,
    journals: Mapping[str, Journal] | None = None,
    identities: Mapping[str, Identity] | None = None,
) -> dict[str, Client]:
    """Return the clients of all silos of a plan, by name.

    Parameters
    ----------
    plan : Plan
        With the fingerprints of `identities`. Without identities, silos that agree on keys get
        fresh ones.
    masker : Masker, optional
        By default the masker that the profile requires, with a fresh key.
    noise : NoiseSource, optional
        Only under "pairwise", and only in tests: another source for the silos' shares of noise.
    """
    # Fresh identities are enough: no owner pins a key if all silos are in one process.
    if not identities and (plan.profile == "pairwise" or plan.fingerprints):
        identities = {silo: Identity.new() for silo in plan.silos}
        prints = tuple(identity.fingerprint for identity in identities.values())
        plan = replace(plan, fingerprints=prints)
    masker = masker or (GroupMask(new_key()) if plan.profile == "group" else NoMask())
    return {
        silo: Client(
            plan,
            silo,
            silos[silo],
            None if plan.fingerprints else masker,
            (journals or {}).get(silo),
            identity=(identities or {}).get(silo),
            noise=noise,
        )
        for silo in plan.silos
    }


def run_clients(
    clients: Mapping[str, Client],
    noise: NoiseSource,
    journal: AnswerJournal | None = None,
    *,
    transport: Transport | None = None,
) -> Iterator[RoundDone]:
    """Run the rounds of a job whose clients are in this process, and yield after each round.

    Parameters
    ----------
    noise, journal
        The noise source and the journal of the aggregator.
    transport : Transport, optional
        Transport to the :func:`handlers` of the clients; a loop by default.
    """
    plan = next(iter(clients.values())).plan
    carrier = transport or InProcess(handlers(clients))
    return run_rounds(Aggregator(plan, noise, journal), carrier)


def handlers(clients: Mapping[str, Client]) -> dict[str, Handler]:
    """Return the function of each client that answers frames."""
    return {silo: client.handle for silo, client in clients.items()}


def check_records(plan: Plan, silos: SiloRecords) -> None:
    """Raise if records are not of the plan's silos, or were not read by its contract."""
    if set(silos) != set(plan.silos):
        raise PlanError(f"silos must be those of the plan, {plan.silos}, got {tuple(silos)}.")
    for records in silos.values():
        plan.contract.check(records)


def content_of(silos: SiloRecords) -> bytes | None:
    """Return a fingerprint of all silos' records for the owner's ledger, which keys it."""
    prints = [getattr(records, "fingerprint", None) for records in silos.values()]
    # A fingerprint of some silos alone would make different records look the same.
    if any(function is None for function in prints):
        return None
    # Sorted: the same silos in another order are the same content.
    return b"".join(sorted(function(CONTENT_KEY) for function in prints if function is not None))
