"""The linear probe's path of regularisers against as many fits of scikit-learn's LogisticRegression: `make bench`.

Both run in this process, one after the other, and are compared by the processor time they take on all cores together,
which other work on the machine changes less than wall time. Converged means the same for both: no fit may be further
from the lowest objective than 1e-4 of it (scikit-learn's tolerance is what that needs: at its default some fits stop
at 5e-4). What is timed of the probe is more than the path: the rotation onto the principal axes, and the final fit, to
a proven relative gap of 1e-10. Where all of scikit-learn's fits would take too long, every third is timed and the
others are taken to cost what their neighbours do.
"""

import os
import time
import warnings

import numpy as np
import psutil
import pytest
from sklearn.linear_model import LogisticRegression

from sslbench.protocols import linear
from sslbench.protocols.linear import search
from sslbench.solvers import logistic
from sslbench.targets.classes import Classes

pytestmark = pytest.mark.speed

WIDTH, CLASSES = 512, 100
GRID = tuple(10 ** (e / 2) for e in range(-10, 0))
TOLERANCE = 1e-5  # of scikit-learn: the largest with which all its fits are within 1e-4 of the lowest objective
SCALE = float(os.environ.get("SSLBENCH_SPEED_SCALE", "1"))


def pooled_features(n, seed):
    """Like pooled ResNet features: not negative, a few directions dominate; 100 classes that a probe tells apart."""
    fixed, rng = np.random.default_rng(7), np.random.default_rng(seed)
    directions = 300
    scale = np.arange(1, directions + 1) ** -0.75
    mixing, channel = fixed.normal(size=(directions, WIDTH)), np.exp(0.5 * fixed.normal(size=WIDTH))
    centres = fixed.normal(size=(CLASSES, directions)) * scale
    y = rng.integers(0, CLASSES, n)
    inner = rng.normal(size=(n, directions)) * scale + 0.45 * centres[y]
    x = np.maximum(inner @ mixing + 0.5 * rng.normal(size=(n, WIDTH)) - 0.7, 0) * channel
    return x.astype(np.float32), y


def objective(problem, x, weight, bias, c):
    """The mean objective in double precision."""
    return problem.loss(x @ weight + bias) + np.sum(weight**2) / (2 * c * len(x))


def the_path(x, y, held, held_y):
    """Processor seconds, the points of the path, the final fit, and the problem they solve."""
    started, memory = time.process_time(), psutil.Process().memory_info().rss
    axes = logistic.principal_axes(x)
    z, other = axes.project(x), axes.project(held)
    labels = Classes(tuple(map(str, range(CLASSES))), y)
    problem = linear._problem(z, labels, np.arange(CLASSES))

    def judge(model):
        return float(np.mean(model.decide(other).argmax(axis=1) == held_y)), 0.0

    settings = linear.Settings()
    options = {"max_iter": settings.max_iter, "tolerance": settings.tolerance}
    best, tried = search(problem, axes.variance, GRID, judge, patience=0, refine=0, **options)
    final = logistic.fit(problem, axes.variance, best.c, start=best.fit, **options)
    seconds = time.process_time() - started
    more = (psutil.Process().memory_info().rss - memory) / 2**20
    print(f"\npath: {seconds:.1f} s of processor time, {more:.0f} MiB more")
    return seconds, tried, final, problem


def test_the_path_is_faster_than_scikit_learns_fits_at_the_same_accuracy():
    n = int(100_000 * SCALE)
    (x, y), (held, held_y) = pooled_features(n, 0), pooled_features(5000, 1)
    seconds, tried, final, problem = the_path(x, y, held, held_y)
    assert len(tried) == len(GRID) and final.converged and final.gap <= 1e-10
    mean, std = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    standard, held_standard = (x - mean) / std, (held - mean) / std
    places = range(0, len(GRID), 3)
    theirs = 0.0
    for place in places:
        point = tried[place]
        model = LogisticRegression(C=point.c, tol=TOLERANCE, max_iter=10000)
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit(standard, y)
        took = time.process_time() - started
        theirs += took * sum(min(places, key=lambda p, q=q: abs(p - q)) == place for q in range(len(GRID)))
        ours = objective(problem, problem.x, point.fit.weight, point.fit.bias, point.c)
        other_value = problem.loss(standard @ model.coef_.T + model.intercept_)
        other_value += np.sum(model.coef_**2) / (2 * point.c * n)
        accuracy = float(np.mean(model.predict(held_standard) == held_y))
        print(
            f"C={point.c:.2g}: scikit-learn {took:.1f} s ({model.n_iter_[0]} iterations), accuracy "
            f"{100 * accuracy:.2f} against {100 * point.score:.2f}, objective {ours / other_value - 1:+.1e} of theirs"
        )
        assert ours <= other_value * (1 + 1e-4)
        assert abs(point.score - accuracy) <= 0.005
    ratio = theirs / seconds
    print(f"{n} x {WIDTH}, {CLASSES} classes: scikit-learn {theirs:.1f} s, the path {seconds:.1f} s: {ratio:.1f}x")
    assert theirs >= 3 * seconds
