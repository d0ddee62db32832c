import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from protocol_samples import features

from sslbench.errors import DataError, UsageError
from sslbench.protocols import _neighbours, knn
from sslbench.protocols._neighbours import nearest


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


def test_one_block_or_a_hundred_give_the_same_bits(monkeypatch):
    generator = np.random.default_rng(0)
    train, test = (
        generator.normal(size=(1000, 24)).astype(np.float32),
        generator.normal(size=(60, 24)).astype(np.float32),
    )
    train[500:] = train[:500]
    whole = nearest(train, test, 20, metric="cosine", max_memory=1.0)
    monkeypatch.setattr(_neighbours, "_block_sizes", lambda *_: (10, 7))
    parts = nearest(train, test, 20, metric="cosine", max_memory=1.0)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_collapsed_features_take_the_lowest_rows(metric):
    train, test = np.full((300, 6), 0.3, np.float32), np.full((5, 6), 0.3, np.float32)
    _, rows = nearest(train, test, 7, metric=metric, max_memory=1.0)
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
    flipped = type(test)(test.x, train.labels.select(np.arange(100)[::-1].copy()), test.ids)
    assert knn.run(train, flipped, knn.Settings(), seed=0).selected == outcome.selected


def test_default_k_shrinks_to_small_data_and_a_given_one_is_refused(blobs, make):
    train, test = blobs(50, 20)
    outcome = knn.run(train, test, knn.Settings(), seed=0)
    assert "100, 200" in outcome.notes[0]
    with pytest.raises(UsageError, match=r"k=60 is larger than the number of training samples, 50"):
        knn.run(train, test, knn.Settings(k=(5, 60)), seed=0)
    three = make(np.eye(3), [0, 1, 2], 3)
    assert "k=3 was used" in knn.run(three, three, knn.Settings(), seed=0).notes[0]


def test_uniform_ties_go_to_the_lower_class(make):
    train, test = make([[1, 0], [2, 0]], [1, 0], 2), make([[1, 0]], [0], 2)
    assert knn.run(train, test, knn.Settings(k=(2,), vote="uniform"), seed=0).scores.argmax() == 0


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
        knn.run(train, make(x, test.labels.values, 4), knn.Settings(), seed=0)
