"""How a step is put to the policy: in full, as a prompt of its own, or in the words that matter."""

from collections.abc import Sequence

from turncredit.answers import words

_IDLE = frozenset(
    "you are in the middle of a room looking quickly around see an and at it is on using up "
    "next facing special about there s carrying available commands arrive pick turn".split()
)


def terse(text: str) -> str:
    """The words of an observation that say something, for a word-level policy.

    A receptacle that is named twice in a row is said once.

    >>> terse("You arrive at drawer 5. The drawer 5 is closed.")
    'drawer 5 closed'
    >>> terse("You pick up the book 2 from the shelf 6.")
    'book 2 from shelf 6'
    """
    kept: list[str] = []
    for word in words(text):
        if word in _IDLE:
            continue
        kept.append(word)
        if len(kept) >= 4 and kept[-2:] == kept[-4:-2]:
            del kept[-2:]
    return " ".join(kept) or "nothing"


def full(
    task: str,
    steps: int,
    history: Sequence[tuple[str, str]],
    observation: str,
    admissible: Sequence[str],
) -> str:
    """One step in full: task, step count, recent history, observation, admissible actions.

    The parts are those of the prompt in the appendix of AEM (arXiv 2605.00425), in other words.
    history: (observation, action) pairs, oldest first.
    """
    lines = [f"Your task: {task}."]
    if history:
        lines.append(f"Steps taken before this one: {steps}. The last {len(history)} of them:")
        first = steps - len(history) + 1
        lines += [
            f"[step {first + place}: you saw: {seen} You chose: {chosen}]"
            for place, (seen, chosen) in enumerate(history)
        ]
    lines.append(f"This is step {steps + 1}. You now see: {observation}")
    lines.append(f"Admissible actions: [{', '.join(admissible)}]")
    return "\n".join(lines)
