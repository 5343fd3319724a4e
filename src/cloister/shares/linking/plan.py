"""Cost, traffic and trust of a linked session before it runs, from public numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from math import ceil, log2, prod, sqrt
from typing import NamedTuple

from cloister.core.numerals import number
from cloister.protocol.task import INTERVAL_95
from cloister.shares.linking.analyses import Analysis, Linear, Means, Table
from cloister.shares.linking.descents import Descent
from cloister.shares.linking.merge import How
from cloister.shares.linking.program import Linked
from cloister.shares.mpc.session import Session

# Persons that answers need at epsilon 1, as benchmarks/linking_models.py --least finds them: a
# logistic model of ten columns then loses less AUC than its standard error, and slopes of a linear
# one are off by less than theirs.
_LEAST_OF_MODEL = 4000
_LEAST_OF_PRODUCT = 5000
_LEAST_OF_CELL = 50
_LESS, _EQUAL = 40, 16  # bytes each way of a comparison and of a test of equality


class Traffic(NamedTuple):
    """Bytes of the join: uploads, each way between the servers, and its rounds."""

    uploads: int
    each_way: int
    rounds: int


def traffic(program: Linked) -> Traffic:
    """Return an estimate of the traffic up to the released size, about 10 % too high."""
    shapes = list(program.tables().values())
    uploads = sum(8 * rows * words for rows, words in shapes)
    width, columns = max(words for _, words in shapes), sum(words - 1 for _, words in shapes)
    merged, stages, exchanges = 0, 0, 0.0
    for rows, _ in shapes:
        if merged:
            own = max(merged, rows - 1).bit_length() + 1
            stages += own
            # Half of the rows are compared with the other half in each stage.
            exchanges += (merged + rows) / 2 * own
        merged += rows
    each_way = (
        exchanges * (_LESS + 8 * width)
        + merged * (_LESS + _EQUAL + 8 * columns)  # the check of order, neighbours and cuts
        + program.most_slots * 8 * (1 + columns)  # the shuffles
    )
    check = 8 + round(log2(max(rows for rows, _ in shapes)))
    after = 7 + 2 * len(shapes) + 5
    return Traffic(uploads, round(each_way), check + 8 * stages + after)


def precision(program: Linked) -> Iterator[str]:
    """Yield the 95 % error of the size and of counts, from the noise of both servers."""
    z = INTERVAL_95["gaussian"]
    yield f"number of persons: error about +-{z * program.size_noise.released_sigma:.0f}"
    for one, noise in program.noises():
        times = "one opening" if noise.rounds == 1 else f"{noise.rounds} noisy rounds"
        yield f"{one.title}: {times}; {_error(one, program, z * noise.released_sigma)}"


def _error(one: Analysis, program: Linked, noise: float) -> str:
    """Return the 95 % error of an analysis from the noise of its sums, lattice steps."""
    match one:
        case Table():
            return f"a count about +-{noise / one.scale:.0f}"
        case Means():
            count, (_, (half,)) = noise / one.scale, program.frame.box([one.number])
            # The noise of a sum and of the size count, the mean being at most one half-range off.
            most = sqrt(2) * count * half
            return f"a count about +-{count:.0f}, a mean about +-{number(most)}/n for n persons"
        case Descent():
            return "it has no intervals"
        case _:
            return "its error is not known: it depends on the spread of the columns"


def warnings_for(program: Linked, expected: int) -> Iterator[str]:
    """Yield reasons why noise may hide the answers, for a public guess of the number of persons."""
    for one, _ in program.noises():
        need = ceil(_least(one, program))
        if expected < need:
            yield f"{one.title} needs about {need:,} persons at this epsilon."


def _least(one: Analysis, program: Linked) -> float:
    """Return the smallest number of persons with a useful answer; 0 if it is not known."""
    size = prod(one.shape(program.frame))
    match one:
        case Table():
            return _LEAST_OF_CELL * size / program.epsilon
        case Linear():
            # Noise falls as 1 / n and the standard error as 1 / sqrt(n), so epsilon is squared.
            return _LEAST_OF_PRODUCT * size / program.epsilon**2
        case Descent():
            return _LEAST_OF_MODEL / program.epsilon
        case _:
            return 0.0


def trust(session: Session) -> tuple[str, str]:
    """Return sentences on the servers, the dealer, and those that together see all rows."""
    first, second = session.servers
    return (
        f"Servers are {first} and {second}, dealer is {session.dealer}.",
        f"{session.dealer} together with {first} or with {second} could see all rows of all "
        "tables; so could both servers together.",
    )


def persons_of(program: Linked) -> str:
    """Return the persons of the join, by the names of the tables."""
    first, second, *_ = program.sides
    some = first if program.how == "left" else f"{first} or {second}"
    return "persons of all tables" if program.how == "inner" else f"persons of {some}"


_COLUMNS: Mapping[How, str] = {
    "inner": "",
    "left": ", with columns of {1} where they have them",
    "outer": ", with the columns that they have",
    "union": ", with the columns of {0} where they are in both",
}


def _asked(one: Analysis) -> str:
    """Return an analysis with all its options: what is approved is never shortened."""
    options = {field.name: getattr(one, field.name) for field in fields(one) if field.name != "of"}
    given = ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    return one.title + f" ({given})" * bool(given)


def approval(session: Session, name: str) -> str:
    """Return the text that an owner approves, in sentences."""
    program = session.program
    assert isinstance(program, Linked)
    (own,) = session.tables_of(name)
    sides = program.frame.sides
    partners = {table: owner for table, owner in session.owners.items() if table != own}
    others = " and of ".join(f"{table} at {owner}" for table, owner in partners.items())
    columns = ", ".join(column.name for column in sides[own].columns) or "no column"
    keys = " = ".join(f"{table}({', '.join(side.key)})" for table, side in sides.items())
    rules = ", ".join(
        one.rule + f" of width {one.width}" * bool(one.width) for one in program.key_parts
    )
    places = ", ".join(f"{side.rows} of {table}" for table, side in sides.items())
    kinds = "; ".join(map(_asked, (one for one, _ in program.noises())))
    counted = persons_of(program) + _COLUMNS[program.how].format(*sides)
    third = sorted(set(session.owners.values()) - set(session.servers))
    lone = third[0] if len(session.owners) == 3 and len(third) == 1 else None
    sentences = (
        f"Persons of {own} are linked with persons of {others} by {program.key}: {keys}, read as "
        f"{rules}.",
        f"Answers are about {counted} ({program.how}), of at most {places}.",
        f"Of {own}, these columns are used: {columns}.",
        "Nobody learns who is in more than one table.",
        f"With noise, {', '.join(session.receivers)} receive: number of these persons "
        f"(weight {program.size_weight:g}), which servers and dealer learn, too"
        + (f"; {kinds}." if kinds else "."),
        f"Other answers are withheld below {program.least_matches} persons.",
        f"It costs epsilon {program.epsilon:g}, delta {program.delta:g} of your ledger for every "
        f"person of {own} with at most {program.keys_per_person} of these keys; a repetition "
        "costs as much again.",
        *trust(session),
        f"{lone} is the only owner that is no server: the other two could see its rows."
        if lone
        else "",
    )
    return " ".join(sentence for sentence in sentences if sentence)
