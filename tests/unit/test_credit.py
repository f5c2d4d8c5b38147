"""Base advantages, decision turns and turn weights against hand-made tables and properties."""

import math

import pytest
import torch
from batches import make_batch, ragged_batches
from hypothesis import given

from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages, weigh
from turncredit.credit.gates import RULES, decision_turns
from turncredit.credit.weights import suffix_mask_statistics

GRPO, SUFFIX_MASK = BASES["grpo"], TURN_WEIGHTS["suffix_mask"]
NAN = math.nan


def advantages(rewards: list[float], groups: list[int] | None = None, **options) -> list[float]:
    """One sampled token for each trajectory, so one advantage each."""
    batch = make_batch([[1]] * len(rewards), rewards=rewards, groups=groups)
    return GRPO(batch, **options)[batch.response_mask].tolist()


def gates(profile: list[float], **options) -> int:
    """Decision turn of one trajectory with these turn entropies (NaN: an empty turn)."""
    lengths = [0 if math.isnan(value) else 2 for value in profile]
    batch = make_batch([lengths], entropies=[[0.0 if math.isnan(v) else v for v in profile]])
    return decision_turns(batch, **options).item()


# grpo


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 1], [0.8660, -0.8660, -0.8660, 0.8660]),
        ([1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ([0.1, 0.7], [-0.7071, 0.7071]),
        ([3, 1, 2], [1.0, -1.0, 0.0]),
    ],
)
def test_grpo_table(rewards, expected):
    assert advantages(rewards) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.7, -0.3, 1e-30, 1e30])
@pytest.mark.parametrize("size", [2, 3, 7, 8, 16])
def test_equal_rewards_give_exactly_zero(reward, size):
    """Seven float32 rewards of 0.1 over std + 1e-8 would give -0.41 each."""
    for eps in (1e-6, 1e-8, 0.0):
        assert advantages([reward] * size, eps=eps) == [0.0] * size


def test_a_group_of_one_is_an_error_unless_allowed():
    with pytest.raises(ValueError, match=r"group 5 has a single trajectory \(row 1\)"):
        advantages([1, 0, 0], groups=[4, 5, 4])
    found = advantages([1, 1, 0], groups=[4, 5, 4], allow_singleton=True)
    assert found == pytest.approx([0.7071, 0.0, -0.7071], abs=1e-4)
    assert found[1] == 0.0


def test_a_missing_reward_leaves_its_group_and_gets_zero():
    found = advantages([1, NAN, 0, 0, 0])
    assert found == pytest.approx([1.5, 0.0, -0.5, -0.5, -0.5], abs=1e-4)
    assert advantages([NAN, 1.0, NAN]) == [0.0, 0.0, 0.0]  # one left: nothing to compare with
    assert advantages([NAN, NAN]) == [0.0, 0.0]


def test_population_std_and_unknown_std():
    assert advantages([1, 0], std="population") == pytest.approx([1.0, -1.0], abs=1e-5)
    with pytest.raises(ValueError, match=r"unknown std 'smaple'; there are: population, sample"):
        advantages([1, 0], std="smaple")


def test_groups_do_not_feel_each_other_nor_the_order_of_rows():
    rewards = [0.1, 0.7, 0.3, 0.9, 0.2, 1e6, -1e6]
    groups = [9, 9, 2, 9, 9, 2, 2]
    together = advantages(rewards, groups)
    alone = advantages([0.1, 0.7, 0.9, 0.2])
    assert [together[row] for row in (0, 1, 3, 4)] == alone  # bit for bit
    order = [6, 3, 0, 5, 4, 2, 1]
    shuffled = advantages([rewards[i] for i in order], [groups[i] for i in order])
    assert shuffled == [together[i] for i in order]


def test_sums_neither_round_in_float32_nor_depend_on_order():
    """Float32 sums of the first group would be off by 2; the second cancels in one order only."""
    assert advantages([16777216, 16777218, 16777220]) == pytest.approx([-1, 0, 1], abs=1e-5)
    one = advantages([1e17, 1.0, -1e17])
    for rewards, places in (([1e17, -1e17, 1.0], [0, 2, 1]), ([1.0, -1e17, 1e17], [1, 2, 0])):
        assert advantages(rewards) == [one[place] for place in places]


@given(ragged_batches())
def test_grpo_is_zero_sum_in_every_group_and_constant_over_a_trajectory(batch):
    found = GRPO(batch)
    assert (found[~batch.response_mask] == 0).all()
    assert found.isfinite().all()
    dense = make_batch(
        [[1]] * len(batch.rewards),
        rewards=batch.rewards.tolist(),
        groups=batch.group_ids.tolist(),
    )
    each = GRPO(dense)[dense.response_mask]
    for group in batch.group_ids.unique():
        assert each[batch.group_ids == group].sum().item() == pytest.approx(0, abs=1e-5)
    assert torch.equal(found, torch.where(batch.response_mask, each[:, None], 0.0))


