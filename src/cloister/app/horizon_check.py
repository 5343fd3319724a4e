"""The check of a horizon from its files: refuted, or what follows and what nobody can check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cloister.app.horizon import Horizon, HorizonFolder
from cloister.app.text import REAL_NOISE
from cloister.core.errors import CloisterError, LedgerError
from cloister.core.numerals import counted, number
from cloister.privacy import accounting
from cloister.protocol.code import code_mismatch
from cloister.protocol.task import Task

if TYPE_CHECKING:
    from cloister.privacy.ledger import Ledger

NOT_CHECKED = (
    "No silo signed these words. Nobody can check from files that true records were summed, that "
    "each person counts in so few periods, or that noise was added."
)
_HERE = "the released words"


@dataclass(frozen=True)
class HorizonFinding:
    """The outcome of the check of a horizon.

    Parameters
    ----------
    frames : sequence of bytes
        The released words of each period; empty if they cannot be read.
    reason : str
        The first contradiction; empty if there is none.
    checks : mapping of str to str
        What was found, by the name of the check.
    """

    horizon: Horizon
    frames: Sequence[bytes]
    reason: str
    checks: Mapping[str, str]

    @property
    def outcome(self) -> Literal["refuted", "not verifiable"]:
        """Without signatures nothing is verified."""
        return "refuted" if self.reason else "not verifiable"

    @property
    def sentence(self) -> str:
        """The reason, or what the files cannot show."""
        return self.reason or NOT_CHECKED


class _Contradiction(Exception):
    """A file contradicts another one."""


def check_horizon(
    folder: Path, tasks: Mapping[str, type[Task]], ledger: Ledger | None = None
) -> HorizonFinding:
    """Check the plan, the matrix, the released words and the charge of a horizon.

    Parameters
    ----------
    folder : Path
        The folder of the horizon, or a copy without the states of its silos.
    ledger : Ledger, optional
        The ledger that was charged.

    Raises
    ------
    CloisterError
        If the folder has no horizon that can be read, or another schema.
    """
    kept = HorizonFolder.load(folder, tasks)
    horizon = kept.horizon
    plan, encoding, budget = horizon.plan, horizon.encoding, horizon.plan.budget
    assert budget is not None  # a rule of horizons
    bound = plan.max_silos_per_person * sqrt(encoding.sensitivity_squared)
    checks = {
        "horizon": horizon.digest,
        "plan": plan.digest.hex(),
        "unit of privacy": plan.unit_in_words(),
        "matrix": f"lower triangular, {counted(encoding.periods, 'period')}; a unit in at most "
        f"{encoding.max_periods} of them changes all releases by at most {bound:.6g} times its "
        "bound in one",
        "cost of all periods": f"epsilon {number(accounting.epsilon(horizon.event, budget.delta))}"
        f" at delta {budget.delta:.2g}",
        "code of the task": code_mismatch(plan) or "that of this version",
    }
    frames: list[bytes] = []
    reason = ""
    try:
        frames = _frames(kept)
        checks["released words"] = f"of {counted(len(frames), 'period')}, {plan.length(0)} in each"
        checks |= dict(_noted(kept, frames))
        checks["charge"] = _charge(kept, frames, ledger)
    except _Contradiction as error:
        reason = str(error)
    return HorizonFinding(horizon, frames, reason, checks)


def _frames(kept: HorizonFolder) -> list[bytes]:
    """Return the released words; raise if they are not of this horizon."""
    try:
        noise = kept.noise
    except CloisterError as error:
        raise _Contradiction(str(error)) from None
    try:
        frames = kept.frames()
        kept.released()
    except Exception:  # of any kind: a stranger may have written the file
        raise _Contradiction(f"{_HERE} differ in length from the plan.") from None
    if len(frames) > kept.horizon.encoding.periods:
        raise _Contradiction(f"{_HERE} have more periods than the horizon.")
    # The file says so itself, for example after a release with simulated noise in a test.
    if noise not in REAL_NOISE:
        raise _Contradiction(f"the noise of the releases is not private: {noise}.")
    return frames


def _noted(kept: HorizonFolder, frames: list[bytes]) -> Iterator[tuple[str, str]]:
    """Yield what each silo noted of the releases, where its state is in the folder."""
    if not kept.has_states:  # of agents, each keeps its own
        yield "states of the silos", "not checked: they are not in this folder"
        return
    try:
        with kept.states() as states:
            for silo, state in states.items():
                known = [state.is_noted(t, frame) for t, frame in enumerate(frames)]
                if False in known:
                    raise _Contradiction(
                        f"silo {silo!r} noted other words of period {known.index(False) + 1}."
                    )
                noted = sum(one is True for one in known)
                done = len(frames) == kept.horizon.encoding.periods and not noted
                yield (
                    f"noted by {silo}",
                    "nothing is kept after the last period"
                    if done
                    else f"the same words of {noted} of {len(frames)} periods",
                )
    except LedgerError as error:
        yield "states of the silos", f"not checked: {error}"


def _charge(kept: HorizonFolder, frames: list[bytes], ledger: Ledger | None) -> str:
    """Return the result of the comparison with a ledger."""
    if ledger is None:
        return "not checked: give the ledger of the horizon with --ledger"
    horizon = kept.horizon
    # First, since a changed ledger could have any charge.
    ledger.verify()
    job = next((one for one in ledger.jobs() if one.job == horizon.plan.run_id), None)
    if job is None:
        return "not checked: this ledger has no such job"
    if job.events != horizon.event:
        raise _Contradiction("the ledger reserved another event than that of the horizon.")
    if horizon.plan.horizon is not None:
        sent = max((t + 1 for t in job.rounds), default=0)
        if sent < len(frames):
            raise _Contradiction(
                f"the ledger has sent {counted(sent, 'period')}, and more are released."
            )
        return f"reserved whole on {job.reserved_at[:10]}; of its uploads, {sent} were charged"
    # By keyed digests, as the frames are deleted after the last period.
    for t, frame in enumerate(frames):
        if not ledger.is_frame(job.job, t, frame):
            raise _Contradiction(f"the ledger has no charge of these words of period {t + 1}.")
    return f"reserved whole on {job.reserved_at[:10]}, and the words of each period are those drawn"
