"""Cluster runs: what their files say, and which of them cannot fit.  Composing them needs verl."""

import copy
import shutil
from dataclasses import replace

import pytest

from turncredit import params, paths
from turncredit.training import Method
from turncredit.verl_plugin import cluster
from turncredit.verl_plugin.places import facts_of
from turncredit.verl_plugin.settings import AgentSettings, CreditSettings
from turncredit.verl_plugin.sizing import require_fits, size_of

RUNS = list(cluster.all_runs())
RUN = cluster.read_run("qwen3_8b", "deep_research", "1x8", "suffix_mask")
FREE = {"optimizer_offload": False, "param_offload": False}
GIB = 2**30
STATE = RUN.shape.parameters / 8 / GIB
"""GiB of a byte a parameter on each of 8 GPUs."""


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
    assert size.moments["rollout"] > 0.6 * size.gpu_gib  # a GPU is not left idle either
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
    left = 0.4 * 79.0 - RUN.shape.parameters * 2 / GIB - 4.0
    assert size.cached_tokens == int(left * GIB / cache)
    states = STATE * (12 + 4)  # weights, moments, reference
    beside = 6.0 + 2.5 + 20.0  # retrieval, contexts, judge
    assert size.moments["rollout"] == pytest.approx(0.4 * 79.0 + states + beside)
    row, width, vocabulary = 28 * 1024, 4096, 151936
    inside = 2 * (6 * width + 2 * 4096 + 4 * 1024 + 4 * 12288)
    gathered = 4 * vocabulary * width
    logits = 512 * vocabulary * 14 + 4 * vocabulary * width
    update = 1.1 * ((2 * width * 36 + inside) * row + gathered + logits) / GIB
    assert size.moments["update"] == pytest.approx(states + 4 * STATE + update + beside)
    read = 1.1 * (inside * row + gathered + 512 * vocabulary * 10) / GIB
    assert size.moments["log-probs"] == pytest.approx(states + read + beside)


def moments(config, run=RUN):
    return size_of(run.shape, run.machine, config).moments


def test_twice_the_gpus_halve_the_states():
    two = cluster.read_run("qwen3_8b", "deep_research", "2x8", "suffix_mask")
    one, half = (moments(config_of(run), run)["rollout"] for run in (RUN, two))
    assert one - half == pytest.approx(STATE * 16 / 2)


def test_a_judge_takes_of_a_gpu_only_where_it_is_asked():
    search = cluster.read_run("qwen3_8b", "search_r1", "1x8", "suffix_mask")
    alone = replace(search.machine, judge_gib_per_gpu=0.0)
    assert moments(config_of(search), search) == moments(
        config_of(search), replace(search, machine=alone)
    )
    alone = replace(RUN.machine, judge_gib_per_gpu=0.0)
    with pytest.raises(
        ValueError, match=r"judge\.base_url .* on a machine whose GPUs .*judge_gib_per_gpu"
    ):
        require_fits(RUN.shape, alone, config_of(RUN))
    away = changed(f"{OURS}judge.base_url", "http://judges:8001/v1")
    found = require_fits(RUN.shape, alone, away).moments
    assert moments(config_of(RUN))["update"] - found["update"] == pytest.approx(20.0)


def test_what_is_offloaded_comes_back_for_the_update():
    config = changed("actor_rollout_ref.actor.fsdp_config.optimizer_offload", True)
    less, whole = moments(config), moments(config_of(RUN))
    assert whole["rollout"] - less["rollout"] == pytest.approx(STATE * 8)
    assert whole["update"] == less["update"]


def with_critic(**told):
    """Search-R1's run with a critic of the same model, which fits."""
    run = cluster.read_run("qwen3_8b", "search_r1", "1x8", "baseline")
    config = config_of(run)
    model = {"use_remove_padding": True, "enable_gradient_checkpointing": True, "lora_rank": 0}
    critic = {
        "enable": True, "strategy": "fsdp2", "fsdp": dict(FREE),
        "model": model | {"path": config["actor_rollout_ref"]["model"]["path"]},
    }  # fmt: skip
    config["critic"] = params.changed(critic, told)
    return run, config


