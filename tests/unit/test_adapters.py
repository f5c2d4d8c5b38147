"""Adapters: other people's loops play the same episodes as ours, and nothing they do goes unnamed.

The loops below are small stand-ins with the shapes of `verifiers` (earlier and later) and of verl's
agent loops; the libraries themselves are not needed.
"""

import ast
import asyncio
import inspect
import json
import random
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from play import ACTIONS, ListWorld, coin_environment, document, episode, question

from turncredit.environments import DeepResearch, DeepResearchSettings, Step, adapters
from turncredit.environments.actions import PROTOCOLS
from turncredit.environments.adapters import (
    ChatEnvironment,
    ChatEpisode,
    chat_messages,
    play_tokens,
    tool_schemas,
    trajectory_messages,
)
from turncredit.environments.adapters.chat import message_text
from turncredit.environments.judges import RuleJudge
from turncredit.environments.wording import WORDINGS
from turncredit.policies.vocabulary import Vocabulary
from turncredit.records import Trajectory, Turn

SEARCH, ANSWER = "<search> court </search>", "<answer> hague </answer>"


@dataclass(frozen=True)
class Echo:
    """Says back what it is told, `turns` times; the answer "right" wins.  Written from the protocol
    alone, so the adapters cannot rely on more."""

    turns: int = 3
    missing: bool = False
    actions: tuple[str, ...] = ("say", "answer")

    def reset(self, asked, stream: random.Random) -> "EchoEpisode":
        return EchoEpisode(self, asked)


class EchoEpisode:
    def __init__(self, environment: Echo, asked) -> None:
        self.environment, self.heard = environment, []
        self.prompt = f"say {asked.text}"
        self.success = False

    @property
    def reward(self) -> float | None:
        return None if self.environment.missing else float(self.success)

    @property
    def grounded(self) -> bool:
        return len(self.heard) > 1

    def step(self, message: str) -> Step:
        self.heard.append(message)
        if message.startswith("answer"):
            self.success = message == "answer right"
            return Step("answer", "", stop_reason="answer", correct=self.success)
        if len(self.heard) >= self.environment.turns:
            return Step("say", "", stop_reason="max_turns")
        return Step("say", f"heard {message}")


# ---- chats -------------------------------------------------------------------------------------


def test_a_chat_alternates_and_names_its_roles():
    turns = [("one", "seen"), ("two", "")]
    assert chat_messages("ask", turns, system="be kind", observation_role="tool") == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "ask"},
        {"role": "assistant", "content": "one"},
        {"role": "tool", "content": "seen"},
        {"role": "assistant", "content": "two"},
    ]


def test_a_recorded_trajectory_reads_as_the_chat_that_made_it():
    vocabulary = Vocabulary(["ask", "one", "two", "seen"])
    turns = [
        Turn(vocabulary.encode(said), (0.0,), (0.0,), vocabulary.encode(seen), "search")
        for said, seen in (("one", "seen"), ("two", ""))
    ]
    trajectory = Trajectory("q", vocabulary.encode("ask"), tuple(turns), 1.0, True, "answer")
    expected = chat_messages("ask", [("one", "seen"), ("two", "")])
    assert trajectory_messages(trajectory, vocabulary.decode) == expected


def test_a_chat_episode_is_the_episode():
    documents = [document("court", "the court sits in hague")]
    asked = question(paragraph="the court sits in hague")
    options = {"minimum_paragraph": 1}
    chat = ChatEpisode(episode(documents, asked, **options), system="be brief")
    plain = episode(documents, asked, **options)
    assert chat.messages[-1] == {"role": "user", "content": plain.prompt}
    for message in (SEARCH, "<read_chunk> court </read_chunk>"):
        replies = chat.reply({"role": "assistant", "content": message})
        assert replies == [{"role": "user", "content": plain.step(message).observation}]
        assert not chat.done and chat.stop_reason is None
    assert chat.reply(ANSWER) == []
    assert (chat.done, chat.stop_reason, chat.reward) == (True, "answer", 1.0)
    assert [m["role"] for m in chat.messages] == ["system", *["user", "assistant"] * 3]
    assert chat.messages[3]["content"].startswith("<information>")
    with pytest.raises(RuntimeError, match="the episode is over"):
        chat.reply(ANSWER)


