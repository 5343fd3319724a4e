"""No released word is in the coordinator: not in its memory, its store, its logs or its answers.

The scan also does what a curious coordinator can: it opens every sum with the secrets that it has.
Without the pads the same scan finds the words.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.federation.service import jobs as jobs_module
from cloister.federation.service.jobs import Jobs
from cloister.federation.service.store import Store
from cloister.hazmat.prg import PadContext
from cloister.privacy.budget import Budget
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.messages import VECTOR
from cloister.protocol.readers import Reader
from cloister.secagg.masks import PairwiseMask

from .federation import IDENTITIES, Coordinator, network_plan

LEAST = 1 << 24  # below, the bytes of a word occur by chance


def things(root: Any) -> Iterator[Any]:
    """Yield all plain values that can be reached from an object through attributes and items."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, int | str | bytes | bytearray | np.ndarray | np.generic):
            yield one
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += list(one)
        elif type(one).__module__.startswith(("cloister", "collections")):
            waiting += list(getattr(one, "__dict__", {}).values())
            if is_dataclass(one):
                waiting += [getattr(one, each.name, None) for each in fields(one)]


def written(word: int) -> Iterator[bytes]:
    """Yield the ways in which a file or a text may hold a word."""
    for order in ("little", "big"):
        data = word.to_bytes(8, order)  # type: ignore[arg-type]
        yield data
        yield data.hex().encode()
        # Base64 at each of three places; digits that depend on the neighbours are cut off.
        yield b64encode(data)[:10]
        yield b64encode(b"\0" + data)[2:12]
        yield b64encode(b"\0\0" + data)[3:13]
    yield str(word).encode()
    yield str(word - (1 << 64) if word >> 63 else word).encode()


def found_in(haystack: Any, words: set[int]) -> set[int]:
    """Return the words that a value holds."""
    if isinstance(haystack, int | np.integer) and not isinstance(haystack, bool):
        return words & {int(haystack) % (1 << 64)}
    if isinstance(haystack, np.ndarray):
        numbers = haystack.ravel()
        if numbers.dtype.kind in "iuf":
            return words & {int(number) % (1 << 64) for number in numbers.tolist()}
        return set()
    if isinstance(haystack, str):
        haystack = haystack.encode(errors="replace")
    if isinstance(haystack, bytes | bytearray):
        return {word for word in words if any(form in haystack for form in written(word))}
    return set()


def openings(aggregator: Aggregator) -> Iterator[Any]:
    """Yield what a coordinator can compute: each sum without the masks that it can take off."""
    plan, recorded = aggregator.plan, aggregator._journal.recorded(aggregator.plan.run_id)
    for t in range(plan.rounds):
        reply = aggregator._reply(t)
        secrets = dict(recorded)[f"opened/{t}".encode()]
        members = plan.silos
        opened = {silo: secrets[32 * i : 32 * i + 32] for i, silo in enumerate(members)}
        context = PadContext(plan.digest.hex(), t, 0, VECTOR, "")
        left = aggregator._round_keys.left_over(
            context, reply.elements.size, members, reply.survivors, opened
        )
        yield reply.elements - left


class Places:
    """A coordinator that ran a job, and all places where it could hold something of the result."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture, patch: Any) -> None:
        self.made: list[Aggregator] = []

        class Watched(Aggregator):
            def __init__(this, *about: Any) -> None:
                super().__init__(*about)
                self.made.append(this)

        patch.setattr(jobs_module, "Aggregator", Watched)
        caplog.set_level(logging.DEBUG)
        reader = Reader.of(IDENTITIES["ana"], "ana")
        self.plan = network_plan(
            profile="pairwise",
            collusion=1,
            min_silos=3,
            readers=(reader,),
            budget=Budget(0.001, 1e-6),  # large words
        )
        self.file = folder / "coordinator.db"
        coordinator = Coordinator(f"sqlite:///{self.file}", folder)
        job = coordinator.submit(self.plan)
        coordinator.decide(job, a=True, b=True, c=True)
        assert coordinator.ended(job).state == "done"
        client = coordinator.streams.clients["a", job]
        released = [int(word) for one in client.sums for word in one.words]
        self.words = {w for w in released if LEAST < w < (1 << 64) - LEAST}
        assert len(self.words) > len(released) / 2
        jobs: Jobs = coordinator.jobs
        state = {name: value for name, value in vars(jobs).items() if name != "streams"}
        self.memory = [*things(state), *things(self.made)]
        self.answers = [jobs.details(coordinator.job(job)), jobs.view(coordinator.job(job))]
        self.sent = [vars(coordinator.job(job)), coordinator.streams.offers]
        self.opened = [word for one in self.made for word in openings(one)]
        coordinator.close()
        # The wire's frames of all directions cross the coordinator, too.
        self.frames = [frame for _, frame in coordinator.streams.asked]
        self.files = [
            one.read_bytes() for one in folder.iterdir() if one.is_file() and one.stat().st_size
        ]
        self.logs = [caplog.text, *(str(record.__dict__) for record in caplog.records)]

    def found(self) -> dict[str, set[int]]:
        """Return the released words that each place holds."""
        places = {
            "memory": self.memory,
            "answers": list(things(self.answers)),
            "sent": list(things(self.sent)),
            "frames": self.frames,
            "files": self.files,
            "logs": self.logs,
            "opened": self.opened,
        }
        assert all(places.values())
        return {
            place: {word for one in values for word in found_in(one, self.words)}
            for place, values in places.items()
        }


def test_a_coordinator_holds_no_released_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(tmp_path, caplog, monkeypatch)
    assert len(places.made) == 1
    assert {place: words for place, words in places.found().items() if words} == {}


def test_without_the_pads_it_could_open_all_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = lambda self, silos, context, size: np.zeros(size, dtype=np.uint64)  # noqa: E731
    monkeypatch.setattr(PairwiseMask, "_pads", none)
    places = Places(tmp_path, caplog, monkeypatch)
    found = places.found()
    assert found.pop("opened") == places.words
    assert not any(found.values()), "and it does not, by itself"


def test_the_scan_finds_a_word_in_each_form(tmp_path: Path) -> None:
    word = 0xFFFF_FFFF_1234_5678
    store = Store(f"sqlite:///{tmp_path / 'x.db'}")
    store.record("0" * 32, b"x", word.to_bytes(8, "little"))
    store.close()
    texts = [b64encode(bytes(i) + word.to_bytes(8, "big") + b"abc") for i in range(3)]
    for place in (
        (tmp_path / "x.db").read_bytes(),
        word,
        word - (1 << 64),
        f"sum {word - (1 << 64)}",
        np.array([[word]], dtype=np.uint64),
        np.array([word - (1 << 64)]),
        b"-" + word.to_bytes(8, "big"),
        *texts,
    ):
        assert found_in(place, {word, 0x0123_4567_89AB_CDEF}) == {word}
    nested = {"a": [Budget(1.0, 1e-6), ({1: word},)]}
    assert {w for one in things(nested) for w in found_in(one, {word})} == {word}
