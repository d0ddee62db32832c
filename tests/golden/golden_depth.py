"""Depth and normals: errors, crops, alignment, losses, bins and heads of five code bases."""

from typing import Any

import numpy as np
import pytest
import torch
from golden_arrays import by_kind, numbered, options
from golden_cases import Case
from golden_segmentation import at_size, head_of, layers
from torch import Tensor, nn

from sslbench.metrics.dense import depth, normals
from sslbench.metrics.dense.pooling import means
from sslbench.protocols import depth as depth_protocol
from sslbench.protocols import normals as normals_protocol
from sslbench.solvers import dense
from sslbench.solvers.dense import heads, losses

_NAMES = {"a1": "d1", "a2": "d2", "a3": "d3", "rms": "depth_rmse", "rmse": "depth_rmse", "log_10": "log10"}
_NAMES |= {"log_rms": "rmse_log", "mae": "depth_mae"}
_TOOLBOX = ("a1", "a2", "a3", "abs_rel", "rmse", "log_10", "rmse_log", "silog", "sq_rel")
_PLACE = {metric.name: i for i, metric in enumerate(depth.DEPTH)}
_SHARES = [_PLACE[name] for name in ("d1", "d2", "d3")]
_NYU = (480, 640)
_SINGULAR = 1e-3
"""Relative error from which on rounding decides."""

Maps = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Of each image prediction, truth and the pixels that count."""


def _pairs(case: Case, size: tuple[int, int] | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return predictions, resized to the size of the truth or to another one, and true depths in their unit."""
    given = case.inputs()
    name = next(key.partition("/")[0] for key in given if key.startswith("gt"))
    scale = options(case, depth_scale={"gt_mm": 1000, "gt_256": 256}.get(name, 1))["depth_scale"]
    found = []
    for low, truth in zip(numbered(given, "pred_low", "pred"), numbered(given, name), strict=True):
        target = truth.astype(np.float32) / np.float32(scale)
        found.append((dense.resized(torch.from_numpy(low)[None, None], size or target.shape)[0, 0].numpy(), target))
    return found


def _crop_of(text: str) -> depth.Crop:
    text = text.lower()
    return "nyu" if "nyu" in text else "garg" if "garg" in text else "eigen" if "eigen" in text else "none"


def _valid(target: np.ndarray, low: float, high: float, crop: depth.Crop, *, scaled: bool = False) -> np.ndarray:
    """Return the pixels that count. Theirs cut other sizes than NYU's too, DINOv3 in proportion; ours refuses them."""
    if crop != "nyu" or target.shape == _NYU:
        return depth.valid_depth(target, low=low, high=high, crop=crop)
    with pytest.raises(ValueError, match="is defined for maps of"):
        depth.valid_depth(target, low=low, high=high, crop=crop)
    ends = [
        [int(place / whole * length) if scaled else place for place in sides]
        for sides, whole, length in zip(((45, 471), (41, 601)), _NYU, target.shape, strict=True)
    ]
    inside = np.zeros(target.shape, bool)
    inside[slice(*ends[0]), slice(*ends[1])] = True
    return inside & depth.valid_depth(target, low=low, high=high)


