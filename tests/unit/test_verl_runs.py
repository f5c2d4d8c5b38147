"""Folders of cluster runs, what verl logs of them, and the results that the figures read."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from play import PLAIN, policy, questions, synthetic_environment, vocabulary

from turncredit.evaluation import evaluate, evaluation_rows
from turncredit.verl_plugin import convert as converting
from turncredit.verl_plugin import evaluate as evaluating
from turncredit.verl_plugin.batches import Rows, credit_rows
from turncredit.verl_plugin.cluster import read_run, seeded
from turncredit.verl_plugin.convert import convert
from turncredit.verl_plugin.evaluations import evaluation_row, outcome_of
from turncredit.verl_plugin.outputs import NOTE, response_of
from turncredit.verl_plugin.places import Place
from turncredit.verl_plugin.run_logs import read_log

RUN = read_run("qwen3_8b", "search_r1", "1x8", "suffix_mask")
STEPS = RUN.verl["trainer"]["total_training_steps"]
TASK = "search_r1-qwen3_8b"


def played(count=12, seed=0):
    """Trajectories of a random policy with rewards, one of them missing and one of them lost."""
    asked = questions(count, seed)
    made = evaluate(
        policy(seed), vocabulary(), synthetic_environment(), asked,
        max_turn_tokens=5, temperature=1.0,
    )  # fmt: skip
    won = [replace(t, reward=float(n % 3 == 0), success=n % 3 == 0) for n, t in enumerate(made)]
    lost = replace(won[1], reward=None, success=False, stop_reason="error")
    return asked, [won[0], lost, replace(won[2], reward=None), *won[3:]]


def step_data(seed, **more):
    """What verl logs of one step, from the trainer's own metrics."""
    _, trajectories = played(seed=seed)
    responses = [response_of(trajectory) for trajectory in trajectories]
    values = [torch.rand(len(response.ids)) for response in responses]
    rows = Rows(
        prompts=[torch.tensor(t.prompt_ids) for t in trajectories],
        responses=[torch.tensor(response.ids) for response in responses],
        masks=[torch.tensor(response.mask) for response in responses],
        uids=[f"q{number // 4}" for number in range(len(trajectories))],
        scores=[t.reward or 0.0 for t in trajectories],
        extras=[{NOTE: response.note} for response in responses],
        tokens={"old_log_probs": [-v for v in values], "entropy": values},
        rollout=[-v for v in values],
    )
    _, _, found = credit_rows(PLAIN, rows, seed=0, step=1)
    data = {f"turncredit/{name}": value for name, value in found.items()}
    data |= {"actor/clip_fraction": 0.25, "actor/pg_loss": 0.5, "actor/grad_norm": 2.0}
    seconds = {"gen": 4.0, "old_log_prob": 1.0, "ref": 1.0, "adv": 0.5, "update_actor": 2.0}
    data |= {f"timing_s/{name}": value for name, value in (seconds | {"step": 10.0}).items()}
    return data | more


def evaluation_data(seed):
    _, trajectories = played(seed=seed)
    told = [outcome_of(trajectory) for trajectory in trajectories]
    row = evaluation_row({name: [one[name] for one in told] for name in told[0]})
    return {f"turncredit_eval/{name}": value for name, value in row.items()}


def write_log(file, *lines, end=b""):
    """As verl's logger does: a JSON object a line, NaN as null."""
    text = "".join(
        json.dumps({"step": step, "data": data}).replace("NaN", "null") + "\n"
        for step, data in lines
    )
    file.write_bytes(text.encode() + end)


def begun(folder, run=RUN):
    place = Place(folder / run.folder)
    return place, place.begin(run)


def short(steps):
    """The run, over after so many steps."""
    trainer = RUN.verl["trainer"] | {"total_training_steps": steps}
    return replace(RUN, verl=RUN.verl | {"trainer": trainer})


# --- evaluations


@pytest.mark.parametrize("seed", range(3))
def test_an_evaluation_inside_verl_has_the_numbers_of_our_own(seed):
    asked, trajectories = played(seed=seed)
    for known in (trajectories, [replace(t, grounded=None) for t in trajectories]):
        told = [outcome_of(trajectory) for trajectory in known]
        found = evaluation_row({name: [one[name] for one in told] for name in told[0]})
        expected = evaluation_rows(asked, known)[0]
        assert {"hops": "all"} | found == pytest.approx(expected, nan_ok=True)


