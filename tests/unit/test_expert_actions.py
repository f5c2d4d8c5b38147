"""Action logs of scripted experts: what is in them, by name on disk, and by task."""

import random
from dataclasses import replace

import pytest
import yaml
from arms import home_with_task
from play import ListWorld, document, question, questions, synthetic_environment, vocabulary

from turncredit import action_logs, paths, tasks
from turncredit.environments import (
    DeepResearch,
    DeepResearchSettings,
    TableQuery,
    TableQuerySettings,
)
from turncredit.environments.judges import RuleJudge
from turncredit.environments.wrappers import FailingTools
from turncredit.expert_actions import ActionLog, expert_log, log_path, read_log, write_log
from turncredit.seeding import python_stream
from turncredit.worlds.tables import TableWorld

TWO = [ActionLog("a", ("<search> são tomé </search>", "<read_chunk> x \u2028 y </read_chunk>"))]
TWO.append(ActionLog("b", ()))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path))
    return tmp_path


def test_the_calls_of_an_expert_follow_the_hops_and_each_stands_once():
    """A search misses one time in four here, so that many are repeated."""
    environment = synthetic_environment(max_turns=12)
    solved = 0
    for asked in questions(30):
        log = expert_log(environment, asked, 0)
        calls = [
            call
            for hop in asked.hops
            for call in (
                f"<search> {hop.title} </search>",
                f"<read_chunk> {hop.title} {hop.relation} </read_chunk>",
            )
        ]
        assert log.actions == (tuple(calls) if asked.hops[-1].paragraph else ())
        solved += bool(log.actions)
    assert solved > 10


def test_an_expert_repeats_itself_and_another_environment_stream_does_not_matter_to_it():
    environment, (asked,) = synthetic_environment(max_turns=12), questions(1)
    assert expert_log(environment, asked, 3) == expert_log(environment, asked, 3)


def test_who_has_no_time_for_the_answer_or_tells_no_hops_has_no_actions():
    (asked,) = questions(1)
    assert expert_log(synthetic_environment(max_turns=4), asked, 0).actions == ()
    assert expert_log(synthetic_environment(), replace(asked, hops=()), 0).actions == ()


def test_tools_that_an_environment_lacks_are_not_called():
    paragraph = "court seat hague"
    world = ListWorld((document("court", paragraph),))
    settings = replace(DeepResearchSettings(), header="{title} {text}", minimum_paragraph=1)
    environment = DeepResearch(world, RuleJudge(0.0, 0.0), settings, actions=("search", "answer"))
    log = expert_log(environment, question(paragraph=paragraph), 0)
    assert log.actions == ("<search> court seat </search>",)


def test_an_expert_at_tables_looks_first_and_its_failed_calls_are_left_out():
    world = TableWorld(things=6, places=8, rows=3, unsolvable_share=0.0, renamed_share=1.0)
    tables = TableQuery(world, TableQuerySettings(max_turns=20))
    for asked in world.train_questions(20, random.Random(0)):
        careful = expert_log(tables, asked, 0).actions
        assert "<schema>" in careful[0] and len(careful) == len(asked.hops) + 1
        for actions in (careful, expert_log(FailingTools(tables, rate=0.4), asked, 0).actions):
            episode = tables.reset(asked, random.Random(0))
            assert [episode.step(action).error for action in actions] == [None] * len(actions)
            assert episode.grounded and asked.answers[0] not in " ".join(actions).split()


# --- on disk


def test_a_log_is_read_as_it_was_written_with_equal_bytes(cache):
    path = write_log("mine", TWO)
    assert path == log_path("mine") == cache / "action_logs" / "mine.jsonl"
    first = path.read_bytes()
    assert read_log("mine") == {"a": TWO[0], "b": TWO[1]}
    write_log("mine", read_log("mine").values())
    assert path.read_bytes() == first
    assert len(first.decode("utf-8").split("\n")) == 3, "one line for each question"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not an action log"),
        pytest.param("[" * 100_000, "not an action log", id="deep"),
        ("[]", "needs question_id and actions, and nothing else"),
        ('{"question_id": "q"}', "needs question_id and actions"),
        ('{"question_id": "q", "actions": [], "x": 1}', "and nothing else"),
        ('{"question_id": 3, "actions": []}', "question_id is a text and actions a list"),
        ('{"question_id": "q", "actions": "search"}', "actions a list"),
        ('{"question_id": "q", "actions": [3]}', "3 is no message"),
        ('{"question_id": "q", "actions": [" "]}', "' ' is no message"),
        ('{"question_id": "a", "actions": []}', "question a comes twice"),
    ],
)
def test_broken_lines_are_named_by_file_and_number(cache, line, said):
    path = write_log("mine", TWO[:1])
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"mine\.jsonl, line 2: .*{said}"):
        read_log("mine")


def test_the_last_line_of_a_log_from_elsewhere_counts_without_a_newline(cache):
    path = write_log("mine", TWO)
    text = path.read_text(encoding="utf-8").rstrip("\n")
    path.write_text(text, encoding="utf-8")
    assert list(read_log("mine")) == ["a", "b"]
    path.write_text(text[:-5], encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.jsonl, line 2: not an action log"):
        read_log("mine")


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe{}"])
def test_what_is_no_log_at_all_is_named_and_guides_nobody_in_silence(cache, content):
    write_log("mine", TWO).write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.jsonl: .*action log"):
        read_log("mine")


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden"])
def test_a_name_is_no_path(cache, name):
    with pytest.raises(ValueError, match="is not the name of a file"):
        log_path(name)


def test_a_log_that_is_not_there_says_how_to_write_one(cache):
    with pytest.raises(ValueError, match=r"absent\.jsonl: no such action log; write it with"):
        read_log("absent")


# --- of a task


def test_a_tasks_log_holds_the_questions_that_its_runs_ask(tmp_path, monkeypatch):
    home_with_task(tmp_path, monkeypatch)
    path = paths.params("smoke") / "tasks" / "tiny.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["environment"]["max_turns"] = 12
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    written = action_logs.main(["smoke", "tiny", "--seeds", "0", "1", "--name", "tiny-experts"])
    logs = read_log("tiny-experts")
    assert written == log_path("tiny-experts")
    task = tasks.open_task("smoke", "tiny")
    training = task.settings.training
    asked = {
        q.id: q
        for seed in (0, 1)
        for step in range(training.steps)
        for q in task.world.train_questions(
            training.questions_per_step, python_stream(seed, "questions", step)
        )
    }
    assert list(logs) == list(asked)
    assert any(log.actions for log in logs.values())
    assert action_logs.log_task("smoke", "tiny", [0]).name == "smoke-tiny.jsonl"
    getattr(tasks.open_task, "cache_clear", lambda: None)()


def test_every_word_of_a_log_is_one_that_a_tiny_policy_knows():
    environment = synthetic_environment(max_turns=12)
    for asked in questions(20):
        for action in expert_log(environment, asked, 0).actions:
            assert vocabulary().encode(action)
