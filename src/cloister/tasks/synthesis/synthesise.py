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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import isqrt, prod, sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from cloister.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.declared import AtLeastZero, Range, Whole, declared
from cloister.display import Display, Heatmap, Table
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.randomness import public_generator
from cloister.task import FINE, INTERVAL_95, Block, Gaussian, PublicColumn, PublicFacts, Released
from cloister.tasks.columns import in_cache, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import PublicSeed, made, noise_of
from cloister.tasks.preparation.discretise import BINS
from cloister.tasks.state import read, written
from cloister.tasks.synthesis.choice import chosen_tables, excess, grouped
from cloister.tasks.synthesis.junction import (
    Clique,
    Measured,
    Tree,
    drawn,
    fitted,
    junction_tree,
    total_of,
)
from cloister.tasks.tables.axes import Axis, Edges, axes_of

Structure = Literal["pairs", "target", "star", "independent"]
"""Which tables are measured."""
Part = Literal["one_way", "pairs", "chosen"]

_PARTS: Mapping[Structure, tuple[tuple[tuple[Part, float], ...], ...]] = {
    "pairs": ((("one_way", 0.2),), (("pairs", 0.2),), (("chosen", 0.6),)),
    "target": ((("one_way", 0.2),), (("pairs", 0.2),), (("chosen", 0.6),)),
    "star": ((("one_way", 0.2), ("chosen", 0.8)),),
    "independent": ((("one_way", 1.0),),),
}
"""What each round releases, and its part of the budget."""
_ORDER: tuple[Part, ...] = ("one_way", "pairs", "chosen")
_MOST_COLUMNS, _MOST_LEVELS, _MOST_WORDS = 64, 256, 1 << 17
_GROUPS = (3, 16)
_PER_GROUP = 8.0  # records of a cell over its noise, on average, that coarse tables aim at
_CELLS = 9  # of a pair of columns with three groups: the least that can be looked at
_LEAST = 4.0  # records of such a cell over its noise, on average, below which nothing is chosen
_FIELDS = 3  # columns of a table, at most
_PICTURES = 6
_MOST_DRAWN = 50_000  # records, for a picture


