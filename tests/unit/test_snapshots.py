"""An episode taken up again answers every continuation as the original, its streams included."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from play import SMALL, questions, synthetic_environment

from turncredit.environments import SearchR1, SearchR1Settings
from turncredit.environments.toy_tree import ToyTree, search_or_guess
from turncredit.environments.wrappers import (
    FailingTools,
    FlippedOutcomes,
    GarbledObservations,
)

BARE = synthetic_environment(max_turns=6, invalid_ends=False, invalid_penalty=0.25)
SHORT = SearchR1(SMALL, SearchR1Settings(search_results=2, max_turns=5, invalid_penalty=0.25))
ENVIRONMENTS = {
    "deep_research": BARE,
    "search_r1": SHORT,
    "toy_tree": ToyTree(search_or_guess()),
    "failing tools": FailingTools(BARE, 0.4),
    "garbled observations": GarbledObservations(BARE, 0.2, 0.3),
    "flipped outcomes": FlippedOutcomes(SHORT, 0.5),
    "all of them": FlippedOutcomes(GarbledObservations(FailingTools(BARE, 0.4), 0.2, 0.3), 0.5),
}
QUESTION = questions(1)[0]
NAMES = ("film", "person", "answer", "nobody")


def message(kind: str, about: str) -> str:
    """What a policy may say: to a tool about a name of the question, or nonsense."""
    film, person = (hop.title for hop in QUESTION.hops)
    name = {"film": film, "person": person, "answer": QUESTION.answers[0], "nobody": "xyz"}[about]
    return {"tree": "hmm </search>", "junk": f"<search> {name}"}.get(
        kind, f"<{kind}> {name} {QUESTION.hops[-1].relation * (kind == 'read_chunk')} </{kind}>"
    )


KINDS = ("search", "search", "read_chunk", "external_verify", "answer", "tree", "junk")
SCRIPTS = st.lists(st.builds(message, st.sampled_from(KINDS), st.sampled_from(NAMES)), max_size=6)


def shown(episode) -> tuple:
    """All that an episode says of itself."""
    known = (episode.reward, episode.success, episode.grounded)
    return (*known, getattr(episode, "oracle_turn", None), episode.stream.getstate())


def play(episode, script) -> list:
    """What it answers, message by message, until it is over, and what it is then."""
    heard = []
    for text in script:
        heard.append((episode.step(text), shown(episode)))
        if heard[-1][0].stop_reason:
            break
    return heard


@pytest.mark.parametrize("name", ENVIRONMENTS)
@given(before=SCRIPTS, after=SCRIPTS, elsewhere=SCRIPTS, seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_restored_episode_answers_every_continuation_like_the_original(
    name, before, after, elsewhere, seed
):
    environment = ENVIRONMENTS[name]
    original = environment.reset(QUESTION, random.Random(seed))
    if any(step.stop_reason for step, _ in play(original, before)):
        return
    snapshot, now = original.snapshot(), shown(original)
    other = environment.reset(questions(2, 7)[1], random.Random(seed + 1))
    play(other, elsewhere)
    for _ in range(2):
        other.restore(snapshot)
        assert shown(other) == now
        restored = play(other, after)
        assert shown(original) == now, "the original has not noticed"
    assert play(original, after) == restored
    original.restore(snapshot)
    assert play(original, after) == restored, "an episode that is over can be taken back too"


@pytest.mark.parametrize("name", ENVIRONMENTS)
@given(before=SCRIPTS, after=SCRIPTS, seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_another_stream_decides_all_that_has_not_shown_yet(name, before, after, seed):
    environment = ENVIRONMENTS[name]
    fresh = environment.reset(QUESTION, random.Random(seed))
    started = environment.reset(QUESTION, random.Random(seed + 1))
    start = started.snapshot()
    play(started, before)
    started.restore(start, random.Random(seed))
    assert play(started, [*before, *after]) == play(fresh, [*before, *after])


def test_the_scripts_reach_what_a_snapshot_has_to_hold():
    """Guards the tests above: sections read, noise drawn, a flip, an oracle that found a fault."""
    script = [message("search", "film"), message("read_chunk", "film")]
    script += [message("search", "person"), message("external_verify", "answer")]
    for name, environment in ENVIRONMENTS.items():
        if name == "toy_tree":
            continue
        heard = [
            play(
                environment.reset(QUESTION, random.Random(seed)), [*script, message("answer", end)]
            )
            for seed in range(30)
            for end in ("answer", "nobody")
        ]
        assert len({repr([step for step, _ in one]) for one in heard}) > 5, name
        assert {one[-1][1][1] for one in heard} == {True, False}, name
        assert len({one[-1][1][0] for one in heard}) > 1, name


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_other_streams_give_other_continuations(name):
    """A stream that is given but not used would repeat the recorded luck in every continuation."""
    environment = ENVIRONMENTS[name]
    episode = environment.reset(QUESTION, random.Random(3))
    start = episode.snapshot()
    said = "hmm </search>" if name == "toy_tree" else message("search", "film")
    endings = set()
    for seed in range(40):
        episode.restore(start, random.Random(seed))
        endings.add(repr((episode.step(said), episode.reward)))
    assert len(endings) > 1
