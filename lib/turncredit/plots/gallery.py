"""The figures of a study by name, so that a notebook and the figure notebook draw the same ones."""

from collections.abc import Callable, Iterator

import pandas as pd
from matplotlib.figure import Figure

from turncredit.plans import Experiment
from turncredit.plots import (
    aem_figures,
    arm_figures,
    behaviour_rows,
    collapse_figures,
    cost_figures,
    curves,
    factor_figures,
    outcomes,
    plan_figures,
    rollout_figures,
    sources,
    style,
    teacher_figures,
    turn_actions,
    turn_figures,
)
from turncredit.plots.gallery_captions import CAPTIONS
from turncredit.plots.study import Study, plan_studies


def draw(study: Study, name: str) -> Figure:
    """One of GALLERY; ValueError naming it and listing them if there is no such figure."""
    if name not in GALLERY:
        raise ValueError(f"no figure {name!r}; there are: {', '.join(GALLERY)}")
    return GALLERY[name](study)


EXHIBITS = {
    "10_grpo_baseline": (
        "outcomes", "collapse", "early_warnings", "decision_alone", "actions_by_turn",
    ),
    "12_aem": (
        "outcomes", "differences", "exploration", "entropy_divergence", "variance_over_seeds",
        "time_breakdown",
    ),
    "21_aem_alfworld": ("outcomes", "differences", "exploration", "variance_over_seeds"),
    "13_is_clipping": ("clip_fraction", "turns", "outcomes", "clip_grid"),
    "19_adrs": (
        "outcomes", "differences", "at_budget", "teacher_consequences", "teacher_association",
        "teacher_agreement",
    ),
    "15_what_is_missing": (
        "outcomes", "differences", "steps_to_reach", "difficulty", "behaviour", "lambda_sweep",
    ),
    "16_aepo": ("outcomes", "differences", "at_budget", "pass_at_k", "branching", "total_entropy"),
    "17_cleaner": ("outcomes", "differences", "at_budget", "rollback", "evaluation"),
    "18_actguide": (
        "outcomes", "differences", "at_budget", "plan_following", "guidance", "reached",
    ),
}  # fmt: skip
"""What of an experiment is kept as figures; of any other, its outcomes and differences."""

_OF_EVERY_PLAN = ("outcomes", "differences")

MATCHED = dict.fromkeys(
    ("11_suffix_masking", "21_aem_alfworld", "23_full_seeds"),
    ("mask_quantile", ("random_suffix", "scale_failed")),
)
"""Of an experiment an arm, and others that take as many tokens from blame on every batch: what they
come to is compared with it, not with the baseline."""


def matched(study: Study, experiment: Experiment) -> Study | None:
    """The study of the matched arms of an experiment, None if it has none that ran."""
    reference, arms = MATCHED.get(experiment.notebook, ("", ()))
    ran = study.outcomes[study.outcomes["arm"].isin(arms)]
    if ran.empty:
        return None
    tasks = [task for task in study.settings.tasks if task in set(ran["task"])]
    shown = [arm for arm in arms if arm in set(ran["arm"])]
    return study.only(tasks, shown, reference_arm=reference, seeds=ran["seed"].unique())


_ON_MATCHED = (
    "The reference arm masks by a quantile of the entropy; the others take as many tokens from "
    "blame on every batch, at random places or evenly."
)

FACTORS = {
    "clip_grid": factor_figures.clip_rows,
    "entropy_divergence": aem_figures.half_rows,
    "lambda_sweep": aem_figures.sweep_rows,
}
"""Figures of a factor, with what makes their rows: they show some arms, and those of all plans."""


def exhibits(study: Study, experiment: Experiment) -> Iterator[tuple[str, Figure, str]]:
    """File name, figure and caption of each figure to keep, for each plan that has any run.

    The file is <notebook>_<figure>, with the number of the plan behind it from the second on; of
    those plans, often of many arms, only outcomes and differences are kept.  Figures of FACTORS
    come once, if any arm beside the reference has a run to show.
    """
    names = EXHIBITS.get(experiment.notebook, _OF_EVERY_PLAN)
    for number, part in enumerate(plan_studies(study, experiment), start=1):
        if part.outcomes.empty:
            continue
        for name in (name for name in names if name not in FACTORS):
            if number > 1 and name not in _OF_EVERY_PLAN:
                continue
            file = f"{experiment.notebook}_{name}" + (f"_{number}" if number > 1 else "")
            yield file, draw(part, name), caption(part, name)
    pairs = matched(study, experiment)
    if pairs is not None:
        text = caption(pairs, "differences")
        yield f"{experiment.notebook}_matched", draw(pairs, "differences"), f"{text} {_ON_MATCHED}"
    for name in (name for name in names if name in FACTORS):
        if set(_shown(study, name).outcomes["arm"]) - {study.settings.reference_arm}:
            shown = _shown(study, name)
            yield f"{experiment.notebook}_{name}", draw(shown, name), caption(study, name)


