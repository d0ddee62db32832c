"""Nearly equal images are found whatever the block size, and a common offset of all features hides nothing."""

import numpy as np
import pytest

from sslbench.data.duplicates import near_pairs


@pytest.mark.parametrize("block", [3, 7, 1000])
def test_pairs_are_those_of_the_whole_matrix(block):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(20, 6)) + 50, rng.normal(size=(15, 6)) + 50
    a[4] = b[2] + 0.01
    centre = np.concatenate([a, b]).mean(axis=0)
    x, y = ((v - centre) / np.linalg.norm(v - centre, axis=1, keepdims=True) for v in (a, b))
    cosines = x @ y.T
    expected = [(i, int(row.argmax())) for i, row in enumerate(cosines) if row.max() >= 0.8]
    found = near_pairs(a, b, threshold=0.8, block=block)
    assert [pair[:2] for pair in found] == expected
    assert (4, 2) in expected and len(expected) < 10
    assert np.allclose([pair.cosine for pair in found], [cosines[i, j] for i, j in expected], atol=1e-5)


@pytest.mark.parametrize("block", [2, 5, 100])
def test_with_itself_a_pair_counts_once_and_no_image_is_its_own_copy(block):
    vectors = np.random.default_rng(1).normal(size=(12, 40))
    vectors[9] = vectors[1] * 1.001
    assert [pair[:2] for pair in near_pairs(vectors, None, threshold=0.9, block=block)] == [(1, 9)]