# decision turns

HIGH_SECOND = [0.02, 0.5, 0.02, 0.4, 0.02]
"""Mean 0.192, population std 0.2131, median 0.02, median absolute deviation 0."""


@pytest.mark.parametrize(
    ("rule", "c", "expected"),
    [
        ("ratio", 2.0, 1),  # 0.5 > 0.384
        ("ratio", 3.0, -1),  # 0.5 < 0.576
        ("zscore", 1.0, 1),  # 0.5 > 0.4051
        ("zscore", 1.5, -1),  # 0.5 < 0.5117
        ("leave_one_out", 4.0, 1),  # others: 0.115
        ("leave_one_out", 4.5, -1),
        ("margin", 0.3, 1),  # 0.5 > 0.492
        ("margin", 0.31, -1),
        ("mad", 3.0, 1),
        ("quantile", 0.5, 0),  # median 0.02: every turn is at it or above
        ("quantile", 0.2, 1),  # 0.8 quantile 0.42
        ("argmax", 2.0, 1),
        ("argmax", 3.0, -1),
        ("last", 2.0, 3),  # 0.4 > 0.384
        ("last", 2.5, 1),  # 0.4 < 0.48 < 0.5
        ("absolute", 2.0, 0),
    ],
)
def test_decision_turn_by_rule(rule, c, expected):
    assert gates(HIGH_SECOND, rule=rule, c=c) == expected


def test_argmax_takes_the_largest_where_ratio_takes_the_first():
    profile = [0.01, 0.4, 0.01, 0.5, 0.01]
    assert gates(profile, rule="ratio") == 1
    assert gates(profile, rule="argmax") == 3
    assert gates([0.01, 0.5, 0.01, 0.5, 0.01], rule="argmax") == 1  # the first of equals


def test_mad_uses_the_mean_of_the_middle_two():
    """[1, 2, 4, 8]: median 3, deviations [2, 1, 1, 5], their median 1.5; bound 3 + c * 2.2239."""
    assert gates([1.0, 2.0, 4.0, 8.0], rule="mad", c=2.2) == 3
    assert gates([1.0, 2.0, 4.0, 8.0], rule="mad", c=2.3) == -1
    assert gates([1.0, 2.0, 4.0, 8.0], rule="mad", c=0.4) == 2


def test_floor_is_a_second_condition_and_the_only_one_of_absolute():
    low = [0.001, 0.009, 0.001, 0.001]
    assert gates(low, rule="ratio", floor=0.01) == -1
    assert gates(low, rule="ratio", floor=0.0) == 1
    assert gates([0.005, 0.01, 0.02], rule="absolute", floor=0.01) == 1  # at the floor counts
    assert gates([0.005, 0.01, 0.02], rule="absolute", floor=0.03) == -1


def test_running_compares_with_the_reference_of_the_same_turn():
    profile = [0.05, 0.05, 0.05]
    reference = torch.tensor([0.04, 0.02, 0.01])
    assert gates(profile, rule="running", reference=reference) == 1  # 0.05 > 2 * 0.02
    assert gates(profile, rule="running", c=1.0, reference=reference) == 0
    assert gates(profile, rule="running", reference=torch.tensor([0.04, NAN, 0.01])) == 2
    assert gates(profile, rule="running", reference=reference[:1]) == -1  # beyond its end: silent
    assert gates(profile[:2], rule="running", reference=reference) == 1
    with pytest.raises(ValueError, match="rule 'running' needs reference="):
        gates(profile, rule="running")


def test_hard_limits_of_self_including_rules():
    """Two turns: the largest z is 1 and the largest ratio 2, so neither can exceed them."""
    for high in (0.06, 0.3, 0.77):
        assert gates([high, 0.01], rule="zscore", c=1.0) == -1
        assert gates([high, 0.0], rule="ratio", c=2.0) == -1
        assert gates([high, 0.01], rule="leave_one_out", c=2.0) == 0
    assert gates([0.5], rule="leave_one_out") == -1  # no other turn to compare with


