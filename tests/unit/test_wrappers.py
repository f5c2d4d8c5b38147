"""Disturbed environments and difficulty: rates of 0 change nothing, others just what they name."""

import copy
import json
import pickle
import random
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.answers import exact_match, words
from turncredit.demonstrations import DemonstrationSettings, demonstrate
from turncredit.environments.deep_research import DeepResearch, DeepResearchSettings
from turncredit.environments.judges import RuleJudge
from turncredit.environments.search_r1 import SearchR1, SearchR1Settings
from turncredit.environments.wording import WORDINGS
from turncredit.environments.wrappers import (
    Disturbances,
    FailingTools,
    FlippedOutcomes,
    GarbledObservations,
    disturbed,
    garble,
)
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.policies.vocabulary import Vocabulary, tag_vocabulary
from turncredit.rollout import roll_out
from turncredit.worlds.base import Document, Hop, Question
from turncredit.worlds.difficulty import (
    DIFFICULTIES,
    WithheldEvidence,
    difficulty_bins,
    rank_bin,
)
from turncredit.worlds.factbook import FactbookWorld
from turncredit.worlds.synthetic import SyntheticWorld

WORLD = SyntheticWorld(films=6, people=8, cities=8)
SCALED = {"header": "<doc> {title}", "search_results": 2, "minimum_paragraph": 1, "sections": 1}
SETTINGS = DeepResearchSettings(**SCALED)
ERROR = "<information> tool error </information>"


def environment(world=WORLD, *, judge=RuleJudge(0.5, 0.1), **options) -> DeepResearch:  # noqa: B008
    return DeepResearch(world, judge, replace(SETTINGS, **options))


def questions(count: int, seed: int = 0, world=WORLD) -> list[Question]:
    return world.train_questions(count, random.Random(seed))


def vocabulary() -> Vocabulary:
    return tag_vocabulary(environment().actions, [*WORLD.words, "tool", "error"])


def trajectories(env, count: int = 24, step: int = 0) -> str:
    """The records of a rollout by a random policy, as text."""
    known = vocabulary()
    policy = TinyPolicy(TinySettings(width=16, layers=1, heads=2, max_tokens=64), len(known), 0)
    rolled = roll_out(policy, known, env, questions(count), seed=0, step=step, max_turn_tokens=5)
    return json.dumps([asdict(trajectory) for trajectory in rolled])


RESEARCHER = DemonstrationSettings(guess_first=0.3, error=0.2, quit=0.05, verify=0.6, patience=6)


def demonstrations(env, count: int = 40, seed: int = 0, max_tokens: int = 400) -> list:
    """Trajectories of the scripted researcher; script and environment share a stream."""
    return [
        demonstrate(
            env,
            vocabulary(),
            q,
            WORLD.names,
            RESEARCHER,
            random.Random(f"{seed} {q.id}"),
            max_tokens,
        )
        for q in questions(count)
    ]


# --- nothing happens at rate 0

AT_ZERO = {
    "tools": lambda env: FailingTools(env, 0.0),
    "observations": lambda env: GarbledObservations(env, 0.0, 0.0),
    "outcome": lambda env: FlippedOutcomes(env, 0.0),
    "all": lambda env: FlippedOutcomes(GarbledObservations(FailingTools(env, 0.0)), 0.0),
}
NEARLY_ZERO = {
    "tools": lambda env: FailingTools(env, 1e-15),
    "observations": lambda env: GarbledObservations(env, 1e-15, 1e-15),
    "outcome": lambda env: FlippedOutcomes(env, 1e-15),
    "all": lambda env: disturbed(env, Disturbances(1e-15, "tool error", 1e-15, 1e-15, 1e-15)),
}


@pytest.mark.parametrize(
    "wrap",
    [*AT_ZERO.values(), *NEARLY_ZERO.values()],
    ids=[*AT_ZERO, *(f"{name}, wrapped but never hit" for name in NEARLY_ZERO)],
)
@pytest.mark.parametrize("ends", [True, False])
def test_rate_0_gives_the_bare_trajectories(wrap, ends):
    bare = environment(invalid_ends=ends, invalid_penalty=0.1, max_turns=5)
    assert trajectories(wrap(bare)) == trajectories(bare)
    assert demonstrations(wrap(bare)) == demonstrations(bare)


