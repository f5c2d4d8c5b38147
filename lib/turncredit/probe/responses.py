"""Fresh responses of a policy in a state: sampled with a shared prefix, or all of them.

A response is one turn: the sampled tokens up to a closing tag, `max_turn_tokens`, or the end of
the policy's context, as in a rollout.  It is drawn at temperature 1 from the full vocabulary; at
any other setting its log-probability would not be the policy's.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turncredit.batching import ROUNDING
from turncredit.environments.actions import closing_tags
from turncredit.environments.protocol import Environment
from turncredit.policies.prefix_cache import copies, read_prefix
from turncredit.policies.protocol import Decoder, MessageEnd, Policy, Tokens
from turncredit.policies.tiny import TinyPolicy
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
class PolicyResponder:
    """A policy as a responder: the prefix is read once, by one row, and then copied."""

    policy: Policy
    ended: MessageEnd
    """Where a turn ends, as `Tokens.message_end` tells."""
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

        (Of a language model its log-probs may in the last bits.)  Raises ValueError for a prefix
        that is empty or leaves no room for a token.
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
        said: list[list[int]] = [[] for _ in uniforms]
        found: list[list[tuple[float, float]]] = [[] for _ in uniforms]
        alive = list(range(len(uniforms)))
        for position in range(uniforms.shape[1]):
            draws = uniforms[alive, position].to(hidden.device)
            ids, statistics = sample(self.policy.logits(hidden), draws)
            drawn = zip(alive, ids.tolist(), statistics.t().tolist(), strict=True)
            for row, token, (logprob, entropy) in drawn:
                said[row].append(token)
                found[row].append((logprob, entropy))
            going = [slot for slot, row in enumerate(alive) if not self.ended(said[row])]
            if not going or position + 1 == uniforms.shape[1]:
                break
            if len(going) < len(alive):
                decoder.keep(torch.tensor(going))
                alive = [alive[slot] for slot in going]
            hidden = decoder.step(ids[going])
        return [_turn(tuple(i), *zip(*f, strict=True)) for i, f in zip(said, found, strict=True)]


def policy_responder(
    policy: Policy,
    tokens: Tokens,
    environment: Environment,
    *,
    max_turn_tokens: int,
    block_rows: int = 64,
) -> PolicyResponder:
    """The responder whose turns end where `roll_out` ends them in this environment."""
    ended = tokens.message_end(closing_tags(environment.actions))
    return PolicyResponder(policy, ended, max_turn_tokens, block_rows)


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
    what `PolicyResponder.respond` raises.
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