def call(name: str = "search", arguments: object = '{"query": "court"}', identity: str = "c1"):
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("plain", "plain"),
        ({"content": "plain"}, "plain"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"content": [{"type": "image_url"}, 3, {"text": None}]}, ""),
        ({"content": None}, ""),
        ({}, ""),
        ({"content": "said", "tool_calls": []}, "said"),
        ({"content": "said", "tool_calls": [call()]}, "<search> court </search>"),
        ({"tool_calls": [call(arguments={"q": "court"})]}, "<search> court </search>"),
        ({"tool_calls": [call(), call()]}, ""),
        ({"tool_calls": [call(arguments="{")]}, ""),
        ({"tool_calls": [call(arguments="[" * 100_000)]}, ""),
        ({"tool_calls": [call(arguments='{"a": "x", "b": "y"}')]}, ""),
        ({"tool_calls": [call(arguments='{"a": 1}')]}, ""),
        ({"tool_calls": [call(name=None)]}, ""),
        ({"tool_calls": [{}]}, ""),
        ({"tool_calls": [None]}, ""),
        ({"tool_calls": "junk"}, ""),
    ],
)
def test_every_form_of_message_is_one_text(message, text):
    assert message_text(message) == text


def test_native_tool_calls_get_tool_messages():
    chat = ChatEpisode(episode([document("court")], question(), invalid_ends=False))
    reply = chat.reply({"role": "assistant", "content": None, "tool_calls": [call()]})
    assert [(m["role"], m["tool_call_id"]) for m in reply] == [("tool", "c1")]
    assert chat.steps[0].action == "search" and "court" in reply[0]["content"]
    both = [call(identity="a"), call(identity="b")]
    reply = chat.reply({"role": "assistant", "content": None, "tool_calls": both})
    assert [m["tool_call_id"] for m in reply] == ["a", "b"]  # the API wants one for each call
    assert chat.steps[1].action == "invalid"


def test_schemas_name_the_actions_and_a_call_made_from_one_acts():
    schemas = tool_schemas(coin_environment())
    assert [schema["function"]["name"] for schema in schemas] == list(ACTIONS)
    for schema in schemas:
        function = schema["function"]
        (argument,) = function["parameters"]["required"]
        text = message_text({"tool_calls": [call(function["name"], json.dumps({argument: "x"}))]})
        chat = ChatEpisode(episode([document("court")], question()))
        chat.reply(text)
        assert chat.steps[0].action == function["name"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_native_call_acts_under_the_protocol_of_the_environment(protocol, action):
    """In a JSON environment the tag it stands for would be one invalid action after the other."""
    wording = WORDINGS["deep_research" if protocol == "tags" else "deep_research_json"]
    settings = DeepResearchSettings(minimum_paragraph=1)
    world = ListWorld((document("court", "seat of the court"),))
    environment = DeepResearch(world, RuleJudge(0.0, 0.0), settings, wording=wording)
    hooks = ChatEnvironment(environment, [question()], seed=0, protocol=protocol)
    chat = ChatEpisode(environment.reset(question(), random.Random(0)), protocol=protocol)
    said = {"role": "assistant", "tool_calls": [call(action, '{"query": "the \\"court\\""}')]}
    chat.reply(said)
    assert [step.action for step in chat.steps] == [action]
    state = asyncio.run(hooks.setup_state(hooks.rows()[0]))
    asyncio.run(hooks.env_response([said], state))
    assert [step.action for step in state["episode"].steps] == [action]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
CALLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": JSON, "arguments": JSON})})
    | JSON,
    max_size=2,
)


