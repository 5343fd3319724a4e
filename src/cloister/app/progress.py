"""The display of a running job: a bar over its rounds, and its warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import current_process
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from cloister.core.errors import DataLossWarning

if TYPE_CHECKING:
    from cloister.app.in_process import OnRound
    from cloister.protocol.session import RoundDone

T = TypeVar("T")

PROGRESS = "CLOISTER_PROGRESS"
"""An environment variable: ``0`` turns all bars off."""


def is_watched() -> bool:
    """Return True if a person sees the output of a running job."""
    if os.environ.get(PROGRESS) == "0" or current_process().name != "MainProcess":
        return False  # workers of a grid search would overwrite each other's bar
    return _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


@contextmanager
def round_bar(
    *, wanted: bool = True, stays: bool = False, rows: Callable[[], int] = lambda: 0
) -> Iterator[OnRound | None]:
    """Show a progress bar if a person watches; yield the function to call after each round.

    Parameters
    ----------
    wanted : bool
        If False, no bar is shown.
    stays : bool
        If True, a terminal keeps the last line.
    rows : function
        Returns the number of records that were read, to show their speed; 0 shows none. It is
        not part of a release.
    """
    if not (wanted and is_watched()):
        yield None
    elif _in_notebook():
        yield from _in_cell()
    else:
        yield from _on_terminal(stays, rows)


def watched(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """Return the items, with a bar of their share if a person watches, without their number."""
    if not is_watched():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, what, total, console=Console(stderr=True), transient=True)


@contextmanager
def warnings_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Pass the text of each warning of a job to a function, at the end of the job.

    Warnings of lost rows are omitted: an interface shows :meth:`Job.loss_notices` before the job.
    """
    # At the end, since a line of text would break the bar of a terminal.
    with warnings.catch_warnings(record=True) as caught:
        # Python shows a warning of a line once a process, but each job must show it.
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for warning in caught:
                if not issubclass(warning.category, DataLossWarning):
                    tell(str(warning.message))


def _in_notebook() -> bool:
    """Return True if the code runs in an IPython kernel."""
    # Looked up and not imported: a notebook has loaded it. Only a kernel has the attribute.
    ipython = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel")


def _in_cell() -> Iterator[OnRound]:
    from IPython.display import HTML, display

    handle = display(HTML("<progress></progress> planning"), display_id=True)

    def on_round(done: RoundDone) -> None:
        n = done.round + 1
        bar = f'<progress value="{n}" max="{done.rounds}"></progress>'
        handle.update(HTML(f"{bar} {n} of {done.rounds} rounds, {len(done.survivors)} silos"))

    try:
        yield on_round
    finally:
        handle.update(HTML(""))


def _on_terminal(stays: bool, rows: Callable[[], int]) -> Iterator[OnRound]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    # On standard error, so that results on standard output can be piped.
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn())
    silos = TextColumn("{task.fields[silos]} silos{task.fields[speed]}")
    with Progress(*columns, silos, console=Console(stderr=True), transient=not stays) as bar:
        task = bar.add_task("rounds", total=None, silos="-", speed="")
        start = perf_counter()

        def on_round(done: RoundDone) -> None:
            count, n = len(done.survivors), done.round + 1
            millions = rows() * n / (perf_counter() - start) / 1e6
            # Two digits, since the line may stay and the speed varies.
            speed = f", {millions:.2g} million rows a second" if millions else ""
            bar.update(task, completed=n, total=done.rounds, silos=count, speed=speed)

        yield on_round
