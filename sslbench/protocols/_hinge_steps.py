"""Newton systems of many squared-hinge SVMs on the same features.

The system of a problem is (I + X' H X) d = -gradient, with X (N, R) the features and H the diagonal of second
derivatives, 0 for the A samples outside the problem's margin removed. Which way is cheapest depends on A:

- A small: by the Woodbury identity a system of A x A scalar products; A falls as the cost grows.
- R small: the R x R system itself.
- Both large: conjugate gradients for all problems together, two shared matrix products per round, in single precision.
  On principal axes the system is nearly diagonal when most samples are inside the margin, so few rounds are needed.
  A problem whose rounds cost more than one of the direct ways is handed over to it.
"""

import math

import torch

_GRAM_UP_TO = 2**26  # scalar products of samples that are kept (512 MB)
_SLOWER = 1.5  # double against single precision; large factorisations run faster than narrow products
_ROUNDS = 300  # conjugate gradients that a Newton step may take


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
        self, curvature: torch.Tensor, gradient: torch.Tensor, accuracy: torch.Tensor, exactly: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Newton directions.

        Args:
            curvature: (P, N) diagonals of H.
            gradient: (P, R).
            accuracy: (P,) residual to solve to where conjugate gradients are used, of the right side, both scaled.
            exactly: (P,) for which to use a direct way at any price.

        Returns:
            (P, R) directions, (P,) whether found by a direct way.
        """
        n, width = self._x.shape
        inside = (curvature > 0).sum(dim=1).tolist()
        price = torch.tensor([self._price(a) for a in inside]) / (4 * n * width)
        rounds = torch.where(exactly, 0.0, price.clamp(max=_ROUNDS).floor())
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
            direction[rows] = self._direct(curvature[rows], gradient[rows])
        return direction, direct

    def _price(self, inside: int) -> float:
        """Operations of the cheaper direct way."""
        width = self._x.shape[1]
        form = 20 * inside**2 if self._gram is not None else 2 * inside**2 * width
        return _SLOWER * min(inside**3 / 3 + form, width**3 / 3 + 2 * inside * width**2)

    def _direct(self, curvature: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        width = self._x.shape[1]
        direction = -gradient
        on_samples = gradient @ self._x.T
        correction = torch.zeros_like(on_samples)
        for p in range(len(gradient)):
            rows = torch.nonzero(curvature[p]).flatten()
            h = curvature[p, rows]
            if len(rows) > width:
                weighted = self._x[rows] * h.sqrt()[:, None]
                direction[p] = -_solve(weighted.T @ weighted, torch.ones(width, dtype=h.dtype), gradient[p])
            elif len(rows):
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
