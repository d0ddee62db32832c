"""Batches hold every sample exactly once, in order, whatever the workers, the broken files and the start method."""

import io
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.data import workers
from sslbench.data.loading import loader
from sslbench.data.loading.loader import batches, scan
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.resources import default_workers
from sslbench.targets.none import Unlabelled

TINY = Preprocessing(resize=None, crop=(8, 8))


def encoded(value, size=(8, 8), mode="RGB"):
    buffer = io.BytesIO()
    Image.fromarray(np.full((*size, 3), value % 256, np.uint8)).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


class Listed:
    """Images from a list; an exception in the list is raised when it is read."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def read(self, index):
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item

    def path(self, index):
        return f"photos/{index}.png"

    def digests(self):
        return np.zeros((len(self.items), 16), np.uint8)

    def select(self, indices):
        return Listed([self.items[i] for i in indices])


def source(items):
    labels = Unlabelled(len(items))
    return Source("photos", tuple(f"{i:06d}" for i in range(len(items))), labels, Listed(items))


def every(data):
    return np.arange(len(data))


def mixed(count=23):
    items = [encoded(i) for i in range(count)]
    items[3], items[7], items[8] = b"", b"hello, this is text\n" * 9, FileNotFoundError(2, "No such file or directory")
    items[10], items[11] = encoded(10, mode="L"), np.full((8, 8), 11, np.uint8)
    return source(items)


def load(data, indices, workers, batch_size=5, preprocessing=TINY):
    return list(batches(data, indices, preprocessing, batch_size=batch_size, workers=workers))


@pytest.mark.parametrize(("workers", "batch_size"), [(0, 1), (0, 5), (0, 100), (1, 5), (2, 1), (2, 5)])
def test_every_sample_comes_once_in_the_order_asked_for(workers, batch_size):
    order = np.random.default_rng(1).permutation(23)
    delivered = load(mixed(), order, workers, batch_size)
    kept = np.concatenate([batch.indices for batch in delivered])
    assert kept.tolist() == [i for i in order if i not in (3, 7, 8)]
    missing = {index: (path, reason) for batch in delivered for index, path, reason in batch.unreadable}
    assert missing == {
        3: ("photos/3.png", "empty file"),
        7: ("photos/7.png", "not an image (text)"),
        8: ("photos/8.png", "cannot be read (No such file or directory)"),
    }
    assert [len(b.indices) + len(b.unreadable) for b in delivered[:-1]] == [batch_size] * (len(delivered) - 1)
    for batch in delivered:
        assert not len(batch.indices) or batch.images.is_contiguous(memory_format=torch.channels_last)
        assert batch.images.dtype == torch.uint8 and batch.indices.dtype == np.int64
        for index, image in zip(batch.indices, batch.images, strict=True):
            assert (image == index).all() and image.shape == (3, 8, 8)
    assert sum((b.conversions for b in delivered), Counter()) == {"grey to RGB": 2}


def test_a_batch_without_any_readable_image_is_still_delivered():
    first, second = load(source([b"", b"", encoded(2)]), np.arange(3), 0, batch_size=2)
    assert len(first.indices) == 0 and len(first.images) == 0 and len(first.unreadable) == 2
    assert second.indices.tolist() == [2]


def test_no_samples_give_no_batches():
    assert load(source([encoded(0)]), np.array([], dtype=np.int64), 2) == []
    assert scan(source([encoded(0)]), np.array([], dtype=np.int64), 2) == []


def test_wrong_indices_are_refused():
    for indices in ([0, 5], [-1], [1, 1]):
        with pytest.raises(ValueError):
            load(source([encoded(0), encoded(1)]), np.array(indices), 0)


def test_a_dataset_that_loses_a_sample_does_not_go_unnoticed(monkeypatch):
    batch = loader.PictureBatch(np.array([0]), torch.zeros((1, 3, 8, 8), dtype=torch.uint8), (), Counter())
    monkeypatch.setattr(loader._BatchDataset, "__getitem__", lambda self, item: [batch])
    with pytest.raises(RuntimeError, match="asked for the samples"):
        load(source([encoded(0), encoded(1)]), np.arange(2), 0)


def test_pictures_of_different_sizes_are_refused_whatever_the_batch_size():
    data = source([encoded(0, (8, 9)), encoded(1, (8, 9)), encoded(2, (6, 7))])
    for processes, batch_size in ((0, 1), (0, 4), (2, 1), (2, 4)):
        with pytest.raises(DataError) as caught:
            load(data, np.arange(3), processes, batch_size, Preprocessing(resize=None, crop=None))
        for part in ("9 x 8", "7 x 6", "photos/0.png", "photos/2.png", "crop"):
            assert part in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_of_different_sizes_come_in_batches_of_one_size(workers):
    data = source([encoded(0, (8, 9)), b"no image", encoded(1, (6, 7)), encoded(2, (8, 9)), encoded(3, (6, 7))])
    own = Preprocessing(resize=None, crop=None)
    found = list(loader.batches(data, np.arange(5), own, batch_size=4, workers=workers, mixed_sizes=True))
    assert [batch.indices.tolist() for batch in found] == [[0, 3], [2], [4]]
    assert [tuple(batch.images.shape) for batch in found] == [(2, 3, 8, 9), (1, 3, 6, 7), (1, 3, 6, 7)]
    assert [len(batch.unreadable) for batch in found] == [1, 0, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_worker_names_the_file(workers):
    data = source([encoded(0), ZeroDivisionError("a mistake in somebody's source"), encoded(2)])
    with pytest.raises(ZeroDivisionError) as caught:
        load(data, np.arange(3), workers)
    text = "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "a mistake in somebody's source" in text and "photos/1.png" in text


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_for_the_user_stays_one_clear_message(workers):
    data = source([encoded(0), DataError("the archive is gone", "Put it back.")])
    for run in (lambda: load(data, np.arange(2), workers), lambda: scan(data, np.arange(2), workers)):
        with pytest.raises(DataError) as caught:
            run()
        assert str(caught.value) == "the archive is gone\nPut it back."


class Dying(Listed):
    def read(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_explained():
    items = [encoded(0)] * 4
    data = Source("photos", tuple("abcd"), Unlabelled(4), Dying(items))
    with pytest.raises(DataError, match="was killed") as caught:
        load(data, np.arange(4), 1)
    assert "--workers 0" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_scan_lists_the_unreadable_files_and_reports_progress(workers, monkeypatch):
    monkeypatch.setattr(loader, "_SCAN_CHUNK", 4)
    calls = []
    found = scan(mixed(), np.arange(23)[::-1].copy(), workers, lambda done, total: calls.append((done, total)))
    assert [index for index, _, _ in found] == [8, 7, 3]
    assert [reason for _, _, reason in found][1:] == ["not an image (text)", "empty file"]
    assert calls == [(4, 23), (8, 23), (12, 23), (16, 23), (20, 23), (23, 23)]


def test_a_picture_that_explodes_when_resized_is_unreadable():
    data = source([np.zeros((1, 100_000), np.uint8), encoded(1)])
    (batch,) = load(data, np.arange(2), 0, preprocessing=Preprocessing(resize=256, crop=(8, 8)))
    assert batch.indices.tolist() == [1] and "become" in batch.unreadable[0][2]


def test_after_cuda_was_used_workers_are_not_forked(monkeypatch):
    monkeypatch.setattr(workers, "_cuda_in_use", lambda: True)
    assert workers._context("auto").get_start_method() in ("forkserver", "spawn")


@pytest.mark.parametrize("workers", [0, 1])
def test_the_callers_random_numbers_are_left_alone(workers):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    load(source([encoded(0)] * 4), np.arange(4), workers)
    assert torch.equal(torch.rand(3), expected)


def test_stopping_early_ends_the_workers(decoding_processes):
    running = batches(mixed(), np.arange(23), TINY, batch_size=1, workers=2)
    next(running)
    running.close()
    assert not decoding_processes()


def test_default_workers_follow_the_cores(monkeypatch):
    for cores, expected in ((1, 0), (2, 2), (5, 5), (64, 16)):
        monkeypatch.setattr("joblib.cpu_count", lambda cores=cores: cores)
        assert default_workers() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_default_workers_respect_the_affinity_of_the_process():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_workers() == 0
    finally:
        os.sched_setaffinity(0, before)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_number_of_images():
    data = source([encoded(i) for i in range(64)] * 80)
    sizes = [resident_bytes() for batch in batches(data, every(data), TINY, batch_size=16, workers=0)]
    assert sizes[-1] - sizes[len(sizes) // 5] < 8e6
