"""The tests behind the sentences of a summary."""

from __future__ import annotations

import numpy as np

from cloister.core.display import Estimate, between
from cloister.tasks.significance import clear, deviate, found, holm, normal_p


def test_holms_correction_is_the_textbooks() -> None:
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1, 1])
    assert found(np.array([0.01, 0.04, 0.03, 0.005])).tolist() == [3, 0]


def test_an_interval_that_ends_at_no_effect_has_a_p_value_of_5_in_100() -> None:
    one = between(1.0, 0.5, 1.5, population=(0.0, 2.0))
    assert abs(normal_p(np.array([deviate(one)]))[0] - 0.05) < 1e-4
    ratio = Estimate(*map(np.float64, (2.0, 1.0, 3.0)), null=1.0)
    assert abs(normal_p(np.array([deviate(ratio)]))[0] - 0.05) < 1e-4


def test_what_is_not_known_is_not_clear_and_the_clearest_is_first() -> None:
    nan, inf = np.nan, np.inf
    some = [(nan, nan, nan), (5.0, 1.0, 9.0), (0.0, -inf, inf), (-4.0, -4.5, -3.5), (0.1, -1, 1)]
    assert clear([between(*ends) for ends in some]).tolist() == [3]
    assert clear([between(5.0, 1.0, 9.0)]).tolist() == [0]
