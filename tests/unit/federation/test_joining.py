"""Parties that were shown the same read the same words; parties that were not, do not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister.core.errors import CloisterError, PlanError, RemoteProtocolError
from cloister.federation.joining import (
    WORDS,
    Board,
    Federation,
    Invitation,
    Party,
    commitment,
    spoken,
    words,
)
from cloister.federation.pki import (
    Authority,
    KeyFolder,
    install,
    make_request,
    request_fingerprint,
    revoked_serials,
)

NAMES = ("hospital-a", "hospital-b", "ana")
Board_ = dict[str, Any]


def federation(ca: str, **changes: Any) -> Federation:
    values: dict[str, Any] = {
        "name": "stroke",
        "coordinator": "https://fed.example.org:8443",
        "ca": ca,
        "schema": "unit = 'row'",
        "silos": NAMES[:2],
        "analysts": NAMES[2:],
        "settings": {"cap_epsilon": 8.0},
    }
    return Federation.of({**values, **changes})


@pytest.fixture
def board(tmp_path: Path) -> Board:
    Authority.create(tmp_path / "ca", "stroke")
    ca = (tmp_path / "ca" / "ca.pem").read_text()
    Board.found(tmp_path / "ca", federation(ca))
    return Board(tmp_path / "ca")


def invited(board: Board, folder: Path) -> dict[str, Party]:
    return {name: Party(board.invite(name), folder / name) for name in NAMES}


def gather(
    board: Board, parties: dict[str, Party], seen_by: Callable[[str, Board_], Board_]
) -> None:
    """Let parties speak in turn until each is done; `seen_by` is a meddling coordinator."""
    said: dict[str, dict[str, Any]] = {name: {} for name in parties}
    for _ in range(5):
        for name, party in parties.items():
            shown = board.post(name, party.invitation.token, said[name])
            said[name] = party.answer(seen_by(name, shown))
            board.sent(name, shown)
            assert party.done or name in board.missing("seen")
    assert all(party.done for party in parties.values())


def test_everybody_reads_the_same_words_and_pins_the_same_keys(
    board: Board, tmp_path: Path
) -> None:
    parties = invited(board, tmp_path)
    gather(board, parties, lambda _, shown: shown)
    (read,) = {party.words() for party in parties.values()}
    assert len(read) == WORDS
    assert set(read) <= set(spoken())
    (pins,) = {tuple(sorted(party.accept().items())) for party in parties.values()}
    keys = {name: KeyFolder(tmp_path / name).identity().fingerprint for name in NAMES}
    assert dict(pins) == keys
    assert KeyFolder(tmp_path / "ana").peer().role == "analyst"
    assert board.missing("seen") == []


def test_a_coordinator_that_swaps_a_key_makes_the_words_differ(
    board: Board, tmp_path: Path
) -> None:
    own = make_request(tmp_path / "evil", "silo", "hospital-b")
    nonce = "0f" * 32  # chosen before anything was opened: its commitment is kept by hospital-a

    def swap(name: str, shown: Board_) -> Board_:
        if name == "hospital-b" or "hospital-b" not in shown["entries"]:
            return shown
        held = commitment(board.federation, "hospital-b", own["identity"], nonce)
        entries = {**shown["entries"], "hospital-b": {"request": own, "commitment": held}}
        openings = dict(shown["openings"])
        if "hospital-b" in openings:
            openings["hospital-b"] = nonce
        return {**shown, "entries": entries, "openings": openings}

    parties = invited(board, tmp_path)
    gather(board, parties, swap)
    read = {name: party.words() for name, party in parties.items()}
    assert read["hospital-a"] == read["ana"] != read["hospital-b"]
    swapped = parties["hospital-a"].accept()["hospital-b"]
    assert swapped == request_fingerprint(own)  # which is why nobody accepts before the call


def test_another_schema_makes_the_words_differ(board: Board, tmp_path: Path) -> None:
    parties = invited(board, tmp_path)
    other = federation(board.federation.ca, schema="unit = 'person'")
    token = parties["ana"].invitation.token
    parties["ana"] = Party(Invitation(other, "ana", token, 1e12), tmp_path / "ana")
    gather(board, parties, lambda _, shown: shown)
    assert parties["hospital-a"].words() == parties["hospital-b"].words()
    assert parties["ana"].words() != parties["hospital-a"].words()


def test_a_nonce_stays_closed_until_all_have_committed(board: Board, tmp_path: Path) -> None:
    first = invited(board, tmp_path)["hospital-a"]
    shown = board.post("hospital-a", first.invitation.token, {})
    for _ in range(3):
        message = first.answer(shown)
        assert "opening" not in message
        shown = board.post("hospital-a", first.invitation.token, message)
    assert shown["openings"] == {}
    with pytest.raises(PlanError, match="before all parties have committed"):
        board.post("hospital-a", first.invitation.token, {"opening": "0" * 64})


def test_an_opening_that_was_not_committed_to_is_refused(board: Board, tmp_path: Path) -> None:
    def later(name: str, shown: Board_) -> Board_:
        openings = dict(shown["openings"])
        if name == "ana" and "hospital-b" in openings:
            openings["hospital-b"] = "ab" * 32
        return {**shown, "openings": openings}

    with pytest.raises(RemoteProtocolError, match="'hospital-b' does not match its commitment"):
        gather(board, invited(board, tmp_path), later)


def test_a_party_whose_own_key_is_shown_changed_says_so(board: Board, tmp_path: Path) -> None:
    own = make_request(tmp_path / "evil", "silo", "hospital-a")

    def swap(name: str, shown: Board_) -> Board_:
        held = {"request": own, "commitment": "0" * 64}
        return {**shown, "entries": {**shown["entries"], "hospital-a": held}}

    with pytest.raises(RemoteProtocolError, match="another key than this party's"):
        gather(board, invited(board, tmp_path), swap)


def test_two_names_cannot_share_a_key(board: Board, tmp_path: Path) -> None:
    parties = invited(board, tmp_path)
    same = Party(parties["hospital-b"].invitation, tmp_path / "hospital-a")
    with pytest.raises(CloisterError, match="is enrolled as 'hospital-a'"):
        gather(board, {**parties, "hospital-b": same}, lambda _, shown: shown)


def test_a_roster_that_was_kept_survives_a_restart_and_no_session_follows_it_unheard(
    board: Board, tmp_path: Path
) -> None:
    parties = invited(board, tmp_path)
    gather(board, parties, lambda _, shown: shown)
    party = parties["hospital-a"]
    again = Party(party.invitation, tmp_path / "hospital-a")
    assert again.done
    assert again.words() == party.words()
    with pytest.raises(RemoteProtocolError, match="began again"):
        again.answer({"session": "other"})
    assert again.done
    fresh = Party(party.invitation, tmp_path / "hospital-a", again=True)
    before = fresh.answer({"session": "other"})  # nothing is opened yet, so it may change
    assert before["commitment"] != fresh.answer({"session": "third"})["commitment"]


def test_only_the_newest_invitation_lets_in(board: Board, tmp_path: Path) -> None:
    old = board.invite("ana")
    new = board.invite("ana")
    with pytest.raises(PlanError, match="request a new one"):
        board.post("ana", old.token, {})
    assert board.post("ana", new.token, {})["grant"] is None
    with pytest.raises(PlanError, match="name must be one of"):
        board.invite("eve")
    path = tmp_path / "ana.invitation"
    path.write_text(new.text())
    assert Invitation.load(path) == new
    assert Board(tmp_path / "ca").post("ana", new.token, {})["entries"] == {}


def test_when_all_have_sent_keys_nobody_changes_them(board: Board, tmp_path: Path) -> None:
    parties = invited(board, tmp_path)
    gather(board, parties, lambda _, shown: shown)
    fresh = Party(parties["ana"].invitation, tmp_path / "ana", again=True)
    shown = board.post("ana", fresh.invitation.token, {})
    message = fresh.answer({**shown, "entries": {}, "openings": {}})
    with pytest.raises(PlanError, match="open --again"):
        board.post("ana", fresh.invitation.token, message)
    board.begin_again()
    again = {name: Party(p.invitation, tmp_path / name, again=True) for name, p in parties.items()}
    gather(board, again, lambda _, shown: shown)
    assert again["ana"].words() != parties["ana"].words()


def test_an_invitation_ends(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    week, day = board.invite("ana"), board.invite("hospital-a", days=1)
    monkeypatch.setattr(time, "time", lambda: now + 2 * 86400)
    assert board.post("ana", week.token, {})["grant"] is None
    with pytest.raises(PlanError, match="'hospital-a' is no longer valid; request a new one"):
        board.post("hospital-a", day.token, {})
    monkeypatch.setattr(time, "time", lambda: now + 8 * 86400)
    with pytest.raises(PlanError, match="'ana' is no longer valid"):
        board.post("ana", week.token, {})
    for days in (0, 91):
        with pytest.raises(PlanError, match="days must be"):
            board.invite("ana", days=days)


def test_an_invitation_of_an_earlier_version_is_refused(board: Board, tmp_path: Path) -> None:
    document = json.loads(board.invite("ana").text())
    del document["expires"]
    path = tmp_path / "ana.invitation"
    path.write_text(json.dumps(document))
    with pytest.raises(PlanError, match="request it again"):
        Invitation.load(path)


def test_a_board_of_an_earlier_version_asks_for_new_invitations(
    board: Board, tmp_path: Path
) -> None:
    token = board.invite("ana").token
    file = tmp_path / "ca" / "board.json"
    state = json.loads(file.read_text())
    state["tokens"] = {name: held for name, (held, _) in state.pop("invited").items()}
    file.write_text(json.dumps(state))
    with pytest.raises(PlanError, match="request a new one"):
        Board(tmp_path / "ca").post("ana", token, {})


def test_a_thief_keeps_no_certificate_after_all_began_again(board: Board, tmp_path: Path) -> None:
    """A stolen invitation was used first: the words differ, and all begin again."""
    parties = invited(board, tmp_path)
    stolen = parties["hospital-b"].invitation
    gather(board, {**parties, "hospital-b": Party(stolen, tmp_path / "thief")}, lambda _, s: s)
    board.begin_again()
    authority = Authority(tmp_path / "ca")
    assert all(entry["revoked"] for entry in authority.issued())
    new = board.invite("hospital-b")
    with pytest.raises(PlanError, match="no longer valid"):
        board.post("hospital-b", stolen.token, {})
    again = {name: Party(p.invitation, tmp_path / name, again=True) for name, p in parties.items()}
    again["hospital-b"] = Party(new, tmp_path / "hospital-b")
    gather(board, again, lambda _, shown: shown)
    for party in again.values():
        party.accept()
    keys = tmp_path / "coordinator"
    install(keys, authority.approve(make_request(keys, "coordinator", "coordinator", ("h",))))
    (keys / "crl.pem").unlink()
    authority.share_list(keys)
    revoked = {int(entry["serial"]) for entry in authority.issued() if entry["revoked"]}
    assert revoked_serials(KeyFolder(keys)) == revoked
    assert KeyFolder(tmp_path / "hospital-b").peer().serial not in revoked


def test_the_authority_that_is_installed_is_the_one_of_the_words(
    board: Board, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other", "stroke")
    parties = invited(board, tmp_path)

    def swap(name: str, shown: Board_) -> Board_:
        if shown["grant"] is None:
            return shown
        return {**shown, "grant": other.approve(shown["entries"][name]["request"])}

    gather(board, parties, swap)
    with pytest.raises(PlanError, match="request it again"):
        parties["hospital-a"].accept()
    assert not (tmp_path / "hospital-a" / "ca.pem").exists()


@pytest.mark.parametrize(
    ("silos", "why"),
    [
        (("Mercy", "mercy"), "read alike"),
        (("hosp-l", "hosp-I"), "read alike"),
        (("hosp-1", "hosp-l"), "read alike"),
        (("s.1", "s_1"), "read alike"),
        (("ward0", "wardO"), "read alike"),
        (("north", "nortb", "modern", "modem"), "read alike"),
        (("a", "Ana"), "read alike"),
        (("coordinator", "a"), "reads like the role 'coordinator'"),
        (("C00RDINAT0R", "a"), "reads like the role 'coordinator'"),
        (("ca", "a"), "reads like the role 'ca'"),
        (("a", "analyst"), "reads like the role 'analyst'"),
    ],
)
def test_names_that_read_alike_are_refused(silos: tuple[str, ...], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        federation("ca", silos=silos)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"settings": {"cap_epsilon": 8.0, "policy": {"standing": True}}}, "'policy.standing'"),
        ({"settings": {"tasks": {"mine": "file.py:Mine"}}}, "must not set 'tasks'"),
        ({"silos": ("../x",)}, "name must be"),
        ({"silos": ("ana",)}, "request it again"),
        ({"silos": (), "analysts": ()}, "request it again"),
        ({"schema": None}, "request it again"),
    ],
)
def test_an_invitation_cannot_set_what_is_the_owners(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        federation("ca", **changes)


@pytest.mark.parametrize("changed", ["request", "commitment", "name"])
def test_what_is_not_of_the_party_is_refused(board: Board, tmp_path: Path, changed: str) -> None:
    party = invited(board, tmp_path)["ana"]
    message = party.answer(board.post("ana", party.invitation.token, {}))
    if changed == "request":
        message["request"] = make_request(tmp_path / "evil", "silo", "hospital-a")
    elif changed == "name":
        message["request"] = {**message["request"], "name": "hospital-a"}
    else:
        message["commitment"] = "short"
    with pytest.raises(CloisterError):
        board.post("ana", party.invitation.token, message)


def test_words_cover_every_part_that_was_kept(tmp_path: Path) -> None:
    fed = federation("ca")
    keys = {name: make_request(tmp_path / name, r, name) for name, r in fed.roles.items()}
    nonces = dict(zip(NAMES, ("1" * 64, "2" * 64, "3" * 64), strict=True))
    roster = {
        name: [keys[name]["identity"], commitment(fed, name, keys[name]["identity"], nonces[name])]
        for name in NAMES
    }
    read = words(fed, roster, nonces)
    for change in ({"name": "x"}, {"coordinator": "https://x:1"}, {"settings": {}}, {"ca": "x"}):
        assert words(federation(**{"ca": "ca", **change}), roster, nonces) != read
    assert len(spoken()) == len(set(spoken())) == len({word[:4] for word in spoken()}) == 256
