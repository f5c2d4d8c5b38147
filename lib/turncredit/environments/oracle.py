"""What a question still needs, turn by turn: the truth that entropy gates are compared with."""

from turncredit.answers import exact_match, words
from turncredit.environments.protocol import Episode
from turncredit.environments.reading import holds
from turncredit.worlds.base import Question


class Oracle:
    """Follows one episode along the hops of its question and notes the first turn off the path.

    On the path are, for the first hop whose paragraph was not shown yet, a search that names its
    title and, once a search has listed it, a reading that does; after the last hop the right answer
    and its verification.  A call that comes back empty was no mistake, and neither is to repeat it.
    Everything else is wrong, a guess also if it happens to be right.  Where the world has lost the
    paragraph that is needed next, nothing is wrong any more: only a guess can win.
    """

    def __init__(self, question: Question) -> None:
        self.first_wrong = -1
        """Turn of the first wrong action, -1 while there was none."""
        self._question = question
        self._hop = 0
        self._listed = False
        self._turns = 0

    def judge(self, action: str, argument: str) -> None:
        """Take note of the action of the next turn, whatever will come of it."""
        if self.first_wrong < 0 and not self._is_needed(action, argument):
            self.first_wrong = self._turns
        self._turns += 1

    def learn(self, action: str, text: str) -> None:
        """Take note of what a tool has shown the policy."""
        hops = self._question.hops
        while self._hop < len(hops) and holds(text, hops[self._hop].paragraph):
            self._hop, self._listed = self._hop + 1, False
        if self._hop < len(hops) and action == "search":
            self._listed |= _names(text, hops[self._hop].title)

    def _is_needed(self, action: str, argument: str) -> bool:
        hops = self._question.hops
        if self._hop == len(hops):
            right = bool(exact_match(argument, self._question.answers))
            return action in ("answer", "external_verify") and right
        hop = hops[self._hop]
        if not hop.paragraph:
            return True
        finds = action == "search" or (action == "read_chunk" and self._listed)
        return finds and _names(argument, hop.title)


def oracle_turn(episode: Episode, turns: int) -> int | None:
    """First wrong turn of an episode among the first `turns`, which a record keeps; -1: none.

    None where the world cannot tell, or an environment of one's own has no `oracle_turn`.
    """
    turn = getattr(episode, "oracle_turn", None)
    return -1 if turn is not None and turn >= turns else turn


def _names(text: str, title: str) -> bool:
    """Whether the words of a title stand in a text one after the other."""
    return f" {' '.join(words(title))} " in f" {' '.join(words(text))} "
