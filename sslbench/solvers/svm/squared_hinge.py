"""Many L2-regularised squared-hinge SVMs on the same features at once, to LinearSVC's optimum.

For each problem, with features x (a constant one for the bias appended, so the bias is regularised, as in liblinear),
signs y (1, -1, or 0 for a sample that the problem does not have) and costs c, the minimum over v of

    f(v) = |v|^2 / 2 + sum_i c_i max(0, 1 - y_i v x_i)^2        (Fan et al. 2008, LIBLINEAR, section 2)

is found by the modified finite Newton method (Keerthi & DeCoste 2005, JMLR 6, "A modified finite Newton method for
fast solution of large scale linear SVMs"): f is piecewise quadratic, and its Hessian depends only on the set of samples
inside the margin (1 - y_i v x_i > 0), so Newton steps with an exact line search end at the optimum after a few steps.
The products with all samples are shared by all problems; `newton_systems` solves the systems.

Distance to the optimum: f is strongly convex, so |v - optimum| <= |gradient|. At the dual point
alpha_i = 2 c_i max(0, 1 - y_i v x_i) the duality gap is |gradient|^2 / 2.
"""

import dataclasses
from collections.abc import Callable

import torch

from sslbench.solvers.svm.features import RotatedFeatures
from sslbench.solvers.svm.newton_systems import newton_directions, qr_is_affordable, solve_by_qr

Derivatives = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

_ROUNDING = 1e-15  # relative rounding error of a gradient, a sum in double precision
_GAP = 1e-6  # relative duality gap accepted as the optimum where rounding prevents further steps
_FLAT = 1e-2  # slope at which a line search ends, relative to the slope at its start
_LINE_SEARCH_STEPS = 40
_EXACT_AFTER = 8  # Newton steps after which systems are solved exactly: only exact steps detect the limit of rounding
_SHORT_STEPS = 4  # short exact steps after which a gap that remains large is due to rounding


@dataclasses.dataclass(frozen=True)
class Solutions:
    """Solutions of P problems.

    Attributes:
        v: (P, R) float64 on the axes of the features.
        decision: (P, N) float64 decision values v x of all samples, also of those that a problem does not have.
        converged: (P,) True where the optimum was reached.
        steps: (P,) numbers of Newton steps.
    """

    v: torch.Tensor
    decision: torch.Tensor
    converged: torch.Tensor
    steps: torch.Tensor


