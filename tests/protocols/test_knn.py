import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.protocol_samples import features
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sslbench.config import result_settings
from sslbench.errors import DataError, UsageError
from sslbench.protocols import knn
from sslbench.protocols._parts.selection import holdout_rows
from sslbench.solvers import neighbours, neighbours_on_device, transfer
from sslbench.solvers.neighbour_blocks import Blocks, rounded
from sslbench.solvers.neighbours import Engine, Scope, nearest
from sslbench.solvers.neighbours_on_device import DeviceBlocks
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel


def oracle(train, test, metric):
    """All similarities in float64, and the train rows in order; of equals the lower row first."""
    train, test = train.astype(np.float64), test.astype(np.float64)
    if metric == "l2":
        similarity = -((test[:, None] - train[None]) ** 2).sum(-1)
    else:
        if metric == "cosine":
            train, test = (a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-300) for a in (train, test))
        similarity = test @ train.T
    return similarity, np.argsort(-np.round(similarity, 9), axis=1, kind="stable")


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize(("n_train", "n_test", "k"), [(1, 1, 1), (3, 32, 3), (50, 99, 20), (700, 101, 200)])
def test_neighbours_are_those_of_a_float64_search_with_duplicates(metric, n_train, n_test, k):
    generator = np.random.default_rng(n_train)
    # Whole numbers make many exact ties; every row occurs several times.
    train = generator.integers(-2, 3, size=(n_train, 4)).astype(np.float32)
    test = generator.integers(-2, 3, size=(n_test, 4)).astype(np.float32)
    similarity, order = oracle(train, test, metric)
    for memory in (1.0, 1e-5):
        found, rows = nearest(train, test, k, metric=metric, max_memory=memory)
        np.testing.assert_array_equal(rows, order[:, :k])
        np.testing.assert_allclose(found, np.take_along_axis(similarity, rows, axis=1), atol=1e-9)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("free", [float("inf"), 0.0], ids=["train on the device", "train sent in blocks"])
