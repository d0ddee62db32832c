"""Average precision against slow oracles, against replicated images, and at the edges."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.metrics import detection as detection_module
from sslbench.metrics.detection import THRESHOLDS, Detections, Truth, coco_ap, masks, voc_ap
from sslbench.metrics.detection import curves as precision_recall
from sslbench.metrics.detection.files import write_results
from sslbench.metrics.detection.matches import match_coco, match_voc
from sslbench.metrics.intervals import student, wilson

SIDE = 300
AP50 = detection_module._COCO_NAMES.index("AP50")


def sample(seed, *, n_images=6, classes=3, objects=24, found=60, crowd=0.1, difficult=0.1):
    """Objects of all sizes, and detections that lie on them, beside them, twice, or nowhere."""
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, SIDE / 2, (objects, 2))
    size = np.exp(rng.uniform(1.5, 5, (objects, 2)))
    boxes = np.concatenate([corner, corner + size], axis=1).round(1)
    images, labels = rng.integers(0, n_images, objects), rng.integers(0, classes, objects)
    truth = Truth(
        n_images,
        tuple(f"c{i}" for i in range(classes)),
        images,
        boxes,
        labels,
        rng.random(objects) < crowd,
        rng.random(objects) < difficult,
        np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) * rng.uniform(0.5, 1, objects),
    )
    source = rng.integers(0, objects, found)
    scale = np.tile(boxes[source, 2:] - boxes[source, :2], 2)
    near = boxes[source] + rng.normal(0, rng.choice([0.02, 0.1, 0.4], (found, 1)), (found, 4)) * scale
    near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
    wrong = rng.random(found) < 0.1
    scores = rng.permutation(found) / found + 0.001  # distinct at three decimals
    detections = Detections(
        np.where(rng.random(found) < 0.9, images[source], rng.integers(0, n_images, found)),
        near,
        scores,
        np.where(wrong, rng.integers(0, classes, found), labels[source]),
    )
    return truth, detections


def overlap(a, b, pixel=0, crowd=False):
    width = min(a[2], b[2]) - max(a[0], b[0]) + pixel
    height = min(a[3], b[3]) - max(a[1], b[1]) + pixel
    if width <= 0 or height <= 0:
        return 0.0
    area = [(box[2] - box[0] + pixel) * (box[3] - box[1] + pixel) for box in (a, b)]
    common = width * height
    return common / (area[0] if crowd else area[0] + area[1] - common)


def slow_voc(truth, detections, threshold, metric):
    """One class after the other, one detection after the other."""
    values = []
    for label in range(len(truth.classes)):
        objects = [i for i in range(len(truth)) if truth.labels[i] == label]
        ignore = {i for i in objects if truth.difficult[i] or truth.crowd[i]}
        ranked = []
        for d in range(len(detections)):
            if detections.labels[d] == label:
                x1, y1, x2, y2 = detections.boxes[d]
                line = f"{detections.scores[d]:.3f} {x1 + 1:.1f} {y1 + 1:.1f} {x2:.1f} {y2:.1f}"
                score, *box = map(float, line.split())
                ranked.append((-score, int(detections.images[d]), box))
        used, right, wrong, curve = set(), 0, 0, []
        for _, image, box in sorted(ranked):
            there = [i for i in objects if truth.images[i] == image]
            of_objects = [overlap(box, truth.boxes[i] + [1, 1, 0, 0], pixel=1) for i in there]
            best = int(np.argmax(of_objects)) if there else -1
            if there and of_objects[best] > threshold:
                if there[best] in ignore:
                    continue
                right += there[best] not in used
                wrong += there[best] in used
                used.add(there[best])
            else:
                wrong += 1
            curve.append((right, right / (right + wrong)))
        total = len(objects) - len(ignore)
        values.append(np.nan if not total else slow_area(curve, total) if metric == "area" else slow_11(curve, total))
    return values


def slow_11(curve, total):
    return np.mean([max([p for r, p in curve if r / total >= t], default=0) for t in np.arange(0, 1.1, 0.1)])


def slow_area(curve, total):
    area, last = 0.0, 0
    for i, (right, _) in enumerate(curve):
        if right > last:
            area += (right - last) / total * max(p for _, p in curve[i:])
            last = right
    return area


RANGES = {"all": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}


def slow_coco(truth, detections, area, most=100, overlaps=None, sizes=None):
    """AP (T, C) and recall (T, C), the way the COCO paper's code is described: greedy, surest first.

    Of boxes, or with the overlaps (d, i) and the sizes (d,) that are given.
    """
    low, high = RANGES[area]
    precision, recall = np.full((2, len(THRESHOLDS), len(truth.classes)), np.nan)
    for label in range(len(truth.classes)):
        objects = np.flatnonzero(truth.labels == label)
        ignore = {i: truth.crowd[i] or truth.difficult[i] or not low <= truth.areas[i] <= high for i in objects}
        total = sum(not value for value in ignore.values())
        if not total:
            continue
        for t, threshold in enumerate(THRESHOLDS):
            outcomes = []
            for image in range(truth.n_images):
                mine = np.flatnonzero((detections.labels == label) & (detections.images == image))
                mine = mine[np.argsort(-detections.scores[mine], kind="stable")][:most]
                there = [i for i in objects if truth.images[i] == image]
                free = set(there)
                for d in mine:
                    box = detections.boxes[d]
                    values = {
                        i: overlap(box, truth.boxes[i], crowd=truth.crowd[i]) if overlaps is None else overlaps[d, i]
                        for i in there
                        if i in free
                    }
                    able = [(not ignore[i], value, i) for i, value in values.items() if value >= threshold]
                    size = np.prod(box[2:] - box[:2]) if sizes is None else sizes[d]
                    if able:
                        counts, _, taken = max(able)
                        if not truth.crowd[taken]:
                            free.remove(taken)
                        if counts:
                            outcomes.append((-detections.scores[d], True))
                    elif low <= size <= high:
                        outcomes.append((-detections.scores[d], False))
            right = wrong = 0
            curve = []
            for _, hit in sorted(outcomes):
                right, wrong = right + hit, wrong + (not hit)
                curve.append((right, right / (right + wrong)))
            hits, precisions = np.array(curve, dtype=float).reshape(-1, 2).T
            at = [precisions[hits / total >= level].max(initial=0) for level in np.linspace(0, 1, 101)]
            precision[t, label], recall[t, label] = np.mean(at), right / total
    return precision, recall


def nanmean(values):
    return np.nan if np.isnan(values).all() else np.nanmean(values)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), metric=st.sampled_from(["11-point", "area"]))
def test_voc_ap_is_that_of_a_slow_count(seed, metric):
    truth, detections = sample(seed)
    got = voc_ap(truth, detections, metric, resamples=0)
    wanted = np.array([slow_voc(truth, detections, t, metric) for t in THRESHOLDS])
    values = [got.metrics[name][0] for name in ("AP", "AP50", "AP75")]
    assert values == pytest.approx([nanmean(wanted), nanmean(wanted[0]), nanmean(wanted[5])], abs=1e-12, nan_ok=True)
    assert list(got.per_class.values()) == pytest.approx(wanted.mean(axis=0), abs=1e-12, nan_ok=True)
    assert list(got.per_class_50.values()) == pytest.approx(wanted[0], abs=1e-12, nan_ok=True)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_coco_ap_is_that_of_a_slow_count(seed):
    truth, detections = sample(seed)
    truth.areas[::4], truth.areas[1::4] = 32**2, 96**2  # an object on a bound is of both sizes
    got = coco_ap(truth, detections, resamples=0)
    slow = {area: slow_coco(truth, detections, area) for area in RANGES}
    ap, recall = slow["all"]
    wanted = {"AP": ap, "AP50": ap[0], "AP75": ap[5], "AR100": recall}
    wanted |= {f"AP{area[0]}": slow[area][0] for area in ("small", "medium", "large")}
    wanted |= {f"AR{area[0]}": slow[area][1] for area in ("small", "medium", "large")}
    wanted |= {f"AR{most}": slow_coco(truth, detections, "all", most)[1] for most in (1, 10)}
    assert set(wanted) == set(got.metrics)
    for name, values in wanted.items():
        assert got.metrics[name][0] == pytest.approx(nanmean(values), abs=1e-9, nan_ok=True), name
    assert list(got.per_class.values()) == pytest.approx(ap.mean(axis=0), abs=1e-9, nan_ok=True)
    assert list(got.per_class_50.values()) == pytest.approx(ap[0], abs=1e-9, nan_ok=True)


def resampled(truth, detections, counts):
    areas = np.prod(detections.boxes[:, 2:] - detections.boxes[:, :2], axis=1)
    matches = match_coco(truth, detections, areas, kind="boxes")
    curves = [precision_recall.curves(m) for m in matches]
    return np.ravel(detection_module._coco_values(matches, curves, np.asarray(counts, dtype=float)[:, None]))


def replicated(truth, detections, counts):
    """The test set in which each image occurs so often as it counts."""
    drawn = np.repeat(np.arange(truth.n_images), counts)
    mine = [(np.flatnonzero(truth.images == i), np.flatnonzero(detections.images == i)) for i in drawn]
    rows, found = (np.concatenate(parts).astype(int) for parts in zip(*mine, strict=True))
    at = [np.concatenate([np.full(len(pair[k]), j) for j, pair in enumerate(mine)]).astype(int) for k in (0, 1)]
    return (
        Truth(
            len(drawn),
            truth.classes,
            at[0],
            *(x[rows] for x in (truth.boxes, truth.labels, truth.crowd, truth.difficult, truth.areas)),
        ),
        Detections(at[1], detections.boxes[found], detections.scores[found], detections.labels[found]),
    )


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_resample_is_the_test_set_with_its_images_repeated(seed):
    truth, detections = sample(seed)
    counts = np.random.default_rng(seed).multinomial(truth.n_images, np.ones(truth.n_images) / truth.n_images)
    again = replicated(truth, detections, counts)
    wanted = [value for value, _, _ in coco_ap(*again, resamples=0).metrics.values()]
    np.testing.assert_allclose(resampled(truth, detections, counts), wanted, atol=1e-12)
    for metric, rule in (("area", precision_recall.area_below), ("11-point", precision_recall.eleven_points)):
        curves = [precision_recall.curves(m)[0][0] for m in match_voc(truth, detections, as_text=True)]
        column = counts.astype(float)[:, None]
        mean = nanmean(np.array([precision_recall.average_precision(c, column, rule)[0] for c in curves]))
        assert mean == pytest.approx(voc_ap(*again, metric, resamples=0).metrics["AP50"][0], abs=1e-12, nan_ok=True)


def test_blocks_do_not_change_the_intervals(monkeypatch):
    truth, detections = sample(3)
    whole = coco_ap(truth, detections, resamples=20), voc_ap(truth, detections, "11-point", resamples=20)
    monkeypatch.setattr(precision_recall, "_BLOCK", 7)
    parts = coco_ap(truth, detections, resamples=20), voc_ap(truth, detections, "11-point", resamples=20)
    for a, b in zip(parts, whole, strict=True):
        np.testing.assert_allclose(list(a.metrics.values()), list(b.metrics.values()), atol=1e-12)


def test_intervals_hold_the_value_and_shrink_with_more_images():
    few, many = (sample(5, n_images=n, objects=8 * n, found=24 * n) for n in (10, 160))
    widths = []
    for truth, detections in (few, many):
        for value, low, high in coco_ap(truth, detections, resamples=100).metrics.values():
            assert 0 <= low <= value <= high <= 1
        _, low, high = voc_ap(truth, detections, "area", resamples=100).metrics["AP50"]
        widths.append(high - low)
    assert widths[1] < widths[0] / 2.5  # four times as narrow, were it not for chance


@pytest.mark.parametrize(("moved", "value"), [(0, 1.0), (500, 0.0)])
def test_the_interval_has_a_width_where_no_resample_differs(moved, value):
    n = 5
    boxes = np.tile(np.float32([[10, 10, 40, 40]]), (n, 1))
    zeros, no = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    truth = Truth(n, ("a",), np.arange(n), boxes, zeros, no, no, np.full(n, 900.0))
    scores = np.linspace(0.5, 0.9, n, dtype=np.float32)
    metrics = coco_ap(truth, Detections(np.arange(n), boxes + moved, scores, zeros), resamples=50).metrics
    assert metrics["AP"] == pytest.approx((value, *wilson(value, n, student(n - 1))), abs=1e-6)
    assert metrics["AP"][2] - metrics["AP"][1] > 0.5
    assert np.isnan(metrics["APl"]).all()


def test_the_interval_is_the_percentiles_mirrored_at_the_value():
    """As AP is biased upwards by few distinct objects, the plain percentiles would lie too high."""
    truth, detections = sample(8, n_images=40, objects=120, found=300)
    value, low, high = voc_ap(truth, detections, "area", seed=1, resamples=400).metrics["AP"]
    curves = [precision_recall.curves(m)[0] for m in match_voc(truth, detections, as_text=True)]
    rng = np.random.default_rng(0)
    draws = rng.multinomial(40, np.ones(40) / 40, size=400).T.astype(float)
    rule = precision_recall.area_below
    values = np.mean([[precision_recall.average_precision(c, draws, rule) for c in row] for row in curves], axis=(0, 1))
    assert values.mean() > value
    lower, upper = np.quantile(values, [0.025, 0.975])
    assert (low, high) == pytest.approx((2 * value - upper, 2 * value - lower), abs=0.015)


def one_class(n, boxes, scores, **flags):
    """Images with one object each in the same place, and one detection each."""
    box = np.tile([[10.0, 10.0, 50.0, 50.0]], (n, 1))
    no = np.zeros(n, dtype=bool)
    truth = Truth(
        n, ("a",), np.arange(n), box, np.zeros(n, int), flags.get("crowd", no), flags.get("difficult", no), box[:, 0]
    )
    return truth, Detections(
        np.arange(len(boxes)), np.array(boxes, float).reshape(-1, 4), np.array(scores, float), np.zeros(len(boxes), int)
    )


def test_a_recall_of_three_tenths_misses_its_level_in_the_2007_metric():
    """Detectron2's levels: perfect precision up to a recall of .3 gives 3/11 and not 4/11."""
    truth, detections = one_class(10, [[10, 10, 50, 50]] * 3, [0.9, 0.8, 0.7])
    assert voc_ap(truth, detections, "11-point", resamples=0).metrics["AP50"][0] == pytest.approx(3 / 11)
    assert voc_ap(truth, detections, "area", resamples=0).metrics["AP50"][0] == pytest.approx(3 / 10)


