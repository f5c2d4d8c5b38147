"""Tensors on disk with a checksum, and checkpoints made of them; safetensors, no pickle."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from turncredit.storage import atomic_path


class OtherRun(ValueError):
    """A checkpoint that is whole, and of another run than the one that asks for it."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write atomically with a checksum; equal tensors give equal bytes."""
    metadata = {"sha256": digest(tensors)}  # one key: the order of several would not be fixed
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
    if metadata.get("sha256") != digest(tensors):
        raise ValueError("its checksum does not match its contents")
    return tensors


def previous_checkpoint(path: Path) -> Path:
    """Where `save_checkpoint` keeps the checkpoint that it replaces.

    >>> previous_checkpoint(Path("run/checkpoint.safetensors")).name
    'checkpoint.previous.safetensors'
    """
    return path.with_suffix(f".previous{path.suffix}")


def save_checkpoint(
    path: Path,
    policy: nn.Module,
    optimiser: torch.optim.Optimizer,
    step: int,
    *,
    extra: Mapping[str, Tensor] | None = None,
    identity: Mapping[str, str] | None = None,
) -> None:
    """Write atomically; the checkpoint that lay there stays beside it as the previous one.

    identity: what makes the run this one, by name; None leaves open whose checkpoint it is.
    extra: further tensors by name that the training goes on from, such as a running mean or a
    reference policy.  At every moment a whole checkpoint lies at `path`, once there was one; killed
    between two renamings, both names are one file until the next saving.
    """
    tensors = {"step": torch.tensor(step)}
    tensors |= {f"policy.{name}": value for name, value in policy.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": torch.as_tensor(v) for name, v in state.items()}
    tensors |= {f"extra.{name}": value.contiguous() for name, value in (extra or {}).items()}
    if identity is not None:  # as a tensor: the order of several metadata keys would not be fixed
        text = json.dumps(dict(identity), sort_keys=True)
        tensors["identity"] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    fresh = path.with_name(f".{path.name}.next{path.suffix}")
    try:
        write_tensors(fresh, tensors)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error}") from error
    if path.exists():
        _keep(path)
    fresh.replace(path)


def _keep(path: Path) -> None:
    """Give the file at `path` its second name; `path` itself stays."""
    with atomic_path(previous_checkpoint(path)) as temporary:
        temporary.unlink()
        try:
            os.link(path, temporary)
        except OSError:  # some network drives know no hard links
            shutil.copyfile(path, temporary)


def load_checkpoint(
    path: Path,
    policy: nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    extra: dict[str, Tensor] | None = None,
    identity: Mapping[str, str] | None = None,
) -> int:
    """Restore policy, optimiser and the `extra` tensors, or nothing; returns the steps done.

    What `extra` holds is restored in place, what only the file holds is added to it.  identity: of
    the run that asks; None: whose checkpoint it is does not matter.  Raises ValueError naming the
    file if it is truncated, altered, belongs to another policy, lacks a tensor of `extra` or has it
    of another shape or type, or has any while `extra` is None; and OtherRun, a ValueError too, if
    it was saved with another identity, or with none.
    """
    try:
        tensors = read_tensors(path)
        _require_identity(path, identity, tensors)
        weights, found = _under("policy.", tensors), _under("extra.", tensors)
        require_shapes(policy, weights)
        state = _optimiser_state(optimiser, _under("optimiser.", tensors))
        _require_extra(extra, found)
        step = int(tensors["step"])
    except OtherRun:
        raise
    except (LookupError, ValueError) as error:
        advice = "delete it to start this run anew"
        raise ValueError(f"{path}: not a usable checkpoint ({error}); {advice}") from error
    policy.load_state_dict(weights)
    optimiser.load_state_dict(optimiser.state_dict() | {"state": state})
    if extra is not None:
        for name, value in found.items():
            extra[name] = extra[name].detach().copy_(value) if name in extra else value
    return step


def load_newest(
    path: Path,
    policy: nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    extra: dict[str, Tensor] | None = None,
    identity: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """`load_checkpoint` of the file at `path`, or of the previous one if that is damaged.

    Returns the number of steps done and what was wrong with the checkpoint passed over, if one was.
    Raises ValueError naming every file that lies there if none can be used, and OtherRun without a
    look at the previous one: another run's checkpoint is no damage, and must not be overwritten.
    """
    complaints: list[str] = []
    for candidate in (path, previous_checkpoint(path)):
        if candidate.exists():
            try:
                step = load_checkpoint(candidate, policy, optimiser, extra=extra, identity=identity)
                return step, complaints
            except OtherRun:
                raise
            except ValueError as error:
                complaints.append(str(error))
    raise ValueError("; ".join(complaints) or f"{path}: no such checkpoint")


def require_shapes(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first weight that does not fit `module`."""
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(f"{name} has shape {found.get(name)}, not {wanted.get(name)}")


def _require_identity(
    path: Path, wanted: Mapping[str, str] | None, tensors: Mapping[str, Tensor]
) -> None:
    """Raise OtherRun, naming the first difference, unless the tensors are of the wanted run."""
    if wanted is None:
        return
    found = {}
    if "identity" in tensors:
        found = json.loads(bytes(tensors["identity"].tolist()))
    for name, value in wanted.items():
        if found.get(name) != value:
            difference = f"its {name} is {found.get(name)!r}, not {value!r}"
            advice = "move it away to start this run anew"
            raise OtherRun(f"{path}: the checkpoint of another run ({difference}); {advice}")


def _require_extra(wanted: Mapping[str, Tensor] | None, found: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first extra tensor that cannot be restored."""
    if wanted is None:
        for name in found:
            raise ValueError(f"extra.{name} has nowhere to go")
        return
    for name, value in wanted.items():
        if name not in found:
            raise ValueError(f"extra.{name} is missing")
        kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in (found[name], value)]
        if kinds[0] != kinds[1]:
            raise ValueError(f"extra.{name} is {kinds[0]}, not {kinds[1]}")


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


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Hex SHA-256 of names and values, in the order of the names."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
