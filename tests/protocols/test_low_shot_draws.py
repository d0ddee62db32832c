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
    labels = features(np.zeros((len(y), 1)), rng.permutation(y), classes + 1).target
    order = few_shot.ByName([f"{i}.png" for i in range(len(y))], seed)
    large, small = few_shot.k_per_class(labels, k + 1, order), few_shot.k_per_class(labels, k, order)
    assert (np.diff(large.rows) > 0).all() and set(small.rows) < set(large.rows)
    np.testing.assert_array_equal(np.bincount(large.labels.values), [k + 1] * classes)
    np.testing.assert_array_equal(labels.values[large.rows], large.labels.values)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 4), st.integers(1, 3))
def test_multi_label_draws_have_k_with_and_the_rest_without_and_never_the_ignored(seed, classes, k):
    rng = np.random.default_rng(seed)
    values = rng.choice([-1, 0, 1], size=(120, classes), p=[0.1, 0.5, 0.4])
    labels = features(np.zeros((120, 1)), values, classes).target
    order = few_shot.ByName([f"{i}.png" for i in range(120)], seed)
    draw, smaller = few_shot.k_with_and_without(labels, k + 1, order), few_shot.k_with_and_without(labels, k, order)
    assert ((draw.labels.values > 0).sum(axis=0) == k + 1).all()
    assert ((draw.labels.values == 0).sum(axis=0) == (classes - 1) * (k + 1)).all()
    assert (draw.labels.values >= 0).any(axis=1).all()
    taken = draw.labels.values >= 0
    np.testing.assert_array_equal(draw.labels.values[taken], values[draw.rows][taken])
    assert set(smaller.rows) <= set(draw.rows)


def test_draws_depend_on_file_names_alone_and_on_the_seed():
    """Class folders may be renamed and listed in another order."""
    ids = [f"{folder}/{name}.png" for folder in ("cat", "dog") for name in ("a", "b", "c", "d", "e", "f")]
    other = [f"{folder}/{name}.png" for folder in ("apple", "wolf") for name in ("a", "b", "c", "d", "e", "f")]
    labels = features(np.zeros((12, 1)), np.repeat([0, 1], 6), 2).target
    renamed = features(np.zeros((12, 1)), np.repeat([1, 0], 6), 2).target
    drawn = [few_shot.k_per_class(labels, 2, few_shot.ByName(ids, seed)).rows.tolist() for seed in range(20)]
    again = [few_shot.k_per_class(renamed, 2, few_shot.ByName(other, seed)).rows.tolist() for seed in range(20)]
    assert drawn == again and len(set(map(tuple, drawn))) > 5  # of 15: classes with equal names have equal draws
    listed = np.random.default_rng(0).permutation(12)
    moved = labels.select(listed)
    rows = few_shot.k_per_class(moved, 2, few_shot.ByName([ids[i] for i in listed], 0)).rows
    assert sorted(ids[listed[row]] for row in rows) == sorted(ids[row] for row in drawn[0])


def test_every_image_of_a_class_is_drawn_alike():
    labels = features(np.zeros((30, 1)), np.arange(30) % 2, 2).target
    drawn = [few_shot.k_per_class(labels, 3, few_shot.ByName(list(map(str, range(30))), seed)) for seed in range(500)]
    times = np.bincount(np.concatenate([draw.rows for draw in drawn]), minlength=30)
    assert times.sum() == 3000 and times.min() > 65 and times.max() < 135  # 100 each, +- 4 standard deviations
