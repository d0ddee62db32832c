"""Similarities of some test rows with a block of train rows: the matrix products of a neighbour search."""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Metric = Literal["cosine", "dot", "l2"]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.floating]

_SMALLEST, _LARGEST = 1e-12, 1e12  # norms between which float32 products neither vanish nor overflow


@dataclasses.dataclass(frozen=True)
class Scope:
    """Which rows take part.

    Attributes:
        test_rows: (m,) the rows of test that are searched for; None: all.
        left_out: (N,) train rows that are no neighbours; None: all may be.
        without_self: row i of test is row i of train, and no neighbour of itself.
        apart: (N,) numbers: row i of test is row i of train, and rows with the same number are no neighbours.
    """

    test_rows: IntArray | None = None
    left_out: npt.NDArray[np.bool_] | None = None
    without_self: bool = False
    apart: IntArray | None = None

    @property
    def refused(self) -> int:
        """How many train rows at most are no neighbours of a test row, beside those that are left out for all."""
        if self.apart is not None:
            return int(np.unique(self.apart, return_counts=True)[1].max())
        return int(self.without_self)


@dataclasses.dataclass(frozen=True)
class Engine:
    """What ranks the rows first; neighbours do not depend on it.

    Attributes:
        library: 'faiss' works on the processor only, where it is the faster one.
        device: where torch works: 'cpu', 'cuda', 'cuda:1', 'mps'.
    """

    library: Literal["faiss", "torch"] = "faiss"
    device: str = "cpu"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Some test rows, ready to be multiplied.

    Attributes:
        x: (m, D) rows, centred for 'l2' and of length 1 for 'cosine', on the device.
        norms: (m,) their Euclidean norms.
        own: (m,) their places in test.
        products: (m * n,) where torch's products with up to n train rows are put, on the processor: memory that is
            taken anew for every block costs as much as the search in it.
    """

    x: "torch.Tensor"
    norms: "torch.Tensor"
    own: IntArray
    products: "torch.Tensor"


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The two matrices, and how a block of products is made of them.

    Attributes:
        train: (N, D).
        test: (M, D).
        metric: 'cosine', 'dot', or 'l2', whose similarity is minus the squared distance.
        scope: rows that are no neighbours have a similarity of -inf.
        engine: what finds the best of a block; products that are needed whole are always torch's.
    """

    train: Matrix
    test: Matrix
    metric: Metric
    scope: Scope
    engine: Engine

    @property
    def width(self) -> int:
        """D."""
        return int(self.train.shape[1])

    @property
    def copies(self) -> bool:
        """Whether float32 products need a copy of the train rows; else they are multiplied where they lie."""
        changed = self.metric == "l2" or (self.engine.library == "faiss" and self.metric == "cosine")
        there = self.engine.device == "cpu" and self.train.dtype == np.float32 and self.train.flags.c_contiguous
        return changed or not there or (self.engine.library == "faiss" and self.scope.left_out is not None)

    @property
    def at_once(self) -> bool:
        """Whether float32 products with all train rows need no memory: faiss itself goes through them in parts."""
        return self.engine.library == "faiss" and not self.copies

    @functools.cached_property
    def centre(self) -> FloatArray:
        """(D,) a point amid train; with it as the origin distances stay as they are and rounding errors shrink."""
        if self.metric != "l2":
            return np.zeros(self.width)
        step = max(1, len(self.train) // 1024)
        return np.asarray(self.train[::step].mean(axis=0, dtype=np.float64))

    def prepare(self, own: IntArray, most: int, *, precise: bool) -> Prepared:
        """Some test rows in float32 or, `precise`, in float64; for blocks of at most `most` train rows."""
        import torch

        x = self._on_device(self.test[own], precise=precise)
        norms = torch.linalg.vector_norm(x, dim=1)
        if self.metric == "cosine":
            x = x / torch.where(norms > 0, norms, 1)[:, None]
        by_torch = precise or self.engine.library == "torch"
        room = len(own) * most if by_torch and x.device.type == "cpu" else 0
        # numpy asks the kernel for huge pages, torch does not.
        products = torch.from_numpy(np.empty(room, dtype=np.float64 if precise else np.float32))
        return Prepared(x, norms, own, products)

    def products(self, prepared: Prepared, part: slice) -> tuple["torch.Tensor", float]:
        """(m, n) similarities with the train rows `part`, and the largest norm of these; inf where float32 fails.

        The next call writes over them.
        """
        import torch

        block = self._on_device(self.train[part], precise=prepared.x.dtype == torch.float64)
        norms = torch.linalg.vector_norm(block, dim=1)
        similarity = _multiply(prepared, block)
        if self.metric == "cosine":
            similarity *= torch.where(norms > 0, 1 / norms, 0)
        elif self.metric == "l2":
            similarity.mul_(2).sub_(norms.square()).sub_(prepared.norms.square()[:, None])
        if self.scope.left_out is not None:
            similarity.masked_fill_(torch.from_numpy(self.scope.left_out[part]).to(similarity.device), -torch.inf)
        if self.scope.without_self:
            here = np.flatnonzero((prepared.own >= part.start) & (prepared.own < part.stop))
            similarity[here, prepared.own[here] - part.start] = -torch.inf
        if self.scope.apart is not None:
            same = self.scope.apart[prepared.own][:, None] == self.scope.apart[part]
            similarity.masked_fill_(torch.from_numpy(same).to(similarity.device), -torch.inf)
        return similarity, _largest(block, norms)

    def best(
        self, prepared: Prepared, part: slice, kept: int, worst: "torch.Tensor | None" = None
    ) -> tuple["torch.Tensor", "torch.Tensor", float]:
        """The best of the train rows `part`: similarities (m, at most kept), places in the block, and as `products`.

        Args:
            prepared: m test rows.
            part: of train.
            kept: how many.
            worst: (m,) similarities that are of no use, and all below them.
        """
        import torch

        if self.engine.library == "faiss" and prepared.x.dtype == torch.float32:
            return self._best_by_faiss(prepared, part, kept)
        similarity, largest = self.products(prepared, part)
        return *_top(similarity, kept, worst), largest

    def _best_by_faiss(
        self, prepared: Prepared, part: slice, kept: int
    ) -> tuple["torch.Tensor", "torch.Tensor", float]:
        import faiss
        import torch

        x = self.train[part] if self.scope.left_out is None else self.train[part][~self.scope.left_out[part]]
        places = np.arange(part.stop - part.start)
        if self.scope.left_out is not None:
            places = np.flatnonzero(~self.scope.left_out[part])
        if not len(places):
            return torch.empty(len(prepared.own), 0), torch.empty(len(prepared.own), 0, dtype=torch.int64), 0.0
        block = self._on_device(x, precise=False)
        norms = torch.linalg.vector_norm(block, dim=1)
        largest = _largest(block, norms)
        if self.metric == "cosine":
            block = block / torch.where(norms > 0, norms, 1)[:, None]
        how = faiss.METRIC_L2 if self.metric == "l2" else faiss.METRIC_INNER_PRODUCT
        wanted = min(kept + self.scope.refused, len(places))
        found, columns = faiss.knn(prepared.x.numpy(), block.numpy(), wanted, metric=how)
        values = torch.from_numpy(-found if self.metric == "l2" else found)
        rows = torch.from_numpy(places[columns])
        if self.scope.without_self:
            values[rows + part.start == torch.from_numpy(prepared.own)[:, None]] = -torch.inf
        if self.scope.apart is not None:
            same = self.scope.apart[prepared.own][:, None] == self.scope.apart[rows.numpy() + part.start]
            values[torch.from_numpy(same)] = -torch.inf
        return values, rows, largest

    def error(self, prepared: Prepared, largest: float) -> FloatArray:
        """(m,) how far a similarity may be from the truth.

        The error of a product of D terms grows like sqrt(D); four times that leaves room.

        Args:
            prepared: the test rows.
            largest: norm of a train row.
        """
        import torch

        digits = 2.0**-53 if prepared.x.dtype == torch.float64 else 2.0**-24
        norms = prepared.norms.cpu().numpy().astype(np.float64)
        if math.isinf(largest):
            return np.full(len(norms), np.inf)
        scale = {"cosine": np.ones(len(norms)), "dot": norms * largest, "l2": (norms + largest) ** 2}[self.metric]
        if digits > 2.0**-53:
            # A row of zeros and one whose squares vanish in float32 look alike; both are settled in float64.
            scale[(norms < _SMALLEST) | (norms > _LARGEST)] = np.inf
        return np.asarray(4 * math.sqrt(self.width + 16) * digits * scale)

    def exact(self, own: IntArray, rows: IntArray) -> FloatArray:
        """(m, c) float64 similarities of test rows (m,) with train rows (m, c), each pair summed in the same way."""
        chosen, queries = self.train[rows].astype(np.float64), self.test[own].astype(np.float64)
        if self.metric == "l2":
            chosen -= queries[:, None]
            return -np.asarray(np.einsum("mcd,mcd->mc", chosen, chosen))
        similarity = np.einsum("mcd,md->mc", chosen, queries)
        if self.metric == "cosine":
            lengths = np.sqrt(np.einsum("mcd,mcd->mc", chosen, chosen))
            lengths *= np.sqrt(np.einsum("md,md->m", queries, queries))[:, None]
            similarity = np.divide(similarity, lengths, out=np.zeros_like(similarity), where=lengths > 0)
        return np.asarray(similarity)

    def _on_device(self, rows: Matrix, *, precise: bool) -> "torch.Tensor":
        """Rows of train or test as a tensor, centred for 'l2'; float32 on the processor is not copied."""
        import torch

        dtype = torch.float64 if precise else torch.float32
        with warnings.catch_warnings():
            # Memory-mapped features are read-only, and nothing here writes into them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            # Apple's GPUs have no float64.
            device = "cpu" if precise and self.engine.device == "mps" else self.engine.device
            x = torch.from_numpy(np.ascontiguousarray(rows)).to(device, dtype)
        return x - torch.from_numpy(self.centre).to(x) if self.metric == "l2" else x


def _largest(block: "torch.Tensor", norms: "torch.Tensor") -> float:
    """The largest norm; inf when a row is so large or so small that its products in float32 mean nothing."""
    import torch

    largest = float(norms.max())
    if block.dtype == torch.float64:
        return largest
    small = norms < _SMALLEST
    vanishing = bool(small.any()) and bool((block[small] != 0).any())
    return math.inf if vanishing or not largest < _LARGEST else largest


def _multiply(prepared: Prepared, block: "torch.Tensor") -> "torch.Tensor":
    """(m, n) products. On the processor numpy's library is used: it was 1.2 times as fast as torch's."""
    if prepared.x.device.type != "cpu":
        return prepared.x @ block.T
    products = prepared.products[: len(prepared.x) * len(block)].view(len(prepared.x), len(block))
    np.matmul(prepared.x.numpy(), block.numpy().T, out=products.numpy())
    return products


def _top(similarity: "torch.Tensor", kept: int, worst: "torch.Tensor | None") -> tuple["torch.Tensor", "torch.Tensor"]:
    """The `kept` largest of each row and their columns, in no order; fewer if fewer are above `worst`.

    The columns are dealt into groups. The largest numbers lie in the groups with the largest maxima, so that all but a
    few groups need no more than their maximum, which is found at the speed of memory.
    """
    import torch

    size = math.isqrt(similarity.shape[1] // kept)
    if size < 2:
        values, columns = similarity.topk(kept, dim=1, sorted=False)
        return values, columns
    groups = similarity.shape[1] // size
    dealt = similarity[:, : size * groups].reshape(-1, size, groups)
    maxima = dealt.amax(dim=1)
    useful = kept if worst is None else min(kept, int((maxima > worst[:, None]).sum(dim=1).max()))
    chosen = maxima.topk(useful, dim=1, sorted=False).indices
    members = torch.arange(size, device=similarity.device) * groups
    columns = (chosen[:, None, :] + members[:, None]).flatten(1)
    rest = torch.arange(size * groups, similarity.shape[1], device=similarity.device)
    columns = torch.cat([columns, rest.expand(len(columns), -1)], dim=1)
    values, places = similarity.gather(1, columns).topk(min(kept, columns.shape[1]), dim=1, sorted=False)
    return values, columns.gather(1, places)


@contextlib.contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Products of float32 in float32 on a GPU, whatever the program around has allowed; as it was afterwards."""
    import torch

    before = torch.get_float32_matmul_precision()
    if device != "cpu":
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if device != "cpu":
            torch.set_float32_matmul_precision(before)
