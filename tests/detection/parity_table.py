"""Table of the largest differences between the detection here and in Detectron2 and pycocotools: `make parity`.

Needs both libraries importable (docs/extend/tests.md). Each row has its bound; the exit code
is 1 if a difference exceeds its bound.
"""

import argparse
import contextlib
import functools
import importlib.util
import io
import json
import sys
import tempfile
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import torch
from helpers.detector_samples import ALL, CASES, images, small_detector, targets
from helpers.detectron2_parity import batch_for, configuration, in_order, library, ours, run, theirs
from helpers.drawn_poses import NAMES, by_pycocotools
from helpers.drawn_poses import drawn as drawn_poses

from sslbench.backbones.build import build
from sslbench.data.images import Arrays
from sslbench.data.objects import ObjectSource
from sslbench.detection.batches import cut, jittered, repeat_factors, resize
from sslbench.detection.evaluate import detect_views
from sslbench.detection.models.boxes import Target
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, resized, resolved, view_sizes
from sslbench.detection.train import make_optimizer, rate
from sslbench.metrics.detection import Detections, Truth, coco_ap, keypoint_ap, voc_ap
from sslbench.targets.objects import Boxes, Objects

STEPS = 7
CLASS_NAMES = ("cat", "dog", "bird")
PYCOCOTOOLS_ORDER = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


class Row(NamedTuple):
    """One compared quantity: number of comparisons, largest difference and its bound."""

    quantity: str
    compared: int
    difference: float
    bound: float


def detections() -> list[Row]:
    """Compare boxes (pixels) and scores of all detections of two images with the same weights."""
    boxes, scores, count = 0.0, 0.0, 0
    places, of_places = [], 0.0
    for case in sorted(CASES):
        torch.manual_seed(0)
        _, found, _ = ours(case)
        _, wanted, _ = run(theirs(case, **ALL))
        for mine, other in zip(found, wanted, strict=True):
            assert len(mine.boxes) == len(other)
            gaps = (mine.boxes[:, None] - other.pred_boxes.tensor[None]).abs().amax(dim=2)
            gaps[mine.classes[:, None] != other.pred_classes[None]] = torch.inf
            place = gaps.argmin(dim=1)
            boxes = max(boxes, float(gaps.min(dim=1)[0].max()))
            scores = max(scores, float((mine.scores - other.scores[place]).abs().max()))
            count += len(mine.boxes)
            if mine.keypoints is not None:
                gaps = mine.keypoints - other.pred_keypoints[place]
                places.append(gaps[:, :, :2].abs().amax(dim=2).flatten())
                of_places = max(of_places, float((gaps[:, :, 2] / mine.keypoints[:, :, 2]).abs().max()))
    # Where two places of a heat map have nearly the same value, rounding decides between them.
    moved = torch.cat(places)
    other_place = float((moved > 2e-3).float().mean())
    return [
        Row("box of a detection, pixels", count, boxes, 2e-3),
        Row("score of a detection", count, scores, 1e-5),
        Row("keypoint of a detection at another place, share", len(moved), other_place, 0.01),
        Row("score of a keypoint, relative", len(moved), of_places, 1e-3),
    ]


def training_steps() -> list[Row]:
    """Compare the losses of seven updates from the same weights, draws and schedule, relative to their size."""
    from detectron2.solver import build_lr_scheduler, build_optimizer

    d2, largest, count = library(), 0.0, 0
    few = {"rpn_samples": 24, "roi_samples": 16, "lr": 0.002, "warmup_iterations": 4, "steps": (5,)}
    for case in ("c4", "fpn", "fpn_keypoints"):
        detector, model = small_detector(case, **few), theirs(case, **few).train()
        recipe = detector.recipe
        optimizer, cfg = make_optimizer(detector, recipe), solver_of(recipe)
        their_optimizer = build_optimizer(cfg, model)
        scheduler = build_lr_scheduler(cfg, their_optimizer)
        batch = in_order(model, batch_for(d2, with_targets=True))
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = rate(recipe, step) * group["lr_factor"]
            losses = detector.train()(images(), targets(), torch.Generator().manual_seed(step))
            torch.manual_seed(step)
            with d2.utils.events.EventStorage():
                their_losses = model(batch)
            for name, loss in losses.items():
                largest = max(largest, abs(loss.item() - their_losses[name].item()) / abs(their_losses[name].item()))
                count += 1
            for each, values in ((optimizer, losses), (their_optimizer, their_losses)):
                each.zero_grad()
                sum(values.values()).backward()
                each.step()
            scheduler.step()
    return [Row(f"loss in {STEPS} updates, relative", count, largest, 1e-4)]


