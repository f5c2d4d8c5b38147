"""Token in, token out: what a trajectory records is what the policy was fed and what it sampled."""

import ast
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from play import (
    ACTIONS,
    SMALL,
    TINY,
    CoinEnvironment,
    ScriptedPolicy,
    SpiedPolicy,
    coin_environment,
    global_streams,
    policy,
    questions,
    synthetic_environment,
    vocabulary,
)

import turncredit
from turncredit.batching import from_trajectories
from turncredit.evaluation import (
    evaluate,
    evaluation_rows,
    evaluation_set_hash,
    question_rows,
)
from turncredit.rollout import roll_out
from turncredit.rollout.protocol import Asked
from turncredit.rollout.strategies import STRATEGIES

WORDS = vocabulary()
CLOSING = {WORDS.id(f"</{name}>") for name in ACTIONS}


def rolled(model, environment, asked, **options):
    defaults = {"seed": 0, "step": 0, "max_turn_tokens": 5}
    return roll_out(model, WORDS, environment, asked, **defaults | options)


# --- token in, token out


@pytest.mark.parametrize("end", [0.05, 0.3, 0.7])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_trajectory_is_exactly_what_the_policy_was_fed(end, seed):
    spied = SpiedPolicy(TINY, len(WORDS), seed)
    trajectories = rolled(spied, coin_environment(end), questions(24), seed=seed)
    (recording,) = spied.recordings
    assert recording.compactions > 0 or end < 0.1
    for trajectory, fed in zip(trajectories, recording.fed, strict=True):
        ids = list(trajectory.token_ids)
        assert len(fed) >= len(ids) - 1, "all but the last sampled token were read"
        assert fed[: len(ids)] == ids[: len(fed)]
        assert len(ids) <= TINY.max_tokens


def test_every_stop_reason_and_turns_that_follow_each_other_were_among_them():
    """Guards the tests above: a coin environment that never fills a row would prove little."""
    trajectories = rolled(policy(), coin_environment(0.05), questions(24))
    assert {t.stop_reason for t in trajectories} == {"answer", "max_tokens"}
    assert any(not turn.observation_ids for t in trajectories for turn in t.turns[:-1])
    assert any(len(t.token_ids) == TINY.max_tokens for t in trajectories)


def test_prompt_and_observations_are_what_the_environment_said():
    said = []

    class Listening(CoinEnvironment):
        def reset(self, question, stream):
            episode = super().reset(question, stream)
            heard = [episode.prompt]
            said.append(heard)
            step = episode.step

            def listen(message):
                result = step(message)
                heard.append((message, result.observation))
                return result

            episode.step = listen
            return episode

    trajectories = rolled(policy(), Listening(WORDS.entries[40:60]), questions(12))
    for trajectory, (prompt, *exchanges) in zip(trajectories, said, strict=True):
        assert trajectory.prompt_ids == WORDS.encode(prompt)
        for turn, (message, observation) in zip(trajectory.turns, exchanges, strict=False):
            assert message == WORDS.decode(turn.sampled_ids), (
                "policy-written text of this turn only"
            )
            if turn is not trajectory.turns[-1]:
                assert turn.observation_ids == WORDS.encode(observation)


def test_sampled_tokens_are_those_under_the_mask():
    trajectories = rolled(policy(), coin_environment(), questions(16))
    batch = from_trajectories(trajectories, group_ids=range(16))
    sampled = [i for t in trajectories for turn in t.turns for i in turn.sampled_ids]
    assert int(batch.response_mask.sum()) == len(sampled)
    assert batch.token_ids[batch.response_mask].tolist() == sampled


def test_a_turn_ends_with_the_closing_tag_it_sampled_or_at_its_cap():
    """The stop token is the policy's own and is trained."""
    trajectories = rolled(policy(), coin_environment(0.1), questions(30), max_turn_tokens=7)
    turns = [turn for t in trajectories for turn in t.turns[:-1]]
    assert any(turn.sampled_ids[-1] in CLOSING and len(turn.sampled_ids) < 7 for turn in turns)
    for turn in turns:
        assert turn.sampled_ids[-1] in CLOSING or len(turn.sampled_ids) == 7
        assert not CLOSING & set(turn.sampled_ids[:-1])


def test_a_script_is_played_word_for_word():
    asked = questions(2)
    title, wrong = asked[0].hops[0].title, "western"
    scripts = [
        f"<search> {title} </search> <answer> {asked[0].answers[0]} </answer>",
        f"<external_verify> {wrong} </external_verify> <answer> {wrong} </answer>",
    ]
    played = rolled(ScriptedPolicy(scripts, WORDS), synthetic_environment(), asked)
    for trajectory, script in zip(played, scripts, strict=True):
        assert " ".join(WORDS.decode(turn.sampled_ids) for turn in trajectory.turns) == script
    assert [turn.action for turn in played[0].turns] == ["search", "answer"]
    assert (played[0].reward, played[0].success, played[0].stop_reason) == (1.0, True, "answer")
    assert [turn.correct for turn in played[1].turns] == [False, False]
    assert (played[1].reward, played[1].success) == (0.0, False)


