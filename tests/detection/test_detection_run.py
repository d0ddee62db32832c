"""Training a detector: batches, rates, checkpoints, BatchNorm statistics; and finding, scoring, drawing."""

import itertools
import json
import os
import signal
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.drawn_rectangles import recipe, small_detector, source
from PIL import Image

from sslbench.backbones.build import build
from sslbench.detection import batches as b
from sslbench.detection.evaluate import detect, draw, gathered, score
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, DetectionSettings
from sslbench.detection.train import TrainingRun, check_processes, make_optimizer, precise_statistics, rate, train
from sslbench.errors import DataError, UsageError
from sslbench.runtime.signals import StoppedError
from sslbench.train.loop import NotFiniteError
from sslbench.train.observers.always import requested


def taken(data, used, start, stop, **options):
    return list(b.training_batches(data, used, start=start, stop=stop, seed=3, **options))


def same(first, second):
    return all(
        torch.equal(x, y) and torch.equal(t.boxes, u.boxes) and torch.equal(t.classes, u.classes)
        for (images, targets), (others, their) in zip(first, second, strict=True)
        for x, y, t, u in zip(images, others, targets, their, strict=True)
    )


def test_the_rate_is_that_of_detectron2():
    """Its defaults: warm-up from a thousandth over 1000 iterations, a tenth at each step."""
    used = DetectionRecipe(lr=0.02, steps=(18000, 22000), warmup_iterations=1000, warmup_factor=0.001)
    assert rate(used, 0) == pytest.approx(0.02 * 0.001)
    assert rate(used, 500) == pytest.approx(0.02 * (0.001 * 0.5 + 0.5))
    assert [rate(used, i) for i in (1000, 17999, 18000, 21999, 22000)] == pytest.approx([0.02, 0.02, 2e-3, 2e-3, 2e-4])


def test_every_epoch_has_every_image_once_in_another_order():
    found = list(itertools.islice(b.order([True] * 6, 2, seed=0, grouped=False), 6))
    first, second = (list(itertools.chain(*found[i : i + 3])) for i in (0, 3))
    assert sorted(first) == sorted(second) == list(range(6)) and first != second


def test_wide_and_tall_images_are_not_mixed_and_none_is_favoured():
    wide = [True, False, False, True, False]
    found = list(itertools.islice(b.order(wide, 3, seed=1, grouped=True), 100))
    assert all(len({wide[i] for i in batch}) == 1 for batch in found)
    counts = Counter(itertools.chain(*found))
    assert set(counts) == set(range(5)) and max(counts.values()) - min(counts.values()) <= 3


def test_batches_can_start_anywhere_and_be_divided_among_processes():
    data, used = source(), recipe(min_sizes_train=(48, 64, 72))
    whole = taken(data, used, 0, 4)
    assert same(whole[2:], taken(data, used, 2, 4))
    assert same(whole, taken(data, used, 0, 4, workers=1))
    parts = [taken(data, used, 0, 4, share=(r, 2)) for r in (0, 1)]
    rejoined = [(x[0] + y[0], x[1] + y[1]) for x, y in zip(*parts, strict=True)]
    assert same(whole, rejoined)
    assert len({image.shape for images, _ in whole for image in images}) > 1, "sizes are drawn for each image"


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_boxes_and_masks_follow_the_picture(flip):
    [(images, targets)] = taken(source(), recipe(flip=flip, masks=True), 0, 1)
    for image, target in zip(images, targets, strict=True):
        assert image.shape == (3, 64, 64) and image.dtype == torch.uint8
        white = image[0] > 127
        inside = torch.zeros_like(white)
        for x1, y1, x2, y2 in target.boxes.round().int().tolist():
            inside[y1:y2, x1:x2] = True
        assert (white != inside).float().mean() < 0.02
        assert (target.masks.any(0) != white).float().mean() < 0.02
        sides = target.boxes[:, 2:] - target.boxes[:, :2]
        assert [("wide", "tall")[int(h > w)] for w, h in sides] == [("wide", "tall")[c] for c in target.classes]


def test_crowds_are_not_trained_on_nor_empty_images():
    data = source(crowd=(1,), empty=(2,))
    assert b.trainable(data, recipe()).tolist() == [0, 3, 4, 5]
    assert len(b.trainable(data, recipe(skip_empty=False))) == 6
    everything = [t for _, targets in taken(data, recipe(skip_empty=False), 0, 3) for t in targets]
    assert sorted(len(t.boxes) for t in everything) == [0, 0, 2, 2, 2, 2]
    with pytest.raises(DataError, match="no image with an object"):
        b.trainable(source(2, crowd=(0, 1)), recipe())


