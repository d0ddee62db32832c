"""Training by Detectron2: the same as by our own detector where nothing is drawn; data, checkpoints, processes."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.detector_samples import to_detectron2
from helpers.detectron2_samples import CPU, NET, REAL, parts, recipe, trained

from sslbench.backbones.build import build
from sslbench.detection.batches import training_batches
from sslbench.detection.detectron2 import backend, library
from sslbench.detection.detectron2 import train as detectron2_train
from sslbench.detection.detectron2.config import build_model, configured
from sslbench.detection.detectron2.data import Mapper, registered, train_loader
from sslbench.detection.detectron2.library import own_log
from sslbench.detection.evaluate import detect
from sslbench.detection.models.build import build_detector
from sslbench.detection.saved import from_detectron2
from sslbench.detection.train import TrainingRun, train
from sslbench.errors import DataError
from sslbench.runtime.signals import StoppedError
from sslbench.train.loop import NotFiniteError


@REAL
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("fpn", {"masks": True, "head_channels": 8, "mask_convs": 1}),
        ("c4", {"anchor_sizes": ((8.0, 16.0, 32.0),), "extra_norm": True, "box_pool": 6}),
    ],
)
def test_trained_weights_find_the_same_in_our_detector(tmp_path, architecture, changes):
    data = parts()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    ran = trained(tmp_path, architecture=architecture, data=data, **changes)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == np.random.get_state()[1].tolist()
    assert "sslbench_train" not in library.load("data").DatasetCatalog.list()
    used = recipe(architecture=architecture, **changes)
    mine = detect(backend.as_detector(build(NET), used, 2, ran, {}), data.test)
    theirs = ran.found
    assert len(mine) == len(theirs) > 10 and mine.images.tolist() == theirs.images.tolist()
    assert np.allclose(np.sort(mine.scores), np.sort(theirs.scores), atol=1e-5)
    order = [np.lexsort((*f.boxes.T.round(1), f.labels, f.images)) for f in (mine, theirs)]
    assert np.allclose(mine.boxes[order[0]], theirs.boxes[order[1]], atol=1e-2)
    assert (mine.masks is None) == (architecture == "c4")
    assert backend.as_detector(build(NET), used, 2, ran, {"TEST.DETECTIONS_PER_IMAGE": 5}) is None


@REAL
@pytest.mark.parametrize(("norm", "updates"), [("frozen", 5), ("batch", 2)])
def test_the_same_batches_train_the_same_weights(norm, updates, tmp_path, monkeypatch):
    """Both backends from one start, every anchor and region in the losses, so that nothing is drawn: over warm-up and
    step, what has moved differs by rounding (which turns ReLUs over; statistics of so small batches multiply that)."""
    data, backbone = parts(), build(NET)
    used = recipe(norm=norm, precise_bn=0, iterations=updates, lr=0.005, rpn_samples=50_000, roi_samples=5_000)
    mine = build_detector(backbone, used, 2)
    first = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    configuration = configured(backbone, used, 2, {}, device=CPU)
    with own_log(None):
        model = build_model(configuration)
        model.load_state_dict(to_detectron2(first), strict=False)
        batches = training_batches(data.train, used, start=0, stop=updates, seed=0)
        monkeypatch.setattr(detectron2_train, "train_loader", lambda *_, **__: [_theirs(*batch) for batch in batches])
        detectron2_train.train(model, configuration, used, data.train, TrainingRun(0, CPU, 0, tmp_path / "b", 5))
    train(mine, data.train, TrainingRun(0, CPU, 0, tmp_path / "a", 5))
    theirs = from_detectron2(model.state_dict())
    moved = {n: p.detach() - first[n] for n, p in mine.named_parameters()}
    size = sum(float(delta.norm()) ** 2 for delta in moved.values()) ** 0.5
    away = sum(float((theirs[n] - first[n] - delta).norm()) ** 2 for n, delta in moved.items()) ** 0.5
    assert size > 0.01 and away < 0.01 * size, (size, away)


def _theirs(images, targets):
    structures = library.load("structures")
    batch = []
    for image, target in zip(images, targets, strict=True):
        found = structures.Instances(tuple(image.shape[1:]))
        found.gt_boxes, found.gt_classes = structures.Boxes(target.boxes), target.classes
        batch.append({"image": image, "instances": found})
    return batch


@REAL
def test_a_signal_saves_and_the_next_call_continues(tmp_path):
    lines = []

    def stop(line):
        lines.append(line.iteration)
        if line.iteration == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(
        StoppedError, match=r"stopped by signal 15 after iteration 3 of 6; everything is saved"
    ) as error:
        trained(tmp_path, iterations=6, watch=stop)
    assert error.value.exit_code == 143
    ran = trained(tmp_path, iterations=6, watch=lambda line: lines.append(line.iteration))
    assert (ran.trained.resumed_from, ran.trained.iterations) == (3, 3) and lines == [1, 2, 3, 4, 5, 6]
    written = [json.loads(line) for line in (tmp_path / "r.metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in written] == [1, 2, 3, 4, 5, 6]
    # The rates go on where they were: warm-up over, a tenth after the third.
    assert [record["lr"] for record in written[2:]] == pytest.approx([0.02, 0.002, 0.002, 0.002])
    again = trained(tmp_path, iterations=6)
    assert again.trained.iterations == 0 and np.array_equal(again.found.boxes, ran.found.boxes)
    # Detectron2's own checkpointer reads the checkpoint.
    configuration = configured(build(NET), recipe(), 2, {}, device=CPU)
    with own_log(None):
        model = build_model(configuration)
        checkpoint = max((tmp_path / "r.checkpoints").glob("*.ckpt"))
        library.load("checkpoint").DetectionCheckpointer(model).load(str(checkpoint))
    assert all(torch.equal(tensor, ran.state[name]) for name, tensor in model.state_dict().items())


@REAL
def test_rates_of_a_training_that_is_cut_short_are_those_of_the_whole(tmp_path):
    trained(tmp_path, iterations=3, warmup_iterations=100, precise_bn=0)
    rates = [json.loads(line)["lr"] for line in (tmp_path / "r.metrics.jsonl").read_text().splitlines()]
    assert rates == pytest.approx([0.02 * (0.001 * (1 - i / 100) + i / 100) for i in range(3)])


@REAL
def test_a_loss_that_is_not_finite_suggests_a_lower_rate(tmp_path, capsys):
    with pytest.raises(NotFiniteError, match=r"Detectron2 stopped: .*\nTry a lower rate \(lr=1e\+14; it is 1e\+15\)"):
        trained(tmp_path, lr=1e15, warmup_iterations=0)
    assert "Traceback" not in "".join(capsys.readouterr()), "Detectron2 logs one, which is for its own log"
    assert "Traceback" in (tmp_path / "r.checkpoints" / "detectron2.log").read_text()


@REAL
def test_an_image_of_another_size_than_annotated_is_refused(tmp_path):
    data = parts()
    data.train.target.sizes[:] = 50
    with pytest.raises(DataError, match="is 56 x 48 pixels, but the annotations are for 50 x 50"):
        trained(tmp_path, data=data)


@REAL
def test_the_seed_decides(tmp_path):
    first, same, other = (trained(tmp_path / f"{i}", seed=seed) for i, seed in enumerate((0, 0, 1)))
    assert all(torch.equal(tensor, same.state[name]) for name, tensor in first.state.items())
    assert not torch.equal(
        first.state["roi_heads.box_predictor.cls_score.weight"], other.state["roi_heads.box_predictor.cls_score.weight"]
    )


@REAL
@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_channels_and_statistics_follow_the_recipe(order, tmp_path):
    data, backbone = parts(), build(NET)
    cfg = configured(backbone, recipe(channel_order=order, flip=0.0), 2, {}, device=CPU).cfg
    mean = [255 * value for value in backbone.preprocessing.mean]
    assert pytest.approx(mean if order == "RGB" else mean[::-1]) == cfg.MODEL.PIXEL_MEAN
    with own_log(None), registered(data, cfg, tmp_path) as named:
        entry = next(iter(train_loader(data.train, named, workers=0)))[0]
    red = entry["image"][0 if order == "RGB" else 2]
    assert int(red.min()) == 60 and int(entry["image"][2 if order == "RGB" else 0].min()) == 0


@REAL
@pytest.mark.parametrize("form", ["bitmask", "polygon"])
def test_masks_and_boxes_follow_the_picture(form, tmp_path):
    data = parts()
    given = {"INPUT.MASK_FORMAT": form, "MODEL.MASK_ON": True}
    cfg = configured(build(NET), recipe(flip=0.5), 2, given, device=CPU).cfg
    with own_log(None), registered(data, cfg, tmp_path) as named:
        mapper = Mapper(data.train, named, train=True)
        entries = library.load("data").DatasetCatalog.get("sslbench_train")
        for entry in [mapper(entries[i]) for i in range(6)]:
            white = entry["image"][1] > 127
            found = entry["instances"]
            inside = torch.zeros_like(white)
            for x1, y1, x2, y2 in found.gt_boxes.tensor.round().int().tolist():
                inside[y1:y2, x1:x2] = True
            assert (white != inside).float().mean() < 0.02 and entry["image"].shape[1:] == (64, 75)
            if form == "bitmask":
                assert (found.gt_masks.tensor.bool().any(0) != white).float().mean() < 0.02


def together(rank, folder):
    ran = trained(Path(folder), norm="sync", iterations=2, steps=())
    names = sorted(name for name in ran.state if "num_batches" not in name)
    return (
        ran.found.boxes,
        ran.found.images,
        [float(ran.state[name].double().sum()) for name in names],
        len(ran.variants),
    )


@REAL
def test_two_processes_train_one_detector_and_see_every_test_image(tmp_path):
    first, second = two_processes.run(together, str(tmp_path))
    assert np.array_equal(first[0], second[0]) and set(first[1]) == {0, 1, 2}
    assert first[2] == second[2], "the same weights and statistics everywhere"
    assert (first[3], second[3]) == (1, 0), "its evaluator speaks on the first process"
    assert len(list((tmp_path / "r.checkpoints").glob("*.ckpt"))) == 1
