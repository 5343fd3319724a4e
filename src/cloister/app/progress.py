"""What a user sees while a job runs: a bar over its rounds, and its warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import current_process
from time import perf_counter
from typing import TYPE_CHECKING

from cloister.core.errors import DataLossWarning

if TYPE_CHECKING:
    from cloister.app.in_process import OnRound
    from cloister.protocol.session import RoundDone

PROGRESS = "CLOISTER_PROGRESS"
"""An environment variable: ``0`` turns all bars off."""


def is_watched() -> bool:
    """Return whether a person sees what is shown while a job runs."""
    if os.environ.get(PROGRESS) == "0" or current_process().name != "MainProcess":
        return False  # workers of a grid search would write over each other
    return _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


@contextmanager
def round_bar(
    *, wanted: bool = True, stays: bool = False, rows: Callable[[], int] = lambda: 0
) -> Iterator[OnRound | None]:
    """Show a bar at once, if somebody watches; yield what is to be called after each round.

    Parameters
    ----------
    wanted, stays : bool
        Whether it is shown at all, and whether a terminal keeps the last line.
    rows : function
        Returns how many records were read, if their speed is to be shown; it is no release.
    """
    if not (wanted and is_watched()):
        yield None
    elif _in_notebook():
        yield from _in_cell()
    else:
        yield from _on_terminal(stays, rows)


@contextmanager
def warnings_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Pass the text of each warning of a job to a function, at the end of the job.

    Those of lost rows are left out: an interface shows :meth:`Job.loss_notices` before the job.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for one in caught:
                if not issubclass(one.category, DataLossWarning):
                    tell(str(one.message))


def _in_notebook() -> bool:
    """Return whether code runs in an IPython kernel, which is the only one to have this."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel")


def _in_cell() -> Iterator[OnRound]:
    from IPython.display import HTML, display

    shown = display(HTML("<progress></progress> planning"), display_id=True)

    def on_round(done: RoundDone) -> None:
        n = done.round + 1
        bar = f'<progress value="{n}" max="{done.rounds}"></progress>'
        shown.update(HTML(f"{bar} {n} of {done.rounds} rounds, {len(done.survivors)} silos"))

    try:
        yield on_round
    finally:
        shown.update(HTML(""))


def _on_terminal(stays: bool, rows: Callable[[], int]) -> Iterator[OnRound]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn())
    silos = TextColumn("{task.fields[silos]} silos{task.fields[speed]}")
    with Progress(*columns, silos, console=Console(stderr=True), transient=not stays) as bar:
        task = bar.add_task("rounds", total=None, silos="-", speed="")
        start = perf_counter()

        def on_round(done: RoundDone) -> None:
            count, n = len(done.survivors), done.round + 1
            millions = rows() * n / (perf_counter() - start) / 1e6
            # two digits, since this line stays
            speed = f", {millions:.2g} million rows a second" if millions else ""
            bar.update(task, completed=n, total=done.rounds, silos=count, speed=speed)

        yield on_round
