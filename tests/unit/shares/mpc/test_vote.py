"""Votes on shares: the label is that of the clear, only the label comes out, noise is charged."""

from __future__ import annotations

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.errors import AccuracyWarning, CloisterError, DataError, PlanError
from cloister.hazmat.signing import Identity
from cloister.privacy.accounting import epsilon as priced
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.shares.inference.programs import PROGRAMS
from cloister.shares.mpc import combine, local_links, run_here
from cloister.shares.mpc.parties import Account, take_part, words_of
from cloister.shares.mpc.session import Session
from cloister.shares.mpc.vote import NoisyVote, Score, Vote

Words = NDArray[np.uint64]
THREE = ("a", "b", "c")
FIVE = ("a", "b", "c", "d", "e")


class Fixed:
    """A noise source of known draws."""

    label = "fixed"

    def __init__(self, draw: int) -> None:
        self.value, self.asked = draw, []

    def draw(self, kind: str, scale: int, size: int) -> NDArray[np.int64]:
        self.asked.append((kind, scale, size))
        return np.full(size, self.value, np.int64)


def opened(program: Any, given: dict[str, Any], **options: Any) -> NDArray[np.int64]:
    names = list(program.tables())
    words = [program.words(name, given[name]) for name in names]

    def run(server: Any, *shares: Words) -> Words:
        return program.run(server, dict(zip(names, shares, strict=True)))["label"]

    (first, second), _ = run_here(run, *words, timeout=20, **options)
    return program.values("label", combine(first, second))


def clear(votes: NDArray[Any], classes: int, weights: Any) -> NDArray[Any]:
    counts = np.einsum("k,krc->rc", weights, np.eye(classes, dtype=int)[votes])
    return counts.argmax(axis=1)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize(
    "weights", [(), (1, 2, 3, 1, 1), (4, 2, 1, 1, 1), (1 << 20, 1 << 20, 1 << 20, 1, 1)]
)
def test_the_label_is_that_of_the_weighted_majority(classes: int, weights: tuple[int, ...]) -> None:
    votes = np.random.default_rng(classes).integers(0, classes, (5, 60))
    program = Vote(voters=FIVE, rows=60, classes=classes, weights=weights)
    found = opened(program, dict(zip(FIVE, votes, strict=True)))
    assert (found == clear(votes, classes, weights or (1,) * 5)).all()


def test_ties_go_to_the_lowest_class() -> None:
    program = Vote(voters=THREE, rows=2, classes=3)
    found = opened(program, {"a": [2, 2], "b": [1, 0], "c": [0, 1]})
    assert found.tolist() == [0, 0]


@pytest.mark.parametrize(
    "labels", [[0, 3], [-1, 0], [0], [[0, 1]], [0.5, 1.0], [np.nan, 1], ["0", "1"], [True, False]]
)
def test_what_is_no_vote_is_refused_before_it_is_shared(labels: Any) -> None:
    program = Vote(voters=THREE, rows=2, classes=3)
    with pytest.raises(DataError, match="must be 2 integers from 0 to 2"):
        program.words("a", labels)


def test_a_vote_may_be_a_column_of_whole_numbers_as_a_file_holds_them() -> None:
    assert Vote(voters=THREE, rows=2, classes=3).words("a", [[0.0], [2.0]]).tolist() == [
        [1, 0, 0],
        [0, 0, 1],
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"voters": ("a", "b")},
        {"voters": ("a", "b", "b")},
        {"voters": ("a", "b", 3)},
        {"rows": 0},
        {"rows": True},
        {"rows": 2.0},
        {"classes": 1},
        {"weights": (1, 2)},
        {"weights": (0, 1, 1)},
        {"weights": (2, 1, 1)},
        {"weights": (1, 1, (1 << 20) + 1)},
        {"weights": (1, 1, 1.5)},
    ],
)
def test_a_vote_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"must (be|give)"):
        Vote(**({"voters": THREE, "rows": 2, "classes": 3} | options))


def test_a_limit_is_said_with_every_digit() -> None:
    with pytest.raises(PlanError, match=r"each an integer in \[1, 1048576\], got"):
        Vote(voters=THREE, rows=2, classes=3, weights=(1, 1, (1 << 20) + 1))


