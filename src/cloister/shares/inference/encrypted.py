"""Encrypted scoring, in which the owner of the model never sees a row.

::

    keys = ClientKeys.new(days=30)
    server = ScoringServer(linear_scorer(model, bounds), QueryLimit(1000, file), hides="features")
    server.admit("bank-a", keys.public)                 # once for each key
    client = ScoringClient(server.offer, keys)          # the offer is public and holds no weights
    request = client.encrypt_features(X)                # bytes up
    reply = server.predict("bank-a", request)           # bytes down
    probabilities = client.decrypt_prediction(reply)

The server sees a batch of public shape. The caller sees one noisy score for each row and output of
the model, and applies the sigmoid or softmax itself. It computes in the clear and returns nothing:
no function maps numbers to a reply.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from cloister.core.declared import Range, Rule, declared
from cloister.core.errors import DataError, LocalProtocolError, PlanError, RemoteProtocolError
from cloister.core.randomness import new_nonce
from cloister.federation.pki import is_open_to_others, write_secret
from cloister.shares.inference.ckks import Tenseal
from cloister.shares.inference.frames import most_bytes, pack, unpack
from cloister.shares.inference.limits import QueryLimit
from cloister.shares.inference.linear import Layout, LinearScorer

Floats = NDArray[np.float64]
Clock = Callable[[], datetime]

NOTICE = (
    "Encrypted scoring hides the features from the owner of the model, and nothing else: scores "
    "are returned in the clear to the caller, and d + 1 scores reveal a linear model of d entries; "
    "a caller that breaks the protocol needs one request."
)
OFFER = "cloister-offer/1"
MOST_DAYS = 366
_MOST_OPEN = 1024  # requests without a reply that a client remembers
_REQUEST = ("key", "offer", "nonce")  # fields of a request, and of its reply


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


# Keys ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClientKeys:
    """A caller's keys; the secret one leaves the process only into the caller's file."""

    secret: bytes = field(repr=False)
    public: bytes = field(repr=False)
    """A message for :meth:`ScoringServer.admit`: key, identifier and date of expiry."""
    expires: datetime

    @classmethod
    def new(cls, days: int = 30, scheme: Tenseal | None = None) -> Self:
        """Create keys that are valid for `days` days, 1 to 366."""
        if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MOST_DAYS:
            raise PlanError(f"days must be an integer in [1, {MOST_DAYS}], got {days!r}.")
        expires = now().replace(microsecond=0) + timedelta(days=days)
        secret, public = (scheme or Tenseal()).new_keys()
        fields = {"key": _key_id(public, expires.isoformat()), "expires": expires.isoformat()}
        return cls(secret, pack("public key", fields, [public]), expires)

    @property
    def key_id(self) -> str:
        """Identifier of the public key: a digest of the key and its expiry."""
        return read_public_key(self.public)[0]

    def save(self, path: str | Path) -> None:
        """Write the keys into a new file that only its owner can read."""
        write_secret(Path(path), pack("client keys", {}, [self.secret, self.public]))

    @classmethod
    def load(cls, path: str | Path, clock: Clock = now) -> Self:
        """Read :meth:`save`'s file.

        Raises
        ------
        DataError
            If others may read the file, it has another format, or the keys have expired.
        """
        if is_open_to_others(Path(path)):
            raise DataError(f"keys in {path} may be read by others; chmod 600, or make new ones.")
        try:
            _, (secret, public) = unpack("client keys", (), Path(path).read_bytes(), 2)
            _, expires, _ = read_public_key(public)
        except (OSError, RemoteProtocolError):
            raise DataError(f"{path} holds no keys of a client; make new ones.") from None
        _check_expiry(expires, clock(), DataError)
        return cls(secret, public, expires)

    def __reduce__(self) -> NoReturn:
        raise TypeError("ClientKeys cannot be copied or pickled; use save and load.")


def _key_id(public: bytes, expires: str) -> str:
    return hashlib.sha256(expires.encode() + b"\0" + public).hexdigest()[:32]


def read_public_key(message: bytes) -> tuple[str, datetime, bytes]:
    """Decode identifier, expiry and key of a public key; raise RemoteProtocolError if damaged."""
    fields, (public,) = unpack("public key", ("key", "expires"), message, 1)
    try:
        expires = datetime.fromisoformat(fields["expires"])
        if expires.tzinfo and _key_id(public, fields["expires"]) == fields["key"]:
            return fields["key"], expires, public
    except (TypeError, ValueError):
        pass
    raise RemoteProtocolError("public key was changed on its way; send it again.")


def _check_expiry(expires: datetime, at: datetime, error: type[Exception]) -> None:
    if at >= expires:
        raise error(f"key expired at {expires.isoformat()}; make new ones and send the public one.")
    # One more day than the longest validity, for clocks that differ.
    if expires > at + timedelta(days=MOST_DAYS + 1):
        raise error(f"key must be valid for at most {MOST_DAYS} days; make another.")


# Public part of a model ---------------------------------------------------------------------------


@declared
class Offer:
    """The public description of a model that callers need for requests, without weights.

    Parameters
    ----------
    layout : Layout
    rows : int
        Number of rows of every batch; fewer are padded, which hides their number.
    scheme : str
        :attr:`~cloister.shares.inference.ckks.Parameters.name` of the scheme of both sides.
    notice : str
        The limits of this mode.
    """

    layout: Layout
    rows: Annotated[int, Range(1, 4096)]
    scheme: str
    notice: Annotated[str, Rule("that of this version", NOTICE.__eq__)] = NOTICE

    @cached_property
    def digest(self) -> str:
        """Digest that names the offer in requests."""
        return hashlib.sha256(
            json.dumps(asdict(self), sort_keys=True, allow_nan=False).encode()
        ).hexdigest()

    def document(self) -> dict[str, Any]:
        """Return the offer as JSON-able values."""
        return {"format": OFFER, **asdict(self)}

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read an offer from :meth:`document`; raise RemoteProtocolError if it is malformed."""
        try:
            parts = {**document, "layout": Layout.from_document(document["layout"])}
            if parts.pop("format") == OFFER:
                return cls(**parts)
        except (TypeError, KeyError, ValueError):
            pass
        raise RemoteProtocolError(
            f"offer is damaged or no {OFFER!r}; ask for it again, with the same version."
        )


