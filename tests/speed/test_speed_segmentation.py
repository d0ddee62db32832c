"""What an update of a linear head on maps costs beside a bare PyTorch step on the same crops: `make bench`."""

import statistics
import time

import pytest
import torch
from torch.nn import functional

from sslbench.backbones.build import build
from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.layers import resolve_layers
from sslbench.data.decode.transforms import normalise
from sslbench.errors import DataError
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.heads import MapEncoder, head_inputs, make_heads
from sslbench.protocols._parts.dense.training import Training, _HeadTraining
from sslbench.protocols.segmentation import Segmentation, Settings
from sslbench.solvers.upsampling import upsampled_classes
from sslbench.train.loop import RateSchedules, TrainingPlan, train

pytestmark = pytest.mark.speed

SIDE, BATCH, UPDATES, ROUNDS, CLASSES = 128, 8, 4, 5, 21


def crops():
    generator = torch.Generator().manual_seed(0)
    for _ in range(UPDATES):
        images = torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, CLASSES, (BATCH, 1, SIDE // 16, SIDE // 16), generator=generator).float()
        yield images, functional.interpolate(labels, (SIDE, SIDE))


def bare_seconds(batches):
    """The step as one would write it by hand."""
    network = build("resnet18", seed=0).module.eval().requires_grad_(False).to(memory_format=torch.channels_last)
    found = {}
    network.layer4.register_forward_hook(lambda module, inputs, output: found.update(map=output))
    head = torch.nn.Sequential(torch.nn.BatchNorm2d(512), torch.nn.Conv2d(512, CLASSES, 1)).train()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    began = time.process_time()
    for images, targets in batches:
        pixels = images.float().div_(255).sub_(mean[:, None, None]).div_(std[:, None, None])
        with torch.no_grad():
            network(pixels.to(memory_format=torch.channels_last))
        logits = functional.interpolate(head(found["map"]), (SIDE, SIDE), mode="bilinear", align_corners=False)
        loss = functional.cross_entropy(logits, targets[:, 0].long(), ignore_index=-1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    return time.process_time() - began


def own_seconds(batches, folder):
    backbone, settings = build("resnet18", seed=0), Settings(lr=(1e-3,))
    inputs, maps = head_inputs(backbone, resolve_layers(backbone, ["res5"]), settings, protocol="segmentation")
    encode = MapEncoder(DenseEncoder(backbone, maps), 3, pixels=False)
    heads = make_heads(inputs, encode, CLASSES, settings, seed=0)
    plan = Training(UPDATES, 0, Preprocessing(), folder, 0, lambda: DataError("unreadable"))
    run = _HeadTraining(heads, encode, Segmentation(settings, tuple(map(str, range(CLASSES)))), settings, plan)
    run.save = lambda: None
    steps = TrainingPlan(UPDATES, UPDATES, RateSchedules(lambda where: 1.0, 1.0), log_every=0)
    began = time.process_time()
    encoded = ((encode(normalise(images, plan.preprocessing)), targets) for images, targets in batches)
    train(run.state, steps, encoded, run, lambda: 0)
    return time.process_time() - began


def test_an_update_of_a_head_costs_a_bare_step(tmp_path):
    batches, ratios = list(crops()), []
    for _ in range(ROUNDS):
        bare = bare_seconds(batches)
        ratios.append(own_seconds(batches, tmp_path) / bare)
    print(f"\nupdate of a linear head: {statistics.median(ratios):.2f} of a bare step ({1000 * bare / UPDATES:.0f} ms)")


def test_classes_of_a_map_against_interpolating_all_of_them():
    """150 classes on 32 x 32 patches at 512 x 683 pixels: shares of nearest patches, and logits."""
    generator = torch.Generator().manual_seed(0)
    coarse = functional.interpolate(torch.randn((1, 150, 6, 6), generator=generator), (32, 32), mode="bicubic")[0]
    for name, scores in (("shares", (8 * coarse).softmax(dim=0)), ("logits", coarse)):
        quick, plain = [], []
        for _ in range(ROUNDS):
            began = time.process_time()
            found = upsampled_classes(scores, (512, 683))
            quick.append(time.process_time() - began)
            large = functional.interpolate(scores[None], (512, 683), mode="bilinear", align_corners=False)[0]
            expected = large.argmax(dim=0)
            plain.append(time.process_time() - began - quick[-1])
            assert (found == expected).float().mean() > 1 - 1e-4  # rounding of equal scores
        ratio = statistics.median(quick) / statistics.median(plain)
        print(f"\nclasses of a map by {name}: {ratio:.2f} of interpolating all classes ({1000 * min(plain):.0f} ms)")
