"""The tiny policy scores a token alike wherever its row stands; vocabularies are exact."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from play import (
    ACTIONS,
    SMALL,
    TINY,
    coin_environment,
    global_streams,
    policy,
    questions,
    vocabulary,
)

from turncredit.batching import from_trajectories
from turncredit.policies.tiny import TinyPolicy, TinySettings, load_policy, save_policy
from turncredit.policies.vocabulary import PAD, Vocabulary, tag_vocabulary
from turncredit.rollout import lockstep
from turncredit.rollout.lockstep import sample
from turncredit.warm_start import imitation_loss

SIZE = len(vocabulary())


def ragged(rows: int = 7, longest: int = 40, seed: int = 0):
    """token_ids [rows, longest], a mask of about half of each row's own length, and the lengths."""
    stream = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(0, SIZE, (rows, longest), generator=stream)
    lengths = torch.randint(2, longest + 1, (rows,), generator=stream)
    lengths[0] = longest
    inside = torch.arange(longest) < lengths[:, None]
    mask = inside & (torch.rand(rows, longest, generator=stream) < 0.5)
    mask[:, 0], mask[:, 1] = False, True
    return token_ids, mask, lengths


# --- scoring


def reference_scores(model: TinyPolicy, token_ids, mask):
    """Log-probs and entropies row by row, without chunks, from the whole matrix of logits."""
    logprobs, entropies = torch.zeros(mask.shape), torch.zeros(mask.shape)
    for row in range(len(token_ids)):
        table = torch.log_softmax(model.logits(model.hidden(token_ids[row : row + 1]))[0], -1)
        for column in mask[row].nonzero()[:, 0].tolist():
            logprobs[row, column] = table[column - 1, token_ids[row, column]]
            entropies[row, column] = -(table[column - 1].exp() * table[column - 1]).sum()
    return logprobs, entropies


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_scores_are_those_of_the_plain_softmax_and_0_elsewhere(rows):
    token_ids, mask, _ = ragged(rows, 20)
    model = policy()
    with torch.no_grad():
        scored = model.score(token_ids, mask)
        expected = reference_scores(model, token_ids, mask)
    for ours, plain in zip(scored, expected, strict=True):
        assert (ours - plain).abs().max() < 1e-5
        assert (ours[~mask] == 0).all()
    assert (scored[0][mask] < 0).all()
    assert (scored[1][mask] > 0).all()


def close(left, right) -> bool:
    """Within 1e-6 of the larger of 1 and the value: a few roundings of float32."""
    return torch.allclose(left, right, atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_a_row_scores_alike_alone_padded_and_beside_other_rows():
    token_ids, mask, lengths = ragged(40)
    model = policy()
    together = model.score(token_ids, mask)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    permuted = model.score(token_ids[order], mask[order])
    for kind in (0, 1):
        assert close(permuted[kind], together[kind][order])
        for row, length in enumerate(lengths.tolist()):
            alone = model.score(token_ids[row : row + 1, :length], mask[row : row + 1, :length])
            assert close(alone[kind][0], together[kind][row, :length])


@torch.no_grad()
def test_what_stands_in_the_padding_changes_nothing():
    token_ids, mask, lengths = ragged(20)
    padding = torch.arange(token_ids.shape[1]) >= lengths[:, None]
    other = torch.where(padding, (token_ids + 5) % SIZE, token_ids)
    for ours, same in zip(
        policy().score(token_ids, mask), policy().score(other, mask), strict=True
    ):
        assert torch.equal(ours, same)


@torch.no_grad()
def test_rows_without_any_sampled_token_score_0():
    token_ids, mask, _ = ragged(3)
    none = torch.zeros_like(mask)
    assert all((scores == 0).all() for scores in policy().score(token_ids, none))
    mixed = policy().score(token_ids.repeat(2, 1), torch.cat([mask, none]))
    for ours, alone in zip(mixed, policy().score(token_ids, mask), strict=True):
        assert (ours[:3] - alone).abs().max() < 1e-6
        assert (ours[3:] == 0).all()


def test_a_first_token_under_the_mask_is_refused():
    token_ids, mask, _ = ragged(3)
    mask[1, 0] = True
    with pytest.raises(ValueError, match="first token"):
        policy().score(token_ids, mask)


def test_only_logits_of_sampled_tokens_get_a_gradient():
    """An observation is read, but the policy is never taught to say it."""
    token_ids, mask, _ = ragged(20, 25)
    model = policy()
    logprobs, _ = model.score(token_ids, mask)
    logprobs.sum().backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]

    model.zero_grad()
    logits = model.logits(model.hidden(token_ids))
    logits.retain_grad()
    table = torch.log_softmax(logits[:, :-1], -1)
    picked = table.gather(2, token_ids[:, 1:, None])[..., 0]
    picked.masked_select(mask[:, 1:]).sum().backward()
    taught = logits.grad.abs().sum(-1)[:, :-1] > 0
    assert torch.equal(taught, mask[:, 1:])
    for gradient, parameter in zip(ours, model.parameters(), strict=True):
        assert torch.allclose(gradient, parameter.grad, atol=2e-4, rtol=1e-3)


