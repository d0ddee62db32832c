"""Object discovery: LOST, TokenCut, DINO-seg, CorLoc; saliency."""

from typing import Any

import numpy as np
import pytest
from golden_arrays import by_kind, numbered, options, series
from golden_cases import Case
from scipy import linalg, ndimage

from sslbench.metrics.dense import discovery as metrics
from sslbench.solvers import discovery


def _place(case: Case, grid: tuple[int, ...]) -> tuple[Any, int, int]:
    """Return the side of a patch, and height and width of the image, by default of the whole grid."""
    args = options(case, patch=16)
    patch = tuple(args["scales"]) if "scales" in args else args["patch"]
    down, across = patch if isinstance(patch, tuple) else (patch, patch)
    height, width = args.get("image_hw", args.get("init_image_size", [grid[0] * down, grid[1] * across])[-2:])
    return patch, height, width


def lost(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), options(case, k_patches=100)
    grid = tuple(args["dims"] if "dims" in args else expected["summed_positive"].shape)
    degree, order = expected["degree"].ravel(), expected["order"].ravel().astype(int)
    correlation = discovery.correlations(given["features"])
    uncertain = (np.abs(correlation) < 1e-4).sum(axis=1)
    degrees = discovery.degrees(correlation)
    assert (np.abs(degrees - degree) <= uncertain).all()
    found = discovery.expand(correlation, order, grid, args["k_patches"])
    assert found.seed == int(expected["seed"])
    used = order[: args["k_patches"]]
    sums = correlation[used[correlation[found.seed, used] > 0]].sum(axis=0)
    positive = expected.get("summed_positive", sums > 0).ravel()
    clear = np.abs(sums) > 1e-5 * np.abs(sums).max()
    assert ((sums > 0) == positive)[clear].all()
    if ((sums > 0) == positive).all():  # else rounding decides
        assert found.box(*_place(case, grid)) == tuple(expected["box"].tolist())
        assert not (found.region.ravel() & ~positive).any()
    own = discovery.lost(given["features"], grid, k=args["k_patches"])
    np.testing.assert_array_equal(degree[discovery.by_degree(degree, "torch")], degree[order])
    if (degrees == degree).all():
        assert own.seed in expected.get("seeds_of_lowest_degree", np.flatnonzero(degree == degree.min())).tolist()


def token_cut(case: Case) -> None:
    """Compare cuts where the vector is defined, and its largest entry is one."""
    given, expected = case.inputs(), case.expected()
    args = options(case, tau=0.0, eps=1e-5, no_binary_graph=False)
    grid = tuple(args["dims"] if "dims" in args else expected["mask"].shape)
    how = {"threshold": args["tau"], "epsilon": args["eps"], "weighted": args.get("weighted", args["no_binary_graph"])}
    if _gap(given["features"].astype(np.float64), **how) < 1e-6:
        return
    found = discovery.token_cut(given["features"], grid, **how)
    vector = discovery.second_eigenvector(given["features"], **how)
    recorded, seed = expected["eigenvector"].ravel(), int(expected["seed"])
    np.testing.assert_allclose(vector / np.abs(vector).max(), recorded / np.abs(recorded).max(), rtol=1e-3, atol=1e-6)
    assert seed == found.seed or np.abs(vector[seed]) > (1 - 1e-6) * np.abs(vector).max()
    from_mean = vector - vector.mean()
    if (np.abs(from_mean) < 1e-9 * np.abs(vector).max()).any():  # rounding decides on the side of a patch
        return
    side = (from_mean > 0) == (from_mean[found.seed] > 0)
    if found.region.ravel()[seed]:
        assert found.box(*_place(case, grid)) == tuple(expected["box"].tolist())
        if "components" in expected:
            component = expected["components"] == expected["components"].ravel()[seed]
            np.testing.assert_array_equal(found.region, component & side.reshape(grid))
        assert (found.region <= (expected["mask"] > 0)).all()
    else:
        assert seed != found.seed


def _gap(features: np.ndarray, *, threshold: float, epsilon: float, weighted: bool) -> float:
    """Return the relative distance of the second and the third eigenvalue of the cut."""
    x = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    edges = np.where(x @ x.T > threshold, x @ x.T if weighted else 1.0, epsilon)
    degree = np.diag(edges.sum(axis=1))
    values = linalg.eigh(degree - edges, degree, eigvals_only=True, subset_by_index=[1, min(2, len(x) - 1)])
    return float((values[-1] - values[0]) / max(abs(values[-1]), 1e-12)) if len(values) > 1 else np.inf


