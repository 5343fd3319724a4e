"""Laws of a horizon: the integer bound on a unit's change, and answers that are exact but noise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import PlanError
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.privacy.horizon import MOST_PERIODS, WINDOWS, Encoding, Workload, answers

LENGTHS = (2, 3, 13, 52)
WORKLOADS: tuple[Workload, ...] = ("all", "totals")
SIGMA = gaussian_noise_multiplier(1.0, 1e-6)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_period_changes_all_releases_by_at_most_one(workload: Workload) -> None:
    for periods in LENGTHS:
        columns = Encoding.of(periods, 1, workload).matrix
        assert (columns**2).sum(axis=0).max() <= 1 << 20


@pytest.mark.nightly
def test_a_period_changes_all_releases_by_at_most_one_at_every_length() -> None:
    for periods, workload in itertools.product(range(2, MOST_PERIODS + 1), WORKLOADS):
        assert Encoding.of(periods, 1, workload).sensitivity_squared <= 1 << 20


@pytest.mark.parametrize("workload", WORKLOADS)
def test_answers_are_exact_but_for_noise(workload: Workload) -> None:
    for periods, name in itertools.product(LENGTHS, WINDOWS):
        encoding, asked = Encoding.of(periods, 1, workload), answers(periods, name)
        assert np.allclose(encoding.weights(asked) @ encoding.matrix, asked, atol=1e-9)
        # The answer after period t needs the releases up to t alone.
        half = periods // 2
        corner = encoding.weights(asked[:half, :half])
        assert np.allclose(corner, encoding.weights(asked)[:half, :half], atol=1e-9)


@given(
    periods=st.integers(2, 9),
    max_periods=st.integers(1, 9),
    workload=st.sampled_from(WORKLOADS),
    data=st.data(),
)
def test_no_pattern_of_periods_exceeds_the_bound(
    periods: int, max_periods: int, workload: Workload, data: st.DataObject
) -> None:
    most = min(periods, max_periods)
    found = Encoding.of(periods, most, workload)
    # Any matrix, not only those that are chosen: a plan may hold another one.
    numbers = st.integers(-1024, 1024)
    rows = tuple(
        (*data.draw(st.lists(numbers, min_size=t, max_size=t)), data.draw(st.integers(1, 1024)))
        for t in range(periods)
    )
    for encoding in (found, Encoding(rows, most)):
        # Vectors of a unit may point anywhere, against each other and otherwise in each release.
        overlap = np.abs(encoding.matrix).T @ np.abs(encoding.matrix)
        for chosen in itertools.combinations(range(periods), most):
            assert overlap[np.ix_(chosen, chosen)].sum() <= encoding.sensitivity_squared


def test_the_bound_is_close_to_the_worst_pattern() -> None:
    for most in range(1, 6):
        encoding = Encoding.of(10, most, "totals")
        worst = max(
            float(np.linalg.norm(encoding.matrix[:, list(chosen)].sum(axis=1)))
            for chosen in itertools.combinations(range(10), most)
        )
        assert worst <= encoding.sensitivity_squared**0.5 <= 1.03 * worst


@given(
    data=st.data(),
    max_periods=st.integers(1, 3),
    size=st.integers(1, 4),
    erased=st.one_of(st.none(), st.integers(0, 5)),
)
def test_a_unit_changes_the_payloads_by_at_most_the_bound(
    data: st.DataObject, max_periods: int, size: int, erased: int | None
) -> None:
    """Payloads with and without a unit that returns, and that may be erased at some time."""
    periods, bound = 6, 1000
    encoding = Encoding.of(periods, max_periods)
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    sums = draw.integers(-(2**40), 2**40, (periods, size))
    unit = np.zeros((periods, size), dtype=np.int64)
    for t in draw.choice(periods, max_periods, replace=False):
        vector = draw.normal(size=size)
        unit[t] = np.trunc(bound * vector / np.linalg.norm(vector))
    change = [
        encoding.payload((sums + unit * (erased is None or t < erased))[: t + 1])
        - encoding.payload(sums[: t + 1])
        for t in range(periods)
    ]
    assert (np.array(change) ** 2).sum() <= encoding.sensitivity_squared * bound**2


@pytest.mark.parametrize(
    ("workload", "expected"),
    [("totals", (8.6, 6.6, 8.5, 9.6)), ("all", (11.5, 4.7, 7.1, 9.6))],
)
def test_the_noise_of_a_year_of_weeks(
    workload: Workload, expected: tuple[float, float, float, float]
) -> None:
    """Root mean square errors in records at epsilon 1, computed and not sampled."""
    encoding = Encoding.of(52, 1, workload)
    found = [SIGMA * np.sqrt((encoding.noises(answers(52, name)) ** 2).mean()) for name in WINDOWS]
    assert found == pytest.approx(expected, rel=0.03)
    # The nuclear norm bounds every matrix; 52 equal recounts are what users do without a horizon.
    bound = SIGMA * np.linalg.svd(answers(52, "so far"), compute_uv=False).sum() / 52
    recounts = SIGMA * 52**0.5
    assert found[0] <= {"totals": 1.05, "all": 1.45}[workload] * bound
    assert recounts / found[0] >= {"totals": 3.4, "all": 2.6}[workload]


def test_a_price_for_each_period_would_be_many_times_that_of_the_whole() -> None:
    """The squared mu, period by period against once."""
    matrix = Encoding.of(52).matrix
    each = (matrix.max(axis=1) ** 2).sum() / (matrix**2).sum(axis=0).max()
    assert 45 < each < 47


def test_independent_periods_are_chosen_for_units_that_often_return() -> None:
    assert Encoding.of(52, 13).rows[1] == (0, 1024)
    assert Encoding.of(52, 1).rows[1][0] > 0


@pytest.mark.parametrize(
    ("rows", "max_periods", "message"),
    [
        (((1,), (1, 1, 1)), 1, "lower triangular"),
        (((1,), (1, 0)), 1, "positive diagonal"),
        (((1,), (1025, 1)), 1, "at most 1024"),
        (((1,), (0.5, 1)), 1, "integers"),
        (((1,),), 1, r"periods must be in \[2, 104\]"),
        (((1,), (1, 1)), 3, r"max_periods must be in \[1, 2\]"),
    ],
)
def test_another_matrix_is_refused(
    rows: tuple[tuple[int, ...], ...], max_periods: int, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        Encoding(rows, max_periods)


def test_a_matrix_is_read_back() -> None:
    encoding = Encoding.of(4, 2)
    assert Encoding.from_dict(encoding.to_dict()) == encoding
    with pytest.raises(PlanError, match="no matrix"):
        Encoding.from_dict({"rows": 3})
    for arguments in ((1,), (105,), (4, 1, "weeks")):
        with pytest.raises(PlanError, match="must be"):
            Encoding.of(*arguments)  # type: ignore[arg-type]
