"""Rollback of failed tool calls: what stays of a failure, what it costs, and what is off-policy."""

import asyncio
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from play import PLAIN, SMALL, TRAINING, CoinEnvironment, Recording, policy, questions, vocabulary
from torch import Tensor

from turncredit.batching import from_trajectories
from turncredit.environments import TableQuery, TableQuerySettings
from turncredit.environments.wrappers import FailingTools
from turncredit.evaluation import evaluate
from turncredit.policies.protocol import Message
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.records import Trajectory, read_trajectories, write_trajectories
from turncredit.rollout import roll_out
from turncredit.rollout.cleaner import Call, call_similarity, call_start, is_shallow
from turncredit.rollout.protocol import Asked
from turncredit.rollout.strategies import STRATEGIES
from turncredit.training import Method, new_optimiser, rescore, train
from turncredit.worlds.tables import TableWorld

VECTORS = json.loads(
    (Path(__file__).parents[1] / "golden" / "vectors.json").read_text(encoding="utf-8")
)
WORLD = TableWorld(
    things=6, places=8, rows=3, unsolvable_share=0.0, one_hop_share=1.0, renamed_share=0.5
)
LIMIT = 150
ASKED = WORLD.train_questions(24, random.Random(3))


def environment(**changes) -> TableQuery:
    return TableQuery(WORLD, replace(TableQuerySettings(max_turns=6), **changes))


WORDS = tag_vocabulary(environment().actions, [*environment().words, *WORLD.words])
ERROR = WORDS.id("error")
ENDS = {WORDS.id("</information>"), WORDS.id("</question>")}


class Stumbler:
    """Writes a thought and a query of three words by chance, or an answer.

    Every choice is between the words that `_choices` names, and after an error in sight the last of
    them has the weight `learns`: so log-probs tell which context a token was sampled in.
    """

    def __init__(self, *, learns: float = 3.0, answers: float = 0.2, max_tokens: int = LIMIT):
        self.settings = TinySettings(width=16, layers=1, heads=1, max_tokens=max_tokens)
        self.learns, self.answers = learns, answers
        self.decoders: list[StumblerDecoder] = []
        self._known: dict[tuple, Tensor] = {}

    def decoder(self, rows: int) -> "StumblerDecoder":
        self.decoders.append(StumblerDecoder(self, rows))
        return self.decoders[-1]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def next_logits(self, context: tuple[int, ...]) -> Tensor:
        """[V]: the logits after these ids."""
        ends = [place for place, token in enumerate(context) if token in ENDS]
        tail = context[ends[-1] + 1 :] if ends else (0,)
        seen = (tail, ERROR in context)
        if seen not in self._known:
            self._known[seen] = self._logits(WORDS.decode(tail).split(), ERROR in context)
        return self._known[seen]

    def _logits(self, said: list[str], warned: bool) -> Tensor:
        choices = {word: weight for word, weight in self._choices(said).items() if weight > 0}
        logits = torch.full((len(WORDS),), -1e4)
        for place, (word, weight) in enumerate(choices.items()):
            learnt = self.learns if warned and place == len(choices) - 1 else 1.0
            logits[WORDS.id(word)] = math.log(weight * learnt)
        return logits

    def _choices(self, said: list[str]) -> dict[str, float]:
        if not said:
            return {"<answer>": self.answers, "<think>": 1.0 - self.answers}
        if said[0] == "<answer>":
            return {"belburg": 1.0} if len(said) == 1 else {"</answer>": 1.0}
        plan = [
            {"home": 1.0, "market": 1.0},
            {"</think>": 1.0},
            {"<query>": 1.0},
            {"max": 0.2, "get": 1.0},
            dict.fromkeys(("price", "fair", "market", "seat", "base", "home"), 1.0),
            dict.fromkeys(("belo", "</query>", "bana", "bano"), 1.0),
            {"</query>": 1.0},
        ]
        return plan[len(said) - 1] if len(said) <= len(plan) else {"</query>": 1.0}


