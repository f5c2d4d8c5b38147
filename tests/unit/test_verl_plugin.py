"""The parts of the verl plugin that need no verl: settings, episodes, rows and their credit."""

import asyncio
import copy
import random
from dataclasses import replace
from importlib import metadata

import pytest
import torch
from play import ACTIONS, SMALL, questions, synthetic_environment, vocabulary

from turncredit.batching import anchor_ids, from_trajectories
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages
from turncredit.objectives import OBJECTIVES
from turncredit.policies.protocol import Message
from turncredit.rollout import asynchronous
from turncredit.training import Method
from turncredit.verl_plugin import cluster, settings
from turncredit.verl_plugin.batches import Rows, credit_rows, turn_batch
from turncredit.verl_plugin.episodes import Said, Unreported, play, question_of
from turncredit.verl_plugin.outputs import NOTE, response_of, spans_of, trajectory_of
from turncredit.verl_plugin.settings import UNREAD_WEIGHTS, check_config, read_agent, read_method
from turncredit.verl_plugin.versions import UNDECLARED, require_verl

WORDS = vocabulary()
CLOSING = [WORDS.id(f"</{name}>") for name in ACTIONS]
OPENING = [WORDS.id(f"<{name}>") for name in ACTIONS]
CONTENT = [*map(WORDS.id, SMALL.words)]
LIMITS = {"prompt_tokens": 30, "response_tokens": 60, "max_turn_tokens": 5}


def following(ids):
    """One action around one word, seldom anything else: a function of all before."""
    stream = random.Random(repr(ids))
    if stream.random() < 0.1:
        return stream.randrange(len(WORDS))
    if ids[-1] in OPENING:
        return stream.choice(CONTENT)
    if ids[-2] in OPENING:
        return CLOSING[OPENING.index(ids[-2])]
    return stream.choice(OPENING)


