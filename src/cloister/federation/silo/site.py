"""The objects that a silo's settings name: schema, policy, identity, files and records."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from cloister.app.files import schemas_of
from cloister.core.errors import AbsentColumns, CloisterError, DataError, PlanError
from cloister.data import MAX_LOSS, Records, check_file, is_above, read_source
from cloister.data.dask import DaskWorkers
from cloister.data.loss import whole_of
from cloister.data.partitions import PartitionedRecords, partitions_of, read_partitions
from cloister.data.reading import ReadingReport
from cloister.data.schema import Schema
from cloister.federation.pki import KeyFolder
from cloister.federation.settings import SiloSettings
from cloister.federation.silo.policy import Policy
from cloister.federation.silo.store import Store
from cloister.hazmat.signing import Identity
from cloister.privacy.filter import Limits, Split
from cloister.privacy.ledger import Ledger
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import Proposer
from cloister.tasks import Catalogue, installed

_log = logging.getLogger("cloister.federation.silo")
TOO_MUCH_LOST = (
    "more rows of this silo's data are excluded than its owner accepts; run 'cloister check FILE "
    "--schema SCHEMA' to see the rows, then correct the reading settings, of the schema or of "
    "reading under [data], or set accept_loss there."
)
LEFT_OUT = (
    "rows of this silo's data are left out, because cells in them cannot be read; run 'cloister "
    "check FILE --schema SCHEMA' to see them. Jobs use the other rows."
)
IN_DOUBT = (
    "cells of this silo's data may have another meaning; run 'cloister check FILE --schema SCHEMA' "
    "to see them. Jobs use them as they are read."
)
CLIPPED = (
    "many values of a column of this silo are clipped to its bounds; run 'cloister check FILE "
    "--schema SCHEMA' to see which."
)
"""These messages have no number, column or cell, because those of an agent are often logged."""


def schema_of(settings: SiloSettings) -> Schema:
    """Read a silo's schema, with the reading settings of its file if there are some."""
    schema, data = Schema.load(settings.schema_file), settings.data
    if data.reading is None or data.file is None:
        return schema
    return schemas_of(schema, [data.file], data.reading)[data.file]


@dataclass(frozen=True)
class Site:
    """One silo as configured by its owner, for the agent and the owner's commands."""

    settings: SiloSettings
    schema: Schema
    policy: Policy
    identity: Identity

    @classmethod
    def of(cls, settings: SiloSettings) -> Self:
        """Read schema and identity from the files that the settings name."""
        return cls(
            settings,
            schema_of(settings),
            Policy(settings.policy),
            KeyFolder(settings.keys).identity(),
        )

    @property
    def store_path(self) -> Path:
        """The file of jobs, next to the ledger."""
        return self.settings.ledger.with_name(f"{self.settings.ledger.stem}.jobs.db")

    def store(self) -> Store:
        """Open the file of jobs."""
        return Store(self.store_path)

    def convicted(self) -> dict[str, str]:
        """Return the offence of each convicted party, by fingerprint."""
        store = self.store()
        try:
            return store.convicted()
        finally:
            store.dispose()

    def ledger(self) -> Ledger:
        """Open the ledger with the data set, whose lifetime cap must equal that of the settings.

        Raises
        ------
        LedgerError
            If the ledger has another cap or unit, or another split than the settings.
        """
        ledger, settings = Ledger(self.settings.ledger), self.settings
        ledger.open_dataset(
            self.schema.dataset, cap=settings.cap, unit=self.schema.unit, split=settings.split
        )
        return ledger

    @property
    def tasks(self) -> Catalogue:
        """The tasks that jobs may name here: those that ship, and those that the owner added."""
        of_packages = installed(self.settings.policy.tasks)
        return Catalogue({**self.settings.tasks, **of_packages.places})

    @property
    def limits(self) -> Limits:
        """The limits of a ledger created from these settings."""
        cap = self.settings.cap
        return Limits(cap, self.settings.split or Split.default(cap))

    def refusal(self, plan: Plan, proposer: Mapping[str, Any]) -> str | None:
        """Return the reason why the policy refuses a job, in one sentence, or None.

        Pins are read from the configuration file on each call.
        """
        try:
            peers, analysts = self.settings.pins()
        except PlanError as error:
            _log.error("pins cannot be read: %s", error)
            return "the pins of this silo cannot be read; its owner must correct them."
        return self.policy.refusal(
            plan,
            silo=self.settings.name,
            schema=self.schema,
            tasks=self.tasks,
            proposer=Proposer(**proposer) if proposer else None,
            peers=peers,
            analysts=analysts,
            fingerprint=self.identity.fingerprint,
        )

    @cached_property
    def _workers(self) -> DaskWorkers | None:
        """The silo's own cluster, if its settings name one."""
        address = self.settings.data.workers
        return None if address is None else DaskWorkers(address)

    def reading(
        self, columns: Sequence[str] | None = None, completed: Collection[str] = ()
    ) -> ReadingReport:
        """Return exact counts of the rows that jobs over some columns use; by default over all.

        Rows with a missing cell of a column outside `completed` count as excluded.
        They depend on records, so only the start and the owner may use them, never a job.

        Raises
        ------
        DataError
            If the records cannot be read.
        """
        data, workers = self.settings.data, self._workers
        if not workers:
            return check_file(data.source(), self.schema, columns).for_task(completed)
        assert data.file is not None
        parts = partitions_of(data.file)
        reports = read_partitions(parts, self.schema, workers, columns=columns).reports
        return whole_of(reports).for_task(completed)

    def loses_too_much(self, report: ReadingReport) -> bool:
        """Return True if more rows are excluded than the owner accepts."""
        # The owner can raise the limit above the default, but not lower it.
        return is_above(report, max(MAX_LOSS, self.settings.data.accept_loss or 0.0))

    def check_loss(self) -> None:
        """Raise a DataError without details if too many rows are excluded; warn of doubts.

        Unreadable records raise no error here; each job reports them. Columns that the header
        lacks do: no job could run, and their names are public.
        """
        # Whether a kept missing cell costs its row depends on the task, so jobs count these rows.
        kept = [column.name for column in self.schema.columns if column.missing == "keep"]
        try:
            report = self.reading(completed=kept)
        except AbsentColumns:
            raise
        except (CloisterError, OSError):
            return
        if self.loses_too_much(report):
            raise DataError(TOO_MUCH_LOST)
        if report.causes:
            _log.warning(LEFT_OUT)
        if report.doubts:  # a desk would stop, but here the owner decides on each job
            _log.warning(IN_DOUBT)

    def records(self, plan: Plan) -> Records | PartitionedRecords:
        """Read the columns of a plan, on its grid, or have workers read them."""
        # On the grid of the plan, since sensitivities are proved for it.
        data, workers = self.settings.data, self._workers
        part: dict[str, Any] = {"columns": plan.columns, "frac_bits": plan.grid.frac_bits}
        records: Records | PartitionedRecords
        if workers:
            assert data.file is not None
            records = read_partitions(partitions_of(data.file), self.schema, workers, **part)
        else:
            records = read_source(data.source(), self.schema, cache_dir=data.cache_dir, **part)
        if isinstance(records, PartitionedRecords):
            return records
        # Sorting pays only for tasks that scan their records in order.
        wanted = self.settings.ordered_records and getattr(plan.task, "sort_records_pays", False)
        return records.in_order if wanted else records
