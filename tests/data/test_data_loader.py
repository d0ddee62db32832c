"""Loading of images by workers."""

import gc
import io
import os
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.data import workers
from sslbench.data.decode.handlers import Reading
from sslbench.data.loading import loader
from sslbench.data.loading.loader import batches, survey
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.views import Augment, View
from sslbench.errors import DataError, UsageError
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
    assert survey(source([encoded(0)]), np.array([], dtype=np.int64), 2).unreadable == ()


def test_wrong_indices_are_refused():
    for indices in ([0, 5], [-1], [1, 1]):
        with pytest.raises(ValueError):
            load(source([encoded(0), encoded(1)]), np.array(indices), 0)


def test_a_dataset_that_loses_a_sample_does_not_go_unnoticed(monkeypatch):
    batch = loader.PictureBatch(np.array([0]), torch.zeros((1, 3, 8, 8), dtype=torch.uint8), (), Counter())
    monkeypatch.setattr(loader, "_batches", lambda *of_chunk: [batch])
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
    for run in (lambda: load(data, np.arange(2), workers), lambda: survey(data, np.arange(2), workers)):
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
    backwards = np.arange(23)[::-1].copy()
    found = survey(mixed(), backwards, workers, lambda done, total: calls.append((done, total))).unreadable
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


METHODS = ["fork", "spawn", "forkserver"]
HANGS_S = 600.0


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i in range(8):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return open_data(str(folder))["all"]


@pytest.fixture(scope="module")
def handlers(tmp_path_factory):
    """A module of the user's: a decoder that ends its own process at one file, as the kernel does without memory."""
    folder = tmp_path_factory.mktemp("module")
    (folder / "deadly_decoders.py").write_text(
        "import os, signal\n"
        "def kill(path, file):\n"
        "    if path.endswith('5.png'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "def leave(path, file):\n"
        "    if path.endswith('5.png'):\n"
        "        os._exit(3)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


def evaluation(source, decoder, workers, method):
    preprocessing = Preprocessing(resize=None, crop=(16, 16), decoder=(*decoder, "reference"))
    running = loader.batches(source, np.arange(8), preprocessing, batch_size=2, workers=workers, start_method=method)
    return (batch.images for batch in running)


def training(source, decoder, workers, method):
    reading = Reading(decoder, start_method=method)
    data = TrainingData(source, Augment((View(size=16),)), batch_size=1, workers=workers, reading=reading, prefetch=1)
    return (batch.views[0] for batch in data.batches(0, 8))


# The other ways import torch in every worker, which takes seconds.
@pytest.mark.parametrize(
    ("stream", "death", "method", "workers"),
    [
        *((stream, death, "fork", 2) for stream in (evaluation, training) for death in ("kill", "leave")),
        (evaluation, "kill", "spawn", 1),
        pytest.param(training, "leave", "forkserver", 1, marks=pytest.mark.long),
    ],
)
def test_a_worker_that_dies_ends_the_run_with_what_to_do(
    photos, handlers, stream, death, method, workers, decoding_processes
):
    """Until then, the batches are those that this process makes by itself."""
    expected = stream(photos, (), 0, "fork")
    delivered = stream(photos, (f"deadly_decoders.{death}",), workers, method)
    started = time.monotonic()
    count = 0
    with pytest.raises(DataError, match="a process that decodes images was killed") as caught:
        for found, wanted in zip(delivered, expected, strict=False):
            assert torch.equal(found, wanted)
            count += 1
    assert time.monotonic() - started < HANGS_S
    assert count <= 7
    assert "try fewer --workers" in str(caught.value)
    assert not decoding_processes()


def test_a_death_is_raised_where_images_are_waited_for_and_not_in_the_middle_of_a_step(photos):
    next(training(photos, (), 1, "fork"))
    handler = signal.getsignal(signal.SIGCHLD)
    assert "torch" not in getattr(handler, "__module__", ""), "torch's raises wherever the program is"


@pytest.mark.parametrize("method", METHODS)
def test_the_way_that_is_asked_for_is_taken(method):
    assert workers._context(method).get_start_method() == method


def test_a_way_that_does_not_exist_here_is_refused(photos, monkeypatch):
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(UsageError, match="start_method=forkserver does not exist on this system"):
        list(evaluation(photos, (), 1, "forkserver"))


def test_a_missing_decoder_is_refused_before_any_worker_starts(photos):
    with pytest.raises(UsageError, match="no_such_module_anywhere"):
        training(photos, ("no_such_module_anywhere.decode",), 1, "fork")


def test_full_shared_memory_is_told_and_nothing_waits(photos, monkeypatch):
    def full(tensor):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(DataError, match="shared memory") as error:
        list(loader.batches(photos, np.arange(8), Preprocessing(), batch_size=4, workers=2, start_method="fork"))
    assert "--workers 0" in error.value.remedy


class Garbage:
    """An object in a circle, with a destructor that leaves the number of its process in a folder."""

    def __init__(self, folder):
        self.folder, self.circle = folder, self

    def __del__(self):
        (self.folder / str(os.getpid())).touch()


class Collecting(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        gc.collect()
        return torch.tensor(index)


def test_a_forked_worker_leaves_garbage_of_its_parent_alone(tmp_path):
    """Among it may be a process group, with a destructor that waits for threads that no fork has."""
    gc.collect()
    gc.disable()
    try:
        Garbage(tmp_path)
        assert list(workers.run(Collecting(), 1, start_method="fork")) == [0, 1]
        assert list(tmp_path.iterdir()) == []
        gc.collect()
        assert [file.name for file in tmp_path.iterdir()] == [str(os.getpid())]
    finally:
        gc.enable()