@pytest.mark.parametrize("rule", RULES)
def test_empty_turns_never_count(rule):
    """Without its empty turns a trajectory has the same decision turn, under every rule."""
    full = [0.02, 0.3, 0.02, 0.25, 0.01]
    gappy = [NAN, 0.02, NAN, 0.3, 0.02, 0.25, NAN, 0.01, NAN]
    position = {-1: -1, 0: 1, 1: 3, 2: 4, 3: 5, 4: 7}
    options = {"reference": torch.full((9,), 0.1)} if rule == "running" else {}
    found = []
    for c in (0.05, 0.1, 0.3, 0.9) if rule == "quantile" else (0.05, 0.1, 1.0, 1.5, 2.0, 3.0, 9.0):
        found.append(gates(full, rule=rule, c=c, **options))
        assert gates(gappy, rule=rule, c=c, **options) == position[found[-1]]
    assert max(found) >= 0


def test_only_the_first_k_tokens_decide():
    batch = make_batch([[4, 4, 4, 4]])
    entropies = torch.tensor([0.0, 0, 0, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    batch = batch.replace(entropies=batch.entropies.masked_scatter(batch.response_mask, entropies))
    assert decision_turns(batch, k=2).item() == 1
    assert decision_turns(batch, k=4).item() == 0
    assert decision_turns(batch, k=1).item() == -1


def test_unknown_rules_bad_quantiles_and_missing_entropies_are_errors():
    with pytest.raises(ValueError, match="unknown rule 'z'; there are: ratio, zscore"):
        gates([0.1], rule="z")
    for c in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match="rule 'quantile' takes the top share"):
            gates([0.1, 0.2], rule="quantile", c=c)
    batch = make_batch([[2, 2], [2, 2]])
    entropies = batch.entropies.clone()
    entropies[1, -2] = NAN
    with pytest.raises(ValueError, match="row 1, turn 1 has entropies not computed"):
        decision_turns(batch.replace(entropies=entropies))


# suffix masking

PROFILE = [0.01, 0.5, 0.01, 0.01]


def test_suffix_mask_spares_successes_credit_and_turns_up_to_the_gate():
    batch = make_batch(
        [[2] * 4] * 4,
        rewards=[0.0, 1.0, 0.5, 0.0],
        success=[False, True, False, False],
        entropies=[PROFILE, PROFILE, PROFILE, [0.02] * 4],
    )
    base = GRPO(batch)
    assert SUFFIX_MASK(batch, base).tolist() == [
        [1.0, 1.0, 0.0, 0.0],
        [1.0, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 1.0],  # failed, but its advantage is positive
        [1.0, 1.0, 1.0, 1.0],  # failed, no decision turn: full penalty
    ]


def test_a_success_with_negative_advantage_is_untouched():
    batch = make_batch([[2] * 4] * 2, success=[True, True], entropies=[PROFILE, PROFILE])
    assert SUFFIX_MASK(batch, torch.full(batch.token_ids.shape, -1.0)).min() == 1


def test_suffix_mask_removes_only_blame_under_a_turn_level_base():
    batch = make_batch([[2] * 4], success=[False], entropies=[PROFILE])
    base = batch.gather_turns(torch.tensor([[-1.0, -1.0, 0.5, -1.0]]))
    assert SUFFIX_MASK(batch, base).tolist() == [[1.0, 1.0, 1.0, 0.0]]


def test_all_fail_group_stays_zero():
    batch = make_batch([[2] * 4] * 3, rewards=[0.0] * 3, entropies=[PROFILE] * 3)
    assert (token_advantages(batch) == 0).all()


@given(ragged_batches())
def test_suffix_mask_laws(batch):
    base = GRPO(batch)
    for rule in RULES:
        options = {"c": 0.3 if rule == "quantile" else 1.2, "floor": 0.0, "rule": rule}
        if rule == "running":
            options["reference"] = torch.full((batch.num_turns,), 0.1)
        weights = SUFFIX_MASK(batch, base, **options)
        lengths = batch.turn_lengths()
        assert ((weights == 0) | (weights == 1)).all()
        assert (weights[batch.success] == 1).all()
        assert (weights[lengths == 0] == 1).all()
        assert (weights[(lengths > 0).sum(dim=1) <= 1] == 1).all()  # single turn: its base
        for row, counts in zip(weights.tolist(), lengths.tolist(), strict=True):
            real = [weight for weight, count in zip(row, counts, strict=True) if count]
            assert real == sorted(real, reverse=True)  # a suffix
            assert real[:1] in ([], [1.0])


def test_statistics_by_hand():
    batch = make_batch(
        [[2, 2, 2, 2], [2, 2, 1, 3], [2, 2, 2, 0], [1, 0, 0, 0]],
        rewards=[0.0, 0.0, 1.0, 0.0],
        entropies=[PROFILE, [0.5, 0.01, 0.01, 0.01], PROFILE, PROFILE],
    )
    base = GRPO(batch)
    found = suffix_mask_statistics(batch, base, SUFFIX_MASK(batch, base))
    assert found == pytest.approx(
        {
            "gate_rate": 2 / 3,
            "gate_rate_penalised": 2 / 3,
            "gate_turn": 0.5,  # turns 1 and 0
            "gate_at_0": 0.5,
            "gate_at_1": 0.5,
            "gate_at_2": 0.0,
            "gate_at_3": 0.0,
            "gate_at_later": 0.0,
            "masked_share_failed": (4 + 6) / 17,
            "masked_share": (4 + 6) / 23,
            "failed": 3.0,
        }
    )


def test_the_gate_turn_precedes_the_first_masked_turn():
    batch = make_batch([[2, 0, 2, 2, 2]], success=[False])
    blame = torch.where(batch.response_mask, -1.0, 0.0)
    found = suffix_mask_statistics(batch, blame, torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.0]]))
    assert found["gate_turn"] == 0  # turn 1 is empty, turn 3 comes after a masked one
    assert found["masked_share"] == 0.5


