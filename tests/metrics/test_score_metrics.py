"""Metrics of scores: classes, ranks, numbers, calibration, places."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    log_loss,
    mean_absolute_error,
    precision_recall_fscore_support,
    r2_score,
    recall_score,
    roc_auc_score,
    root_mean_squared_error,
)
from sklearn.metrics.pairwise import haversine_distances

from sslbench.metrics import classification, ranking, regression
from sslbench.metrics.answers import BestScores, Confidences, places, predicted_classes, softmax, top_k_correct
from sslbench.metrics.catalog import find
from sslbench.metrics.classification import CalibrationError, LabelCounts
from sslbench.metrics.differences import Predictions, difference
from sslbench.metrics.groups import per_class
from sslbench.metrics.intervals import Units, resample_counts
from sslbench.metrics.ranking import OneVsRest, single_class
from sslbench.metrics.regression import (
    ACCURACY,
    EARTH_RADIUS,
    PLACES,
    great_circle_distances,
    located_within,
    weighted_medians,
)
from sslbench.metrics.summary import class_measures, one_measure, summarise, summarise_places
from sslbench.targets.numbers import Numbers


def test_ties_count_against_a_class_whatever_its_number():
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    truth = np.array([0, 1, 1])
    assert top_k_correct(truth, scores, 1).tolist() == [False, False, False]
    assert top_k_correct(truth, scores, 2).tolist() == [True, True, False]
    assert predicted_classes(scores).tolist() == [-1, -1, 2]


def test_top_k_is_not_a_number_with_fewer_classes():
    assert np.isnan(classification.top_k_accuracy(np.array([0, 1]), np.eye(2), 5))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(2, 9), st.integers(0, 2**31))
def test_equal_to_a_stable_sort_and_to_scikit_learn(n, n_classes, seed):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, n_classes, n)
    scores = np.round(generator.normal(size=(n, n_classes)), 1)
    order = [
        sorted(range(n_classes), key=lambda c: (-row[c], c == own)) for own, row in zip(truth, scores, strict=True)
    ]
    for k in range(1, n_classes + 1):
        expected = [own in ranked[:k] for own, ranked in zip(truth, order, strict=True)]
        assert top_k_correct(truth, scores, k).tolist() == expected
    predicted = predicted_classes(scores)
    recall = classification.per_class_recall(truth, predicted, n_classes)
    present = np.unique(truth)
    sklearns = recall_score(truth, predicted, labels=present, average=None, zero_division=0)
    np.testing.assert_allclose(recall[present], sklearns, atol=1e-12)
    assert np.isnan(np.delete(recall, present)).all()
    counts, once = classification.ClassCounts(truth, predicted, n_classes), np.ones((1, len(truth)))
    assert counts.balanced_accuracy(once)[0] == pytest.approx(recall[present].mean())
    counted = np.union1d(truth, predicted[predicted >= 0])
    assert counts.macro_f1(once)[0] == pytest.approx(
        f1_score(truth, predicted, labels=counted, average="macro", zero_division=0), abs=1e-9
    )
    if len(present) == n_classes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a prediction of none is no class of the truth
            sklearns = balanced_accuracy_score(truth, predicted)
        assert sklearns == pytest.approx(np.mean(recall))


def slow_interpolated(targets, scores):
    """The definition, threshold by threshold: at each recall the highest precision at that recall or above."""
    points = []
    for threshold in sorted(set(scores), reverse=True):
        chosen = scores >= threshold
        hits = (targets[chosen] > 0).sum()
        points.append((hits / (targets > 0).sum(), hits / chosen.sum()))
    area, before = 0.0, 0.0
    for recall, _ in points:
        area += (recall - before) * max(p for r, p in points if r >= recall)
        before = recall
    eleven = np.mean([max(p for r, p in points if r >= level / 10 - 1e-12) for level in range(11)])
    return area, eleven


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(0, 2), st.integers(0, 2**31))
def test_equal_to_the_definitions_and_to_scikit_learn(n, digits, seed):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, 2, n)
    targets[:2] = 1, 0
    scores = np.round(generator.normal(size=n), digits)
    weights = generator.integers(1, 4, n)
    area, eleven = slow_interpolated(targets, scores)
    assert single_class(ranking.voc_all_points, targets, scores) == pytest.approx(area, abs=1e-9)
    assert single_class(ranking.voc_11_point, targets, scores) == pytest.approx(eleven, abs=1e-9)
    for ours, theirs in ((ranking.non_interpolated, average_precision_score), (ranking.auroc, roc_auc_score)):
        assert single_class(ours, targets, scores) == pytest.approx(theirs(targets, scores), abs=1e-9)
        expected = theirs(targets, scores, sample_weight=weights)
        assert single_class(ours, targets, scores, weights) == pytest.approx(expected, abs=1e-9)
    # A weight is a repetition, which is what the bootstrap relies on.
    repeated = single_class(ranking.voc_all_points, np.repeat(targets, weights), np.repeat(scores, weights))
    assert single_class(ranking.voc_all_points, targets, scores, weights) == pytest.approx(repeated, abs=1e-9)


@pytest.mark.parametrize("metric", [ranking.voc_all_points, ranking.voc_11_point, ranking.non_interpolated])
def test_ties_do_not_depend_on_the_order_of_the_samples(metric):
    generator = np.random.default_rng(0)
    targets, scores = generator.integers(0, 2, 60), np.round(generator.normal(size=60), 0)
    shuffled = generator.permutation(60)
    assert single_class(metric, targets[shuffled], scores[shuffled]) == single_class(metric, targets, scores)


def test_ignored_samples_and_classes_without_positives_are_left_out():
    labels = np.array([[1, 0, -1], [0, 0, 1], [-1, 0, 0]])
    scores = np.array([[0.5, 0.1, 0.9], [0.1, 0.2, 0.8], [0.9, 0.3, 0.1]])
    values = ranking.per_class(ranking.voc_all_points, labels, scores)
    np.testing.assert_array_equal(values, [1.0, np.nan, 1.0])
    assert ranking.mean_average_precision(labels, scores) == 1.0
    assert np.isnan(ranking.mean_average_precision(np.zeros((3, 2), int), scores[:, :2]))


def numbers(n, columns, seed, digits, offset=0.0):
    """Values and predictions that are right in part; few digits make many equal ones."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, columns))
    return np.round(values, digits) + offset, np.round(values + 0.5 * rng.normal(size=values.shape), digits) + offset


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(3, 60),
    columns=st.integers(1, 3),
    digits=st.integers(0, 3),
    offset=st.sampled_from([0.0, -3.0, 1e5]),
    seed=st.integers(0, 2**31),
)
def test_equal_to_scikit_learn_and_scipy_with_and_without_repeated_samples(n, columns, digits, offset, seed):
    values, predicted = numbers(n, columns, seed, digits, offset)
    drawn = np.random.default_rng(seed).integers(0, n, n)
    counts = np.stack([np.ones(n), np.bincount(drawn, minlength=n)])
    errors = regression.Errors(values, predicted).statistic(counts)
    ranks = regression.Ranks(values, predicted).correlation(counts)[:, 0]
    for row, chosen in enumerate((np.arange(n), drawn)):
        y, p = values[chosen], predicted[chosen]
        assert errors[row, 1:] == pytest.approx([mean_absolute_error(y, p), root_mean_squared_error(y, p)], abs=1e-9)
        if np.ptp(y, axis=0).all():
            assert errors[row, 0] == pytest.approx(r2_score(y, p), abs=1e-9 * (1 + abs(r2_score(y, p))))
        else:
            assert np.isnan(errors[row, 0])
        if np.ptp(y, axis=0).all() and np.ptp(p, axis=0).all():
            expected = np.mean([spearmanr(y[:, c], p[:, c])[0] for c in range(columns)])
            assert ranks[row] == pytest.approx(expected, abs=1e-9)
        else:
            assert np.isnan(ranks[row])


