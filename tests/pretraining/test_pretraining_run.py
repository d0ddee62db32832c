"""A run as a user sees it: what lies in the folder, how it stops, how it goes on, what it refuses."""

import csv
import dataclasses
import importlib
import logging
import math
import os
import random
import shutil
import signal
import sys
import zipfile

import numpy as np
import pytest
import torch
import yaml
from helpers import kills, runs, two_processes
from PIL import Image
from torch.nn import functional

import sslbench
from sslbench.backbones.classifier import read_classifier
from sslbench.backbones.load import load_backbone, load_file
from sslbench.config import build
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.recipe import check as check_recipe
from sslbench.errors import SslbenchError, UsageError
from sslbench.evaluation import RunSettings
from sslbench.evaluation.pretraining import knn_evaluator
from sslbench.pretraining import PretrainRequest, prepare, pretrain
from sslbench.pretraining.settings import FREE, ROUNDING
from sslbench.protocols.finetune import Settings as Finetune
from sslbench.runtime.signals import StoppedError
from sslbench.train import checkpoints, loop
from sslbench.train.loop import NotFiniteError
from sslbench.train.observers import Observer
from sslbench.weights.reading import files
from sslbench.weights.reading.folders import checkpoint_files, newest_checkpoint
from sslbench.weights.save import save


class Recorder(Observer):
    """An observer that remembers, and may act at an update."""

    def __init__(self, at=None, act=None):
        self.lines, self.records, self.at, self.act = [], [], at, act

    def started(self, about):
        self.about = about

    def line(self, line):
        self.lines.append(line)
        if line.step == self.at:
            self.act()

    def evaluated(self, record):
        self.records.append(record)

    def finished(self):
        pass


def tensors(path):
    return torch.load(path, weights_only=True)["state_dict"]


