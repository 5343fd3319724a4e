"""Association rules and their measures from released supports of itemsets; all post-processing.

Measures are computed from the estimated supports. Their intervals are those of the same measures
of the counted supports, extended to the estimate.

References
----------
Agrawal, Imielinski and Swami, "Mining association rules between sets of items in large databases",
SIGMOD 1993, section 2 (support and confidence). Brin, Motwani, Ullman and Tsur, "Dynamic itemset
counting", SIGMOD 1997, section 4 (lift). Piatetsky-Shapiro, "Discovery, analysis and presentation
of strong rules", 1991 (leverage).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import hypot, sqrt
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Results
from cloister.core.display import Display, Estimate, Graph, Summary, Table, between
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import ratio_interval

if TYPE_CHECKING:
    import pandas as pd

_Z = INTERVAL_95["gaussian"]
_SURELY = 1.5  # half-widths of a subset up to which a set may have support: 99.7 %, on one side
# A set is shown because its noisy support is d deviations above the minimum, so z deviations are
# needed below it: P(Z > z) = 0.025 P(Z > z - d), and at most 2.81.
_SHOWN = {1.5: 2.81, 2.0: 2.33, 2.5: 2.08, 3.0: 2.0, 3.5: _Z}
_DIVISOR = 2.5  # half-widths of its noise that a divisor must exceed; a ratio is then known to 40 %
_MOST_ROWS = 60  # of a table in the report; the result has all rows
_MOST_EDGES = 24  # more edges make the graph unreadable
_NOTE = (
    "Shares of all baskets. The 95 % intervals cover the exact support, also of sets in large "
    "baskets. The estimate also uses the supports of subsets, so it may be far from the middle."
)


@dataclass(frozen=True)
class Itemset:
    """A set of items and its support.

    Parameters
    ----------
    support : float in [0, 1]
        The best estimate, as a share of all baskets.
    counted, half_width : float
        The noisy support as counted, and its margin of error, by noise and by the unknown loads
        of the largest baskets with the set.
    most : float in [0, 1]
        The upper end of the intervals of its subsets, at a higher level.
    shown : float, >= 1
        Factor of the margin below `counted`, because noise helped to show the set.
    """

    items: tuple[str, ...]
    support: float
    counted: float
    half_width: float
    most: float = 1.0
    shown: float = 1.0

    @property
    def low(self) -> float:
        """Lower end of the interval, cut at 0; at most the estimate."""
        return min(self.support, max(0.0, self.counted - self.shown * self.half_width))

    @property
    def high(self) -> float:
        """Upper end of the interval, cut at 1 and at a possible `most`; at least the estimate."""
        high = min(1.0, self.counted + self.half_width)
        possible = self.counted - self.half_width < self.most
        return max(self.support, min(high, self.most) if possible else high)

    def noise(self, spread: float) -> float:
        """Return the margin of error without that of the number of baskets.

        `spread` is the relative half-width of that number.
        """
        return sqrt(max(self.half_width**2 - (self.counted * spread) ** 2, 0.0))


@dataclass(frozen=True)
class Rule:
    """A rule: baskets with the antecedent tend to have the consequent, too.

    Parameters
    ----------
    support : Estimate
        Share of the baskets with both.
    confidence : Estimate
        Share of the baskets with the antecedent that have the consequent.
    lift : Estimate
        Ratio of the support to the support by chance.
    leverage : Estimate
        Difference of the support and the support by chance.
    """

    antecedent: tuple[str, ...]
    consequent: tuple[str, ...]
    support: Estimate
    confidence: Estimate
    lift: Estimate
    leverage: Estimate

    def __str__(self) -> str:
        return f"{_joined(self.antecedent)} → {_joined(self.consequent)}"


def itemsets_of(
    results: Results, columns: Sequence[str], min_support: float = 0.0
) -> tuple[Itemset, ...]:
    """Return the counted sets, by ascending size and descending support.

    `results` are those of "apriori", and `columns` is the catalogue. Sets with an estimated support
    below `min_support` are excluded.
    """
    values = (results[name].tolist() for name in ("sets", "support", "counted", "half_width"))
    counted = [
        Itemset(tuple(columns[int(item)] for item in members if item >= 0), *numbers)
        for members, *numbers in zip(*values, strict=True)
    ]
    ends = {frozenset(s.items): s.counted + _SURELY * s.half_width for s in counted}
    itemsets = [
        replace(s, most=min(_of_subsets(s, ends)), shown=_shown(s, min_support))
        for s in counted
        if s.support >= min_support
    ]
    return tuple(sorted(itemsets, key=lambda s: (len(s.items), -s.support)))


def _of_subsets(itemset: Itemset, ends: Mapping[frozenset[str], float]) -> list[float]:
    """Return the known ends of all proper subsets, each at least 0, and 1."""
    sizes = range(1, len(itemset.items))
    subsets = (frozenset(part) for n in sizes for part in combinations(itemset.items, n))
    return [1.0, *(max(0.0, ends[part]) for part in subsets if part in ends)]


def _shown(itemset: Itemset, min_support: float) -> float:
    """Return the factor of the lower margin of a set that is shown above a minimum.

    The interval given a threshold is that of Lee, Sun, Sun and Taylor, "Exact post-selection
    inference", Annals of Statistics 2016. Its greatest length is that of Andrews, Kitagawa and
    McCloskey, "Inference on winners", Quarterly Journal of Economics 2024.
    """
    if not (min_support > 0 and itemset.half_width > 0):
        return 1.0
    above = (itemset.support - min_support) / (itemset.half_width / _Z)
    return float(np.interp(above, list(_SHOWN), list(_SHOWN.values()))) / _Z


def relative_error(results: Results) -> float:
    """Return the relative half-width of the number of baskets."""
    return float(results["baskets_half_width"][0]) / max(float(results["baskets"][0]), 1.0)


def rules_of(
    itemsets: Iterable[Itemset],
    baskets: float,
    *,
    spread: float = 0.0,
    min_confidence: float = 0.0,
    min_lift: float = 0.0,
) -> tuple[Rule, ...]:
    """Return all rules within the sets that reach both minima, by descending lift.

    A rule requires its set, its antecedent and its consequent among the sets. It is left out if the
    noise of the antecedent's support allows nearly any confidence. A lift is at most the number of
    baskets. `spread` is the relative half-width of that number.
    """
    by_items = {frozenset(s.items): s for s in itemsets}
    rules = []
    for items, both in by_items.items():
        for size in range(1, len(items)):
            for left in combinations(both.items, size):
                antecedent = by_items.get(frozenset(left))
                consequent = by_items.get(items - set(left))
                # A subset may be missing, if its noisy count is below `min_count`.
                if antecedent is None or consequent is None or not antecedent.support:
                    continue
                if antecedent.counted <= _DIVISOR * antecedent.noise(spread):
                    continue
                rule = _rule(both, antecedent, consequent, max(baskets, 1.0), spread)
                if rule.confidence.value >= min_confidence and rule.lift.value >= min_lift:
                    rules.append(rule)
    return tuple(sorted(rules, key=lambda rule: -rule.lift.value))


def _rule(both: Itemset, left: Itemset, right: Itemset, baskets: float, spread: float) -> Rule:
    """Return a rule with its measures; the three noises are independent.

    The number of baskets cancels in a confidence. It is a factor of a lift.
    """
    chance = left.support * right.support
    counted = left.counted * right.counted
    beside = left.noise(spread), right.noise(spread)
    # First order: the noise of the product of the two supports.
    product = hypot(left.counted * beside[1], right.counted * beside[0])
    rest = hypot(product, (both.counted - 2 * counted) * spread)
    own = both.noise(spread)
    low, high = (hypot(width, rest) for width in (both.shown * own, own))
    leverage = both.counted - counted
    return Rule(
        left.items,
        right.items,
        between(both.support, both.low, both.high),
        _ratio(both, both.support / left.support, spread, (left.counted, beside[0]), 1.0),
        replace(
            _ratio(
                both,
                both.support / chance if chance else 0.0,
                *(spread, (counted, hypot(product, counted * spread)), baskets),
            ),
            null=1.0,  # without a connection
        ),
        _held(both.support - chance, max(-1.0, leverage - low), min(1.0, leverage + high)),
    )


def _ratio(
    both: Itemset, value: float, spread: float, divisor: tuple[float, float], most: float
) -> Estimate:
    """Return a ratio to a support and its margin, with Fieller's interval within the possible."""
    low, high = ratio_interval(
        np.full((1, 2), both.counted),
        np.array(divisor[:1]),
        sum_std=both.noise(spread) / _Z * np.array([both.shown, 1.0]),
        count_std=divisor[1] / _Z,
        box=(0.0, most),
    )
    return _held(value, float(low[0, 0]), float(high[0, 1]))


