"""The surprisal probe: states by rule, fresh responses with a shared prefix, what is measured."""

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from play import (
    TINY,
    coin_environment,
    global_streams,
    policy,
    questions,
    vocabulary,
)

from turncredit.batching import from_trajectories
from turncredit.credit.aem import aem
from turncredit.policies.prefix_cache import copies, read_prefix
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.policies.tiny_decoder import Decoder
from turncredit.probe import (
    PolicyResponder,
    State,
    all_states,
    draw_responses,
    enumerate_responses,
    fresh_alphas,
    held_out,
    measure,
    policy_responder,
    read_states,
    response_rows,
    sample_states,
    sign_agreement,
    training_alphas,
    training_relative,
    write_states,
)
from turncredit.records import Trajectory, Turn
from turncredit.rollout import roll_out
from turncredit.rollout.lockstep import sample
from turncredit.seeding import torch_stream

VECTORS = Path(__file__).parents[1] / "golden" / "vectors.json"
WORDS = vocabulary()
FEW = TinySettings(width=8, layers=2, heads=2, max_tokens=16)
"""For enumeration: with the five words below and three tokens a turn has at most 84 forms."""
CLOSING = frozenset({4})


def closed_by(closing):
    """A turn ends with one of these ids."""
    return lambda ids: ids[-1] in closing


def few_words(seed: int = 0, sharpness: float = 2.0) -> TinyPolicy:
    model = TinyPolicy(FEW, 5, seed)
    with torch.no_grad():
        model.embedding.weight *= sharpness
    return model


def turn(*ids: int, logprob: float = -1.0, entropy: float = 0.5, observed: tuple = ()) -> Turn:
    return Turn(ids, (logprob,) * len(ids), (entropy,) * len(ids), observed, "search")


def trajectory(question_id: str, prompt: tuple[int, ...], *turns: Turn) -> Trajectory:
    return Trajectory(question_id, prompt, turns, 0.0, False, "answer")


RECORDED = [
    trajectory("a", (1, 2), turn(3, 4, observed=(5,)), turn(6)),
    trajectory("a", (1, 2), turn(7), turn(), turn(8, 9)),
    trajectory("b", (1, 3), turn(3)),
]


def rolled(model=None, count: int = 4, group_size: int = 3, seed: int = 0) -> list[Trajectory]:
    asked = [question for question in questions(count) for _ in range(group_size)]
    return roll_out(
        model or policy(), WORDS, coin_environment(), asked, seed=seed, step=0,
        max_turn_tokens=5,
    )  # fmt: skip


def in_groups(trajectories: list[Trajectory]):
    numbers = {t.question_id: n for n, t in enumerate(trajectories)}
    return from_trajectories(trajectories, group_ids=[numbers[t.question_id] for t in trajectories])


# --- states


def test_a_state_is_all_the_policy_had_read():
    found = {(s.row, s.turn): s.prefix_ids for s in all_states(RECORDED, step=7)}
    assert found == {
        (0, 0): (1, 2),
        (0, 1): (1, 2, 3, 4, 5),
        (1, 0): (1, 2),
        (1, 2): (1, 2, 7),
        (2, 0): (1, 3),
    }


def test_states_are_prefixes_of_their_trajectories_and_of_their_turns():
    trajectories = rolled()
    for state in all_states(trajectories, step=0):
        said = trajectories[state.row].turns[state.turn].sampled_ids
        ids = trajectories[state.row].token_ids
        assert ids[: len(state.prefix_ids) + len(said)] == state.prefix_ids + said


@pytest.mark.parametrize("rule", ["turns", "trajectories", "contexts"])
def test_states_are_drawn_without_replacement_and_repeat(rule):
    trajectories, before = rolled(), global_streams()
    drawn = sample_states(trajectories, 6, seed=1, step=2, rule=rule)
    assert drawn == sample_states(trajectories, 6, seed=1, step=2, rule=rule)
    assert drawn == sorted(set(drawn), key=lambda s: (s.row, s.turn))
    assert {s.step for s in drawn} == {2}
    others = [sample_states(trajectories, 6, seed=seed, step=2, rule=rule) for seed in range(5)]
    assert any([s.row for s in other] != [s.row for s in drawn] for other in others)
    assert global_streams() == before


