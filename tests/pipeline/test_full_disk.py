"""A disk that gets full in the middle of a run: a sentence, nothing lost, and equal bytes later."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from pipeline.tiny_runs import CODE, FILES, drive, parameters, write_task

DRIVER = Path(__file__).with_name("full_disk_driver.py").read_text(encoding="utf-8")
WRITTEN = {
    "begun.json", "metrics.csv", "eval.csv", "turns.csv", "timings.csv", "turns.csv.gz",
    "trajectories.jsonl.gz", "questions.csv", "difficulty.csv", "checkpoint.safetensors",
    "manifest.json", "warm start",
}  # fmt: skip
ALONE = ["unshare", "--user", "--map-root-user", "--mount"]
"""Who may mount nothing may in a namespace of his own, which ends with its process."""


def outcomes(home: Path, kind: str, prefix: Sequence[str] = ()) -> list[dict]:
    """What `full_disk_driver` saw of a run of three steps with a checkpoint after each."""
    write_task(home, steps=3, checkpoint_every=1)
    arguments = [str(home), json.dumps(parameters()), CODE, kind, ",".join(FILES)]
    drive(home, DRIVER, arguments, prefix)
    return json.loads((home / "outcomes.json").read_text())


@pytest.fixture(scope="module")
def limited(tmp_path_factory) -> list[dict]:
    return outcomes(tmp_path_factory.mktemp("limited"), "limited")


@pytest.mark.slow
def test_every_file_that_a_run_writes_was_put_to_the_test_early_and_late(limited):
    assert {outcome["file"] for outcome in limited} == WRITTEN
    often = WRITTEN - {"warm start"}
    assert all(sum(o["file"] == name for o in limited) == 2 for name in often)


@pytest.mark.slow
def test_a_write_that_fails_in_its_middle_is_a_sentence_that_names_the_file(limited):
    for outcome in limited:
        kind, _, text = outcome["error"]
        name = "warm_starts/smoke-tiny-0-" if outcome["file"] == "warm start" else outcome["file"]
        assert outcome["status"] == 3 and kind == "OSError", outcome
        assert "cannot write /" in text and name in text and "\n" not in text, outcome
        assert "File too large" in text, outcome


@pytest.mark.slow
def test_what_was_whole_stays_and_nothing_half_made_is_left(limited):
    """Also the checkpoint before: it is what the run then goes on from."""
    for outcome in limited:
        assert outcome["lost"] == [] and outcome["swept"] == [], outcome
    late = [o for o in limited if o["file"] == "checkpoint.safetensors" and o["number"] > 1]
    assert late and all("checkpoint.safetensors" in o["whole"] for o in late)


@pytest.mark.slow
def test_once_there_is_room_the_run_goes_on_to_the_same_bytes(limited):
    for outcome in limited:
        assert outcome["again"] is None and outcome["same"], outcome
        assert outcome["litter"] == [], outcome
    assert {0, 2, 3} <= {outcome["resumed_at"] for outcome in limited}


@pytest.mark.slow
def test_a_disk_that_is_full_again_and_again_changes_no_byte(tmp_path):
    """A file system of a few pages, which gets some more whenever the run has failed."""
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"]).returncode:
        pytest.skip("this machine lets nobody make a file system of his own")
    *failed, last = outcomes(tmp_path, "filled", ALONE)
    assert last["error"] is None and last["same"]
    kinds, _, texts = zip(*(outcome["error"] for outcome in failed), strict=True)
    assert set(kinds) == {"OSError"}
    assert all("tiny/grpo/seed_0/" in text and "No space left" in text for text in texts)
    assert len(set(texts)) > 3, "it was full at too few places"
    assert all(outcome["lost"] == [] for outcome in failed)
