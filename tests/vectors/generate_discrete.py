"""Make `discrete.json`: samples of the discrete laws for given bytes, by a second implementation.

This file is the oracle for `cloister.hazmat.discrete` and shares no code with it. It is slow on
purpose: lanes are small objects handled one at a time, numbers are Python's big integers and
fractions, and only the standard library is used. It follows the byte order of that module's
docstring. Run it to write the vectors again::

    python tests/vectors/generate_discrete.py

A case holds the bytes (a hexadecimal `prefix`, then SHAKE-256 of the ASCII text `stream`), the
arguments, the number of bytes read, and either the `values` or the SHA-256 of them as
little-endian 64-bit integers.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import factorial
from pathlib import Path

BLOCK = 32768
STEPS = 12


Trial = Callable[[int], list[tuple[int, int]]]  # k -> fractions whose product is gamma / k


class Tape:
    """The bytes of one case, read from the front."""

    def __init__(self, prefix: str, stream: str, length: int) -> None:
        self.data = bytes.fromhex(prefix) + hashlib.shake_256(stream.encode("ascii")).digest(length)
        self.used = 0

    def word(self) -> int:
        start, self.used = self.used, self.used + 8
        if self.used > len(self.data):
            raise EOFError("the tape is too short for this case")
        return int.from_bytes(self.data[start : self.used], "little")

    def uniforms(self, bounds: list[int]) -> list[int]:
        """One uniform in [0, bound) for each lane; lanes that miss draw again, after all others."""
        values = [-1] * len(bounds)
        waiting = list(range(len(bounds)))
        while waiting:
            for lane in waiting:
                values[lane] = self.word() // ((2**64 - 1) // bounds[lane])
            waiting = [lane for lane in waiting if values[lane] >= bounds[lane]]
        return values

    def coins(self, chances: list[tuple[int, int]]) -> list[bool]:
        """One coin for each (numerator, denominator)."""
        drawn = self.uniforms([denominator for _, denominator in chances])
        return [value < numerator for value, (numerator, _) in zip(drawn, chances, strict=True)]


def algorithm_1(tape: Tape, trials: list[Trial], first: int = 1) -> list[bool]:
    """Return one coin exp(-gamma) for each trial: K odd, where K is the first k that fails."""
    ended_at = [0] * len(trials)
    live, k = list(range(len(trials))), first
    while live:
        success = dict.fromkeys(live, True)
        for factor in range(len(trials[0](k))):
            for lane, coin in zip(
                live, tape.coins([trials[lane](k)[factor] for lane in live]), strict=True
            ):
                success[lane] &= coin
        for lane in live:
            if not success[lane]:
                ended_at[lane] = k
        live, k = [lane for lane in live if success[lane]], k + 1
    return [end % 2 == 1 for end in ended_at]


def constant_coins(tape: Tape, inverse: int, lanes: int) -> list[bool]:
    """Coins exp(-1/inverse): a uniform decides when the first STEPS trials of Algorithm 1 end."""

    def exceeds(k: int) -> Fraction:  # P(K > k)
        return Fraction(1, inverse**k * factorial(k))

    total = exceeds(STEPS).denominator
    odd = sum(exceeds(k - 1) - exceeds(k) for k in range(1, STEPS + 1, 2))
    drawn = tape.uniforms([total] * lanes)
    coins = [value < odd * total for value in drawn]
    late = [lane for lane in range(lanes) if drawn[lane] == total - 1]
    rest = algorithm_1(tape, [lambda k: [(1, inverse * k)]] * len(late), STEPS + 1)
    for lane, coin in zip(late, rest, strict=True):
        coins[lane] = coin
    return coins


@dataclass
class Lane:
    """One proposal ``(-1)^minus (U + scale V)``."""

    u: int = 0
    v: int = 0
    minus: bool = False
    kept: bool = True


def count_heads(tape: Tape, lanes: list[Lane], inverse: int) -> None:
    live = lanes
    while live:
        coins = constant_coins(tape, inverse, len(live))
        live = [lane for lane, coin in zip(live, coins, strict=True) if coin]
        for lane in live:
            lane.v += 1


def draw_offsets(tape: Tape, lanes: list[Lane], scale: int) -> None:
    for lane, value in zip(lanes, tape.uniforms([2 * scale] * len(lanes)), strict=True):
        lane.u, lane.minus = value // 2, value % 2 == 1


def refuse_tails(owners: list[Lane], coins: list[bool]) -> None:
    for lane, coin in zip(owners, coins, strict=True):
        lane.kept &= coin


def kept(lanes: list[Lane]) -> list[Lane]:
    return [lane for lane in lanes if lane.kept]


def exp_of_offset(tape: Tape, lanes: list[Lane], scale: int) -> list[bool]:
    def gamma(u: int) -> Trial:
        return lambda k: [(u, scale * k)]

    return algorithm_1(tape, [gamma(lane.u) for lane in lanes])


def exp_of_half_square(tape: Tape, lanes: list[Lane], scale: int) -> list[bool]:
    def gamma(u: int) -> Trial:
        return lambda k: [(u, scale), (u, 2 * k * scale)]

    return algorithm_1(tape, [gamma(lane.u) for lane in lanes])


def propose_laplace(tape: Tape, scale: int, count: int) -> list[Lane]:
    lanes = [Lane() for _ in range(count)]
    draw_offsets(tape, lanes, scale)
    refuse_tails(lanes, exp_of_offset(tape, lanes, scale))
    lanes = kept(lanes)
    count_heads(tape, lanes, 1)
    return lanes


def propose_gaussian(tape: Tape, scale: int, count: int) -> list[Lane]:
    lanes = [Lane() for _ in range(count)]
    count_heads(tape, lanes, 2)
    owners = [lane for lane in lanes for _ in range(lane.v * (lane.v - 1) // 2)]
    refuse_tails(owners, constant_coins(tape, 1, len(owners)))
    lanes = kept(lanes)
    draw_offsets(tape, lanes, scale)
    refuse_tails(lanes, exp_of_half_square(tape, lanes, scale))
    lanes = kept(lanes)
    owners = [lane for lane in lanes for _ in range(lane.v)]
    refuse_tails(owners, exp_of_offset(tape, owners, scale))
    return kept(lanes)


def sample(law: str, scale: int, size: int, tape: Tape) -> list[int]:
    values: list[int] = []
    while len(values) < size:
        missing = size - len(values)
        if law == "laplace":
            lanes = propose_laplace(tape, scale, min(missing + 3 * missing // 4 + 32, BLOCK))
        else:
            lanes = propose_gaussian(tape, scale, min(2 * missing + missing // 4 + 32, BLOCK))
        for lane in lanes:
            magnitude = lane.u + scale * lane.v
            if magnitude or not lane.minus:
                values.append(-magnitude if lane.minus else magnitude)
    return values[:size]


def make_case(law: str, scale: int, size: int, stream: str, prefix: str = "") -> dict[str, object]:
    tape = Tape(prefix, stream, 400 * size + 50_000)
    values = sample(law, scale, size, tape)
    case: dict[str, object] = {"law": law, "scale": scale, "size": size}
    case |= {"prefix": prefix, "stream": stream, "bytes": tape.used}
    if size <= 50:
        return case | {"values": values}
    return case | {"sha256": hashlib.sha256(struct.pack(f"<{size}q", *values)).hexdigest()}


def make_cases() -> list[dict[str, object]]:
    scales = [1, 2, 3, 5, 1000, 12345, 2**20 + 1, 2**40 - 1, 2**40]
    cases = []
    # The word 2^64 - 1 is refused at every bound; `late` is undecided after STEPS trials.
    refused = "ff" * 8
    late_value = 2**STEPS * factorial(STEPS) - 1
    late = (late_value * ((2**64 - 1) // (late_value + 1))).to_bytes(8, "little").hex()
    for law in ("gaussian", "laplace"):
        cases += [make_case(law, scale, 20, f"{law} {scale}") for scale in scales]
        cases += [make_case(law, 1000, size, f"{law} size {size}") for size in (0, 1, 2)]
        cases.append(make_case(law, 7, 10, f"{law} refused words", refused * 60))
        cases.append(make_case(law, 1000, 40_000, f"{law} more than one block"))
    cases.append(make_case("gaussian", 7, 10, "gaussian late coins", (late + refused) * 40))
    return cases


if __name__ == "__main__":
    rows = ",\n".join("  " + json.dumps(case) for case in make_cases())
    about = "Made by generate_discrete.py, a second implementation; see its docstring."
    target = Path(__file__).with_name("discrete.json")
    target.write_text(f'{{"about": {json.dumps(about)},\n "cases": [\n{rows}\n]}}\n')
