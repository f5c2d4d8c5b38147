"""Cluster runs composed into verl's own configuration, and validated by verl too.

Runs only where verl is installed: `make test-verl`.
"""

import copy
from dataclasses import replace

import pytest
import tiny_run

pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)
from verl.utils.config import omega_conf_to_dataclass

from turncredit import params
from turncredit.verl_plugin import check, cluster
from turncredit.verl_plugin.defaults import STATED
from turncredit.verl_plugin.losses import TurnLossConfig
from turncredit.verl_plugin.settings import UNREAD, check_config
from turncredit.verl_plugin.sizable import ASSUMED, ASSUMED_OF_A_CRITIC, DYNAMIC, at

RUN = cluster.read_run("qwen3_8b", "deep_research", "2x8", "high_is_turns")


def altered(key, value, run=RUN):
    """The run with one more override at a dotted key."""
    change = value
    for name in reversed(key.split(".")):
        change = {name: change}
    return replace(run, verl=params.changed(run.verl, change))


def without(key):
    """The run with nothing at a dotted key, so that verl's default holds."""
    verl = copy.deepcopy(RUN.verl)
    *nodes, last = key.split(".")
    node = verl
    for name in nodes:
        node = node[name]
    del node[last]
    return replace(RUN, verl=verl)


@pytest.fixture(scope="module")
def defaults():
    """verl's own configuration."""
    return cluster.plain(cluster.verls_defaults())


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
        ("trainer.use_v1", False, "trainer.use_v1 = false"),
        ("trainer.v1.trainer_mode", "sync", "must be 'turncredit'"),
        ("algorithm.rollout_correction.bypass_mode", True, "bypass_mode = True"),
        (
            "actor_rollout_ref.rollout.agent.default_agent_loop",
            "tool_agent",
            "must be 'turncredit'",
        ),
        ("reward.custom_reward_function.path", "r.py", "hands over the environment's own"),
        ("critic.enable", True, "critic.strategy = 'fsdp' is not sized"),
        ("actor_rollout_ref.actor.use_dynamic_bsz", True, "use_dynamic_bsz = true without"),
    ],
)
def test_what_is_wrong_is_reported_and_counted(key, value, complaint, capsys):
    assert check.report([altered(key, value)], check.verls_own()) == 1
    assert complaint in capsys.readouterr().out


# verl's defaults


@pytest.mark.parametrize("key", STATED)
def test_a_default_that_no_agentic_run_wants_is_refused(key, defaults, capsys):
    value, why = STATED[key]
    assert at(defaults, key, "no such key") == value  # what is said of verl is so
    assert check.report([without(key)], check.verls_own()) == 1
    said = capsys.readouterr().out
    assert key in said
    assert why in said


@pytest.mark.parametrize("key", UNREAD)
def test_what_is_not_read_has_the_default_that_is_taken_for_unset(key, defaults):
    assert at(defaults, key, "no such key") == UNREAD[key][0]


@pytest.mark.parametrize("key", [*ASSUMED, *ASSUMED_OF_A_CRITIC, *DYNAMIC, *DYNAMIC.values()])
def test_what_sizes_read_are_keys_of_verl(key, defaults):
    assert at(defaults, key, "no such key") != "no such key"


# several nodes


def test_an_address_that_means_each_node_itself_is_refused_with_key_and_file(capsys):
    for agent, keys in (
        ("search_r1", ["retriever.url"]),
        ("deep_research", ["retriever.url", "judge.base_url"]),
    ):
        run = cluster.read_run("qwen3_8b", agent, "2x8", "aem")
        assert check.report([run], check.verls_own()) == 0
        for key in keys:
            key = f"actor_rollout_ref.rollout.custom.turncredit.{key}"
            alone = altered(key, "http://127.0.0.1:8000/v1", run)
            assert check.report([alone], check.verls_own()) == 1
            said = capsys.readouterr().out
            assert f"agents/{agent}.yaml: {key} = http://127.0.0.1:8000/v1" in said
            assert "--head ADDRESS" in said
    assert check.report([cluster.with_head(RUN, "localhost")], check.verls_own()) == 1


def test_a_critic_that_is_sized_passes_every_check(capsys, tmp_path):
    run = cluster.read_run("qwen3_8b", "search_r1", "2x8", "baseline")
    path = str(tiny_run.write_model(tmp_path / "model"))  # verl looks at the model of a critic
    for key, value in {
        "algorithm.turncredit.base": "gae",
        "actor_rollout_ref.model.path": path,
        "critic.enable": True,
        "critic.strategy": "fsdp2",
        "critic.model.path": path,
        "critic.ppo_micro_batch_size_per_gpu": 1,
        "critic.ppo_infer_max_token_len_per_gpu": 8192,
    }.items():
        run = altered(key, value, run)
    assert check.report([run], check.verls_own()) == 0
    assert "critic " in capsys.readouterr().out