def _values(code: str, maps: Maps) -> np.ndarray:
    """Return the metrics of each image (N, 10) as a code counts predictions that ours refuses; NaN if not finite.

    A prediction that is not positive has a wrong ratio in probe3d and VisBench, as 2 t - p has, with the same error.
    Elsewhere a negative ratio is below every threshold, and there are no logarithms.
    """
    found = []
    for prediction, target, mask in maps:
        p, t = prediction[mask].astype(np.float64), target[mask].astype(np.float64)
        if not (np.isfinite(p) & (p > 0)).all():
            with pytest.raises(ValueError, match="not positive and finite"):
                depth.depth_sums(prediction, target, mask)
        usable = np.isfinite(p).all()
        p = p if usable else np.ones_like(p)
        sums = depth.depth_sums(np.where(p > 0, p, 2 * t - p), t, np.ones_like(t, bool))
        values = depth.depth_values(sums)
        if (p <= 0).any() and not code.startswith(("probe3d", "visbench")):
            values[_SHARES] += (p < 0).mean()
            values[[_PLACE["rmse_log"], _PLACE["log10"]]] = np.nan if (p < 0).any() else np.inf
            values[_PLACE["silog"]] = np.nan
        if not usable:
            values[:] = np.nan
        if code.startswith(("probe3d", "visbench")):
            values = np.nan_to_num(values)  # they count images without depth as 0
        elif code.startswith("dinov3") or (code.startswith("toolbox") and len(t)):
            values[_PLACE["silog"]] = np.nan_to_num(values[_PLACE["silog"]])
        found.append(values)
    return np.stack(found)


def _compare(values: np.ndarray, value: np.ndarray, name: str, pixels: int, where: str, slack: float = 0.0) -> None:
    """Compare a metric of images, or its mean. Shares may differ by two pixels, whose ratio is at the threshold.

    A small deviation is the root of a difference of two large numbers, in float32, which may be negative.
    """
    published = _NAMES.get(name, name)
    ours, atol = values[:, _PLACE[published]], 1e-6 + 10 * slack
    if published in ("d1", "d2", "d3"):
        atol = 2 / max(pixels, 1) + slack
    elif published == "silog":
        size = 100 * values[:, _PLACE["rmse_log"]]
        ours = 100 * ours
        with np.errstate(divide="ignore", invalid="ignore"):
            lost = np.nan_to_num(np.minimum(1e-3 * size, 5e-7 * size**2 / ours), posinf=0)
        atol = max(2e-5 + 100 * slack, float(lost.max(initial=0)))
        if value.ndim:
            value = np.where(np.isnan(value) & (ours <= 1e-3 * size), ours, value)
    if not value.ndim:
        ours = ours.mean() if where.startswith("bts") else means(ours[:, None], np.ones((1, len(ours))))[0, 0]
    np.testing.assert_allclose(ours, value, rtol=2e-5 + slack, atol=atol, err_msg=where)


def _compare_code(code: str, maps: Maps, expected: dict[str, Any], slack: float = 0.0) -> None:
    values, pixels = _values(code, maps), min((int(mask.sum()) for *_, mask in maps if mask.any()), default=1)
    used = np.array([np.isfinite(prediction[mask]).all() for prediction, _, mask in maps])
    for key, value in expected.items():
        first, *rest = key.split("/")
        if first != code:
            continue
        if rest[0] == "per_image":
            for column, name in enumerate(_TOOLBOX):
                _compare(values[used], value[used, column], name, pixels, key, slack)
        elif value.ndim:
            _compare(values[used], value[used], rest[0], pixels, key, slack)
        elif used[chosen := [int(place) for place in rest[1:]] or list(range(len(values)))].all():
            _compare(values[chosen], value, rest[0], pixels, key, slack)


