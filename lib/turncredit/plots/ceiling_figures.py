"""Figures of the credit audit: credit beside true advantages, and what those are good for."""

from collections.abc import Mapping, Sequence

import matplotlib
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit.audit.stages import Row, with_intervals
from turncredit.plots.audit_figures import heat, method_label, two_decimals
from turncredit.plots.panels import MEAN_LINE, SEED_LINE, legend, say_no_runs
from turncredit.plots.sources import RUN
from turncredit.plots.style import WIDTH, arm_label, arm_looks, styled
from turncredit.stats import ema

MEASURES = {
    "correlation": "correlation of assigned and true advantage",
    "sign_errors": "share of decided turns with the wrong sign",
    "blame_on_right": "share of blame on turns that were right",
    "credit_on_wrong": "share of credit on turns that were wrong",
}
"""Measures of `audit.worth` that are drawn, with what they are."""


@styled
def audit_agreement(
    means: pd.DataFrame, measure: str, methods: Sequence[tuple[str, str]], *, last: int
) -> Figure:
    """One of MEASURES for every method, by turn, outcome, difficulty and training step.

    means: base, weight, by, bin, measure, value.  Turns after `last` are left out.  A cell without
    a value is grey: nothing to compare.
    """
    rows = means[means["measure"] == measure]
    shown = (rows["by"] != "turn") | (pd.to_numeric(rows["bin"], errors="coerce") <= last)
    rows = rows[shown].assign(place=rows["by"] + "|" + rows["bin"])
    kinds = list(dict.fromkeys(rows["by"]))  # a bin may first be met by a later seed
    places = sorted(dict.fromkeys(rows["place"]), key=lambda p: kinds.index(p.partition("|")[0]))
    figure = Figure(figsize=(WIDTH, 1.7 + 0.25 * max(len(methods), 4)), layout="constrained")
    axis = figure.subplots()
    wide = rows.pivot(index=["base", "weight"], columns="place", values="value")
    values = wide.reindex(index=list(methods), columns=places).to_numpy(dtype=float)
    signed = measure == "correlation"
    colours = matplotlib.colormaps["PuOr" if signed else "Oranges"]
    heat(axis, values, Normalize(-1 if signed else 0, 1), colours, two_decimals)
    axis.set_yticks(range(len(methods)), [method_label(*method) for method in methods])
    axis.set_xticks(range(len(places)), map(_place_label, places), rotation=60, ha="right")
    axis.set_title(MEASURES[measure], loc="left")
    return figure


def _place_label(place: str) -> str:
    by, _, name = place.partition("|")
    written = {"turn": f"turn {name}", "stage": f"step {name}", "all": "all turns"}
    return written.get(by, name if by in ("outcome", "hops") else f"{by}: {name}")


def budget_rows(
    metrics: pd.DataFrame, trajectories: Mapping[str, int], *, weight: float
) -> pd.DataFrame:
    """What each run had spent after each step, and how often it then succeeded.

    metrics: of `Runs`; trajectories: of a step, by task.  Result: task, arm, seed, step;
    `environment_turns`, steps of the environment up to and with this one, and `all_tokens`, sampled
    tokens, those of audits among both; `success`, smoothed with `weight`.
    """
    rows = metrics.sort_values([*RUN, "step"], ignore_index=True)
    extra = {name: rows.get(name, pd.Series(0.0, index=rows.index)) for name in _EXTRA}
    turns = rows["turns"] * rows["task"].map(trajectories) + extra["audit_turns"].fillna(0)
    tokens = rows["tokens"] + extra["audit_tokens"].fillna(0)
    rows = rows.assign(environment_turns=turns, all_tokens=tokens)
    runs = rows.groupby(RUN, sort=False)
    rows = rows.assign(
        environment_turns=runs["environment_turns"].cumsum(),
        all_tokens=runs["all_tokens"].cumsum(),
        success=runs["success"].transform(lambda values: ema(values, weight)),
    )
    return rows[[*RUN, "step", "environment_turns", "all_tokens", "success"]]


_EXTRA = ("audit_turns", "audit_tokens")


def ceiling_rows(budget: pd.DataFrame, outcomes: pd.DataFrame, *, reference_arm: str) -> list[Row]:
    """What each arm came to, and what it had at the budget of the reference arm: tidy rows.

    budget: `budget_rows`; outcomes: of `outcome_rows`.  `measure`: `exact_match` and `grounded` of
    the final evaluation, `environment_turns` and `all_tokens` of the whole run; `steps_at_budget`
    and `success_at_budget`, where the run was when it had made as many turns as the cheapest run of
    the reference arm in all, NaN before its first step was over.
    """
    of_reference = budget[budget["arm"] == reference_arm]
    least = of_reference.groupby(RUN)["environment_turns"].max().min()
    rows: list[Row] = []
    for run in outcomes.to_dict("records"):
        own = budget[(budget[RUN] == [run[name] for name in RUN]).all(axis=1)]
        within = own[own["environment_turns"] <= least]
        found = {name: run[name] for name in ("exact_match", "grounded")}
        found |= {name: own[name].max() for name in ("environment_turns", "all_tokens")}
        found["steps_at_budget"] = float(len(within))
        found["success_at_budget"] = within["success"].iloc[-1] if len(within) else float("nan")
        place = {name: run[name] for name in (*RUN, "block")}
        rows += [place | {"measure": name, "value": value} for name, value in found.items()]
    return with_intervals(rows, seed=0)


@styled
def ceiling(budget: pd.DataFrame, arms: Sequence[str], *, weight: float) -> Figure:
    """Training success of each arm by updates, and by turns of the environment, audits included.

    budget: `budget_rows`.  Thin lines are seeds, thick ones their means step by step.
    """
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for arm, (colour, marker) in arm_looks(arms).items():
        rows = budget[budget["arm"] == arm]
        means = rows.groupby("step", as_index=False)[["environment_turns", "success"]].mean()
        for axis, x in zip(axes, ("step", "environment_turns"), strict=True):
            for _, run in rows.groupby("seed"):
                axis.plot(run[x], run["success"], color=colour, **SEED_LINE)
            every = max(len(means) // 4, 1)
            axis.plot(
                means[x], means["success"], color=colour, marker=marker, markevery=every,
                **MEAN_LINE,
            )  # fmt: skip
    axes[0].set(xlabel="updates", ylabel=f"training success\n(EMA, weight {weight:g})")
    axes[1].set(xlabel="turns of the environment, with those of audits")
    if budget.empty:
        say_no_runs(axes[0])
    else:
        axes[1].set_xscale("log")
    legend(
        figure,
        [
            Line2D([], [], color=colour, marker=marker, label=arm_label(arm), **MEAN_LINE)
            for arm, (colour, marker) in arm_looks(arms).items()
        ],
    )
    return figure
