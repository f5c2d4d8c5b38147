"""AEM: responses of high entropy are damped and those of low entropy amplified (2605.00425).

A response is a turn.  Self-calibration makes the mean coefficient of a scope 1, so the method
moves credit between responses and adds none.  The direction is that of EMPG, and opposite to
suffix masking, to training on high-entropy turns and to AEPO, which keep or boost high entropy.
`aem_corrected` is this repository's: it reads what was sampled where AEM reads what was expected.
"""

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.gates import known_entropies
from turncredit.credit.groups import centred, group_sums
from turncredit.credit.randomness import uniforms
from turncredit.credit.turn_selection import scope_numbers
from turncredit.credit.weights import TURN_WEIGHTS
from turncredit.option_ranges import check_range


@TURN_WEIGHTS.add
def aem(
    batch: TurnBatch,
    base: Tensor,
    *,
    temperature: float = 1.0,
    min_spread: float = 0.1,
    relative_spread: float = 0.0,
) -> Tensor:
    """Coefficients alpha of adaptive entropy modulation (AEM, eqs. 13-15 and algorithm 1).

    [B, T].  H is the mean token entropy of a response; over all responses of a group, whatever
    their length, H~ = (H - min) / (max - min), alpha = exp(-temperature * H~) / mean of the same,
    so that alpha is 1 on average.  A group whose max - min is below `min_spread` (nats) keeps
    alpha = 1; with the entropies of a sharp policy (0.001 to 0.1) that is every group: scale it
    down then, or let `relative_spread`, which is not AEM's, guard instead: a group whose max - min
    is below that share of its mean H keeps alpha = 1 too.  The published 1e-8 in the denominators
    is left out: the spread is positive here.

    Raises ValueError for a temperature or either spread below 0, and for unknown entropies.

    >>> from turncredit.batching import two_turns_and_one
    >>> aem(two_turns_and_one(), torch.zeros(2, 4))
    tensor([[0.6358, 1.7284],
            [0.6358, 1.0000]])
    """
    check_range("aem", "scale", relative_spread=relative_spread)
    return _coefficients(
        batch, base, "group", temperature, min_spread, relative_spread=relative_spread
    )