def scores(case: Case) -> None:
    args, expected = options(case, min_depth=1e-3, max_depth=10.0, crop="none", dataset=""), case.expected()
    low, high = args["min_depth"], args["max_depth"]
    crop = _crop_of(f"{args['crop']} {args['dataset'] if args['crop'] != 'none' else ''}")
    pairs = _pairs(case)
    for code in sorted({key.split("/")[0] for key in expected}):
        region = crop
        if code.startswith(("probe3d", "visbench")):
            region = "nyu" if "crop" in code else "none"
        elif code.startswith("dinov3"):  # which has the crop of NYU alone
            region = (
                "nyu" if "nyu" in code.lower() or ("_" in code and "FULL" not in code and crop == "nyu") else "none"
            )
        maps, slack = [], 0.0
        for prediction, target in pairs:
            if code.startswith(("probe3d", "visbench")):  # the upper bound is inside, and there is no lower one
                mask = _valid(target, 0, float(np.nextafter(np.float32(high), np.float32(np.inf))), region)
            else:
                mask = _valid(target, low, high, region, scaled=code.startswith("dinov3"))
            aligned = code == "dinov3_aligned" or code.endswith("scale_invariant")
            if aligned and mask.any() and np.isfinite(prediction[mask]).all():
                slack = max(slack, 0.0 if code == "dinov3_aligned" else _lost(prediction[mask]))
                scale, shift = depth.align_depth(prediction, target, mask, "scale_shift", negative=True)
                prediction = (scale * prediction + shift).astype(np.float32)
            if code.startswith(("bts", "dinov3")):
                prediction = np.clip(prediction, low, high)
            maps.append((prediction, target, mask))
        if slack < _SINGULAR:
            _compare_code(code, maps, expected, slack)
        if code == "bts" and low > 0 and all(mask.any() and np.isfinite(p[mask]).all() for p, _, mask in maps):
            _protocol_scores(case, crop, (low, high), maps)


def _lost(prediction: np.ndarray) -> float:
    """Return the relative error of solving the normal equations of scale and shift in float32."""
    spread = prediction.std(dtype=np.float64)
    return float(3e-7 * (prediction.mean(dtype=np.float64) / spread) ** 2) if spread else np.inf


def _protocol_scores(case: Case, crop: depth.Crop, bounds: tuple[float, float], maps: Maps) -> None:
    """Compare the rows of `eval depth` with BTS, which also clips after enlarging: means over images."""
    if crop == "nyu" and any(target.shape != _NYU for _, target, _ in maps):
        return
    settings = depth_protocol.Settings(
        min_depth=bounds[0], max_depth=bounds[1], scored="all" if crop == "none" else crop
    )
    task = depth_protocol.Depth(settings, depth_protocol.limits_of(settings, None))
    rows = []
    for low, (_, target, _) in zip(numbered(case.inputs(), "pred_low", "pred"), maps, strict=True):
        rows.append(task.row(torch.from_numpy(low)[None], np.where(target > 0, target, np.nan)[None]))
    found = task.values(np.stack(rows))
    values = np.array([[found[metric.name] for metric in depth.DEPTH]])
    pixels = int(min(row[0] for row in rows))
    for key, value in case.expected().items():
        code, _, name = key.partition("/")
        if code == "bts" and np.isfinite(value).all():
            _compare(values, np.asarray(value, np.float64).mean(keepdims=True).reshape(1), name, pixels, key)


def kitti(case: Case) -> None:
    args, expected = options(case, min_depth=1e-3, max_depth=80.0, kb_crop=(352, 1216)), case.expected()
    bounds = (args["min_depth"], args["max_depth"])
    for code in sorted({key.split("/")[0] for key in expected}):
        whole = code.startswith("bts_whole")
        maps = []
        for prediction, target in _pairs(case, None if whole else tuple(args["kb_crop"])):
            rows, columns = depth.kitti_benchmark_crop(*target.shape)
            if code.startswith("bts"):
                prediction = np.clip(prediction, *bounds)
            if code.startswith("bts") and not whole:
                pasted = np.zeros_like(target)
                pasted[rows, columns] = prediction
                prediction = pasted
            elif not whole:
                target = target[rows, columns]
            maps.append((prediction, target, _valid(target, *bounds, _crop_of(code))))
        _compare_code(code, maps, expected)


