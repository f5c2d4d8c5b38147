"""The soft overlong penalty: its corners, its slope, its bounds."""

import pytest
import torch

from turncredit.reward_shaping import soft_overlong_penalty


def test_corners():
    lengths = torch.tensor([0, 79, 80, 81, 99, 100, 101, 5000])
    found = soft_overlong_penalty(lengths, max_length=100, cache_length=20)
    assert found.tolist() == pytest.approx([0, 0, 0, -0.05, -0.95, -1, -1, -1])
    assert found.dtype == torch.float32


def test_published_lengths_are_the_defaults():
    found = soft_overlong_penalty(torch.tensor([16384, 18432, 20480]))
    assert found.tolist() == [0, -0.5, -1]


def test_longer_is_never_better():
    found = soft_overlong_penalty(torch.arange(200), max_length=100, cache_length=37)
    assert (found.diff() <= 0).all()
    assert found.min() == -1


@pytest.mark.parametrize(("cache", "limit"), [(0, 10), (-1, 10), (11, 10), (1, 0)])
def test_impossible_lengths_are_named(cache, limit):
    message = f"cache_length is {cache}; it must lie in 1 .. max_length = {limit}"
    with pytest.raises(ValueError, match=message):
        soft_overlong_penalty(torch.tensor([1]), max_length=limit, cache_length=cache)
