"""``cloister horizon``: answers that are renewed as records arrive, under one budget."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloister.app.files import SiloFiles
from cloister.app.horizon import Horizon, HorizonFolder, read_arrivals
from cloister.app.horizon_report import (
    horizon_document,
    noise_table,
    present_horizon,
    write_horizon_report,
)
from cloister.app.payment import LEDGER_VARIABLE, default_ledger
from cloister.cli.options import (
    add_max_loss_argument,
    add_period_arguments,
    add_plan_arguments,
    add_reading_argument,
    add_task_arguments,
    job_of,
    named_task,
    payment_of,
)
from cloister.cli.output import Output
from cloister.cli.parsers import actions, add_config
from cloister.cli.release import show_presentation
from cloister.core.errors import LedgerError, PlanError
from cloister.core.numerals import number
from cloister.data.records import Records
from cloister.data.schema import Schema
from cloister.data.units import Admits
from cloister.tasks import installed

Document = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    start = add("open", "fix a task for several periods, and reserve its one price", _open)
    start.add_argument("folder", type=Path, metavar="DIR", help="a new folder for the horizon")
    start.add_argument(
        "--silos",
        type=lambda text: tuple(text.split(",")),
        required=True,
        metavar="NAME,NAME,...",
        help="names of the silos, which are those of their files",
    )
    add_period_arguments(start, required=True)
    start.add_argument(
        "--keep",
        type=float,
        metavar="SHARE",
        help="for centres that move: share of earlier sums that each period keeps, such as 0.8",
    )
    add_plan_arguments(start, nominal_n=True)
    add_task_arguments(start)
    release = add("release", "freeze the arrivals of a period, and release its sums", _release)
    release.add_argument("folder", type=Path, metavar="DIR", help="the folder of the horizon")
    release.add_argument("period", type=int, metavar="PERIOD", help="number of the period, from 1")
    release.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="arrivals of each silo in the period"
    )
    add_reading_argument(release)
    add_max_loss_argument(release)
    freeze = add("freeze", "silo: freeze the arrivals of a period of a job", _freeze)
    freeze.add_argument("job", metavar="JOB", help="id of the job, or its first digits")
    freeze.add_argument("period", type=int, metavar="PERIOD", help="number of the period, from 1")
    freeze.add_argument("file", type=Path, metavar="FILE", help="arrivals of the silo in it")
    add_config(freeze, "configuration file of the silo")
    add_reading_argument(freeze)
    add_max_loss_argument(freeze)
    show = add("show", "show the answers so far and their course; costs nothing", _show)
    show.add_argument("folder", type=Path, metavar="DIR", help="the folder of the horizon")
    for action in (start, release):
        action.add_argument(
            "--ledger",
            type=Path,
            metavar="PATH",
            help=f"ledger to charge (default: {LEDGER_VARIABLE}, or one ledger for all your jobs)",
        )
    start.add_argument(
        "--cap-epsilon",
        type=float,
        metavar="E",
        help="lifetime cap of a data set that is new in the ledger",
    )
    start.set_defaults(confirm_same_content=False)


def _open(args: argparse.Namespace, out: Output) -> Document:
    task, options = named_task(args)
    job = job_of(args, task, Schema.load(args.schema), args.silos, options)
    rest = {"workload": args.workload, "keep": args.keep}
    horizon = Horizon.of(job.plan, args.periods, args.max_periods, **rest)
    encoding = horizon.encoding
    charge = payment_of(args, out).open(job.schema, job.plan)
    assert charge is not None  # a horizon has a budget
    HorizonFolder.create(args.folder, horizon, job.schema, charge.account)
    out.table(noise_table(horizon))
    if encoding.is_independent:
        out.paragraph(
            "Persons return so often that each period is released by itself; fewer periods, or a "
            "smaller --max-periods, have less noise."
        )
    out.pairs(
        ("horizon", job.plan.run_id),
        ("periods", f"{encoding.periods}, a person in at most {encoding.max_periods}"),
        ("silos", ", ".join(job.plan.silos)),
        *((f"  {name}", value) for name, value in charge.lines()),
    )
    charge.close()
    return {
        "horizon": job.plan.run_id,
        "digest": horizon.digest,
        "expected_noise": horizon.expected(),
    }


def _release(args: argparse.Namespace, out: Output) -> Document:
    from cloister.privacy.ledger import Ledger

    folder = HorizonFolder.load(args.folder, installed())
    files = _files(folder, args)

    def read(admits: Mapping[str, Admits]) -> Mapping[str, Records]:
        notices: list[str] = []
        with out.reading() as counter:
            how: Any = {"counter": counter, "say": notices.append}
            records = folder.read(files, admits, max_loss=args.max_loss, **how)
        for notice in notices:
            out.warn_locally(notice)
        return records

    path = args.ledger or default_ledger()
    if not path.is_file():
        raise LedgerError(f"ledger {str(path)!r} is missing; give that of the horizon.")
    ledger = Ledger(path)
    notices = [*folder.ignored(ledger)]
    folder.release(args.period, read, ledger, warn=notices.append)
    for notice in notices:
        out.warn_locally(notice)
    ledger.dispose()
    return _show(args, out)


def _freeze(args: argparse.Namespace, out: Output) -> Document:
    from cloister.federation.settings import SiloSettings, load_role
    from cloister.federation.silo.decisions import plan_of
    from cloister.federation.silo.periods import freeze
    from cloister.federation.silo.site import Site

    site = Site.of(load_role(args.config, SiloSettings))
    silo, store = site.settings.name, site.store()
    try:
        job = store.find(args.job)
    finally:
        store.dispose()
    plan = plan_of(site, job)
    accepted = site.settings.data.accept_loss if args.max_loss is None else args.max_loss
    files = SiloFiles(paths={silo: args.file}, reading=args.reading)

    def read(admits: Admits) -> Records:
        notices: list[str] = []
        with out.reading() as counter:
            how: Any = {"counter": counter, "say": notices.append, "max_loss": accepted}
            records = read_arrivals(plan, site.schema, files, {silo: admits}, **how)[silo]
        for notice in notices:  # before the period is frozen
            out.warn_locally(notice)
        return records

    freeze(site, job, plan, args.period, read, out.warn_locally)
    out.say(f"frozen  period {args.period} of {job.id}; it is released when all silos froze it")
    return {"job": job.id, "period": args.period}


def _files(folder: HorizonFolder, args: argparse.Namespace) -> SiloFiles:
    """Return the file of each silo, with the name of the silo."""
    silos = folder.horizon.plan.silos
    paths = {path.name.partition(".")[0]: path for path in args.files}
    if len(paths) < len(args.files) or set(paths) - set(silos):
        raise PlanError(
            f"files must be one for each of the silos {', '.join(silos)}, named as they are, such "
            f"as {silos[0]}.csv; got {', '.join(path.name for path in args.files)}."
        )
    if missing := sorted(set(silos) - set(paths)):
        raise PlanError(
            f"silo {missing[0]!r} has no file, and every release holds its earlier sums; give its "
            "file, without rows if nothing arrived. If it leaves, the horizon ends."
        )
    return SiloFiles(paths={silo: paths[silo] for silo in silos}, reading=args.reading)


def _show(args: argparse.Namespace, out: Output) -> Document:
    folder = HorizonFolder.load(args.folder, installed())
    released = folder.answered()
    release, shown = present_horizon(folder.horizon, released, folder.noise)
    report = args.folder / "report.html"
    write_horizon_report(release, shown, report, folder.schema)
    show_presentation(shown, out)
    out.pairs(
        ("periods", f"{len(released)} of {folder.horizon.encoding.periods}"),
        ("epsilon of all", number(release.epsilon())),
    )
    out.say(f"written  {report}")
    return horizon_document(folder.horizon, released)
