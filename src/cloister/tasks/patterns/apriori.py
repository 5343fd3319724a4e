"""Frequent itemsets, level by level: noisy supports of public candidates (Apriori).

A record is a basket: one boolean column for each item of a public catalogue. Round ``t`` counts
the sets of ``t + 1`` items that the earlier noisy supports leave possible. A basket with many
candidates has a smaller weight, so its contribution has a bounded L2 norm for any candidates.

References
----------
Agrawal and Srikant, "Fast algorithms for mining association rules", VLDB 1994, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import ceil, comb, hypot, isqrt, sqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Hint, Length, Probability, Range, Whole, declared
from cloister.core.display import Display, Summary
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    BOOLEAN,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import position
from cloister.tasks.examples import Example
from cloister.tasks.options import PublicSeed, build_task, noise_multiplier_for
from cloister.tasks.patterns.association import (
    displays_of,
    itemsets_frame,
    itemsets_of,
    relative_error,
    rules_frame,
    rules_of,
    summary_of,
)
from cloister.tasks.patterns.supports import Heavy, heavy_of, load_edges, load_law, mended, shrink
from cloister.tasks.state import decode_state, encode_state, part_of, prefixed

if TYPE_CHECKING:
    import pandas as pd

    from cloister.data.schema import Schema
    from cloister.protocol.plan import Plan

Limit = Literal["weight", "truncate"]
Words = NDArray[np.uint64]
Sets = tuple[Annotated[tuple[Annotated[int, Range(0)], ...], Length(1)], ...]
Size = Annotated[int, Range(1, 3)]
Items = Annotated[int, Range(1, 10_000), Hint("exclude items that are not of interest")]

_FINE = 20  # a basket's norm is 2**20, so that the noise is on a fine lattice
_WHOLE = 16  # parts of a full candidate; a squared part is the unit of a load
_LEAST_UNIT = 8  # parts of a candidate that is far from the minimum
_BASKETS_SHARE = 0.03  # of the budget, for the number of baskets
_LOAD_SHARE = 0.02  # of the budget, for the histogram of loads of one level
_MISSING_SHARE = (
    0.25  # of a level's budget for supports, for the shortfall of baskets beyond the limit
)
_GAINS = (2, 64)  # least and greatest factor of a basket's shortfall
_LEVEL_SHARES = {1: (1.0,), 2: (0.2, 0.8), 3: (0.15, 0.5, 0.35)}  # of the rest, for supports
_BASKET_SIZES = (4, 12)  # minimum and maximum of the default limit in the first round
_FIRST_NOISE = 0.35  # noise of an item's count, as a share of the minimum
_TIMES_MEAN = 2.0  # a basket counts in full up to so many times the mean load
_SMALL_NOISE = 0.05  # noise of a count, as a share of the minimum
_ITEMS = 4  # of a basket, in forecasts
_LIFT = 1.3  # typical ratio of joint occurrences to those by chance
_SLACK = 2.0  # tolerance below the minimum for items of pairs, in deviations of noise
_PART_OF_MINIMUM = 0.6  # smallest support of a pair within a triple, as a share of the minimum
_CHUNK_CELLS, _CHUNK_ROWS = 1 << 23, 1 << 13  # of the table of baskets by candidates
_BYTE = 255


@dataclass(frozen=True)
class Known:
    """The noisy number of all baskets, its deviation, and the number of released levels."""

    number: float = 0.0
    std: float = 0.0
    levels: int = 0


@dataclass(frozen=True)
class Level:
    """Candidates of one size, with a slot for each, and their released values.

    Parameters
    ----------
    bound : int
        Load up to which a basket counts in full.
    sets : ndarray of shape (n_slots, size), int64
        Items in ascending order; -1 in an unused slot.
    unit : ndarray of shape (n_slots,), int64
        Weight of a candidate in parts; 0 in an unused slot.
    expected : ndarray of shape (n_slots,)
        Supports by chance, from which the candidates were chosen.
    count, std, support, counted, error : ndarray of shape (n_slots,)
        Results of :func:`~cloister.tasks.patterns.supports.mended`, and the final estimate.
    """

    bound: int
    sets: Integers
    unit: Integers
    expected: Floats
    count: Floats
    std: Floats
    support: Floats
    counted: Floats
    error: Floats

    @property
    def used(self) -> Flags:
        """True for each used slot."""
        return self.unit > 0

    @property
    def gain(self) -> int:
        """Factor of the shortfall of a basket, in the second sum."""
        return _gain(self.bound, int((self.unit**2).sum()))


def _items(entry: str | int | tuple[str | int, ...], facts: PublicFacts) -> tuple[int, ...]:
    """Return a sensitive set as indices of items; a single name is a set of one item."""
    return tuple(
        item if isinstance(item, int) else position(facts.columns, item, "a sensitive item")
        for item in ((entry,) if isinstance(entry, str | int) else entry)
    )


@declared
class Apriori(Gaussian):
    """Supports of itemsets of 1 to 3 items, with noise.

    Parameters
    ----------
    limit : {"weight", "truncate"}
        Treatment of a basket with many candidates: all of them count with a smaller weight, or some
        of them, chosen by a public rule, count in full.
    basket_size : int >= 1
        Largest number of items of a basket that counts in full in the first round. In later rounds
        the limit follows from released counts.
    sensitive : tuple of tuples of int
        Sets that contain all items of one of these are not released.

    Notes
    -----
    With "weight", a basket of load ``l`` has the weight ``min(1, sqrt(B / l))`` in the supports of
    its candidates. The load is their number, with smaller weights far from the minimum. With
    "truncate" the weight is 1 or 0. A second sum has what the weights of heavy baskets lack, set by
    set. It is exact up to at least ``2.25 B``. For larger loads a factor of each level, from a
    noisy histogram of loads, compensates the rest. So intervals cover the exact support, also of
    sets in large baskets (:func:`~cloister.tasks.patterns.supports.mended`).

    For each size there are three blocks of L2 norm 1: supports, what they lack, and loads. The
    first round also counts the baskets. The bound ``B`` is public state. A contribution is scaled
    to norm 1 for any ``B``, so the sensitivity depends on the plan alone.
    """

    name: ClassVar[str] = "apriori"
    title: ClassVar[str] = "What goes together"

    example: ClassVar[Example] = Example(
        tuple(PublicColumn(item, 0.0, 1.0, BOOLEAN) for item in ("bread", "butter", "milk", "tea")),
        {"max_size": 3, "basket_size": 2, "min_support": 0.1},
    )

    @declared
    class Options:
        min_support: Annotated[Probability, "smallest share of baskets with a frequent set"] = 0.01
        max_size: Annotated[Size, "items in the largest sets"] = 2
        most_candidates: Annotated[Items, "largest number of candidate sets of one size"] = 1000
        limit: Annotated[Limit, "give baskets with many candidates less weight, or cut them"] = (
            "weight"
        )
        basket_size: Annotated[
            Whole | None,
            "items of a basket that count in full; 4 to 12, chosen from the noise by default",
        ] = None
        min_confidence: Annotated[AtLeastZero, "minimum confidence of displayed rules"] = 0.0
        min_lift: Annotated[AtLeastZero, "minimum lift of displayed rules"] = 1.0
        min_count: Annotated[AtLeastZero, "hide sets in fewer baskets than this"] = 0.0
        sensitive: Annotated[
            tuple[str | int | tuple[str | int, ...], ...], "items, or sets of items, to hide"
        ] = ()
        public_seed: PublicSeed = 0

    n_features: Items
    min_support: Probability = 0.01
    max_size: Size = 2
    most_candidates: Items = 1000
    limit: Limit = "weight"
    basket_size: Whole = 12
    min_confidence: AtLeastZero = 0.0
    min_lift: AtLeastZero = 1.0
    min_count: AtLeastZero = 0.0
    sensitive: Sets = ()
    public_seed: int = 0
    frac_bits: int = 16

    def __post_init__(self) -> None:
        if self.max_size > self.n_features:
            raise PlanError(
                f"max_size must be at most the number of items, {self.n_features}, got "
                f"{self.max_size}; use a smaller one."
            )
        if max(chain((0,), *self.sensitive)) >= self.n_features:
            raise PlanError(
                f"sensitive must have items below {self.n_features}, got {self.sensitive}; use "
                "items of the catalogue."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Validate the catalogue, find sensitive items, and choose the limit from the noise."""
        for column in facts.columns:
            if column.levels != 2:
                raise PlanError(
                    f"column {column.name!r} must be boolean, as each item of a catalogue; "
                    "write one column of 0 and 1 for each item or category."
                )
        task = build_task(
            cls,
            facts,
            options,
            basket_size=options.basket_size or _BASKET_SIZES[1],
            sensitive=tuple(_items(entry, facts) for entry in options.sensitive),
        )
        noise = noise_multiplier_for(facts, pure=True)
        if options.basket_size is not None or noise is None:
            return task
        # The largest limit with small noise: the noise grows with the root of the limit.
        multiplier = noise / sqrt(task.blocks(0)[0].weight)
        size = (_FIRST_NOISE * task.min_support * facts.nominal_n / multiplier) ** 2
        return replace(task, basket_size=int(np.clip(ceil(size), *_BASKET_SIZES)))

    @property
    def rounds(self) -> int:
        """Number of noisy sums, one for each size of sets."""
        return self.max_size

    def slots(self, size: int) -> int:
        """Return the number of slots for candidates of a size, a function of the plan."""
        if size == 1:
            return self.n_features
        return min(comb(self.n_features, size), self.most_candidates)

    def describe(self) -> str:
        how = "counts less for each of them"
        if self.limit == "truncate":
            how = "counts for some of them only"
        text = "Counts the baskets with each item of the catalogue"
        if self.max_size > 1:
            most = max(self.slots(2), self.slots(self.max_size))
            sizes = " and ".join(str(size) for size in range(2, self.max_size + 1))
            text += (
                f", and then with sets of {sizes} items: at most {most} sets of a size, chosen by "
                "earlier noisy counts"
            )
        return f"{text}. A basket with many of them {how}. Noisy supports and rules are released."

    def start(self) -> State:
        """Return the state before the first round: every item is a candidate."""
        levels = []
        for size in range(1, self.max_size + 1):
            n = self.slots(size)
            zeros, unit = (np.zeros(n) for _ in range(6)), np.zeros(n, dtype=np.int64)
            sets = np.full((n, size), -1)
            levels.append(Level(self.basket_size * _WHOLE**2, sets, unit, *zeros))
        all_items = np.arange(self.n_features)[:, None]
        levels[0] = replace(levels[0], sets=all_items, unit=np.full(self.n_features, _WHOLE))
        return self._state(Known(), levels)

    @staticmethod
    def _state(baskets: Known, levels: Sequence[Level]) -> State:
        state = prefixed("baskets.", encode_state(baskets))
        for size, level in enumerate(levels, start=1):
            state |= prefixed(f"{size}.", encode_state(level))
        return state

    def _baskets(self, state: GridState) -> Known:
        return decode_state(Known, part_of(state, "baskets."), self.frac_bits)

    def _level(self, state: GridState, size: int) -> Level:
        return decode_state(Level, part_of(state, f"{size}."), self.frac_bits)

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return blocks of supports, of their shortfall, of loads, and first of baskets.

        The contribution of a basket to each has a norm of at most 1.
        """
        one, slots = 1 << _FINE, self.slots(t + 1)
        rest = 1 - _BASKETS_SHARE - self.max_size * _LOAD_SHARE
        share = rest * _LEVEL_SHARES[self.max_size][t]
        l1, missing = isqrt(slots * one**2) + 1, _MISSING_SHARE * share
        blocks = (
            Block("supports", (slots,), l1, one**2, share - missing),
            Block("missing", (slots,), l1, one**2, missing),
            Block.counting("loads", (len(load_edges(slots)) - 1,), _LOAD_SHARE, one=one),
        )
        return blocks if t else (*blocks, Block.counting("baskets", (1,), _BASKETS_SHARE, one=one))

    # --- The contribution of a basket -------------------------------------------------------------

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the candidates of each basket, what they lack, its load, and first a count."""
        slots, level = self.slots(t + 1), self._level(state, t + 1)
        live, bound = level.used, level.bound
        sets, units = level.sets[live], level.unit[live]
        baskets = np.ascontiguousarray(records.T > 0)
        held = _all_of(baskets, sets)
        load = (units[:, None] ** 2 * held).sum(axis=0)
        bins = np.searchsorted(load_edges(slots), _whole(load), side="right") - 1
        heavy = load > bound
        if self.limit == "truncate" and len(sets):
            held[:, heavy] &= self._kept(baskets[:, heavy], sets, units, bound)
        parts = held * units[:, None]
        supports, missing = np.zeros((2, len(records), slots), dtype=np.int64)
        supports[:, live] = (parts * self._adds(load, bound)).T
        missing[:, live] = (parts * self._lacks(load, level)).T
        rows = (Rows.dense(supports), Rows.dense(missing), Rows.at([bins], [1 << _FINE]))
        return rows if t else (*rows, Rows.at([np.zeros_like(bins)], [1 << _FINE]))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return supports of the candidates, what they lack, loads, and first the number."""
        slots, level = self.slots(t + 1), self._level(state, t + 1)
        live, bound = level.used, level.bound
        sets, units = level.sets[live], level.unit[live]
        edges, full = load_edges(slots), int(_adds_in_full(bound))
        supports, missing = np.zeros((2, slots), dtype=np.int64)
        loads = np.zeros(len(edges) - 1, dtype=np.int64)
        rows = min(max(1, _CHUNK_CELLS // max(1, len(sets))), _CHUNK_ROWS)
        for first in range(0, len(records), rows):
            baskets = np.ascontiguousarray(records[first : first + rows].T > 0)
            held = _all_of(_words(baskets), sets)
            load = _loads(held, units, baskets.shape[1])
            loads += _histogram(load, edges)
            heavy = load > bound
            supports[live] += full * _counts(held & _words(~heavy)) * units
            # Heavy baskets separately: each bit of their weights requires a pass over their sets.
            baskets, load = baskets[:, heavy], load[heavy]
            if not load.size:
                continue
            held = _all_of(_words(baskets), sets)
            if self.limit == "truncate" and len(sets):
                held &= _words(self._kept(baskets, sets, units, bound))
            supports[live] += _sums(held, self._adds(load, bound), full) * units
            missing[live] += _sums(held, self._lacks(load, level), full) * units
        number = [] if t else [len(records) << _FINE]
        return np.concatenate([supports, missing, loads, np.array(number, dtype=np.int64)])

    def _adds(self, load: Integers, bound: int) -> Integers:
        """Return the contribution of a basket for each part of a counted candidate."""
        return _adds(np.minimum(load, bound) if self.limit == "truncate" else load, bound)

    def _lacks(self, load: Integers, level: Level) -> Integers:
        """Return `gain` times a basket's shortfall for each part of a counted candidate.

        It is at most the contribution itself, so it has no larger norm.
        """
        bound = max(level.bound, 1)
        added, full = self._adds(load, bound), int(_adds_in_full(bound))
        # With "truncate", a counted candidate stands for those that are cut.
        cut = np.maximum(load - bound, 0) * full // bound
        lacks = cut if self.limit == "truncate" else full - added
        return np.minimum(level.gain * lacks, added)

    def _kept(self, baskets: Flags, sets: Integers, units: Integers, bound: int) -> Flags:
        """Return True for the candidates of each basket that count, up to the bound.

        The candidates are in a public random circular order. A basket's start in the circle is a
        function of its items and the public seed alone.
        """
        rng = public_generator("apriori", self.public_seed)
        weights = rng.integers(1, 1 << 20, self.n_features)
        order = rng.permutation(len(units))
        # 2**32 over the golden ratio spreads similar baskets around the circle.
        starts = weights @ baskets.astype(np.int64) * 2_654_435_761 % (1 << 32) % len(units)
        held = _all_of(baskets, sets[order])
        parts = held * (units[order, None] ** 2).astype(np.int32)
        turned = parts.cumsum(axis=0, dtype=np.int32)
        all_baskets, all_parts = np.arange(held.shape[1]), turned[-1].copy()
        turned -= (turned - parts)[starts, all_baskets]
        turned += all_parts * (np.arange(len(units))[:, None] < starts)
        # The running sum is now that from the start of each basket, once around the circle.
        kept = np.empty_like(held)
        kept[order] = turned <= bound
        return kept

    # --- Post-processing --------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the estimates of this size and the candidates of the next; post-processing."""
        size = t + 1
        levels = [self._level(state, n) for n in range(1, self.max_size + 1)]
        baskets = replace(self._baskets(state), levels=size)
        if not t:
            (number,), std = released["baskets"].in_records(_FINE)
            baskets = Known(float(number), std, size)
        levels[t] = self._estimated(levels, size, released)
        if size < self.max_size:
            noise_std = released["supports"].noise_std
            levels[size] = self._candidates(size + 1, levels, baskets.number, noise_std)
        return self._state(baskets, levels)

    def _estimated(
        self, levels: Sequence[Level], size: int, released: Mapping[str, NoisyBlock]
    ) -> Level:
        """Return a level with its released supports."""
        level = levels[size - 1]
        live, sets = level.used, level.sets
        # The contribution of a full basket to each candidate, in fine units.
        full = np.where(live, level.unit, 1.0) * _adds_in_full(level.bound)
        weighed, missing = (
            (np.where(live, part.values / unit, 0.0), np.where(live, part.noise_std / unit, 0.0))
            for part, unit in (
                (released["supports"], full),
                (released["missing"], full * level.gain),
            )
        )
        heavy = self._heavy(level, size, released["loads"])
        estimates: dict[str, Any] = mended(weighed, missing, heavy)
        support = estimates["count"].copy()
        if size > 1:
            counts, stds = estimates["count"][live], estimates["std"][live]
            support[live] = shrink(counts, stds, level.expected[live], sets[live])
        support = np.maximum(support, 0.0)
        if size > 1:  # a support is at most that of each subset
            least = np.full(len(support), np.inf)
            for part in combinations(range(size), size - 1):
                below = self._support_of(levels[size - 2], sets[live][:, part])
                least[live] = np.minimum(least[live], below)
            support = np.where(live, np.minimum(support, least), 0.0)
        return replace(level, support=support, **estimates)

    def _heavy(self, level: Level, size: int, histogram: NoisyBlock) -> Heavy:
        """Return the statistics of baskets that do not count in full."""
        edges, bound = load_edges(self.slots(size)), level.bound / _WHOLE**2
        counts, std = histogram.in_records(_FINE)
        loads = np.arange(edges[-1], dtype=np.float64)
        cut = self.limit == "truncate"
        kept = np.minimum(loads, bound if cut else np.sqrt(loads * bound))
        lacks = loads - kept
        return heavy_of(load_law(counts, edges, std), edges, std, kept, lacks, level.gain, cut)

    def _support_of(self, level: Level, sets: Integers) -> Floats:
        """Return the supports of counted sets, 0 for others."""
        counted = self._code(level.sets)
        order = np.argsort(counted, kind="stable")
        codes = self._code(sets)
        at = order[np.minimum(np.searchsorted(counted[order], codes), len(counted) - 1)]
        return np.where(counted[at] == codes, level.support[at], 0.0)

    def _code(self, sets: Integers) -> Integers:
        """Return a distinct number for each set; negative for an unused slot."""
        return sets @ self.n_features ** np.arange(sets.shape[1])

    def _candidates(
        self, size: int, levels: Sequence[Level], baskets: float, noise_std: float
    ) -> Level:
        """Return the next candidates, the most likely first, and their weights."""
        baskets = max(baskets, 1.0)
        minimum = self.min_support * baskets
        find = self._pairs if size == 2 else self._triples
        sets, expected = find(levels, baskets)
        order = np.argsort(-expected, kind="stable")[: self.slots(size)]
        sets, expected = sets[order], np.maximum(expected[order], 2.0**-self.frac_bits)
        ratio = _LIFT * expected / minimum
        # A set far from the minimum is rare or certain, so its count needs less precision.
        part = np.sqrt(np.minimum(ratio, 1 / ratio))
        units = np.clip(np.rint(_WHOLE * part), _LEAST_UNIT, _WHOLE)
        mean_load = float(expected @ units**2) / baskets
        shares = _LEVEL_SHARES[self.max_size]
        noise_std *= sqrt(shares[size - 2] / shares[size - 1])
        empty = (0, self.slots(size) - len(sets))  # the length of a block must not depend on data
        return replace(
            levels[size - 1],
            bound=self._bound(mean_load, minimum, noise_std, len(sets)),
            sets=np.pad(sets, (empty, (0, 0)), constant_values=-1),
            unit=np.pad(units.astype(np.int64), empty),
            expected=np.pad(expected, empty),
        )

    @staticmethod
    def _singles(level: Level) -> Floats:
        """Return the supports of items, at least half of their noise."""
        return np.maximum(level.support, np.maximum(0.5 * level.std, 0.5))

    def _pairs(self, levels: Sequence[Level], baskets: float) -> tuple[Integers, Floats]:
        """Return pairs of items that may both be frequent, and their supports by chance."""
        supports = self._singles(levels[0])
        least = self.min_support * baskets - _SLACK * levels[0].std
        possible = np.flatnonzero(supports >= least)
        # An item of one of the `most_candidates` likeliest pairs has at most that rank.
        ranked = possible[np.argsort(-supports[possible], kind="stable")]
        items = np.sort(ranked[: self.most_candidates + 1])
        first, second = np.triu_indices(len(items), 1)
        pairs = np.stack([items[first], items[second]], axis=1)
        return pairs, supports[pairs].prod(axis=1) / baskets

    def _triples(self, levels: Sequence[Level], baskets: float) -> tuple[Integers, Floats]:
        """Return triples whose pairs may all be frequent, and their supports without interaction.

        The support of a triple is ``s_ab s_ac s_bc / (s_a s_b s_c)`` if the third item does not
        change the association of two items.
        """
        enough = levels[1].support >= _PART_OF_MINIMUM * self.min_support * baskets
        pairs = levels[1].sets[enough]
        items, indices = np.unique(pairs, return_inverse=True)
        first, second = indices.reshape(pairs.shape).T
        linked = np.zeros((len(items), len(items)), dtype=bool)
        linked[first, second] = True
        # For each pair (a, b): every c > b in a pair with both.
        pair, third = np.nonzero(linked[first] & linked[second])
        triples = np.column_stack([pairs[pair], items[third]])
        expected = np.ones(len(triples))
        for part in combinations(range(3), 2):
            expected *= self._support_of(levels[1], triples[:, part])
        return triples, expected / self._singles(levels[0])[triples].prod(axis=1)

    # --- Results ----------------------------------------------------------------------------------

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the expected margins of error of counted supports, as shares of all baskets.

        Those of sets have a range: a set far from the minimum support has the smallest weight. They
        assume four items in a basket, and no basket far beyond the limit of its level.
        """
        last = self.blocks(self.max_size - 1)[0].weight
        # The sums of all levels have one bound, so their noise differs by their weights alone.
        stds = [noise_std * sqrt(last / self.blocks(t)[0].weight) for t in range(self.max_size)]
        margin = self._margin(self.basket_size * _WHOLE**2, self.n_features, stds[0]) / nominal_n
        found = {"items_half_width": np.array([margin])}
        for size, std in enumerate(stds[1:], start=2):
            load, slots = comb(_ITEMS, size) * _LEAST_UNIT**2, self.slots(size)
            bound = self._bound(load, self.min_support * nominal_n, std, slots)
            margin = self._margin(bound, slots, std) / nominal_n
            place = f"sets_of_{size}", "the_minimum_support_half_width"
            found[f"{place[0]}_near_{place[1]}"] = np.array([margin])
            found[f"{place[0]}_far_from_{place[1]}"] = np.array([margin * _WHOLE / _LEAST_UNIT])
        return found

    @staticmethod
    def _margin(bound: int, most: int, noise_std: float) -> float:
        """Return the margin of error of a full candidate's count, of at most so many."""
        missing = sqrt((1 - _MISSING_SHARE) / _MISSING_SHARE) / _gain(bound, most * _WHOLE**2)
        std = noise_std / (_WHOLE * _adds_in_full(bound)) * hypot(1.0, missing)
        return INTERVAL_95["gaussian"] * std

    @staticmethod
    def _bound(mean_load: float, minimum: float, noise_std: float, sets: int) -> int:
        """Return the load up to which a basket counts in full, at most one more than `sets`.

        It is twice the mean load, or more as long as the additional noise is a small share of the
        minimum.
        """
        noise = noise_std / (_WHOLE << _FINE)
        cheap = (_SMALL_NOISE * minimum / noise) ** 2 if noise > 0 else np.inf
        most = (sets + 1) * _WHOLE**2
        return ceil(min(max(_TIMES_MEAN * mean_load, cheap, _WHOLE**2), most))

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return all counted sets that may be released, as shares of all baskets.

        Returns
        -------
        mapping
            ``baskets``, the noisy number of baskets, and ``baskets_half_width``, that of its 95 %
            interval, shape (1,). ``sets`` of shape (n_sets, max_size), with indices of items, and
            -1 after a smaller set. For each set ``support``, the best estimate, ``counted``, the
            noisy support as counted, and ``half_width``, that of its 95 % interval.
        """
        baskets = self._baskets(state)
        number = max(baskets.number, 1.0)
        tables = [np.zeros((0, self.max_size + 3))]
        for size in range(1, baskets.levels + 1):
            level, behind = self._level(state, size), (0, self.max_size - size)
            sets = np.pad(level.sets, ((0, 0), behind), constant_values=-1)
            shown = level.used & ~self._is_sensitive(sets)
            if self.min_count:
                shown &= level.counted >= self.min_count
            values = np.column_stack([sets, level.support, level.counted, level.error])
            tables.append(values[shown])
        table = np.concatenate(tables)
        counted = table[:, -2] / number
        # A share has two errors: that of its count and that of the number of baskets.
        error = np.hypot(table[:, -1], counted * baskets.std)
        return {
            "baskets": np.array([baskets.number]),
            "baskets_half_width": np.array([INTERVAL_95["gaussian"] * baskets.std]),
            "sets": table[:, : self.max_size],
            "support": np.clip(table[:, -3] / number, 0.0, 1.0),
            "counted": counted,
            "half_width": INTERVAL_95["gaussian"] * error / number,
        }

    def _is_sensitive(self, sets: Integers) -> Flags:
        """Return True for each set that contains a sensitive set."""
        hidden = np.zeros(len(sets), dtype=bool)
        for items in self.sensitive:
            hidden |= np.logical_and.reduce([(sets == item).any(axis=1) for item in items])
        return hidden

    def tables_of(self, plan: Plan, results: Results, _: Schema) -> dict[str, pd.DataFrame]:
        """Return tables of the frequent sets and of the rules of a release."""
        itemsets = itemsets_of(results, plan.columns, self.min_support)
        least = {"min_confidence": self.min_confidence, "min_lift": self.min_lift}
        spread = relative_error(results)
        rules = rules_of(itemsets, float(results["baskets"][0]), spread=spread, **least)
        tables = {"itemsets": itemsets_frame(itemsets), "rules": rules_frame(rules)}
        for table in tables.values():
            for column in table.columns.intersection(["items", "antecedent", "consequent"]):
                table[column] = table[column].map(" + ".join)
        return tables

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the rule with the largest lift, or the most frequent item."""
        return summary_of(results, columns, self.min_support, self.min_confidence, self.min_lift)

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return frequent sets, rules, and a graph of the rules."""
        return displays_of(results, columns, self.min_support, self.min_confidence, self.min_lift)


def _all_of(items: NDArray[Any], sets: Integers) -> NDArray[Any]:
    """Return the baskets with all items of each set, as flags or as words of bits."""
    held = items.take(sets[:, 0], axis=0)
    for column in sets.T[1:]:
        held &= items.take(column, axis=0)
    return held


def _loads(held: Words, units: Integers, n_baskets: int) -> Integers:
    """Return the sum of squared units of the sets in each basket."""
    loads = np.zeros(n_baskets, dtype=np.int64)
    for unit in np.unique(units):
        alike = held[units == unit].view(np.uint8)
        for first in range(0, len(alike), _BYTE):  # counts up to 255 fit bytes, which are fast
            bits = np.unpackbits(alike[first : first + _BYTE], axis=-1, count=n_baskets)
            loads += unit**2 * bits.sum(axis=0, dtype=np.uint8).astype(np.int64)
    return loads


def _words(flags: Flags) -> Words:
    """Return each row of flags as the bits of whole words, padded with zeros."""
    bits = np.packbits(flags, axis=-1)
    words = np.zeros((*flags.shape[:-1], -(-flags.shape[-1] // 64)), dtype=np.uint64)
    words.view(np.uint8)[..., : bits.shape[-1]] = bits
    return words


def _counts(words: Words) -> Integers:
    """Return the number of set bits in each row."""
    return np.asarray(np.bitwise_count(words).sum(axis=-1, dtype=np.int64))


def _sums(held: Words, adds: Integers, most: int) -> Integers:
    """Return the sum of contributions over the baskets in each row, at most `most` each."""
    # Bit by bit, so that the time does not depend on the contributions.
    total = np.zeros(len(held), dtype=np.int64)
    for bit in range(most.bit_length()):
        total += _counts(held & _words((adds >> bit & 1).astype(np.bool_))) << bit
    return total


def _adds(load: Integers, bound: int) -> Integers:
    """Return the contribution of a basket for each part of a candidate.

    It is the largest integer ``v`` with ``v**2 * max(load, bound) <= 4**_FINE``. Parts whose
    squares sum to the load then have a norm of at most ``2**_FINE``, in integers.
    """
    room = (1 << 2 * _FINE) // np.maximum(load, max(bound, 1))
    adds = np.sqrt(room.astype(np.float64)).astype(np.int64)
    adds -= adds * adds > room  # a float root may be rounded up
    return adds


def _adds_in_full(bound: int) -> float:
    """Return the contribution of a full basket for each part of a candidate."""
    return float(_adds(np.zeros(1, np.int64), bound)[0])


def _gain(bound: int, most: int) -> int:
    """Return the factor of a basket's shortfall; `most` is the load with all candidates.

    The second sum is exact up to the load ``(1 + 1 / gain)**2 * bound``. If there are few
    candidates, no basket has more.
    """
    least, greatest = _GAINS
    beyond = sqrt(max(most / max(bound, 1), 1.0)) - 1
    return greatest if beyond * greatest <= 1 else max(least, int(1 / beyond))


def _whole(load: Integers) -> Integers:
    """Return loads in full candidates, rounded; 0 only for a basket without candidates."""
    return np.maximum((load + _WHOLE**2 // 2) // _WHOLE**2, load > 0)


def _histogram(load: Integers, edges: tuple[int, ...]) -> Integers:
    """Return the number of baskets in each bin of loads, in fine units."""
    counts = np.bincount(_whole(load), minlength=edges[-1])
    return np.asarray(np.add.reduceat(counts, edges[:-1]).astype(np.int64) << _FINE)
