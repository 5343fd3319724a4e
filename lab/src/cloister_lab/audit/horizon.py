"""The audit of a horizon: a membership game over all of its periods, through the product's folder.

The adversary chooses one person, the periods in which it arrives, and its rows in each. It sees all
releases. Did the person arrive? The records are sent through `HorizonFolder.release`, with its
states and its ledger. Without noise the answer is exact: what the person adds to all releases
together, against what the price pays for, and whether stored sums are those of the admitted rows.
The noise is then taken off the releases of whole horizons, and compared with the plan.

A game over a network is played through the frozen states of silos, their clients and an aggregator,
under pairwise masks. Then each silo adds a share of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from scipy import stats

from cloister.app.horizon import Horizon, HorizonFolder
from cloister.app.in_process import InProcess, handlers
from cloister.app.job import Job, Trust
from cloister.app.payment import Account
from cloister.audit.bounds import attainable, compare, correlated, points, uniform_fit
from cloister.audit.checks import ALPHA, Audit, Finding, drawn_curve, two_worlds
from cloister.audit.runs import Ahead, MakeNoise, log_ratio, system_noise
from cloister.core.randomness import new_nonce, public_generator
from cloister.data import read_source
from cloister.data.records import Records
from cloister.data.schema import Schema
from cloister.data.units import Admits
from cloister.estimators.tables import category_column
from cloister.federation.silo.periods import Periods
from cloister.hazmat.ring import Integers, to_bytes, to_integers
from cloister.hazmat.signing import Identity
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.horizon import Encoding
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import DiscreteNoise, NoiseKind, NoiseSource
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.session import run_rounds
from cloister.tasks import TASKS

_KINDS = tuple("abcdefgh")
_ROWS = 2  # of a person that count in a period; the adversary sends one more
_OTHERS = 3  # persons of each silo in a period
_WHOLE = 20  # horizons that are played with noise
_PERSON = "a person with the most rows, who arrives in every period"
Play = Callable[[int], NoiseSource | None]
"""The noise source of a period; None for the product's own."""


