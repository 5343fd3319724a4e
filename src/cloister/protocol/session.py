"""The round loop: what the aggregator's process does, whatever carries the frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from cloister.errors import RemoteProtocolError, TransportError
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.messages import Kind

ATTEMPTS = 3  # times a frame is sent to a silo that does not answer


class Transport(Protocol):
    """Carries frames to silos and their answers back."""

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Send each named silo its frame; return the answers that came.

        A silo that does not answer is left out. An answer may be late, repeated or missing;
        parties stand all three.
        """
        ...


@dataclass(frozen=True)
class RoundDone:
    """What may be said of a round while the job runs: nothing that depends on records."""

    round: int
    rounds: int
    survivors: tuple[str, ...]


def run_rounds(aggregator: Aggregator, transport: Transport) -> Iterator[RoundDone]:
    """Run a job, yielding after each round; the result is at the silos when it ends.

    Parameters
    ----------
    aggregator : Aggregator
    transport : Transport

    Raises
    ------
    RemoteProtocolError
        If too few silos are left, or a party breaks the protocol.
    """
    plan = aggregator.plan
    silos: tuple[str, ...] = plan.silos
    for t in range(plan.rounds):
        silos = _ask(transport, aggregator, silos, aggregator.open(t), Kind.UPLOAD)
        silos = _ask(transport, aggregator, silos, aggregator.combine(), Kind.CONFIRM)
        if len(silos) < plan.min_silos:
            raise RemoteProtocolError(
                f"round {t} has {len(silos)} confirmations, the plan asks for {plan.min_silos}; "
                "the job ends, what left stays charged."
            )
        yield RoundDone(t, plan.rounds, silos)
    if not _ask(transport, aggregator, silos, aggregator.close(), Kind.DONE):
        raise TransportError("no silo took the end of the job; ask again for the result.")


def _ask(
    transport: Transport, aggregator: Aggregator, silos: tuple[str, ...], frame: bytes, want: Kind
) -> tuple[str, ...]:
    """Send one frame to some silos, again to those that stay silent; return those that answered.

    A silo whose answer breaks the protocol, comes late or is of another kind counts as silent.
    """
    answered: set[str] = set()
    for _ in range(ATTEMPTS):
        missing = {silo: frame for silo in silos if silo not in answered}
        if not missing:
            break
        for silo, answer in transport.exchange(missing).items():
            with suppress(RemoteProtocolError):
                if aggregator.accept(silo, answer) == want:
                    answered.add(silo)
    return tuple(silo for silo in silos if silo in answered)