def test_a_lost_episode_is_in_no_share():
    _, trajectories = played()
    told = outcome_of(trajectories[1])
    assert (told["lost"], told["missing_rewards"], told["success"]) == (1, 1, 0)
    assert {told[name] for name in ("turns", "search_first", "answered")} == {None}
    row = evaluation_row({name: [value] for name, value in told.items()})
    assert row["questions"] == row["lost"] == 1
    assert row["exact_match"] != row["exact_match"]


# --- folders


def test_runs_that_differ_in_any_part_or_in_the_seed_have_folders_of_their_own():
    names = ["qwen3_8b", "search_r1", "1x8", "suffix_mask"]
    others = ["qwen2_5_7b", "deep_research", "2x8", "aem"]
    runs = [RUN, seeded(RUN, 7)]
    runs += [read_run(*names[:n], other, *names[n + 1 :]) for n, other in enumerate(others)]
    assert len({run.folder for run in runs}) == len(runs)


def test_a_seed_is_told_to_all_that_draw():
    verl = seeded(RUN, 7).verl
    rollout = verl["actor_rollout_ref"]["rollout"]
    assert [
        verl["data"]["seed"], verl["algorithm"]["turncredit"]["seed"], rollout["seed"],
        rollout["custom"]["turncredit"]["seed"],
    ] == [7] * 4  # fmt: skip
    assert rollout["custom"]["turncredit"]["wording"] == "search_r1"


def test_each_start_has_a_log_of_its_own_and_another_run_is_refused(tmp_path):
    place, log = begun(tmp_path)
    assert log.name == "log-001.jsonl"
    log.write_text("")
    assert place.begin(RUN).name == "log-002.jsonl"
    other = replace(RUN, verl=RUN.verl | {"data": RUN.verl["data"] | {"train_batch_size": 8}})
    with pytest.raises(ValueError, match="holds a run with other overrides"):
        place.begin(other)


# --- logs


def test_a_later_start_takes_the_place_of_what_was_lost(tmp_path):
    place, log = begun(tmp_path)
    rewards = "turncredit/reward"
    first = [(step, step_data(step, **{rewards: 0.1})) for step in (1, 2, 3)]
    write_log(log, (0, evaluation_data(0)), *first, end=b'{"step": 4, "da')
    second = (2, step_data(9, **{rewards: 0.9}))
    write_log(place.path / "log-002.jsonl", (1, evaluation_data(1)), second)
    found = read_log(place)
    assert [(row["step"], row["reward"]) for row in found.metrics] == [(0, 0.1), (1, 0.9)]
    assert [row["step"] for row in found.evaluations] == [0, 1]
    assert {row["step"] for row in found.turns} == {0, 1}


def test_a_line_in_the_middle_that_is_none_is_named(tmp_path):
    place, log = begun(tmp_path)
    log.write_bytes(b'{"step": 1}\n')
    with pytest.raises(ValueError, match=r"log-001\.jsonl, line 1: not a line of verl's log"):
        read_log(place)


def test_a_run_of_another_trainer_is_refused(tmp_path):
    place, log = begun(tmp_path)
    write_log(log, (1, {"actor/pg_loss": 1.0}))
    with pytest.raises(ValueError, match="no step of ours"):
        read_log(place)


# --- results


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results" / "verl"


def converted(tmp_path, root, method, seed, steps=4):
    whole = seeded(read_run("qwen3_8b", "search_r1", "1x8", method), seed)
    trainer = whole.verl["trainer"] | {"total_training_steps": steps}
    run = replace(whole, verl=whole.verl | {"trainer": trainer})
    place, log = begun(tmp_path / "runs", run)
    lines = [(step, step_data(10 * seed + step)) for step in range(1, steps + 1)]
    lines[-1] = (steps, lines[-1][1] | evaluation_data(seed + 1))
    write_log(log, (0, evaluation_data(seed)), *lines)
    return convert(place, root)


