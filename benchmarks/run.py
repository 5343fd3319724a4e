"""Speed, memory and size of cloister beside named peers, measured in one run on one thread.

    python benchmarks/run.py [--only SECTION ...] [--data FOLDER] [--fastlloyd CHECKOUT]

prints a table. A run of all sections writes `results.json` and `docs/img/roofline.svg` as well,
from which the page on benchmarks is made. A time is the least of several, of the processor and not
of the clock; ours and the peer's take turns, so that their ratio is of one machine in one minute.
FOLDER has adult.csv.gz, without which a row on that table is left out; so are, without a CHECKOUT,
those beside the code published with the FastLloyd paper (github.com/D-Diaa/FastLloyd).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from cloister import DPKMeans
from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.compiled import (
    CHOICE,
    NUMPY,
    can_order,
    instruction_set,
    instruction_sets,
    ordered,
)
from cloister.data import array_records, read_source
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget
from cloister.privacy.noise import DiscreteNoise, NoiseKind
from cloister.protocol.summing import LocalStep
from cloister.protocol.task import PublicFacts
from cloister.tasks.clipped import clip_to_unit, sum_clipped_near
from cloister.tasks.clustering.kmeans import MOST_IN_ORDER, FastLloyd
from cloister.tasks.clustering.lloyd_kernel import nearest_centres, sum_near_centres

Shape = tuple[int, int, int]
"""Records, columns, clusters."""

MEAN_OF: tuple[Shape, ...] = ((1_000_000, 2, 5), (1_000_000, 2, 100), (1_000_000, 8, 10))
SHAPES: tuple[Shape, ...] = (*MEAN_OF, (500_000, 16, 16), (500_000, 32, 32), (60_000, 784, 10))
FASTER = {"avx512": (6.0, 3.0, 1.0), "avx2": (5.0, 2.5, 0.9)}
"""Bars of an instruction set: of the mean, of a shape with up to 8 columns, of one with more."""
FASTER_IN_ORDER = 9.0
CLIPPED = {(1_000_000, 2, 100): 20.0, (1_000_000, 8, 10): 3.0}
COMPARED = {100_000: 1 / 1.3, 1_000_000: 1 / 1.05}
"""Bars of jobs whose sums are compared with rows, by the number of records."""
IN_ORDER, ITERATION = "in order", "iteration of scikit-learn"
BUDGET = Budget(1.0, 1e-6)
BEYOND = ("numpy", "scipy", "scikit-learn", "pandas", "pyarrow")
HERE = Path(__file__).parent
RATE = "million rows/s"
SIZES, SPEEDS = ("MB", "MiB"), ("million/s", RATE, "Gflop/s", "GB/s")
REPEATS = 7
ENOUGH = 15.0  # seconds after which a candidate is not repeated


@dataclass(frozen=True)
class Result:
    """One measurement beside its peer.

    Parameters
    ----------
    bar, limit : float or None
        What is asked of the ratio, and of the value itself: at most this of a size or a time, at
        least this of a speed. Ratios are speeds, but of sizes.
    by : str
        The way to compute it, where there are several: an instruction set, `numpy`, `in order`.
    """

    what: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    bar: float | None = None
    limit: float | None = None
    by: str = ""
    section: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the peer, or as large."""
        if self.peer_value is None:
            return None
        is_time = self.unit in ("ms", "s")
        return self.peer_value / self.value if is_time else self.value / self.peer_value

    @property
    def asked(self) -> str:
        """The bar in words."""
        most = "at most" if self.unit in SIZES else "at least"
        if self.bar is not None:
            return f"{most} {self.bar:.3g} x"
        if self.limit is not None:
            return f"{'at least' if self.unit in SPEEDS else 'at most'} {self.limit:g} {self.unit}"
        return ""

    @property
    def holds(self) -> bool | None:
        """Whether the bar is cleared; None where there is none."""
        if self.bar is not None and self.ratio is not None:
            return self.ratio <= self.bar if self.unit in SIZES else self.ratio >= self.bar
        if self.limit is not None:
            return self.value >= self.limit if self.unit in SPEEDS else self.value <= self.limit
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return what goes into the document."""
        return asdict(self) | {"ratio": self.ratio, "asked": self.asked, "holds": self.holds}


def beside(
    what: str, ours: float, peer: str, theirs: float, bar: float | None = None, by: str = ""
) -> Result:
    """Return two times, given in seconds."""
    return Result(what, 1e3 * ours, "ms", peer, 1e3 * theirs, bar, by=by)


def turns(
    candidates: Mapping[str, Callable[[], Any]], repeats: int = REPEATS
) -> tuple[dict[str, float], dict[str, Any]]:
    """Call candidates in turns; return the least processor seconds and the answer of each."""
    least = dict.fromkeys(candidates, math.inf)
    spent = dict.fromkeys(candidates, 0.0)
    answers: dict[str, Any] = {}
    for _ in range(repeats):
        for name, call in candidates.items():
            if spent[name] < ENOUGH:
                begun = time.process_time()
                answers[name] = call()
                taken = time.process_time() - begun
                least[name] = min(least[name], taken)
                spent[name] += taken
    return least, answers


def on(isa: str, call: Callable[[], Any]) -> Any:
    """Call with the loops of one instruction set."""
    before = os.environ.get(CHOICE, "")
    os.environ[CHOICE] = isa
    instruction_set.cache_clear()
    try:
        return call()
    finally:
        os.environ[CHOICE] = before
        instruction_set.cache_clear()


# --- the loops over records -----------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Uniform records, centres among them, and both on the grid."""

    X: Any
    centres: Any
    records: Any
    steps: Any
    one: int
    radius_squared: int

    @classmethod
    def of(cls, shape: Shape) -> Problem:
        """Return the same problem for the same shape."""
        n, d, k = shape
        rng = np.random.default_rng(0)
        X, grid = rng.uniform(-1, 1, (n, d)).astype(np.float32), _schema(d).grid()
        steps = grid.encode(rng.uniform(-1, 1, (k, d))).astype(np.int64)
        facts = PublicFacts(n_features=d, nominal_n=n, budget=BUDGET)
        task = FastLloyd.design(facts, FastLloyd.Options(n_clusters=k, estimate=False))
        radius_squared = task.payload(1).radius_squared
        return cls(X, steps / grid.one, grid.encode(X), steps, grid.one, radius_squared)

    def step(self, records: Any = None) -> Any:
        """Return the sums and numbers of a local step of FastLloyd."""
        return sum_near_centres(
            self.records if records is None else records,
            self.steps,
            radius_squared=self.radius_squared,
            relative=True,
            count_weight=1,
            one=self.one,
        )

    def clipped_step(self, way: Callable[..., Any] = sum_clipped_near) -> Any:
        """Return the sums and numbers of a local step that clips what is too long."""
        radii = np.full(len(self.steps), math.isqrt(self.radius_squared))
        return way(self.records, self.steps, radii, self.one)

    def encoded(self) -> Any:
        """Return the records as a job reads them: judged, clipped and rounded."""
        return list(array_records(self.X, _schema(self.X.shape[1]).grid()))

    def peers(self) -> dict[str, Callable[[], Any]]:
        """Return fits of scikit-learn of 1 and 6 iterations, whose difference is 5 iterations."""
        return {str(iterations): partial(self._fit, iterations) for iterations in (1, 6)}

    def _fit(self, iterations: int) -> None:
        start = self.centres.astype(np.float32)
        model = KMeans(len(start), init=start, n_init=1, max_iter=iterations, tol=0).fit(self.X)
        if model.n_iter_ != iterations:
            raise RuntimeError(f"scikit-learn made {model.n_iter_} iterations, not {iterations}.")


