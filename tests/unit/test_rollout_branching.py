"""Branching rollouts: what they share, what they cost, and when they branch."""

import copy
import math
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from play import (
    SMALL,
    TINY,
    CoinEpisode,
    coin_environment,
    global_streams,
    policy,
    questions,
    synthetic_environment,
    vocabulary,
)

from turncredit.batching import contexts, from_trajectories
from turncredit.environments import SearchR1, SearchR1Settings
from turncredit.environments.wrappers import Disturbances, disturbed
from turncredit.policies.decoder_forks import forked, joined
from turncredit.policies.tiny import TinyPolicy
from turncredit.policies.tiny_decoder import Decoder
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.records import Trajectory
from turncredit.rollout.branching import BranchRule, branch_score, global_samples, opening_entropy
from turncredit.rollout.forks import fork_episode
from turncredit.rollout.protocol import Asked, Drawn
from turncredit.rollout.rows import Row
from turncredit.rollout.strategies import STRATEGIES
from turncredit.seeding import python_stream

WORDS = vocabulary()
NEVER = {"tau": 9.0}
BRANCHING = [
    ("arpo", {"k": 1, "alpha": 0.55}),
    ("arpo", {"k": 3, "alpha": 0.55, "branches": 2}),
    ("arpo", {"measured": "last", "form": "sum"}),
    ("arpo", {"rule": "random", "k": 2}),
    ("aepo", {"k": 3, "tau": 0.4}),
    ("aepo", {"slope": None, "counter": "question", "rounding": "above"}),
]
every_strategy = pytest.mark.parametrize(("name", "options"), BRANCHING)


def lasting(**options: object):
    """Deep research over the small world that a malformed message does not end."""
    return synthetic_environment(invalid_ends=False, max_turns=12, **options)


def drawn(name: str, options: dict, environment=None, *, model=None, **given: object) -> Drawn:
    """The groups of a step; by default 4 of 3 questions in the coin environment."""
    count, size = given.pop("count", 3), given.pop("size", 4)
    setting = {"seed": 0, "step": 0, "max_turn_tokens": 5} | given
    parts = (model or policy(), WORDS, environment or coin_environment(0.1), questions(count))
    return STRATEGIES[name](**options).draw(Asked(*parts, size, **setting))


def flat(result: Drawn) -> list[Trajectory]:
    return [trajectory for group in result.groups for trajectory in group]


# --- what is shared


@every_strategy
def test_groups_are_whole_and_their_parts_add_up(name, options):
    result = drawn(name, options, size=6)
    assert [len(group) for group in result.groups] == [6, 6, 6]
    counts = result.counts
    assert (
        counts["rollout_trajectories"]
        == 18
        == counts["rollout_roots"] + counts["rollout_branches"] + counts["rollout_refills"]
    )
    assert counts["rollout_branches"] == len(result.forks) > 0
    assert len({(fork.question, fork.child) for fork in result.forks}) == len(result.forks)


@every_strategy
def test_a_branch_shares_everything_before_its_turn_and_begins_that_anew(name, options):
    result = drawn(name, options, size=8)
    openings = 0
    for made in result.forks:
        parent, child = (result.groups[made.question][n] for n in (made.parent, made.child))
        assert made.turn >= 1
        assert child.prompt_ids == parent.prompt_ids
        assert child.turns[: made.turn] == parent.turns[: made.turn], "log-probs included"
        pair = [t.turns[made.turn].sampled_ids for t in (parent, child)]
        openings += pair[0] != pair[1]
    assert openings > len(result.forks) / 2, "their own random numbers"


@torch.no_grad()
@every_strategy
@pytest.mark.parametrize("end", [0.05, 0.3])
def test_rollout_and_scoring_agree(name, options, end):
    """A branch that read its prefix from another row's cache, or caught up in a batch of its own,
    has the log-probs that scoring its tokens gives."""
    model = policy(1)
    trajectories = flat(drawn(name, options, coin_environment(end), model=model, size=6))
    batch = from_trajectories(trajectories, group_ids=range(len(trajectories)))
    logprobs, entropies = model.score(batch.token_ids, batch.response_mask)
    assert (logprobs - batch.rollout_logprobs)[batch.response_mask].abs().max() < 1e-5
    assert (entropies - batch.entropies)[batch.response_mask].abs().max() < 1e-5
    assert all(len(trajectory.token_ids) <= TINY.max_tokens for trajectory in trajectories)


