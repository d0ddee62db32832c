"""Depth and normals: errors, crops, alignment, losses, bins and heads of five code bases."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import Case
from golden_segmentation import layers
from torch import Tensor, nn

from sslbench.metrics.dense import depth, normals
from sslbench.metrics.dense.pooling import means
from sslbench.protocols.depth import scores as depth_protocol
from sslbench.protocols.normals import scores as normals_protocol
from sslbench.solvers.dense import heads, losses, windows

_NAMES = {"a1": "d1", "a2": "d2", "a3": "d3", "rms": "depth_rmse", "rmse": "depth_rmse", "log_10": "log10"}
_NAMES |= {"log_rms": "rmse_log", "mae": "depth_mae"}
_TOOLBOX = ("a1", "a2", "a3", "abs_rel", "rmse", "log_10", "rmse_log", "silog", "sq_rel")
_PLACE = {metric.name: i for i, metric in enumerate(depth.DEPTH)}
_DINOV3_CROPS = {
    "NYU_EIGEN": "nyu",
    "FULL": "none",
    "KITTI_GARG": "garg",
    "GARG": "garg",
    "EIGEN": "eigen",
    "KITTI_EIGEN": "eigen",
}


def _maps(case: Case, size: tuple[int, int] | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Predictions, resized to the size of the truth or to another one, and true depths."""
    given, scale = case.inputs(), case.meta["args"]["depth_scale"]
    truths = sorted((key for key in given if key.startswith("gt_")), key=lambda key: int(key.rpartition("/")[2]))
    for key in truths:
        target = given[key].astype(np.float32) / np.float32(scale)
        low = torch.from_numpy(given[f"pred_low/{key.rpartition('/')[2]}"])[None, None]
        yield windows.resized(low, size or target.shape)[0, 0].numpy(), target


def _values(maps: list[tuple[np.ndarray, np.ndarray]], masks: list[np.ndarray]) -> np.ndarray | None:
    """Metrics of each image (N, 10); None where ours refuses a prediction, which the references score somehow."""
    pairs = list(zip(maps, masks, strict=True))
    usable = all((np.isfinite(p[mask]) & (p[mask] > 0)).all() for (p, _), mask in pairs)
    if not usable:
        with pytest.raises(ValueError, match="not positive and finite"):
            for (p, t), mask in pairs:
                depth.depth_sums(p, t, mask)
        return None
    return depth.depth_values(np.stack([depth.depth_sums(p, t, mask) for (p, t), mask in pairs]))


def _compare(ours: np.ndarray, value: np.ndarray, name: str, pixels: int, where: str) -> None:
    """Shares may differ by two pixels, whose ratio is at the threshold."""
    published = _NAMES.get(name, name)
    factor = 100 if published == "silog" else 1
    atol = 2 / max(pixels, 1) if published in ("d1", "d2", "d3") else 1e-7
    np.testing.assert_allclose(factor * ours, value, rtol=2e-5, atol=atol, err_msg=where)


def scores(case: Case) -> None:
    args, expected = case.meta["args"], case.expected()
    low, high = args["min_depth"], args["max_depth"]
    crop = {"eigen NYU": "nyu"}.get(args["crop"], args["crop"])
    maps = list(_maps(case))
    codes = {key.split("/")[0] for key in expected}
    for code in sorted(codes):
        region = crop if code in ("bts", "toolbox", "dinov3_aligned", "dinov3_tta") else "none"
        region = "nyu" if code.startswith("probe3d_crop") else region
        region = _DINOV3_CROPS.get(code.removeprefix("dinov3_"), region)
        if code.startswith(("probe3d", "visbench")):  # the upper bound is inside, and there is no lower one
            masks = [depth.valid_depth(t, low=0, high=np.nextafter(np.float32(high), 99), crop=region) for _, t in maps]
        else:
            masks = [depth.valid_depth(t, low=low, high=high, crop=region) for _, t in maps]
        _compare_code(code, _as_in(code, maps, masks, (low, high)), masks, expected)
    _protocol_scores(case, crop, (low, high))


def _protocol_scores(case: Case, crop: str, bounds: tuple[float, float]) -> None:
    """Compare the rows of `eval depth` with BTS, which also clips after enlarging: means over images with depth."""
    settings = depth_protocol.Settings(
        min_depth=bounds[0], max_depth=bounds[1], scored="all" if crop == "none" else crop
    )
    task = depth_protocol.task(settings, depth_protocol.limits_of(settings, None))
    given, rows = case.inputs(), []
    for place, (_, target) in enumerate(_maps(case)):
        output = torch.from_numpy(given[f"pred_low/{place}"])[None]
        rows.append(task.row(output, np.where(target > 0, target, np.nan)[None].astype(np.float32)))
    found = depth_protocol.values_of("depth", np.stack(rows))
    pixels = int(min(row[0] for row in rows if row[0]))
    for key, value in case.expected().items():
        code, _, name = key.partition("/")
        if code == "bts" and not value.ndim:
            _compare(np.float64(found[_NAMES.get(name, name)]), value, name, pixels, key)


