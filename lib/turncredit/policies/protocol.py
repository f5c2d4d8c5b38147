"""What the rollout engine and the loop ask of a policy and of its tokens."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

MessageEnd = Callable[[Sequence[int]], bool]
"""Whether a message of these sampled ids, which did not end before the last one, is over."""


class Tokens(Protocol):
    """Text to ids and back.  Policy-sampled ids stay ids: only other text is ever encoded."""

    @property
    def entries(self) -> tuple[str, ...]:
        """What each id stands for, in order: equal entries are the same tokens."""

    def __len__(self) -> int: ...

    def id(self, word: str) -> int:
        """Id of a word that is one token; KeyError naming it if there is none."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of an observation, or of a scripted message."""

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Ids of an episode's prompt, with whatever the model wants to stand around it."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a message as the environment reads it, without control tokens."""

    def message_end(self, closing: Sequence[str]) -> MessageEnd:
        """Where a message ends when any of the tags `closing` does.

        Raises ValueError naming a tag that these tokens cannot spell.
        """


class Decoder(Protocol):
    """Rows that all stand at one position, with what was read so far."""

    length: int
    """Tokens fed to each row."""

    def step(self, token_ids: Tensor, speaking: list[int] | None = None) -> Tensor:
        """Feed one token per row, [rows]; returns hidden states [n, width] of the rows `speaking`.

        Those are given in ascending order; None: all rows.  Nobody wants the others.
        """

    def keep(self, rows: Tensor) -> None:
        """Go on with `rows`, [kept] int64, alone, of which one may stand more than once."""


class PolicySettings(Protocol):
    """What every policy's settings hold."""

    max_tokens: int
    """Longest trajectory, prompt included."""


class Policy(Protocol):
    """Scores padded batches, or decodes rows in lock-step; also a `torch.nn.Module`."""

    settings: PolicySettings

    def decoder(self, rows: int) -> Decoder:
        """Decoding of `rows` rows in lock-step, from an empty context."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] -> logits [..., vocabulary]."""

    def score(self, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (nats) of the tokens under `mask`; all [B, L], 0 elsewhere."""

    def parameters(self) -> Any:
        """Everything an optimiser may change, and what is frozen."""
