"""The share core: what comes out is right, and what a server sees is uniform."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import cloister.shares.mpc
from cloister.core.errors import CloisterError, DataError, RemoteProtocolError, TransportError
from cloister.shares.mpc import (
    Dealer,
    Server,
    Supply,
    combine,
    convolve,
    decode,
    encode,
    expand_share,
    local_links,
    matmul,
    multiply,
    negative,
    polynomial,
    relu,
    run_here,
    scale,
    select,
    split,
    square,
    times,
    truncate,
)
from cloister.shares.mpc.compare import conjunction
from cloister.shares.mpc.material import Bits, Product, Square, Truncation, fold_order

Words = NDArray[np.uint64]


def opened(program: Callable[..., Words], *secrets: Words) -> Words:
    (first, second), _ = run_here(program, *secrets, timeout=20)
    return combine(first, second)


def as_words(values: Any) -> Words:
    return np.asarray(values, dtype=np.int64).view(np.uint64)


def random_words(*shape: int) -> Words:
    return np.random.default_rng(1).integers(0, 2**64, size=shape, dtype=np.uint64)


@pytest.mark.parametrize(
    ("program", "clear", "shapes"),
    [
        (multiply, np.multiply, ((3, 4), (3, 4))),
        (multiply, np.multiply, ((3, 1), (4,))),
        (matmul, np.matmul, ((5, 3), (3, 2))),
        (matmul, np.matmul, ((2, 5, 3), (3, 2))),
        (square, np.square, ((7,),)),
    ],
)
def test_a_product_of_shares_is_exact_modulo_2_64(
    program: Any, clear: Any, shapes: tuple[tuple[int, ...], ...]
) -> None:
    factors = [random_words(*shape) for shape in shapes]
    assert (opened(program, *factors) == clear(*factors)).all()


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), (3, 2)])
def test_a_convolution_of_shares_is_the_sum_over_its_windows(stride: int, padding: int) -> None:
    images, kernels = random_words(2, 3, 7, 6), random_words(4, 3, 3, 2)
    found = opened(lambda s, x, k: convolve(s, x, k, stride, padding), images, kernels)
    padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    high, wide = found.shape[2:]
    assert high == (7 + 2 * padding - 3) // stride + 1
    assert wide == (6 + 2 * padding - 2) // stride + 1
    for i, j in np.ndindex(high, wide):
        window = padded[:, :, i * stride : i * stride + 3, j * stride : j * stride + 2]
        expected = (window[:, np.newaxis] * kernels[np.newaxis]).sum(axis=(2, 3, 4))
        assert (found[:, :, i, j] == expected).all()


@given(st.lists(st.integers(-(2**62) + 1, 2**62 - 1), min_size=1, max_size=50), st.integers(1, 61))
@settings(max_examples=20, deadline=None)
def test_truncation_is_off_by_less_than_one_unit_for_every_value_below_2_62(
    values: list[int], bits: int
) -> None:
    found = opened(lambda s, x: truncate(s, x, bits), as_words(values)).view(np.int64)
    for value, quotient in zip(values, found.tolist(), strict=True):
        assert quotient - (value >> bits) in ((0, 1) if value % (1 << bits) else (0,))


def test_truncation_without_a_dealer_fails_as_often_as_the_formula_says() -> None:
    """The local one of two servers breaks |v| 2^(2f - 64) of the values; ours breaks none.

    400,000 values at v 2^(2f) = 2^54: 391 failures are expected, standard deviation 20; less than
    191 or more than 591 has probability below 1e-20.
    """
    v = np.full(400_000, 1 << 54, dtype=np.uint64)
    key, second = split(v)
    first = expand_share(key, v.shape)
    f = np.uint64(18)
    local = (first >> f) - ((~second + np.uint64(1)) >> f)  # SecureML's rule
    wrong = np.abs(local.view(np.int64) - (1 << 36)) > 1
    assert 191 < wrong.sum() < 591
    # A failure is no small error: it is off by the whole ring, shifted.
    assert (np.abs(local[wrong].view(np.int64)) > 1 << 45).all()
    dealt = opened(lambda s, x: truncate(s, x, 18), v).view(np.int64)
    assert (np.abs(dealt - (1 << 36)) <= 1).all()


def test_truncation_is_unbiased() -> None:
    """56,000 halves: each rounds up with probability 1/2; off by seven deviations in 3e-12."""
    ups = opened(lambda s, x: truncate(s, x, 1), as_words(np.ones(56_000)))
    assert abs(int(ups.sum()) - 28_000) < 7 * 118


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40))
@settings(max_examples=20, deadline=None)
def test_the_sign_is_exact_for_every_integer_of_the_ring(values: list[int]) -> None:
    assert opened(negative, as_words(values)).tolist() == [int(v < 0) for v in values]


def test_the_sign_is_exact_at_the_edges_and_in_any_shape() -> None:
    edges = as_words([[0, 1, -1], [2**62, -(2**62), 2**63 - 1], [-(2**63), 5, -5]])
    assert (opened(negative, edges) == (edges.view(np.int64) < 0)).all()
    assert (opened(relu, edges).view(np.int64) == np.maximum(edges.view(np.int64), 0)).all()


def test_selection_takes_the_second_where_the_bit_is_set() -> None:
    bits, x, y = as_words([0, 1, 1]), as_words([1, 2, 3]), as_words([7, 8, 9])
    assert opened(select, bits, x, y).tolist() == [1, 8, 9]


def test_fold_order_reverses_the_bits_of_every_position_and_undoes_itself() -> None:
    for position in range(64):
        at = int(f"{position:06b}"[::-1], 2)
        assert fold_order(np.uint64([1 << position]))[0] == np.uint64(1 << at)
    words = random_words(100)
    assert (fold_order(fold_order(words)) == words).all()


def test_fixed_point_programs_are_near_the_clear_result() -> None:
    x = np.linspace(-2, 2, 500)
    coefficients = (0.5, 1.0, -0.3, 0.2, 0.1, 0.7)
    found = decode(opened(lambda s, v: polynomial(s, v, coefficients), encode(x)))
    assert np.abs(found - np.polyval(coefficients[::-1], x)).max() < 2e-3
    found = decode(opened(lambda s, v: polynomial(s, v, (0.25, -1.5)), encode(x)))
    assert np.abs(found - (0.25 - 1.5 * x)).max() < 1e-4
    assert np.abs(decode(opened(times, encode(x), encode(-x))) + x * x).max() < 2e-4
    assert np.abs(decode(opened(lambda s, v: scale(s, v, -0.125), encode(x))) + x / 8).max() < 1e-4


# What a server sees -----------------------------------------------------------------------------

PRIMITIVES: dict[str, Callable[..., Any]] = {
    "multiply": lambda s, x: multiply(s, x, x),
    "matmul": lambda s, x: matmul(s, x, x.T),
    "square": square,
    "truncate": truncate,
    "negative": negative,
    "relu": relu,
    "convolve": lambda s, x: convolve(s, x.reshape(1, 1, *x.shape), x[:3, :3].reshape(1, 1, 3, 3)),
}
REPEATS = 40


def far_from_uniform(seen: list[NDArray[Any]]) -> float:
    """Return how many deviations the bytes' chi-square lies above that of uniform bytes."""
    body = np.concatenate([np.ascontiguousarray(words).view(np.uint8).ravel() for words in seen])
    counts = np.bincount(body, minlength=256)
    chi = ((counts - body.size / 256) ** 2 / (body.size / 256)).sum()
    return float((chi - 255) / np.sqrt(2 * 255))


