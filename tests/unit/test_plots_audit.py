"""Figures of the credit audit from fabricated tables: what is drawn, and equal bytes."""

import math

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from turncredit import plots
from turncredit.audit.blame import ORACLE
from turncredit.audit.stages import with_intervals
from turncredit.decisions import CASES
from turncredit.environments.oracle import LABELS
from turncredit.plots import audit_figures as figures
from turncredit.plots.style import WIDTH

NAN = math.nan
STAGES = ("all", "0-19", "20-39")
RULES = ("suffix_mask", "mask_last", "turn_0")


def seeds(value: float, **place) -> list[dict]:
    return [{"seed": s, "block": s % 2} | place | {"value": value + 0.02 * s} for s in range(3)]


def with_means(rows: list[dict]) -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.DataFrame(rows), pd.DataFrame(with_intervals(rows, seed=0))


def case_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = []
    for stage in STAGES:
        for outcome, lift in (("failed", 0.0), ("all", 0.5)):
            for number, measure in enumerate((*CASES, "execution_right", "execution_follows")):
                value = 0.05 * number + lift
                rows += seeds(value, stage=stage, outcome=outcome, measure=measure)
    return with_means(rows)


def gate_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = []
    for stage in STAGES:
        for number, rule in enumerate(RULES):
            for k in (1, 16):
                for measure, lift in (("precision", 0.1), ("recall", 0.3), ("chance", 0.25)):
                    value = lift + 0.1 * number + (0.5 if stage != "all" else 0.0)
                    rows += seeds(value, stage=stage, rule=rule, k=k, measure=measure)
    return with_means(rows)


def grid_means() -> pd.DataFrame:
    return pd.DataFrame(
        {"stage": stage, "base": base, "weight": weight, "measure": measure, "value": value}
        for stage, lift in (("all", 0.0), ("0-19", 0.5))
        for base in ("grpo", "rloo")
        for weight, value in (("none", 0.4 + lift), ("drop_failed", NAN))
        for measure in ("blame_on_right", "credit_on_wrong", "blame_kept")
    )


def turn_means() -> pd.DataFrame:
    return pd.DataFrame(
        {"base": base, "weight": weight, "turn": turn, "value": value}
        for base, weight in (("grpo", "none"), ("grpo", "suffix_mask"), ORACLE)
        for turn, value in enumerate((0.5, 0.3, 0.2))
    )


def ledger_table() -> pd.DataFrame:
    return pd.DataFrame(
        {"base": "grpo", "weight": weight, "turn": turn, "action": "read_chunk"}
        | {"label": label, "advantage": -0.5 * scale if turn else -0.5}
        for weight, scale in (("none", 1), ("oracle_suffix", 0))
        for turn, label in enumerate(LABELS)
    )


def all_figures() -> dict[str, Figure]:
    return {
        "cases": figures.audit_cases(*case_tables(), CASES),
        "gates": figures.audit_gates(*gate_tables()),
        "grid": figures.audit_grid(grid_means()),
        "map": figures.audit_map(turn_means(), last=2),
        "ledger": figures.audit_ledger(ledger_table()),
    }


def dots(axis, colour: str) -> list[tuple[float, float]]:
    """Of the seeds, by colour."""
    return [
        tuple(pair)
        for collection in axis.collections
        if len(collection.get_offsets())
        and len(collection.get_facecolor())
        and to_hex(collection.get_facecolor()[0]).upper() == colour
        for pair in collection.get_offsets().tolist()
    ]


