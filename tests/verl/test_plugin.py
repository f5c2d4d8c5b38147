"""The plugin inside verl 0.9.1: names, losses, estimators, and the trainer's advantages.

Runs only where verl is installed: `make test-verl`.
"""

import doctest
import importlib
import logging
import tomllib
from pkgutil import iter_modules
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import current_logprobs, make_batch
from peers import example

from turncredit import paths, verl_plugin
from turncredit.credit import BASES, token_advantages, weigh
from turncredit.objectives import OBJECTIVES

core = pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry  # noqa: E402
from verl.protocol import DataProto  # noqa: E402
from verl.trainer.ppo.ray_trainer import compute_advantage  # noqa: E402
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base  # noqa: E402

from turncredit.training import Method  # noqa: E402
from turncredit.verl_plugin import plugin, trainer, versions  # noqa: E402
from turncredit.verl_plugin.losses import TurnLossConfig, policy_loss  # noqa: E402
from turncredit.verl_plugin.outputs import NOTE, spans_of  # noqa: E402
from turncredit.verl_plugin.settings import CreditSettings  # noqa: E402

# registration


def test_the_entry_point_names_the_module_that_registers_everything():
    project = tomllib.loads((paths.PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"]["verl.plugins"].values()
    importlib.import_module(module).register()  # once more does no harm
    assert get_trainer_cls("turncredit") is trainer.TurnCreditTrainer
    assert "turncredit" in _agent_loop_registry
    for name in BASES:
        assert core.get_adv_estimator_fn(f"turncredit_{name}")
    for name in OBJECTIVES:
        assert core.get_policy_loss_fn(f"turncredit_{name}")


def test_a_plugin_that_cannot_be_used_says_so_aloud(monkeypatch, caplog):
    def refuse():
        raise ImportError("verl 9.9 is installed, this plugin is for 0.9.1")

    monkeypatch.setattr(versions, "require_verl", refuse)
    with caplog.at_level(logging.ERROR), pytest.raises(ImportError):
        importlib.reload(plugin)
    assert "9.9 is installed" in caplog.text
    assert "verl plugin of turncredit cannot be used" in caplog.text


@pytest.mark.parametrize("name", [found.name for found in iter_modules(verl_plugin.__path__)])
def test_the_examples_in_the_plugin_hold(name):
    module = importlib.import_module(f"turncredit.verl_plugin.{name}")
    assert doctest.testmod(module).failed == 0


# losses


def config_of(*, ranks=1, tokens=None, rows=None, factor=None, **loss):
    info = {"dp_size": ranks, "batch_num_tokens": tokens, "global_batch_size": rows}
    settings = TurnLossConfig(loss_mode="turncredit_ppo_clip", **loss)
    return SimpleNamespace(
        policy_loss=settings, global_batch_info=info | {"loss_scale_factor": factor}
    )


def runs_batch():
    """A batch whose turns are what a mask shows: no empty turn, an observation between any two."""
    return make_batch(
        [[3, 2], [1], [2, 3], [4, 1]], rewards=[0.0, 1.0, 0.25, 0.5], groups=[0, 0, 1, 1], seed=5
    )


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    ("mode", "ours"),
    [
        ("token-mean", "token_mean"),
        ("seq-mean-token-mean", "seq_mean_token_mean"),
        ("seq-mean-token-sum", "seq_mean_token_sum"),
        ("seq-mean-token-sum-norm", "seq_mean_token_sum_norm"),
    ],
)
def test_a_loss_is_the_objective_in_value_and_gradient(name, mode, ours):
    batch = runs_batch()
    advantages = token_advantages(batch, "grpo", "none")
    totals = {"total_tokens": 20, "total_sequences": 8, "max_length": 9}
    theirs, mine = (current_logprobs(batch).detach().requires_grad_() for _ in range(2))
    config = config_of(ranks=2, tokens=40, rows=16, factor=9)
    value, metrics = policy_loss(name)(
        batch.old_logprobs, theirs, advantages, batch.response_mask, mode, config
    )
    expected, own = OBJECTIVES[name](mine, batch, advantages, aggregation=ours, **totals)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(theirs.grad, mine.grad)
    assert metrics["actor/ppo_kl"] == pytest.approx(own["ppo_kl"])


def test_a_loss_without_sampled_tokens_is_zero_and_has_a_gradient():
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    value, metrics = policy_loss("ppo_clip")(
        torch.full((2, 3), -1.0), logprobs, torch.zeros(2, 3), torch.zeros(2, 3).bool(),
        "token-mean", config_of(tokens=5, rows=4),
    )  # fmt: skip
    value.backward()
    assert value.item() == 0
    assert logprobs.grad.abs().sum() == 0
    assert all(number == number for number in metrics.values())


def test_a_weight_that_follows_the_policy_is_applied_in_the_loss():
    batch = runs_batch()
    base = token_advantages(batch, "grpo", "none")
    logprobs = current_logprobs(batch).detach()
    options = {"limit": 0.05}
    expected = weigh(batch, base, "high_is_turns", options | {"logprobs": logprobs}).advantages
    assert not torch.equal(expected, base)
    config = config_of(weight="high_is_turns", weight_options=options)
    found, _ = policy_loss("ppo_clip")(
        batch.old_logprobs, logprobs, base, batch.response_mask, "token-mean", config
    )
    wanted, _ = OBJECTIVES["ppo_clip"](logprobs, batch, expected)
    torch.testing.assert_close(found, wanted)


def test_weights_of_a_rollout_correction_are_refused():
    with pytest.raises(ValueError, match="no place in this objective"):
        policy_loss("ppo_clip")(*[torch.zeros(1, 1)] * 4, rollout_is_weights=torch.ones(1, 1))


# estimators in verl's own trainer


def proto(batch):
    last = batch.response_mask.shape[1] - 1
    rewards = torch.zeros(batch.response_mask.shape).index_fill(1, torch.tensor([last]), 1.0)
    fields = {
        "token_level_rewards": rewards * batch.rewards[:, None],
        "response_mask": batch.response_mask.long(),
    }
    uids = np.array([f"q{group}" for group in batch.group_ids.tolist()], dtype=object)
    return DataProto.from_dict(tensors=fields, non_tensors={"uid": uids})


def test_an_estimator_of_ours_runs_in_verls_own_function():
    batch = runs_batch()
    found = compute_advantage(proto(batch), "turncredit_rloo", config={}).batch["advantages"]
    torch.testing.assert_close(found, token_advantages(batch, "rloo", "none"))


@pytest.mark.parametrize("name", ["turncredit", "turncredit_empg", "turncredit_gae"])
def test_an_estimator_that_needs_more_names_the_trainer(name):
    with pytest.raises(ValueError, match=r"trainer\.v1\.trainer_mode=turncredit"):
        compute_advantage(proto(example()), name, config={})


# the trainer


class Meta(SimpleNamespace):
    def __len__(self):
        return len(self.keys)


class Store:
    """What verl's TransferQueue is to the trainer: named fields of rows."""

    def __init__(self, fields):
        self.fields, self.written = fields, {}

    def kv_batch_get(self, keys, partition_id, select_fields):
        chosen = {name: self.fields[name] for name in select_fields if name in self.fields}
        return trainer_base.TensorDict(chosen, batch_size=len(keys))

    def kv_batch_put(self, keys, partition_id, fields):
        self.written = {name: fields[name] for name in fields.keys()}  # noqa: SIM118
        return "written"


def stored(batch, padding):
    """The rows of a batch as verl keeps them, with `padding` rows of nothing behind them."""
    from tensordict import NonTensorData, NonTensorStack

    def nested(values):
        rows = [*values.unbind(), *([torch.zeros(1, dtype=values.dtype)] * padding)]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    def listed(values):
        return NonTensorStack(*map(NonTensorData, values))

    rows = len(batch.rewards)
    scores = torch.zeros(batch.response_mask.shape)
    scores[:, -1] = batch.rewards
    notes = [
        {NOTE: {"turn_spans": spans, "reward": reward, "success": success, "stop_reason": "answer"}}
        for spans, reward, success in zip(
            map(spans_of, batch.response_mask.tolist()),
            batch.rewards.tolist(),
            batch.success.tolist(),
            strict=True,
        )
    ]
    return {
        "uid": listed([f"q{g}" for g in batch.group_ids.tolist()] + ["pad"] * padding),
        "extra_fields": listed(notes + notes[:1] * padding),
        "prompts": nested(torch.ones(rows, 3, dtype=torch.int64)),
        "responses": nested(batch.token_ids),
        "response_mask": nested(batch.response_mask.long()),
        "rm_scores": nested(scores),
        "old_log_probs": nested(batch.old_logprobs),
        "entropy": nested(batch.entropies),
        "rollout_log_probs": nested(batch.old_logprobs),
    }


def computing(method, batch, padding, monkeypatch):
    """What the trainer writes for a batch, its metrics, and the store."""
    store = Store(stored(batch, padding))
    monkeypatch.setattr(trainer_base, "tq", store)
    tags = [{}] * len(batch.rewards) + [{"is_padding": True}] * padding
    keys = [f"q_{i}_0" for i in range(len(tags))]
    mine = object.__new__(trainer.TurnCreditTrainer)
    mine.method, mine.global_steps = method, 1
    mine.credit_settings = CreditSettings(method.base, {}, method.weight, {}, seed=0)
    metrics = {}
    meta = Meta(keys=keys, tags=tags, partition_id="train")
    assert mine._compute_advantage(meta, metrics) == "written"
    return store.written, metrics


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("base", ["grpo", "rloo", "empg"])
@pytest.mark.parametrize("weight", ["none", "suffix_mask", "aem", "high_entropy_turns"])
def test_the_trainer_writes_the_advantages_of_token_advantages(base, weight, padding, monkeypatch):
    batch = runs_batch()
    written, metrics = computing(
        Method(base, {}, weight, {}, "ppo_clip", {}), batch, padding, monkeypatch
    )
    expected = token_advantages(batch, base, weight)
    rows = written["advantages"].unbind()
    assert len(rows) == len(batch.rewards) + padding
    for row, values in enumerate(rows[: len(expected)]):
        torch.testing.assert_close(values, expected[row], atol=1e-5, rtol=0)
    assert all(not values.any() for values in rows[len(expected) :])
    assert metrics["turncredit/tokens"] == int(batch.response_mask.sum())
    assert any(name.startswith("turncredit/turn_0/") for name in metrics)


def test_a_second_output_of_one_trajectory_is_refused():
    with pytest.raises(ValueError, match="second output"):
        trainer.real_rows(Meta(keys=["a_0_0", "a_0_1"], tags=[{}, {}]))
