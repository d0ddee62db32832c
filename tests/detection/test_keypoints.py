"""Keypoint R-CNN: targets of training, the head, what is refused, files, floors; both backends."""

import dataclasses
import math
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import drawn_rectangles
from helpers.detectron2_samples import REAL
from helpers.drawn_figures import NAMES, SIDE, SKELETON, drawn, recipe, source

from sslbench.backbones.build import build
from sslbench.data.images import Arrays
from sslbench.data.splits import Parts
from sslbench.detection import batches as b
from sslbench.detection.evaluate import detect, draw, per_keypoint, score, truth_of
from sslbench.detection.floors import constant_boxes, mean_pose, with_pose
from sslbench.detection.models.boxes import InstancePredictions, Target, rescale
from sslbench.detection.models.build import build_detector
from sslbench.detection.models.heads import KeypointHead, Regions, with_visible
from sslbench.detection.recipe import DetectionRecipe, check
from sslbench.detection.saved import DetectorDescription, read_detector, save_detector
from sslbench.detection.train import TrainingRun, train
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.on_objects import _ObjectEvaluation
from sslbench.evaluation.request import Task
from sslbench.metrics.detection import keypoint_ap
from sslbench.preprocessing import Preprocessing

CPU = torch.device("cpu")
NET = "resnet_basic_1-1-1-1w0.25"


def one_batch(data, used, seed=0):
    [(images, targets)] = b.training_batches(data, used, start=0, stop=1, seed=seed)
    return images, targets


def with_dots(data):
    """The same pictures in black with a white pixel at every keypoint, of its own brightness in blue."""
    pixels = np.zeros((len(data), SIDE, SIDE, 3), dtype=np.uint8)
    objects = []
    for i, found in enumerate(data.target.objects):
        points = found.keypoints.copy()
        points[:, :, :2] = points[:, :, :2].round()
        objects.append(dataclasses.replace(found, keypoints=points))
        for k, (x, y, seen) in enumerate(points[0]):
            if seen:
                pixels[i, int(y), int(x)] = 255, 255, 40 * (k + 1)
    return dataclasses.replace(data, images=Arrays(pixels, "dots"), target=data.target.changed(objects=tuple(objects)))


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_targets_follow_the_picture_and_left_and_right_change_places(flip):
    """Each keypoint lies in the middle of its pixel, enlarged twice or not."""
    for size in (SIDE, 2 * SIDE):
        images, targets = one_batch(
            with_dots(source(2)), recipe(flip=flip, min_sizes_train=(size,), max_size_train=size, precise_bn=0)
        )
        for image, target in zip(images, targets, strict=True):
            for k, (x, y, seen) in enumerate(target.keypoints[0].tolist()):
                if not seen:
                    assert (x, y) == (0, 0)
                    continue
                near = image[:, max(int(y) - 2, 0) : int(y) + 3, max(int(x) - 2, 0) : int(x) + 3]
                assert near[0].max() > 60, (k, x, y)
                kind = round(float(near[2].max()) / float(near[0].max()) * 255 / 40) - 1
                assert kind == (k if not flip else SKELETON.mirrored()[k])
                if size == SIDE:
                    assert image[0, int(y), int(x)] == 255


def test_keypoints_outside_of_a_cut_are_not_labelled_any_more():
    target = Target(
        torch.tensor([[0.0, 0.0, 90.0, 90.0]]),
        torch.zeros(1, dtype=torch.int64),
        None,
        torch.tensor([[[20.0, 20.0, 2.0], [80.0, 80.0, 1.0], [50.0, 40.0, 0.0]]]),
    )

    class Corner(np.random.Generator):
        def random(self):
            return 0.0

    image, cut = b.cut(torch.zeros(3, 96, 96), target, 48, Corner(np.random.PCG64()))
    kept = b._without_outside(cut, image.shape[1:])
    assert image.shape[1:] == (48, 48)
    assert kept.keypoints.tolist() == [[[20, 20, 2], [0, 0, 0], [0, 0, 0]]]


def test_images_with_too_few_labelled_keypoints_are_left_out():
    data = source(6)
    few = dataclasses.replace(data.target.objects[2], keypoints=np.zeros((1, 5, 3)))
    objects = (*data.target.objects[:2], few, *data.target.objects[3:])
    data = dataclasses.replace(data, target=data.target.changed(objects=objects))
    assert b.trainable(data, recipe()).tolist() == [0, 1, 3, 4, 5]
    assert b.trainable(data, recipe(min_keypoints=0)).tolist() == [0, 1, 2, 3, 4, 5]
    assert 2 in b.trainable(data, recipe(keypoints=False, keypoint_convs=8, keypoint_channels=512))
    with pytest.raises(DataError, match="6 labelled keypoints"):
        b.trainable(data, recipe(min_keypoints=6))


