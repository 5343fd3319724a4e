"""``DPScorecard``: weights of evidence of columns for an event, as pandas tables and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cloister.app.release import Release
from cloister.estimators.base import PrivateEstimator
from cloister.protocol.task import Task
from cloister.tasks.tables.scorecard import Scorecard

if TYPE_CHECKING:
    import pandas as pd


@dataclass(kw_only=True, eq=False, repr=False)
class DPScorecard(PrivateEstimator):
    """Weights of evidence, separation, stability and fairness, in one release.

    Parameters
    ----------
    target : str
        A column with two values; the last is the event.
    characteristics, edges, over, group, decision, cutoff
        As for :class:`~cloister.tasks.tables.scorecard.Scorecard`.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`; bounds are a schema.

    Attributes
    ----------
    columns_ : DataFrame
        Information value of each characteristic, and for numbers Kolmogorov-Smirnov and Gini.
    bins_ : DataFrame
        Weight of evidence of each bin, and the share of its records with the event.

    Notes
    -----
    ``to_frame()`` has all numbers with both intervals, including stability and fairness.

    Examples
    --------
    >>> import pandas as pd
    >>> from cloister import DPScorecard, Schema
    >>> loans = pd.DataFrame({"home": ["own", "rent"] * 2000, "default": [0, 0, 0, 1] * 1000})
    >>> home = {"name": "home", "type": "category", "categories": ["own", "rent"]}
    >>> schema = Schema(
    ...     dataset="loans", unit="row", columns=[home, {"name": "default", "type": "boolean"}]
    ... )
    >>> card = DPScorecard(target="default", epsilon=1.0, bounds=schema, nominal_n=4000)
    >>> bool(card.fit(loans).bins_.loc["home: rent", "weight of evidence"] < -0.5)
    True
    """

    _task: ClassVar[type[Task]] = Scorecard

    target: str
    characteristics: Sequence[str] = ()
    edges: Mapping[str, Sequence[float]] | None = None
    over: str | None = None
    group: str | None = None
    decision: str | None = None
    cutoff: float | None = None

    def _keep(self, result: Release) -> None:
        super()._keep(result)
        # From the displays, so that attributes and report have the same names.
        values = self.to_frame()["value"]
        self.columns_: pd.DataFrame = values["Characteristics"].unstack(sort=False)
        self.bins_: pd.DataFrame = values["Bins"].unstack(sort=False)
