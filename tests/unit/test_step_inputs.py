"""Anchor states and information gains: what the loop fills in for GiGPO and IGPO."""

import csv
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from arms import home_with_task, parameters
from play import (
    PLAIN,
    SMALL,
    TRAINING,
    coin_environment,
    policy,
    questions,
    synthetic_environment,
    vocabulary,
)

from turncredit import experiment, tasks
from turncredit.batching import anchor_ids, from_trajectories
from turncredit.code_version import code_hash
from turncredit.credit import BASES
from turncredit.records import Trajectory, Turn
from turncredit.rollout import roll_out
from turncredit.training import Method, new_optimiser, train
from turncredit.training.collect import Collected
from turncredit.training.information import answer_probabilities, measured_gains

WORDS = vocabulary()
GIGPO, IGPO = replace(PLAIN, base="gigpo"), replace(PLAIN, base="igpo")


def trajectory(prompt: tuple[int, ...], *turns: tuple[tuple[int, ...], tuple[int, ...]]):
    """Made of (sampled ids, observation ids)."""
    made = [Turn(s, (-1.0,) * len(s), (0.5,) * len(s), o, "search") for s, o in turns]
    return Trajectory("q", prompt, tuple(made), 0.0, False, "answer")


THREE = [
    trajectory((1, 2), ((5,), (7, 8)), ((6,), (9,)), ((5,), ())),
    trajectory((1, 2), ((5,), (9,)), ((6, 6), (7, 8)), ((5,), (7, 8)), ((5,), ())),
    trajectory((1, 2), ((5,), (7, 8)), ((6,), ())),
]


def test_anchors_of_three_trajectories_by_hand():
    """The third has the states of the first, but in another group."""
    found = anchor_ids(THREE, group_ids=[4, 4, 9])
    assert found.tolist() == [[0, 1, 2, -1], [0, 2, 1, 1], [3, 4, -1, -1]]
    assert found.dtype == torch.int64
    assert anchor_ids(THREE, group_ids=[4, 4, 4]).tolist()[2] == [0, 1, -1, -1]


def test_anchors_by_the_whole_history_are_shared_as_long_as_nothing_differed():
    found = anchor_ids(THREE, group_ids=[0, 0, 0], state="history")
    assert found.tolist() == [[0, 1, 2, -1], [0, 3, 4, 5], [0, 1, -1, -1]]


def test_anchors_cut_ids_where_observations_end_and_not_elsewhere():
    """(1, 2) + (3,) is another state than (1,) + (2, 3), and order counts."""
    pair = [trajectory((1,), ((5,), (2, 3)), ((5,), ())), trajectory((1,), ((5,), (3, 2)))]
    pair.append(trajectory((1,), ((5,), (2,)), ((3,), ())))
    assert anchor_ids(pair, group_ids=[0, 0, 0]).tolist() == [[0, 1], [0, -1], [0, 2]]


def test_turns_after_an_empty_observation_share_that_state():
    silent = trajectory((1, 2), ((5,), ()), ((6,), ()), ((7,), ()))
    assert anchor_ids([silent], group_ids=[0]).tolist() == [[0, 1, 1]]


def test_gigpo_on_these_anchors_compares_turns_of_one_state():
    """Rewards 1 and 0, gamma 1: each state's mean is taken over its turns of both trajectories."""
    batch = from_trajectories([replace(THREE[0], reward=1.0), THREE[1]], group_ids=[0, 0])
    batch = batch.replace(anchor_ids=anchor_ids(THREE[:2], group_ids=[0, 0]))
    both = BASES["gigpo"](batch, gamma=1.0, episode_scale="mean")
    alone = BASES["gigpo"](batch, gamma=1.0, episode_scale="mean", omega=0.0)
    lengths = batch.turn_lengths().clamp(min=1)
    steps = batch.turn_sums(both - alone) / lengths
    expected = [[1 / 2, 2 / 3, 1 / 2, 0], [-1 / 2, -1 / 2, -1 / 3, -1 / 3]]
    assert torch.allclose(steps.float(), torch.tensor(expected))


# --- information gains


def played(count: int = 3, group_size: int = 4, **options: object) -> tuple[Collected, list[str]]:
    """Groups of an untrained policy, which go on after malformed messages; the true answers."""
    asked = questions(count)
    rows = [question for question in asked for _ in range(group_size)]
    environment = synthetic_environment(invalid_ends=False, **{"max_turns": 5} | options)
    trajectories = roll_out(policy(), WORDS, environment, rows, seed=3, step=0, max_turn_tokens=4)
    groups = [number for number in range(count) for _ in range(group_size)]
    by_id = {question.id: question for question in asked}
    return Collected(trajectories, groups, {}, by_id), [q.answers[0] for q in rows]


