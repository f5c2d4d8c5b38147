"""Diagnostics of a step against hand-made tables; what has no value is missing, never 0."""

import math
from dataclasses import replace

import pytest
import torch
from batches import (
    current_logprobs,
    insert_observations,
    make_batch,
    poison,
    ragged_batches,
    with_masked_rows,
)
from hypothesis import given
from hypothesis import strategies as st

from turncredit.credit import TURN_WEIGHTS
from turncredit.objectives import OBJECTIVES
from turncredit.records import Trajectory, Turn
from turncredit.signals import (
    LEVELS,
    TURN_ACTIONS,
    action_columns,
    by_outcome,
    clip_fractions_by_sign,
    divergence_columns,
    entropy_columns,
    first_k_entropies,
    group_diversity,
    mean_divergences,
    outcome_shares,
    ratio_columns,
    repeated_share,
    small_spread_groups,
    token_rates,
    turn_clip_fractions,
    turn_divergences,
    turn_entropies,
    turn_histogram,
    turn_index_token_means,
)

NAN = math.nan


def near(values, expected) -> bool:
    return list(values) == pytest.approx(expected, nan_ok=True, abs=1e-6)


def with_sampled(batch, name: str, values: list[float]):
    """The batch with these values of a [B, L] field at its sampled tokens, row by row."""
    field = getattr(batch, name)
    given = torch.tensor(values, dtype=field.dtype)
    return batch.replace(**{name: field.masked_scatter(batch.response_mask, given)})


def moved(batch, ratios: list[float]) -> torch.Tensor:
    """[B, L] log-probs whose ratios to the old ones are these, token by token."""
    logprobs = batch.old_logprobs.clone()
    logprobs[batch.response_mask] += torch.tensor(ratios).log()
    return logprobs


def per_token(batch, values: list[float]) -> torch.Tensor:
    """[B, L]: these values at the sampled tokens, junk elsewhere."""
    full = torch.full(batch.response_mask.shape, NAN)
    return full.masked_scatter(batch.response_mask, torch.tensor(values))


# --- by turn index


def test_token_means_by_turn_index_count_every_token_once():
    """Turn 0: 3 tokens of 0.5 and 1 of 0.1, so 0.4 and not 0.3; turn 1: one row is missing."""
    batch = make_batch([[3, 2, 0], [1, 1, 0]])
    values = torch.tensor([[0.5, 0.7, NAN], [0.1, NAN, NAN]])
    assert near(turn_index_token_means(batch, values).tolist(), [0.4, 0.7, NAN])


def test_entropy_columns_by_hand():
    """Turn 2 belongs to a success alone, turn 1 of the failure is empty."""
    batch = make_batch([[2, 0], [1, 2, 1]], success=[False, True])
    batch = with_sampled(batch, "entropies", [0.1, 0.3, 0.5, 0.2, 0.6, 0.7])
    found = entropy_columns(batch, [1, 2], split_k=1)
    expected = {
        "entropy_k1": [0.3, 0.2, 0.7],
        "entropy_k2": [0.35, 0.4, 0.7],
        "entropy": [0.35, 0.4, 0.7],
        "entropy_failed": [0.1, NAN, NAN],
        "entropy_succeeded": [0.5, 0.2, 0.7],
    }
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert near(found[name].tolist(), values), name
    with pytest.raises(ValueError, match="each >= 1"):
        entropy_columns(batch, [1], split_k=0)


@given(ragged_batches())
def test_outcomes_share_out_the_mean_of_all(batch):
    """Weighted by their trajectories, failures and successes give the mean over both."""
    values = first_k_entropies(batch, [16])[:, :, 0]
    split, known = by_outcome(batch, values), ~values.isnan()
    for turn in range(batch.num_turns):
        counts = [int(known[rows, turn].sum()) for rows in (~batch.success, batch.success)]
        parts = [split[name][turn].item() for name in ("failed", "succeeded")]
        assert [math.isnan(part) for part in parts] == [count == 0 for count in counts]
        total = sum(p * n for p, n in zip(parts, counts, strict=True) if n)
        assert total == pytest.approx(values[:, turn].nansum().item(), rel=1e-4, abs=1e-6)


def test_turn_histogram_by_hand():
    batch = make_batch([[1, 2, 1], [0, 1], [0], [2, 2]])
    assert turn_histogram(batch).tolist() == [1, 1, 1, 1]


# --- spread


