"""A run as a user sees it: what lies in the folder, how it stops, how it goes on, what it refuses."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runs
import torch
import yaml

from sslbench.backbones.load import load_backbone
from sslbench.errors import SslbenchError, UsageError
from sslbench.pretraining import PretrainRequest, pretrain
from sslbench.train import checkpoints
from sslbench.train.loop import NotFiniteError, StoppedError
from sslbench.weights.save import save


class Recorder:
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
    assert sorted(p.name for p in out.iterdir()) == ["checkpoints", "config.yaml", "weights.torch"]
    assert len(checkpoints.files(out / "checkpoints")) == 2
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["method"]["name"] == "simclr" and config["batch_size"] == 16
    assert outcome.steps == 18 and [line.step for line in recorder.lines] == list(range(1, 19))
    assert recorder.lines[-1].loss < recorder.lines[0].loss


def test_the_log_says_what_happened(undisturbed):
    _, recorder = undisturbed
    rates = [line.lr for line in recorder.lines]
    assert (
        rates[0] == 0 and max(rates) == pytest.approx(0.05 * 16 / 256) and rates.index(max(rates)) == 6
    )  # warm-up, one epoch
    assert all(line.images_per_second > 0 and 0 <= line.waiting <= 1 for line in recorder.lines)
    assert all(line.spread.effective_rank > 1 for line in recorder.lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_and_stops_and_the_same_call_goes_on(number, undisturbed, tmp_path):
    interrupted = Recorder(5, lambda: os.kill(os.getpid(), number))
    with pytest.raises(StoppedError, match="after update 5 of 18; everything is saved") as stopped:
        runs.run("simclr", tmp_path / "out", observers=[interrupted])
    assert stopped.value.exit_code == 128 + number
    again = Recorder()
    outcome = runs.run("simclr", tmp_path / "out", observers=[again])
    assert outcome.resumed_from == 5 and again.about.start == 5
    assert [line.step for line in again.lines] == list(range(6, 19))
    assert same(outcome.weights, undisturbed[0].weights)


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
    assert outcome.resumed_from == 18 and outcome.last is None
    assert same(outcome.weights, undisturbed[0].weights) and len(before) == outcome.weights.stat().st_size


def test_other_settings_do_not_continue_a_run(undisturbed):
    out = undisturbed[0].weights.parent
    with pytest.raises(UsageError, match="batch_size: 16, now 32"):
        runs.run("simclr", out, batch_size=32)
    with pytest.raises(UsageError, match="checkpoint of the method simclr, this run is byol"):
        runs.run("byol", out)
    with pytest.raises(UsageError, match=r"backbone: resnet18w0\.125, now resnet18w0\.25"):
        runs.run("simclr", out, backbone="resnet18w0.25")


def test_what_changes_no_number_may_change(undisturbed, tmp_path):
    stop = Recorder(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StoppedError):
        runs.run("simclr", tmp_path, observers=[stop])
    outcome = runs.run("simclr", tmp_path, workers=2, log_every=3, keep=1, save_every="1 epoch")
    assert same(outcome.weights, undisturbed[0].weights)
    assert len(checkpoints.files(tmp_path / "checkpoints")) == 1


def test_a_damaged_checkpoint_is_named(tmp_path):
    stop = Recorder(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StoppedError):
        runs.run("simclr", tmp_path, observers=[stop])
    newest = checkpoints.newest(tmp_path / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.raises(SslbenchError, match=f"{newest.name} cannot be read as a checkpoint"):
        runs.run("simclr", tmp_path)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    save, calls = torch.save, []

    def full(content, file):
        calls.append(1)
        if len(calls) > 1:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        save(content, file)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(SslbenchError, match=r"No space left(.|\n)*last whole checkpoint is .*step_000000002"):
        runs.run("simclr", tmp_path)
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_000000002.ckpt"]
    assert runs.run("simclr", tmp_path).resumed_from == 2


def test_a_loss_that_is_not_finite_stops_before_the_update_and_keeps_the_batch(tmp_path):
    with pytest.raises(NotFiniteError, match=r"the loss is nan in update(.|\n)*lower optimizer.lr"):
        runs.run("rotnet", tmp_path, optimizer={"name": "sgd", "lr": 1e25}, schedule={"lr": 1.0})
    kept = torch.load(next(tmp_path.glob("failed_batch_*.pt")), weights_only=True)
    assert kept["views"][0].shape == (16, 3, 32, 32) and len(kept["ids"]) == 16


def test_evaluation_beside_training(tmp_path):
    recorder = Recorder()
    outcome = runs.run("simclr", tmp_path, observers=[recorder], eval_data="sklearn:digits", eval_every=2)
    assert [record["step"] for record in outcome.evaluations] == [0, 12, 18]
    assert all(0 < record["knn_top1"] <= 100 for record in recorder.records)
    assert not (tmp_path / "evaluations" / "features").exists()


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
        PretrainRequest(request, "sklearn:digits", tmp_path, init=str(undisturbed[0].weights), limit=96), command="test"
    )
    after, average = tensors(outcome.weights), tensors(tmp_path / "weights_ema.torch")
    assert torch.equal(after["conv1.weight"], start["conv1.weight"])
    name = "layer4.1.conv2.weight"
    assert not torch.equal(after[name], start[name])
    between = (average[name] - start[name]).norm(), (after[name] - start[name]).norm()
    assert 0 < between[0] < between[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 512}, "96"),
        ({"batch_size": 15, "accumulate": 2}, "does not divide"),
        ({"epochs": 0}, "epochs 0 must be positive"),
        ({"save_every": "often"}, "is no interval"),
        ({"export": "teacher"}, "no such network"),
        ({"backbone": "pixels"}, "nothing to train"),
        ({"backbone": "resnet51"}, "Did you mean"),
        ({"method": {"name": "simcrl"}}, "Did you mean 'simclr'"),
        ({"method": {"name": "simclr", "temprature": 1}}, "Did you mean 'temperature'"),
        ({"schedule": {"lr": 1.0, "warmup_epochs": 5}}, "does not fit into 3 epochs"),
        ({"device": "cuda"}, "cuda"),
        ({"save_every": "0 epochs"}, "is no interval"),
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


def test_two_processes_train_one_network(tmp_path):
    script = str(Path(__file__).with_name("runs.py"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [*launcher, script, "simclr", str(tmp_path / "out"), "--workers", "1"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    content = checkpoints.read(checkpoints.newest(tmp_path / "out" / "checkpoints"))
    assert len(content["processes"]) == 2 and content["step"] == 18
    states = [process["random"]["torch"] for process in content["processes"]]
    assert not torch.equal(*states), "every process draws its own numbers"
    assert load_backbone(str(tmp_path / "out" / "weights.torch")).name == runs.RESNET
    with pytest.raises(UsageError, match="written by 2 processes, this run has 1"):
        runs.run("simclr", tmp_path / "out")


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
    with pytest.raises(UsageError, match="there is no --init"):
        start(stem="average")
    assert not (tmp_path / "out").exists()


def test_position_embeddings_of_init_reach_mae(tmp_path):
    first = load_backbone("random", backbone=runs.VIT, seed=3)
    save(tmp_path / "init.torch", first.module.state_dict(), backbone=first.name, metadata={})
    settings = runs.settings("mae", epochs=1)
    request = PretrainRequest(settings, "sklearn:digits", tmp_path / "out", init=str(tmp_path / "init.torch"), limit=96)
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
        runs.settings("simclr", **changes), "sklearn:digits", tmp_path / "b", init=str(undisturbed[0].weights), limit=96
    )
    assert torch.equal(conv(pretrain(request, command="test")), conv(undisturbed[0])), "loaded weights stay"
    with pytest.raises(UsageError, match="zero_init_residual says how random weights begin"):
        load_backbone(str(zero.weights), backbone=backbone)
