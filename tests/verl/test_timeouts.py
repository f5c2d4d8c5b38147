"""A test that hangs is ended and named, in a fixture as in the test itself."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

HANGING = """
import time
import pytest

@pytest.fixture(scope="module")
def slow():
    time.sleep(60)

def test_before():
    pass

@pytest.mark.timeout(0.3)
def test_in_a_fixture(slow):
    pass

@pytest.mark.timeout(0.3)
def test_in_the_test():
    while True:
        time.sleep(1)

def test_after():
    pass
"""


def test_what_hangs_fails_by_name_and_the_others_run(tmp_path):
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "test_hanging.py").write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:timeout"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    for line in (
        "ERROR test_hanging.py::test_in_a_fixture - TimeoutError: no end within 0.3 s",
        "FAILED test_hanging.py::test_in_the_test - TimeoutError: no end within 0.3 s",
        "1 failed, 2 passed, 1 error",
    ):
        assert line in done.stdout


@pytest.mark.timeout(100)
def test_each_test_of_verl_has_a_limit(request):
    if request.config.pluginmanager.hasplugin("timeout"):
        pytest.skip("pytest-timeout is installed here, which has timers of its own")
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100


def test_what_was_started_is_killed_when_the_limit_comes_first(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="tiny_run imports what verl brings; `make test-verl` has it")
    import tiny_run

    monkeypatch.setattr(tiny_run, "TIMEOUT", 60)
    started = tiny_run.start_module(["http.server", "0"], tmp_path, None)
    assert started[0].poll() is None

    def interrupted(_):
        raise TimeoutError("the limit of a test")

    monkeypatch.setattr(tiny_run.time, "sleep", interrupted)
    with pytest.raises(TimeoutError):
        tiny_run.finish(started)
    assert started[0].poll() is not None
