"""Correspondence: PCK of SPair's authors, probe3d and sd-dino; matches under a homography of VisBench."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_arrays import by_kind, numbered, options, series
from golden_cases import Case

from sslbench.data.open import open_as
from sslbench.metrics.dense.correspondence import MatchErrors, PairHits, apply_homography, hits
from sslbench.solvers import correspondence
from sslbench.targets.pairs import Homographies, Points

_TIE = 2e-6
"""Difference of squared distances of unit vectors that is lost where they are computed from products in float32."""


def _limits(expected: dict[str, np.ndarray], measure: str) -> list[float]:
    """Return the thresholds in the names of results, `measure@threshold/...`, in order."""
    found = [re.match(rf"{measure}@([\d.e-]+)", key) for key in expected]
    return list(dict.fromkeys(float(match[1]) for match in found if match))


def _classes(names: list[str], known: list[str] | None) -> np.ndarray:
    order = known or list(dict.fromkeys(names))
    return np.array([order.index(name) for name in names])


def authors(case: Case) -> None:
    """Compare PCK. Of points at the threshold rounding in float32 decides, if the distance is not exactly at it."""
    given, expected = case.inputs(), case.expected()
    targets, predictions = numbered(given, "target_kps"), numbered(given, "predicted_kps")
    args = options(case, classes=None, class_of_pair=["" for _ in targets])
    sides = [float(side) for side in numbered(given, "max_box_side", "pckthres")]
    ratios = [float(ratio) for ratio in numbered(given, "target_ratio")] or [1.0] * len(targets)
    limits, found = _limits(expected, "pck"), []
    for target, predicted, side, ratio in zip(targets, predictions, sides, ratios, strict=True):
        ours = hits(predicted.T, target.T, side * ratio, tuple(limits))
        distance = np.linalg.norm(np.subtract(predicted, target, dtype=np.float64), axis=0)[:, None]
        exact = side * ratio * np.array(limits)
        theirs = distance.astype(np.float32) <= np.float32(side * ratio) * np.float32(limits)
        rounded = (np.abs(distance - exact) < 1e-5 * exact) & ((distance != exact) | ours)
        found.append(np.where(rounded, theirs, ours).sum(axis=0))
    points = np.array([target.shape[1] for target in targets])
    pairs = PairHits(np.array(found), points, _classes(args["class_of_pair"], args["classes"]))
    once = np.ones((1, len(points)))
    of_classes = pairs.of_classes(once)[0]  # up to the last class that has a pair
    missing = len(args["classes"] or of_classes) - len(of_classes)
    of_classes = np.pad(of_classes, ((0, missing), (0, 0)), constant_values=np.nan)
    values = {
        "per_pair": pairs.found / points[:, None],
        "per_class": of_classes,
        "mean_of_pairs": pairs.per_image(once)[0],
        "mean_of_classes": pairs.per_class(once)[0],
        "pooled_points": pairs.per_point(once)[0],
    }
    for key, value in expected.items():
        limit, name = re.fullmatch(r"pck@([\d.e-]+)/(\w+)", key).groups()
        np.testing.assert_allclose(values[name][..., limits.index(float(limit))], value, rtol=1e-12, err_msg=key)


def probe3d(case: Case) -> None:
    """Compare errors from the corners of cells; the outermost centres of the queries' grid are the image's corners."""
    given, expected = case.inputs(), case.expected()
    sources, targets = numbered(given, "source_features"), numbered(given, "target_features")
    args = options(case, image_size=512, class_of_pair=["" for _ in sources])
    grid, limits = sources[0].shape[-1], _limits(expected, "recall")
    scales = [float(scale) for scale in numbered(given, "threshold_scale")] or [1.0] * len(sources)
    found, points, ties = [], [], np.zeros(len(limits))
    for i, (source, target, scale) in enumerate(zip(sources, targets, scales, strict=True)):
        both = [numbered(given, f"{name}_kps")[i] for name in ("source", "target")]
        shared = (both[0][:, 2] > 0) & (both[1][:, 2] > 0)
        own = torch.from_numpy(both[0][shared, :2]).float() / args["image_size"] * (grid - 1)
        features = torch.from_numpy(target).float()
        queries = correspondence.sample(torch.from_numpy(source).float(), own)
        similarity = correspondence.similarity_maps(queries, features)
        cells = correspondence.nearest_cells(similarity).numpy() / grid
        true = both[1][shared, :2] / args["image_size"]
        error = np.linalg.norm(cells - true, axis=1) / scale
        best = similarity.flatten(1).topk(min(2, grid * grid), dim=1).values
        inside = ((own > -1) & (own < grid)).all(dim=1)  # beyond, theirs has no feature
        clear = ((best[:, 0] - best[:, -1] > 1e-4) & inside).numpy()
        np.testing.assert_array_equal(np.flatnonzero(shared), expected.get(f"kps_index/{i}", np.flatnonzero(shared)))
        np.testing.assert_allclose(error[clear], expected.get(f"error/{i}", error)[clear], rtol=1e-4, atol=1e-6)
        for column, limit in enumerate(limits):
            ties[column] += (~clear | (np.abs(error - limit) < 1e-5)).sum()
        found.append(hits(cells, true, scale, tuple(limits), strict=True).sum(axis=0))
        points.append(len(error))
    pairs = PairHits(np.array(found), np.array(points), _classes(args["class_of_pair"], None))
    once = np.ones((1, len(points)))
    for key, value in expected.items():
        if match := re.match(r"recall@([\d.e-]+)/(\w+)", key):
            column = limits.index(float(match[1]))
            allowed = 1e-4 + 100 * ties[column] / max(1, min(points))
            ours = pairs.per_class(once, "point")[0, column]
            if match[2] == "per_class":
                ours, value = np.sort(pairs.of_classes(once, "point")[0, :, column]), np.sort(value)
            np.testing.assert_allclose(100 * ours, value, rtol=0, atol=allowed, err_msg=key)


def sd_dino(case: Case) -> None:
    """Compare PCK. Queries are the cell that a keypoint lies in; a distance on the threshold is a miss."""
    given, expected = case.inputs(), case.expected()
    args = options(case, image_size=840, patch=14, alphas=[0.1, 0.05, 0.01], threshold="box", dist="cos")
    assert args["dist"] in ("cos", "l2_norm"), "another similarity"
    size, patch, stride = args["image_size"], args["patch"], args.get("stride", args["patch"])
    grid = int(patch / stride * (size // patch - 1) + 1)
    padded, scales = [], []
    for points, (width, height) in zip(numbered(given, "kps_in_image"), numbered(given, "image_wh"), strict=True):
        scale = size / max(width, height)
        offset = [int((size - np.around(size * side / max(width, height))) / 2) for side in (width, height)]
        seen = args.get("count_invis") or points[:, 2:] > 0
        padded.append(np.column_stack([(points[:, :2] * np.float32(scale) + offset) * seen, points[:, 2:]]))
        scales.append(scale)
    if "kps_padded" in expected:
        np.testing.assert_allclose(np.array(padded), expected["kps_padded"], rtol=1e-6)
    large = [
        torch.nn.functional.interpolate(torch.from_numpy(f)[None].float(), (grid, grid), mode="bilinear")[0]
        for f in numbered(given, "features_small", "features")
    ]
    sides = [float(side) * scale for side, scale in zip(numbered(given, "target_box_side"), scales[1::2], strict=False)]
    if sides and "thresholds_px" in expected:
        np.testing.assert_allclose(sides, expected["thresholds_px"], rtol=1e-6)
    if "image" in args["threshold"]:  # the option IMG_THRESHOLD
        sides = [float(size)] * (len(large) // 2)
    found, points, ties = [], [], 0
    for pair, side in enumerate(sides):
        source, target = padded[2 * pair], padded[2 * pair + 1]
        shared = (source[:, 2] > 0) & (target[:, 2] > 0) | bool(args.get("count_invis"))
        cells = (grid / size * source[shared, :2]).astype(int)
        place = cells[:, 1] * grid + cells[:, 0]  # at the right edge the first cell of the next row
        queries = correspondence.sample(large[2 * pair], torch.from_numpy(np.stack([place % grid, place // grid], 1)))
        similarity = correspondence.similarity_maps(queries.float(), large[2 * pair + 1])
        best = correspondence.nearest_cells(similarity)
        two = similarity.flatten(1).topk(2, dim=1).values
        ties += int((two[:, 0] - two[:, 1] < 1e-5).sum())
        predicted = ((best + 0.5) * stride - 0.5 + patch // 2 - stride / 2).numpy()
        found.append(hits(predicted, target[shared, :2], side, tuple(args["alphas"]), strict=True).sum(axis=0))
        points.append(shared.sum())
    pairs = PairHits(np.array(found), np.array(points), np.zeros(len(points), int))
    ours = pairs.per_point(np.ones((1, len(points))))[0]
    np.testing.assert_allclose(ours, expected["pck"], rtol=1e-6, atol=ties / max(1, sum(points)))


def _ambiguous(source: np.ndarray, target: np.ndarray, ratio: float, most: int) -> np.ndarray:
    """Return True for the source cells whose match rounding decides."""
    unit = [
        x / np.maximum(np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True), 1e-12) for x in (source, target)
    ]
    squares = np.sort(((unit[0][:, None] - unit[1]) ** 2).sum(axis=2), axis=1)
    first, second = squares[:, 0], squares[:, min(1, squares.shape[1] - 1)]
    unsure = (second - first < _TIE) | (np.abs(first - ratio**2 * second) < _TIE)
    kept = np.sort(first[first < ratio**2 * second])
    return unsure | (np.abs(first - kept[most - 1]) < _TIE if len(kept) > most else False)


def _centres(grid: tuple[int, int], size: np.ndarray) -> np.ndarray:
    """Return the centres of the cells of a grid (height, width) on an image (width, height)."""
    cells = np.stack(np.meshgrid(*(np.arange(n) for n in grid[::-1])), axis=2).reshape(-1, 2)
    stride = torch.tensor([size[0] / grid[1], size[1] / grid[0]], dtype=torch.float64)
    return ((torch.from_numpy(cells).double() + 0.5) * stride).numpy()


def homography(case: Case) -> None:
    """Compare matches, and the scores of the recorded ones; without a match theirs is 0, ours NaN."""
    given, expected, args = case.inputs(), case.expected(), options(case, num_corr=1000)
    ratio = args.get("ratio", args.get("ratio_threshold", 0.9)) or 1.0
    in_name = "patch" if any(re.search(r"@[\d.]+p$", key) for key in expected) else "pixel"
    unit = args.get("unit", args.get("threshold_units", in_name))
    maps = numbered(given, "features")
    features = [f.reshape(len(f), -1).T.astype(np.float32) for f in maps]
    sizes = numbered(given, "size_wh") or [np.array(args.get("size_wh", (224, 224)))] * (len(maps) // 2)
    errors, ceilings, of_pair = [], [], []
    for pair, (h, size) in enumerate(zip(numbered(given, "homography"), sizes, strict=True)):
        own, other = features[2 * pair : 2 * pair + 2]
        matches = correspondence.ratio_matches(own, other, ratio=ratio, most=args["num_corr"])
        recorded = expected.get(f"matches/{pair}", np.stack([matches.source, matches.target]))
        sure = ~_ambiguous(own, other, ratio, args["num_corr"])
        ours, theirs = (
            {(i, j) for i, j in zip(*both, strict=True) if sure[i]}
            for both in ((matches.source.tolist(), matches.target.tolist()), recorded.tolist())
        )
        assert ours == theirs
        first, second = (_centres(maps[place].shape[1:], size) for place in (2 * pair, 2 * pair + 1))
        true = apply_homography(h, first[recorded[0]])
        rows, columns = maps[2 * pair + 1].shape[1:]
        scale = (size[0] / columns + size[1] / rows) / 2 if unit == "patch" else 1.0
        errors.append(np.linalg.norm(true - second[recorded[1]], axis=1) / scale)
        ceilings.append(np.linalg.norm(true[:, None] - second, axis=2).min(axis=1) / scale)
        of_pair.append(np.full(len(true), pair))
    places, once = np.concatenate(of_pair), np.ones((1, len(of_pair)))
    measured = {
        "": MatchErrors(np.concatenate(errors), places),
        "ceiling": MatchErrors(np.concatenate(ceilings), places),
    }
    for key, value in expected.items():
        if key == "num_matches":
            assert len(places) == value
        elif match := re.fullmatch(r"(?:(ceiling)[/_])?(recall|auc)@([\d.]+)px?", key):
            ours = getattr(measured[match[1] or ""], match[2])(once, (float(match[3]),))[0, 0]
            assert np.isnan(ours) == (len(places) == 0), key
            np.testing.assert_allclose(np.nan_to_num(ours), value, rtol=1e-5, atol=1e-7, err_msg=key)


def _write(root: Path, pairs: dict[str, dict[str, Any]]) -> None:
    """Write pairs as SPair has them: the keypoints that are visible in both images."""
    for name in ("PairAnnotation/test", "JPEGImages"):
        (root / name).mkdir(parents=True)
    for number, each in pairs.items():
        own, other = each["src_kps"], each["trg_kps"]
        shared = [key for key in own if own[key] is not None and other[key] is not None]
        content = {
            **{key: each[key] for key in ("src_imsize", "trg_imsize", "trg_bndbox")},
            **{"category": f"{each['category']}{number}", "src_imname": "a.jpg", "trg_imname": "b.jpg"},
            "src_kps": [own[key] for key in shared],
            "trg_kps": [other[key] for key in shared],
        }
        (root / "PairAnnotation" / "test" / f"pair{number}.json").write_text(json.dumps(content))


def annotation(case: Case) -> None:
    """Compare keypoints visible in both images; probe3d cuts out the box, scales and cuts off fractions."""
    args, expected = options(case, image_size=512, use_bbox=True), case.expected()
    recorded = {side: series(expected, f"{side}_kps") for side in ("source", "target")}
    pairs = {number: args["pairs"][int(number)] for number in recorded["source"]}
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), pairs)
        source = open_as(folder, Points, Homographies)["test"]
        assert len(source) == len(pairs)
    for name, pair in zip(source.ids, source.target.pairs, strict=True):
        number = name.removeprefix("pair")
        given, both = pairs[number], [recorded[side][number] for side in ("source", "target")]
        visible = (both[0][:, 2] > 0) & (both[1][:, 2] > 0)
        for points, keypoints, prefix in zip(
            (pair.source_points, pair.target_points), both, ("src", "trg"), strict=True
        ):
            width, height = given[f"{prefix}_imsize"][:2]
            left, top, right, bottom = given[f"{prefix}_bndbox"] if args["use_bbox"] else (0, 0, width, height)
            longest = max(min(right, width) - left, min(bottom, height) - top)
            scaled = np.trunc((points - (left, top)) * args["image_size"] / longest)
            np.testing.assert_array_equal(scaled, keypoints[visible, :2], err_msg=name)
        side = 1.0 if args["use_bbox"] else pair.side / max(given["trg_imsize"][:2])
        np.testing.assert_allclose(side, expected.get(f"threshold_scale/{number}", side), rtol=1e-6)


PATTERNS = {
    "15_correspondence_pck/*": by_kind(
        {
            "SPairDataset|^spair_annotation": annotation,
            "eval_pck|^spair_authors": authors,
            "compute_pck|^sd_dino": sd_dino,
            "compute_errors|^probe3d": probe3d,
            "CorrespondenceTask|^homography": homography,
        }
    )
}