def test_resizing_is_pillows():
    picture = torch.randint(0, 256, (3, 31, 47), dtype=torch.uint8)
    expected = Image.fromarray(picture.permute(1, 2, 0).numpy()).resize((70, 45), Image.Resampling.BILINEAR)
    assert np.array_equal(b.resize(picture, (45, 70)).permute(1, 2, 0).numpy(), np.array(expected))


class KilledError(Exception):
    pass


def test_a_killed_training_continues_to_the_same_weights(tmp_path):
    """Also after it is complete: then nothing is trained, and BatchNorm statistics come out the same."""

    def run(folder, watch=None):
        torch.manual_seed(np.random.default_rng().integers(2**31))  # global random numbers have no say
        model = small_detector(precise_bn=2)
        log = tmp_path / f"{folder}.jsonl"
        plan = TrainingRun(0, torch.device("cpu"), 0, tmp_path / folder, save_every=2, metrics=log, watch=watch)
        return model, train(model, source(), plan)

    def kill(line):
        if line.iteration == 3:
            raise KilledError

    whole, first = run("whole")
    with pytest.raises(KilledError):
        run("killed", kill)
    continued, second = run("killed")
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4], "the third, done twice, stands there once"
    again, third = run("killed")
    assert (first.resumed_from, second.resumed_from, third.resumed_from) == (None, 2, 4)
    assert (first.iterations, second.iterations, third.iterations) == (4, 2, 0)
    start = small_detector().state_dict()
    assert any(not torch.equal(start[name], tensor) for name, tensor in whole.state_dict().items())
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, continued.state_dict()[name]) and torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_and_the_next_call_continues_to_the_same_weights(tmp_path, number):
    """Also what the log says: no iteration stands in it twice, none is missing."""

    def run(folder, watch=None):
        model = small_detector()
        log = tmp_path / f"{folder}.jsonl"
        plan = TrainingRun(0, torch.device("cpu"), 0, tmp_path / folder, save_every=4, metrics=log, watch=watch)
        return model, train(model, source(), plan), [json.loads(text) for text in log.read_text().splitlines()]

    def stop(line):
        if line.iteration == 3:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(StoppedError, match="update 3 of 4; everything is saved\nRun the same command") as stopped:
        run("stopped", stop)
    assert stopped.value.exit_code == 128 + number and signal.getsignal(number) is before
    whole, _, lines = run("whole")
    continued, trained, same_lines = run("stopped")
    assert (trained.resumed_from, trained.iterations) == (3, 1)
    assert all(torch.equal(t, continued.state_dict()[name]) for name, t in whole.state_dict().items())
    timeless = [
        [{k: v for k, v in line.items() if k != "images_per_second"} for line in log] for log in (lines, same_lines)
    ]
    assert timeless[0] == timeless[1] and [line["step"] for line in lines] == [1, 2, 3, 4]
    assert {"loss", "lr", "rpn_cls", "rpn_loc", "cls", "box_reg"} <= set(lines[0])
    assert lines[0]["loss"] == pytest.approx(sum(lines[0][k] for k in ("rpn_cls", "rpn_loc", "cls", "box_reg")))


def test_tensorboard_has_the_lines_of_the_log_and_changes_nothing(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install tensorboard)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def run(name, observers=()):
        model, log = small_detector(), tmp_path / f"{name}.jsonl"
        logs = tmp_path / f"{name}.logs"
        folder = tmp_path / name
        train(model, source(), TrainingRun(0, torch.device("cpu"), 0, folder, 4, log, observers=observers, logs=logs))
        return model.state_dict(), [json.loads(text) for text in log.read_text().splitlines()]

    plain, _ = run("plain")
    observed, lines = run("observed", requested(DetectionSettings(tensorboard=True), tmp_path / "observed.logs", {}))
    assert all(torch.equal(tensor, observed[name]) for name, tensor in plain.items())
    events = EventAccumulator(str(tmp_path / "observed.logs")).Reload()
    for tag, key in (("Training/Loss", "loss"), ("Training/loss_cls", "cls"), ("Training/Learning_rate", "lr")):
        assert [scalar.step for scalar in events.Scalars(tag)] == [line["step"] for line in lines] == [1, 2, 3, 4]
        assert [scalar.value for scalar in events.Scalars(tag)] == pytest.approx([line[key] for line in lines])
    assert all(scalar.value > 0 for scalar in events.Scalars("Speed/img_per_sec_per_gpu"))


