"""How well AEM's coefficient knows the relative surprisal: Monte Carlo probe and exact cases.

`states` draws contexts from trajectories, `responses` fresh turns in them, `measures` takes
surprisals and alphas, `agreement` compares them with intervals; `proxies` holds corrections,
`exact` and `decomposition` judge all of them where every response can be listed.
"""

from turncredit.probe.agreement import Estimate, compare, sign_agreement, wilson
from turncredit.probe.decomposition import disagreement, steps
from turncredit.probe.exact import (
    ExactTurns,
    Moments,
    all_tree_turns,
    policy_moments,
    policy_turns,
    sampled_tree_turns,
    tree_moments,
)
from turncredit.probe.measures import (
    ResponseMeasures,
    fresh_alphas,
    measure,
    response_rows,
    training_alphas,
    training_relative,
)
from turncredit.probe.proxies import PROXIES, context_numbers, control_coefficient
from turncredit.probe.responses import (
    Responder,
    TinyResponder,
    draw_responses,
    enumerate_responses,
    tiny_responder,
)
from turncredit.probe.states import (
    State,
    all_states,
    held_out,
    read_states,
    sample_states,
    write_states,
)

__all__ = [
    "PROXIES",
    "Estimate",
    "ExactTurns",
    "Moments",
    "Responder",
    "ResponseMeasures",
    "State",
    "TinyResponder",
    "all_states",
    "all_tree_turns",
    "compare",
    "context_numbers",
    "control_coefficient",
    "disagreement",
    "draw_responses",
    "enumerate_responses",
    "fresh_alphas",
    "held_out",
    "measure",
    "policy_moments",
    "policy_turns",
    "read_states",
    "response_rows",
    "sample_states",
    "sampled_tree_turns",
    "sign_agreement",
    "steps",
    "tiny_responder",
    "training_alphas",
    "training_relative",
    "tree_moments",
    "wilson",
    "write_states",
]
