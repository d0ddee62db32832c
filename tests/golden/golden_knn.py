"""Weighted kNN as VISSL, DINO, DINOv2, solo-learn and lightly compute it, each by our settings."""

import re

import numpy as np
import pytest
from golden_cases import Case

from sslbench.data.source import Labels
from sslbench.features.array import Features
from sslbench.metrics.classification import top_k_correct
from sslbench.protocols import knn
from sslbench.solvers.neighbours import nearest

_TIE = 1e-6


def classification(case: Case) -> None:
    expected = case.expected()
    runs = sorted({key.rpartition("/")[0] for key in expected})
    assert runs
    for run in runs:
        _one(case, run, {key.rpartition("/")[2]: v for key, v in expected.items() if key.startswith(run + "/")})


def _settings(case: Case, run: str) -> knn.Settings:
    """'l21_s0.07_k5', 'T0.04_k1', 'euclidean_k10', 'k20' in our words."""
    k = (int(re.search(r"(?:^|_)k(\d+)$", run)[1]),)
    args = case.meta.get("args", {})
    if run.startswith("euclidean"):
        return knn.Settings(k=k, metric="l2", vote="inverse")
    written = re.search(r"(?:_s|^T)([\d.]+)_k", run)
    temperature = float(written[1]) if written else next(args[n] for n in ("SIGMA", "T", "knn_t") if n in args)
    return knn.Settings(k=k, metric="dot" if run.startswith("l20") else "cosine", temperature=temperature)


def _one(case: Case, run: str, wanted: dict[str, np.ndarray]) -> None:
    given, settings = case.inputs(), _settings(case, run)
    n_classes = int(max(given["train_y"].max(), given["test_y"].max())) + 1
    classes = tuple(f"class{c}" for c in range(n_classes))
    train, test = (
        Features(x, Labels("single", classes, y), tuple(f"{i:05d}" for i in range(len(x))))
        for x, y in ((given[f"{part}_x"], given[f"{part}_y"]) for part in ("train", "test"))
    )
    outcome = knn.run(train, test, settings, seed=0)
    scores = outcome.scores
    assert outcome.metrics["top1"][0] == pytest.approx(np.mean(scores.argmax(1) == given["test_y"]))
    if "probs" in wanted and not np.isfinite(wanted["probs"]).all():
        # VISSL without L2 norm overflows: its votes are no numbers, and its figures are made of them.
        assert np.isfinite(scores).all()
        return
    if "top1" in wanted:
        _accuracy(scores, given["test_y"], 1, float(wanted["top1"]))
    if "top5" in wanted:
        _top5(case, settings.k[0], scores, given["test_y"], float(wanted["top5"]))
    assert np.isnan(outcome.metrics["top5"][0]) == (n_classes < 5)
    if "probs" in wanted:
        votes = wanted["probs"].astype(np.float64)
        named = scores[:, : votes.shape[1]]  # VISSL knows the classes of train only, solo-learn those of test
        np.testing.assert_allclose(named, votes / votes.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)
    if "predictions" in wanted:
        _predictions(scores, wanted["predictions"])
    if "topk_similarity" in wanted:
        similarity, _ = nearest(train.x, test.x, settings.k[0], metric=settings.metric, max_memory=1.0)
        np.testing.assert_allclose(similarity, wanted["topk_similarity"], rtol=1e-5, atol=1e-5)


def _top5(case: Case, k: int, scores: np.ndarray, truth: np.ndarray, percent: float) -> None:
    """VISSL counts 0 below five classes; DINO and solo-learn name at most k classes."""
    n_classes = scores.shape[1]
    if case.name.startswith("vissl"):
        if n_classes < 5:
            assert percent == 0
            return
        named = 5
    else:
        named = min(5, n_classes) if case.name.startswith("dinov2") else min(5, k, n_classes)
    _accuracy(scores, truth, named, percent)


def _accuracy(scores: np.ndarray, truth: np.ndarray, named: int, percent: float) -> None:
    """Equal to the recorded one, but for the samples that a tie (of unvoted classes, say) decides."""
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    ahead = (scores > own + _TIE).sum(axis=1)
    level = (np.abs(scores - own) <= _TIE).sum(axis=1) - 1
    surely, perhaps = ahead + level < named, ahead < named
    count = percent / 100 * len(truth)
    assert surely.sum() - 1e-3 <= count <= perhaps.sum() + 1e-3
    if not (perhaps & ~surely).any():
        assert top_k_correct(truth, scores, named).sum() == pytest.approx(count, abs=1e-3)


def _predictions(scores: np.ndarray, recorded: np.ndarray) -> None:
    """The classes in order of their votes, as far as the votes differ."""
    in_order = np.take_along_axis(scores, recorded.astype(np.int64), axis=1)
    assert np.all(np.diff(in_order, axis=1) <= _TIE)


PATTERNS = {"05_knn/*": classification}
