from __future__ import annotations

import copy
import json
import os
import pickle
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("tenseal")

from cloister.core.errors import BudgetExceeded, CloisterError, DataError, PlanError
from cloister.core.errors import RemoteProtocolError as Refused
from cloister.shares.inference.ckks import FLOOD, Parameters, Tenseal, gaussian, read, written
from cloister.shares.inference.encrypted import (
    NOTICE,
    ClientKeys,
    Offer,
    ScoringClient,
    ScoringServer,
    read_public_key,
)
from cloister.shares.inference.frames import pack, unpack
from cloister.shares.inference.limits import QueryLimit
from cloister.shares.inference.linear import Entry, Layout, LinearScorer

SCHEME = Tenseal()
KEYS = ClientKeys.new(days=2, scheme=SCHEME)
COLUMNS = tuple(Entry(f"x{j}", -1, 1) for j in range(3))
LAYOUT = Layout(columns=COLUMNS, classes=("a", "b", "c"))
WEIGHTS = np.array([[0.75, -2.5, 1.25], [0.0, 4.0, 0.5]])
SCORER = LinearScorer(LAYOUT, WEIGHTS, np.array([0.25, -1.0]))
X = np.random.default_rng(0).uniform(-1, 1, (20, 3))
FIELDS = ("key", "offer", "nonce")


@pytest.fixture
def limit(tmp_path: Path) -> QueryLimit:
    return QueryLimit(10_000, tmp_path / "limit.db")


@pytest.fixture
def server(limit: QueryLimit) -> ScoringServer:
    made = ScoringServer(SCORER, limit, rows=32, hides="features", scheme=SCHEME)
    made.admit("bank", KEYS.public)
    return made


@pytest.fixture
def client(server: ScoringServer) -> ScoringClient:
    offer = json.loads(json.dumps(server.offer.document()))
    return ScoringClient(offer, KEYS, scheme=SCHEME)


def test_predictions_agree_with_the_clear(server: ScoringServer, client: ScoringClient) -> None:
    reply = server.predict("bank", client.encrypt_features(X))
    # 7 standard deviations of the noise of both sides for 40 scores: below 1e-10
    assert np.abs(client.decrypt_prediction(reply) - SCORER.predict(X)).max() < 1e-5


def test_one_server_answers_a_full_batch_of_values(limit: QueryLimit) -> None:
    scorer = LinearScorer(Layout(columns=COLUMNS), WEIGHTS[:1], np.array([3.0]))
    server = ScoringServer(scorer, limit, hides="features", scheme=SCHEME)
    server.admit("bank", KEYS.public)
    client = ScoringClient(server.offer, KEYS, scheme=SCHEME)
    rows = np.random.default_rng(1).uniform(-1, 1, (4096, 3))
    found = client.decrypt_prediction(server.predict("bank", client.encrypt_features(rows)))
    assert np.abs(found - scorer.predict(rows)).max() < 1e-5  # 7 deviations: below 1e-8


# What the owner of the key learns of the weights --------------------------------------------------


class Bare(Tenseal):
    """The sum that the textbook shows: no fresh zero, no flood."""

    def weigh(self, public: Any, columns: Any, weights: Any, bias: Any, rows: int) -> list[bytes]:
        own, terms = self.parameters, []
        evaluator = self._api.Evaluator(self._context)
        for column, weight in zip(columns, weights[0].tolist(), strict=True):
            terms.append(self._ciphertext(column, 2.0**own.value_bits))
            plain = self._plain(weight, 2.0**own.weight_bits)
            evaluator.multiply_plain_inplace(terms[-1], plain)
        for term in terms[1:]:
            evaluator.add_inplace(terms[0], term)
        return [written(terms[0])]


class Unflooded(Tenseal):
    """A fresh zero, but no noise on the sum."""

    def _noise_parts(self) -> Any:
        return np.zeros(self.parameters.rows, dtype=np.complex128)


