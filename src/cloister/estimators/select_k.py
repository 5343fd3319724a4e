"""``select_k``: k-means that also selects the number of clusters, under one budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.core.errors import PlanError
from cloister.estimators.base import public_seed
from cloister.estimators.kmeans import DPKMeans
from cloister.estimators.release import BudgetParameters, release
from cloister.estimators.tables import read_silos
from cloister.protocol.plan import Plan
from cloister.tasks.clustering.gap_statistic import GapCurve
from cloister.tasks.clustering.select_k import SelectK

if TYPE_CHECKING:
    from cloister.privacy.ledger import Ledger


@dataclass(frozen=True)
class KSelection:
    """The selected number of clusters, the curve that selected it, and the clusters.

    Parameters
    ----------
    k : int
    curve : GapCurve
        The gap of every candidate, its uncertainty band, and the objective.
    model : DPKMeans
        Fitted with `k` clusters; its ``labels_`` are not private.
    """

    k: int
    curve: GapCurve
    model: DPKMeans

    def _repr_html_(self) -> str | None:
        return self.model._repr_html_()

    @property
    def plan(self) -> Plan:
        """The plan of the release of both selection and clusters."""
        return self.model.plan_

    @property
    def spent(self) -> float:
        """Epsilon spent on selection and clusters together, at the plan's delta."""
        return self.model.spent_


def select_k(
    X: Any,
    candidates: Sequence[int] = range(2, 13),
    *,
    epsilon: float,
    bounds: Any,
    nominal_n: int | None = None,
    delta: float | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
    random_state: Any = None,
) -> KSelection:
    """Select the number of clusters from released counts, and release the centres for it.

    Parameters
    ----------
    X : array_like of shape (n_samples, n_features), DataFrame, path, or list of these
        A list has one element per silo.
    candidates : sequence of int
        Consecutive numbers of clusters, such as ``range(2, 13)``. They are public: choose them
        without use of the records.
    epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss, random_state
        As for :class:`DPKMeans`. The budget covers selection and clusters together.

    Notes
    -----
    Errors are those of :meth:`DPKMeans.fit`. The cost is that of ``DPKMeans(k, algorithm="auto")``
    for one known number; :mod:`cloister.tasks.clustering.select_k` gives the reason.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister import select_k
    >>> X = np.random.default_rng(0).normal([[0.0], [5.0], [10.0]], 1, (3, 900)).reshape(-1, 1)
    >>> chosen = select_k(X, range(2, 7), epsilon=2.0, bounds=(-5, 15), nominal_n=2700)
    >>> chosen.model.cluster_centers_.shape == (chosen.k, 1)
    True
    """
    numbers = [int(c) for c in candidates if isinstance(c, Integral)]
    # The gap statistic compares each number with the next.
    if not numbers or len(numbers) != len(candidates) or np.any(np.diff(numbers) != 1):
        raise PlanError(
            f"candidates must be consecutive integers, such as range(2, 13), got {candidates!r}."
        )
    spending = BudgetParameters(
        epsilon, bounds, nominal_n, delta, ledger, dataset, frac_bits, max_loss
    )
    # The model of DPKMeans, so that predictions and storage are the same.
    given = {name: value for name, value in vars(spending).items() if name != "columns"}
    model = DPKMeans(numbers[-1], random_state=random_state, **given)
    data = read_silos(X, spending)
    result = release(
        SelectK,
        data,
        spending,
        min_clusters=numbers[0],
        max_clusters=numbers[-1],
        public_seed=public_seed(random_state),
    )
    results = result.results
    k = int(results["k"][0])
    model.n_clusters = k  # the model had the largest candidate, since k was not known
    model._keep(result)
    model._finish(data)
    curve = GapCurve(
        candidates=np.array(numbers),
        gap=results["gap"],
        low=results["gap_low"],
        high=results["gap_high"],
        objective=results["objective"],
        chosen=k,
    )
    return KSelection(k, curve, model)
