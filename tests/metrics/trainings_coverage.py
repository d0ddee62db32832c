"""Coverage of intervals over trainings and test images: `python tests/metrics/trainings_coverage.py`, in a minute.

Models of one true accuracy are trained R times and tested on one test set of N images. A training moves the logit of
all images by a normal number (standard deviation `between`), an image that of all trainings (`images`). The interval of
`over_trainings` should cover the accuracy over all trainings and images; that of a single training covers less.
docs/intervals.md has the table.
"""

import sys

import numpy as np

from sslbench.metrics.intervals import Units, ends, mean_errors, over_trainings

CASES = [  # trainings, images, standard deviation between trainings
    (trainings, images, between) for images in (100, 1000) for between in (0.0, 0.1, 0.4) for trainings in (1, 2, 3, 5)
]


def outcomes(rng, trainings, images, between):
    """Return which images are right in each training, (R, N)."""
    logits = 1.0 + rng.normal(size=images) + between * rng.normal(size=(trainings, 1))
    return rng.random((trainings, images)) < 1 / (1 + np.exp(-logits))


def coverage(trainings, images, between, *, repeats=1000, seed=0):
    """Return the share of the intervals that cover the true accuracy, and their mean width."""
    rng = np.random.default_rng(seed)
    true = outcomes(rng, 2_000, 2_000, between).mean()
    covered, width = [], []
    for _ in range(repeats):
        right = outcomes(rng, trainings, images, between).astype(np.float64)
        errors = mean_errors(right.T, Units.of(images, None))
        each = [
            (v, *ends(v, e, size=images)) for v, e in zip(right.mean(axis=1).tolist(), errors.tolist(), strict=True)
        ]
        _, low, high = over_trainings(each)
        covered.append(low <= true <= high)
        width.append(high - low)
    return float(np.mean(covered)), float(np.mean(width))


if __name__ == "__main__":
    for case in CASES:
        share, size = coverage(*case)
        sys.stdout.write("{} trainings, {} images, {:g} between: ".format(*case))
        sys.stdout.write(f"covered {100 * share:.1f} %, width {100 * size:.1f}\n")