def test_a_critic_is_sized_by_what_verl_packs_into_its_micro_batch():
    run, config = with_critic()
    size = require_fits(run.shape, run.machine, config)
    alone = moments(config_of(run), run)
    states = 12 * run.shape.critic_parameters / 8 / GIB
    assert run.shape.critic_parameters == run.shape.parameters - 151936 * 4096
    for moment, gib in alone.items():
        assert size.moments[moment] - gib == pytest.approx(states)
    _, twice = with_critic(ppo_infer_max_token_len_per_gpu=65536)
    more = moments(twice, run)["critic"] - size.moments["critic"]
    activations = 2 * 4096 * 36 + 2 * (6 * 4096 + 2 * 4096 + 4 * 1024 + 4 * 12288)
    assert more == pytest.approx(1.1 * 32768 * activations / GIB)


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"strategy": "fsdp"}, r"critic\.strategy = 'fsdp' is not sized"),
        ({"model": {"path": "other/model"}}, "a shape that nobody has said"),
        ({"model": {"use_remove_padding": False}}, "use_remove_padding = False is not sized"),
        ({"ppo_infer_max_token_len_per_gpu": 4096}, "below the 6548 tokens of the longest row"),
        ({"ppo_infer_max_token_len_per_gpu": 300_000}, "the critic needs .*max_token_len"),
    ],
)
def test_a_critic_that_cannot_be_sized_or_does_not_fit_is_refused(told, complaint):
    run, config = with_critic(**told)
    with pytest.raises(ValueError, match=complaint):
        require_fits(run.shape, run.machine, config)


def packed(most):
    """Micro-batches of as many packed rows as have so many tokens."""
    config = changed("actor_rollout_ref.model.use_remove_padding", True)
    config["actor_rollout_ref"]["actor"] |= {
        "use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": most,
    }  # fmt: skip
    return config