def test_statistics_without_failures_are_missing_not_zero():
    batch = make_batch([[2, 2]] * 2, rewards=[1.0, 1.0])
    found = suffix_mask_statistics(batch, GRPO(batch), torch.ones(2, 2))
    assert found["failed"] == 0
    assert found["masked_share"] == 0
    for name in ("gate_rate", "gate_rate_penalised", "gate_turn", "masked_share_failed"):
        assert math.isnan(found[name])
    none_gated = suffix_mask_statistics(
        make_batch([[2, 2]] * 2), GRPO(make_batch([[2, 2]] * 2)), torch.ones(2, 2)
    )
    assert none_gated["gate_rate"] == 0
    assert math.isnan(none_gated["gate_turn"])


# composition


def test_weight_none_returns_the_base_and_weights_multiply_by_turn():
    batch = make_batch([[2] * 4] * 2, entropies=[PROFILE, PROFILE])
    base = GRPO(batch)
    assert torch.equal(token_advantages(batch, "grpo", "none"), base)
    expected = torch.where(batch.turn_ids[0] < 2, base[0], 0.0)
    assert torch.equal(token_advantages(batch)[0], expected)
    assert torch.equal(token_advantages(batch)[1], base[1])


def test_a_base_with_junk_outside_the_mask_is_cleaned(monkeypatch):
    batch = make_batch([[2, 1], [3]])
    junk = torch.where(batch.response_mask, 1.0, NAN)
    monkeypatch.setitem(BASES, "sloppy", lambda batch: junk)
    assert torch.equal(token_advantages(batch, "sloppy", "none"), batch.response_mask.float())


def test_options_reach_their_stage():
    batch = make_batch([[2] * 4] * 2, entropies=[PROFILE, PROFILE])
    found = token_advantages(
        batch, base_options={"std": "population"}, weight_options={"rule": "ratio", "c": 4.0}
    )
    assert torch.equal(found, GRPO(batch, std="population"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": "grop"}, "unknown base 'grop'; there are: .*grpo"),
        ({"weight": "sufix_mask"}, "unknown turn weight 'sufix_mask'; there are: .*suffix_mask"),
        ({"base_options": {"st": "x"}}, "base 'grpo' has no option 'st'; it has: std, eps, allow"),
        (
            {"weight_options": {"treshold": 1}},
            "turn weight 'suffix_mask' has no option 'treshold'; it has: k, rule, c, floor",
        ),
        (
            {"weight": "none", "weight_options": {"k": 1}},
            "turn weight 'none' has no option 'k'; it has: none",
        ),
    ],
)
def test_unknown_methods_and_options_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        token_advantages(make_batch([[1], [1]]), **arguments)


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 9), (9, 2), (2, 3)])
@pytest.mark.parametrize("weight", ["none", "aem", "suffix_mask"])
def test_base_advantages_of_another_shape_are_refused(shape, weight):
    batch = make_batch([[2, 2], [2, 1]])
    with pytest.raises(ValueError, match=r"weigh: base is .* of shape .*, not float.* \[B, L\] = "):
        weigh(batch, torch.zeros(shape), weight)
    whole = torch.zeros(batch.token_ids.shape, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"weigh: base is torch.int64 of shape"):
        weigh(batch, whole, weight)


@pytest.mark.parametrize(
    "reference", [torch.ones(2, 2), torch.tensor(1.0), torch.tensor([-math.inf])]
)
def test_a_reference_is_one_finite_number_per_turn(reference):
    with pytest.raises(ValueError, match="decision_turns: reference is not"):
        gates([0.1, 0.2], rule="running", reference=reference)
