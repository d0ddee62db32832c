"""Label noise: a share of the training labels is wrong, to measure how well a probe copes with it."""

import dataclasses
import math

import numpy as np

from sslbench.arrays import IntArray
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import Target


def check_values(shares: tuple[float, ...]) -> None:
    """Refuse shares of wrong labels that are impossible, whatever the labels, or given twice."""
    for share in shares:
        if not 0 < share < 1:
            raise UsageError(f"--noise {share:g}: should lie between 0 and 1", "Give shares: --noise 0.1,0.2,0.4.")
    if len(set(shares)) < len(shares):
        raise UsageError(f"--noise {','.join(f'{share:g}' for share in shares)} has a share twice")


def check_shares(shares: tuple[float, ...], labels: Target) -> None:
    """Refuse shares of wrong labels that are impossible, given twice, or too small to change a label."""
    check_values(shares)
    for share in shares:
        if round(share * len(labels)) < (1 if isinstance(labels, Classes) else 2):
            raise UsageError(f"--noise {share:g}: none of the {len(labels)} train labels would be wrong")
        if not isinstance(labels, Classes):
            _refuse_beyond_others(share, _numbered(labels))


def _refuse_beyond_others(share: float, numbers: IntArray) -> None:
    """Refuse a share of samples that cannot all get the labels of others."""
    counts, n = np.unique(numbers, return_counts=True)[1], round(share * len(numbers))
    if np.minimum(counts, n // 2).sum() < n:
        same = int(counts.max())
        most = math.floor(2000 * (len(numbers) - same) / len(numbers)) / 1000
        raise UsageError(
            f"--noise {share:g}: samples get the labels of others, and {same:,} of the {len(numbers):,} train samples "
            "have the same labels",
            f"The largest share is {min(most, 0.999):g}." if most else "There is nothing to exchange.",
        )


def with_label_noise(source: Source, share: float, seed: int) -> Source:
    """Return a source with a share of its labels replaced by wrong ones; see `noisy_labels`."""
    # By rank, so that no name of a class folder decides which labels are wrong.
    labels, order = source.target, np.argsort(source.rank)
    ordered, values = labels.select(order), np.empty_like(labels.values)
    noisy = noisy_labels(ordered.numbered_by_samples(), share, seed).values
    if isinstance(ordered, Classes):
        values[order] = ordered.by_first_sample()[noisy]
    elif isinstance(ordered, MultiLabel):
        values[np.ix_(order, ordered.by_first_sample())] = noisy
    else:
        values[order] = noisy
    return dataclasses.replace(source, target=labels.changed(values=values))


def noisy_labels(labels: Target, share: float, seed: int) -> Target:
    """Return labels of which a share is wrong.

    One class per sample: another class, drawn uniformly (symmetric noise). Several labels or numbers per sample: every
    chosen sample gets the labels of another chosen one, which differ from its own, so their frequencies stay; samples
    with frequent labels, such as none, are chosen less often where too few others could exchange theirs. The samples of
    a smaller share are among those of a larger one.

    >>> from sslbench.data.labels import single_labels
    >>> labels = single_labels(["cat", "dog", "cat", "dog"])
    >>> noisy = noisy_labels(labels, 0.5, seed=0)
    >>> int((noisy.values != labels.values).sum()), noisy.classes
    (2, ('cat', 'dog'))
    """
    # "noise" in ASCII: a stream apart from all others of this seed.
    generator = np.random.default_rng([seed, 0x6E6F697365])
    order, draws = generator.permutation(len(labels)), generator.random(len(labels))
    rows = order[: (n := round(share * len(labels)))]
    values = labels.values.copy()
    if isinstance(labels, Classes):
        others = len(labels.classes) - 1
        # Moved on by 1 to C - 1 classes, so never to the own one.
        values[rows] = (values[rows] + 1 + (draws[rows] * others).astype(values.dtype)) % len(labels.classes)
    else:
        numbers = _numbered(labels)[order]
        _refuse_beyond_others(share, numbers)
        # At most half of the chosen ones have equal labels, so that each can get those of another.
        places = np.argsort(numbers, kind="stable")
        before = np.empty_like(numbers)  # how many equal ones precede each
        before[places] = np.arange(len(numbers)) - np.searchsorted(numbers[places], numbers[places])
        chosen = np.flatnonzero(before < n // 2)[:n]
        by_labels = order[chosen[np.argsort(numbers[chosen], kind="stable")]]
        most = int(np.unique(numbers[chosen], return_counts=True)[1].max(initial=0))
        # Sorted by their labels and moved on by the largest number of equal ones, no sample meets its own labels.
        values[by_labels] = values[np.roll(by_labels, most)]
    return labels.changed(values=values)


def _numbered(labels: Target) -> IntArray:
    """Return a number (N,) for the labels of each sample, the same for equal labels."""
    # By the version of numpy, the inverse of rows is flat or a column.
    return np.asarray(np.unique(labels.values, axis=0, return_inverse=True)[1], dtype=np.int64).reshape(-1)
