"""Segmentation: areas and scores, losses, linear heads, windows, panoptic quality of four code bases."""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from golden_arrays import by_kind, numbered, options, series
from golden_cases import Case
from torch import Tensor, nn

from sslbench.metrics.dense import panoptic, segmentation
from sslbench.metrics.dense.pooling import mean_over_classes
from sslbench.solvers.dense import resized
from sslbench.solvers.dense.heads import LinearHead, sliding_logits
from sslbench.solvers.dense.losses import pixel_cross_entropy
from sslbench.train import schedules


def _reduced(label: np.ndarray, ignore: int) -> np.ndarray:
    """Return classes numbered from 1 as numbers from 0 on; 0 and what would become `ignore` are ignored."""
    values = label.astype(np.int32)
    return np.where(np.isin(values, (0, ignore, ignore + 1)), ignore, values - 1)


def _areas(given: dict[str, np.ndarray], args: dict[str, Any]) -> np.ndarray:
    """Return the areas of the data set; where the references drop values outside the classes, ours refuses them."""
    n, ignored = args["num_classes"], args["ignore_index"]
    total = np.zeros((3, n), dtype=np.int64)
    for prediction, label in zip(numbered(given, "pred"), numbered(given, "label"), strict=True):
        label = _reduced(label, ignored) if args["reduce_zero_label"] else label.astype(np.int64)
        prediction, counted = prediction.astype(np.int64), label != ignored
        wrong = [(x < 0) | (x >= n) for x in (prediction, label)]
        if not ((wrong[0] | wrong[1]) & counted).any():
            total += segmentation.class_areas(prediction, label, n, ignore=(ignored,))
            continue
        with pytest.raises(ValueError, match="is none of the"):
            segmentation.class_areas(prediction, label, n, ignore=(ignored,))
        dropped = np.where(wrong[0], n, prediction), np.where(counted, np.where(wrong[1], n, label), -1)
        total += segmentation.class_areas(*dropped, n + 1, ignore=(-1,))[:, :n]
    return total


def scores(case: Case) -> None:
    args = options(case, ignore_index=255, reduce_zero_label=False, beta=1, nan_to_num=None)
    given, expected = case.inputs(), case.expected()
    args.setdefault("num_classes", len(expected["area_union"]) if "area_union" in expected else None)
    areas = _areas(given, args)
    both, predicted, labelled = areas
    counted = {"intersect": both, "union": predicted + labelled - both, "pred": predicted, "label": labelled}
    accuracy, f_score = segmentation.class_accuracy(areas), segmentation.f_score(areas, beta=args["beta"])
    classes = {
        "IoU": segmentation.iou(areas),
        "Acc": accuracy,
        "Dice": segmentation.f_score(areas),
        "Fscore": np.where(both == 0, np.nan, f_score),  # theirs is NaN for a class that is never hit
        "Precision": segmentation.quotient(both, predicted),
        "Recall": accuracy,
        "aAcc": segmentation.pixel_accuracy(areas),
    }
    names = {"mIoU": "IoU", "acc": "Acc", "aAcc": "aAcc", "dice": "Dice", "fscore": "Fscore"}
    names |= {"precision": "Precision", "recall": "Recall"}
    for key, value in expected.items():
        code, _, name = key.partition("/")
        if code.startswith("area_"):
            np.testing.assert_array_equal(counted[code.removeprefix("area_")], value, err_msg=key)
        elif code.startswith("mmseg"):
            metric = name if name in classes else name.removeprefix("m")
            ours = classes[metric]
            if args["nan_to_num"] is not None:  # which DINOv3 has not
                ours = np.nan_to_num(ours, nan=args["nan_to_num"])
            if metric != name or (code == "mmseg_rounded" and not value.ndim and ours.ndim):
                ours = mean_over_classes(ours)
            if code == "mmseg_rounded":
                np.testing.assert_allclose(100 * ours, value, rtol=0, atol=0.0051, err_msg=key)
            else:
                np.testing.assert_allclose(ours, value, rtol=1e-6, err_msg=key)
        elif code.startswith("dinov3"):
            ours = classes[names[name]]
            ours = mean_over_classes(ours) if ours.ndim > value.ndim else ours
            np.testing.assert_allclose(ours, value, rtol=1e-6, err_msg=key)
        else:
            assert code == "torchmetrics", key
            left_out = np.arange(len(both)) == args["ignore_index"]  # mmseg counts 0 if that class is predicted
            ours = np.where(left_out, np.nan, classes["IoU"])
            np.testing.assert_allclose(mean_over_classes(ours), value, rtol=1e-6, err_msg=key)


