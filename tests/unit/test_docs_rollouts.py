"""docs/rollouts.md: its examples are arms, and those of cleaner and actguide name every option."""

import inspect
import re

import pytest
import yaml

from turncredit import params, paths
from turncredit.plans import named_methods
from turncredit.rollout.strategies import STRATEGIES
from turncredit.training import Method

TEXT = (paths.PACKAGE.parents[1] / "docs" / "rollouts.md").read_text(encoding="utf-8")
SHOWN = {
    name: values
    for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    for name, values in yaml.safe_load(block).items()
}


@pytest.mark.parametrize("name", ["cleaner", "actguide"])
def test_an_arm_is_shown_with_every_option_and_its_default(name):
    values = dict(SHOWN[name])
    whole = named_methods([values.pop("extends")])["grpo"] | values
    method = params.build(Method, whole, "docs/rollouts.md")
    method.rehearse()
    parameters = inspect.signature(STRATEGIES[name]).parameters.values()
    assert method.rollout_options == {p.name: p.default for p in parameters}


@pytest.mark.parametrize("name", SHOWN)
def test_an_arm_is_shown_as_the_methods_have_it(name):
    whole = named_methods([name])[name]
    for key, value in SHOWN[name].items():
        if isinstance(value, dict):
            given = whole[key]
            assert {k: v for k, v in value.items() if k in given and v != given[k]} == {}, key
        else:
            assert key == "extends" or whole[key] == value, key


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_rollout_is_on_the_page(name):
    assert f"`{name}`" in TEXT
