"""``Scorecard``: what columns say of an event, whether they are stable, and who is selected.

One noisy sum has a table of each column with the event, of each column with periods or silos, and
of groups with decisions and the event: it is that of :class:`Tabulate`. What is read from it knows
the noise (:mod:`cloister.tasks.tables.risk`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Results
from cloister.core.declared import AtLeastZero, Range, declared
from cloister.core.display import Curve, Display, Table
from cloister.core.errors import PlanError
from cloister.core.estimate import Estimate
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import PublicColumn, PublicFacts
from cloister.tasks.columns import position
from cloister.tasks.examples import BOOLEAN, CATEGORY, NUMBER, Example
from cloister.tasks.interval_tables import WITH_POPULATION, bars_of, cells_of, curve_of, number_of
from cloister.tasks.options import Target, build_task
from cloister.tasks.scores import as_results, share_of
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
            levels = facts.columns[position(facts.columns, decision, "decision")].levels
            if cutoff is not None and not levels:
                edges.setdefault(decision, (cutoff,))
            walls = edges.get(decision, ())
            cut = (levels or len(walls) + 1) - (cutoff is None)  # with a cutoff no cell, until ...
            cut = walls.index(cutoff) + 1 if cutoff in walls else cut
        every = Tabulate.Options(
            tables=(*tables, *moving, *groups), edges=edges, least_signal=options.least_signal
        )
        plain = Tabulate.design(facts, every)
        return build_task(cls, facts, plain, moving=len(moving), cut=cut)

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
            ``psi`` of shape (n_periods - 1,) and ``psi_pool``, its pools, of shape
            (n_periods - 1, n_bins). Of groups ``selection`` and ``opportunity`` of shape
            (n_groups,), and each with ``_difference`` and ``_ratio`` to the first, of shape
            (n_groups - 1,).

            What has intervals has ``_low``, ``_high``, ``_population_low``, ``_population_high``.
        """
        counts, _, noises = self._noisy(state)
        n, found = self._n_columns, dict[str, Floats]()
        place = {table[0]: i + 1 for i, table in enumerate(self.tables[:n])}
        for i, (table, cells, s) in enumerate(zip(self.tables, counts, noises, strict=False)):
            prefix = f"column_{place.get(table[0])}."
            if i < n:
                found |= prefixed(prefix, self._of_column(table[0], cells, s, grid))
            elif i < n + self.moving:
                pairs = (cells[:, [0, k]] for k in range(1, cells.shape[1]))
                drifts = [
                    {**drift.named("psi"), "psi_pool": pool[None].astype(np.float64)}
                    for drift, pool in (risk.divergence(pair, s) for pair in pairs)
                ]
                drift = {name: np.concatenate([one[name] for one in drifts]) for name in drifts[0]}
                found |= prefixed(prefix, drift)
            else:
                of_good, of_all = cells[:, :, 0], cells.sum(axis=2)
                for name, part, each in (("selection", of_all, 2), ("opportunity", of_good, 1)):
                    rates = risk.compared(part, self.cut, s * each**0.5)
                    found |= as_results({name + end: rate for end, rate in rates.items()})
        return found

    def _of_column(self, j: int, table: Floats, s: float, grid: Grid) -> dict[str, Floats]:
        """Return what the noisy table of a characteristic and the event says."""
        iv, pool = risk.divergence(table, s)
        found = {
            "woe": risk.weights_of_evidence(table, s),
            "rate": share_of(table[:, 1], table.sum(axis=1), s**2, 2 * s**2),
            "iv": iv,
        }
        more = {"counts": table, "noise": np.array([s]), "pool": pool.astype(np.float64)}
        if walls := self.walls[j]:
            found |= {"ks": risk.kolmogorov(table, s), "gini": risk.gini(table, s)}
            found["below"] = risk.below(table, s)
            one = 1 << self.frac_bits
            steps = np.array([-one, *walls, one]) / one
            more["edges"] = grid.centre[j] + grid.half_range[j] * steps
            rising = bool(found["gini"].values[0] > 0)  # higher bins are the riskier ones
            found["gain"], more["reach"] = risk.gain(table, s, rising)
        return as_results(found) | more

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return tables of all numbers and a picture of each of them."""
        labels = [[self.labels[j] for j in table] for table in self.tables]
        names = [columns[table[0]] for table in self.tables[: self._n_columns]]
        of = {name: part_of(results, f"column_{i + 1}.") for i, name in enumerate(names)}
        event = f"{columns[self.tables[0][1]]}={labels[0][1][1]}"
        worth = [[number_of(p, key) if key in p else "" for key in _WORTH] for p in of.values()]
        overview = [(name, *cells) for name, cells in zip(names, worth, strict=True)]
        bins: list[tuple[str | Estimate, ...]] = []
        pictures: list[Display] = []
        for (name, part), (cells, _) in zip(of.items(), labels, strict=False):
            woe, rate = cells_of(part, "woe"), cells_of(part, "rate")
            bins += zip((f"{name}: {cell}" for cell in cells), woe, rate, strict=True)
            pictures.append(bars_of(f"Weight of evidence of {name}", cells, woe))
            pictures += _curves(name, event, part) if "edges" in part else ()
        if self.moving:
            first, *others = labels[len(names)][1]
            moved = {
                f"{name}: {later}": cell
                for name, part in of.items()
                if "psi" in part
                for later, cell in zip(others, cells_of(part, "psi"), strict=True)
            }
            title, note = f"Population stability index against {first}", f"{_PSI} {WITH_POPULATION}"
            pictures.append(Table(title, ("", "index"), (*moved.items(),), note))
            pictures.append(bars_of("Population stability", moved, [*moved.values()]))
        if self.cut:
            pictures += self._groups(results, columns)
        headings = ("bin", "weight of evidence", f"part with {event}")
        return (
            Table("Characteristics", ("", *_WORTH.values()), (*overview,), WITH_POPULATION),
            bars_of("Information value", names, [cells[0] for cells in worth]),
            Table("Bins", headings, (*bins,), f"{_WOE} {WITH_POPULATION}"),
            *pictures,
        )

    def _groups(self, results: Results, columns: tuple[str, ...]) -> Iterator[Display]:
        """Yield who is selected."""
        title, names = f"by {columns[self.tables[-1][0]]}", self.labels[self.tables[-1][0]]
        for name, words in _RATES.items():
            rows = [
                (f"{label}{more.format(names[0])}", cell)
                for end, more in _COMPARED.items()
                for label, cell in zip(
                    names[bool(end) :], cells_of(results, name + end), strict=True
                )
            ]
            yield Table(f"{words} {title}, compared", ("", "part"), (*rows,), WITH_POPULATION)
            yield bars_of(f"{words} {title}", names, cells_of(results, name))


def _curves(name: str, event: str, part: Results) -> Iterator[Curve]:
    """Yield the parts below each edge, and who is caught among the riskiest."""
    cut, caught = (name, "part below"), ("part of all, riskiest first", event)
    title, names = f"Separation by {name}", (f"not {event}", event)
    note = WITH_POPULATION
    yield curve_of(title, part["edges"], part, "below", axes=cut, note=note, names=names)
    yield curve_of(f"Gain of {name}", part["reach"], part, "gain", axes=caught, note=note)
