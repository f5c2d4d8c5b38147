"""No option of a method takes a value that would make a wrong number in silence.

One rule for all: a truth value is no number, a number is no flag, numpy's scalars are what they
are, a text is neither, and a refusal names option, value and range.
"""

import inspect
import math
import re
from fractions import Fraction

import numpy
import pytest
import torch
from batches import current_logprobs, make_batch

from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.credit.gates import decision_turns, update_reference
from turncredit.logprobs import from_hidden, logprobs_and_entropies
from turncredit.methods import option_names
from turncredit.objectives import (
    OBJECTIVES,
    aggregate,
    kl_estimates,
    kl_in_rewards,
    kl_penalty,
    ppo_clip,
)
from turncredit.option_ranges import RANGES, check_choice, check_range, plain
from turncredit.signals import (
    clip_fractions_by_sign,
    ratio_columns,
    small_spread_groups,
    turn_clip_fractions,
    turn_divergences,
    turn_outside_shares,
)

CASES = [
    (table, name, option)
    for table in (BASES, TURN_WEIGHTS, OBJECTIVES)
    for name in table
    for option in option_names(table[name])
]
UNBOUNDED = {"floor", "limit", "min_spread", "clip_high"}
"""A threshold that nothing can reach is an answer."""
FLAGS = (True, False, numpy.True_, numpy.False_)
BATCH = make_batch([[2, 1], [1, 3]], rewards=[0.0, 1.0])


def default(table, name, option):
    return inspect.signature(table[name]).parameters[option].default


def of_type(*types):
    found = [case for case in CASES if type(default(*case)) in types]
    return pytest.mark.parametrize(("table", "name", "option"), found)


def call(table, name, **options):
    if name == "high_is_turns":
        options["logprobs"] = current_logprobs(BATCH)
    if table is BASES:
        return table[name](BATCH, **options)
    base = BASES["grpo"](BATCH)
    if table is TURN_WEIGHTS:
        return table[name](BATCH, base, **options)
    return table[name](current_logprobs(BATCH), BATCH, base, **options)[0]


def test_every_option_has_one_of_the_types_tested_here():
    """Those without a default value: tensors, generators, options of another base, and numbers."""
    other = {case[2] for case in CASES if type(default(*case)) not in (int, float, bool, str)}
    tensors = {"base_options", "reference", "logprobs", "generator"}
    assert other == tensors | {option for _, _, option in OPTIONAL_NUMBERS}


OPTIONAL_NUMBERS = [
    case
    for case in CASES
    if case[2] in {"factor", "dual_clip", "upper_cap", "total_tokens", "total_sequences"}
    or case[2] == "max_length"
]
"""None: not used."""


@pytest.mark.parametrize(("table", "name", "option"), OPTIONAL_NUMBERS)
def test_numbers_that_may_be_missing_refuse_what_is_none(table, name, option):
    for value in (math.nan, -1.0, "0.5", [1.0], torch.tensor(2.0), *FLAGS):
        with pytest.raises(ValueError, match=rf"{option} is .*; it must be "):
            call(table, name, **{option: value})


@of_type(int, float)
def test_numbers_refuse_what_is_none(table, name, option):
    infinite = () if option in UNBOUNDED else (math.inf,)
    for value in (math.nan, -math.inf, "0.5", None, [1.0], 10**400, *infinite, *FLAGS):
        said = re.escape(f"{option} is {plain(value)!r}; it must be ")
        with pytest.raises(ValueError, match=said):
            call(table, name, **{option: value})


@of_type(int)
def test_counts_are_whole_numbers_from_one(table, name, option):
    for value in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"{option} is {value}; it must be a whole number"):
            call(table, name, **{option: value})


@of_type(float)
def test_numbers_may_be_whole(table, name, option):
    value = {"c": 0.5, "clip_low": 0}.get(option, 1)
    assert call(table, name, **{option: value}).isfinite().all()