def test_the_summary_leads_with_r2_and_its_intervals_hold_the_values():
    values, predicted = numbers(200, 2, 0, 3)
    found, name, each = summarise(Numbers, ("height", "width"), values, predicted, seed=0)
    assert name == "r2" and set(found) == {"r2", "mae", "rmse", "spearman"}
    assert all(low < value < high for value, low, high in found.values())
    assert found["r2"][0] == Numbers.headline(values, predicted) == pytest.approx(np.mean(list(each.values())))
    worse, _, _ = summarise(Numbers, ("height", "width"), values, -10 * predicted, seed=0)
    assert worse["r2"][2] < 0 and worse["spearman"][0] < -0.8, "no metric is cut off at 0"


def test_a_prediction_of_the_mean_explains_nothing():
    values, _ = numbers(50, 1, 3, 3)
    assert regression.r2(values, np.full_like(values, values.mean())) == pytest.approx(0, abs=1e-12)
    assert regression.r2(values, values) == 1


def expected_calibration_error(classes, probabilities, **how):
    return CalibrationError(Confidences.of(classes, probabilities, "scores"), **how).value(np.ones((1, len(classes))))[
        0
    ]


def sample(n, n_classes, seed, *, shares=False):
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, n_classes, n)
    if shares:  # as kNN votes: many zeros, many ties
        votes = generator.multinomial(5, np.full(n_classes, 1 / n_classes), n)
        return classes, votes / 5
    return classes, softmax(generator.normal(size=(n, n_classes)) * 3)


