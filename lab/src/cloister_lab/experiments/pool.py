"""Work in several processes, with a bar for who watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_T = TypeVar("_T")


def run_all(calls: Sequence[Callable[[], _T]], jobs: int) -> Iterator[_T]:
    """Yield the answer of each call as it ends.

    Parameters
    ----------
    calls : sequence of functions without arguments
        They can be pickled where `jobs` > 1.
    jobs : int, >= 1
        Processes, each with one thread. One job runs here, in the order of the calls.
    """
    from joblib import (  # type: ignore[import-untyped]  # ships no types
        Parallel,
        delayed,
        parallel_config,
    )

    with parallel_config("loky", inner_max_num_threads=1):
        answers: Iterator[_T] = Parallel(jobs, return_as="generator_unordered")(
            delayed(call)() for call in calls
        )
        yield from answers


def progress_bar(quiet: bool = False) -> Progress:
    """Return a bar on standard error; silent where nobody watches."""
    console = Console(stderr=True)
    console.quiet = quiet or not console.is_terminal
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console.quiet,
    )


def one_thread() -> AbstractContextManager[object]:
    """Keep this process from starting as many threads as there are cores, until the block ends."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits
