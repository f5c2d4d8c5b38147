"""Where AEM's coefficient leaves the sign of the exact relative surprisal, step by step."""

import torch
from torch import Tensor

from turncredit.probe.agreement import sign_agreement
from turncredit.probe.exact import ExactTurns
from turncredit.probe.proxies import group_means, published
from turncredit.signals import turn_entropies

STEPS = ("surprisal", "predictable", "per_token", "group_baseline", "coefficient")


def steps(
    turns: ExactTurns, *, temperature: float = 1.0, min_spread: float = 0.1
) -> dict[str, Tensor]:
    """From S - H_resp to 1 - alpha, one approximation more each; [B, T] float64, NaN if empty.

    `surprisal`       S - H_resp, exact.
    `predictable`     P - H_resp: the sum of token entropies in place of the surprisal.
    `per_token`       mean token entropy minus its exact mean in the state: the length is lost.
    `group_baseline`  the same minus its mean over the group's responses, not the state's.
    `coefficient`     1 - alpha: min-max, exponential, division by the mean; 0 in a silent group.
    """
    batch = turns.batch
    per_token = turn_entropies(batch).double()
    return {
        "surprisal": turns.relative,
        "predictable": per_token * batch.turn_lengths() - turns.entropies,
        "per_token": per_token - turns.mean_entropies,
        "group_baseline": per_token - group_means(batch, per_token),
        "coefficient": published(batch, temperature=temperature, min_spread=min_spread),
    }


def disagreement(
    turns: ExactTurns,
    *,
    temperature: float = 1.0,
    min_spread: float = 0.1,
    silent: str = "half",
    tolerance: float | None = None,
) -> dict[str, float]:
    """Share of turns, by weight, whose sign at each step is not that of S - H_resp.

    The first entry is 0, the last what AEM gets wrong; a difference of neighbours is what one
    approximation costs, or gives back.  Silent turns count half by default: left out, a step that
    silences many turns would be judged on others than its neighbours.  `tolerance`, in nats, keeps
    rounding from having a sign; by default 1e-9, and 1e-6 where log-probs or entropies are float32.
    """
    if tolerance is None:
        measured = (turns.batch.old_logprobs, turns.batch.entropies)
        tolerance = 1e-6 if any(values.dtype == torch.float32 for values in measured) else 1e-9
    exact, mass = turns.relative, turns.weights[:, None].expand_as(turns.relative)
    real = ~exact.isnan() & (exact.abs() > tolerance)
    found = {}
    for name, values in steps(turns, temperature=temperature, min_spread=min_spread).items():
        agreed = sign_agreement(
            values[real].tolist(),
            exact[real].tolist(),
            silent=silent,
            tolerance=tolerance,
            weights=mass[real].tolist(),
        )
        found[name] = 1 - agreed
    return found
