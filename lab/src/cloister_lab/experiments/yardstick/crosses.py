"""Counts in tables: shares, tests, odds ratios, scorecards, class shares, baskets, synthesis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.core.derived import displays_of
from cloister.core.display import Display, Estimate, Heatmap
from cloister.core.display import Table as Shown
from cloister.data.schema import Column
from cloister_lab.experiments.yardstick.readings import (
    NOWHERE,
    Figure,
    Judge,
    Question,
    Release,
    Target,
    Tests,
    column_of,
    figures,
    levels_of,
    library,
    names_of,
    shares_of,
    shown,
)
from cloister_lab.experiments.yardstick.tables import Table

if TYPE_CHECKING:
    from pandas import DataFrame

_SHARE = (0.0, 1.0)


def _displays(release: Release) -> tuple[Display, ...]:
    return displays_of(release.plan.task, release.results, release.plan.columns)


# --- Tabulate -------------------------------------------------------------------------------------


def _divided(table: Table) -> bool:
    return bool(table.group and table.outcome)


def _pair(table: Table) -> tuple[Column, Column]:
    return column_of(table, table.group), column_of(table, table.outcome)


def _asks_cross(table: Table, _: int) -> Question:
    group, outcome = _pair(table)
    square = len(levels_of(group)) == 2
    options = {
        "tables": ((group.name, outcome.name),),
        "means": tuple(names_of(table.numbers)),
        "by": (group.name,),
        "tests": ("chi2", "trend", *(("odds_ratio", "relative_risk") if square else ())),
    }
    return Question((group, outcome, *table.numbers), options)


def _cells(group: list[str], outcome: list[str]) -> list[str]:
    return [f"{a}, {b}" for a in group for b in outcome]


def _tabulate(release: Release) -> list[Figure]:
    results, columns, task = release.results, release.plan.columns, release.plan.task
    words = task.labels  # type: ignore[attr-defined]  # of this task
    group, outcome = ([f"{columns[j]}={label}" for label in words[j]] for j in (0, 1))
    cells = _cells(group, outcome)
    counts, shares = (release.planned(f"{of}_half_width") for of in ("count", "share"))
    found = figures(
        results, "table_1.counts", [f"count {c}" for c in cells], planned=counts, total=True
    )
    found += figures(results, "table_1.shares", [f"share {c}" for c in cells], box=_SHARE)
    part, rows = "table_1.row_shares", [f"row share {c}" for c in cells]
    found += figures(results, part, rows, planned=shares, box=_SHARE)
    for key in ("odds_ratio", "relative_risk"):
        if f"table_1.{key}" in results:
            (ratio,) = figures(results, f"table_1.{key}", [f"log {key.replace('_', ' ')}"])
            found.append(ratio.logged)
    labels = [f"records {level}" for level in group]
    found += figures(results, "group_counts", labels, total=True)
    for i, name in enumerate(columns[2:]):
        ends = ("", "_low", "_high", "_population_low", "_population_high")
        means = {f"mean{end}": results[f"means{end}"][:, i] for end in ends}
        width = release.planned("mean_half_width", i)
        labels = [f"mean {name} {level}" for level in group]
        found += figures(means, "mean", labels, planned=width)
    return found


def _crosstab(frame: DataFrame, table: Table) -> Any:
    """Return counts by pandas, with a row and a column for each cell of the codebook."""
    group, outcome = _pair(table)
    found = library("pandas").crosstab(frame[group.name], frame[outcome.name])
    rows, columns = (np.arange(len(levels_of(each)), dtype=float) for each in (group, outcome))
    return found.reindex(index=rows, columns=columns, fill_value=0).to_numpy().astype(float)


def _cross(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return counts by pandas, and odds ratio and relative risk by statsmodels."""
    group, outcome = _pair(table)
    counts = _crosstab(frame, table)
    rows, totals = levels_of(group), counts.sum(axis=1)
    found: dict[str, Target] = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        within = counts / totals[:, None]
    for name, count, share in zip(
        _cells(rows, levels_of(outcome)), counts.ravel(), within.ravel(), strict=True
    ):
        found[f"count {name}"] = float(count)
        found[f"share {name}"] = float(count / counts.sum())
        found[f"row share {name}"] = float(share)
    for code, level in enumerate(rows):
        found[f"records {level}"] = float(totals[code])
        of_level = frame[frame[group.name] == code]
        found |= {f"mean {n} {level}": float(of_level[n].mean()) for n in names_of(table.numbers)}
    if counts.shape == (2, 2):
        # The second column over the second row, compared to the first row.
        of = library("statsmodels.stats.contingency_tables").Table2x2(counts[::-1, ::-1])
        found["log odds ratio"] = float(of.log_oddsratio)
        found["log relative risk"] = float(of.log_riskratio)
    return found


