"""Attacks on what leaves silos, each played as a game about one record.

In a game the target's record is in silo *a* or is not there, the other records are the same, and
the attack succeeds or not; it sees one thing only, chosen by the setting: what silo *a* sends, in
the clear; the exact sums of all silos, as secure computation opens them; or our release. Its
*advantage* is how much more often it succeeds where the record is there. Success is a function of
what was released, so the advantage is at most the total variation distance of the two releases,
which is ``delta(0)`` of what a plan pays, whatever the attack and whatever it knows.

References
----------
.. [PAHWM17] Phong, Aono, Hayashi, Wang, Moriai, "Privacy-preserving deep learning via additively
   homomorphic encryption", IEEE TIFS 13(5), section III: a layer's input is a quotient.
.. [GBDM20] Geiping, Bauermeister, Dröge, Moeller, "Inverting gradients", NeurIPS 2020, Prop. 3.1.
.. [FJR15] Fredrikson, Jha, Ristenpart, "Model inversion attacks", CCS 2015, Algorithm 1.
.. [YGFJ18] Yeom, Giacomelli, Fredrikson, Jha, "Privacy risk in machine learning", CSF 2018,
   Definitions 4 and 5: both advantages.
.. [CCNSTT22] Carlini et al., "Membership inference attacks from first principles", S&P 2022.
.. [DN03] Dinur, Nissim, "Revealing information while preserving privacy", PODS 2003.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from cloister.app.job import make_plan
from cloister.audit.runs import element_scales
from cloister.core.randomness import public_generator
from cloister.data import read_source
from cloister.data.schema import Column, Schema
from cloister.hazmat.ring import Integers, to_integers
from cloister.privacy import accounting
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.calibration import gdp_mu_for
from cloister.privacy.events import ComposedEvent, Event
from cloister.privacy.noise import DiscreteNoise, NoiseKind
from cloister.protocol.plan import Plan
from cloister.protocol.task import COUNT_BITS, Floats, GridState, Records, Task
from cloister.secagg.masks import NoMask
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.columns import codes
from cloister.tasks.preparation.statistics import Statistics
from cloister.tasks.supervised.fedavg import FedAvg
from cloister.tasks.supervised.local_training import NORM
from cloister_lab.audit.adversary import System, group_mask, play
from cloister_lab.experiments.datasets import BUNDLED, load

SMALL = 60
"""Records of all three silos together, but for attacks on a batch."""

ROUNDS = 4
"""Of the same."""

SHADOWS = 100
"""Models with the target, and as many without, from which a stranger learns to tell them apart."""

_NAMES = ("a", "b", "c")
_SENSITIVE, _AT = "texture error", 1.1  # a measurement that the others hardly tell
_KNOWN = ("mean radius", "mean texture", "mean smoothness", "mean symmetry", "area error")
_SERVER_RATE = 10.0  # so that few rounds train a model
_MEMBERS, _GROUPS = 6, 12  # silos of one person each, and jobs over some of them
_CLUSTERS, _ITERATIONS = 4, 8
_RIDGES = (0.01, 0.1, 1.0, 10.0)
_SAME = 1e-6  # of the box: a record is met exactly


# --- Settings and games ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What an attack sees, and how much of the plan's noise is really in it.

    Parameters
    ----------
    epsilon : float
        Of the plan; without noise nothing depends on it.
    part : float
        Of the plan's noise: 1 in a release, 0 in an exact opening.
    in_clear : bool
        Whether silo *a*'s own uploads are seen, rather than the sums of all silos.
    """

    name: str
    epsilon: float = 1.0
    part: float = 0.0
    in_clear: bool = False

    def system(self) -> System:
        """Return what carries, masks and noises the sums of a job."""
        return System(
            make_noise=partial(PartOfNoise, self.part),
            make_masker=NoMask if self.in_clear else group_mask,
        )