def frequencies(rule: str) -> Counter:
    draws = [sample_states(RECORDED, 1, seed=seed, step=0, rule=rule)[0] for seed in range(3000)]
    return Counter((s.row, s.turn) for s in draws)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("turns", dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 2), (2, 0)], 1 / 5)),
        ("trajectories", dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 2)], 1 / 6) | {(2, 0): 1 / 3}),
        ("contexts", dict.fromkeys([(0, 0), (0, 1), (1, 2), (2, 0)], 1 / 4)),
    ],
)  # fmt: skip
def test_each_rule_draws_with_its_probabilities(rule, expected):
    found = frequencies(rule)
    assert found.keys() == expected.keys()
    for place, share in expected.items():
        deviation = math.sqrt(share * (1 - share) / 3000)
        assert abs(found[place] / 3000 - share) < 4 * deviation


def test_trajectories_gives_one_state_a_trajectory():
    drawn = sample_states(RECORDED, 3, seed=0, step=0, rule="trajectories")
    assert [s.row for s in drawn] == [0, 1, 2]


@pytest.mark.parametrize(
    ("count", "rule", "complaint"),
    [(0, "turns", "count = 0"), (6, "turns", "5 states"), (4, "trajectories", "3 states"),
     (5, "contexts", "4 states"), (1, "best", "'best'")],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(count, rule, complaint):
    with pytest.raises(ValueError, match=complaint):
        sample_states(RECORDED, count, seed=0, step=0, rule=rule)


def test_no_question_is_both_fitted_and_held_out():
    states = all_states(rolled(count=5), step=0)
    fitted, kept = held_out(states, share=0.4, seed=3)
    questions_of = [{s.question_id for s in part} for part in (fitted, kept)]
    assert sorted(map(len, questions_of)) == [2, 3]
    assert not questions_of[0] & questions_of[1]
    assert sorted(fitted + kept, key=lambda s: (s.row, s.turn)) == states
    with pytest.raises(ValueError, match="part empty"):
        held_out(states, share=0.1, seed=3)


def test_states_are_recorded_with_what_drew_them(tmp_path):
    path, states = tmp_path / "states.json", all_states(RECORDED, step=1)
    write_states(path, states, rule="turns", seed=5)
    assert read_states(path) == states
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["rule"], record["seed"]) == ("turns", 5)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"states": [{"row": 1}]}', '{"states": [5]}'])
def test_a_broken_record_of_states_is_named(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken\.json"):
        read_states(path)


# --- responses


def separate_prompts(model: TinyPolicy, prefix, ended, uniforms) -> list[Turn]:
    """K rows that each read the whole prefix, one token at a time, and then speak."""
    rows, room = uniforms.shape
    decoder = model.decoder(rows)
    for token in prefix:
        hidden = decoder.step(torch.full((rows,), token))
    said: list[list[tuple]] = [[] for _ in range(rows)]
    over = [False] * rows
    for position in range(room):
        ids, (logprobs, entropies) = sample(model.logits(hidden), uniforms[:, position])
        drawn = zip(ids.tolist(), logprobs.tolist(), entropies.tolist(), strict=True)
        for row, token in enumerate(drawn):
            if not over[row]:
                said[row].append(token)
                over[row] = ended([ids for ids, _, _ in said[row]])
        hidden = decoder.step(ids)
    return [Turn(*zip(*row, strict=True), (), "unfinished") for row in said]


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_a_shared_prefix_gives_what_separate_prompts_give(seed):
    model = policy(seed)
    responder = policy_responder(model, WORDS, coin_environment(), max_turn_tokens=7)
    prefix = all_states(rolled(), step=0)[3].prefix_ids
    uniforms = torch.rand(9, 7, generator=torch_stream(5, "responses"))
    expected = separate_prompts(model, prefix, responder.ended, uniforms)
    found = responder.respond(prefix, 9, seed=5)
    assert [t.sampled_ids for t in found] == [t.sampled_ids for t in expected]
    assert {len(t.sampled_ids) for t in found} != {7}, "some ended by a tag"
    for ours, plain in zip(found, expected, strict=True):
        assert ours.sampled_logprobs == pytest.approx(plain.sampled_logprobs, abs=1e-5)
        assert ours.sampled_entropies == pytest.approx(plain.sampled_entropies, abs=1e-5)


@torch.no_grad()
def test_log_probs_are_those_of_the_training_engine():
    """The probe's surprisal and the loop's are one quantity, at temperature 1."""
    model = policy()
    prefix = all_states(rolled(), step=0)[-1].prefix_ids
    responder = policy_responder(model, WORDS, coin_environment(), max_turn_tokens=5)
    said = responder.respond(prefix, 12, seed=0)
    batch = from_trajectories([trajectory("q", prefix, t) for t in said], group_ids=[0] * 12)
    logprobs, entropies = model.score(batch.token_ids, batch.response_mask)
    mask = batch.response_mask
    assert (logprobs - batch.old_logprobs)[mask].abs().max() < 1e-5
    assert (entropies - batch.entropies)[mask].abs().max() < 1e-5


@dataclass
class Count:
    """What the decoders of a policy were asked for, their copies included."""

    made: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


class CountingDecoder(Decoder):
    def __init__(self, model: "CountingPolicy", rows: int) -> None:
        super().__init__(model, rows)
        self.count = model.count
        self.count.made.append(rows)

    def step(self, token_ids, speaking=None):
        self.count.steps.append(len(token_ids))
        return super().step(token_ids, speaking)

    def keep(self, rows):
        self.count.kept.append(len(rows))
        super().keep(rows)


class CountingPolicy(TinyPolicy):
    def decoder(self, rows: int) -> CountingDecoder:
        return CountingDecoder(self, rows)


@pytest.mark.parametrize("count", [2, 8, 9, 100])
def test_the_prefix_is_read_once_and_memory_does_not_grow_with_the_responses(count):
    model = CountingPolicy(TINY, len(WORDS), 0)
    model.count = asked = Count()
    responder = PolicyResponder(model, closed_by(frozenset({3})), 4, block_rows=8)
    responder.respond(tuple(range(1, 31)), count, seed=0)
    assert asked.made == [1]
    assert asked.steps[:30] == [1] * 30
    blocks = math.ceil(count / 8)
    assert len(asked.steps) <= 30 + 3 * blocks, "nobody reads the prefix again"
    assert max(asked.kept + asked.steps) == min(count, 8)


def test_neither_blocks_nor_more_responses_change_a_response():
    states = all_states(rolled(), step=0)
    few = draw_responses(
        PolicyResponder(policy(), closed_by(frozenset({3})), 6), states[:2], 5, seed=1
    )
    for rows in (1, 3, 64):
        responder = PolicyResponder(policy(), closed_by(frozenset({3})), 6, block_rows=rows)
        many = draw_responses(responder, states[1::-1], 20, seed=1)[::-1]
        for short, long in zip(few, many, strict=True):
            assert [t.sampled_ids for t in short] == [t.sampled_ids for t in long[:5]]
            assert len({t.sampled_ids for t in long}) > 10


def test_equal_contexts_at_different_turns_get_draws_of_their_own():
    states = [State("a", 0, row, 0, (1, 2, 3)) for row in range(2)]
    left, right = draw_responses(
        PolicyResponder(policy(), closed_by(frozenset()), 6), states, 4, seed=0
    )
    assert {t.sampled_ids for t in left}.isdisjoint(t.sampled_ids for t in right)


@torch.no_grad()
def test_copies_leave_the_row_that_read_the_prefix_alone():
    model = policy()
    _, decoder = read_prefix(model, range(1, 20))
    keys, length = decoder.keys.clone(), decoder.length
    copied = copies(decoder, 6)
    hidden = copied.step(torch.arange(6))
    assert torch.equal(decoder.keys[..., :length], keys[..., :length])
    assert (decoder.length, decoder.keys.shape[1]) == (length, 1)
    for token in range(6):
        _, alone = read_prefix(model, [*range(1, 20), token])
        assert (
            hidden[token] - model.hidden(torch.tensor([[*range(1, 20), token]]))[0, -1]
        ).abs().max() < 1e-5
        assert alone.length == copied.length


def test_a_response_ends_at_a_tag_at_its_cap_or_where_the_context_is_full():
    model, ends = few_words(sharpness=0.5), Counter()
    for length in (4, 14, 15):
        for said in PolicyResponder(model, closed_by(CLOSING), 3).respond(
            (1,) * length, 40, seed=0
        ):
            ids, room = said.sampled_ids, min(3, 16 - length)
            assert not CLOSING & set(ids[:-1])
            assert ids[-1] in CLOSING or len(ids) == room
            ends[length, ids[-1] in CLOSING] += 1
    assert len(ends) == 6, "each way to end was seen at each length"


def test_all_responses_are_listed_once_with_their_probabilities():
    listed = enumerate_responses(few_words(), (1, 2), CLOSING, max_turn_tokens=3)
    assert len({t.sampled_ids for t in listed}) == len(listed) == 1 + 4 + 16 * 5
    mass = [math.exp(sum(t.sampled_logprobs)) for t in listed]
    assert sum(mass) == pytest.approx(1.0, abs=1e-9)
    # All tokens that may come next share their context's entropy; it is that of their log-probs.
    first = {t.sampled_ids[0]: t for t in listed}
    logs = [t.sampled_logprobs[0] for t in first.values()]
    (entropy,) = {t.sampled_entropies[0] for t in listed}
    assert entropy == pytest.approx(-sum(math.exp(value) * value for value in logs))


@pytest.mark.parametrize("seed", range(2))
def test_samples_follow_the_enumeration(seed):
    model, prefix, draws = few_words(seed), (1, 2), 8000
    listed = {
        t.sampled_ids: t for t in enumerate_responses(model, prefix, CLOSING, max_turn_tokens=3)
    }
    drawn = PolicyResponder(model, closed_by(CLOSING), 3).respond(prefix, draws, seed=seed)
    counts = Counter(t.sampled_ids for t in drawn)
    assert counts.keys() <= listed.keys()
    for ids, exact in listed.items():
        chance = math.exp(sum(exact.sampled_logprobs))
        assert abs(counts[ids] - draws * chance) < 5 * math.sqrt(draws * chance) + 1
    for said in drawn[:50]:
        exact = listed[said.sampled_ids]
        assert said.sampled_logprobs == pytest.approx(exact.sampled_logprobs, abs=1e-5)
        assert said.sampled_entropies == pytest.approx(exact.sampled_entropies, abs=1e-5)
    measures = measure([drawn])
    entropy = -sum(
        math.exp(sum(t.sampled_logprobs)) * sum(t.sampled_logprobs) for t in listed.values()
    )
    assert abs(measures.entropies[0] - entropy) < 4 * measures.standard_errors[0]


# --- bad input


@pytest.mark.parametrize("length", [0, TINY.max_tokens, TINY.max_tokens + 1])
def test_a_prefix_without_a_place_to_speak_is_refused(length):
    for speak in (
        lambda prefix: PolicyResponder(policy(), closed_by(CLOSING), 3).respond(prefix, 2, seed=0),
        lambda prefix: enumerate_responses(policy(), prefix, CLOSING, max_turn_tokens=3),
    ):
        with pytest.raises(ValueError, match=f"{length} ids"):
            speak((1,) * length)


def test_more_responses_than_the_limit_are_refused_before_they_are_made():
    with pytest.raises(ValueError, match="limit = 50"):
        enumerate_responses(few_words(), (1,), CLOSING, max_turn_tokens=3, limit=50)


@pytest.mark.parametrize("name", ["max_turn_tokens", "block_rows"])
def test_a_responder_without_room_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} = 0"):
        replace(PolicyResponder(policy(), closed_by(CLOSING), 3), **{name: 0})


