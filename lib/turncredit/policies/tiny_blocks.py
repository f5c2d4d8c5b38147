"""A transformer block with multi-query attention over packed rows."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turncredit.policies.packing import Packing


class Block(nn.Module):
    """Attention and MLP, each after a layer norm and added to the residual stream.

    All heads share one key and one value (multi-query attention, Shazeer 2019): a decoding step
    reads the whole cache, so its size decides the speed.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, width + 2 * width // heads, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def attend(self, hidden: Tensor, read: Packing, rotations: Tensor, future: Tensor) -> Tensor:
        """What attention gathers for hidden [n, width], packed as in `read`, in the same shape.

        `future` [tokens * heads, tokens] is -inf on later tokens: with one key for all heads the
        heads are further queries, and attention is two products.
        """
        depth = hidden.shape[1] // self.heads
        projected = self.query_key_value(self.attention_norm(hidden))
        parts = read.pad(projected).unflatten(-1, (self.heads + 2, depth))
        turned = rotate(parts[:, :, :-1], rotations[: parts.shape[1], None])
        queries, keys, values = turned[:, :, :-1], turned[:, :, -1], parts[:, :, -1]
        half = parts.shape[1] // 2  # no token of the first half reads the second
        later = future[half * self.heads :]
        early = (queries[:, :half], keys[:, :half], values[:, :half], future[: -len(later), :half])
        late = (queries[:, half:], keys, values, later)
        return read.unpad(torch.cat([_attention(*early), _attention(*late)], 1))

    def attend_at(
        self, hidden: Tensor, read: Packing, asking: Tensor, rotations: Tensor, future: Tensor
    ) -> Tensor:
        """`attend` for some tokens of each row alone.

        `asking` [rows, m] are their numbers among the packed ones and `future` [rows, m * heads,
        tokens]; the result is [rows, m, width].
        """
        width = hidden.shape[1]
        depth = width // self.heads
        normed = self.attention_norm(hidden)
        query_weight, key_value_weight = self.query_key_value.weight.split((width, 2 * depth))
        queries = F.linear(F.embedding(asking, normed), query_weight)
        queries = queries.unflatten(-1, (self.heads, depth))
        queries = rotate(queries, rotations[read.columns[asking]][:, :, None])
        keys, values = read.pad(F.linear(normed, key_value_weight)).split(depth, dim=-1)
        keys = rotate(keys, rotations[: keys.shape[1]])
        return _attention(queries, keys, values, future)

    def mix(self, hidden: Tensor, gathered: Tensor) -> Tensor:
        """The block's output at any positions, from hidden and gathered [..., width]."""
        hidden = hidden + self.output(gathered)
        return hidden + self.down(F.relu(self.up(self.mlp_norm(hidden))))


def _attention(queries: Tensor, keys: Tensor, values: Tensor, future: Tensor) -> Tensor:
    """queries [rows, m, heads, d] on keys and values [rows, tokens, d] to [rows, m, heads * d]."""
    rows, count, heads, depth = queries.shape
    asked = (queries * depth**-0.5).reshape(rows, count * heads, depth)
    scores = torch.bmm(asked, keys.transpose(1, 2)).add_(future)
    return torch.bmm(scores.softmax(-1), values).view(rows, count, heads * depth)


def rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Rotary positions: turn the channel pairs of [..., d] by the unit numbers [..., d / 2]."""
    pairs = torch.view_as_complex(vectors.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2)


def future_mask(asking: Tensor, read: Tensor, heads: int) -> Tensor:
    """-inf where position read [tokens] lies after asking [..., m]; [..., m * heads, tokens]."""
    later = read > asking.repeat_interleave(heads, -1)[..., None]
    return torch.zeros(later.shape).masked_fill_(later, -torch.inf)
