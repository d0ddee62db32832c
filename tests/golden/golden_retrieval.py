"""Retrieval: ranks, average precision, regions and whitening of four code bases."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import Case, option

from sslbench.backbones.layer_spec import Pool
from sslbench.backbones.pools import Tokens, apply_pool, region_grid, region_maxima
from sslbench.data.decode.transforms import resized
from sslbench.metrics import retrieval
from sslbench.metrics.retrieval import GroundTruth
from sslbench.protocols.retrieval.descriptors import aggregate_regions, unit_length
from sslbench.solvers.whitening import Whitening, fit_whitening


def _split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(values.astype(np.int64), np.cumsum(lengths)[:-1])


def _ranks(order: np.ndarray, truth: GroundTruth) -> np.ndarray:
    """Ranks of positives in a recorded order of the database: ties as the reference broke them."""
    scores = np.empty(len(order))
    scores[order] = -np.arange(len(order), dtype=float)
    return retrieval.ranks_of_positives(scores, truth)


def revisited(case: Case) -> None:
    """Compare with the arrays, or with the figures that VISSL's own class gives for the case it is named after."""
    suffix = "/vissl_score"
    kappas = option(case.args, "kappas", default=[1, 5, 10])
    recorded = case.expected_json() if case.name.endswith(suffix) else {}
    kappas = recorded.get("mp@k", {}).get("k", kappas)
    for level, ranks in _of_levels(Case(case.topic, case.name.removesuffix(suffix))).items():
        expected = {key.removeprefix(f"{level}/"): value for key, value in case.expected().items()}
        for ours, theirs in (("map", "mAP"), ("mpr", "mp@k")):
            if theirs in recorded:
                expected[ours] = np.array(recorded[theirs][level[0]])
        _compare(ranks, expected, kappas)


def _of_levels(case: Case) -> dict[str, list[np.ndarray]]:
    """Return the ranks of the positives of all queries, by level of difficulty."""
    given, expected = case.inputs(), case.expected()
    parts = {n: _split(given[f"gnd_{n}"], given[f"gnd_{n}_len"]) for n in ("easy", "hard", "junk")}
    both = [np.r_[a, b] for a, b in zip(parts["easy"], parts["hard"], strict=True)]
    none = [np.zeros(0, np.int64)] * len(both)
    levels = {
        "easy": (parts["easy"], parts["hard"]),
        "medium": (both, none),
        "hard": (parts["hard"], parts["easy"]),
    }
    orders = expected.get("ranks", np.argsort(-given["sim_db_by_query"], axis=0) if "ranks" not in expected else None)
    ranks = {}
    for level, (positives, also_ignored) in levels.items():
        triples = zip(positives, parts["junk"], also_ignored, strict=True)
        truths = [GroundTruth(p, np.r_[junk, also]) for p, junk, also in triples]
        ranks[level] = [_ranks(order, truth) for order, truth in zip(orders.T, truths, strict=True)]
    return ranks


def _compare(ranks: list[np.ndarray], expected: Mapping[str, np.ndarray], kappas: Sequence[int]) -> None:
    aps = np.array([retrieval.average_precision(r, len(r)) for r in ranks])
    precisions = np.array([[retrieval.precision_at(r, k) for k in kappas] for r in ranks])
    some = np.isfinite(aps)
    ours = {"aps": aps, "map": aps[some].mean(), "prs": precisions, "mpr": precisions[some].mean(axis=0)}
    for name in ours.keys() & expected.keys():
        theirs = expected[name]
        if name == "prs":
            np.testing.assert_allclose(ours[name][some], theirs[some], rtol=1e-12)
        else:
            np.testing.assert_allclose(ours[name], theirs, rtol=1e-12)


def clipped(case: Case) -> None:
    """VISSL drops answers beyond the database; so do we, by leaving them out of the ground truth."""
    given, expected = case.inputs(), case.expected()
    n, queries = given["ranks"].shape

    def inside(name: str) -> np.ndarray:
        values = given.get(name, np.zeros(0, np.int64)).astype(np.int64)
        return values[values < n]

    truths = [GroundTruth(inside(f"ok{q}"), inside(f"junk{q}")) for q in range(queries)]
    ranks = [_ranks(order, truth) for order, truth in zip(given["ranks"].T, truths, strict=True)]
    _compare(ranks, expected, option(case.args, "kappas", default=[1, 5, 10]))


