"""Whole runs of verl's own trainer, from our command to its log and checkpoints, without a GPU.

Ray, TransferQueue, verl's agent-loop workers, FSDP2 on gloo: all are verl's own; `cpu_engine`
brings a platform and a sampling server.  Runs only where verl is installed: `make test-verl`.
"""

import csv
import json
import shutil

import pytest
import tiny_run
import torch
import yaml

pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)

from safetensors.torch import load_file
from transformers import AutoTokenizer

from turncredit import paths
from turncredit.batching import TurnBatch
from turncredit.credit import token_advantages
from turncredit.records import read_trajectories
from turncredit.verl_plugin import evaluate
from turncredit.verl_plugin.convert import convert
from turncredit.verl_plugin.places import Place

pytestmark = pytest.mark.timeout(2 * tiny_run.TIMEOUT + 60)


@pytest.fixture(scope="module")
def server():
    with tiny_run.tool_server() as url:
        yield url


RANKS = {"suffix_mask": 1, "aem": 2}
AGENTS = {"suffix_mask": "search_r1", "aem": "deep_research"}
PUSHES = {"suffix_mask": 7.0, "aem": 10.0}
"""Towards whole words: more of them for the environment with more tools."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, server):
    """The folders of runs of two steps by method, under way at the same time."""
    folders = {method: tmp_path_factory.mktemp(method) for method in RANKS}
    for method, folder in folders.items():
        tiny_run.write_params(folder, server, ranks=RANKS[method], push=PUSHES[method])
    tiny_run.finish(*(tiny_run.start(folders[m], m, agent=agent) for m, agent in AGENTS.items()))
    return folders


@pytest.fixture(scope="module")
def resumed(runs):
    """The first folder; `stopped` in it is its run as if killed after a step, gone on with."""
    folder = runs["suffix_mask"]
    shutil.copytree(folder / "runs", folder / "stopped")
    place = place_of(folder, "stopped")
    shutil.rmtree(place.path / "checkpoints" / "global_step_2")
    (place.path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
    (log,) = place.logs()
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if json.loads(line)["step"] < 2))
    tiny_run.finish(tiny_run.start(folder, "suffix_mask", runs="stopped"))
    return folder


def place_of(folder, runs="runs"):
    """The only run below a folder."""
    (path,) = (folder / runs).iterdir()
    return Place(path)


def dumped(folder, step, runs="runs"):
    """What the actor was given at a step, padding rows left out."""
    rows = torch.load(folder / f"{runs}-dumps" / f"step_{step}.pt", weights_only=False)
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


def read_table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def options_of(folder, method):
    verl = yaml.safe_load((folder / "methods" / f"{method}.yaml").read_text())["verl"]
    return verl["algorithm"]["turncredit"]


# episodes


def observed(rows, tokenizer):
    """(action, what followed it) of every turn but the last ones."""
    for response, extra in zip(rows["responses"], rows["extra_fields"], strict=True):
        note = extra["turncredit"]
        spans = [*note["turn_spans"], [len(response)] * 2]
        for turn, action in enumerate(note["actions"][:-1]):
            ids = response[spans[turn][1] : spans[turn + 1][0]].tolist()
            yield action, tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("suffix_mask", {"search": "Doc 1(Title: Court) In The Hague."}),
        ("aem", {"search": "Doc 1 (Title: Court)", "external_verify": "CORRECT"}),
    ],
)
def test_tools_answer_inside_verl_and_nothing_they_say_is_trained_on(runs, method, told):
    tokenizer = AutoTokenizer.from_pretrained(runs[method] / "model")
    steps = [dumped(runs[method], step) for step in (1, 2)]
    found = [pair for rows in steps for pair in observed(rows, tokenizer)]
    for action, text in told.items():
        answers = [said for name, said in found if name == action]
        assert answers or action != "search"  # a random policy may never ask the judge
        assert all(text in said for said in answers)
    for rows in steps:
        for mask, extra in zip(rows["response_mask"], rows["extra_fields"], strict=True):
            sampled = torch.zeros(len(mask))
            for start, end in extra["turncredit"]["turn_spans"]:
                sampled[start:end] = 1
            assert torch.equal(sampled, mask.float())


# credit


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("method", RANKS)
def test_the_actor_is_given_the_advantages_of_token_advantages(runs, method, step):
    options = options_of(runs[method], method)
    rows = dumped(runs[method], step)
    batch = batch_of(rows)
    base, weight = ({k: options[k] for k in (n, f"{n}_options")} for n in ("base", "weight"))
    expected = token_advantages(batch, **base, **weight)
    torch.testing.assert_close(given(rows, batch), expected, atol=1e-5, rtol=0)
    unweighted = token_advantages(batch, **base, weight="none")
    assert (expected - unweighted).abs().max() > 0.1  # else the weight would not have been seen


@pytest.mark.parametrize("method", RANKS)
def test_the_engine_that_sampled_and_the_one_that_trains_agree(runs, method):
    rows = dumped(runs[method], 2)  # after an update of the weights, which the servers were sent
    for old, told, mask in zip(
        rows["old_log_probs"], rows["rollout_log_probs"], rows["response_mask"], strict=True
    ):
        sampled = mask.bool()
        torch.testing.assert_close(old[sampled], told[sampled], atol=1e-4, rtol=0)


# checkpoints


def weights_of(place, step):
    """By name, from the checkpoint that our evaluation opens."""
    folder = place.path / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
    return load_file(folder / "model.safetensors")


def sorted_rows(rows):
    """Each row's ids, advantages and log-probs, in an order of their own."""
    found = zip(
        rows["prompts"], rows["responses"], rows["advantages"], rows["old_log_probs"], strict=True
    )
    return sorted(found, key=lambda row: [*row[0].tolist(), *row[1].tolist()])


