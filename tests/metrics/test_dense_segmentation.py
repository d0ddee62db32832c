"""Metrics of label maps, contours and matched maps against loops over pixels."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage
from sklearn.metrics import f1_score, jaccard_score, recall_score

from sslbench.metrics.dense import contours, panoptic, segmentation
from sslbench.metrics.dense.contours import contour_counts, contour_measure, matched_pixels, thinned
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


def largest_matching(found, truth, radius):
    """Size of the largest one-to-one matching, by trying all assignments."""
    a, b = sorted((list(zip(*np.nonzero(m), strict=True)) for m in (found, truth)), key=len)
    return max(
        sum(math.dist(p, q) <= radius for p, q in zip(a, chosen, strict=True))
        for chosen in itertools.permutations(b, len(a))
    )


def removed_by_guo_and_hall(mask, y, x, turn):
    """Whether a pass removes the pixel (y, x), by the conditions of Guo and Hall, 1989, with their names."""
    ring = [(-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1)]
    height, width = mask.shape
    p1, p2, p3, p4, p5, p6, p7, p8 = (
        0 <= y + dy < height and 0 <= x + dx < width and bool(mask[y + dy, x + dx]) for dy, dx in ring
    )
    lines = sum(not a and (b or c) for a, b, c in ((p2, p3, p4), (p4, p5, p6), (p6, p7, p8), (p8, p1, p2)))
    pairs = [
        sum(a or b for a, b in each)
        for each in (((p1, p2), (p3, p4), (p5, p6), (p7, p8)), ((p2, p3), (p4, p5), (p6, p7), (p8, p1)))
    ]
    kept = (p6 or p7 or not p1) and p8 if turn == 0 else (p2 or p3 or not p5) and p4
    return lines == 1 and 2 <= min(pairs) <= 3 and not kept


@pytest.mark.parametrize("seed", range(12))
def test_thinning_is_that_of_passes_over_all_pixels(seed):
    rng = np.random.default_rng(seed)
    mask = ndimage.gaussian_filter(rng.normal(size=(int(rng.integers(1, 24)), 20)), rng.uniform(0, 3)) > 0
    wanted, before = mask.copy(), None
    while before is None or (wanted != before).any():
        before = wanted
        for turn in (0, 1):
            drop = [place for place in np.argwhere(wanted) if removed_by_guo_and_hall(wanted, *place, turn)]
            wanted = wanted.copy()
            wanted[tuple(np.array(drop, dtype=int).reshape(-1, 2).T)] = False
    assert np.array_equal(thinned(mask), wanted)


@pytest.mark.parametrize("seed", range(20))
def test_the_matching_is_the_largest_and_one_to_one(seed):
    rng = np.random.default_rng(seed)
    maps = np.zeros((2, 36), dtype=bool)
    for each in maps:
        each[rng.choice(36, 6, replace=False)] = True
    found, truth = maps.reshape(2, 6, 6)
    tolerance = 1.5 / math.hypot(6, 6)
    parts = matched_pixels(found, truth, tolerance=tolerance)
    assert parts[0].sum() == parts[1].sum() == largest_matching(found, truth, 1.5)
    assert not (parts[0] & ~found).any() and not (parts[1] & ~truth).any()


def test_the_nearer_of_two_pixels_is_matched():
    found, truth = np.zeros((2, 9, 9), dtype=bool)
    found[4, [2, 5]] = truth[4, 4] = True
    in_found, _ = matched_pixels(found, truth, tolerance=3 / math.hypot(9, 9))
    assert in_found[4, 5] and not in_found[4, 2]


def scores(*counts):
    """ODS, OIS and AP of the counts of images."""
    return contour_measure(np.stack(counts).reshape(len(counts), -1)).statistic(np.ones((1, len(counts))))[0]


def line(column):
    image = np.zeros((30, 40))
    image[:, column] = 1
    return image


@pytest.mark.parametrize(("column", "score"), [(20, 1.0), (22, 1.0), (23, 0.0)])
def test_a_moved_line_counts_within_the_tolerance_only(column, score):
    # The diagonal is 50 pixels, so that the tolerance is 2.5 pixels.
    counts = contour_counts(line(column), line(20)[None] > 0, tolerance=0.05)
    assert scores(counts) == pytest.approx([score] * 3)


def test_a_line_of_one_of_two_annotators_is_precise_and_half_complete():
    counts = contour_counts(line(10), np.stack([line(10), line(30)]) > 0)
    assert counts[0].tolist() == [30, 60, 30, 30]
    assert scores(counts)[0] == pytest.approx(2 / 3)


def test_nothing_found_scores_0():
    assert scores(contour_counts(np.zeros((30, 40)), line(10)[None] > 0)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("background", [0.0, 0.05, 0.2, 0.6, 0.97])
def test_a_perfect_detector_is_perfect_with_any_background(background):
    truth = line(10) + line(30)
    counts = contour_counts(np.where(truth > 0, 1.0, background), truth[None] > 0)
    assert scores(counts) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_the_mean_of_the_best_precision_at_each_recall(seed):
    rng = np.random.default_rng(seed)
    truth, predicted = 50, rng.integers(1, 80, 99)
    right = rng.integers(0, np.minimum(predicted, truth) + 1)
    counts = np.stack([right, np.full(99, truth), right, predicted], axis=1).astype(float)
    best = [
        max([hit / found for hit, found in zip(right, predicted, strict=True) if 100 * hit >= level * truth] or [0])
        for level in range(101)
    ]
    assert scores(counts)[2] == pytest.approx(np.mean(best))
    worse = counts.copy()
    worse[rng.integers(0, 99), 3] += 1000  # a threshold that finds much that is wrong
    assert scores(worse)[2] <= scores(counts)[2]
    worse[:50] = counts[50]  # in place of some thresholds others again: no new point
    assert scores(worse)[2] <= scores(counts)[2]


def test_an_image_of_which_nothing_is_found_adds_no_wrong_pixels_to_ois():
    found = contour_counts(line(10), line(10)[None] > 0)
    missed = contour_counts(0.5 * line(30), line(10)[None] > 0)
    ods, ois, _ = scores(found, missed)
    assert ods == ois == pytest.approx(2 / 3)


tables = st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(0, 9))
)


def iou(table, c, p):
    union = table[c].sum() + table[:, p].sum() - table[c, p]
    return table[c, p] / union if union else 0.0


@settings(max_examples=80, deadline=None)
@given(tables, st.sampled_from(["pixels", "iou"]))
def test_no_one_to_one_assignment_is_better(table, by):
    n_classes, n_clusters = table.shape
    value = (lambda c, p: table[c, p]) if by == "pixels" else (lambda c, p: iou(table, c, p))
    assigned = segmentation.one_to_one(table, by)
    kept = [c for c in assigned.tolist() if c != segmentation.UNASSIGNED]
    assert len(kept) == len(set(kept)) == min(n_classes, n_clusters)
    ours = sum(value(c, p) for p, c in enumerate(assigned.tolist()) if c != segmentation.UNASSIGNED)
    padded = [*range(n_classes), *[None] * n_clusters]
    best = max(
        sum(value(c, p) for p, c in enumerate(chosen) if c is not None)
        for chosen in itertools.permutations(padded, n_clusters)
    )
    assert ours == pytest.approx(best)


@settings(max_examples=80, deadline=None)
@given(tables, st.data())
def test_areas_are_those_of_the_assigned_map(table, data):
    n_classes, n_clusters = table.shape
    assigned = np.array(data.draw(st.lists(st.integers(-1, n_classes - 1), min_size=n_clusters, max_size=n_clusters)))
    pixels = [(c, assigned[p]) for c in range(n_classes) for p in range(n_clusters) for _ in range(table[c, p])]
    for c, (both, predicted, labelled) in enumerate(segmentation.assigned_areas(table, assigned).T.tolist()):
        assert both == sum(a == c == b for a, b in pixels)
        assert (labelled, predicted) == (sum(a == c for a, _ in pixels), sum(b == c for _, b in pixels))


def test_areas_of_images_sum_to_those_of_all():
    tables = np.random.default_rng(0).integers(0, 9, (5, 3, 4))
    assigned = segmentation.one_to_one(tables.sum(axis=0), "iou")
    each = segmentation.assigned_areas(tables, assigned)
    assert each.shape == (5, 3, 3)
    np.testing.assert_array_equal(each.sum(axis=0), segmentation.assigned_areas(tables.sum(axis=0), assigned))
    weights = np.array([[1.0, 0, 2, 0, 0]])
    values = segmentation.matched_values(weights, each)
    copied = segmentation.matched_values(np.ones((1, 3)), each[[0, 2, 2]])
    np.testing.assert_allclose(values, copied)


def test_absent_classes_and_maps_without_labels():
    areas = segmentation.assigned_areas(np.array([[[4, 0, 0], [0, 4, 0], [0, 0, 0]]]), np.arange(3))
    assert segmentation.matched_values(np.ones((1, 1)), areas).tolist() == [[1.0, 1.0]]
    assert segmentation.matched_values(np.ones((1, 1)), areas, absent="zero")[0, 0] == pytest.approx(2 / 3)
    assert np.isnan(segmentation.matched_values(np.zeros((1, 1)), areas)).all()