@dataclass(frozen=True)
class PartOfNoise:
    """The product's own noise with a part of the scale that was asked for; 1 changes nothing."""

    part: float
    label = "a part of the noise (laboratory)"

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return zeros for a part of 0."""
        if self.part == 0:
            return np.zeros(size, dtype=np.int64)
        return DiscreteNoise().draw(kind, max(1, round(scale * self.part)), size)


class View(NamedTuple):
    """What an attack sees: the public state before each round, and one vector of each round."""

    states: list[GridState]
    sums: list[Integers]


class Outcome(NamedTuple):
    """How a game ended; `likeness` and `aside` are what else its attack reports."""

    hit: bool
    likeness: float = math.nan
    aside: float = math.nan


class Game(NamedTuple):
    """What the target's record pays, and one game with or without it."""

    cost: Event
    play: Callable[[np.random.Generator, bool], Outcome]


def see(plan: Plan, setting: Setting, silos: Mapping[str, Records]) -> View:
    """Run a job with real clients and frames; return what the setting shows."""
    server, log = play(setting.system(), plan, silos)
    rounds = range(plan.rounds)
    if setting.in_clear:
        sent = {u.round: to_integers(u.elements) for u in server.uploads(plan)[plan.silos[0]]}
        sums = [sent[t] for t in rounds]
    else:
        sums = [log.answer(t) for t in rounds]
    return View([log.states[t] for t in rounds], sums)


# --- Tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """A public table on the grid; its first `width` columns are what an attack looks for."""

    schema: Schema
    records: Records
    width: int

    @cached_property
    def images(self) -> Floats:
        """What an attack looks for, in the box ``[-1, 1]``."""
        return self.records[:, : self.width] / float(self.schema.grid().one)

    @cached_property
    def labels(self) -> Integers:
        """The number of each record's class, which is the last column."""
        public = self.schema.public[-1]
        return codes(self.records[:, -1], public.levels, self.schema.grid().frac_bits)

    def deal(self, target: int, others: Sequence[int], there: bool) -> dict[str, Records]:
        """Return the records of three silos of one size; the target's is the first of silo *a*."""
        third = (1 + len(others)) // 3
        of_a, rest = [target] * there + list(others[: third - 1]), others[third - 1 :]
        dealt = dict(zip(_NAMES, (of_a, rest[:third], rest[third:]), strict=True))
        return {name: self.records[rows] for name, rows in dealt.items()}

    def nearest(self, images: Floats) -> set[int]:
        """Return the record that each of some images is nearest to; those not finite have none."""
        images = images[np.isfinite(images).all(axis=1)]
        if not len(images):
            return set()
        known = self.images
        apart = (known**2).sum(axis=1) - 2 * images @ known.T
        return set(apart.argmin(axis=1).tolist())


@cache
def digits() -> Table:
    """Return 1,797 images of 8 x 8 pixels with the digit they show."""
    from sklearn.datasets import load_digits

    bunch = load_digits(as_frame=True)
    public = BUNDLED["digits"].schema("digits", tuple(bunch.data.columns))
    shown = _categories("digit", tuple("0123456789"))
    table = bunch.data.assign(digit=bunch.target.astype(str))
    return _table(public, (shown,), table, len(bunch.data.columns))


