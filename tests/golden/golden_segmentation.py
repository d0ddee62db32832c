"""Segmentation: areas and scores, losses, linear heads, windows, panoptic quality of four code bases."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import Case
from torch import Tensor, nn

from sslbench.metrics.dense import panoptic, segmentation
from sslbench.metrics.dense.pooling import mean_over_classes
from sslbench.solvers.dense.heads import LinearHead, concatenated_layers
from sslbench.solvers.dense.losses import pixel_cross_entropy
from sslbench.solvers.dense.windows import flip_averaged, resized, sliding_logits
from sslbench.train import schedules


def _series(given: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    """The arrays name/0, name/1, ..."""
    return [given[f"{name}/{i}"] for i in range(sum(key.startswith(f"{name}/") for key in given))]


def _label_maps(case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    args, given = case.meta["args"], case.inputs()
    labels = _series(given, "label")
    if args.get("reduce_zero_label"):
        labels = [segmentation.reduce_zero_label(label, ignore=args["ignore_index"]) for label in labels]
    return list(zip(_series(given, "pred"), labels, strict=True))


def _areas(case: Case) -> np.ndarray:
    """Areas of the data set; where the references drop values outside the classes, ours refuses them."""
    args = case.meta["args"]
    n, ignore = args["num_classes"], (args["ignore_index"],)
    total = np.zeros((3, n), dtype=np.int64)
    for prediction, label in _label_maps(case):
        outside = (label != ignore[0]) & ((label >= n) | (prediction >= n))
        if not outside.any():
            total += segmentation.class_areas(prediction, label, n, ignore=ignore)
            continue
        with pytest.raises(ValueError, match="is none of the"):
            segmentation.class_areas(prediction, label, n, ignore=ignore)
        dropped = (np.where(x >= n, n, x) for x in (prediction, np.where(label == ignore[0], -1, label.astype(int))))
        total += segmentation.class_areas(*dropped, n + 1, ignore=(-1,))[:, :n]
    return total


def scores(case: Case) -> None:
    args, expected, areas = case.meta["args"], case.expected(), _areas(case)
    both, predicted, labelled = areas
    for key, ours in {
        "intersect": both,
        "union": predicted + labelled - both,
        "pred": predicted,
        "label": labelled,
    }.items():
        np.testing.assert_array_equal(ours, expected[f"area_{key}"])
    published = functools.partial(_published, both, args)
    accuracy = segmentation.class_accuracy(areas)
    classes = {
        "IoU": published(segmentation.iou(areas)),
        "Acc": published(accuracy),
        "Dice": published(segmentation.f_score(areas)),
        "Fscore": published(segmentation.f_score(areas, beta=args.get("beta", 1)), left_out=True),
        "Precision": published(segmentation.precision(areas)),
        "Recall": published(accuracy),
    }
    means = {f"m{name}": float(mean_over_classes(values)) for name, values in classes.items()}
    means["aAcc"] = float(segmentation.pixel_accuracy(areas))
    names = {"mIoU": "mIoU", "acc": "mAcc", "aAcc": "aAcc", "dice": "mDice", "fscore": "mFscore"}
    names |= {"precision": "mPrecision", "recall": "mRecall"}
    for key, value in expected.items():
        code, _, name = key.partition("/")
        if code == "mmseg":
            np.testing.assert_allclose(classes.get(name, means.get(name)), value, rtol=1e-6, err_msg=key)
        elif code == "mmseg_rounded":
            np.testing.assert_allclose(100 * means[name], value, atol=0.0051, err_msg=key)
        elif code == "dinov3":
            np.testing.assert_allclose(means[names[name]], value, rtol=1e-6, err_msg=key)
        elif code == "torchmetrics" and not 0 <= args["ignore_index"] < args["num_classes"]:
            # It leaves out an ignored class that is predicted; mmseg counts 0.
            np.testing.assert_allclose(mean_over_classes(segmentation.iou(areas)), value, rtol=1e-6, err_msg=key)


def _published(both: np.ndarray, args: dict[str, Any], values: np.ndarray, *, left_out: bool = False) -> np.ndarray:
    """The references' values: an F-score of a class that is never hit is NaN, and NaN may be replaced by a number."""
    values = np.where(both == 0, np.nan, values) if left_out else values
    return values if args.get("nan_to_num") is None else np.nan_to_num(values, nan=args["nan_to_num"])


def zero_label(case: Case) -> None:
    ours = segmentation.reduce_zero_label(case.inputs()["label"], ignore=case.meta["args"].get("ignore_index", 255))
    for value in case.expected().values():
        np.testing.assert_array_equal(ours, value)