def test_a_run_that_goes_on_has_no_manifest_and_is_refreshed(tmp_path, root):
    run = short(3)
    place, log = begun(tmp_path / "runs", run)
    write_log(log, (1, step_data(1)))
    assert not convert(place, root).manifest.exists()
    write_log(log, *((step, step_data(step)) for step in (1, 2, 3)))
    directory = convert(place, root)
    assert len(pd.read_csv(directory.path / "metrics.csv")) == 3
    assert directory.read_manifest()["steps_done"] == 3


@pytest.mark.parametrize("of_all", [True, False])
def test_our_own_evaluation_of_all_questions_takes_the_place_of_verls(tmp_path, root, of_all):
    place, log = begun(tmp_path / "runs", short(2))
    write_log(
        log, (0, evaluation_data(0)), (1, step_data(1)), (2, step_data(2) | evaluation_data(1))
    )
    before = pd.read_csv(convert(place, root).path / "eval.csv")
    asked, trajectories = played(seed=5)
    rows = [{"step": 2, **r, "temperature": 0.5} for r in evaluation_rows(asked, trajectories)]
    facts = json.loads(place.facts.read_text())
    evaluating.write(place.evaluation(2), rows, asked, trajectories, facts, of_all=of_all)
    directory = convert(place, root)
    after = pd.read_csv(directory.path / "eval.csv")
    assert directory.read_manifest()["evaluated_at"] == 2
    if not of_all:
        pd.testing.assert_frame_equal(after, before)
        return
    first, mine = (after[after["step"] == step] for step in (0, 2))
    pd.testing.assert_frame_equal(first, before[before["step"] == 0], check_dtype=False)
    assert len(mine) == len(rows)
    for name, value in rows[0].items():
        told = mine.iloc[0][name]
        assert told == (value if name == "hops" else pytest.approx(value, nan_ok=True)), name


def test_a_checkpoint_that_no_policy_can_be_made_of_is_refused(tmp_path):
    place, _ = begun(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint was saved here"):
        place.latest_step()
    folder = place.path / "checkpoints" / "global_step_50" / "actor" / "huggingface"
    folder.mkdir(parents=True)
    (place.path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("50")
    assert place.latest_step() == 50
    with pytest.raises(ValueError, match=r"no checkpoint of step 7; there are \[50\]"):
        place.model(7)
    with pytest.raises(ValueError, match="save_contents must name hf_model"):
        place.model(50)
    (folder / "model.safetensors").write_bytes(b"")
    assert place.model(50) == folder


def test_what_is_evaluated_is_what_the_agent_loop_played():
    run = read_run("qwen3_8b", "deep_research", "2x8", "aem")
    agent = evaluating.agent_of(run.verl, "10.0.0.7")
    assert agent.retriever.url == "http://10.0.0.7:8000"
    assert agent.judge.base_url == "http://10.0.0.7:8001/v1"
    assert agent.max_turn_tokens == 1024


def test_a_run_is_never_written_over_another_one(tmp_path, root):
    converted(tmp_path, root, "suffix_mask", 1)
    other = seeded(read_run("qwen3_8b", "search_r1", "2x8", "suffix_mask"), 1)
    place, log = begun(tmp_path / "runs", other)
    write_log(log, (1, step_data(1)))
    with pytest.raises(ValueError, match="holds a run of other parameters"):
        convert(place, root)


def test_the_command_says_which_run_no_figure_will_show(tmp_path, root, capsys):
    for model in ("mine", "qwen3_8b"):
        whole = replace(RUN, names=(model, *RUN.names[1:]))
        place, log = begun(tmp_path / "runs", whole)
        write_log(log, (1, step_data(1)))
        assert converting.main([str(place.path), "--results", str(root)]) == 0
        found = capsys.readouterr()
        assert f"search_r1-{model}" in found.out
        unlisted = f"search_r1-{model} is not among `tasks` of" in found.err
        assert unlisted == (model == "mine")


def test_the_command_names_what_is_no_run(tmp_path, root, capsys):
    assert converting.main([str(tmp_path)]) == 1
    assert f"{tmp_path}: no run.json" in capsys.readouterr().err
