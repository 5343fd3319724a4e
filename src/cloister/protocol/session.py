"""The round loop: what the aggregator's process does, whatever carries the frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from cloister.core.errors import RemoteProtocolError, TransportError
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.exchanges import ANSWER
from cloister.protocol.messages import kind_of

ATTEMPTS = 3  # times a frame is sent to a silo that does not answer


class Transport(Protocol):
    """Carries frames to silos and their answers back."""

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Send each named silo its frame; return the answers that came.

        A silo that does not answer is left out. An answer may be late, repeated or missing;
        parties stand all three.
        """


@dataclass(frozen=True)
class RoundDone:
    """What may be said of a round while the job runs: nothing that depends on records."""

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
        One that was made anew with the journal of a job goes on where the job was.
    attempts : int
        Times a frame is sent to a silo that does not answer.

    Raises
    ------
    RemoteProtocolError
        If too few silos are left, or a party breaks the protocol.
    """
    plan = aggregator.plan
    ask = partial(_ask, transport, aggregator, attempts)
    silos = _agree_on_keys(aggregator, ask) if plan.fingerprints else plan.silos
    for t in range(aggregator.first_round, plan.rounds):
        # The last round that an earlier life answered is opened again, because its confirmations
        # are in no journal; silos repeat their answers.
        opening = aggregator.open(t)
        if not aggregator.answered:
            silos = ask(_all(silos, opening))
            _align_states(aggregator, ask)
            reply = aggregator.combine()
        else:
            reply, silos = aggregator.combine(), aggregator.survivors
        # Who falls silent from here on is still in the sum: only confirmations are missing.
        silos = ask(_all(silos, reply))
        if len(silos) < aggregator.quorum:
            raise RemoteProtocolError(
                f"round {t} has {len(silos)} confirmations, the plan asks for {aggregator.quorum}; "
                "the job ends, what left stays charged."
            )
        if unmask := aggregator.unmask():
            silos = ask(_all(silos, unmask))
        yield RoundDone(t, plan.rounds, silos)
    if not ask(_all(silos, aggregator.close())):
        raise TransportError("no silo took the end of the job; ask again for the result.")


Ask = Callable[[Mapping[str, bytes]], tuple[str, ...]]


def _agree_on_keys(aggregator: Aggregator, ask: Ask) -> tuple[str, ...]:
    """Let the silos agree on keys; return those that are ready."""
    # A round is over, so an earlier life of the aggregator saw the silos agree.
    if aggregator.first_round > 0:
        return aggregator.members
    if invite := aggregator.invite():
        ask(_all(aggregator.plan.silos, invite))
    roster = aggregator.roster()
    if not aggregator.has_cohort:
        ask(_all(aggregator.rostered, roster))
    return ask(aggregator.deals())


def _align_states(aggregator: Aggregator, ask: Ask) -> None:
    """Give the lead silo's state to silos whose machines rounded differently."""
    if differing := aggregator.differing:
        ask(_all((aggregator.lead,), aggregator.ask_state()))
        ask(_all(differing, aggregator.adopt()))


def _all(silos: tuple[str, ...], frame: bytes) -> dict[str, bytes]:
    return dict.fromkeys(silos, frame)


def _ask(
    transport: Transport,
    aggregator: Aggregator,
    attempts: int,
    frames: Mapping[str, bytes],
) -> tuple[str, ...]:
    """Send each silo its frame, again to those that stay silent; return those that answered.

    A silo whose answer breaks the protocol, comes late or is of another kind counts as silent.
    """
    answered: set[str] = set()
    wanted = {ANSWER[kind_of(frame)] for frame in frames.values()}  # frames of a step are alike
    for _ in range(attempts):
        missing = {silo: frame for silo, frame in frames.items() if silo not in answered}
        if not missing:
            break
        for silo, answer in transport.exchange(missing).items():
            # One silo that breaks the protocol must not end the job of the others.
            with suppress(RemoteProtocolError):
                if aggregator.accept(silo, answer) in wanted:
                    answered.add(silo)
    return tuple(silo for silo in frames if silo in answered)
