"""The jobs of a ledger and its budget over time, as steps of a picture and as rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise

from cloister.core.numerals import counted, number
from cloister.privacy.filter import Cost, Limits, total
from cloister.privacy.ledger import JobRecord

WIDTH, HEIGHT = 400, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 10, 34, 26
_SHOWN = 40  # jobs; the level of the first step has all earlier ones

Place = tuple[float, float]


@dataclass(frozen=True)
class Step:
    """A job with the total cost after it; its place is in the picture."""

    job: str
    study: str
    reserved_at: str
    state: str
    spent: str
    left: str
    place: Place


@dataclass(frozen=True)
class History:
    """Steps of the total cost, oldest first, below the lifetime cap.

    Parameters
    ----------
    line, area : str
        Points of the steps, and of the area below them, for an SVG of `size`.
    since, until : str
        Days of the two ends.
    ceiling : float
        Height of the cap.
    frame : tuple of int
        Left, top, right and bottom of the area.
    """

    steps: tuple[Step, ...]
    line: str
    area: str
    since: str
    until: str
    ceiling: float
    frame: tuple[int, int, int, int] = (_LEFT, _TOP, WIDTH - _RIGHT, HEIGHT - _BOTTOM)
    size: tuple[int, int] = (WIDTH, HEIGHT)


def history_of(jobs: Sequence[JobRecord], limits: Limits, now: datetime) -> History | None:
    """Return the history of a data set, or None without a job.

    Parameters
    ----------
    jobs : sequence of JobRecord
        All jobs of the data set, oldest first; those that cost nothing are left out.
    now : datetime
        With a time zone; the end of the picture.
    """
    jobs = [job for job in jobs if job.counts]
    if not jobs:
        return None
    first = max(0, len(jobs) - _SHOWN)
    costs, shown = [job.cost for job in jobs], jobs[first:]
    after = [total(costs[: first + i + 1]) for i in range(len(shown))]
    prices = [_prices(limits, cost) for cost in (total(costs[:first]), *after)]
    spent = [epsilon for epsilon, _ in prices]
    times = [datetime.fromisoformat(job.reserved_at) for job in shown]
    begin = min(times)
    # A clock may have been wrong, so the newest job may lie ahead of now.
    end = max(now, *times)
    span = (end - begin).total_seconds() or 1.0
    top = max(limits.cap.epsilon, *filter(math.isfinite, spent))

    def place(time: datetime, epsilon: float) -> Place:
        x = _LEFT + (time - begin).total_seconds() / span * (WIDTH - _LEFT - _RIGHT)
        y = HEIGHT - _BOTTOM - min(epsilon, top) / top * (HEIGHT - _TOP - _BOTTOM)
        return round(x, 1), round(y, 1)

    corners = [place(begin, spent[0])]
    for time, levels in zip(times, pairwise(spent), strict=True):
        corners += [place(time, level) for level in levels]
    corners.append(place(end, spent[-1]))
    ground = [place(end, 0.0), place(begin, 0.0)]
    steps = tuple(
        Step(
            job.job,
            job.study,
            _day(time),
            f"reserved, {counted(len(job.rounds), 'round')} sent" if job.is_open else "charged",
            number(level),
            number(left),
            place(time, level),
        )
        for job, time, (level, left) in zip(shown, times, prices[1:], strict=True)
    )
    ceiling = place(begin, limits.cap.epsilon)[1]
    return History(
        steps, _points(corners), _points([*corners, *ground]), _day(begin), _day(end), ceiling
    )


def _day(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d")


def _points(places: Sequence[Place]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


@lru_cache(maxsize=1000)  # a page renews itself, and each price is a search
def _prices(limits: Limits, cost: Cost) -> tuple[float, float]:
    """Return the epsilon of a cost, and what is left for one more job."""
    return limits.epsilon(cost), limits.epsilon_left(cost)