def test_without_a_disturbance_nothing_is_wrapped():
    bare = environment()
    assert disturbed(bare, Disturbances()) is bare


MESSAGES = [
    "<search> {0} </search>",
    "<read_chunk> {0} {1} </read_chunk>",
    "<external_verify> {2} </external_verify>",
    "<answer> {2} </answer>",
]


def script(question: Question) -> list[str]:
    """Search and read hop by hop, four times each, then verify and answer."""
    lines = []
    for hop in question.hops:
        lines += [MESSAGES[0].format(hop.title), MESSAGES[1].format(hop.title, hop.relation)] * 4
    return lines + [message.format("", "", question.answers[0]) for message in MESSAGES[2:]]


def play(env, question: Question, messages: list[str], stream: random.Random):
    """(steps, episode) of a fixed list of messages."""
    episode, steps = env.reset(question, stream), []
    for message in messages:
        steps.append(episode.step(message))
        if steps[-1].stop_reason:
            break
    return steps, episode


@pytest.mark.parametrize(
    "disturbances", [Disturbances(0, "x", 0.3, 0.3, 0.5), Disturbances(outcome_flip=1.0)]
)
def test_the_wrapped_environment_draws_what_it_draws_alone(disturbances):
    for question in questions(20):
        one, other = random.Random(question.id), random.Random(question.id)
        alone, _ = play(environment(), question, script(question), one)
        steps, _ = play(disturbed(environment(), disturbances), question, script(question), other)
        assert one.getstate() == other.getstate()
        assert [step.action for step in steps] == [step.action for step in alone]
        assert [step.correct for step in steps] == [step.correct for step in alone]


HARSH = Disturbances(0.3, "tool error", 0.2, 0.2, 0.3)


def test_disturbed_runs_are_reproducible_and_differ_by_their_stream():
    env = disturbed(environment(), HARSH)
    assert trajectories(env) == trajectories(disturbed(environment(), HARSH))
    assert trajectories(env) != trajectories(env, step=1)
    assert demonstrations(env) == demonstrations(env)
    assert demonstrations(env, seed=0) != demonstrations(env, seed=1)
    assert demonstrations(env) != demonstrations(environment())


# --- tools that fail


def test_a_failed_tool_shows_the_error_and_does_nothing():
    env = FailingTools(environment(judge=RuleJudge(1.0, 0.0)), 1.0)
    (question,) = questions(1)
    steps, episode = play(env, question, script(question), random.Random(0))
    assert [step.observation for step in steps[:-1]] == [ERROR] * (len(steps) - 1)
    assert [step.action for step in steps[:2]] == ["search", "read_chunk"]
    assert all(step.stop_reason is None for step in steps[:-1])
    assert not episode.sections and not episode.grounded
    assert (steps[-1].action, steps[-1].stop_reason, steps[-1].correct) == (
        "answer",
        "answer",
        True,
    )
    assert (episode.success, episode.reward) == (True, 1.0)
    assert env.counts == {"search": 8, "read_chunk": 8, "external_verify": 1}


@dataclass
class SpyJudge:
    asked: list[str] = field(default_factory=list)

    def verdict(self, question, answer, context, stream) -> str:
        self.asked.append(answer)
        return "CORRECT"


def test_a_failed_verification_asks_nobody_and_verifies_nothing():
    judge = SpyJudge()
    (question,) = questions(1)
    guess = f"<external_verify> {question.answers[0]} </external_verify>"
    steps, _ = play(
        FailingTools(environment(judge=judge), 1.0), question, [guess], random.Random(0)
    )
    assert (judge.asked, steps[0].correct) == ([], None)
    steps, _ = play(
        FailingTools(environment(judge=judge), 1e-15), question, [guess], random.Random(0)
    )
    assert (judge.asked, steps[0].correct) == ([question.answers[0]], True)


