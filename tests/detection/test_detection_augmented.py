"""Test images in several sizes and mirrored, batches in parts, and bfloat16."""

import copy
import dataclasses

import pytest
import torch
from helpers.detector_samples import detector, scene
from helpers.drawn_rectangles import recipe, small_detector, source
from torchvision.ops import box_iou

from sslbench.backbones.build import build
from sslbench.detection import batches
from sslbench.detection.detectron2.config import detectron2_options
from sslbench.detection.evaluate import detect, detect_views
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, check, view_sizes
from sslbench.detection.train import TrainingRun, check_processes, train
from sslbench.errors import UsageError

CPU = torch.device("cpu")


def with_recipe(model, **changes):
    """The same weights under a changed recipe."""
    settings = {f: getattr(model.recipe, f) for f in model.recipe.__dataclass_fields__}
    other = build_detector(build("resnet_basic_1-1-1-1w0.125"), DetectionRecipe(**{**settings, **changes}), 2)
    other.load_state_dict(model.state_dict())
    return other.eval()


def suppressed(boxes, scores, classes, overlap):
    """Non-maximum suppression per class by loops."""
    left = sorted(range(len(scores)), key=lambda i: -scores[i].item())
    kept = []
    for i in left:
        rivals = [j for j in kept if classes[j] == classes[i]]
        if not rivals or box_iou(boxes[i][None], boxes[rivals])[0].max() <= overlap:
            kept.append(i)
    return kept


def test_one_size_without_mirroring_is_the_usual_detection():
    usual = small_detector(score_threshold=0.0).eval()
    other = with_recipe(usual, tta_sizes=(64,), tta_max_size=96)
    first, second = (detect(model, source(2)) for model in (usual, other))
    assert len(first) > 5 and (first.boxes == second.boxes).all() and (first.scores == second.scores).all()


def test_detections_of_all_views_are_joined_by_suppression():
    usual = small_detector(score_threshold=0.0).eval()
    augmented = with_recipe(usual, tta_sizes=(48, 80), tta_flip=True)
    size, picture = (48, 48), batches.read(source(1), 0)
    views = [batches.resize(picture, each) for each in view_sizes(*size, augmented.recipe)]
    assert [tuple(view.shape[1:]) for view in views] == [(48, 48), (80, 80)]
    with torch.no_grad():
        found = detect_views(augmented, views, size)
        parts = []
        for view in views:
            for flip in (False, True):
                [one] = usual([view.flip(2) if flip else view])
                boxes = one.boxes.clone()
                if flip:
                    boxes[:, [0, 2]] = view.shape[2] - boxes[:, [2, 0]]
                parts.append((boxes * 48 / view.shape[1], one.scores, one.classes))
    boxes, scores, classes = (torch.cat(column) for column in zip(*parts, strict=True))
    boxes = boxes.clamp(0, 48)
    kept = suppressed(boxes, scores, classes, usual.recipe.nms)[: usual.recipe.detections]
    real = [i for i in kept if (boxes[i, 2:] > boxes[i, :2]).all()]
    assert len(found.boxes) in range(len(real), len(kept) + 1) and len(real) > 10
    assert torch.allclose(found.boxes[:10], boxes[real[:10]], atol=1e-4)
    assert torch.allclose(found.scores[:10], scores[real[:10]])


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
def test_a_mask_is_the_mean_of_all_views(architecture):
    model = detector(architecture, masks=True, score_threshold=0.0, tta_flip=True, detections=3).eval()
    picture = (scene(0)[0] * 255).to(torch.uint8)
    with torch.no_grad():
        found = detect_views(model, [picture], (64, 64))
        assert len(found.boxes) and found.masks.dtype == torch.bool and found.masks.shape[1:] == (64, 64)
        mirrored = detect_views(model, [picture.flip(2)], (64, 64))
    assert torch.allclose(found.scores, mirrored.scores, atol=1e-5)
    assert (found.masks.flip(2) != mirrored.masks).float().mean() < 0.02  # a mirrored picture has mirrored masks


def train_once(folder, **changes):
    model = small_detector(norm="frozen", **changes)
    train(model, source(), TrainingRun(0, CPU, 0, folder, 10))
    return model.state_dict()


