"""Everything the report is rendered from, gathered once, and its files."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from turncredit import paths
from turncredit.claims import Claim, read_claims
from turncredit.plots.sources import figure_folder
from turncredit.report.blocks import (
    Block,
    Curves,
    Heading,
    Links,
    Picture,
    Text,
    markdown,
    page,
)
from turncredit.report.claim_rows import claim_rows
from turncredit.report.costs import cost_rows, manifest_rows
from turncredit.report.curves import Chart, curve_chart
from turncredit.report.probe_table import UNTRAINED
from turncredit.report.run_table import figure_settings, notebooks, run_table
from turncredit.report.sections import (
    answer,
    claims_tables,
    comparison_tables,
    cost_tables,
    provenance,
)
from turncredit.report.versions import code_warnings
from turncredit.results import write_table
from turncredit.storage import write_text

TITLE = "Turn-level credit: what is reproduced, and what is not"
FOLDER = "99_report"


@dataclass(frozen=True)
class ReportParams:
    """The parameters of the report."""

    tier: str
    confidence_level: float
    """Of every interval."""
    power: float
    """Chance with which the number of seeds named for an open question would decide it."""

    def __post_init__(self) -> None:
        for name in ("confidence_level", "power"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not between 0 and 1")


@dataclass(frozen=True)
class Findings:
    """Tables, and the figures that are drawn already."""

    settings: ReportParams
    runs: pd.DataFrame
    """See `run_table`."""
    claims: list[dict[str, Any]]
    """See `claim_rows`."""
    comparisons: dict[str, pd.DataFrame]
    """comparisons.csv by notebook."""
    costs: list[dict[str, Any]]
    manifests: list[dict[str, Any]]
    captions: dict[str, str]
    """Of the figures, by name."""
    warnings: list[str]
    """See `code_warnings`."""
    curves: Chart | None
    """See `curve_chart`."""

    @property
    def folder(self) -> Path:
        """Where the report is written."""
        return paths.results(self.settings.tier) / FOLDER


def find(settings: ReportParams, claims: Sequence[Claim] | None = None) -> Findings:
    """Read what results/<tier> holds; nothing of it has to be there.

    claims: default those of `claims.yaml`.
    """
    tier, claims = settings.tier, read_claims() if claims is None else claims
    measured = [claim.test for claim in claims if claim.test.KIND == "measured"]
    tasks = dict.fromkeys(task for test in measured for task in test.tasks)
    runs = run_table(tier, tuple(tasks))
    level, power = settings.confidence_level, settings.power
    manifests = manifest_rows(tier)
    saved = sorted(paths.results(tier).glob("*/comparisons.csv"))
    return Findings(
        settings,
        runs,
        claim_rows(claims, runs, tier, level=level, power=power),
        {path.parent.name: pd.read_csv(path) for path in saved},
        cost_rows(tier, manifests),
        manifests,
        _captions(tier),
        code_warnings(manifests),
        curve_chart(figure_settings(tier), notebooks(tier)),
    )


def report_blocks(findings: Findings) -> list[Block]:
    """The page, section by section."""
    trained = int((findings.runs["arm"] != UNTRAINED).sum())
    settings, to = findings.settings, findings.folder
    docs, drawn = paths.repository() / "docs", figure_folder(figure_settings(settings.tier))
    pictures = [
        Picture(name.replace("_", " "), _link(drawn / f"{name}.png", to), caption)
        for name, caption in findings.captions.items()
    ]
    return [
        Heading(TITLE, 1),
        Text("Which way of assigning credit to the turns of a trajectory keeps an agent looking "
             "things up, and which published claims about it hold where the world can be checked? "
             "All policies that are trained here are tiny and start from scratch, so a claim that "
             "is not reproduced is not refuted for large ones; an untrained language model is "
             "probed alone."),
        *map(Text, findings.warnings),
        *answer(findings.claims, trained, settings.power),
        *claims_tables(findings.claims),
        Text(f"Intervals are at level {settings.confidence_level:g}, each for itself: nothing "
             "corrects for the number of tests."),
        *comparison_tables(findings.comparisons),
        Heading("The tasks"),
        Text("How the tasks were found, with the baseline alone and before any method was tried, "
             "and why such tasks:"),
        Links((("regimes", _link(docs / "regimes.md", to)),)),
        *([Heading("Training curves"), Curves(findings.curves)] if findings.curves else []),
        Heading("Figures"),
        *(pictures or [Text("No figures are drawn yet.")]),
        *cost_tables(findings.costs, findings.manifests),
        *provenance(findings.claims, findings.manifests),
        Links(tuple((name, name) for name, rows in _tables(findings).items() if rows)),
    ]  # fmt: skip


def save(findings: Findings) -> list[Path]:
    """Write the tables and the page, report.md and report.html, into `findings.folder`.

    A table without rows is left out, and an older one removed.  Two calls write equal bytes.
    """
    for name, rows in _tables(findings).items():
        target = findings.folder / name
        if rows:
            write_table(target, rows)
        else:
            target.unlink(missing_ok=True)
    blocks = report_blocks(findings)
    write_text(findings.folder / "report.md", markdown(blocks))
    write_text(findings.folder / "report.html", page(TITLE, blocks))
    return sorted(path for path in findings.folder.iterdir() if path.name[0] != ".")


def _tables(findings: Findings) -> dict[str, list[dict[str, Any]]]:
    return {
        "claims.csv": findings.claims,
        "outcomes.csv": findings.runs.to_dict("records"),
        "costs.csv": findings.costs,
        "manifests.csv": findings.manifests,
    }


def _captions(tier: str) -> dict[str, str]:
    """Captions of the figures that are there."""
    folder = figure_folder(figure_settings(tier))
    path = folder / "captions.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: text for name, text in found.items() if (folder / f"{name}.png").exists()}


def _link(target: Path, folder: Path) -> str:
    """The way from the page to a file."""
    return Path(os.path.relpath(target, folder)).as_posix()
