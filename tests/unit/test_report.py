"""The report: rows by hand, one verdict a test, and a page that says what its tables say."""

import html
import json
import math
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from turncredit import claims, paths, report, stats
from turncredit.claims import Claim, Measurement, NotTestable
from turncredit.report.blocks import Heading, Links, Picture, Table, Text
from turncredit.report.run_table import notebooks
from turncredit.report.sections import interval, number, seeds
from turncredit.results import write_table
from turncredit.storage import write_json
from turncredit.training import FIRST_K

SETTINGS = report.ReportParams("smoke", 0.95, 0.8)
STEPS, SHIFT = 60, 34
"""Search-first falls from 0.9 to 0.1 at step 30: the mean of ten steps is below one half at 34."""

VOID = {"meta", "img", "br", "hr", "link"}


def write_run(
    root, notebook, task, arm, seed, *, shifts=False, gain=0.0, code="c", params_hash="p"
):
    """A finished run whose numbers follow from step and seed; with `shifts`, from SHIFT on."""
    folder = root / notebook / task / arm / f"seed_{seed}"
    folder.mkdir(parents=True)
    jitter = 0.001 * ((seed * 7) % 5)
    metrics = [
        {"step": s, "reward": 0.01 * s, "entropy": 1.0 - 0.01 * s, "clip_fraction": 0.001}
        | {"turns": 5.0, "search_first": 0.1 if shifts and s >= 30 else 0.9, "grounded": 0.5}
        | {"missing_rewards": 0, "mean_abs_prob_diff": 1e-7, "masked_share": 0.0, "tokens": 100}
        for s in range(STEPS)
    ]
    write_table(folder / "metrics.csv", metrics)
    turns = [
        {"step": s, "turn": t, "trajectories": 8, "answered": 4, "answered_correct": s % 2 + t}
        | {f"entropy_k{k}": 0.1 * (t + 1) + 0.001 * s for k in FIRST_K}
        for s in range(STEPS)
        for t in range(2)
    ]
    pd.DataFrame(turns).to_csv(folder / "turns.csv.gz", index=False)
    ends = {"hops": "all", "questions": 8, "turns": 5.0, "search_first": 0.9, "grounded": 0.5}
    ends |= {"exact_match": 0.5 + gain + jitter, "malformed": 0.0}
    ends |= {"turns_sd": 2.0 + seed * (5 if arm == "grpo" else 3) % 7}
    write_table(folder / "eval.csv", [{"step": STEPS} | ends])
    facts = {"params": {"seed": seed, "warm_start_seed": seed % 4}, "seconds": 36.0}
    facts |= {"code_hash": code, "params_hash": params_hash, "stop_reason": "finished"}
    facts |= {"seed": seed, "steps_done": STEPS, "versions": {"python": "3.11", "vllm": None}}
    write_json(folder / "manifest.json", facts)


def claim(name, arm="suffix_mask", **changes):
    test = {"rule": "difference", "quantity": {"exact_match": 1.0}, "among": "all"}
    test |= {"tasks": ("trap", "unrun"), "arm": arm, "reference": "grpo"}
    test |= {"inside": (0.0, None), "effect": None, "note": ""}
    test |= changes
    sentence = f"The <b>{name}</b> | claim & its sentence."
    return Claim(name, "slides", "a table", sentence, {"gain": 0.1}, "share", Measurement(**test))


CLAIMS = (
    claim("it-helps"),
    claim("it-hurts", inside=(None, 0.0)),
    claim("undecided", quantity={"turns_sd": 1.0}),
    claim("entropy-falls", rule="mean", arm="grpo", reference=None, among="shifted",
          quantity={"entropy_after": 1.0, "entropy_before": -1.0}, inside=(None, 0.0)),
    claim("probed", rule="mean", arm="grpo", reference=None, quantity={"probe_pearson": 1.0}),
    Claim("elsewhere", "AEM v1", "table 1", "It helps large models.", {}, "percent",
          NotTestable("needs many graphics cards, which are not here")),
)  # fmt: skip


@pytest.fixture
def root(tmp_path, monkeypatch):
    """results/smoke of two notebooks: the baseline, which shifts, and one arm that gains."""
    found = tmp_path / "results" / "smoke"
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(found))
    return found


def write_runs(root):
    for seed in range(16):
        write_run(root, "10_base", "trap", "grpo", seed, shifts=True)
        write_run(root, "11_mask", "trap", "suffix_mask", seed, gain=0.1 + 0.002 * (seed % 3))
    write_run(root, "11_mask", "unasked", "suffix_mask", 0)
    return root