def test_small_spread_groups_by_hand():
    """Response entropies of the groups: 0.2 to 0.6; 0.30 to 0.35; one turn; none."""
    batch = make_batch([[1, 2], [1], [1, 1], [2], [0]], groups=[4, 4, 9, 2, 3])
    values = [0.2, 0.7, 0.5, 0.4, 0.30, 0.35, 0.8, 0.8]
    batch = with_sampled(batch, "entropies", values)
    assert small_spread_groups(batch) == pytest.approx(2 / 3)
    assert small_spread_groups(batch, min_spread=0.04) == pytest.approx(1 / 3)
    assert small_spread_groups(batch, min_spread=0.5) == 1.0
    assert small_spread_groups(batch, min_spread=0.0) == pytest.approx(1 / 3)


def test_spread_of_nothing_and_of_an_entropy_not_computed_is_missing():
    assert math.isnan(small_spread_groups(make_batch([[0], [0]])))
    batch = with_sampled(make_batch([[1], [1]]), "entropies", [0.1, NAN])
    assert math.isnan(small_spread_groups(batch))
    with pytest.raises(ValueError, match=r"min_spread is -0\.1"):
        small_spread_groups(batch, min_spread=-0.1)


@given(ragged_batches(), st.sampled_from([0.0, 0.1, 1.0, 5.0, 30.0]))
def test_small_spread_groups_are_those_that_aem_leaves_alone(batch, min_spread):
    weights = TURN_WEIGHTS["aem"](batch, torch.zeros(batch.token_ids.shape), min_spread=min_spread)
    spoken = batch.group_ids[(batch.turn_lengths() > 0).any(dim=1)].unique()
    silent = [bool((weights[batch.group_ids == group] == 1).all()) for group in spoken]
    expected = sum(silent) / len(silent) if silent else NAN
    found = small_spread_groups(batch, min_spread=min_spread)
    assert found == pytest.approx(expected, nan_ok=True)


# --- divergence


def test_divergences_by_hand():
    """The worked example k1 0.25, k3 0.0376, beside a turn of its own with d = 0."""
    batch = with_sampled(make_batch([[2, 1]]), "old_logprobs", [-0.1, -0.5, -1.0])
    batch = with_sampled(batch, "ref_logprobs", [-0.2, -0.9, -1.0])
    columns = divergence_columns(batch)
    assert near(columns["divergence_k1"].tolist(), [0.25, 0.0])
    assert columns["divergence_k3"].tolist() == pytest.approx([0.0376, 0.0], abs=5e-5)
    found = mean_divergences(batch)
    assert found["divergence_k1"] == pytest.approx(0.5 / 3)
    assert found["divergence_k3"] == pytest.approx(2 * columns["divergence_k3"][0].item() / 3)


def test_without_a_reference_or_tokens_a_divergence_is_missing():
    batch = make_batch([[2, 1]]).replace(ref_logprobs=None)
    for values in divergence_columns(batch).values():
        assert values.shape == (2,)
        assert values.isnan().all()
    for empty in (batch, make_batch([[0]])):
        assert all(math.isnan(value) for value in mean_divergences(empty).values())


def test_divergences_by_turn_average_tokens_then_trajectories():
    """Not the mean over the three tokens of turn 0."""
    batch = with_sampled(make_batch([[2], [1]]), "old_logprobs", [-1.0, -1.0, -1.0])
    batch = with_sampled(batch, "ref_logprobs", [-1.2, -1.4, -1.0])
    assert divergence_columns(batch)["divergence_k1"].item() == pytest.approx(0.15)
    assert turn_divergences(batch).flatten().tolist() == pytest.approx([0.3, 0.0])


# --- ratios and clips


def test_ratio_columns_by_hand():
    """Turn ratios: sqrt(1.21 * 1), 0.9 and 1.5; turn 1: 1.01; turn 2: nobody."""
    batch = make_batch([[2, 1, 0], [1], [1]])
    logprobs = moved(batch, [1.21, 1.0, 1.01, 0.9, 1.5])
    advantages = per_token(batch, [1.0, 1.0, 1.0, -1.0, 1.0])
    found = ratio_columns(batch, logprobs, advantages)
    assert near(found["turn_ratio_mean"].tolist(), [(1.1 + 0.9 + 1.5) / 3, 1.01, NAN])
    assert near(found["turn_ratio_max"].tolist(), [1.5, 1.01, NAN])
    assert near(found["turn_ratio_outside"].tolist(), [1.0, 0.0, NAN])
    assert near(found["clip_fraction"].tolist(), [2 / 4, 0.0, NAN])
    wide = ratio_columns(batch, logprobs, advantages, eps=0.2, clip_low=0.05, clip_high=0.3)
    assert near(wide["turn_ratio_outside"].tolist(), [1 / 3, 0.0, NAN])
    assert near(wide["clip_fraction"].tolist(), [2 / 4, 0.0, NAN])