def slow_error(classes, probabilities, bins):
    """Bin by bin, as Guo et al. 2017 write it."""
    confidence, predicted = probabilities.max(1), probabilities.argmax(1)
    predicted[(probabilities == confidence[:, None]).sum(1) > 1] = -1  # of several, none
    error = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            gap = abs((predicted[inside] == classes[inside]).mean() - confidence[inside].mean())
            error += inside.mean() * gap
    return error


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.integers(2, 6), st.booleans(), st.integers(0, 2**31))
def test_equal_to_scikit_learn_and_to_the_definition(n, n_classes, shares, seed):
    classes, probabilities = sample(n, n_classes, seed, shares=shares)
    labels = np.arange(n_classes)
    sure = Confidences.of(classes, probabilities, "scores")
    loss = sure.log_losses().mean()
    assert loss == pytest.approx(log_loss(classes, probabilities, labels=labels), abs=1e-9)
    brier = sure.brier_scores().mean()
    expected = brier_score_loss(classes, probabilities, labels=labels, scale_by_half=False)
    assert brier == pytest.approx(expected, abs=1e-9)
    found = expected_calibration_error(classes, probabilities)
    assert found == pytest.approx(slow_error(classes, probabilities, 15), abs=1e-9)


def test_adaptive_bins_hold_equal_numbers():
    classes, probabilities = sample(150, 4, 0)
    order = np.argsort(probabilities.max(1))
    gap = probabilities.max(1) - (probabilities.argmax(1) == classes)
    expected = np.mean([abs(gap[part].mean()) for part in np.split(order, 15)])
    assert expected_calibration_error(classes, probabilities, adaptive=True) == pytest.approx(expected, abs=1e-12)


def test_equal_probabilities_share_a_bin_in_any_order():
    classes, probabilities = sample(97, 3, 1, shares=True)
    shuffled = np.random.default_rng(0).permutation(97)
    for adaptive in (False, True):
        one = expected_calibration_error(classes, probabilities, adaptive=adaptive)
        other = expected_calibration_error(classes[shuffled], probabilities[shuffled], adaptive=adaptive)
        assert one == pytest.approx(other, abs=1e-12)


def test_what_is_right_as_often_as_it_says_has_no_error_and_what_is_sure_and_wrong_has_all():
    always = np.tile([0.8, 0.2], (10, 1))
    assert expected_calibration_error(np.array([0] * 8 + [1] * 2), always) == pytest.approx(0)
    assert expected_calibration_error(np.ones(10, int), np.tile([1.0, 0.0], (10, 1))) == pytest.approx(1)


def test_a_weight_is_a_repetition():
    classes, probabilities = sample(40, 3, 2)
    counts = np.random.default_rng(3).integers(0, 4, 40)
    rows = np.repeat(np.arange(40), counts)
    weighted = CalibrationError(Confidences.of(classes, probabilities, "scores")).value(counts[None].astype(float))[0]
    repeated = expected_calibration_error(classes[rows], probabilities[rows])
    assert weighted == pytest.approx(repeated, abs=1e-12)


def test_large_logits_do_not_overflow():
    assert softmax(np.array([[1000.0, 0.0], [-1000.0, -1001.0]]))[:, 0] == pytest.approx([1, 1 / (1 + np.exp(-1))])


def of(confidence):
    return np.column_stack([confidence, 1 - np.array(confidence)])


