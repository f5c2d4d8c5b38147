"""Two seeds side by side on two cores, beside one after the other.

    PYTHONPATH=lib python benchmarks/parallel_seeds.py [--steps 100] [--rounds 3]

The runs are those of an experiment, with tables, evaluation and checkpoint, in a temporary folder:
the task of tier smoke with `--steps` steps of 64 trajectories.  Warm starts are made before and not
timed; starting the processes is.  A printed line is a row of Markdown: wall seconds of both runs
with one worker and with two, medians over the rounds in which the two ways take turns, and their
ratio (in brackets that of the fastest).  2 would be perfect.  The second ratio leaves the start of
the processes out: the seconds that the manifests give each run.  Needs two idle cores.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import fmean, median

import yaml

from turncredit import paths
from turncredit.code_version import code_hash
from turncredit.experiment import Experiment, Job, jobs_of, prepare, run
from turncredit.parallel import in_parallel
from turncredit.training import Method

TASK = "informative_guess"
METHOD = Method("grpo", {}, "suffix_mask", {}, "ppo_clip", {})


def write_task(home: Path, steps: int) -> None:
    """The smoke task with longer training, in a params folder of its own."""
    target = home / "params" / "smoke" / "tasks" / f"{TASK}.yaml"
    source = paths.params("smoke") / "tasks" / f"{TASK}.yaml"
    settings = yaml.safe_load(source.read_text(encoding="utf-8"))
    settings["training"] |= {"steps": steps, "questions_per_step": 8, "group_size": 8}
    settings["training"]["checkpoint_every"] = settings["evaluation"]["every"] = steps
    target.parent.mkdir(parents=True)
    target.write_text(yaml.safe_dump(settings), encoding="utf-8")


def timed_runs(folder: Path, jobs: list[Job], code: str, workers: int) -> tuple[float, float]:
    """Wall seconds of all runs in an empty folder, and the mean that they say of themselves."""
    os.environ["TURNCREDIT_RESULTS"] = str(folder)
    begun = time.perf_counter()
    in_parallel(run, [(job, code) for job in jobs], workers, f"{workers} at a time")
    seconds = time.perf_counter() - begun
    manifests = [job.experiment.folder / job.label / "manifest.json" for job in jobs]
    return seconds, fmean(json.loads(m.read_text(encoding="utf-8"))["seconds"] for m in manifests)


def two_seeds() -> Experiment:
    """Two runs of one task and method, from one warm start."""
    return Experiment(
        tier="smoke",
        notebook="parallel_seeds",
        tasks=(TASK,),
        variants={},
        arms={"grpo": METHOD},
        seeds=(0, 1),
        further=(),
        warm_start_seeds=(0,),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    taken: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_task(home, options.steps)
        os.environ |= {"TURNCREDIT_HOME": folder, "TURNCREDIT_CACHE": str(home / "cache")}
        experiment = two_seeds()
        jobs, code = jobs_of(experiment), code_hash()
        in_parallel(prepare, [(jobs[0], code)], 1, "warm start")
        for number in range(options.rounds):
            for workers, times in taken.items():
                results = home / f"results-{number}-{workers}"
                times.append(timed_runs(results, jobs, code, workers))
    alone, together = ([seconds for seconds, _ in taken[workers]] for workers in (1, 2))
    run_alone, run_together = (median(own for _, own in taken[workers]) for workers in (1, 2))
    print("| two runs | one after the other | side by side | ratio (of fastest) | runs alone |")
    print("|---|---|---|---|---|")
    print(
        f"| {options.steps} steps each | {median(alone):.1f} s | {median(together):.1f} s "
        f"| {median(alone) / median(together):.2f} ({min(alone) / min(together):.2f}) "
        f"| {2 * run_alone / run_together:.2f} |"
    )


if __name__ == "__main__":
    main()
