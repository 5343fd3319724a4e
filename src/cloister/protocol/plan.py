"""The plan: the one document every party agrees on, frozen, in canonical JSON, with a digest.

Noise scales, vector lengths, number of rounds and decoding are functions of the plan's layout. So
they are never sent, and two parties cannot hold different values. Only silos need the code of the
task, which interprets the sums.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from math import ceil, isqrt, sqrt
from typing import Annotated, Any, cast, get_args, get_origin

from cloister.core.declared import Declaration, Range, Whole, declarations, validate
from cloister.core.display import Table
from cloister.core.errors import PlanError, RemoteProtocolError, raise_if_any
from cloister.core.html import page
from cloister.core.numerals import counted
from cloister.core.randomness import new_nonce
from cloister.hazmat.discrete import MAX_SCALE
from cloister.hazmat.fixedpoint import Contract, Grid
from cloister.hazmat.ring import RING_BITS, WORD_BYTES, Integers
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import (
    gaussian_noise_multiplier,
    laplace_noise_multiplier,
    lattice_noise_multiplier,
    lattice_sigma,
)
from cloister.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    SampledGaussianEvent,
)
from cloister.privacy.horizon import MOST_RECORDS, Encoding
from cloister.protocol.layout import MAX_ROUNDS, Layout
from cloister.protocol.readers import Reader
from cloister.protocol.task import (
    Block,
    NoisyBlock,
    PerSiloTask,
    Profile,
    SitedTask,
    Task,
    UnitTask,
    pipeline_steps,
)

PROTOCOL_VERSION = 3
WITHOUT_OPTIONS = 2  # the last protocol version without options, question, readers and pads
WITHOUT_LAYOUT = 1  # the protocol version whose plans have no layout
MAX_RECORDS = 1 << 32  # per silo: public head-room for the ring, not a count
MAX_SILOS, MAX_WORDS = 1000, 1 << 24  # bound the memory for a stranger's plan
MAX_STUDY, MAX_TEXT = 200, 1000  # bytes of the study's name, and of any other text in a plan
MAX_PLAN, MAX_PLAN_COLUMN, MAX_PLAN_MODEL = 1 << 18, 1 << 9, 1 << 23  # bytes over a network
MAX_READERS = 16
MAX_RESULTS = 60 << 20  # bytes of a silo's boxes for all readers; a message has at most 64 MiB
_FINE_STEPS = 1 << 8  # lattice steps per record, so that rounding sigma up costs little
_LEAST_SHARE = 4  # steps: below, a sum of discrete Gaussian shares is not close to one
_FINGERPRINT = re.compile("ed25519:[0-9a-f]{64}")
_HASH = re.compile("[0-9a-f]{64}")
_log = logging.getLogger("cloister.protocol")
_STUDY = " ._-:/+#()"  # characters of a study's name in addition to letters and digits
_TAILS = 40  # deviations; larger noise is less likely than a hardware error
_ANOTHER_VERSION = "read it with that version, or make it again with this one"


def largest_release(
    n_silos: int, l2_squared: int, noise_scale: int, records: int = MAX_RECORDS
) -> int:
    """Return the largest absolute value of an element of a noisy sum over honest silos."""
    # isqrt rounds down, hence + 1.
    return n_silos * records * (isqrt(l2_squared) + 1) + _TAILS * noise_scale


def majority(n_silos: int) -> int:
    """Return the smallest size of a group of silos such that any two groups overlap."""
    return n_silos // 2 + 1


def share_threshold(n_silos: int, collusion: int) -> int:
    """Return the number of shares that open a secret.

    It exceeds half of the silos and the colluding silos together. Any two groups of that size have
    an honest silo in common, which releases one kind of share only.
    """
    return (n_silos + collusion) // 2 + 1


def noun_of(unit: str) -> str:
    """Return the noun for a unit of privacy, from its column: patient for patient_id."""
    return re.sub(r"[ _-]+(id|nr|no|number|key|code)\.?$", "", unit.lower()) or unit


def study_name(text: str) -> str:
    """Return the canonical spelling of a study's name: " Default" and "default" are one study.

    Compatible characters, upper and lower case, and spaces make no difference (Unicode NFKC with
    case folding). Otherwise two spellings would have two budgets.
    """
    # Twice: folding the case of a normal form may give a text that is not in normal form.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    name = " ".join(folded.split())
    strange = [c for c in name if unicodedata.category(c)[0] not in "LNM" and c not in _STUDY]
    if not name or strange:
        raise PlanError(
            f"study must be a name of letters, digits, spaces and {_STUDY.strip()!r}, got "
            f"{text[:50]!r}; use another."
        )
    return name


@dataclass(frozen=True)
class Code:
    """The code of a task at the party that proposes the plan.

    Parameters
    ----------
    distribution, version : str
        Name and version of the package that contains the task; for a lone file its name and no
        version.
    digest : str
        SHA-256 of all sources of the task, in hexadecimal digits.
    """

    distribution: str
    version: str
    digest: str


@dataclass(frozen=True)
class UnknownTask:
    """A task whose code is not installed.

    A party can carry, sum and noise vectors of its plan, but cannot compute them from records.

    Parameters
    ----------
    written : mapping
        The entry of the task in the plan.
    private : bool
        True if the plan has a budget.
    """

    written: Mapping[str, Any]
    private: bool
    profiles: frozenset[Profile] = frozenset(get_args(Profile))

    @property
    def name(self) -> str:
        """The name of the task in plans."""
        return str(self.written[_TASK])

    def describe(self) -> str:
        """Describe the task without its code."""
        known = "Only silos, analyst and readers know what they mean."
        return f"Noisy sums for task {self.name!r}. {known}"


@dataclass(frozen=True)
class Plan:
    """Everything the parties must agree on before the first record is read.

    Parameters
    ----------
    task : Task
        An :class:`UnknownTask` task if its code is not installed.
    silos : tuple of str
        Members in their agreed order.
    grid : Grid
        Public box of each column and fineness of the lattice.
    budget : Budget or None
        Budget of the whole plan; None for a task that is not private.
    nominal_n : int
        Public contract value for the number of records in all silos together.
    min_silos : int
        Smallest set of survivors whose sum may be released: a majority of the silos, at least 2,
        or 1 for a single silo. Under "pairwise" the default is the share threshold.
    profile : {"local", "group", "pairwise"}
        One silo; a group mask with the aggregator's noise; pairwise masks with the silos' noise.
    collusion : int
        Only "pairwise": number of silos that may collude with the aggregator, including an
        observer; 1 by default.
    unit : str
        Privacy unit: "row", or the column whose values name a person. Tasks that bound the
        contribution of a whole unit also allow "silo" and the columns of the plan.
    max_rows, max_silos_per_person : int
        Largest number of rows of one unit in a silo, and of silos with rows of one person; the
        sensitivity multiplies by both.
    readers : tuple of Reader
        Other parties to which the silos seal the result. Refused under the group mask, where a
        reader and an aggregator that kept its noise together have the exact sums.
    fingerprints : tuple of str
        Of the silos' signing keys, in their order; empty when all parties are in one process.
    upload_slot : float, seconds, >= 0
        A silo sends uploads at multiples of this time after the request; 0 sends immediately.
    run_id : str
        Fresh nonce, so that no pad and no noise repeats.
    layout : Layout
        By default that of the task; a party with the task's code refuses any other.
    code : Code, optional
        Code of the task at its proposer; a silo with other code refuses the plan.
    options : mapping, optional
        All options of the task as JSON-able values, defaults included, from which every silo
        designs the task again; None if a plan was made without them.
    question : str
        SHA-256 of the text of the question (:mod:`cloister.app.question`), hexadecimal; empty
        if the plan was made without a schema.
    horizon : Encoding, optional
        If given, the one round of the task is repeated in each period of a horizon, and one price
        covers all periods. Silos send a row of this matrix times their sums of the periods.
    protocol : int
        The version of the plan and of its frames.
    publish : bool
        Only in plans up to protocol 2, which have no `readers`.

    Notes
    -----
    ``min_silos`` is a majority because a silo confirms one survivor set per round: of two sets that
    overlap, at most one can be confirmed.
    """

    task: Task
    silos: tuple[str, ...]
    grid: Grid
    columns: Annotated[tuple[str, ...], "names"]
    budget: Budget | None
    nominal_n: Whole
    min_silos: Whole = 0
    profile: Profile = "group"
    unit: str = "row"
    max_rows: Whole = 1
    max_silos_per_person: Whole = 1
    schema_digest: str = ""
    study: Annotated[str, "name"] = "default"
    readers: tuple[Reader, ...] = ()
    collusion: int = 0
    fingerprints: tuple[str, ...] = ()
    upload_slot: Annotated[float, Range(0, 3600)] = 0.0
    run_id: str = field(default_factory=new_nonce)
    layout: Layout = field(default=None)  # type: ignore[assignment]  # set in __post_init__
    code: Code | None = None
    options: Mapping[str, Any] | None = None
    question: str = ""
    horizon: Encoding | None = None
    protocol: int = PROTOCOL_VERSION
    publish: bool = False

    def __post_init__(self) -> None:
        if self.layout is None:
            object.__setattr__(self, "layout", Layout.of(self.task))
        if self.profile == "pairwise" and self.collusion == 0:
            object.__setattr__(self, "collusion", 1)
        if self.min_silos == 0:
            minimum = majority(len(self.silos))
            if self.profile == "pairwise":
                minimum = share_threshold(len(self.silos), self.collusion)
            if self.horizon is not None:  # each release holds earlier sums of every silo
                minimum = len(self.silos)
            object.__setattr__(self, "min_silos", minimum)
        for declaration in _declared():
            validate(declaration, getattr(self, declaration.name))
        object.__setattr__(self, "upload_slot", float(self.upload_slot))  # one text, one digest
        raise_if_any(self._rules())

    def _rules(self) -> Iterator[str]:
        """Yield a sentence for each violated rule; later rules rely on the earlier ones."""
        yield from self._rules_of_layout()
        yield from self._rules_of_horizon()
        yield from self._rules_of_texts()
        yield from self._rules_of_parties()
        yield from self._rules_of_size()
        yield from self._rules_of_task()
        yield from self._rules_of_lattice()
        yield from self._rules_of_clients()

    def _rules_of_layout(self) -> Iterator[str]:
        if self.opened and not self.layout.same_as(Layout.of(self.task)):
            yield (
                f"layout must be that of task {self.task.name!r}: lengths, sensitivities or "
                "weights differ; design the plan with the code that the silos have."
            )

    def _rules_of_horizon(self) -> Iterator[str]:
        if self.horizon is None:
            return
        yield from rules_of_renewal(self)
        if not self.fingerprints or self.profile == "local":
            yield "horizon of a plan requires a network; over files use 'cloister horizon open'."
        if self.readers:
            yield (
                "readers must be empty with a horizon, whose answers are for its silos; leave out "
                "--publish and --reader."
            )
        if self.min_silos != len(self.silos):
            yield (
                f"min_silos must be {len(self.silos)}, all silos of a horizon, got "
                f"{self.min_silos}; each release holds earlier sums of every silo."
            )
        if self.by_silo and self.by_silo.silos:
            yield "a horizon over a network has no estimates by silo; leave out by_silo."

    @property
    def opened(self) -> bool:
        """True if this party has the code of the task."""
        return not isinstance(self.task, UnknownTask)

    @property
    def contract(self) -> Contract:
        """The contract by which its records must be read."""
        return Contract(self.grid, self.columns, self.unit, self.max_rows, self.schema_digest)

    def _rules_of_texts(self) -> Iterator[str]:
        if _bytes(self.study) > MAX_STUDY:
            yield (
                f"study must be a text of at most {MAX_STUDY} bytes, got {self.study[:20]!r} "
                f"of {_bytes(self.study)}; use a shorter name."
            )
        code = tuple(asdict(self.code).values()) if self.code else ()
        texts = {"unit": (self.unit,), "schema_digest": (self.schema_digest,), "code": code}
        for name in ("silos", "columns", "fingerprints"):
            texts[name] = getattr(self, name)
        for name, words in texts.items():
            if bad := [word for word in words if not isinstance(word, str)]:
                yield f"{name} must have texts, got {str(bad[0])[:50]!r}."
            yield from _too_long(name, words)
        yield from _too_long("task", task_to_json(self.task))
        if not isinstance(self.options, Mapping | None):
            yield f"options must be a mapping or None, got {type(self.options).__name__}."
        yield from _too_long("options", self.options)
        if self.question and not _HASH.fullmatch(self.question):
            yield f"question must be 64 hexadecimal digits or empty, got {self.question[:70]!r}."

    def _rules_of_parties(self) -> Iterator[str]:
        if not self.silos or len(set(self.silos)) != len(self.silos):
            yield f"silos must be different names, at least one, got {self.silos!r}."
        # A header stores the length of the sender's name in one byte.
        if bad := [name for name in self.silos if not name or len(name.encode()) > 255]:
            yield f"a silo name must have 1 to 255 bytes, got {bad[0]!r}."
        if (self.profile == "local") != (len(self.silos) == 1):
            yield (
                f"profile {self.profile!r} does not fit {len(self.silos)} silos; "
                "'local' is for exactly one, 'group' and 'pairwise' for two or more."
            )
        if self.profile not in self.task.profiles:
            yield (
                f"task {self.task.name!r} allows profiles {sorted(self.task.profiles)}, "
                f"got {self.profile!r}."
            )
        if self.publish and (self.profile == "group" or self.protocol > WITHOUT_OPTIONS):
            yield "publish must be False; name the readers of the result in 'readers'."
        minimum = majority(len(self.silos))
        if not minimum <= self.min_silos <= len(self.silos):
            yield (
                f"min_silos must be in [{minimum}, {len(self.silos)}] for {len(self.silos)} silos, "
                f"got {self.min_silos}; a smaller set could be confirmed twice."
            )
        yield from self._rules_of_identities()
        yield from self._rules_of_readers()
        if len(self.run_id) != 32 or not set(self.run_id) <= set("0123456789abcdef"):
            yield (
                f"run_id must be 32 hexadecimal digits, got {self.run_id!r}; leave it out for a "
                "fresh one."
            )

    def _rules_of_identities(self) -> Iterator[str]:
        if self.profile == "pairwise":
            if not 1 <= self.collusion < self.min_silos:
                yield (
                    f"collusion must be in [1, {self.min_silos - 1}] for min_silos="
                    f"{self.min_silos}, got {self.collusion}; an honest silo must add noise."
                )
        elif self.collusion:
            yield (
                f"collusion must be 0 under profile {self.profile!r}, got {self.collusion}; only "
                "'pairwise' protects against an aggregator that colludes with silos."
            )
        if not self.fingerprints:
            return
        if len(set(self.fingerprints)) != len(self.silos) or len(self.fingerprints) != len(
            self.silos
        ):
            yield (
                f"fingerprints must be {len(self.silos)} different ones, one for each silo, got "
                f"{len(self.fingerprints)}."
            )
        if bad := [f for f in self.fingerprints if not _FINGERPRINT.fullmatch(f)]:
            yield (f"a fingerprint must be 'ed25519:' and 64 hexadecimal digits, got {bad[0]!r}.")

    def _rules_of_readers(self) -> Iterator[str]:
        if not self.readers:
            return
        if self.profile != "pairwise" or not self.fingerprints or self.protocol <= WITHOUT_OPTIONS:
            yield (
                f"readers require profile 'pairwise' over a network, got {self.profile!r}"
                f"{'' if self.fingerprints else ' without fingerprints'}; under 'group' a reader "
                "and the aggregator together would have the exact sums."
            )
        if len(self.readers) > MAX_READERS:
            yield f"a plan has at most {MAX_READERS} readers, got {len(self.readers)}."
            return  # each takes the time of a signature
        if bad := [one for one in self.readers if not one.genuine]:
            yield (
                f"reader {str(bad[0].name)[:50]!r} must sign its name and its key; let it write "
                "its card again with 'cloister jobs reader-card'."
            )
            return
        for each in ({one.name for one in self.readers}, {one.public for one in self.readers}):
            if len(each) != len(self.readers):
                yield "readers must have different names and keys; name each of them once."

    def _rules_of_task(self) -> Iterator[str]:
        task = self.task
        if task.private != (self.budget is not None):
            yield (
                f"task {task.name!r} is {'' if task.private else 'not '}private, so budget must "
                f"{'be given' if task.private else 'be None'}."
            )
        if task.private and self.layout.mechanism == "none":
            yield f"task {task.name!r} is declared private but adds no noise; give it a mechanism."
        if self.profile == "pairwise" and self.layout.mechanism != "gaussian":
            yield (
                f"profile 'pairwise' requires Gaussian noise, which silos can add in shares; task "
                f"{task.name!r} uses {self.layout.mechanism!r}."
            )
        n_features = task.n_features if self.opened else self.grid.n_features
        if not n_features == self.grid.n_features == len(self.columns):
            yield (
                f"columns must be {n_features} as in the task, got {len(self.columns)} names "
                f"and {self.grid.n_features} bounds."
            )
        if self.opened and task.frac_bits != self.grid.frac_bits:
            yield f"frac_bits differ: task {task.frac_bits}, grid {self.grid.frac_bits}."
        if self.budget and self.layout.mechanism == "gaussian" and self.budget.delta == 0:
            yield f"delta must be > 0 for task {task.name!r}, whose noise is Gaussian."

    def _rules_of_clients(self) -> Iterator[str]:
        """Check the claimed amplification by sampling and the privacy unit."""
        yield from self._rules_of_sampling()
        if not self.opened:
            return
        task = self.task
        named = self.unit if self.unit in ("silo", *self.columns) else "row"
        if named != (task.clients if isinstance(task, UnitTask) else "row"):
            yield (
                f"unit {self.unit!r} does not fit task {task.name!r}, whose guarantee is for "
                f"{getattr(task, 'clients', 'row')!r}; use a schema with that unit."
            )
        if isinstance(task, UnitTask) and task.clients in self.columns:
            at = getattr(task, "client_column", -1)
            if not (0 <= at < len(self.columns)) or self.columns[at] != task.clients:
                yield (
                    f"client_column must be that of {task.clients!r}, got {at!r}; design the task "
                    "again."
                )
            if self.grid.high[at] - self.grid.low[at] > 2 * self.grid.one:
                yield (
                    f"grid cannot tell the values of {task.clients!r} apart; use more frac_bits."
                )
        steps = list(pipeline_steps(task))[1:]
        # Only the task of a plan learns the silo of its records.
        if bad := [step for step in steps if _needs_its_plan(step) or _has_sites(step)]:
            yield (
                f"task {bad[0].name!r} with privacy units other than rows, or sampled, or with "
                "terms of single silos, must be the task of a plan and not a step of one."
            )
        if isinstance(task, SitedTask) and task.sites not in ((), self.silos):
            yield f"sites of task {task.name!r} must be the silos of the plan, got {task.sites!r}."
        if isinstance(task, UnitTask) and task.alone and self.profile != "local":
            n_silos = len(self.silos)
            if (self.profile, self.min_silos, self.collusion) != ("pairwise", n_silos, n_silos - 1):
                yield (
                    f"a plan with local DP requires profile 'pairwise', min_silos={n_silos} and "
                    f"collusion={n_silos - 1}, so that each silo's own noise suffices; got "
                    f"{self.profile!r}, {self.min_silos} and {self.collusion}."
                )

    def _rules_of_sampling(self) -> Iterator[str]:
        if self.rate == 1 or self.budget is None:
            return
        if self.group_size > 1:
            yield (
                f"max_silos_per_person must be 1 where units are sampled, got {self.group_size}; "
                "coins of several units cannot be priced as one."
            )
        # Any analyst may write the multiplier into a plan, so every party prices it again.
        spent = accounting.epsilon(self.events(), self.budget.delta)
        if spent > self.budget.epsilon * (1 + 1e-9):
            yield (
                f"noise_multiplier {self.layout.noise_multiplier:.6g} costs epsilon {spent:.6g} "
                f"at rate {self.rate:g}, above the budget of {self.budget.epsilon:g}; design the "
                "task again."
            )

    def _rules_of_size(self) -> Iterator[str]:
        """Bound the memory and the time of a party that reads the plan."""
        if not 1 <= self.rounds <= MAX_ROUNDS or len(self.silos) > MAX_SILOS:
            yield (
                f"a plan has at most {MAX_ROUNDS} rounds and {MAX_SILOS} silos, got {self.rounds} "
                f"and {len(self.silos)}."
            )
        for t in range(self.rounds):
            if self.length(t) > MAX_WORDS:
                yield (
                    f"round {t + 1} of task {self.task.name!r} has {self.length(t)} ring elements, "
                    f"a vector has at most {MAX_WORDS}; use fewer clusters or columns."
                )

    def _rules_of_lattice(self) -> Iterator[str]:
        """Check that no sum wraps in the ring and that the noise is close to continuous."""
        for t in range(self.rounds):
            for block in self.blocks(t):
                if self.layout.mechanism == "gaussian" and block.l2_squared < _FINE_STEPS**2:
                    yield (
                        f"round {t + 1} of task {self.task.name!r} is too coarse for Gaussian "
                        f"noise: a record changes it by at most {sqrt(block.l2_squared):.3g}"
                        f" steps, requires {_FINE_STEPS}; use more frac_bits."
                    )
                if self.profile == "pairwise" and self.share_scale(block) < _LEAST_SHARE:
                    yield (
                        f"round {t + 1} of task {self.task.name!r} requires shares of noise of at "
                        f"least {_LEAST_SHARE} steps, got {self.share_scale(block)}; use more "
                        "frac_bits."
                    )
                scale = self.noise_scale(block)
                # Half of the ring is for negative sums.
                if scale > MAX_SCALE or self._range(block) >= 1 << (RING_BITS - 1):
                    yield (
                        f"round {t + 1} of task {self.task.name!r} does not fit the ring: "
                        f"use {self._that_fits()}."
                    )

    def _that_fits(self) -> str:
        """Return the advice for a plan that exceeds the ring.

        It names an epsilon at which all noise fits, if only the noise is too large.
        """
        blocks = [block for t in range(self.rounds) for block in self.blocks(t)]
        sums = max(largest_release(len(self.silos), block.l2_squared, 0) for block in blocks)
        room = (1 << (RING_BITS - 1)) - sums
        if self.budget is None or self.rate < 1 or room <= 0:
            return "fewer frac_bits or a larger epsilon"
        # Noise is proportional to the multiplier, so dividing by the largest excess makes it fit.
        excess = max(
            max(self.noise_scale(block) / MAX_SCALE, self._range(block) / room) for block in blocks
        )
        multiplier = self._multiplier / excess
        event = (
            LaplaceEvent(multiplier)
            if self.layout.mechanism == "laplace"
            else GaussianEvent(multiplier)
        )
        epsilon = accounting.epsilon(event, self.budget.delta)
        return f"an epsilon of at least about {1.1 * epsilon:.2g}"  # 10 % for rounding up

    def _range(self, block: Block) -> int:
        """Return the largest absolute value of a released element of `block` from honest silos."""
        scale = self.noise_scale(block)
        if self.profile == "pairwise":
            # The sum of all silos contains more noise than the guaranteed minimum.
            scale = ceil(sqrt(len(self.silos))) * self.share_scale(block)
        n_silos, squared = len(self.silos), block.l2_squared
        if self.horizon is not None:
            return largest_release(n_silos, squared, scale, MOST_RECORDS * self.horizon.gain)
        return largest_release(n_silos, squared, scale)

    def quorum(self, cohort: int) -> int:
        """Return the number of silos that must be in a sum and confirm it, for a cohort's size."""
        if self.profile != "pairwise":
            return self.min_silos
        # Survivors open the masks, so their number must reach the threshold of the shares.
        return max(self.min_silos, share_threshold(cohort, self.collusion))

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.layout.rounds if self.horizon is None else self.horizon.periods

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the layout of round `t`."""
        return self.layout.blocks(t if self.horizon is None else 0)

    @cached_property
    def by_client(self) -> UnitTask | None:
        """The task if its unit is a client or drawn with coins, else None."""
        # Cached: isinstance with a runtime protocol looks up every member.
        task = self.task
        return task if isinstance(task, UnitTask) and _needs_its_plan(task) else None

    @cached_property
    def by_silo(self) -> PerSiloTask | None:
        """The task if it can release estimates per silo, else None."""
        return self.task if isinstance(self.task, PerSiloTask) else None

    def task_at(self, silo: str) -> Task:
        """Return the task for the records of one silo."""
        task = self.task
        return task.at_silo(silo) if isinstance(task, SitedTask) and task.sites else task

    @property
    def rate(self) -> float:
        """Probability with which a client takes part in a round; 1 unless a task samples."""
        return self.layout.rate

    @property
    def group_size(self) -> int:
        """Number of records that one unit of privacy may own."""
        return self.max_rows * self.max_silos_per_person

    def length(self, t: int) -> int:
        """Return the number of ring elements each silo sends in round `t`."""
        return sum(block.size for block in self.blocks(t))

    @cached_property
    def _multiplier(self) -> float:
        """Noise scale over sensitivity of one release that takes the whole budget."""
        if self.budget is None:
            return 0.0
        if self.rate < 1:
            return self.layout.noise_multiplier
        if self.layout.mechanism == "laplace":
            return laplace_noise_multiplier(self.budget.epsilon)
        return gaussian_noise_multiplier(self.budget.epsilon, self.budget.delta)

    def noise_scale(self, block: Block) -> int:
        """Return the integer scale of the noise that the budget requires per element of `block`.

        Sigma of the discrete Gaussian, or the scale of the discrete Laplace, rounded up; 0 without
        noise. Under "pairwise", honest silos add at least this much.
        """
        if self.layout.mechanism == "none":
            return 0
        if self.layout.mechanism == "laplace":
            # Laplace epsilons add up, hence the weight; squared Gaussian mus do, hence its root.
            return ceil(self._multiplier * self.group_size * block.l1 / block.weight)
        return lattice_sigma(self._multiplier / sqrt(block.weight), self._norm(block))

    def _norm(self, block: Block) -> float:
        """Return the largest L2 change by one unit: of a round, or of all periods of a horizon."""
        if self.horizon is not None:
            return self.horizon.norm(block.l2_squared, self.group_size)
        return self.group_size * sqrt(block.l2_squared)

    def share_scale(self, block: Block) -> int:
        """Return sigma of the noise that each silo adds per element of `block` under "pairwise".

        The smallest sum has `min_silos` shares, of which an observer may know `collusion`. The
        other shares together have at least the scale :meth:`noise_scale`.
        """
        honest = self.min_silos - self.collusion
        # The ceiling of scale / sqrt(honest) in integers, as a float root could round below it.
        return isqrt((self.noise_scale(block) ** 2 - 1) // honest) + 1

    def noise_std(self, block: Block, survivors: int | None = None) -> float:
        """Return the standard deviation of the noise per element of `block`, in integers.

        Parameters
        ----------
        survivors : int, optional
            Number of silos in the sum, used under "pairwise"; all by default.
        """
        if self.profile == "pairwise":
            count = len(self.silos) if survivors is None else survivors
            return sqrt(count) * self.share_scale(block)
        # Laplace noise of scale b has the standard deviation sqrt(2) b.
        factor = sqrt(2) if self.layout.mechanism == "laplace" else 1.0
        return factor * self.noise_scale(block)

    def event(self, t: int) -> Event:
        """Return the privacy event of round `t`, which an accountant can price.

        That of a period is the event of its whole horizon, which a ledger spends once.
        """
        if self.horizon is not None:
            scales = ((self.noise_scale(block), self._norm(block)) for block in self.blocks(t))
            multipliers = (lattice_noise_multiplier(scale, norm) for scale, norm in scales)
            return self.horizon.event(multipliers, self.digest.hex())
        events: list[Event] = []
        for block in self.blocks(t):
            scale = self.noise_scale(block)
            if self.layout.mechanism == "none":
                events.append(NonPrivateEvent())
            elif self.layout.mechanism == "laplace":
                events.append(LaplaceEvent(scale / (self.group_size * block.l1)))
            else:
                # The price of the noise after rounding up, which is the noise that is drawn.
                multiplier = lattice_noise_multiplier(scale, self._norm(block))
                events.append(
                    GaussianEvent(multiplier)
                    if self.rate == 1
                    else SampledGaussianEvent(multiplier, self.rate)
                )
        return events[0] if len(events) == 1 else ComposedEvent(tuple(events))

    def events(self) -> Event:
        """Return the privacy event of the whole plan."""
        return self._events

    @cached_property
    def _events(self) -> Event:
        # Cached: every ledger statement of every round contains it, so the time of a job would be
        # quadratic in its rounds otherwise.
        if self.horizon is not None:
            return self.event(0)
        return ComposedEvent(tuple(self.event(t) for t in range(self.rounds)))

    def upload_bytes(self) -> int:
        """Return the bytes of ring elements each silo sends over all rounds."""
        return sum(WORD_BYTES * self.length(t) for t in range(self.rounds))

    def decode(
        self, t: int, values: Integers, survivors: int | None = None
    ) -> dict[str, NoisyBlock]:
        """Split an unmasked vector, a sum over `survivors` silos, into the blocks of round `t`.

        Raises
        ------
        RemoteProtocolError
            If an element is outside the range of honest silos, for example after a wrong pad. Under
            the group mask over a network it is clipped to the range instead: no job may end because
            of values that only silos see.
        """
        released, offset = {}, 0
        for block in self.blocks(t):
            elements = values[offset : offset + block.size]
            limit = self._range(block)
            outside = elements.size and max(int(elements.max()), -int(elements.min())) > limit
            if outside and self.profile == "group" and self.fingerprints:
                # An aggregator that knows the noise, and added an offset to the sum, could infer
                # from an error whether the exact sum is above a bound of its choice.
                _log.warning("round %d decodes to a value outside the plan's range, cut to it", t)
                elements = elements.clip(-limit, limit)
            elif outside:
                raise RemoteProtocolError(
                    f"round {t + 1} decodes to a value outside the plan's range; "
                    "a pad or a party does not belong to this plan."
                )
            released[block.name] = NoisyBlock(
                elements.reshape(block.shape), self.noise_std(block, survivors)
            )
            offset += block.size
        return released

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-able values."""
        document: dict[str, Any] = {
            "protocol": self.protocol,
            "ring_bits": RING_BITS,
            "task": task_to_json(self.task),
            "budget": asdict(self.budget) if self.budget else None,
            "grid": asdict(self.grid),
        }
        if self.protocol > WITHOUT_LAYOUT:
            document["layout"] = self.layout.to_dict()
            document["code"] = asdict(self.code) if self.code else None
        if self.protocol > WITHOUT_OPTIONS:
            document["options"] = self.options
            document["question"] = self.question
            document["readers"] = [asdict(reader) for reader in self.readers]
        else:
            document["publish"] = self.publish
        if self.horizon is not None:  # absent in all other plans, whose text stays as it was
            document["horizon"] = self.horizon.to_dict()
        for name in _PLAIN_FIELDS:
            document[name] = getattr(self, name)
        return document

    def with_question(self, question: str) -> Plan:
        """Return this plan with the hash of the text of its question."""
        return replace(self, question=question)

    def canonical_json(self) -> str:
        """Return the canonical text of this plan: sorted keys, no spaces, ASCII."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def check_network(self) -> None:
        """Raise PlanError if the plan cannot run between parties of this version.

        An older plan is read, since releases name it, but its frames had another form. A plan may
        have 256 KiB plus 512 bytes for each column, or 8 MiB if the task contains a model that was
        released earlier.
        """
        if self.protocol != PROTOCOL_VERSION:
            raise PlanError(_other_protocol(self.protocol))
        carries = _carries_model(task_to_json(self.task))
        limit = MAX_PLAN + MAX_PLAN_COLUMN * len(self.columns)
        limit = MAX_PLAN_MODEL if carries else min(limit, MAX_PLAN_MODEL)
        if (length := len(self.canonical_json())) > limit:
            raise PlanError(
                f"a plan over a network must have at most {limit} bytes with {len(self.columns)} "
                f"columns and {'a' if carries else 'no'} model, got {length}; use shorter names, "
                "or fewer values."
            )
        # Each box has the plan, and each word of a round as 4/3 of its bytes, beside short names.
        per_round = 100 + sum(len(json.dumps(name, allow_nan=False)) + 1 for name in self.silos)
        box = length + self.rounds * per_round + ceil(4 / 3 * self.upload_bytes()) + MAX_TEXT
        if len(self.readers) * box > MAX_RESULTS:
            raise PlanError(
                f"results for {len(self.readers)} readers must have at most {MAX_RESULTS} bytes, "
                f"got {len(self.readers) * box}; name fewer readers, or take it from a silo."
            )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical JSON; every frame carries it."""
        return hashlib.sha256(self.canonical_json().encode()).digest()

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], tasks: Mapping[str, type[Task]] | None = None
    ) -> Plan:
        """Read a plan written by :meth:`to_dict`.

        Parameters
        ----------
        tasks : mapping of str to type, optional
            The tasks whose code this party has. A plan of another task can be carried and summed,
            but not be computed from records.
        """
        try:
            _check_version(document)
            layout = document.get("layout")
            code = document.get("code")
            task = _opened(document["task"], tasks or {}, layout, bool(document["budget"]))
            plain = {field: document[field] for field in _PLAIN_FIELDS}
            for name in ("silos", "columns", "fingerprints"):
                plain[name] = tuple(plain[name])
            plan = cls(
                task=task,
                grid=Grid(**document["grid"]),
                budget=Budget(**document["budget"]) if document["budget"] else None,
                layout=Layout.from_dict(layout) if layout else None,  # type: ignore[arg-type]  # as above
                code=Code(**code) if code else None,
                options=document.get("options"),
                question=document.get("question", ""),
                readers=tuple(Reader(**reader) for reader in document.get("readers", ())),
                horizon=(
                    Encoding.from_dict(document["horizon"]) if "horizon" in document else None
                ),
                publish=document.get("publish", False),
                protocol=document["protocol"],
                **plain,
            )
            plan.canonical_json()  # raises ValueError for NaN and infinity
        except PlanError:
            raise
        except (
            *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
            RecursionError,
        ) as error:
            raise PlanError(f"plan is not complete: {error}; write it with to_dict.") from error
        return plan

    def unit_in_words(self) -> str:
        """Return the privacy unit as a noun phrase."""
        if self.unit == "silo":
            unit = "one silo with all of its records"
        elif self.unit in self.columns:
            unit = f"all rows of a silo with one value of {self.unit!r}"
        elif self.unit == "row":
            unit = "one row" + (f" (and copies, {self.max_rows} in all)" * (self.max_rows > 1))
        else:
            unit = f"all rows of one {noun_of(self.unit)}, at most {self.max_rows} in a silo"
        silos = self.max_silos_per_person
        if self.unit == "silo" and silos == 1:
            return unit
        return f"{unit}, in {'one silo only' if silos == 1 else f'at most {silos} silos'}"

    def counted(self) -> str:
        """Return the public rule for the records that count."""
        n = len(self.columns)
        where = "its column" if n == 1 else f"any of these {n:,} columns"
        if completed := [repr(self.columns[j]) for j in getattr(self.task, "incomplete", ())]:
            where = f"any column except {' and '.join(completed)}"
        rule = (
            f"A record with a missing cell in {where} is left out, unless the schema fills it in."
        )
        if self.unit in ("row", "silo", *self.columns):
            return rule
        rows = (
            "only the first row counts"
            if self.max_rows == 1
            else (f"only the first {self.max_rows:,} rows count")
        )
        return f"{rule} Of one {noun_of(self.unit)}, {rows} at a silo."

    def describe(self) -> str:
        """Describe the task, the guarantee and the knowledge of each party in plain sentences."""
        lines = [self.task.describe(), self.counted()]
        if self.budget is None:
            lines.append("There is NO privacy guarantee for what is released.")
        else:
            lines.append(
                f"Any result is at most e^{self.budget.epsilon:.4g} times as likely with "
                f"{self.unit_in_words()}, as without, and the other way round, apart from a "
                f"probability of {self.budget.delta:.3g}."
            )
        if self.profile == "group":
            lines.append(
                f"{len(self.silos)} silos send masked vectors; the aggregator adds the noise and "
                "can read neither the vectors nor the result. The guarantee rests on the "
                "aggregator really adding the noise and on no silo helping it. A round counts with "
                f"at least {counted(self.min_silos, 'silo')}."
            )
        elif self.profile == "pairwise":
            lines.append(
                f"{len(self.silos)} silos each add a share of the noise and send masked vectors. "
                f"The guarantee holds even if {self.collusion} of them and the aggregator put "
                "together all they know. A round counts with at least "
                f"{counted(self.min_silos, 'silo')}. "
                + (
                    "The aggregator learns the noised sums."
                    if self.protocol <= WITHOUT_OPTIONS
                    else "The aggregator can read no vector, and the result only if a silo helps "
                    "it."
                )
            )
        else:
            lines.append("One silo, in one process: nothing is sent to anybody.")
        if self.horizon is not None:
            lines.append(
                f"The sums are released in {self.horizon.periods} periods, for one price. The "
                f"limit of rows of one {noun_of(self.unit)} is for each period, and its rows count "
                f"in at most {self.horizon.max_periods} of the periods. Each silo keeps the exact "
                "sums of earlier periods until the end, and if one leaves, the job ends."
            )
        if self.publish:
            lines.append("The result is for the one who proposed the job, too.")
        named = [f"{reader.name!r} ({reader.fingerprint})" for reader in self.readers]
        if named:
            lines.append(f"The result is for the silos, and for {', '.join(named)}.")
        elif self.fingerprints and not self.publish:
            lines.append("The result is for the silos alone.")
        return " ".join(lines)

    def _repr_html_(self) -> str:
        """Return a table of the plan and its cost, for notebooks."""
        facts = [("unit of privacy", self.unit_in_words())]
        if self.budget:
            cost = ("epsilon", f"{self.budget.epsilon:.4g}"), ("delta", f"{self.budget.delta:.2g}")
            facts = [*cost, *facts]
        rows = (
            ("silos", ", ".join(self.silos)),
            ("columns", f"{len(self.columns):,}"),
            ("rounds", f"{self.rounds}"),
            ("records, as agreed", f"{self.nominal_n:,}"),
            ("bytes that each silo sends", f"{self.upload_bytes():,}"),
        )
        return page(
            "notebook.html",
            title=f"Plan ({self.task.name})",
            facts=facts,
            remarks=[self.describe()],
            tables=[Table("What is fixed beforehand", ("", "of this plan"), rows)],
            cell_text=str,
        )


