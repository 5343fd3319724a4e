"""The step-level shim: the loop users of the published code know, over our core and its rules."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import FrozenInstanceError, fields, replace
from math import ceil, sqrt
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans

from cloister.core.errors import (
    AccuracyWarning,
    DataError,
    LocalProtocolError,
    PlanError,
    RemoteProtocolError,
)
from cloister.hazmat.ring import to_integers
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.testing import SimulatedNoise, Wire, ZeroNoise, toy_plan
from cloister_lab.parties import GroupKey, MaskedClient, Params, Server, UnmaskedClient, new_key

RNG = np.random.default_rng(7)
VALUES = [RNG.uniform(-1.2, 1.2, (60, 2)) for _ in range(5)]


def params(**changes: Any) -> Params:
    fields: dict[str, Any] = {
        "k": 3,
        "dim": 2,
        "num_clients": 2,
        "iters": 4,
        "dp": "gaussian",
        "epsilon": 1.0,
        **changes,
    }
    return Params(**fields)


def loop(clients: list[Any], server: Server, rounds: int) -> list[np.ndarray]:
    """The published loop, as users write it."""
    for _ in range(rounds):
        totals, counts, unassigned = zip(*(client.step() for client in clients), strict=True)
        assert set(unassigned) == {None}
        total, count = server.step(totals, counts)
        for client in clients:
            client.update(total, count)
    return [client.centroids for client in clients]


def masked(p: Params, key: GroupKey | None = None) -> list[MaskedClient]:
    key = key or new_key()
    return [MaskedClient(i, VALUES[i], p, key=key) for i in range(p.num_clients)]


@pytest.mark.parametrize("num_clients", [1, 2, 5])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_dist": 0.5},
        {"dp": "laplace"},
        {"post": "none"},
        {"radius_strategy": "step"},
        {"radius_strategy": "step", "max_dist": 0.5, "dp": "laplace"},
    ],
)
def test_the_loop_is_the_core_bit_for_bit(num_clients: int, changes: dict[str, Any]) -> None:
    p = params(num_clients=num_clients, **changes)
    shim = loop(masked(p), Server(p, noise=ZeroNoise()), 4)
    plain = [UnmaskedClient(i, VALUES[i], p) for i in range(num_clients)]
    open_ = loop(plain, Server(p, noise=ZeroNoise()), 4)
    plan = toy_plan(p.task, silos=num_clients, budget=Budget(1.0, 1e-6))
    records = {silo: p.grid.encode(VALUES[i]) for i, silo in enumerate(plan.silos)}
    core = Wire(plan, records).run()
    for centroids in (*shim, *open_):
        assert np.array_equal(centroids, core[0]["centres"] / p.grid.one)


def test_clients_of_one_run_hold_the_same_centres() -> None:
    p = params()
    one, two = loop(masked(p), Server(p), 4)
    assert np.array_equal(one, two)
    assert np.isfinite(one).all()


def test_bounds_are_public_and_centres_come_in_the_units_of_the_values() -> None:
    p = params(bounds=(0.0, 10.0), dp="none", epsilon=None, k=1, iters=3, num_clients=1)
    client = UnmaskedClient(0, [[2.0, 9.0], [4.0, 99.0]], p)
    (centroids,) = loop([client], Server(p), 3)
    assert centroids.ravel().tolist() == pytest.approx([3.0, 9.5], abs=1e-3)


# --- Step, update, server -------------------------------------------------------------------------


def test_a_step_gives_ring_vectors_and_nothing_exact() -> None:
    client = masked(params())[0]
    totals, counts, unassigned = client.step()
    assert (totals.shape, counts.shape) == ((3, 2), (3,))
    assert totals.dtype == counts.dtype == np.uint64
    assert unassigned is None
    again = client.step()
    assert np.array_equal(again[0], totals)  # a retry sends the same words
    assert np.array_equal(again[1], counts)
    totals[:] = 0  # what the caller does to them changes nothing
    assert client.step()[0].any()


def test_a_round_beyond_iters_is_refused_on_both_sides() -> None:
    p = params(iters=1)
    clients, server = masked(p), Server(p)
    loop(clients, server, 1)
    with pytest.raises(LocalProtocolError, match="beyond iters=1"):
        clients[0].step()
    fresh = np.ones((3, 2), dtype=np.uint64), np.ones(3, dtype=np.uint64)
    with pytest.raises(LocalProtocolError, match="beyond iters=1"):
        server.step([fresh[0]] * 2, [fresh[1]] * 2)


def test_the_server_answers_the_same_question_once() -> None:
    p = params(iters=2)
    clients, server = masked(p), Server(p)
    totals, counts, _ = zip(*(client.step() for client in clients), strict=True)
    first = server.step(totals, counts)
    for _ in range(5):  # asking again draws no fresh noise to average over
        again = server.step(totals, counts)
        assert np.array_equal(again[0], first[0])
        assert np.array_equal(again[1], first[1])
    first[0][:] = 0
    assert server.step(totals, counts)[0].any()
    assert repr(server) == "Server(round 1 of 2)"


@pytest.mark.parametrize("strategy", ["constant", "step"])
def test_vectors_in_another_order_are_the_same_question(strategy: str) -> None:
    """Else they were taken for the next round's, which may have a smaller radius and less noise."""
    p = params(iters=2, radius_strategy=strategy)
    totals, counts, _ = zip(*(client.step() for client in masked(p)), strict=True)
    server = Server(p)
    first = server.step(totals, counts)
    again = server.step(totals[::-1], counts[::-1])
    assert np.array_equal(again[0], first[0])
    assert np.array_equal(again[1], first[1])
    assert repr(server) == "Server(round 1 of 2)"