def _released_tests(release: Release) -> dict[str, float]:
    tests = ("chi2", "trend", "odds_ratio", "relative_risk")
    found = {test: release.results.get(f"table_1.{test}_p") for test in tests}
    return {test: float(p[0]) for test, p in found.items() if p is not None}


def _exact_tests(frame: DataFrame, table: Table) -> dict[str, float]:
    """Return p-values by SciPy and statsmodels; Wald's for the two ratios."""
    counts = _crosstab(frame, table)
    full = counts[counts.sum(axis=1) > 0]  # an empty row has no degree of freedom
    tables = library("statsmodels.stats.contingency_tables")
    found = {
        "chi2": library("scipy.stats").chi2_contingency(full, correction=False).pvalue,
        "trend": tables.Table(counts, shift_zeros=False).test_ordinal_association().pvalue,
    }
    if counts.shape == (2, 2):
        square = tables.Table2x2(counts)
        found["odds_ratio"] = square.log_oddsratio_pvalue()
        found["relative_risk"] = square.log_riskratio_pvalue()
    return {test: float(p) for test, p in found.items()}


# --- Table 1 --------------------------------------------------------------------------------------


def _grouped(table: Table) -> bool:
    return bool(table.group and len(table.numbers) + len(table.words) > 1)


def _asks_groups(table: Table, _: int) -> Question:
    words = _of_groups(table)[2]
    columns = (column_of(table, table.group), *table.numbers, *words)
    return Question(columns, {"by": table.group})


def _of_groups(table: Table) -> tuple[list[str], list[str], list[Column]]:
    """Return the names of groups, of numbers, and the described columns of words."""
    words = [column for column in table.words if column.name != table.group]
    return levels_of(column_of(table, table.group)), names_of(table.numbers), words


def _table1(release: Release) -> list[Figure]:
    results, task, columns = release.results, release.plan.task, release.plan.columns
    by, numbers = columns[0], [columns[j] for j in task.numbers]  # type: ignore[attr-defined]  # of this task
    groups = [f"{by}={name}" for name in task.groups]  # type: ignore[attr-defined]  # of this task
    levels = [
        f"{columns[j]}={name}"
        for j in task.factors  # type: ignore[attr-defined]  # of this task
        for name in task.categories[j]  # type: ignore[attr-defined]  # of this task
    ]

    def named(key: str, names: Sequence[str], of: Sequence[str], **more: Any) -> list[Figure]:
        places = [f"{key} {name} {group}" for group in of for name in names]
        return figures(results, key, places, **more) if names else []

    planned = release.planned("count_half_width")
    found = figures(
        results, "group_counts", [f"records {g}" for g in groups], planned=planned, total=True
    )
    found += named("mean", numbers, groups) + named("deviation", numbers, groups)
    found += named("shares", levels, groups, box=_SHARE)
    found += named("difference", numbers, groups[1:]) + named("smd", numbers, groups[1:])
    found += named("share_difference", levels, groups[1:], box=(-1.0, 1.0))
    found += named("share_smd", levels, groups[1:])
    for key in ("mean", "difference"):
        width = [release.planned(f"{key}_half_width", i) for i in range(len(numbers))]
        of_number = {name: width[i] for i, name in enumerate(numbers)}
        found = [
            replace(one, planned=of_number[one.name.split(" ")[1]])
            if one.name.startswith(f"{key} ")
            else one
            for one in found
        ]
    return found


