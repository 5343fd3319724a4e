"""What builds a release and an image is fixed to the byte, and can be run without publishing."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(
    not (ROOT / "deploy" / "Containerfile").is_file() or not (ROOT / ".github").is_dir(),
    reason="the folders 'deploy' and '.github' are not beside the tests",
)


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def workflows() -> list[Path]:
    return sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text(f".github/workflows/{name}"))["jobs"]
    return found


def test_every_action_is_one_commit_and_says_which_version() -> None:
    pins: dict[str, set[str]] = {}
    for file in workflows():
        uses = re.findall(r"uses: *(.*)", file.read_text(encoding="utf-8"))
        assert uses
        for use in uses:
            pin = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}  # v\d+\.\d+\.\d+)", use)
            assert pin, use
            pins.setdefault(pin[1], set()).add(pin[2])
    assert {len(versions) for versions in pins.values()} == {1}


def test_a_release_runs_scripts_that_anybody_can_run() -> None:
    steps = [step for job in jobs("release.yml").values() for step in job["steps"]]
    commands = [shlex.split(step["run"]) for step in steps if "run" in step]
    assert {command[0] for command in commands} == {"scripts/release", "scripts/supply"}
    for program, folder in commands:
        assert (ROOT / program).stat().st_mode & 0o111
        assert f"{folder}/*" in {step.get("with", {}).get("path") for step in steps}
        assert not re.search(r"twine.* upload|git (push|tag)|secrets", text(program))


def test_only_a_tag_publishes_and_only_distributions() -> None:
    publish = jobs("release.yml")["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(publish["needs"]) == set(jobs("release.yml")) - {"publish"}
    assert publish["steps"][0]["with"]["pattern"] == "dist-*"
    rights = [job["permissions"] for job in jobs("release.yml").values() if "permissions" in job]
    assert rights == [{"id-token": "write"}]


def test_an_image_holds_what_the_lock_names_and_nothing_else() -> None:
    lines = text("deploy/Containerfile").splitlines()
    installs = [line.partition("pip install ")[2] for line in lines if "pip install " in line]
    assert installs == [
        "--no-cache-dir --require-hashes -r /src/dist/requirements.txt",
        "--no-cache-dir --no-deps /src",
    ]
    assert text("deploy/Containerfile").startswith("# scripts/supply && ")
    assert "!dist/requirements.txt" in text(".dockerignore").splitlines()
    base = re.compile(r"ARG BASE=docker\.io/library/python@sha256:[0-9a-f]{64}")
    assert [line for line in lines if base.fullmatch(line)]
    assert [line for line in lines if line.startswith("FROM ")] == [
        "FROM ${BASE} AS build",
        "FROM ${BASE}",
    ]
    last = lines[lines.index("FROM ${BASE}") :]
    assert not [line for line in last if line.startswith("RUN ")]
    assert [line for line in last if re.fullmatch(r"USER [1-9]\d*", line)]


def test_the_lock_has_what_the_page_on_deploying_installs() -> None:
    extras = re.findall(r"--extra (\w+)", text("scripts/supply"))
    assert extras
    assert f"cloister[{','.join(extras)}]" in text("scripts/supply")
    assert f"'cloister[{','.join(extras)}]'" in text("docs/how-to/deploy.md")


def test_the_source_holds_what_builds_it_and_nothing_that_lies_about() -> None:
    rules = tomllib.loads(text("pyproject.toml"))["tool"]["scikit-build"]["sdist"]
    assert rules["exclude"] == ["*"]
    assert {"/pyproject.toml", "/CMakeLists.txt", "/src", "/native"} <= set(rules["include"])
    # A name without a slash is found in every folder, such as an environment's.
    assert all(name.startswith("/") and (ROOT / name[1:]).exists() for name in rules["include"])
