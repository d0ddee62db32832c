"""Areas, IoU, boundaries and panoptic quality against slow counting, pixel by pixel."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, jaccard_score, recall_score

from sslbench.metrics.dense import contours, panoptic, segmentation
from sslbench.metrics.dense.pooling import mean_over_classes, pooled
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import with_intervals

IGNORED = 255


def maps(seed, n_classes, shape=(7, 9), ignored=0.2, dtype=np.uint8):
    """A prediction and labels in patches, some of which are ignored."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, n_classes, shape)
    prediction = np.where(generator.random(shape) < 0.6, label, generator.integers(0, n_classes, shape))
    label = np.where(generator.random(shape) < ignored, IGNORED, label)
    return prediction.astype(dtype), label.astype(dtype)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 6),
    dtype=st.sampled_from([np.uint8, np.int32, np.int64, np.uint16]),
    ignored=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_scores_are_those_of_scikit_learn_on_the_counted_pixels(seed, n, dtype, ignored):
    prediction, label = maps(seed, n, ignored=ignored, dtype=dtype)
    areas = segmentation.class_areas(prediction, label, n, ignore=(IGNORED,))
    p, t = prediction[label != IGNORED], label[label != IGNORED]
    expected = {}
    for c in range(n):
        assert areas[:, c].tolist() == [int(((p == c) & (t == c)).sum()), int((p == c).sum()), int((t == c).sum())]
    if not len(t):
        assert np.isnan(segmentation.segmentation_values(areas)).all()
        return
    present = [c for c in range(n) if c in p or c in t]
    how = {"labels": present, "average": None, "zero_division": 0}
    expected = [
        jaccard_score(t, p, **how),
        recall_score(t, p, **how),
        f1_score(t, p, **how),
    ]
    ours = [f(areas)[present] for f in (segmentation.iou, segmentation.class_accuracy, segmentation.f_score)]
    np.testing.assert_allclose(np.nan_to_num(ours), expected, atol=1e-12)
    values = segmentation.segmentation_values(areas)
    assert values[0] == pytest.approx(expected[0].mean()) and values[3] == pytest.approx(expected[2].mean())
    assert values[1] == pytest.approx((p == t).mean())
    zero = segmentation.segmentation_values(areas, absent="zero")
    assert zero[0] == pytest.approx(expected[0].sum() / n)


def test_labels_and_predictions_outside_the_classes_are_refused_and_ignored_ones_may_be_anything():
    label = np.array([[0, 1, 7, 255]])
    with pytest.raises(ValueError, match="label 7 is none of the 2 classes"):
        segmentation.class_areas(np.zeros_like(label), label, 2, ignore=(255,))
    with pytest.raises(ValueError, match="label -1 is none"):
        segmentation.class_areas(np.zeros((1, 1), int), np.array([[-1]]), 2, ignore=(255,))
    with pytest.raises(ValueError, match="prediction 9 is none"):
        segmentation.class_areas(np.full((1, 4), 9), label, 2, ignore=(7, 255))
    with pytest.raises(ValueError, match=r"a prediction of \(2, 4\)"):
        segmentation.class_areas(np.zeros((2, 4), int), label, 2, ignore=(7, 255))
    areas = segmentation.class_areas(np.array([[0, 0, 99, 99]]), label, 2, ignore=(7, 255))
    assert areas.tolist() == [[1, 0], [2, 0], [1, 1]]


def test_a_confusion_matrix_of_more_clusters_than_classes():
    table = segmentation.confusion_matrix(np.array([[4, 0, 4]]), np.array([[1, 0, 1]]), 2, ignore=(), n_predicted=5)
    assert table.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 2]]


def test_counts_beyond_the_precision_of_float32_are_exact():
    areas = np.array([[[2**24], [2**24 + 1], [2**24]], [[1], [1], [1]]])
    total = pooled(areas, np.ones((1, 2)))[0]
    assert segmentation.iou(total).tolist() == [(2**24 + 1) / (2**24 + 2)]


def test_scores_of_the_data_set_are_not_means_over_images():
    label = np.array([[[0, 0, 0, 1]], [[1, 1, 1, 1]]])
    prediction = np.array([[[0, 0, 0, 0]], [[1, 1, 1, 1]]])
    areas = np.stack([segmentation.class_areas(p, t, 2, ignore=()) for p, t in zip(prediction, label, strict=True)])
    assert mean_over_classes(segmentation.iou(areas)).tolist() == [(3 / 4 + 0) / 2, 1.0]
    assert segmentation.segmentation_values(areas.sum(axis=0))[0] == (3 / 4 + 4 / 5) / 2


def test_measures_are_the_scores_of_any_subset_of_images_and_intervals_hold_them():
    pairs = [maps(seed, 4, shape=(12, 12)) for seed in range(30)]
    areas = np.stack([segmentation.class_areas(p, t, 4, ignore=(IGNORED,)) for p, t in pairs])
    units = Units.of(30, None)
    weights = (np.random.default_rng(0).random((5, 30)) < 0.5).astype(float)
    expected = np.stack([segmentation.segmentation_values(areas[row > 0].sum(axis=0)) for row in weights])
    found = {}
    for measure in segmentation.segmentation_measures(areas, units):
        columns = [segmentation.SEGMENTATION.index(metric) for metric in measure.metrics]
        np.testing.assert_allclose(measure.statistic(weights), expected[:, columns])
        found |= with_intervals(measure, units, 0, 200)
    assert set(found) == {"mIoU", "aAcc", "mAcc", "mFscore"}
    assert all(low < value < high and high - low < 0.1 for value, low, high in found.values())


