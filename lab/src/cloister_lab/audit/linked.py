"""The audit of a session of linked tables: a membership game on shares.

The adversary is server 1, a receiver, and the owner of the second table. It knows the identifier of
one person, and uploads any words under that person's tag and under others. Is the person in the
first table? It sees all opened values and all answers, and takes its own noise off: here it draws
none. No step of the session is simulated.

Models by descent are left out: their terms are audited where trainings on shares are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from cloister.audit.bounds import Check, attainable, compare, points, uniform_fit
from cloister.audit.checks import ALPHA, Audit, Finding, drawn_curve, two_worlds
from cloister.audit.runs import MakeNoise, log_ratio, system_noise
from cloister.core.randomness import new_nonce, public_generator
from cloister.hazmat.ring import Words, to_integers
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.noise import NoiseKind, NoiseSource
from cloister.protocol.task import Integers
from cloister.shares.linking.columns import Side
from cloister.shares.linking.merge import How
from cloister.shares.linking.program import Linked
from cloister.shares.linking.rows import Prepared
from cloister.shares.mpc import run_here
from cloister.shares.mpc.material import Sharing
from cloister_lab.audit.curators import distinguish

_UPLOADS = 20  # of any words, beside each of which a person is added
_MASKED = 1500  # rows of the session whose openings are looked at: 64 bits of persons in a word
_LARGEST = 8.0  # deviations of a mean of bits; of 10^4 means, one is beyond in 1e-11 of runs
_SHORTEST = 100  # bytes of a message that is looked at
_PERSON = "a person of both tables"
_SECRET, _SESSION = b"\x07" * 32, "game"
_ANALYSES = (
    {"kind": "table", "of": ("group", "shop")},
    {"kind": "means", "number": "z", "by": "group"},
    {"kind": "correlation", "of": ("x", "z")},
)


class _Nothing:
    """The noise that is left of a server's own, which knows it."""

    label = "none: its server knows it"

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return zeros."""
        return np.zeros(size, np.int64)


@dataclass(frozen=True)
class Game:
    """Sessions of two owners, whose places are few, and what one of their persons adds."""

    budget: Budget
    rows: int = 4
    how: How = "inner"

    @cached_property
    def program(self) -> Linked:
        """The program of the session."""
        columns = (
            [{"name": "group", "categories": ("a", "b", "c")}, {"name": "x", "high": 1.0}],
            [{"name": "shop", "categories": ("p", "q")}, {"name": "z", "high": 1.0}],
        )
        return Linked(
            key="person",
            parts=({"rule": "digits"},),
            sides={
                name: {"rows": self.rows, "key": ("id",), "columns": own}
                for name, own in zip(("honest", "other"), columns, strict=True)
            },
            analyses=_ANALYSES,
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            keys_per_person=1,
            how=self.how,
        )

    @cached_property
    def scales(self) -> tuple[tuple[int, int, int], ...]:
        """Number of words, scale and squared bound of each opening."""
        noises = (self.program.size_noise, *(noise for _, noise in self.program.noises()))
        sizes = (math.prod(shape) for shape in self.program.results().values())
        return tuple(
            (n, one.sigma, one.sensitivity**2) for n, one in zip(sizes, noises, strict=True)
        )

    def honest(self, persons: int, draw: np.random.Generator) -> Words:
        """Return the upload of the honest owner: persons 1, 2, ..., at the edges of the box."""
        side: Side = self.program.frame.sides["honest"]
        values = [draw.integers(0, top + 1, persons) for top in (2, 1)]
        keys = [(str(person + 1),) for person in range(persons)]
        return Prepared(side, keys, side.packed(np.array(values, float).T)).tagged(
            _SECRET, _SESSION
        )

    def hostile(self, draw: np.random.Generator) -> Words:
        """Return any words under the tags of persons, sorted, which pass the check of order."""
        table = draw.integers(0, 2**64, self.program.tables()["other"], dtype=np.uint64)
        side: Side = self.program.frame.sides["other"]
        own = Prepared(side, [(str(i + 1),) for i in range(self.rows)], table[:, 1:])
        words = own.tagged(_SECRET, _SESSION)
        words[:, 1] |= np.uint64(1)
        return words

    def worlds(self, draw: np.random.Generator) -> tuple[list[Words], list[Words]]:
        """Return uploads of the same two owners without the last honest person, and with it."""
        table, hostile = self.honest(self.rows - 1, draw), self.hostile(draw)
        person = np.uint64(1)
        there = np.flatnonzero(table[:, 1] & person)
        less = table.copy()
        less[there[draw.integers(len(there))], 1:] = 0
        return [less, hostile], [table, hostile]

    def released(
        self, tables: Sequence[Words], runs: int, noise: NoiseSource, watch: Any = (None, None)
    ) -> Integers:
        """Return what the adversary has of each run once its own noise is off; (runs, words)."""
        names = tuple(self.program.frame.sides)

        def repeated(server: Any, *shares: Words) -> list[Words]:
            given = dict(zip(names, shares, strict=True))
            return [
                np.concatenate(
                    [words.ravel() for words in self.program.run(server, given).values()]
                )
                for _ in range(runs)
            ]

        pair, _ = run_here(
            repeated, *tables, sharing=Sharing.XOR, noise=(noise, _Nothing()), watch=watch
        )
        return to_integers(np.array(pair[0]) + np.array(pair[1]))

    def openings(self, rows: Integers) -> Iterator[Integers]:
        """Yield the words of each opening."""
        ends = np.cumsum([0, *(n for n, _, _ in self.scales)]).tolist()
        yield from (rows[:, start:end] for start, end in pairwise(ends))


def audit_linked(
    budget: Budget, *, runs: int = 2000, make_noise: MakeNoise | None = None, **sizes: int
) -> Audit:
    """Audit a session of linked tables.

    Parameters
    ----------
    budget : Budget
        The claim of the whole session.
    runs : int
        Sessions in each of two worlds.
    make_noise : function, optional
        Returns the noise source of server 0; by default the product's own.
    sizes : int
        Ignored: a session of two owners has the columns of this module.
    """
    game = Game(budget)
    event = game.program.event()
    spent = accounting.epsilon(event, budget.delta)
    price = Finding(
        "price",
        spent > budget.epsilon * (1 + 1e-9),
        f"the noise of one server costs epsilon {spent:.6g} of {budget.epsilon:g}",
    )
    played, checks, reach = play(game, runs, (make_noise or system_noise)())
    return Audit(
        method="linked",
        budget=budget,
        event=event,
        details=f"{game.rows} places at each of two owners, of whom one uploads any words",
        findings=(price, sensitivity(game), masks(), *played),
        checks=checks,
        curve=drawn_curve(event, checks),
        pair=_PERSON,
        reach=reach,
        epsilon_seen=math.nan,
        false_alarm=4 * ALPHA,
        possible=attainable(partial(accounting.delta, event), checks),
    )


def sensitivity(game: Game, uploads: int = _UPLOADS) -> Finding:
    """Add a person to the honest table beside uploads of any words, without noise; exact.

    In an outer join the other owner's row of that person stays when it is not there.
    """
    draw, worst = public_generator("audit", "uploads", uploads), 0.0
    for own in (game, replace(game, how="outer")):
        for _ in range(uploads):
            without, with_it = (own.released(t, 1, _Nothing()) for t in own.worlds(draw))
            added = zip(own.openings(with_it - without), own.scales, strict=True)
            for words, (_, _, bound) in added:
                size = math.sqrt(sum(int(v) ** 2 for v in words.ravel()) / bound)
                worst = max(worst, size)
    return Finding(
        "sensitivity",
        worst > 1,
        f"a person added at most {worst:.4g} of the bound of an opening, beside {uploads} uploads "
        "of any words",
    )


def play(
    game: Game, runs: int, noise: NoiseSource
) -> tuple[tuple[Finding, ...], tuple[Check, ...], float]:
    """Play the game; return the findings, the checks of the whole release, and its reach."""
    uploads = game.worlds(public_generator("audit", "linked worlds", 0))
    exact = [game.released(tables, 1, _Nothing()) for tables in uploads]
    added = (exact[1] - exact[0])[0]
    scales = np.concatenate([np.full(n, float(sigma)) for n, sigma, _ in game.scales])
    seen = [game.released(tables, runs, noise) for tables in uploads]
    ratios = [
        np.array([log_ratio(row, added, scales, laplace=False) for row in rows - exact[0]])
        for rows in seen
    ]
    curve = points(game.program.event())
    checks = tuple(compare(curve, ratios[0], ratios[1], ALPHA))
    # The ratio trusts the scales of the plan, and misses a number that has no noise.
    each = [partial(next, iter(rows)) for rows in seen]
    alone = tuple(distinguish(each[0], each[1], curve, runs, ALPHA))
    left = np.concatenate([rows - own for rows, own in zip(seen, exact, strict=True)])
    worth = sum(bound / sigma**2 for _, sigma, bound in game.scales)
    reach = float(((added / scales) ** 2).sum()) / worth
    findings = (
        two_worlds(checks, _PERSON, reach),
        replace(two_worlds(alone, _PERSON, math.nan), check="single numbers"),
        law(game, left),
    )
    return findings, checks, reach


def law(game: Game, left: Integers) -> Finding:
    """Compare the noise of server 0 in each opening with its plan."""
    draw = public_generator("audit", "between integers", new_nonce())
    worst, where = 1.0, ""
    fits = [
        uniform_fit(stats.norm.cdf((noise.ravel() + draw.uniform(-0.5, 0.5, noise.size)) / sigma))
        for noise, (_, sigma, _) in zip(game.openings(left), game.scales, strict=True)
    ]
    tests = 3 * len(fits)
    for name, fit in zip(("size", *(str(a["kind"]) for a in _ANALYSES)), fits, strict=True):
        for what, p in fit.items():
            if p < worst:
                worst, where = p, f"{what} of {name}"
    return Finding(
        "noise",
        worst < ALPHA / tests,
        f"smallest p-value {worst:.2g} of {tests}, the {where}; {len(left)} sessions",
    )


def masks(overlap: float = 1.0) -> Finding:
    """Look whether opened bits are even, as under a fresh mask, in a session of more rows."""
    game = Game(Budget(4.0, 1e-6), _MASKED)
    draw = public_generator("audit", "masks", 0)
    seen: tuple[list[Any], list[Any]] = ([], [])
    tables = [game.honest(round(overlap * _MASKED), draw), game.hostile(draw)]
    game.released(tables, 1, _Nothing(), watch=[view.append for view in seen])
    worst, n_messages = 0.0, 0
    for sent, received in zip(*seen, strict=True):
        opened = sent ^ received  # what either server sent to the other
        if opened.dtype == np.uint8:
            if opened.max(initial=0) > 1:
                continue  # marks of kept rows, which are no masked values
            opened = np.packbits(opened)
        body = np.ascontiguousarray(opened).view(np.uint8)
        if body.size >= _SHORTEST:
            means = np.unpackbits(body).reshape(-1, 8).mean(axis=0)
            worst = max(worst, float(np.abs(means - 0.5).max() * 2 * body.size**0.5))
            n_messages += 1
    return Finding(
        "masks",
        worst > _LARGEST or not n_messages,
        f"bits of {n_messages} opened messages are at most {worst:.1f} deviations from even",
    )
