"""The training loop: resumable to the bit, groups as groups, ratios that move when they can."""

import importlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from play import (
    PLAIN,
    SMALL,
    TRAINING,
    coin_environment,
    global_streams,
    policy,
    vocabulary,
)

from turncredit import training
from turncredit.batching import from_trajectories
from turncredit.checkpoints import load_checkpoint, save_checkpoint
from turncredit.credit import assign_credit
from turncredit.records import Trajectory, Turn
from turncredit.signals import outcome_shares
from turncredit.training import (
    Method,
    TrainingSettings,
    new_optimiser,
    train,
    turn_rows,
)

WORDS = vocabulary()
MASKED = Method("grpo", {}, "suffix_mask", {"k": 2, "c": 1.0}, "ppo_clip", {"clip_high": 0.28})


def steps(model, optimiser, method=PLAIN, settings=TRAINING, *, seed=0, start=0):
    return train(
        model, optimiser, WORDS, coin_environment(), SMALL, method, settings, seed=seed, start=start
    )


def run(method=PLAIN, settings=TRAINING, *, seed=0):
    model = policy()
    optimiser = new_optimiser(model, settings)
    return list(steps(model, optimiser, method, settings, seed=seed)), model, optimiser


def rows(logs):
    """Everything but the wall time, NaN made comparable."""
    tables = [(log.step, log.metrics, log.turns, log.trajectories) for log in logs]
    return repr(tables)


def equal_policies(left, right) -> bool:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("method", [PLAIN, MASKED], ids=["plain", "masked"])
def test_six_steps_are_three_steps_saved_loaded_and_three_more(tmp_path, method):
    whole, model, optimiser = run(method)
    assert not equal_policies(model, policy()), (
        "the policy must have moved for this to mean anything"
    )

    first = policy()
    first_optimiser = new_optimiser(first, TRAINING)
    begun = []
    for log in steps(first, first_optimiser, method):
        begun.append(log)
        if log.step == 2:
            break
    save_checkpoint(tmp_path / "c.safetensors", first, first_optimiser, 3)
    second = policy(seed=99)
    second_optimiser = new_optimiser(second, TRAINING)
    start = load_checkpoint(tmp_path / "c.safetensors", second, second_optimiser)
    rest = list(steps(second, second_optimiser, method, start=start))
    assert rows(begun + rest) == rows(whole)
    assert equal_policies(second, model)
    states = [o.state_dict()["state"] for o in (second_optimiser, optimiser)]
    for index, state in states[1].items():
        assert all(torch.equal(value, states[0][index][name]) for name, value in state.items())


def test_training_repeats_depends_on_the_seed_and_touches_no_global_stream():
    model = policy()
    before = global_streams()
    logs = list(steps(model, new_optimiser(model, TRAINING)))
    assert global_streams() == before
    assert rows(logs) == rows(run()[0])
    assert rows(logs) != rows(run(seed=1)[0])


def test_questions_differ_between_steps_and_form_groups_of_the_asked_size(monkeypatch):
    batches = []
    rescore = training.rescore
    monkeypatch.setattr(
        "turncredit.training.loop.rescore",
        lambda model, batch, *rest, **options: (
            batches.append(batch) or rescore(model, batch, *rest, **options)
        ),
    )
    logs, *_ = run()
    asked = [[t.question_id for t in log.trajectories] for log in logs]
    assert len({q for ids in asked for q in ids}) == TRAINING.steps * TRAINING.questions_per_step
    for log, batch in zip(logs, batches, strict=True):
        members: dict[int, list[str]] = {}
        for group, trajectory in zip(batch.group_ids.tolist(), log.trajectories, strict=True):
            members.setdefault(group, []).append(trajectory.question_id)
        assert len(members) == TRAINING.questions_per_step
        assert len({ids[0] for ids in members.values()}) == TRAINING.questions_per_step
        assert all(ids == ids[:1] * TRAINING.group_size for ids in members.values())