# Noise ------------------------------------------------------------------------------------------


def many(count: int) -> tuple[str, ...]:
    return tuple(f"silo{k}" for k in range(count))


def test_a_noisy_vote_costs_what_its_budget_says_whatever_the_weights_and_silos_of_a_person() -> (
    None
):
    for weights, silos in (((), 1), ((3, *(1,) * 99), 1), ((), 4)):
        program = NoisyVote(
            voters=many(100), rows=5, classes=2, weights=weights, epsilon=4.0, max_silos=silos
        )
        assert program.opening == "private"
        assert 3.95 < priced(program.event(), 1e-6) <= 4.0
        # One silo's vote that moves from a class to another changes two counts by its weight.
        moved = silos * max(weights, default=1) * 1024 * math.sqrt(2)
        assert moved <= program.noise.sensitivity < 1.001 * moved + silos


def test_both_servers_add_their_own_draw_to_every_count_of_every_row() -> None:
    """A broken program with one draw, or with less noise than is charged, is seen here."""
    program = NoisyVote(voters=many(100), rows=2, classes=2, epsilon=20.0)
    votes = {name: [0, 1] for name in many(100)}
    for own, other in ((Fixed(0), Fixed(0)), (Fixed(5), Fixed(-3))):
        found = opened(program, votes, noise=(own, other))
        assert found.tolist() == [0, 1]
        for source in (own, other):
            assert source.asked == [("gaussian", program.noise.sigma, 4)]


def test_noise_decides_when_it_is_larger_than_the_lead() -> None:
    class Against(Fixed):
        def draw(self, kind: str, scale: int, size: int) -> NDArray[np.int64]:
            return np.array([-self.value, self.value], np.int64)

    program = NoisyVote(voters=many(100), rows=1, classes=2, epsilon=20.0)
    votes = {name: [0] for name in many(100)}
    # The lead is 100 votes; each server moves the difference by 2 * 1024 * value.
    for half, label in ((24 * 1024, 0), (26 * 1024, 1)):
        assert opened(program, votes, noise=(Against(half), Against(half))).tolist() == [label]


def test_few_voters_are_warned_that_noise_drowns_them() -> None:
    with pytest.warns(AccuracyWarning, match=r"5 voters .* even a unanimous vote wins"):
        program = NoisyVote(voters=FIVE, rows=100, classes=2)
    assert program.chance(5) < 0.55
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert NoisyVote(voters=many(400), rows=10, classes=2, epsilon=2.0).chance(400) > 0.99


def test_the_chance_of_a_lead_is_that_of_four_draws() -> None:
    program = NoisyVote(voters=many(200), rows=1, classes=2, epsilon=1.0)
    deviation = 2 * program.noise.sigma / 1024
    assert program.chance(deviation) == pytest.approx(0.841345, abs=1e-6)
    assert program.chance(0) == 0.5
    three = NoisyVote(voters=many(200), rows=1, classes=3, epsilon=1.0)
    assert three.chance(deviation) == pytest.approx(1 - 2 * 0.158655, abs=1e-5)


def test_more_silos_of_one_person_than_voters_are_refused() -> None:
    with pytest.raises(PlanError, match="max_silos"):
        NoisyVote(voters=many(50), rows=1, classes=2, epsilon=9.0, max_silos=51)


# Models and rows on shares ----------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3])
def test_labels_of_shared_models_for_shared_rows_are_those_of_the_clear(
    outputs: int, count: int
) -> None:
    generator = np.random.default_rng(outputs)
    names = THREE[:count]
    program = Score(models=names, rows=200, features=30, outputs=outputs)
    rows = generator.normal(size=(200, 30))
    models = {name: generator.normal(size=(31, outputs)) for name in names}
    found = opened(program, {"rows": rows, **models})
    scores = np.stack([rows @ m[:-1] + m[-1] for m in models.values()])
    labels = (scores[..., 0] > 0).astype(int) if outputs == 1 else scores.argmax(axis=2)
    ordered = np.sort(scores, axis=2)
    lead = np.abs(ordered[..., -1] - (ordered[..., -2] if outputs > 1 else 0))
    sure = lead.min(axis=0) > 2e-3  # rounding may decide the others
    expected = clear(labels, max(2, outputs), (1,) * count)
    assert sure.mean() > 0.9
    assert (found == expected)[sure].all()


