"""Memory, search and labels of in-context segmentation against loops over pixels and patches."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.solvers import in_context
from sslbench.solvers.upsampling import upsampled_classes


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_counts_are_those_of_single_pixels(height, width, rows, columns, seed):
    label = np.random.default_rng(seed).choice([0, 1, 2, 255], (height, width)).astype(np.uint8)
    wanted = np.zeros((rows * columns, 3), int)
    for y in range(height):
        for x in range(width):
            if label[y, x] != 255:
                wanted[y * rows // height * columns + x * columns // width, label[y, x]] += 1
    ours = in_context.class_counts(label, (rows, columns), 3, ignore=(255,))
    np.testing.assert_array_equal(ours, wanted)
    total = wanted.sum(axis=1)
    np.testing.assert_allclose(in_context.shares(ours).sum(axis=1), total > 0, rtol=1e-6)


def test_labels_that_are_no_class_are_refused():
    with pytest.raises(ValueError, match="label 7 is none of the 3 classes"):
        in_context.class_counts(np.array([[7]]), (1, 1), 3, ignore=(255,))


def test_patches_without_counted_pixels_are_never_in_the_memory():
    counts = np.array([[0, 0], [4, 0], [0, 0], [0, 4]])
    for number in (1, 2, 4):
        kept = in_context.sample_patches(counts, number, np.random.default_rng(0))
        assert len(kept) == min(number, 2) and set(kept.tolist()) <= {1, 3}


def test_rare_classes_stay_in_the_memory():
    counts = np.zeros((400, 2), int)
    counts[:, 0], counts[5] = 16, [0, 16]
    kept = [5 in in_context.sample_patches(counts, 40, np.random.default_rng(seed)) for seed in range(50)]
    assert np.mean(kept) == 1.0


@pytest.mark.parametrize("k", [1, 5, 99])
def test_labels_are_the_weighted_mean_of_the_nearest(k, monkeypatch):
    random = np.random.default_rng(0)
    memory, queries = random.normal(size=(40, 6)).astype(np.float32), random.normal(size=(9, 6)).astype(np.float32)
    labels = random.dirichlet(np.ones(3), 40)
    monkeypatch.setattr(in_context, "_GATHERED", 20)  # several blocks
    ours = in_context.nearest_labels(memory, labels, queries, k=k, temperature=0.1)
    unit = memory / np.linalg.norm(memory, axis=1, keepdims=True)
    for found, query in zip(ours, queries / np.linalg.norm(queries, axis=1, keepdims=True), strict=True):
        cosines = unit @ query
        near = np.argsort(-cosines)[:k]
        weights = np.array([math.exp(cosines[row] / 0.1) for row in near])
        np.testing.assert_allclose(found, weights @ labels[near] / weights.sum(), rtol=1e-4)


def test_features_of_zeros_give_labels_and_no_nan():
    labels = np.eye(4)
    ours = in_context.nearest_labels(np.eye(4, dtype=np.float32), labels, np.zeros((1, 4), np.float32), k=4)
    np.testing.assert_allclose(ours, 0.25)


@pytest.mark.parametrize("min_max", [False, True])
@pytest.mark.parametrize("size", [(13, 17), (4, 5), (2, 3)])
def test_classes_of_blocks_are_those_at_once(size, min_max, monkeypatch):
    scores = torch.rand(7, 4, 5, generator=torch.Generator().manual_seed(0))
    scores[3] = 0
    large = torch.nn.functional.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]
    if min_max:
        for own in large:
            if own.max() > 0:
                own.copy_((own - own.min()) / (own.max() - own.min()))
    monkeypatch.setattr("sslbench.solvers.upsampling._BLOCK", 2 * size[0] * size[1])
    assert (upsampled_classes(scores, size, min_max=min_max) == large.argmax(dim=0)).all()


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (6, 1), (5, 8)])
@pytest.mark.parametrize("sparse", [True, False])
def test_classes_that_cannot_win_are_left_out_without_a_difference(grid, sparse):
    generator = torch.Generator().manual_seed(grid[0])
    for _ in range(20):
        scores = torch.rand((40, *grid), generator=generator)
        scores = torch.where(scores > 0.9, scores, 0.0) if sparse else scores
        large = torch.nn.functional.interpolate(scores[None], (31, 43), mode="bilinear", align_corners=False)[0]
        assert (upsampled_classes(scores, (31, 43)) == large.argmax(dim=0)).all()
