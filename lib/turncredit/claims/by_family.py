"""What AEM's source prints for each family of ALFWorld's tasks, to stand beside our own numbers."""

from dataclasses import dataclass
from pathlib import Path

from turncredit import params

BY_FAMILY = Path(__file__).with_name("by_family.yaml")


@dataclass(frozen=True)
class PublishedFamilies:
    """One row of the source's table, in percent."""

    model: str
    arm: str
    """As in params/methods.yaml."""
    families: dict[str, float]
    all: float
    deviation: float
    """Printed beside `all`: over three seeds."""

    def __post_init__(self) -> None:
        for name, value in (self.families | {"all": self.all}).items():
            if not 0 <= value <= 100:
                raise ValueError(f"{self.model}, {self.arm}: {name} = {value} is no percentage")


@dataclass(frozen=True)
class _Table:
    rows: tuple[PublishedFamilies, ...]


def published_families(path: Path = BY_FAMILY) -> tuple[PublishedFamilies, ...]:
    """The rows of the table; ValueError naming file, key and value where one is wrong."""
    return params.load(_Table, path).rows
