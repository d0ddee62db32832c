"""Soft labels of joints and their places."""

import numpy as np
import pytest
import torch

from sslbench.solvers.joints import joint_labels, joint_places


def test_a_joint_is_a_small_gaussian_at_the_nearest_cell():
    (label,) = joint_labels(np.array([[1.4, 2.6]]), (5, 4))
    assert np.unravel_index(label.argmax(), label.shape) == (3, 1)
    assert label[3, 2] == pytest.approx(np.exp(-2)) and label[2, 2] == pytest.approx(np.exp(-4))
    assert (label > 0).sum() == 9


def test_joints_at_the_border_stay_on_the_grid():
    labels = joint_labels(np.array([[-0.5, -0.5], [3.49, 4.49]]), (5, 4))
    assert labels[0, 0, 0] == labels[1, 4, 3] == 1 and (labels[0] > 0).sum() == 4


def test_the_place_is_the_weighted_mean_of_the_largest_cells():
    rng = np.random.default_rng(0)
    labels = rng.random((3, 5, 4))
    labels[2] = 0
    found = joint_places(torch.from_numpy(labels), 5)
    for label, place in zip(labels[:2], found, strict=False):
        cells = sorted(((label[y, x], x, y) for y in range(5) for x in range(4)), reverse=True)[:5]
        total = sum(value for value, _, _ in cells)
        assert place.tolist() == pytest.approx([sum(c[0] * c[k] for c in cells) / total for k in (1, 2)])
    assert np.isnan(found[2]).all()
