"""Episodes written by hand: the messages are given, log-probs and entropies are the policy's."""

from collections.abc import Callable, Sequence

from torch import Tensor

from turncredit.environments.toy_tree import exact
from turncredit.environments.toy_tree.tree import Path, Tree
from turncredit.records import Trajectory, Turn

Encode = Callable[[str], Sequence[int]]


def find_path(tree: Tree, messages: Sequence[str], *, success: bool) -> Path:
    """The first path on which the agent says `messages`; ValueError if there is none.

    >>> from turncredit.environments.toy_tree import search_or_guess
    >>> find_path(search_or_guess(), ["hmm </search>", "</answer>"], success=True).responses
    (3, 4)
    """
    for path in tree.paths:
        said = [" ".join(tree.responses[number].words) for number in path.responses]
        if said == list(messages) and path.success == success:
            return path
    end = "success" if success else "failure"
    raise ValueError(f"no path of the tree says {list(messages)} and ends in {end}")


def written_trajectory(
    tree: Tree, logits: Tensor, path: Path, encode: Encode, *, labels: Sequence[str] | None = None
) -> Trajectory:
    """A path as if an agent with these logits [P] had said it.

    labels: right, follows or wrong for each turn; the first wrong one is then `oracle_turn`.
    """
    logprobs = exact.token_logprobs(tree, logits).tolist()
    entropies = exact.token_entropies(tree, logits).tolist()
    places = {(d.state, d.prefix): number for number, d in enumerate(tree.decisions)}

    def turn(number: int, observation: str, correct: bool | None) -> Turn:
        said = tree.responses[number]
        before = [places[said.state, said.words[:count]] for count in range(len(said.words))]
        return Turn(
            tuple(encode(" ".join(said.words))),
            tuple(logprobs[choice] for choice in tree.branches[number]),
            tuple(entropies[place] for place in before),
            tuple(encode(observation)),
            said.action,
            correct,
        )

    pairs = zip(path.responses, path.outcomes, strict=True)
    turns = [turn(n, o.observation, None if o.next_state else o.success) for n, o in pairs]
    seen = {tree.responses[number].state for number in path.responses}
    wrong = None if labels is None else [label == "wrong" for label in labels]
    return Trajectory(
        "tree",
        tuple(encode(tree.prompt)),
        tuple(turns),
        path.reward,
        path.success,
        "answer",
        bool(seen & tree.evidence) if tree.evidence else None,
        wrong if wrong is None else (wrong.index(True) if any(wrong) else -1),
        None if labels is None else tuple(labels),
    )
