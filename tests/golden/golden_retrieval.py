"""Retrieval: ranks, average precision, regions and whitening of four code bases."""

import re

import numpy as np
import pytest
import torch
from golden_cases import Case

from sslbench.backbones.pool_spec import Pool
from sslbench.backbones.pools import Tokens, apply_pool
from sslbench.backbones.regions import region_grid, region_maxima
from sslbench.data.decode.transforms import resized
from sslbench.metrics import retrieval
from sslbench.metrics.retrieval import GroundTruth
from sslbench.protocols.retrieval.descriptors import aggregate_regions, unit_length
from sslbench.solvers.whitening import Whitening, fit_whitening


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


def regions(case: Case) -> None:
    height, width, levels = case.inputs()["HWL"].tolist()
    wanted = [(x, y, w) for x, y, w, _ in case.expected()["regions_xywh"].tolist()]
    assert region_grid(height, width, levels) == wanted


def rmac(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    maxima = region_maxima(torch.from_numpy(given["features"]), int(given["L"])).numpy()
    if "desc_nonorm" in expected:
        np.testing.assert_array_equal(maxima, expected["desc_nonorm"])
    known = np.isfinite(expected["desc"])  # VISSL divides a region of zeros by 0
    ours = unit_length(maxima)
    np.testing.assert_allclose(ours[known], expected["desc"][known], rtol=1e-5)
    assert (ours[~known] == 0).all()
    if "desc_pca" in expected:
        whitening = Whitening(expected["pca_mean"][0].astype(np.float64), expected["pca_DVt"].astype(np.float64))
        np.testing.assert_allclose(aggregate_regions(maxima, whitening), expected["desc_pca"], rtol=2e-5, atol=1e-5)
        learnt = fit_whitening(given["pca_train"], len(whitening.axes))
        scaled = np.abs(learnt.axes) / np.sqrt(len(given["pca_train"]))
        np.testing.assert_allclose(scaled, np.abs(whitening.axes), rtol=1e-3, atol=1e-4 * scaled.max())


def generalised_mean(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    maps = torch.from_numpy(given["x"])
    for key, value in expected.items():
        if (power := re.fullmatch(r"p(\d+)_bias0", key)) and power[1] != "1":  # p = 1 does not clamp: the pool avg
            ours = apply_pool(maps, Pool("gem", (float(power[1]),)), Tokens(), layer="x").numpy()
        elif key in ("p1_bias0", "pinf_bias0"):
            ours = apply_pool(maps, Pool("avg" if key[1] == "1" else "max"), Tokens(), layer="x").numpy()
        elif key == "l2n":
            ours = unit_length(expected["p3_bias1"])
        elif power := re.fullmatch(r"avg_gem_p(\d+)_bias", key):  # the mean of two scales, and VISSL's channel of ones
            pool = Pool("gem", (float(power[1]),))
            scales = [apply_pool(torch.from_numpy(given[n]), pool, Tokens(), layer="x").numpy() for n in ("x", "y")]
            ours = np.c_[np.mean(scales, axis=0), np.ones(len(scales[0]))]
        else:
            continue
        np.testing.assert_allclose(ours, value, rtol=1e-5)


def copydays_of_vissl(case: Case) -> None:
    args, similarity = case.meta["args"], case.inputs()["sim"]
    block = [int(re.search(r"(\d+)\.\w+$", name)[1]) // 100 for name in args["database_files"]]
    query = [int(re.search(r"(\d+)\.\w+$", name)[1]) // 100 for name in args["query_files"]]
    for split, wanted in case.expected_json().items():
        # VISSL finds the queries of a split by substring: jpegqual_3 has those of jpegqual_30 too
        rows = [i for i, name in enumerate(args["query_files"]) if split in name]
        truths = [GroundTruth(np.flatnonzero(np.array(block) == query[i])) for i in rows]
        ranks = [retrieval.ranks_of_positives(similarity[i], t) for i, t in zip(rows, truths, strict=True)]
        assert np.mean([retrieval.average_precision(r, len(r)) for r in ranks]) == pytest.approx(wanted["mAP"])
        for k, value in zip(wanted["mp@k"]["k"], wanted["mp@k"]["mAP"], strict=True):
            assert np.mean([retrieval.precision_at(r, k) for r in ranks]) == pytest.approx(value)


def target_size(case: Case) -> None:
    for row in case.expected_json():
        side = "longer" if row["largest"] else "shorter"
        assert list(resized(row["h"], row["w"], row["size"], side)) == row["out_hw"]


def revisited_by_vissl(case: Case) -> None:
    """The figures of VISSL's own class, which come from the arrays of the case it is named after."""
    plain = Case(case.topic, case.name.removesuffix("/vissl_score"))
    expected, wanted = plain.expected(), case.expected_json()
    for level in ("easy", "medium", "hard"):
        assert float(expected[f"{level}/map"]) == pytest.approx(wanted["mAP"][level[0]], rel=1e-12)
    revisited(plain)


PATTERNS = {
    "06_retrieval/multigrain_target_size": target_size,
    "06_retrieval/revisited_*/vissl_score": revisited_by_vissl,
    "06_retrieval/rmac_regions_*": regions,
    "06_retrieval/rmac_desc_*": rmac,
    "06_retrieval/gem_*": generalised_mean,
    "06_retrieval/copydays*": copydays_of_vissl,
    "06_retrieval/revisited_[0-9]": revisited,
    "06_retrieval/ap1_*": from_ranks,
    "06_retrieval/vissl_map_gnd_clipped": clipped,
    "06_retrieval/instre": instre,
    "06_retrieval/pca_*": whitening,
}