@cache
def tumours() -> Table:
    """Return 569 patients: some measurements, a sensitive yes or no, and the diagnosis."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    public = BUNDLED["wdbc"].schema("wdbc", tuple(bunch.data.columns)).select(_KNOWN)
    sensitive = _categories("sensitive", ("no", "yes"))
    found = _categories("tumour", ("malignant", "benign"))
    table = bunch.data[list(_KNOWN)].assign(
        sensitive=np.where(bunch.data[_SENSITIVE] > _AT, "yes", "no"),
        tumour=np.array(found.categories)[bunch.target],
    )
    return _table(public, (sensitive, found), table, len(_KNOWN))


def _categories(name: str, of: tuple[str, ...]) -> Column:
    return Column(name=name, type="category", categories=of, min=0.0, max=len(of) - 1.0)


def _table(public: Schema, more: tuple[Column, ...], frame: Any, width: int) -> Table:
    schema = public.model_copy(update={"columns": (*public.columns, *more)})
    return Table(schema, np.concatenate(list(read_source(frame, schema))), width)


@cache
def patients() -> Table:
    """Return all 30 measurements of the same patients, and no class."""
    data = load("wdbc")
    return Table(data.schema, data.records, data.records.shape[1])


@cache
def _plan(
    task: type[Task], table: Table, budget: Budget, n: int, silos: tuple[str, ...], **options: Any
) -> Plan:
    return make_plan(task, table.schema, silos, budget=budget, nominal_n=n, **options)


def averaging(table: Table, epsilon: float, n: int, rounds: int) -> Plan:
    """Return a plan of federated averaging over `n` records, each with one shortened gradient.

    Steps are so long that most gradients are shortened: then a record pays for all it adds.
    """
    return _plan(
        FedAvg,
        table,
        Budget(epsilon, default_delta(n)),
        n,
        _NAMES,
        target=table.schema.names[-1],
        rounds=rounds,
        local_steps=1,
        local_rate=4.0,
        momentum=0.0,
        server_rate=_SERVER_RATE,
    )


def model_of(plan: Plan, setting: Setting, view: View) -> Floats:
    """Return the model that the sums make, of shape (inputs, outputs): without momentum, their sum.

    Of one silo's uploads it is that of the silo's own updates.
    """
    task = plan.task
    assert isinstance(task, FedAvg)
    among = task.n_clients / (len(plan.silos) if setting.in_clear else 1)
    found: Floats = np.sum(view.sums, axis=0) * (task.server_rate * task.clip / NORM / among)
    return found.reshape(task.network.inputs, -1)


# --- Gradient inversion ---------------------------------------------------------------------------


def invert_dense(update: Floats) -> Floats:
    """Return an input of a dense layer for each of its outputs.

    Parameters
    ----------
    update : ndarray of shape (inputs, outputs)
        A gradient, or a step along it, summed over a batch; the bias is its last row.

    Returns
    -------
    ndarray of shape (outputs, inputs - 1)
        Infinite or not a number where an output tells nothing.

    Notes
    -----
    Of one row x, column k is ``e_k (x, 1)``, so their quotient is x, exactly [PAHWM17]_,
    [GBDM20]_. Of a batch it is a weighted mean. In a softmax layer that knows nothing yet, a
    class without rows in the batch has the same weight for all of them; less its column, column k
    is of the rows of class k alone: one row is recovered exactly, several as their mean.
    """
    # the class of fewest rows moves down most; of one row, all its columns are multiples of x
    apart = update - update[:, [update[-1].argmin()]]
    with np.errstate(all="ignore"):
        found: Floats = (apart[:-1] / apart[-1]).T
    return found


def gradient_inversion(setting: Setting, seed: int, *, batch: int) -> Game:
    """Name the target by the picture that one gradient of its batch gives away."""
    table = digits()
    plan = averaging(table, setting.epsilon, 3 * batch, 1)

    def game(rng: np.random.Generator, there: bool) -> Outcome:
        target, *others = rng.choice(len(table.records), 3 * batch, replace=False).tolist()
        view = see(plan, setting, table.deal(target, others, there))
        images = invert_dense(view.sums[0].reshape(-1, 10).astype(np.float64))
        like = correlation(images[table.labels[target]], table.images[target])
        return Outcome(target in table.nearest(images), like)

    return Game(plan.events(), game)


def correlation(left: Floats, right: Floats) -> float:
    """Return the correlation of two pictures; 0 where one is flat or not finite."""
    if not (np.isfinite(left).all() and np.ptp(left) and np.ptp(right)):
        return 0.0
    return float(np.corrcoef(left, right)[0, 1])


# --- Model inversion ------------------------------------------------------------------------------


def ascend(model: Floats, number: int, steps: int = 60, step: float = 0.1) -> Floats:
    """Return a picture that a softmax model takes for a class: ascent from grey, in the box."""
    picture = np.zeros(len(model) - 1)
    for _ in range(steps):
        logits = picture @ model[:-1] + model[-1]
        odds = np.exp(logits - logits.max())
        slope = model[:-1, number] - model[:-1] @ (odds / odds.sum())
        picture = np.clip(picture + step * slope / max(np.abs(slope).max(), 1e-300), -1, 1)
    return picture


def model_inversion(setting: Setting, seed: int) -> Game:
    """Name the only member of a class, as a face is the only one of its name, by the model."""
    table = digits()
    plan = averaging(table, setting.epsilon, SMALL, 8)
    labels, mean = table.labels, table.images.mean(axis=0)

    def game(rng: np.random.Generator, there: bool) -> Outcome:
        target = int(rng.integers(len(labels)))
        rest = np.flatnonzero(labels != labels[target])
        others = rng.choice(rest, SMALL - 1, replace=False).tolist()
        view = see(plan, setting, table.deal(target, others, there))
        model = model_of(plan, setting, view)
        picture = ascend(model, int(labels[target]))
        alike = np.flatnonzero(labels == labels[target])
        faces = table.images[alike] - mean
        named = alike[(faces @ picture / np.linalg.norm(faces, axis=1)).argmax()]
        # what a model is for: the mean of a class of several people, which no noise has to hide
        common = int(np.bincount(labels[others]).argmax())
        known = correlation(ascend(model, common), table.images[labels == common].mean(axis=0))
        return Outcome(bool(named == target), correlation(picture, table.images[target]), known)

    return Game(plan.events(), game)


# --- Membership inference -------------------------------------------------------------------------


def fit_of(view: View, plan: Plan, shared: Records, more: Records, part: float) -> float:
    """Return the log-likelihood of two tables' sums, less a constant.

    Without noise all that does not fit exactly is far away.
    """
    total = 0.0
    for t, (state, sums) in enumerate(zip(view.states, view.sums, strict=True)):
        expected = plan.task.contribute(t, state, shared) + plan.task.contribute(t, state, more)
        scale = np.maximum(element_scales(plan, t) * part, 1.0)
        total -= float((((sums - expected) / scale) ** 2).sum()) / 2
    return total


def _small(setting: Setting, table: Table) -> Plan:
    return averaging(table, setting.epsilon, SMALL, ROUNDS)


def _beside(setting: Setting, silos: Mapping[str, Records], there: bool) -> Records:
    """Return the records beside the target's that are in what the setting shows."""
    own = silos["a"][int(there) :]
    return own if setting.in_clear else np.concatenate([own, silos["b"], silos["c"]])