def test_levels_are_reached_as_the_quotients_say():
    """7 of 100 reach the level .07, though .07 * 100 is a hair more than 7."""
    totals = np.arange(1, 301, dtype=float)
    for levels in (np.linspace(0, 1, 101), np.arange(0, 1.1, 0.1)[:11]):
        shares = np.arange(302)[:, None] / totals
        wanted = np.stack([(shares >= level).argmax(axis=0) for level in levels])
        np.testing.assert_array_equal(precision_recall._needed(levels, totals), wanted)


def test_an_overlap_of_exactly_one_half_counts_for_coco_and_not_for_voc():
    truth, detections = one_class(1, [[10, 10, 50, 30]], [0.9])
    assert coco_ap(truth, detections, resamples=0).metrics["AP50"][0] == pytest.approx(1)
    assert resampled(truth, detections, [1])[AP50] == pytest.approx(1)
    assert voc_ap(truth, detections, "area", resamples=0).metrics["AP50"][0] == 0


def test_a_difficult_object_is_neither_missed_nor_found():
    difficult = np.array([True, False])
    truth, detections = one_class(2, [[10, 10, 50, 50], [10, 10, 50, 50]], [0.9, 0.5], difficult=difficult)
    nothing = one_class(2, np.zeros((0, 4)), [], difficult=difficult)[1]
    for score in (lambda d: voc_ap(truth, d, "area", resamples=0), lambda d: coco_ap(truth, d, resamples=0)):
        assert score(detections).metrics["AP50"][0] == pytest.approx(1)
        assert score(nothing).metrics["AP50"][0] == 0
    twice = Detections(np.array([0, 0, 1]), detections.boxes[[0, 0, 1]], np.array([0.9, 0.8, 0.5]), np.zeros(3, int))
    assert voc_ap(truth, twice, "area", resamples=0).metrics["AP50"][0] == pytest.approx(1)


