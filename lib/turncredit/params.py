"""Parameter files: YAML to frozen dataclasses, complete and strictly typed.

No default lives in two places: the file is the value, the dataclass is the type.  A missing,
unknown, repeated or wrong-typed key is a ValueError that names the file, the key and the value; so
is a number that no computation can hold.
"""

import copy
import dataclasses
import functools
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

    def construct_yaml_int(self, node: yaml.ScalarNode) -> float:
        """A whole number; infinite from 400 digits on, since Python converts no thousands."""
        text = self.construct_scalar(node)
        return int(text) if len(text) < 400 else math.inf


for _kind, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
):
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), _first
    )
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ValueError naming the file if it is none."""
    try:
        text = path.read_text(encoding="utf-8")
        return copy.deepcopy(_mapping(text))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such params file") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {_complaint(error, text)}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: nested too deeply, or within itself") from error
    except (AttributeError, LookupError) as error:
        raise ValueError(f"{path}: a value is not what its tag says ({error!r})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@functools.lru_cache(maxsize=64)
def _mapping(text: str) -> dict[str, Any]:
    """The mapping that a text holds; kept, since every run of an experiment asks for its task."""
    values = yaml.load(text, Loader=_StrictLoader)
    if not isinstance(values, dict):
        raise ValueError(f"expected keys and values, found {type(values).__name__}")
    for key, value in values.items():
        _require_size(value, str(key))
    return values


def _require_size(value: Any, where: str) -> None:
    """Refuse a number that is not finite or takes more than 64 bits, wherever in `value` it is."""
    if isinstance(value, dict):
        for key, item in value.items():
            _require_size(item, f"{where}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _require_size(item, f"{where}[{number}]")
    elif type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where} is a number of {value.bit_length()} bits, which is too large")
    elif type(value) is float and not math.isfinite(value):
        raise ValueError(f"{where} is a number that is too large")


def _complaint(error: yaml.YAMLError, text: str) -> str:
    """What YAML says of a text that it cannot read, on one line: line, column and what is wrong."""
    mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None:  # a character that may not stand in YAML at all
        before = text[: getattr(error, "position", 0)]
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
        what = str(error).split("\n")[0]
    else:
        line, column = mark.line, mark.column
        if what is None or what.startswith("but found another document"):
            what = f"{error.context}, {what}"
    return f"line {line + 1}, column {column + 1}: {what}"


def load(cls: type[T], path: Path) -> T:
    """Read `path` into the dataclass `cls`."""
    return build(cls, read_yaml(path), str(path))


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with those of `changes` in their place, mappings key by key.

    A mapping that gives another `kind` takes the place of the whole one.

    >>> changed({"world": {"prior": 0.5, "films": 60}, "steps": 9}, {"world": {"prior": 0.6}})
    {'world': {'prior': 0.6, 'films': 60}, 'steps': 9}
    """
    result = dict(values)
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        if both and value.get("kind", old.get("kind")) == old.get("kind"):
            value = changed(old, value)
        result[key] = value
    return result


def build(cls: type[T], values: Mapping[str, Any], source: str) -> T:
    """Fill the dataclass `cls` from `values`, which must name exactly its fields.

    Fields that its `MAY_BE_ABSENT` lists, if it has one, need not be named.
    `source` starts every error message: the file, or what else the values came from.
    """
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            raise ValueError(f"{source}: unknown key {key!r}; known: {', '.join(names)}")
    for name in names:
        if name not in values and name not in getattr(cls, "MAY_BE_ABSENT", ()):
            raise ValueError(f"{source}: key {name!r} is missing")
    given = [name for name in names if name in values]
    typed = {name: convert(values[name], hints[name], f"{source}: {name}") for name in given}
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
        try:
            return float(value)
        except OverflowError as error:
            size = f"a number of {value.bit_length()} bits"
            raise ValueError(f"{where} is {size}, which is too large for a float") from error
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