def solver_of(recipe: DetectionRecipe):
    """Return Detectron2's configuration of the recipe's optimizer and schedule."""
    import detectron2.config

    from sslbench.detection.detectron2.config import _training

    cfg = detectron2.config.get_cfg()
    cfg.merge_from_list([part for pair in _training(recipe).items() for part in pair])
    return cfg


def sizes(number: int) -> list[Row]:
    """Compare sizes of resized images, in pixels."""
    from detectron2.data.transforms import ResizeShortestEdge

    rng = np.random.default_rng(0)
    largest = 0
    for height, width, shorter, more in rng.integers(1, 1400, (number, 4)).tolist():
        mine = resized(height, width, shorter=shorter, longest=shorter + more)
        other = ResizeShortestEdge.get_output_shape(height, width, shorter, shorter + more)
        largest = max(largest, abs(mine[0] - other[0]), abs(mine[1] - other[1]))
    return [Row("size of a resized image, pixels", number, largest, 0.0)]


def schedules() -> list[Row]:
    """Compare learning rates of every iteration of drawn schedules, relative to the base rate."""
    from detectron2.solver import build_lr_scheduler

    rng, largest, count = np.random.default_rng(1), 0.0, 0
    for _ in range(20):
        iterations = int(rng.integers(20, 200))
        steps = tuple(sorted({int(s) for s in rng.integers(1, iterations, 3)}))
        warmup = int(rng.integers(0, steps[0]))
        recipe = resolved(
            DetectionRecipe(iterations=iterations, steps=steps, warmup_iterations=warmup, lr=0.02, gamma=0.3)
        )
        weight = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(weight.parameters(), lr=recipe.lr)
        scheduler = build_lr_scheduler(solver_of(recipe), optimizer)
        for iteration in range(iterations):
            largest = max(largest, abs(optimizer.param_groups[0]["lr"] - rate(recipe, iteration)) / recipe.lr)
            count += 1
            optimizer.step()
            scheduler.step()
    return [Row("learning rate, relative to the base rate", count, largest, 1e-9)]


def drawn(rng: np.random.Generator) -> tuple[Truth, Detections]:
    """Draw objects and detections near them, some double, some elsewhere.

    Scores and boxes have the digits of VOC's files, and all scores differ: Detectron2 leaves the order of ties open.
    """
    n_images, n = int(rng.integers(4, 25)), int(rng.integers(10, 120))
    corner, side = rng.integers(0, 100, (n, 2)), rng.integers(4, 130, (n, 2))
    boxes = np.concatenate((corner, corner + side), axis=1).astype(float)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    kinds = np.concatenate((np.arange(3), rng.integers(0, 3, n - 3)))
    no, places = np.zeros(n, dtype=np.bool_), rng.integers(0, n_images, n)
    truth = Truth(n_images, CLASS_NAMES, places, boxes, kinds, no, no, areas)
    chosen = np.concatenate((np.arange(n), rng.integers(0, n, 2 * n)))
    found = boxes[chosen] + rng.normal(size=(3 * n, 4)) * rng.choice([0.5, 4, 30], (3 * n, 1))
    found = np.concatenate((np.minimum(found[:, :2], found[:, 2:] - 1), found[:, 2:]), axis=1).round(1)
    scores = (rng.permutation(1000)[: 3 * n] + 1) / 1e3
    return truth, Detections(places[chosen], found, scores.round(3), kinds[chosen])


