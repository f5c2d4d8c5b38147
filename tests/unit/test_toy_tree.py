"""The enumerable tree: its rules, its episodes, and exact quantities against hand and play."""

import math
import random
from collections import Counter

import pytest
import torch
from play import TINY, question
from torch import Tensor

from turncredit.environments.toy_tree import Outcome, ToyTree, Tree, exact, search_or_guess
from turncredit.policies.tiny import TinyPolicy
from turncredit.policies.vocabulary import Vocabulary
from turncredit.rollout.lockstep import roll_out

TREE = search_or_guess()
FOUND = "<information> found </information>"


def two_states(**changes: object) -> Tree:
    """Stop for 0.5, or go on to a coin (reward 1 or 0) after thinking a word less or more."""
    coin = (Outcome(0.5, reward=1.0, success=True), Outcome(0.5))
    states = {
        "start": {
            "</stop>": (Outcome(reward=0.5),),
            "</go>": (Outcome(next_state="coin", observation="now", turn_reward=0.25),),
        },
        "coin": {"</stop>": (Outcome(),), "hmm </stop>": coin},
    }
    return Tree(**{"prompt": "well", "states": states} | changes)


def some_logits(tree: Tree, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(tree.num_logits, generator=stream, dtype=torch.float64)


def started(tree: Tree = TREE, seed: int = 0):
    return ToyTree(tree).reset(question(), random.Random(seed))


def play(tree: Tree, logits: Tensor, stream: random.Random) -> tuple[list[str], float]:
    """Messages and reward of one episode whose words are drawn from the policy."""
    logprobs = exact.response_logprobs(tree, logits)
    episode, said, over = ToyTree(tree).reset(question(), stream), [], False
    while not over:
        here = [n for n, response in enumerate(tree.responses) if response.state == episode.state]
        (number,) = stream.choices(here, [float(logprobs[n].exp()) for n in here])
        said.append(" ".join(tree.responses[number].words))
        over = episode.step(said[-1]).stop_reason is not None
    return said, episode.reward


# the tree


def test_messages_and_turns_vary_in_length():
    assert {len(response.words) for response in TREE.responses} == {1, 2, 3}
    assert {len(path.responses) for path in TREE.paths} == {1, 2, 3}
    assert any(len(response.outcomes) > 1 for response in TREE.responses)


def test_paths_are_all_episodes_once():
    assert len(set(TREE.paths)) == len(TREE.paths)
    assert two_states().paths == (
        ((0,), (Outcome(reward=0.5),)),
        ((1, 2), (two_states().responses[1].outcomes[0], Outcome())),
        *(
            ((1, 3), (two_states().responses[1].outcomes[0], outcome))
            for outcome in two_states().responses[3].outcomes
        ),
    )


def test_branches_follow_the_words():
    flat = [word for decision in TREE.decisions for word in decision.words]
    for response, branches in zip(TREE.responses, TREE.branches, strict=True):
        assert [flat[branch] for branch in branches] == list(response.words)
    used = {branch for branches in TREE.branches for branch in branches}
    assert used == set(range(TREE.num_logits))


END = (Outcome(),)
GO = Outcome(next_state="b", observation="o")


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"a": {"hmm": END}}, "'a'.*'hmm' must have one closing tag"),
        ({"a": {"</x> </x>": END}}, "one closing tag, at its end"),
        ({"a": {"</x> hmm": END}}, "one closing tag, at its end"),
        ({"a": {"</>": END}}, "one closing tag"),
        ({"a": {"": END}}, "one closing tag"),
        ({"a": {}}, "'a' allows no message"),
        ({"a": {"</x>": ()}}, "sum to 0.0, not 1"),
        ({"a": {"</x>": (Outcome(0.5), Outcome(0.4))}}, "sum to 0.9, not 1"),
        ({"a": {"</x>": (Outcome(1.0), Outcome(0.0))}}, "probability 0.0 must be above 0"),
        ({"a": {"</x>": (GO,)}}, "leads to 'b', which is not a state"),
        ({"a": {"</x>": (Outcome(next_state="a", observation="o"),)}}, "'a' leads back to itself"),
        ({"a": {"</x>": END}, "b": {"</x>": END}}, "'b' cannot be reached"),
        ({}, "a tree needs a state"),
        ({"a": {"</x>": (Outcome(observation="o"),)}}, "observation goes with a next state"),
        ({"a": {"</x>": (Outcome(next_state="b"),)}, "b": {"</x>": END}}, "observation goes with"),
        (
            {"a": {"</x>": (Outcome(1, "b", "o", reward=1.0),)}, "b": {"</x>": END}},
            "has an outcome, but the episode goes on",
        ),
        ({"a": {"</x>": (Outcome(reward=math.nan),)}}, "rewards must be finite"),
        ({"a": {"</x>": (Outcome(turn_reward=math.inf),)}}, "rewards must be finite"),
    ],
)
def test_a_broken_tree_is_refused(states, message):
    with pytest.raises(ValueError, match=message):
        Tree("p", states)


