"""Proxies and AEM's coefficient where every response can be listed: definitions and truth."""

import math
import statistics
from dataclasses import replace
from itertools import product

import pytest
import torch
from batches import make_batch
from play import CoinEnvironment, CoinEpisode

from turncredit.batching import TurnBatch, from_trajectories, two_turns_and_one
from turncredit.credit.aem import aem
from turncredit.environments.toy_tree import ToyTree, exact, search_or_guess
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.policies.vocabulary import Vocabulary
from turncredit.probe import (
    PROXIES,
    all_tree_turns,
    compare,
    context_numbers,
    control_coefficient,
    disagreement,
    enumerate_responses,
    policy_moments,
    policy_turns,
    sampled_tree_turns,
    steps,
    tree_moments,
)
from turncredit.probe.exact import moments
from turncredit.probe.measures import measure
from turncredit.probe.proxies import (
    control_variate,
    first_k,
    group_means,
    length_aware,
    martingale,
    published,
    shrunk_baseline,
    state_baseline,
)
from turncredit.rollout import roll_out
from turncredit.worlds.base import Question

TREE = search_or_guess()
WORDS = Vocabulary(ToyTree(TREE).words)
CLOSING = frozenset(map(WORDS.id, ("</answer>", "</search>")))
EXACT = {"rtol": 0.0, "atol": 1e-10}
NAN = math.nan
every_seed = pytest.mark.parametrize("seed", range(3))
every_proxy = pytest.mark.parametrize("proxy", PROXIES.values(), ids=PROXIES)


def some_logits(seed: int):
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(TREE.num_logits, generator=stream, dtype=torch.float64)


def sampled(seed: int, groups: int = 20):
    return sampled_tree_turns(TREE, some_logits(seed), groups=groups, group_size=8, seed=seed)


def speaker(seed: int) -> TinyPolicy:
    """A tiny policy that may say any words of the tree, sharp enough to have preferences."""
    model = TinyPolicy(TinySettings(8, 2, 2, 32), len(WORDS), seed)
    with torch.no_grad():
        model.embedding.weight *= 2
    return model


class OnePrompt(CoinEnvironment):
    """Every episode starts in one state; what is observed later is by chance."""

    def reset(self, question, stream):
        episode = CoinEpisode(self, stream)
        episode.prompt = TREE.prompt
        return episode


