"""Success by family of household tasks, with and without AEM, beside what its source prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit import stats
from turncredit.claims.by_family import published_families
from turncredit.plots.dots import count_text, interval_entry, say_count, stripes
from turncredit.plots.outcomes import spread_rows
from turncredit.plots.panels import legend, say_no_runs
from turncredit.plots.study import Study
from turncredit.plots.style import WIDTH, arm_label, arm_looks, styled
from turncredit.results import read_table
from turncredit.worlds.household import FAMILIES

AEM_PAIRS = (("grpo", "aem"), ("dapo", "dapo_aem"), ("gspo", "gspo_aem"))
"""Arms without and with AEM."""
ALL = "all"
"""Beside the families: the mean over them, each counted alike."""
LABELS = {
    "pick_and_place_simple": "pick and place",
    "look_at_obj_in_light": "look in light",
    "pick_clean_then_place_in_recep": "clean and place",
    "pick_heat_then_place_in_recep": "heat and place",
    "pick_cool_then_place_in_recep": "cool and place",
    "pick_two_obj_and_place": "place two",
    ALL: "all families",
}


def family_rows(root: Path) -> list[dict[str, Any]]:
    """How many games of each family every run below `root` did in its last evaluation, and of ALL.

    Columns: task, arm, seed, family, questions, success (share of those with a reward; NaN if there
    are none).  Raises ValueError if no run has an evaluation, or for games of no family.
    """
    asked = read_table(root, "questions.csv")
    asked["family"] = asked["question_id"].str.partition("/")[0]
    unknown = sorted({*asked["family"]} - {*FAMILIES})
    if unknown:
        raise ValueError(f"{root}: {unknown[0]!r} in questions.csv is no family of household tasks")
    rows = []
    for key, games in asked.groupby(["task", "arm", "seed"], sort=False):
        run = dict(zip(("task", "arm", "seed"), key, strict=True))
        known = games.groupby("family")["success"].agg(["count", "mean"])
        known = known.reindex([name for name in FAMILIES if name in known.index])
        known.loc[ALL] = [known["count"].sum(), known["mean"].mean()]
        rows += [
            run | {"family": name, "questions": int(found["count"]), "success": found["mean"]}
            for name, found in known.iterrows()
        ]
    return rows


@styled
def family_success(table: pd.DataFrame) -> Figure:
    """Each pair of arms with and without AEM: ours above, with intervals over seeds, theirs below.

    table: rows of `family_rows`.  Two worlds: ours are small policies in generated rooms, theirs
    Qwen2.5-1.5B on ALFWorld's own games, so that levels are not to be compared, only directions.
    """
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    axes = figure.subplots(2, len(AEM_PAIRS), sharex=True, sharey=True)
    published = {row.arm: row for row in published_families()}
    for column, pair in enumerate(AEM_PAIRS):
        _ours(axes[0, column], table, pair)
        _theirs(axes[1, column], published, pair)
        axes[0, column].set_title(f"{arm_label(pair[0])}, ours", loc="left")
        axes[1, column].set_title(f"{arm_label(pair[0])}, AEM's table 1 (1.5B)", loc="left")
    for axis in axes.ravel():
        axis.set_xlim(-0.03, 1.03)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0)
    axes[0, 0].set_yticks(range(len(LABELS)), LABELS.values())
    axes[0, 0].set_ylim(len(LABELS) - 0.5, -0.5)
    figure.supxlabel("tasks done (share)", fontsize=9)
    legend(figure, [*_entries(), interval_entry("mean and interval over seeds")])
    return figure


def _ours(axis: Axes, table: pd.DataFrame, pair: Sequence[str]) -> None:
    shown = table[table["arm"].isin(pair)]
    if shown.empty:
        say_no_runs(axis)
        return
    stripes(axis, len(LABELS))
    for offset, arm in zip((-0.16, 0.16), pair, strict=True):
        colour, marker = arm_looks(pair)[arm]
        for row, family in enumerate(LABELS):
            values = shown.loc[(shown["arm"] == arm) & (shown["family"] == family), "success"]
            found = stats.t_interval(values)
            axis.plot([found.low, found.high], [row + offset] * 2, color=colour, linewidth=1.4)
            axis.plot([found.value], [row + offset], marker=marker, color=colour, markersize=5)
    runs = shown[shown["family"] == ALL].groupby("arm")["success"].count()
    say_count(axis, len(LABELS) - 1, count_text(int(runs.min()), int(runs.max())))


def _theirs(axis: Axes, published: Mapping[str, Any], pair: Sequence[str]) -> None:
    stripes(axis, len(LABELS))
    for offset, arm in zip((-0.16, 0.16), pair, strict=True):
        colour, marker = arm_looks(pair)[arm]
        row = published[arm]
        for place, family in enumerate(LABELS):
            value = row.all if family == ALL else row.families[family]
            error = row.deviation / 100 if family == ALL else None
            axis.errorbar(
                [value / 100], [place + offset], xerr=error, marker=marker, color=colour,
                markersize=5, linewidth=1.4,
            )  # fmt: skip


def _entries() -> list[Line2D]:
    arms = [arm for pair in AEM_PAIRS for arm in pair]
    return [
        Line2D([], [], linestyle="", color=colour, marker=marker, label=arm_label(arm))
        for arm, (colour, marker) in arm_looks(arms).items()
    ]


def pair_spreads(study: Study, pairs: Sequence[Sequence[str]]) -> pd.DataFrame:
    """`outcomes.spread_rows` of the second arm of each pair, as a ratio to the first one's.

    reference_arm, reference_sd: of the first.  Pairs without runs of both are left out.
    """
    parts = []
    for reference, arm in pairs:
        shown = study.outcomes[study.outcomes["arm"].isin((reference, arm))]
        if shown["arm"].nunique() < 2:
            continue
        rows = spread_rows(shown, reference, level=study.settings.confidence_level)
        base = rows.loc[rows["arm"] == reference, ["task", "sd"]]
        base = base.rename(columns={"sd": "reference_sd"}).assign(reference_arm=reference)
        parts.append(rows[rows["arm"] == arm].merge(base, on="task"))
    columns = ["task", "arm", "sd", "ratio", "low", "high", "n", "reference_sd", "reference_arm"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def published_gains() -> pd.DataFrame:
    """What AEM adds to each family by its source, as a share: rows LABELS, columns the bases."""
    shares = {row.arm: {**row.families, ALL: row.all} for row in published_families()}
    gains = {
        base: {name: (shares[arm][name] - shares[base][name]) / 100 for name in LABELS}
        for base, arm in AEM_PAIRS
    }
    return pd.DataFrame(gains)


ENGINE_COLUMNS = ("success", "success_by_rules", "equal")


def engine_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of `engine_games.TABLE` over seeds and families: a row for each arm.

    games and lost are sums, the shares are over all games.
    """
    weighed = table.assign(**{name: table[name] * table["games"] for name in ENGINE_COLUMNS})
    sums = weighed.groupby("arm", sort=False)[["games", "lost", *ENGINE_COLUMNS]].sum()
    return sums.assign(**{name: sums[name] / sums["games"] for name in ENGINE_COLUMNS})
