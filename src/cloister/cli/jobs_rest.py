"""``cloister jobs`` for analysts and operators: over the coordinator's REST interface."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cloister.app.coefficients import coefficients_of
from cloister.app.forecast import plan_warnings
from cloister.app.release import Release, target_of
from cloister.app.text import listed
from cloister.cli.options import task_of_model
from cloister.cli.output import Output
from cloister.cli.proposals import proposed_plan
from cloister.cli.release import show_federated
from cloister.core.display import Table
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister.federation.pki import KeyFolder, client_context
from cloister.federation.service.client import Rest
from cloister.federation.service.render import facts, members, moment, priced, progress
from cloister.federation.settings import AnalystSettings, CoordinatorSettings
from cloister.protocol.lifecycle import MEANING
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import Proposer, proposal
from cloister.protocol.readers import Reader, open_boxes


@dataclass(frozen=True)
class Connection:
    """A party's connection to the coordinator."""

    rest: Rest
    keys: KeyFolder

    @property
    def reader(self) -> Reader:
        """The card of the party that is connected."""
        return Reader.of(self.keys.identity(), self.keys.peer().name)

    def job(self, begins: str) -> dict[str, Any]:
        """Return the coordinator's document of the only job whose id starts with `begins`."""
        return self.rest.job(self.rest.find(begins))


@contextmanager
def connected(settings: AnalystSettings | CoordinatorSettings) -> Iterator[Connection]:
    """Connect to the coordinator with the keys of a party."""
    keys = KeyFolder(settings.keys)
    url, proxy = _address(settings)
    with Rest(url, client_context(keys), proxy) as rest:
        yield Connection(rest, keys)


def _address(settings: AnalystSettings | CoordinatorSettings) -> tuple[str, str | None]:
    if isinstance(settings, AnalystSettings):
        return settings.coordinator, settings.proxy
    host, _, port = settings.listen.rpartition(":")
    # A client cannot connect to the address that means all addresses.
    loopback = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}
    return f"https://{loopback.get(host, host)}:{port}", None


def _submit(args: argparse.Namespace, there: Connection, out: Output) -> dict[str, Any]:
    # The coordinator knows the fingerprints of silos that were connected.
    args.readers = [Reader.load(path) for path in args.reader]
    if args.publish:
        args.readers.insert(0, there.reader)
    plan = proposed_plan(args, there.rest.silos)
    for warning in plan_warnings(plan, Schema.load(args.schema)):
        out.warn(warning)
    # Signed with the analyst's key, so that silos need not trust the coordinator for its origin.
    job = there.rest.submit(proposal(plan, there.keys.identity(), there.keys.peer().name))
    out.say(f"proposed  {job['id']}")
    out.paragraph(plan.describe())
    out.pairs(
        ("columns", listed(plan.columns)),
        *target_of(plan),
        ("silos", ", ".join(plan.silos)),
        ("profile", plan.profile),
        ("plan digest", plan.digest.hex()),
    )
    out.say(
        f"The silos now decide on it; see cloister jobs show {job['id']} --config {args.config}."
    )
    return {
        "job": job["id"],
        "state": job["state"],
        "plan": plan.to_dict(),
        "plan_digest": plan.digest.hex(),
    }


def _list(_: argparse.Namespace, there: Connection, out: Output) -> dict[str, Any]:
    jobs = there.rest.jobs()[::-1]  # the newest last, next to the prompt
    rows = tuple(
        (
            job["id"],
            job["state"],
            job["proposer"],
            priced(job["task"], job.get("budget")),
            progress(job) if "rounds" in job else "",  # another analyst's job is an outline
            moment(job["proposed_at"]),
        )
        for job in jobs
    )
    headings = ("job", "state", "proposed by", "task and epsilon", "rounds", "proposed")
    out.table(Table("Jobs at the coordinator", headings, rows))
    return {"jobs": jobs}


def _show(args: argparse.Namespace, there: Connection, out: Output) -> dict[str, Any]:
    job = there.job(args.job)
    out.pairs(*facts(job))
    out.say()
    out.paragraph(job["describe"])
    out.say()
    out.table(members(job))
    return job


def _cancel(args: argparse.Namespace, there: Connection, out: Output) -> dict[str, Any]:
    job = there.rest.cancel(there.rest.find(args.job))
    out.say(f"cancelled  {job['id']}")
    out.say(MEANING["cancelled"])
    return {"job": job["id"], "state": job["state"]}


def _reader_card(_: argparse.Namespace, there: Connection, out: Output) -> dict[str, Any]:
    card = there.reader.card()
    out.say(json.dumps(card, indent=1, allow_nan=False))
    return card


def _result(args: argparse.Namespace, there: Connection, out: Output) -> dict[str, Any]:
    job = there.job(args.job)
    plan, proposer = Plan.from_dict(job["plan"]), Proposer(**job["proposal"])
    # The coordinator named the plan: only signatures tell that it is the one that was proposed.
    if not proposer.signed(plan):
        raise PlanError(
            f"{proposer.name!r} did not sign the plan of job {plan.run_id}; ask for the job again, "
            "or its proposer."
        )
    boxes = ((silo, there.rest.box(plan.run_id, at)) for at, silo in enumerate(plan.silos))
    sealed = ((silo, box) for silo, box in boxes if box is not None)
    vouched = open_boxes(plan, there.keys.identity(), sealed)
    for silo, why in vouched.others.items():
        out.warn(f"silo {silo!r} does not vouch for this result: {why}")
    result = Release.from_dict(vouched.sums, task_of_model(args))
    signed = f"These silos signed its words: {', '.join(vouched.silos)}."
    show_federated(result, out, args.report, args.out, verification=("signed", signed))
    known = dict(zip(plan.silos, plan.fingerprints, strict=True))
    out.pairs(
        ("proposed by", f"{proposer.name} {proposer.fingerprint}"),
        *(("vouched by", f"{silo} {known[silo]}") for silo in vouched.silos),
    )
    about = {"vouched": vouched.silos, "dissenting": dict(vouched.others)}
    return {"job": plan.run_id, **about, **result.to_dict(), **coefficients_of(result)}


ACTIONS: dict[str, Callable[[argparse.Namespace, Connection, Output], dict[str, Any]]] = {
    "submit": _submit,
    "list": _list,
    "show": _show,
    "cancel": _cancel,
    "result": _result,
    "reader-card": _reader_card,
}