def test_a_run_that_goes_on_trains_on_what_it_would_have_trained_on(resumed):
    (start,) = dumped_steps(resumed, "stopped")
    assert start == 2
    whole, after = (sorted_rows(dumped(resumed, 2, runs)) for runs in ("runs", "stopped"))
    assert len(whole) == len(after)
    for expected, row in zip(whole, after, strict=True):
        assert torch.equal(row[0], expected[0])
        assert torch.equal(row[1], expected[1])
        torch.testing.assert_close(row[2], expected[2], atol=1e-5, rtol=0)
        torch.testing.assert_close(row[3], expected[3], atol=1e-5, rtol=0)


def dumped_steps(folder, runs):
    return sorted(
        int(file.stem.removeprefix("step_")) for file in (folder / f"{runs}-dumps").iterdir()
    )


def test_a_run_that_goes_on_ends_where_it_would_have_ended(resumed):
    before = weights_of(place_of(resumed), 1)
    expected, found = (weights_of(place_of(resumed, runs), 2) for runs in ("runs", "stopped"))
    moved = max(float((expected[name] - before[name]).abs().max()) for name in expected)
    assert moved > 1e-4
    assert found.keys() == expected.keys()
    for name, weights in found.items():
        torch.testing.assert_close(weights, expected[name], atol=1e-3 * moved, rtol=0)


def test_a_checkpoint_opens_as_the_policy_that_verl_went_on_with(runs):
    place, rows = place_of(runs["aem"]), dumped(runs["aem"], 2)
    facts = json.loads(place.facts.read_text())["overrides"]
    agent = evaluate.agent_of(facts, "")
    policy, _ = evaluate.open_checkpoint(place, 1, facts["data"], agent, "cpu")
    batch = batch_of(rows)
    with torch.no_grad():
        logprobs, entropies = policy.score(batch.token_ids, batch.response_mask)
    sampled = batch.response_mask
    for ours, theirs in ((logprobs, batch.old_logprobs), (entropies, batch.entropies)):
        torch.testing.assert_close(ours[sampled], theirs[sampled], atol=1e-4, rtol=0)


def test_a_checkpoint_is_evaluated_by_our_own_rollout_and_becomes_results(
    runs, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path / "cache"))
    place = place_of(runs["aem"])
    assert evaluate.main([str(place.path), "--device", "cpu", "--rows", "3"]) == 0
    assert capsys.readouterr().out.startswith("step 2, hops all, questions 8, ")
    folder = place.evaluation(2)
    trajectories = read_trajectories(folder / "trajectories.jsonl.gz")
    assert len(trajectories) == 8
    actions = {turn.action for trajectory in trajectories for turn in trajectory.turns}
    assert actions & {"search", "read_chunk", "external_verify"}
    assert None not in {trajectory.reward for trajectory in trajectories}
    directory = convert(place, tmp_path / "results")
    (ours,) = (row for row in read_table(directory.path / "eval.csv") if row["step"] == "2")
    (row,) = (row for row in read_table(folder / "eval.csv") if row["hops"] == "all")
    assert {name: ours[name] for name in row} == row
    assert float(row["turns"]) == pytest.approx(
        sum(len(trajectory.turns) for trajectory in trajectories) / 8
    )


# results


@pytest.mark.parametrize(
    ("made", "evaluated"),
    [("runs", {"0", "2"}), ("stopped", {"0", "1", "2"})],  # verl evaluates at every start
)
def test_its_log_becomes_results(resumed, made, evaluated, tmp_path):
    directory = convert(place_of(resumed, made), tmp_path)
    metrics, manifest = read_table(directory.path / "metrics.csv"), directory.read_manifest()
    assert [row["step"] for row in metrics] == ["0", "1"]
    assert (manifest["steps_done"], manifest["evaluated_at"]) == (2, 2)
    sampled = sum(int(mask.sum()) for mask in dumped(resumed, 2, made)["response_mask"])
    assert float(metrics[1]["tokens"]) == sampled
    assert {row["step"] for row in read_table(directory.path / "eval.csv")} == evaluated


def test_a_log_still_has_what_the_recorded_one_has(runs):
    recorded = paths.PACKAGE.parents[1] / "tests" / "fixtures" / "cluster_run"
    new, old = (names_of(place) for place in (place_of(runs["aem"]), Place(recorded)))
    assert len(old) > 100
    assert not old - new


def names_of(place):
    """What a run logged under any name but those of single turns, which not every run reaches."""
    lines = [json.loads(line) for log in place.logs() for line in log.read_text().splitlines()]
    return {name for line in lines for name in line["data"] if "/turn_" not in name}
