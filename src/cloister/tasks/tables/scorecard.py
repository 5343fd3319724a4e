"""``Scorecard``: what columns say of an event, whether they are stable, and who is selected.

One noisy sum has a table of each column with the event, of each column with periods or silos, and
of groups with decisions and the event: it is that of :class:`Tabulate`. What is read from it knows
the noise (:mod:`cloister.tasks.tables.risk`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.arrays import Floats, GridState, Results
from cloister.declared import AtLeastZero, Range, declared
from cloister.display import Bars, Between, Curve, Display, Table
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.task import FINE, PublicColumn, PublicFacts
from cloister.tasks.columns import position
from cloister.tasks.examples import BOOLEAN, CATEGORY, NUMBER, Example
from cloister.tasks.interval_tables import INTERVALS, WITH_POPULATION, between
from cloister.tasks.options import Target, made
from cloister.tasks.population import ENDS
from cloister.tasks.scores import as_results, ratio, share_sampling
from cloister.tasks.state import part_of, prefixed
from cloister.tasks.tables import risk
from cloister.tasks.tables.axes import Edges
from cloister.tasks.tables.tabulate import Tabulate

_MOST_BINS = 500
_Place = Annotated[int, Range(0)]
_WORTH = {"iv": "information value", "ks": "Kolmogorov-Smirnov", "gini": "Gini"}
_RATES = {"selection": "Selected", "opportunity": "Selected of those without the event"}
_COMPARED = {"": "", "_difference": ", less that of {}", "_ratio": ", over that of {}"}
_WOE = (
    "A weight of evidence is above 0 where a bin has a larger part of those without the event than "
    f"of those with it; an end of {risk.FARTHEST:g} is no bound."
)
_PSI = "By custom below 0.1 is stable, and above 0.25 is a shift."


@declared
class Scorecard(Tabulate):
    """Weights of evidence, separation, stability and fairness from noisy tables.

    Parameters
    ----------
    tables, labels, walls, words
        As for :class:`~cloister.tasks.tables.tabulate.Tabulate`. First are the tables of each
        characteristic by the event, which is the last cell of its column.
    moving : int
        How many tables of a characteristic by periods or silos come next; all of these are compared
        to the first.
    cut : int
        If not 0, the last table is of groups by decisions by the event, and decisions from this
        cell on are to select. All groups are compared to the first.

    Notes
    -----
    A record adds a word to one cell of each measured table. docs/proofs/scorecard.md
    """

    name: ClassVar[str] = "scorecard"
    title: ClassVar[str] = "Which columns tell who has the event?"
    usage: ClassVar[str] = "--target default --edges income=20,40 --over year"
    example: ClassVar[Example] = Example(
        (NUMBER, CATEGORY, BOOLEAN, PublicColumn("default", 0.0, 1.0, ("0", "1"))),
        {
            "target": "default",
            "characteristics": ["age", "work"],
            "edges": {"age": [30, 60]},
            "over": "work",
            "group": "smokes",
            "decision": "age",
            "cutoff": 60,
            "least_signal": 0.0,
        },
    )

    @declared
    class Options:
        target: Target
        characteristics: Annotated[
            tuple[str, ...], "columns that may tell who has the event; by default all others"
        ] = ()
        edges: Edges = field(default_factory=dict)
        over: Annotated[str | None, "column of periods or silos, compared to its first one"] = None
        group: Annotated[str | None, "column of groups of people, compared to its first one"] = None
        decision: Annotated[str | None, "column that says who is selected, by its last cell"] = None
        cutoff: Annotated[
            float | None, "edge of a decision of numbers, which selects from there"
        ] = None
        least_signal: Annotated[
            AtLeastZero, "refuse tables whose cells have fewer records than so many times the noise"
        ] = 1.0

    moving: _Place = 0
    cut: _Place = 0

    def _rules(self) -> Iterator[str]:
        """Yield a sentence for each rule that is broken."""
        yield from super()._rules()
        shapes, n = self._shapes, self._n_columns
        if n < 1:
            yield "characteristics must be at least one column, got none; name one."
        elif any(len(s) != 2 or s[1] != 2 for s in shapes[:n]):
            yield "target must have two cells, without the event and with it; join its categories."
        elif (most := max(s[0] for s in shapes[: n + self.moving])) > _MOST_BINS:
            yield f"characteristics must have at most {_MOST_BINS} cells, got {most}; join some."
        if self.cut and (len(shapes[-1]) != 3 or self.cut >= shapes[-1][1]):
            yield "cutoff must be an edge of decision, so that some are selected and others not."

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:  # type: ignore[override]  # its own
        """Find the tables and the cells of each column; refuse tables that would be noise."""
        target, over, group = options.target, options.over, options.group
        decision, cutoff = options.decision, options.cutoff
        if (group is None) != (decision is None) or (cutoff is not None and not decision):
            raise PlanError("group and decision go together, and cutoff with both; give all.")
        roles = {target, over, group, decision if cutoff is None else group}  # a score is both
        names = options.characteristics or tuple(n for n in facts.names if n not in roles)
        if target in (*names, over, group, decision) or (group and group == decision):
            raise PlanError(
                "target, group and decision must be different columns, and target none "
                "of the characteristics, nor over."
            )
        tables = [(name, target) for name in names]
        moving = [(name, over) for name in names if over not in (None, name)]
        edges, cut = dict(options.edges), 0
        groups = [(group, decision, target)] if group and decision else []
        if decision:
            column = facts.columns[position(facts.columns, decision, "decision")]
            if cutoff is not None and not column.levels:
                edges.setdefault(decision, (cutoff,))
            given = edges.get(decision, ())
            most = len(given) + (column.levels or 1)  # one more than the last cell
            cut = most - 1 if cutoff is None else (*given, cutoff).index(cutoff) + 1
            cut = most if cutoff is not None and column.levels else cut
        every = Tabulate.Options(
            tables=(*tables, *moving, *groups), edges=edges, least_signal=options.least_signal
        )
        plain = Tabulate.design(facts, every)
        return made(cls, facts, plain, moving=len(moving), cut=cut)

    @property
    def _n_columns(self) -> int:
        """Number of characteristics."""
        return len(self.tables) - self.moving - bool(self.cut)

    # What is made of it ---------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return what the tables say, with 95 % intervals of noise and of population.

        Returns
        -------
        dict
            For the i-th characteristic, from 1, under ``column_i.``: ``counts``, noisy, of shape
            (n_bins, 2), the event last, and ``noise``, their deviation, of shape (1,); of shape
            (n_bins,) ``woe``, the weight of evidence, ``rate``, the part with the event, and
            ``pool``, which bins the information value takes together; ``iv`` of shape (1,). Of
            numbers ``ks`` and ``gini`` of shape (1,), and at ``edges``, data units, ``below``, the
            parts without and with the event below, and ``gain``, the part with the event among
            the riskiest, whose part of all is ``reach``; of shape (n_bins + 1,). With `over`,
            ``psi`` of shape (n_periods - 1,). Of groups ``selection`` and ``opportunity`` of shape
            (n_groups,), and each with ``_difference`` and ``_ratio`` to the first, of shape
            (n_groups - 1,).

            What has intervals has ``_low``, ``_high``, ``_population_low``, ``_population_high``.
        """
        values, unit = (from_grid(state[k], self.frac_bits) for k in ("values", "noise"))
        noises = self._noises(float(unit[0]) * (1 << FINE))
        counts = [self._counts(i, values * (1 << FINE)) for i in range(len(self.tables))]
        n, found = self._n_columns, dict[str, Floats]()
        for i in range(n):
            answers = self._of_column(i, counts[i], noises[i], grid)
            found |= prefixed(f"column_{i + 1}.", answers)
        for i in range(n, n + self.moving):
            pairs = [counts[i][:, [0, k]] for k in range(1, counts[i].shape[1])]
            drifts = [risk.divergence(pair, noises[i])[0].named("psi") for pair in pairs]
            drift = {name: np.concatenate([one[name] for one in drifts]) for name in drifts[0]}
            found |= prefixed(f"column_{self._place(i) + 1}.", drift)
        if self.cut:
            of_good, all_cells = counts[-1][:, :, 0], counts[-1].sum(axis=2)
            for name, cells, each in (("selection", all_cells, 2), ("opportunity", of_good, 1)):
                rates = risk.compared(cells, self.cut, noises[n + self.moving] * each**0.5)
                found |= as_results({name + end: part for end, part in rates.items()})
        return found

    def _place(self, i: int) -> int:
        """Return which characteristic the i-th table is of."""
        return [table[0] for table in self.tables].index(self.tables[i][0])

    def _of_column(self, i: int, table: Floats, s: float, grid: Grid) -> dict[str, Floats]:
        """Return what the noisy table of a characteristic and the event says."""
        whole, variance = table.sum(axis=1), s**2
        noise = (variance, 2 * variance, variance)
        iv, pool = risk.divergence(table, s)
        found = {
            "woe": risk.weights_of_evidence(table, s),
            "rate": ratio(table[:, 1], whole, noise, share_sampling(whole)),
            "iv": iv,
        }
        more = {"counts": table, "noise": np.array([s]), "pool": pool.astype(np.float64)}
        j = self.tables[i][0]
        if walls := self.walls[j]:
            found |= {"ks": risk.kolmogorov(table, s), "gini": risk.gini(table, s)}
            found["below"] = risk.below(table, s)
            one = 1 << self.frac_bits
            steps = np.array([-one, *walls, one]) / one
            more["edges"] = grid.centre[j] + grid.half_range[j] * steps
            rising = bool(found["gini"].value[0] > 0)  # higher bins are the riskier ones
            found["gain"], more["reach"] = risk.gain(table, s, rising)
        return as_results(found) | more

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return tables of all numbers and a picture of each of them."""
        n = self._n_columns
        of = [
            (columns[self.tables[i][0]], self._labels(i), part_of(results, f"column_{i + 1}."))
            for i in range(n)
        ]
        target = self.tables[0][1]
        event = f"{columns[target]}={self.labels[target][1]}"
        overview = [
            (name, *(between(part, key) if key in part else "" for key in _WORTH))
            for name, _, part in of
        ]
        bins = [
            (f"{name}: {label}", between(part, "woe", k), between(part, "rate", k))
            for name, labels, part in of
            for k, label in enumerate(labels)
        ]
        headings = ("bin", "weight of evidence", f"part with {event}")
        found: list[Display] = [
            Table("Characteristics", ("", *_WORTH.values()), (*overview,), WITH_POPULATION),
            _bars("Information value", [(name, between(part, "iv")) for name, _, part in of]),
            Table("Bins", headings, (*bins,), f"{_WOE} {WITH_POPULATION}"),
        ]
        for name, labels, part in of:
            rows = [(label, between(part, "woe", k)) for k, label in enumerate(labels)]
            found.append(_bars(f"Weight of evidence of {name}", rows))
            if "edges" in part:
                found += _curves(name, event, part)
        if self.moving:
            found += self._drifts(of)
        if self.cut:
            found += self._groups(results, columns)
        return tuple(found)

    def _labels(self, i: int, side: int = 0) -> tuple[str, ...]:
        return self.labels[self.tables[i][side]]

    def _drifts(self, of: Sequence[tuple[str, tuple[str, ...], Results]]) -> Iterator[Display]:
        """Yield what has changed over periods or silos."""
        first, *others = self._labels(self._n_columns, 1)
        rows = [
            (f"{name}: {label}", between(part, "psi", k))
            for name, _, part in of
            if "psi" in part
            for k, label in enumerate(others)
        ]
        title = f"Population stability index against {first}"
        yield Table(title, ("", "index"), (*rows,), f"{_PSI} {WITH_POPULATION}")
        yield _bars("Population stability", rows)

    def _groups(self, results: Results, columns: tuple[str, ...]) -> Iterator[Display]:
        """Yield who is selected."""
        title = f"by {columns[self.tables[-1][0]]}"
        first, *others = self._labels(-1)
        for name, words in _RATES.items():
            rows = [
                (f"{label}{more.format(first)}", between(results, name + end, k))
                for end, more in _COMPARED.items()
                for k, label in enumerate(others if end else [first, *others])
            ]
            yield Table(f"{words} {title}, compared", ("", "part"), (*rows,), WITH_POPULATION)
            yield _bars(f"{words} {title}", rows[: len(others) + 1])


def _bars(title: str, rows: Sequence[tuple[str, Between]]) -> Bars:
    names, cells = zip(*rows, strict=True)
    ends = (np.array([getattr(cell, end) for cell in cells]) for end in ("value", "low", "high"))
    value, low, high = ends
    return Bars(title, names, value, note=INTERVALS, low=low, high=high)


def _curves(name: str, event: str, part: Results) -> Iterator[Curve]:
    """Yield the parts below each edge, and who is caught among the riskiest."""
    for key, title, places, axes in (
        ("below", f"Separation by {name}", part["edges"], (name, "part below")),
        ("gain", f"Gain of {name}", part["reach"], ("part of all, riskiest first", event)),
    ):
        values, low, high, *wide = (part[key + end].T for end in ("", "_low", "_high", *ENDS))
        names = (f"not {event}", event) if key == "below" else ()
        yield Curve(
            *(title, places, values, low, high),
            axes=axes,
            note=WITH_POPULATION,
            names=names,
            population=(wide[0], wide[1]),
        )
