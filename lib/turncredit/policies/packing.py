"""Rows of unequal length without their padding, for layers that treat every token alike."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

STRIDE = 64
"""Packed tokens come in multiples of this: oneDNN makes itself a program for each new shape of a
product, and making one takes longer than the product."""


class Packing(NamedTuple):
    """Some tokens of each row, one row after another, and where each lies in a padded table.

    Norms and products run over the n packed tokens alone; attention needs them by row, so it pads.
    At the end stand copies of the table's first place up to a multiple of STRIDE, which nothing
    reads.
    """

    rows: Tensor
    """[n] the row of each packed token, ascending up to the copies."""
    columns: Tensor
    """[n] its column in that row."""
    slots: Tensor
    """[n] its place in the padded table [rows, longest], counted row by row."""
    members: Tensor
    """[rows, longest] the packed token in each place of the table; 0 where there is none."""

    def pad(self, packed: Tensor) -> Tensor:
        """Values [n, width] of packed tokens as [rows, longest, width]."""
        return F.embedding(self.members, packed)

    def unpad(self, padded: Tensor) -> Tensor:
        """Inverse of `pad`."""
        return F.embedding(self.slots, padded.flatten(0, 1))


def pack(rows: Tensor, columns: Tensor, count: int) -> Packing:
    """The packing of places (rows, columns), ascending by row, in a table of `count` rows."""
    counts = torch.bincount(rows, minlength=count)
    numbers = torch.arange(len(rows))
    longest = int(counts.max()) if count else 0
    slots = rows * longest + numbers - (counts.cumsum(0) - counts)[rows]
    members = slots.new_zeros(count * longest).index_copy_(0, slots, numbers)
    filled = (F.pad(part, (0, -len(rows) % STRIDE)) for part in (rows, columns, slots))
    return Packing(*filled, members.view(count, longest))
