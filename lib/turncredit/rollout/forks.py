"""A trajectory under way, doubled: the record so far is shared, what comes is its own."""

import copy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from turncredit.environments.protocol import Episode
from turncredit.rollout.rows import OpenTurn, Row


@dataclass
class Chain:
    """A row that may branch."""

    row: Row
    question: int
    """Which of the questions asked."""
    consecutive: int = 0
    """Tool results in a row, up to the last one, after which it branched."""
    decided: int = 0
    """The last turn before which it branched or did not; before the first nothing is decided."""
    opening: Tensor | None = None
    """[width]: hidden state that the present turn's first token was sampled from."""

    @property
    def is_over(self) -> bool:
        """Whether the environment, or an answer, ended it."""
        return self.row.stop_reason is not None


@dataclass(frozen=True)
class Fork:
    """A branch: `child` shares all of `parent` before the turn."""

    question: int
    parent: int
    """Number within the group, like `child`."""
    child: int
    turn: int


def fork(chain: Chain, index: int) -> Chain:
    """The chain's twin before its present turn, with row number `index`.

    Call it before the present message reaches the environment.
    """
    row = chain.row
    turns = [replace(turn) for turn in row.turns[:-1]]  # a record may drop its last observation
    twin = replace(
        row,
        index=index,
        episode=fork_episode(row.episode),
        forced=[],
        turns=[*turns, OpenTurn()],
        stop_reason=None,
    )
    return replace(chain, row=twin, opening=None)


def fork_episode(episode: Episode) -> Episode:
    """A copy that goes on from the same state, with the same random numbers to come.

    What belongs to no single episode stays shared: environments, worlds, judges and their counts,
    and the question.
    """
    shared: dict[int, Any] = {}
    layer: Any = episode
    while layer is not None:
        for owner in map(vars(layer).get, ("environment", "_wrapper", "question")):
            _share(owner, shared)
        layer = vars(layer).get("episode")
    return copy.deepcopy(episode, shared)


def _share(owner: Any, shared: dict[int, Any]) -> None:
    """Let a deep copy keep `owner`, and the hops that an oracle holds one by one."""
    for part in (owner, *getattr(owner, "hops", ())):
        if part is not None:
            shared[id(part)] = part