def solve(
    features: RotatedFeatures,
    signs: torch.Tensor,
    costs: torch.Tensor,
    positive_weight: float,
    *,
    start: Solutions | None = None,
    tolerance: float = 1e-4,
    max_iter: int = 1000,
) -> Solutions:
    """Solve P problems together.

    >>> from sslbench.solvers.svm.features import rotate
    >>> features = rotate(torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64).numpy())
    >>> signs = torch.tensor([[-1, -1, 1, 1]], dtype=torch.int8)
    >>> found = solve(features, signs, torch.tensor([1.0], dtype=torch.float64), positive_weight=1.0)
    >>> weight, bias = features.coefficients(found.v)  # 4 (1 - w) = w if only the samples at -1 and 1 are inside
    >>> round(float(weight[0, 0]), 6), abs(round(float(bias[0]), 6)), bool(found.converged)
    (0.8, 0.0, True)

    Args:
        features: rotated features.
        signs: (P, N) int8: 1 positive, -1 negative, 0 not in this problem.
        costs: (P,) float64, C of each problem.
        positive_weight: weight of the positives' losses; negatives weigh 1.
        start: initial solutions, e.g. those of the same problems at a smaller cost; default: 0.
        tolerance: a problem is solved if |v - optimum| <= tolerance |v|.
        max_iter: largest number of Newton steps.
    """
    shape = (len(signs), features.x.shape[1])
    v = start.v.clone() if start else torch.zeros(shape, dtype=torch.float64)
    decision = start.decision.clone() if start else torch.zeros(signs.shape, dtype=torch.float64)
    converged, steps = torch.zeros(len(signs), dtype=torch.bool), torch.zeros(len(signs), dtype=torch.int64)
    limited_by_rounding = torch.zeros_like(converged)
    sample_costs = torch.where(signs > 0, positive_weight, 1.0).to(torch.float64) * (signs != 0) * costs[:, None]
    left = _Unsolved(torch.arange(len(signs)), v.clone(), decision.clone(), signs.to(torch.float64), sample_costs)
    sample_norms = features.x.norm(dim=1)
    for step in range(max_iter + 1):
        left.differentiate(features, sample_norms)
        done = left.at_optimum(tolerance) | left.no_descent
        rows = left.rows[done]
        gap = left.relative_gap()
        converged[rows] = (left.is_near(tolerance) | (gap <= _GAP))[done]
        # A gradient within the tolerance proves a gap below its square; only rounding ends a problem at a larger gap.
        limited_by_rounding[rows] = (gap > max(_GAP, tolerance**2))[done]
        if step == max_iter:
            done = torch.ones_like(done)
            rows = left.rows
        v[rows], decision[rows], steps[rows] = left.v[done], left.decision[done], step
        if done.all():
            break
        left = left.select(~done) if done.any() else left
        accuracy = (0.3 * tolerance * left.v.norm(dim=1) / left.gradient.norm(dim=1)).clamp(1e-3, 0.1)
        exact = left.exact | (step >= _EXACT_AFTER)
        direction, left.exact = newton_directions(features, left.hessian_diagonal, left.gradient, accuracy, exact)
        left.move(features, direction)
        # The length of an exact step estimates the distance to the optimum even if the gradient is all rounding.
        left.short_step = left.exact & (direction.norm(dim=1) <= tolerance * left.v.norm(dim=1))
        left.short_steps += left.short_step
    found = Solutions(v, decision, converged, steps)
    unfinished = torch.nonzero(limited_by_rounding).flatten().tolist()
    if qr_is_affordable(*features.x.shape):
        _continue_by_qr(features, found, unfinished, signs, sample_costs, max_iter)
    return found


def _continue_by_qr(
    features: RotatedFeatures,
    found: Solutions,
    problems: list[int],
    signs: torch.Tensor,
    sample_costs: torch.Tensor,
    max_iter: int,
) -> None:
    """Continue problems that rounding has ended, one by one; `found` is updated."""
    x = features.x.numpy()
    for p in problems:
        start = found.v[p].numpy()
        v, optimum, steps = solve_by_qr(
            x,
            signs[p].double().numpy(),
            sample_costs[p].numpy(),
            start,
            gap=_GAP,
            max_iter=max_iter - int(found.steps[p]),
        )
        found.v[p], found.decision[p] = torch.from_numpy(v), torch.from_numpy(x @ v)
        found.converged[p] = optimum
        found.steps[p] += steps


