"""Images whose label is probably wrong, by the classes that a linear probe gives to images that it was not trained on.

Confident learning (Northcutt et al., "Confident Learning", JAIR 70, 2021, section 3.1): an image is suspected if its
probability of another class reaches the mean that the images of that class have of their own (equation 2), and none of
such classes is its label. The most suspected images have the smallest normalised margin, the probability of the label
minus the largest other one.

Training images are predicted by probes of the other folds, test images by a probe of all of train. Groups are never
divided. Memory: that of the linear probe; probabilities are computed twice, in blocks. Time: eleven fits of one
strength.
"""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from sslbench.arrays import FloatArray, IntArray
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.data.splits import match_classes
from sslbench.errors import UsageError
from sslbench.features.array import Features
from sslbench.features.store import StoredPair
from sslbench.names import find_module
from sslbench.targets.classes import Classes

linear = find_module("protocol", "linear")
_FOLDS, _ROWS = 5, 8192
_STRENGTHS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # c of the linear probe

_Probe = tuple[str, IntArray | None, Any]


class LabelError(NamedTuple):
    """An image whose label is probably wrong.

    Attributes:
        part: 'train' or 'test'.
        row: position in the source of that part.
        suggested: the class that it more probably has.
        of_label: probability of the label.
        of_suggested: probability of the suggested class.
    """

    part: str
    row: int
    id: str
    label: str
    suggested: str
    of_label: float
    of_suggested: float


def label_errors(train: Source, test: Source, stored: StoredPair, *, seed: int = 0) -> list[LabelError]:
    """Return the images of both parts whose label is probably wrong, the most suspected first.

    Raises:
        UsageError: the labels are no classes, one per image, or no class has five images for training.
        DataError: features are not finite, or all training images are of one class.
    """
    train, test = match_classes(train, test)
    parts = {
        name: Features(x, source.target, source.ids, groups=source_groups(source))
        for name, source, x in (("train", train, stored.train), ("test", test, stored.test))
    }
    for name, part in parts.items():
        if not isinstance(part.target, Classes):
            raise UsageError(f"label errors are found among classes, one per image; {name} has {part.target.title}")
    linear.check_features(parts["train"], parts["test"])
    probes = list(_probes(parts["train"], seed))
    classes = parts["train"].target.classes
    own = {name: np.zeros(len(part)) for name, part in parts.items()}
    for name, rows, found in _probabilities(parts, probes):
        own[name][rows] = found[np.arange(len(rows)), parts[name].target.values[rows]]
    values, mine = np.concatenate([part.target.values for part in parts.values()]), np.concatenate([*own.values()])
    counts = np.bincount(values, minlength=len(classes))
    # Of a class with one image in train nothing is learned where that image is predicted.
    learned = np.bincount(parts["train"].target.values, minlength=len(classes)) > 1
    thresholds = np.where(learned, np.bincount(values, mine, len(classes)) / np.maximum(counts, 1), np.inf)
    errors = []
    for name, rows, found in _probabilities(parts, probes):
        labels = parts[name].target.values[rows]
        confident = np.where(found >= thresholds, found, -1.0)
        suggested = confident.argmax(axis=1)
        for i in np.flatnonzero((confident.max(axis=1) >= 0) & (suggested != labels)):
            row, of_label, of_suggested = int(rows[i]), found[i, labels[i]], found[i, suggested[i]]
            names = classes[labels[i]], classes[suggested[i]]
            errors.append(LabelError(name, row, parts[name].ids[row], *names, float(of_label), float(of_suggested)))
    return sorted(errors, key=lambda error: (error.of_label - error.of_suggested, error.part, error.row))


def _probes(train: Features, seed: int) -> Iterator[_Probe]:
    """Yield the part, the rows to predict, all for None, and each probe.

    Probabilities count here, not the most probable class: c has the smallest cross-entropy on the first fold.
    """
    # Folds are drawn: files that lie side by side often have the same errors.
    labels = train.target.values
    if np.bincount(labels).max() < _FOLDS:
        raise UsageError(f"label errors need a class of at least {_FOLDS} training images")
    folds = np.empty(len(train), np.int8)
    with warnings.catch_warnings():
        # Classes with fewer images than folds are absent from some; the probe handles that.
        warnings.simplefilter("ignore", UserWarning)
        kind = StratifiedKFold if train.groups is None else StratifiedGroupKFold
        splits = kind(_FOLDS, shuffle=True, random_state=seed).split(labels, labels, train.groups)
        for fold, (_, predicted) in enumerate(splits):
            folds[predicted] = fold

    def probe(rows: npt.NDArray[np.bool_], c: float) -> Any:
        used = train if rows.all() else train.select(np.flatnonzero(rows))
        return linear.train_probe(used, linear.Settings(c=(c,)), seed=seed)

    def loss(c: float) -> float:
        probes: list[_Probe] = [("train", np.flatnonzero(folds == 0), probe(folds != 0, c))]
        own = [
            found[np.arange(len(rows)), train.target.values[rows]]
            for _, rows, found in _probabilities({"train": train}, probes)
        ]
        return -float(np.log(np.maximum(np.concatenate(own), 1e-12)).mean())

    c = min(_STRENGTHS, key=loss)
    yield "test", None, probe(folds >= 0, c)
    for fold in range(_FOLDS):
        yield "train", np.flatnonzero(folds == fold), probe(folds != fold, c)


def _probabilities(parts: dict[str, Features], probes: list[_Probe]) -> Iterator[tuple[str, IntArray, FloatArray]]:
    """Yield the part, rows and probabilities (rows, classes) of all images, in blocks."""
    for name, chosen, probe in probes:
        rows = np.arange(len(parts[name])) if chosen is None else chosen
        for start in range(0, len(rows), _ROWS):
            block = rows[start : start + _ROWS]
            yield name, block, softmax(probe.scores(parts[name].x[block], parts[name].target), axis=1)
