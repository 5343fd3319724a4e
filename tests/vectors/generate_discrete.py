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
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from pathlib import Path

BLOCK = 4096


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

    def uniforms(self, bound: int, lanes: int) -> list[int]:
        """One uniform in [0, bound) for each lane; lanes that miss draw again, after all others."""
        values = [bound] * lanes
        while waiting := [lane for lane in range(lanes) if values[lane] >= bound]:
            for lane in waiting:
                values[lane] = self.word() // ((2**64 - 1) // bound)
        return values


Interval = tuple[int, int]  # bounds of a real number in units of 2^-BITS
BITS = 640


def exponential(x: Fraction) -> Interval:
    """Return bounds of e^-x for x >= 0: 2^k-th power of a Taylor series, rounded outwards."""
    halvings = max(0, (x.numerator // x.denominator).bit_length() + 1)
    small = x / 2**halvings  # below 1/2
    terms, term = Fraction(0), Fraction(1)
    for k in count(1):
        if k % 2 == 1 and term < Fraction(1, 2**BITS):
            break
        terms, term = terms + (-1) ** (k - 1) * term, term * small / k
        terms, term = _cut(terms), _cut(term)
    low = int(terms * 2**BITS) - 2**12  # the cuts, and the rest of an alternating series
    high = int(terms * 2**BITS) + 2**12
    for _ in range(halvings):
        low, high = low * low >> BITS, (high * high >> BITS) + 1
    return low, high


def _cut(x: Fraction) -> Fraction:
    return Fraction(x.numerator * 2 ** (BITS + 8) // x.denominator, 2 ** (BITS + 8))


class Law:
    """A constant distribution with tails p_1 > p_2 > ..., of which 256 are enough."""

    def __init__(self, tails: list[Interval]) -> None:
        self.tails = tails

    def first(self, j: int, words: int = 1) -> int:
        """Return the leading words of p_j."""
        low, high = (bound >> (BITS - 64 * words) for bound in self.tails[j - 1])
        assert low == high, "more bits are needed"
        return low

    def number(self, word: int, tape: Tape) -> int:
        """Return the number of j with X < p_j, where X begins with `word`."""
        words = 1
        while any(word == self.first(j, words) for j in range(1, len(self.tails) + 1)):
            word, words = word * 2**64 + tape.word(), words + 1
        return sum(word < self.first(j, words) for j in range(1, len(self.tails) + 1))


def runs(law: str) -> Law:
    """Return the distribution of V."""
    if law == "laplace":
        return Law([exponential(Fraction(j)) for j in range(1, 60)])
    weights = [exponential(Fraction(v * v, 2)) for v in range(60)]
    least, most = (sum(weight[i] for weight in weights) for i in (0, 1))
    rest = [tuple(sum(weight[i] for weight in weights[j:]) for i in (0, 1)) for j in range(1, 40)]
    return Law([(2**BITS * low // most, 2**BITS * high // least + 1) for low, high in rest])


def coin(numerator: int, denominator: int) -> Law:
    """Return the distribution of the largest digit whose coin shows heads."""
    return Law([exponential(Fraction(j * numerator, denominator)) for j in (1, 2, 3)] + [(0, 0)])


def numbers(tape: Tape, laws: list[Law], lanes: int) -> list[list[int]]:
    """Draw from each law for each lane; words that decide nothing are settled after all others."""
    words = [[tape.word() for _ in range(lanes)] for _ in laws]
    return [[law.number(word, tape) for word in row] for law, row in zip(laws, words, strict=True)]


@dataclass
class Lane:
    """One proposal ``(-1)^minus (U + scale V)``."""

    u: int
    v: int
    minus: bool
    kept: bool = True


class Sampler:
    """The proposals of one law and scale."""

    def __init__(self, law: str, scale: int) -> None:
        self.law, self.scale, self.runs = law, scale, runs(law)
        self.denominator, most = scale, scale - 1
        if law == "gaussian":
            self.denominator, most = 2 * scale**2, 64 * scale**2 - 1
        digits = 0
        while 4**digits <= most:
            digits += 1
        self.coins = [coin(4**i, self.denominator) for i in range(digits)]

    def lanes(self, missing: int) -> int:
        return min(
            missing + {"laplace": 3 * missing // 4, "gaussian": 5 * missing // 9}[self.law] + 32,
            BLOCK,
        )

    def propose(self, tape: Tape, lanes: int) -> list[Lane]:
        run = numbers(tape, [self.runs], lanes)[0]
        signed = tape.uniforms(2 * self.scale, lanes)
        made = [Lane(w // 2, v, w % 2 == 1) for w, v in zip(signed, run, strict=True)]
        drawn = numbers(tape, self.coins, lanes)
        for place, lane in enumerate(made):
            numerator = lane.u
            if self.law == "gaussian":
                numerator *= lane.u + 2 * self.scale * lane.v
            for row in drawn:
                lane.kept &= row[place] >= numerator % 4
                numerator //= 4
            assert numerator == 0
        return [lane for lane in made if lane.kept]


def sample(law: str, scale: int, size: int, tape: Tape) -> list[int]:
    values: list[int] = []
    sampler = Sampler(law, scale)
    while len(values) < size:
        for lane in sampler.propose(tape, sampler.lanes(size - len(values))):
            magnitude = lane.u + scale * lane.v
            if magnitude or not lane.minus:
                values.append(-magnitude if lane.minus else magnitude)
    return values[:size]


def make_case(law: str, scale: int, size: int, stream: str, prefix: str = "") -> dict[str, object]:
    tape = Tape(prefix, stream, 640 * size + 50_000)
    values = sample(law, scale, size, tape)
    case: dict[str, object] = {"law": law, "scale": scale, "size": size}
    case |= {"prefix": prefix, "stream": stream, "bytes": tape.used}
    if size <= 50:
        return case | {"values": values}
    return case | {"sha256": hashlib.sha256(struct.pack(f"<{size}q", *values)).hexdigest()}


def make_cases() -> list[dict[str, object]]:
    scales = [1, 2, 3, 5, 1000, 12345, 2**20 + 1, 2**40 - 1, 2**40]
    cases = []
    # The word 2^64 - 1 is refused for U. A word of 0 and the `first` word of p_1 decide no V.
    for law in ("gaussian", "laplace"):
        cases += [make_case(law, scale, 20, f"{law} {scale}") for scale in scales]
        cases += [make_case(law, 1000, size, f"{law} size {size}") for size in (0, 1, 2)]
        first = runs(law).first(1).to_bytes(8, "little").hex()
        refused, zero = "ff" * 8, "00" * 8
        cases.append(make_case(law, 7, 10, f"{law} refused words", refused * 120))
        cases.append(make_case(law, 7, 10, f"{law} undecided words", (first + zero) * 60))
        cases.append(make_case(law, 1000, 10_000, f"{law} more than one block"))
    return cases


if __name__ == "__main__":
    rows = ",\n".join("  " + json.dumps(case) for case in make_cases())
    about = "Made by generate_discrete.py, a second implementation; see its docstring."
    target = Path(__file__).with_name("discrete.json")
    target.write_text(f'{{"about": {json.dumps(about)},\n "cases": [\n{rows}\n]}}\n')
