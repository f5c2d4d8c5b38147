"""Methods of one's own: entered, put in the place of another, and refused by their name."""

import inspect
import math

import pytest
import torch
from batches import current_logprobs, make_batch
from hypothesis import given
from hypothesis import strategies as st

from turncredit.credit import BASES, TURN_WEIGHTS, assign_credit, token_advantages, weigh
from turncredit.credit.gates import decision_turns
from turncredit.methods import Methods, option_names, options_of
from turncredit.objectives import OBJECTIVES, SampledTokens, TokenLosses, objective

BATCH = make_batch([[2, 1], [1, 0, 3]], rewards=[0.0, 1.0])
TURNS = BATCH.turn_lengths().shape
GRPO = BASES["grpo"](BATCH)
NAN = math.nan


@pytest.fixture(autouse=True)
def tables():
    """What a test enters is gone after it."""
    before = [(table, dict(table)) for table in (BASES, TURN_WEIGHTS, OBJECTIVES)]
    yield
    for table, methods in before:
        table.clear()
        table.update(methods)


# entering and replacing


def enter_base(factor: float, **how):
    def mine(batch, *, scale: float = 1.0):
        return factor * scale * BASES["grpo"](batch)

    return BASES.add(**how)(mine) if how else BASES.add(mine)


def enter_weight(factor: float, **how):
    def mine(batch, base, *, scale: float = 1.0):
        return factor * scale * base.new_ones(batch.turn_lengths().shape)

    return TURN_WEIGHTS.add(**how)(mine) if how else TURN_WEIGHTS.add(mine)


def enter_objective(factor: float, **how):
    @objective(aggregation="token_mean", **how)
    def mine(tokens, *, scale: float = 1.0):
        losses = -factor * scale * tokens.advantages * tokens.log_ratio.exp()
        return TokenLosses(losses, losses, {})

    return mine


def value(kind: str) -> float:
    """What the entered method makes of the batch, in proportion to its factor."""
    if kind == "base":
        return (BASES["mine"](BATCH) / GRPO)[BATCH.response_mask][0].item()
    if kind == "turn weight":
        return TURN_WEIGHTS["mine"](BATCH, GRPO)[0, 0].item()
    ones = torch.ones(GRPO.shape)
    return -OBJECTIVES["mine"](BATCH.old_logprobs, BATCH, ones)[0].item()


KINDS = {"base": enter_base, "turn weight": enter_weight, "objective": enter_objective}
every_kind = pytest.mark.parametrize(("kind", "enter"), KINDS.items(), ids=KINDS)


@every_kind
def test_a_name_that_is_taken_is_refused_with_the_way_out(kind, enter):
    enter(1.0)
    with pytest.raises(ValueError, match=f"{kind} 'mine' is defined twice; pass replace=True"):
        enter(2.0)
    assert value(kind) == pytest.approx(1.0)


@every_kind
def test_replace_puts_the_new_definition_in_the_place_of_the_old(kind, enter):
    """As when the cell of a notebook is run again; the first time there is nothing to replace."""
    for factor in (1.0, 2.0, 3.0):
        enter(factor, replace=True)
        assert value(kind) == pytest.approx(factor)
    enter(4.0, replace=True)
    with pytest.raises(ValueError, match="defined twice"):
        enter(5.0, replace=False)
    assert value(kind) == pytest.approx(4.0)


@every_kind
def test_replace_is_a_flag(kind, enter):
    for flag in (1, "yes", None):
        with pytest.raises(ValueError, match=f"replace is {flag!r}; it must be True or False"):
            enter(1.0, replace=flag)


def test_the_function_itself_is_returned_unchanged():
    table = Methods("thing")

    def mine(batch, *, scale=1.0):
        return batch

    assert table.add(mine) is mine
    assert table.add(replace=True)(mine) is mine


@every_kind
def test_options_of_own_methods_are_checked(kind, enter):
    enter(1.0)
    table = {"base": BASES, "turn weight": TURN_WEIGHTS, "objective": OBJECTIVES}[kind]
    assert option_names(table["mine"])[0] == "scale"
    with pytest.raises(ValueError, match=f"{kind} 'mine' has no option 'scael'; it has: scale"):
        table["mine"](BATCH, scael=2.0)


# options taken from another function


def gate(batch, *, k=16, c=2.0):
    return k * c


