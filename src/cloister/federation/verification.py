"""The verification of a release from its files: verified, refuted or not verifiable.

Only a release whose numbers follow from its released words, and which enough silos signed, is
verified. Everything that is missing or cannot be read leaves it unverified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloister.app.horizon import RELEASES
from cloister.app.horizon_check import HorizonFinding, check_horizon
from cloister.app.release import MODEL_FORMAT, plan_of_model, words_file
from cloister.app.replay import contradiction
from cloister.core.errors import DataError, PlanError
from cloister.core.files import json_of, read_bytes
from cloister.federation.pki import KeyFolder
from cloister.federation.release_signatures import SUFFIX, Attestation
from cloister.federation.settings import SiloSettings, load_role
from cloister.protocol.code import code_mismatch
from cloister.protocol.plan import Plan
from cloister.protocol.task import Task

if TYPE_CHECKING:
    from cloister.privacy.ledger import Ledger


@dataclass(frozen=True)
class Finding:
    """The outcome of a verification, and its reason.

    Parameters
    ----------
    field : str, optional
        The field of the model that its words contradict.
    replayed : bool
        True if every number of the model follows from its words.
    signers : tuple of str
        Silos whose signatures count; `needed` of them verify the release.
    others : mapping of str to str
        Signatures that do not count, and the reasons.
    """

    plan: Plan
    outcome: Literal["verified", "refuted", "not verifiable"]
    reason: str
    field: str | None = None
    replayed: bool = False
    signers: tuple[str, ...] = ()
    needed: int = 0
    others: Mapping[str, str] | None = None

    @property
    def sentence(self) -> str:
        """The reason, and after a replay the silos that signed."""
        if not self.replayed:
            return self.reason
        signed = f"{len(self.signers)} of {len(self.plan.silos)} silos signed"
        names = f": {', '.join(self.signers)}" if self.signers else ""
        return f"{self.reason} {signed}{names}.".lstrip()


def verify_release(
    model: Path,
    *,
    signatures: Sequence[Path] = (),
    signers: int | None = None,
    pins: Mapping[str, str] | None = None,
    tasks: Mapping[str, type[Task]] | None = None,
) -> Finding:
    """Replay a release, count its signatures, and return the outcome.

    Parameters
    ----------
    signatures : sequence of Path
        Files of silos' signatures, added to the one next to the model.
    signers : int, optional
        Silos that must have signed; by default the plan's `min_silos`.
    pins : mapping of silo to fingerprint, optional
        The only keys that count; by default those of the plan.
    """
    # Each file is read once, so that the replay and the signatures are about the same bytes.
    content, file = read_bytes(model, "model"), words_file(model)
    document = json_of(content, f"model {str(model)!r}")
    plan = plan_of_model(document, tasks)
    if document["format"] != MODEL_FORMAT:
        raise DataError(f"{str(model)!r} has released words only; verify a model.json.")
    found = Finding(plan, "not verifiable", "", needed=_needed(plan, signers))
    if not plan.opened:
        why = f"the code of its task {plan.task.name!r} is not installed here."
    elif _of_horizon(document):
        why = "it is one answer of a horizon; verify the folder of the horizon."
    elif not document.get("sums"):
        why = "the model names no released words, as older models."
    elif not file.is_file():
        why = f"the file of its released words, {file.name!r}, is absent."
    elif field := contradiction(document, words := read_bytes(file, "words"), plan):
        found = replace(found, field=field, outcome="refuted")
        why = f"{field!r} does not follow from its released words and its plan."
        if field.startswith(("results", "history")) and (other := code_mismatch(plan)):
            found, why = replace(found, outcome="not verifiable"), f"{field!r} differs: {other}"
    else:
        files = _files(model.with_name(model.name + SUFFIX), signatures)
        digest, sums = (hashlib.sha256(text).hexdigest() for text in (content, words))
        return _counted(replace(found, replayed=True), digest, sums, files, pins)
    return replace(found, reason=why)


def verify_horizon(
    folder: Path,
    ledger: Ledger | None = None,
    *,
    signatures: Sequence[Path] = (),
    signers: int | None = None,
    pins: Mapping[str, str] | None = None,
    tasks: Mapping[str, type[Task]],
) -> tuple[HorizonFinding, Finding]:
    """Check a horizon from its files, count its signatures, and return what both showed.

    The parameters are those of :func:`verify_release` and of :func:`check_horizon`.
    """
    checked = check_horizon(folder, tasks, ledger)
    plan = checked.horizon.plan
    needed = _needed(plan, signers)
    found = Finding(plan, checked.outcome, checked.sentence, needed=needed)
    if checked.reason or plan.horizon is None:  # over files, nobody signs
        return checked, found
    files = _files(folder / (RELEASES + SUFFIX), signatures)
    public, words = map(hashlib.sha256, checked.horizon.signed_parts(checked.frames))
    replayed = replace(found, reason="", replayed=True)
    return checked, _counted(replayed, public.hexdigest(), words.hexdigest(), files, pins)


def _files(beside: Path, others: Sequence[Path]) -> list[Path]:
    return [*(file for file in [beside] if file.is_file()), *others]


def _needed(plan: Plan, signers: int | None) -> int:
    if signers is not None and signers < 1:
        raise PlanError(f"signers must be at least 1, got {signers}.")
    return signers or plan.min_silos


def _of_horizon(document: Mapping[str, Any]) -> bool:
    spent = document.get("spent")
    return isinstance(spent, Mapping) and spent.get("event") == "horizon"


def _counted(
    found: Finding, model: str, sums: str, files: Sequence[Path], pins: Mapping[str, str] | None
) -> Finding:
    """Return the outcome for a release that was replayed, by the signatures over its digests."""
    valid: dict[str, bool] = {}
    others: dict[str, str] = {}
    for file in files:
        signed = Attestation.load(file)
        if reason := signed.objection(found.plan, sums, pins):
            others[f"{signed.silo} ({file.name})"] = reason
        else:
            valid[signed.silo] = valid.get(signed.silo, False) or signed.model == model
    found = replace(found, signers=tuple(valid), others=others)
    if not files and not found.plan.fingerprints:
        why = (
            "one process ran all parties, so no silo can sign it. Its numbers follow from its "
            "released words; nobody can check the records behind them."
        )
    elif not files:
        why = f"unsigned; request the files {SUFFIX!r} of the silos, and give them with --signed."
    elif len(valid) < found.needed:
        why = f"{found.needed} silos must have signed it; give their files with --signed."
    # Models of two silos may differ in versions and last digits, so that a silo signs the words,
    # but one must have signed all bytes of this model.
    elif not any(valid.values()):
        why = "no silo signed these very bytes; request the model and its signature from one."
    else:
        return replace(found, outcome="verified")
    return replace(found, reason=why)


def pins_of(path: Path) -> Mapping[str, str]:
    """Return the fingerprints that a silo's settings pin, and that of its key if it exists."""
    settings = load_role(path, SiloSettings)
    if not (settings.keys / "identity.key").is_file():
        return settings.peers
    return {settings.name: KeyFolder(settings.keys).identity().fingerprint, **settings.peers}