def played(seed: int):
    """Three groups of eight episodes of that policy, with exact values beside."""
    model = speaker(seed)
    environment = OnePrompt(WORDS.entries[1:], 0.3, ("answer", "search"))
    asked = [Question("q", "who", ("hmm",), (), "r", guess="hmm")] * 24
    trajectories = roll_out(model, WORDS, environment, asked, seed=seed, step=0, max_turn_tokens=2)
    batch = from_trajectories(trajectories, group_ids=[n // 8 for n in range(24)])
    return model, policy_turns(model, batch, CLOSING, max_turn_tokens=2)


def equal(left, right) -> None:
    torch.testing.assert_close(left, right, equal_nan=True, **EXACT)


# --- exact values


@every_seed
def test_moments_of_the_tree(seed):
    logits = some_logits(seed)
    found = tree_moments(TREE, logits)
    entropies = torch.tensor([m.entropy for m in found], dtype=torch.float64)
    equal(entropies, exact.response_entropies(TREE, logits))
    for m in found:
        parts = m.predictable_variance + m.martingale_variance + 2 * m.covariance
        assert parts == pytest.approx(m.surprisal_variance, abs=1e-12)


@every_seed
def test_the_martingale_varies_by_the_variance_of_each_word_alone(seed):
    """Its steps are uncorrelated: the variance is the expected sum of the words' varentropies."""
    logits = some_logits(seed)
    logprobs = exact.token_logprobs(TREE, logits)
    parts = logprobs.split([len(decision.words) for decision in TREE.decisions])
    spread = [float((p.exp() * (-p + (p.exp() * p).sum()).square()).sum()) for p in parts]
    places = {(d.state, d.prefix): n for n, d in enumerate(TREE.decisions)}
    chances = exact.response_logprobs(TREE, logits).exp().tolist()
    for name, found in zip(TREE.names, tree_moments(TREE, logits), strict=True):
        expected = sum(
            chance * spread[places[name, r.words[:word]]]
            for r, chance in zip(TREE.responses, chances, strict=True)
            if r.state == name
            for word in range(len(r.words))
        )
        assert found.martingale_variance == pytest.approx(expected, abs=1e-12)


def test_listed_turns_have_their_drift_and_their_chance():
    logits = some_logits(0)
    turns = all_tree_turns(TREE, logits, group_size=2)
    assert float(turns.weights.sum()) == pytest.approx(2.0)
    credit = exact.values(TREE, logits).turn_advantages
    logprobs = exact.response_logprobs(TREE, logits)
    expected = {}
    for state in TREE.names:
        members = [n for n, r in enumerate(TREE.responses) if r.state == state]
        drifts = exact.entropy_drift(logprobs[members], credit[members])
        expected |= {-float(logprobs[n]): float(d) for n, d in zip(members, drifts, strict=True)}
    real = ~turns.drifts.isnan()
    assert torch.equal(real, turns.batch.turn_lengths() > 0)
    pairs = torch.stack([turns.surprisals, turns.drifts])[:, real].T.unique(dim=0).tolist()
    for surprisal, drift in pairs:
        near = min(expected, key=lambda value: abs(value - surprisal))
        assert drift == pytest.approx(expected[near], abs=1e-9)
    seen = (turns.weights[:, None] * real).sum(0) / 2
    equal(seen, exact.visitation(TREE, logits).sum(1))


def test_relative_surprisal_has_mean_0_over_all_turns():
    turns = all_tree_turns(TREE, some_logits(1), group_size=2)
    assert abs(float((turns.weights[:, None] * turns.relative).nansum())) < 1e-12


def test_missing_responses_and_missing_advantages_are_refused():
    turns = enumerate_responses(speaker(0), (1, 2), CLOSING, max_turn_tokens=2)
    chances = torch.tensor([math.exp(sum(t.sampled_logprobs)) for t in turns]).double()
    with pytest.raises(ValueError, match="sum to 0"):
        moments(chances[1:], measure([turns[1:]]))
    with pytest.raises(ValueError, match="exact advantages"):
        played(0)[1].drifts.sum()
    with pytest.raises(ValueError, match="limit = 100"):
        all_tree_turns(TREE, some_logits(0), group_size=2, limit=100)


# --- the tiny policy


@every_seed
def test_a_state_of_the_tiny_policy_has_the_moments_of_its_list(seed):
    """Entropy token by token (Theorem 3.2.1), without the list."""
    model, prefix = speaker(seed), (1, 2)
    found = policy_moments(model, prefix, CLOSING, max_turn_tokens=2)
    with torch.no_grad():
        first = model.logits(model.hidden(torch.tensor([prefix]))[:, -1]).double().softmax(-1)[0]
        expected = float(-(first * first.log()).sum())
        for word in set(range(len(WORDS))) - CLOSING:
            logits = model.logits(model.hidden(torch.tensor([[*prefix, word]]))[:, -1]).double()
            second = logits.softmax(-1)[0]
            expected += float(first[word] * -(second * second.log()).sum())
    assert found.entropy == pytest.approx(expected, abs=1e-5)
    parts = found.predictable_variance + found.martingale_variance + 2 * found.covariance
    assert parts == pytest.approx(found.surprisal_variance, abs=1e-9)


def test_a_played_batch_has_the_moments_of_its_contexts():
    model, turns = played(0)
    real = (turns.batch.turn_lengths() > 0).nonzero().tolist()
    assert max(turn for _, turn in real) > 1
    for row, turn in real[::7]:
        start = int((turns.batch.turn_ids[row] == turn).nonzero()[0])
        prefix = turns.batch.token_ids[row, :start].tolist()
        expected = policy_moments(model, prefix, CLOSING, max_turn_tokens=2)
        assert float(turns.entropies[row, turn]) == expected.entropy
        assert float(turns.mean_entropies[row, turn]) == expected.mean_entropy
    assert torch.equal(turns.relative.isnan(), turns.batch.turn_lengths() == 0)


# --- the decomposition


def by_hand(turns, row: int, turn: int) -> dict[str, float]:
    """The steps of one turn in plain numbers, from the tokens."""
    batch = turns.batch
    state = float(turns.entropies[row, turn])

    def tokens(values, r: int, t: int) -> list[float]:
        return values[r][batch.turn_ids[r] == t].tolist()

    members = [
        statistics.fmean(tokens(batch.entropies, r, t))
        for r, t in (batch.turn_lengths() > 0).nonzero().tolist()
        if batch.group_ids[r] == batch.group_ids[row]
    ]
    here = tokens(batch.entropies, row, turn)
    spread = max(members) - min(members)
    scaled = [math.exp(-(h - min(members)) / spread) for h in members] if spread >= 0.1 else [1.0]
    own = math.exp(-(statistics.fmean(here) - min(members)) / spread) if spread >= 0.1 else 1.0
    return {
        "surprisal": -sum(tokens(batch.old_logprobs, row, turn)) - state,
        "predictable": sum(here) - state,
        "per_token": statistics.fmean(here) - float(turns.mean_entropies[row, turn]),
        "group_baseline": statistics.fmean(here) - statistics.fmean(members),
        "coefficient": 1 - own / statistics.fmean(scaled),
    }


@pytest.mark.parametrize("made", [lambda: sampled(2, groups=3), lambda: played(1)[1]])
def test_steps_by_hand(made):
    turns = made()
    found = steps(turns)
    for row, turn in (turns.batch.turn_lengths() > 0).nonzero().tolist():
        for name, value in by_hand(turns, row, turn).items():
            assert float(found[name][row, turn]) == pytest.approx(value, abs=1e-5), name


@every_seed
def test_disagreement_is_the_weighted_share_of_wrong_signs(seed):
    turns = all_tree_turns(TREE, some_logits(seed), group_size=2)
    found = disagreement(turns)
    real = (turns.batch.turn_lengths() > 0).nonzero().tolist()
    for name, values in steps(turns).items():
        wrong = mass = 0.0
        for row, turn in real:
            weight = float(turns.weights[row])
            value, truth = float(values[row, turn]), float(turns.relative[row, turn])
            wrong += weight * (0.5 if abs(value) < 1e-9 else value * truth < 0)
            mass += weight
        assert found[name] == pytest.approx(wrong / mass, abs=1e-9), name
    assert found["surprisal"] == 0
    assert found["coefficient"] > 0.1


def test_drawn_groups_disagree_as_often_as_listed_ones():
    logits = some_logits(1)
    listed = disagreement(all_tree_turns(TREE, logits, group_size=3))
    drawn = disagreement(sampled_tree_turns(TREE, logits, groups=3000, group_size=3, seed=0))
    assert drawn == {name: pytest.approx(share, abs=0.03) for name, share in listed.items()}


def test_a_silent_group_counts_half_or_not_at_all():
    turns = sampled(0)
    assert disagreement(turns, min_spread=9.0)["coefficient"] == 0.5
    assert math.isnan(disagreement(turns, min_spread=9.0, silent="exclude")["coefficient"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rounding_of_what_was_measured_has_no_sign(dtype):
    """A tenth of a millionth of a nat is nothing in float32, and something in float64."""
    turns = sampled(0, groups=2)
    names = ("old_logprobs", "entropies")
    batch = turns.batch.replace(**{n: getattr(turns.batch, n).to(dtype) for n in names})
    turns = replace(turns, batch=batch)
    turns = replace(turns, entropies=turns.surprisals - 1e-7)
    assert (turns.relative[batch.turn_lengths() > 0] > 0.9e-7).all()
    assert math.isnan(disagreement(turns)["surprisal"]) == (dtype == torch.float32)
    assert disagreement(turns, tolerance=1e-9)["surprisal"] == 0


# --- proxies


def test_proxies_by_hand():
    """Group of turns with P .6, .1, .3 and S 2, 1, 1; the openings of rows 0 and 1 are siblings."""
    ids = torch.tensor([[-1, 0, 0, 1], [-1, 0, -1, -1]])
    batch = two_turns_and_one().replace(
        token_ids=torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8]]),
        turn_ids=ids,
        response_mask=ids >= 0,
        entropies=torch.tensor([[9.0, 0.4, 0.2, 0.1], [9.0, 0.3, 9.0, 9.0]]),
    )
    mean = (0.6 + 0.1 + 0.3) / 3
    cases = {
        length_aware: [0.6 - mean, 0.1 - mean, 0.3 - mean],
        state_baseline: [0.15, 0.0, -0.15],
        martingale: [1.4, 0.9, 0.7],
        control_variate: [2 - 0.45, 0.9, 1 - 0.45],
    }
    for proxy, expected in cases.items():
        assert proxy(batch).flatten().tolist() == pytest.approx(
            [*expected, NAN], nan_ok=True, abs=1e-6
        )
    plain = control_variate(batch, coefficient=0.0).flatten().tolist()
    assert plain == pytest.approx([0.5, 0.0, -0.5, NAN], nan_ok=True)
    opening = first_k(batch, k=1).flatten().tolist()
    middle = (0.4 + 0.1 + 0.3) / 3
    assert opening == pytest.approx(
        [0.4 - middle, 0.1 - middle, 0.3 - middle, NAN], nan_ok=True, abs=1e-6
    )
    # shrinkage: states of P .45 (two responses) and .1 (one), v = mean of M^2.
    noise = (1.4**2 + 0.9**2 + 0.7**2) / 3
    between = ((0.45 - mean) ** 2 + (0.1 - mean) ** 2) / 2
    assert between < noise * (1 / 2 + 1) / 2, "all of it is explained: the group's mean alone"
    shrunk = shrunk_baseline(batch).flatten().tolist()
    assert shrunk == pytest.approx([2 - mean, 1 - mean, 1 - mean, NAN], nan_ok=True, abs=1e-6)


def test_the_weight_of_the_siblings_by_hand():
    """Two prompts far apart in P (1 and 5), three siblings each; M is +-.5 and 0."""
    predictable = torch.tensor([1.0, 1.0, 1.0, 5.0, 5.0, 5.0]).double()
    noise = torch.tensor([0.5, -0.5, 0.0, 0.5, -0.5, 0.0]).double()
    ids = torch.tensor([[-1, 0]] * 6)
    batch = TurnBatch(
        token_ids=torch.stack([predictable.long(), torch.arange(6)], 1),
        response_mask=ids >= 0,
        turn_ids=ids,
        entropies=torch.stack([predictable] * 2, 1),
        old_logprobs=-torch.stack([predictable + noise] * 2, 1),
        rewards=torch.zeros(6),
        success=torch.zeros(6, dtype=torch.bool),
        group_ids=torch.zeros(6, dtype=torch.int64),
    )
    v = (0.25 * 4) / 6
    t = 4.0 - v / 3  # (1 - 3)^2 and (5 - 3)^2, minus v / n
    weight = t / (t + v / 3)
    expected = [
        p + m - weight * p - (1 - weight) * 3 for p, m in zip(predictable, noise, strict=True)
    ]
    assert shrunk_baseline(batch)[:, 0].tolist() == pytest.approx([float(e) for e in expected])
    # within a state P does not vary, so S moves with M alone
    assert control_coefficient(batch) == pytest.approx(1.0)


def test_published_is_aem_and_silent_where_it_is():
    turns = sampled(0)
    base = torch.zeros(turns.batch.response_mask.shape, dtype=torch.float64)
    real = turns.batch.turn_lengths() > 0
    expected = torch.where(real, 1 - aem(turns.batch, base, temperature=2.0), torch.nan)
    equal(published(turns.batch, temperature=2.0), expected)
    assert (published(turns.batch, min_spread=9.0)[real] == 0).all()


@every_seed
def test_martingale_and_control_variates_have_mean_0_in_every_state(seed):
    """Over all groups with their chances: no state is held more surprising than itself."""
    turns = all_tree_turns(TREE, some_logits(seed), group_size=2)
    states = turns.batch.anchor_ids
    for values in (
        martingale(turns.batch),
        control_variate(turns.batch, coefficient=0.3),
        state_baseline(turns.batch),
    ):
        mass = turns.weights[:, None] * values
        for state in range(len(TREE.names)):
            assert abs(float(mass[states == state].nansum())) < 1e-12


def test_the_group_as_baseline_mistakes_states_for_responses():
    turns = all_tree_turns(TREE, some_logits(0), group_size=2)
    mass = turns.weights[:, None] * length_aware(turns.batch)
    sums = [float(mass[turns.batch.anchor_ids == s].nansum()) for s in range(len(TREE.names))]
    assert max(map(abs, sums)) > 0.01


@every_seed
def test_the_control_coefficient_has_the_least_variance(seed):
    """Var(S - c M) within states, over a grid of c."""
    turns = sampled(seed, groups=200)
    states = turns.batch.anchor_ids
    best = control_coefficient(turns.batch, states=states)

    def variance(coefficient: float) -> float:
        values = turns.surprisals - coefficient * martingale(turns.batch)
        middles = [values[states == s].mean() for s in range(len(TREE.names))]
        return sum(float((values[states == s] - m).square().sum()) for s, m in enumerate(middles))

    assert all(
        variance(best) <= variance(best + shift) + 1e-9 for shift in (-0.3, -0.01, 0.01, 0.3)
    )


def test_contexts_are_equal_ids_read_within_a_group():
    turns = sampled(3)
    numbers, batch = context_numbers(turns.batch), turns.batch
    places = (batch.turn_lengths() > 0).nonzero().tolist()
    keys = {}
    for row, turn in places:
        start = int((batch.turn_ids[row] == turn).nonzero()[0])
        keys[row, turn] = (int(batch.group_ids[row]), *batch.token_ids[row, :start].tolist())
    for (left, key), (right, other) in product(list(keys.items())[:60], keys.items()):
        assert (key == other) == bool(numbers[left] == numbers[right])
    assert len(set(keys.values())) < len(keys)
    assert (numbers[batch.turn_lengths() == 0] == -1).all()


@every_proxy
def test_a_proxy_reads_its_group_and_what_was_sampled_alone(proxy):
    turns = sampled(1, groups=4)
    batch = turns.batch
    whole = proxy(batch)
    assert torch.equal(whole.isnan(), batch.turn_lengths() == 0)
    assert whole.dtype == torch.float64
    alone = batch.select(batch.group_ids == 2)
    equal(proxy(alone), whole[batch.group_ids == 2])
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    equal(proxy(batch.select(order)), whole[order])
    optional = dict.fromkeys(("rollout_logprobs", "ref_logprobs", "teacher_logprobs", "values"))
    filled = batch.replace(
        old_logprobs=batch.old_logprobs.masked_fill(~batch.response_mask, NAN),
        entropies=batch.entropies.masked_fill(~batch.response_mask, NAN),
        **optional,
    )
    equal(proxy(filled), whole)


@every_proxy
def test_a_proxy_refuses_entropies_that_were_not_computed(proxy):
    batch = make_batch([[2, 1], [3]])
    row, column = batch.response_mask.nonzero()[0].tolist()
    broken = batch.entropies.clone()
    broken[row, column] = NAN
    with pytest.raises(ValueError, match=r"TurnBatch.entropies: row 0, turn 0"):
        proxy(batch.replace(entropies=broken))


def test_states_of_another_shape_and_a_coefficient_without_number_are_refused():
    batch = make_batch([[2, 1], [3]])
    with pytest.raises(ValueError, match=r"states have shape \(2, 5\), not \(2, 2\)"):
        state_baseline(batch, states=torch.zeros(2, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="coefficient is nan"):
        control_variate(batch, coefficient=NAN)


def test_group_means_leave_empty_turns_out():
    values = torch.tensor([[1.0, 2.0], [6.0, 99.0]]).double()
    assert group_means(two_turns_and_one(), values).tolist() == [[3.0, 3.0], [3.0, 0.0]]


# --- which proxy knows the sign, on policies held out


def judged(worlds, name: str, **options):
    """Sign agreement with S - H_resp; a world of exact turns is the unit that intervals draw."""
    longest = max(turns.relative.numel() for turns in worlds)

    def row(values) -> list[float]:
        return values.flatten().tolist() + [NAN] * (longest - values.numel())

    signals = [row(PROXIES[name](turns.batch, **options)) for turns in worlds]
    targets = [row(turns.relative) for turns in worlds]
    return compare(signals, targets, silent="half", tolerance=1e-9, seed=0)["sign_agreement"]


LOSERS = ("published", "length_aware", "first_k", "state_baseline")


def test_the_sampled_log_probs_beat_the_published_proxy_on_policies_held_out():
    """k is chosen on other policies than those judged on."""
    fitted = [sampled(seed, groups=4) for seed in range(100, 108)]
    k = max((1, 2, 3), key=lambda k: judged(fitted, "first_k", k=k).value)
    held_out = [sampled(seed, groups=4) for seed in range(16)]
    options = {name: {"k": k} if name == "first_k" else {} for name in PROXIES}
    found = {name: judged(held_out, name, **options[name]) for name in PROXIES}
    for winner in ("control_variate", "martingale", "shrunk_baseline"):
        for loser in LOSERS:
            assert found[winner].low > found[loser].high, (winner, loser)
    assert max(found, key=lambda name: found[name].value) == "control_variate"
    assert found["control_variate"].low > 0.9


def test_so_they_do_for_a_tiny_policy():
    worlds = [played(seed)[1] for seed in range(4)]
    found = {name: judged(worlds, name) for name in PROXIES}
    for winner in ("control_variate", "martingale"):
        assert found[winner].low > 0.85
        for loser in LOSERS:
            assert found[winner].low > found[loser].high, (winner, loser)
