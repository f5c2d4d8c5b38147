"""The surprisal probe along training: one run per seed, probed after some of its steps."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from turncredit import training
from turncredit.code_version import code_hash
from turncredit.policies.protocol import Policy
from turncredit.probe import Probe, ProbeSettings, policy_responder, weights_hash
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.seeding import python_stream
from turncredit.tasks import Task
from turncredit.warm_starts import warm_started_policy
from turncredit.worlds.base import Question


@dataclass(frozen=True)
class ProbedRun:
    """A run of one method on one task with one seed, probed before and while it is trained."""

    task: Task
    method: training.Method
    settings: ProbeSettings
    """Its seed is the run's."""
    steps: tuple[int, ...]
    """Training steps before each probe; 0 is the warm start."""
    warm_start_seed: int
    folder: Path
    """One folder below it per step."""
    code: str
    """Version of the code, as `code_hash` gives it."""

    def __post_init__(self) -> None:
        longest = self.task.settings.training.steps
        if not self.steps or not 0 <= min(self.steps) <= max(self.steps) <= longest:
            raise ValueError(f"steps = {list(self.steps)} of {self.task.name}: need 0 to {longest}")

    @property
    def questions(self) -> list[Question]:
        """What is asked at every step, each question once for every trajectory of its group."""
        stream = python_stream(self.settings.seed, "probed questions")
        drawn = self.task.world.train_questions(self.settings.questions, stream)
        return [question for question in drawn for _ in range(self.settings.group_size)]

    def probes(self) -> dict[int, Probe]:
        """The probe of each step, finished or not."""
        task = self.task
        identity = {"task": asdict(task.settings) | task.settings.kinds, "contents": task.contents}
        identity |= {"method": asdict(self.method)}
        identity |= {"code": self.code, "warm_start_seed": self.warm_start_seed}
        return {
            step: Probe(self.folder / f"step_{step}", self.settings, step, identity)
            for step in sorted(self.steps)
        }

    def draw(self) -> Iterator[int]:
        """Train and probe whatever is missing; yields the step at every state that is done.

        Finished probes are not repeated, and the steps that train towards a missing one are: they
        are a function of the seed.
        """
        missing = {step: one for step, one in self.probes().items() if not one.is_finished()}
        if not missing:
            return
        # by the code of experiments, whose warm starts these are
        given = self.task, self.warm_start_seed, code_hash()
        policy = warm_started_policy(*given, lambda step, loss: None)
        speaker = policy_responder(
            policy, self.task.vocabulary, self.task.environment,
            max_turn_tokens=self.task.settings.training.max_turn_tokens,
        )  # fmt: skip
        taught, done = self._trained(policy), 0
        for step, one in missing.items():
            done += sum(1 for _ in islice(taught, step - done))
            played, weights = self._play(policy, step), weights_hash(policy)
            for _ in one.draw(speaker, played, policy_hash=weights):
                yield step

    def _trained(self, policy: Policy) -> Iterator[object]:
        given, task = self.task.settings.training, self.task
        optimiser, seed = training.new_optimiser(policy, given), self.settings.seed
        world = (task.vocabulary, task.environment, task.world)
        return training.train(policy, optimiser, *world, self.method, given, seed=seed)

    def _play(self, policy: Policy, step: int) -> list[Trajectory]:
        spoken = (policy, self.task.vocabulary, self.task.environment, self.questions)
        turn = self.task.settings.training.max_turn_tokens
        return roll_out(*spoken, seed=self.settings.seed, step=step, max_turn_tokens=turn)


def probed_runs(
    task: Task,
    method: training.Method,
    settings: ProbeSettings,
    *,
    seeds: Sequence[int],
    steps: Sequence[int],
    warm_start_seeds: Sequence[int],
    folder: Path,
    code: str,
) -> list[ProbedRun]:
    """One run per seed, in `folder`/seed_<n>; runs take the warm starts in turn.

    Raises ValueError without seeds or warm starts, and for a seed that comes twice: it would pass
    for two.
    """
    for name, given in (("seeds", seeds), ("warm_start_seeds", warm_start_seeds)):
        if not given:
            raise ValueError(f"{name} is empty")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds = {list(seeds)} repeats one")
    return [
        ProbedRun(
            task, method, replace(settings, seed=seed), tuple(steps),
            warm_start_seeds[number % len(warm_start_seeds)], folder / f"seed_{seed}", code,
        )
        for number, seed in enumerate(seeds)
    ]  # fmt: skip