def test_every_other_question_is_a_round_of_its_own() -> None:
    p = params(iters=2)
    zero, one = (np.full((3, 2), v, dtype=np.uint64) for v in (0, 1))
    counts = [np.zeros(3, dtype=np.uint64)] * 2
    server = Server(p)
    server.step([zero, zero], counts)
    server.step([zero, one], counts)
    with pytest.raises(LocalProtocolError, match="beyond"):
        server.step([one, one], counts)


@pytest.mark.parametrize(
    ("totals", "counts"),
    [
        ([np.zeros((3, 2), np.uint64)], [np.zeros(3, np.uint64)]),
        ([np.zeros((3, 2), np.uint64)] * 3, [np.zeros(3, np.uint64)] * 3),
        ([np.zeros((3, 2), np.uint64)] * 2, [np.zeros(3, np.uint64)]),
        ([np.zeros((2, 3), np.uint64)] * 2, [np.zeros(3, np.uint64)] * 2),
        ([np.zeros((3, 2), np.int64)] * 2, [np.zeros(3, np.uint64)] * 2),
        ([np.zeros((3, 2))] * 2, [np.zeros(3)] * 2),
    ],
)
def test_vectors_of_another_number_shape_or_type_are_refused(totals: Any, counts: Any) -> None:
    server = Server(params())
    with pytest.raises(RemoteProtocolError):
        server.step(totals, counts)
    assert repr(server) == "Server(round 0 of 4)"


def test_update_before_step_is_refused() -> None:
    client = masked(params())[0]
    with pytest.raises(LocalProtocolError, match="call step first"):
        client.update(np.zeros((3, 2), np.uint64), np.zeros(3, np.uint64))


def test_the_same_public_values_may_be_passed_to_step() -> None:
    p = params()
    client = UnmaskedClient(0, VALUES[0], p)
    assert client.step(p)[2] is None
    with pytest.raises(LocalProtocolError, match="params differ"):
        client.step(replace(p, epsilon=50.0))
    with pytest.raises(LocalProtocolError, match="params differ"):
        Server(p).step([], [], params())  # another run


@pytest.mark.parametrize("values", [np.empty((0, 2)), np.zeros((1, 2))])
def test_few_records_are_records(values: np.ndarray) -> None:
    p = params(num_clients=1)
    client = MaskedClient(0, values, p, key=new_key())
    loop([client], Server(p), 4)
    assert np.isfinite(client.centroids).all()


@pytest.mark.parametrize("values", [np.zeros(2), np.zeros((2, 3)), [[np.nan, 0.0]]])
def test_values_that_are_no_table_are_refused(values: Any) -> None:
    with pytest.raises(DataError):
        UnmaskedClient(0, values, params())


# --- Keys -----------------------------------------------------------------------------------------


