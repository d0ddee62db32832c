import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

from sslbench.metrics.clustering import ContingencyTable, agreement, agreement_with_intervals, silhouette


def labels(most):
    return st.integers(1, 60).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, most), min_size=n, max_size=n),
            st.lists(st.integers(0, most), min_size=n, max_size=n),
        )
    )


def best_by_trying(classes, clusters):
    """The accuracy under the best of all one-to-one matchings."""
    numbers = range(max(classes.max(), clusters.max()) + 1)
    return max(np.mean(np.array(order)[clusters] == classes) for order in itertools.permutations(numbers))


@hypothesis_settings(max_examples=150, deadline=None)
@given(labels(4))
def test_agreement_is_that_of_scikit_learn_and_of_all_matchings(pair):
    classes, clusters = (np.array(each, dtype=np.int64) for each in pair)
    found = agreement(classes, clusters)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(classes, clusters), abs=1e-9)
    assert found["ari"] == pytest.approx(adjusted_rand_score(classes, clusters), abs=1e-9)
    assert found["accuracy"] == pytest.approx(best_by_trying(classes, clusters), abs=1e-12)


@hypothesis_settings(max_examples=40, deadline=None)
@given(labels(5), st.integers(0, 2**31))
def test_names_of_clusters_do_not_matter(pair, seed):
    classes, clusters = (np.array(each, dtype=np.int64) for each in pair)
    renamed = np.random.default_rng(seed).permutation(6)[clusters]
    assert agreement(classes, renamed) == pytest.approx(agreement(classes, clusters), abs=1e-12)


def test_many_classes_agree_with_scikit_learn():
    generator = np.random.default_rng(0)
    classes, clusters = generator.integers(0, 300, 5000), generator.integers(0, 450, 5000)
    found = agreement(classes, clusters)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(classes, clusters), abs=1e-9)
    assert found["ari"] == pytest.approx(adjusted_rand_score(classes, clusters), abs=1e-9)


def test_weights_count_a_sample_as_often_as_they_say():
    generator = np.random.default_rng(1)
    classes, clusters, weights = (generator.integers(0, 4, 50) for _ in range(3))
    table, again = ContingencyTable(classes, clusters), [np.repeat(each, weights) for each in (classes, clusters)]
    counts = table.counts(weights.astype(np.float64))
    assert table.nmi(counts) == pytest.approx(normalized_mutual_info_score(*again), abs=1e-9)
    assert table.ari(counts) == pytest.approx(adjusted_rand_score(*again), abs=1e-9)
    assert table.accuracy(counts, {0: 1, 1: 2}) == np.mean(np.array([1, 2, -1, -1])[again[1]] == again[0])


def test_a_cluster_without_a_class_is_wrong():
    classes, clusters = np.array([0, 0, 1, 1]), np.array([0, 2, 1, 1])
    assert agreement(classes, clusters)["accuracy"] == 0.75


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Clusters that are right with probability 0.7: accuracy is 0.7, ARI that of an endless sample."""
    generator = np.random.default_rng(2)

    def draw(n):
        classes = generator.integers(0, 3, n)
        return classes, np.where(generator.random(n) < 0.7, classes, generator.integers(0, 3, n))

    truth = agreement(*draw(400_000))
    matching = {0: 0, 1: 1, 2: 2}
    held = dict.fromkeys(truth, 0)
    for i in range(150):
        for name, (_, low, high) in agreement_with_intervals(*draw(300), matching, seed=i, resamples=60).items():
            held[name] += low <= truth[name] <= high
    assert all(0.88 < count / 150 <= 1 for count in held.values()), held


def test_clusters_that_know_nothing_have_an_ari_near_zero():
    generator = np.random.default_rng(3)
    value, low, high = agreement_with_intervals(*generator.integers(0, 10, (2, 2000)), {}, seed=0)["ari"]
    assert abs(value) < 0.01 and low < 0 < high


def test_silhouette_is_that_of_scikit_learn_and_of_a_seeded_part_of_many():
    generator = np.random.default_rng(4)
    clusters = generator.integers(0, 3, 200)
    x = generator.normal(size=(200, 5)) + clusters[:, None]
    value, low, high = silhouette(x, clusters, most=200, seed=0)
    assert value == pytest.approx(silhouette_score(x, clusters), abs=1e-9)
    assert low < value < high
    part = silhouette(x, clusters, most=50, seed=0)
    assert part == silhouette(x, clusters, most=50, seed=0) != silhouette(x, clusters, most=50, seed=1)
    rows = np.sort(np.random.default_rng(0).choice(200, 50, replace=False))
    assert part[0] == pytest.approx(silhouette_score(x[rows], clusters[rows]), abs=1e-9)


def test_one_cluster_has_no_silhouette():
    assert np.isnan(silhouette(np.eye(3), np.zeros(3, np.int64), most=10, seed=0)).all()
    assert np.isnan(silhouette(np.eye(3), np.arange(3), most=10, seed=0)).all()
