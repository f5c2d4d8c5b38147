"""How well AEM's coefficient knows the relative surprisal: Monte Carlo probe and exact cases.

`states` draws contexts from trajectories, `responses` fresh turns in them (of a policy; `endpoint`
those of a served model), `measures` takes surprisals and alphas, `agreement` compares them with
intervals; `proxies` holds corrections, `exact` and `decomposition` judge all of them where every
response can be listed; `runs` keeps a probe on disk, and `tables` and `trained_trees` say what came
of it.
"""

from turncredit.probe.agreement import Estimate, compare, sign_agreement, wilson
from turncredit.probe.choice import best_proxy, choice_rows
from turncredit.probe.decomposition import disagreement, steps
from turncredit.probe.endpoint import Endpoint, least_entropy
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
from turncredit.probe.over_seeds import over_seeds
from turncredit.probe.proxies import PROXIES, context_numbers, control_coefficient
from turncredit.probe.responses import (
    PolicyResponder,
    Responder,
    draw_responses,
    enumerate_responses,
    policy_responder,
)
from turncredit.probe.runs import Probe, Probed, ProbeSettings, weights_hash
from turncredit.probe.states import (
    State,
    all_states,
    held_out,
    read_states,
    sample_states,
    write_states,
)
from turncredit.probe.tables import (
    agreement_table,
    exact_proxy_table,
    proxy_table,
    response_table,
)
from turncredit.probe.trained_trees import (
    disagreement_rows,
    random_tree_turns,
    trained_logits,
)

__all__ = [
    "PROXIES",
    "Endpoint",
    "Estimate",
    "ExactTurns",
    "Moments",
    "PolicyResponder",
    "Probe",
    "ProbeSettings",
    "Probed",
    "Responder",
    "ResponseMeasures",
    "State",
    "agreement_table",
    "all_states",
    "all_tree_turns",
    "best_proxy",
    "choice_rows",
    "compare",
    "context_numbers",
    "control_coefficient",
    "disagreement",
    "disagreement_rows",
    "draw_responses",
    "enumerate_responses",
    "exact_proxy_table",
    "fresh_alphas",
    "held_out",
    "least_entropy",
    "measure",
    "over_seeds",
    "policy_moments",
    "policy_responder",
    "policy_turns",
    "proxy_table",
    "random_tree_turns",
    "read_states",
    "response_rows",
    "response_table",
    "sample_states",
    "sampled_tree_turns",
    "sign_agreement",
    "steps",
    "trained_logits",
    "training_alphas",
    "training_relative",
    "tree_moments",
    "weights_hash",
    "wilson",
    "write_states",
]
