"""Metrics of depth, normals, correspondence, videos, joints and discovery against loops."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sslbench.metrics.dense import correspondence, depth, discovery, normals, poses, video
from sslbench.metrics.dense.correspondence import MatchErrors, PairHits
from sslbench.metrics.dense.pooling import means
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import summarise, with_intervals
from sslbench.targets.videos import Poses


def slow_depth(prediction, target, valid):
    """The metrics of one image, one sum after the other."""
    pairs = [(float(p), float(t)) for p, t, v in zip(prediction.flat, target.flat, valid.flat, strict=True) if v]
    n = len(pairs)
    if not n:
        return [math.nan] * 10
    shares = [sum(max(p / t, t / p) < 1.25**k for p, t in pairs) / n for k in (1, 2, 3)]
    errors = [p - t for p, t in pairs]
    logs = [math.log(p) - math.log(t) for p, t in pairs]
    mean = sum(logs) / n
    return [
        *shares,
        sum(abs(p - t) / t for p, t in pairs) / n,
        sum((p - t) ** 2 / t for p, t in pairs) / n,
        math.sqrt(sum(e * e for e in errors) / n),
        sum(abs(e) for e in errors) / n,
        math.sqrt(sum(g * g for g in logs) / n),
        sum(abs(math.log10(p) - math.log10(t)) for p, t in pairs) / n,
        math.sqrt(sum((g - mean) ** 2 for g in logs) / n),
    ]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), share=st.sampled_from([0.0, 0.1, 0.7, 1.0]))
def test_depth_is_that_of_sums_one_after_the_other(seed, share):
    generator = np.random.default_rng(seed)
    target, prediction = generator.uniform(0.5, 9, (2, 5, 6)).astype(np.float32)
    valid = generator.random((5, 6)) < share
    ours = depth.depth_values(depth.depth_sums(prediction, target, valid))
    np.testing.assert_allclose(ours, slow_depth(prediction, target, valid), rtol=1e-9, atol=1e-7)


def test_a_scaled_map_has_no_scale_invariant_error_and_a_prediction_without_a_value_is_refused():
    target, everywhere = np.random.default_rng(0).uniform(1, 5, (4, 4)), np.ones((4, 4), bool)
    values = dict(
        zip(
            (m.name for m in depth.DEPTH),
            depth.depth_values(depth.depth_sums(3 * target, target, everywhere)),
            strict=True,
        )
    )
    assert values["silog"] == pytest.approx(0, abs=1e-7) and values["abs_rel"] == pytest.approx(2)
    for wrong in (0.0, -1.0, math.nan, math.inf):
        prediction = target.copy()
        prediction[1, 2] = wrong
        with pytest.raises(ValueError, match="1 of 16 predicted depths are not positive and finite"):
            depth.depth_sums(prediction, target, everywhere)
        depth.depth_sums(prediction, target, prediction == target)


def test_images_without_depth_are_left_out_of_the_mean():
    target = np.array([[[1.0, 2.0]], [[0.0, 0.0]], [[4.0, 4.0]]])
    masks = [depth.valid_depth(t, low=1e-3, high=10) for t in target]
    sums = np.stack([depth.depth_sums(np.full((1, 2), 2.0), t, m) for t, m in zip(target, masks, strict=True)])
    assert sums[1].tolist() == [0] * 11 and np.isnan(depth.depth_values(sums)[1]).all()
    measure = depth.depth_measure(sums)
    rmse = measure.names.index("depth_rmse")
    assert measure.statistic(np.ones((1, 3)))[0, rmse] == pytest.approx((math.sqrt(1 / 2) + 2) / 2)
    together = depth.depth_values(sums.sum(axis=0))[None]
    assert together[0, rmse] == pytest.approx(math.sqrt((1 + 0 + 4 + 4) / 4))


def test_crops():
    assert depth.crop_region("nyu", 480, 640) == (slice(45, 471), slice(41, 601))
    with pytest.raises(ValueError, match="480 x 640, not 240 x 320"):
        depth.crop_region("nyu", 240, 320)
    with pytest.raises(ValueError, match="352 x 1216; the image is 100 x 1242"):
        depth.kitti_benchmark_crop(100, 1242)
    target = np.full((375, 1242), 5.0)
    target[200:, :600] = 0
    valid = depth.valid_depth(target, low=1e-3, high=80, crop="garg")
    rows, columns = np.nonzero(valid)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (153, 370, 44, 1196)
    assert not valid[200:, :600].any() and not depth.valid_depth(np.array([[np.nan, 80.0]]), low=0, high=80).any()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.5, 3.0, -2.0]))
def test_alignment_is_the_best_of_all_scales_and_shifts(seed, scale):
    generator = np.random.default_rng(seed)
    prediction = generator.uniform(1, 4, (5, 5))
    target = scale * prediction + 10 + 0.1 * generator.normal(size=(5, 5))
    valid = generator.random((5, 5)) < 0.8
    expected = np.polyfit(prediction[valid], target[valid], 1)
    free = depth.align_depth(prediction, target, valid, "scale_shift", negative=True)
    assert free == pytest.approx(tuple(expected), rel=1e-6)
    bounded = depth.align_depth(prediction, target, valid, "scale_shift")
    assert bounded == pytest.approx(tuple(expected) if scale > 0 else (0.0, target[valid].mean()), rel=1e-6)
    factor, shift = depth.align_depth(prediction, target, valid, "scale")
    p, t = prediction[valid], target[valid]
    assert (factor, shift) == pytest.approx(((p @ t) / (p @ p), 0.0))


def test_alignment_of_constants_and_of_nothing():
    flat, everywhere = np.full((2, 2), 2.0), np.ones((2, 2), bool)
    scale, shift = depth.align_depth(flat, np.full((2, 2), 5.0), everywhere, "scale_shift")
    assert 2 * scale + shift == pytest.approx(5) and scale == pytest.approx(2)  # of least norm
    assert np.isnan(depth.align_depth(flat, flat, ~everywhere, "median")).all()
    assert depth.align_depth(flat, flat, everywhere, "none") == (1.0, 0.0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), spread=st.sampled_from([0.01, 0.3, 3.0]))
def test_angles_and_their_summary(seed, spread):
    generator = np.random.default_rng(seed)
    target = generator.normal(size=(3, 6, 7))
    prediction = target * generator.uniform(0.1, 9) + spread * generator.normal(size=target.shape)
    valid = generator.random((6, 7)) < 0.8
    angles = normals.angular_errors(prediction, target, valid)
    cosine = np.sum(prediction * target, 0) / np.linalg.norm(prediction, axis=0) / np.linalg.norm(target, axis=0)
    np.testing.assert_allclose(angles, np.degrees(np.arccos(np.clip(cosine, -1, 1)))[valid], atol=1e-5)
    median = normals.histogram_median(normals.angle_histogram(angles)[None].astype(float))
    assert median[0] == pytest.approx(np.median(angles), abs=0.01)
    values = normals.normal_values(normals.angle_sums(angles)[None, :-1], median)[0]
    expected = [angles.mean(), median[0], math.sqrt((angles**2).mean()), *((angles < b).mean() for b in normals.BELOW)]
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_equal_and_opposite_normals_and_vectors_without_a_direction():
    up, everywhere = np.zeros((3, 1, 1)), np.ones((1, 1), bool)
    up[2] = 1e-3
    assert normals.angular_errors(7 * up, up, everywhere).tolist() == [0.0]
    assert normals.angular_errors(-up, up, everywhere).tolist() == [180.0]
    with pytest.raises(ValueError, match="1 of 1 predicted normals are zero or not finite"):
        normals.angular_errors(0 * up, up, everywhere)
    assert len(normals.angular_errors(0 * up, up, ~everywhere)) == 0


def test_normals_of_all_pixels_and_of_images():
    angles = [np.array([1.0, 2.0, 3.0, 40.0]), np.array([]), np.array([60.0, 80.0])]
    sums, histograms = (np.stack([of(a) for a in angles]) for of in (normals.angle_sums, normals.angle_histogram))
    units, ones = Units.of(3, None), np.ones((1, 3))
    pixels = normals.normal_measure(sums, histograms, "pixels")
    mean, median, rmse, at5, *_ = pixels.statistic(ones)[0]
    assert (mean, at5) == (31.0, 0.5) and rmse == pytest.approx(math.sqrt((14 + 1600 + 3600 + 6400) / 6))
    assert median == pytest.approx((3 + 40) / 2, abs=0.01)
    images = normals.normal_measure(sums, histograms, "images").statistic(ones)[0]
    assert images[:2].tolist() == [(11.5 + 70) / 2, (2.5 + 70) / 2] and images[3] == 0.75 / 2
    found = with_intervals(pixels, units, 0, 50)
    assert set(found) == {metric.name for metric in normals.NORMALS}


def test_means_leave_out_unknown_values():
    values = np.array([[1.0, np.nan], [3.0, np.nan]])
    np.testing.assert_array_equal(means(values, np.array([[1.0, 3.0]])), [[2.5, np.nan]])


def slow_boundary(mask):
    """Pixels that differ from the right, lower or lower right neighbour inside the image."""
    height, width = mask.shape
    found = set()
    for y, x in itertools.product(range(height), range(width)):
        around = [(y, x + 1), (y + 1, x), (y + 1, x + 1)]
        if any(b < height and a < width and mask[y, x] != mask[b, a] for b, a in around):
            found.add((y, x))
    return found


def slow_f(truth, found, radius):
    a, b = slow_boundary(truth), slow_boundary(found)
    if not a or not b:
        return float(not a and not b)

    def share(points, others):
        near = [any((y - v) ** 2 + (x - u) ** 2 <= radius**2 for v, u in others) for y, x in points]
        return sum(near) / len(near)

    precision, recall = share(b, a), share(a, b)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


masks = arrays(np.bool_, (9, 11), elements=st.booleans())


@settings(max_examples=40, deadline=None)
@given(masks, masks, st.sampled_from([1, 2, 3]))
def test_the_boundary_measure_is_that_of_its_definition(truth, found, radius):
    assert video.boundary_measure(truth, found, boundary=radius) == pytest.approx(slow_f(truth, found, radius))
    assert video.boundary_measure(found, truth, boundary=radius) == pytest.approx(slow_f(truth, found, radius))


def test_the_tolerance_is_a_rounded_up_share_of_the_diagonal():
    """0.008 of the diagonal of 480 x 854 pixels are 7.84 pixels."""
    columns = np.broadcast_to(np.arange(854), (480, 854))
    moved = [video.boundary_measure(columns < 400, columns < 400 + n) for n in (8, 9)]
    assert moved == [1.0, 0.0]


@pytest.mark.parametrize("frames", [1, 2, 5, 300])
def test_the_decay_of_any_number_of_frames(frames):
    """DAVIS numbers frames in 8 bits, so that its decay is NaN from 256 frames on."""
    values = np.linspace(1, 0, frames)[None]
    decay = video.object_values(video.VideoScores(values, values))[0, 3]
    assert np.isfinite(decay)
    if frames == 300:
        assert decay == pytest.approx(0.75, abs=0.01)


def test_a_video_of_two_frames_has_no_score():
    empty = np.zeros((1, 0))
    assert np.isnan(video.object_values(video.VideoScores(empty, empty))).all()


def repeated(weights):
    """Rows of the data as whole numbers of copies."""
    return [row for row, number in enumerate(weights) for _ in range(number)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12), st.data())
def test_averages_are_those_of_copied_pairs(rows, data):
    points = np.array([row[0] for row in rows])
    found = np.array([data.draw(st.integers(0, number)) for number in points])[:, None]
    classes, weights = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
    pairs, copies = PairHits(found, points, classes), repeated(weights)
    own = weights[None].astype(float)
    scored = [row for row in copies if points[row]]
    shares = {row: found[row, 0] / points[row] for row in scored}
    by_class = [[shares[row] for row in scored if classes[row] == c] for c in range(3)]
    for ours, values in (
        (pairs.per_image(own), [shares[row] for row in scored]),
        (pairs.per_class(own), [np.mean(each) for each in by_class if each]),
    ):
        assert ours[0, 0] == pytest.approx(np.mean(values) if values else np.nan, nan_ok=True)
    total = sum(points[row] for row in copies)
    wanted = sum(found[row, 0] for row in copies) / total if total else np.nan
    assert pairs.per_point(own)[0, 0] == pytest.approx(wanted, nan_ok=True)


def test_values_with_intervals_are_the_ratios_of_the_counts_and_swaps_are_left_out_where_not_counted():
    rng = np.random.default_rng(0)
    points, classes = rng.integers(0, 9, 40), rng.integers(0, 3, 40)
    found, swapped = np.sort(rng.integers(0, points[:, None] + 1, (40, 4)), axis=1), rng.integers(0, points + 1)
    pairs, images = PairHits(found, points, classes, swapped), np.arange(80).reshape(40, 2)
    values = correspondence.pck_with_intervals(pairs, images)
    shares = [(c, own / number) for c, own, number in zip(classes, found, points, strict=True) if number]
    by_class = [np.mean([share for each, share in shares if each == c], axis=0) for c in range(3)]
    swaps = values.pop(correspondence.SWAPPED.name)
    ratio, total = swapped.sum() / points.sum(), points.sum()
    assert swaps[0] == pytest.approx(ratio)
    # Pairs without a common image: the linearised error of a ratio, with the images as units.
    scored = points > 0
    error = (
        np.sqrt(np.sum((swapped - ratio * points)[scored] ** 2))
        / total
        * np.sqrt(2 * scored.sum() / (2 * scored.sum() - 1))
    )
    assert swaps[2] - swaps[1] == pytest.approx(2 * 1.96 * error, rel=0.1)
    wanted = np.concatenate(
        [np.mean([s for _, s in shares], axis=0), found.sum(axis=0) / total, np.mean(by_class, axis=0)]
    )
    np.testing.assert_allclose([value for value, _, _ in values.values()], wanted)
    assert correspondence.pck_with_intervals(PairHits(found, points, classes), images) == values


def test_a_distance_on_the_threshold():
    for strict in (False, True):
        found = correspondence.hits([[3.0, 4.0]], [[0.0, 0.0]], 50.0, (0.1,), strict=strict)
        assert found.tolist() == [[not strict]]


def slow_auc(errors, limit):
    """Area below the polygon through (0, 0) and (i-th error, i / n), cut at the limit, flat from the last one on."""
    errors, area, x, y = sorted(errors), 0.0, 0.0, 0.0
    for i, error in enumerate(errors, start=1):
        if error >= limit:
            break
        area += (error - x) * (y + i / len(errors)) / 2
        x, y = error, i / len(errors)
    return (area + (limit - x) * y) / limit


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 3)), min_size=1, max_size=15), st.data())
def test_recall_and_area_are_those_of_copied_pairs(rows, data):
    errors, pairs = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    weights = np.array(data.draw(st.lists(st.integers(0, 1), min_size=4, max_size=4)))
    own = [error for error, pair in zip(errors, pairs, strict=True) if weights[pair]]
    ours, once = MatchErrors(errors, pairs), weights[None].astype(float)
    if not own:
        assert np.isnan(ours.recall(once)).all() and np.isnan(ours.auc(once)).all()
        return
    for column, limit in enumerate(correspondence.PIXELS):
        assert ours.recall(once)[0, column] == pytest.approx(np.mean(np.array(own) <= limit))
        assert ours.auc(once)[0, column] == pytest.approx(slow_auc(own, limit))


def test_perfect_matches_have_an_area_of_one():
    errors = MatchErrors(np.array([0.0, 0.0, np.inf]), np.array([0, 0, 1]))
    assert errors.auc(np.array([[1.0, 0.0]]), (5,))[0, 0] == 1.0
    assert errors.recall(np.ones((1, 2)), (5,))[0, 0] == pytest.approx(2 / 3)


def test_points_behind_the_horizon_are_infinite():
    h = np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 1]])
    assert correspondence.apply_homography(h, np.array([[0.5, 1.0], [2.0, 1.0]])).tolist() == [[1, 2], [np.inf, np.inf]]


def test_swaps_are_misses_that_hit_another_point_of_the_part():
    target = np.array([[0.0, 0], [10, 0], [20, 0], [30, 0]])
    predicted = np.array([[10.0, 0], [10, 0], [30, 0], [99, 0]])
    every = np.ones(4, bool)
    swaps = correspondence.swaps(predicted, target, np.array([0, 0, 1, 2]), every, 1.0)
    assert swaps.tolist() == [True, False, False, False]
    on_the_limit = np.array([[9.0, 0], [9, 0], [30, 0], [99, 0]])
    swaps = correspondence.swaps(on_the_limit, target, np.array([0, 0, 1, 2]), every, 1.0)
    assert swaps.tolist() == [True, False, False, False], "a distance equal to the limit is a hit"
    hidden = np.array([True, False, True, True])
    assert not correspondence.swaps(predicted, target, np.array([0, 0, 1, 2]), hidden, 1.0).any()


def slow_pck(clips, alpha):
    """Mean over joints of the share of right frames; `clips` are (predicted, true, counted)."""
    right, all_frames = {}, {}
    for predicted, true, counted in clips:
        for t in range(len(true)):
            own = [true[t, j] for j in range(true.shape[1]) if counted[t, j]]
            if not own:
                continue
            width = max(x for x, _ in own) - min(x for x, _ in own)
            height = max(y for _, y in own) - min(y for _, y in own)
            size = 0.6 * math.sqrt(width**2 + height**2)
            for j in range(true.shape[1]):
                if not counted[t, j]:
                    continue
                all_frames[j] = all_frames.get(j, 0) + 1
                x, y = predicted[t, j] - true[t, j]
                right[j] = right.get(j, 0) + (math.sqrt(x**2 + y**2) / size <= alpha)  # NaN is not
    return sum(right[j] / all_frames[j] for j in all_frames) / len(all_frames)


def clips(seed):
    rng = np.random.default_rng(seed)
    found = []
    for frames in (3, 7, 5):
        true = rng.normal(size=(frames, 6, 2)) * 20 + 50
        predicted = true + rng.normal(size=true.shape) * 4
        predicted[rng.random((frames, 6)) < 0.1] = np.nan
        counted = rng.random((frames, 6)) < 0.9
        counted[:, 5] = False
        found.append((predicted, true, counted))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_pck_is_that_of_loops_over_joints_and_frames(seed):
    rows = np.stack([poses.joint_counts(*clip) for clip in clips(seed)])
    values = poses.pose_measure(rows, Units.of(3, None)).statistic(np.ones((1, 3)))[0]
    assert values.tolist() == pytest.approx([slow_pck(clips(seed), alpha) for alpha in poses.ALPHAS])


def test_a_frame_without_joints_counts_for_nothing():
    true = np.zeros((1, 2, 2))
    assert poses.joint_counts(true, true, np.zeros((1, 2), bool)).tolist() == [[0, 0]] * 3


def test_a_joint_that_is_never_given_is_left_out_of_the_mean_and_named():
    rows = np.stack([poses.joint_counts(*clip) for clip in clips(1)]).reshape(3, -1)
    names = ("neck", "belly", "face", "hip", "knee", "wrist")
    metrics, headline, each = summarise(Poses, names, np.zeros((3, 0), np.int8), rows, seed=0)
    assert headline == "pose_pck@0.1" and math.isnan(each["wrist"])
    assert metrics[headline][0] == pytest.approx(np.mean([each[name] for name in names[:-1]]))
    low, high = metrics[headline][1:]
    assert 0 <= low <= metrics[headline][0] <= high <= 1


ends = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(sorted)
box = st.tuples(ends, ends).map(lambda both: (both[0][0], both[1][0], both[0][1], both[1][1]))


def pixels(one):
    left, upper, right, lower = one
    return {(x, y) for x in range(left, right) for y in range(upper, lower)}


@settings(max_examples=100, deadline=None)
@given(box, st.lists(box, max_size=4))
def test_overlaps_are_those_of_sets_of_pixels(one, others):
    for ours, other in zip(discovery.overlaps(one, others), others, strict=True):
        union = pixels(one) | pixels(other)
        assert ours == pytest.approx(len(pixels(one) & pixels(other)) / len(union) if union else 0.0)


def test_half_an_overlap_counts_and_images_without_objects_do_not():
    assert discovery.is_located([0, 0, 10, 10], [[0, 0, 10, 20], [50, 50, 60, 60]]) == 1.0
    assert discovery.is_located([0, 0, 10, 10], [[0, 0, 10, 21]]) == 0.0
    assert math.isnan(discovery.is_located([0, 0, 10, 10], np.zeros((0, 4))))
    assert math.isnan(discovery.mask_iou(np.ones((2, 2), bool), np.zeros((0, 2, 2), bool)))


@pytest.mark.parametrize("kind", ["some", "all", "none", "nothing predicted", "nothing right"])
def test_saliency_at_every_threshold(kind):
    random = np.random.default_rng(1)
    truth = {"some": random.random((6, 7)) < 0.4, "all": np.ones((6, 7), bool)}.get(kind, np.zeros((6, 7), bool))
    saliency = np.round(random.random((6, 7)) * 255) / 255  # on the thresholds themselves
    if kind == "nothing predicted":
        truth, saliency = random.random((6, 7)) < 0.4, np.zeros((6, 7))
    elif kind == "nothing right":
        truth[0], saliency[0] = True, 0.0
    ours = discovery.saliency_values(saliency, truth)
    for t, value in zip(discovery.THRESHOLDS, ours.f, strict=True):
        found = saliency > t
        right = (found & truth).sum()
        precision = right / found.sum() if found.any() else 1.0
        recall = right / truth.sum() if truth.any() else 1.0
        both = 0.3 * precision + recall
        assert value == pytest.approx(1.3 * precision * recall / both if both else 0.0)
    assert ours.accuracy == np.mean((saliency > 0.5) == truth)


def test_the_threshold_is_one_for_all_images():
    f = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert discovery.max_f(np.array([[1.0, 1.0], [1.0, 0.0]]), f).tolist() == [[0.5], [1.0]]