class StumblerDecoder(Recording):
    length = 0

    def __init__(self, model: Stumbler, rows: int) -> None:
        super().__init__(rows)
        self.model = model

    def step(self, token_ids: Tensor, speaking: list[int] | None = None) -> Tensor:
        self.feed(token_ids)
        self.length += 1
        slots = range(len(self.rows)) if speaking is None else speaking
        return torch.stack(
            [self.model.next_logits(tuple(self.fed[self.rows[slot]])) for slot in slots] or [_NONE]
        )


_NONE = torch.empty(0)


class Speaking(Stumbler):
    """The same policy behind an engine that samples messages by their seeds."""

    def engine(self) -> "Speaking":
        return self

    async def generate(self, token_ids, *, ended, max_tokens, temperature, seed) -> Message:
        await asyncio.sleep(0)
        stream, ids, logprobs = random.Random(seed), [], []
        while len(ids) < max_tokens and not (ids and ended(ids)):
            chances = torch.log_softmax(self.next_logits((*token_ids, *ids)), 0)
            (chosen,) = stream.choices(range(len(WORDS)), weights=chances.exp().tolist())
            ids.append(chosen)
            logprobs.append(chances[chosen].item())
        return Message(tuple(ids), tuple(logprobs), (0.0,) * len(ids))


class Scripted(Stumbler):
    """Says these messages one after the other, whatever it reads."""

    def __init__(self, *messages: str, max_tokens: int = LIMIT) -> None:
        super().__init__(max_tokens=max_tokens)
        self.left = [word for said in messages for word in said.split()]

    def next_logits(self, context: tuple[int, ...]) -> Tensor:
        logits = torch.full((len(WORDS),), -1e4)
        logits[WORDS.id(self.left.pop(0) if self.left else "</answer>")] = 0.0
        return logits


def rolled(model, given=None, asked=ASKED, *, seed=0, step=0, **options):
    given = environment() if given is None else given
    parts = (model, WORDS, given, asked)
    return draw("cleaner", parts, options, seed=seed, step=step, max_turn_tokens=12)


def draw(name, parts, options, **setting) -> tuple[list[Trajectory], dict[str, float]]:
    """The trajectories of a strategy, one for each question, and what it counts."""
    groups, counts, forks = STRATEGIES[name](**options).draw(Asked(*parts, group_size=1, **setting))
    assert forks == []
    return [trajectory for (trajectory,) in groups], counts


def alone(model, given=None, asked=ASKED, *, seed=0, step=0):
    given = environment() if given is None else given
    return roll_out(model, WORDS, given, asked, seed=seed, step=step, max_turn_tokens=12)


def said(trajectory: Trajectory) -> list[str]:
    return [WORDS.decode(turn.sampled_ids) for turn in trajectory.turns]


def failed(trajectory: Trajectory) -> list[bool]:
    return [ERROR in turn.observation_ids for turn in trajectory.turns]


# --- the numbers of the paper's code


def test_similarity_is_that_of_the_worked_numbers():
    given, expected = (VECTORS["cleaner_sim"][part] for part in ("in", "out"))
    sims = [call_similarity(given[f"old{n}"], given[f"new{n}"]) for n in (1, 2)]
    assert sims == pytest.approx([expected["sim1"], expected["sim2"]], abs=1e-4)
    calls = [
        (Call("query", given[f"old{n}"], 0), Call("query", given[f"new{n}"], 0)) for n in (1, 2)
    ]
    assert [is_shallow(*pair, similarity=given["gamma"]) for pair in calls] == [True, False]


def test_an_identical_retry_is_shallow_and_one_that_cannot_be_split_deep():
    call = Call("query", "get home bano", 4)
    assert is_shallow(call, call, similarity=1.0)
    assert not is_shallow(call, replace_start(call), similarity=0.0)
    assert not is_shallow(replace_start(call), call, similarity=0.0)


def replace_start(call: Call) -> Call:
    return call._replace(start=None)


