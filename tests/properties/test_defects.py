"""Defects of the published FastLloyd code, D1 to D14 and D20: none of them may be here.

Every test is written so that the published code would fail it; its docstring says what that code
does. Where it is short, a model of the published behaviour is tested beside ours, so that the test
is seen to find it. Numbers are those of the list in the specification.

False alarms. D1, D3, D4, D5, D6 and D7 look at fresh keys or noise; each says how likely it is to
fail by chance, and the sum is below 1e-8.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import isqrt, log, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget, DPKMeans, make_plan, run_job
from cloister.app.in_process import InProcess
from cloister.core.errors import PlanError
from cloister.data import array_records
from cloister.hazmat.fixedpoint import Grid, round_to_grid
from cloister.hazmat.ring import to_bytes, to_integers, to_words
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.messages import Reply, decode, encode
from cloister.protocol.task import Block, GridState, NoisyBlock
from cloister.secagg.masks import GroupMask
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd, SuLloyd
from cloister.tasks.count import Count
from cloister.testing import Faults, Wire, ZeroNoise, toy_plan, toy_records, toy_schema
from cloister_lab.parties import MaskedClient, Params, Server, UnmaskedClient, new_key

ONE = 1 << 16


def params(**changes: Any) -> Params:
    values: dict[str, Any] = {
        "k": 4,
        "dim": 2,
        "num_clients": 1,
        "iters": 3,
        "dp": "gaussian",
        "epsilon": 0.1,
        **changes,
    }
    return Params(**values)


def noise_of_rounds(p: Params) -> list[tuple[np.ndarray, np.ndarray]]:
    """What a server adds to zeros, round by round."""
    server, rounds = Server(p), []
    for t in range(p.iters):
        # one word differs, or the server would answer the same question with the same bytes
        totals = np.full((p.k, p.dim), t, dtype=np.uint64)
        sums, counts = server.step([totals], [np.zeros(p.k, dtype=np.uint64)])
        rounds.append((to_integers(sums.ravel()) - t, to_integers(counts)))
    return rounds


# --- D1 to D4: whose randomness -------------------------------------------------------------------


def test_d01_noise_is_not_a_function_of_public_numbers() -> None:
    """The published server seeds its noise with ``seed * iteration``: the first iteration draws
    from ``RandomState(0)`` in every run, and its exact sums and counts can be computed.

    By chance two rounds of 24 words are equal with probability below 1e-100.
    """
    p = params(seed=0)
    first, second = noise_of_rounds(p), noise_of_rounds(p)
    for (sums, counts), (other_sums, other_counts) in zip(first, second, strict=True):
        assert not np.array_equal(sums, other_sums)
        assert not np.array_equal(counts, other_counts)
    predicted = np.random.RandomState(0).normal(0, p.noise_scale(0), 8)
    assert not np.allclose(first[0][0], predicted, atol=1)
    for secret in (DiscreteNoise, Server, Aggregator):
        names = set(inspect.signature(secret).parameters)
        assert not {name for name in names if "seed" in name or "state" in name}


def test_d02_the_server_has_no_mask_seed_and_clients_no_noise_seed(
    reachable: Callable[[object], list[object]],
) -> None:
    """In the published code one ``seed`` makes the clients' masks and the server's noise, and sits
    in the ``Params`` object that both hold: each side can rebuild the other's secret."""
    p = params(num_clients=2)
    key = new_key()
    clients = [MaskedClient(i, np.zeros((5, 2)), p, key=key) for i in range(2)]
    server = Server(p)
    secret = key._key
    assert not [x for x in reachable(server) if isinstance(x, bytes) and secret in x]
    assert not [x for x in reachable(server) if isinstance(x, GroupMask)]
    for client in clients:
        assert not [x for x in reachable(client) if isinstance(x, DiscreteNoise | Server)]
    assert not {f.name for f in fields(Params)} & {"key", "mask_key", "noise", "noise_seed"}
    # all public values the same, the words are not: they depend on what is not in Params
    other = MaskedClient(0, np.zeros((5, 2)), p, key=new_key())
    assert not set(clients[0].step()[0].ravel().tolist()) & set(other.step()[0].ravel().tolist())
    for party in (Aggregator, Server):
        assert "key" not in inspect.signature(party).parameters
    for party in (MaskedClient, UnmaskedClient):
        assert "noise" not in inspect.signature(party).parameters
    wire = Wire(toy_plan(), noise=DiscreteNoise())  # the aggregator's noise; the silos have none
    wire.run()
    for silo in wire.clients.values():
        assert not [x for x in reachable(silo) if isinstance(x, DiscreteNoise | Aggregator)]


