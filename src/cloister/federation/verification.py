"""The verification of a release from its files: verified, refuted or not verifiable.

Only a release whose numbers follow from its released words, and which enough silos signed, is
verified. Everything that is missing or cannot be read leaves it unverified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cloister.app.release import MODEL_FORMAT, plan_of_model, words_file
from cloister.app.replay import contradiction
from cloister.core.errors import DataError, PlanError
from cloister.core.files import read_json
from cloister.federation.pki import KeyFolder
from cloister.federation.release_signatures import SUFFIX, Attestation
from cloister.federation.settings import SiloSettings, load_role
from cloister.protocol.code import code_mismatch
from cloister.protocol.plan import Plan
from cloister.protocol.task import Task


@dataclass(frozen=True)
class Finding:
    """The outcome of a verification, and its reason.

    Parameters
    ----------
    field : str, optional
        The field of the model that its words contradict.
    signers : tuple of str
        Silos whose signatures count.
    others : mapping of str to str
        Signatures that do not count, by the name of their file, and the reasons.
    replayed : bool
        True if every number of the model follows from its words.
    needed : int
        The number of signatures that make it verified.
    """

    plan: Plan
    outcome: Literal["verified", "refuted", "not verifiable"]
    reason: str
    field: str | None = None
    signers: tuple[str, ...] = ()
    others: Mapping[str, str] | None = None
    replayed: bool = False
    needed: int = 0


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
    model : Path
        The model; its words are in the file next to it.
    signatures : sequence of Path
        Files of silos' signatures; by default the one next to the model, if it exists.
    signers : int, optional
        Silos that must have signed; by default the plan's `min_silos`.
    pins : mapping of silo to fingerprint, optional
        The only keys that count; by default those of the plan.

    Raises
    ------
    CloisterError
        If a file cannot be read, or is not of its kind.
    """
    if signers is not None and signers < 1:
        raise PlanError(f"signers must be at least 1, got {signers}.")
    document = read_json(model, "model")
    plan = plan_of_model(document, tasks)
    if document["format"] != MODEL_FORMAT:
        raise DataError(f"{str(model)!r} has released words only; verify a model.json.")
    finding = _replayed(Finding(plan, "not verifiable", ""), document, words_file(model))
    if not finding.replayed:
        return finding
    beside = model.with_name(model.name + SUFFIX)
    files = list(signatures) or [file for file in [beside] if file.is_file()]
    needed = plan.min_silos if signers is None else signers
    return _counted(replace(finding, needed=needed), model, files, pins)


def _replayed(finding: Finding, document: Mapping[str, object], file: Path) -> Finding:
    plan = finding.plan
    if not plan.opened:
        reason = f"the code of its task {plan.task.name!r} is not installed here."
        return replace(finding, reason=reason)
    if not document.get("sums"):
        return replace(finding, reason="the model names no released words, as older models.")
    if not file.is_file():
        return replace(finding, reason=f"the file of its released words, {file.name!r}, is absent.")
    field = contradiction(document, file.read_bytes(), plan)
    if field is None:
        return replace(finding, replayed=True)
    other_code = code_mismatch(plan)
    if other_code and field.startswith(("results", "history")):
        reason = f"{field!r} differs, but {other_code}"
        return replace(finding, field=field, reason=reason)
    reason = f"{field!r} does not follow from its released words and its plan."
    return replace(finding, outcome="refuted", field=field, reason=reason)


def _counted(
    finding: Finding, model: Path, files: Sequence[Path], pins: Mapping[str, str] | None
) -> Finding:
    content, words = model.read_bytes(), words_file(model).read_bytes()
    valid: dict[str, Attestation] = {}
    others: dict[str, str] = {}
    for file in files:
        signed = Attestation.load(file)
        if reason := signed.objection(finding.plan, words, pins):
            others[f"{signed.silo} ({file.name})"] = reason
        else:
            valid.setdefault(signed.silo, signed)
    # Models of two silos may differ in versions and last digits, but one silo must have signed all
    # bytes of this one.
    exact = any(one.model == hashlib.sha256(content).hexdigest() for one in valid.values())
    finding = replace(finding, signers=tuple(valid), others=others)
    if not files:
        reason = "unsigned; request signatures from the silos."
    elif len(valid) < finding.needed:
        reason = f"{len(valid)} valid signatures of silos of its plan, {finding.needed} are needed."
    elif not exact:
        reason = "no silo signed these very bytes; request the model and its signature from one."
    else:
        return replace(finding, outcome="verified", reason="")
    return replace(finding, reason=reason)


def pins_of(path: Path) -> Mapping[str, str]:
    """Return the fingerprints that a silo's settings pin, and that of its key if it exists."""
    settings = load_role(path, SiloSettings)
    if not (settings.keys / "identity.key").is_file():
        return settings.peers
    return {settings.name: KeyFolder(settings.keys).identity().fingerprint, **settings.peers}
