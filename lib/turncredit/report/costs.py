"""What the runs cost, and the manifests that every number goes back to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from turncredit import paths
from turncredit.results import table_paths
from turncredit.storage import read_mapping, sha256_file

_PLAIN = ("code_hash", "params_hash", "stop_reason", "steps_done", "seconds")


def manifest_rows(tier: str) -> list[dict[str, Any]]:
    """One row per manifest under results/<tier>, in order of path.

    notebook; path, from results/ on; sha256 of the manifest; what it says of code_hash (probes and
    audits: `code` of their `identity`), params_hash, stop_reason, steps_done and seconds (None
    where it does not), and versions: the packages, `name version`, separated by commas.
    """
    root = paths.results(tier)
    rows = []
    for path in sorted(root.rglob("manifest.json"), key=_in_order):
        manifest = read_mapping(path, "delete it to rerun") or {}
        parts = path.relative_to(root).parts
        versions = manifest.get("versions") or {}
        named = ", ".join(f"{name} {found}" for name, found in versions.items() if found)
        rows.append(
            {"notebook": parts[0], "path": "/".join(["results", tier, *parts])}
            | {"sha256": sha256_file(path)}
            | {name: manifest.get(name) for name in _PLAIN}
            | {"code_hash": _code(manifest), "versions": named}
        )
    return rows


def is_run(row: Mapping[str, Any]) -> bool:
    """Whether a manifest is that of a training run: results/<tier>/notebook/task/arm/seed_<s>."""
    parts = row["path"].split("/")
    return len(parts) == 7 and parts[-2].startswith("seed_")


def _code(manifest: Mapping[str, Any]) -> str | None:
    """The hash of the code that wrote a manifest; probes and audits name that of their own part."""
    return manifest.get("code_hash") or (manifest.get("identity") or {}).get("code")


def cost_rows(tier: str, manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per notebook with finished runs: runs, steps, tokens, hours.

    manifests: see `manifest_rows`.  tokens: sampled in training, summed over metrics.csv.  hours:
    of the processes that made the runs, one core each; warm starts, probes and audits write down no
    seconds, so that they are not among them.
    """
    runs = pd.DataFrame([row for row in manifests if is_run(row)])
    if runs.empty:
        return []
    return [
        {
            "notebook": notebook,
            "runs": len(own),
            "steps": int(own["steps_done"].fillna(0).sum()),
            "tokens": _tokens(paths.results(tier) / notebook),
            "hours": float(own["seconds"].astype(float).sum() / 3600),
        }
        for notebook, own in runs.groupby("notebook", sort=True)
    ]


def _tokens(root: Path) -> int:
    """Sampled tokens of all runs that are over."""
    tables = [p.with_name("metrics.csv") for p in table_paths(root, "manifest.json")]
    tables = [pd.read_csv(p, usecols=lambda name: name == "tokens") for p in tables if p.exists()]
    return int(sum(table["tokens"].sum() for table in tables if "tokens" in table))


def _in_order(path: Path) -> list[tuple[str, int]]:
    """Folders by name, those that end in a number by that number."""
    keys = []
    for part in path.parts:
        name, _, number = part.rpartition("_")
        keys.append((name, int(number)) if number.isdecimal() else (part, -1))
    return keys
