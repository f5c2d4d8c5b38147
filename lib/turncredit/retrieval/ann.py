"""Indexes by FAISS's factory strings (Flat, HNSW32, IVF4096,Flat, PQ64, ...), on CPU or GPUs."""

import importlib
from typing import Any

import numpy as np

from turncredit.retrieval.index import FlatIndex, Hit, check_finite, check_k, rows_of_dimension

POINTS_PER_CENTROID = 256
"""FAISS's k-means uses no more of them than this."""


class FaissIndex:
    """Inner product over unit vectors by any FAISS index, exact or not; scores are FAISS's own."""

    def __init__(self, index: Any) -> None:
        self._faiss = index

    def search(self, queries: np.ndarray, k: int) -> list[list[Hit]]:
        """At most `k` hits for each row of `queries` (queries, dimension), best first.

        An approximate index may find fewer.  Raises ValueError for k < 1, another dimension, or a
        query that is not finite.
        """
        check_k(k)
        queries = rows_of_dimension(queries, self._faiss.d)
        check_finite(queries)
        keep = min(k, self._faiss.ntotal)
        if keep == 0 or len(queries) == 0:
            return [[] for _ in queries]
        scores, positions = self._faiss.search(queries, keep)
        return [_hits(*row) for row in zip(positions.tolist(), scores.tolist(), strict=True)]


def _hits(positions: list[int], scores: list[float]) -> list[Hit]:
    # FAISS pads with -1
    found = [Hit(*pair) for pair in zip(positions, scores, strict=True) if pair[0] >= 0]
    return sorted(found, key=lambda hit: (-hit.score, hit.position))


def new_index(dimension: int, factory: str) -> Any:
    """An empty FAISS index of inner products.

    Raises ImportError with the pip command without FAISS, ValueError naming a string that FAISS
    does not know.
    """
    try:
        faiss = importlib.import_module("faiss")
    except ImportError as error:
        raise ImportError("an index file needs faiss: pip install faiss-cpu") from error
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        where = f"index {factory!r} for dimension {dimension}"
        raise ValueError(f"{where}: {faiss_reason(error)}") from error


def faiss_reason(error: RuntimeError) -> str:
    """What FAISS complains of, without the place in its own source."""
    return str(error).rpartition(": ")[2]


def check_parameters(index: Any, parameters: str, factory: str) -> None:
    """Whether `parameters`, such as "nprobe=32", are search parameters that an index has.

    index: any of the kind `factory`, also an empty one.  An IVF index has nprobe, HNSW efSearch.
    Raises ValueError naming a parameter that the index has not and those that it has, one that
    comes twice, and a value that is no whole number from 1: FAISS reads nprobe=-1 as 2**64 - 1.
    """
    faiss = importlib.import_module("faiss")
    space = faiss.ParameterSpace()
    space.initialize(index)
    ranges = space.parameter_ranges
    known = [ranges.at(place).name for place in range(ranges.size())]
    said = set()
    for part in parameters.split(","):
        name, _, value = part.partition("=")
        if name not in known:
            have = ", ".join(known) or "none"
            raise ValueError(f"search parameter {part!r}: index {factory!r} has {have}")
        if name in said:
            raise ValueError(f"search parameters {parameters!r}: {name} comes twice")
        if not (value.isascii() and value.isdigit() and 1 <= int(value[:11]) < 2**31):
            raise ValueError(f"search parameter {part!r}: give {name} a whole number from 1")
        said.add(name)


def training_rows(index: Any) -> int:
    """How many vectors training can make use of; 0 where there is nothing to train."""
    if index.is_trained:
        return 0
    faiss = importlib.import_module("faiss")
    inverted = faiss.try_extract_index_ivf(index)
    lists = inverted.nlist if inverted is not None else 0
    return POINTS_PER_CENTROID * max(lists, 256)  # product quantisers have 256 centroids


def bytes_per_vector(index: Any) -> int:
    """Memory that one vector takes in a FAISS index, without what does not grow with them."""
    faiss = importlib.import_module("faiss")
    index = faiss.downcast_index(index)
    if hasattr(index, "hnsw"):
        links = 4 * index.hnsw.nb_neighbors(0) * 1.1  # int32; a few vectors have upper levels
        return int(faiss.downcast_index(index.storage).sa_code_size() + links + 12)
    inverted = faiss.try_extract_index_ivf(index)
    return int(index.sa_code_size()) if inverted is None else int(inverted.code_size) + 8


def on_device(index: Any, device: str) -> FlatIndex | FaissIndex:
    """A FAISS index ready to be searched on `cpu`, or on all GPUs (`cuda`), sharded, in float16.

    On the CPU a flat index is exact and the same alone and in a batch.  Raises ValueError for
    another device, RuntimeError when this FAISS or this machine has no GPU.
    """
    faiss = importlib.import_module("faiss")
    if device == "cpu":
        flat = type(index) in (faiss.IndexFlat, faiss.IndexFlatIP)
        return FlatIndex.over(index) if flat else FaissIndex(index)
    if device != "cuda":
        raise ValueError(f"device {device!r} is neither cpu nor cuda")
    if not hasattr(faiss, "StandardGpuResources"):
        raise RuntimeError(f"faiss {faiss.__version__} has no GPU support: pip install faiss-gpu")
    if faiss.get_num_gpus() == 0:
        raise RuntimeError("faiss-gpu sees no GPU on this machine")
    options = faiss.GpuMultipleClonerOptions()
    options.shard, options.useFloat16 = True, True  # as Search-R1 serves wiki-18
    return FaissIndex(faiss.index_cpu_to_all_gpus(index, co=options))