def zero_label(case: Case) -> None:
    args = options(case, ignore_index=255)
    for key, value in case.expected().items():
        ignore = 255 if key.startswith("mmseg") else args["ignore_index"]  # a constant of mmseg
        np.testing.assert_array_equal(_reduced(case.inputs()["label"], ignore), value, err_msg=key)


def cross_entropy(case: Case) -> None:
    """Compare losses, times our divisor and by theirs, which counts the weights of pixels differently."""
    given = case.inputs()
    args = options(case, class_weight=None, loss_weight=1.0, reduction="mean", avg_factor=None, avg_non_ignore=False)
    target = torch.from_numpy(given["target"].astype(np.int64))
    for key, value in case.expected().items():
        precision, name, part = key.split("/")
        dtype, rtol = (torch.float64, 1e-9) if precision == "f64" else (torch.float32, 2e-6)
        mmseg = not name.startswith("dinov3")
        ignore = args.get("ignore_index", -100 if mmseg else 255)
        non_ignored = "non_ignore" in name if "avg_" in name else args["avg_non_ignore"]
        logits = torch.from_numpy(given["logits"]).to(dtype).requires_grad_()
        weights = None if args["class_weight"] is None else torch.tensor(args["class_weight"], dtype=dtype)
        loss = pixel_cross_entropy(
            logits, target, ignore=ignore, average="scored" if non_ignored else "all", class_weights=weights
        )
        scored = target != ignore
        of_pixel = torch.ones_like(target, dtype=dtype)
        if weights is not None:
            of_pixel = weights[target.clamp(0, len(weights) - 1)]
        ours = of_pixel[scored].sum() + (0 if non_ignored else (~scored).sum())
        counted = of_pixel if mmseg else torch.ones_like(of_pixel)
        theirs = counted[scored].sum() if non_ignored else counted.sum()
        if mmseg and args["avg_factor"] is not None:
            theirs = torch.tensor(args["avg_factor"], dtype=dtype)
        if args["reduction"] in ("sum", "none"):  # ours has no loss of each pixel: their sum is compared
            value = value.sum() if part == "loss" else value
            theirs = torch.ones((), dtype=dtype)
        elif mmseg or non_ignored:
            theirs = theirs + np.finfo(np.float32).eps
        loss = args["loss_weight"] * loss * ours / theirs
        if not np.isfinite(value).all():
            assert not scored.any() and not loss  # 0 / 0 of the references
        elif part == "loss":
            assert loss.item() == pytest.approx(float(value), rel=rtol), key
        else:
            loss.backward()
            np.testing.assert_allclose(logits.grad, value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=key)


def head_of(given: dict[str, np.ndarray]) -> LinearHead:
    outputs, channels = given["conv_weight"].shape[:2]
    head = LinearHead(channels, outputs, normalised="bn_weight" in given)
    with torch.no_grad():
        pairs = [(head.classifier.weight, "conv_weight"), (head.classifier.bias, "conv_bias")]
        if isinstance(head.norm, nn.BatchNorm2d):
            norm = head.norm
            pairs += [(norm.weight, "bn_weight"), (norm.bias, "bn_bias")]
            pairs += [(norm.running_mean, "bn_running_mean"), (norm.running_var, "bn_running_var")]
        for parameter, name in pairs:
            if name in given:
                parameter.copy_(torch.from_numpy(given[name]))
    return head


