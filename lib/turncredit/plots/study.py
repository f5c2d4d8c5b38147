"""The runs of an experiment beside those it is compared with, read once for all its figures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from turncredit import params, paths
from turncredit.comparisons import comparison_rows
from turncredit.plans import Experiment, Plan
from turncredit.plots.outcomes import outcome_rows
from turncredit.plots.sources import FigureParams, Runs, read_runs
from turncredit.results import check_comparable, write_table


@dataclass(frozen=True)
class Study:
    """What an experiment, or one of its plans, came to."""

    settings: FigureParams
    """Those of the figure notebook, with the tasks and arms that are studied."""
    runs: Runs
    outcomes: pd.DataFrame
    """One row per run, see `outcome_rows`."""

    @property
    def grid(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tasks and arms, in the order of the parameters."""
        return self.settings.tasks, self.settings.arms

    def comparisons(self) -> list[dict[str, Any]]:
        """Every arm against the reference, see `comparison_rows`."""
        reference, level = self.settings.reference_arm, self.settings.confidence_level
        return comparison_rows(self.outcomes, reference, level=level)

    def only(
        self,
        tasks: Iterable[str],
        arms: Iterable[str],
        *,
        reference_arm: str | None = None,
        seeds: Iterable[int] | None = None,
    ) -> "Study":
        """The same of fewer tasks, arms and seeds (None: all), and of the reference arm.

        reference_arm: another one than that of this study.
        """
        reference = reference_arm or self.settings.reference_arm
        arms = tuple(dict.fromkeys([reference, *arms]))
        settings = replace(
            self.settings, tasks=tuple(dict.fromkeys(tasks)), arms=arms, reference_arm=reference
        )
        chosen = set(self.outcomes["seed"] if seeds is None else seeds)
        runs = Runs(*(_listed(table, settings, chosen) for table in vars(self.runs).values()))
        return Study(settings, runs, _listed(self.outcomes, settings, chosen))

    def save(self) -> None:
        """Write outcomes.csv and comparisons.csv into the folder of the first experiment.

        Where nothing can be compared, no earlier comparisons.csv stays.
        """
        folder = paths.results(self.settings.tier) / self.settings.experiments[0]
        write_table(folder / "outcomes.csv", self.outcomes.to_dict("records"))
        comparisons = self.comparisons()
        if comparisons:
            write_table(folder / "comparisons.csv", comparisons)
        else:
            (folder / "comparisons.csv").unlink(missing_ok=True)


def open_study(
    experiment: Experiment,
    *,
    reference_arm: str = "grpo",
    beside: Sequence[str] = (),
    also: Sequence[str] = (),
) -> Study:
    """Read the runs of an experiment and, of those `beside` it, the runs on its tasks and arms.

    beside: notebooks that hold the reference arm, or arms that are `also` to be compared.
    Smoothing, thresholds and windows are those of the figure notebook.
    Raises ValueError if the runs must not be compared (`check_comparable`).
    """
    tier, arms = experiment.tier, [arm for plan in experiment.plans for arm in plan.arms]
    settings = params.load(FigureParams, paths.params(tier) / "90_figures.yaml")
    settings = replace(
        settings,
        experiments=(experiment.notebook, *beside),
        tasks=tuple(dict.fromkeys(t for plan in experiment.plans for t in plan_tasks(plan))),
        arms=tuple(dict.fromkeys([reference_arm, *also, *arms])),
        reference_arm=reference_arm,
    )
    check_comparable([paths.results(tier) / name for name in settings.experiments])
    runs = read_runs(settings, partly=True)
    outcomes = outcome_rows(
        runs,
        shift_threshold=settings.shift_threshold,
        window=settings.shift_window,
        last=settings.comparison_window,
    )
    return Study(settings, runs, outcomes)


def plan_studies(study: Study, experiment: Experiment, *, also: Sequence[str] = ()) -> list[Study]:
    """The study of each plan, with the reference arm, and others that are `also` to be shown.

    Plans of the same arms are one study, their tasks side by side.  It holds the seeds that the
    plan's arms have, here or beside: else the reference arm, which has more, would be compared with
    what others lack.
    """
    plans: dict[tuple[str, ...], list[Plan]] = {}
    for plan in experiment.plans:
        plans.setdefault(tuple(plan.arms), []).append(plan)
    return [_plan_study(study, arms, group, also) for arms, group in plans.items()]


def _plan_study(
    study: Study, arms: Sequence[str], plans: Sequence[Plan], also: Sequence[str]
) -> Study:
    """The study of plans of the same arms."""
    tasks = [task for plan in plans for task in plan_tasks(plan)]
    asking = [arm for arm in arms if arm != study.settings.reference_arm] or arms
    runs = study.outcomes[study.outcomes["task"].isin(tasks) & study.outcomes["arm"].isin(asking)]
    seeds = {seed for plan in plans for seed in plan.seeds} | set(runs["seed"])
    return study.only(tasks, [*also, *arms], seeds=seeds)


def plan_tasks(plan: Plan) -> list[str]:
    """The tasks of a plan by the names of their folders, which tell the variant."""
    return [
        task if variant is None else f"{task}-{variant}"
        for task in plan.tasks
        for variant in plan.variants or [None]
    ]


def _listed(table: pd.DataFrame, settings: FigureParams, seeds: set[int]) -> pd.DataFrame:
    listed = table["task"].isin(settings.tasks) & table["arm"].isin(settings.arms)
    return table[listed & table["seed"].isin(seeds)].reset_index(drop=True)
