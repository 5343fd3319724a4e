"""The report of a linked run: the one file that other answers have, from released numbers alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np

from cloister.app.headline import KeyNumber, key_numbers
from cloister.app.present import NO_INTERVAL, reliability_of
from cloister.app.report.contents import Contents
from cloister.app.report.page import NOT_VERIFIED, mechanisms, shown_of, software, stamp_of
from cloister.app.text import (
    ONE_PROCESS,
    cost_sentence,
    guarantee,
    listed,
    strength_sentence,
)
from cloister.core.display import Display, Estimate, PValue, Table
from cloister.core.errors import PlanError
from cloister.core.numerals import counted, number
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.shares.linking.analyses import CONSTANT
from cloister.shares.linking.answer import Answer
from cloister.shares.linking.found import Found, Ran
from cloister.shares.linking.plan import persons_of, trust
from cloister.shares.linking.program import Linked
from cloister.tasks.interval_tables import precision

_PERSON = "person"
_AMOUNTS = (": counts", ": shares")
_MOST_SENTENCES = 2  # of answers in the verdict; all have their pictures and tables
_UNSIGNED = (
    "Nobody signed these answers. Servers and dealer compute them, and nobody would notice wrong "
    "ones."
)
_CHARGED = "Each owner's ledger was charged this cost once; this report does not show the ledgers."
_CHARGED_HERE = (
    "Each ledger that was given to this run was charged its cost once; this report shows no ledger."
)
_LEFT_OUT = (
    "A row without a key, or with a missing or unreadable cell in a column of the analyses, is not "
    "in the join unless its owner's schema fills the cell."
)
_SIZE_ALONE = "Of these numbers, that of the persons alone has an interval."
_UNCHARGED = "This run was not charged to a ledger: later runs do not add its cost."


def contents_of(found: Found, ran: Ran) -> Contents:
    """Return the contents of the report of a run."""
    session, program = ran.session, ran.session.program
    if not isinstance(program, Linked):
        raise PlanError(f"a report of linked tables must be of 'linked', got {program.name!r}.")
    event, delta, displays = program.event(), program.delta, found.displays()
    spent = epsilon(event, delta)
    size = KeyNumber("in the join", persons_of(program), found.size)
    # The size and two more numbers, as many as other reports have.
    numbers = (size, *key_numbers("", displays[1:], None)[:2])
    owners = [f"{table} of {owner}" for table, owner in session.owners.items()]
    names, titles = tuple(session.owners), [one.title for one, _ in program.noises()]
    return Contents(
        title=f"Linked persons of {' and '.join(names)}",
        about=(f"linked over {counted(len(names), 'table')}", f"key {program.key}"),
        budget=Budget(program.epsilon, delta),
        gaussian=True,  # all analyses have this noise
        lines=(
            ("found", " ".join(_verdict(found, program))),
            ("cost", cost_sentence(spent, delta, event, _PERSON)),
            ("how sure", _doubt(found)),
        ),
        numbers=numbers,
        **shown_of(displays, numbers, [*found.remarks()]),
        warnings=(),
        epsilon=number(spent),
        share=None,
        cards=(
            ("unit of privacy", f"person by {program.key}"),
            ("tables", str(len(names))),
            ("analyses", str(len(titles))),
            ("noise from", "both servers"),
        ),
        answers=(
            ("What was released?", "; ".join(("The number of persons in the join", *titles)) + "."),
            (
                "What was summed over?",
                f"{listed(owners)}, joined by {program.key} on shares. {_LEFT_OUT}",
            ),
            *guarantee(
                f"Every person with at most {program.keys_per_person} of these keys: all its rows "
                "in all tables.",
                strength_sentence(spent, delta, _PERSON),
                event,
                _PERSON,
            ),
        ),
        sights=_sights(ran),
        sight_remarks=(*trust(session), *((ONE_PROCESS,) if ran.in_process else ())),
        cost=(
            ("epsilon, all openings composed", number(spent)),
            ("delta", f"{delta:.3g}"),
            ("noise", "; ".join(mechanisms(event, _PERSON))),
        ),
        budget_lines=(),  # each owner's ledger is its own
        uncharged=_charged(ran),
        asked=tuple(_asked(program, ran)),
        asked_caption="The question",
        asked_note="Each owner approved this question. All parties have one digest of it:",
        question=session.digest(),
        verified=(NOT_VERIFIED, _UNSIGNED),
        facts=(
            ("session", session.id),
            ("session digest (SHA-256)", session.digest()),
            *software(),
        ),
        **stamp_of(session.to_dict()),
        document_name="The whole session",
        comparison=None,
    )


def _verdict(found: Found, program: Linked) -> Iterator[str]:
    """Yield a sentence on the size, and one on each answer."""
    yield f"The join has {found.size.text} {persons_of(program)}."
    if found.withheld:
        yield f"All answers are withheld, since fewer than {program.least_matches} were counted."
    yield from map(_sentence, found.answers[:_MOST_SENTENCES])
    if (more := len(found.answers) - _MOST_SENTENCES) > 0:
        yield f"{more} more answer{'s' * (more > 1)} follow{'s' * (more == 1)}."


def text_of(found: Found) -> str:
    """Return a line for the size, for each answer and for each remark, without a table."""
    size = f"Persons in the join: {found.size}."
    return "\n".join((size, *map(_sentence, found.answers), *found.remarks()))


def _doubt(found: Found) -> str:
    """Return a sentence on the effects of each analysis, else on counts, else on the size."""
    said = [(one.title, _how_sure(one)) for one in found.answers]
    if known := [pair for pair in said if pair[1] != NO_INTERVAL]:
        # The verdict names a single analysis.
        return " ".join(f"{title}: {text}" if len(said) > 1 else text for title, text in known)
    amounts = tuple(one for one in found.displays() if one.title.endswith(_AMOUNTS))
    doubt = reliability_of(amounts)
    return _SIZE_ALONE if doubt == NO_INTERVAL else doubt


def _how_sure(answer: Answer) -> str:
    """Return a sentence on how sure the numbers are; means are not compared with 0."""
    if answer.kind == "means":
        return precision([answer.estimates["means"]])
    return reliability_of(tuple(_effects(answer)))


def _effects(answer: Answer) -> Iterator[Display]:
    """Yield the numbers of an answer that may be 0: no counts and shares."""
    for shown in answer.displays():
        if answer.kind in ("correlation", "linear"):
            yield Table(shown.title, ("of", "value"), tuple(_cells(answer)))
        elif not shown.title.endswith(_AMOUNTS):
            yield shown


def _cells(answer: Answer) -> list[tuple[str, Estimate]]:
    """Return the places and the known numbers of the first estimate, but no constant.

    Each correlation is given once, but not that of a column with itself.
    """
    one = next(iter(answer.estimates.values()))
    places: Iterable[tuple[int, ...]] = np.ndindex(one.values.shape)
    if answer.kind == "correlation":
        places = combinations(range(len(one.values)), 2)
    return [
        (name, one[at])
        for at in places
        for name in [" ".join(names[i] for names, i in zip(one.labels, at, strict=True))]
        if not np.isnan(one.values[at]) and name != CONSTANT
    ]


def _sentence(answer: Answer) -> str:
    """Return the main number of an answer, or what kind of numbers it has."""
    columns = listed(answer.of)
    # The test answers what a reader of two columns asks first.
    if chi2 := answer.tests.get("chi2"):
        p = PValue(np.ravel(chi2.p)[0])
        return f"If {columns} were independent, p is {p.text}."
    name, cells = next(iter(answer.estimates)), _cells(answer)
    head = f"{answer.kind.capitalize()} of {columns}"
    if answer.kind == "means" and cells:
        low, high = (pick(cells, key=lambda pair: pair[1].value) for pick in (min, max))
        return f"{head}: {_at(*low)} is the lowest, {_at(*high)} the highest."
    if answer.kind == "table":  # of one or three columns, which have no test
        return f"{head}: {len(cells)} counts."
    if not cells:
        return (
            f"{head}: no {name} are known at this noise. A larger epsilon, narrower bounds or "
            "fewer analyses reduce it."
        )
    if not (known := [cell for _, cell in cells if not np.isnan(cell.numbers[1])]):
        return f"{head}: {len(cells)} {name} without intervals."
    distinct = sum(bool(cell.is_distinct) for cell in known)
    return f"{head}: {distinct} of {len(known)} {name} differ from 0."


def _at(place: str, cell: Estimate) -> str:
    return f"{place} with {cell.of_population.text}"


def _charged(ran: Ran) -> str:
    if not ran.charged:
        return _UNCHARGED
    # A desk may have the ledgers of some owners only, or one for all tables.
    return _CHARGED_HERE if ran.in_process else _CHARGED


def _sights(ran: Ran) -> Table:
    session = ran.session
    receivers = listed(session.receivers)
    dealer = session.dealer
    rows = [
        *(
            (f"{owner}, owner of {table}", "its own table", "other tables, and who is in them")
            for table, owner in session.owners.items()
        ),
        *(
            (
                f"{name}, server",
                "random words, public sizes, the noisy number of linked persons, its own noise",
                "rows, keys, who is linked, answers without noise",
            )
            for name in session.servers
        ),
        (
            f"{dealer}, dealer",
            "public sizes, a noisy number of linked persons",
            "rows, keys, who is linked, answers",
        ),
        (f"{receivers}, and readers of this report", "the noisy answers", "exact answers"),
    ]
    return Table("Who saw what", ("party", "sees", "does not see"), tuple(rows))


def _asked(program: Linked, ran: Ran) -> Iterator[tuple[str, str]]:
    yield "key", program.key
    yield "persons", persons_of(program)
    for table, side in program.frame.sides.items():
        columns = ", ".join(column.name for column in side.columns) or "no column"
        yield f"table {table}", f"{ran.session.owners[table]}; {side.rows:,} places; {columns}"
    yield from (("answer", one.title) for one, _ in program.noises())
    yield "receivers", listed(ran.session.receivers)
    yield "smallest number with answers", f"{program.least_matches:,}"
