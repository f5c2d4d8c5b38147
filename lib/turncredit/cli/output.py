"""What a command says: sentences on stderr, lines or one JSON object on stdout."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def note(sentence: str) -> None:
    """A sentence about the work, on stderr: stdout holds results alone."""
    print(f"turncredit: {sentence}", file=sys.stderr, flush=True)


def note_warning(message: Warning | str, *where: Any, **how: Any) -> None:
    """In place of `warnings.showwarning`: what is warned of, without the line of code."""
    note(f"warning: {message}")


def tell(result: Mapping[str, Any], lines: Sequence[str], *, as_json: bool) -> None:
    """Print a result: `lines` for people, or all of it as one JSON object."""
    if as_json:
        print(json.dumps(plain(result), indent=2, ensure_ascii=False, allow_nan=False))
        return
    for line in lines:
        print(line)


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: numbers that are not finite are null.

    >>> plain({"a": [1.0, float("nan")], 2: (True, "x")})
    {'a': [1.0, None], '2': [True, 'x']}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy or pandas
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as lines with aligned columns, a dash where a number is missing.

    >>> table([{"run": "a", "score": 0.25}, {"run": "longer", "score": None}])
    ['run     score', 'a       0.25 ', 'longer  –    ']
    """
    if not rows:
        return []
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]


def _cell(value: Any) -> str:
    value = plain(value)
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
