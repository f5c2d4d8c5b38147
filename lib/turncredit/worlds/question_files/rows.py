"""One row of a question file in Search-R1's schema, from and to plain records.

A record has the columns that verl reads (`data_source`, `prompt`, `ability`, `reward_model`,
`extra_info`) beside those of the raw files (`id`, `question`, `golden_answers`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turncredit.answers import normalise_answer
from turncredit.worlds.base import Question

SOURCES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
VERL_PREFIX = "searchR1_"
"""verl's own scorer goes by names with this prefix; rows may carry it."""
ABILITY, STYLE = "fact-reasoning", "rule"

Messages = tuple[tuple[str, str], ...]
"""(role, content) pairs."""


@dataclass(frozen=True)
class QuestionRow:
    """One row.  `answers` without a usable one means that its reward is missing, never 0."""

    data_source: str
    split: str
    index: int
    """Position in the split of its source."""
    id: str
    """Unique in a split of a source; Search-R1 has `train_0` in several sources."""
    question: str
    """Without blanks around it and with its question mark; see `asked`."""
    answers: tuple[str, ...]
    prompt: Messages = ()
    """What the policy is told first; () until `with_prompts`."""
    ability: str = ABILITY
    agent_name: str = ""
    """verl's agent loop for this row; '' leaves it to verl's default."""

    def __post_init__(self) -> None:
        for name in ("data_source", "split", "id"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        if self.question != asked(self.question):
            raise ValueError(f"question {self.question!r} is not stripped, or lacks its '?'")
        if not 0 <= self.index < 2**63:
            raise ValueError(f"index {self.index} is not a row number")
        check_text(self)

    @property
    def missing(self) -> bool:
        """Whether no gold answer can be scored."""
        return not usable(self.answers)


def asked(text: str) -> str:
    """A question as Search-R1 asks it: stripped, with '?' at the end.

    >>> asked(" who wrote it "), asked("Who?")
    ('who wrote it?', 'Who?')
    """
    text = text.strip()
    if not text:
        raise ValueError("question is empty")
    return text if text.endswith("?") else f"{text}?"


def usable(answers: Sequence[str]) -> bool:
    """Whether any of the answers has something left after normalisation."""
    return any(normalise_answer(answer) for answer in answers)


def check_source(name: str, sources: Sequence[str]) -> None:
    """ValueError naming `name` unless it is one of `sources`, with verl's prefix or without."""
    if name not in sources and name.removeprefix(VERL_PREFIX) not in sources:
        raise ValueError(f"data_source {name!r} is none of {', '.join(sources)}")


def check_text(row: QuestionRow) -> None:
    """ValueError naming the row when a text cannot be stored as UTF-8."""
    texts = [row.data_source, row.split, row.id, row.question, row.ability, row.agent_name]
    texts += [*row.answers, *(part for message in row.prompt for part in message)]
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"row {row.id!r}: {text!r} holds half a surrogate pair") from error


def to_record(row: QuestionRow) -> dict[str, Any]:
    """The columns of a row; `agent_name` only where there is one."""
    record = {
        "id": row.id,
        "question": row.question,
        "golden_answers": list(row.answers),
        "data_source": row.data_source,
        "prompt": [{"role": role, "content": content} for role, content in row.prompt],
        "ability": row.ability,
        "reward_model": {"style": STYLE, "ground_truth": {"target": list(row.answers)}},
        "extra_info": {"split": row.split, "index": row.index},
    }
    return record | ({"agent_name": row.agent_name} if row.agent_name else {})


