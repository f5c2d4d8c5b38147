"""ActGuide: the smallest guidance, failed groups alone, two prompts in one ratio, every cost."""

import csv
import gzip
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd
import pytest
import torch
from arms import home_with_task, parameters
from hypothesis import given
from hypothesis import strategies as st
from play import (
    ACTIONS,
    PLAIN,
    SMALL,
    TINY,
    TRAINING,
    CoinEpisode,
    coin_environment,
    policy,
    questions,
    synthetic_environment,
    vocabulary,
)

from turncredit import experiment, tasks
from turncredit.batching import from_trajectories
from turncredit.budgets import environment_steps
from turncredit.code_version import code_hash
from turncredit.environments import Step
from turncredit.expert_actions import ActionLog, expert_log, write_log
from turncredit.objectives import OBJECTIVES
from turncredit.records import Trajectory, read_trajectories, write_trajectories
from turncredit.rollout import roll_out
from turncredit.rollout.actguide import Guided, has_failed, smallest_guidance
from turncredit.rollout.protocol import Asked, Drawn
from turncredit.rollout.strategies import STRATEGIES
from turncredit.seeding import python_stream
from turncredit.training import Method, new_optimiser, rescore, train
from turncredit.training.contexts import as_sampled, prompt_ratio_columns

WORDS = vocabulary()
WIDE = replace(TINY, max_tokens=96)
ACTGUIDE = replace(PLAIN, rollout="actguide")
PLAN = ("<search> western </search>", "<search> drama </search>", "<search> comedy </search>")
ASKED = {"seed": 5, "step": 2, "max_turn_tokens": 4}


@dataclass(frozen=True)
class PlanEnvironment:
    """Pays 1 if the prompt holds at least `needed` actions of a plan, whatever the policy does."""

    failures: ClassVar[dict[str, int]] = {}
    needed: int
    actions: tuple[str, ...] = ACTIONS
    unknown: bool = False
    lucky: bool = False
    """It pays only after a first message with an even number of letters, too."""
    capped: bool = False
    """The second message is a search too, and turns have run out."""

    def reset(self, question, stream):
        return PlanEpisode(self, question)


class PlanEpisode(CoinEpisode):
    """Two turns."""

    def __init__(self, environment, question):
        self.environment, self.turns, self.letters = environment, 0, 0
        self.prompt = f"<question> {question.text} </question>"

    @property
    def success(self):
        enough = self.prompt.count("<search>") >= self.environment.needed
        return enough and not (self.environment.lucky and self.letters % 2)

    @property
    def reward(self):
        return None if self.environment.unknown else float(self.success)

    def step(self, message):
        self.turns += 1
        self.letters = self.letters or len(message)
        if self.turns == 2 and self.environment.capped:
            return Step("search", "", stop_reason="max_turns")
        if self.turns == 2:
            return Step("answer", "", stop_reason="answer", correct=self.success)
        return Step("search", "<information> none </information>")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path))


def rolled(environment, asked, plan=PLAN, *, settings=WIDE, setting=ASKED, **options) -> Drawn:
    """Groups of three, with one plan for all questions."""
    write_log("plan", {question.id: ActionLog(question.id, plan) for question in asked}.values())
    strategy = STRATEGIES["actguide"](log="plan", **options)
    parts = (policy(settings=settings), WORDS, environment, asked)
    return strategy.draw(Asked(*parts, group_size=3, **setting))


# --- the search


@given(st.integers(0, 31), st.integers(0, 40))
def test_the_search_finds_the_smallest_number_that_is_enough(length, needed):
    """Five halvings are enough for lengths below 32."""

    def solved(numbers):
        return {name for name, k in numbers.items() if k >= needed}

    found = smallest_guidance({"a": length}, solved)
    assert found == {"a": min(length, needed)}


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 9))
def test_the_search_never_tries_more_often_than_allowed_nor_leaves_the_plan(length, needed, limit):
    tried = []

    def solved(numbers):
        tried.append(numbers["a"])
        return {"a"} if numbers["a"] >= needed else set()

    found = smallest_guidance({"a": length}, solved, max_probe_steps=limit)["a"]
    assert len(tried) <= limit and len(set(tried)) == len(tried)
    assert all(0 <= k < length for k in tried) and 0 <= found <= length
    assert all(k < found for k in tried if k < needed), "what failed is below the lower bound"