def test_the_way_of_a_gpu_gives_the_bits_of_the_processor(metric, free, monkeypatch):
    generator = np.random.default_rng(3)
    train, test = (generator.normal(1, 1, size=(n, 37)).astype(np.float32) for n in (700, 60))
    train[300:500], train[500:600], train[600] = train[:200], train[7], 0
    test[0], test[1], test[2] = train[7], 0, 1e-20
    scope = Scope(left_out=np.arange(700) % 5 == 0)
    expected = [nearest(train, test, 20, metric=metric, max_memory=1.0, scope=each) for each in (None, scope)]
    monkeypatch.setattr(neighbours, "_kind_of_blocks", lambda engine: DeviceBlocks)
    monkeypatch.setattr(neighbours, "_MOST_ROWS", 128)
    monkeypatch.setattr(transfer, "free_memory", lambda device: free)
    engine = Engine("torch", "cpu")
    for searched, (similarity, rows) in zip((None, scope), expected, strict=True):
        found = nearest(train, test, 20, metric=metric, max_memory=1e-3, scope=searched, engine=engine)
        np.testing.assert_array_equal(found[1], rows)
        np.testing.assert_array_equal(found[0], similarity)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_sums_in_another_order_are_rounded_as_on_the_processor(metric):
    """Of 60,000 similarities dozens lie where the order of the sum decides on the last of 40 digits."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 400)).astype(np.float32)
    own, rows = np.arange(200), np.tile(np.arange(300), (200, 1))
    given = x, x, metric, Scope(), Engine("torch", "cpu"), 0.01
    error = np.full(200, 2.0**-53 * 20 * {"cosine": 1, "dot": 600, "l2": 2400}[metric])
    expected, found = (kind(*given).refine(own, rows, 300, error) for kind in (Blocks, DeviceBlocks))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_rounding_on_a_device_is_that_of_numpy():
    values = np.random.default_rng(0).normal(size=10_000) * 10.0 ** np.random.default_rng(1).integers(-200, 200, 10_000)
    half = np.ldexp(1 + np.arange(64) * 2.0**-40, np.arange(64) - 32)  # between two numbers of 40 digits
    values = np.concatenate([values, half, -half, [0.0, 1 - 2.0**-53, np.inf, -np.inf]])
    np.testing.assert_array_equal(neighbours_on_device._round(torch.from_numpy(values)).numpy(), rounded(values))


def test_one_block_or_a_hundred_give_the_same_bits(monkeypatch):
    generator = np.random.default_rng(0)
    train, test = (
        generator.normal(size=(1000, 24)).astype(np.float32),
        generator.normal(size=(60, 24)).astype(np.float32),
    )
    train[500:] = train[:500]
    whole = nearest(train, test, 20, metric="cosine", max_memory=1.0)
    monkeypatch.setattr(neighbours, "_block_size", lambda *_: 10)
    monkeypatch.setattr(neighbours, "_MOST_QUERIES", 7)
    parts = nearest(train, test, 20, metric="cosine", max_memory=1.0)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_collapsed_features_take_the_lowest_rows(metric):
    train, test = np.full((300, 6), 0.3, np.float32), np.full((5, 6), 0.3, np.float32)
    _, rows = nearest(train, test, 7, metric=metric, max_memory=1.0)
    assert (rows == np.arange(7)).all()


def test_zeros_take_the_lowest_rows():
    train = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    for pair in ((train, np.zeros_like(train)), (np.zeros_like(train), train)):
        _, rows = nearest(*pair, 7, metric="dot", max_memory=1.0)
        assert (rows == np.arange(7)).all()


def test_distances_survive_a_large_offset():
    generator = np.random.default_rng(0)
    train, test = (
        generator.integers(0, 50, (300, 5)).astype(np.float32),
        generator.integers(0, 50, (20, 5)).astype(np.float32),
    )
    near = nearest(train, test, 9, metric="l2", max_memory=1.0)[1]
    far = nearest(train + 10000, test + 10000, 9, metric="l2", max_memory=1.0)[1]
    np.testing.assert_array_equal(near, far)


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["softmax", "uniform", "inverse"]), st.booleans())
def test_votes_are_those_of_a_loop(make_seed, vote, multi):
    generator = np.random.default_rng(make_seed)
    n_classes, k = 3, 5
    values = generator.integers(-1, 2, (20, n_classes)) if multi else generator.integers(0, n_classes, 20)
    train = features(generator.normal(size=(20, 3)), values, n_classes)
    test = features(generator.normal(size=(4, 3)), values[:4], n_classes)
    settings = knn.Settings(k=(k,), vote=vote, temperature=0.2)
    scores = knn.run(train, test, settings, seed=0).scores
    similarity, order = oracle(train.x, test.x, "cosine")
    for row in range(4):
        total, known = np.zeros(n_classes), np.zeros(n_classes)
        for j in order[row, :k]:
            s = similarity[row, j]
            weight = {"softmax": np.exp(s / 0.2), "uniform": 1.0, "inverse": 1 / (np.sqrt(max(0, 2 - 2 * s)) + 1e-5)}[
                vote
            ]
            for c in range(n_classes):
                value = values[j, c] if multi else int(values[j] == c)
                total[c] += weight * (value > 0)
                known[c] += weight * (value >= 0)
        expected = np.divide(total, known, out=np.zeros(n_classes), where=known > 0)
        np.testing.assert_allclose(scores[row], expected, rtol=1e-5, atol=1e-7)


def test_large_features_do_not_overflow(make):
    generator = np.random.default_rng(0)
    train = make(1e4 * generator.normal(size=(60, 8)), np.arange(60) % 3, 3)
    outcome = knn.run(train, train, knn.Settings(k=(5,), metric="dot", temperature=0.07), seed=0)
    assert np.isfinite(outcome.scores).all()


def test_k_is_chosen_on_train_and_the_others_are_variants(blobs):
    train, test = blobs(600, 100)
    outcome = knn.run(train, test, knn.Settings(), seed=0)
    assert outcome.selected["on"] == "held-out 10 % of train"
    assert len(outcome.variants) == 3 and f"k={outcome.selected['k']}" not in outcome.variants
    alone = knn.run(train, test, knn.Settings(k=(outcome.selected["k"],)), seed=0)
    np.testing.assert_array_equal(alone.scores, outcome.scores)
    flipped = type(test)(test.x, train.target.select(np.arange(100)[::-1].copy()), test.ids)
    assert knn.run(train, flipped, knn.Settings(), seed=0).selected == outcome.selected


def test_k_is_chosen_on_few_of_many_training_samples_by_their_neighbours_in_the_rest(blobs):
    train, test = blobs(600, 100)
    settings = knn.Settings(k=(1, 5, 40), holdout=30)
    outcome = knn.run(train, test, settings, seed=3)
    assert outcome.selected["on"] == "held-out 30 samples of train"
    fit, held_out = holdout_rows(train.target, 30 / 600, 3, None)
    scores = {}
    for k in settings.k:
        alone = knn.run(train.select(fit), train.select(held_out), knn.Settings(k=(k,)), seed=0)
        scores[k] = alone.metrics["top1"][0]
    assert outcome.selected["k"] == max(settings.k, key=lambda k: (scores[k], -k))
    assert outcome.selected["score"] == scores[outcome.selected["k"]]


@pytest.mark.parametrize("multi", [False, True])
def test_votes_in_blocks_are_the_same(multi, monkeypatch):
    generator = np.random.default_rng(0)
    values = generator.integers(-1, 2, (50, 4)).astype(np.int8) if multi else generator.integers(0, 4, 50)
    labels = (MultiLabel if multi else Classes)(tuple("abcd"), values)
    similarity, neighbours = np.sort(generator.random((33, 6)))[:, ::-1], generator.integers(0, 50, (33, 6))
    whole = knn.vote(similarity, neighbours, labels, knn.Settings())
    monkeypatch.setattr(knn, "_CELLS", 50)
    np.testing.assert_array_equal(knn.vote(similarity, neighbours, labels, knn.Settings()), whole)


def test_k_is_at_most_the_number_of_training_samples(blobs, make):
    train, test = blobs(50, 20)
    outcome = knn.run(train, test, knn.Settings(), seed=0)
    assert "100, 200" in outcome.notes[0]
    given = knn.run(train, test, knn.Settings(k=(60, 90)), seed=0)
    assert given.notes == ("k=60, 90 is more than the 50 training samples; k=50, all of them, was used.",)
    np.testing.assert_array_equal(given.scores, knn.run(train, test, knn.Settings(k=(50,)), seed=0).scores)
    three = make(np.eye(3), [0, 1, 2], 3)
    assert "k=3, all of them" in knn.run(three, three, knn.Settings(), seed=0).notes[0]


@pytest.mark.parametrize("own", [0, 1])
def test_of_equal_votes_that_of_the_nearest_image_comes_first(make, own):
    train, test = make([[1, 0], [2, 1]], [own, 1 - own], 2), make([[1, 0]], [own], 2)
    outcome = knn.run(train, test, knn.Settings(k=(2,), vote="uniform"), seed=0)
    assert outcome.scores.argmax() == own and outcome.metrics["top1"][0] == 1
    np.testing.assert_allclose(outcome.scores, 0.5, atol=1e-6)
    level = make([[1, 0], [2, 0]], [own, 1 - own], 2)
    assert knn.run(level, test, knn.Settings(k=(2,), vote="uniform"), seed=0).metrics["top1"][0] == 0


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_class_without_a_vote_is_not_among_the_first_five(make, number):
    """Six classes, one neighbour of another class."""
    train = make(np.eye(6), np.arange(6), 6)
    test = make(np.roll(np.eye(6)[:1], number, axis=1), [(number + 1) % 6], 6)
    outcome = knn.run(train, test, knn.Settings(k=(1,)), seed=0)
    assert outcome.metrics["top1"][0] == outcome.metrics["top5"][0] == 0


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_equally_near_images_share_the_last_places(make, multi, leave_one_out):
    """The votes are the mean over all orders of the training images, also of more ties than the search holds."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (600, 2)) if not leave_one_out else np.repeat([[0, 1], [1, 0], [1, 1]], 200, axis=0)
    values = rng.integers(-1, 2, (600, 3)) if multi else rng.integers(0, 3, 600)
    train = make(x + 0.5, values, 3)
    test = train if leave_one_out else make(x[:7] + 0.5, values[:7], 3)
    settings = knn.Settings(k=(5, 150), temperature=1.0, leave_one_out=leave_one_out)
    for k in settings.k:
        found = knn.run(train, test, dataclasses.replace(settings, k=(k,)), seed=0).scores
        unit = train.x / np.linalg.norm(train.x, axis=1, keepdims=True)
        for row in range(7):
            similarity = (unit @ (test.x[row] / np.linalg.norm(test.x[row]))).astype(np.float64).round(6)
            if leave_one_out:
                similarity[row] = -np.inf
            last = np.sort(similarity)[-k]
            share = (similarity > last) + (similarity == last) * (k - (similarity > last).sum()) / (
                similarity == last
            ).sum()
            weight = share * np.exp(similarity)
            has, known = (values > 0, values >= 0) if multi else (np.eye(3)[values], np.ones((600, 3)))
            np.testing.assert_allclose(found[row], weight @ has / (weight @ known), atol=1e-5)


