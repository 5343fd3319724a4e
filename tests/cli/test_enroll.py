"""``cloister ca`` and ``cloister federation enroll``, as people type them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloister.cli import main
from cloister.federation.pki import KeyFolder

ENROLL, CA = ("federation", "enroll"), ("federation", "ca")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main([*CA, "init", "ca", "--name", "test", "--quiet"]) == 0
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def request(capsys: pytest.CaptureFixture[str], name: str, *more: str) -> str:
    words = (
        *ENROLL,
        "request",
        "--role",
        "silo",
        "--name",
        name,
        "--keys",
        name,
        *more,
    )
    return str(said(capsys, *words)["fingerprint"])


def test_from_nothing_to_a_certificate_and_out_again(capsys: pytest.CaptureFixture[str]) -> None:
    fingerprint = request(capsys, "a")
    spoken = " ".join(fingerprint)  # blanks do not matter when it is typed
    assert (
        main(
            [
                *ENROLL,
                "approve",
                "a.request.json",
                "--ca",
                "ca",
                "--fingerprint",
                spoken,
            ]
        )
        == 0
    )
    assert main([*ENROLL, "install", "a.grant.json", "--keys", "a"]) == 0
    shown = said(capsys, *ENROLL, "show", "--keys", "a")
    assert (shown["name"], shown["fingerprint"]) == ("a", fingerprint)
    assert KeyFolder("a").identity().fingerprint == fingerprint
    assert main([*ENROLL, "revoke", "a", "--ca", "ca"]) == 0
    assert "crl.pem" in capsys.readouterr().out
    assert [entry["revoked"] for entry in said(capsys, *CA, "list", "ca")["issued"]] == [True]


def test_what_is_read_aloud_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    digits = request(capsys, "a").removeprefix("ed25519:")
    spoken = " ".join(digits[i : i + 8] for i in range(0, 64, 8))
    assert main([*ENROLL, "show", "--keys", "a"]) == 0
    assert spoken in capsys.readouterr().out
    words = [*ENROLL, "approve", "a.request.json", "--ca", "ca", "--fingerprint"]
    assert main([*words, spoken[:-1]]) == 3
    assert main([*words, ""]) == 3
    assert main([*words, spoken.upper()]) == 0


def test_the_hosts_of_a_coordinator_are_shown_to_whoever_approves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "enroll request --role coordinator --name c --keys c --host fed.example.org --host h2"
    assert main(words.split()) == 0
    capsys.readouterr()
    assert main([*ENROLL, "approve", "c.request.json", "--ca", "ca"]) == 3
    assert "fed.example.org, h2" in capsys.readouterr().out


def test_a_certificate_of_an_earlier_identity_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    request(capsys, "a")
    assert main([*ENROLL, "approve", "a.request.json", "--ca", "ca", "--yes"]) == 0
    assert main([*ENROLL, "install", "a.grant.json", "--keys", "a"]) == 0
    assert said(capsys, *ENROLL, "show", "--keys", "a")["warnings"] == []
    request(capsys, "b")
    Path("a/identity.key").write_bytes(Path("b/identity.key").read_bytes())
    (warning,) = said(capsys, *ENROLL, "show", "--keys", "a")["warnings"]
    assert "earlier identity" in warning


def test_a_new_identity_waits_until_its_grant_is_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = request(capsys, "a")
    assert main([*ENROLL, "approve", "a.request.json", "--ca", "ca", "--yes"]) == 0
    assert main([*ENROLL, "install", "a.grant.json", "--keys", "a"]) == 0
    second = request(capsys, "a", "--new-identity")
    shown = said(capsys, *ENROLL, "show", "--keys", "a")
    assert (shown["fingerprint"], shown["pending"], shown["warnings"]) == (first, True, [])
    assert main([*ENROLL, "revoke", "a", "--ca", "ca"]) == 0
    assert main([*ENROLL, "approve", "a.request.json", "--ca", "ca", "--yes"]) == 0
    assert main([*ENROLL, "install", "a.grant.json", "--keys", "a"]) == 0
    shown = said(capsys, *ENROLL, "show", "--keys", "a")
    assert (shown["fingerprint"], shown["pending"]) == (second, False)


def test_a_request_that_takes_the_place_of_another_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*ENROLL, "request", "--role", "silo", "--name", "a", "--keys", "a")
    assert said(capsys, *words)["warnings"] == []
    assert any("replaces an earlier one" in warning for warning in said(capsys, *words)["warnings"])


def test_what_is_confirmed_is_shown_even_to_a_quiet_person(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprint = request(capsys, "a")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: "n\n", raising=False)
    assert main([*ENROLL, "approve", "a.request.json", "--ca", "ca", "--quiet"]) == 3
    assert fingerprint in capsys.readouterr().err


@pytest.mark.parametrize("file", ["identity.key", "tls.pem"])
@pytest.mark.parametrize("content", [b"", b"ab", b"\xff"])
def test_keys_that_are_damaged_are_one_sentence(
    file: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    request(capsys, "a")
    Path("a", file).write_bytes(content)
    assert main([*ENROLL, "show", "--keys", "a"]) == 3
    assert file in capsys.readouterr().err


def test_a_folder_that_cannot_be_used_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    for words in (
        "enroll request --role silo --name a --keys file/a",
        "ca init file/ca --name x",
        "enroll show --keys file",
    ):
        assert main(words.split()) in (3, 4)
    assert "unexpected" not in capsys.readouterr().err


def test_another_fingerprint_than_the_one_read_aloud_issues_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    request(capsys, "a")
    other = request(capsys, "b")
    words = [
        *ENROLL,
        "approve",
        "a.request.json",
        "--ca",
        "ca",
        "--fingerprint",
        other,
    ]
    assert main(words) == 3
    assert not Path("a.grant.json").exists()
    assert said(capsys, *CA, "list", "ca")["issued"] == []


def test_without_a_terminal_nobody_confirms(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request(capsys, "a")
    assert main([*ENROLL, "approve", "a.request.json", "--ca", "ca"]) == 3
    assert "was not confirmed" in capsys.readouterr().err
    assert main([*ENROLL, "approve", "a.request.json", "--ca", "ca", "--yes"]) == 0


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 3), ("\n", 3)])
def test_a_person_at_a_terminal_is_asked(
    typed: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request(capsys, "a")

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return typed

    monkeypatch.setattr("sys.stdin", Terminal())
    assert main([*ENROLL, "approve", "a.request.json", "--ca", "ca"]) == code


def test_a_new_identity_is_said_to_need_new_pins(capsys: pytest.CaptureFixture[str]) -> None:
    first = request(capsys, "a")
    assert request(capsys, "a") == first
    second = said(
        capsys,
        *(
            *ENROLL,
            "request",
            "--role",
            "silo",
            "--name",
            "a",
            "--keys",
            "a",
            "--new-identity",
        ),
    )
    assert second["fingerprint"] != first
    assert any("pin" in warning for warning in second["warnings"])


@pytest.mark.parametrize("content", ["", "[]", "{}", "{"])
def test_a_file_that_is_no_request_is_one_sentence(
    content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.json").write_text(content)
    assert main([*ENROLL, "approve", "x.json", "--ca", "ca", "--yes"]) in (3, 4)
    assert main([*ENROLL, "install", "x.json", "--keys", "a"]) in (3, 4)
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