@pytest.mark.parametrize("name", PRIMITIVES)
def test_what_each_server_sees_is_uniform_and_tells_no_two_inputs_apart(name: str) -> None:
    """A simulator that draws random words does as well as the run.

    Beyond 8 deviations of a chi-square with 255 degrees of freedom: below 1e-10 a view.
    """
    secrets = (np.zeros((16, 16), np.uint64), np.full((16, 16), np.uint64(2**61 - 1)))
    for secret in secrets:
        seen: tuple[list[Any], list[Any]] = ([], [])
        shapes = set()
        for _ in range(REPEATS):
            before = [len(view) for view in seen]
            run_here(PRIMITIVES[name], secret, watch=[view.append for view in seen], timeout=20)
            for view, start in zip(seen, before, strict=True):
                shapes.add(tuple(words.shape for words in view[start:]))
        assert len(shapes) == 1, "what is sent must not depend on values"
        for view in seen:
            # Single bits come one a byte; all else are whole words.
            body = [w if w.dtype == np.uint64 else np.packbits(w) for w in view]
            assert far_from_uniform(body) < 8


def test_a_program_that_opens_what_is_not_masked_is_seen() -> None:
    """The broken twin of the test above: shares themselves are uniform, their sum is not."""
    seen: list[Any] = []

    def leaky(server: Server, x: Words) -> None:
        mask, _ = server.take(Truncation(x.shape, 16))
        server.open(x - x + mask[0] * np.uint64(1 << 8))  # a mask with eight clear bits

    run_here(leaky, np.zeros((64, 64), np.uint64), watch=[seen.append, lambda words: None])
    assert far_from_uniform(seen) > 8