@pytest.mark.parametrize("dp", ["gaussian", "laplace"])
def test_d03_sum_noise_and_count_noise_are_two_draws(dp: str) -> None:
    """The published mechanisms of sums and of counts start from the same generator state: scaled,
    the first k draws are equal, and subtracting one from the other cancels the noise.

    The correlation of 3000 pairs is beyond 8 / sqrt(3000) with probability below 2e-15.
    """
    k = 3000
    p = params(k=k, dim=1, dp=dp, iters=1, epsilon=1.0)
    ((sums, counts),) = noise_of_rounds(p)
    assert abs(np.corrcoef(sums[:k], counts)[0, 1]) < 8 / sqrt(k)
    published = [np.random.RandomState(7).normal(0, s, k) for s in (3.0, 5.0)]
    assert abs(np.corrcoef(*published)[0, 1]) > 8 / sqrt(k)


def test_d04_no_two_runs_or_rounds_share_noise() -> None:
    """The published seeds are products: (seed 2, iteration 3) is (3, 2) is (6, 1), seed 0 repeats
    itself in every iteration, and iteration 0 is the same in all "independent" runs.

    By chance two of 24 rounds share a word at the same place with probability below 1e-2, but all
    twelve words with less than 1e-60.
    """
    rounds = [r for seed in (0, 1, 2, 3, 6, 6, 0, 0) for r in noise_of_rounds(params(seed=seed))]
    assert len({tuple(sums.tolist()) for sums, _ in rounds}) == len(rounds) == 24
    assert len({tuple(counts.tolist()) for _, counts in rounds}) == len(rounds)


# --- D5 and D6: the masks -------------------------------------------------------------------------


def outside_31_bits(words: np.ndarray) -> float:
    return float((words >= 2**31).mean())


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_d05_an_upload_covers_the_whole_ring_whatever_its_value(value: float) -> None:
    """Published masks are 31-bit numbers added without a modulus: an upload leaves the mask's range
    with probability |v| / 2^31, so its magnitude shows.

    Of 5000 words of ours, one below 2^31 has probability 5000 * 2^-33 = 6e-7; more than two of
    them 4e-20. Signs are binomial: beyond 8 standard deviations with probability 1e-15.
    """
    k = 2500
    p = params(k=k, dim=1, num_clients=1, dp="none", epsilon=None, iters=1)
    values = np.full((40_000, 1), value)
    totals, counts, _ = MaskedClient(0, values, p, key=new_key()).step()
    words = np.concatenate([totals.ravel(), counts])
    assert (words < 2**31).sum() <= 2
    high = (words >= 2**63).sum()
    assert abs(high - words.size / 2) < 8 * sqrt(words.size) / 2
    published = np.random.default_rng(0).integers(0, 2**31, words.size)
    assert outside_31_bits(published) == 0
    assert outside_31_bits(published + (15_000 << 16)) > 0.3


def untemper(output: int) -> int:
    """Invert the output function of MT19937."""
    y = output ^ output >> 18
    y ^= y << 15 & 0xEFC60000
    for _ in range(5):  # each pass makes seven more bits right
        y = output_stage(output, y)
    x = y
    for _ in range(3):
        x = y ^ x >> 11
    return x & 0xFFFFFFFF


def output_stage(output: int, guess: int) -> int:
    after_15 = output ^ output >> 18
    after_15 ^= after_15 << 15 & 0xEFC60000
    return (after_15 ^ (guess << 7 & 0x9D2C5680)) & 0xFFFFFFFF


