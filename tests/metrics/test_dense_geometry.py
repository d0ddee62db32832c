"""Depth and normals: values by hand, slow counting, alignment, crops, and images without a valid pixel."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.metrics.dense import depth, normals
from sslbench.metrics.dense.pooling import means
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import with_intervals


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