def dino_seg(case: Case) -> None:
    """Compare the marked variant of its authors: the last region is never considered."""
    given, expected, args = case.inputs(), case.expected(), options(case, head=0, threshold=0.6)
    grid = tuple(args["dims"])
    attention = given["attention"].reshape(-1, grid[0] * grid[1])[args["head"]].astype(np.float64)
    regions, number = ndimage.label(discovery.attended(attention, args["threshold"]).reshape(grid))
    sizes = np.bincount(regions.ravel(), minlength=number + 1)
    considered = [label for label in range(number) if label] or [0]
    best = max(considered, key=lambda label: sizes[label])
    box = discovery.DiscoveredObject(regions == best).box(*_place(case, grid))
    assert box == tuple(expected["box"].tolist())
    own = discovery.dino_seg(attention, grid, mass=args["threshold"])
    assert own.region.sum() == sizes[1:].max()


def _boxes(raw: np.ndarray, args: dict[str, Any]) -> np.ndarray:
    """Return the boxes of an image as LOST reads them from VOC (inclusive, from 1 on) or COCO."""
    raw = raw.reshape(-1, 6)
    if args["kind"] == "voc":
        raw = raw[(raw[:, 4:] == 0).all(axis=1)] if args["no_hard"] else raw
        return raw[:, :4] - [1, 1, 0, 0]
    raw = raw[raw[:, 4] == 0] if args["remove_iscrowd"] else raw
    return np.round(raw[:, :4] + [0.4, 0.6, 0.4, 0.6])  # corners in the annotations


def corloc(case: Case) -> None:
    """Compare hits; theirs adds 1e-7 to areas, so that an IoU of exactly one half is a miss."""
    given, expected, args = (
        case.inputs(),
        case.expected(),
        options(case, kind="voc", no_hard=False, remove_iscrowd=True),
    )
    located, half, predictions = [], [], series(given, "pred")
    for place, raw in series(given, "gt_raw").items():
        boxes, box = _boxes(raw, args), predictions.get(place)
        ious = metrics.overlaps([0, 0, 0, 0] if box is None else box, boxes)
        if f"gt/{place}" in expected:
            np.testing.assert_array_equal(boxes, expected[f"gt/{place}"])
        elif any(key.startswith("gt/") for key in expected):
            assert not len(boxes)
        if f"iou/{place}" in expected:
            np.testing.assert_allclose(ious, expected[f"iou/{place}"], rtol=1e-5, atol=1e-7)
        located.append(metrics.is_located(box, boxes))
        half.append(len(ious) > 0 and abs(ious.max() - 0.5) < 1e-6)
    hit, clear = np.array(located), ~np.array(half)
    counted = int(np.isfinite(hit).sum())
    assert counted == int(expected.get("counted", counted))
    if "hit" in expected:
        np.testing.assert_array_equal((np.nan_to_num(hit) > 0)[clear], expected["hit"].astype(bool)[clear])
    recorded, slack = float(expected["corloc"]), (~clear).sum() / max(counted, 1)
    shares = (recorded, recorded / 100)  # some record a percentage
    assert any(np.nanmean(hit) == pytest.approx(share, rel=1e-12, abs=slack) for share in shares)


def saliency(case: Case) -> None:
    """Compare scores; the IoU of two empty regions is NaN in the reference."""
    given, expected = case.inputs(), case.expected()
    pairs = zip(numbered(given, "pred"), numbered(given, "gt"), strict=True)
    values = [metrics.saliency_values(found, truth > 0) for found, truth in pairs]
    each = np.array([[value.iou, value.accuracy] for value in values])
    best = metrics.max_f(np.ones((1, len(values))), np.stack([value.f for value in values]))[0, 0]
    found = {"iou_accuracy_per_image": each, "F_max": best, "IoU": each[:, 0].mean(), "accuracy": each[:, 1].mean()}
    for name, value in expected.items():
        known = np.isfinite(value)
        np.testing.assert_allclose(found[name][known], value[known], rtol=1e-5, err_msg=name)


PATTERNS = {
    "19_unsupervised_discovery/*": by_kind(
        {
            "object_discovery.lost|patch_scoring|^lost": lost,
            "ncut|^tokencut": token_cut,
            "dino_seg|^dino_seg": dino_seg,
            "corloc|extract_gt|^corloc": corloc,
            "metric.metrics|^saliency": saliency,
        }
    )
}
