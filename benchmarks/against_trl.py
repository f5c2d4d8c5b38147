"""Seconds of one training step beside TRL's GRPOTrainer with `transformers` generation, on CPU.

    make env-verl
    OMP_NUM_THREADS=1 PYTHONPATH=lib .venv-verl/bin/python benchmarks/against_trl.py [--full]

Both sides take turns, one step each, in one process: rollout, log-probs of the sampling policy,
advantages, the clipped updates.  Same number of trajectories, sampled and observed tokens, groups
and optimiser updates; same width, layers, heads, vocabulary; fp32, fused AdamW.  A printed line is
a row of Markdown: shape, parameters, median step of both and the ratio of the medians, in brackets
that of the fastest steps.  Above 1 this library is the faster one.  Times are of the CPU with one
thread, of the wall with more.  TRL's ways:

- single turn: GRPOTrainer as it is;
- rollout_func: one `generate` a turn for all trajectories, which reads the context anew;
- rollout_func, kept cache: the same with keys and values carried over, which TRL leaves to users;
- environment: `environment_factory`, each message parsed as a tool call.

TRL gets every setting that makes it faster here: no logging, saving or gradient checkpointing, no
end-of-sequence token to look for, the faster of the two attentions (`--attention`), a chat template
and a response schema of one regular expression that add no tokens.  Without TRL nothing is compared
and the output says so.
"""

import argparse
import importlib.util
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from fixed_lengths import (
    LARGE,
    SMALL,
    Shape,
    Size,
    echo,
    new_policy,
    parameters,
    prompt,
    reward,
    training_steps,
    words,
)

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
WARM_UP = 2

SINGLE = Shape(64)
TURNS = Shape(64, turns=12, sampled=4, observed=4)
QUICK = (("single turn", SMALL, SINGLE), ("rollout_func", SMALL, TURNS))
QUICK += (("environment", SMALL, TURNS),)
FULL = tuple(
    ("single turn", size, replace(SINGLE, trajectories=count))
    for size in (SMALL, LARGE)
    for count in (64, 128)
) + tuple(
    (way, size, TURNS)
    for way in ("rollout_func", "rollout_func, kept cache", "environment")
    for size in (SMALL, LARGE)
)

TEMPLATE = """{%- for message in messages %}{{ message.content }} {% for call in
message.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments | tojson }} {%
endfor %}{% endfor %}"""
"""Nothing but the words, and what TRL insists to see of a call."""


def having(**properties: dict) -> dict:
    """JSON schema of an object."""
    return {"type": "object", "properties": properties}


CALL = having(name={"const": "act"}, arguments=having(text={"type": "string"}))
CALLS = {"x-regex-iterator": "(.+)", "items": having(type={"const": "function"}, function=CALL)}
SCHEMA = having(
    role={"const": "assistant"}, content={"const": ""}, tool_calls={"type": "array"} | CALLS
)
"""Every message is a call of `act`, with all of it as the argument."""


def new_model(size: Size, shape: Shape, attention: str) -> Any:
    """An untrained Llama: our width, heads and single key, an MLP of as many parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=round(8 * size.width / 3),  # three matrices where ours has two of 4
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=1,
        max_position_embeddings=shape.tokens + 1,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=size.vocabulary,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def new_tokenizer(size: Size) -> Any:
    """Words split at blanks; its end of sequence is an id that the model cannot sample."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    entries = ["<pad>", *words(size), "<eos>"]
    table = {word: index for index, word in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )
    made.response_schema = SCHEMA
    return made


def tool_environment(shape: Shape) -> type:
    """TRL's kind of environment that echoes."""

    class Environment:
        def reset(self, **row: Any) -> None:
            """Nothing to start."""

        def act(self, text: str) -> str:
            """Echo a message.

            Args:
                text: The message.
            """
            return echo(text, shape.observed)

    return Environment


