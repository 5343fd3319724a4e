"""``Synthesise``: records that look alike, drawn from a law that fits noisy tables.

First a table of each column, then small tables of all pairs with levels merged, then tables of the
pairs that these show to belong together. What is measured next follows from what was released, so
that choosing costs nothing. The law of maximum entropy that fits all of it is public, and so is
every record drawn from it.

References
----------
.. [MMS21] McKenna, Miklau and Sheldon, "Winning the NIST contest: a scalable and general approach
   to differentially private synthetic data", Journal of Privacy and Confidentiality 11(3), 2021:
   select, measure, fit. There the selection looks at exact tables, under a budget of its own.
.. [MSM19] McKenna, Sheldon and Miklau, "Graphical-model based estimation and inference for
   differential privacy", ICML 2019: the fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import isqrt, prod, sqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Range, Whole, declared
from cloister.core.display import Display, Heatmap, Table
from cloister.core.errors import raise_if_any
from cloister.core.estimate import around, bare
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import in_cache, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import PublicSeed, build_task, noise_multiplier_for
from cloister.tasks.preparation.discretise import BINS
from cloister.tasks.synthesis.choice import chosen_tables, excess, grouped
from cloister.tasks.synthesis.junction import (
    Clique,
    NoisyTable,
    Tree,
    drawn,
    fitted,
    junction_tree,
    resampled,
    total_of,
)
from cloister.tasks.tables.axes import Axis, Edges, axes_of

if TYPE_CHECKING:
    import pandas as pd

    from cloister.data.schema import Schema
    from cloister.protocol.plan import Plan

Structure = Literal["pairs", "target", "star", "independent"]
"""Which tables are measured."""
Part = Literal["one_way", "pairs", "tables"]
"""What is measured together: columns, all pairs with levels merged, and tables of a choice."""

_PARTS: tuple[Part, ...] = get_args(Part)
_SHARES: Mapping[Structure, tuple[Mapping[Part, float], ...]] = {
    "pairs": ({"one_way": 0.2}, {"pairs": 0.2}, {"tables": 0.6}),
    "target": ({"one_way": 0.2}, {"pairs": 0.2}, {"tables": 0.6}),
    "star": ({"one_way": 0.2, "tables": 0.8},),
    "independent": ({"one_way": 1.0},),
}
"""What each round releases, and its share of the budget."""
_MOST_COLUMNS, _MOST_LEVELS, _MOST_WORDS = 64, 256, 1 << 17
_GROUPS = (3, 16)
_PER_GROUP = 8.0  # records of a cell over its noise, on average, that coarse tables aim at
_CELLS = 9  # of a pair of columns with three groups: the least that can be looked at
_LEAST = 4.0  # records of such a cell over its noise, on average, below which nothing is chosen
_FIELDS = 3  # columns of a table, at most
_REFIT = 80  # iterations
_PICTURES = 6
_MOST_DRAWN = 50_000  # records, for a picture


NOT_PEOPLE = (
    "These are not records of people. Only the marginals listed were measured; anything else "
    "follows from the model."
)
"""What stands beside look-alike records."""


@dataclass(frozen=True)
class _Vector:
    """What a part releases: tables, one after another.

    Parameters
    ----------
    share : float
        Of the budget.
    levels : tuple of int
        Cells of each column in its tables.
    known : tuple of Clique
        The tables, unless they are chosen later.
    most : int
        Number of tables, in each of which a record is once.
    size : int
        Number of words; what the tables do not fill is zero.
    """

    share: float
    levels: tuple[int, ...]
    known: tuple[Clique, ...]
    most: int
    size: int


@declared
class Synthesise(Gaussian):
    """The tables that records are drawn from.

    Parameters
    ----------
    labels : tuple of tuples of str
        The levels of each column.
    walls : tuple of tuples of int
        Between the levels of a column of numbers, grid steps; none for one of categories.
    ordered : tuple of bool
        Of each column, whether its levels have an order.
    about : int
        The target's column; -1 without one.
    groups : int
        Into which a column's levels are merged in the tables of all pairs.
    most_words : int
        Length of the vector of chosen tables.
    nominal_n : int
        How many records are drawn unless somebody asks for more.

    Notes
    -----
    A record is in one cell of each table. It adds ``one`` there in the first two rounds, and in the
    third, of q tables where Q were planned for, ``one sqrt(Q / q)``, rounded down: the bound is
    ``Q one**2`` whatever is chosen. docs/proofs/synthetic.md
    """

    name: ClassVar[str] = "synthesise"
    title: ClassVar[str] = "Records to look at"
    usage: ClassVar[str] = "--structure pairs"
    example: ClassVar[Example] = Example(
        MIXED,
        {
            "edges": {"age": (40.0, 65.0), "weight": (60.0, 80.0)},
            "most_words": 256,
            "least_signal": 0.0,
        },
    )

    @declared
    class Options:
        structure: Annotated[
            Structure,
            "pairs: those that belong together; target: each of them with the target, for a "
            "classifier; star: each column with the target; independent: single columns",
        ] = "pairs"
        target: Annotated[str, "the column of structure target or star"] = ""
        edges: Edges = field(default_factory=dict)
        ordered: Annotated[tuple[str, ...], "columns whose categories have an order"] = ()
        most_words: Annotated[Whole, "length of the vector of chosen tables"] = 1 << 14
        public_seed: PublicSeed = 0
        least_signal: Annotated[
            AtLeastZero, "refuse tables whose cells are less than so many times what can be used"
        ] = 1.0

    n_features: Whole
    labels: tuple[tuple[str, ...], ...]
    walls: tuple[tuple[int, ...], ...]
    ordered: tuple[bool, ...]
    structure: Structure
    about: Annotated[int, Range(-1)] = -1
    groups: Annotated[int, Range(1, _MOST_LEVELS)] = 8
    most_words: Whole = 1 << 14
    nominal_n: Whole = 1000
    public_seed: int = 0
    frac_bits: int = 16

    def __post_init__(self) -> None:
        raise_if_any(self._rules())

    def _rules(self) -> Iterator[str]:
        """Yield a sentence for each rule that is broken."""
        d, levels = self.n_features, self.levels
        if {len(part) for part in (self.labels, self.walls, self.ordered)} != {
            d
        } or self.about >= d:
            yield f"labels, walls, ordered and about must be of {d} columns."
        if (self.structure in ("target", "star")) != (self.about >= 0):
            yield (
                "target goes with structure 'target' or 'star' and only with them, got structure "
                f"{self.structure!r}; name the column that a classifier will predict, or leave it "
                "out."
            )
        if not (2 - (self.structure == "independent")) <= d <= _MOST_COLUMNS:
            yield f"columns must be 2 to {_MOST_COLUMNS}, got {d}; name those that are needed."
        if (most := max(levels)) > _MOST_LEVELS:
            yield (
                f"a column must have at most {_MOST_LEVELS} levels, column {levels.index(most)} "
                f"has {most}; group them in the schema."
            )
        if self.rounds == 1:
            return
        if (cells := self._vectors["pairs"].size) > _MOST_WORDS:
            yield (
                f"tables of all pairs must have at most {_MOST_WORDS} cells, got {cells}; name "
                "fewer columns."
            )
        if (needed := self._longest) > self.most_words:
            yield (
                f"most_words must be at least {needed}, which the tables of these columns may "
                f"have, got {self.most_words}; raise it, or group categories in the schema."
            )

    @classmethod
    def steps_before(
        cls, columns: Sequence[PublicColumn], options: Mapping[str, Any]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the step that cuts columns of numbers into bins, if some have no public edges."""
        edges = options.get("edges", {})
        cut = any(not column.levels and column.name not in edges for column in columns)
        return [("discretise", {"keep": tuple(edges)})] if cut else []

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the groups from public numbers, and refuse tables that would be noise."""
        axes = axes_of(facts.columns, facts.names, options.edges, facts.frac_bits)
        for name in (*options.ordered, *options.edges):
            position(facts.columns, name, "ordered and edges")
        task = build_task(
            cls,
            facts,
            options,
            labels=tuple(axis.labels for axis in axes),
            walls=tuple(axis.walls for axis in axes),
            ordered=tuple(
                bool(axis.walls or name in options.ordered or axis.labels == BINS)
                for axis, name in zip(axes, facts.names, strict=True)
            ),
            about=position(facts.columns, options.target) if options.target else -1,
        )
        if (multiplier := noise_multiplier_for(facts)) is None:
            return task
        noise = task.word_noise(multiplier)
        raise_if_any(task._lost(noise, options.least_signal))
        if "pairs" not in noise:
            return task
        groups = isqrt(int(facts.nominal_n / (_PER_GROUP * noise["pairs"])))
        return replace(task, groups=min(max(groups, _GROUPS[0]), _GROUPS[1]))

    def _lost(self, noise: Mapping[Part, float], least: float) -> Iterator[str]:
        """Yield a sentence for tables that would be noise."""
        signals: Mapping[Part, float] = {"one_way": 1.0, "pairs": _LEAST}
        for part, signal in signals.items():
            wanted = least * signal * _CELLS * noise.get(part, 0.0)
            if self.nominal_n >= wanted:
                continue
            fits = f"about {wanted:,.0f} records or a larger epsilon would fit"
            if part == "one_way":
                yield (
                    f"nominal_n must be larger for tables of {self.n_features} columns, got "
                    f"{self.nominal_n}: they would be noise; {fits}, or fewer columns."
                )
            yield (
                f"structure {self.structure!r} must find pairs in tables that would be noise for "
                f"nominal_n={self.nominal_n}; {fits}, or take structure 'star', with the column "
                "that matters as target, or 'independent'."
            )

    def describe(self) -> str:
        d, vectors = self.n_features, self._vectors
        said = [f"the noisy number of records at each level of {d} columns"]
        if "pairs" in vectors:
            said += [
                f"of all {vectors['pairs'].most} pairs of columns, in at most {self.groups} groups "
                "of levels each",
                f"of at most {vectors['tables'].most} sets of columns that the rounds before show "
                f"to belong together, in {self.most_words} words",
            ]
        elif "tables" in vectors:
            said.append(f"of each column with column {self.about}")
        return (
            f"Tables for look-alike records: {'; '.join(said)}. All other tables follow from the "
            "model."
        )

    # Public numbers -------------------------------------------------------------------------------

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Number of levels of each column."""
        return tuple(map(len, self.labels))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """What each column is cut into."""
        sides = zip(self.labels, self.walls, strict=True)
        return tuple(Axis(j, labels, walls) for j, (labels, walls) in enumerate(sides))

    @property
    def rounds(self) -> int:
        return len(_SHARES[self.structure])

    @cached_property
    def _vectors(self) -> Mapping[Part, _Vector]:
        """What is released, by parts."""
        columns, star = range(self.n_features), self.structure == "star"
        spokes = (tuple(sorted((j, self.about))) for j in columns if star and j != self.about)
        of: Mapping[Part, tuple[tuple[int, ...], tuple[Clique, ...]]] = {
            "one_way": (self.levels, tuple((j,) for j in columns)),
            "pairs": (
                tuple(min(n, self.groups) for n in self.levels),
                tuple(combinations(columns, 2)),
            ),
            "tables": (self.levels, tuple(spokes)),
        }
        found = {}
        for shares in _SHARES[self.structure]:
            for part, share in shares.items():
                levels, known = of[part]
                size = sum(prod(levels[j] for j in table) for table in known) or self.most_words
                found[part] = _Vector(share, levels, known, len(known) or 3 * len(columns), size)
        return found

    @property
    def _longest(self) -> int:
        """Words that the longest spanning tree of the plan's levels may need."""
        others = sorted(n for j, n in enumerate(self.levels) if j != self.about)
        tree = max(others[-1] * sum(others[:-1]), sum(others))
        return tree * (self.levels[self.about] if self.about >= 0 else 1)

    def word_noise(self, multiplier: float) -> Mapping[Part, float]:
        """Return the noise, in records, of a cell of each part; of one chosen table alone."""
        return {
            part: multiplier * sqrt((1 if part == "tables" else vector.most) / vector.share)
            for part, vector in self._vectors.items()
        }

    # The sums -------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return empty tables."""
        sizes = {part: vector.size for part, vector in self._vectors.items()}
        return {
            **{part: np.zeros(sizes.get(part, 0)) for part in _PARTS},
            "chosen": self._rows(self._vectors["tables"].known if "tables" in sizes else ()),
            "noise": np.zeros(len(_PARTS)),
            "done": np.zeros(1),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the parts of a round, each at the length and the bound of the plan."""
        of = {part: self._vectors[part] for part in _SHARES[self.structure][t]}
        return tuple(Block.counting(part, (v.size,), v.share, v.most) for part, v in of.items())

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return a word in a cell of each of the round's tables, part by part."""
        known = self._known(state)
        levels = [axis.cells(records, self.frac_bits) for axis in self.axes]
        found = []
        for part in _SHARES[self.structure][t]:
            tables, start, at = self._tables(part, known), 0, []
            for table in tables:
                at.append(start + table.cells(levels))
                start += table.values.size
            word = self._word(part, len(tables))
            nothing = [np.zeros(len(records), dtype=np.int64)]
            found.append(Rows.at(at or nothing, [word] * len(at) or [0]))
        return tuple(found)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the numbers of records in the cells of the round's tables."""
        known, parts = self._known(state), _SHARES[self.structure][t]
        return np.concatenate([self._counts(part, known, records) for part in parts])

    def _counts(self, part: Part, known: Results, records: Records) -> Integers:
        """Return what records add to the tables of a part, at the plan's length."""
        tables = self._tables(part, known)
        words = np.zeros(self._vectors[part].size, dtype=np.int64)
        views = np.split(words, np.cumsum([table.values.size for table in tables]))
        for rows in in_cache(records):
            levels = [axis.cells(rows, self.frac_bits) for axis in self.axes]
            for view, table in zip(views, tables, strict=False):
                view += table.count(levels).ravel()
        words *= self._word(part, len(tables))
        return words

    def _word(self, part: Part, tables: int) -> int:
        """Return what a record adds to its cell of each of so many tables."""
        return isqrt((1 << 2 * COUNT_BITS) * self._vectors[part].most // max(tables, 1))

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the tables in records, and after those of pairs, which ones come next."""
        known = self._known(state)
        for part in _SHARES[self.structure][t]:
            word = self._word(part, len(self._tables(part, known)))
            known[part] = released[part].values / word
            known["noise"][_PARTS.index(part)] = released[part].noise_std / word
        if "pairs" in released:
            known["chosen"] = self._rows(self._choice(known))
        return {**known, "done": np.array([t + 1.0])}

    def _choice(self, known: Results) -> Sequence[Clique]:
        """Return the columns of the tables to measure, from released numbers alone."""
        pairs, tables = (self._vectors[part] for part in ("pairs", "tables"))
        # A word's noise there would be this, were one table chosen and measured by the budget.
        unit = known["noise"][1] * sqrt(pairs.share / tables.share / pairs.most)
        return chosen_tables(
            {
                table.columns: excess(table.values, table.noise)
                for table in self._tables("pairs", known)
            },
            self.levels,
            unit,
            target=None if self.about < 0 else self.about,
            most_tables=tables.most,
            most_words=self.most_words,
        )

    # What is known --------------------------------------------------------------------------------

    def _known(self, state: GridState) -> dict[str, Floats]:
        """Return the state in records; results have the same."""
        return {name: from_grid(value, self.frac_bits) for name, value in state.items()}

    def _rows(self, tables: Sequence[Clique]) -> Floats:
        """Return the columns of chosen tables, in as many rows as there may be; -1 for none."""
        most = self._vectors["tables"].most if "tables" in self._vectors else 0
        rows = np.full((most, _FIELDS), -1.0)
        for row, table in zip(rows, tables, strict=False):
            row[: len(table)] = table
        return rows

    def _tables(self, part: Part, known: Results) -> list[NoisyTable]:
        """Return the tables of a part, as far as they are known; none if it is not measured."""
        if part not in self._vectors:
            return []
        levels, tables = self._vectors[part].levels, self._vectors[part].known
        if not tables:
            tables = tuple(filter(None, map(_columns, known["chosen"])))
        groups: list[Integers] = []
        if part == "pairs":
            counts = np.split(known["one_way"], np.cumsum(self.levels)[:-1])
            columns = zip(counts, self.ordered, strict=True)
            groups = [grouped(own, self.groups, ordered) for own, ordered in columns]
        shapes = [tuple(levels[j] for j in table) for table in tables]
        flat = np.split(known[part], np.cumsum([prod(shape) for shape in shapes]))
        noise = float(known["noise"][_PARTS.index(part)])
        return [
            NoisyTable(
                table, values.reshape(shape), noise, tuple(groups[j] for j in table if groups)
            )
            for table, shape, values in zip(tables, shapes, flat, strict=False)
        ]

    def measured(self, results: Results) -> list[NoisyTable]:
        """Return the noisy tables, but those of pairs with levels merged."""
        return [*self._tables("one_way", results), *self._tables("tables", results)]

    def tree(self, results: Results) -> Tree:
        """Return the junction tree whose tables are in the results, one after another."""
        return junction_tree(self.levels, map(_columns, results["chosen"]))

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the 95 % half-width of a number of records at a level, and in a chosen table.

        Returns
        -------
        dict
            ``level_half_width`` and ``cell_half_width``, in records, of shape (1,). The second is
            of a spanning tree, or of a star.
        """
        last = self.blocks(self.rounds - 1)[0]
        noise = self.word_noise(noise_std * sqrt(last.weight / last.l2_squared))
        tables = sqrt(max(self.n_features - 1, 1))
        halves = {"level": noise["one_way"], "cell": noise.get("tables", 0.0) * tables}
        z = INTERVAL_95["gaussian"]
        return {f"{name}_half_width": np.array([z * s]) for name, s in halves.items() if s}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the noisy tables, and the law that fits them.

        Returns
        -------
        dict
            ``one_way``, the noisy numbers of records at all levels of all columns; ``pairs``,
            those in the tables of all pairs with levels merged into groups; ``chosen``, the columns
            of each chosen table, -1 for none, and ``tables``, their cells; ``noise`` of shape
            (3,), its standard deviation in a cell of each of these; all in records. Of the law:
            ``total``, the number of records, and ``law``, the probabilities in the cells of all
            cliques of its junction tree; empty before the last round.
        """
        found = {**self._known(state), "total": np.zeros(1), "law": np.zeros(0)}
        if found.pop("done")[0] < self.rounds:
            return found
        measured = [*self.measured(found), *self._tables("pairs", found)]
        total = total_of(measured)
        laws, _ = fitted(self.tree(found), measured, total)
        flat = np.concatenate([law.ravel() for law in laws])
        return {**found, "total": np.array([total]), "law": flat}

    def refits(self, results: Results, draws: int) -> Iterator[list[Floats]]:
        """Yield laws fitted to what other records of the law, and other noise, could have given.

        The plan's seed makes both: noise that protects nobody, as all of it is a function of what
        was released.
        """
        tree, rows = self.tree(results), round(results["total"][0])
        rng = public_generator("synthesise", "refits", self.public_seed)
        measured = [*self.measured(results), *self._tables("pairs", results)]
        for _ in range(draws):
            again = resampled(tree, tree.split(results["law"]), measured, rows, rng)
            yield fitted(tree, again, total_of(again), _REFIT)[0]

    def draw(self, results: Results, rows: int | None = None, seed: int | None = None) -> Integers:
        """Return records drawn from the law, as the level of each column.

        Parameters
        ----------
        results : mapping
            Of the last round.
        rows : int, optional
            `nominal_n` if not given.
        seed : int, optional
            Public; the plan's if not given.

        Returns
        -------
        ndarray of shape (rows, n_features), int64
        """
        tree = self.tree(results)
        rng = public_generator("synthesise", self.public_seed if seed is None else seed)
        return drawn(tree, tree.split(results["law"]), rows or self.nominal_n, rng)

    # What is shown --------------------------------------------------------------------------------

    def tables_of(self, plan: Plan, results: Results, schema: Schema) -> dict[str, pd.DataFrame]:
        """Return records that are drawn here from a release; no party sends any."""
        from cloister.tasks.synthesis.lookalike import records_of

        return {"synthetic": records_of(plan, results, schema)}

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return what was measured, how pairs belong together, and columns of the records."""
        tables, pairs = self.measured(results), self._tables("pairs", results)
        rows = [
            (" × ".join(columns[j] for j in table.columns), float(table.values.size), table.noise)
            for table in tables
        ]
        if pairs:
            cells = float(len(results["pairs"]))
            rows.append((f"all {len(pairs)} pairs, levels merged", cells, pairs[0].noise))
        shown: list[Display] = [
            Table("Measured", ("table", "cells", "noise of a cell"), tuple(rows), NOT_PEOPLE)
        ]
        if not len(results["law"]):
            return tuple(shown)
        alike, whole = self.draw(results, min(self.nominal_n, _MOST_DRAWN)).T, results["total"]
        if pairs:
            shown.append(_dependence(pairs, alike, columns))
        for table in tables[: min(self.n_features, _PICTURES)]:
            (j,) = table.columns
            both = np.stack([table.values / whole, table.count(alike) / alike.shape[1]])
            half = INTERVAL_95["gaussian"] * table.noise / whole
            margin = np.stack([np.full(len(self.labels[j]), half), 0 * both[1]])
            shown.append(
                Heatmap(
                    f"{columns[j]}: released and look-alike",
                    around(both, margin, labels=(("released", "look-alike"), self.labels[j])),
                    "Parts of the records; ± is 95 % of the privacy noise.",
                )
            )
        return tuple(shown)


def _dependence(pairs: Sequence[NoisyTable], alike: Integers, columns: tuple[str, ...]) -> Heatmap:
    """Return which part of the records the margins of a pair do not explain, released and drawn."""
    parts = np.zeros((len(columns), len(columns)))
    for table in pairs:
        a, b = table.columns
        for place, values, s in (
            ((a, b), table.values, table.noise),
            ((b, a), table.count(alike).astype(np.float64), 0.0),
        ):
            parts[place] = np.clip(excess(values, s) / (2 * max(values.sum(), 1.0)), 0.0, 1.0)
    return Heatmap(
        "Dependence of pairs",
        bare(parts, labels=(columns, columns)),
        "The part of the records that would have to move for two columns to be independent: "
        "above the diagonal as released, less what noise makes; below it among look-alike records.",
    )


def _columns(row: Sequence[float]) -> Clique:
    return tuple(int(j) for j in row if j >= 0)
