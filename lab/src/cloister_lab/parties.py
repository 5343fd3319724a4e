"""FastLloyd's step-level names over our core: ``client.step -> server.step -> client.update``.

A thin shim for users of the published code: they keep their loop, and the rounds become masked,
noised and bounded as everywhere else here. New code wants :class:`cloister.DPKMeans` or a
:class:`~cloister.protocol.plan.Plan`.

Differences to the published code, all on purpose: the server has no key and the clients no noise;
exact numbers of unassigned records do not exist, so the third value of ``step`` is None; sums and
counts are masked and noised independently; a round beyond ``iters`` is refused. Parties count the
rounds themselves, so the first may have another radius, and so another noise, than the later ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from math import ceil, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.errors import (
    AccuracyWarning,
    LocalProtocolError,
    PlanError,
    RemoteProtocolError,
)
from cloister.core.randomness import new_key as _new_key_bytes
from cloister.core.randomness import new_nonce, public_generator
from cloister.hazmat.discrete import MAX_SCALE
from cloister.hazmat.fixedpoint import Grid, from_grid, round_to_grid
from cloister.hazmat.prg import PadContext
from cloister.hazmat.ring import Words, to_integers, to_words
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.calibration import (
    gaussian_noise_multiplier,
    laplace_noise_multiplier,
    lattice_sigma,
)
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import largest_release
from cloister.protocol.task import NoisyBlock, PublicFacts
from cloister.secagg.masks import GroupMask, Masker, NoMask
from cloister.tasks.clustering.clusters import none_above_noise, records_left_out
from cloister.tasks.clustering.kmeans import FastLloyd, Post

Floats = NDArray[np.float64]
FRAC_BITS = 16

PLACES = 1000
"""Points of the box among which a centre that moves takes the one farthest from the others."""


@dataclass(frozen=True)
class Params:
    """Public values of a run; the only class of this name, and it holds no secret and no state.

    Parameters
    ----------
    iters : int, >= 1
        Number of rounds: 5, which is near what the error model of `DPKMeans` chooses for some
        thousand records and a budget of 1.
    epsilon : float, > 0
        For all `iters` rounds together; needed unless `dp` is "none". ``eps=`` is accepted.
    delta : float, optional
        For Gaussian noise; 1e-6 if not given.
    dp : {"gaussian", "laplace", "none"}
        Law of the noise. ``"gaussiananalytic"``, as the published code calls it, is ``"gaussian"``.
    nominal_n : int, optional
        Public number of records of all clients. With it, centres without records restart where that
        pays, the last :meth:`~MaskedClient.update` warns if clusters miss records, and without
        `max_dist` one of two centres in one group moves where records are missing.
    max_dist : float, optional
        Radius in a box of half-width 1: a record farther from its centre is in no cluster, in no
        sum. Without it FastLloyd's with `alpha`. A small radius around a start without records
        never finds any.
    radius_strategy : {"step", "constant"}
        Whether the first round has half the diagonal of the box as its radius, under more noise, or
        all rounds have the same one. In the first round of "step" all centres find their records.
    bounds : (float, float)
        Public bounds of every column.
    seed : int
        Public seed of the starting centres.
    run_id : str
        Fresh in every `Params`: two runs never share a pad.
    """

    k: int
    dim: int
    num_clients: int
    iters: int = 5
    dp: Literal["none", "laplace", "gaussian", "gaussiananalytic"] = "gaussian"
    epsilon: float | None = None
    delta: float | None = None
    nominal_n: int | None = None
    max_dist: float | None = None
    alpha: float = 0.8
    radius_strategy: Literal["step", "constant"] = "step"
    post: Post = "fold"
    bounds: tuple[float, float] = (-1.0, 1.0)
    seed: int = 0
    run_id: str = field(default_factory=new_nonce)
    eps: InitVar[float | None] = None

    def __post_init__(self, eps: float | None) -> None:
        if eps is not None:
            if self.epsilon is not None:
                raise PlanError("epsilon and eps are the same; give one of them.")
            object.__setattr__(self, "epsilon", eps)
        if self.dp == "gaussiananalytic":
            object.__setattr__(self, "dp", "gaussian")
        if self.dp not in ("none", "laplace", "gaussian"):
            raise PlanError(f"dp must be 'none', 'laplace' or 'gaussian', got {self.dp!r}.")
        if self.num_clients < 1:
            raise PlanError(f"num_clients must be >= 1, got {self.num_clients}.")
        if self.nominal_n is not None and self.nominal_n < 1:
            raise PlanError(f"nominal_n must be >= 1, got {self.nominal_n}; or leave it out.")
        if (self.epsilon is None) != (self.dp == "none"):
            raise PlanError(f"epsilon must be given unless dp is 'none', got {self.epsilon!r}.")
        if self.epsilon is not None:
            delta = default_delta(None) if self.delta is None else self.delta
            Budget(self.epsilon, delta)
            object.__setattr__(self, "delta", delta)
        _ = self.grid  # refuses bounds that are none
        if max(self.noise_scale(0), self.noise_scale(self.iters - 1)) > MAX_SCALE:
            raise PlanError(
                f"epsilon={self.epsilon} needs more noise than fits; take a larger one."
            )

    @cached_property
    def task(self) -> FastLloyd:
        """The task these values describe."""
        budget = None
        if self.nominal_n is not None and self.epsilon is not None and self.delta is not None:
            budget = Budget(self.epsilon, self.delta)
        facts = PublicFacts(
            n_features=self.dim,
            nominal_n=self.nominal_n or 1,
            budget=budget,
            frac_bits=FRAC_BITS,
        )
        designed = FastLloyd.design(
            facts,
            FastLloyd.Options(
                n_clusters=self.k,
                rounds=self.iters,
                alpha=self.alpha,
                radius_strategy=self.radius_strategy,
                mechanism=self.law,
                post=self.post,
                # Whether it pays is known from a number of records and a budget.
                relocate_empty=None if budget else False,
                estimate=False,
                public_seed=self.seed,
            ),
        )
        if self.max_dist is None:
            return designed
        first = designed.first_radius if self.radius_strategy == "step" else self.max_dist
        return replace(designed, first_radius=first, radius=self.max_dist)

    @property
    def law(self) -> Literal["gaussian", "laplace"]:
        """The law of the noise, if there is noise."""
        return "laplace" if self.dp == "laplace" else "gaussian"

    @cached_property
    def grid(self) -> Grid:
        """The public box of the records."""
        low, high = self.bounds
        return Grid((low,) * self.dim, (high,) * self.dim, FRAC_BITS)

    def noise_scale(self, t: int) -> int:
        """Return the integer scale of the noise in each word of round `t`; 0 without noise."""
        if self.epsilon is None or self.delta is None:
            return 0
        payload = self.task.payload(t)
        if self.dp == "laplace":
            return ceil(laplace_noise_multiplier(self.epsilon) * self.iters * payload.l1)
        multiplier = gaussian_noise_multiplier(self.epsilon, self.delta) * sqrt(self.iters)
        return lattice_sigma(multiplier, sqrt(payload.l2_squared))

    def noise_std(self, t: int) -> float:
        """Return the standard deviation of the noise in each word of round `t`."""
        return self.noise_scale(t) * (sqrt(2) if self.dp == "laplace" else 1.0)

    def largest(self, t: int) -> int:
        """Return the largest absolute value that a word of round `t` can honestly take."""
        payload = self.task.payload(t)
        return largest_release(self.num_clients, payload.l2_squared, self.noise_scale(t))


class GroupKey:
    """The secret of a run's masked clients; it knows who joined, so no pad is used twice."""

    def __init__(self) -> None:
        self._key = _new_key_bytes()
        self._joined: set[tuple[str, int]] = set()

    def join(self, run_id: str, index: int) -> GroupMask:
        """Return the mask of one client of one run; each client joins once."""
        if (run_id, index) in self._joined:
            raise LocalProtocolError(
                f"client {index} already uses this key in this run; make new Params for a new run."
            )
        self._joined.add((run_id, index))
        return GroupMask(self._key)

    def __repr__(self) -> str:
        return "GroupKey(secret)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("GroupKey is a secret and knows who joined; it cannot be copied or stored.")