def _check_entries(layout: Layout, scheme: Tenseal) -> None:
    """Raise PlanError if the rounding of so many weights would exceed its bound."""
    if layout.width > (most := scheme.parameters.most_entries):
        raise PlanError(
            f"model must have at most {most} entries, got {layout.width}, whose weights would be "
            "rounded too much; use fewer columns or bins."
        )


# The caller ---------------------------------------------------------------------------------------


class ScoringClient:
    """A caller, which encrypts rows and decrypts their scores.

    Parameters
    ----------
    offer : Offer or dict
        Offer of the server, or its document. Read its notice before the first request.
    keys : ClientKeys
    """

    def __init__(
        self,
        offer: Offer | Mapping[str, Any],
        keys: ClientKeys,
        *,
        scheme: Tenseal | None = None,
        clock: Clock = now,
    ) -> None:
        self.offer = offer if isinstance(offer, Offer) else Offer.from_document(offer)
        self._keys, self._scheme, self._clock = keys, scheme or Tenseal(), clock
        if self.offer.scheme != self._scheme.parameters.name:
            raise RemoteProtocolError(
                f"offer computes with {self.offer.scheme!r}, this side with "
                f"{self._scheme.parameters.name!r}; both must run the same version."
            )
        _check_entries(self.offer.layout, self._scheme)
        self._names = {"key": keys.key_id, "offer": self.offer.digest}
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ScoringClient(key {self._names['key'][:8]}, {self.offer.rows} rows a batch)"

    def encrypt_features(self, X: Any) -> bytes:
        """Return a request for the scores of rows in any form of :meth:`Layout.encode`."""
        return self.encrypt_entries(self.offer.layout.encode(X))

    def encrypt_entries(self, entries: Floats) -> bytes:
        """Return a request for the scores of rows encoded by :meth:`Layout.encode`.

        There may be at most ``offer.rows``; the request does not reveal their number.

        Raises
        ------
        DataError
            If there are more, or the key has expired; nothing is encrypted then.
        """
        _check_expiry(self._keys.expires, self._clock(), DataError)
        if len(entries) > self.offer.rows:
            raise DataError(
                f"rows must be at most {self.offer.rows} a request, got {len(entries)}; send them "
                "in batches."
            )
        nonce = new_nonce()
        with self._lock:
            # A server that never replies must not fill the memory of its caller.
            if len(self._open) >= _MOST_OPEN:
                raise LocalProtocolError(
                    f"{_MOST_OPEN} requests wait for a reply; decrypt some, or make a new client."
                )
            self._open[nonce] = len(entries)
        columns = self._scheme.encrypt(self._keys.secret, entries.T)
        return pack("request", {**self._names, "nonce": nonce}, columns)

    def decrypt_prediction(self, reply: bytes) -> Floats:
        """Decrypt a reply into predictions for the rows of its request.

        Raises
        ------
        RemoteProtocolError
            If the reply is damaged, belongs to another key or offer, or answers no open request. A
            reply is decrypted once, since two noise draws for one value could be averaged.

        Notes
        -----
        A decrypted value has noise of standard deviation 2^-20 from each side. Never send it to the
        server, or to another party that computes with this key: see
        `cloister.shares.inference.ckks`. A server that computes something other than the score is
        not detected.
        """
        fields, scores = unpack("reply", _REQUEST, reply, self.offer.layout.n_scores)
        nonce = fields.pop("nonce")
        if fields != self._names:
            raise RemoteProtocolError(
                "reply is for another key or offer; decrypt it with the client that asked."
            )
        with self._lock:
            n_rows = self._open.pop(nonce, None)
        if n_rows is None:
            raise RemoteProtocolError(
                "reply answers no request that is open; a reply is decrypted once, ask again."
            )
        found = self._scheme.decrypt(self._keys.secret, scores, n_rows)
        return self.offer.layout.predictions(found)


