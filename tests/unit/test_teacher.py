"""The privileged teacher: skill texts, scores behind another prompt, and the loop that asks it."""

import csv
import math
import random
from dataclasses import replace

import pytest
import torch
from arms import home_with_task, parameters
from play import (
    ACTIONS,
    PLAIN,
    SMALL,
    TINY,
    TRAINING,
    coin_environment,
    policy,
    question,
    questions,
    synthetic_environment,
    vocabulary,
)

from turncredit import experiment, tasks
from turncredit.batching import from_trajectories
from turncredit.code_version import code_hash
from turncredit.environments import TableQuery, TableQuerySettings
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.rollout import roll_out
from turncredit.seeding import python_stream
from turncredit.training import Method, new_optimiser, train
from turncredit.training.collect import Collected
from turncredit.training.contexts import as_sampled, scored_behind
from turncredit.training.teacher import SKILLS, privileged_logprobs, skill_text
from turncredit.worlds.tables import TableWorld

WORDS = vocabulary()
ADRS = replace(PLAIN, base="adrs", base_options={"skill": "plan"})
WIDE = replace(TINY, max_tokens=96)


def played(count: int = 2, group_size: int = 3, environment=None) -> Collected:
    """Groups of an untrained policy, which go on after malformed messages."""
    environment = environment or synthetic_environment(invalid_ends=False, max_turns=4)
    asked = questions(count)
    rows = [one for one in asked for _ in range(group_size)]
    found = roll_out(policy(), WORDS, environment, rows, seed=3, step=0, max_turn_tokens=4)
    groups = [number for number in range(count) for _ in range(group_size)]
    return Collected(found, groups, {}, {one.id: one for one in asked}, ACTIONS)


def batch_of(drawn: Collected):
    return from_trajectories(drawn.trajectories, group_ids=drawn.group_ids)


# --- skill texts


@pytest.mark.parametrize("skill", SKILLS)
@pytest.mark.parametrize("actions", [ACTIONS, ("search", "answer")])
def test_every_text_is_in_the_words_of_the_world_and_of_the_tools(skill, actions):
    for one in questions(20):
        text = skill_text(one, skill, actions)
        assert WORDS.encode(text)
        assert ("<read_chunk>" in text) == ("read_chunk" in actions and skill != "facts")


def test_moves_name_nobody_and_only_facts_state_the_answer():
    for one in questions(20):
        moves, plan, facts = (
            skill_text(one, s, ACTIONS).split() for s in ("moves", "plan", "facts")
        )
        assert not set(moves) & set(SMALL.names)
        assert {hop.title for hop in one.hops} <= set(plan)
        assert one.answers[0] not in plan
        assert (one.answers[0] in facts) == bool(one.hops[-1].paragraph), "what is lost stays so"


def test_questions_of_one_kind_have_the_same_moves_and_others_have_not():
    texts = {}
    for one in questions(60):
        texts.setdefault(one.kind, set()).add(skill_text(one, "moves", ACTIONS))
    assert len(texts) > 3 and all(len(found) == 1 for found in texts.values())
    assert len(set.union(*texts.values())) == len(texts)


@pytest.mark.parametrize("skill", SKILLS)
def test_at_tables_a_text_asks_by_queries(skill):
    world = TableWorld(things=6, places=8, rows=3)
    environment = TableQuery(world, TableQuerySettings())
    words = tag_vocabulary(environment.actions, [*environment.words, *world.words])
    for one in world.train_questions(20, random.Random(0)):
        text = skill_text(one, skill, environment.actions)
        assert bool(words.encode(text)) == (skill != "facts" or bool(one.hops[0].paragraph))
        assert text.count("<query>") == (0 if skill == "facts" else len(one.hops))
        known = {*one.answers, *(hop.value for hop in one.hops)} if skill == "moves" else set()
        assert not known & set(text.split()) and "<search>" not in text