def _by_pandas(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return means, deviations and shares of groups, and their differences, by pandas."""
    groups, numbers, words = _of_groups(table)
    found: dict[str, Target] = {}
    first: dict[str, tuple[float, float]] = {}
    for code, group in enumerate(groups):
        own = frame[frame[table.group] == code]
        found[f"records {group}"] = float(len(own))
        moments = {name: (own[name].mean(), own[name].var()) for name in numbers}
        for name, (mean, variance) in moments.items():
            found[f"mean {name} {group}"] = float(mean)
            found[f"deviation {name} {group}"] = float(np.sqrt(variance))
        shares = shares_of(own, words) if len(own) else {}
        for key, share in shares.items():
            level = key.removeprefix("share ")
            found[f"shares {level} {group}"] = share
            moments[level] = (share, share * (1 - share))
        first = first or moments
        for name, (mean, variance) in moments.items():
            before = first.get(name, (np.nan, np.nan))
            kind = ("", "") if name in numbers else ("share_", "share_")
            gap = float(mean - before[0])
            found[f"{kind[0]}difference {name} {group}"] = gap
            with np.errstate(divide="ignore", invalid="ignore"):
                scaled = gap / np.sqrt((variance + before[1]) / 2)
            found[f"{kind[1]}smd {name} {group}"] = float(scaled)
        if not len(own):
            levels = [level for column in words for level in levels_of(column)]
            parts = ("shares", "share_difference", "share_smd")
            found |= {f"{part} {level} {group}": np.nan for part in parts for level in levels}
    return found


def _tests_of_groups(release: Release) -> dict[str, float]:
    results, task, columns = release.results, release.plan.task, release.plan.columns
    found = {}
    for test, places in (("welch", task.numbers), ("chi2", task.factors)):  # type: ignore[attr-defined]  # of this task
        for i, j in enumerate(places):
            found[f"{test} {columns[j]}"] = float(results[f"{test}_p"][i])
    return found


def _exact_tests_of_groups(frame: DataFrame, table: Table) -> dict[str, float]:
    """Return p-values by statsmodels and SciPy; groups with fewer than two records are left out."""
    _, numbers, words = _of_groups(table)
    oneway = library("statsmodels.stats.oneway").anova_oneway
    contingency, pandas = library("scipy.stats").chi2_contingency, library("pandas")
    sizes = frame[table.group].value_counts()
    kept = frame[frame[table.group].isin(sizes[sizes > 1].index)]
    found = {}
    for name in numbers:
        parts = [part.to_numpy() for _, part in kept.groupby(table.group)[name]]
        found[f"welch {name}"] = float(oneway(parts, use_var="unequal").pvalue)
    for column in words:
        counts = pandas.crosstab(frame[table.group], frame[column.name])
        found[f"chi2 {column.name}"] = float(contingency(counts, correction=False).pvalue)
    return found


# --- Scorecard ------------------------------------------------------------------------------------


def _asks_scorecard(table: Table, _: int) -> Question:
    columns = [column for column in table.numbers if column.name in table.cuts]
    group = [column_of(table, table.group)] if table.group else []
    outcome = column_of(table, table.outcome)
    options = {"target": outcome.name, "edges": dict(table.cuts)}
    return Question((*columns, *group, outcome), options)


def _bins(table: Table) -> dict[str, tuple[float, ...]]:
    """Return the inner edges of each characteristic; those of a category part its codes."""
    asked = _asks_scorecard(table, 0).columns[:-1]
    codes = {c.name: tuple(np.arange(1, len(levels_of(c))) - 0.5) for c in asked if c.words}
    return {
        column.name: table.cuts.get(column.name, codes.get(column.name, ())) for column in asked
    }


def _scorecard(release: Release) -> list[Figure]:
    results, found = release.results, []
    for i, name in enumerate(release.plan.columns[:-1]):
        part, bins = f"column_{i + 1}.", len(results[f"column_{i + 1}.woe"])
        for key, title in (("woe", "weight of evidence"), ("rate", "event rate")):
            labels = [f"{title} {name} {k + 1}" for k in range(bins)]
            box = (-np.inf, np.inf) if key == "woe" else _SHARE
            widths = _planned_bins(release, key, i)
            own = figures(results, part + key, labels, box=box)
            found += [replace(f, planned=w) for f, w in zip(own, widths, strict=True)]
        for key, box in (("iv", (0.0, np.inf)), ("ks", _SHARE), ("gini", (-1.0, 1.0))):
            if part + key in results:
                found += figures(results, part + key, [f"{key} {name}"], box=box)
    return found


def _planned_bins(release: Release, key: str, i: int) -> list[float]:
    """Return the planned half-width of each bin, by its records without and with the event."""
    counts = np.maximum(release.results[f"column_{i + 1}.counts"], 1.0)
    if key == "woe":
        of_100 = release.planned("weight_of_evidence_of_a_bin_with_100_events_half_width", i)
        return list(of_100 * 100 * np.sqrt((1 / counts**2).sum(axis=1)))
    of_tenth = release.planned("event_rate_of_a_bin_with_10%_of_the_records_half_width", i)
    return list(of_tenth * release.plan.nominal_n / 10 / counts.sum(axis=1))


def _card(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return measures of bins: weights and information by their definition, for want of a library.

    Kolmogorov-Smirnov is SciPy's, Gini from scikit-learn's area under the curve.
    """
    metrics, stats = library("sklearn.metrics"), library("scipy.stats")
    event = frame[table.outcome].to_numpy() == 1
    found: dict[str, Target] = {}
    for name, edges in _bins(table).items():
        bins = np.searchsorted(edges, frame[name].to_numpy(), side="right")
        shares = [
            np.bincount(bins[of], minlength=len(edges) + 1) / of.sum() for of in (~event, event)
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            woe = np.log(shares[0] / shares[1])
            parts = np.where(shares[0] == shares[1], 0.0, (shares[0] - shares[1]) * woe)
        for k in range(len(edges) + 1):
            inside = bins == k
            found[f"weight of evidence {name} {k + 1}"] = float(woe[k])
            found[f"event rate {name} {k + 1}"] = (
                float(event[inside].mean()) if inside.any() else np.nan
            )
        found[f"iv {name}"] = float(parts.sum())
        found[f"ks {name}"] = float(stats.ks_2samp(bins[event], bins[~event]).statistic)
        found[f"gini {name}"] = 2 * float(metrics.roc_auc_score(event, bins)) - 1
    return found


# --- Naive Bayes and synthesis --------------------------------------------------------------------


def _asks_classes(table: Table, _: int) -> Question:
    return Question((*table.numbers, *table.words), {"target": table.outcome})


def _classes(release: Release) -> list[Figure]:
    results, task = release.results, release.plan.task
    labels: tuple[str, ...] = task.classes  # type: ignore[attr-defined]  # of this task
    planned = release.planned("class_count_half_width")
    margins = {
        "count": results["class_counts"],
        "count_half_width": results["class_count_half_width"],
    }
    found = figures(margins, "count", [f"count {label}" for label in labels], planned=planned)
    named = [f"share {label}" for label in labels]
    return found + figures(results, "class_prior", named, box=_SHARE)


def _class_shares(frame: DataFrame, table: Table) -> dict[str, Target]:
    counts = frame[table.outcome].value_counts()
    found: dict[str, Target] = {}
    for code in (0, 1):
        count = float(counts.get(float(code), 0))
        found |= {f"count {code}": count, f"share {code}": count / len(frame)}
    return found


def _asks_words(table: Table, _: int) -> Question:
    return Question(table.words)


def _margins(release: Release) -> list[Figure]:
    """Return the released shares of levels, as the report shows them."""
    found, planned = [], release.planned("level_half_width") / release.plan.nominal_n
    for display in _displays(release):
        if isinstance(display, Heatmap) and display.title.endswith("released and synthetic"):
            column = display.title.split(":")[0]
            released, _ = display.numbers()
            for label, cell in zip(display.estimate.labels[1], released[1], strict=True):
                figure = shown(f"share {column}={label}", cell)
                found.append(replace(figure, planned=planned))
    return found


def _level_shares(frame: DataFrame, table: Table) -> dict[str, Target]:
    return {**shares_of(frame, table.words)}


# --- Baskets --------------------------------------------------------------------------------------


def _items(table: Table) -> tuple[Column, ...]:
    return tuple(column for column in table.words if column.type == "boolean")


def _asks_items(table: Table, _: int) -> Question:
    return Question(_items(table))


def _set_name(text: str) -> str:
    return " + ".join(sorted(text.split(" + ")))


def _rule_name(left: str, right: str) -> str:
    return f"{_set_name(left)} → {_set_name(right)}"


def _rules(release: Release) -> list[Figure]:
    """Return the sets and rules that the report shows."""
    found: list[Figure] = []
    for display in _displays(release):
        if not isinstance(display, Shown):
            continue
        for label, *cells in display.rows:
            for heading, cell in zip(display.headings[1:], cells, strict=True):
                if isinstance(label, str) and isinstance(cell, Estimate):
                    found += _of_rule(label, heading, cell)
    return [
        replace(f, planned=_planned_support(release, f)) if f.name.startswith("support") else f
        for f in found
    ]


def _planned_support(release: Release, figure: Figure) -> float:
    """Return the planned half-width of a support, by its distance from the minimum."""
    size, task = figure.name.count(" + ") + 1, release.plan.task
    if size == 1:
        return release.planned("items_half_width")
    near, far = (
        release.planned(f"sets_of_{size}_{place}_the_minimum_support_half_width")
        for place in ("near", "far_from")
    )
    ratio = max(figure.estimate, 1e-9) / task.min_support  # type: ignore[attr-defined]  # of this task
    return min(near * float(np.sqrt(max(ratio, 1 / ratio))), far)


def _of_rule(label: str, heading: str, cell: Estimate) -> Iterator[Figure]:
    """Yield a number of a set or a rule; the support of a rule is that of a set."""
    left, arrow, right = label.partition(" → ")
    if not arrow:
        yield _centred(shown(f"{heading} {_set_name(label)}", cell))
    elif heading == "lift":
        yield _centred(shown(f"log lift {_rule_name(left, right)}", cell).logged)
    elif heading != "support":
        yield _centred(shown(f"{heading} {_rule_name(left, right)}", cell))


def _centred(figure: Figure) -> Figure:
    """Return the middle of an interval as the estimate.

    An estimate borrows from subsets and is closer to the truth than any interval can promise. The
    interval is that of the counted support, so its width is compared with the error of that.
    """
    low, high = figure.noise or NOWHERE
    return replace(figure, estimate=(low + high) / 2)


def _baskets(frame: DataFrame, table: Table) -> Mapping[str, Target]:
    """Return supports and rules by mlxtend; what it does not list is 0."""
    mined = library("mlxtend.frequent_patterns")
    baskets = frame[names_of(_items(table))].astype(bool)
    sets = mined.apriori(baskets, min_support=0.5 / len(frame), use_colnames=True, max_len=3)
    found: defaultdict[str, Target] = defaultdict(float)
    for support, items in zip(sets["support"], sets["itemsets"], strict=True):
        found[f"support {_set_name(' + '.join(items))}"] = float(support)
    rules = mined.association_rules(sets, metric="confidence", min_threshold=0.0)
    parts = ["antecedents", "consequents", "confidence", "lift", "leverage"]
    for left, right, confidence, lift, leverage in rules[parts].itertuples(index=False):
        name = _rule_name(" + ".join(left), " + ".join(right))
        found[f"confidence {name}"] = float(confidence)
        found[f"log lift {name}"] = float(np.log(lift))
        found[f"leverage {name}"] = float(leverage)
    return found


JUDGES = (
    Judge(
        *("tabulate", _divided, _asks_cross, _tabulate, _cross, ("statsmodels",)),
        tests=Tests(lambda table: (table.outcome,), _released_tests, _exact_tests),
    ),
    Judge(
        *("table1", _grouped, _asks_groups, _table1, _by_pandas, ("statsmodels",)),
        tests=Tests(lambda table: (table.group,), _tests_of_groups, _exact_tests_of_groups),
    ),
    Judge(
        "scorecard",
        lambda table: bool(table.outcome and table.cuts),
        *(_asks_scorecard, _scorecard, _card),
    ),
    Judge(
        *("naive-bayes", lambda table: bool(table.outcome), _asks_classes, _classes),
        _class_shares,
    ),
    Judge(
        "synthesise",
        lambda table: len(table.words) > 1,
        *(_asks_words, _margins, _level_shares),
    ),
    Judge("apriori", lambda table: table.items, _asks_items, _rules, _baskets, ("mlxtend",)),
)
"""The judges of this family."""
