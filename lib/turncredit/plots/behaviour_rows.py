"""How arms behave along their runs, whatever it comes to."""

import pandas as pd

from turncredit.plots.sources import RUN
from turncredit.plots.study import Study

MEASURES = {
    "distinct_actions": "distinct action sequences",
    "distinct_texts": "distinct texts",
    "damped_positive": "damped turns, A > 0",
    "damped_negative": "damped turns, A < 0",
    "clip_fraction_positive": "clipped tokens, A > 0",
    "clip_fraction_negative": "clipped tokens, A < 0",
}
"""Columns of metrics.csv and what they are to a reader; all are shares."""


def behaviour_rows(study: Study) -> tuple[pd.DataFrame, list[str]]:
    """Each run's mean over its steps of every measure, and the measures as panels of a figure.

    Result: task, arm, seed, block, collapsed, value; `task` is the panel, which names the task too
    where the study has several.  A step at which a share is missing does not count; a run
    without any is missing.
    """
    metrics = study.runs.metrics.reindex(columns=[*RUN, *MEASURES])
    means = metrics.groupby(RUN, as_index=False, sort=False)[list(MEASURES)].mean()
    runs = study.outcomes[[*RUN, "block", "collapsed"]].merge(means, on=RUN, how="left")
    several = len(study.settings.tasks) > 1
    panels = {
        (task, measure): f"{task}: {label}" if several else label
        for task in study.settings.tasks
        for measure, label in MEASURES.items()
    }
    parts = [
        runs[runs["task"] == task].assign(task=panel, value=lambda own, m=measure: own[m])
        for (task, measure), panel in panels.items()
    ]
    columns = [*RUN, "block", "collapsed", "value"]
    return pd.concat(parts, ignore_index=True)[columns], list(panels.values())
