"""verl's synchronous trainer with our credit in the place of its advantages."""

from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer, trainer_base

from turncredit.verl_plugin.batches import TOKEN_FIELDS, Rows, credit_rows
from turncredit.verl_plugin.evaluations import evaluation_row
from turncredit.verl_plugin.outputs import FAILURES
from turncredit.verl_plugin.settings import TRAINER, check_config, read_method

FIELDS = (
    "uid", "prompts", "responses", "response_mask", "rm_scores", "extra_fields",
    "rollout_log_probs", *TOKEN_FIELDS,
)  # fmt: skip


@register_trainer(TRAINER)
class TurnCreditTrainer(PPOTrainerSync):
    """`PPOTrainerSync` whose advantages are those of `token_advantages`.

    Raises ValueError before anything is started for a configuration that `check_config` refuses.
    """

    def __init__(self, config: Any) -> None:
        from omegaconf import OmegaConf, open_dict

        plain = OmegaConf.to_container(config, resolve=True)
        check_config(plain)
        self.method, self.credit_settings = read_method(plain)
        with open_dict(config):  # any other name would get the buffer of the asynchronous trainers
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        """Write `advantages` and `returns` of the batch's rows, and our metrics."""
        real = real_rows(batch)
        data = trainer_base.tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS)
        )
        settings, step = self.credit_settings, self.global_steps
        advantages, returns, found = credit_rows(
            self.method, rows_of(data, real), seed=settings.seed, step=step
        )
        metrics.update({f"turncredit/{name}": value for name, value in found.items()})
        masks = data["response_mask"].unbind()
        fields = trainer_base.TensorDict(
            {
                "advantages": _nested(advantages, real, masks),
                "returns": _nested(returns or advantages, real, masks),
            },
            batch_size=len(batch),
        )
        return trainer_base.tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=fields
        )

    def _val_metrics_update(
        self, data_sources: list, sample_uids: list, infos: dict, *rest: Any, **more: Any
    ) -> dict[str, float]:
        """verl's own validation metrics, and the row of eval.csv where our agent loop played."""
        found = super()._val_metrics_update(data_sources, sample_uids, infos, *rest, **more)
        if "missing_rewards" not in infos:
            return found
        row = evaluation_row(infos) | {FAILURES: sum(infos[FAILURES])}
        return found | {f"turncredit_eval/{k}": v for k, v in row.items()}


def real_rows(batch: Any) -> list[int]:
    """Places of the rows that are trajectories, not padding.

    Raises ValueError for an agent loop that made several rows of one trajectory: they would count
    as further members of the group.
    """
    real = [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
    for place in real:
        if batch.keys[place].rsplit("_", 1)[-1] != "0":
            raise ValueError(f"row {batch.keys[place]} is a second output of one trajectory")
    return real


def rows_of(data: Any, real: list[int]) -> Rows:
    """The given rows of what verl's store returned: nested tensors and lists."""
    present = set(data.keys())

    def rows(name: str) -> list[Tensor]:
        every = data[name].unbind()
        return [every[place] for place in real]

    def listed(name: str) -> list[Any]:
        every = data.pop(name).tolist()
        return [every[place] for place in real]

    return Rows(
        prompts=rows("prompts"),
        responses=rows("responses"),
        masks=rows("response_mask"),
        uids=[str(uid) for uid in listed("uid")],
        scores=[float(score.sum()) for score in rows("rm_scores")],
        extras=[extra or {} for extra in listed("extra_fields")],
        tokens={name: rows(name) for name in TOKEN_FIELDS if name in present},
        rollout=rows("rollout_log_probs"),
    )


def _nested(values: list[Tensor], real: list[int], masks: tuple[Tensor, ...]) -> Tensor:
    """All rows as one jagged tensor, 0 in those that are padding."""
    known = dict(zip(real, values, strict=True))
    rows = [known.get(i, torch.zeros(len(mask))) for i, mask in enumerate(masks)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