def test_an_answer_that_the_tool_wrote_earns_nothing():
    """Through the engine: the context holds the gold answer in answer tags."""
    asked = questions(1)
    gold = asked[0].answers[0]
    environment = synthetic_environment(header=f"<answer> {gold} </answer> {{title}}")
    script = "<search> western </search> <answer> western </answer>"
    (played,) = rolled(ScriptedPolicy([script], WORDS), environment, asked)
    assert f"<answer> {gold} </answer>" in WORDS.decode(played.turns[0].observation_ids)
    assert [turn.action for turn in played.turns] == ["search", "answer"]
    assert (played.reward, played.success) == (0.0, False)


# --- caps


def reading(asked, max_tokens: int):
    """The scripted policy that reads the evidence at once and answers right, cut at max_tokens."""
    hop = asked.hops[-1]
    script = (
        f"<search> {hop.title} </search> <read_chunk> {hop.title} {hop.relation} </read_chunk> "
        f"<answer> {hop.value} </answer>"
    )
    return ScriptedPolicy([script], WORDS, max_tokens)


def test_evidence_that_no_longer_fitted_was_never_read():
    environment = replace(synthetic_environment(), world=_sure_world())
    asked = _solvable(environment.world)
    seen = set()
    for max_tokens in range(12, 64):
        model = reading(asked, max_tokens)
        (played,) = rolled(model, environment, [asked], max_turn_tokens=9)
        assert len(played.token_ids) <= max_tokens
        shown = any(
            asked.hops[-1].paragraph in WORDS.decode(t.observation_ids) for t in played.turns
        )
        assert played.grounded == shown, f"max_tokens = {max_tokens}"
        assert played.success == (played.stop_reason == "answer")
        seen.add((shown, played.success))
    assert seen == {(False, False), (True, False), (True, True)}


def _sure_world():
    from play import SMALL

    return replace(SMALL, miss_rate=0.0, hard_miss_rate=0.0, unsolvable_share=0.0)


def _solvable(world):
    import random

    return world.train_questions(1, random.Random(4))[0]


def test_a_turn_that_the_row_cut_short_was_not_malformed():
    environment = replace(synthetic_environment(), world=_sure_world())
    asked = _solvable(environment.world)
    prompt = len(WORDS.encode(f"<question> {asked.text} </question>"))
    (played,) = rolled(reading(asked, prompt + 2), environment, [asked])
    assert played.stop_reason == "max_tokens"
    assert [len(turn.sampled_ids) for turn in played.turns] == [2]
    assert played.turns[-1].action != "invalid", "the environment never saw this message"


@pytest.mark.parametrize("room", [0, -1])
def test_a_prompt_that_leaves_no_room_is_refused_by_question(room):
    asked = questions(1)
    prompt = len(WORDS.encode(f"<question> {asked[0].text} </question>"))
    small = policy(settings=replace(TINY, max_tokens=prompt + room))
    with pytest.raises(ValueError, match=asked[0].id):
        rolled(small, synthetic_environment(), asked)


def test_a_prompt_that_leaves_room_for_one_token_gives_one():
    asked = questions(1)
    prompt = len(WORDS.encode(f"<question> {asked[0].text} </question>"))
    small = policy(settings=replace(TINY, max_tokens=prompt + 1))
    (played,) = rolled(small, synthetic_environment(), asked)
    assert [len(turn.sampled_ids) for turn in played.turns] == [1]
    assert len(played.token_ids) == prompt + 1


# --- the sampling engine and the training engine