def test_clip_fractions_by_sign_by_hand():
    """Four tokens with A > 0, two of them above 1.2; one of two with A < 0 below 0.8; one A = 0."""
    batch = make_batch([[3, 2], [2]])
    logprobs = moved(batch, [1.5, 0.5, 1.1, 1.3, 0.5, 1.5, 2.0])
    advantages = per_token(batch, [1.0, 1.0, 2.0, 1.0, -1.0, -1.0, 0.0])
    found = clip_fractions_by_sign(batch, logprobs, advantages)
    assert found == {"clip_fraction_positive": 0.5, "clip_fraction_negative": 0.5}
    found = clip_fractions_by_sign(batch, logprobs, advantages, clip_low=0.6, clip_high=0.4)
    assert found == {"clip_fraction_positive": 0.25, "clip_fraction_negative": 0.0}


def test_a_sign_without_tokens_and_an_unknown_ratio_are_missing():
    batch = make_batch([[2]])
    gains = per_token(batch, [1.0, 1.0])
    found = clip_fractions_by_sign(batch, moved(batch, [2.0, 1.0]), gains)
    assert found["clip_fraction_positive"] == 0.5
    assert math.isnan(found["clip_fraction_negative"])
    logprobs = moved(batch, [2.0, NAN])
    assert math.isnan(clip_fractions_by_sign(batch, logprobs, gains)["clip_fraction_positive"])
    nothing = make_batch([[0]])
    empty = clip_fractions_by_sign(nothing, nothing.old_logprobs, nothing.values)
    assert all(math.isnan(value) for value in empty.values())


def test_levels_judge_a_token_by_its_turn_or_trajectory():
    """Ratios 1.5, 1 | 1.1: the turns have 1.22 and 1.1, the trajectory 1.65 ** (1 / 3) = 1.18."""
    batch = make_batch([[2, 1]])
    logprobs, gains = moved(batch, [1.5, 1.0, 1.1]), per_token(batch, [1.0] * 3)
    shares = {level: turn_clip_fractions(batch, logprobs, gains, level=level) for level in LEVELS}
    assert shares["token"][0].tolist() == [0.5, 0.0]
    assert shares["turn"][0].tolist() == [1.0, 0.0]
    assert shares["sequence"][0].tolist() == [0.0, 0.0]
    tight = turn_clip_fractions(batch, logprobs, gains, level="sequence", clip_high=0.17)
    assert tight[0].tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="unknown level 'row'; there are: token, turn, sequence"):
        turn_clip_fractions(batch, logprobs, gains, level="row")


LEVEL_OF = {"gspo": "sequence", "gspo_token": "sequence", "turn_gspo": "turn"}


@pytest.mark.parametrize("name", OBJECTIVES)
@given(batch=ragged_batches())
def test_clips_by_sign_and_by_turn_add_up_to_what_every_objective_reports(name, batch):
    logprobs = current_logprobs(batch, 0.5).clamp(max=0.0)
    signs = torch.tensor([1.0, -1.0, 0.5, -2.0] * 3)[: len(batch.rewards)]
    advantages = signs[:, None].expand_as(logprobs).masked_fill(~batch.response_mask, 0.0)
    clip = {"clip_low": 0.2, "clip_high": 0.28}
    _, metrics = OBJECTIVES[name](logprobs, batch, advantages, **clip)
    clip["level"] = LEVEL_OF.get(name, "token")
    by_sign = clip_fractions_by_sign(batch, logprobs, advantages, **clip)
    tokens = batch.response_mask.sum(dim=1)
    counts = {"positive": int(tokens[signs > 0].sum()), "negative": int(tokens[signs < 0].sum())}
    parts = [by_sign[f"clip_fraction_{sign}"] * count for sign, count in counts.items() if count]
    total = metrics["clip_fraction"] * metrics["response_tokens"] if tokens.any() else 0.0
    assert sum(parts) == pytest.approx(total, abs=1e-6)
    by_turn = ratio_columns(batch, logprobs, advantages, **clip)["clip_fraction"]
    lengths = batch.turn_lengths().sum(dim=0)
    assert (by_turn.nan_to_num(0.0) * lengths).sum().item() == pytest.approx(total, abs=1e-4)


# --- what was done


def turn(action: str, correct: bool | None = None) -> Turn:
    return Turn((3,), (-1.0,), (0.2,), (), action, correct)


