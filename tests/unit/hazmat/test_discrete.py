"""Hand-worked draws, vectors of a second implementation, and refusals."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from decimal import Decimal, getcontext, localcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.hazmat import discrete
from cloister.hazmat.discrete import MAX_SCALE, discrete_gaussian, discrete_laplace

SAMPLERS = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "discrete.json").read_text())["cases"]


def word(value: int, bound: int) -> int:
    """Return the first word that stands for `value` out of `bound`."""
    return value * ((2**64 - 1) // bound)


class Script:
    """A byte source of prepared steps: a step is one word for all lanes, or a list of words."""

    def __init__(self, *steps: int | list[int]) -> None:
        self.steps = list(steps)

    def __call__(self, size: int) -> bytes:
        step = self.steps.pop(0)
        words = [step] * (size // 8) if isinstance(step, int) else step
        assert 8 * len(words) == size, "the sampler asks for another number of lanes"
        return b"".join(value.to_bytes(8, "little") for value in words)


class Tape:
    """The bytes of a vector; `used` counts those read."""

    def __init__(self, case: dict[str, Any]) -> None:
        data = hashlib.shake_256(case["stream"].encode()).digest(640 * case["size"] + 50_000)
        self.data = bytes.fromhex(case["prefix"]) + data
        self.used = 0

    def __call__(self, size: int) -> bytes:
        self.used += size
        return self.data[self.used - size : self.used]


def levels(law: str) -> discrete._Levels:
    return {"laplace": discrete._LAPLACE_RUNS, "gaussian": discrete._GAUSSIAN_RUNS}[law]


def run_of(law: str, run: int) -> int:
    """Return a word with which V is `run`: one below the first word of ``p_run``."""
    return int(levels(law).first[run - 1, 0, 0]) - 1 if run else 2**64 - 1


def just(coins: discrete._Levels, digit: int, lanes: int) -> list[int]:
    """Return words of X, with which the coins up to `digit` show heads and those above do not."""
    first = coins.first[:, :, 0].tolist()
    row = [[2**64 - 1, *[threshold[i] - 1 for threshold in first]] for i in range(len(first[0]))]
    return [words[digit] for words in row for _ in range(lanes)]


@pytest.mark.parametrize("case", VECTORS, ids=lambda c: f"{c['stream']}".replace(" ", "-"))
def test_samples_equal_the_vectors_of_the_second_implementation(case: dict[str, Any]) -> None:
    source = Tape(case)
    sample = SAMPLERS[case["law"]](case["scale"], case["size"], source)
    assert sample.dtype == np.int64
    assert sample.shape == (case["size"],)
    assert source.used == case["bytes"]
    if "values" in case:
        assert sample.tolist() == case["values"]
    else:
        assert hashlib.sha256(sample.astype("<i8").tobytes()).hexdigest() == case["sha256"]


def test_laplace_worked_by_hand() -> None:
    # scale 10, 33 lanes: V = 1; U = 7 with sign minus and digits 3 and 1. The coins of digits up to
    # 3 show heads: Y = -(7 + 10 * 1).
    rand = Script(
        run_of("laplace", 1), word(2 * 7 + 1, 20), just(discrete._coins(10, 10), 3, lanes=33)
    )
    assert discrete_laplace(10, 1, rand).tolist() == [-17]
    assert not rand.steps


def test_a_lane_is_refused_when_the_coin_of_one_digit_shows_tails() -> None:
    # In 33 lanes U = 7 with digits 3 and 1. In lane 0 the low coin, and in lane 1 the high coin
    # shows heads up to the digit before. Signs tell the lanes apart.
    coins = discrete._coins(10, 10)
    words = just(coins, 3, lanes=33)
    words[0], words[33 + 1] = just(coins, 2, lanes=1)[0], just(coins, 0, lanes=1)[1]
    signs = [word(2 * 7 + 1, 20)] * 2 + [word(2 * 7, 20)] * 31
    rand = Script(run_of("laplace", 0), signs, words)
    assert discrete_laplace(10, 1, rand).tolist() == [7]
    assert not rand.steps


def test_gaussian_worked_by_hand() -> None:
    # sigma 10, 35 lanes: V = 2; U = 3, plus; the numerator 3 (3 + 20 * 2) = 129 has the digits
    # 1, 0, 0, 2. One lane shows heads up to 1, 0, 0, 2; the others up to 1, 0, 0, 1.
    coins = discrete._coins(200, 6400)
    assert len(coins.tails) == 7
    words = np.array(just(coins, 0, lanes=35), np.uint64).reshape(7, 35)
    words[0], words[3] = just(coins, 1, 1)[0], just(coins, 1, 1)[3]
    words[3, 20] = just(coins, 2, 1)[3]
    steps: list[Any] = [run_of("gaussian", 2), word(2 * 3, 20), words.ravel().tolist()]
    steps += [run_of("gaussian", 0), word(2 * 3 + 1, 20), [1] * 7 * 33]  # the next block
    rand = Script(*steps)
    assert discrete_gaussian(10, 2, rand).tolist() == [23, -3]
    assert not rand.steps


def test_a_block_of_which_no_lane_is_left_is_followed_by_another() -> None:
    coins = discrete._coins(10, 10)
    blocks: list[list[Any]] = [
        [run_of("laplace", 0), word(2 * 9, 20), just(coins, n, lanes=33)] for n in (0, 3)
    ]
    rand = Script(*blocks[0], *blocks[1])
    assert discrete_laplace(10, 1, rand).tolist() == [9]
    assert not rand.steps


@pytest.mark.parametrize("scale", [7, 10, MAX_SCALE])
def test_offset_and_sign_are_of_a_word_below_the_last_full_width(scale: int) -> None:
    refused = 2 * scale * ((2**64 - 1) // (2 * scale))
    rand = Script(refused, refused - 1)
    offset, minus = discrete._offset_and_sign(scale, 1, rand)
    assert (offset.tolist(), minus.tolist()) == ([scale - 1], [True])
    assert not rand.steps


@pytest.mark.parametrize("law", SAMPLERS)
def test_minus_zero_is_refused_and_plus_zero_is_kept(law: str) -> None:
    # Scale 1, so U = 0. Lane 0 is -0 and refused, lane 1 is +0 and kept, all others have V = 1 and
    # sign minus. A numerator of 0 has heads with every word.
    lanes, digits = {"laplace": (35, 0), "gaussian": (35, 3)}[law]
    runs = [run_of(law, 0)] * 2 + [run_of(law, 1)] * (lanes - 2)
    signs = [word(1, 2), word(0, 2)] + [word(1, 2)] * (lanes - 2)
    rand = Script(runs, signs, *[[2**64 - 1] * digits * lanes] * (digits > 0))
    assert SAMPLERS[law](1, 2, rand).tolist() == [0, -1]
    assert not rand.steps


# Constant distributions ---------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [64, 128, 640])
@pytest.mark.parametrize(("numerator", "denominator"), [(1, 1), (4**20, 2**40), (1, 2**81)])
def test_tails_of_coins_are_exponentials_rounded_down(
    numerator: int, denominator: int, bits: int
) -> None:
    tail = discrete._coin(numerator, denominator)
    with localcontext(prec=400):
        for j in (1, 2, 3):
            exact = (Decimal(-j * numerator) / denominator).exp() * 2**bits
            assert discrete._floor(tail, j, bits) < exact < discrete._floor(tail, j, bits) + 1
    assert discrete._floor(tail, 4, bits) == 0


@pytest.mark.parametrize("bits", [64, 128, 640])
@pytest.mark.parametrize("law", SAMPLERS)
def test_runs_have_the_weights_of_their_law(law: str, bits: int) -> None:
    (tail,) = levels(law).tails
    with localcontext(prec=230):
        exponents = [Decimal(v) if law == "laplace" else Decimal(v * v) / 2 for v in range(540)]
        weights = [(-x).exp() for x in exponents]
        for j in (1, 2, 9, 20):
            exact = sum(weights[j:]) / sum(weights) * 2**bits
            assert discrete._floor(tail, j, bits) < exact < discrete._floor(tail, j, bits) + 1


def test_a_tail_is_computed_with_more_digits_where_its_error_leaves_the_bits_open() -> None:
    asked = []

    def tail(j: int) -> Decimal:
        asked.append(getcontext().prec)
        return Decimal(1) / 2**64 + Decimal(10) ** -60  # a hair above one unit of the last bit

    assert discrete._floor(tail, 1, 64) == 1
    assert asked == [49, 98]


@pytest.mark.parametrize("law", SAMPLERS)
@pytest.mark.parametrize("run", [1, 2, 9])
@pytest.mark.parametrize(("step", "number"), [(-1, 0), (1, -1)])
def test_undecided_word_goes_on_until_it_leaves_the_threshold(
    law: str, run: int, step: int, number: int
) -> None:
    # X shares 128 bits with p_run, and its third word is one below or above that of p_run.
    (tail,) = levels(law).tails
    x = discrete._floor(tail, run, 192) + step
    words = [x >> 128, x >> 64 & 2**64 - 1, x & 2**64 - 1]
    decided = run_of(law, 0)
    rand = Script([decided, words[0], decided], words[1], words[2])
    assert levels(law).numbers(3, rand).tolist() == [[0, run + number, 0]]
    assert not rand.steps


@pytest.mark.parametrize("law", SAMPLERS)
def test_only_first_words_of_thresholds_are_undecided(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settled(*about: object) -> int:
        raise AssertionError("undecided")

    monkeypatch.setattr(discrete, "_settled", settled)
    thresholds = levels(law).first[:, 0, 0].tolist()
    assert thresholds[-1] == 0 < thresholds[-2]
    beside = [t + step for t in thresholds for step in (-1, 1) if 0 < t + step < 2**64]
    beside = [word for word in beside if word not in thresholds]
    numbers = levels(law).numbers(len(beside), Script(beside))[0].tolist()
    assert numbers == [sum(word < t for t in thresholds) for word in beside]
    for word in thresholds:
        with pytest.raises(AssertionError, match="undecided"):
            levels(law).numbers(1, Script([word]))


# Work that does not depend on the value -----------------------------------------------------------


def traced_draw(law: str, scale: int, words: list[int], steps: list[tuple[str, int]]) -> int:
    """Draw five equal values from two words and coins of heads; note reads and executed lines."""
    answers = iter(words)

    def rand(size: int) -> bytes:
        steps.append(("read", size))
        return next(answers, 1).to_bytes(8, "little") * (size // 8)

    def trace(frame: FrameType, event: str, about: object) -> Any:
        if frame.f_code.co_filename != discrete.__file__:
            return None
        steps.append((frame.f_code.co_name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        (value,) = set(SAMPLERS[law](scale, 5, rand).tolist())
    finally:
        sys.settrace(before)
    return int(value)


@pytest.mark.parametrize("law", SAMPLERS)
@pytest.mark.parametrize("scale", [1, 10, MAX_SCALE])
def test_work_is_the_same_for_small_and_large_values(
    law: str, scale: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads, shapes and steps of a draw do not depend on V, U, or the sign."""

    def settled(*about: object) -> int:
        raise AssertionError("a slow word")

    monkeypatch.setattr(discrete, "_settled", settled)
    far = int((levels(law).first > 2).sum())  # the largest V that one word decides
    SAMPLERS[law](scale, 1, np.random.default_rng(0).bytes)  # its tables are made once
    sampled: dict[int, list[tuple[str, int]]] = {}
    for run in (0, 1, far):
        for offset in {0, scale - 1}:
            for minus in {0, int(run + offset > 0)}:  # minus zero would be refused
                steps: list[tuple[str, int]] = []
                words = [run_of(law, run), word(2 * offset + minus, 2 * scale)]
                value = traced_draw(law, scale, words, steps)
                assert abs(value) == offset + scale * run
                sampled[value] = steps
    first = next(iter(sampled.values()))
    assert all(steps == first for steps in sampled.values())


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 2**40 - 1, 2**41, 2**63 + 1])
def test_words_beyond_the_last_full_width_are_drawn_again_in_order(bound: int) -> None:
    width = (2**64 - 1) // bound
    last, refused = bound * width - 1, bound * width
    rand = Script([5, refused, last, 2**64 - 1], [refused, 7], [8])
    assert discrete._words(bound, 4, rand).tolist() == [5, 8, last, 7]
    assert last // width == bound - 1


