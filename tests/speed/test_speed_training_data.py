"""Making views against the plain torchvision pipeline on Pillow images, on one core: `make bench`."""

import io
import random
import time

import pytest
import torch
from helpers.timing import write_photographs
from PIL import Image, ImageFilter
from torchvision import transforms

from sslbench import config, paths
from sslbench.data.images import Files
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.loading.probing import EpochBatches, random_flip
from sslbench.data.source import Source
from sslbench.data.views import Augment, View
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled

pytestmark = pytest.mark.speed

IMAGES, REPEATS = 64, 3


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photograph-like JPEGs (smooth, with some texture), 256 pixels on the shorter side, quality 90."""
    return write_photographs(tmp_path_factory.mktemp("photos"), IMAGES, 341, 256)


class PillowBlur:
    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def plain_rate(files):
    """Images per second as the code of SimCLR's and MoCo's re-implementations makes two views, stacked as uint8."""
    jitter = transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
    blur = transforms.RandomApply([PillowBlur()], 0.5)
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), jitter]
    view = transforms.Compose([*steps, transforms.RandomGrayscale(0.2), blur, transforms.PILToTensor()])
    started = time.perf_counter()
    views = []
    for file in files:
        image = Image.open(io.BytesIO(file.read_bytes())).convert("RGB")
        views.append((view(image), view(image)))
    assert [torch.stack(column).shape[0] for column in zip(*views, strict=True)] == [len(files)] * 2
    return len(files) / (time.perf_counter() - started)


def our_rate(data, epoch):
    started = time.perf_counter()
    (batch,) = data.batches(epoch, epoch + 1)
    assert batch.views[1].shape == (IMAGES, 3, 224, 224)
    return IMAGES / (time.perf_counter() - started)


def test_simclr_views_from_jpegs_against_torchvision_on_pillow(photos):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    file = paths.builtin_dir("configs") / "augment" / "simclr.yaml"
    augment = config.build(Augment, config.read_yaml(file), "simclr")
    source = Source("photos", tuple(str(file) for file in photos), Unlabelled(IMAGES), Files(tuple(photos)))
    data = TrainingData(source, augment, batch_size=IMAGES)
    try:
        our_rate(data, 0), plain_rate(photos[:8])
        rates = [(our_rate(data, repeat), plain_rate(photos)) for repeat in range(REPEATS)]
    finally:
        torch.set_num_threads(threads)
    ours, plain = (max(column) for column in zip(*rates, strict=True))
    print(
        f"\nSimCLR, 2 views of 224 from 256-pixel JPEGs, one thread: {ours:.0f} images/s, torchvision on Pillow "
        f"{plain:.0f}: x{ours / plain:.2f} (aim 1.3)"
    )
    assert ours > plain


def test_workers_have_half_the_work_without_colours(photos):
    """Decoding, crops and flips stay; two views of SimCLR."""
    file = paths.builtin_dir("configs") / "augment" / "simclr.yaml"
    augment = config.build(Augment, config.read_yaml(file), "simclr")
    source = Source("photos", tuple(str(file) for file in photos), Unlabelled(IMAGES), Files(tuple(photos)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        streams = [TrainingData(source, augment, batch_size=IMAGES, colours=colours) for colours in (True, False)]
        rates = [[our_rate(stream, repeat) for stream in streams] for repeat in range(REPEATS)]
    finally:
        torch.set_num_threads(threads)
    everything, rest = (max(column) for column in zip(*rates, strict=True))
    print(f"\nSimCLR, one thread: {everything:.0f} images/s, colours=device {rest:.0f}: x{rest / everything:.2f}")
    assert rest > 1.2 * everything


@pytest.mark.parametrize(("way", "aim"), [("random crops", 1.6), ("whole images", 2.0)])
def test_later_epochs_of_finetuning_against_decoding_anew(tmp_path, monkeypatch, way, aim):
    """JPEGs of ImageNet's size, seconds of the processor; the views are equal bit by bit."""
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    files = write_photographs(tmp_path / "photos", IMAGES, 500, 375)
    source = Source("photos", tuple(map(str, files)), Unlabelled(IMAGES), Files(tuple(files)))
    view, resized = (View(size=224), None) if way == "random crops" else (random_flip(0.5), Preprocessing())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds, sums = {"4GB": [], "0": []}, {"4GB": [], "0": []}
    try:
        for _ in range(REPEATS):
            for size in seconds:
                monkeypatch.setenv("SSLBENCH_DECODED_CACHE", size)
                data = EpochBatches(source, view, size=224, batch_size=IMAGES, piece=IMAGES, seed=0, resized=resized)
                stream = data.batches(0, 3)
                next(stream)
                started = time.process_time()
                sums[size] += [int(piece.views[0].long().sum()) for (piece,) in stream]
                seconds[size].append(time.process_time() - started)
    finally:
        torch.set_num_threads(threads)
    kept, anew = (min(each) for each in seconds.values())
    print(f"\nlater epochs, {way}: {500 * kept / IMAGES:.2f} ms per image, decoded anew {500 * anew / IMAGES:.2f}")
    print(f"x{anew / kept:.2f} (aim {aim})")
    assert sums["4GB"] == sums["0"] and anew > aim * kept
