"""The warm start: names change places one for one, and imitation learns what the script wrote."""

import random

import pytest
import torch
from play import (
    RESEARCH,
    SMALL,
    global_streams,
    policy,
    questions,
    synthetic_environment,
    vocabulary,
)

from turncredit.batching import from_trajectories
from turncredit.demonstrations import demonstrate
from turncredit.warm_start import (
    WarmStartSettings,
    imitation_loss,
    schedule,
    swap_names,
    warm_start,
)

WORDS = vocabulary()
NAME_IDS = torch.tensor([WORDS.id(name) for name in SMALL.names])
SETTINGS = WarmStartSettings(steps=12, batch=8, learning_rate=1.0e-2, swap_names=0.5)


def demonstrations(step: int):
    stream, environment = random.Random(step), synthetic_environment()
    return [
        demonstrate(environment, WORDS, asked, SMALL.names, RESEARCH, stream, 64)
        for asked in questions(SETTINGS.batch, step)
    ]


def swapped(token_ids, share, seed=0):
    stream = torch.Generator().manual_seed(seed)
    return swap_names(token_ids, NAME_IDS, len(WORDS), share, stream)


def test_names_are_exchanged_one_for_one_and_all_else_stays():
    token_ids = torch.arange(len(WORDS)).repeat(40, 1)
    names = torch.zeros(len(WORDS), dtype=torch.bool)
    names[NAME_IDS] = True
    result = swapped(token_ids, 1.0)
    assert torch.equal(result[:, ~names], token_ids[:, ~names])
    assert torch.equal(result.sort(1).values, token_ids), "a bijection in every row"
    assert len({tuple(row) for row in result.tolist()}) == 40, "one of its own for every row"
    assert (result[:, names] != token_ids[:, names]).float().mean() > 0.8


def test_the_share_of_rows_is_the_one_asked_for():
    token_ids = torch.arange(len(WORDS)).repeat(2000, 1)
    assert torch.equal(swapped(token_ids, 0.0), token_ids)
    changed = (swapped(token_ids, 0.3) != token_ids).any(1).float().mean().item()
    assert abs(changed - 0.3) < 5 * (0.3 * 0.7 / 2000) ** 0.5


def test_the_same_name_stays_the_same_name_within_a_row():
    token_ids = torch.cat([NAME_IDS, NAME_IDS]).repeat(5, 1)
    result = swapped(token_ids, 1.0)
    assert torch.equal(result[:, : len(NAME_IDS)], result[:, len(NAME_IDS) :])


def test_the_learning_rate_rises_to_its_peak_then_falls_for_good():
    values = [schedule(step / 1000) for step in range(1000)]
    peak = values.index(max(values))
    assert (peak, values[peak]) == (20, 1.0)
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)
    assert min(values) >= 0.05


def trained(seed=0, model=None):
    model, losses = model or policy(), []
    warm_start(
        model,
        WORDS,
        SMALL.names,
        demonstrations,
        SETTINGS,
        seed=seed,
        report=lambda step, loss: losses.append((step, loss)),
    )
    return model, losses


def test_a_warm_start_learns_repeats_and_touches_no_global_stream():
    held_out = demonstrations(10_000)
    batch = from_trajectories(held_out, group_ids=range(len(held_out)))
    untrained = imitation_loss(policy(), batch).item()
    model, before = policy(), global_streams()
    _, losses = trained(model=model)
    assert global_streams() == before
    assert [step for step, _ in losses] == list(range(SETTINGS.steps))
    assert imitation_loss(model, batch).item() < 0.75 * untrained
    again, same_losses = trained()
    assert losses == same_losses
    for left, right in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)
    assert trained(seed=1)[1] != losses, "the seed decides which names are swapped"


def test_a_name_outside_the_vocabulary_is_named():
    with pytest.raises(KeyError, match="zebra"):
        warm_start(
            policy(),
            WORDS,
            ["zebra"],
            demonstrations,
            SETTINGS,
            seed=0,
            report=lambda step, loss: None,
        )
