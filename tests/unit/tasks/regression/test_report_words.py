"""How the first sentence of a regression names an interaction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloister.core.display import Estimate
from cloister.tasks.regression.report import summary_of


class Binomial:
    """A model of shares."""

    family = "binomial"
    sandwich = False


@pytest.mark.parametrize(
    ("names", "references", "said"),
    [
        (
            ("arm=old", "arm=new", "site=a", "site=b", "arm=new:site=b"),
            (0, 2),
            ["arm=new in site=a 2", "site=b in arm=old 2", "arm=new in site=b against site=a 2"],
        ),
        (
            ("arm=old", "arm=new", "age", "arm=new:age"),
            (0,),
            ["arm=new in age=0 2", "age in arm=old 2", "arm=new by age 2"],
        ),
        (("dose:high", "age"), (), ["dose:high 2", "age 2"]),  # a colon in a column's name
    ],
)
def test_an_interaction_says_what_it_compares(
    names: tuple[str, ...], references: tuple[int, ...], said: list[str]
) -> None:
    is_reference = np.isin(np.arange(len(names)), references)
    values = np.where(is_reference, 0.0, np.log(2))
    margin = np.where(is_reference, 0.0, 0.1)
    results: Any = {
        **Estimate(values, values - margin, values + margin).named("coef"),
        **Estimate(np.zeros(1), np.zeros(1), np.zeros(1)).named("intercept"),
        "reference": is_reference.astype(float),
    }
    found = summary_of(Binomial(), results, "died", (*names, "intercept"))
    parts = [part if isinstance(part, str) else f"{part.value:g}" for part in found.result]
    sentence = "".join(parts)
    assert sentence.startswith("Effects on died (odds ratios): ")
    for part in said:
        assert part in sentence