def test_a_share_alone_is_uniform() -> None:
    """Chi-square of 256 KiB of bytes; beyond 8 deviations below 1e-10."""
    key, rest = split(np.full(1 << 15, 42, np.uint64))
    assert far_from_uniform([rest]) < 8
    assert far_from_uniform([expand_share(key, (1 << 15,))]) < 8
    assert (combine(expand_share(key, rest.shape), rest) == 42).all()
    assert split(rest)[0] != split(rest)[0]


def test_refreshed_shares_are_new_and_hide_the_same_value() -> None:
    """Both new shares equal the old ones in one word with probability 2^-63."""
    secret = as_words([1, 2, 3])
    (old, new), _ = run_here(lambda s, x: (x, s.refresh(x)), secret)
    assert (combine(old[1], new[1]) == secret).all()
    assert not (old[0] == old[1]).any()
    assert not (new[0] == new[1]).any()


def test_every_primitive_says_first_whom_it_trusts() -> None:
    found = 0
    for module in pkgutil.walk_packages(cloister.shares.mpc.__path__, "cloister.shares.mpc."):
        for name, function in vars(importlib.import_module(module.name)).items():
            if not inspect.isfunction(function) or name.startswith("_"):
                continue
            if next(iter(inspect.signature(function).parameters), "") == "server":
                first = (inspect.getdoc(function) or "").split("\n\n")[0]
                assert "semi-honest; the dealer with either server sees all" in first, name
                found += 1
    assert found >= 12


# Bad input and bad parties ----------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**29, -(2.0**40)])
def test_values_that_do_not_fit_are_refused_before_they_are_shared(bad: float) -> None:
    with pytest.raises(DataError, match="finite and below 536870912"):
        encode([0.0, bad])


def test_a_constant_of_many_fraction_bits_is_refused_where_it_would_wrap() -> None:
    assert decode(encode([2.0**13 - 1, 1 - 2.0**13], 48), 48).tolist() == [2.0**13 - 1, 1 - 2.0**13]
    with pytest.raises(DataError, match="finite and below 8192"):
        encode(2.0**15, 48)


def dealer_and_client() -> tuple[Dealer, Any]:
    ends = local_links(1), local_links(1)
    dealer = Dealer((ends[0][1], ends[1][1]))
    return dealer, ends[1][0]


def ask(*requests: object) -> None:
    dealer, client = dealer_and_client()
    for request in requests:
        client.send(json.dumps(request).encode())
    client.send(b"end")
    dealer.serve()


def test_material_is_dealt_once_and_in_order() -> None:
    ask([0, "Square", [3]], [1, "Square", [3]])
    for again in (0, 1, 3, -1):
        with pytest.raises(RemoteProtocolError, match="never dealt again"):
            ask([0, "Square", [3]], [1, "Square", [3]], [again, "Square", [3]])


@pytest.mark.parametrize(
    "request_",
    [
        [],
        {},
        [0, "Os", [3]],
        [0, "Square"],
        [0, "Square", [-3]],
        [0, "Square", "abc"],
        [0, "Square", [1 << 30]],
        [0, "Square", [1 << 60, 1 << 60]],
        [True, "Square", [3]],
        ["0", "Square", [3]],
        [0, "Product", "matmul", [2, 3], [4, 2], []],
        [0, "Product", "multiply", [2, 3], [4, 2], []],
        [0, "Product", "multiply", [2], [2], [1]],
        [0, "Product", "and", [2, 3], [4, 2], []],
        [0, "Product", "and", [-2], [1], []],
        [0, "Product", "matmul", [-2, 3], [3, 2], []],
        [0, "Product", "eval", [2], [2], []],
        [0, "Product", "convolve", [1, 1, 3, 3], [1, 1, 2, 2], [0, 0]],
        [0, "Product", "convolve", [1, 1, 3, 3], [1, 1, 5, 5], [1, 0]],
        [0, "Truncation", [3], 64],
        [0, "Truncation", [3], -1],
        [0, "Square", [1.5]],
        [0, "Pick", -3, 2],
        [0, "Pick", [3], 2],
        [0, "Pick", 1 << 30, 2],
        [0, "Shuffle", 2, 3, 2],
        [0, "Shuffle", True, 3, 2],
        [0, "Shuffle", 0, 3, -2],
    ],
)
def test_a_malformed_request_for_material_is_refused(request_: object) -> None:
    with pytest.raises(RemoteProtocolError):
        ask(request_)