def test_a_dynamic_batch_is_sized_by_its_tokens():
    row = 28 * 1024
    assert moments(packed(row)) == moments(config_of(RUN))
    config = config_of(RUN)
    config["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] = 2
    assert moments(packed(2 * row)) == moments(config)
    with pytest.raises(ValueError, match="ppo_max_token_len_per_gpu = 16384 is below"):
        require_fits(RUN.shape, RUN.machine, packed(16384))
    with pytest.raises(ValueError, match="padded to its longest row"):
        require_fits(
            RUN.shape, RUN.machine, changed("actor_rollout_ref.actor.use_dynamic_bsz", True)
        )


R = "actor_rollout_ref.rollout."
OURS = f"{R}custom.turncredit."


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("trainer.nnodes", 2, "asks for 2 x 8 GPUs, the machine has 1 x 8"),
        ("data.max_response_length", 50_000, "40960 positions"),
        (f"{R}max_model_len", 8192, "end trajectories early"),
        (f"{R}gpu_memory_utilization", 0.9, "rollout needs"),
        (f"{R}log_prob_micro_batch_size_per_gpu", 8, "log-probs needs .* log_prob_micro_batch"),
        (f"{R}log_prob_use_dynamic_bsz", True, "padded to its longest row"),
        (f"{R}pipeline_model_parallel_size", 2, "pipeline_model_parallel_size = 2 is not sized"),
        ("actor_rollout_ref.actor.strategy", "megatron", "strategy = 'megatron' is not sized"),
        ("actor_rollout_ref.ref.strategy", "fsdp", "strategy = 'fsdp' is not sized"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 2, "ulysses.* = 2 is not sized"),
        ("actor_rollout_ref.model.lora_rank", 32, "lora_rank = 32 is not sized"),
        (f"{OURS}judge", {"kind": "local", "device": "cuda"}, "agent loops have no GPU"),
        (f"{OURS}retriever", {"kind": "index", "device": "cuda"}, "take kind: server"),
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


@pytest.mark.parametrize("name", cluster.choices()["machines"])
def test_the_retrieval_server_has_what_index_searches_and_encoder_take(name):
    machine = cluster.read_run("qwen3_8b", "search_r1", name, "baseline").machine
    index = 21_015_324 * 768 * 2 / GIB / machine.gpus_per_node  # wiki-18 in float16
    searches = 1.5  # what FAISS's StandardGpuResources set aside on a GPU of this size
    encoder = 109e6 * 2 / GIB + 0.4  # E5 in float16, and activations of a batch of queries
    assert machine.retrieval_gib_per_gpu >= index + searches + encoder


def test_a_small_gpu_is_refused():
    with pytest.raises(ValueError, match=r"update needs .* on a GPU of 24\.0"):
        require_fits(RUN.shape, replace(RUN.machine, gpu_gib=24.0), config_of(RUN))


def table_of_sizes():
    """Cells of the table of sizes in docs/scaling.md, by run."""
    text = (paths.repository() / "docs" / "scaling.md").read_text(encoding="utf-8")
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| qwen")]
    return {row[0].strip(): tuple(cell.strip() for cell in row[1:]) for row in cells}


@pytest.mark.parametrize("name", table_of_sizes())
def test_the_documentation_has_the_sizes_that_are_computed(name):
    run = cluster.read_run(*name.split(), "baseline")
    size = size_of(run.shape, run.machine, config_of(run))
    gib = [f"{size.moments[moment]:.0f}" for moment in ("rollout", "log-probs", "update")]
    most = [f"{size.step_tokens / 1e6:.1f}", f"{size.cached_tokens / size.row_tokens:.1f}"]
    assert table_of_sizes()[name] == (*gib, *most)


def test_the_documentation_names_what_a_judge_elsewhere_and_fused_kernels_save():
    text = " ".join((paths.repository() / "docs" / "scaling.md").read_text().split())
    plain = changed("actor_rollout_ref.model.use_fused_kernels", False)
    assert f"the update of a 28k row takes {moments(plain)['update']:.0f} GiB" in text
    more = changed(f"{R}gpu_memory_utilization", 0.65)
    more["actor_rollout_ref"]["rollout"]["custom"]["turncredit"]["judge"]["base_url"] = (
        "http://j/v1"
    )
    alone = replace(RUN.machine, judge_gib_per_gpu=0.0)
    size = require_fits(RUN.shape, alone, more)
    held = f"{size.cached_tokens / size.row_tokens:.1f} of the longest"
    assert f"may be 0.65 on one node and the cache holds {held}" in text


@pytest.mark.parametrize("name", cluster.choices()["models"])
def test_a_model_is_called_as_the_one_it_names(name):
    run = cluster.read_run(name, "search_r1", "1x8", "baseline")
    path = run.verl["actor_rollout_ref"]["model"]["path"].rpartition("/")[2]
    assert path.lower().replace("-", "_").replace(".", "_") == name


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_run_saves_what_opens_as_a_policy(run):
    saved = run.verl["actor_rollout_ref"]["actor"]["checkpoint"]["save_contents"]
    assert saved == ["model", "optimizer", "extra", "hf_model"]


def test_where_the_servers_run_is_no_part_of_what_a_run_is():
    moved = cluster.with_head(RUN, "10.0.0.7")
    assert moved.verl["actor_rollout_ref"]["rollout"]["custom"]["head"] == "10.0.0.7"
    assert facts_of(moved) == facts_of(RUN)


def test_the_file_that_says_a_key_is_the_last_that_does():
    assert RUN.said_by("data.seed").endswith("engine/verl.yaml: data.seed")
    key = f"{R}gpu_memory_utilization"
    assert RUN.said_by(key).endswith(f"agents/deep_research.yaml: {key}")
    assert RUN.said_by("nobody.says.it") == "nobody.says.it"


def test_an_unknown_part_names_what_there_is():
    with pytest.raises(ValueError, match="methods: 'sufix' is not one of aem, baseline"):
        cluster.read_run("qwen3_8b", "search_r1", "1x8", "sufix")


def test_an_unknown_section_of_a_file_is_named(tmp_path, monkeypatch):
    shutil.copytree(cluster.folder(), tmp_path / "cluster")
    (tmp_path / "cluster" / "methods" / "aem.yaml").write_text("vrel: {}\n")
    monkeypatch.setattr(cluster, "folder", lambda: tmp_path / "cluster")
    with pytest.raises(ValueError, match=r"aem\.yaml: unknown key 'vrel'"):
        cluster.read_run("qwen3_8b", "search_r1", "1x8", "aem")