def layers(given: dict[str, np.ndarray], args: dict[str, Any], *, upsample: int = 1, joined: bool = False) -> Tensor:
    """Return recorded features, selected and resized as the references can, a layer's class token after its grid.

    `in_index` counts grids and tokens, or, if `joined`, layers.
    """
    tokens = {place: torch.from_numpy(x) for place, x in series(given, "cls", "cls_token").items()}
    found = []
    for place, grid in series(given, "features").items():
        found.append([torch.from_numpy(grid), *([tokens[place]] if place in tokens else [])])
    found = found if joined else [[x] for layer in found for x in layer]
    found = [x for i in args.get("in_index", range(len(found))) for x in found[i]]
    if found[0].ndim == 2:
        found[0] = found[0][:, :, None, None]
    for i, factor in enumerate(args.get("resize_factors") or []):
        grid = found[i] if found[i].ndim == 4 else found[i][:, :, None, None]
        found[i] = nn.functional.interpolate(grid, scale_factor=factor, mode="bilinear" if factor >= 1 else "area")
    if args.get("align_corners"):  # ours has pixels as areas
        size = [upsample * length for length in found[0].shape[2:]]
        return concatenated_layers([at_size(x, size, args) if x.ndim == 4 else x for x in found])
    return concatenated_layers(found, upsample=upsample)


def concatenated_layers(features: list[Tensor], *, upsample: int = 1) -> Tensor:
    """Return features of several layers as channels of one grid; a vector is spread over it."""
    height, width = next(grid.shape[-2:] for grid in features if grid.ndim == 4)
    size = (upsample * height, upsample * width)
    grids = [resized(x, size) if x.ndim == 4 else x[:, :, None, None].expand(-1, -1, *size) for x in features]
    return torch.cat(grids, dim=1)


def at_size(x: Tensor, size: list[int], args: dict[str, Any]) -> Tensor:
    """Return maps at another size as the references' `resize` makes them."""
    if args.get("align_corners"):
        return nn.functional.interpolate(x, size, mode="bilinear", align_corners=True)
    return resized(x, tuple(size))


def _compare_logits(ours: Tensor, value: np.ndarray, key: str, tolerance: float) -> None:
    """Compare the classes where the two best logits differ; one class alone has none beside it."""
    best = ours.topk(min(2, ours.shape[1]), dim=1).values
    clear = (best[:, 0] - best[:, -1] > tolerance).numpy()
    np.testing.assert_array_equal(ours.argmax(1).numpy()[clear], value.reshape(clear.shape)[clear], err_msg=key)


def linear_head(case: Case) -> None:
    given, args = case.inputs(), options(case, train="target" in case.inputs(), ignore_index=255)
    head = head_of(given).train(bool(args["train"]))
    assert not (args["train"] and args.get("dropout_ratio")), "dropout is drawn"
    logits = head(layers(given, args))
    size = given["label_size"].tolist() if "label_size" in given else args.get("rescale_to", [512, 512])
    at_label = at_size(logits, size, args)
    tensors = {"logits": logits, "logits_at_label_size": at_label}
    if "target" in given:
        target = torch.from_numpy(given["target"].astype(np.int64))
        average = "scored" if args.get("avg_non_ignore") else "all"
        loss = pixel_cross_entropy(at_label, target, ignore=args["ignore_index"], average=average)
        loss.backward()
        tensors |= {"loss": loss, "grad_conv_weight": head.classifier.weight.grad}
        tensors |= {"grad_conv_bias": head.classifier.bias.grad}
    if isinstance(head.norm, nn.BatchNorm2d):
        tensors |= {"grad_bn_weight": head.norm.weight.grad, "grad_bn_bias": head.norm.bias.grad}
        tensors |= {"bn_running_mean_after": head.norm.running_mean, "bn_running_var_after": head.norm.running_var}
    for key, value in case.expected().items():
        if key.startswith("argmax"):
            _compare_logits(at_label.detach() if "label" in key else logits.detach(), value, key, 1e-5)
            continue
        name, _, image = key.rpartition("_")
        ours = tensors[name][int(image)] if image.isdigit() else tensors[key]
        np.testing.assert_allclose(ours.detach(), value, rtol=1e-4, atol=1e-5, err_msg=key)


