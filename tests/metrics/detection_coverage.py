"""Coverage of the intervals of COCO's AP on few images: `python tests/metrics/detection_coverage.py`, in four minutes.

Many test sets of a simulated detector, whose true AP is that on 20,000 images; docs/intervals.md has the table.
"""

import sys

import numpy as np

from sslbench.metrics.detection import Detections, Truth, coco_ap

CASES = {  # shares of the classes, images, test sets
    "skewed, 40": ((0.55, 0.25, 0.12, 0.05, 0.03), 40, 300),
    "skewed, 100": ((0.55, 0.25, 0.12, 0.05, 0.03), 100, 200),
    "skewed, 300": ((0.55, 0.25, 0.12, 0.05, 0.03), 300, 100),
    "even, 40": ((0.2,) * 5, 40, 300),
}


def drawn(rng, n, shares):
    """Return objects and detections on n images; on hard images fewer objects are found."""
    objects, found = [], []
    for image in range(n):
        ease = rng.normal() * 0.7
        for _ in range(1 + rng.poisson(1.0)):
            label, side, corner = rng.choice(len(shares), p=shares), rng.uniform(40, 150, 2), rng.uniform(0, 400, 2)
            box = np.r_[corner, corner + side]
            objects.append((image, label, *box))
            if rng.random() < _logistic(1 + ease):
                off = np.r_[side, side] * rng.normal(size=4) * abs(rng.normal() * 0.12)
                found.append((image, label, *(box + off), _logistic(1 + ease + rng.normal())))
        for _ in range(rng.poisson(1.0)):
            label, side, corner = rng.choice(len(shares), p=shares), rng.uniform(40, 150, 2), rng.uniform(0, 400, 2)
            found.append((image, label, *corner, *(corner + side), _logistic(rng.normal() - 0.7)))
    truth, seen = np.array(objects), np.array(found).reshape(-1, 7)
    boxes, none = truth[:, 2:6], np.zeros(len(truth), np.bool_)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    classes = tuple("abcde"[: len(shares)])
    images, labels = truth[:, 0].astype(int), truth[:, 1].astype(int)
    detections = Detections(seen[:, 0].astype(int), seen[:, 2:6], seen[:, 6], seen[:, 1].astype(int))
    return Truth(n, classes, images, boxes, labels, none, none, areas), detections


def _logistic(x):
    return 1 / (1 + np.exp(-x))


def coverage(shares, n, sets, *, true_images=20_000):
    """Return the true AP, the mean AP of test sets of n images, and the share of intervals that cover the true one."""
    true = coco_ap(*drawn(np.random.default_rng(99), true_images, shares), resamples=0).metrics["AP"][0]
    rng = np.random.default_rng(1)
    values = np.array([coco_ap(*drawn(rng, n, shares), seed=i, resamples=200).metrics["AP"] for i in range(sets)])
    return true, values[:, 0].mean(), ((values[:, 1] <= true) & (true <= values[:, 2])).mean()


if __name__ == "__main__":
    for name, case in CASES.items():
        sys.stdout.write(" ".join([name, *(f"{100 * value:.1f}" for value in coverage(*case))]) + "\n")
