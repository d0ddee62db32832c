"""Exact nearest neighbours of every test row in train, in bounded memory and with one tie rule.

Two passes. The first ranks by float32 matrix products, block by block, and keeps a few more candidates than are asked
for. The second computes the similarity of those candidates in float64, pair by pair, and orders them. A test row for
which rounding in the first pass could have lost a neighbour (many equal distances, collapsed features) is searched
again in float64. So neither the block size nor the number of threads changes a neighbour.

Ties: similarities that agree to about 12 digits count as equal, and of equals the lower train row comes first.
"""

import dataclasses
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Metric = Literal["cosine", "dot", "l2"]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.floating]

_TRAIN_ROWS = 65536
_DIGITS = 40  # binary ones, that similarities are rounded to before they are compared


@dataclasses.dataclass(frozen=True)
class _Problem:
    """The two matrices and what is needed to turn products into similarities.

    Attributes:
        train: (N, D).
        test: (M, D).
        metric: 'cosine', 'dot', or 'l2', whose similarity is minus the squared distance.
        train_norms: (N,) Euclidean norms, of the centred rows for 'l2'.
        test_norms: (M,) likewise.
        centre: (D,) subtracted before products are taken: the mean of train for 'l2' (distances do not change, and
            rounding errors shrink), else 0.
    """

    train: Matrix
    test: Matrix
    metric: Metric
    train_norms: FloatArray
    test_norms: FloatArray
    centre: FloatArray

    def scale(self) -> float:
        """The largest size a similarity can have: what rounding errors are measured against."""
        largest_train, largest_test = float(self.train_norms.max()), float(self.test_norms.max())
        if self.metric == "cosine":
            return 1.0
        return largest_train * largest_test if self.metric == "dot" else (largest_train + largest_test) ** 2

    def rows(self, matrix: Matrix, norms: FloatArray, part: slice, dtype: "torch.dtype") -> "torch.Tensor":
        """Some rows of train or test, centred and (for 'cosine') of length 1; a row of zeros stays zero."""
        import torch

        block = torch.from_numpy(np.array(matrix[part])).to(dtype)
        if self.metric == "l2":
            return block.sub_(torch.from_numpy(self.centre).to(dtype))
        if self.metric == "cosine":
            length = torch.from_numpy(np.where(norms[part] > 0, norms[part], 1.0)).to(dtype)
            return block.div_(length[:, None])
        return block

    def products(self, queries: "torch.Tensor", part: slice, own: slice) -> "torch.Tensor":
        """(m, n) similarities of prepared test rows (`own`) with the train rows `part`, in the queries' precision."""
        import torch

        similarity = queries @ self.rows(self.train, self.train_norms, part, queries.dtype).T
        if self.metric == "l2":
            train_squares = torch.from_numpy(self.train_norms[part] ** 2).to(queries.dtype)
            test_squares = torch.from_numpy(self.test_norms[own] ** 2).to(queries.dtype)
            similarity.mul_(2).sub_(train_squares).sub_(test_squares[:, None])
        return similarity

    def exact(self, row: int, candidates: IntArray) -> FloatArray:
        """(n,) float64 similarities of one test row with some train rows, summed the same way for every pair."""
        chosen = self.train[candidates].astype(np.float64)
        query = self.test[row].astype(np.float64)
        if self.metric == "l2":
            chosen -= query
            return -np.asarray(np.einsum("nd,nd->n", chosen, chosen))
        similarity = np.einsum("nd,d->n", chosen, query)
        if self.metric == "cosine":
            lengths = self.train_norms[candidates] * self.test_norms[row]
            similarity = np.divide(similarity, lengths, out=np.zeros_like(similarity), where=lengths > 0)
        return np.asarray(similarity)