def coco_values(number: int) -> list[Row]:
    """Compare all twelve values of COCO with pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rng, largest = np.random.default_rng(2), 0.0
    for _ in range(number):
        truth, found = drawn(rng)
        coco = COCO()
        annotations = [
            {
                "id": i + 1,
                "image_id": int(image),
                "category_id": int(kind),
                "iscrowd": 0,
                "area": float(area),
                "bbox": xywh,
            }
            for i, (image, kind, area, xywh) in enumerate(
                zip(truth.images, truth.labels, truth.areas, corner_and_size(truth.boxes), strict=True)
            )
        ]
        coco.dataset = {
            "info": {},
            "images": [{"id": i, "height": 300, "width": 300} for i in range(truth.n_images)],
            "categories": [{"id": i, "name": name} for i, name in enumerate(CLASS_NAMES)],
            "annotations": annotations,
        }
        results = [
            {"image_id": int(image), "category_id": int(kind), "score": float(score), "bbox": xywh}
            for image, kind, score, xywh in zip(
                found.images, found.labels, found.scores, corner_and_size(found.boxes), strict=True
            )
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            coco.createIndex()
            evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        metrics = coco_ap(truth, found, resamples=0).metrics
        mine = [metrics[name][0] for name in PYCOCOTOOLS_ORDER]
        wanted = np.where(evaluation.stats < 0, np.nan, evaluation.stats)
        assert (np.isnan(mine) == np.isnan(wanted)).all()
        largest = max(largest, float(np.nanmax(np.abs(np.array(mine) - wanted))))
    return [Row("AP and AR of COCO, 12 values, beside pycocotools", 12 * number, largest, 1e-9)]


def corner_and_size(boxes: np.ndarray) -> list[list[float]]:
    return np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1).tolist()


def keypoint_values(number: int) -> list[Row]:
    """Compare all ten values of COCO's keypoints with pycocotools."""
    largest = 0.0
    for seed in range(number):
        truth, found = drawn_poses(seed)
        metrics = keypoint_ap(truth, found, resamples=0).metrics
        mine, wanted = np.array([metrics[name][0] for name in NAMES]), by_pycocotools(truth, found)
        assert (np.isnan(mine) == np.isnan(wanted)).all()
        largest = max(largest, float(np.nanmax(np.abs(mine - wanted))))
    return [Row("AP and AR of keypoints, 10 values, pycocotools", 10 * number, largest, 1e-9)]


def voc_values(number: int) -> list[Row]:
    """Compare AP50 of both rules of Pascal VOC with Detectron2's evaluation of files."""
    from detectron2.evaluation.pascal_voc_evaluation import voc_eval

    rng, largest = np.random.default_rng(3), 0.0
    for _ in range(number):
        truth, found = drawn(rng)
        with tempfile.TemporaryDirectory() as folder:
            write_voc(Path(folder), truth, found)
            for rule in ("11-point", "area"):
                mine = voc_ap(truth, found, rule, resamples=0).per_class_50
                for name in CLASS_NAMES:
                    _, _, wanted = voc_eval(
                        f"{folder}/{{}}.txt",
                        f"{folder}/{{}}.xml",
                        f"{folder}/images.txt",
                        name,
                        0.5,
                        rule == "11-point",
                    )
                    largest = max(largest, float(abs(mine[name] - wanted)))
    return [Row("AP50 of VOC, both rules, beside Detectron2", 6 * number, largest, 1e-9)]