def test_a_crowd_takes_any_number_of_detections():
    crowd = np.array([True, False])
    truth, _ = one_class(2, [], [], crowd=crowd)
    inside = np.array([[12, 12, 20, 20], [30, 30, 40, 40], [10, 10, 50, 50]], dtype=float)
    detections = Detections(np.array([0, 0, 1]), inside, np.array([0.9, 0.8, 0.5]), np.zeros(3, int))
    assert coco_ap(truth, detections, resamples=0).metrics["AP"][0] == pytest.approx(1)
    assert resampled(truth, detections, [1, 1])[AP50] == pytest.approx(1)


def test_an_object_that_counts_is_found_before_the_crowd_around_it():
    boxes = np.array([[10, 10, 50, 50], [0, 0, 60, 60]], dtype=float)
    crowd, no, zeros = np.array([False, True]), np.zeros(2, dtype=bool), np.zeros(2, dtype=int)
    truth = Truth(1, ("a",), zeros, boxes, zeros, crowd, no, np.array([1600.0, 3600.0]))
    detections = Detections(zeros[:1], np.array([[12.0, 10, 50, 50]]), np.ones(1), zeros[:1])
    assert coco_ap(truth, detections, resamples=0).metrics["AP50"][0] == pytest.approx(1)
    assert resampled(truth, detections, [1])[AP50] == pytest.approx(1)


