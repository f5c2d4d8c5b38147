"""Latency and throughput of the retrieval server with 16 clients at once, on this machine.

PYTHONPATH=lib OMP_NUM_THREADS=1 python benchmarks/retrieval_server.py

The server is a process of its own over the Factbook's documents, by shared words; the clients are
threads of another.  Ends with status 1 unless every answer came and equals the local search's.
"""

import argparse
import multiprocessing
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from turncredit.retrieval import RemoteRetriever, RetrievalClient, Retriever, lexical_retriever
from turncredit.retrieval.server import serve
from turncredit.worlds.factbook import FactbookWorld

CLIENTS, REQUESTS, K = 16, 10_000, 3


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_up(client: RetrievalClient, seconds: float = 30.0) -> None:
    """Search until an answer comes; SystemExit after `seconds`."""
    deadline = time.monotonic() + seconds
    while client.ask(["ready"], 1).outcome not in ("ok", "short"):
        if time.monotonic() > deadline:
            raise SystemExit(f"no server at {client.url} within {seconds:g} s")
        time.sleep(0.05)


def one_client(url: str, queries: list[str], local: Retriever) -> tuple[list[float], int, dict]:
    """Seconds of each request, wrong answers, and the client's counts."""
    client = RetrievalClient(url, retries=0)
    remote, seconds, wrong = RemoteRetriever(local.documents, client), [], 0
    for query in queries:
        start = time.perf_counter()
        [hits] = remote.search([query], K)
        seconds.append(time.perf_counter() - start)
        wrong += hits != local.search([query], K)[0]
    return seconds, wrong, dict(client.counts)


def main() -> int:
    """Start the server, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    requests = parser.parse_args().requests
    world = FactbookWorld()
    local = lexical_retriever(world.documents)
    texts = [question.text for question in islice(world.train, requests)]
    queries = [texts[row % len(texts)] for row in range(requests)]
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(local,), kwargs={"port": port}, daemon=True
    )
    server.start()
    url = f"http://127.0.0.1:{port}"
    wait_until_up(RetrievalClient(url, retries=0))
    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = [queries[n::CLIENTS] for n in range(CLIENTS)]
        answers = list(pool.map(lambda share: one_client(url, share, local), shares))
    wall = time.perf_counter() - start
    server.terminate()
    seconds = np.concatenate([each for each, _, _ in answers]) * 1e3
    wrong = sum(each for _, each, _ in answers)
    counts = {name for _, _, each in answers for name in each}
    outcomes = {name: sum(each.get(name, 0) for _, _, each in answers) for name in counts}
    good = outcomes.get("ok", 0) + outcomes.get("short", 0)
    print(f"{CLIENTS} clients, {requests} requests, load before {os.getloadavg()[0]:.1f}")
    print(f"  outcomes {outcomes}, answers unlike the local search {wrong}")
    print(f"  p50 {np.median(seconds):.1f} ms, p99 {np.percentile(seconds, 99):.1f} ms")
    print(f"  {requests / wall:.0f} requests/s over {wall:.1f} s")
    return int(good != requests or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
