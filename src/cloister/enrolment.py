"""Who may connect: one certificate authority per federation, and a folder of keys per party.

A certificate admits a party to the coordinator's port, and nothing more. Whether silos compute
together rests on the fingerprints of their signing keys, which people compare out of band and pin
in each silo's configuration. So an authority that is run by somebody dishonest can keep parties
out, but can put nobody into a cohort.

A party makes its keys itself and they never leave its folder: `identity.key` signs, and is what
peers pin; `tls.key` is for connections, and is replaced with its certificate.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloister.errors import PlanError, TransportError
from cloister.hazmat.signing import Identity, fingerprint_of, verify

Role = Literal["coordinator", "silo", "analyst"]
ROLES: tuple[str, ...] = get_args(Role)

_REQUEST, _GRANT = "cloister-request/1", "cloister-grant/1"
_REQUEST_LABEL = b"cloister/1/enrol"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SCHEME = "cloister:"
_CLOCKS_DIFFER = timedelta(minutes=5)
_AUTHORITY_YEARS, _CERTIFICATE_DAYS, _CRL_DAYS = 10, 365, 3650
_WARN_DAYS = (1, 7, 30)


@dataclass(frozen=True)
class Peer:
    """Whom a certificate of the federation names.

    Parameters
    ----------
    role : {"coordinator", "silo", "analyst"}
    name : str
    fingerprint : str
        Of the party's signing key, as the authority saw it; a silo pins it by itself.
    serial : int
    not_after : datetime
    """

    role: str
    name: str
    fingerprint: str
    serial: int
    not_after: datetime


def peer_of(der: bytes) -> Peer:
    """Return whom a certificate names; that it is genuine is the TLS handshake's business.

    Raises
    ------
    TransportError
        If it is not a certificate of a federation.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise TransportError(
            "certificate is not one of a federation; ask for enrolment."
        ) from error
    uris = list(names.get_values_for_type(x509.UniformResourceIdentifier))
    found = {}
    for uri in uris:
        kind, _, rest = uri.removeprefix(_SCHEME).partition(":")
        found[kind] = rest
    roles = [role for role in ROLES if role in found]
    if len(roles) != 1 or "ed25519" not in found or len(uris) != 2:
        raise TransportError("certificate names no party of a federation; ask for enrolment.")
    return Peer(
        role=roles[0],
        name=found[roles[0]],
        fingerprint=f"ed25519:{found['ed25519']}",
        serial=certificate.serial_number,
        not_after=certificate.not_valid_after_utc,
    )


# A party's folder ------------------------------------------------------------------------------


class KeyFolder:
    """The keys and certificates of one party.

    Parameters
    ----------
    path : path-like
        Holds `identity.key`, `tls.key`, `tls.pem`, `ca.pem` and, if something was revoked,
        `crl.pem`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"KeyFolder({str(self.path)!r})"

    def file(self, name: str) -> Path:
        """Return the path of a file that must exist."""
        path = self.path / name
        if not path.is_file():
            raise PlanError(
                f"keys {str(self.path)!r} have no {name}; make them with 'cloister enroll request' "
                "and 'cloister enroll install'."
            )
        return path

    def identity(self) -> Identity:
        """Return the signing key."""
        text = self.file("identity.key").read_text(encoding="ascii").strip()
        try:
            return Identity.from_bytes(bytes.fromhex(text))
        except ValueError:
            raise PlanError(f"identity.key in {str(self.path)!r} is not a key.") from None

    def peer(self) -> Peer:
        """Return whom this folder's certificate names."""
        return peer_of(self._certificate().public_bytes(Encoding.DER))

    def expiry_warnings(self, now: datetime) -> list[str]:
        """Return a sentence if the certificate is over, or will be within 30, 7 or 1 days."""
        end = self._certificate().not_valid_after_utc
        if now >= end:
            return [f"the certificate in {str(self.path)!r} ended on {end:%Y-%m-%d}; {_RENEW}"]
        for days in _WARN_DAYS:
            if end - now <= timedelta(days=days):
                return [
                    f"the certificate in {str(self.path)!r} ends on {end:%Y-%m-%d}, in less than "
                    f"{days} day{'s' * (days > 1)}; {_RENEW}"
                ]
        return []

    def _certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.file("tls.pem").read_bytes())