def test_what_fails_can_be_tried_again_as_if_nothing_had_been():
    """Take the failed turns away, and the bare environment's trajectory is left."""
    failed = 0
    for question in questions(30):
        stream = random.Random(question.id)
        steps, _ = play(
            FailingTools(environment(max_turns=99), 0.4), question, script(question), stream
        )
        lines = [m for m, s in zip(script(question), steps, strict=True) if s.observation != ERROR]
        kept = [step for step in steps if step.observation != ERROR]
        failed += len(steps) - len(kept)
        alone, _ = play(environment(max_turns=99), question, lines, random.Random(question.id))
        assert kept == alone
    assert failed > 100


def test_the_share_of_failures_is_the_rate_and_a_higher_rate_adds_to_them():
    hits: dict[float, set[tuple[str, int]]] = {}
    calls = 0
    for rate in (0.1, 0.4):
        env = FailingTools(environment(max_turns=99), rate)
        hits[rate], calls = set(), 0
        for question in questions(150):
            steps, _ = play(env, question, script(question), random.Random(question.id))
            tools = [step for step in steps if step.action != "answer"]
            calls += len(tools)
            hits[rate] |= {(question.id, n) for n, s in enumerate(tools) if s.observation == ERROR}
        assert abs(len(hits[rate]) / calls - rate) < 5 * (rate * (1 - rate) / calls) ** 0.5
        assert sum(env.counts.values()) == len(hits[rate])
    assert hits[0.1] < hits[0.4]