def rollout_function(shape: Shape, keep_cache: bool) -> Callable[..., dict[str, list]]:
    """A `rollout_func` of fixed lengths: rows never need padding, as all are equally long."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list]:
        from transformers import DynamicCache

        tokenizer, model = trainer.processing_class, trainer.model
        prompt_ids = tokenizer(prompts)["input_ids"]
        context, cache = torch.tensor(prompt_ids), DynamicCache() if keep_cache else None
        for turn in range(shape.turns):
            read = context.shape[1]
            with torch.no_grad():
                context = model.generate(
                    input_ids=context,
                    attention_mask=torch.ones_like(context),
                    generation_config=trainer.generation_config,
                    past_key_values=cache,
                )
            if turn + 1 < shape.turns:
                messages = tokenizer.batch_decode(context[:, read:])
                observations = [echo(message, shape.observed) for message in messages]
                observed = torch.tensor(tokenizer(observations)["input_ids"])
                context = torch.cat([context, observed], dim=1)
        turn_mask = [1] * shape.sampled + [0] * shape.observed
        mask = (turn_mask * shape.turns)[: shape.completion]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": context[:, shape.prompt :].tolist(),
            "logprobs": None,
            "env_mask": [mask] * len(prompts),
        }

    return rollout


def score(shape: Shape) -> Callable[..., list[float]]:
    """The reward function, which also refuses trajectories of any other length."""

    def rewards(completion_ids: list[list[int]], **given: Any) -> list[float]:
        lengths = {len(ids) for ids in completion_ids}
        if lengths != {shape.completion}:
            raise ValueError(f"TRL made completions of {lengths} tokens, not {shape.completion}")
        return [reward(f"w{ids[-1]}") for ids in completion_ids]

    return rewards


def new_trainer(way: str, size: Size, shape: Shape, steps: int, attention: str, out: str) -> Any:
    """GRPOTrainer for `steps` batches, each of `shape.updates` of its own steps."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=out,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=steps * shape.updates,
        per_device_train_batch_size=shape.trajectories // shape.updates,
        steps_per_generation=shape.updates,
        num_generations=shape.group_size,
        max_completion_length=shape.completion,
        generation_kwargs={"max_new_tokens": shape.sampled},
        max_tool_calling_iterations=shape.turns - 1,
        learning_rate=1e-6,
        optim="adamw_torch_fused",
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    stream = random.Random(0)
    prompts: list[Any] = [prompt(size, shape, stream) for _ in range(steps * shape.questions)]
    further: dict[str, Any] = {}
    if way == "environment":
        prompts = [[{"role": "user", "content": text}] for text in prompts]
        further["environment_factory"] = tool_environment(shape)
    elif way != "single turn":
        further["rollout_func"] = rollout_function(shape, way.endswith("kept cache"))
    return GRPOTrainer(
        new_model(size, shape, attention),
        reward_funcs=score(shape),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=new_tokenizer(size),
        **further,
    )


def alternate(
    trainer: Any, ours: Iterator, updates: int, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Seconds of (TRL's, our) steps: ours run whenever TRL has finished a batch."""
    from transformers import PrinterCallback, TrainerCallback

    seconds: list[tuple[float, float]] = []

    class TakeTurns(TrainerCallback):
        def on_train_begin(self, *given: Any, **more: Any) -> None:
            self.begun = clock()

        def on_step_end(self, arguments: Any, state: Any, *given: Any, **more: Any) -> None:
            if state.global_step % updates == 0:
                paused = clock()
                next(ours)
                seconds.append((paused - self.begun, clock() - paused))
                self.begun = clock()

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(TakeTurns())
    trainer.train()
    return seconds[WARM_UP:]


def compare(way: str, size: Size, shape: Shape, options: argparse.Namespace) -> str:
    """One cell, as a row of Markdown."""
    steps = WARM_UP + options.steps
    clock = time.process_time if options.threads == 1 else time.perf_counter
    policy = new_policy(size, shape)
    with tempfile.TemporaryDirectory() as out:
        trainer = new_trainer(way, size, shape, steps, options.attention, out)
        ours = training_steps(policy, size, shape, steps)
        theirs, mine = zip(*alternate(trainer, ours, shape.updates, clock), strict=True)
    return (
        f"| {way} | {shape.trajectories} x {shape.tokens} tokens, {shape.turns} turns "
        f"| {parameters(policy):,} / {parameters(trainer.model):,} "
        f"| {median(mine):.3f} s | {median(theirs):.3f} s "
        f"| {median(theirs) / median(mine):.2f} ({min(theirs) / min(mine):.2f}) |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all cells, about 5 minutes")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"))
    options = parser.parse_args()
    if importlib.util.find_spec("trl") is None:
        print("trl is not installed: no comparison with it (make env-verl)")
        return
    torch.set_num_threads(options.threads)
    print("| TRL's way | batch | parameters, ours / TRL's | ours | TRL | ratio (of fastest) |")
    print("|---|---|---|---|---|---|", flush=True)
    for way, size, shape in FULL if options.full else QUICK:
        if way == "environment" and importlib.util.find_spec("jmespath") is None:
            print("| environment | not measured: jmespath is not installed | | | | |")
        else:
            print(compare(way, size, shape, options), flush=True)


if __name__ == "__main__":
    main()
