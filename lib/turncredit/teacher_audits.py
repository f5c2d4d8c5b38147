"""What policies play before and after training, what teachers say of it, and what it was worth.

Apart from `experiment`, so that an audit makes no run stale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turncredit.audit import Audit, AuditSettings, audit_turns, replay
from turncredit.audit.labels import label_numbers
from turncredit.audit.recordings import PlayedStep
from turncredit.audit.stages import Row
from turncredit.audit.teachers import (
    agreement_rows,
    arm_of,
    association_rows,
    consequence_rows,
)
from turncredit.batch_contract import LAYOUT
from turncredit.batching import TurnBatch, from_trajectories
from turncredit.checkpoints import load_checkpoint, read_tensors, write_tensors
from turncredit.code_version import code_hash
from turncredit.credit import BASES
from turncredit.experiment import Job, identity, is_finished, jobs_at_once, jobs_of
from turncredit.parallel import Report, in_parallel
from turncredit.params import require_positive
from turncredit.plans import Experiment
from turncredit.policies.protocol import Policy
from turncredit.storage import sha256_json
from turncredit.tasks import Task
from turncredit.training import Method, new_optimiser
from turncredit.training.collect import Collected, collect
from turncredit.training.teacher import SKILLS
from turncredit.tripwires import NON_FINITE
from turncredit.warm_starts import warm_started_policy

STAGES = ("start", "end")
"""Before training, and after it."""


@dataclass(frozen=True)
class TeacherAuditSettings:
    """Size of the audits of a notebook."""

    questions: int
    """Training questions, each played by a group."""
    continuations: int
    """Of each state, and of each message in it; see `AuditSettings`."""
    skills: tuple[str, ...]
    """Skill texts that teachers read."""

    def __post_init__(self) -> None:
        require_positive(self, "questions")
        AuditSettings(self.continuations)  # or refused
        unknown = [skill for skill in self.skills if skill not in SKILLS]
        if unknown or not self.skills:
            named = repr(unknown[0]) if unknown else "none"
            raise ValueError(f"skills names {named}; there are: {', '.join(SKILLS)}")


@dataclass(frozen=True, eq=False)
class Taught:
    """Groups of one policy, with what teachers said of them and what their turns were worth."""

    batch: TurnBatch
    """With `anchor_ids`; without a teacher."""
    teachers: Mapping[str, Tensor]
    """[B, L] log-probs by skill text."""
    labels: Tensor
    """[B, T] int64: see `label_numbers`."""
    audit: Audit

    def rows(self, arms: Mapping[str, Mapping[str, Any]]) -> list[Row]:
        """`association_rows`, `consequence_rows` of each arm, and `agreement_rows` beside GRPO.

        arms: `base_options` of ADRS by name; their `skill` names the teacher that they hear.
        """
        rows = association_rows(self.batch, self.teachers)
        credits = {"grpo": BASES["grpo"](self.batch)}
        for arm, options in arms.items():
            given = {key: value for key, value in options.items() if key != "skill"}
            taught = self.batch.replace(teacher_logprobs=self.teachers[options["skill"]])
            credits[arm] = BASES["adrs"](taught, **given)
            rows += consequence_rows(arm, taught, given)
        own = self.batch.old_logprobs
        gaps = {arm_of(skill): said - own for skill, said in self.teachers.items()}
        return rows + agreement_rows(self.batch, self.audit, self.labels, credits, gaps)


def taught_by(task: Task, policy: Policy, settings: TeacherAuditSettings, *, seed: int) -> Taught:
    """Play groups, ask every teacher, and audit every turn by continuation.

    The questions are those that training would have asked after its last step.  Raises what
    `replay` and `audit_turns` raise, such as ValueError for a policy with an engine of its own.
    """
    training = replace(
        task.settings.training, questions_per_step=settings.questions, resampling=None,
        updates_per_batch=1,
    )  # fmt: skip
    parts = (policy, task.vocabulary, task.environment)
    place = {"seed": seed, "step": training.steps}
    drawn = collect(*parts, task.world, training, **place)
    batch = from_trajectories(drawn.trajectories, group_ids=drawn.group_ids)
    batch, teachers = _heard(task, policy, batch, drawn, settings.skills)
    asked = [drawn.questions[trajectory.question_id] for trajectory in drawn.trajectories]
    starts = replay(task.environment, task.vocabulary, asked, drawn.trajectories, **place)
    audit = audit_turns(
        *parts,
        starts,
        AuditSettings(continuations=settings.continuations, seed=seed),
        max_turn_tokens=training.max_turn_tokens,
        shape=(len(asked), batch.num_turns),
    )
    labels = label_numbers(PlayedStep(training.steps, drawn.trajectories, batch))
    return Taught(batch, teachers, labels, audit)


def _heard(
    task: Task, policy: Policy, batch: TurnBatch, drawn: Collected, skills: Sequence[str]
) -> tuple[TurnBatch, dict[str, Tensor]]:
    """The batch with its states, and the log-probs of each teacher."""
    teachers = {}
    for skill in skills:
        method = Method("adrs", {"skill": skill}, "none", {}, "ppo_clip", {})
        filled, _ = method.fill(batch, policy, task.vocabulary, drawn)
        teachers[skill] = filled.teacher_logprobs
    return batch.replace(anchor_ids=filled.anchor_ids), teachers


def audit_teachers(
    experiment: Experiment,
    arm: str,
    settings: TeacherAuditSettings,
    *,
    workers: int | None = None,
) -> list[Row]:
    """The rows of `Taught` for every run of an arm, before its training and after it.

    Audited are the policies of `arm`; shown beside each other are GRPO, all arms of the experiment
    whose base is ADRS, and the teachers.  What was audited with the same run, settings and code is
    read again.  Rows: task, stage (STAGES), seed, block, arm, measure, value.  A run whose last
    update was not finite has no policy at the end, and no such rows.
    Raises ValueError naming an arm without runs, a run that is not finished, or an arm whose skill
    is not among `settings.skills`.
    """
    code, jobs = code_hash(), [job for job in jobs_of(experiment) if job.arm == arm]
    if not jobs:
        raise ValueError(f"{experiment.notebook}: no plan has the arm {arm!r}")
    arms = _shaped_arms(experiment, settings)
    for job in jobs:
        if not is_finished(job, code):
            raise ValueError(f"run {job.label} is not finished with these parameters and this code")
    calls = [(job, stage, settings) for job in jobs for stage in _stages(job)]
    missing = [call for call in calls if not _path(*call).exists()]
    in_parallel(_audit, missing, workers or jobs_at_once(experiment), "audits")
    rows = []
    for job, stage, _ in calls:
        place = {"task": job.varied_task, "stage": stage, "seed": job.seed}
        place |= {"block": job.warm_start_seed}
        found = read_taught(_path(job, stage, settings)).rows(arms)
        rows += [place | row for row in found]
    return rows


def _stages(job: Job) -> tuple[str, ...]:
    """Those of which a run has a policy."""
    manifest = job.directory.read_manifest() or {}
    return STAGES[:1] if manifest.get("stop_reason") == NON_FINITE else STAGES


def _shaped_arms(
    experiment: Experiment, settings: TeacherAuditSettings
) -> dict[str, Mapping[str, Any]]:
    """The options of all arms whose base is ADRS; ValueError if no teacher reads one's skill."""
    arms = {
        name: method.base_options
        for plan in experiment.plans
        for name, method in plan.arms.items()
        if method.base == "adrs"
    }
    for name, options in arms.items():
        if options.get("skill") not in settings.skills:
            known = ", ".join(settings.skills)
            raise ValueError(f"arm {name}: skill {options.get('skill')!r} is not among {known}")
    return arms


