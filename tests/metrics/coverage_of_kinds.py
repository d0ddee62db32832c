"""Coverage of the intervals of all metrics of `KINDS`: `python tests/metrics/coverage_of_kinds.py [KIND ...]`.

Test sets of units that a reader would generalise to (images, scenes, videos, labels) are drawn again and again from a
simulated model, whose true value is the mean over very many units; docs/intervals.md has the table. Half an
hour in all.
"""

import dataclasses
import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from detection_coverage import drawn as detections_of_images

from sslbench.features.array import Features
from sslbench.metrics import clustering, robustness, selective, spectrum, survival
from sslbench.metrics.dense import anomaly, contours, correspondence, depth, normals, panoptic, segmentation
from sslbench.metrics.dense.video import TRACK_COLUMNS
from sslbench.metrics.detection import coco_ap
from sslbench.metrics.intervals import Units, Values, means
from sslbench.metrics.measure import Measure
from sslbench.metrics.retrieval import COPIES, micro_values
from sslbench.metrics.summary import summarise, summarise_places, with_intervals
from sslbench.protocols import geometry as geometry_protocol
from sslbench.protocols import retrieval, transferability
from sslbench.protocols.protocol import FileClassifier
from sslbench.targets import kinds
from sslbench.targets.classes import Answers, Classes, Queries

Random = np.random.Generator
REPEATS, RESAMPLES = 200, 200
CLASSES = tuple("abcdef")


def logistic(x):
    return 1 / (1 + np.exp(-x))


