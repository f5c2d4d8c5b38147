"""For tests that run verl: a way to their helpers, and an end for a test that hangs.

`tests/verl/peers.py` is importable by what is done here, since --import-mode=importlib adds no
folder itself.
"""

import faulthandler
import signal
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

collect_ignore = (
    [] if find_spec("ray") else ["actor_rank.py", "cpu_engine.py", "cpu_server.py", "tiny_run.py"]
)
"""Helpers that import verl and Ray, which are searched for doctests too."""

SECONDS = 180
"""For one test and the fixtures it is the first to need; a mark `timeout` says otherwise."""


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout(seconds): for a test and its fixtures")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Fail a test that takes too long, as verl waits for ever where one of its processes died.

    Elsewhere than in the environment of verl the plugin pytest-timeout reads the same mark.
    """
    if item.config.pluginmanager.hasplugin("timeout"):
        return (yield)
    mark = item.get_closest_marker("timeout")
    with limited(mark.args[0] if mark else SECONDS):
        return (yield)


@contextmanager
def limited(seconds):
    """TimeoutError after so many seconds; where even that is not heard, the end of the process."""

    def stop(*_):
        raise TimeoutError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + 30, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
