"""Coefficients in data units with their intervals, and how a report shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from cloister.core.arrays import Flags, Floats, Results
from cloister.core.display import Display, Estimate, Summary, Table
from cloister.core.numerals import NOT_KNOWN
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.interval_tables import bars_of, number_of
from cloister.tasks.population import sampled
from cloister.tasks.regression.engine import Solution
from cloister.tasks.supervised.contrasts import effects_summary, power_of, to_reference

NOTE = (
    "[ , ] are 95 % confidence intervals (privacy noise only) for the maximum of the likelihood of "
    "the same records; a population interval includes the error of sampling{valid}."
)
UNKNOWN = "Noise hides the coefficients that are not known: give more records, or join categories."
REFERENCE = "reference"
_RATIOS = {
    "binomial": "odds ratio",
    "poisson": "ratio of rates",
    "negative-binomial": "ratio of rates",
    "gamma": "ratio of means",
}
_CHANCE = 1e-3  # of a warning of sites that are alike
_PICTURES = {name: name.replace("ratio", "ratios", 1).capitalize() for name in _RATIOS.values()}
_Z = INTERVAL_95["gaussian"]
_MOST_LOST = 1 / 3  # part of squared residuals, beyond which their tail is not known


@dataclass(frozen=True)
class Scale:
    """From weights of rows to coefficients in data units.

    Parameters
    ----------
    back : ndarray of shape (n_coefficients, q)
        See :meth:`.design.Design.back`.
    levels, reference : tuple of int
        Of each term: its number of categories, and the category that has no weight.
    wanted : tuple of int
        The category of each term to which others are compared; empty for `reference`.
    boxes : tuple of (low, high)
    unit, middle : float, data units of the target
        Unit of the margin, and what is added to it.
    """

    back: Floats
    levels: tuple[int, ...]
    reference: tuple[int, ...]
    wanted: tuple[int, ...]
    boxes: tuple[tuple[float, float], ...]
    unit: float
    middle: float

    @property
    def compared(self) -> Floats:
        """Return the matrix from coefficients to those relative to the wanted categories."""
        return to_reference(self.levels, self.wanted or self.reference)

    @property
    def in_box(self) -> Floats:
        """Return the matrix from weights to coefficients of numbers in ``[-1, 1]``."""
        return np.asarray(self.unit * self.compared @ self.back)

    @property
    def in_data(self) -> Floats:
        """Return the matrix from weights to coefficients in data units, the intercept last."""
        matrix, place = self.in_box.copy(), 0
        for levels, (low, high) in zip(self.levels, self.boxes, strict=True):
            if not levels:  # the box is around its middle, data units around 0
                matrix[place] /= (high - low) / 2
                matrix[-1] -= matrix[place] * (high + low) / 2
            place += levels or 1
        return matrix

    def known(self, weights: Flags) -> Flags:
        """Return a flag of each coefficient: the weights that it needs are known."""
        unknown = ((self.back[:-1, :-1] != 0) @ ~weights[:-1]).astype(np.float64)
        of_others = (self.compared[:, :-1] != 0) @ unknown
        # Terms that left the equations are part of the constant, which stays known.
        of_others[-1] += not weights[-1]
        return np.asarray(of_others == 0, dtype=bool)

    @property
    def are_references(self) -> Flags:
        """Flags of the categories to which others are compared."""
        return np.asarray(~self.compared.any(axis=1), dtype=bool)


def results_of(
    scale: Scale,
    solution: Solution,
    sampling: Floats,
    residual_square: tuple[float, float, float] | None,
    units: tuple[float, float],
) -> Results:
    """Return coefficients with their intervals.

    `residual_square` and `units` are numbers with their noise; to the first one belongs what its
    cut probably took away.

    Returns
    -------
    dict
        In data units, ``coef`` of shape (n_columns_of_design,) and ``intercept`` of shape (1,),
        relative to reference categories. Each has ``..._low``, ``..._high``,
        ``..._population_low`` and ``..._population_high``. A coefficient that is not known is not a
        number, and its intervals have no bound. ``coef_shrunk`` and ``intercept_shrunk`` are for
        predictions. ``covariance`` of the noise and ``sampling_covariance`` have the shape
        (n_columns_of_design + 1,) twice. ``reference`` is 1 for a category to which others are
        compared. ``grid_coef`` are coefficients for predictions from numbers in ``[-1, 1]``, the
        intercept last. ``records`` and ``records_half_width``, of shape (1,), are the noisy number
        of units. ``residual_std`` of shape (1,), of least squares only, has an interval,
        without an upper bound where noise hides how far residuals reach.
    """
    to_data, shift = scale.in_data, np.zeros(len(scale.back))
    shift[-1] = scale.middle
    noise, spread = (to_data @ matrix @ to_data.T for matrix in (solution.noise, sampling))
    known = scale.known(solution.known) | scale.are_references
    values = to_data @ solution.weights + shift
    margin = _Z * np.sqrt(np.maximum(np.diag(noise), 0.0))
    whole = sampled(Estimate(values, values - margin, values + margin), np.diag(spread))
    found = {}
    for name, part in whole.named("coef").items():
        bound = {"low": -np.inf, "high": np.inf}.get(name.rpartition("_")[2], np.nan)
        part = np.where(known, part, bound)
        found[name] = part[:-1]
        found[name.replace("coef", "intercept")] = part[-1:]
    # No neutral number: a sum with a coefficient that is not known is not known either.
    unknown = np.where(known, 1.0, np.nan)
    likely = to_data @ solution.likely + shift
    results = {
        **found,
        "coef_shrunk": likely[:-1],
        "intercept_shrunk": likely[-1:],
        "covariance": noise * np.outer(unknown, unknown),
        "sampling_covariance": spread * np.outer(unknown, unknown),
        "reference": scale.are_references.astype(np.float64)[:-1],
        "grid_coef": scale.in_box @ solution.likely + shift,
        "records": np.array([units[0]]),
        "records_half_width": np.array([_Z * units[1]]),
    }
    if residual_square is not None:
        value, error, lost = residual_square
        most = value + _Z * error + lost if lost <= _MOST_LOST * value else np.inf
        ends = np.maximum([value, value - _Z * error, most], 0.0)
        of_target = scale.unit * np.sqrt(ends)
        results |= Estimate(*of_target).named("residual_std")
    return results


def site_change_of(scale: Scale, solution: Solution, change: Floats, covariance: Floats) -> Results:
    """Return the change of coefficients by a term of each silo, from that of weights.

    Returns
    -------
    dict
        ``site_change`` of shape (n_columns_of_design,), data units, with ``..._low`` and
        ``..._high``: 95 % intervals of noise and sampling. Not a number, without a bound, where
        noise hides it.
    """
    known = scale.known(solution.known & np.append(np.isfinite(change[:-1]), True))[:-1]
    to_data = scale.in_data[:-1]
    values = to_data @ np.nan_to_num(change)
    spread = np.diag(to_data @ np.nan_to_num(covariance) @ to_data.T)
    margin = _Z * np.sqrt(np.maximum(spread, 0.0))
    values, margin = np.where(known, values, np.nan), np.where(known, margin, np.inf)
    low, high = (np.nan_to_num(values) + way * margin for way in (-1, 1))
    return Estimate(values, low, high).named("site_change")


class _Model(Protocol):
    """The parts of a task that a report uses."""

    @property
    def family(self) -> str:
        """Name of the family."""

    @property
    def sandwich(self) -> bool:
        """True if population intervals are valid for any variance."""

    @property
    def boxes(self) -> tuple[float, ...]:
        """Width of the public range of each number, 1 for a category; without the intercept."""


def _cells(results: Results) -> list[Estimate]:
    of = (Estimate.of(results, name) for name in ("coef", "intercept"))
    return [cell for one in of for cell in one.cells()]


def coefficients_of(results: Results, names: Sequence[str]) -> dict[str, Any]:
    """Return the coefficients for programs in other languages, the intercept last.

    Returns
    -------
    dict
        ``names``, ``coef``, and ``known`` and ``reference``, true for a category to which others
        are compared, have an entry for each coefficient. ``noise_cov`` and ``sampling_cov`` are
        their covariances, in data units. ``n`` is the noisy number of units, with half the width
        of its 95 % interval. ``residual_std`` is None but for least squares.
    """
    coef = np.concatenate([results["coef"], results["intercept"]])
    residual = results.get("residual_std")
    return {
        "names": tuple(names),
        "coef": coef,
        "known": np.isfinite(coef),
        "reference": np.append(results["reference"] == 1, False),
        "noise_cov": results["covariance"],
        "sampling_cov": results["sampling_covariance"],
        "n": results["records"][0],
        "n_half_width": results["records_half_width"][0],
        "residual_std": None if residual is None else residual[0],
    }


def doubts_of(results: Results) -> Iterator[str]:
    """Yield a warning if no coefficient is known."""
    if np.isnan(results["coef"])[results["reference"] == 0].all():
        yield (
            "no coefficient is known, since noise hides all of them: give more records, or a "
            "larger epsilon."
        )


def displays_of(
    model: _Model, results: Results, target: str, names: Sequence[str], unknown: str = UNKNOWN
) -> tuple[Display, ...]:
    """Return a table and a picture of the coefficients, the intercept last.

    `unknown` is the sentence with the reason for those that are not known.
    """
    note = NOTE.format(valid="" if model.sandwich else ", if the model is true")
    ratio, rows = _RATIOS.get(model.family), []
    references, cells = np.append(results["reference"], 0.0), _cells(results)
    shown: list[Estimate | str] = []
    for name, reference, cell in zip(names, references, cells, strict=True):
        text: Estimate | str = cell
        if reference:
            text = REFERENCE
        elif np.isnan(cell.value):
            text = NOT_KNOWN
        of_ratio = [] if ratio is None else [text]
        if ratio and isinstance(text, Estimate):
            of_ratio = [replace(text.mapped(power_of), null=1.0)]
        shown.append(of_ratio[0] if ratio else text)
        rows.append((name, text, *of_ratio))
    if NOT_KNOWN in shown:
        note += f" {unknown}"
    if "residual_std" in results:
        rows.append(("residual deviation", number_of(results, "residual_std")))
    heads = ("column", "coefficient", *([ratio] if ratio else []))
    title = _PICTURES[ratio] if ratio else "Coefficients, a number rises over its whole range"
    bars = bars_of(
        title,
        names[:-1],
        # Bars are side by side, but data units of columns differ. A ratio over a range may be huge.
        [
            cell.mapped(partial(np.multiply, box))
            if isinstance(cell, Estimate) and not ratio
            else cell
            for cell, box in zip(shown[:-1], model.boxes, strict=True)
        ],
    )
    return (Table(f"Coefficients for {target!r}", heads, tuple(rows), note), bars)


def summary_of(model: _Model, results: Results, target: str, names: Sequence[str]) -> Summary:
    """Summarise the clearest effects on the target."""
    effects = [
        (name, cell)
        for name, cell in zip(
            _in_words(names[:-1], results["reference"] == 1), _cells(results)[:-1], strict=True
        )
        if np.isfinite(cell.value) and cell.low < cell.high
    ]
    ratio = _RATIOS.get(model.family)
    found = effects_summary(
        f"Effects on {target}" + (f" ({_PICTURES[ratio].lower()})" if ratio else ""),
        [name for name, _ in effects],
        [cell for _, cell in effects],
        nothing=f"No effect on {target} is shown.",
        ratios=model.family in _RATIOS,
    )
    return replace(found, remarks=(*found.remarks, *_of_sites(names, results)))


def _in_words(names: Sequence[str], are_references: Flags) -> Iterator[str]:
    """Yield the names of coefficients; an interaction has what it compares.

    An interaction ``a=1:b=2`` is the effect of ``a=1`` in ``b=2`` against the reference of b. With
    it, the coefficient ``a=1`` alone is the effect in that reference.
    """
    references = {
        name.partition("=")[0]: name
        for name, is_one in zip(names, are_references, strict=True)
        if is_one
    }
    split = {name: name.split(":") for name in names}
    # Another colon is part of the name of a column.
    pairs = {name: of for name, of in split.items() if len(of) == 2 and {*of} <= split.keys()}

    def base(other: str) -> str:
        return references.get(other.partition("=")[0], f"{other}=0")

    for name in names:
        if name in pairs:
            first, second = pairs[name]
            is_level = base(second) in split
            yield first + (f" in {second} against {base(second)}" if is_level else f" by {second}")
        else:
            others = [other for pair in pairs.values() if name in pair for other in pair]
            where = dict.fromkeys(base(other) for other in others if other != name)
            yield f"{name} in {' and '.join(where)}" if where else name


def _of_sites(names: Sequence[str], results: Results) -> Iterator[str]:
    """Yield a warning of coefficients that would move with the term site."""
    if "site_change" not in results:
        return
    from scipy.special import ndtri

    changes = list(Estimate.of(results, "site_change").cells())
    if not any(np.isfinite(change.value) for change in changes):
        yield "noise hides whether coefficients would change with the term site"
    # All together are clear by chance with a probability of at most `_CHANCE`.
    clear = float(ndtri(1 - _CHANCE / (2 * len(changes)))) / _Z
    moved = [
        f"of {name} would be about {value + change.value:.3g} in place of {value:.3g}"
        for name, value, change in zip(names, results["coef"], changes, strict=False)
        if np.isfinite(change.value + value)
        and abs(change.value) > clear * (change.high - change.value) > 0
    ]
    if moved:
        yield (
            "silos differ both in columns and in the outcome: with the term site, the coefficient "
            + ", and that ".join(moved)
        )
