"""Sentences and tables of numbers, shared by the report and the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from cloister.app.release import Release
from cloister.core.display import (
    Bars,
    Cell,
    Curve,
    Display,
    Estimate,
    Graph,
    Heatmap,
    PValue,
    Scatter,
    Table,
)
from cloister.core.numerals import NOT_KNOWN, counted, day, number
from cloister.privacy.accounting import attacker_odds
from cloister.privacy.budget import Budget
from cloister.privacy.events import Event, HorizonEvent, NonPrivateEvent, holds
from cloister.privacy.noise import AGGREGATOR_NOISE, SILOS_NOISE, DiscreteNoise
from cloister.protocol.plan import Plan, noun_of

UNCLEAR = " ?"
"""Mark of a number that does not differ from that of no effect."""
UNCLEAR_NOTE = (
    "A question mark: the interval, of the population if there is one, holds 0, or 1 of a ratio, "
    "which may be the true value; for a cluster: noise alone could have produced it."
)
BRACKETS_NOTE = (
    "± and [ , ] are 95 % confidence intervals. Intervals marked 'noise and sampling' or "
    "'population' also cover sampling; all others do not."
)
"""What an interval covers; it holds for every text, table and picture."""
NOT_HIDDEN = "Differential privacy does not hide facts about people in general, in the data or not."
ONE_PROCESS = (
    "In this run all parties were parts of one process on one machine: its operator could read "
    "every input file."
)
_MOST_NAMES = 30  # of columns, since a catalogue has thousands
_POPULATION = "population 95 %"
_HARDLY_ANY = 0.995  # least odds of an attacker at which the text calls a guarantee weak


def listed(names: Sequence[str]) -> str:
    """Join names; of more than 30 names, the first 30 and the number of the others."""
    # A sentence with thousands of names would hide what it says.
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest:,} more" if rest > 0 else "")


REAL_NOISE = (DiscreteNoise.label, AGGREGATOR_NOISE, SILOS_NOISE)


def attacker_sentence(cost: Event | Budget, unit: str) -> str:
    """Return a sentence on how often an attacker guesses rightly if one unit is in the data.

    `unit` is the unit of privacy, as the schema names it. A row differs from a person, if a person
    may have several rows.
    """
    exact = not isinstance(cost, Budget) and holds(cost, NonPrivateEvent)
    odds = 1.0 if exact else attacker_odds(cost)
    subject = (
        f"An attacker who knows everything else and guesses whether {_one(unit)} used is right"
    )
    if odds >= _HARDLY_ANY:
        return f"{subject} almost every time: at this cost hardly anything is protected."
    # Rounded up, since the sentence is an upper bound; odds of 0.55 must not become 56.
    right = math.ceil(100 * odds - 1e-9)
    return f"{subject} at most {right} times in 100; a coin is right 50 times."


def _one(unit: str) -> str:
    """Return a subject for one unit of privacy, with "was" or "were" for a passive sentence."""
    return {"row": "one row was", "silo": "one silo's records were"}.get(
        unit, f"the rows of one {noun_of(unit)} were"
    )


def cost_sentence(epsilon: float, delta: float, cost: Event, unit: str) -> str:
    """Return a sentence with the price, and one on its meaning for one unit of privacy."""
    return f"Epsilon {number(epsilon)} at delta {delta:.2g}. {attacker_sentence(cost, unit)}"


def strength_sentence(epsilon: float, delta: float, unit: str) -> str:
    """Return a sentence with the guarantee of (epsilon, delta) for one unit of privacy."""
    # Above 20 the factor has nine digits or more, which nobody reads.
    factor = f"{math.exp(epsilon):.3g}" if epsilon < 20 else f"e^{epsilon:.3g}"
    exception = f", apart from a probability of at most {delta:.2g}" if delta else ""
    return (
        f"Any result is at most {factor} times as likely if {_one(unit)} used as if not, and the "
        f"other way round (epsilon {number(epsilon)}, delta {delta:.2g}){exception}."
    )


def warnings_of(result: Release) -> tuple[str, ...]:
    """Return the reasons why a result is not private; empty for a private release."""
    warnings = []
    if not result.plan.task.private:
        warnings.append(
            f"NOT PRIVATE: the task {result.plan.task.name!r} releases exact values. Treat this "
            "report like the records themselves."
        )
    elif result.noise not in REAL_NOISE:
        warnings.append(
            f"NOT PRIVATE: noise from: {result.noise}. The numbers below describe what the plan "
            "would guarantee with real noise; this run guarantees nothing."
        )
    return tuple(warnings)


def privacy_statement(result: Release) -> tuple[tuple[str, str], ...]:
    """Return questions and answers on the disclosure by a result, made from its numbers."""
    plan = result.plan
    released = ("What was released?", plan.task.describe())
    silos = (
        "What was summed over?",
        f"{counted(len(plan.silos), 'silo')}: {', '.join(plan.silos)}. A round counts with at "
        f"least {plan.min_silos} of them."
        if plan.profile != "local"
        else f"One silo, {plan.silos[0]}. Nothing was sent to anybody.",
    )
    which = ("Which records count?", plan.counted())
    if plan.budget is None:
        return (
            released,
            silos,
            which,
            ("What is guaranteed?", "Nothing. The released values are exact."),
        )
    strength = strength_sentence(result.epsilon(), plan.budget.delta, plan.unit)
    # Each condition of the guarantee is added, so that the sentence alone is true.
    if result.noise == AGGREGATOR_NOISE:
        strength += " This holds if the aggregator really added the noise, which no silo can check."
    elif result.noise not in REAL_NOISE:
        strength = f"Not at all in this run, which had no real noise. With it: {strength}"
    if isinstance(result.spent, HorizonEvent):
        strength += (
            f" This is for the releases of all {counted(result.spent.periods, 'period')} together."
        )
    # The plan has only the events of the task, so a difference is the count before it.
    elif result.spent != plan.events():
        strength += " The noisy count of all records that was bought first is part of this."
    return (
        released,
        silos,
        which,
        *guarantee(
            f"The unit of privacy is {plan.unit_in_words()}.", strength, result.spent, plan.unit
        ),
    )


def guarantee(who: str, strength: str, cost: Event, unit: str) -> tuple[tuple[str, str], ...]:
    """Return questions and answers on a guarantee for one unit of privacy."""
    return (
        ("Who is protected?", who),
        ("How well?", strength),
        ("What does that mean?", attacker_sentence(cost, unit)),
        ("What is not covered?", f"{BRACKETS_NOTE} {NOT_HIDDEN}"),
    )


def noise_of(release: Release, *, in_process: bool) -> str:
    """Return the source of the noise, by the same words at a silo and at a reader."""
    shared = release.plan.profile == "pairwise" and release.noise == DiscreteNoise.label
    return SILOS_NOISE if shared and not in_process else release.noise


def who_saw_what(plan: Plan, *, in_process: bool) -> tuple[Table, tuple[str, ...]]:
    """Return a table of each party's view under the plan's profile, and remarks on it."""
    exact = "exact" if plan.budget is None else "noisy"
    hidden = "-" if plan.budget is None else "records, exact sums and counts"
    match plan.profile:
        case "local":
            parties = [("The process that ran the job", "the records, the results", "-")]
        case "group":
            parties = _parties(exact, "", "the noise it adds", "records, sums, results")
        case "pairwise":
            parties = _parties(
                exact,
                " and its own share of the noise",
                "sums under a pad of the silos",
                "records, sums, results",
            )
    parties.append(("A reader of this report", f"the {exact} results in it", hidden))
    table = Table("Who saw what", ("party", "sees", "does not see"), tuple(parties))
    return table, _sight_remarks(plan, in_process)


def _parties(exact: str, shares: str, sees: str, hidden: str) -> list[tuple[str, str, str]]:
    """Return the views of silos and aggregator; `sees` and `hidden` are the aggregator's."""
    vectors = "masked vectors, which look like random numbers"
    return [
        (
            "Each silo",
            f"its own records{shares}, the {exact} results of every round",
            "records, sums and counts of another silo",
        ),
        ("The aggregator", f"{vectors}, {sees}, and when each silo answers", hidden),
    ]


