"""Parameter files: YAML to frozen dataclasses, complete and strictly typed.

No default lives in two places: the file is the value, the dataclass is the type.  A missing,
unknown, repeated or wrong-typed key is a ValueError that names the file, the key and the value.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key given twice, and reads no number or truth value out of what looks otherwise.

    YAML 1.1 would make 8 of 010, 750 of 12:30 and False of no; here they stay text, which a typed
    key then refuses.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.rsplit(":", 1)[1] in ("null", "merge")
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (list, dict)):
                raise ValueError(f"line {key_node.start_mark.line + 1}: key {key!r} is not a text")
            if key in seen:
                raise ValueError(f"line {key_node.start_mark.line + 1}: key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
):
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), _first
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ValueError naming the file if it is none."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such params file") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected keys and values, found {type(values).__name__}")
    return values


def load(cls: type[T], path: Path) -> T:
    """Read `path` into the dataclass `cls`."""
    return build(cls, read_yaml(path), str(path))


def build(cls: type[T], values: Mapping[str, Any], source: str) -> T:
    """Fill the dataclass `cls` from `values`, which must name exactly its fields.

    `source` starts every error message: the file, or what else the values came from.
    """
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            raise ValueError(f"{source}: unknown key {key!r}; known: {', '.join(names)}")
    for name in names:
        if name not in values:
            raise ValueError(f"{source}: key {name!r} is missing")
    typed = {name: convert(values[name], hints[name], f"{source}: {name}") for name in names}
    try:
        return cls(**typed)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the annotated type, or a ValueError that starts with `where`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return build(hint, _expect(value, dict, where, "a mapping"), where)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{where} = {value!r} is not one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        items = _expect(value, list, where, "a list")
        return tuple(convert(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        items = _expect(value, dict, where, "a mapping")
        for key in items:
            _expect(key, str, f"{where}: key", "a text")
        return {
            str(key): convert(item, arguments[1], f"{where}.{key}") for key, item in items.items()
        }
    if hint is float and type(value) is int:
        return float(value)
    if hint is float and type(value) is float and not math.isfinite(value):
        raise ValueError(f"{where} = {value!r} is not a finite number")
    return _expect(value, hint, where, f"{hint.__name__}")


def _convert_union(value: Any, options: tuple, where: str) -> Any:
    """A union of dataclasses is told apart by `kind`; `X | None` accepts null."""
    if value is None and type(None) in options:
        return None
    kinds = {option.KIND: option for option in options if hasattr(option, "KIND")}
    if kinds:
        mapping = dict(_expect(value, dict, where, "a mapping"))
        kind = mapping.pop("kind", None)
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"{where}.kind = {kind!r} is not one of {', '.join(map(repr, kinds))}")
        return build(kinds[kind], mapping, where)
    (only,) = [option for option in options if option is not type(None)]
    return convert(value, only, where)


def _expect(value: Any, kind: type, where: str, name: str) -> Any:
    if type(value) is not kind:
        hint = " (write 1.0e-6, not 1e-6)" if kind is float and isinstance(value, str) else ""
        raise ValueError(f"{where} = {value!r} is {type(value).__name__}, expected {name}{hint}")
    return value


def require_positive(settings: Any, *names: str) -> None:
    """Raise ValueError naming the first of the fields that is not above 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name} = {getattr(settings, name)!r} must be above 0")


def require_shares(settings: Any, *names: str) -> None:
    """Raise ValueError naming the first of the fields that is not between 0 and 1."""
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:
            raise ValueError(f"{name} = {getattr(settings, name)!r} must be between 0 and 1")