def test_options_of_another_come_first_and_keep_their_defaults():
    @options_of(gate)
    def mask(batch, base, *, after=0.5, **options):
        return gate(batch, **options) + after

    assert option_names(mask) == ("k", "c", "after")
    assert mask(None, None, c=3.0) == 48.5


def test_an_option_the_function_has_itself_stays_its_own():
    @options_of(gate)
    def mask(batch, *, c=1.0, **options):
        return gate(batch, c=c, **options)

    assert option_names(mask) == ("k", "c")
    assert mask(None) == 16.0


def test_the_gate_has_one_set_of_options_and_defaults():
    """`decision_turns` states them; whoever gates takes them from there."""
    stated = inspect.signature(decision_turns).parameters
    for name in ("suffix_mask", "random_suffix", "scale_failed"):
        taken = inspect.signature(TURN_WEIGHTS[name]).parameters
        for option in option_names(decision_turns):
            assert taken[option] == stated[option]


# what a base or a weight may return


WRONG = {
    "None": (lambda good: None, "NoneType"),
    "a list": (lambda good: good.tolist(), "list"),
    "bool": (lambda good: good > 0, "torch.bool"),
    "whole": (lambda good: good.long(), "torch.int64"),
    "half": (lambda good: good.bfloat16(), "torch.bfloat16"),
    "complex": (lambda good: good.to(torch.complex64), "torch.complex64"),
    "a row": (lambda good: good[:1], r"torch.float32 of shape \(1, "),
    "a column": (lambda good: good[:, :1], r"torch.float32 of shape \(2, 1\)"),
    "flat": (lambda good: good[0], r"torch.float32 of shape \(\d+,\)"),
    "transposed": (lambda good: good.T, r"torch.float32 of shape"),
}
every_wrong = pytest.mark.parametrize(("spoil", "found"), WRONG.values(), ids=WRONG)


@every_wrong
def test_a_weight_that_returns_something_else_is_named(spoil, found):
    TURN_WEIGHTS.add(replace=True)(named("mine", lambda batch, base: spoil(torch.ones(TURNS))))
    wanted = rf"turn weight 'mine' returned {found}.*, not float32 or float64 \[B, T\] = \(2, 3\)"
    for call in (token_advantages, assign_credit):
        with pytest.raises(ValueError, match=wanted):
            call(BATCH, "grpo", "mine")
    with pytest.raises(ValueError, match=wanted):
        weigh(BATCH, GRPO, "mine")


@every_wrong
def test_a_base_that_returns_something_else_is_named(spoil, found):
    BASES.add(named("mine", lambda batch: spoil(GRPO)))
    wanted = rf"base 'mine' returned {found}.*, not float32 or float64 \[B, L\] = \(2, \d+\)"
    for weight in ("none", "suffix_mask", "aem"):
        with pytest.raises(ValueError, match=wanted):
            token_advantages(BATCH, "mine", weight)
    with pytest.raises(ValueError, match=wanted):
        token_advantages(BATCH, "empg", "none", {"base": "mine"})
    with pytest.raises(ValueError, match=rf"weigh: base is {found}"):
        weigh(BATCH, spoil(GRPO), "none")


def named(name: str, function):
    function.__name__ = name
    return function


def with_value(good: torch.Tensor, place: tuple[int, int], junk: float) -> torch.Tensor:
    spoilt = good.clone()
    spoilt[place] = junk
    return spoilt


@pytest.mark.parametrize("junk", [NAN, math.inf, -math.inf])
def test_a_number_that_is_not_finite_names_method_and_place(junk):
    row, column = BATCH.response_mask.nonzero()[-1].tolist()
    BASES.add(named("mine", lambda batch: with_value(GRPO, (row, column), junk)))
    with pytest.raises(
        ValueError, match=f"base 'mine' returned {junk} at row {row}, token {column}"
    ):
        token_advantages(BATCH, "mine", "none")
    weights = with_value(torch.ones(TURNS), (1, 2), junk)
    TURN_WEIGHTS.add(named("mine", lambda batch, base: weights))
    with pytest.raises(ValueError, match=f"turn weight 'mine' returned {junk} at row 1, turn 2"):
        token_advantages(BATCH, "grpo", "mine")
    with pytest.raises(ValueError, match="it must be finite at sampled tokens"):
        weigh(BATCH, torch.zeros(GRPO.shape), "mine")  # 0 times infinity