@TURN_WEIGHTS.add
def aem_shuffle(
    batch: TurnBatch,
    base: Tensor,
    *,
    temperature: float = 1.0,
    min_spread: float = 0.1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Ablation: the coefficients of `aem`, dealt at random among the responses of the group.

    [B, T].  Same values, so the same mean 1, without their tie to entropy.  `generator`: source
    of the permutations; None draws the same ones at every call.
    """
    alpha = aem(batch, base, temperature=temperature, min_spread=min_spread)
    real = batch.turn_lengths() > 0
    groups = scope_numbers(batch, "group")[:, None].expand_as(alpha)[real]
    drawn = uniforms(alpha.shape, generator, alpha.device)[real].argsort()
    dealt = torch.empty_like(alpha[real])
    dealt[groups.argsort(stable=True)] = alpha[real][drawn[groups[drawn].argsort(stable=True)]]
    return alpha.masked_scatter(real, dealt)


@TURN_WEIGHTS.add
def aem_reverse(
    batch: TurnBatch, base: Tensor, *, temperature: float = 1.0, min_spread: float = 0.1
) -> Tensor:
    """Ablation: exp(+temperature * H~), high entropy amplified; otherwise `aem`.  [B, T]."""
    return _coefficients(batch, base, "group", temperature, min_spread, sign=1.0)


@TURN_WEIGHTS.add
def aem_traj_norm(
    batch: TurnBatch, base: Tensor, *, temperature: float = 1.0, min_spread: float = 0.1
) -> Tensor:
    """Ablation: `aem` over the responses of each trajectory instead of the group.  [B, T].

    Guard and mean follow the scope; a trajectory of one response keeps alpha = 1.
    """
    return _coefficients(batch, base, "trajectory", temperature, min_spread)


@TURN_WEIGHTS.add
def aem_batch_norm(
    batch: TurnBatch, base: Tensor, *, temperature: float = 1.0, min_spread: float = 0.1
) -> Tensor:
    """Ablation: `aem` over all responses of the batch instead of the group.  [B, T].

    Guard and mean follow the scope, so other groups matter.
    """
    return _coefficients(batch, base, "batch", temperature, min_spread)


@TURN_WEIGHTS.add
def aem_corrected(
    batch: TurnBatch,
    base: Tensor,
    *,
    temperature: float = 1.0,
    min_spread: float = 0.1,
    coefficient: float = 1.0,
) -> Tensor:
    """AEM with the surprisal that was sampled; this repository's own, in no paper.

    [B, T].  AEM's argument (theorem 3.2.2, eq. 16) needs alpha < 1 exactly where a response is more
    surprising than its state's mean, D = S - H_resp > 0.  Its H, a mean token entropy against the
    group's, often has another sign: it leaves out the drawn part of S and takes the group for the
    state (`probe.decomposition` counts what each costs).  Here D is estimated from the log-probs
    (`relative_surprisals`, which documents `coefficient`), and alpha is 1 exactly at D = 0:

        lost  = 1 - exp(-temperature * D / spread)   where D > 0, spread = max D - min D in nats
        given = the sum of what is lost in the group, shared in proportion to -D where D < 0
        alpha = 1 - lost + given

    If a response would be given more than exp(temperature) - 1, all of the group is scaled down to
    that, so alpha is in exp(-temperature) .. exp(temperature), as AEM's.  The mean is 1; AEM's own
    calibration, by the mean of an exponential, would move the place where alpha is 1.
    A group keeps alpha = 1 if spread is below `min_spread`, or all D are of one sign.

    Raises ValueError for a temperature or min_spread below 0, a coefficient that is not finite, and
    for unknown entropies or log-probs.

    >>> from turncredit.batching import two_turns_and_one
    >>> aem_corrected(two_turns_and_one(), torch.zeros(2, 4), coefficient=0.0)
    tensor([[0.6065, 1.0000],
            [1.3935, 1.0000]])
    """
    check_range("aem_corrected", "scale", temperature=temperature)
    check_range("aem_corrected", "threshold", min_spread=min_spread)
    relative, real = relative_surprisals(batch, coefficient=coefficient)
    scopes = scope_numbers(batch, "group")[:, None].expand_as(relative).flatten()
    alpha = _redealt(relative.flatten(), scopes, real.flatten(), temperature, min_spread)
    return alpha.view(relative.shape).to(base.dtype)


@TURN_WEIGHTS.add
def keep_entropy_up(
    batch: TurnBatch, base: Tensor, *, temperature: float = 1.0, min_spread: float = 0.1
) -> Tensor:
    """Analysis: keep the responses that raise the policy's entropy, A * (alpha - 1) < 0; 0 else.

    [B, T].  A is the sum of the turn's base advantages, alpha that of `aem`.  Responses with
    A = 0 or alpha = 1 drive neither way and get 0, here and in `keep_entropy_down`: this is an
    analysis of gradients, not a method with a silent state.  Sign: an uncertain response with
    A < 0, or a certain one with A > 0, lowers entropy (AEM, theorem 3.2.2 and eq. 16: the drift
    has the sign of -A * (alpha - 1)); a later analysis prints the kept set the other way round.
    """
    return _keep(batch, base, temperature, min_spread, sign=-1)


@TURN_WEIGHTS.add
def keep_entropy_down(
    batch: TurnBatch, base: Tensor, *, temperature: float = 1.0, min_spread: float = 0.1
) -> Tensor:
    """Analysis: keep the responses that lower entropy, A * (alpha - 1) > 0; 0 for the others.

    [B, T].  The mirror image of `keep_entropy_up`, which explains it.
    """
    return _keep(batch, base, temperature, min_spread, sign=1)


def _keep(
    batch: TurnBatch, base: Tensor, temperature: float, min_spread: float, *, sign: int
) -> Tensor:
    alpha = aem(batch, base, temperature=temperature, min_spread=min_spread)
    direction = batch.turn_sums(base).sign() * (alpha - 1).sign()
    return ((direction == sign) | (batch.turn_lengths() == 0)).to(base.dtype)


def _coefficients(
    batch: TurnBatch,
    base: Tensor,
    scope: str,
    temperature: float,
    min_spread: float,
    *,
    sign: float = -1.0,
    relative_spread: float = 0.0,
) -> Tensor:
    """[B, T]: exp(sign * temperature * H~) over its mean in the scope, 1 in a silent scope."""
    check_range("aem", "scale", temperature=temperature)
    check_range("aem", "threshold", min_spread=min_spread)
    lengths = batch.turn_lengths()
    entropies, real = known_entropies(batch, batch.turn_sums(batch.entropies) / lengths)
    scopes = scope_numbers(batch, scope)[:, None].expand_as(entropies).flatten()
    guards = {"min_spread": min_spread, "relative_spread": relative_spread}
    alpha = self_calibrated(
        entropies.flatten(), scopes, real.flatten(), sign * temperature, **guards
    )
    return alpha.view(entropies.shape).to(base.dtype)


def relative_surprisals(batch: TurnBatch, *, coefficient: float = 1.0) -> tuple[Tensor, Tensor]:
    """How much more surprising each response is than its state's mean, and who has any token.

    [B, T] float64, nats, 0 for an empty turn; [B, T] bool.  Doob's decomposition S = P + M: P sums
    the token entropies, M has mean 0 in every state, so that S - coefficient * M of any response
    estimates H_resp without bias.  The opening turns of a group began in one state, its prompt,
    and share the mean of their estimates; every later turn counts as the only one of its state and
    gets coefficient * M.  With 1 the estimates are P; with 0 openings are compared by S, and later
    turns not at all.

    Raises ValueError for a coefficient that is not finite, and for an entropy or log-prob that is
    not, naming row and turn.

    >>> from turncredit.batching import two_turns_and_one
    >>> relative_surprisals(two_turns_and_one())[0]
    tensor([[1.5500, 0.9000],
            [0.5500, 0.0000]], dtype=torch.float64)
    """
    check_range("relative_surprisals", "number", coefficient=coefficient)
    predictable, real = known_entropies(batch, batch.turn_sums(batch.entropies))
    surprisals = batch.turn_sums(-batch.old_logprobs.detach())
    if (real & ~surprisals.isfinite()).any():
        row, turn = (real & ~surprisals.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"TurnBatch.old_logprobs: row {row}, turn {turn} has log-probs that are not finite"
        )
    noise = coefficient * (surprisals - predictable)
    openings, known = (surprisals - noise)[:, :1], real[:, :1]
    groups = scope_numbers(batch, "group")[:, None].expand_as(openings)
    deviations = centred(openings.flatten(), groups.flatten(), known.flatten())[0]
    relative = noise.clone()
    relative[:, :1] += deviations.view(openings.shape)
    return torch.where(real, relative, 0.0), real


def _redealt(
    relative: Tensor, scopes: Tensor, real: Tensor, temperature: float, min_spread: float
) -> Tensor:
    """[N] float64: alpha of `aem_corrected` for D [N]; arguments as in `self_calibrated`."""
    order = relative.argsort()  # as there: no bit depends on the order of rows
    above, below = (torch.where(real, part.clamp(min=0), 0.0) for part in (relative, -relative))
    highest, lowest = (
        torch.zeros_like(relative).scatter_reduce(0, scopes, part, "amax")
        for part in (above, below)
    )
    spread = highest + lowest
    lost = -torch.expm1(-temperature * above / spread[scopes])
    lost = torch.where(real & (above > 0), lost, 0.0)
    sums, needs = group_sums(lost, scopes, order), group_sums(below, scopes, order)
    given = below * (sums / needs)[scopes]
    bound = torch.tensor(temperature).double().expm1()
    scale = (bound / (lowest * sums / needs)).clamp(max=1.0)[scopes]
    silent = (highest == 0) | (lowest == 0) | (sums == 0) | (spread < min_spread)
    return torch.where(silent[scopes] | ~real, 1.0, 1 + scale * (given - lost))


def self_calibrated(
    entropies: Tensor,
    scopes: Tensor,
    real: Tensor,
    slope: float,
    min_spread: float = 0.0,
    relative_spread: float = 0.0,
) -> Tensor:
    """exp(slope * H~) over its mean, H~ being H scaled to 0 .. 1 within each scope.

    [N] float64, mean 1 in each scope; 1 where max - min is 0, below min_spread or below
    relative_spread times the mean, and where not `real`.
    entropies: [N] float64; scopes: [N] int64 in 0 .. N - 1; real: [N] bool, who counts.

    >>> entropies, scopes = torch.tensor([0.2, 0.6, 1.0]).double(), torch.zeros(3).long()
    >>> self_calibrated(entropies, scopes, scopes == 0, -1.0)
    tensor([1.5194, 0.9216, 0.5590], dtype=torch.float64)
    """
    low = torch.where(real, entropies, torch.inf)
    order = low.argsort()  # sums in order of entropy: no bit depends on the order of rows
    high, low = (
        torch.zeros_like(entropies).scatter_reduce(0, scopes, values, reduce, include_self=False)
        for values, reduce in ((torch.where(real, entropies, -torch.inf), "amax"), (low, "amin"))
    )
    spread = high - low
    # Measured from the end that grows, so that no temperature overflows; the mean cancels it.
    origin = high if slope > 0 else low
    raw = (slope * (entropies - origin[scopes]) / spread[scopes]).exp()
    sums = group_sums(torch.where(real, raw, 0.0), scopes, order)
    counts = torch.zeros_like(sums).index_add(0, scopes, real.double())
    means = group_sums(torch.where(real, entropies, 0.0), scopes, order) / counts
    silent = ~(spread > 0) | (spread < min_spread) | (spread < relative_spread * means)
    return torch.where(silent[scopes] | ~real, 1.0, raw * (counts / sums)[scopes])