def iteration(seconds: Mapping[str, float]) -> float:
    """Return the time of one iteration of scikit-learn, of those of the fits of `Problem.peers`."""
    return (seconds["6"] - seconds["1"]) / 5


def steps(shapes: Sequence[Shape] = SHAPES, repeats: int = REPEATS) -> Iterator[Result]:
    """Time a local step by each instruction set, in NumPy, and on ordered records."""
    times: dict[Shape, dict[str, float]] = {}
    for shape in shapes:
        problem = Problem.of(shape)
        ways = {isa: partial(on, isa, problem.step) for isa in instruction_sets()}
        if can_order() and shape[1] <= MOST_IN_ORDER:
            built, tables = turns({"": partial(ordered, [problem.records])}, 3)
            ways[IN_ORDER] = partial(problem.step, tables[""])
        seconds, answers = turns(problem.peers() | ways, repeats)
        peer = iteration(seconds)
        for way in ways:
            same(answers[way], answers[NUMPY])
            least = FASTER[way][1 + (shape[1] > 8)] if way in FASTER else None
            yield beside(_name(shape), seconds[way], ITERATION, peer, least, way)
        if IN_ORDER in ways:
            yield beside(_name(shape), built[""], ITERATION, peer, by="put in order once")
        times[shape] = {way: seconds[way] for way in ways} | {ITERATION: peer}
    if set(MEAN_OF) <= set(shapes):
        yield from means([times[shape] for shape in MEAN_OF])