def slow_boundary(prediction, label, number, tolerance):
    """Counts of one class from the distances of all pairs of boundary pixels."""

    def outline(values):
        found = []
        for y, x in np.ndindex(values.shape):
            if values[y, x] != number or label[y, x] == IGNORED:
                continue
            for b, a in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                inside = 0 <= b < values.shape[0] and 0 <= a < values.shape[1]
                if inside and label[b, a] != IGNORED and values[b, a] != number:
                    found.append((y, x))
                    break
        return found

    def hits(these, others):
        return sum(any(math.dist(one, other) <= tolerance for other in others) for one in these)

    predicted, labelled = outline(prediction), outline(label)
    return [len(predicted), hits(predicted, labelled), len(labelled), hits(labelled, predicted)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), tolerance=st.integers(1, 4), ignored=st.sampled_from([0.0, 0.2, 1.0]))
def test_boundaries_are_those_of_all_pairs_of_pixels(seed, tolerance, ignored):
    prediction, label = maps(seed, 3, shape=(9, 8), ignored=ignored)
    counts = contours.boundary_counts(prediction, label, 4, ignore=(IGNORED,), tolerance=tolerance)
    assert counts[:, 3].tolist() == [0, 0, 0, 0]
    for number in range(3):
        assert counts[:, number].tolist() == slow_boundary(prediction, label, number, tolerance)


def test_boundary_scores_fall_with_the_shift_and_not_within_the_tolerance():
    label = np.zeros((20, 20), int)
    label[5:15, 5:15] = 1
    scores = []
    for shift in (0, 2, 3, 6):
        shifted = np.roll(label, shift, axis=1)
        counts = contours.boundary_counts(shifted, label, 3, ignore=(), tolerance=2)
        scores.append(float(mean_over_classes(contours.boundary_f(counts))))
    assert scores[:2] == [1.0, 1.0] and 1 > scores[2] > scores[3] > 0
    assert contours.tolerance_pixels(3, 4) == 1


def slow_panoptic(prediction, label, n_classes):
    """Sets of pixels of each pair of segments."""

    def pixels(segments, name):
        return set(zip(*np.nonzero(segments.map == name), strict=True))

    counts = np.zeros((4, n_classes))
    matched = [set(), set()]
    void = pixels(label, 0)
    for i, p in enumerate(prediction.ids.tolist()):
        for j, t in enumerate(label.ids.tolist()):
            a, b = pixels(prediction, p), pixels(label, t)
            if prediction.classes[i] != label.classes[j] or label.crowd[j]:
                continue
            ratio = len(a & b) / len((a | b) - (a & void))
            if ratio > 0.5:
                counts[:2, label.classes[j]] += ratio, 1
                matched[0].add(i)
                matched[1].add(j)
    for i, p in enumerate(prediction.ids.tolist()):
        a, c = pixels(prediction, p), prediction.classes[i]
        crowd = [
            pixels(label, t) for t, k, of in zip(label.ids, label.crowd, label.classes, strict=True) if k and of == c
        ]
        excused = len(a & void) + sum(len(a & b) for b in crowd)
        counts[2, c] += i not in matched[0] and excused <= len(a) / 2
    for j in range(len(label.ids)):
        counts[3, label.classes[j]] += j not in matched[1] and not label.crowd[j]
    return counts


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), crowd=st.booleans())
def test_panoptic_counts_are_those_of_sets_of_pixels(seed, crowd):
    generator = np.random.default_rng(seed)
    coarse = generator.integers(-1, 3, (4, 4))
    number = generator.integers(1, 3, (4, 4))
    things = np.array([True, True, False])
    label = panoptic.segments_of(*(np.kron(x, np.ones((2, 2), int)) for x in (coarse, number)), things)
    noise = generator.random((8, 8)) < 0.2
    mixed = np.where(noise, generator.integers(-1, 3, (8, 8)), np.kron(coarse, np.ones((2, 2), int)))
    prediction = panoptic.segments_of(mixed, np.kron(number, np.ones((2, 2), int)), things)
    marked = crowd & (generator.random(len(label.ids)) < 0.4)
    label = panoptic.Segments(label.map, label.ids, label.classes, marked)
    np.testing.assert_allclose(panoptic.panoptic_counts(prediction, label, 3), slow_panoptic(prediction, label, 3))


def test_panoptic_quality_without_segments_is_unknown_and_wrong_maps_are_refused():
    empty = panoptic.segments_of(np.full((2, 2), -1), None, np.array([True]))
    assert np.isnan(panoptic.panoptic_values(panoptic.panoptic_counts(empty, empty, 1))).all()
    one = panoptic.segments_of(np.zeros((2, 2), int), None, np.array([True]))
    stray = panoptic.Segments(np.full((2, 2), 5), one.ids, one.classes, one.crowd)
    with pytest.raises(ValueError, match="the labelled map has the segment 5, which is not listed"):
        panoptic.panoptic_counts(one, stray, 1)
    unseen = panoptic.Segments(empty.map, one.ids, one.classes, one.crowd)
    with pytest.raises(ValueError, match="the predicted segment 1 has no pixel"):
        panoptic.panoptic_counts(unseen, one, 1)
    assert panoptic.panoptic_counts(empty, unseen, 1).tolist() == [[0], [0], [0], [1]]


def test_pixels_of_a_thing_without_a_number_are_one_segment_of_their_own():
    semantic, instances = np.array([[0, 0, 0, 1, -1]]), np.array([[0, 4, 9, 3, 7]])
    segments = panoptic.segments_of(semantic, instances, np.array([True, False]))
    assert segments.map.tolist() == [[1, 2, 3, 4, 0]] and segments.classes.tolist() == [0, 0, 0, 1]
