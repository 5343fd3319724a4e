"""Certificates: one authority per federation, and a folder of keys per party.

A certificate admits a party to the coordinator's port and proves nothing else. Silos compute
together based on the fingerprints of their signing keys. Their owners compare the fingerprints out
of band and pin them in each silo's configuration. So a dishonest authority can exclude parties, but
cannot add a party to a cohort.

Each party creates its keys, and they never leave its folder. `identity.key` signs, and peers pin
it; `tls.key` is for connections, and is replaced together with its certificate.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
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

from cloister.core.declared import Declaration, Range, validate
from cloister.core.errors import (
    CloisterError,
    DataError,
    LocalProtocolError,
    PlanError,
    TransportError,
    raise_if_any,
)
from cloister.core.numerals import counted
from cloister.hazmat.signing import Identity, fingerprint_of, verify

Role = Literal["coordinator", "silo", "analyst", "scorer"]
ROLES: tuple[str, ...] = get_args(Role)
_LISTENING = ("coordinator", "scorer")  # whom others dial

# Format names of the two JSON files, so that a later version can refuse them in one sentence.
_REQUEST, _GRANT = "cloister-request/1", "cloister-grant/1"
_REQUEST_LABEL = b"cloister/1/enrol"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")  # names of folders too, so never ".."
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?")
# Role, name and fingerprint are URIs of the subject alternative name.
_SCHEME = "cloister:"
_PARTY = re.compile(rf"{_SCHEME}({'|'.join(ROLES)}):({_NAME.pattern})")
_FINGERPRINT = re.compile(rf"{_SCHEME}(ed25519:[0-9a-f]{{64}})")
# Certificates start this much earlier, so that a slow clock accepts them immediately.
_CLOCKS_DIFFER = timedelta(minutes=5)
_OF_TLS = ("tls.pem", "tls.key")
# The list is not renewed by itself, so it must not expire before the authority.
_AUTHORITY_YEARS, _CERTIFICATE_DAYS, _CRL_DAYS = 10, 365, 3650
# In ascending order: the first that applies is reported.
_WARN_DAYS = (1, 7, 30)


@dataclass(frozen=True)
class Peer:
    """The party that a certificate of the federation names.

    Parameters
    ----------
    role : {"coordinator", "silo", "analyst", "scorer"}
    fingerprint : str
        Fingerprint of the party's signing key, as the authority saw it; silos pin it separately.
    """

    role: str
    name: str
    fingerprint: str
    serial: int
    not_after: datetime


def peer_of(der: bytes) -> Peer:
    """Return the party that a certificate names; the TLS handshake verified the certificate."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        common = _common_names(certificate)
    except (
        ValueError,
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise TransportError(
            "certificate does not belong to a federation; request enrolment."
        ) from error
    parties = [found for uri in uris if (found := _PARTY.fullmatch(uri))]
    prints = [found for uri in uris if (found := _FINGERPRINT.fullmatch(uri))]
    # These two names and no other: with more, a certificate could pass for two parties.
    if (len(parties), len(prints), len(uris)) != (1, 1, 2) or common != [parties[0][2]]:
        raise TransportError("certificate names no party of a federation; request enrolment.")
    return Peer(
        role=parties[0][1],
        name=parties[0][2],
        fingerprint=prints[0][1],
        serial=certificate.serial_number,
        not_after=certificate.not_valid_after_utc,
    )


# A party's folder ------------------------------------------------------------------------------


class KeyFolder:
    """The keys and certificates of one party.

    Parameters
    ----------
    path : path-like
        Folder of `identity.key`, `tls.key`, `tls.pem`, `ca.pem` and, after a revocation, `crl.pem`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"KeyFolder({str(self.path)!r})"

    def file(self, name: str) -> Path:
        """Return the path of a file that must exist."""
        path = self.path / name
        with _using(path):
            there = path.is_file()
        if not there:
            raise PlanError(
                f"keys {str(self.path)!r} have no {name}; make them with 'cloister federation "
                "enroll request', and then 'approve' at the authority and 'install'."
            )
        return path

    def check_private(self) -> None:
        """Check that no other account can read or replace the keys.

        Raises
        ------
        PlanError
            If another account can; like ssh, a party does not use such keys.
        """
        raise_if_any(self._open_to_others())

    def _open_to_others(self) -> Iterator[str]:
        if is_open_to_others(self.path, 0o022):
            yield f"others may write into the folder of keys {str(self.path)!r}; chmod 700 it."
        keys, of_connections = [self.file("identity.key")], self.path / "tls.key"
        if of_connections.exists():  # whoever dials no coordinator has no certificate
            keys.append(of_connections)
        for key in filter(is_open_to_others, keys):
            yield (
                f"others may read the key {str(key)!r}; chmod 600 it, and make new keys if others "
                "had an account here."
            )

    def identity(self) -> Identity:
        """Return the signing key."""
        return _identity(self.file("identity.key"))

    def pending(self) -> bool:
        """Return True if a requested certificate is not installed yet."""
        return (self.path / "tls.key.new").exists()

    def peer(self) -> Peer:
        """Return the party that this folder's certificate names."""
        return peer_of(self._certificate().public_bytes(Encoding.DER))

    def expiry_warnings(self, now: datetime) -> list[str]:
        """Return a sentence if the certificate expired, or will within 30, 7 or 1 days."""
        end = self._certificate().not_valid_after_utc
        if now >= end:
            return [f"the certificate in {str(self.path)!r} ended on {end:%Y-%m-%d}; {_RENEW}"]
        for days in _WARN_DAYS:
            if end - now <= timedelta(days=days):
                return [
                    f"the certificate in {str(self.path)!r} ends on {end:%Y-%m-%d}, in less than "
                    f"{counted(days, 'day')}; {_RENEW}"
                ]
        return []

    def _certificate(self) -> x509.Certificate:
        path = self.file("tls.pem")
        try:
            with _using(path):
                return x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError:
            raise PlanError(
                f"tls.pem in {str(self.path)!r} is not a certificate; install the grant again."
            ) from None


_RENEW = (
    "renew it with 'cloister federation enroll request' in the same folder, which keeps the "
    "fingerprint."
)


def make_request(
    keys: str | os.PathLike[str],
    role: str,
    name: str,
    hosts: Iterable[str] = (),
    *,
    new_identity: bool = False,
) -> dict[str, Any]:
    """Create the keys that a folder lacks and return a request for a certificate.

    Parameters
    ----------
    keys : path-like
        The party's folder. An existing identity is kept, so a second request renews the certificate
        under the same fingerprint. New keys are stored separately from those in use until their
        certificate is installed; a later request replaces a pending one.
    role : {"coordinator", "silo", "analyst", "scorer"}
    name : str
        1 to 64 of letters, digits, ``.``, ``_`` and ``-``.
    hosts : iterable of str
        Host names and addresses of a coordinator or a scorer.
    new_identity : bool
        If True, create another identity, whose fingerprint every peer must pin. The one in use
        remains until the grant is installed.

    Returns
    -------
    dict
        JSON-able and public.
    """
    hosts = tuple(hosts)
    raise_if_any(_rules_of_party(role, name, hosts))
    folder = Path(keys)
    make_folder(folder)
    identity_file = folder / "identity.key"
    if not identity_file.exists():
        write_secret(identity_file, _text(Identity.new()))
    elif new_identity:
        identity_file = folder / "identity.key.new"
        write_secret(identity_file, _text(Identity.new()), in_place_of_one_that_waits=True)
    identity = _identity(identity_file)
    # P-256, as TLS libraries and proxies widely support it; Ed25519 certificates less so.
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_secret(folder / "tls.key.new", pem, in_place_of_one_that_waits=True)
    subject = _subject(name)
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    asked = csr.public_bytes(Encoding.PEM).decode()
    return {
        "format": _REQUEST,
        "role": role,
        "name": name,
        "hosts": list(hosts),
        "csr": asked,
        "identity": identity.public.hex(),
        "signature": identity.sign(_REQUEST_LABEL, *_requested(role, name, hosts, asked)).hex(),
    }


def install(keys: str | os.PathLike[str], grant: Mapping[str, Any]) -> Peer:
    """Install a granted certificate in the folder of the party that requested it.

    A grant may arrive by mail, so it is accepted only if it matches the keys and the authority of
    the folder. An older revocation list does not replace the folder's.
    """
    folder = Path(keys)
    try:
        # KeyError, to get the sentence for every malformed grant.
        if grant["format"] != _GRANT:
            raise KeyError("format")
        pem, ca_pem, crl_pem = (grant[key].encode() for key in ("certificate", "ca", "crl"))
        certificate = x509.load_pem_x509_certificate(pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca_pem))
    except (KeyError, ValueError, AttributeError, TypeError, InvalidSignature):
        raise PlanError(
            "grant was not made by 'cloister federation enroll approve'; request it again."
        ) from None
    peer = peer_of(certificate.public_bytes(Encoding.DER))
    crl = _crl(crl_pem, ca_pem)
    _check_same_authority(folder, ca_pem)
    identities = (folder / "identity.key.new", KeyFolder(folder).file("identity.key"))
    identity = _fitting(
        "identity", identities, lambda p: _identity(p).fingerprint == peer.fingerprint
    )
    keys_here = (folder / "tls.key.new", folder / "tls.key")
    key = _fitting("key", keys_here, lambda path: _key_fits(path, certificate))
    # In this order, the same grant can be installed again after a crash at any point.
    _write_public(folder / "ca.pem", ca_pem)
    if not _has_newer_list(folder, crl):
        _write_public(folder / "crl.pem", crl_pem)
    with _using(folder):
        os.replace(identity, folder / "identity.key")
        os.replace(key, folder / "tls.key")
    _write_public(folder / "tls.pem", pem)
    return peer