def _as_in(
    code: str, maps: list[tuple[np.ndarray, np.ndarray]], masks: list[np.ndarray], bounds: tuple[float, float]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Predictions aligned and clipped where a code does so."""
    found = []
    for (prediction, target), mask in zip(maps, masks, strict=True):
        changed = prediction
        if code == "dinov3_aligned" or code.endswith("scale_invariant"):
            scale, shift = depth.align_depth(prediction, target, mask, "scale_shift", negative=True)
            changed = (scale * prediction + shift).astype(np.float32)
        if code.startswith(("bts", "dinov3")):
            changed = np.clip(changed, *bounds)
        found.append((changed, target))
    return found


def _compare_code(
    code: str, maps: list[tuple[np.ndarray, np.ndarray]], masks: list[np.ndarray], expected: dict[str, Any]
) -> None:
    values, pixels = _values(maps, masks), min((int(mask.sum()) for mask in masks if mask.any()), default=1)
    if values is None:
        return
    for key, value in expected.items():
        first, *rest = key.split("/")
        if first != code:
            continue
        if rest == ["per_image"]:
            for column, name in enumerate(_TOOLBOX):
                _compare(values[:, _PLACE[_NAMES.get(name, name)]], value[:, column], name, pixels, key)
            continue
        ours = values[:, _PLACE[_NAMES.get(rest[0], rest[0])]]
        if code == "visbench" or code.startswith("probe3d") or (code.startswith("dinov3") and rest[0] == "silog"):
            ours = np.nan_to_num(ours)  # they count images without depth as 0
        if len(rest) == 2:
            _compare(ours[int(rest[1])], value, rest[0], pixels, key)
        elif value.ndim:
            _compare(ours, value, rest[0], pixels, key)
        else:
            _compare(means(ours[:, None], np.ones((1, len(ours))))[0, 0], value, rest[0], pixels, key)


def kitti(case: Case) -> None:
    args, expected = case.meta["args"], case.expected()
    bounds = (args["min_depth"], args["max_depth"])
    window = tuple(args["kb_crop"])
    for code in sorted({key.split("/")[0] for key in expected}):
        family, crop = code.rpartition("_")[::2]
        maps, masks = [], []
        for prediction, target in _maps(case, None if family == "bts_whole" else window):
            rows, columns = depth.kitti_benchmark_crop(*target.shape)
            if family == "bts_kb":
                pasted = np.zeros_like(target)
                pasted[rows, columns] = np.clip(prediction, *bounds)
                maps.append((pasted, target))
            elif family == "bts_whole":
                maps.append((np.clip(prediction, *bounds), target))
            else:
                maps.append((prediction, target[rows, columns]))
            masks.append(depth.valid_depth(maps[-1][1], low=bounds[0], high=bounds[1], crop=crop))
        _compare_code(code, maps, masks, expected)


def alignment(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    target = given["gt"]
    scale, shift = depth.align_depth(given["pred"], target, target > 0, "scale_shift", negative=True)
    assert scale == pytest.approx(expected["dinov3/scale"].item(), rel=1e-4)
    assert shift == pytest.approx(expected["dinov3/shift"].item(), rel=1e-4)
    flat = given["pred"].std() < 1e-3 * given["pred"].mean()  # the normal equations in float32 are then singular
    for code, rtol in (("dinov3", 1e-4), ("probe3d", 1e-3)):
        if f"{code}/aligned" in expected and not (flat and code == "probe3d"):
            np.testing.assert_allclose(scale * given["pred"] + shift, expected[f"{code}/aligned"], rtol=rtol, atol=1e-4)


def depth_losses(case: Case) -> None:
    given, args = case.inputs(), case.meta["args"]
    most = args.get("max_depth")
    epsilon = args["eps"]

    def of(name: str, prediction: Tensor, target: Tensor) -> Tensor:
        valid = (target > 0) & (target <= (torch.inf if most is None else most))
        if "sigloss" in name:
            return losses.sig_loss(prediction, target, valid, mean_only=name.endswith("warm_up"), epsilon=epsilon)
        if name == "probe3d_sig":
            return losses.sig_loss(prediction, target, valid, unbiased=False, epsilon=epsilon)
        if name == "probe3d_scale_invariant":  # clamped instead of epsilon, each image by itself, times 10
            images = zip(prediction.clamp_min(epsilon), target.clamp_min(epsilon), valid, strict=True)
            each = [losses.sig_loss(*image, unbiased=False, epsilon=0.0) for image in images]
            return 10 * torch.stack(each).mean()
        if name == "dinov2_gradient_as_written":  # rows and columns of batch and channels
            moved = (x.permute(2, 3, 0, 1) for x in (prediction, target, valid))
            return losses.gradient_loss(*moved, epsilon=epsilon)
        if "gradient" in name:
            logarithmic = name != "dinov3_gradient"
            return losses.gradient_loss(prediction, target, valid, logarithmic=logarithmic, epsilon=epsilon)
        assert name == "dinov3_l1", name
        return nn.functional.l1_loss(prediction[valid], target[valid])

    for key, value in case.expected().items():
        precision, name, part = key.split("/")
        dtype, rtol = (torch.float64, 1e-9) if precision == "f64" else (torch.float32, 2e-5)
        prediction = torch.from_numpy(given["pred"]).to(dtype).requires_grad_()
        loss = of(name, prediction, torch.from_numpy(given["gt"]).to(dtype))
        if part == "loss":
            assert loss.item() == pytest.approx(float(value), rel=rtol, abs=1e-12), key
            _protocol_loss(name, prediction, torch.from_numpy(given["gt"]).to(dtype), float(value), rtol)
        else:
            loss.backward()
            np.testing.assert_allclose(prediction.grad, value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=key)


def _protocol_loss(name: str, prediction: Tensor, target: Tensor, value: float, rtol: float) -> None:
    """Compare the loss of `eval depth`, whose unknown depths are nan, with DINOv2's and DINOv3's."""
    if name not in ("sigloss", "sigloss_warm_up", "dinov3_sigloss", "dinov3_sigloss_warm_up", "dinov3_gradient_log"):
        return

    def of(settings: depth_protocol.Settings) -> float:
        task = depth_protocol.task(settings, depth_protocol.limits_of(settings, None))
        return float(task.loss(prediction.detach(), torch.where(target > 0, target, torch.nan), 0))

    if name == "dinov3_gradient_log":
        found = of(depth_protocol.Settings(gradient=1.0)) - of(depth_protocol.Settings())
    else:
        found = of(depth_protocol.Settings(mean_steps=100 if name.endswith("warm_up") else 0))
    assert found == pytest.approx(value, rel=max(rtol, 1e-6)), name


def _bins(args: dict[str, Any], code: str) -> Tensor:
    """Bins of a configuration; DINOv2 and probe3d take the limits of SID as powers of 10."""
    number, low, high = args["n_bins"], args["min_depth"], args["max_depth"]
    if args.get("bins_strategy", "UD") == "UD":
        return heads.depth_bins(number, low, high)
    if code in ("dinov2", "probe3d"):
        return torch.logspace(low, high, number)
    return heads.depth_bins(number, low, high, spacing="logarithmic")


def bins(case: Case) -> None:
    logits, args = torch.from_numpy(case.inputs()["logits"]), case.meta["args"]
    for code, value in case.expected().items():
        ours = heads.depth_from_bins(logits, _bins(args, code), normalisation=args["norm_strategy"])
        np.testing.assert_allclose(ours, value, rtol=1e-5, err_msg=code)


def depth_head(case: Case) -> None:
    given = {name: torch.from_numpy(value) for name, value in case.inputs().items()}
    args, expected = case.meta["args"], case.expected()
    low, high = args["min_depth"], args["max_depth"]
    outputs, channels = given["conv_weight"].shape[:2]
    head = heads.LinearHead(channels, outputs, normalised=False)
    with torch.no_grad():
        head.classifier.weight.copy_(given["conv_weight"])
        head.classifier.bias.copy_(given["conv_bias"])
        found = head(layers(given, upsample=args["upsample"]))
        if args["classify"]:
            how = args.get("norm_strategy", "linear")
            found = heads.depth_from_bins(found, _bins(args, "dinov2"), normalisation=how)
        else:
            found = heads.regressed_depth(found, low, high, bounded=args["scale_up"])
    clipped = found.clamp(low, high)
    at_image = windows.resized(clipped, tuple(given["size"].tolist()))
    for key, value in expected.items():
        ours = clipped if key == "depth_at_head_size" else at_image[int(key.rpartition("_")[2]), 0]
        np.testing.assert_allclose(ours, value, rtol=1e-4, atol=1e-5, err_msg=key)


def _angles(given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Angles of each image; the references count a vector without length as 90 degrees, which ours refuses."""
    found = []
    for prediction, target, mask in zip(given["pred"], given["gt"], given["mask"][:, 0].astype(bool), strict=True):
        without = [mask & (np.abs(vectors).max(axis=0) == 0) for vectors in (prediction, target)]
        known = mask & ~without[0] & ~without[1]
        if without[0].any() or without[1].any():
            with pytest.raises(ValueError, match="are zero"):
                normals.angular_errors(prediction, target, mask)
        angles = normals.angular_errors(prediction, target, known)
        found.append(np.concatenate([angles, np.full(int(mask.sum() - known.sum()), 90.0)]))
    return found


def surface_normals(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    angles = _angles(given)
    sums = np.stack([normals.angle_sums(image) for image in angles])
    each = normals.normal_values(sums[:, :-1], sums[:, -1])
    whole = np.concatenate(angles)
    median = normals.histogram_median(normals.angle_histogram(whole)[None].astype(float))
    pooled = normals.normal_values(sums[:, :-1].sum(0, keepdims=True), median)[0]
    places = {"mean": 0, "median": 1, "rmse": 2, "a1": 3, "a2": 4, "a3": 5, "a4": 6, "a5": 7, "d1": 5, "d2": 6, "d3": 7}
    share = 2 / max(1, min((len(image) for image in angles if len(image)), default=1))
    published = np.nan_to_num(each)  # an image without a valid pixel counts as 0
    for key, value in expected.items():
        code, _, name = key.partition("/")
        if not name:
            continue
        ours = {"probe3d_per_image": published, "pooled": pooled, "visbench": published.mean(0)}[code][
            ..., places[name]
        ]
        if code == "pooled" and name == "median":  # to the resolution of the histogram
            assert float(ours) == pytest.approx(float(value), abs=0.01)
            assert np.median(whole) == pytest.approx(float(value), rel=1e-4)
        elif name[0] in "ad":
            factor = 100 if code == "pooled" else 1
            np.testing.assert_allclose(factor * ours, value, rtol=1e-4, atol=factor * share, err_msg=key)
        else:
            np.testing.assert_allclose(ours, value, rtol=1e-4, err_msg=key)
    _normal_losses(given, expected)


def _normal_losses(given: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    target, valid = torch.from_numpy(given["gt"]), torch.from_numpy(given["mask"].astype(bool))
    outputs = torch.from_numpy(np.concatenate([given["pred"], given["kappa"]], axis=1)).requires_grad_()
    unknown = torch.where(valid, target, torch.nan)
    for name, uncertain in (("angular_loss", False), ("angular_loss_uncertainty", True)):
        if np.isfinite(expected[name]):
            task = normals_protocol.task(normals_protocol.Settings(uncertainty=uncertain))
            assert task.loss(outputs, unknown, 0).item() == pytest.approx(float(expected[name]), rel=1e-4)
    plain = losses.angular_loss(outputs[:, :3], target, valid)
    if np.isfinite(expected["angular_loss"]):
        assert plain.item() == pytest.approx(float(expected["angular_loss"]), rel=1e-4)
    if np.isfinite(expected["angular_loss_uncertainty"]):
        uncertain = losses.angular_loss(outputs[:, :3], target, valid, outputs[:, 3:])
        assert uncertain.item() == pytest.approx(float(expected["angular_loss_uncertainty"]), rel=1e-4)
        uncertain.backward()
        wanted = expected["angular_loss_uncertainty_grad"]
        np.testing.assert_allclose(outputs.grad, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


def padding(case: Case) -> None:
    x, multiple = torch.from_numpy(case.inputs()["x"]), case.meta["args"]["multiple"]
    padded, (rows, columns) = windows.centre_padded(x, multiple)
    np.testing.assert_array_equal(padded, case.expected()["center_padding"])
    assert torch.equal(padded[..., rows, columns], x)
    np.testing.assert_allclose(windows.stretched(x, multiple), case.expected()["stretch"], rtol=1e-5, atol=1e-6)


def layers_used(case: Case) -> None:
    names = {"LAST": "last", "FOUR_LAST": "last4", "FOUR_EVEN_INTERVALS": "spread4"}
    for key, value in case.expected_json().items():
        blocks, _, name = key.partition("/")
        assert heads.layer_indices(int(blocks), names[name]) == value, key


PATTERNS = {
    "14_depth_normals_metrics/nyu_*": scores,
    "14_depth_normals_metrics/small_maps_*": scores,
    "14_depth_normals_metrics/by_hand*": scores,
    "14_depth_normals_metrics/kitti_*": kitti,
    "14_depth_normals_metrics/align_*": alignment,
    "14_depth_normals_metrics/losses*": depth_losses,
    "14_depth_normals_metrics/bins_*": bins,
    "14_depth_normals_metrics/depth_head_*": depth_head,
    "14_depth_normals_metrics/normals_*": surface_normals,
    "14_depth_normals_metrics/center_padding*": padding,
    "14_depth_normals_metrics/layers_used*": layers_used,
}
