"""A horizon: a task whose sums are released in every period, under one budget.

All silos are files of this process. In each period a silo freezes its arrivals, the ledger makes
the noisy sum durable, and only then anything is shown. docs/proofs/horizon.md
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt, sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np

from cloister.app.arrivals import ENDED, Arrivals
from cloister.app.files import OnRows, SiloFiles, prepare_folder
from cloister.app.in_process import check_records
from cloister.app.payment import Account
from cloister.app.release import Release, release_of
from cloister.core.arrays import Floats, GridState, Integers
from cloister.core.errors import CloisterError, DataError, LedgerError, PlanError, raise_if_any
from cloister.core.files import read_json, sync_folder, write_text
from cloister.data.loss import completed_by, loss_notices
from cloister.data.records import Records
from cloister.data.schema import Schema
from cloister.data.units import Admits
from cloister.hazmat.discrete import MAX_SCALE
from cloister.hazmat.prg import join
from cloister.hazmat.ring import RING_BITS, from_bytes, to_bytes, to_integers, to_words
from cloister.privacy.calibration import (
    gaussian_noise_multiplier,
    lattice_noise_multiplier,
    lattice_sigma,
)
from cloister.privacy.chain import JobRecord, canonical
from cloister.privacy.events import HorizonEvent
from cloister.privacy.horizon import MOST_RECORDS, WINDOWS, Encoding, Workload, answers, kept
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan, rules_of_renewal
from cloister.protocol.progress import Progress
from cloister.protocol.summing import LocalStep, agreed_sums
from cloister.protocol.task import INTERVAL_95, Block, NoisyBlock, Task
from cloister.tasks import installed

HORIZON, RELEASES = "horizon.json", "released.json"
"""The file that makes a folder one of a horizon, and that of its releases."""
FORMAT, RELEASED = "cloister-horizon/1", "cloister-horizon-sums/1"
Read = Callable[[Mapping[str, Admits]], Mapping[str, Records]]
"""Reads the records of all silos; rows of units that are not admitted are left out."""


@dataclass(frozen=True)
class Horizon:
    """The public numbers of a horizon, fixed before its first period.

    Parameters
    ----------
    plan : Plan
        The plan of one release of the task; its budget is that of all periods together.
    keep : float in (0, 1), optional
        If given, the state of the task moves, such as the centres of clusters. The state after a
        period follows from the one before and from sums of which each period keeps this share.
    """

    plan: Plan
    encoding: Encoding
    keep: float | None = None

    def __post_init__(self) -> None:
        raise_if_any(self._rules())

    @classmethod
    def of(
        cls,
        plan: Plan,
        periods: int,
        max_periods: int = 1,
        *,
        workload: Workload = "all",
        keep: float | None = None,
    ) -> Self:
        """Return a horizon with the least noise; see :meth:`Encoding.of` for `workload`."""
        # Later commands find the task by its name, when its price is already spent.
        if plan.task.name not in installed():
            raise PlanError(
                f"task {plan.task.name!r} must be installed as a package to have a horizon."
            )
        if keep is None:
            return cls(plan, Encoding.of(periods, max_periods, workload))
        if workload != "all":
            raise PlanError(
                f"workload must be 'all' with keep, whose sums have their own matrix, got "
                f"{workload!r}; leave one of them out."
            )
        raise_if_any(_rules_of_share(keep))  # before its powers are computed
        return cls(plan, Encoding.best(kept(periods, keep), max_periods), keep)

    def _rules(self) -> Iterator[str]:
        plan, name = self.plan, self.plan.task.name
        yield from rules_of_renewal(plan)
        networked = plan.profile == "pairwise" or plan.fingerprints or plan.readers
        if networked and plan.horizon is None:
            yield "a horizon runs over files in one process; leave out profile and readers."
        if plan.horizon not in (None, self.encoding) or (plan.horizon and self.keep is not None):
            yield "matrix of the horizon must be that of its plan, without keep."
        yield from _rules_of_share(self.keep)
        payload = getattr(plan.task, "payload", None)
        if self.keep is not None and payload and payload(0).relative:
            yield (
                f"sums of {name!r} are differences to centres, which move with keep, so they do "
                "not add up over periods; use 'glloyd'."
            )
        for block in plan.blocks(0):
            if self.scale(block) > MAX_SCALE:
                yield "noise of the horizon does not fit the ring; use a larger epsilon."
            if plan.horizon is not None:
                continue  # its own rules keep the sums with their noise in the ring
            records = len(plan.silos) * MOST_RECORDS * self.encoding.gain
            if records * (isqrt(block.l2_squared) + 1) >= 1 << (RING_BITS - 2):
                yield "sums of the horizon do not fit the ring; use fewer frac_bits or silos."

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the public description, in hexadecimal digits."""
        if self.plan.horizon is not None:
            return self.plan.digest.hex()
        return hashlib.sha256(canonical(self.to_dict()).encode()).hexdigest()

    @cached_property
    def event(self) -> HorizonEvent:
        """The event of all periods together."""
        # Each is that of the noise after rounding up.
        multipliers = (
            lattice_noise_multiplier(self.scale(block), self._norm(block))
            for block in self.plan.blocks(0)
        )
        return self.encoding.event(multipliers, self.digest)

    def _norm(self, block: Block) -> float:
        """Return the largest L2 change of all releases of a block by one unit."""
        return self.encoding.norm(block.l2_squared, self.plan.group_size)

    def scale(self, block: Block) -> int:
        """Return sigma of the noise of a block in each period, in integers."""
        budget = self.plan.budget
        assert budget is not None  # the first rule
        multiplier = gaussian_noise_multiplier(budget.epsilon, budget.delta)
        return lattice_sigma(multiplier / sqrt(block.weight), self._norm(block))

    def noise_std(self, block: Block) -> float:
        """Return the standard deviation of the noise of a block in each period, in integers."""
        # Shares of silos that may be known to others add up to more than the scale.
        return self.scale(block) if self.plan.horizon is None else self.plan.noise_std(block)

    def noise(self, source: NoiseSource) -> Integers:
        """Draw the noise of one period."""
        blocks = self.plan.blocks(0)
        drawn = [source.draw("gaussian", self.scale(block), block.size) for block in blocks]
        return np.concatenate(drawn)

    def _blocks(self, released: Integers, asked: Floats) -> tuple[dict[str, NoisyBlock], Floats]:
        """Return the blocks of a combination of periods, and the weights of the releases in it."""
        (weights,) = self.encoding.weights(asked[None])
        values, norm = np.rint(weights @ released).astype(np.int64), np.linalg.norm(weights)
        blocks, offset = {}, 0
        for block in self.plan.blocks(0):
            part = values[offset : offset + block.size].reshape(block.shape)
            blocks[block.name] = NoisyBlock(part, float(norm) * self.noise_std(block))
            offset += block.size
        return blocks, weights

    def _progress(self, released: Integers, asked: Floats) -> tuple[Progress, Floats]:
        blocks, weights = self._blocks(released, asked)
        progress = Progress(self.plan)
        progress.take(0, blocks)
        return progress, weights

    def course(self, released: Integers) -> Progress:
        """Return the states before the first period and after each, if the state moves."""
        progress = Progress(self.plan)
        if self.keep is not None:
            for t, asked in enumerate(kept(self.encoding.periods, self.keep)[: len(released)]):
                progress.take(0, self._blocks(released[: t + 1], asked[: t + 1])[0])
        return progress

    def answer(self, released: Integers, asked: Floats) -> Release:
        """Return the answer of the task for a combination of periods; it costs nothing.

        Parameters
        ----------
        released : ndarray of shape (t, size)
            The noisy sums of the periods so far.
        asked : ndarray of shape (t,)
            The weight of each period.
        """
        return self._release(self._progress(released, asked)[0], int(np.count_nonzero(asked)))

    def _release(self, progress: Progress, periods: int) -> Release:
        one = release_of(self.seen(periods), progress.states, (), DiscreteNoise.label)
        return replace(one, plan=self.plan, spent=self.event)

    def seen(self, periods: int) -> Plan:
        """Return the plan with the records that a unit may have in some periods together.

        Population intervals depend on it: records of one person may be alike.
        """
        rows = self.plan.max_rows * min(self.encoding.max_periods, periods)
        return replace(self.plan, max_rows=rows, horizon=None)

    @property
    def families(self) -> dict[str, Floats]:
        """The answers that are shown, and the weights of the periods in each after each period."""
        periods = self.encoding.periods
        if self.keep is not None:
            return {"now": kept(periods, self.keep)}
        return {name: answers(periods, name) for name in WINDOWS}

    def latest(self, released: Integers, name: str) -> Release:
        """Return the answer of a family after the last of some periods."""
        if self.keep is not None:
            return self._release(self.course(released), len(released))
        t = len(released)
        return self.answer(released, self.families[name][t - 1, :t])

    def changes(self, released: Integers, window: int = 4) -> dict[str, float]:
        """Return p-values of no change between the last `window` periods and all before.

        The task computes them from released sums, by the member ``changes``; they cost nothing.
        The result is empty for a task without it, before twice as many periods, and if a unit may
        have several records, which are not independent.
        """
        test, t = getattr(self.plan.task, "changes", None), len(released)
        if test is None or t < 2 * window or self.seen(t).group_size > 1:
            return {}
        recent = np.arange(t) >= t - window
        (new, of_new), (old, of_old) = (
            self._progress(released, asked.astype(np.float64)) for asked in (recent, ~recent)
        )
        # Both combine the same releases, so their noise is correlated.
        shared = float(of_new @ of_old / np.linalg.norm(of_new) / np.linalg.norm(of_old))
        return {name: float(p) for name, p in test(new.state, old.state, shared).items()}

    @property
    def counts(self) -> bool:
        """True if :meth:`expected` is the noise of counts of the task, in records."""
        return self._count_noise is not None

    @cached_property
    def _relative_noise(self) -> float:
        """Noise of one period, relative to the largest contribution of a record."""
        block = self.plan.blocks(0)[0]
        return self.noise_std(block) / sqrt(block.l2_squared * self.encoding.sensitivity_squared)

    @cached_property
    def _count_noise(self) -> float | None:
        """Noise of one period in a count of the first block, or None if no count is known."""
        block = self.plan.blocks(0)[0]
        std = self._relative_noise * sqrt(block.l2_squared)
        margins = self.plan.task.forecast(std, self.plan.nominal_n, self.plan.grid)
        if "count_half_width" in margins:
            return float(margins["count_half_width"].max() / INTERVAL_95["gaussian"])
        # A record that adds one word to each of k elements has the norms k and sqrt(k) words.
        equal = block.l1**2 % block.l2_squared == 0
        return std * block.l1 / block.l2_squared if equal else None

    def expected(self) -> dict[str, float]:
        """Return the root mean square noise of a count in records, for each of `families`.

        Windows that are as long as the horizon are left out: they are all records so far.
        Of several counts it is that of the least precise. Without :attr:`counts`, the unit is the
        most that a record changes a release. The last entry is that of all records counted anew in
        every period, by jobs with equal shares of the budget.
        """
        encoding = self.encoding
        unit = self._count_noise or self._relative_noise
        found = {
            name: unit * float(np.sqrt((encoding.noises(asked) ** 2).mean()))
            for name, asked in self.families.items()
            if (WINDOWS.get(name) or 0) < encoding.periods
        }
        return found | {"recounts": unit * encoding.max_periods * sqrt(encoding.periods)}

    def signed_parts(self, frames: Sequence[bytes]) -> tuple[bytes, bytes]:
        """Return the bytes that a silo signs: of the public numbers, and of the words so far."""
        return canonical(self.to_dict()).encode(), join(frames)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return {
            "format": FORMAT,
            "plan": self.plan.to_dict(),
            "encoding": self.encoding.to_dict(),
            "keep": self.keep,
        }

    @classmethod
    def from_dict(cls, document: Any, tasks: Mapping[str, type[Task]]) -> Self:
        """Read a horizon written by :meth:`to_dict`."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise DataError(f"horizon must have format {FORMAT!r}; use its own folder.")
        try:
            plan = Plan.from_dict(document["plan"], tasks)
            encoding, keep = Encoding.from_dict(document["encoding"]), document["keep"]
            if not plan.opened:
                raise DataError(f"task {plan.task.name!r} is not installed; install its package.")
            return cls(plan, encoding, keep)
        except CloisterError:
            raise
        except Exception as error:  # of any kind: a stranger may have written the file
            raise DataError(
                f"horizon cannot be read ({type(error).__name__}); use the original."
            ) from None


@dataclass(frozen=True)
class HorizonFolder:
    """A horizon with the states of its silos and its releases, in a folder of this machine."""

    path: Path
    horizon: Horizon
    schema: Schema

    @classmethod
    def create(cls, path: Path, horizon: Horizon, schema: Schema, account: Account) -> Self:
        """Write the states of the silos, reserve the price, and write the horizon.

        Raises
        ------
        PlanError
            If the folder has a horizon.
        """
        if (path / HORIZON).exists():
            raise PlanError(f"folder {str(path)!r} has a horizon already; give a new folder.")
        shutil.rmtree(path / _SILOS, ignore_errors=True)  # of an opening that was refused
        prepare_folder(path / _SILOS)
        made = cls(path, horizon, schema)
        # Kept, so that every period is read by the same rules.
        write_text(path / _SCHEMA, schema.to_toml())
        for silo in horizon.plan.silos:
            Arrivals.create(made._state(silo), horizon.digest)
        account.reserve(horizon.plan, None, horizon.event)
        # Last, as the folder has a horizon once it has this file.
        document = json.dumps(horizon.to_dict(), sort_keys=True, allow_nan=False)
        write_text(path / HORIZON, document, new=True)
        sync_folder(path)
        return made

    @classmethod
    def load(cls, path: Path, tasks: Mapping[str, type[Task]]) -> Self:
        """Read the folder of a horizon."""
        horizon = Horizon.from_dict(read_json(path / HORIZON, "horizon"), tasks)
        schema = Schema.load(path / _SCHEMA)
        if schema.digest() != horizon.plan.schema_digest:
            raise PlanError("schema of the horizon was changed; restore it.")
        return cls(path, horizon, schema)

    def _state(self, silo: str) -> Path:
        return self.path / _SILOS / f"{silo}.db"

    @property
    def has_states(self) -> bool:
        """True if the folder has the state of any silo; a copy, or that of an agent, has none."""
        return any(self._state(silo).is_file() for silo in self.horizon.plan.silos)

    def released(self) -> Integers:
        """Return the noisy sums of all periods so far, shape (periods, size); public."""
        size = self.horizon.plan.length(0)
        return np.array([self._words(one) for one in self.frames()], np.int64).reshape(-1, size)

    def frames(self) -> list[bytes]:
        """Return the released words of each period as bytes."""
        # Strict, since another program may have written the file.
        return [b64decode(text, validate=True) for text in self._written()["words"]]

    def answered(self) -> Integers:
        """Return :meth:`released`; raise a DataError before the first release."""
        released = self.released()
        if not len(released):
            raise DataError("horizon has no release yet; release its first period.")
        return released

    @property
    def noise(self) -> str:
        """The source of the noise."""
        return str(self._written()["noise"])

    def _written(self) -> dict[str, Any]:
        """Return the document of the releases."""
        file = self.path / RELEASES
        if not file.is_file():
            return {"noise": DiscreteNoise.label, "words": []}
        document: dict[str, Any] = read_json(file, "releases")
        if (document.get("format"), document.get("horizon")) != (RELEASED, self.horizon.digest):
            raise DataError(f"releases {str(file)!r} are not of this horizon; restore it.")
        return document

    def read(
        self,
        files: SiloFiles,
        admits: Mapping[str, Admits],
        *,
        max_loss: float | None = None,
        counter: Callable[[str], OnRows | None] = lambda silo: None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> Mapping[str, Records]:
        """Read the arrivals of a period from files, for :meth:`release`.

        Raises
        ------
        DataError
            If more rows are excluded than `max_loss` allows. `say` receives what the owner of the
            files should know, such as excluded rows.
        """
        how: Any = {"max_loss": max_loss, "counter": counter, "say": say}
        return read_arrivals(self.horizon.plan, self.schema, files, admits, **how)

    def release(
        self,
        period: int,
        read: Read,
        ledger: Ledger,
        *,
        noise: NoiseSource | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> Integers:
        """Release a period once; a repeated call returns the same numbers.

        Parameters
        ----------
        period : int, from 1
            The next one, or an earlier one that may have been interrupted.
        read : Read
            Reads the records that arrived in the period, of every silo.
        noise : NoiseSource, optional
            Exact discrete noise from the operating system by default; tests pass another source.
        warn : callable, optional
            Receives what the owner of the files should know, such as records given twice.

        Returns
        -------
        ndarray of shape (periods so far, size), int64

        Raises
        ------
        DataError
            If the period was drawn with other records, which are not counted. After the end of the
            horizon nothing can be compared, and all records are ignored.
        LedgerError
            If a silo's state or the ledger was restored from a copy.
        """
        if self.horizon.plan.horizon is not None:
            raise PlanError(
                "agents release the periods of a job; its owners freeze them by 'cloister horizon "
                "freeze'."
            )
        last, job, done = self.horizon.encoding.periods, self._job(ledger), self.done(ledger)
        if not 1 <= period <= min(done + 1, last):
            raise PlanError(
                f"period must be in [1, {min(done + 1, last)}], got {period}; {done} of {last} "
                "periods are released, and each follows the one before."
            )
        if len(self._written()["words"]) > done:
            raise LedgerError(
                f"ledger has {done} periods, and {RELEASES!r} has more, so the ledger was "
                f"restored from a copy, {ENDED}."
            )
        if not job.is_open:
            if len(released := self.released()) < last:
                raise LedgerError(f"job of the horizon is closed, {ENDED}.")
            ledger.forget_frames(job.job)  # again, as a crash may have come before
            self._forget()
            return released
        with self._checked(done) as states:
            if period > done:
                self._draw(period - 1, states, read, ledger, noise or DiscreteNoise(), warn)
                done = period
            else:
                self._compare(period - 1, states, read)
            frames = [self._frame(ledger, t) for t in range(done)]
            # Before anything is shown: a ledger from a copy would draw this period again.
            for state in states.values():
                for t in range(state.noted, done):
                    state.note(t, frames[t])
        self._write(frames, DiscreteNoise.label if noise is None else noise.label)
        if done == last:
            ledger.close(job.job)
            ledger.forget_frames(job.job)
            self._forget()
        return self.released()

    def done(self, ledger: Ledger) -> int:
        """Return the number of periods that the ledger has drawn."""
        job = self._job(ledger)
        # The ledger deletes the frames of a job that is closed.
        return len(job.rounds) if job.is_open else self.horizon.encoding.periods

    def ignored(self, ledger: Ledger) -> Iterator[str]:
        """Yield a sentence if the horizon has ended, so that a release ignores its records."""
        # The end deletes the keys, so that no fingerprint can be compared.
        if not self._job(ledger).is_open:
            yield (
                "all periods are closed: the given records were neither counted nor compared with "
                "those of their period; open a new horizon for new records."
            )

    def _job(self, ledger: Ledger) -> JobRecord:
        # The id is of the plan, so that a horizon of another folder is another job.
        for job in ledger.jobs():
            if job.job == self.horizon.plan.run_id:
                return job
        raise LedgerError(
            "horizon is not in this ledger; give the ledger with which it was opened."
        )

    @contextmanager
    def states(self) -> Iterator[dict[str, Arrivals]]:
        """Open the states of all silos."""
        digest, most = self.horizon.digest, self.horizon.encoding.max_periods
        with ExitStack() as stack:
            yield {
                silo: stack.enter_context(closing(Arrivals(self._state(silo), digest, most)))
                for silo in self.horizon.plan.silos
            }

    @contextmanager
    def _checked(self, done: int) -> Iterator[dict[str, Arrivals]]:
        """Open the states of all silos; raise if they do not fit the ledger."""
        with self.states() as states:
            for state in states.values():
                state.compare(done)
            yield states

    def _compare(self, t: int, states: Mapping[str, Arrivals], read: Read) -> None:
        """Raise if a period was drawn with other records than those that are given now."""
        # Every row, since a fingerprint includes those that a period excludes.
        records = read(dict.fromkeys(states, _anyone))
        # At all silos: one with other records is enough to make the answer not that of these.
        for silo, given in records.items():
            states[silo].check_content(t, given.fingerprint(states[silo].key))

    def _draw(
        self,
        t: int,
        states: Mapping[str, Arrivals],
        read: Read,
        ledger: Ledger,
        noise: NoiseSource,
        warn: Callable[[str], None],
    ) -> None:
        """Freeze a period at every silo, and make its noisy sum durable with its draw."""
        plan, encoding = self.horizon.plan, self.horizon.encoding
        waiting = {silo: state for silo, state in states.items() if state.frozen == t}
        # The rows of a frozen period are read for their fingerprint alone.
        admits = {silo: waiting[silo].admits if silo in waiting else _anyone for silo in states}
        records = read(admits)
        check_records(plan, records)
        for silo, state in states.items():
            if silo not in waiting:
                state.check_content(t, records[silo].fingerprint(state.key))
        # Of released sums alone, so that every silo sums by the same state.
        frames = [self._words(self._frame(ledger, s)) for s in range(t)]
        before = self.horizon.course(np.array(frames, dtype=np.int64)).state
        for silo, state in waiting.items():
            freeze_arrivals(plan, silo, records[silo], before, state, t, warn)
        # From the noise on: no sum without noise is kept.
        total = self.horizon.noise(noise)
        for state in states.values():
            total = total + encoding.payload(state.sums(len(total)))
        frame = to_bytes(to_words(total))
        ledger.commit(job=plan.run_id, round=t, event=self.horizon.event, frame=frame)

    def _words(self, frame: bytes) -> Integers:
        return to_integers(from_bytes(frame, self.horizon.plan.length(0)))

    def _frame(self, ledger: Ledger, t: int) -> bytes:
        frame = ledger.frame(self.horizon.plan.run_id, t)
        if frame is None:
            raise LedgerError(f"period {t + 1} is missing in the ledger, {ENDED}.")
        return frame

    def _write(self, frames: list[bytes], label: str) -> None:
        # One period with simulated noise makes every later answer that of a test.
        known = self.noise
        document = {
            "format": RELEASED,
            "horizon": self.horizon.digest,
            "noise": label if known == DiscreteNoise.label else known,
            "words": [b64encode(frame).decode() for frame in frames],
        }
        file = self.path / RELEASES
        write_text(whole := file.with_suffix(".new"), json.dumps(document, allow_nan=False))
        os.replace(whole, file)  # a crash leaves the old file or the new one

    def publish(self, frames: list[bytes], label: str) -> None:
        """Write the public numbers and the releases so far, at a silo of a network.

        `label` is the source of the noise.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        document = json.dumps(self.horizon.to_dict(), sort_keys=True, allow_nan=False)
        for name, text in ((_SCHEMA, self.schema.to_toml()), (HORIZON, document)):
            write_text(whole := self.path / f"{name}.new", text)
            os.replace(whole, self.path / name)
        self._write(frames, label)
        sync_folder(self.path)

    def _forget(self) -> None:
        """Delete what the silos hold, after the last period."""
        with self.states() as states:
            for state in states.values():
                state.forget()