@pytest.mark.parametrize("name", ["arpo", "aepo"])
@pytest.mark.parametrize("environment", [coin_environment(0.2), lasting()], ids=["coin", "search"])
def test_without_a_branch_trajectories_are_the_independent_ones(name, environment):
    """Also those that fill up the group, and after a trial: rows keep their random numbers."""
    plain, other = (flat(drawn(n, o, environment)) for n, o in (("independent", {}), (name, NEVER)))
    assert [t.token_ids for t in other] == [t.token_ids for t in plain]
    assert [(t.reward, t.stop_reason, t.grounded) for t in other] == [
        (t.reward, t.stop_reason, t.grounded) for t in plain
    ]


def test_independent_is_what_training_played_before():
    from turncredit.rollout import roll_out

    asked = [question for question in questions(3) for _ in range(4)]
    expected = roll_out(
        policy(), WORDS, coin_environment(0.1), asked, seed=0, step=0, max_turn_tokens=5
    )
    result = drawn("independent", {})
    assert flat(result) == expected
    assert (result.counts, result.forks) == ({}, [])


@every_strategy
def test_drawing_twice_is_equal_and_touches_no_global_stream(name, options):
    before = global_streams()
    first = drawn(name, options, lasting(), seed=3, step=2)
    assert first == drawn(name, options, lasting(), seed=3, step=2)
    assert first.groups != drawn(name, options, lasting(), seed=4, step=2).groups
    assert first.groups != drawn(name, options, lasting(), seed=3, step=1).groups
    assert global_streams() == before


# --- what it costs


class CountedDecoder(Decoder):
    def step(self, token_ids, speaking=None):
        self.policy.tokens_fed += len(token_ids)
        return super().step(token_ids, speaking)


class CountedPolicy(TinyPolicy):
    """Counts the tokens that its decoders, and what was forked from them, are fed."""

    tokens_fed = 0

    def decoder(self, rows):
        return CountedDecoder(self, rows)


def tokens_to_read(result: Drawn) -> int:
    """Every prompt once, and of every trajectory what it does not share with its parent.

    The last token of a trajectory is sampled and not read; one cut by max_tokens has read all
    that fits, also of an observation that its record drops.
    """
    shared = {
        (fork.question, fork.child): len(list(contexts_of(result, fork))[fork.turn])
        for fork in result.forks
    }
    prompts = {t.prompt_ids for group in result.groups for t in group}
    total = sum(map(len, prompts))
    for question, group in enumerate(result.groups):
        for number, trajectory in enumerate(group):
            cut = trajectory.stop_reason == "max_tokens"
            read = TINY.max_tokens - 1 if cut else len(trajectory.token_ids) - 1
            total += read - shared.get((question, number), len(trajectory.prompt_ids))
    return total


def contexts_of(result: Drawn, fork):
    return contexts(result.groups[fork.question][fork.child])


@every_strategy
@pytest.mark.parametrize("environment", [coin_environment(0.15), lasting()], ids=["coin", "search"])
@pytest.mark.parametrize("size", [4, 16])
def test_a_forked_rollout_reads_its_new_tokens_only(name, options, environment, size):
    model = CountedPolicy(TINY, len(WORDS), 0)
    result = drawn(name, options, environment, model=model, count=6, size=size)
    least = tokens_to_read(result)
    assert least <= model.tokens_fed <= 1.05 * least
    assert result.counts["rollout_tokens"] == model.tokens_fed
    assert result.counts["rollout_tokens_needed"] == least
    assert len(result.forks) > 0


def test_branches_save_what_they_share():
    """The same number of trajectories of the same mean length, each alone, would read more."""
    model = CountedPolicy(TINY, len(WORDS), 0)
    result = drawn("arpo", {"k": 1}, coin_environment(0.05), model=model, count=6, size=16)
    alone = sum(len(t.token_ids) - 1 for t in flat(result))
    assert len(result.forks) > 30
    assert model.tokens_fed < 0.9 * alone


def test_tool_calls_are_counted_once():
    """Those of turns that branches share too; an answer and a malformed message are none."""
    result = drawn("arpo", {"k": 1}, coin_environment(0.1), size=8)
    calls = {
        (question, before + turn.sampled_ids)
        for question, group in enumerate(result.groups)
        for trajectory in group
        for turn, before in zip(trajectory.turns, contexts(trajectory), strict=True)
        if turn.action == "search"
    }
    assert result.counts["rollout_tool_calls"] == len(calls)


# --- episodes


DISTURBED = Disturbances(tool_failure=0.3, word_drop=0.2, word_swap=0.2, outcome_flip=0.5)


def every_environment() -> dict[str, object]:
    short = SearchR1(SMALL, SearchR1Settings(max_turns=9))
    return {
        "coin": coin_environment(0.1),
        "search": lasting(),
        "disturbed": disturbed(lasting(), DISTURBED),
        "short": disturbed(short, DISTURBED),
    }


