"""Trajectories that share GPUs while they are rolled out, event by event; see overlap.py."""

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass

from turncredit.verl_plugin.sizing import Shape


@dataclass(frozen=True)
class Assumptions:
    """What the machines and the agent are taken to be; none of it was measured here."""

    bandwidth: float = 0.6 * 3.35e12
    """Bytes a second that decoding gets out of a GPU's memory, 60 % of an H100's."""
    flops: float = 0.4 * 990e12
    """A second in passes over whole rows, 40 % of an H100's in bfloat16."""
    network: float = 40e9
    """Bytes a second and GPU between nodes, when layers are gathered or weights sent."""
    switch_seconds: float = 5.0
    """To put vLLM to sleep and wake it, or to take over weights."""
    mean_turns: float = 8.0
    """Of a trajectory, geometric, at most the environment's cap."""
    message_tokens: float = 250.0
    """Median, lognormal with spread 0.8, at most `max_turn_tokens`."""
    observation_tokens: float = 1200.0
    """Median, lognormal with spread 0.5, at most 2,000 (8,000 characters)."""
    tool_seconds: float = 1.0
    """Median, lognormal with spread 1, at most 60."""
    prompt_tokens: int = 600


@dataclass(frozen=True)
class Setting:
    """One batch on so many GPUs."""

    shape: Shape
    rows: int
    """Trajectories of a step."""
    group: int
    mini_batches: int
    max_turns: int
    max_turn_tokens: int
    max_tokens: int
    cached_tokens: int
    """That a replica's cache holds, by `turncredit.verl_plugin.sizing`."""
    max_sequences: int
    """That a replica decodes at once, vLLM's `max_num_seqs`."""
    assumed: Assumptions = Assumptions()

    def __post_init__(self) -> None:
        if self.cached_tokens < self.max_tokens:
            raise ValueError(
                f"a cache of {self.cached_tokens} tokens never admits a row of {self.max_tokens}"
            )


@dataclass(frozen=True)
class Trajectory:
    """Turn by turn: tokens to sample, then seconds of the tool, then tokens to read."""

    group: int
    turns: tuple[tuple[int, float, int], ...]
    tokens: int
    """Of the whole row."""


def draw(setting: Setting, group: int, stream: random.Random) -> Trajectory:
    """A trajectory that is cut where its row is full."""
    assumed, turns, room = setting.assumed, [], setting.max_tokens - setting.assumed.prompt_tokens

    def lognormal(median: float, spread: float, most: float) -> float:
        return min(most, stream.lognormvariate(math.log(median), spread))

    while room > 0 and len(turns) < setting.max_turns:
        said = round(lognormal(assumed.message_tokens, 0.8, setting.max_turn_tokens))
        said = max(1, min(room, said))
        room -= said
        read = round(lognormal(assumed.observation_tokens, 0.5, 2000.0))
        over = stream.random() < 1 / assumed.mean_turns or room <= read
        waits = 0.0 if over else lognormal(assumed.tool_seconds, 1.0, 60.0)
        turns.append((said, waits, 0 if over else read))
        room -= 0 if over else read
        if over:
            break
    told = sum(said + read for said, _, read in turns)
    return Trajectory(group, tuple(turns), assumed.prompt_tokens + told)


def decode_rate(setting: Setting, held: int) -> float:
    """Tokens a second of each message on a GPU with `held` tokens of them, bound by bandwidth."""
    return setting.assumed.bandwidth / (
        2 * setting.shape.parameters + held * setting.shape.cache_bytes
    )


