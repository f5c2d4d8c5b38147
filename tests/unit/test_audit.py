"""The audit measures what a turn was worth: exact by enumeration, and unbiased by continuation."""

import math
from dataclasses import replace

import pytest
import torch
from play import (
    TINY,
    CoinEpisode,
    coin_environment,
    global_streams,
    policy,
    questions,
    synthetic_environment,
    vocabulary,
)
from trees import TREE, TURN_TOKENS, WORDS, WORLD, taught_policy

from turncredit.audit import (
    AuditSettings,
    audit_turns,
    continuations_for,
    exact_audit,
    replay,
)
from turncredit.audit.continuations import Branch, Continuer
from turncredit.environments.wrappers import Disturbances, disturbed
from turncredit.policies.tiny import TinyPolicy
from turncredit.rollout import roll_out


@pytest.fixture(scope="module")
def tree_policy() -> TinyPolicy:
    return taught_policy()


def tree_starts(model, count: int, seed: int = 0):
    """Turns of `count` episodes, each of a question of its own."""
    asked = questions(count, seed)
    options = {"seed": seed, "step": 0}
    rolled = roll_out(model, WORDS, WORLD, asked, max_turn_tokens=TURN_TOKENS, **options)
    return rolled, replay(WORLD, WORDS, asked, rolled, **options)


def tree_audits(model, starts, **options):
    exact = exact_audit(model, WORDS, TREE, starts, max_turn_tokens=TURN_TOKENS)
    settings = AuditSettings(**options)
    drawn = audit_turns(model, WORDS, WORLD, starts, settings, max_turn_tokens=TURN_TOKENS)
    return exact, drawn


# --- exact


def test_exact_values_of_a_policy_that_says_every_word_alike():
    """By hand: with V words, a message of n words has probability V^-n."""
    model = TinyPolicy(replace(TINY, max_tokens=40), len(WORDS), 0)
    for parameter in model.parameters():
        parameter.data.zero_()
    p = 1 / len(WORDS)
    nothing = p * 0.25
    evidence = p * 1.0 + p**3 * 0.4 + p * nothing
    search, thoughtful = (share * evidence + (1 - share) * nothing for share in (0.5, 0.8))
    start = p * 0.25 + p * search + p**2 * thoughtful
    asked = questions(300)
    rolled = roll_out(model, WORDS, WORLD, asked, seed=0, step=0, max_turn_tokens=TURN_TOKENS)
    starts = replay(WORLD, WORDS, asked, rolled, seed=0, step=0)
    audit = exact_audit(model, WORDS, TREE, starts, max_turn_tokens=TURN_TOKENS)
    said = {(t.snapshot.state, WORDS.decode(t.message_ids)): (t.row, t.turn) for t in starts}
    for message, worth in (("</answer>", 0.25), ("</search>", search), ("found", 0.0)):
        place = next(at for (state, text), at in said.items()
                     if state == "question" and text.split()[0] == message)  # fmt: skip
        assert audit.values[place].item() == pytest.approx(start, rel=1e-5)
        assert audit.action_values[place].item() == pytest.approx(worth, rel=1e-5)
        assert audit.advantages[place].item() == pytest.approx(worth - start, rel=1e-5)
    later = [(t.row, t.turn) for t in starts if t.snapshot.state == "evidence"]
    assert later
    assert all(audit.values[place].item() == pytest.approx(evidence, rel=1e-5) for place in later)
    assert set(audit.errors[~audit.errors.isnan()].tolist()) == {0.0}


def test_exact_advantages_of_what_the_policy_says_have_mean_zero(tree_policy):
    """E[A(s, a)] over a is 0: 800 first turns, within 4 standard errors."""
    _, starts = tree_starts(tree_policy, 800, seed=5)
    audit = exact_audit(tree_policy, WORDS, TREE, starts, max_turn_tokens=TURN_TOKENS)
    first = audit.advantages[:, 0]
    assert first.std() > 0.02
    assert abs(first.mean()) < 4 * first.std() / math.sqrt(len(first))