def alignment(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), options(case, max_resolution=None)
    shape = given["pred"].shape[-2:]
    predictions, targets = (given[name].reshape(-1, *shape) for name in ("pred", "gt"))
    masks = given["mask"].reshape(-1, *shape).astype(bool) if "mask" in given else targets > 0
    for i, (prediction, target, mask) in enumerate(zip(predictions, targets, masks, strict=True)):
        small, limit = (prediction, target, mask), args["max_resolution"]
        if limit is not None and (factor := min(limit / length for length in shape)) < 1:
            taken = np.stack([each.astype(np.float64) for each in small])  # theirs leaves out columns alone
            taken = nn.functional.interpolate(torch.from_numpy(taken), scale_factor=float(factor)).numpy()
            small = taken[0], taken[1], taken[2].astype(bool)
        if not mask.any():
            assert np.isnan(depth.align_depth(*small, "scale_shift", negative=True)).all()  # theirs changes something
            continue
        for code, rtol in (("dinov3", 1e-4), ("probe3d", 1e-3), ("visbench", 1e-3)):
            chosen = small if code == "dinov3" else (prediction, target, target > 0)
            scale, shift = depth.align_depth(*chosen, "scale_shift", negative=True)
            for name, ours in {"scale": scale, "shift": shift, "aligned": scale * prediction + shift}.items():
                if (key := f"{code}/{name}") in expected and (
                    code == "dinov3" or _lost(chosen[0][chosen[2]]) < _SINGULAR
                ):
                    value = expected[key].reshape(len(predictions), -1)[i].reshape(np.shape(ours))
                    np.testing.assert_allclose(ours, value, rtol=rtol, atol=1e-4, err_msg=key)


def _biased(prediction: Tensor, target: Tensor, valid: Tensor, less: float, epsilon: float) -> Tensor:
    """Return SigLoss of probe3d, whose share of the squared mean may be another one; ours has none of one pixel."""
    prediction, target, valid = (torch.cat([x, x]) for x in (prediction, target, valid))
    ours = losses.sig_loss(prediction, target, valid, unbiased=False, epsilon=epsilon)
    if less == 0.85:
        return ours
    mean = losses.sig_loss(prediction, target, valid, mean_only=True, epsilon=epsilon)
    return torch.sqrt(ours**2 + (0.85 - less) / 0.15 * mean**2)


def _loss(name: str, prediction: Tensor, target: Tensor, valid: Tensor, args: dict[str, Any]) -> Tensor:
    epsilon = args["eps"]
    if "sigloss" in name:
        return losses.sig_loss(prediction, target, valid, mean_only=name.endswith("warm_up"), epsilon=epsilon)
    if name == "probe3d_sig":
        return _biased(prediction, target, valid, args["sigma"], epsilon)
    if name == "probe3d_scale_invariant":  # clamped instead of epsilon, each image by itself, times 10
        whole = [x.reshape(-1, *x.shape[-2:]) for x in (prediction, target, valid)]
        images = zip(*(x.clamp_min(args["least"]) for x in whole[:2]), whole[2], strict=True)
        return args["alpha"] * torch.stack([_biased(*image, args["lambda_scale"], 0.0) for image in images]).mean()
    if name == "dinov2_gradient_as_written":  # rows and columns of batch and channels
        moved = (x.movedim((0, 1), (-2, -1)) for x in (prediction, target, valid))
        return losses.gradient_loss(*moved, epsilon=epsilon)
    if "gradient" in name:
        logarithmic = name != "dinov3_gradient"
        return losses.gradient_loss(prediction, target, valid, logarithmic=logarithmic, epsilon=epsilon)
    assert name == "dinov3_l1", name
    return (prediction - target).abs()[valid].sum() / (valid.sum() + 1e-7)