def test_a_bin_holds_its_upper_end_and_not_its_lower_one():
    """0.6 is the end of the ninth of 15 bins and 0.62 lies in the tenth: a miss does not make up for a hit."""
    classes = np.array([0, 1])
    assert expected_calibration_error(classes, of([0.6, 0.62])) == pytest.approx((0.4 + 0.62) / 2)
    assert expected_calibration_error(classes, of([0.61, 0.62])) == pytest.approx(abs(0.61 + 0.62 - 1) / 2)


def test_equal_probabilities_go_to_the_bin_of_their_middle_one():
    classes = np.array([0, 0, 0, 1])
    error = expected_calibration_error(classes, of([0.6, 0.7, 0.7, 0.7]), bins=2, adaptive=True)
    assert error == pytest.approx((0.4 + abs(3 * 0.7 - 2)) / 4)


def anywhere(n, seed):
    """Places uniform on the sphere, and the poles and both sides of the date line."""
    generator = np.random.default_rng(seed)
    latitudes = np.degrees(np.arcsin(generator.uniform(-1, 1, n)))
    places = np.column_stack([latitudes, generator.uniform(-180, 180, n)])
    places[:6] = [[90, 0], [-90, 77], [0, 180], [0, -180], [10, 179.999], [10, -179.999]]
    return places


def test_distances_are_those_of_scikit_learn():
    one, other = anywhere(200, 0), anywhere(200, 1)[::-1]
    expected = EARTH_RADIUS * haversine_distances(np.radians(one), np.radians(other))
    for shift in (0, 1, 50):
        rolled = np.roll(other, -shift, axis=0)
        rows = np.arange(200)
        assert great_circle_distances(one, rolled) == pytest.approx(expected[rows, (rows + shift) % 200], abs=1e-6)
    assert great_circle_distances(one, other[3]) == pytest.approx(expected[:, 3], abs=1e-6)


def test_the_date_line_and_the_poles_are_no_borders():
    places = [[0.0, 180.0], [0.0, 179.9], [90.0, 0.0], [0.0, 0.0]]
    others = [[0.0, -180.0], [0.0, -179.9], [90.0, 120.0], [0.0, 180.0]]
    found = great_circle_distances(places, others)
    degree = math.pi * EARTH_RADIUS / 180
    assert found == pytest.approx([0, 0.2 * degree, 0, 180 * degree], abs=1e-6)


def test_an_image_at_the_distance_itself_is_within_it():
    assert located_within(np.array([1.0, 25.0, 200.0, 750.0, 2500.0])).tolist() == np.triu(np.ones((5, 5))).tolist()


def test_weighted_medians_are_those_of_repeated_values():
    generator = np.random.default_rng(0)
    for n in (1, 2, 5, 8):
        values = generator.integers(0, 4, n).astype(float)
        weights = generator.integers(0, 3, (20, n)).astype(float)
        weights[:, 0] += 1
        expected = [np.median(np.repeat(values, row.astype(int))) for row in weights]
        assert weighted_medians(values, weights).tolist() == expected


def test_metrics_of_a_case_by_hand():
    """Errors of 0, 10, 100, 500, 1,000 and 10,000 km along the equator."""
    errors = np.array([0, 10, 100, 500, 1000, 10000])
    true = np.zeros((6, 2))
    predicted = np.column_stack([np.zeros(6), np.degrees(errors / EARTH_RADIUS)])
    found = summarise_places(true, predicted, seed=0)
    assert tuple(found) == tuple(metric.name for metric in PLACES)
    assert [found[metric.name][0] for metric in ACCURACY] == pytest.approx(np.array([1, 2, 3, 4, 5]) / 6)
    assert found["median_error_km"][0] == pytest.approx(300) and found["mean_error_km"][0] == pytest.approx(11610 / 6)
    for metric in PLACES:
        value, low, high = found[metric.name]
        assert low <= value <= high and low < high


def test_intervals_keep_groups_together():
    true, predicted = anywhere(40, 0), anywhere(40, 0)
    predicted[:30] = anywhere(40, 1)[:30]
    rows = np.repeat(np.arange(40), 9)
    once = summarise_places(true, predicted, seed=0)
    together = summarise_places(true[rows], predicted[rows], seed=0, groups=rows)
    apart = summarise_places(true[rows], predicted[rows], seed=0)
    for name in ("accuracy@200km", "mean_error_km", "median_error_km"):
        widths = [each[name][2] - each[name][1] for each in (once, together, apart)]
        assert widths[1] == pytest.approx(widths[0], rel=0.35) and widths[2] < 0.6 * widths[1], name


