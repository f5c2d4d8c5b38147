"""Figures from saved results: sources (reading, tidy tables), one function per figure, captions."""

from turncredit.plots.aem_figures import entropy_divergence, exploration, lambda_sweep, sweep_rows
from turncredit.plots.arm_figures import (
    arm_differences,
    arm_outcomes,
    steps_to_reach,
    variance_over_seeds,
)
from turncredit.plots.captions import FIGURES, captions
from turncredit.plots.claims import claims_table
from turncredit.plots.collapse_figures import collapse_curves, early_warnings, warning_rows
from turncredit.plots.cost_figures import time_breakdown, time_rows
from turncredit.plots.curves import (
    clip_fraction,
    search_first,
    total_entropy,
    training_reward,
    turns,
)
from turncredit.plots.factor_figures import (
    clip_grid,
    clip_rows,
    difficulty_bins,
    difficulty_rows,
)
from turncredit.plots.family_figures import (
    AEM_PAIRS,
    engine_summary,
    family_rows,
    family_success,
    pair_spreads,
    published_gains,
)
from turncredit.plots.gallery import GALLERY, draw, exhibits, matched
from turncredit.plots.measured import measured_exhibits
from turncredit.plots.outcomes import (
    difference_rows,
    outcome_intervals,
    outcome_rows,
    rate_rows,
    reach_rows,
    spread_rows,
)
from turncredit.plots.regime_figures import regime_map
from turncredit.plots.regime_rows import map_rows, regime_rows
from turncredit.plots.rollout_rows import measure_rows, save_measures
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
from turncredit.plots.study import Study, open_study, plan_studies
from turncredit.plots.style import arm_colours, arm_looks, save_figure
from turncredit.plots.summary import final_evaluations, results_table, summary_rows
from turncredit.plots.turn_actions import action_rows, turn_panel
from turncredit.plots.turn_figures import (
    decision_vs_execution,
    entropy_k,
    turn_accuracy,
    turn_entropy,
)

__all__ = [
    "AEM_PAIRS",
    "FIGURES",
    "FIRST_K",
    "GALLERY",
    "FigureParams",
    "Runs",
    "Study",
    "action_rows",
    "arm_colours",
    "arm_differences",
    "arm_looks",
    "arm_outcomes",
    "captions",
    "claims_table",
    "clip_fraction",
    "clip_grid",
    "clip_rows",
    "collapse_curves",
    "decision_vs_execution",
    "difference_rows",
    "difficulty_bins",
    "difficulty_rows",
    "draw",
    "early_warnings",
    "engine_summary",
    "entropies_by_k",
    "entropy_divergence",
    "entropy_k",
    "exhibits",
    "exploration",
    "family_rows",
    "family_success",
    "figure_folder",
    "final_evaluations",
    "lambda_sweep",
    "map_rows",
    "matched",
    "measure_rows",
    "measured_exhibits",
    "open_study",
    "outcome_intervals",
    "outcome_rows",
    "pair_spreads",
    "plan_studies",
    "published_gains",
    "rate_rows",
    "reach_rows",
    "read_runs",
    "regime_map",
    "regime_rows",
    "results_table",
    "save_figure",
    "save_measures",
    "search_first",
    "shift_table",
    "smoothed",
    "spread_rows",
    "steps_to_reach",
    "summary_rows",
    "sweep_rows",
    "time_breakdown",
    "time_rows",
    "total_entropy",
    "training_reward",
    "turn_accuracies",
    "turn_accuracy",
    "turn_entropies",
    "turn_entropy",
    "turn_panel",
    "turns",
    "variance_over_seeds",
    "warning_rows",
]
