"""What each turn was by the oracle: the three cases of the slides by hand, records and laws."""

import copy
import random
from dataclasses import replace

import pytest
from play import ListWorld, document, synthetic_environment

from turncredit.environments import DeepResearch, DeepResearchSettings, SearchR1, SearchR1Settings
from turncredit.environments.judges import RuleJudge
from turncredit.environments.oracle import LABELS, turn_labels
from turncredit.environments.wording import WORDINGS
from turncredit.environments.wrappers import FailingTools
from turncredit.records import Trajectory, Turn, read_trajectories, write_trajectories
from turncredit.worlds.base import Hop, Question
from turncredit.worlds.synthetic import SyntheticWorld

R, F, W, U = LABELS

ASKED = Question(
    "q",
    "birthplace of director of film",
    ("rome",),
    (
        Hop("film", "director", "ann", "film director ann"),
        Hop("ann", "birthplace", "rome", "ann birthplace rome"),
    ),
    "by hand",
    "paris",
)
SHELF = ListWorld(
    (
        document("film", "film director ann"),
        document("ann", "ann birthplace rome"),
        document("bob", "bob birthplace oslo", "bob residence kiel"),
        document("oslo", "oslo county viken"),
    )
)


def environment(knowledge: float = 0.0, **changes) -> DeepResearch:
    settings = DeepResearchSettings(
        max_turns=12, sections=1, minimum_paragraph=1, header="<doc> {title}", invalid_ends=False
    )
    judge = RuleJudge(knowledge=knowledge, noise=0.0)
    return DeepResearch(SHELF, judge, replace(settings, **changes), wording=WORDINGS["tiny"])


def labels(*turns: str, asked: Question = ASKED, world=None) -> list[str]:
    """Of turns written as `action argument`."""
    episode = (world or environment()).reset(asked, random.Random(0))
    for turn in turns:
        action, _, argument = turn.partition(" ")
        episode.step(f"<{action}> {argument} </{action}>")
    assert episode.oracle_turn == next(
        (number for number, label in enumerate(episode.turn_labels) if label in (F, W)), -1
    )
    return list(episode.turn_labels)


RESEARCH = ("search film", "read_chunk film director", "search ann", "read_chunk ann birthplace")


def test_the_slides_first_case_is_right_throughout():
    assert labels(*RESEARCH, "external_verify rome", "answer rome") == [R] * 6


def test_the_slides_second_case_is_wrong_throughout():
    """A guess instead of a search, evidence ignored, an answer that stands nowhere."""
    turns = ("external_verify bob", "read_chunk oslo", "answer kiel")
    assert labels(*turns) == [W, W, W]


def test_the_slides_third_case_is_right_after_its_wrong_decision():
    """The director is guessed; his birthplace is searched for, read, and handed in."""
    turns = ("external_verify bob", "search bob", "read_chunk bob birthplace", "answer oslo")
    assert labels(*turns) == [W, F, F, F]
    assert labels("search bob", *turns[2:]) == [W, F, F]


@pytest.mark.parametrize(
    ("turns", "last"),
    [
        (("search bob", "search bob"), F),  # it was not read yet
        (("search bob", "read_chunk bob", "read_chunk bob"), W),  # it was
        (("search bob", "read_chunk bob", "search bob"), W),
        (("search bob", "read_chunk bob", "search oslo"), F),  # what was read about it
        (("search bob", "search oslo"), W),  # it was not
        (("search bob", "search bob ann"), W),  # half of it comes from nowhere
        (("search bob", "read_chunk bob residence"), W),  # not what the question asks
        (("read_chunk bob", "read_chunk bob"), W),  # nothing has listed it
        (("read_chunk bob", "search bob"), F),
        (("search bob", "answer oslo"), W),  # it was not read
        (("search bob", "read_chunk bob", "external_verify oslo"), F),
        (("search bob", "read_chunk bob", "answer paris"), W),
        (("search bob", "read_chunk bob", "search film"), R),  # back on the path
        (("external_verify paris", "answer paris"), W),  # the verifier was uncertain
        (("nonsense bob", "search bob"), W),  # what cannot be parsed decides nothing
        (("search film", "search film"), R),
    ],
)
def test_the_last_turn_is_judged_given_those_before_it(turns, last):
    assert labels(*turns)[-1] == last