def test_a_tree_that_does_not_fit_is_refused(tree_policy):
    _, starts = tree_starts(tree_policy, 2)
    small = TinyPolicy(replace(TINY, max_tokens=12), len(WORDS), 0)
    with pytest.raises(ValueError, match="max_tokens = 12 is below"):
        exact_audit(small, WORDS, TREE, starts, max_turn_tokens=TURN_TOKENS)


# --- by continuations


def test_estimates_are_unbiased_on_a_tree_over_a_thousand_turns(tree_policy):
    """Mean error of V, Q and A over 1,000 turns within 3 of its own standard errors, by state."""
    _, starts = tree_starts(tree_policy, 700)
    starts = starts[:1000]
    assert len(starts) == 1000
    exact, drawn = tree_audits(tree_policy, starts, continuations=8)
    places = [(start.row, start.turn) for start in starts]
    states = [start.snapshot.state for start in starts]
    assert len({round(exact.advantages[p].item(), 6) for p in places}) > 8
    for name in ("values", "action_values", "advantages"):
        for wanted in ("question", "evidence", "nothing", None):
            chosen = [p for p, s in zip(places, states, strict=True) if wanted in (s, None)]
            off = torch.stack([getattr(drawn, name)[p] - getattr(exact, name)[p] for p in chosen])
            assert abs(off.mean()) <= 3 * off.std() / math.sqrt(len(off)) + 1e-9, (name, wanted)
    off = torch.stack([(drawn.advantages - exact.advantages)[p] for p in places])
    claimed = torch.stack([drawn.errors[p] for p in places]).square().mean().sqrt()
    assert claimed / off.square().mean().sqrt() == pytest.approx(1.0, abs=0.1), "honest errors"


def test_the_default_budget_keeps_every_standard_error_below_a_twentieth(tree_policy):
    _, starts = tree_starts(tree_policy, 5, seed=1)
    _, drawn = tree_audits(tree_policy, starts)
    errors = drawn.errors[~drawn.errors.isnan()]
    assert len(errors) == len(starts)
    assert 0.01 < errors.max() <= 0.05
    assert AuditSettings().continuations >= continuations_for(0.05)


def test_common_random_numbers_help(tree_policy):
    """Paired differences vary less than differences of independent continuations would."""
    _, starts = tree_starts(tree_policy, 60, seed=2)
    continuer = Continuer(tree_policy, WORDS, WORLD, TURN_TOKENS, 16, 0, 2048)
    pairs = [(Branch(start, None), Branch(start, start.message_ids)) for start in starts]
    rewards = dict(continuer.rewards([branch for pair in pairs for branch in pair]))
    tables = [[rewards[branch.key] for branch in pair] for pair in pairs]
    independent = sum(before.var() + after.var() for before, after in tables)
    assert sum((after - before).var() for before, after in tables) < 0.9 * independent


def test_a_turn_is_worth_the_same_alone_and_among_others(tree_policy):
    _, starts = tree_starts(tree_policy, 12, seed=3)
    _, together = tree_audits(tree_policy, starts, continuations=8)
    start = starts[-1]
    _, alone = tree_audits(tree_policy, [start], continuations=8, batch_rows=8)
    place = (start.row, start.turn)
    for name in ("values", "action_values", "advantages", "errors"):
        assert getattr(alone, name)[place] == pytest.approx(getattr(together, name)[place])
    assert alone.values.isnan().sum() == alone.values.numel() - 1


def test_first_turns_of_a_group_share_one_state(tree_policy):
    asked = questions(1) * 6
    options = {"seed": 4, "step": 0}
    rolled = roll_out(tree_policy, WORDS, WORLD, asked, max_turn_tokens=TURN_TOKENS, **options)
    starts = [s for s in replay(WORLD, WORDS, asked, rolled, **options) if s.turn == 0]
    _, drawn = tree_audits(tree_policy, starts, continuations=8)
    messages = {start.message_ids for start in starts}
    assert drawn.cost["continuations"] == 8 * (1 + len(messages)) < 8 * 12
    assert len(set(drawn.values[:, 0].tolist())) == 1


# --- deep research