@of_type(bool)
def test_flags_are_true_or_false(table, name, option):
    """A "false" from a file would count as true."""
    for value in ("false", 0, 1, 1.0, None, numpy.int64(1)):
        said = re.escape(f"{option} is {plain(value)!r}; it must be True or False")
        with pytest.raises(ValueError, match=said):
            call(table, name, **{option: value})
    for value in (True, False):
        assert torch.equal(*(call(table, name, **{option: v}) for v in (value, numpy.bool_(value))))


@of_type(str)
def test_choices_are_listed(table, name, option):
    for value in ("", "zzz", None, 3, True):
        with pytest.raises(ValueError, match=rf"unknown \w+ {re.escape(repr(value))}; there are: "):
            call(table, name, **{option: value})


@pytest.mark.parametrize("base", [name for name in BASES if "eps" in option_names(BASES[name])])
def test_a_negative_epsilon_is_refused(base):
    """With minus the standard deviation it would divide by 0 or turn the sign."""
    with pytest.raises(ValueError, match=r"eps is -1\.0; it must be a finite number of at least 0"):
        BASES[base](make_batch([[1], [1]], rewards=[0.0, 1.0]), eps=-1.0)


@pytest.mark.parametrize(
    "name", [n for n in TURN_WEIGHTS if "temperature" in option_names(TURN_WEIGHTS[n])]
)
@pytest.mark.parametrize("temperature", [0, 1e3, 1e300])
def test_no_temperature_overflows(name, temperature):
    """exp(temperature * H~) by itself is infinite from 710 on; the mean of a group stays 1."""
    batch = make_batch([[2, 1], [1, 3]], entropies=[[0.1, 0.9], [0.5, 0.3]])
    weights = TURN_WEIGHTS[name](batch, BASES["grpo"](batch), temperature=temperature)
    assert weights.isfinite().all()
    if name.startswith("aem"):
        assert weights.mean() == pytest.approx(1.0)


@of_type(int, float)
def test_numpy_scalars_give_the_bits_of_the_number(table, name, option):
    """Computed with as they are, minus an unsigned 1 would be 255 and a float16 lose digits."""
    scalars = [numpy.uint8(1), numpy.int64(1)]
    if type(default(table, name, option)) is float:
        scalars += [numpy.float16(0.3), numpy.float32(0.3), numpy.float64(0.3)]
    for scalar in scalars:
        try:
            expected = call(table, name, **{option: scalar.item()})
        except ValueError as refusal:
            with pytest.raises(ValueError, match=rf"{option} is .*; it must be "):
                call(table, name, **{option: scalar})
            assert option in str(refusal)
        else:
            assert torch.equal(call(table, name, **{option: scalar}), expected)


def test_kinds_of_numbers():
    check_range("m", "share", gamma=numpy.float32(0.5))
    check_range("m", "count", k=numpy.int64(3))
    for value in (3.0, numpy.float32(3), True, numpy.True_, "3"):
        said = re.escape(f"m: k is {value!r}; it must be a whole number of at least 1")
        with pytest.raises(ValueError, match=said):
            check_range("m", "count", k=value)
    for value in (torch.tensor(0.5), numpy.array(0.5), Fraction(1, 2), 0.5j):
        said = re.escape(f"m: gamma is {value!r}; it must be a number in 0 .. 1")
        with pytest.raises(ValueError, match=said):
            check_range("m", "share", gamma=value)


def test_plain_numbers_are_pythons():
    scalars = [numpy.float16(0.5), numpy.uint8(3), numpy.True_, numpy.longdouble(2)]
    assert [(type(plain(value)), plain(value)) for value in scalars] == [
        (float, 0.5), (int, 3), (bool, True), (float, 2.0),
    ]  # fmt: skip
    for value in ("x", None, 3, torch.ones(1), numpy.ones(2)):
        assert plain(value) is value


def test_a_choice_is_a_text():
    """`True in ("a", 1)` and a tensor compared with a text must not get this far."""
    for value in (1, True, None, ["a"], torch.ones(2), numpy.array(["a", "b"])):
        with pytest.raises(ValueError, match=r"m: unknown side .*; there are: a, b"):
            check_choice("m", "side", value, ("a", "b"))


