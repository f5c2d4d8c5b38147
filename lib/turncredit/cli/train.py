"""`turncredit train`: what the experiment notebooks run, without their figures."""

from argparse import Namespace
from typing import Any

from turncredit.cli.experiments import open_experiment, run_rows
from turncredit.cli.output import note, table
from turncredit.experiment import jobs_of, run_experiment
from turncredit.plans import Experiment
from turncredit.run_checks import check_memory, check_runs


def read(options: Namespace) -> Experiment:
    """The experiment, which must fit the machine."""
    experiment = open_experiment(options.params)
    for sentence in check_memory(experiment):
        note(sentence)
    return experiment


def work(experiment: Experiment, options: Namespace) -> dict[str, Any]:
    """Train what is missing or stale; every run must then pass the notebooks' closing checks."""
    ran = run_experiment(experiment)
    check_runs(experiment)
    rows = run_rows(experiment, jobs_of(experiment))
    return {"folder": experiment.folder, "trained": ran, "runs": rows}


def sentences(result: dict[str, Any]) -> list[str]:
    """How every run ended, and where they lie."""
    counts = f"{len(result['trained'])} of {len(result['runs'])} runs were missing or stale"
    return [*table(result["runs"]), f"{counts}; they lie in {result['folder']}"]