def _fitting(what: str, files: tuple[Path, Path], fits: Callable[[Path], bool]) -> Path:
    """Return the file, pending or in use, that a grant matches."""
    for file in files:
        if file.is_file() and fits(file):
            return file
    raise PlanError(
        f"grant is for another {what} than those in {str(files[0].parent)!r}; install it in the "
        "folder of its request, or request it again."
    )


def _check_same_authority(folder: Path, ca_pem: bytes) -> None:
    """Raise PlanError for another authority; the same one may have renewed its certificate."""
    path = folder / "ca.pem"
    with _using(path):
        if not path.is_file() or _authority_of(path.read_bytes()) == _authority_of(ca_pem):
            return
    raise PlanError(
        f"grant comes from another authority than ca.pem in {str(folder)!r}; if the owner of the "
        "federation confirms a new authority, move ca.pem and crl.pem away first."
    )


def _authority_of(ca_pem: bytes) -> object:
    """Return the identity of an authority: its name and its key."""
    try:
        certificate = x509.load_pem_x509_certificate(ca_pem)
        key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    # An unreadable file equals only itself.
    except (ValueError, UnsupportedAlgorithm):
        return ca_pem
    return certificate.subject, key


def _has_newer_list(folder: Path, crl: x509.CertificateRevocationList) -> bool:
    """Return True if the folder's revocation list is newer than the grant's."""
    try:
        own = _crl((folder / "crl.pem").read_bytes(), (folder / "ca.pem").read_bytes())
    except (OSError, PlanError):
        return False
    # Dates are whole seconds, and serials are never removed, so the list with more is newer.
    return {r.serial_number for r in own} > {r.serial_number for r in crl} or (
        own.last_update_utc > crl.last_update_utc
    )


