"""The round loop of the aggregator's process, independent of the transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from cloister.core.errors import RemoteProtocolError, TransportError
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.exchanges import ANSWER
from cloister.protocol.messages import kind_of

ATTEMPTS = 3  # times a frame is sent to a silo that does not answer


class Transport(Protocol):
    """A carrier of frames to silos and of their answers."""

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Send each named silo its frame; return the answers that arrived.

        A silo that does not answer is left out. Answers may be late, repeated or missing; parties
        tolerate all three.
        """


@dataclass(frozen=True)
class RoundDone:
    """Progress of a job after a round; independent of the records."""

    round: int
    rounds: int
    survivors: tuple[str, ...]


def run_rounds(
    aggregator: Aggregator, transport: Transport, *, attempts: int = ATTEMPTS
) -> Iterator[RoundDone]:
    """Run a job, yielding after each round; the result is at the silos when it ends.

    Parameters
    ----------
    aggregator : Aggregator
        An aggregator that restarts with the journal of a job continues where the job stopped.
    attempts : int
        Times a frame is sent to a silo that does not answer.

    Raises
    ------
    RemoteProtocolError
        If too few silos are left, or a party violates the protocol.
    """
    plan = aggregator.plan
    ask = partial(_ask, transport, aggregator, attempts)
    silos = _agree_on_keys(aggregator, ask) if plan.fingerprints else plan.silos
    if len(silos) < aggregator.quorum:
        raise RemoteProtocolError(
            f"job cannot start: {len(silos)} silos confirmed their keys, it requires "
            f"{aggregator.quorum}{aggregator.left_out}; nothing is charged."
        )
    for t in range(aggregator.first_round, plan.rounds):
        # After a restart the last answered round is opened again, because its confirmations are in
        # no journal; silos repeat their answers.
        if begin := aggregator.begin():
            ask(_all(silos, begin))
        opening = aggregator.open(t)
        if not aggregator.answered:
            ask(_all(silos, opening))
            _align_states(aggregator, ask)
        reply, silos = aggregator.combine(), aggregator.survivors
        # A silo that stops from here on is still in the sum: only its confirmation is missing.
        silos = ask(_all(silos, reply))
        if len(silos) < aggregator.quorum:
            raise RemoteProtocolError(
                f"round {t} has {len(silos)} confirmations, the plan requires "
                f"{aggregator.quorum}{aggregator.left_out}; the job ends, what left stays charged."
            )
        if unmask := aggregator.unmask():
            silos = ask(_all(silos, unmask))
        aggregator.check_convictions()
        if plan.horizon is not None and t < plan.rounds - 1:
            # Its silos read the sum of a period now, and not with the next one.
            ask(_all(silos, aggregator.close()))
        yield RoundDone(t, plan.rounds, silos)
    closed = len(ask(_all(silos, aggregator.close())))
    # A reader needs the boxes of so many silos, and no silo keeps its box after the end.
    least = plan.min_silos if plan.readers else 1
    if closed < least:
        raise TransportError(
            f"{closed} silos confirmed the end of the job, it requires {least}; the result is at "
            "its silos."
        )


Ask = Callable[[Mapping[str, bytes]], tuple[str, ...]]


def _agree_on_keys(aggregator: Aggregator, ask: Ask) -> tuple[str, ...]:
    """Let the silos agree on keys; return those that are ready."""
    # A finished round implies that the silos agreed before the aggregator restarted.
    if aggregator.first_round > 0:
        return aggregator.members
    if invite := aggregator.invite():
        ask(_all(aggregator.plan.silos, invite))
    roster = aggregator.roster()
    if not aggregator.has_cohort:
        ask(_all(aggregator.rostered, roster))
    return ask(aggregator.deals())


def _align_states(aggregator: Aggregator, ask: Ask) -> None:
    """Send the lead silo's state to silos whose machines rounded differently."""
    differing = aggregator.differing
    # Without that state the silos that differ count as lost.
    if differing and ask(_all((aggregator.lead,), aggregator.ask_state())):
        ask(_all(differing, aggregator.adopt()))


def _all(silos: tuple[str, ...], frame: bytes) -> dict[str, bytes]:
    return dict.fromkeys(silos, frame)


def _ask(
    transport: Transport,
    aggregator: Aggregator,
    attempts: int,
    frames: Mapping[str, bytes],
) -> tuple[str, ...]:
    """Send each silo its frame, repeatedly if it does not answer; return those that answered.

    An answer that violates the protocol, arrives late or has another kind counts as missing.
    """
    answered: set[str] = set()
    wanted = {ANSWER[kind_of(frame)] for frame in frames.values()}  # all frames have one kind
    for _ in range(attempts):
        missing = {silo: frame for silo, frame in frames.items() if silo not in answered}
        if not missing:
            break
        for silo, answer in transport.exchange(missing).items():
            # One silo that violates the protocol must not end the job of the others.
            try:
                if aggregator.accept(silo, answer) in wanted:
                    answered.add(silo)
            except RemoteProtocolError as error:
                aggregator.faults[silo] = str(error).rstrip(".")
    return tuple(silo for silo in frames if silo in answered)
