"""The search for the experiments' tasks: plain GRPO in every regime that docs/regimes.md tells of.

    OMP_NUM_THREADS=1 PYTHONPATH=lib python benchmarks/regime_search.py --all

Without an option it lists the regimes by number and trains nothing.  Otherwise it trains all, or
those of `--only 3 5`: four to sixteen seeds each, from four warm starts, as many runs at a time as
there are cores.  `--table` gets a row for each, with the columns of results/cpu/regime_search.csv.
Runs lie below the cache folder, and what is finished is not trained again.  Other code, or another
machine, gives other numbers: the last bits of a sum decide what is sampled.  `--smoke`, with
either of them, trains the first seed of each for two steps on the tasks of tier smoke.
"""

import argparse
import csv
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from turncredit import paths
from turncredit.experiment import Job, jobs_of, run_experiment
from turncredit.plans import Experiment, Plan, cell_name
from turncredit.stats import shift_step
from turncredit.training import Method

GRPO = Method("grpo", {}, "none", {}, "ppo_clip", {"clip_low": 0.2, "clip_high": 0.2})


@dataclass(frozen=True)
class Regime:
    """Settings that were tried together; what they do not name is as in the task `start`."""

    start: str
    """Task whose warm starts the runs begin from."""
    prior: float
    knowledge: float
    unsolvable: float
    max_turns: int
    questions_per_step: int
    learning_rate: float
    steps: int
    seeds: tuple[int, ...]
    """Of no experiment."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the seeds, which are the first columns of a run's row."""
        return {name: value for name, value in asdict(self).items() if name != "seeds"}

    @property
    def variant(self) -> str:
        """Its name among the variants of `start`."""
        return cell_name({name: value for name, value in self.settings.items() if name != "start"})

    def changes(self, *, smoke: bool) -> dict[str, Any]:
        """What a task of it changes of `start`."""
        steps, questions = (2, 8) if smoke else (self.steps, 512)
        training = {"steps": steps, "learning_rate": self.learning_rate}
        return {
            "world": {"prior": self.prior, "unsolvable_share": self.unsolvable},
            "environment": {"max_turns": self.max_turns},
            "judge": {"knowledge": self.knowledge},
            "training": training | {"questions_per_step": self.questions_per_step},
            "evaluation": {"questions": questions, "every": steps},
        }


FIRST, LAST = (1000, 1001, 1002, 1003), (1004, 1005, 1006, 1007)
EIGHT, SIXTEEN = FIRST + LAST, tuple(range(1000, 1016))
REGIMES = (
    Regime("careful_start", 0.5, 0.3, 0.05, 8, 4, 0.0005, 200, LAST),
    Regime("careful_start", 0.55, 0.3, 0.05, 8, 4, 0.0005, 200, FIRST),
    Regime("careful_start", 0.57, 0.3, 0.05, 8, 4, 0.0005, 200, EIGHT),
    Regime("careful_start", 0.6, 0.3, 0.05, 8, 4, 0.0005, 200, FIRST),
    Regime("careful_start", 0.63, 0.3, 0.05, 8, 4, 0.0005, 200, FIRST),
    Regime("careful_start", 0.63, 0.3, 0.05, 8, 4, 0.0007, 200, FIRST),
    Regime("careful_start", 0.63, 0.3, 0.05, 8, 4, 0.001, 160, FIRST),
    Regime("careful_start", 0.63, 0.3, 0.05, 8, 8, 0.0005, 200, FIRST),
    Regime("informative_guess", 0.35, 0.0, 0.2, 7, 4, 0.0005, 120, FIRST),
    Regime("informative_guess", 0.35, 0.0, 0.2, 10, 4, 0.0005, 120, FIRST),
    Regime("informative_guess", 0.55, 0.8, 0.2, 7, 4, 0.0005, 120, FIRST),
    Regime("informative_guess", 0.55, 0.8, 0.2, 12, 4, 0.0005, 120, FIRST),
    Regime("careful_start", 0.6, 0.3, 0.05, 8, 4, 0.0005, 80, SIXTEEN),
    Regime("careful_start", 0.63, 0.3, 0.05, 8, 4, 0.0005, 80, EIGHT),
    Regime("careful_start", 0.57, 0.3, 0.05, 8, 4, 0.0007, 80, SIXTEEN),
    Regime("careful_start", 0.5, 0.3, 0.05, 8, 4, 0.0007, 80, EIGHT),
    Regime("careful_start", 0.57, 0.3, 0.05, 8, 4, 0.001, 80, SIXTEEN),
    Regime("careful_start", 0.5, 0.3, 0.05, 8, 4, 0.001, 80, EIGHT),
    Regime("short_search", 0.5, 0.5, 0.05, 5, 4, 0.0005, 80, EIGHT),
    Regime("short_search", 0.35, 0.5, 0.05, 5, 4, 0.0005, 80, EIGHT),
)
"""Frozen: all that were tried, those without a finding too."""