LOGITS, IDS = torch.zeros(2, 3), torch.tensor([0, 2])
LOGPROBS = current_logprobs(BATCH)
FUNCTIONS = {
    "decision_turns": (lambda **o: decision_turns(BATCH, **o), {"k", "c", "floor"}),
    "update_reference": (
        lambda **o: update_reference(torch.empty(0), BATCH, **o),
        {"k", "momentum"},
    ),
    "ppo_clip": (
        lambda **o: ppo_clip(LOGPROBS, BATCH, LOGPROBS, **o)[0],
        {"clip_low", "clip_high", "dual_clip", "max_length"},
    ),
    "aggregate": (
        lambda **o: aggregate(LOGPROBS, BATCH.response_mask, mode="seq_mean_token_sum_norm", **o),
        {"max_length", "total_tokens", "total_sequences"},
    ),
    "kl_estimates": (lambda **o: kl_estimates(LOGPROBS, BATCH.ref_logprobs, **o), {"limit"}),
    "kl_penalty": (lambda **o: kl_penalty(LOGPROBS, BATCH, **o)[0], {"limit", "total_tokens"}),
    "kl_in_rewards": (lambda **o: kl_in_rewards(BATCH, **o), {"coefficient"}),
    "logprobs_and_entropies": (
        lambda **o: logprobs_and_entropies(LOGITS, IDS, **o)[0],
        {"temperature"},
    ),
    "from_hidden": (
        lambda **o: from_hidden(LOGITS, torch.eye(3), IDS, **o)[0],
        {"temperature", "chunk"},
    ),
}
"""What is called by itself, not through a table, and the numbers it takes."""


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, o) for name, (_, options) in FUNCTIONS.items() for o in sorted(options)],
)
def test_the_rule_holds_outside_the_tables(name, option):
    function, _ = FUNCTIONS[name]
    for value in (math.nan, "1", [1.0], -1, torch.tensor(1), *FLAGS):
        if (name, option) == ("decision_turns", "c") and value == -1:
            continue  # a multiple may be negative
        with pytest.raises(ValueError, match=rf"^\w+: {option} is .*; it must be a "):
            function(**{option: value})
    needed = {"max_length": 2} if name == "aggregate" else {}
    number = 2 if option in {"dual_clip", "chunk", "max_length"} else 1
    scalar = numpy.float16(0.3) if option in {"momentum", "clip_low"} else numpy.uint8(number)
    found, expected = (function(**(needed | {option: v})) for v in (scalar, scalar.item()))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", RANGES)
def test_every_kind_refuses_nan(kind):
    with pytest.raises(ValueError, match="x is nan"):
        check_range("m", kind, x=math.nan)


# --- options of measurements

MEASUREMENTS = [
    (function, option)
    for function in (
        turn_outside_shares,
        turn_clip_fractions,
        clip_fractions_by_sign,
        ratio_columns,
        small_spread_groups,
        turn_divergences,
    )
    for option, parameter in inspect.signature(function).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
]


@pytest.mark.parametrize(("function", "option"), MEASUREMENTS)
def test_an_option_of_a_measurement_is_refused_as_those_of_methods_are(function, option):
    """One wording everywhere: who, which option, the value, and what it must be."""
    batch = BATCH.replace(ref_logprobs=BATCH.old_logprobs)
    given = {"logprobs": current_logprobs(batch), "advantages": BASES["grpo"](batch)}
    needed = [given[n] for n in inspect.signature(function).parameters if n in given]
    named = type(inspect.signature(function).parameters[option].default) is str
    for value in ("row", None, True) if named else (-0.1, math.nan, True, "0.2", None):
        said = rf"\w+: unknown {option} " if named else rf"\w+: {option} is .*; it must be a number"
        with pytest.raises(ValueError, match=said):
            function(batch, *needed, **{option: value})