def played() -> list[Trajectory]:
    """Rewards 1, 0, missing, 0.25."""
    turns = [
        (turn("search"), turn("answer", True)),
        (turn("search"), turn("invalid"), turn("answer", False)),
        (turn("search"), turn("read_chunk")),
        (turn("external_verify", True),),
    ]
    rewards = [1.0, 0.0, None, 0.25]
    return [
        Trajectory("q", (1,), acts, reward, reward == 1.0, "answer")
        for acts, reward in zip(turns, rewards, strict=True)
    ]


def test_action_columns_by_hand():
    found = action_columns(played(), 3)
    assert found["trajectories"] == [4, 3, 1]
    assert found["search"] == [3, 0, 0]
    assert found["external_verify"] == [1, 0, 0]
    assert (found["answer"], found["invalid"]) == ([0, 1, 1], [0, 1, 0])
    assert (found["answered"], found["answered_correct"]) == ([1, 1, 1], [1, 1, 0])
    assert near(found["reward_search"], [0.5, NAN, NAN])  # the missing reward is left out
    assert near(found["reward_read_chunk"], [NAN, NAN, NAN])  # done once, reward missing
    assert near(found["reward_external_verify"], [0.25, NAN, NAN])
    assert near(found["reward_answer"], [NAN, 1.0, 0.0])
    assert near(found["reward_invalid"], [NAN, 0.0, NAN])
    beyond = action_columns(played(), 4)
    assert (beyond["trajectories"][3], beyond["search"][3]) == (0, 0)
    assert math.isnan(beyond["reward_search"][3])


def test_mean_rewards_of_actions_share_out_the_reward():
    """Over the actions of a turn, count times mean reward is the sum of rewards there."""
    known = [t for t in played() if t.reward is not None]
    found = action_columns(known, 3)
    for index in range(3):
        pairs = [(found[a][index], found[f"reward_{a}"][index]) for a in TURN_ACTIONS]
        total = sum(count * reward for count, reward in pairs if count)
        assert total == sum(t.reward for t in known if index < len(t.turns))


def test_the_diversity_of_groups_by_hand():
    """Of four trajectories two search, then read; their texts differ.  Another question: one."""
    one, two = turn("search"), replace(turn("search"), sampled_ids=(9,))
    acts = [(one, turn("answer")), (two, turn("answer")), (one,), (one,)]
    group = [Trajectory("q", (1,), turns, 0.0, False, "answer") for turns in acts]
    assert group_diversity(group) == {"distinct_actions": 2 / 4, "distinct_texts": 3 / 4}
    alone = replace(group[0], question_id="r")
    assert group_diversity([*group, alone])["distinct_actions"] == (2 / 4 + 1) / 2
    assert all(math.isnan(value) for value in group_diversity([]).values())


def test_invalid_actions_are_a_share_of_turns():
    found = outcome_shares(played())
    assert found["invalid_actions"] == 1 / 8
    assert found["malformed"] == 1 / 4
    silent = [replace(trajectory, turns=()) for trajectory in played()]
    assert math.isnan(outcome_shares(silent)["invalid_actions"])


def test_turn_counts_give_the_histogram():
    """How many have turn t, minus how many have turn t + 1: how many have exactly t + 1 turns."""
    batch = make_batch([[1, 2, 1], [1, 1], [2], [1, 1]])
    lengths = batch.turn_lengths().tolist()
    trajectories = [
        Trajectory("q", (1,), (turn("search"),) * sum(n > 0 for n in row), 0.0, False, "answer")
        for row in lengths
    ]
    having = action_columns(trajectories, batch.num_turns)["trajectories"]
    ends = [now - later for now, later in zip(having, [*having[1:], 0], strict=True)]
    assert turn_histogram(batch).tolist() == [0, *ends] == [0, 1, 2, 1]


def test_token_rates():
    seconds = {"rollout": 2.0, "update": 1.0, "metrics": 1.0}
    assert token_rates(100, seconds) == {
        "rollout_tokens_per_second": 50.0,
        "tokens_per_second": 25.0,
    }
    assert all(math.isnan(rate) for rate in token_rates(100, dict.fromkeys(seconds, 0.0)).values())


# --- repetition