class FineOnly(Tenseal):
    """Of the three noises of an answer, the second alone."""

    drawn = 0

    def _noise_parts(self) -> Any:
        self.drawn += 1
        return super()._noise_parts() * (self.drawn % 3 == 2)


def answered(scheme: Tenseal) -> tuple[list[Any], int, Any]:
    """Return three columns of zeros and one score of them; a modulus; the owner's key."""
    columns = scheme.encrypt(KEYS.secret, np.zeros((3, 1)))
    public = scheme.read_public(read_public_key(KEYS.public)[2])
    (score,) = scheme.weigh(public, columns, WEIGHTS[:1], np.zeros(1), 1)
    one = 2.0**scheme.parameters.value_bits
    loaded = [scheme._ciphertext(column, one) for column in columns]
    loaded.append(scheme._ciphertext(score, one * 2.0**scheme.parameters.weight_bits))
    modulus = scheme._context.first_context_data().parms().coeff_modulus()[0].value()
    return loaded, modulus, read(scheme._api.SecretKey(), scheme._context, KEYS.secret, "key")


def solved(scheme: Tenseal) -> list[int]:
    """Return the weights, times 2^32, that solve one answer's equations to the last bit."""
    loaded, modulus, key = answered(scheme)
    parts = []
    for ciphertext in loaded:
        plain = scheme._api.Plaintext()
        scheme._api.Decryptor(scheme._context, key).decrypt(ciphertext, plain)
        parts.append([plain.data(i) for i in range(3)])
    matrix = [[part[i] for part in parts] for i in range(3)]
    for i in range(3):  # Gauss and Jordan
        inverse = pow(matrix[i][i], -1, modulus)
        matrix[i] = [v * inverse % modulus for v in matrix[i]]
        for other in set(range(3)) - {i}:
            factor = matrix[other][i]
            pairs = zip(matrix[other], matrix[i], strict=True)
            matrix[other] = [(v - factor * w) % modulus for v, w in pairs]
    return [min(row[3], row[3] - modulus, key=abs) for row in matrix]


EXACT = (WEIGHTS[0] * 2.0**32).astype(np.int64).tolist()


def test_one_bare_answer_gives_all_weights_and_ours_none() -> None:
    assert solved(Bare()) == EXACT
    found = solved(SCHEME)  # uniform modulo 2^60: one that is near has probability below 1e-7
    assert all(abs(a - b) > 2**32 for a, b in zip(found, EXACT, strict=True))


@pytest.mark.parametrize(("scheme", "bare"), [(Bare(), True), (SCHEME, False)])
def test_the_randomness_of_an_answer_is_fresh(scheme: Tenseal, bare: bool) -> None:
    loaded, modulus, _ = answered(scheme)
    *columns, score = (ciphertext.data(1) for ciphertext in loaded)
    summed = sum(w * c for w, c in zip(EXACT, columns, strict=True)) % modulus
    assert (summed == score) == bare  # by chance once in 2^60


def noise_of(scheme: Tenseal, rows: int) -> Any:
    """Return what an answer to zeros has in every slot, before the owner of the key floods it."""
    columns = scheme.encrypt(KEYS.secret, np.zeros((3, 1)))
    public = scheme.read_public(read_public_key(KEYS.public)[2])
    (score,) = scheme.weigh(public, columns, WEIGHTS[:1], np.zeros(1), rows)
    key = read(scheme._api.SecretKey(), scheme._context, KEYS.secret, "key")
    plain = scheme._api.Plaintext()
    scale = 2.0 ** (scheme.parameters.value_bits + scheme.parameters.weight_bits)
    scheme._api.Decryptor(scheme._context, key).decrypt(scheme._ciphertext(score, scale), plain)
    return np.array(scheme._encoder.decode_complex(plain))