def test_a_class_without_objects_is_left_out():
    truth, detections = one_class(4, [[10, 10, 50, 50]] * 4, [0.9] * 4)
    wider = Truth(
        4, ("a", "b"), *(getattr(truth, n) for n in ("images", "boxes", "labels", "crowd", "difficult", "areas"))
    )
    found = Detections(detections.images, detections.boxes, detections.scores, np.array([0, 0, 0, 1]))
    for got in (coco_ap(wider, found, resamples=20), voc_ap(wider, found, "area", resamples=20)):
        assert got.metrics["AP50"][0] == pytest.approx(0.75, abs=0.01)
        assert np.isnan(got.per_class["b"])


def test_nothing_found_is_zero_and_nothing_there_is_nan():
    truth, nothing = one_class(3, np.zeros((0, 4)), [])
    for scores in (coco_ap(truth, nothing, resamples=20), voc_ap(truth, nothing, "11-point", resamples=20)):
        assert scores.metrics["AP"] == pytest.approx((0, *wilson(0, 3, student(2))))
    empty, found = one_class(0, [], [])[0], one_class(3, [[10, 10, 50, 50]] * 3, [0.9] * 3)[1]
    empty = Truth(3, ("a",), *(getattr(empty, n) for n in ("images", "boxes", "labels", "crowd", "difficult", "areas")))
    assert np.isnan(coco_ap(empty, found, resamples=20).metrics["AP"]).all()
    assert np.isnan(voc_ap(empty, found, "area", resamples=20).metrics["AP"]).all()


