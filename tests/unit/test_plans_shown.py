"""Demonstrations with a plan in the prompt: it comes first, and without one nothing changes."""

import random
from dataclasses import replace

import pytest
from play import RESEARCH, SMALL, questions, synthetic_environment, vocabulary

from turncredit import paths
from turncredit.demonstrations import DemonstrationSettings, Following, demonstrate
from turncredit.environments import TableQuery, TableQuerySettings
from turncredit.expert_actions import expert_log
from turncredit.plans_shown import plans_shown, with_plan
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.tasks import open_task, task_values
from turncredit.worlds.tables import TableWorld

WORDS = vocabulary()
HOPELESS = replace(RESEARCH, guess_first=1.0, error=1.0, quit=1.0, patience=9)
"""Does everything wrong that can be done wrong, unless told what to do."""
TABLES = TableQuery(
    TableWorld(things=20, places=8, unsolvable_share=0.0, prior=0.0), TableQuerySettings()
)
TABLE_WORDS = tag_vocabulary(TABLES.actions, [*TABLES.words, *TABLES.world.words])


def shown(asked, plan, *, settings=HOPELESS, environment=None, words=WORDS, names=SMALL.names):
    """The messages of a demonstration, and the demonstration."""
    environment = environment or synthetic_environment(max_turns=40)
    stream = random.Random(asked.id)
    prompted = with_plan(environment, asked, plan)
    found = demonstrate(prompted, words, asked, names, settings, stream, 999, plan=plan)
    return [words.decode(turn.sampled_ids) for turn in found.turns], found


def solvable(count=12):
    return [question for question in questions(count) if question.hops[-1].paragraph]


def test_the_actions_of_a_plan_come_first_in_order_and_only_misses_are_repeated():
    environment = synthetic_environment(max_turns=40)
    for asked in solvable():
        plan = expert_log(environment, asked, 0).actions
        for told in range(1, len(plan) + 1):
            said, _ = shown(asked, plan[:told])
            until = said.index(plan[told - 1]) + 1
            assert tuple(dict.fromkeys(said[:until])) == plan[:told]


def test_who_follows_the_whole_plan_answers_right_whatever_its_habits():
    environment = synthetic_environment(max_turns=40)
    quiet = replace(HOPELESS, verify=0.0)
    for asked in solvable():
        plan = expert_log(environment, asked, 0).actions
        assert shown(asked, plan, settings=quiet)[1].success
        assert not shown(asked, plan[:2], settings=quiet)[1].grounded, "then it is left to itself"


def test_the_plan_is_in_the_prompt_and_the_answer_is_not():
    environment = synthetic_environment(max_turns=40)
    for asked in solvable():
        plan = expert_log(environment, asked, 0).actions
        _, told = shown(asked, plan)
        _, alone = shown(asked, ())
        assert told.prompt_ids == alone.prompt_ids + WORDS.encode(" ".join(plan))
        assert not set(asked.answers) & set(" ".join(plan).split())


def test_at_tables_the_columns_are_looked_at_first_and_the_queries_are_the_plans():
    hopeless = replace(HOPELESS, verify=0.0)
    parts = {"environment": TABLES, "words": TABLE_WORDS, "names": TABLES.world.names}
    for asked in TABLES.world.train_questions(12, random.Random(0)):
        plan = expert_log(TABLES, asked, 0).actions
        said, found = shown(asked, plan, settings=hopeless, **parts)
        assert tuple(said[:-1]) == plan and found.success
        assert not shown(asked, (), settings=hopeless, **parts)[1].success


def test_without_a_plan_the_settings_are_those_of_the_script():
    manner = Following(HOPELESS, ())
    names = ("guess_first", "error", "quit", "verify", "patience")
    assert [getattr(manner, n) for n in names] == [getattr(HOPELESS, n) for n in names]
    careful = Following(HOPELESS, ("a", "b", "c"))
    assert (careful.guess_first, careful.error, careful.quit, careful.verify) == (0, 0, 0, 1)
    careful.did("b")
    assert careful.left == ("c",)
    careful.did("elsewhere")
    assert careful.left == ("c",)
    careful.did("c")
    assert careful.error == HOPELESS.error


def test_a_share_of_the_questions_gets_a_plan_of_every_length():
    environment, asked = synthetic_environment(max_turns=40), solvable(40)
    assert plans_shown(environment, asked, 0.0, seed=0, step=0) == [()] * len(asked)
    for share in (0.5, 1.0):
        found = [
            plan for step in range(20) for plan in plans_shown(environment, asked, share, 0, step)
        ]
        told = [len(plan) for plan in found if plan]
        assert abs(len(told) / len(found) - share) < 0.08
        assert {1, 2, 3, 4} <= set(told) and max(map(told.count, set(told))) < len(told)
    again = [plans_shown(environment, asked, 0.5, seed=0, step=s) for s in (3, 3, 4)]
    assert again[0] == again[1] != again[2]


def test_a_question_that_the_expert_cannot_solve_has_no_plan():
    lost = [question for question in questions(60) if not question.hops[-1].paragraph]
    assert lost and plans_shown(synthetic_environment(), lost, 1.0, 0, 0) == [()] * len(lost)


@pytest.mark.parametrize("task", ["informative_guess", "table_query", "household"])
def test_until_the_first_plan_demonstrations_are_those_without_any(task):
    """Whether to show a plan moves no random number of the script."""
    plain = open_task("smoke", task).demonstrations(0)
    mixed = open_task("smoke", task, {"demonstrations": {"planned": 0.1}}).demonstrations(0)
    lengths = []
    for step in range(6):
        pairs = list(zip(plain(step), mixed(step), strict=True))
        told = [n for n, (one, other) in enumerate(pairs) if one.prompt_ids != other.prompt_ids]
        lengths.append(min(told, default=len(pairs)))
        assert all(one == other for one, other in pairs[: lengths[-1]])
        assert all(len(pairs[n][1].prompt_ids) > len(pairs[n][0].prompt_ids) for n in told[:1])
    assert sum(lengths) > 0
    assert (sum(lengths) < 6 * len(pairs)) == (task != "household"), "chores have no expert here"


@pytest.mark.parametrize("tier", ["smoke", "cpu", "gpu"])
def test_only_the_tasks_of_guidance_show_plans(tier):
    """Whether the task says so or the one that it extends; language models need to see none."""
    names = [path.stem for path in (paths.params(tier) / "tasks").glob("*.yaml")]
    shares = {name: task_values(tier, name)["demonstrations"].get("planned", 0.0) for name in names}
    guided = set() if tier == "gpu" else {"detours_allowed", "no_detours"}
    assert {name for name, share in shares.items() if share} == guided


def test_a_share_outside_of_0_to_1_is_refused():
    with pytest.raises(ValueError, match=r"planned = 1\.5"):
        DemonstrationSettings(0.0, 0.0, 0.0, 0.0, patience=3, planned=1.5)
