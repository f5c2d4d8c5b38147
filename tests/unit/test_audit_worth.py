"""What turns were worth over a run, pooled: against tables by hand, and truth against itself."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from play import policy, questions, synthetic_environment, vocabulary

from turncredit import credit_audits, params, paths
from turncredit.audit import AuditSettings
from turncredit.audit.estimates import Audit
from turncredit.audit.recordings import PlayedStep
from turncredit.audit.settings import LabelAuditSettings
from turncredit.audit.worth import (
    MEASURES,
    SUMS,
    TRUTH,
    Moment,
    audited_moment,
    between_steps,
    cost_rows,
    ledger_of_one,
    worth_rows,
)
from turncredit.plots import ceiling_figures as figures
from turncredit.storage import exclusive

PLAIN, MASKED = ("grpo", "none"), ("grpo", "drop_failed")
RUN = {"seed": 3, "block": 1}


@pytest.fixture(scope="module")
def moments() -> list[Moment]:
    """Two moments of a policy that says little but closing tags, of four trajectories each."""
    parts = (policy(), vocabulary(), synthetic_environment(invalid_ends=False))
    settings, options = AuditSettings(2), {"group_size": 2, "max_turn_tokens": 4, "seed": 0}
    return [
        audited_moment(*parts, questions(2, step), [PLAIN, MASKED], settings, step=step, **options)
        for step in (0, 7)
    ]


def written(rows: list[dict]) -> pd.DataFrame:
    return pd.DataFrame(rows).set_index(["base", "weight", "by", "bin", "measure"])["value"]


def test_every_turn_of_a_moment_is_audited_and_given_credit(moments):
    for moment in moments:
        real = moment.played.batch.turn_lengths() > 0
        assert torch.equal(~moment.audit.errors.isnan(), real)
        assert torch.equal(~moment.assigned[PLAIN].isnan(), real)
        assert len(moment.difficulties) == len(real) == 4


def test_rows_hold_every_method_and_the_truth_beside(moments):
    found = written(worth_rows(moments, RUN))
    assert found.index.is_unique
    every = found.reset_index()
    assert set(zip(every["base"], every["weight"], strict=True)) == {PLAIN, MASKED, TRUTH}
    of_methods = every[every["base"] != TRUTH[0]]
    assert set(of_methods["measure"]) == set(MEASURES)
    truth = every[every["base"] == TRUTH[0]]
    assert set(truth["measure"]) == {*SUMS, *(alone := ("error", "worst"))}
    assert all(f"`{name}`" in worth_rows.__doc__ for name in alone)
    turns = sum(int((m.played.batch.turn_lengths() > 0).sum()) for m in moments)
    assert found[(*TRUTH, "all", "all", "turns")] == turns
    stages = [found[(*TRUTH, "stage", step, "turns")] for step in ("0", "7")]
    assert sum(stages) == turns and {"turn", "outcome", "hops"} <= set(every["by"])


def by_hand(step: int, true: list[float], given: list[float]) -> Moment:
    """One trajectory of so many turns, each worth `true` for certain."""
    table = torch.tensor([true], dtype=torch.float64)
    audit = Audit(table, table, table, torch.zeros_like(table), {"turns": 3.0})

    class Batch:
        success = torch.tensor([False])
        rewards = torch.tensor([0.0])

    played = PlayedStep(step, [None], Batch())
    assigned = {PLAIN: torch.tensor([given], dtype=torch.float64)}
    return Moment(played, audit, assigned, [{"hops": "2 hops"}])


def test_moments_of_unequal_length_are_pooled_turn_by_turn():
    """Blame 1 on a right turn of two blamed ones in all: 1/2; by itself the first moment has 1."""
    pair = [by_hand(0, [0.5, 0.2], [-1.0, 0.0]), by_hand(8, [-0.5, 0.0, 0.4], [-1.0, 0.0, 2.0])]
    found = written(worth_rows(pair, RUN))
    assert found[(*PLAIN, "all", "all", "blame_on_right")] == 0.5
    assert found[(*PLAIN, "stage", "0", "blame_on_right")] == 1.0
    assert found[(*PLAIN, "stage", "8", "blame_on_right")] == 0.0
    assert found[(*PLAIN, "turn", "2", "credit_on_wrong")] == 0.0
    assert found[(*PLAIN, "all", "all", "sign_errors")] == pytest.approx(1 / 4)
    assert found[(*TRUTH, "turn", "2", "turns")] == 1
    assert found[(*TRUTH, "all", "all", "wrong")] == 1


def test_the_cost_is_that_of_every_moment():
    rows = cost_rows([by_hand(0, [0.5], [1.0]), by_hand(8, [0.5, 0.1], [1.0, 1.0])], RUN)
    turns = {row["stage"]: row["value"] for row in rows if row["measure"] == "turns_audited"}
    assert turns == {"0": 1.0, "8": 2.0}
    assert [row["value"] for row in rows if row["measure"] == "turns"] == [3.0, 3.0]


def test_the_ledger_begins_with_what_the_turns_were_worth(moments):
    rows = ledger_of_one(moments)
    moment = next(m for m in moments if m.played.step == rows[0]["step"])
    turns = max(row["turn"] for row in rows) + 1
    assert [(row["base"], row["weight"]) for row in rows[::turns]] == [TRUTH, PLAIN, MASKED]
    worth = [row["advantage"] for row in rows[:turns]]
    assert any(worth == table[:turns] for table in moment.audit.advantages.tolist())
    assert {row["label"] for row in rows} and all(row["error"] == 0 for row in rows[turns:])


def test_moments_come_before_their_steps_and_after_the_last():
    order: list = []
    for log in between_steps(iter("ab"), (0, 1, 2), order.append):
        order.append(log)
    assert order == [0, "a", 1, "b", 2]


def test_a_run_is_identified_by_what_is_audited_and_may_not_outlast_its_task():
    given = params.read_yaml(paths.params("smoke") / "20_credit_audit.yaml")
    settings = params.build(LabelAuditSettings, given, "20_credit_audit.yaml")
    hashes = {
        run.hash
        for changes in ({}, {"audit_continuations": 5}, {"audit_at": (0,)})
        for run in credit_audits.recordings(replace(settings, **changes))
    }
    assert len(hashes) == 3 * len(settings.seeds)
    with pytest.raises(ValueError, match="stages: 999 steps, and the task has 6"):
        credit_audits.recordings(replace(settings, stages=(0, 999)))
    with pytest.raises(ValueError, match=r"methods\.yaml: no method 'sufix_mask'"):
        credit_audits.recordings(replace(settings, rules=("sufix_mask",)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seeds": (0, 0)}, r"seeds = \[0, 0\] repeats one"),
        ({"seeds": (-1,)}, "seeds: -1 must be at least 0"),
        ({"warm_start_seeds": (0, -2)}, "warm_start_seeds: -2"),
        ({"ks": (1, 0)}, "ks: 0 must be at least 1"),
        ({"ks": (1, 1)}, "ks = .* repeats one"),
        ({"rules": ("suffix_mask", "suffix_mask")}, "rules = .* repeats one"),
        ({"audit_at": (0, 9)}, "audit_at: step 9"),
        ({"audit_continuations": 1}, "continuations = 1"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_anything_is_played(changes, complaint):
    given = params.read_yaml(paths.params("smoke") / "20_credit_audit.yaml")
    settings = params.build(LabelAuditSettings, given, "20_credit_audit.yaml")
    with pytest.raises(ValueError, match=complaint):
        replace(settings, **changes)


@pytest.fixture
def recorded(tmp_path, monkeypatch, moments):
    """Settings and the only run of a tiny audit, and how often it was played."""
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    given = params.read_yaml(paths.params("smoke") / "20_credit_audit.yaml")
    settings = params.build(LabelAuditSettings, given | {"seeds": [0]}, "20_credit_audit.yaml")
    played = []

    def play(settings, run, seen):
        played.append(run.seed)
        seen.extend(moments)
        log = SimpleNamespace(step=0, trajectories=moments[0].played.trajectories, metrics={})
        return iter([log])

    monkeypatch.setattr(credit_audits, "_played", play)
    (run,) = credit_audits.recordings(settings)
    return settings, run, played


def record(settings, run) -> None:
    credit_audits.record(settings, run, lambda *shown: None)


@pytest.mark.parametrize("stopped", [*credit_audits.TABLES, credit_audits._NOTE])
def test_a_run_killed_before_its_last_table_is_audited_anew_to_the_same_bytes(
    recorded, monkeypatch, stopped
):
    settings, run, played = recorded
    record(settings, run)
    whole = {name: (run.folder / name).read_bytes() for name in credit_audits.TABLES}
    assert credit_audits.is_whole(run)
    order = [*credit_audits.TABLES, credit_audits._NOTE]
    for name in order[order.index(stopped) :]:
        (run.folder / name).unlink()
    assert not credit_audits.is_whole(run)
    record(settings, run)
    assert credit_audits.is_whole(run) and played == [0, 0]
    assert {name: (run.folder / name).read_bytes() for name in credit_audits.TABLES} == whole
    record(settings, run)
    assert played == [0, 0], "what another process has finished is not played again"


@pytest.mark.parametrize("name", credit_audits.TABLES)
def test_a_damaged_table_is_no_whole_audit(recorded, name):
    settings, run, _ = recorded
    record(settings, run)
    text = (run.folder / name).read_text()
    (run.folder / name).write_text(text[: len(text) // 2])
    assert not credit_audits.is_whole(run)


def test_two_processes_do_not_record_one_run(recorded, monkeypatch):
    settings, run, played = recorded
    monkeypatch.setattr(credit_audits, "_PATIENCE", 0.0)
    with (
        exclusive(run.folder / ".lock"),
        pytest.raises(RuntimeError, match=rf"{run.folder} is in use by process"),
    ):
        record(settings, run)
    assert not played


# --- budgets and figures


def metrics() -> pd.DataFrame:
    """Two arms of two seeds and three steps; an audit of 30 turns and 70 tokens in each of one."""
    return pd.DataFrame(
        {"task": "trap", "arm": arm, "seed": seed, "step": step, "turns": 2.0, "tokens": 50}
        | {"success": 0.1 * step, "audit_turns": extra, "audit_tokens": 7 * extra / 3}
        for arm, extra in (("grpo", math.nan), ("vineppo", 30.0))
        for seed in range(2)
        for step in range(3)
    )


def test_budgets_add_up_rollouts_and_audits():
    found = figures.budget_rows(metrics(), {"trap": 5}, weight=0.0)
    plain, told = (found[(found["arm"] == a) & (found["seed"] == 0)] for a in ("grpo", "vineppo"))
    assert plain["environment_turns"].tolist() == [10, 20, 30]
    assert told["environment_turns"].tolist() == [40, 80, 120]
    assert told["all_tokens"].tolist() == [120, 240, 360]
    without = figures.budget_rows(
        metrics().drop(columns=["audit_turns", "audit_tokens"]), {"trap": 5}, weight=0.0
    )
    assert without["environment_turns"].max() == 30


def test_arms_are_compared_at_the_budget_of_the_cheapest_run():
    table = metrics()
    table["audit_turns"] = table["audit_turns"] / 6  # 15 turns a step: two steps within 30
    budget = figures.budget_rows(table, {"trap": 5}, weight=0.0)
    runs = budget[["task", "arm", "seed"]].drop_duplicates()
    outcomes = runs.assign(block=runs["seed"], exact_match=0.5, grounded=0.2)
    rows = figures.ceiling_rows(budget, outcomes, reference_arm="grpo")
    found = pd.DataFrame(rows)
    value = found.set_index(["arm", "measure"])["value"]
    assert value["grpo", "steps_at_budget"] == 3 and value["vineppo", "steps_at_budget"] == 2
    assert value["grpo", "success_at_budget"] == pytest.approx(0.2)
    assert value["vineppo", "success_at_budget"] == pytest.approx(0.1)
    assert value["vineppo", "environment_turns"] == 45 and value["grpo", "exact_match"] == 0.5


def test_figures_draw_every_arm_and_every_cell(moments):
    budget = figures.budget_rows(metrics(), {"trap": 5}, weight=0.5)
    left, right = figures.ceiling(budget, ["grpo", "vineppo"], weight=0.5).axes
    assert len(left.lines) == len(right.lines) == 2 * 3
    assert right.get_xscale() == "log"
    table = pd.DataFrame(worth_rows(moments, RUN))
    for measure in figures.MEASURES:
        axis = figures.audit_agreement(table, measure, [PLAIN, MASKED], last=1).axes[0]
        labels = [text.get_text() for text in axis.get_xticklabels()]
        assert "all turns" in labels and "step 7" in labels and "turn 1" in labels
        assert "turn 2" not in labels
        assert len(axis.patches) == 2 * len(labels)
    empty = figures.audit_agreement(table.iloc[:0], "correlation", [], last=1).axes[0]
    assert [text.get_text() for text in empty.texts] == ["no runs"]


def test_bins_of_one_kind_stand_together_whenever_they_were_first_met():
    names = ("turn 0", "turn 1"), ("step 0", "step 40")
    met = [("turn", "0"), ("stage", "0"), ("turn", "1"), ("stage", "40")]
    rows = [
        {"base": "grpo", "weight": "none", "by": by, "bin": name, "measure": "correlation"}
        | {"value": 0.5}
        for by, name in met
    ]
    axis = figures.audit_agreement(pd.DataFrame(rows), "correlation", [PLAIN], last=1).axes[0]
    labels = tuple(text.get_text() for text in axis.get_xticklabels())
    assert (labels[:2], labels[2:]) == names