@pytest.fixture
def runs(root):
    """Runs that a test may change."""
    return write_runs(root)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder of the same runs with their report, and its findings; only read by the tests."""
    found = tmp_path_factory.mktemp("reported") / "results" / "smoke"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNCREDIT_RESULTS", str(found))
        write_runs(found)
        findings = report.find(SETTINGS, CLAIMS)
        report.save(findings)
        yield found, findings


def only(rows, **wanted):
    (row,) = [r for r in rows if all(r[key] == value for key, value in wanted.items())]
    return row


# The table of runs


def test_the_table_has_one_row_per_run_on_the_tasks(runs):
    write_run(runs, "15_again", "trap", "grpo", 3, shifts=True)  # the same run, elsewhere
    table = report.run_table("smoke", ["trap", "unrun"])
    assert len(table) == 32
    assert not table.duplicated(["task", "arm", "seed"]).any()
    assert set(table["task"]) == {"trap"}
    assert set(table["notebook"]) == {"10_base", "11_mask"}
    absent = {"probe_pearson", "probe_sign_agreement", *claims.MEASURED}
    assert set(claims.QUANTITIES) - set(table) == absent
    assert set(table["code_hash"]) == {"c"}


def test_two_versions_of_one_run_are_refused(runs):
    write_run(runs, "15_again", "trap", "grpo", 3, params_hash="other")
    with pytest.raises(ValueError, match=r"10_base/trap/grpo/seed_3 and .*15_again.* two versions"):
        report.run_table("smoke", ["trap"])


def test_runs_of_one_seed_on_tasks_of_other_parameters_are_refused(runs):
    path = runs / "11_mask" / "trap" / "suffix_mask" / "seed_3" / "manifest.json"
    facts = json.loads(path.read_text("utf-8"))
    write_json(path, facts | {"params": facts["params"] | {"steps": 1}})
    with pytest.raises(ValueError, match=r"suffix_mask/seed_3.* different task parameters"):
        report.run_table("smoke", ["trap"])
    write_json(path, {name: value for name, value in facts.items() if name != "params"})
    with pytest.raises(ValueError, match="lacks params"):
        report.run_table("smoke", ["trap"])


def test_runs_of_other_code_are_shown_with_its_hash_and_a_warning(runs):
    for seed in range(16):  # an arm, and one run that another notebook holds already
        write_run(runs, "15_again", "trap", "rloo", seed, code="d" * 64)
    write_run(runs, "15_again", "trap", "grpo", 3, shifts=True, gain=9.0, code="d" * 64)
    newer = claim("newer", arm="rloo")
    findings = report.find(SETTINGS, [*CLAIMS, newer])
    table = findings.runs
    assert table.groupby("arm")["code_hash"].unique().map(list).to_dict() == {
        "grpo": ["c"], "rloo": ["d" * 64], "suffix_mask": ["c"]
    }  # fmt: skip
    assert len(table) == 48 and table["exact_match"].max() < 1.0
    text = "".join(Reader(report.page("", report.report_blocks(findings))).texts)
    assert "come from 2 versions of the code. c: 10_base (16), 11_mask (17); " in text
    assert f"; {'d' * 16}: 15_again (17). What arms" in text
    assert "Warning: 1 runs are there in several versions, such as trap/grpo/seed_3, in" in text
    assert "in 10_base, 15_again; that of the first" in text
    assert "of several versions in itself" not in text
    across = only(findings.claims, claim="newer", task="trap")
    assert across["reason"].endswith(f"from 2 versions of the code: c, {'d' * 16}")
    assert "versions" not in only(findings.claims, claim="it-helps", task="trap")["reason"]
    assert (
        report.code_warnings([row for row in findings.manifests if row["code_hash"] == "c"]) == []
    )


def test_an_unfinished_run_is_no_row(runs):
    (runs / "10_base" / "trap" / "grpo" / "seed_3" / "manifest.json").unlink()
    table = report.run_table("smoke", ["trap"])
    assert 3 not in set(table[table["arm"] == "grpo"]["seed"])
    assert len(table) == 31


def test_the_windows_of_a_run_are_right_by_hand(reported):
    table = reported[1].runs
    row = table[(table["arm"] == "grpo") & (table["seed"] == 2)].iloc[0]
    # Before: the 20 steps ahead of the ten that end with the shift, 5 .. 24; after: 35 .. 54.
    assert stats.windows(SHIFT, STEPS).before == range(5, 25)
    assert (row["shifted"], row["block"]) == (1.0, 2)
    assert row["reward_before"] == pytest.approx(0.01 * 14.5)
    assert row["reward_after"] == pytest.approx(0.01 * 44.5)
    assert row["entropy_turn_0_before"] == pytest.approx(0.1 + 0.001 * 14.5)
    assert row["entropy_turn_1_after"] == pytest.approx(0.2 + 0.001 * 44.5)
    # Turn 1 answers 4 a step, and 1 or 2 of them rightly: 30 of 80.
    assert row["accuracy_turn_1_before"] == pytest.approx(30 / 80)
    assert row["entropy_early"] == pytest.approx(1.0 - 0.01 * 9.5)
    assert row["entropy_end"] == pytest.approx(1.0 - 0.01 * 49.5)
    assert row["turns_sd"] == 2.0 + 10 % 7  # seed 2
    # Turn-0 entropy grows by 0.001 a step: the last 20 steps are 40 later than the first.
    assert row["entropy_turn_0_rise"] == pytest.approx(0.04)
    assert row["run"] == "results/smoke/10_base/trap/grpo/seed_2"
    calm = table[(table["arm"] == "suffix_mask") & (table["seed"] == 2)].iloc[0]
    assert calm["shifted"] == 0.0
    assert calm["reward_before"] == pytest.approx(0.01 * 9.5)  # its first and its last steps
    assert calm["reward_after"] == pytest.approx(0.01 * 49.5)


def test_runs_without_a_table_say_what_is_missing_here(runs):
    for path in runs.rglob("eval.csv"):
        path.unlink()
    findings = report.find(SETTINGS, CLAIMS)
    assert findings.runs["turns_sd"].isna().all()
    row = only(findings.claims, claim="undecided", task="trap")
    assert (row["verdict"], row["seeds"]) == (claims.NOT_TESTABLE, 0)
    assert math.isnan(row["ours"])
    assert row["reason"] == "no run has this number; missing here: eval.csv of 32 runs"
    probed = only(findings.claims, claim="probed", task="trap")
    source = "results/smoke/14_surprisal_probe/agreement.csv"
    assert probed["reason"].endswith(f"missing here: {source}")
    falls = only(findings.claims, claim="entropy-falls", task="trap")
    assert falls["seeds"] > 0
    assert "missing" not in falls["reason"]
    report.save(findings)
    text = (runs / "99_report" / "report.md").read_text("utf-8")
    assert "missing here: eval.csv of 32 runs" in text


def test_a_notebook_whose_runs_have_no_metrics_is_no_error(runs):
    for path in (runs / "11_mask").rglob("metrics.csv"):
        path.unlink()
    found = report.find(SETTINGS, CLAIMS)
    assert set(found.runs["notebook"]) == {"10_base"}


def test_one_lost_table_is_missing_and_the_others_are_counted(runs):
    (runs / "10_base" / "trap" / "grpo" / "seed_3" / "eval.csv").unlink()
    row = only(report.find(SETTINGS, CLAIMS).claims, claim="undecided", task="trap")
    assert (row["seeds"], row["missing"]) == (15, 1)
    assert row["reason"].endswith("; missing here: eval.csv of one run")


def test_a_run_that_was_stopped_has_no_rise_to_compare(runs):
    path = runs / "10_base" / "trap" / "grpo" / "seed_3" / "manifest.json"
    write_json(path, json.loads(path.read_text("utf-8")) | {"stop_reason": "low entropy"})
    table = report.run_table("smoke", ["trap"])
    stopped = table[table["entropy_turn_0_rise"].isna()]
    assert stopped[["arm", "seed"]].values.tolist() == [["grpo", 3]]


def write_agreement(path, pearson, signs, *, states=64, **more):
    """What a probe found, of one run or (world, seed) of several; returns its rows."""
    row = more | {"responses": "recorded", "by": "all", "bin": "all", "pairs": states}
    ends = {"low": 0.1, "high": 0.9}
    rows = [{"measure": "pearson", "silent": "", "value": pearson}]
    rows += [{"measure": "sign_agreement", "silent": s, "value": v}
             for s, v in (("exclude", 0.9), ("half", signs))]  # fmt: skip
    rows = [row | r | ends for r in rows]
    if path is not None:
        write_table(path, rows)
    return rows


PEARSON, SIGN = "aem-knows-the-surprisal", "aem-knows-its-sign"


def by_id(*names):
    return [c for c in claims.read_claims() if c.id in names]


def test_the_probe_of_one_run_stands_beside_it_and_is_no_verdict(root):
    for seed in range(2):
        write_run(root, "10_base", "informative_guess", "grpo", seed)
    write_agreement(root / "14_surprisal_probe" / "agreement.csv", 0.4, 0.7)
    table = report.run_table("smoke", ["informative_guess"])
    assert table["probe_pearson"].tolist() == pytest.approx([0.4, math.nan], nan_ok=True)
    assert table["probe_sign_agreement"].tolist() == pytest.approx([0.7, math.nan], nan_ok=True)
    row = report.claim_rows(by_id(PEARSON), table, "smoke")[0]
    assert (row["ours"], row["seeds"], row["verdict"]) == (0.4, 1, claims.NOT_TESTABLE)
    assert math.isnan(row["low"])
    assert row["run"] == "results/smoke/14_surprisal_probe/agreement.csv"


def test_where_several_runs_were_probed_they_decide_and_the_single_one_does_not(root):
    """The direction holds in all four and the published size is excluded."""
    rows = []
    for seed in range(4):
        write_run(root, "10_base", "informative_guess", "grpo", seed)
        found = {"world": "informative_guess", "seed": seed}
        rows += write_agreement(None, 0.2 + 0.01 * seed, 0.62 + 0.01 * seed, **found)
    write_table(root / "25_probe_over_seeds" / "agreement.csv", rows)
    write_agreement(root / "14_surprisal_probe" / "agreement.csv", 0.63, 0.859375)
    table = report.run_table("smoke", ["informative_guess"])
    for name, mean in ((PEARSON, 0.215), (SIGN, 0.635)):
        row = report.claim_rows(by_id(name), table, "smoke")[0]
        assert (row["ours"], row["seeds"]) == (pytest.approx(mean), 4)
        assert row["verdict"] == claims.DIRECTION_ONLY
        assert row["run"] == "results/smoke/25_probe_over_seeds/agreement.csv"
        assert report.source_files(row["run"], "smoke")


LANGUAGE_MODEL = ("language-model-aem-knows-the-surprisal", "language-model-aem-knows-its-sign")


@pytest.fixture
def cpu_root(tmp_path, monkeypatch):
    found = tmp_path / "results" / "cpu"
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(found))
    return found


def test_the_language_model_has_a_row_that_names_its_table_and_the_manifest_it_lacks(cpu_root):
    below = "14_surprisal_probe/language_model"
    write_agreement(cpu_root / below / "agreement.csv", 0.7, 0.9, states=16)
    settings = report.ReportParams("cpu", 0.95, 0.8)
    small = report.find(settings, by_id(*LANGUAGE_MODEL)).claims
    assert [row["verdict"] for row in small] == [claims.NOT_TESTABLE] * 2
    assert all("states with this number: 16, needed: 64" in row["reason"] for row in small)
    full = cpu_root.parent / "probe-full" / below
    write_agreement(full / "agreement.csv", 0.64, 0.89)
    rows = report.find(settings, by_id(*LANGUAGE_MODEL)).claims
    assert [(row["ours"], row["low"], row["high"]) for row in rows] == [
        (0.64, 0.1, 0.9), (0.89, 0.1, 0.9)
    ]  # fmt: skip
    assert rows[0]["verdict"] == claims.REPRODUCED
    for row in rows:
        assert row["run"] == f"results/probe-full/{below}/agreement.csv"
        assert report.source_files(row["run"], "cpu") == [full / "agreement.csv"]
        assert f"from results/probe-full/{below}, whose manifest.json" in row["reason"]
        assert "is missing" in row["reason"] and "over 64 states" in row["reason"]
    write_json(full / "manifest.json", {"identity": {"code": "e" * 64}})
    row = report.find(settings, by_id(*LANGUAGE_MODEL)).claims[0]
    assert row["reason"].endswith(f"from results/probe-full/{below}")


def test_without_the_language_model_s_table_its_claims_say_which_is_missing(cpu_root):
    findings = report.find(report.ReportParams("cpu", 0.95, 0.8), by_id(*LANGUAGE_MODEL))
    for row in findings.claims:
        assert (row["verdict"], row["seeds"]) == (claims.NOT_TESTABLE, 0)
        assert row["reason"].endswith(
            "missing here: results/cpu/14_surprisal_probe/language_model/agreement.csv"
        )


# What is read off the curves


def curve_run(root, seed, *, search, ratio=None, entropy=None, divergence=None, reward=None):
    """A run of plain GRPO whose curves are as given, (steps,) each."""
    write_run(root, "10_base", "trap", "grpo", seed)
    folder = root / "10_base" / "trap" / "grpo" / f"seed_{seed}"
    metrics = pd.read_csv(folder / "metrics.csv").assign(search_first=search)
    metrics = metrics if reward is None else metrics.assign(reward=reward)
    metrics.to_csv(folder / "metrics.csv", index=False)
    turns = pd.read_csv(folder / "turns.csv.gz")
    third = turns[turns["turn"] == 1].assign(turn=2)
    turns = pd.concat([turns, third], ignore_index=True)
    first = turns["turn"] == 0
    if ratio is not None:
        turns.loc[first, "turn_ratio_mean"] = ratio
    if entropy is not None:
        turns.loc[first, "entropy_k16"] = entropy
    if divergence is not None:
        turns.loc[turns["turn"] == 2, "divergence_k1"] = divergence
    turns.to_csv(folder / "turns.csv.gz", index=False)


def test_the_curves_around_a_shift_are_right_by_hand(root):
    steps = range(STEPS)
    fall = [min(1.0, max(0.0, (34 - s) / 8)) for s in steps]  # from 26 to 34
    early = [1.1 if s < 24 else 1.0 for s in steps]
    entropy = [0.1 * s for s in steps]
    curve_run(root, 0, search=fall, ratio=early, entropy=entropy, divergence=entropy)
    curve_run(root, 1, search=[0.9] * STEPS, ratio=early, entropy=entropy, divergence=entropy)
    curve_run(root, 2, search=fall)
    table = report.run_table("smoke", ["trap"]).set_index("seed")
    # Above 0.8 of the fall last at step 27, below 0.2 first at 33; the levels part at 24 and 30.
    assert table.loc[0, "shift_length"] == 6
    assert table.loc[0, "ratio_lead_turn_0"] in (5.0, 6.0, 7.0)
    assert table.loc[0, "divergence_follows_turn_2"] == pytest.approx(1.0)
    assert table.loc[0, "turn_ratio_turn_0_before"] > table.loc[0, "turn_ratio_turn_0_after"]
    rise = table.loc[0, "divergence_turn_2_after"] - table.loc[0, "divergence_turn_2_before"]
    assert rise > 0
    around = ["shift_length", "ratio_lead_turn_0", "divergence_follows_turn_2"]
    assert table.loc[1, around].isna().all()
    assert table.loc[2, "shift_length"] == 6 and table.loc[2, around[1:]].isna().all()
    assert table.loc[2, ["divergence_turn_2_before", "turn_ratio_turn_0_after"]].isna().all()


def test_a_claim_whose_column_no_run_has_is_not_testable(runs):
    table = report.run_table("smoke", ["trap"])
    asked = [c for c in claims.read_claims() if c.id.startswith(("divergence-", "turn-ratio-"))]
    assert len(asked) == 4
    for one in asked:
        test = Measurement(**{**vars(one.test), "tasks": ("trap",)})
        (row,) = report.claim_rows([Claim(**{**vars(one), "test": test})], table, "smoke")
        assert row["verdict"] == claims.NOT_TESTABLE
        assert row["reason"].startswith("no run has this number")


def test_first_tokens_that_never_differ_are_no_agreement(root):
    write_run(root, "10_base", "trap", "grpo", 0)
    write_run(root, "10_base", "trap", "grpo", 1)
    path = root / "10_base" / "trap" / "grpo" / "seed_1" / "turns.csv.gz"
    turns = pd.read_csv(path)
    turns["entropy_k128"] = turns["entropy_k8"] ** 2
    turns.to_csv(path, index=False)
    alike = report.run_table("smoke", ["trap"]).set_index("seed")["first_tokens_alike_turn_0"]
    assert math.isnan(alike[0])
    assert 0.9 < alike[1] < 1.0


def test_what_shifts_or_collapses_is_unstable_and_an_unknown_end_is_no_calm(root):
    calm, fall = [0.9] * STEPS, [0.9] * 30 + [0.1] * 30
    for seed, (search, grounded) in enumerate(
        [(calm, 0.5), (fall, 0.5), (calm, 0.0), (calm, None)]
    ):
        curve_run(root, seed, search=search)
        path = root / "10_base" / "trap" / "grpo" / f"seed_{seed}" / "eval.csv"
        pd.read_csv(path).assign(grounded=grounded).to_csv(path, index=False)
    table = report.run_table("smoke", ["trap"])
    assert table["unstable"].tolist() == pytest.approx([0.0, 1.0, 1.0, math.nan], nan_ok=True)


def test_a_reward_is_lost_below_a_tenth_of_its_best(root):
    calm = [0.9] * STEPS
    for seed, end in enumerate((0.5, 0.06, 0.04)):
        curve_run(root, seed, search=calm, reward=[0.5] * 30 + [end] * 30)
    assert report.run_table("smoke", ["trap"])["reward_lost"].tolist() == [0.0, 0.0, 1.0]


# Verdicts, and how many seeds are missing


def test_verdicts_and_sources(reported):
    rows = reported[1].claims
    assert [tuple(row) for row in rows] == [report.COLUMNS] * len(rows)
    assert only(rows, claim="it-helps", task="trap")["verdict"] == claims.REPRODUCED
    assert only(rows, claim="it-hurts", task="trap")["verdict"] == claims.NOT_REPRODUCED
    vague = only(rows, claim="undecided", task="trap")
    assert (vague["verdict"], vague["seeds"]) == (claims.NOT_TESTABLE, 16)
    assert vague["low"] < 0 < vague["high"]
    assert vague["seeds_needed"] > 16
    assert vague["resolvable"] > abs(vague["ours"])
    assert only(rows, claim="entropy-falls", task="trap")["run"] == (
        "results/smoke/10_base/trap/grpo/seed_*/metrics.csv"
    )
    assert only(rows, claim="it-helps", task="trap")["run"].split() == [
        "results/smoke/10_base/trap/grpo/seed_*/eval.csv",
        "results/smoke/11_mask/trap/suffix_mask/seed_*/eval.csv",
    ]
    assert {row["verdict"] for row in rows if row["task"] == "unrun"} == {claims.NOT_TESTABLE}
    assert report.counts(rows) == {
        "reproduced": 2, "direction only": 0, "not reproduced": 1, "open": 1, "not run": 6,
        "beyond": 1,
    }  # fmt: skip


def test_every_number_has_tables_that_exist(reported):
    root, findings = reported
    patterns = {p for row in findings.claims if row["seeds"] for p in row["run"].split()}
    assert len(patterns) == 3
    for pattern in patterns:
        assert len(list(root.glob(pattern.removeprefix("results/smoke/")))) == 16, pattern


def outcomes(a, b, *, blocks=1):
    """Two arms on one task, their seeds from so many warm starts in turn."""
    return pd.DataFrame(
        [
            {"task": "trap", "arm": arm, "seed": s, "exact_match": v, "collapsed": v, "shifted": 0}
            | {"block": s % blocks}
            for arm, values in (("suffix_mask", a), ("grpo", b))
            for s, v in enumerate(values)
        ]
    )


def test_the_seeds_needed_are_the_fewest_with_that_power():
    table = outcomes([0.0, 0.1, 0.2, 0.3], [0.0, 0.0, 0.0, 0.0])
    sd = pd.Series([0.0, 0.1, 0.2, 0.3]).std()
    for effect in (None, 0.04):
        test = claim("x", effect=effect).test
        needed = int(report.seeds_needed(test, "trap", table))
        distance = 0.15 if effect is None else effect
        assert stats.mean_power(distance, sd, needed, paired=True) >= 0.8
        assert stats.mean_power(distance, sd, needed - 1, paired=True) < 0.8
    rates = claim("x", rule="share_difference", quantity={"collapsed": 1.0}).test
    table = outcomes([1, 0, 0, 0, 0], [1, 1, 1, 0, 0])
    assert report.seeds_needed(rates, "trap", table) == stats.seeds_for_rates(
        0.2, 0.6, test="normal"
    )


def test_what_separates_the_warm_starts_needs_no_seeds_and_hides_nothing():
    near, far = [0.0, 0.0, 0.1, 0.1, 0.2, 0.2], [0.0, 1.0, 0.1, 1.1, 0.2, 1.2]
    zero = [0.0] * 6
    test = claim("x", effect=0.1).test
    for function in (report.seeds_needed, report.resolvable):
        expected = function(test, "trap", outcomes(near, zero, blocks=2))
        assert function(test, "trap", outcomes(far, zero, blocks=2)) == pytest.approx(expected)
    own = [0.0, 0.1, 0.3, 0.2]
    alone = report.resolvable(test, "trap", outcomes(own, [0.0] * 4, blocks=4))
    assert alone == report.resolvable(test, "trap", outcomes(own, [0.0] * 4)) > 0


def test_what_the_seeds_at_hand_resolve_has_that_power():
    values = [0.0, 0.1, 0.2, 0.3, -0.1, math.nan]
    found = report.resolvable(claim("x").test, "trap", outcomes(values, [0.0] * 6))
    sd = pd.Series(values).std()
    assert stats.mean_power(found, sd, 5, paired=True) == pytest.approx(0.8)
    fewer = claim("x", rule="share_difference", quantity={"collapsed": 1.0}, inside=(None, 0.0))
    table = outcomes([1, 0] * 8, [1, 1, 1, 0] * 4)
    lower = 0.75 - report.resolvable(fewer.test, "trap", table)
    assert 0 < lower < 0.75
    assert stats.fisher_power(0.75, lower, 16) == pytest.approx(0.8, abs=1e-6)
    more = claim("x", rule="share_difference", quantity={"collapsed": 1.0})
    assert math.isnan(report.resolvable(more.test, "trap", table))  # even 1 is not far enough


@pytest.mark.parametrize(
    ("test", "a", "b"),
    [
        (claim("x").test, [0.1] * 4, [0.0] * 4),  # no spread
        (claim("x").test, [0.1, 0.2, 0.0], [0.0] * 3),  # the spread of three is a guess
        (claim("x").test, [0.1, 0.2, 0.0, math.nan], [0.0] * 4),
        (claim("x", rule="share_difference", quantity={"collapsed": 1.0}).test, [1, 0], [0, 1]),
        (claim("x", rule="sd_ratio").test, [0.1, 0.3] * 2, [0.0, 0.1] * 2),
    ],
)
def test_where_power_says_nothing_no_number_of_seeds_is_made_up(test, a, b):
    for function in (report.seeds_needed, report.resolvable):
        assert math.isnan(function(test, "trap", outcomes(a, b)))


def test_no_number_of_seeds_decides_what_lies_on_the_bound():
    table = outcomes([0.1, -0.1] * 2, [0.0] * 4)
    assert math.isnan(report.seeds_needed(claim("x").test, "trap", table))


def test_no_number_of_seeds_is_told_beyond_the_stated_one():
    table = outcomes([0.101, -0.1, 0.1, -0.1], [0.0] * 4)
    needed = report.seeds_needed(claim("x").test, "trap", table)
    assert needed == math.inf and seeds(needed) == f"more than {report.MOST_SEEDS:,}"
    rates = claim("x", rule="share_difference", quantity={"collapsed": 1.0}).test
    near = outcomes([1, 0] * 50 + [0], [1, 0] * 50 + [1])
    assert report.seeds_needed(rates, "trap", near) == math.inf


def test_what_no_run_can_be_is_not_called_resolvable():
    table = outcomes([0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0])
    share = claim("x", rule="mean", reference=None).test
    assert math.isnan(report.resolvable(share, "trap", table))


# The page


class Reader(HTMLParser):
    """Tags that match, and the texts and cells between them."""

    def __init__(self, source):
        super().__init__()
        self.open, self.texts, self.links, self.tables = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == [], "tags are left open"

    def handle_starttag(self, tag, attributes):
        self.links += [value for key, value in attributes if key in ("src", "href")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


def table_of(reader, *names):
    """Rows of all tables that begin with these columns."""
    return [row for t in reader.tables if tuple(t[0][: len(names)]) == names for row in t[1:]]


def test_the_page_is_well_formed_and_has_every_claim_once(reported):
    folder = reported[0] / "99_report"
    reader = Reader((folder / "report.html").read_text(encoding="utf-8"))
    text = "".join(reader.texts)
    markdown = html.unescape((folder / "report.md").read_text(encoding="utf-8")).replace("\\", "")
    for one in CLAIMS:
        sentence = one.sentence.removesuffix(".")
        assert text.count(sentence) == 1, one.id
        assert markdown.count(sentence) == 1, one.id
    assert not any(link.startswith(("http", "/", "javascript")) for link in reader.links)


def test_the_numbers_of_the_page_are_those_of_the_tables(reported):
    folder = reported[0] / "99_report"
    saved = pd.read_csv(folder / "claims.csv")
    reader = Reader((folder / "report.html").read_text(encoding="utf-8"))
    lines = [row[-5:] for row in table_of(reader, "claim", "published") if row[-4] != "–"]
    known = saved[saved["ours"].notna()].to_dict("records")
    assert len(lines) == len(known) == 4
    (vague,) = table_of(reader, "claim", "task", "ours [interval]", "seeds", "resolvable")
    row = only(known, claim="undecided")
    assert vague[4:6] == [number(row["resolvable"]), seeds(row["seeds_needed"])]
    for line, row in zip(lines, known, strict=True):
        assert line == [row["task"], f"{interval(row)} {row['unit']}", str(row["seeds"]),
                        row["verdict"], row["reason"]]  # fmt: skip
    markdown = (folder / "report.md").read_text(encoding="utf-8").replace("\\", "")
    for row in known:
        assert f"| {interval(row)} {row['unit']} | {row['seeds']} | {row['verdict']} |" in markdown
    (total,) = [row for row in table_of(reader, "experiment", "runs") if row[0] == "all"]
    costs = pd.read_csv(folder / "costs.csv")
    assert total == ["all", "33", "1 980", "198 000", f"{33 * 36 / 3600:.2f}"]
    assert costs["runs"].tolist() == [16, 17]
    verdicts = [re.search(rf"{name}: (\d+)", "".join(reader.texts))[1]
                for name in ("Reproduced", "Not reproduced", "Not testable here")]  # fmt: skip
    assert list(map(int, verdicts)) == [2, 1, len(saved) - 3]


def test_a_second_report_has_the_same_bytes(reported, monkeypatch):
    root, findings = reported
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(root))
    written = report.save(findings)
    first = {path.name: path.read_bytes() for path in written}
    assert set(first) == {"claims.csv", "costs.csv", "manifests.csv", "outcomes.csv",
                          "report.html", "report.md"}  # fmt: skip
    again = report.save(report.find(SETTINGS, CLAIMS))
    assert {path.name: path.read_bytes() for path in again} == first


def test_every_manifest_is_listed_with_its_code(reported):
    rows = reported[1].manifests
    assert len(rows) == 33
    assert [row["path"].split("/")[-2] for row in rows[:16]] == [f"seed_{s}" for s in range(16)]
    assert {row["code_hash"] for row in rows} == {"c"}
    assert {row["versions"] for row in rows} == {"python 3.11"}


def test_the_code_of_probes_and_audits_is_read_where_they_keep_it(runs):
    places = (
        "14_surprisal_probe/trap/step_0",
        "20_audit/trap/seed_0",
        "25_probe/trap/seed_0/step_4",
    )
    for place in places:
        (runs / place).mkdir(parents=True)
        write_json(runs / place / "manifest.json", {"identity": {"code": "e" * 64}, "files": {}})
    findings = report.find(SETTINGS, CLAIMS)
    rows = [row for row in findings.manifests if row["path"].split("/", 2)[2].startswith(places)]
    assert len(rows) == 3 and {row["code_hash"] for row in rows} == {"e" * 64}
    assert all(row["code_hash"] for row in findings.manifests)
    # They are no training runs: neither a version of these nor among their costs, which say so.
    assert findings.warnings == []
    assert {row["notebook"] for row in findings.costs} == {"10_base", "11_mask"}
    text = "".join(Reader(report.page("", report.report_blocks(findings))).texts)
    assert "the 3 probes and audits whose manifests are here write down no seconds" in text
    assert "runs name 1 versions of the code of experiments, those of probes and audits 1" in text


def test_a_notebook_of_several_versions_is_named(runs):
    for seed in range(2):
        write_run(runs, "15_again", "trap", "rloo", seed, code="cd"[seed] * 64)
    (first, second) = report.find(SETTINGS, CLAIMS).warnings
    assert "3 versions" in first
    assert second == "Warning: of several versions in itself: 15_again."


def test_comparisons_are_shown_experiment_by_experiment(root):
    row = {"task": "trap", "arm": "aem", "reference_arm": "grpo", "seeds": 16, "difference": -0.01}
    row |= {"difference_low": -0.03, "difference_high": 0.01, "collapsed": 3, "collapsed_of": 16}
    row |= {"reference_collapsed": 8, "reference_of": 16, "collapse_p_holm": 0.081}
    whole = {"iqm": 0.61, "reference_iqm": 0.62, "collapse_fisher_p": 0.07}
    for name, value in (("effect", -0.3), ("improvement", 0.4), ("collapse_difference", -0.31)):
        whole |= {name: value, f"{name}_low": value - 0.2, f"{name}_high": value + 0.2}
    write_table(root / "12_own" / "comparisons.csv", [row | whole])
    write_table(root / "13_older" / "comparisons.csv", [row])
    findings = report.find(SETTINGS, CLAIMS)
    reader = Reader(report.page("", report.report_blocks(findings)))
    assert table_of(reader, "task", "arm") == [
        [
            "trap",
            "AEM",
            "GRPO",
            "16",
            "−0.01 [−0.03, 0.01]",
            "−0.3 [−0.5, −0.1]",
            "0.4 [0.2, 0.6]",
            "0.61",
            "0.62",
            "3 of 16",
            "8 of 16",
            "−0.31 [−0.51, −0.11]",
            "0.081",
            "0.07",
        ],
        [
            "trap",
            "AEM",
            "GRPO",
            "16",
            "−0.01 [−0.03, 0.01]",
            "–",
            "–",
            "–",
            "–",
            "3 of 16",
            "8 of 16",
            "–",
            "0.081",
            "–",
        ],
    ]


def test_figures_are_linked_from_the_page_with_their_captions(root):
    (root / "figures").mkdir(parents=True)
    (root / "figures" / "turns.png").write_bytes(b"png")
    captions = {"turns": "Turns <per> trajectory.", "lost": "No file."}
    (root / "figures" / "captions.json").write_text(json.dumps(captions))
    report.save(report.find(SETTINGS, CLAIMS))
    page = (root / "99_report" / "report.html").read_text(encoding="utf-8")
    reader = Reader(page)
    assert "../figures/turns.png" in reader.links
    assert "Turns <per> trajectory." in "".join(reader.texts)
    assert "No file." not in page


def test_without_results_the_page_says_so(root):
    findings = report.find(SETTINGS)
    written = {path.name for path in report.save(findings)}
    assert written == {"claims.csv", "report.html", "report.md"}
    text = "".join(Reader((root / "99_report" / "report.html").read_text("utf-8")).texts)
    assert "There are no results" in text
    assert "Reproduced: 0. Direction only: 0. Not reproduced: 0." in text
    assert " ".join(claims.RULE.split()) in " ".join(text.split())
    assert {row["verdict"] for row in findings.claims} == {claims.NOT_TESTABLE}
    assert {row["claim"] for row in findings.claims} == {c.id for c in claims.read_claims()}


def test_a_table_that_is_gone_leaves_no_older_one_behind(runs):
    report.save(report.find(SETTINGS, CLAIMS))
    for path in runs.rglob("manifest.json"):
        path.unlink()
    written = {path.name for path in report.save(report.find(SETTINGS, CLAIMS))}
    assert written == {"claims.csv", "report.html", "report.md"}


HOSTILE = "<script>x</script> \"'&|`*[a](b)"


@pytest.mark.parametrize(
    "block",
    [
        Heading(HOSTILE),
        Text(HOSTILE),
        Links(((HOSTILE, "a.md"),)),
        Table(("name",), ((HOSTILE,),), folded=HOSTILE, badges=("name",)),
        Table((HOSTILE,), (("1",),)),
        Picture(HOSTILE, "a.png", HOSTILE),
    ],
    ids=lambda block: block.KIND,
)
def test_no_text_becomes_markup(block):
    page = report.page("t", [block])
    assert HOSTILE in "".join(Reader(page).texts)
    assert "<script" not in page
    markdown = report.markdown([block])
    assert "<script" not in markdown
    if block.KIND == "table":
        rows = [line for line in markdown.splitlines() if line.startswith("|")]
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {2}


def test_a_cell_spans_the_rows_in_which_it_goes_on():
    page = report.page("", [Table(("a", "b"), (("x", "1"), ("", "2"), ("y", "3")))])
    assert re.findall(r'rowspan="(\d)"[^>]*>(\w)', page) == [("2", "x")]
    assert Reader(page).tables == [[["a", "b"], ["x", "1"], ["2"], ["y", "3"]]]


def test_numbers_read_as_numbers():
    assert number(math.inf) == number(None) == number(math.nan) == "–"
    assert number(-0.5) == "−0.5"
    # A table rounds both to 0.1235 (0.1245), and the page shows what stands in the table.
    assert number(0.12350000049) == number(0.1235)
    assert number(0.12449999999) == number(0.1245)
    assert interval({"ours": 0.1, "low": -math.inf, "high": math.inf}) == "0.1"


@pytest.mark.parametrize("changes", [{"power": 1.0}, {"confidence_level": 0.0}])
def test_impossible_parameters_are_refused(changes):
    name, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        report.ReportParams(**{"tier": "smoke", "confidence_level": 0.95, "power": 0.8} | changes)


def test_runs_of_lessons_are_no_evidence(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "results", lambda tier: tmp_path)
    for notebook in ("05_build_your_own_estimator", "11_suffix_masking"):
        run = tmp_path / notebook / "trap" / "grpo" / "seed_0"
        run.mkdir(parents=True)
        (run / "manifest.json").write_text("{}", encoding="utf-8")
    assert notebooks("smoke") == ["11_suffix_masking"]