@pytest.mark.parametrize("bad", [{"k": ()}, {"k": (0,)}, {"k": (3, 3)}, {"temperature": 0.0}, {"max_memory": 0.0}])
def test_impossible_settings_are_refused(blobs, bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        knn.run(*blobs(), knn.Settings(**bad), seed=0)
    with pytest.raises(UsageError, match="inverse"):
        knn.run(*blobs(), knn.Settings(metric="dot", vote="inverse"), seed=0)


def test_features_that_are_not_finite_name_the_samples(blobs, make):
    train, test = blobs()
    x = test.x.copy()
    x[[3, 8, 9], 2] = np.nan
    x[7, 0] = np.inf
    with pytest.raises(DataError, match=r"4 of 80 test samples .*s00003, s00007, s00008 and 1 more"):
        knn.run(train, make(x, test.target.values, 4), knn.Settings(), seed=0)


@pytest.mark.parametrize("left_out", [None, np.arange(9000) < 10])
def test_the_copies_for_faiss_take_two_thirds_of_the_memory(left_out):
    train, bytes_given = np.ones((9000, 8), np.float32), 1e5
    blocks = Blocks(train, train[:5], "cosine", Scope(left_out=left_out), Engine("faiss"), bytes_given / 1e9)
    assert bytes_given / 6 < 4 * 8 * blocks.faiss_rows <= bytes_given * 2 / 3


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("whole_numbers", [True, False])
@pytest.mark.parametrize("scope", ["all", "left out", "without self"])
def test_faiss_and_torch_give_the_same_bits(metric, whole_numbers, scope):
    generator = np.random.default_rng(1)
    train = generator.normal(size=(900, 12))
    train = (np.round(train) if whole_numbers else train).astype(np.float32)
    test = train if scope == "without self" else np.r_[train[:40] + 0.5, train[:10]].astype(np.float32)
    scopes = {
        "all": Scope(),
        "left out": Scope(np.arange(3, 50, 2), np.arange(900) % 7 < 4),
        "without self": Scope(without_self=True),
    }
    results = [
        nearest(train, test, 15, metric=metric, max_memory=memory, scope=scopes[scope], engine=Engine(library))
        for library in ("torch", "faiss")
        for memory in (1.0, 1e-4)
    ]
    for similarity, rows in results[1:]:
        np.testing.assert_array_equal(rows, results[0][1])
        np.testing.assert_array_equal(similarity, results[0][0])


@pytest.mark.parametrize("library", ["torch", "faiss"])
@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_rows_that_are_left_out_are_no_neighbours(metric, library):
    generator = np.random.default_rng(2)
    train = generator.integers(-2, 3, size=(120, 3)).astype(np.float32)
    left_out = generator.random(120) < 0.7
    rows = np.array([5, 17, 100])
    scope = Scope(rows, left_out)
    found = nearest(train, train, 9, metric=metric, max_memory=1.0, scope=scope, engine=Engine(library))
    kept = np.flatnonzero(~left_out)
    _, order = oracle(train[kept], train[rows], metric)
    np.testing.assert_array_equal(found[1], kept[order[:, :9]])
    everything = Scope(rows, left_out)
    most = nearest(train, train, len(kept), metric=metric, max_memory=1e-5, scope=everything, engine=Engine(library))
    np.testing.assert_array_equal(most[1], kept[order])


@pytest.mark.parametrize("library", ["torch", "faiss"])
def test_rows_of_one_group_are_no_neighbours_however_large_it_is(library):
    generator = np.random.default_rng(2)
    groups = np.repeat(np.arange(4), [40, 3, 50, 7])
    train = (generator.normal(size=(100, 3)) + 10 * groups[:, None]).astype(np.float32)
    scope = Scope(apart=groups)
    assert scope.refused == 50
    found = nearest(train, train, 9, metric="l2", max_memory=1.0, scope=scope, engine=Engine(library))[1]
    distances = np.linalg.norm(train[:, None].astype(np.float64) - train[None], axis=2)
    distances[groups[:, None] == groups] = np.inf
    np.testing.assert_array_equal(found, np.argsort(distances, axis=1)[:, :9])


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_nearly_collapsed_features_are_searched_in_float64(metric):
    """Differences that float32 products cannot see, many of them."""
    generator = np.random.default_rng(3)
    train, test = (1 + 1e-6 * generator.normal(size=(n, 16)) for n in (400, 20))
    train, test = train.astype(np.float32), test.astype(np.float32)
    similarity = oracle(train, test, metric)[0]
    found, rows = nearest(train, test, 10, metric=metric, max_memory=1.0)
    exact = np.take_along_axis(similarity, rows, axis=1)
    best = -np.sort(-similarity, axis=1)[:, :10]
    # The order is that of similarities rounded to 12 digits.
    np.testing.assert_allclose(exact, best, rtol=2e-12, atol=1e-15)
    np.testing.assert_allclose(found, best, rtol=2e-12, atol=1e-15)


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1.0, 1e18])
@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_neighbours_do_not_depend_on_the_size_of_features(metric, scale):
    generator = np.random.default_rng(4)
    train, test = (np.float32(scale) * generator.normal(size=(n, 6)).astype(np.float32) for n in (200, 10))
    train[3] = 0
    _, order = oracle(train / np.float32(scale), test / np.float32(scale), metric)
    np.testing.assert_array_equal(nearest(train, test, 5, metric=metric, max_memory=1.0)[1], order[:, :5])


