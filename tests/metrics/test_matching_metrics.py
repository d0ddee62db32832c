"""Assignment of clusters to classes against all permutations."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sslbench.metrics.dense import segmentation

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
