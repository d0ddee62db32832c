"""Weighted kNN as VISSL, DINO, DINOv2, solo-learn and lightly compute it, each by our settings."""

import re
from collections.abc import Mapping

import numpy as np
import pytest
from golden_cases import Case, option
from golden_losses import not_offered

from sslbench.features.array import Features
from sslbench.metrics.answers import top_k_correct
from sslbench.protocols import knn
from sslbench.solvers.neighbours import nearest
from sslbench.targets.classes import Classes

_TIE = 1e-6
_TEMPERATURES = {"vissl": 0.1, "lightly": 0.1}
"""The references' default temperatures; 0.07 in all others."""


def classification(case: Case) -> None:
    expected = case.expected()
    runs = sorted({key.rpartition("/")[0] for key in expected})
    assert runs
    for run in runs:
        _one(case, run, {key.rpartition("/")[2]: v for key, v in expected.items() if key.startswith(run + "/")})


def _project(case: Case) -> str:
    """Return the reference: 'vissl', 'dino', 'dinov2', 'solo' or 'lightly'."""
    projects = ("vissl", "dinov2", "dino", "solo", "lightly")
    named = [name for name in projects if case.name.startswith(name)]
    return next(iter(named or [name for name in projects if case.is_of(name)]))


def _settings(case: Case, run: str, rows: int) -> knn.Settings:
    """'l21_s0.07_k5', 'T0.04_k1', 'euclidean_k10', 'k20' in our words; what a run does not say is an argument."""
    args = case.args
    k = (min(int(re.search(r"(?:^|_)k(\d+)$", run)[1]), rows),)
    if run.startswith("euclidean"):
        if option(args, "epsilon", default=1e-5) != 1e-5:
            not_offered("votes by the distance with another epsilon")
        return knn.Settings(k=k, metric="l2", vote="inverse")
    written = re.search(r"(?:_s|^T)([\d.e-]+)_k", run)
    in_call = re.search(r"\b(?:SIGMA|T)\s*=?\s*([\d.]+)", case.call)
    temperature = written[1] if written else option(args, "SIGMA", "T", "knn_t", default=None)
    temperature = temperature[0] if isinstance(temperature, list) else temperature
    if temperature is None:
        temperature = in_call[1] if in_call else _TEMPERATURES.get(_project(case), 0.07)
    plain = run.startswith("l20") or (not run.startswith("l21") and option(args, "L2_NORM_FEATS") is False)
    return knn.Settings(k=k, metric="dot" if plain else "cosine", temperature=float(temperature))


def _one(case: Case, run: str, wanted: Mapping[str, np.ndarray]) -> None:
    given = case.inputs()
    given = given | {name: given[name].reshape(-1) for name in ("train_y", "test_y")}
    settings, truth = _settings(case, run, len(given["train_x"])), given["test_y"]
    n_classes = int(max(given["train_y"].max(), truth.max())) + 1
    classes = tuple(f"class{c}" for c in range(n_classes))
    train, test = (
        Features(x, Classes(classes, y), tuple(f"{i:05d}" for i in range(len(x))))
        for x, y in ((given[f"{part}_x"], given[f"{part}_y"]) for part in ("train", "test"))
    )
    outcome = knn.run(train, test, settings, seed=0)
    scores = outcome.scores
    assert outcome.metrics["top1"][0] == pytest.approx(np.mean(top_k_correct(truth, scores, 1)))
    assert np.isnan(outcome.metrics["top5"][0]) == (n_classes < 5)
    if "probs" in wanted and not np.isfinite(wanted["probs"]).all():
        # VISSL without L2 norm overflows: its votes are no numbers, and its figures are made of them.
        assert np.isfinite(scores).all()
        return
    sure = _determined(train.x, test.x, settings)
    if "top1" in wanted:
        _accuracy(scores, truth, sure, 1, float(wanted["top1"]))
    if "top5" in wanted:
        _top5(case, settings.k[0], scores, given, sure, float(wanted["top5"]))
    if "probs" in wanted:
        votes = wanted["probs"].astype(np.float64)
        named = scores[:, : votes.shape[1]]  # VISSL knows the classes of train only, solo-learn those of test
        shares = votes / votes.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(named[sure], shares[sure], rtol=1e-5, atol=1e-7)
    if "predictions" in wanted:
        _predictions(scores[sure], wanted["predictions"][sure])
    if "topk_similarity" in wanted:
        similarity, _ = nearest(train.x, test.x, settings.k[0], metric=settings.metric, max_memory=1.0)
        np.testing.assert_allclose(similarity, wanted["topk_similarity"], rtol=1e-5, atol=1e-5)


def _determined(train: np.ndarray, test: np.ndarray, settings: knn.Settings) -> np.ndarray:
    """Tell for which test samples no tie decides on the last neighbour."""
    train, test = (x.reshape(len(x), -1).astype(np.float64) for x in (train, test))
    if settings.metric == "l2":
        similarities = -np.sqrt(np.maximum(((test[:, None] - train[None]) ** 2).sum(axis=2), 0))
    elif settings.metric == "cosine":
        train, test = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (train, test))
        similarities = test @ train.T
    else:
        similarities = test @ train.T
    ranked = -np.sort(-similarities, axis=1)
    k = settings.k[0]
    if k == ranked.shape[1]:
        return np.ones(len(test), bool)
    return ranked[:, k - 1] - ranked[:, k] > _TIE * np.abs(similarities).max(initial=0.0)


def _top5(
    case: Case, k: int, scores: np.ndarray, given: Mapping[str, np.ndarray], sure: np.ndarray, percent: float
) -> None:
    """VISSL counts 0 below five classes in train; DINO and solo-learn name at most k classes."""
    if _project(case) == "vissl":
        if given["train_y"].max() < 4:
            assert percent == 0
            return
        named = 5
    else:
        named = min(5, scores.shape[1]) if _project(case) == "dinov2" else min(5, k, scores.shape[1])
    _accuracy(scores, given["test_y"], sure, named, percent)


def _accuracy(scores: np.ndarray, truth: np.ndarray, sure: np.ndarray, named: int, percent: float) -> None:
    """Compare with the recorded one, but for the samples that a tie (of unvoted classes, say) decides."""
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    ahead = (scores > own + _TIE).sum(axis=1)
    level = (np.abs(scores - own) <= _TIE).sum(axis=1) - 1
    surely, perhaps = (ahead + level < named) & sure, (ahead < named) | ~sure
    count = percent / 100 * len(truth)
    assert surely.sum() - 1e-3 <= count <= perhaps.sum() + 1e-3
    if not (perhaps & ~surely).any():
        assert top_k_correct(truth, scores, named).sum() == pytest.approx(count, abs=1e-3)


def _predictions(scores: np.ndarray, recorded: np.ndarray) -> None:
    """The classes in order of their votes, as far as the votes differ."""
    in_order = np.take_along_axis(scores, recorded.astype(np.int64), axis=1)
    assert np.all(np.diff(in_order, axis=1) <= _TIE)


PATTERNS = {"05_knn/*": classification}
