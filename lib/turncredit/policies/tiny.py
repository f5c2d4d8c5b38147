"""A transformer small enough to learn from scratch on a CPU, with a lock-step KV cache.

Pre-norm blocks, rotary positions, ReLU MLP, head tied to the embedding so that a word seen in a
document can be copied even if it was never an answer before.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turncredit.checkpoints import read_tensors, require_shapes, write_tensors
from turncredit.params import require_positive
from turncredit.seeding import torch_stream

_CHUNK_ROWS = 16


@dataclass(frozen=True)
class TinySettings:
    """Size of a tiny policy."""

    width: int
    layers: int
    heads: int
    max_tokens: int
    """Longest trajectory, prompt included."""

    def __post_init__(self) -> None:
        require_positive(self, "width", "layers", "heads", "max_tokens")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"width {self.width} must be an even multiple of heads {self.heads}")


class Cache:
    """Keys and values of all rows up to one common position: [layers, 2, rows, tokens, d]."""

    def __init__(self, settings: TinySettings, rows: int) -> None:
        self.memory = torch.empty(
            settings.layers, 2, rows, settings.max_tokens, settings.width // settings.heads
        )
        self.length = 0

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but `rows`, for trajectories that are over."""
        kept = self.memory[..., : self.length, :].index_select(2, rows)
        self.memory = torch.empty(*self.memory.shape[:2], len(rows), *self.memory.shape[3:])
        self.memory[..., : self.length, :] = kept