def test_two_models_are_compared_in_kilometres_image_by_image():
    true = anywhere(60, 0)
    near, far = true.copy(), anywhere(60, 5)
    near[:20] = far[:20]
    answers = [Predictions.of(0, places) for places in (near, far)]
    expected = [great_circle_distances(true, places).mean() for places in (near, far)]
    found = difference("mean_error_km", Numbers, true, *answers)
    assert [found.value_a, found.value_b] == pytest.approx(expected) and found.high < 0
    found = difference("accuracy@200km", Numbers, true, *answers)
    assert found.difference == pytest.approx(40 / 60) and found.low > 0
    same = difference("median_error_km", Numbers, true, answers[0], answers[0])
    assert (same.difference, same.low, same.high) == (0, 0, 0)


def test_other_numbers_have_no_metrics_of_places():
    values = np.zeros((4, 3))
    with pytest.raises(KeyError):
        one_measure("accuracy@200km", Numbers, values, values, Units.of(4, None))
    places = one_measure("accuracy@200km", Numbers, values[:, :2], values[:, :2], Units.of(4, None))
    assert places.names == tuple(metric.name for metric in ACCURACY)


def test_the_worst_group_has_the_unit_and_direction_of_its_metric():
    worst = find("worst_group(a (b)).accuracy@25km")
    assert (worst.scale, worst.direction) == (100, 1)
    assert find("worst_group(site).median_error_km").text == "km, less is better"
    assert dataclasses.replace(worst, name="accuracy@25km").title == "Share of images located within 25 km (city)"


METRICS = (ranking.voc_all_points, ranking.voc_11_point, ranking.non_interpolated, ranking.auroc)


def rounded_sample(n, n_classes, digits, seed):
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, n_classes, n)
    return classes, np.round(generator.normal(size=(n, n_classes)) + np.eye(n_classes)[classes], digits)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 2), st.integers(0, 2**31))
def test_every_class_is_what_scikit_learn_says(n, n_classes, digits, seed):
    classes, scores = rounded_sample(n, n_classes, digits, seed)
    names = [f"c{c}" for c in range(n_classes)]
    table = per_class(names, classes, scores)
    expected = precision_recall_fscore_support(
        classes, predicted_classes(scores), labels=np.arange(n_classes), zero_division=np.nan
    )
    for name, column in zip(("precision", "recall", "f1", "n"), expected, strict=True):
        np.testing.assert_allclose([table[name][c] for c in names], column, atol=1e-9)
    for c, name in enumerate(names):
        own = classes == c
        if not own.any() or own.all():
            assert np.isnan(table["auroc"][name])
            continue
        assert table["auroc"][name] == pytest.approx(roc_auc_score(own, scores[:, c]), abs=1e-9)
        found = table["average_precision_noninterpolated"][name]
        assert found == pytest.approx(average_precision_score(own, scores[:, c]), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 50), st.integers(2, 8), st.integers(0, 2), st.integers(0, 2**31))
