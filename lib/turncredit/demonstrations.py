"""A scripted researcher with tunable errors, whose trajectories a warm start imitates."""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from turncredit.answers import stands_in
from turncredit.environments.oracle import oracle_turn, turn_labels
from turncredit.environments.protocol import Environment, Step
from turncredit.household_demonstrations import tidy
from turncredit.params import require_positive, require_shares
from turncredit.policies.protocol import Tokens
from turncredit.records import Trajectory, Turn
from turncredit.table_demonstrations import consult
from turncredit.worlds.base import Hop, Question


@dataclass(frozen=True)
class DemonstrationSettings:
    """How the scripted researcher behaves; all but `patience` are probabilities.

    What they mean for chores is told by `household_demonstrations.tidy`.
    """

    guess_first: float
    """Opens by putting the popular answer to the verifier instead of searching."""
    error: float
    """Per turn: first does something useless, such as looking up a random name."""
    quit: float
    """Per turn after the first: gives up and answers with the popular answer."""
    verify: float
    """Puts what was found to the verifier before answering; at tables, looks at the columns before
    the first query."""
    patience: int
    """Tries at one step of the plan before giving up."""
    planned: float = 0.0
    """Prompt ends with the first actions of an expert, as `actguide` puts them there, which are
    then done without a slip; see `Following` and `plans_shown`."""

    def __post_init__(self) -> None:
        require_shares(self, "guess_first", "error", "quit", "verify", "planned")
        require_positive(self, "patience")


Script = Generator[str, str, None]
"""Yields messages, receives observations."""


@dataclass
class Following:
    """Stands for the settings of a script that has a plan before it.

    As long as actions of the plan are left it neither guesses, slips nor quits, and looks at the
    columns of a table first, as the expert does; afterwards it is as the settings say.
    """

    settings: DemonstrationSettings
    left: Sequence[str]
    """Actions of the plan that are still to be done, in order."""

    def did(self, message: str) -> None:
        """An action of the plan is done, and with it those before it."""
        if message in self.left:
            self.left = self.left[self.left.index(message) + 1 :]

    @property
    def guess_first(self) -> float:
        """Never while the plan lasts."""
        return 0.0 if self.left else self.settings.guess_first

    @property
    def error(self) -> float:
        """Never while the plan lasts."""
        return 0.0 if self.left else self.settings.error

    @property
    def quit(self) -> float:
        """Never while the plan lasts."""
        return 0.0 if self.left else self.settings.quit

    @property
    def verify(self) -> float:
        """Always while the plan lasts."""
        return 1.0 if self.left else self.settings.verify

    @property
    def patience(self) -> int:
        """As the settings say."""
        return self.settings.patience


def demonstrate(
    environment: Environment,
    vocabulary: Tokens,
    question: Question,
    names: Sequence[str],
    settings: DemonstrationSettings,
    stream: random.Random,
    max_tokens: int,
    *,
    plan: Sequence[str] = (),
) -> Trajectory:
    """One scripted trajectory of at most `max_tokens` tokens; `names` are what errors look up.

    plan: actions that the environment's prompt tells; they are done first, see `Following`.
    Log-probs and entropies are recorded as 0: no policy sampled these tokens.
    """
    episode = environment.reset(question, stream)
    prompt_ids = vocabulary.encode_prompt(episode.prompt)
    turns: list[Turn] = []
    length = len(prompt_ids)
    manner = Following(settings, plan)
    script = script_of(question, names, manner, stream, environment.actions)
    message = next(script)
    while True:
        grounded = episode.grounded
        result = episode.step(message)
        manner.did(message)
        turn = _scripted_turn(vocabulary, message, result)
        length += len(turn.sampled_ids) + len(turn.observation_ids)
        if length > max_tokens:  # the trajectory ends before this turn
            end = (0.0, False, "max_tokens", grounded)
            truth = [about(episode, len(turns)) for about in (oracle_turn, turn_labels)]
            return Trajectory(question.id, prompt_ids, tuple(turns), *end, *truth)
        turns.append(turn)
        if result.stop_reason:
            return Trajectory(
                question.id,
                prompt_ids,
                tuple(turns),
                episode.reward,
                episode.success,
                result.stop_reason,
                episode.grounded,
                oracle_turn(episode, len(turns)),
                turn_labels(episode, len(turns)),
            )
        message = script.send(result.observation)


def _scripted_turn(vocabulary: Tokens, message: str, result: Step) -> Turn:
    sampled = vocabulary.encode(message)
    observed = () if result.stop_reason else vocabulary.encode(result.observation)
    zeros = (0.0,) * len(sampled)
    return Turn(sampled, zeros, zeros, observed, result.action, result.correct)


def script_of(
    question: Question,
    names: Sequence[str],
    settings: DemonstrationSettings | Following,
    stream: random.Random,
    actions: Sequence[str],
) -> Script:
    """The script for an environment with these actions: searching, asking tables or chores."""
    if "action" in actions:
        return tidy(question, settings, stream)
    if "query" in actions:
        return consult(question, names, settings, stream)
    return research(question, names, settings, stream, actions)


def research(
    question: Question,
    names: Sequence[str],
    settings: DemonstrationSettings | Following,
    stream: random.Random,
    actions: Sequence[str],
) -> Script:
    """Follow the hops one by one, then answer; ends with an answer whatever happens.

    Uses the tools among `actions`: without read_chunk it reads what a search shows, and without
    external_verify it hands in a guess at once.
    """
    verifies = "external_verify" in actions
    if stream.random() < settings.guess_first:
        if verifies:
            verdict = yield f"<external_verify> {question.guess} </external_verify>"
        if not verifies or stands_in("correct", verdict):
            yield f"<answer> {question.guess} </answer>"
    for number, hop in enumerate(question.hops):
        found = yield from _follow(hop, names, settings, stream, actions, first=number == 0)
        if not found:
            yield f"<answer> {question.guess} </answer>"
    conclusion = question.hops[-1].value
    if stream.random() < settings.verify and verifies:
        yield f"<external_verify> {conclusion} </external_verify>"
    yield f"<answer> {conclusion} </answer>"


def _follow(
    hop: Hop,
    names: Sequence[str],
    settings: DemonstrationSettings | Following,
    stream: random.Random,
    actions: Sequence[str],
    *,
    first: bool,
) -> Generator[str, str, bool]:
    """Search for the hop's document and read its paragraph; False when patience runs out.

    Where nothing can be read but what a search shows, the search asks for the paragraph too.
    """
    reads = "read_chunk" in actions
    query = hop.title if reads else f"{hop.title} {hop.relation}"
    for attempt in range(settings.patience):
        if (attempt > 0 or not first) and stream.random() < settings.quit:
            return False
        if stream.random() < settings.error:
            yield _slip(hop, names, stream, actions)
        seen = yield f"<search> {query} </search>"
        if stands_in(hop.title, seen) and reads:
            seen = yield f"<read_chunk> {hop.title} {hop.relation} </read_chunk>"
        if stands_in(hop.paragraph, seen):
            return True
    return False


def _slip(hop: Hop, names: Sequence[str], stream: random.Random, actions: Sequence[str]) -> str:
    name = stream.choice(names)
    slips = [f"<search> {name} </search>"]
    if "read_chunk" in actions:
        slips.append(f"<read_chunk> {name} {hop.relation} </read_chunk>")
    return stream.choice(slips)
