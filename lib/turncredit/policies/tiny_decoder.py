"""Decoding in lock-step: one token per row and step, with a cache of keys and values."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from turncredit.policies.products import addmm, mm
from turncredit.policies.tiny_blocks import Block, rotate

if TYPE_CHECKING:
    from turncredit.policies.tiny import TinyPolicy


class Decoder:
    """Rows that all stand at one position, `length`, with the keys and values of what they read.

    The equations of `Block` written for flat rows: at these sizes the number of calls decides the
    speed.  keys [layers, rows, d, tokens] and values [layers, rows, tokens, d] lie as the two
    products of attention read them.  The policy must not be updated while a decoder of it is in
    use.
    """

    def __init__(self, policy: "TinyPolicy", rows: int) -> None:
        settings = policy.settings
        depth = settings.width // settings.heads
        self.policy = policy
        self.length = 0
        self.keys = torch.empty(settings.layers, rows, depth, settings.max_tokens)
        self.values = torch.empty(settings.layers, rows, settings.max_tokens, depth)
        self._layers = [_layer(block) for block in policy.blocks]

    def step(self, token_ids: Tensor, speaking: list[int] | None = None) -> Tensor:
        """Feed one token per row, [rows]; returns hidden states [n, width] of the rows `speaking`.

        Those are given in ascending order; None: all rows.  The others leave only keys and values
        behind: the last block, which nobody hears, does not answer for them.
        """
        hidden, seen = self.policy.embedding.weight[token_ids], self.length + 1
        for layer, keys, values in zip(self._layers, self.keys, self.values, strict=True):
            queries = self._read(layer, hidden, keys, values)
            cached = keys[:, :, :seen], values[:, :seen]
            if layer is self._layers[-1] and speaking is not None and len(speaking) < len(hidden):
                heard = torch.tensor(speaking, dtype=torch.int64)
                hidden, queries = hidden.index_select(0, heard), queries.index_select(0, heard)
                cached = tuple(part.index_select(0, heard) for part in cached)
            hidden = _answer(layer, hidden, queries, *cached)
        self.length = seen
        norm = self.policy.final_norm
        return torch.layer_norm(hidden, hidden.shape[1:], norm.weight, norm.bias)

    def keep(self, rows: Tensor) -> None:
        """Go on with `rows` alone, of which one may stand more than once.

        For trajectories that are over, and for several that begin alike.
        """
        read = slice(self.length)
        keys, values = self.keys, self.values
        self.keys = keys.new_empty(keys.shape[0], len(rows), *keys.shape[2:])
        self.values = values.new_empty(values.shape[0], len(rows), *values.shape[2:])
        self.keys[..., read] = keys[..., read].index_select(1, rows)
        self.values[:, :, read] = values[:, :, read].index_select(1, rows)

    def _read(self, layer: "_Layer", hidden: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries [rows, heads, d] of hidden [rows, width]; keys and values gain a token."""
        shape, now = hidden.shape, self.length
        normed = torch.layer_norm(hidden, shape[1:], *layer.attention_norm)
        parts = mm(normed, layer.query_key_value).view(shape[0], -1, keys.shape[1])
        turned = rotate(parts[:, :-1], self.policy.rotations[now])
        keys[:, :, now] = turned[:, -1]
        values[:, now] = parts[:, -1]
        return turned[:, :-1]


class _Layer(NamedTuple):
    """Weights of a block, transposed as its products want them; queries are already scaled."""

    attention_norm: tuple[Tensor, Tensor]
    query_key_value: Tensor
    output: Tensor
    mlp_norm: tuple[Tensor, Tensor]
    up: Tensor
    down: Tensor


def _layer(block: Block) -> _Layer:
    query_key_value = block.query_key_value.weight.clone()
    width = query_key_value.shape[1]
    query_key_value[:width] *= (width // block.heads) ** -0.5
    maps = (query_key_value, block.output.weight, block.up.weight, block.down.weight)
    first, output, up, down = (weight.t() for weight in maps)
    norms = ((norm.weight, norm.bias) for norm in (block.attention_norm, block.mlp_norm))
    attention_norm, mlp_norm = norms
    return _Layer(attention_norm, first, output, mlp_norm, up, down)


def _answer(layer: _Layer, hidden: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The block's output [n, width], from what queries [n, heads, d] find in n rows' caches."""
    shares = torch.bmm(queries, keys).softmax(-1)
    gathered = torch.bmm(shares, values).view(hidden.shape)
    hidden = addmm(hidden, gathered, layer.output)
    normed = torch.layer_norm(hidden, hidden.shape[1:], *layer.mlp_norm)
    return addmm(hidden, mm(normed, layer.up).relu_(), layer.down)
