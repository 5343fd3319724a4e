"""Two worlds of a plan that samples its clients: the price of sampling is not refuted.

Coins are fresh: a true claim alarms with probability at most 1e-8. The mutant uses fixed ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.audit import runs
from cloister.audit.checks import audit_plan, price
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of
from cloister.tasks.supervised.fedavg import FedAvg
from cloister_lab.audit.mutants import FixedNoise

RUNS = 600


def sampled(rate: float) -> Plan:
    case = example_of(TASKS["fedavg"])
    options = {**case.options, "rounds": 2, "local_rate": 20.0}
    return make_plan(
        FedAvg,
        schema_of(case.columns),
        ["silo"],
        budget=Budget(6.0, 1e-5),
        nominal_n=50,
        rate=rate,
        **options,
    )


class _Coins:
    """Always heads: a silo that lets everybody take part."""

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_a_sampled_plan_passes_its_audit(rate: float) -> None:
    plan = sampled(rate)
    assert not price(plan).alarms
    findings, _, _, reach = audit_plan(plan, runs=RUNS, make_noise=lambda: FixedNoise("sampled"))
    assert [finding.check for finding in findings if finding.alarms] == []
    assert reach > 0.9, "the pair uses what is paid for, else the audit says nothing"


def test_a_silo_that_samples_nobody_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found = runs.public_generator
    monkeypatch.setattr(
        runs, "public_generator", lambda *parts: _Coins() if "coins" in parts else found(*parts)
    )
    findings, *_ = audit_plan(sampled(0.2), runs=RUNS, make_noise=lambda: FixedNoise("all"))
    assert [finding.check for finding in findings if finding.alarms] == ["two worlds"]


def test_sampled_noise_with_every_client_in_is_caught_by_its_price() -> None:
    plan = sampled(0.2)
    everybody = replace(plan.task, rate=1.0, noise_multiplier=0.0)
    honest = replace(plan, task=everybody, layout=None)
    assert not price(honest).alarms
    (block,) = plan.task.blocks(0)
    assert plan.noise_scale(block) < 0.8 * honest.noise_scale(block)
    assert np.isfinite(plan.noise_std(block))
