"""Choices and ratings against loops over triplets and pairs with scikit-learn's cosines and scipy's correlation."""

import json

import numpy as np
import pytest
from helpers.targets import UNSEEN
from scipy.stats import binom, spearmanr
from sklearn.metrics import accuracy_score
from sklearn.metrics.pairwise import cosine_similarity

from sslbench.cli.main import main
from sslbench.features.array import Features
from sslbench.protocols import similarity
from sslbench.targets.triplets import RatedPairs, Triplets


def triplets(x, choices, groups=None):
    labels = Triplets(np.asarray(choices, dtype=np.int64), UNSEEN, np.zeros((len(x), 3), np.int64))
    ids = tuple(f"{i:04d}" for i in range(len(x)))
    return Features(x.reshape(len(x), -1).astype(np.float32), labels, ids, regions=3, groups=groups)


def outcome(features, **settings):
    return similarity.run(features, features, similarity.Settings(**settings), seed=0)


def test_the_score_is_the_share_of_right_choices():
    rng = np.random.default_rng(0)
    x, choices = rng.normal(size=(300, 3, 8)), rng.integers(0, 2, 300)
    x[np.arange(300), 1 + choices] += 0.5 * x[:, 0]
    chosen = []
    for ref, left, right in x.astype(np.float32):
        to_left, to_right = cosine_similarity([ref], [left, right])[0]
        chosen.append(int(to_right > to_left))
    found = outcome(triplets(x, choices))
    value, low, high = found.metrics["choice_accuracy"]
    assert value == pytest.approx(accuracy_score(choices, chosen), abs=1e-12) and 0.5 < low < value < high < 1
    assert found.headline == "choice_accuracy" and found.chance == {"choice_accuracy": 0.5}


def test_by_distance_the_nearer_candidate_is_chosen():
    x = np.random.default_rng(5).normal(size=(60, 3, 4))
    nearer = [int(np.sum((r - right) ** 2) < np.sum((r - left) ** 2)) for r, left, right in x]
    assert outcome(triplets(x, nearer), similarity="euclidean").metrics["choice_accuracy"][0] == 1
    assert outcome(triplets(x, nearer)).metrics["choice_accuracy"][0] < 1


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
def test_the_score_of_rated_pairs_is_the_rank_correlation_of_ratings_and_similarities(similarity):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(200, 2, 8))
    near = [
        cosine_similarity([a], [b])[0, 0] if similarity == "cosine" else -np.linalg.norm(a - b)
        for a, b in x.astype(np.float32)
    ]
    ratings = np.round(5 * np.array(near) + rng.normal(size=200), 1)  # with ties
    target = RatedPairs(ratings[:, None], UNSEEN, np.zeros((200, 2), np.int64))
    ids = tuple(f"{i:04d}" for i in range(200))
    found = outcome(Features(x.reshape(200, -1).astype(np.float32), target, ids, regions=2), similarity=similarity)
    value, low, high = found.metrics["spearman"]
    assert value == pytest.approx(spearmanr(near, ratings).statistic, abs=1e-6) and low < value < high
    assert found.headline == "spearman" and found.chance == {"spearman": 0.0} and found.notes == ()


def test_lengths_do_not_count_equal_candidates_count_one_half_and_choices_change_nothing():
    rng = np.random.default_rng(1)
    x, choices = rng.normal(size=(50, 3, 4)), rng.integers(0, 2, 50)
    first, scaled = outcome(triplets(x, choices)), outcome(triplets(x * rng.uniform(1, 9, (50, 3, 1)), choices))
    np.testing.assert_allclose(first.scores, scaled.scores, atol=1e-6)
    assert np.array_equal(first.scores, outcome(triplets(x, 1 - choices)).scores)
    x[:, 2] = x[:, 1]
    x[:10] = 0
    same = outcome(triplets(x, choices))
    assert same.metrics["choice_accuracy"][0] == 0.5 and "50 of 50 triplets have equal similarities" in same.notes[0]


def test_triplets_of_one_reference_are_one_unit_of_the_interval():
    rng = np.random.default_rng(2)
    x, choices = np.repeat(rng.normal(size=(20, 3, 4)), 10, axis=0), np.repeat(rng.integers(0, 2, 20), 10)
    alone, grouped = (outcome(triplets(x, choices, g)) for g in (None, np.repeat(np.arange(20), 10)))
    widths = [found.metrics["choice_accuracy"][2] - found.metrics["choice_accuracy"][1] for found in (alone, grouped)]
    assert widths[1] > 2 * widths[0]


def test_eval_similarity_has_the_floors_and_a_record_of_the_triplets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["eval", "similarity", "--weights", "random", "--backbone", "resnet18w0.25", "--limit", "40"]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--resize", "32", "--crop", "none", "--store", "store", "--workers", "0"])
    (file,) = [f for f in (tmp_path / "results" / "similarity").glob("*.json") if "pixels" not in f.name]
    record = json.loads(file.read_text())
    assert record["data"]["labels"] == "triplets" and record["data"]["test"]["n"] == 40
    assert 0 <= record["metrics"]["choice_accuracy"]["value"] <= 100 and "choice_accuracy" in capsys.readouterr().out


def test_choices_without_meaning_are_at_chance():
    rng = np.random.default_rng(4)
    right = sum(
        outcome(triplets(rng.normal(size=(200, 3, 4)), rng.integers(0, 2, 200))).metrics["choice_accuracy"][0] * 200
        for _ in range(5)
    )
    assert binom.ppf(5e-7, 1000, 0.5) <= right <= binom.isf(5e-7, 1000, 0.5)