def test_the_gradient_of_a_batch_in_parts_is_the_mean_of_the_parts(tmp_path):
    """One iteration of a batch of two in two parts, against the mean of both images' gradients by hand."""
    everything = {"rpn_samples": 50_000, "roi_samples": 5_000}  # nothing is drawn
    one_step = {"iterations": 1, "warmup_iterations": 0, "steps": (), "batch_size": 2, "weight_decay": 0.0}
    got = train_once(tmp_path / "parts", accumulate=2, **everything, **one_step)
    model = small_detector(norm="frozen", **everything, **one_step)
    before = copy.deepcopy(model.state_dict())
    [(images, targets)] = batches.training_batches(source(), model.recipe, start=0, stop=1, seed=0)
    for image, target in zip(images, targets, strict=True):
        (sum(model([image], [target], torch.Generator().manual_seed(0)).values()) / 2).backward()
    for name, parameter in model.named_parameters():
        wanted = before[name] - model.recipe.lr * parameter.grad
        assert torch.allclose(got[name], wanted, rtol=1e-4, atol=1e-6), name
    assert any(not torch.equal(got[name], before[name]) for name in before)


def test_bfloat16_rounds_training_and_not_detection(tmp_path):
    exact, rounded = (train_once(tmp_path / p, precision=p, iterations=2) for p in ("fp32", "bf16"))
    assert all(tensor.dtype == exact[name].dtype for name, tensor in rounded.items())
    gaps = [(rounded[n] - t).norm() / (t.norm() + 1e-6) for n, t in exact.items() if t.is_floating_point()]
    assert 0 < max(gaps) < 0.1


def test_settings_that_do_not_go_together_are_refused():
    for changes, words in (
        ({"accumulate": 3, "batch_size": 16}, "batch_size=16 cannot be divided into accumulate=3 parts"),
        ({"accumulate": 0}, "accumulate should be 1 or more, not 0"),
        ({"tta_max_size": 800}, "tta_max_size has no effect without tta_sizes"),
        ({"tta_sizes": (0,)}, "tta_sizes"),
    ):
        with pytest.raises(UsageError, match=words):
            check(DetectionRecipe(**changes))
    with pytest.raises(UsageError, match="divided among 3 processes with accumulate=2"):
        check_processes(recipe(batch_size=4, accumulate=2), 3)
    for changes in ({"accumulate": 2}, {"precision": "bf16"}, {"tta_flip": True}, {"tta_sizes": (400, 800)}):
        with pytest.raises(UsageError, match="not with --backend detectron2"):
            detectron2_options(build("resnet50w0.125"), DetectionRecipe(**changes), 2)


def test_large_scale_jitter_cuts_what_it_scaled():
    """Rectangles are white: they are white inside their boxes after scaling and cutting, too."""
    data, used = source(), recipe(scale_jitter=(0.5, 2.0), min_sizes_train=(800,), max_size_train=64, iterations=30)
    shapes, lost = set(), 0
    for masks in (False, True):
        changed = dataclasses.replace(used, masks=masks)
        for images, targets in batches.training_batches(data, changed, start=0, stop=15, seed=0):
            for image, target in zip(images, targets, strict=True):
                shapes.add(tuple(image.shape[1:]))
                lost += 2 - len(target.boxes)
                inside = torch.zeros(image.shape[1:], dtype=torch.bool)
                for x1, y1, x2, y2 in target.boxes.round().int().tolist():
                    assert 0 <= x1 <= x2 <= image.shape[2] and 0 <= y1 <= y2 <= image.shape[1]
                    inside[y1:y2, x1:x2] = True
                assert ((image[0] > 127) != inside).float().mean() < 0.05
                if masks:
                    assert ((image[0] > 127) != target.masks.any(0)).float().mean() < 0.05
    assert max(max(shape) for shape in shapes) == 64 and min(min(shape) for shape in shapes) < 40
    assert lost > 0
    for changes, words in (
        ({"scale_jitter": (2.0, 0.1)}, "two ascending numbers"),
        ({"scale_jitter": (0.1, 2.0), "min_sizes_train": (640,)}, "min_sizes_train has no effect"),
    ):
        with pytest.raises(UsageError, match=words):
            check(DetectionRecipe(**changes))