def test_sign_of_influence():
    """Another sampled token changes the loss; so does what an observation says, but
    only through what is sampled after it."""
    token_ids, mask, _ = ragged(1, 20)
    mask[0, 10:] = False
    model = policy()
    base = model.score(token_ids, mask)[0]
    late = token_ids.clone()
    late[0, 10:] = (late[0, 10:] + 1) % SIZE
    assert torch.equal(model.score(late, mask)[0], base)
    early = token_ids.clone()
    early[0, 1] = (early[0, 1] + 1) % SIZE
    assert not torch.equal(model.score(early, mask)[0], base)


@torch.no_grad()
def test_decoding_in_lockstep_gives_the_hidden_states_of_one_pass_also_after_dropping_rows():
    token_ids, _, _ = ragged(5, TINY.max_tokens)
    model = policy()
    whole = model.hidden(token_ids)
    decoder = model.decoder(5)
    rows = torch.arange(5)
    for position in range(TINY.max_tokens):
        if position == 20:
            rows = torch.tensor([3, 0])
            decoder.keep(rows)
        hidden = decoder.step(token_ids[rows, position])
        assert (hidden - whole[rows, position]).abs().max() < 1e-5


# --- sampling


def test_samples_follow_the_distribution():
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.0, 0.2, 0.0])
    draws = 20_000
    uniforms = torch.rand(draws, generator=torch.Generator().manual_seed(0))
    logits = probabilities.clamp(min=1e-40).log().expand(draws, -1)
    ids, (logprobs, entropies) = sample(logits, uniforms)
    counts = torch.bincount(ids, minlength=6) / draws
    assert (counts[probabilities == 0] == 0).all()
    assert ((counts - probabilities).abs() < 5 * (0.25 / draws) ** 0.5).all()
    assert torch.allclose(logprobs, probabilities[ids].log(), atol=1e-5)
    known = probabilities[probabilities > 0]
    assert entropies[0] == pytest.approx(-(known * known.log()).sum().item(), abs=1e-5)


def test_a_token_is_drawn_by_where_the_uniform_number_falls():
    logits = torch.tensor([0.25, 0.25, 0.5]).log().expand(5, -1)
    ids, _ = sample(logits, torch.tensor([0.0, 0.2, 0.3, 0.6, 1 - 2**-24]))
    assert ids.tolist() == [0, 0, 1, 2, 2]


# --- weights


def test_equal_seeds_give_equal_policies_and_leave_the_global_streams_alone():
    before = global_streams()
    left, same, other = policy(1).state_dict(), policy(1).state_dict(), policy(2).state_dict()
    assert all(torch.equal(left[name], same[name]) for name in left)
    assert any(not torch.equal(left[name], other[name]) for name in left)
    assert global_streams() == before


def test_saving_and_loading_a_policy_is_exact(tmp_path):
    path = tmp_path / "p.safetensors"
    save_policy(policy(1), path)
    other = policy(2)
    load_policy(other, path)
    left, right = policy(1).state_dict(), other.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:-40], lambda b: b[:20], lambda b: b"junk" * 9]
)
def test_a_damaged_policy_file_is_named(tmp_path, damage):
    path = tmp_path / "damaged.safetensors"
    save_policy(policy(), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"damaged\.safetensors"):
        load_policy(policy(), path)


def test_one_flipped_bit_in_a_policy_file_is_noticed(tmp_path):
    """A warm start is kept in the cache for ever and decides every run that starts from it."""
    path = tmp_path / "flipped.safetensors"
    save_policy(policy(), path)
    whole = bytearray(path.read_bytes())
    whole[-100] ^= 64
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"flipped\.safetensors"):
        load_policy(policy(), path)


