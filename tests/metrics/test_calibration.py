import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss

from sslbench.metrics import classification
from sslbench.metrics.classification import CalibrationError, softmax


def expected_calibration_error(classes, probabilities, **how):
    return CalibrationError(classes, probabilities, **how).value(np.ones((1, len(classes))))[0]


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


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.integers(2, 6), st.booleans(), st.integers(0, 2**31))
def test_equal_to_scikit_learn_and_to_the_definition(n, n_classes, shares, seed):
    classes, probabilities = sample(n, n_classes, seed, shares=shares)
    labels = np.arange(n_classes)
    loss = classification.log_losses(classes, probabilities).mean()
    assert loss == pytest.approx(log_loss(classes, probabilities, labels=labels), abs=1e-9)
    brier = classification.brier_scores(classes, probabilities).mean()
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
    weighted = CalibrationError(classes, probabilities).value(counts[None].astype(float))[0]
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
    error = CalibrationError(classes, of([0.6, 0.7, 0.7, 0.7]), bins=2, adaptive=True).value(np.ones((1, 4)))[0]
    assert error == pytest.approx((0.4 + abs(3 * 0.7 - 2)) / 4)