def test_sparse_sums_and_sorted_passes_count_what_sorting_each_weighting_counts(n, n_classes, digits, seed):
    classes, scores = rounded_sample(n, n_classes, digits, seed)
    weights = next(resample_counts(Units.of(n, None), 5, seed))
    passes = OneVsRest(classes, scores).means(METRICS, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_SMALL", 0)
        fast = OneVsRest(classes, scores).means(METRICS, weights)
    np.testing.assert_array_equal(fast, passes)
    total, number = np.zeros((2, 5, len(METRICS)))
    for c in np.unique(classes):
        for r, counts in enumerate(weights):
            values = np.array([ranking.single_class(m, classes == c, scores[:, c], counts) for m in METRICS])
            total[r] += np.nan_to_num(values)
            number[r] += ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(fast, total / number, atol=1e-9)


def test_small_chunks_give_the_same(monkeypatch):
    classes, scores = rounded_sample(60, 7, 1, 0)
    weights = next(resample_counts(Units.of(60, None), 10, 0))
    monkeypatch.setattr(ranking, "_SMALL", 0)
    whole = OneVsRest(classes, scores).means(METRICS, weights)
    monkeypatch.setattr(ranking, "_RANKED", 100)
    np.testing.assert_array_equal(OneVsRest(classes, scores).means(METRICS, weights), whole)
    monkeypatch.setattr(ranking, "_SUMS", 200)
    np.testing.assert_array_equal(OneVsRest(classes, scores).means(METRICS, weights), whole)


def test_macro_auroc_is_scikit_learns_one_against_the_rest():
    classes, _ = rounded_sample(200, 5, 2, 1)
    probabilities = np.random.default_rng(2).dirichlet(np.ones(5), 200)
    found = OneVsRest(classes, probabilities).means([ranking.auroc], np.ones((1, 200)))[0, 0]
    assert found == pytest.approx(roc_auc_score(classes, probabilities, multi_class="ovr", average="macro"), abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from([0.0, 0.5]), st.integers(0, 2**31))
def test_f1_of_several_labels_is_scikit_learns(n, n_classes, threshold, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, (n, n_classes)).astype(np.int8)
    scores = np.round(generator.normal(size=labels.shape), 1)
    micro, macro = LabelCounts(labels, scores, threshold).f1(np.ones((1, n)))[0]
    given_ = scores > threshold
    each = f1_score(labels, given_, average=None, zero_division=np.nan) if n_classes > 1 else None
    if each is None:
        each = np.array([f1_score(labels[:, 0], given_[:, 0], zero_division=np.nan)])
    overall = f1_score(labels.ravel(), given_.ravel(), zero_division=np.nan)
    np.testing.assert_allclose(micro, overall, atol=1e-9)
    np.testing.assert_allclose(macro, np.nanmean(each) if (~np.isnan(each)).any() else np.nan, atol=1e-9)


def test_ignored_labels_and_classes_without_a_classifier_are_left_out_of_f1():
    labels = np.array([[1, 1, -1], [0, 1, 1], [1, 0, -1]], dtype=np.int8)
    scores = np.array([[1.0, np.nan, 9.0], [1.0, np.nan, -1.0], [1.0, np.nan, 9.0]])
    micro, macro = LabelCounts(labels, scores).f1(np.ones((1, 3)))[0]
    assert macro == pytest.approx((0.8 + 0.0) / 2) and micro == pytest.approx(4 / 6)
    table = per_class("abc", labels, scores)
    assert table["n"] == {"a": 2, "b": 0, "c": 1} and table["recall"]["a"] == 1
    assert np.isnan(table["recall"]["b"]) and np.isnan(table["auroc"]["b"])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(3, 9), st.sampled_from(["softmax", "scores", None]), st.integers(0, 2**31))
def test_the_best_scores_give_all_metrics_that_rank_no_samples(n, n_classes, how, seed):
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, n_classes, n)
    scores = generator.integers(-3, 4, (n, n_classes)) / 2  # with ties
    scores = (softmax(scores) if how == "scores" else scores).astype(np.float32)
    best = BestScores.of(classes, scores, how, kept=3)
    order = np.lexsort((np.broadcast_to(np.arange(n_classes), scores.shape), -scores), axis=1)[:, :3]
    np.testing.assert_array_equal(best.classes, order)
    np.testing.assert_array_equal(predicted_classes(best), predicted_classes(scores))
    np.testing.assert_array_equal(places(classes, best[:]), places(classes, scores))
    once, units = np.ones((1, n)), Units.of(n, None)
    expected, found = (
        {name: value for m in class_measures(classes, each, units, how)
         for name, value in zip(m.names, m.statistic(once)[0].tolist(), strict=True)}
        for each in (scores, best)
    )  # fmt: skip
    assert expected.keys() - found.keys() == {"mAP", "mAP_11pt", "mAP_noninterpolated", "macro_auroc"}
    np.testing.assert_equal(found, {name: expected[name] for name in found})
    table, of_best = (per_class(tuple("abcdefghi"[:n_classes]), classes, each) for each in (scores, best))
    np.testing.assert_equal(of_best, {name: table[name] for name in ("n", "recall", "precision", "f1")})


def test_best_scores_of_a_damaged_file_are_refused():
    best = BestScores.of(np.array([0, 1]), np.eye(2, 5, dtype=np.float32), "softmax", kept=3)
    parts = best.arrays()
    for name, damaged in (
        ("classes", parts["classes"] - 1),
        ("classes", parts["classes"] + 0.5),
        ("classes", parts["classes"] + 5),
        ("places", parts["places"][:1]),
        ("own", parts["own"].astype(str)),
    ):
        with pytest.raises(ValueError, match="the best of 5 scores are"):
            BestScores(5, **(parts | {name: damaged}))
