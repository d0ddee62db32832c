"""Every metric keeps what its record says: bounds, direction and chance level.

Each input that metrics need has a function here from the quality of predictions (0: random, 1: perfect) to values; a
metric that none of them computes is an error. Random predictions are drawn 60 times; a chance level is rejected by
Student's t test at 1e-6, so that a correct metric fails in one of a million runs (the seeds are fixed).
"""

import dataclasses
import functools
import importlib
import math
import pkgutil

import numpy as np
import pytest
from helpers.davis import semi_supervised
from scipy import stats

import sslbench.metrics
from sslbench.metrics import catalog, ranking, retrieval, robustness, selective, spectrum
from sslbench.metrics.catalog import every_metric, find
from sslbench.metrics.clustering import agreement_with_intervals, silhouette
from sslbench.metrics.dense import (
    anomaly,
    contours,
    correspondence,
    depth,
    discovery,
    normals,
    panoptic,
    poses,
    segmentation,
    video,
)
from sslbench.metrics.detection import Detections, Truth, coco_ap, keypoint_ap, lvis_ap, masks, voc_ap
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.metrics.detection.matches import Federated
from sslbench.metrics.intervals import Units, means
from sslbench.metrics.metric import ClassFrequencies
from sslbench.metrics.retrieval import GroundTruth, ranks_of_positives
from sslbench.metrics.summary import summarise, summarise_places, without_intervals
from sslbench.metrics.survival import Concordance, censoring_weights
from sslbench.metrics.transferability import SCORES, LabelledFeatures, of_source_classes
from sslbench.targets import kinds
from sslbench.targets.times import Times
from sslbench_visbench import metrics as visbench

METRICS = every_metric()

N, CLASSES, DRAWS, FALSE_ALARM = 240, 6, 60, 1e-6
NAMES = tuple("abcdef")
# The chance level of average precision is that of very many samples; on 240 it is higher.
NEARLY = {"mAP": 0.09, "mAP_11pt": 0.13, "mAP_noninterpolated": 0.03}


def draw(kind, seed):
    """Labels of a kind, as `summarise` takes them, and perfect scores."""
    generator = np.random.default_rng(seed)
    if kind == "single":
        labels = generator.permutation(np.arange(N) % CLASSES)
        return labels, np.eye(CLASSES)[labels]
    if kind == "multi":
        labels = (generator.random((N, CLASSES)) < 0.3).astype(np.int8)
        return labels, np.where(labels == 1, 1.0, -1.0)
    labels = generator.normal(size=(N, 1))
    return labels, labels


def of_scores(kind, quality, seed):
    labels, perfect = draw(kind, seed)
    noise = np.random.default_rng(seed + 1).normal(size=perfect.shape)
    scores = 20 * quality**2 * perfect + (1 - quality) * noise if kind != "value" else perfect + (1 - quality) * noise
    if kind == "value" and quality == 0:
        scores = noise
    how = "softmax" if kind == "single" else None
    names = NAMES[: perfect.shape[1]]
    found, _, _ = summarise(kinds()[kind], names, labels, scores, seed=0, resamples=2, probabilities=how)
    return {name: value for name, (value, _, _) in found.items()}


def values_of_single(quality, seed):
    return of_scores("single", quality, seed)


def values_of_multi(quality, seed):
    return of_scores("multi", quality, seed)


def values_of_value(quality, seed):
    return of_scores("value", quality, seed)


def draw_times(quality, seed):
    """Times, half of them of events, and risks in their reverse order for a share `quality`."""
    generator = np.random.default_rng(seed)
    times = np.column_stack([generator.random(N), generator.integers(0, 2, N)])
    risks = np.where(generator.random(N) < quality, -times[:, 0], -generator.random(N))
    return times, risks


def values_of_time(quality, seed):
    times, risks = draw_times(quality, seed)
    return without_intervals(Times, times, risks[:, None])


def values_of_times_of_train(quality, seed):
    times, risks = draw_times(quality, seed)
    weights = censoring_weights(times, times)
    return {"uno_c_index": float(Concordance(times, risks, weights).statistic(np.ones((1, N)))[0, 0])}