def test_a_question_without_hops_gets_no_facts():
    lone = replace(question(), hops=())
    assert [skill_text(lone, s, ACTIONS) for s in SKILLS] == ["", "<answer> </answer>", ""]


# --- scores


def test_scores_are_those_of_each_row_scored_by_itself_behind_its_text():
    drawn = played()
    batch, model = batch_of(drawn), policy(settings=WIDE)
    found, counts = privileged_logprobs(model, WORDS, drawn, batch, skill="facts")
    assert counts["missing_teacher"] == 0
    gaps = []
    for row, trajectory in enumerate(drawn.trajectories):
        text = skill_text(drawn.questions[trajectory.question_id], "facts", ACTIONS)
        ids = list(WORDS.encode(text) + trajectory.prompt_ids)
        expected = []
        for turn in trajectory.turns:
            for token in turn.sampled_ids:
                ids.append(token)
                mask = torch.zeros(1, len(ids), dtype=torch.bool)
                mask[0, -1] = True
                with torch.no_grad():
                    expected.append(model.score(torch.tensor([ids]), mask)[0][0, -1].item())
            ids += turn.observation_ids
        here = batch.response_mask[row]
        assert found[row, here].tolist() == pytest.approx(expected, abs=1e-5)
        assert (found[row, ~here] == 0).all()
        gaps += [
            e - s for e, s in zip(expected, batch.old_logprobs[row, here].tolist(), strict=True)
        ]
    assert counts["teacher_gap"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-5)
    assert abs(counts["teacher_gap"]) > 1e-4 and not found.requires_grad


def test_without_a_text_the_teacher_says_what_the_policy_says():
    drawn = played()
    batch = batch_of(drawn)
    nothing = [()] * len(drawn.trajectories)
    found = scored_behind(policy(), batch, nothing, [0] * len(nothing))
    torch.testing.assert_close(found, batch.old_logprobs, rtol=0, atol=1e-5)


def test_a_trajectory_without_room_is_nan_and_counted_and_the_others_are_scored():
    drawn = played(environment=coin_environment())
    batch, model = batch_of(drawn), policy(settings=WIDE)
    ends = [len(t.token_ids) - len(t.turns[-1].observation_ids) for t in drawn.trajectories]
    lengths = [
        end + len(WORDS.encode(skill_text(drawn.questions[t.question_id], "plan", ACTIONS)))
        for end, t in zip(ends, drawn.trajectories, strict=True)
    ]
    model.settings = replace(WIDE, max_tokens=min(lengths))
    found, counts = privileged_logprobs(model, WORDS, drawn, batch, skill="plan")
    missing = [length > min(lengths) for length in lengths]
    assert 0 < sum(missing) < len(missing) and counts["missing_teacher"] == sum(missing)
    assert found.isnan().any(1).tolist() == missing and math.isfinite(counts["teacher_gap"])
    model.settings = replace(WIDE, max_tokens=3)
    nobody, counts = privileged_logprobs(model, WORDS, drawn, batch)
    assert nobody[batch.response_mask].isnan().all() and math.isnan(counts["teacher_gap"])


def test_a_head_takes_the_place_of_the_first_ids_of_a_row():
    drawn = played()
    batch, model = batch_of(drawn), policy(settings=WIDE)
    other = WORDS.encode("<question> western </question>")
    heads = [other if row % 2 else None for row in range(len(drawn.trajectories))]
    found = as_sampled(model, batch, heads)
    moved = [replace(t, prompt_ids=other) for t in drawn.trajectories]
    alone = batch_of(drawn._replace(trajectories=moved))
    with torch.no_grad():
        expected, _ = model.score(alone.token_ids, alone.response_mask)
    for row, head in enumerate(heads):
        here = batch.response_mask[row]
        if head is None:
            assert torch.equal(found.old_logprobs[row], batch.old_logprobs[row])
        else:
            wanted = expected[row, alone.response_mask[row]]
            torch.testing.assert_close(found.old_logprobs[row, here], wanted, rtol=0, atol=1e-5)
    assert as_sampled(model, batch, [None] * len(heads)) is batch