def test_one_update_per_batch_makes_every_ratio_1_and_clips_nothing():
    logs, *_ = run(settings=replace(TRAINING, updates_per_batch=1))
    for log in logs:
        assert log.metrics["clip_fraction"] == 0.0
        for name in ("ratio_min", "ratio_max", "turn_ratio_min", "turn_ratio_max"):
            assert log.metrics[name] == 1.0


def test_several_updates_move_the_ratio_and_can_clip():
    logs, *_ = run(settings=replace(TRAINING, updates_per_batch=3))
    assert any(log.metrics["ratio_max"] > 1.01 for log in logs)
    tight = Method("grpo", {}, "none", {}, "ppo_clip", {"clip_low": 0.001, "clip_high": 0.001})
    logs, *_ = run(tight, replace(TRAINING, updates_per_batch=3))
    assert any(log.metrics["clip_fraction"] > 0 for log in logs)


def test_the_old_log_probs_are_rescored_before_the_first_update():
    """Against stored log-probs, of the policy before any update of the step."""
    model = policy()
    logs = steps(model, new_optimiser(model, TRAINING))
    fresh = policy()
    log = next(logs)
    batch = from_trajectories(log.trajectories, group_ids=range(len(log.trajectories)))
    rescored, _ = training.rescore(fresh, batch)
    assert (rescored.old_logprobs - batch.rollout_logprobs).abs().max() < 1e-5
    assert log.metrics["mean_abs_logprob_diff"] < 1e-5


def test_equal_rewards_move_nothing():
    class Winning(type(coin_environment())):
        def reset(self, question, stream):
            episode = super().reset(question, stream)
            episode.success = True
            return episode

    model = policy()
    logs = list(
        train(
            model,
            new_optimiser(model, TRAINING),
            WORDS,
            Winning(SMALL.words),
            SMALL,
            PLAIN,
            replace(TRAINING, steps=2),
            seed=0,
        )
    )
    assert equal_policies(model, policy())
    assert [log.metrics["zero_variance_groups"] for log in logs] == [1.0, 1.0]
    assert [log.metrics["reward"] for log in logs] == [1.0, 1.0]


def test_no_name_of_the_package_hides_one_of_its_modules():
    names = {file.stem for file in Path(training.__file__).parent.glob("*.py")} - {"__init__"}
    for name in names:
        module = importlib.import_module(f"turncredit.training.{name}")
        assert getattr(training, name) is module, name


def hand_made():
    """Two trajectories: search then a right answer; a wrong verified guess."""
    first = Turn((3, 4), (-1.0, -1.0), (0.2, 0.4), (5,), "search")
    right = Turn((6,), (-1.0,), (0.3,), (), "answer", correct=True)
    wrong = Turn((7,), (-1.0,), (0.8,), (), "external_verify", correct=False)
    return [
        Trajectory("q", (1,), (first, right), 1.0, True, "answer"),
        Trajectory("q", (1,), (wrong,), 0.0, False, "max_turns"),
    ]


def test_turn_rows_by_hand():
    batch = from_trajectories(hand_made(), group_ids=[0, 0])
    opening, second = turn_rows(hand_made(), batch)
    assert (opening["turn"], opening["trajectories"], second["trajectories"]) == (0, 2, 1)
    assert opening["entropy_k1"] == pytest.approx((0.2 + 0.8) / 2)
    assert opening["entropy_k2"] == pytest.approx((0.3 + 0.8) / 2)
    assert second["entropy_k128"] == pytest.approx(0.3)
    assert (opening["search"], opening["external_verify"], opening["answer"]) == (1, 1, 0)
    assert (opening["answered"], opening["answered_correct"]) == (1, 0)
    assert (second["answered"], second["answered_correct"]) == (1, 1)