def values_of_places(quality, seed):
    """Places of which a share `quality` is right, the others anywhere on the sphere."""
    generator = np.random.default_rng(seed)
    true, other = (
        np.column_stack([np.degrees(np.arcsin(generator.uniform(-1, 1, N))), generator.uniform(-180, 180, N)])
        for _ in range(2)
    )
    right = np.arange(N) < N * quality
    found = summarise_places(true, np.where(right[:, None], true, other), seed=0, resamples=2)
    return {name: value for name, (value, _, _) in found.items()}


def values_of_clusters(quality, seed):
    generator = np.random.default_rng(seed)
    classes = generator.permutation(np.arange(N) % CLASSES)
    clusters = np.where(generator.random(N) < quality, classes, generator.integers(0, CLASSES, N))
    found = agreement_with_intervals(classes, clusters, {i: i for i in range(CLASSES)}, seed=0, resamples=2)
    x = np.eye(CLASSES)[classes] + 0.01 * generator.normal(size=(N, CLASSES))
    found["silhouette"] = silhouette(x, clusters, most=N, seed=0)
    return {name: value for name, (value, _, _) in found.items()}


def values_of_features(quality, seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(N, 8)) * (1 - quality + 1e-3) + 1
    x[:, 0] *= 3
    centred, unit = spectrum.spectrum(x, centred=True), spectrum.unit_length(x)
    found = {
        "rankme": spectrum.rankme(spectrum.spectrum(x, centred=False)),
        "effective_rank": spectrum.effective_rank(centred),
        "alpha_req": spectrum.alpha_req(centred, (1, 8)),
        "uniformity": spectrum.uniformity(unit),
        "alignment": spectrum.alignment(unit, np.arange(N) % CLASSES),
        "feature_std": spectrum.feature_std(unit),
        "lidar": spectrum.lidar(x, np.arange(N) % 60),
    }
    distances = np.sort(np.linalg.norm(x[:, None] - x, axis=2), axis=1)[:, 1:21]
    found |= {"two_nn": spectrum.two_nn(distances), "mle_dimension": spectrum.mle_dimension(distances)}
    return {name: value for name, (value, _, _) in found.items()}


def values_of_objects(quality, seed):
    """One object of each size per image; detections are the objects, or boxes elsewhere."""
    generator = np.random.default_rng(seed)
    images = np.repeat(np.arange(10), 3)
    sides = np.tile([20.0, 60.0, 100.0], 10)
    corners = generator.integers(0, 20, (30, 2)).astype(float)
    boxes = np.concatenate([corners, corners + sides[:, None]], axis=1)
    zeros, no = np.zeros(30, np.int64), np.zeros(30, np.bool_)

    def masks_of(rows):
        return tuple(masks.to_rle([[a, b, c, b, c, d, a, d]], 256, 256) for a, b, c, d in rows.tolist())

    found = np.where((np.arange(30) % 10 < 10 * quality)[:, None], boxes, boxes + 130)
    truth = Truth(10, ("thing",), images, boxes, zeros, no, no, sides**2, masks_of(boxes))
    detections = Detections(images, found, generator.random(30), zeros, masks_of(found))
    metrics = dict(coco_ap(truth, detections, resamples=0).metrics)
    of_masks = coco_ap(truth, detections, kind="masks", resamples=0).metrics
    of_boundaries = coco_ap(truth, detections, kind="boundaries", resamples=0).metrics
    no_pairs = np.zeros((0, 2), np.int64)
    for frequency in ("r", "c", "f"):
        looked_for = Federated(no_pairs, no_pairs, (frequency,))
        federated = dataclasses.replace(truth, federated=looked_for)
        metrics |= {n: v for n, v in lvis_ap(federated, detections, resamples=0).metrics.items() if not np.isnan(v[0])}
        with_masks = lvis_ap(federated, detections, kind="masks", resamples=0).metrics
        of_masks |= {n: v for n, v in with_masks.items() if not np.isnan(v[0])}
        with_boundaries = lvis_ap(federated, detections, kind="boundaries", resamples=0).metrics
        of_boundaries |= {n: v for n, v in with_boundaries.items() if not np.isnan(v[0])}
    voc = voc_ap(truth, detections, "area", resamples=0).metrics
    assert set(voc) <= set(metrics)
    metrics |= {f"mask_{name}": value for name, value in of_masks.items()}
    metrics |= {f"boundary_{name}": value for name, value in of_boundaries.items() if name.startswith("AP")}
    for skeleton in (Skeleton(("a", "b"), sigmas=(0.05, 0.1)), Skeleton(("a", "b"), sigmas=(0.05, 0.05))):
        there, near = (np.dstack([np.stack([b[:, :2], b[:, 2:]], axis=1), np.ones((30, 2))]) for b in (boxes, found))
        of_points = dataclasses.replace(truth, keypoints=there, skeleton=skeleton)
        values = keypoint_ap(of_points, dataclasses.replace(detections, keypoints=near), resamples=0).metrics
        metrics |= {f"{skeleton.prefix}{name}": value for name, value in values.items()}
    return {name: value for name, (value, _, _) in metrics.items()}


