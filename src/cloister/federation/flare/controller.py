"""The aggregator as a controller of NVIDIA FLARE: one FLARE job runs one plan.

FLARE's server runs this class by name; the job contains the proposal, three small JSON files and no
code. The controller's decisions protect no records: each silo follows its own policy and ledger.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from nvflare.apis.impl.controller import Controller

from cloister.core.errors import CloisterError, PlanError, TransportError
from cloister.federation.flare.kit import PROPOSAL
from cloister.federation.flare.transport import FlareTransport, Line, decision_of
from cloister.federation.service.store import Store
from cloister.federation.transports.http import Kind, Message, in_json
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.lifecycle import CoordinatorState
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds

_log = logging.getLogger(__name__)


class Rounds(Controller):
    """Offers the job's plan to its silos and runs its rounds.

    Parameters
    ----------
    round_timeout, approval_timeout : float, seconds
        Longest wait for a silent silo, and for an undecided one.

    Notes
    -----
    ``local/cloister/JOB.db`` of the server's kit stores answers and their charges. FLARE stops the
    whole job when a site's process for it dies, or when its operator stops it. Submit the same
    folder again, and the job continues at the same round.
    """

    new_noise: ClassVar[type[NoiseSource]] = DiscreteNoise

    def __init__(self, round_timeout: float = 300.0, approval_timeout: float = 86400.0) -> None:
        super().__init__()
        self._round_timeout = float(round_timeout)
        self._approval_timeout = float(approval_timeout)

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing, since the silos may not have started yet."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing, since :meth:`control_flow` has ended."""

    def process_result_of_unknown_task(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, since this job has no tasks of FLARE."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the job; on an error, FLARE marks it as failed."""
        engine = fl_ctx.get_engine()
        workspace = engine.get_workspace()
        line = Line(
            engine,
            fl_ctx,
            stopped=lambda: bool(abort_signal.triggered),
            gone=lambda silo: self.get_client_disconnect_time(silo) is not None,
        )
        try:
            config = Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
            document = _read(config / PROPOSAL)
            plan = Plan.from_dict(document["plan"])
            folder = Path(workspace.get_site_config_dir()) / "cloister"
            # One database per job: FLARE runs each job in a separate process.
            folder.mkdir(mode=0o700, exist_ok=True)
            with closing(Store(f"sqlite:///{folder / plan.run_id}.db")) as store:
                self._run(line, plan, document, store)
        except CloisterError as error:
            _log.error("the job failed: %s", error)
            self.system_panic(str(error), fl_ctx)

    def _run(self, line: Line, plan: Plan, document: Mapping[str, Any], store: Store) -> None:
        job = plan.run_id
        store.propose(job, document["plan"], document["proposer"])
        try:
            silos = self._approved(line, plan, document, store)
            transport = FlareTransport(
                line, job, silos, timeout=self._round_timeout, on_refusal=_refused
            )
            began = time.monotonic()
            aggregator = Aggregator(plan, self.new_noise(), store)
            for done in run_rounds(aggregator, transport, attempts=1):  # the line repeats by itself
                store.progress(job, done.round + 1, done.survivors)
                _log.info("round %d of %d done", done.round + 1, done.rounds)
            _log.info("%d rounds in %.3f s", plan.rounds, time.monotonic() - began)
        except CloisterError as error:
            # A stopped job stays open in the store, so that a second submission resumes it.
            if line.stopped:
                raise TransportError(
                    f"FLARE stopped job {job}; submit the same folder again to continue."
                ) from error
            _end(line, plan, store, "failed", str(error))
            raise
        _end(line, plan, store, "done")

    def _approved(
        self, line: Line, plan: Plan, document: Mapping[str, Any], store: Store
    ) -> tuple[str, ...]:
        """Offer the plan until every silo decided; return the silos that take part."""
        job = plan.run_id
        known = store.job(job)
        assert known is not None
        if known.state == "running":
            if Plan.from_dict(known.plan).digest != plan.digest:
                raise PlanError(f"the plan of job {job} was changed; make a new plan.")
            _log.info("job %s is taken up at round %d", job, known.rounds_done + 1)
            return known.approved
        if known.state != "proposed":
            raise PlanError(f"job {job} is {known.state} already; make a new plan.")
        offer = Message(Kind.OFFER, 0, job, in_json(**document))
        approved: set[str] = set()
        declined = 0
        for silo, answer in line.ask(dict.fromkeys(plan.silos, offer), self._approval_timeout):
            agreed, reason = decision_of(answer)
            store.decide(job, silo, agreed, reason)
            _log.info("silo %r %s", silo, "approved" if agreed else f"declined: {reason}")
            approved |= {silo} if agreed else set()
            declined += not agreed
            # The rest need not decide: too few can approve.
            if len(plan.silos) - declined < plan.min_silos:
                break
        members = tuple(silo for silo in plan.silos if silo in approved)
        if len(members) < plan.min_silos:
            raise PlanError(
                f"{len(members)} silos approved job {job}, the plan asks for {plan.min_silos}; "
                "the log has the reason of each silo that declined."
            )
        store.start(job, members)
        return members


def _end(line: Line, plan: Plan, store: Store, status: CoordinatorState, reason: str = "") -> None:
    """End the job here, and inform its silos once."""
    store.end(plan.run_id, status, reason)
    ended = Message(Kind.END, 0, plan.run_id, in_json(status=status, reason=reason))
    line.tell(dict.fromkeys(plan.silos, ended))


def _refused(silo: str, reason: str) -> None:
    _log.warning("silo %r refused a frame: %s", silo, reason)


def _read(path: Path) -> dict[str, Any]:
    """Read the proposal in the job and check that its plan can be decoded."""
    try:
        document = json.loads(path.read_text())
        plan, proposer = document["plan"], dict(document["proposer"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise PlanError(
            f"the job has no proposal that can be read ({type(error).__name__}); write it with "
            "cloister flare job."
        ) from error
    made = Plan.from_dict(plan)
    if made.readers:
        raise PlanError(
            "a job over FLARE has no readers, as FLARE has nowhere to keep their boxes; submit it "
            "to a coordinator."
        )
    if made.horizon is not None:
        raise PlanError(
            "a job over FLARE has no periods, as its rounds do not wait for owners; submit it to a "
            "coordinator."
        )
    return {"plan": made.to_dict(), "proposer": proposer}
