"""Episodes as chats: an assistant message goes in, the observation comes back as a message."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turncredit.environments.actions import Protocol
from turncredit.environments.protocol import Environment, Episode, Step
from turncredit.records import Trajectory
from turncredit.seeding import python_stream
from turncredit.worlds.base import Question

Message = dict[str, Any]
"""`role` and `content`, and what else the OpenAI chat format has."""


def chat_messages(
    prompt: str,
    turns: Iterable[tuple[str, str]],
    *,
    system: str = "",
    observation_role: str = "user",
) -> list[Message]:
    """A chat from a prompt and (policy message, observation) pairs; '' = no observation.

    >>> chat_messages("seat of court?", [("<answer> hague </answer>", "")])[1]
    {'role': 'assistant', 'content': '<answer> hague </answer>'}
    """
    messages = [_message("system", system)] if system else []
    messages.append(_message("user", prompt))
    for said, observed in turns:
        messages.append(_message("assistant", said))
        messages += [_message(observation_role, observed)] if observed else []
    return messages


def trajectory_messages(
    trajectory: Trajectory, decode: Callable[[Sequence[int]], str], **options: str
) -> list[Message]:
    """A recorded trajectory as a chat, to read or to show; options as of `chat_messages`.

    Do not train on it: encoding the texts again need not give the ids that were sampled.
    """
    turns = [(decode(turn.sampled_ids), decode(turn.observation_ids)) for turn in trajectory.turns]
    return chat_messages(decode(trajectory.prompt_ids), turns, **options)


def tool_schemas(environment: Environment) -> list[Message]:
    """The actions as OpenAI tools, each with one text `argument`."""
    argument = {"type": "object", "properties": {"argument": {"type": "string"}}}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"The action {name}.",
                "parameters": argument | {"required": ["argument"]},
            },
        }
        for name in environment.actions
    ]


def message_text(message: Message | str, *, protocol: Protocol = "tags") -> str:
    """What an assistant message says to an environment of this protocol.

    A native tool call, one with one text argument, becomes what the policy would have written for
    it.  Content in parts is joined.  Anything else is '', which every environment takes for an
    invalid action.

    >>> call = {"function": {"name": "search", "arguments": '{"argument": "chad"}'}}
    >>> message_text({"role": "assistant", "content": None, "tool_calls": [call]})
    '<search> chad </search>'
    """
    if type(message) is str:
        return message
    calls = message.get("tool_calls")
    if calls:
        return _call_text(calls, protocol)
    content = message.get("content")
    if type(content) is list:
        texts = [part.get("text") for part in content if type(part) is dict]
        return "".join(text for text in texts if type(text) is str)
    return content if type(content) is str else ""


class ChatEpisode:
    """One episode as a growing chat.

    protocol: that of the environment's wording, so that native tool calls reach it as it reads
    actions.
    """

    def __init__(
        self,
        episode: Episode,
        *,
        system: str = "",
        observation_role: str = "user",
        protocol: Protocol = "tags",
    ) -> None:
        self.episode = episode
        self.observation_role = observation_role
        self.protocol = protocol
        self.messages = chat_messages(episode.prompt, [], system=system)
        """Everything said so far; replies are added here too."""
        self.steps: list[Step] = []
        """What each assistant message caused."""

    @property
    def stop_reason(self) -> str | None:
        """Why the episode is over, None while it goes on."""
        return self.steps[-1].stop_reason if self.steps else None

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.stop_reason is not None

    @property
    def reward(self) -> float | None:
        """Outcome reward so far; None = missing, which is not 0."""
        return self.episode.reward

    def reply(self, message: Message | str) -> list[Message]:
        """Act on an assistant message: the observation as one message, or [] when it is over.

        After a native tool call the observation has role `tool` and the call's id.
        Raises RuntimeError once the episode is over.
        """
        if self.done:
            raise RuntimeError(f"the episode is over ({self.stop_reason}); it takes no message")
        self.messages.append(_message("assistant", message) if type(message) is str else message)
        step = self.episode.step(message_text(message, protocol=self.protocol))
        self.steps.append(step)
        if step.stop_reason is not None:
            return []
        replies = self._observation(message, step.observation)
        self.messages += replies
        return replies

    def _observation(self, message: Message | str, observation: str) -> list[Message]:
        """One message; of several tool calls, which are invalid together, each gets the text."""
        calls = [] if type(message) is str else message.get("tool_calls")
        if type(calls) is not list or not calls:
            return [_message(self.observation_role, observation)]
        identities = [call.get("id", "") if type(call) is dict else "" for call in calls]
        return [_message("tool", observation) | {"tool_call_id": name} for name in identities]


class ChatEnvironment:
    """The hooks that a multi-turn environment of the `verifiers` library has, over any environment.

    A subclass of `verifiers.MultiTurnEnv` hands its `setup_state`, `is_completed` (where it has
    one) and `env_response` on to these; `rows()` is its data set, `reward` its rubric's function.
    The episode lives in the rollout's `state`, so that many rollouts may be under way at once.
    returns_state: `env_response` gives (messages, state), as earlier versions of verifiers want
    it; later ones take messages alone.
    """

    def __init__(
        self,
        environment: Environment,
        questions: Sequence[Question],
        *,
        seed: int,
        system: str = "",
        observation_role: str = "user",
        protocol: Protocol = "tags",
        returns_state: bool = True,
    ) -> None:
        self.environment = environment
        self.questions = {question.id: question for question in questions}
        if len(self.questions) < len(questions):
            raise ValueError(f"{len(questions) - len(self.questions)} question ids come twice")
        self.seed = seed
        self.options = {
            "system": system,
            "observation_role": observation_role,
            "protocol": protocol,
        }
        self.returns_state = returns_state
        self._started: Counter[str] = Counter()

    def rows(self) -> list[dict[str, Any]]:
        """A row for each question: `prompt` messages, `answer`, and `info` to find it again."""
        return [
            {
                "prompt": ChatEpisode(self._reset(question, 0), **self.options).messages,
                "answer": question.answers[0] if question.answers else "",
                "info": {"question_id": question.id},
            }
            for question in self.questions.values()
        ]

    async def setup_state(self, state: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Start the episode of `state["info"]`; every rollout of a question has its own stream.

        Raises KeyError for a question that is not in the list, ValueError when the state's prompt
        is not this episode's: an environment whose prompts are drawn by chance cannot be served.
        """
        question = self.questions[state["info"]["question_id"]]
        number = self._started[question.id]
        self._started[question.id] += 1
        episode = ChatEpisode(self._reset(question, number), **self.options)
        given = state.get("prompt") or episode.messages
        if given[-1]["content"] != episode.messages[-1]["content"]:
            raise ValueError(f"question {question.id}: the prompt is {given[-1]['content']!r}")
        state["episode"], state["pending"] = episode, []
        return state

    async def is_completed(
        self, messages: Sequence[Message], state: dict[str, Any], **_: Any
    ) -> bool:
        """Whether the episode is over, after acting on what the assistant said last."""
        self._advance(messages, state)
        return state["episode"].done

    async def env_response(
        self, messages: Sequence[Message], state: dict[str, Any], **_: Any
    ) -> Any:
        """The observation of the assistant's last message; [] when the episode is over.

        Then `state["final_env_response"]` says so, the key by which later versions stop.
        """
        self._advance(messages, state)
        replies, state["pending"] = state["pending"], []
        if state["episode"].done:
            state["final_env_response"] = replies
        return (replies, state) if self.returns_state else replies

    def reward(self, state: dict[str, Any], **_: Any) -> float | None:
        """Outcome reward; None = missing.  Leave such rollouts out, do not make them 0."""
        return state["episode"].reward

    def _advance(self, messages: Sequence[Message], state: dict[str, Any]) -> None:
        """Step on the assistant messages not seen yet; asking twice does nothing more."""
        said = [message for message in messages if message.get("role") == "assistant"]
        episode = state["episode"]
        for message in said[len(episode.steps) :]:
            if not episode.done:
                state["pending"] = episode.reply(message)

    def _reset(self, question: Question, number: int) -> Episode:
        stream = python_stream(self.seed, "chat episode", question.id, number)
        return self.environment.reset(question, stream)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _call_text(calls: Any, protocol: Protocol) -> str:
    if type(calls) is not list or len(calls) != 1 or type(calls[0]) is not dict:
        return ""
    function = calls[0].get("function")
    if type(function) is not dict or type(function.get("name")) is not str:
        return ""
    arguments = function.get("arguments")
    try:
        arguments = json.loads(arguments) if type(arguments) is str else arguments
    except (ValueError, RecursionError):
        return ""
    values = list(arguments.values()) if type(arguments) is dict else []
    if len(values) != 1 or type(values[0]) is not str:
        return ""
    name, argument = function["name"], values[0]
    if protocol == "json":
        call = {"name": name, "arguments": {"argument": argument}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"
    return f"<{name}> {argument} </{name}>"