def search_of(regimes: tuple[Regime, ...], *, smoke: bool = False) -> Experiment:
    """The runs of the regimes as one experiment, a plan for each of them."""
    plans = [
        Plan(
            tasks=(regime.start,),
            variants={regime.variant: regime.changes(smoke=smoke)},
            arms={"grpo": GRPO},
            seeds=regime.seeds[:1] if smoke else regime.seeds,
        )
        for regime in regimes
    ]
    first = {name: getattr(plans[0], name) for name in ("tasks", "variants", "arms", "seeds")}
    return Experiment(
        tier="smoke" if smoke else "cpu",
        notebook="regime_search",
        **first,
        further=tuple(plans[1:]),
        warm_start_seeds=(0, 1, 2, 3),
    )


def rows_of(regimes: tuple[Regime, ...], jobs: list[Job]) -> list[dict[str, Any]]:
    """A row for each finished run, in the order of the regimes and their seeds."""
    settings = {(regime.start, regime.variant): regime.settings for regime in regimes}
    return [
        settings[job.task, job.variant]
        | {"seed": job.seed, "warm_start": job.warm_start_seed}
        | outcome(job.experiment.folder / job.label)
        for job in jobs
    ]


def outcome(run: Path) -> dict[str, Any]:
    """What became of the run in this folder: its evaluations, and when it crossed the lines.

    collapse_step, shift_step: first step at which the mean grounded rate of ten steps is below one
    tenth, and the search-first rate below one half; None if never.
    """
    metrics, evaluations = (pd.read_csv(run / name) for name in ("metrics.csv", "eval.csv"))
    evaluations = evaluations[evaluations["hops"] == "all"]
    first, last = evaluations.iloc[0], evaluations.iloc[-1]
    final = {name: round(float(last[name]), digits) for name, digits in _FINAL.items()}
    return {
        "exact_match_before": round(float(first["exact_match"]), 4),
        **final,
        "collapse_step": shift_step(metrics["grounded"], threshold=0.1),
        "shift_step": shift_step(metrics["search_first"], threshold=0.5),
        "clip_fraction_max": float(metrics["clip_fraction"].max()),
    }


_FINAL = {"exact_match": 4, "grounded": 4, "search_first": 4, "turns": 3, "malformed": 4}
"""Columns of the last evaluation and their digits."""


def search(regimes: tuple[Regime, ...], table: Path, *, smoke: bool = False) -> None:
    """Train what is not finished, and write the table."""
    experiment = search_of(regimes, smoke=smoke)
    run_experiment(experiment)
    rows = rows_of(regimes, jobs_of(experiment))
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """List the regimes, or train those asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="train every regime")
    numbers = range(len(REGIMES))
    parser.add_argument("--only", type=int, nargs="+", choices=numbers, metavar="NUMBER")
    parser.add_argument("--smoke", action="store_true", help="two steps of one seed each")
    runs = paths.cache() / "results"
    parser.add_argument("--table", type=Path, default=runs / "regime_search.csv")
    options = parser.parse_args()
    os.environ["TURNCREDIT_RESULTS"] = str(runs)
    chosen = tuple(REGIMES[n] for n in numbers if options.all or n in (options.only or ()))
    if chosen:
        search(chosen, options.table, smoke=options.smoke)
        print(options.table)
    else:
        for number, regime in enumerate(REGIMES):
            print(number, regime)


if __name__ == "__main__":
    main()
