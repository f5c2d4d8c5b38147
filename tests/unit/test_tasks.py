"""Tasks: a params file that no task can be made of is refused by file and key, before any work."""

from dataclasses import replace

import pytest
import yaml

from turncredit import params, paths
from turncredit.environments.wording import WORDINGS
from turncredit.tasks import TaskSettings, open_task, task_values

FILES = paths.PACKAGE.parents[1] / "params" / "smoke" / "tasks"
SEARCH = {
    "kind": "search_r1",
    "max_turns": 4,
    "search_results": 2,
    "passage": "<doc> {title} {text}",
    "best_paragraph": False,
    "observation_characters": 500,
    "invalid_ends": False,
    "invalid_penalty": 0.0,
}


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens a task made of a committed file, changed by (section, key) or by top-level key."""
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    folder = tmp_path / "params" / "smoke" / "tasks"
    folder.mkdir(parents=True)

    def at(source: str, changes: dict):
        values = params.read_yaml(FILES / f"{source}.yaml") | {"warm_start_task": "changed"}
        for key, value in changes.items():
            section, _, name = key.partition(".")
            if name:
                values[section][name] = value
            else:
                values[key] = value
        (folder / "changed.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        return open_task("smoke", "changed")

    return at


@pytest.mark.parametrize(
    ("source", "changes", "named"),
    [
        ("factbook", {"world.hops": []}, "hops"),
        ("factbook", {"world.hops": [9]}, "hops"),
        ("factbook", {"world.attributes": []}, "attributes"),
        ("factbook", {"world.attributes": ["capital", "anthem"]}, "anthem"),
        ("factbook", {"world.max_per_final": 0}, "max_per_final"),
        ("factbook", {"world.miss_rate": 1.5}, "miss_rate"),
        ("factbook", {"evaluation.questions": 10**6}, "evaluation.questions: 1000000 eval"),
        ("factbook", {"world.kind": "fact_book"}, "world.kind"),
        ("costly_guess", {"environment.kind": "deepresearch"}, "environment.kind"),
        ("costly_guess", {"judge": {"kind": "oracle"}}, "judge.kind"),
        ("costly_guess", {"judge": {"knowledge": 0.3, "noise": 0.0}}, "judge.kind"),
        ("costly_guess", {"withheld_share": 2.0}, "withheld_share"),
        ("costly_guess", {"disturbances.tool_failure": 1.5}, "tool_failure"),
        ("costly_guess", {"disturbances.word_drop": -0.1}, "word_drop"),
        ("costly_guess", {"disturbances.outcome_flip": "often"}, "outcome_flip"),
        ("costly_guess", {"disturbances.tool_error": "..."}, "tool_error"),
        ("costly_guess", {"environment.header": "{name}"}, "header"),
        ("costly_guess", {"warm_start_task": "elsewhere"}, "warm_start_task"),
        ("costly_guess", {"wording": "shakespeare"}, "wording"),
    ],
)
def test_what_no_task_can_be_made_of_is_one_sentence_with_file_and_key(
    opened, source, changes, named
):
    with pytest.raises(ValueError, match=named) as refused:
        opened(source, changes)
    assert "changed.yaml: " in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_task_that_extends_another_says_only_what_differs(opened, tmp_path):
    task = opened("costly_guess", {})
    folder = tmp_path / "params" / "smoke" / "tasks"
    (folder / "harder.yaml").write_text("extends: changed\nworld:\n  prior: 0.1\n")
    (folder / "hardest.yaml").write_text("extends: harder\njudge:\n  noise: 0.2\n")
    hardest = open_task("smoke", "hardest", {"training": {"steps": 3}})
    world, judge = hardest.settings.world, hardest.settings.judge
    assert (world.prior, judge.noise, hardest.settings.training.steps) == (0.1, 0.2, 3)
    same = replace(
        hardest.settings,
        world=task.settings.world,
        judge=task.settings.judge,
        training=task.settings.training,
    )
    assert same == task.settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: b\n", "extends = 'a' is not the name of another task"),
        ("extends: a\n", "extends = 'a' is not"),
        ("extends: [b]\n", "extends = "),
        ("extends: absent\n", r"absent\.yaml: no such params file"),
        ("extends: changed\nworld:\n  pryor: 0.1\n", "unknown key 'pryor'"),
        ("extends: changed\njudge:\n  kind: local\n", r"judge: .*(missing|unknown)"),
    ],
)
def test_what_cannot_be_extended_is_one_sentence_with_its_file(opened, tmp_path, text, said):
    opened("costly_guess", {})
    folder = tmp_path / "params" / "smoke" / "tasks"
    (folder / "a.yaml").write_text(text)
    (folder / "b.yaml").write_text("extends: a\n")
    with pytest.raises(ValueError, match=said) as refused:
        open_task("smoke", "a")
    assert "\n" not in str(refused.value)
    assert ".yaml: " in str(refused.value)


def test_a_missing_key_is_named_wherever_it_is(opened, tmp_path):
    values = params.read_yaml(FILES / "costly_guess.yaml") | {"warm_start_task": "changed"}
    for section, entries in values.items():
        parts = [(section, None)]
        parts += [(section, name) for name in entries] if isinstance(entries, dict) else []
        for key, name in parts:
            changed = values | ({} if name is None else {key: dict(entries)})
            del (changed if name is None else changed[key])[key if name is None else name]
            path = tmp_path / "params" / "smoke" / "tasks" / "changed.yaml"
            path.write_text(yaml.safe_dump(changed), encoding="utf-8")
            with pytest.raises(ValueError, match=name or key) as refused:
                open_task("smoke", "changed")
            assert str(path) in str(refused.value)


@pytest.mark.parametrize("name", WORDINGS)
@pytest.mark.parametrize("kind", ["deep_research", "search_r1"])
def test_a_wording_must_tell_of_the_environments_tools_in_tags(opened, kind, name):
    """Another one would train, on nothing but invalid actions."""
    changes = {"wording": name} | ({"environment": SEARCH} if kind == "search_r1" else {})
    if name in ("tiny", kind):
        task = opened("costly_guess", changes)
        played = task.demonstrations(0)(0)
        assert all(turn.action != "invalid" for t in played for turn in t.turns)
        return
    with pytest.raises(ValueError, match=rf"changed\.yaml: wording = '{name}'.*{kind}"):
        opened("costly_guess", changes)


def test_an_unchanged_file_is_the_same_task_and_an_edited_one_another(opened):
    task = opened("costly_guess", {})
    assert opened("costly_guess", {}) is task
    assert opened("costly_guess", {"environment.max_turns": 3}) is not task


# --- chores


@pytest.mark.parametrize("tier", ["smoke", "cpu"])
def test_the_task_of_chores_has_demonstrations_that_mostly_win_in_its_own_words(tier):
    task = open_task(tier, "household")
    shown = task.demonstrations(0)(0) + task.demonstrations(0)(1)
    assert sum(one.success for one in shown) > 0.5 * len(shown)
    assert all(one.reward <= 10.0 for one in shown)
    limits = task.settings.training.max_turn_tokens, task.settings.policy.max_tokens
    assert max(len(turn.sampled_ids) for one in shown for turn in one.turns) <= limits[0]
    assert sum(one.stop_reason == "max_tokens" for one in shown) < 0.1 * len(shown)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"environment": {"terse": False}}, "environment.terse must be true"),
        ({"withheld_share": 0.1}, "withheld_share = 0.1 must be 0 for chores"),
        ({"disturbances": {"outcome_flip": 0.1}}, "disturbances.outcome_flip = 0.1 must be 0"),
        ({"warm_start": {"swap_names": 0.1}}, "warm_start.swap_names = 0.1 must be 0"),
        ({"world": {"families": []}}, "families"),
        ({"environment": {"engine": "steam"}}, "engine = 'steam' is not one of rules, alfworld"),
    ],
)
def test_chores_refuse_what_they_cannot_be_combined_with(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        open_task("smoke", "household", changes)


def test_chores_need_their_own_environment():
    values = task_values("smoke", "informative_guess")
    values |= {"world": task_values("smoke", "household")["world"]}
    values.pop("tripwires", None)
    with pytest.raises(ValueError, match="chores are done in household"):
        params.build(TaskSettings, values, "the test")


def test_chores_by_the_engine_need_its_packages(monkeypatch):
    monkeypatch.setattr(
        "turncredit.environments.alfworld.package.missing_packages", lambda: ["textworld"]
    )
    with pytest.raises(ValueError, match=r"environment.engine = 'alfworld': .*pip install"):
        open_task("smoke", "household", {"environment": {"engine": "alfworld"}})
