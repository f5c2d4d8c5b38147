"""The sections of the report, every sentence and cell rendered from tables."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from turncredit.claims import (
    DIRECTION_ONLY,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    RULE,
)
from turncredit.plots.style import arm_label, task_label
from turncredit.report.blocks import Block, Heading, Table, Text
from turncredit.report.claim_rows import MOST_SEEDS
from turncredit.report.costs import is_run
from turncredit.report.versions import SHOWN

Row = dict[str, Any]
DECIDED = (REPRODUCED, DIRECTION_ONLY, NOT_REPRODUCED)
"""Verdicts, as the page lists them."""
LONG = 14
"""Rows from which on a table is folded away."""


def number(value: float | None, form: str = ".3g") -> str:
    """Three significant digits of the value as the tables hold it; a dash for none or no end.

    >>> number(-0.01234), number(float("nan")), number(20.0), number(-0.0)
    ('−0.0123', '–', '20', '0')
    """
    if value is None or not math.isfinite(value):
        return "–"
    stored = float(f"{value:.7g}") + 0.0  # as a cell, and no -0
    return format(stored, form).replace("-", "−")


def interval(row: Row, name: str = "ours", low: str = "low", high: str = "high") -> str:
    """A number with its interval, without one if it has no ends."""
    ends = [number(row[low]), number(row[high])]
    return number(row[name]) if "–" in ends else f"{number(row[name])} [{ends[0]}, {ends[1]}]"


def seeds(needed: float) -> str:
    """How many seeds it takes; a dash where that is not known.

    >>> seeds(12.0), seeds(math.inf), seeds(math.nan)
    ('12', 'more than 1,000', '–')
    """
    return f"more than {MOST_SEEDS:,}" if needed == math.inf else number(needed, ".0f")


def short_name(claim: str) -> str:
    """A claim's id as words."""
    return claim.replace("-", " ")


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """How many tests came to what; the parts of `NOT_TESTABLE` are told apart by the numbers."""
    found = dict.fromkeys((*DECIDED, "open", "not run", "beyond"), 0)
    for row in rows:
        verdict = row["verdict"]
        if verdict == NOT_TESTABLE:
            measured = not math.isnan(row["ours"])
            verdict = "open" if measured else "not run" if row["task"] else "beyond"
        found[verdict] += 1
    return found


def answer(rows: Sequence[Row], runs: int, power: float) -> list[Block]:
    """What the verdicts add up to, what is established, and what is not and why."""
    found, claims = counts(rows), len({row["claim"] for row in rows})
    left = sum(found[part] for part in ("open", "not run", "beyond"))
    blocks: list[Block] = [Heading("The answer")]
    if runs == 0:
        blocks.append(Text("There are no results: no finished run was found, so nothing that "
                           "needs a run is tested, and no verdict rests on one."))  # fmt: skip
    blocks.append(
        Text(
            f"{claims} published claims make {len(rows)} tests, since a claim is tested on each "
            f"task by itself. Reproduced: {found[REPRODUCED]}. Direction only: "
            f"{found[DIRECTION_ONLY]}. Not reproduced: {found[NOT_REPRODUCED]}. Not testable here: "
            f"{left}, of which {found['open']} have a number that does not decide, "
            f"{found['not run']} have no run with such a number, "
            f"and {found['beyond']} are beyond what is run here."
        )
    )
    blocks.append(Text(RULE))
    decided = [row for row in rows if row["verdict"] in DECIDED]
    undecided = [row for row in rows if row["verdict"] == NOT_TESTABLE and _known(row["ours"])]
    return [*blocks, *_established(decided), *_open(undecided, power)]


def _established(rows: Sequence[Row]) -> list[Block]:
    if not rows:
        return [Text("Nothing is established: no interval from enough seeds decides a claim.")]
    cells = tuple(
        (short_name(row["claim"]), row["verdict"], task_label(row["task"]), interval(row),
         row["unit"], str(row["seeds"]))
        for row in sorted(rows, key=lambda row: DECIDED.index(row["verdict"]))
    )  # fmt: skip
    header = ("claim", "verdict", "task", "ours [interval]", "unit", "seeds")
    text = "Each by its own interval: nothing corrects for the number of tests."
    return [
        Heading("What is established", 3), Text(text), Table(header, cells, badges=("verdict",)),
    ]  # fmt: skip