def new_key() -> GroupKey:
    """Return a fresh group key for the clients; the server must not have it."""
    return GroupKey()


class _Client:
    """A client's side of the loop, whatever blinds its vectors."""

    def __init__(self, index: int, values: ArrayLike, params: Params, masker: Masker) -> None:
        if not 0 <= index < params.num_clients:
            raise PlanError(f"index must be in [0, {params.num_clients}), got {index}.")
        self.index = index
        self.params = params
        self._masker = masker
        self._records = params.grid.encode(np.asarray(values))
        self._round = 0
        self._sent: tuple[Words, Words] | None = None
        start = params.task.start()
        self._state = {name: round_to_grid(v, FRAC_BITS) for name, v in start.items()}

    @property
    def centroids(self) -> Floats:
        """Current centres, shape (k, dim), units of the values."""
        return self.params.grid.decode(from_grid(self._state["centres"], FRAC_BITS))

    @property
    def sizes(self) -> Floats:
        """Noisy numbers of records near each centre in the last round, shape (k,); 0 before.

        Where they sum to far less than all records, a start has failed: see `centroids`.
        """
        return from_grid(self._state["sizes"], FRAC_BITS)

    def step(self, params: Params | None = None) -> tuple[Words, Words, None]:
        """Return this round's blinded sums (k, dim) and counts (k,); the same until `update`.

        The third value was the exact number of unassigned records in the published code; it would
        be a leak and does not exist here.
        """
        _same(self.params, params)
        if self._round >= self.params.iters:
            raise LocalProtocolError(
                f"round {self._round} is beyond iters={self.params.iters}; the budget is spent."
            )
        if self._sent is None:
            task = self.params.task
            total = task.contribute(self._round, self._state, self._records)
            rows = total.reshape(self.params.k, self.params.dim + 1)
            totals = self._masker.mask(to_words(rows[:, :-1].ravel()), self._pad("totals"))
            counts = self._masker.mask(to_words(rows[:, -1].copy()), self._pad("counts"))
            self._sent = totals.reshape(self.params.k, self.params.dim), counts
        totals, counts = self._sent
        return totals.copy(), counts.copy(), None

    def update(self, totals: Words, counts: Words) -> None:
        """Unblind the server's answer and move the centres.

        Warns
        -----
        AccuracyWarning
            After the last round, if no cluster is distinct from the noise, or many records are in
            none; without `nominal_n`, that the second is not known.
        """
        if self._sent is None:
            raise LocalProtocolError(f"round {self._round} has no step yet; call step first.")
        k, dim = self.params.k, self.params.dim
        everybody = [str(i) for i in range(self.params.num_clients)]
        sums = self._masker.unmask(_words(totals, (k, dim)), self._pad("totals"), everybody)
        sizes = self._masker.unmask(_words(counts, (k,)), self._pad("counts"), everybody)
        values = np.column_stack([to_integers(sums).reshape(k, dim), to_integers(sizes)])
        if max(int(values.max()), -int(values.min())) > self.params.largest(self._round):
            raise RemoteProtocolError(
                f"round {self._round} decodes to a value that no sum can have; a key or a vector "
                "does not belong to this run."
            )
        released = NoisyBlock(values, self.params.noise_std(self._round))
        state = self.params.task.update(self._round, self._state, {"sums": released})
        self._state = {name: round_to_grid(v, FRAC_BITS) for name, v in state.items()}
        if self._round + 1 < self.params.iters:
            self._spread()
        self._round, self._sent = self._round + 1, None
        if self._round == self.params.iters and self.params.dp != "none":
            for remark in filter(None, self._remarks()):
                warnings.warn(remark, AccuracyWarning, stacklevel=2)

    def _spread(self) -> None:
        """Move one of two centres that share a group, if another group is outside every radius.

        Lloyd's algorithm ends there, too, without noise and radius: the start decides. All that is
        used here is released or public, so it costs no budget. With `max_dist`, few records are
        near any centre, so that missing records do not point to a group.
        """
        p = self.params
        if p.nominal_n is None or p.max_dist is not None or p.k < 2 or not self._remarks()[1]:
            return
        centres = from_grid(self._state["centres"], FRAC_BITS)
        gaps = np.linalg.norm(centres[:, None] - centres, axis=2) + np.diag([np.inf] * p.k)
        pair = np.unravel_index(gaps.argmin(), gaps.shape)
        if gaps[pair] >= p.task.radius:
            return
        smaller = min(pair, key=lambda j: self._state["sizes"][j])
        others = np.delete(centres, smaller, axis=0)
        rng = public_generator(p.seed, "spread", self._round)  # equal centres at all parties
        places = rng.uniform(-1, 1, (PLACES, 1, p.dim))
        distances = np.linalg.norm(places - others, axis=2).min(axis=1)
        centres[smaller] = places[distances.argmax(), 0]
        self._state["centres"] = round_to_grid(centres, FRAC_BITS)

    def _remarks(self) -> tuple[str, str]:
        """Return what a user must know of the centres, "" for nothing."""
        found = self.params.task.results(self._state, self.params.grid)
        if self.params.nominal_n is None:
            missing = (
                "nominal_n is not given, so nobody can tell whether clusters miss records; give "
                "Params the number of records of all clients, rounded if it must not be known."
            )
        else:
            missing = records_left_out(found, self.params.nominal_n)
        return none_above_noise(found), missing

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.index}, round {self._round} of {self.params.iters})"

    def _pad(self, vector: str) -> PadContext:
        return PadContext(self.params.run_id, self._round, 0, vector, str(self.index))


