"""The privileged teacher of ADRS: the policy itself, with a skill text before the prompt."""

from collections.abc import Callable, Sequence

from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.policies.protocol import Policy, Tokens
from turncredit.table_demonstrations import is_extreme, query
from turncredit.training.collect import Collected
from turncredit.training.contexts import scored_behind
from turncredit.worlds.base import Question


def privileged_logprobs(
    policy: Policy,
    tokens: Tokens,
    drawn: Collected,
    batch: TurnBatch,
    *,
    skill: str = "moves",
) -> tuple[Tensor, dict[str, float]]:
    """[B, L]: log-probs of the sampled tokens under `policy` that also read the skill text.

    ADRS (arXiv 2608.03223): the tokens stay, and the prompt is preceded by a text that matches the
    task of its question, `skill_text`.  A trajectory that leaves no room for it among `max_tokens`
    is NaN throughout, which to the base means that no teacher spoke (`missing_teacher`).
    `teacher_gap` is the mean of teacher minus sampled log-prob: what the text changes.
    """
    asked = [drawn.questions[trajectory.question_id] for trajectory in drawn.trajectories]
    texts = {q.id: tokens.encode(skill_text(q, skill, drawn.actions)) for q in asked}
    prefixes = [texts[question.id] for question in asked]
    found = scored_behind(policy, batch, prefixes, [0] * len(prefixes))
    heard = batch.response_mask & ~found.isnan()
    gap = (found - batch.old_logprobs)[heard].double().mean().item()
    missing = (batch.response_mask & found.isnan()).any(dim=1).sum()
    return found, {"missing_teacher": int(missing), "teacher_gap": gap}


def skill_text(question: Question, skill: str, actions: Sequence[str]) -> str:
    """What the teacher reads before the prompt, in the words of the environment's `actions`.

    "moves" is the way to an answer for questions of this kind, without a name in it, as published
    skill texts are: which tools, and which relation to read up.  "plan" also has the names that the
    tools are asked for, and "facts" what they would show, of the hops that the world still holds.

    >>> from turncredit.worlds.base import Hop
    >>> hop = Hop("court", "seat", "hague", "court seat hague")
    >>> question = Question("q", "seat of court", ("hague",), (hop,), "seat", "paris")
    >>> for skill in ("moves", "plan", "facts"):
    ...     print(skill_text(question, skill, ("search", "read_chunk", "answer")))
    <search> </search> <read_chunk> seat </read_chunk> <answer> </answer>
    <search> court </search> <read_chunk> court seat </read_chunk>
    court seat hague
    """
    return SKILL_TEXTS[skill](question, actions)


def _moves(question: Question, actions: Sequence[str]) -> str:
    if "query" in actions:
        asked = [h.relation if is_extreme(h) else f"get {h.relation}" for h in question.hops]
        steps = ["<schema> </schema>", *(f"<query> {words} </query>" for words in asked)]
    else:
        move = "<search> </search> <read_chunk> {} </read_chunk>"
        move = move if "read_chunk" in actions else "<search> {} </search>"
        steps = [move.format(hop.relation) for hop in question.hops]
    return " ".join([*steps, "<answer> </answer>"])


def _plan(question: Question, actions: Sequence[str]) -> str:
    if "query" in actions:
        return " ".join(f"<query> {query(hop, ())} </query>" for hop in question.hops)
    move = "<search> {0} </search> <read_chunk> {0} {1} </read_chunk>"
    move = move if "read_chunk" in actions else "<search> {0} {1} </search>"
    return " ".join(move.format(hop.title, hop.relation) for hop in question.hops)


def _facts(question: Question, actions: Sequence[str]) -> str:
    held = [hop for hop in question.hops if hop.paragraph]
    return " ".join(f"{hop.title} {hop.relation} {hop.value}" for hop in held)


SKILL_TEXTS: dict[str, Callable[[Question, Sequence[str]], str]] = {
    "facts": _facts,
    "moves": _moves,
    "plan": _plan,
}
SKILLS = tuple(SKILL_TEXTS)
"""Kinds of skill text."""
