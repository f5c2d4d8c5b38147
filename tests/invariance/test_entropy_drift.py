"""AEM's theorems on enumerable messages: derived by autograd, compared with their closed forms.

Every derivative is taken on the definition (entropy of the message distribution, natural gradient
of the Fisher-Rao metric, a step of the parameters); none uses the formula under test.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from turncredit.environments.toy_tree import search_or_guess
from turncredit.environments.toy_tree.exact import (
    entropy_drift,
    parameter_entropy_drift,
    path_logprobs,
    regularised_entropy_drift,
    response_entropies,
    response_logprobs,
    token_entropies,
    token_logprobs,
    total_entropy,
    values,
    visitation,
)

TREE = search_or_guess()
VECTORS = Path(__file__).parents[1] / "golden" / "vectors.json"
EXACT = {"rtol": 0.0, "atol": 1e-10}
BETA, GAMMA = 0.3, 0.2
STATES = range(len(TREE.names))
every_state = pytest.mark.parametrize("state", STATES, ids=TREE.names)
every_seed = pytest.mark.parametrize("seed", range(3))


def some_logits(seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(TREE.num_logits, generator=stream, dtype=torch.float64)


def members(state: int) -> list[int]:
    """Indices of the messages of one state."""
    return [n for n, r in enumerate(TREE.responses) if r.state == TREE.names[state]]


def advantages(logits: Tensor, state: int) -> Tensor:
    return values(TREE, logits).turn_advantages[members(state)]


def messages(logits: Tensor, state: int) -> Tensor:
    """[A]: log-probabilities of the messages of one state."""
    return response_logprobs(TREE, logits)[members(state)]


def entropy(probabilities: Tensor) -> Tensor:
    return -(probabilities * probabilities.log()).sum()


def psi(value: Tensor) -> Tensor:
    """An increasing positive function that is not linear, so its slope matters."""
    return value.exp()


def kl(probabilities: Tensor, reference: Tensor) -> Tensor:
    return (probabilities * (probabilities.log() - reference)).sum()


def gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(function, at)


def fisher_rao_gradient(function: Callable[[Tensor], Tensor], probabilities: Tensor) -> Tensor:
    """The tangent vector whose Fisher-Rao product with any other is the directional derivative.

    Solved from that definition on a basis of the tangent space, not from its closed form.
    """
    size = len(probabilities)
    basis = torch.eye(size, dtype=torch.float64)[1:] - torch.eye(size, dtype=torch.float64)[0]
    metric = basis @ torch.diag(1 / probabilities) @ basis.T
    slopes = basis @ gradient(function, probabilities)
    return torch.linalg.solve(metric, slopes) @ basis


def slope(function: Callable[[float], Tensor], width: float = 2e-2) -> float:
    """f'(0) by central differences at four widths, extrapolated to width 0 (Richardson)."""
    widths = [width / 2**power for power in range(4)]
    slopes = [float(function(h) - function(-h)) / (2 * h) for h in widths]
    for order in (4, 16, 64):
        slopes = [(order * fine - coarse) / (order - 1) for coarse, fine in pairwise(slopes)]
    return slopes[0]


def objective(chosen: int, advantage: Tensor, reference: Tensor) -> Callable[[Tensor], Tensor]:
    """The regularised local objective of one sampled message, as a function of pi [A]."""

    def value(probabilities: Tensor) -> Tensor:
        reward = advantage * probabilities[chosen].log()
        return reward + BETA * psi(entropy(probabilities)) - GAMMA * kl(probabilities, reference)

    return value


# Theorem 3.2.1


@every_seed
def test_response_entropy_is_the_expected_sum_of_token_entropies(seed):
    logits = some_logits(seed)
    places = {(d.state, d.prefix): n for n, d in enumerate(TREE.decisions)}
    token = token_entropies(TREE, logits)
    for state in STATES:
        expected = torch.zeros((), dtype=torch.float64)
        for number in members(state):
            response = TREE.responses[number]
            prefixes = [response.words[:length] for length in range(len(response.words))]
            within = sum(token[places[response.state, prefix]] for prefix in prefixes)
            expected += response_logprobs(TREE, logits)[number].exp() * within
        torch.testing.assert_close(response_entropies(TREE, logits)[state], expected, **EXACT)