class UnmaskedClient(_Client):
    """A client whose vectors the server can read: for one owner's own machines only."""

    def __init__(self, index: int, values: ArrayLike, params: Params) -> None:
        super().__init__(index, values, params, NoMask())


class MaskedClient(_Client):
    """A client whose vectors only the sum of all clients' unblinds.

    Parameters
    ----------
    values : array_like of shape (n_samples, dim)
        Clipped to the bounds and rounded to the grid once.
    key : GroupKey
        From :func:`new_key`, the same for all clients of the run.
    """

    def __init__(
        self, index: int, values: ArrayLike, params: Params, *, key: GroupKey | None = None
    ) -> None:
        if not isinstance(key, GroupKey):
            raise TypeError(
                f"key must be the group key of the clients, got {type(key).__name__}; make one "
                "with parties.new_key() and give it to every client, never to the server."
            )
        super().__init__(index, values, params, key.join(params.run_id, index))


class Server:
    """Adds the clients' vectors and the noise; with masked clients it can read neither.

    Parameters
    ----------
    params : Params
        Public values; there is no key to give it.

    Notes
    -----
    Vectors do not say which round they are of: the first question is taken for that of the first
    round, and each other one for that of the next. Under ``radius_strategy="step"`` the first round
    has more noise than the later ones, so ask a server nothing but what the clients' `step` gave.
    """

    def __init__(self, params: Params, *, noise: NoiseSource | None = None) -> None:
        self.params = params
        self._noise = noise or DiscreteNoise()
        self._round = 0
        self._last: tuple[bytes, Words, Words] | None = None

    def step(
        self,
        totals: Sequence[Words],
        counts: Sequence[Words],
        params: Params | None = None,
    ) -> tuple[Words, Words]:
        """Return the noised sums of one round; the same answer to the same vectors, in any order.

        Parameters
        ----------
        totals : sequence of ndarray of shape (k, dim), uint64; one per client
        counts : sequence of ndarray of shape (k,), uint64; one per client

        Returns
        -------
        totals, counts : ndarray of shape (k, dim) and (k,), uint64
        """
        _same(self.params, params)
        k, dim = self.params.k, self.params.dim
        if len(totals) != self.params.num_clients or len(counts) != self.params.num_clients:
            raise RemoteProtocolError(
                f"a round needs {self.params.num_clients} clients, got {len(totals)} and "
                f"{len(counts)} vectors."
            )
        sums = [_words(total, (k, dim)) for total in totals]
        sizes = [_words(count, (k,)) for count in counts]
        # In any order, so that vectors which come again are never taken for those of a later round.
        asked = b"".join(
            sorted(a.tobytes() + b.tobytes() for a, b in zip(sums, sizes, strict=True))
        )
        if self._last is None or self._last[0] != asked:
            if self._round >= self.params.iters:
                raise LocalProtocolError(
                    f"round {self._round} is beyond iters={self.params.iters}; the budget is spent."
                )
            total = _add(sums) + self._draw(k * dim)
            count = _add(sizes) + self._draw(k)
            self._last = asked, total.reshape(k, dim), count
            self._round += 1
        return self._last[1].copy(), self._last[2].copy()

    def __repr__(self) -> str:
        return f"Server(round {self._round} of {self.params.iters})"

    def _draw(self, size: int) -> Words:
        """Draw noise of its own for one vector."""
        scale = self.params.noise_scale(self._round)
        if self.params.dp == "none":
            return np.zeros(size, dtype=np.uint64)
        return to_words(self._noise.draw(self.params.law, scale, size))


def _same(ours: Params, theirs: Params | None) -> None:
    """Refuse a step with other public values than the party was made with."""
    if theirs is not None and theirs != ours:
        raise LocalProtocolError("params differ from those this party was made with.")


def _words(vector: Words, shape: tuple[int, ...]) -> Words:
    """Check and flatten a vector of ring words."""
    if vector.shape != shape or vector.dtype != np.uint64:
        raise RemoteProtocolError(
            f"vector must be uint64 of shape {shape}, got {vector.dtype} of shape {vector.shape}."
        )
    return vector.ravel()


def _add(vectors: Sequence[Words]) -> Words:
    """Add ring vectors modulo 2^64."""
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector
    return total
