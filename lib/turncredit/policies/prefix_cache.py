"""A prefix read once, in one pass, and shared by any number of continuations."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from turncredit.policies.protocol import Decoder, Policy


def read_prefix(policy: Policy, prefix_ids: Sequence[int]) -> tuple[Tensor, Decoder]:
    """Hidden state [1, width] after the prefix, and the decoder of one row that has read it.

    Raises ValueError for a prefix that is empty or leaves no room for a token.
    """
    longest = policy.settings.max_tokens
    if not 0 < len(prefix_ids) < longest:
        raise ValueError(
            f"prefix_ids: {len(prefix_ids)} ids; need 1 to max_tokens - 1 = {longest - 1}"
        )
    decoder = policy.decoder(1)
    *before, last = prefix_ids
    for token in before:
        decoder.step(torch.tensor([token]), [])
    return decoder.step(torch.tensor([last])), decoder


def copies(decoder: Decoder, rows: int) -> Decoder:
    """A decoder of `rows` rows that go on from the only row of `decoder`, which stays as it is.

    Everything it fed must have been read, as after a `step` in which the row spoke.  `keep` of what
    is returned may name each row once.
    """
    if PackedRows.can_continue(decoder):
        return PackedRows(decoder, rows)
    copied = copy.copy(decoder)  # the policy's weights stay shared
    if hasattr(decoder, "cache"):  # a model's cache is written into; the tiny policy's is replaced
        copied.cache = copy.deepcopy(decoder.cache)
    copied.keep(torch.zeros(rows, dtype=torch.int64))
    return copied


class PackedRows:
    """Continuations of one prefix, packed behind it into a single row of a language model's cache.

    A token stands where it would stand in its own row and sees the prefix and that row alone, by
    the mask.  So keys and values of the prefix exist once, and no step copies them per row (a copy
    for each of 16 rows takes most of the time of a small model).  Keys of rows that are over stay.
    """

    @staticmethod
    def can_continue(decoder: Decoder) -> bool:
        """Whether it is a language model's, of one row, whose layers take any mask."""
        cache, settings = getattr(decoder, "cache", None), decoder.policy.settings
        return (
            cache is not None
            and settings.attention == "sdpa"
            and not any(layer.is_sliding for layer in cache.layers)
        )

    def __init__(self, decoder: Decoder, rows: int) -> None:
        self.policy = decoder.policy
        self.length = decoder.length
        self._cache = copy.deepcopy(decoder.cache)
        self._weights = self.policy.decoding_weights()
        device = self.policy.device
        self._rows = torch.arange(rows, device=device)
        self._owners = torch.full((decoder.length,), _EVERYONE, device=device)
        """Row of each key."""

    def step(self, token_ids: Tensor, speaking: list[int] | None = None) -> Tensor:
        """See `Decoder`."""
        self._owners = torch.cat([self._owners, self._rows])
        seen = (self._owners == _EVERYONE) | (self._owners == self._rows[:, None])
        hidden = self.policy.hidden(
            token_ids[None],
            weights=self._weights,
            past_key_values=self._cache,
            use_cache=True,
            attention_mask=seen[None, None],
            position_ids=torch.full_like(self._rows, self.length)[None],
        )[0]
        self.length += 1
        return hidden if speaking is None else hidden[speaking]

    def keep(self, rows: Tensor) -> None:
        """See `Decoder`; each of `rows` stands once."""
        self._rows = self._rows[rows.to(self._rows.device)]


_EVERYONE = -1
"""Owner of the prefix's keys."""