def _held(value: float, low: float, high: float) -> Estimate:
    """Return an estimate with an interval that also holds the estimate itself."""
    return between(value, min(low, value), max(high, value))


def itemsets_frame(itemsets: Sequence[Itemset]) -> pd.DataFrame:
    """Return sets as a table: items, size, support, counted, low, high."""
    import pandas as pd  # slow to import, and needed for tables only

    names = ("support", "counted", "low", "high")
    rows = [
        {"items": s.items, "size": len(s.items), **{name: getattr(s, name) for name in names}}
        for s in itemsets
    ]
    return pd.DataFrame(rows, columns=["items", "size", *names])


def rules_frame(rules: Sequence[Rule]) -> pd.DataFrame:
    """Return rules as a table: antecedent, consequent, and each measure with both ends."""
    import pandas as pd

    cells = {
        f"{name}{end and '_'}{end}": (name, end or "value")
        for name in ("support", "confidence", "lift", "leverage")
        for end in ("", "low", "high")
    }
    rows = [
        {
            "antecedent": rule.antecedent,
            "consequent": rule.consequent,
            **{key: getattr(getattr(rule, name), end) for key, (name, end) in cells.items()},
        }
        for rule in rules
    ]
    return pd.DataFrame(rows, columns=["antecedent", "consequent", *cells])


