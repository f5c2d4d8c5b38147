"""The oracle's first wrong turn, by hand on scripted episodes, and where it must keep silent."""

import functools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from play import SMALL, ListWorld, document

from turncredit.answers import exact_match, words
from turncredit.batching import from_trajectories
from turncredit.demonstrations import DemonstrationSettings, demonstrate, research
from turncredit.environments import (
    DeepResearch,
    DeepResearchSettings,
    SearchR1,
    SearchR1Settings,
    Step,
)
from turncredit.environments.judges import RuleJudge
from turncredit.environments.oracle import oracle_turn
from turncredit.environments.wording import WORDINGS
from turncredit.environments.wrappers import FailingTools, GarbledObservations
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.records import Trajectory, Turn
from turncredit.worlds.base import Hop, Question
from turncredit.worlds.factbook import FactbookWorld
from turncredit.worlds.synthetic import SyntheticWorld

WORLD = SyntheticWorld(miss_rate=0.0, hard_share=0.0, unsolvable_share=0.0)
PERFECT = DemonstrationSettings(guess_first=0.0, error=0.0, quit=0.0, verify=1.0, patience=3)


def deep_research(*, world=WORLD, **changes) -> DeepResearch:
    settings = DeepResearchSettings(
        max_turns=12, sections=1, minimum_paragraph=1, header="<doc> {title}", invalid_ends=False
    )
    judge = RuleJudge(knowledge=0.0, noise=0.0)
    return DeepResearch(world, judge, replace(settings, **changes), wording=WORDINGS["tiny"])


def short_horizon(*, world=WORLD, **changes) -> SearchR1:
    settings = SearchR1Settings(max_turns=5, search_results=2, passage="<doc> {title} {text}")
    return SearchR1(world, replace(settings, **changes), wording=WORDINGS["tiny"])


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
    environment, asked = short_horizon(), question()
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


# --- a film, its director and her birthplace, in two documents written by hand


FILM, ANN = "film director ann", "ann birthplace rome"
SEARCH, READ, READ_NEXT, ANSWER, GUESS = (
    "<search> film ann </search>",
    "<read_chunk> film director </read_chunk>",
    "<read_chunk> ann birthplace </read_chunk>",
    "<answer> rome </answer>",
    "<answer> paris </answer>",
)


def by_hand(film: str = FILM, ann: str = ANN, *, title: str = "ann", text: str = "") -> Question:
    """Two hops, whose paragraphs and second title may be others."""
    hops = (Hop("film", "director", "ann", film), Hop(title, "birthplace", "rome", ann))
    return Question("q", text or "birthplace of director", ("rome",), hops, "by hand", "paris")


def shelf(asked: Question, *before: str) -> ListWorld:
    """The documents of the hops, the last of them with other paragraphs in front."""
    first, last = asked.hops
    return ListWorld(
        (document(first.title, first.paragraph), document(last.title, *before, last.paragraph))
    )


def test_a_title_that_an_earlier_search_has_listed_can_be_read_at_any_later_turn():
    asked = by_hand()
    environment = deep_research(world=shelf(asked))
    assert played(environment, asked, SEARCH, READ, READ_NEXT, ANSWER) == -1
    first_alone = "<search> film </search>"
    assert played(environment, asked, SEARCH, first_alone, READ, READ_NEXT, ANSWER) == -1
    assert played(environment, asked, first_alone, READ, READ_NEXT, ANSWER) == 2


def test_a_paragraph_shown_before_its_turn_need_not_be_shown_again():
    """The first reading names the film, but shows what is needed last."""
    asked = by_hand()
    early = "<read_chunk> film ann birthplace rome </read_chunk>"
    environment = deep_research(world=shelf(asked))
    assert played(environment, asked, SEARCH, early, READ, ANSWER) == -1
    assert played(environment, asked, SEARCH, early, ANSWER) == 2
    searches = "<search> ann </search>", "<search> film </search>", ANSWER
    assert played(short_horizon(world=shelf(asked)), asked, *searches) == 0
    other_way = short_horizon(world=ListWorld(shelf(asked).documents[::-1]), search_results=1)
    assert played(other_way, asked, SEARCH, "<search> film </search>", ANSWER) == -1