def test_the_sum_is_flooded_in_every_row_and_drowned_elsewhere() -> None:
    found = noise_of(SCHEME, 4000)
    # deviations of 4,000 values are within 10 % but for 1e-18, of 96 within 50 % but for 1e-10
    assert found.real[:4000].std() == pytest.approx(FLOOD, rel=0.1)
    assert found.imag.std() == pytest.approx(2.0**11, rel=0.1)
    assert found.real[4000:].std() == pytest.approx(2.0**11, rel=0.5)
    assert noise_of(Unflooded(), 4000).real.std() < FLOOD / 2**20  # the mutant is seen


def test_the_gaps_of_the_flood_are_filled() -> None:
    """The rough noise is on multiples of 2^32: without the fine one the rest would be exact."""
    found = noise_of(FineOnly(), 4096)
    gap = 2.0**32 / 2.0**102 * 64  # as noise of a slot
    assert found.real.std() == pytest.approx(2.0**12 * gap, rel=0.1)
    assert found.imag.std() == pytest.approx(2.0**12 * gap, rel=0.1)


def test_results_are_flooded_before_they_are_returned() -> None:
    columns = SCHEME.encrypt(KEYS.secret, np.zeros((3, 1)))
    public = SCHEME.read_public(read_public_key(KEYS.public)[2])
    scores = SCHEME.weigh(public, columns, WEIGHTS[:1], np.zeros(1), 4000)
    first, second = (SCHEME.decrypt(KEYS.secret, scores, 4000) for _ in range(2))
    assert (first - second).std() == pytest.approx(2**0.5 * FLOOD, rel=0.1)


def test_the_stated_bits_are_those_of_the_formulas() -> None:
    own = Parameters()
    assert own.weights_hidden_bits(1.0) == pytest.approx(24.5, abs=0.1)
    assert own.weights_hidden_bits(1.0, 1024) == pytest.approx(14.5, abs=0.1)
    assert own.key_hidden_bits(1.0, 2**20) == pytest.approx(55.2, abs=0.1)


def test_noise_is_gaussian() -> None:
    drawn = gaussian(200_001)
    assert len(drawn) == 200_001
    assert abs(drawn.mean()) < 0.015  # 6.7 deviations
    assert drawn.std() == pytest.approx(1, abs=0.011)  # 7 deviations
    assert (np.abs(drawn) > 1.96).mean() == pytest.approx(0.05, abs=0.004)  # 8 deviations


# What the server learns ---------------------------------------------------------------------------


def test_the_number_of_rows_does_not_travel(client: ScoringClient) -> None:
    few, many = (unpack("request", FIELDS, client.encrypt_features(X[:n]), 3) for n in (1, 20))
    assert few[0].keys() == many[0].keys() == set(FIELDS)
    assert len(few[1]) == len(many[1])
    # ciphertexts are random and compressed: lengths differ by chance, by less than a thousandth
    assert abs(sum(map(len, few[1])) / sum(map(len, many[1])) - 1) < 1e-3


def test_the_same_rows_are_never_encrypted_alike(client: ScoringClient) -> None:
    one, other = (unpack("request", FIELDS, client.encrypt_features(X), 3) for _ in range(2))
    assert not set(one[1]) & set(other[1])
    assert one[0]["nonce"] != other[0]["nonce"]


def test_bad_features_are_refused_before_anything_is_encrypted(server: ScoringServer) -> None:
    class Watched(Tenseal):
        def encrypt(self, secret: bytes, columns: Any) -> Any:
            raise AssertionError("encrypted")

    client = ScoringClient(server.offer, KEYS, scheme=Watched())
    for bad in (np.full((2, 3), 1.5), np.full((2, 3), np.nan), X[:, :2], np.zeros((33, 3))):
        with pytest.raises(DataError):
            client.encrypt_features(bad)


# Keys ---------------------------------------------------------------------------------------------


