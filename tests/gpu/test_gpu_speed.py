"""Speeds on a GPU beside what one would write by hand: `make bench-gpu`; the figures print with their ratios."""

import os
import time

import numpy as np
import pytest
import torch
from helpers import simclr_updates
from PIL import Image

from sslbench.backbones import speed
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.data.decode.transforms import normalise
from sslbench.data.images import Files
from sslbench.data.source import Source
from sslbench.data.views import Blur, Jitter, View, colours
from sslbench.data.views.colours import change_colours
from sslbench.features.array import ExtractSettings, Features
from sslbench.features.extract import extract
from sslbench.protocols import knn, linear
from sslbench.targets.classes import Classes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

GPU = torch.device("cuda")
BATCH, SIZE, UPDATES = 256, 224, 12
CASE = simclr_updates.Case("resnet50", 2048, 2048, SIZE, BATCH, "cuda", "bf16")
ROWS = int(os.environ.get("SSLBENCH_GPU_ROWS", "1281167"))
"""Rows of train of the solvers' test: ImageNet's."""


def seconds_of(action, repeats=3):
    """Return the fewest seconds of an action, with all that it queued."""
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        action()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found)


@pytest.mark.parametrize("name", ["resnet50", "timm:vit_base_patch16_224"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_encoding_beside_the_bare_network(name, precision):
    """Uint8 images on the GPU to features; the bare network gets normalised images in its precision and layout."""
    torch.backends.cudnn.allow_tf32 = False  # features are exact to float32
    backbone = load_backbone("random", backbone=name)
    layers = resolve_layers(backbone, (backbone.default_layer,))
    encode = speed.prepare(backbone, layers, device=GPU, precision=precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    bare = backbone.module.to(GPU, dtype, memory_format=torch.channels_last).eval()
    images = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8, device=GPU)
    images = images.to(memory_format=torch.channels_last)
    ready = normalise(images, backbone.preprocessing, dtype, torch.channels_last)
    preprocessing = backbone.preprocessing

    def ours():
        for _ in range(10):
            encode(normalise(images, preprocessing, dtype, torch.channels_last))

    @torch.inference_mode()
    def by_hand():
        for _ in range(10):
            bare(ready)

    ours(), by_hand()
    mine, theirs = seconds_of(ours), seconds_of(by_hand)
    print(
        f"\n{name} {precision}: {10 * BATCH / mine:.0f} images/s, bare {10 * BATCH / theirs:.0f}: {theirs / mine:.2f}",
        flush=True,
    )
    assert theirs / mine > 0.8


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """4,096 photograph-like JPEGs of 500 x 375, made from 64 pictures."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i in range(64):
        smooth = Image.fromarray(rng.integers(0, 255, (16, 20, 3), dtype=np.uint8)).resize((500, 375), 3)
        pixels = np.asarray(smooth) + rng.normal(0, 8, (375, 500, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i:04d}.jpg", quality=90)
    for i in range(64, 4096):
        (folder / f"{i:04d}.jpg").write_bytes((folder / f"{i % 64:04d}.jpg").read_bytes())
    return folder


def test_extraction_from_jpegs(photos, tmp_path):
    """From files to stored features; the processor's cores decode, and should keep the GPU busy if there are enough."""
    backbone = load_backbone("random", backbone="resnet50")
    layers = resolve_layers(backbone, (backbone.default_layer,))
    files = tuple(sorted(photos.glob("*.jpg")))
    labels = Classes(("a", "b"), np.arange(len(files)) % 2)
    source = Source("photos", tuple(file.name for file in files), labels, Files(files))
    cores = len(os.sched_getaffinity(0))
    settings = ExtractSettings(device=GPU, precision="bf16", batch_size=256, workers=cores)
    began = time.perf_counter()
    found = extract(backbone, source, layers, settings, root=tmp_path, split="all")
    seconds = time.perf_counter() - began
    print(
        f"\nextraction, ResNet-50 bf16, {cores} cores: {len(files) / seconds:.0f} images/s, start included", flush=True
    )
    assert len(next(iter(found.features.values())).x) == len(files)


def test_an_update_beside_a_bare_one():
    torch.backends.cudnn.benchmark = True
    batches = CASE.batches(1) * UPDATES
    seconds = {}
    by_hand, ours = simclr_updates.by_hand(CASE, batches), simclr_updates.by_the_loop(CASE, batches)
    for name, action in (("bare", by_hand), ("ours", ours)):
        action()
        seconds[name] = seconds_of(action) / UPDATES
    compiled = simclr_updates.by_the_loop(CASE, batches, compiled=True)
    compiled()
    seconds["compiled"] = seconds_of(compiled) / UPDATES
    print(
        f"\nSimCLR update, ResNet-50 bf16, 2 x {BATCH} x {SIZE} px: bare {1000 * seconds['bare']:.1f} ms, loop "
        f"{1000 * seconds['ours']:.1f} ms, compiled {1000 * seconds['compiled']:.1f} ms; "
        f"{BATCH / seconds['ours']:.0f} images/s",
        flush=True,
    )
    assert seconds["ours"] < 1.15 * seconds["bare"]


def test_colours_of_views_on_the_gpu():
    """Colours of the two views of SimCLR; an update takes about 100 ms."""
    view = View(jitter=Jitter(0.8, 0.8, 0.8, 0.8, 0.2), grayscale=0.2, blur=Blur(0.5))
    (raw,) = CASE.batches(1)
    images = [view.to(GPU) for view in raw.views]
    values = [torch.tensor([colours.draw_colours(view, colours.Uniform()) for _ in range(BATCH)]) for _ in images]

    def change():
        for each in zip(images, values, strict=True):
            change_colours(*each, view.order)

    change()
    print(f"\ncolours of 2 x {BATCH} views of {SIZE} px: {1000 * seconds_of(change):.1f} ms", flush=True)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Features of ImageNet's shape, with classes that a linear probe separates in part."""
    generator = torch.Generator(GPU).manual_seed(0)
    means = torch.randn(1000, 2048, generator=generator, device=GPU)
    spread = torch.logspace(0, -2, 2048, device=GPU)  # as of real features, few directions have most of the variance

    def part(rows, name):
        file = tmp_path_factory.mktemp("features") / f"{name}.npy"
        x = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(rows, 2048))
        labels = np.empty(rows, np.int64)
        for start in range(0, rows, 65_536):
            count = min(65_536, rows - start)
            own = torch.randint(1000, (count,), generator=generator, device=GPU)
            noise = torch.randn(count, 2048, generator=generator, device=GPU)
            values = ((0.25 * means[own] + noise) * spread).relu_()
            x[start : start + count] = values.cpu().numpy()
            labels[start : start + count] = own.cpu().numpy()
        ids = tuple(map(str, range(rows)))
        return Features(x, Classes(tuple(f"{c:04d}" for c in range(1000)), labels), ids)

    return part(ROWS, "train"), part(50_000, "test")


def test_knn_at_the_size_of_imagenet(features):
    began = time.perf_counter()
    outcome = knn.run(*features, knn.Settings(k=(20,)), seed=0, device="cuda")
    seconds = time.perf_counter() - began
    queries, x = torch.randn(5000, 2048, device=GPU), torch.randn(100_000, 2048, device=GPU)
    bare = seconds_of(lambda: (queries @ x.T).topk(20)) * (ROWS / 100_000) * 10
    value = 100 * outcome.metrics[outcome.headline][0]
    print(f"\nknn, {ROWS:,} x 2,048, 50,000 queries: {seconds:.0f} s ({value:.2f} %); bare {bare:.1f} s", flush=True)
    assert value > 1, "ten times chance"


def test_the_linear_probe_at_the_size_of_imagenet(features):
    began = time.perf_counter()
    outcome = linear.run(*features, linear.Settings(), seed=0, device="cuda")
    seconds = time.perf_counter() - began
    print(
        f"\nlinear, {ROWS:,} x 2,048 x 1,000: {seconds:.0f} s with {outcome.selected['tried']} strengths of c, "
        f"top1 {100 * outcome.metrics['top1'][0]:.2f}, gap {outcome.selected['gap']:.1e}, "
        f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GB of the GPU",
        flush=True,
    )
    assert outcome.converged
