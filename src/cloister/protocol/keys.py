"""The agreement of silos on keys through an untrusted aggregator.

Every silo publishes its public keys, signed by the identity whose fingerprint the plan contains.
After it verified the signed keys of the others, it seals a box to each of them. A box contains a
part of the group key and, under pairwise masks, a share of every secret that may have to be opened.
The group key is derived from the parts of all silos whose boxes arrived: the *cohort*.

All frames of a silo are functions of the plan, its secret of the job and the frames it received. So
it never sends two versions. Ledger head and clock vary, so its first answer is stored and repeated.

The box for a silo also contains the statements that this silo signed of its ledger in earlier jobs.
With them a silo detects that an older copy of its ledger was restored, and learns the missing
entries. No coordinator can remove such a statement from a box.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median_low

from cloister.core.errors import LocalProtocolError, RemoteProtocolError
from cloister.hazmat import kex
from cloister.hazmat.prg import KEY_BYTES, Usage, derive, join
from cloister.hazmat.shamir import SHARE_BYTES
from cloister.hazmat.signing import SIGNATURE_BYTES, Identity, fingerprint_of, verify
from cloister.privacy.chain import SignedStatement
from cloister.protocol.journal import Journal
from cloister.protocol.messages import (
    BEFORE,
    Deal,
    Keys,
    Roster,
    Secrets,
    decode_list,
    encode,
    encode_list,
    keys_signed,
    was_sent,
)
from cloister.protocol.plan import WITHOUT_OPTIONS, Plan, share_threshold
from cloister.secagg.dropout import COMMITMENT_BYTES, RoundKeys, commitment, share_secret
from cloister.secagg.masks import GroupMask, Masker, PairwiseMask

CLOCK_SECONDS = 600
"""Largest difference between a silo's clock and those of its peers and the coordinator."""

_KEYS = b"cloister/1/keys"  # label of the signature, so that it verifies as nothing else
_DIGEST_BYTES = 32  # SHA-256


