"""ADRS beside returns, labels and true advantages: laws, numbers by hand, and what runs leave."""

import math

import pandas as pd
import pytest
import torch
import yaml
from arms import home_with_task, parameters
from batches import make_batch

from turncredit import experiment, params, paths, plots, tasks, teacher_audits
from turncredit.audit import Audit, turn_means
from turncredit.audit.teachers import (
    agreement_rows,
    association_rows,
    consequence_rows,
    label_shares,
    mean_value_advantage,
    preference,
    shaped_rewards,
)
from turncredit.checkpoints import write_tensors
from turncredit.code_version import code_hash
from turncredit.credit import BASES
from turncredit.environments.oracle import FOLLOWS, LABELS, RIGHT, UNJUDGED, WRONG
from turncredit.plots import teacher_figures
from turncredit.storage import read_mapping, write_json
from turncredit.teacher_audits import STAGES, TeacherAuditSettings
from turncredit.tripwires import NON_FINITE

PUBLISHED = {"eta": 0.02, "level": "completion"}
REPAIRED = PUBLISHED | {"centre": "batch", "restandardise": False}
MEASURES = {"rewards", "gate", "turns", "tokens"}


def batch_of(**changes):
    """Two groups with contrast and one of equal rewards; turns of 1 to 4 tokens."""
    lengths = [[3, 2], [4, 1, 2], [2, 2], [1, 3], [2, 4], [3], [2, 3], [4]]
    batch = make_batch(
        lengths, rewards=[1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0], groups=[0, 0, 0, 1, 1, 1, 2, 2],
        seed=5,
    )  # fmt: skip
    return batch.replace(**changes)


def by_measure(rows, arm="x"):
    return {row["measure"]: row["value"] for row in rows if row["arm"] == arm}


# --- consequences


@pytest.mark.parametrize("level", ["completion", "turn"])
def test_as_published_rewards_say_nothing_and_the_gate_only_where_it_differs_in_a_group(level):
    found = by_measure(consequence_rows("x", batch_of(), PUBLISHED | {"level": level}))
    assert set(found) == MEASURES
    assert found["rewards"] < 1e-4 and found["tokens"] > 1e-2
    assert (found["gate"] < 1e-5) == (level == "completion")
    assert found["turns"] < 1e-5, "nothing is clipped here, so a turn gains what it loses"


def test_repaired_each_part_matters():
    found = by_measure(consequence_rows("x", batch_of(), REPAIRED))
    assert min(found.values()) > 1e-3


@pytest.mark.parametrize("inner", ["grpo", "rloo"])
def test_shaped_rewards_are_those_that_the_inner_base_sees(inner):
    """A clip of next to nothing leaves the path by the rewards alone."""
    batch = batch_of()
    alone = {"base": inner, "centre": "batch", "clip": 1e-9, "adaptive_clip": False}
    expected = BASES["adrs"](batch, **PUBLISHED, **alone)
    found = BASES[inner](batch.replace(rewards=shaped_rewards(batch, PUBLISHED | alone)))
    assert (found - expected).abs().max() < 1e-6
    assert not torch.allclose(found, BASES[inner](batch), atol=1e-3)


def test_a_group_of_equal_rewards_and_who_is_not_heard_keep_their_rewards():
    teacher = batch_of().teacher_logprobs.clone()
    teacher[0] = math.nan
    batch = batch_of(teacher_logprobs=teacher)
    moved = shaped_rewards(batch, REPAIRED) != batch.rewards
    assert moved.tolist() == [False, True, True, True, True, True, False, False]


# --- association


def test_preference_counts_pairs_within_groups_by_hand():
    scores = torch.tensor([0.5, 0.5, 0.1, 0.9, 0.2, 0.1, 7.0, 8.0])
    # Group 0: one success against 0.5 (a tie) and 0.1; group 1: 0.9 and 0.1 against 0.2.
    assert preference(batch_of(), scores) == (0.5 + 1 + 1 + 0) / 4
    scores[3] = math.nan
    assert preference(batch_of(), scores) == (0.5 + 1 + 0) / 3
    assert math.isnan(preference(batch_of(rewards=torch.full((8,), math.nan)), scores))


def test_the_mean_value_advantage_by_plain_loops():
    batch = batch_of()
    means = [
        batch.teacher_logprobs[row][batch.response_mask[row]].double().mean() for row in range(8)
    ]
    centre = sum(means) / 8
    found = []
    for rows in ([0, 1, 2], [3, 4, 5]):
        a = torch.stack([torch.sigmoid(means[row] - centre) for row in rows])
        r = batch.rewards[rows].double()
        found.append((a * r).sum() / a.sum() - ((1 - a) * r).sum() / (1 - a).sum())
    assert mean_value_advantage(batch) == pytest.approx(sum(found).item() / 2, abs=1e-6)