def same(a, b):
    a, b = tensors(a), tensors(b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A SimCLR run from beginning to end."""
    recorder = Recorder()
    return runs.run("simclr", tmp_path_factory.mktemp("run") / "out", observers=[recorder]), recorder


def test_the_folder_holds_weights_that_every_command_reads(undisturbed):
    outcome, recorder = undisturbed
    out = outcome.weights.parent
    backbone = load_backbone(str(outcome.weights))
    assert backbone.name == runs.RESNET
    assert backbone.preprocessing.crop == (32, 32) and "pretrained" in backbone.preprocessing.origin
    assert sorted(p.name for p in out.iterdir()) == ["checkpoints", "config.yaml", "log.txt", "weights.torch"]
    assert len(checkpoint_files(out / "checkpoints")) == 2
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["method"]["name"] == "simclr" and config["batch_size"] == 16
    assert outcome.steps == 9 and [line.step for line in recorder.lines] == list(range(1, 10))


def test_the_log_says_what_happened(undisturbed):
    _, recorder = undisturbed
    rates = [line.lr for line in recorder.lines]
    assert (
        rates[0] == 0 and max(rates) == pytest.approx(0.05 * 16 / 256) and rates.index(max(rates)) == 3
    )  # warm-up, one epoch
    assert all(line.images_per_second > 0 and 0 <= line.waiting <= 1 for line in recorder.lines)
    assert all(line.spread.effective_rank > 1 for line in recorder.lines)


class Points(Observer):
    """Observer that notes every point with the update, and looks at what it is given."""

    def __init__(self):
        self.seen = []

    def started(self, about):
        self.about = about
        self.seen.append("start")

    def epoch_started(self, step):
        self.seen.append(f"epoch {step.epoch}")

    def forward(self, batch, step):
        self.seen.append(f"forward {step.index} of {len(batch.indices)}")
        self.before = [p.detach().clone() for p in self.about.method.parameters()]

    def loss(self, loss, step):
        assert torch.isfinite(loss.value) and not loss.value.requires_grad
        self.seen.append("loss")

    def backward(self, step):
        assert any(p.grad is not None and p.grad.any() for p in self.about.method.parameters())
        assert all(map(torch.equal, self.before, self.about.method.parameters())), "nothing is updated yet"
        self.seen.append("backward")

    def updated(self, step):
        assert not all(map(torch.equal, self.before, self.about.method.parameters()))
        self.seen.append(f"update {step.index}")

    def line(self, line):
        self.seen.append(f"line {line.step}")

    def evaluated(self, record):
        self.seen.append(f"evaluated {record['step']}")

    def epoch_ended(self, step):
        self.seen.append(f"end of {step.epoch}")

    def finished(self):
        self.seen.append("end")


def test_observers_look_at_every_point_and_the_weights_are_the_same_bit_for_bit(tmp_path):
    changes = {"accumulate": 2, "limit": 32, "epochs": 2, "log_every": 2, "schedule": {"lr": 1.0}}
    points = Points()
    watched = runs.run("moco", tmp_path / "watched", observers=[points], **changes)
    alone = runs.run("moco", tmp_path / "alone", **changes)
    assert same(watched.weights, alone.weights)
    assert kills.digest(tmp_path / "watched") == kills.digest(tmp_path / "alone")

    def update(index):
        return [*[f"forward {index} of 8", "loss", "backward"] * 2, f"update {index}"]

    assert points.seen == [
        *("start", "epoch 0", *update(0), *update(1), "end of 0", "line 2"),
        *("epoch 1", *update(2), *update(3), "end of 1", "line 4", "end"),
    ]


def test_a_signal_saves_and_stops_and_the_same_call_goes_on(undisturbed, tmp_path, caplog):
    """Observers see the rest. The text log, here without times, has messages, records and the reason of an end."""
    caplog.set_level(logging.INFO, "sslbench")
    points, again = Points(), Recorder()
    for number, at, watching in ((signal.SIGTERM, 5, []), (signal.SIGUSR1, 7, [points]), (signal.SIGINT, 8, [])):
        interrupted = Recorder(at, lambda number=number: os.kill(os.getpid(), number))
        with pytest.raises(StoppedError, match=f"after update {at} of 9; everything is saved") as stopped:
            runs.run("simclr", tmp_path, observers=[interrupted, *watching])
        assert stopped.value.exit_code == 128 + number
    outcome = runs.run("simclr", tmp_path, observers=[again])
    assert outcome.resumed_from == 8 == again.about.start and [line.step for line in again.lines] == [9]
    assert same(outcome.weights, undisturbed[0].weights)
    assert points.seen[1:3] == ["epoch 1", "forward 5 of 16"]
    assert [text for text in points.seen if "epoch" in text or "end of" in text] == ["epoch 1", "end of 1", "epoch 2"]
    lines = [line[21:] for line in (tmp_path / "log.txt").read_text().splitlines()]
    begins = [i for i, line in enumerate(lines) if line == "$ test"]
    first, last = lines[: begins[1]], lines[begins[3] :]
    assert first[1:3] == ["48 images of sklearn:digits, 48 of 1797", "updates 1 to 9"]
    positions = [line.split("  loss")[0] for line in first[3:8]]
    assert positions == [f"epoch {i / 3:.2f} of 3  update {i} of 9" for i in range(1, 6)]
    assert "error: stopped by signal 15 after update 5 of 9; everything is saved" in first
    assert "updates 9 to 9" in last and last[-1] == "trained"
    assert sum("update 9 of 9  loss" in line for line in last) == 1


def test_a_signal_of_another_process_is_heard_within_an_epoch(tmp_path, monkeypatch):
    compared = []

    def spy(signal_number, device, *, compare):
        compared.append(compare)
        return signal_number()

    monkeypatch.setattr(loop, "signal_on_any_process", spy)
    steps = runs.run("simclr", tmp_path / "out", batch_size=2, epochs=1).steps
    assert [step for step, asked in enumerate(compared, 1) if asked] == [*range(10, steps, 10), steps] and steps > 20


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    halves = [tmp_path / "checkpoints" / ".step_000000002.x1.part.ckpt", tmp_path / ".weights.y2.part.torch"]
    for half in halves:
        half.write_bytes(b"half")
    runs.run("simclr", tmp_path, limit=32, epochs=1, schedule={"lr": 1.0})
    assert not any(half.exists() for half in halves)


def test_a_finished_run_is_not_trained_again(undisturbed):
    before = undisturbed[0].weights.read_bytes()
    outcome = runs.run("simclr", undisturbed[0].weights.parent)
    assert outcome.resumed_from == 9 and outcome.last is None
    assert same(outcome.weights, undisturbed[0].weights) and len(before) == outcome.weights.stat().st_size


def test_other_settings_do_not_continue_a_run(undisturbed):
    out = undisturbed[0].weights.parent
    with pytest.raises(UsageError, match="batch_size: 16, now 32"):
        runs.run("simclr", out, batch_size=32)
    with pytest.raises(UsageError, match="checkpoint of the method simclr, this run is byol"):
        runs.run("byol", out)
    with pytest.raises(UsageError, match=rf"backbone: {runs.RESNET}, now resnet18w0\.25"):
        runs.run("simclr", out, backbone="resnet18w0.25")


NEUTRAL = {
    "workers": 1,
    "prefetch": 1,
    "start_method": "forkserver",
    "log_every": 3,
    "save_every": "1 epoch",
    "keep": 1,
    "eval_every": 3,
    "eval_k": 5,
    "eval_linear": True,
    "export": "student",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Folder of a run that a signal ended after update 4, the second that it saved."""
    out = tmp_path_factory.mktemp("ended") / "out"
    stopped_at(4, out)
    return out


@pytest.fixture
def stopped(ended, tmp_path):
    """A copy of it, to go on in."""
    return shutil.copytree(ended, tmp_path / "stopped")


def test_what_changes_no_number_may_change(undisturbed, stopped, tmp_path):
    """Every setting that is declared to change nothing, bit for bit; `ROUNDING` has those that change a little."""
    assert set(NEUTRAL) | set(ROUNDING) == set(FREE)
    labelled = write_images(tmp_path / "labelled", 32)
    for number in range(2):
        (labelled / f"class{number}").rename(labelled / str(number))  # names of the digits
    outcome = runs.run("simclr", stopped, eval_data=str(labelled), **NEUTRAL)
    assert same(outcome.weights, undisturbed[0].weights) and len(outcome.evaluations) == 1
    assert all("online_top1" in record for record in outcome.evaluations)
    assert len(checkpoint_files(stopped / "checkpoints")) == 1


def test_what_changes_rounding_is_said(undisturbed, stopped, caplog):
    stop = Recorder(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StoppedError):
        runs.run("simclr", stopped, channels_last=False, activation_checkpointing=True, observers=[stop])
    assert "continuing with activation_checkpointing: False, now True; channels_last: True, now False" in caplog.text
    assert stop.lines[0].loss == pytest.approx(undisturbed[1].lines[4].loss, rel=1e-4)


def test_colours_on_the_device_train_the_same_network_apart_from_rounding(tmp_path):
    """Two forward passes per update: each has the changes of its own images."""
    colours = {"jitter": {"p": 0.8, "brightness": 0.4, "contrast": 0.4}, "blur": {"p": 0.5}}
    augment = {"views": [{"count": 2, "size": 16, **colours}, {"count": 1, "size": 12, **colours}]}
    losses = []
    for place in ("workers", "device"):
        recorder = Recorder()
        changes = {"augment": augment, "colours": place, "accumulate": 2, "epochs": 1, "observers": [recorder]}
        runs.run("swav", tmp_path / place, optimizer={"name": "sgd", "lr": 1e-6}, **changes)
        losses.append([line.loss for line in recorder.lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2) and losses[0] != losses[1]  # colours of other images: 3 %


def test_accumulation_is_another_run(tmp_path):
    """Contrastive losses and BatchNorm see the images of one pass: the first loss is another one."""
    losses = []
    for parts in (1, 4):
        recorder = Recorder()
        runs.run("simclr", tmp_path / str(parts), accumulate=parts, observers=[recorder], epochs=1, limit=32)
        losses.append(recorder.lines[0].loss)
    assert losses[0] - losses[1] > 1
    with pytest.raises(UsageError, match="accumulate: 1, now 4"):
        runs.run("simclr", tmp_path / "1", accumulate=4, epochs=1, limit=32)


def stopped_at(step, out, **changes):
    with pytest.raises(StoppedError):
        stop = Recorder(step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        runs.run("simclr", out, observers=[stop], **changes)
    return checkpoint_files(out / "checkpoints")


def test_a_damaged_checkpoint_is_passed_over_and_said(undisturbed, stopped, caplog):
    """The one before is continued from, and with keep=1 the damaged one does not displace those that follow."""
    before, newest = checkpoint_files(stopped / "checkpoints")
    damage(newest)
    caplog.set_level("INFO", logger="sslbench")
    assert [p.name for p in stopped_at(3, stopped, keep=1)] == ["step_000000003.ckpt"]
    assert f"{newest} is damaged" in caplog.text and f"continuing from {before} after update 2" in caplog.text
    outcome = runs.run("simclr", stopped)
    assert outcome.resumed_from == 3
    assert same(outcome.weights, undisturbed[0].weights)


def damage(path):
    """Flips one bit in the middle of the largest tensor: torch.load does not notice."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda part: part.file_size)
    content = bytearray(path.read_bytes())
    content[largest.header_offset + 200 + largest.file_size // 2] ^= 4
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)["step"]


@pytest.mark.parametrize(("method", "network"), [("dino", "teacher_backbone"), ("moco", "backbone")])
def test_a_checkpoint_is_a_weights_file_too(method, network, tmp_path):
    """It holds what the run would export, with the preprocessing of its views, and costs no room."""
    outcome = runs.run(method, tmp_path, limit=64, epochs=1, schedule={"lr": 1.0})
    path = newest_checkpoint(tmp_path / "checkpoints")
    loaded, exported = load_backbone(str(path)), load_backbone(str(outcome.weights))
    assert loaded.format == "sslbench_checkpoint" and loaded.name == exported.name
    assert loaded.weights_sha256 == exported.weights_sha256 and loaded.preprocessing == exported.preprocessing
    content = checkpoints.read(path)
    for name, tensor in content["state_dict"].items():
        assert tensor.data_ptr() == content["method"][f"{network}.{name}"].data_ptr()


def test_a_checkpoint_of_something_else_is_named(tmp_path):
    path = checkpoints.write(tmp_path, 1, {"heads": {"weight": torch.ones(2, 2)}}, keep=1)
    with pytest.raises(SslbenchError, match="is a training checkpoint of linear heads, not weights"):
        load_backbone(str(path))


def test_without_a_whole_checkpoint_the_run_stops(stopped):
    files = checkpoint_files(stopped / "checkpoints")
    for path in files:
        damage(path)
    kept = [p.read_bytes() for p in files]
    with pytest.raises(SslbenchError, match=r"every checkpoint in .* is damaged: step_000000004.ckpt, step_000000002"):
        runs.run("simclr", stopped)
    assert checkpoint_files(stopped / "checkpoints") == files and kept == [p.read_bytes() for p in files]


def test_an_earlier_checkpoint_is_continued_from(undisturbed, stopped):
    """What came after it stays under another name and is not continued from by the next call."""
    before, newest = checkpoint_files(stopped / "checkpoints")
    settings = runs.settings("simclr", keep=1)
    request = PretrainRequest(settings, "sklearn:digits", stopped, limit=48, resume=str(before))
    stop = Recorder(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StoppedError):
        pretrain(request, command="test", observers=[stop])
    assert [p.name for p in checkpoint_files(stopped / "checkpoints")] == ["step_000000003.ckpt"]
    assert newest.with_name(newest.name + ".set-aside").is_file()
    assert same(runs.run("simclr", stopped).weights, undisturbed[0].weights)


def write_images(folder, count, *, classes=2):
    for number in range(count):
        image = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        path = folder / f"class{number % classes}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def renamed(data):
    (data / "class0" / "000.png").rename(data / "class0" / "zzz.png")


def relabelled(data):
    """The images keep their names in the table."""
    path = data / "images.csv"
    path.write_text(path.read_text().replace("class0/000.png,class0", "class0/000.png,class1"))


CHANGES = {
    "more images": (lambda data: write_images(data, 48), r"images: 32, now 48"),
    "other images": (renamed, r"image_names: \w{16}, now \w{16}"),
    "more classes": (lambda data: (data / "class0").rename(data / "class9"), "labels: "),
    "other labels": (relabelled, r"weights: labels: \w{16}, now \w{16}\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_is_not_continued_on_changed_data(change, tmp_path):
    data, (act, message) = write_images(tmp_path / "data", 32), CHANGES[change]
    place = data
    if change == "other labels":
        rows = [p.relative_to(data) for p in sorted(data.rglob("*.png"))]
        place = data / "images.csv"
        place.write_text("path,label\n" + "".join(f"{row},{row.parent}\n" for row in rows))
    request = PretrainRequest(runs.settings("simclr", epochs=1, schedule={"lr": 1.0}), str(place), tmp_path / "out")
    pretrain(request, command="test")
    assert pretrain(request, command="test").resumed_from == 2
    act(data)
    with pytest.raises(UsageError, match=message) as refused:
        pretrain(request, command="test")
    assert "belongs to a run with other settings, data or weights" in str(refused.value)


def test_a_run_is_not_continued_from_other_initial_weights(undisturbed, tmp_path):
    settings = runs.settings("simclr", epochs=1, schedule={"lr": 1.0})

    def start(init):
        return pretrain(PretrainRequest(settings, "sklearn:digits", tmp_path / "out", init=init, limit=48), command="t")

    copied = tmp_path / "elsewhere.torch"
    copied.write_bytes(undisturbed[0].weights.read_bytes())
    start(str(undisturbed[0].weights))
    assert start(str(copied)).resumed_from == 3, "the same tensors in another file"
    save(copied, tensors(start(str(copied)).weights), backbone=runs.RESNET, metadata={}, overwrite=True)
    for other in (None, str(copied)):
        with pytest.raises(UsageError, match=r"init: [0-9a-f]{64}, now "):
            start(other)


@pytest.mark.parametrize("part", ["backbone", "method", "decoder"])
def test_a_run_is_not_continued_with_changed_code(part, tmp_path, monkeypatch, caplog):
    """Every tensor has the same name and shape, so that the checkpoint would load."""
    network = "nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())"
    codes = {
        "backbone": f"from torch import nn\ndef net():\n    return {network}\n",
        "method": "from sslbench.methods.simclr import Config, Method as Own\nclass Method(Own):\n    factor = 1\n",
        "decoder": "def read(path, file):\n    return None  # ReLU\n",
    }
    package = tmp_path / f"changed_{part}"
    package.mkdir()
    for name, code in codes.items():
        (package / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = runs.settings("simclr", epochs=1, schedule={"lr": 1.0})
    changes = {
        "backbone": {"backbone": f"changed_{part}.backbone:net"},
        "method": {"method": {**settings.method, "name": f"changed_{part}.method"}},
        "decoder": {"decoder": (f"changed_{part}.decoder.read",)},
    }
    settings = dataclasses.replace(settings, **changes[part])
    request = PretrainRequest(settings, str(write_images(tmp_path / "data", 32)), tmp_path / "out")
    first = pretrain(request, command="test")
    assert pretrain(request, command="test").resumed_from == first.steps

    file = package / f"{part}.py"
    file.write_text(file.read_text().replace("ReLU", "Tanh").replace("factor = 1", "factor = 2"))
    sys.modules.pop(f"changed_{part}.{part}")
    importlib.invalidate_caches()
    with pytest.raises(UsageError, match=r"code of your own backbone, method or decoder has changed since .*\.ckpt"):
        pretrain(request, command="test")
    newest = str(newest_checkpoint(tmp_path / "out" / "checkpoints"))
    named = pretrain(dataclasses.replace(request, resume=newest), command="test")
    assert named.resumed_from == first.steps
    assert "continuing with changed code" in caplog.text


def test_two_runs_in_one_folder_exclude_each_other(undisturbed, tmp_path, monkeypatch):
    """The second is told who has it; when the first is killed, the folder is free at once."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    started = kills.start("simclr", tmp_path / "out", workers=1, pause_after=5)
    monkeypatch.delenv("SLURM_JOB_ID")
    try:
        kills.wait_for_pause(started)
        (first,) = started
        message = rf"out/checkpoints is in use by another run: process {first.pid} on \S+, SLURM job 77, since \d{{4}}-"
        with pytest.raises(UsageError, match=message):
            runs.run("simclr", tmp_path / "out")
    finally:
        kills.kill(started)
    outcome = runs.run("simclr", tmp_path / "out")
    assert outcome.resumed_from == 4 and same(outcome.weights, undisturbed[0].weights)
    assert not [path for path in (tmp_path / "out").rglob("*") if ".part" in path.name]


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    save, calls = torch.save, []

    def full(content, file):
        calls.append(1)
        if len(calls) > 1:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        save(content, file)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(SslbenchError, match=r"No space left(.|\n)*last complete checkpoint is .*step_000000002"):
        runs.run("simclr", tmp_path)
    monkeypatch.undo()
    left = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert left == ["lock", "step_000000002.ckpt"]
    assert runs.run("simclr", tmp_path).resumed_from == 2


def test_a_loss_that_is_not_finite_stops_before_the_update_and_keeps_the_batch(tmp_path):
    with pytest.raises(NotFiniteError, match=r"the loss is nan in update(.|\n)*lower optimizer.lr"):
        runs.run("rotnet", tmp_path, optimizer={"name": "sgd", "lr": 1e25}, schedule={"lr": 1.0})
    kept = torch.load(next(tmp_path.glob("failed_batch_*.pt")), weights_only=True)
    assert kept["views"][0].shape == (16, 3, 32, 32) and len(kept["ids"]) == 16


def test_evaluation_beside_training(shared, tmp_path):
    recorder, photos = Recorder(), str(shared("photos") / "photos")
    outcome = runs.run("simclr", tmp_path, observers=[recorder], eval_data=photos, eval_every=2)
    assert [record["step"] for record in outcome.evaluations] == [0, 6, 9]
    assert all(0 < record["knn_top1"] <= 100 for record in recorder.records)
    assert all(record["rankme"] > 1 and record["alpha_req"] > 0 for record in recorder.records)
    assert not any("online_top1" in record for record in recorder.records)
    assert not (tmp_path / "evaluations" / "features").exists()


def test_network_and_online_head_learn_and_continue_bit_for_bit(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i in range(1597, 1797):
        path = tmp_path / "digits" / str(digits.target[i]) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i] * 255 / 16).astype(np.uint8)).save(path)
    options = {"eval_data": str(tmp_path / "digits"), "eval_every": 4, "eval_linear": True, "limit": 256, "epochs": 4}
    recorder = Recorder()
    whole = runs.run("supervised", tmp_path / "whole", save_every="52 updates", observers=[recorder], **options)
    assert recorder.lines[-1].loss < recorder.lines[0].loss
    first, last = (record["online_top1"] for record in whole.evaluations)
    assert first < 15 < last, "ten classes; other seeds end at 29 to 31"
    kills.leave_off(tmp_path / "whole", 52, tmp_path / "parts")
    again = runs.run("supervised", tmp_path / "parts", **options)
    assert again.resumed_from == 52 and again.evaluations == whole.evaluations[-1:]
    assert same(again.weights, whole.weights)
    heads = [
        checkpoints.read(newest_checkpoint(out / "checkpoints"))["online_head"]["classifier"]
        for out in (tmp_path / "whole", tmp_path / "parts")
    ]
    assert all(torch.equal(tensor, heads[1][name]) for name, tensor in heads[0].items())


REFUSED_HEADS = {
    "no evaluation": ({"eval_data": None}, "no effect without evaluation data"),
    "no labels": ({"data": "flat"}, "does not have one of at least two classes"),
    "other classes": ({"eval_data": "named"}, "class 'class0', which the training data do not have"),
    "sharded": ({"strategy": "fsdp"}, "needs the whole network on each process"),
    "never": ({"eval_every": 0}, "no effect with eval_every=0"),
    "patches": ({"augment": {"views": [runs.PIECES]}}, "all views are parts of a divided crop"),
}


@pytest.mark.parametrize("case", REFUSED_HEADS)
def test_an_online_head_that_cannot_be_is_refused(case, tmp_path):
    changes, message = REFUSED_HEADS[case]
    named = write_images(tmp_path / "named", 48)
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in named.rglob("*.png"):
        shutil.copy(path, flat)
    folders = {"named": str(named), "flat": str(flat)}
    values = {"data": "sklearn:digits", "eval_data": "sklearn:digits", **changes}
    data, eval_data = (
        folders.get(values.pop(name), changes.get(name, "sklearn:digits")) for name in ("data", "eval_data")
    )
    settings = runs.settings("jigsaw" if case == "patches" else "simclr", eval_linear=True, **values)
    request = PretrainRequest(settings, data, tmp_path / "out", eval_data=eval_data)
    with pytest.raises(UsageError, match=message):
        pretrain(request, command="test", evaluator=knn_evaluator(request))
    assert not (tmp_path / "out").exists()


def test_gradient_norms_are_those_of_the_parts(tmp_path):
    """By hand from the gradients that observers find after an update; clipping comes later."""

    class Norms(Recorder):
        def line(self, line):
            super().line(line)
            parts = {}
            for name, parameter in self.about.method.named_parameters():
                if parameter.grad is not None:
                    parts[name.split(".")[0]] = parts.get(name.split(".")[0], 0.0) + float(
                        parameter.grad.double().square().sum()
                    )
            self.expected = {name: square**0.5 for name, square in parts.items()}

    recorder = Norms()
    runs.run("byol", tmp_path / "a", observers=[recorder], limit=32, epochs=1, schedule={"lr": 1.0})
    assert recorder.lines[-1].gradient_norms == pytest.approx(recorder.expected, rel=1e-5)
    assert set(recorder.expected) == {"backbone", "projector", "predictor"}
    clipped = Recorder()
    changes = {"limit": 32, "epochs": 1, "schedule": {"lr": 1.0}, "clip_norm": 0.01}
    runs.run("byol", tmp_path / "b", observers=[clipped], **changes)
    for line in clipped.lines:
        assert sum(norm**2 for norm in line.gradient_norms.values()) ** 0.5 == pytest.approx(
            line.gradient_norm, rel=1e-5
        )


def test_the_callers_random_numbers_are_left_alone(tmp_path):
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    runs.run("simclr", tmp_path, limit=32, epochs=1, schedule={"lr": 1.0})
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_accumulated_passes_are_one_large_batch(tmp_path):
    """A ViT has no BatchNorm, and the loss is a mean over images."""
    outcomes = [
        runs.run("supervised", tmp_path / str(n), accumulate=n, backbone=runs.VIT, epochs=1, schedule={"lr": 1.0})
        for n in (1, 4)
    ]
    one, four = (tensors(outcome.weights) for outcome in outcomes)
    assert max(float((one[name] - four[name]).abs().max()) for name in one) < 1e-6


def test_freezing_the_moving_average_and_starting_from_weights(undisturbed, tmp_path):
    start = tensors(undisturbed[0].weights)
    request = runs.settings("simclr", freeze={"backbone.conv1": 100}, ema=0.9, epochs=1, schedule={"lr": 1.0})
    outcome = pretrain(
        PretrainRequest(request, "sklearn:digits", tmp_path, init=str(undisturbed[0].weights), limit=48), command="test"
    )
    after, average = tensors(outcome.weights), tensors(tmp_path / "weights_ema.torch")
    assert torch.equal(after["conv1.weight"], start["conv1.weight"])
    name = "layer4.0.conv2.weight"
    assert not torch.equal(after[name], start[name])
    between = (average[name] - start[name]).norm(), (after[name] - start[name]).norm()
    assert 0 < between[0] < between[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 512}, "96"),
        ({"batch_size": 15, "accumulate": 2}, "does not divide"),
        ({"epochs": 0}, "epochs should be above 0, not 0"),
        ({"save_every": "often"}, "is not an interval"),
        ({"export": "teacher"}, "no such network"),
        ({"backbone": "pixels"}, "no trainable parameters"),
        ({"backbone": "resnet51"}, "Did you mean"),
        ({"method": {"name": "simcrl"}}, "Did you mean 'simclr'"),
        ({"method": {"name": "simclr", "temprature": 1}}, "Did you mean 'temperature'"),
        ({"schedule": {"lr": 1.0, "warmup_epochs": 5}}, "does not fit into 3 epochs"),
        ({"device": "cuda"}, "cuda"),
        ({"save_every": "0 epochs"}, "is not an interval"),
        ({"clip_each": True}, "clips nothing without clip_norm"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(changes, message, tmp_path):
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(SslbenchError, match=message):
        pretrain(
            PretrainRequest(runs.settings("simclr", **changes), "sklearn:digits", tmp_path / "out", limit=96),
            command="test",
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "settings",
    [
        lambda clip: runs.settings("simclr", clip_norm=clip).check(),
        lambda clip: build(Finetune, {"clip_norm": clip}, "finetune"),
        lambda clip: check_recipe(DetectionRecipe(clip_gradients=clip)),
    ],
    ids=["pretraining", "finetune", "detection"],
)
def test_an_infinite_norm_clips_nothing_and_logs_the_norm(settings):
    settings(math.inf)
    with pytest.raises(UsageError, match="not -1"):
        settings(-1.0)


def test_groups_of_norms_have_to_be_equal_and_synchronised():
    grouped = runs.settings("simclr", batch_size=24, sync_bn=True, sync_bn_group=4)
    grouped.check(world=4)
    with pytest.raises(UsageError, match=r"sync_bn_group=4 does not divide 6 processes .*\nUse 2 or 3 or 6."):
        grouped.check(world=6)
    with pytest.raises(UsageError, match="sync_bn_group has no effect without sync_bn=true"):
        runs.settings("simclr", sync_bn=False, sync_bn_group=2).check()


def group_on_cpus(rank, out):
    with pytest.raises(UsageError, match="sync_bn_group=2: torch synchronises BatchNorm on GPUs only"):
        runs.run("simclr", out, sync_bn=True, sync_bn_group=2, device="cpu")


def test_groups_of_norms_are_refused_without_gpus(tmp_path):
    two_processes.run(group_on_cpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_images_of_a_limit_belong_to_the_run(tmp_path):
    def images(**changes):
        return prepare(PretrainRequest(runs.settings("simclr", **changes), "sklearn:digits", tmp_path, limit=96)).source

    first, second = (images(limit_skip=skip, limit_balanced=True) for skip in (0, 96))
    assert not set(first.ids) & set(second.ids) and set(np.bincount(first.target.values)) == {9, 10}
    # The seed of the images may stay while that of the run changes, and the other way round.
    assert images(limit_seed=0, seed=3).ids == images(seed=0).ids != images(seed=3).ids == images(limit_seed=3).ids
    with pytest.raises(UsageError, match="limit_skip has no effect without --limit"):
        PretrainRequest(runs.settings("simclr", limit_skip=0), "sklearn:digits", tmp_path).check()


def run_of_two(rank, out):
    return runs.run("swav", out, epochs=2, workers=1).steps


def test_two_processes_train_one_network(tmp_path):
    assert two_processes.run(run_of_two, tmp_path / "out") == [6, 6]
    content = checkpoints.read(newest_checkpoint(tmp_path / "out" / "checkpoints"))
    assert len(content["processes"]) == 2 and content["step"] == 6
    states = [process["random"]["torch"] for process in content["processes"]]
    assert not torch.equal(*states), "every process draws its own numbers"
    assert load_backbone(str(tmp_path / "out" / "weights.torch")).name == runs.RESNET
    # SwAV keeps a queue for each process; other methods continue, see test_pretraining_kill.py.
    with pytest.raises(UsageError, match="written by 2 processes, this run has 1"):
        runs.run("swav", tmp_path / "out", epochs=2)


@pytest.mark.parametrize("backbone", [runs.RESNET, runs.VIT])
def test_activations_computed_twice_change_nothing(backbone, tmp_path):
    """Statistics of BatchNorm, which the second pass must not count again, are among the tensors."""
    outcomes = [
        runs.run("rotnet", tmp_path / str(on), backbone=backbone, epochs=1, activation_checkpointing=on)
        for on in (False, True)
    ]
    assert same(*(outcome.weights for outcome in outcomes))


def test_init_is_loaded_strictly(undisturbed, tmp_path):
    def start(**request):
        pretrain(
            PretrainRequest(
                runs.settings("simclr", **changes), "sklearn:digits", tmp_path / "out", limit=96, **request
            ),
            command="test",
        )

    changes = {"backbone": "resnet18w0.25"}
    with pytest.raises(SslbenchError, match="shape"):
        start(init=str(undisturbed[0].weights))
    with pytest.raises(UsageError, match="need --init"):
        start(stem="average")
    assert not (tmp_path / "out").exists()


def test_position_embeddings_of_init_reach_mae(tmp_path):
    first = load_backbone("random", backbone=runs.VIT, seed=3)
    save(tmp_path / "init.torch", first.module.state_dict(), backbone=first.name, metadata={})
    settings = runs.settings("mae", epochs=1)
    request = PretrainRequest(settings, "sklearn:digits", tmp_path / "out", init=str(tmp_path / "init.torch"), limit=48)
    after = tensors(pretrain(request, command="test").weights)
    assert torch.equal(after["pos_embed"], first.module.pos_embed)
    assert not torch.equal(after["blocks.0.attn.qkv.weight"], first.module.blocks[0].attn.qkv.weight)


def test_residual_branches_begin_at_zero_and_the_weights_hold_the_plain_architecture(undisturbed, tmp_path):
    def conv(outcome):
        return tensors(outcome.weights)["layer1.0.bn2.weight"]

    backbone = f"{runs.RESNET},zero_init_residual=true"
    zero = runs.run("simclr", tmp_path / "zero", backbone=backbone, epochs=1, optimizer={"name": "sgd", "lr": 0.0})
    assert not conv(zero).any()
    assert load_backbone(str(zero.weights)).name == runs.RESNET
    config = (tmp_path / "zero" / "config.yaml").read_text()
    assert f"backbone: {backbone}" in config
    changes = {"backbone": backbone, "epochs": 1, "optimizer": {"name": "sgd", "lr": 0.0}}
    request = PretrainRequest(
        runs.settings("simclr", **changes), "sklearn:digits", tmp_path / "b", init=str(undisturbed[0].weights), limit=48
    )
    assert torch.equal(conv(pretrain(request, command="test")), conv(undisturbed[0])), "loaded weights stay"
    with pytest.raises(UsageError, match="zero_init_residual sets random initial weights"):
        load_backbone(str(zero.weights), backbone=backbone)


def test_supervised_training_writes_a_classifier_with_the_names_of_its_classes(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "owl"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for i in range(12):
            Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)).save(folder / f"{i}.png")
    settings = runs.settings("supervised", epochs=1, batch_size=8)
    pretrain(PretrainRequest(settings, data=str(tmp_path / "photos"), out=tmp_path / "run"), command="test")
    x = torch.randn(3, 3, 32, 32)
    for path in (tmp_path / "run" / "weights.torch", newest_checkpoint(tmp_path / "run" / "checkpoints")):
        file = files.read(path)
        backbone = load_file(file)
        classifier = read_classifier(file, backbone)
        assert classifier.info.classes == ("cat", "owl")
        heads = file.content["heads"]
        with torch.no_grad():
            wanted = functional.linear(backbone.module(x), heads["head.0.weight"], heads["head.0.bias"])
            torch.testing.assert_close(classifier.scores(backbone.module, x), wanted)
    sslbench.predict(path, tmp_path / "photos", tmp_path / "out.csv", run=RunSettings(device="cpu", workers=0))
    with (tmp_path / "out.csv").open(newline="") as file:
        assert {row["class"] for row in csv.DictReader(file)} <= {"cat", "owl"}
