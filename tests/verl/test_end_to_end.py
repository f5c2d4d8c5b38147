"""Whole runs of verl's own trainer, from our command to its log and checkpoints, without a GPU.

Ray, TransferQueue, verl's agent-loop workers, FSDP2 on gloo: all are verl's own; `cpu_engine`
brings a platform and a sampling server.  Runs only where verl is installed: `make test-verl`.
"""

import csv
import gzip
import json
import shutil

import pytest
import tiny_run
import torch
import yaml

pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)

from turncredit.batching import TurnBatch
from turncredit.credit import token_advantages
from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings
from turncredit.verl_plugin.convert import convert
from turncredit.verl_plugin.places import Place

METHODS = {"suffix_mask": 1, "aem": 2}
"""What is trained, and on how many gloo ranks."""


@pytest.fixture(scope="module")
def server():
    with tiny_run.retrieval_server() as url:
        yield url


def trained(folder, server, method):
    tiny_run.write_params(folder, server, ranks=METHODS[method])
    tiny_run.train(folder, method)
    return folder


@pytest.fixture(scope="module")
def suffix_mask(tmp_path_factory, server):
    return trained(tmp_path_factory.mktemp("suffix_mask"), server, "suffix_mask")


@pytest.fixture(scope="module")
def aem(tmp_path_factory, server):
    return trained(tmp_path_factory.mktemp("aem"), server, "aem")


@pytest.fixture(params=METHODS)
def run(request):
    return request.param, request.getfixturevalue(request.param)


def place_of(folder):
    (path,) = (folder / "runs").iterdir()
    return Place(path)


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


def test_the_actor_is_given_the_advantages_of_token_advantages(run):
    method, folder = run
    options, moved = options_of(folder, method), 0.0
    for step in (1, 2):
        rows = dumped(folder, step)
        batch = batch_of(rows)
        base, weight = ({k: options[k] for k in (n, f"{n}_options")} for n in ("base", "weight"))
        expected = token_advantages(batch, **base, **weight)
        torch.testing.assert_close(given(rows, batch), expected, atol=1e-5, rtol=0)
        plain = token_advantages(batch, **base, weight="none")
        assert expected.abs().sum() > 0
        moved += (expected - plain).abs().sum().item()
    assert moved > 1e-3  # the weight had something to do


def test_a_step_has_whole_groups_of_several_turns_and_ids_that_no_text_gives(run):
    _, folder = run
    rows = dumped(folder, 1)
    notes = [extra["turncredit"] for extra in rows["extra_fields"]]
    assert len(rows["uid"]) == 16
    assert {rows["uid"].count(uid) for uid in rows["uid"]} == {4}
    assert max(len(note["turn_spans"]) for note in notes) == 3
    assert {"search", "answer"} <= {action for note in notes for action in note["actions"]}
    sampled = torch.cat(
        [r[m.bool()] for r, m in zip(rows["responses"], rows["response_mask"], strict=True)]
    )
    assert (sampled >= 256).float().mean() > 0.5  # words beyond the tokenizer's merges