def depth_losses(case: Case) -> None:
    """Compare losses; where a reference is NaN, as is its derivative for a deviation of 0, ours is finite."""
    given = case.inputs()
    args = options(
        case, max_depth=None, eps=1e-3, valid_mask=True, loss_weight=1.0, sigma=0.85, alpha=10.0, lambda_scale=0.85
    )
    args.setdefault("least", 1e-5)
    for key, value in case.expected().items():
        precision, name, part = key.split("/")
        dtype, rtol = (torch.float64, 1e-9) if precision == "f64" else (torch.float32, 2e-5)
        prediction = torch.from_numpy(given["pred"]).to(dtype).requires_grad_()
        target = torch.from_numpy(given["gt"]).to(dtype)
        valid = target > 0
        if not name.startswith(("probe3d", "dinov3_l1")):  # which have no largest depth
            valid &= target <= (torch.inf if args["max_depth"] is None else args["max_depth"])
            valid |= not args["valid_mask"]
        loss = args["loss_weight"] * _loss(name, prediction, target, valid, args)
        loss.backward()
        if (prediction[valid] > -args["eps"]).all():
            assert torch.isfinite(loss) and torch.isfinite(prediction.grad).all(), key
        known = np.isfinite(value)
        if "sigloss" in name and valid.sum() < 2:
            assert loss == 0, key  # of one pixel theirs is its error, or NaN
        elif part == "loss" and known:
            assert loss.item() == pytest.approx(float(value), rel=rtol, abs=1e-12), key
            if args["loss_weight"] == 1 and args["eps"] == 1e-3:
                _protocol_loss(name, prediction, torch.where(valid, target, torch.nan), float(value), rtol)
        elif known.any():
            largest = np.abs(value[known]).max()
            np.testing.assert_allclose(prediction.grad[known], value[known], rtol=0, atol=1e-5 * largest, err_msg=key)


def _protocol_loss(name: str, prediction: Tensor, target: Tensor, value: float, rtol: float) -> None:
    """Compare the loss of `eval depth`, whose unknown depths are nan, with DINOv2's and DINOv3's."""
    if name not in ("sigloss", "sigloss_warm_up", "dinov3_sigloss", "dinov3_sigloss_warm_up", "dinov3_gradient_log"):
        return

    def of(settings: depth_protocol.Settings) -> float:
        task = depth_protocol.Depth(settings, depth_protocol.limits_of(settings, None))
        return float(task.loss(prediction.detach(), target, 0))

    if name == "dinov3_gradient_log":
        found = of(depth_protocol.Settings(gradient=1.0)) - of(depth_protocol.Settings())
    else:
        found = of(depth_protocol.Settings(mean_steps=100 if name.endswith("warm_up") else 0))
    assert found == pytest.approx(value, rel=max(rtol, 1e-6), abs=1e-9), name


def _bins(args: dict[str, Any], code: str, number: int) -> Tensor:
    """Return the bins of a configuration; DINOv2 and probe3d take the limits of SID as powers of 10."""
    low, high = args["min_depth"], args["max_depth"] or (80.0 if code == "dinov3" else 10.0)
    if args["bins_strategy"] in ("UD", "linear"):
        return dense.depth_bins(number, low, high)
    assert args["bins_strategy"] in ("SID", "log"), args["bins_strategy"]
    if code in ("dinov2", "probe3d"):
        return torch.logspace(low, high, number)
    return dense.depth_bins(number, low, high, spacing="logarithmic")


_BINS: dict[str, Any] = {"min_depth": 1e-3, "max_depth": None, "bins_strategy": "UD", "norm_strategy": "linear"}


def bins(case: Case) -> None:
    logits, args = torch.from_numpy(case.inputs()["logits"]), options(case, **_BINS)
    for code, value in case.expected().items():
        if code == "dinov3" and logits.shape[1] == 1:
            ours = torch.relu(logits) + args["min_depth"]
        else:
            found = _bins(args, code, logits.shape[1])
            ours = dense.depth_from_bins(logits, found, normalisation=args["norm_strategy"])
        np.testing.assert_allclose(ours, value, rtol=1e-5, err_msg=code)