def _audit(job: Job, stage: str, settings: TeacherAuditSettings, report: Report) -> None:
    """Write one audit in the folder of its run, in place of older ones."""
    task, path = job.open_task(), _path(job, stage, settings)
    policy = warm_started_policy(task, job.warm_start_seed, code_hash(), lambda step, loss: None)
    if stage == STAGES[1]:
        optimiser = new_optimiser(policy, task.settings.training)
        checkpoint = job.directory.checkpoint
        load_checkpoint(checkpoint, policy, optimiser, extra={})
    write_taught(path, taught_by(task, policy, settings, seed=job.seed))
    for older in path.parent.glob(f"teachers_{stage}-*.safetensors"):
        if older != path:
            older.unlink()
    report(f"{job.label} {stage}", 1, 1, {})


def _path(job: Job, stage: str, settings: TeacherAuditSettings) -> Path:
    """Where an audit lies: its name tells run, settings and code."""
    code = code_hash("turncredit.teacher_audits")
    made_of = sha256_json([identity(job, code), stage, asdict(settings)])
    return job.experiment.folder / job.label / f"teachers_{stage}-{made_of[:16]}.safetensors"


def write_taught(path: Path, taught: Taught) -> None:
    """Write atomically, with a checksum."""
    batch, audit = taught.batch, taught.audit
    given = {f"batch.{name}": getattr(batch, name) for name in LAYOUT}
    given |= {f"teacher.{skill}": values for skill, values in taught.teachers.items()}
    given |= {f"audit.{name}": getattr(audit, name) for name in _TABLES}
    given |= {f"cost.{name}": torch.tensor(float(n)) for name, n in audit.cost.items()}
    given |= {"labels": taught.labels}
    write_tensors(
        path,
        {name: value.contiguous().clone() for name, value in given.items() if value is not None},
    )


def read_taught(path: Path) -> Taught:
    """Inverse of `write_taught`; ValueError naming a file that is broken."""
    try:
        return _taught(read_tensors(path))
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: {error}; delete it to audit anew") from error


def _taught(tensors: Mapping[str, Tensor]) -> Taught:
    def part(prefix: str) -> dict[str, Tensor]:
        return {n.partition(".")[2]: v for n, v in tensors.items() if n.startswith(f"{prefix}.")}

    cost = {name: value.item() for name, value in part("cost").items()}
    audit = Audit(**part("audit"), cost=cost)
    return Taught(TurnBatch(**part("batch")), part("teacher"), tensors["labels"], audit)


_TABLES = ("values", "action_values", "advantages", "errors")