@pytest.mark.parametrize(
    ("message", "start"),
    [
        ("<query> get home bano </query>", 0),
        ("<think> home bano </think> <query> get home bano </query>", 4),
        ("<think> home bano </think>", None),
        ("get home bano", None),
    ],
)
def test_a_call_begins_at_its_opening_tag(message, start):
    ids = WORDS.encode(message)
    assert call_start(ids, WORDS, ("<schema>", "<query>", "<answer>")) == start


# --- by hand: one trajectory, word for word


def question_and_columns():
    """A one-hop question whose column is not called as the question calls it, and its true name."""
    for asked in ASKED:
        (hop,) = asked.hops
        called = hop.paragraph.split()[1]
        if called != hop.relation:
            return asked, hop.title, hop.relation, called
    raise AssertionError("no such question")


QUESTION, ROW, NAMED, CALLED = question_and_columns()
WRONG = f"<think> {NAMED} {ROW} </think> <query> get {NAMED} {ROW} </query>"
RIGHT = f"<think> age </think> <query> get {CALLED} {ROW} </query>"
FAR = "<think> age </think> <query> max fee </query>"
ANSWER = f"<answer> {QUESTION.answers[0]} </answer>"


def by_hand(*messages: str, max_tokens: int = LIMIT, given=None, **options):
    (trajectory,), counts = rolled(
        Scripted(*messages, max_tokens=max_tokens), given, [QUESTION], **options
    )
    return trajectory, counts


def test_a_similar_retry_keeps_the_thought_and_takes_the_call():
    trajectory, counts = by_hand(WRONG, RIGHT, ANSWER)
    grafted = f"<think> {NAMED} {ROW} </think> <query> get {CALLED} {ROW} </query>"
    assert said(trajectory) == [grafted, ANSWER]
    assert [turn.grafted_from for turn in trajectory.turns] == [4, None]
    assert failed(trajectory) == [False, False]
    assert (trajectory.reward, trajectory.oracle_turn, trajectory.grounded) == (1.0, -1, True)
    assert counts == {
        "tool_calls": 2, "tool_errors": 1, "retries": 1, "shallow_grafts": 1, "deep_grafts": 0,
        "rollbacks_given_up": 0, "discarded_tokens": 5 + 3, "grafted_tokens": 5,
        "reread_tokens": len(trajectory.token_ids) - 3,
    }  # fmt: skip


def test_a_retry_that_is_another_call_takes_the_place_of_the_whole_turn():
    trajectory, counts = by_hand(WRONG, RIGHT, ANSWER, similarity=1.0)
    assert said(trajectory) == [RIGHT, ANSWER]
    assert [turn.grafted_from for turn in trajectory.turns] == [0, None]
    assert (counts["shallow_grafts"], counts["deep_grafts"]) == (0, 1)
    assert counts["discarded_tokens"] == len(WRONG.split())
    assert counts["grafted_tokens"] == len(RIGHT.split())


def test_a_retry_that_fails_is_tried_again_from_the_purified_context():
    trajectory, counts = by_hand(WRONG, WRONG, RIGHT, ANSWER)
    assert said(trajectory) == [RIGHT.replace("age", f"{NAMED} {ROW}"), ANSWER]
    assert (counts["retries"], counts["tool_errors"], counts["tool_calls"]) == (2, 2, 3)


def test_a_shallow_graft_upon_a_deep_one_is_off_policy_from_its_first_token():
    """The thought that stays was itself written in sight of an error."""
    wrong_column = f"<think> age </think> <query> get {NAMED} {ROW} </query>"
    trajectory, counts = by_hand(FAR.replace("fee", "home"), wrong_column, RIGHT, ANSWER)
    assert said(trajectory) == [RIGHT, ANSWER]
    assert trajectory.turns[0].grafted_from == 0
    assert (counts["deep_grafts"], counts["shallow_grafts"]) == (1, 1)