class _Nothing:
    """No noise, so that what a person adds is exact."""

    label = "none: an audit of exact sums"

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return zeros."""
        return np.zeros(size, np.int64)


@dataclass(frozen=True)
class Game:
    """A horizon of two silos, and the persons who arrive in it."""

    budget: Budget
    periods: int = 6
    max_periods: int = 2
    network: bool = False
    _known: dict[tuple[int, ...], Integers] = field(default_factory=dict, repr=False)

    @cached_property
    def schema(self) -> Schema:
        """The contract: a person may be at both silos, with some rows at each."""
        kind = category_column("kind", _KINDS)
        return Schema(
            dataset="game", unit="person", max_rows=_ROWS, max_silos_per_person=2, columns=(kind,)
        )

    @cached_property
    def horizon(self) -> Horizon:
        """The horizon of one table of counts."""
        # Not independent periods, whose earlier sums are in no later release.
        encoding = Encoding.of(self.periods, self.max_periods, "totals")
        job = Job(
            task=TASKS["tabulate"],
            schema=self.schema,
            silos=("north", "south"),
            options={"tables": [["kind"]]},
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            nominal_n=1000,
        )
        if self.network:
            prints = tuple(identity.fingerprint for identity in self.identities.values())
            trust = Trust(profile="pairwise", fingerprints=prints)
            job = replace(job, horizon=encoding, trust=trust)
        return Horizon(job.plan, encoding)

    @cached_property
    def identities(self) -> dict[str, Identity]:
        """The keys of the silos of a network."""
        return {silo: Identity.new() for silo in ("north", "south")}

    @cached_property
    def paid(self) -> float:
        """The largest norm of the change of all releases that the price covers, in integers."""
        (block,) = self.horizon.plan.blocks(0)
        return self.horizon.scale(block) / self.horizon.event.noise_multiplier

    def tables(self, period: int, arrives: bool) -> dict[str, pd.DataFrame]:
        """Return the arrivals of each silo."""
        rows = {
            silo: [
                (f"{silo}-{period}-{i}", _KINDS[(period + i) % len(_KINDS)]) for i in range(_OTHERS)
            ]
            for silo in self.horizon.plan.silos
        }
        extra = [("x", _KINDS[0])] * ((_ROWS + 1) * arrives)
        return {
            silo: pd.DataFrame(own + extra, columns=["person", "kind"])
            for silo, own in rows.items()
        }

    def play(self, arrives: Sequence[int], noise: Play) -> Integers:
        """Return the released sums of all periods, shape (periods, size)."""
        if self.network:
            return self._play_over_network(arrives, noise)
        with TemporaryDirectory() as place:
            ledger = Ledger(Path(place) / "ledger.db")
            # Twice the claim, since the price is rounded up.
            cap = Budget(2 * self.budget.epsilon, self.budget.delta)
            ledger.open_dataset("game", cap=cap, unit="person")
            account = Account(ledger, "game")
            folder = HorizonFolder.create(Path(place) / "game", self.horizon, self.schema, account)
            released: Integers = np.zeros((0, 0), np.int64)
            with ExitStack() as stack:
                stack.callback(ledger.dispose)
                for t in range(self.periods):
                    given = self.tables(t, t in arrives)

                    def read(
                        admits: Mapping[str, Admits], given: dict[str, pd.DataFrame] = given
                    ) -> Mapping[str, Records]:
                        return {
                            silo: read_source(table, self.schema, admits=admits.get(silo))
                            for silo, table in given.items()
                        }

                    released = folder.release(t + 1, read, ledger, noise=noise(t))
            return released

    def _play_over_network(self, arrives: Sequence[int], noise: Play) -> Integers:
        plan = self.horizon.plan
        with TemporaryDirectory() as place:
            states = {silo: Periods(Path(place) / f"{silo}.db", plan) for silo in plan.silos}
            clients = {}
            for silo, state in states.items():
                state.create()
                clients[silo] = Client(
                    plan,
                    silo,
                    state,
                    identity=self.identities[silo],
                    noise=noise(0),  # a silo has one source for all periods
                )
            rounds = run_rounds(Aggregator(plan, DiscreteNoise()), InProcess(handlers(clients)))
            for t in range(self.periods):
                for silo, table in self.tables(t, t in arrives).items():
                    read = partial(self._read, table)
                    states[silo].freeze(t + 1, silo, read, sent=t)
                next(rounds)
                if t == self.periods - 1:
                    list(rounds)  # to the end of the job
                for silo, client in clients.items():
                    states[silo].note([to_bytes(one.words) for one in client.sums], t + 1)
            return np.array([to_integers(one.words) for one in clients["north"].sums])

    def _read(self, table: pd.DataFrame, admits: Admits) -> Records:
        return read_source(table, self.schema, admits=admits)

    def exact(self, arrives: Sequence[int]) -> Integers:
        """Return the releases without noise."""
        key = tuple(arrives)
        if key not in self._known:
            self._known[key] = self.play(key, lambda period: _Nothing())
        return self._known[key]

    def expected(self, arrives: Sequence[int]) -> Integers:
        """Return the releases without noise, by the rules and from the rows themselves."""
        sums = np.zeros((self.periods, len(_KINDS)), np.int64)
        (block,) = self.horizon.plan.blocks(0)
        word = math.isqrt(block.l2_squared)  # a row adds one word
        for t in range(self.periods):
            counted = t in list(arrives)[: self.max_periods]
            for table in self.tables(t, False).values():
                for kind in table["kind"]:
                    sums[t, _KINDS.index(kind)] += 1
            sums[t, 0] += 2 * _ROWS * counted
        return self.horizon.encoding.matrix @ (sums * word)


def audit_horizon(
    budget: Budget, *, runs: int = 2000, make_noise: MakeNoise | None = None, **sizes: int
) -> Audit:
    """Audit a horizon of a table of counts.

    Parameters
    ----------
    budget : Budget
        The claim of all periods together.
    runs : int
        Horizons in each of two worlds.
    make_noise : function, optional
        Returns the noise source of a period; by default the product's own.
    sizes : int
        Ignored: a horizon of two silos has the columns of this module.
    """
    game, make = Game(budget), make_noise or system_noise
    event = game.horizon.event
    spent = accounting.epsilon(event, budget.delta)
    price = Finding(
        "price",
        spent > budget.epsilon * (1 + 1e-9),
        f"all periods cost epsilon {spent:.6g} of {budget.epsilon:g}",
    )
    without, worst = game.exact(()), game.exact(range(game.periods))
    added = (worst - without).ravel()
    (block,) = game.horizon.plan.blocks(0)
    scale = np.full(added.size, float(game.horizon.scale(block)))
    curve = points(event)
    ahead = Ahead(make(), runs * game.periods)
    left = np.array(
        [[game.horizon.noise(ahead) for _ in range(game.periods)] for _ in range(2 * runs)]
    ).reshape(2 * runs, -1)
    ratios = [
        np.array([log_ratio(row, added, scale, laplace=False) for row in rows])
        for rows in (left[:runs], left[runs:] + added)
    ]
    checks = tuple(compare(curve, ratios[0], ratios[1], ALPHA))
    reach = float(((added / scale) ** 2).sum()) * event.noise_multiplier**2
    return Audit(
        method="horizon",
        budget=budget,
        event=event,
        details=f"{game.periods} periods, a person in at most {game.max_periods} of them, with "
        f"{_ROWS} rows at each of two silos",
        findings=(
            price,
            sensitivity(game),
            stored(game),
            two_worlds(checks, _PERSON, reach),
            noise_of_periods(game, lambda: lambda period: make()),
        ),
        checks=checks,
        curve=drawn_curve(event, checks),
        pair=_PERSON,
        reach=reach,
        epsilon_seen=math.nan,
        false_alarm=2 * ALPHA,
        possible=attainable(partial(accounting.delta, event), checks),
    )


def sensitivity(game: Game) -> Finding:
    """Add a person in chosen periods, without noise; exact."""
    without, worst, where = game.exact(()), 0.0, ""
    every = tuple(range(game.periods))
    # Neighbouring columns of the matrix are most alike.
    patterns = [*pairwise(every), (every[0], every[-1]), every]
    for arrives in patterns:
        change = float(np.linalg.norm((game.exact(arrives) - without).astype(np.float64)))
        if change > worst:
            worst, where = change, ", ".join(str(t + 1) for t in arrives)
    return Finding(
        "sensitivity",
        worst > game.paid,
        f"the largest change of all releases by a person was {worst / game.paid:.4g} of the priced "
        f"bound, with arrivals in the periods {where}",
    )


def stored(game: Game) -> Finding:
    """Compare releases without noise with the rows that the rules admit; exact."""
    wrong = 0
    for arrives in ((), (0, 3), tuple(range(game.periods))):
        wrong += int((game.exact(arrives) != game.expected(arrives)).any(axis=1).sum())
    return Finding(
        "stored sums",
        wrong > 0,
        f"{wrong} of {3 * game.periods} releases without noise differ from the matrix times the "
        "sums of their periods",
    )


def noise_of_periods(game: Game, make: Callable[[], Play], horizons: int = _WHOLE) -> Finding:
    """Take the exact sums off the releases of whole horizons, and test what is left.

    `make` returns the noise sources of one horizon.
    """
    exact = game.exact(())
    left = np.array([game.play((), make()) - exact for _ in range(horizons)], np.float64)
    (block,) = game.horizon.plan.blocks(0)
    # Over a network each of two silos adds the whole noise, as the other one may be the observer.
    sigma = game.horizon.scale(block) * math.sqrt(1 + game.network)
    draw = public_generator("audit", "between integers", new_nonce())
    scores = (left + draw.uniform(-0.5, 0.5, left.shape)) / sigma
    found = uniform_fit(stats.norm.cdf(scores.ravel()))
    for s, t in combinations(range(game.periods), 2):
        one, other = scores[:, s].ravel(), scores[:, t].ravel()
        r = float(one @ other / math.sqrt((one @ one) * (other @ other)))
        found[f"periods {s + 1} and {t + 1}"] = correlated(r, one.size)
    name = min(found, key=found.__getitem__)
    return Finding(
        "noise",
        found[name] < ALPHA / len(found),
        f"smallest p-value {found[name]:.2g} of {len(found)}, of {name}; {horizons} horizons of "
        f"{game.periods} periods",
    )