def test_a_score_of_exactly_0_is_class_0_and_models_may_have_weights() -> None:
    rows = [[0.0], [1.0], [-1.0]]
    assert opened(
        Score(models=("m",), rows=3, features=1), {"rows": rows, "m": [[1.0], [0.0]]}
    ).tolist() == [0, 1, 0]
    models = {"a": [[1.0], [0.0]], "b": [[-1.0], [0.0]], "c": [[-1.0], [0.0]]}
    weighted = Score(models=THREE, rows=3, features=1, outputs=1, weights=(3, 1, 1))
    assert opened(weighted, {"rows": rows, **models}).tolist() == [0, 1, 0]
    tie = Score(models=THREE, rows=3, features=1, outputs=1, weights=(2, 1, 1))
    assert opened(tie, {"rows": rows, **models}).tolist() == [0, 0, 0]


def test_the_largest_features_and_weights_that_are_taken_fit_the_ring() -> None:
    program = Score(models=("m",), rows=2, features=30)
    rows = np.full((2, 30), program.limit) * np.array([[1.0], [-1.0]])
    model = np.full((31, 1), float(program.limit))
    assert opened(program, {"rows": rows, "m": model}).tolist() == [1, 0]
    assert (31 * program.limit**2) << 32 < 1 << 62


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e9])
def test_features_and_weights_out_of_range_are_refused_before_they_are_shared(bad: float) -> None:
    program = Score(models=("m",), rows=2, features=3)
    for table, shape in program.tables().items():
        values = np.zeros(shape)
        values[-1, 0] = bad
        with pytest.raises(DataError, match="scale the columns"):
            program.words(table, values)
        with pytest.raises(DataError, match="must have shape"):
            program.words(table, np.zeros((shape[0], shape[1] + 1)))


@pytest.mark.parametrize(
    "options",
    [{"models": ()}, {"models": ("rows",)}, {"rows": 0}, {"features": 0}, {"outputs": 0}],
)
def test_a_score_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(CloisterError, match=r"must be|may be called"):
        Score(**({"models": ("m",), "rows": 2, "features": 3} | options))


def test_a_session_knows_the_programs() -> None:
    assert {"vote", "noisy-vote", "score"} <= set(PROGRAMS)
    assert PROGRAMS["vote"](voters=THREE, rows=2, classes=2) == Vote(
        voters=THREE, rows=2, classes=2
    )


def test_a_noisy_vote_between_parties_charges_every_voter_and_tells_only_the_receiver(
    tmp_path: Path,
) -> None:
    """Eight parties in threads: six silos, of which two compute, a dealer and who asks."""
    silos = tuple(f"silo{k}" for k in range(6))
    options = {"voters": list(silos), "rows": 2, "classes": 2, "epsilon": 200.0}
    names = (*silos, "dealer", "broker")
    keys = {name: Identity.new() for name in names}
    of = Session.from_dict(
        {
            "id": 32 * "a",
            "program": "noisy-vote",
            "options": options,
            "dealer": "dealer",
            "servers": ["silo0", "silo1"],
            "owners": {name: name for name in silos},
            "receivers": ["broker"],
            "parties": {
                name: {"fingerprint": key.fingerprint, "address": "127.0.0.1:7700"}
                for name, key in keys.items()
            },
        },
        PROGRAMS,
    )
    ends: dict[tuple[str, str], Any] = {}
    for a in names:
        for b in of.peers_of(a):
            if (a, b) not in ends:
                ends[a, b], ends[b, a] = local_links(20)

    def part(name: str) -> tuple[Any, float]:
        own = tmp_path / name
        own.mkdir()
        ledger = Ledger(own / "ledger.db")
        ledger.open_dataset("loans", cap=Budget(200.0, 1e-6))
        tables = {t: words_of(of.program, t, [1, 0]) for t in of.tables_of(name)}
        account = Account(ledger, "loans") if tables else None
        links = nullcontext({peer: ends[name, peer] for peer in of.peers_of(name)})
        done = take_part(of, name, lambda: links, own, tables=tables, account=account)
        return done, ledger.spent("loans")

    with ThreadPoolExecutor(len(names)) as pool:
        done = dict(zip(names, pool.map(part, names), strict=True))
    # Six votes against none lead by 6; at this epsilon noise turns that in less than 1e-9 of runs.
    assert of.program.chance(6) > 1 - 1e-9
    assert done["broker"][0].results["label"].tolist() == [1, 0]
    assert done["broker"][1] == done["dealer"][1] == 0
    for name in silos:
        assert not done[name][0].results
        assert 198 < done[name][1] <= 200  # the rest is the rounding of a small sigma


