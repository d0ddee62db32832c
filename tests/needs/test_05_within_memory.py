"""Probes state their time and memory beforehand and keep within it; the SVMs are LinearSVC's at convergence.

ImageNet's size, 1.28 M rows within 4 GB, is `make bench-scale`; the SVMs of VOC2007 against a loop over LinearSVC are
`make bench`. The times of both stand in docs/performance.md.
"""

from pathlib import Path

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from sslbench.metrics import ranking
from sslbench.results.records import read_tree

PARTS = ("--features", "x.npy", "--labels", "y.npy", "--test-features", "xt.npy", "--test-labels", "yt.npy")


@pytest.fixture
def multi_label(tmp_path, monkeypatch):
    """Features of 300 + 300 images that have some of four classes."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = (rng.random((600, 4)) < 0.3).astype(np.int64)
    x = rng.normal(size=(600, 24)).astype(np.float32) + 0.8 * y @ np.eye(4, 24, dtype=np.float32)
    for name, values in (("x", x[:300]), ("y", y[:300]), ("xt", x[300:]), ("yt", y[300:])):
        np.save(f"{name}.npy", values)
    return x, y


def test_time_and_memory_are_stated_before_anything_is_computed(multi_label, sslbench):
    code, out, err = sslbench("eval", "knn", "svm", "linear", *PARTS, "--dry-run")
    assert code == 0, err
    estimate = out[out.index("estimate, measured on this machine") :]
    for protocol in ("knn", "svm", "linear"):
        assert any(line.split()[0] == protocol and "of memory" in line for line in estimate.splitlines()[1:])
    assert not Path("results").exists()


def test_the_svms_have_the_precision_of_linearsvc_at_convergence(multi_label, sslbench):
    x, y = multi_label
    code, _, err = sslbench("eval", "svm", *PARTS, "costs=[0.1]")
    assert code == 0, err
    [record] = read_tree(Path("results"))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    theirs = []
    for own in y.T:
        model = LinearSVC(C=0.1, dual=False, class_weight={1: 2, 0: 1}, tol=1e-8, max_iter=100_000)
        decision = model.fit(unit[:300], own[:300]).decision_function(unit[300:])
        theirs.append(ranking.single_class(ranking.voc_all_points, own[300:], decision))
    assert record.metrics["mAP"].value == pytest.approx(100 * np.mean(theirs), abs=0.1)
