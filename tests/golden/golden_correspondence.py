"""Correspondence: PCK of SPair's authors, probe3d and sd-dino; matches under a homography of VisBench."""

import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_cases import Case

from sslbench.data.open import open_pairs
from sslbench.metrics.dense.correspondence import MatchErrors, PairHits, apply_homography, hits
from sslbench.solvers import correspondence


def _numbers(arrays: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Return the arrays `name/0`, `name/1`, ... of a case, or `name/0/0`, `name/0/1`, `name/1/0`, ..."""
    keys = [key for key in arrays if key.startswith(f"{name}/")]
    return [arrays[key] for key in sorted(keys, key=lambda key: [int(i) for i in key.split("/")[1:]])]


def _classes(names: list[str], known: list[str] | None = None) -> tuple[np.ndarray, int]:
    order = known or list(dict.fromkeys(names))
    return np.array([order.index(name) for name in names]), len(order)


def authors(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    classes, _ = _classes(args["class_of_pair"], args["classes"])
    target, predicted = _numbers(given, "target_kps"), _numbers(given, "predicted_kps")
    sides = [
        float(a) * float(b)
        for a, b in zip(_numbers(given, "max_box_side"), _numbers(given, "target_ratio"), strict=True)
    ]
    found = [hits(p.T, t.T, s, args["alphas"]).sum(0) for p, t, s in zip(predicted, target, sides, strict=True)]
    points = np.array([t.shape[1] for t in target])
    pairs, once = PairHits(np.array(found), points, classes), np.ones((1, len(points)))
    for column, alpha in enumerate(args["alphas"]):
        wanted = {key.split("/")[1]: v for key, v in expected.items() if key.startswith(f"pck@{alpha}/")}
        np.testing.assert_allclose(pairs.found[:, column] / points, wanted["per_pair"], rtol=1e-12)
        np.testing.assert_allclose(pairs.of_classes(once)[0, :, column], wanted["per_class"], rtol=1e-12)
        for name, ours in (
            ("mean_of_pairs", pairs.per_image(once)),
            ("mean_of_classes", pairs.per_class(once)),
            ("pooled_points", pairs.per_point(once)),
        ):
            assert ours[0, column] == pytest.approx(float(wanted[name]), rel=1e-12), name


def probe3d(case: Case) -> None:
    """Errors from the corners of cells, and queries on a grid whose outermost centres are the image's corners."""
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    size, grid = args["image_size"], args["grid"]
    errors, ties = [], 0
    for i, (source, target) in enumerate(
        zip(_numbers(given, "source_features"), _numbers(given, "target_features"), strict=True)
    ):
        shared = (given[f"source_kps/{i}"][:, 2] > 0) & (given[f"target_kps/{i}"][:, 2] > 0)
        own = torch.from_numpy(given[f"source_kps/{i}"][shared, :2]).float() / size * (grid - 1)
        features = torch.from_numpy(target).float()
        similarity = correspondence.similarity_maps(
            correspondence.sample(torch.from_numpy(source).float(), own), features
        )
        cells = correspondence.nearest_cells(similarity).numpy() / grid
        true = given[f"target_kps/{i}"][shared, :2] / size
        error = np.linalg.norm(cells - true, axis=1) / given[f"threshold_scale/{i}"]
        best = similarity.flatten(1).topk(2, dim=1).values
        clear = (best[:, 0] - best[:, 1] > 1e-4).numpy()
        np.testing.assert_array_equal(np.flatnonzero(shared), expected[f"kps_index/{i}"])
        np.testing.assert_allclose(error[clear], expected[f"error/{i}"][clear], rtol=1e-4)
        ties += int((~clear).sum())
        errors.append(error)
    classes, _ = _classes(args["class_of_pair"], sorted(set(args["class_of_pair"])))
    points, once = np.array([len(e) for e in errors]), np.ones((1, len(errors)))
    for key in (key for key in expected if key.endswith("mean_of_classes")):
        limit = float(re.match(r"recall@([\d.]+)/", key)[1])
        pairs = PairHits(np.array([[int((e < limit).sum())] for e in errors]), points, classes)
        per_class = pairs.of_classes(once, "point")[0, :, 0]
        allowed = 1e-4 + 100 * ties / points.sum()
        recorded = expected[key.replace("mean_of_classes", "per_class")]
        np.testing.assert_allclose(100 * np.sort(per_class), np.sort(recorded), atol=allowed)
        assert 100 * pairs.per_class(once, "point")[0, 0] == pytest.approx(float(expected[key]), abs=allowed)


def sd_dino(case: Case) -> None:
    """Queries are the cell that a keypoint lies in; a distance on the threshold is a miss."""
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    size, patch = args["image_size"], args["patch"]
    grid = size // args["stride"]
    padded, scales = [], []
    for points, (width, height) in zip(_numbers(given, "kps_in_image"), _numbers(given, "image_wh"), strict=True):
        scale = size / max(width, height)
        offset = [int((size - np.around(side * scale)) / 2) for side in (width, height)]
        seen = points[:, 2:] > 0
        scaled = points[:, :2] * np.float32(scale) + offset
        padded.append(np.column_stack([scaled * seen, points[:, 2:]]))
        scales.append(scale)
    np.testing.assert_allclose(np.array(padded), expected["kps_padded"], rtol=1e-6)
    large = [
        torch.nn.functional.interpolate(torch.from_numpy(f)[None].float(), (grid, grid), mode="bilinear")[0]
        for f in _numbers(given, "features_small")
    ]
    found, points = [], []
    for pair, side in enumerate(_numbers(given, "target_box_side")):
        source, target = padded[2 * pair], padded[2 * pair + 1]
        limit = float(side) * scales[2 * pair + 1]
        assert limit == pytest.approx(float(expected["thresholds_px"][pair]), rel=1e-6)
        shared = (source[:, 2] > 0) & (target[:, 2] > 0)
        cells = torch.from_numpy((grid / size * source[shared, :2]).astype(int)).float()
        queries = correspondence.sample(large[2 * pair], cells)
        best = correspondence.nearest_cells(correspondence.similarity_maps(queries, large[2 * pair + 1]))
        predicted = correspondence.to_pixels(best, patch).numpy()
        found.append(hits(predicted, target[shared, :2], limit, args["alphas"], strict=True).sum(axis=0))
        points.append(shared.sum())
    pairs = PairHits(np.array(found), np.array(points), np.zeros(len(points), int))
    np.testing.assert_allclose(pairs.per_point(np.ones((1, len(points))))[0], expected["pck"], rtol=1e-6)


def homography(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    height, width = args["grid"]
    stride = args["size_wh"][0] / width
    assert stride == args["size_wh"][1] / height
    cells = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=2).reshape(-1, 2)
    centres = correspondence.to_pixels(torch.from_numpy(cells).double(), stride, first_pixel=0.5).numpy()
    features = [f.reshape(len(f), -1).T.astype(np.float32) for f in _numbers(given, "features")]
    errors, ceilings, pairs = [], [], []
    for pair, h in enumerate(_numbers(given, "homography")):
        matches = correspondence.ratio_matches(
            features[2 * pair], features[2 * pair + 1], ratio=args["ratio"] or 1e9, most=args["num_corr"]
        )
        recorded = expected[f"matches/{pair}"]
        assert set(zip(matches.source.tolist(), matches.target.tolist(), strict=True)) == set(map(tuple, recorded.T))
        true = apply_homography(h, centres[matches.source])
        errors.append(np.linalg.norm(true - centres[matches.target], axis=1))
        ceilings.append(np.linalg.norm(true[:, None] - centres, axis=2).min(axis=1))
        pairs.append(np.full(len(true), pair))
    unit = stride if args["unit"] == "patch" else 1.0
    of_pair, once = np.concatenate(pairs), np.ones((1, len(pairs)))
    assert len(of_pair) == float(expected["num_matches"])
    for prefix, found in (("", errors), ("ceiling/", ceilings)):
        ours = MatchErrors(np.concatenate(found) / unit, of_pair)
        for key in expected:
            if parts := re.fullmatch(rf"{prefix}(recall|auc)@([\d.]+)(px|p)", key):
                value = (ours.recall if parts[1] == "recall" else ours.auc)(once, (float(parts[2]),))
                assert value[0, 0] == pytest.approx(float(expected[key]), rel=1e-5), key


def annotation(case: Case) -> None:
    """Keypoints of pairs that are visible in both images; probe3d scales them to 224 pixels and cuts off fractions."""
    args, expected = case.meta["args"], case.expected()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("PairAnnotation/test", "JPEGImages"):
            (root / name).mkdir(parents=True)
        for number, each in enumerate(args["pairs"]):
            own, other = each["src_kps"], each["trg_kps"]
            shared = [key for key in own if own[key] is not None and other[key] is not None]
            content = {
                **{key: each[key] for key in ("src_imsize", "trg_imsize", "trg_bndbox")},
                **{"category": f"{each['category']}{number}", "src_imname": "a.jpg", "trg_imname": "b.jpg"},
                "src_kps": [own[key] for key in shared],
                "trg_kps": [other[key] for key in shared],
            }
            (root / "PairAnnotation" / "test" / f"pair{number}.json").write_text(json.dumps(content))
        source = open_pairs(folder)["test"]
        assert len(source) == len(args["pairs"])
    for name, pair in zip(source.ids, source.tuples.pairs, strict=True):
        number = int(name.removeprefix("pair"))
        given = args["pairs"][number]
        both = expected[f"source_kps/{number}"], expected[f"target_kps/{number}"]
        visible = (both[0][:, 2] > 0) & (both[1][:, 2] > 0)
        for points, recorded, size in zip(
            (pair.source_points, pair.target_points), both, (given["src_imsize"], given["trg_imsize"]), strict=True
        ):
            scaled = np.floor(points * 224 / max(size[:2]) + 1e-6)
            np.testing.assert_allclose(scaled, recorded[visible, :2], atol=1)
        side = pair.side / max(given["trg_imsize"][:2])
        assert side == pytest.approx(float(expected[f"threshold_scale/{number}"]), rel=1e-6)


PATTERNS = {
    "15_correspondence_pck/spair_annotation_to_keypoints*": annotation,
    "15_correspondence_pck/spair_authors_*": authors,
    "15_correspondence_pck/probe3d_*": probe3d,
    "15_correspondence_pck/sd_dino_*": sd_dino,
    "15_correspondence_pck/homography_*": homography,
}
