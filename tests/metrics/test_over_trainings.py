"""Intervals over trainings and test images: they cover the truth, where those of one training do not."""

import numpy as np
import pytest
import trainings_coverage

from sslbench.metrics.intervals import over_trainings, student


def test_the_half_widths_are_added_as_squares():
    values = [(0.60, 0.50, 0.68), (0.66, 0.57, 0.75), (0.63, 0.52, 0.70)]
    mean, low, high = over_trainings(values)
    between = student(2) * np.std([0.60, 0.66, 0.63], ddof=1) / np.sqrt(3)
    assert mean == pytest.approx(0.63)
    assert (mean - low, high - mean) == pytest.approx((np.hypot(0.10, between), np.hypot(0.08, between)))


def test_one_training_keeps_its_interval_and_values_that_are_missing_are_left_out():
    assert over_trainings([(0.5, 0.4, 0.7)]) == pytest.approx((0.5, 0.4, 0.7))
    assert over_trainings([(0.5, 0.4, 0.7), (np.nan,) * 3]) == pytest.approx((0.5, 0.4, 0.7))
    assert np.isnan(over_trainings([(np.nan,) * 3])).all()


@pytest.mark.parametrize("trainings", [2, 3, 5])
@pytest.mark.parametrize("between", [0.0, 0.4])
def test_the_interval_covers_the_truth(trainings, between):
    """Of 150 intervals of 95 % fewer than 132 come up once in 10,000 times."""
    covered, _ = trainings_coverage.coverage(trainings, 200, between, repeats=150)
    assert covered >= 132 / 150


def test_the_interval_of_one_training_does_not():
    covered, _ = trainings_coverage.coverage(1, 1000, 0.4, repeats=150)
    assert covered < 0.8
