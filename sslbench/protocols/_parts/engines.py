"""Choice of the library that searches neighbours."""

from sslbench.runtime.machine import speed
from sslbench.solvers.neighbours import Engine

_LONG = 3e11  # operations that take several seconds


def fastest_engine(device: str, operations: float) -> Engine:
    """Return the library for a search: torch on a GPU; on the CPU faiss, unless its BLAS does not know the processor.

    faiss brings a BLAS of its own. On a Xeon with AVX-512 its products ran at a fifth of numpy's speed.

    Args:
        device: of the run.
        operations: of the products, two per multiply-add; a short search is faiss's, without measuring the machine.
    """
    if device != "cpu":
        return Engine("torch", device)
    return Engine("torch" if operations > _LONG and speed().multiplies_faster_than_faiss else "faiss")
