"""Start a cluster run: `python -m turncredit.verl_plugin.train MODEL AGENT MACHINE METHOD`.

Everything that can be refused is refused first: versions, packages, names, memory, question files,
a retrieval server or a judge that does not answer.  On several nodes Ray has to run already
(docs/scaling.md).
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from turncredit.environments.judges import EndpointJudge
from turncredit.verl_plugin.check import check_run, verls_own
from turncredit.verl_plugin.cluster import KINDS, compose, plain, read_run, seeded, with_head
from turncredit.verl_plugin.places import LOG_VARIABLE, Place
from turncredit.verl_plugin.settings import AGENT_LOOP, AgentSettings, read_agent
from turncredit.verl_plugin.versions import require_modules
from turncredit.worlds.base import Question
from turncredit.worlds.question_files import describe, validate
from turncredit.worlds.question_files.files import read_records

PLUGIN = "turncredit.verl_plugin.plugin"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and run; 1 if something was refused."""
    options = _parser().parse_args(arguments)
    try:
        run = read_run(*(getattr(options, kind) for kind in KINDS), root=options.params)
        run = run if options.seed is None else seeded(run, options.seed)
        run = run if options.head is None else with_head(run, options.head)
        print(f"{run.name}: {check_run(run, verls_own()).sentence()}")
        place = Place(options.runs.resolve() / run.folder)
        config = with_whole_paths(place.told_to(compose(run)))
        values = plain(config)
        require_modules(values)
        held_out = require_questions(values["data"])
        require_retrieval(read_agent(values))
        require_judge(read_agent(values))
        log = place.begin(run)
        print(share_of_evaluations(held_out, values))
    except (ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    _start(config, {LOG_VARIABLE: str(log)})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m turncredit.verl_plugin.train", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for kind in KINDS:
        parser.add_argument(kind, metavar=kind.upper().removesuffix("S"))
    parser.add_argument("--params", type=Path, help="folder of files, instead of params/cluster")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="FOLDER",
        help="where the run's folder goes, with its log and checkpoints; all nodes must see it",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, help="of data, sampling and weights, for all three")
    parser.add_argument(
        "--head", metavar="ADDRESS",
        help="of the node with retrieval server and judge, as all nodes reach it",
    )  # fmt: skip
    return parser


def with_whole_paths(config: Any) -> Any:
    """A composed configuration whose question files any process finds, wherever Ray starts it."""
    for key in ("train_files", "val_files"):
        named = config.data[key]
        files = [named] if isinstance(named, str) else list(named)
        config.data[key] = [str(Path(file).expanduser().resolve()) for file in files]
    return config


COLUMNS = ("data_source", "prompt", "reward_model")
"""Of a question file: what verl's data set and its validation read of every row."""

CONVERT = "`python -m turncredit.worlds.question_files convert` writes one"


def share_of_evaluations(held_out: int, config: dict[str, Any]) -> str:
    """What an evaluation costs, in a sentence: its episodes beside those of a step.

    >>> rollout = {"n": 8, "val_kwargs": {"n": 1}}
    >>> told = {"data": {"train_batch_size": 128}, "actor_rollout_ref": {"rollout": rollout}}
    >>> share_of_evaluations(11264, told | {"trainer": {"test_freq": 25}})
    'an evaluation has 11264 episodes, as many as 11.0 steps, and comes every 25'
    """
    rollout, most = config["actor_rollout_ref"]["rollout"], config["data"].get("val_max_samples")
    asked = min(held_out, most) if most and most > 0 else held_out
    episodes = asked * rollout["val_kwargs"]["n"]
    steps = episodes / (config["data"]["train_batch_size"] * rollout["n"])
    return (
        f"an evaluation has {episodes} episodes, as many as {steps:.1f} steps, and comes every "
        f"{config['trainer']['test_freq']}"
    )