def test_train_rows_too_small_or_large_for_float32_are_found_too():
    generator = np.random.default_rng(4)
    train, test = (generator.normal(size=(n, 6)).astype(np.float32) for n in (200, 30))
    order = nearest(train, test, 5, metric="cosine", max_memory=1.0)[1]
    size = np.float32(10.0) ** generator.choice([-30, 0, 18], (200, 1)).astype(np.float32)
    for library in ("torch", "faiss"):
        found = nearest(train * size, test, 5, metric="cosine", max_memory=1.0, engine=Engine(library))
        np.testing.assert_array_equal(found[1], order)


def test_float16_features_are_searched_as_their_float32_copies():
    generator = np.random.default_rng(5)
    train, test = (generator.normal(size=(n, 8)).astype(np.float16) for n in (300, 20))
    half = nearest(train, test, 7, metric="cosine", max_memory=1.0)
    full = nearest(train.astype(np.float32), test.astype(np.float32), 7, metric="cosine", max_memory=1.0)
    np.testing.assert_array_equal(half[0], full[0])
    np.testing.assert_array_equal(half[1], full[1])


def test_leave_one_out_is_a_loop_over_the_samples(blobs):
    samples, _ = blobs(60, 10)
    outcome = knn.run(samples, samples, knn.Settings(k=(4,), leave_one_out=True), seed=0)
    for i in range(60):
        others = samples.select(np.delete(np.arange(60), i))
        one = knn.run(others, samples.select(np.array([i])), knn.Settings(k=(4,)), seed=0)
        np.testing.assert_allclose(outcome.scores[i], one.scores[0], atol=1e-6)


