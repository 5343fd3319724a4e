"""What leaks without noise: five kinds of attack on three ways to compute, beside plans' bounds.

The attacks and what an advantage is are in :mod:`cloister_lab.experiments.leak_attacks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cloister.audit.bounds import Check, at_least, at_most
from cloister.core.randomness import public_generator
from cloister.privacy import accounting
from cloister_lab.experiments import leak_attacks as attacks
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.figures import save_small
from cloister_lab.experiments.leak_attacks import Game, Outcome, Setting
from cloister_lab.experiments.records import TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, command_of, units_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALPHA = 0.05
"""How often any of the bounds that refute a plan's may be wrong, all attacks together."""

SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("open federated learning", in_clear=True),
        Setting("exact secure computation"),
        Setting("our release, ε = 8", 8.0, 1.0),
        Setting("our release, ε = 1", 1.0, 1.0),
        Setting("ε = 1 promised, a tenth of the noise", 1.0, 0.1),
    )
}


@dataclass(frozen=True)
class Attack:
    """A kind of game.

    Parameters
    ----------
    title : str
        Short, for the figure.
    prepare : function of a setting and a seed
        Makes the game; what it learns first is not counted.
    aside : str
        What the games report beside their success, if anything.
    more : int
        So many times the usual number of games.
    learns : bool
        Whether it trains models of its own first: twice as many of each kind as there are games, at
        most :data:`~cloister_lab.experiments.leak_attacks.SHADOWS`.
    """

    title: str
    dataset: str
    prepare: Callable[..., Game]
    aside: str = ""
    more: int = 1
    learns: bool = False


def _inversion(batch: int) -> Attack:
    title = f"gradient inversion, {batch} row{'s' * (batch > 1)} a silo"
    return Attack(title, "digits", partial(attacks.gradient_inversion, batch=batch))


_PARTS = 2  # of the full version
_IMPUTED = "right by imputation alone"
ATTACKS: Mapping[str, Attack] = {
    "inversion-1": _inversion(1),
    "inversion-8": _inversion(8),
    "inversion-32": _inversion(32),
    "model-inversion": Attack(
        "model inversion",
        "digits",
        attacks.model_inversion,
        "likeness of the picture of a common class to its mean",
    ),
    "membership-known": Attack(
        "membership, others known", "digits", attacks.membership_known, more=4
    ),
    "membership-atypical": Attack(
        "membership, stranger, atypical",
        "digits",
        partial(attacks.membership_stranger, atypical=True),
        learns=True,
    ),
    "membership-typical": Attack(
        "membership, stranger, anybody",
        "digits",
        partial(attacks.membership_stranger, atypical=False),
        learns=True,
    ),
    "attribute-known": Attack(
        "attribute, others known", "wdbc", partial(attacks.attribute, known=True), _IMPUTED
    ),
    "attribute-stranger": Attack(
        "attribute, stranger", "wdbc", partial(attacks.attribute, known=False), _IMPUTED
    ),
    "overlapping-sums": Attack("overlapping sums", "digits", attacks.linear_reconstruction),
    "clusters": Attack(
        "k-means over rounds",
        "wdbc",
        attacks.moves_of_clusters,
        "tables drawn until exact sums of one give a record away",
    ),
}


# --- Work -----------------------------------------------------------------------------------------


def units(settings: Settings) -> list[Unit]:
    """Return all attacks in all settings; games in parts, each with targets of its own."""
    games = settings.runs(60, 10)
    return [
        unit
        for part in range(_PARTS if settings.full else 1)  # what was cut off has all attacks
        for name, attack in ATTACKS.items()
        if settings.wants(attack.dataset)
        for unit in units_of(
            measure, attack=[name], setting=SETTINGS, part=[part], games=[games * attack.more]
        )
    ]


