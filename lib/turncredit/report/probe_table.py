"""What the surprisal probes found, beside the runs that they probed and as a row of its own."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from turncredit import params, paths
from turncredit.claims import PROBED
from turncredit.plots.sources import RUN
from turncredit.results import RunDirectory

PROBE = "14_surprisal_probe"
"""Notebook that probes one run, and a language model."""
PROBES = "25_probe_over_seeds"
"""Notebook that probes several runs."""
FULL = "probe-full"
"""Folder beside that of the tier in which `make probe-full` probes the language model."""
MODEL, UNTRAINED = "language_model", "untrained"
"""Task and arm of the language model's row; also the name of its folder."""
AGREEMENT = "agreement.csv"
BOUNDS = (*(f"{name}_{end}" for name in PROBED for end in ("low", "high")), "probe_states")


def probe_source(tier: str) -> str:
    """The table that the probes of trained runs are read from, from results/ on: that of several
    runs where they were probed, else that of one.
    """
    several = f"results/{tier}/{PROBES}/{AGREEMENT}"
    found = source_files(several, tier)
    return several if found else f"results/{tier}/{PROBE}/{AGREEMENT}"


def model_source(tier: str) -> str:
    """The same of the language model: the probe at full size where it was made.

    It is asked for on tiny policies alone (`make probe-full` is one of tier cpu).
    """
    below = f"{PROBE}/{MODEL}/{AGREEMENT}"
    full = f"results/{FULL}/{below}"
    return full if tier == "cpu" and source_files(full, tier) else f"results/{tier}/{below}"


def source_files(pattern: str, tier: str) -> list[Path]:
    """The files of a path or pattern from results/ on, in order; of another folder than the tier's
    they lie beside it.
    """
    _, folder, *below = pattern.split("/")
    root = paths.results(tier)
    root = root if folder == tier else root.parent / folder
    return sorted(root.glob("/".join(below))) if root.is_dir() else []


def with_probes(table: pd.DataFrame, tier: str, tasks: Sequence[str]) -> pd.DataFrame:
    """The table of runs with PROBED and BOUNDS where a run was probed, and a row for the language
    model if its agreement is there and MODEL is one of the tasks.
    """
    (saved,) = source_files(probe_source(tier), tier) or [None]
    if saved is not None:
        table = _beside(table, _found(pd.read_csv(saved), tier))
    (model,) = source_files(model_source(tier), tier) or [None]
    return table if model is None or MODEL not in tasks else _with_model(table, model, tier)


def model_note(tier: str) -> str:
    """What stands behind the language model's number: its table's folder, and its manifest or that
    it is missing.
    """
    folder, _, _ = model_source(tier).rpartition("/")
    if source_files(f"{folder}/manifest.json", tier):
        return f"from {folder}"
    return (
        f"from {folder}, whose manifest.json (settings, model, hashes of the responses) is missing"
    )


def _found(agreement: pd.DataFrame, tier: str) -> dict[tuple[str, int], dict[str, float]]:
    """What each probed run has, by task and seed; nothing if the one run of PROBE is not known."""
    if "world" in agreement:
        groups = agreement.groupby(["world", "seed"])
        return {(str(task), int(seed)): _agreement(own) for (task, seed), own in groups}
    given = paths.params(tier) / f"{PROBE}.yaml"
    if not given.exists():
        return {}
    asked = params.read_yaml(given)
    return {(asked["task_name"], asked["seed"]): _agreement(agreement)}


def _beside(table: pd.DataFrame, found: dict[tuple[str, int], dict[str, float]]) -> pd.DataFrame:
    """A probed run is one of plain GRPO; without runs in the table there is nothing to stand by."""
    rows = [
        dict(zip(RUN, (task, "grpo", seed), strict=True)) | values
        for (task, seed), values in found.items()
    ]
    if table.empty or not rows:
        return table
    return table.merge(pd.DataFrame(rows), on=RUN, how="left")


def _with_model(table: pd.DataFrame, agreement: Path, tier: str) -> pd.DataFrame:
    manifest = RunDirectory(agreement.parent).read_manifest() or {}
    row = {"notebook": PROBE, "task": MODEL, "arm": UNTRAINED, "seed": 0, "block": math.nan}
    row |= {"run": model_source(tier).rpartition("/")[0]}
    row |= {"code_hash": manifest.get("identity", {}).get("code")}
    row |= _agreement(pd.read_csv(agreement))
    return pd.concat([table, pd.DataFrame([row])], ignore_index=True)


def _agreement(table: pd.DataFrame) -> dict[str, float]:
    """PROBED and BOUNDS: recorded responses, one a state, silent ones counted half."""
    overall = table[(table["responses"] == "recorded") & (table["by"] == "all")]
    pearson = overall[overall["measure"] == "pearson"].iloc[0]
    signs = overall[(overall["measure"] == "sign_agreement") & (overall["silent"] == "half")]
    both = dict(zip(PROBED, (pearson, signs.iloc[0]), strict=True))
    ends = (("", "value"), ("_low", "low"), ("_high", "high"))
    found = {
        f"{name}{end}": float(row[column]) for name, row in both.items() for end, column in ends
    }
    return found | {"probe_states": float(pearson["pairs"])}