def means(times: Sequence[Mapping[str, float]]) -> Iterator[Result]:
    """Return geometric means over some shapes; where none are in order, the best other way does."""
    best = instruction_sets()[0]

    def mean(way: str) -> float:
        return math.prod(each.get(way, each[best]) for each in times) ** (1 / len(times))

    for way in (*instruction_sets(), *([IN_ORDER] if any(IN_ORDER in t for t in times) else [])):
        least = FASTER_IN_ORDER if way == IN_ORDER else FASTER.get(way, (None,))[0]
        what = "geometric mean of the first three"
        yield beside(what, mean(way), ITERATION, mean(ITERATION), least, way)


def same(ours: Any, other: Any) -> None:
    """Raise if any integer differs."""
    if not np.array_equal(ours, other):
        raise AssertionError("two ways to compute one sum gave different integers.")


def clipped(shapes: Sequence[Shape] = tuple(CLIPPED), repeats: int = REPEATS) -> Iterator[Result]:
    """Time sums of clipped differences beside NumPy, now and as version 0.2 had it."""
    for shape in shapes:
        problem = Problem.of(shape)
        before = "NumPy of version 0.2"
        ways = {isa: partial(on, isa, problem.clipped_step) for isa in instruction_sets()}
        peer = {before: partial(on, NUMPY, partial(problem.clipped_step, _clipped_before))}
        seconds, answers = turns(ways | peer, repeats)
        for way in ways:
            same(np.column_stack(answers[way]), answers[before])
            least = CLIPPED.get(shape) if way in FASTER else None
            yield beside(_name(shape), seconds[way], before, seconds[before], least, way)


