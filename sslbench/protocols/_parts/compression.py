"""Compressed features beside whole ones: first dimensions (Matryoshka prefixes), int8, binary, product quantisation."""

import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sslbench.arrays import IntArray, Matrix
from sslbench.config import setting
from sslbench.errors import DataError, UsageError
from sslbench.protocols.protocol import ProtocolSettings

Code = Callable[[Matrix, Matrix], tuple[Matrix, Matrix]]
"""Function from database (N, D) and queries (M, D) to compressed ones."""
_ROWS = 8192
_CODES = 256  # centres per code of product quantisation


@dataclasses.dataclass(frozen=True)
class CompressionSettings(ProtocolSettings):
    """Settings of a protocol that also scores compressed features."""

    dims: tuple[int, ...] = setting(
        (),
        "numbers of first features that are also scored alone, such as the prefixes of a Matryoshka representation",
        within="[1, inf)",
        distinct=True,
        added_later=True,
    )
    bits: tuple[float, ...] = setting(
        (),
        "bits per feature of compressed features that are also scored: 8, int8; 1, the sign around the mean; 8 / n, "
        "product quantisation of n features by 8 bits",
        within="(0, 8]",
        distinct=True,
        added_later=True,
    )

    def __post_init__(self) -> None:
        """Refuse bits that no code has."""
        super().__post_init__()
        for bits in self.bits:
            if bits not in (1, 8) and (bits > 1 or not math.isclose(8 / bits, round(8 / bits))):
                raise UsageError(
                    f"{self.protocol()}: bits should be 8 (int8), 1 (binary) or 8 / n below 1, not {bits:g}",
                    "Product quantisation of 16 features by 8 bits: bits=0.5.",
                )


def compressions(settings: CompressionSettings, order: IntArray, regions: int = 1) -> Iterator[tuple[str, Code]]:
    """Yield the name of each compression, 'dims=64' or 'bits=8', and its function of database and queries.

    Codes are learnt on the database, without labels. Queries are coded for signs only.

    `order`: (N,) rows of the database by their rank, in which codes are learnt.
    """
    for dims in settings.dims:
        if regions > 1:
            raise UsageError(
                f"{settings.protocol()}: dims takes the first features, and a sample has {regions} regions"
            )
        yield f"dims={dims}", functools.partial(_prefixes, dims=dims, protocol=settings.protocol())
    for bits in settings.bits:
        code = (
            _signs if bits == 1 else functools.partial(_decoded, bits=bits, order=order, protocol=settings.protocol())
        )
        yield f"bits={bits:g}", code


def _prefixes(database: Matrix, queries: Matrix, dims: int, protocol: str) -> tuple[Matrix, Matrix]:
    if dims > (width := database.shape[1]):
        raise UsageError(
            f"{protocol}: there are {width:,} features, fewer than dims={dims:,}", f"Give at most {width:,}."
        )
    return database[:, :dims], queries[:, :dims]


def _signs(database: Matrix, queries: Matrix) -> tuple[Matrix, Matrix]:
    mean = database.mean(axis=0, dtype=np.float64)

    def signs(rows: Matrix) -> Matrix:
        return np.where(rows > mean, 1.0, -1.0)

    return _file_backed(database, signs), _file_backed(queries, signs)


def _decoded(database: Matrix, queries: Matrix, bits: float, order: IntArray, protocol: str) -> tuple[Matrix, Matrix]:
    """Return the database as it is after coding by int8 or product quantisation, and the queries as they are."""
    import faiss

    width, codes = database.shape[1], database.shape[1] * bits / 8
    if bits < 1 and not math.isclose(codes, round(codes)):
        raise UsageError(
            f"{protocol}: bits={bits:g} codes {8 / bits:g} features together, and {width:,} features are no multiple",
            "Give bits = 8 / n where n divides the number of features.",
        )
    if bits < 1 and len(database) < _CODES:
        raise DataError(
            f"{protocol}: product quantisation learns {_CODES} centres, and the database has {len(database)} samples",
            "Leave bits below 1 out, or give more samples.",
        )
    index: Any = faiss.index_factory(width, "SQ8" if bits == 8 else f"PQ{round(codes)}x8")
    if bits < 1:
        index.pq.cp.min_points_per_centroid = 1  # else faiss prints a warning for each part of the features
        index.do_polysemous_training = False  # a second per part, to number the centres for searches among codes
    # faiss samples as many rows itself; a memory-mapped matrix is not copied whole.
    some = database[order[:: max(1, len(database) // _CODES**2)]]
    index.train(np.ascontiguousarray(some, dtype=np.float32))
    return _file_backed(
        database, lambda rows: index.sa_decode(index.sa_encode(np.ascontiguousarray(rows, "f4")))
    ), queries


def _file_backed(x: Matrix, of_rows: Callable[[Matrix], Matrix]) -> Matrix:
    """Return a function of the rows (N, D), computed block by block into a temporary file."""
    # The mapping keeps the file, which has no name, until the last view of it is gone.
    with tempfile.TemporaryFile() as file:
        found = np.memmap(file, dtype=np.float32, mode="w+", shape=x.shape)
    for start in range(0, len(x), _ROWS):
        found[start : start + _ROWS] = of_rows(x[start : start + _ROWS])
    return found
