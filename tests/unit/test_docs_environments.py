"""docs/environments.md says what the code does: its messages, tables and examples are run."""

import ast
import asyncio
import dataclasses
import random
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

from turncredit import paths
from turncredit.environments import (
    WORDINGS,
    DeepResearchSettings,
    HouseholdSettings,
    SearchR1Settings,
    TableQuerySettings,
)
from turncredit.environments.actions import PROTOCOLS, parse_action
from turncredit.environments.wrappers import Disturbances
from turncredit.worlds.difficulty import DIFFICULTIES

TEXT = (paths.PACKAGE.parents[1] / "docs" / "environments.md").read_text(encoding="utf-8")
ACTIONS = ("search", "read_chunk", "external_verify", "answer")
ROW = re.compile(r"^\| (.+?) \| (.+?) \|(?: (.+) \|)?$", re.MULTILINE)


def part_of(title: str) -> str:
    """The text below the heading `## title`."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def rows(text: str) -> list[tuple[str, ...]]:
    """The table rows that start with code, first two cells without their back-ticks."""
    found = [row.groups("") for row in ROW.finditer(text)]
    return [(a.strip("`"), b.strip("`"), c) for a, b, c in found if a.startswith("`")]


MESSAGES = [
    (protocol, message, action)
    for protocol in PROTOCOLS
    for message, action, _ in rows(
        part_of("Messages and actions").split("Under the protocol ")[1 + PROTOCOLS.index(protocol)]
    )
]


@pytest.mark.parametrize(("protocol", "message", "action"), MESSAGES)
def test_every_message_is_what_the_page_says(protocol, message, action):
    assert parse_action(message, ACTIONS, protocol=protocol)[0] == action


def test_the_page_shows_accepted_and_refused_messages_of_both_protocols():
    shown = {(protocol, action == "invalid") for protocol, _, action in MESSAGES}
    assert shown == {(protocol, refused) for protocol in PROTOCOLS for refused in (True, False)}
    assert len(MESSAGES) > 20


@pytest.mark.parametrize(
    "settings", [DeepResearchSettings, SearchR1Settings, TableQuerySettings, HouseholdSettings]
)
def test_settings_and_defaults_are_those_of_the_code(settings):
    written = {
        name: ast.literal_eval(value)
        for name, value, meaning in rows(part_of(settings.KIND))
        if meaning
    }
    assert written == dataclasses.asdict(settings())


def test_names_are_those_of_the_code():
    reasons = [reason for reason, *_ in rows(part_of("Stop reasons"))]
    assert len(set(reasons)) == len(reasons) == 9
    code = "".join(path.read_text(encoding="utf-8") for path in paths.PACKAGE.rglob("*.py"))
    assert all(f'"{reason}"' in code for reason in reasons)
    wordings = part_of("Wordings").split("ready ones are")[1].split(".")[0]
    assert set(re.findall(r"`(\w+)`", wordings)) == set(WORDINGS)
    probabilities = {name for name, value in vars(Disturbances()).items() if value == 0.0}
    assert {name for name, *_ in rows(part_of("Disturbances"))} == probabilities
    assert [name for name, *_ in rows(part_of("Difficulty bins"))] == list(DIFFICULTIES)


def test_links_lead_somewhere():
    titles = re.findall(r"^## (.+)$", TEXT, flags=re.MULTILINE)
    anchors = {title.lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) == anchors


# --- the examples


class MultiTurnEnv:
    """Stands for the class of the same name in `verifiers`."""

    def __init__(self, *, dataset, rubric) -> None:
        self.dataset, self.rubric = dataset, rubric


@pytest.fixture
def page(tmp_path, monkeypatch):
    """What the examples of the page define, after running them in a fresh folder."""
    verifiers, datasets = ModuleType("verifiers"), ModuleType("datasets")
    verifiers.MultiTurnEnv = MultiTurnEnv
    verifiers.Rubric = lambda funcs: funcs
    datasets.Dataset = SimpleNamespace(from_list=list)
    monkeypatch.setitem(sys.modules, "verifiers", verifiers)
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"^```python\n(.+?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/environments.md", "exec"), names)
    return SimpleNamespace(**names)


def test_adapter_examples_are_short():
    blocks = re.findall(r"^```python\n(.+?)^```$", part_of("Adapters"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        assert sum(bool(line.strip()) for line in block.splitlines()) <= 18


def test_the_chat_example_plays_an_episode(page):
    right = page.question.answers[0]
    texts = iter(["<search> banaria </search>", f"<answer> {right} </answer>"])

    def create(*, model, messages, tools):
        assert model == "some" and messages[-1]["role"] == "user" and len(tools) == 4
        message = {"role": "assistant", "content": next(texts)}
        dumped = SimpleNamespace(model_dump=lambda exclude_none: message)
        return SimpleNamespace(choices=[SimpleNamespace(message=dumped)])

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    chat = page.play(client, "some", page.environment, page.question)
    assert (chat.stop_reason, chat.reward) == ("answer", 1.0)


def test_the_verifiers_example_plays_an_episode(page):
    (row,) = page.research.dataset
    (reward,) = page.research.rubric

    async def played():
        state = await page.research.setup_state({"info": row["info"], "prompt": row["prompt"]})
        said = {"role": "assistant", "content": f"<answer> {row['answer']} </answer>"}
        assert await page.research.env_response([*row["prompt"], said], state) == []
        return state

    state = asyncio.run(played())
    assert reward(state) == 1.0 and state["final_env_response"] == []


def test_the_verl_example_plays_an_episode(page):
    class Server:
        async def generate(self, request_id, *, prompt_ids, sampling_params):
            assert sampling_params["temperature"] == 1.0
            assert "</answer>" in sampling_params["stop"]
            said = f"<answer> {page.question.answers[0]} </answer>"
            return SimpleNamespace(token_ids=[ord(sign) for sign in said], log_probs=None)

    tokenizer = SimpleNamespace(
        encode=lambda text: [ord(sign) for sign in text],
        decode=lambda ids: "".join(map(chr, ids)),
    )
    episode = page.environment.reset(page.question, random.Random(0))
    record = asyncio.run(page.run(Server(), tokenizer, episode, {"temperature": 1.0}))
    assert (record.stop_reason, record.reward) == ("answer", 1.0)


def test_the_viewer_example_writes_a_page(page, tmp_path):
    assert "One trajectory" in (tmp_path / "trajectory.html").read_text(encoding="utf-8")
