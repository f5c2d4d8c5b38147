"""Doctests of docstrings as code: in Markdown their prompts would be quotations."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^|\n\n)((?: *>>> .*(?:\n(?! *\n).*)*(?:\n\n(?= *>>>))?)+)")


def fenced(text: str) -> str:
    """A docstring whose doctests, up to the blank line after each, are fenced."""
    return _EXAMPLE.sub(lambda found: f"\n\n```pycon\n{found[1].rstrip()}\n```", text)


class Doctests(griffe.Extension):
    """Fences them in everything that mkdocstrings reads."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Called for modules, classes, functions and attributes."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
