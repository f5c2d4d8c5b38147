"""Checkpoints: bit for bit, or a sentence that names the file; kill -9 leaves the old one."""

import os
import random
import signal
import time

import pytest
import torch
from play import TINY, policy

from turncredit import checkpoints
from turncredit.checkpoints import (
    load_checkpoint,
    load_newest,
    previous_checkpoint,
    save_checkpoint,
)
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


# --- the previous one


def saved_twice(folder):
    """Two checkpoints, of one step and of two; returns the newest."""
    path, (model, optimiser) = folder / "c.safetensors", trained()
    save_checkpoint(path, model, optimiser, 1)
    with torch.no_grad():
        model.embedding.weight.add_(1)
    save_checkpoint(path, model, optimiser, 2)
    return path


def no_links(*paths):
    raise OSError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_the_checkpoint_that_is_replaced_stays_as_the_previous_one(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(checkpoints.os, "link", no_links)
    path = saved_twice(tmp_path)
    older, newer = fresh(), fresh()
    assert load_checkpoint(previous_checkpoint(path), *older) == 1
    assert load_checkpoint(path, *newer) == 2
    assert equal(everything(*older), everything(*trained()))
    assert not equal(everything(*newer), everything(*older))
    save_checkpoint(path, *trained(), 3)
    assert load_checkpoint(previous_checkpoint(path), *fresh()) == 2
    assert {p.name for p in tmp_path.iterdir()} == {"c.safetensors", "c.previous.safetensors"}


def test_a_first_checkpoint_has_no_previous_one(tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", *fresh(), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


def test_the_newest_is_taken_unless_it_is_damaged(tmp_path):
    path = saved_twice(tmp_path)
    assert load_newest(path, *fresh()) == (2, [])
    path.write_bytes(path.read_bytes()[:-5])
    pair = fresh()
    step, complaints = load_newest(path, *pair)
    assert step == 1
    assert [path.name in text for text in complaints] == [True]
    assert equal(everything(*pair), everything(*trained()))


def test_a_newest_that_was_deleted_is_no_damage(tmp_path):
    path = saved_twice(tmp_path)
    path.unlink()
    assert load_newest(path, *fresh()) == (1, [])


def test_with_both_damaged_both_are_named_and_nothing_is_changed(tmp_path):
    path, pair = saved_twice(tmp_path), fresh()
    before = {name: value.clone() for name, value in everything(*pair).items()}
    for damaged in (path, previous_checkpoint(path)):
        damaged.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"/c\.safetensors: .*/c\.previous\.safetensors: "):
        load_newest(path, *pair)
    assert equal(everything(*pair), before)
    with pytest.raises(ValueError, match=r"absent: no such checkpoint"):
        load_newest(tmp_path / "absent", *fresh())


# --- whose it is

MINE = {"params_hash": "of seed 0", "code_hash": "c"}
OTHERS = [MINE | {"params_hash": "of seed 1"}, MINE | {"code_hash": "d"}, {}, None]


def saved_for(path, identity):
    save_checkpoint(path, *trained(), 3, identity=identity)
    return path


def test_a_checkpoint_is_loaded_by_its_own_run_and_by_who_does_not_ask(tmp_path):
    path = saved_for(tmp_path / "c.safetensors", MINE)
    assert load_checkpoint(path, *fresh(), identity=MINE) == 3
    assert load_newest(path, *fresh(), identity=dict(reversed(MINE.items()))) == (3, [])
    assert load_checkpoint(path, *fresh()) == 3
    turned = saved_for(tmp_path / "t.safetensors", dict(reversed(MINE.items())))
    assert turned.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_run_of_the_same_shape_is_refused_and_nothing_is_changed(
    tmp_path, other
):
    path, pair = saved_for(tmp_path / "c.safetensors", other), fresh()
    before = {name: value.clone() for name, value in everything(*pair).items()}
    with pytest.raises(ValueError, match=r"/c\.safetensors: the checkpoint of another run") as e:
        load_checkpoint(path, *pair, identity=MINE)
    assert "\n" not in str(e.value)
    named = set((other or {}).values()) - set(MINE.values())
    assert all(repr(value) in str(e.value) for value in named)
    assert equal(everything(*pair), before)


@pytest.mark.parametrize("other", OTHERS)
def test_another_runs_checkpoint_is_no_damage_to_go_on_behind(tmp_path, other):
    """The previous one is in order, but going on from it would overwrite the other run's."""
    path = saved_for(tmp_path / "c.safetensors", MINE)
    save_checkpoint(path, *trained(), 4, identity=other)
    with pytest.raises(ValueError, match=r"/c\.safetensors: the checkpoint of another run"):
        load_newest(path, *fresh(), identity=MINE)


# --- extra tensors


def extras() -> dict[str, torch.Tensor]:
    """What a training may carry along: of every kind, one without shape and one of half floats."""
    return {
        "running.mean": torch.tensor(1 / 3, dtype=torch.float64),
        "reference.weight": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
        "seen": torch.tensor([True, False]),
    }


def test_extra_tensors_are_restored_in_place_bit_for_bit(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, *trained(), 3, extra=extras())
    restored = {name: torch.zeros_like(value) for name, value in extras().items()}
    places = {name: value.data_ptr() for name, value in restored.items()}
    assert load_checkpoint(path, *fresh(), extra=restored) == 3
    assert equal(restored, extras())
    assert {name: value.data_ptr() for name, value in restored.items()} == places


def test_extra_tensors_that_a_fresh_training_has_not_yet_are_added(tmp_path):
    """What a method keeps of earlier steps has no shape before the first of them."""
    path, memory = tmp_path / "c.safetensors", {"seen": torch.tensor([False, False])}
    save_checkpoint(path, *trained(), 3, extra=extras())
    load_checkpoint(path, *fresh(), extra=memory)
    assert equal(memory, extras())


def test_extra_tensors_that_nobody_asks_for_are_not_dropped_in_silence(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, *trained(), 3, extra={"reference": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"c\.safetensors: .*extra\.reference has nowhere to go"):
        load_checkpoint(path, *fresh())
    with pytest.raises(ValueError, match=r"extra\.reference has nowhere to go"):
        load_newest(path, *fresh())


def test_without_extra_tensors_a_checkpoint_is_what_it_was(saved, tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", *trained(), 12, extra={})
    assert (tmp_path / "c.safetensors").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"other": torch.zeros(1)}, r"extra\.other is missing"),
        ({"seen": torch.ones(3, dtype=torch.bool)}, r"extra\.seen is .*\(2,\)\), not .*\(3,\)"),
        ({"seen": torch.ones(2)}, r"extra\.seen is \(torch.bool, .*not \(torch.float32"),
    ],
)
def test_other_extra_tensors_than_those_saved_are_refused_and_nothing_is_changed(
    tmp_path, asked, complaint
):
    path, pair = tmp_path / "c.safetensors", fresh()
    save_checkpoint(path, *trained(), 3, extra=extras())
    wanted = {name: torch.zeros_like(value) for name, value in extras().items()} | asked
    before = {name: value.clone() for name, value in (everything(*pair) | wanted).items()}
    with pytest.raises(ValueError, match=rf"c\.safetensors: not a usable .*{complaint}"):
        load_checkpoint(path, *pair, extra=wanted)
    assert equal(everything(*pair) | wanted, before)


def test_kill_9_while_saving_leaves_a_whole_checkpoint_and_a_whole_previous_one(tmp_path):
    """A child saves over and over; whenever it is killed, what lies there loads."""
    path, pair = tmp_path / "c.safetensors", trained()
    save_checkpoint(path, *pair, 0)
    stream, found = random.Random(0), {0}
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
        newest = load_checkpoint(path, *fresh())
        before, found = found, {newest}
        if previous_checkpoint(path).exists():
            previous = load_checkpoint(previous_checkpoint(path), *fresh())
            # A child killed before its second save has a previous one of the child before it.
            assert previous in {newest, newest - 1} | before
            found.add(previous)
