"""The tree itself: states, the messages each allows, what they cause, and all paths through it.

A message is a few words and then one closing tag, which is its action and ends the turn; so no
message is the beginning of another, and a policy is one distribution over the next word for every
(state, words said so far in this turn).  When to stop is the policy's choice, so the number of
turns varies.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


@dataclass(frozen=True)
class Outcome:
    """One thing a message may cause."""

    probability: float = 1.0
    next_state: str | None = None
    """None: the episode is over."""
    observation: str = ""
    """What the agent reads before its next turn; '' when the episode is over."""
    reward: float = 0.0
    """Outcome reward; 0 unless the episode is over."""
    success: bool = False
    turn_reward: float = 0.0
    """Step reward of the turn that ended like this; not part of `reward`."""


class Response(NamedTuple):
    """A message that a state allows."""

    state: str
    words: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def action(self) -> str:
        """The name of the closing tag."""
        return self.words[-1].removeprefix("</").removesuffix(">")


class Decision(NamedTuple):
    """A place where the policy picks a word: a state and the words of the turn so far."""

    state: str
    prefix: tuple[str, ...]
    words: tuple[str, ...]
    """The words allowed next, in the order of the tree's messages."""


class Path(NamedTuple):
    """A whole episode; `responses` are indices into `Tree.responses`, one per turn."""

    responses: tuple[int, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def chance(self) -> float:
        """Probability of what the environment draws, given what the policy says."""
        return math.prod(outcome.probability for outcome in self.outcomes)

    @property
    def reward(self) -> float:
        """Outcome reward, without step rewards."""
        return self.outcomes[-1].reward

    @property
    def success(self) -> bool:
        """Whether the episode ended well."""
        return self.outcomes[-1].success


@dataclass(frozen=True)
class Tree:
    """States by name, the first one the start; each maps its messages to their outcomes.

    Several turns may lead to one state (so trajectories can share it), but no state to itself.
    Raises ValueError naming the state and message that break these rules.
    """

    prompt: str
    states: Mapping[str, Mapping[str, tuple[Outcome, ...]]]
    evidence: frozenset[str] = frozenset()
    """States in which the agent has read what the answer needs; empty: the tree cannot tell."""

    def __post_init__(self) -> None:
        if not self.states:
            raise ValueError("a tree needs a state to start in")
        for response in self.responses:
            _check_words(response)
            _check_outcomes(response, self.states)
        said = [response[:2] for response in self.responses]
        twice = [key for key in said if said.count(key) > 1]
        if twice:
            raise ValueError(f"state {twice[0][0]!r}: {' '.join(twice[0][1])!r} stands there twice")
        for state in self.states:
            if not self.states[state]:
                raise ValueError(f"state {state!r} allows no message")
        unknown = sorted(self.evidence - set(self.states))
        if unknown:
            raise ValueError(f"evidence names {unknown[0]!r}, which is not a state")
        unreached = set(self.states) - set(self.order)
        if unreached:
            raise ValueError(f"state {sorted(unreached)[0]!r} cannot be reached from the start")

    @property
    def start(self) -> str:
        """The first state."""
        return next(iter(self.states))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """State names in the order written; the index of a state is its place here."""
        return tuple(self.states)

    @cached_property
    def responses(self) -> tuple[Response, ...]:
        """All (state, message) pairs, state by state."""
        return tuple(
            Response(state, tuple(message.split()), tuple(outcomes))
            for state, messages in self.states.items()
            for message, outcomes in messages.items()
        )

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """All places where the policy picks a word, by state, in order of appearance."""
        allowed: dict[tuple, dict[str, None]] = {}
        for response in self.responses:
            for place, word in enumerate(response.words):
                prefix = (response.state, response.words[:place])
                allowed.setdefault(prefix, {})[word] = None
        return tuple(Decision(*key, tuple(words)) for key, words in allowed.items())

    @cached_property
    def branches(self) -> tuple[tuple[int, ...], ...]:
        """For each response, the index of each of its words in the flat list of choices.

        A policy's logits stand in this order: decision by decision, word by word.
        """
        flat = [(d.state, d.prefix, word) for d in self.decisions for word in d.words]
        index = {choice: number for number, choice in enumerate(flat)}
        return tuple(
            tuple(index[r.state, r.words[:place], word] for place, word in enumerate(r.words))
            for r in self.responses
        )

    @cached_property
    def num_logits(self) -> int:
        """P: choices in all decisions together."""
        return sum(len(decision.words) for decision in self.decisions)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Reachable states, each after every state it leads to (the start is last)."""
        done: dict[str, None] = {}
        self._visit(self.start, (), done)
        return tuple(done)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Every episode, the policy's and the environment's choices both spelt out."""
        return tuple(self._paths_from(self.start))

    @property
    def max_turns(self) -> int:
        """T: turns of the longest path."""
        return max(len(path.responses) for path in self.paths)

    def _visit(self, state: str, above: tuple[str, ...], done: dict[str, None]) -> None:
        if state in above:
            raise ValueError(f"state {state!r} leads back to itself: {' > '.join(above)}")
        if state in done:
            return
        for outcomes in self.states[state].values():
            for outcome in outcomes:
                if outcome.next_state is not None:
                    self._visit(outcome.next_state, (*above, state), done)
        done[state] = None

    def _paths_from(self, state: str) -> Iterator[Path]:
        for number, response in enumerate(self.responses):
            if response.state != state:
                continue
            for outcome in response.outcomes:
                if outcome.next_state is None:
                    yield Path((number,), (outcome,))
                    continue
                for rest in self._paths_from(outcome.next_state):
                    yield Path((number, *rest.responses), (outcome, *rest.outcomes))


def _check_words(response: Response) -> None:
    *thought, tag = response.words or ("",)
    closes = [word for word in (*thought, tag) if word.startswith("</") and word.endswith(">")]
    if closes != [tag] or not response.action:
        message = " ".join(response.words)
        raise ValueError(
            f"state {response.state!r}: message {message!r} must have one closing tag, at its end"
        )


def _check_outcomes(response: Response, states: Mapping[str, object]) -> None:
    where = f"state {response.state!r}, message {' '.join(response.words)!r}"
    total = math.fsum(outcome.probability for outcome in response.outcomes)
    if not math.isclose(total, 1.0, abs_tol=1e-12):
        raise ValueError(f"{where}: probabilities of outcomes sum to {total}, not 1")
    for outcome in response.outcomes:
        if not outcome.probability > 0:
            raise ValueError(f"{where}: probability {outcome.probability} must be above 0")
        if not math.isfinite(outcome.reward + outcome.turn_reward):
            raise ValueError(f"{where}: rewards must be finite")
        over = outcome.next_state is None
        if not over and outcome.next_state not in states:
            raise ValueError(f"{where}: leads to {outcome.next_state!r}, which is not a state")
        if over == bool(outcome.observation):
            raise ValueError(f"{where}: an observation goes with a next state, and only with one")
        if not over and (outcome.reward or outcome.success):
            raise ValueError(f"{where}: has an outcome, but the episode goes on")


def search_or_guess() -> Tree:
    """Guess at once, or search first: 1 to 3 turns of 1 to 3 words, 21 episodes.

    Guessing at once is sometimes right.  A search costs 0.1 and finds the evidence more often
    after some thought (0.3 for finding it).  Evidence may be wasted by searching on.

    >>> tree = search_or_guess()
    >>> len(tree.paths), tree.max_turns, tree.num_logits
    (21, 3, 14)
    """
    found, lost = "<information> found </information>", "<information> none </information>"
    miss = Outcome(next_state="nothing", observation=lost, turn_reward=-0.1)
    right, wrong = Outcome(reward=1.0, success=True), Outcome()

    def finds(probability: float) -> tuple[Outcome, ...]:
        hit = Outcome(probability, "evidence", found, turn_reward=0.2)
        return hit, Outcome(1 - probability, "nothing", lost, turn_reward=-0.1)

    lucky = (Outcome(0.25, reward=1.0, success=True), Outcome(0.75))
    return Tree(
        prompt="<question> who </question>",
        states={
            "question": {
                "</answer>": lucky,
                "hmm </answer>": (wrong,),
                "</search>": finds(0.5),
                "hmm </search>": finds(0.8),
            },
            "evidence": {
                "</answer>": (right,),
                "hmm </answer>": (wrong,),
                "hmm hmm </answer>": (Outcome(reward=0.4),),
                "</search>": (miss,),
            },
            "nothing": {
                "</answer>": lucky,
                "hmm </answer>": (wrong,),
            },
        },
        evidence=frozenset({"evidence"}),
    )
