"""Which code the runs come from, and that runs which are compared are runs of the same task."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from turncredit.report.costs import is_run
from turncredit.results import RunDirectory, table_paths, task_values

SHOWN = 16
"""Letters of a hash that name it on the page."""


def code_warnings(manifests: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences about finished runs of several versions of the code; none if there is one.

    manifests: see `manifest_rows`.  Which notebooks hold which version, the commonest first, and
    which of them hold several; probes and audits are hashed by their own parts of the code, so that
    they are no versions of the runs'.
    """
    runs = [row for row in manifests if is_run(row)]
    table = pd.DataFrame(runs, columns=["notebook", "path", "code_hash"])
    table["code_hash"] = table["code_hash"].fillna("not recorded")
    versions = sorted(table.groupby("code_hash", sort=False), key=lambda one: -len(one[1]))
    if len(versions) < 2:
        return []
    named = "; ".join(f"{code[:SHOWN]}: {_notebooks(own)}" for code, own in versions)
    sentences = [f"Warning: the runs come from {len(versions)} versions of the code. {named}. What "
                 "arms of different versions differ in may be the code's doing."]  # fmt: skip
    mixed = table.groupby("notebook")["code_hash"].nunique()
    if (mixed > 1).any():
        sentences.append("Warning: of several versions in itself: "
                         f"{', '.join(mixed.index[mixed > 1])}.")  # fmt: skip
    table["place"] = table["path"].str.split("/").str[-4:-1].str.join("/")
    repeated = table.groupby("place")["code_hash"].nunique()
    twice = list(repeated.index[repeated > 1])
    if twice:
        where = table[table["place"].isin(twice)]["notebook"].unique()
        sentences.append(f"Warning: {len(twice)} runs are there in several versions, such as "
                         f"{twice[0]}, in {', '.join(where)}; that of the first notebook "
                         "counts.")  # fmt: skip
    return sentences


def _notebooks(runs: pd.DataFrame) -> str:
    """Names of the notebooks with their numbers of runs, in order."""
    counts = runs["notebook"].value_counts().sort_index()
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def require_same_tasks(roots: Iterable[Path]) -> None:
    """Raise ValueError naming two finished runs of one task and seed whose task parameters differ.

    Unlike `results.check_comparable` it takes runs of several versions of the code: a report on
    what is there says so instead (`code_warnings`).
    """
    first: dict[tuple[str, str], tuple[Path, Any]] = {}
    for path in (path for root in roots for path in table_paths(root, "manifest.json")):
        values = (RunDirectory(path.parent).read_manifest() or {}).get("params")
        if not values:
            raise ValueError(f"{path}: not the manifest of a run, it lacks params")
        shared = task_values(values)
        other, expected = first.setdefault((path.parts[-4], path.parts[-2]), (path, shared))
        if shared != expected:
            raise ValueError(f"{path} and {other} come from different task parameters; "
                             "rerun the older")  # fmt: skip
