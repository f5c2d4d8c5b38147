"""docs/estimators.md names every method, its options and what it reads, as the code has them."""

import ast
import inspect
import re
from typing import Any

import pytest
import torch
from batches import current_logprobs, make_batch
from torch import Tensor

from turncredit import paths
from turncredit.batching import LAYOUT, TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.methods import Methods, option_names
from turncredit.objectives import AGGREGATIONS, KL_ESTIMATORS, OBJECTIVES

TEXT = (paths.PACKAGE.parents[1] / "docs" / "estimators.md").read_text(encoding="utf-8")
TABLES = {"Bases": BASES, "Turn weights": TURN_WEIGHTS, "Objectives": OBJECTIVES}
METHODS = [(part, name) for part, table in TABLES.items() for name in table]
SHARED = {"total_tokens", "total_sequences", "max_length"}
"""Options of every objective, stated once."""
POINTS = [
    "Source", "Formula", "Acts on", "Reads", "Options", "Edge cases", "Prefer it", "It cannot",
]  # fmt: skip

every_method = pytest.mark.parametrize(
    ("part", "name"), METHODS, ids=[" ".join(method) for method in METHODS]
)


def part_of(title: str) -> str:
    """The text below the heading `## title`."""
    return re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:][titles().index(title)]


def titles() -> list[str]:
    return re.findall(r"^## (.+)$", TEXT, flags=re.MULTILINE)