def test_missing_rewards_are_counted_and_left_out_of_the_mean():
    trajectories = [*hand_made(), replace(hand_made()[0], reward=None)]
    batch = from_trajectories(trajectories, group_ids=[0, 0, 0])
    metrics = training.step_metrics(trajectories, batch, assign_credit(batch, weight="none"))
    assert (metrics["reward"], metrics["missing_rewards"]) == (0.5, 1)
    assert (metrics["success"], metrics["tokens"]) == (0.5, 7), "nor is its success known"
    assert metrics["lost"] == 0, "no error ended it"
    missing = batch.replace(rewards=torch.full((3,), math.nan))
    assert training.zero_variance_share(missing) == 1.0
    assert training.zero_variance_share(batch) == 0.0


@pytest.mark.parametrize("turns", [0, 1])
def test_what_an_error_ended_is_counted_and_changes_no_share(turns):
    """Missing is not zero: no failure, no opening without a search, no short trajectory."""
    whole = hand_made()
    lost = replace(whole[0], turns=whole[0].turns[:turns], reward=None, success=False)
    lost = replace(lost, stop_reason="error", grounded=False)

    def metrics_of(trajectories):
        batch = from_trajectories(trajectories, group_ids=[0] * len(trajectories))
        credit = assign_credit(batch, weight="none")
        return training.step_metrics(trajectories, batch, credit)

    whole = [replace(t, grounded=True) for t in whole]
    before, after = metrics_of(whole), metrics_of([*whole, lost, lost])
    assert (after["missing_rewards"], after["lost"]) == (2, 2)
    assert (before["missing_rewards"], before["lost"]) == (0, 0)
    for name in ("reward", "success", *outcome_shares(whole)):
        assert after[name] == before[name], name


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"group_size": 1}, "group_size"),
        ({"updates_per_batch": 0}, "updates_per_batch"),
        ({"updates_per_batch": 9}, "updates_per_batch"),
        ({"steps": 0}, "steps"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"max_turn_tokens": 0}, "max_turn_tokens"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"warmup_steps": -1}, "warmup_steps"),
    ],
)
def test_settings_that_cannot_train_are_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named):
        replace(TRAINING, **changes)
    assert TrainingSettings.__dataclass_fields__[named]


def test_draws_of_a_turn_weight_differ_between_steps_and_seeds_but_not_between_runs(monkeypatch):
    """A control that drew the same numbers at every step would be one fixed mask."""
    drawn = []
    credit = training.Method.credit

    def spied(method, batch, *, generator, **given):
        drawn.append(generator.initial_seed())
        return credit(method, batch, generator=generator, **given)

    monkeypatch.setattr(training.Method, "credit", spied)
    random_suffix = Method("grpo", {}, "random_suffix", {"k": 2, "c": 1.0}, "ppo_clip", {})
    once, again, other = (rows(run(random_suffix, seed=seed)[0]) for seed in (0, 0, 1))
    assert once == again != other
    count = TRAINING.steps
    assert len(set(drawn[:count])) == count
    assert drawn[:count] == drawn[count : 2 * count]
    assert not set(drawn[:count]) & set(drawn[2 * count :])


def test_a_weight_that_follows_the_policy_is_computed_anew_at_every_update(monkeypatch):
    seen = []
    reweigh = training.Method.reweigh

    def spied(method, batch, base, logprobs):
        found = reweigh(method, batch, base, logprobs)
        moved = (logprobs - batch.old_logprobs)[batch.response_mask].abs().max().item()
        seen.append((moved, (found.weights == 0).any().item()))
        return found

    monkeypatch.setattr(training.Method, "reweigh", spied)
    clipped = Method("grpo", {}, "high_is_turns", {"limit": 1e-3}, "ppo_clip", {})
    logs, *_ = run(clipped)
    assert len(seen) == TRAINING.steps * TRAINING.updates_per_batch
    first, second = seen[::2], seen[1::2]
    assert all(moved < 1e-5 and not masked for moved, masked in first), "nothing has moved yet"
    assert any(moved > 1e-3 and masked for moved, masked in second)
    assert any(log.metrics["masked_share"] > 0 for log in logs)