def test_leave_one_out_chooses_k_for_each_half_on_the_other(blobs):
    samples, _ = blobs(80, 10)
    settings = knn.Settings(k=(3, 9, 25), leave_one_out=True)
    outcome = knn.run(samples, samples, settings, seed=0)
    assert outcome.selected["on"] == "the other half of train"
    assert set(outcome.variants) == {"k=3", "k=9", "k=25"}
    alone = {k: knn.run(samples, samples, knn.Settings(k=(k,), leave_one_out=True), seed=0).scores for k in settings.k}
    right = {k: scores.argmax(axis=1) == samples.target.values for k, scores in alone.items()}
    halves = holdout_rows(samples.target, 0.5, 0, None)
    for name, scored, other in zip(("k", "k of the other half"), halves, halves[::-1], strict=True):
        k = max(settings.k, key=lambda k: right[k][other].mean())
        assert outcome.selected[name] == k
        np.testing.assert_array_equal(outcome.scores[scored], alone[k][scored])
    best_for_itself = [max(settings.k, key=lambda k: right[k][half].mean()) for half in halves]
    assert best_for_itself != [outcome.selected["k"], outcome.selected["k of the other half"]]


def test_leave_one_out_wants_the_same_samples_and_one_neighbour_less(blobs):
    train, test = blobs(30, 20)
    with pytest.raises(UsageError, match="the same samples"):
        knn.run(train, test, knn.Settings(k=(3,), leave_one_out=True), seed=0)
    assert "k=29, all" in knn.run(train, train, knn.Settings(k=(30,), leave_one_out=True), seed=0).notes[0]
    with pytest.raises(UsageError, match="at least 2 samples"):
        knn.check(knn.Settings(leave_one_out=True), train.target.select(np.array([0])))