class Block(nn.Module):
    """Attention and MLP, each after a layer norm and added to the residual stream.

    All heads share one key and one value (multi-query attention, Shazeer 2019): a decoding step
    reads the whole cache, so its size decides the speed.
    """

    def __init__(self, settings: TinySettings) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, width + 2 * width // self.heads, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor, rotation: Tensor) -> Tensor:
        """hidden [rows, tokens, width], every token after those before it."""
        query, key, value = self._project(hidden, rotation)
        query = query.transpose(1, 2)
        key, value = (part.transpose(1, 2).expand_as(query) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._mix(hidden, mixed.transpose(1, 2))

    def decode(self, hidden: Tensor, rotation: Tensor, memory: Tensor, length: int) -> Tensor:
        """hidden [rows, 1, width]: the token at `length`; its key and value join `memory`."""
        query, key, value = self._project(hidden, rotation)
        memory[0, :, length] = key[:, 0, 0]
        memory[1, :, length] = value[:, 0, 0]
        keys, values = memory[:, :, None, : length + 1]
        return self._mix(hidden, F.scaled_dot_product_attention(query, keys, values))

    def _project(self, hidden: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query [rows, tokens, heads, d], key and value [rows, tokens, 1, d], rotated where due."""
        projected = self.query_key_value(self.attention_norm(hidden))
        parts = projected.unflatten(-1, (self.heads + 2, -1))
        turned = rotate(parts[:, :, :-1], rotation)
        return turned[:, :, :-1], turned[:, :, -1:], parts[:, :, -1:]

    def _mix(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The block's output from what attention gathered, [rows, tokens, heads, d]."""
        hidden = hidden + self.output(mixed.reshape(hidden.shape))
        return hidden + self.down(F.relu(self.up(self.mlp_norm(hidden))))


def rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Rotary positions: turn the channel pairs of [rows, tokens, heads, d] by [tokens, d / 2]."""
    pairs = torch.view_as_complex(vectors.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rotation[:, None]).flatten(-2)


class TinyPolicy(nn.Module):
    """Scores padded batches in one pass, or decodes rows in lock-step with a cache."""

    def __init__(self, settings: TinySettings, vocabulary_size: int, seed: int) -> None:
        super().__init__()
        self.settings = settings
        with torch.random.fork_rng(devices=[]):  # layers draw from torch's global stream
            self.embedding = nn.Embedding(vocabulary_size, settings.width)
            self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.final_norm = nn.LayerNorm(settings.width)
        angles = torch.outer(torch.arange(settings.max_tokens), _frequencies(settings))
        self.register_buffer(
            "rotations", torch.polar(torch.ones_like(angles), angles), persistent=False
        )
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        stream = torch_stream(seed, "policy weights")
        residual = 1.0 / math.sqrt(2 * self.settings.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = residual if name.endswith(("output.weight", "down.weight")) else 1.0
                deviation = scale / math.sqrt(parameter.shape[1])
                nn.init.normal_(parameter, std=deviation, generator=stream)

    def hidden(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, L], padded on the right, to hidden states [B, L, width]."""
        hidden = self.embedding(token_ids)
        for block in self.blocks:
            hidden = block(hidden, self.rotations[: token_ids.shape[1]])
        return self.final_norm(hidden)

    def decode(self, token_ids: Tensor, cache: Cache) -> Tensor:
        """Feed one token per row [rows] into the cache; returns hidden states [rows, width]."""
        hidden = self.embedding(token_ids).unsqueeze(1)
        rotation = self.rotations[cache.length : cache.length + 1]
        for block, memory in zip(self.blocks, cache.memory, strict=True):
            hidden = block.decode(hidden, rotation, memory, cache.length)
        cache.length += 1
        return self.final_norm(hidden.squeeze(1))

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] -> logits [..., vocabulary]."""
        return F.linear(hidden, self.embedding.weight)

    def score(self, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (nats) of the tokens under `mask`; all [B, L], 0 elsewhere.

        Rows are taken in small chunks of similar length and cut after their last masked token: less
        padding and memory that stays in cache make this about 1.7 times faster than one pass.
        Raises ValueError if a row's first token, which has no context, is under the mask.
        """
        if mask[:, 0].any():
            raise ValueError("mask: the first token of a row has no context to be scored under")
        lengths = (mask * torch.arange(1, mask.shape[1] + 1)).amax(1)
        chunks = lengths.argsort().split(_CHUNK_ROWS)
        scored = [self._score_chunk(token_ids, mask, c, int(lengths[c[-1]])) for c in chunks]
        places = tuple(torch.cat(part) for part in zip(*(s[:2] for s in scored), strict=True))
        empty = torch.zeros(mask.shape)
        logprobs, entropies = (
            torch.cat(part) for part in zip(*(s[2:] for s in scored), strict=True)
        )
        return empty.index_put(places, logprobs), empty.index_put(places, entropies)

    def _score_chunk(
        self, token_ids: Tensor, mask: Tensor, chunk: Tensor, length: int
    ) -> tuple[Tensor, ...]:
        """Row, column, log-prob and entropy of each masked token of the rows `chunk`."""
        ids = token_ids[chunk, :length]
        rows, columns = mask[chunk, :length].nonzero(as_tuple=True)
        logprobs = F.log_softmax(self.logits(self.hidden(ids)[rows, columns - 1]), dim=-1)
        chosen = logprobs.gather(1, ids[rows, columns].unsqueeze(1)).squeeze(1)
        return chunk[rows], columns, chosen, -(logprobs.exp() * logprobs).sum(-1)


def _frequencies(settings: TinySettings) -> Tensor:
    half = settings.width // settings.heads // 2
    return 10000.0 ** (-torch.arange(half) / half)


def save_policy(policy: TinyPolicy, path: Path) -> None:
    """Write the weights, atomically and with a checksum."""
    write_tensors(path, policy.state_dict())


def load_policy(policy: TinyPolicy, path: Path) -> None:
    """Read weights into `policy`; ValueError naming a file that is broken or of another shape."""
    try:
        weights = read_tensors(path)
        require_shapes(policy, weights)
    except ValueError as error:
        advice = "delete it to make a new one"
        raise ValueError(f"{path}: not weights of this policy ({error}); {advice}") from error
    policy.load_state_dict(weights)
