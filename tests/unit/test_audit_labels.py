"""Cases, gates and blame by oracle labels: counted by hand on trajectories written by hand."""

import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from turncredit.audit.blame import (
    NEEDS,
    ORACLE,
    audited,
    blame_rows,
    credits,
    ledger,
    turn_rows,
)
from turncredit.audit.gate_quality import FIRST, gate_counts, gate_rows
from turncredit.audit.labels import case_rows, label_numbers, labels_of
from turncredit.audit.recordings import Recording, played_step
from turncredit.audit.settings import LabelAuditSettings
from turncredit.audit.stages import stages_of, with_intervals
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages
from turncredit.decisions import CASES, HEADLINE, case_of, decision_shares
from turncredit.environments.oracle import LABELS
from turncredit.records import Trajectory, Turn

R, F, W, U = LABELS


def trajectory(labels, entropies, *, success: bool, question: str = "q") -> Trajectory:
    """Turns of one token each, but the first, which has two."""
    turns = tuple(
        Turn((1,) * (n := 2 if number == 0 else 1), (-0.5,) * n, (h,) * n, (2,), "search")
        for number, h in enumerate(entropies)
    )
    wrong = next((n for n, label in enumerate(labels) if label in (F, W)), -1)
    end = (1.0 if success else 0.0, success, "answer", True, wrong, tuple(labels))
    return Trajectory(question, (3, 3), turns, *end)


GROUP = [
    trajectory([R, R, R], [0.1, 0.1, 0.1], success=True),
    trajectory([W, F, R], [0.9, 0.1, 0.1], success=False),
    trajectory([R, W, W], [0.1, 0.1, 0.9], success=False),
    trajectory([R, U], [0.9, 0.1], success=False),
]
OTHERS = [
    trajectory([W, R], [0.1, 0.9], success=True, question="p"),
    trajectory([R, W], [0.1, 0.1], success=False, question="p"),
    trajectory([W, U], [0.1, 0.1], success=False, question="p"),
    trajectory([W, R, R, R], [0.1, 0.9, 0.1, 0.1], success=False, question="p"),
]
PLAYED = played_step(0, GROUP + OTHERS, group_size=4)


@pytest.fixture
def recording(tmp_path) -> Recording:
    made = Recording(tmp_path / "run", seed=3, block=1, group_size=4, identity={"task": "t"})
    made.write([(0, GROUP + OTHERS), (5, GROUP)])
    return made


def values(rows, *keys) -> dict:
    return {tuple(row[key] for key in keys): row["value"] for row in rows}


# --- cases


def test_the_cases_of_the_trajectories():
    found = [case_of(labels) for labels in labels_of(GROUP + OTHERS)]
    right, correct, wrong, none = CASES
    assert found == [right, correct, wrong, right, correct, none, none, correct]


def test_cases_are_counted_by_outcome_and_stage(recording):
    found = values(case_rows(recording, [0, 5, 10]), "stage", "outcome", "measure")
    assert found["all", "failed", "trajectories"] == 9
    assert found["0-4", "failed", "trajectories"] == 6
    assert found["0-4", "failed", HEADLINE] == 2 / 6
    assert found["0-4", "all", HEADLINE] == 3 / 8
    assert found["5-9", "failed", HEADLINE] == 1 / 3
    # After wrong decisions of failed trajectories: F R, then W, then R R R.
    assert found["0-4", "failed", "execution_right"] == 5 / 6
    assert found["0-4", "failed", "execution_follows"] == 1 / 6
    assert found["0-4", "failed", "decision_first"] == 3 / 5
    assert math.isnan(found["5-9", "succeeded", "execution_right"]), "nothing to count is missing"
    for stage, outcome in {key[:2] for key in found}:
        assert sum(found[stage, outcome, case] for case in CASES) == pytest.approx(1.0)


def test_a_step_of_training_counts_the_same_cases_of_failed_trajectories():
    found = decision_shares(GROUP + OTHERS)
    assert found["failed_decision_alone"] == 2 / 6
    assert found["failed_wrong_decision"] == 5 / 6
    assert found["execution_right"] == 5 / 6


def test_decisions_that_cannot_be_counted_are_missing():
    succeeded = [t for t in GROUP + OTHERS if t.success]
    unlabelled = [*GROUP, replace(GROUP[1], turn_labels=None)]
    for trajectories in ([], succeeded, unlabelled):
        assert all(map(math.isnan, decision_shares(trajectories).values()))


def test_labels_that_do_not_tell_every_turn_are_refused():
    turns = GROUP[0].turns
    for labels in (None, (R,)):
        broken = Trajectory("odd", (1,), turns, 0.0, False, "answer", None, -1, labels)
        with pytest.raises(ValueError, match="question odd: 3 turns"):
            labels_of([broken])
    with pytest.raises(ValueError, match="question q: label 'wrnog'; need right, follows"):
        labels_of([*GROUP, replace(GROUP[0], turn_labels=(R, "wrnog", R))])