# The authority ---------------------------------------------------------------------------------


class Authority:
    """The certificate authority of one federation, in a folder of one operator.

    Parameters
    ----------
    path : path-like
        Folder of `ca.key`, `ca.pem`, `crl.pem` and `issued.json`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "ca.key").is_file():
            raise PlanError(
                f"{str(self.path)!r} is no certificate authority; make one with 'cloister "
                "federation ca init'."
            )
        try:
            with _using(self.path):
                self._certificate = x509.load_pem_x509_certificate(
                    (self.path / "ca.pem").read_bytes()
                )
                key = load_pem_private_key((self.path / "ca.key").read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not _same_key(key, self._certificate):
            raise PlanError(f"ca.key and ca.pem in {str(self.path)!r} do not match; restore them.")
        self._key = key

    @classmethod
    def create(cls, path: str | os.PathLike[str], name: str) -> Authority:
        """Create an authority in a new folder, which its key never leaves."""
        folder = Path(path)
        # A second authority in the folder would replace the key that all parties trust.
        if any((folder / file).exists() for file in ("ca.key", "ca.pem", "issued.json")):
            raise PlanError(
                f"{str(folder)!r} is a certificate authority already; use it, with its ca.key."
            )
        if not name.strip() or len(name) > 64:
            raise PlanError(f"name of the federation must have 1 to 64 characters, got {name!r}.")
        make_folder(folder)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _own_certificate(_subject(name), key)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_secret(folder / "ca.key", pem)
        _write_public(folder / "ca.pem", certificate.public_bytes(Encoding.PEM))
        authority = cls(folder)
        authority._write_issued([])
        authority._write_crl([])
        return authority

    def renew(self) -> None:
        """Renew the authority's certificate for the same key, valid from now on.

        Issued certificates stay valid under both. A party gets the new one with its next grant, so
        all must renew theirs before the old one expires. The revocation list is signed again.
        """
        self._certificate = _own_certificate(self._certificate.subject, self._key)
        _write_public(self.path / "ca.pem", self._certificate.public_bytes(Encoding.PEM))
        self._write_crl(self.issued())

    def issued(self) -> list[dict[str, Any]]:
        """Return issued certificates: role, name, fingerprint, serial, dates, revocation."""
        path = self.path / "issued.json"
        try:
            with _using(path):
                entries: list[dict[str, Any]] = json.loads(path.read_bytes())
        except ValueError:
            raise PlanError(f"{str(path)!r} is no list of certificates; restore it.") from None
        return entries

    def approve(
        self, request: Mapping[str, Any], *, days: int = _CERTIFICATE_DAYS
    ) -> dict[str, Any]:
        """Issue a certificate for a request whose fingerprint the operator compared.

        Raises
        ------
        PlanError
            If the request was changed, its name belongs to another identity, or its identity is
            enrolled under another name. One party with two names would count as two.
        """
        fingerprint, csr = _checked(request)
        role, name, hosts = request["role"], request["name"], request["hosts"]
        validate(Declaration("days", Annotated[int, Range(1, 825)], None), days)
        raise_if_any(self._taken(role, name, fingerprint))
        now = datetime.now(UTC)
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"{_SCHEME}{role}:{name}"),
            x509.UniformResourceIdentifier(f"{_SCHEME}{fingerprint}"),
            *(_host(host) for host in hosts),
        ]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role in _LISTENING:
            # For listening roles only: a silo's certificate must not pass for a coordinator's.
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        # A certificate that outlives its authority would fail without a warning of its expiry.
        ends = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_subject(name))
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
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        entry = {
            "role": role,
            "name": name,
            "fingerprint": fingerprint,
            "serial": str(certificate.serial_number),
            "issued": now.isoformat(timespec="seconds"),
            "ends": ends.isoformat(timespec="seconds"),
            "revoked": False,
        }
        # Recorded before it is returned: every certificate in use can be revoked.
        self._write_issued([*self.issued(), entry])
        return {
            "format": _GRANT,
            "certificate": certificate.public_bytes(Encoding.PEM).decode(),
            "ca": (self.path / "ca.pem").read_text(),
            "crl": (self.path / "crl.pem").read_text(),
        }

    def _taken(self, role: str, name: str, fingerprint: str) -> Iterator[str]:
        """Yield a sentence if a name or an identity belongs to another party already."""
        # Revoked entries free their name, for a party that lost its keys.
        for entry in (entry for entry in self.issued() if not entry["revoked"]):
            asked = (role, name, fingerprint)
            if entry["name"] == name and asked != (entry["role"], name, entry["fingerprint"]):
                yield (
                    f"name {name!r} belongs to another identity or role; revoke that first, or "
                    "request another name."
                )
            if entry["fingerprint"] != fingerprint:
                yield from _look_alikes(entry["name"], name)
            if entry["fingerprint"] == fingerprint and entry["name"] != name:
                yield (
                    f"identity of {name!r} is enrolled as {entry['name']!r}; revoke that first, "
                    "or use --new-identity."
                )

    def revoke(self, name: str) -> list[dict[str, Any]]:
        """Revoke every certificate of a name; return the entries that were not revoked before."""
        found = self._revoke(lambda entry: entry["name"] == name)
        if not found:
            raise PlanError(f"name {name!r} has no valid certificate; see issued.json.")
        return found

    def revoke_certificates(self, pems: Iterable[str]) -> None:
        """Revoke certificates of this authority."""
        serials = {str(x509.load_pem_x509_certificate(pem.encode()).serial_number) for pem in pems}
        self._revoke(lambda entry: entry["serial"] in serials)

    def _revoke(self, meant: Callable[[Mapping[str, Any]], bool]) -> list[dict[str, Any]]:
        entries = self.issued()
        found = [entry for entry in entries if meant(entry) and not entry["revoked"]]
        for entry in found:
            entry["revoked"] = True
        if found:
            self._write_crl(entries)  # first: if this stops in between, revoking again completes it
            self._write_issued(entries)
        return found

    def share_list(self, keys: str | os.PathLike[str]) -> None:
        """Copy the revocation list into a party's folder of keys."""
        _write_public(Path(keys) / "crl.pem", (self.path / "crl.pem").read_bytes())

    def _write_issued(self, entries: list[dict[str, Any]]) -> None:
        _write_public(
            self.path / "issued.json",
            json.dumps(entries, indent=1, allow_nan=False).encode() + b"\n",
        )

    def _write_crl(self, entries: Iterable[Mapping[str, Any]]) -> None:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - _CLOCKS_DIFFER)
            .next_update(now + timedelta(days=_CRL_DAYS))
        )
        for entry in entries:
            if entry["revoked"]:
                revoked = x509.RevokedCertificateBuilder().serial_number(int(entry["serial"]))
                builder = builder.add_revoked_certificate(revoked.revocation_date(now).build())
        crl = builder.sign(self._key, hashes.SHA256())
        _write_public(self.path / "crl.pem", crl.public_bytes(Encoding.PEM))


