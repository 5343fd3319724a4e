"""What the servers of a join open: the same for no and for full overlap, and for any number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.shares.linking import merge
from cloister.shares.linking.program import Linked
from cloister.shares.mpc import Server, dealer
from cloister.shares.mpc.material import Pick

from .people import frames, on_shares, sides, uploads
from .test_linked import linked

ROWS = 1000


def xored(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def furthest(monkeypatch: pytest.MonkeyPatch, overlap: float, broken: bool) -> float:
    """Return how many deviations from one half a bit of an opened message is, at most.

    Each message of 100 bytes or more gives eight means, one for each bit of a byte. Of uniform
    bits, one of 10^4 means is beyond 8 deviations with a chance below 1e-10.
    """
    log: list[bytes] = []
    swap, drawn = Server.swap, dealer._drawn

    def spy(self: Server, bodies: Any) -> Any:
        others = swap(self, bodies)
        if self.index == 0:
            log.extend(map(xored, bodies, others))
        return others

    def unmasked(key: bytes, index: int, serial: int, material: Any) -> Any:
        parts = drawn(key, index, serial, material)
        if isinstance(material, Pick):
            parts[0] = np.zeros_like(parts[0])  # bits of persons are opened as they are
        return parts

    tables = uploads(frames(ROWS, ROWS, overlap), sides(ROWS, ROWS))
    with monkeypatch.context() as patch:
        patch.setattr(Server, "swap", spy)
        if broken:
            patch.setattr(dealer, "_drawn", unmasked)
        on_shares(lambda s, t: merge.inner(s, t, ("a", "b")).there, tables)
    opened = [np.frombuffer(body, np.uint8) for body in log if len(body) >= 100]
    assert len(opened) > 100
    means = [np.unpackbits(body).reshape(-1, 8).mean(axis=0) for body in opened]
    return max(
        float(np.abs(mean - 0.5).max() * 2 * len(body) ** 0.5)
        for mean, body in zip(means, opened, strict=True)
    )


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_opened_values_are_uniform_for_any_overlap(
    monkeypatch: pytest.MonkeyPatch, overlap: float
) -> None:
    assert furthest(monkeypatch, overlap, broken=False) < 8


def test_a_join_that_masks_too_little_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Received words alone would be uniform even then; what is opened is not."""
    for overlap in (0.0, 1.0):
        assert furthest(monkeypatch, overlap, broken=True) > 10


class Still:
    """Noise of 0, so that lengths after shrinking are those of the true number."""

    label = "a test"

    def draw(self, kind: str, scale: int, size: int) -> NDArray[np.int64]:
        return np.zeros(size, np.int64)


def lengths(program: Linked, n: int, overlap: float, size: int) -> list[Any]:
    """Return rounds, bytes and lengths of all messages; dummies make the size the given one."""
    tables = [
        program.prepare(name, table).tagged(b"k" * 32, "s")
        for name, table in zip(program.frame.sides, frames(n, n, overlap), strict=True)
    ]
    missing = size - round(overlap * n)

    class Made(Still):
        def draw(self, kind: str, scale: int, size: int) -> NDArray[np.int64]:
            made = np.zeros(size, np.int64)
            if size == 1 and scale == program.size_noise.sigma:
                made[0] = missing
            return made

    seen: tuple[list[Any], list[Any]] = ([], [])
    _, servers = on_shares(
        lambda server, shares: program.run(
            server, dict(zip(program.frame.sides, shares, strict=True))
        ),
        tables,
        watch=[view.append for view in seen],
        noise=(Made(), Still()),
    )
    costs = [(s.cost.rounds, s.cost.bytes_sent, s.supply.bytes_received) for s in servers]
    return [costs, *[[words.shape for words in view] for view in seen]]


def test_a_transcript_has_one_shape_for_each_released_size() -> None:
    """Whatever the overlap and the number of rows: all that lengths show is the noisy size."""
    program = linked(
        {"kind": "table", "of": ("group", "shop")},
        {"kind": "logistic", "of": ("x", "z"), "target": "y", "steps": 1},
        epsilon=20.0,
        least_matches=5,
    )
    found = [lengths(program, n, overlap, 20) for n, overlap in ((40, 0.0), (60, 0.3), (20, 1.0))]
    assert found[0] == found[1] == found[2]
