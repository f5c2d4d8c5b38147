"""Figures of ADRS beside the audit, from the rows that `teacher_audits` leaves."""

import math
from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from turncredit import paths
from turncredit.plots.arm_figures import arm_outcomes
from turncredit.plots.outcomes import outcome_intervals
from turncredit.plots.study import Study

TABLE = "teachers.csv"
"""In the folder of a notebook: rows of `teacher_audits.audit_teachers`."""
COLUMNS = ["task", "stage", "seed", "block", "arm", "measure", "value"]
BY_STAGE = {"start": "at first", "end": "trained"}

CONSEQUENCES = {
    "rewards": "by the reward",
    "gate": "by the gate",
    "turns": "a turn, in all",
    "tokens": "a token, in all",
}
ASSOCIATION = {"preference": "likelier success", "gap": "by the text", "tva": "value advantage"}
AGREEMENT = {
    "correlation": "correlation",
    "sign_errors": "sign errors",
    "blame_on_right": "blame on right",
}
"""Measures and what a panel calls them."""


def consequences(study: Study) -> Figure:
    """What each part of ADRS changes at the most, by arm: dots are seeds, both stages together."""
    rows = teacher_rows(study)
    largest = rows.groupby([name for name in COLUMNS if name not in ("stage", "value")], sort=False)
    rows = largest["value"].max().reset_index().assign(stage="")
    named = {("", measure): title for measure, title in CONSEQUENCES.items()}
    return _panels(study, rows, named, "largest change of an advantage")


def association(study: Study) -> Figure:
    """Whether teachers, and the policy itself, find successes likelier: dots are seeds."""
    named = _by_stage(ASSOCIATION)
    return _panels(study, teacher_rows(study), named, "share of pairs; advantage in reward")


def agreement(study: Study) -> Figure:
    """Credit by turn beside true advantages and the oracle's labels: dots are seeds."""
    return _panels(study, teacher_rows(study), _by_stage(AGREEMENT), "over turns, or tokens' blame")


def teacher_rows(study: Study) -> pd.DataFrame:
    """The rows of every TABLE that the study's notebooks have, on its tasks; COLUMNS alone."""
    folders = [paths.results(study.settings.tier) / name for name in study.settings.experiments]
    tables = [pd.read_csv(folder / TABLE) for folder in folders if (folder / TABLE).exists()]
    if not tables:
        return pd.DataFrame(columns=COLUMNS)
    rows = pd.concat(tables, ignore_index=True)[COLUMNS]
    return rows[rows["task"].isin(study.settings.tasks)]


def _by_stage(measures: Mapping[str, str]) -> dict[tuple[str, str], str]:
    return {
        (stage, measure): f"{title}, {when}"
        for measure, title in measures.items()
        for stage, when in BY_STAGE.items()
    }


def _panels(
    study: Study, rows: pd.DataFrame, named: Mapping[tuple[str, str], str], label: str
) -> Figure:
    """One panel for each (stage, measure), which names the task too where there are several."""
    tasks = list(dict.fromkeys(rows["task"])) or [study.settings.tasks[0]]
    titles, parts = [], []
    for task in tasks:
        for (stage, measure), title in named.items():
            titles.append(title if len(tasks) == 1 else f"{task}: {title}")
            here = (rows["task"] == task) & (rows["stage"] == stage) & (rows["measure"] == measure)
            parts.append(rows[here].assign(task=titles[-1], collapsed=math.nan))
    shown = pd.concat(parts, ignore_index=True)
    arms = list(dict.fromkeys(shown["arm"])) or list(study.settings.arms)
    intervals = outcome_intervals(shown, "value", level=study.settings.confidence_level)
    return arm_outcomes(shown, intervals, titles, arms, column="value", label=label)