def test_when_retries_run_out_the_last_failure_stays_and_nothing_is_rolled_back_any_more():
    trajectory, counts = by_hand(WRONG, WRONG, WRONG, WRONG, RIGHT, ANSWER, max_retries=2)
    assert said(trajectory) == [WRONG, WRONG, RIGHT, ANSWER]
    assert failed(trajectory) == [True, True, False, False]
    assert [turn.grafted_from for turn in trajectory.turns] == [4, None, None, None]
    assert (counts["retries"], counts["rollbacks_given_up"]) == (2, 1)
    assert (counts["tool_errors"], counts["tool_calls"]) == (4, 5)


def test_a_hint_follows_the_error_that_stays_once_two_retries_were_made():
    for retries, hinted in ((1, False), (2, True)):
        messages = [WRONG] * (retries + 1)
        trajectory, _ = by_hand(*messages, ANSWER, max_retries=retries, hint="columns home")
        text = WORDS.decode(trajectory.turns[0].observation_ids)
        assert text.endswith("</information> columns home") == hinted
        assert said(trajectory)[1] == ANSWER


@pytest.mark.parametrize("last", [ANSWER, "<answer> belburg </answer>", "<query> get home"])
def test_a_retry_without_a_call_is_the_next_turn_and_the_failure_stays(last):
    trajectory, counts = by_hand(WRONG, last)
    assert said(trajectory)[:1] == [WRONG]
    assert failed(trajectory)[0]
    assert all(turn.grafted_from is None for turn in trajectory.turns)
    assert (counts["retries"], counts["rollbacks_given_up"]) == (0, 1)
    assert trajectory.oracle_turn == 0


def test_a_cap_on_calls_ends_rolling_back():
    trajectory, counts = by_hand(WRONG, WRONG, RIGHT, ANSWER, max_calls=2)
    assert said(trajectory) == [WRONG, RIGHT, ANSWER]
    assert (counts["retries"], counts["rollbacks_given_up"], counts["tool_calls"]) == (1, 1, 3)


def test_failed_attempts_are_no_turns_of_the_environment():
    """`max_turns` counts what the record holds; the last turn asks no tool and cannot fail."""
    given = environment(max_turns=3)
    trajectory, _ = by_hand(WRONG, RIGHT, WRONG, RIGHT, ANSWER, given=given)
    assert (len(trajectory.turns), trajectory.stop_reason) == (3, "answer")


def test_whatever_the_context_holds_the_record_fits_and_is_true():
    """Cut at every length: a retry that did not fit any more leaves the failure as it was."""
    ends = set()
    for limit in range(8, 80):
        trajectory, counts = by_hand(WRONG, RIGHT, ANSWER, max_tokens=limit)
        assert len(trajectory.token_ids) <= limit
        assert_true_record(trajectory, QUESTION, environment())
        ends.add((counts["retries"], tuple(failed(trajectory)), trajectory.success))
    assert (0, (False,), False) in ends and (0, (True, False), False) in ends
    assert (1, (False, False), True) in ends


# --- laws


def assert_true_record(trajectory: Trajectory, question, given) -> None:
    """The environment, asked anew, says to these messages what the record holds."""
    episode = given.reset(question, random.Random(0))
    for number, turn in enumerate(trajectory.turns):
        last = number == len(trajectory.turns) - 1
        if turn.action == "unfinished":
            assert last
            break
        grounded = episode.grounded
        step = episode.step(WORDS.decode(turn.sampled_ids))
        assert (turn.action, turn.correct) == (step.action, step.correct)
        if last and trajectory.stop_reason == "max_tokens":
            assert turn.observation_ids == ()
            assert trajectory.grounded == grounded
            return
        assert turn.observation_ids == WORDS.encode(step.observation)
    assert (trajectory.reward, trajectory.success) == (episode.reward, episode.success)
    assert trajectory.oracle_turn == episode.oracle_turn
    assert trajectory.turn_labels[: len(episode.turn_labels)] == episode.turn_labels
    assert trajectory.grounded == episode.grounded