MESSAGES = (
    "<search> {title} </search>", "<read_chunk> {title} </read_chunk>", "nonsense",
    "<external_verify> western </external_verify>", "<search> western </search>",
    "<read_chunk> people </read_chunk>",
)  # fmt: skip


def play_on(episode, asked, stream: random.Random, count: int = 5) -> list:
    title = asked.hops[0].title
    said = [stream.choice(MESSAGES).replace("{title}", title) for _ in range(count)]
    return [episode.step(message) for message in said]


def outcome(episode) -> tuple:
    names = ("reward", "success", "grounded", "oracle_turn")
    return tuple(getattr(episode, name, None) for name in names)


@pytest.mark.parametrize("kind", every_environment())
@pytest.mark.parametrize("seed", range(6))
def test_a_forked_episode_goes_on_exactly_and_on_its_own(kind, seed):
    environment, asked = every_environment()[kind], questions(4)[seed % 4]
    episode = environment.reset(asked, random.Random(seed))
    play_on(episode, asked, random.Random(seed), 3)
    twin, third = (fork_episode(environment, Row(0, asked, episode, ())) for _ in range(2))
    play_on(episode, asked, random.Random(seed + 1))
    after = outcome(episode)
    steps = play_on(twin, asked, random.Random(seed + 2))
    assert play_on(third, asked, random.Random(seed + 2)) == steps
    assert outcome(third) == outcome(twin)
    assert outcome(episode) == after
    assert "environment" not in vars(twin) or twin.environment is episode.environment


def test_what_belongs_to_no_episode_is_not_copied():
    environment = disturbed(lasting(), DISTURBED)
    asked = questions(1)[0]
    episode = environment.reset(asked, random.Random(0))
    twin = fork_episode(environment, Row(0, asked, episode, ()))
    before = sum(environment.failures.values())
    for _ in range(40):
        twin.step("<search> western </search>")
    assert sum(environment.failures.values()) > before, "counted where it is read"
    inner, own = twin, episode
    while "episode" in vars(inner):
        inner, own = inner.episode, own.episode
        assert inner is not own
    assert inner.question is asked
    assert inner.environment is own.environment
    assert inner.stream is not own.stream


def test_an_environment_that_cannot_be_branched_says_so(monkeypatch):
    monkeypatch.delattr(CoinEpisode, "snapshot")
    with pytest.raises(ValueError, match="CoinEnvironment have no snapshot"):
        drawn("arpo", {"k": 1, "alpha": 0.55})


@pytest.mark.parametrize("kind", ["coin", "search", "disturbed"])
@every_strategy
def test_every_trajectory_is_one_that_its_root_could_have_been(kind, name, options):
    """Its messages, said in an episode begun as its root's was, get its observations and reward."""
    words = tag_vocabulary(lasting().actions, [*SMALL.words, "tool", "error"])
    model = TinyPolicy(TINY, len(words), 0)
    environment, asked = every_environment()[kind], questions(3)
    size, setting = 6, {"seed": 5, "step": 7, "max_turn_tokens": 5}
    result = STRATEGIES[name](**options).draw(
        Asked(model, words, environment, asked, size, **setting)
    )
    parents = {(fork.question, fork.child): fork.parent for fork in result.forks}
    for question, group in enumerate(result.groups):
        for number, trajectory in enumerate(group):
            root = number
            while (question, root) in parents:
                root = parents[question, root]
            stream = python_stream(5, "environment", 7, question * size + root)
            episode = environment.reset(asked[question], stream)
            assert words.encode_prompt(episode.prompt) == trajectory.prompt_ids
            replayed(episode, trajectory, words)


def replayed(episode, trajectory: Trajectory, words) -> None:
    for turn in trajectory.turns:
        if turn.action == "unfinished":
            break
        step = episode.step(words.decode(turn.sampled_ids))
        assert step.action == turn.action
        if turn is not trajectory.turns[-1]:
            assert words.encode(step.observation) == turn.observation_ids
    assert (episode.reward, episode.success) == (trajectory.reward, trajectory.success)


# --- when they branch


