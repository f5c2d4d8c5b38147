"""Success by family: our rows, the published table, and the figure of both."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest

from turncredit import plots
from turncredit.claims.by_family import BY_FAMILY, published_families
from turncredit.claims.records import read_claims
from turncredit.plots import gallery
from turncredit.plots.family_figures import ALL, LABELS
from turncredit.worlds.household import FAMILIES


def store(root, arm: str, seed: int, done: dict[str, list[float]]) -> None:
    folder = root / "household" / arm / f"seed_{seed}"
    folder.mkdir(parents=True)
    rows = [
        {"question_id": f"{family}/mug/shelf/1/small/{number}", "success": value}
        for family, values in done.items()
        for number, value in enumerate(values)
    ]
    pd.DataFrame(rows).to_csv(folder / "questions.csv", index=False)


def test_every_family_is_counted_and_the_mean_over_them_weighs_them_alike(tmp_path):
    done = {family: [1.0, 0.0] for family in FAMILIES} | {
        "pick_two_obj_and_place": [0.0, math.nan, 0.0, 0.0]
    }
    store(tmp_path, "grpo", 3, done)
    rows = {row["family"]: row for row in plots.family_rows(tmp_path)}
    assert list(rows) == [*FAMILIES, ALL]
    assert rows["pick_two_obj_and_place"] == {
        "task": "household", "arm": "grpo", "seed": 3, "family": "pick_two_obj_and_place",
        "questions": 3, "success": 0.0,
    }  # fmt: skip
    assert rows[ALL]["success"] == pytest.approx(5 / 12)
    assert rows[ALL]["questions"] == 13


def test_games_of_no_family_and_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no run has questions\.csv"):
        plots.family_rows(tmp_path)
    store(tmp_path, "grpo", 0, {"dance": [1.0]})
    with pytest.raises(ValueError, match=r"'dance' in questions\.csv is no family"):
        plots.family_rows(tmp_path)


def test_the_published_table_is_whole_and_agrees_with_the_claims():
    rows = {row.arm: row for row in published_families()}
    assert {*rows} == {arm for pair in plots.AEM_PAIRS for arm in pair}
    assert all(list(row.families) == list(FAMILIES) for row in rows.values())
    (claim,) = [claim for claim in read_claims() if claim.id == "aem-alfworld-1-5b"]
    named = {"grpo_aem" if arm == "aem" else arm: row.all for arm, row in rows.items()}
    assert claim.published == named
    gains = plots.published_gains()
    assert gains.loc["pick_heat_then_place_in_recep", "grpo"] == pytest.approx(-0.111)
    assert list(gains.index) == list(LABELS)


def test_a_published_number_that_is_no_percentage_is_refused(tmp_path):
    text = BY_FAMILY.read_text(encoding="utf-8").replace("all: 68.0", "all: 680.0")
    path = tmp_path / "by_family.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"all = 680\.0 is no percentage"):
        published_families(path)


def test_the_figure_has_ours_above_theirs_and_says_where_there_are_no_runs(tmp_path):
    for arm, value in (("grpo", 0.0), ("aem", 1.0)):
        for seed in (0, 1):
            store(tmp_path, arm, seed, {family: [value, float(seed)] for family in FAMILIES})
    figure = plots.family_success(pd.DataFrame(plots.family_rows(tmp_path)))
    ours, *none = figure.axes[:3]
    drawn = {float(line.get_xdata()[0]) for line in ours.lines if len(line.get_xdata()) == 1}
    assert drawn == {0.25, 0.75}
    assert [axis.texts[0].get_text() for axis in none] == ["no runs", "no runs"]
    assert [axis.get_title(loc="left") for axis in figure.axes[3:]] == [
        f"{base}, AEM's table 1 (1.5B)" for base in ("GRPO", "DAPO", "GSPO")
    ]


def outcomes(arm: str, values: list[float]) -> pd.DataFrame:
    seeds = range(len(values))
    known = {"task": "household", "arm": arm, "seed": seeds, "exact_match": values}
    return pd.DataFrame(known | {"block": [seed % 2 for seed in seeds]})


def test_spreads_are_ratios_to_the_arm_without_aem():
    table = pd.concat(
        [outcomes("dapo", [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]),
         outcomes("dapo_aem", [0.1, 0.1, 0.3, 0.3, 0.5, 0.5]), outcomes("grpo", [0.1] * 6)]
    )  # fmt: skip
    study = SimpleNamespace(outcomes=table, settings=SimpleNamespace(confidence_level=0.95))
    (row,) = plots.pair_spreads(study, plots.AEM_PAIRS).to_dict("records")
    assert (row["arm"], row["reference_arm"], row["n"]) == ("dapo_aem", "dapo", 6)
    assert row["ratio"] == pytest.approx(2.0)
    assert row["sd"] == pytest.approx(2 * row["reference_sd"])
    assert row["low"] < 2.0 < row["high"]
    study.outcomes = outcomes("grpo", [0.1, 0.2])
    assert plots.pair_spreads(study, plots.AEM_PAIRS).empty


def test_games_of_the_engine_are_summed_up_by_arm():
    row = {"task": "household", "seed": 0, "played_by": "x", "made_of": "y"}
    table = pd.DataFrame(
        [row | {"arm": "grpo", "family": "a", "games": 3, "success": 1.0, "success_by_rules": 1.0,
                "equal": 1.0, "lost": 1},
         row | {"arm": "grpo", "family": "b", "games": 1, "success": 0.0, "success_by_rules": 1.0,
                "equal": 0.0, "lost": 0}]
    )  # fmt: skip
    (found,) = plots.engine_summary(table).reset_index().to_dict("records")
    assert found == {
        "arm": "grpo", "games": 4, "lost": 1, "success": 0.75, "success_by_rules": 1.0,
        "equal": 0.75,
    }  # fmt: skip
    assert plots.engine_summary(table.iloc[:0]).empty


def test_where_nothing_can_collapse_the_figure_says_so():
    differences = pd.DataFrame(
        [{"task": "t", "arm": "aem", "difference": 0.1, "low": 0.0, "high": 0.2, "n": 4}]
    )
    rates = pd.DataFrame(
        [{"task": "t", "arm": arm, "rate": math.nan, "low": math.nan, "high": math.nan,
          "count": 0, "n": 0} for arm in ("grpo", "aem")]
    )  # fmt: skip
    figure = plots.arm_differences(
        differences, rates, ["t"], ["grpo", "aem"], reference_arm="grpo", level=0.95
    )
    assert "not defined" in [text.get_text() for text in figure.axes[1].texts]


def test_every_caption_of_household_runs_says_what_played_them():
    table = outcomes("grpo", [0.1, 0.2]).assign(task="household-short", finished=True)
    study = SimpleNamespace(outcomes=table, settings=SimpleNamespace(reference_arm="grpo"))
    told = gallery.caption(study, "outcomes")
    assert told.endswith("no result on ALFWorld's own games.")
    study.outcomes = table.assign(task="tempting_guess")
    assert "ALFWorld" not in gallery.caption(study, "outcomes")
