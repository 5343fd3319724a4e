"""The life of a federation: certificates, the authority and identities change while it runs."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from cloister.core.errors import PlanError, TransportError
from cloister.federation.pki import Authority, KeyFolder, client_context, install, make_request

from .federation import SILOS
from .test_jobs import wait_for
from .test_network import ended
from .test_standing import Real

ROLES = {"coordinator": "coordinator", "ana": "analyst", **dict.fromkeys(SILOS, "silo")}


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    federation = Real(tmp_path)
    yield federation
    federation.close()


def renew(real: Real, name: str, *, new_identity: bool = False) -> None:
    """What a party and the authority's owner do: request, approve, install."""
    hosts = ("localhost", "127.0.0.1") if name == "coordinator" else ()
    folder = real.folder / name / "keys"
    request = make_request(folder, ROLES[name], name, hosts, new_identity=new_identity)
    install(folder, Authority(real.folder / "ca").approve(request))


def serial_of(keys: KeyFolder) -> int:
    return x509.load_pem_x509_certificate(keys.file("tls.pem").read_bytes()).serial_number


def served(real: Real, keys: KeyFolder) -> int:
    """Return the serial number of the certificate that the coordinator shows just now."""
    host, port = real.address.removeprefix("https://").rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        client_context(keys).wrap_socket(plain, server_hostname=host) as sealed,
    ):
        return x509.load_der_x509_certificate(sealed.getpeercert(True) or b"").serial_number


def test_all_certificates_and_the_authoritys_are_renewed_without_a_stop(real: Real) -> None:
    """Old and new ones work side by side; open streams stay, and a job runs at every step."""
    silos = {name: real.silo(name) for name in SILOS}
    wait_for(lambda: real.connected() == set(SILOS))
    old, before = {name: real.keys(name).identity().fingerprint for name in ROLES}, {}
    shutil.copytree(real.folder / "a" / "keys", real.folder / "old" / "keys")
    Authority(real.folder / "ca").renew()
    for name in ("b", "coordinator", "ana", "a", "c"):
        before[name] = serial_of(real.keys(name))
        renew(real, name)
        assert serial_of(real.keys(name)) != before[name]
        with real.rest() as rest:
            done = ended(rest, real.propose())
        assert (done["state"], done["approved"]) == ("done", list(SILOS)), done["reason"]
    for folder in ("a", "old"):  # who has the authority's new certificate, and who has the old one
        assert served(real, real.keys(folder)) == serial_of(real.keys("coordinator"))
    assert {name: real.keys(name).identity().fingerprint for name in ROLES} == old
    assert real.connected() == set(SILOS)
    assert all(not silo.ends or silo.ends[-1][1] == "done" for silo in silos.values())


def test_half_an_installation_does_not_stop_the_port(real: Real) -> None:
    keys = real.folder / "coordinator" / "keys"
    shown = served(real, real.keys("ana"))
    whole = (keys / "tls.pem").read_bytes()
    (keys / "tls.pem").write_bytes(b"half a certificate")
    assert served(real, real.keys("ana")) == shown
    (keys / "tls.pem").write_bytes(whole)
    assert served(real, real.keys("ana")) == shown


def test_a_lost_identity_is_revoked_and_the_party_comes_back_under_a_new_one(real: Real) -> None:
    for name in ("a", "b"):
        real.silo(name)
    lost = real.keys("c").identity().fingerprint
    shutil.copytree(real.folder / "c" / "keys", real.folder / "thief" / "keys")
    shutil.rmtree(real.folder / "c" / "keys")
    with pytest.raises(PlanError, match="belongs to another identity"):
        renew(real, "c")  # the authority gives the name to nobody else while the old one counts
    real.revoke("c")
    with pytest.raises(TransportError):
        real.stream("thief")
    renew(real, "c")
    found = real.keys("c").identity().fingerprint
    assert found != lost
    real.silo("c")
    wait_for(lambda: real.connected() == set(SILOS))
    with real.rest() as rest:  # with the pins of today
        done = ended(rest, real.propose())
    assert (done["state"], done["approved"]) == ("done", list(SILOS)), done["reason"]


def test_an_identity_is_rotated_while_the_old_one_works(real: Real) -> None:
    old = real.keys("b").identity().fingerprint
    folder = real.folder / "b" / "keys"
    request = make_request(folder, "silo", "b", (), new_identity=True)
    assert real.keys("b").identity().fingerprint == old, "until the grant is installed"
    authority = Authority(real.folder / "ca")
    with pytest.raises(PlanError, match="belongs to another identity"):
        authority.approve(request)
    authority.revoke("b")
    install(folder, authority.approve(request))
    assert real.keys("b").identity().fingerprint != old
    assert served(real, real.keys("b")) == serial_of(real.keys("coordinator"))


def test_an_authority_of_the_same_name_with_another_key_is_refused(
    real: Real, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other-ca", "federation on this machine")
    folder = real.folder / "a" / "keys"
    with pytest.raises(PlanError, match="from another authority"):
        install(folder, other.approve(make_request(folder, "silo", "a")))
    assert served(real, real.keys("a")) == serial_of(real.keys("coordinator"))
