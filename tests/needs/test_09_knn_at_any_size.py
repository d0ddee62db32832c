"""kNN gives the answer of a plain search in float64, for few samples and many, with duplicates, whatever its memory."""

from pathlib import Path

import numpy as np
import pytest

from sslbench.results.records import read, read_scores

PARTS = ("--features", "x.npy", "--labels", "y.npy", "--test-features", "xt.npy", "--test-labels", "yt.npy")
SIZES = [
    *((3, 32, 3, 200), (3, 99, 2, 1), (50, 101, 2, 20), (50, 32, 3, 200)),
    *((2002, 32, 1001, 20), (10_000, 101, 3, 200)),
]


def shares(x, y, test, k, n_classes, temperature=0.07):
    """Each class's share of the weights; samples that are as near as the k-th share the places that are left."""
    x, test = (a.astype(np.float64) / np.linalg.norm(a.astype(np.float64), axis=1, keepdims=True) for a in (x, test))
    found = np.empty((len(test), n_classes))
    for row, similarity in enumerate((test @ x.T).round(9)):
        last = np.sort(similarity)[-k]
        nearer, tied = similarity > last, similarity == last
        weight = (nearer + tied * (k - nearer.sum()) / tied.sum()) * np.exp(
            (similarity - similarity.max()) / temperature
        )
        found[row] = np.bincount(y, weight, n_classes) / weight.sum()
    return found


@pytest.mark.parametrize(("n_train", "n_test", "n_classes", "k"), SIZES)
def test_it_is_the_search_in_float64(tmp_path, monkeypatch, sslbench, n_train, n_test, n_classes, k):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(n_train)
    x = rng.normal(size=(n_train, 8)).astype(np.float32)
    x[n_train // 2 : 2 * (n_train // 2)] = x[: n_train // 2]  # every row twice
    y, yt = np.arange(n_train) % n_classes, np.arange(n_test) % n_classes
    xt = rng.normal(size=(n_test, 8)).astype(np.float32)
    for name, values in (("x", x), ("y", y), ("xt", xt), ("yt", yt)):
        np.save(f"{name}.npy", values)
    code, out, err = sslbench("eval", "knn", *PARTS, f"k={k}", "--no-overlaps")
    assert code == 0, err
    assert (f"k={k} is more than the {n_train} training samples" in out + err) == (k > n_train)
    [file] = Path("results").rglob("*.json")
    scores = read_scores(file)
    by_number = scores.scores[:, np.argsort([int(name) for name in scores.classes])]
    expected = shares(x, y, xt, min(k, n_train), n_classes)
    np.testing.assert_allclose(by_number, expected, atol=1e-3)
    assert (read(file).metrics["top5"].value is not None) == (n_classes > 5)
    code, _, err = sslbench("eval", "knn", *PARTS, f"k={k}", "--no-overlaps", "--max-memory", "1MB", "--out", "little")
    assert code == 0, err
    [again] = Path("little").rglob("*.json")
    np.testing.assert_array_equal(read_scores(again).scores, scores.scores)


def test_one_training_image_is_one_class_and_one_message(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    for name, values in (("x", np.ones((1, 4))), ("y", [0]), ("xt", np.ones((2, 4))), ("yt", [0, 0])):
        np.save(f"{name}.npy", values)
    code, out, err = sslbench("eval", "knn", *PARTS)
    assert (code, out) == (1, "") and "one class only" in err and "Traceback" not in err