NOT_PEOPLE = (
    "These are not records of people. Only the marginals listed were measured; anything else "
    "follows from the model."
)
"""What stands beside look-alike records."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The public state, in records; a table that is not chosen has -1 for its columns."""

    one_way: Floats
    pairs: Floats
    chosen: Integers  # (most tables, 3)
    tables: Floats  # of the chosen ones, one after another
    noise: Floats  # (3,), of a word of one_way, pairs and tables
    done: int = 0


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
        d = self.n_features
        parts = (self.labels, self.walls, self.ordered)
        if any(len(part) != d for part in parts) or self.about >= d:
            raise PlanError(f"labels, walls, ordered and about must be of {d} columns.")
        if (self.structure in ("target", "star")) != (self.about >= 0):
            raise PlanError(
                "target goes with structure 'target' or 'star' and only with them, got structure "
                f"{self.structure!r}; name the column that a classifier will predict, or leave it "
                "out."
            )
        if not (2 - (self.structure == "independent")) <= d <= _MOST_COLUMNS:
            raise PlanError(
                f"columns must be 2 to {_MOST_COLUMNS}, got {d}; name those that are needed."
            )
        most = max(range(d), key=self.levels.__getitem__)
        if self.levels[most] > _MOST_LEVELS:
            raise PlanError(
                f"a column must have at most {_MOST_LEVELS} levels, column {most} has "
                f"{self.levels[most]}; group them in the schema."
            )
        if self._sizes["pairs"] > _MOST_WORDS:
            raise PlanError(
                f"tables of all pairs must have at most {_MOST_WORDS} cells, got "
                f"{self._sizes['pairs']}; name fewer columns."
            )
        if (needed := self._longest) > self._sizes["chosen"]:
            raise PlanError(
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
        names = facts.names
        axes = axes_of(facts.columns, names, options.edges, facts.frac_bits)
        for name in (*options.ordered, *options.edges):
            position(facts.columns, name, "ordered and edges")
        about = position(facts.columns, options.target) if options.target else -1
        task = made(
            cls,
            facts,
            options,
            labels=tuple(axis.labels for axis in axes),
            walls=tuple(axis.walls for axis in axes),
            ordered=tuple(
                bool(axis.walls or name in options.ordered or axis.labels == BINS)
                for axis, name in zip(axes, names, strict=True)
            ),
            about=about,
        )
        if (multiplier := noise_of(facts)) is None:
            return task
        noise, n = task.word_noise(multiplier), facts.nominal_n
        task._check_signal("one_way", n / _CELLS / noise["one_way"], options.least_signal)
        if "pairs" not in noise:
            return task
        signal = n / _CELLS / noise["pairs"] / _LEAST
        task._check_signal("pairs", signal, options.least_signal)
        groups = isqrt(int(n / (_PER_GROUP * noise["pairs"])))
        return replace(task, groups=min(max(groups, _GROUPS[0]), _GROUPS[1]))

    def _check_signal(self, part: Part, signal: float, least: float) -> None:
        if signal >= least:
            return
        fits = f"about {self.nominal_n * least / max(signal, 1e-9):,.0f} records or a larger "
        fits += "epsilon would fit"
        if part == "one_way":
            raise PlanError(
                f"nominal_n must be larger for tables of {self.n_features} columns, got "
                f"{self.nominal_n}: they would be noise; {fits}, or fewer columns."
            )
        raise PlanError(
            f"structure {self.structure!r} must find pairs in tables that would be noise for "
            f"nominal_n={self.nominal_n}; {fits}, or take structure 'star', with the column that "
            "matters as target, or 'independent'."
        )

    def describe(self) -> str:
        d = self.n_features
        said = {
            "one_way": f"the noisy number of records at each level of {d} columns",
            "pairs": f"of all {len(self._pairs)} pairs of columns, in at most {self.groups} groups "
            "of levels each",
            "chosen": f"of each column with column {self.about}",
        }
        if self.structure != "star":
            said["chosen"] = (
                f"of at most {self._most_tables} sets of columns that the rounds before show to "
                f"belong together, in {self.most_words} words"
            )
        parts = "; ".join(said[part] for stage in self._stages for part, _ in stage)
        return f"Tables for look-alike records: {parts}. All other tables follow from the model."

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
    def _stages(self) -> tuple[tuple[tuple[Part, float], ...], ...]:
        return _PARTS[self.structure]

    @property
    def rounds(self) -> int:
        return len(self._stages)

    @cached_property
    def _pairs(self) -> tuple[Clique, ...]:
        return tuple(combinations(range(self.n_features), 2)) if self.rounds > 1 else ()

    @cached_property
    def _spokes(self) -> tuple[Clique, ...]:
        """The tables of a star, known beforehand."""
        others = (j for j in range(self.n_features) if j != self.about)
        star = self.structure == "star"
        return tuple(tuple(sorted((j, self.about))) for j in others) if star else ()

    @property
    def _most_tables(self) -> int:
        return len(self._spokes) or 3 * self.n_features

    @cached_property
    def _longest(self) -> int:
        """Words that the longest spanning tree of the plan's levels may need."""
        if self.rounds == 1:
            return self._sizes["chosen"]
        others = sorted(n for j, n in enumerate(self.levels) if j != self.about)
        tree = max(others[-1] * sum(others[:-1]), sum(others))
        return tree * (self.levels[self.about] if self.about >= 0 else 1)

    @cached_property
    def _sizes(self) -> Mapping[Part, int]:
        coarse = [min(n, self.groups) for n in self.levels]
        spokes = sum(self.levels[a] * self.levels[b] for a, b in self._spokes)
        return {
            "one_way": sum(self.levels),
            "pairs": sum(coarse[a] * coarse[b] for a, b in self._pairs),
            "chosen": self.most_words if self.rounds > 1 else spokes,
        }

    @cached_property
    def _touched(self) -> Mapping[Part, int]:
        """Cells of each part that one record is in, at most."""
        return {
            "one_way": self.n_features,
            "pairs": len(self._pairs),
            "chosen": self._most_tables,
        }

    def word_noise(self, multiplier: float) -> Mapping[Part, float]:
        """Return the noise, in records, of a cell of each part; of one chosen table alone."""
        touched = {**self._touched, "chosen": 1}
        return {
            part: multiplier * sqrt(touched[part] / share)
            for stage in self._stages
            for part, share in stage
        }

    # The sums -------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return empty tables."""
        chosen = np.full((self._most_tables, _FIELDS), -1)
        chosen[: len(self._spokes), :2] = np.array(self._spokes).reshape(-1, 2)
        return written(
            _Known(
                one_way=np.zeros(self._sizes["one_way"]),
                pairs=np.zeros(self._sizes["pairs"]),
                chosen=chosen,
                tables=np.zeros(self._sizes["chosen"]),
                noise=np.zeros(3),
            )
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the parts of a round, each at the length and the bound of the plan."""
        return tuple(
            Block.of_units(part, (self._sizes[part],), share, self._touched[part])
            for part, share in self._stages[t]
        )

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the numbers of records in the cells of the round's tables."""
        known = read(_Known, state, self.frac_bits)
        tables, groups = self._chosen(known), self._groups(known)
        apart = [np.arange(n) for n in self.levels]
        of: Mapping[Part, tuple[Sequence[Clique], Sequence[Integers], int]] = {
            "one_way": ([(j,) for j in range(self.n_features)], apart, 1 << FINE),
            "pairs": (self._pairs, groups, 1 << FINE),
            "chosen": (tables, apart, self._word(len(tables))),
        }
        parts = []
        for part, _ in self._stages[t]:
            wanted, maps, word = of[part]
            counts = word * self._counts(wanted, maps, part == "pairs", records)
            parts.append(np.pad(counts, (0, self._sizes[part] - len(counts))))
        return np.concatenate(parts)

    def _counts(
        self, tables: Sequence[Clique], maps: Sequence[Integers], merged: bool, records: Records
    ) -> Integers:
        """Return the numbers of records in the cells of tables, one after another.

        `maps` has the cell of each level of each column; the last column varies fastest.
        """
        sizes = [min(n, self.groups) if merged else n for n in self.levels]
        counts = [np.zeros(prod(sizes[j] for j in table), dtype=np.int64) for table in tables]
        for part in in_cache(records):
            levels = [axis.cells(part, self.frac_bits) for axis in self.axes]
            cells = [own[level] for own, level in zip(maps, levels, strict=True)]
            for count, (first, *others) in zip(counts, tables, strict=True):
                place = cells[first]
                for j in others:
                    place = place * sizes[j] + cells[j]
                count += np.bincount(place, minlength=len(count))
        return np.concatenate([np.zeros(0, dtype=np.int64), *counts])

    def _word(self, tables: int) -> int:
        """Return what a record adds to its cell of each of so many chosen tables."""
        return isqrt((1 << 2 * FINE) * self._most_tables // max(tables, 1))

    def _chosen(self, known: _Known) -> tuple[Clique, ...]:
        """Return the tables that were chosen, as the state has them."""
        rows = (tuple(j for j in row if j >= 0) for row in known.chosen.tolist())
        return tuple(row for row in rows if row)

    def _groups(self, known: _Known) -> list[Integers]:
        counts = np.split(known.one_way, np.cumsum(self.levels)[:-1])
        columns = zip(counts, self.ordered, strict=True)
        return [grouped(own, self.groups, ordered) for own, ordered in columns]

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the tables in records, and after those of pairs, which ones come next."""
        known = read(_Known, state, self.frac_bits)
        noise = known.noise.copy()
        changed: dict[str, Any] = {}
        for part, _ in self._stages[t]:
            stored = "tables" if part == "chosen" else part
            word = self._word(len(self._chosen(known))) if part == "chosen" else 1 << FINE
            changed[stored] = released[part].values / word
            noise[_ORDER.index(part)] = released[part].noise_std / word
        known = replace(known, **changed, noise=noise, done=t + 1)
        if any(part == "pairs" for part, _ in self._stages[t]):
            known = replace(known, chosen=self._choice(known, released["pairs"]))
        return written(known)

    def _choice(self, known: _Known, pairs: Released) -> Integers:
        """Return the columns of the tables to measure, from released numbers alone."""
        # A word's noise there would be this, were one table chosen and measured by the budget.
        shares = {part: share for stage in self._stages for part, share in stage}
        unit = known.noise[1] * sqrt(shares["pairs"] / shares["chosen"] / len(self._pairs))
        scores = {table.columns: excess(table.values, table.noise) for table in self._coarse(known)}
        tables = chosen_tables(
            scores,
            self.levels,
            unit,
            target=None if self.about < 0 else self.about,
            most_tables=self._most_tables,
            most_words=self.most_words,
        )
        found = np.full((self._most_tables, _FIELDS), -1)
        for i, table in enumerate(tables):
            found[i, : len(table)] = table
        return found

    # The fit --------------------------------------------------------------------------------------

    def _coarse(self, known: _Known) -> list[Measured]:
        """Return the tables of all pairs."""
        groups, found, at = self._groups(known), [], 0
        for a, b in self._pairs:
            shape = tuple(min(self.levels[j], self.groups) for j in (a, b))
            values = known.pairs[at : at + prod(shape)].reshape(shape)
            found.append(Measured((a, b), values, known.noise[1], (groups[a], groups[b])))
            at += prod(shape)
        return found

    def measured(self, results: Results) -> list[Measured]:
        """Return the noisy tables, but those of pairs with levels merged."""
        return self._fine(self._known(results))

    def _fine(self, known: _Known) -> list[Measured]:
        columns = [(j,) for j in range(self.n_features)]
        found: list[Measured] = []
        for tables, flat, noise in (
            (columns, known.one_way, known.noise[0]),
            (self._chosen(known), known.tables, known.noise[2]),
        ):
            shapes = [tuple(self.levels[j] for j in table) for table in tables]
            ends = np.cumsum([prod(shape) for shape in shapes])
            for table, shape, values in zip(tables, shapes, np.split(flat, ends), strict=False):
                found.append(Measured(table, values.reshape(shape), noise))
        return found

    def tree(self, results: Results) -> Tree:
        """Return the junction tree whose tables are in the results, one after another."""
        return junction_tree(self.levels, [_columns(row) for row in results["chosen"]])

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
        halves = {"level": noise["one_way"], "cell": noise.get("chosen", 0.0) * tables}
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
        known = read(_Known, state, self.frac_bits)
        found = {
            "one_way": known.one_way,
            "pairs": known.pairs,
            "chosen": known.chosen.astype(np.float64),
            "tables": known.tables,
            "noise": known.noise,
            "total": np.zeros(1),
            "law": np.zeros(0),
        }
        if known.done < self.rounds:
            return found
        measured = [*self._fine(known), *self._coarse(known)]
        total = total_of(measured)
        laws, _ = fitted(self.tree(found), measured, total)
        flat = np.concatenate([law.ravel() for law in laws])
        return {**found, "total": np.array([total]), "law": flat}

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

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return what was measured, how pairs belong together, and margins of the law."""
        known = self._known(results)
        tables = self._fine(known)
        rows = [
            (" × ".join(columns[j] for j in table.columns), float(table.values.size), table.noise)
            for table in tables
        ]
        if self._pairs:
            cells, s = float(len(known.pairs)), float(known.noise[1])
            rows.append((f"all {len(self._pairs)} pairs, levels merged", cells, s))
        shown: list[Display] = [
            Table("Measured", ("table", "cells", "noise of a cell"), tuple(rows), NOT_PEOPLE)
        ]
        if not len(results["law"]):
            return tuple(shown)
        if self._pairs:
            shown.append(self._dependence(known, results, columns))
        tree, whole = self.tree(results), max(float(results["total"][0]), 1.0)
        laws = tree.split(results["law"])
        for table in tables[: min(self.n_features, _PICTURES)]:
            (j,) = table.columns
            at = tree.holding((j,))
            assert at is not None
            law = np.moveaxis(laws[at], tree.cliques[at].index(j), 0).reshape(self.levels[j], -1)
            margin = INTERVAL_95["gaussian"] * table.noise / whole
            shown.append(
                Heatmap(
                    f"{columns[j]}: released and look-alike",
                    ("released", "look-alike"),
                    self.labels[j],
                    np.stack([table.values / whole, law.sum(axis=1)]),
                    margin=np.stack([np.full(self.levels[j], margin), np.zeros(self.levels[j])]),
                    note="Parts of the records; ± is 95 % of the privacy noise.",
                )
            )
        return tuple(shown)

    def _dependence(self, known: _Known, results: Results, columns: tuple[str, ...]) -> Heatmap:
        """Return how many records of a pair its margins do not explain, released and drawn."""
        d = self.n_features
        drawn_ = self.draw(results, min(self.nominal_n, _MOST_DRAWN))
        parts = np.full((d, d), np.nan)
        for table in self._coarse(known):
            a, b = table.columns
            kept = np.zeros(table.values.shape)
            places = tuple(g[drawn_[:, j]] for j, g in zip((a, b), table.groups, strict=True))
            np.add.at(kept, places, 1.0)
            for (row, column), values, s in (
                ((a, b), table.values, table.noise),
                ((b, a), kept, 0),
            ):
                whole = max(float(values.sum()), 1.0)
                parts[row, column] = max(excess(values, s), 0.0) / (2 * whole)
        np.fill_diagonal(parts, 0.0)
        return Heatmap(
            "Dependence of pairs",
            columns,
            columns,
            np.minimum(parts, 1.0),
            note="The part of the records that would have to move for two columns to be "
            "independent: above the diagonal as released, less what noise makes; below it among "
            "look-alike records.",
        )

    def _known(self, results: Results) -> _Known:
        """Return the state that results were made of."""
        return _Known(
            one_way=results["one_way"],
            pairs=results["pairs"],
            chosen=results["chosen"].astype(np.int64),
            tables=results["tables"],
            noise=results["noise"],
        )


def _columns(row: Sequence[float]) -> Clique:
    return tuple(int(j) for j in row if j >= 0)