def test_a_server_takes_no_key_and_params_hold_no_secret() -> None:
    with pytest.raises(TypeError):
        Server(params(), key=new_key())  # type: ignore[call-arg]
    assert not [f.name for f in fields(Params) if "key" in f.name or "mask" in f.name]
    with pytest.raises(TypeError):
        MaskedClient(0, VALUES[0], params())  # type: ignore[call-arg]


def test_a_client_uses_a_key_once_in_a_run() -> None:
    p, key = params(), new_key()
    MaskedClient(0, VALUES[0], p, key=key)
    with pytest.raises(LocalProtocolError, match="already uses this key"):
        MaskedClient(
            0, VALUES[1], p, key=key
        )  # two vectors under one pad would tell their difference
    MaskedClient(1, VALUES[1], p, key=key)
    MaskedClient(0, VALUES[0], params(), key=key)  # another run has other pads


def test_the_same_public_seed_never_gives_the_same_pads() -> None:
    p = params(seed=5)
    words = [masked(p)[0].step()[0] for _ in range(2)]
    assert not np.array_equal(*words)
    key = new_key()
    runs = [MaskedClient(0, VALUES[0], params(seed=5), key=key).step()[0] for _ in range(2)]
    assert not np.array_equal(*runs)


def test_pads_of_sums_and_counts_are_unrelated() -> None:
    # as written, the paper masks both vectors with the same first words
    p = params(num_clients=1, k=3, dim=1)
    totals, counts, _ = MaskedClient(0, np.empty((0, 1)), p, key=new_key()).step()
    assert not set(totals.ravel().tolist()) & set(counts.tolist())


def test_another_key_unmasks_nothing() -> None:
    p = params(num_clients=2)
    one = MaskedClient(0, VALUES[0], p, key=new_key())
    two = MaskedClient(1, VALUES[1], p, key=new_key())
    before = one.centroids
    with pytest.raises(RemoteProtocolError, match="a key or a vector"):
        loop([one, two], Server(p, noise=ZeroNoise()), 1)
    assert np.array_equal(one.centroids, before)


def test_reprs_show_no_secret_and_no_value() -> None:
    key = new_key()
    client = MaskedClient(0, [[0.123456, 0.2]], params(), key=key)
    assert repr(client) == "MaskedClient(0, round 0 of 4)"
    assert repr(key) == "GroupKey(secret)"