def test_shuffled_labels_score_at_chance_left_one_out(make):
    generator = np.random.default_rng(6)
    samples = make(generator.normal(size=(400, 5)), generator.permutation(np.arange(400) % 4), 4)
    _, low, high = knn.run(samples, samples, knn.Settings(leave_one_out=True), seed=0).metrics["top1"]
    assert low < 0.25 < high


def test_choosing_k_is_the_same_as_searching_a_copy_of_the_rest_of_train(blobs):
    train, test = blobs(300, 50)
    outcome = knn.run(train, test, knn.Settings(k=(1, 10, 60)), seed=3)
    fit, held = holdout_rows(train.target, 0.1, 3, None)
    scores = {k: knn.run(train.select(fit), train.select(held), knn.Settings(k=(k,)), seed=0) for k in (1, 10, 60)}
    accuracy = {k: each.metrics["top1"][0] for k, each in scores.items()}
    assert outcome.selected["score"] == max(accuracy.values()) == accuracy[outcome.selected["k"]]


MEMORY = """
import resource, sys
import numpy as np
import faiss, torch
from sslbench.solvers.neighbours import Blocks, Engine, Scope, nearest

path, rows, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
train = np.memmap(path, dtype=np.float32, mode="r", shape=(rows, width))
test = np.array(train[:300])
for library in ("torch", "faiss"):  # libraries take their own buffers when they are first used
    nearest(test, test, 5, metric="cosine", max_memory=0.01, engine=Engine(library))

def data_pages():  # heap and private memory; what the limit below counts. Pages of a mapped file are not in it.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))

limit = data_pages() + 40_000_000
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones(rows * width, dtype=np.float32)
except MemoryError:
    print("a copy does not fit")
for library in ("torch", "faiss"):
    for metric in ("cosine", "l2"):
        _, found = nearest(train, test, 5, metric=metric, max_memory=0.02, engine=Engine(library))
        print(library, metric, (found[:, 0] == np.arange(300)).all())
    _, found = nearest(train, train, 5, metric="dot", max_memory=0.02, engine=Engine(library),
                       scope=Scope(np.arange(0, rows, 500), np.arange(rows) % 3 == 0))
    print(library, "left out", not (found % 3 == 0).any())
"""