def test_only_the_hundred_surest_detections_count_for_coco():
    truth, _ = one_class(1, [], [])
    boxes = np.tile([[200.0, 200.0, 210.0, 210.0]], (101, 1))
    boxes[-1] = [10, 10, 50, 50]
    detections = Detections(np.zeros(101, int), boxes, np.linspace(1, 0.5, 101), np.zeros(101, int))
    assert coco_ap(truth, detections, resamples=0).metrics["AR100"][0] == 0
    assert resampled(truth, detections, [1])[AP50] == 0
    assert voc_ap(truth, detections, "area", resamples=0).metrics["AP50"][0] == pytest.approx(1 / 101)


def test_voc_rounds_as_its_files_do():
    """Scores that differ in the fourth decimal are equal in a file, so the earlier image comes first."""
    truth, detections = one_class(2, [[100, 100, 120, 120], [10, 10, 50, 50]], [0.50001, 0.50002])
    half = Truth(2, ("a",), truth.images[1:], truth.boxes[1:], *(np.zeros(1, t) for t in (int, bool, bool, float)))
    assert voc_ap(half, detections, "area", resamples=0).metrics["AP50"][0] == pytest.approx(0.5)
    assert voc_ap(half, detections, "area", as_text=False, resamples=0).metrics["AP50"][0] == pytest.approx(1)