def research(count: int = 6, *, size: int = 2, seed: int = 0, environment=None, max_tokens=64):
    """Trajectories of a random policy that says little but closing tags, and their turns."""
    words_known, model = vocabulary(), policy(seed, replace(TINY, max_tokens=max_tokens))
    environment = environment or synthetic_environment(invalid_ends=False, invalid_penalty=0.1)
    asked = [question for question in questions(count, seed) for _ in range(size)]
    options = {"seed": seed, "step": 3}
    rolled = roll_out(model, words_known, environment, asked, max_turn_tokens=4, **options)
    return model, environment, asked, rolled, options


def test_every_recorded_turn_is_found_with_what_was_read_before_it():
    _, environment, asked, rolled, options = research()
    starts = replay(environment, vocabulary(), asked, rolled, **options)
    assert [(s.row, s.turn) for s in starts] == [
        (row, turn) for row, t in enumerate(rolled) for turn in range(len(t.turns))
    ]
    for start in starts:
        ids = rolled[start.row].token_ids
        assert ids[: len(start.prefix_ids)] == start.prefix_ids
        assert ids[len(start.prefix_ids) :][: len(start.message_ids)] == start.message_ids
    assert any(not start.finished for start in starts), "one filled the context"
    assert {start.finished for start in starts} == {True, False}


def test_a_trajectory_of_another_stream_is_refused():
    noisy = disturbed(synthetic_environment(invalid_ends=False), Disturbances(word_drop=0.5))
    _, _, asked, rolled, options = research(environment=noisy)
    replay(noisy, vocabulary(), asked, rolled, **options)
    with pytest.raises(ValueError, match=r"row \d+, turn \d+: the environment answers"):
        replay(noisy, vocabulary(), asked, rolled, seed=9, step=3)
    with pytest.raises(ValueError, match="row 0, prompt"):
        replay(noisy, vocabulary(), questions(12, 8), rolled, **options)


def test_a_message_that_ends_the_episode_is_worth_its_reward():
    model, environment, asked, rolled, options = research()
    starts = replay(environment, vocabulary(), asked, rolled, **options)
    settings = AuditSettings(continuations=4)
    audit = audit_turns(model, vocabulary(), environment, starts, settings, max_turn_tokens=4)
    ended = [s for s in starts if s.turn == len(rolled[s.row].turns) - 1]
    assert len(ended) == len(rolled)
    for start in ended:
        worth = audit.action_values[start.row, start.turn].item()
        assert worth == pytest.approx(rolled[start.row].reward)
    assert audit.values.isnan().sum() == audit.values.numel() - len(starts)


def test_what_cannot_be_audited_is_refused(monkeypatch):
    model, environment, asked, rolled, options = research(2)
    settings = AuditSettings(continuations=2)
    with pytest.raises(ValueError, match="no turn"):
        audit_turns(model, vocabulary(), environment, [], settings, max_turn_tokens=4)
    coins = coin_environment()
    monkeypatch.delattr(CoinEpisode, "snapshot")
    tossed = roll_out(model, vocabulary(), coins, asked, max_turn_tokens=4, **options)
    with pytest.raises(ValueError, match="CoinEnvironment have no snapshot"):
        replay(coins, vocabulary(), asked, tossed, **options)
    lost = [replace(trajectory, stop_reason="error") for trajectory in rolled]
    assert replay(environment, vocabulary(), asked, lost, **options) == []
    for wrong in (1, 0):
        with pytest.raises(ValueError, match="continuations"):
            AuditSettings(continuations=wrong)
    with pytest.raises(ValueError, match="standard_error = 0"):
        continuations_for(0.0)


def test_an_audit_leaves_policy_and_global_streams_alone():
    model, environment, asked, rolled, options = research(2)
    starts = replay(environment, vocabulary(), asked, rolled, **options)
    weights, streams = repr(model.state_dict()), global_streams()
    settings = AuditSettings(continuations=2)
    audit_turns(model, vocabulary(), environment, starts, settings, max_turn_tokens=4)
    assert (repr(model.state_dict()), global_streams()) == (weights, streams)