@given(
    messages=st.lists(
        st.fixed_dictionaries(
            {"role": st.just("assistant")}, optional={"content": JSON, "tool_calls": CALLS | JSON}
        ),
        min_size=1,
        max_size=5,
    )
)
def test_no_message_raises_and_the_chat_keeps_all_of_it(messages):
    chat = ChatEpisode(episode([document("court")], question(), invalid_ends=False))
    for message in messages:
        if not chat.done:
            replies = chat.reply(message)
            assert chat.done or replies
    said = [m for m in chat.messages if m["role"] == "assistant"]
    assert said == messages[: len(chat.steps)]


# ---- the shape of verifiers --------------------------------------------------------------------


async def earlier_loop(environment: ChatEnvironment, row: dict, policy) -> dict:
    """Completion checked before and after the environment's turn; the response is a pair."""
    state = {"prompt": row["prompt"], "completion": [], "info": row["info"]}
    state = await environment.setup_state(state)
    while True:
        messages = state["prompt"] + state["completion"]
        if await environment.is_completed(messages, state):
            return state
        state["completion"].append({"role": "assistant", "content": policy(messages)})
        messages = state["prompt"] + state["completion"]
        if await environment.is_completed(messages, state):
            return state
        replies, state = await environment.env_response(messages, state)
        state["completion"] += replies


async def later_loop(environment: ChatEnvironment, row: dict, policy) -> dict:
    """The environment's turn comes first and says by a key of the state that it was the last."""
    state = {"prompt": row["prompt"], "completion": [], "info": row["info"]}
    state = await environment.setup_state(state)
    while state.get("final_env_response") is None:
        if state["completion"]:
            messages = state["prompt"] + state["completion"]
            state["completion"] += await environment.env_response(messages, state)
            if state.get("final_env_response") is not None:
                break
        said = policy(state["prompt"] + state["completion"])
        state["completion"].append({"role": "assistant", "content": said})
    return state


LOOPS = {True: earlier_loop, False: later_loop}


def says(*script: str):
    return lambda messages: script[sum(m["role"] == "assistant" for m in messages)]


@pytest.mark.parametrize("returns_state", LOOPS)
@pytest.mark.parametrize(
    ("script", "reward", "stop"),
    [
        (("a", "answer right"), 1.0, "answer"),
        (("answer wrong",), 0.0, "answer"),
        (("a", "b", "c"), 0.0, "max_turns"),
    ],
)
def test_both_loops_of_verifiers_play_the_same_episode(returns_state, script, reward, stop):
    environment = ChatEnvironment(Echo(), [question()], seed=0, returns_state=returns_state)
    (row,) = environment.rows()
    assert row == {
        "prompt": [{"role": "user", "content": "say seat of court"}],
        "answer": "hague",
        "info": {"question_id": "q"},
    }
    state = asyncio.run(LOOPS[returns_state](environment, row, says(*script)))
    chat = state["episode"]
    assert chat.episode.heard == list(script)  # each message acted once, however often asked
    assert (environment.reward(state), chat.stop_reason) == (reward, stop)
    expected = chat_messages("say seat of court", [])
    for number, message in enumerate(script):
        expected.append({"role": "assistant", "content": message})
        if number < len(script) - 1:
            expected.append({"role": "user", "content": f"heard {message}"})
    assert state["prompt"] + state["completion"] == expected == chat.messages


def test_rollouts_side_by_side_keep_their_episodes_apart():
    environment = ChatEnvironment(Echo(turns=9), [question()], seed=0)
    (row,) = environment.rows()
    scripts = [[f"{name}"] * 5 + ["answer right" if name % 2 else "no"] * 9 for name in range(6)]

    async def play_all() -> list[dict]:
        return await asyncio.gather(
            *(earlier_loop(environment, row, says(*script)) for script in scripts)
        )

    for number, state in enumerate(asyncio.run(play_all())):
        assert set(state["episode"].episode.heard[:5]) == {str(number)}
        assert environment.reward(state) == float(number % 2)