# --- the loop


def test_the_loop_asks_the_policy_before_the_update(monkeypatch):
    batches, credit = [], Method.credit
    monkeypatch.setattr(
        Method,
        "credit",
        lambda self, batch, **given: batches.append(batch) or credit(self, batch, **given),
    )
    settings = replace(TRAINING, steps=1)
    model = policy(settings=WIDE)
    parts = (model, new_optimiser(model, settings), WORDS, coin_environment(), SMALL)
    (log,) = train(*parts, ADRS, settings, seed=0)
    (batch,) = batches
    asked = {q.id: q for q in SMALL.train_questions(3, python_stream(0, "questions", 0))}
    drawn = Collected(log.trajectories, batch.group_ids.tolist(), {}, asked, ACTIONS)
    fresh = policy(settings=WIDE)
    expected, counts = privileged_logprobs(fresh, WORDS, drawn, batch, skill="plan")
    exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(batch.teacher_logprobs, expected, **exactly)
    assert batch.anchor_ids is not None
    assert log.metrics["missing_teacher"] == counts["missing_teacher"] < len(log.trajectories)
    moved, _ = privileged_logprobs(model, WORDS, drawn, batch, skill="plan")
    assert not torch.allclose(moved, expected, equal_nan=True), "the policy must have moved"


def test_levels_that_need_a_reference_run_with_one_and_name_it_without():
    method = replace(ADRS, base_options={"level": "token"})
    method.rehearse()
    model, settings = policy(), replace(TRAINING, steps=1)
    parts = (model, new_optimiser(model, settings), WORDS, coin_environment(), SMALL)
    with pytest.raises(ValueError, match=r"level 'token' needs TurnBatch\.ref_logprobs"):
        next(train(*parts, method, settings, seed=0))


def test_a_base_below_adrs_gets_what_it_needs_too():
    method = replace(
        ADRS, base_options={"base": "igpo", "gain": "log_probability", "skill": "facts"}
    )
    method.rehearse()
    model, settings = policy(settings=WIDE), replace(TRAINING, steps=1)
    parts = (model, new_optimiser(model, settings), WORDS, coin_environment(), SMALL)
    (log,) = train(*parts, method, settings, seed=0)
    assert {"missing_gains", "missing_teacher", "repeated_states"} <= set(log.metrics)


def test_arms_run_from_a_params_file(tmp_path, monkeypatch):
    home_with_task(tmp_path, monkeypatch)
    arms = {"adrs": {"base": "adrs", "base_options": {"skill": "facts", "level": "turn"}}}
    arms["repaired"] = {"base": "adrs", "base_options": {"centre": "batch", "restandardise": False}}
    planned = experiment.experiment_from(parameters(**arms))
    for job in experiment.jobs_of(planned):
        experiment.run(job, code_hash(), lambda *shown: None)
        text = (planned.folder / job.label / "metrics.csv").read_text(encoding="utf-8")
        for row in csv.DictReader(text.splitlines()):
            assert math.isfinite(float(row["loss"])) and float(row["missing_teacher"]) >= 0
            assert "teacher_gap" in row and "repeated_states" in row
    getattr(tasks.open_task, "cache_clear", lambda: None)()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skill": "hint"}, "adrs: unknown skill 'hint'; there are: facts, moves, plan"),
        ({"gain": "probability"}, "no option 'gain'"),
        ({"eta": -1.0}, "eta is -1.0; it must be a finite number of at least 0"),
        ({"state": "page"}, "unknown state 'page'"),
    ],
)
def test_wrong_options_are_one_error_before_anything_runs(tmp_path, monkeypatch, options, words):
    home_with_task(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=words):
        experiment.experiment_from(parameters(x={"base": "adrs", "base_options": options}))