# The owner of the model ---------------------------------------------------------------------------


class ScoringServer:
    """The owner of a model, which scores encrypted rows with its secret weights.

    Parameters
    ----------
    scorer : LinearScorer
    limit : QueryLimit
        Largest number of rows for each caller.
    rows : int
        Rows of every batch, 1 to 4,096: public, and charged as a whole.
    hides : "features"
        The secret that this mode hides. It is required as a reminder that it hides no more.

    Raises
    ------
    PlanError
        If `hides` is missing, the model's scores would overflow, or their error would be too
        large.
    """

    def __init__(
        self,
        scorer: LinearScorer,
        limit: QueryLimit,
        *,
        rows: int = 4096,
        hides: Literal["features"] | None = None,
        scheme: Tenseal | None = None,
        clock: Clock = now,
    ) -> None:
        if hides != "features":
            raise PlanError(f'hides must be "features", got {hides!r}. {NOTICE}')
        self._scheme = scheme or Tenseal()
        _check_entries(scorer.layout, self._scheme)
        parameters = self._scheme.parameters
        if not scorer.score_bound < parameters.score_limit:
            raise PlanError(
                f"scores of the model reach {scorer.score_bound:.4g} within the public ranges, and "
                f"must stay below {parameters.score_limit:g} to fit the scale; narrow the ranges."
            )
        self._scorer, self._limit, self._clock = scorer, limit, clock
        self.offer = Offer(layout=scorer.layout, rows=rows, scheme=parameters.name)
        self._keys: dict[str, tuple[str, datetime, Any]] = {}

    def __repr__(self) -> str:
        return f"ScoringServer({self._scorer.layout.n_scores} scores, {self.offer.rows} rows)"

    @property
    def most_bytes(self) -> int:
        """Largest length of a caller's message."""
        return most_bytes(max(1, self._scorer.layout.width))

    def admit(self, caller: str, public_key: bytes) -> str:
        """Store a caller's public key in place of an earlier one; return its identifier.

        Raises
        ------
        RemoteProtocolError
            If the key is damaged, has expired or is valid for too long.
        """
        key_id, expires, public = read_public_key(public_key)
        _check_expiry(expires, self._clock(), RemoteProtocolError)
        self._keys[caller] = (key_id, expires, self._scheme.read_public(public))
        return key_id

    def left(self, caller: str) -> int:
        """Return the remaining number of rows of a caller."""
        return self._limit.left(caller, self._scorer.digest)

    def predict(self, caller: str, request: bytes) -> bytes:
        """Return the encrypted scores of a request by a caller that the transport authenticated.

        Raises
        ------
        RemoteProtocolError
            If the request is damaged, for another offer, or under a key that has expired or is not
            the caller's.
        BudgetExceeded
            If the caller's rows are used up; they are charged before anything is computed.
        """
        fields, columns = unpack("request", _REQUEST, request, self._scorer.layout.width)
        # By caller, so that a caller cannot use the key of another.
        key_id, expires, public = self._keys.get(caller, (None, None, None))
        if expires is None or fields["key"] != key_id:
            raise RemoteProtocolError(
                "request is under a key that this caller has not sent; send the public key first."
            )
        _check_expiry(expires, self._clock(), RemoteProtocolError)
        # Entries of another layout would be multiplied by the wrong weights.
        if fields["offer"] != self.offer.digest:
            raise RemoteProtocolError("request is for another offer; ask for this one's.")
        # Charged before the answer, and for the whole batch, whose padding looks like rows.
        self._limit.charge(caller, self._scorer.digest, self.offer.rows)
        weights, bias = self._scorer.weights, self._scorer.bias
        scores = self._scheme.weigh(public, columns, weights, bias, self.offer.rows)
        return pack("reply", fields, scores)
