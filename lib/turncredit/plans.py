"""What an experiment runs: plans, each every arm on every task with every seed."""

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit import params, paths
from turncredit.training import Method


@dataclass(frozen=True)
class Plan:
    """Every arm on every task, as it is or in every variant, with every seed."""

    tasks: tuple[str, ...]
    variants: dict[str, dict[str, Any]]
    """Changes of a task by name, each made to every task; {}: the tasks as they are."""
    arms: dict[str, Method]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("tasks", "arms", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        for name in ("tasks", "seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} = {list(values)} repeats one")
        _require_seeds("seeds", self.seeds)
        for name in ("arms", "tasks", "variants"):
            require_folder_names(name, getattr(self, name))
        for variant, changes in self.variants.items():
            for section in sorted({"demonstrations", "policy", "warm_start"} & changes.keys()):
                raise ValueError(
                    f"variants.{variant}: {section} belongs to the warm start, which all share"
                )
        for arm, method in self.arms.items():
            try:
                method.require_source()
                method.rehearse()
            except (TypeError, ValueError) as error:
                raise ValueError(f"arms.{arm}: {error}") from error


@dataclass(frozen=True)
class Experiment:
    """The parameters of an experiment notebook."""

    tier: str
    notebook: str
    """Name of the notebook, which is also its folder under results/<tier>."""
    tasks: tuple[str, ...]
    variants: dict[str, dict[str, Any]]
    arms: dict[str, Method]
    seeds: tuple[int, ...]
    further: tuple[Plan, ...]
    """Beside the plan of the four fields above, such as controls on fewer tasks and seeds."""
    warm_start_seeds: tuple[int, ...]
    """Seed s starts from warm start s modulo their number."""

    def __post_init__(self) -> None:
        if not self.warm_start_seeds:
            raise ValueError("warm_start_seeds is empty")
        _require_seeds("warm_start_seeds", self.warm_start_seeds)
        require_folder_names("notebook", [self.notebook])
        for name in ("arms", "variants"):
            found: dict[str, Any] = {}
            for plan in self.plans:
                for key, value in getattr(plan, name).items():
                    if found.setdefault(key, value) != value:
                        raise ValueError(f"{name}: {key!r} is not the same in all plans")

    @functools.cached_property
    def plans(self) -> tuple[Plan, ...]:
        """All of them, in the order in which they are run."""
        return (Plan(self.tasks, self.variants, self.arms, self.seeds), *self.further)

    @property
    def folder(self) -> Path:
        """Where the runs lie."""
        return paths.results(self.tier) / self.notebook

    def method(self, arm: str) -> Method:
        """The method of an arm of any plan."""
        return next(plan.arms[arm] for plan in self.plans if arm in plan.arms)

    def changes(self, variant: str | None) -> dict[str, Any]:
        """What a variant of any plan changes of a task; nothing for None."""
        if variant is None:
            return {}
        return next(plan.variants[variant] for plan in self.plans if variant in plan.variants)


_SEEDS = 2**31


def _require_seeds(name: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        if not 0 <= seed < _SEEDS:
            raise ValueError(f"{name}: {seed} must be at least 0 and below {_SEEDS}")


def grid_variants(axes: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Variants for every combination of values: `axes` is section.key to the values it takes.

    >>> list(grid_variants({"world.prior": [0.5, 0.57], "judge.knowledge": [0]}))
    ['prior_0p5-knowledge_0', 'prior_0p57-knowledge_0']
    >>> grid_variants({"training.learning_rate": [0.0005]})
    {'learning_rate_0p0005': {'training': {'learning_rate': 0.0005}}}
    """
    variants: dict[str, dict[str, Any]] = {}
    for cell in grid_cells(axes):
        changes: dict[str, Any] = {}
        for axis, value in cell.items():
            section, _, key = axis.partition(".")
            changes = params.changed(changes, {section: {key: value}})
        variants[cell_name(cell)] = changes
    return variants


def grid_cells(axes: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination of values, by section.key."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def cell_name(cell: Mapping[str, float]) -> str:
    """The variant of a combination, a name that folders can have everywhere."""
    parts = [f"{axis.rpartition('.')[2]}_{value}" for axis, value in cell.items()]
    return "-".join(parts).replace(".", "p")


def with_methods(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`parameters` in which lists of arms, in `further` too, are methods of params/methods.yaml."""
    given = dict(parameters)
    if isinstance(given.get("arms"), list):
        given["arms"] = named_methods(given["arms"])
    if isinstance(given.get("further"), list):
        given["further"] = [
            with_methods(plan) if isinstance(plan, dict) else plan for plan in given["further"]
        ]
    return given


def named_methods(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The entries of params/methods.yaml with these names, in this order, upon what they extend.

    Raises ValueError naming the file and a name that it does not know, or that comes twice.
    """
    path = methods_path()
    known = params.read_yaml(path)
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"{path}: no method {name!r}; there are: {', '.join(known)}")
        if list(names).count(name) > 1:
            raise ValueError(f"arms = {list(names)} repeats {name!r}")
    return {name: _whole(name, known, str(path)) for name in names}


def methods_path() -> Path:
    """Where the methods are written down, for all tiers."""
    return paths.repository() / "params" / "methods.yaml"


def _whole(
    name: str, known: Mapping[str, Any], source: str, extended_by: tuple[str, ...] = ()
) -> dict[str, Any]:
    """An entry upon those it extends."""
    if not isinstance(known[name], dict):
        raise ValueError(f"{source}: {name} = {known[name]!r} is not a mapping")
    values = dict(known[name])
    base = values.pop("extends", None)
    if base is None:
        return values
    if base not in known or base in (*extended_by, name):
        raise ValueError(f"{source}: {name}.extends = {base!r} is not the name of another method")
    return params.changed(_whole(base, known, source, (*extended_by, name)), values)


def require_folder_names(what: str, names: Iterable[str]) -> None:
    """Raise ValueError for a name that could leave its folder, or not be one everywhere."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"{what}: {name!r} names a folder; use letters, digits, _ and -")
