"""What a GPU computes beside what a CPU computes: `make bench-gpu` (`pytest -m gpu tests/gpu`), never `make test`."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import runs

from sslbench.arithmetic import arithmetic, float32_rounding
from sslbench.backbones import speed
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.cli.main import main
from sslbench.data.views import Blur, Jitter, Solarize, View, colours
from sslbench.data.views.colours import change_colours
from sslbench.results import records
from sslbench.train import observers
from sslbench.train.loop import NotFiniteError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

GPU = torch.device("cuda")
ON_DIGITS = "clustering geometry knn linear low-shot lsr retrieval robustness svm".split()
SHORT = {
    "finetune": ["epochs=1", "lr=[0.01]"],
    "linear-online": ["epochs=1"],
    "segmentation": ["steps=20", "warmup_steps=0"],
    "depth": ["steps=20", "warmup_steps=0"],
    "normals": ["steps=20", "warmup_steps=0"],
    "saliency": [],
    "edges": ["steps=20", "warmup_steps=0"],
    "low-level": ["steps=20", "warmup_steps=0"],
    "orientation": ["steps=20", "warmup_steps=0"],
    "relative-pose": [],
    "segmentation-knn": [],
    "correspondence": ["size=128"],
    "tracking": [],
    "discovery": [],
    "similarity": [],
}
RANDOM_ON_DEVICE = {"data2vec2", "dinov2", "lejepa", "npid", "pirl"}
"""Methods that draw paths, directions or negatives on their device: their losses on both differ by the draws."""
WAITS = {"npid", "pirl"}
"""Methods that look for images drawn twice, which the processor waits for."""


def command(capsys, *words):
    """Run a command, and return what it wrote to the error stream."""
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert exit_.value.code == 0, f"{out[-2000:]}\n{err[-4000:]}"
    return err


def only_record(folder):
    (file,) = [f for f in Path(folder).rglob("*.json") if f.name[0] != "." and "holes" not in f.name]
    return records.read(file)


@pytest.mark.parametrize("name", ["resnet18", "timm:vit_tiny_patch16_224"])
@pytest.mark.parametrize(("precision", "largest"), [("fp32", 2e-4), ("bf16", 5e-2)])
def test_features_are_those_of_the_cpu(name, precision, largest):
    backbone = load_backbone("random", backbone=name)
    layers = resolve_layers(backbone, (backbone.default_layer,))
    images = torch.rand(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    both = [
        speed.prepare(backbone, layers, device=device, precision=used)(images)[layers[0].text].float().cpu()
        for device, used in ((torch.device("cpu"), "fp32"), (GPU, precision))
    ]
    error = (both[1] - both[0]).norm(dim=1) / both[0].norm(dim=1)
    assert error.max() < largest, error


@pytest.mark.parametrize("old", [True, False], ids=["old interface", "new interface"])
def test_evaluations_are_exact_to_float32_whatever_was_chosen(old):
    conv, images = torch.nn.Conv2d(64, 64, 3).to(GPU), torch.rand(4, 64, 32, 32, device=GPU)
    with arithmetic("cpu"), torch.inference_mode():  # restores what the test changes
        exact = conv.double()(images.double())
        conv.float()
        torch.backends.cudnn.allow_tf32 = True
        if not old:
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        errors = []
        for tf32 in (False, True):
            with arithmetic(GPU, tf32=tf32):
                assert float32_rounding() == ("tf32" if tf32 else "ieee")
                errors.append(float((conv(images) - exact).abs().max() / exact.abs().max()))
    assert errors[0] < 1e-5 < errors[1], errors


@pytest.mark.parametrize("protocol", ON_DIGITS)
def test_a_protocol_on_features_scores_as_on_the_cpu(protocol, tmp_path, capsys, monkeypatch):
    values = {}
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / f"cache-{device}"))
        out = tmp_path / device
        words = ["eval", protocol, "--weights", "random", "--backbone", "resnet18w0.25", "--data", "sklearn:digits"]
        command(capsys, *words, "--resize", "64", "--crop", "none", "--device", device, "--no-floors", "--out", out)
        result = only_record(out)
        values[device] = result.metrics[result.headline].value
    assert abs(values["cuda"] - values["cpu"]) <= 0.3, values  # percentage points: a sample in 360


@pytest.mark.parametrize("protocol", SHORT)
def test_a_protocol_on_images_runs(protocol, tmp_path, capsys):
    words = ["eval", protocol, "--weights", "random", "--backbone", "resnet18w0.25", "--device", "cuda", "--no-floors"]
    words += ["--data", "sklearn:digits"] if protocol in ("finetune", "linear-online") else []
    command(capsys, *words, *SHORT[protocol], "--out", tmp_path / "out")
    result = only_record(tmp_path / "out")
    assert np.isfinite(result.metrics[result.headline].value) and result.hardware.float32 == "ieee"


@pytest.mark.parametrize("recipe", ["small", "small_retinanet", "small_fcos", "small_deformable_detr"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_detector_trains(recipe, precision, tmp_path, capsys):
    words = [
        "eval",
        "detection",
        "--benchmark",
        f"detection/{recipe}",
        "--weights",
        "random",
        "--backbone",
        "resnet18",
        "--device",
        "cuda",
    ]
    words += ["--limit-iters", "4", f"precision={precision}", "--out", tmp_path / "out"]
    command(capsys, *words)


@pytest.mark.parametrize("method", sorted(runs.METHODS))
def test_a_method_trains_as_on_the_cpu(method, tmp_path):
    losses = {}
    for device in ("cpu", "cuda"):
        lines = _losses(method, tmp_path / device, device=device, tf32=False, epochs=1)
        losses[device] = np.array(lines)
    assert np.isfinite(losses["cuda"]).all()
    if method not in RANDOM_ON_DEVICE:
        np.testing.assert_allclose(losses["cuda"][:2], losses["cpu"][:2], rtol=1e-3)


@pytest.mark.parametrize("method", ["simclr", "dino", "mae", "swav", "moco"])
@pytest.mark.parametrize(
    "changes", [{"precision": "auto"}, {"compile": True, "precision": "bf16"}], ids=["auto", "compiled"]
)
def test_a_method_trains_in_the_fast_ways(method, changes, tmp_path):
    assert np.isfinite(_losses(method, tmp_path, device="cuda", epochs=1, **changes)).all()


def _losses(method, out, **changes):
    """Train; return the loss of each update."""

    class Lines(observers.Observer):
        def __init__(self):
            self.losses = []

        def line(self, line):
            self.losses.append(line.loss)

    lines = Lines()
    runs.run(method, out, limit=96, observers=[lines], **changes)
    return lines.losses


def test_colours_of_views_on_the_gpu_are_those_on_the_cpu():
    """Equal to a level, and the processor waits for nothing."""
    view = View(jitter=Jitter(0.8, 0.8, 0.8, 0.8, 0.2), grayscale=0.2, blur=Blur(0.5), solarize=Solarize(0.2))
    torch.manual_seed(0)
    images = torch.randint(0, 256, (64, 3, 40, 40), dtype=torch.uint8).to(memory_format=torch.channels_last)
    values = torch.tensor([colours.draw_colours(view, colours.Uniform()) for _ in range(64)])
    expected, there = change_colours(images, values, view.order), images.to(GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = change_colours(there, values, view.order)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ((found.cpu() - expected).abs() > 1).float().mean() < 1e-3


def test_a_loss_that_is_not_finite_ends_a_run_on_a_gpu_too(tmp_path):
    with pytest.raises(NotFiniteError, match="the loss is nan in update"):
        runs.run("rotnet", tmp_path, device="cuda", optimizer={"name": "sgd", "lr": 1e25}, schedule={"lr": 1.0})
    assert next(tmp_path.glob("failed_batch_*.pt"))


@pytest.mark.parametrize("method", sorted(runs.METHODS))
def test_the_processor_does_not_wait_in_an_update(method, tmp_path):
    """Without a line of the log, no update waits for the device."""
    from sslbench.train import loop

    found = []
    original = loop._update

    def update(state, plan, step, *, parts):
        torch.cuda.set_sync_debug_mode("default")
        if step.index in (3, 4):
            torch.cuda.set_sync_debug_mode("warn")
        return original(state, plan, step, parts=parts)

    with warnings.catch_warnings(record=True) as caught, pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(loop, "_update", update)
        changes = {"limit": 96, "log_every": 100, "save_every": "100 updates", "epochs": 1, "precision": "bf16"}
        runs.run(method, tmp_path, device="cuda", **changes)
    torch.cuda.set_sync_debug_mode("default")
    found = sorted(
        {
            f"{w.filename}:{w.lineno}"
            for w in caught
            if "synchronizing" in str(w.message) and "torch/cuda/" not in w.filename
        }
    )
    print(method, found)
    assert not found or method in WAITS, found