class KeyAgreement:
    """One silo's side of the key agreement; a second object sends the same frames.

    Parameters
    ----------
    plan : Plan
        A plan with fingerprints.
    journal : Journal
        Provides the secret of the job and the head of the ledger; stores the statements of peers.
    """

    def __init__(self, plan: Plan, silo: str, identity: Identity, journal: Journal) -> None:
        if identity.fingerprint != plan.fingerprints[plan.silos.index(silo)]:
            raise LocalProtocolError(
                f"the plan has another fingerprint for {silo!r} than this silo's key; "
                "request a plan with the current fingerprint."
            )
        self._plan, self._silo, self._identity, self._journal = plan, silo, identity, journal
        self._secret = journal.secret(plan.run_id)
        self._roster: Roster | None = None
        self._deal: Deal | None = None

    def keys(self) -> Keys:
        """Return this silo's signed public keys."""
        plan = self._plan
        prints = zip(plan.silos, plan.fingerprints, strict=True)
        # Requests from each peer the statements of this silo above a height.
        seen = {s: self._journal.shown_above(f) for s, f in prints if s != self._silo}
        unsigned = Keys(
            sender=self._silo,
            identity=self._identity.public,
            box=kex.public_of(self._derived(Usage.BOX_KEY)),
            pair=tuple(kex.public_of(key) for key in self._per_round(Usage.PAIR_KEY)),
            commitments=tuple(commitment(seed) for seed in self._per_round(Usage.SELF_SEED)),
            head=bytes.fromhex(self._journal.head()),
            time=int(time.time()),
            seen={silo: height for silo, height in seen.items() if height},
        )
        signature = self._identity.sign(_KEYS, *keys_signed(plan, unsigned))
        return replace(unsigned, signature=signature)

    def secrets(self, roster: Roster) -> Secrets:
        """Check the roster and return a sealed box for each of its silos.

        Raises
        ------
        RemoteProtocolError
            If a key is not signed by the identity in the plan, a second roster arrives, or this
            silo's clock is far from its peers'.
        """
        if self._roster is not None and self._roster != roster:
            raise RemoteProtocolError("a second roster of silos arrived; a job has one roster.")
        self._check_roster(roster)
        self._roster = roster
        part = self._derived(Usage.GROUP_PART)
        shares = self._shares(len(roster.keys))
        boxes = []
        for place, peer in enumerate(roster.keys):
            shown = b"" if peer.sender == self._silo else self._statements_of(peer)
            plain = part + b"".join(of_secret[place] for of_secret in shares) + shown
            # A key seals one box only, but the statements may grow before a restart: their digest
            # is part of the key's context.
            digest = hashlib.sha256(shown).digest()
            key = self._box_key(self._silo, peer, digest, sent=True)
            # In the clear, so that the aggregator can check the shares which a silo gives later.
            committed = b"".join(commitment(of_secret[place]) for of_secret in shares)
            boxes.append(digest + committed + kex.seal(key, plain))
        return Secrets(self._silo, tuple(boxes))

    def masker(self, deal: Deal) -> Masker:
        """Open the boxes and return the masks of the job.

        Raises
        ------
        RemoteProtocolError
            If a box was not sealed by its silo for this one, or its shares do not match their
            commitments. If the aggregator did not sign the cohort, or too few silos are left.
        LedgerError
            If a peer returns a statement of this silo that its ledger does not contain.
        """
        roster, plan = self._roster, self._plan
        if roster is None:
            raise RemoteProtocolError("boxes arrived before the roster of silos; send it first.")
        if self._deal is not None and self._deal != deal:
            raise RemoteProtocolError("boxes of a second cohort arrived; a job has one cohort.")
        names = tuple(keys.sender for keys in roster.keys)
        in_order = tuple(name for name in names if name in deal.cohort)
        if deal.cohort != in_order or self._silo not in in_order:
            raise RemoteProtocolError(
                f"cohort must be in the roster's order and include {self._silo!r}."
            )
        if len(deal.cohort) < plan.quorum(len(names)) or len(deal.boxes) != len(deal.cohort):
            raise RemoteProtocolError(
                f"{len(deal.cohort)} silos agreed on keys, this job requires "
                f"{plan.quorum(len(names))}; start a new job when more silos are online."
            )
        digest = cohort_hash(plan, roster, deal.cohort)
        # This silo repeats the signature in READY, which shows that it did not invent the cohort.
        if not was_sent(plan, BEFORE, digest, deal.signature, roster.aggregator):
            raise RemoteProtocolError("the cohort is not signed by the aggregator of this job.")
        opened = {
            silo: self._open(self._keys_of(silo), box)
            for silo, box in zip(deal.cohort, deal.boxes, strict=True)
        }
        size = KEY_BYTES + 2 * self._held_rounds * SHARE_BYTES
        shown = (
            statement for plain in opened.values() for statement in decode_list(plan, plain[size:])
        )
        self._journal.check_statements(
            [statement for statement in map(self._own_statement, shown) if statement]
        )
        self._deal = deal
        parts = join(opened[silo][:KEY_BYTES] for silo in deal.cohort)
        # Each part is secret and random, so the part of one honest silo makes the key random.
        root = hashlib.sha256(parts).digest()
        group = GroupMask(derive(root, Usage.GROUP_KEY, self.digest))
        if plan.profile != "pairwise":
            return group
        return PairwiseMask(
            silo=self._silo,
            public=round_keys(roster, deal.cohort),
            pair_keys=self._per_round(Usage.PAIR_KEY),
            seeds=self._per_round(Usage.SELF_SEED),
            held={silo: self._held(plain[KEY_BYTES:size]) for silo, plain in opened.items()},
            group=group,
            padded=plan.protocol > WITHOUT_OPTIONS,
        )

    @property
    def cohort(self) -> tuple[str, ...]:
        """The silos that have the group key; empty before :meth:`masker`."""
        return self._deal.cohort if self._deal else ()

    @property
    def roster(self) -> Roster:
        """The keys of all silos."""
        if self._roster is None:
            raise RemoteProtocolError("the roster of silos has not arrived yet.")
        return self._roster

    @property
    def digest(self) -> bytes:
        """Hash of plan, roster and cohort, which silos confirm before the first round."""
        if self._roster is None or self._deal is None:
            raise RemoteProtocolError("a round was opened before the silos agreed on keys.")
        return cohort_hash(self._plan, self._roster, self._deal.cohort)

    @property
    def quorum(self) -> int:
        """Smallest number of silos that must be in a sum and confirm it."""
        return self._plan.quorum(len(self._roster.keys) if self._roster else 0)

    def identity_of(self, silo: str) -> bytes:
        """Return the public signing key of a silo of the roster."""
        return self._keys_of(silo).identity

    def head_shown(self) -> str:
        """Return the head of this silo's ledger in the roster, which its peers sign."""
        return self._keys_of(self._silo).head.hex()

    def _check_roster(self, roster: Roster) -> None:
        plan = self._plan
        names = tuple(keys.sender for keys in roster.keys)
        in_order = tuple(silo for silo in plan.silos if silo in names)
        if names != in_order or self._silo not in names or len(names) < plan.min_silos:
            raise RemoteProtocolError(
                f"roster must have at least {plan.min_silos} silos in the plan's order, "
                f"{self._silo!r} among them."
            )
        for keys in roster.keys:
            check_keys(plan, keys)
        local = next(keys for keys in roster.keys if keys.sender == self._silo)
        if local.box != kex.public_of(self._derived(Usage.BOX_KEY)):
            raise RemoteProtocolError("roster has other keys of this silo than this silo sent.")
        # Times in the keys, not the current time: a restart must produce the same answer.
        self._check_clock(local.time, [keys.time for keys in roster.keys if keys is not local])

    def _check_clock(self, local: int, others: Sequence[int]) -> None:
        """Raise RemoteProtocolError if most peers' keys carry a distant time."""
        # The lower median: a minority of wrong clocks stops no job; of two peers the nearer counts.
        far = median_low(abs(local - other) for other in others) if others else 0
        if far > CLOCK_SECONDS:
            raise RemoteProtocolError(
                f"the clock of {self._silo!r} is {far} s from those of its peers, more than "
                f"{CLOCK_SECONDS} s; set it and start a new job."
            )

    def _statements_of(self, peer: Keys) -> bytes:
        """Return the peer's ledger statements above the newest height that this silo signed."""
        above = peer.seen.get(self._silo, 0)
        kept = self._journal.remembered(fingerprint_of(peer.identity), above)
        return encode_list(
            self._plan, (statement.signature + statement.text.encode() for statement in kept)
        )

    def _own_statement(self, shown: bytes) -> SignedStatement | None:
        """Decode a statement that a peer returns; None if this silo did not sign it."""
        signature, text = shown[:SIGNATURE_BYTES], shown[SIGNATURE_BYTES:]
        # A peer that invents a statement must not be able to stop this silo.
        statement = SignedStatement(text.decode(errors="replace"), signature, self._identity.public)
        return statement if statement.genuine else None

    def _derived(self, usage: Usage, context: bytes = b"") -> bytes:
        return derive(self._secret, usage, join((self._plan.digest, context)))

    def _per_round(self, usage: Usage) -> tuple[bytes, ...]:
        return tuple(self._derived(usage, str(t).encode()) for t in range(self._held_rounds))

    @property
    def _held_rounds(self) -> int:
        return held_rounds(self._plan)

    @cached_property
    def _roster_hash(self) -> bytes:
        """The hash of the one roster of the job, whose encoding grows with silos and rounds."""
        assert self._roster is not None
        return hashlib.sha256(encode(self._plan, self._roster)).digest()

    def _shares(self, holders: int) -> list[list[bytes]]:
        """Return one share for each holder, for each round's seed and then its key."""
        threshold = share_threshold(holders, self._plan.collusion)
        shares = []
        for t, secrets in enumerate(
            zip(self._per_round(Usage.SELF_SEED), self._per_round(Usage.PAIR_KEY), strict=True)
        ):
            for which, secret in zip((b"seed", b"key"), secrets, strict=True):
                # Another roster gives another polynomial: no holder gets two points of one.
                about = join((str(t).encode(), which, self._roster_hash))
                key = self._derived(Usage.SHARING, about)
                shares.append(share_secret(secret, threshold, holders, key))
        return shares

    def _held(self, plain: bytes) -> tuple[tuple[bytes, bytes], ...]:
        pairs = self._plan.rounds
        if len(plain) != 2 * pairs * SHARE_BYTES:
            raise RemoteProtocolError("a sealed box holds another number of shares than rounds.")
        # In the order of `_shares`: for each round the share of the seed, then that of the key.
        parts = [plain[i : i + SHARE_BYTES] for i in range(0, len(plain), SHARE_BYTES)]
        return tuple((parts[2 * t], parts[2 * t + 1]) for t in range(pairs))

    def _box_key(self, sender: str, peer: Keys, digest: bytes, *, sent: bool) -> bytes:
        """Return the key of the one box from `sender`, agreed on with the keys of `peer`."""
        receiver = peer.sender if sent else self._silo
        # Both directions of a pair share one agreed secret; sender and receiver separate them.
        about = (self._roster_hash, sender.encode(), receiver.encode(), digest)
        context = join((self._plan.digest, *about))
        return kex.agree(self._derived(Usage.BOX_KEY), peer.box, Usage.BOX, context)

    def _open(self, peer: Keys, box: bytes) -> bytes:
        digest, committed, sealed = split_box(self._plan, box)
        # The digest is authenticated by the key that depends on it.
        key = self._box_key(peer.sender, peer, digest, sent=False)
        try:
            plain = kex.unseal(key, sealed)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"the sealed box of {peer.sender!r}: {error}") from error
        end = KEY_BYTES + 2 * self._held_rounds * SHARE_BYTES
        if len(plain) < end:
            raise RemoteProtocolError(f"the sealed box of {peer.sender!r} is too short.")
        # The commitments are outside the box, since the aggregator checks shares against them.
        shares = (plain[i : i + SHARE_BYTES] for i in range(KEY_BYTES, end, SHARE_BYTES))
        if b"".join(map(commitment, shares)) != committed:
            raise RemoteProtocolError(
                f"the shares that {peer.sender!r} dealt do not match their commitments; start a "
                "new job without that silo."
            )
        return plain

    def _keys_of(self, silo: str) -> Keys:
        roster = self._roster.keys if self._roster else ()
        for keys in roster:
            if keys.sender == silo:
                return keys
        raise RemoteProtocolError(f"silo {silo!r} is not in the roster.")