def _own_certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Return an authority's self-signed certificate."""
    now = datetime.now(UTC)
    return (
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


def request_fingerprint(request: Mapping[str, Any]) -> str:
    """Return the fingerprint to compare before a request is approved."""
    try:
        public = bytes.fromhex(request["identity"])
        signature = bytes.fromhex(request["signature"])
        hosts = tuple(request["hosts"])
        known = request["format"] == _REQUEST and isinstance(request["hosts"], list)
        parts = _requested(request["role"], request["name"], hosts, request["csr"])
    except (KeyError, ValueError, TypeError, AttributeError):
        raise PlanError("request was not made by 'cloister federation enroll request'.") from None
    if not known or not verify(public, signature, _REQUEST_LABEL, *parts):
        raise _changed(request)
    return fingerprint_of(public)


def _checked(request: Mapping[str, Any]) -> tuple[str, x509.CertificateSigningRequest]:
    """Return fingerprint and signing request of an unchanged request."""
    fingerprint = request_fingerprint(request)
    name = request["name"]
    raise_if_any(_rules_of_party(request["role"], name, request["hosts"]))
    try:
        csr = x509.load_pem_x509_csr(request["csr"].encode())
        key = csr.public_key()
        # The request is signed with the identity; the inner one proves possession of the TLS key.
        fits = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
        fits = fits and csr.is_signature_valid and _common_names(csr) == [name]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        fits = False
    if not fits:
        raise _changed(request)
    return fingerprint, csr


def _changed(request: Mapping[str, Any]) -> PlanError:
    return PlanError(f"request of {request['name']!r} was changed; request it again.")


def local_federation(
    folder: str | os.PathLike[str],
    silos: Iterable[str],
    analysts: Iterable[str] = ("analyst",),
    hosts: Iterable[str] = ("localhost", "127.0.0.1"),
) -> dict[str, Path]:
    """Create an authority and the key folders of all parties on one machine, for trials.

    Returns
    -------
    dict of str to Path
        Key folder by name; the coordinator's is under "coordinator".
    """
    root, silos, analysts = Path(folder), tuple(silos), tuple(analysts)
    # Each name is a folder below the root.
    names = ("ca", "coordinator", *silos, *analysts)
    if len(set(names)) != len(names):
        raise PlanError(f"parties must have different names, other than 'ca'; got {names[1:]!r}.")
    parties = {"coordinator": "coordinator"}
    parties |= dict.fromkeys(silos, "silo") | dict.fromkeys(analysts, "analyst")
    raise_if_any(rules_of_parties([(role, name) for name, role in parties.items()]))
    authority = Authority.create(root / "ca", "federation on this machine")
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
    """Return the coordinator's TLS context: TLS 1.3, certificates of the federation only.

    A certificate or an authority installed later takes effect at the next handshake, so a server
    can renew them without a restart.
    """
    context = _listening(folder)
    newest = _Newest(folder, context)

    def answer(connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        connection.context = newest()

    context.sni_callback = answer  # is asked in every handshake, also where no name is sent
    return context


def _listening(folder: KeyFolder) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Without it, a server accepts clients without a certificate.
    context.verify_mode = ssl.CERT_REQUIRED
    return _loaded(context, folder)


class _Newest:
    """The context of a folder's current files; the previous one while they do not match."""

    def __init__(self, folder: KeyFolder, context: ssl.SSLContext) -> None:
        self._folder, self._context = folder, context
        self._seen = self._files()

    def __call__(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        files = self._files()
        if files != self._seen:
            with suppress(CloisterError):  # an installation writes one file after another
                self._context, self._seen = _listening(self._folder), files
        return self._context

    def _files(self) -> tuple[object, ...]:
        return tuple(version_of(self._folder.path / name) for name in ("ca.pem", *_OF_TLS))


def version_of(file: Path) -> object:
    """Return a value that changes when a file is written or replaced; None if it is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def client_context(folder: KeyFolder) -> ssl.SSLContext:
    """Return the TLS context of a party that dials out: TLS 1.3, with host name check.

    A coordinator in the folder's `crl.pem` is refused. A server runs for months, so it checks
    certificates per connection with :func:`revoked_serials` instead.
    """
    context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), folder)
    # With the flag, OpenSSL refuses every certificate if no list is loaded.
    if revoked_serials(folder):
        context.load_verify_locations(folder.file("crl.pem"))
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    return context


def revoked_serials(folder: KeyFolder) -> frozenset[int]:
    """Return the serial numbers in `crl.pem`; none if there is no such file.

    Raises
    ------
    PlanError
        If the list is not signed by the federation's authority.
    """
    path = folder.path / "crl.pem"
    with _using(path):
        if not path.is_file():
            return frozenset()
        return _serials(path.read_bytes(), folder.file("ca.pem").read_bytes())


# Keyed by content: an unchanged list is verified once.
@lru_cache(maxsize=8)
def _serials(crl_pem: bytes, ca_pem: bytes) -> frozenset[int]:
    return frozenset(revoked.serial_number for revoked in _crl(crl_pem, ca_pem))


def _crl(crl_pem: bytes, ca_pem: bytes) -> x509.CertificateRevocationList:
    try:
        crl = x509.load_pem_x509_crl(crl_pem)
        key = x509.load_pem_x509_certificate(ca_pem).public_key()
        genuine = crl.is_signature_valid(key)  # type: ignore[arg-type]
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        genuine = False
    if not genuine:
        raise PlanError("crl.pem is not signed by the federation's authority; copy it again.")
    return crl


def _loaded(context: ssl.SSLContext, folder: KeyFolder) -> ssl.SSLContext:
    # TLS 1.2 sends client certificates in the clear.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(folder.file("ca.pem"))
        context.load_cert_chain(folder.file("tls.pem"), folder.file("tls.key"))
    except ssl.SSLError:
        raise PlanError(
            f"certificate and key in {str(folder.path)!r} do not match; install them again."
        ) from None
    except OSError as error:
        raise _unusable(folder.path, error) from None
    return context


# Parts -----------------------------------------------------------------------------------------


def _requested(role: str, name: str, hosts: tuple[str, ...], csr: str) -> tuple[bytes, ...]:
    # No valid host contains a line end, so the joined text determines the hosts.
    return (role.encode(), name.encode(), "\n".join(hosts).encode(), csr.encode())


def _rules_of_party(role: str, name: object, hosts: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each reason that forbids this enrolment."""
    if role not in ROLES:
        yield f"role must be one of {ROLES}, got {role!r}."
    yield from rules_of_parties([(role, name)])
    if (role in _LISTENING) != bool(hosts):
        yield "hosts must be given for a coordinator or a scorer, and only for these; use --host."
    for host in hosts:
        if _address(host) is None and not _HOST.fullmatch(host):
            yield f"host must be a name or an address, without scheme, port or '*', got {host!r}."


def rules_of_parties(parties: Sequence[tuple[str, object]]) -> Iterator[str]:
    """Yield a sentence for each name, given with its role, that cannot be enrolled with others."""
    seen: list[str] = []
    for role, name in parties:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield (
                "name must be 1 to 64 of letters, digits, '.', '_' and '-', and begin with neither "
                f"'.' nor '-', got {name!r}."
            )
            continue
        for reserved in _RESERVED:
            if name != role and _shape(name) == _shape(reserved):
                yield f"name {name!r} reads like the role {reserved!r}; choose another name."
        for other in seen:
            yield from _look_alikes(other, name)
        seen.append(name)


def _look_alikes(one: str, other: str) -> Iterator[str]:
    """Yield a sentence if two different names read alike."""
    if one != other and _shape(one) == _shape(other):
        yield (
            f"names {one!r} and {other!r} read alike; choose names that differ in more than case, "
            "separators, or 1 for l and 0 for o."
        )


def _shape(name: str) -> str:
    """Return a name with equal texts for characters that many fonts draw alike."""
    # The confusable characters of UTS 39 within the characters that a name may have.
    shape = name.lower().translate(_ALIKE)
    return shape.replace("rn", "m").replace("vv", "w")


_ALIKE = str.maketrans("1i0_.", "llo--")
_RESERVED = (*ROLES, "authority", "ca", "aggregator")


def _host(host: str) -> x509.GeneralName:
    address = _address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _common_names(of: x509.Certificate | x509.CertificateSigningRequest) -> list[str | bytes]:
    return [found.value for found in of.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _identity(path: Path) -> Identity:
    try:
        with _using(path):
            return Identity.from_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (ValueError, LocalProtocolError):
        raise PlanError(
            f"{path.name} in {str(path.parent)!r} is not a key; restore it from its backup."
        ) from None


def _text(identity: Identity) -> bytes:
    return identity.to_bytes().hex().encode() + b"\n"


def _key_fits(path: Path, certificate: x509.Certificate) -> bool:
    try:
        with _using(path):
            return _same_key(load_pem_private_key(path.read_bytes(), None), certificate)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _same_key(key: Any, certificate: x509.Certificate) -> bool:
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    same: bool = key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(
        *form
    )
    return same


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


def make_folder(path: Path) -> None:
    """Create a folder that only its owner can read, unless it exists."""
    with _using(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_secret(path: Path, content: bytes, *, in_place_of_one_that_waits: bool = False) -> None:
    """Write a new file that only its owner may read; never overwrite a key in use."""
    with _using(path):
        if in_place_of_one_that_waits:
            path.unlink(missing_ok=True)
        # The mode is set on creation: a later chmod would leave a moment in which others can read.
        with open(path, "xb", opener=partial(os.open, mode=0o600)) as stream:
            stream.write(content)
            stream.flush()
            # A lost key cannot be recreated, unlike every other file of the folder.
            os.fsync(stream.fileno())


def _write_public(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, since a running process may read it at any time."""
    fresh = path.with_name(path.name + ".part")
    with _using(path):
        fresh.write_bytes(content)
        fresh.chmod(0o644)  # independent of the umask: other accounts of the party read it
        os.replace(fresh, path)


def is_open_to_others(path: Path, mode: int = 0o077) -> bool:
    """Return True if a file of this account grants others one of the rights in `mode`.

    Files of other accounts are theirs to protect, and other systems have other kinds of rights.
    """
    if not hasattr(os, "geteuid") or not path.exists():
        return False
    status = path.stat()
    return status.st_uid == os.geteuid() and bool(status.st_mode & mode)


@contextmanager
def _using(path: Path) -> Iterator[None]:
    """Turn an OSError, for example for a file of another account, into a DataError."""
    try:
        yield
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{str(path)!r} cannot be used: {error.strerror}; check its owner and your account."
    )