def test_a_product_that_overflows_is_named():
    TURN_WEIGHTS.add(named("mine", lambda batch, base: torch.full(TURNS, 1e30)))
    with pytest.raises(ValueError, match=r"base times turn weight 'mine' is -?inf at row 0, token"):
        weigh(BATCH, 1e30 * GRPO, "mine")


@pytest.mark.parametrize("junk", [NAN, math.inf, 1e30])
def test_what_stands_outside_the_mask_and_at_empty_turns_is_never_read(junk):
    """0 there in every stage, though the base and the weight leave junk."""
    BASES.add(named("mine", lambda batch: GRPO.masked_fill(~batch.response_mask, junk)))
    weights = torch.ones(TURNS).masked_fill(BATCH.turn_lengths() == 0, junk)
    seen = []

    @TURN_WEIGHTS.add
    def mine(batch, base):
        seen.append(base)
        return weights

    credit = assign_credit(BATCH, "mine", "mine")
    assert torch.equal(credit.base, GRPO)
    assert torch.equal(credit.advantages, GRPO)
    assert torch.equal(seen[0], GRPO)


@given(st.floats(-3, 3, width=32), st.sampled_from([torch.float32, torch.float64]))
def test_finite_multipliers_of_both_types_pass(factor, dtype):
    """The advantages keep the type of the base."""
    TURN_WEIGHTS.add(replace=True)(
        named("mine", lambda batch, base: torch.full(TURNS, factor, dtype=dtype))
    )
    found = token_advantages(BATCH, "grpo", "mine")
    assert torch.equal(found, GRPO * torch.tensor(factor, dtype=torch.float32))


def test_large_finite_advantages_are_no_fault():
    """Their sum in float32 is infinite, they are not."""
    batch = make_batch([[3], [3]])
    base = torch.where(batch.response_mask, 3e38, 0.0)
    assert torch.equal(weigh(batch, base, "none").advantages, base)


def test_no_gradient_passes_through_a_weight():
    weights = torch.ones(TURNS, requires_grad=True)
    TURN_WEIGHTS.add(named("mine", lambda batch, base: weights * 2))
    credit = assign_credit(BATCH, "grpo", "mine")
    assert not any(part.requires_grad for part in credit)


# objectives


def test_an_objective_of_ones_own_has_all_an_objective_has():
    """Plain policy gradient, -A log p: its slope is -A."""

    @objective(aggregation="seq_mean_token_mean")
    def policy_gradient(tokens: SampledTokens, *, scale: float = 1.0) -> TokenLosses:
        slopes = -scale * tokens.advantages
        return TokenLosses(slopes * tokens.logprobs, slopes, {"mean_slope": slopes.mean()})

    assert policy_gradient is OBJECTIVES["policy_gradient"]
    leaf = BATCH.old_logprobs.clone().requires_grad_()
    loss, metrics = policy_gradient(leaf, BATCH, GRPO, scale=2.0, aggregation="token_mean")
    loss.backward()
    tokens = BATCH.response_mask.sum()
    assert torch.allclose(leaf.grad, -2 * GRPO / tokens)
    expected = (-2 * GRPO * BATCH.old_logprobs)[BATCH.response_mask].mean()
    assert loss.item() == pytest.approx(expected.item())
    assert metrics["mean_slope"] == pytest.approx((-2 * GRPO[BATCH.response_mask]).mean().item())
    assert option_names(policy_gradient) == (
        "scale", "aggregation", "total_tokens", "total_sequences", "max_length",
    )  # fmt: skip


@pytest.mark.parametrize("part", ["values", "slopes"])
@pytest.mark.parametrize(
    "spoil", [lambda good: good[:, None], lambda good: good[:1], lambda good: good.mean(),
              lambda good: good > 0, lambda good: None],
    ids=["column", "one", "scalar", "bool", "None"],
)  # fmt: skip
def test_an_objective_that_returns_something_else_is_named(part, spoil):
    @objective(aggregation="token_mean", replace=True)
    def mine(tokens):
        good = -tokens.advantages
        losses = TokenLosses(good, good, {})
        return losses._replace(**{part: spoil(good)})

    with pytest.raises(ValueError, match=rf"objective 'mine' returned {part} .*, not float.* \[N"):
        mine(current_logprobs(BATCH), BATCH, GRPO)
