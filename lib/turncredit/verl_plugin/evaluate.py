"""Evaluate a checkpoint of a cluster run: `python -m turncredit.verl_plugin.evaluate RUN`.

The checkpoint is opened as one of our policies, and the run's held-out questions are played by our
own rollout, without verl and Ray.  Retrieval server and judge have to answer, as in training.  What
came of it lies in RUN/evaluations/step_<s>; `convert` takes its row in the place of verl's own.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turncredit.environments.protocol import Environment
from turncredit.evaluation import (
    evaluate,
    evaluation_rows,
    evaluation_set_hash,
    question_rows,
)
from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings
from turncredit.policies.tokenizer import ModelTokens, open_tokens
from turncredit.records import Trajectory, write_trajectories
from turncredit.results import versions, write_table
from turncredit.storage import read_mapping, write_json
from turncredit.verl_plugin.addresses import HEAD
from turncredit.verl_plugin.episodes import open_environment
from turncredit.verl_plugin.places import Place
from turncredit.verl_plugin.settings import AgentSettings, read_agent
from turncredit.verl_plugin.train import require_judge, require_retrieval
from turncredit.worlds.base import Question
from turncredit.worlds.question_files.files import read_rows
from turncredit.worlds.question_files.rows import to_question

COLDEST = 1.0e-3
"""In the place of temperature 0, which our rollout does not draw at."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate one checkpoint and print its row; 1 if something was refused."""
    options = _parser().parse_args(arguments)
    try:
        (row, *_) = evaluate_run(Place(options.run), **told_by(options))
    except (ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    print(", ".join(f"{name} {value}" for name, value in row.items()))
    return 0


def evaluate_run(
    place: Place,
    *,
    step: int | None = None,
    questions: int | None = None,
    temperature: float | None = None,
    device: str = "cpu",
    rows: int = 8,
    head: str = "127.0.0.1",
) -> list[dict[str, Any]]:
    """The rows of eval.csv of one checkpoint, written below the run's folder.

    step: default the latest; questions: of the run's `val_files`, default all; temperature: default
    that of the run's own evaluations; rows: episodes that are played side by side; head: the node
    with retrieval server and judge.

    Raises ValueError naming the folder that is no run's, or holds no such checkpoint or no model,
    and a server that does not answer.
    """
    facts = read_mapping(place.facts, "only `train` can write it again")
    if facts is None:
        raise ValueError(f"{place.path}: no {place.facts.name}, so no folder of a cluster run")
    told, step = facts["overrides"], place.latest_step() if step is None else step
    if temperature is None:
        temperature = told["actor_rollout_ref"]["rollout"]["val_kwargs"]["temperature"]
    agent, asked = agent_of(told, head), held_out(told["data"])[:questions]
    require_retrieval(agent)
    require_judge(agent)
    policy, tokens = open_checkpoint(place, step, told["data"], agent, device)
    played = [
        trajectory
        for part in parts(asked, rows)
        for trajectory in play(policy, tokens, open_environment(agent), part, agent, temperature)
    ]
    found = [
        {"step": step, **row, "temperature": temperature} for row in evaluation_rows(asked, played)
    ]
    write(place.evaluation(step), found, asked, played, facts, of_all=questions is None)
    return found


def agent_of(told: Mapping[str, Any], head: str) -> AgentSettings:
    """What the run's agent loop played, with its servers on the node `head`."""

    def at_head(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: at_head(item) for key, item in value.items()}
        return value.replace(HEAD, head) if isinstance(value, str) else value

    return read_agent(at_head(told))


def held_out(data: Mapping[str, Any]) -> list[Question]:
    """The questions of `data.val_files`, in order."""
    files = [data["val_files"]] if isinstance(data["val_files"], str) else data["val_files"]
    return [to_question(row) for file in files for row in read_rows(Path(file), split="test")]


def open_checkpoint(
    place: Place, step: int, data: Mapping[str, Any], agent: AgentSettings, device: str
) -> tuple[HuggingFacePolicy, ModelTokens]:
    """A checkpoint of verl as a policy of ours, and its tokens."""
    settings = HuggingFaceSettings(
        model=str(place.model(step)),
        max_tokens=data["max_prompt_length"] + data["max_response_length"],
        chat=agent.chat,
        preface=agent.preface,
        dtype="float32" if device == "cpu" else "bfloat16",
        attention="sdpa",
        micro_batch_rows=1,
        gradient_checkpointing=False,
        device=device,
        lora=None,
    )
    tokens = open_tokens(*settings.find_model(), chat=agent.chat, preface=agent.preface)
    return HuggingFacePolicy(settings, seed=0), tokens


def parts(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    """The questions in order, `size` at a time."""
    for start in range(0, len(questions), size):
        yield questions[start : start + size]


def play(
    policy: HuggingFacePolicy,
    tokens: ModelTokens,
    environment: Environment,
    questions: Sequence[Question],
    agent: AgentSettings,
    temperature: float,
) -> list[Trajectory]:
    """An episode of each question."""
    return evaluate(
        policy, tokens, environment, questions,
        max_turn_tokens=agent.max_turn_tokens, temperature=max(temperature, COLDEST),
    )  # fmt: skip


def write(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    facts: Mapping[str, Any],
    *,
    of_all: bool,
) -> None:
    """eval.csv, questions.csv, trajectories.jsonl.gz, and last a manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)
    write_table(folder / "eval.csv", rows)
    write_table(folder / "questions.csv", question_rows(questions, trajectories))
    write_trajectories(folder / "trajectories.jsonl.gz", trajectories)
    known = {name: facts[name] for name in ("params_hash", "code_hash")}
    known |= {
        "of_all_questions": of_all,
        "evaluation_set": evaluation_set_hash(questions),
        "versions": versions(),
    }
    write_json(folder / "manifest.json", known)


def told_by(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `evaluate_run`."""
    return {name: value for name, value in vars(options).items() if name != "run"}


def _count(text: str) -> int:
    """argparse's type of a number above 0."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m turncredit.verl_plugin.evaluate", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--step", type=int, help="of the checkpoint; default the latest")
    parser.add_argument("--questions", type=_count, help="so many held-out ones; default all")
    parser.add_argument("--temperature", type=float, help="default that of verl's evaluations")
    parser.add_argument("--device", default="cuda", help="of the policy; default cuda")
    parser.add_argument("--rows", type=_count, default=8, help="episodes side by side; default 8")
    parser.add_argument(
        "--head", default="127.0.0.1", metavar="ADDRESS",
        help="of the node with retrieval server and judge",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