def rules_of_renewal(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each reason why the answer of a plan cannot be renewed."""
    name = plan.task.name
    if plan.layout.rounds != 1:
        yield (
            f"task {name!r} has {plan.layout.rounds} rounds, but a period of a horizon has one; "
            "use a task with one round, such as a table of counts, or 'glloyd' with rounds=1."
        )
    if plan.budget is None or plan.layout.mechanism != "gaussian":
        yield f"task {name!r} must have Gaussian noise, which one price covers in all periods."
    if plan.rate < 1 or plan.by_client is not None:
        yield f"task {name!r} must not sample units, nor protect those of a column of the job."
    if plan.unit in ("row", "silo"):
        yield (
            f"unit of privacy must be a column, got {plan.unit!r}: the periods of a person can "
            "only be counted by an identifier; add 'unit' to the schema."
        )


@cache
def _declared() -> tuple[Declaration, ...]:
    """Return the fields of a plan whose annotations declare their valid values."""
    return tuple(
        declaration
        for declaration in declarations(Plan)
        if get_origin(declaration.kind) is Annotated
    )


def _too_long(name: str, value: Any) -> Iterator[str]:
    """Yield a sentence for each text that is too long, in a field of a plan or an encoded task."""
    if isinstance(value, str):
        if _bytes(value) > MAX_TEXT:
            yield (
                f"{name} must have texts of at most {MAX_TEXT} bytes, got {value[:20]!r} of "
                f"{_bytes(value)}; use shorter names."
            )
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _too_long(name, key)
            yield from _too_long(name, entry)
    elif isinstance(value, tuple | list):
        for entry in value:
            if not isinstance(entry, int | float):  # skips the many numbers of a model
                yield from _too_long(name, entry)


def _bytes(text: str) -> int:
    # JSON may hold lone surrogates, for which the default raises UnicodeEncodeError.
    return len(text.encode(errors="surrogatepass"))


def _carries_model(written: Any) -> bool:
    """Return True if an encoded task, or a step of it, contains a model released earlier."""
    steps = written.get("steps") or ()
    inner = (step for step in steps if isinstance(step, Mapping))
    return bool(written.get("released")) or any(map(_carries_model, inner))


def _other_protocol(version: object) -> str:
    return (
        f"plan has protocol {version}, this is {PROTOCOL_VERSION}; use the same version at every "
        "party."
    )


def _check_version(document: Mapping[str, Any]) -> None:
    version = document["protocol"]
    readable = range(WITHOUT_LAYOUT, PROTOCOL_VERSION + 1)
    if version not in readable or document["ring_bits"] != RING_BITS:
        raise PlanError(_other_protocol(version))
    since = {
        WITHOUT_LAYOUT: ("layout", "code"),
        WITHOUT_OPTIONS: ("options", "question", "readers"),
    }
    newer = [name for last, names in since.items() if version > last for name in names]
    needed = (*_PLAIN_FIELDS, *newer, *(() if version > WITHOUT_OPTIONS else ("publish",)))
    if missing := [name for name in needed if name not in document]:
        raise PlanError(
            f"plan is not complete: it lacks {', '.join(map(repr, missing))}, so it was "
            f"written by another version of cloister; {_ANOTHER_VERSION}."
        )


def _opened(
    written: Mapping[str, Any], tasks: Mapping[str, type[Task]], layout: Any, private: bool
) -> Task:
    """Return the task of a plan, or an :class:`UnknownTask` one if its code is not installed."""
    name = written[_TASK]
    if name in tasks:
        task: Task = task_from_json({_TASK: name, **written}, tasks)
        return task
    if layout is None:
        raise PlanError(
            f"task must be one of {sorted(tasks)}, got {name!r}; a plan of protocol "
            f"{WITHOUT_LAYOUT} needs its task's code, run it to its end with cloister 0.1."
        )
    return cast(Task, UnknownTask(written, private))


def _has_sites(task: Task) -> bool:
    return isinstance(task, SitedTask) and bool(task.sites)


def _needs_its_plan(task: Task) -> bool:
    return isinstance(task, UnitTask) and (task.clients != "row" or task.rate < 1 or task.alone)


def task_to_json(value: Any) -> Any:
    """Encode a task, with the tasks inside it, as JSON-able values."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, UnknownTask):
        return value.written
    if isinstance(value, tuple | list):
        return [task_to_json(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: task_to_json(entry) for name, entry in value.items()}
    if isinstance(value, Task):  # last, as isinstance with a protocol is slow
        given = {
            field.name: getattr(value, field.name)
            for field in fields(value)  # type: ignore[arg-type]  # a protocol cannot say that tasks are dataclasses
            # A plan from before a field existed keeps its digest.
            if field.name not in getattr(value, "later", ()) or not _is_default(value, field)
        }
        return {_TASK: value.name, **{name: task_to_json(entry) for name, entry in given.items()}}
    return value


def _is_default(task: Task, field: Field[Any]) -> bool:
    return bool(getattr(task, field.name) == field.default)


def task_from_json(value: Any, known: Mapping[str, type[Task]]) -> Any:
    """Decode a task encoded by :func:`task_to_json`."""
    if isinstance(value, list):
        return tuple(task_from_json(entry, known) for entry in value)
    if not isinstance(value, Mapping):
        return value
    entries = {name: task_from_json(entry, known) for name, entry in value.items() if name != _TASK}
    if _TASK not in value:
        return entries
    if value[_TASK] not in known:
        raise PlanError(f"task must be one of {sorted(known)}, got {value[_TASK]!r}.")
    task = known[value[_TASK]]
    public = {field.name: field for field in fields(task)}  # type: ignore[arg-type]  # a protocol cannot say that tasks are dataclasses
    unknown = sorted(entries.keys() - public.keys())
    missing = [
        name
        for name, field in public.items()
        if name not in entries and field.default is MISSING and field.default_factory is MISSING
    ]
    if unknown or missing:
        verb, names = ("has", unknown) if unknown else ("lacks", missing)
        raise PlanError(
            f"task {task.name!r} {verb} {', '.join(map(repr, names[:3]))}, so it was written by "
            f"another version of cloister; {_ANOTHER_VERSION}."
        )
    return task(**entries)


_TASK = "name"
"""The key that marks a mapping as a task; other mappings may not have it."""

_PLAIN_FIELDS = (
    *("silos", "columns", "nominal_n", "min_silos", "profile", "unit", "max_rows"),
    *("max_silos_per_person", "schema_digest", "study", "collusion"),
    *("fingerprints", "upload_slot", "run_id"),
)
