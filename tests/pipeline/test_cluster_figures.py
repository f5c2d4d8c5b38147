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
from turncredit.verl_plugin import convert

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


@pytest.mark.slow
def test_logs_of_verl_are_drawn_in_every_figure(tmp_path, capsys):
    runs = [place(tmp_path, method, seed) for method in ("baseline", "aem") for seed in (1, 2)]
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
    assert rows["search_r1-qwen3_8b", "suffix_mask"]["runs"] == "0"
    captions = json.loads((results / "figures" / "captions.json").read_text())
    last = [json.loads(line)["data"] for line in (RECORDED / "log-001.jsonl").open()]
    mean = sum(data["turncredit/reward"] for data in last if "turncredit/reward" in data) / 2
    assert f"AEM {mean:.2f}" in captions["training_reward"]