def windows(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    image = torch.from_numpy(given["image"]).permute(2, 0, 1)[None].float() / 255
    weight, size = torch.from_numpy(given["weight"]), tuple(image.shape[-2:])
    args = options(case, crop=(512, 512), stride=(341, 341), patch=weight.shape[-1])
    if "label_size" not in args:
        args["label_size"] = next((x.shape[-2:] for key, x in expected.items() if "argmax" in key), size)

    def forward(crop: Tensor) -> Tensor:
        return resized(nn.functional.conv2d(crop, weight, stride=args["patch"]), tuple(crop.shape[-2:]))

    for code in args.get("which", sorted({key.split("/")[0] for key in expected if "/" in key})):
        window = tuple(args["crop"])
        if code == "dinov3" and size[0] < window[0] and size[1] < window[1]:
            window = (min(size),) * 2  # its rule for images smaller than the window
        slide = functools.partial(sliding_logits, forward, window=window, stride=tuple(args["stride"]))
        if "whole" in (args.get("mode"), args.get("inference_mode")):
            slide = forward
            if code == "dinov3":  # which stretches whole images
                slide = _stretched(forward, (512, 512), tuple(args["label_size"]))
        _compare_windows(code, slide, image, tuple(args["label_size"]), expected)


def _stretched(forward: Callable[[Tensor], Tensor], size: tuple[int, int], out: tuple[int, int]) -> Any:
    return lambda image: resized(forward(resized(image, size)), out)


def _compare_windows(
    code: str, slide: Callable[[Tensor], Tensor], image: Tensor, size: tuple[int, int], expected: dict[str, Any]
) -> None:
    logits = slide(image)
    at_label = resized(logits, size)
    both = [resized(slide(x), size).softmax(1) for x in (image, image.flip(-1))]
    flipped = (both[0] + both[1].flip(-1)) / 2
    maps = {"logits": logits, "logits_at_label_size": at_label, "tta_flip_probabilities": flipped}
    for key, value in expected.items():
        if key.startswith(f"{code}/"):
            name = key.partition("/")[2]
            if "argmax" in name:
                _compare_logits(flipped if "tta" in name else at_label, value, key, 5e-3)
            else:
                np.testing.assert_allclose(maps[name][0], value.astype(np.float32), rtol=0, atol=5e-3, err_msg=key)


def learning_rate(case: Case) -> None:
    """Compare rates: a warm-up, then half a wave or a line, read at the steps made; the first update repeats.

    With a ratio the warm-up is a line times a rising factor, without one a wave times the share of it, plus the least
    rate. A cosine is read one step ahead. Of MMSegmentation's polynomial the warm-up is a factor.
    """
    args = options(
        case, warmup_iters=0, warmup_ratio=0.0, anneal_strategy="cos", div_factor=25.0, final_div_factor=1000.0, power=1
    )
    wanted, rate, warmup = case.expected()["lr"], args["lr"], args["warmup_iters"]
    total = args.get("total_iter", len(wanted) - 1)
    least = rate / float(args["final_div_factor"])
    polynomial = re.search("(?i)poly", f"{case.call} {args.get('type', '')}")
    if args["warmup_ratio"] or polynomial:
        factor = schedules.linear(args["warmup_ratio"], 1.0)
        rising = schedules.product(schedules.polynomial(rate, args["power"]), lambda x: factor(x * total / warmup))
    else:
        wave = schedules.product(schedules.cosine(rate, 0.0), schedules.linear(0.0, total / max(warmup, 1)))
        rising = lambda x: wave(x) + least  # noqa: E731
    cosine = args["anneal_strategy"] == "cos"
    end = least / args["div_factor"]
    falling = schedules.cosine(rate, end) if cosine else schedules.linear(rate, end)
    if polynomial:
        falling, cosine = schedules.polynomial(rate, args["power"]), False
    steps = range(len(wanted)) if polynomial else [max(k - 1, 0) for k in range(len(wanted))]
    ours = [rising(k / total) if k < warmup else falling((k + cosine) / total) for k in steps]
    np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-18)