# --- Params ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"dp": "gauss"}, "dp must be"),
        ({"epsilon": None}, "epsilon must be given"),
        ({"dp": "none"}, "epsilon must be given unless"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": 1e-9, "dp": "laplace"}, "epsilon=1e-09"),
        ({"eps": 1.0}, "same"),
        ({"delta": 1.5}, "delta"),
        ({"delta": 0.0}, "delta"),
        ({"num_clients": 0}, "num_clients"),
        ({"k": 0}, "n_clusters"),
        ({"dim": 0}, "one low and one high"),
        ({"iters": 0}, "rounds"),
        ({"max_dist": 0.0}, "radius"),
        ({"max_dist": 9.0}, "radius"),
        ({"alpha": 0.0}, "alpha"),
        ({"post": "clip"}, "post"),
        ({"radius_strategy": "steps"}, "radius_strategy"),
        ({"bounds": (1.0, 1.0)}, "bounds"),
    ],
)
def test_params_that_cannot_hold_are_refused_at_once(change: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        params(**change)


def test_eps_is_accepted_for_epsilon() -> None:
    assert params(epsilon=None, eps=0.5).epsilon == 0.5
    assert params(epsilon=None, eps=0.5).noise_scale(0) == params(epsilon=0.5).noise_scale(0)


def test_params_are_frozen_and_every_run_is_fresh() -> None:
    p = params()
    with pytest.raises(FrozenInstanceError):
        p.epsilon = 9.0  # type: ignore[misc]
    assert params().run_id != p.run_id
    assert p.delta == 1e-6


def test_index_must_be_one_of_the_clients() -> None:
    for index in (-1, 2):
        with pytest.raises(PlanError, match="index"):
            UnmaskedClient(index, VALUES[0], params())


# --- Noise ----------------------------------------------------------------------------------------


def test_max_dist_is_the_constant_radius() -> None:
    task = params(max_dist=0.3, radius_strategy="constant").task
    assert task.first_radius == task.radius == 0.3


def test_a_constant_radius_is_that_of_all_rounds() -> None:
    p = params(k=100, radius_strategy="constant")
    assert p.task.first_radius == p.task.radius
    assert len({p.noise_scale(t) for t in range(p.iters)}) == 1


class Asked(ZeroNoise):
    """Remembers the scales it was asked for."""

    def __init__(self) -> None:
        self.scales: list[int] = []

    def draw(self, kind: Any, scale: int, size: int) -> Any:
        self.scales.append(scale)
        return super().draw(kind, scale, size)


@pytest.mark.parametrize("dp", ["gaussian", "laplace"])
@pytest.mark.parametrize("max_dist", [None, 0.2])
def test_step_radius_is_counted_by_both_sides(dp: str, max_dist: float | None) -> None:
    p = params(radius_strategy="step", dp=dp, max_dist=max_dist)
    assert p.task.first_radius == sqrt(2)  # half the diagonal of a box of half-width 1
    assert p.task.radius == max_dist or max_dist is None
    expected = [p.noise_scale(t) for t in range(p.iters)]
    assert expected[0] > expected[1] == expected[2]
    server = Server(p, noise=(noise := Asked()))
    clients = masked(p)
    loop(clients, server, p.iters)
    assert noise.scales == [scale for scale in expected for _ in ("totals", "counts")]
    # records near a corner of the box are within the first radius only
    far = np.array([[0.9, 0.9]] * 10)
    client = UnmaskedClient(0, far, params(num_clients=1, k=1, radius_strategy="step"))
    assert to_integers(client.step()[1]).sum() > 0
    constant = params(num_clients=1, k=1, max_dist=0.2, radius_strategy="constant")
    near = UnmaskedClient(0, far, constant)
    assert to_integers(near.step()[1]).sum() == 0


def test_rounds_and_law_have_defaults_but_the_budget_has_none() -> None:
    p = Params(k=3, dim=2, num_clients=2, epsilon=1.0)
    assert (p.iters, p.dp) == (5, "gaussian")
    with pytest.raises(PlanError, match="epsilon must be given"):
        Params(k=3, dim=2, num_clients=2)


def test_a_missing_key_says_where_keys_come_from() -> None:
    for key in (None, b"x" * 32):
        with pytest.raises(TypeError, match=r"parties\.new_key\(\)"):
            MaskedClient(0, VALUES[0], params(), key=key)  # type: ignore[arg-type]


def test_clients_tell_the_noisy_sizes() -> None:
    p = params(num_clients=1, dp="none", epsilon=None)
    client = UnmaskedClient(0, VALUES[0], p)
    assert client.sizes.tolist() == [0.0, 0.0, 0.0]
    loop([client], Server(p), p.iters)
    assert 0 < client.sizes.sum() <= len(VALUES[0])


def test_a_group_key_is_neither_copied_nor_stored() -> None:
    for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="secret"):
            copy_of(new_key())


def test_gaussian_noise_covers_all_rounds() -> None:
    p = params(iters=5, max_dist=0.3)
    payload = p.task.payload(0)
    exact = gaussian_noise_multiplier(1.0, 1e-6) * sqrt(5) * sqrt(payload.l2_squared)
    assert p.noise_scale(0) == ceil(exact)
    assert p.noise_std(0) == p.noise_scale(0)


@pytest.mark.parametrize("dim", [1, 2, 9])
def test_laplace_noise_covers_all_rounds_by_the_right_l1_bound(dim: int) -> None:
    # D20: the published code takes min(2, radius) * dim for vectors of L2 norm <= radius
    p = params(dp="laplace", iters=3, dim=dim, max_dist=0.5, radius_strategy="constant")
    payload = p.task.payload(0)
    sums = payload.l1 - payload.count_weight
    assert sums == pytest.approx(0.5 * sqrt(dim) * p.grid.one, rel=1e-3)
    assert p.noise_scale(0) == ceil(3 * payload.l1 / 1.0)
    assert p.noise_std(0) == pytest.approx(sqrt(2) * p.noise_scale(0))


def test_dp_none_adds_none() -> None:
    p = params(dp="none", epsilon=None)
    assert p.noise_scale(0) == 0
    server = Server(p)
    totals, counts = server.step([np.zeros((3, 2), np.uint64)] * 2, [np.zeros(3, np.uint64)] * 2)
    assert not totals.any()
    assert not counts.any()


