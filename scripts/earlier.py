"""Writes which tasks of an earlier release compute the same as those here.

    python scripts/earlier.py v0.2.0

Each task of both releases plans its example, the same with each option changed, and examples with
more columns, records and budget. It sums made-up records for all rounds, with seeded noise. A task
whose plans, sums and states are equal goes into ``src/cloister/protocol/earlier.json`` with the
digest of its code in the earlier release. Silos of both releases can then take part in one job
(docs/adr/0077-releases-side-by-side.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "src" / "cloister" / "protocol" / "earlier.json"


def facts_of(source: Path) -> dict[str, Any]:
    """Return the code of each task and a hash of all that its example says, by name."""
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "task_facts.py"), str(source)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return dict(json.loads(found.stdout))


def _git(*command: str) -> bytes:
    return subprocess.run(["git", *command], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def sources_at(commit: str, folder: Path) -> Path:
    """Extract the sources of a commit."""
    with tarfile.open(fileobj=BytesIO(_git("archive", commit, "src"))) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def release_of(commit: str) -> str:
    """Return the version in the project file of a commit."""
    text = _git("show", f"{commit}:pyproject.toml").decode()
    return str(tomllib.loads(text)["project"]["version"])


def table_of(commit: str) -> dict[str, object]:
    """Return the release of a commit and the code of its tasks that compute the same."""
    with tempfile.TemporaryDirectory() as folder:
        before = facts_of(sources_at(commit, Path(folder)))
    now = facts_of(ROOT / "src")
    same = {
        facts["kinds"]: facts["code"]
        for name, facts in before.items()
        if name in now and now[name]["said"] == facts["said"]
    }
    return {
        "release": release_of(commit),
        "commit": _git("rev-parse", commit).decode().strip(),
        "tasks": dict(sorted(same.items())),
    }


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table_of(sys.argv[1]), indent=2) + "\n", encoding="utf-8")
    print(TABLE.read_text(encoding="utf-8"))
