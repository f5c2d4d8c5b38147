"""Jobs side by side: one process of one thread each, with a shared progress bar."""

import contextlib
import gc
import multiprocessing
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch
from tqdm import tqdm

Report = Callable[[str, int, int, dict[str, float]], None]
"""(label, steps done, steps in all, what to show)."""


def in_parallel(
    work: Callable[..., None], calls: Sequence[tuple], workers: int, title: str
) -> None:
    """`work(*call, report)` for every call, `workers` processes of one thread at a time.

    The first error stops the rest and is raised here; a worker that dies is an error too.  What
    workers warn of is a warning here.  Workers end by themselves once this process is gone.
    """
    if not calls:
        return
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    pool = ProcessPoolExecutor(
        min(workers, len(calls)), mp_context=context, initializer=_start_worker, initargs=(reports,)
    )
    try:
        futures = [pool.submit(_work, work, job, call) for job, call in enumerate(calls)]
        with _bar(len(calls), title) as (advance, move):
            while not all(future.done() for future in futures):
                _drain(reports, advance)
                _move_over_done(futures, move)
            _drain(reports, advance)
            _move_over_done(futures, move)
    except BrokenProcessPool as error:
        reason = "a worker process died (killed, or out of memory)"
        raise RuntimeError(f"{title}: {reason}; run again to go on from the checkpoints") from error
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _move_over_done(futures: Sequence[Future], move: Callable[[int, float], None]) -> None:
    """Let the bar count jobs that are done as whole, also those that reported less, or nothing."""
    for job, future in enumerate(futures):
        if future.done():
            future.result()
            move(job, 1.0)


_reports: Any = None
"""In a worker process: the queue to the parent."""


def _start_worker(reports: Any) -> None:
    """One thread a process: two processes side by side beat one with two threads at these sizes."""
    global _reports
    _reports = reports
    torch.set_num_threads(1)
    warnings.showwarning = _pass_on
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _pass_on(message: Warning | str, *where: Any, **how: Any) -> None:
    _reports.put(str(message))


def _end_with_parent() -> None:
    """End this worker, busy or idle, once its parent is killed: the pool would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(work: Callable[..., None], job: int, call: tuple) -> None:
    gc.freeze()  # what is loaded by now stays: collections need not walk over it

    def report(label: str, done: int, total: int, shown: dict[str, float]) -> None:
        values = {key: shown[key] for key in _SHOWN if key in shown}
        _reports.put((job, label, done, total, values))

    work(*call, report)


_SHOWN = ("reward", "entropy", "search_first", "loss")


def _drain(reports: Any, advance: Callable[..., None]) -> None:
    """Hand over the reports that have come in, waiting half a second for the first."""
    with contextlib.suppress(queue.Empty):
        _hand_over(reports.get(timeout=0.5), advance)
        while True:
            _hand_over(reports.get_nowait(), advance)


def _hand_over(report: tuple | str, advance: Callable[..., None]) -> None:
    if isinstance(report, str):
        warnings.warn(report, stacklevel=1)
    else:
        advance(*report)


@contextlib.contextmanager
def _bar(jobs: int, title: str) -> Iterator[tuple[Callable[..., None], Callable[..., None]]]:
    """A progress bar over all jobs, in jobs.

    Calls of the first function yielded say what a job reports, of the second which share of it is
    done; neither takes the bar back.
    """
    shares = [0.0] * jobs
    pause = 0.5 if sys.stderr.isatty() else 10
    with tqdm(total=jobs, desc=title, unit="run", mininterval=pause, file=sys.stderr) as bar:

        def move(job: int, share: float) -> None:
            shares[job] = max(shares[job], share)
            bar.update(round(sum(shares), 2) - bar.n)

        def advance(job: int, label: str, done: int, total: int, shown: dict[str, float]) -> None:
            values = " ".join(f"{name} {value:.2f}" for name, value in shown.items())
            bar.set_postfix_str(f"{label} {done}/{total} {values}", refresh=False)
            move(job, done / total)

        yield advance, move