def _clipped_before(records: Any, centres: Any, radii: Any, unit: int) -> Any:
    """Return sums and numbers of clipped differences, through a row of 0 and 1 for each centre."""
    sums = np.zeros((len(centres), records.shape[1] + 1), dtype=np.int64)
    rows = max(256, (1 << 19) // records.shape[1])
    for part in (records[first : first + rows] for first in range(0, len(records), rows)):
        labels = nearest_centres(part, centres)
        moved = clip_to_unit(part - centres[labels], radii[labels], unit)
        one_hot = np.zeros((len(centres), len(part)))
        one_hot[labels, np.arange(len(part))] = 1.0
        sums[:, :-1] += (one_hot @ moved.astype(np.float64)).astype(np.int64)
        sums[:, -1] += np.bincount(labels, minlength=len(centres))
    return sums


def encode(shape: Shape = (1_000_000, 8, 10), repeats: int = REPEATS) -> Iterator[Result]:
    """Time judging, clipping and rounding a float32 table, once a job."""
    problem = Problem.of(shape)
    ways = {isa: partial(on, isa, problem.encoded) for isa in instruction_sets()}
    seconds, answers = turns(problem.peers() | ways, repeats)
    peer = iteration(seconds)
    for way in ways:
        same(np.concatenate(answers[way]), problem.records)
        least = 1.0 if way in FASTER else None
        yield beside(_name(shape), seconds[way], ITERATION, peer, least, way)
    best = seconds[instruction_sets()[0]]
    yield Result(_name(shape), 1e3 * best, "ms", limit=15.0, by=instruction_sets()[0])


# --- whole fits -----------------------------------------------------------------------------------


def clustered(n: int, d: int, k: int) -> Any:
    """Return float32 records of k normal clusters in the box, made without other large arrays."""
    rng = np.random.default_rng(0)
    middles = rng.uniform(-0.8, 0.8, (k, d))
    X = np.empty((n, d), dtype=np.float32)
    for part in np.array_split(X, max(1, n // 100_000)):
        part[:] = middles[rng.integers(k, size=len(part))] + rng.normal(0, 0.05, part.shape)
    return X.clip(-1, 1, out=X)


def fit(X: Any, n_clusters: int, algorithm: str) -> None:
    """Fit one of our algorithms, or scikit-learn's KMeans with one start."""
    if algorithm == "KMeans":
        KMeans(n_clusters, n_init=1, random_state=0).fit(X)
        return
    DPKMeans(
        n_clusters,
        epsilon=1.0,
        bounds=(-1, 1),
        nominal_n=len(X),  # public benchmark data
        algorithm=algorithm,
        random_state=0,
    ).fit(X)


def kmeans(data: Path | None = None, shape: Shape = (1_000_000, 8, 10)) -> Iterator[Result]:
    """Time whole fits of k-means."""
    tables: list[tuple[str, Any, int, dict[str, float]]] = [
        (_name(shape), clustered(*shape), shape[2], {"fastlloyd": 5.0, "auto": 2.0})
    ]
    if data:
        from cloister_lab.experiments.datasets import load

        adult = load("adult", convention="fastlloyd-paper", data_dir=data)
        tables.append(
            ("adult", adult.values.astype(np.float32), adult.n_clusters, {"auto": 1 / 1.5})
        )
    for what, X, k, bars in tables:
        names = ("KMeans", "fastlloyd", "auto")
        seconds, _ = turns({name: partial(fit, X, k, name) for name in names}, 5)
        for name in names[1:]:
            bar, peer = bars.get(name), "KMeans(n_init=1) of scikit-learn"
            yield beside(f"{name}, {what}", seconds[name], peer, seconds["KMeans"], bar)


MEMORY = (
    ("fastlloyd", 4, 10, 1.3),
    ("auto", 4, 10, 1.3),
    ("fastlloyd", 2, 150, 2.5),  # so few columns and many clusters are put in order
    ("KMeans", 4, 10, None),
)
"""Algorithm, columns, clusters, and the bar."""


def memory(cells: int = 40_000_000) -> Iterator[Result]:
    """Measure how far a fit raises the most memory that its process has had."""
    for algorithm, d, k, most in MEMORY:
        shape = cells // d, d, k
        command = [sys.executable, "-W", "ignore", __file__, "--one-fit", algorithm]
        raised = float(subprocess.check_output([*command, *map(str, shape)], text=True))
        what = f"{algorithm}, {_name(shape)}{', in order' if k == 150 else ''}"
        yield Result(what, raised, "MB", "the float32 table", 4 * cells / 1e6, most)


def _one_fit(algorithm: str, n: str, d: str, k: str) -> None:
    fit(clustered(100_000, int(d), int(k)), int(k), algorithm)  # what is imported late
    X = clustered(int(n), int(d), int(k))
    before = peak()
    fit(X, int(k), algorithm)
    print(peak() - before)


def peak() -> float:
    """Return the most memory this process has had, in megabytes (Linux only)."""
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent's, too
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6


# --- files ----------------------------------------------------------------------------------------


def files(rows: int = 1_000_000, cached: int = 5_000_000) -> Iterator[Result]:
    """Count the rows that are read in a second, and those of a later pass over cached records."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    d, k = 8, 10
    problem, schema = Problem.of((rows, d, k)), _schema(d)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = pa.table(list(problem.X.T), names=list(schema.names))
        csv.write_csv(table, folder / "x.csv")
        parquet.write_table(table, folder / "x.parquet")
        one_thread = csv.ReadOptions(use_threads=False)
        peers: dict[str, Callable[[], Any]] = {
            "csv": lambda: csv.read_csv(folder / "x.csv", one_thread),
            "parquet": lambda: parquet.read_table(folder / "x.parquet", use_threads=False),
        }
        for kind, least in (("csv", 0.8), ("parquet", 0.6)):
            read = partial(read_source, folder / f"x.{kind}", schema)
            seconds, answers = turns({"ours": read, "pyarrow": peers[kind]}, 4)
            cells = np.column_stack(answers["pyarrow"].columns)
            same(np.concatenate(list(answers["ours"])), schema.grid().encode(cells))
            ours, peer = (rows / seconds[name] / 1e6 for name in ("ours", "pyarrow"))
            yield Result(
                f"{kind}, {rows:,} rows of {d} columns", ours, RATE, "pyarrow alone", peer, least
            )
        times = -(-cached // rows)
        with parquet.ParquetWriter(folder / "large.parquet", table.schema) as writer:
            for _ in range(times):
                writer.write_table(table)
        records = read_source(folder / "large.parquet", schema, cache_dir=folder)
        seconds, answers = turns(
            {
                "ours": lambda: sum(problem.step(chunk) for chunk in records),
                "memory": lambda: sum(problem.step() for _ in range(times)),
            },
            4,
        )
        same(answers["ours"], answers["memory"])
        ours, peer = (times * rows / seconds[name] / 1e6 for name in ("ours", "memory"))
        what = f"later pass with its step over {times * rows:,} cached rows, k={k}"
        yield Result(what, ours, RATE, "the same step over an array", peer, limit=100.0)


# --- the published code ---------------------------------------------------------------------------


def published(checkout: Path | None = None, shapes: Sequence[Shape] = MEAN_OF) -> Iterator[Result]:
    """Time a whole local step beside the one published with the FastLloyd paper."""
    if checkout is None:
        return
    Client, Params = _published(checkout)
    for shape in shapes:
        problem, (n, d, k) = Problem.of(shape), shape
        params = Params(dim=d, k=k, data_size=n, num_clients=1, method="diagonal_then_frac")
        client = Client(0, problem.records, params)  # the same 16 bits behind the point as ours
        client.centroids = problem.centres
        params.max_dist = math.sqrt(problem.radius_squared) / problem.one
        peer = f"published FastLloyd, {_commit(checkout)}"
        seconds, answers = turns({"ours": problem.step, peer: partial(client.step, params)}, 3)
        counts = answers["ours"][:, -1]
        same(answers[peer][1][counts > 0], counts[counts > 0])  # it counts no cluster as empty
        yield beside(_name(shape), seconds["ours"], peer, seconds[peer], 60.0)


def _published(checkout: Path) -> tuple[Any, Any]:
    """Return its client and its parameters; the step needs no noise, so no diffprivlib."""
    try:
        import diffprivlib.mechanisms  # noqa: F401
    except ImportError:
        noise = ModuleType("diffprivlib.mechanisms")
        noise.GaussianAnalytic = noise.Laplace = None  # type: ignore[attr-defined]
        sys.modules |= {"diffprivlib": ModuleType("diffprivlib"), "diffprivlib.mechanisms": noise}
    sys.path.insert(0, str(checkout.resolve()))
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("data").mkdir()  # which its configuration lists when it is imported
        from configs import Params
        from parties import UnmaskedClient

    return UnmaskedClient, Params


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


# --- rounds ---------------------------------------------------------------------------------------


def https() -> Iterator[Result]:
    """Time rounds of two silos over HTTPS; `federation.py` has more of them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "federation.json"
        command = [sys.executable, str(HERE / "federation.py"), "--silos", "2", "--out", str(out)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        for found in json.loads(out.read_text())["results"]:
            if found["bar"]:
                most = float(re.findall(r"[\d.]+", found["bar"])[0])
                if found["ratio"]:
                    yield Result(found["what"], found["ratio"], "echoes", found["peer"], limit=most)
                else:
                    yield Result(found["what"], found["value"], found["unit"], limit=most)


def whole_round(
    silos: int = 10, n_clusters: int = 50, n_features: int = 100, rounds: int = 60
) -> Iterator[Result]:
    """Time a masked, noised round of all parties without records.

    The peer is OpenDP's discrete Gaussian for as many values: exact noise of that length is the
    least any such round needs, and OpenDP is the implementation others would take.
    """
    words = n_clusters * (n_features + 1)
    plan = make_plan(
        FastLloyd,
        _schema(n_features),
        [f"silo-{index}" for index in range(silos)],
        budget=BUDGET,
        nominal_n=100_000,
        n_clusters=n_clusters,
        rounds=rounds,
    )
    times: list[float] = []
    run_plan(
        plan,
        {silo: [] for silo in plan.silos},
        on_round=lambda _: times.append(time.process_time()),
    )
    ours = float(np.diff(times).min())
    scale = plan.noise_scale(plan.task.blocks(1)[0])
    seconds, _ = turns({"noise": lambda: _opendp("gaussian", scale, words)})
    what = f"masked, noised round of {silos} silos, k={n_clusters}, d={n_features}, no records"
    noise = f"OpenDP discrete Gaussian, {words} values"
    yield beside(what, ours, noise, seconds["noise"], 1.0)


def compared(sizes: Sequence[int] = tuple(COMPARED), repeats: int = REPEATS) -> Iterator[Result]:
    """Time jobs of three silos that compare their sums with rows, beside jobs that do not."""
    one, rng = 1 << 16, np.random.default_rng(0)
    silos = ("a", "b", "c")
    for n in sizes:
        for d, k in ((2, 3), (8, 16), (32, 64)):
            points = np.rint(np.clip(rng.normal(0, 0.3, (n, d)), -1, 1) * one).astype(np.int32)
            records = dict(zip(silos, ([part] for part in np.array_split(points, 3)), strict=True))
            plan = make_plan(FastLloyd, _schema(d), silos, budget=BUDGET, nominal_n=n, n_clusters=k)
            run = partial(run_plan, plan, records)
            seconds, _ = turns({"compared": run, "not": partial(_uncompared, run)}, repeats)
            what = f"fastlloyd, {_name((n, d, k))}, {plan.rounds} rounds"
            yield beside(
                what, seconds["compared"], "no comparison", seconds["not"], COMPARED.get(n)
            )


def _uncompared(run: Callable[[], Any]) -> Any:
    """Run a job whose silos send the sums of the kernel unseen."""
    checked = LocalStep.checked
    # typed as the method that it replaces
    LocalStep.checked = lambda step, chunks: (step.total(chunks), step.manner)  # type: ignore[method-assign]
    try:
        return run()
    finally:
        LocalStep.checked = checked  # type: ignore[method-assign]


def samplers(size: int = 1_000_000, peer_size: int = 20_000) -> Iterator[Result]:
    """Compare exact samplers by the values they draw in a second."""
    noise = DiscreteNoise()
    kinds: tuple[NoiseKind, ...] = ("gaussian", "laplace")
    for kind in kinds:
        for scale in (10, 1 << 40):
            ways = {
                "ours": partial(noise.draw, kind, scale, size),
                "OpenDP": partial(_opendp, kind, scale, peer_size),
            }
            seconds, _ = turns(ways, 3)
            ours = size / seconds["ours"] / 1e6
            peer = peer_size / seconds["OpenDP"] / 1e6
            what = f"discrete {kind}, scale {scale:.3g}"
            yield Result(what, ours, "million/s", "OpenDP", peer, limit=1.0)


def _opendp(kind: NoiseKind, scale: float, size: int) -> None:
    """Add OpenDP's exact integer noise to zeros."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if kind == "gaussian":
        mechanism = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), float(scale))
    else:
        mechanism = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), float(scale))
    mechanism([0] * size)


# --- the package ----------------------------------------------------------------------------------


IMPORTS = (
    ("import cloister", "import numpy", 1.0),
    ("from cloister import DPKMeans", "import sklearn.cluster", 0.8),
)
DESCRIBE = 0.2
"""Least speed of the command `describe` over that of pandas, which adds no noise and no picture."""
DESCRIBED = """dataset = "described"
unit = "row"
columns = [
  { name = "age", type = "integer", min = 18, max = 90 },
  { name = "income", type = "number", min = 0, max = 100000 },
  { name = "sex", type = "category", categories = ["f", "m"] },
]
"""


def imports(repeats: int = 9) -> Iterator[Result]:
    """Take processor time of imports in fresh processes, less the interpreter's own start."""
    for ours, peer, least in IMPORTS:
        times = [(_fresh(ours), _fresh(peer)) for _ in range(repeats)]
        mine, theirs = (min(taken) for taken in zip(*times, strict=True))
        yield beside(ours, mine, peer, theirs, least)


def _fresh(code: str) -> float:
    """Return processor seconds of code in a process of its own, less the start of Python."""
    clock = "time.process_time()"
    timed = f"import sys, time; begin = {clock}\n{code}\nprint({clock} - begin, file=sys.stderr)"
    command = [sys.executable, "-W", "ignore", "-c", timed]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stderr.splitlines()[-1])


def commands(rows: int = 2000, repeats: int = 5) -> Iterator[Result]:
    """Take processor time of a whole command: plan, ledger, one round, report."""
    names = ("north", "east", "south")
    options = ["--epsilon", "1", "--nominal-n", str(3 * rows), "--cap-epsilon", "3"]
    with tempfile.TemporaryDirectory() as made, chdir(made):
        Path("schema.toml").write_text(DESCRIBED)
        rng = np.random.default_rng(0)
        for name in names:
            lines = zip(
                rng.integers(18, 91, rows),
                rng.uniform(0, 9e4, rows).round(2),
                rng.choice(["f", "m"], rows),
                strict=True,
            )
            text = "".join(f"{age},{income},{sex}\n" for age, income, sex in lines)
            Path(f"{name}.csv").write_text(f"age,income,sex\n{text}")
        files = [f"{name}.csv" for name in names]
        ours, theirs = math.inf, math.inf
        for turn in range(repeats):
            out = ["--out", f"out{turn}", "--ledger", f"ledger{turn}.db"]
            words = ["describe", *files, "--schema", "schema.toml", *options, *out]
            ours = min(ours, _fresh(f"from cloister.cli import main; main({words})"))
            read = f"pd.concat(map(pd.read_csv, {files}))"
            theirs = min(
                theirs, _fresh(f"import pandas as pd; {read}.describe(include='all').to_html()")
            )
    what = f"cloister describe on 3 files of {rows:,} rows, with report"
    yield beside(what, ours, "pandas: describe, to_html", theirs, DESCRIBE)


def install() -> Iterator[Result]:
    """Add up the files that the base install ships, without the five large packages.

    Byte code does not count, since Python writes it itself.
    """
    names = _closure("cloister") - set(BEYOND)
    total, large = (sum(map(_size, group)) / 1e6 for group in (names, BEYOND))
    what = f"base install beyond {', '.join(BEYOND)} ({len(names)} packages)"
    yield Result(what, total, "MB", "those five", large, limit=150.0)


def _closure(package: str) -> set[str]:
    """Return a package's run-time dependencies and theirs, without extras."""
    found: set[str] = set()
    queue = [package]
    while queue:
        for text in importlib.metadata.requires(queue.pop()) or ():
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and name not in found:
                found.add(name)
                queue.append(name)
    return found


def _size(package: str) -> int:
    """Return the bytes of a package's installed files but byte code."""
    files = importlib.metadata.files(package) or ()
    paths = (Path(str(file.locate())) for file in files if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in paths if path.is_file())


# --- the roofline ---------------------------------------------------------------------------------

SPEED, NEAR, FAR = "products of float32 matrices", "reading 8 MB", "reading 512 MB"


def roofs() -> Iterator[Result]:
    """Measure what one core of this machine can do at most: operations, and bytes of memory."""
    matrix = np.ones((2048, 2048), dtype=np.float32)
    near, far = (np.ones(size, dtype=np.float32) for size in (2_000_000, 128_000_000))
    seconds, _ = turns(
        {
            SPEED: lambda: matrix @ matrix,
            NEAR: lambda: [float(near @ near) for _ in range(10)],
            FAR: lambda: float(far @ far),
        }
    )
    yield Result(SPEED, 2 * 2048**3 / seconds[SPEED] / 1e9, "Gflop/s")
    yield Result(NEAR, 10 * near.nbytes / seconds[NEAR] / 1e9, "GB/s")
    yield Result(FAR, far.nbytes / seconds[FAR] / 1e9, "GB/s")


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw what each step reaches under those roofs.

    A step needs ``2 k d`` operations for the scores of a record and reads its ``4 d`` bytes.
    """
    roof = {found.what: found.value for found in results if found.section == "roofs"}
    times = {(r.what, r.by): r for r in results if r.section == "steps"}
    best = instruction_sets()[0]
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    intensity = np.geomspace(0.5, 128, 200)
    for name, style in ((NEAR, "-"), (FAR, "--")):
        reached = np.minimum(intensity * roof[name], roof[SPEED])
        axes.plot(intensity, reached, "k" + style, label=f"{name}: {roof[name]:.0f} GB/s")
    for n, d, k in SHAPES:
        found = times[_name((n, d, k)), best]
        taken = {
            best: found.value,
            "scikit-learn": found.peer_value,
            NUMPY: times[found.what, NUMPY].value,
        }
        for (name, ms), style in zip(taken.items(), ("oC0", "^C1", "sC2"), strict=False):
            label = name if (n, d, k) == SHAPES[0] else None
            axes.plot(k / 2, 2e-6 * n * k * d / ms, style, label=label)
        top = k / 2, 2e-6 * n * k * d / min(taken.values())
        below = -14 if d > 100 else 6  # it does as many for a byte as another shape
        axes.annotate(f"d={d}, k={k}", top, (0, below), textcoords="offset points", ha="center")
    axes.set(xscale="log", yscale="log", xlabel="operations for a byte of records")
    axes.set(ylabel="Gflop/s, one core", title=f"A local step: {machine()}")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, metadata={"Date": None})


# --- all together ---------------------------------------------------------------------------------

SECTIONS: dict[str, Callable[..., Iterator[Result]]] = {
    "steps": steps,
    "clipped": clipped,
    "encode": encode,
    "kmeans": kmeans,
    "memory": memory,
    "files": files,
    "published": published,
    "https": https,
    "round": whole_round,
    "compared": compared,
    "samplers": samplers,
    "imports": imports,
    "commands": commands,
    "install": install,
    "roofs": roofs,
}


def _schema(n_features: int) -> Schema:
    columns = [Column(name=f"x{i}", type="number", min=-1.0, max=1.0) for i in range(n_features)]
    return Schema(dataset="uniform", unit="row", columns=tuple(columns))


def _name(shape: Shape) -> str:
    n, d, k = shape
    return f"n={n:,} d={d} k={k}"


def machine() -> str:
    """Return the kind of machine in a few words."""
    kind = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        lines = (line.partition(":") for line in cpus.read_text().splitlines())
        kind = next((text.strip() for key, _, text in lines if key.strip() == "model name"), kind)
    return f"{os.cpu_count()} cores, {kind}, {instruction_sets()[0]}, {platform.system()}"


def _line(result: Result) -> str:
    verdict = {None: "", True: "holds", False: "MISSED"}[result.holds]
    peer = "" if result.peer_value is None else f"{result.peer_value:.4g} {result.unit}"
    ratio = "" if result.ratio is None else f"{result.ratio:.3g} x"
    what = f"{result.section}: {result.what}" + (f", {result.by}" if result.by else "")
    value = f"{result.value:.4g} {result.unit}"
    return "| " + " | ".join((what, value, result.peer, peer, ratio, result.asked, verdict)) + " |"


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmarks, print a Markdown table, write JSON; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--data", type=Path, help="folder with adult.csv.gz")
    parser.add_argument("--fastlloyd", type=Path, help="checkout of the published code")
    parser.add_argument("--out", type=Path, help="where to write the JSON instead")
    parser.add_argument("--one-fit", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.one_fit:
        _one_fit(*args.one_fit)
        return 0
    given = {"kmeans": args.data, "published": args.fastlloyd}
    print("| what | ours | peer | peer's | ratio | bar | |\n|---|---|---|---|---|---|---|")
    results = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of releases that no ledger counts
        for section in args.only:
            for found in SECTIONS[section](*([given[section]] if section in given else [])):
                results.append(replace(found, section=section))
                print(_line(results[-1]), flush=True)
    packages = ("cloister", "numpy", "scipy", "scikit-learn", "pyarrow", "opendp", "cryptography")
    document = {
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "results": [result.to_dict() for result in results],
    }
    text = json.dumps(document, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    elif args.only == list(SECTIONS):
        (HERE / "results.json").write_text(text)
        draw(results, HERE.parent / "docs" / "img" / "roofline.svg")
    return 1 if any(result.holds is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