def test_longer_circles_and_unknown_evidence_are_refused():
    back = Outcome(next_state="a", observation="o")
    with pytest.raises(ValueError, match="leads back to itself: a > b"):
        Tree("p", {"a": {"</x>": (GO,)}, "b": {"</x>": (back,)}})
    with pytest.raises(ValueError, match="evidence names 'mars'"):
        two_states(evidence=frozenset({"mars"}))


def test_the_same_message_spaced_differently_is_refused():
    with pytest.raises(ValueError, match="twice"):
        Tree("p", {"a": {"hmm </x>": END, "hmm  </x>": END}})


# episodes


def test_an_episode_by_hand():
    episode = started(two_states())
    assert (episode.prompt, episode.reward, episode.success) == ("well", 0.0, False)
    step = episode.step(" </go>\n")
    assert (step.action, step.observation, step.stop_reason) == ("go", "now", None)
    step = episode.step("</stop>")
    assert (step.action, step.observation, step.stop_reason) == ("stop", "", "answer")
    assert step.correct is False
    assert (episode.reward, episode.success, episode.turn_rewards) == (0.0, False, (0.25, 0.0))
    assert episode.grounded is None


@pytest.mark.parametrize("message", ["", "</stay>", "hmm", "hmm </go>", "</go> </go>", "</GO>"])
def test_other_messages_are_invalid_and_end_the_episode(message):
    episode = started(two_states())
    step = episode.step(message)
    assert (step.action, step.stop_reason) == ("invalid", "invalid")
    assert (episode.reward, episode.success, len(episode.turn_rewards)) == (0.0, False, 1)
    assert episode.step("</go>").action == "invalid"


def test_a_message_after_the_end_changes_no_outcome():
    episode = started(two_states())
    episode.step("</stop>")
    assert episode.step("</stop>").action == "invalid"
    assert episode.reward == 0.5


def test_grounded_once_the_evidence_was_met():
    seen = set()
    for seed in range(20):
        episode = started(seed=seed)
        assert episode.grounded is False
        step = episode.step("</search>")
        assert episode.grounded == (step.observation == FOUND)
        seen.add(episode.grounded)
        if episode.grounded:
            episode.step("</search>")
            assert episode.grounded
    assert seen == {True, False}


def test_equal_seeds_give_equal_episodes_and_the_stream_decides_chance():
    def walk(seed: int) -> tuple:
        return play(TREE, some_logits(TREE), random.Random(seed))

    assert [walk(seed) for seed in range(20)] == [walk(seed) for seed in range(20)]
    observations = {started(seed=seed).step("</search>").observation for seed in range(20)}
    assert len(observations) == 2