def test_every_value_of_a_uniform_has_the_same_number_of_words() -> None:
    for bound in (2, 3, 7, 2**20 + 1, 2**40 - 1):
        width = (2**64 - 1) // bound
        edges = [word(value, bound) for value in (0, 1, bound - 1)]
        assert [edge // width for edge in edges] == [0, 1, bound - 1]
        assert [(edge + width - 1) // width for edge in edges] == [0, 1, bound - 1]


@pytest.mark.parametrize("law", SAMPLERS)
@pytest.mark.parametrize("size", [0, 1, 15, 16_384])
def test_size_and_type_are_as_asked(law: str, size: int) -> None:
    sample = SAMPLERS[law](np.int64(3), np.int64(size), np.random.default_rng(0).bytes)
    assert sample.shape == (size,)
    assert sample.dtype == np.int64


def test_values_may_be_changed_in_place() -> None:
    sample = discrete_gaussian(3, 20, np.random.default_rng(0).bytes)
    sample += 1
    assert sample.flags.owndata


@pytest.mark.parametrize("law", SAMPLERS)
@pytest.mark.parametrize("scale", [0, -1, MAX_SCALE + 1, 2**63, 1.0, 2.5, "3", None, True, np.nan])
def test_scale_outside_its_range_is_refused_before_a_byte_is_read(law: str, scale: Any) -> None:
    name = {"laplace": "scale", "gaussian": "sigma"}[law]
    with pytest.raises(PlanError, match=rf"^{name} must be an integer in \[1, {2**40}\], got"):
        SAMPLERS[law](scale, 1, Script())


@pytest.mark.parametrize("law", SAMPLERS)
@pytest.mark.parametrize("size", [-1, 1.0, "1", None, True])
def test_size_outside_its_range_is_refused_before_a_byte_is_read(law: str, size: Any) -> None:
    with pytest.raises(PlanError, match=r"^size must be an integer in"):
        SAMPLERS[law](1, size, Script())


def short(sizes: Iterable[int]) -> discrete.ByteSource:
    """Return a source whose successive answers have the given lengths."""
    answers = iter(sizes)
    return lambda _: bytes(next(answers))


@pytest.mark.parametrize("law", SAMPLERS)
@pytest.mark.parametrize("length", [0, 8, 7, 10_000])
def test_source_that_returns_another_length_is_refused(law: str, length: int) -> None:
    with pytest.raises(PlanError, match="rand must return the"):
        SAMPLERS[law](5, 10, short([length]))