def sum_up(kind, values, scores, *, groups=None, probabilities=None, resamples=RESAMPLES):
    names = [str(c) for c in range(values.shape[-1] if values.ndim > 1 else 60)][: max(1, scores.shape[-1])]
    if kind in ("map", "parts", "poses"):
        names = [str(c) for c in range(scores.shape[1] // 3)]
    scores = scores.astype(np.float32)
    return summarise(
        kinds()[kind], names, values, scores, seed=0, resamples=resamples, groups=groups, probabilities=probabilities
    )[0]


def single(rng: Random, n: int, resamples: int) -> Values:
    """Images of six classes, logits of a model that is too sure."""
    y = rng.integers(0, 6, n)
    return sum_up(
        "single", y, 2 * rng.normal(size=(n, 6)) + 3 * np.eye(6)[y], probabilities="softmax", resamples=resamples
    )


def multi(rng: Random, n: int, resamples: int) -> Values:
    """Images with six labels, 10 to 50 % positive."""
    y = (rng.random((n, 6)) < np.linspace(0.1, 0.5, 6)).astype(np.int8)
    return sum_up("multi", y, rng.normal(size=(n, 6)) + 2.0 * y - 1, resamples=resamples)


def numbers(rng: Random, n: int, resamples: int) -> Values:
    """Images with two numbers, errors with heavy tails."""
    y = rng.normal(size=(n, 2))
    return sum_up("value", y, 0.8 * y + 0.3 * rng.standard_t(4, size=(n, 2)), resamples=resamples)


def places(rng: Random, n: int, resamples: int) -> Values:
    """Photographs, errors over five powers of ten."""
    true = np.column_stack([rng.uniform(-60, 60, n), rng.uniform(-180, 180, n)])
    off = np.minimum(np.exp(rng.normal(5, 2.5, n)), 2e4) / 111
    return summarise_places(true, true + [[1.0, 0.0]] * off[:, None], seed=0, resamples=resamples)


def areas(rng: Random, n: int) -> npt.NDArray[np.float64]:
    """Pixels of intersection, prediction and label of six classes, the rarest in one image of seven."""
    found, there = np.zeros((n, 3, 6)), np.array([1, 0.9, 0.6, 0.4, 0.25, 0.15])
    here = rng.random((n, 6)) < there
    label = rng.gamma(0.7, 1, (n, 6)) * here
    label = np.round(1e4 * label / label.sum(axis=1, keepdims=True))
    right = np.round(label * np.clip(rng.beta(4, 2, (n, 1)) + rng.normal(0, 0.1, (n, 6)), 0, 1))
    wrong = (label - right).sum(axis=1, keepdims=True)
    taken = rng.gamma(0.5, 1, (n, 6)) * here
    found[:, 0], found[:, 2] = right, label
    found[:, 1] = right + np.round(wrong * taken / np.maximum(taken.sum(axis=1, keepdims=True), 1e-9))
    return found


def maps(rng: Random, n: int, resamples: int) -> Values:
    """Images with label maps."""
    each, units = areas(rng, n), Units.of(n, None)
    found = sum_up("map", np.zeros((n, 0), np.int8), each.reshape(n, -1), resamples=resamples)
    right, predicted, labelled = np.moveaxis(each, 1, 0)
    outline = np.stack([predicted, predicted * logistic(rng.normal(1, 1, (n, 1))), labelled], axis=1) ** 0.5
    outline = np.concatenate([outline, outline[:, 2:] * right[:, None] / np.maximum(labelled, 1)[:, None]], axis=1)
    segments = rng.poisson(2, (n, 6)) * (labelled > 0)
    matched = rng.binomial(segments, logistic(rng.normal(0.5, 1, (n, 1))))
    surplus = rng.poisson(0.3, (n, 6)) * (labelled > 0)
    counts = np.stack([matched * rng.uniform(0.6, 0.9, (n, 1)), matched, surplus, segments - matched], axis=1)
    for measure in (
        contours.boundary_measure(outline, units),
        panoptic.panoptic_measure(counts, units),
        segmentation.matched_measure(each),
    ):
        found |= with_intervals(measure, units, 0, resamples)
    return found


def poses(rng: Random, n: int, resamples: int) -> Values:
    """Clips with 15 joints that are found in more frames of easy clips."""
    frames = np.repeat(rng.integers(20, 40, n)[:, None], 15, axis=1)
    ease = rng.normal(0, 1, (n, 1)) + rng.normal(0, 1, (n, 15))
    near, far = (rng.binomial(frames, logistic(ease + shift)) for shift in (0, 1))
    counts = np.stack([np.minimum(near, far), np.maximum(near, far), frames], axis=1)
    return sum_up("poses", np.zeros((n, 0), np.int8), counts.reshape(n, -1).astype(float), resamples=resamples)


def depths(rng: Random, n: int, resamples: int) -> Values:
    """Images with depth: errors of an image are all large or all small."""
    rows = np.zeros((n, len(depth.COLUMNS)))
    true = np.exp(rng.normal(1, 0.5, (n, 1, 40)))
    found = true * np.exp(
        rng.normal(0, 0.15, (n, 1, 1)) + np.exp(rng.normal(-2, 0.5, (n, 1, 1))) * rng.normal(size=true.shape)
    )
    for row, one, other in zip(rows, found, true, strict=True):
        row[:11] = depth.depth_sums(one, other, other > 0)
    return sum_up("depth", np.zeros((n, 0), np.int8), rows, resamples=resamples)


def directions(rng: Random, n: int, resamples: int) -> Values:
    """Images with surface normals: angles of an image are all large or all small."""
    size = rng.integers(20, 200, n)
    rows = [normals.normals_row(np.minimum(np.exp(rng.normal(2.5, 0.6) + rng.normal(0, 0.8, k)), 180.0)) for k in size]
    return sum_up("normals", np.zeros((n, 0), np.int8), np.array(rows), resamples=resamples)


def discoveries(rng: Random, n: int, resamples: int) -> Values:
    """Images with objects."""
    overlap = rng.beta(2, 1.5, n)
    rows = np.column_stack([overlap >= 0.5, overlap, np.clip(overlap + rng.normal(0, 0.1, n), 0, 1)])
    return sum_up("boxes", np.zeros((n, 0), np.int8), rows, resamples=resamples)


def saliency(rng: Random, n: int, resamples: int) -> Values:
    """Images with a salient region: each has a best threshold of its own."""
    best, most = rng.normal(0.5, 0.15, (n, 1)), rng.beta(6, 2, (n, 1))
    f = most * np.exp(-(((np.arange(255) / 255 - best) / 0.4) ** 2))
    rows = np.column_stack([rng.beta(4, 2, n), rng.beta(9, 1, n), f])
    return sum_up("mask", np.zeros((n, 0), np.int8), rows, resamples=resamples)


def signals(rng: Random, n: int, resamples: int) -> Values:
    """Images with a signal."""
    rows = np.column_stack([np.tanh(rng.normal(1, 0.6, n)), *np.exp(rng.normal(-2, 0.7, (2, n)))])
    return sum_up("signal", np.zeros((n, 0), np.int8), rows, resamples=resamples)


def orientations(rng: Random, n: int, resamples: int) -> Values:
    """Images with orientations."""
    rows = np.column_stack([np.ones(n), *(90 * rng.beta(1.5, 5, (2, n))), *np.sort(rng.beta(2, 2, (2, n)), axis=0)])
    return sum_up("orientation", np.zeros((n, 0), np.int8), rows, resamples=resamples)


def outlines(rng: Random, n: int, resamples: int) -> Values:
    """Images with boundaries: each has a contrast of its own."""
    contrast, length, clutter = rng.normal(0, 0.8, (n, 1)), rng.integers(200, 2000, (n, 1)), rng.gamma(2, 1, (n, 1))
    at = np.log(contours.THRESHOLDS / (1 - contours.THRESHOLDS))
    hit = np.round(length * logistic(0.5 + contrast - at))
    rows = np.stack(
        [hit, np.broadcast_to(length, hit.shape), hit, hit + np.round(length * clutter * logistic(-2.5 - at))], axis=2
    )
    return sum_up("boundaries", np.zeros((n, 0), np.int8), rows.reshape(n, -1), resamples=resamples)


def choices(rng: Random, n: int, resamples: int) -> Values:
    """References with three triplets each."""
    ease, y = np.repeat(rng.normal(1, 1, n), 3), rng.integers(0, 2, 3 * n)
    preference = (2 * y - 1) * (ease + rng.normal(size=3 * n))
    return sum_up("triplets", y, preference[:, None], groups=np.repeat(np.arange(n), 3), resamples=resamples)


def cameras(rng: Random, n: int, resamples: int) -> Values:
    """Scenes of ten pairs of cameras."""
    angle = np.radians(np.minimum(np.exp(np.repeat(rng.normal(2.5, 0.7, n), 10) + rng.normal(0, 0.7, 10 * n)), 180))
    found = np.column_stack([np.cos(angle / 2), np.sin(angle / 2), np.zeros((10 * n, 2)), angle, np.zeros((10 * n, 2))])
    true = np.tile([1.0, 0, 0, 0, 0, 0, 0], (10 * n, 1))
    return sum_up("camera_pairs", true, found, groups=np.repeat(np.arange(n), 10), resamples=resamples)


def points(rng: Random, n: int, resamples: int) -> Values:
    """Images of four classes, each paired with five others of its class; the difficulty is that of both images."""
    of_class, ease = np.arange(n) % 4, rng.normal(0, 0.7, n)
    images = np.array(
        [(i, j) for i in range(n) for j in rng.permutation(np.flatnonzero(of_class == of_class[i]))[:5] if i != j]
    )
    number = rng.integers(3, 12, len(images))
    close = rng.random((len(images), 12)) * np.exp(0.7 * ease[images].sum(axis=1) - 2)[:, None]
    counted = np.arange(12) < number[:, None]
    found = np.stack([(counted & (close <= alpha)).sum(axis=1) for alpha in correspondence.ALPHAS], axis=1)
    swapped = rng.binomial(number - found[:, -1], 0.3)
    pairs = correspondence.PairHits(found, number, of_class[images[:, 0]], swapped)
    return correspondence.pck_with_intervals(pairs, images)


def matches(rng: Random, n: int, resamples: int) -> Values:
    """Scenes of five pairs that share an image."""
    number = rng.integers(20, 200, 5 * n)
    share = logistic(np.repeat(rng.normal(0, 1, n), 5) + rng.normal(0, 0.5, 5 * n))
    pair = np.repeat(np.arange(5 * n), number)
    errors = np.where(rng.random(len(pair)) < share[pair], rng.exponential(3, len(pair)), 100.0)
    measure = correspondence.match_measure(correspondence.MatchErrors(errors, pair))
    return with_intervals(measure, Units.of(5 * n, np.repeat(np.arange(n), 5)), 0, resamples)


def landmarks(rng: Random, n: int, resamples: int) -> Values:
    """Landmarks with five queries and five images each; the truth is that of as many landmarks."""
    test = labelled(rng, n, 10)
    ids = np.array(test.ids).reshape(n, 10)
    answers = {query: Answers(tuple(row[5:]), ()) for row in ids.tolist() for query in row[:5]}
    test = dataclasses.replace(test, target=test.target.changed(queries=Queries({"": answers}, frozenset(answers))))
    return retrieval.run(test, test, retrieval.Settings(), seed=0).metrics


def tracks(rng: Random, n: int, resamples: int) -> Values:
    """Videos of one to four objects."""
    number, rows = rng.integers(1, 5, n), np.zeros((n, len(TRACK_COLUMNS)))
    for row, k in zip(rows, number, strict=True):
        each = np.clip(rng.beta(5, 2) + rng.normal(0, 0.1, (k, 7)), 0, 1)
        row[0], row[1:] = k, each.sum(axis=0)
    return sum_up("tracks", np.zeros((n, 0), np.int8), rows, resamples=resamples)


def corruptions(rng: Random, n: int, resamples: int) -> Values:
    """Images under three corruptions of five severities."""
    ease = rng.normal(1, 1.5, (n, 1, 1))
    wrong = rng.random((n, 3, 5)) > logistic(ease - 0.4 * np.arange(5))
    clean = rng.random(n) > logistic(ease[:, 0, 0])
    reference = np.full((3, 5), 0.6)
    found = robustness.corruption_means(wrong, clean, list("abc"), range(1, 6), reference, 0.4)
    named = [robustness.CORRUPTION_ERROR, robustness.ERROR_INCREASE, robustness.MCE, robustness.RELATIVE_MCE]
    return means({metric: found.values(metric.name) for metric in named}, Units.of(n, None))


def confidence(rng: Random, n: int, resamples: int) -> Values:
    """Images of known and as many of unknown classes, and the confidence of the known."""
    units, sure = Units.of(n, None), rng.normal(size=n)
    right = rng.random(n) < logistic(0.8 + sure)
    half = n // 2
    found = robustness.unknown_detection(
        rng.normal(size=n - half), rng.normal(1.2, 1, half), units, seed=0, resamples=resamples
    )
    found["aurra"] = robustness.response_rate_accuracy(sure, right, units, seed=0, resamples=resamples)
    shifted = rng.random(n) < 0.6
    usual = rng.random(2 * n) < 0.8
    found["effective_robustness"] = robustness.effective_robustness_with_interval(
        shifted, units, usual, Units.of(2 * n, None), (1.0, -1.0)
    )
    unit = spectrum.unit_length(rng.normal(size=(n, 8)) + 0.5)
    found["cosine(others)"] = robustness.cosine_of_others(unit, units, seed=0, resamples=resamples)
    return found


def perturbed(rng: Random, n: int, resamples: int) -> Values:
    """Videos of perturbed images."""
    flips, moved = rng.beta(0.5, 3, n), rng.gamma(1.5, 1.5, n)
    return means(
        {robustness.FLIP_PROBABILITY: flips, robustness.TOP5_DISTANCE: np.minimum(moved, 15)}, Units.of(n, None)
    )


def labelled(rng: Random, n: int, each: int = 5) -> Features:
    """Images of n labels, some of which are spread more widely than others."""
    y = np.repeat(np.arange(n), each)
    x = rng.normal(size=(n, 8))[y] + np.exp(rng.normal(-0.6, 0.6, n))[y, None] * rng.normal(size=(len(y), 8))
    return Features(x.astype(np.float32), Classes(tuple(map(str, range(n))), y), tuple(map(str, range(len(y)))))


def identities(rng: Random, n: int, resamples: int) -> Values:
    """Identities under two cameras, three images each; the first image of each camera is a query."""
    test = labelled(rng, n, 6)
    ids = np.array(test.ids).reshape(n, 2, 3)
    answers = {
        str(own[camera, 0]): Answers(tuple(own[1 - camera, 1:].tolist()), tuple(own[camera, 1:].tolist()))
        for own in ids
        for camera in (0, 1)
    }
    queries = Queries({"": answers}, frozenset(answers), identities=True)
    test = dataclasses.replace(test, target=test.target.changed(queries=queries))
    return retrieval.run(test, test, retrieval.Settings(), seed=0).metrics


def captions(rng: Random, n: int, resamples: int) -> Values:
    """Images with five texts each, of which some are vague; the truth is that of as many images."""
    x = rng.normal(size=(n, 6))
    owner = np.repeat(np.arange(n), 5)
    texts = x[owner] + np.exp(rng.normal(0, 0.5, n))[owner, None] * rng.normal(size=(5 * n, 6))
    scores = spectrum.unit_length(x) @ spectrum.unit_length(texts).T
    best = np.where(owner == np.arange(n)[:, None], scores, -2).max(axis=1)
    of_image, of_text = (scores > best[:, None]).sum(axis=1), (scores > scores[owner, np.arange(5 * n)]).sum(axis=0)
    found = [of_image, *((of_text < k).reshape(n, 5).sum(axis=1) for k in (1, 5, 10))]
    return sum_up("texts", np.full(n, 5), np.column_stack(found), resamples=resamples)


def rankings(rng: Random, n: int, resamples: int) -> Values:
    """Labels of five images that look for each other; the truth is that of as many labels."""
    test = labelled(rng, n)
    return retrieval.run(test, test, retrieval.Settings(), seed=0).metrics


def copies(rng: Random, n: int, resamples: int) -> Values:
    """Queries, half of them with one copy among five predictions."""
    has = rng.random(n) < 0.5
    scores = rng.normal(size=(n, 5))
    scores[:, 0] += has * rng.normal(3, 1.5, n)
    correct = np.zeros((n, 5), bool)
    correct[:, 0] = has
    predicted = scores.ravel(), correct.ravel(), np.repeat(np.arange(n), 5), has.astype(float)
    measure = Measure(COPIES, lambda weights: micro_values(weights, *predicted))
    return with_intervals(measure, Units.of(n, None), 0, resamples)


def anomalies(rng: Random, n: int, resamples: int) -> Values:
    """Images of two categories, half of them anomalous, with defects that differ in how well they are seen."""
    values = np.column_stack([np.arange(n) % 2, np.arange(n) // 2 % 2])
    seen, parts = rng.normal(1.2, 1, n), [np.flatnonzero(values[:, 0] == category) for category in (0, 1)]
    units, scores = Units.of(n, None), (values[:, 1] * seen + rng.normal(size=n))[:, None]
    curves = []
    for rows in parts:
        masks = np.zeros((len(rows), 12, 12), bool)
        for mask, tall, wide in zip(masks, rng.integers(2, 6, n), rng.integers(2, 6, n), strict=False):
            mask[:tall, :wide] = True
        masks &= values[rows, 1, None, None] > 0
        maps = rng.normal(size=masks.shape) + 0.5 * rng.normal(size=(len(rows), 1, 1)) + masks * seen[rows, None, None]
        maps = maps.astype(np.float32)
        shares = [anomaly.region_shares(mask) for mask in masks]
        halves = [[(mask, max(1, int(mask.sum()) // 2))] if mask.any() else [] for mask in masks]
        saturated = [anomaly.saturated_shares(*each)[mask] for *each, mask in zip(maps, halves, masks, strict=True)]
        own = anomaly.PixelCurves([each[mask] for each, mask in zip(maps, masks, strict=True)], shares, saturated)
        for i, (each, mask) in enumerate(zip(maps, masks, strict=True)):
            own.add(i, each[~mask])
        curves.append(own)
    measures = [*anomaly.image_measures(values, scores, units), anomaly.pixel_measure(curves, parts, units)]
    return {key: each for one in measures for key, each in with_intervals(one, units, 0, resamples).items()}


def survivals(rng: Random, n: int, resamples: int) -> Values:
    """Patients whose risk is told in part, a third of them censored; a train part of 300 tells of the censoring."""
    risk = rng.normal(size=n)
    train, times = (
        np.column_stack([np.minimum(event, end), event <= end]).astype(np.float64)
        for event, end in (
            (rng.exponential(size=m) * np.exp(-r), rng.exponential(2, m)) for m, r in ((300, 0), (n, risk))
        )
    )
    told = (risk + rng.normal(size=n))[:, None]
    found = sum_up("time", times, told, resamples=resamples)
    weighed = survival.Concordance(times, told, survival.censoring_weights(train, times, 2.0)).statistic
    measure = Measure((survival.UNO_C_INDEX,), weighed)
    return found | with_intervals(measure, Units.of(n, None), 0, resamples)


def transfers(rng: Random, n: int, resamples: int) -> Values:
    """Images of six classes with 16 features, and a classifier of eight source classes."""
    y = rng.integers(0, 6, n)
    x = np.eye(6, 16)[y] * 1.5 + rng.normal(size=(n, 16)) * np.arange(1, 17) ** -0.3
    weights = np.random.default_rng(1).normal(size=(16, 8))
    part = Features(x.astype(np.float32), Classes(CLASSES, y), tuple(map(str, range(n))))
    classifier = FileClassifier("eight sources", "", tuple("abcdefgh"), "", lambda rows: rows @ weights, relabels=False)
    settings = transferability.Settings(classifier="file")
    return transferability.run(part, part, settings, seed=0, classifier=classifier).metrics


def dimensions(rng: Random, n: int, resamples: int) -> Values:
    """The same images as of geometry; the truth is the mean over test sets of as many, since dimensions grow with n."""
    found = geometry(rng, n, resamples)
    return {name: found[name] for name in ("two_nn", "mle_dimension")}


def choosy(rng: Random, n: int, resamples: int) -> Values:
    """Images, and how sure a classifier is of its answer, in tenths."""
    sure = rng.normal(size=n).round(1)
    right = rng.random(n) < logistic(1 + 1.5 * sure)
    measure = Measure(selective.SELECTIVE, selective.selective_statistic(sure, right))
    return with_intervals(measure, Units.of(n, None), 0, resamples)


def clusters(rng: Random, n: int, resamples: int) -> Values:
    """Images of six classes in eight clusters."""
    y = rng.integers(0, 6, n)
    found = np.where(rng.random(n) < 0.6, y, rng.integers(0, 8, n))
    metrics = clustering.agreement_with_intervals(y, found, {c: c for c in range(6)}, seed=0, resamples=resamples)
    x = 2 * np.eye(6)[y] + rng.normal(size=(n, 6))
    metrics["silhouette"] = clustering.silhouette(x, y, most=5000, seed=0)
    return metrics


def geometry(rng: Random, n: int, resamples: int) -> Values:
    """Images, features whose eigenvalues fall as 1 / k."""
    y, scale = rng.integers(0, 6, n), np.arange(1, 33) ** -0.5
    x = scale * rng.normal(size=(n, 32)) * np.exp(0.3 * rng.normal(size=(n, 1)))
    x[:, :6] += 0.5 * np.eye(6)[y]
    labels = Classes(CLASSES, y)
    part = Features(x.astype(np.float32), labels, tuple(map(str, range(n))))
    return geometry_protocol.run(part, part, geometry_protocol.Settings(samples=n), seed=0).metrics


def detections(rng: Random, n: int, resamples: int) -> Values:
    """Images with objects of five equally frequent classes."""
    return coco_ap(*detections_of_images(rng, n, (0.2,) * 5), seed=0, resamples=resamples).metrics


KINDS: dict[str, tuple[Callable[[Random, int, int], Values], tuple[int, ...], int]] = {
    # name: draw, units of a test set, units of the truth (0: the mean over the test sets)
    "single": (single, (30, 100, 1000), 100_000),
    "multi": (multi, (30, 100, 1000), 100_000),
    "numbers": (numbers, (10, 30, 100, 1000), 300_000),
    "places": (places, (10, 30, 100, 1000), 300_000),
    "maps": (maps, (10, 30, 100), 100_000),
    "poses": (poses, (10, 30, 100), 30_000),
    "depths": (depths, (10, 30, 100), 30_000),
    "directions": (directions, (10, 30, 100), 10_000),
    "discoveries": (discoveries, (10, 30, 100), 300_000),
    "saliency": (saliency, (10, 30, 100), 20_000),
    "signals": (signals, (10, 30, 100), 300_000),
    "orientations": (orientations, (10, 30, 100), 300_000),
    "outlines": (outlines, (10, 30, 100), 20_000),
    "choices": (choices, (10, 30, 100), 100_000),
    "cameras": (cameras, (5, 10, 30), 30_000),
    "points": (points, (20, 60), 2_000),
    "matches": (matches, (10, 30), 3_000),
    "tracks": (tracks, (5, 10, 30), 30_000),
    "corruptions": (corruptions, (30, 100), 100_000),
    "confidence": (confidence, (30, 100, 1000), 100_000),
    "perturbed": (perturbed, (10, 30, 100), 300_000),
    "rankings": (rankings, (10, 20, 50), 0),
    "landmarks": (landmarks, (10, 20, 50), 0),
    "identities": (identities, (10, 20, 50), 0),
    "captions": (captions, (10, 30, 100), 0),
    "copies": (copies, (30, 100, 300), 20_000),
    "anomalies": (anomalies, (20, 60, 200), 10_000),
    "survivals": (survivals, (30, 100, 300), 5_000),
    "transfers": (transfers, (100, 300, 1000), 50_000),
    "selective": (choosy, (30, 100, 1000), 100_000),
    "clusters": (clusters, (30, 100, 300), 30_000),
    "geometry": (geometry, (50, 200, 1000), 10_000),
    "dimensions": (dimensions, (50, 200, 1000), 0),
    "detections": (detections, (40, 100), 3_000),
}


def measured(
    name: str, n: int, repeats: int, *, resamples: int = RESAMPLES, most: int = 1_000_000
) -> dict[str, tuple[float, float, float]]:
    """Metric -> true value (of at most `most` units), mean value, and share of the intervals that hold the true one."""
    draw, _, many = KINDS[name]
    many, rng = min(many, most), np.random.default_rng(n)
    found = [draw(rng, n, resamples) for _ in range(repeats)]
    truth = draw(np.random.default_rng(12345), many, 2) if many else {}
    shares = {}
    for metric in found[0]:
        values = np.array([each[metric] for each in found if metric in each and not np.isnan(each[metric][1])])
        if not len(values):
            continue
        true = truth[metric][0] if many else float(values[:, 0].mean())
        held = (values[:, 1] <= true + 1e-12) & (true <= values[:, 2] + 1e-12)
        shares[metric] = true, float(values[:, 0].mean()), float(held.mean())
    return shares


def main() -> None:
    """Print the tables in Markdown."""
    for name in sys.argv[1:] or list(KINDS):
        draw, sizes, _ = KINDS[name]
        each = {n: measured(name, n, REPEATS) for n in sizes}
        metrics = list(each[sizes[-1]])
        sys.stdout.write(f"\n**{name}**: {(draw.__doc__ or '').strip()}\n\n| n | {' | '.join(metrics)} |\n")
        sys.stdout.write(f"|---:|{'---:|' * len(metrics)}\n")
        for n in sizes:
            shares = [f"{100 * each[n][metric][2]:.0f}" if metric in each[n] else "" for metric in metrics]
            sys.stdout.write(f"| {n:,} | {' | '.join(shares)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
