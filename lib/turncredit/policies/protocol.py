"""What the rollout engine and the loop ask of a policy and of its tokens."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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


class Message(NamedTuple):
    """What a sampling engine said: one value for each token, in order."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Nats, of the distribution sampled from."""
    entropies: tuple[float, ...]
    """Nats, of that distribution; NaN where the engine does not compute them."""


class Engine(Protocol):
    """Samples messages, any number of them at a time."""

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        ended: MessageEnd,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> Message:
        """The message after `token_ids`: up to where it has `ended`, or `max_tokens` tokens.

        Sampled from the full vocabulary at `temperature`.  No engine cuts the distribution (top_p,
        top_k, min_p): log-probs are compared with those of a training engine that cuts nothing.
        """


class PolicySettings(Protocol):
    """What every policy's settings hold."""

    max_tokens: int
    """Longest trajectory, prompt included."""


class Policy(Protocol):
    """Scores padded batches, or decodes rows in lock-step; also a `torch.nn.Module`.

    One that has a method `engine() -> Engine` samples by what this returns, which speaks as the
    weights of the moment do; the others are decoded.
    """

    settings: PolicySettings

    def decoder(self, rows: int) -> Decoder:
        """Decoding of `rows` rows in lock-step, from an empty context."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] -> logits [..., vocabulary]."""

    def score(self, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (nats) of the tokens under `mask`; all [B, L], 0 elsewhere."""

    def frozen_copy(self) -> "Policy":
        """This policy as it is now, whatever it learns later: the reference of a KL term.

        Nothing of it is trained; weights that this policy never trains either are shared.
        """

    def parameters(self) -> Any:
        """Everything an optimiser may change, and what is frozen."""