def next_by_mersenne_twister(outputs: np.ndarray) -> np.ndarray:
    """Predict the 624 outputs after `outputs`, the last 624 of a Mersenne Twister."""
    key = np.array([untemper(int(word)) for word in outputs], dtype=np.uint32)
    generator = np.random.MT19937()
    state = generator.state
    state["state"] = {"key": key, "pos": 624}
    generator.state = state
    return generator.random_raw(624).astype(np.uint32)


def test_d06_pads_are_no_mersenne_twister_and_are_made_when_needed() -> None:
    """Published masks come from a Mersenne Twister, whose state 624 outputs give away, and those of
    all rounds are computed in advance and kept.

    By chance our words follow the prediction with probability below 1e-6000.
    """
    twister = np.random.MT19937(5)
    outputs = twister.random_raw(1248).astype(np.uint32)
    assert np.array_equal(next_by_mersenne_twister(outputs[:624]), outputs[624:])  # found

    p = params(k=624, dim=2, dp="none", epsilon=None)
    client = MaskedClient(0, np.empty((0, 2)), p, key=new_key())
    totals, _, _ = client.step()  # no records: the pad itself
    for halves in (totals.ravel() >> np.uint64(32), totals.ravel() & np.uint64(2**32 - 1)):
        ours = halves.astype(np.uint32)
        assert (next_by_mersenne_twister(ours[:624]) == ours[624:]).sum() < 10

    fresh = MaskedClient(0, np.empty((0, 20)), params(k=50, dim=20, iters=1000), key=new_key())
    kept = [x.nbytes for x in vars(fresh).values() if isinstance(x, np.ndarray)]
    assert sum(kept) < 8 * 50 * 21 * 2  # nothing of 1000 rounds


# --- D7 to D10: arithmetic ------------------------------------------------------------------------


def test_d07_rounding_is_to_nearest_and_noise_is_never_rounded() -> None:
    """Published values and noise are cut toward zero: sums are pulled to zero, and counts under
    Laplace noise have double mass there, which doubles their privacy loss."""
    grid = Grid((-1.0,), (1.0,))
    steps = np.array([[0.6], [-0.6], [1.4], [-1.4], [1.6], [-1.6], [100.51], [-100.51]])
    assert grid.encode(steps / ONE).ravel().tolist() == [1, -1, 1, -1, 2, -2, 101, -101]
    values = np.random.default_rng(0).uniform(0, 1, (200_000, 1))
    bias = (grid.encode(values) / ONE - values).mean() * ONE
    assert abs(bias) < 0.01  # truncation: half a step

    class Small:
        """Draws that truncation would merge."""

        label = "small"

        def draw(self, kind: str, scale: int, size: int) -> np.ndarray:
            return np.arange(size, dtype=np.int64) - 2

    plan = toy_plan(silos=1)
    wire = Wire(
        plan, {"silo-0": np.empty((0, 2), np.int32)}, Small(), lambda h: Faults(InProcess(h))
    )  # type: ignore[arg-type]
    wire.run()
    assert isinstance(wire.transport, Faults)
    replies = [decode(plan, up) for _, _, up, _ in wire.transport.frames]
    released = [to_integers(r.elements).tolist() for r in replies if isinstance(r, Reply)]
    assert released == [[-2, -1, 0, 1, 2, 3]] * plan.rounds


@pytest.mark.parametrize("rows", [32_767, 32_768, 32_769, 40_000, 100_000])
def test_d08_sums_beyond_32767_do_not_overflow(rows: int) -> None:
    """Published sums are cast to 32 bits with 16 behind the point: 32768 and 40000 both become
    -32768, with a warning only."""
    plan = toy_plan(GLloyd(n_clusters=1, n_features=2, rounds=1))
    corner = np.full((rows, 2), ONE, dtype=np.int32)
    records = dict.fromkeys(plan.silos, corner)
    state = Wire(plan, records).run()[0]
    results = plan.task.results(state, plan.grid)
    assert results["sizes"].tolist() == pytest.approx([3 * rows], abs=1e-3)
    assert results["centres"].tolist() == [[1.0, 1.0]]
    added = plan.task.contribute(0, {"centres": np.zeros((1, 2), np.int64)}, corner)
    assert added[0] == rows * ONE


