"""What verl wrote of a run becomes results, and `make figures TIER=cluster` draws them.

`fixtures/cluster_run` is the folder of a whole run on CPU: AEM on two gloo ranks, two steps of a
tiny Qwen3 (tests/verl makes such runs anew and sees that their logs still hold what this one does).
"""

import csv
import json
import os
import subprocess
import sys

import pytest

from turncredit import paths, plots
from turncredit.results import write_table
from turncredit.storage import write_json
from turncredit.verl_plugin import convert
from turncredit.verl_plugin.places import Place

REPOSITORY = paths.PACKAGE.parents[1]
RECORDED = REPOSITORY / "tests" / "fixtures" / "cluster_run"


def place(folder, method, seed):
    """A copy of the recorded run, as if of another method and of a model that is drawn."""
    facts = json.loads((RECORDED / "run.json").read_text())
    facts["parts"] |= {"model": "qwen3_8b", "method": method}
    folder = folder / f"{method}-{seed}"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(facts | {"seed": seed}))
    (folder / "log-001.jsonl").write_bytes((RECORDED / "log-001.jsonl").read_bytes())
    return folder


def evaluate(folder, exact_match):
    """What `turncredit.verl_plugin.evaluate` leaves of the last checkpoint, in a run's folder."""
    logged = [json.loads(line) for line in (folder / "log-001.jsonl").open()][-1]
    row = {
        name.removeprefix("turncredit_eval/"): value
        for name, value in logged["data"].items()
        if name.startswith("turncredit_eval/")
    }
    row |= {"exact_match": exact_match, "temperature": 0.5}
    place = Place(folder).evaluation(logged["step"])
    place.mkdir(parents=True)
    write_table(place / "eval.csv", [{"step": logged["step"], "hops": "all"} | row])
    write_json(place / "manifest.json", {"of_all_questions": True})


@pytest.mark.slow
def test_logs_of_verl_are_drawn_in_every_figure(tmp_path, capsys):
    runs = [place(tmp_path, method, seed) for method in ("baseline", "aem") for seed in (1, 2)]
    for seed, folder in enumerate(runs[2:]):
        evaluate(folder, 0.5 + 0.25 * seed)
    results = tmp_path / "results"
    assert convert.main([*map(str, runs), "--results", str(results / "verl")]) == 0
    assert capsys.readouterr().err == ""
    outer = ("MAKE", "MFLAGS", "TIER", "TURNCREDIT")
    drawn = subprocess.run(
        ["make", "figures", "TIER=cluster", f"RESULTS={results}", f"VENV={sys.prefix}"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300,
        env={k: v for k, v in os.environ.items() if not k.startswith(outer)},
    )  # fmt: skip
    assert drawn.returncode == 0, drawn.stderr[-3000:]
    assert "4 runs drawn, 4 of them finished" in drawn.stdout + drawn.stderr
    for name in plots.FIGURES:
        for end in ("png", "svg"):
            assert (results / "figures" / f"{name}.{end}").stat().st_size > 0, name
    with (results / "90_figures" / "summary.csv").open(newline="") as file:
        rows = {(row["task"], row["arm"]): row for row in csv.DictReader(file)}
    for arm in ("grpo", "aem"):
        assert rows["search_r1-qwen3_8b", arm]["finished"] == "2"
    exact = [float(rows["search_r1-qwen3_8b", arm]["exact_match"]) for arm in ("grpo", "aem")]
    assert exact == [0.0, 0.625]  # of verl's log, and of our evaluations of checkpoints
    assert rows["search_r1-qwen3_8b", "suffix_mask"]["runs"] == "0"
    captions = json.loads((results / "figures" / "captions.json").read_text())
    last = [json.loads(line)["data"] for line in (RECORDED / "log-001.jsonl").open()]
    mean = sum(data["turncredit/reward"] for data in last if "turncredit/reward" in data) / 2
    assert f"AEM {mean:.2f}" in captions["training_reward"]
