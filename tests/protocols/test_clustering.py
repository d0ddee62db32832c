import dataclasses

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from sslbench.errors import UsageError
from sslbench.metrics.spectrum import drawn_rows
from sslbench.protocols import clustering
from sslbench.protocols.clustering import Settings

FEW = Settings(restarts=3)


def sums(x, clusters):
    return sum(((x[clusters == c] - x[clusters == c].mean(axis=0)) ** 2).sum() for c in np.unique(clusters))


def test_separated_classes_are_found(blobs):
    train, test = blobs(200, 100, spread=0.1)
    outcome = clustering.run(train, test, FEW, seed=0)
    assert outcome.headline == "ari" and outcome.converged
    assert {name: round(value, 6) for name, (value, _, _) in outcome.metrics.items() if name != "silhouette"} == {
        "nmi": 1.0,
        "ari": 1.0,
        "accuracy": 1.0,
    }
    assert outcome.train == pytest.approx(1) and set(outcome.per_class.values()) == {1.0}
    assert (outcome.scores.argmax(axis=1) == test.target.values).all()


def test_the_best_start_is_as_good_as_scikit_learns(blobs):
    train, test = blobs(300, 100, n_classes=6, spread=1.0)
    settings = Settings(normalise=False)
    runs = clustering._cluster(train.x, test.x, [(6, seed) for seed in range(10)], np.arange(300), settings)
    best = min(runs, key=lambda run: run.objective)
    reference = KMeans(6, n_init=10, random_state=0).fit(train.x)
    assert best.objective == pytest.approx(sums(train.x.astype(np.float64), best.train), rel=1e-3)
    assert best.objective <= reference.inertia_ * 1.02


def test_the_start_with_the_lowest_sum_of_squares_is_reported_and_the_spread_beside_it(blobs):
    train, test = blobs(200, 100)
    settings = Settings(restarts=4, normalise=False)
    outcome = clustering.run(train, test, settings, seed=5)
    runs = clustering._cluster(train.x, test.x, [(4, 20 + i) for i in range(4)], np.arange(200), settings)
    best = min(runs, key=lambda run: run.objective)
    assert outcome.metrics["nmi"][0] == pytest.approx(normalized_mutual_info_score(test.target.values, best.test))
    found = [adjusted_rand_score(test.target.values, run.test) for run in runs]
    assert outcome.metrics["ari"][0] == pytest.approx(found[runs.index(best)])
    assert outcome.variants["mean of 4 starts"]["ari"] == pytest.approx(np.mean(found))
    assert outcome.variants["std of 4 starts"]["ari"] == pytest.approx(np.std(found))
    assert outcome.variants["min of 4 starts"]["ari"] == pytest.approx(min(found))


def test_centres_are_fitted_to_a_subset_of_many_samples_and_all_are_assigned_to_them(blobs, monkeypatch):
    monkeypatch.setattr(clustering, "_ROWS", 64)
    train, test = blobs(300, 100, n_classes=6, spread=1.0)
    settings = Settings(restarts=2, normalise=False, samples=120)
    rows = drawn_rows(300, 120, 3)
    centres = clustering._fit(train.x[rows], 6, 100, 7)
    [run] = clustering._cluster(train.x, test.x, [(6, 7)], rows, settings)
    for x, found in ((train.x, run.train), (test.x, run.test)):
        distances = ((x.astype(np.float64)[:, None] - centres.centres) ** 2).sum(axis=2)
        np.testing.assert_array_equal(found, distances.argmin(axis=1))
    assert run.objective == pytest.approx(sum(((train.x - centres.centres[run.train]) ** 2).sum(axis=1)), rel=1e-5)
    outcome = clustering.run(train, test, settings, seed=3)
    assert outcome.notes[0] == "Centres were fitted to a random subset of 120 of 300 training samples."
    all_of_them = clustering.run(train, test, dataclasses.replace(settings, samples=300), seed=3)
    assert not all_of_them.notes and outcome.metrics != all_of_them.metrics
    with pytest.raises(UsageError, match="samples should be at least the number of clusters, 6"):
        clustering.run(train, test, dataclasses.replace(settings, samples=5), seed=3)


def test_test_labels_choose_nothing_unless_asked(blobs):
    train, test = blobs(60, 40, n_classes=6, spread=3)
    honest = clustering.run(train, test, FEW, seed=0)
    published = clustering.run(train, test, dataclasses.replace(FEW, match="test"), seed=0)
    assert published.metrics["accuracy"][0] > honest.metrics["accuracy"][0]
    assert published.selected == {"on": "test", "matching": "of clusters with classes"} and not honest.selected
    shuffled = np.random.default_rng(0).permutation(test.target.values)
    other = dataclasses.replace(test, target=test.target.changed(values=shuffled))
    again = clustering.run(train, other, FEW, seed=0)
    np.testing.assert_array_equal(again.scores, honest.scores)


def test_length_matters_only_without_normalisation(blobs):
    train, test = blobs(200, 60)
    longer = [
        dataclasses.replace(
            part, x=part.x * np.random.default_rng(1).uniform(0.1, 9, (len(part), 1)).astype(np.float32)
        )
        for part in (train, test)
    ]
    same = clustering.run(*longer, FEW, seed=0), clustering.run(train, test, FEW, seed=0)
    assert same[0].metrics["ari"][0] == pytest.approx(same[1].metrics["ari"][0], abs=0.02)
    plain = dataclasses.replace(FEW, normalise=False)
    assert clustering.run(*longer, plain, seed=0).metrics["ari"][0] < same[1].metrics["ari"][0] - 0.03


def test_several_k_lead_with_the_first(blobs):
    train, test = blobs(200, 100)
    outcome = clustering.run(train, test, dataclasses.replace(FEW, k=(3, 8)), seed=0)
    alone = clustering.run(train, test, dataclasses.replace(FEW, k=(3,)), seed=0)
    assert outcome.metrics == alone.metrics and "k=8" in outcome.variants
    assert outcome.metrics["accuracy"][0] <= 0.75, "three clusters, one to one, cannot be right about four classes"


def test_shuffled_labels_have_an_ari_near_zero(blobs):
    train, test = blobs(400, 400)
    shuffled = np.random.default_rng(5).permutation(test.target.values)
    other = dataclasses.replace(test, target=test.target.changed(values=shuffled))
    value, low, high = clustering.run(train, other, FEW, seed=0).metrics["ari"]
    assert abs(value) < 0.02 and low <= 0 <= high


def test_a_part_of_many_samples_gives_the_silhouette_and_says_so(blobs):
    train, test = blobs(100, 80)
    outcome = clustering.run(train, test, dataclasses.replace(FEW, silhouette_samples=30), seed=0)
    assert outcome.notes == ("The silhouette is computed on 30 of 80 test samples.",)
    assert -1 <= outcome.metrics["silhouette"][0] <= 1


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"k": (0,)}, "k should"),
        ({"k": (2, 2)}, "k holds a value twice"),
        ({"k": (999,)}, "k=999 is more than"),
        ({"restarts": 0}, "rest"),
    ],
)
def test_impossible_settings_are_refused(blobs, bad, says):
    with pytest.raises(UsageError, match=says):
        clustering.run(*blobs(), Settings(**bad), seed=0)