def caption(study: Study, name: str) -> str:
    """What a figure shows, and of how many runs; every number is counted in the tables."""
    shown = _shown(study, name).outcomes
    count, over = len(shown), int(shown["finished"].sum())
    blocks = shown["block"].nunique()
    counts = f"{count} runs" if over == count else f"{count} runs, {over} of them over"
    played = "".join(f" {text}" for task, text in PLAYED_BY.items() if _has_task(shown, task))
    return f"{CAPTIONS[name]} All seeds: {counts}, from {blocks} warm starts.{played}"


PLAYED_BY = {
    "household": "Household tasks are played by rules in Python that stand in for ALFWorld's "
    "engine, in generated rooms: no result on ALFWorld's own games."
}
"""What every caption says of a task."""


def _has_task(outcomes: pd.DataFrame, task: str) -> bool:
    """Whether a table has runs on the task or a variant of it."""
    return bool(outcomes["task"].str.partition("-")[0].eq(task).any())


def _shown(study: Study, name: str) -> Study:
    """What a figure shows of a study: of a factor, the tasks and arms of its rows."""
    if name not in FACTORS:
        return study
    rows = FACTORS[name](study)
    return study.only(rows["task"].dropna().tolist() or study.settings.tasks, rows["arm"])


def _reward(study: Study) -> Figure:
    return _curve(study, "reward", curves.training_reward)


def _entropy(study: Study) -> Figure:
    return _curve(study, "entropy", curves.total_entropy)


def _clip_fraction(study: Study) -> Figure:
    return _curve(study, "clip_fraction", curves.clip_fraction)


def _turns(study: Study) -> Figure:
    return _curve(study, "turns", curves.turns)


def _decision_alone(study: Study) -> Figure:
    """Runs that were made before their decisions were counted are not drawn."""
    column, metrics = "failed_decision_alone", study.runs.metrics
    counted = metrics.reindex(columns=list(dict.fromkeys([*metrics, column])))
    return _curve(study, column, curves.decision_alone, counted.dropna(subset=[column]))


def _curve(
    study: Study,
    column: str,
    figure: Callable[..., Figure],
    metrics: pd.DataFrame | None = None,
) -> Figure:
    """A column of the metrics, those of the study if none are given."""
    weight, (tasks, arms) = study.settings.smoothing, study.grid
    rows = study.runs.metrics if metrics is None else metrics
    table = sources.smoothed(rows, column, weight)
    return figure(table, tasks=tasks, arms=arms, weight=weight)


def _search_first(study: Study) -> Figure:
    shifts, (tasks, arms) = sources.shift_table(study.runs, study.settings), study.grid
    threshold = study.settings.shift_threshold
    metrics = study.runs.metrics
    return curves.search_first(metrics, shifts, tasks=tasks, arms=arms, threshold=threshold)


def _decision_vs_execution(study: Study) -> Figure:
    settings, (tasks, arms) = study.settings, study.grid
    return turn_figures.decision_vs_execution(
        sources.turn_entropies(study.runs, settings),
        sources.shift_table(study.runs, settings),
        tasks=tasks,
        arms=arms,
        k=settings.first_k,
        weight=settings.smoothing,
    )


def _outcomes(study: Study) -> Figure:
    level = study.settings.confidence_level
    intervals = outcomes.outcome_intervals(study.outcomes, level=level)
    return arm_figures.arm_outcomes(study.outcomes, intervals, *study.grid)


def _behaviour(study: Study) -> Figure:
    table, panels = behaviour_rows.behaviour_rows(study)
    level = study.settings.confidence_level
    intervals = outcomes.outcome_intervals(table, "value", level=level)
    return arm_figures.arm_outcomes(
        table, intervals, panels, study.settings.arms, column="value", label="mean over the steps"
    )


def _differences(study: Study) -> Figure:
    settings, names = study.settings, {"difference_low": "low", "difference_high": "high"}
    columns = ["task", "arm", "difference", *names, "seeds"]
    rows = pd.DataFrame(study.comparisons()).reindex(columns=columns)
    return arm_figures.arm_differences(
        rows.rename(columns=names | {"seeds": "n"}),
        outcomes.rate_rows(study.outcomes, level=settings.confidence_level),
        *study.grid,
        reference_arm=settings.reference_arm,
        level=settings.confidence_level,
    )


def _variance(study: Study) -> Figure:
    reference = study.settings.reference_arm
    rows = outcomes.spread_rows(study.outcomes, reference, level=study.settings.confidence_level)
    return arm_figures.variance_over_seeds(
        study.outcomes, rows, *study.grid, reference_arm=reference
    )