def summary_of(
    results: Results,
    columns: Sequence[str],
    min_support: float,
    min_confidence: float,
    min_lift: float,
) -> Summary:
    """Return the rule with the largest lift, or the most frequent set, and how many are shown."""
    itemsets = itemsets_of(results, columns, min_support)
    baskets = float(results["baskets"][0])
    least = {"min_confidence": min_confidence, "min_lift": min_lift}
    rules = rules_of(itemsets, baskets, spread=relative_error(results), **least)
    if rules:
        first = rules[0]
        distinct = sum(bool(rule.lift.is_distinct) for rule in rules)
        return Summary(
            result=(
                f"The rule with the largest lift of {len(rules)}: {first}, lift ",
                *(first.lift, ", confidence ", first.confidence, "."),
            ),
            reliability=f"The lift of {distinct} of {len(rules)} rules differs from 1 beyond the "
            "privacy noise.",
        )
    if not itemsets:
        return Summary(result=f"No item has a support of {min_support:g}.")
    top = max(itemsets, key=lambda s: s.support)
    share = between(top.support, top.low, top.high)
    return Summary(result=(f"Most frequent: {_joined(top.items)}, a share of ", share, "."))


def displays_of(
    results: Results,
    columns: Sequence[str],
    min_support: float,
    min_confidence: float,
    min_lift: float,
) -> tuple[Display, ...]:
    """Return a table of frequent sets, a table of rules, and a graph of the rules."""
    itemsets = itemsets_of(results, columns, min_support)
    baskets = float(results["baskets"][0])
    least = {"min_confidence": min_confidence, "min_lift": min_lift}
    rules = rules_of(itemsets, baskets, spread=relative_error(results), **least)
    longest = max((len(s.items) for s in itemsets), default=1)
    each = max(1, _MOST_ROWS // longest)  # else small sets, which are frequent, fill the table
    by_size = [[s for s in itemsets if len(s.items) == n][:each] for n in range(1, longest + 1)]
    rows = tuple(
        (_joined(s.items), between(s.support, s.low, s.high)) for sets in by_size for s in sets
    )
    frequent = Table(
        f"Frequent itemsets: {len(rows)} of {len(itemsets)}", ("items", "support"), rows, _NOTE
    )
    if longest == 1:  # rules need sets of two items
        return (frequent,)
    listed = tuple(
        (str(r), r.support, r.confidence, r.lift, r.leverage) for r in rules[:_MOST_ROWS]
    )
    headings = ("rule", "support", "confidence", "lift", "leverage")
    table = Table(f"Rules: {len(listed)} of {len(rules)}", headings, listed, _NOTE)
    return (frequent, table, *(graph_of(rules, itemsets),) * bool(rules))


def graph_of(rules: Sequence[Rule], itemsets: Sequence[Itemset]) -> Graph:
    """Return the rules with the largest lift as arrows between sets, once for each pair of sets.

    The rule with the larger confidence of the two between a pair is drawn.
    """
    best: dict[frozenset[tuple[str, ...]], Rule] = {}
    for rule in rules:
        pair = frozenset((rule.antecedent, rule.consequent))
        if pair in best:
            best[pair] = max(best[pair], rule, key=lambda r: r.confidence.value)
        elif len(best) < _MOST_EDGES:
            best[pair] = rule
    drawn = tuple(best.values())
    nodes = list(dict.fromkeys(end for r in drawn for end in (r.antecedent, r.consequent)))
    supports = {s.items: s.support for s in itemsets}
    ends = [(nodes.index(r.antecedent), nodes.index(r.consequent)) for r in drawn]
    return Graph(
        "Graph of the rules",
        tuple(map(_joined, nodes)),
        np.array([supports[items] for items in nodes]),
        tuple(
            (*pair, r.lift.value, f"{r.confidence.value:.0%}")
            for pair, r in zip(ends, drawn, strict=True)
        ),
        f"The {len(drawn)} pairs with the largest lift. An arrow leads from antecedent to "
        "consequent; its label is the confidence, and its width grows with the lift. Areas are "
        "supports.",
    )


def _joined(items: Sequence[str]) -> str:
    return " + ".join(items)
