"""Soak: killed again and again, with checkpoints damaged on the way, no byte of a run changes."""

import json

import pytest
from pipeline.tiny_runs import CODE, FILES, directory, drive, parameters, write_task

SOAK = """
import json, multiprocessing, os, random, shutil, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
torch.optim.AdamW([torch.zeros(1)])  # what it imports on first use, seconds, every child would
from turncredit.checkpoints import previous_checkpoint
from turncredit.experiment import Job, experiment_from, run
from turncredit.results import RunDirectory
home, code, kills = Path(sys.argv[1]), sys.argv[3], int(sys.argv[5])
job = Job(experiment_from(json.loads(sys.argv[2])), "tiny", "grpo", 0)
directory = RunDirectory(job.experiment.folder / job.label)
stream = random.Random(int(sys.argv[6]))
outcome = {"kills": 0, "rounds": 0, "resumed": 0, "damaged": 0, "differ": 0, "litter": []}

changes = multiprocessing.Value("l", 0, lock=False)  # a killed child would keep the lock

def kill_before(count):
    '''SIGKILL this process before its count-th change of a file of the run; 0: count them.'''
    left = [count]
    def hook(event, arguments):
        if event in ("open", "os.rename", "os.link", "os.remove"):
            if str(directory.path) in str(arguments[0]):
                left[0] -= 1
                changes.value += count == 0
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def child(count=0):
    pid = os.fork()
    if pid:
        return pid
    try:
        kill_before(count)
        run(job, code, lambda *shown: None)
        os._exit(0)
    except BaseException as error:
        sys.stderr.write(repr(error))
        os._exit(3)

def ended(pid):
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status == 0

def files():
    return {name: (directory.path / name).read_bytes() for name in sys.argv[4].split(",")}

def check():
    outcome["rounds"] += 1
    outcome["differ"] += files() != expected
    manifest = json.loads(directory.manifest.read_text())
    outcome["resumed"] += manifest["resumed_at"] > 0
    outcome["damaged"] += len(manifest["damaged_checkpoints"])
    outcome["litter"] += [path.name for path in directory.path.glob(".*.*.*")]

begun = time.time()
assert ended(child())
seconds = time.time() - begun
expected, total = files(), changes.value
shutil.rmtree(directory.path)
while outcome["kills"] < kills:
    if outcome["kills"] % 2:  # at any time, or at a change of a file however slow the machine is
        pid = child()
        time.sleep(seconds * stream.random())
        os.kill(pid, signal.SIGKILL)
    else:
        pid = child(1 + int(total * stream.random()))
    if ended(pid):
        check()
        shutil.rmtree(directory.path)
        continue
    outcome["kills"] += 1
    newest, previous = directory.checkpoint, previous_checkpoint(directory.checkpoint)
    two = previous.exists() and not newest.samefile(previous) and not directory.manifest.exists()
    if two and stream.random() < 0.3:
        newest.write_bytes(newest.read_bytes()[: stream.randrange(newest.stat().st_size)])
assert ended(child())
check()
(home / "soak.json").write_text(json.dumps(outcome))
"""


def soak(home, kills: int, **training: int) -> dict:
    write_task(home, **training)
    arguments = [str(home), json.dumps(parameters()), CODE, ",".join(FILES), str(kills), "2"]
    drive(home, SOAK, arguments)
    return json.loads((home / "soak.json").read_text())


def test_five_kills_change_no_byte(tmp_path):
    outcome = soak(tmp_path, 5, steps=3, checkpoint_every=1)
    assert outcome["kills"] == 5
    assert outcome["resumed"] > 0, "no kill came after a checkpoint"
    assert outcome["differ"] == 0
    assert outcome["litter"] == []


@pytest.mark.slow
def test_fifty_kills_and_damaged_checkpoints_change_no_byte(tmp_path):
    outcome = soak(tmp_path, 50, steps=8, checkpoint_every=2)
    assert outcome["kills"] == 50
    assert outcome["resumed"] > 0 and outcome["damaged"] > 0, "too little was put to the test"
    assert outcome["differ"] == 0
    assert outcome["litter"] == []
    assert directory(tmp_path).manifest.exists()
