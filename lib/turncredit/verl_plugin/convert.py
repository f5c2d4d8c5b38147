"""Cluster runs as results that the figures read: `python -m turncredit.verl_plugin.convert RUN...`.

RUN is a folder that `train` made; where it goes is results/cluster/verl/<agent>-<model>/<arm>/
seed_<s>.  A run that goes on can be converted again and again; only one that is over gets a
manifest, as in our own loop.  A step whose checkpoint `evaluate` played on all questions has that
row in eval.csv.
"""

import argparse
import copy
import gzip
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from turncredit import paths
from turncredit.params import read_yaml
from turncredit.results import RunDirectory, versions, write_table
from turncredit.storage import atomic_path, read_mapping, sha256_file, write_json
from turncredit.tripwires import FINISHED
from turncredit.verl_plugin.places import Place
from turncredit.verl_plugin.run_logs import RunLog, filled, read_log

ARMS = {"baseline": "grpo"}
"""Methods of params/cluster that are called otherwise in the figures; others keep their name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert each run and print where it went; 1 if one was refused."""
    parser = argparse.ArgumentParser(
        prog="python -m turncredit.verl_plugin.convert", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--results", type=Path, help="instead of results/cluster/verl")
    options = parser.parse_args(arguments)
    root = options.results or paths.results("cluster") / "verl"
    try:
        for run in options.runs:
            directory = convert(Place(run), root)
            print(directory.path)
            _say_undrawn(directory)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _say_undrawn(directory: RunDirectory) -> None:
    """Name on stderr what `make figures TIER=cluster` would leave out without a word."""
    file = paths.params("cluster") / "90_figures.yaml"
    drawn, task, arm = read_yaml(file), *directory.path.parts[-3:-1]
    for key, name in (("tasks", task), ("arms", arm)):
        if name not in drawn[key]:
            print(f"no figure will show it: {name} is not among `{key}` of {file}", file=sys.stderr)


def convert(place: Place, root: Path) -> RunDirectory:
    """Write the tables of a run, and its manifest once it is over, below `root`.

    Raises ValueError naming the folder if it is no run's, if nothing was logged, or if another run
    lies where this one would go.
    """
    facts = read_mapping(place.facts, "only `train` can write it again")
    if facts is None:
        raise ValueError(f"{place.path}: no {place.facts.name}, so no folder of a cluster run")
    log, parts = evaluated(read_log(place), place, facts), facts["parts"]
    arm = ARMS.get(parts["method"], parts["method"])
    task = f"{parts['agent']}-{parts['model']}"
    directory = RunDirectory(root / task / arm / f"seed_{facts['seed']}")
    _require_same(directory, facts)
    directory.path.mkdir(parents=True, exist_ok=True)
    directory.manifest.unlink(missing_ok=True)
    write_json(directory.path / "begun.json", _hashes(facts))
    _write(directory, log, facts)
    return directory


def _require_same(directory: RunDirectory, facts: dict[str, Any]) -> None:
    begun = read_mapping(directory.path / "begun.json", f"delete {directory.path}")
    if begun is not None and begun != _hashes(facts):
        raise ValueError(
            f"{directory.path} holds a run of other parameters, machine or code; move it away first"
        )


def evaluated(log: RunLog, place: Place, facts: dict[str, Any]) -> RunLog:
    """The log with temperatures, and with our own evaluations in the place of verl's, by step."""
    temperature = facts["overrides"]["actor_rollout_ref"]["rollout"]["val_kwargs"]["temperature"]
    ours = place.evaluations()
    rows = [row | {"temperature": temperature} for row in log.evaluations]
    rows = [row for row in rows if row["step"] not in ours]
    rows += [row | {"step": step} for step, found in ours.items() for row in found]
    return replace(log, evaluations=filled(sorted(rows, key=lambda row: row["step"])))


def _write(directory: RunDirectory, log: RunLog, facts: dict[str, Any]) -> None:
    overrides, path = facts["overrides"], directory.path
    write_table(path / "metrics.csv", log.metrics)
    write_table(path / "timings.csv", log.timings)
    with atomic_path(path / "turns.csv.gz") as temporary:
        plain = temporary.with_name(temporary.name + ".csv")
        write_table(plain, log.turns)
        temporary.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        plain.unlink()
    written = ["metrics.csv", "timings.csv", "turns.csv.gz"]
    if log.evaluations:
        write_table(path / "eval.csv", log.evaluations)
        written.append("eval.csv")
    if len(log.metrics) == overrides["trainer"]["total_training_steps"]:
        files = {name: sha256_file(path / name) for name in written}
        write_json(directory.manifest, _manifest(log, facts) | {"files": files})


def _manifest(log: RunLog, facts: dict[str, Any]) -> dict[str, Any]:
    """What `results` and `plots` read of a run that is over."""
    steps = len(log.metrics)
    seconds = {
        name: fmean(row[name] for row in log.timings) for name in log.timings[0] if name != "step"
    }
    return _hashes(facts) | {
        "engine": "verl",
        "params": _params(facts),
        "seed": facts["seed"],
        "steps": steps,
        "steps_done": steps,
        "stop_reason": FINISHED,
        "evaluated_at": log.evaluations[-1]["step"] if log.evaluations else None,
        "seconds": steps * sum(seconds.values()),
        "seconds_of_a_step": seconds,
        "versions": versions(),
    }


def _params(facts: dict[str, Any]) -> dict[str, Any]:
    """The overrides, those of the method apart: arms of one task may differ in them alone."""
    shared = copy.deepcopy(facts["overrides"])
    shared["trainer"].pop("experiment_name", None)
    method = {
        "credit": shared["algorithm"].pop("turncredit"),
        "loss": shared["actor_rollout_ref"]["actor"].pop("policy_loss"),
    }
    return {"method": method, "verl": shared, "machine": facts["parts"]["machine"]}


def _hashes(facts: dict[str, Any]) -> dict[str, str]:
    return {name: facts[name] for name in ("params_hash", "code_hash")}


if __name__ == "__main__":
    sys.exit(main())
