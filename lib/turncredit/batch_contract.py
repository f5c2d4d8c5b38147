"""What the tensors of a `TurnBatch`, and those handed to a function beside one, must be.

Numbers are float32, or float64 where a check wants to be exact.  Half precision is refused, not
converted: a log-prob of bfloat16 is off by up to 0.4 %, more than a sequence's clip range, and what
is lost cannot be brought back here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from turncredit.batching import TurnBatch

IDS, FLOATS, FLAGS = "int64", "float32 or float64", "bool"
TYPES = {IDS: (torch.int64,), FLOATS: (torch.float32, torch.float64), FLAGS: (torch.bool,)}
LAYOUT = {
    "token_ids": ("BL", IDS), "response_mask": ("BL", FLAGS), "turn_ids": ("BL", IDS),
    "old_logprobs": ("BL", FLOATS), "entropies": ("BL", FLOATS),
    "rewards": ("B", FLOATS), "success": ("B", FLAGS), "group_ids": ("B", IDS),
    "rollout_logprobs": ("BL", FLOATS), "ref_logprobs": ("BL", FLOATS),
    "teacher_logprobs": ("BL", FLOATS), "values": ("BL", FLOATS),
    "turn_rewards": ("BT", FLOATS), "anchor_ids": ("BT", IDS),
    "grounded": ("B", FLAGS), "oracle_turn": ("B", IDS),
}  # fmt: skip
"""Axes and type of each field."""
REQUIRED = tuple(LAYOUT)[:8]
LOGPROBS = ("old_logprobs", "rollout_logprobs", "ref_logprobs", "teacher_logprobs")
ROUNDING = 1e-3
"""How far above 0 a log-probability, or below 0 an entropy, may lie through rounding."""


def check_layout(tensors: Mapping[str, Any]) -> None:
    """Refuse fields of a batch with another shape, type or device; reads no value.

    Raises TypeError naming the field for what is no tensor, and ValueError for the rest.
    """
    sizes: dict[str, int] = {}
    for name, value in tensors.items():
        axes, kind = LAYOUT[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"TurnBatch.{name}: {type(value).__name__}, not a tensor")
        _check_shape(name, value, axes, sizes)
        if value.dtype not in TYPES[kind]:
            raise ValueError(f"TurnBatch.{name}: type {value.dtype}, not {kind}")
        device = tensors["token_ids"].device
        if value.device != device:
            raise ValueError(f"TurnBatch.{name}: on {value.device}, token_ids on {device}")


def _check_shape(name: str, value: Tensor, axes: str, sizes: dict[str, int]) -> None:
    expected = [sizes.setdefault(axis, size) for axis, size in zip(axes, value.shape, strict=False)]
    if value.dim() != len(axes) or list(value.shape) != expected:
        wanted = ", ".join(f"{axis} = {sizes.get(axis, '?')}" for axis in axes)
        raise ValueError(f"TurnBatch.{name}: shape {tuple(value.shape)}, not [{wanted}]")


def check_values(batch: "TurnBatch", *, group_size: int | None) -> None:
    """What `TurnBatch.validate` promises."""
    mask, turns, width = batch.response_mask, batch.turn_ids, batch.num_turns
    _refuse(batch, "turn_ids", mask & (turns < 0), "has a sampled token without a turn")
    _refuse(batch, "turn_ids", ~mask & (turns != -1), "has a turn outside response_mask")
    highest_so_far = torch.where(mask, turns, -1).cummax(dim=1).values
    _refuse(batch, "turn_ids", mask & (turns < highest_so_far), "decreases along the row")
    _refuse(batch, "turn_ids", turns >= width, f"has a turn beyond T = {width}")
    _refuse(batch, "token_ids", batch.token_ids < 0, "has a negative id")
    _refuse(batch, "rewards", batch.rewards.isinf(), "is infinite")
    if group_size is not None:
        _, group, sizes = batch.group_ids.unique(return_inverse=True, return_counts=True)
        _refuse(batch, "group_ids", sizes[group] != group_size, f"is in no group of {group_size}")
    impossible = batch.entropies.isinf() | (batch.entropies < -ROUNDING)
    _refuse(batch, "entropies", mask & impossible, "is infinite or negative at a sampled token")
    _check_optional(batch)


def _check_optional(batch: "TurnBatch") -> None:
    mask = batch.response_mask
    for name in LOGPROBS:
        value = getattr(batch, name)
        if value is not None:
            wrong = mask & (~value.isfinite() | (value > ROUNDING))
            _refuse(batch, name, wrong, "is not a log-probability at a sampled token")
    if batch.values is not None:
        wrong = mask & ~batch.values.isfinite()
        _refuse(batch, "values", wrong, "is not finite at a sampled token")
    if batch.turn_rewards is not None:
        read = batch.turn_lengths() > 0
        _refuse(batch, "turn_rewards", read & batch.turn_rewards.isinf(), "is infinite")
    if batch.oracle_turn is not None:
        outside = (batch.oracle_turn < -1) | (batch.oracle_turn >= max(batch.num_turns, 1))
        _refuse(batch, "oracle_turn", outside, f"is not in -1 .. {batch.num_turns - 1}")


def _refuse(batch: "TurnBatch", name: str, bad: Tensor, complaint: str) -> None:
    if bad.any():
        axis = "turn" if LAYOUT[name][0] == "BT" else "token"
        place, value = first_place(bad, getattr(batch, name), axis)
        raise ValueError(f"TurnBatch.{name}: {place} {complaint} (value {value})")


def first_place(bad: Tensor, values: Tensor, axis: str) -> tuple[str, float]:
    """Where the first True of `bad`, [B] or [B, N], stands in words, and the value there."""
    row, *column = bad.nonzero()[0].tolist()
    place = f"row {row}, {axis} {column[0]}" if column else f"row {row}"
    return place, values[(row, *column)].item()


def check_floats(subject: str, value: Any, axes: str, shape: tuple[int, ...]) -> None:
    """ValueError that starts with `subject` unless `value` is float32 or float64 of that shape.

    Another shape could broadcast in silence, and whole numbers or flags would count as numbers.

    >>> check_floats("ppo_clip: advantages are", torch.ones(2).bool(), "[B]", (2,))
    Traceback (most recent call last):
    ValueError: ppo_clip: advantages are torch.bool of shape (2,), not float32 or float64 [B] = (2,)
    """
    if not isinstance(value, Tensor):
        found = type(value).__name__
    elif value.shape != shape or value.dtype not in TYPES[FLOATS]:
        found = f"{value.dtype} of shape {tuple(value.shape)}"
    else:
        return
    raise ValueError(f"{subject} {found}, not {FLOATS} {axes} = {tuple(shape)}")


def check_logprobs(subject: str, logprobs: Any, mask: Tensor) -> None:
    """ValueError unless `logprobs` are float32 or float64 [B, L] and at most 0 at sampled tokens.

    mask: [B, L] bool.  Advantages, logits and probabilities in the place of log-probs have the
    same shape and type, but nearly always one of them is above 0.  NaN passes: it stays visible.
    """
    check_floats(subject, logprobs, "[B, L]", tuple(mask.shape))
    wrong = mask & (logprobs.detach() > ROUNDING)
    if wrong.any():
        place, value = first_place(wrong, logprobs, "token")
        raise ValueError(
            f"{subject} {value:.6g} at {place}, above 0 and so no log-probabilities: were"
            " advantages, logits or probabilities given in their place?"
        )