def _open(rows: Sequence[Row], power: float) -> list[Block]:
    if not rows:
        return []
    cells = tuple(
        (short_name(row["claim"]), task_label(row["task"]), interval(row), str(row["seeds"]),
         number(row["resolvable"]), seeds(row["seeds_needed"]), row["reason"])
        for row in rows
    )  # fmt: skip
    told = sum(math.isfinite(row["seeds_needed"]) for row in rows)
    text = (
        "These have a number but no verdict. Resolvable is the distance from the bound of the "
        f"claim that the seeds at hand would have decided with a chance of {power:g}, in the unit "
        f"of the claim. For {told} of them the table says how many seeds an arm would decide them "
        "with that chance, if the published effect, or else the one seen here, is the true one; "
        "beyond a thousand it says no more than that. A dash: the rule has no such number, or too "
        "few seeds have a spread."
    )
    header = ("claim", "task", "ours [interval]", "seeds", "resolvable", "seeds needed", "why")
    folded = f"{len(rows)} tests are undecided" if len(rows) >= LONG else ""
    return [Heading("What is undecided", 3), Text(text), Table(header, cells, folded)]


def claims_tables(rows: Sequence[Row]) -> list[Block]:
    """Every claim once, by source; tests without a number share a line if they share a reason."""
    blocks: list[Block] = [Heading("The claims, one by one")]
    for source, own in itertools.groupby(rows, key=lambda row: row["source"].split(",")[0]):
        header = ("claim", "published", "task", "ours [interval]", "seeds", "verdict", "why")
        lines = []
        for _, tests in itertools.groupby(own, key=lambda row: row["claim"]):
            lines += _claim_lines(list(tests))
        blocks += [Heading(source, 3), Table(header, tuple(lines), badges=("verdict",))]
    return blocks


def _claim_lines(tests: list[Row]) -> list[tuple[str, ...]]:
    """The lines of one claim; its sentence and published numbers stand in the first."""
    first = tests[0]
    where = first["source"].partition(", ")[2]
    sentence = first["sentence"].strip().removesuffix(".")
    heads = [(f"{sentence} ({where}).", first["published"].replace("_", " ") or "–")]
    numbers = [row for row in tests if _known(row["ours"])]
    silent: dict[tuple[str, str], list[Row]] = {}
    for row in tests:
        if not _known(row["ours"]):
            silent.setdefault((row["verdict"], row["reason"]), []).append(row)
    lines = [
        (task_label(row["task"]), f"{interval(row)} {row['unit']}", str(row["seeds"]),
         row["verdict"], row["reason"])
        for row in numbers
    ]  # fmt: skip
    for (verdict, reason), alike in silent.items():
        tasks = ", ".join(task_label(row["task"]) for row in alike) or "–"
        lines.append((tasks, "–", "–", verdict, reason))
    heads += [("", "")] * (len(lines) - 1)
    return [head + line for head, line in zip(heads, lines, strict=True)]


def comparison_tables(tables: dict[str, pd.DataFrame]) -> list[Block]:
    """Arms against the reference, experiment by experiment, as comparisons.csv has them."""
    blocks: list[Block] = [Heading("Every arm against its reference")]
    if not tables:
        return [*blocks, Text("No experiment has saved a comparison.")]
    blocks.append(
        Text(
            "Differences are in the final exact match, paired by seed within warm starts. Effect "
            "is Hedges' g, in units of the spread of runs; improvement the chance that a run of "
            "the arm ends above one of the reference; IQM the mean of the middle half of the runs, "
            "of the arm and of the reference. A run has collapsed if its final policy hardly ever "
            "sees the evidence, and the difference of these shares is taken within warm starts; p "
            "is the mid-p of the exact test within warm starts (Cochran, Mantel and Haenszel), "
            "which can be a little below the exact one, allowing for the number of arms of the "
            "task (Holm); Fisher's p is that of all seeds together, for this arm alone."
        )
    )
    header = ("task", "arm", "reference", "seeds", "difference [interval]", "effect [interval]",
              "improvement [interval]", "IQM", "reference IQM", "collapsed",
              "reference collapsed", "collapse difference [interval]", "p",
              "Fisher's p")  # fmt: skip
    for notebook, table in tables.items():
        rows = tuple(_comparison(row) for row in table.to_dict("records"))
        folded = f"{len(rows)} comparisons" if len(rows) >= LONG else ""
        blocks += [Heading(notebook, 3), Table(header, rows, folded)]
    return blocks


