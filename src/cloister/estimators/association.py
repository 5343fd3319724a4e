"""``mine_rules``: association rules over baskets that stay in their silos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cloister.core.errors import DataError, PlanError
from cloister.data import Baskets, SqlQuery, as_silos
from cloister.data.schema import Schema, catalogue_schema
from cloister.estimators.release import BudgetParameters, ReleasedModel, release
from cloister.estimators.tables import SiloData, by_schema, matched
from cloister.tasks.patterns.apriori import Apriori
from cloister.tasks.patterns.association import (
    Itemset,
    Rule,
    itemsets_frame,
    itemsets_of,
    relative_error,
    rules_frame,
    rules_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from cloister.privacy.ledger import Ledger


@dataclass(frozen=True)
class RuleSet(ReleasedModel):
    """Released itemsets, and the rules computed from them.

    Parameters
    ----------
    result : Release
        Release of a job with the task ``apriori``.

    Examples
    --------
    ``rules.itemsets`` and ``rules.rules`` are tuples. ``rules.itemsets_frame()`` and
    ``rules.to_frame()`` are tables, and ``rules.displays()`` are the displays of a report.
    """

    # A release from a file may come from any task.
    def __post_init__(self) -> None:
        if not isinstance(self.plan.task, Apriori):
            raise PlanError(
                f"result must come from the task 'apriori', got {self.plan.task.name!r}."
            )

    @property
    def _task(self) -> Apriori:
        return cast(Apriori, self.plan.task)

    @cached_property
    def itemsets(self) -> tuple[Itemset, ...]:
        """The frequent sets, the smaller ones first."""
        return itemsets_of(self.result.results, self.plan.columns, self._task.min_support)

    @cached_property
    def counted(self) -> tuple[Itemset, ...]:
        """All counted sets, frequent or not."""
        return itemsets_of(self.result.results, self.plan.columns)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules between frequent sets that reach the minimums, largest lift first."""
        # Rules follow from released supports, so these limits need no budget.
        minimums = {name: getattr(self._task, name) for name in ("min_confidence", "min_lift")}
        spread = relative_error(self.result.results)
        return rules_of(self.itemsets, self.baskets, spread=spread, **minimums)

    @property
    def baskets(self) -> float:
        """Noisy number of baskets; supports are fractions of it."""
        return float(self.result.results["baskets"][0])

    def itemsets_frame(self) -> pd.DataFrame:
        """Return the frequent sets as a table: items, size, support, counted, low, high."""
        return itemsets_frame(self.itemsets)

    def to_frame(self, title: str | None = None) -> pd.DataFrame:
        """Return the rules as a table: antecedent, consequent, and measures with intervals.

        With the title of a display, it is its table of texts.
        """
        return rules_frame(self.rules) if title is None else super().to_frame(title)

    def save(self, path: str | Path) -> None:
        """Write the released supports as JSON, and their words to ``PATH.sums``."""
        self.result.save(path)


