"""Measures of rollouts against enumeration, textbook cases and trajectories by hand."""

import itertools
import math
import random

import pytest
import torch

from turncredit.records import Trajectory, Turn
from turncredit.rollout.forks import Fork
from turncredit.rollout_measures import (
    clusters,
    diversity,
    embeddings,
    high_entropy_turns,
    pass_at,
    passes,
)


def trajectory(*turns, success=False, reward=0.0, entropies=None) -> Trajectory:
    """Turns of the ids given; entropies: one number for all tokens of each turn."""
    entropies = entropies or [0.5] * len(turns)
    made = tuple(
        Turn(tuple(ids), (-1.0,) * len(ids), (entropy,) * len(ids), (9,), "search", None)
        for ids, entropy in zip(turns, entropies, strict=True)
    )
    return Trajectory("q", (1, 2), made, reward, success, "answer", None, None)


def with_entropies(*entropies: float) -> Trajectory:
    return trajectory(*([5, 6] for _ in entropies), entropies=list(entropies))


# Several tries


@pytest.mark.parametrize("tries", range(1, 7))
def test_pass_at_k_is_the_share_of_all_choices_of_k_tries_that_hold_a_success(tries):
    for success in range(tries + 1):
        results = [True] * success + [False] * (tries - success)
        for k in range(1, tries + 1):
            choices = [any(chosen) for chosen in itertools.combinations(results, k)]
            assert pass_at([success], tries, k) == pytest.approx(sum(choices) / len(choices))


def test_more_tries_are_never_worse_and_no_question_is_no_number():
    found = [pass_at([0, 1, 3, 4], 4, k) for k in range(1, 5)]
    assert found == sorted(found) and found[0] == 0.5 and found[-1] == 0.75
    assert math.isnan(pass_at([], 4, 1))
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"k = {k} is not from 1 to 4"):
            pass_at([1], 4, k)


def test_a_question_with_a_missing_reward_counts_in_no_pass():
    right, wrong = trajectory([5], success=True), trajectory([5])
    lost = trajectory([5], reward=None)
    assert passes([[right, wrong], [lost, right]], [1, 2]) == {"pass_1": 0.5, "pass_2": 1.0}
    assert math.isnan(passes([[lost, right]], [1])["pass_1"])


# Clusters


def distances(points) -> torch.Tensor:
    return torch.cdist(points, points)


def reference_clusters(near: torch.Tensor, neighbours: int) -> list[set[int]]:
    """The cores of each cluster: connected components by repeated union."""
    cores = [i for i in range(len(near)) if int(near[i].sum()) >= neighbours]
    parts = [{i} for i in cores]
    for i, j in itertools.combinations(cores, 2):
        if near[i, j]:
            one, other = (next(part for part in parts if x in part) for x in (i, j))
            if one is not other:
                parts.remove(other)
                one |= other
    return parts


@pytest.mark.parametrize("seed", range(5))
def test_cores_of_a_cluster_are_connected_and_noise_has_no_core_near(seed):
    points = torch.rand(40, 2, generator=torch.Generator().manual_seed(seed))
    near = distances(points) <= 0.15
    labels = clusters(distances(points), radius=0.15, neighbours=4)
    cores = near.sum(1) >= 4
    parts = reference_clusters(near, 4)
    assert len(parts) == int(labels.max()) + 1 > 0
    for part in parts:
        assert len({int(labels[i]) for i in part}) == 1
    assert len({int(labels[min(part)]) for part in parts}) == len(parts)
    for point in range(len(points)):
        joined = {int(labels[i]) for i in (near[point] & cores).nonzero()[:, 0].tolist()}
        assert int(labels[point]) in (joined or {-1})


def test_the_number_of_clusters_does_not_depend_on_the_order():
    points = torch.rand(30, 2, generator=torch.Generator().manual_seed(9))
    order = list(range(30))
    random.Random(1).shuffle(order)
    one, other = (
        clusters(distances(own), radius=0.2, neighbours=3) for own in (points, points[order])
    )
    assert int(one.max()) == int(other.max()) > 0
    assert ((one < 0)[order] == (other < 0)).all()


def test_a_point_between_two_clusters_joins_one_and_does_not_bridge_them():
    line = torch.tensor([0.0, 0.1, 0.25, 1.1, 1.95, 2.1, 2.2])[:, None]
    labels = clusters(distances(line), radius=0.9, neighbours=4)
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert clusters(torch.zeros(0, 0), radius=1.0, neighbours=1).tolist() == []


def test_embeddings_count_what_was_written_and_nothing_else():
    vectors = embeddings([trajectory([5, 5], [6]), trajectory([6], [5, 5]), trajectory([7])])
    assert torch.allclose(vectors[0], torch.tensor([2.0, 1.0, 0.0]) / math.sqrt(5))
    assert torch.equal(vectors[0], vectors[1])
    assert float(vectors[0] @ vectors[2]) == 0.0


def test_diversity_of_groups_that_agree_and_of_groups_that_do_not():
    alike, other = [trajectory([5, 6])] * 3, [trajectory([7, 8])] * 3
    options = {"radius": 0.1, "neighbours": 2}
    assert diversity([alike, other], **options) == {
        "clusters": 2, "clusters_of_a_question": 1.0, "unlike": 0.0
    }  # fmt: skip
    mixed = [[alike[0], other[0], trajectory([3])], [alike[0], alike[0], other[0]]]
    found = diversity(mixed, **options)
    assert found["clusters"] == 2 and found["clusters_of_a_question"] == 0.5
    assert found["unlike"] == pytest.approx(1 / 6)


# Turns of high entropy


def test_high_turns_are_above_the_first_and_neighbours_make_rows():
    group = [with_entropies(0.5, 0.9, 0.8, 0.1, 0.7), with_entropies(0.5, 0.4)]
    assert high_entropy_turns([group], k=2) == {
        "high_turns": 3 / 5, "high_in_rows": 2 / 3, "longest_row": 2
    }  # fmt: skip


def test_only_the_first_k_tokens_of_a_turn_count():
    first, later = ((0.5, 0.5, 0.0), (0.4, 0.4, 9.0))
    turns = tuple(
        Turn((5, 6, 7), (-1.0,) * 3, entropies, (9,), "search", None)
        for entropies in (first, later)
    )
    both = Trajectory("q", (1,), turns, 0.0, False, "answer", None, None)
    assert high_entropy_turns([[both]], k=2)["high_turns"] == 0.0
    assert high_entropy_turns([[both]], k=3)["high_turns"] == 1.0


def test_a_turn_that_a_branch_shares_counts_once_as_its_parents():
    parent, child = with_entropies(0.5, 0.9, 0.1), with_entropies(0.5, 0.9, 0.8)
    alone = high_entropy_turns([[parent, child]], k=2)
    shared = high_entropy_turns([[parent, child]], [Fork(0, 0, 1, 2)], k=2)
    assert alone["high_turns"] == 3 / 4
    assert shared["high_turns"] == 2 / 3
    # the child's own turn is next to the shared one
    assert shared["high_in_rows"] == 1 / 2


def test_without_a_turn_after_a_tool_there_is_no_share():
    found = high_entropy_turns([[with_entropies(0.5)]], k=2)
    assert math.isnan(found["high_turns"]) and math.isnan(found["high_in_rows"])
