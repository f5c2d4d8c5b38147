"""ARPO's shared turns and AEPO's uncertain tokens, as bases and in the training loop."""

import copy
import inspect
import math
import re
from dataclasses import asdict, replace

import pytest
import torch
import yaml
from batches import make_batch
from play import PLAIN, SMALL, TRAINING, coin_environment, policy, vocabulary

from turncredit import params, paths
from turncredit.batching import from_trajectories
from turncredit.credit import BASES
from turncredit.objectives import OBJECTIVES
from turncredit.plans import named_methods
from turncredit.records import Trajectory, Turn
from turncredit.rollout.strategies import STRATEGIES
from turncredit.training import Method, ResamplingSettings, new_optimiser, train
from turncredit.training.collect import Collected
from turncredit.training.turn_inputs import shared_turns

HARD = {"sharing": "hard"}
ARPO = replace(
    PLAIN, base="arpo", base_options=HARD, rollout="arpo", rollout_options={"k": 2, "alpha": 0.55}
)
AEPO = replace(PLAIN, base="aepo", objective="aepo", rollout="aepo", rollout_options={"tau": 0.45})


def trajectory(reward: float, *turns: tuple[tuple[int, ...], tuple[int, ...]]) -> Trajectory:
    """Made of (sampled ids, observation ids)."""
    made = [Turn(s, (-1.0,) * len(s), (0.5,) * len(s), o, "search") for s, o in turns]
    return Trajectory("q", (1, 2), tuple(made), reward, reward == 1, "answer")


FIRST, LOOK = ((5, 6), (9,)), ((7,), (8,))
TREE = [
    trajectory(1.0, FIRST, LOOK, ((3,), ())),
    trajectory(0.0, FIRST, LOOK, ((4, 4), ())),
    trajectory(0.0, ((5, 6), (8,)), LOOK),
    trajectory(0.0, ((6, 5), (9,)), ((4,), ())),
]
"""Three share the first turn, two of them the second; the third was told something else."""


def tree(rewards: list[float | None] | None = None, groups: list[int] | None = None):
    """The batch of TREE with its shared turns filled in, and their count."""
    members = TREE if rewards is None else [
        replace(t, reward=r) for t, r in zip(TREE, rewards, strict=True)
    ]  # fmt: skip
    groups = groups or [0] * 4
    batch = from_trajectories(members, group_ids=groups)
    ids, counts = shared_turns(None, None, Collected(members, groups, {}, {}), batch)
    return batch.replace(anchor_ids=ids), counts


def test_shared_turns_by_hand():
    """A turn is shared with all that stands before it: the third's look follows another result."""
    batch, counts = tree()
    assert batch.anchor_ids.tolist() == [[0, 1, 2], [0, 1, 3], [0, 4, -1], [5, 6, -1]]
    assert counts == {"shared_turns": 5 / 10}
    apart, counts = tree(groups=[0, 0, 1, 1])
    assert apart.anchor_ids.tolist() == [[0, 1, 2], [0, 1, 3], [4, 5, -1], [6, 7, -1]]
    assert counts["shared_turns"] == 4 / 10


def by_turn(batch, advantages) -> list[list[float]]:
    means = batch.turn_sums(advantages) / batch.turn_lengths().clamp(min=1)
    return means.tolist()


def test_hard_sharing_by_hand():
    """Rewards 1, 0, 0, 0 give 1.5 and three times -0.5."""
    batch, _ = tree()
    found = by_turn(batch, BASES["arpo"](batch, sharing="hard"))
    third, half = (1.5 - 0.5 - 0.5) / 3, (1.5 - 0.5) / 2
    expected = [[third, half, 1.5], [third, half, -0.5], [third, -0.5, 0], [-0.5, -0.5, 0]]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=1e-5)


def test_soft_sharing_is_grpo_and_so_is_hard_where_nothing_is_shared():
    batch = make_batch([[3, 2], [1], [2, 0, 3], [4]], rewards=[0.3, 1.0, math.nan, 0.1])
    alone = batch.replace(anchor_ids=torch.arange(12).view(4, 3))
    expected = BASES["grpo"](batch)
    assert torch.equal(BASES["arpo"](batch), expected)
    assert torch.equal(BASES["arpo"](alone, sharing="hard"), expected)