def write_voc(folder: Path, truth: Truth, found: Detections) -> None:
    """Write objects and detections as the files of Pascal VOC, whose first pixel is 1."""
    folder.joinpath("images.txt").write_text("\n".join(f"i{i}" for i in range(truth.n_images)))
    fields = ("xmin", "ymin", "xmax", "ymax")
    for image in range(truth.n_images):
        objects = [
            f"<object><name>{escape(CLASS_NAMES[kind])}</name><pose/><truncated>0</truncated><difficult>0</difficult><bndbox>"
            + "".join(f"<{f}>{int(v) + (f[1:] == 'min')}</{f}>" for f, v in zip(fields, box, strict=True))
            + "</bndbox></object>"
            for box, kind in zip(truth.boxes[truth.images == image], truth.labels[truth.images == image], strict=True)
        ]
        folder.joinpath(f"i{image}.xml").write_text(f"<annotation>{''.join(objects)}</annotation>")
    for kind, name in enumerate(CLASS_NAMES):
        rows = np.flatnonzero(found.labels == kind)
        lines = [
            f"i{found.images[r]} {found.scores[r]:.3f} "
            + " ".join(f"{v:.1f}" for v in found.boxes[r] + np.array([1, 1, 0, 0]))
            for r in sorted(rows, key=lambda r: (found.images[r], -found.scores[r]))
        ]
        folder.joinpath(f"{name}.txt").write_text("\n".join(lines))


def repeats(number: int) -> list[Row]:
    """Compare how often LVIS's images are repeated (RepeatFactorTrainingSampler)."""
    from detectron2.data.samplers import RepeatFactorTrainingSampler

    rng, largest, count = np.random.default_rng(4), 0.0, 0
    for _ in range(number):
        n, threshold = int(rng.integers(20, 80)), float(rng.choice([0.001, 0.05, 0.3]))
        rare = rng.random(12) ** 3
        classes = [np.flatnonzero(rng.random(12) < rare) for _ in range(n)]
        dicts = [{"annotations": [{"category_id": int(c)} for c in np.repeat(own, 2)]} for own in classes]
        wanted = RepeatFactorTrainingSampler.repeat_factors_from_category_frequency(dicts, threshold)
        mine = repeat_factors(with_classes(classes), np.arange(n), threshold)
        largest = max(largest, float(np.abs(mine - wanted.numpy()).max()))
        count += n
    return [Row("repeats of an image by its rarest class", count, largest, 1e-5)]


def with_classes(classes: list[np.ndarray]) -> ObjectSource:
    """Return images with two objects of each class."""
    objects = []
    for own in classes:
        kinds = np.repeat(own, 2).astype(np.int64)
        no, boxes = np.zeros(len(kinds), np.bool_), np.tile(np.float32([[0, 0, 4, 4]]), (len(kinds), 1))
        objects.append(Objects(boxes, kinds, no, no, np.full(len(kinds), 16.0)))
    n = len(objects)
    pictures = Arrays(np.zeros((n, 4, 4, 3), dtype=np.uint8), "none")
    names, ids = tuple(f"c{i}" for i in range(12)), tuple(f"{i:03d}" for i in range(n))
    places = tuple(range(1, n + 1)), tuple(range(1, 13))
    return ObjectSource("drawn", ids, Boxes(names, tuple(objects), np.full((n, 2), 4), *places), pictures)


