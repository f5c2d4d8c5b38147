"""Requests known before their answers are needed, so that they can be made all at once."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request", bound=Hashable)
Reply = TypeVar("Reply")


class Announced(Generic[Request, Reply]):
    """Asks for all announced requests together when the first of their replies is wanted.

    `ask` gives a reply to each of several requests, in order; one that nobody announced is asked
    for alone.  What was announced and is not wanted before the next requests are made is dropped.
    """

    def __init__(self, ask: Callable[[list[Request]], Sequence[Reply]]) -> None:
        self._ask = ask
        self._expected: list[Request] = []
        self._replies: dict[Request, list[Reply]] = {}

    def expect(self, request: Request) -> None:
        """Announce a request; the same one may be announced, and is then wanted, several times."""
        self._expected.append(request)

    def reply(self, request: Request) -> Reply:
        """The reply to a request; raises what `ask` raises."""
        waiting = self._replies.get(request)
        if waiting:
            return waiting.pop()
        if request not in self._expected:
            return self._ask([request])[0]
        asked, self._expected, self._replies = self._expected, [], defaultdict(list)
        for each, reply in zip(asked, self._ask(asked), strict=True):
            self._replies[each].append(reply)
        return self._replies[request].pop()