@dataclass
class FakeEndpoint:
    """Log-probs of a served model without entropies; `damage` is what a faulty one returns."""

    damage: str = "none"
    requests: list[tuple] = field(default_factory=list)

    def respond(self, prefix_ids, count: int, *, seed: int):
        self.requests.append((tuple(prefix_ids), count))
        stream = torch.Generator().manual_seed(seed)
        turns = []
        for _ in range(count):
            size = int(torch.randint(1, 4, (), generator=stream))
            logprobs = tuple((-3 * torch.rand(size, generator=stream)).tolist())
            turns.append(Turn((5,) * size, logprobs, (math.nan,) * size, (), "unfinished"))
        broken = {
            "short": turns[1:],
            "none": turns,
            "empty": [Turn((), (), (), (), "unfinished"), *turns[1:]],
        }
        value = {"nan": math.nan, "minus infinity": -math.inf, "positive": 0.5}.get(self.damage)
        if value is not None:
            return [Turn((5,), (value,), (math.nan,), (), "unfinished"), *turns[1:]]
        return broken[self.damage]


def test_an_endpoint_that_gives_log_probs_is_asked_once_a_state():
    batch, states = in_groups(RECORDED), all_states(RECORDED, step=0)
    endpoint = FakeEndpoint()
    measures = measure(draw_responses(endpoint, states, 6, seed=0))
    assert endpoint.requests == [(s.prefix_ids, 6) for s in states]
    assert measures.relative.mean(1).abs().max() < 1e-12
    expected = torch.tensor([2.0, 1.0, 1.0, 2.0, 1.0]).double() - measures.entropies
    assert torch.equal(training_relative(measures, batch, states), expected)
    with pytest.raises(ValueError, match=r"question a, step 0, row 0, turn 0: .*without entropies"):
        fresh_alphas(measures, batch, states)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("short", "5 responses for 6"),
        ("empty", "response 0 has no token"),
        ("nan", "log-prob nan"),
        ("minus infinity", "log-prob -inf"),
        ("positive", "log-prob 0.5"),
    ],
)
def test_a_faulty_endpoint_is_named_by_state(damage, complaint):
    states = all_states(RECORDED, step=4)
    with pytest.raises(ValueError, match=f"question a, step 4, row 0, turn 0: .*{complaint}"):
        draw_responses(FakeEndpoint(damage), states, 6, seed=0)


