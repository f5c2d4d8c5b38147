"""verl 0.9.1 without an accelerator, for tests alone: a platform, and a rollout by transformers.

Named in VERL_USE_EXTERNAL_MODULES with VERL_PLATFORM=cpu, so that every process of a run loads it.
Ray gives out GPUs that are not there; ranks talk through gloo; the messages are sampled by a server
of the real kind, an actor beside the trainer that is sent the weights after every step.
"""

import contextlib
import os
from types import SimpleNamespace

import ray
import torch
from cpu_server import Server
from ray._private import utils
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

NAME = "hf_cpu"
DUMP = "TURNCREDIT_TEST_DUMP"
"""Environment variable: the folder for what each step trained on."""


def nothing(*_, **__):
    return None


def number(*_, **__):
    return 0


DEVICE = SimpleNamespace(
    is_available=lambda: False,
    current_device=lambda: "cpu",
    device_count=number,
    get_device_name=lambda *_: "CPU",
    mem_get_info=lambda *_: (0, 1),
    **dict.fromkeys(
        ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"), nothing
    ),
    **dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"),
        number,
    ),
)  # fmt: skip


@PlatformRegistry.register("cpu")
class Cpu(PlatformBase):
    """verl's platform interface over torch's CPU."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = DEVICE
    is_available = is_ipc_supported = staticmethod(lambda *_, **__: False)
    current_device = staticmethod(lambda: "cpu")
    device_count = staticmethod(number)
    set_device = synchronize = set_allocator_settings = empty_cache = staticmethod(nothing)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_device_capability = staticmethod(lambda *_: (None, None))
    communication_backend_name = staticmethod(lambda: "gloo")
    visible_devices_envvar = staticmethod(lambda: "CUDA_VISIBLE_DEVICES")
    nvtx_range = staticmethod(lambda _: contextlib.nullcontext())
    profiler_start = profiler_stop = cudart = staticmethod(nothing)
    ray_resource_name = staticmethod(lambda: "GPU")
    ray_noset_envvars = staticmethod(lambda: ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"])


_init_process_group = torch.distributed.init_process_group


def init_process_group(backend=None, *args, **kwargs):
    """gloo, where verl asks for one backend per device and both are the CPU."""
    return _init_process_group("gloo", *args, **kwargs)


torch.distributed.init_process_group = init_process_group
torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor


_ray_init = ray.init
TRIES = 4
"""Of starting Ray, whose node is given 30 seconds to register, which a busy machine may miss."""


def start_ray(**kwargs):
    """Ray without its dashboard, which would take most of two cores while a run starts.

    Ray's node gives its agent 15 seconds to start: as that of a minimal installation it can.
    """
    utils.get_dashboard_dependency_error = lambda: "not wanted"
    for left in reversed(range(TRIES)):
        try:
            return _ray_init(**kwargs, include_dashboard=False)
        except Exception as error:  # of no class of its own
            if "timed out during startup" not in str(error) or not left:
                raise
            ray.shutdown()
    return None


ray.init = start_ray


class Rollout(base.BaseRollout):
    """The trainer's side: hands the weights of its rank to its server."""

    async def resume(self, tags):
        """Nothing was put to sleep."""

    async def release(self):
        """Nothing is put to sleep."""

    async def update_weights(self, weights, global_steps=None, **_):
        """Send the whole tensors; every rank gathers them."""
        whole = {name: tensor.detach().float().cpu().clone() for name, tensor in weights}
        server = ray.get_actor(f"{NAME}_{os.environ['RANK']}")
        await server.load.remote(whole, global_steps)


class Replica(RolloutReplica):
    """Starts one server for each rank."""

    async def launch_servers(self):
        """The only server of this replica."""
        path = omega_conf_to_dataclass(self.model_config).local_path
        server = ray.remote(Server).options(name=f"{NAME}_{self.replica_rank}", num_cpus=0)
        self.servers = [server.remote(path, self.replica_rank)]
        self._server_handle = self.servers[0]
        self._server_address = f"{NAME}_{self.replica_rank}"


base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.Rollout"
RolloutReplicaRegistry.register(NAME, lambda: Replica)


def keep_what_is_trained_on():
    """Let the trainer write each step's rows to the folder in `DUMP` before the actor sees them."""
    from verl.trainer.ppo.v1 import PPOTrainerSync, trainer_base

    update = PPOTrainerSync._update_actor

    def dumping(self, batch, metrics):
        data = trainer_base.tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        rows = {
            name: list(data[name].unbind())
            for name in (
                "prompts", "responses", "response_mask", "rm_scores", "old_log_probs", "entropy",
                "rollout_log_probs", "ref_log_prob", "advantages",
            )
        }  # fmt: skip
        rows |= {name: data.pop(name).tolist() for name in ("uid", "extra_fields")}
        rows["padding"] = [bool(tag.get("is_padding")) for tag in batch.tags]
        torch.save(rows, f"{os.environ[DUMP]}/step_{self.global_steps}.pt")
        return update(self, batch, metrics)

    PPOTrainerSync._update_actor = dumping


def do_without_trl():
    """TRL is installed to compare with; verl, where it finds it, wants a class of an older one."""
    from verl.models.transformers import monkey_patch

    monkey_patch.is_trl_available = lambda: False


do_without_trl()  # only now: what it imports asks for the platform
if DUMP in os.environ:
    keep_what_is_trained_on()