def _segments(given: dict[str, np.ndarray], prefix: str, image: str, place: dict[int, int]) -> panoptic.Segments:
    ids = given[f"{prefix}_ids/{image}"].astype(np.int64)
    if f"{prefix}_id_values/{image}" in given:
        ids = given[f"{prefix}_id_values/{image}"][ids].astype(np.int64)
    rows = given[f"{prefix}_segments/{image}"].astype(np.int64)
    rows = rows if rows.size else np.zeros((0, 3), np.int64)
    names, crowd = rows[:, 0], rows[:, 2].astype(bool) if rows.shape[1] > 2 else np.zeros(len(rows), bool)
    classes = np.array([place.get(c, len(place)) for c in rows[:, 1].tolist()], dtype=np.int64)
    # panopticapi keeps the last crowd of each class only; pixels of the others excuse nothing.
    for row in np.flatnonzero(crowd):
        if (crowd[row + 1 :] & (classes[row + 1 :] == classes[row])).any():
            classes[row] = len(place)
    if prefix == "gt":  # of segments in the map alone it takes the pixels for neither void nor a segment
        alone = np.setdiff1d(ids, [0, *names])
        names, crowd = np.append(names, alone), np.append(crowd, np.ones(len(alone), bool))
        classes = np.append(classes, np.full(len(alone), len(place)))
    return panoptic.Segments(ids, names, classes, crowd)


def panoptic_quality(case: Case) -> None:
    given, recorded, args = case.inputs(), case.expected_json(), options(case, isthing={})
    kinds = args["isthing"] or {str(row[1]): 1 for rows in numbered(given, "gt_segments") for row in rows.tolist()}
    isthing = {int(category): bool(thing) for category, thing in kinds.items()}
    place = {category: i for i, category in enumerate(sorted(isthing))}

    def counts_of(image: str) -> np.ndarray:
        segments = (_segments(given, prefix, image, place) for prefix in ("pred", "gt"))
        return panoptic.panoptic_counts(*segments, len(place) + 1)

    predicted = {row[1] for rows in numbered(given, "pred_segments") for row in rows.tolist()}
    if "error" in recorded and predicted <= set(place):  # a predicted segment stands in the map or in the list alone
        with pytest.raises(ValueError, match=r"not listed|has no pixel"):
            [counts_of(image) for image in series(given, "gt_ids")]
    if "error" in recorded:
        return
    counts = sum(counts_of(image) for image in series(given, "gt_ids"))[:, : len(place)]
    things = np.array([isthing[category] for category in sorted(isthing)])
    for name, chosen in (("all", None), ("things", things), ("stuff", ~things)):
        if name not in recorded:
            continue
        ours, value = panoptic.panoptic_values(counts, chosen), recorded[name]
        if not isinstance(value, dict) or "pq" not in value:
            assert np.isnan(ours).all()  # panopticapi divides by 0 where no class has a segment
            continue
        assert ours.tolist() == pytest.approx([value["pq"], value["sq"], value["rq"]], rel=1e-9)
        present = counts[1:].any(axis=0) & (True if chosen is None else chosen)
        assert value.get("n", present.sum()) == present.sum()
    values = panoptic.panoptic_quality(counts)
    for category, i in place.items():
        value = recorded.get("per_class", {}).get(str(category))
        if value is None or not counts[1:, i].any():  # 0 in panopticapi, or left out
            assert not any((value or {}).values()), category
            assert np.isnan(values[:, i]).all() or "per_class" not in recorded
            continue
        assert counts[1:, i].tolist() == [
            value.get(key, n) for key, n in zip(("tp", "fp", "fn"), counts[1:, i], strict=True)
        ]
        assert values[:, i].tolist() == pytest.approx([value["pq"], value["sq"], value["rq"]], rel=1e-9, nan_ok=True)


PATTERNS = {
    "13_segmentation_metrics/*": by_kind(
        {
            "IoUMetric|intersect_and_union|^iou": scores,
            "LoadAnnotations|preprocess_nonzero|^reduce_zero": zero_label,
            "BNHead|LinearHead|^linear_head": linear_head,
            "CrossEntropyLoss|^ce_": cross_entropy,
            "slide_inference|make_inference|^slide": windows,
            "build_scheduler|LrUpdater|^lr_": learning_rate,
            "pq_compute|PQStat|^pq_": panoptic_quality,
        }
    )
}