def test_questions_are_searched_side_by_side_and_drop_out_one_by_one():
    calls = []
    needed = {"a": 1, "b": 9, "c": 0}

    def solved(numbers):
        calls.append(dict(numbers))
        return {name for name, k in numbers.items() if k >= needed[name]}

    found = smallest_guidance({"a": 2, "b": 4, "c": 0}, solved)
    assert found == {"a": 1, "b": 4, "c": 0}
    assert calls == [{"a": 1, "b": 2}, {"a": 0, "b": 3}]


# --- groups


def test_groups_that_succeed_are_those_of_independent_rollouts_bit_for_bit():
    asked = questions(24)
    rows = [question for question in asked for _ in range(3)]
    environment = coin_environment()
    plain = roll_out(policy(settings=WIDE), WORDS, environment, rows, **ASKED)
    found = rolled(environment, asked)
    hard = [n for n in range(24) if has_failed(plain[3 * n : 3 * n + 3], 0.0)]
    for number, group in enumerate(found.groups):
        assert (group == plain[3 * number : 3 * number + 3]) == (number not in hard)
    assert found.counts["hard_groups"] == len(hard) and 0 < len(hard) < 12


def test_nothing_more_is_sampled_if_no_group_fails():
    asked = questions(2)
    found = rolled(PlanEnvironment(needed=0), asked)
    assert found.counts["rollout_trajectories"] == 6
    names = ("hard_groups", "rescued_groups", "guidance_actions", "probe_trajectories")
    assert [found.counts[name] for name in names] == [0, 0, 0, 0]
    assert all(t.behaviour_prompt_ids is None for group in found.groups for t in group)


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_a_failed_group_gets_the_fewest_actions_that_help(needed):
    """Probes of two trajectories each: 1 of 3 actions is tried first, then 0 or 2."""
    (asked,) = questions(1)
    found = rolled(PlanEnvironment(needed), [asked])
    (group,) = found.groups
    text = f"<question> {asked.text} </question>"
    for trajectory in group:
        assert trajectory.prompt_ids == WORDS.encode(text)
        expected = WORDS.encode(" ".join((text, *PLAN[:needed])))
        assert trajectory.behaviour_prompt_ids == expected
        assert (trajectory.reward, trajectory.success) == (1.0, True)
    assert found.counts["guidance_actions"] == needed
    assert (found.counts["hard_groups"], found.counts["rescued_groups"]) == (1, 1)
    assert found.counts["probe_trajectories"] == 4
    assert found.counts["guided_trajectories"] == 3


def test_every_trajectory_token_and_tool_call_is_on_the_bill():
    """3 unguided, 4 probes, 3 guided; two turns each, of which the first is a search."""
    (asked,) = questions(1)
    found = rolled(PlanEnvironment(needed=2), [asked])
    assert found.counts["rollout_trajectories"] == 3 + 4 + 3
    assert found.counts["rollout_tool_calls"] == 10
    kept = sum(len(turn.sampled_ids) for t in found.groups[0] for turn in t.turns)
    assert kept < found.counts["rollout_sampled_tokens"] <= 10 * 2 * ASKED["max_turn_tokens"]


@pytest.mark.parametrize("capped", [False, True])
def test_environment_steps_are_the_turns_of_all_trajectories_however_they_end(capped):
    found = rolled(PlanEnvironment(needed=2, capped=capped), questions(1))
    metrics = pd.DataFrame([{"turns": 2.0} | found.counts])
    assert environment_steps(metrics, 3).tolist() == [2 * (3 + 4 + 3)]


def test_a_group_that_got_no_action_was_not_rescued_by_guidance():
    """Whoever succeeds by luck at the second try needs no plan."""
    found = rolled(PlanEnvironment(needed=0, lucky=True), questions(48))
    guided = [g for g in found.groups if any(t.behaviour_prompt_ids is not None for t in g)]
    assert found.counts["hard_groups"] > len(guided), "some hard groups got no action"
    assert found.counts["rescued_groups"] == sum(any(t.success for t in g) for g in guided)


def test_without_a_search_all_actions_are_given_and_nothing_is_probed():
    found = rolled(PlanEnvironment(needed=1), questions(2), adaptive=False)
    assert found.counts["guidance_actions"] == 2 * len(PLAN)
    assert found.counts["probe_trajectories"] == 0


