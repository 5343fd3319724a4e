"""One rank of ``cloister run --mpi``: rank 0 is the aggregator, rank i the silo of the i-th file.

Every rank makes the plan from the same command line. The aggregator reads no file and has no ledger
and no key; each silo reads its own file and charges its own ledger before a vector leaves. All
silos hold the result in the end, and the first one writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.app.jobs import CONTENT_KEY, result_of
from cloister.cli import EXIT_CODES, UNEXPECTED
from cloister.cli.options import check_layouts, named_task, plan_of, schemas_of, source_of
from cloister.cli.output import Output
from cloister.cli.release import (
    Charge,
    check_loss,
    finish,
    name_silos,
    open_charge,
    prepare_folder,
)
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
    """Play the part of this rank and return the document, if it writes one.

    An error ends all ranks.
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
    """Make the plan, which the others wait for, and run its rounds."""
    plan, _, files, _ = _agree(args)
    transport = MpiTransport(comm, tuple(files))
    hand_out(comm, bytes.fromhex(plan.run_id), 0)
    comm.Barrier()  # every silo has read its file
    comm.Barrier()  # every silo can pay
    for _ in run_rounds(Aggregator(plan, noise), transport):
        pass
    transport.close()


def _contribute(
    args: argparse.Namespace, comm: Comm, noise: str, out: Output
) -> dict[str, Any] | None:
    """Take part as the silo of this rank; the first silo writes and shows the result."""
    from cloister.data import read_source

    run_id = hand_out(comm, b"", 0).hex()
    plan, schema, files, options = _agree(args)
    plan = replace(plan, run_id=run_id)
    silo, writes = plan.silos[comm.rank - 1], comm.rank == 1
    out = out if writes else Output(quiet=True)
    check_layouts(files.values(), args.baskets)
    source = source_of(files[silo], args.baskets)
    written = schemas_of(schema, files.values(), args.reading)[files[silo]]
    records = read_source(source, written, columns=args.columns, cache_dir=args.cache_dir)
    # each rank sits at its own file; one that refuses ends all before a frame is sent
    check_loss(args, {silo: records}, schema, options, Output())
    prepare_folder(args.out)
    comm.Barrier()  # nothing is reserved for a job in which a file cannot be read
    charge = open_charge(args, schema, plan, out, silo=silo)
    client = _play(plan, silo, records, comm, charge)
    if writes:
        result = result_of(plan, client.history, client.survivors, noise)
        return finish(result, charge, args.out, out, schema=schema)
    if charge:
        charge.account.ledger.dispose()
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
        comm.Barrier()  # nothing leaves before every silo can pay
        serve(comm, client.handle)
    finally:
        if account:
            account.close(plan)
    return client


def _agree(
    args: argparse.Namespace,
) -> tuple[Plan, Schema, Mapping[str, Path], Mapping[str, Any]]:
    """Return the plan of the command line, the same on every rank but for its run."""
    task, options = named_task(args)
    files = name_silos(args.files)
    if len(files) < 2:
        raise PlanError("mpi needs two or more files; leave --mpi out for a single silo.")
    if task.private and args.nominal_n is None:
        raise PlanError(
            "nominal_n must be given with --mpi, where no noisy count is bought; agree on a number "
            "that may be public."
        )
    schema = Schema.load(args.schema)
    return plan_of(args, task, schema, files, options), schema, files, options
