"""Searches asked for at the same time, done together: encoders and FAISS are faster in batches."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Search = Callable[[list[str], int], list[list[Any]]]

_LOGGER = logging.getLogger(__name__)


class Overloaded(Exception):
    """More requests wait than may."""


@dataclass(frozen=True)
class _Waiting:
    queries: list[str]
    k: int
    future: asyncio.Future


class MergedSearch:
    """`await merged(queries, k)` gives what `search(queries, k)` gives, from one thread.

    Nobody is kept waiting for company: a request that finds the thread idle is searched at once,
    and those that come meanwhile are searched together next, up to `most_queries`.  Only equal k
    are merged, since an approximate index may search wider for a larger k.  When a merged search
    raises, each of its requests is searched alone, so that only the guilty one fails.
    """

    def __init__(self, search: Search, most_queries: int, waiting: int) -> None:
        self._search, self._most_queries, self._most_waiting = search, most_queries, waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._pending: list[_Waiting] = []
        self._draining: asyncio.Task | None = None

    async def __call__(self, queries: list[str], k: int) -> list[list[Any]]:
        """Results in the order of `queries`.  Raises Overloaded, and what `search` raises."""
        if len(self._pending) >= self._most_waiting:
            raise Overloaded(f"{len(self._pending)} requests are waiting already; try again")
        future = asyncio.get_running_loop().create_future()
        self._pending.append(_Waiting(queries, k, future))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            batch = self._take()
            outcomes = await loop.run_in_executor(self._thread, self._run, batch)
            for each, (result, error) in zip(batch, outcomes, strict=True):
                if each.future.done():  # its client has gone away
                    continue
                if error is None:
                    each.future.set_result(result)
                else:
                    each.future.set_exception(error)

    def _take(self) -> list[_Waiting]:
        """The first request, and those after it that may be searched with it."""
        taken: list[_Waiting] = []
        total = 0
        for each in self._pending:
            fits = not taken or total + len(each.queries) <= self._most_queries
            if fits and each.k == self._pending[0].k:
                taken.append(each)
                total += len(each.queries)
        chosen = {id(each) for each in taken}
        self._pending = [each for each in self._pending if id(each) not in chosen]
        return taken

    def _run(self, batch: list[_Waiting]) -> list[tuple[Any, Exception | None]]:
        queries = [query for each in batch for query in each.queries]
        try:
            found = self._search(queries, batch[0].k)
            if len(found) != len(queries):
                raise ValueError(f"{len(queries)} queries gave {len(found)} results")
        except Exception as error:
            if len(batch) == 1:
                return [(None, error)]
            _LOGGER.warning("a merged search failed and is split: %r", error)
            return [self._run([each])[0] for each in batch]
        rows = iter(found)
        return [([next(rows) for _ in each.queries], None) for each in batch]
