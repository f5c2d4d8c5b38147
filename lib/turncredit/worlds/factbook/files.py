"""The world written out: JSON lines and a manifest, equal bytes for equal packages and options."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turncredit.storage import sha256_file, write_json, write_text
from turncredit.worlds.base import Document, Hop, Question
from turncredit.worlds.factbook.facts import PARSER_VERSION
from turncredit.worlds.factbook.profiles import package_versions
from turncredit.worlds.factbook.world import FactbookWorld

DOCUMENTS, TRAIN, TEST = "documents.jsonl", "questions_train.jsonl", "questions_test.jsonl"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class StoredQuestions:
    """What `write_questions` wrote."""

    documents: tuple[Document, ...]
    train: tuple[Question, ...]
    test: tuple[Question, ...]
    manifest: dict[str, Any]


def write_questions(world: FactbookWorld, folder: Path) -> dict[str, Any]:
    """Write documents, training and test questions, then the manifest, which is returned.

    The manifest holds package and parser versions, the world's options, counts, and the SHA-256
    of the three files.
    """
    rows = {DOCUMENTS: world.documents, TRAIN: world.train, TEST: world.test}
    for name, items in rows.items():
        write_text(folder / name, _lines(items))
    manifest = {
        "packages": package_versions(),
        "parser_version": PARSER_VERSION,
        "options": {
            "hops": list(world.hops),
            "max_per_final": world.max_per_final,
            "attributes": list(world.attributes),
        },
        "counts": {name: len(items) for name, items in rows.items()},
        "counts_by_hops": {TRAIN: _by_hops(world.train), TEST: _by_hops(world.test)},
        "words": len(world.words),
        "sha256": {name: sha256_file(folder / name) for name in rows},
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_questions(folder: Path) -> StoredQuestions:
    """Read what `write_questions` wrote.

    Raises ValueError naming the file, its hash and the manifest's hash when they differ.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for name in (DOCUMENTS, TRAIN, TEST):
        found, expected = sha256_file(folder / name), manifest["sha256"].get(name)
        if found != expected:
            raise ValueError(f"{folder / name}: SHA-256 is {found}, {MANIFEST} says {expected}")
    documents = tuple(Document(**row) for row in _rows(folder / DOCUMENTS))
    train, test = (tuple(map(_question, _rows(folder / name))) for name in (TRAIN, TEST))
    return StoredQuestions(documents, train, test, manifest)


def _lines(items: Iterable[Document | Question]) -> str:
    rows = (json.dumps(asdict(item), sort_keys=True, ensure_ascii=False) for item in items)
    return "".join(f"{row}\n" for row in rows)


def _rows(path: Path) -> list[dict[str, Any]]:
    # split at "\n" only: splitlines() would also cut at separators that a text may hold
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _question(row: dict[str, Any]) -> Question:
    hops = tuple(Hop(**hop) for hop in row["hops"])
    return Question(**row | {"answers": tuple(row["answers"]), "hops": hops})


def _by_hops(questions: Iterable[Question]) -> dict[str, int]:
    return {str(hops): n for hops, n in sorted(Counter(len(q.hops) for q in questions).items())}