def from_record(
    record: dict[str, Any],
    position: int,
    *,
    data_source: str = "",
    split: str = "",
    sources: Sequence[str] = SOURCES,
) -> QuestionRow:
    """A row from its columns; `data_source` and `split` stand in where the record has none.

    `position` (from 0) stands in for the index, and the index for an id that is null or absent; a
    null or empty text is as good as none.  Without a `question` column the question is what
    follows "Question: " in the last message of the prompt.  Unparseable gold answers give a row
    without answers (`gold_answers` says why); all else raises ValueError naming the field.
    """
    extra = _given(record, "extra_info", {})
    _require(type(extra) is dict, "extra_info", extra)
    prompt = _messages(_given(record, "prompt", []))
    source = _given(record, "data_source", data_source)
    _require(type(source) is str, "data_source", source)
    check_source(source, sources)
    index = position if extra.get("index") is None else extra["index"]
    _require(type(index) is int, "extra_info.index", index)
    identity = record.get("id", extra.get("id"))
    identity = index if identity is None else identity
    _require(type(identity) in (str, int), "id", identity)
    texts = {
        "split": _given(extra, "split", split),
        "ability": _given(record, "ability", ABILITY),
        "agent_name": _given(record, "agent_name", ""),
    }
    for name, value in texts.items():
        _require(type(value) is str, name, value)
    return QuestionRow(
        data_source=source,
        index=index,
        id=str(identity),
        question=asked(_question(record, prompt)),
        answers=gold_answers(record)[0],
        prompt=prompt,
        **texts,
    )


def gold_answers(record: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """The gold answers of a record and what is wrong with them ('' if nothing is).

    The reward model's ground truth goes before `golden_answers`, since verl scores by it.  A text
    is one answer and a number is its digits; anything else makes all of them unparseable: ().
    """
    model = record.get("reward_model")
    truth = model.get("ground_truth") if type(model) is dict else None
    target = truth.get("target") if type(truth) is dict else truth
    raw = record.get("golden_answers")
    try:
        answers = _answers(raw if target is None else target)
        if target is not None and raw is not None and _answers(raw) != answers:
            return answers, "golden_answers differ from reward_model"
    except ValueError as error:
        return (), f"unparseable gold answer: {error}"
    if not answers:
        return (), "no gold answer"
    return answers, "" if usable(answers) else f"empty gold answers {list(answers)!r}"


def rows_from_questions(
    questions: Iterable[Question], *, data_source: str, split: str
) -> list[QuestionRow]:
    """Rows of any world's questions, indexed in order.

    >>> question = Question("q7", "capital of Chad", ("N'Djamena",), (), "capital", "")
    >>> rows_from_questions([question], data_source="factbook", split="test")[0].question
    'capital of Chad?'
    """
    return [
        QuestionRow(data_source, split, index, question.id, asked(question.text), question.answers)
        for index, question in enumerate(questions)
    ]


def with_prompts(
    rows: Iterable[QuestionRow], make_prompt: Callable[[str], str], *, agent_name: str = ""
) -> list[QuestionRow]:
    """The rows with one user message each, `make_prompt(question)`, ready for verl."""
    return [
        replace(row, prompt=(("user", make_prompt(row.question)),), agent_name=agent_name)
        for row in rows
    ]


def to_question(row: QuestionRow) -> Question:
    """The question of a row: id unique among all sources, kind = source, no hops, no guess."""
    identity = f"{row.data_source}-{row.split}-{row.id}"
    return Question(identity, row.question, row.answers, hops=(), kind=row.data_source, guess="")


def _given(record: dict[str, Any], name: str, otherwise: Any) -> Any:
    value = record.get(name)
    return otherwise if value is None or value == "" else value  # and not 0 or False


def _answers(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if type(value) is not list:
        value = [value]
    for answer in value:
        number = type(answer) is int or (type(answer) is float and math.isfinite(answer))
        if not (number or type(answer) is str):
            raise ValueError(f"{answer!r}")
    return tuple(str(answer) for answer in value)


def _messages(value: Any) -> Messages:
    _require(type(value) is list, "prompt", value)
    for message in value:
        sound = type(message) is dict and {"role", "content"} <= set(message)
        _require(
            sound and type(message["role"]) is str and type(message["content"]) is str,
            "prompt",
            message,
        )
    return tuple((message["role"], message["content"]) for message in value)


def _question(record: dict[str, Any], prompt: Messages) -> str:
    text = record.get("question")
    if text is None and prompt:
        text = prompt[-1][1].partition("Question: ")[2]
    _require(type(text) is str, "question", text)
    return text


def _require(sound: bool, field: str, value: Any) -> None:
    if not sound:
        raise ValueError(f"{field} is {value!r}")