def test_statistics_are_those_of_all_batches_together():
    model = small_detector(norm="batch")
    layer = next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    seen = []
    layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].detach().double()))
    # Each batch darker than the one before, so that the batches' means differ.
    parts = [([x // (i + 1) for x in xs], ts) for i, (xs, ts) in enumerate(taken(source(), recipe(), 0, 3))]
    momentum = layer.momentum
    precise_statistics(model, iter(parts), seed=0)
    values = torch.cat(seen).transpose(0, 1).flatten(1)
    assert torch.allclose(layer.running_mean.double(), values.mean(1), rtol=1e-4, atol=1e-6)
    assert torch.allclose(layer.running_var.double(), values.var(1), rtol=2e-3)
    assert layer.momentum == momentum


def test_a_loss_that_is_not_a_number_stops_before_the_weights_change(tmp_path):
    model = small_detector()
    with torch.no_grad():
        model.roi_heads.box_predictor.cls_score.weight[0, 0] = float("nan")
    before = {name: p.clone() for name, p in model.named_parameters()}
    plan = TrainingRun(0, torch.device("cpu"), 0, tmp_path / "run", save_every=2)
    with pytest.raises(
        NotFiniteError, match=r"iteration 1 of 4 \(loss_cls\).*\nTry a lower rate \(lr=0.002; it is 0.02\)"
    ):
        train(model, source(), plan)
    after = dict(model.named_parameters())
    assert all(torch.equal(before[n], after[n]) or n.endswith("cls_score.weight") for n in before)


def test_decay_and_rates_of_the_groups():
    model = small_detector(weight_decay=0.1, weight_decay_norm=0.5)
    groups = make_optimizer(model, model.recipe).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, p in model.named_parameters():
        assert decays[id(p)] == (0.5 if ".bn" in name or "downsample.1" in name else 0.1), name
    with pytest.raises(UsageError, match=r"layer_decay=0.5 needs a vision transformer"):
        make_optimizer(model, recipe(layer_decay=0.5))
    vit = build("timm:vit_tiny_patch16_224,depth=2,img_size=32")
    used = recipe(architecture="vit_fpn", layer_decay=0.5, optimizer="adamw", pyramid_norm="layer", head_norm="layer")
    model = build_detector(vit, used, 2)
    factors = {id(p): g["lr_factor"] for g in make_optimizer(model, used).param_groups for p in g["params"]}
    named = dict(model.named_parameters())
    expected = {"pos_embed": 0.125, "blocks.0.attn.qkv.weight": 0.25, "blocks.1.attn.qkv.weight": 0.5}
    assert {name: factors[id(named[f"backbone.net.{name}"])] for name in expected} == expected
    assert factors[id(named["roi_heads.box_predictor.cls_score.weight"])] == 1


def test_a_batch_has_to_be_divisible():
    check_processes(recipe(batch_size=16), 8)
    with pytest.raises(
        UsageError, match="batch_size=16 images cannot be divided among 3 processes\nGive batch_size=15"
    ):
        check_processes(recipe(batch_size=16), 3)


def test_what_is_found_is_in_pixels_of_the_image_and_can_be_scored_and_drawn(tmp_path):
    data = source(height=48, width=44)
    model = small_detector(score_threshold=0.0, masks=True, head_channels=8, mask_convs=1)
    found = detect(model, data)
    assert set(found.images) == set(range(6)) and (np.diff(found.images) >= 0).all()
    assert found.boxes.min() >= 0 and found.boxes[:, 2].max() <= 44 and 36 < found.boxes[:, 3].max() <= 48
    assert all(tuple(mask["size"]) == (48, 44) for mask in found.masks)
    truth = data.truth(masks=True)
    scores, of_masks = score(truth, found, model.recipe, seed=0, resamples=20)
    assert {"AP", "AP50", "AP75"} <= set(scores.metrics) and {"mask_AP", "mask_AP50"} <= set(of_masks)
    draw(data, truth, found, tmp_path / "p.png")
    assert Image.open(tmp_path / "p.png").size[0] > 400
    assert len(gathered([])) == 0


def test_finding_exactly_what_is_there_scores_one():
    for metric in ("coco", "voc07", "voc12"):
        from sslbench.metrics.detection import Detections

        truth = source().truth()
        perfect = Detections(truth.images, truth.boxes, np.linspace(0.5, 1, len(truth)), truth.labels)
        scores, of_masks = score(truth, perfect, recipe(metric=metric), seed=0, resamples=10)
        assert scores.metrics["AP"][0] == pytest.approx(1) and scores.per_class == pytest.approx({"wide": 1, "tall": 1})
        assert of_masks == {}


def test_an_image_of_another_size_than_annotated_is_refused():
    data = source()
    data.target.sizes[:] = 50
    with pytest.raises(DataError, match="is 48 x 48 pixels, but the annotations are for 50 x 50"):
        taken(data, recipe(), 0, 1)
