from __future__ import annotations

import pytest

from cloister_lab.experiments.records import MeanOf, Means
from cloister_lab.experiments.reference import EPSILONS, INDEPENDENT, PUBLISHED, check_means


def nicv(dataset: str, method: str, epsilon: float, mean: float, sem: float = 0.0) -> Means:
    return {(dataset, method, epsilon): MeanOf(mean, sem, 100)}


def fastlloyd(factor: float) -> Means:
    return {
        key: mean
        for dataset, figures in PUBLISHED.items()
        for epsilon, published in zip(EPSILONS, figures, strict=True)
        for key, mean in nicv(dataset, "fastlloyd", epsilon, factor * published).items()
    }


def test_tables_cover_the_same_forty_cells() -> None:
    assert PUBLISHED.keys() == INDEPENDENT.keys()
    assert sum(len(figures) for figures in PUBLISHED.values()) == 40
    assert {len(figures) for figures in INDEPENDENT.values()} == {len(EPSILONS)}


def test_independent_figures_are_near_the_published_ones() -> None:
    for dataset, figures in PUBLISHED.items():
        for published, (other, _) in zip(figures, INDEPENDENT[dataset], strict=True):
            assert other == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(
    ("factor", "holds"), [(1.0, [True, True]), (0.9, [True, False]), (1.3, [False, False])]
)
def test_cells_are_judged_one_by_one_and_together(factor: float, holds: list[bool]) -> None:
    verdict = check_means(fastlloyd(factor))
    assert [bar.holds for bar in verdict.bars] == holds
    assert verdict.holds == all(holds)


def test_a_wide_error_excuses_a_cell_and_a_narrow_one_does_not() -> None:
    far = 1.2 * PUBLISHED["iris"][0]
    (excused,) = check_means(nicv("iris", "fastlloyd", 0.1, far, sem=0.1)).cells
    (missed,) = check_means(nicv("iris", "fastlloyd", 0.1, far, sem=0.01)).cells
    assert (excused.verdict, missed.verdict) == ("within 3 standard errors", "MISSED")
    assert excused.ratio == pytest.approx(1.2)


def test_fastlloyd_must_not_lose_to_the_others() -> None:
    for other, holds in ((0.03, True), (0.02, False)):
        means = {**nicv("s1", "fastlloyd", 0.5, 0.0227), **nicv("s1", "glloyd", 0.5, other)}
        assert [bar.holds for bar in check_means(means).bars] == [True, holds]


def test_nothing_to_judge_is_not_a_pass() -> None:
    assert not check_means({}).holds