def from_ranks(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    ours = retrieval.average_precision(given["ranks"], int(given["nres"]))
    assert expected
    for value in expected.values():
        assert ours == pytest.approx(float(value), rel=1e-12)


def instre(case: Case) -> None:
    """Compare the mean over all queries, and over those that INSTRE's authors draw, with replacement, to validate."""
    given, expected = case.inputs(), case.expected()
    positives = [p - 1 for p in _split(given["pos_1based"], given["pos_len"])]
    aps = np.array(
        [
            retrieval.average_precision(retrieval.ranks_of_positives(row, GroundTruth(p)), len(p))
            for row, p in zip(given["scores"], positives, strict=True)
        ]
    )
    drawn = np.unique(np.random.RandomState(123).choice(len(aps), len(aps) // 10))
    for name, rows in (("mAP", np.arange(len(aps))), ("mAP_val", expected.get("val_subset", drawn))):
        if name in expected:
            assert aps[rows].mean() == pytest.approx(float(expected[name]), rel=1e-12)


def whitening(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    x, n_components = given["X"].copy(), option(case.args, "n_components", default=-1)
    ours = fit_whitening(x, n_components if 0 < n_components < x.shape[1] else None)  # more are all in VISSL
    np.testing.assert_array_equal(x, given["X"])  # VISSL subtracts the mean in the caller's array
    single = x.dtype == np.float32
    np.testing.assert_allclose(ours.mean, expected["mean"].ravel(), rtol=1e-5 if single else 1e-12, atol=1e-14)
    found = _determined(x)[: len(ours.axes)]
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if single else {"rtol": 1e-7, "atol": 1e-10}
    if "applied" in expected or "abs_applied" in expected:
        theirs = np.abs(expected.get("abs_applied", expected.get("applied")))
        applied = np.abs(ours.apply(given["query"])) / np.sqrt(len(x))  # VISSL does not divide the covariance by n
        np.testing.assert_allclose(applied[:, found], theirs[:, found], **tolerance)
    if "DVt" in expected:
        axes = np.abs(ours.axes) / np.sqrt(len(x))
        np.testing.assert_allclose(axes[found], np.abs(expected["DVt"])[found], **tolerance)


def _determined(x: np.ndarray) -> np.ndarray:
    """Tell which principal axes of the rows are no choice: of a variance above the floor, and apart from the others."""
    variances = np.linalg.eigvalsh(np.cov(x.T.astype(np.float64), bias=True).reshape(x.shape[1], -1))[::-1]
    gaps = -np.diff(variances, prepend=np.inf, append=-np.inf)
    return (variances > 1.001e-5 * variances[0]) & (np.minimum(gaps[1:], gaps[:-1]) > 1e-4 * variances[0])


def regions(case: Case) -> None:
    """Compare the squares, unless two numbers of regions overlap equally well, of which the rounding takes one."""
    given = case.inputs()
    written = re.search(r"(\d+)x(\d+)_L(\d+)", case.name)
    height, width, levels = given["HWL"].tolist() if "HWL" in given else map(int, written.groups())
    shorter, longer = sorted((height, width))
    overlaps = [abs(Fraction(3, 5) - Fraction(longer - shorter, steps * shorter)) for steps in range(1, 7)]
    if height == width or overlaps.count(min(overlaps)) == 1:
        wanted = [(x, y, w) for x, y, w, _ in case.expected()["regions_xywh"].tolist()]
        assert region_grid(height, width, levels) == wanted


def rmac(case: Case) -> None:
    """Compare maxima of regions, their unit vectors, and the aggregated descriptor; signs of axes are arbitrary."""
    given, expected = case.inputs(), case.expected()
    maxima = region_maxima(torch.from_numpy(given["features"]), _levels(case)).numpy()
    if "desc_nonorm" in expected:
        np.testing.assert_array_equal(maxima, expected["desc_nonorm"])
    if "desc" in expected:
        known = np.isfinite(expected["desc"])  # VISSL divides a region of zeros by 0
        ours = unit_length(maxima)
        np.testing.assert_allclose(ours[known], expected["desc"][known], rtol=1e-5, atol=1e-7)
        assert (ours[~known] == 0).all()
    if "pca_DVt" not in expected:
        return
    recorded = Whitening(expected["pca_mean"].ravel().astype(np.float64), expected["pca_DVt"].astype(np.float64))
    if "desc_pca" in expected:
        np.testing.assert_allclose(aggregate_regions(maxima, recorded), expected["desc_pca"], rtol=2e-5, atol=1e-5)
    if "desc_pca_nonorm" in expected:
        summed = recorded.apply(maxima.reshape(-1, maxima.shape[-1])).reshape(*maxima.shape[:2], -1).sum(axis=1)
        np.testing.assert_allclose(summed, expected["desc_pca_nonorm"], rtol=1e-4, atol=1e-4 * np.abs(summed).max())
    if "pca_train" in given:
        learnt = fit_whitening(given["pca_train"], len(recorded.axes))
        found = _determined(given["pca_train"])[: len(learnt.axes)]
        scaled = np.abs(learnt.axes) / np.sqrt(len(given["pca_train"]))
        np.testing.assert_allclose(scaled[found], np.abs(recorded.axes)[found], rtol=1e-3, atol=1e-4 * scaled.max())


def _levels(case: Case) -> int:
    return int(case.inputs().get("L", option(case.args, "L", "rmac_levels", "SPATIAL_LEVELS", default=3)))


def generalised_mean(case: Case) -> None:
    """Compare GeM with the names of the options: 'p3_bias1', 'pinf_bias0', 'p3_eps1e-3', 'avg_gem_p3_bias'.

    A bias is VISSL's channel of ones; p = 1 does not clamp and is the pool avg. Ours always clamps at 1e-6.
    """
    given, expected = case.inputs(), case.expected()
    pattern = r"(?P<avg>avg_gem_)?p(?P<p>[\d.]+|inf)(?P<bias>_bias(?!0)1?)?(?:_bias0)?(?P<options>.*)"
    compared = 0
    for key, value in expected.items():
        if key == "l2n":
            if "p3_bias1" in expected:
                np.testing.assert_allclose(unit_length(expected["p3_bias1"]), value, rtol=1e-5)
            continue
        found = re.fullmatch(pattern, key)
        assert found, key
        names = sorted(given) if found["avg"] else ["x"]
        bound = re.search(r"eps([\d.e-]+)", found["options"])
        least = 0.0 if "noclamp" in found["options"] else float(bound[1]) if bound else 1e-6
        clamps = found["p"] not in ("1", "1.0", "inf")
        if clamps and least != 1e-6 and min(given[name].min() for name in names) < max(least, 1e-6):
            continue  # ours clamps at another value
        pool = {"1": Pool("avg"), "1.0": Pool("avg"), "inf": Pool("max")}.get(found["p"])
        pool = pool or Pool("gem", (float(found["p"]),))
        pooled = [apply_pool(torch.from_numpy(given[name]), pool, Tokens(), layer="x").numpy() for name in names]
        ours = np.mean(pooled, axis=0)
        ours = np.c_[ours, np.ones(len(ours))] if found["bias"] else ours
        np.testing.assert_allclose(ours.reshape(value.shape), value, rtol=1e-5, atol=1e-7)
        compared += 1
    assert compared


def copydays_of_vissl(case: Case) -> None:
    """VISSL finds the queries of a split by substring: jpegqual_3 has those of jpegqual_30 too."""
    args, similarity = case.args, case.inputs()["sim"]
    block, query = (
        [-1 if "distractor" in name else int(re.search(r"(\d+)\.\w+$", name)[1]) // 100 for name in args[files]]
        for files in ("database_files", "query_files")
    )
    for split, wanted in case.expected_json().items():
        rows = [i for i, name in enumerate(args["query_files"]) if split in name and i < len(similarity)]
        truths = [GroundTruth(np.flatnonzero(np.array(block) == query[i])) for i in rows]
        ranks = [retrieval.ranks_of_positives(similarity[i], t) for i, t in zip(rows, truths, strict=True)]
        assert np.nanmean([retrieval.average_precision(r, len(r)) for r in ranks]) == pytest.approx(wanted["mAP"])
        for k, value in zip(wanted["mp@k"]["k"], wanted["mp@k"]["mAP"], strict=True):
            assert np.mean([retrieval.precision_at(r, k) for r in ranks if len(r)]) == pytest.approx(value)


def target_size(case: Case) -> None:
    """Compare sizes of images after VISSL's MultigrainResize, which keeps the ratio and rounds down."""
    rows: list[dict[str, Any]] = case.expected_json()
    assert rows
    for row in rows:
        side = "longer" if row.get("largest") else "shorter"
        assert list(resized(row["h"], row["w"], row["size"], side)) == row["out_hw"], row


PATTERNS = {
    "06_retrieval/multigrain_*": target_size,
    "06_retrieval/rmac_regions_*": regions,
    "06_retrieval/rmac_desc_*": rmac,
    "06_retrieval/gem_*": generalised_mean,
    "06_retrieval/copydays*": copydays_of_vissl,
    "06_retrieval/revisited_*": revisited,
    "06_retrieval/ap1_*": from_ranks,
    "06_retrieval/vissl_map_*": clipped,
    "06_retrieval/instre*": instre,
    "06_retrieval/pca_*": whitening,
}
