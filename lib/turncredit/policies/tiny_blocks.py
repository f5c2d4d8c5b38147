"""A transformer block with multi-query attention over packed rows."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turncredit.policies.packing import Packing
from turncredit.policies.products import Linear, feed_forward, linear

PIECES = 3
"""In which the queries of a row are asked."""


class Block(nn.Module):
    """Attention and MLP, each after a layer norm and added to the residual stream.

    All heads share one key and one value (multi-query attention, Shazeer 2019): a decoding step
    reads the whole cache, so its size decides the speed.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = Linear(width, width + 2 * width // heads)
        self.output = Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = Linear(width, 4 * width)
        self.down = Linear(4 * width, width)

    def attend(self, hidden: Tensor, read: Packing, rotations: Tensor) -> Tensor:
        """What attention gathers for hidden [n, width], packed as in `read`, in the same shape."""
        depth = hidden.shape[1] // self.heads
        projected = self.query_key_value(self.attention_norm(hidden))
        parts = read.pad(projected).unflatten(-1, (self.heads + 2, depth))
        turned = rotate(parts[:, :, :-1], rotations[: parts.shape[1], None])
        queries, keys = turned.split((self.heads, 1), dim=2)
        columns = torch.arange(parts.shape[1])
        return read.unpad(_attention(queries, columns, keys.squeeze(2), parts[:, :, -1]))

    def attend_at(self, hidden: Tensor, read: Packing, asking: Tensor, rotations: Tensor) -> Tensor:
        """`attend` for some tokens of each row alone.

        `asking` [rows, m] are their numbers among the packed ones; the result is [rows, m, width].
        """
        width = hidden.shape[1]
        depth = width // self.heads
        normed, columns = self.attention_norm(hidden), read.columns[asking]
        query_weight, key_value_weight = self.query_key_value.weight.split((width, 2 * depth))
        queries = linear(F.embedding(asking, normed), query_weight)
        queries = rotate(queries.unflatten(-1, (self.heads, depth)), rotations[columns][:, :, None])
        keys, values = read.pad(linear(normed, key_value_weight)).split(depth, dim=-1)
        keys = rotate(keys, rotations[: keys.shape[1]])
        return _attention(queries, columns, keys, values)

    def mix(self, hidden: Tensor, gathered: Tensor) -> Tensor:
        """The block's output at any positions, from hidden and gathered [..., width]."""
        hidden = hidden + self.output(gathered)
        normed = self.mlp_norm(hidden)
        return hidden + feed_forward(normed, self.up.weight, self.down.weight)


def _attention(queries: Tensor, columns: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """queries [rows, m, heads, d] on keys and values [rows, tokens, d] to [rows, m, heads * d].

    `columns` [m] or [rows, m] is where each stands.  They ask piece by piece, since early ones read
    the first keys alone.
    """
    pieces = zip(
        queries.tensor_split(PIECES, dim=1), columns.tensor_split(PIECES, dim=-1), strict=True
    )
    return torch.cat([_gathered(q, at, keys, values) for q, at in pieces], dim=1)


def _gathered(queries: Tensor, columns: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`_attention` in one piece.

    With one key for all heads the heads are further queries, and attention is two products.
    """
    rows, count, heads, depth = queries.shape
    seen = int(columns.max()) + 1 if columns.numel() else 0
    asked = (queries * depth**-0.5).reshape(rows, count * heads, depth)
    scores = torch.bmm(asked, keys[:, :seen].transpose(1, 2)).unflatten(1, (count, heads))
    shares = (scores + _future(columns, seen)).softmax(-1).flatten(1, 2)
    return torch.bmm(shares, values[:, :seen]).view(rows, count, heads * depth)


def _future(columns: Tensor, seen: int) -> Tensor:
    """-inf where a key lies after the query's column, for all heads: [..., m, 1, seen]."""
    later = torch.arange(seen) > columns[..., None, None]
    return torch.zeros(later.shape).masked_fill_(later, -torch.inf)


def rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Rotary positions: turn the channel pairs of [..., d] by the unit numbers [..., d / 2]."""
    pairs = torch.view_as_complex(vectors.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2)
