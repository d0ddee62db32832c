"""How often the 95 % intervals hold the truth: `python tests/metrics/coverage_table.py` prints the table of the docs.

It stands in docs/intervals.md.

Test sets are drawn again and again from models whose true value is known: by formula, or from a million samples. With
--repeats 400 (the default) a coverage of 95 % is measured to about a percent; it takes some ten minutes on one core.
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics.differences import Predictions, difference
from sslbench.metrics.summary import summarise
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import Target

CLASSES, ACCURACY, COPIES = 5, 0.8, 20
RESAMPLES = 200
VERY_MANY = 1_000_000


class Sampled(NamedTuple):
    """A test set: labels, scores of two models, groups or None."""

    kind: type[Target]
    labels: npt.NDArray[np.integer]
    scores: tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]
    groups: IntArray | None


Draw = Callable[[np.random.Generator, int], Sampled]


def separated(rng: np.random.Generator, classes: IntArray, n_classes: int, strength: float) -> npt.NDArray[np.floating]:
    """Normal scores, those of the true class higher by `strength`."""
    return rng.normal(size=(len(classes), n_classes)) + strength * np.eye(n_classes)[classes]


def iid(rng: np.random.Generator, n: int) -> Sampled:
    """Single samples of five equally frequent classes."""
    classes = rng.integers(0, CLASSES, n)
    return Sampled(
        Classes, classes, (separated(rng, classes, CLASSES, 2.0), separated(rng, classes, CLASSES, 2.0)), None
    )


def rare(rng: np.random.Generator, n: int) -> Sampled:
    """The same, but four of the classes are rare: 2 % each."""
    classes = rng.choice(CLASSES, n, p=[0.92, 0.02, 0.02, 0.02, 0.02])
    return Sampled(
        Classes, classes, (separated(rng, classes, CLASSES, 2.0), separated(rng, classes, CLASSES, 2.0)), None
    )


def grouped(rng: np.random.Generator, n: int) -> Sampled:
    """Groups of twenty near-duplicates; n samples are n / 20 groups."""
    base = iid(rng, max(2, n // COPIES))
    rows = np.repeat(np.arange(len(base.labels)), COPIES)
    near = tuple(scores[rows] + 0.02 * rng.normal(size=(len(rows), CLASSES)) for scores in base.scores)
    return Sampled(Classes, base.labels[rows], (near[0], near[1]), rows)


def multi(rng: np.random.Generator, n: int) -> Sampled:
    """Twenty labels, each of which 10 % of the samples have."""
    labels = (rng.random((n, 20)) < 0.1).astype(np.int8)
    scores = tuple(rng.normal(size=labels.shape) + 2.0 * labels for _ in range(2))
    return Sampled(MultiLabel, labels, (scores[0], scores[1]), None)


def one_label(rng: np.random.Generator, n: int) -> Sampled:
    """One label that 10 % of the samples have."""
    labels = (rng.random((n, 1)) < 0.1).astype(np.int8)
    scores = tuple(rng.normal(size=labels.shape) + 2.0 * labels for _ in range(2))
    return Sampled(MultiLabel, labels, (scores[0], scores[1]), None)


SINGLE = ("top1", "balanced_accuracy", "macro_f1", "mAP", "macro_auroc")
MULTI = ("mAP", "mAP_noninterpolated", "macro_auroc", "macro_f1")
MODELS: dict[str, tuple[Draw, tuple[str, ...], tuple[int, ...]]] = {
    "single samples": (iid, SINGLE, (3, 10, 30, 100, 1000, 10_000)),
    "four rare classes (2 %)": (rare, SINGLE, (30, 100, 1000, 10_000)),
    "groups of 20 near-duplicates": (grouped, SINGLE, (60, 200, 600, 2000, 10_000)),
    "one label, 10 % positive": (one_label, MULTI, (30, 80, 200, 400, 1000, 10_000)),
    "20 labels, 10 % positive": (multi, MULTI, (30, 80, 200, 400, 1000)),
}


@functools.cache
def truth(draw: Draw) -> dict[str, float]:
    """The metrics of a model on very many samples."""
    if draw is multi:
        return truth(one_label)
    sampled = draw(np.random.default_rng(12345), VERY_MANY)
    names = [str(c) for c in range(sampled.scores[0].shape[1])]
    found = summarise(sampled.kind, names, sampled.labels, sampled.scores[0].astype(np.float32), seed=0, resamples=2)[0]
    return {name: values[0] for name, values in found.items()}


def measured(draw: Draw, metrics: tuple[str, ...], n: int, repeats: int) -> dict[str, float]:
    """Metric -> share of the intervals that hold the truth; 'difference': share of equal models that are tied."""
    rng, wanted = np.random.default_rng(n), truth(draw)
    held: dict[str, list[bool]] = {name: [] for name in (*metrics, "difference")}
    for repeat in range(repeats):
        sampled = draw(rng, n)
        if sampled.kind is MultiLabel and not (sampled.labels > 0).any():
            continue  # without positives nothing is reported
        names = [str(c) for c in range(sampled.scores[0].shape[1])]
        given = {"seed": repeat, "resamples": RESAMPLES, "groups": sampled.groups}
        found = summarise(sampled.kind, names, sampled.labels, sampled.scores[0], **given)[0]
        for name in metrics:
            held[name].append(bool(found[name][1] <= wanted[name] <= found[name][2]))
        pair = [Predictions.of(0, scores) for scores in sampled.scores]
        apart = difference(metrics[0], sampled.kind, sampled.labels, pair[0], pair[1], **given)
        held["difference"].append(bool(apart.low <= 0 <= apart.high))
    return {name: float(np.mean(each)) for name, each in held.items()}


def lines(repeats: int, largest: int) -> Iterator[str]:
    """The table in Markdown, a line at a time."""
    for name, (draw, metrics, sizes) in MODELS.items():
        yield f"\n**{name}**: {(draw.__doc__ or '').strip()}\n"
        yield f"| n | {' | '.join(metrics)} | paired {metrics[0]} |"
        yield f"|---:|{'---:|' * (len(metrics) + 1)}"
        for n in sizes:
            if n > largest:
                continue
            found = measured(draw, metrics, n, repeats if n < 5000 else max(20, repeats // 4))
            yield f"| {n:,} | {' | '.join(f'{100 * value:.1f}' for value in found.values())} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--largest", type=int, default=10_000)
    arguments = parser.parse_args()
    for line in lines(arguments.repeats, arguments.largest):
        print(line, flush=True)


if __name__ == "__main__":
    main()
