"""Rows that leave a live decoder at an earlier token, and decoders put side by side.

Keys and values of what was read are copied, never computed again.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turncredit.policies.protocol import Decoder


def forked(decoder: Decoder, rows: Tensor, length: int) -> Decoder:
    """A decoder of `rows`, [n] int64, as they were after `length` tokens; `decoder` stays as it is.

    A row may stand more than once.  Everything fed must have been read, as after a `step` in which
    a row spoke.  Raises ValueError for a length that was not reached yet, and for an earlier one
    where layers forget what they read (sliding windows).
    """
    if not 0 <= length <= decoder.length:
        raise ValueError(f"length = {length} is not in 0..{decoder.length}, what was read")
    twin = copy.copy(decoder)  # the policy's weights stay shared
    twin.length = length
    if not hasattr(decoder, "cache"):  # the tiny policy's keys and values are replaced, not written
        twin.keep(rows)
        return twin
    if length < decoder.length and any(layer.is_sliding for layer in decoder.cache.layers):
        raise ValueError("a cache of sliding windows cannot go back: measure 1 token (k = 1)")
    places = rows.to(decoder.policy.device)
    twin.cache = _with_layers(decoder.cache, lambda n, values: values[places, :, :length])
    twin._waiting = []
    return twin


def joined(first: Decoder, second: Decoder) -> Decoder:
    """A decoder of the rows of both, those of `first` first; both stand at the same token.

    Neither may be used afterwards.  Raises ValueError for two that stand at different tokens.
    """
    if first.length != second.length:
        raise ValueError(f"decoders stand at tokens {first.length} and {second.length}")
    both = copy.copy(first)
    if not hasattr(first, "cache"):
        both.keys = torch.cat([first.keys, second.keys], dim=1)
        both.values = torch.cat([first.values, second.values], dim=1)
        return both
    for decoder in (first, second):
        decoder.keep(torch.arange(len(decoder.cache.layers[0].keys)))  # reads what waits
    others = [part for layer in second.cache.layers for part in (layer.keys, layer.values)]
    both.cache = _with_layers(first.cache, lambda n, values: torch.cat([values, others[n]]))
    both._waiting = []
    return both


def _with_layers(cache: Any, changed: Callable[[int, Tensor], Tensor]) -> Any:
    """A copy of a language model's cache with other keys and values, numbered layer by layer."""
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    for number, layer in enumerate(twin.layers):
        layer.keys = changed(2 * number, layer.keys)
        layer.values = changed(2 * number + 1, layer.values)
    return twin
