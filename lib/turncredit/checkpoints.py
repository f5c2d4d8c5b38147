"""Checkpoints: policy, optimiser and step in one safetensors file with a checksum; no pickle."""

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from turncredit.storage import atomic_path


def save_checkpoint(
    path: Path, policy: nn.Module, optimiser: torch.optim.Optimizer, step: int
) -> None:
    """Write atomically: the old checkpoint stays until the new one is whole."""
    tensors = {"step": torch.tensor(step)}
    tensors |= {f"policy.{name}": value for name, value in policy.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {
            f"optimiser.{index}.{name}": torch.as_tensor(value) for name, value in state.items()
        }
    metadata = {"sha256": _digest(tensors)}  # one key: their order in the file is not fixed
    try:
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def load_checkpoint(path: Path, policy: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Restore policy and optimiser in place; returns the number of steps done.

    Raises ValueError naming the file if it is truncated, altered or belongs to another policy.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("sha256") != _digest(tensors):
            raise ValueError("its checksum does not match its contents")
        policy.load_state_dict(_under("policy.", tensors))
        _load_optimiser(optimiser, _under("optimiser.", tensors))
        return int(tensors["step"])
    except (SafetensorError, OSError, RuntimeError, LookupError, ValueError) as error:
        raise ValueError(
            f"{path}: not a usable checkpoint ({error}); delete it to start this run anew"
        ) from error


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    full = optimiser.state_dict()
    full["state"] = {}
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        parameter = parameters[int(index)]
        if value.dim() and value.shape != parameter.shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
        full["state"].setdefault(int(index), {})[key] = value
    optimiser.load_state_dict(full)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
