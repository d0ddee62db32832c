"""Average precision of keypoints beside pycocotools, and beside a slow count of the similarity."""

import dataclasses
import math

import numpy as np
import pytest
from helpers.drawn_poses import NAMES, PERSON, by_pycocotools, drawn

from sslbench.errors import UsageError
from sslbench.metrics.detection import Detections, areas_of, keypoint_ap, match_coco, oks
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection.average_precision import detector_difference
from sslbench.metrics.detection.keypoints import COCO_SIGMAS, Skeleton, labelled, similarity


def by_matches(truth, found, weights=None):
    """The ten values by the matches that the bootstrap weighs."""
    matches = match_coco(truth, found, areas_of(found, masks=False), kind="keypoints", most=oks.MOST)
    curves = [precision_recall.curves(match) for match in matches]
    once = np.ones((truth.n_images, 1)) if weights is None else weights
    return np.array([value[0] for value in oks.values_of(matches, curves, once)])


@pytest.mark.parametrize("seed", range(40))
def test_the_values_are_those_of_pycocotools(seed):
    own = ("hip", "knee", "left_toe", "right_toe", "tail")
    skeleton = PERSON if seed % 2 else Skeleton(own, sigmas=(0.1, 0.05, 0.2, 0.03, 0.08))
    truth, found = drawn(seed, skeleton)
    mine = np.array([keypoint_ap(truth, found, resamples=0).metrics[name][0] for name in NAMES])
    np.testing.assert_allclose(mine, by_pycocotools(truth, found), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(100, 140))
def test_the_matches_of_the_intervals_give_the_values(seed):
    truth, found = drawn(seed, difficult=seed % 2 == 0)
    metrics = keypoint_ap(truth, found, resamples=0).metrics
    np.testing.assert_allclose([metrics[name][0] for name in NAMES], by_matches(truth, found), rtol=0, atol=1e-9)


def test_the_similarity_is_the_sum_of_its_definition():
    truth, found = drawn(7)
    table = similarity(found.keypoints, truth.keypoints, truth.boxes, truth.areas, PERSON.sigmas)
    for d, points in enumerate(found.keypoints):
        for g, there in enumerate(truth.keypoints):
            terms = [
                math.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * truth.areas[g] * (2 * sigma) ** 2))
                for (x, y, _), (a, b, seen), sigma in zip(points, there, PERSON.sigmas, strict=True)
                if seen > 0
            ]
            if terms:
                assert table[d, g] == pytest.approx(sum(terms) / len(terms), abs=1e-12)


def test_difficult_objects_are_left_out_with_their_detections():
    truth, found = drawn(3)
    hard = np.arange(len(truth)) % 2 == 0
    without = dataclasses.replace(truth, difficult=hard)
    own = keypoint_ap(without, found, resamples=0).metrics
    perfect = Detections(
        truth.images, truth.boxes, np.linspace(0.1, 1, len(truth)), truth.labels, keypoints=truth.keypoints
    )
    assert keypoint_ap(without, perfect, resamples=0).metrics["AP"][0] == pytest.approx(1.0)
    few = keypoint_ap(dataclasses.replace(truth, crowd=truth.crowd | hard), found, resamples=0).metrics
    assert own["AR"][0] == pytest.approx(few["AR"][0], abs=0.05)


def test_objects_without_labelled_keypoints_do_not_count():
    truth, _ = drawn(5)
    none = ~labelled(truth.keypoints).any(axis=1) & ~truth.crowd
    assert none.any()
    right = ~truth.crowd & ~none
    perfect = Detections(
        truth.images[right],
        truth.boxes[right],
        np.ones(right.sum()),
        truth.labels[right],
        keypoints=truth.keypoints[right],
    )
    metrics = keypoint_ap(truth, perfect, resamples=0).metrics
    assert (metrics["AP"][0], metrics["AR"][0]) == pytest.approx((1.0, 1.0))


def test_one_keypoint_alone():
    """Of detections that are right in one keypoint and wrong in the others, which stay near the box."""
    truth, _ = drawn(11)
    corners = truth.boxes[:, None, [2, 1]]
    points = np.concatenate([np.broadcast_to(corners, (len(truth), 17, 2)), np.ones((len(truth), 17, 1))], axis=2)
    seen = truth.keypoints[:, 4, 2] > 0
    points[seen, 4] = truth.keypoints[seen, 4]
    found = Detections(truth.images, truth.boxes, np.linspace(0.1, 1, len(truth)), truth.labels, keypoints=points)
    assert keypoint_ap(oks.with_one(truth, 4), found, resamples=0).metrics["AP"][0] == pytest.approx(1.0)
    assert keypoint_ap(oks.with_one(truth, 3), found, resamples=0).metrics["AP"][0] == pytest.approx(0.0)


def test_intervals_contain_the_value_and_differences_compare_keypoints():
    truth, found = drawn(21)
    low, high = (keypoint_ap(truth, found, resamples=50).metrics["AP"][end] for end in (1, 2))
    assert low <= keypoint_ap(truth, found, resamples=0).metrics["AP"][0] <= high and low < high
    worse = dataclasses.replace(found, keypoints=found.keypoints + np.array([40.0, 0, 0]))
    pair = detector_difference(truth, {"a": found}, {"a": worse}, "keypoint_AP", "coco", seed=0, resamples=50)
    assert pair.value_a == pytest.approx(by_matches(truth, found)[0]) and pair.value_b < pair.value_a
    with pytest.raises(KeyError):
        detector_difference(truth, {"a": found}, {"a": worse}, "uniform_keypoint_AP", "coco", seed=0, resamples=5)


def test_mirrored_keypoints():
    assert PERSON.mirrored() == (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)
    assert Skeleton(("Left Eye", "tail", "Right Eye")).mirrored() == (2, 1, 0)
    assert Skeleton(("eye-left", "eye-right", "cleft")).mirrored() == (1, 0, 2)
    assert Skeleton(("a", "b", "c")).mirrored(["a:c"]) == (2, 1, 0)
    assert Skeleton(("a", "b"), mirrors=(("a", "b"),)).mirrored() == (1, 0)
    for skeleton, pairs, words in (
        (Skeleton(("a", "b")), [], "no name has the word left or right"),
        (Skeleton(("left_eye", "nose")), [], "'left_eye' has no partner"),
        (Skeleton(("a", "b", "c")), ["a:b", "b:c"], "two pairs"),
        (Skeleton(("a", "b")), ["a:d"], "'a:d' is not a pair"),
    ):
        with pytest.raises(UsageError, match=words):
            skeleton.mirrored(pairs)


def test_sigmas():
    assert PERSON.sigmas[:3] == (0.026, 0.025, 0.025) and PERSON.prefix == "keypoint_"
    assert Skeleton(("a", "b")).with_sigmas(0.05).prefix == "uniform_keypoint_"
    assert Skeleton(tuple(COCO_SIGMAS)).with_sigmas(0.05) == PERSON
    assert Skeleton(("a", "b"), sigmas=(0.1, 0.2)).with_sigmas().sigmas == (0.1, 0.2)
    with pytest.raises(UsageError, match="not known"):
        Skeleton(("a", "b")).with_sigmas()
