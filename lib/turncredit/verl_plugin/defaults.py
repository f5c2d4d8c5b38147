"""Defaults of verl that no agentic run wants: the files of a run have to say these keys.

What verl's defaults turn off or change behind the credit is refused by `settings` instead.
"""

from typing import Any

from turncredit.verl_plugin.cluster import ClusterRun, holds

STATED: dict[str, tuple[Any, str]] = {
    "data.max_prompt_length": (512, "a longer prompt would end the run"),
    "data.max_response_length": (512, "it bounds all turns and observations together"),
    "data.seed": (None, "the order of the data would be left to chance"),
    "actor_rollout_ref.model.path": (
        "~/models/deepseek-llm-7b-chat",
        "it is another model than the one that is sized",
    ),
    "actor_rollout_ref.model.use_remove_padding": (True, "it needs flash-attn"),
    "actor_rollout_ref.actor.checkpoint.save_contents": (
        ["model", "optimizer", "extra"],
        "without hf_model no checkpoint opens as a policy",
    ),
    "actor_rollout_ref.rollout.agent.default_agent_loop": (
        "single_turn_agent",
        "it plays no environment",
    ),
    "actor_rollout_ref.rollout.max_model_len": (None, "vLLM would make room for the model's own"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size": (2, "it halves the replicas"),
    "trainer.logger": (["console", "wandb"], "it needs an account of Weights & Biases"),
    "trainer.save_freq": (-1, "nothing would be saved"),
    "trainer.test_freq": (-1, "nothing would be evaluated"),
    "trainer.total_training_steps": (None, "the questions would be gone through 30 times"),
    "trainer.val_before_train": (True, "it costs an evaluation at every start"),
}
"""Key to verl's default and what is wrong with leaving it at that."""


def require_stated(run: ClusterRun) -> None:
    """ValueError naming a key of `STATED` that no file of the run says, and what would hold."""
    for key, (value, why) in STATED.items():
        if not holds(run.verl, key.split(".")):
            raise ValueError(f"{key} is not said, so that verl's {value!r} would hold: {why}")