@every_seed
def test_total_entropy_is_the_expected_sum_of_response_entropies_over_paths(seed):
    logits = some_logits(seed)
    of_state = response_entropies(TREE, logits)
    along = [
        sum(of_state[TREE.names.index(TREE.responses[n].state)] for n in path.responses)
        for path in TREE.paths
    ]
    expected = (path_logprobs(TREE, logits).exp() * torch.stack(along)).sum()
    torch.testing.assert_close(total_entropy(TREE, logits), expected, **EXACT)


@every_seed
def test_total_entropy_is_the_expected_surprisal_of_everything_said(seed):
    logits = some_logits(seed)
    said = torch.stack(
        [response_logprobs(TREE, logits)[list(path.responses)].sum() for path in TREE.paths]
    )
    expected = -(path_logprobs(TREE, logits).exp() * said).sum()
    torch.testing.assert_close(total_entropy(TREE, logits), expected, **EXACT)


@every_seed
def test_surprisal_is_predictable_entropies_plus_a_martingale(seed):
    """Doob's decomposition (C.4): at every decision, surprisal minus entropy has mean 0."""
    logits = some_logits(seed)
    logprobs = token_logprobs(TREE, logits)
    widths = [len(decision.words) for decision in TREE.decisions]
    for part, expected in zip(logprobs.split(widths), token_entropies(TREE, logits), strict=True):
        step = -part - expected
        assert float((part.exp() * step).sum()) == pytest.approx(0.0, abs=1e-12)


# Theorem 3.2.2


@every_seed
@every_state
def test_natural_gradient_drift(seed, state):
    logits = some_logits(seed)
    logprobs, credit = messages(logits, state), advantages(logits, state)
    probabilities = logprobs.exp()
    upward = fisher_rao_gradient(entropy, probabilities)
    expected = []
    for chosen, advantage in enumerate(credit):
        step = fisher_rao_gradient(lambda p, c=chosen, a=advantage: a * p[c].log(), probabilities)
        expected.append((upward * step / probabilities).sum())
    torch.testing.assert_close(entropy_drift(logprobs, credit), torch.stack(expected), **EXACT)


@every_seed
@every_state
def test_drift_is_the_slope_of_entropy_along_the_step(seed, state):
    logits = some_logits(seed)
    logprobs, credit = messages(logits, state), advantages(logits, state)
    probabilities = logprobs.exp()
    found = entropy_drift(logprobs, credit)
    for chosen, advantage in enumerate(credit):
        step = fisher_rao_gradient(lambda p, c=chosen, a=advantage: a * p[c].log(), probabilities)
        # The step's own size would decide the rounding error, so its length is taken out.
        length = float((step / probabilities).abs().max())
        moved = slope(lambda h, d=step / length: entropy(probabilities + h * d)) * length
        assert moved == pytest.approx(float(found[chosen]), abs=1e-10)


@every_seed
@every_state
def test_drift_does_not_depend_on_how_words_parametrise_the_messages(seed, state):
    """A natural-gradient step on word logits, through their own Fisher matrix, drifts alike."""
    logits = some_logits(seed)
    scores = jacobian(lambda x: messages(x, state), logits)
    logprobs, credit = messages(logits, state), advantages(logits, state)
    fisher = scores.T @ torch.diag(logprobs.exp()) @ scores
    inverse = torch.linalg.pinv(fisher, hermitian=True, rtol=1e-11)
    upward = jacobian(lambda x: entropy(messages(x, state).exp()), logits)
    drifts = credit * (scores @ inverse @ upward)
    torch.testing.assert_close(entropy_drift(logprobs, credit), drifts, **EXACT)


