"""What only a CUDA device can show; everywhere else these tests are skipped."""

import pytest
import torch

from turncredit.estimates import available_memory
from turncredit.policies.model_sources import require_device
from turncredit.rollout.lockstep import sample

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]


@pytest.mark.parametrize("size", [300, 151_936])
def test_a_device_draws_the_tokens_that_the_cpu_draws(size):
    """A parallel sum adds in another order: in float64, nothing of that reaches a token."""
    stream = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(64, size, generator=stream)
    uniforms = torch.rand(64, generator=stream, dtype=torch.float64)
    here, _ = sample(logits, uniforms)
    there, _ = sample(logits.cuda(), uniforms.cuda())
    assert torch.equal(here, there.cpu())


def test_a_likely_token_at_the_end_is_drawn_as_often_as_it_is_likely():
    logits = torch.full((1, 151_936), 0.0).cuda()
    logits[0, -1] = 10.0
    share = torch.softmax(logits.double(), -1)[0, -1].item()
    uniforms = torch.rand(20_000, dtype=torch.float64, device="cuda")
    ids, _ = sample(logits.expand(2_000, -1), uniforms[:2_000])
    found = (ids == 151_935).double().mean().item()
    assert abs(found - share) < 5 * (share * (1 - share) / 2_000) ** 0.5


def test_memory_and_devices_are_those_of_cuda():
    free, total = torch.cuda.mem_get_info()
    assert 0 < available_memory("cuda") <= total
    assert abs(available_memory("cuda:0") - free) < 2**30
    require_device("cuda")
    with pytest.raises(ValueError, match="torch sees"):
        require_device(f"cuda:{torch.cuda.device_count()}")