def test_a_question_that_no_plan_solves_ends_with_the_whole_plan():
    found = rolled(PlanEnvironment(needed=9), questions(1))
    assert found.counts["guidance_actions"] == len(PLAN)
    assert (found.counts["hard_groups"], found.counts["rescued_groups"]) == (1, 0)


def test_without_actions_a_failed_group_is_rolled_out_again_and_stays_unguided():
    asked = questions(1)
    environment = PlanEnvironment(needed=1)
    found = rolled(environment, asked, plan=())
    assert found.counts["guided_trajectories"] == found.counts["probe_trajectories"] == 0
    assert found.counts["rollout_trajectories"] == 6
    again = roll_out(policy(settings=WIDE), WORDS, environment, asked * 3, **ASKED)
    assert found.groups[0] != again and found.groups[0][0].prompt_ids == again[0].prompt_ids


def test_unknown_rewards_are_neither_failure_nor_success():
    found = rolled(PlanEnvironment(needed=1, unknown=True), questions(1))
    assert found.counts["hard_groups"] == 0
    lone = [Trajectory("q", (1,), (), reward, False, "answer") for reward in (None, -0.1, 0.0)]
    assert not has_failed(lone[:1], 0.0) and has_failed(lone, 0.0) and not has_failed(lone, -0.2)


def test_a_plan_that_leaves_no_room_for_a_turn_is_shortened():
    (asked,) = questions(1)
    length = len(WORDS.encode(f"<question> {asked.text} </question>"))
    small = replace(TINY, max_tokens=length + 3 + ASKED["max_turn_tokens"] + 1)
    found = rolled(PlanEnvironment(needed=9), [asked], settings=small)
    assert found.counts["guidance_actions"] == 1
    assert all(len(t.behaviour_prompt_ids) == length + 3 for t in found.groups[0])


def test_what_stands_around_the_plan_is_said_once_and_only_with_a_plan():
    (asked,) = questions(1)
    found = rolled(PlanEnvironment(needed=1), [asked], frame="of {actions} of")
    expected = WORDS.encode(f"<question> {asked.text} </question> of {PLAN[0]} of")
    assert found.groups[0][0].behaviour_prompt_ids == expected
    alone = Guided(PlanEnvironment(needed=1), {asked.id: ""}).reset(asked, None)
    assert alone.prompt == f"<question> {asked.text} </question>"


def test_rollouts_repeat_and_depend_on_seed_and_step():
    asked, environment = questions(2), PlanEnvironment(needed=2)
    first, again = rolled(environment, asked), rolled(environment, asked)
    assert first == again
    for change in ({"seed": 6}, {"step": 3}):
        other = rolled(environment, asked, setting=ASKED | change)
        assert other.groups != first.groups


def test_the_answer_is_not_in_the_prompt_of_a_scripted_plan():
    environment = synthetic_environment(max_turns=12)
    for asked in questions(10):
        log = expert_log(environment, asked, 0)
        assert asked.answers[0] not in " ".join(log.actions).split()
        assert log.actions or not asked.hops[-1].paragraph


# --- the ratio


def guided_batch():
    """A guided group, as the loop has it before the first update; the model; the trajectories."""
    model = policy(settings=WIDE)
    (group,) = rolled(PlanEnvironment(needed=2), questions(1)).groups
    batch = from_trajectories(group, group_ids=[0, 0, 0])
    sampled = batch.rollout_logprobs
    batch, _ = rescore(model, batch)
    heads = [trajectory.behaviour_prompt_ids for trajectory in group]
    return model, batch, as_sampled(model, batch, heads), sampled


def test_old_log_probs_are_those_of_the_guided_prompt_and_new_ones_of_the_plain_one():
    """The engine sampled under the guided prompt, so its log-probs are the old ones again."""
    model, plain, mixed, sampled = guided_batch()
    here = plain.response_mask
    torch.testing.assert_close(mixed.old_logprobs[here], sampled[here], rtol=0, atol=1e-5)
    assert (mixed.old_logprobs - plain.old_logprobs)[here].abs().max() > 1e-3
    with torch.no_grad():
        current, _ = model.score(plain.token_ids, plain.response_mask)
    assert torch.equal(mixed.entropies, plain.entropies)
    advantages = here.float()
    _, metrics = OBJECTIVES["ppo_clip"](current, mixed, advantages)
    ratios = (current - sampled)[here].exp()
    assert metrics["ratio_max"] == pytest.approx(ratios.max().item(), rel=1e-4)
    assert metrics["ratio_min"] == pytest.approx(ratios.min().item(), rel=1e-4)
    _, same = OBJECTIVES["ppo_clip"](current, plain, advantages)
    assert same["ratio_max"] == pytest.approx(1.0, abs=1e-5)


