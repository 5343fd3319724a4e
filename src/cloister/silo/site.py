"""What a silo's settings name: its schema, policy, identity, files and records."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from cloister.data import Records, read_source
from cloister.data.dask import DaskWorkers
from cloister.data.partitions import PartitionedRecords, partitions_of, read_partitions
from cloister.enrolment import KeyFolder
from cloister.errors import PlanError
from cloister.hazmat.signing import Identity
from cloister.mpc.parties import Account
from cloister.privacy.filter import Limits, Split
from cloister.privacy.ledger import Ledger
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import Proposer
from cloister.schema import Schema
from cloister.settings import SiloSettings
from cloister.silo.policy import Policy
from cloister.silo.store import Store
from cloister.tasks import Catalogue, installed

_log = logging.getLogger("cloister.silo")


@dataclass(frozen=True)
class Site:
    """One silo, as its owner set it up; the agent and the owner's commands both start here."""

    settings: SiloSettings
    schema: Schema
    policy: Policy
    identity: Identity

    @classmethod
    def of(cls, settings: SiloSettings) -> Self:
        """Read schema and identity from the files that the settings name."""
        return cls(
            settings,
            Schema.load(settings.schema_file),
            Policy(settings.policy),
            KeyFolder(settings.keys).identity(),
        )

    @property
    def store_path(self) -> Path:
        """The file of jobs, beside the ledger."""
        return self.settings.ledger.with_name(f"{self.settings.ledger.stem}.jobs.db")

    def store(self) -> Store:
        """Open the file of jobs."""
        return Store(self.store_path)

    def ledger(self) -> Ledger:
        """Open the ledger with the data set in it, whose lifetime cap must be that of the settings.

        Raises
        ------
        LedgerError
            If the ledger knows another cap or unit, or another split than one that is given.
        """
        ledger, settings = Ledger(self.settings.ledger), self.settings
        ledger.open_dataset(
            self.schema.dataset, cap=settings.cap, unit=self.schema.unit, split=settings.split
        )
        return ledger

    def account(self) -> Account:
        """Return where a private opening on shares is charged: the ledger, with its caps."""
        ledger, rules, dataset = self.ledger(), self.settings.policy, self.schema.dataset
        cap, study_cap = self.settings.cap, rules.max_epsilon_per_study
        if study_cap is not None and study_cap < cap.epsilon:
            ledger.study_cap(dataset, "default", type(cap)(study_cap, cap.delta))
        return Account(ledger, dataset, year_epsilon=rules.max_epsilon_per_year)

    @property
    def tasks(self) -> Catalogue:
        """The tasks that jobs may name here: those that ship, and others that the owner named."""
        of_packages = installed(self.settings.policy.tasks)
        return Catalogue({**self.settings.tasks, **of_packages.places})

    @property
    def limits(self) -> Limits:
        """The limits that a ledger made from these settings has."""
        cap = self.settings.cap
        return Limits(cap, self.settings.split or Split.default(cap))

    def refusal(self, plan: Plan, proposer: Mapping[str, Any]) -> str | None:
        """Return why the policy refuses a job, in one sentence, or None.

        Pins are read from the configuration file again each time.
        """
        try:
            peers, analysts = self.settings.pins()
        except PlanError as error:
            _log.error("pins cannot be read: %s", error)
            return "the pins of this silo cannot be read; its owner has to mend them."
        return self.policy.refusal(
            plan,
            silo=self.settings.name,
            schema=self.schema,
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

    def records(self, plan: Plan) -> Records | PartitionedRecords:
        """Read the columns of a plan, on its grid, or have workers read them."""
        data, workers = self.settings.data, self._workers
        part: dict[str, Any] = {"columns": plan.columns, "frac_bits": plan.grid.frac_bits}
        records: Records | PartitionedRecords
        if workers:
            assert data.file is not None
            records = read_partitions(partitions_of(data.file), self.schema, workers, **part)
        else:
            records = read_source(data.source(), self.schema, cache_dir=data.cache_dir, **part)
        if records.doubt:
            _log.warning("%s", records.doubt)  # the owner's own log, and the job goes on
        if isinstance(records, PartitionedRecords):
            return records
        wanted = self.settings.ordered_records and getattr(plan.task, "in_order", False)
        return records.in_order if wanted else records
