"""Shrinkage estimates of released values with known noise; all of it is post-processing."""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Floats

_SCALES = np.exp(np.linspace(np.log(3e-3), np.log(3.0), 20))
"""Candidates for the standard deviation of the prior, in its natural unit."""


def james_stein(values: Floats, noise_std: float) -> Floats:
    """Shrink an array of any shape toward zero, by more if its signal is weaker than the noise.

    References
    ----------
    James and Stein, "Estimation with quadratic loss", 1961; positive part.
    """
    # One or two values have no James-Stein estimate; a factor of 1 still shrinks them a little.
    excess = max(values.size - 2, 1) * noise_std**2
    return values * max(0.0, 1 - excess / max(float((values**2).sum()), 1e-300))


def empirical_bayes(
    sums: Floats,
    *,
    n_dims: int,
    factors: Floats,
    noise_std: float,
    unit: float,
    prior_power: float,
    spreads: Floats,
) -> Floats:
    """Return the expected signal in noisy rows of unequal weight.

    Row j of `sums` is ``factors[j] * theta_j`` plus noise. theta_j is Gaussian around zero with
    variance ``spreads[j] * tau**2`` in each of `n_dims` directions. The rows are averaged over tau
    on a grid around `unit`, with a prior proportional to ``tau**prior_power`` on a log scale. Each
    row is in a subspace of `n_dims` dimensions.
    """
    if n_dims <= 0:
        return sums
    scales = _SCALES * unit
    signal = scales[:, None] ** 2 * (factors**2 * spreads)[None, :]
    total = signal + noise_std**2
    lengths = (sums**2).sum(axis=1)
    log_weights = (
        -0.5 * n_dims * np.log(total).sum(axis=1)
        - 0.5 * (lengths[None, :] / total).sum(axis=1)
        + prior_power * np.log(_SCALES)
    )
    weights = np.exp(log_weights - log_weights.max())  # the largest is 1, so no sum is 0
    weights /= weights.sum()
    return np.asarray(sums * (weights @ (signal / total))[:, None])


_RATIOS = np.exp(np.linspace(-2.5, 2.5, 21))
"""Candidates for the ratio of the true errors to those of a model."""

_RATIO_STD = 0.7  # prior standard deviation of the logarithm of a ratio


def gains(
    sums: Floats, factors: Floats, variances: Floats, noise_std: float
) -> tuple[Floats, Floats]:
    """Return the share of signal in noisy rows, and the remaining variance of the signal.

    Row j is ``factors[j] * theta_j`` plus noise. theta_j is Gaussian around zero with variance
    ``ratio**2 * variances[j]`` in each column. The logarithm of the ratio is Gaussian around zero,
    too: the model of the errors may be wrong by one factor for all rows.

    Returns
    -------
    gains : ndarray of shape (n_rows,), in [0, 1]
    variances : ndarray of shape (n_rows,)
        Of theta, given the row.
    """
    scaled = _RATIOS[:, None] ** 2 * variances
    signal = scaled * factors**2
    total = np.maximum(signal + noise_std**2, 1e-300)  # zero signal without noise: no 0 / 0
    lengths = (sums**2).sum(axis=1)
    logs = -0.5 * (sums.shape[1] * np.log(total) + lengths / total).sum(axis=1)
    logs -= 0.5 * (np.log(_RATIOS) / _RATIO_STD) ** 2
    weights = np.exp(logs - logs.max())
    weights = (weights / weights.sum())[:, None]
    left = weights * (scaled * noise_std**2 / total)
    return (weights * (signal / total)).sum(axis=0), left.sum(axis=0)