def diamonds(axis, colour: str) -> list[tuple[float, float]]:
    return [
        pair
        for line in axis.lines
        if line.get_marker() == "D" and to_hex(line.get_color()).upper() == colour
        for pair in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def cell_texts(axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


def row_names(axis) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def test_cases_of_failed_trajectories_have_a_dot_for_each_seed_and_stage():
    left, right = figures.audit_cases(*case_tables(), CASES).axes
    assert [label.get_text() for label in left.get_xticklabels()] == list(STAGES[1:])
    for number, colour in enumerate(figures.SERIES):
        drawn = dots(left, colour)
        assert len(drawn) == 3 * 2, "three seeds, two stages; neither `all` nor the other outcome"
        assert {round(y, 3) for _, y in drawn} == {
            round(0.05 * number + 0.02 * s, 3) for s in range(3)
        }
        # Seeds 0 and 2 share a warm start: the mean over warm starts is that of 1 and 1.
        assert [y for _, y in diamonds(left, colour)] == pytest.approx([0.05 * number + 0.02] * 2)
    assert len(dots(right, figures.SERIES[1])) == 6 and not dots(right, figures.SERIES[2])


def test_every_rule_has_its_row_and_every_k_its_colour():
    precision, recall = figures.audit_gates(*gate_tables()).axes
    assert row_names(precision) == ["suffix mask", "mask last", "turn 0"]
    for axis, lift in ((precision, 0.1), (recall, 0.3)):
        for colour in figures.SERIES[:2]:
            drawn = diamonds(axis, colour)
            assert [round(y) for _, y in drawn] == [0, 1, 2]
            assert [x for x, _ in drawn] == pytest.approx([lift + 0.1 * n + 0.02 for n in range(3)])
            assert len(dots(axis, colour)) == 9
    chance = [line for line in precision.lines if line.get_marker() == "|"]
    assert len(chance) == 2 and not [line for line in recall.lines if line.get_marker() == "|"]


def test_a_rule_that_never_fired_is_not_drawn_and_breaks_nothing():
    table, means = gate_tables()
    for rows in (table, means):
        silent = (rows["rule"] == "mask_last") & (rows["measure"] == "precision")
        rows.loc[silent, [c for c in ("value", "low", "high") if c in rows]] = NAN
    axis = figures.audit_gates(table, means).axes[0]
    drawn = diamonds(axis, figures.SERIES[0])
    assert [math.isnan(x) for x, _ in drawn] == [False, True, False]


def test_the_grid_shows_the_stage_asked_for_and_says_where_nothing_is_blamed():
    blame, credit = figures.audit_grid(grid_means()).axes
    assert row_names(blame) == ["none", "drop failed"]
    assert cell_texts(blame) == cell_texts(credit) == ["0.40", "0.40"]
    assert cell_texts(figures.audit_grid(grid_means(), stage="0-19").axes[0]) == ["0.90", "0.90"]
    faces = [to_hex(patch.get_facecolor()) for patch in blame.patches]
    assert faces.count(figures.EMPTY) == 2


def test_the_map_begins_with_the_oracle_and_ends_with_all_later_turns():
    axis = figures.audit_map(turn_means(), last=2).axes[0]
    assert row_names(axis) == ["wrong turns (oracle)", "GRPO", "GRPO, suffix mask"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "1", "2 on"]
    assert cell_texts(axis) == ["0.50", "0.30", "0.20"] * 3


def test_the_ledger_has_a_column_for_each_turn_under_its_action_and_label():
    axis = figures.audit_ledger(ledger_table()).axes[0]
    texts = cell_texts(axis)
    assert texts[:8] == ["−0.50"] * 5 + ["0"] * 3
    assert texts[8:] == [f"read chunk\n{label}" for label in LABELS]
    faces = [to_hex(patch.get_facecolor()).upper() for patch in axis.patches[8:]]
    assert faces == list(figures.LABEL_COLOURS.values())
    assert set(figures.LABEL_COLOURS) == set(LABELS)


def test_tables_without_rows_are_said_to_be_empty():
    gates = figures.audit_gates(*(table.iloc[:0] for table in gate_tables()))
    assert cell_texts(gates.axes[0]) == ["no runs"]
    cases = figures.audit_cases(*(table.iloc[:0] for table in case_tables()), CASES)
    assert [cell_texts(axis) for axis in cases.axes] == [["no runs"]] * 2
    assert cell_texts(figures.audit_map(turn_means().iloc[:0], last=2).axes[0]) == ["no runs"]


def test_equal_tables_give_equal_bytes(tmp_path):
    for folder in ("one", "two"):
        for name, figure in all_figures().items():
            assert figure.get_size_inches()[0] == WIDTH
            plots.save_figure(figure, tmp_path / folder, name)
    written = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(written) == 10
    for name in written:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
