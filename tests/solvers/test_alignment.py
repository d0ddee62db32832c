"""Similarity of representations against the formulas written out with whole matrices."""

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from sklearn.cross_decomposition import CCA
from sklearn.decomposition import PCA

from sslbench.evaluation.similarity import MEASURES
from sslbench.solvers.alignment import mutual_knn, procrustes, svcca


def pair(n, widths, seed=0):
    generator = np.random.default_rng(seed)
    shared = generator.normal(size=(n, 4)) * [4, 3, 2, 1]
    return [
        (shared @ generator.normal(size=(4, width)) + 0.8 * generator.normal(size=(n, width)) + 3).astype(np.float32)
        for width in widths
    ]


def test_common_neighbours_are_those_of_all_cosines():
    x, y = pair(60, (8, 5))
    found = []
    for side in (x, y):
        unit = side / np.linalg.norm(side, axis=1, keepdims=True)
        cosines = (unit @ unit.T).astype(np.float64)
        np.fill_diagonal(cosines, -2)
        found.append([set(row[:10]) for row in np.argsort(-cosines, axis=1).tolist()])
    expected = np.mean([len(a & b) / 10 for a, b in zip(*found, strict=True)])
    assert mutual_knn(x, y) == pytest.approx(expected)


def test_svcca_is_the_mean_canonical_correlation_of_principal_components():
    x, y = pair(200, (7, 6))
    first, second = (PCA(0.99, svd_solver="full").fit_transform(side.astype(np.float64)) for side in (x, y))
    number = min(first.shape[1], second.shape[1])
    left, right = CCA(number, scale=False, max_iter=20000, tol=1e-12).fit_transform(first, second)
    expected = np.mean([np.corrcoef(left[:, i], right[:, i])[0, 1] for i in range(number)])
    assert svcca(x, y) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("widths", [(7, 6), (60, 45), (6, 60)])
def test_procrustes_is_what_the_best_rotation_leaves(widths):
    x, y = (side.astype(np.float64) - side.astype(np.float64).mean(axis=0) for side in pair(30, widths))
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    padded = [np.pad(side, ((0, 0), (0, max(widths) - side.shape[1]))) for side in (x, y)]
    turn, _ = orthogonal_procrustes(*padded)
    distance = np.sum((padded[0] @ turn - padded[1]) ** 2)
    assert procrustes(x, y) == pytest.approx(1 - distance / 2, abs=1e-9)


@pytest.mark.parametrize("name", MEASURES)
def test_rotation_and_scale_change_nothing_and_constants_have_no_similarity(name):
    x, y = pair(50, (6, 6))
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    measure = MEASURES[name].matrix
    values = measure([x, np.full_like(x, 0.1)], [2 * x @ turn, y])
    assert values[0, 0] == pytest.approx(1, abs=1e-5) and -0.05 < values[0, 1] < 0.999
    assert np.isnan(values[1]).all()
    assert values[0, 1] == pytest.approx(measure([y], [x])[0, 0])