def _collapse(study: Study) -> Figure:
    return collapse_figures.collapse_curves(
        study.runs.metrics, study.outcomes, *study.grid, threshold=outcomes.COLLAPSE_THRESHOLD
    )


def _warnings(study: Study) -> Figure:
    """Around collapses; where no run collapsed, around shifts."""
    collapsed = study.outcomes["collapse_step"].notna().any()
    event, name = ("collapse_step", "collapse") if collapsed else ("shift_step", "shift")
    rows = collapse_figures.warning_rows(
        study.runs, study.outcomes, event=event, first_k=study.settings.first_k
    )
    return collapse_figures.early_warnings(
        rows, study.outcomes, *study.grid, event=event, name=name
    )


def _actions(study: Study) -> Figure:
    turns, weight = range(3), study.settings.smoothing
    table = turn_actions.action_rows(study.runs, turns, weight=weight)
    return turn_actions.turn_panel(table, *study.grid, turns=turns, weight=weight)


def _divergence(study: Study) -> Figure:
    weight = study.settings.smoothing
    return aem_figures.entropy_divergence(
        sources.smoothed(study.runs.metrics, "entropy", weight),
        *study.grid,
        reference_arm=study.settings.reference_arm,
        weight=weight,
    )


def _exploration(study: Study) -> Figure:
    metrics, weight = study.runs.metrics, study.settings.smoothing
    smooth = [sources.smoothed(metrics, column, weight) for column in ("entropy", "reward")]
    return aem_figures.exploration(*smooth, metrics, *study.grid, weight=weight)


def _sweep(study: Study) -> Figure:
    shown, rows = _shown(study, "lambda_sweep"), aem_figures.sweep_rows(study)
    level = study.settings.confidence_level
    baseline = outcomes.outcome_intervals(shown.outcomes, level=level)
    baseline = baseline[baseline["arm"] == study.settings.reference_arm]
    return aem_figures.lambda_sweep(
        rows, baseline, shown.settings.tasks, list(dict.fromkeys(rows["guard"]))
    )


def _clips(study: Study) -> Figure:
    return factor_figures.clip_grid(factor_figures.clip_rows(study))


def _time(study: Study) -> Figure:
    rows = cost_figures.time_rows(study.settings)
    (tasks, arms) = study.grid
    return cost_figures.time_breakdown(
        rows[rows["task"].isin(tasks) & rows["arm"].isin(arms)], tasks, arms
    )


def _difficulty(study: Study) -> Figure:
    rows = factor_figures.difficulty_rows(study.settings, "search")
    (tasks, arms) = study.grid
    return factor_figures.difficulty_bins(
        rows[rows["task"].isin(tasks) & rows["arm"].isin(arms)], tasks, arms
    )


def _reach(study: Study) -> Figure:
    """Steps until the training reward is reached that the reference arm ends with on the task."""
    settings, parts = study.settings, []
    for task, runs in study.outcomes.groupby("task", sort=False):
        ends = runs.loc[runs["arm"] == settings.reference_arm, "reward_last"]
        own = study.only([task], settings.arms)
        rows = outcomes.reach_rows(
            own.runs, "reward", float(ends.mean()), window=settings.shift_window
        )
        parts += [rows] if ends.notna().any() else []
    table = pd.concat(parts) if parts else pd.DataFrame(columns=["task", "arm", "steps", "last"])
    label = f"the training reward that {style.arm_label(settings.reference_arm)} ends with"
    return arm_figures.steps_to_reach(table, *study.grid, label=label)


GALLERY: dict[str, Callable[[Study], Figure]] = {
    "training_reward": _reward,
    "total_entropy": _entropy,
    "clip_fraction": _clip_fraction,
    "turns": _turns,
    "search_first": _search_first,
    "decision_vs_execution": _decision_vs_execution,
    "decision_alone": _decision_alone,
    "outcomes": _outcomes,
    "behaviour": _behaviour,
    "teacher_agreement": teacher_figures.agreement,
    "teacher_association": teacher_figures.association,
    "teacher_consequences": teacher_figures.consequences,
    "differences": _differences,
    "plan_following": plan_figures.plan_following,
    "variance_over_seeds": _variance,
    "collapse": _collapse,
    "early_warnings": _warnings,
    "actions_by_turn": _actions,
    "entropy_divergence": _divergence,
    "exploration": _exploration,
    "time_breakdown": _time,
    "difficulty": _difficulty,
    "steps_to_reach": _reach,
    **rollout_figures.FIGURES,
    "clip_grid": _clips,
    "lambda_sweep": _sweep,
}