def test_too_few_responses_and_no_states_are_refused():
    with pytest.raises(ValueError, match="count = 1"):
        draw_responses(FakeEndpoint(), all_states(RECORDED, step=0), 1, seed=0)
    with pytest.raises(ValueError, match="none to probe"):
        draw_responses(FakeEndpoint(), [], 4, seed=0)


# --- measures


def test_measures_by_hand():
    said = [turn(1, 2, logprob=-1.5, entropy=1.0), turn(3, logprob=-1.0, entropy=0.4)]
    measures = measure([said])
    assert measures.surprisals.tolist() == [[3.0, 1.0]]
    assert measures.per_token.tolist() == [[1.5, 1.0]]
    assert measures.predictable.tolist() == [[2.0, 0.4]]
    assert measures.martingales.tolist() == [[1.0, 0.6]]
    assert measures.mean_entropies.tolist() == [[1.0, 0.4]]
    assert (measures.entropies.tolist(), measures.relative.tolist()) == ([2.0], [[1.0, -1.0]])
    assert measures.standard_errors.tolist() == pytest.approx([math.sqrt(2.0 / 2)])


def test_unequal_numbers_of_responses_are_refused():
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        measure([[turn(1)], [turn(1), turn(2)]])
    with pytest.raises(ValueError, match=r"\[0\]"):
        measure([[], []])