def sections(part: str) -> dict[str, str]:
    """Text of each method's section."""
    pieces = re.split(r"^### `(\w+)`$", part_of(part), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def points(part: str, name: str) -> dict[str, str]:
    """The section's bullets by their bold first words."""
    found = re.split(r"^- \*\*([\w ]+)\*\* ", sections(part)[name], flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def options_in(text: str) -> dict[str, object]:
    pairs = re.findall(r"`(\w+)=([^`]+)`", text)
    return {option: ast.literal_eval(value) for option, value in pairs}


@pytest.mark.parametrize(("part", "table"), TABLES.items(), ids=TABLES)
def test_every_method_has_a_section_and_every_section_a_method(part, table):
    assert sorted(sections(part)) == sorted(table)


@every_method
def test_sections_are_complete(part, name):
    found = points(part, name)
    assert list(found) == POINTS
    assert all(text.strip() for text in found.values())


@every_method
def test_options_and_defaults(part, name):
    parameters = inspect.signature(TABLES[part][name]).parameters
    defaults = {option: parameters[option].default for option in option_names(TABLES[part][name])}
    written = options_in(points(part, name)["Options"])
    if part == "Objectives":
        common = part_of(part).split("###")[0]
        assert {option: options_in(common)[option] for option in SHARED} == dict.fromkeys(SHARED)
        assert {defaults.pop(option) for option in SHARED} == {None}
    assert written == defaults


def test_links_lead_somewhere():
    anchors = {title.lower().replace(" ", "-") for title in titles()}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) == anchors


def test_aggregations_and_kl_estimators_are_all_named():
    assert set(re.findall(r"^\| `(\w+)` \|", part_of("Aggregations"), re.M)) == set(AGGREGATIONS)
    rows = "".join(line for line in part_of("KL").splitlines() if line.startswith("| `"))
    named = set(re.findall(r"`(k\d\+?)`", rows))
    assert named == set(KL_ESTIMATORS)


def test_every_method_has_a_measured_bias():
    text = part_of("Measured biases")
    for name in [*BASES, *TURN_WEIGHTS]:
        assert f"`{name}`" in text or name == "none", name


# what a method reads


def batch_to_read() -> TurnBatch:
    """Two groups with spread in everything, gates that open and lucky wins."""
    lengths = [[2, 1, 3], [1, 2, 2], [3, 1], [2, 2, 1, 1], [1, 1, 2], [2, 3, 1]]
    batch = make_batch(
        lengths,
        rewards=[0.0, 1.0, 0.5, 0.0, 1.0, 0.25],
        groups=[0, 0, 0, 1, 1, 1],
        entropies=[[0.1, 0.9, 0.1], [0.4, 0.2, 2.0], [0.1, 0.1], [3.0, 0.1, 0.2, 0.1],
                   [0.1, 0.6, 0.3], [0.1, 2.0, 0.2]],
        seed=3,
    )  # fmt: skip
    return batch.replace(
        grounded=torch.tensor([True, False, False, True, True, False]),
        oracle_turn=torch.tensor([1, -1, 0, 0, -1, 1]),
    )


def changed(batch: TurnBatch, field: str, seed: int) -> TurnBatch:
    """The batch with other values in one field: rows permuted, floats rescaled one by one."""
    stream = torch.Generator().manual_seed(seed)
    value = getattr(batch, field)
    if field == "oracle_turn":
        other = torch.randint(-1, 2, value.shape, generator=stream)
    elif value.is_floating_point():
        other = value * torch.randn(value.shape, generator=stream).exp()
    else:
        other = value[torch.randperm(len(value), generator=stream)]
    return batch.replace(**{field: other})


def outcome(part: str, name: str, batch: TurnBatch, base: Tensor) -> Tensor:
    table: Methods = TABLES[part]
    if part == "Bases":
        return table[name](batch)
    logprobs = current_logprobs(batch_to_read(), 0.02)
    if part == "Objectives":
        return table[name](logprobs, batch, base)[0]
    given = {"logprobs": logprobs} if "logprobs" in option_names(table[name]) else {}
    return table[name](batch, base, **given)


@every_method
def test_reads_what_the_docs_say_and_nothing_else(part, name):
    batch = batch_to_read()
    base = BASES["grpo"](batch)
    before = outcome(part, name, batch, base)

    def differs(seed: int, *fields: str) -> bool:
        other = batch
        for field in fields:
            other = changed(other, field, seed)
        return not torch.equal(outcome(part, name, other, base), before)

    always, _, otherwise = points(part, name)["Reads"].partition(";")
    stated, on_demand = (set(re.findall(r"`(\w+)`", text)) for text in (always, otherwise))
    assert stated | on_demand <= set(LAYOUT)
    unread = sorted(set(LAYOUT) - stated - {"response_mask", "turn_ids"})
    assert not any(differs(seed, *unread) for seed in range(12)), f"reads one of {unread}"
    for field in stated:
        assert any(differs(seed, field) for seed in range(20)), f"does not read {field}"


@pytest.fixture
def tables_as_before():
    """What an example enters is gone after it: other tests go through all that a table has."""
    before = [(table, dict(table)) for table in TABLES.values()]
    yield
    for table, methods in before:
        table.clear()
        table.update(methods)


def run_examples(count: int) -> dict[str, Any]:
    """The names after the first examples, run one after the other."""
    examples = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(examples) == 2
    names: dict[str, Any] = {}
    for example in examples[:count]:
        exec(compile(example, "docs/estimators.md", "exec"), names)
    return names


def test_the_example_runs_and_gives_credit():
    names = run_examples(1)
    advantages, batch = names["advantages"], names["batch"]
    assert (advantages[batch.response_mask] != 0).all()
    assert (advantages[~batch.response_mask] == 0).all()
    assert names["loss"].isfinite()
    assert names["metrics"]["ratio_max"] == 1.0


def test_methods_of_ones_own_run_and_can_be_defined_again(tables_as_before):
    """Rewards are 0 and 1; the second trajectory has a turn of one token and one of two."""
    for _ in range(2):
        names = run_examples(2)
    batch, advantages = names["batch"], names["advantages"]
    long = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]])
    assert torch.equal(advantages, long.float())
    expected = -0.5 * (names["logprobs"] * advantages)[batch.response_mask].mean()
    torch.testing.assert_close(names["loss"], expected)
    assert names["metrics"]["mean_slope"] == pytest.approx(-0.5 * 2 / 7)
    assert names["metrics"]["response_tokens"] == 7
    for table, name in (
        (BASES, "reward_itself"), (TURN_WEIGHTS, "long_turns"), (OBJECTIVES, "policy_gradient"),
    ):  # fmt: skip
        assert table[name] is not None
    with pytest.raises(ValueError, match="long_turns: at_least is 0; it must be a whole number"):
        TURN_WEIGHTS["long_turns"](batch, advantages, at_least=0)


def test_the_examples_leave_the_tables_alone():
    assert {"reward_itself", "long_turns", "policy_gradient"}.isdisjoint(
        {*BASES, *TURN_WEIGHTS, *OBJECTIVES}
    )
