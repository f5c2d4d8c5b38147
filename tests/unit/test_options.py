"""No option of a base or a turn weight takes a value that would make a wrong number in silence."""

import inspect
import math

import pytest
import torch
from batches import current_logprobs, make_batch

from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.credit.options import RANGES, check_range
from turncredit.methods import option_names

CASES = [
    (table, name, option)
    for table in (BASES, TURN_WEIGHTS)
    for name in table
    for option in option_names(table[name])
]
UNBOUNDED = {"floor", "limit", "min_spread"}
"""A threshold that nothing can reach is an answer."""


def default(table, name, option):
    return inspect.signature(table[name]).parameters[option].default


def of_type(*types):
    found = [case for case in CASES if type(default(*case)) in types]
    return pytest.mark.parametrize(("table", "name", "option"), found)


def call(table, name, **options):
    batch = make_batch([[2, 1], [1, 3]], rewards=[0.0, 1.0])
    if name == "high_is_turns":
        options["logprobs"] = current_logprobs(batch)
    base = () if table is BASES else (BASES["grpo"](batch),)
    return table[name](batch, *base, **options)


def test_every_option_has_one_of_the_types_tested_here():
    """Those without a default value: tensors, generators, options of another base, a factor."""
    other = {case[2] for case in CASES if type(default(*case)) not in (int, float, bool, str)}
    assert other == {"base_options", "reference", "logprobs", "generator", "factor"}


@of_type(int, float)
def test_numbers_refuse_what_is_none(table, name, option):
    infinite = () if option in UNBOUNDED else (math.inf,)
    for value in (math.nan, -math.inf, "0.5", None, [1.0], *infinite):
        with pytest.raises(ValueError, match=rf"{option} is .*; it must "):
            call(table, name, **{option: value})


@of_type(int)
def test_counts_are_whole_numbers_from_one(table, name, option):
    for value in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"{option} is {value}; it must be a whole number"):
            call(table, name, **{option: value})


@of_type(float)
def test_numbers_may_be_whole(table, name, option):
    value = 0.5 if name in ("suffix_mask", "random_suffix") and option == "c" else 1
    assert call(table, name, **{option: value}).isfinite().all()


@of_type(bool)
def test_flags_are_true_or_false(table, name, option):
    """A "false" from a file would count as true."""
    for value in ("false", 0, None):
        with pytest.raises(ValueError, match=f"{option} is {value!r}; it must be True or False"):
            call(table, name, **{option: value})


@of_type(str)
def test_choices_are_listed(table, name, option):
    for value in ("", "zzz", None, 3):
        with pytest.raises(ValueError, match=rf"unknown \w+ {value!r}; there are: "):
            call(table, name, **{option: value})


@pytest.mark.parametrize("base", [name for name in BASES if "eps" in option_names(BASES[name])])
def test_a_negative_epsilon_is_refused(base):
    """With minus the standard deviation it would divide by 0 or turn the sign."""
    with pytest.raises(ValueError, match=r"eps is -1\.0; it must be at least 0 and finite"):
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


def test_numbers_of_other_libraries_are_numbers():
    numpy = pytest.importorskip("numpy", reason="a peer's numbers")
    check_range("m", "share", gamma=numpy.float32(0.5))
    check_range("m", "count", k=numpy.int64(3))
    with pytest.raises(ValueError, match=r"k is 3\.0; it must be a whole number"):
        check_range("m", "count", k=3.0)
    with pytest.raises(ValueError, match=r"gamma is tensor\(0.5000\)"):
        check_range("m", "share", gamma=torch.tensor(0.5))


@pytest.mark.parametrize("kind", RANGES)
def test_every_kind_refuses_nan(kind):
    with pytest.raises(ValueError, match="x is nan"):
        check_range("m", kind, x=math.nan)