@every_seed
@every_state
def test_drift_of_total_entropy_is_weighted_by_visits_when_occupancy_is_frozen(seed, state):
    """Equation 10: several turns may visit the state; each visit counts."""
    logits = some_logits(seed)
    seen = visitation(TREE, logits).detach()
    probabilities = messages(logits, state).exp()
    others = response_entropies(TREE, logits).detach()

    def frozen_total(changed: Tensor) -> Tensor:
        entropies = torch.stack([entropy(changed) if s == state else others[s] for s in STATES])
        return (seen * entropies).sum()

    credit = advantages(logits, state)
    upward = fisher_rao_gradient(frozen_total, probabilities)
    for chosen, advantage in enumerate(credit):
        step = fisher_rao_gradient(lambda p, c=chosen, a=advantage: a * p[c].log(), probabilities)
        drift = (upward * step / probabilities).sum()
        expected = seen[:, state].sum() * entropy_drift(probabilities.log(), credit)[chosen]
        torch.testing.assert_close(drift, expected, **EXACT)


def test_frozen_occupancy_is_an_assumption_that_matters():
    """Letting visits move changes the start's drift: it also decides where the agent goes."""
    logits = some_logits(0)
    total = jacobian(lambda x: total_entropy(TREE, x), logits)
    seen = visitation(TREE, logits).detach()
    frozen = jacobian(lambda x: (seen * response_entropies(TREE, x)).sum(), logits)
    at_start = [decision.state == TREE.start for decision in TREE.decisions]
    widths = torch.tensor([len(decision.words) for decision in TREE.decisions])
    start = torch.tensor(at_start).repeat_interleave(widths)
    assert (total - frozen)[start].abs().max() > 0.01
    visits = jacobian(lambda x: visitation(TREE, x).sum(0), logits)
    moved = visits.T @ response_entropies(TREE, logits)
    torch.testing.assert_close(total, frozen + moved, **EXACT)


@every_seed
@every_state
def test_on_policy_drift_with_equal_credit_is_zero(seed, state):
    """Surprisal minus entropy has mean 0: equal credit for all messages moves nothing."""
    logprobs = messages(some_logits(seed), state)
    drift = entropy_drift(logprobs, torch.full_like(logprobs, 2.0))
    assert float((logprobs.exp() * drift).sum()) == pytest.approx(0.0, abs=1e-12)


def test_golden_vector():
    vector = json.loads(VECTORS.read_text(encoding="utf-8"))["aem_drift"]
    probabilities = torch.tensor(vector["in"]["pi"], dtype=torch.float64)
    credit = torch.full_like(probabilities, vector["in"]["A"])
    expected = vector["out"]
    assert float(entropy(probabilities)) == pytest.approx(expected["H"], abs=1e-4)
    assert (-probabilities.log()).tolist() == pytest.approx(expected["S"], abs=1e-4)
    drift = entropy_drift(probabilities.log(), credit).tolist()
    assert drift == pytest.approx(expected["D"], abs=1e-4)
    upward = fisher_rao_gradient(lambda p: p[0].log(), probabilities)
    moved = slope(lambda h: entropy(probabilities + h * upward))
    assert moved == pytest.approx(expected["finite_diff"][0], abs=1e-4)


# Theorem C.3.1: entropy and KL terms


@every_seed
@every_state
def test_regularised_drift(seed, state):
    logits = some_logits(seed)
    logprobs, reference = messages(logits, state), messages(some_logits(seed + 10), state)
    probabilities, credit = logprobs.exp(), advantages(logits, state)
    upward = fisher_rao_gradient(entropy, probabilities)
    expected = []
    for chosen, advantage in enumerate(credit):
        step = fisher_rao_gradient(objective(chosen, advantage, reference), probabilities)
        expected.append((upward * step / probabilities).sum())
    found = regularised_entropy_drift(
        logprobs, credit, reference, entropy_slope=_entropy_slope(probabilities), kl_weight=GAMMA
    )
    torch.testing.assert_close(found, torch.stack(expected), **EXACT)


@every_state
def test_without_regularisers_the_two_drifts_agree(state):
    logits = some_logits(1)
    logprobs, credit = messages(logits, state), advantages(logits, state)
    reference = messages(some_logits(5), state)
    found = regularised_entropy_drift(logprobs, credit, reference)
    torch.testing.assert_close(found, entropy_drift(logprobs, credit), **EXACT)


