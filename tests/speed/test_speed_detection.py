"""An iteration of training, the detection of an image and the opening of a manifest beside Detectron2: `make bench`.

Needs Detectron2 importable (CONTRIBUTING.md). Processor seconds, in turn, in one process with the same threads.
"""

import contextlib
import io
import json
import statistics
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "detection"))
from detectron2_samples import REAL, SMALL, squares, trained

from sslbench.backbones.build import build
from sslbench.data.open import open_objects
from sslbench.data.splits.objects import TrainTestObjects
from sslbench.detection.evaluate import detect
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, resolved
from sslbench.detection.train import TrainingRun, train

pytestmark = [pytest.mark.speed, REAL]

NET, ROUNDS, SHORT, LONG = "resnet18", 3, 2, 8
CHANGES = {
    **{"pyramid_channels": 128, "box_channels": 512, "min_sizes_train": (320,), "max_size_train": 480},
    **{"min_size_test": 320, "max_size_test": 480, "batch_size": 4, "precise_bn": 0, "score_threshold": 0.05},
    **{"roi_samples": 128, "rpn_samples": 128, "rpn_post_nms_train": 500, "rpn_post_nms_test": 200},
}
DATA = TrainTestObjects(squares(16, "train", 240, 320), squares(16, "test", 240, 320), "two lists")


def seconds(action):
    began = time.process_time()
    action()
    return time.process_time() - began


def own(folder, iterations):
    recipe = resolved(DetectionRecipe(**{**SMALL, **CHANGES, "iterations": iterations, "steps": ()}))
    detector = build_detector(build(NET), recipe, 2)
    train(detector, DATA.train, TrainingRun(0, torch.device("cpu"), 0, folder / "own", 100))
    return detector


def theirs(folder, iterations):
    return trained(folder, net=NET, data=DATA, iterations=iterations, steps=(), **CHANGES)


def test_an_iteration_and_the_detection_of_an_image(tmp_path, capsys):
    """Of both, a training of 2 and one of 8 iterations; the difference is that of six iterations."""
    training, detecting = {own: [], theirs: []}, {own: [], theirs: []}
    for number in range(ROUNDS):
        for kind in (own, theirs):
            short, long = (
                seconds(lambda n=n, kind=kind: kind(tmp_path / f"{number}-{n}-{kind.__name__}", n))
                for n in (SHORT, LONG)
            )
            training[kind].append((long - short) / (LONG - SHORT))
        detector = own(tmp_path / f"{number}-detect", 1)
        detecting[own].append(seconds(lambda detector=detector: detect(detector, DATA.test)) / len(DATA.test))
        ran = theirs(tmp_path / f"{number}-detect-theirs", 1)
        detecting[theirs].append(ran.seconds / len(DATA.test) * torch.get_num_threads())
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
