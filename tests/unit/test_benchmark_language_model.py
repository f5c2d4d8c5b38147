"""The language model's benchmark asks for a task that there is, whether or not a model is there."""

import argparse
import sys

import pytest

from turncredit import paths, tasks

BENCHMARKS = paths.PACKAGE.parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import language_model_steps

    yield language_model_steps
    sys.modules.pop("language_model_steps", None)


def test_its_changes_make_a_task_of_the_factbook(benchmark):
    asked = argparse.Namespace(warm_steps=2, steps=1, questions=1, group=2)
    changes = benchmark.changes(asked)
    policy = changes.pop("policy")
    task = tasks.open_task("cpu", "factbook", changes)
    assert (task.settings.training.group_size, task.settings.warm_start.steps) == (2, 2)
    assert policy["kind"] == "huggingface"
    assert len(task.world.evaluation_questions(3)) == 3
