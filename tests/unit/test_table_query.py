"""Tables that are asked by queries: what works, what fails and how, and which turn was wrong."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from play import global_streams

from turncredit.answers import words
from turncredit.demonstrations import DemonstrationSettings, demonstrate
from turncredit.environments import TableQuery, TableQuerySettings
from turncredit.environments.reading import evidence, holds
from turncredit.environments.table_query import ERRORS, run_call
from turncredit.environments.wrappers import FailingTools
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.table_demonstrations import message, query
from turncredit.tasks import open_task
from turncredit.worlds.tables import KINDS, QUANTITIES, RELATIONS, Table, TableWorld

MANY = 2000
WORLD = TableWorld(things=12, places=8)
QUESTIONS = WORLD.train_questions(MANY, random.Random(5))
TABLE = Table(
    "boats",
    {"cost": "number", "base": "text"},
    {"bano": {"cost": "17", "base": "belburg"}, "zola": {"cost": "9", "base": ""}},
)
CAREFUL = DemonstrationSettings(guess_first=0.0, error=0.0, quit=0.0, verify=1.0, patience=3)
CARELESS = replace(CAREFUL, error=0.4, verify=0.3, quit=0.1)


def environment(**changes) -> TableQuery:
    return TableQuery(WORLD, replace(TableQuerySettings(max_turns=20, **changes)))


def known(given: TableQuery):
    return tag_vocabulary(given.actions, [*given.words, *WORLD.words])


def near(share: float, expected: float) -> bool:
    return abs(share - expected) < 5 * (expected * (1 - expected) / MANY) ** 0.5


# --- the world


def test_questions_are_a_function_of_the_stream_alone_and_the_held_out_ones_are_fixed():
    before = global_streams()
    assert WORLD.train_questions(9, random.Random(1))[:5] == WORLD.train_questions(
        5, random.Random(1)
    )
    assert WORLD.evaluation_questions(4) == WORLD.evaluation_questions(7)[:4]
    assert WORLD.evaluation_questions(4) != WORLD.evaluation_questions(4, seed=1)
    assert not {q.id for q in QUESTIONS} & {q.id for q in WORLD.evaluation_questions(500)}
    assert global_streams() == before


def test_the_shares_are_those_asked_for():
    assert near(sum(q.answers[0] == q.guess for q in QUESTIONS) / MANY, WORLD.prior)
    assert near(sum(not q.hops[-1].paragraph for q in QUESTIONS) / MANY, WORLD.unsolvable_share)
    assert near(sum(len(q.hops) == 1 for q in QUESTIONS) / MANY, WORLD.one_hop_share)
    asked = [set(q.text.split()) & {*QUANTITIES, *RELATIONS} for q in QUESTIONS]
    pairs = zip(QUESTIONS, asked, strict=True)
    renamed = [n not in WORLD.table(q).columns for q, names in pairs for n in names]
    assert near(sum(renamed) / len(renamed), WORLD.renamed_share)


def test_the_hops_lead_to_the_answer_through_queries_of_the_table():
    for asked in QUESTIONS[:300]:
        table = WORLD.table(asked)
        for hop in asked.hops:
            result = run_call(table, "query", query(hop, table.columns))
            assert result.error is None
            assert hop.paragraph in (result.text, "")
        assert asked.hops[-1].value == asked.answers[0]
        assert bool(asked.hops[-1].paragraph) == (not result.text.endswith(" none"))


def test_questions_tables_and_results_hold_known_words_only():
    given = environment()
    vocabulary = set(known(given).entries)
    for asked in QUESTIONS[:200]:
        table = WORLD.table(asked)
        texts = [
            asked.text,
            asked.guess,
            *asked.answers,
            run_call(table, "schema", table.name).text,
        ]
        texts += [f"{row} {' '.join(cells.values())}" for row, cells in table.rows.items()]
        assert set(words(" ".join(texts))) <= vocabulary
    assert set(WORLD.names) <= set(WORLD.words)
    assert len(set(WORLD.words)) == len(WORLD.words)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"rows": 1}, "rows"), ({"rows": 99}, "rows"), ({"places": 7}, "places"), ({"prior": 2}, "p")],
)
def test_impossible_worlds_are_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named):
        TableWorld(**changes)


# --- the tools


@pytest.mark.parametrize(
    ("action", "argument", "text", "error"),
    [
        ("schema", "boats", "columns cost number base text", None),
        ("schema", "farms", "error table", "table"),
        ("schema", "the boats now", "error table", "table"),
        ("query", "get cost bano", "bano cost 17", None),
        ("query", "get base zola", "zola base none", None),
        ("query", "max cost", "max cost bano", None),
        ("query", "min cost", "min cost zola", None),
        ("query", "max base", "error type base text", "type"),
        ("query", "get base felo", "error row felo", "row"),
        ("query", "max price", "error column price columns cost number base text", "column"),
        ("query", "get price felo", "error column price columns cost number base text", "column"),
        ("query", "get base", "error syntax", "syntax"),
        ("query", "max", "error syntax", "syntax"),
        ("query", "max max cost", "error syntax", "syntax"),
        ("query", "bano", "error syntax", "syntax"),
        ("query", "...", "error syntax", "syntax"),
    ],
)
def test_every_call_says_what_it_should(action, argument, text, error):
    assert run_call(TABLE, action, argument) == (text, error)


def test_numbers_are_compared_as_numbers():
    """As texts "9" is above "17"."""
    assert run_call(TABLE, "query", "max cost").text.endswith("bano")


def test_an_episode_names_the_error_counts_it_and_goes_on():
    given = environment()
    asked = QUESTIONS[0]
    episode = given.reset(asked, random.Random(0))
    step = episode.step("<query> get </query>")
    assert (step.action, step.error, step.stop_reason) == ("query", "syntax", None)
    assert step.observation == "<information> error syntax </information>"
    assert episode.step(f"<schema> {asked.text.split()[-1]} </schema>").error is None
    assert given.failures == {"call_syntax": 1}
    assert episode.step("<query> get").error is None, "no tool was asked"


@pytest.mark.parametrize("listed", [True, False])
def test_the_error_lists_the_columns_where_it_is_told_to(listed):
    asked = QUESTIONS[0]
    episode = environment(error_lists_columns=listed).reset(asked, random.Random(0))
    said = episode.step("<query> max answer </query>").observation
    assert said.startswith("<information> error column answer")
    assert all((name in said) == listed for name in WORLD.table(asked).columns)


# --- taking a failed step back


def test_a_step_that_was_taken_back_has_never_been():
    """With any number of failures taken back before each turn, everything else stays the same."""
    wrong = ["<query> get </query>", "<query> max fair </query>", "<schema> nothing </schema>"]
    for seed, asked in enumerate(QUESTIONS[:40]):
        stream = random.Random(seed)
        plain, other = (environment().reset(asked, random.Random(0)) for _ in range(2))
        table = WORLD.table(asked)
        right = [message(hop, query(hop, table.columns)) for hop in asked.hops]
        for said in [*right, f"<answer> {asked.answers[0]} </answer>"]:
            for _ in range(stream.randint(0, 3)):
                assert other.step(stream.choice(wrong)).error is not None
                other.take_back()
            assert other.step(said) == plain.step(said)
            facts = [
                (e.oracle_turn, e.turn_labels, e.grounded, e.reward, e.success)
                for e in (plain, other)
            ]
            assert facts[0] == facts[1]


def test_a_failure_that_was_injected_is_taken_back_as_well():
    asked = next(q for q in QUESTIONS if len(q.hops) == 1 and q.hops[0].paragraph)
    failing = FailingTools(environment(), rate=0.5)
    said = message(asked.hops[0], query(asked.hops[0], WORLD.table(asked).columns))
    tries = set()
    for seed in range(20):
        episode = failing.reset(asked, random.Random(seed))
        count = 1
        while (step := episode.step(said)).error is not None:
            assert step.error == "injected"
            episode.take_back()
            count += 1
        tries.add(count)
        assert (episode._turns, episode.episode._turns, episode.oracle_turn) == (1, 1, -1)
        episode.step(f"<answer> {asked.answers[0]} </answer>")
        assert (episode.oracle_turn, episode.grounded, episode.reward) == (-1, True, 1.0)
    assert len(tries) > 2, "some had to be tried often"


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_an_episode_is_taken_up_again_with_its_oracle_and_what_was_taken_back(rate):
    """Restored in an episode of another question, which goes on as the original does."""
    given = FailingTools(environment(invalid_ends=False), rate=rate)
    labels = set()
    for seed, asked in enumerate(QUESTIONS[:60]):
        stream = random.Random(seed)
        said = [message(hop, query(hop, WORLD.table(asked).columns)) for hop in asked.hops]
        said += ["<query> get </query>", f"<schema> {words(asked.text)[-1]} </schema>", "hm"]
        said += ["<query> max cost </query>", *said, f"<answer> {asked.answers[0]} </answer>"]
        original = given.reset(asked, random.Random(seed))
        play(original, stream, said, 3)
        other = given.reset(QUESTIONS[-1 - seed], random.Random(seed + 1))
        play(other, random.Random(seed), said, 2)
        snapshot, went_on = original.snapshot(), stream.getstate()
        heard = play(original, stream, said, 5)
        original.restore(given.reset(QUESTIONS[-1 - seed], random.Random(0)).snapshot())
        stream.setstate(went_on)
        other.restore(snapshot)
        assert play(other, stream, said, 5) == heard
        labels |= {*other.turn_labels}
    assert labels >= {"right", "wrong"}


def play(episode, stream, said, count: int) -> list:
    """What some messages get, half of those that fail being taken back, and what was true then."""
    heard = []
    for _ in range(count):
        step = episode.step(stream.choice(said))
        undone = step.error is not None and stream.random() < 0.5
        if undone:
            episode.take_back()
        heard.append((step, undone, episode.oracle_turn, episode.turn_labels, episode.grounded))
        if step.stop_reason is not None:
            break
    return heard


# --- the first wrong turn


def oracle_turn(asked, *messages: str) -> int:
    episode = environment(invalid_ends=False).reset(asked, random.Random(0))
    for said in messages:
        episode.step(said)
    return episode.oracle_turn


def solvable(hops: int):
    return next(
        q
        for q in QUESTIONS
        if len(q.hops) == hops and q.hops[-1].paragraph and q.answers[0] != q.guess
    )


def test_the_first_wrong_turn_by_hand():
    asked = solvable(2)
    table = WORLD.table(asked)
    first, second = (message(hop, query(hop, table.columns)) for hop in asked.hops)
    schema, answer = f"<schema> {table.name} </schema>", f"<answer> {asked.answers[0]} </answer>"
    other = f"<answer> {asked.guess} </answer>"
    assert oracle_turn(asked, schema, first, second, answer) == -1
    assert oracle_turn(asked, first, schema, second, answer) == -1
    assert oracle_turn(asked, first, second, schema) == 2, "nothing is left to be found"
    assert oracle_turn(asked, schema, schema) == 1
    assert oracle_turn(asked, second) == 0, "a lucky guess of the row"
    assert oracle_turn(asked, first, first) == 1
    assert oracle_turn(asked, answer) == 0
    assert oracle_turn(asked, first, second, other) == 2
    assert oracle_turn(asked, "<query> get </query>", first, second, answer) == 0
    assert oracle_turn(asked, first, f"<query> max {next(iter(RELATIONS))} </query>") == 1
    assert oracle_turn(asked, schema, "<query> max cost") == 1, "malformed"


def test_where_the_cell_is_empty_only_a_guess_can_win_and_nothing_is_wrong_from_there():
    asked = next(q for q in QUESTIONS if len(q.hops) == 2 and not q.hops[-1].paragraph)
    table = WORLD.table(asked)
    first = message(asked.hops[0], query(asked.hops[0], table.columns))
    assert oracle_turn(asked, first, "<query> get </query>", "<answer> x </answer>") == -1
    assert oracle_turn(asked, "<query> get </query>", first) == 0


# --- demonstrations


def shown(settings, seed, given, **options):
    stream = random.Random(seed)
    parts = (given, known(given), QUESTIONS[seed], WORLD.names, settings, stream)
    return demonstrate(*parts, **{"max_tokens": 400} | options)


def test_careful_demonstrations_never_fail_and_are_right_wherever_the_table_knows():
    given = environment()
    for seed, asked in enumerate(QUESTIONS[:60]):
        trajectory = shown(CAREFUL, seed, given)
        assert [turn.action for turn in trajectory.turns][:2] == ["schema", "query"]
        assert trajectory.oracle_turn == -1
        assert trajectory.grounded == bool(asked.hops[-1].paragraph)
        assert trajectory.success or not trajectory.grounded
    assert given.failures == {}


def test_careless_demonstrations_meet_every_error_and_mostly_recover():
    given = environment()
    played = [shown(CARELESS, seed, given) for seed in range(300)]
    assert {f"call_{error}" for error in ERRORS} - given.failures.keys() == {"call_table"}
    assert min(given.failures.values()) >= 5
    assert {t.stop_reason for t in played} == {"answer"}
    assert all(turn.action != "invalid" for t in played for turn in t.turns)
    failed = [t for t in played if t.oracle_turn != -1]
    assert len(failed) > 100
    assert sum(t.success for t in failed) / len(failed) > 0.5
    assert Counter(t.success for t in played if t.oracle_turn == -1)[True] > 50


def test_what_is_shown_as_evidence_stands_in_the_tokens():
    given = environment()
    for seed, asked in enumerate(QUESTIONS[:40]):
        for cap in (20, 45, 90):
            cut = shown(CARELESS, seed, given, max_tokens=cap)
            assert len(cut.token_ids) <= cap
            texts = [known(given).decode(turn.observation_ids) for turn in cut.turns]
            stated = any(holds(text, evidence(asked.hops[-1])) for text in texts)
            assert cut.grounded == stated


# --- tasks


@pytest.mark.parametrize("tier", ["smoke", "cpu"])
def test_the_task_opens_and_its_demonstrations_fit(tier):
    task = open_task(tier, "table_query")
    played = task.demonstrations(0)(0)
    assert any(turn.action == "query" for t in played for turn in t.turns)
    assert all(t.stop_reason == "answer" for t in played), "max_tokens is wide enough"
    longest = max(len(turn.sampled_ids) for t in played for turn in t.turns)
    assert longest <= task.settings.training.max_turn_tokens
    assert set(task.world.names) <= set(task.vocabulary.entries)
    assert {asked.text.split()[-1] for asked in task.world.evaluation_questions(99)} == set(KINDS)


@pytest.mark.parametrize(
    "changes",
    [
        {"world": {"kind": "synthetic"} | {"prior": 0.5, "unsolvable_share": 0.0, "miss_rate": 0.0,
         "hard_share": 0.0, "hard_miss_rate": 0.0, "films": 20, "people": 20, "cities": 8}},
        {"environment": {"kind": "search_r1", "max_turns": 4, "search_results": 2,
         "passage": "<doc> {title} {text}", "observation_characters": 500, "invalid_ends": True,
         "invalid_penalty": 0.0, "best_paragraph": False}},
        {"withheld_share": 0.2},
    ],
    ids=["world", "environment", "withheld"],
)  # fmt: skip
def test_tables_go_with_their_tools_alone(changes):
    with pytest.raises(ValueError, match=r"table_query\.yaml: .*tables"):
        open_task("smoke", "table_query", changes)
