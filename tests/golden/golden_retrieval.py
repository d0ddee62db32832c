"""Retrieval and copy detection: ranks, average precision, micro AP and whitening of six code bases."""

import re

import numpy as np
import pytest
from golden_cases import Case

from sslbench.metrics import retrieval
from sslbench.metrics.retrieval import GroundTruth
from sslbench.solvers.whitening import fit_whitening


def _split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(lengths)[:-1])


def _ranks(order: np.ndarray, truth: GroundTruth) -> np.ndarray:
    """Ranks of positives in a recorded order of the database: ties as the reference broke them."""
    scores = np.empty(len(order))
    scores[order] = -np.arange(len(order), dtype=float)
    return retrieval.ranks_of_positives(scores, truth)


def revisited(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    parts = {n: _split(given[f"gnd_{n}"], given[f"gnd_{n}_len"]) for n in ("easy", "hard", "junk")}
    both = [np.r_[a, b] for a, b in zip(parts["easy"], parts["hard"], strict=True)]
    none = [np.zeros(0, np.int64)] * len(both)
    levels = {
        "easy": (parts["easy"], parts["hard"]),
        "medium": (both, none),
        "hard": (parts["hard"], parts["easy"]),
    }
    kappas = case.meta["args"]["kappas"]
    for level, (positives, also_ignored) in levels.items():
        truths = [
            GroundTruth(p, np.r_[junk, also])
            for p, junk, also in zip(positives, parts["junk"], also_ignored, strict=True)
        ]
        _compare(
            [_ranks(order, truth) for order, truth in zip(expected["ranks"].T, truths, strict=True)],
            {key.removeprefix(f"{level}/"): value for key, value in expected.items() if key.startswith(f"{level}/")},
            kappas,
        )


def _compare(ranks: list[np.ndarray], expected: dict[str, np.ndarray], kappas: list[int]) -> None:
    aps = np.array([retrieval.average_precision(r, len(r)) for r in ranks])
    np.testing.assert_allclose(aps, expected["aps"], rtol=1e-12)
    assert np.nanmean(aps) == pytest.approx(float(expected["map"]), rel=1e-12)
    precisions = np.array([[retrieval.precision_at(r, k) for k in kappas] for r in ranks])
    some = np.isfinite(aps)
    np.testing.assert_allclose(precisions[some], expected["prs"][some], rtol=1e-12)
    np.testing.assert_allclose(precisions[some].mean(0), expected["mpr"], rtol=1e-12)


def clipped(case: Case) -> None:
    """VISSL drops answers beyond the database; so do we, by leaving them out of the ground truth."""
    given, expected = case.inputs(), case.expected()
    n, queries = given["ranks"].shape

    def inside(name: str) -> np.ndarray:
        return given[name][given[name] < n]

    truths = [GroundTruth(inside(f"ok{q}"), inside(f"junk{q}")) for q in range(queries)]
    ranks = [_ranks(order, truth) for order, truth in zip(given["ranks"].T, truths, strict=True)]
    _compare(ranks, expected, case.meta["args"]["kappas"])


def from_ranks(case: Case) -> None:
    given = case.inputs()
    ours = retrieval.average_precision(given["ranks"], int(given["nres"]))
    for value in case.expected().values():
        assert ours == pytest.approx(float(value), rel=1e-12)


def instre(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    positives = [p - 1 for p in _split(given["pos_1based"], given["pos_len"])]
    aps = np.array(
        [
            retrieval.average_precision(retrieval.ranks_of_positives(row, GroundTruth(p)), len(p))
            for row, p in zip(given["scores"], positives, strict=True)
        ]
    )
    assert aps.mean() == pytest.approx(float(expected["mAP"]), rel=1e-12)
    assert aps[expected["val_subset"]].mean() == pytest.approx(float(expected["mAP_val"]), rel=1e-12)


def whitening(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    x, n_components = given["X"].copy(), case.meta["args"]["n_components"]
    ours = fit_whitening(x, None if n_components == -1 else n_components)
    np.testing.assert_array_equal(x, given["X"])  # VISSL subtracts the mean in the caller's array
    np.testing.assert_allclose(ours.mean, expected["mean"][0], rtol=1e-12, atol=1e-14)
    determined = min(len(x) - 1, x.shape[1], len(ours.axes))  # beyond the rank, directions are arbitrary
    applied = ours.apply(given["query"]) / np.sqrt(len(x))  # VISSL does not divide the covariance by n
    np.testing.assert_allclose(
        np.abs(applied[:, :determined]), expected["abs_applied"][:, :determined], rtol=1e-7, atol=1e-10
    )


def micro_ap(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    true = {tuple(pair) for pair in given["gt_pairs"].tolist()}
    correct = np.array([tuple(pair) in true for pair in given["pred_pairs"].tolist()])
    ours = retrieval.micro_ranking(given["scores"], correct, len(true))
    assert ours.average_precision == pytest.approx(float(expected["micro_ap"]), rel=1e-9)
    np.testing.assert_allclose(ours.precisions, expected["precisions"], rtol=1e-9)
    np.testing.assert_allclose(ours.recalls, expected["recalls"], rtol=1e-9)
    assert ours.recall_at_p90 == pytest.approx(float(expected["recall_at_p90"]), rel=1e-9, nan_ok=True)
    assert ours.threshold_at_p90 == pytest.approx(float(expected["threshold_at_p90"]), rel=1e-9, nan_ok=True)
    queries = given["pred_pairs"][:, 0]
    for key, value in expected.items():
        if at := re.fullmatch(r"recall_at_rank(\d+)", key):
            share = retrieval.share_found(given["scores"], correct, queries, int(at[1]), len(true))
            assert share == pytest.approx(float(value), rel=1e-9)


PATTERNS = {
    "06_retrieval/revisited_*": revisited,
    "06_retrieval/ap1_*": from_ranks,
    "06_retrieval/vissl_map_gnd_clipped": clipped,
    "06_retrieval/instre": instre,
    "06_retrieval/pca_*": whitening,
    "20_copy_detection/micro_ap*": micro_ap,
}