def test_association_is_that_of_the_teacher_of_its_text_and_of_the_policy():
    batch = batch_of()
    knows = torch.where(batch.success[:, None], -0.1, -2.0).expand_as(batch.old_logprobs)
    rows = association_rows(batch, {"plan": knows, "moves": batch.old_logprobs})
    plan, moves = (by_measure(rows, f"teacher_{skill}") for skill in ("plan", "moves"))
    assert plan["preference"] == 1.0 and plan["tva"] > 0.1
    assert moves["gap"] == 0.5, "a text that changes nothing prefers nobody"
    assert moves["preference"] == by_measure(rows, "policy")["preference"]


# --- agreement


def audited(batch, advantages):
    tables = (torch.zeros_like(advantages), advantages, advantages)
    return Audit(*tables, torch.full_like(advantages, 1e-3), {"continuations": 8, "tokens": 9})


def labels_of(batch, turns):
    labels = torch.full((8, batch.num_turns), -1)
    for (row, turn), label in turns.items():
        labels[row, turn] = LABELS.index(label)
    return labels


def test_credit_that_is_the_true_advantage_agrees_wholly_and_its_opposite_not_at_all():
    batch = batch_of()
    given = torch.randn(8, batch.num_turns, generator=torch.Generator().manual_seed(0))
    true = torch.where(batch.turn_lengths() > 0, given.double(), torch.nan)
    credit = batch.gather_turns(given)
    rows = agreement_rows(
        batch, audited(batch, true), labels_of(batch, {}), {"x": credit}, {"y": -credit}
    )
    own, other = by_measure(rows, "x"), by_measure(rows, "y")
    assert own["correlation"] == pytest.approx(1.0) and own["sign_errors"] == 0.0
    assert other["correlation"] == pytest.approx(-1.0) and other["sign_errors"] == 1.0
    assert set(own) - set(other) == {"blame_on_right", "credit_on_wrong"}


def test_a_silent_teacher_is_left_out_and_no_wrong_number():
    batch = batch_of()
    given = torch.randn(8, batch.num_turns, generator=torch.Generator().manual_seed(0))
    true = torch.where(batch.turn_lengths() > 0, given.double(), torch.nan)
    partly = batch.gather_turns(given).clone()
    partly[:3] = math.nan
    found = by_measure(
        agreement_rows(batch, audited(batch, true), labels_of(batch, {}), {}, {"x": partly})
    )
    assert found["correlation"] == pytest.approx(1.0)


def test_label_shares_by_hand():
    batch = batch_of()
    labels = labels_of(
        batch, {(0, 0): RIGHT, (0, 1): WRONG, (1, 0): FOLLOWS, (1, 1): WRONG, (1, 2): UNJUDGED}
    )
    turns = torch.zeros(8, batch.num_turns)
    turns[0, :2] = torch.tensor([1.0, 0.5])  # of 3 and 2 tokens
    turns[1] = torch.tensor([-1.0, -2.0, -0.5])  # of 4, 1 and 2 tokens
    found = label_shares(batch, labels, batch.gather_turns(turns))
    assert found == {"blame_on_right": 4 / 7, "credit_on_wrong": 1 / 4}


# --- runs


@pytest.fixture(scope="module")
def audits(tmp_path_factory):
    """Rows of two audits of one tiny run, what they were written to, and how often they played."""
    with pytest.MonkeyPatch.context() as patch:
        folder, played = tmp_path_factory.mktemp("home"), []
        home_with_task(folder, patch)
        path = paths.params("smoke") / "tasks" / "tiny.yaml"
        values = params.read_yaml(path)
        values["policy"]["max_tokens"] = 96
        values["environment"]["max_turns"] = 3
        path.write_text(yaml.safe_dump(values))

        def serial(work, calls, workers, title):
            played.append(len(calls))
            for call in calls:
                work(*call, lambda *shown: None)

        patch.setattr(teacher_audits, "in_parallel", serial)
        arms = {
            "grpo": {"base": "grpo"},
            "adrs": {"base": "adrs", "base_options": {"skill": "plan"}},
        }
        planned = experiment.experiment_from(parameters(**arms))
        with pytest.raises(ValueError, match="tiny/grpo/seed_0 is not finished"):
            teacher_audits.audit_teachers(planned, "grpo", settings(), workers=1)
        for job in experiment.jobs_of(planned):
            experiment.run(job, code_hash(), lambda *shown: None)
        with pytest.raises(ValueError, match="arm adrs: skill 'plan' is not among moves"):
            teacher_audits.audit_teachers(planned, "grpo", settings(skills=("moves",)), workers=1)
        with pytest.raises(ValueError, match="no plan has the arm 'grqo'"):
            teacher_audits.audit_teachers(planned, "grqo", settings(), workers=1)
        assert not played, "what is refused is refused before anything is played"
        found = [
            teacher_audits.audit_teachers(planned, "grpo", size, workers=1)
            for size in (settings(), settings(), settings(continuations=3))
        ]
        kept = list(planned.folder.glob("tiny/grpo/seed_0/teachers_*"))
        files = [path.name for path in kept]
        manifest = planned.folder / "tiny/grpo/seed_0/manifest.json"
        write_json(manifest, read_mapping(manifest, "") | {"stop_reason": NON_FINITE})
        found.append(teacher_audits.audit_teachers(planned, "grpo", settings(continuations=3)))
        for harm in (lambda p: p.write_bytes(p.read_bytes()[:900]), _without_labels):
            harm(kept[0])
            with pytest.raises(ValueError, match=rf"{kept[0].name}: .*delete it to audit anew"):
                teacher_audits.read_taught(kept[0])
    getattr(tasks.open_task, "cache_clear", lambda: None)()
    return found, played, files