def test_rollouts_of_one_question_have_streams_of_their_own_and_are_repeatable():
    class Dice(Echo):
        def reset(self, asked, stream):
            made = EchoEpisode(self, asked)
            made.drawn = stream.random()
            return made

    def drawn(seed: int) -> list[float]:
        environment = ChatEnvironment(Dice(), [question()], seed=seed)
        states = [{"info": {"question_id": "q"}} for _ in range(4)]
        for state in states:
            asyncio.run(environment.setup_state(state))
        return [state["episode"].episode.drawn for state in states]

    assert len(set(drawn(0))) == 4 and drawn(0) == drawn(0) != drawn(1)


def test_a_missing_reward_stays_missing_and_strangers_are_refused():
    environment = ChatEnvironment(Echo(missing=True), [question()], seed=0)
    state = asyncio.run(earlier_loop(environment, environment.rows()[0], says("answer right")))
    assert environment.reward(state) is None
    with pytest.raises(KeyError, match="stranger"):
        asyncio.run(environment.setup_state({"info": {"question_id": "stranger"}}))
    with pytest.raises(ValueError, match="1 question ids come twice"):
        ChatEnvironment(Echo(), [question(), question()], seed=0)


def test_a_prompt_drawn_by_chance_is_refused():
    environment = ChatEnvironment(coin_environment(), [question()], seed=0)
    row = environment.rows()[0]
    state = {"prompt": row["prompt"], "info": row["info"]}
    with pytest.raises(ValueError, match="question q: the prompt is"):
        for _ in range(9):
            asyncio.run(environment.setup_state(dict(state)))


# ---- the shape of verl's agent loops -----------------------------------------------------------

WORDS = Vocabulary("say seat of court a b c d heard answer right wrong x y".split())


class Server:
    """What verl gives an agent loop: plays a script, keeps what it was asked."""

    def __init__(self, *script: object, logprobs: bool = True) -> None:
        self.script, self.logprobs, self.asked = list(script), logprobs, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.asked.append((request_id, list(prompt_ids), sampling_params))
        output = self.script[len(self.asked) - 1]
        if isinstance(output, Exception):
            raise output
        if not isinstance(output, str):
            return output
        await asyncio.sleep(0)
        ids = list(WORDS.encode(output))
        logprobs = [-0.5 * (n + 1) for n in range(len(ids))] if self.logprobs else None
        return SimpleNamespace(token_ids=ids, log_probs=logprobs, stop_reason="completed")


def play(server, environment=None, **options):
    made = (environment or Echo()).reset(question(), random.Random(0))
    options = {"response_length": 100, "sampling_params": {"temperature": 1.0}} | options
    options = {"encode": WORDS.encode, "decode": WORDS.decode} | options
    return asyncio.run(play_tokens(made, server, **options)), made


def test_tokens_of_an_episode_written_out_by_hand():
    server = Server("a b", "c", "answer right")
    record, made = play(server, Echo(turns=5), request_id="r7")
    assert made.heard == ["a b", "c", "answer right"]
    assert WORDS.decode(record.prompt_ids) == "say seat of court"
    assert WORDS.decode(record.response_ids) == "a b heard a b c heard c answer right"
    assert record.response_mask == [1, 1, 0, 0, 0, 1, 0, 0, 1, 1]
    assert record.response_logprobs == [-0.5, -1.0, 0, 0, 0, -0.5, 0, 0, -0.5, -1.0]
    assert record.turn_spans == [(0, 2), (5, 6), (8, 10)]
    assert record.actions == ["say", "say", "answer"]
    assert (record.stop_reason, record.reward, record.success) == ("answer", 1.0, True)
    assert record.grounded is True and record.error == ""
    assert json.loads(json.dumps(record.extra_fields())) == {
        "turn_spans": [[0, 2], [5, 6], [8, 10]],
        "actions": ["say", "say", "answer"],
        "stop_reason": "answer",
        "error": "",
        "success": True,
        "grounded": True,
    }
    assert {request for request, _, _ in server.asked} == {"r7"}
    assert all(params == {"temperature": 1.0} for _, _, params in server.asked)
    for (_, prompt, _), (start, _) in zip(server.asked, record.turn_spans, strict=True):
        assert prompt == record.prompt_ids + record.response_ids[:start]


