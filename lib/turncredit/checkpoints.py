"""Tensors on disk with a checksum, and checkpoints made of them; safetensors, no pickle."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from turncredit.storage import atomic_path


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write atomically with a checksum; equal tensors give equal bytes."""
    metadata = {"sha256": _digest(tensors)}  # one key: the order of several would not be fixed
    try:
        with atomic_path(path) as temporary:
            save_file(dict(tensors), temporary, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Inverse of `write_tensors`; ValueError saying what is wrong with a damaged file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(str(error)) from error
    if metadata.get("sha256") != _digest(tensors):
        raise ValueError("its checksum does not match its contents")
    return tensors


def save_checkpoint(
    path: Path, policy: nn.Module, optimiser: torch.optim.Optimizer, step: int
) -> None:
    """Write atomically: the old checkpoint stays until the new one is whole."""
    tensors = {"step": torch.tensor(step)}
    tensors |= {f"policy.{name}": value for name, value in policy.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": torch.as_tensor(v) for name, v in state.items()}
    write_tensors(path, tensors)


def load_checkpoint(path: Path, policy: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Restore policy and optimiser in place, or neither; returns the number of steps done.

    Raises ValueError naming the file if it is truncated, altered or belongs to another policy.
    """
    try:
        tensors = read_tensors(path)
        weights = _under("policy.", tensors)
        require_shapes(policy, weights)
        state = _optimiser_state(optimiser, _under("optimiser.", tensors))
        step = int(tensors["step"])
    except (LookupError, ValueError) as error:
        advice = "delete it to start this run anew"
        raise ValueError(f"{path}: not a usable checkpoint ({error}); {advice}") from error
    policy.load_state_dict(weights)
    optimiser.load_state_dict(optimiser.state_dict() | {"state": state})
    return step


def require_shapes(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first weight that does not fit `module`."""
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(f"{name} has shape {found.get(name)}, not {wanted.get(name)}")


def _optimiser_state(
    optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> dict[int, dict[str, Tensor]]:
    """The optimiser's state by parameter; moments must have their parameter's shape."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        shape = tuple(parameters[int(index)].shape)
        if value.dim() and tuple(value.shape) != shape:
            raise ValueError(f"optimiser.{name} has shape {tuple(value.shape)}, not {shape}")
        state.setdefault(int(index), {})[key] = value
    return state


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
