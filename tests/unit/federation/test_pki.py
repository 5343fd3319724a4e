"""Certificates admit to the port; keys stay where they were made."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from cloister.core.errors import PlanError, TransportError
from cloister.federation import pki as enrolment
from cloister.federation.pki import (
    Authority,
    KeyFolder,
    client_context,
    install,
    local_federation,
    make_request,
    peer_of,
    request_fingerprint,
    revoked_serials,
    server_context,
)
from cloister.hazmat.signing import Identity


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "test")


def enrolled(authority: Authority, folder: Path, role: str = "silo", name: str = "a") -> KeyFolder:
    hosts = ("localhost", "127.0.0.1") if role == "coordinator" else ()
    install(folder, authority.approve(make_request(folder, role, name, hosts)))
    return KeyFolder(folder)


# --- Keys and requests ----------------------------------------------------------------------------


def test_what_is_secret_is_readable_by_its_owner_alone(
    authority: Authority, tmp_path: Path
) -> None:
    keys = enrolled(authority, tmp_path / "a")
    for path in (authority.path / "ca.key", keys.path / "identity.key", keys.path / "tls.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(keys.path.glob("*.new")) + list(keys.path.glob("*.part"))


def test_every_key_that_exists_must_be_private(authority: Authority, tmp_path: Path) -> None:
    """A party that dials no coordinator has an identity and no certificate."""
    make_request(tmp_path / "b", "silo", "b")
    KeyFolder(tmp_path / "b").check_private()
    keys = enrolled(authority, tmp_path / "a")
    keys.check_private()
    (keys.path / "tls.key").chmod(0o644)
    with pytest.raises(PlanError, match=r"others may read the key '.*tls\.key'; chmod 600 it"):
        keys.check_private()
    (keys.path / "identity.key").unlink()
    with pytest.raises(PlanError, match=r"have no identity\.key"):
        keys.check_private()


def test_no_secret_leaves_in_a_request_or_a_grant(authority: Authority, tmp_path: Path) -> None:
    request = make_request(tmp_path / "a", "silo", "a")
    grant = authority.approve(request)
    seed = KeyFolder(tmp_path / "a").identity().to_bytes().hex()
    public = json.dumps([request, grant])
    assert seed not in public
    assert "PRIVATE" not in public


def test_a_certificate_names_role_name_and_fingerprint(
    authority: Authority, tmp_path: Path
) -> None:
    for role, name in (("silo", "a"), ("coordinator", "c"), ("analyst", "ana")):
        keys = enrolled(authority, tmp_path / name, role, name)
        peer = keys.peer()
        assert (peer.role, peer.name) == (role, name)
        assert peer.fingerprint == keys.identity().fingerprint
        assert peer.not_after > datetime.now(UTC) + timedelta(days=300)


def test_renewal_keeps_the_fingerprint_and_a_new_identity_changes_it(
    authority: Authority, tmp_path: Path
) -> None:
    keys = enrolled(authority, tmp_path / "a")
    first, key = keys.peer(), (keys.path / "tls.key").read_bytes()
    again = enrolled(authority, tmp_path / "a").peer()
    assert again.fingerprint == first.fingerprint
    assert again.serial != first.serial
    assert (keys.path / "tls.key").read_bytes() != key
    other = make_request(tmp_path / "a", "silo", "a", new_identity=True)
    assert request_fingerprint(other) != first.fingerprint
    with pytest.raises(PlanError, match="belongs to another identity"):
        authority.approve(other)
    authority.revoke("a")
    assert install(tmp_path / "a", authority.approve(other)).fingerprint != first.fingerprint


def test_the_old_certificate_works_until_the_new_one_is_installed(
    authority: Authority, tmp_path: Path
) -> None:
    keys = enrolled(authority, tmp_path / "a")
    make_request(tmp_path / "a", "silo", "a")  # asked for, not yet granted
    client_context(keys)


@pytest.mark.parametrize("field", ["role", "name", "hosts", "csr", "identity", "signature"])
def test_a_request_that_was_changed_is_refused(
    field: str, authority: Authority, tmp_path: Path
) -> None:
    request = make_request(tmp_path / "a", "silo", "a")
    other = make_request(tmp_path / "b", "analyst", "b")
    changed = {**request, field: ["x"] if field == "hosts" else other[field]}
    with pytest.raises(PlanError, match="changed"):
        authority.approve(changed)


@pytest.mark.parametrize("name", ["", "a b", "../a", "..", "-a", "a" * 65, "ü", "a\n"])
def test_a_name_is_plain(name: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="name must be"):
        make_request(tmp_path / "x", "silo", name)


def test_hosts_are_for_the_coordinator_alone(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="hosts"):
        make_request(tmp_path / "x", "coordinator", "c")
    with pytest.raises(PlanError, match="hosts"):
        make_request(tmp_path / "x", "silo", "a", ("h",))


@pytest.mark.parametrize("host", ["", "*.org", "a b", "h:1", "https://h", "ü", "a\nb", "h" * 254])
def test_a_host_is_a_name_or_an_address(host: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="host must be"):
        make_request(tmp_path / "x", "coordinator", "c", (host,))
    assert not (tmp_path / "x").exists()


def resigned(keys: Path, **changes: object) -> dict[str, object]:
    """Return the request that a party makes who signs whatever it likes."""
    made = {**make_request(keys, "silo", "a"), **changes}
    parts = enrolment._requested(made["role"], made["name"], tuple(made["hosts"]), made["csr"])
    identity = KeyFolder(keys).identity()
    return {**made, "signature": identity.sign(enrolment._REQUEST_LABEL, *parts).hex()}


def test_what_a_party_signs_itself_is_checked_too(authority: Authority, tmp_path: Path) -> None:
    keys = tmp_path / "a"
    authority.approve(resigned(keys))
    weak = ec.generate_private_key(ec.SECP192R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = csr.sign(weak, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    for changes in ({"csr": "junk"}, {"csr": pem}, {"name": "b"}, {"role": "king"}, {"hosts": "h"}):
        with pytest.raises(PlanError):
            authority.approve(resigned(keys, **changes))
    assert len(authority.issued()) == 1


def test_one_party_cannot_have_two_names(authority: Authority, tmp_path: Path) -> None:
    enrolled(authority, tmp_path / "a")
    with pytest.raises(PlanError, match="is enrolled as 'a'"):
        authority.approve(make_request(tmp_path / "a", "silo", "twin"))
    authority.revoke("a")
    assert enrolled(authority, tmp_path / "a", name="twin").peer().name == "twin"


def test_a_grant_of_another_authority_does_not_replace_ours(
    authority: Authority, tmp_path: Path
) -> None:
    keys = enrolled(authority, tmp_path / "a")
    before = {path.name: path.read_bytes() for path in keys.path.iterdir()}
    request = make_request(keys.path, "silo", "a")
    theirs = Authority.create(tmp_path / "other", "test").approve(request)
    with pytest.raises(PlanError, match="another authority"):
        install(keys.path, theirs)
    ours = authority.approve(request)
    for mixed in ({**theirs, "ca": ours["ca"]}, {**ours, "crl": theirs["crl"]}):
        with pytest.raises(PlanError):
            install(keys.path, mixed)
    assert {name: (keys.path / name).read_bytes() for name in before} == before


def test_a_grant_that_was_on_its_way_undoes_no_revocation(
    authority: Authority, tmp_path: Path
) -> None:
    serial = enrolled(authority, tmp_path / "a").peer().serial
    keys = enrolled(authority, tmp_path / "c", "coordinator", "c")
    grant = authority.approve(make_request(keys.path, "coordinator", "c", ("localhost",)))
    authority.revoke("a")
    shutil.copy(authority.path / "crl.pem", keys.path)
    install(keys.path, grant)
    assert revoked_serials(keys) == {serial}


def test_an_installation_that_was_cut_short_is_repeated(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = enrolled(authority, tmp_path / "a")
    authority.revoke("a")
    request = make_request(keys.path, "silo", "a", new_identity=True)
    grant = authority.approve(request)
    write = enrolment._write_public
    for last in ("ca.pem", "crl.pem", "tls.pem"):

        def cut(path: Path, content: bytes, last: str = last) -> None:
            if path.name == last:
                raise KeyboardInterrupt
            write(path, content)

        monkeypatch.setattr(enrolment, "_write_public", cut)
        with pytest.raises(KeyboardInterrupt):
            install(keys.path, grant)
        monkeypatch.undo()
    assert install(keys.path, grant).fingerprint == request_fingerprint(request)
    client_context(keys)


def test_a_grant_for_other_keys_is_not_installed(authority: Authority, tmp_path: Path) -> None:
    grant = authority.approve(make_request(tmp_path / "a", "silo", "a"))
    make_request(tmp_path / "b", "silo", "b")
    with pytest.raises(PlanError, match="another identity"):
        install(tmp_path / "b", grant)
    make_request(tmp_path / "a", "silo", "a")  # a newer key took the place of the asked one
    with pytest.raises(PlanError, match="another key"):
        install(tmp_path / "a", grant)
    with pytest.raises(PlanError, match="request it again"):
        install(tmp_path / "a", {"format": "x"})


def test_an_authority_is_made_once(authority: Authority) -> None:
    with pytest.raises(PlanError, match="already"):
        Authority.create(authority.path, "again")
    (authority.path / "ca.key").rename(authority.path.parent / "offline")
    before = (authority.path / "issued.json").read_bytes()
    with pytest.raises(PlanError, match="already"):  # its key is kept elsewhere
        Authority.create(authority.path, "again")
    assert (authority.path / "issued.json").read_bytes() == before
    with pytest.raises(PlanError, match="no certificate authority"):
        Authority(authority.path / "nowhere")


@pytest.mark.parametrize(
    ("days", "words"), [(29, "30 days"), (6, "7 days"), (0.5, "1 day"), (-1, "ended")]
)
def test_it_is_said_when_a_certificate_ends(
    days: float, words: str, authority: Authority, tmp_path: Path
) -> None:
    keys = enrolled(authority, tmp_path / "a")
    end = keys.peer().not_after
    assert keys.expiry_warnings(end - timedelta(days=31)) == []
    (warning,) = keys.expiry_warnings(end - timedelta(days=days))
    assert words in warning


# --- Revocation -----------------------------------------------------------------------------------


def test_revoked_serials_are_in_the_signed_list(authority: Authority, tmp_path: Path) -> None:
    keys = enrolled(authority, tmp_path / "a")
    assert revoked_serials(keys) == frozenset()
    authority.revoke("a")
    (keys.path / "crl.pem").write_bytes((authority.path / "crl.pem").read_bytes())
    assert revoked_serials(keys) == {keys.peer().serial}
    with pytest.raises(PlanError, match="no valid certificate"):
        authority.revoke("a")


def test_a_list_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    keys = enrolled(authority, tmp_path / "a")
    other = Authority.create(tmp_path / "other", "test")
    (keys.path / "crl.pem").write_bytes((other.path / "crl.pem").read_bytes())
    with pytest.raises(PlanError, match="not signed"):
        revoked_serials(keys)


def test_a_revocation_that_was_cut_short_is_repeated(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = enrolled(authority, tmp_path / "a")
    for part in ("_write_crl", "_write_issued"):
        with monkeypatch.context() as patch:
            patch.setattr(Authority, part, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                authority.revoke("a")
    authority.revoke("a")
    shutil.copy(authority.path / "crl.pem", keys.path)
    assert revoked_serials(keys) == {keys.peer().serial}


@pytest.mark.parametrize("der", [b"", b"\x30\x00", b"x" * 200])
def test_what_is_no_certificate_names_nobody(der: bytes) -> None:
    with pytest.raises(TransportError, match="enrolment"):
        peer_of(der)


def test_the_authoritys_own_certificate_names_nobody(authority: Authority) -> None:
    pem = (authority.path / "ca.pem").read_bytes()
    with pytest.raises(TransportError):
        peer_of(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))


# --- Connections ----------------------------------------------------------------------------------


def greet(server: KeyFolder, client: KeyFolder | ssl.SSLContext, host: str = "localhost") -> str:
    """Connect over loopback; return whom the server saw, or raise what the client saw."""
    seen: list[str] = []
    context = client_context(client) if isinstance(client, KeyFolder) else client
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def accept() -> None:
            raw, _ = listener.accept()
            try:
                with server_context(server).wrap_socket(raw, server_side=True) as tls:
                    seen.append(peer_of(tls.getpeercert(True) or b"").name)
                    tls.sendall(b"hello")
            except OSError:
                raw.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            with (
                socket.create_connection(("127.0.0.1", port), 60) as raw,
                context.wrap_socket(raw, server_hostname=host) as tls,
            ):
                assert tls.version() == "TLSv1.3"
                if tls.recv(5) != b"hello":
                    raise ssl.SSLError("refused")
        finally:
            thread.join(60)
    return seen[0]


def test_two_parties_of_a_federation_know_each_other(tmp_path: Path) -> None:
    keys = local_federation(tmp_path, ("a", "b"))
    coordinator = KeyFolder(keys["coordinator"])
    assert greet(coordinator, KeyFolder(keys["a"])) == "a"
    assert greet(coordinator, KeyFolder(keys["b"]), host="127.0.0.1") == "b"


def test_a_certificate_of_another_authority_is_refused_by_both_sides(tmp_path: Path) -> None:
    ours = local_federation(tmp_path / "ours", ("a",))
    theirs = local_federation(tmp_path / "theirs", ("a",))
    with pytest.raises(ssl.SSLError):
        greet(KeyFolder(ours["coordinator"]), KeyFolder(theirs["a"]))


@pytest.mark.parametrize("sealed", ["foreign", "none", "old TLS"])
def test_the_coordinator_admits_nobody_else(sealed: str, tmp_path: Path) -> None:
    """The client trusts the coordinator in each case, so the refusal is the coordinator's own."""
    ours = local_federation(tmp_path / "ours", ("a",))
    context = client_context(KeyFolder(ours["a"]))
    if sealed == "foreign":
        theirs = local_federation(tmp_path / "theirs", ("a",))["a"]
        context.load_cert_chain(theirs / "tls.pem", theirs / "tls.key")
    elif sealed == "none":
        context = ssl.create_default_context(cafile=str(ours["a"] / "ca.pem"))
    else:
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError, match=r"(?i)alert|reset|refused|protocol"):
        greet(KeyFolder(ours["coordinator"]), context)
    assert greet(KeyFolder(ours["coordinator"]), KeyFolder(ours["a"])) == "a"


