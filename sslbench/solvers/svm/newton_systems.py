"""Newton systems of many squared-hinge SVMs on the same features.

The system of a problem is (I + X' H X) d = -gradient, with X (N, R) the features and H the diagonal of second
derivatives, 0 for the A samples outside the problem's margin removed. Which way is cheapest depends on A:

- A small: by the Woodbury identity a system of A x A scalar products; A falls as the cost grows.
- R small: the R x R system itself, whose matrix is brought up to date by the samples that crossed the margin.
- Both large: conjugate gradients for all problems together, two shared matrix products per round, in single precision.
  On principal axes the system is nearly diagonal when most samples are inside the margin, so few rounds are needed.
  A problem whose rounds cost more than one of the direct ways is handed over to it.
"""

import dataclasses
import math

import torch

_KEPT_UP_TO = 2**27  # numbers in all matrices together (1 GiB)
_UPDATES = 64  # after so many a matrix is made anew, so that rounding errors do not add up


class Matrices:
    """The M of P problems on the same features, of as many as memory allows."""

    def __init__(self, x: torch.Tensor, weights: torch.Tensor) -> None:
        """Nothing is computed yet.

        Args:
            x: (N, R) float64 features.
            weights: (P, N) float64 weights of the losses without the cost; 0 for a sample that a problem does not have.
        """
        self._x, self._weights = x, weights
        self._most = _KEPT_UP_TO // x.shape[1] ** 2
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}

    def has(self, problem: int) -> bool:
        """Whether the matrix of a problem is kept."""
        return problem in self._kept

    def has_room(self) -> bool:
        """Whether another one can be kept."""
        return len(self._kept) < self._most

    def crossing(self, problem: int, inside: torch.Tensor) -> int:
        """How many samples must be added up to get the matrix for the samples `inside`, (N,) bool."""
        kept, anew = self._kept.get(problem), int(inside.sum())
        if kept is None:
            return anew
        crossed = int((inside ^ kept[0]).sum())
        return anew if crossed and kept[2] >= _UPDATES else min(anew, crossed)

    def at(self, problem: int, inside: torch.Tensor) -> torch.Tensor:
        """(R, R) M of a problem for the samples `inside`, (N,) bool; not to be written to."""
        kept, wanted = self._kept.get(problem), self.crossing(problem, inside)
        if kept is None or wanted == int(inside.sum()):
            matrix, updates = self._sum(problem, inside, None), 0
        else:
            matrix, updates = kept[1] + self._sum(problem, inside ^ kept[0], inside), kept[2] + 1
        if kept is not None or self.has_room():
            self._kept[problem] = inside.clone(), matrix, updates
        return matrix

    def _sum(self, problem: int, samples: torch.Tensor, inside: torch.Tensor | None) -> torch.Tensor:
        """The sum over `samples`; those not `inside` are subtracted."""
        rows = torch.nonzero(samples).flatten()
        weights, x = self._weights[problem, rows], self._x[rows]
        if inside is not None:
            weights = torch.where(inside[rows], weights, -weights)
        return (x * weights[:, None]).T @ x


_GRAM_UP_TO = 2**26  # scalar products of samples that are kept (512 MB)
_SLOWER = 1.5  # double against single precision; large factorisations run faster than narrow products
_ROUNDS = 300  # conjugate gradients that a Newton step may take
_USES = 16  # Newton steps and costs that a matrix serves
_DOUBT = 4  # how many times fewer rounds are tried


@dataclasses.dataclass(frozen=True)
class Among:
    """Which of the problems are meant.

    Attributes:
        matrices: of all problems.
        numbers: which of them, P of them.
        costs: (P,) C of each.
    """

    matrices: Matrices
    numbers: list[int]
    costs: torch.Tensor

    def select(self, rows: torch.Tensor) -> "Among":
        """Some of these."""
        return Among(self.matrices, [self.numbers[i] for i in rows.tolist()], self.costs[rows])