def depth_head(case: Case) -> None:
    given, args = case.inputs(), options(case, upsample=1, classify=False, scale_up=False, **_BINS)
    low, high = args["min_depth"], args["max_depth"]
    code = "dinov3" if "dinov3" in case.call else "dinov2"
    with torch.no_grad():
        found = head_of(given).eval()(layers(given, args, upsample=args["upsample"], joined=True))
        if args["classify"] or (code == "dinov3" and found.shape[1] > 1):
            found = dense.depth_from_bins(found, _bins(args, code, found.shape[1]), normalisation=args["norm_strategy"])
        else:
            found = torch.sigmoid(found) * (high or 0.0) if args["scale_up"] else torch.relu(found) + low
    clipped = found.clamp(low, high)
    size = given["size"].tolist() if "size" in given else args["size"] if "size" in args else clipped.shape[2:]
    at_image = at_size(clipped, list(size), args)
    for key, value in case.expected().items():
        ours = clipped if key == "depth_at_head_size" else at_image
        if (image := key.rpartition("_")[2]).isdigit():
            ours = ours[int(image), 0]
        np.testing.assert_allclose(ours, value, rtol=1e-4, atol=1e-5, err_msg=key)


def _angles(given: dict[str, np.ndarray], masks: np.ndarray) -> list[np.ndarray]:
    """Return the angles of each image; theirs count a vector without length as 90 degrees, which ours refuses."""
    found = []
    for prediction, target, mask in zip(given["pred"][:, :3], given["gt"], masks, strict=True):
        without = [mask & (np.abs(vectors).max(axis=0) == 0) for vectors in (prediction, target)]
        known = mask & ~without[0] & ~without[1]
        if without[0].any() or without[1].any():
            with pytest.raises(ValueError, match="are zero"):
                normals.angular_errors(prediction, target, mask)
        angles = normals.angular_errors(prediction, target, known)
        found.append(np.concatenate([angles, np.full(int(mask.sum() - known.sum()), 90.0)]))
    return found


def _lost_angle(angles: np.ndarray) -> np.ndarray:
    """Return the degrees that the arcus cosine in float32 is wrong by, most near 0 and 180."""
    with np.errstate(divide="ignore"):
        return np.minimum(np.degrees(1.2e-7 / np.sin(np.radians(angles if len(angles) else np.full(1, 90.0)))), 0.04)


