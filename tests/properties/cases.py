"""The cases of the conformance suite: designs of tasks, and inputs that could break their laws.

`EXAMPLES` has the example of every installed task, `DESIGNS` more designs of some, and `CASES`
both. `test_conformance.py` checks the laws on them; the tests of one task use its designs, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, ClassVar

import numpy as np

from cloister.core.arrays import Floats, GridState, Records, State
from cloister.hazmat.fixedpoint import Grid, round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import NO_VALUE, PublicColumn, Task
from cloister.tasks import installed
from cloister.tasks.count import Count
from cloister.tasks.evaluation.classification import Evaluation
from cloister.tasks.evaluation.cluster_quality import ClusterQuality
from cloister.tasks.evaluation.regression import RegressionEvaluation
from cloister.tasks.examples import BOOLEAN, CATEGORY, NUMBER, OTHER_NUMBER, example_of
from cloister.tasks.patterns.outliers import Outliers
from cloister.tasks.preparation.discretise import Discretise
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.regression.glm import GeneralizedLinear
from cloister.tasks.regression.imputed import ImputedRegression
from cloister.tasks.supervised.forest import RandomForest
from cloister.tasks.supervised.forest_regression import ForestRegression
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister.tasks.supervised.shapes import Additive, ShapesClassifier
from cloister.tasks.supervised.shapes_regression import ShapesRegression
from cloister.tasks.survival.cox import Cox
from cloister.tasks.survival.cox_approximate import CoxApproximate
from cloister.tasks.survival.survival import Survival
from cloister.tasks.synthesis.synthesise import Synthesise
from cloister.tasks.tables.describe import Describe
from cloister.tasks.tables.scorecard import Scorecard
from cloister.tasks.tables.table1 import Table1
from cloister.tasks.tables.tabulate import Tabulate
from cloister.testing import hostile_states, toy_plan, toy_task

ONE = 1 << 16

States = Callable[[Any, int], list[GridState]]
"""Return public states of a task by a seed; laws that need few of them take the first two."""


CLAIMS = ("low", "high", "half_width", "size_half_width")
"""Results of clusters that are not known where a cluster is not determined."""


def blank_of(results: Mapping[str, Any]) -> Any:
    """Return True for clusters that are not determined, so that their intervals are not known."""
    return np.asarray(results["verdict"] <= 0 if "verdict" in results else False)


def are_in_order(results: Mapping[str, Any]) -> bool:
    """Return True if only values with an interval are not known, and its ends are in order.

    The places of a ROC curve are shares of negatives, which may not be known either.
    """
    blank = blank_of(results)
    for key, value in results.items():
        if key in CLAIMS and not (~blank == np.isfinite(value).T).all():
            return False
        if key in CLAIMS:
            continue
        if key.endswith(("_low", "_high")):
            if np.isnan(value).any():
                return False
        elif (
            f"{key}_low" not in results
            and not key.endswith("roc_fpr")
            and not np.isfinite(value).all()
        ):
            return False
        if key.endswith("_low") and (value > results[key.removesuffix("low") + "high"]).any():
            return False
    return True


def on_grid(task: Task, state: State) -> GridState:
    return {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}


def invented(task: Task, seed: int) -> list[GridState]:
    """Return the states that follow from invented answers, from the one of a seed on."""
    found = list(hostile_states(task))
    first = seed % max(1, len(found))
    return found[first:] + found[:first]


def few_invented(task: Task, seed: int) -> list[GridState]:
    found = invented(task, seed)
    return found[:: max(1, len(found) // 2)][:2]


def only_usual(task: Task) -> list[Records]:
    return []


@dataclass(frozen=True, kw_only=True)
class Case:
    """A design of a task, and inputs that could break its laws."""

    task: type[Any]
    columns: tuple[PublicColumn, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    built: Task | None = None
    """The task, if it is not designed from options."""
    bits: tuple[int, ...] = (4, 16, 24)
    """Bits of the grids: random records are drawn on the first, worst records are on all."""
    seeded: bool = False
    """Whether the task depends on a public seed."""
    states: States = invented
    rows: Callable[[Any], list[Any]] = only_usual
    """Return worst records of this task, in addition to the usual ones."""

    @property
    def width(self) -> int:
        return len(self.columns)

    def build(self, frac_bits: int = 16, **changes: Any) -> Any:
        """Return the task on a grid of so many bits, with changed facts or options."""
        if self.built is not None:
            return self.built
        facts = {"nominal_n": 1000, "budget": Budget(1.0, 1e-6), "frac_bits": frac_bits}
        columns = {"n_features": self.width, "columns": self.columns}
        given = {**facts, **columns, **self.facts, **self.options, **changes}
        return toy_task(self.task, **given)

    def drawn(self, seed: int) -> Any:
        """Return the task on its coarsest grid, with a public seed if it has one."""
        return self.build(self.bits[0], **({"public_seed": seed} if self.seeded else {}))

    def start(self, task: Task) -> GridState:
        return on_grid(task, task.start())

    def plan(self, task: Task, silos: int = 3) -> Plan:
        return toy_plan(task, silos, columns=tuple(column.name for column in self.columns))

    def worst(self, task: Task) -> Records:
        """Return corners, copies, the middle, neighbours of these, and worse ones of the task."""
        one, d = 1 << task.frac_bits, self.width
        usual = [[v] * d for v in (one, one, -one, 0, 1, -1, one - 1)]
        usual += [([one, -one] * d)[:d], ([-one, one] * d)[:d]]
        usual += [([one, one, -one] * d)[:d], ([1, one - 1, -1, 2, -2, 0] * d)[:d]]
        found = np.array([*usual, *self.rows(task)], dtype=np.int32)
        lacking = [j for j, column in enumerate(self.columns) if column.incomplete]
        if not lacking:
            return found
        worse = [found, *(found[:6].copy() for _ in lacking)]
        for last in range(len(lacking)):
            worse[last + 1][:, lacking[last:]] = NO_VALUE
        return np.concatenate(worse)

    def between(self, frac_bits: int, n: int, seed: int = 0) -> Records:
        """Return random records of the box; a quarter of cells that may be missing is missing."""
        one, rng = 1 << frac_bits, np.random.default_rng(seed)
        records = rng.integers(-one, one + 1, (n, self.width), dtype=np.int32)
        for j, column in enumerate(self.columns):
            if column.incomplete:
                records[rng.random(n) < 0.25, j] = NO_VALUE
        return records


def family(
    name: str,
    task: type[Task],
    columns: tuple[PublicColumn, ...],
    designs: Mapping[str, Mapping[str, Any]],
    common: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> dict[str, Case]:
    """Return a case for each design of a task, by the name of the task and that of the design."""
    return {
        f"{name}, {kind}": Case(
            task=task, columns=columns, options={**(common or {}), **options}, **inputs
        )
        for kind, options in designs.items()
    }


def near(task: Task, column: PublicColumn, values: tuple[float, ...]) -> list[int]:
    """Return the steps at some values of a column, and their neighbours in the box."""
    one = 1 << task.frac_bits
    shares = (np.array(values) - column.low) / (column.high - column.low) * 2 - 1
    steps = np.rint(shares * one).astype(int)
    return np.clip(np.concatenate([steps - 1, steps, steps + 1]), -one, one).tolist()


def of_example(task: type[Task]) -> Case:
    example = example_of(task)
    budget = Budget(2.0, 1e-6) if task.private else None
    return Case(
        task=task,
        columns=example.columns,
        options=example.options,
        facts={"nominal_n": 2000, "budget": budget},
        bits=(16,),
        states=few_invented,
    )


EXAMPLES = {f"{name}, the example": of_example(task) for name, task in installed().items()}


AGE, VISITS = PublicColumn("age", 0.0, 100.0), PublicColumn("visits", 0.0, 30.0)
ILL = PublicColumn("ill", 0.0, 2.0, ("no", "mild", "bad"))

DESIGNS: dict[str, Case] = {}

# Survival -----------------------------------------------------------------------------------------

SURVIVAL = (
    PublicColumn("months", 2.0, 60.0),
    PublicColumn("died", 0.0, 1.0, ("0", "1")),
    PublicColumn("stage", 0.0, 2.0, ("I", "II", "III")),
)


WEEKS = (PublicColumn("weeks", 0.0, 52.5, step=0.5), *SURVIVAL[1:])
HOSPITALS = (*WEEKS[:2], PublicColumn("hospital", 0.0, 39.0, tuple(f"H{i}" for i in range(40))))


def at_ends_of_cells(task: Survival) -> list[Any]:
    """Return records at ends of cells and a step away, with the event and without."""
    one, column = 1 << task.frac_bits, PublicColumn("", task.low, task.high)
    some = task.horizon.ends[:: max(1, len(task.horizon.ends) // 8)]
    steps = near(task, column, (*some, task.tau))
    return [(step, side, side) for side in (-one, one) for step in steps]


for columns, designs in (
    (SURVIVAL, {"all": {}, "groups": {"by": "stage"}, "horizon": {"tau": 55.0, "at": (3.0, 40.0)}}),
    (WEEKS, {"ticks": {"time": "weeks", "by": "stage", "tau": 40.0}}),
    (HOSPITALS, {"many groups": {"time": "weeks", "by": "hospital"}}),
):
    DESIGNS |= family(
        "survival",
        Survival,
        columns,
        designs,
        {"time": "months", "event": "died"},
        bits=(8, 16, 24),
        rows=at_ends_of_cells,
    )

COX = (
    PublicColumn("months", 0.0, 60.0),
    PublicColumn("died", 0.0, 1.0, ("0", "1")),
    PublicColumn("age", 18.0, 90.0),
    PublicColumn("treated", 0.0, 1.0, ("0", "1")),
    PublicColumn("stage", 0.0, 3.0, ("I", "II", "III", "IV")),
)


def after_any_exits(task: CoxApproximate, seed: int) -> list[GridState]:
    """Return states after random exits, with any weights and cuts, of no job at all, and others."""
    rng, most = np.random.default_rng(seed), np.iinfo(np.int64).max // 4
    start = {name: value.astype(float) for name, value in task.start().items()}
    found = [
        {name: rng.integers(-most, most, value.shape) for name, value in start.items()},
        {name: np.full(value.shape, most) for name, value in start.items()},
        {name: np.full(value.shape, -most) for name, value in start.items()},
        *hostile_states(task),
    ]
    for size in (0.1, 30.0):
        start["hazard"] = np.cumsum(rng.exponential(size / task.cells, task.cells + 1))
        start["pieces"] = np.sort(rng.random(len(start["pieces"])))
        start["weights"] = rng.normal(0, size, start["weights"].shape)
        for name in ("cut", "length", "squares_cut"):
            start[name] = rng.exponential(size, 1)
        found.append(on_grid(task, start))
    return found


def exits_and_ends(task: CoxApproximate) -> list[Any]:
    one = 1 << task.frac_bits
    rows = [[one - 1, -one, -one, -one, -one], [one - 1, -one, one, one, 0]]
    return [*rows, [-one, one, one, -one, one]]


DESIGNS |= family(
    "cox-approximate",
    CoxApproximate,
    COX,
    {"all": {}, "a number": {"covariates": ("age",)}, "to a horizon": {"tau": 36.0}},
    {"time": "months", "event": "died", "nominal_events": 2500},
    facts={"nominal_n": 5000, "budget": Budget(4.0, 1e-6)},
    states=after_any_exits,
    rows=exits_and_ends,
)

COX_TABLE = (replace(COX[0], step=3.0), *COX[1:], PublicColumn("weight", 40.0, 140.0))


def between_knots(task: Cox) -> list[Any]:
    """Return records on a knot, halfway and a step beside, at the first, a middle and last time."""
    one = 1 << task.frac_bits
    gap = 2 * one // 16
    places = (-one, -one + gap, -one + gap // 2, 1, one - 1, one)
    times = (-one, 0, one - 1, one)
    return [[t, e, x, one, 0, -x] for t in times for e in (-one, one) for x in places]


DESIGNS |= family(
    "cox",
    Cox,
    COX_TABLE,
    {
        "a number": {"covariates": ("age",)},
        "categories": {"covariates": ("treated", "stage")},
        "a number and strata": {"covariates": ("age",), "strata": "stage"},
        "two numbers": {"covariates": ("age", "weight")},
        "silos": {"covariates": ("treated",), "strata": "site"},
    },
    {"time": "months", "event": "died"},
    facts={"nominal_n": 50_000, "budget": Budget(2.0, 1e-7), "silos": ("p", "q", "r")},
    rows=between_knots,
)

# Tables -------------------------------------------------------------------------------------------

TABLES = (AGE, PublicColumn("weight", 0.0, 200.0), CATEGORY, BOOLEAN, ILL)


def at_edges_of_age(task: Tabulate) -> list[Any]:
    return [[step] * 5 for step in near(task, AGE, (40.0, 50.0))]


DESIGNS |= family(
    "tabulate",
    Tabulate,
    TABLES,
    {
        "one": {"tables": [["smokes"]]},
        "many": {"tables": [["work", "smokes"], ["ill"], ["smokes", "ill"]], "tests": ["chi2"]},
        "margins": {"tables": [["ill", "work"], ["smokes", "work", "ill"], ["smokes"]]},
        "bins": {"tables": [["age", "smokes"]], "edges": {"age": [18.0, 40.0, 65.0]}},
        "means": {"means": ["age", "weight"]},
        "all": {
            "tables": [["work", "age"], ["ill", "smokes"]],
            "edges": {"age": [50.0]},
            "means": ["weight", "age"],
            "by": ["age", "smokes"],
            "weights": [3.0, 1.0, 0.5],
        },
    },
    facts={"nominal_n": 100_000},
    rows=at_edges_of_age,
)

SCORES = (
    PublicColumn("score", 0.0, 100.0),
    PublicColumn("home", 0.0, 2.0, ("own", "rent", "other")),
    PublicColumn("year", 0.0, 2.0, ("2023", "2024", "2025")),
    PublicColumn("sex", 0.0, 1.0, ("0", "1")),
    PublicColumn("default", 0.0, 1.0, ("0", "1")),
)
EDGES = {"score": (30.0, 50.0, 80.0)}


def at_edges_of_scores(task: Scorecard) -> list[Any]:
    return [[step] * 5 for step in near(task, SCORES[0], (80.0,))]


DESIGNS |= family(
    "scorecard",
    Scorecard,
    SCORES,
    {
        "plain": {"characteristics": ("home", "sex")},
        "score": {"characteristics": ("score",), "edges": EDGES},
        "years": {"characteristics": ("score", "home", "year"), "edges": EDGES, "over": "year"},
        "groups": {"characteristics": ("home",), "group": "year", "decision": "sex"},
        "all": {
            "characteristics": ("score", "home", "sex"),
            "edges": EDGES,
            "over": "year",
            "group": "sex",
            "decision": "score",
            "cutoff": 50.0,
        },
    },
    {"target": "default", "least_signal": 0.0},
    facts={"nominal_n": 10_000},
    rows=at_edges_of_scores,
)

DESIGNS |= {
    f"describe, {kind}": Case(task=Describe, columns=columns, options=options)
    for kind, columns, options in (
        ("all", (NUMBER, CATEGORY, OTHER_NUMBER, BOOLEAN), {"levels": 3}),
        ("few levels", (NUMBER, CATEGORY, OTHER_NUMBER, BOOLEAN), {"levels": 2}),
        ("levels of the plan", (NUMBER, CATEGORY, OTHER_NUMBER, BOOLEAN), {}),
        ("numbers", (NUMBER, OTHER_NUMBER), {"levels": 3}),
        ("categories", (CATEGORY, BOOLEAN), {"levels": 3}),
    )
}

DESIGNS |= family(
    "table1",
    Table1,
    TABLES,
    {
        "groups": {"by": "ill"},
        "one group": {},
        "medians": {"by": "smokes", "medians": True},
        "all": {"by": "work", "medians": True, "correlations": True},
    },
    {"most_noise": 1e6},
    facts={"nominal_n": 10_000},
)
DESIGNS["table1, categories"] = Case(
    task=Table1,
    columns=(CATEGORY, BOOLEAN, ILL),
    options={"by": "ill", "most_noise": 1e6},
)
DESIGNS["table1, numbers"] = Case(
    task=Table1,
    columns=(NUMBER, OTHER_NUMBER, BOOLEAN),
    options={"by": "smokes", "most_noise": 1e6},
)

# Look-alike records -------------------------------------------------------------------------------

PEOPLE = (AGE, CATEGORY, BOOLEAN, PublicColumn("town", 0.0, 4.0, tuple("abcde")), ILL)
TABLES_OF_FEW = {"edges": {"age": (40.0, 65.0)}, "least_signal": 0.0, "most_words": 300}

DESIGNS |= family(
    "synthesise",
    Synthesise,
    PEOPLE,
    {
        "pairs": {"structure": "pairs", "ordered": ("ill",)},
        "target": {"structure": "target", "target": "ill"},
        "star": {"structure": "star", "target": "ill"},
        "independent": {"structure": "independent"},
    },
    TABLES_OF_FEW,
    facts={"budget": Budget(4.0, 1e-6)},
)
DESIGNS["discretise"] = Case(
    task=Discretise,
    columns=(AGE, PublicColumn("pay", 0.0, 9e4), CATEGORY),
    facts={"budget": Budget(4.0, 1e-6)},
)

# Models -------------------------------------------------------------------------------------------

CLASSES = {2: ("no", "yes"), 3: ILL.categories, 7: tuple("abcdefg"), 12: tuple("abcdefghijkl")}


def any_forest(task: Task, seed: int) -> list[GridState]:
    """Return forests of mixed, huge and tiny leaves, with much and no noise: any may be public."""
    rng, one = np.random.default_rng(seed), 1 << task.frac_bits
    shape = task.start()["leaves"].shape
    leaves = [
        rng.integers(-(10**6) * one, 10**6 * one, shape),
        np.full(shape, 10**6 * one),
        rng.integers(-one, one, shape),
    ]
    return [
        {"leaves": found.astype(np.int64), "noise": np.array([noise], np.int64)}
        for found in leaves
        for noise in (0, 50 * one)
    ]


DESIGNS |= {
    f"forest, {kind}, {n} classes": Case(
        task=RandomForest,
        columns=(
            *(AGE, VISITS, CATEGORY, BOOLEAN),
            PublicColumn("ill", 0.0, n - 1.0, CLASSES[n]),
        ),
        options={"target": "ill", "kind": kind, "n_trees": 3, "depth": 3},
        states=any_forest,
        seeded=True,
    )
    for kind in ("random", "boosted")
    for n in CLASSES
}

PATIENTS = (AGE, VISITS, CATEGORY, BOOLEAN, ILL)


def any_forest_of_numbers(task: ForestRegression, seed: int) -> list[GridState]:
    """Return forests of huge and tiny leaves, after any sums of the target."""
    targets = [[1000, 1000, 1000], [0, 10**6, -(10**6)], [-5, 3, 10**9], [1000, 0, 1]]
    one = 1 << task.frac_bits
    return [
        {**forest, "target": np.array(target) * one, "target_noise": forest["noise"]}
        for forest, target in zip(any_forest(task, seed), cycle(targets))
    ]


DESIGNS |= {
    f"forest-regression, depth {depth}": Case(
        task=ForestRegression,
        columns=PATIENTS,
        options={"target": "age", "n_trees": 3, "depth": depth},
        states=any_forest_of_numbers,
        seeded=True,
    )
    for depth in (2, 4)
}


def any_shapes(task: Additive, seed: int) -> list[GridState]:
    """Return models of huge and tiny effects, with some columns left out and edges out of order."""
    rng, one = np.random.default_rng(seed), 1 << task.frac_bits
    found = []
    for size, left in ((0.0, 4), (3.0, 1), (1e6, 2), (40.0, 0)):
        state = {name: value.astype(float) for name, value in task.start().items()}
        state["edges"] = rng.uniform(-1, 1, state["edges"].shape)
        state["effects"] = rng.normal(0, size, state["effects"].shape)
        state["intercept"] = rng.normal(0, size, state["intercept"].shape)
        state["active"] = (np.arange(len(state["active"])) < left).astype(float)
        for name in {"mean", "clip"} & state.keys():
            state[name] = rng.uniform(-1, 2, 1) * one ** rng.integers(0, 2)
        found.append(on_grid(task, state))
    return found


DESIGNS |= {
    f"shapes, {n} classes": Case(
        task=ShapesClassifier,
        columns=(*PATIENTS[:-1], PublicColumn("ill", 0.0, n - 1.0, CLASSES[n])),
        options={"target": "ill"},
        states=any_shapes,
    )
    for n in CLASSES
}
DESIGNS |= {
    f"shapes-regression, {family}": Case(
        task=ShapesRegression,
        columns=PATIENTS,
        options={"target": "age", "family": family},
        states=any_shapes,
    )
    for family in ("gaussian", "poisson")
}


def any_model(task: Task, seed: int) -> list[GridState]:
    """Return states as noise may make them: any centre, any scale, any weights."""
    rng, found = np.random.default_rng(seed), []
    for size in (1.0, 1000.0):
        state = {name: v.astype(float) for name, v in task.start().items()}
        state["centre"] = np.append(rng.uniform(-1, 1, len(state["centre"]) - 1), 0)
        state["scale"] = rng.choice([1.0, 16.0], len(state["scale"]))
        state["weights"] = rng.normal(0, size, state["weights"].shape)
        for name in {"length", "target_length", "cut"} & state.keys():  # numbers of classes
            state[name] = rng.choice([-5.0, 40.0, 64.0, 500.0], 1)
        if "products" in state:
            state["products"] = rng.normal(0, size, state["products"].shape)
        found.append(on_grid(task, state))
    return found


DESIGNS |= family(
    "logistic",
    Logistic,
    PATIENTS,
    {
        "two classes": {"target": "smokes", "rounds": 4},
        "three classes": {"target": "ill", "rounds": 4},
        "two classes, asked again": {"target": "smokes", "rounds": 6},
        "three classes, asked again": {"target": "ill", "rounds": 6},
        "balanced": {"target": "ill", "rounds": 3, "class_weight": "balanced"},
        "short rows": {"target": "smokes", "rounds": 3, "clip": 0.05},
        "long rows": {"target": "ill", "rounds": 3, "clip": 32.0},
    },
    states=any_model,
)
DESIGNS |= family(
    "linear",
    Linear,
    PATIENTS,
    {"plain": {}, "sandwich": {"sandwich": True}, "short rows": {"clip": 0.05},
     "long rows": {"clip": 32.0}},
    {"target": "age"},
    states=any_model,
)  # fmt: skip

INCOMPLETE = (replace(AGE, incomplete=True), VISITS, CATEGORY, replace(BOOLEAN, incomplete=True))
DESIGNS |= family(
    "imputed",
    ImputedRegression,
    INCOMPLETE,
    {
        "counts": {"target": "visits", "family": "poisson"},
        "one number": {"target": "smokes", "family": "binomial", "covariates": ("age", "visits")},
    },
    facts={"nominal_n": 40_000, "budget": Budget(4.0, 1e-6)},
    bits=(16,),
    states=few_invented,
)

DESIGNS |= family(
    "glm",
    GeneralizedLinear,
    PATIENTS,
    {
        "gaussian": {"target": "age"},
        "sandwich": {"target": "age", "sandwich": True, "offset": "visits"},
        "binomial": {"target": "smokes", "family": "binomial", "weights": "visits"},
        "poisson": {"target": "visits", "family": "poisson", "exposure": "age"},
        "negative binomial": {"target": "visits", "family": "negative-binomial", "sandwich": False},
        "gamma": {"target": "age", "family": "gamma", "covariates": ("ill", "visits")},
        "by silo": {"target": "visits", "family": "poisson", "by_silo": True},
    },
    facts={"nominal_n": 20_000, "silos": ("p", "q", "r")},
)

DESIGNS |= family(
    "treatment effect",
    TreatmentEffect,
    (*PATIENTS, PublicColumn("died", 0.0, 1.0, ("0", "1"))),
    {
        "a number": {"outcome": "age", "covariates": ("visits", "work", "ill")},
        "two categories": {"outcome": "died", "covariates": ("visits", "work")},
    },
    {"treatment": "smokes"},
    facts={"nominal_n": 20_000},
    bits=(16,),
    states=few_invented,
)

BAYES = (AGE, VISITS, PublicColumn("calls", 0.0, 9.0), CATEGORY, BOOLEAN, ILL)
COUNTS = {"visits": "counts", "calls": "counts"}

DESIGNS |= family(
    "naive Bayes",
    NaiveBayes,
    BAYES,
    {
        "binned": {"numbers": "binned"},
        "gaussian": {"numbers": "gaussian"},
        "counts": {"numbers": COUNTS, "most_counts": 5.0},
        "few counts": {"numbers": COUNTS, "most_counts": 1000.0},
        "all": {"numbers": {"age": "gaussian"}, "bins": 7},
    },
    {"target": "ill"},
)

# Outliers -----------------------------------------------------------------------------------------

WARDS = (
    *(PublicColumn(f"x{j}", -12.0, 12.0) for j in range(3)),
    PublicColumn("ward", 0.0, 2.0, tuple("abc")),
)


def all_noise(task: Outliers, seed: int) -> list[GridState]:
    rng = np.random.default_rng(seed)
    noisy = {name: rng.normal(0, 50, value.shape) for name, value in task.start().items()}
    noisy["noise"] = np.abs(noisy["noise"])
    return [on_grid(task, noisy)]


DESIGNS |= family(
    "outliers",
    Outliers,
    WARDS,
    {m: {"method": m} for m in ("zscore", "mahalanobis", "robust", "density")},
    {"count_share": 0.2, "group": "ward"},
    facts={"nominal_n": 500},
    bits=(16,),
    states=all_noise,
)

# Evaluation ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LinearClasses(Count):
    """A classifier whose released weights make log-odds of the first columns."""

    name: ClassVar[str] = "linear-double"
    target: int
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        return {"weights": np.zeros((len(self.classes), self.n_features - 1))}

    def probabilities(self, results: Mapping[str, Floats], records: Records) -> Floats:
        features = np.delete(records, self.target, axis=1) / (1 << self.frac_bits)
        odds = np.exp(features @ results["weights"].T)
        shares: Floats = odds / odds.sum(axis=1, keepdims=True)
        return shares


@dataclass(frozen=True, kw_only=True)
class Line(Count):
    """A regressor whose released weights are those of the other columns, in [-1, 1]."""

    name: ClassVar[str] = "line-double"
    target: int

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        return {"weights": np.zeros(self.n_features - 1)}

    def predict(self, results: Mapping[str, Floats], records: Records) -> Floats:
        features = np.delete(records, self.target, axis=1) / (1 << self.frac_bits)
        predicted: Floats = features @ results["weights"]
        return predicted


WEIGHTS = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
EVALUATIONS = {
    "scores of two classes": Evaluation(
        n_features=3, classes=("0", "1"), truth=0, score=1, n_bins=8
    ),
    "scores on any scale": Evaluation(
        n_features=3, classes=("0", "1"), truth=0, score=1, probability=False, n_bins=8
    ),
    "score and prediction": Evaluation(
        n_features=3, classes=("0", "1"), truth=0, score=1, prediction=2, n_bins=8
    ),
    "predictions of four classes": Evaluation(
        n_features=3, classes=("a", "b", "c", "d"), truth=0, prediction=1, silos=("p", "q")
    ),
    "a model of three classes": Evaluation(
        n_features=3,
        classes=("x", "y", "z"),
        truth=2,
        model=LinearClasses(n_features=3, target=2, classes=("x", "y", "z")),
        released={"weights": WEIGHTS},
        n_bins=6,
    ),
    "numbers": RegressionEvaluation(
        n_features=3, truth=0, low=-3.0, high=5.0, bound=2.0, prediction=1,
        prediction_low=-3.0, prediction_high=5.0,
    ),
    "a model of numbers": RegressionEvaluation(
        n_features=3,
        truth=2,
        low=-1.0,
        high=1.0,
        bound=0.3,
        model=Line(n_features=3, target=2),
        released={"weights": (1e300, -1e300)},
        silos=("p", "q", "r"),
    ),
    "centres": ClusterQuality(
        n_features=3, centres=((0, 0, 0), (ONE, -ONE, ONE), (0, 0, 0)), n_bins=5
    ),
}  # fmt: skip


def all_zeros(task: Task, seed: int) -> list[GridState]:
    return [{name: np.zeros(v.shape, np.int64) for name, v in task.start().items()}]


DESIGNS |= {
    f"evaluation, {kind}": Case(
        task=type(task),
        columns=tuple(PublicColumn(f"x{j}", -1.0, 1.0) for j in range(3)),
        built=task,
        bits=(16,),
        states=all_zeros,
    )
    for kind, task in EVALUATIONS.items()
}

CASES = EXAMPLES | DESIGNS