_RENEW = "renew it with 'cloister enroll request' in the same folder, which keeps the fingerprint."


def make_request(
    keys: str | os.PathLike[str],
    role: str,
    name: str,
    hosts: Iterable[str] = (),
    *,
    new_identity: bool = False,
) -> dict[str, Any]:
    """Make the keys that a folder lacks and return a request for a certificate.

    Parameters
    ----------
    keys : path-like
        The party's folder. An identity that is there is kept, so a second request renews the
        certificate under the same fingerprint; `tls.key` is made anew until it has a certificate.
    role : {"coordinator", "silo", "analyst"}
    name : str
        1 to 64 of letters, digits, ``.``, ``_`` and ``-``.
    hosts : iterable of str
        Names and addresses under which a coordinator is reached.
    new_identity : bool
        Make another identity; every peer must then pin the new fingerprint.

    Returns
    -------
    dict
        JSON-able and public.
    """
    hosts = tuple(hosts)
    if role not in ROLES:
        raise PlanError(f"role must be one of {ROLES}, got {role!r}.")
    _check_name(name)
    if (role == "coordinator") != bool(hosts):
        raise PlanError(
            "hosts must be given for a coordinator, and for nobody else; use --host NAME."
        )
    folder = Path(keys)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity_file = folder / "identity.key"
    if new_identity or not identity_file.exists():
        _write_secret(identity_file, Identity.new().to_bytes().hex().encode() + b"\n")
    identity = KeyFolder(folder).identity()
    key = ec.generate_private_key(ec.SECP256R1())
    pending = folder / "tls.key.new"
    _write_secret(pending, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = csr.public_bytes(Encoding.PEM).decode()
    return {
        "format": _REQUEST,
        "role": role,
        "name": name,
        "hosts": list(hosts),
        "csr": pem,
        "identity": identity.public.hex(),
        "signature": identity.sign(_REQUEST_LABEL, *_requested(role, name, hosts, pem)).hex(),
    }


def install(keys: str | os.PathLike[str], grant: Mapping[str, Any]) -> Peer:
    """Put a granted certificate into the folder of the party that asked for it.

    Raises
    ------
    PlanError
        If the certificate is for other keys than the folder's.
    """
    folder = Path(keys)
    try:
        if grant["format"] != _GRANT:
            raise KeyError("format")
        certificate = x509.load_pem_x509_certificate(grant["certificate"].encode())
        x509.load_pem_x509_certificate(grant["ca"].encode())
    except (KeyError, ValueError, AttributeError, TypeError):
        raise PlanError(
            "grant is not one of 'cloister enroll approve'; ask for it again."
        ) from None
    peer = peer_of(certificate.public_bytes(Encoding.DER))
    if peer.fingerprint != KeyFolder(folder).identity().fingerprint:
        raise PlanError(f"grant is for another identity than the one in {str(folder)!r}.")
    for name in ("tls.key.new", "tls.key"):
        path = folder / name
        if path.is_file() and _public(load_pem_private_key(path.read_bytes(), None)) == _public(
            certificate
        ):
            os.replace(path, folder / "tls.key")
            break
    else:
        raise PlanError(
            f"grant is for another key than those in {str(folder)!r}; install it where it was "
            "asked for, or ask again."
        )
    (folder / "tls.pem").write_text(grant["certificate"], encoding="ascii")
    (folder / "ca.pem").write_text(grant["ca"], encoding="ascii")
    if grant.get("crl"):
        (folder / "crl.pem").write_text(grant["crl"], encoding="ascii")
    return peer


# The authority ---------------------------------------------------------------------------------


class Authority:
    """The certificate authority of one federation, in a folder that one person keeps.

    Parameters
    ----------
    path : path-like
        Holds `ca.key`, `ca.pem`, `crl.pem` and `issued.json`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "ca.key").is_file():
            raise PlanError(
                f"{str(self.path)!r} is no certificate authority; make one with 'cloister ca init'."
            )
        self._key = load_pem_private_key((self.path / "ca.key").read_bytes(), None)
        self._certificate = x509.load_pem_x509_certificate((self.path / "ca.pem").read_bytes())

    @classmethod
    def create(cls, path: str | os.PathLike[str], name: str) -> Authority:
        """Make an authority in a new folder; its key never leaves it."""
        folder = Path(path)
        if (folder / "ca.key").exists():
            raise PlanError(f"{str(folder)!r} is a certificate authority already; use it.")
        if not name.strip() or len(name) > 64:
            raise PlanError(f"name of the federation must have 1 to 64 characters, got {name!r}.")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCKS_DIFFER)
            .not_valid_after(now + timedelta(days=365 * _AUTHORITY_YEARS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _write_secret(folder / "ca.key", pem)
        (folder / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        authority = cls(folder)
        authority._write_issued([])
        authority._write_crl()
        return authority

    def issued(self) -> list[dict[str, Any]]:
        """Return what was issued: role, name, fingerprint, serial, dates, and whether revoked."""
        entries: list[dict[str, Any]] = json.loads((self.path / "issued.json").read_text())
        return entries

    def approve(
        self, request: Mapping[str, Any], *, days: int = _CERTIFICATE_DAYS
    ) -> dict[str, Any]:
        """Issue a certificate for a request whose fingerprint somebody compared.

        Raises
        ------
        PlanError
            If the request was changed, or its name belongs to another identity.
        """
        peer_name, fingerprint, csr = self._checked(request)
        role, hosts = request["role"], tuple(request["hosts"])
        if not 1 <= days <= 825:
            raise PlanError(f"days must be in [1, 825], got {days}.")
        for entry in self.issued():
            other = entry["fingerprint"] != fingerprint or entry["role"] != role
            if entry["name"] == peer_name and not entry["revoked"] and other:
                raise PlanError(
                    f"name {peer_name!r} belongs to another identity; revoke that first, or "
                    "ask under another name."
                )
        now = datetime.now(UTC)
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"{_SCHEME}{role}:{peer_name}"),
            x509.UniformResourceIdentifier(f"{_SCHEME}{fingerprint}"),
            *(_host(host) for host in hosts),
        ]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role == "coordinator":
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        ends = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(csr.subject)
            .issuer_name(self._certificate.subject)
            .public_key(csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCKS_DIFFER)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._certificate.public_key()),  # type: ignore[arg-type]
                critical=False,
            )
            .sign(self._key, hashes.SHA256())  # type: ignore[arg-type]
        )
        entry = {
            "role": role,
            "name": peer_name,
            "fingerprint": fingerprint,
            "serial": str(certificate.serial_number),
            "issued": now.isoformat(timespec="seconds"),
            "ends": ends.isoformat(timespec="seconds"),
            "revoked": False,
        }
        self._write_issued([*self.issued(), entry])
        return {
            "format": _GRANT,
            "certificate": certificate.public_bytes(Encoding.PEM).decode(),
            "ca": (self.path / "ca.pem").read_text(),
            "crl": (self.path / "crl.pem").read_text(),
        }

    def revoke(self, name: str) -> list[dict[str, Any]]:
        """Revoke every certificate of a name; return the entries that were not revoked before."""
        entries = self.issued()
        found = [entry for entry in entries if entry["name"] == name and not entry["revoked"]]
        if not found:
            raise PlanError(f"name {name!r} has no certificate that is valid; see issued.json.")
        for entry in found:
            entry["revoked"] = True
        self._write_issued(entries)
        self._write_crl()
        return found

    def _checked(
        self, request: Mapping[str, Any]
    ) -> tuple[str, str, x509.CertificateSigningRequest]:
        """Return name, fingerprint and signing request of a request that nobody changed."""
        fingerprint = request_fingerprint(request)
        name, role, hosts = request["name"], request["role"], tuple(request["hosts"])
        _check_name(name)
        if role not in ROLES or (role == "coordinator") != bool(hosts):
            raise PlanError(f"request of {name!r} has a role or hosts that do not fit.")
        csr = x509.load_pem_x509_csr(request["csr"].encode())
        common = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not csr.is_signature_valid or [c.value for c in common] != [name]:
            raise PlanError(f"request of {name!r} was changed; ask for it again.")
        return name, fingerprint, csr

    def _write_issued(self, entries: list[dict[str, Any]]) -> None:
        fresh = self.path / "issued.json.new"
        fresh.write_text(json.dumps(entries, indent=1) + "\n")
        os.replace(fresh, self.path / "issued.json")

    def _write_crl(self) -> None:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - _CLOCKS_DIFFER)
            .next_update(now + timedelta(days=_CRL_DAYS))
        )
        for entry in self.issued():
            if entry["revoked"]:
                revoked = x509.RevokedCertificateBuilder().serial_number(int(entry["serial"]))
                builder = builder.add_revoked_certificate(revoked.revocation_date(now).build())
        crl = builder.sign(self._key, hashes.SHA256())  # type: ignore[arg-type]
        (self.path / "crl.pem").write_bytes(crl.public_bytes(Encoding.PEM))


def request_fingerprint(request: Mapping[str, Any]) -> str:
    """Return the fingerprint that two people compare before a request is approved.

    Raises
    ------
    PlanError
        If the request is not signed by the identity it shows.
    """
    try:
        public = bytes.fromhex(request["identity"])
        signature = bytes.fromhex(request["signature"])
        parts = _requested(
            request["role"], request["name"], tuple(request["hosts"]), request["csr"]
        )
        known = request["format"] == _REQUEST
    except (KeyError, ValueError, TypeError, AttributeError):
        raise PlanError("request is not one of 'cloister enroll request'.") from None
    if not known or not verify(public, signature, _REQUEST_LABEL, *parts):
        raise PlanError(f"request of {request['name']!r} was changed; ask for it again.")
    return fingerprint_of(public)


def local_federation(
    folder: str | os.PathLike[str],
    silos: Iterable[str],
    analysts: Iterable[str] = ("analyst",),
    hosts: Iterable[str] = ("localhost", "127.0.0.1"),
) -> dict[str, Path]:
    """Make an authority and the key folders of all parties on one machine, to try things out.

    Returns
    -------
    dict of str to Path
        Key folder by name; the coordinator's is under "coordinator".
    """
    root = Path(folder)
    authority = Authority.create(root / "ca", "federation on this machine")
    parties = {"coordinator": "coordinator"}
    parties |= dict.fromkeys(silos, "silo") | dict.fromkeys(analysts, "analyst")
    folders = {}
    for name, role in parties.items():
        folders[name] = root / name / "keys"
        request = make_request(
            folders[name], role, name, tuple(hosts) if role == "coordinator" else ()
        )
        install(folders[name], authority.approve(request))
    return folders


# TLS -------------------------------------------------------------------------------------------


def server_context(folder: KeyFolder) -> ssl.SSLContext:
    """Return what the coordinator listens with: TLS 1.3, certificates of the federation only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _loaded(context, folder)


def client_context(folder: KeyFolder) -> ssl.SSLContext:
    """Return what a party dials out with: TLS 1.3, and the coordinator's name is checked."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), folder)


def revoked_serials(folder: KeyFolder) -> frozenset[int]:
    """Return the serial numbers in `crl.pem`; none if there is no such file.

    Raises
    ------
    PlanError
        If the list is not signed by the federation's authority.
    """
    path = folder.path / "crl.pem"
    if not path.is_file():
        return frozenset()
    return _serials(path.read_bytes(), folder.file("ca.pem").read_bytes())


@lru_cache(maxsize=8)
def _serials(crl_pem: bytes, ca_pem: bytes) -> frozenset[int]:
    authority = x509.load_pem_x509_certificate(ca_pem)
    try:
        crl = x509.load_pem_x509_crl(crl_pem)
        genuine = crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (ValueError, TypeError, InvalidSignature):
        genuine = False
    if not genuine:
        raise PlanError("crl.pem is not signed by the federation's authority; get it again.")
    return frozenset(revoked.serial_number for revoked in crl)


def _loaded(context: ssl.SSLContext, folder: KeyFolder) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(folder.file("ca.pem"))
        context.load_cert_chain(folder.file("tls.pem"), folder.file("tls.key"))
    except ssl.SSLError:
        raise PlanError(
            f"certificate and key in {str(folder.path)!r} do not fit together; install them again."
        ) from None
    return context


def _requested(role: str, name: str, hosts: tuple[str, ...], csr: str) -> tuple[bytes, ...]:
    return (role.encode(), name.encode(), "\n".join(hosts).encode(), csr.encode())


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PlanError(f"name must be 1 to 64 of letters, digits, '.', '_' and '-', got {name!r}.")


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _public(holder: Any) -> bytes:
    key = holder.public_key()
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    fresh = path.with_name(path.name + ".part")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(fresh, path)
