"""Cluster runs: what their files say, and which of them cannot fit.  Composing them needs verl."""

import copy
import shutil
from dataclasses import replace

import pytest

from turncredit import params
from turncredit.training import Method
from turncredit.verl_plugin import cluster
from turncredit.verl_plugin.settings import AgentSettings, CreditSettings
from turncredit.verl_plugin.sizing import require_fits, size_of

RUNS = list(cluster.all_runs())
RUN = cluster.read_run("qwen3_8b", "deep_research", "1x8", "suffix_mask")
FREE = {"optimizer_offload": False, "param_offload": False}


def config_of(run):
    """The run's overrides upon the few defaults of verl that sizes are read from."""
    defaults = {
        "actor_rollout_ref": {
            "actor": {"fsdp_config": dict(FREE)},
            "ref": {"fsdp_config": dict(FREE)},
        }
    }
    return params.changed(defaults, copy.deepcopy(run.verl))


def changed(path, value):
    config = config_of(RUN)
    *nodes, key = path.split(".")
    node = config
    for name in nodes:
        node = node[name]
    node[key] = value
    return config


def test_there_are_two_models_agents_and_machines_and_the_five_methods():
    assert {kind: len(names) for kind, names in cluster.choices().items()} == {
        "models": 2, "agents": 2, "machines": 2, "methods": 5,
    }  # fmt: skip
    assert len(RUNS) == 40


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_run_fits_and_its_method_and_agent_are_ours(run):
    size = require_fits(run.shape, run.machine, config_of(run))
    assert size.rollout_gib > 0.6 * size.gpu_gib  # a GPU is not left idle either
    credit = params.build(CreditSettings, run.verl["algorithm"]["turncredit"], run.name)
    Method(
        credit.base, credit.base_options, credit.weight, credit.weight_options, "ppo_clip", {}
    ).rehearse()
    agent = run.verl["actor_rollout_ref"]["rollout"]["custom"]["turncredit"]
    params.build(AgentSettings, agent, run.name)


@pytest.mark.parametrize(("model", "billions"), [("qwen3_8b", 8.19), ("qwen2_5_7b", 7.62)])
def test_shapes_come_to_the_published_number_of_parameters(model, billions):
    shape = cluster.read_run(model, "search_r1", "1x8", "baseline").shape
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.01)


def test_sizes_by_hand():
    size = size_of(RUN.shape, RUN.machine, config_of(RUN))
    assert (size.row_tokens, size.trajectories) == (28 * 1024, 128 * 8)
    assert size.step_tokens == 28 * 1024 * 1024
    cache = 2 * 2 * 36 * 1024  # keys and values, two bytes, of 36 layers of 8 heads of 128
    left = 0.5 * 79.0 - RUN.shape.parameters * 2 / 2**30 - 4.0
    assert size.cached_tokens == int(left * 2**30 / cache)
    states = RUN.shape.parameters * (12 + 4) / 8 / 2**30  # weights, moments, reference
    assert size.rollout_gib == pytest.approx(0.5 * 79.0 + states + 7.5)


def test_twice_the_gpus_halve_the_states():
    two = cluster.read_run("qwen3_8b", "deep_research", "2x8", "suffix_mask")
    one, half = (size_of(r.shape, r.machine, config_of(r)).rollout_gib for r in (RUN, two))
    assert one - half == pytest.approx(RUN.shape.parameters * 16 / 16 / 2**30)


R = "actor_rollout_ref.rollout."


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("trainer.nnodes", 2, "asks for 2 x 8 GPUs, the machine has 1 x 8"),
        ("data.max_response_length", 50_000, "40960 positions"),
        (f"{R}max_model_len", 8192, "end trajectories early"),
        (f"{R}gpu_memory_utilization", 0.9, "rollout needs"),
        (f"{R}gpu_memory_utilization", 0.26, "vLLM can cache"),
        ("actor_rollout_ref.model.use_fused_kernels", False, "update needs"),
        ("actor_rollout_ref.model.enable_gradient_checkpointing", False, "update needs"),
    ],
)
def test_what_cannot_fit_is_refused(path, value, complaint):
    config = changed(path, value)
    with pytest.raises(ValueError, match=complaint):
        require_fits(RUN.shape, RUN.machine, config)


def test_trajectories_must_divide_among_the_gpus():
    config = changed("data.train_batch_size", 129)
    config["actor_rollout_ref"]["rollout"]["n"] = 5
    with pytest.raises(ValueError, match="645 trajectories do not divide among 8 GPUs"):
        require_fits(RUN.shape, RUN.machine, config)


def test_a_small_gpu_is_refused():
    with pytest.raises(ValueError, match=r"rollout needs .* on a GPU of 24\.0"):
        require_fits(RUN.shape, replace(RUN.machine, gpu_gib=24.0), config_of(RUN))


def test_an_unknown_part_names_what_there_is():
    with pytest.raises(ValueError, match="methods: 'sufix' is not one of aem, baseline"):
        cluster.read_run("qwen3_8b", "search_r1", "1x8", "sufix")


def test_an_unknown_section_of_a_file_is_named(tmp_path, monkeypatch):
    shutil.copytree(cluster.folder(), tmp_path / "cluster")
    (tmp_path / "cluster" / "methods" / "aem.yaml").write_text("vrel: {}\n")
    monkeypatch.setattr(cluster, "folder", lambda: tmp_path / "cluster")
    with pytest.raises(ValueError, match=r"aem\.yaml: unknown key 'vrel'"):
        cluster.read_run("qwen3_8b", "search_r1", "1x8", "aem")