def values_of_rankings(quality, seed):
    """Half of the queries have one positive, the others twelve; quality is the share of queries with a clear answer."""
    generator = np.random.default_rng(seed)
    found = []
    for query in range(40):
        positives = np.sort(generator.choice(N, 1 if query % 2 else 12, replace=False))
        scores = generator.random(N)
        scores[positives] += generator.random() < quality
        ranks = ranks_of_positives(scores, GroundTruth(positives))
        found.append(
            [*retrieval.ranking_values(ranks), *retrieval.landmark_values(ranks), retrieval.identity_values(ranks)[-1]]
        )
    metrics = (*retrieval.RANKING, *retrieval.LANDMARK, retrieval.MINP)
    values = dict(zip((metric.name for metric in metrics), np.mean(found, axis=0).tolist(), strict=True))
    correct = np.arange(40) < 40 * quality
    values |= {retrieval.COMPRESSION_LOSS.name: 1 - quality}
    copies = (np.ones((1, 40)), 1.0 - np.arange(40) / 40, correct, np.arange(40), np.ones(40))
    micro = retrieval.micro_values(*copies)[0].tolist()
    return values | dict(zip((metric.name for metric in retrieval.COPIES), micro, strict=True))


CORRUPTIONS = (robustness.CORRUPTION_ERROR, robustness.ERROR_INCREASE, robustness.MCE, robustness.RELATIVE_MCE)


def values_of_versions(quality, seed):
    """Images that are wrong under a corruption with a probability that falls with quality."""
    generator = np.random.default_rng(seed)
    wrong, clean = generator.random((40, 3, 5)) > quality, generator.random(40) > quality
    errors = robustness.corruption_means(wrong, clean, "abc", range(1, 6), np.full((3, 5), 0.8), 0.4)
    found = {metric: errors.values(metric.name) for metric in CORRUPTIONS}
    found[robustness.COSINE] = generator.uniform(-1, 1, 40) * (1 - quality) + quality
    accuracy = 0.5 + (generator.uniform(-0.4, 0.4, 40) * (1 - quality) + 0.5 * quality)
    found[robustness.EFFECTIVE_ROBUSTNESS] = accuracy - 0.5
    values = means(found, Units.of(40, None))
    return {name: value for name, (value, _, _) in values.items()}