def test_a_missing_reward_stays_out_of_the_means():
    batch, _ = tree([1.0, 0.0, None, 0.0])
    found = by_turn(batch, BASES["arpo"](batch, sharing="hard"))
    own = by_turn(batch, BASES["grpo"](batch))
    assert found[2] == [0, 0, 0]
    assert found[0][0] == found[1][0] == pytest.approx((own[0][0] + own[1][0]) / 2)


def shared_logprobs(batch, level: torch.Tensor) -> torch.Tensor:
    """[B, L]: a policy whose log-prob of a token is a number of its context: equal beginnings have
    one, whoever's trajectory they stand in."""
    columns = torch.zeros_like(batch.token_ids)
    seen: dict[tuple[int, ...], int] = {}
    for row, ids in enumerate(batch.token_ids.tolist()):
        for place in range(len(ids)):
            columns[row, place] = seen.setdefault(tuple(ids[: place + 1]), len(seen))
    return level[columns]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum"])
def test_hard_and_soft_have_one_gradient_while_the_ratios_are_1(objective, aggregation):
    """Every loss that weighs all tokens alike; the mean over a sequence does not."""
    if objective in ("gspo", "gspo_token", "turn_gspo"):
        pytest.skip("its ratio is of more than the token, whose gradients are then not equal")
    batch, _ = tree()
    level = torch.full((40,), -1.0, requires_grad=True)
    gradients = []
    for sharing in ("soft", "hard"):
        advantages = BASES["arpo"](batch, sharing=sharing)
        loss, _ = OBJECTIVES[objective](
            shared_logprobs(batch, level), batch, advantages, aggregation=aggregation
        )
        gradients.append(torch.autograd.grad(loss, level)[0])
    assert gradients[0].abs().max() > 0.01
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


def test_hard_and_soft_part_where_the_clip_looks_at_a_single_sign():
    batch, _ = tree()
    level = torch.full((40,), -0.5, requires_grad=True)  # ratio 1.65 at every token
    soft, hard = (
        torch.autograd.grad(
            OBJECTIVES["ppo_clip"](
                shared_logprobs(batch, level), batch, BASES["arpo"](batch, sharing=sharing)
            )[0],
            level,
        )[0]
        for sharing in ("soft", "hard")
    )
    assert (soft - hard).abs().max() > 0.01


# --- AEPO's advantage


def test_equal_entropies_and_a_of_0_leave_the_base_alone():
    batch = make_batch([[2, 1], [3]], entropies=[[0.3, 0.3], [0.3]])
    other = make_batch([[2, 1], [3]])
    assert torch.equal(BASES["aepo"](batch), BASES["grpo"](batch))
    assert torch.equal(BASES["aepo"](other, a=0.0), BASES["grpo"](other))


def test_no_factor_turns_the_sign():
    """One token far below the others: 1 + a z would be negative."""
    batch = make_batch([[9, 1], [4]], entropies=[[2.0, 0.0], [2.0]])
    base, found = BASES["grpo"](batch), BASES["aepo"](batch, a=2.0)
    last = batch.response_mask & (batch.turn_ids == 1)
    assert (found[last] == 0).all() and (base[last] != 0).all()
    assert (found * base >= 0).all()


def test_certain_tokens_are_blamed_less_and_uncertain_ones_more():
    batch = make_batch([[1, 1], [1, 1]], entropies=[[0.1, 0.9], [0.1, 0.9]])
    rows = by_turn(batch, BASES["aepo"](batch).abs())
    for low, high in rows:
        assert low < 0.7071 < high


def test_an_entropy_that_was_not_computed_is_refused():
    batch = make_batch([[2], [2]])
    spoilt = batch.replace(
        entropies=batch.entropies.clone().index_fill_(1, torch.tensor(3), math.nan)
    )
    with pytest.raises(ValueError, match="row 0, turn 0 has entropies not computed"):
        BASES["aepo"](spoilt)
    with pytest.raises(ValueError, match="aepo: a is -1"):
        BASES["aepo"](batch, a=-1)


# --- in the training loop


def steps(method: Method, model, optimiser, start: int, end: int):
    settings = replace(TRAINING, steps=end)
    parts = (model, optimiser, vocabulary(), coin_environment(0.1), SMALL, method, settings)
    return [log.metrics for log in train(*parts, seed=3, start=start)]


