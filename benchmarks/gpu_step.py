"""Time and memory of a training step on one GPU, for random models shaped as Qwen's; as predicted.

    PYTHONPATH=lib python benchmarks/gpu_step.py [--models 0.5B 1.5B 8B] [--rows 16] [--tokens 2048]
    PYTHONPATH=lib python benchmarks/gpu_step.py --smoke      # a toy on the CPU: does it still run?

Weights are drawn at random on the device: no model is read or downloaded.  A printed line is a row
of Markdown.  `decode` is `--decoded` tokens of every trajectory, one at a time; `entropy pass` the
log-probs and entropies of all tokens before the update, `update` one optimiser step over the same
trajectories, with gradient checkpointing; `share` is the entropy pass over the update.  `peak` is
the most memory that torch held meanwhile, beside the estimate for the same shapes.  `products` is
the estimate's time of entropy pass and update at the rate measured here.  A model that the estimate
refuses is a line that says so.  Without CUDA nothing is measured and the output says so.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch

from turncredit import params, tasks
from turncredit.estimates import Estimate, estimate, measure_rates
from turncredit.policies import huggingface
from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings
from turncredit.policies.model_sources import import_transformers
from turncredit.training import new_optimiser

SHAPES = {  # layers, width, inner width, heads, heads of keys, words, embedding tied to the head
    "toy": (2, 64, 128, 4, 2, 512, True),
    "0.5B": (24, 896, 4864, 14, 2, 151_936, True),
    "1.5B": (28, 1536, 8960, 12, 2, 151_936, True),
    "3B": (36, 2048, 11_008, 16, 2, 151_936, True),
    "7B": (28, 3584, 18_944, 28, 4, 152_064, False),
    "8B": (36, 4096, 12_288, 32, 8, 151_936, False),
}
"""Of Qwen2.5 up to 7B and of Qwen3-8B, as their config.json say."""
HEADER = (
    "model", "parameters", "trajectories", "decode s", "entropy pass s", "update s", "share",
    "peak GiB", "predicted GiB", "products s",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["0.5B", "1.5B", "3B", "8B"], choices=SHAPES)
    parser.add_argument("--rows", type=int, default=16, help="trajectories of a step")
    parser.add_argument("--tokens", type=int, default=2048, help="of a trajectory")
    parser.add_argument("--decoded", type=int, default=64, help="tokens decoded one at a time")
    parser.add_argument("--smoke", action="store_true", help="a toy on the CPU")
    options = parser.parse_args()
    if options.smoke:
        options.models, options.rows, options.tokens, options.decoded = ["toy"], 4, 32, 3
    elif not torch.cuda.is_available():
        print("nothing measured: torch sees no CUDA device here (--smoke runs a toy on the CPU)")
        return
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, Path(folder), options), flush=True)


def row(name: str, folder: Path, options: argparse.Namespace) -> str:
    """One model's line of Markdown."""
    device = "cpu" if options.smoke else "cuda"
    settings = settings_of(name, folder, device, options.tokens)
    predicted = prediction(settings, options.rows)
    try:
        predicted.require_fits()
    except ValueError as error:
        return f"| {name} | {error} |" + " |" * (len(HEADER) - 2)
    rates = measure_rates(predicted)
    huggingface.load_model = random_model  # in the place of weights from a folder
    seconds = measured(HuggingFacePolicy(settings, 0), predicted, options)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    gc.collect()
    cells = [
        name, f"{predicted.sizes.parameters / 1e9:.3g} B", f"{options.rows} x {options.tokens}",
        *(f"{value:.3g}" for value in seconds), f"{seconds[1] / seconds[2]:.2f}", f"{peak:.3g}",
        f"{predicted.peak / 2**30:.3g}", f"{predicted.operations.reading / rates.reading:.3g}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def settings_of(name: str, folder: Path, device: str, tokens: int) -> HuggingFaceSettings:
    """A policy over a folder that holds a configuration alone."""
    layers, width, inner, heads, keys, words, tied = SHAPES[name]
    config = import_transformers().Qwen2Config(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        tie_word_embeddings=tied,
        architectures=["Qwen2ForCausalLM"],
    )
    config.save_pretrained(folder)
    policy = task_settings().policy
    return replace(policy, model=str(folder), device=device, max_tokens=tokens, micro_batch_rows=1)


def task_settings() -> tasks.TaskSettings:
    """Those of the task factbook of tier gpu."""
    values = tasks.task_values("gpu", "factbook")
    values.pop("tripwires")  # no part of a task's settings
    return params.build(tasks.TaskSettings, values, "factbook")


def prediction(policy: HuggingFaceSettings, rows: int) -> Estimate:
    """Of one group of `rows`, all of whose tokens count, without a reference policy."""
    settings = task_settings()
    changes = {"questions_per_step": 1, "group_size": rows, "updates_per_batch": 1}
    changes |= {"micro_batch": rows, "kl": None}
    training = replace(settings.training, **changes, max_turn_tokens=policy.max_tokens)
    evaluation = replace(settings.evaluation, questions=1)
    changed = replace(settings, policy=policy, training=training, evaluation=evaluation)
    return estimate(SimpleNamespace(tier="gpu", name="factbook", settings=changed, vocabulary=()))


def random_model(folder: Path, *, dtype: str, attention: str) -> torch.nn.Module:
    """Weights drawn where the model is to run."""
    transformers = import_transformers()
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        )


def measured(
    policy: HuggingFacePolicy, predicted: Estimate, options: argparse.Namespace
) -> list[float]:
    """Seconds of decoding, entropy pass and update, after one short round of each."""
    optimiser = new_optimiser(policy, task_settings().training)
    ids = torch.randint(predicted.sizes.vocabulary, (options.rows, options.tokens))
    for given, decoded in ((ids[:, :16], 2), (ids, options.decoded)):
        if policy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        parts = work(policy, optimiser, given, decoded)
        seconds = [timed(part, policy.device) for part in parts]
    return seconds


def work(
    policy: HuggingFacePolicy, optimiser: torch.optim.Optimizer, ids: torch.Tensor, decoded: int
) -> Iterator[Callable[[], None]]:
    """What is timed, in the order of a step; `ids` [trajectories, tokens] are all scored."""
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False

    @torch.no_grad()
    def decode() -> None:
        decoder = policy.decoder(len(ids))
        for position in range(decoded):
            policy.logits(decoder.step(ids[:, position]))

    @torch.no_grad()
    def entropies() -> None:
        policy.score(ids, mask)

    def update() -> None:
        optimiser.zero_grad()
        logprobs, spread = policy.score(ids, mask)
        (logprobs.mean() + spread.mean()).backward()
        optimiser.step()

    return iter((decode, entropies, update))


def timed(part: Callable[[], None], device: torch.device) -> float:
    """Seconds of `part`, all of its work on the device included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    part()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