class _Unsolved:
    """Unsolved problems, one per row, with the derivatives of their objectives at v.

    Attributes:
        rows: (P,) numbers of the problems.
        v: (P, R) iterates.
        decision: (P, N) decision values.
        y: (P, N) signs.
        costs: (P, N) costs of the samples.
        value: (P,) objective.
        gradient: (P, R).
        gradient_scale: (P,) sum of the norms of the gradient's terms, which bounds its rounding error.
        hessian_diagonal: (P, N) second derivatives of the losses by the decision values.
        exact: (P,) True once conjugate gradients cost more than a decomposition.
        short_step: (P,) True if the last step was exact and within the tolerance.
        short_steps: (P,) number of such steps.
        no_descent: (P,) True if the last direction was no descent direction, because of rounding.
    """

    def __init__(
        self, rows: torch.Tensor, v: torch.Tensor, decision: torch.Tensor, y: torch.Tensor, costs: torch.Tensor
    ) -> None:
        self.rows, self.v, self.decision, self.y, self.costs = rows, v, decision, y, costs
        self.value = self.gradient = self.gradient_scale = v
        self.hessian_diagonal = decision
        self.exact = self.short_step = self.no_descent = torch.zeros(len(rows), dtype=torch.bool)
        self.short_steps = torch.zeros(len(rows), dtype=torch.int64)

    def select(self, keep: torch.Tensor) -> "_Unsolved":
        """Return a subset of the problems, with their derivatives."""
        rest = _Unsolved(self.rows[keep], self.v[keep], self.decision[keep], self.y[keep], self.costs[keep])
        rest.gradient, rest.hessian_diagonal = self.gradient[keep], self.hessian_diagonal[keep]
        # The number of samples inside the margin falls, so a decomposition stays cheaper.
        rest.exact, rest.short_steps = self.exact[keep], self.short_steps[keep]
        return rest

    def differentiate(self, features: RotatedFeatures, sample_norms: torch.Tensor) -> None:
        """Update objective, gradient and Hessian diagonal."""
        slack = (1 - self.y * self.decision).clamp_(min=0)
        self.hessian_diagonal = 2 * self.costs * (slack > 0)
        alpha = self.hessian_diagonal * slack
        self.value = self.v.square().sum(dim=1) / 2 + (alpha * slack).sum(dim=1) / 2
        self.gradient_scale = alpha @ sample_norms
        self.gradient = self.v - alpha.mul_(self.y) @ features.x

    def at_optimum(self, tolerance: float) -> torch.Tensor:
        """Return (P,) True where the tolerance is reached, or rounding prevents further progress."""
        rounded = self.gradient.norm(dim=1) <= _ROUNDING * self.gradient_scale
        proven = (self.relative_gap() <= max(_GAP, tolerance**2)) | (self.short_steps >= _SHORT_STEPS)
        done: torch.Tensor = self.is_near(tolerance) | rounded | (self.short_step & proven)
        return done

    def is_near(self, tolerance: float) -> torch.Tensor:
        """Return (P,) True where the gradient proves a distance to the optimum within the tolerance."""
        near: torch.Tensor = self.gradient.norm(dim=1) <= tolerance * self.v.norm(dim=1)
        return near

    def relative_gap(self) -> torch.Tensor:
        """Return the (P,) duality gaps, relative to the objective."""
        return self.gradient.square().sum(dim=1) / 2 / self.value.clamp(min=torch.finfo(torch.float64).tiny)

    def move(self, features: RotatedFeatures, direction: torch.Tensor) -> None:
        """Move to the minimum along the direction (P, R), or set `no_descent`."""
        change = direction @ features.x.T
        margin_change = self.y * change
        margin = 1 - self.y * self.decision
        weighted = 2 * self.costs * margin_change
        along, square = (self.v * direction).sum(dim=1), direction.square().sum(dim=1)

        def derivatives(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            slack = torch.addcmul(margin, t[:, None], margin_change, value=-1).clamp_(min=0)
            slope = along + t * square - (weighted * slack).sum(dim=1)
            return slope, square + (weighted * margin_change * (slack > 0)).sum(dim=1)

        t, self.no_descent = _line_search(derivatives, len(direction))
        t = torch.where(self.no_descent, 0, t)
        self.v += t[:, None] * direction
        self.decision += t[:, None] * change


def _line_search(derivatives: Derivatives, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (P,) zeros of P increasing, piecewise linear slopes, and (P,) True where the slope at 0 is not negative.

    Newton's method from 1, which is the zero as soon as the set of samples inside the margin is that of the optimum; it
    is safeguarded by bisection.

    Args:
        derivatives: (P,) step lengths -> (P,) slopes and (P,) their derivatives.
        count: P.
    """
    low, high = torch.zeros(count, dtype=torch.float64), torch.full((count,), torch.inf, dtype=torch.float64)
    t = torch.ones_like(low)
    first = derivatives(low)[0]
    for _ in range(_LINE_SEARCH_STEPS):
        slope, curvature = derivatives(t)
        steep = slope.abs() > _FLAT * first.abs()
        if not steep.any():
            break
        low, high = torch.where(slope < 0, t, low), torch.where(slope > 0, t, high)
        guess = t - slope / curvature
        fallback = torch.where(high.isinf(), 2 * t, (low + high) / 2)
        t = torch.where(steep, torch.where((guess > low) & (guess < high), guess, fallback), t)
    return t, first >= 0
