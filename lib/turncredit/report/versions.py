"""Which code the runs come from, and that runs which are compared are runs of the same task."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from turncredit.results import RunDirectory, table_paths, task_values

SHOWN = 16
"""Letters of a hash that name it on the page."""


def code_warnings(manifests: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences about finished runs of several versions of the code; none if there is one.

    manifests: see `manifest_rows`.
    """
    runs = [row for row in manifests if row["path"].split("/")[-2].startswith("seed_")]
    table = pd.DataFrame(runs, columns=["notebook", "path", "code_hash"])
    table["code_hash"] = table["code_hash"].fillna("not recorded")
    versions = table.groupby("code_hash", sort=False)["notebook"].unique()
    if len(versions) < 2:
        return []
    named = "; ".join(f"{code[:SHOWN]} in {', '.join(own)}" for code, own in versions.items())
    sentences = [f"Warning: the runs come from {len(versions)} versions of the code: {named}. What "
                 "arms of different versions differ in may be the code's doing."]  # fmt: skip
    table["place"] = table["path"].str.split("/").str[-4:-1].str.join("/")
    repeated = table.groupby("place")["code_hash"].nunique()
    twice = list(repeated.index[repeated > 1])
    if twice:
        sentences.append(f"Warning: {len(twice)} runs are there in several versions, such as "
                         f"{twice[0]}; that of the first notebook counts.")  # fmt: skip
    return sentences


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
