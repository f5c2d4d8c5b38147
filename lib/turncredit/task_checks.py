"""Which worlds, environments and other sections of a task go together."""

from typing import Any

_PAIRS = {
    "tables": ("table_query", "tables are asked by table_query, and nothing else is"),
    "household": ("household", "chores are done in household, and nothing else is"),
}
"""The environment of worlds that have one of their own, and the rule in words."""


def require_fitting(settings: Any) -> None:
    """ValueError naming the first of a task's settings that does not go with another."""
    world, environment = settings.world.KIND, settings.environment.KIND
    for kind, (own, rule) in _PAIRS.items():
        if (world == kind) != (environment == own):
            raise ValueError(
                f"world.kind = {world!r} does not go with environment.kind = {environment!r}: "
                f"{rule}"
            )
    if world == "tables" and settings.withheld_share:
        raise ValueError(
            f"withheld_share = {settings.withheld_share} must be 0 for tables; "
            "world.unsolvable_share leaves cells empty"
        )
    if world == "household":
        _require_household(settings)


def _require_household(settings: Any) -> None:
    if settings.wording == "tiny" and not settings.environment.terse:
        raise ValueError("environment.terse must be true for wording = 'tiny', whose words are few")
    for where, value in (
        ("withheld_share", settings.withheld_share),
        ("disturbances.outcome_flip", settings.disturbances.outcome_flip),
        ("warm_start.swap_names", settings.warm_start.swap_names),
    ):
        if value:
            raise ValueError(f"{where} = {value} must be 0 for chores")