def probability(model, ids: tuple[int, ...], answer: str) -> float:
    """Of the answer's words behind `ids <answer>`, per word; one call of `score` for itself."""
    opening, wanted = (*ids, WORDS.id("<answer>")), WORDS.encode(answer)
    token_ids = torch.tensor([opening + wanted])
    mask = torch.zeros(token_ids.shape, dtype=torch.bool)
    mask[:, len(opening) :] = True
    with torch.no_grad():
        return math.exp(model.score(token_ids, mask)[0].sum().item() / len(wanted))


def test_probabilities_are_those_of_scoring_every_turn_by_itself():
    drawn, answers = played()
    found = answer_probabilities(policy(), WORDS, drawn.trajectories, answers)
    longest = max(len(t.turns) for t in drawn.trajectories)
    assert found.shape == (12, longest) and longest > 2
    for row, (t, answer) in enumerate(zip(drawn.trajectories, answers, strict=True)):
        ids = t.prompt_ids
        for number, turn in enumerate(t.turns):
            wanted = probability(policy(), ids, answer)
            assert found[row, number].item() == pytest.approx(wanted, rel=1e-4)
            ids = (*ids, *turn.sampled_ids, *turn.observation_ids)
        assert found[row, len(t.turns) :].isnan().all()
    assert not found.requires_grad


@pytest.mark.parametrize("gain", ["probability", "log_probability"])
def test_gains_add_up_to_last_minus_first(gain):
    drawn, answers = played()
    batch = from_trajectories(drawn.trajectories, group_ids=drawn.group_ids)
    gains, counts = measured_gains(policy(), WORDS, drawn, batch, gain=gain)
    levels = answer_probabilities(policy(), WORDS, drawn.trajectories, answers)
    levels = levels.log() if gain == "log_probability" else levels
    last = torch.tensor([len(t.turns) - 1 for t in drawn.trajectories])
    expected = levels.gather(1, last[:, None])[:, 0] - levels[:, 0]
    assert expected.abs().max() > 1e-3, "turns must change something for this to mean anything"
    assert torch.allclose(gains.sum(1), expected.float(), atol=1e-6)
    assert counts == {"missing_gains": 0} and gains.dtype == batch.rewards.dtype


def test_the_default_gain_is_that_of_probabilities():
    drawn, _ = played()
    batch = from_trajectories(drawn.trajectories, group_ids=drawn.group_ids)
    plain, named = (
        measured_gains(policy(), WORDS, drawn, batch, **options)[0]
        for options in ({}, {"gain": "probability"})
    )
    assert torch.equal(plain, named)


def test_equal_contexts_are_scored_once_and_all_in_one_call(monkeypatch):
    drawn, answers = played()
    calls, model = [], policy()
    score = model.score
    monkeypatch.setattr(model, "score", lambda ids, mask: calls.append(ids) or score(ids, mask))
    answer_probabilities(model, WORDS, drawn.trajectories, answers)
    (ids,) = calls
    turns = sum(len(t.turns) for t in drawn.trajectories)
    assert len(ids.unique(dim=0)) == len(ids) <= turns - len(drawn.trajectories) + 3


def test_without_room_or_without_an_answer_the_gain_is_missing_and_not_0():
    drawn, _ = played()
    lost = next(iter(drawn.questions))
    question = replace(drawn.questions[lost], answers=())
    drawn = drawn._replace(questions=drawn.questions | {lost: question})
    batch = from_trajectories(drawn.trajectories, group_ids=drawn.group_ids)
    model = policy()
    starts = [len(t.token_ids) - len(t.turns[-1].sampled_ids) for t in drawn.trajectories]
    room = max(starts[4:]) - 1 + 3  # not for the message of three words before the latest turn
    model.settings = replace(model.settings, max_tokens=room)
    long = [row for row in range(4, 12) if starts[row] + 3 > room]
    assert 0 < len(long) < 8
    gains, counts = measured_gains(model, WORDS, drawn, batch)
    missing = [0, 1, 2, 3, *long]
    assert gains.isnan().any(1).nonzero()[:, 0].tolist() == missing
    assert counts == {"missing_gains": len(missing)}

    rewards = torch.arange(12.0)
    found = BASES["igpo"](batch.replace(turn_rewards=gains, rewards=rewards))
    others = [row for row in range(4, 12) if row not in missing]
    kept = batch.replace(turn_rewards=gains, rewards=rewards).select(others)
    assert (found[missing] == 0).all() and (found[others] != 0).any()
    assert torch.equal(found[others], BASES["igpo"](kept, allow_singleton=True))


class Characters:
    """Every sign is a token, as in a tokenizer that spells tags in several."""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))


@pytest.mark.parametrize("answer", ["Bern", "new answer", "x"])
def test_of_a_spelt_out_message_only_the_answer_is_scored(answer):
    def score(ids, mask):
        assert "".join(map(chr, ids[mask].tolist())) == answer
        assert "".join(map(chr, ids[0].tolist())) == f"??<answer> {answer}"
        return torch.where(mask, -2.0, 0.0), torch.zeros(mask.shape)

    one = trajectory((ord("?"), ord("?")), ((65,), ()))
    model = SimpleNamespace(settings=SimpleNamespace(max_tokens=2 + 19 + len(answer)))
    model.score = score
    (found,) = answer_probabilities(model, Characters(), [one], [answer])
    assert found.tolist() == pytest.approx([math.exp(-2.0)])
    model.settings.max_tokens -= 1
    assert answer_probabilities(model, Characters(), [one], [answer]).isnan().all()
    assert answer_probabilities(model, Characters(), [one], [""]).isnan().all()


