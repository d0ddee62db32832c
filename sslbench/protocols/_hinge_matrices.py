"""Second derivatives of many squared-hinge SVMs, kept from one Newton step to the next and from one cost to the next.

The Hessian of a problem is I + 2 C M with M = sum over the samples inside the margin of w_i x_i x_i'. From step to step
few samples cross the margin, and M does not depend on the cost C, so M is brought up to date by the samples that
crossed: where there are many more samples than features this is most of the work that there is.
"""

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