def test_the_worked_state():
    """S of fresh responses 2, 3, 1, 2 and of the recorded one 3: it is more surprising by 1."""
    vector = json.loads(VECTORS.read_text(encoding="utf-8"))["mc_probe_state"]
    given, expected = vector["in"], vector["out"]
    recorded = [trajectory("q", (1,), turn(5, logprob=-given["S_a"]))]
    measures = measure([[turn(5, logprob=-value) for value in given["S"]]])
    assert measures.entropies.tolist() == [expected["H_mc"]]
    gaps = -training_relative(measures, in_groups(recorded), all_states(recorded, step=0))
    assert gaps.tolist() == [expected["dS"]]
    assert sign_agreement([given["alpha"] - 1], gaps.tolist()) == expected["sign_agree"]


def test_fresh_alphas_are_those_of_the_loop_with_the_response_in_place():
    trajectories = rolled(count=2)
    batch, states = in_groups(trajectories), all_states(trajectories, step=0)
    said = draw_responses(
        policy_responder(policy(), WORDS, coin_environment(), max_turn_tokens=5),
        states, 3, seed=0,
    )  # fmt: skip
    options = {"temperature": 2.0, "min_spread": 0.01}
    found = fresh_alphas(measure(said), batch, states, **options)
    assert (found != 1).float().mean() > 0.9
    for number, state in enumerate(states):
        for k, fresh in enumerate(said[number]):
            row = trajectories[state.row]
            turns = [*row.turns]
            turns[state.turn] = fresh
            swapped = [*trajectories]
            swapped[state.row] = replace(row, turns=tuple(turns))
            other = in_groups(swapped)
            base = torch.zeros(other.response_mask.shape, dtype=torch.float64)
            expected = aem(other, base, **options)[state.row, state.turn]
            assert found[number, k] == pytest.approx(float(expected), abs=1e-6)


