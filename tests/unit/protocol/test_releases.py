"""Silos of this release and of the one before take part in one job, or decline it in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloister import Budget, Plan
from cloister.app.job import Job, derive_plan, make_plan
from cloister.app.question import differences
from cloister.core.errors import PlanError
from cloister.data.schema import schema_of
from cloister.federation.transports.http import release_of
from cloister.protocol import releases
from cloister.protocol.code import code_mismatch
from cloister.protocol.plan import Code
from cloister.protocol.releases import UNTOLD, earlier_code
from cloister.tasks import TASKS
from cloister.tasks.count import Count
from cloister.tasks.examples import example_of

SCHEMA = schema_of(example_of(Count).columns)


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Code:
    """Let only the count compute the same in the release before."""
    table = {"cloister.tasks.count:Count": "a" * 64}
    monkeypatch.setattr(releases, "_earlier", lambda: ("0.1.0", table))
    return Code("cloister", "0.1.0", "a" * 64)


def _plan(*members: str) -> Plan:
    job = Job(task=Count, schema=SCHEMA, silos=("a", "b"), epsilon=1.0, releases=members)
    return job.plan_for(Budget(1.0, 1e-6), 100)


@pytest.mark.parametrize("release", ["0.1.0", UNTOLD])
def test_a_plan_names_the_code_that_all_members_have(earlier: Code, release: str) -> None:
    now = _plan("0.3.0", "9.0").code
    assert now != earlier
    assert _plan().code == now
    assert _plan("0.3.0", release).code == earlier


@pytest.mark.parametrize("release", ["0.1.0", "0.3.0"])
def test_a_silo_derives_the_same_plan(earlier: Code, release: str) -> None:
    plan = _plan(release)
    assert not [*differences(plan, derive_plan(plan, SCHEMA, TASKS))]
    assert code_mismatch(plan) is None


def test_code_of_the_release_before_is_accepted_if_it_computes_the_same(earlier: Code) -> None:
    plan = _plan()
    assert code_mismatch(replace(plan, code=earlier)) is None
    for other in (replace(earlier, digest="b" * 64), replace(earlier, version="0.0.9")):
        assert "was planned with cloister" in str(code_mismatch(replace(plan, code=other)))


def test_a_task_that_changed_is_declined_in_words(
    earlier: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "earlier_code", lambda _: None)
    with pytest.raises(PlanError, match=r"has cloister 0\.1\.0, where task 'count' computes some"):
        _plan("0.1.0")


def test_the_table_is_of_tasks_that_are_here() -> None:
    release, table = releases._earlier()
    assert release
    plan = make_plan(
        Count,
        schema_of(example_of(Count).columns),
        ["a"],
        budget=Budget(1.0, 1e-6),
        nominal_n=100,
    )
    assert earlier_code(plan.task) is not None
    assert all(len(digest) == 64 for digest in table.values())


@pytest.mark.parametrize(
    ("agent", "release"),
    [
        ("cloister/0.3.0", "0.3.0"),
        ("cloister/1.2.0rc1+local.5", "1.2.0rc1+local.5"),
        ("Python/3.11 websockets/15.0", UNTOLD),
        ("cloister/<script>", UNTOLD),
        ("cloister/0" + "0" * 100, UNTOLD),
    ],
)
def test_a_silo_names_its_release(agent: str, release: str) -> None:
    assert release_of(agent) == release