@pytest.mark.parametrize("measured", ["next", "last"])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_branches_leave_exactly_where_entropy_rose(measured, k):
    """ARPO's defaults, with a budget that is not used up; recomputed from the records."""
    options = {"k": k, "measured": measured, "initial": 1 / 96}
    result = drawn("arpo", options, coin_environment(0.15), count=2, size=96, seed=2)
    assert all(sum(fork.question == q for fork in result.forks) < 95 for q in range(2)), (
        "budget left"
    )
    begun = {(fork.question, fork.child): fork.turn for fork in result.forks}
    found = Counter((fork.question, fork.parent, fork.turn) for fork in result.forks)
    refills = [96 - 1 - sum(fork.question == q for fork in result.forks) for q in range(2)]
    expected = Counter()
    for question, group in enumerate(result.groups):
        for number, trajectory in enumerate(group[: 96 - refills[question]]):
            rises = decisions(trajectory, k, measured)
            start = begun.get((question, number), 0)
            expected.update((question, number, turn) for turn in rises if turn > start)
    assert found == expected
    assert len(expected) > 5


def decisions(trajectory: Trajectory, k: int, measured: str) -> list[int]:
    """Turns before which a trajectory branches."""

    def opening(turn: int) -> float:
        return opening_entropy(trajectory.turns[turn].sampled_entropies, k=k, tokens=len(WORDS))

    rises = []
    for turn in range(1, len(trajectory.turns)):
        said = trajectory.turns[turn]
        complete = said.action != "unfinished" or len(said.sampled_ids) >= k
        shown = turn if measured == "next" else turn - 1
        if (complete or measured == "last") and opening(shown) - opening(0) > 0:
            rises.append(turn)
    return rises


def chain_turns(result: Drawn, number: int) -> list[int]:
    return [fork.turn for fork in result.forks if fork.parent == number]


CONSTANT = {"gamma": 0.0, "alpha": 0.55, "beta": -1e9, "k": 1}
"""Scores 0.55, 0.5225, 0.495, ... whatever the entropies are; see the next test."""


def endless(counter: str, monkeypatch, **options: object) -> Drawn:
    """One question, one root beside the trial, 40 branches at most, and no end but max_tokens."""
    monkeypatch.setattr("turncredit.rollout.strategies.global_samples", lambda *a, **o: 2)
    given = CONSTANT | {"counter": counter} | options
    return drawn("aepo", given, coin_environment(0.0), count=1, size=42)


def test_the_penalty_counts_consecutive_branches_of_each_chain(monkeypatch):
    """Two branches in a row, then one tool result without, on every chain; a branch's chain is its
    parent's up to there."""
    result = endless("chain", monkeypatch)
    root = chain_turns(result, 1)
    assert root == [turn for turn in range(1, root[-1] + 1) if turn % 3], "1 2, 4 5, 7 8, ..."
    assert len(root) > 4
    first = next(fork.child for fork in result.forks if fork.turn == 1)
    assert chain_turns(result, first)[:3] == [2, 4, 5], "it has its parent's branch behind it"
    second = next(f.child for f in result.forks if f.turn == 2 and f.parent == 1)
    assert chain_turns(result, second)[:2] == [4, 5]


def test_a_counter_of_the_question_is_never_reset(monkeypatch):
    result = endless("question", monkeypatch)
    assert len(result.forks) == 2
    assert result.counts["rollout_refills"] == 38


def test_the_slope_of_the_other_reading_is_gamma(monkeypatch):
    """gamma 0 as a slope is no penalty at all: every tool result branches."""
    result = endless("chain", monkeypatch, slope=None)
    root = chain_turns(result, 1)
    assert root == list(range(1, len(root) + 1))


def test_a_trial_that_branches_nowhere_sets_the_number_of_roots():
    options = {"k": 2, "beta": 40.0}
    result = drawn("aepo", options | NEVER, coin_environment(0.1), count=5, size=8)
    expected = 0
    for group in result.groups:
        root, *tools = (
            opening_entropy(turn.sampled_entropies, k=2, tokens=len(WORDS))
            for turn in group[0].turns
        )
        expected += global_samples(8, root, tools, beta=40.0)
    assert result.counts["rollout_roots"] == expected != 5 * 4
    assert all(fork.parent != 0 for fork in drawn("aepo", {"k": 2}, size=8).forks)


@pytest.mark.parametrize(("initial", "roots"), [(0.01, 1), (0.5, 5), (1.0, 10)])
def test_the_initial_share_is_at_least_one_trajectory(initial, roots):
    result = drawn("arpo", {"initial": initial} | NEVER, count=1, size=10)
    assert result.counts["rollout_roots"] == roots
    assert result.counts["rollout_refills"] == 10 - roots


def test_a_random_rule_branches_with_probability_alpha_plus_change():
    """The published code: u - beta change <= p.  Level u, weight beta, threshold 1 - p."""
    rule = BranchRule(
        alpha=0.5, weight=0.2, tau=0.5, slope=0.0, counter="chain", rule="random",
        branches=1, k=1, form="mean", measured="next",
    )  # fmt: skip
    stream = random.Random(0)
    for change in (-0.5, 0.0, 0.7):
        share = sum(rule.branches_after(change, 0, stream.random()) for _ in range(20000)) / 20000
        assert share == pytest.approx(0.5 + 0.2 * change, abs=0.015)


