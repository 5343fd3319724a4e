"""Speed, memory and size of cloister beside named peers, measured in one run on one thread.

    python benchmarks/run.py [--out benchmarks/results.json]

prints a table and writes it as JSON. Times are the least of several, in one process; a ratio to
the peer means more than a time, since both were taken on the same machine minutes apart.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from cloister.data import array_records
from cloister.hazmat.fixedpoint import Grid
from cloister.jobs import make_plan, run_plan
from cloister.privacy.budget import Budget
from cloister.privacy.noise import DiscreteNoise, NoiseKind
from cloister.schema import Column, Schema
from cloister.task import PublicFacts
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.clustering.lloyd_kernel import sum_near_centres

Shape = tuple[int, int, int]
"""Records, columns, clusters."""

SHAPES: tuple[Shape, ...] = (
    (1_000_000, 2, 5),
    (1_000_000, 2, 100),
    (1_000_000, 8, 10),
    (500_000, 32, 32),
    (60_000, 784, 10),
)
BUDGET = Budget(1.0, 1e-6)
BEYOND = ("numpy", "scipy", "scikit-learn", "pandas", "pyarrow")
MEGABYTE = 1e6


@dataclass(frozen=True)
class Result:
    """One measurement beside its peer.

    Parameters
    ----------
    ratio : float or None
        Ours over the peer's.
    bar : str
        What is asked for; empty where nothing is.
    holds : bool or None
    """

    what: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    bar: str = ""
    holds: bool | None = None


def local_step(shapes: Sequence[Shape] = SHAPES, repeats: int = 5) -> Iterator[Result]:
    """Time one local step and the one-off encoding beside one iteration of scikit-learn."""
    for shape in shapes:
        X, grid, centres, task = _problem(shape)
        records, payload = grid.encode(X), task.payload(1)
        steps = np.rint(centres * grid.one).astype(np.int64)

        def step(
            records: Any = records, steps: Any = steps, payload: Any = payload, one: int = grid.one
        ) -> None:
            sum_near_centres(
                records,
                steps,
                radius_squared=payload.radius_squared,
                relative=payload.relative,
                count_word=payload.count_word,
                one=one,
            )

        peer = _sklearn_iteration(X, centres, repeats)
        ours = _best(step, repeats)
        yield Result(
            f"local step, {_name(shape)}",
            1e3 * ours,
            "ms",
            "scikit-learn Lloyd iteration",
            1e3 * peer,
            ours / peer,
            "ratio <= 15",
            ours <= 15 * peer,
        )
        encoding = _best(lambda X=X, grid=grid: array_records(X, grid), repeats)
        yield Result(
            f"encoding, once a job, {_name(shape)}",
            1e3 * encoding,
            "ms",
            "scikit-learn Lloyd iteration",
            1e3 * peer,
            encoding / peer,
        )


def memory(shapes: Sequence[Shape] = SHAPES) -> Iterator[Result]:
    """Measure what encoding and one step allocate at their peak, the grid records included."""
    for shape in shapes:
        X, grid, centres, task = _problem(shape)
        steps, payload = np.rint(centres * grid.one).astype(np.int64), task.payload(1)
        gc.collect()
        tracemalloc.start()
        sum_near_centres(
            grid.encode(X),
            steps,
            radius_squared=payload.radius_squared,
            relative=payload.relative,
            count_word=payload.count_word,
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield Result(
            f"extra memory, {_name(shape)}",
            peak / MEGABYTE,
            "MB",
            "the float32 table itself",
            X.nbytes / MEGABYTE,
            peak / X.nbytes,
            "ratio <= 1.5",
            peak <= 1.5 * X.nbytes,
        )


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
        on_round=lambda _: times.append(time.perf_counter()),
    )
    ours = float(np.diff(times).min())
    scale = plan.noise_scale(plan.task.blocks(1)[0])
    peer = _best(lambda: _opendp("gaussian", scale, words), 5)
    yield Result(
        f"masked, noised round of {silos} silos, k={n_clusters}, d={n_features}, no records",
        1e3 * ours,
        "ms",
        f"OpenDP discrete Gaussian, {words} values",
        1e3 * peer,
        ours / peer,
        "10 ms, ratio <= 1",
        ours <= peer and ours <= 0.01,
    )
    pads = silos * (silos + 1)  # each masks with its own pad and unmasks with everybody's
    random = _best(lambda: [os.urandom(8 * words) for _ in range(pads)], 5)
    yield Result(
        "the same round",
        1e3 * ours,
        "ms",
        f"os.urandom of its {pads} pads",
        1e3 * random,
        ours / random,
    )


def samplers(size: int = 1_000_000, peer_size: int = 20_000) -> Iterator[Result]:
    """Compare exact samplers by the values they draw in a second."""
    noise = DiscreteNoise()
    kinds: tuple[NoiseKind, ...] = ("gaussian", "laplace")
    for kind in kinds:
        for scale in (10, 1 << 20, 1 << 40):
            ours = size / _best(lambda k=kind, s=scale: noise.draw(k, s, size), 3)
            peer = peer_size / _best(
                lambda k=kind, s=scale: _opendp(k, s, peer_size),
                3,
            )
            yield Result(
                f"discrete {kind}, scale {scale:.3g}",
                ours / 1e6,
                "million/s",
                "OpenDP",
                peer / 1e6,
                ours / peer,
                ">= 1 million/s",
                ours >= 1e6,
            )


def import_time(repeats: int = 9) -> Iterator[Result]:
    """Take processor time of imports in fresh processes, less the interpreter's own start."""
    for statement, peer, most in (
        ("import cloister", "import numpy", 1.0),
        ("from cloister import DPKMeans", "import sklearn.cluster", 1.25),
    ):
        ours, theirs = _imports((statement, peer), repeats)
        ratio = ours / theirs
        yield Result(
            statement, 1e3 * ours, "ms", peer, 1e3 * theirs, ratio, f"<= {most}", ratio <= most
        )


