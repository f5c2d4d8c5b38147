"""The film example as a tree: by hand for an agent without errors, and the slides' three cases."""

import math

import pytest
import torch
from torch import Tensor

from turncredit.batching import from_trajectories
from turncredit.environments.toy_tree import ToyTree, exact, film_policy, film_question
from turncredit.environments.toy_tree.written import find_path, written_trajectory
from turncredit.policies.vocabulary import Vocabulary

TREE = film_question()
SPEAK = Vocabulary(ToyTree(TREE).words).encode
GOOD = ("film </search>", "director </read_chunk>", "young </search>", "zagreb </answer>")
SLOPPY = ("ward </guess>", "plot </read_chunk>", "quito </answer>")
CAREFUL = ("ward </guess>", "ward </search>", "birth </read_chunk>", "vienna </answer>")


def advantages(said: tuple[str, ...], *, success: bool = False, **policy: float) -> Tensor:
    """Exact, of each turn of a path."""
    worth = exact.values(TREE, film_policy(TREE, **policy)).turn_advantages
    return worth[list(find_path(TREE, said, success=success).responses)]


def test_an_agent_without_errors_by_hand():
    flawless = {"search": 0.5, "sure": 1.0, "stray": 0.0}
    by_hand = torch.tensor([3 / 8, 0, 0, 0], dtype=torch.float64)
    assert torch.allclose(advantages(GOOD, success=True, **flawless), by_hand)
    assert torch.allclose(advantages(CAREFUL, **flawless), -by_hand)


def test_the_slides_are_right_about_the_three_cases_of_an_agent_that_never_turns_back():
    assert (advantages(GOOD, success=True) > 0).all()
    assert (advantages(SLOPPY) < 0).all()
    assert (advantages(CAREFUL) > 0).tolist() == [False, True, True, True]


def test_following_a_guess_is_worth_less_the_likelier_the_agent_turns_back():
    found = [advantages(CAREFUL, back=back)[1].item() for back in (0.0, 0.01, 0.2, 0.5)]
    assert found == sorted(found, reverse=True) and found[0] > 0 > found[1]


def test_luck_is_no_ones_merit():
    """A lucky guess ends well, and its turns have the same advantages as an unlucky one's."""
    assert torch.equal(advantages(CAREFUL, success=True), advantages(CAREFUL))


@pytest.mark.parametrize("policy", [{"search": 1.2}, {"stray": 0.6, "back": 0.5}, {"sure": -0.1}])
def test_what_is_no_probability_is_refused(policy):
    with pytest.raises(ValueError, match="a probability lies outside 0 to 1"):
        film_policy(TREE, **policy)


def test_a_path_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"no path of the tree says .*quito.* ends in success"):
        find_path(TREE, SLOPPY, success=True)


@pytest.mark.parametrize("success", [True, False])
def test_a_written_trajectory_holds_the_policys_numbers(success):
    logits = film_policy(TREE)
    path = find_path(TREE, CAREFUL, success=success)
    labels = ("wrong", "follows", "follows", "follows")
    written = written_trajectory(TREE, logits, path, SPEAK, labels=labels)
    assert (written.reward, written.success) == (float(success), success)
    assert (written.oracle_turn, written.turn_labels, written.grounded) == (0, labels, False)
    said = exact.response_logprobs(TREE, logits)[list(path.responses)]
    found = torch.tensor([sum(turn.sampled_logprobs) for turn in written.turns]).double()
    assert torch.allclose(found, said, atol=1e-6)
    fair = math.log(2)
    assert written.turns[0].sampled_entropies == pytest.approx((fair, 0.0))
    assert written.turns[-1].observation_ids == () and written.turns[-1].correct is success
    assert from_trajectories([written], group_ids=[0]).turn_lengths().tolist() == [[2] * 4]


def test_without_labels_nothing_is_judged_and_evidence_is_noticed():
    path = find_path(TREE, GOOD, success=True)
    written = written_trajectory(TREE, film_policy(TREE), path, SPEAK)
    assert written.oracle_turn is None and written.turn_labels is None and written.grounded
    judged = written_trajectory(TREE, film_policy(TREE), path, SPEAK, labels=["right"] * 4)
    assert judged.oracle_turn == -1