# glibc keeps freed blocks of up to 32 MB for itself once it has seen such a block, and the limit would count them.
BLOCKS_RETURN_TO_THE_SYSTEM = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the limit is Linux's")
def test_features_larger_than_the_allowed_memory_are_searched_where_they_lie(tmp_path):
    rows, width = 30_000, 512  # 61 MB, where 20 MB are allowed and 40 MB can be had
    file = tmp_path / "features.raw"
    np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32).tofile(file)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, file, str(rows), str(width)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **BLOCKS_RETURN_TO_THE_SYSTEM},
        capture_output=True,
        text=True,
        timeout=300,
    )
    expected = [f"{library} {what} True" for library in ("torch", "faiss") for what in ("cosine", "l2", "left out")]
    assert done.stdout.split("\n")[:-1] == ["a copy does not fit", *expected], done.stderr


def test_settings_that_change_no_number_are_not_part_of_the_result():
    names = set(result_settings(knn.Settings()))
    assert names == {"k", "temperature", "metric", "vote", "leave_one_out", "holdout"}


def test_unanimous_neighbours_are_tied_whatever_their_weights():
    """Sums of weights differ from 1 by rounding, which is no ranking; scores on disk give the metrics of the record."""
    generator = np.random.default_rng(0)
    train = features(generator.normal(size=(200, 6)), np.arange(200) % 2, 2)
    settings = knn.Settings(k=(10,))
    similarity = np.sort(generator.uniform(-1, 1, (500, 10)))[:, ::-1]
    one_class = np.broadcast_to(np.flatnonzero(train.target.values == 1)[:10], (500, 10))
    assert np.unique(knn.vote(similarity, one_class, train.target, settings)).tolist() == [0, 1]
    mixed = generator.integers(0, 200, (500, 10))
    found = knn.vote(similarity, mixed, train.target, settings)
    np.testing.assert_array_equal(found, found.astype(np.float32))


@pytest.mark.parametrize(
    ("slow", "operations", "library"), [(True, 1e12, "torch"), (False, 1e12, "faiss"), (True, 1e9, "faiss")]
)
def test_a_slow_faiss_is_passed_over_in_a_long_search(slow, operations, library, monkeypatch):
    monkeypatch.setattr(neighbours, "faiss_is_slow", lambda: slow)
    assert neighbours.fastest_engine("cpu", operations) == Engine(library)
    assert neighbours.fastest_engine("cuda:1", operations) == Engine("torch", "cuda:1")


def test_the_speed_of_faiss_is_compared_with_that_of_numpy():
    assert neighbours.faiss_is_slow() in (True, False)
