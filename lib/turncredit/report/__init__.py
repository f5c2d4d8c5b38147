"""The report: published claims beside what the runs came to, as tables and as one page.

`run_table` has one row per run, `probe_table` what probes add, `versions` their code, `claim_rows`
the verdicts, `costs` what it took, `sections` and `blocks` the page, `findings` gathers and saves.
"""

from turncredit.report.blocks import markdown, page
from turncredit.report.claim_rows import (
    COLUMNS,
    MOST_SEEDS,
    claim_rows,
    resolvable,
    seeds_needed,
)
from turncredit.report.costs import cost_rows, manifest_rows
from turncredit.report.findings import Findings, ReportParams, find, report_blocks, save
from turncredit.report.probe_table import source_files
from turncredit.report.run_table import run_table
from turncredit.report.sections import counts
from turncredit.report.versions import code_warnings

__all__ = [
    "COLUMNS",
    "MOST_SEEDS",
    "Findings",
    "ReportParams",
    "claim_rows",
    "code_warnings",
    "cost_rows",
    "counts",
    "find",
    "manifest_rows",
    "markdown",
    "page",
    "report_blocks",
    "resolvable",
    "run_table",
    "save",
    "seeds_needed",
    "source_files",
]
