"""`turncredit eval`: the fixed evaluation of saved policies, on as many questions as asked for."""

import sys
from argparse import Namespace
from typing import Any, NamedTuple

from tqdm import tqdm

from turncredit.checkpoints import load_newest
from turncredit.cli.experiments import chosen_jobs, open_experiment
from turncredit.cli.output import table
from turncredit.code_version import code_hash
from turncredit.evaluation import evaluate, evaluation_rows
from turncredit.experiment import Job, identity, is_finished
from turncredit.results import write_table
from turncredit.training import new_optimiser

SHOWN = ("questions", "exact_match", "standard_error", "turns", "search_first", "grounded")


class Asked(NamedTuple):
    """Finished runs and the code that made them."""

    jobs: list[Job]
    code: str


def read(options: Namespace) -> Asked:
    """The runs, which must be finished with these parameters and this code."""
    jobs, code = chosen_jobs(open_experiment(options.params), options.run), code_hash()
    for job in jobs:
        if not is_finished(job, code):
            raise ValueError(
                f"{job.directory.path}: no run that is finished with these parameters and "
                f"this code; `turncredit train --params {options.params}` makes it"
            )
        if options.questions:
            job.open_task().world.evaluation_questions(options.questions)
    return Asked(jobs, code)


def work(asked: Asked, options: Namespace) -> dict[str, Any]:
    """One row per run and number of hops, the columns of eval.csv."""
    rows = []
    for job in tqdm(asked.jobs, "evaluations", unit="run", file=sys.stderr):
        rows += evaluated(job, asked.code, options.questions)
    if options.output:
        write_table(options.output, rows)
    return {"rows": rows, "output": options.output}


def evaluated(job: Job, code: str, questions: int | None) -> list[dict[str, Any]]:
    """The evaluation of a run's last checkpoint; `questions` None: as many as in training."""
    task = job.open_task()
    settings = task.settings
    policy = task.new_policy(job.warm_start_seed)
    step, _ = load_newest(
        job.directory.checkpoint,
        policy,
        new_optimiser(policy, settings.training),
        extra={},
        identity=identity(job, code),
    )
    held_out = task.world.evaluation_questions(questions or settings.evaluation.questions)
    sampling = {
        "max_turn_tokens": settings.training.max_turn_tokens,
        "temperature": settings.evaluation.temperature,
    }
    played = evaluate(policy, task.vocabulary, task.environment, held_out, **sampling)
    return [{"run": job.label, "step": step} | row for row in evaluation_rows(held_out, played)]


def sentences(result: dict[str, Any]) -> list[str]:
    """The rows over all questions, and the file."""
    rows = [
        {"run": row["run"]} | {name: row[name] for name in SHOWN}
        for row in result["rows"]
        if row["hops"] == "all"
    ]
    return [*table(rows), *([f"wrote {result['output']}"] if result["output"] else [])]
