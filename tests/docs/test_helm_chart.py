"""The chart runs what the compose file runs, as confined, and never two owners of one ledger.

Its templates keep to four actions, which the test renders by itself; where there is a ``helm``, its
rendering must be the same.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloister.cli import _parser

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "cloister"
GIVEN = {
    "silo": {
        "role": "silo",
        "config": 'role = "silo"\nname = "a {{ b }}"\n',
        "schema": "[columns]\n",
        "keys": "a-keys",
        "data": "records",
    },
    "coordinator": {"role": "coordinator", "config": 'listen = "0.0.0.0:8443"\n', "keys": "c-keys"},
}
ROLES = tuple(GIVEN)
ACTION = re.compile(r"\{\{-? *(.*?) *\}\}")
KNOWN = re.compile(
    r"\.Release\.Name|end|\.Values\.role|toJson \.Values\.[a-z.]+|if \.Values\.[a-z.]+"
    r'|if eq \.Values\.role "[a-z]+"'
)

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(
    not CHART.is_dir(), reason="the folder 'deploy' is not beside the tests"
)


def defaults() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return values


def lines() -> Iterator[str]:
    for file in sorted((CHART / "templates").iterdir()):
        yield from file.read_text(encoding="utf-8").splitlines(keepends=True)


def at(values: dict[str, Any], path: str) -> Any:
    for key in path.split(".")[2:]:
        values = values[key]
    return values


def rendered(role: str) -> list[dict[str, Any]]:
    """Return the objects of a party that is called "p"."""
    values = defaults() | GIVEN[role]

    def shown(action: re.Match[str]) -> str:
        words = action[1].split()
        if words == [".Release.Name"]:
            return "p"
        return json.dumps(at(values, words[1])) if words[0] == "toJson" else at(values, words[0])

    text, open_blocks = "", [True]
    for line in lines():
        if block := re.fullmatch(r"\{\{- (if|end) ?(eq )?([.\w]*)(?: \"(\w+)\")? ?\}\}\n", line):
            if block[1] == "end":
                open_blocks.pop()
                continue
            value = at(values, block[3])
            open_blocks.append(value == block[4] if block[2] else bool(value))
        elif all(open_blocks):
            text += ACTION.sub(shown, line)
    assert open_blocks == [True]
    return list(yaml.safe_load_all(text))


def pod(role: str) -> dict[str, Any]:
    (deployment,) = (one for one in rendered(role) if one["kind"] == "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def composed(role: str) -> dict[str, Any]:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    service: dict[str, Any] = yaml.safe_load(text)["services"][role]
    return service


def test_every_value_is_used_and_every_used_value_is_there() -> None:
    text = "".join(lines())
    unknown = [action for action in ACTION.findall(text) if not KNOWN.fullmatch(action)]
    assert not unknown
    used = set(re.findall(r"\.Values\.([a-z.]+)", text))

    def leaves(values: dict[str, Any], before: str = "") -> Iterator[str]:
        for key, value in values.items():
            path = f"{before}{key}"
            if isinstance(value, dict) and path != "resources":  # given to the container whole
                yield from leaves(value, f"{path}.")
            else:
                yield path

    assert used == set(leaves(defaults()))


def test_a_party_needs_its_file_its_keys_and_a_silo_its_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    check = jsonschema.Draft7Validator(schema)
    for given in GIVEN.values():
        assert check.is_valid(defaults() | given)
        for lacking in ("config", "keys", *(["schema"] if "schema" in given else [])):
            assert not check.is_valid(defaults() | given | {lacking: ""}), lacking
    assert not check.is_valid(defaults() | GIVEN["silo"] | {"replicas": 2})


@pytest.mark.parametrize("role", ROLES)
def test_the_chart_runs_what_the_compose_file_runs(role: str) -> None:
    (container,), service = pod(role)["containers"], composed(role)
    assert container["args"] == service["command"]
    assert container["image"] == service["image"]
    assert _parser(container["args"]).parse_args(container["args"]).command == role
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    keys = f"/etc/cloister/{role}-keys"  # where join and federation init put them
    assert mounts.pop(keys)
    parts = (volume.split(":") for volume in service["volumes"])
    assert mounts == {inside: mode == ["ro"] for _, inside, *mode in parts}
    ports = [f"{one['containerPort']}:{one['containerPort']}" for one in container.get("ports", [])]
    assert ports == service.get("ports", [])
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in pod(role)["volumes"]
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_party_is_confined_and_has_no_rights_in_the_cluster(role: str) -> None:
    spec = pod(role)
    (container,), inside = spec["containers"], spec["securityContext"]
    (user,) = re.findall(r"^USER (\d+)$", (DEPLOY / "Containerfile").read_text("utf-8"), re.M)
    assert {inside[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    assert inside["runAsNonRoot"]
    assert inside["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": composed(role)["read_only"],
        "capabilities": {"drop": composed(role)["cap_drop"]},
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_ledger_has_one_owner_and_outlives_the_release(role: str) -> None:
    kinds = {one["kind"]: one for one in rendered(role)}
    assert kinds["Deployment"]["spec"]["replicas"] == 1
    assert kinds["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    claim = kinds["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    # Else each start makes the ledger's files the group's to read, and the silo refuses to run.
    assert pod(role)["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_only_a_coordinator_is_called() -> None:
    assert "Service" not in {one["kind"] for one in rendered("silo")}
    (service,) = (one for one in rendered("coordinator") if one["kind"] == "Service")
    (container,) = pod("coordinator")["containers"]
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [
        one["name"] for one in container["ports"]
    ]
    deployment = next(one for one in rendered("coordinator") if one["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("role", ROLES)
def test_files_arrive_as_they_were_given(role: str) -> None:
    (files,) = (one["data"] for one in rendered(role) if one["kind"] == "ConfigMap")
    expected = {f"{role}.toml": GIVEN[role]["config"]}
    if role == "silo":
        expected["schema.toml"] = GIVEN[role]["schema"]
    assert files == expected


def test_the_chart_has_the_version_of_the_package() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text("utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == project["version"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not on this machine")
def test_helm_renders_the_same(role: str, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps(GIVEN[role]), encoding="utf-8")
    subprocess.run(("helm", "lint", "--strict", CHART, "-f", values), check=True)
    command = ("helm", "template", "p", CHART, "-f", values)
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def by_kind(objects: Iterator[dict[str, Any]]) -> dict[str, Any]:
        return {one["kind"]: one for one in objects}

    assert by_kind(yaml.safe_load_all(text)) == by_kind(iter(rendered(role)))
