"""An iteration of training, the detection of an image and the opening of a manifest beside Detectron2: `make bench`.

Needs Detectron2 importable (docs/extend/tests.md). Processor seconds, in turn, in one process with the same threads.
"""

import contextlib
import io
import json
import statistics
import time

import pytest
import torch
from helpers.detectron2_samples import REAL, SMALL, squares, trained

from sslbench.backbones.build import build
from sslbench.data.open import open_objects
from sslbench.data.splits import Parts
from sslbench.detection.evaluate import detect
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, resolved
from sslbench.detection.train import TrainingRun, train

pytestmark = [pytest.mark.speed, REAL]

NET, ROUNDS, SHORT, LONG = "resnet18", 3, 1, 5
CHANGES = {
    **{"pyramid_channels": 128, "box_channels": 512, "min_sizes_train": (320,), "max_size_train": 480},
    **{"min_size_test": 320, "max_size_test": 480, "batch_size": 4, "precise_bn": 0, "score_threshold": 0.05},
    **{"roi_samples": 128, "rpn_samples": 128, "rpn_post_nms_train": 500, "rpn_post_nms_test": 200},
}
IMAGES = 17  # of the longer test part


def data(tests):
    return Parts(squares(16, "train", 240, 320), squares(tests, "test", 240, 320), "two lists")


def seconds(action):
    began = time.process_time()
    action()
    return time.process_time() - began


def own(folder, iterations, tests):
    recipe = resolved(DetectionRecipe(**{**SMALL, **CHANGES, "iterations": iterations, "steps": ()}))
    detector, parts = build_detector(build(NET), recipe, 2), data(tests)
    train(detector, parts.train, TrainingRun(0, torch.device("cpu"), 0, folder, 100))
    detect(detector, parts.test)


def theirs(folder, iterations, tests):
    trained(folder, net=NET, data=data(tests), iterations=iterations, steps=(), **CHANGES)


def test_an_iteration_and_the_detection_of_an_image(tmp_path, capsys):
    """Of both, trainings of 1 and of 5 iterations, and of 1 with 17 test images; differences give the single steps."""
    training, detecting = {own: [], theirs: []}, {own: [], theirs: []}
    for number in range(ROUNDS):
        for kind in (own, theirs):
            folder = tmp_path / f"{number}-{kind.__name__}"
            short = seconds(lambda folder=folder, kind=kind: kind(folder / "short", SHORT, 1))
            long = seconds(lambda folder=folder, kind=kind: kind(folder / "long", LONG, 1))
            many = seconds(lambda folder=folder, kind=kind: kind(folder / "many", SHORT, IMAGES))
            training[kind].append((long - short) / (LONG - SHORT))
            detecting[kind].append((many - short) / (IMAGES - 1))
    with capsys.disabled():
        for what, found in (("an iteration", training), ("detection in an image", detecting)):
            mine, other = (statistics.median(found[kind]) for kind in (own, theirs))
            print(f"\n{what}: {mine:.3f} s of processor time, Detectron2 {other:.3f} s, ratio {mine / other:.2f}")


def test_opening_a_manifest(tmp_path, monkeypatch, capsys):
    from detectron2.data.common import DatasetFromList
    from detectron2.data.datasets.coco import load_coco_json

    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "instances.json"
    shape = [10.0, 10.0, 40.0, 10.0, 40.0, 30.0, 10.0, 30.0]
    row = {"bbox": [10.0, 10.0, 30.0, 20.0], "area": 600.0, "iscrowd": 0, "segmentation": [shape]}
    images = [{"id": i, "file_name": f"{i}.jpg", "height": 240, "width": 320} for i in range(30_000)]
    annotations = [{"id": i + 1, "image_id": i // 7, "category_id": 1 + i % 80, **row} for i in range(210_000)]
    categories = [{"id": i, "name": f"class {i}"} for i in range(1, 81)]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    for i in range(len(images)):
        tmp_path.joinpath(f"{i}.jpg").touch()
    time.sleep(4)  # a file that was just written is not kept
    first, later = (seconds(lambda: open_objects(str(path))) for _ in range(2))
    with contextlib.redirect_stdout(io.StringIO()):
        other = seconds(lambda: DatasetFromList(load_coco_json(str(path), str(tmp_path)), copy=False))
    with capsys.disabled():
        print(f"\n30,000 images, 210,000 objects: first {first:.1f} s, later {later:.2f} s, Detectron2 {other:.1f} s")
    assert later < first
