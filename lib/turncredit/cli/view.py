"""`turncredit view`: a page of trajectories, as the notebooks show them."""

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

from turncredit.cli.experiments import chosen_jobs, open_experiment
from turncredit.experiment import Job
from turncredit.records import Trajectory, read_trajectories
from turncredit.viewer import trajectory_html, write_page

COUNT = 5


class Asked(NamedTuple):
    """A run and those of its trajectories that are to be shown."""

    job: Job
    shown: list[Trajectory]
    failures: int
    of: int


def read(options: Namespace) -> Asked:
    """The first run, or that of --run, which must have been evaluated."""
    job = chosen_jobs(open_experiment(options.params), options.run)[0]
    path = job.directory.path / "trajectories.jsonl.gz"
    if not path.exists():
        train = f"`turncredit train --params {options.params}` plays some"
        raise ValueError(f"{path}: no trajectories are kept here; {train}")
    played = read_trajectories(path)
    failures = [trajectory for trajectory in played if not trajectory.success]
    wanted = played if options.all else failures
    if not wanted:
        raise ValueError(f"{path}: no trajectory failed; --all shows the successes")
    return Asked(job, wanted[: options.count or COUNT], len(failures), len(played))


def work(asked: Asked, options: Namespace) -> dict[str, Any]:
    """Write the page."""
    job = asked.job
    words = job.open_task().vocabulary
    views = job.experiment.folder / "views"
    page = options.output or views / f"{job.label.replace('/', '-')}.html"
    shown = [trajectory_html(trajectory, words) for trajectory in asked.shown]
    write_page(Path(page), *shown, title=f"Trajectories of {job.label}")
    counts = {"shown": len(shown), "failures": asked.failures, "trajectories": asked.of}
    return {"run": job.label, "page": Path(page).resolve()} | counts


def sentences(result: dict[str, Any]) -> list[str]:
    """What is on the page, and where it lies."""
    told = f"{result['shown']} of {result['trajectories']} trajectories of {result['run']}"
    return [f"{told}, {result['failures']} of which failed: {result['page'].as_uri()}"]
