"""Scripted research: every message valid, every outcome as meant, no number unseeded."""

import random
from dataclasses import replace

import pytest
from play import (
    ACTIONS,
    RESEARCH,
    SMALL,
    global_streams,
    questions,
    synthetic_environment,
    vocabulary,
)

from turncredit.answers import stands_in
from turncredit.demonstrations import demonstrate, research
from turncredit.environments import SearchR1, SearchR1Settings
from turncredit.environments.wording import WORDINGS
from turncredit.policies.vocabulary import tag_vocabulary

WORDS = vocabulary()
PERFECT = replace(RESEARCH, guess_first=0.0, error=0.0, quit=0.0, verify=1.0, patience=50)


def shown(settings, seed, *, asked=None, environment=None, max_tokens=200):
    stream = random.Random(seed)
    asked = asked or questions(1, seed)[0]
    environment = environment or synthetic_environment()
    return demonstrate(environment, WORDS, asked, SMALL.names, settings, stream, max_tokens)


def test_every_message_is_a_valid_action_and_the_last_one_answers():
    for seed in range(60):
        trajectory = shown(RESEARCH, seed, environment=synthetic_environment(max_turns=99))
        actions = [turn.action for turn in trajectory.turns]
        assert set(actions) <= set(ACTIONS)
        if trajectory.stop_reason == "answer":
            assert actions.count("answer") == 1
            assert actions[-1] == "answer"


def test_perfect_research_searches_reads_verifies_and_answers_right():
    solvable = [q for q in questions(20) if q.hops[-1].paragraph]
    for asked in solvable:
        trajectory = shown(PERFECT, 1, asked=asked, environment=synthetic_environment(max_turns=99))
        actions = [turn.action for turn in trajectory.turns]
        assert [a for a in actions if a != "search"] == ["read_chunk"] * 2 + [
            "external_verify",
            "answer",
        ]
        assert actions[0] == "search"
        assert (trajectory.success, trajectory.grounded, trajectory.reward) == (True, True, 1.0)


def test_an_unsolvable_question_ends_with_the_guess():
    asked = next(q for q in questions(40) if not q.hops[-1].paragraph)
    trajectory = shown(replace(PERFECT, patience=3), 1, asked=asked, max_tokens=999)
    assert WORDS.decode(trajectory.turns[-1].sampled_ids) == f"<answer> {asked.guess} </answer>"
    assert not trajectory.grounded


def test_guessing_first_opens_with_the_popular_answer():
    for seed in range(10):
        trajectory = shown(replace(RESEARCH, guess_first=1.0), seed)
        guess = questions(1, seed)[0].guess
        opening = WORDS.decode(trajectory.turns[0].sampled_ids)
        assert opening == f"<external_verify> {guess} </external_verify>"


@pytest.mark.parametrize("tools", [ACTIONS, ("search", "answer")])
def test_a_script_that_is_never_stopped_still_ends_with_an_answer(tools):
    for seed in range(30):
        stream = random.Random(seed)
        script = research(questions(1, seed)[0], SMALL.names, RESEARCH, stream, tools)
        messages = [next(script)]
        with pytest.raises(StopIteration):
            while len(messages) < 500:
                messages.append(script.send("<information> none </information>"))
        assert messages[-1].startswith("<answer>")


def test_without_read_chunk_and_verifier_it_reads_what_a_search_shows_and_answers():
    settings = SearchR1Settings(max_turns=99, passage="<doc> {title} {text}")
    environment = SearchR1(SMALL, settings, wording=WORDINGS["tiny"])
    known = tag_vocabulary(environment.actions, [*environment.words, *SMALL.words])
    for asked in (q for q in questions(20) if q.hops[-1].paragraph):
        stream = random.Random(1)
        shown = demonstrate(environment, known, asked, SMALL.names, PERFECT, stream, 9999)
        assert {turn.action for turn in shown.turns} == {"search", "answer"}
        assert (shown.success, shown.grounded) == (True, True)
        guessing = replace(RESEARCH, guess_first=1.0)
        guessed = demonstrate(environment, known, asked, SMALL.names, guessing, stream, 9999)
        assert [turn.action for turn in guessed.turns] == ["answer"]


def test_a_demonstration_is_a_function_of_its_stream_alone():
    before = global_streams()
    assert [shown(RESEARCH, seed) for seed in range(5)] == [
        shown(RESEARCH, seed) for seed in range(5)
    ]
    assert shown(RESEARCH, 1, asked=questions(1)[0]) != shown(RESEARCH, 2, asked=questions(1)[0])
    assert global_streams() == before


def test_a_demonstration_holds_to_the_cap_on_tokens_and_claims_only_what_it_holds():
    """Whatever the cap: success needs the answer, grounding needs the paragraph, in its tokens."""
    for seed in range(12):
        asked = questions(1, seed)[0]
        for cap in range(12, 90, 3):
            cut = shown(RESEARCH, seed, asked=asked, max_tokens=cap)
            assert len(cut.token_ids) <= cap
            answered = bool(cut.turns) and cut.turns[-1].action == "answer"
            assert (cut.stop_reason == "answer") == answered
            assert cut.success <= answered, f"seed {seed}, cap {cap}: success without an answer"
            assert cut.reward == float(cut.success)
            evidence = asked.hops[-1].paragraph
            read = any(stands_in(evidence, WORDS.decode(t.observation_ids)) for t in cut.turns)
            assert cut.grounded == (bool(evidence) and read), f"seed {seed}, cap {cap}"