def mine_rules(
    X: Any,
    *,
    epsilon: float,
    catalogue: Schema | Sequence[str] | str | Path | None = None,
    min_support: float = 0.01,
    max_size: int = 2,
    min_confidence: float = 0.0,
    min_lift: float = 1.0,
    min_count: float = 0.0,
    sensitive: Sequence[str | Sequence[str]] = (),
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
    **options: Any,
) -> RuleSet:
    """Release itemsets and association rules under one budget, in one round for each set size.

    Parameters
    ----------
    X : table of 0 and 1, path, Baskets, SqlQuery, list of baskets, or list of these
        One row for each basket and one column for each item; a list has one element per silo. A
        list of lists or sets of items is the baskets of one silo, and a list of these has one for
        each silo. Use :class:`cloister.data.Baskets` for files with lines of items and for tables
        with one item per row.
    catalogue : Schema, sequence of str, or path of a file with an item on each line
        The public items. By default the header of the tables, which is then public. Baskets have no
        header, and their items are not public.
    min_support, max_size, min_confidence, min_lift, min_count, sensitive
        As for :class:`~cloister.tasks.patterns.apriori.Apriori`. All silos see `sensitive`.
    epsilon, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`.
    options
        Further options of the task: `most_candidates`, `basket_size`, `limit`, `public_seed`.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from cloister import mine_rules
    >>> rng = np.random.default_rng(0)
    >>> bread, milk = rng.random((2, 5000)) < 0.3
    >>> table = pd.DataFrame({"bread": bread, "butter": bread & (rng.random(5000) < 0.6),
    ...                       "milk": milk}).astype(int)
    >>> found = mine_rules(table, epsilon=1.0, nominal_n=5000, min_support=0.05)
    >>> str(found.rules[0]) in ("bread → butter", "butter → bread")
    True

    >>> lists = [["bread", "milk"], ["tea"]] * 1000
    >>> found = mine_rules(lists, catalogue=["bread", "milk", "tea"], epsilon=1.0, nominal_n=2000)
    >>> round(found.itemsets[0].support, 1)
    0.5
    """
    if wrong := {"items", "bounds"} & options.keys():
        raise PlanError(f"the public items are the parameter catalogue, got {min(wrong)!r}.")
    silos = as_silos(_with_baskets(X))
    schema = _schema(silos, catalogue, dataset)
    agreed = catalogue if isinstance(catalogue, Schema) else None
    spending = BudgetParameters(
        epsilon, agreed, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    options |= {
        "min_support": min_support,
        "max_size": max_size,
        "min_confidence": min_confidence,
        "min_lift": min_lift,
        "min_count": min_count,
        "sensitive": sensitive,
    }
    data = SiloData(schema, by_schema(silos, schema, spending))
    return RuleSet(release(Apriori, data, spending, **options))


def _with_baskets(X: Any) -> Any:
    """Return :class:`Baskets` for baskets in memory, or one for each silo of a list of silos.

    A basket is a list or set of items, so a list of lists of these is a list of silos. Nested lists
    without an item are one silo, because the number of silos is public.
    """
    X = _listed([*map(_listed, X)] if isinstance(X, list | tuple) else X)
    if not isinstance(X, list | tuple) or not any(isinstance(part, _BASKET) for part in X):
        return X
    for i, part in enumerate(X):
        if not isinstance(part, _BASKET) and not hasattr(part, "shape"):
            raise DataError(
                f"basket {i} of X must be a list or set of items, got {part!r}; give [] for an "
                "empty basket."
            )
    if not all(isinstance(part, _BASKET) for part in X):
        return X
    inside = [item for part in X for item in part]
    baskets = [isinstance(item, _BASKET) for item in inside]
    items = [item for part in inside for item in (part if isinstance(part, _BASKET) else [part])]
    if items and len(set(map(len, X))) > 1 and not any(map(_is_item, inside)):
        raise DataError(
            f"items of baskets must be texts, got {items[0]!r}; give each item as str(item)."
        )
    # Rows without any text are rows of 0 and 1 of a table.
    if items and not any(isinstance(item, str) for item in items):
        return X
    if any(baskets) and not all(baskets):
        raise PlanError(
            "X must be the baskets of one silo, or one list of baskets for each silo; got a list "
            "of both."
        )
    return [Baskets(list(silo)) for silo in X] if items and any(baskets) else Baskets(X)


def _listed(source: Any) -> Any:
    """Return a Series or array of baskets as a list, and any other source unchanged."""
    is_one = getattr(source, "ndim", 0) == 1 and hasattr(source, "tolist")
    baskets = source.tolist() if is_one else []
    return baskets if any(isinstance(basket, _BASKET) for basket in baskets) else source


def _is_item(item: Any) -> bool:
    """Return True for a text or a basket, which a row of a table of 0 and 1 cannot have."""
    return isinstance(item, (str, *_BASKET))


# Sets too, because a basket has no order.
_BASKET = (list, tuple, set, frozenset)


def _schema(silos: Sequence[Any], catalogue: Any, dataset: str | None) -> Schema:
    """Return the schema of a catalogue or, without one, of the header of all tables."""
    if isinstance(catalogue, Schema):
        return catalogue
    if catalogue is None:
        # Their items are known only from records, so they are not public.
        if any(isinstance(silo, Baskets | SqlQuery) for silo in silos):
            raise PlanError(
                "give a catalogue of the public items, from a price list or a range of goods; only "
                "tables with the same columns do not need one."
            )
        _, catalogue, _ = matched(silos)
    return catalogue_schema(catalogue, dataset=dataset or "unnamed")
