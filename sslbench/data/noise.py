"""Label noise: a share of the training labels is wrong, to measure how well a probe copes with it."""

import dataclasses

import numpy as np

from sslbench.data.source import Labels, Source
from sslbench.errors import UsageError


def check_values(shares: tuple[float, ...]) -> None:
    """Refuse shares of wrong labels that are impossible, whatever the labels, or given twice.

    Raises:
        UsageError: a share is one of these.
    """
    for share in shares:
        if not 0 < share < 1:
            raise UsageError(f"--noise {share:g}: should lie between 0 and 1", "Give shares: --noise 0.1,0.2,0.4.")
    if len(set(shares)) < len(shares):
        raise UsageError(f"--noise {','.join(f'{share:g}' for share in shares)} has a share twice")


def check_shares(shares: tuple[float, ...], labels: Labels) -> None:
    """Refuse shares of wrong labels that are impossible, given twice, or too small to change a label.

    Args:
        shares: of --noise.
        labels: of train.

    Raises:
        UsageError: a share is one of these.
    """
    check_values(shares)
    for share in shares:
        if round(share * len(labels)) < (1 if labels.kind == "single" else 2):
            raise UsageError(f"--noise {share:g}: none of the {len(labels)} train labels would be wrong")


def with_label_noise(source: Source, share: float, seed: int) -> Source:
    """Return a source with a share of its labels replaced by wrong ones; see `noisy_labels`."""
    return dataclasses.replace(source, labels=noisy_labels(source.labels, share, seed))


def noisy_labels(labels: Labels, share: float, seed: int) -> Labels:
    """Return labels of which a share is wrong.

    One class per sample: another class, drawn uniformly (symmetric noise). Several labels or numbers per sample: the
    labels of the chosen samples change places, so their frequencies stay. The samples of a smaller share are among
    those of a larger one.

    >>> from sslbench.data.labels import single_labels
    >>> labels = single_labels(["cat", "dog", "cat", "dog"])
    >>> noisy = noisy_labels(labels, 0.5, seed=0)
    >>> int((noisy.values != labels.values).sum()), noisy.classes
    (2, ('cat', 'dog'))

    Args:
        labels: of N samples.
        share: share of wrong labels; round(share N) samples are chosen.
        seed: of the choice.
    """
    generator = np.random.default_rng([seed, 0x6E6F697365])
    order, draws = generator.permutation(len(labels)), generator.random(len(labels))
    rows = order[: round(share * len(labels))]
    values = labels.values.copy()
    if labels.kind == "single":
        others = len(labels.classes) - 1
        values[rows] = (values[rows] + 1 + (draws[rows] * others).astype(values.dtype)) % len(labels.classes)
    else:
        values[rows] = values[np.roll(rows, 1)]
    return dataclasses.replace(labels, values=values)
