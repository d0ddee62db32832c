"""Exact search: the ranks of each query's positives among all images of a database, in bounded memory.

Similarities are float64 products of unit-length float32 descriptors, rounded to 2^-40: the ranks do not depend on the
size of the blocks, the number of threads or the device, and copies of an image are exact ties.

Q queries and N images of D dimensions take 2 Q N D floating-point operations. Memory beside the descriptors is
`max_memory`, never Q x N. Indexes of faiss are of no use here: they return the first k images of a query, not the ranks
of all its positives. 60,502 x 60,502 descriptors of 2,048 dimensions (Stanford Online Products) are 15 TFLOP.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from sslbench.arrays import IntArray, Matrix
from sslbench.metrics.retrieval import GroundTruth, ranks_of_positives

if TYPE_CHECKING:
    import torch

_MAGIC = 1.5 * 2.0**12  # its neighbours in float64 are 2^-40 apart, so that adding it rounds numbers below 2^11
_MOST_ROWS = 4096


def positive_ranks(
    queries: Matrix,
    database: Matrix,
    truth: Callable[[int], GroundTruth],
    *,
    max_memory: float,
    device: str = "cpu",
) -> Iterator[IntArray]:
    """Yield the 0-based ranks of each query's positives, ascending; query by query.

    Args:
        queries: (Q, D) of unit length.
        database: (N, D) of unit length.
        truth: function from the row of a query to its positives and ignored images.
        max_memory: working memory in GB (10^9 bytes).
        device: device of the products; one without float64 is replaced by the processor.

    >>> database = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> truth = lambda query: GroundTruth(np.array([2]), np.array([query]))
    >>> [ranks.tolist() for ranks in positive_ranks(database[:1], database, truth, max_memory=0.1)]
    [[1]]
    """
    import torch

    device = "cpu" if device == "mps" else device  # Apple's GPUs have no float64
    # One block of queries is compared with all images: the more queries, the less often these are converted.
    memory = max_memory * 1e9 / 8  # numbers in float64
    columns = max(1, min(_MOST_ROWS, int(memory / 8 / database.shape[1]), len(database)))
    rows = max(1, min(_MOST_ROWS, int(memory * 3 / 4 / (len(database) + columns + queries.shape[1]))))
    buffer = np.empty((min(rows, len(queries)), len(database)))
    for start in range(0, len(queries), rows):
        block = _as_tensor(queries[start : start + rows], device)
        similarity = buffer[: len(block)]
        for first in range(0, len(database), columns):
            part = slice(first, first + columns)
            similarity[:, part] = torch.matmul(block, _as_tensor(database[part], device).T).cpu().numpy()
        similarity += _MAGIC
        similarity -= _MAGIC
        for i, scores in enumerate(similarity):
            yield ranks_of_positives(scores, truth(start + i))


def _as_tensor(rows: Matrix, device: str) -> "torch.Tensor":
    import torch

    return torch.from_numpy(np.asarray(rows, np.float64)).to(device)