def measure(attack: str, setting: str, part: int, games: int) -> list[TidyRow]:
    """Play games with the target's record and as many without; one row."""
    under, of = SETTINGS[setting], ATTACKS[attack]
    trained = {"shadows": max(8, min(attacks.SHADOWS, 2 * games))} if of.learns else {}
    game = of.prepare(under, part, **trained)
    without, with_it = (
        [game.play(public_generator("leaks", attack, part, i), there) for i in range(games)]
        for there in (False, True)
    )
    promised = accounting.delta(game.cost, 0.0) if under.part else 1.0
    return [
        {
            "dataset": of.dataset,
            "method": attack,
            "setting": setting,
            "part": part,
            "games": games,
            "with": sum(outcome.hit for outcome in with_it),
            "without": sum(outcome.hit for outcome in without),
            "bound": promised,
            "likeness": _mean(with_it, "likeness"),
            "aside": _mean(with_it, "aside"),
        }
    ]


def _mean(outcomes: Iterable[Outcome], name: str) -> Value:
    values = [float(getattr(outcome, name)) for outcome in outcomes]
    return None if any(map(math.isnan, values)) else float(np.mean(values))


# --- What is shown --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What an attack reached in a setting: successes in as many games with the target as without.

    Parameters
    ----------
    bound : float
        Of the advantage, by the plan; 1 where nothing is promised.
    """

    method: str
    setting: str
    games: int
    hits: int
    false_hits: int
    bound: float
    likeness: float | None
    aside: float | None

    @property
    def advantage(self) -> float:
        """True less false positive rate."""
        return (self.hits - self.false_hits) / self.games

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """Return exact bounds of the advantage, of which any is wrong at most so often.

        Notes
        -----
        Four Clopper-Pearson bounds and a union bound. Parts of an experiment have different
        targets; a sum of unlike Bernoulli variables is less spread than a binomial one of the same
        mean (Hoeffding 1956, theorem 5), so the bounds of the mean rate hold.
        """
        each, n = alpha / 4, self.games
        low = at_least(self.hits, n, each) - at_most(self.false_hits, n, each)
        return low, at_most(self.hits, n, each) - at_least(self.false_hits, n, each)

    def refuted(self, alpha: float) -> bool:
        """Return whether the advantage is above the bound, wrongly at most with that chance."""
        check = Check(0.0, self.bound, self.hits, self.false_hits, self.games, alpha / 2)
        return check.alarms


def cells_of(rows: Iterable[TidyRow]) -> list[Cell]:
    """Add up the parts of each attack in each setting."""
    groups: dict[tuple[str, str], list[TidyRow]] = {}
    for row in rows:
        groups.setdefault((str(row["method"]), str(row["setting"])), []).append(row)

    def total(of: list[TidyRow], column: str) -> int:
        return int(sum(tidy.number(row, column) for row in of))

    def mean(of: list[TidyRow], column: str) -> float | None:
        found = float(np.mean([tidy.number(row, column) for row in of]))
        return None if math.isnan(found) else found

    names, settings = list(ATTACKS), list(SETTINGS)
    ordered = sorted(groups.items(), key=lambda g: (names.index(g[0][0]), settings.index(g[0][1])))
    return [
        Cell(
            method,
            setting,
            total(of, "games"),
            total(of, "with"),
            total(of, "without"),
            max(tidy.number(row, "bound") for row in of),
            mean(of, "likeness"),
            mean(of, "aside"),
        )
        for (method, setting), of in ordered
    ]


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    cells = cells_of(rows)
    page = tidy.write_page(out / "leaks.md", _page(cells, command_of("leaks", out)))
    table = tidy.write_table(out / "leaks.csv", [_row(cell) for cell in cells])
    return [page, table, _figure(cells, out / "leaks.png")]


def _row(cell: Cell) -> dict[str, Value]:
    low, high = cell.interval()
    return {
        "attack": ATTACKS[cell.method].title,
        "dataset": ATTACKS[cell.method].dataset,
        "setting": cell.setting,
        "games": cell.games,
        "with_target": cell.hits / cell.games,
        "without": cell.false_hits / cell.games,
        "advantage": cell.advantage,
        "low": low,
        "high": high,
        "bound": cell.bound,
        "likeness": cell.likeness,
        "aside": cell.aside,
    }


def verdicts(cells: Sequence[Cell]) -> dict[str, str]:
    """Say which promises were refuted; all private cells share `ALPHA`, and so do all broken ones.

    Returns
    -------
    dict
        ``releases``, ``broken`` and ``harmless``: sentences.
    """
    promised = [cell for cell in cells if SETTINGS[cell.setting].part == 1]
    short = [cell for cell in cells if 0 < SETTINGS[cell.setting].part < 1]
    beyond = [cell for cell in promised if cell.refuted(ALPHA / len(promised))]
    caught = [ATTACKS[c.method].title for c in short if c.refuted(ALPHA / len(short))]
    gains = dict.fromkeys((cell.method for cell in cells), 0)
    for cell in cells:
        gains[cell.method] += cell.interval(ALPHA / len(cells))[0] > 0
    none = [ATTACKS[name].title for name, settings in gains.items() if not settings]
    return {
        "releases": f"The bound is refuted in {len(beyond)} of {len(promised)} cells of our "
        "releases.",
        "broken": f"Caught by {len(caught)} of {len(short)} attacks"
        + (f": {'; '.join(caught)}." if caught else "."),
        "harmless": f"No advantage shown anywhere, not even in the clear: {'; '.join(none)}."
        if none
        else "Each attack has an advantage in some setting.",
    }


def _page(cells: Sequence[Cell], command: str) -> list[str]:
    shown = []
    for cell in cells:
        low, high = cell.interval()
        private = SETTINGS[cell.setting].part > 0
        shown.append(
            {
                **_row(cell),
                "interval": f"{low:.2f} to {high:.2f}",
                "bound": cell.bound if private else None,
            }
        )
    stranger = {(c.method, c.setting): f"{c.advantage:.2f}" for c in cells}
    _, exact, _, release, _ = SETTINGS
    lines = tidy.prose(
        "leaks",
        shown,
        command=command,
        games=min(cell.games for cell in cells),
        exact=stranger.get(("membership-atypical", exact)),
        exact_anybody=stranger.get(("membership-typical", exact)),
        released=stranger.get(("membership-atypical", release)),
        alpha=ALPHA,
        shadows=2 * attacks.SHADOWS,
        **verdicts(cells),
    )
    asides: dict[str, list[str]] = {}
    for cell in cells:
        if cell.aside is not None:
            asides.setdefault(cell.method, []).append(f"{cell.aside:.2f} ({cell.setting})")
    for name, found in asides.items():
        lines.append(f"- {ATTACKS[name].title}, {ATTACKS[name].aside}: {'; '.join(found)}")
    return lines


def _figure(cells: Sequence[Cell], path: Path) -> Path:
    """Draw advantages with their intervals, a panel for each setting, beside the plans' bounds."""
    from matplotlib.figure import Figure

    methods = [name for name in ATTACKS if any(cell.method == name for cell in cells)]
    figure = Figure(figsize=(13.5, 0.3 * len(methods) + 1.9), layout="constrained")
    panels = figure.subplots(1, len(SETTINGS), sharey=True, squeeze=False)[0]
    for axes, setting in zip(panels, SETTINGS, strict=True):
        of_setting = {cell.method: cell for cell in cells if cell.setting == setting}
        _panel(axes, [of_setting.get(name) for name in methods])
        axes.set_title(setting.replace(", ", ",\n", 1), loc="left", fontsize=9)
    panels[0].set_yticks(range(len(methods)), [ATTACKS[name].title for name in methods], fontsize=8)
    panels[0].invert_yaxis()
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=8, ncols=2)
    title = "How much better an attack on a record does where the record is there"
    return save_small(figure, path, title, "", ("advantage: true less false positive rate",))


def _panel(axes: Axes, cells: Sequence[Cell | None]) -> None:
    """Draw one setting; attacks from above."""
    for place, cell in enumerate(cells):
        if cell is None:
            continue
        low, high = cell.interval()
        margins = [[cell.advantage - low], [high - cell.advantage]]
        axes.errorbar(
            [cell.advantage],
            [place],
            xerr=margins,
            color="#0072B2",
            marker="o",
            markersize=4,
            capsize=2,
            label="measured, 95 %" if place == 0 else None,
        )
        if SETTINGS[cell.setting].part:
            bound = "the plan's bound" if place == 0 else None
            axes.plot([cell.bound], [place], "|", color="#D55E00", ms=12, mew=2.5, label=bound)
    axes.set_xlim(-0.25, 1.08)
    axes.axvline(0, color="#555555", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
