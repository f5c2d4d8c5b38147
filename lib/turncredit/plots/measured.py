"""Figures of notebooks that measure: drawn from the tables they saved, without a study of arms."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from turncredit.decisions import CASES
from turncredit.plots import (
    audit_figures,
    ceiling_figures,
    family_figures,
    probe_figures,
    regime_figures,
)
from turncredit.probe.decomposition import STEPS


class Exhibit(NamedTuple):
    """A figure to keep of a notebook: the tables below its results, and how they are drawn."""

    tables: tuple[str, ...]
    draw: Callable[..., Figure | None]
    """Called with the tables in their order; None where they hold nothing of it."""
    caption: str


def _cases(runs: pd.DataFrame, means: pd.DataFrame) -> Figure:
    return audit_figures.audit_cases(runs, means, CASES)


def _blame_by_turn(means: pd.DataFrame) -> Figure:
    return audit_figures.audit_map(means, last=int(means["turn"].max()))


def _by_worth(means: pd.DataFrame) -> Figure:
    chosen = means[(means["by"] == "all") & (means["base"] != "true_advantage")]
    return audit_figures.audit_grid(chosen.assign(stage="all"), **audit_figures.BY_WORTH)


def _correlation(means: pd.DataFrame, blame_by_turn: pd.DataFrame) -> Figure:
    """Of the bases alone, and of grpo with every weight, up to the last turn of the blame."""
    given = means[means["base"] != "true_advantage"]
    methods = dict.fromkeys(zip(given["base"], given["weight"], strict=True))
    shown = [method for method in methods if "grpo" in method or "none" in method]
    last = int(blame_by_turn["turn"].max())
    return ceiling_figures.audit_agreement(means, "correlation", shown, last=last)


def _regimes(
    rows: pd.DataFrame, *, arm: str, measure: str, label: str, gain: bool
) -> Figure | None:
    chosen = rows[(rows["arm"] == arm) & (rows["measure"] == measure)]
    if chosen.empty:
        return None
    return regime_figures.regime_map(chosen, **regime_figures.AXES, label=label, gain=gain)


MEASURED: Mapping[str, Mapping[str, Exhibit]] = {
    "14_surprisal_probe": {
        "agreement": Exhibit(
            ("agreement.csv",),
            probe_figures.probe_agreement,
            "How often AEM's coefficient has the sign of minus the relative surprisal, silent "
            "pairs counted half, and Pearson's r, by step, turn, difficulty and length; intervals "
            "draw states.",
        ),
        "decomposition": Exhibit(
            ("decomposition.csv",),
            partial(probe_figures.probe_decomposition, steps=STEPS),
            "Wrong signs after each approximation between the exact relative surprisal and AEM's "
            "coefficient, on listed trees, and the variance of the surprisal that is martingale.",
        ),
        "proxies": Exhibit(
            ("proxies.csv",),
            probe_figures.probe_proxies,
            "Sign agreement and Pearson's r of stand-ins for the relative surprisal on held-out "
            "states, exact on listed trees and estimated for the tiny policy.",
        ),
        "language_model": Exhibit(
            ("language_model/agreement.csv",),
            probe_figures.probe_agreement,
            "The same agreement for SmolLM2-135M-Instruct over the Factbook, untrained.",
        ),
        "language_model_proxies": Exhibit(
            ("language_model/proxies.csv",),
            probe_figures.probe_proxies,
            "Stand-ins for the relative surprisal of SmolLM2-135M-Instruct on held-out states.",
        ),
    },
    "20_credit_audit": {
        "cases": Exhibit(
            ("case_runs.csv", "cases.csv"),
            _cases,
            "Failed trajectories of plain GRPO by case, and the judged turns after a wrong one, "
            "by training stage: how many were right, that is back on the path or following from "
            "what had been decided, and how many only followed. Labels are the oracle's; dots are "
            "seeds, diamonds means with intervals over warm starts.",
        ),
        "gates": Exhibit(
            ("gate_runs.csv", "gates.csv"),
            audit_figures.audit_gates,
            "Precision and recall of every gate rule against the oracle's first wrong turn; the "
            "hair line is a gate at random in the same trajectories. All seeds.",
        ),
        "blame": Exhibit(
            ("blame.csv",),
            audit_figures.audit_grid,
            "Share of blame that falls on turns that are right by the oracle or follow from the "
            "decision, and of credit that falls on wrong ones, for every base and weight; means "
            "over seeds.",
        ),
        "blame_by_turn": Exhibit(
            ("blame_by_turn.csv",),
            _blame_by_turn,
            "Where in failed trajectories the blame lies; first where it would belong, the tokens "
            "of wrong turns.",
        ),
        "worth": Exhibit(
            ("worth.csv",),
            _by_worth,
            "Share of blame on turns that were worth more than their state, and of credit on "
            "turns worth less, by playing on from both; two standard errors decide.",
        ),
        "correlation": Exhibit(
            ("worth_by_bin.csv", "blame_by_turn.csv"),
            _correlation,
            "Correlation of the advantage each method gives a turn with the true one, by turn, "
            "outcome, difficulty and training step; means over seeds.",
        ),
        "ledger": Exhibit(
            ("ledger.csv",),
            audit_figures.audit_ledger,
            "One failed trajectory under every method, the mean token advantage of each turn; the "
            "first row is what its turns were worth.",
        ),
    },
    "21_aem_alfworld": {
        "families": Exhibit(
            ("families.csv",),
            family_figures.family_success,
            "Tasks done by family with and without AEM. Above, small policies in generated rooms, "
            "played by rules in Python that stand in for ALFWorld's engine; below, what AEM's "
            "source prints for Qwen2.5-1.5B on ALFWorld's own games, with its deviation over three "
            "seeds. Levels are of two worlds; only directions can be compared.",
        ),
    },
    "22_regime_map": {
        name: Exhibit(("map.csv",), partial(_regimes, arm=arm, measure=measure, label=label,
                                            gain=measure.startswith("gain")), text)
        for name, (arm, measure, label, text) in {
            "shifted": ("grpo", "shifted", "runs whose opening shifts (share)",
                        "Share of the baseline's runs that stop beginning with a search, over the "
                        "regimes; the shift is dated by the rule of the other figures."),
            "collapsed": ("grpo", "collapsed", "collapsed runs (share)",
                          "Share of the baseline's runs that end without evidence in the context, "
                          "over the regimes."),
            "exact_match": ("grpo", "exact_match", "final exact match (share)",
                            "Final exact match of the baseline over the regimes."),
            "suffix_mask_collapsed": ("suffix_mask", "gain_collapsed", "collapsed runs, difference",
                                      "Difference of suffix masking to the baseline in the share "
                                      "of collapsed runs, paired by seed; below 0 fewer collapse; "
                                      "hatched where the interval holds zero."),
            "aem_collapsed": ("aem", "gain_collapsed", "collapsed runs, difference",
                              "Difference of AEM to the baseline in the share of collapsed runs, "
                              "paired by seed; below 0 fewer collapse; hatched where the interval "
                              "holds zero."),
            "suffix_mask": ("suffix_mask", "gain", "gain of suffix masking",
                            "Difference of suffix masking to the baseline in final exact match, "
                            "paired by seed; hatched where the interval holds zero."),
            "aem": ("aem", "gain", "gain of AEM",
                    "Difference of AEM to the baseline in final exact match, paired by seed; "
                    "hatched where the interval holds zero."),
        }.items()
    },
    "25_probe_over_seeds": {
        "worlds": Exhibit(
            ("over_seeds.csv", "agreement.csv"),
            probe_figures.probe_worlds,
            "Sign agreement of AEM's coefficient and Pearson's r over runs of two worlds: seeds "
            "are pale dots, with means and Student's intervals over seeds; recorded responses.",
        ),
    },
}  # fmt: skip
"""By notebook and figure; the file is <notebook>_<figure>."""


def measured_exhibits(root: Path) -> Iterator[tuple[str, Figure, str]]:
    """File name, figure and caption of each of MEASURED whose tables lie below `root`.

    root: results of a tier.  A table that is there without a row is as good as none.
    Raises ValueError naming a file that is no table, or the tables of a figure that lack what it
    shows.
    """
    for notebook, figures in MEASURED.items():
        for name, exhibit in figures.items():
            paths = [root / notebook / table for table in exhibit.tables]
            if not all(path.exists() for path in paths):
                continue
            tables = [_read(path) for path in paths]
            figure = _drawn(exhibit, paths, tables) if all(map(len, tables)) else None
            if figure is not None:
                yield f"{notebook}_{name}", figure, exhibit.caption


def _drawn(exhibit: Exhibit, paths: list[Path], tables: list[pd.DataFrame]) -> Figure | None:
    try:
        return exhibit.draw(*tables)
    except (LookupError, ValueError, TypeError) as error:
        named = " and ".join(map(str, paths))
        raise ValueError(f"{named}: cannot be drawn ({error!r}); {_ADVICE}") from error


def _read(path: Path) -> pd.DataFrame:
    """A table of results, bins and stages as text."""
    texts = {"by": str, "bin": str, "stage": str}
    try:
        return pd.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""])
    except ValueError as error:  # of pandas, or of text that is none
        raise ValueError(f"{path}: not a table ({error}); {_ADVICE}") from error


_ADVICE = "run its notebook again"
