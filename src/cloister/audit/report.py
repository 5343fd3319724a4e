"""The report of audits, as Markdown and as a picture for each method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from cloister.audit.bounds import best_at_95, most_shown
from cloister.audit.checks import Audit, Finding
from cloister.audit.packages import Mutant
from cloister.core.display import Table
from cloister.core.numerals import number

_CLAIM, _SEEN, _ALARM = "#0072B2", "#000000", "#D55E00"
_LEAST = 1e-4  # smallest delta on the axis; no audit of this size can show less
_CAN_DRAW = find_spec("matplotlib") is not None
_NAME, _COMMAND = "audit.md", "cloister audit"


def write_report(
    audits: Sequence[Audit],
    folder: Path,
    command: str = _COMMAND,
    mutants: Mapping[Mutant, Finding | None] | None = None,
) -> list[Path]:
    """Write ``audit.md`` and ``audit-METHOD.png`` for each audit; return their paths.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    command : str
        The command that repeats the audits.
    mutants : mapping of Mutant to Finding or None, optional
        The finding that caught each mutant.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Audits take minutes: a missing library for pictures must not lose their text.
    drawn = audits if _CAN_DRAW else ()
    pictures = [draw_audit(audit, folder / f"audit-{audit.method}.png") for audit in drawn]
    report = folder / _NAME
    report.write_text(markdown(audits, command, mutants), encoding="utf-8")
    return [report, *pictures]


def summary(audits: Iterable[Audit]) -> Table:
    """Return one row for each audit."""
    rows = []
    for audit in audits:
        shown = ("-", "-", "-")
        if audit.checks:  # empty if some records stop its jobs
            worst, bound = most_shown(audit.checks)
            shown = (number(worst.epsilon), number(worst.delta), number(bound))
        rows.append(
            (
                audit.method,
                verdict(audit),
                *shown,
                audit.pair,
                "-" if math.isnan(audit.reach) else f"{audit.reach:.0%}",
            )
        )
    headings = ("method", "verdict", "at epsilon", "delta claimed", "at least, 95 %", "record")
    return Table("Audit", (*headings, "budget used"), tuple(rows))


def verdict(audit: Audit) -> str:
    """Return ``passes``, ``no power`` if runs show too little, or ``FAILS`` and the alarms."""
    names = ", ".join(dict.fromkeys(finding.check for finding in audit.alarms))
    if names:
        return f"FAILS: {names}"
    return "no power" if audit.no_power else "passes"


def findings(audit: Audit) -> Table:
    """Return one row for each check of an audit."""
    rows = tuple((f.check, "ALARM" if f.alarms else "ok", f.evidence) for f in audit.findings)
    return Table(f"{audit.method}: {audit.details}", ("check", "", "evidence"), rows)


def markdown(
    audits: Sequence[Audit],
    command: str = _COMMAND,
    mutants: Mapping[Mutant, Finding | None] | None = None,
) -> str:
    """Return the report: claims, evidence, and the probability of a false alarm."""
    private = [audit for audit in audits if audit.claims]
    published = [audit for audit in audits if not audit.claims]
    lines = [
        "# Audit",
        "",
        f"Written by `{command}`.",
        "An audit tries to refute a claim by running it; it cannot prove one. Its records",
        "are made up. What each check does: [how to audit](../how-to/audit.md).",
        "",
    ]
    if private:
        total = sum(audit.false_alarm for audit in private)
        lines += [
            f"{_passed(private)} Were all claims true, an alarm anywhere in this table would come "
            f"by chance with probability at most {total:.1g}.",
            "",
            *_rows(summary(private)),
        ]
    if published:
        lines += [
            "## Methods that are not private",
            "",
            "As their authors published them, and held to the epsilon that they state.",
            "They are here to be caught.",
            "",
            *_rows(summary(published)),
        ]
    if mutants:
        n_caught = sum(bool(finding and finding.alarms) for finding in mutants.values())
        lines += [
            "## Broken on purpose",
            "",
            f"{n_caught} of {len(mutants)} mutants "
            "are caught. Their randomness is fixed, so it is not left to chance.",
            "",
            *_rows(_caught(mutants)),
        ]
    for audit in audits:
        claim = f"epsilon {audit.budget.epsilon:g}, delta {audit.budget.delta:g}"
        lines += [
            f"## {audit.method}",
            "",
            f"Claim: {claim}. {audit.details}.",
            "",
            *_rows(findings(audit)),
            f"![claimed curve and lower bounds](audit-{audit.method}.png)" * _CAN_DRAW,
            "",
        ]
    return "\n".join(lines)


def _caught(mutants: Mapping[Mutant, Finding | None]) -> Table:
    """Return one row for each mutant."""
    rows = tuple(
        (mutant.name, mutant.defect, finding.check, finding.evidence)
        if finding
        else (mutant.name, mutant.defect, "NOT CAUGHT", "")
        for mutant, finding in mutants.items()
    )
    return Table("Broken on purpose", ("mutant", "defect", "caught by", "evidence"), rows)


def _passed(audits: Sequence[Audit]) -> str:
    good = sum(verdict(audit) == "passes" for audit in audits)
    unseen = sum(verdict(audit) == "no power" for audit in audits)
    more = f"; the runs of {unseen} show less than a tenth of the claim" * (unseen > 0)
    return f"{good} of {len(audits)} private methods pass{more}."


def _rows(table: Table) -> list[str]:
    shown = [table.headings, *table.rows]
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in shown]
    cells.insert(1, ["---"] * len(table.headings))
    return [*("| " + " | ".join(row) + " |" for row in cells), ""]


def draw_audit(audit: Audit, path: Path) -> Path:
    """Draw the claimed curve and the largest lower bound at each of its points."""
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    epsilons, deltas = zip(*sorted(audit.curve), strict=True)
    axes.plot(epsilons, deltas, color=_CLAIM, label="claimed")
    best = best_at_95(audit.checks)
    colour = _ALARM if audit.alarms else _SEEN
    for label, marker, values in (
        ("seen", "o", [check.seen for check, _ in best]),
        ("lower bound, 95 %", "^", [bound for _, bound in best]),
    ):
        places = [check.epsilon for check, _ in best]
        axes.plot(
            places,
            [max(value, _LEAST) for value in values],
            marker,
            color=colour,
            markerfacecolor="none" if marker == "o" else colour,
            label=label,
        )
    axes.set_yscale("log")
    axes.set_ylim(_LEAST * 0.8, 1.2)
    axes.set_xlabel("epsilon")
    axes.set_ylabel("delta")
    axes.set_title(f"{audit.method}: {verdict(audit)}", loc="left", fontsize=10)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=100, metadata={"Title": f"audit of {audit.method}"})
    return path