def test_a_policy_of_another_size_or_a_missing_file_is_named(tmp_path):
    path = tmp_path / "other.safetensors"
    save_policy(policy(settings=TinySettings(32, 2, 2, 64)), path)
    with pytest.raises(ValueError, match=r"other\.safetensors"):
        load_policy(policy(), path)
    with pytest.raises((ValueError, OSError), match=r"absent\.safetensors"):
        load_policy(policy(), tmp_path / "absent.safetensors")


@pytest.mark.parametrize(("width", "heads"), [(10, 4), (9, 3), (6, 2)])
def test_a_width_that_rotary_positions_cannot_use_is_refused(width, heads):
    with pytest.raises(ValueError, match=f"width {width}"):
        TinySettings(width, 1, heads, 8)


# --- vocabulary


@given(st.lists(st.sampled_from(vocabulary().entries[1:]), max_size=12))
def test_encoding_inverts_decoding_for_known_words(chosen):
    known = vocabulary()
    ids = known.encode(" ".join(chosen))
    assert [known.entries[index] for index in ids] == chosen
    assert known.encode(known.decode(ids)) == ids


def test_ids_follow_the_order_given_and_0_pads():
    known = Vocabulary(["b", "a", "b"])
    assert (known.entries, len(known), known.id("a")) == ((PAD, "b", "a"), 3, 2)


def test_an_unknown_word_is_named():
    with pytest.raises(KeyError, match="zebra"):
        vocabulary().encode("<search> zebra </search>")


def test_every_fixed_text_of_the_environment_is_known():
    known = tag_vocabulary(ACTIONS, SMALL.words)
    for text in ("none", "no results", "invalid action", "CORRECT", "UNCERTAIN", "WRONG"):
        assert known.encode(f"<information> {text} </information>")


def test_the_warm_start_loss_is_the_mean_over_sampled_tokens():
    from turncredit.records import Trajectory, Turn

    turn = Turn((5, 6), (0.0, 0.0), (0.0, 0.0), (7, 8, 9), "search")
    last = Turn((9,), (0.0,), (0.0,), (), "answer")
    one = Trajectory("q", (1, 2), (turn, last), 1.0, True, "answer")
    two = Trajectory("q", (1,), (last,), 0.0, False, "answer")
    batch = from_trajectories([one, two], group_ids=[0, 1])
    model = policy()
    logprobs, _ = reference_scores(model, batch.token_ids, batch.response_mask)
    assert imitation_loss(model, batch).item() == pytest.approx(
        -logprobs.sum().item() / 4, abs=1e-5
    )


@pytest.mark.parametrize("size", [300, 49_152, 151_936])
@pytest.mark.parametrize("share", [0.5, 1e-3, 1e-5])
def test_every_token_is_drawn_as_often_as_it_is_likely_down_to_the_last(size, share):
    """The middle of each token's own interval gives that token: the first one, and rare others.

    At 1 the float32 numbers are 6e-8 apart, and rare tokens of a large vocabulary closer.
    """
    logprobs = torch.full((size,), share / (size - 1), dtype=torch.float64)
    logprobs[0] = 1 - share
    logprobs = logprobs.log().float()
    exact = torch.log_softmax(logprobs, -1).exp().double()
    middles = (exact.cumsum(0) - exact / 2) / exact.sum()
    asked = torch.cat(
        [torch.arange(4), torch.arange(4, size, size // 40), torch.tensor([size - 1])]
    )
    ids, _ = sample(logprobs.expand(len(asked), -1), middles[asked])
    assert torch.equal(ids, asked)


def test_a_rollout_of_a_large_vocabulary_draws_finer_numbers_than_float32(monkeypatch):
    seen = []
    monkeypatch.setattr(
        lockstep, "sample", lambda logits, draws: seen.append(draws) or sample(logits, draws)
    )
    for size, dtype in ((lockstep.SMALL_VOCABULARY, torch.float32), (None, torch.float64)):
        seen.clear()
        monkeypatch.setattr(lockstep, "SMALL_VOCABULARY", size or 1)
        options = {"seed": 0, "step": 0, "max_turn_tokens": 3}
        lockstep.roll_out(policy(), vocabulary(), coin_environment(), questions(2), **options)
        assert {draws.dtype for draws in seen} == {dtype}


@torch.no_grad()
def test_a_frozen_copy_stays_what_the_policy_was():
    model = policy()
    copy = model.frozen_copy()
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter += 1.0
    assert copy.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in copy.state_dict().items())
