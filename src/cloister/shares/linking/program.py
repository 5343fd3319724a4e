"""The program "linked": owners' tables are joined on shares, and only noisy answers are opened.

Both servers join the tables and shrink the joined rows to a noisy number, the released size. All
analyses run on these rows. Each has a part of one budget, which every owner's ledger is charged.
Neighbours: all rows of one key at all owners are added or removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from cloister.core.declared import Length, Positive, Probability, Rule, Share, Whole, declared
from cloister.core.display import Estimate
from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words, to_integers
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gdp_part
from cloister.privacy.events import ComposedEvent, Event
from cloister.protocol.task import INTERVAL_95
from cloister.shares.linking.analyses import Analysis, Correlation, Linear, Means, Table
from cloister.shares.linking.columns import PRINTABLE, Side
from cloister.shares.linking.descents import Descent, KMeans, Logistic
from cloister.shares.linking.found import Found
from cloister.shares.linking.keys import Part
from cloister.shares.linking.merge import How, everybody, inner
from cloister.shares.linking.rows import Prepared, prepare
from cloister.shares.linking.shrink import most_dummies, shrink
from cloister.shares.linking.view import Frame, View
from cloister.shares.mpc.dealer import MOST_WORDS
from cloister.shares.mpc.material import Shape, Sharing
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.program import Opening, Program
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.session import table_of

SIZE = "size"


@declared
class Linked(Program):
    """Noisy answers about persons of several owners; nobody learns who is in more than one table.

    The dealer together with either server sees every row. All follow the protocol, but for uploads:
    the guarantee of other persons holds for any table that an owner uploads.
    """

    name: ClassVar[str] = "linked"
    sharing: ClassVar[Sharing] = Sharing.XOR
    has_secret: ClassVar[bool] = True
    opening: ClassVar[Opening] = "private"

    key: Annotated[str, Length(1, 64), PRINTABLE, "name of the key, which policies allow"]
    parts: Annotated[tuple[Mapping[str, Any], ...], Length(1, 8), "rule and width of each part"]
    sides: Annotated[
        Mapping[str, Any],
        Rule("two or three tables", lambda sides: 2 <= len(sides) <= 3),
        PRINTABLE,
        "rows, key and columns of each table",
    ]
    analyses: Annotated[tuple[Mapping[str, Any], ...], "kind, columns and weight of each"] = ()
    how: How = "inner"
    epsilon: Positive
    delta: Probability = 1e-6
    keys_per_person: Annotated[Whole, "the most keys of one person"]
    least_matches: Annotated[Whole, "a smaller released size withholds all other answers"] = 50
    size_weight: Annotated[Share, "part of the budget for the size"] = 0.05

    def __post_init__(self) -> None:
        if self.how != "inner" and len(self.tables()) > 2:
            raise PlanError(f"how = {self.how!r} must be of two tables; join three by 'inner'.")
        for owner, side in self.frame.sides.items():
            if len(side.key) != len(self.key_parts):
                raise PlanError(
                    f"table {owner!r} must have {len(self.key_parts)} key columns, as the key "
                    f"{self.key!r} has parts, got {len(side.key)}."
                )
        # All that could stop a run is refused now, before a ledger is charged.
        self.results()
        self.event()
        self._require_room()

    def _require_room(self) -> None:
        """Raise PlanError if joined rows do not fit a message of the dealer, or a descent."""
        width = sum(words - 1 for _, words in self.tables().values())
        # The largest message of a join is that of a shuffle.
        if self.most_slots * (2 + 3 * (width + 1)) > MOST_WORDS:
            raise PlanError("tables must be smaller: their joined rows do not fit one message.")
        for one, budget in self.funded.values():
            if one.item(self.frame) * self._most_kept > MOST_WORDS:
                raise PlanError(
                    f"{one.title} must have fewer levels, columns or clusters: with "
                    f"{self._most_kept} joined rows it does not fit one message."
                )
            if isinstance(one, Descent):
                for rows in (self.least_matches, self.most_slots):
                    one.program(self.frame, budget, rows, self._nominal(rows))

    @cached_property
    def frame(self) -> Frame:
        """The public facts of joined rows."""
        sides = {name: Side.of(side) for name, side in self.sides.items()}
        return Frame(sides, self.how, self.keys_per_person)

    @cached_property
    def key_parts(self) -> tuple[Part, ...]:
        """The rules of the key."""
        return tuple(Part(**table_of(Part, "a part of the key", part)) for part in self.parts)

    @cached_property
    def funded(self) -> Mapping[str, tuple[Analysis, Budget]]:
        """Each analysis with its part of the budget, by the name of its result."""
        analyses = [analysis_of(one) for one in self.analyses]
        given = [one.weight for one in analyses]
        rest = 1 - self.size_weight - sum(weight or 0.0 for weight in given)
        # Up to rounding of decimal weights.
        if rest < -1e-9 or (None in given and rest <= 1e-9):
            raise PlanError("weights of the size and of all analyses must add up to at most 1.")
        equal = rest / max(1, given.count(None))
        return {
            f"{i}": (one, gdp_part(self._budget, equal if weight is None else weight))
            for i, (one, weight) in enumerate(zip(analyses, given, strict=True), start=1)
        }

    @property
    def _budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)

    @cached_property
    def size_noise(self) -> NoiseOnShares:
        """The noise of each server on the number of kept rows; a step is one person."""
        budget = gdp_part(self._budget, self.size_weight)
        return NoiseOnShares(budget.epsilon, budget.delta, 1, 1, self.keys_per_person)

    @property
    def most_slots(self) -> int:
        """Largest number of rows after the join, dummies of both servers included."""
        return sum(rows for rows, _ in self.tables().values()) + self._most_dummies

    @property
    def _most_kept(self) -> int:
        """Largest number of rows after shrinking, dummies of both servers included."""
        rows = [rows for rows, _ in self.tables().values()]
        most = {"inner": min(rows), "left": rows[0]}.get(self.how, sum(rows))
        return most + self._most_dummies

    @property
    def _most_dummies(self) -> int:
        return 2 * most_dummies(self.size_noise.sigma)

    def _nominal(self, size: int) -> int:
        """Return the public number of persons by which a descent divides."""
        return min(max(size, self.least_matches), self.most_slots)

    def event(self) -> Event:
        """Return the charge of the whole run: one server's noise in every opening."""
        return ComposedEvent(
            (self.size_noise.event(), *(noise.event() for _, noise in self.noises()))
        )

    def noises(self) -> list[tuple[Analysis, NoiseOnShares]]:
        """Return each analysis with the noise of a server in each of its openings."""
        return [(one, one.noise(self.frame, budget)) for one, budget in self.funded.values()]

    def tables(self) -> Mapping[str, Shape]:
        """Return the shape of each upload: tags, then words of packed bits."""
        return {name: side.shape for name, side in self.frame.sides.items()}

    def prepare(self, table: str, source: Any, schema: Any = None) -> Prepared:
        """Return an owner's rows, ready but for their tags; see :func:`.rows.prepare`."""
        side = self.frame.sides[table]
        used = frozenset(name for one, _ in self.funded.values() for name in one.names())
        return prepare(side, self.key_parts, source, schema, self.keys_per_person, used)

    def results(self) -> Mapping[str, Shape]:
        """Return the shapes of the size and of the words of each analysis."""
        shapes = {name: one.shape(self.frame) for name, (one, _) in self.funded.items()}
        return {SIZE: (1,), **shapes}

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Join and analyse (semi-honest; the dealer with either server sees all)."""
        names = tuple(self.frame.sides)
        ordered = [tables[name] for name in names]
        joined = (
            inner(server, ordered, names)
            if self.how == "inner"
            else everybody(server, ordered, names, self.how)
        )
        joined, size = shrink(server, joined, self.size_noise.sigma)
        # The size is public to both servers; server 0 alone has it in its share.
        results = {SIZE: np.array([size * (server.index == 0)], np.int64).view(np.uint64)}
        view = View(server, self.frame, joined)
        for name, (one, budget) in self.funded.items():
            results[name] = one.run(view, budget, self._nominal(size))
        return results

    def values(self, result: str, words: Words) -> Words:
        """Return opened words unchanged; :meth:`found` gives their meaning."""
        return words

    def found(self, results: Mapping[str, Words]) -> Found:
        """Return estimates from opened words; post-processing, without the records.

        Answers are withheld if the released size is below `least_matches`.
        """
        size = float(to_integers(results[SIZE])[0])
        margin = INTERVAL_95["gaussian"] * self.size_noise.released_sigma
        ends = np.maximum([size - margin, size + margin], 0.0)
        estimate = Estimate(np.array(size), *ends)
        # From the released size, so that withholding is post-processing.
        if size < self.least_matches:
            return Found(estimate, (), withheld=bool(self.funded))
        answers = (
            one.answer(results[name], self.frame, budget)
            for name, (one, budget) in self.funded.items()
        )
        return Found(estimate, tuple(answers))


ANALYSES: Mapping[str, type[Analysis]] = {
    one.kind: one for one in (Table, Means, Linear, Correlation, Logistic, KMeans)
}


def analysis_of(given: Mapping[str, Any]) -> Analysis:
    """Return an analysis from JSON-able options with its `kind`."""
    options = dict(given)
    kind = options.pop("kind", None)
    if kind not in ANALYSES:
        raise PlanError(f"kind of an analysis must be one of {', '.join(ANALYSES)}, got {kind!r}.")
    if "clusters" in options:  # of session files that parties hold already
        options["n_clusters"] = options.pop("clusters")
    return ANALYSES[kind](**table_of(ANALYSES[kind], f"analysis {kind!r}", options))
