"""Fixtures for tests that run experiments."""

import pytest
import torch
from pipeline.tiny_runs import environment, write_task

from turncredit import experiment, tasks

collect_ignore = ["full_disk_driver.py"]  # a program, which looking for doctests would run


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder that stands for the repository; tasks are read anew and torch has one thread."""
    write_task(tmp_path)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    getattr(tasks.open_task, "cache_clear", lambda: None)()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
    getattr(tasks.open_task, "cache_clear", lambda: None)()


@pytest.fixture
def inline(monkeypatch):
    """Jobs run one after the other in this process: spares the start of workers."""

    def in_turn(work, calls, workers, title):
        for call in calls:
            work(*call, lambda *shown: None)

    monkeypatch.setattr(experiment, "in_parallel", in_turn)