@pytest.mark.parametrize("model", [Stumbler, Speaking])
@pytest.mark.parametrize("options", [{}, {"similarity": 1.0, "max_retries": 1}, {"max_calls": 2}])
def test_a_record_is_a_true_history_and_its_tokens_are_on_policy_but_where_marked(model, options):
    """In the record's own context: log-probs of unmarked tokens are those that were sampled."""
    speaker = model()
    trajectories, counts = rolled(speaker, **options)
    assert counts["shallow_grafts"] + counts["deep_grafts"] == counts["retries"] > 5
    moved = 0
    for trajectory, asked in zip(trajectories, ASKED, strict=True):
        assert_true_record(trajectory, asked, environment())
        context = trajectory.prompt_ids
        for turn in trajectory.turns:
            marked = len(turn.sampled_ids) if turn.grafted_from is None else turn.grafted_from
            for place, (token, kept) in enumerate(
                zip(turn.sampled_ids, turn.sampled_logprobs, strict=True)
            ):
                logprob = torch.log_softmax(speaker.next_logits(context), 0)[token].item()
                if place < marked:
                    assert kept == pytest.approx(logprob, abs=1e-5)
                moved += abs(kept - logprob) > 1e-3
                context += (token,)
            context += turn.observation_ids
    assert moved > 10, "what is marked was sampled elsewhere indeed"


@pytest.mark.parametrize("model", [Stumbler, Speaking])
def test_failures_stay_only_where_rollback_was_given_up(model):
    trajectories, counts = rolled(model(answers=0.1), max_retries=2)
    stayed = [any(failed(trajectory)) for trajectory in trajectories]
    assert sum(stayed) == counts["rollbacks_given_up"] > 0
    assert not all(stayed)
    for trajectory in trajectories:
        after = failed(trajectory).index(True) + 1 if any(failed(trajectory)) else 0
        tail = trajectory.turns[after:] if after else ()
        assert all(turn.grafted_from is None for turn in tail), "nothing is rolled back after that"


@pytest.mark.parametrize("model", [Stumbler, Speaking])
def test_at_probability_0_and_where_nothing_fails_the_rollout_is_the_ordinary_one(model):
    trajectories, counts = rolled(model(), probability=0.0)
    assert trajectories == alone(model())
    assert sum(any(failed(t)) for t in trajectories) > 5
    assert (counts["retries"], counts["grafted_tokens"], counts["reread_tokens"]) == (0, 0, 0)


def test_an_environment_without_errors_is_played_as_ever():
    coins, tiny = CoinEnvironment(vocabulary().entries[40:60]), policy()
    parts = (tiny, vocabulary(), coins, questions(12))
    asked = {"seed": 3, "step": 2, "max_turn_tokens": 5}
    trajectories, counts = draw("cleaner", parts, {}, **asked)
    assert trajectories == roll_out(*parts, **asked)
    assert (trajectories, {}) == draw("independent", parts, {}, **asked)
    assert counts["tool_errors"] == counts["retries"] == 0


@pytest.mark.parametrize("model", [Stumbler, Speaking])
def test_a_rollout_is_a_function_of_seed_step_and_row(model):
    first, counts = rolled(model(), seed=4, step=2)
    assert (first, counts) == rolled(model(), seed=4, step=2)
    assert first != rolled(model(), seed=5, step=2)[0]
    assert first != rolled(model(), seed=4, step=3)[0]
    few, _ = rolled(model(), asked=ASKED[:7], seed=4, step=2)
    assert few == first[:7], "more rows at the end leave the first ones alone"


def test_a_failed_turn_is_rolled_back_with_the_probability_asked_for():
    counts = [by_hand(WRONG, RIGHT, ANSWER, probability=0.3, seed=seed)[1] for seed in range(100)]
    assert 15 < sum(count["retries"] for count in counts) < 45
    assert {count["rollbacks_given_up"] for count in counts} == {0}


class Guesser(Stumbler):
    """Knows the column and gets half of the rows wrong, all in messages of one length."""

    def __init__(self) -> None:
        super().__init__(learns=1.0, answers=0.01)

    def _choices(self, said: list[str]) -> dict[str, float]:
        if len(said) == 4:
            return {"get": 1.0}
        if len(said) == 5:
            return {CALLED: 1.0}
        return dict.fromkeys(WORLD._thing_names, 1.0) if len(said) == 6 else super()._choices(said)