def test_what_was_shown_before_its_turn_may_be_looked_up_once_more():
    asked = by_hand()
    environment, again = short_horizon(world=shelf(asked)), "<search> ann </search>"
    assert played(environment, asked, SEARCH, ANSWER) == -1
    assert played(environment, asked, SEARCH, again, ANSWER) == -1
    assert played(environment, asked, SEARCH, again, again, ANSWER) == 2
    assert played(environment, asked, SEARCH, "<search> film </search>") == 1
    both = deep_research(world=shelf(asked), sections=2)
    read = "<read_chunk> film ann </read_chunk>"
    assert played(both, asked, SEARCH, read, ANSWER) == -1
    assert played(both, asked, SEARCH, read, READ_NEXT, ANSWER) == -1
    assert played(both, asked, SEARCH, read, READ, ANSWER) == 2


@pytest.mark.parametrize("title", ["bob", ""])
def test_after_what_was_shown_before_its_turn_the_next_hop_may_follow_at_once(title):
    """The first search shows two of three hops; no query names the second if it has no title."""
    film, ann = by_hand().hops
    asked = replace(by_hand(), hops=(film, Hop(title, "lover", "ann", "bob lover ann"), ann))
    documents = [document(hop.title, hop.paragraph) for hop in asked.hops]
    world = ListWorld((document("film", f"{FILM} bob lover ann"), documents[2]))
    environment = short_horizon(world=world)
    find, find_next = "<search> film </search>", "<search> ann </search>"
    assert played(environment, asked, find, find_next, ANSWER) == -1
    assert played(environment, asked, find, "<search> bob </search>") == (-1 if title else 1)
    for wrong in ("nobody", "?!"):
        assert played(environment, asked, find, f"<search> {wrong} </search>") == 1


@pytest.mark.parametrize("film", [f" {FILM}\n", f"{FILM}\t", f"{FILM} and {'so on ' * 9}"])
def test_shown_is_what_states_the_hop_and_no_blank_or_remark_around_it(film):
    asked = by_hand(film)
    environment = deep_research(world=shelf(asked), section_characters=25)
    assert played(environment, asked, SEARCH, READ, READ_NEXT, ANSWER) == -1
    assert played(environment, asked, SEARCH, READ, READ, ANSWER) == 2
    assert played(environment, asked, GUESS) == 0, "it can be shown"


def test_a_title_in_a_list_is_no_evidence_for_the_oracle_or_for_grounded():
    hop = Hop("rome", "city", "rome", "rome")
    asked = replace(by_hand(), hops=(hop,))
    environment = deep_research(world=ListWorld((document("rome", "rome"),)))
    search, read = "<search> rome </search>", "<read_chunk> rome </read_chunk>"
    assert played(environment, asked, search, ANSWER) == 1
    assert played(environment, asked, search, read, ANSWER) == -1


@pytest.mark.parametrize("answers", [(), ("",), ("...", "the")])
def test_a_question_without_a_usable_answer_has_no_oracle(answers):
    asked = replace(by_hand(), answers=answers)
    assert played(deep_research(world=shelf(asked)), asked, SEARCH, GUESS) is None


def test_documents_that_came_with_the_question_need_no_search():
    asked = by_hand(text=f"Doc 1 (Title: film) {FILM}\n\nDoc 2 (Title: ann) {ANN}")
    assert played(deep_research(world=ListWorld(())), asked, READ, READ_NEXT, ANSWER) == -1
    unsupplied = by_hand(text=f"Doc 1 (Title: film) {FILM}")
    assert played(deep_research(world=ListWorld(())), unsupplied, READ, READ_NEXT, ANSWER) == 1


# --- paragraphs that can never be shown


SPLIT = "ann\n\nbirthplace rome"
NEVER = {
    "too short": (deep_research, by_hand(f"{FILM}, a star"), {"minimum_paragraph": 20}),
    "split into sections": (deep_research, by_hand(ann=SPLIT), {}),
    "beyond the section": (deep_research, by_hand(), {"section_characters": 17}),
    "beyond the text of the list": (
        deep_research,
        by_hand(ann=SPLIT),
        {"header": "{title} {text:.17}"},
    ),
    "beyond the list with its text": (
        deep_research,
        by_hand(ann=SPLIT),
        {"header": "{title} {text}", "summary_characters": 22},
    ),
    "a list of its title": (
        deep_research,
        by_hand(f"{FILM}, a star", title=ANN),
        {"minimum_paragraph": 20},
    ),
    "a title without words": (deep_research, by_hand(title="?!"), {}),
    "no title": (short_horizon, by_hand(title=""), {}),
    "beyond the passage": (
        short_horizon,
        by_hand(),
        {"passage": "Doc {number}: {title} {text:.17}"},
    ),
    "beyond the passages": (short_horizon, by_hand(), {"observation_characters": 28}),
    "late in its document": (short_horizon, by_hand(), {"observation_characters": 40}),
}
"""Where the first hop can be shown and the last cannot."""


