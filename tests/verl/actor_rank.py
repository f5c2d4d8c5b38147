"""One rank of verl's actor without Ray: `python -m actor_rank FOLDER RANK RANKS`.

FOLDER has the params of a tiny run and `jobs.pt`; each rank writes what it found beside it.  Rows
are dealt so that a mini-batch has the same rows on any number of ranks, which verl does not do.
"""

import os
import sys
from functools import partial
from pathlib import Path

import torch
from omegaconf import OmegaConf
from tensordict import NonTensorData
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.losses import ppo_loss

from turncredit.verl_plugin.cluster import compose, read_run

FIELDS = ("prompts", "responses", "response_mask", "old_log_probs", "advantages")


def main(folder, rank, ranks):
    """Log-probs first, then the gradient of every job at the first weights, then two updates."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "none", "MASTER_PORT": "0",
        "DIST_INIT_METHOD": f"file://{folder}/store_{ranks}",
    }  # fmt: skip
    torch.set_num_threads(1)
    jobs = torch.load(folder / "jobs.pt", weights_only=False)
    config = OmegaConf.create(OmegaConf.to_container(composed(folder), resolve=True))
    worker = ActorRolloutRefWorker(config, role="actor")
    worker.init_model()
    found = {"scores": scored(worker, jobs["rows"], rank, ranks)}
    found |= {name: gradient(worker, job, rank, ranks) for name, job in jobs["gradients"].items()}
    found["updated"] = updated(worker, jobs["update"], rank, ranks)
    torch.save(found, folder / f"found_{rank}_of_{ranks}.pt")
    torch.distributed.destroy_process_group()


def composed(folder):
    """The node of the actor, with gradients that are not cut and updates smooth in them."""
    config = compose(read_run("tiny", "search_r1", "cpu", "aem", root=folder)).actor_rollout_ref
    OmegaConf.update(config, "actor.use_kl_loss", False)
    OmegaConf.update(config, "actor.optim.clip_grad", 1e9)
    OmegaConf.update(config, "actor.optim.override_optimizer_config", {"eps": 1.0}, force_add=True)
    OmegaConf.update(config, "actor.ppo_micro_batch_size_per_gpu", 2)
    return config


def dealt(count, mini_batch, rank, ranks):
    """The numbers of this rank's rows: its part of every mini-batch, in order."""
    part = mini_batch // ranks
    starts = range(rank * part, count, mini_batch)
    return [row for start in starts for row in range(start, start + part)]


def batch_of(rows, numbers, **told):
    """Rows as the trainer's store gives them to a worker."""
    taken = {name: [rows[name][number] for number in numbers] for name in FIELDS}
    whole = [torch.cat(pair) for pair in zip(taken["prompts"], taken["responses"], strict=True)]
    taken |= {"input_ids": whole, "position_ids": [torch.arange(len(ids)) for ids in whole]}
    taken["loss_mask"] = taken["response_mask"]
    nested = {
        name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
        for name, values in taken.items()
    }
    told |= {"temperature": 1.0, "global_token_num": NonTensorData([len(ids) for ids in whole])}
    return tu.get_tensordict(nested, told)


def scored(worker, rows, rank, ranks):
    """Log-probs and entropies of whole rows, by row number."""
    numbers = dealt(len(rows["prompts"]), len(rows["prompts"]), rank, ranks)
    told = {"calculate_entropy": True, "compute_loss": False}
    output = worker.compute_log_prob(batch_of(rows, numbers, **told))
    parts = zip(output["log_probs"].unbind(), output["entropy"].unbind(), strict=True)
    return dict(zip(numbers, parts, strict=True))


def gradient(worker, job, rank, ranks):
    """Every gradient of a loss over all rows, at weights that stay as they are; and its metrics."""
    count = len(job["rows"]["prompts"])
    set_loss(worker, job["loss"])
    engine, numbers = worker.actor.engine, dealt(count, count, rank, ranks)
    found = {}

    def take(optimizer, *_):  # verl clears the gradients right after the step
        found.update({name: whole(p.grad) for name, p in engine.module.named_parameters()})
        for group in optimizer.param_groups:
            group["lr"] = 0.0

    rates = [group["lr"] for group in engine.optimizer.param_groups]
    hook = engine.optimizer.register_step_pre_hook(take)
    data = batch_of(job["rows"], numbers, global_batch_size=count)
    metrics = tu.get(worker.actor.train_batch(data), "metrics")
    hook.remove()
    for group, rate in zip(engine.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return {"gradients": found, "loss": metrics["loss"]}


def set_loss(worker, changes):
    """Let the actor's loss be another objective, weight or aggregation."""
    for key, value in changes.items():
        OmegaConf.update(worker.config.actor, key, value, merge=False)
    config = omega_conf_to_dataclass(worker.config.actor)
    worker.set_loss_fn(partial(ppo_loss, config=config))


def updated(worker, job, rank, ranks):
    """The weights after verl's own loop over mini-batches."""
    set_loss(worker, job["loss"])
    size = job["mini_batch"]
    numbers = dealt(len(job["rows"]["prompts"]), size, rank, ranks)
    told = {"mini_batch_size": size, "global_batch_size": size, "epochs": 1, "seed": 1}
    told["dataloader_kwargs"] = {"shuffle": False}
    worker.update_actor(batch_of(job["rows"], numbers, **told))
    return {name: whole(p.detach()) for name, p in worker.actor.engine.module.named_parameters()}


def whole(tensor):
    """A tensor that is spread over the ranks, put together on each."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