@pytest.mark.parametrize("rate", [1e-15, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("cap", [1, 2, 5])
def test_failures_do_not_move_the_cap_on_turns(rate, cap):
    env = FailingTools(environment(max_turns=cap), rate)
    for question in questions(20):
        lines = ["<search> bano </search>"] * 9
        steps, episode = play(env, question, lines, random.Random(question.id))
        assert len(steps) == cap
        assert (steps[-1].stop_reason, steps[-1].observation) == ("max_turns", "")
        assert (episode.success, episode.reward) == (False, 0.0)


def test_an_answer_on_the_last_turn_counts_after_failures():
    env = FailingTools(environment(max_turns=2), 1.0)
    (question,) = questions(1)
    lines = ["<search> x </search>", f"<answer> {question.answers[0]} </answer>"]
    steps, episode = play(env, question, lines, random.Random(0))
    assert (steps[-1].stop_reason, episode.success) == ("answer", True)


def test_what_the_last_turn_finds_does_not_reach_the_context():
    """After a failure the wrapped episode would go on, and show what it reads."""
    seen = Counter()
    for question in questions(60):
        hop = question.hops[-1]
        for rate in (1e-15, 0.5):
            env = FailingTools(environment(max_turns=3), rate)
            lines = [MESSAGES[0].format(hop.title)] * 2
            lines += [MESSAGES[1].format(hop.title, hop.relation)]
            steps, episode = play(env, question, lines, random.Random(question.id))
            assert (steps[-1].stop_reason, episode.grounded) == ("max_turns", False)
            seen[sum(env.counts.values())] += bool(episode.sections)
    assert sum(seen[n] for n in seen if n) > 5, "some inner episodes did read"


@pytest.mark.parametrize("ends", [True, False])
def test_a_malformed_message_is_no_failure_of_a_tool(ends):
    env = FailingTools(environment(invalid_ends=ends, invalid_penalty=0.25), 1.0)
    (question,) = questions(1)
    steps, episode = play(env, question, ["what?", "<answer> x </answer>"], random.Random(0))
    assert steps[0].action == "invalid"
    assert steps[0].stop_reason == ("invalid" if ends else None)
    assert episode.reward == -0.25
    assert env.counts == {}


def test_tools_fail_under_the_json_protocol_and_in_search_r1():
    (question,) = questions(1)
    wording = WORDINGS["search_r1_json"]
    env = FailingTools(SearchR1(WORLD, SearchR1Settings(), wording=wording), 1.0, "server is down")
    call = '<tool_call>{"name": "search", "arguments": {"query": "bano"}}</tool_call>'
    steps, _ = play(env, question, [call, "<answer> x </answer>"], random.Random(0))
    assert steps[0].observation == wording.observation.replace("{text}", "server is down")
    assert (steps[1].stop_reason, env.counts) == ("answer", {"search": 1})


def test_the_error_is_among_the_environments_words():
    env = disturbed(environment(), Disturbances(0.5, "server is down"))
    assert {"server", "is", "down"} <= set(env.words)
    assert set(environment().words) < set(env.words)


# --- garbled observations

TEXT = "<information> <doc> alpha beta\ngamma  delta <doc> epsilon </information>"


def test_nothing_happens_to_a_text_at_rates_of_0():
    assert garble(TEXT, 0.0, 0.0, random.Random(0)) == TEXT


def test_all_words_dropped_leaves_the_tags():
    assert garble(TEXT, 1.0, 0.0, random.Random(0)).split() == [
        *("<information>", "<doc>", "<doc>", "</information>")
    ]


def test_all_words_swapped_in_pairs_between_tags():
    swapped = garble(TEXT, 0.0, 1.0, random.Random(0))
    assert swapped == "<information> <doc> beta alpha\ndelta  gamma <doc> epsilon </information>"


def test_nothing_is_swapped_across_a_tag():
    assert garble("a <doc> b </doc> c d", 0.0, 1.0, random.Random(0)) == "a <doc> b </doc> d c"


PIECES = st.lists(st.sampled_from(["a", "b", "c", " ", "\n", "<doc>", "</information>"]))
WORDS_AND_TAGS = re.compile(r"</?[a-z_]+>|[^\s<]+")


@given(PIECES.map("".join), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_drops_and_swaps_invent_nothing_and_keep_the_tags(text, drop, swap, seed):
    """Also those that stand against a word, as they do in the wordings for language models."""
    before = WORDS_AND_TAGS.findall(text)
    after = WORDS_AND_TAGS.findall(garble(text, drop, swap, random.Random(seed)))
    assert Counter(after) <= Counter(before)
    assert [piece for piece in after if "<" in piece] == [p for p in before if "<" in p]
    only_swapped = garble(text, 0.0, swap, random.Random(seed))
    assert Counter(WORDS_AND_TAGS.findall(only_swapped)) == Counter(before)
    left = iter(before)
    only_dropped = garble(text, drop, 0.0, random.Random(seed))
    assert all(word in left for word in WORDS_AND_TAGS.findall(only_dropped)), "in order"


@pytest.mark.parametrize("name", WORDINGS)
def test_the_frame_of_a_result_survives_any_garbling(name):
    before, after = WORDINGS[name].observation.split("{text}")
    garbled = garble(f"{before}alpha beta{after}", 1.0, 1.0, random.Random(0))
    assert garbled.split() == [*before.split(), *after.split()]


def test_the_share_of_lost_words_is_the_rate():
    text = " ".join(f"w{n}" for n in range(4000))
    lost = 1 - len(garble(text, 0.2, 0.1, random.Random(0)).split()) / 4000
    assert abs(lost - 0.2) < 5 * (0.2 * 0.8 / 4000) ** 0.5


def test_garbling_touches_observations_alone():
    env = GarbledObservations(environment(), 1.0, 0.0)
    for question in questions(20):
        steps, episode = play(env, question, script(question), random.Random(question.id))
        alone, bare = play(environment(), question, script(question), random.Random(question.id))
        for step, plain in zip(steps, alone, strict=True):
            assert step == replace(plain, observation=step.observation)
            assert all(word[0] == "<" for word in step.observation.split())
        assert (episode.reward, episode.success) == (bare.reward, bare.success)
        assert (episode.grounded, episode.sections) == (bare.grounded, bare.sections)


# --- a noisy outcome


def test_a_flip_exchanges_right_and_wrong_and_success_stays_true():
    env = FlippedOutcomes(environment(), 1.0)
    for question in questions(10):
        for said, true in ((question.answers[0], True), ("nowhere", False)):
            _, episode = play(env, question, [f"<answer> {said} </answer>"], random.Random(0))
            assert (episode.success, episode.reward) == (true, float(not true))


def test_a_missing_reward_stays_missing_and_a_penalty_stays():
    (question,) = questions(1)
    env = FlippedOutcomes(environment(invalid_ends=False, invalid_penalty=0.25), 1.0)
    lines = ["what?", f"<answer> {question.answers[0]} </answer>"]
    assert play(env, question, lines, random.Random(0))[1].reward == -0.25
    assert play(env, question, lines[:1], random.Random(0))[1].reward == 0.75
    unusable = replace(question, answers=("...",))
    assert play(env, unusable, lines, random.Random(0))[1].reward is None


def test_the_share_of_flipped_episodes_is_the_rate_and_each_is_drawn_once():
    env = FlippedOutcomes(environment(), 0.3)
    flipped = 0
    for question in questions(1000):
        _, episode = play(env, question, ["<answer> nowhere </answer>"], random.Random(question.id))
        assert len({episode.reward for _ in range(5)}) == 1
        flipped += episode.reward == 1.0
    assert abs(flipped / 1000 - 0.3) < 5 * (0.3 * 0.7 / 1000) ** 0.5


# --- wrapping in general


@pytest.mark.parametrize("name", ["tool_failure", "word_drop", "word_swap", "outcome_flip"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_rates_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        Disturbances(**{name: value})


@pytest.mark.parametrize("text", ["", " ", "<>", "..."])
def test_an_error_without_words_is_refused(text):
    with pytest.raises(ValueError, match="tool_error"):
        Disturbances(tool_error=text)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda env: FailingTools(env, 2.0), "rate"),
        (lambda env: GarbledObservations(env, drop=-1.0), "drop"),
        (lambda env: GarbledObservations(env, swap=1.5), "swap"),
        (lambda env: FlippedOutcomes(env, -0.5), "rate"),
        (lambda env: WithheldEvidence(env.world, 1.01), "share"),
    ],
)
def test_a_wrapper_refuses_its_own_rate(make, name):
    with pytest.raises(ValueError, match=name):
        make(environment())


def test_a_wrapper_hands_on_what_it_does_not_change():
    bare, env = environment(), disturbed(environment(), HARSH)
    assert (env.actions, env.settings, env.wording) == (bare.actions, bare.settings, bare.wording)
    (question,) = questions(1)
    assert env.reset(question, random.Random(0)).prompt == f"<question> {question.text} </question>"
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = env.no_such_thing


def test_wrappers_and_their_episodes_can_be_copied_and_sent():
    env = disturbed(environment(), HARSH)
    (question,) = questions(1)
    for twin in (copy.copy(env), copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert twin == env
        expected = play(env, question, script(question), random.Random(5))[0]
        assert play(twin, question, script(question), random.Random(5))[0] == expected
    episode = env.reset(question, random.Random(5))
    twin = copy.deepcopy(episode)
    lines = script(question)[:3]
    assert [episode.step(line) for line in lines] == [twin.step(line) for line in lines]


# --- withheld evidence


@pytest.fixture(scope="module")
def factbook() -> FactbookWorld:
    return FactbookWorld(hops=(1, 2), max_per_final=4, attributes=("capital", "top export partner"))


def states(text: str, answers: tuple[str, ...]) -> bool:
    """Whether some run of the text's words is an exact match, by trying every run."""
    said = words(text)
    return any(
        exact_match(" ".join(said[start:end]), answers)
        for start in range(len(said))
        for end in range(start + 1, min(start + 7, len(said) + 1))
    )


def test_a_withheld_answer_is_nowhere_in_what_a_search_finds_in_invented_documents():
    check_nothing_states_the_answer(WithheldEvidence(WORLD, 1.0), 20)


def test_a_withheld_answer_is_nowhere_in_what_a_search_finds_in_real_documents(factbook):
    check_nothing_states_the_answer(WithheldEvidence(factbook, 1.0), 12)


def check_nothing_states_the_answer(world: WithheldEvidence, count: int) -> None:
    bare = 0
    for question in world.train_questions(count, random.Random(0)):
        assert question.hops[-1].paragraph == ""
        for query in {hop.title for hop in question.hops} | {question.text, question.answers[0]}:
            found = world.search(question, query, 4, random.Random(query))
            plain = world.world.search(question, query, 4, random.Random(query))
            assert [(d.id, d.title) for d in found] == [(d.id, d.title) for d in plain]
            assert not any(states(document.text, question.answers) for document in found)
            bare += any(states(document.text, question.answers) for document in plain)
    assert bare > count / 2, "there was something to withhold"


@pytest.mark.parametrize("answer", ["U.S.", "The Hague", "1,000", "São Tomé"])
@pytest.mark.parametrize("spelling", ["plain", "other"])
def test_evidence_is_recognised_however_it_is_spelled(answer, spelling):
    other = {"U.S.": "US", "The Hague": "Hague", "1,000": "1000", "São Tomé": "são-tomé"}[answer]
    said = answer if spelling == "plain" else other
    text = f"It is {said}, so they say.\n\nUsually thehague100 01000 are not."
    world = WithheldEvidence(Shelf((Document("d", "t", text),)), 1.0)
    asked = Question("q", "?", (answer,), (), "k", "")
    (found,) = world.search(asked, "t", 1, random.Random(0))
    assert found.text == "Usually thehague100 01000 are not."


@dataclass(frozen=True)
class Shelf:
    """Documents in a fixed order, found by every query."""

    documents: tuple[Document, ...]
    words = names = ()

    def train_questions(self, count, stream):
        return [
            Question(f"{n}", "?", ("yes",), (Hop("t", "r", "yes", "p q"),), "k", "")
            for n in range(count)
        ]

    def search(self, question, query, k, stream):
        return list(self.documents[:k])


def test_evidence_that_cannot_be_recognised_is_not_withheld():
    document = Document("d", "t", "p q\n\nyes it is")
    world = WithheldEvidence(Shelf((document,)), 1.0)
    for question in world.train_questions(20, random.Random(0)):
        assert question.hops[-1].paragraph == "p q"
        assert world.search(question, "?", 1, random.Random(0)) == [document]


def test_the_share_is_held_and_smaller_shares_lie_in_larger():
    plain = SyntheticWorld(films=6, people=8, cities=8, unsolvable_share=0.0)
    marked = {}
    for share in (0.1, 0.4):
        drawn = WithheldEvidence(plain, share).train_questions(2000, random.Random(0))
        marked[share] = {q.id for q in drawn if not q.hops[-1].paragraph}
        assert abs(len(marked[share]) / 2000 - share) < 5 * (share * (1 - share) / 2000) ** 0.5
        again = WithheldEvidence(plain, share).train_questions(2000, random.Random(0))
        assert drawn == again
    assert marked[0.1] < marked[0.4]


def test_a_share_of_0_gives_the_bare_trajectories_and_another_keeps_the_rest():
    assert demonstrations(environment(WithheldEvidence(WORLD, 0.0))) == demonstrations(
        environment()
    )
    world = WithheldEvidence(WORLD, 0.5)
    assert [q.id for q in world.evaluation_questions(50)] == [
        q.id for q in WORLD.evaluation_questions(50)
    ]
    touched = 0
    for before, after in zip(questions(40), questions(40, world=world), strict=True):
        steps, _ = play(environment(world), after, script(before), random.Random(before.id))
        alone, _ = play(environment(), before, script(before), random.Random(before.id))
        if not world.withholds(before):
            assert (after, steps) == (before, alone)
        touched += steps != alone
    assert touched > 5


def test_a_question_without_evidence_is_never_grounded_nor_called_correct():
    world = WithheldEvidence(WORLD, 1.0)
    env = environment(world, judge=RuleJudge(0.0, 0.0), max_turns=99)
    for question in questions(30, world=world):
        steps, episode = play(env, question, script(question), random.Random(question.id))
        assert not episode.grounded
        assert not any("CORRECT" in step.observation for step in steps)


# --- difficulty


def test_bins_of_a_question_made_by_hand():
    hops = (Hop("a", "r", "b", "p"), Hop("b", "r", "Hague", ""))
    asked = Question("q", "?", ("The Hague",), hops, "k", guess="hague", hard=True)
    assert difficulty_bins(asked) == {
        "hops": "2 hops",
        "search": "hard",
        "guess": "popular",
        "evidence": "not stated",
    }
    other = replace(asked, hops=(Hop("a", "r", "b", "p"),), guess="rome", hard=False)
    assert list(difficulty_bins(other).values()) == ["1 hop", "plain", "unpopular", "stated"]
    unknown = replace(asked, hops=(), guess="")
    assert list(difficulty_bins(unknown).values()) == ["unknown", "hard", "unknown", "unknown"]
    assert difficulty_bins(replace(asked, answers=()))["guess"] == "unknown"


def test_bins_have_the_shares_that_the_world_was_made_with():
    world = SyntheticWorld(prior=0.35, unsolvable_share=0.2, hard_share=0.3)
    bins = [difficulty_bins(q) for q in questions(2000, world=world)]
    assert all(set(row) == set(DIFFICULTIES) for row in bins)
    for name, label, share in (
        ("guess", "popular", 0.35),
        ("evidence", "not stated", 0.2),
        ("search", "hard", 0.3),
        ("hops", "2 hops", 1.0),
    ):
        counted = sum(row[name] == label for row in bins) / 2000
        assert abs(counted - share) <= 5 * (share * (1 - share) / 2000) ** 0.5


def test_bins_of_the_factbook_are_its_numbers_of_hops(factbook):
    drawn = factbook.train_questions(60, random.Random(0))
    assert {difficulty_bins(q)["hops"] for q in drawn} == {"1 hop", "2 hops"}
    assert {difficulty_bins(q)["evidence"] for q in drawn} == {"stated"}


@pytest.mark.parametrize(
    ("position", "label"),
    [
        (0, "rank 1"),
        (1, "rank 2 to 5"),
        (4, "rank 2 to 5"),
        (5, "rank 6 or later"),
        (8, "not found"),
    ],
)
def test_the_rank_of_the_document_that_states_the_answer(position, label):
    documents = [Document(f"{n}", f"t{n}", "x") for n in range(9)]
    documents[position] = replace(documents[position], title="gold")
    asked = Question(
        "q", "?", ("a",), (Hop("first", "r", "gold", "p"), Hop("gold", "r", "a", "p")), "k", "g"
    )
    assert rank_bin(Shelf(tuple(documents)), asked, depth=8) == label
    assert rank_bin(Shelf(()), replace(asked, hops=())) == "unknown"


def test_a_rank_is_the_same_at_every_call_and_touches_no_global_stream():
    before = random.getstate()
    labels = [[rank_bin(WORLD, q, depth=3) for q in questions(30)] for _ in range(2)]
    assert labels[0] == labels[1]
    assert random.getstate() == before


def test_failures_are_named_whatever_wraps_what():
    """Made failures, failed verdicts and failed searches, through every wrapper; successes none."""

    class CountingWorld(SyntheticWorld):
        outcomes: ClassVar[Counter[str]] = Counter(ok=5, short=1, timeout=2)

    judge = SimpleNamespace(counts=Counter(answered=3, cached=1, hang=4))
    world = WithheldEvidence(CountingWorld(), 0.5)
    bare = DeepResearch(world, judge, DeepResearchSettings())
    environment = disturbed(bare, Disturbances(tool_failure=1.0, word_drop=0.1, outcome_flip=0.1))
    (asked,) = world.train_questions(1, random.Random(0))
    environment.reset(asked, random.Random(0)).step("<search> a </search>")
    expected = {"judge_hang": 4, "search_timeout": 2}
    assert bare.failures == expected
    assert environment.failures == expected | {"injected_search": 1}
