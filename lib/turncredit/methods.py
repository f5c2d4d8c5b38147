"""A table of functions by name that says what exists when a name or an option is wrong."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


class Methods(dict[str, Function]):
    """Functions by name.  `@table.add` above a function enters it under its own name.

    An unknown name, or an option that is not one of the function's keyword-only parameters,
    is a ValueError that names it and lists what exists.

    >>> bases = Methods("base")
    >>> @bases.add
    ... def mean_only(batch, *, scale=1.0):
    ...     return batch * scale
    >>> bases["mean_only"](2, scale=3)
    6
    >>> bases["mean_only"](2, scael=3)
    Traceback (most recent call last):
    ValueError: base 'mean_only' has no option 'scael'; it has: scale
    >>> bases["median"]
    Traceback (most recent call last):
    ValueError: unknown base 'median'; there are: mean_only
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __missing__(self, name: str) -> Function:
        raise ValueError(f"unknown {self.kind} {name!r}; there are: {', '.join(sorted(self))}")

    def add(self, function: Function) -> Function:
        """Enter `function` with its options checked; returns it unchanged, so doctests find it."""
        name = function.__name__
        if name in self:
            raise ValueError(f"{self.kind} {name!r} is defined twice")
        self[name] = _checks_options(f"{self.kind} {name!r}", function)
        return function


def option_names(function: Function) -> tuple[str, ...]:
    """The keyword-only parameters of `function`, in order."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def _checks_options(described: str, function: Function) -> Function:
    known = option_names(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        for option in options:
            if option not in known:
                listed = ", ".join(known) or "none"
                raise ValueError(f"{described} has no option {option!r}; it has: {listed}")
        return function(*arguments, **options)

    return checked
