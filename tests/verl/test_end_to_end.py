"""Whole runs of verl's own trainer, from our command to its log and checkpoints, without a GPU.

Ray, TransferQueue, verl's agent-loop workers, FSDP2 on gloo: all are verl's own; `cpu_engine`
brings a platform and a sampling server.  Runs only where verl is installed: `make test-verl`.
"""

import pytest
import tiny_run
import torch
import yaml

pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)

from turncredit.batching import TurnBatch
from turncredit.credit import token_advantages


@pytest.fixture(scope="module")
def server():
    with tiny_run.retrieval_server() as url:
        yield url


@pytest.fixture(scope="module")
def suffix_mask(tmp_path_factory, server):
    """The folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("suffix_mask")
    tiny_run.write_params(folder, server)
    tiny_run.train(folder, "suffix_mask")
    return folder


def dumped(folder, step, dumps="dumps"):
    """What the actor was given at a step, padding rows left out."""
    rows = torch.load(folder / dumps / f"step_{step}.pt", weights_only=False)
    real = [number for number, padding in enumerate(rows["padding"]) if not padding]
    return {name: [values[number] for number in real] for name, values in rows.items()}


def batch_of(rows):
    """The batch of dumped rows, built from the spans in their notes alone."""
    notes = [extra["turncredit"] for extra in rows["extra_fields"]]
    lengths = [
        (len(prompt), len(response))
        for prompt, response in zip(rows["prompts"], rows["responses"], strict=True)
    ]
    shape = len(lengths), max(map(sum, lengths))
    ids, turns = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
    logprobs, entropies = torch.zeros(shape), torch.zeros(shape)
    for row, (before, after) in enumerate(lengths):
        ids[row, : before + after] = torch.cat([rows["prompts"][row], rows["responses"][row]])
        logprobs[row, before : before + after] = rows["old_log_probs"][row]
        entropies[row, before : before + after] = rows["entropy"][row]
        for turn, (start, end) in enumerate(notes[row]["turn_spans"]):
            turns[row, before + start : before + end] = turn
    return TurnBatch(
        token_ids=ids,
        response_mask=turns >= 0,
        turn_ids=turns,
        old_logprobs=logprobs,
        entropies=entropies,
        rewards=torch.tensor([note["reward"] for note in notes]),
        success=torch.tensor([note["success"] for note in notes]),
        group_ids=torch.tensor([rows["uid"].index(uid) for uid in rows["uid"]]),
    )


def given(rows, batch):
    """[B, L]: the advantages that the actor was given."""
    values = torch.zeros(batch.response_mask.shape)
    for row, advantages in enumerate(rows["advantages"]):
        start = len(rows["prompts"][row])
        values[row, start : start + len(advantages)] = advantages
    return values


def options_of(folder, method):
    verl = yaml.safe_load((folder / "methods" / f"{method}.yaml").read_text())["verl"]
    return verl["algorithm"]["turncredit"]


def test_the_actor_is_given_the_advantages_of_token_advantages(suffix_mask):
    options = options_of(suffix_mask, "suffix_mask")
    for step in (1, 2):
        rows = dumped(suffix_mask, step)
        batch = batch_of(rows)
        base, weight = ({k: options[k] for k in (n, f"{n}_options")} for n in ("base", "weight"))
        expected = token_advantages(batch, **base, **weight)
        torch.testing.assert_close(given(rows, batch), expected, atol=1e-5, rtol=0)
        assert expected.abs().sum() > 0
