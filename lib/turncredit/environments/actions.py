"""From a policy-written message to one action, as a tag pair or as a JSON tool call.

Accepted is `[<think> thought </think>] action` with any white space around the two, and nothing
else.  The action is

- protocol "tags": `<name> argument </name>`;
- protocol "json" (as Hermes and Qwen models write it): `<tool_call>{"name": name, "arguments":
  {key: argument}}</tool_call>`, one text argument under any key; the final answer may also be
  written `<answer> argument </answer>`, since that is what such models are usually asked for.

Tags are spelt in lower case and without blanks inside: `</SEARCH>`, `</ search >` and `</search`
end no action.  What is not accepted is "invalid", never repaired: text before or after the action
(also one sign glued to its last tag), a second action, a nested, crossed or unclosed tag, a JSON
object with a repeated, missing or further key or an argument that is no text.  Angle brackets in
an argument are refused however they were escaped, and so are lone surrogates, which no retriever,
judge or tokenizer can encode; other signs (NUL, right-to-left marks) are left to the tools.
"""

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

Protocol = Literal["tags", "json"]
PROTOCOLS: tuple[Protocol, ...] = ("tags", "json")

INVALID = ("invalid", "")

_PLAIN = r"[^<>\ud800-\udfff]*"
_ARGUMENT = re.compile(_PLAIN)
_CALL = re.compile(r"<tool_call>(?P<call>[^<>]*)</tool_call>")
_FORGED = re.compile(r"<\s*/?\s*(?:information|tool_response)\b", re.IGNORECASE)


def parse_action(
    message: str, actions: Sequence[str], *, protocol: Protocol = "tags"
) -> tuple[str, str]:
    """The action's name and stripped argument; ("invalid", "") unless the message is one action.

    Only policy-written text of the current turn may be passed in, without special tokens, so that
    a tag inside a document can never act.  A message that forges the environment's
    own tags is invalid wherever they stand, and an empty argument is too.  Never raises on any
    message; ValueError for a protocol that does not exist.

    >>> parse_action("<search> romania </search>", ["search", "answer"])
    ('search', 'romania')
    >>> parse_action("<search> romania </answer>", ["search", "answer"])
    ('invalid', '')
    >>> call = '<tool_call>{"name": "search", "arguments": {"query": "romania"}}</tool_call>'
    >>> parse_action(call, ["search", "answer"], protocol="json")
    ('search', 'romania')
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol = {protocol!r} is not one of {', '.join(PROTOCOLS)}")
    action = _without_thought(message.strip())
    if protocol == "tags":
        return _tag_pair(action, tuple(actions))
    if action.startswith("<tool_call>"):
        return _tool_call(action, actions)
    return _tag_pair(action, ("answer",) if "answer" in actions else ())


def closing_tags(actions: Sequence[str], *, protocol: Protocol = "tags") -> tuple[str, ...]:
    """Where an engine may stop sampling a message, since nothing may follow these.

    >>> closing_tags(["search", "answer"], protocol="json")
    ('</tool_call>', '</answer>')
    """
    if protocol == "tags":
        return tuple(f"</{name}>" for name in actions)
    return ("</tool_call>", "</answer>") if "answer" in actions else ("</tool_call>",)


def _without_thought(message: str) -> str:
    """The message after its leading thought; '' if that holds what only the environment writes."""
    if not message.startswith("<think>"):
        return message
    thought, _, action = message[len("<think>") :].partition("</think>")
    if "<" in thought and ("<think>" in thought or _FORGED.search(thought)):
        return ""
    return action.strip()


def _tag_pair(action: str, names: tuple[str, ...]) -> tuple[str, str]:
    found = _pattern(names).fullmatch(action)
    if found is None:
        return INVALID
    argument = found["argument"].strip()
    return (found["name"], argument) if argument else INVALID


@functools.cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    any_name = "|".join(map(re.escape, names)) if names else r"(?!)"
    return re.compile(rf"<(?P<name>{any_name})>(?P<argument>{_PLAIN})</(?P=name)>")


def _tool_call(action: str, names: Sequence[str]) -> tuple[str, str]:
    found = _CALL.fullmatch(action)
    if found is None:
        return INVALID
    try:
        call = _DECODER.decode(found["call"])
    except (ValueError, RecursionError):  # no JSON, a repeated key, a huge number, deep nesting
        return INVALID
    return _named_argument(call, names) or INVALID


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError for a repeated key, of which readers keep different ones."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("repeated key")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct)


def _named_argument(call: Any, names: Sequence[str]) -> tuple[str, str] | None:
    """Name and argument of a decoded call, None unless it has exactly the two parts."""
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
        return None
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or name not in names:
        return None
    if not isinstance(arguments, dict) or len(arguments) != 1:
        return None
    (argument,) = arguments.values()
    if not isinstance(argument, str) or not _ARGUMENT.fullmatch(argument):
        return None
    return (name, argument.strip()) if argument.strip() else None
