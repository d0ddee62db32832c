"""Decoded samples in a file, for the later epochs of a training."""

import copy
import errno
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.data.loading import kept
from sslbench.data.loading.probing import EpochBatches, random_flip
from sslbench.data.open import open_data
from sslbench.data.views import View
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(kept.VARIABLE, "1GB")
    return tmp_path / "cache"


def numbers(index, shape=(3, 5, 7)):
    return torch.from_numpy(np.random.default_rng(index).integers(0, 256, shape).astype(np.uint8))


def layouts(index):
    """Pictures as decoders leave them: interleaved, turned by EXIF, in planes, of one channel, of 16 bits."""
    x = numbers(index, (5, 7, 3))
    return [
        x.permute(2, 0, 1),
        x.permute(2, 1, 0).flip(2),
        numbers(index),
        numbers(index, (7, 5, 1)).permute(2, 0, 1),
        numbers(index).float() / 3,
    ]


def test_samples_come_back_with_their_values_types_and_order_in_memory():
    for number, image in enumerate(layouts(0)):
        target, made = torch.full((1, 5, 7), float("nan")), []

        def decode(index, image=image, target=target, made=made):
            made.append(index)
            return image, target

        with kept.keeping(3, workers=0) as samples:
            samples.sample(2, decode)
            found, other = samples.sample(2, decode)
            assert made == [2], number
            assert torch.equal(found, image) and found.dtype == image.dtype and found.stride() == image.stride()
            assert other.isnan().all()
            samples.sample(0, decode)
            assert made == [2, 0]


def test_tensors_with_gaps_and_larger_than_their_place_are_made_each_time(monkeypatch):
    monkeypatch.setattr(kept, "_LARGEST_PLACE", 4096)
    for image in (numbers(0, (3, 5, 14))[:, :, ::2], numbers(0, (3, 50, 50)), numbers(0).double()):
        with kept.keeping(3, workers=0) as samples:
            made = [samples.sample(1, lambda _, image=image: (image,))[0] for _ in range(2)]
            assert made[0] is made[1] is image


def _write(samples, rows):
    for row in rows:
        samples.sample(row, lambda index: (numbers(index),))


def test_processes_share_a_file_and_a_copy_opens_it_itself():
    with kept.keeping(40, workers=2) as samples:
        writers = [FORK.Process(target=_write, args=(samples, range(start, 40, 2))) for start in (0, 1)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        for reader in (samples, copy.copy(samples)):
            for row in range(40):
                (found,) = reader.sample(row, lambda _: pytest.fail("it was decoded again"))
                assert torch.equal(found, numbers(row))


def test_a_sample_whose_writer_ended_in_between_is_decoded(monkeypatch):
    with kept.keeping(2, workers=0) as samples:
        monkeypatch.setattr(os, "pwrite", lambda *_: 0)  # the header comes last
        samples.sample(0, lambda index: (numbers(index),))
        monkeypatch.undo()
        assert samples._read(0) is None


def test_the_file_ends_with_the_training_and_those_of_killed_ones_are_removed(cache):
    with kept.keeping(2, workers=0) as first, kept.keeping(2, workers=0) as second:
        assert first.file != second.file and first.file.is_file() and second.file.is_file()
    assert list(cache.iterdir()) == []
    left = cache / ".decoded-samples.0123abcd.part"
    left.write_bytes(b"x")
    with kept.keeping(2, workers=0):
        assert not left.exists()


def test_no_more_than_the_bound_is_written(monkeypatch):
    monkeypatch.setenv(kept.VARIABLE, "12288")  # three pages, of which each sample takes one
    with kept.keeping(10, workers=0) as samples:
        _write(samples, range(10))
        assert [samples._read(row) is not None for row in range(10)] == [True] * 3 + [False] * 7
        assert samples.file.stat().st_blocks * 512 <= 12288
    monkeypatch.setenv(kept.VARIABLE, "much")
    with pytest.raises(UsageError, match=r"\$SSLBENCH_DECODED_CACHE is 'much', which is not a size"):
        kept.largest_size()


@pytest.mark.parametrize("fault", ["full", "unwritable", "dense"])
def test_a_disk_that_cannot_keep_them_costs_time_only(cache, monkeypatch, fault):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if fault == "full":
        monkeypatch.setattr(os, "pwritev", full)
    elif fault == "unwritable":
        cache.write_text("no folder")
    else:
        monkeypatch.setattr(kept, "_is_sparse", lambda _: False)
    with kept.keeping(2, workers=0) as samples:
        for _ in range(2):
            assert torch.equal(samples.sample(1, lambda index: (numbers(index),))[0], numbers(1))


@pytest.fixture
def photos(tmp_path):
    for i in range(12):
        folder = tmp_path / "photos" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if i == 3 else 1
        Image.fromarray(numbers(i, (40 + i, 60, 3)).numpy()).save(folder / f"{i:02d}.jpg", exif=exif)
    return open_data(str(tmp_path / "photos"))["all"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("whole", [True, False])
def test_every_epoch_of_a_training_is_bit_for_bit_that_of_images_decoded_anew(photos, monkeypatch, whole, workers):
    options = {"size": 16, "batch_size": 4, "piece": 4, "seed": 1, "workers": workers}
    options |= {"resized": Preprocessing(resize=20, crop=(16, 16))} if whole else {}
    data = EpochBatches(photos, random_flip(0.5) if whole else View(size=16), **options)
    assert data.steps_per_epoch == 3
    reused = [piece for pieces in data.batches(0, 9) for piece in pieces]
    monkeypatch.setenv(kept.VARIABLE, "0")
    anew = [piece for pieces in data.batches(0, 9) for piece in pieces]
    assert len(reused) == len(anew) == 9
    for one, other in zip(reused, anew, strict=True):
        assert torch.equal(one.views[0], other.views[0]) and torch.equal(one.indices, other.indices)


def test_each_image_is_decoded_once_in_three_epochs_and_in_one_nothing_is_kept(photos, monkeypatch, cache):
    read, own = [], type(photos.images).read
    monkeypatch.setattr(type(photos.images), "read", lambda self, index: read.append(index) or own(self, index))
    data = EpochBatches(photos, View(size=16), size=16, batch_size=4, piece=4, seed=1)
    for _ in data.batches(0, 9):
        pass
    assert sorted(read) == list(range(12))
    for _ in data.batches(0, 3):
        assert not list(Path(cache).glob(".decoded*"))