def cross_entropy(case: Case) -> None:
    given, args = case.inputs(), case.meta["args"]
    target = torch.from_numpy(given["target"].astype(np.int64))
    scored = max(1, int((target != args["ignore_index"]).sum()))
    added = float(np.finfo(np.float32).eps) / scored  # which mmseg adds to the divisor
    for key, value in case.expected().items():
        precision, name, part = key.split("/")
        dtype, rtol = (torch.float64, 1e-9) if precision == "f64" else (torch.float32, 2e-6)
        weights = args.get("class_weight")
        logits = torch.from_numpy(given["logits"]).to(dtype).requires_grad_()
        loss = pixel_cross_entropy(
            logits,
            target,
            ignore=args["ignore_index"],
            average="all" if name.endswith("avg_all") else "scored",
            class_weights=None if weights is None else torch.tensor(weights, dtype=dtype),
        )
        if not np.isfinite(value).all():
            assert loss.item() == 0  # 0 / 0 of the references: every pixel is ignored
        elif part == "loss":
            assert loss.item() == pytest.approx(float(value), rel=rtol + added), key
        else:
            loss.backward()
            np.testing.assert_allclose(logits.grad, value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=key)


def _head(given: dict[str, Tensor]) -> LinearHead:
    outputs, channels = given["conv_weight"].shape[:2]
    head = LinearHead(channels, outputs, normalised="bn_weight" in given)
    with torch.no_grad():
        pairs = [(head.classifier.weight, "conv_weight"), (head.classifier.bias, "conv_bias")]
        if isinstance(head.norm, nn.BatchNorm2d):
            norm = head.norm
            pairs += [(norm.weight, "bn_weight"), (norm.bias, "bn_bias")]
            pairs += [(norm.running_mean, "bn_running_mean"), (norm.running_var, "bn_running_var")]
        for parameter, name in pairs:
            parameter.copy_(given[name])
    return head


def layers(given: dict[str, Tensor], *, upsample: int = 1) -> Tensor:
    """Recorded features, the class token of a layer after its grid."""
    found = []
    for i in range(sum(key.startswith("features/") for key in given)):
        found += [given[f"{name}/{i}"] for name in ("features", "cls") if f"{name}/{i}" in given]
    return concatenated_layers(found, upsample=upsample)


def _compare_logits(ours: Tensor, expected: dict[str, np.ndarray], key: str, tolerance: float) -> None:
    best = ours.topk(2, dim=1).values
    clear = (best[:, 0] - best[:, 1] > tolerance).numpy()
    np.testing.assert_array_equal(ours.argmax(1).numpy()[clear], expected[key].reshape(clear.shape)[clear], err_msg=key)


def linear_head(case: Case) -> None:
    given = {name: torch.from_numpy(value) for name, value in case.inputs().items()}
    expected, args = case.expected(), case.meta["args"]
    assert not args.get("align_corners") and not args.get("dropout_ratio")
    head = _head(given).train(bool(args.get("train")))
    logits = head(layers(given))
    at_label = resized(logits, tuple(given["label_size"].tolist()))
    if "target" in given:
        target = given["target"].long()
        loss = pixel_cross_entropy(at_label, target, ignore=255, average="all")
        loss.backward()
    assert isinstance(head.norm, nn.BatchNorm2d)
    tensors = {"logits": lambda: logits, "logits_at_label_size": lambda: at_label, "loss": lambda: loss}
    tensors |= {
        "grad_conv_weight": lambda: head.classifier.weight.grad,
        "grad_conv_bias": lambda: head.classifier.bias.grad,
    }
    tensors |= {"grad_bn_weight": lambda: head.norm.weight.grad, "grad_bn_bias": lambda: head.norm.bias.grad}
    tensors |= {
        f"bn_running_{name}_after": lambda name=name: getattr(head.norm, f"running_{name}") for name in ("mean", "var")
    }
    for key, value in expected.items():
        if key == "argmax_at_label_size":
            _compare_logits(at_label.detach(), expected, key, 1e-5)
        elif key.startswith("logits_at_label_size_"):
            image = int(key.rpartition("_")[2])
            np.testing.assert_allclose(at_label[image].detach(), value, rtol=1e-4, atol=1e-5, err_msg=key)
        else:
            np.testing.assert_allclose(tensors[key]().detach(), value, rtol=1e-4, atol=1e-5, err_msg=key)