def test_label_numbers_leave_padding_out():
    numbers = label_numbers(PLAYED)
    assert numbers.shape == (8, 4)
    assert numbers[1].tolist() == [LABELS.index(W), LABELS.index(F), LABELS.index(R), -1]


def test_a_missing_reward_is_no_failure(tmp_path):
    known = [replace(GROUP[1], reward=None, stop_reason="error"), GROUP[2]]
    played = played_step(0, known, group_size=2)
    assert gate_counts(played.batch, torch.zeros(2, dtype=torch.int64))["failed"] == 1
    recording = Recording(tmp_path, 0, 0, 2, {})
    recording.write([(0, known)])
    found = values(case_rows(recording, [0, 1]), "stage", "outcome", "measure")
    assert found["all", "failed", "trajectories"] == found["all", "all", "trajectories"] == 1


# --- gates


def test_gates_are_held_against_the_first_wrong_turn():
    """Failed rows: 1, 2, 3, 5, 6, 7, whose first wrong turns are 0, 1, none, 1, 0, 0."""
    gates = torch.tensor([0, 0, 2, 0, 0, 0, -1, 1])
    found = gate_counts(PLAYED.batch, gates)
    assert found == {
        "failed": 6, "wrong": 5, "fired": 5, "hits": 1, "early": 1, "late": 2, "idle": 1,
        "chance": pytest.approx(1 / 3 + 1 / 3 + 1 / 2 + 1 / 4),
    }  # fmt: skip
    assert found["fired"] == sum(found[name] for name in ("hits", "early", "late", "idle"))


def test_rules_are_judged_by_k_and_stage(recording):
    rules = {
        "argmax": {"rule": "argmax", "c": 1.5, "k": 99, "floor": 0.0},
        "running": {"rule": "running", "c": 1.5, "k": 1, "floor": 0.0},
    }
    found = values(gate_rows(recording, rules, [1, 4], [0, 5, 10]), "stage", "rule", "k", "measure")
    # argmax: failed rows fire at 0, 2, 0, none, none, 1; wrong at 0, 1, none, 1, 0, 0.
    assert found["0-4", "argmax", 1, "fired"] == 4 / 6
    assert found["0-4", "argmax", 1, "precision"] == 1 / 4
    assert found["0-4", "argmax", 1, "recall"] == 1 / 5
    assert found["0-4", "argmax", 4, "late"] == 2 / 4
    assert found["0-4", "argmax", 4, "idle"] == 1 / 4
    assert found["0-4", "running", 1, "fired"] == 0, "nothing was seen before"
    assert math.isnan(found["0-4", "running", 1, "precision"])
    assert found["5-9", "running", 1, "fired"] > 0
    assert found["0-4", FIRST, 1, "recall"] == 3 / 5
    assert found["0-4", FIRST, 1, "fired"] == 1


def test_a_batch_without_an_oracle_is_refused():
    with pytest.raises(ValueError, match="oracle_turn"):
        gate_counts(PLAYED.batch.replace(oracle_turn=None), torch.zeros(8, dtype=torch.int64))


# --- blame


def test_every_method_is_audited_or_says_what_it_wants():
    """A new base or weight runs on trajectories alone, or enters NEEDS."""
    methods = audited()
    named = {name for method in methods for name in method}
    assert named | set(NEEDS) == set(BASES) | set(TURN_WEIGHTS)
    found = credits(PLAYED, methods)
    assert len(found) == len(methods) > 100
    assert all(advantages.isfinite().all() for advantages in found.values())
    for name in set(NEEDS) & set(BASES):
        with pytest.raises(ValueError, match="needs TurnBatch"):
            BASES[name](PLAYED.batch)
    assert audited(["grpo", "gae"], ["none", "high_is_turns"]) == [("grpo", "none")]


def test_the_ledger_holds_what_an_objective_gets():
    for (base, weight), (blame, credit) in ledger(PLAYED, audited(["grpo", "empg"], None)).items():
        advantages = token_advantages(PLAYED.batch, base, weight)
        assert torch.allclose(credit - blame, PLAYED.batch.turn_sums(advantages))
        assert (blame >= 0).all() and (credit >= 0).all()


