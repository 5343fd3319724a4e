"""Networks on shares: the scores of the clear network, and servers that see only uniform words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.errors import DataError, PlanError
from cloister.hazmat.ring import to_integers
from cloister.shares.inference.layers import (
    FACTOR_BITS,
    STEP,
    AveragePool,
    Conv2d,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Polynomial,
    Relu,
)
from cloister.shares.inference.network import Network
from cloister.shares.inference.polynomials import fit
from cloister.shares.inference.shared import HybridNetwork, NetworkScoring, SecretSharedLayer
from cloister.shares.mpc import Server, combine, decode, encode, run_here

Words = NDArray[np.uint64]
RNG = np.random.default_rng(3)
QUADRATIC = Polynomial(tuple(fit("relu", 2, 4.0)), 4.0)
SEVENTH = Polynomial(tuple(fit("sigmoid", 7, 8.0)), 8.0)


def together(program: Callable[..., Words], *secrets: Words, **options: Any) -> Words:
    (first, second), _ = run_here(program, *secrets, timeout=20, **options)
    return combine(first, second)


def scoring(network: Network, n_rows: int, opening: Any = "label") -> NetworkScoring:
    """Return the program, whose public part went through JSON."""
    public = json.loads(json.dumps(network.architecture().to_dict()))
    return NetworkScoring(architecture=public, n_rows=n_rows, opening=opening)


def scored(network: Network, X: Any, **options: Any) -> NDArray[np.float64]:
    """Score rows on shares; the servers hold the public part of the network alone."""
    program = scoring(network, len(X), "exact")
    return decode(opened(program, network, X, **options)[0])


def opened(
    program: NetworkScoring, network: Network, X: Any, **options: Any
) -> tuple[Words, tuple[Server, Server]]:
    """Return the words of the one result, and the servers."""
    secrets = program.words("rows", X), program.words("weights", network.vector)
    assert [s.shape for s in secrets] == list(program.tables().values())
    (first, second), servers = run_here(
        lambda s, *t: program.run(s, dict(zip(("rows", "weights"), t, strict=True))),
        *secrets,
        timeout=20,
        **options,
    )
    ((name, shape),) = program.results().items()
    assert first.keys() == second.keys() == {name}
    assert first[name].shape == shape
    return combine(first[name], second[name]), servers


def dense(*layers: Layer, sizes: Sequence[int] = (6, 8, 3)) -> Network:
    found: list[Layer] = []
    for n_in, n_out, then in zip(sizes, sizes[1:], [*layers, None], strict=False):
        weights = RNG.normal(0, n_in**-0.5, (n_in, n_out))
        found += [Dense(weights, RNG.normal(0, 0.3, n_out)), *([then] if then else [])]
    return Network(found, tuple(sizes[:1]), range(sizes[-1]), (-3, 3))


def of_images(*middle: Layer) -> Network:
    first = Conv2d(RNG.normal(0, 0.3, (3, 2, 3, 3)), RNG.normal(0, 0.1, 3), 1, 1)
    layers = [first, *middle, Flatten()]
    X = np.zeros((1, 2, 6, 6))
    for layer in layers:
        X = layer.outputs(X)
    last = Dense(RNG.normal(0, 0.2, (X.shape[1], 4)), RNG.normal(0, 0.1, 4))
    return Network([*layers, last], (2, 6, 6), range(4), (0, 1))


NETWORKS = {
    "relu": dense(Relu()),
    "quadratic": dense(QUADRATIC, QUADRATIC, sizes=(6, 8, 5, 3)),
    "linear polynomial": dense(Polynomial((0.25, -0.5), 1.0)),
    "quartic": dense(Polynomial(tuple(fit("relu", 4, 4.0)), 4.0)),
    "sigmoid clipped": dense(replace(SEVENTH, clip=True)),
    "average": of_images(Relu(), AveragePool(3)),
    "max": of_images(MaxPool(2), QUADRATIC),
    "max of nine": of_images(MaxPool(3)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_on_shares_are_those_in_the_clear(name: str) -> None:
    network = NETWORKS[name]
    low, high = network.input_range
    X = RNG.uniform(low, high, (7, *network.input_shape))
    assert np.abs(scored(network, X) - network.forward(X)).max() < 1e-3


@pytest.mark.parametrize(
    ("layer", "end"),
    [
        (Polynomial((0.0, 0.0, 5000.0), 1.0), 0.7),  # x^2 is off by a unit, and this by 5,000
        (Polynomial((0.0, 0.0, 0.0, 2.0), 100.0), 0.5),  # (1/200)^3 is now no unit and now one
        (Polynomial((1.0, -2.0, 3.0, -4.0, 5.0), 8.0), 3.0),
        (replace(SEVENTH, clip=True), 900.0),
        (QUADRATIC, 900.0),
        (AveragePool(31), 1000.0),  # 1 / 31^2 in 22 bits is off by 8e-5 of itself
        (MaxPool(3), 1000.0),
        (Relu(), 1000.0),
    ],
    ids=str,
)
def test_what_comes_out_on_shares_lies_within_the_bounds_that_were_proved(
    layer: Layer, end: float
) -> None:
    """The head-room of the next layer is counted from them, with two units of room.

    Truncation rounds at random: a polynomial is evaluated 5,000 times.
    """
    shape = (1, 31, 31) if isinstance(layer, AveragePool | MaxPool) else (50,)
    end = round(end / STEP) * STEP
    X = RNG.uniform(-end, end, (100, *shape))
    X[:10], X[10:20] = -end, end
    found = decode(together(layer.shares, encode(X)))
    least, most, _ = layer.bounds(np.full(shape, -end), np.full(shape, end))
    assert (found >= least - 2 * STEP).all()
    assert (found <= most + 2 * STEP).all()


def test_a_clipped_polynomial_holds_at_both_ends() -> None:
    layer = replace(SEVENTH, radius=2.0, clip=True)
    identity = Network([Dense(np.eye(1), np.zeros(1)), layer], (1,), ("a",), (-9, 9))
    X = np.array([[-9.0], [-2.0], [0.0], [2.0], [9.0]])
    assert np.abs(scored(identity, X) - identity.forward(X)).max() < 1e-3


def test_a_layer_takes_shares_of_weights_and_of_inputs() -> None:
    X, weights, bias = RNG.normal(size=(5, 4)), RNG.normal(size=(4, 2)), RNG.normal(size=2)
    layer = Dense(np.zeros((4, 2)), np.zeros(2))  # the public part
    secrets = encode(X), encode(weights, FACTOR_BITS), encode(bias)

    def alone(server: Server, x: Words, w: Words, b: Words) -> Words:
        layer = SecretSharedLayer(w, b)
        assert "uint64" not in repr(layer)
        return layer.forward(server, x)

    for forward in (layer.shares, alone):
        found = decode(together(forward, *secrets))
        np.testing.assert_allclose(found, X @ weights + bias, atol=1e-4)


@pytest.mark.parametrize(
    "network",
    [
        dense(QUADRATIC, Relu(), sizes=(6, 5, 4, 3)),
        dense(replace(SEVENTH, clip=True), sizes=(6, 5, 3)),
        of_images(MaxPool(2), Relu(), AveragePool(3)),
    ],
)
def test_equal_rows_open_to_different_words_in_every_layer_and_run(
    monkeypatch: pytest.MonkeyPatch, network: Network
) -> None:
    """An opening without a fresh mask would open equal rows to equal words.

    At most 120,000 words are opened in two runs; two of uniform ones are equal with probability
    120000^2 / 2^65 < 1e-9.
    """
    opened: list[Words] = []
    ordinary = Server.open

    def watched(server: Server, *shares: Words, **options: Any) -> list[Words]:
        found = ordinary(server, *shares, **options)
        if server.index == 0:
            opened.extend(words.ravel() for words in found)
        return found

    monkeypatch.setattr(Server, "open", watched)
    for _ in range(2):
        scored(network, np.full((20, *network.input_shape), 0.5))
    words = np.concatenate(opened)
    assert 2000 < len(words) < 120_000
    assert len(np.unique(words)) == len(words)


def test_the_number_of_messages_and_their_sizes_depend_on_public_shapes_alone() -> None:
    network = dense(Relu())
    costs = []
    program = scoring(network, 4)
    for X in (np.zeros((1, 6)), RNG.uniform(-3, 3, (4, 6))):
        _, servers = opened(program, network, X)
        costs.append([(s.cost.rounds, s.cost.bytes_sent) for s in servers])
    assert costs[0] == costs[1]


@pytest.mark.parametrize("opening", ["label", "exact"])
def test_the_program_gives_the_label_or_the_scores_and_nothing_else(opening: Any) -> None:
    network = NETWORKS["max"]
    program = scoring(network, 6, opening)
    X = RNG.uniform(0, 1, (4, 2, 6, 6))
    found, _ = opened(program, network, X)
    if opening == "label":
        assert [network.classes[k] for k in to_integers(found)[:4]] == network.predict(X)
    else:
        assert np.abs(decode(found)[:4] - network.forward(X)).max() < 1e-3


def test_five_processes_score_images_with_the_labels_of_the_clear_network() -> None:
    """Over sealed links; where TenSEAL is, pooling is encrypted: all three techniques chain."""
    script = Path(__file__).resolve().parents[4] / "benchmarks" / "private_images.py"
    command = [sys.executable, str(script), "--digits", "--images", "20"]
    command += ["--encrypted"] if find_spec("tenseal") else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "20 of 20 labels are those in the clear" in done.stdout, done.stderr


def test_encrypted_pooling_gives_the_scores_of_pooling_on_shares() -> None:
    pytest.importorskip("tenseal")
    network = of_images(Relu(), AveragePool(2, encrypted=True))
    X = RNG.uniform(0, 1, (3, 2, 6, 6))
    found, servers = opened(scoring(network, 3, "exact"), network, X)
    assert np.abs(decode(found) - network.forward(X)).max() < 1e-3
    assert servers[0].cost.bytes_sent > 500_000  # ciphertexts really travelled


def test_a_hybrid_network_computes_its_public_part_at_the_owner() -> None:
    whole = of_images(Relu(), AveragePool(2))
    hybrid = HybridNetwork(whole, 3)
    X = RNG.uniform(0, 1, (3, 2, 6, 6))
    known = hybrid.architecture()  # what the rows' owner gets: no private weight
    assert not any(array.any() for array in known.network.layers[-1].parameters)
    features = known.features(X)
    assert features.shape == (3, 3, 3, 3)
    found = scored(hybrid.private, features)
    assert np.abs(found - whole.forward(X)).max() < 1e-3
    with pytest.raises(DataError, match="must be a finite"):
        hybrid.features(X + 1)


def test_bad_rows_weights_and_programs_are_refused_before_anything_is_shared() -> None:
    network = dense(Relu())
    program = scoring(network, 4)
    with pytest.raises(DataError, match="must be a finite"):
        program.words("rows", np.full((1, 6), 3.5))
    with pytest.raises(DataError, match="4 rows at most"):
        program.words("rows", np.zeros((5, 6)))
    with pytest.raises(PlanError, match="could reach"):
        program.words("weights", network.vector * 2.0**22)
    with pytest.raises(PlanError, match="finite"):
        program.words("weights", network.vector * np.nan)
    with pytest.raises(DataError, match="weights must be"):
        program.words("weights", [1.0])
    with pytest.raises(PlanError, match="n_rows"):
        scoring(network, 0)
    with pytest.raises(PlanError, match="opening"):
        scoring(network, 1, "private")
    with pytest.raises(DataError, match="document"):
        NetworkScoring(architecture={}, n_rows=1)
    with pytest.raises(PlanError, match="no weights to hide"):
        scoring(Network([Relu()], (2,), ("a", "b"), (0, 1)), 1)
    with pytest.raises(PlanError, match="n_public"):
        HybridNetwork(network, 4)