def test_the_secret_key_is_nowhere_but_in_its_file(tmp_path: Path) -> None:
    KEYS.save(tmp_path / "keys")
    assert os.stat(tmp_path / "keys").st_mode & 0o777 == 0o600
    assert ClientKeys.load(tmp_path / "keys").secret == KEYS.secret
    assert "secret" not in repr(KEYS)
    assert KEYS.secret[100:200] not in KEYS.public
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            leak(KEYS)
    with pytest.raises(DataError, match="File exists"):
        KEYS.save(tmp_path / "keys")
    os.chmod(tmp_path / "keys", 0o640)
    with pytest.raises(DataError, match="read by others"):
        ClientKeys.load(tmp_path / "keys")


def test_expired_keys_are_refused_at_both_ends(tmp_path: Path, limit: QueryLimit) -> None:
    def later() -> datetime:
        return datetime.now(UTC) + timedelta(days=3)

    server = ScoringServer(SCORER, limit, rows=32, hides="features", scheme=SCHEME, clock=later)
    with pytest.raises(Refused, match="expired"):
        server.admit("bank", KEYS.public)
    with pytest.raises(DataError, match="expired"):
        ScoringClient(server.offer, KEYS, scheme=SCHEME, clock=later).encrypt_features(X)
    KEYS.save(tmp_path / "keys")
    with pytest.raises(DataError, match="expired"):
        ClientKeys.load(tmp_path / "keys", clock=later)
    at = [datetime.now(UTC)]
    server = ScoringServer(
        SCORER, limit, rows=32, hides="features", scheme=SCHEME, clock=lambda: at[0]
    )
    server.admit("bank", KEYS.public)
    request = ScoringClient(server.offer, KEYS, scheme=SCHEME).encrypt_features(X)
    at[0] = later()
    with pytest.raises(Refused, match="expired"):
        server.predict("bank", request)


def test_the_expiry_of_a_key_cannot_be_moved(server: ScoringServer) -> None:
    fields, blobs = unpack("public key", ("key", "expires"), KEYS.public, 1)
    fields["expires"] = (KEYS.expires + timedelta(days=9)).isoformat()
    with pytest.raises(Refused, match="changed on its way"):
        server.admit("bank", pack("public key", fields, blobs))
    for days in (0, 367, True, "1"):
        with pytest.raises(PlanError, match="days must be"):
            ClientKeys.new(days=days)  # type: ignore[arg-type]


# Limits and refusals ------------------------------------------------------------------------------


def test_what_is_not_hidden_must_be_said(limit: QueryLimit, client: ScoringClient) -> None:
    with pytest.raises(PlanError, match=r"d \+ 1 scores reveal a linear model"):
        ScoringServer(SCORER, limit)
    assert client.offer.notice == NOTICE


def test_padded_rows_count(tmp_path: Path) -> None:
    limit = QueryLimit(63, tmp_path / "l")
    server = ScoringServer(SCORER, limit, rows=32, hides="features", scheme=SCHEME)
    server.admit("bank", KEYS.public)
    client = ScoringClient(server.offer, KEYS, scheme=SCHEME)
    server.predict("bank", client.encrypt_features(X[:1]))
    with pytest.raises(BudgetExceeded):
        server.predict("bank", client.encrypt_features(X[:1]))