@pytest.mark.parametrize("name", NEVER)
def test_where_a_paragraph_can_never_be_shown_nothing_is_wrong_from_there_on(name):
    make, asked, options = NEVER[name]
    world = shelf(asked, *["ann has lived for long"] * (name == "late in its document"))
    environment = make(world=world, invalid_ends=False, **options)
    find, find_next = "<search> film </search>", "<search> ann </search>"
    before = [find, READ, find_next] if make is deep_research else [find, find_next]
    for wrong in (GUESS, "<search> nobody </search>", "no action"):
        assert played(environment, asked, *before, wrong, wrong) == -1, wrong
        assert played(environment, asked, wrong, *before) == 0, "the first hop can be shown"
    episode = environment.reset(asked, random.Random(0))
    for message in (*before, find_next, READ_NEXT):
        episode.step(message)
    assert episode.grounded is False


@pytest.mark.parametrize("make", [deep_research, short_horizon])
@pytest.mark.parametrize("title", ["", "?!"])
def test_a_title_that_no_query_can_name_makes_no_turn_wrong(title, make):
    asked = replace(by_hand(title=title), hops=by_hand(title=title).hops[1:])
    environment = make(world=ListWorld((document(title, ANN),)))
    assert played(environment, asked, GUESS) == -1
    assert played(environment, asked, "<search> rome </search>", GUESS) == -1


def test_a_list_with_text_can_show_what_no_section_does():
    asked = by_hand(ann=SPLIT)
    environment = deep_research(world=shelf(asked), header="{title} {text:.99}")
    assert played(environment, asked, "<search> film </search>", GUESS) == 1
    assert played(environment, asked, SEARCH, ANSWER) == -1


@pytest.mark.parametrize(
    "options", [{"header": "<doc> {number}"}, {"summary_characters": 8}], ids=["unnamed", "cut"]
)
def test_where_no_search_can_list_a_title_no_reading_is_wrong(options):
    asked = by_hand()
    environment = deep_research(world=shelf(asked), **options)
    assert played(environment, asked, GUESS) == -1
    assert played(environment, asked, SEARCH, READ, READ_NEXT, ANSWER) == -1
    assert played(environment, asked, SEARCH, READ, READ_NEXT, GUESS) == 3


def test_what_was_shown_all_the_same_ends_the_silence():
    """The document holds the paragraph inside a longer one, which is long enough to be kept."""
    asked = by_hand(f"{FILM}, a star")
    longer = replace(asked.hops[1], paragraph=f"{ANN}, and so on for long")
    world = shelf(replace(asked, hops=(asked.hops[0], longer)))
    environment = deep_research(world=world, minimum_paragraph=20)
    nobody = "<search> nobody </search>"
    assert played(environment, asked, SEARCH, READ, nobody, GUESS) == -1
    assert played(environment, asked, SEARCH, READ, nobody, READ_NEXT, ANSWER) == -1
    assert played(environment, asked, SEARCH, READ, nobody, READ_NEXT, GUESS) == 4


def test_a_passage_that_only_another_document_cuts_off_can_still_be_searched_for():
    asked = by_hand()
    options = {"passage": "{title} {text}", "observation_characters": 40}
    environment = short_horizon(world=shelf(asked), **options)
    assert played(environment, asked, SEARCH, GUESS) == 1
    assert played(environment, asked, SEARCH, "<search> ann </search>", ANSWER) == -1
    film, ann = shelf(asked).documents
    behind = ListWorld((film, document("anna", "no relation of ann"), ann))
    environment, find = short_horizon(world=behind, **options), "<search> film </search>"
    assert played(environment, asked, find, "<search> ann anna </search>", GUESS) == 2
    untitled = short_horizon(world=shelf(asked), passage="Doc {number}: {text}")
    assert played(untitled, asked, find, GUESS) == 1


@pytest.mark.parametrize("passage", ["{title} {text}", "<doc> {title} {text}", "{title}: {text}"])
def test_a_title_that_begins_with_the_one_in_need_is_another_document(passage):
    film, ann = shelf(by_hand()).documents
    other = ListWorld((film, document("ann lee", "no relation"), ann))
    environment = short_horizon(world=other, passage=passage, search_results=1)
    find, miss = "<search> film </search>", "<search> ann lee </search>"
    assert played(environment, by_hand(), find, miss, GUESS) == 2