@every_state
def test_regularisers_shift_every_message_alike(state):
    """Remark C.3.2: they act on the state and cannot tell one response from another."""
    logits = some_logits(2)
    logprobs, credit = messages(logits, state), advantages(logits, state)
    reference = messages(some_logits(7), state)
    full = regularised_entropy_drift(logprobs, credit, reference, entropy_slope=0.4, kl_weight=0.5)
    shift = full - entropy_drift(logprobs, credit)
    assert shift.abs().max() > 1e-3
    torch.testing.assert_close(shift, shift[:1].expand_as(shift), **EXACT)


# Theorem C.5.1: plain steps on shared parameters


PARAMETERS = {"one_logit_a_choice": None, "few_shared_features": 6}
every_parametrisation = pytest.mark.parametrize("width", PARAMETERS.values(), ids=PARAMETERS)


def parametrised(width: int | None, seed: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Parameters and the map from them to logits: the identity, or a nonlinear shared one."""
    if width is None:
        return some_logits(seed), lambda parameters: parameters
    stream = torch.Generator().manual_seed(seed)
    features = torch.randn(TREE.num_logits, width, generator=stream, dtype=torch.float64)
    start = torch.randn(width, generator=stream, dtype=torch.float64)
    return start, lambda parameters: torch.tanh(features @ parameters) * 2


@every_parametrisation
@every_seed
@every_state
def test_parameter_space_drift(width, seed, state):
    parameters, to_logits = parametrised(width, seed)
    reference = messages(some_logits(seed + 20), state)
    credit = advantages(to_logits(parameters), state)

    def speak(changed: Tensor) -> Tensor:
        return messages(to_logits(changed), state)

    upward = jacobian(lambda x: entropy(speak(x).exp()), parameters)
    expected, steps = [], []
    for chosen, advantage in enumerate(credit):
        local = objective(chosen, advantage, reference)
        steps.append(jacobian(lambda x, f=local: f(speak(x).exp()), parameters))
        expected.append(upward @ steps[-1])
    logprobs = speak(parameters)
    found = parameter_entropy_drift(
        logprobs,
        credit,
        reference,
        jacobian(speak, parameters),
        entropy_slope=_entropy_slope(logprobs.exp()),
        kl_weight=GAMMA,
    )
    torch.testing.assert_close(found, torch.stack(expected), **EXACT)
    for step, drift in zip(steps, found, strict=True):
        length = float(step.norm())
        direction = step / length
        moved = slope(lambda h, d=direction: entropy(speak(parameters + h * d).exp()))
        assert moved * length == pytest.approx(float(drift), abs=1e-10)


@every_parametrisation
@every_state
def test_parameter_space_variance_is_the_squared_entropy_gradient(width, state):
    """Equation 51: with no credit and no KL, the entropy bonus climbs at |grad H|^2."""
    parameters, to_logits = parametrised(width, 0)

    def speak(changed: Tensor) -> Tensor:
        return messages(to_logits(changed), state)

    logprobs = speak(parameters)
    scores = jacobian(speak, parameters)
    found = parameter_entropy_drift(
        logprobs, torch.zeros_like(logprobs), logprobs, scores, entropy_slope=1.0
    )
    upward = jacobian(lambda x: entropy(speak(x).exp()), parameters)
    torch.testing.assert_close(found, (upward @ upward).expand_as(found), **EXACT)


def test_the_kernel_can_turn_the_sign_of_the_drift():
    """Why the intrinsic drift is no promise about plain gradient steps on a shared network."""
    turned = 0
    for seed in range(20):
        parameters, to_logits = parametrised(3, seed)
        for state in STATES:
            logprobs = messages(to_logits(parameters), state)
            credit = torch.ones_like(logprobs)
            scores = jacobian(lambda x, s=state, f=to_logits: messages(f(x), s), parameters)
            plain = parameter_entropy_drift(logprobs, credit, logprobs, scores)
            turned += int((plain * entropy_drift(logprobs, credit) < -1e-6).sum())
    assert turned > 0


def _entropy_slope(probabilities: Tensor) -> float:
    """beta psi'(H), by autograd."""
    return BETA * float(gradient(psi, entropy(probabilities)))
