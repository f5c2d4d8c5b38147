"""Small batches for tests, and transformations that must not matter."""

import math

from hypothesis import strategies as st

from turncredit.batching import TurnBatch
from turncredit.laws.examples import (
    FILL,
    TOKEN_FIELDS,
    current_logprobs,
    insert_observations,
    make_batch,
    poison,
    with_masked_rows,
)

__all__ = [
    "FILL",
    "TOKEN_FIELDS",
    "current_logprobs",
    "insert_observations",
    "make_batch",
    "poison",
    "ragged_batches",
    "with_masked_rows",
]


@st.composite
def ragged_batches(draw: st.DrawFn) -> TurnBatch:
    """Groups of 2 to 4: empty and single turns, ties, all-fail, all-success, missing rewards."""
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    row = st.lists(st.integers(0, 4), min_size=1, max_size=4)
    turn_lengths = [draw(row) for _ in groups]
    palette = draw(
        st.sampled_from([[0.0], [1.0], [0.0, 1.0], [0.1, 0.7, 1.0], [0.0, 1.0, math.nan]])
    )
    rewards = [draw(st.sampled_from(palette)) for _ in groups]
    return make_batch(turn_lengths, rewards=rewards, groups=groups, seed=draw(st.integers(0, 99)))
