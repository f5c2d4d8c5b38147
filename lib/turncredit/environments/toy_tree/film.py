"""Where was the director of a film born?  Look it up, or guess the director and go on from there.

The example of the slides on entropy-gated suffix masking, as a tree: a wrong decision can be
followed by wrong execution or by correct execution, and every turn has an exact worth.  Young is
the director, born in Zagreb; Ward, whom a guess names, was born in Vienna.
"""

from dataclasses import replace

import torch
from torch import Tensor

from turncredit.environments.toy_tree.tree import Outcome, Tree

GIVE_UP = "quito </answer>"
"""An answer that stands in no document, possible in most states and never right."""


def film_question(*, lucky: float = 0.25) -> Tree:
    """The tree: `lucky` is the chance that Ward, whom a guess names, is the director.

    The agent cannot see whether it was lucky: what it reads about Ward is the same either way.

    >>> film_question().max_turns
    6
    """
    wrong = {GIVE_UP: (Outcome(),)}
    look_up = {"film </search>": _leads("film found", "film")}
    right, unlucky = Outcome(reward=1.0, success=True), Outcome(1 - lucky)
    return Tree(
        prompt="<question> where was the director of the film born </question>",
        states={
            "question": {
                **look_up,
                "ward </guess>": _leads("guessed", "noted"),
            },
            "film found": {
                "director </read_chunk>": _leads("director known", "directed by young"),
                **wrong,
            },
            "director known": {
                "young </search>": _leads("birth known", "young born in zagreb"),
                **wrong,
            },
            "birth known": {"zagreb </answer>": (right,), **wrong},
            "guessed": {
                "ward </search>": _leads("ward found", "ward"),
                "plot </read_chunk>": _leads("strayed", "nothing on ward"),
                **look_up,
            },
            "strayed": {**wrong, **look_up},
            "ward found": {
                "birth </read_chunk>": _leads("ward known", "ward born in vienna"),
                **wrong,
            },
            "ward known": {
                "vienna </answer>": (replace(right, probability=lucky), unlucky),
                **wrong,
            },
        },
        evidence=frozenset({"birth known"}),
    )


def film_policy(
    tree: Tree,
    *,
    search: float = 0.5,
    sure: float = 0.98,
    stray: float = 0.02,
    back: float = 0.0,
) -> Tensor:
    """[P] float64: logits of an agent that is torn in its first turn and sure in all others.

    search: how often it looks the film up first.  sure: how often a later turn does the obvious
    thing.  stray and back: how often it reads at random, or looks the film up after all, where it
    would otherwise follow its guess.  Raises ValueError for a number that is no probability.
    """
    given = {
        "search": search,
        "sure": sure,
        "stray": stray,
        "back": back,
        "follow": 1 - stray - back,
    }
    if not all(-1e-12 < chance < 1 + 1e-12 for chance in given.values()):
        raise ValueError(f"{given}: a probability lies outside 0 to 1")
    first = {"question": ("search",), "guessed": ("follow", "stray")}
    chances: list[float] = []
    for decision in tree.decisions:
        said = [given[name] for name in first.get(decision.state, ("sure",))]
        said = [1.0] if decision.prefix else [*said, 1 - sum(said)]  # no choice but the closing tag
        chances += said
    return torch.tensor(chances, dtype=torch.float64).clamp(min=0).log()


def _leads(state: str, observation: str) -> tuple[Outcome, ...]:
    read = f"<information> {observation} </information>"
    return (Outcome(next_state=state, observation=read),)
