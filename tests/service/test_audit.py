"""Every change to an audit file is found."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.cli import main
from cloister.core.errors import LedgerError
from cloister.federation.service.audit import Audit, verify
from cloister.privacy.chain import BEFORE_FIRST, canonical, link


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An audit file of five lines."""
    audit = Audit(tmp_path / "audit.jsonl")
    for number in range(5):
        audit.write("round", job="j", round=number)
    audit.close()
    return tmp_path / "audit.jsonl"


def test_lines_are_chained_numbered_and_dated(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["previous"] for line in lines] == [
        BEFORE_FIRST,
        *(line["hash"] for line in lines[:-1]),
    ]
    assert [line["round"] for line in lines] == list(range(5))
    assert all(line["at"].endswith("+00:00") for line in lines)
    assert verify(path) == (5, lines[-1]["hash"])
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_later_life_goes_on_with_the_chain(path: Path) -> None:
    _, head = verify(path)
    audit = Audit(path)
    assert audit.head == head
    audit.write("start")
    audit.close()
    assert verify(path, head)[0] == 6


@pytest.fixture
def renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An audit file after two that were full."""
    monkeypatch.setattr("cloister.federation.service.audit.MOST_BYTES", 700)
    audit = Audit(tmp_path / "audit.jsonl")
    for number in range(8):
        audit.write("round", job="j", round=number)
    audit.close()
    assert len([*tmp_path.glob("audit.0*.jsonl")]) >= 2
    return tmp_path / "audit.jsonl"


def test_a_full_file_is_renamed_and_the_chain_goes_on(renamed: Path) -> None:
    parts = sorted(renamed.parent.glob("audit.*.jsonl"))
    whole = [json.loads(line) for file in (*parts, renamed) for line in lines_of(file)]
    assert [line["round"] for line in whole if line["event"] == "round"] == list(range(8))
    assert [line["seq"] for line in whole] == list(range(1, len(whole) + 1))
    assert {file.stat().st_mode & 0o777 for file in (*parts, renamed)} == {0o600}
    assert verify(renamed) == (len(whole), whole[-1]["hash"])
    assert verify(renamed, whole[0]["hash"]) == verify(renamed)
    assert main(["verify", str(renamed)]) == 0
    audit = Audit(renamed)
    audit.write("start")
    audit.close()
    assert verify(renamed, whole[-1]["hash"])[0] > len(whole)


def test_the_oldest_files_may_be_deleted_and_no_other(renamed: Path) -> None:
    first, second, *_ = sorted(renamed.parent.glob("audit.*.jsonl"))
    head = json.loads(lines_of(first)[-1])["hash"]
    before = verify(renamed)
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(LedgerError, match="does not follow the line before"):
        verify(renamed)
    second.write_bytes(kept)
    first.unlink()
    assert verify(renamed, head) == before
    second.write_bytes(b"".join(lines_of(second)[:-1]))
    with pytest.raises(LedgerError, match="does not follow the line before"):
        verify(renamed)


def test_a_crash_between_two_files_loses_nothing(path: Path) -> None:
    lines, head = verify(path)
    path.rename(path.with_name(f"audit.{lines:012}.jsonl"))
    audit = Audit(path)
    audit.close()
    assert verify(path, head)[0] == lines + 1
    assert json.loads(lines_of(path)[0])["event"] == "continued"


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def forged(line: bytes) -> bytes:
    """Return a line with another value and a hash that fits it."""
    entry = json.loads(line)
    del entry["hash"]
    entry["round"] = 99
    return canonical({**entry, "hash": link(canonical(entry))}).encode() + b"\n"


@pytest.mark.parametrize(
    ("change", "number", "why"),
    [
        (lambda ls: [*ls[:2], ls[2].replace(b'"round":2', b'"round":7'), *ls[3:]], 3, "changed"),
        (lambda ls: [*ls[:4], ls[4].replace(b'"round":4', b'"round":5')], 5, "changed"),
        (lambda ls: [*ls[:2], ls[2].replace(b":", b": ", 1), *ls[3:]], 3, "changed"),
        (lambda ls: [*ls[:2], b"{}\n", *ls[2:]], 3, "changed"),
        (lambda ls: [*ls[:2], b"\n", *ls[2:]], 3, "changed"),
        (lambda ls: [*ls[:2], b"[]\n", *ls[2:]], 3, "changed"),
        (lambda ls: [*ls[:2], b"\xff\n", *ls[2:]], 3, "changed"),
        (lambda ls: ls[1:], 1, "follow"),
        (lambda ls: [*ls[:2], *ls[3:]], 3, "follow"),
        (lambda ls: [ls[1], ls[0], *ls[2:]], 1, "follow"),
        (lambda ls: [*ls[:3], ls[4], ls[3]], 4, "follow"),
        (lambda ls: [*ls[:2], ls[1], *ls[2:]], 3, "follow"),
        (lambda ls: [*ls[:2], forged(ls[2]), *ls[3:]], 4, "follow"),
        (lambda ls: [*ls[:4], ls[4][:-1]], 5, "changed"),
    ],
)
def test_a_line_that_was_changed_removed_or_moved_is_found(
    path: Path, change: Callable[[list[bytes]], list[bytes]], number: int, why: str
) -> None:
    path.write_bytes(b"".join(change(lines_of(path))))
    with pytest.raises(LedgerError, match=rf"line {number} of the audit file .*{why}"):
        verify(path)


@pytest.mark.parametrize("position", range(0, 900, 37))
def test_any_flipped_bit_is_found(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        verify(path)


def test_lines_cut_off_the_end_are_found_with_a_head(path: Path) -> None:
    _, head = verify(path)
    path.write_bytes(b"".join(lines_of(path)[:3]))
    assert verify(path)[0] == 3, "without a head nobody can know"
    with pytest.raises(LedgerError, match="does not contain the head"):
        verify(path, head)
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="does not contain the head"):
        verify(path, head)


def test_a_changed_file_is_not_written_to(path: Path) -> None:
    path.write_bytes(b"".join(lines_of(path)[1:]))
    with pytest.raises(LedgerError, match="line 1"):
        Audit(path)


@pytest.mark.parametrize("left", [1, 50, 150])
def test_a_line_torn_by_a_crash_is_cut_off_and_that_is_said(path: Path, left: int) -> None:
    lines = lines_of(path)
    path.write_bytes(b"".join(lines) + lines[-1][:left])
    audit = Audit(path)
    audit.close()
    assert verify(path)[0] == 6
    last = json.loads(lines_of(path)[-1])
    assert (last["event"], last["bytes_cut"]) == ("repaired", left)


def test_a_line_that_cannot_be_written_leaves_the_chain_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Audit(path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:20]))
    with pytest.raises(LedgerError, match="cannot be written"):
        audit.write("round", job="j")
    monkeypatch.undo()
    audit.write("round", job="j")
    audit.close()
    assert verify(path)[0] == 6


def test_a_caller_cannot_set_the_chain(path: Path) -> None:
    audit = Audit(path)
    audit.write("decided", seq=99, previous="x", at="never")
    audit.close()
    assert verify(path)[0] == 6


def test_threads_share_an_audit_file(path: Path) -> None:
    audit = Audit(path)
    threads = [
        threading.Thread(target=lambda: [audit.write("round") for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    audit.close()
    audit.close()
    assert verify(path)[0] == 45


def test_two_writers_cannot_fork_the_chain(path: Path) -> None:
    first = Audit(path)
    with pytest.raises(LedgerError, match="written by another process"):
        Audit(path)
    first.write("round")
    first.close()
    Audit(path).close()
    assert verify(path)[0] == 6


def test_a_file_that_was_refused_is_free_again(path: Path) -> None:
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[1:]))
    with pytest.raises(LedgerError, match="line 1"):
        Audit(path)
    path.write_bytes(b"".join(lines))
    Audit(path).close()


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no/audit\.jsonl"):
        Audit(tmp_path / "no" / "audit.jsonl")
    with pytest.raises(LedgerError, match="cannot be read"):
        verify(tmp_path / "none")


def test_the_command_verifies(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, head = verify(path)
    assert main(["verify", str(path)]) == 0
    assert f"head {head}" in capsys.readouterr().out
    assert main(["verify", str(path), "--head", head, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["lines"], document["head"]) == (5, head)
    path.write_bytes(b"".join(lines_of(path)[:4]))
    assert main(["verify", str(path), "--head", head]) == 6
    assert "its last lines were removed" in capsys.readouterr().err