def membership_known(setting: Setting, seed: int) -> Game:
    """Say whether the target is there, knowing all other records: which sum fits better."""
    table = digits()
    plan = _small(setting, table)

    def game(rng: np.random.Generator, there: bool) -> Outcome:
        target, *others = rng.choice(len(table.records), SMALL, replace=False).tolist()
        silos = table.deal(target, others, there)
        view, shared = see(plan, setting, silos), _beside(setting, silos, there)
        one, none = table.records[[target]], table.records[:0]
        without, with_it = (fit_of(view, plan, shared, of, setting.part) for of in (none, one))
        return Outcome(with_it > without)

    return Game(plan.events(), game)


def membership_stranger(
    setting: Setting, seed: int, *, atypical: bool, shadows: int = SHADOWS
) -> Game:
    """Say whether the target is there, knowing only from what population the others come.

    The coefficients of its class are projected on the direction in which a record like it stands
    out of the population most; models of other draws from the population, with the target and
    without, say where such numbers lie [CCNSTT22]_.
    """
    table = digits()
    plan, labels = _small(setting, table), table.labels
    target = _targets(atypical)[seed]
    inputs = np.column_stack([table.images, np.ones(len(labels))])
    spread = inputs.T @ inputs / len(inputs)
    rest = np.delete(np.arange(len(labels)), target)

    def model(rng: np.random.Generator, there: bool) -> Floats:
        others = rng.choice(rest, SMALL - 1, replace=False).tolist()
        view = see(plan, setting, table.deal(target, others, there))
        found: Floats = model_of(plan, setting, view)[:, labels[target]]
        return found

    # what tells them apart best depends on the noise, which the shadows have, too
    trained = [
        np.array([model(public_generator("leaks", "shadow", target, i, w), bool(w)) for i in draws])
        for w, draws in enumerate([range(shadows)] * 2)
    ]
    tells = [np.linalg.solve(spread + r * np.eye(len(spread)), inputs[target]) for r in _RIDGES]
    tell = max(tells, key=lambda tell: _apart(*(of @ tell for of in trained)))
    laws = [(np.mean(of @ tell), float(np.std(of @ tell))) for of in trained]

    def game(rng: np.random.Generator, there: bool) -> Outcome:
        seen = model(rng, there) @ tell
        without, with_it = (-(((seen - m) / s) ** 2) / 2 - math.log(s) for m, s in laws)
        return Outcome(bool(with_it > without))

    return Game(plan.events(), game)