def test_crops_of_detr_keep_what_they_cut():
    """White rectangles are white inside their boxes after resizing, cutting and resizing again."""
    used = recipe(crop=1.0, crop_sizes=(60, 80), crop_sides=(30, 50), min_sizes_train=(64, 96), max_size_train=120)
    shapes, lost = set(), 0
    for masks in (False, True):
        changed = dataclasses.replace(used, masks=masks, iterations=30)
        for images, targets in batches.training_batches(source(), changed, start=0, stop=15, seed=0):
            for image, target in zip(images, targets, strict=True):
                shapes.add(tuple(image.shape[1:]))
                lost += 2 - len(target.boxes)
                inside = torch.zeros(image.shape[1:], dtype=torch.bool)
                for x1, y1, x2, y2 in target.boxes.round().int().tolist():
                    assert 0 <= x1 <= x2 <= image.shape[2] and 0 <= y1 <= y2 <= image.shape[1]
                    inside[y1:y2, x1:x2] = True
                assert ((image[0] > 127) != inside).float().mean() < 0.05
                assert not masks or ((image[0] > 127) != target.masks.any(0)).float().mean() < 0.05
    assert {min(shape) for shape in shapes} >= {64, 96} and len(shapes) > 20
    assert max(max(shape) for shape in shapes) <= 120 and lost > 0
    half = dataclasses.replace(used, crop=0.5, min_sizes_train=(64,))
    whole = [
        image.shape
        for images, _ in batches.training_batches(source(), half, start=0, stop=15, seed=0)
        for image in images
    ]
    assert 0.2 < sum(shape == (3, 64, 64) for shape in whole) / len(whole) < 0.8
    for changes, words in (
        ({"crop_sides": (300, 500)}, "crop_sides has no effect with crop=0"),
        ({"crop": 0.5, "crop_sides": (500, 300)}, "crop_sides should be two ascending numbers"),
        ({"crop": 0.5, "scale_jitter": (0.1, 2.0)}, "crop and scale_jitter both cut"),
        ({"crop": 1.5}, "from 0 to 1"),
    ):
        with pytest.raises(UsageError, match=words):
            check(DetectionRecipe(**changes))


PLAIN = "timm:vit_tiny_patch16_224,depth=4,img_size=64,class_token=False,global_pool=avg"


def vit(**changes):
    used = DetectionRecipe(architecture="vit_fpn", freeze_at=0, pyramid_channels=8, max_size_train=96, **changes)
    return build_detector(build(PLAIN, seed=3), used, 2).eval().backbone.net


@torch.no_grad()
def test_windows_and_relative_positions_of_vitdet():
    def last(net, images):
        return net.forward_intermediates(images, indices=1, intermediates_only=True)[0]

    images = torch.rand(1, 3, 64, 96)
    plain, relative, windows = vit(), vit(vit_relative=True), vit(vit_window=2)
    assert torch.allclose(last(plain, images), last(relative, images), atol=1e-5)  # they begin at 0
    names = [name for name, _ in relative.named_parameters() if "rel_pos" in name]
    assert len(names) == 2 * 4 and relative.blocks[0].attn.rel_pos_h.shape[0] == 2 * 96 // 16 - 1
    assert [block.window_size for block in vit(vit_window=2).blocks] == [0] * 4  # each quarter has one block
    deep = PLAIN.replace("depth=4", "depth=8")
    used = DetectionRecipe(architecture="vit_fpn", freeze_at=0, pyramid_channels=8, max_size_train=96, vit_window=2)
    net = build_detector(build(deep, seed=3), used, 2).eval().backbone.net
    assert [block.window_size for block in net.blocks] == [2, 0] * 4
    tokens = torch.rand(1, 4, 6, 192)
    changed = tokens.clone()
    changed[:, :2, :2] += 1  # the first window
    apart = (net.blocks[0](tokens) != net.blocks[0](changed)).any(dim=3)[0]
    assert apart[:2, :2].all() and apart.sum() == 4
    assert (net.blocks[1](tokens) != net.blocks[1](changed)).any(dim=3).all()
    assert torch.allclose(last(plain, images), last(windows, images), atol=1e-5)


def test_vitdet_settings_need_a_transformer_and_its_file_holds_the_network(tmp_path):
    with pytest.raises(UsageError, match="vit_window has no effect on architecture=fpn"):
        check(DetectionRecipe(architecture="fpn", vit_window=14))
    net = vit(drop_path=0.5)
    assert net.blocks[-1].drop_path1.drop_prob == 0.5 and net.blocks[0].drop_path1.__class__.__name__ == "Identity"