def test_d08_what_could_overflow_is_refused_when_it_is_planned() -> None:
    """The published code has no check at all; ours proves head-room for 2^32 records a silo."""

    class Loud(Count):
        def blocks(self, t: int) -> tuple[Block, ...]:
            return (Block("count", (1,), 1 << 31, 1 << 62, 1.0),)

    with pytest.raises(PlanError, match="does not fit the ring"):
        toy_plan(Loud(n_features=2))
    plan = toy_plan(silos=8)
    for t in range(plan.rounds):
        for block in plan.task.blocks(t):
            reach = 8 * 2**32 * sqrt(block.l2_squared) + 12 * plan.noise_scale(block)
            assert reach < 2**63


def published_empty_cluster(records: np.ndarray, centre: float) -> tuple[float, float]:
    """(sum, count) of one cluster as the published client reports it."""
    if len(records) == 0:
        return centre, 1.0
    return float(records.sum()), float(len(records))


@pytest.mark.parametrize("task", [FastLloyd, GLloyd, SuLloyd])
def test_d09_an_empty_cluster_is_exactly_zero(task: Any) -> None:
    """Published clients report an empty cluster as one record at the old centre, each of them: M
    phantom records, and twice the sensitivity: {1} gives (1, 1), {} gives (-0.99, 1)."""
    options = {"n_clusters": 1, "n_features": 1, "rounds": 1}
    if task is FastLloyd:
        options |= {"first_radius": 2.0, "radius": 2.0}
    it = task(**options)
    centre = {"centres": np.array([[round(-0.99 * ONE)]])}
    nobody = it.contribute(0, centre, np.empty((0, 1), np.int32))
    assert nobody.tolist() == [0, 0]
    one = it.contribute(0, centre, np.array([[ONE]], np.int32))
    change = one - nobody
    assert int((change**2).sum()) <= it.blocks(0)[0].l2_squared

    with_one = np.array(published_empty_cluster(np.array([1.0]), -0.99))
    with_none = np.array(published_empty_cluster(np.empty(0), -0.99))
    assert np.linalg.norm(with_one - with_none) > sqrt(2) * 1.4 - 1e-9  # 1.99 against sqrt(2)


def test_d09_silos_without_records_add_no_phantoms() -> None:
    """With M published clients every count is up to M too high."""
    plan = toy_plan(silos=8)
    records = {silo: np.empty((0, 2), np.int32) for silo in plan.silos}
    records["silo-3"] = toy_records(plan)["silo-3"]
    state = Wire(plan, records).run()[0]
    alone = toy_plan(silos=1)
    same = Wire(alone, {"silo-0": records["silo-3"]}).run()[0]
    assert np.array_equal(state["sizes"], same["sizes"])
    assert np.array_equal(state["centres"], same["centres"])


def sound(move: float, total: float) -> bool:
    """The way the sum points, and no further than if there were one record."""
    return move * total > 0 and abs(move) <= abs(total) + 1e-4


@pytest.mark.parametrize("count", [-1000, -3, -1, 0, 1e-6, 0.1, 0.9])
@pytest.mark.parametrize("task", ["fast", "absolute"])
def test_d10_counts_at_or_below_zero_move_nothing_the_wrong_way(task: str, count: float) -> None:
    """The published update divides by the noisy count + 1e-9: near zero a centre explodes and is
    folded anywhere, below zero it moves away from its records (count -3: .5 to .4)."""
    it: Any = GLloyd(n_clusters=1, n_features=1, rounds=1)
    if task == "fast":
        it = FastLloyd(n_clusters=1, n_features=1, rounds=1, first_radius=1, radius=1)
    payload = it.payload(0)
    centre = 0.25
    for total in (0.3, -0.3):
        values = np.array([[round(total * ONE), round(count * payload.count_weight)]])
        state: GridState = {"centres": np.array([[round(centre * ONE)]])}
        new = float(it.update(0, state, {"sums": NoisyBlock(values, 0.0)})["centres"][0, 0])
        origin = centre if payload.relative else 0.0
        assert sound(new - origin, total)
        assert not sound(total / (count + 1e-9), total)  # the published move