def test_the_loss_is_the_cross_entropy_of_the_true_places():
    """Beside a count by hand, for both ways of dividing."""
    points = torch.tensor([[[12.0, 8.0, 2.0], [90.0, 8.0, 2.0]], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    boxes = torch.tensor([[0.0, 0.0, 56.0, 56.0], [0.0, 0.0, 28.0, 28.0], [5.0, 5.0, 9.0, 9.0]])
    regions = Regions(boxes, torch.tensor([0, 0, 1]), boxes, torch.tensor([0, 1]), keypoints=points)
    chosen = with_visible(regions)
    assert chosen.boxes.tolist() == [[0, 0, 56, 56]]
    for over in ("labelled", "all"):
        used = recipe(keypoint_loss_over=over, keypoint_loss_weight=3.0)
        torch.manual_seed(0)
        head = KeypointHead(used, 16, 2)
        x = torch.rand(1, 16, 14, 14)
        logits = head(x)[0, 0].flatten()
        own = (torch.logsumexp(logits, 0) - logits[8 * 56 + 12]).detach()
        number = 1 if over == "labelled" else 1 * 2 * used.roi_samples * used.roi_positives
        assert float(head.losses(x, [chosen])["loss_keypoint"].detach()) == pytest.approx(
            3 * float(own) / number, rel=1e-5
        )


def test_detections_are_at_the_highest_place_of_the_heat_map():
    """A head whose map is made by hand: the place in the box is that of its maximum."""
    head = KeypointHead(recipe(), 16, 1)
    maps = torch.zeros(1, 1, 56, 56)
    maps[0, 0, 10, 42] = 9.0
    head.forward = lambda x: maps
    box = torch.tensor([[10.0, 20.0, 66.0, 76.0]])
    found = head.detections(torch.zeros(1), [InstancePredictions(box, torch.ones(1), torch.zeros(1).long())])[0]
    x, y, certain = found.keypoints[0, 0].tolist()
    assert (x, y, certain) == pytest.approx((10 + 42.5, 20 + 10.5, math.exp(9) / (math.exp(9) + 56**2 - 1)))
    half = rescale(found, seen=(200, 100), size=(100, 50))
    assert half.keypoints[0, 0].tolist() == pytest.approx([x / 2, y / 2, certain])


def test_settings_without_effect_and_impossible_ones_are_refused():
    for changes, words in (
        ({"keypoint_convs": 4}, "keypoint_convs has no effect without keypoints"),
        ({"oks_sigma": 0.1, "min_keypoints": 3}, "have no effect without keypoints"),
        ({"keypoints": True}, "architecture=c4 has no keypoint head"),
        ({"keypoints": True, "architecture": "retinanet"}, "retinanet has no keypoint head"),
        ({"keypoints": True, "architecture": "fpn", "tta_flip": True}, "test-time augmentation"),
        ({"keypoints": True, "architecture": "fpn", "metric": "lvis"}, "LVIS has no keypoints"),
        (
            {"keypoints": True, "architecture": "fpn", "flip": 0.0, "mirrored_keypoints": ("a:b",)},
            "no effect with flip=0",
        ),
        ({"keypoints": True, "architecture": "fpn", "keypoint_channels": 0}, "keypoint_channels should be 1 or more"),
    ):
        with pytest.raises(UsageError, match=words):
            check(DetectionRecipe(**changes))


def test_the_mean_pose_is_the_median_place_in_the_box():
    data = source(5)
    poses = mean_pose(data)
    shares = []
    for i in range(5):
        _, points, box = drawn(i)
        x1, y1, x2, y2 = box[0].astype(np.float32).astype(float)
        shares.append([(points[0, 0, 0] + 0.5 - x1) / (x2 - x1), (points[0, 0, 1] + 0.5 - y1) / (y2 - y1)])
    assert poses[0, 0] == pytest.approx(np.median(shares, axis=0))
    placed = with_pose(constant_boxes(data, data), poses)
    assert placed.keypoints.shape == (5, 5, 3)
    assert keypoint_ap(truth_of(data, recipe()), placed, resamples=0).metrics["AR50"][0] > 0


def test_a_detector_learns_writes_and_reads_its_keypoints(tmp_path):
    """Few iterations on few pictures; the loss of the keypoints falls well below that of chance, log 56^2."""
    used, data = recipe(iterations=30, steps=(25,), batch_size=2, flip=0.5), source(12)
    detector = build_detector(build(NET), used, 1, keypoints=5)
    lines = []
    run = TrainingRun(0, CPU, 0, tmp_path / "checkpoints", 60, watch=lines.append)
    train(detector, data, run)
    assert lines[0].parts["keypoint"] > lines[-1].parts["keypoint"] + 1 and lines[-1].parts["keypoint"] < 7
    about = DetectorDescription(used, ("figure",), NET, Preprocessing(), "w", "d", "", "m", NAMES)
    path = save_detector(tmp_path / "a.detector.torch", detector.state_dict(), about, command="")
    read, told = read_detector(path)
    assert told.keypoints == NAMES
    found, again = detect(detector, data), detect(read, data)
    assert found.keypoints.shape == (len(found), 5, 3)
    np.testing.assert_array_equal(found.keypoints, again.keypoints)
    truth = truth_of(data, used)
    _, values = score(truth, found, used, seed=0, resamples=0)
    assert {"keypoint_AP", "keypoint_AR75"} <= set(values)
    assert list(per_keypoint(truth, found)) == list(NAMES)
    draw(data, truth, found, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize(("used", "names"), [(recipe(), NAMES), (drawn_rectangles.recipe(), ())])
def test_the_file_of_a_detector_of_boxes_names_no_keypoints(used, names):
    run = SimpleNamespace(recipe=used, train=source(2), task=Task("detection", used, {}))
    assert _ObjectEvaluation._about(run, build(NET), "w", "").keypoints == names


@REAL
def test_detectron2_trains_and_finds_keypoints(tmp_path):
    from sslbench.detection.detectron2 import backend

    data = Parts(source(8), source(4, start=50), "two lists")
    run = TrainingRun(0, CPU, 0, tmp_path / "r.checkpoints", 2, metrics=tmp_path / "r.metrics.jsonl")
    used = recipe(score_threshold=0.0)
    ran = backend.run(build("resnet50w0.125"), used, {}, data, run, stem=tmp_path / "r")
    assert ran.found.keypoints.shape == (len(ran.found), 5, 3) and len(ran.found)
    detector = backend.as_detector(build("resnet50w0.125"), used, 1, ran, {}, 5)
    mine = detect(detector, data.test)
    assert len(mine) == len(ran.found)
    np.testing.assert_allclose(np.sort(mine.scores), np.sort(ran.found.scores), atol=1e-4)
    truth = truth_of(data.test, used)
    own = keypoint_ap(truth, ran.found, resamples=0).metrics
    theirs = ran.variants["Detectron2's COCOEvaluator, keypoints"]
    assert theirs["AP"] == pytest.approx(100 * own["AP"][0], abs=1e-6)


@REAL
def test_detectron2_augments_keypoints_the_same():
    """A mirrored, resized entry of its own mapper has the targets of the torchvision backend."""
    from sslbench.detection.detectron2.config import configured
    from sslbench.detection.detectron2.data import Mapper, entries, registered

    data = source(3)
    used = recipe(min_sizes_train=(131,), max_size_train=200)
    configuration = configured(build("resnet50w0.125"), used, 1, {}, device=CPU, skeleton=SKELETON)
    with (
        tempfile.TemporaryDirectory() as folder,
        registered(Parts(data, data, ""), configuration.cfg, Path(folder)) as cfg,
    ):
        mapper = Mapper(data, cfg, train=True)
        seen = set()
        for number in range(12):
            np.random.seed(number)
            entry = entries(data, None, keypoints=True)[number % 3]
            theirs = mapper(entry)["instances"]
            images = b._TrainingImages(data, used, 0)
            for flip in (False, True):
                target = images._target(entry["position"], (SIDE, SIDE), (131, 131))
                target = b._flipped(target, 131, images._mirrored) if flip else target
                target = b._without_outside(target, torch.Size((131, 131)))
                if torch.allclose(target.keypoints, theirs.gt_keypoints.tensor, atol=1e-3):
                    seen.add(flip)
                    break
            else:
                pytest.fail(f"keypoints differ: {theirs.gt_keypoints.tensor}")
        assert seen == {False, True}


@REAL
def test_the_recipe_has_the_published_configuration():
    """Every key of Detectron2's keypoint_rcnn_R_50_FPN_1x, but for those of MSRA's weights and of files."""
    import detectron2
    from detectron2.config import get_cfg
    from helpers.detection_recipes import load_recipe

    from sslbench.detection.detectron2.config import detectron2_options
    from sslbench.metrics.detection.keypoints import COCO_SIGMAS, Skeleton

    path = Path(detectron2.__file__).parents[1] / "configs/COCO-Keypoints/keypoint_rcnn_R_50_FPN_1x.yaml"
    if not path.is_file():
        pytest.skip("the configurations are part of a checkout only")
    wanted = get_cfg()
    wanted.merge_from_file(str(path))
    person = Skeleton(tuple(COCO_SIGMAS)).with_sigmas()
    options = detectron2_options(build("resnet50"), load_recipe("detection/coco_keypoint_rcnn_fpn_1x"), 1, person)
    mine = get_cfg()
    mine.merge_from_list([part for pair in options.items() for part in pair])
    ours = {"STRIDE_IN_1X1", "PIXEL_MEAN", "PIXEL_STD", "FORMAT", "MASK_FORMAT", "KEYPOINT_OKS_SIGMAS"}
    differing = [key for key in options if _value(mine, key) != _value(wanted, key) and key.split(".")[-1] not in ours]
    assert [key for key in differing if "MASK_HEAD" not in key and "PRECISE_BN" not in key] == []


def _value(node, key):
    for part in key.split("."):
        node = node[part]
    return list(node) if isinstance(node, tuple) else node
