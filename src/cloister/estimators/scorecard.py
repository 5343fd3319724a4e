"""``DPScorecard``: what columns say of an event, as tables of pandas and pictures."""

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
        A column of two cells; the last is the event.
    characteristics, edges, over, group, decision, cutoff
        As for :class:`~cloister.tasks.tables.scorecard.Scorecard`.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
        As for every :class:`~cloister.estimators.base.PrivateEstimator`; bounds are a schema.

    Attributes
    ----------
    columns_ : DataFrame
        Of each characteristic the information value, and of numbers Kolmogorov-Smirnov and Gini.
    bins_ : DataFrame
        Of each bin the weight of evidence and the part with the event.

    Notes
    -----
    ``to_frame()`` has every number with both intervals, also of stability and fairness.

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
        values = self.to_frame()["value"]
        self.columns_: pd.DataFrame = values["Characteristics"].unstack(sort=False)
        self.bins_: pd.DataFrame = values["Bins"].unstack(sort=False)
