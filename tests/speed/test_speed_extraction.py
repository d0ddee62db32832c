"""Extraction against the bare torchvision model, a warm run, the size of the store, and memory: `make bench`.

Each figure is a ratio of two things measured alternately in this process, with the same threads.
"""

import dataclasses
import time

import numpy as np
import psutil
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torchvision
from helpers.timing import write_photographs
from PIL import Image

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.speed import prepare
from sslbench.data.decode.transforms import normalise
from sslbench.data.images import Arrays, Files
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.evaluation import RunSettings
from sslbench.evaluation.preparation import extract_settings
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes

pytestmark = pytest.mark.speed

BATCH = 32
REPEATS = 3
# Enough that what is paid once (folding, hashing the weights: about 0.2 s) weighs little, as it does in real use.
IMAGES = {"resnet18": 768, "resnet50": 96}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photograph-like JPEGs (smooth, with some texture), 256 pixels on the shorter side, quality 90."""
    return write_photographs(tmp_path_factory.mktemp("photos"), max(IMAGES.values()), 320, 256)[0].parent


def source_of(folder, n):
    files = sorted(folder.glob("*.jpg"))[:n]
    labels = Classes(("a", "b"), np.arange(len(files)) % 2)
    return Source("photos", tuple(f.name for f in files), labels, Files(tuple(files)))


def bare_rate(model, images):
    """Images per second of the model alone: fp32, NCHW, images in memory already."""
    with torch.inference_mode():
        started = time.perf_counter()
        for batch in images.split(BATCH):
            model(batch)
    return len(images) / (time.perf_counter() - started)


def extraction_rate(backbone, source, root, precision, workers):
    settings = ExtractSettings(torch.device("cpu"), precision, batch_size=BATCH, workers=workers)
    found = extract(backbone, source, resolve_layers(backbone, ()), settings, root=root, split="all")
    assert found.decoded == len(source)
    return found.decoded / found.seconds, found


@pytest.mark.parametrize("name", IMAGES)
def test_extraction_from_jpegs_against_the_bare_model(name, photos, tmp_path):
    torch.manual_seed(0)
    bare = getattr(torchvision.models, name)().eval()
    bare.fc = torch.nn.Identity()
    backbone = build(name)
    backbone.module.load_state_dict(bare.state_dict())
    n = IMAGES[name]
    source = source_of(photos, n)
    batches = list(loader.batches(source, np.arange(n), backbone.preprocessing, batch_size=BATCH, workers=0))
    pixels = torch.cat([b.images for b in batches]).float() / 255
    mean, std = (torch.tensor(v)[:, None, None] for v in (backbone.preprocessing.mean, backbone.preprocessing.std))
    images = ((pixels - mean) / std).contiguous()
    workers = extract_settings(RunSettings(device="cpu")).workers
    bare_rate(bare, images[:BATCH])
    rates = {"bare": [], "fp32": [], "bf16": []}
    for i in range(REPEATS):
        rates["bare"].append(bare_rate(bare, images))
        for precision in ("fp32", "bf16"):
            rate, found = extraction_rate(backbone, source, tmp_path / f"{precision}{i}", precision, workers)
            rates[precision].append(rate)
            if precision == "fp32":
                features = found.features["res5avg"].x
    best = {key: max(values) for key, values in rates.items()}
    with torch.inference_mode():
        expected = torch.cat([bare(batch) for batch in images.split(BATCH)]).numpy()
    error = np.abs(features - expected).max() / np.abs(expected).max()
    size = found.entry.layer_file("res5avg").stat().st_size / found.features["res5avg"].x.nbytes
    print(
        f"\n{name}, {torch.get_num_threads()} threads, {workers} decoding processes: "
        f"bare model {best['bare']:.1f} images/s; extraction from JPEG "
        f"fp32 {best['fp32']:.1f} (x{best['fp32'] / best['bare']:.2f}, aim 1.4), "
        f"bf16 {best['bf16']:.1f} (x{best['bf16'] / best['bare']:.2f}, aim 2.5); "
        f"largest relative difference {error:.1e}; file / features {size:.3f}"
    )
    assert error < 1e-4
    assert size < 1.1
    assert best["fp32"] > best["bare"], "decoding included, extraction should still beat the bare forward pass"


def test_maps_of_patches_cost_little_more_than_their_forward_passes(photos, tmp_path):
    """Maps of 14 x 14 cells, decoded, encoded and stored; the same forward passes run on images in memory already.

    Processor time of one process that decodes its images itself, so that nothing is hidden on another core.
    """
    backbone, n = build("resnet18"), max(IMAGES.values())
    source, layers = source_of(photos, n), resolve_layers(backbone, ("res4:grid(14,14)",))
    encode = prepare(backbone, layers, device=torch.device("cpu"))
    own = loader.batches(source, np.arange(n), backbone.preprocessing, batch_size=BATCH, workers=0)
    images = [normalise(batch.images, backbone.preprocessing) for batch in own]
    settings = ExtractSettings(torch.device("cpu"), batch_size=BATCH, workers=0)
    forward, whole = [], []
    for i in range(REPEATS):
        started = time.process_time()
        for batch in images:
            encode(batch)
        forward.append(time.process_time() - started)
        started = time.process_time()
        found = extract(backbone, source, layers, settings, root=tmp_path / str(i), split="all")
        whole.append(time.process_time() - started)
    values = found.features["res4:grid(14,14)"].x
    ratio = min(whole) / min(forward)
    print(f"\n{n} maps of 14 x 14 x 256: forward passes {min(forward):.2f} s, from JPEG x{ratio:.2f} (aim: under 1.1)")
    assert values.shape == (n, 14 * 14 * 256)


def test_three_scales_cost_little_more_than_their_forward_passes(photos, tmp_path):
    """Each image is decoded once; what one would write instead runs on images in memory already."""
    backbone = dataclasses.replace(
        build("resnet50"), preprocessing=Preprocessing(resize=256, crop=None, scales=(1.0, 2**-0.5, 0.5))
    )
    source, layers = source_of(photos, 24), resolve_layers(backbone, ("res5:gem(3)",))
    encode = prepare(backbone, layers, device=torch.device("cpu"))
    one_scale = dataclasses.replace(encode, scales=(1.0,))
    own = loader.batches(source, np.arange(24), backbone.preprocessing, batch_size=8, workers=0)
    images = [normalise(batch.images, backbone.preprocessing) for batch in own]
    scaled = [
        [batch if s == 1 else F.interpolate(batch, scale_factor=s, mode="bilinear") for batch in images]
        for s in backbone.preprocessing.scales
    ]
    workers = extract_settings(RunSettings(device="cpu")).workers
    settings = ExtractSettings(torch.device("cpu"), batch_size=8, workers=workers)
    forward, whole = [], []
    for i in range(REPEATS):
        started = time.perf_counter()
        for batches in scaled:
            for batch in batches:
                one_scale(batch)
        forward.append(time.perf_counter() - started)
        found = extract(backbone, source, layers, settings, root=tmp_path / str(i), split="all")
        whole.append(found.seconds)
    ratio = min(whole) / min(forward)
    print(f"\n24 images x 3 scales: forward passes {min(forward):.2f} s, from JPEG x{ratio:.2f} (aim: under 1.15)")
    assert found.decoded == 24


def test_a_warm_run_of_4000_images(tmp_path):
    """Nothing is decoded, and what is left (stat of every file, reading the index) takes a moment."""
    folder = tmp_path / "small"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(4000):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i:04d}.jpg")
    backbone = dataclasses.replace(build("resnet18w0.25"), preprocessing=Preprocessing((8, 8), None))
    settings = ExtractSettings(torch.device("cpu"), batch_size=256, workers=0)
    layers = resolve_layers(backbone, ())
    cold = time.perf_counter()
    extract(backbone, source_of(folder, 4000), layers, settings, root=tmp_path / "store", split="all")
    cold = time.perf_counter() - cold
    warm = time.perf_counter()
    found = extract(backbone, source_of(folder, 4000), layers, settings, root=tmp_path / "store", split="all")
    warm = time.perf_counter() - warm
    print(f"\n4000 images: cold {cold:.2f} s, warm {warm:.2f} s (aim: under 2 s), x{cold / warm:.0f}")
    assert found.decoded == 0
    assert warm < cold


def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    """Peak memory while 2,000 and while 20,000 synthetic images are encoded, features on disk."""
    backbone = dataclasses.replace(build("resnet18w0.25"), preprocessing=Preprocessing((16, 16), None))
    settings = ExtractSettings(torch.device("cpu"), batch_size=64, workers=0)
    peaks = {}
    pixels = np.random.default_rng(0).integers(0, 255, (20000, 16, 16, 3), dtype=np.uint8)
    process = psutil.Process()
    for n in (500, 2000, 20000):
        labels = Classes(("a", "b"), np.arange(n) % 2)
        source = Source("synthetic", tuple(f"{i:06d}" for i in range(n)), labels, Arrays(pixels[:n], "synthetic"))
        seen = []
        extract(
            backbone,
            source,
            resolve_layers(backbone, ("res2:flatten",)),
            settings,
            root=tmp_path / str(n),
            split="all",
            progress=lambda done, total, seen=seen: seen.append(anonymous(process)),
        )
        peaks[n] = max(seen) / 2**20
    print(f"\nmemory while encoding: {peaks[2000]:.0f} MiB at 2,000 images, {peaks[20000]:.0f} MiB at 20,000")
    assert peaks[20000] - peaks[2000] < 30


def anonymous(process):
    """Bytes of memory that are the process's own: pages of the memory-mapped features can be dropped at any time."""
    info = process.memory_full_info()
    return info.rss - getattr(info, "shared", 0)
