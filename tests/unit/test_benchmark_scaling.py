"""The benchmark of the update counts the products that torch is asked for, by either library."""

import sys

import pytest
import torch

from turncredit import paths
from turncredit.policies import products

sys.path.append(str(paths.repository() / "benchmarks"))
import scaling


@pytest.mark.parametrize("worth", [0, 2**62])
def test_a_product_counts_alike_whoever_makes_it(worth, monkeypatch):
    monkeypatch.setattr(products, "WORTH_A_CALL", worth)
    states, weight = torch.randn(30, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    with scaling.Products() as seen:
        products.linear(states, weight).square().sum().backward()
    counted = sum(n * scaling.flops(*product) for product, n in seen.seen.items())
    assert counted == 3 * 2 * 30 * 8 * 5
    scaling.replay(seen.seen)()


def test_a_batched_product_counts_every_batch():
    with scaling.Products() as seen:
        torch.bmm(torch.randn(4, 2, 3), torch.randn(4, 3, 5))
    assert [scaling.flops(*product) for product in seen.seen] == [2 * 4 * 2 * 3 * 5]
