"""verl's own actor, FSDP2 on gloo, against our policy and objectives: on one rank, and on two.

Runs only where verl is installed: `make test-verl`.
"""

import pytest
import tiny_run
import torch

pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)
from batches import make_batch

from turncredit.credit import token_advantages, weigh
from turncredit.objectives import OBJECTIVES
from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings

pytestmark = pytest.mark.timeout(2 * tiny_run.TIMEOUT + 60)
MODULES = ("cpu_engine", "turncredit.verl_plugin.plugin")
LENGTHS = [[9, 7, 5], [8], [1, 2], [2], [6, 1, 9], [3, 3], [1], [1, 1]]
"""Sampled tokens by turn: of two ranks the first has twice as many as the second."""

FOLLOWING = {"limit": 0.2, "side": "both"}
CLIP = {"clip_low": 0.2, "clip_high": 0.2}
JOBS = {
    "aem": ("aem", "token-mean"),
    "following the policy": ("high_is_turns", "token-mean"),
    "by trajectories": ("aem", "seq-mean-token-mean"),
    "a padding row": ("suffix_mask", "token-mean"),
}
"""Weight and aggregation of each gradient."""


def policy_of(folder):
    return HuggingFacePolicy(
        HuggingFaceSettings(
            model=str(folder / "model"), max_tokens=200, chat=False, preface="", dtype="float32",
            attention="sdpa", micro_batch_rows=3, gradient_checkpointing=False, device="cpu",
            lora=None,
        ),
        seed=0,
    )  # fmt: skip


def scored_batch(policy):
    """Two groups of four under the policy, whose old log-probs are a little off."""
    batch = make_batch(
        LENGTHS, rewards=[0.0, 1.0, 0.0, 0.25, 1.0, 0.0, 0.0, 0.5], groups=[0] * 4 + [1] * 4, seed=5
    )
    with torch.no_grad():
        logprobs, entropies = policy.score(batch.token_ids, batch.response_mask)
    noise = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(1))
    old = torch.where(batch.response_mask, (logprobs + 0.2 * noise).clamp(max=0.0), 0.0)
    return batch.replace(old_logprobs=old, entropies=entropies)


def verls(batch, advantages):
    """A batch as verl's fields: the first two tokens are the prompt, all up to the last sampled."""
    ends = (batch.response_mask * torch.arange(1, 1 + batch.token_ids.shape[1])).amax(1).tolist()
    named = {
        "responses": batch.token_ids, "response_mask": batch.response_mask.long(),
        "old_log_probs": batch.old_logprobs, "advantages": advantages,
    }  # fmt: skip
    cut = {
        name: [row[2:end] for row, end in zip(values, ends, strict=True)]
        for name, values in named.items()
    }
    return cut | {"prompts": list(batch.token_ids[:, :2])}


def with_padding(rows):
    """The rows with the last one as verl's padding: a token that nobody sampled."""
    last = {
        "prompts": torch.tensor([0]), "responses": torch.tensor([0]),
        "response_mask": torch.tensor([0]), "old_log_probs": torch.tensor([0.0]),
        "advantages": torch.tensor([0.0]),
    }  # fmt: skip
    return {name: [*values[:-1], last[name]] for name, values in rows.items()}


def loss_of(weight, mode):
    options = FOLLOWING if weight == "high_is_turns" else {}
    return {
        "loss_agg_mode": mode, "policy_loss.loss_mode": "turncredit_ppo_clip",
        "policy_loss.objective_options": CLIP, "policy_loss.weight": weight,
        "policy_loss.weight_options": options,
    }  # fmt: skip


