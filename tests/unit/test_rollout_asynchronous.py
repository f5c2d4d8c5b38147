"""Trajectories that ask an engine one by one: those of the lock-step engine, to the last token."""

import asyncio
import math
import random
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from play import (
    ACTIONS,
    PLAIN,
    SMALL,
    TINY,
    TRAINING,
    ScriptedPolicy,
    coin_environment,
    policy,
    questions,
    synthetic_environment,
    vocabulary,
)

from turncredit import rollout
from turncredit.batching import from_trajectories
from turncredit.environments.wrappers import Disturbances, disturbed
from turncredit.evaluation import evaluate
from turncredit.policies.protocol import Message
from turncredit.rollout import asynchronous, lockstep
from turncredit.rollout.lockstep import sample
from turncredit.run_checks import check_run
from turncredit.seeding import derive, torch_stream
from turncredit.training import new_optimiser, train

WORDS = vocabulary()
CLOSING = [WORDS.id(f"</{name}>") for name in ACTIONS]
OPENING = [WORDS.id(f"<{name}>") for name in ACTIONS]
CONTENT = [*map(WORDS.id, SMALL.words)]
ROWS = 24
ASKED = {"seed": 0, "step": 0, "max_turn_tokens": 5}


@dataclass
class Engine:
    """Says what `next_token(ids, row)` says, token by token; answers when all who may ask have."""

    next_token: object
    asked: int = 0
    together: int = 0
    """The largest number of requests that were open at once."""
    open: int = 0

    async def generate(self, token_ids, *, ended, max_tokens, temperature, seed):
        row = ROW_OF[seed]
        self.asked, self.open = self.asked + 1, self.open + 1
        await asyncio.sleep(0)
        self.together = max(self.together, self.open)
        self.open -= 1
        ids, spoken = list(token_ids), []
        while len(spoken) < max_tokens and not (spoken and ended([t for t, *_ in spoken])):
            spoken.append(self.next_token(ids, row, temperature))
            ids.append(spoken[-1][0])
        return Message(*map(tuple, zip(*spoken, strict=True)))


ROW_OF = {derive(0, "sampling", 0, row, turn): row for row in range(ROWS) for turn in range(64)}


# --- two policies and the engines that say the same


class Pseudorandom:
    """Whose next token follows from everything before it, with probability 1."""

    settings = TINY

    def decoder(self, rows):
        self.fed, self.length = [[] for _ in range(rows)], 0
        return self

    def step(self, token_ids, speaking):
        self.length += 1
        for ids, token in zip(self.fed, token_ids.tolist(), strict=True):
            ids.append(token)
        return torch.tensor([following(self.fed[slot]) for slot in speaking])

    def keep(self, rows):
        self.fed = [list(self.fed[row]) for row in rows.tolist()]

    def logits(self, hidden):
        return torch.full((len(hidden), len(WORDS)), -1e9).scatter_(1, hidden[:, None], 0.0)


def following(ids):
    """Mostly one action around one word, sometimes any token at all."""
    stream = random.Random(repr(ids))
    if stream.random() < 0.1:
        return stream.randrange(len(WORDS))
    if ids[-1] in OPENING:
        return stream.choice(CONTENT)
    if ids[-2] in OPENING:
        return CLOSING[OPENING.index(ids[-2])]
    return stream.choice(OPENING)


def pseudorandom(max_tokens=TINY.max_tokens):
    model = Pseudorandom()
    model.settings = replace(TINY, max_tokens=max_tokens)
    return model, Engine(lambda ids, row, temperature: (following(ids), 0.0, 0.0))


def tiny(max_tokens=TINY.max_tokens):
    """The engine draws each row's tokens with the numbers that the lock-step engine has for it."""
    model = policy(settings=replace(TINY, max_tokens=max_tokens))
    uniforms = torch.rand(ROWS, max_tokens, generator=torch_stream(0, "sampling", 0))

    @torch.no_grad()
    def next_token(ids, row, temperature):
        logits = model.logits(model.hidden(torch.tensor([ids]))[:, -1]) / temperature
        token, (logprob, entropy) = sample(logits, uniforms[row, len(ids) - 1][None])
        return token.item(), logprob.item(), entropy.item()

    return model, Engine(next_token)


