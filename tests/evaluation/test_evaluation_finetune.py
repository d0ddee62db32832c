"""Finetuning from end to end: weights and data in; record, floors and a weights file with its classifier out."""

import dataclasses
import importlib
import os
import signal
import sys

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders
from helpers.two_processes import FORKS
from PIL import Image

from sslbench import evaluation
from sslbench.backbones.build import build
from sslbench.backbones.classifier import read_classifier
from sslbench.backbones.load import load_file
from sslbench.cli.main import main
from sslbench.data.decode.transforms import normalise
from sslbench.evaluation import RunSettings
from sslbench.results import records
from sslbench.train import checkpoints
from sslbench.weights.reading import files
from sslbench.weights.save import save

RUN = RunSettings(workers=0, batch_size=8)
SETTINGS = {"epochs": 3, "batch_size": 12, "lr": [0.5], "scale": [0.5, 1.0], "flip": 0.0}


@pytest.fixture
def photos(tmp_path):
    rng, colours = np.random.default_rng(0), {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}
    return class_folders(
        tmp_path / "photos", colours, lambda c: list(colours.values())[c] + rng.integers(-40, 36, (16, 16, 3))
    )


@pytest.fixture
def weights(tmp_path):
    backbone = build("resnet_basic_1-1-1-1w0.125", seed=3)
    return save(tmp_path / "w.torch", backbone.module.state_dict(), backbone=backbone.name, metadata={})


def run(photos, weights, settings=SETTINGS, *, out="results", **more):
    request = evaluation.Request(
        weights=str(weights),
        data=str(photos),
        tasks=(evaluation.make_task("finetune", settings),),
        preprocessing={"resize": 16, "crop": [16, 16]},
    )
    prepared = evaluation.prepare(request, dataclasses.replace(RUN, **more))
    return evaluation.evaluate(prepared, store=photos.parent / "store", out=photos.parent / out, command="test")


def test_another_code_of_an_own_optimizer_is_another_record(photos, weights, tmp_path, monkeypatch):
    (tmp_path / "of_mine").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for kind in ("NAdam", "RAdam", "NAdam"):
        definition = f"OPTIMIZER = OptimizerKind(torch.optim.{kind}, finetune_lr=0.001)\n"
        start = "import torch\nfrom sslbench.train.optimizers.optimizer import OptimizerKind\n"
        (tmp_path / "of_mine" / "mine.py").write_text(start + definition)
        importlib.invalidate_caches()
        for name in ("of_mine.mine", "of_mine"):
            sys.modules.pop(name, None)
        settings = SETTINGS | {"optimizer": "of_mine.mine", "epochs": 1}
        (result,) = run(photos, weights, settings, floors=False)
        found.append((result.id, result.protocol.code))
    assert found[0] == found[2] and found[0][0] != found[1][0] and "" != found[0][1] != found[1][1]


def test_an_own_optimizer_has_the_same_key_before_and_after_training(photos, weights, tmp_path, monkeypatch):
    code = "import torch\nclass Mine(torch.optim.SGD):\n    def step(self, closure=None):\n        super().step()\n"
    (tmp_path / "optimizer_of_mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (result,) = run(photos, weights, SETTINGS | {"optimizer": "optimizer_of_mine:Mine", "lr": 0.1}, floors=False)
    assert result.protocol.code and not list(result.file.parent.rglob("*.checkpoints"))


def test_the_record_has_intervals_and_floors_and_the_file_gives_its_scores(photos, weights):
    (result,) = run(photos, weights, baseline=True)
    assert set(result.floors) >= {"chance", "majority", "untrained"}
    assert result.metrics["top1"].low <= result.metrics["top1"].value <= result.metrics["top1"].high
    assert result.hardware.float32 == "ieee", "not cuDNN's default"
    assert result.weights_file == f"{result.file.stem}.weights.torch"
    assert not list(result.file.parent.glob("*untrained*.torch")), "of the evaluated network only"
    assert not list(result.file.parent.rglob("*.checkpoints"))
    file = files.read(result.file.parent / result.weights_file)
    backbone = load_file(file)
    classifier = read_classifier(file, backbone)
    assert classifier.info.classes == ("blue", "green", "red") and classifier.info.labels == "single"
    assert backbone.preprocessing.crop == (16, 16)
    scores = records.read_scores(result.file)
    paths = [photos / "val" / name for name in scores.ids]
    images = torch.stack([torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in paths])
    with torch.no_grad():
        own = classifier.scores(backbone.module, normalise(images, backbone.preprocessing))
    np.testing.assert_allclose(own, scores.scores, rtol=1e-4, atol=1e-4)
    assert file.content["metadata"]["record"] == result.id and file.content["metadata"]["init"] == str(weights)


def test_the_finetuned_file_is_a_weights_file_for_other_protocols(photos, weights):
    (result,) = run(photos, weights)
    again = run(photos, result.file.parent / result.weights_file, out="again", floors=False)
    assert again[0].weights.format == "sslbench" and again[0].weights.loaded == again[0].weights.total


def test_unreadable_images_are_left_out_and_counted(photos, weights):
    (photos / "train" / "red" / "3.png").write_bytes(b"no picture")
    (result,) = run(photos, weights, on_error="skip", floors=False)
    assert (result.data.train.n, result.data.train.n_used) == (36, 35)


def run_killed(environment, command):
    """Run a command that dies after the first checkpoint of the training that counts."""
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    write = checkpoints.write

    def write_and_die(folder, *given, **named):
        write(folder, *given, **named)
        if folder.name == "final":
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.write = write_and_die
    main(command)


def test_a_killed_command_continues_to_the_same_record(photos, weights):
    """kill -9 after the first checkpoint of the training that counts, then the same command."""
    torch.set_num_threads(1)
    words = ["finetune", "--weights", weights, "--data", photos, "--resize", "16", "--crop", "16", "--workers", "0"]
    values = ["epochs=3", "batch_size=12", "flip=0", "mixup=0.2", "cutmix=0.5", "lr=[0.05,0.2]", "--no-floors"]
    command = ["eval", *map(str, words), *values, "--out"]
    whole, killed = photos.parent / "whole", photos.parent / "killed"
    process = FORKS.Process(target=run_killed, args=(dict(os.environ), [*command, str(killed)]))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert list(killed.rglob("final/step_*.ckpt")) and not list(killed.glob("finetune/*.json"))
    for out in (whole, killed):
        with pytest.raises(SystemExit) as ended:
            main([*command, str(out)])
        assert ended.value.code == 0
    first, second = (next((out / "finetune").glob("*.weights.torch")) for out in (whole, killed))
    tensors = [files.read(path).content for path in (first, second)]
    for part in ("state_dict", "heads"):
        assert all(torch.equal(value, tensors[1][part][name]) for name, value in tensors[0][part].items())