# --- environments of one's own


class OwnEpisode:
    """Knows its first wrong turn, and perhaps hears of turns that do not reach it."""

    prompt, reward, success, grounded, oracle_turn = "?", 0.0, False, None, 0

    def step(self, message: str) -> Step:
        return Step("search", "nothing")


class FollowingEpisode(OwnEpisode):
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def note_action(self, action: str, argument: str) -> None:
        self.told.append((action, argument))


def own_environment(episode: OwnEpisode) -> SimpleNamespace:
    return SimpleNamespace(
        actions=("search", "answer"),
        wording=WORDINGS["tiny"],
        settings=SimpleNamespace(max_turns=9),
        reset=lambda asked, stream: episode,
    )


@pytest.mark.parametrize("wrappers", [1, 2])
@pytest.mark.parametrize("make", [OwnEpisode, FollowingEpisode])
def test_a_failed_call_reaches_an_own_episode_or_makes_its_turns_unknown(make, wrappers):
    """Its count of the turns is one behind if it was not told."""
    own = make()
    environment = own_environment(own)
    for _ in range(wrappers):
        environment = FailingTools(environment, rate=1.0)
    episode = environment.reset(question(), random.Random(0))
    assert oracle_turn(episode, 9) == 0
    episode.step("<answer> x </answer>")
    assert oracle_turn(episode, 9) == 0, "an answer cannot fail"
    assert episode.step("<search> x y </search>").action == "search"
    assert oracle_turn(episode, 9) == (0 if make is FollowingEpisode else None)
    assert getattr(own, "told", [("search", "x y")]) == [("search", "x y")]


# --- whole worlds, played right but for one turn


@functools.cache
def factbook() -> FactbookWorld:
    attributes = ("capital", "top export partner", "longest land border")
    return FactbookWorld(hops=(1, 2, 3), max_per_final=1, miss_rate=0.3, attributes=attributes)


WORLDS = {"sure searches": lambda: WORLD, "missed searches": lambda: SMALL, "factbook": factbook}


PATIENT = replace(PERFECT, patience=99)


def perfect(environment, asked, seed: int, *, slip: int = -1, wrong: str = "") -> tuple[int, int]:
    """Number of turns of a perfect script with one more before turn `slip`, and the oracle's turn.

    Every turn is checked as it is played, so that a wrong turn is known at once.
    """
    episode = environment.reset(asked, random.Random(seed))
    script = research(asked, (), PATIENT, random.Random(seed), environment.actions)
    message, turn, step = next(script), 0, None
    while step is None or step.stop_reason is None:
        step = episode.step(wrong if turn == slip else message)
        expected = slip if 0 <= slip <= turn else -1
        assert episode.oracle_turn == expected, (asked, slip, wrong, turn, message)
        if turn != slip and step.stop_reason is None:
            message = script.send(step.observation)
        turn += 1
    return turn, episode.oracle_turn


def wrong_messages(asked: Question, names, actions, stream: random.Random) -> list[str]:
    """One message of every kind that no turn needs, about a name that is on no path."""
    wanted = {word for hop in asked.hops for word in words(hop.title)}
    strangers = [name for name in names if name not in wanted]
    name = stream.choice([n for n in strangers if not exact_match(n, asked.answers)])
    return [f"<{action}> {name} </{action}>" for action in actions] + ["no action"]


@pytest.mark.parametrize("make", [deep_research, short_horizon])
@pytest.mark.parametrize("world", WORLDS)
def test_a_perfect_script_is_right_and_one_wrong_turn_is_found_wherever_it_is(world, make):
    world, stream = WORLDS[world](), random.Random(7)
    environment = make(world=world, max_turns=999, invalid_ends=False)
    asked = [q for q in world.train_questions(12, stream) if q.hops[-1].paragraph]
    assert len(asked) > 5
    for seed, each in enumerate(asked):
        turns, found = perfect(environment, each, seed)
        assert found == -1
        for wrong in wrong_messages(each, world.names, environment.actions, stream):
            slip = stream.randrange(turns)
            assert perfect(environment, each, seed, slip=slip, wrong=wrong)[1] == slip


# --- records and batches


@pytest.mark.parametrize(("turn", "expected"), [(None, None), (-1, -1), (1, 1), (2, -1)])
def test_a_wrong_turn_beyond_the_record_is_none_of_its_turns(turn, expected):
    assert oracle_turn(SimpleNamespace(oracle_turn=turn), 2) == expected
    assert oracle_turn(SimpleNamespace(), 2) is None


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
