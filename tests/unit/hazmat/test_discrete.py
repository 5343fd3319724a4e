"""Hand-worked draws, vectors of a second implementation, and refusals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.hazmat import discrete
from cloister.hazmat.discrete import MAX_SCALE, discrete_gaussian, discrete_laplace

SAMPLERS = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "discrete.json").read_text())["cases"]

HALF_TOTAL, HALF_HEADS = discrete._COINS[2]  # the coin e^-1/2
ONE_TOTAL, ONE_HEADS = discrete._COINS[1]  # the coin e^-1


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
        data = hashlib.shake_256(case["stream"].encode()).digest(400 * case["size"] + 50_000)
        self.data = bytes.fromhex(case["prefix"]) + data
        self.used = 0

    def __call__(self, size: int) -> bytes:
        self.used += size
        return self.data[self.used - size : self.used]


HALF_YES, HALF_NO = word(HALF_HEADS - 1, HALF_TOTAL), word(HALF_HEADS, HALF_TOTAL)
ONE_YES, ONE_NO = word(ONE_HEADS - 1, ONE_TOTAL), word(ONE_HEADS, ONE_TOTAL)


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
    # scale 10, 33 lanes: U = 7 with sign minus; the coin e^-0.7 fails its first trial, so K = 1 is
    # odd and shows heads; then one head and one tail of e^-1: V = 1, and Y = -(7 + 10 * 1).
    rand = Script(word(2 * 7 + 1, 20), word(7, 10), ONE_YES, ONE_NO)
    assert discrete_laplace(10, 1, rand).tolist() == [-17]
    assert not rand.steps


def test_laplace_coin_of_even_k_refuses_the_lane() -> None:
    # In 33 lanes U = 7. Lane 0 passes trial 1 (6 < 7 of 10) and fails trial 2 (7 of 20): K = 2.
    first = [word(6, 10)] + [word(7, 10)] * 32
    lanes = [word(2 * 7 + 1, 20)] + [word(2 * 7, 20)] * 32  # lane 0 would have been -7
    rand = Script(lanes, first, word(7, 20), ONE_NO)
    assert discrete_laplace(10, 1, rand).tolist() == [7]
    assert not rand.steps


def test_gaussian_worked_by_hand() -> None:
    # sigma 10, 34 lanes: V = 2 (two heads of e^-1/2), its one coin e^-1 shows heads; U = 3, plus;
    # e^-(0.3^2/2): 2 < 3 of 10 but 3 of 20 fails, K = 1; twice e^-0.3: 3 of 10 fails, K = 1.
    rand = Script(
        *[HALF_YES, HALF_YES, HALF_NO],
        ONE_YES,
        word(2 * 3, 20),
        *[word(2, 10), word(3, 20)],
        [word(3, 10)] * 68,
    )
    assert discrete_gaussian(10, 1, rand).tolist() == [23]
    assert not rand.steps


def test_gaussian_refuses_a_lane_when_one_of_its_coins_shows_tails() -> None:
    # All 34 lanes have V = 2; the coin e^-1 leaves lanes 2..33; U = 9; e^-(0.9^2/2) takes lane 2
    # (K = 2); of two coins e^-0.9 each, one of lane 3 has K = 2; lane 4 is the first accepted.
    offsets = [word(2 * 9, 20)] * 2 + [word(2 * 8 + 1, 20)] + [word(2 * 9, 20)] * 29
    rand = Script(
        *[HALF_YES, HALF_YES, HALF_NO],
        [ONE_NO] * 2 + [ONE_YES] * 32,
        offsets,
        *[[word(0, 10)] + [word(9, 10)] * 31, [word(0, 20)] + [word(19, 20)] * 31],  # trial 1
        *[word(0, 10), word(39, 40)],  # trial 2, lane 2 alone
        [word(9, 10), word(8, 10)] + [word(9, 10)] * 60,
        word(19, 20),
    )
    assert discrete_gaussian(10, 1, rand).tolist() == [-28]
    assert not rand.steps


def test_gaussian_goes_on_after_a_block_of_which_no_lane_is_left() -> None:
    # All lanes have V = 2, and its coin e^-1 shows tails; the next block is that worked by hand.
    two = [HALF_YES, HALF_YES, HALF_NO]
    trials = [word(2 * 3, 20), word(2, 10), word(3, 20)]
    rand = Script(*two, ONE_NO, *two, ONE_YES, *trials, [word(3, 10)] * 68)
    assert discrete_gaussian(10, 1, rand).tolist() == [23]
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
    # Scale 1, so U = 0, and e^-0 fails trial 1: heads. Lane 0 is -0 and refused, lane 1 is +0 and
    # kept, all others have V = 1 and sign minus.
    lanes = {"laplace": 35, "gaussian": 36}[law]
    signs = [word(1, 2), word(0, 2)] + [word(1, 2)] * (lanes - 2)
    steps: dict[str, list[int | list[int]]] = {
        "laplace": [signs, 0, [ONE_NO] * 2 + [ONE_YES] * (lanes - 2), ONE_NO],
        "gaussian": [[HALF_NO] * 2 + [HALF_YES] * (lanes - 2), HALF_NO, signs, 0, 0, 0],
    }
    rand = Script(*steps[law])
    assert SAMPLERS[law](1, 2, rand).tolist() == [0, -1]


@pytest.mark.parametrize("inverse", [1, 2])
def test_constant_coin_is_within_one_part_in_its_total_of_the_exponential(inverse: int) -> None:
    # The undecided value, one in `total`, holds what is left: heads <= total e^-g <= heads + 1.
    total, heads = discrete._coin_table(inverse)
    assert discrete._COINS[inverse] == (total, heads)
    with localcontext(prec=60):
        exact = total * (Decimal(-1) / inverse).exp()
    assert heads < exact < heads + 1


@pytest.mark.parametrize(("inverse", "ends"), [(1, 13), (1, 14), (2, 15), (2, 16)])
def test_undecided_coin_goes_on_with_trial_13(inverse: int, ends: int) -> None:
    total, _ = discrete._COINS[inverse]
    trials = [word(int(k == ends), inverse * k) for k in range(13, ends + 1)]
    rand = Script(word(total - 1, total), *trials)
    assert discrete._coin(inverse, 1, rand).tolist() == [ends % 2 == 1]
    assert not rand.steps


@pytest.mark.parametrize("inverse", [1, 2])
def test_a_coin_is_undecided_at_its_last_value_only(inverse: int) -> None:
    total, heads = discrete._COINS[inverse]
    values = [heads - 1, heads, total - 2, total - 1]
    rand = Script([word(value, total) for value in values], word(1, 13 * inverse))
    assert discrete._coin(inverse, 4, rand).tolist() == [True, False, False, True]
    assert not rand.steps
    # Also where no lane goes on.
    rand = Script([word(value, total) for value in values[:3]])
    assert discrete._coin(inverse, 3, rand).tolist() == [True, False, False]


@pytest.mark.parametrize("start", [1, 2, 3, 4])
def test_a_lane_that_fails_its_first_trial_shows_heads_if_that_was_odd(start: int) -> None:
    def fails(live: np.ndarray, k: int) -> np.ndarray:
        return np.zeros(live.size, dtype=np.bool_)

    heads = discrete._algorithm_1(2, fails, start)
    assert heads.tolist() == [start % 2 == 1] * 2


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
