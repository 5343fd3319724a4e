"""``Scorecard``: predictive strength and stability of columns, and fairness of a selection.

One noisy sum, that of :class:`Tabulate`, holds a table of each column by the event, and of each
column by periods or silos. It also holds a table of groups by decisions by the event. All measures
account for the noise (:mod:`cloister.tasks.tables.risk`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Results
from cloister.core.declared import AtLeastZero, Range, declared
from cloister.core.display import Cell, Curve, Display, Estimate, Summary, Table
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    CONTRAST,
    INTERVAL_95,
    POSITIVE,
    SHARE,
    PublicFacts,
    Ranges,
)
from cloister.tasks.columns import position
from cloister.tasks.examples import BOOLEAN, CATEGORY, NUMBER, Example
from cloister.tasks.interval_tables import (
    WITH_POPULATION,
    bars_of,
    cells_of,
    curve_of,
    listing,
    number_of,
    precision,
)
from cloister.tasks.options import Target, build_task
from cloister.tasks.scores import as_results, share_of
from cloister.tasks.state import part_of, prefixed
from cloister.tasks.tables import risk
from cloister.tasks.tables.axes import Edges
from cloister.tasks.tables.tabulate import Tabulate

_MOST_BINS = 500  # of a column; divergences take second derivatives of all pairs of cells
_Place = Annotated[int, Range(0)]
_MEASURES = {"iv": "information value", "ks": "Kolmogorov-Smirnov", "gini": "Gini"}
_ORDERED = ("gini", "ks")  # measures of ordered cells
_RATES = {"selection": "Selected", "opportunity": "Selected of those without the event"}
_COMPARED = {"": "", "_difference": ", less that of {}", "_ratio": ", over that of {}"}
_WOE = (
    "A weight of evidence is above 0 if a bin has a larger share of records without the event than "
    "of records with it."
)
_PSI = "By convention, an index below 0.1 is stable, and one above 0.25 is a shift."


@declared
class Scorecard(Tabulate):
    """Weights of evidence, separation, stability and fairness from noisy tables.

    Parameters
    ----------
    tables, labels, words
        As for :class:`~cloister.tasks.tables.tabulate.Tabulate`, with its other parameters. The
        first tables have each characteristic by the event, which is the last cell of its column.
    moving : int
        Number of tables of a characteristic by periods or silos, which come next. All periods are
        compared to the first.
    cut : int
        If not 0, the last table has groups by decisions by the event, and decisions from this cell
        on select. All groups are compared to the first.

    Notes
    -----
    A record adds one element to one cell of each measured table. docs/proofs/scorecard.md
    """

    name: ClassVar[str] = "scorecard"
    title: ClassVar[str] = "Which columns predict the event?"
    ranges: ClassVar[Ranges] = {
        **dict.fromkeys(("rate", "below", "gain", "ks", "selection", "opportunity"), SHARE),
        **dict.fromkeys(("gini", "*_difference"), CONTRAST),
        **dict.fromkeys(("counts", "iv", "psi"), POSITIVE),
    }
    usage: ClassVar[str] = "--target default --edges income=20,40 --over year"
    example: ClassVar[Example] = Example(
        (NUMBER, CATEGORY, BOOLEAN, replace(BOOLEAN, name="default")),
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
            tuple[str, ...], "columns that may predict the event; by default all others"
        ] = ()
        edges: Edges = field(default_factory=dict)
        over: Annotated[str | None, "column of periods or silos, compared to its first one"] = None
        group: Annotated[str | None, "column of groups of people, compared to its first one"] = None
        decision: Annotated[str | None, "column whose last cell selects a record"] = None
        cutoff: Annotated[float | None, "edge from which a numeric decision selects a record"] = (
            None
        )
        least_signal: Annotated[
            AtLeastZero, "least number of records per cell of a table, in multiples of its noise"
        ] = 1.0

    moving: _Place = 0
    cut: _Place = 0

    def _rules(self) -> Iterator[str]:
        """Yield a message for each violated rule."""
        yield from super()._rules()
        shapes, n = self._shapes, self._n_columns
        if n < 1:
            yield "characteristics must be at least one column, got 0; name one."
        elif any(len(s) != 2 or s[1] != 2 for s in shapes[:n]):
            # Measures compare records without and with the event, one column of a table each.
            yield "target must have two cells, without the event and with it; join its categories."
        elif (most := max(s[0] for s in shapes[: n + self.moving])) > _MOST_BINS:
            yield f"characteristics must have at most {_MOST_BINS} cells, got {most}; join some."
        if self.cut and (len(shapes[-1]) != 3 or self.cut >= shapes[-1][1]):
            yield "cutoff must be an edge of decision, so that it selects some records, not all."

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:  # type: ignore[override]  # its own
        """Design the tables and their cells; raise PlanError if noise would exceed them."""
        target, over, group = options.target, options.over, options.group
        decision, cutoff = options.decision, options.cutoff
        if (group is None) != (decision is None) or (cutoff is not None and not decision):
            raise PlanError("group and decision go together, and cutoff with both; give all.")
        # A score with a cutoff is a decision and a characteristic.
        roles = {target, over, group, decision if cutoff is None else group}
        names = options.characteristics or tuple(n for n in facts.names if n not in roles)
        if target in (*names, over, group, decision) or (group and group == decision):
            raise PlanError(
                "target, group and decision must be different columns, and target must not be in "
                "characteristics or over."
            )
        tables = [(name, target) for name in names]
        moving = [(name, over) for name in names if over not in (None, name)]
        edges, cut = dict(options.edges), 0
        groups = [(group, decision, target)] if group and decision else []
        if decision:
            levels = facts.columns[position(facts.columns, decision, "decision")].levels
            if cutoff is not None and not levels:
                edges.setdefault(decision, (cutoff,))
            decision_edges = edges.get(decision, ())
            # The last cell selects. A cutoff that is not an edge keeps an invalid number, so that
            # `_rules` refuses it.
            cut = (levels or len(decision_edges) + 1) - (cutoff is None)
            cut = decision_edges.index(cutoff) + 1 if cutoff in decision_edges else cut
        every = Tabulate.Options(
            tables=(*tables, *moving, *groups), edges=edges, least_signal=options.least_signal
        )
        tabulate = Tabulate.design(facts, every)
        return build_task(cls, facts, tabulate, moving=len(moving), cut=cut)

    @property
    def _n_columns(self) -> int:
        """Number of characteristics."""
        return len(self.tables) - self.moving - bool(self.cut)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return margins of error for each characteristic, by the numbers that drive them.

        A bin is assumed to have a tenth of the records, or 100 of them with the event and many
        more without it. Gini and Kolmogorov-Smirnov assume that a tenth of all have the event.
        """
        n, tenth = self._n_columns, nominal_n / 10
        noise = INTERVAL_95["gaussian"] * np.array(self._noises(noise_std)[:n])
        bins = np.array([shape[0] for shape in self._shapes[:n]])
        found = {
            "count": noise,
            "event_rate_of_a_bin_with_10%_of_the_records": noise / tenth,
            "weight_of_evidence_of_a_bin_with_100_events": noise / 100,
            **{f"{of}_if_10%_have_the_event": noise * np.sqrt(bins / 3) / tenth for of in _ORDERED},
        }
        return {f"{name}_half_width": values for name, values in found.items()}

    # Estimates ------------------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the measures of the tables, with 95 % intervals of noise and of population.

        Returns
        -------
        dict
            The i-th characteristic, from 1, has the prefix ``column_i.``. It has noisy ``counts``
            of shape (n_bins, 2), the event last, and ``noise``, their deviation, of shape (1,).
            Of shape (n_bins,) are ``woe``, the weight of evidence, and ``rate``, the share with the
            event. ``clear`` of the same shape is 1 if both counts of a bin are above 2.5 deviations
            of their noise, else 0. The information value ``iv`` of shape (1,) is known if all are.

            Numeric characteristics also have ``ks`` and ``gini`` of shape (1,). At ``edges``, in
            data units, ``below`` are the shares without and with the event below. ``gain`` is the
            share of events among the riskiest records, and ``reach`` their share of all records.
            These have n_bins + 1 entries.

            With `over`, ``psi`` has shape (n_periods - 1,), and its ``psi_clear`` has shape
            (n_periods - 1, n_bins). For groups, ``selection`` and ``opportunity`` have shape
            (n_groups,). Their ``_difference`` and ``_ratio`` to the first group have shape
            (n_groups - 1,).

            Intervals are ``_low``, ``_high``, ``_population_low``, ``_population_high``.
        """
        counts, _, noises = self._noisy(state)
        n, found = self._n_columns, dict[str, Floats]()
        place = {table[0]: i + 1 for i, table in enumerate(self.tables[:n])}
        for i, (table, cells, s) in enumerate(zip(self.tables, counts, noises, strict=False)):
            prefix = f"column_{place.get(table[0])}."
            if i < n:
                found |= prefixed(prefix, self._of_column(table[0], cells, s, grid))
            elif i < n + self.moving:
                pairs = [cells[:, [0, k]] for k in range(1, cells.shape[1])]
                drifts = [
                    {**risk.divergence(pair, s).named("psi"), "psi_clear": _clear(pair, s)[None]}
                    for pair in pairs
                ]
                drift = {name: np.concatenate([one[name] for one in drifts]) for name in drifts[0]}
                found |= prefixed(prefix, drift)
            else:
                # Equal opportunity [HPS16] in `risk`: selection among records without the event.
                # A sum of 2 cells has twice the variance.
                of_good, of_all = cells[:, :, 0], cells.sum(axis=2)
                for name, part, each in (("selection", of_all, 2), ("opportunity", of_good, 1)):
                    rates = risk.compared(part, self.cut, s * each**0.5)
                    found |= as_results({name + end: rate for end, rate in rates.items()})
        return found

    def _of_column(self, j: int, table: Floats, s: float, grid: Grid) -> dict[str, Floats]:
        """Return the measures of a noisy table of a characteristic by the event."""
        found = {
            "woe": risk.weights_of_evidence(table, s),
            "rate": share_of(table[:, 1], table.sum(axis=1), s**2, 2 * s**2),
            "iv": risk.divergence(table, s),
        }
        more = {"counts": table, "noise": np.array([s]), "clear": _clear(table, s)}
        if walls := self.walls[j]:  # separation needs ordered cells
            found |= {"ks": risk.kolmogorov(table, s), "gini": risk.gini(table, s)}
            found["below"] = risk.below(table, s)
            one = 1 << self.frac_bits
            steps = np.array([-one, *walls, one]) / one
            more["edges"] = grid.centre[j] + grid.half_range[j] * steps
            # From noisy numbers alone: the order of risk must not be read from the records.
            rising = bool(found["gini"].values[0] > 0)
            found["gain"], more["reach"] = risk.gain(table, s, rising)
        return as_results(found) | more

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise how well the first characteristic separates the event."""
        parts: list[tuple[Cell, ...]] = []
        for i, table in enumerate(self.tables[: self._n_columns]):
            part = part_of(results, f"column_{i + 1}.")
            found = [(text, number_of(part, key)) for key, text in _MEASURES.items() if key in part]
            parts.append(
                (f"{columns[table[0]]}: ", *listing((f"{text} ", cell) for text, cell in found))
            )
        worth = Estimate.of(results, "column_1.iv")
        return Summary(result=(*parts[0], "."), reliability=precision([worth]))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return tables and pictures of all estimates."""
        labels = [[self.labels[j] for j in table] for table in self.tables]
        names = [columns[table[0]] for table in self.tables[: self._n_columns]]
        of = {name: part_of(results, f"column_{i + 1}.") for i, name in enumerate(names)}
        event = f"{columns[self.tables[0][1]]}={labels[0][1][1]}"
        worth = [[number_of(p, key) if key in p else "" for key in _MEASURES] for p in of.values()]
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
            moved, unclear = dict[str, Estimate](), dict[str, list[str]]()
            for (name, part), (cells, _) in zip(of.items(), labels, strict=False):
                if "psi" in part:
                    places = [f"{name}: {later}" for later in others]
                    moved |= zip(places, cells_of(part, "psi"), strict=True)
                    lost = (_unclear(cells, row) for row in part["psi_clear"])
                    unclear |= zip(places, lost, strict=True)
            title = f"Population stability index against {first}"
            note = f"{_PSI} {_reason('index', unclear)}{WITH_POPULATION}"
            pictures.append(Table(title, ("", "index"), (*moved.items(),), note))
            pictures.append(bars_of("Population stability", moved, [*moved.values()]))
        if self.cut:
            pictures += self._groups(results, columns)
        headings = ("bin", "weight of evidence", f"share with {event}")
        hidden = {
            name: _unclear(cells, part["clear"])
            for (name, part), (cells, _) in zip(of.items(), labels, strict=False)
        }
        note = f"{_reason('information value', hidden)}{WITH_POPULATION}"
        return (
            Table("Characteristics", ("", *_MEASURES.values()), (*overview,), note),
            bars_of("Information value", names, [cells[0] for cells in worth]),
            Table("Bins", headings, (*bins,), f"{_WOE} {WITH_POPULATION}"),
            *pictures,
        )

    def _groups(self, results: Results, columns: tuple[str, ...]) -> Iterator[Display]:
        """Yield tables and bars of the selected shares of groups."""
        title, names = f"by {columns[self.tables[-1][0]]}", self.labels[self.tables[-1][0]]
        for name, heading in _RATES.items():
            rows = [
                (f"{label}{more.format(names[0])}", cell)
                for end, more in _COMPARED.items()
                for label, cell in zip(
                    names[bool(end) :], cells_of(results, name + end), strict=True
                )
            ]
            yield Table(f"{heading} {title}, compared", ("", "share"), (*rows,), WITH_POPULATION)
            yield bars_of(f"{heading} {title}", names, cells_of(results, name))


def _clear(table: Floats, s: float) -> Floats:
    """Return 1 for each bin with both counts well above their noise, else 0."""
    return np.asarray(risk.clear(table, s).all(axis=1), dtype=np.float64)


def _unclear(cells: Sequence[str], clear: Floats) -> list[str]:
    """Return the names of bins with a count that is not well above its noise."""
    return [cell for cell, known in zip(cells, clear, strict=True) if not known]


def _reason(number: str, unclear: Mapping[str, Sequence[str]]) -> str:
    """Return a sentence with the bins for which a number is not known, or an empty text."""
    lost = "; ".join(f"{name} ({', '.join(bins)})" for name, bins in unclear.items() if bins)
    return f"The {number} is not known if a bin is not well above its noise: {lost}. " * bool(lost)


def _curves(name: str, event: str, part: Results) -> Iterator[Curve]:
    """Yield curves of the shares below each edge, and of events among the riskiest records."""
    cut, caught = (name, "share below"), ("share of all, riskiest first", event)
    title, names = f"Separation by {name}", (f"not {event}", event)
    note = WITH_POPULATION
    yield curve_of(title, part["edges"], part, "below", axes=cut, note=note, names=names)
    yield curve_of(f"Gain of {name}", part["reach"], part, "gain", axes=caught, note=note)