def test_blame_by_hand(recording):
    """With GRPO a token of the one success of four gets 1.5, of the failures -0.5."""
    methods = audited(["grpo"], ["none", "oracle_suffix", "drop_failed"])
    rows = blame_rows(recording, methods, [0, 5, 10])
    found = values(rows, "stage", "weight", "measure")
    # Step 5 holds the first group: its failures have turns of 2, 1, 1 tokens; 4 + 4 + 3 in all.
    assert found["5-9", "none", "blame_on_right"] == pytest.approx((1 + 1 + 2 + 2) / 11)
    assert found["5-9", "none", "blame_on_follows"] == pytest.approx(1 / 11)
    assert found["5-9", "none", "blame_on_unjudged"] == pytest.approx(1 / 11)
    assert found["5-9", "none", "credit_on_wrong"] == 0
    assert found["0-4", "none", "credit_on_wrong"] == pytest.approx(2 / (4 + 3))
    # Masked after turn 0 and after turn 1.
    assert found["5-9", "oracle_suffix", "blame_kept"] == pytest.approx(8 / 11)
    assert found["5-9", "oracle_suffix", "blame_on_follows"] == 0
    assert math.isnan(found["5-9", "drop_failed", "blame_on_right"])
    assert found["5-9", "drop_failed", "credit_kept"] == 1
    thinned = blame_rows(recording, methods, [0, 5, 10], every=2)
    assert {row["stage"] for row in thinned} == {"all", "0-4"}


def test_blame_by_turn_adds_up_and_late_turns_are_one(recording):
    rows = turn_rows(recording, audited(["grpo"], ["none"]), last=2)
    by_method = defaultdict(list)
    for row in rows:
        by_method[row["base"], row["weight"]].append(row["value"])
    assert [len(shares) for shares in by_method.values()] == [3, 3]
    assert all(sum(shares) == pytest.approx(1.0) for shares in by_method.values())
    # Wrong tokens: of GROUP 2, 1, 1 (twice played), of OTHERS 1, 2, 2.
    assert by_method[ORACLE] == pytest.approx([8 / 13, 3 / 13, 2 / 13])


# --- recordings, stages and settings


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stages": (0,)}, "stages = .0. do not rise from 0"),
        ({"stages": (0, 4, 4)}, "do not rise from 0"),
        ({"stages": (1, 4)}, "do not rise from 0"),
        ({"seeds": ()}, "seeds is empty"),
        ({"blame_every": 0}, "blame_every"),
        ({"audit_at": ()}, "audit_at is empty"),
        ({"audit_at": (0, 5)}, "audit_at: step 5 is not in 0 .. 4"),
        ({"audit_continuations": 1}, "continuations = 1 has no standard error"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, complaint):
    fine = {"tier": "cpu", "notebook": "n", "task_name": "t", "seeds": (0, 1, 2)}
    fine |= {"warm_start_seeds": (7, 8), "stages": (0, 4), "rules": ("r",), "ks": (1,)}
    fine |= {"blame_every": 1, "last_turn": 6, "audit_at": (0, 4), "audit_questions": 1}
    fine |= {"audit_continuations": 2, "ceiling": {}}
    assert [LabelAuditSettings(**fine).block(seed) for seed in range(3)] == [7, 8, 7]
    with pytest.raises(ValueError, match=complaint):
        LabelAuditSettings(**fine | changes)


def test_a_recording_is_what_was_played_and_no_other_run_s(recording, tmp_path):
    first, second = recording.read()
    assert (first.step, second.step) == (0, 5)
    assert first.trajectories == GROUP + OTHERS
    assert first.batch.group_ids.tolist() == [0] * 4 + [1] * 4
    other = Recording(recording.folder, 3, 1, 4, {"task": "other"})
    assert recording.is_finished() and not other.is_finished()
    recording.write([(7, GROUP)])
    assert [played.step for played in recording.read()] == [7], "what was read before is forgotten"
    with pytest.raises(ValueError, match="no finished recording"):
        other.read()
    path = recording.folder / "trajectories.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-1])
    assert not recording.is_finished()


def test_stages_hold_their_first_step_and_not_their_last():
    assert stages_of(0, [0, 5, 10]) == ("all", "0-4")
    assert stages_of(5, [0, 5, 10]) == ("all", "5-9")
    for step in (-1, 10):
        with pytest.raises(ValueError, match=f"step {step} is outside"):
            stages_of(step, [0, 5, 10])


def test_intervals_weigh_warm_starts_alike_and_count_what_is_missing():
    rows = [
        {"seed": seed, "block": seed % 2, "measure": "m", "value": value}
        for seed, value in enumerate([0.2, 0.6, 0.4, 0.8, math.nan])
    ]
    (row,) = with_intervals(rows, seed=0)
    assert row["value"] == pytest.approx((0.3 + 0.7) / 2)
    assert row["low"] < row["value"] < row["high"]
    assert (row["measure"], row["n"], row["missing"], row["blocks"]) == ("m", 4, 1, 2)
    assert [row] == with_intervals(rows, seed=0)
