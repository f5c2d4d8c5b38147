"""From a policy-written message to one action: `<tool> argument </tool>`, nothing else."""

import functools
import re
from collections.abc import Sequence

_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


def parse_action(message: str, actions: Sequence[str]) -> tuple[str, str]:
    """The action's name and argument; ("invalid", "") unless the message is exactly one action.

    Only policy-written text of the current turn may be passed in, so that a tag inside a document
    can never act (complaints D5).  A leading <think> block is skipped; an argument that itself
    holds a tag is invalid, and so is an empty one.

    >>> parse_action("<search> romania </search>", ["search", "answer"])
    ('search', 'romania')
    >>> parse_action("<search> romania </answer>", ["search", "answer"])
    ('invalid', '')
    """
    found = _pattern(tuple(actions)).fullmatch(_THOUGHT.sub("", message, count=1))
    if found is None:
        return "invalid", ""
    argument = found["argument"].strip()
    return (found["name"], argument) if argument else ("invalid", "")


@functools.cache
def _pattern(actions: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, actions))
    return re.compile(rf"\s*<(?P<name>{names})>(?P<argument>[^<>]*)</(?P=name)>\s*")