def test_training_alphas_are_aems():
    trajectories = rolled(count=2)
    batch, states = in_groups(trajectories), all_states(trajectories, step=0)
    alphas = training_alphas(batch, states, min_spread=0.0)
    weights = aem(batch, torch.zeros(batch.response_mask.shape), min_spread=0.0)
    assert alphas.tolist() == pytest.approx([float(weights[s.row, s.turn]) for s in states])
    assert len(set(alphas.tolist())) > len(states) / 2


@pytest.mark.parametrize(("row", "turn_number"), [(0, 2), (1, 1), (9, 0)])
def test_a_state_that_is_not_in_the_batch_is_named(row, turn_number):
    batch, lost = in_groups(RECORDED), [State("z", 0, row, turn_number, (1,))]
    measures = measure([[turn(1), turn(2)]])
    for read in (
        lambda: training_alphas(batch, lost),
        lambda: training_relative(measures, batch, lost),
        lambda: fresh_alphas(measures, batch, lost),
    ):
        with pytest.raises(ValueError, match=f"question z, step 0, row {row}, turn {turn_number}"):
            read()


def test_rows_for_a_table():
    states = all_states(RECORDED, step=2)[:1]
    measures = measure([[turn(1, 2, logprob=-1.0), turn(3, logprob=-4.0)]])
    rows = response_rows(states, measures, torch.tensor([[0.9, 1.1]]))
    assert [row["relative_surprisal"] for row in rows] == [-1.0, 1.0]
    assert rows[1] == {
        "question_id": "a", "step": 2, "row": 0, "turn": 0, "response": 1, "surprisal": 4.0,
        "surprisal_per_token": 4.0, "predictable": 0.5, "tokens": 1, "relative_surprisal": 1.0,
        "alpha": pytest.approx(1.1),
    }  # fmt: skip


def test_a_probe_on_rolled_out_states_runs_whole():
    trajectories = roll_out(
        policy(), WORDS, coin_environment(), questions(4) * 2, seed=0, step=3, max_turn_tokens=5
    )
    states = sample_states(trajectories, 8, seed=0, step=3)
    responder = policy_responder(policy(), WORDS, coin_environment(), max_turn_tokens=5)
    measures = measure(draw_responses(responder, states, 16, seed=0))
    alphas = fresh_alphas(measures, in_groups(trajectories), states, min_spread=0.0)
    assert alphas.shape == measures.relative.shape == (8, 16)
    assert measures.martingales.mean().abs() < 4 * measures.martingales.std() / 128**0.5
