"""FanOutQA's development questions, from the data files of the pip package `fanoutqa`.

Source: Zhu et al. 2024, "FanOutQA: A Multi-Hop, Multi-Document Question Answering Benchmark for
Large Language Models"; data CC BY-SA 4.0.  The package holds no Wikipedia text, and its test
questions have no answers.  Its code is not run: it wants packages that are not needed to read.
"""

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.answers import words
from turncredit.storage import sha256_file
from turncredit.worlds.base import Hop, Question

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True)
class FanOutQuestions:
    """The development set."""

    questions: tuple[Question, ...]
    """kind: `single`, `list` or `dict`, the form of the answer.  Without hops, since a hop without
    its paragraph would pass for one that the world has lost, and no episode for grounded."""
    hops: dict[str, tuple[Hop, ...]]
    """Question id -> the sub-questions that read a page (title, sub-question, its answer, no
    paragraph), in the order of the decomposition, which is one that can be worked through."""
    references: dict[str, tuple[str, ...]]
    """Question id -> the texts that `loose_accuracy` looks for."""
    sha256: str
    """Of the file."""


def load_dev(path: Path | None = None) -> FanOutQuestions:
    """The 310 development questions of the installed package, or those of another file.

    A gold answer of several parts is flattened to one text in the file's order, "a; b" or
    "a: 1; b: 2".  Exact match with it asks for that order and those words, which hardly anybody
    will hit: 286 of the 310 have several parts, so score them by `loose_accuracy` and say so.
    Raises FileNotFoundError without the package, ValueError naming file and question.
    """
    path = path or _package_file("fanout-final-dev.json")
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if type(records) is not list:
        raise ValueError(f"{path}: a {type(records).__name__}, not a list of questions")
    questions, hops, references = [], {}, {}
    for position, record in enumerate(records):
        try:
            questions.append(_question(record))
            hops[record["id"]] = tuple(_hops(record["decomposition"]))
            references[record["id"]] = tuple(reference_texts(record["answer"]))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}, question {position}: {error!r}") from error
    if len(references) < len(questions):
        raise ValueError(f"{path}: {len(questions) - len(references)} question ids come twice")
    return FanOutQuestions(tuple(questions), hops, references, sha256_file(path))


def flatten(answer: Any) -> str:
    """One text for an answer: parts joined by "; ", keys before ": ", truth values as yes or no.

    >>> flatten({"Ann": 1.0, "Bo": [True, "x"]}), flatten(61.6)
    ('Ann: 1; Bo: yes, x', '61.6')
    """
    if type(answer) is dict:
        return "; ".join(f"{key}: {_inner(value)}" for key, value in answer.items())
    if type(answer) is list:
        return "; ".join(_inner(value) for value in answer)
    return _inner(answer)


def reference_texts(answer: Any) -> list[str]:
    """What loose accuracy looks for: every key and every single value, without the empty ones.

    >>> reference_texts({"Ann": 1.0, "Bo": ""})
    ['Ann', '1', 'Bo']
    """
    if type(answer) is dict:
        parts = [part for pair in answer.items() for part in pair]
    elif type(answer) is list:
        parts = answer
    else:
        text = _inner(answer)
        return [text] if words(text) else []
    return [text for part in parts for text in reference_texts(part)]


def loose_accuracy(text: str, references: tuple[str, ...]) -> float | None:
    """Share of the references whose words stand in `text` in a row; None (missing) if none is.

    FanOutQA's metric with this package's word normalisation; the original also lemmatises (it
    needs spaCy for that), so its figures may be slightly higher.

    >>> loose_accuracy("Ann was born in 1,950.", ("Ann", "1950", "Bo", "195"))
    0.5
    """
    if not references:
        return None
    said = f" {' '.join(_words(text))} "
    return sum(f" {' '.join(_words(each))} " in said for each in references) / len(references)


def _words(text: str) -> list[str]:
    return words(_THOUSANDS.sub("", text))


def _inner(value: Any) -> str:
    if type(value) is bool:
        return "yes" if value else "no"
    if type(value) is float and value.is_integer():
        return str(int(value))
    if type(value) is list:
        return ", ".join(map(_inner, value))
    if type(value) not in (str, int, float):
        raise ValueError(f"answer part {value!r}")
    return str(value)


def _question(record: dict[str, Any]) -> Question:
    answer = record["answer"]
    answers = (flatten(answer),)
    if type(answer) is bool:
        answers += ("true" if answer else "false",)
    return Question(
        id=record["id"],
        text=record["question"].strip(),
        answers=answers,
        hops=(),
        kind={dict: "dict", list: "list"}.get(type(answer), "single"),
        guess="",
    )


def _hops(decomposition: list[dict[str, Any]]) -> Iterator[Hop]:
    """The sub-questions that were answered from a page; those that only gather others have none."""
    for part in decomposition:
        if part["evidence"] is not None:
            title = part["evidence"]["title"]
            yield Hop(title, part["question"], flatten(part["answer"]), paragraph="")
        yield from _hops(part["decomposition"])


def _package_file(name: str) -> Path:
    found = importlib.util.find_spec("fanoutqa")  # finds the folder without running the package
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"{name}: pip install --no-deps fanoutqa==1.1.1")
    return Path(found.submodule_search_locations[0]) / "data" / name