def whole(episode) -> tuple:
    """Everything an episode shows."""
    return (
        episode.state, episode.turn_rewards, episode.grounded, episode.reward, episode.success,
        episode.stream.getstate(),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_a_snapshot_brings_everything_back_any_number_of_times(seed):
    episode = started(seed=seed)
    episode.step("hmm </search>")
    snapshot, before, endings = episode.snapshot(), whole(episode), []
    for _ in range(3):
        assert whole(episode) == before
        endings.append((episode.step("</answer>"), whole(episode)))
        assert endings[-1][1] != before
        episode.restore(snapshot)
    assert endings == endings[:1] * 3


def test_a_snapshot_moves_to_another_episode_and_may_meet_other_draws():
    episode = started(two_states())
    episode.step("</go>")
    snapshot, rewards = episode.snapshot(), Counter()
    for seed in range(200):
        other = started(two_states(), seed=99)
        other.restore(snapshot)
        other.stream = random.Random(seed)
        other.step("hmm </stop>")
        rewards[other.reward] += 1
    assert set(rewards) == {0.0, 1.0}
    assert abs(rewards[1.0] - 100) < 40
    assert episode.state == "coin"


def test_the_roll_out_engine_can_play_it():
    environment = ToyTree(TREE)
    words = Vocabulary(environment.words)
    policy = TinyPolicy(TINY, len(words), 0)
    trajectories = roll_out(
        policy, words, environment, [question()] * 200, seed=0, step=0, max_turn_tokens=3
    )
    assert {t.stop_reason for t in trajectories} == {"answer", "invalid"}
    assert {len(t.turns) for t in trajectories} >= {1, 2}
    assert {t.grounded for t in trajectories} == {True, False}


# exact quantities


def test_values_by_hand():
    """Uniform policy: the coin state is worth 0.25, the start (0.5 + 0.25) / 2."""
    tree = two_states()
    found = exact.values(tree, torch.zeros(tree.num_logits, dtype=torch.float64))
    assert found.states.tolist() == [0.375, 0.25]
    assert found.responses.tolist() == [0.5, 0.25, 0.0, 0.5]
    assert found.turn_advantages.tolist() == [0.125, -0.125, -0.25, 0.25]
    assert found.decisions.tolist() == [0.375, 0.25, 0.5]
    assert found.choices.tolist() == [0.5, 0.25, 0.0, 0.5, 0.5]
    assert found.token_advantages.tolist() == [0.125, -0.125, -0.25, 0.25, 0.0]


def test_discount_and_step_rewards_by_hand():
    tree = two_states()
    uniform = torch.zeros(tree.num_logits, dtype=torch.float64)
    found = exact.values(tree, uniform, gamma=0.5, turn_rewards=True)
    assert found.states.tolist() == [(0.5 + 0.25 + 0.5 * 0.25) / 2, 0.25]


def test_entropies_by_hand():
    tree = two_states()
    uniform = torch.zeros(tree.num_logits, dtype=torch.float64)
    assert exact.token_entropies(tree, uniform).tolist() == pytest.approx(
        [math.log(2), math.log(2), 0.0]
    )
    assert exact.response_entropies(tree, uniform).tolist() == pytest.approx([math.log(2)] * 2)
    assert float(exact.total_entropy(tree, uniform)) == pytest.approx(1.5 * math.log(2))
    assert exact.visitation(tree, uniform).tolist() == [[1.0, 0.0], [0.0, 0.5]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tree", [TREE, two_states()], ids=["search_or_guess", "two_states"])
class TestConsistency:
    """Quantities computed in two ways."""

    def test_probabilities_sum_to_one(self, tree, seed):
        logits = some_logits(tree, seed)
        assert float(exact.path_logprobs(tree, logits).exp().sum()) == pytest.approx(1, abs=1e-12)
        totals = exact.visitation(tree, logits)
        assert float(totals[0].sum()) == pytest.approx(1, abs=1e-12)
        turns = sum(
            float(p) * len(path.responses)
            for p, path in zip(exact.path_logprobs(tree, logits).exp(), tree.paths, strict=True)
        )
        assert float(totals.sum()) == pytest.approx(turns, abs=1e-12)

    @pytest.mark.parametrize("gamma", [1.0, 0.7])
    @pytest.mark.parametrize("turn_rewards", [False, True])
    def test_value_of_the_start_is_the_mean_return_of_the_paths(
        self, tree, seed, gamma, turn_rewards
    ):
        logits = some_logits(tree, seed)
        found = exact.values(tree, logits, gamma=gamma, turn_rewards=turn_rewards)
        expected = sum(
            float(p)
            * sum(
                gamma**turn * (o.reward + (o.turn_reward if turn_rewards else 0.0))
                for turn, o in enumerate(path.outcomes)
            )
            for p, path in zip(exact.path_logprobs(tree, logits).exp(), tree.paths, strict=True)
        )
        assert float(found.states[0]) == pytest.approx(expected, abs=1e-12)

    def test_advantages_have_mean_zero_and_tokens_add_up_to_turns(self, tree, seed):
        logits = some_logits(tree, seed)
        found = exact.values(tree, logits)
        of_response = exact.response_logprobs(tree, logits).exp() * found.turn_advantages
        for state in tree.names:
            here = [n for n, r in enumerate(tree.responses) if r.state == state]
            assert float(of_response[here].sum()) == pytest.approx(0, abs=1e-12)
        within = torch.stack([found.token_advantages[list(words)].sum() for words in tree.branches])
        torch.testing.assert_close(within, found.turn_advantages, rtol=0, atol=1e-12)

    def test_policy_gradient_theorem(self, tree, seed):
        """Autograd through the value equals visits times gradient of pi times Q."""
        logits = some_logits(tree, seed).requires_grad_()
        (direct,) = torch.autograd.grad(exact.values(tree, logits).states[0], logits)
        fixed = exact.values(tree, logits).responses.detach()
        visits = exact.visitation(tree, logits).sum(0).detach()
        owners = [tree.names.index(response.state) for response in tree.responses]
        said = exact.response_logprobs(tree, logits).exp()
        (theorem,) = torch.autograd.grad((visits[owners] * said * fixed).sum(), logits)
        torch.testing.assert_close(direct, theorem, rtol=0, atol=1e-12)


def test_a_forbidden_word_changes_the_tree_and_no_number_is_lost():
    """A logit of -inf, against the limit of very negative ones; gradients stay finite."""
    logits = some_logits(TREE)
    logits[TREE.branches[1][0]] = -40.0
    forbidden = logits.clone()
    forbidden[TREE.branches[1][0]] = -math.inf
    forbidden.requires_grad_()
    for quantity in (exact.token_entropies, exact.response_entropies, exact.total_entropy):
        found = quantity(TREE, forbidden)
        torch.testing.assert_close(found, quantity(TREE, logits), rtol=0, atol=1e-12)
        (gradient,) = torch.autograd.grad(found.sum(), forbidden)
        assert gradient.isfinite().all()
    value = exact.values(TREE, forbidden).states
    torch.testing.assert_close(value, exact.values(TREE, logits).states, rtol=0, atol=1e-12)


def test_played_frequencies_match_the_enumeration():
    """4,000 episodes through `step`; within 4.5 standard errors of every path's probability."""
    logits, count, stream = some_logits(TREE), 4000, random.Random(3)
    expected: Counter = Counter()
    for probability, path in zip(exact.path_logprobs(TREE, logits).exp(), TREE.paths, strict=True):
        said = tuple(" ".join(TREE.responses[number].words) for number in path.responses)
        expected[said, path.reward] += float(probability)
    played = Counter(
        (tuple(said), r) for said, r in (play(TREE, logits, stream) for _ in range(count))
    )
    assert set(played) <= set(expected)
    for key, probability in expected.items():
        error = math.sqrt(probability * (1 - probability) / count)
        assert abs(played[key] / count - probability) < 4.5 * error, key