def test_what_follows_a_graft_is_not_drawn_from_the_numbers_of_the_discarded_retry():
    """The thoughts of the retry and of the next turn stand at one position, one after the other."""
    speaker, pairs = Guesser(), []
    trajectories, _ = rolled(speaker, asked=[QUESTION] * 120, max_retries=1)
    first, *_ = speaker.decoders
    for trajectory, fed in zip(trajectories, first.fed, strict=True):
        thought = len(trajectory.prompt_ids) + 8 + 5 + 1
        ids = trajectory.token_ids
        if trajectory.turns[0].grafted_from is not None and len(ids) > thought:
            pairs.append((fed[thought], ids[thought]))
    thoughts = {WORDS.id("home"), WORDS.id("market")}
    pairs = [pair for pair in pairs if thoughts >= set(pair)]
    assert len(pairs) > 30
    assert 0.2 < sum(old == new for old, new in pairs) / len(pairs) < 0.8


# --- the budget


def test_what_was_spent_adds_up():
    given, speaker = environment(), Stumbler()
    heard = []
    reset = TableQuery.reset

    class Counting(TableQuery):
        def reset(self, question, stream):
            episode = reset(self, question, stream)
            call = episode.call
            noted = [0]
            heard.append(noted)

            def use(action, argument):
                noted[0] += 1
                result = call(action, argument)
                if result.error is None:
                    return episode._show(result.text)
                episode._error = result.error
                episode.environment.counts[result.error] += 1
                return result.text

            episode._use = use
            return episode

    counting = Counting(given.world, given.settings)
    trajectories, counts = rolled(speaker, counting)
    assert counts["tool_calls"] == sum(noted[0] for noted in heard)
    assert counts["tool_errors"] == sum(counting.failures.values()) > 0
    kept = sum(len(turn.sampled_ids) for t in trajectories for turn in t.turns)
    ordinary = sum(len(turn.sampled_ids) for t in alone(Stumbler()) for turn in t.turns)
    assert counts["discarded_tokens"] > 0 and kept != ordinary
    marked = [
        len(turn.sampled_ids) - turn.grafted_from
        for t in trajectories
        for turn in t.turns
        if turn.grafted_from is not None
    ]
    assert counts["grafted_tokens"] == sum(marked) > 0


def test_sampled_tokens_are_those_kept_and_those_discarded():
    class Counted(Stumbler):
        sampled = 0

        def logits(self, hidden: Tensor) -> Tensor:
            self.sampled += len(hidden)
            return hidden

    speaker = Counted()
    trajectories, counts = rolled(speaker)
    kept = sum(len(turn.sampled_ids) for t in trajectories for turn in t.turns)
    assert speaker.sampled == kept + counts["discarded_tokens"]


# --- tools that fail by themselves


def test_an_injected_failure_is_rolled_back_too_and_costs_no_turn():
    failing = FailingTools(environment(), rate=0.5, error="error none")
    messages = [RIGHT] * 8 + [ANSWER]
    (trajectory,), counts = rolled(Scripted(*messages), failing, [QUESTION], max_retries=8)
    assert failing.failures["injected_query"] == counts["tool_errors"]
    assert said(trajectory)[0] == RIGHT
    assert not any(failed(trajectory))


# --- marks in the record


def test_marks_are_kept_by_files_and_others_do_not_know_of_them(tmp_path):
    trajectories, _ = rolled(Stumbler())
    assert any(turn.grafted_from is not None for t in trajectories for turn in t.turns)
    write_trajectories(tmp_path / "a.jsonl.gz", trajectories)
    assert read_trajectories(tmp_path / "a.jsonl.gz") == trajectories
    from gzip import decompress

    write_trajectories(tmp_path / "b.jsonl.gz", alone(Stumbler()))
    assert b"grafted_from" in decompress((tmp_path / "a.jsonl.gz").read_bytes())
    assert b"grafted_from" not in decompress((tmp_path / "b.jsonl.gz").read_bytes())


