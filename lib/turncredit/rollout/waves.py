"""Lock-step rollouts of groups whose trajectories share what they begin with.

Rows join a decoder when it stands where they stand, and leave it at once, or nearly, when they are
over; a prompt is read once, and a branch reads what is new in it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from turncredit.environments.actions import closing_tags
from turncredit.policies.decoder_forks import forked, joined
from turncredit.policies.protocol import Decoder
from turncredit.records import Trajectory
from turncredit.rollout.branching import BranchRule, opening_entropy
from turncredit.rollout.forks import Chain, Fork, fork
from turncredit.rollout.lockstep import SMALL_VOCABULARY, sample
from turncredit.rollout.protocol import Asked
from turncredit.rollout.rows import Row, begin, close_turn, trajectory_of
from turncredit.seeding import python_stream, torch_stream

_COMPACT_BELOW = 0.97
"""Rows that are over leave the batch once fewer than this share is alive: at most so much is read
for nothing, and a large batch is not copied for every single one."""


class _Opening(NamedTuple):
    """Prompts of one length that were read: their decoder, and the hidden state after each."""

    decoder: Decoder
    hidden: Tensor
    slots: dict[tuple[int, ...], int]


class Play:
    """The rows of a step, their record, and what they have cost so far.

    Row q * group_size + n is trajectory n of question q; its random numbers, those of its
    environment if it begins at the prompt, are those of the same row of `lockstep.roll_out`.
    """

    def __init__(self, asked: Asked, rule: BranchRule) -> None:
        self.asked, self.rule = asked, rule
        self.limit = asked.policy.settings.max_tokens
        setting = (asked.vocabulary, asked.environment, asked.rows, asked.seed, asked.step)
        rows = begin(*setting, self.limit)
        cut = range(0, len(rows), asked.group_size)
        self.unused = [rows[start : start + asked.group_size] for start in cut]
        """Rows of each question that have not begun."""
        self.begun: list[list[Chain]] = [[] for _ in cut]
        self.budget = [0 for _ in cut]
        """Branches that each question may still make."""
        self.branched = [0 for _ in cut]
        self.forks: list[Fork] = []
        self.tokens_read = self.tokens_needed = self.tool_calls = 0
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        ended = asked.vocabulary.message_end(closing_tags(asked.environment.actions))
        self.is_over = lambda said: len(said) >= asked.max_turn_tokens or ended(said)
        small = len(asked.vocabulary) <= SMALL_VOCABULARY
        self.uniforms = torch.rand(
            len(rows),
            self.limit,
            generator=torch_stream(asked.seed, "sampling", asked.step),
            dtype=torch.float32 if small else torch.float64,
        )
        self._openings: dict[int, list[_Opening]] = defaultdict(list)

    def roots(self, counts: Sequence[int]) -> None:
        """Play `counts[q]` more trajectories of each question from its prompt, and their branches.

        A row may branch as long as its question has a budget and rows that have not begun.
        """
        chains = [
            self._root(question) for question, count in enumerate(counts) for _ in range(count)
        ]
        self._read_prompts({chain.row.prompt_ids for chain in chains})
        wave = Wave(self)
        for length in sorted(self._openings):
            for opening in self._openings[length]:
                here = [chain for chain in chains if chain.row.prompt_ids in opening.slots]
                if here:
                    slots = [opening.slots[chain.row.prompt_ids] for chain in here]
                    wave.read_on(length)
                    twin = forked(opening.decoder, torch.tensor(slots), length)
                    wave.enter(twin, opening.hidden[slots], here)
        wave.read_on(self.limit - 1)

    def trajectories(self) -> list[list[Trajectory]]:
        """The records, question by question, in the order in which their rows began."""
        record = (self.logprobs, self.entropies)
        return [[trajectory_of(chain.row, *record) for chain in group] for group in self.begun]

    def opening(self, row: Row, turn: int) -> float:
        """Opening entropy of a turn; see `opening_entropy`."""
        marks = row.turns[turn].marks[: self.rule.k]
        values = [self.entropies[mark] for mark in marks]
        tokens = len(self.asked.vocabulary)
        return opening_entropy(values, k=self.rule.k, tokens=tokens, form=self.rule.form)

    def hear(self, chain: Chain, token: int, logprob: float, entropy: float) -> None:
        """Add a sampled token to the turn being written."""
        turn = chain.row.turns[-1]
        turn.sampled_ids.append(token)
        turn.marks.append(len(self.logprobs))
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        chain.row.next_id = token

    def close(self, chain: Chain) -> None:
        """Hand the message to the environment; an observation that follows was a tool's."""
        turn = chain.row.turns[-1]
        close_turn(chain.row, self.asked.vocabulary)
        tool = turn.action in self.asked.environment.actions and turn.action != "answer"
        self.tool_calls += tool and not chain.is_over

    def branches_of(self, chain: Chain) -> list[Chain]:
        """The twins that a chain leaves before its present turn, of which it has said enough."""
        turn, row = len(chain.row.turns) - 1, chain.row
        said = len(row.turns[-1].sampled_ids)
        window = self.rule.k if self.rule.measured == "next" else 1
        if turn <= chain.decided or not (said == window or self.is_over(row.turns[-1].sampled_ids)):
            return []
        chain.decided = turn
        measured = turn if self.rule.measured == "next" else turn - 1
        change = self.opening(row, measured) - self.opening(row, 0)
        of_chain = self.rule.counter == "chain"
        before = chain.consecutive if of_chain else self.branched[chain.question]
        asked = self.asked
        uniform = python_stream(asked.seed, "branching", asked.step, row.index, turn).random()
        wanted = self.rule.branches_after(change, before, uniform)
        chain.consecutive = chain.consecutive + 1 if wanted else 0
        count = min(wanted, self.budget[chain.question], len(self.unused[chain.question]))
        return [self._branch(chain, turn) for _ in range(count)]

    def _root(self, question: int) -> Chain:
        return self._begin(Chain(self.unused[question].pop(0), question))

    def _branch(self, chain: Chain, turn: int) -> Chain:
        question = chain.question
        index = self.unused[question].pop(0).index
        twin = self._begin(fork(chain, index, self.asked.environment))
        self.budget[question] -= 1
        self.branched[question] += 1
        numbers = [member.row.index % self.asked.group_size for member in (chain, twin)]
        self.forks.append(Fork(question, *numbers, turn))
        return twin

    def _begin(self, chain: Chain) -> Chain:
        self.begun[chain.question].append(chain)
        return chain

    def _read_prompts(self, prompts: Iterable[tuple[int, ...]]) -> None:
        """Read those that were not read before, each once; rows leave as their prompts end."""
        known = {p for openings in self._openings.values() for o in openings for p in o.slots}
        left = sorted(set(prompts) - known)
        if not left:
            return
        decoder = self.asked.policy.decoder(len(left))
        for place in range(max(map(len, left))):
            ends = [slot for slot, prompt in enumerate(left) if len(prompt) == place + 1]
            hidden = decoder.step(torch.tensor([prompt[place] for prompt in left]), ends)
            self.tokens_read += len(left)
            self.tokens_needed += len(left)
            if not ends:
                continue
            slots = {left[slot]: number for number, slot in enumerate(ends)}
            whole = forked(decoder, torch.tensor(ends), place + 1)
            self._openings[place + 1].append(_Opening(whole, hidden, slots))
            longer = [slot for slot in range(len(left)) if slot not in ends]
            left = [left[slot] for slot in longer]
            if left:
                decoder.keep(torch.tensor(longer))