def test_a_server_refuses_an_item_of_another_number_or_length() -> None:
    for answer in (b"", b"\0" * 7, (7).to_bytes(8, "big") + bytes(24), bytes(8) + bytes(16)):
        client, dealer = local_links(1)
        dealer.send(bytes(32))
        supply = Supply(1, client)
        _, derived = supply.take(Bits((3,)))
        dealer.send(answer)
        with pytest.raises(RemoteProtocolError):
            derived()


def test_material_out_of_order_is_refused() -> None:
    client, dealer = local_links(1)
    dealer.send(bytes(32))
    supply = Supply(0, client)
    supply.take(Bits((3,)))
    _, second = supply.take(Bits((3,)))
    with pytest.raises(CloisterError, match="used once and in order"):
        second()


def test_items_are_requested_ahead_and_taken_in_that_order() -> None:
    client, dealer = local_links(1)
    dealer.send(bytes(32))
    supply = Supply(1, client)
    whole = (Bits((3,)), Bits((4,)), Square((2,)))
    supply.expect(*whole)
    supply.expect(Bits((9,)))  # of a part: the whole has requested all
    assert [json.loads(dealer.receive())[0] for _ in whole] == [0, 1, 2]
    supply.take(whole[0])
    with pytest.raises(CloisterError, match="was requested as Bits"):
        supply.take(Square((2,)))
    supply.take(whole[2])
    supply.take(Bits((5,)))  # no longer ahead
    assert json.loads(dealer.receive())[:2] == [3, "Bits"]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("n", [1, 3, 8, 63, 64, 65, 200])
def test_narrow_elements_travel_as_their_bits_alone(width: int, n: int) -> None:
    kind = np.dtype(f"u{max(1, width // 8)}")
    draw = np.random.default_rng(n)
    x, y = (draw.integers(2**width, size=shape).astype(kind) for shape in ((n,), (2, n)))

    def program(server: Server) -> Any:
        zero = server.index
        return conjunction(server, x * kind.type(zero), y * kind.type(zero), width)

    (first, second), servers = run_here(program)
    assert ((first ^ second) == (x & y)).all()
    # Whole words of three vectors, and the number of the round.
    assert servers[0].cost.bytes_sent == 8 + 3 * 8 * -(-n * width // 64)


def test_no_two_items_share_a_stream() -> None:
    client, dealer = local_links(1)
    dealer.send(bytes(32))
    supply = Supply(0, client)
    kind = Product("multiply", (50,), (50,))
    words = [w for _ in range(3) for part in [supply.take(kind)] for w in (*part[0], part[1]())]
    flat = np.concatenate(words)
    assert len(set(flat.tolist())) == flat.size


def test_servers_that_run_different_programs_stop() -> None:
    def program(server: Server, x: Words) -> Words:
        return truncate(server, x if server.index == 0 else x[:2])

    with pytest.raises(CloisterError, match=r"another program|next is number|another item"):
        run_here(program, as_words([1, 2, 3]), timeout=20)


def test_a_dealer_that_stops_ends_the_run() -> None:
    first, second = local_links(0.05)
    second.send(bytes(32))
    supply = Supply(1, first)
    _, derived = supply.take(Bits((3,)))
    with pytest.raises(TransportError, match=r"no message came within 0\.05 s"):
        derived()


def test_what_holds_keys_cannot_be_stored_or_shown() -> None:
    import pickle

    client, dealer = local_links(1)
    dealer.send(b"\x07" * 32)
    supply = Supply(0, client)
    with pytest.raises(TypeError, match="cannot be stored"):
        pickle.dumps(supply)
    assert "07" not in repr(supply)