def install_size() -> Iterator[Result]:
    """Add up the files that the base install ships, without the five large packages.

    Byte code is left out of the bar, since Python writes it itself and not every installer does;
    it is reported beside.
    """
    names = sorted(_closure("cloister") - set(BEYOND))
    sizes = {name: _size(name) for name in names}
    total = sum(sizes.values())
    large = sum(_size(name) for name in BEYOND)
    compiled = sum(_size(name, byte_code=True) for name in names)
    yield Result(
        f"base install beyond {', '.join(BEYOND)} ({len(names)} packages)",
        total / MEGABYTE,
        "MB",
        "those five",
        large / MEGABYTE,
        total / large,
        "150 MB",
        total < 150 * MEGABYTE,
    )
    yield Result("the same with byte code", compiled / MEGABYTE, "MB")
    for name in sorted(names, key=lambda n: -sizes[n])[:5]:
        yield Result(f"of it {name}", sizes[name] / MEGABYTE, "MB")


SECTIONS: dict[str, Callable[[], Iterator[Result]]] = {
    "local step": local_step,
    "memory": memory,
    "round": whole_round,
    "samplers": samplers,
    "import": import_time,
    "install": install_size,
}


def _problem(shape: Shape) -> tuple[Any, Grid, Any, FastLloyd]:
    """Return uniform records, their grid, starting centres and the task."""
    n, d, k = shape
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, d)).astype(np.float32)
    centres = rng.uniform(-1, 1, (k, d))
    task = FastLloyd.design(
        PublicFacts(n_features=d, nominal_n=n, budget=BUDGET), FastLloyd.Options(n_clusters=k)
    )
    return X, _schema(d).grid(), centres, task


def _schema(n_features: int) -> Schema:
    columns = [Column(name=f"x{i}", type="number", min=-1.0, max=1.0) for i in range(n_features)]
    return Schema(dataset="uniform", unit="row", columns=tuple(columns))


def _name(shape: Shape) -> str:
    n, d, k = shape
    return f"n={n}, d={d}, k={k}"


def _sklearn_iteration(X: Any, centres: Any, repeats: int) -> float:
    """Return the time of one Lloyd iteration: what five more of them take, over five."""
    start = centres.astype(np.float32)

    def fit(iterations: int) -> None:
        KMeans(len(start), init=start, n_init=1, max_iter=iterations, tol=0).fit(X)

    more = _best(lambda: fit(6), repeats) - _best(lambda: fit(1), repeats)
    return max(more / 5, 1e-9)


def _best(function: Callable[[], object], repeats: int) -> float:
    """Return the least wall time of several calls, in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def _opendp(kind: NoiseKind, scale: int, size: int) -> None:
    """Add OpenDP's exact integer noise to zeros."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if kind == "gaussian":
        mechanism = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), float(scale))
    else:
        mechanism = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), float(scale))
    mechanism([0] * size)


def _imports(statements: Sequence[str], repeats: int) -> list[float]:
    """Return the least processor time of each import, in seconds; taken in turn."""

    def once(statement: str) -> float:
        clock = "time.process_time()"
        code = f"import time; begin = {clock}; {statement}; print({clock} - begin)"
        return float(subprocess.check_output([sys.executable, "-c", code], text=True))

    return [
        min(times)
        for times in zip(*([*map(once, statements)] for _ in range(repeats)), strict=True)
    ]


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


def _size(package: str, *, byte_code: bool = False) -> int:
    """Return the bytes of a package's installed files."""
    files = importlib.metadata.files(package) or ()
    paths = (Path(str(file.locate())) for file in files if byte_code or file.suffix != ".pyc")
    return sum(path.stat().st_size for path in paths if path.is_file())


def _line(result: Result) -> str:
    verdict = {None: "", True: "holds", False: "MISSED"}[result.holds]
    peer = "" if result.peer_value is None else f"{result.peer_value:.4g} {result.unit}"
    ratio = "" if result.ratio is None else f"{result.ratio:.3g}"
    value = f"{result.value:.4g} {result.unit}"
    cells = (result.what, value, result.peer, peer, ratio, result.bar, verdict)
    return "| " + " | ".join(cells) + " |"


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmarks, print a Markdown table, write JSON; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    args = parser.parse_args(words)
    print("| what | ours | peer | peer's | ratio | bar | |")
    print("|---|---|---|---|---|---|---|")
    results = []
    with threadpool_limits(1):
        for section in args.only:
            for result in SECTIONS[section]():
                results.append(result)
                print(_line(result), flush=True)
    packages = ("cloister", "numpy", "scipy", "scikit-learn", "opendp", "cryptography")
    document = {
        "machine": f"{os.cpu_count()}-core {platform.machine()} {platform.system()}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "results": [asdict(result) for result in results],
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(result.holds is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