def read_arrivals(
    plan: Plan,
    schema: Schema,
    files: SiloFiles,
    admits: Mapping[str, Admits],
    *,
    max_loss: float | None = None,
    counter: Callable[[str], OnRows | None] = lambda silo: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Mapping[str, Records]:
    """Read the arrivals of a period from files; see :meth:`HorizonFolder.read`."""
    records = files.read(schema, plan.columns, counter=counter, admits=admits)
    # A period cannot be repeated, so its owner hears of lost rows before the release.
    completed = completed_by(plan.task, plan.columns)
    for notice in loss_notices(
        records, plan.options or {}, plan.columns, max_loss, plan.task.name, completed
    ):
        say(notice)
    return records


def freeze_arrivals(
    plan: Plan,
    silo: str,
    records: Records,
    before: GridState,
    state: Arrivals,
    t: int,
    warn: Callable[[str], None],
) -> None:
    """Freeze the records of a silo in period `t`; warn if an earlier period has the same ones."""
    sums = _frozen_sums(plan, silo, records, before)
    content = records.fingerprint(state.key)
    if state.repeats(content):
        warn(
            f"silo {silo!r} gave the same records, with the same {plan.unit!r}, in an earlier "
            "period; they count again, and a period cannot be taken back."
        )
    state.freeze(t, content, sums)


def _frozen_sums(plan: Plan, silo: str, records: Records, state: GridState) -> Integers:
    """Return the exact sums of a silo's arrivals, checked as in every job."""
    step = LocalStep(plan.task_at(silo), 0, state, plan.length(0), thorough=True)
    sums, _ = agreed_sums(step, lambda step: step.checked(records))
    by_silo = plan.by_silo
    return by_silo.to_silo_layer(0, silo, sums) if by_silo and by_silo.silos else sums


def _rules_of_share(keep: float | None) -> Iterator[str]:
    if keep is not None and not 0 < keep < 1:
        yield f"keep must be between 0 and 1, got {keep!r}."


_SCHEMA, _SILOS = "schema.toml", "silos"


def _anyone(unit: str) -> bool:
    return True
