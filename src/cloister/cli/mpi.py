"""One rank of ``cloister run --mpi``: rank 0 is the aggregator, rank i the silo of file i.

Every rank makes the plan from the same command line. The aggregator reads no file and has neither
ledger nor key. Each silo reads its own file and charges its own ledger before it sends a vector. At
the end all silos have the result, and the first one writes it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloister.app.files import name_silos, prepare_folder, refuse_results
from cloister.app.in_process import CONTENT_KEY
from cloister.app.job import Job
from cloister.app.payment import Charge
from cloister.app.release import release_of
from cloister.cli import EXIT_CODES, UNEXPECTED
from cloister.cli.options import files_of, job_of, named_task, payment_of
from cloister.cli.output import Output
from cloister.cli.release import write_results
from cloister.core.errors import PlanError
from cloister.core.randomness import new_key
from cloister.data.schema import Schema
from cloister.federation.transports.mpi import MpiTransport, end_all, hand_out, serve, world
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.secagg.masks import GroupMask

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

    from cloister.data import Records


def run_rank(
    args: argparse.Namespace, out: Output, noise: NoiseSource | None = None
) -> dict[str, Any] | None:
    """Run the party of this rank; return the document if this rank writes one.

    An error stops all ranks.
    """
    comm = world()
    source = noise or DiscreteNoise()
    try:
        if comm.rank != 0:
            return _contribute(args, comm, source.label, out)
        _aggregate(args, comm, source)
    except BaseException as error:
        codes = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
        end_all(next(codes, UNEXPECTED))
        raise
    return None


def _aggregate(args: argparse.Namespace, comm: Comm, noise: NoiseSource) -> None:
    """Make the plan, for which the other ranks wait, and run its rounds."""
    plan = _agree(args).plan
    transport = MpiTransport(comm, plan.silos)
    hand_out(comm, bytes.fromhex(plan.run_id), 0)
    comm.Barrier()  # until every silo has read its file
    comm.Barrier()  # until every silo has reserved the cost
    for _ in run_rounds(Aggregator(plan, noise), transport):
        pass
    transport.close()


def _contribute(
    args: argparse.Namespace, comm: Comm, noise: str, out: Output
) -> dict[str, Any] | None:
    """Run the silo of this rank; the first silo writes and shows the result."""
    run_id = hand_out(comm, b"", 0).hex()
    job = _agree(args)
    plan = replace(job.plan, run_id=run_id)
    silo, writes = plan.silos[comm.rank - 1], comm.rank == 1
    out = out if writes else Output(quiet=True)
    records = files_of(args).read(job.schema, job.columns, silos=[silo])
    # A rank whose file has too many unusable rows stops all ranks before a frame is sent.
    for notice in job.loss_notices(records):
        out.warn_locally(notice)
    refuse_results(args.out)
    prepare_folder(args.out)
    comm.Barrier()  # no silo reserves budget for a job with an unreadable file
    charge = payment_of(args, out).open(job.schema, plan, silo=silo)
    client = _play(plan, silo, records[silo], comm, charge)
    if writes:
        release = release_of(plan, client.history, client.sums, noise)
        return write_results(release, charge, args.out, out, schema=job.schema)
    if charge:
        charge.close()
    return None


def _play(plan: Plan, silo: str, records: Records, comm: Comm, charge: Charge | None) -> Client:
    """Answer the aggregator to the end, with the ledger as journal; return the client."""
    account = charge.account if charge else None
    plan.contract.check(records)
    if account:
        account.reserve(plan, records.fingerprint(CONTENT_KEY))
    try:
        key = hand_out(comm, new_key(), 1)
        ledger = account.ledger if account else None
        client = Client(plan, silo, records, GroupMask(key), ledger)
        comm.Barrier()  # no silo sends a vector before all have reserved the cost
        serve(comm, client.handle)
    finally:
        if account:
            account.close(plan)
    return client


def _agree(args: argparse.Namespace) -> Job:
    """Return the job of the command line, whose plan differs between ranks only in its run id."""
    task, options = named_task(args)
    silos = name_silos(args.files)
    if len(silos) < 2:
        raise PlanError(
            f"--mpi needs two or more files, got {len(silos)}; omit --mpi for a single silo."
        )
    if task.private and args.nominal_n is None:
        raise PlanError(
            "--mpi needs --nominal-n, because it runs no noisy count; agree on a public number of "
            "records."
        )
    return job_of(args, task, Schema.load(args.schema), silos, options)
