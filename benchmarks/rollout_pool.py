"""Trajectories that share GPUs while they are rolled out, event by event; see overlap.py."""

import heapq
import math
import random
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
    assumed: Assumptions = Assumptions()


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


def decode_rate(setting: Setting, load: int) -> float:
    """Tokens a second of each of `load` trajectories on one GPU, bound by its bandwidth."""
    cached = setting.shape.cache_bytes * setting.max_tokens / 3  # of a row in the middle of its way
    return setting.assumed.bandwidth / (2 * setting.shape.parameters + load * cached)


class Replica:
    """One GPU that decodes: its trajectories share it evenly; tools and reading do not load it."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.served, self.now, self.busy, self.version = setting, 0.0, 0.0, 0.0, 0
        self.waiting: list[tuple[float, int]] = []
        """(what will have been served when its message is over, key)."""

    def advance(self, now: float) -> None:
        """Serve up to `now`, which may lie before the end of a pause."""
        passed = max(0.0, now - self.now)
        if self.waiting:
            self.served += passed * decode_rate(self.setting, len(self.waiting))
            self.busy += passed
        self.now = max(self.now, now)

    def next_end(self) -> float:
        """When the first message will be over, if none begins before."""
        if not self.waiting:
            return math.inf
        rate = decode_rate(self.setting, len(self.waiting))
        return self.now + max(0.0, self.waiting[0][0] - self.served) / rate


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
        replica = self.replicas[number]
        replica.advance(self.now)
        heapq.heappush(replica.waiting, (replica.served + trajectory.turns[turn][0], key))
        self._foresee(number)

    def _hear(self, number: int) -> Trajectory | None:
        replica = self.replicas[number]
        replica.advance(self.now)
        replica.served, key = heapq.heappop(replica.waiting)
        self._foresee(number)
        trajectory, turn, _ = self.under_way[key]
        _, waits, read = trajectory.turns[turn]
        if turn + 1 == len(trajectory.turns):
            del self.under_way[key]
            self._loaded(number, -1)
            return trajectory
        reading = 2 * self.setting.shape.parameters * read / self.setting.assumed.flops
        self.under_way[key] = (trajectory, turn + 1, number)
        heapq.heappush(self.returns, (self.now + waits + reading, key))
        return None

    def _foresee(self, number: int) -> None:
        replica = self.replicas[number]
        replica.version += 1
        heapq.heappush(self.ends, (replica.next_end(), number, replica.version))

    def _loaded(self, number: int, more: int) -> None:
        self.load[number] += more
        heapq.heappush(self.free, (self.load[number], number))