def spoken(ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(following(ids))
    return ids[-count:]


async def blind(ids, most):
    """A server that knows of no closing tag and always says all it may."""
    return Said(spoken(ids, most), [-0.5] * most)


class Engine:
    """The same policy for our own rollout, which wants messages to end where they end."""

    async def generate(self, token_ids, *, ended, max_tokens, temperature, seed):
        ids = spoken(token_ids, max_tokens)
        end = next((n for n in range(1, max_tokens + 1) if ended(ids[:n])), max_tokens)
        return Message(tuple(ids[:end]), (-0.5,) * end, (0.0,) * end)


def episode(question, sample=blind, *, seed=0, **limits):
    environment = synthetic_environment()
    return asyncio.run(play(sample, WORDS, environment, question, seed=seed, **LIMITS | limits))


def episodes(groups=4, size=4):
    """Groups of trajectories, each with successes and failures, and their uids."""
    made, uids = [], []
    for number, question in enumerate(questions(groups)):
        for member in range(size):
            won = (member + number) % 3 == 0
            trajectory = episode(question, seed=member)
            made.append(replace(trajectory, reward=float(won), success=won))
            uids.append(f"uid{number}")
    return made, uids


# --- episodes


@pytest.mark.parametrize("response_tokens", [7, 23, 60])
def test_an_episode_is_that_of_our_own_rollout(response_tokens):
    for question in questions(8):
        mine = episode(question, response_tokens=response_tokens)
        limit = len(mine.prompt_ids) + response_tokens
        (theirs,) = asynchronous.roll_out(
            Engine(), WORDS, synthetic_environment(), [question],
            seed=0, step=0, max_turn_tokens=5, max_tokens=limit,
        )  # fmt: skip
        assert len(mine.token_ids) <= limit
        assert without_entropies(mine) == without_entropies(theirs)


def without_entropies(trajectory):
    turns = [replace(t, sampled_entropies=(0.0,) * len(t.sampled_ids)) for t in trajectory.turns]
    return replace(trajectory, turns=tuple(turns))


def test_a_prompt_is_never_cut():
    (question,) = questions(1)
    length = len(episode(question).prompt_ids)
    episode(question, prompt_tokens=length)
    with pytest.raises(ValueError, match=question.id):
        episode(question, prompt_tokens=length - 1)


def test_an_error_of_the_first_message_is_raised_and_a_later_one_loses_the_trajectory():
    async def broken(ids, most):
        raise ConnectionError("gone")

    def after(count):
        async def sample(ids, most):
            sample.calls += 1
            if sample.calls > count:
                raise ConnectionError("gone")
            ids = [OPENING[0], CONTENT[0], CLOSING[0]]
            return Said(ids, [-1.0] * 3)

        sample.calls = 0
        return sample

    (question,) = questions(1)
    with pytest.raises(ConnectionError):
        episode(question, broken)
    lost = episode(question, after(2))
    assert (lost.stop_reason, lost.reward, len(lost.turns)) == ("error", None, 2)
    assert lost.turns[-1].observation_ids == ()


@pytest.mark.parametrize(
    ("said", "complaint"), [(Said([], []), "no token"), (Said([1, 2], [-1.0]), "1 log-probs for 2")]
)
def test_what_is_no_message_is_refused(said, complaint):
    async def sample(ids, most):
        return said

    with pytest.raises(ValueError, match=complaint):
        episode(questions(1)[0], sample)


def test_the_question_of_a_row_is_in_any_of_its_forms():
    plain = {
        "data_source": "nq", "id": "train_7", "question": "who wrote it?",
        "golden_answers": ["Ann"], "reward_model": {"ground_truth": {"target": ["Ann"]}},
        "extra_info": {"split": "train", "index": 7}, "raw_prompt": [],
    }  # fmt: skip
    told = {
        "data_source": "nq", "reward_model": {"ground_truth": {"target": torch.tensor([1])}},
        "raw_prompt": [{"role": "user", "content": "Think. Question: who wrote it?\n"}],
        "extra_info": {"split": "train", "index": 7},
    }  # fmt: skip
    assert question_of(plain).answers == ("Ann",)
    assert question_of(plain).text == question_of(told).text == "who wrote it?"
    with pytest.raises(ValueError, match=r"columns a, prompt: .*question_files convert"):
        question_of({"a": 1})


# --- rows


def test_a_trajectory_survives_the_way_through_verl():
    for question in questions(12):
        trajectory = replace(episode(question), grounded=True, oracle_turn=0)
        response = response_of(trajectory)
        assert response.note["turn_spans"] == spans_of(response.mask)
        again = trajectory_of(
            trajectory.prompt_ids, response.ids, response.mask, response.logprobs, response.note, 0
        )
        assert without_entropies(again) == without_entropies(trajectory)


def test_a_row_that_was_cut_or_masked_anew_is_refused():
    response = response_of(episode(questions(1)[0]))
    with pytest.raises(ValueError, match="are not the sampled runs"):
        trajectory_of(
            (1,), response.ids, [0, *response.mask[1:]], response.logprobs, response.note, 0
        )


def test_without_a_note_turns_are_runs_and_the_score_tells_success():
    found = trajectory_of((1,), [2, 3, 4, 5], [1, 1, 0, 1], [-1.0] * 4, None, 1.0)
    assert [turn.sampled_ids for turn in found.turns] == [(2, 3), (5,)]
    assert found.success
    assert found.turns[0].observation_ids == (4,)


def rows_of(trajectories, uids, seed=0):
    stream = torch.Generator().manual_seed(seed)
    responses = [response_of(trajectory) for trajectory in trajectories]

    def drawn(low, high):
        sizes = [len(response.ids) for response in responses]
        return [torch.rand(size, generator=stream) * (high - low) + low for size in sizes]

    return Rows(
        prompts=[torch.tensor(trajectory.prompt_ids) for trajectory in trajectories],
        responses=[torch.tensor(response.ids) for response in responses],
        masks=[torch.tensor(response.mask) for response in responses],
        uids=uids,
        scores=[trajectory.reward or 0.0 for trajectory in trajectories],
        extras=[{NOTE: response.note} for response in responses],
        tokens={
            "old_log_probs": drawn(-3, 0), "entropy": drawn(0, 3), "ref_log_prob": drawn(-3, 0),
            "values": drawn(-1, 1),
        },
        rollout=drawn(-3, 0),
    )  # fmt: skip


MADE = episodes()
NEED_MORE = {"mt_grpo", "turn_returns", "igpo", "adrs", "true_advantage", "vineppo"}
"""Bases that read step rewards, which neither environment gives, a teacher's scores or an audit."""


def own_batch(rows):
    """The batch made without the plugin: from the trajectories, with the engine's numbers."""
    trajectories, uids = MADE
    batch = from_trajectories(trajectories, group_ids=[int(uid[3:]) for uid in uids])

    def placed(name):
        flat = torch.cat([v[m.bool()] for v, m in zip(rows.tokens[name], rows.masks, strict=True)])
        return torch.zeros(batch.response_mask.shape).masked_scatter_(batch.response_mask, flat)

    return batch.replace(
        old_logprobs=placed("old_log_probs"), entropies=placed("entropy"),
        ref_logprobs=placed("ref_log_prob"), values=placed("values"),
        anchor_ids=anchor_ids(trajectories, group_ids=[int(uid[3:]) for uid in uids]),
    )  # fmt: skip


@pytest.mark.parametrize("base", sorted(set(BASES) - NEED_MORE))
@pytest.mark.parametrize("weight", ["none", "suffix_mask", "high_entropy_turns", "aem"])
def test_advantages_are_those_of_token_advantages(base, weight):
    rows = rows_of(*MADE)
    batch = own_batch(rows)
    expected = token_advantages(batch, base, weight)
    found, returns, metrics = credit_rows(
        Method(base, {}, weight, {}, "ppo_clip", {}), rows, seed=0, step=1
    )
    for row, (values, mask) in enumerate(zip(found, rows.masks, strict=True)):
        assert values[mask == 0].abs().sum() == 0
        own = expected[row][batch.response_mask[row]]
        torch.testing.assert_close(values[mask.bool()], own, atol=1e-5, rtol=0)
    assert metrics["tokens"] == sum(int(mask.sum()) for mask in rows.masks)
    assert "turn_0/trajectories" in metrics
    assert len(returns) == len(found)


@pytest.mark.parametrize("weight", sorted(TURN_WEIGHTS))
def test_a_weight_runs_on_rows_of_question_files_or_is_refused_at_the_start(weight):
    trajectories, uids = MADE
    rows = rows_of([replace(t, grounded=None, oracle_turn=None) for t in trajectories], uids)
    config = changed(
        algorithm__turncredit=CREDIT | {"weight": weight, "weight_options": {}},
        **{f"{L}weight": weight, f"{L}weight_options": {}},
    )
    if weight in UNREAD_WEIGHTS:
        field, _, instead = UNREAD_WEIGHTS[weight]
        with pytest.raises(ValueError, match=f"{weight}' reads {field}.*take '{instead}'"):
            check_config(config)
    else:
        check_config(config)
        credit_rows(read_method(config)[0], rows, seed=0, step=1)


def test_a_weight_of_ones_own_that_reads_what_nobody_knows_is_refused_too(monkeypatch):
    monkeypatch.setattr(settings, "UNREAD_WEIGHTS", {})
    for weight in UNREAD_WEIGHTS:
        with pytest.raises(ValueError, match="and this batch has none"):
            read_method(
                changed(algorithm__turncredit=CREDIT | {"weight": weight, "weight_options": {}})
            )


def test_questions_of_files_tell_neither_the_evidence_nor_the_first_wrong_turn():
    (question,) = questions(1)
    trajectory = episode(replace(question, hops=()))
    assert (trajectory.grounded, trajectory.oracle_turn) == (None, None)


def test_failures_of_tools_are_counted_once_and_added_up_by_cause():
    trajectories, uids = MADE
    rows = rows_of(trajectories, uids)
    counted, unreported = {"search_timeout": 1}, Unreported()
    for number, extra in enumerate(rows.extras):
        if number in (2, 5):
            counted["judge_malformed"] = counted.get("judge_malformed", 0) + number
        extra[NOTE]["tool_failures"] = unreported.take(lambda: counted)
    found = credit_rows(Method("grpo", {}, "none", {}, "ppo_clip", {}), rows, seed=0, step=1)[2]
    told = {name: value for name, value in found.items() if name.startswith("tool_failures")}
    assert told == {
        "tool_failures": 8, "tool_failures_judge_malformed": 7, "tool_failures_search_timeout": 1,
    }  # fmt: skip


def test_a_step_without_failures_says_so():
    found = credit_rows(
        Method("grpo", {}, "none", {}, "ppo_clip", {}), rows_of(*MADE), seed=0, step=1
    )
    assert found[2]["tool_failures"] == 0


def test_failures_are_read_again_while_a_thread_counts_a_new_cause():
    tries = []

    def busy():
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return {"search_timeout": 1}

    assert Unreported().take(busy) == {"search_timeout": 1}


def test_a_weight_that_follows_the_policy_is_left_to_the_loss():
    rows = rows_of(*MADE)
    followed, plain = (
        credit_rows(Method("grpo", {}, weight, {}, "ppo_clip", {}), rows, seed=0, step=1)[0]
        for weight in ("high_is_turns", "none")
    )
    assert all(map(torch.equal, followed, plain))


def test_a_missing_reward_is_not_zero():
    trajectories, uids = MADE
    rows = rows_of([replace(trajectories[0], reward=None), *trajectories[1:]], uids)
    method = Method("grpo", {}, "none", {}, "ppo_clip", {})
    found, _, metrics = credit_rows(method, rows, seed=0, step=1)
    assert metrics["missing_rewards"] == 1
    assert found[0].abs().sum() == 0


def test_the_critic_learns_advantage_plus_value():
    rows = rows_of(*MADE)
    method = Method("gae", {"lam": 1.0}, "none", {}, "ppo_clip", {})
    _, returns, _ = credit_rows(method, rows, seed=0, step=1)
    for value, mask, reward in zip(returns, rows.masks, rows.scores, strict=True):
        torch.testing.assert_close(value[mask.bool()], torch.full((int(mask.sum()),), reward))


def test_a_field_of_another_length_is_named():
    rows = rows_of(*MADE)
    short = [rows.tokens["entropy"][0][:-1], *rows.tokens["entropy"][1:]]
    with pytest.raises(ValueError, match=r"entropy: row 0 has \d+ values"):
        turn_batch(replace(rows, tokens=rows.tokens | {"entropy": short}))


# --- settings


CREDIT = {
    "base": "grpo", "base_options": {}, "weight": "suffix_mask", "weight_options": {"c": 2.0},
    "seed": 0,
}  # fmt: skip
AGENT = {
    "environment": {
        "kind": "search_r1", "max_turns": 5, "search_results": 3,
        "passage": "Doc {number}(Title: {title}) {text}", "best_paragraph": False,
        "observation_characters": 2000,
        "invalid_ends": False, "invalid_penalty": 0.0,
    },
    "wording": "search_r1",
    "judge": {"kind": "rule", "knowledge": 0.0, "noise": 0.0},
    "retriever": {
        "kind": "server", "url": "http://127.0.0.1:8000", "timeout": 60.0, "retries": 2,
        "strict": True,
    },
    "chat": True, "preface": "", "max_turn_tokens": 500, "seed": 0,
}  # fmt: skip
CONFIG = {
    "algorithm": {
        "adv_estimator": "turncredit", "use_kl_in_reward": False, "turncredit": CREDIT,
        "rollout_correction": {"rollout_is": None, "rollout_rs": None, "bypass_mode": False},
    },
    "critic": {"enable": None},
    "trainer": {"nnodes": 1, "use_v1": True, "v1": {"trainer_mode": "turncredit"}},
    "actor_rollout_ref": {
        "actor": {
            "loss_agg_mode": "token-mean", "loss_scale_factor": None, "clip_ratio_low": 0.2,
            "policy_loss": {
                "_target_": "turncredit.verl_plugin.losses.TurnLossConfig",
                "loss_mode": "turncredit_ppo_clip", "objective_options": {"clip_high": 0.28},
                "weight": "suffix_mask", "weight_options": {"c": 2.0},
            },
        },
        "rollout": {
            "n": 5, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True,
            "prompt_length": 2048, "response_length": 4500,
            "agent": {"default_agent_loop": "turncredit"},
            "custom": {"turncredit": AGENT},
        },
    },
}  # fmt: skip


def changed(**changes):
    """The configuration with values put at dotted paths, written with __ for the dots."""
    config = copy.deepcopy(CONFIG)
    for path, value in changes.items():
        *nodes, key = path.split("__")
        node = config
        for name in nodes:
            node = node[name]
        node[key] = value
    return config


A, R = "actor_rollout_ref__actor__", "actor_rollout_ref__rollout__"
L = f"{A}policy_loss__"


def test_a_sound_configuration_is_read():
    check_config(CONFIG)
    method, _ = read_method(CONFIG)
    assert (method.weight, method.objective) == ("suffix_mask", "ppo_clip")
    assert read_agent(CONFIG).environment.KIND == "search_r1"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"algorithm__adv_estimator": "grpo"}, "must be 'turncredit'"),
        ({"algorithm__turncredit": CREDIT | {"base": "gpro"}}, "unknown base 'gpro'"),
        ({"algorithm__turncredit": CREDIT | {"weight": "sufix"}}, "unknown turn weight 'sufix'"),
        ({"algorithm__turncredit": CREDIT | {"weigth": "none"}}, "unknown key 'weigth'"),
        ({"algorithm__turncredit": CREDIT | {"base_options": {"sdt": 1}}}, "no option 'sdt'"),
        ({"algorithm__turncredit": CREDIT | {"weight_options": {"after": 2.0}}}, "after is 2.0"),
        ({"algorithm__turncredit": CREDIT | {"base": "igpo"}}, "information gains need passes"),
        ({"algorithm__turncredit": CREDIT | {"base": "adrs"}}, "its teacher needs passes"),
        ({"algorithm__turncredit": CREDIT | {"base": "true_advantage"}}, "plays on from every"),
        ({"algorithm__turncredit": CREDIT | {"base": "vineppo"}}, "playing on from every turn"),
        ({"algorithm__turncredit": CREDIT | {"base": "gae"}}, "gae needs TurnBatch.values"),
        ({"algorithm__turncredit": None}, "algorithm.turncredit is missing"),
        ({f"{L}loss_mode": "turncredit_ppo_clp"}, "'turncredit_ppo_clp' is not one of"),
        ({f"{L}loss_mode": "vanilla"}, "'vanilla' is not one of"),
        ({f"{L}_target_": "verl.workers.config.PolicyLossConfig"}, "TurnLossConfig"),
        ({f"{L}objective_options": {"clip_hihg": 1}}, "no option 'clip_hihg'"),
        ({f"{L}objective_options": {"max_length": 9}}, "leave it out"),
        ({f"{L}weight": "none"}, r"policy_loss.weight = 'none' must be 'suffix_mask'"),
        ({f"{A}clip_ratio_low": 0.1}, "clip_ratio_low = 0.1 would not be read"),
        ({f"{A}clip_ratio_c": 2.0}, "clip_ratio_c = 2.0 would not be read"),
        ({"algorithm__gamma": 0.9}, "gamma = 0.9 would not be read: .*base_options"),
        ({"algorithm__norm_adv_by_std_in_grpo": False}, "would not be read"),
        ({"trainer__use_v1": False}, "older trainer"),
        ({"trainer__v1__trainer_mode": "sync"}, "trainer_mode = 'sync' must be 'turncredit'"),
        ({"algorithm__rollout_correction": {"bypass_mode": True}}, "bypass_mode = True"),
        ({f"{A}loss_agg_mode": "token-sum"}, "'token-sum' is not one of"),
        ({f"{A}loss_agg_mode": "seq-mean-token-sum-norm"}, "loss_scale_factor is null"),
        ({"algorithm__use_kl_in_reward": True}, "use_kl_loss"),
        ({"algorithm__rollout_correction": {"rollout_rs": "token"}}, "rollout_rs = 'token'"),
        ({f"{R}n": 1}, "group of one"),
        ({f"{R}top_p": 0.9}, "cut distribution"),
        ({f"{R}calculate_log_probs": False}, "both engines"),
        ({f"{R}custom": {}}, "custom.turncredit is missing"),
        ({f"{R}custom": {"turncredit": AGENT | {"wording": "tiny"}}}, "wording = 'tiny'"),
        ({f"{R}custom": {"turncredit": AGENT | {"max_turn_tokens": 9999}}}, "more than"),
        ({f"{R}agent": {"default_agent_loop": "tool_agent"}}, "'tool_agent' must be 'turncredit'"),
        ({"reward": {"custom_reward_function": {"path": "r.py"}}}, "r.py' would not be read: the"),
        ({"reward": {"reward_model": {"enable": True}}}, "enable = True would not be read: the"),
    ],
)
def test_what_cannot_run_is_refused_by_name(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_config(changed(**changes))


LOCAL = "localhost LOCALHOST. api.localhost 127.0.0.1 127.1 127.8.8.8 0.0.0.0 [::1] [::]".split()
LOCAL += ["[::ffff:127.0.0.1]"]
DEEP = cluster.read_run("qwen3_8b", "deep_research", "2x8", "baseline").verl["actor_rollout_ref"]
DEEP = DEEP["rollout"]["custom"]["turncredit"]


def on_nodes(nodes, agent, **urls):
    """A configuration for so many nodes whose agent loop asks these addresses."""
    agent = copy.deepcopy(agent)
    agent["retriever"]["url"] = urls.get("search", "http://first:8000")
    if "base_url" in agent["judge"]:
        agent["judge"]["base_url"] = urls.get("judge", "http://first:8001/v1")
    return changed(trainer__nnodes=nodes, **{f"{R}custom": {"turncredit": agent}})


@pytest.mark.parametrize("host", LOCAL)
def test_two_nodes_may_not_ask_themselves(host):
    url = f"http://{host}:8000"
    for nodes in (2, 3):
        with pytest.raises(ValueError, match=r"retriever\.url = .*would ask itself; .*--head"):
            check_config(on_nodes(nodes, AGENT, search=url))
        with pytest.raises(ValueError, match=r"judge\.base_url = .*would ask itself; .*--head"):
            check_config(on_nodes(nodes, DEEP, judge=f"{url}/v1"))
    check_config(on_nodes(1, AGENT, search=url))
    check_config(on_nodes(1, DEEP, judge=f"{url}/v1"))


@pytest.mark.parametrize("host", ["first", "10.0.0.1", "[fd00::1]", "localhost.example.org"])
def test_an_address_that_all_nodes_reach_is_sound(host):
    check_config(on_nodes(2, AGENT, search=f"http://{host}:8000"))
    check_config(on_nodes(2, DEEP, judge=f"http://{host}:8001/v1"))


def test_a_judge_that_nobody_asks_may_be_anywhere():
    agent = AGENT | {"judge": DEEP["judge"] | {"base_url": "http://127.0.0.1:8001/v1"}}
    check_config(
        changed(
            trainer__nnodes=2,
            **{
                f"{R}custom": {
                    "turncredit": agent
                    | {"retriever": AGENT["retriever"] | {"url": "http://first:8000"}}
                }
            },
        )
    )


def test_a_critic_makes_gae_possible():
    credit = CREDIT | {"base": "gae"}
    check_config(changed(algorithm__turncredit=credit, critic__enable=True))


def test_a_rule_that_remembers_steps_is_refused():
    credit = CREDIT | {"weight_options": {"rule": "running"}}
    with pytest.raises(ValueError, match="checkpoints would not hold it"):
        check_config(changed(algorithm__turncredit=credit))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_can_be_chosen(objective):
    config = changed(**{f"{L}loss_mode": f"turncredit_{objective}", f"{L}objective_options": {}})
    assert read_method(config)[0].objective == objective


# --- versions


def installed(**versions):
    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    return version


HELPERS = dict.fromkeys(UNDECLARED, "1.0")


def test_the_right_verl_is_accepted():
    require_verl(installed(verl="0.9.1+cpu", **HELPERS))


@pytest.mark.parametrize(
    ("versions", "complaint"),
    [
        ({}, "verl is not installed"),
        ({"verl": "0.10.0", **HELPERS}, r"verl 0\.10\.0 is installed, this plugin is for 0\.9\.1"),
        ({"verl": "0.9.1", "uvicorn": "1", "fastapi": "1"}, "needs cachetools, TransferQueue"),
    ],
)
def test_another_or_an_incomplete_verl_is_refused_with_the_remedy(versions, complaint):
    with pytest.raises(ImportError, match=f"(?s){complaint}.*make env-verl"):
        require_verl(installed(**versions))
