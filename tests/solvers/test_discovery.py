"""LOST, TokenCut and DINO-seg against loops, dense eigenvalues and made pictures."""

import numpy as np
import pytest
import scipy.linalg
from scipy import ndimage

from sslbench.solvers import discovery


def picture(seed=0, shape=(9, 11), box=(2, 3, 6, 8), spread=0.1):
    """Features of a background and of an object in a box of rows and columns."""
    random = np.random.default_rng(seed)
    background, thing = random.normal(size=(2, 8))
    mask = np.zeros(shape, bool)
    mask[box[0] : box[2], box[1] : box[3]] = True
    features = np.where(mask.ravel()[:, None], thing - background, background - thing)
    return features + spread * random.normal(size=features.shape), mask


@pytest.mark.parametrize("method", [discovery.lost, discovery.token_cut])
@pytest.mark.parametrize("seed", range(5))
def test_an_object_on_a_background_is_found(method, seed):
    features, mask = picture(seed)
    found = method(features, mask.shape)
    np.testing.assert_array_equal(found.region, mask)
    assert mask.ravel()[found.seed]
    assert found.box(16, 9 * 16, 11 * 16) == (48, 32, 128, 96)


def slow_lost(features, grid, k):
    """Seed and region, with a flood fill by hand."""
    number = len(features)
    product = [[float(np.dot(a, b)) for b in features] for a in features]
    degree = [sum(product[i][j] > 0 for j in range(number) if j != i) for i in range(number)]
    order = sorted(range(number), key=lambda i: (degree[i], i))
    seed = order[0]
    similar = [i for i in order[:k] if product[seed][i] > 0]
    positive = [sum(product[i][j] for i in similar) > 0 for j in range(number)]
    region, edge = {seed}, [seed]
    while edge:
        y, x = divmod(edge.pop(), grid[1])
        for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            cell = v * grid[1] + u
            if 0 <= v < grid[0] and 0 <= u < grid[1] and positive[cell] and cell not in region:
                region.add(cell)
                edge.append(cell)
    return seed, region


@pytest.mark.parametrize("seed", range(8))
def test_lost_is_that_of_loops(seed):
    random = np.random.default_rng(seed)
    # Many sums of whole numbers are exactly zero, which is not positive.
    for features in (random.normal(size=(42, 5)), random.integers(-1, 2, (42, 3)).astype(float)):
        found = discovery.lost(features, (6, 7), k=10)
        assert (found.seed, set(np.flatnonzero(found.region).tolist())) == slow_lost(features, (6, 7), 10)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_eigenvector_is_that_of_the_generalised_problem(weighted):
    features, _ = picture(3, spread=1.5)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosine = unit @ unit.T
    edges = np.where(cosine > 0.2, cosine if weighted else 1.0, 1e-5)
    degree = np.diag(edges.sum(axis=1))
    values, vectors = scipy.linalg.eigh(degree - edges, degree)
    assert values[2] - values[1] > 1e-3
    ours = discovery.second_eigenvector(features, threshold=0.2, epsilon=1e-5, weighted=weighted)
    wanted = vectors[:, 1] * np.sign(vectors[np.abs(vectors[:, 1]).argmax(), 1])
    np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-9)


def test_features_of_zeros_and_single_patches_have_an_object():
    for features, grid in ((np.zeros((6, 3)), (2, 3)), (np.ones((1, 3)), (1, 1))):
        for found in (discovery.lost(features, grid), discovery.token_cut(features, grid)):
            assert found.region.ravel()[found.seed]


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_attended_region(seed):
    attention = np.random.default_rng(seed).random(30) ** 3
    found = discovery.dino_seg(attention, (5, 6), mass=0.6)
    order = sorted(range(30), key=lambda i: -attention[i])
    total, kept = 0.0, []
    for i in order:
        if total >= 0.6 * attention.sum():
            break
        kept.append(i)
        total += attention[i]
    mask = np.isin(np.arange(30), kept).reshape(5, 6)
    regions, number = ndimage.label(mask)
    sizes = [(regions == label).sum() for label in range(1, number + 1)]
    assert found.region.sum() == max(sizes) and (found.region <= mask).all()
    np.testing.assert_array_equal(discovery.attended(attention, 0.6), mask.ravel())


def test_the_last_and_only_region_counts():
    only = np.zeros(12)
    only[[4, 5]] = 1
    assert np.flatnonzero(discovery.dino_seg(only, (3, 4)).region).tolist() == [4, 5]
    assert discovery.dino_seg(np.zeros(12), (3, 4)) is None