def bitmap(*boxes):
    grid = np.zeros((60, 80), dtype=bool)
    for x1, y1, x2, y2 in boxes:
        grid[y1:y2, x1:x2] = True
    return grid


def test_masks_are_scored_by_their_own_overlap():
    """Same boxes, but half of the mask: overlap .5 exactly, so only AP50 sees it."""
    box = np.array([[10.0, 10, 50, 50]])
    whole, half = masks.encode(bitmap((10, 10, 50, 50))), masks.encode(bitmap((10, 10, 30, 50)))
    no = np.zeros(1, dtype=bool)
    truth = Truth(1, ("a",), np.zeros(1, int), box, np.zeros(1, int), no, no, np.array([1600.0]), (whole,))
    found = Detections(np.zeros(1, int), box, np.ones(1), np.zeros(1, int), (half,))
    assert coco_ap(truth, found, kind="boxes", resamples=0).metrics["AP"][0] == pytest.approx(1)
    scores = coco_ap(truth, found, kind="masks", resamples=10).metrics
    assert (scores["AP50"][0], scores["AP"][0], scores["AR100"][0]) == pytest.approx((1, 0.1, 0.1))
    with pytest.raises(ValueError, match="have none"):
        coco_ap(truth, Detections(np.zeros(1, int), box, np.ones(1), np.zeros(1, int)), kind="masks")


def test_the_size_of_a_mask_is_its_own_and_not_that_of_its_box():
    """A wrong mask of 100 pixels in a box of 2,000 is a small one, so it counts against APs."""
    no, zeros = np.zeros(1, dtype=bool), np.zeros(1, dtype=int)
    there, wrong = masks.encode(bitmap((0, 0, 10, 10))), masks.encode(bitmap((20, 10, 30, 15), (60, 40, 70, 45)))
    truth = Truth(1, ("a",), zeros, np.array([[0.0, 0, 10, 10]]), zeros, no, no, np.array([100.0]), (there,))
    boxes = np.array([[20.0, 10, 70, 45], [0, 0, 10, 10]])
    found = Detections(np.zeros(2, int), boxes, np.array([0.9, 0.8]), np.zeros(2, int), (wrong, there))
    assert coco_ap(truth, found, kind="masks", resamples=0).metrics["APs"][0] == pytest.approx(0.5)
    assert coco_ap(truth, found, kind="boxes", resamples=0).metrics["APs"][0] == pytest.approx(1)