def job_of(batch, weight, mode):
    follows = weight == "high_is_turns"
    rows = verls(batch, token_advantages(batch, "grpo", "none" if follows else weight))
    return {"rows": rows, "loss": loss_of(weight, mode)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one rank found and what two found, the policy and the batch."""
    folder = tmp_path_factory.mktemp("ranks")
    tiny_run.write_params(folder, "http://127.0.0.1:1")
    policy = policy_of(folder)
    batch = scored_batch(policy)
    gradients = {name: job_of(batch, *how) for name, how in JOBS.items()}
    padded = gradients["a padding row"]
    gradients["a padding row"] = padded | {"rows": with_padding(padded["rows"])}
    rows = gradients["aem"]["rows"]
    update = gradients["following the policy"] | {"mini_batch": 4}
    torch.save({"rows": rows, "gradients": gradients, "update": update}, folder / "jobs.pt")
    variables = tiny_run.environment(modules=MODULES)
    commands = [["actor_rank", folder, rank, ranks] for ranks in (1, 2) for rank in range(ranks)]
    tiny_run.finish(*(tiny_run.start_module(c, folder, variables) for c in commands))
    results = {
        (rank, ranks): torch.load(folder / f"found_{rank}_of_{ranks}.pt", weights_only=False)
        for rank, ranks in ((0, 1), (0, 2), (1, 2))
    }
    return results, policy, batch


@pytest.mark.parametrize("ranks", [1, 2])
def test_log_probs_and_entropies_are_those_of_our_policy(found, ranks):
    results, policy, batch = found
    with torch.no_grad():
        expected = policy.score(batch.token_ids, batch.response_mask)
    scores = {}
    for rank in range(ranks):
        scores |= results[rank, ranks]["scores"]
    assert sorted(scores) == list(range(len(LENGTHS)))
    for number, pair in scores.items():
        columns = batch.response_mask[number].nonzero()[:, 0]
        for values, ours in zip(pair, expected, strict=True):
            torch.testing.assert_close(
                values[columns - 1], ours[number, columns], atol=1e-5, rtol=1e-5
            )


def gradients_of(policy, batch, weight, mode, *, last=True):
    """Of our own objective over the whole batch at once, by verl's names, and its value.

    Without its last row if `last` is false.
    """
    policy.zero_grad()
    logprobs, _ = policy.score(batch.token_ids, batch.response_mask)
    if weight == "high_is_turns":
        base = token_advantages(batch, "grpo", "none")
        options = FOLLOWING | {"logprobs": logprobs.detach()}
        credit = weigh(batch, base, weight, options).advantages
        assert 0 < (credit != base).sum() < (base != 0).sum()
    else:
        credit = token_advantages(batch, "grpo", weight)
    if not last:
        rows = list(range(len(LENGTHS) - 1))
        batch, logprobs, credit = batch.select(rows), logprobs[rows], credit[rows]
    value, metrics = OBJECTIVES["ppo_clip"](
        logprobs, batch, credit, aggregation=mode.replace("-", "_"), **CLIP
    )
    assert metrics["clip_fraction"] > 0
    value.backward()
    return {name: p.grad for name, p in policy.model.named_parameters()}, value.item()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", JOBS)
def test_the_gradient_is_that_of_our_objective_on_any_number_of_ranks(found, name, ranks):
    results, policy, batch = found
    expected, value = gradients_of(policy, batch, *JOBS[name], last=name != "a padding row")
    for rank in range(ranks):
        job = results[rank, ranks][name]
        assert job["gradients"].keys() == expected.keys()
        largest = max(float(gradient.abs().max()) for gradient in expected.values())
        for key, gradient in job["gradients"].items():
            torch.testing.assert_close(gradient, expected[key], atol=1e-6 * largest, rtol=1e-4)
        assert job["loss"] == pytest.approx(value, rel=1e-5)


def test_two_updates_on_two_ranks_end_at_the_weights_of_one_rank(found):
    results, policy, _ = found
    one, two, other = (results[key]["updated"] for key in ((0, 1), (0, 2), (1, 2)))
    before = dict(policy.model.named_parameters())
    moved = max(float((one[name] - before[name].detach()).abs().max()) for name in one)
    assert moved > 1e-6
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, atol=1e-4 * moved, rtol=1e-6)
        assert torch.equal(two[name], other[name])