def test_a_guess_that_the_verifier_confirmed_may_be_handed_in():
    knowing = environment(knowledge=1.0)
    assert labels("external_verify rome", "answer rome", world=knowing) == [W, F]
    assert labels("external_verify oslo", "answer oslo", world=knowing) == [W, W]
    assert labels("answer rome", world=knowing) == [W]


def test_where_only_a_guess_can_win_nothing_is_judged():
    first, last = ASKED.hops
    lost = replace(ASKED, hops=(first, replace(last, paragraph="")))
    assert labels(*RESEARCH[:2], "answer paris", asked=lost) == [R, R, U]
    assert labels("answer paris", asked=lost) == [W]


def test_the_short_horizon_reads_by_searching():
    shown = SearchR1Settings(max_turns=5, search_results=1, passage="<doc> {title} {text}")
    world = SearchR1(SHELF, shown, wording=WORDINGS["tiny"])
    assert labels("search film", "search ann", "answer rome", world=world) == [R, R, R]
    assert labels("search bob", "answer oslo", world=world) == [W, F]
    assert labels("search bob", "answer rome", world=world) == [W, W]


def test_a_failed_call_is_judged_and_teaches_nothing():
    failing = FailingTools(environment(), rate=1.0)
    turns = ("search bob", "search bob", "read_chunk bob", "answer oslo")
    assert labels(*turns, world=failing) == [W, F, W, W]


def test_a_copy_of_an_oracle_goes_its_own_way():
    """One level deep is enough: no labels or premises are changed in place."""
    episode = environment().reset(ASKED, random.Random(0))
    episode.step("<search> bob </search>")
    twin = copy.copy(episode._oracle)
    episode.step("<read_chunk> bob </read_chunk>")
    episode.step("<answer> oslo </answer>")
    assert twin.labels == (W,)
    twin.take_note("answer", "oslo")
    assert (twin.labels, episode.turn_labels) == ((W, W), (W, F, F))


def test_a_record_keeps_a_label_for_each_of_its_turns(tmp_path):
    episode = environment().reset(ASKED, random.Random(0))
    episode.step("<search> bob </search>")
    assert turn_labels(episode, 1) == (W,)
    assert turn_labels(episode, 0) == ()
    assert turn_labels(episode, 2) == (W, U), "cut before the environment saw it"
    assert turn_labels(object(), 2) is None
    turn = Turn((1,), (0.0,), (0.0,), (), "search")
    known = Trajectory("q", (1,), (turn,), 0.0, False, "answer", None, 0, (W,))
    unknown = replace(known, turn_labels=None)
    path = tmp_path / "trajectories.jsonl.gz"
    write_trajectories(path, [known, unknown])
    assert read_trajectories(path) == [known, unknown]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_wrong_turn_is_the_first_that_is_off_the_path(seed):
    """In a whole world, whatever is said: labels and `oracle_turn` tell one story."""
    stream = random.Random(seed)
    world = SyntheticWorld(films=6, people=8, cities=8)
    played = synthetic_environment(invalid_ends=False, max_turns=9)
    for asked in world.train_questions(20, stream):
        hops = [word for hop in asked.hops for word in (hop.title, hop.value)]
        names = [*hops, *stream.sample(world.names, 2)]
        turns = [f"{stream.choice(played.actions[:3])} {stream.choice(names)}" for _ in range(9)]
        found = labels(*turns, asked=asked, world=played)
        assert len(found) == 9
        assert F not in found[: found.index(W)] if W in found else F not in found