def test_the_columns_of_the_two_prompts_are_those_of_the_guided_rows_alone():
    model, plain, mixed, sampled = guided_batch()
    here, heads = plain.response_mask, [(1,), (1,), (1,)]
    with torch.no_grad():
        current, _ = model.score(plain.token_ids, here)
    logs = [(current - sampled)[row][here[row]].double() for row in range(3)]
    found = prompt_ratio_columns(plain, mixed, heads)
    sums = torch.stack([row.sum() for row in logs])
    assert found["guided_log_ratio"] == pytest.approx(sums.mean().item(), abs=1e-5)
    assert found["guided_risk"] == pytest.approx(
        ((sums - sums.mean()) ** 2).mean().item(), abs=1e-5
    )
    far = torch.cat(logs).exp() < 0.8
    assert found["guided_far_tokens"] == pytest.approx(far.double().mean().item())
    (lone,) = (prompt_ratio_columns(plain, mixed, [None, (1,), None]),)
    assert lone["guided_log_ratio"] == pytest.approx(sums[1].item(), abs=1e-5)
    assert lone["guided_risk"] == 0.0


def test_columns_of_two_prompts_are_missing_where_nothing_was_guided_or_known():
    _, plain, mixed, _ = guided_batch()
    nothing = prompt_ratio_columns(plain, mixed, [None] * 3)
    unknown = plain.replace(old_logprobs=torch.full_like(plain.old_logprobs, math.nan))
    for found in (nothing, prompt_ratio_columns(unknown, mixed, [(1,)] * 3)):
        assert all(map(math.isnan, found.values()))
    padded = mixed.old_logprobs.masked_fill(~mixed.response_mask, math.nan)
    same = prompt_ratio_columns(plain, mixed.replace(old_logprobs=padded), [(1,)] * 3)
    assert same == prompt_ratio_columns(plain, mixed, [(1,)] * 3)


def test_guided_trajectories_survive_a_file_and_others_say_nothing_of_guidance(tmp_path):
    (group,) = rolled(PlanEnvironment(needed=2), questions(1)).groups
    plain = [replace(trajectory, behaviour_prompt_ids=None) for trajectory in group]
    path = tmp_path / "t.jsonl.gz"
    write_trajectories(path, [*group, *plain])
    assert read_trajectories(path) == [*group, *plain]
    write_trajectories(path, plain)
    assert b"behaviour" not in gzip.decompress(path.read_bytes())


# --- the loop


def logs(method, environment, *, steps=2, start=0, model=None, **changes):
    settings = replace(TRAINING, steps=steps, **changes)
    model = model or policy(settings=WIDE)
    parts = (model, new_optimiser(model, settings), WORDS, environment, SMALL, method, settings)
    return list(train(*parts, seed=0, start=start))


def test_the_default_is_independent_and_changes_no_bit():
    """An arm that says nothing, one that names `independent`, and `actguide` with nothing to do."""
    easy = PlanEnvironment(needed=0)
    found = [
        repr([(log.metrics, log.turns, log.trajectories) for log in logs(method, easy)])
        for method in (PLAIN, replace(PLAIN, rollout="independent"))
    ]
    assert found[0] == found[1]
    guided = logs(ACTGUIDE, easy)
    for plain, log in zip(logs(PLAIN, easy), guided, strict=True):
        assert repr(log.trajectories) == repr(plain.trajectories)
        assert repr({n: log.metrics[n] for n in plain.metrics}) == repr(plain.metrics)


@pytest.fixture
def logged() -> Method:
    """ActGuide with a plan for all questions of two steps."""
    streams = [python_stream(0, "questions", step) for step in range(2)]
    asked = [question for stream in streams for question in SMALL.train_questions(3, stream)]
    write_log("plans", [ActionLog(question.id, PLAN) for question in asked])
    return replace(ACTGUIDE, rollout_options={"log": "plans"})


