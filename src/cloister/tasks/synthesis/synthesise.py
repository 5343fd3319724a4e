"""``Synthesise``: synthetic records, drawn from a distribution that fits noisy tables.

The first round measures a table of each column, and the second measures small tables of all pairs
with merged levels. The third measures tables of the pairs that depend on each other. The choice is
a function of released values, so it costs nothing. The maximum-entropy distribution that fits all
tables is public, and so is every record drawn from it.

References
----------
.. [MMS21] McKenna, Miklau and Sheldon, "Winning the NIST contest: a scalable and general approach
   to differentially private synthetic data", Journal of Privacy and Confidentiality 11(3), 2021:
   select, measure, fit. There the selection uses exact tables and a separate budget.
.. [MSM19] McKenna, Sheldon and Miklau, "Graphical-model based estimation and inference for
   differential privacy", ICML 2019: the fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import isqrt, pi, prod, sqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Range, Whole, declared
from cloister.core.display import Display, Heatmap, Summary, Table, around, bare
from cloister.core.errors import raise_if_any
from cloister.core.numerals import counted
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
from cloister.tasks.synthesis.attenuation import correlation_in, correlations_of
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
"""The tables that are measured."""
Part = Literal["one_way", "pairs", "tables"]
"""Tables that are measured together: of columns, of all pairs with merged levels, and chosen."""

_PARTS: tuple[Part, ...] = get_args(Part)
_SHARES: Mapping[Structure, tuple[Mapping[Part, float], ...]] = {
    "pairs": ({"one_way": 0.2}, {"pairs": 0.2}, {"tables": 0.6}),
    "target": ({"one_way": 0.2}, {"pairs": 0.2}, {"tables": 0.6}),
    "star": ({"one_way": 0.2, "tables": 0.8},),
    "independent": ({"one_way": 1.0},),
}
"""The tables that each round releases, and its share of the budget."""
_MOST_COLUMNS, _MOST_LEVELS, _MOST_WORDS = 64, 256, 1 << 17
_GROUPS = (3, 16)  # smallest and largest number of groups of a column's levels
_PER_GROUP = 8.0  # target ratio of a cell's mean records to its noise in tables of groups
_CELLS = 9  # of a pair of columns with three groups each: the smallest informative table
_LEAST = 4.0  # smallest such ratio; below it the choice of pairs would follow the noise
_FIELDS = 3  # largest number of columns of a table
_REFIT = 80  # iterations
_PICTURES = 6
_MOST_DRAWN = 50_000  # records for a picture
_CLEARLY, _NAMED = 0.03, 5  # share of dependent records that a warning needs, and pairs it names
_WEAKER = 0.15  # loss of a correlation that a warning needs
_SURE = 3.1  # deviations of noise that one of a thousand numbers exceeds


NOT_PEOPLE = (
    "These are not records of people. Only the listed marginals were measured; everything else "
    "follows from the model."
)
"""Note next to synthetic records."""


@dataclass(frozen=True)
class _Vector:
    """The released vector of a part: the cells of its tables, one table after another.

    Parameters
    ----------
    share : float
        Share of the budget.
    levels : tuple of int
        Number of cells of each column in its tables.
    known : tuple of Clique
        The tables; empty if they are chosen later.
    most : int
        Largest number of tables; a record is in one cell of each.
    size : int
        Length of the vector; elements after the last table are zero.
    """

    share: float
    levels: tuple[int, ...]
    known: tuple[Clique, ...]
    most: int
    size: int


@declared
class Synthesise(Gaussian):
    """Noisy tables for synthetic records.

    Parameters
    ----------
    labels : tuple of tuples of str
        The levels of each column.
    walls : tuple of tuples of int
        Bounds between the levels of a numeric column, grid steps; empty for categories.
    ordered : tuple of bool
        For each column, True if its levels have an order.
    about : int
        Index of the target's column; -1 without a target.
    groups : int
        Number of groups of a column's levels in the tables of all pairs.
    most_words : int
        Length of the vector of chosen tables.
    nominal_n : int
        Default number of records that are drawn.

    Notes
    -----
    A record is in one cell of each table. It adds ``one`` there in the first two rounds. In the
    third round, with q tables of at most Q, it adds ``one sqrt(Q / q)``, rounded down. So the bound
    is ``Q one**2`` for every choice. docs/proofs/synthetic.md
    """

    name: ClassVar[str] = "synthesise"
    title: ClassVar[str] = "Synthetic records"
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
            Structure | None,
            "pairs: dependent pairs; target: each of them with the target, for a classifier; star: "
            "each column with the target; independent: single columns; by default pairs, or "
            "independent if noise would exceed them",
        ] = None
        target: Annotated[str, "the column of structure target or star"] = ""
        edges: Edges = field(default_factory=dict)
        ordered: Annotated[tuple[str, ...], "columns whose categories have an order"] = ()
        most_words: Annotated[Whole, "length of the vector of chosen tables"] = 1 << 14
        public_seed: PublicSeed = 0
        least_signal: Annotated[
            AtLeastZero, "least signal of tables, in multiples of the smallest usable one"
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
        """Yield a message for each violated rule."""
        d, levels = self.n_features, self.levels
        if {len(part) for part in (self.labels, self.walls, self.ordered)} != {
            d
        } or self.about >= d:
            yield f"'labels', 'walls', 'ordered' and 'about' must be of {d} columns."
        if (self.structure in ("target", "star")) != (self.about >= 0):
            yield (
                "target must be given with structure 'target' or 'star' and only then, got "
                f"structure {self.structure!r}; name the column to predict, or omit it."
            )
        if not (2 - (self.structure == "independent")) <= d <= _MOST_COLUMNS:
            yield f"columns must be 2 to {_MOST_COLUMNS}, got {d}; name the needed ones."
        if (most := max(levels)) > _MOST_LEVELS:
            yield (
                f"a column must have at most {_MOST_LEVELS} levels, column {levels.index(most)} "
                f"has {most}; group them in the schema."
            )
        if self.rounds == 1:  # all tables are known, and none are of all pairs
            return
        if (cells := self._vectors["pairs"].size) > _MOST_WORDS:
            yield (
                f"tables of all pairs must have at most {_MOST_WORDS} cells, got {cells}; name "
                "fewer columns."
            )
        # The vector's length is fixed before the choice, so every possible choice must fit.
        if (needed := self._longest) > self.most_words:
            yield (
                f"most_words must be at least {needed}, the largest size of the chosen tables, got "
                f"{self.most_words}; raise it, or group categories in the schema."
            )

    @classmethod
    def steps_before(
        cls, columns: Sequence[PublicColumn], options: Mapping[str, Any]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the step that bins numeric columns, if some have no public edges."""
        edges = options.get("edges", {})
        cut = any(not column.levels and column.name not in edges for column in columns)
        return [("discretise", {"keep": tuple(edges)})] if cut else []

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the groups from public numbers; raise PlanError if noise would exceed tables."""
        axes = axes_of(facts.columns, facts.names, options.edges, facts.frac_bits)
        for name in (*options.ordered, *options.edges):
            position(facts.columns, name, "ordered and edges")
        task = build_task(
            cls,
            facts,
            options,
            labels=tuple(axis.labels for axis in axes),
            walls=tuple(axis.walls for axis in axes),
            structure=options.structure or "pairs",
            ordered=tuple(
                bool(axis.walls or name in options.ordered or axis.labels == BINS)
                for axis, name in zip(axes, facts.names, strict=True)
            ),
            about=position(facts.columns, options.target) if options.target else -1,
        )
        if (multiplier := noise_multiplier_for(facts)) is None:
            return task
        noise = task.word_noise(multiplier)
        if options.structure is None and any(task._lost(noise, options.least_signal)):
            task = replace(task, structure="independent")
            noise = task.word_noise(multiplier)
        raise_if_any(task._lost(noise, options.least_signal))
        if "pairs" not in noise:
            return task
        # G groups make cells of nominal_n / G^2 records on average: more groups find finer
        # dependence, but with more noise.
        groups = isqrt(int(facts.nominal_n / (_PER_GROUP * noise["pairs"])))
        return replace(task, groups=min(max(groups, _GROUPS[0]), _GROUPS[1]))

    def _lost(self, noise: Mapping[Part, float], least: float) -> Iterator[str]:
        """Yield a message for each kind of tables that noise would exceed."""
        signals: Mapping[Part, float] = {"one_way": 1.0, "pairs": _LEAST}
        for part, signal in signals.items():
            wanted = least * signal * _CELLS * noise.get(part, 0.0)
            if self.nominal_n >= wanted:
                continue
            fits = f"about {wanted:,.0f} records or a larger epsilon would fit"

            if part == "one_way":
                yield (
                    f"nominal_n must be larger for tables of {self.n_features} columns, got "
                    f"{self.nominal_n}: noise would exceed them; {fits}, or fewer columns."
                )
            yield (
                f"structure {self.structure!r} chooses pairs from tables that noise would exceed "
                f"for nominal_n={self.nominal_n}; {fits}, or use structure 'star', with the most "
                "important column as target, or 'independent'."
            )

    def describe(self) -> str:
        d, vectors = self.n_features, self._vectors
        counts = [f"the noisy number of records at each level of {counted(d, 'column')}"]
        if "pairs" in vectors:
            counts += [
                f"of all {vectors['pairs'].most} pairs of columns, in at most {self.groups} groups "
                "of levels each",
                f"of at most {vectors['tables'].most} sets of columns that depend on each other "
                f"in the earlier rounds, in {self.most_words} elements",
            ]
        elif "tables" in vectors:
            counts.append(f"of each column with column {self.about}")
        rest = "All other tables follow from the model."
        if self.structure == "independent":
            rest = "Dependence between columns is not measured, and synthetic records have none."
        return f"Tables for synthetic records: {'; '.join(counts)}. {rest}"

    # Public numbers -------------------------------------------------------------------------------

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Number of levels of each column."""
        return tuple(map(len, self.labels))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Axis of each column."""
        columns = zip(self.labels, self.walls, strict=True)
        return tuple(Axis(j, labels, walls) for j, (labels, walls) in enumerate(columns))

    @property
    def rounds(self) -> int:
        return len(_SHARES[self.structure])

    @cached_property
    def _vectors(self) -> Mapping[Part, _Vector]:
        """Released vectors, by parts."""
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
                # Tables that are chosen later: at most 3 for each column, a bound of the plan.
                found[part] = _Vector(share, levels, known, len(known) or 3 * len(columns), size)
        return found

    @property
    def _longest(self) -> int:
        """Largest number of cells of a spanning tree of pairs."""
        # A sum over edges of products of levels is largest if each joins the column with the most
        # levels; single columns are measured if no pairs depend.
        others = sorted(n for j, n in enumerate(self.levels) if j != self.about)
        tree = max(others[-1] * sum(others[:-1]), sum(others))
        return tree * (self.levels[self.about] if self.about >= 0 else 1)

    def word_noise(self, multiplier: float) -> Mapping[Part, float]:
        """Return the noise, in records, of a cell of each part, if a single table is chosen."""
        return {
            part: multiplier * sqrt((1 if part == "tables" else vector.most) / vector.share)
            for part, vector in self._vectors.items()
        }

    # The sums -------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the empty tables."""
        sizes = {part: vector.size for part, vector in self._vectors.items()}
        return {
            **{part: np.zeros(sizes.get(part, 0)) for part in _PARTS},
            "chosen": self._rows(self._vectors["tables"].known if "tables" in sizes else ()),
            "noise": np.zeros(len(_PARTS)),
            "done": np.zeros(1),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of a round, each with the length and the bound of the plan."""
        of = {part: self._vectors[part] for part in _SHARES[self.structure][t]}
        return tuple(Block.counting(part, (v.size,), v.share, v.most) for part, v in of.items())

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record's integer in a cell of each of the round's tables, part by part."""
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
        """Return the weighted numbers of records in the cells of the round's tables."""
        known, parts = self._known(state), _SHARES[self.structure][t]
        return np.concatenate([self._counts(part, known, records) for part in parts])

    def _counts(self, part: Part, known: Results, records: Records) -> Integers:
        """Return the weighted counts of the tables of a part, with the plan's length."""
        tables = self._tables(part, known)
        words = np.zeros(self._vectors[part].size, dtype=np.int64)
        views = np.split(words, np.cumsum([table.values.size for table in tables]))
        # In chunks that fit the cache, since every table passes over the levels of the records.
        for rows in in_cache(records):
            levels = [axis.cells(rows, self.frac_bits) for axis in self.axes]
            for view, table in zip(views, tables, strict=False):
                view += table.count(levels).ravel()
        words *= self._word(part, len(tables))
        return words

    def _word(self, part: Part, tables: int) -> int:
        """Return the integer that a record adds to its cell of each table."""
        # Rounded down, so that tables x word^2 stays within the bound of the plan.
        return isqrt((1 << 2 * COUNT_BITS) * self._vectors[part].most // max(tables, 1))

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy tables in records and, after those of pairs, the chosen tables."""
        known = self._known(state)
        for part in _SHARES[self.structure][t]:
            # The same word as in `_counts`: the number of tables follows from the public state.
            word = self._word(part, len(self._tables(part, known)))
            known[part] = released[part].values / word
            known["noise"][_PARTS.index(part)] = released[part].noise_std / word
        if "pairs" in released:
            known["chosen"] = self._rows(self._choice(known))
        return {**known, "done": np.array([t + 1.0])}

    def _choice(self, known: Results) -> Sequence[Clique]:
        """Return the columns of the tables to measure, from released numbers alone."""
        pairs, tables = (self._vectors[part] for part in ("pairs", "tables"))
        # The noise of a cell in the third round, if a single table were chosen.
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

    # Public state ---------------------------------------------------------------------------------

    def _known(self, state: GridState) -> dict[str, Floats]:
        """Return the state in records, as results hold it."""
        return {name: from_grid(value, self.frac_bits) for name, value in state.items()}

    def _rows(self, tables: Sequence[Clique]) -> Floats:
        """Return the columns of chosen tables, one row per possible table; -1 for none."""
        most = self._vectors["tables"].most if "tables" in self._vectors else 0
        rows = np.full((most, _FIELDS), -1.0)
        for row, table in zip(rows, tables, strict=False):
            row[: len(table)] = table
        return rows

    def _tables(self, part: Part, known: Results) -> list[NoisyTable]:
        """Return the noisy tables of a part; empty if it is not measured or not yet chosen."""
        if part not in self._vectors:
            return []
        levels, tables = self._vectors[part].levels, self._vectors[part].known
        if not tables:
            tables = tuple(filter(None, map(_columns, known["chosen"])))
        groups: list[Integers] = []
        if part == "pairs":
            # From noisy counts of the first round, so every party merges the same levels.
            counts = np.split(known["one_way"], np.cumsum(self.levels)[:-1])
            columns = zip(counts, self.ordered, strict=True)
            groups = [grouped(column, self.groups, ordered) for column, ordered in columns]
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
        """Return the noisy tables, except those of pairs with merged levels."""
        return [*self._tables("one_way", results), *self._tables("tables", results)]

    def tree(self, results: Results) -> Tree:
        """Return the junction tree of the chosen tables in the results."""
        return junction_tree(self.levels, map(_columns, results["chosen"]))

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the 95 % half-width of a number of records at a level, and in a chosen table.

        Returns
        -------
        dict
            ``level_half_width`` and ``cell_half_width``, in records, of shape (1,). The second
            assumes a spanning tree or a star.
        """
        last = self.blocks(self.rounds - 1)[0]
        noise = self.word_noise(noise_std * sqrt(last.weight / last.l2_squared))
        tables = sqrt(max(self.n_features - 1, 1))
        halves = {"level": noise["one_way"], "cell": noise.get("tables", 0.0) * tables}
        z = INTERVAL_95["gaussian"]
        return {f"{name}_half_width": np.array([z * s]) for name, s in halves.items() if s}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the noisy tables, and the distribution that fits them.

        Returns
        -------
        dict
            In records: ``one_way``, the noisy counts of all levels of all columns, and ``pairs``,
            those of the tables of all pairs with merged levels. ``chosen`` are the columns of each
            chosen table, -1 for none, and ``tables`` their noisy counts. ``noise`` of shape (3,) is
            the standard deviation in a cell of each of these.

            For the distribution: ``total``, the number of records, and ``law``, the probabilities
            in the cells of all cliques of its junction tree. ``law`` is empty before the last
            round.
        """
        results = {**self._known(state), "total": np.zeros(1), "law": np.zeros(0)}
        if results.pop("done")[0] < self.rounds:
            return results
        # Tables of all pairs improve the fit if the pair is in a clique, and the total otherwise.
        measured = [*self.measured(results), *self._tables("pairs", results)]
        total = total_of(measured)
        laws, _ = fitted(self.tree(results), measured, total)
        flat = np.concatenate([law.ravel() for law in laws])
        return {**results, "total": np.array([total]), "law": flat}

    def refits(self, results: Results, draws: int) -> Iterator[list[Floats]]:
        """Yield distributions fitted to tables of redrawn records with new noise.

        Both are drawn from the plan's public seed and protect nothing: they are a function of the
        release.
        """
        tree, rows = self.tree(results), round(results["total"][0])
        rng = public_generator("synthesise", "refits", self.public_seed)
        measured = [*self.measured(results), *self._tables("pairs", results)]
        for _ in range(draws):
            again = resampled(tree, tree.split(results["law"]), measured, rows, rng)
            yield fitted(tree, again, total_of(again), _REFIT)[0]

    def draw(self, results: Results, rows: int | None = None, seed: int | None = None) -> Integers:
        """Draw records from the released distribution, as levels of columns.

        Parameters
        ----------
        results : mapping
            Results of the last round.
        rows : int, optional
            Number of records; `nominal_n` if not given.
        seed : int, optional
            Public seed; the plan's if not given.

        Returns
        -------
        ndarray of shape (rows, n_features), int64
        """
        tree = self.tree(results)
        rng = public_generator("synthesise", self.public_seed if seed is None else seed)
        return drawn(tree, tree.split(results["law"]), rows or self.nominal_n, rng)

    # Displays -------------------------------------------------------------------------------------

    def tables_of(self, plan: Plan, results: Results, schema: Schema) -> dict[str, pd.DataFrame]:
        """Return synthetic records that are drawn locally from a release; none are sent."""
        from cloister.tasks.synthesis.lookalike import records_of

        return {"synthetic": records_of(plan, results, schema)}

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the law from which records are drawn."""
        measured = len(self.measured(results))
        if not len(results["law"]):
            return Summary(result="No records can be drawn: the noise hides the tables.")
        return Summary(
            result=f"A law of {counted(self.n_features, 'column')}, from which any number of "
            f"look-alike {units} can be drawn. It follows {counted(measured, 'measured table')}.",
            reliability="Shares of measured tables have intervals; a mean of numbers inside bins "
            "has none, and dependence between columns that share no measured table is not in the "
            "law.",
        )

    def doubts(self, results: Results, columns: tuple[str, ...]) -> Iterator[str]:
        """Yield warnings of pairs that depend on each other less in synthetic records."""
        if not len(results["law"]):
            return
        if self.structure == "independent" and self.n_features > 1:
            yield (
                "columns of synthetic records are independent, as tables of pairs were not "
                "measured; ask for structure 'star' or 'pairs', with more records or a larger "
                "epsilon if noise exceeds the tables."
            )
        # The release alone: records of the silos are not compared with synthetic ones.
        synthetic = self.draw(results, min(self.nominal_n, _MOST_DRAWN)).T
        lost = {
            table.columns: f"{columns[table.columns[0]]} × {columns[table.columns[1]]}"
            for table in self._tables("pairs", results)
            for released, kept in [_dependent_shares(table, synthetic)]
            if released > max(_CLEARLY, _above_noise(table)) and kept < released / 2
        }
        if lost:
            yield (
                "synthetic records keep less than half of a dependence that the release shows: "
                f"{_first(lost.values())}; raise epsilon, leave out columns, or give edges with "
                "fewer bins."
            )
        weaker = [
            f"{columns[i]} × {columns[j]} {kept:.2f} in place of about {released:.2f}"
            for (i, j), released, kept in self._weaker(results, synthetic)
            if (i, j) not in lost
        ]
        if weaker:
            yield (
                "correlations are weaker in synthetic records than the release shows: "
                f"{_first(weaker)}; noise, and values that are uniform inside a bin, weaken them: "
                "raise epsilon, or give narrower bounds or more edges."
            )

    def _weaker(
        self, results: Results, synthetic: Integers
    ) -> Iterator[tuple[Clique, float, float]]:
        """Yield pairs of numbers with a clearly weaker correlation, as released and as drawn."""
        edges = self._edges(results)
        kept = correlations_of(synthetic, edges) if len(edges) > 1 else {}
        measured = [*self.measured(results), *self._tables("pairs", results)]
        for pair, alike in kept.items():
            found = [
                correlation_in(table.values, table.noise)
                for one in measured
                if set(pair) <= set(one.columns)
                for table in [one if one.columns == pair else one.over(pair)]
            ]
            if not found:
                continue
            released, noise = min(found, key=lambda one: one[1])
            loss = (released - alike) * (1 if released > 0 else -1)
            if loss > max(_WEAKER, _SURE * noise):
                yield pair, released, alike

    def _edges(self, results: Results) -> dict[int, Floats]:
        """Return the edges of the bins of each column of numbers, up to its unit."""
        one = 1 << self.frac_bits
        edges = {j: np.array([-one, *w, one]) / one for j, w in enumerate(self.walls) if w}
        # Private edges are in the results of an earlier step.
        binned = (j for j, labels in enumerate(self.labels) if labels == BINS)
        return edges | dict(zip(binned, results.get("discretise.edges", ()), strict=False))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the measured tables, the dependence of pairs, and columns of synthetic records."""
        tables, pairs = self.measured(results), self._tables("pairs", results)
        rows = [
            (" × ".join(columns[j] for j in table.columns), float(table.values.size), table.noise)
            for table in tables
        ]
        if pairs:
            cells = float(len(results["pairs"]))
            rows.append((f"all {len(pairs)} pairs, merged levels", cells, pairs[0].noise))
        displays: list[Display] = [
            Table("Measured", ("table", "cells", "noise of a cell"), tuple(rows), NOT_PEOPLE)
        ]
        if not len(results["law"]):
            return tuple(displays)
        synthetic, total = self.draw(results, min(self.nominal_n, _MOST_DRAWN)).T, results["total"]
        if pairs:
            displays.append(_dependence(pairs, synthetic, columns))
        for table in tables[: min(self.n_features, _PICTURES)]:
            (j,) = table.columns
            both = np.stack([table.values / total, table.count(synthetic) / synthetic.shape[1]])
            half_width = INTERVAL_95["gaussian"] * table.noise / total
            # Synthetic counts are a function of the release, so their margin is 0.
            margin = np.stack([np.full(len(self.labels[j]), half_width), 0 * both[1]])
            displays.append(
                Heatmap(
                    f"{columns[j]}: released and synthetic",
                    around(both, margin, labels=(("released", "synthetic"), self.labels[j])),
                    "Shares of the records; ± is the 95 % half-width of the privacy noise.",
                )
            )
        return tuple(displays)


def _dependence(
    pairs: Sequence[NoisyTable], synthetic: Integers, columns: tuple[str, ...]
) -> Heatmap:
    """Return a heat map of the share of records that the margins of each pair do not explain."""
    shares = np.zeros((len(columns), len(columns)))
    for table in pairs:
        a, b = table.columns
        shares[a, b], shares[b, a] = _dependent_shares(table, synthetic)
    return Heatmap(
        "Dependence of pairs",
        bare(shares, labels=(columns, columns)),
        "The share of the records that would have to move for two columns to be independent: "
        "above the diagonal as released, less the mean of noise; below it in synthetic records.",
    )


def _dependent_shares(table: NoisyTable, synthetic: Integers) -> tuple[float, float]:
    """Return the share of records that margins do not explain: released, and synthetic."""
    found = []
    for values, s in (
        (table.values, table.noise),
        (table.count(synthetic).astype(np.float64), 0.0),
    ):
        # Half: a moved record changes two cells.
        share = excess(values, s) / (2 * max(float(values.sum()), 1.0))
        found.append(min(max(share, 0.0), 1.0))
    return found[0], found[1]


def _above_noise(table: NoisyTable) -> float:
    """Return the share that noise alone exceeds in one of a thousand tables."""
    # The absolute value of a normal variable has the variance 1 - 2 / pi.
    deviation = table.noise * sqrt((1 - 2 / pi) * table.values.size)
    return _SURE * deviation / (2 * max(float(table.values.sum()), 1.0))


def _first(named: Iterable[str]) -> str:
    """Return the first pairs of a warning, and the number of the others."""
    names = [*named]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _columns(row: Sequence[float]) -> Clique:
    return tuple(int(j) for j in row if j >= 0)
