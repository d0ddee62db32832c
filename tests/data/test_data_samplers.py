"""Samplers: every image or every class equally often, the same from any position on, for every process its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.data.images import Arrays
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.loading.samplers import SAMPLERS, epoch_order, occurrences
from sslbench.data.source import Source
from sslbench.data.views import Augment, View
from sslbench.errors import UsageError
from sslbench.targets.none import Unlabelled

CLASSES = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(lambda found: np.array(found, dtype=np.int64))
EPOCH = st.integers(0, 3)


def order_of(sampler, classes, epoch=0, seed=0):
    return epoch_order(sampler, len(classes), classes, seed=seed, epoch=epoch)


@settings(max_examples=100, deadline=None)
@given(CLASSES, EPOCH, st.sampled_from(["shuffled", "stratified"]))
def test_every_image_once(classes, epoch, sampler):
    assert sorted(order_of(sampler, classes, epoch)) == list(range(len(classes)))


@settings(max_examples=100, deadline=None)
@given(CLASSES, EPOCH)
def test_every_class_equally_often_and_every_image_of_a_class(classes, epoch):
    order = order_of("balanced", classes, epoch)
    assert len(order) == len(classes)
    present = np.unique(classes)
    per_class = np.bincount(classes[order], minlength=6)[present]
    assert per_class.max() - per_class.min() <= 1
    per_image = np.bincount(order, minlength=len(classes))
    for name in present:
        assert np.ptp(per_image[classes == name]) <= 1


WEIGHTS = st.lists(st.floats(0.01, 100), min_size=6, max_size=6).map(np.array)


@settings(max_examples=200, deadline=None)
@given(CLASSES, WEIGHTS, EPOCH)
def test_every_source_comes_by_its_weight_and_every_image_of_a_source_equally_often(origins, weights, epoch):
    order = epoch_order("weighted", len(origins), origins, seed=0, epoch=epoch, weights=weights)
    assert len(order) == len(origins)
    present = np.unique(origins)
    exact = weights[present] / weights[present].sum() * len(origins)
    shown = np.bincount(origins[order], minlength=6)[present]
    assert np.abs(shown - exact).max() < 1 + 1e-9
    per_image = np.bincount(order, minlength=len(origins))
    for name in present:
        assert np.ptp(per_image[origins == name]) <= 1


def test_over_the_epochs_the_shares_are_those_of_the_weights_and_every_image_is_shown():
    origins, weights = np.array([0] * 80 + [1] * 9 + [2] * 11), np.array([1.0, 3.3, 0.4])
    orders = [epoch_order("weighted", 100, origins, seed=3, epoch=e, weights=weights) for e in range(400)]
    shown = np.bincount(np.concatenate(orders), minlength=100)
    shares = np.array([shown[origins == name].sum() for name in range(3)]) / 400
    assert shares == pytest.approx(weights / weights.sum() * 100, abs=0.1)
    for name in range(3):
        part = shown[origins == name]
        assert part.min() > 0.6 * part.mean()


@settings(max_examples=100, deadline=None)
@given(CLASSES, EPOCH)
def test_a_stretch_has_nearly_the_shares_of_the_classes(classes, epoch):
    order = order_of("stratified", classes, epoch)
    n, present = len(classes), np.unique(classes)
    for name in present:
        so_far = np.cumsum(classes[order] == name)
        share = (classes == name).mean()
        # At any moment each class is ahead or behind by less than one image.
        assert np.abs(so_far - share * np.arange(1, n + 1)).max() <= 1 + share * len(present)


def test_over_the_epochs_every_image_of_a_frequent_class_is_shown():
    classes = np.array([0] * 90 + [1] * 10)
    shown = np.concatenate([order_of("balanced", classes, epoch) for epoch in range(40)])
    counts = np.bincount(shown, minlength=100)
    assert counts.min() > 0
    assert abs(counts[:90].sum() - counts[90:].sum()) <= 40
    assert np.ptp(counts[90:]) <= 40 and 8 < counts[:90].mean() < 40


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "shards"])  # test_data_sharded.py
def test_the_order_depends_on_seed_epoch_and_process_only(sampler):
    classes = np.arange(60) % 3
    first = order_of(sampler, classes)
    assert np.array_equal(first, order_of(sampler, classes))
    for other in ({"epoch": 1}, {"seed": 1}):
        assert not np.array_equal(first, order_of(sampler, classes, **other))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40).map(lambda x: np.array(x, dtype=np.int64)))
def test_occurrences_are_counted(order):
    assert occurrences(order).tolist() == [order[:i].tolist().count(v) for i, v in enumerate(order.tolist())]


VIEWS = Augment((View(1, 8, scale=(0.2, 0.9)),))


def source_of(names):
    pixels = np.random.default_rng(0).integers(0, 256, (len(names), 12, 12, 3), dtype=np.uint8)
    ids = tuple(f"{i:04d}" for i in range(len(names)))
    images, origin = Arrays(pixels, "photos"), {"origin": tuple(names)}
    return Source("photos/", ids, single_labels(list(names)), images, attributes=origin)


def shown(data, start, stop):
    return [(batch.indices.numpy(), batch.views[0].numpy()) for batch in data.batches(start, stop)]


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "shards"])  # test_data_sharded.py
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_continued_sees_what_an_uninterrupted_one_sees(sampler, workers):
    data = TrainingData(source_of("a" * 20 + "b" * 5 + "c" * 2), VIEWS, batch_size=4, sampler=sampler)
    again = TrainingData(
        data_source := source_of("a" * 20 + "b" * 5 + "c" * 2), VIEWS, batch_size=4, sampler=sampler, workers=workers
    )
    assert len(data_source) == 27
    whole, rest = shown(data, 0, 15), shown(again, 8, 15)
    for (i, x), (j, y) in zip(whole[8:], rest, strict=True):
        assert np.array_equal(i, j) and np.array_equal(x, y)


def test_an_image_that_comes_again_in_an_epoch_has_other_views():
    data = TrainingData(source_of("a" * 11 + "b"), VIEWS, batch_size=12, sampler="balanced")
    ((indices, views),) = shown(data, 0, 1)
    of_b = views[indices == 11]
    assert len(of_b) == 6
    assert len({view.tobytes() for view in of_b}) > 3


@pytest.mark.parametrize("sampler", ["balanced", "stratified"])
def test_each_batch_of_three_processes_is_one_of_a_single_process(sampler):
    source = source_of("a" * 40 + "b" * 8)
    alone = TrainingData(source, VIEWS, batch_size=24, sampler=sampler)
    ranks = [TrainingData(source, VIEWS, batch_size=8, rank=r, world=3, sampler=sampler) for r in range(3)]
    parts = [shown(data, 0, 4) for data in ranks]
    for number, (whole, views) in enumerate(shown(alone, 0, 4)):
        for rank in range(3):
            assert (parts[rank][number][0] == whole[rank::3]).all()
            assert (parts[rank][number][1] == views[rank::3]).all()


@pytest.mark.parametrize("labels", [Unlabelled(6), multi_labels([["a"]] * 6)])
def test_without_one_class_per_image_it_is_refused(labels):
    source = Source("photos/", tuple("abcdef"), labels, source_of("aabbcc").images)
    with pytest.raises(UsageError, match="sampler=balanced needs images with one class each"):
        TrainingData(source, VIEWS, batch_size=2, sampler="balanced")
    with pytest.raises(UsageError, match=r"no sampler 'balance'.*balanced"):
        TrainingData(source, VIEWS, batch_size=2, sampler="balance")