@pytest.mark.parametrize("rounding", ["nearest", "above"])
def test_global_samples_are_from_one_to_the_size(rounding):
    for size in (1, 2, 7, 16):
        for gap in (-1e6, -1.0, 0.0, 1.0, 1e6):
            assert 1 <= global_samples(size, gap, [0.0], beta=1e3, rounding=rounding) <= size
    wide = [global_samples(16, root, [0.5], beta=4.0) for root in (0.1, 0.5, 0.9)]
    assert wide == sorted(wide) and wide[1] == 8, "an uncertain root wants global samples"


def test_no_penalty_makes_a_score_negative():
    assert branch_score(0.5, 0.0, weight=0.2, consecutive=30, slope=0.05) == 0.0
    assert math.isfinite(branch_score(0.5, 1e300, weight=0.2, consecutive=99, slope=0.2))


# --- refusals


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("arpo", {"initial": 0.0}, "initial is 0.0"),
        ("arpo", {"k": 0}, "k is 0"),
        ("arpo", {"branches": 1.5}, "branches is 1.5"),
        ("arpo", {"rule": "coin"}, "unknown rule 'coin'"),
        ("arpo", {"slope": 0.1}, "no option 'slope'"),
        ("aepo", {"slope": -0.1}, "slope is -0.1"),
        ("aepo", {"counter": "batch"}, "unknown counter 'batch'"),
        ("aepo", {"rounding": "down"}, "unknown rounding 'down'"),
        ("aepo", {"measured": "now"}, "unknown measured 'now'"),
        ("independent", {"k": 1}, "no option 'k'"),
        ("beam", {}, "unknown rollout strategy 'beam'"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        STRATEGIES[name](**options)


def test_an_engine_and_temperature_0_are_refused():
    model = policy()
    with pytest.raises(ValueError, match=r"temperature = 0\.0"):
        drawn("arpo", {}, model=model, temperature=0.0)
    model.engine = lambda: None
    model.settings = replace(model.settings)
    with pytest.raises(ValueError, match="rollout: independent"):
        drawn("arpo", {}, model=model)


# --- decoders


@torch.no_grad()
def test_forked_and_joined_rows_read_on_as_if_they_had_read_all():
    """Row 1 as it was after 3 tokens, twice, caught up beside rows 0 and 1."""
    model = policy()
    ids = torch.randint(0, len(WORDS), (4, 9), generator=torch.Generator().manual_seed(0))
    ids[2:, :3] = ids[1, :3]
    decoder = model.decoder(2)
    for token_ids in ids[:2, :6].unbind(1):
        decoder.step(token_ids)
    twin = forked(decoder, torch.tensor([1, 1]), 3)
    for token_ids in ids[2:, 3:6].unbind(1):
        twin.step(token_ids)
    with pytest.raises(ValueError, match="decoders stand at tokens 6 and 3"):
        joined(decoder, forked(decoder, torch.tensor([0]), 3))
    both = joined(decoder, twin)
    found = [both.step(token_ids) for token_ids in ids[:, 6:].unbind(1)]
    expected = model.hidden(ids)[:, 6:]
    torch.testing.assert_close(torch.stack(found, dim=1), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("length", [-1, 3])
def test_a_fork_at_a_token_that_was_not_read_is_refused(length):
    decoder = policy().decoder(1)
    for token in (1, 2):
        decoder.step(torch.tensor([token]))
    with pytest.raises(ValueError, match=f"length = {length} is not in 0..2"):
        forked(decoder, torch.tensor([0]), length)


def test_a_cache_that_forgets_cannot_go_back():
    layers = [SimpleNamespace(is_sliding=False), SimpleNamespace(is_sliding=True)]
    decoder = SimpleNamespace(cache=SimpleNamespace(layers=layers), length=5)
    with pytest.raises(ValueError, match="sliding windows cannot go back"):
        forked(decoder, torch.tensor([0]), 4)


def test_a_fork_leaves_its_decoder_as_it_was():
    decoder = policy().decoder(2)
    with torch.no_grad():
        for token in (1, 2, 3):
            decoder.step(torch.tensor([token, token]))
        keys = copy.deepcopy(decoder.keys[..., :3])
        forked(decoder, torch.tensor([1, 0, 0]), 2).step(torch.tensor([4, 5, 6]))
    assert decoder.length == 3
    assert torch.equal(decoder.keys[..., :3], keys)