class Given(np.random.Generator):
    """Generator whose draws from 0 to 1 are all the same number."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64())
        self.number = number

    def random(self) -> float:
        return self.number

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + self.number * (high - low)


def jitter(number: int) -> list[Row]:
    """Compare large-scale jitter: the pixels and boxes after the same draws (ResizeScale, FixedSizeCrop)."""
    from detectron2.data.transforms import AugInput, AugmentationList, FixedSizeCrop, ResizeScale

    rng, pixels, boxes, count, side = np.random.default_rng(5), 0, 0.0, 0, 64
    recipe = resolved(DetectionRecipe(scale_jitter=(0.5, 2.0), max_size_train=side))
    augment = AugmentationList([ResizeScale(0.5, 2.0, side, side), FixedSizeCrop((side, side), pad=False)])
    for _ in range(number):
        height, width = rng.integers(20, 130, 2).tolist()
        picture = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        corner = rng.uniform(0, 0.7, (4, 2)) * (width, height)
        there = np.concatenate((corner, corner + rng.uniform(0.05, 0.3, (4, 2)) * (width, height)), axis=1)
        scale, offset = rng.random(2).tolist()
        wanted = AugInput(picture, boxes=there)
        # Detectron2 draws the scale, then one number for both sides of the offset.
        draws = iter((0.5 + scale * 1.5, offset))
        with unittest.mock.patch("numpy.random.uniform", lambda *_, draws=draws: next(draws)):
            augment(wanted)
        size = jittered(height, width, recipe, Given(scale))
        resized_boxes = there * np.tile(np.array(size[::-1]) / (width, height), 2)
        target = Target(torch.from_numpy(resized_boxes).float(), torch.zeros(4, dtype=torch.int64))
        image = resize(torch.from_numpy(picture).permute(2, 0, 1), size)
        image, target = cut(image, target, side, Given(offset))
        shape = image.shape[1:]
        left = np.clip(wanted.boxes, 0, [shape[1], shape[0]] * 2)
        left = left[(left[:, 2:] > left[:, :2] + 1e-5).all(axis=1)]
        assert image.shape[1:] == wanted.image.shape[:2]
        pixels = max(pixels, int(np.abs(image.permute(1, 2, 0).numpy().astype(int) - wanted.image).max()))
        boxes = max([boxes, *np.abs(target.boxes.numpy() - left).ravel().tolist()])
        count += len(left)
    return [
        Row("pixel after large-scale jitter, levels", number, pixels, 0.0),
        Row("box after large-scale jitter, pixels", count, boxes, 1e-4),
    ]


def vitdet() -> list[Row]:
    """Compare ViTDet's maps with windows and relative positions, and rates and weight decay of its transformer."""
    from detectron2.modeling import SimpleFeaturePyramid, ViT
    from detectron2.modeling.backbone.fpn import LastLevelMaxPool
    from detectron2.modeling.backbone.vit import get_vit_lr_decay_rate
    from detectron2.solver.build import get_default_optimizer_params

    depth, side, window = 8, 96, 4  # windows of 4 do not divide 6 x 6 patches
    name = f"timm:vit_tiny_patch16_224,depth={depth},img_size={side},class_token=False,global_pool=avg"
    settings: dict[str, Any] = {"vit_window": window, "vit_relative": True, "layer_decay": 0.7, "optimizer": "adamw"}
    settings |= {"weight_decay": 0.1, "pyramid_channels": 16, "max_size_train": side, "freeze_at": 0}
    detector = build_detector(build(name), DetectionRecipe(architecture="vit_fpn", **settings), 2)
    transformer = ViT(
        img_size=side,
        embed_dim=192,
        depth=depth,
        num_heads=3,
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6),
        window_size=window,
        window_block_indexes=[0, 2, 4, 6],
        use_rel_pos=True,
        pretrain_img_size=side,
        pretrain_use_cls_token=False,
    )
    scales = (4.0, 2.0, 1.0, 0.5)
    pyramid = SimpleFeaturePyramid(transformer, "last_feat", 16, scales, top_block=LastLevelMaxPool()).eval()
    with torch.no_grad():
        for number, parameter in enumerate(detector.backbone.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        weights = detector.backbone.state_dict()
        weights["net.pos_embed"] = weights["net.pos_embed"].flatten(1, 2)
        pyramid.load_state_dict(weights)
        pictures = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
        pairs = list(zip(detector.backbone.eval()(pictures), pyramid(pictures).values(), strict=True))
    whole = torch.nn.ModuleDict({"backbone": pyramid})
    rates = functools.partial(get_vit_lr_decay_rate, lr_decay_rate=0.7, num_layers=depth)
    no_decay = {"pos_embed": {"weight_decay": 0.0}}
    groups = get_default_optimizer_params(
        whole, base_lr=1.0, weight_decay=0.1, weight_decay_norm=0.0, lr_factor_func=rates, overrides=no_decay
    )
    wanted = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    own = make_optimizer(detector, detector.recipe).param_groups
    given = {id(p): (group["lr_factor"], group["weight_decay"]) for group in own for p in group["params"]}
    theirs_by_name = dict(whole.named_parameters())
    names = [n for n, _ in detector.named_parameters() if n.startswith("backbone.net.")]
    mine_by_name = dict(detector.named_parameters())
    gaps = [np.subtract(given[id(mine_by_name[n])], wanted[id(theirs_by_name[n])]) for n in names]
    return [
        Row("map of ViTDet, standard deviations", sum(a.numel() for a, _ in pairs), _largest_gap(pairs), 1e-4),
        Row("rate and weight decay of a part of ViTDet", len(names), float(np.abs(gaps).max()), 1e-9),
    ]


def _largest_gap(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    return max(float((a - b).abs().max() / b.std()) for a, b in pairs)


def augmented_tests() -> list[Row]:
    """Compare boxes, scores and masks of test images in three sizes and mirrored (GeneralizedRCNNWithTTA)."""
    from detectron2.modeling import GeneralizedRCNNWithTTA

    boxes, scores, masks, count = 0.0, 0.0, 0.0, 0
    settings = {**ALL, "tta_sizes": (60, 80, 100), "tta_max_size": 150, "tta_flip": True}
    for case in ("fpn", "c4"):
        detector, model = small_detector(case, **settings).eval(), theirs(case, **ALL).eval()
        recipe, cfg = detector.recipe, configuration(case)
        cfg.TEST.AUG.MIN_SIZES, cfg.TEST.AUG.MAX_SIZE, cfg.TEST.AUG.FLIP = recipe.tta_sizes, recipe.tta_max_size, True
        joined = GeneralizedRCNNWithTTA(cfg, model, batch_size=1)  # one at a time: no padding
        for image in images():
            picture = (image * 255).round().to(torch.uint8)
            size = picture.shape[1], picture.shape[2]
            with torch.no_grad():
                found = detect_views(detector, [resize(picture, each) for each in view_sizes(*size, recipe)], size)
                (entry,) = in_order(model, [{"image": picture, "height": size[0], "width": size[1]}])
                other = joined([entry])[0]["instances"]
            assert len(found.boxes) == len(other)
            gaps = (found.boxes[:, None] - other.pred_boxes.tensor[None]).abs().amax(dim=2)
            gaps[found.classes[:, None] != other.pred_classes[None]] = torch.inf
            place = gaps.argmin(dim=1)
            boxes = max(boxes, float(gaps.min(dim=1)[0].max()))
            scores = max(scores, float((found.scores - other.scores[place]).abs().max()))
            if found.masks is not None:
                masks = max(masks, float((found.masks != other.pred_masks[place]).float().mean()))
            count += len(found.boxes)
    return [
        Row("box by test-time augmentation, pixels", count, boxes, 2e-3),
        Row("score by test-time augmentation", count, scores, 1e-5),
        Row("pixels of masks by test-time augmentation, share", count, masks, 1e-4),
    ]


def table(number: int) -> list[Row]:
    """Return all rows; `number` random evaluations of each kind and 4,000 times as many sizes."""
    parts: list[Callable[[], list[Row]]] = [
        detections,
        training_steps,
        vitdet,
        augmented_tests,
        lambda: sizes(4000 * number),
        lambda: jitter(10 * number),
        lambda: repeats(number),
        schedules,
        lambda: coco_values(number),
        lambda: keypoint_values(number),
        lambda: voc_values(number),
    ]
    return [row for part in parts for row in part()]


def main() -> int:
    """Print the table; return 1 if a difference exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=50, help="random evaluations of each kind (default 50)")
    parser.add_argument("--json", type=Path, help="file for the table")
    options = parser.parse_args()
    missing = [name for name in ("detectron2", "pycocotools") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{' and '.join(missing)} cannot be imported: see docs/extend/tests.md")
        return 2
    rows = table(options.number)
    print(f"{'quantity':<52}{'compared':>10}{'largest difference':>21}{'bound':>10}")
    for row in rows:
        mark = "" if row.difference <= row.bound else "  EXCEEDED"
        print(f"{row.quantity:<52}{row.compared:>10,}{row.difference:>21.2g}{row.bound:>10.0e}{mark}")
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    return int(any(row.difference > row.bound for row in rows))


if __name__ == "__main__":
    sys.exit(main())