# What a server sees -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vote", "noisy-vote", "score", "scores"])
def test_servers_see_uniform_words_whose_shape_says_nothing_of_the_votes(name: str) -> None:
    """Beyond 8 deviations of a chi-square with 255 degrees of freedom: below 1e-10 a view."""
    voters = many(60)
    program: Any = {
        "vote": Vote(voters=THREE, rows=400, classes=4),
        "noisy-vote": NoisyVote(voters=voters, rows=100, classes=4, epsilon=80.0),
        "score": Score(models=("m",), rows=400, features=8),
        "scores": Score(models=THREE, rows=100, features=8, outputs=4),
    }[name]
    shapes = set()
    names = list(program.tables())
    for value in (0, 1):
        seen: tuple[list[Any], list[Any]] = ([], [])
        words = [np.full(shape, value, np.uint64) for shape in program.tables().values()]
        for _ in range(3):
            before = [len(view) for view in seen]
            run_here(
                lambda s, *shares: program.run(s, dict(zip(names, shares, strict=True))),
                *words,
                watch=[view.append for view in seen],
                timeout=20,
            )
            for view, start in zip(seen, before, strict=True):
                shapes.add(tuple(part.shape for part in view[start:]))
        for view in seen:
            body = [w if w.dtype == np.uint64 else np.packbits(w) for w in view]
            flat = np.concatenate([np.ascontiguousarray(w).view(np.uint8).ravel() for w in body])
            counts = np.bincount(flat, minlength=256)
            chi = ((counts - flat.size / 256) ** 2 / (flat.size / 256)).sum()
            assert (chi - 255) / np.sqrt(2 * 255) < 8
    assert len(shapes) == 1, "what is sent must not depend on votes"


def test_a_vote_that_is_not_one_hot_counts_as_often_as_it_says() -> None:
    """Semi-honest, and this is what that means: nobody sees it, and it decides."""
    program = Vote(voters=THREE, rows=1, classes=2)
    stuffed = np.array([[0, 9]], np.uint64)
    honest = program.words("b", [0])
    (first, second), _ = run_here(
        lambda s, *v: program.run(s, dict(zip(THREE, v, strict=True)))["label"],
        stuffed, honest, honest,
    )  # fmt: skip
    assert combine(first, second).tolist() == [1]


@pytest.mark.parametrize("name", ["vote", "noisy-vote"])
def test_no_silo_gives_two_of_the_votes(name: str) -> None:
    # Its records would change two votes, and the noise is for one.
    owners = {"a": "amy", "b": "amy", "c": "cai"}
    names = ["amy", "cai", "dot", "eve", "fay"]
    document = {
        "id": 32 * "a",
        "program": name,
        "options": {"voters": ["a", "b", "c"], "rows": 1, "classes": 2}
        | ({"epsilon": 50.0} if name == "noisy-vote" else {}),
        "dealer": "dot",
        "servers": ["eve", "fay"],
        "owners": owners,
        "receivers": ["cai"],
        "parties": {
            who: {"fingerprint": "ed25519:" + 64 * f"{k}", "address": f"h:{k + 1}"}
            for k, who in enumerate(names)
        },
    }
    with pytest.raises(PlanError, match="a different owner"):
        Session.from_dict(document, PROGRAMS)