def test_the_log_has_the_metrics_of_what_was_trained_on(run):
    _, folder = run
    lines = [json.loads(line) for line in place_of(folder).logs()[0].read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[0]["data"]["turncredit_eval/questions"] == 4
    for line in lines[1:]:
        rows, data = dumped(folder, line["step"]), line["data"]
        rewards = [extra["turncredit"]["reward"] for extra in rows["extra_fields"]]
        assert data["turncredit/reward"] == pytest.approx(sum(rewards) / len(rewards))
        batch = batch_of(rows)
        assert data["turncredit/tokens"] == int(batch.response_mask.sum())
        first = batch.turn_ids == 0
        assert data["turncredit/turn_0/tokens"] == int(first.sum())
        assert data["actor/grad_norm"] > 0


def scored(folder, weights, step, dumps="dumps"):
    """Log-probs and entropies of a step's rows by our own policy with the weights of a folder."""
    settings = HuggingFaceSettings(
        model=str(weights), max_tokens=4096, chat=True, preface="", dtype="float32",
        attention="sdpa", micro_batch_rows=4, gradient_checkpointing=False, device="cpu", lora=None,
    )  # fmt: skip
    batch = batch_of(dumped(folder, step, dumps))
    with torch.no_grad():
        logprobs, entropies = HuggingFacePolicy(settings, 0).score(
            batch.token_ids, batch.response_mask
        )
    return batch, logprobs, entropies


def weights_after(folder, step):
    """The policy that a step starts from: the model as it was written, or a checkpoint."""
    saved = place_of(folder).path / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
    return saved if step else folder / "model"


@pytest.mark.parametrize("step", [1, 2])
def test_engines_and_our_policy_agree_on_log_probs_and_entropies(run, step):
    """The engine's, ours with the checkpoint before the step, and those of who sampled."""
    _, folder = run
    batch, logprobs, entropies = scored(folder, weights_after(folder, step - 1), step)
    mask = batch.response_mask
    torch.testing.assert_close(batch.old_logprobs[mask], logprobs[mask], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(batch.entropies[mask], entropies[mask], atol=1e-4, rtol=1e-4)
    rows = dumped(folder, step)
    for told, engine, sampled in zip(
        rows["rollout_log_probs"], rows["old_log_probs"], rows["response_mask"], strict=True
    ):
        torch.testing.assert_close(
            told[sampled.bool()], engine[sampled.bool()], atol=1e-4, rtol=1e-4
        )


def test_training_changed_the_weights(run):
    _, folder = run
    batch, after, _ = scored(folder, weights_after(folder, 1), 1)
    moved = (after - batch.old_logprobs)[batch.response_mask].abs().max()
    assert moved > 1e-3


def test_every_rank_has_its_part_of_the_checkpoint(run):
    method, folder = run
    actor = place_of(folder).path / "checkpoints" / "global_step_2" / "actor"
    count = METHODS[method]
    for part in ("model", "optim", "extra_state"):
        names = {path.name for path in actor.glob(f"{part}_world_size_*")}
        assert names == {f"{part}_world_size_{count}_rank_{rank}.pt" for rank in range(count)}


def test_the_figures_tables_come_from_the_log(run, tmp_path):
    method, folder = run
    directory = convert(place_of(folder), tmp_path)
    assert directory.path == tmp_path / "search_r1-tiny" / method / "seed_1"
    manifest = directory.read_manifest()
    assert (manifest["steps_done"], manifest["evaluated_at"]) == (2, 2)
    rows = directory.read("metrics.csv")
    assert [row["step"] for row in rows] == [0, 1]
    assert {"reward", "entropy", "clip_fraction", "turns", "search_first"} <= {*rows[0]}
    with gzip.open(directory.path / "turns.csv.gz", "rt") as file:
        turns = list(csv.DictReader(file))
    assert {row["turn"] for row in turns} == {"0", "1", "2"}
    assert all(float(row["entropy_k16"]) > 0 for row in turns)


def test_a_run_goes_on_from_its_checkpoint(suffix_mask, tmp_path):
    """What step 2 did is lost; done anew it meets the same questions and the same weights."""
    place = place_of(suffix_mask)
    checkpoints = place.path / "checkpoints"
    shutil.rmtree(checkpoints / "global_step_2")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    tiny_run.train(suffix_mask, "suffix_mask", dumps="again")
    assert [path.name for path in (suffix_mask / "again").iterdir()] == ["step_2.pt"]
    assert asked(suffix_mask, "again") == asked(suffix_mask, "dumps")
    batch, logprobs, _ = scored(suffix_mask, weights_after(suffix_mask, 1), 2, dumps="again")
    mask = batch.response_mask
    torch.testing.assert_close(batch.old_logprobs[mask], logprobs[mask], atol=1e-4, rtol=1e-4)
    moments = checkpoints / "global_step_2" / "actor" / "optim_world_size_1_rank_0.pt"
    state = torch.load(moments, weights_only=False)["state"]
    assert {int(values["step"]) for values in state.values()} == {4}  # two updates a step
    rows = convert(place, tmp_path).read("metrics.csv")
    assert [row["step"] for row in rows] == [0, 1]
    assert len(place.logs()) == 2


def asked(folder, dumps):
    """Ids of the questions of step 2."""
    rows = dumped(folder, 2, dumps)
    return {extra["turncredit"]["question_id"] for extra in rows["extra_fields"]}
