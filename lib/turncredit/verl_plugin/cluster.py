"""A cluster run as the sum of five small files: engine, model, agent, machine, method.

Each may hold `verl`, overrides of verl's configuration; a later one wins.  The model's file has its
`shape`, the machine's its `machine`, by which memory is sized.
"""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from turncredit import params, paths
from turncredit.verl_plugin.sizing import Machine, Shape

KINDS = ("models", "agents", "machines", "methods")
"""Folders below params/cluster of which a run takes one file each."""

EXTENSIONS = (
    "algorithm.turncredit",
    "actor_rollout_ref.rollout.custom",
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.actor.policy_loss.objective_options",
    "actor_rollout_ref.actor.policy_loss.weight",
    "actor_rollout_ref.actor.policy_loss.weight_options",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "critic.ppo_infer_max_token_len_per_gpu",
    "ray_kwargs.ray_init.num_gpus",
)
"""Nodes that verl's configuration does not have or leaves free; set whole."""


@dataclass(frozen=True)
class ClusterRun:
    """One file of each kind, read and added up."""

    names: tuple[str, ...]
    """In the order of `KINDS`."""
    shape: Shape
    machine: Machine
    verl: dict[str, Any]
    """Overrides of verl's configuration."""
    files: tuple[Path, ...] = ()
    """Where they were read, in order."""

    @property
    def name(self) -> str:
        """The run's parts, as `check` prints them."""
        return " ".join(self.names)

    @property
    def seed(self) -> int:
        """That of the data's order, by which runs are told apart."""
        return self.verl["data"]["seed"]

    @property
    def folder(self) -> str:
        """A name that no other run has: two would go on from each other's checkpoints."""
        return "-".join([*self.names, f"seed_{self.seed}"])

    def said_by(self, key: str) -> str:
        """A dotted key of `verl` behind the file that says it, for errors."""
        for file in reversed(self.files):
            if holds(params.read_yaml(file).get("verl") or {}, key.split(".")):
                return f"{file}: {key}"
        return key


def folder() -> Path:
    """params/cluster."""
    return paths.params("cluster")


def choices(root: Path | None = None) -> dict[str, list[str]]:
    """The names of the files of each kind below `root` (default: params/cluster)."""
    root = root or folder()
    return {kind: sorted(p.stem for p in (root / kind).glob("*.yaml")) for kind in KINDS}


def all_runs(root: Path | None = None) -> Iterator[ClusterRun]:
    """Every combination of a model, an agent, a machine and a method."""
    for names in product(*choices(root).values()):
        yield read_run(*names, root=root)


def read_run(*names: str, root: Path | None = None) -> ClusterRun:
    """The run of the files with these names below `root`, in the order of `KINDS`.

    Raises ValueError naming the file or what there is instead of it.
    """
    parts: dict[str, Any] = {}
    root, there = root or folder(), choices(root)
    files = [root / "engine" / "verl.yaml"]
    for kind, name in zip(KINDS, names, strict=True):
        if name not in there[kind]:
            known = ", ".join(there[kind]) or f"the files of {root / kind}, which has none"
            raise ValueError(f"{kind}: {name!r} is not one of {known}")
        files.append(root / kind / f"{name}.yaml")
    for file in files:
        values = params.read_yaml(file)
        unknown = sorted(set(values) - {"shape", "machine", "verl"})
        if unknown:
            raise ValueError(f"{file}: unknown key {unknown[0]!r}; known: shape, machine, verl")
        parts = params.changed(parts, values)
    shape = params.build(Shape, parts["shape"], str(root / "models" / f"{names[0]}.yaml"))
    machine = params.build(Machine, parts["machine"], str(root / "machines" / f"{names[2]}.yaml"))
    return ClusterRun(names, shape, machine, parts["verl"], tuple(files))


def holds(values: Any, nodes: Sequence[str]) -> bool:
    """Whether nested mappings have something at a path.

    >>> holds({"trainer": {"nnodes": 2}}, ["trainer", "nnodes"]), holds({"trainer": 2}, ["nodes"])
    (True, False)
    """
    for node in nodes:
        if not isinstance(values, Mapping) or node not in values:
            return False
        values = values[node]
    return True


def with_head(run: ClusterRun, address: str) -> ClusterRun:
    """The run whose retrieval server and judge are on the node with this address."""
    custom = {"head": address}
    return replace(
        run, verl=params.changed(run.verl, {"actor_rollout_ref": {"rollout": {"custom": custom}}})
    )


def seeded(run: ClusterRun, seed: int) -> ClusterRun:
    """The run with `seed` for the order of the data, the episodes and the weights that draw lots.

    vLLM's own stream is seeded as well, but what it samples still depends on who asks first.
    """
    custom = {"turncredit": {"seed": seed}}
    values = {
        "data": {"seed": seed},
        "algorithm": {"turncredit": {"seed": seed}},
        "actor_rollout_ref": {"rollout": {"seed": seed, "custom": custom}},
    }
    return replace(run, verl=params.changed(run.verl, values))


def compose(run: ClusterRun) -> Any:
    """verl's configuration `ppo_trainer` with the run's overrides, as a DictConfig.

    Raises ValueError naming the key that verl does not have, and what `verls_defaults` raises.
    """
    config = verls_defaults()
    from omegaconf import OmegaConf

    for key, value in leaves(run.verl):
        try:
            OmegaConf.update(config, key, value, merge=False, force_add=key in EXTENSIONS)
        except Exception as error:  # omegaconf has no common class for a key that is not there
            raise ValueError(f"{run.name}: verl has no key {key!r} ({error})") from error
    config.trainer.experiment_name = run.folder
    return config


def verls_defaults() -> Any:
    """verl's configuration `ppo_trainer` as it comes.

    Raises ImportError with the remedy without verl, of which nothing is imported here.
    """
    from turncredit.verl_plugin.versions import require_verl

    require_verl()
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    home = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
    with initialize_config_dir(str(home / "trainer" / "config"), version_base=None):
        return hydra_compose("ppo_trainer")


def plain(config: Any) -> dict[str, Any]:
    """A composed configuration as Python's own mappings, references in it resolved."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is no mapping; the `EXTENSIONS` stay whole.

    >>> list(leaves({"trainer": {"nnodes": 2}, "algorithm": {"turncredit": {"base": "grpo"}}}))
    [('trainer.nnodes', 2), ('algorithm.turncredit', {'base': 'grpo'})]
    """
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and path not in EXTENSIONS:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value
