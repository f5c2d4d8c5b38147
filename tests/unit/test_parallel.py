"""Jobs side by side: the bar ends full, whatever the jobs reported of themselves."""

import re
import time

import pytest

from turncredit.parallel import in_parallel


def work(steps: int, total: int, report) -> None:
    """Reports `steps` of `total` steps; 0 for a job that finds all its work done."""
    for done in range(1, steps + 1):
        report(f"job of {steps}", done, total, {"loss": 0.5})


def fail(report) -> None:
    report("failing", 1, 4, {})
    time.sleep(0.1)
    raise KeyError("the reason")


def last_line(text: str) -> str:
    return re.split(r"[\r\n]+", text.strip())[-1]


def test_the_bar_ends_full_with_jobs_that_report_all_some_or_none_of_their_steps(capfd):
    in_parallel(work, [(4, 4), (3, 4), (0, 4), (1, 9)], 2, "warm starts")
    line = last_line(capfd.readouterr().err)
    assert "warm starts: 100%" in line and "| 4.0/4 " in line, line


def test_no_job_is_no_bar(capfd):
    in_parallel(work, [], 2, "warm starts")
    assert capfd.readouterr().err == ""


def test_a_job_that_fails_does_not_count_as_done(capfd):
    with pytest.raises(KeyError, match="the reason"):
        in_parallel(fail, [()], 1, "runs")
    assert "1.0/1" not in capfd.readouterr().err