MESSAGES = st.lists(st.sampled_from("a b c d x y".split()), min_size=1, max_size=4).map(" ".join)


@given(script=st.lists(MESSAGES, min_size=1, max_size=6), limit=st.integers(1, 40))
def test_laws_of_any_token_episode(script, limit):
    server = Server(*script, "answer right")
    record, made = play(server, Echo(turns=99), response_length=limit)
    length = len(record.response_ids)
    assert length == len(record.response_mask) == len(record.response_logprobs) <= limit
    sampled = {position for span in record.turn_spans for position in range(*span)}
    assert sampled == {n for n, bit in enumerate(record.response_mask) if bit}
    assert len(record.actions) == len(record.turn_spans) == len(server.asked)
    assert all(start < end for start, end in record.turn_spans)
    assert all(value == 0 for n, value in enumerate(record.response_logprobs) if n not in sampled)
    # what was trained on is what the engine was fed and said
    for (_, prompt, _), (start, end), said in zip(
        server.asked, record.turn_spans, server.script, strict=False
    ):
        assert prompt == record.prompt_ids + record.response_ids[:start]
        assert record.response_ids[start:end] == list(WORDS.encode(said))[: end - start]
    if record.stop_reason == "answer":
        assert record.reward == 1.0 and len(made.heard) == len(script) + 1
    else:
        assert record.stop_reason == "max_tokens" and record.reward == 0.0
        assert record.response_mask[-1] == 1  # nothing follows an observation: none was appended


def test_sampled_ids_are_never_encoded_again():
    """A tokeniser whose decoding loses information: the record holds what was sampled."""
    ids = [3, 1, 3]
    output = SimpleNamespace(token_ids=ids, log_probs=[-1.0] * 3)
    record, made = play(Server(output, "answer right"), decode=lambda _: "answer right")
    assert record.response_ids == ids and made.heard == ["answer right"]


def test_a_message_longer_than_the_room_is_cut_and_not_acted_on():
    record, made = play(Server("a b c d"), response_length=3)
    assert made.heard == [] and record.actions == ["unfinished"]
    assert WORDS.decode(record.response_ids) == "a b c" and record.turn_spans == [(0, 3)]
    assert (record.stop_reason, record.reward, record.grounded) == ("max_tokens", 0.0, None)


def test_an_observation_that_does_not_fit_is_not_read():
    record, made = play(Server("a", "b"), response_length=4)
    # 'a' 'heard a' 'b' fill the room; 'heard b' would ground the episode, but nobody reads it
    assert made.heard == ["a", "b"] and made.grounded
    assert record.response_mask == [1, 0, 0, 1]
    assert (record.stop_reason, record.grounded) == ("max_tokens", False)


def test_an_observation_that_leaves_no_room_to_speak_is_not_appended():
    server = Server("a")
    record, _ = play(server, response_length=3)  # 'a' and 'heard a' are 3 tokens
    assert record.response_mask == [1] and record.turn_spans == [(0, 1)]
    assert (record.stop_reason, record.actions, len(server.asked)) == ("max_tokens", ["say"], 1)


def test_an_answer_that_just_fits_counts():
    record, _ = play(Server("answer right"), response_length=2)
    assert (record.stop_reason, record.reward) == ("answer", 1.0)


def test_empty_observations_keep_turns_apart():
    class Silent(EchoEpisode):
        def step(self, message):
            step = super().step(message)
            return Step(step.action, "", step.stop_reason, step.correct)

    made = Silent(Echo(), question())
    server = Server("a", "b", "answer right")
    record = asyncio.run(
        play_tokens(
            made,
            server,
            encode=WORDS.encode,
            decode=WORDS.decode,
            sampling_params={},
            response_length=9,
        )
    )
    assert record.response_mask == [1, 1, 1, 1] and record.turn_spans == [(0, 1), (1, 2), (2, 4)]


def test_a_chat_template_may_stand_around_prompt_and_observations():
    record, _ = play(
        Server("a", "answer right"),
        prompt_ids=[5, 6],
        encode_observation=lambda text: [13, *WORDS.encode(text), 13],
    )
    assert record.prompt_ids == [5, 6]
    assert record.response_ids[1:5] == [13, *WORDS.encode("heard a"), 13]
    assert record.response_mask == [1, 0, 0, 0, 0, 1, 1]


