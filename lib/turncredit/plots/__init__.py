"""Figures from saved results: sources (reading, tidy tables), one function per figure, captions."""

from turncredit.plots.captions import FIGURES, captions
from turncredit.plots.curves import (
    clip_fraction,
    search_first,
    total_entropy,
    training_reward,
    turns,
)
from turncredit.plots.sources import (
    FIRST_K,
    FigureParams,
    Runs,
    entropies_by_k,
    figure_folder,
    read_runs,
    shift_table,
    smoothed,
    turn_accuracies,
    turn_entropies,
)
from turncredit.plots.style import arm_colours, save_figure
from turncredit.plots.summary import final_evaluations, results_table, summary_rows
from turncredit.plots.turn_figures import (
    decision_vs_execution,
    entropy_k,
    turn_accuracy,
    turn_entropy,
)

__all__ = [
    "FIGURES",
    "FIRST_K",
    "FigureParams",
    "Runs",
    "arm_colours",
    "captions",
    "clip_fraction",
    "decision_vs_execution",
    "entropies_by_k",
    "entropy_k",
    "figure_folder",
    "final_evaluations",
    "read_runs",
    "results_table",
    "save_figure",
    "search_first",
    "shift_table",
    "smoothed",
    "summary_rows",
    "total_entropy",
    "training_reward",
    "turn_accuracies",
    "turn_accuracy",
    "turn_entropies",
    "turn_entropy",
    "turns",
]
