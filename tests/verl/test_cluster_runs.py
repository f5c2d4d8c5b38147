"""Cluster runs composed into verl's own configuration, and validated by verl too.

Runs only where verl is installed: `make test-verl`.
"""

import copy
from dataclasses import replace

import pytest

pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)
from verl.utils.config import omega_conf_to_dataclass

from turncredit.verl_plugin import check, cluster
from turncredit.verl_plugin.losses import TurnLossConfig
from turncredit.verl_plugin.settings import check_config

RUN = cluster.read_run("qwen3_8b", "deep_research", "2x8", "high_is_turns")


def altered(key, value):
    """The run with one more override at a dotted key."""
    verl = copy.deepcopy(RUN.verl)
    *nodes, last = key.split(".")
    node = verl
    for name in nodes:
        node = node.setdefault(name, {})
    node[last] = value
    return replace(RUN, verl=verl)


def test_a_run_is_composed_and_its_loss_is_told_what_it_reads():
    config = cluster.compose(RUN)
    check_config(cluster.plain(config))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert type(actor.policy_loss) is TurnLossConfig
    assert actor.policy_loss.weight == "high_is_turns"
    assert dict(actor.policy_loss.weight_options) == {"limit": 0.02, "side": "both"}
    assert dict(actor.policy_loss.objective_options) == {"clip_low": 0.2, "clip_high": 0.2}


@pytest.mark.parametrize("agent", ["search_r1", "deep_research"])
@pytest.mark.parametrize("model", ["qwen3_8b", "qwen2_5_7b"])
def test_runs_pass_every_check_verls_own_among_them(model, agent, capsys):
    run = cluster.read_run(model, agent, "1x8", "suffix_mask")
    assert check.report([run], check.verls_own()) == 0
    assert "GiB a GPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("trainer.nodes", 2, "no key 'trainer.nodes'"),
        ("algorithm.turncredit.weight", "high_is", "unknown turn weight 'high_is'"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization", 0.95, "the rollout needs"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 256, "train_batch_size"),
    ],
)
def test_what_is_wrong_is_reported_and_counted(key, value, complaint, capsys):
    assert check.report([altered(key, value)], check.verls_own()) == 1
    assert complaint in capsys.readouterr().out
