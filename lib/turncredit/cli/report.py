"""`turncredit report`: what notebook 99 writes."""

from argparse import Namespace
from collections import Counter
from typing import Any

from turncredit import params, report
from turncredit.cli.output import note
from turncredit.cli.output import table as aligned


def read(options: Namespace) -> report.ReportParams:
    """The parameters."""
    return params.load(report.ReportParams, options.params)


def work(settings: report.ReportParams, options: Namespace) -> dict[str, Any]:
    """Judge the claims and write tables and page."""
    note(f"reading the runs of tier {settings.tier}")
    findings = report.find(settings)
    for warning in findings.warnings:
        note(warning)
    written = report.save(findings)
    verdicts = Counter(row["verdict"] for row in findings.claims)
    counts = {"runs": len(findings.runs), "verdicts": dict(sorted(verdicts.items()))}
    return counts | {"folder": findings.folder, "files": [path.name for path in written]}


def sentences(result: dict[str, Any]) -> list[str]:
    """How many tests came to what, and where the page lies."""
    rows = [{"verdict": name, "tests": count} for name, count in result["verdicts"].items()]
    page = f"{result['runs']} runs; wrote {result['folder'] / 'report.html'}"
    return [*aligned(rows), page]
