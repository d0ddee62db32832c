"""Further sets of robustness, and the scores of a classifier on test and on them."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from sslbench.arrays import BoolArray, FloatArray, Int8Array, IntArray, Matrix
from sslbench.data.changed import versions_of, without_geometry
from sslbench.data.corruptions import MAIN
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.identity import digest
from sslbench.metrics import robustness as measures
from sslbench.metrics.answers import top_k_correct
from sslbench.metrics.catalog import find as find_metric
from sslbench.metrics.classification import TOP1, TOP5
from sslbench.metrics.intervals import Interval, Units, means
from sslbench.metrics.measure import SampleMeans
from sslbench.metrics.metric import Metric
from sslbench.metrics.spectrum import unit_length
from sslbench.metrics.summary import summarise
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.selection import check_features, check_finite
from sslbench.protocols.protocol import FeatureInputs, ImageSet
from sslbench.protocols.robustness.classifier import ScoredClassifier, classifier_of
from sslbench.protocols.robustness.further_sets import (
    check_pictures,
    corruption_changes,
    geometric_changes,
    missing_classes,
    open_corrupted,
    open_objectnet,
    open_test_set,
    open_unknown,
    reference_errors,
    with_real_labels,
)
from sslbench.protocols.robustness.perturbations import open_perturbed, perturbation_metrics, perturbation_notes
from sslbench.protocols.robustness.settings import (
    OBJECTNET,
    REAL,
    SEVERAL_RIGHT,
    UNKNOWN,
    VERSIONS,
    Settings,
    corruption_name,
    corruptions,
    located,
)
from sslbench.results import Outcome
from sslbench.solvers.neighbours import nearest
from sslbench.targets.classes import Classes

_ROWS = 8192
_MEMORY = 1.0  # GB of the search of neighbours


def open_sets(
    settings: Settings, train: Source, test: Source, preprocessing: Preprocessing, limited: Callable[[Source], Source]
) -> dict[str, ImageSet]:
    """Return the changed versions of the test images, the unknown images, and the further test sets."""
    found: dict[str, ImageSet] = {}
    # For images that are cropped already: those of ImageNet-C have 224 x 224 pixels.
    cropped = preprocessing
    if preprocessing.crop is not None:
        cropped = dataclasses.replace(preprocessing, resize=preprocessing.crop, squash=None, crop=None)
    changes = [*corruption_changes(settings).values(), *geometric_changes(settings).values()]
    if changes:
        check_pictures(settings, preprocessing)
        versions = versions_of(test, changes, preprocessing, settings.change_seed)
        codes = digest(sorted((change.name, change.code) for change in changes), 32)
        found[VERSIONS] = ImageSet(versions, without_geometry(preprocessing), codes)
    if settings.corrupted:
        for name in corruptions(settings):
            for severity in settings.severities:
                source = open_corrupted(located(settings.corrupted, "corrupted"), name, severity, test)
                found[corruption_name(name, severity)] = ImageSet(source, cropped, source.fingerprint())
    for name, frames in open_perturbed(settings, limited).items():
        found[name] = ImageSet(frames, cropped, frames.fingerprint())
    if settings.unknown:
        unknown = limited(open_unknown(located(settings.unknown, "unknown"), train, settings.known))
        found[UNKNOWN] = ImageSet(unknown, preprocessing, unknown.fingerprint())
    for name, given in (settings.sets or {}).items():
        location = located(given, f"sets.{name}")
        if name == REAL:
            source = with_real_labels(test, location, train)
        elif name == OBJECTNET:
            source = limited(open_objectnet(location, train))
        else:
            source = limited(open_test_set(name, location, train))
        found[name] = ImageSet(source, preprocessing, source.fingerprint(), recorded=name not in SEVERAL_RIGHT)
    return found


def softmax_novelty(scores: FloatArray) -> FloatArray:
    """Return less the largest probability (MSP; Hendrycks and Gimpel, ICLR 2017) of logits (N, C).

    >>> softmax_novelty(np.array([[0.0, 0.0]])).tolist()
    [-0.5]
    """
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(-shifted.max(axis=1) / shifted.sum(axis=1))


def energy_novelty(scores: FloatArray) -> FloatArray:
    """Return the energy, less the logarithm of the sum of exponentials (Liu et al., NeurIPS 2020) of logits (N, C).

    >>> energy_novelty(np.array([[0.0, 0.0]])).round(4).tolist()
    [-0.6931]
    """
    largest = scores.max(axis=1)
    return np.asarray(-largest - np.log(np.exp(scores - largest[:, None]).sum(axis=1)))


class MahalanobisNovelty:
    """Distance to the nearest class mean under the covariance that all classes share (Lee et al., NeurIPS 2018)."""

    def __init__(self, x: Matrix, labels: IntArray) -> None:
        classes, place = np.unique(labels, return_inverse=True)
        counts = np.bincount(place)
        means = np.zeros((len(classes), x.shape[1]))
        covariance = np.zeros((x.shape[1], x.shape[1]))
        for start in range(0, len(x), _ROWS):
            np.add.at(means, place[start : start + _ROWS], x[start : start + _ROWS].astype(np.float64))
        means /= counts[:, None]
        for start in range(0, len(x), _ROWS):
            residual = x[start : start + _ROWS].astype(np.float64) - means[place[start : start + _ROWS]]
            covariance += residual.T @ residual
        values, axes = np.linalg.eigh(covariance / len(x))
        # Along the others training features vary about their means by rounding only: the distance there is not known.
        kept = values > 1e-12 * values[-1]
        self._whiten = axes[:, kept] / np.sqrt(values[kept])
        self._means = means @ self._whiten

    def __call__(self, x: Matrix) -> FloatArray:
        """Return the squared distance (N,) of features (N, D) to the nearest class mean."""
        found = np.empty(len(x))
        for start in range(0, len(x), _ROWS):
            own = x[start : start + _ROWS].astype(np.float64) @ self._whiten
            squares = (own**2).sum(axis=1)[:, None] + (self._means**2).sum(axis=1) - 2 * own @ self._means.T
            found[start : start + _ROWS] = squares.min(axis=1)
        return found


def score(inputs: FeatureInputs[Settings]) -> dict[str, Outcome]:
    """Score test and the sets by a linear probe trained on train, or by the classifier of the weights file."""
    train, test, sets, settings, seed = inputs.train, inputs.test, inputs.sets, inputs.settings, inputs.seed
    check_features(train, test)
    for name, each in sets.items():
        check_finite(each, name)
    scored = classifier_of(settings, train, inputs.classifier, seed=seed)
    labels = test.target
    scores = scored.logits(test.x)
    metrics, headline, per_class = summarise(
        Classes,
        labels.classes,
        labels.values,
        scores,
        seed=seed,
        probabilities="softmax" if scored.gives_probabilities else None,
        groups=test.groups,
    )
    chance = {"top1": 1 / len(labels.classes)}
    notes = list(scored.notes)
    units = Units.of(len(test), test.groups)
    rows = _VersionRows(settings, test, sets)
    metrics |= _cosines(rows, test, units, settings, seed)
    errors = None
    if settings.corrupt:
        errors = _corruption_means(rows, scored, test, scores, settings)
        metrics |= means({find_metric(name): errors.values(name) for name in errors.metrics}, units)
        headline = measures.CORRUPTION_ERROR.name
        chance |= {headline: 1 - chance["top1"], measures.ERROR_INCREASE.name: 0.0}
        if settings.reference is not None and (number := len(corruptions(settings))) != len(MAIN):
            notes.append(f"mCE is the mean over {number} corruptions, not over the 15 of ImageNet-C.")
    flips, counts = perturbation_metrics(sets, scored, settings)
    if flips:
        metrics |= flips
        headline = headline if settings.corrupt else measures.FLIP_PROBABILITY.name
        notes += perturbation_notes(sets)
    if UNKNOWN in sets:
        found, by_guessing, n = _unknown_metrics(scored, train, test, sets[UNKNOWN], settings, seed)
        metrics, chance, counts = metrics | found, chance | by_guessing, counts | dict.fromkeys(found, n)
        headline = headline if settings.corrupt or flips else "unknown_auroc(msp)"
    outcomes = {}
    right = top_k_correct(labels.values, scores, 1)
    for name in settings.sets or {}:
        if name in SEVERAL_RIGHT:
            found, own_counts = _several_right_metrics(name, scored, sets[name])
            metrics, counts = metrics | found, counts | own_counts
            continue
        outcomes[name] = _outcome_on_set(name, scored, train, sets[name], seed)
        found = {f"{metric}({name})": outcomes[name].metrics[metric] for metric in ("top1", "top5")}
        metrics, counts = metrics | found, counts | dict.fromkeys(found, len(sets[name]))
        if line := (settings.lines or {}).get(name):
            own = top_k_correct(sets[name].target.values, outcomes[name].scores, 1)
            effective = measures.part(measures.EFFECTIVE_ROBUSTNESS, name).name
            own_units = Units.of(len(own), sets[name].groups)
            metrics[effective] = measures.effective_robustness_with_interval(own, own_units, right, units, line)
            counts[effective] = len(own)
        notes += [note for note in [missing_classes(name, sets[name].target)] if note]
    outcome = Outcome(
        metrics=metrics,
        headline=headline,
        scores=scores.astype(np.float32),
        per_class=per_class,
        # An accuracy on train says nothing beside a headline of another kind.
        train=scored.on_train if headline == "top1" else float("nan"),
        selected=scored.selected,
        converged=scored.converged,
        notes=tuple(notes),
        probabilities="softmax" if scored.gives_probabilities else None,
        chance=chance,
        means=errors,
        counts=counts,
    )
    return {"": outcome, **outcomes}


def _outcome_on_set(name: str, classifier: ScoredClassifier, train: Features, part: Features, seed: int) -> Outcome:
    """Return the outcome on a further test set, on which only its own classes compete."""
    number = {each: i for i, each in enumerate(train.target.classes)}
    columns = np.array([number[each] for each in part.target.classes], dtype=np.int64)
    scores = classifier.logits(part.x)[:, columns]
    logits = bool(np.isin(columns, classifier.usable).all())
    labels = part.target
    further = {}
    if logits:
        sure, correct = -softmax_novelty(scores), top_k_correct(labels.values, scores, 1)
        units = Units.of(len(labels), part.groups)
        further[measures.AURRA.name] = measures.response_rate_accuracy(sure, correct, units, seed=seed)
    fewer = f"{len(columns):,} of the {len(number):,} classes of train compete." if len(columns) < len(number) else ""
    notes = [fewer, missing_classes(name, labels)]
    return Outcome.of(
        Classes(labels.classes, labels.values),
        scores,
        seed=seed,
        groups=part.groups,
        further=further,
        selected=classifier.selected,
        converged=classifier.converged,
        notes=(*classifier.notes, *filter(None, notes)),
        probabilities="softmax" if logits else None,
    )


def _several_right_metrics(
    name: str, classifier: ScoredClassifier, part: Features
) -> tuple[dict[str, Interval], dict[str, int]]:
    """Return top-1 and top-5 on images with several right classes, and the number of images of each metric.

    Images without one are left out, and classes with the label -1 do not compete. ObjectNet's challenge scores all
    images by all classes.
    """
    scores, labels = classifier.logits(part.x), part.target.values
    competing = np.where(labels[:1] < 0, -np.inf, scores)
    scored: BoolArray = np.asarray((labels > 0).any(axis=1))
    found = _top_metrics((name,), competing[scored], labels[scored], part.groups, scored)
    counts = dict.fromkeys(found, int(scored.sum()))
    if name == OBJECTNET:
        of_all = _top_metrics((name, "challenge"), scores, labels, part.groups, np.ones_like(scored))
        found, counts = found | of_all, counts | dict.fromkeys(of_all, len(scored))
    return found, counts


def _top_metrics(
    of: tuple[str, ...], scores: FloatArray, labels: Int8Array, groups: IntArray | None, scored: BoolArray
) -> dict[str, Interval]:
    """Return the share of images with a right class (label 1) among the first one and five by score.

    Wrong classes are ranked before right ones with their score.
    """
    if not len(scores):
        return {}
    best = np.max(scores, axis=1, where=labels > 0, initial=-np.inf, keepdims=True)
    ahead = ((scores >= best) & (labels <= 0)).sum(axis=1)
    units = Units.of(len(scores), None if groups is None else groups[scored])
    values: dict[Metric, FloatArray] = {
        measures.part(metric, *of): (ahead < k).astype(np.float64) for metric, k in ((TOP1, 1), (TOP5, 5))
    }
    return means(values, units)


def _unknown_metrics(
    classifier: ScoredClassifier, train: Features, test: Features, unknown: Features, settings: Settings, seed: int
) -> tuple[dict[str, Interval], dict[str, float], int]:
    """Return the detection of unknown images by four kinds of novelty, the same by guessing, and their number."""
    competing = unknown.target.values[0] >= 0
    if not competing.all():
        rows = np.flatnonzero(competing[test.target.values])
        test = test.select(rows)
    usable = classifier.usable[competing[classifier.usable]]
    mahalanobis = MahalanobisNovelty(train.x, train.target.values)
    novelty: dict[str, list[FloatArray]] = {name: [] for name in ("msp", "energy", "mahalanobis", "neighbours")}
    for part in (test, unknown):
        logits = classifier.logits(part.x)[:, usable]
        near, _ = nearest(train.x, part.x, settings.neighbours, metric="cosine", max_memory=_MEMORY)
        each = (softmax_novelty(logits), energy_novelty(logits), mahalanobis(part.x), -near[:, -1])
        for found, values in zip(novelty.values(), each, strict=True):
            found.append(values)
    groups: IntArray | None = None
    if test.groups is not None or unknown.groups is not None:
        own, other = (np.arange(len(part)) if part.groups is None else part.groups for part in (test, unknown))
        groups = np.concatenate([own, other + own.max() + 1])  # numbered apart
    units = Units.of(len(test) + len(unknown), groups)
    metrics: dict[str, Interval] = {}
    chance: dict[str, float] = {}
    for name, (of_test, of_unknown) in novelty.items():
        detected = measures.unknown_detection(of_test, of_unknown, units, seed=seed)
        # AUROC, AUPR and FPR95, in the order of the metrics.
        guessed = (0.5, len(unknown) / units.samples, 0.95)
        for (metric, interval), guess in zip(detected.items(), guessed, strict=True):
            metrics[f"{metric}({name})"], chance[f"{metric}({name})"] = interval, guess
    return metrics, chance, units.samples


class _VersionRows:
    """Features of the versions of the test images, one at a time, in the order of the test images."""

    def __init__(self, settings: Settings, test: Features, sets: Mapping[str, Features]) -> None:
        changes = [*corruption_changes(settings).values(), *geometric_changes(settings).values()]
        names = sorted(change.name for change in changes)
        self._ids, self._sets, self._place = test.ids, sets, {name: i for i, name in enumerate(names)}
        if names and sets[VERSIONS].ids != tuple(f"{name}/{own}" for name in names for own in test.ids):
            raise _other_images(VERSIONS)

    def of(self, name: str) -> Matrix:
        """Return the features (N, D) of the version of that name: a change of the test images, or a set of files."""
        if name in self._place:
            start = self._place[name] * len(self._ids)
            return self._sets[VERSIONS].x[start : start + len(self._ids)]
        if self._sets[name].ids != self._ids:
            raise _other_images(name)
        return self._sets[name].x


def _other_images(name: str) -> DataError:
    return DataError(
        f"robustness: the readable images of {name} are not those of test",
        "Repair or remove the images that cannot be read, here and in test; sslbench check-data lists them.",
    )


def _corruption_means(
    rows: _VersionRows, classifier: ScoredClassifier, test: Features, clean: FloatArray, settings: Settings
) -> SampleMeans:
    """Return the errors under corruptions: of each and severity, of each, and of all."""
    named, labels = corruptions(settings), test.target
    wrong = np.empty((len(test), len(named), len(settings.severities)), dtype=np.bool_)
    for i, name in enumerate(named):
        for j, severity in enumerate(settings.severities):
            scores = classifier.logits(rows.of(corruption_name(name, severity)))
            wrong[:, i, j] = ~top_k_correct(labels.values, scores, 1)
    reference, reference_clean = reference_errors(settings, named)
    wrong_clean = ~top_k_correct(labels.values, clean, 1)
    return measures.corruption_means(wrong, wrong_clean, named, settings.severities, reference, reference_clean)


def _cosines(rows: _VersionRows, test: Features, units: Units, settings: Settings, seed: int) -> dict[str, Interval]:
    """Return the cosine similarity of changed and unchanged features, and that of different images."""
    changes = geometric_changes(settings)
    if not changes:
        return {}
    own = unit_length(test.x)
    values = {
        measures.part(measures.COSINE, name): (own * unit_length(rows.of(change.name))).sum(axis=1)
        for name, change in changes.items()
    }
    others = measures.part(measures.COSINE, "other images").name
    return means(values, units) | {others: measures.cosine_of_others(own, units, seed=seed)}
