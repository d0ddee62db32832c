"""Constant box: the median of the training boxes of each class, in shares of the image, on every test image."""

import dataclasses

import numpy as np
import pytest
from helpers import drawn_figures
from helpers.drawn_rectangles import recipe, source

from sslbench.detection.evaluate import score
from sslbench.detection.floors import constant_boxes
from sslbench.metrics.detection import Detections


def test_each_class_has_its_median_box_scaled_to_the_image():
    """Wide boxes are (4 + i, 6, 20 + i, 14), tall ones (30 - i, 20, 36 - i, 40), i = 0 .. 4, in 48 x 48 pixels."""
    test = source(2, height=96, width=24)
    found = constant_boxes(source(5), test)
    expected = [[3, 12, 11, 28], [14, 40, 17, 80]]  # i = 2, twice as high and half as wide
    assert found.images.tolist() == [0, 0, 1, 1] and found.labels.tolist() == [0, 1, 0, 1]
    assert found.boxes == pytest.approx(np.array(expected * 2)) and found.scores == pytest.approx(0.5)


def test_crowds_and_images_without_objects_do_not_count():
    found = constant_boxes(source(5, crowd=(3,), empty=(4,)), source(1))
    assert found.boxes[0] == pytest.approx([5, 6, 21, 14])  # of i = 0, 1, 2


def test_without_sizes_edges_are_pixels_and_without_a_box_of_a_class_there_is_none():
    train = source(1)
    train = dataclasses.replace(train, target=train.target.changed(sizes=np.zeros_like(train.target.sizes)))
    assert constant_boxes(train, source(1, height=96)).boxes[0] == pytest.approx([4, 6, 20, 14])
    assert len(constant_boxes(source(2, empty=(0, 1)), source(1))) == 0


def test_where_all_images_are_alike_it_finds_everything():
    data = source(1)
    scores, _ = score(data.truth(), constant_boxes(data, data), recipe(), seed=0, resamples=0)
    assert scores.metrics["AP"][0] == pytest.approx(1)


def test_perfect_boxes_of_other_images_are_worth_no_more():
    """A figure stands at a random place of each picture."""
    train, test = drawn_figures.source(60), drawn_figures.source(60, start=60)
    truth, found = test.truth(), {"constant": constant_boxes(train, test)}
    for name, shift in (("own", 0), ("others", 1)):
        images = (truth.images + shift) % len(test)
        found[name] = Detections(images, truth.boxes, np.ones(len(images)), truth.labels)
    made = recipe()
    level = {name: score(truth, each, made, seed=0, resamples=0)[0].metrics["AP"][0] for name, each in found.items()}
    assert level["own"] == 1 and level["others"] < level["constant"] < 0.1
