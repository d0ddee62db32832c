"""Many L2-regularised squared-hinge SVMs on the same features at once, to LinearSVC's optimum.

For each problem, with features x (a constant one for the bias appended, so the bias is regularised, as in liblinear),
signs y (1, -1, or 0 for a sample that the problem does not have) and costs c, the minimum over v of

    f(v) = |v|^2 / 2 + sum_i c_i max(0, 1 - y_i v x_i)^2        (Fan et al. 2008, LIBLINEAR, section 2)

is found by the modified finite Newton method (Keerthi & DeCoste 2005, JMLR 6, "A modified finite Newton method for
fast solution of large scale linear SVMs"): f is piecewise quadratic, its Hessian depends only on which samples lie
inside the margin, and Newton steps with an exact line search end at the optimum after a few of them.

How it is made fast without changing the optimum: what needs all samples is a matrix product shared by all problems,
and the Newton systems are solved in whichever of three ways is cheapest (`_hinge_steps`).

How far a result is from the optimum is known: f is strongly convex, so |v - optimum| <= |gradient|, and the duality gap
(at the dual point 2 c_i max(0, 1 - y_i v x_i)) is |gradient|^2 / 2.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from sslbench.solvers.svm import rescue
from sslbench.solvers.svm.newton_systems import Among, Matrices, Systems

FloatArray = npt.NDArray[np.float64]
SlopeAndBend = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

_NULL = 1e-24  # share of the features' squared length below which an axis is rounding noise
_ROUNDING = 1e-15  # of the sum whose small difference a gradient is
_GAP = 1e-6  # relative duality gap that is still the optimum where rounding allows no further step
_FLAT = 1e-2  # slope at which a line search ends, of the slope at its start
_TRIALS = 40
_DIRECT_AFTER = 8  # Newton steps after which the systems are solved exactly whatever that costs
_SHORT_STEPS = 4  # exact steps within the tolerance, after which a gap that is too large is blamed on rounding


@dataclasses.dataclass(frozen=True)
class Axes:
    """Features on their principal axes, the constant feature of the bias included.

    Attributes:
        x: (N, R) float64, R <= min(N, D + 1).
        energy: (R,) sum over the samples of the squares along each axis.
        basis: (D + 1, R), orthonormal columns; the last row belongs to the constant feature.
        intercept_scaling: value of the constant feature.
    """

    x: torch.Tensor
    energy: torch.Tensor
    basis: torch.Tensor
    intercept_scaling: float

    def coefficients(self, v: torch.Tensor) -> tuple[FloatArray, FloatArray]:
        """(P, D) weights and (P,) biases of solutions (P, R)."""
        full: FloatArray = (v @ self.basis.T).numpy()
        return full[:, :-1], full[:, -1] * self.intercept_scaling


def principal_axes(x: FloatArray, intercept_scaling: float = 1.0) -> Axes:
    """Turn features onto their principal axes, a rotation, which leaves lengths alone. They are not centred.

    Args:
        x: (N, D), finite.
        intercept_scaling: value of the constant feature whose weight gives the bias, as in LinearSVC.
    """
    full = torch.empty((len(x), x.shape[1] + 1), dtype=torch.float64)
    full[:, :-1] = torch.from_numpy(x)
    full[:, -1] = intercept_scaling
    span = None
    if full.shape[0] < full.shape[1]:
        # No solution has a part that is orthogonal to all samples, so N axes are enough.
        span, triangle = torch.linalg.qr(full.T)
        full = triangle.T.contiguous()
    # numpy's decomposition takes half the time of torch's on a CPU.
    rotation = torch.from_numpy(np.linalg.eigh((full.T @ full).numpy())[1])
    turned = full @ rotation
    energy = torch.linalg.vector_norm(turned, dim=0).square()
    kept = energy > _NULL * energy.sum()
    if not kept.all():
        turned, rotation, energy = turned[:, kept].contiguous(), rotation[:, kept], energy[kept]
    basis = rotation if span is None else span @ rotation
    return Axes(turned, energy, basis, intercept_scaling)


@dataclasses.dataclass(frozen=True)
class Solutions:
    """Solutions of P problems.

    Attributes:
        v: (P, R) float64, on the axes.
        decision: (P, N) float64, v x for all samples, also those that a problem does not have.
        converged: (P,) whether the optimum was reached.
        steps: (P,) Newton steps.
        matrices: of second derivatives, for whoever goes on from here with other costs.
    """

    v: torch.Tensor
    decision: torch.Tensor
    converged: torch.Tensor
    steps: torch.Tensor
    matrices: Matrices


def solve(
    axes: Axes,
    systems: Systems,
    signs: torch.Tensor,
    costs: torch.Tensor,
    positive_weight: float,
    *,
    start: Solutions | None = None,
    tolerance: float = 1e-4,
    max_iter: int = 1000,
) -> Solutions:
    """Solve P problems together.

    Args:
        axes: of the features.
        systems: solves the Newton systems on these axes.
        signs: (P, N) int8: 1 positive, -1 negative, 0 not in this problem.
        costs: (P,) float64, C of each problem.
        positive_weight: of the positives' losses; negatives weigh 1.
        start: where to begin, e.g. the solutions of the same problems for a smaller cost; else 0.
        tolerance: a problem is solved when |v - optimum| <= tolerance |v|.
        max_iter: largest number of Newton steps.
    """
    shape = (len(signs), axes.x.shape[1])
    v = start.v.clone() if start else torch.zeros(shape, dtype=torch.float64)
    decision = start.decision.clone() if start else torch.zeros(signs.shape, dtype=torch.float64)
    converged, steps = torch.zeros(len(signs), dtype=torch.bool), torch.zeros(len(signs), dtype=torch.int64)
    doubtful = torch.zeros_like(converged)
    unpriced = torch.where(signs > 0, positive_weight, 1.0).to(torch.float64) * (signs != 0)
    weights = unpriced * costs[:, None]
    matrices = start.matrices if start else Matrices(axes.x, unpriced)
    left = _Problems(torch.arange(len(signs)), v.clone(), decision.clone(), signs.to(torch.float64), weights)
    sizes = axes.x.norm(dim=1)
    for step in range(max_iter + 1):
        left.differentiate(axes, sizes)
        done = left.at_optimum(tolerance) | left.stuck
        rows = left.rows[done]
        gap = left.relative_gap()
        converged[rows] = (left.is_near(tolerance) | (gap <= _GAP))[done]
        # A gradient within the tolerance leaves no larger gap; a larger one was ended by rounding.
        doubtful[rows] = (gap > max(_GAP, tolerance**2))[done]
        if step == max_iter:
            done = torch.ones_like(done)
            rows = left.rows
        v[rows], decision[rows], steps[rows] = left.v[done], left.decision[done], step
        if done.all():
            break
        left = left.select(~done) if done.any() else left
        accuracy = (0.3 * tolerance * left.v.norm(dim=1) / left.gradient.norm(dim=1)).clamp(1e-3, 0.1)
        exactly = left.direct | (step >= _DIRECT_AFTER)
        among = Among(matrices, left.rows.tolist(), costs[left.rows])
        direction, left.direct = systems.solve(left.curvature, left.gradient, accuracy, exactly, among)
        left.move(axes, direction)
        # An exact step this short says how far the optimum is, where the gradient is all rounding.
        left.close = left.direct & (direction.norm(dim=1) <= tolerance * left.v.norm(dim=1))
        left.short_steps += left.close
    found = Solutions(v, decision, converged, steps, matrices)
    _rescue(axes, found, torch.nonzero(doubtful).flatten().tolist(), signs, weights, max_iter)
    return found


def _rescue(
    axes: Axes, found: Solutions, doubtful: list[int], signs: torch.Tensor, weights: torch.Tensor, max_iter: int
) -> None:
    """Goes on with the problems that rounding has ended, one by one, where that is affordable; changes `found`."""
    if not doubtful or not rescue.affordable(*axes.x.shape):
        return
    x = axes.x.numpy()
    for p in doubtful:
        given = signs[p].double().numpy(), weights[p].numpy(), found.v[p].numpy()
        v, optimum, steps = rescue.rescue(x, *given, gap=_GAP, max_iter=max_iter - int(found.steps[p]))
        found.v[p], found.decision[p] = torch.from_numpy(v), torch.from_numpy(x @ v)
        found.converged[p] = optimum
        found.steps[p] += steps


class _Problems:
    """The problems that are not solved yet, one per row."""

    def __init__(
        self, rows: torch.Tensor, v: torch.Tensor, decision: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> None:
        self.rows, self.v, self.decision, self.y, self.weights = rows, v, decision, y, weights
        self.gradient, self.curvature, self.value, self.pull = v, decision, v, v
        self.direct = self.close = self.stuck = torch.zeros(len(rows), dtype=torch.bool)
        self.short_steps = torch.zeros(len(rows), dtype=torch.int64)

    def select(self, keep: torch.Tensor) -> "_Problems":
        """Some of them, with their derivatives."""
        rest = _Problems(self.rows[keep], self.v[keep], self.decision[keep], self.y[keep], self.weights[keep])
        # What once was cheapest to solve directly stays so: fewer and fewer samples are inside the margin.
        rest.gradient, rest.curvature, rest.direct = self.gradient[keep], self.curvature[keep], self.direct[keep]
        rest.short_steps = self.short_steps[keep]
        return rest

    def differentiate(self, axes: Axes, sizes: torch.Tensor) -> None:
        """Gradient (P, R), and the second derivative of each sample's loss by its decision value (P, N)."""
        slack = (1 - self.y * self.decision).clamp_(min=0)
        self.curvature = 2 * self.weights * (slack > 0)
        alpha = self.curvature * slack
        self.value = self.v.square().sum(dim=1) / 2 + (alpha * slack).sum(dim=1) / 2
        self.pull = alpha @ sizes
        self.gradient = self.v - alpha.mul_(self.y) @ axes.x

    def at_optimum(self, tolerance: float) -> torch.Tensor:
        """Return (P,) whether there is nothing left to do: the tolerance is reached, or rounding leaves no more."""
        rounded = self.gradient.norm(dim=1) <= _ROUNDING * self.pull
        proven = (self.relative_gap() <= max(_GAP, tolerance**2)) | (self.short_steps >= _SHORT_STEPS)
        done: torch.Tensor = self.is_near(tolerance) | rounded | (self.close & proven)
        return done

    def is_near(self, tolerance: float) -> torch.Tensor:
        """Return (P,) whether the gradient proves a distance to the optimum within the tolerance."""
        near: torch.Tensor = self.gradient.norm(dim=1) <= tolerance * self.v.norm(dim=1)
        return near

    def relative_gap(self) -> torch.Tensor:
        """(P,) duality gap, of the objective."""
        return self.gradient.square().sum(dim=1) / 2 / self.value.clamp(min=torch.finfo(torch.float64).tiny)

    def move(self, axes: Axes, direction: torch.Tensor) -> None:
        """Go to the minimum along the direction (P, R); problems that it leads nowhere become stuck."""
        change = direction @ axes.x.T
        inward = self.y * change
        margin = 1 - self.y * self.decision
        double = 2 * self.weights
        along, square = (self.v * direction).sum(dim=1), direction.square().sum(dim=1)

        def slope_and_bend(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            slack = torch.addcmul(margin, t[:, None], inward, value=-1).clamp_(min=0)
            pull = double * inward
            slope = along + t * square - (pull * slack).sum(dim=1)
            return slope, square + (pull * inward * (slack > 0)).sum(dim=1)

        t, self.stuck = _zero_of_slope(slope_and_bend, len(direction))
        t = torch.where(self.stuck, 0, t)
        self.v += t[:, None] * direction
        self.decision += t[:, None] * change


def _zero_of_slope(slope_and_bend: SlopeAndBend, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(P,) where P increasing, piecewise linear slopes cross 0, and whether they do not begin below 0.

    Newton's method from 1, where the crossing is as soon as the right samples are inside the margin; it is kept in
    between the places known to be on either side.
    """
    low, high = torch.zeros(count, dtype=torch.float64), torch.full((count,), torch.inf, dtype=torch.float64)
    t = torch.ones_like(low)
    first = slope_and_bend(low)[0]
    for _ in range(_TRIALS):
        slope, bend = slope_and_bend(t)
        steep = slope.abs() > _FLAT * first.abs()
        if not steep.any():
            break
        low, high = torch.where(slope < 0, t, low), torch.where(slope > 0, t, high)
        guess = t - slope / bend
        fallback = torch.where(high.isinf(), 2 * t, (low + high) / 2)
        t = torch.where(steep, torch.where((guess > low) & (guess < high), guess, fallback), t)
    return t, first >= 0
