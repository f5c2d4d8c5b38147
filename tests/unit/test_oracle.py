"""The oracle's first wrong turn, by hand on scripted episodes, and where it must keep silent."""

import random
from dataclasses import replace

import pytest
import torch

from turncredit.batching import from_trajectories
from turncredit.demonstrations import DemonstrationSettings, demonstrate
from turncredit.environments import (
    DeepResearch,
    DeepResearchSettings,
    SearchR1,
    SearchR1Settings,
)
from turncredit.environments.judges import RuleJudge
from turncredit.environments.wording import WORDINGS
from turncredit.environments.wrappers import FailingTools, GarbledObservations
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.records import Trajectory, Turn
from turncredit.worlds.synthetic import SyntheticWorld

WORLD = SyntheticWorld(miss_rate=0.0, hard_share=0.0, unsolvable_share=0.0)
PERFECT = DemonstrationSettings(guess_first=0.0, error=0.0, quit=0.0, verify=1.0, patience=3)


def deep_research(**changes) -> DeepResearch:
    settings = DeepResearchSettings(
        max_turns=12, sections=1, minimum_paragraph=1, header="<doc> {title}", invalid_ends=False
    )
    judge = RuleJudge(knowledge=0.0, noise=0.0)
    return DeepResearch(WORLD, judge, replace(settings, **changes), wording=WORDINGS["tiny"])


def question(seed: int = 0):
    (drawn,) = WORLD.train_questions(1, random.Random(seed))
    return drawn


def played(environment, asked, *messages: str) -> int | None:
    episode = environment.reset(asked, random.Random(0))
    for message in messages:
        episode.step(message)
    return episode.oracle_turn


def path(asked) -> list[str]:
    """The whole path: search and read each hop, verify, answer."""
    messages = []
    for hop in asked.hops:
        messages.append(f"<search> {hop.title} </search>")
        messages.append(f"<read_chunk> {hop.title} {hop.relation} </read_chunk>")
    value = asked.answers[0]
    return [
        *messages,
        f"<external_verify> {value} </external_verify>",
        f"<answer> {value} </answer>",
    ]


def test_the_path_has_no_wrong_turn():
    asked = question()
    assert played(deep_research(), asked, *path(asked)) == -1


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize(
    "wrong",
    [
        "<search> nobody </search>",
        "<read_chunk> nobody </read_chunk>",
        "<external_verify> nobody </external_verify>",
        "no tag at all",
    ],
)
def test_a_turn_off_the_path_is_found_wherever_it_is_and_later_ones_change_nothing(place, wrong):
    asked = question()
    messages = path(asked)
    messages.insert(place, wrong)
    assert played(deep_research(), asked, *messages, wrong) == place


def test_a_guess_is_wrong_also_if_it_happens_to_be_right():
    asked = question()
    right = f"<answer> {asked.answers[0]} </answer>"
    assert played(deep_research(), asked, right) == 0
    assert played(deep_research(), asked, path(asked)[0], right) == 1


def test_reading_what_no_search_has_listed_is_wrong_and_searching_twice_is_not():
    asked = question()
    search, read, *_ = path(asked)
    assert played(deep_research(), asked, read) == 0
    assert played(deep_research(), asked, search, search, read) == -1


def test_a_paragraph_that_names_the_next_document_has_not_listed_it():
    asked = question()
    search, read, _, read_next, *_ = path(asked)
    assert asked.hops[1].title in asked.hops[0].paragraph
    assert played(deep_research(), asked, search, read, read_next) == 2


def test_where_the_world_has_lost_the_paragraph_nothing_is_wrong_from_there_on():
    asked = question()
    lost = replace(asked, hops=(asked.hops[0], replace(asked.hops[1], paragraph="")))
    first = path(asked)[:2]
    assert played(deep_research(), lost, *first, f"<answer> {asked.guess} </answer>") == -1
    assert played(deep_research(), lost, f"<answer> {asked.guess} </answer>") == 0


def test_a_question_without_known_hops_has_no_oracle():
    assert played(deep_research(), replace(question(), hops=()), "<answer> x </answer>") is None


def test_the_short_horizon_needs_no_reading():
    settings = SearchR1Settings(max_turns=5, search_results=2, passage="<doc> {title} {text}")
    environment = SearchR1(WORLD, settings, wording=WORDINGS["tiny"])
    asked = question()
    searches = [f"<search> {hop.title} </search>" for hop in asked.hops]
    answer = f"<answer> {asked.answers[0]} </answer>"
    assert played(environment, asked, *searches, answer) == -1
    assert played(environment, asked, searches[0], answer) == 1
    assert played(environment, asked, searches[1], *searches, answer) == 0


@pytest.mark.parametrize("wrap", [FailingTools, GarbledObservations])
def test_disturbances_shift_no_turn(wrap):
    """A call that failed was right, and counts as a turn."""
    options = {"rate": 1.0} if wrap is FailingTools else {"drop": 0.9}
    environment, asked = wrap(deep_research(), **options), question()
    search, read, *_ = path(asked)
    assert played(environment, asked, search, search, read) == (2 if wrap is FailingTools else -1)
    assert played(environment, asked, search, "<search> nobody </search>", search) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_perfect_script_is_right_and_an_erring_one_errs_where_it_says(seed):
    environment = deep_research()
    vocabulary = tag_vocabulary(environment.actions, [*environment.words, *WORLD.words])

    def scripted(**changes) -> Trajectory:
        settings = replace(PERFECT, **changes)
        stream = random.Random(seed)
        asked = question(seed)
        return demonstrate(environment, vocabulary, asked, WORLD.names, settings, stream, 200)

    assert scripted().oracle_turn == -1
    assert scripted(error=1.0).oracle_turn == 0
    assert scripted(guess_first=1.0).oracle_turn == 0
    assert scripted(quit=1.0).oracle_turn == 2


def test_a_batch_has_oracle_turns_if_every_trajectory_has():
    turn = Turn((1,), (0.0,), (0.0,), (), "answer")
    known = Trajectory("q", (1,), (turn,), 1.0, True, "answer", True, 0)
    batch = from_trajectories([known, replace(known, oracle_turn=-1)], group_ids=[0, 0])
    assert torch.equal(batch.oracle_turn, torch.tensor([0, -1]))
    unknown = replace(known, oracle_turn=None)
    assert from_trajectories([known, unknown], group_ids=[0, 0]).oracle_turn is None


@pytest.mark.parametrize("turn", [-2, 1, 7])
def test_a_record_refuses_a_wrong_turn_that_it_has_not(turn):
    with pytest.raises(ValueError, match=f"oracle_turn: {turn} for question q, which has 1 turns"):
        Trajectory(
            "q", (1,), (Turn((1,), (0.0,), (0.0,), (), "a"),), 1.0, True, "answer", None, turn
        )