@pytest.mark.parametrize("method", [ARPO, AEPO], ids=["arpo", "aepo"])
def test_a_run_continued_from_a_checkpoint_equals_the_unbroken_one(method):
    model = policy()
    optimiser = new_optimiser(model, TRAINING)
    first = steps(method, model, optimiser, 0, 2)
    twin = copy.deepcopy(model)
    again = new_optimiser(twin, TRAINING)
    again.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    rest = steps(method, model, optimiser, 2, 3)
    assert repr(steps(method, twin, again, 2, 3)) == repr(rest), "NaN is missing in both"
    assert all(
        torch.equal(*pair) for pair in zip(model.parameters(), twin.parameters(), strict=True)
    )
    assert sum(row["rollout_branches"] for row in [*first, *rest]) > 0


def test_what_a_branching_run_logs_adds_up_over_the_rounds_of_resampling():
    settings = replace(TRAINING, steps=1, resampling=ResamplingSettings(max_rounds=2))
    model = policy()
    parts = (model, new_optimiser(model, settings), vocabulary(), coin_environment(0.1), SMALL)
    (log,) = train(*parts, ARPO, settings, seed=0)
    found = log.metrics
    assert found["rollout_trajectories"] == TRAINING.group_size * found["groups_drawn"]
    parts = ("rollout_roots", "rollout_branches", "rollout_refills")
    assert found["rollout_trajectories"] == sum(found[part] for part in parts)
    assert 0 < found["shared_turns"] < 1


def test_a_file_may_leave_the_rollout_out_and_then_nothing_shows_it():
    """A method without the later keys is the method of before, down to what identifies its runs."""
    later = ("rollout", "rollout_options", "module")
    six = {name: value for name, value in asdict(PLAIN).items() if name not in later}
    method = params.build(Method, six, "m")
    assert method == PLAIN
    assert method.values == six
    assert params.build(Method, ARPO.values, "m") == ARPO
    assert ARPO.values | {"module": ""} == asdict(ARPO)
    with pytest.raises(ValueError, match="m: key 'base' is missing"):
        params.build(Method, {k: v for k, v in six.items() if k != "base"}, "m")
    with pytest.raises(ValueError, match="m: rollout = 3 is int"):
        params.build(Method, six | {"rollout": 3}, "m")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"rollout": "beam"},
            "unknown rollout strategy 'beam'; there are: actguide, aepo, arpo, cleaner, indep",
        ),
        ({"rollout": "arpo", "rollout_options": {"slope": 1.0}}, "rollout_options: 'arpo' has no"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused_when_the_method_is_made(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(PLAIN, **changes)


def test_a_rollout_option_out_of_range_is_refused_before_the_first_step():
    method = replace(PLAIN, rollout="arpo", rollout_options={"k": 0})
    with pytest.raises(ValueError, match="k is 0"):
        method.rehearse()


# --- the page


def page() -> str:
    return (paths.PACKAGE.parents[1] / "docs" / "rollouts.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_is_a_method():
    block, *_ = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
    (values,) = yaml.safe_load(block).values()
    whole = named_methods(["grpo"])[values.pop("extends")] | values
    method = params.build(Method, whole, "docs/rollouts.md")
    method.rehearse()
    assert method.rollout_options == {"initial": 0.5, "k": 20}


@pytest.mark.parametrize(("name", "column"), [("arpo", 2), ("aepo", 3)])
def test_the_page_has_every_option_and_its_default(name, column):
    (section,) = re.findall(r"^## Branching\n(.*?)^## ", page(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `\w+` \|.*\|$", section, re.MULTILINE)
    cells = [[cell.strip(" `") for cell in row.split("|")] for row in rows]
    written = {row[1]: row[column] for row in cells if row[column] != "-"}
    parameters = inspect.signature(STRATEGIES[name]).parameters.values()
    assert written == {p.name: str(p.default) for p in parameters}


def test_every_baseline_of_aepos_comparison_is_an_arm():
    names = ["grpo", "reinforce_pp", "dapo", "cispo", "gppo", "gigpo", "arpo", "aepo"]
    for name, values in named_methods(names).items():
        method = params.build(Method, values, name)
        assert (method.rollout == "independent") == (name not in ("arpo", "aepo"))
        options = inspect.signature(STRATEGIES[method.rollout]).parameters
        assert method.rollout_options == {n: p.default for n, p in options.items()}