def _comparison(row: Row) -> tuple[str, ...]:
    return (
        task_label(row["task"]),
        arm_label(row["arm"]),
        arm_label(row["reference_arm"]),
        number(row["seeds"], ".0f"),
        *(_bounded(row, name) for name in ("difference", "effect", "improvement")),
        number(row.get("iqm")),
        number(row.get("reference_iqm")),
        f"{row['collapsed']:.0f} of {row['collapsed_of']:.0f}",
        f"{row['reference_collapsed']:.0f} of {row['reference_of']:.0f}",
        _bounded(row, "collapse_difference"),
        number(row["collapse_p_holm"]),
        number(row.get("collapse_fisher_p")),
    )


def _bounded(row: Row, name: str) -> str:
    """A column with its ends; a dash where an older table lacks it."""
    return interval(dict.fromkeys((name, f"{name}_low", f"{name}_high")) | row,
                    name, f"{name}_low", f"{name}_high")  # fmt: skip


def cost_tables(costs: Sequence[Row], manifests: Sequence[Row]) -> list[Block]:
    """Runs, steps, tokens and hours, and the versions that the manifests name."""
    blocks: list[Block] = [Heading("What it cost")]
    if not costs:
        return [*blocks, Text("Nothing: there are no runs.")]
    total = {name: sum(row[name] for row in costs) for name in ("runs", "steps", "tokens", "hours")}
    rows = tuple(_cost(row) for row in [*costs, {"notebook": "all"} | total])
    versions = sorted({row["versions"] for row in manifests if row["versions"]})
    others = sum(not is_run(row) for row in manifests)
    return [
        *blocks,
        Text("Training runs alone. Hours are of one core, as each run is a process with one "
             "thread. Warm starts, evaluations after training, analyses, and the "
             f"{others} probes and audits whose manifests are here write down no seconds, so that "
             "they are in no row: the whole took longer. Tokens are those sampled in training."),
        Table(("experiment", "runs", "steps", "tokens", "hours"), rows),
        Text("Versions: " + ("; or ".join(versions) or "not recorded") + "."),
    ]  # fmt: skip


def _cost(row: Row) -> tuple[str, ...]:
    whole = (f"{row[name]:,}".replace(",", " ") for name in ("runs", "steps", "tokens"))
    return (row["notebook"], *whole, f"{row['hours']:.2f}")


def provenance(rows: Sequence[Row], manifests: Sequence[Row]) -> list[Block]:
    """The table that each number came from, and the manifests of the runs with their code."""
    sources = tuple(
        (short_name(row["claim"]), task_label(row["task"]), row["run"].replace(" ", ", "))
        for row in rows
        if _known(row["ours"])
    )
    kinds = _manifest_groups(manifests)
    of_runs, of_others = (
        len({row["code_hash"] for row in manifests if row["code_hash"] and is_run(row) == whether})
        for whether in (True, False)
    )
    return [
        Heading("Where the numbers come from"),
        Text("claims.csv beside this page holds every test with all its digits, outcomes.csv the "
             "runs it was judged by, manifests.csv the hash of every manifest. A number here has "
             f"three significant digits. The manifests of runs name {of_runs} versions of the code "
             f"of experiments, those of probes and audits {of_others} of their own."),
        Table(("claim", "task", "tables"), sources, f"{len(sources)} numbers and their tables"),
        Table(("runs", "manifests", "code hash"), kinds, f"{len(manifests)} manifests"),
    ]  # fmt: skip


def _manifest_groups(manifests: Iterable[Row]) -> tuple[tuple[str, ...], ...]:
    """Folder with seed_* for its seeds, how many manifests, start of the code hash."""
    groups: dict[tuple[str, str], int] = {}
    for row in manifests:
        folder, _, last = row["path"].removesuffix("/manifest.json").rpartition("/")
        stem, _, end = last.rpartition("_")
        name = f"{folder}/{stem}_*" if end.isdecimal() else f"{folder}/{last}"
        key = (name, str(row["code_hash"] or "not recorded")[:SHOWN])
        groups[key] = groups.get(key, 0) + 1
    return tuple((name, str(count), code) for (name, code), count in groups.items())


def _known(value: float) -> bool:
    return not math.isnan(value)
