import numpy as np
from helpers.protocol_samples import features
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.protocols._parts import few_shot


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(1, 4))
def test_draws_have_k_of_each_class_and_smaller_ones_lie_in_larger_ones(seed, classes, k):
    rng = np.random.default_rng(seed)
    y = np.r_[np.repeat(np.arange(classes), 5), rng.integers(0, classes, 10)]
    labels = features(np.zeros((len(y), 1)), rng.permutation(y), classes + 1).labels
    large, small = few_shot.k_per_class(labels, k + 1, seed), few_shot.k_per_class(labels, k, seed)
    assert (np.diff(large.rows) > 0).all() and set(small.rows) < set(large.rows)
    np.testing.assert_array_equal(np.bincount(large.labels.values), [k + 1] * classes)
    np.testing.assert_array_equal(labels.values[large.rows], large.labels.values)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 4), st.integers(1, 3))
def test_multi_label_draws_have_k_with_and_the_rest_without_and_never_the_ignored(seed, classes, k):
    rng = np.random.default_rng(seed)
    values = rng.choice([-1, 0, 1], size=(120, classes), p=[0.1, 0.5, 0.4])
    labels = features(np.zeros((120, 1)), values, classes).labels
    draw, smaller = few_shot.k_with_and_without(labels, k + 1, seed), few_shot.k_with_and_without(labels, k, seed)
    assert ((draw.labels.values > 0).sum(axis=0) == k + 1).all()
    assert ((draw.labels.values == 0).sum(axis=0) == (classes - 1) * (k + 1)).all()
    assert (draw.labels.values >= 0).any(axis=1).all()
    taken = draw.labels.values >= 0
    np.testing.assert_array_equal(draw.labels.values[taken], values[draw.rows][taken])
    assert set(smaller.rows) <= set(draw.rows)