@pytest.mark.parametrize("dp", ["gaussian", "laplace"])
def test_noise_of_sums_and_counts_is_drawn_independently(dp: str) -> None:
    # D3: the published server draws both from one state, so they are equal after scaling
    k = 4000
    p = params(dp=dp, k=k, dim=1, num_clients=1, iters=1, max_dist=1.0)
    totals, counts = Server(p).step([np.zeros((k, 1), np.uint64)], [np.zeros(k, np.uint64)])
    sums, sizes = to_integers(totals.ravel()), to_integers(counts)
    correlation = np.corrcoef(sums, sizes)[0, 1]
    assert abs(correlation) < 7 / sqrt(k)  # false alarm below 1e-11
    for noise in (sums, sizes):
        # the variance of 4000 draws: Gaussian within 7 / sqrt(2000), Laplace 7 sqrt(5 / 4000)
        assert np.var(noise / p.noise_std(0)) == pytest.approx(1, abs=0.25)


# --- What the loop of the published code gives ----------------------------------------------------

MIDDLES = np.array([[-0.6, -0.6], [0.6, -0.6], [0.0, 0.6]])


def groups(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    points = rng.normal(MIDDLES, 0.1, (2000, 3, 2)).reshape(-1, 2)
    return np.array_split(rng.permutation(points), 3)


def ends_right(seed: int, **changes: Any) -> tuple[bool, bool]:
    """Return whether a run found all groups, and whether it warned."""
    p = params(num_clients=3, iters=5, seed=seed, **changes)
    clients = [UnmaskedClient(i, values, p) for i, values in enumerate(groups(seed))]
    noise = ZeroNoise() if p.dp == "none" else SimulatedNoise(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        centres = loop(clients, Server(p, noise=noise), p.iters)[0]
    apart = np.linalg.norm(MIDDLES[:, None] - centres, axis=2).min(axis=1)
    warned = any(issubclass(w.category, AccuracyWarning) for w in caught)
    return bool((apart < 0.2).all()), warned


def test_the_loop_ends_right_with_a_number_of_records() -> None:
    # A warning without a reason would teach users to ignore it.
    assert [ends_right(seed, nominal_n=6000) for seed in range(20)] == [(True, False)] * 20


@pytest.mark.parametrize("changes", [{}, {"nominal_n": 6000, "max_dist": 0.1}], ids=str)
def test_the_loop_ends_right_or_says_why_not(changes: dict[str, Any]) -> None:
    ends = [ends_right(seed, **changes) for seed in range(20)]
    assert all(warned for _, warned in ends)
    assert sum(right for right, _ in ends) > 5


def test_a_wrong_end_is_the_start_of_lloyd_and_not_its_noise() -> None:
    clear = {"dp": "none", "epsilon": None}
    wrong = {seed for seed in range(20) if not ends_right(seed, **clear)[0]}
    assert wrong == {seed for seed in range(20) if not ends_right(seed)[0]}
    for seed in wrong:
        start = UnmaskedClient(0, groups(seed)[0], params(seed=seed)).centroids
        lloyd = KMeans(3, init=start, n_init=1).fit(np.concatenate(groups(seed)))
        apart = np.linalg.norm(MIDDLES[:, None] - lloyd.cluster_centers_, axis=2).min(axis=1)
        assert apart.max() > 0.2


def test_a_centre_moves_only_where_records_are_missing() -> None:
    # Two centres share the one group, and nothing is missing: both stay.
    points = np.random.default_rng(0).normal(0, 0.1, (2000, 2))
    p = params(k=2, num_clients=1, iters=5, nominal_n=2000, epsilon=8.0)
    client = UnmaskedClient(0, points, p)
    loop([client], Server(p, noise=SimulatedNoise(0)), p.iters)
    assert np.abs(client.centroids).max() < 0.3
    assert client.sizes.sum() == pytest.approx(2000, abs=100)


def test_a_number_of_records_makes_empty_centres_restart() -> None:
    assert not params().task.relocate_empty
    assert params(nominal_n=6000).task.relocate_empty
    assert not params(nominal_n=30).task.relocate_empty
    with pytest.raises(PlanError, match="nominal_n must be >= 1"):
        params(nominal_n=0)


def test_the_published_name_of_the_noise_is_known() -> None:
    p = Params(dp="gaussiananalytic", eps=0.1, num_clients=3, k=5, dim=2)
    assert (p.dp, p.epsilon, p.radius_strategy) == ("gaussian", 0.1, "step")