def test_every_form_of_mask_gives_the_same_pixels():
    grid = bitmap((10, 10, 50, 50), (60, 20, 70, 30))
    polygons = [[10, 10, 50, 10, 50, 50, 10, 50], [60, 20, 70, 20, 70, 30, 60, 30]]
    flat = grid.T.ravel()
    edges = np.flatnonzero(np.diff(np.r_[False, flat]))
    counts = np.diff(np.r_[0, edges, flat.size]).tolist()
    kwcoco = [{"exterior": np.reshape(p, (-1, 2)).tolist(), "interiors": []} for p in polygons]
    compressed = masks.text(masks.encode(grid))
    assert json.loads(json.dumps(compressed)) == compressed
    for form in (polygons, {"size": [60, 80], "counts": counts}, compressed, kwcoco):
        assert masks.problem(form) is None
        np.testing.assert_array_equal(masks.decode(masks.to_rle(form, 60, 80)), grid)
    assert masks.areas([masks.encode(grid)])[0] == grid.sum()
    hole = {"exterior": kwcoco[0]["exterior"], "interiors": [[[20, 20], [30, 20], [30, 30], [20, 30]]]}
    wanted = bitmap((10, 10, 50, 50)) & ~bitmap((20, 20, 30, 30))
    np.testing.assert_array_equal(masks.decode(masks.to_rle(hole, 60, 80)), wanted)
    thin = [{"exterior": [[2, 2], [5, 2]], "interiors": []}]
    for empty in ([], thin, [[2, 2, 5, 2]]):
        assert masks.is_empty(empty) and not masks.decode(masks.to_rle(empty, 60, 80)).any()
    assert not masks.is_empty(thin + kwcoco)
    np.testing.assert_array_equal(masks.decode(masks.to_rle(thin + kwcoco, 60, 80)), grid)


GOOD = [[0, 0, 4, 0, 4, 4.5]]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ([[1, 2, 3, 4, 5]], "list of numbers x, y"),
        ([[1, 2, 3, 4, 5, float("nan")]], "not a finite number"),
        ([[1, 2, 3, 4, 5, "6"]], "not a finite number"),
        ({"counts": "abc"}, "'counts' and 'size'"),
        ({"exterior": [[0, 0], 1]}, "list of points"),
        ({"exterior": [[0, 0], [1, None]]}, "not a finite number"),
        ({"exterior": [[0, 0], [4, 0], [4, 4]], "interiors": [[[1, 1], [1, None]]]}, "not a finite number"),
        ("abc", "neither polygons nor run lengths"),
        ({"counts": [4800], "size": [80, 60]}, "but the image is"),
    ],
)
def test_a_damaged_mask_says_why(form, words):
    with pytest.raises(ValueError, match=words):
        masks.to_rle(form, 60, 80)
    found = masks.problem(form)
    assert masks.first_problem([None, GOOD, form, GOOD, form]) == (None if found is None else (2, found))
    assert masks.first_problem([GOOD, None, [], GOOD]) is None


@pytest.mark.parametrize("what", ["boxes", "scores", "labels", "images"])
def test_arrays_that_do_not_fit_are_refused(what):
    arrays = {"images": np.zeros(2, int), "boxes": np.ones((2, 4)), "scores": np.ones(2), "labels": np.zeros(2, int)}
    arrays[what] = arrays[what] - 1 if what in ("labels", "images") else arrays[what] * np.nan
    with pytest.raises(ValueError, match=r"not a finite number|-1"):
        Detections(**arrays)


def test_result_files_hold_the_detections_and_the_ids_of_the_manifest(tmp_path):
    _, detections = sample(1)
    rle = tuple(masks.encode(bitmap((i % 20, 5, i % 20 + 10, 20))) for i in range(len(detections)))
    detections = Detections(detections.images, detections.boxes, detections.scores, detections.labels, rle)
    file = tmp_path / "new" / "boxes.json"
    write_results(file, detections, [70, 10, 20, 30, 40, 50], [9, 7, 8])
    rows = json.loads(file.read_text())
    assert [row["image_id"] for row in rows] == np.array([70, 10, 20, 30, 40, 50])[detections.images].tolist()
    assert [row["category_id"] for row in rows] == np.array([9, 7, 8])[detections.labels].tolist()
    np.testing.assert_array_equal([row["score"] for row in rows], detections.scores)
    boxes = np.array([row["bbox"] for row in rows])
    np.testing.assert_allclose(boxes[:, :2], detections.boxes[:, :2])
    np.testing.assert_allclose(boxes[:, 2:], detections.boxes[:, 2:] - detections.boxes[:, :2])
    np.testing.assert_array_equal(masks.decode(rows[3]["segmentation"]), masks.decode(rle[3]))
    assert [path.name for path in file.parent.iterdir()] == ["boxes.json"]
