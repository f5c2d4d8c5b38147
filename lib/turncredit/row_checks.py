"""Whether the rows of a run's tables are all there, each once: lines of CSV in, ValueError out."""

import csv
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest


def is_before(line: str, step: int) -> bool:
    """Whether a line is whole and its first cell, the step, is below `step`."""
    return line.endswith("\n") and int(line.split(",", 1)[0]) < step


def require_steps(lines: Sequence[str], steps: int, *, turns: bool = False) -> None:
    """ValueError unless the rows are those of the steps before `steps`, in order.

    lines: without the header.  One row a step; with `turns` one for each turn, counted from 0.

    >>> require_steps(["0,0", "0,1", "1,0"], 2, turns=True)
    >>> require_steps(["0,0.5", "2,0.5"], 3)
    Traceback (most recent call last):
    ValueError: step 2 follows step 0, or its turns are not whole
    """
    width = 2 if turns else 1
    found = [tuple(map(int, line.split(",", width)[:width])) for line in lines]
    for before, row in zip([(-1, 0), *found], found, strict=False):
        follows = row[0] == before[0] + 1 and row[1:] in ((), (0,))
        if not follows and row != (before[0], before[-1] + 1):
            raise ValueError(f"step {row[0]} follows step {before[0]}, or its turns are not whole")
    if steps and (not found or found[-1][0] != steps - 1):
        raise ValueError(f"it ends before step {steps - 1}")


def require_keys(lines: Sequence[str], keys: Sequence[tuple[str, ...]]) -> None:
    """ValueError unless the first cells of the rows are `keys`, in order; lines without header.

    >>> require_keys(["0,all,9", "3,all,9"], [("0", "all"), ("0", "2"), ("3", "all")])
    Traceback (most recent call last):
    ValueError: row 2 is '3,all', not '0,2'
    """
    width = len(keys[0])
    found = [tuple(line.split(",", width)[:width]) for line in lines]
    for row, (there, wanted) in enumerate(zip_longest(found, keys), start=1):
        if there != wanted:
            there, wanted = (",".join(key) if key else "missing" for key in (there, wanted))
            raise ValueError(f"row {row} is {there!r}, not {wanted!r}")


def require_tokens(turns: Sequence[str], metrics: Sequence[str]) -> None:
    """ValueError unless the turns of every step have the tokens that the step has.

    Both with their headers.  A last turn that is lost shows nowhere else.

    >>> require_tokens(["step,turn,tokens", "0,0,5"], ["step,reward,tokens", "0,0.5,8"])
    Traceback (most recent call last):
    ValueError: the turns of step 0 have 5 of its 8 tokens
    """
    found: Counter[str] = Counter()
    for row in csv.DictReader(turns):
        found[row["step"]] += int(row["tokens"])
    for row in csv.DictReader(metrics):
        there, wanted = found[row["step"]], int(row["tokens"])
        if there != wanted:
            raise ValueError(f"the turns of step {row['step']} have {there} of its {wanted} tokens")