def test_a_replayed_request_counts_again_and_tells_nothing_new(
    server: ScoringServer, client: ScoringClient, limit: QueryLimit
) -> None:
    request = client.encrypt_features(X)
    first, second = (server.predict("bank", request) for _ in range(2))
    assert limit.left("bank", SCORER.digest) == 10_000 - 2 * 32
    _, scores = unpack("reply", FIELDS, first, 2)
    _, again = unpack("reply", FIELDS, second, 2)
    assert not set(scores) & set(again)  # other randomness, another flood
    client.decrypt_prediction(first)
    with pytest.raises(Refused, match="no request that is open"):
        client.decrypt_prediction(second)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"modulus_bits": (60, 60, 60, 60)}, "128 bits"),
        ({"degree": 4096}, "128 bits"),
        ({"degree": 8000}, "degree must be an integer, one of"),
        ({"value_bits": 90}, "scale would be wrong"),
        ({"score_bits": 40}, "scale would be wrong"),
    ],
)
def test_unsafe_parameters_are_refused(options: Any, rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        Parameters(**options)


def test_a_model_that_does_not_fit_is_refused(limit: QueryLimit) -> None:
    large = LinearScorer(LAYOUT, WEIGHTS * 2**14, np.zeros(2))
    with pytest.raises(PlanError, match="fit the scale"):
        ScoringServer(large, limit, hides="features", scheme=SCHEME)
    wide = Layout(columns=tuple(Entry(f"x{j}", 0, 1) for j in range(4300)))
    with pytest.raises(PlanError, match="rounded"):
        ScoringServer(
            LinearScorer(wide, np.zeros((1, 4300)), np.zeros(1)),
            limit,
            hides="features",
            scheme=SCHEME,
        )
    for rows in (0, 4097, True):
        with pytest.raises(PlanError, match="rows must be"):
            ScoringServer(SCORER, limit, rows=rows, hides="features", scheme=SCHEME)


def test_a_reply_is_decrypted_once_by_whoever_asked(
    server: ScoringServer, client: ScoringClient
) -> None:
    reply = server.predict("bank", client.encrypt_features(X))
    other = ScoringClient(server.offer, KEYS, scheme=SCHEME)
    with pytest.raises(Refused, match="no request that is open"):
        other.decrypt_prediction(reply)
    client.decrypt_prediction(reply)
    with pytest.raises(Refused, match="no request that is open"):
        client.decrypt_prediction(reply)


def test_a_request_under_a_foreign_key_is_refused(
    server: ScoringServer, client: ScoringClient
) -> None:
    request = client.encrypt_features(X)
    with pytest.raises(Refused, match="has not sent"):
        server.predict("another bank", request)
    fields, columns = unpack("request", FIELDS, request, 3)
    for key in ("", 0):  # no name of a key is that of no key
        with pytest.raises(Refused, match="has not sent"):
            server.predict("another bank", pack("request", {**fields, "key": key}, columns))
    server.admit("bank", ClientKeys.new(scheme=SCHEME).public)
    with pytest.raises(Refused, match="has not sent"):
        server.predict("bank", request)


def test_a_score_under_another_key_is_no_score(
    server: ScoringServer, client: ScoringClient
) -> None:
    request = client.encrypt_features(X)
    fields, _ = unpack("request", FIELDS, request, 3)
    foreign = ClientKeys.new(scheme=SCHEME)
    columns = SCHEME.encrypt(foreign.secret, X.T)
    public = SCHEME.read_public(read_public_key(foreign.public)[2])
    scores = SCHEME.weigh(public, columns, WEIGHTS, np.zeros(2), 32)
    with pytest.raises(Refused, match="not an encrypted score under this key"):
        client.decrypt_prediction(pack("reply", fields, scores))


def test_columns_at_another_scale_or_level_are_refused(
    server: ScoringServer, client: ScoringClient
) -> None:
    request = client.encrypt_features(X)
    fields, columns = unpack("request", FIELDS, request, 3)
    other = Tenseal(Parameters(value_bits=60)).encrypt(KEYS.secret, X.T)
    with pytest.raises(Refused, match="at the scale and modulus"):
        server.predict("bank", pack("request", fields, other))
    small = Tenseal(Parameters(modulus_bits=(60, 60, 50)))
    with pytest.raises(Refused, match="damaged, or was made with other parameters"):
        server.predict("bank", pack("request", fields, small.encrypt(small.new_keys()[0], X.T)))
    with pytest.raises(Refused, match="must have 3 parts"):
        server.predict("bank", pack("request", fields, columns[:2]))


def test_a_ciphertext_that_hides_nothing_is_refused(
    server: ScoringServer, client: ScoringClient
) -> None:
    """It is well formed, its second part is zero: the library would stop at it in the sum."""
    fields, columns = unpack("request", FIELDS, client.encrypt_features(X), 3)
    zero, encryptor = SCHEME._plain(np.zeros(4096).tolist(), 2.0**70), SCHEME._api.Encryptor
    public = SCHEME.read_public(read_public_key(KEYS.public)[2])
    encryptor(SCHEME._context, public).encrypt(zero, whole := SCHEME._api.Ciphertext())
    header, packed = written(whole)[:16], written(whole)[16:]
    body = pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read()
    body = body[: -2 * 8192 * 8] + bytes(2 * 8192 * 8)
    size = (16 + len(body)).to_bytes(8, "little")
    open_to_all = header[:5] + b"\0" + header[6:8] + size + body  # 0: not compressed
    with pytest.raises(Refused, match="neither nothing"):
        server.predict("bank", pack("request", fields, [open_to_all, *columns[1:]]))
    with pytest.raises(Refused, match="neither nothing"):
        client.decrypt_prediction(pack("reply", fields, [open_to_all] * 2))


def test_hostile_bytes_raise_our_errors_only(server: ScoringServer, client: ScoringClient) -> None:
    request = client.encrypt_features(X)
    reply = server.predict("bank", request)
    nested = b"CLSC\x01" + (4000).to_bytes(4, "big") + b"[" * 4000
    fixed: list[Any] = [
        b"",
        b"CLSC\x01",
        nested,
        request[:-1],
        request + b"\0",
        b"\xff" * 500,
        None,
    ]
    places = np.random.default_rng(5).integers(0, 400, (60, 3)).tolist()
    for good, ask in (
        (request, lambda b: server.predict("bank", b)),
        (reply, client.decrypt_prediction),
        (KEYS.public, lambda b: server.admit("other", b)),
    ):
        changed = []
        for at in places:
            hostile = bytearray(good)
            for place in at:
                hostile[place] ^= 1 << (place % 8)
            changed.append(bytes(hostile))
        start = good.index(b"\x5e\xa1\x10")
        for size in (0, 1, 1 << 40, 2**64 - 1):  # what the library is told of lengths
            lied = good[: start + 8] + size.to_bytes(8, "little") + good[start + 16 :]
            changed.append(lied)
        for bad in (*fixed, *changed):
            with suppress(CloisterError):  # a changed ciphertext may still be one
                ask(bad)
    client.decrypt_prediction(server.predict("bank", client.encrypt_features(X)))


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"},
        {"scheme": 3},
        {"rows": 4097},
        {"notice": "all is hidden"},
        {"layout": 3},
        {"layout": {"columns": [], "frac_bits": 0}},
        {"classes": ["a"]},
        {"classes": [["a"], ["b"]]},
        {"frac_bits": 1},
        {"more": 1},
    ],
)
def test_a_changed_offer_is_refused(server: ScoringServer, change: Any) -> None:
    document = server.offer.document()
    of_layout = change.keys() & document["layout"].keys()
    changed = {"layout": {**document["layout"], **change}} if of_layout else change
    with pytest.raises(Refused):
        Offer.from_document({**document, **changed})


def test_an_offer_cannot_make_a_caller_encode_without_end(server: ScoringServer) -> None:
    wide = [{"name": f"x{j}", "low": 0, "high": 1, "bins": 1024} for j in range(5)]
    document = {**server.offer.document(), "layout": {"columns": wide}}
    with pytest.raises(PlanError, match="at most 4294 entries, got 5115"):
        ScoringClient(document, KEYS, scheme=SCHEME)


def test_a_message_of_nothing_but_parts_is_refused_before_they_are_read() -> None:
    parts = pack("request", dict.fromkeys(FIELDS, ""), [b""] * 10**6)
    start = time.process_time()
    with pytest.raises(Refused, match="must have 3 parts"):
        unpack("request", FIELDS, parts, 3)
    assert time.process_time() - start < 0.1  # to cut it into a million parts takes longer