class Replica:
    """One GPU that decodes: the messages that it has admitted share it evenly.

    A message is admitted, first come first served, when its tokens up to its end fit beside those
    of the others and fewer than `max_sequences` are there.  While its tool is asked a trajectory
    keeps its place in the cache until another needs it, longest unused first; what it has lost it
    reads again.  While something is read nothing is decoded.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting, self.served, self.now, self.busy, self.version = setting, 0.0, 0.0, 0.0, 0
        self.tokens_read = 0
        """In all, again and again those that the cache had lost."""
        self.waiting: list[tuple[float, int]] = []
        """(what will have been served when its message is over, key)."""
        self.queue: deque[tuple[int, int, int]] = deque()
        """(key, tokens before the message, tokens of the message), in the order of arrival."""
        self.active: dict[int, int] = {}
        """Key to the tokens at the end of a message that is decoded."""
        self.idle: dict[int, int] = {}
        """Key to the tokens in the cache while a tool is asked, longest unused first."""
        self.held = self.kept = 0
        """Tokens in `active` and in `idle`."""

    @property
    def rate(self) -> float:
        """Tokens a second of each message that is decoded."""
        return decode_rate(self.setting, self.held)

    def advance(self, now: float) -> None:
        """Serve up to `now`, which may lie before the end of a pause."""
        passed = max(0.0, now - self.now)
        if self.waiting:
            self.served += passed * self.rate
            self.busy += passed
        self.now = max(self.now, now)

    def next_end(self) -> float:
        """When the first message will be over, if none begins before."""
        if not self.waiting:
            return math.inf
        return self.now + max(0.0, self.waiting[0][0] - self.served) / self.rate

    def admit(self) -> None:
        """Begin the messages for which there is room, up to the first for which there is none."""
        while self.queue and len(self.active) < self.setting.max_sequences:
            key, before, said = self.queue[0]
            if self.held + before + said > self.setting.cached_tokens:
                return
            self.queue.popleft()
            found = self.idle.pop(key, 0)
            self.kept -= found
            self.active[key] = before + said
            self.held += before + said
            while self.held + self.kept > self.setting.cached_tokens:
                self.kept -= self.idle.pop(next(iter(self.idle)))
            self._read(before - found)
            heapq.heappush(self.waiting, (self.served + said, key))

    def finish(self, *, over: bool) -> None:
        """End the first message, whose tokens stay in the cache unless all is `over`."""
        self.served, key = heapq.heappop(self.waiting)
        tokens = self.active.pop(key)
        self.held -= tokens
        if not over:
            self.idle[key] = tokens
            self.kept += tokens

    def _read(self, tokens: int) -> None:
        seconds = 2 * self.setting.shape.parameters * tokens / self.setting.assumed.flops
        self.now += seconds
        self.busy += seconds
        self.tokens_read += tokens


class Pool:
    """The GPUs that roll out, and all trajectories under way."""

    def __init__(self, setting: Setting, gpus: int) -> None:
        self.setting, self.now, self.keys = setting, 0.0, 0
        self.replicas = [Replica(setting) for _ in range(gpus)]
        self.load, self.free = [0] * gpus, [(0, number) for number in range(gpus)]
        self.under_way: dict[int, tuple[Trajectory, int, int]] = {}
        """Key to trajectory, its turn and its GPU."""
        self.returns: list[tuple[float, int]] = []
        """(when a tool answers, key)."""
        self.ends: list[tuple[float, int, int]] = []
        """(when a message is over, GPU, its version when that was foreseen)."""

    @property
    def busy(self) -> float:
        """Seconds in which GPUs decoded, summed over them."""
        return sum(replica.busy for replica in self.replicas)

    def add(self, trajectory: Trajectory) -> None:
        """Start a trajectory on a GPU with the fewest."""
        while self.load[self.free[0][1]] != self.free[0][0]:
            heapq.heappop(self.free)
        number = self.free[0][1]
        self._loaded(number, 1)
        self.under_way[self.keys] = (trajectory, 0, number)
        self._speak(self.keys)
        self.keys += 1

    def next_time(self) -> float:
        """When something happens next."""
        while self.ends and self.ends[0][2] != self.replicas[self.ends[0][1]].version:
            heapq.heappop(self.ends)  # another message began or ended there since
        return min(heap[0][0] if heap else math.inf for heap in (self.returns, self.ends))

    def step(self) -> Trajectory | None:
        """Play what happens next; the trajectory that is over with it, if one is."""
        self.now = max(self.now, self.next_time())
        if self.returns and (not self.ends or self.returns[0][0] <= self.ends[0][0]):
            self._speak(heapq.heappop(self.returns)[1])
            return None
        return self._hear(heapq.heappop(self.ends)[1])

    def pause(self, seconds: float) -> None:
        """Let no GPU decode for a while: it takes over weights."""
        for number, replica in enumerate(self.replicas):
            replica.advance(self.now)
            replica.now += seconds
            self._foresee(number)

    def _speak(self, key: int) -> None:
        trajectory, turn, number = self.under_way[key]
        replica, earlier = self.replicas[number], trajectory.turns[:turn]
        before = self.setting.assumed.prompt_tokens + sum(said + read for said, _, read in earlier)
        replica.advance(self.now)
        replica.queue.append((key, before, trajectory.turns[turn][0]))
        replica.admit()
        self._foresee(number)

    def _hear(self, number: int) -> Trajectory | None:
        replica = self.replicas[number]
        replica.advance(self.now)
        key = replica.waiting[0][1]
        trajectory, turn, _ = self.under_way[key]
        over = turn + 1 == len(trajectory.turns)
        replica.finish(over=over)
        replica.admit()
        self._foresee(number)
        if over:
            del self.under_way[key]
            self._loaded(number, -1)
            return trajectory
        self.under_way[key] = (trajectory, turn + 1, number)
        heapq.heappush(self.returns, (self.now + trajectory.turns[turn][1], key))
        return None

    def _foresee(self, number: int) -> None:
        replica = self.replicas[number]
        replica.version += 1
        heapq.heappush(self.ends, (replica.next_end(), number, replica.version))

    def _loaded(self, number: int, more: int) -> None:
        self.load[number] += more
        heapq.heappush(self.free, (self.load[number], number))