# --- the loop


def test_the_loop_measures_gains_under_the_policy_before_the_update(monkeypatch):
    batches, credit = [], Method.credit
    monkeypatch.setattr(
        Method,
        "credit",
        lambda self, batch, **given: batches.append(batch) or credit(self, batch, **given),
    )
    model, asked = policy(), {}
    draw = type(SMALL).train_questions

    def remember(self, count, stream):
        drawn = draw(self, count, stream)
        asked.update({question.id: question for question in drawn})
        return drawn

    monkeypatch.setattr(type(SMALL), "train_questions", remember)
    parts = (model, new_optimiser(model, TRAINING), WORDS, coin_environment(), SMALL)
    log = next(train(*parts, IGPO, replace(TRAINING, steps=1), seed=0))
    (batch,) = batches
    drawn = Collected(log.trajectories, batch.group_ids.tolist(), {}, asked)
    expected, _ = measured_gains(policy(), WORDS, drawn, batch)
    assert torch.equal(batch.turn_rewards, expected) and (expected != 0).any()
    moved, _ = measured_gains(model, WORDS, drawn, batch)
    assert not torch.allclose(moved, expected)


def test_a_base_upon_a_base_gets_what_that_one_needs():
    options = {"base": "igpo", "gain": "log_probability", "zeta": 0.0}
    method = replace(PLAIN, base="empg", base_options=options)
    method.rehearse()
    model, settings = policy(), replace(TRAINING, steps=1)
    parts = (model, new_optimiser(model, settings), WORDS, coin_environment(), SMALL)
    (log,) = train(*parts, method, settings, seed=0)
    assert log.metrics["missing_gains"] == 0 and math.isfinite(log.metrics["loss"])


def test_both_bases_run_from_a_params_file(tmp_path, monkeypatch):
    home_with_task(tmp_path, monkeypatch)
    arms = {"gigpo": {"base": "gigpo", "base_options": {"state": "observation", "gamma": 0.9}}}
    arms["igpo"] = {"base": "igpo", "base_options": {"gain": "log_probability"}}
    planned = experiment.experiment_from(parameters(**arms))
    rows = {}
    for job in experiment.jobs_of(planned):
        experiment.run(job, code_hash(), lambda *shown: None)
        text = (planned.folder / job.label / "metrics.csv").read_text(encoding="utf-8")
        rows[job.arm] = list(csv.DictReader(text.splitlines()))
    getattr(tasks.open_task, "cache_clear", lambda: None)()
    for arm, column in (("gigpo", "repeated_states"), ("igpo", "missing_gains")):
        assert len(rows[arm]) == 2
        for row in rows[arm]:
            assert math.isfinite(float(row["loss"])) and float(row["gradient_norm"]) > 0
            assert float(row[column]) >= 0
    for row in rows["gigpo"]:  # at least the prompt is a state that the whole group shares
        assert float(row["repeated_states"]) >= 1 / float(row["turns"])
    assert "missing_gains" not in rows["gigpo"][0] and "repeated_states" not in rows["igpo"][0]


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ({"base": "igpo", "base_options": {"gain": "bits"}}, "unknown gain 'bits'"),
        ({"base": "gigpo", "base_options": {"state": "page"}}, "unknown state 'page'"),
        ({"base": "gigpo", "base_options": {"gain": "probability"}}, "no option 'gain'"),
        ({"base": "grpo", "base_options": {"state": "history"}}, "no option 'state'"),
        ({"base": "mt_grpo"}, r"arms\.x: mt_grpo needs TurnBatch\.turn_rewards"),
    ],
)
def test_wrong_use_is_one_error_before_anything_runs(tmp_path, monkeypatch, arm, words):
    home_with_task(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=words):
        experiment.experiment_from(parameters(x=arm))


def test_anchors_need_a_group_for_every_trajectory_and_a_known_state():
    with pytest.raises(ValueError, match="anchor_ids: 3 trajectories, 2 group_ids"):
        anchor_ids(THREE, group_ids=[0, 0])
    with pytest.raises(ValueError, match="unknown state 'page'"):
        anchor_ids(THREE, group_ids=[0, 0, 0], state="page")


def test_two_bases_that_read_one_field_differently_are_refused_together():
    """ADRS reads states and ARPO shared turns, both as `anchor_ids`; GiGPO reads states too."""
    with pytest.raises(ValueError, match="'adrs' cannot be put on 'arpo': both read anchor_ids"):
        replace(PLAIN, base="adrs", base_options={"base": "arpo"})
    replace(PLAIN, base="adrs", base_options={"base": "gigpo"}).rehearse()
