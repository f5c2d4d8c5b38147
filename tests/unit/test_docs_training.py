"""docs/training.md: every block of YAML is what the settings take, and names all their keys."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from play import TRAINING

from turncredit import params
from turncredit.policies.huggingface import HuggingFaceSettings
from turncredit.policies.vllm import VllmSettings
from turncredit.tasks import task_values
from turncredit.training import TrainingSettings
from turncredit.tripwires import TripwireSettings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
OFF = {"micro_batch": None, "entropy_bonus": 0.0, "kl": None, "resampling": None, "overlong": None}
OFF |= {"temperature": 1.0, "top_p": 1.0}


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
    assert len(BLOCKS) == len(blocks("# in training")) + 3


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_what_rollouts_are_sampled_with_is_refused_as_the_page_says(name):
    (shown,) = [block for block in blocks("# in training") if name in block]
    given = {key: getattr(TRAINING, key) for key in TrainingSettings.__dataclass_fields__}
    with pytest.raises(ValueError, match=rf"docs/training\.md: {name} = 0\.9"):
        params.build(TrainingSettings, given | shown | {name: 0.9}, "docs/training.md")
    assert "All but 1 is refused for either" in TEXT


def test_the_page_says_which_tiers_have_tripwires():
    for tier, has in {"smoke": False, "cpu": False, "gpu": True}.items():
        values = task_values(tier, "informative_guess")
        assert ("tripwires" in values) == has, tier
    assert "The tasks of tier gpu have the section, those of smoke and cpu have not" in TEXT