def held_rounds(plan: Plan) -> int:
    """Return the number of rounds for which silos hold shares of each other's secrets."""
    return plan.rounds if plan.profile == "pairwise" else 0


def split_box(plan: Plan, box: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the digest in a dealt box, the commitments to its shares, and its sealed part."""
    end = _DIGEST_BYTES + 2 * held_rounds(plan) * COMMITMENT_BYTES
    return box[:_DIGEST_BYTES], box[_DIGEST_BYTES:end], box[end:]


def commitments_in(plan: Plan, boxes: Iterable[bytes]) -> bytes:
    """Return the commitments to all shares in boxes, in their order."""
    return b"".join(split_box(plan, box)[1] for box in boxes)


def commitments_of(
    plan: Plan, cohort: tuple[str, ...], dealt: bytes, t: int
) -> dict[str, tuple[bytes, bytes]]:
    """Return the commitments to a holder's two shares, of seed and key, of round `t` by dealer."""
    # In the order of `KeyAgreement._shares`: dealers, then rounds, then seed and key.
    width, rounds = COMMITMENT_BYTES, held_rounds(plan)
    starts = (2 * width * (place * rounds + t) for place in range(len(cohort)))
    pairs = ((dealt[i : i + width], dealt[i + width : i + 2 * width]) for i in starts)
    return dict(zip(cohort, pairs, strict=True))


def check_keys(plan: Plan, keys: Keys) -> None:
    """Check that keys are signed by the identity that the plan names for their silo."""
    pinned = plan.fingerprints[plan.silos.index(keys.sender)]
    if fingerprint_of(keys.identity) != pinned:
        raise RemoteProtocolError(
            f"keys of {keys.sender!r} are from another identity than the plan names; "
            "another party intercepts the silo's frames, or the plan is outdated."
        )
    if not verify(keys.identity, keys.signature, _KEYS, *keys_signed(plan, keys)):
        raise RemoteProtocolError(f"keys of {keys.sender!r} are not signed by that silo.")


def round_keys(roster: Roster, cohort: tuple[str, ...]) -> RoundKeys:
    """Return the public keys of the cohort under pairwise masks."""
    by_silo = {keys.sender: keys for keys in roster.keys}
    return RoundKeys(
        order=cohort,
        pair={silo: by_silo[silo].pair for silo in cohort},
        commitments={silo: by_silo[silo].commitments for silo in cohort},
    )


def holder_numbers(roster: Roster) -> dict[str, int]:
    """Return the point, from 1, at which each silo of the roster holds its shares."""
    # From 1: the value of the polynomial at 0 is the secret itself.
    return {keys.sender: place for place, keys in enumerate(roster.keys, start=1)}


def cohort_hash(plan: Plan, roster: Roster, cohort: tuple[str, ...]) -> bytes:
    """Return SHA-256 over plan, roster and cohort."""
    # Without boxes: each silo receives different ones, but all must confirm the same hash.
    return hashlib.sha256(encode(plan, roster) + encode(plan, Deal(cohort, ()))).digest()
