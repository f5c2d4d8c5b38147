"""The laws find who breaks them, one by one, and hold for every estimator of the library."""

import pytest
import torch

from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.laws import LAWS, Case, bias_line, check, report, tree_bias
from turncredit.laws.__main__ import main

WHOLE_BATCH = {
    "reinforce_pp", "reinforce_pp_baseline", "gae", "empg", "aepo", "adrs",
    "aem_batch_norm", "high_entropy_turns", "scale_failed",
}  # fmt: skip
"""As in tests/invariance: their statistics run over the whole batch."""


@pytest.fixture(autouse=True)
def tables():
    before = [(table, dict(table)) for table in (BASES, TURN_WEIGHTS)]
    yield
    for table, methods in before:
        table.clear()
        table.update(methods)


def broken(name: str, **scope: str) -> set[str]:
    return {verdict.law for verdict in check(name, **scope) if verdict.state == "broken"}


def enter(weight) -> None:
    weight.__name__ = "mine"
    TURN_WEIGHTS.add(replace=True)(weight)


def ones(batch, base):
    return base.new_ones(batch.turn_lengths().shape)


def by_column(batch, base):
    """Counts from the left edge, so where observations stand matters."""
    columns = torch.arange(batch.token_ids.shape[1]) * batch.response_mask
    return 1.0 + batch.turn_sums(columns.double()) / 100


def mean_of_row(batch, base):
    """Averages entropies over all positions, observations and padding too."""
    return ones(batch, base) + batch.entropies.mean(dim=1, keepdim=True)


def by_batch(batch, base):
    return ones(batch, base) * batch.success.double().mean()


def by_row_number(batch, base):
    return ones(batch, base) + torch.arange(len(base))[:, None] / len(base)


def not_a_number(batch, base):
    return ones(batch, base) * batch.rewards[:, None]


def divides(batch, base):
    """Fails where a trajectory has a single token."""
    return ones(batch, base) / (batch.response_mask.sum(1, keepdim=True) - 1)


def changes_the_batch(batch, base):
    batch.rewards.add_(1.0)
    return ones(batch, base)


def positional(batch, base, keep=0.5):
    return ones(batch, base)


def without_default(batch, base, *, keep):
    return ones(batch, base)


def raises(batch, base):
    raise RuntimeError("not today")


def on_the_cpu(batch, base):
    """As a GPU refuses it: the turns' numbers are made on the CPU, whatever the batch is on."""
    late = torch.arange(batch.num_turns, dtype=base.dtype)
    return torch.where(batch.success[:, None], torch.ones_like(late), 0.5**late)


def all_on_the_cpu(batch, base):
    return torch.ones(batch.turn_lengths().shape)


calls = iter(range(10**6))


def never_the_same(batch, base):
    return ones(batch, base) + next(calls)


BREAKERS = {
    "arguments": [positional, without_default],
    "same again": [never_the_same, changes_the_batch],
    "observations": [by_column, mean_of_row],
    "outside the mask": [mean_of_row],
    "a group alone": [by_batch, by_row_number],
    "order": [by_row_number],
    "masked rows": [by_row_number, by_batch],
    "missing rewards": [not_a_number, raises],
    "any batch": [not_a_number, divides, raises],
    "device": [on_the_cpu, all_on_the_cpu, raises],
}


def test_every_law_has_somebody_who_breaks_it():
    assert BREAKERS.keys() == LAWS.keys()


@pytest.mark.parametrize(
    ("law", "weight"), [(law, weight) for law, found in BREAKERS.items() for weight in found]
)
def test_a_law_finds_who_breaks_it(law, weight):
    enter(weight)
    assert law in broken("mine")


def test_a_whole_batch_may_matter_to_who_says_so():
    enter(by_batch)
    assert "a group alone" in broken("mine")
    assert "a group alone" not in broken("mine", scope="batch")
    assert "order" not in broken("mine", scope="batch")


@pytest.mark.parametrize("name", [*BASES, *TURN_WEIGHTS])
def test_the_librarys_own_keep_every_law(name):
    assert broken(name, scope="batch" if name in WHOLE_BATCH else "group") == set()


def test_a_number_of_its_own_and_the_batchs_device_keep_the_law_of_devices():
    def keeps(batch, base):
        late = torch.arange(batch.num_turns, dtype=base.dtype, device=base.device)
        return (torch.tensor(0.5, dtype=base.dtype) ** late).expand(len(base), -1)

    enter(keeps)
    assert "device" not in broken("mine")


def test_who_draws_is_not_asked_about_order():
    asked = {verdict.law: verdict for verdict in check("random_suffix")}
    assert asked["order"].state == "not asked" and "draws" in asked["order"].detail


def test_a_line_for_each_law_names_what_broke_it():
    enter(by_column)
    lines = report("mine", check("mine")).splitlines()
    assert len(lines) == 1 + len(LAWS)
    (line,) = (line for line in lines if line.split()[1] == "observations")
    assert line.startswith("broken") and "not" in line and "token" in line


# bias


def test_the_bias_of_known_estimators():
    """Dr. GRPO's mean is (n - 1) / n times the gradient, of groups of three."""
    assert tree_bias(Case("rloo")).relative < 1e-10
    assert tree_bias(Case("dr_grpo")).relative == pytest.approx(1 / 3)
    assert tree_bias(Case("dr_grpo")).cosine == pytest.approx(1.0)
    assert tree_bias(Case("drop_failed")).relative > 0.05


def test_what_the_tree_cannot_tell_is_said():
    assert "not here (" in bias_line("oracle_suffix")
    assert "whole batch" in bias_line("gae", scope="batch")


# the command


def test_exit_codes(capsys):
    assert main(["aem"]) == 0
    enter(by_column)
    assert main(["mine"]) == 1
    assert "measured" in capsys.readouterr().out
    for arguments in (["no_such"], ["aem", "--module", "no_such.py"]):
        assert main(arguments) == 2
        assert "no_such" in capsys.readouterr().err