@torch.no_grad()
@pytest.mark.parametrize("end", [0.02, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_rollout_and_scoring_agree(end, seed):
    """On ragged batches with dropped rows and with rows that fill max_tokens."""
    model = policy(seed)
    trajectories = rolled(model, coin_environment(end), questions(24), seed=seed)
    batch = from_trajectories(trajectories, group_ids=range(24))
    logprobs, entropies = model.score(batch.token_ids, batch.response_mask)
    assert (logprobs - batch.rollout_logprobs)[batch.response_mask].abs().max() < 1e-5
    assert (entropies - batch.entropies)[batch.response_mask].abs().max() < 1e-5


@torch.no_grad()
def test_log_probs_at_another_temperature_are_those_of_what_was_sampled_from():
    model = policy()
    trajectories = rolled(model, coin_environment(), questions(4), temperature=0.5)
    batch = from_trajectories(trajectories, group_ids=range(4))
    table = torch.log_softmax(model.logits(model.hidden(batch.token_ids)) / 0.5, -1)
    rows, columns = batch.response_mask.nonzero(as_tuple=True)
    expected = table[rows, columns - 1, batch.token_ids[rows, columns]]
    assert (expected - batch.rollout_logprobs[rows, columns]).abs().max() < 1e-5


def test_temperature_0_is_greedy_or_refused_but_never_nonsense():
    model = policy()
    try:
        trajectories = rolled(model, coin_environment(), questions(3), temperature=0.0)
    except ValueError:
        return
    batch = from_trajectories(trajectories, group_ids=range(3))
    best = model.logits(model.hidden(batch.token_ids)).argmax(-1)[:, :-1]
    mask = batch.response_mask[:, 1:]
    assert torch.equal(best[mask], batch.token_ids[:, 1:][mask])


# --- randomness


def test_rolling_out_twice_is_equal_and_touches_no_global_stream():
    model, before = policy(), global_streams()
    first = rolled(model, synthetic_environment(), questions(6), seed=3, step=2)
    assert first == rolled(model, synthetic_environment(), questions(6), seed=3, step=2)
    assert first != rolled(model, synthetic_environment(), questions(6), seed=4, step=2)
    assert first != rolled(model, synthetic_environment(), questions(6), seed=3, step=1)
    evaluate(
        model, WORDS, synthetic_environment(), questions(3), max_turn_tokens=5, temperature=1.0
    )
    assert global_streams() == before


def test_more_rows_at_the_end_leave_the_environments_of_the_first_rows_alone():
    few = rolled(policy(), coin_environment(), questions(4))
    many = rolled(policy(), coin_environment(), questions(9))
    assert [t.prompt_ids for t in few] == [t.prompt_ids for t in many[:4]]
    assert [t.reward for t in few] == [t.reward for t in many[:4]]


def test_more_rows_at_the_end_leave_the_sampled_tokens_of_the_first_rows_alone():
    few = rolled(policy(), coin_environment(), questions(4))
    many = rolled(policy(), coin_environment(), questions(9))
    assert [t.token_ids for t in few] == [t.token_ids for t in many[:4]]


def test_rows_of_one_group_differ():
    same = questions(1) * 8
    trajectories = rolled(policy(), synthetic_environment(), same)
    assert len({t.token_ids for t in trajectories}) > 4


# --- evaluation


def test_an_evaluation_is_one_sampled_trajectory_per_question_and_repeats():
    asked = questions(8)

    def run(model):
        return evaluate(
            model, WORDS, synthetic_environment(), asked, max_turn_tokens=5, temperature=1.0
        )

    first = run(policy())
    assert [t.question_id for t in first] == [q.id for q in asked]
    assert first == run(policy()) != run(policy(1))


def test_evaluation_rows_by_hand():
    asked = questions(4)
    asked = [replace(q, hops=q.hops[-1:]) if n == 3 else q for n, q in enumerate(asked)]
    scripts = [
        f"<answer> {q.answers[0] if n in (0, 3) else 'western'} </answer>"
        for n, q in enumerate(asked)
    ]
    played = rolled(ScriptedPolicy(scripts, WORDS), synthetic_environment(), asked)
    rows = {row["hops"]: row for row in evaluation_rows(asked, played)}
    assert list(rows) == ["all", "1", "2"]
    assert (rows["all"]["questions"], rows["all"]["exact_match"]) == (4, 0.5)
    assert rows["all"]["standard_error"] == 0.25
    assert (rows["1"]["exact_match"], rows["1"]["standard_error"]) == (1.0, 0.0)
    assert rows["2"]["exact_match"] == pytest.approx(1 / 3)
    assert rows["all"]["answer_first"] == 1.0


def test_evaluation_rows_leave_out_what_an_error_ended():
    asked = [q if n < 3 else replace(q, hops=()) for n, q in enumerate(questions(6))]
    scripts = [
        f"<answer> {q.answers[0] if n else 'western'} </answer>" for n, q in enumerate(asked)
    ]
    played = rolled(ScriptedPolicy(scripts, WORDS), synthetic_environment(), asked)
    parts = {"turns": (), "reward": None, "success": False, "stop_reason": "error"}
    lost = [replace(t, **parts) if n > 1 else t for n, t in enumerate(played)]
    row, none, some = evaluation_rows(asked, lost)
    (kept,) = evaluation_rows(asked[:2], played[:2])
    counts = {"questions": 6, "missing_rewards": 4, "lost": 4}
    assert row == kept | counts, "the shares are those of the others"
    assert (some["hops"], some["questions"], some["lost"]) == ("2", 3, 1)
    assert (none["hops"], none["questions"], none["lost"]) == ("0", 3, 3)
    assert all(math.isnan(none[name]) for name in none.keys() - {"hops", *counts})


def test_an_evaluation_without_an_outcome_is_no_failure():
    """A question without usable answer: what was done is known, whether it was right is not."""
    asked = [replace(questions(2)[0], answers=("the",)), questions(2)[1]]
    scripts = ["<answer> western </answer>", f"<answer> {asked[1].answers[0]} </answer>"]
    played = rolled(ScriptedPolicy(scripts, WORDS), synthetic_environment(), asked)
    (row,) = evaluation_rows(asked, played)
    assert (row["exact_match"], row["missing_rewards"], row["lost"]) == (1.0, 1, 0)
    assert (row["questions"], row["standard_error"], row["answer_first"]) == (2, 0.0, 1.0)


def test_the_evaluation_set_hash_knows_texts_answers_and_order():
    asked = questions(3)
    base = evaluation_set_hash(asked)
    assert base == evaluation_set_hash(questions(3))
    assert base != evaluation_set_hash(asked[::-1])
    assert base != evaluation_set_hash([replace(asked[0], text="x"), *asked[1:]])
    assert base != evaluation_set_hash([replace(asked[0], answers=("x",)), *asked[1:]])


# --- nothing is tokenised twice


def test_only_prompts_observations_and_scripts_are_ever_encoded():
    """Policy-sampled ids stay ids, in every module; a judge's tokenizer is its own."""
    package = Path(turncredit.__file__).parent
    allowed = {
        ("rollout/rows.py", "episode.prompt"),
        ("rollout/rows.py", "result.observation"),
        ("rollout/cleaner.py", "settings.hint"),
        ("rollout/actguide.py", "f'{prompt} {self._text(actions)}'"),  # to count its tokens
        ("demonstrations.py", "episode.prompt"),
        ("demonstrations.py", "message"),
        ("demonstrations.py", "result.observation"),
        ("tasks.py", "prompt"),  # to count its tokens
        ("audit/replay.py", "episode.prompt"),
        ("audit/replay.py", "result.observation"),
        ("audit/continuations.py", "result.observation"),
        ("audit/trees.py", "tree.prompt"),
        ("audit/trees.py", "' '.join(response.words)"),  # a listed response, which nobody sampled
        ("audit/trees.py", "outcome.observation"),
        ("training/information.py", "f'<answer> {answer} </answer>'"),  # to score it
        ("training/teacher.py", "skill_text(q, skill, drawn.actions)"),  # for the teacher to read
    }
    found = set()
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        if name.startswith(("retrieval/", "policies/vocabulary", "environments/judges/")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            given = called and node.func.attr in ("encode", "encode_prompt") and node.args
            if given and not isinstance(node.args[0], ast.Constant):
                found.add((name, ast.unparse(node.args[0])))
    assert found == allowed


def test_question_rows_hold_bins_and_outcomes_and_say_what_is_missing():
    asked = [replace(questions(2)[0], answers=("the",)), replace(questions(2)[1], hops=())]
    scripts = ["<answer> western </answer>", f"<answer> {asked[1].answers[0]} </answer>"]
    played = rolled(ScriptedPolicy(scripts, WORDS), synthetic_environment(), asked)
    unusable, unknown = question_rows(asked, played)
    assert (unusable["question_id"], unusable["hops"]) == (asked[0].id, "2 hops")
    assert (unusable["reward"], unusable["success"], unusable["grounded"]) == (None, None, False)
    assert (unknown["hops"], unknown["grounded"]) == ("unknown", None)
    assert (unknown["reward"], unknown["success"]) == (1.0, True)
    assert (unknown["turns"], unknown["stop_reason"]) == (1, "answer")


@pytest.mark.parametrize("strategy", ["independent", "arpo", "cleaner"])
def test_an_environment_that_raises_is_an_error_that_says_where(strategy):
    class Fragile(CoinEnvironment):
        def reset(self, question, stream):
            episode = super().reset(question, stream)
            if question.id == asked[2].id:
                episode.step = lambda message: {}["nothing"]
            return episode

    asked = questions(3)
    setting = Asked(policy(), WORDS, Fragile(SMALL.words, 0.03), asked, 2, 0, 0, 5)
    with pytest.raises(KeyError, match="nothing") as caught:
        STRATEGIES[strategy]().draw(setting)
    assert caught.value.__notes__ == [f"at turn 0 of a trajectory of {asked[2].id}"]