def test_repeated_share_by_hand():
    """Sampled 1 2 | 1 2 | 3 and, by another trajectory, 1 2 2: runs cross turns, not rows."""
    batch = make_batch([[2, 2, 1], [3]])
    batch = with_sampled(batch, "token_ids", [1, 2, 1, 2, 3, 1, 2, 2])
    assert repeated_share(batch, n=1) == pytest.approx((2 + 1) / 8)
    assert repeated_share(batch, n=2) == pytest.approx(1 / 6)  # 12 21 12 23, 12 22
    assert repeated_share(batch, n=3) == 0.0  # 121 212 123, 122
    assert repeated_share(batch) == 0.0  # 1212 2123
    for n in (6, 9):
        assert math.isnan(repeated_share(batch, n=n))
    assert math.isnan(repeated_share(make_batch([[0]])))
    with pytest.raises(ValueError, match="n is 0"):
        repeated_share(batch, n=0)


def repeated_by_counting(batch, n: int) -> float:
    runs = repeats = 0
    for ids, mask in zip(batch.token_ids, batch.response_mask, strict=True):
        sampled, seen = tuple(ids[mask].tolist()), set()
        for start in range(len(sampled) - n + 1):
            run = sampled[start : start + n]
            runs, repeats = runs + 1, repeats + (run in seen)
            seen.add(run)
    return repeats / runs if runs else NAN


@given(ragged_batches(), st.integers(1, 5), st.sampled_from([1, 2, 3]), st.sampled_from([0, 2**40]))
def test_repeated_share_equals_counting_whatever_the_size_of_the_ids(batch, n, words, offset):
    """With the large ids no two fit into one number, so that runs must be renumbered."""
    batch = batch.replace(token_ids=batch.token_ids % words + offset)
    expected = repeated_by_counting(batch, n)
    assert repeated_share(batch, n=n) == pytest.approx(expected, nan_ok=True)


# --- laws


def measures(batch, logprobs) -> dict[str, torch.Tensor]:
    """Every diagnostic of a batch by name, as tensors."""
    columns = {
        **entropy_columns(batch, [1, 4]),
        **divergence_columns(batch),
        "entropy_of_turns": turn_entropies(batch).nansum(dim=0),
    }
    numbers = {
        "small_spread": small_spread_groups(batch),
        "repeated_1": repeated_share(batch, n=1),
        "repeated_4": repeated_share(batch),
        **mean_divergences(batch),
    }
    advantages = logprobs + 1.0
    for level in LEVELS:
        clip = {"level": level, "clip_low": 0.1, "clip_high": 0.1}
        found = ratio_columns(batch, logprobs, advantages, **clip)
        columns |= {f"{level}_{name}": values for name, values in found.items()}
        found = clip_fractions_by_sign(batch, logprobs, advantages, **clip)
        numbers |= {f"{level}_{name}": value for name, value in found.items()}
    return columns | {name: torch.tensor(value) for name, value in numbers.items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Bit for bit, missing where it was missing."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name].isnan(), values.isnan()), name
        assert torch.equal(found[name].nan_to_num(0.0), values.nan_to_num(0.0)), name


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """But for the rounding of sums over rows, missing where it was missing."""
    for name, values in expected.items():
        assert torch.allclose(found[name], values, rtol=1e-5, atol=1e-7, equal_nan=True), name


@pytest.mark.parametrize("junk", [NAN, math.inf, -math.inf])
@given(batch=ragged_batches())
def test_nothing_outside_the_mask_matters(junk, batch):
    logprobs = current_logprobs(batch)
    spoilt, spoilt_logprobs = poison(batch, logprobs, junk=junk)
    ids = batch.token_ids.masked_fill(~batch.response_mask, 2**50)
    found = measures(spoilt.replace(token_ids=ids), spoilt_logprobs)
    assert_same(found, measures(batch, logprobs))


@given(batch=ragged_batches())
def test_observations_and_padding_change_nothing(batch):
    logprobs = current_logprobs(batch)
    expected = measures(batch, logprobs)
    assert_same(measures(*insert_observations(batch, logprobs)), expected)
    histogram = turn_histogram(insert_observations(batch)[0])
    assert torch.equal(histogram, turn_histogram(batch))


@given(batch=ragged_batches())
def test_rows_without_a_sampled_token_change_nothing(batch):
    logprobs = current_logprobs(batch)
    assert_close(measures(*with_masked_rows(batch, logprobs)), measures(batch, logprobs))
    wider = turn_histogram(with_masked_rows(batch)[0])
    assert torch.equal(wider[1:], turn_histogram(batch)[1:])
    assert wider[0] == turn_histogram(batch)[0] + 2


@given(batch=ragged_batches(), seed=st.integers(0, 9))
def test_the_order_of_trajectories_does_not_matter(batch, seed):
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    logprobs = current_logprobs(batch)
    assert_close(measures(batch.select(order), logprobs[order]), measures(batch, logprobs))
