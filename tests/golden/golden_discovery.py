"""Object discovery: LOST, TokenCut, DINO-seg, CorLoc; saliency."""

import numpy as np
import pytest
from golden_cases import Case
from scipy import ndimage

from sslbench.metrics.dense import discovery as metrics
from sslbench.solvers import discovery


def lost(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    grid, (height, width) = tuple(args["dims"]), args["image_hw"]
    correlation = discovery.correlations(given["features"])
    uncertain = (np.abs(correlation) < 1e-4).sum(axis=1)
    degrees = discovery.degrees(correlation)
    assert (np.abs(degrees - expected["degree"].ravel()) <= uncertain).all()
    found = discovery.expand(correlation, expected["order"].astype(int), grid, args["k_patches"])
    assert found.seed == int(expected["seed"])
    assert found.box(args["patch"], height, width) == tuple(expected["box"].tolist())
    own = discovery.lost(given["features"], grid, k=args["k_patches"])
    same = discovery.by_degree(expected["degree"], "torch")
    np.testing.assert_array_equal(expected["degree"][same], expected["degree"][expected["order"].astype(int)])
    if (degrees == expected["degree"].ravel()).all():
        assert own.seed in expected["seeds_of_lowest_degree"].tolist()
    assert not (found.region & ~expected["summed_positive"]).any()


def token_cut(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    grid, (height, width) = tuple(args["dims"]), args["image_hw"]
    how = {"threshold": args["tau"], "epsilon": args["eps"], "weighted": args["weighted"]}
    found = discovery.token_cut(given["features"], grid, **how)
    assert found.seed == int(expected["seed"])
    assert found.box(args["patch"], height, width) == tuple(expected["box"].tolist())
    vector = discovery.second_eigenvector(given["features"], **how)
    recorded = expected["eigenvector"].ravel()
    np.testing.assert_allclose(vector / np.abs(vector).max(), recorded / np.abs(recorded).max(), rtol=1e-3, atol=1e-6)
    side = (vector > vector.mean()) == (vector[found.seed] > vector.mean())
    component = expected["components"].ravel()[found.seed]
    np.testing.assert_array_equal(found.region, (expected["components"] == component) & side.reshape(grid))
    assert (found.region <= (expected["mask"] > 0)).all()


def dino_seg(case: Case) -> None:
    """The marked variant of its authors: the last region is never considered."""
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    grid = tuple(args["dims"])
    attention = given["attention"][args["head"]].astype(np.float64)
    regions, number = ndimage.label(discovery.attended(attention, args.get("threshold", 0.6)).reshape(grid))
    sizes = np.bincount(regions.ravel(), minlength=number + 1)
    considered = [label for label in range(number) if label] or [0]
    best = max(considered, key=lambda label: sizes[label])
    height, width = args.get("image_hw", [side * args["patch"] for side in grid])
    box = discovery.DiscoveredObject(regions == best).box(args["patch"], height, width)
    assert box == tuple(expected["box"].tolist())
    own = discovery.dino_seg(attention, grid, mass=args.get("threshold", 0.6))
    assert own.region.sum() == sizes[1:].max()


def _boxes(raw: np.ndarray, args: dict[str, object]) -> np.ndarray:
    """Return the boxes of an image as LOST reads them from VOC (inclusive, from 1 on) or COCO."""
    raw = raw.reshape(-1, 6)
    if args["no_hard"]:
        raw = raw[(raw[:, 4:] == 0).all(axis=1)]
    if args["kind"] == "voc":
        return raw[:, :4] - [1, 1, 0, 0]
    given = raw[raw[:, 4] == 0, :4] + [0.4, 0.6, 0.4, 0.6]  # corners in the annotations
    return np.round(given)


def corloc(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    located = []
    for i in range(sum(key.startswith("pred/") for key in given)):
        boxes, box = _boxes(given[f"gt_raw/{i}"], args), given[f"pred/{i}"]
        if f"gt/{i}" in expected:
            np.testing.assert_array_equal(boxes, expected[f"gt/{i}"])
            np.testing.assert_allclose(metrics.overlaps(box, boxes), expected[f"iou/{i}"], rtol=1e-6, atol=1e-9)
        else:
            assert not len(boxes)
        located.append(metrics.is_located(box, boxes))
    hit = np.array(located)
    assert np.isfinite(hit).sum() == int(expected["counted"])
    np.testing.assert_array_equal(np.nan_to_num(hit) > 0, expected["hit"])
    recorded = float(expected["corloc"])
    assert np.nanmean(hit) == pytest.approx(recorded / (100 if recorded > 1 else 1), rel=1e-12)


def saliency(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    number = sum(key.startswith("pred/") for key in given)
    values = [metrics.saliency_values(given[f"pred/{i}"], given[f"gt/{i}"] > 127) for i in range(number)]
    each = np.array([[value.iou, value.accuracy] for value in values])
    np.testing.assert_allclose(each, expected["iou_accuracy_per_image"], rtol=1e-5)
    np.testing.assert_allclose(each.mean(axis=0), [expected["IoU"], expected["accuracy"]], rtol=1e-5)
    best = metrics.max_f(np.ones((1, number)), np.stack([value.f for value in values]))
    assert best[0, 0] == pytest.approx(float(expected["F_max"]), rel=1e-5)


PATTERNS = {
    "19_unsupervised_discovery/lost_*": lost,
    "19_unsupervised_discovery/tokencut_*": token_cut,
    "19_unsupervised_discovery/dino_seg_*": dino_seg,
    "19_unsupervised_discovery/corloc_*": corloc,
    "19_unsupervised_discovery/saliency*": saliency,
}
