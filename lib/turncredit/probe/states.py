"""Which states are probed: contexts in which the policy spoke a turn, drawn by a stated rule."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from turncredit.records import Trajectory
from turncredit.seeding import python_stream
from turncredit.storage import write_json

RULES = ("turns", "trajectories", "contexts")


@dataclass(frozen=True)
class State:
    """A context in which a turn began."""

    question_id: str
    step: int
    """Training step of the trajectories, so that states of several checkpoints may be mixed."""
    row: int
    """Index of the trajectory among those given, and of its row in their batch."""
    turn: int
    """0-based turn that began here."""
    prefix_ids: tuple[int, ...]
    """All ids the policy had read: prompt, earlier turns and their observations."""

    @property
    def name(self) -> str:
        """How errors call it."""
        return f"question {self.question_id}, step {self.step}, row {self.row}, turn {self.turn}"


def all_states(trajectories: Sequence[Trajectory], *, step: int) -> list[State]:
    """The state of every turn with a sampled token, by row and turn."""
    states = []
    for row, trajectory in enumerate(trajectories):
        read = list(trajectory.prompt_ids)
        for number, turn in enumerate(trajectory.turns):
            if turn.sampled_ids:
                states.append(State(trajectory.question_id, step, row, number, tuple(read)))
            read += [*turn.sampled_ids, *turn.observation_ids]
    return states


def sample_states(
    trajectories: Sequence[Trajectory], count: int, *, seed: int, step: int, rule: str = "turns"
) -> list[State]:
    """`count` states without replacement, by row and turn; a function of its arguments alone.

    `turns`          every turn alike, so a state is drawn as often as the policy visits it.
    `trajectories`   distinct trajectories, then one turn of each: no two states share a fate.
    `contexts`       every distinct context alike: the prompt of a group counts once, and the
                     first turn that met it stands for it.

    Raises ValueError for an unknown rule, a count below 1, and fewer states than asked for.
    """
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}; need one of {', '.join(RULES)}")
    stream = python_stream(seed, "probed states", step)
    states = all_states(trajectories, step=step)
    if rule == "contexts":
        states = list({state.prefix_ids: state for state in reversed(states)}.values())[::-1]
    if rule == "trajectories":
        rows: dict[int, list[State]] = {}
        for state in states:
            rows.setdefault(state.row, []).append(state)
        states = [stream.choice(members) for members in rows.values()]
    if not 1 <= count <= len(states):
        raise ValueError(f"count = {count}: rule {rule!r} finds {len(states)} states to draw from")
    return sorted(stream.sample(states, count), key=lambda state: (state.row, state.turn))


def held_out(
    states: Sequence[State], *, share: float = 0.5, seed: int
) -> tuple[list[State], list[State]]:
    """States to choose options on, and states to judge them on; no question is in both.

    share: of the questions, rounded down, that are held out.  Raises ValueError if that leaves
    either part empty.
    """
    questions = sorted({state.question_id for state in states})
    kept = set(
        python_stream(seed, "held-out states").sample(questions, int(share * len(questions)))
    )
    parts = (
        [s for s in states if s.question_id not in kept],
        [s for s in states if s.question_id in kept],
    )
    if not all(parts):
        raise ValueError(f"share = {share} of {len(questions)} questions leaves a part empty")
    return parts


def write_states(path: Path, states: Sequence[State], *, rule: str, seed: int) -> None:
    """Record the states with the rule and seed that drew them, as JSON."""
    write_json(path, {"rule": rule, "seed": seed, "states": [asdict(state) for state in states]})


def read_states(path: Path) -> list[State]:
    """Inverse of `write_states`; ValueError naming a file that is no record of states."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))["states"]
        return [State(**{**r, "prefix_ids": tuple(r["prefix_ids"])}) for r in records]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: not a record of states ({error})") from error