class Systems:
    """Solves Newton systems on one set of features."""

    def __init__(self, x: torch.Tensor, energy: torch.Tensor) -> None:
        """Prepare.

        Args:
            x: (N, R) float64, on principal axes.
            energy: (R,) sums of the squares along the axes.
        """
        self._x, self._energy = x, energy
        self._single = x.float()
        n, width = x.shape
        keep_gram = n * n <= min(_GRAM_UP_TO, 4 * n * width)
        self._gram = x @ x.T if keep_gram else None

    def solve(
        self,
        curvature: torch.Tensor,
        gradient: torch.Tensor,
        accuracy: torch.Tensor,
        exactly: torch.Tensor,
        among: Among,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Newton directions.

        Args:
            curvature: (P, N) diagonals of H.
            gradient: (P, R).
            accuracy: (P,) residual to solve to where conjugate gradients are used, of the right side, both scaled.
            exactly: (P,) for which to use a direct way at any price.
            among: which problems these are.

        Returns:
            (P, R) directions, (P,) whether found by a direct way.
        """
        n, width = self._x.shape
        inside = curvature > 0
        price = torch.tensor([min(self._prices(among, p, inside[p])) for p in range(len(inside))]) / (4 * n * width)
        # Where a direct way has been needed before, rounds are likely to be in vain.
        doubt = torch.tensor([_DOUBT if among.matrices.has(number) else 1.0 for number in among.numbers])
        rounds = torch.where(exactly, 0.0, (price / doubt).clamp(max=_ROUNDS).floor())
        direction = torch.empty_like(gradient)
        # Rounds that cannot be enough are not begun.
        direct = rounds < 4
        iterative = torch.nonzero(~direct).flatten()
        if len(iterative):
            found, solved = self._conjugate_gradients(
                curvature[iterative], gradient[iterative], accuracy[iterative], rounds[iterative]
            )
            direction[iterative] = found
            # Where a direct way costs more than all the rounds allowed, a rough direction has to do.
            direct[iterative[~solved & (price[iterative] <= _ROUNDS)]] = True
        rows = torch.nonzero(direct).flatten()
        if len(rows):
            direction[rows] = self._direct(curvature[rows], gradient[rows], among.select(rows))
        return direction, direct

    def _prices(self, among: Among, p: int, inside: torch.Tensor) -> tuple[float, float]:
        """Operations of the two direct ways: a system of the samples inside the margin, and one of the features."""
        width, count = self._x.shape[1], int(inside.sum())
        form = 20 * count**2 if self._gram is not None else 2 * count**2 * width
        number = among.numbers[p]
        # A matrix that is made is used many times.
        shared = 1 if among.matrices.has(number) or not among.matrices.has_room() else _USES
        update = among.matrices.crossing(number, inside) / shared
        return _SLOWER * (count**3 / 3 + form), _SLOWER * (width**3 / 3 + 2 * update * width**2)

    def _direct(self, curvature: torch.Tensor, gradient: torch.Tensor, among: Among) -> torch.Tensor:
        width = self._x.shape[1]
        direction = -gradient
        on_samples = gradient @ self._x.T
        correction = torch.zeros_like(on_samples)
        for p in range(len(gradient)):
            inside = curvature[p] > 0
            of_samples, of_features = self._prices(among, p, inside)
            if of_features < of_samples:
                system = 2 * float(among.costs[p]) * among.matrices.at(among.numbers[p], inside)
                direction[p] = -_solve(system, torch.ones(width, dtype=gradient.dtype), gradient[p])
            elif inside.any():
                rows = torch.nonzero(inside).flatten()
                h = curvature[p, rows]
                root = h.sqrt()
                system = self._products(rows) * root[:, None] * root
                correction[p, rows] = root * _solve(system, torch.ones_like(h), root * on_samples[p, rows])
        return direction + correction @ self._x

    def _products(self, rows: torch.Tensor) -> torch.Tensor:
        if self._gram is None:
            return self._x[rows] @ self._x[rows].T
        return self._gram[rows[:, None], rows]

    def _conjugate_gradients(
        self, curvature: torch.Tensor, gradient: torch.Tensor, accuracy: torch.Tensor, rounds: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(P, R) directions and (P,) whether the accuracy was reached, each row within its number of rounds."""
        x = self._single
        shape = 1 + curvature.mean(dim=1, keepdim=True) * self._energy
        scale = shape.rsqrt()
        right = -gradient * scale
        length = right.norm(dim=1, keepdim=True)
        out = torch.zeros_like(x[:1]).repeat(len(gradient), 1)
        solved = torch.zeros(len(gradient), dtype=torch.bool)
        rows, solution = torch.arange(len(gradient)), torch.zeros_like(out)
        residual = (right / length).float()
        s, h, within, direction = scale.float(), curvature.float(), accuracy.float(), residual
        square = residual.square().sum(dim=1)
        for done_rounds in range(1, math.ceil(float(rounds.max())) + 1):
            scaled = s * direction
            image = s * scaled + s * (((scaled @ x.T).mul_(h)) @ x)
            reach = (square / (direction * image).sum(dim=1))[:, None]
            solution = solution + reach * direction
            residual = residual - reach * image
            before, square = square, residual.square().sum(dim=1)
            direction = residual + (square / before)[:, None] * direction
            good = square.sqrt() <= within
            ended = good | (rounds <= done_rounds)
            if ended.any():
                out[rows[ended]], solved[rows[ended]] = solution[ended], good[ended]
                keep = ~ended
                if not keep.any():
                    break
                rows, solution, residual, direction = rows[keep], solution[keep], residual[keep], direction[keep]
                s, h, within, square, rounds = s[keep], h[keep], within[keep], square[keep], rounds[keep]
        return out.double() * length * scale, solved


def _solve(matrix: torch.Tensor, diagonal: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The solution of (matrix + diagonal) s = right; the matrix, which is overwritten, has no negative eigenvalue."""
    matrix.diagonal().add_(diagonal)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        # Rounding can make the smallest eigenvalues negative when costs and features are both enormous.
        matrix.diagonal().add_(1e-13 * matrix.diagonal().max())
        factor = torch.linalg.cholesky(matrix)
    return torch.cholesky_solve(right[:, None], factor)[:, 0]