def _without_labels(path):
    write_tensors(path, {"batch.token_ids": torch.zeros(1, 1)})


def settings(**changes):
    values = {"questions": 2, "continuations": 2, "skills": ("plan", "facts")}
    return TeacherAuditSettings(**values | changes)


def test_an_audit_is_played_once_for_each_stage_and_settings(audits):
    (first, again, others, _), played, files = audits
    assert played[-4:] == [2, 0, 2, 0]
    assert repr(first) == repr(again) and repr(first) != repr(others)
    stages = sorted(name.partition("-")[0] for name in files)
    assert stages == ["teachers_end", "teachers_start"], "an older audit does not stay"


def test_a_run_that_broke_down_has_no_policy_at_the_end(audits):
    assert {row["stage"] for row in audits[0][3]} == {STAGES[0]}


def test_the_rows_hold_every_stage_arm_and_measure(audits):
    table = pd.DataFrame(audits[0][0])
    assert list(dict.fromkeys(table["stage"])) == list(STAGES)
    assert set(table[table["measure"] == "correlation"]["arm"]) == {
        "grpo", "adrs", "teacher_plan", "teacher_facts",
    }  # fmt: skip
    assert set(table[table["arm"] == "adrs"]["measure"]) >= MEASURES
    small = table[table["measure"].isin(["rewards", "gate"])]["value"]
    assert len(small) == 4 and (small < 1e-4).all()
    assert set(teacher_figures.COLUMNS) == set(table)
    assert not table.duplicated(["stage", "seed", "arm", "measure"]).any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"questions": 0}, "questions"),
        ({"continuations": 1}, "continuations = 1 has no standard error"),
        ({"skills": ()}, "skills names none"),
        ({"skills": ("magic",)}, "skills names 'magic'; there are: facts, moves, plan"),
    ],
)
def test_wrong_settings_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        settings(**changes)


@pytest.mark.parametrize(
    ("draw", "first", "panels", "arms"),
    [
        ("consequences", "by the reward", 4, ["ADRS"]),
        ("association", "likelier success, at first", 6, ["teacher plan", "policy"]),
        ("agreement", "correlation, at first", 6, ["GRPO", "ADRS", "teacher plan"]),
    ],
)
def test_figures_have_a_panel_for_each_measure_and_stage(
    draw, first, panels, arms, tmp_path, monkeypatch
):
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    given = {"grpo": teacher_figures.AGREEMENT, "policy": ["preference"]}
    given["adrs"] = [*teacher_figures.CONSEQUENCES, *teacher_figures.AGREEMENT]
    given["teacher_plan"] = [*teacher_figures.ASSOCIATION, "correlation", "sign_errors"]
    order = ["grpo", "adrs", "teacher_plan", "policy"]
    rows = [
        {"task": "tempting_guess", "stage": stage, "seed": seed, "block": 0, "arm": arm}
        | {"measure": measure, "value": 0.1 * seed}
        for seed in range(2) for stage in STAGES for arm in order for measure in given[arm]
    ]  # fmt: skip
    (tmp_path / "19_adrs").mkdir()
    pd.DataFrame(rows).to_csv(tmp_path / "19_adrs" / teacher_figures.TABLE, index=False)
    values = params.read_yaml(paths.params("smoke") / "19_adrs.yaml")
    values.pop("audit")
    study = plots.open_study(experiment.experiment_from(values | {"variants": {}}))
    figure = getattr(teacher_figures, draw)(study)
    assert len(figure.axes) == panels
    assert figure.axes[0].get_title(loc="left").replace("\n", " ") == first
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == arms


def test_turn_means_of_what_adrs_adds_vanish_as_published_on_any_batch():
    for seed in range(5):
        lengths = [[2, 3], [1, 4], [3], [2, 2, 2]]
        batch = make_batch(lengths, rewards=[1.0, 0.0, 0.0, 1.0], groups=[0] * 4, seed=seed)
        added = BASES["adrs"](batch, **PUBLISHED, clip=10.0) - BASES["grpo"](batch)
        assert turn_means(batch, added).nan_to_num(nan=0.0).abs().max() < 1e-6