def test_the_coordinator_admits_nobody_whose_certificate_is_over(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = enrolled(authority, tmp_path / "c", "coordinator", "c")
    past = datetime.now(UTC) - timedelta(days=30)
    clock = type("Past", (datetime,), {"now": classmethod(lambda *_: past)})
    monkeypatch.setattr(enrolment, "datetime", clock)
    request = make_request(tmp_path / "a", "silo", "a")
    install(tmp_path / "a", authority.approve(request, days=7))
    monkeypatch.undo()
    with pytest.raises(OSError, match=r"(?i)alert|reset|refused"):
        greet(coordinator, KeyFolder(tmp_path / "a"))


def test_a_coordinator_that_was_revoked_is_refused_by_a_silo_that_has_the_list(
    authority: Authority, tmp_path: Path
) -> None:
    coordinator = enrolled(authority, tmp_path / "c", "coordinator", "c")
    silo = enrolled(authority, tmp_path / "a")
    other = enrolled(authority, tmp_path / "b", name="b")
    authority.revoke("b")
    shutil.copy(authority.path / "crl.pem", silo.path)
    assert greet(coordinator, silo) == "a"  # a list with others in it changes nothing
    authority.revoke("c")
    assert greet(coordinator, silo) == "a"  # nobody copied the list yet
    shutil.copy(authority.path / "crl.pem", silo.path)
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        greet(coordinator, silo)
    assert other.peer().serial in revoked_serials(silo)


def test_a_coordinator_under_another_name_is_refused(tmp_path: Path) -> None:
    keys = local_federation(tmp_path, ("a",), hosts=("fed.example.org",))
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname"):
        greet(KeyFolder(keys["coordinator"]), KeyFolder(keys["a"]))


def test_a_silo_cannot_play_the_coordinator(tmp_path: Path) -> None:
    keys = local_federation(tmp_path, ("a", "b"))
    with pytest.raises(ssl.SSLError):
        greet(KeyFolder(keys["a"]), KeyFolder(keys["b"]))


def test_an_expired_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Past(datetime):
        @classmethod
        def now(cls, tz=None):  # type: ignore[no-untyped-def]
            return datetime.now(tz) - timedelta(days=800)

    monkeypatch.setattr(enrolment, "datetime", Past)
    keys = local_federation(tmp_path, ("a",))
    monkeypatch.undo()
    with pytest.raises(ssl.SSLError):
        greet(KeyFolder(keys["coordinator"]), KeyFolder(keys["a"]))


def test_key_and_certificate_must_fit(tmp_path: Path) -> None:
    keys = local_federation(tmp_path, ("a", "b"))
    (keys["a"] / "tls.key").write_bytes((keys["b"] / "tls.key").read_bytes())
    with pytest.raises(PlanError, match="do not match"):
        client_context(KeyFolder(keys["a"]))


def test_a_folder_without_keys_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="enroll request', and then 'approve'"):
        KeyFolder(tmp_path).identity()
    (tmp_path / "identity.key").write_text("no key")
    with pytest.raises(PlanError, match="is not a key"):
        KeyFolder(tmp_path).identity()


def test_an_identity_survives_its_file(tmp_path: Path) -> None:
    make_request(tmp_path, "silo", "a")
    assert isinstance(KeyFolder(tmp_path).identity(), Identity)
    assert KeyFolder(tmp_path).identity() == KeyFolder(tmp_path).identity()