def both(pair, environment, **options):
    """What the two engines make of the same questions: (lock-step, asynchronous)."""
    (model, engine), options = pair, ASKED | options
    asked = questions(ROWS // 4) * 4
    stepped = lockstep.roll_out(model, WORDS, environment(), asked, **options)
    limit = model.settings.max_tokens
    alone = asynchronous.roll_out(engine, WORDS, environment(), asked, max_tokens=limit, **options)
    return stepped, alone


ENVIRONMENTS = {
    "research": synthetic_environment,
    "long": lambda: coin_environment(0.03),
    "short": lambda: coin_environment(0.6),
    "disturbed": lambda: disturbed(
        synthetic_environment(invalid_ends=False, max_turns=6),
        Disturbances(0.3, "no results", word_drop=0.2, outcome_flip=0.3),
    ),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("max_tokens", [20, 33, 64])
def test_both_engines_give_the_same_trajectories(name, max_tokens):
    """Equal records: ids, log-probs, actions, rewards, grounds and reasons to stop."""
    stepped, alone = both(pseudorandom(max_tokens), ENVIRONMENTS[name])
    assert alone == stepped


@pytest.mark.parametrize(("name", "temperature"), [("research", 1.0), ("short", 0.6)])
def test_both_engines_sample_alike_and_report_what_they_sampled_from(name, temperature):
    stepped, alone = both(tiny(), ENVIRONMENTS[name], temperature=temperature)
    assert [without_numbers(t) for t in alone] == [without_numbers(t) for t in stepped]
    one, two = (from_trajectories(each, group_ids=range(ROWS)) for each in (stepped, alone))
    assert torch.allclose(one.rollout_logprobs, two.rollout_logprobs, atol=1e-5)
    assert torch.allclose(one.entropies, two.entropies, atol=1e-5)


def without_numbers(trajectory):
    turns = [replace(turn, sampled_logprobs=(), sampled_entropies=(), sampled_ids=())
             for turn in trajectory.turns]  # fmt: skip
    return replace(trajectory, turns=tuple(turns)), [t.sampled_ids for t in trajectory.turns]


def test_every_way_to_end_was_among_them():
    """Guards the two tests above: cut turns, cut observations, empty ones, caps and answers."""
    seen = []
    for limit in (20, 33, 64):
        for environment in ENVIRONMENTS.values():
            seen += both(pseudorandom(limit), environment)[1]
    assert {t.stop_reason for t in seen} == {"answer", "invalid", "max_turns", "max_tokens"}
    cut = [t for t in seen if t.stop_reason == "max_tokens"]
    assert {t.turns[-1].action == "unfinished" for t in cut} == {True, False}
    assert any(not turn.observation_ids for t in seen for turn in t.turns[:-1])
    assert {len(t.turns[0].sampled_ids) for t in seen} >= {3, 4, 5}
    assert {t.grounded for t in seen} == {False, None}


def test_failures_of_tools_are_counted_alike():
    made = [ENVIRONMENTS["disturbed"]() for _ in range(2)]
    environments = iter(made)
    both(pseudorandom(), lambda: next(environments))
    assert made[0].failures == made[1].failures
    assert sum(made[0].failures.values()) > 5


def test_no_trajectory_waits_for_another():
    """All rows ask at once, and a row asks as often as it has turns."""
    model, engine = pseudorandom()
    _, alone = both((model, engine), synthetic_environment)
    assert engine.together == ROWS
    assert engine.asked == sum(len(t.turns) for t in alone)


# --- what an engine is asked


def test_requests_hold_the_context_the_room_and_a_seed_of_their_own():
    requests = []

    class Listening:
        async def generate(self, token_ids, **asked):
            requests.append((token_ids, asked["max_tokens"], asked["temperature"], asked["seed"]))
            return Message((CLOSING[0],), (-0.5,), (0.1,))

    played = asynchronous.roll_out(
        Listening(), WORDS, coin_environment(0.1), questions(3) * 2, max_tokens=40,
        temperature=0.7, **ASKED,
    )  # fmt: skip
    assert len({seed for *_, seed in requests}) == len(requests) > 12
    assert all(temperature == 0.7 for _, _, temperature, _ in requests)
    assert all(room == min(5, 40 - len(ids)) for ids, room, _, _ in requests)
    assert len({room for _, room, _, _ in requests}) > 1
    asked = {ids for ids, *_ in requests}
    for trajectory in played:
        ids = list(trajectory.prompt_ids)
        for turn in trajectory.turns:
            assert tuple(ids) in asked
            assert turn.sampled_logprobs == (-0.5,) and turn.sampled_entropies == (0.1,)
            ids += [*turn.sampled_ids, *turn.observation_ids]


def test_the_rest_of_the_library_takes_whichever_way_a_policy_offers(monkeypatch):
    """`rollout.roll_out`, which training and evaluation call, has no branch per kind of policy."""
    model, engine = pseudorandom()
    model.pushes = 0

    def synchronised():
        model.pushes += 1
        return engine

    asked = questions(ROWS // 4) * 4
    stepped = rollout.roll_out(model, WORDS, synthetic_environment(), asked, **ASKED)
    assert engine.asked == 0
    model.engine = synchronised
    assert rollout.roll_out(model, WORDS, synthetic_environment(), asked, **ASKED) == stepped
    assert engine.asked > 0 and model.pushes == 1
    monkeypatch.setitem(globals(), "ROW_OF", dict.fromkeys(evaluation_seeds(len(asked)), 0))
    environment = synthetic_environment()
    evaluate(model, WORDS, environment, asked, max_turn_tokens=5, temperature=1.0)
    assert model.pushes == 2


def evaluation_seeds(rows):
    return [derive(0, "sampling", -1, row, turn) for row in range(rows) for turn in range(64)]


def test_a_notebook_whose_loop_is_running_can_roll_out():
    async def cell():
        return both(pseudorandom(), synthetic_environment)

    stepped, alone = asyncio.run(cell())
    assert alone == stepped


def test_no_engine_is_asked_to_cut_the_distribution():
    """Ratios compare log-probs of the two engines: neither may know a top_p."""
    arguments = (WORDS, synthetic_environment(), questions(1))
    model, engine = pseudorandom()
    with pytest.raises(TypeError, match="top_p"):
        lockstep.roll_out(model, *arguments, **ASKED, top_p=0.9)
    with pytest.raises(TypeError, match="top_p"):
        asynchronous.roll_out(engine, *arguments, **ASKED, max_tokens=64, top_p=0.9)
    with pytest.raises(ValueError, match=r"temperature = 0\.0"):
        asynchronous.roll_out(engine, *arguments, **ASKED, max_tokens=64, temperature=0.0)


def test_a_prompt_that_leaves_no_room_is_refused_by_question():
    asked = questions(1)
    prompt = len(WORDS.encode(f"<question> {asked[0].text} </question>"))
    with pytest.raises(ValueError, match=asked[0].id):
        both_rooms(prompt, asked)
    (played,) = both_rooms(prompt + 1, asked)
    assert len(played.token_ids) == prompt + 1
    assert (played.stop_reason, played.turns[0].action) == ("max_tokens", "unfinished")


def both_rooms(max_tokens, asked):
    _, engine = pseudorandom()
    environment = synthetic_environment()
    return asynchronous.roll_out(engine, WORDS, environment, asked, max_tokens=max_tokens, **ASKED)


# --- errors


def said(*ids, logprobs=None, entropies=None):
    return Message(ids, logprobs or (-0.1,) * len(ids), entropies or (0.1,) * len(ids))


JUNK = {
    "raises": RuntimeError("out of memory"),
    "nothing": said(),
    "fewer log-probs": Message((1, 2, 3, 4, 5), (-0.1,), (0.1,) * 5),
    "fewer entropies": Message((1, 2, 3, 4, 5), (-0.1,) * 5, (0.1,)),
    "cut short": said(1, 2),
    "too long": said(*range(1, 7)),
    "past its end": said(CLOSING[0], 1, 2, 3, 4),
    "NaN": said(CLOSING[0], logprobs=(math.nan,)),
    "minus infinity": said(CLOSING[0], logprobs=(-math.inf,)),
    "a probability": said(CLOSING[0], logprobs=(0.9,)),
    "no id": said(1, 2, 3, 4, -1),
    "no message": None,
}


class Breaking(Engine):
    """Row 3 gets `junk` at its second turn; the others get what they would have got."""

    async def generate(self, token_ids, *, seed, **asked):
        if seed == derive(0, "sampling", 0, 3, 1):
            if isinstance(self.junk, Exception):
                raise self.junk
            return self.junk
        return await super().generate(token_ids, seed=seed, **asked)


@pytest.mark.parametrize("name", JUNK)
def test_an_engine_that_fails_one_request_loses_one_trajectory(name, caplog):
    model, engine = pseudorandom()
    breaking = Breaking(engine.next_token)
    breaking.junk = JUNK[name]
    stepped, alone = both((model, breaking), lambda: coin_environment(0.03))
    lost, whole = alone[3], stepped[3]
    assert alone[:3] + alone[4:] == stepped[:3] + stepped[4:]
    assert len(whole.turns) > 1
    assert (lost.stop_reason, lost.reward, lost.success) == ("error", None, False)
    assert lost.turns == (replace(whole.turns[0], observation_ids=()),)
    assert "1 of 24 trajectories failed" in caplog.text


def test_an_environment_that_raises_loses_one_trajectory():
    class Fragile(type(coin_environment())):
        def reset(self, question, stream):
            episode = super().reset(question, stream)
            Fragile.rows += 1
            if Fragile.rows == 4:
                episode.step = lambda message: 1 / 0
            return episode

    Fragile.rows = -ROWS  # the lock-step engine goes first, and unharmed
    stepped, alone = both(pseudorandom(), lambda: Fragile(SMALL.words, 0.03))
    assert alone[:3] + alone[4:] == stepped[:3] + stepped[4:]
    assert [turn.action for turn in alone[3].turns] == ["unfinished"]
    assert (alone[3].stop_reason, alone[3].reward) == ("error", None)


def test_an_engine_that_fails_every_request_is_an_error():
    class Dead:
        async def generate(self, token_ids, **asked):
            raise RuntimeError("the engine is dead")

    with pytest.raises(RuntimeError, match="the engine is dead"):
        both((pseudorandom()[0], Dead()), synthetic_environment)


@pytest.mark.parametrize("turn", [0, 1])
def test_a_step_trains_on_what_an_error_left(turn):
    """The reward is missing, not 0; a trajectory without a token is no obstacle."""
    model = policy()
    lost = derive(0, "sampling", 0, 3, turn)

    class Sampling(Engine):
        async def generate(self, token_ids, *, seed, **asked):
            if seed == lost:
                raise RuntimeError("lost")
            return await super().generate(token_ids, seed=seed, **asked)

    model.engine = lambda: Sampling(tiny()[1].next_token)
    once = replace(TRAINING, steps=1, questions_per_step=2)
    optimiser, environment = new_optimiser(model, once), coin_environment(0.3)
    (log,) = train(model, optimiser, WORDS, environment, SMALL, PLAIN, once, seed=0)
    assert (log.metrics["missing_rewards"], log.metrics["lost"]) == (1, 1)
    assert [t.stop_reason for t in log.trajectories].count("error") == 1
    assert len(log.trajectories[3].turns) == turn
    assert log.metrics["gradient_norm"] > 0
    task = SimpleNamespace(training=once, policy=None)
    check_run(pd.DataFrame([{"step": 0} | log.metrics]), task, "t/a/seed_0", {})  # is trusted
    assert all(math.isfinite(log.metrics[name]) for name in ("loss", "reward", "entropy"))


def test_a_script_is_played_word_for_word():
    """The same as the lock-step engine's test, through both."""
    asked = questions(1)
    script = f"<search> {asked[0].hops[0].title} </search> <answer> {asked[0].answers[0]} </answer>"
    left = list(WORDS.encode(script))

    class Saying:
        async def generate(self, token_ids, *, ended, **asked):
            ids = [left.pop(0)]
            while not ended(ids):
                ids.append(left.pop(0))
            return said(*ids, logprobs=(0.0,) * len(ids), entropies=(0.0,) * len(ids))

    model = ScriptedPolicy([script], WORDS)
    (stepped,) = lockstep.roll_out(model, WORDS, synthetic_environment(), asked, **ASKED)
    (alone,) = asynchronous.roll_out(
        Saying(), WORDS, synthetic_environment(), asked, max_tokens=64, **ASKED
    )
    assert alone == stepped
    assert (alone.reward, alone.stop_reason) == (1.0, "answer")
