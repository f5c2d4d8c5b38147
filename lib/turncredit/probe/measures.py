"""What is measured of responses: surprisals, entropies, AEM's coefficient.  N states, K each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.aem import aem, self_calibrated
from turncredit.credit.gates import known_entropies
from turncredit.probe.states import State
from turncredit.records import Turn
from turncredit.signals import turn_entropies, turn_surprisals


@dataclass(frozen=True, eq=False)
class ResponseMeasures:
    """K fresh responses in each of N states, float64, nats."""

    surprisals: Tensor
    """[N, K]: S = -log p of the whole response, the sum over its tokens."""
    predictable: Tensor
    """[N, K]: sum of the token entropies, the part of S known before the tokens are drawn (Doob,
    AEM's appendix C.4); NaN where the responder gave none."""
    lengths: Tensor
    """[N, K] int64: tokens."""

    @property
    def martingales(self) -> Tensor:
        """[N, K]: S minus its predictable part; mean 0 in every state."""
        return self.surprisals - self.predictable

    @property
    def per_token(self) -> Tensor:
        """[N, K]: length-normalised surprisal."""
        return self.surprisals / self.lengths

    @property
    def mean_entropies(self) -> Tensor:
        """[N, K]: mean token entropy, which AEM reads."""
        return self.predictable / self.lengths

    @property
    def entropies(self) -> Tensor:
        """[N]: mean surprisal of the state, the Monte Carlo estimate of H_resp."""
        return self.surprisals.mean(1)

    @property
    def standard_errors(self) -> Tensor:
        """[N]: of `entropies`."""
        return self.surprisals.std(1) / self.surprisals.shape[1] ** 0.5

    @property
    def relative(self) -> Tensor:
        """[N, K]: S - H_resp of each response, its own mean included in H_resp: 0 on average."""
        return self.surprisals - self.entropies[:, None]


def measure(responses: Sequence[Sequence[Turn]]) -> ResponseMeasures:
    """Measures of as many responses for every state; ValueError for unequal numbers.

    >>> turns = [Turn((5,), (-s,), (2.0,), (), "unfinished") for s in (2.0, 3.0, 1.0, 2.0)]
    >>> measure([turns]).relative
    tensor([[ 0.,  1., -1.,  0.]], dtype=torch.float64)
    """
    counts = sorted({len(turns) for turns in responses})
    if len(counts) != 1 or not counts[0]:
        raise ValueError(f"responses: {counts} in a state; need one number, at least 1")

    def table(values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return ResponseMeasures(
        table([[-sum(turn.sampled_logprobs) for turn in turns] for turns in responses]),
        table([[sum(turn.sampled_entropies) for turn in turns] for turns in responses]),
        torch.tensor([[len(turn.sampled_ids) for turn in turns] for turns in responses]),
    )


def fresh_alphas(
    measures: ResponseMeasures,
    batch: TurnBatch,
    states: Sequence[State],
    *,
    temperature: float = 1.0,
    min_spread: float = 0.1,
) -> Tensor:
    """[N, K]: AEM's alpha of each fresh response, in the place of the recorded one in its group.

    batch: the trajectories that the states were drawn from, in their order, with their groups and
    entropies as the loop has them.  Minimum, maximum and mean run over all responses of the group,
    the fresh one instead of the recorded one (`credit.aem`).  Raises ValueError naming the state
    for unknown entropies of responses and for a state that is not in the batch.
    """
    _check_states(batch, states)
    unknown = measures.predictable.isnan().any(1)
    if unknown.any():
        raise ValueError(f"{states[int(unknown.nonzero()[0])].name}: responses without entropies")
    entropies, real = known_entropies(batch, turn_entropies(batch))
    found = []
    for state, fresh in zip(states, measures.mean_entropies, strict=True):
        others = real & (batch.group_ids == batch.group_ids[state.row])[:, None]
        others[state.row, state.turn] = False
        rest = entropies[others].expand(len(fresh), -1)
        members = torch.cat([fresh[:, None], rest], 1)
        scopes = torch.arange(len(fresh))[:, None].expand_as(members).flatten()
        counted = torch.ones_like(scopes, dtype=torch.bool)
        alpha = self_calibrated(members.flatten(), scopes, counted, -temperature, min_spread)
        found.append(alpha.view(members.shape)[:, 0])
    return torch.stack(found)


def training_alphas(batch: TurnBatch, states: Sequence[State], **options: Any) -> Tensor:
    """[N] float64: the recorded responses' alpha, as `credit.aem` with `options` gives it.

    Raises ValueError for a state that is not in the batch, and what `aem` raises.
    """
    _check_states(batch, states)
    base = torch.zeros(batch.response_mask.shape, dtype=torch.float64)
    return _at(aem(batch, base, **options), states)


def training_relative(
    measures: ResponseMeasures, batch: TurnBatch, states: Sequence[State]
) -> Tensor:
    """[N] float64, nats: the recorded responses' surprisal minus H_resp of fresh ones.

    The published probe's, with opposite sign.  Unlike `ResponseMeasures.relative` the response is
    not in the mean.  Raises ValueError for a state that is not in the batch.
    """
    _check_states(batch, states)
    return _at(turn_surprisals(batch), states).double() - measures.entropies


def response_rows(
    states: Sequence[State], measures: ResponseMeasures, alphas: Tensor
) -> list[dict[str, float | int | str]]:
    """One row per fresh response, for a table; alphas [N, K]."""
    columns = {
        "surprisal": measures.surprisals,
        "surprisal_per_token": measures.per_token,
        "predictable": measures.predictable,
        "tokens": measures.lengths,
        "relative_surprisal": measures.relative,
        "alpha": alphas,
    }
    lists = {name: values.tolist() for name, values in columns.items()}
    return [
        {"question_id": s.question_id, "step": s.step, "row": s.row, "turn": s.turn, "response": k}
        | {name: values[n][k] for name, values in lists.items()}
        for n, s in enumerate(states)
        for k in range(measures.surprisals.shape[1])
    ]


def _check_states(batch: TurnBatch, states: Sequence[State]) -> None:
    lengths = batch.turn_lengths()
    for state in states:
        inside = state.row < lengths.shape[0] and state.turn < lengths.shape[1]
        if not inside or not lengths[state.row, state.turn]:
            raise ValueError(f"{state.name}: the batch has no response there")


def _at(values: Tensor, states: Sequence[State]) -> Tensor:
    """[N] of [B, T]."""
    return values[[state.row for state in states], [state.turn for state in states]]