# --- D11 to D14: what leaves ----------------------------------------------------------------------


def test_d11_the_aggregator_is_never_sent_a_centre(
    reachable: Callable[[object], list[object]],
) -> None:
    """Published client 1 broadcasts the new centres in the clear to all ranks, the server too: it
    knows its noise, so the exact sums follow by trying the integer counts."""
    plan = toy_plan(silos=3)
    wire = Wire(plan, noise=DiscreteNoise(), make_transport=lambda h: Faults(InProcess(h)))
    wire.run()
    assert isinstance(wire.transport, Faults)
    history = wire.clients["silo-0"].history[1:]
    codes = {
        part.astype(kind).tobytes()
        for state in history
        for row in state["centres"]
        for part in (row, row / ONE)
        for kind in ("<i8", ">i8", "<f8", ">f8", "<f4", ">f4")
        if part.any() and (part.astype(kind) == part).all()  # zeros are everywhere
    }
    for _, _, _, answer in wire.transport.frames:
        assert not [code for code in codes if code in answer]
    for thing in reachable(wire.aggregator):
        data = to_bytes(thing) if isinstance(thing, np.ndarray) and thing.dtype == "u8" else thing
        if isinstance(data, bytes):
            assert not [code for code in codes if code in data]
    assert not any("centre" in name or "result" in name for name in vars(wire.aggregator))


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=20),
    st.floats(-1e9, 1e9, allow_nan=False),
)
def test_d12_how_a_record_is_scaled_depends_on_no_other_record(
    values: list[float], other: float
) -> None:
    """Published data are min-max scaled over the pooled private table: every value then changes
    with the largest one, and the scale itself tells the extremes."""
    grid = Grid((-5.0,), (5.0,))
    table = np.array(values)[:, None]
    alone = grid.encode(table)
    together = grid.encode(np.vstack([table, [[other]]]))[:-1]
    assert np.array_equal(alone, together)


def test_d12_bounds_are_asked_for_and_never_read_from_the_records() -> None:
    """The published loader takes no bounds."""
    assert inspect.signature(DPKMeans).parameters["bounds"].default is inspect.Parameter.empty
    X = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    for bounds in (None, "minmax", "from data"):
        with pytest.raises(PlanError, match="bounds"):
            DPKMeans(2, epsilon=1.0, bounds=bounds, nominal_n=50).fit(X)
    plans = [
        DPKMeans(2, epsilon=1.0, bounds=(-9, 9), nominal_n=50, random_state=0).fit(scale * X).plan_
        for scale in (1, 7)
    ]
    assert plans[0].grid == plans[1].grid


THRESHOLDS = [(FastLloyd, 1377), (GLloyd, 2322), (SuLloyd, 3818)]


@pytest.mark.parametrize(("task", "below"), THRESHOLDS)
def test_d13_one_record_more_changes_no_public_number(task: Any, below: int) -> None:
    """The published code takes rounds, noise and delta from the exact number of records: at k=3,
    d=4, epsilon 1, FastLloyd publishes two rounds for 1377 of them and three for 1378."""
    schema = toy_schema(4)
    X = np.random.default_rng(0).uniform(-1, 1, (below + 1, 4))
    plans = []
    for rows in (below, below + 1):
        result = run_job(
            task,
            schema,
            {"all": array_records(X[:rows], schema.grid())},
            epsilon=1.0,
            nominal_n=below,
            delta=1 / (below * log(below)),
            noise=ZeroNoise(),
            n_clusters=3,
            **({"estimate": False} if task is FastLloyd else {}),
        )
        assert len(result.history) == 3  # two rounds, both times
        plans.append({**result.plan.to_dict(), "run_id": ""})
    assert plans[0] == plans[1]
    moved = make_plan(
        task,
        schema,
        ["all"],
        budget=Budget(1.0, 1 / ((below + 1) * log(below + 1))),
        nominal_n=below + 1,
        n_clusters=3,
        **({"estimate": False} if task is FastLloyd else {}),
    )
    assert moved.rounds == 3  # the contract value decides


