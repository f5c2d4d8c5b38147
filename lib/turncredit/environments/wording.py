"""What an environment says to the policy around questions and tool results.

A tiny policy gets the question between tags and nothing else, in words of a small vocabulary; a
language model is told its tools.  The texts are this project's own, the facts in them the papers'.
"""

from dataclasses import dataclass

from turncredit.answers import words
from turncredit.environments.actions import PROTOCOLS, Protocol


@dataclass(frozen=True)
class Wording:
    """The texts of one environment.  `{question}` and `{text}` are filled in, nothing else is."""

    protocol: Protocol = "tags"
    """How the policy writes an action; see `parse_action`."""
    prompt: str = "<question> {question} </question>"
    observation: str = "<information> {text} </information>"
    """The frame of a tool's result."""
    invalid: str = "<information> invalid action </information>"
    """The whole observation after a malformed message."""
    nothing_to_read: str = "none"
    """What read_chunk says when it has no section to show."""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol = {self.protocol!r} is not one of {', '.join(PROTOCOLS)}")
        for name, gap in (("prompt", "{question}"), ("observation", "{text}")):
            if getattr(self, name).count(gap) != 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} must hold {gap} once")

    def words(self) -> list[str]:
        """The words of the texts themselves, for a word-level vocabulary."""
        prompt = self.prompt.replace("{question}", " ")
        frame = self.observation.replace("{text}", " ")
        return words(" ".join((prompt, frame, self.invalid, self.nothing_to_read)))


_SEARCH_PROMPT = """\
Find the answer to the question at the end. Think between <think> and </think> before you act, and \
again whenever you have learnt something new. If a fact is missing, look it up by writing \
<search> query </search>; the best passages then appear between <information> and </information>. \
You may search as many times as you like. As soon as nothing is missing, give the bare answer \
between <answer> and </answer>, without any explanation, for example <answer> Lisbon </answer>. \
Question: {question}
"""

_RESEARCH_PROMPT = """\
Research the question at the end. Think between <think> and </think> first, then end the message \
with exactly one of these actions:
<search> query </search> lists the documents that fit the query; their text is kept aside.
<read_chunk> words </read_chunk> shows the sections of all documents found so far that share most \
words with yours and were not shown before.
<external_verify> answer </external_verify> asks a referee who knows only the question and what \
you have read: CORRECT, UNCERTAIN or WRONG.
<answer> answer </answer> hands in the bare answer, without any explanation, and ends the task.
Results appear between <information> and </information>.
Question: {question}
"""

_RESEARCH_PROMPT_JSON = """\
Research the question at the end. Think between <think> and </think> first, then end the message \
with exactly one action. An action is a call such as
<tool_call>{"name": "search", "arguments": {"query": "first bridge of Prague"}}</tool_call>
with one of these tools:
search(query) lists the documents that fit the query; their text is kept aside.
read_chunk(query) shows the sections of all documents found so far that share most words with the \
query and were not shown before.
external_verify(answer) asks a referee who knows only the question and what you have read: \
CORRECT, UNCERTAIN or WRONG.
Results appear between <tool_response> and </tool_response>. To finish, write the bare answer \
between <answer> and </answer>, without any explanation.
Question: {question}
"""

_SEARCH_PROMPT_JSON = """\
Find the answer to the question at the end. Think between <think> and </think> before you act, and \
again whenever you have learnt something new. If a fact is missing, look it up with a call such as
<tool_call>{"name": "search", "arguments": {"query": "first bridge of Prague"}}</tool_call>
The best passages then appear between <tool_response> and </tool_response>. You may search as many \
times as you like. As soon as nothing is missing, give the bare answer between <answer> and \
</answer>, without any explanation, for example <answer> Lisbon </answer>.
Question: {question}
"""

_TABLE_PROMPT = """\
Answer the question at the end, whose last word names a table. Think between <think> and </think> \
first, then end the message with exactly one of these actions:
<schema> table </schema> lists the columns of the table and their types, number or text.
<query> get column row </query> shows one cell, <query> max column </query> and \
<query> min column </query> name the row with the largest and the smallest number. A query that \
cannot be run shows an error.
<answer> answer </answer> hands in the bare answer, without any explanation, and ends the task.
Results appear between <information> and </information>. A table may call a column otherwise than \
the question does.
Question: {question}
"""

_HOUSEHOLD_PROMPT = """\
You do chores in a house that is described in text. Each message takes one step: think between \
<think> and </think> first, then write one of the admissible actions between <action> and \
</action>, and nothing after it.
{question}
"""

_INFORMATION = "\n\n<information>{text}</information>\n\n"
_TOOL_RESPONSE = "\n<tool_response>\n{text}\n</tool_response>\n"
_TRY_TAGS = """
That message held no valid action. It must end with a single one, for example \
<search> query </search> to look something up or <answer> answer </answer> to finish, and nothing \
may follow it. Try again.
"""
_TRY_TABLE = """
That message held no valid action. It must end with a single one, for example \
<query> get column row </query> or <answer> answer </answer>, and nothing may follow it. Try again.
"""
_TRY_ACTION = """
That message held no action. It must end with a single one, for example \
<action> look </action>, and nothing may follow it. Try again.
"""
_NOTHING_TO_READ = "Nothing to read: no section that you have not seen shares a word with yours."
_TRY_JSON = """
That message held no valid action. It must end with a single tool call whose only argument is a \
text, or with <answer> answer </answer>, and nothing may follow it. Try again.
"""

WORDINGS: dict[str, Wording] = {
    "tiny": Wording(),
    "search_r1": Wording("tags", _SEARCH_PROMPT, _INFORMATION, _TRY_TAGS),
    "search_r1_json": Wording("json", _SEARCH_PROMPT_JSON, _TOOL_RESPONSE, _TRY_JSON),
    "deep_research": Wording("tags", _RESEARCH_PROMPT, _INFORMATION, _TRY_TAGS, _NOTHING_TO_READ),
    "deep_research_json": Wording(
        "json", _RESEARCH_PROMPT_JSON, _TOOL_RESPONSE, _TRY_JSON, _NOTHING_TO_READ
    ),
    "table_query": Wording("tags", _TABLE_PROMPT, _INFORMATION, _TRY_TABLE),
    "household": Wording("tags", _HOUSEHOLD_PROMPT, "\n\n{text}\n\n", _TRY_ACTION),
}
"""Ready wordings by name; "tiny" is the one for word-level vocabularies."""
