"""A table of functions by name that says what exists when a name or an option is wrong."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from turncredit.option_ranges import check_range, plain

Function = Callable[..., Any]


class Methods(dict[str, Function]):
    """Functions by name.  `@table.add` above a function enters it under its own name.

    An unknown name, or an option that is not one of the function's keyword-only parameters,
    is a ValueError that names it and lists what exists.  A scalar of numpy's reaches the function
    as Python's number.

    >>> bases = Methods("base")
    >>> @bases.add
    ... def mean_only(batch, *, scale=1.0):
    ...     return batch * scale
    >>> bases["mean_only"](2, scale=3)
    6
    >>> bases["mean_only"](2, scael=3)
    Traceback (most recent call last):
    ValueError: base 'mean_only' has no option 'scael'; it has: scale
    >>> @bases.add(replace=True)
    ... def mean_only(batch, *, scale=1.0, shift=0.0):
    ...     return batch * scale + shift
    >>> bases["mean_only"](2, shift=1)
    3.0
    >>> bases["median"]
    Traceback (most recent call last):
    ValueError: unknown base 'median'; there are: mean_only
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __missing__(self, name: str) -> Function:
        raise ValueError(f"unknown {self.kind} {name!r}; there are: {', '.join(sorted(self))}")

    def add(self, function: Function | None = None, *, replace: bool = False) -> Function:
        """Enter `function` with its options checked; returns it unchanged, so doctests find it.

        Raises ValueError for a name that is taken, unless `replace`: `@table.add(replace=True)`
        lets a notebook run the cell of a definition again, or put its own in the place of another.
        """
        check_range(f"{self.kind} table", "flag", replace=replace)
        if function is None:
            return functools.partial(self.add, replace=replace)
        name = function.__name__
        if name in self and not replace:
            raise ValueError(
                f"{self.kind} {name!r} is defined twice; pass replace=True to the decorator to put"
                " this one in the place of the other, as when a cell is run again"
            )
        self[name] = _checks_options(f"{self.kind} {name!r}", function)
        return function


def option_names(function: Function) -> tuple[str, ...]:
    """The keyword-only parameters of `function`, in order."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def options_of(other: Function) -> Callable[[Function], Function]:
    """Give a function with `**options` the keyword-only parameters of `other` in their place.

    They stand before the function's own, with the defaults of `other`: `help` and the check of
    names see them, and a default is written once.

    >>> def gate(batch, *, k=16, c=2.0):
    ...     return k * c
    >>> @options_of(gate)
    ... def mask(batch, *, after=0.0, **options):
    ...     return gate(batch, **options) + after
    >>> inspect.signature(mask)
    <Signature (batch, *, k=16, c=2.0, after=0.0)>
    """

    def extend(function: Function) -> Function:
        signature = inspect.signature(function, follow_wrapped=False)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        known = {p.name for p in own}
        theirs = inspect.signature(other).parameters.values()
        taken = [p for p in theirs if p.kind is p.KEYWORD_ONLY and p.name not in known]
        ordered = sorted([*taken, *own], key=lambda parameter: parameter.kind)
        function.__signature__ = signature.replace(parameters=ordered)
        return function

    return extend


def _checks_options(described: str, function: Function) -> Function:
    known = option_names(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        for option in options:
            if option not in known:
                listed = ", ".join(known) or "none"
                raise ValueError(f"{described} has no option {option!r}; it has: {listed}")
        return function(*arguments, **{name: plain(value) for name, value in options.items()})

    return checked
