"""What the groups of a rollout came to: chances with several tries, diversity, entropies."""

import math
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from turncredit.records import Trajectory
from turncredit.rollout.forks import Fork

TABLE = "after.csv"
"""In the folder of each run: one row for each way of playing."""
ALONE, OWN = "alone", "own rollout"
"""Ways of playing: independent trajectories, and by the rollout of the arm."""


def pass_at(successes: Sequence[int], tries: int, k: int) -> float:
    """Chance that one of k tries succeeds, from `tries` of each question; mean over questions.

    successes: how many of a question's tries succeeded.  1 - C(tries - successes, k) / C(tries, k),
    without bias if the tries are independent (Chen et al., arXiv 2107.03374).  NaN without
    questions; ValueError for k above `tries`.

    >>> pass_at([1, 0], tries=2, k=1), pass_at([1, 0], tries=2, k=2)
    (0.25, 0.5)
    """
    if not 1 <= k <= tries:
        raise ValueError(f"k = {k} is not from 1 to {tries}, the tries of a question")
    whole = math.comb(tries, k)
    return _mean([1 - math.comb(tries - count, k) / whole for count in successes])


def passes(groups: Sequence[Sequence[Trajectory]], ks: Sequence[int]) -> dict[str, float]:
    """`pass_<k>` of groups of one size; a group with a missing reward does not count."""
    known = [group for group in groups if all(t.reward is not None for t in group)]
    counts = [sum(t.success for t in group) for group in known]
    tries = min(map(len, groups), default=0)
    return {f"pass_{k}": pass_at(counts, tries, k) for k in ks}


def clusters(distances: Tensor, *, radius: float, neighbours: int) -> Tensor:
    """[N, N] distances to [N] clusters from 0 on, -1 for noise (DBSCAN, Ester et al. 1996).

    A point with `neighbours` points within `radius`, itself among them, is a core; cores within
    `radius` of each other are of one cluster, and any other point is of the first cluster that has
    a core within its `radius`.

    >>> line = torch.tensor([0.0, 1.0, 2.0, 7.0, 20.0, 21.0])
    >>> clusters((line[:, None] - line).abs(), radius=1.5, neighbours=2)
    tensor([ 0,  0,  0, -1,  1,  1])
    """
    near = distances <= radius
    cores = near.sum(dim=1) >= neighbours
    labels = torch.full((len(distances),), -1)
    for point in cores.nonzero()[:, 0].tolist():
        if labels[point] >= 0:
            continue
        fresh = torch.zeros_like(cores)
        fresh[point] = True
        number = labels.max() + 1
        while fresh.any():
            labels[fresh] = number
            fresh = near[fresh & cores].any(dim=0) & (labels < 0)
    return labels


def embeddings(trajectories: Sequence[Trajectory]) -> Tensor:
    """[N, tokens used] unit vectors: how often each trajectory wrote each token.

    What it read does not count.  Words alone, without a model of language: two trajectories are
    near if they write the same words as often, in whatever order.
    """
    written = [[i for turn in t.turns for i in turn.sampled_ids] for t in trajectories]
    places = {token: n for n, token in enumerate(sorted({i for ids in written for i in ids}))}
    counts = torch.zeros(len(written), max(len(places), 1))
    for row, ids in enumerate(written):
        counts[row] = torch.bincount(
            torch.tensor([places[i] for i in ids], dtype=torch.int64), minlength=counts.shape[1]
        )
    return torch.nn.functional.normalize(counts, dim=1)


def diversity(
    groups: Sequence[Sequence[Trajectory]], *, radius: float, neighbours: int
) -> dict[str, float]:
    """Cluster centres of a rollout by `clusters` of the cosine distances of its `embeddings`.

    `clusters`: over all trajectories (a count); `clusters_of_a_question`: within a group, mean over
    groups; `unlike`: share of all trajectories that are in no cluster.
    """
    options = {"radius": radius, "neighbours": neighbours}
    vectors = embeddings([t for group in groups for t in group])
    labels = clusters(1 - vectors @ vectors.T, **options)
    parts = vectors.split([len(group) for group in groups])
    own = [int(clusters(1 - part @ part.T, **options).max()) + 1 for part in parts if len(part)]
    return {
        "clusters": int(labels.max()) + 1 if len(labels) else 0,
        "clusters_of_a_question": _mean(own),
        "unlike": _mean((labels < 0).tolist()),
    }


def high_entropy_turns(
    groups: Sequence[Sequence[Trajectory]], forks: Sequence[Fork] = (), *, k: int
) -> dict[str, float]:
    """How turns of high entropy follow each other.

    A turn after a tool result is high if its first k tokens have more entropy, on average, than the
    first k of its trajectory: where ARPO branches with its defaults, if k is its own (20) or turns
    are no longer than either.  `high_turns`: share of the turns after a tool result;
    `high_in_rows`: of the high ones, those next to another one; `longest_row`: most in a row.
    Turns that a branch shares with its parent (`forks`) count once, as the parent's.  NaN where
    there are none.
    """
    own = {(fork.question, fork.child): fork.turn for fork in forks}
    later = high = beside = longest = 0
    for question, group in enumerate(groups):
        for number, trajectory in enumerate(group):
            flags, first = _high(trajectory, k), max(own.get((question, number), 1), 1)
            padded = [False, *flags, False]  # flag of turn t is at t + 1
            high_here = [t for t in range(first, len(flags)) if flags[t]]
            later += max(len(flags) - first, 0)
            high += len(high_here)
            beside += sum(padded[t] or padded[t + 2] for t in high_here)
            longest = max(longest, _longest(flags))
    return {
        "high_turns": high / later if later else math.nan,
        "high_in_rows": beside / high if high else math.nan,
        "longest_row": longest,
    }


def _high(trajectory: Trajectory, k: int) -> list[bool]:
    """Of each turn whether its opening has more entropy than the first turn's."""
    opening = [_mean(turn.sampled_entropies[:k]) for turn in trajectory.turns]
    return [entropy > opening[0] for entropy in opening]


def _longest(flags: Sequence[bool]) -> int:
    """Most true values in a row."""
    longest = here = 0
    for flag in flags:
        here = here + 1 if flag else 0
        longest = max(longest, here)
    return longest


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
