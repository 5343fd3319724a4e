"""What a coordinator sees of a job is the same whatever the records are, up to uniform masks.

Two runs of one plan with the same secrets and other records are compared frame by frame. False
alarms: the bytes of masked words are compared with the uniform law by chi-square, whose p-value
is below 1e-9 with probability 1e-9; four such tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from cloister.protocol import aggregator, keys
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import Upload, decode
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import ZeroNoise, toy_federation

PROFILES = ("group", "pairwise")
KEYED = {Kind.UPLOAD, Kind.CONFIRM, Kind.DONE, Kind.SHARES}
TASK = FastLloyd(n_clusters=40, n_features=9, rounds=3, first_radius=3.0, radius=1.0)


class Fixed(MemoryJournal):
    """A journal whose secret is the same in two runs, so that only the records differ."""

    def __init__(self, silo: str) -> None:
        super().__init__()
        self._fixed = silo.encode().ljust(32, b".")

    def secret(self, job: str) -> bytes:
        return self._fixed


def view(plan: Plan, identities: Mapping, records: Mapping) -> list[tuple[str, bytes, bytes]]:  # type: ignore[type-arg]
    """Return all that a coordinator sends and gets, in order."""
    clients = {
        s: Client(
            plan, s, [records[s]], journal=Fixed(s), identity=identities[s], noise=ZeroNoise()
        )
        for s in plan.silos
    }
    seen: list[tuple[str, bytes, bytes]] = []

    class Watch:
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = {s: clients[s].handle(f) for s, f in frames.items()}
            seen.extend((s, f, answers[s]) for s, f in frames.items())
            return answers

    for _ in run_rounds(Aggregator(plan, ZeroNoise()), Watch()):
        pass
    return seen


def two_tables(plan: Plan) -> tuple[dict, dict]:  # type: ignore[type-arg]
    """Return a full table and an empty one for each silo: as different as records can be."""
    one, d = plan.grid.one, plan.grid.n_features
    rng = np.random.default_rng(0)
    full = {s: rng.integers(-one, one + 1, (500, d), dtype=np.int32) for s in plan.silos}
    return full, {s: np.empty((0, d), np.int32) for s in plan.silos}


@pytest.mark.parametrize("profile", PROFILES)
def test_kinds_lengths_and_order_of_all_frames_do_not_depend_on_the_records(profile: str) -> None:
    plan, identities = toy_federation(3, profile, task=TASK)
    full, empty = (view(plan, identities, records) for records in two_tables(plan))
    shapes = [
        [(s, decode(plan, f).kind, len(f), decode(plan, a).kind, len(a)) for s, f, a in seen]
        for seen in (full, empty)
    ]
    assert shapes[0] == shapes[1]
    assert len(shapes[0]) > 3 * plan.rounds


@pytest.mark.parametrize("profile", PROFILES)
def test_only_masked_words_and_what_is_keyed_differ_between_records(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "time", SimpleNamespace(time=lambda: 1.8e9))  # is told in KEYS
    monkeypatch.setattr(aggregator, "new_key", lambda: bytes(32))  # its public key is in ROSTER
    plan, identities = toy_federation(3, profile, task=TASK)
    full, empty = (view(plan, identities, records) for records in two_tables(plan))
    for (_, _, one), (_, _, other) in zip(full, empty, strict=True):
        message = decode(plan, one)
        if message.kind not in KEYED:
            assert one == other, f"{message.kind.name} depends on the records"
        if isinstance(message, Upload) and message.round == 0:
            twin = decode(plan, other)
            assert isinstance(twin, Upload)
            assert message.state_tag == twin.state_tag
            assert (message.elements != twin.elements).any()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("table", [0, 1], ids=["full", "empty"])
def test_masked_words_look_uniform_whatever_they_hide(profile: str, table: int) -> None:
    plan, identities = toy_federation(3, profile, task=TASK)
    seen = view(plan, identities, two_tables(plan)[table])
    uploads = [m for _, _, a in seen if isinstance(m := decode(plan, a), Upload)]
    data = np.concatenate([m.elements for m in uploads]).view(np.uint8)
    assert data.size == 8 * 400 * plan.rounds * 3
    assert stats.chisquare(np.bincount(data, minlength=256)).pvalue > 1e-9
    top = data[7::8]  # where an unmasked small number would be 0 or 255
    assert stats.chisquare(np.bincount(top >> 4, minlength=16)).pvalue > 1e-9


def test_unmasked_words_would_be_noticed() -> None:
    plan, identities = toy_federation(3, "group", task=TASK)
    records = two_tables(plan)[0]
    state = Client(plan, "silo-0", [], identity=identities["silo-0"]).state
    words = plan.task.contribute(0, state, records["silo-0"]).view(np.uint8)
    assert stats.chisquare(np.bincount(words, minlength=256)).pvalue < 1e-9
