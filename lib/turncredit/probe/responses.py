"""Fresh responses of a policy in a state: sampled with a shared prefix, or all of them.

A response is one turn: the sampled tokens up to a closing tag, `max_turn_tokens`, or the end of
the policy's context, as in a rollout.  It is drawn at temperature 1 from the full vocabulary; at
any other setting its log-probability would not be the policy's.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turncredit.batching import ROUNDING
from turncredit.environments.actions import closing_tags
from turncredit.environments.protocol import Environment
from turncredit.policies.tiny import TinyPolicy
from turncredit.policies.tiny_decoder import Decoder
from turncredit.policies.vocabulary import Vocabulary
from turncredit.probe.states import State
from turncredit.records import Turn
from turncredit.rollout.lockstep import sample
from turncredit.seeding import derive, torch_stream


class Responder(Protocol):
    """A policy, here or behind an endpoint, that speaks many times in one context."""

    def respond(self, prefix_ids: Sequence[int], count: int, *, seed: int) -> Sequence[Turn]:
        """`count` independent turns after `prefix_ids`, a function of the arguments alone.

        At temperature 1, without top-p, top-k or penalties; log-probs in nats, entropies NaN where
        they are not known.  An endpoint gets the prefix once and `n` = count, so that it computes
        the prefix once.
        """


def draw_responses(
    responder: Responder, states: Sequence[State], count: int, *, seed: int
) -> list[tuple[Turn, ...]]:
    """`count` fresh turns in every state; state by state, so the order of states plays no part.

    Raises ValueError for a count below 2, for no states, and naming the state for which the
    responder gave another number of turns, an empty one, or a log-prob that is none.
    """
    if count < 2:
        raise ValueError(f"count = {count}: the mean surprisal of a state needs 2 responses")
    if not states:
        raise ValueError("states: none to probe")
    drawn = []
    for state in states:
        own = derive(seed, "probe", state.step, state.question_id, state.row, state.turn)
        turns = tuple(responder.respond(state.prefix_ids, count, seed=own))
        _check_turns(turns, count, state)
        drawn.append(turns)
    return drawn


@dataclass(frozen=True)
class TinyResponder:
    """A tiny policy as a responder: the prefix is read once, by one row, and then copied."""

    policy: TinyPolicy
    closing: frozenset[int]
    """Ids that end a turn."""
    max_turn_tokens: int
    block_rows: int = 64
    """Rows sampled at a time: the cache holds this many, however many responses are asked for."""

    def __post_init__(self) -> None:
        for name in ("max_turn_tokens", "block_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")

    @torch.inference_mode()
    def respond(self, prefix_ids: Sequence[int], count: int, *, seed: int) -> list[Turn]:
        """See `Responder`; a response depends neither on the block it is in nor on `count`.

        Raises ValueError for a prefix that is empty or leaves no room for a token.
        """
        hidden, decoder = read_prefix(self.policy, prefix_ids)
        room = min(self.max_turn_tokens, self.policy.settings.max_tokens - len(prefix_ids))
        stream = torch_stream(seed, "responses")
        turns: list[Turn] = []
        for start in range(0, count, self.block_rows):
            rows = min(self.block_rows, count - start)
            uniforms = torch.rand(rows, self.max_turn_tokens, generator=stream)[:, :room]
            turns += self._speak(hidden.expand(rows, -1), copies(decoder, rows), uniforms)
        return turns

    def _speak(self, hidden: Tensor, decoder: Decoder, uniforms: Tensor) -> list[Turn]:
        """One turn per row of hidden [rows, width]; uniforms [rows, tokens] decide the tokens."""
        said: list[list[tuple[int, float, float]]] = [[] for _ in uniforms]
        alive = list(range(len(uniforms)))
        for position in range(uniforms.shape[1]):
            ids, statistics = sample(self.policy.logits(hidden), uniforms[alive, position])
            tokens = zip(ids.tolist(), *statistics.tolist(), strict=True)
            for row, token in zip(alive, tokens, strict=True):
                said[row].append(token)
            going = [slot for slot, token in enumerate(ids.tolist()) if token not in self.closing]
            if not going or position + 1 == uniforms.shape[1]:
                break
            if len(going) < len(alive):
                decoder.keep(torch.tensor(going))
                alive = [alive[slot] for slot in going]
            hidden = decoder.step(ids[going])
        return [_turn(*zip(*tokens, strict=True)) for tokens in said]


def tiny_responder(
    policy: TinyPolicy,
    vocabulary: Vocabulary,
    environment: Environment,
    *,
    max_turn_tokens: int,
    block_rows: int = 64,
) -> TinyResponder:
    """The responder whose turns end where `roll_out` ends them in this environment."""
    closing = frozenset(map(vocabulary.id, closing_tags(environment.actions)))
    return TinyResponder(policy, closing, max_turn_tokens, block_rows)


@torch.inference_mode()
def enumerate_responses(
    policy: TinyPolicy,
    prefix_ids: Sequence[int],
    closing: frozenset[int],
    *,
    max_turn_tokens: int,
    limit: int = 50_000,
) -> list[Turn]:
    """Every turn the policy can say after `prefix_ids`; their probabilities sum to 1.

    Raises ValueError if there may be more than `limit` (V words and m tokens have up to V^m), and
    what `TinyResponder.respond` raises.
    """
    hidden, decoder = read_prefix(policy, prefix_ids)
    room = min(max_turn_tokens, policy.settings.max_tokens - len(prefix_ids))
    done, going = [], [_turn((), (), ())]
    for position in range(room):
        logits = policy.logits(hidden)
        most = len(done) + logits.numel()
        if most > limit:
            raise ValueError(f"limit = {limit}: up to {most} responses at token {position + 1}")
        grown = list(_grown(going, logits))
        over = [position + 1 == room or turn.sampled_ids[-1] in closing for _, turn in grown]
        done += [turn for (_, turn), ends in zip(grown, over, strict=True) if ends]
        left = [pair for pair, ends in zip(grown, over, strict=True) if not ends]
        if not left:
            break
        parents, going = zip(*left, strict=True)
        decoder.keep(torch.tensor(parents))
        hidden = decoder.step(torch.tensor([turn.sampled_ids[-1] for turn in going]))
    return done


def read_prefix(policy: TinyPolicy, prefix_ids: Sequence[int]) -> tuple[Tensor, Decoder]:
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
    """A decoder of `rows` copies of the only row of `decoder`, which stays as it is."""
    copied = copy.copy(decoder)  # `keep` makes new tensors, it does not write into the old ones
    copied.keep(torch.zeros(rows, dtype=torch.int64))
    return copied


def _grown(turns: Sequence[Turn], logits: Tensor) -> Iterator[tuple[int, Turn]]:
    """Each turn with each possible next token, and where the turn stood; logits [turns, V]."""
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    entropies = -(logprobs.exp() * logprobs).nan_to_num().sum(-1)
    rows = zip(turns, logprobs.tolist(), entropies.tolist(), strict=True)
    for slot, (turn, row, entropy) in enumerate(rows):
        before = turn.sampled_ids, turn.sampled_logprobs, turn.sampled_entropies
        for token, logprob in enumerate(row):
            if logprob > -math.inf:
                added = (token,), (logprob,), (entropy,)
                yield slot, _turn(*(old + new for old, new in zip(before, added, strict=True)))


def _turn(ids: tuple[int, ...], logprobs: tuple[float, ...], entropies: tuple[float, ...]) -> Turn:
    """A turn that no environment has seen."""
    return Turn(ids, logprobs, entropies, observation_ids=(), action="unfinished")


def _check_turns(turns: Sequence[Turn], count: int, state: State) -> None:
    if len(turns) != count:
        raise ValueError(f"{state.name}: {len(turns)} responses for {count} asked")
    for number, turn in enumerate(turns):
        if not turn.sampled_ids:
            raise ValueError(f"{state.name}: response {number} has no token")
        for logprob in turn.sampled_logprobs:
            if not -math.inf < logprob <= ROUNDING:  # NaN fails too
                raise ValueError(f"{state.name}: response {number} has log-prob {logprob}")
