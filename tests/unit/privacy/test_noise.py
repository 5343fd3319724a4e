"""What no audit from outside can see of the noise: its seed, and its law far in the tail.

2^32 guesses find a seed of 32 bits, and noise that is cut beyond 4.5 sigma differs in one draw of
147,000. So both are followed inside: from the bytes of the operating system to the elements.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from itertools import count

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from cloister.app.in_process import make_clients
from cloister.audit.noise import in_profiles
from cloister.core.randomness import KEY_BYTES
from cloister.hazmat.discrete import (
    _GAUSSIAN_RUNS,
    _LAPLACE_RUNS,
    _floor,
    discrete_gaussian,
    discrete_laplace,
)
from cloister.privacy.noise import DiscreteNoise, NoiseKind, ShareNoise
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.journal import MemoryJournal
from cloister.testing import toy_plan

SAMPLERS = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}
GENERATORS = ("default_rng", "Generator", "RandomState", "PCG64", "MT19937", "SeedSequence")
LAWS: tuple[NoiseKind, ...] = ("gaussian", "laplace")


# The seed -----------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return what the operating system gave, in order."""
    given: list[bytes] = []
    real = os.urandom

    def urandom(size: int) -> bytes:
        given.append(real(size))
        return given[-1]

    monkeypatch.setattr("cloister.core.randomness.os.urandom", urandom)
    return given


@pytest.mark.parametrize("law", LAWS)
def test_noise_is_drawn_from_256_bits_of_the_operating_system(
    law: NoiseKind, asked: list[bytes]
) -> None:
    noise = DiscreteNoise()
    sample = noise.draw(law, 1000, 5000)
    nonce, key = sorted(asked, key=len)
    assert len(key) == KEY_BYTES == 32
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16 - len(nonce)) + nonce), mode=None)
    same = cipher.encryptor()
    again = SAMPLERS[law](1000, 5000, lambda size: same.update(bytes(size)))
    assert (sample == again).all(), "and from nothing else"


def test_shares_of_noise_come_from_256_bits_of_the_operating_system(asked: list[bytes]) -> None:
    secrets = {MemoryJournal().secret("job") for _ in range(3)}
    assert secrets == {key for key in asked if len(key) == 32}
    assert len(secrets) == 3


@pytest.mark.parametrize("bit", [0, 31, 32, 128, 255])
def test_every_bit_of_the_key_counts(bit: int) -> None:
    key = bytes(range(32))
    other = (int.from_bytes(key, "little") ^ (1 << bit)).to_bytes(32, "little")
    one, two = (ShareNoise(k).draw("gaussian", 1 << 30, 100) for k in (key, other))
    assert (one != two).any()


def test_no_seeded_generator_has_a_part_in_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties of jobs under every profile draw while all generators that take a seed refuse."""
    draws: list[Callable[[], object]] = []
    for plan in in_profiles(toy_plan(silos=1)):
        draws += [lambda plan=plan: Aggregator(plan, DiscreteNoise())._draw(0)]
        if plan.profile == "pairwise":
            table = np.zeros((0, plan.grid.n_features), dtype=np.int32)
            clients = make_clients(plan, {silo: [table] for silo in plan.silos})
            draws += [lambda c=c: c._share_of_noise(0) for c in clients.values()]
    assert len(draws) >= 6

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a generator that takes a seed")

    for name in GENERATORS:
        monkeypatch.setattr(np.random, name, refuse)
    monkeypatch.setattr("random.Random.__init__", refuse)
    for draw in draws:
        draw()


# The tail -----------------------------------------------------------------------------------------


class Rigged:
    """Bytes with which every lane has `V = run` and `U` = 0 with sign plus.

    V is the number of tails above a uniform X. Here X is the number one unit below the tail of
    `run`, in the first words that hold 32 bits of that tail.
    """

    def __init__(self, law: NoiseKind, run: int, lanes: int) -> None:
        (tail,) = {"gaussian": _GAUSSIAN_RUNS, "laplace": _LAPLACE_RUNS}[law].tails
        words = next(n for n in count(2) if _floor(tail, run, 64 * n) >= 1 << 32)
        x = (_floor(tail, run, 64 * words) - 1).to_bytes(8 * words)
        first, *rest = (x[i : i + 8][::-1] for i in range(0, len(x), 8))
        self._data = first * lanes + b"".join(rest) * lanes + bytes(8 * lanes)

    def __call__(self, size: int) -> bytes:
        asked, self._data = self._data[:size], self._data[size:]
        return asked or (1).to_bytes(8, "little") * (size // 8)  # a coin of numerator 0


@pytest.mark.parametrize("run", [1, 4, 5, 6, 9, 20, 40])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [1, 1000, 1 << 40])
def test_noise_reaches_as_far_as_its_bits_say(law: NoiseKind, run: int, scale: int) -> None:
    """An element beyond 4.5 sigma is neither cut nor drawn again."""
    noise = DiscreteNoise()
    noise._stream = Rigged(law, run, lanes=33)
    assert noise.draw(law, scale, 1).tolist() == [run * scale]


@pytest.mark.parametrize("run", [2, 5, 9, 20, 40])
def test_a_far_element_has_the_probability_of_its_run_and_no_other_condition(run: int) -> None:
    """At V sigma and U = 0: V has probability e^-(V^2 / 2) over that of 0, and every coin heads."""
    (tail,) = _GAUSSIAN_RUNS.tails
    bits = 2048
    at_most = [Decimal(_floor(tail, j, bits)) for j in (1, run, run + 1)]
    found = (at_most[1] - at_most[2]) / (2**bits - at_most[0])
    assert found / (Decimal(-run * run) / 2).exp() == pytest.approx(
        Decimal(1), rel=Decimal("1e-20")
    )