def require_questions(data: dict[str, Any]) -> int:
    """How many questions are held out.

    Raises ValueError naming a question file that is not there or holds rows that cannot be used.
    """
    for key, least in (("train_files", data["train_batch_size"]), ("val_files", 1)):
        named = data[key] if isinstance(data[key], list) else [data[key]]
        rows = sum(_rows(key, Path(path)) for path in named)
        if rows < least:
            raise ValueError(f"data.{key}: {rows} rows, a step takes {least}")
    return rows


def _rows(key: str, path: Path) -> int:
    """Rows of a question file that verl and the agent loop can read."""
    if not path.is_file():
        raise ValueError(f"data.{key}: {path} is no file; {CONVERT}")
    try:
        _, record = next(iter(read_records(path)), (0, dict.fromkeys(COLUMNS, True)))
    except ValueError as error:
        raise ValueError(f"data.{key}: {error}; {CONVERT}") from error
    lacking = [name for name in COLUMNS if not record.get(name)]
    if lacking:
        raise ValueError(f"data.{key}: {path} lacks {', '.join(lacking)}; {CONVERT}")
    report = validate(path)
    if not report.writable:
        raise ValueError(f"data.{key}: {describe(report)}\n{CONVERT}")
    _require_our_loop(key, path)
    return report.rows


def _require_our_loop(key: str, path: Path) -> None:
    """ValueError naming a row whose column agent_name, which verl puts first, is another loop's."""
    for number, record in read_records(path):
        name = record.get("agent_name", AGENT_LOOP)
        if name != AGENT_LOOP:
            raise ValueError(
                f"data.{key}: {path}, row {number} has agent_name {name!r}, which verl would play "
                f"with another agent loop: leave the column out or write {AGENT_LOOP!r}"
            )


def require_retrieval(settings: AgentSettings) -> None:
    """ValueError naming a retrieval server that does not answer one search."""
    if settings.retriever.KIND != "server":
        return
    from dataclasses import replace

    client = replace(settings.retriever, strict=False, retries=0).open()
    answer = client.ask(["capital of Chad"], 1)
    if not answer.results or not answer.results[0]:
        raise ValueError(
            f"{client.url}: {answer.outcome} {answer.detail}; start the server first: "
            "python -m turncredit.retrieval serve INDEX --encoder e5:MODEL --faiss-gpu, and on "
            "several nodes say where with --head"
        )


def require_judge(settings: AgentSettings) -> None:
    """ValueError naming a judge's server that gives no verdict, where the environment asks one."""
    judge = settings.judge
    if judge.KIND != "endpoint" or settings.environment.KIND != "deep_research":
        return
    from dataclasses import replace

    question = Question("", "What is the capital of Chad?", ("N'Djamena",), (), "", "")
    with TemporaryDirectory() as folder:  # a verdict that was kept earlier would not be asked for
        asked = EndpointJudge(replace(judge, retries=0), cache=Path(folder))
        asked.verdict(question, "N'Djamena", ("The capital of Chad is N'Djamena.",), Random(0))
        asked.close()
    if asked.counts["junk"]:
        raise ValueError(
            f"judge.model = {judge.model}: no verdict within judge.reply_tokens = "
            f"{judge.reply_tokens}; a model that thinks first needs more, or take one that does not"
        )
    if not asked.counts["answered"]:
        raise ValueError(
            f"judge.base_url = {judge.base_url}: {', '.join(asked.counts)}; start the judge first, "
            f"such as: vllm serve {judge.model} --port 8001"
        )


def _start(config: Any, variables: dict[str, str]) -> None:
    """Run verl's own entry, whose processes load the plugin by name even if it is not installed.

    What is wrong with a module named this way is raised there, not only logged.  variables: further
    ones for the environment of every process.
    """
    from omegaconf import OmegaConf
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    others = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    modules = dict.fromkeys([*filter(None, others), PLUGIN])
    told = variables | {"VERL_USE_EXTERNAL_MODULES": ",".join(modules)}
    OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", told, force_add=True)
    run_ppo(config, task_runner_class=TaskRunnerV1)


if __name__ == "__main__":
    sys.exit(main())
