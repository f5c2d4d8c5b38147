"""A trajectory under way, doubled: the record so far is shared, what comes is its own."""

import random
from dataclasses import dataclass, replace

from torch import Tensor

from turncredit.environments.protocol import Environment, Episode
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


def fork(chain: Chain, index: int, environment: Environment) -> Chain:
    """The chain's twin before its present turn, with row number `index`.

    Call it before the present message reaches the environment.
    """
    row = chain.row
    turns = [replace(turn) for turn in row.turns[:-1]]  # a record may drop its last observation
    twin = replace(
        row,
        index=index,
        episode=fork_episode(environment, row),
        forced=[],
        turns=[*turns, OpenTurn()],
        stop_reason=None,
    )
    return replace(chain, row=twin, opening=None)


def fork_episode(environment: Environment, row: Row) -> Episode:
    """An episode that goes on from where the row's stands, with the same random numbers to come.

    Raises ValueError for an environment whose episodes have no `snapshot`.
    """
    if not hasattr(row.episode, "snapshot"):
        raise ValueError(
            f"episodes of {type(environment).__name__} have no snapshot(), so that none can branch"
        )
    twin = environment.reset(row.question, random.Random(0))
    twin.restore(row.episode.snapshot())
    return twin
