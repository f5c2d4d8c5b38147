"""Is there the verl that this plugin was written for, with all that it and a run import?"""

from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from turncredit.verl_plugin.sizable import has_critic

VERL = "0.9.1"
"""Trainer, agent loop and registries are verl's inner parts, which every release may change."""

UNDECLARED = ("cachetools", "uvicorn", "fastapi", "TransferQueue")
"""What verl's trainer imports and its own requirements leave out."""

ENGINES = ("vllm", "sglang")
LOGGERS = ("clearml", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
"""What `rollout.name` and `trainer.logger` may say that is the name of a module, too."""


def require_verl(version: Callable[[str], str] = metadata.version) -> None:
    """Raise ImportError with the remedy unless verl 0.9.1 and its helpers are installed.

    version: name of a distribution -> its version, or `PackageNotFoundError`.
    """
    found = _version_of("verl", version)
    remedy = f'pip install "verl=={VERL}" {" ".join(UNDECLARED)}, or `make env-verl`'
    if found is None:
        raise ImportError(f"verl is not installed; {remedy}")
    if found.split("+")[0] != VERL:
        raise ImportError(f"verl {found} is installed, this plugin is for {VERL}; {remedy}")
    missing = [name for name in UNDECLARED if _version_of(name, version) is None]
    if missing:
        raise ImportError(f"verl's trainer needs {', '.join(missing)}, not installed; {remedy}")


def _version_of(name: str, version: Callable[[str], str]) -> str | None:
    try:
        return version(name)
    except metadata.PackageNotFoundError:
        return None


def require_modules(config: Mapping[str, Any], has: Callable[[str], Any] = find_spec) -> None:
    """Raise ImportError with the remedy for an engine or logger of a run that is not installed.

    verl itself would notice when all models are loaded.  config: plain mappings; has: the name of a
    module -> something true if it is there.
    """
    engine, loggers = config["actor_rollout_ref"]["rollout"]["name"], config["trainer"]["logger"]
    if engine in ENGINES and not has(engine):
        raise ImportError(
            f"rollout.name = {engine!r} is not installed; environment.yml has what a machine with "
            "GPUs needs"
        )
    if has_critic(config) and not has("flash_attn"):
        raise ImportError(
            "critic.enable = true: verl 0.9.1 loads critics with flash_attention_2 alone, and "
            "flash-attn is not installed; pip install flash-attn, or take a base without values"
        )
    for name in loggers:
        if name in LOGGERS and not has(name):
            raise ImportError(
                f"trainer.logger names {name}, which is not installed; pip install {name}, "
                "or leave it out of trainer.logger"
            )