def surface_normals(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    masks = given["mask"].astype(bool) if "mask" in given else np.abs(given["gt"]).max(axis=1) > 0
    masks = masks.reshape(len(masks), *masks.shape[-2:])
    angles = _angles(given, masks)
    sums = np.stack([normals.angle_sums(image) for image in angles])
    each = normals.normal_values(sums[:, :-1], sums[:, -1])
    whole = np.concatenate(angles)
    median = normals.histogram_median(normals.angle_histogram(whole)[None].astype(float))
    pooled = normals.normal_values(sums[:, :-1].sum(0, keepdims=True), median)[0]
    places = {"mean": 0, "median": 1, "rmse": 2, "a1": 3, "a2": 4, "a3": 5, "a4": 6, "a5": 7, "d1": 5, "d2": 6, "d3": 7}
    share = 2 / max(1, min((len(image) for image in angles if len(image)), default=1))
    published = np.nan_to_num(each)  # an image without a valid pixel counts as 0
    values = {"probe3d_per_image": published, "pooled": pooled, "visbench": published.mean(0)}
    values |= {"probe3d": published.mean(0)}
    off, middle = _lost_angle(whole), _lost_angle(np.append(each[:, 1], median))
    slack = {"mean": off.mean(), "median": np.nanmax(middle, initial=0), "rmse": np.sqrt((off**2).mean())}
    for key, value in expected.items():
        code, _, name = key.partition("/")
        if not name:
            continue
        ours = values[code][..., places[name]]
        if code == "pooled" and name == "median" and len(whole):  # to the resolution of the histogram
            assert float(ours) == pytest.approx(float(value), abs=0.01 + slack[name])
            assert np.median(whole) == pytest.approx(float(value), rel=1e-4, abs=slack[name])
        elif name[0] in "ad":
            factor = 100 if code == "pooled" else 1
            np.testing.assert_allclose(factor * ours, value, rtol=1e-4, atol=factor * share, err_msg=key)
        else:
            np.testing.assert_allclose(ours, value, rtol=1e-4, atol=slack[name], err_msg=key)
    _normal_losses(given, expected, masks)


def _normal_losses(given: dict[str, np.ndarray], expected: dict[str, np.ndarray], masks: np.ndarray) -> None:
    """Compare the losses of the solver and of `eval normals`; of no pixel theirs are NaN, ours 0."""
    target, valid = torch.from_numpy(given["gt"]), torch.from_numpy(masks)[:, None]
    unknown = torch.where(valid, target, torch.nan)
    for name, uncertain in (("angular_loss", False), ("angular_loss_uncertainty", True)):
        if not {name, f"{name}_grad"} & set(expected):
            continue
        parts = [given["pred"], *([given["kappa"]] if "kappa" in given else [])]
        outputs = torch.from_numpy(np.concatenate(parts, axis=1)[:, : 4 if uncertain else 3]).requires_grad_()
        task = normals_protocol.Normals(normals_protocol.Settings(uncertainty=uncertain))
        loss = losses.angular_loss(outputs[:, :3], target, valid, outputs[:, 3:] if uncertain else None)
        loss.backward()
        assert torch.isfinite(loss) and torch.isfinite(outputs.grad).all()
        if np.isfinite(value := expected.get(name, np.float64(np.nan))):
            assert loss.item() == pytest.approx(float(value), rel=1e-4)
            assert task.loss(outputs, unknown, 0).item() == pytest.approx(float(value), rel=1e-4)
        wanted = expected.get(f"{name}_grad", np.full(outputs.shape, np.nan))
        if (known := np.isfinite(wanted)).any():
            largest = np.abs(wanted[known]).max()
            np.testing.assert_allclose(outputs.grad[known], wanted[known], rtol=1e-3, atol=1e-4 * largest)


def padding(case: Case) -> None:
    x, multiple, expected = (
        torch.from_numpy(case.inputs()["x"]),
        options(case, multiple=14)["multiple"],
        case.expected(),
    )
    padded, (rows, columns) = heads.centre_padded(x, multiple)
    assert torch.equal(padded[..., rows, columns], x)
    for key, value in expected.items():
        if key == "center_padding":
            np.testing.assert_array_equal(padded, value)
        else:
            height, width = (-(-length // multiple) * multiple for length in x.shape[-2:])
            found = dense.resized(x.reshape(-1, *x.shape[-3:]), (height, width))
            np.testing.assert_allclose(found.reshape(value.shape), value, rtol=1e-5, atol=1e-6, err_msg=key)


def layers_used(case: Case) -> None:
    """Compare blocks; of a depth that four does not divide, theirs are those of the next smaller one."""
    names = {"LAST": "last", "FOUR_LAST": "last4", "FOUR_EVEN_INTERVALS": "spread4"}
    for key, value in case.expected_json().items():
        number, _, name = key.partition("/")
        blocks, layers = int(number), names[name]
        if layers == "spread4" and (rest := blocks % 4):
            assert heads.layer_indices(blocks, layers)[-1] == blocks - 1
            wanted = [5, 11, 17, 23] if blocks - rest == 24 else heads.layer_indices(blocks - rest, layers)
            assert wanted == value, key
        else:
            assert heads.layer_indices(blocks, layers) == value, key


PATTERNS = {
    "14_depth_normals_metrics/*": by_kind(
        {
            "KITTI|kb_crop|^kitti": kitti,
            "eval_with_pngs|evaluate_depth|depth_metrics|^(nyu|small_maps|by_hand)": scores,
            "align_depth|match_scale|^align": alignment,
            "SigLoss|GradientLoss|gradient_loss|^losses": depth_losses,
            "BNHead|LinearHead|^depth_head": depth_head,
            "depth_pred|FeaturesToDepth|DepthBin|^bins": bins,
            "surface_norm|angular_loss|^normals": surface_normals,
            "Padding|Stretch|^center_padding": padding,
            "out_indices|^layers_used": layers_used,
        }
    )
}