class Wave:
    """Chains that stand at one token of a decoder."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.chains: list[Chain] = []
        self.decoder: Decoder | None = None

    def enter(self, decoder: Decoder, hidden: Tensor, chains: Sequence[Chain]) -> None:
        """Take in chains that stand at the same token, and have them speak from `hidden`."""
        first = len(self.chains)
        self.decoder = joined(self.decoder, decoder) if self.chains else decoder
        self.chains = [*self.chains, *chains]
        self._speak(list(range(first, len(self.chains))), hidden)
        self._let_go()

    def read_on(self, length: int) -> None:
        """Feed tokens until `length` of them are read, or no chain is left."""
        while self.chains and self.decoder.length < length:
            alive = sum(not chain.is_over for chain in self.chains)
            self.play.tokens_read += len(self.chains)
            self.play.tokens_needed += alive
            token_ids = torch.tensor([chain.row.next_id for chain in self.chains])
            speaking = [slot for slot, chain in enumerate(self.chains) if chain.row.speaks()]
            hidden = self.decoder.step(token_ids, speaking)
            if speaking:
                self._speak(speaking, hidden)
            self._let_go()

    def _speak(self, slots: Sequence[int], hidden: Tensor) -> None:
        """Sample a token for each of the slots, branch where it is due, and close what is over."""
        play = self.play
        rows = [self.chains[slot].row.index for slot in slots]
        logits = play.asked.policy.logits(hidden) / play.asked.temperature
        draws = play.uniforms[rows, self.decoder.length - 1].to(logits.device)
        ids, statistics = sample(logits, draws)
        leaving: dict[int, list[tuple[int, Chain, Chain]]] = defaultdict(list)
        said = zip(slots, hidden, ids.tolist(), *statistics.tolist(), strict=True)
        for slot, state, *token in said:
            chain = self.chains[slot]
            if not chain.row.turns[-1].sampled_ids:
                chain.opening = state
            play.hear(chain, *token)
            message = chain.row.turns[-1].sampled_ids
            twins = play.branches_of(chain)
            leaving[len(message)] += [(slot, chain, twin) for twin in twins]
            if play.is_over(message):
                play.close(chain)
        for back, group in sorted(leaving.items()):
            if group:
                self._branch(back, group)

    def _branch(self, back: int, leaving: Sequence[tuple[int, Chain, Chain]]) -> None:
        """Have twins begin the turn that their parents began `back` tokens ago, and catch up."""
        slots, parents, twins = zip(*leaving, strict=True)
        here = self.decoder.length
        start = forked(self.decoder, torch.tensor(slots), here - back + 1)
        wave = Wave(self.play)
        wave.enter(start, torch.stack([parent.opening for parent in parents]), twins)
        wave.read_on(here)
        if wave.chains:
            self.decoder = joined(self.decoder, wave.decoder)
            self.chains = [*self.chains, *wave.chains]

    def _let_go(self) -> None:
        """Drop the chains that are over once they are many, or all."""
        slots = [slot for slot, chain in enumerate(self.chains) if not chain.is_over]
        if slots and len(slots) >= _COMPACT_BELOW * len(self.chains):
            return
        if slots:
            self.decoder.keep(torch.tensor(slots))
        self.chains = [self.chains[slot] for slot in slots]