def values_of_videos(quality, seed):
    """Frames whose logits move by noise, the less the higher quality is."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(20, 1, 8)) + (1 - quality) * generator.normal(size=(20, 6, 8))
    flips = robustness.flip_probability(logits.argmax(2), noise=False)
    top5, _ = robustness.ranking_distances(logits, noise=False)
    return {"flip_probability": flips, "flip_rate": flips / 0.5, "top5_distance": top5}


def values_of_transfer(quality, seed):
    """Features and source classes from which the classes follow, but for noise."""
    generator = np.random.default_rng(seed)
    y = np.arange(N) % CLASSES
    x = 3 * quality**2 * np.eye(CLASSES, 8)[y] + (1.01 - quality) * generator.normal(size=(N, 8))
    found = {metric.name: score(LabelledFeatures.of(x, y)) for metric, score in SCORES}
    found |= of_source_classes(lambda rows: 20 * rows[:, :CLASSES], x, y)
    return {name: value for name, (value, _, _) in found.items()}


def values_of_confidence(quality, seed):
    """Confidence that tells right from wrong the better, the higher quality is; perfect ones are all right."""
    generator = np.random.default_rng(seed)
    correct = generator.random(100) < quality
    confidence, alike = correct * quality + generator.random(100), np.ones((1, 100))
    aurra = robustness.response_rate_statistic(confidence, correct)(alike)[0]
    return named(selective.SELECTIVE, selective.selective_statistic(confidence, correct)(alike)[0]) | {
        "aurra": aurra[0]
    }


def values_of_sets(quality, seed):
    """Sets by probabilities that are the surer of the right class, the higher quality is."""
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, CLASSES, N)
    logits = 20 * quality * np.eye(CLASSES)[classes] + generator.normal(size=(N, CLASSES))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rule = selective.ConformalSets("lac", 0.1)
    has, size = rule.sets(rule.threshold(p[::2], classes[::2]), p[1::2], classes[1::2])
    return named(selective.SETS, np.array([has.mean(), size.mean(), (size == 0).mean()]))


def values_of_novelty(quality, seed):
    generator = np.random.default_rng(seed)
    known, unknown = generator.normal(size=100), generator.normal(size=60)
    names = (metric.name for metric in robustness.UNKNOWN)
    return dict(
        zip(names, robustness.detection_statistic(known, unknown + 20 * quality**2)(np.ones((1, 160)))[0], strict=True)
    )


def blocks(quality, seed):
    """Label maps of 10 images, 4 classes in blocks, and predictions that are right for a share of the blocks."""
    generator = np.random.default_rng(seed)
    label, other = generator.integers(0, 4, (2, 10, 6, 6))
    prediction = np.where(generator.random(label.shape) < quality, label, other)
    return zip(*(np.kron(maps, np.ones((1, 8, 8), int)) for maps in (prediction, label)), strict=True)


def named(metrics, values):
    return dict(zip((metric.name for metric in metrics), values.tolist(), strict=True))


def values_of_label_maps(quality, seed):
    areas = sum(segmentation.class_areas(p, t, 4, ignore=()) for p, t in blocks(quality, seed))
    return named(segmentation.SEGMENTATION, segmentation.segmentation_values(areas))


def values_of_boundaries(quality, seed):
    counts = [contours.boundary_counts(p, t, 4, ignore=(), tolerance=1) for p, t in blocks(quality, seed)]
    measure = contours.boundary_measure(np.stack(counts), Units.of(10, None))
    return named(measure.metrics, measure.statistic(np.ones((1, 10)))[0])


def values_of_segments(quality, seed):
    things = np.arange(4) < 2
    pairs = [[panoptic.segments_of(x, None, things) for x in pair] for pair in blocks(quality, seed)]
    counts = np.stack([panoptic.panoptic_counts(*pair, 4) for pair in pairs])
    measure = panoptic.panoptic_measure(counts, Units.of(10, None))
    return named(measure.metrics, measure.statistic(np.ones((1, 10)))[0])


def values_of_depth_maps(quality, seed):
    generator = np.random.default_rng(seed)
    target = generator.uniform(1, 9, (10, 12, 12))
    prediction = target * np.exp(0.6 * (1 - quality) * generator.normal(size=target.shape))
    sums = [depth.depth_sums(p, t, t > 0) for p, t in zip(prediction, target, strict=True)]
    measure = depth.depth_measure(np.stack(sums))
    return named(measure.metrics, measure.statistic(np.ones((1, 10)))[0])


def values_of_normals(quality, seed):
    generator = np.random.default_rng(seed)
    target, noise = generator.normal(size=(2, 10, 3, 12, 12))
    everywhere = np.ones((12, 12), bool)
    angles = [
        normals.angular_errors(quality * t + (1 - quality) * n, t, everywhere)
        for t, n in zip(target, noise, strict=True)
    ]
    sums, histograms = (np.stack([of(each) for each in angles]) for of in (normals.angle_sums, normals.angle_histogram))
    measure = normals.normal_measure(sums, histograms, "pixels")
    return named(measure.metrics, measure.statistic(np.ones((1, 10)))[0])


def values_of_matched_maps(quality, seed):
    """Clusters that are the classes under other names, for a share of the pixels that is the quality."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, CLASSES, 4000)
    cluster = np.where(generator.random(4000) < quality, (label + 1) % CLASSES, generator.integers(0, CLASSES, 4000))
    table = np.bincount(label * CLASSES + cluster, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    areas = segmentation.assigned_areas(table, segmentation.one_to_one(table, "pixels"))
    measure = segmentation.matched_measure(areas[None])
    return named(measure.metrics, measure.statistic(np.ones((1, 1)))[0])


def values_of_keypoints(quality, seed):
    generator = np.random.default_rng(seed)
    found, swapped = [], []
    for _ in range(20):
        target = generator.random((8, 2)) * 100
        predicted = np.where(generator.random((8, 1)) < quality, target, generator.random((8, 2)) * 100)
        found.append(correspondence.hits(predicted, target, 100.0).sum(axis=0))
        missed = np.zeros(8, np.int64), np.ones(8, np.bool_)
        swapped.append(correspondence.swaps(predicted, target, *missed, 10.0).sum())
    pairs = correspondence.PairHits(np.array(found), np.full(20, 8), np.arange(20) % 3, np.array(swapped))
    values = {}
    for measure in correspondence.pck_measures(pairs, Units.of(20, None)):
        values |= named(measure.metrics, measure.statistic(np.ones((1, 20)))[0])
    return values


def values_of_matches(quality, seed):
    generator = np.random.default_rng(seed)
    far = generator.random(200) * 50
    errors = correspondence.MatchErrors(np.where(generator.random(200) < quality, 1e-4, far), np.arange(200) % 5)
    measure = correspondence.match_measure(errors)
    return named(measure.metrics, measure.statistic(np.ones((1, 5)))[0])


def values_of_tracks(quality, seed):
    """A square that the tracker loses over the frames, the sooner, the lower quality is."""
    truth = np.zeros((10, 40, 40), np.uint8)
    truth[:, 10:30, 10:30] = 1
    found = np.stack([np.roll(frame, round((1 - quality) * 3 * t), axis=1) for t, frame in enumerate(truth)])
    scores = semi_supervised(truth, found, boundary=1)
    return named(video.TRACKING, video.object_values(scores)[0])


def values_of_poses(quality, seed):
    generator = np.random.default_rng(seed)
    true = generator.random((20, 6, 15, 2)) * 100
    predicted = np.where(generator.random((20, 6, 15, 1)) < quality, true, generator.random(true.shape) * 100)
    counts = np.stack([poses.joint_counts(*both, np.ones((6, 15), bool)) for both in zip(predicted, true, strict=True)])
    measure = poses.pose_measure(counts, Units.of(20, None))
    return named(measure.metrics, measure.statistic(np.ones((1, 20)))[0])


def values_of_discoveries(quality, seed):
    generator = np.random.default_rng(seed)
    mask = np.zeros((1, 30, 30), np.bool_)
    mask[0, 5:15, 5:15] = True
    right = generator.random(40) < quality
    located = [discovery.is_located([5, 5, 15, 15] if r else [12, 12, 22, 22], [[5, 5, 15, 15]]) for r in right]
    ious = [discovery.mask_iou(mask[0] if r else np.roll(mask[0], 8, axis=1), mask) for r in right]
    measures = discovery.discovery_measures(np.column_stack([located, ious, ious]))
    found = [named(measure.metrics, measure.statistic(np.ones((1, 40)))[0]) for measure in measures]
    return {name: value for each in found for name, value in each.items()}


def values_of_saliency(quality, seed):
    generator = np.random.default_rng(seed)
    truth = np.zeros((20, 20), np.bool_)
    truth[5:12, 5:12] = True
    maps = [quality * truth + (1 - quality) * generator.random(truth.shape) for _ in range(10)]
    found = [discovery.saliency_values(each, truth) for each in maps]
    measures = discovery.saliency_measures(np.stack([each.row for each in found]))
    values = [named(measure.metrics, measure.statistic(np.ones((1, 10)))[0]) for measure in measures]
    return {name: value for each in values for name, value in each.items()}


def values_of_anomalies(quality, seed):
    generator = np.random.default_rng(seed)
    truth = np.zeros((12, 20, 20), np.bool_)
    truth[:6, 5:12, 5:12] = True
    scores = quality * truth + (1 - quality) * generator.random(truth.shape)
    curves = anomaly.PixelCurves(
        [each[own] for each, own in zip(scores, truth, strict=True)],
        [anomaly.region_shares(own) for own in truth],
        [anomaly.saturated_shares(each, [(own, 20)])[own] for each, own in zip(scores, truth, strict=True)],
    )
    for index, (each, own) in enumerate(zip(scores, truth, strict=True)):
        curves.add(index, each[~own])
    values = np.column_stack([np.zeros(12, int), truth.any(axis=(1, 2))])
    images = quality * values[:, 1:] + (1 - quality) * generator.random((12, 1))
    (measure,) = anomaly.image_measures(values, images, Units.of(12, None))
    return named(measure.metrics, measure.statistic(np.ones((1, 12)))[0]) | anomaly.pixel_metrics([curves.values()])


def values_of_signals(quality, seed):
    generator = np.random.default_rng(seed)
    targets = generator.random((10, 6, 7))
    noise = generator.random((10, 6, 7))
    rows = np.stack(
        [visbench.signal_row(quality * t + (1 - quality) * n, t) for t, n in zip(targets, noise, strict=True)]
    )
    (measure,) = visbench.signal_measures(rows)
    return named(measure.metrics, measure.statistic(np.ones((1, 10)))[0])


def values_of_orientations(quality, seed):
    generator = np.random.default_rng(seed)
    targets, noise = generator.normal(size=(2, 10, 2, 6, 7))
    targets /= np.maximum(1, np.hypot(targets[:, 0], targets[:, 1]))[:, None]
    pairs = zip(quality * targets + (1 - quality) * noise, targets, strict=True)
    (measure,) = visbench.orientation_measures(np.stack([visbench.orientation_row(p, t) for p, t in pairs]))
    return named(measure.metrics, measure.statistic(np.ones((1, 10)))[0])


def values_of_choices(quality, seed):
    generator = np.random.default_rng(seed)
    choices = generator.integers(0, 2, 400)
    scores = quality * np.where(choices == 1, 1, -1) + (1 - quality) * generator.normal(size=400)
    measure = ranking.choice_measure(scores[:, None], choices)
    return named(measure.metrics, measure.statistic(np.ones((1, 400)))[0])


def values_of_texts(quality, seed):
    """Images with two texts each, which find each other with a probability."""
    ranks = np.where(np.random.default_rng(seed).random((300, 3)) < quality, 0, 50)
    hits = (ranks[:, 1:, None] < np.array(retrieval.RECALLED)).sum(axis=1)
    measures = retrieval.text_measures(np.full(300, 2), np.column_stack([ranks[:, 0], hits]))
    found = [named(measure.metrics, measure.statistic(np.ones((1, 300)))[0]) for measure in measures]
    return {name: value for each in found for name, value in each.items()}


def values_of_relative_poses(quality, seed):
    true, noise = np.random.default_rng(seed).normal(size=(2, 100, 7))
    measures = visbench.pose_measures(quality * true + (1 - quality) * noise, true)
    found = [named(measure.metrics, measure.statistic(np.ones((1, 100)))[0]) for measure in measures]
    return {name: value for each in found for name, value in each.items()}


def values_of_contours(quality, seed):
    generator = np.random.default_rng(seed)
    truth = np.zeros((4, 12, 14), dtype=bool)
    truth[:, 5] = True
    noise = generator.random(truth.shape)
    maps = quality * truth + (1 - quality) * noise
    rows = np.stack([contours.contour_counts(m, t[None]).ravel() for m, t in zip(maps, truth, strict=True)])
    measure = contours.contour_measure(rows)
    return named(measure.metrics, measure.statistic(np.ones((1, 4)))[0])


BEYOND = (
    "silhouette",
    "AR1",
    "AR10",
    "mask_AR1",
    "compression_loss",
    "error_increase",
    "relative_mce",
    "effective_robustness",
    "j_decay",
    "f_decay",
    "set_size",
)
"""Metrics whose bound perfect predictions of these inputs do not reach."""
INPUTS = {
    name.removeprefix("values_of_"): function for name, function in globals().items() if name[:10] == "values_of_"
}


@functools.cache
def computed(kind, quality):
    return INPUTS[kind](quality, 3)


def test_every_metric_is_computed_here_and_nothing_else_is():
    found = set()
    for kind in INPUTS:
        names = set(computed(kind, 0.7))
        assert names <= set(METRICS), "a metric without a record, or of a module that is not in catalog.FAMILIES"
        of_kind = {m.name for m in METRICS.values() if kind in m.labels and m.needs in ("scores", "probabilities")}
        assert not of_kind or names == of_kind
        found |= names
    missing = sorted(set(METRICS) - found)
    assert not missing, f"add a function values_of_... (quality, seed) that computes {missing}"


def test_every_module_with_records_is_a_family():
    """A record that `catalog.find` does not know would have neither unit nor direction on leaderboards."""
    for module in pkgutil.walk_packages(sslbench.metrics.__path__, "sslbench.metrics."):
        records = set(catalog._records(importlib.import_module(module.name)))
        assert records <= set(METRICS.values()), module.name


def test_names_are_the_keys_and_unique():
    records = [record for family in catalog.FAMILIES for record in set(catalog._records(family))]
    assert len({record.name for record in records}) == len(set(records)) == len(catalog.METRICS)
    assert all(record.name == name == find(name).name and record.title for name, record in METRICS.items())


def test_the_leading_metric_of_each_kind_of_labels_is_one_of_that_kind():
    assert all(name in METRICS[kind.metric].labels for name, kind in kinds().items() if kind.metric)


@pytest.mark.parametrize("kind", INPUTS)
def test_values_are_within_bounds(kind):
    for quality in (0.0, 0.1, 0.7, 1.0):
        for name, value in computed(kind, quality).items():
            low, high = METRICS[name].bounds
            assert math.isnan(value) or low - 1e-9 <= value <= high + 1e-9, name


@pytest.mark.parametrize("kind", INPUTS)
def test_better_predictions_score_better_in_the_direction_of_the_metric(kind):
    poor, good = (computed(kind, quality) for quality in (0.1, 1.0))
    for name, value in good.items():
        metric = METRICS[name]
        assert metric.direction == 0 or metric.direction * (value - poor[name]) > 0, name
        if metric.direction and math.isfinite(metric.bounds[metric.direction > 0]):
            best = metric.bounds[metric.direction > 0]
            assert name in BEYOND or value == pytest.approx(best, abs=0.01), name


@pytest.mark.parametrize("kind", INPUTS)
def test_random_predictions_reach_the_chance_level(kind):
    if all(METRICS[name].chance is None for name in computed(kind, 0.0)):
        return
    seeds = range(0, 2 * DRAWS, 2)
    draws = [INPUTS[kind](0.0, seed) for seed in seeds]
    of_classes = [frequencies(kind, draw(kind, seed)[0]) for seed in seeds] if kind in ("single", "multi") else []
    for name in draws[0]:
        metric = METRICS[name]
        if metric.chance is None:
            continue
        levels = [metric.chance_level(each) for each in of_classes] if callable(metric.chance) else [metric.chance]
        above = np.array([found[name] for found in draws]) - np.array(levels, dtype=float)
        half = stats.t.ppf(1 - FALSE_ALARM / 2, DRAWS - 1) * above.std(ddof=1) / math.sqrt(DRAWS)
        assert -half <= above.mean() <= NEARLY.get(name, 0.0) + half, name


def frequencies(kind, labels):
    if kind == "single":
        return ClassFrequencies(np.bincount(labels, minlength=CLASSES), np.full(CLASSES, N))
    return ClassFrequencies((labels == 1).sum(axis=0), (labels >= 0).sum(axis=0))


def test_the_chance_level_is_exact_or_not_computable():
    balanced = ClassFrequencies(np.array([5, 5, 5]), np.array([15, 15, 15]))
    assert find("top1").recorded(find("top1").chance_level(balanced)) == 100.0 / 3
    assert find("top5").chance_level(balanced) is None, "there are three classes"
    assert find("mAP").recorded(find("mAP").chance_level(balanced)) == 100.0 / 3
    assert find("mAP").recorded(find("mAP").chance_level(ClassFrequencies(*np.zeros((2, 3), int)))) is None


def test_unknown_and_worst_group_metrics():
    assert find("worst_group(site).nll").direction == -1 and find("worst_group(a b).top1").scale == 100
    unknown = find("my_metric")
    assert (unknown.direction, unknown.unit) == (0, "unit of my_metric") and not unknown.averages_with(find("other"))
