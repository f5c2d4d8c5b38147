"""Checkpoints: bit for bit, or a sentence that names the file; kill -9 leaves the old one."""

import os
import random
import signal
import time

import pytest
import torch
from play import TINY, policy

from turncredit.checkpoints import load_checkpoint, save_checkpoint
from turncredit.policies.tiny import TinySettings


def trained(seed: int = 0, settings: TinySettings = TINY):
    """A policy and an optimiser with two steps of moments."""
    model = policy(seed, settings)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    token_ids = torch.arange(12).view(2, 6)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 0] = False
    for _ in range(2):
        optimiser.zero_grad()
        model.score(token_ids, mask)[0].sum().backward()
        optimiser.step()
    return model, optimiser


def fresh(settings: TinySettings = TINY):
    model = policy(5, settings)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def everything(model, optimiser):
    values = dict(model.state_dict())
    for index, state in optimiser.state_dict()["state"].items():
        values |= {f"{index}.{name}": value for name, value in state.items()}
    return values


def equal(left: dict, right: dict) -> bool:
    same = left.keys() == right.keys()
    return same and all(
        torch.equal(left[n], right[n]) and left[n].dtype == right[n].dtype for n in left
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "checkpoint.safetensors"
    save_checkpoint(path, *trained(), 12)
    return path


def test_a_round_trip_is_exact_to_the_bit_with_the_optimiser(saved, tmp_path):
    pair = fresh()
    assert load_checkpoint(saved, *pair) == 12
    assert equal(everything(*pair), everything(*trained()))
    save_checkpoint(tmp_path / "again.safetensors", *pair, 12)
    assert load_checkpoint(tmp_path / "again.safetensors", *fresh()) == 12


def test_an_optimiser_without_moments_travels_too(tmp_path):
    save_checkpoint(tmp_path / "new.safetensors", *fresh(), 0)
    pair = trained()
    assert load_checkpoint(tmp_path / "new.safetensors", *pair) == 0
    assert equal(everything(*pair), everything(*fresh()))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 500, -1, -1000])
def test_a_truncated_file_is_named(saved, tmp_path, length):
    path = tmp_path / "truncated.safetensors"
    path.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"truncated\.safetensors: not a usable checkpoint"):
        load_checkpoint(path, *fresh())


def flip_is_harmless(whole: bytes, path, place: int, bit: int, pair) -> bool:
    """Whether the damaged file is refused by name, or else loads exactly what was saved."""
    damaged = bytearray(whole)
    damaged[place] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        step = load_checkpoint(path, *pair)
    except ValueError as error:
        return path.name in str(error)
    return step == 12 and equal(everything(*pair), everything(*trained()))


def test_a_flipped_bit_in_the_contents_is_noticed(saved, tmp_path):
    whole, stream, pair = saved.read_bytes(), random.Random(0), fresh()
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(60):
        place, bit = stream.randrange(header, len(whole)), stream.randrange(8)
        assert flip_is_harmless(whole, tmp_path / "flipped", place, bit, pair), (place, bit)


def test_a_flipped_bit_in_the_header_is_noticed(saved, tmp_path):
    """In names, shapes and types here and there; in the metadata, such as the step, everywhere."""
    whole, stream, pair = saved.read_bytes(), random.Random(1), fresh()
    header = 8 + int.from_bytes(whole[:8], "little")
    metadata = range(whole.index(b"__metadata__"), whole.index(b"}") + 1)
    flips = [(place, stream.randrange(8)) for place in range(0, header, 17)]
    flips += [(place, bit) for place in metadata for bit in (0, 1, 2)]
    for place, bit in flips:
        assert flip_is_harmless(whole, tmp_path / "flipped", place, bit, pair), (
            f"bit {bit} of byte {place}: {whole[place - 12 : place + 6]}"
        )


def test_equal_states_give_equal_bytes(saved, tmp_path):
    for number in range(6):
        path = tmp_path / f"{number}.safetensors"
        save_checkpoint(path, *trained(), 12)
        assert path.read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("other", [TinySettings(32, 2, 2, 64), TinySettings(16, 1, 2, 64)])
def test_a_checkpoint_of_another_policy_is_refused_by_name(saved, other):
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors: not a usable checkpoint"):
        load_checkpoint(saved, *fresh(other))


def test_a_refused_checkpoint_leaves_policy_and_optimiser_as_they_were(tmp_path):
    """A caller that goes on from here must not go on from half a checkpoint."""
    model, optimiser = trained()
    path = tmp_path / "half.safetensors"
    state = optimiser.state_dict()["state"]
    for index in list(state):
        if index == 3:
            state[index]["exp_avg"] = torch.zeros(2)
    pair = fresh()
    before = {name: value.clone() for name, value in everything(*pair).items()}

    class Odd:
        def state_dict(self):
            return {"state": state}

    save_checkpoint(path, model, Odd(), 3)
    with pytest.raises(ValueError, match=r"half\.safetensors"):
        load_checkpoint(path, *pair)
    assert equal(everything(*pair), before)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.safetensors"):
        load_checkpoint(tmp_path / "absent.safetensors", *fresh())


def test_kill_9_while_saving_leaves_a_whole_checkpoint(tmp_path):
    """A child saves over and over; whenever it is killed, what lies there loads."""
    path, pair = tmp_path / "c.safetensors", trained()
    save_checkpoint(path, *pair, 0)
    stream = random.Random(0)
    for _ in range(8):
        child = os.fork()
        if child == 0:
            step = 0
            while True:
                step += 1
                save_checkpoint(path, *pair, step)
        time.sleep(0.005 + 0.03 * stream.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert load_checkpoint(path, *fresh()) >= 0