def windows(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    image = torch.from_numpy(given["image"]).permute(2, 0, 1)[None].float() / 255
    weight, label_size = torch.from_numpy(given["weight"]), tuple(args["label_size"])

    def forward(crop: Tensor) -> Tensor:
        return resized(nn.functional.conv2d(crop, weight, stride=args["patch"]), tuple(crop.shape[-2:]))

    for code in args["which"]:
        window, stride = tuple(args["crop"]), tuple(args["stride"])
        height, width = args["image"]
        if code == "dinov3" and height < window[0] and width < window[1]:
            window = (min(height, width),) * 2  # its rule for images smaller than the window
        slide = functools.partial(sliding_logits, forward, window=window, stride=stride)
        _compare_windows(code, slide, image, label_size, expected)


def _compare_windows(
    code: str, slide: Callable[[Tensor], Tensor], image: Tensor, label_size: tuple[int, int], expected: dict[str, Any]
) -> None:
    logits = slide(image)
    np.testing.assert_allclose(logits[0], expected[f"{code}/logits"].astype(np.float32), atol=5e-3)
    _compare_logits(resized(logits, label_size), expected, f"{code}/argmax_at_label_size", 5e-3)
    if f"{code}/tta_flip_probabilities" in expected:
        ours = flip_averaged(lambda x: resized(slide(x), label_size).softmax(1), image)
        np.testing.assert_allclose(ours[0], expected[f"{code}/tta_flip_probabilities"].astype(np.float32), atol=5e-3)
        _compare_logits(ours, expected, f"{code}/tta_flip_argmax", 5e-3)


def learning_rate(case: Case) -> None:
    """Linear decay times a warm-up, then half a cosine, which DINOv3 reads one step ahead; the first update repeats."""
    args, wanted = case.meta["args"], case.expected()["lr"]
    assert (args["pct_start"], args["anneal_strategy"]) == (0, "cos")
    total, warmup = args["total_iter"], args["warmup_iters"]
    length = warmup / total
    factor = schedules.composite(
        [schedules.linear(args["warmup_ratio"], 1.0), schedules.constant(1.0)], [length, 1 - length]
    )
    rising = schedules.product(schedules.polynomial(args["lr"], 1.0), factor)
    falling = schedules.cosine(args["lr"], args["lr"] / 25 / float(args["final_div_factor"]))
    ours = [rising(max(k - 1, 0) / total) if k <= warmup else falling(k / total) for k in range(len(wanted))]
    np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-18)


def _segments(given: dict[str, np.ndarray], prefix: str, image: int, place: dict[int, int]) -> panoptic.Segments:
    ids = given[f"{prefix}_id_values/{image}"][given[f"{prefix}_ids/{image}"]].astype(np.int64)
    rows = given[f"{prefix}_segments/{image}"]
    crowd = rows[:, 2].astype(bool) if rows.shape[1] > 2 else np.zeros(len(rows), bool)
    classes = np.array([place[c] for c in rows[:, 1].tolist()], dtype=np.int64)
    # panopticapi keeps the last crowd of each class only; pixels of the others excuse nothing.
    for row in np.flatnonzero(crowd):
        if (crowd[row + 1 :] & (classes[row + 1 :] == classes[row])).any():
            classes[row] = len(place)
    return panoptic.Segments(ids, rows[:, 0].astype(np.int64), classes, crowd)


def panoptic_quality(case: Case) -> None:
    given, recorded = case.inputs(), case.expected_json()
    isthing = {int(category): bool(thing) for category, thing in case.meta["args"]["isthing"].items()}
    place = {category: i for i, category in enumerate(sorted(isthing))}
    images = sum(key.startswith("gt_ids/") for key in given)
    counts = sum(
        panoptic.panoptic_counts(_segments(given, "pred", i, place), _segments(given, "gt", i, place), len(place) + 1)
        for i in range(images)
    )[:, : len(place)]
    things = np.array([isthing[category] for category in sorted(isthing)])
    for name, chosen in (("all", None), ("things", things), ("stuff", ~things)):
        ours, value = panoptic.panoptic_values(counts, chosen), recorded.get(name)
        if not isinstance(value, dict) or "pq" not in value:
            assert np.isnan(ours).all()  # panopticapi divides by 0 where no class has a segment
            continue
        assert ours.tolist() == pytest.approx([value["pq"], value["sq"], value["rq"]], rel=1e-9)
    values = panoptic.panoptic_quality(counts)
    for category, i in place.items():
        value = recorded["per_class"].get(str(category))
        if value is None:
            assert counts[1:, i].sum() == 0 and np.isnan(values[:, i]).all()
            continue
        assert counts[1:, i].tolist() == [value["tp"], value["fp"], value["fn"]]
        assert values[:, i].tolist() == pytest.approx([value["pq"], value["sq"], value["rq"]], rel=1e-9, nan_ok=True)


PATTERNS = {
    "13_segmentation_metrics/iou_*": scores,
    "13_segmentation_metrics/reduce_zero_label_*": zero_label,
    "13_segmentation_metrics/ce_*": cross_entropy,
    "13_segmentation_metrics/linear_head_*": linear_head,
    "13_segmentation_metrics/slide_*": windows,
    "13_segmentation_metrics/lr_schedule_*": learning_rate,
    "13_segmentation_metrics/pq_*": panoptic_quality,
}