def test_guided_groups_train_and_their_ratios_are_not_1_before_the_first_update(logged):
    environment = PlanEnvironment(needed=1, lucky=True)
    (log,) = logs(logged, environment, steps=1, updates_per_batch=1)
    assert log.metrics["hard_groups"] == 3 and log.metrics["guided_trajectories"] == 12
    assert log.metrics["ratio_max"] > 1.001 or log.metrics["ratio_min"] < 0.999
    assert log.metrics["mean_abs_logprob_diff"] < 1e-4, "old log-probs are those it sampled with"
    assert math.isfinite(log.metrics["loss"]) and log.metrics["gradient_norm"] > 0
    for trajectory in log.trajectories:
        assert len(trajectory.behaviour_prompt_ids) > len(trajectory.prompt_ids)


def test_training_with_guidance_repeats_and_follows_its_seed(logged):
    environment = PlanEnvironment(needed=1, lucky=True)
    first, again = (logs(logged, environment) for _ in range(2))
    shown = [repr([(log.metrics, log.trajectories) for log in part]) for part in (first, again)]
    assert shown[0] == shown[1]


def test_arms_run_from_a_params_file_by_name_and_with_a_log(tmp_path, monkeypatch):
    home_with_task(tmp_path, monkeypatch)
    write_log("experts", [ActionLog("nobody", ("<search> x </search>",))])
    arms = {"plain": {"base": "grpo"}, "actguide": {"base": "grpo", "rollout": "actguide"}}
    arms["logged"] = arms["actguide"] | {"rollout_options": {"log": "experts"}}
    arms["actguide"] = arms["actguide"] | {"rollout_options": {}}
    planned = experiment.experiment_from(parameters(**arms))
    rows, hashes = {}, {}
    for job in experiment.jobs_of(planned):
        experiment.run(job, code_hash(), lambda *shown: None)
        text = (planned.folder / job.label / "metrics.csv").read_text(encoding="utf-8")
        rows[job.arm] = list(csv.DictReader(text.splitlines()))
        hashes[job.arm] = experiment.identity(job, "")["params_hash"]
    assert "hard_groups" not in rows["plain"][0]
    for row in rows["actguide"] + rows["logged"]:
        assert float(row["rollout_trajectories"]) > 0 and math.isfinite(float(row["loss"]))
    assert {float(row["guided_trajectories"]) for row in rows["logged"]} == {0.0}
    assert len(set(hashes.values())) == 3
    write_log("experts", [ActionLog("nobody", ("<search> y </search>",))])
    (logged,) = (job for job in experiment.jobs_of(planned) if job.arm == "logged")
    assert experiment.identity(logged, "")["params_hash"] != hashes["logged"]
    getattr(tasks.open_task, "cache_clear", lambda: None)()


def test_an_arm_without_rollout_is_hashed_as_before_there_were_any():
    assert set(PLAIN.values) == {
        "base", "base_options", "weight", "weight_options", "objective", "objective_options",
    }  # fmt: skip
    assert set(ACTGUIDE.values) == set(PLAIN.values) | {"rollout", "rollout_options"}


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ({"rollout": "actguided"}, "unknown rollout strategy 'actguided'; there are: actguide"),
        ({"rollout_options": {"log": "x"}}, "rollout_options: 'independent' has no option 'log'"),
        ({"max_probe_steps": 0}, "actguide: max_probe_steps is 0; it must be a whole number"),
        ({"probe_rollouts": True}, "actguide: probe_rollouts is True"),
        ({"adaptive": "no"}, "actguide: adaptive is 'no'; it must be True or False"),
        ({"threshold": math.nan}, "actguide: threshold is nan"),
        ({"frame": "plan"}, r"actguide: frame is 'plan'; it must hold \{actions\} once"),
        ({"log": "absent"}, "absent.jsonl: no such action log"),
        ({"log": "../x"}, r"log = '\.\./x' is not the name of a file"),
    ],
)
def test_wrong_use_is_one_error_before_anything_runs(arm, words):
    if not {"rollout", "rollout_options"} & set(arm):
        arm = {"rollout": "actguide", "rollout_options": arm}
    with pytest.raises(ValueError, match=words):
        Method(**{**PLAIN.values, **arm}).rehearse()