def _sight_remarks(plan: Plan, in_process: bool) -> tuple[str, ...]:
    together = ONE_PROCESS
    if plan.profile == "local":
        return ()
    if plan.profile == "pairwise":
        guarantee = (
            f"The guarantee holds even if {plan.collusion} of the silos and the aggregator combine "
            "all they know."
        )
        return (guarantee, together) if in_process else (guarantee,)
    return (
        "The guarantee between silos rests on the aggregator really adding its noise and on no "
        "silo giving it the mask key.",
        f"{together} The aggregator's noise was not kept."
        if in_process
        else "Do not give this report to the operator of the aggregator, who could subtract a copy "
        "of the noise.",
    )


def cell_text(cell: Cell) -> str:
    """Return the text of a cell of a table."""
    match cell:
        case str():
            return cell
        # Before numbers, since a p-value is one.
        case PValue():
            return cell.text
        case Estimate():
            # A value that is not known is not near zero.
            unclear = not (math.isnan(cell.value) or cell.is_distinct)
            return cell.text + UNCLEAR * unclear
        case _:
            return number(float(cell))


def legend_of(tables: Iterable[Table]) -> str:
    """Return the meaning of brackets and question marks, and reasons for unknown numbers."""
    tables = list(tables)
    # From the texts, because not every estimate is written with brackets or a mark.
    texts = [cell_text(cell) for table in tables for row in table.rows for cell in row]
    notes = []
    if any(" ± " in text or text.endswith("]") for text in texts):
        notes.append(BRACKETS_NOTE)
    if any(text.endswith(UNCLEAR) for text in texts):
        notes.append(UNCLEAR_NOTE)
    # A note that says why ends with the reason.
    for table in tables:
        reason = table.note.partition(f"{NOT_KNOWN}: ")[2]
        if reason and any(NOT_KNOWN in map(cell_text, row) for row in table.rows):
            notes.append(f"{table.title}, {NOT_KNOWN}: {reason}")
    return " ".join(notes)


