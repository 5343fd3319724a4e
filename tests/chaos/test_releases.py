"""A federation with a silo of the release before: equal tasks run, others decline in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from cloister.app.job import Job, Trust
from cloister.core.errors import PlanError
from cloister.federation.local import LocalFederation, product_command
from cloister.protocol import releases
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.testing import toy_schema

ROOT = Path(__file__).parents[2]
TABLE = json.loads((ROOT / "src/cloister/protocol/earlier.json").read_text(encoding="utf-8"))
SCHEMA = toy_schema()
SILOS = ("s0", "s1", "s2")
# An installed checkout would come before the release before.
_RUN = """
import sys
kinds = {m: type(m).__name__ + type(m).__module__ for m in sys.meta_path}
sys.meta_path[:] = [m for m, kind in kinds.items() if "ditable" not in kind]
sys.path.insert(0, sys.argv.pop(1))
from cloister.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the release before is installed."""
    folder = tmp_path_factory.mktemp("earlier")
    archive = subprocess.run(
        ["git", "archive", TABLE["commit"]], cwd=ROOT, check=False, stdout=subprocess.PIPE
    )
    if archive.returncode:
        pytest.skip("the history is not with the sources")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder / "source", filter="data")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    target = folder / "installed"
    subprocess.run([*pip, "--no-deps", "--target", target, folder / "source"], check=True)
    return target


def _tables(folder: Path) -> dict[str, Path]:
    rng, found = np.random.default_rng(0), {}
    for name in SILOS:
        found[name] = folder / f"{name}.csv"
        values = rng.normal([[-0.5, -0.5], [0.5, 0.5]], 0.1, (60, 2, 2)).reshape(-1, 2)
        np.savetxt(found[name], values, "%.4f", delimiter=",", header="x0,x1", comments="")
    return found


def _plan(federation: LocalFederation, task: str, **options: object) -> Plan:
    """Return a plan for the releases that the coordinator sees."""
    with federation.rest() as rest:
        seen = {silo["name"]: silo["release"] for silo in rest.silos()}
    pins = tuple(federation.fingerprints[name] for name in SILOS)
    return Job(
        task=TASKS[task],
        schema=SCHEMA,
        silos=SILOS,
        epsilon=1.0,
        nominal_n=360,
        options=options,
        releases=tuple(seen.values()),
        trust=Trust(profile="pairwise", fingerprints=pins),
    ).plan


def test_a_mixed_federation_runs_equal_tasks_and_declines_others(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(role: str, config: Path) -> Sequence[str]:
        if "/s2/" not in config.as_posix():
            return product_command(role, config)
        return (sys.executable, "-c", _RUN, str(earlier), role, "run", "--config", str(config))

    allowed = {name: {"tasks": ["count", "cluster-quality"]} for name in SILOS}
    tables, folder = _tables(tmp_path), tmp_path / "f"
    with LocalFederation(folder, SCHEMA, tables, policies=allowed, command=command) as federation:
        federation.start()
        federation.wait_connected()
        for task, options in (
            ("count", {}),
            ("cluster-quality", {"centres": [[-0.5, -0.5], [0.5, 0.5]]}),
        ):
            plan = _plan(federation, task, **options)
            assert plan.code is not None
            assert plan.code.version == TABLE["release"]
            shown = federation.wait_job(federation.propose(plan))
            assert (shown["state"], len(shown["survivors"])) == ("done", 3), shown["reason"]
        monkeypatch.setattr(releases, "earlier_code", lambda _: None)  # as if the task had changed
        with pytest.raises(PlanError, match="upgrade that silo, or plan without it"):
            _plan(federation, "count")