def _apart(without: Floats, with_it: Floats) -> float:
    """Return how many standard deviations two means are apart."""
    return float((with_it.mean() - without.mean()) / sqrt(without.var() + with_it.var()))


@cache
def _targets(atypical: bool) -> list[int]:
    """Return who is looked for, chosen before anything runs: farthest from its class, or by lot."""
    table = digits()
    means = np.array([table.images[table.labels == k].mean(axis=0) for k in range(10)])
    far = np.linalg.norm(table.images - means[table.labels], axis=1)
    lot = public_generator("leaks", "targets").permutation(len(far))
    return list(map(int, np.argsort(-far) if atypical else lot))


# --- Attribute inference --------------------------------------------------------------------------


@cache
def _imputed() -> Floats:
    """Return for each patient the chance of the sensitive yes, by the others' records alone."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = tumours()
    known = np.delete(table.records, -2, axis=1) / float(table.schema.grid().one)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    found = cross_val_predict(model, known, table.records[:, -2] > 0, cv=10, method="predict_proba")
    chances: Floats = found[:, 1]
    return chances


def attribute(setting: Setting, seed: int, *, known: bool) -> Game:
    """Guess a yes or no of the target, all else of whom is known; with the others' records or not.

    What the other columns tell is the prior. Who knows the others' records adds how well each
    answer fits the sums; who does not, how likely the final model finds the target's class with
    each answer [YGFJ18]_.
    """
    table = tumours()
    plan = _small(setting, table)
    task = plan.task
    assert isinstance(task, FedAvg)

    def game(rng: np.random.Generator, there: bool) -> Outcome:
        target, *others = rng.choice(len(table.records), SMALL, replace=False).tolist()
        silos = table.deal(target, others, there)
        view, shared = see(plan, setting, silos), _beside(setting, silos, there)
        both = np.repeat(table.records[[target]], 2, axis=0)
        both[:, -2] = np.sort(np.unique(table.records[:, -2]))  # no, yes
        if known:
            fits = [fit_of(view, plan, shared, row[None], setting.part) for row in both]
        else:
            parameters = model_of(plan, setting, view).ravel()
            chances = task.probabilities({"parameters": parameters}, both)
            fits = np.log(np.maximum(chances[:, table.labels[target]], 1e-300)).tolist()
        chance, truth = _imputed()[target], bool(table.records[target, -2] > 0)
        guess = fits[1] + math.log(chance) > fits[0] + math.log(1 - chance)
        return Outcome(bool(guess == truth), math.nan, float((chance > 0.5) == truth))

    return Game(plan.events(), game)


# --- Reconstruction from exact sums ---------------------------------------------------------------


def linear_reconstruction(setting: Setting, seed: int) -> Game:
    """Solve sums over overlapping groups for each member's own numbers [DN03]_.

    Silos hold one record each and take part in jobs with some of the others; the budget is that of
    all jobs of one silo.
    """
    table = digits()
    members = tuple("abcdef"[:_MEMBERS])
    matrix = overlapping()
    delta = default_delta(_MEMBERS)
    mu = gdp_mu_for(setting.epsilon, delta) / sqrt(matrix.sum(axis=0).max())
    budget = Budget(accounting.gdp_epsilon(mu, delta), delta)
    groups = [tuple(m for m, takes in zip(members, row, strict=True) if takes) for row in matrix]
    plans = [_plan(Statistics, table, budget, len(group), group) for group in groups]
    of_target = [plan for plan in plans if members[0] in plan.silos]
    pixels = slice(1, 1 + table.images.shape[1])  # after the count

    def game(rng: np.random.Generator, there: bool) -> Outcome:
        chosen = rng.choice(len(table.records), _MEMBERS, replace=False)
        rows = {name: table.records[[row]] for name, row in zip(members, chosen, strict=True)}
        rows[members[0]] = rows[members[0]][: int(there)]
        asked = of_target[:1] if setting.in_clear else plans
        views = [see(plan, setting, {name: rows[name] for name in plan.silos}) for plan in asked]
        sums = np.array([view.sums[0][pixels] / 2.0**COUNT_BITS for view in views])
        found = sums if setting.in_clear else np.linalg.lstsq(matrix, sums, rcond=None)[0][:1]
        target = int(chosen[0])
        like = correlation(found[0], table.images[target])
        return Outcome(target in table.nearest(found), like)

    return Game(ComposedEvent(tuple(plan.events() for plan in of_target)), game)


@cache
def overlapping() -> Floats:
    """Return who takes part in which job, 0 or 1, so that all sums together determine everybody."""
    rng = public_generator("leaks", "groups")
    while True:
        matrix = rng.integers(0, 2, (_GROUPS, _MEMBERS)).astype(np.float64)
        if (matrix.sum(axis=1) > 1).all() and np.linalg.matrix_rank(matrix) == _MEMBERS:
            return matrix


def moved(plan: Plan, view: View) -> Floats:
    """Return what one record would be that changed its cluster alone between two rounds.

    A released sum is of differences to the centre; with the centre times the count it is that of
    the records themselves. Where a cluster has one record more or less than in the round before,
    the difference of its two sums is that record, exactly if no other moved.
    """
    task = plan.task
    assert isinstance(task, FastLloyd)
    one = 1 << task.frac_bits
    sums, counts = [], []
    for t, (state, elements) in enumerate(zip(view.states, view.sums, strict=True)):
        block = elements.reshape(task.n_clusters, -1)
        counts.append(np.rint(block[:, -1] / task.payload(t).count_weight))
        sums.append(block[:, :-1] + counts[-1][:, None] * state["centres"])
    steps = np.diff(counts, axis=0)
    alone = np.abs(steps) == 1
    found: Floats = np.diff(sums, axis=0)[alone] * steps[alone][:, None] / one
    return found


def moves_of_clusters(setting: Setting, seed: int) -> Game:
    """Name a record by the exact centres and counts of k-means over its rounds.

    The target is one that exact sums give away; `aside` is how many tables were drawn until there
    was one.
    """
    table = patients()
    budget = Budget(setting.epsilon, default_delta(SMALL))
    plan = _plan(FastLloyd, table, budget, SMALL, _NAMES, n_clusters=_CLUSTERS, rounds=_ITERATIONS)
    exact = Setting("exact", setting.epsilon, 0.0, setting.in_clear)

    def game(rng: np.random.Generator, there: bool) -> Outcome:
        tried, targets = 0, list[int]()
        while not targets:
            tried += 1
            rows = rng.choice(len(table.records), SMALL, replace=False).tolist()
            view = see(plan, exact, table.deal(rows[0], rows[1:], True))
            apart = np.abs(moved(plan, view)[:, None] - table.images[rows]).max(axis=2)
            targets = [rows[j] for j in np.flatnonzero((apart < _SAME).any(axis=0))]
        target = targets[0]
        others = [row for row in rows if row != target]
        view = see(plan, setting, table.deal(target, others, there))
        return Outcome(target in table.nearest(moved(plan, view)), math.nan, tried)

    return Game(plan.events(), game)
