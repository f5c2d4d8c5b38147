"""docs/training.md: every block of YAML is what the settings take, and names all their keys."""

import dataclasses
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from play import PLAIN, TRAINING

from turncredit import params
from turncredit.methods import option_names
from turncredit.plans import named_methods
from turncredit.policies.huggingface import HuggingFaceSettings
from turncredit.policies.vllm import VllmSettings
from turncredit.rollout.strategies import STRATEGIES
from turncredit.training import Method, TrainingSettings
from turncredit.tripwires import TripwireSettings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
OFF = {"micro_batch": None, "entropy_bonus": 0.0, "kl": None, "resampling": None, "overlong": None}


def blocks(start: str) -> list[dict]:
    return [yaml.safe_load(block) for block in BLOCKS if block.startswith(start)]


@pytest.mark.parametrize("shown", blocks("# in training"), ids=lambda shown: ",".join(shown))
def test_terms_of_training_are_settings(shown):
    given = {name: getattr(TRAINING, name) for name in TrainingSettings.__dataclass_fields__}
    settings = params.build(TrainingSettings, given | OFF | shown, "docs/training.md")
    for name, value in shown.items():
        found = getattr(settings, name)
        assert (dataclasses.asdict(found) if dataclasses.is_dataclass(found) else found) == value


def test_every_term_that_tasks_leave_off_is_shown():
    assert {name for shown in blocks("# in training") for name in shown} == OFF.keys()


def test_tripwires_and_a_language_model_are_settings():
    (wires,) = blocks("# beside training")
    params.build(TripwireSettings, wires["tripwires"], "docs/training.md")
    for block, kind in zip(blocks("policy:"), (HuggingFaceSettings, VllmSettings), strict=True):
        values = block["policy"]
        assert values.pop("kind") == kind.KIND
        params.build(kind, values, "docs/training.md")
    assert len(BLOCKS) == len(blocks("# in training")) + 4


def test_the_rollout_shown_names_every_option_and_the_published_defaults():
    (shown,) = blocks("# in params/methods.yaml")
    (entry,) = shown.values()
    method = params.build(Method, named_methods(["grpo"])["grpo"] | _without_base(entry), "docs")
    parameters = inspect.signature(STRATEGIES[method.rollout]).parameters.values()
    assert method.rollout_options == {p.name: p.default for p in parameters}


def _without_base(entry: dict) -> dict:
    return {name: value for name, value in entry.items() if name != "extends"}
def test_the_guided_arm_is_a_method_with_every_option():
    (shown,) = blocks("# an arm")
    values = shown["actguide"]
    assert values.pop("extends") == "grpo"
    method = replace(PLAIN, **values)
    method.rehearse()
    assert set(values["rollout_options"]) == set(option_names(ROLLOUTS["actguide"]))
    defaults = inspect.signature(ROLLOUTS["actguide"]).parameters
    for name, value in values["rollout_options"].items():
        assert value == defaults[name].default