def test_d14_no_exact_number_of_unassigned_records_leaves() -> None:
    """Published clients send how many records were beyond the radius, exactly, to the server."""
    p = params(max_dist=0.01, num_clients=1)
    X = np.random.default_rng(0).uniform(-1, 1, (777, 2))
    client = UnmaskedClient(0, X, p)
    assert client.step()[2] is None
    server_words = inspect.signature(Server.step).parameters
    assert "unassigned" not in server_words

    task = FastLloyd(n_clusters=2, n_features=2, rounds=2, first_radius=0.02, radius=0.02)
    plan = toy_plan(task, silos=1)
    assert {block.name for block in plan.task.blocks(0)} == {"sums"}
    wire = Wire(
        plan, {"silo-0": plan.grid.encode(X)}, make_transport=lambda h: Faults(InProcess(h))
    )
    (state,) = wire.run()
    assert set(plan.task.results(state, plan.grid)) == {
        "centres",
        "low",
        "high",
        "half_width",
        "sizes",
        "size_half_width",
    }
    assert isinstance(wire.transport, Faults)
    assigned = float(plan.task.results(state, plan.grid)["sizes"].sum())
    for _, _, up, down in wire.transport.frames:
        for frame in (up, down):
            message = decode(plan, frame)
            assert encode(plan, message) == frame, "a frame says nothing but its message"
            assert not {777, int(777 - assigned)} & numbers_in(message)
    assert 777 in numbers_in(Reply(0, plan.silos, to_words(np.array([5, 777]))))


def numbers_in(message: Any) -> set[int]:
    """Return the whole numbers of a message; not its hashes, which end in any digits by chance."""
    found = {value for value in vars(message).values() if isinstance(value, int)}
    words = (value for value in vars(message).values() if isinstance(value, np.ndarray))
    return found.union(*(to_integers(word).tolist() for word in words))


# --- D20 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 4, 16, 100])
@pytest.mark.parametrize("eta", [0.05, 0.5, 1.5])
def test_d20_the_l1_bound_inside_a_radius_is_sqrt_d_times_eta(d: int, eta: float) -> None:
    """Published Laplace noise inside a radius is scaled by ``min(2, eta) * d``: up to sqrt(d) times
    too much, because a vector of L2 norm eta has L1 norm sqrt(d) eta at most."""
    task = FastLloyd(
        n_clusters=1,
        n_features=d,
        rounds=2,
        first_radius=eta,
        radius=eta,
        mechanism="laplace",
    )
    payload = task.payload(1)
    bound = payload.l1 - payload.count_weight
    assert bound == isqrt(d * int(eta * ONE) ** 2)
    assert bound <= sqrt(d) * eta * ONE
    # attained by the record that differs by the same in every column
    step = int(int(eta * ONE) / sqrt(d))
    if step <= ONE:
        added = task.contribute(
            1, {"centres": np.zeros((1, d), np.int64)}, np.full((1, d), step, np.int32)
        )
        assert 0 <= bound - np.abs(added[:-1]).sum() <= d + 1
    if d > 1:
        assert min(2, eta) * d * ONE > 1.4 * bound  # the published scale
    plan = toy_plan(replace(task), budget=Budget(1.0, 0.0))
    assert plan.noise_scale(plan.task.blocks(1)[0]) == 2 * payload.l1


def test_every_defect_of_the_list_has_its_test(request: pytest.FixtureRequest) -> None:
    names = {name for name in vars(request.module) if name.startswith("test_d")}
    numbers = {int(name[6:8]) for name in names}
    assert numbers == {*range(1, 15), 20}


def test_starts_round_to_the_grid_like_every_public_state() -> None:
    """A start off the grid would give silos of different machines different centres."""
    task = FastLloyd(n_clusters=5, n_features=3, rounds=2, first_radius=1.0, radius=0.5)
    start: Mapping[str, Any] = task.start()
    steps = round_to_grid(start["centres"], 16)
    assert np.abs(steps / ONE - start["centres"]).max() <= 0.5 / ONE