def _with_population(table: Table) -> Table:
    """Return a table with a column of population intervals after each column that has any."""
    # A separate column, since two intervals in one cell would be confused.
    wide = [
        any(isinstance(cell, Estimate) and cell.population for cell in cells)
        for cells in zip(*table.rows, strict=True)
    ]
    if not any(wide):
        return table

    def cells(row: Sequence[Cell]) -> Iterator[Cell]:
        for cell, extra in zip(row, wide, strict=True):
            yield cell
            if extra:
                yield _span(cell) if isinstance(cell, Estimate) else ""

    headings = (
        text
        for heading, extra in zip(table.headings, wide, strict=True)
        for text in (heading, *((_POPULATION,) if extra else ()))
    )
    return replace(
        table, headings=tuple(headings), rows=tuple(tuple(cells(row)) for row in table.rows)
    )


def _span(cell: Estimate) -> str:
    """Return ``[low, high]`` of the population interval, or ""."""
    if cell.population is None:
        return ""
    *_, low, high = cell.numbers
    if math.isnan(low) and not math.isnan(cell.value):
        return NOT_KNOWN
    # A place inside gives the right digits; the text keeps what follows the value.
    inside = (low + high) / 2 if math.isfinite(low + high) else 0.0
    if math.isinf(low) and math.isinf(high):
        return ""
    middle, *ends = np.array([inside, low, high])
    text = Estimate(middle, *ends, unit=cell.unit).text
    return text.partition(" ")[2] or text


def as_table(display: Display) -> Table:
    """Return the numbers of any display as a table."""
    match display:
        case Table():
            return _with_population(display)
        case Heatmap() | Bars() | Curve():
            rows = tuple(
                (_name_of(display, name), *(_blank(display, cell) for cell in cells))
                for name, cells in display.numbers()
            )
            whole = _with_population(Table(display.title, display.headings, rows, display.note))
            if isinstance(display, Bars):
                to_text = cell_text
                if display.estimate.population:
                    whole = replace(whole, note=f"{BRACKETS_NOTE} {display.note}".strip())
            else:
                to_text = _unmarked
            return replace(whole, rows=tuple(tuple(map(to_text, row)) for row in whole.rows))
        case Scatter():
            x, y = display.axes
            sizes = [] if display.sizes is None else [float(size) for size in display.sizes]
            points: tuple[tuple[str | float, ...], ...] = tuple(
                (
                    name,
                    *(day(x) if k in display.dates else float(x) for k, x in enumerate(point)),
                    *sizes[i : i + 1],
                )
                for i, (name, point) in enumerate(zip(display.names, display.points, strict=True))
            )
            headings = ("", x or "x", y or "y", *(["size"] if sizes else []))
            return Table(display.title, headings, points, display.note)
        case Graph():
            arrows = tuple(
                (display.names[a], display.names[b], strength, label)
                for a, b, strength, label in display.edges
            )
            return Table(display.title, ("from", "to", "strength", "label"), arrows, display.note)


def _name_of(display: Heatmap | Bars | Curve, name: str | float) -> str:
    if isinstance(name, str):
        return name
    if not isinstance(display, Curve):
        return number(name)
    return (day if display.dates else number)(name) + " (chosen)" * (name == display.chosen)


def _blank(display: Heatmap | Bars | Curve, cell: Estimate) -> Cell:
    return display.absent if math.isnan(cell.value) else cell


def _unmarked(cell: Cell) -> str:
    """Return the text of a cell without a question mark, since a picture shows where 0 is."""
    # Not `repr`, since a table has a column of its own for the population.
    return cell.text if isinstance(cell, Estimate) else cell_text(cell)
