"""A decision tree small enough to enumerate: every trajectory, value and entropy is exact."""

from turncredit.environments.toy_tree.episode import Snapshot, ToyTree, ToyTreeEpisode
from turncredit.environments.toy_tree.film import film_policy, film_question
from turncredit.environments.toy_tree.tree import Outcome, Path, Response, Tree, search_or_guess

__all__ = [
    "Outcome",
    "Path",
    "Response",
    "Snapshot",
    "ToyTree",
    "ToyTreeEpisode",
    "Tree",
    "film_policy",
    "film_question",
    "search_or_guess",
]