def nearest(train: Matrix, test: Matrix, k: int, *, metric: Metric, max_memory: float) -> tuple[FloatArray, IntArray]:
    """The k nearest train rows of every test row.

    Args:
        train: (N, D) features, not written to.
        test: (M, D) features, not written to.
        k: how many neighbours; at most N.
        metric: 'cosine' or 'dot' (higher is nearer), or 'l2'; a row of zeros has cosine 0 with everything.
        max_memory: how much working memory may be used beside the result, in GB (10^9 bytes).

    Returns:
        Similarities (M, k), falling, and train rows (M, k). The similarity of 'l2' is minus the squared distance.
    """
    centre = _mean(train) if metric == "l2" else np.zeros(train.shape[1])
    problem = _Problem(train, test, metric, _norms(train, centre), _norms(test, centre), centre)
    kept = min(len(train), k + max(16, k // 4))
    similarity, neighbours = np.empty((len(test), k)), np.empty((len(test), k), dtype=np.int64)
    step_train, step_test = _block_sizes(problem, kept, max_memory)
    for start in range(0, len(test), step_test):
        own = slice(start, min(start + step_test, len(test)))
        worst, candidates = _candidates(problem, own, kept, step_train)
        for row in range(own.start, own.stop):
            chosen, sure = _refine(problem, row, candidates[row - start], k, float(worst[row - start]))
            if not sure:
                # Features of a collapsed backbone are all alike: what was found for the row before holds again.
                alike = row > 0 and np.array_equal(test[row], test[row - 1])
                chosen = _before(similarity, neighbours, row) if alike else _refine_fully(problem, row, k, step_train)
            similarity[row], neighbours[row] = chosen
    return similarity, neighbours


def _before(similarity: FloatArray, neighbours: IntArray, row: int) -> tuple[FloatArray, IntArray]:
    return similarity[row - 1], neighbours[row - 1]


def _block_sizes(problem: _Problem, kept: int, max_memory: float) -> tuple[int, int]:
    """Train and test rows per block: the products take half of the memory, the train block up to a quarter."""
    width, budget = problem.train.shape[1], max_memory * 1e9
    step_train = int(min(_TRAIN_ROWS, len(problem.train), max(256, budget / 4 / (8 * width))))
    step_test = int(max(1, min(4096, budget / 2 / (8 * (step_train + 6 * kept)))))
    return step_train, step_test


def _norms(matrix: Matrix, centre: FloatArray) -> FloatArray:
    parts = [matrix[i : i + 4096].astype(np.float64) - centre for i in range(0, len(matrix), 4096)]
    return np.concatenate([np.sqrt(np.einsum("nd,nd->n", part, part)) for part in parts])


def _mean(matrix: Matrix) -> FloatArray:
    sums = [matrix[i : i + 4096].sum(axis=0, dtype=np.float64) for i in range(0, len(matrix), 4096)]
    return np.asarray(np.sum(sums, axis=0) / len(matrix))


def _candidates(problem: _Problem, own: slice, kept: int, step: int) -> tuple[FloatArray, IntArray]:
    """The `kept` best train rows of each test row by float32, and a bound that no other train row exceeds."""
    import torch

    queries = problem.rows(problem.test, problem.test_norms, own, torch.float32)
    best = torch.empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(problem.train), step):
        part = slice(start, min(start + step, len(problem.train)))
        block, places = problem.products(queries, part, own).topk(min(kept, part.stop - start), dim=1, sorted=False)
        best, rows = torch.cat([best, block], dim=1), torch.cat([rows, places + start], dim=1)
        if best.shape[1] > kept:
            best, chosen = best.topk(kept, dim=1, sorted=False)
            rows = rows.gather(1, chosen)
    if kept == len(problem.train):
        return np.full(len(queries), -np.inf), rows.numpy()
    # The error of a float32 product of D terms grows like sqrt(D); four times that leaves room.
    error = 4 * np.sqrt(problem.train.shape[1] + 16) * 2.0**-24 * problem.scale()
    return best.min(dim=1).values.numpy().astype(np.float64) + error, rows.numpy()


def _order(similarity: FloatArray, candidates: IntArray, k: int) -> tuple[FloatArray, IntArray]:
    """The k best by rounded similarity, of equals the lower rows."""
    mantissa, exponent = np.frexp(similarity)
    rounded = np.ldexp(np.round(mantissa * 2.0**_DIGITS), exponent - _DIGITS)
    order = np.lexsort((candidates, -rounded))[:k]
    return rounded[order], candidates[order]


def _refine(
    problem: _Problem, row: int, candidates: IntArray, k: int, bound: float
) -> tuple[tuple[FloatArray, IntArray], bool]:
    """The k best of the candidates, and whether no other train row can belong to them."""
    chosen = _order(problem.exact(row, candidates), candidates, k)
    return chosen, bool(chosen[0][-1] > bound)


def _refine_fully(problem: _Problem, row: int, k: int, step: int) -> tuple[FloatArray, IntArray]:
    """The k best of all train rows in float64."""
    everything = np.arange(len(problem.train))
    parts = [problem.exact(row, everything[i : i + step]) for i in range(0, len(everything), step)]
    return _order(np.concatenate(parts), everything, k)