@pytest.mark.parametrize("place", [-1, 2])
def test_a_mark_outside_the_turn_is_refused(place):
    (trajectory,) = alone(Scripted(RIGHT, ANSWER), asked=[QUESTION])
    with pytest.raises(ValueError, match="grafted_from"):
        replace(trajectory.turns[1], sampled_ids=(1, 2), sampled_logprobs=(0.0,) * 2,
                sampled_entropies=(0.0,) * 2, grafted_from=place)  # fmt: skip


# --- training


CLEANER = Method("grpo", {}, "none", {}, "ppo_clip", {}, "cleaner", {"max_retries": 2})


def test_old_logprobs_are_those_of_the_context_that_the_record_holds():
    trajectories, _ = rolled(Stumbler())
    model = TinyPolicy(TinySettings(16, 1, 2, LIMIT), len(WORDS), seed=1)
    batch, _ = rescore(model, from_trajectories(trajectories, group_ids=range(len(ASKED))))
    mask = torch.zeros_like(batch.response_mask)
    mask[:, 1:] = True
    everywhere, _ = model.score(batch.token_ids, mask)
    sampled = batch.response_mask
    assert torch.allclose(batch.old_logprobs[sampled], everywhere[sampled], atol=1e-5)
    assert not torch.equal(batch.old_logprobs[sampled], batch.rollout_logprobs[sampled])


def trained(method: Method, **options):
    model = policy()
    settings = replace(TRAINING, steps=2, **options)
    parts = (model, new_optimiser(model, settings), vocabulary())
    coins = CoinEnvironment(vocabulary().entries[40:60])
    logs = list(train(*parts, coins, SMALL, method, settings, seed=0))
    return logs, [parameter.detach().clone() for parameter in model.parameters()]


def test_the_loop_trains_by_the_named_rollout_and_books_what_it_cost():
    plain, weights = trained(PLAIN)
    cleaned, same = trained(CLEANER)
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    for before, after in zip(plain, cleaned, strict=True):
        assert before.trajectories == after.trajectories
        counts = set(after.metrics) - set(before.metrics)
        assert counts == {*rolled(Scripted(ANSWER), asked=[QUESTION])[1]}
        assert {name: repr(value) for name, value in before.metrics.items()} == {
            name: repr(value) for name, value in after.metrics.items() if name not in counts
        }


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cleanr", {}, "unknown rollout strategy 'cleanr'"),
        ("cleaner", {"gamma": 0.5}, "no option 'gamma'"),
        ("cleaner", {"similarity": 1.5}, "similarity is 1.5"),
        ("cleaner", {"probability": True}, "probability is True"),
        ("cleaner", {"max_retries": 0}, "max_retries is 0"),
        ("cleaner", {"max_calls": 2.5}, "max_calls is 2.5"),
        ("cleaner", {"hint": 3}, "hint is 3"),
        ("independent", {"similarity": 0.5}, "no option 'similarity'"),
    ],
)
def test_what_is_no_rollout_is_refused_before_the_first_step(name, options, said):
    with pytest.raises(ValueError, match=said):
        Method("grpo", {}, "none", {}, "ppo_clip", {}, name, options).rehearse()


def test_a_method_says_of_its_rollout_only_what_is_not_ordinary():
    assert "rollout" not in PLAIN.values and "rollout_options" not in PLAIN.values
    assert CLEANER.values["rollout_options"] == {"max_retries": 2}


# --- evaluation


def test_evaluation_is_without_rollback_unless_it_is_asked_for():
    asked = {"max_turn_tokens": 12, "temperature": 1.0}
    plain = evaluate(Stumbler(), WORDS, environment(), ASKED, **asked)
    assert plain == alone(Stumbler(), step=-1)
    strategy = STRATEGIES["cleaner"]()
    cleaned = evaluate(Stumbler(), WORDS, environment(), ASKED, strategy=strategy, **asked)
    assert cleaned == rolled(Stumbler(), step=-1)[0]
    assert sum(map(sum, map(failed, cleaned))) < sum(map(sum, map(failed, plain)))