def output(ids: object, logprobs: object = None) -> SimpleNamespace:
    return SimpleNamespace(token_ids=ids, log_probs=logprobs)


@pytest.mark.parametrize(
    ("broken", "reason", "named"),
    [
        (RuntimeError("dead"), "engine_error", "RuntimeError: dead"),
        (ConnectionError("gone"), "engine_error", "ConnectionError: gone"),
        (TimeoutError("slow"), "engine_timeout", "slow"),
        (None, "engine_junk", "token_ids"),
        (output([]), "engine_junk", "token ids []"),
        (output([1, -1]), "engine_junk", "-1"),
        (output([1.5]), "engine_junk", "float"),
        (output("ab"), "engine_junk", "str"),
        (output(None), "engine_junk", "NoneType"),
        (output([10**6]), "engine_junk", "1000000"),
        (output([1, 2], [-1.0]), "engine_junk", "1 log-probs for 2 tokens"),
        (output([1], [float("nan")]), "engine_junk", "not finite"),
        (output([1], [1.0]), "engine_junk", "above 0"),
        (output([1], [None]), "engine_junk", "NoneType"),
    ],
)
def test_an_engine_that_fails_is_named_and_its_reward_is_missing(broken, reason, named):
    record, made = play(Server("a", broken))
    assert (record.stop_reason, record.reward) == (reason, None)
    assert named in record.error and made.heard == ["a"]
    assert record.turn_spans == [(0, 1)] and record.response_mask == [1, 0, 0]
    assert record.extra_fields()["error"] == record.error


def test_an_engine_without_the_method_is_an_engine_error():
    record, _ = play(SimpleNamespace(generate=lambda **_: 1 / 0))
    assert record.stop_reason == "engine_error" and "ZeroDivisionError" in record.error


def test_an_engine_that_hangs_ends_at_the_deadline():
    class Hanging(Server):
        async def generate(self, *arguments, **options):
            await asyncio.sleep(60)

    record, _ = play(Hanging(), deadline=0.02)
    assert (record.stop_reason, record.reward) == ("engine_timeout", None)
    assert "0.02" in record.error


def test_cancelling_goes_through():
    class Hanging(Server):
        async def generate(self, *arguments, **options):
            await asyncio.sleep(60)

    async def cancel() -> None:
        made = Echo().reset(question(), random.Random(0))
        task = asyncio.ensure_future(
            play_tokens(
                made,
                Hanging(),
                encode=WORDS.encode,
                decode=WORDS.decode,
                sampling_params={},
                response_length=9,
            )
        )
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_log_probs_are_all_there_or_none():
    record, _ = play(Server("a", "answer right", logprobs=False))
    assert record.response_logprobs is None and record.response_mask == [1, 0, 0, 1, 1]
    mixed = output(list(WORDS.encode("a")))
    record, _ = play(Server(mixed, "answer right"))
    assert record.response_logprobs is None


def test_a_missing_gold_answer_and_no_room_are_told_apart():
    record, _ = play(Server("answer right"), Echo(missing=True))
    assert (record.stop_reason, record.reward) == ("answer", None)
    with pytest.raises(ValueError, match="response_length = 0"):
        play(Server("a"), response_length=0)


def test_request_ids_differ_between_episodes():
    servers = [Server("answer right") for _ in range(3)]
    for server in servers:
        play(server)
    assert len({server.asked[0][0] for server in servers}) == 3


def test_adapters_import_the_protocol_and_no_engine():
    """Of environments only the protocols; of other people's libraries nothing."""
    allowed = tuple(
        f"turncredit.environments.{name}" for name in ("protocol", "actions", "adapters")
    )
    for module in (adapters.chat, adapters.tokens):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in ("verl", "verifiers", "torch", "openai"), name
                if name.startswith("turncredit.environments"):
                    assert name.startswith(allowed), name
