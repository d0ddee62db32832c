"""The training stream is the same whatever the workers and wherever it starts, and bad files do not stop it."""

import gc
import logging
import os
import pickle
import random
import signal
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sslbench import text_rows
from sslbench.data.images import Arrays, Files
from sslbench.data.loading import batch as batch_module
from sslbench.data.loading import pretraining
from sslbench.data.loading.batch import ShareSampler
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.loading.samplers import epoch_order
from sslbench.data.source import Source
from sslbench.data.views import Augment, Jitter, View
from sslbench.data.views.ops import Crop
from sslbench.errors import DataError, UsageError
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled

TWO_SIZES = Augment((View(2, 12, jitter=Jitter(0.8, 0.4, 0.4, 0.4, 0.1)), View(1, 6, scale=(0.1, 0.3))))
STILL = Augment((View(1, 8, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0),))


class Broken:
    """Arrays of which some cannot be read; picture i is filled with the value i unless it is given otherwise."""

    def __init__(self, n, bad=(), error=None):
        self.n, self.bad, self.error = n, frozenset(bad), error

    def __len__(self):
        return self.n

    def read(self, index):
        if index in self.bad:
            if self.error is not None:
                raise self.error
            return b"this is no image"
        return np.full((8, 8, 3), index % 256, np.uint8)

    def path(self, index):
        return f"photos/{index}.png"

    def digests(self):
        return np.zeros((self.n, 16), np.uint8)

    def select(self, indices):
        picked = Broken(len(indices), {i for i, j in enumerate(indices) if j in self.bad}, self.error)
        picked.path = partial(_path_of, indices)
        picked.read = partial(_read_of, self, indices)
        return picked


def _path_of(indices, index):
    return f"photos/{indices[index]}.png"


def _read_of(images, indices, index):
    return images.read(int(indices[index]))


def source(images, labels=True):
    n = len(images)
    kinds = Classes(("a", "b", "c"), np.arange(n) % 3) if labels else Unlabelled(n)
    return Source("photos/", tuple(f"{i:05d}" for i in range(n)), kinds, images)


def textured(n=23):
    return source(Arrays(np.random.default_rng(0).integers(0, 256, (n, 10, 14, 3), dtype=np.uint8), "photos"))


def same(a, b):
    return (
        all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))
        and torch.equal(a.indices, b.indices)
        and torch.equal(a.labels, b.labels)
        and (a.replaced, a.unreadable) == (b.replaced, b.unreadable)
    )


def stream(data, start, stop):
    return list(data.batches(start, stop))


# ---- order


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_resuming_anywhere_gives_the_batches_of_an_uninterrupted_run(workers):
    whole = stream(TrainingData(textured(), TWO_SIZES, batch_size=4, seed=5), 0, 14)
    assert len(whole) == 14
    again = TrainingData(textured(), TWO_SIZES, batch_size=4, seed=5, workers=workers, prefetch=3)
    for start, stop in ((0, 14), (3, 9), (13, 14)):
        resumed = stream(again, start, stop)
        assert len(resumed) == stop - start
        assert all(same(a, b) for a, b in zip(resumed, whole[start:stop], strict=True))


def test_batches_are_what_they_say():
    data = TrainingData(textured(), TWO_SIZES, batch_size=4, workers=1)
    (batch,) = stream(data, 0, 1)
    assert [tuple(view.shape) for view in batch.views] == [(4, 3, 12, 12), (4, 3, 12, 12), (4, 3, 6, 6)]
    for view in batch.views:
        assert view.dtype == torch.uint8 and view.is_contiguous(memory_format=torch.channels_last)
    assert batch.indices.dtype == batch.labels.dtype == torch.int64
    assert torch.equal(batch.labels, batch.indices % 3)
    assert batch.replaced == 0 and batch.unreadable == ()
    assert not torch.equal(batch.views[0], batch.views[1])


def test_the_pixels_belong_to_their_index():
    (batch,) = stream(TrainingData(source(Broken(200)), STILL, batch_size=64), 1, 2)
    assert (batch.views[0] == batch.indices[:, None, None, None]).all()


@pytest.mark.parametrize("world", [1, 3])
def test_each_epoch_shows_every_image_once_in_a_new_order_that_processes_share(world):
    n, size = 58, 12
    ranks = [
        TrainingData(source(Broken(n)), STILL, batch_size=size // world, rank=r, world=world, seed=2)
        for r in range(world)
    ]
    steps = n // size
    assert all(data.steps_per_epoch == steps for data in ranks)
    parts = [[b.indices.tolist() for b in data.batches(0, 3 * steps)] for data in ranks]
    together = [[i for row in zip(*batch, strict=True) for i in row] for batch in zip(*parts, strict=True)]
    alone = TrainingData(source(Broken(n)), STILL, batch_size=size, seed=2)
    assert together == [b.indices.tolist() for b in alone.batches(0, 3 * steps)]
    epochs = [[i for batch in together[e * steps : (e + 1) * steps] for i in batch] for e in range(3)]
    assert all(len(set(epoch)) == steps * size for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and set(epochs[0]) != set(epochs[1])


@settings(max_examples=50, deadline=None)
@given(n=st.integers(2, 60), size=st.integers(1, 60), start=st.integers(0, 40), length=st.integers(0, 40))
def test_any_stretch_of_the_plan_is_that_stretch_of_the_whole(n, size, start, length):
    size = min(size, n)
    order = partial(epoch_order, "shuffled", n, None, seed=7)
    plan = partial(ShareSampler, order, n, size, slice(0, None, 1))
    whole = list(plan(0, start + length))
    part = list(plan(start, start + length))
    assert len(part) == len(plan(start, start + length)) == length
    for (epoch, chosen), (other_epoch, other) in zip(part, whole[start:], strict=True):
        assert epoch == other_epoch and np.array_equal(chosen, other) and len(chosen) == size


def test_a_late_position_costs_no_more_than_an_early_one():
    data = TrainingData(source(Broken(1000)), STILL, batch_size=10)
    (batch,) = stream(data, 10**12, 10**12 + 1)
    assert len(batch.indices) == 10


def test_the_seed_and_the_epoch_change_what_is_drawn():
    def first_images(seed, epoch):
        data = TrainingData(textured(), TWO_SIZES, batch_size=23, seed=seed)
        (batch,) = stream(data, epoch, epoch + 1)
        return batch.views[0][batch.indices.argsort()], batch.indices

    views, order = first_images(1, 0)
    for other, other_order in (first_images(2, 0), first_images(1, 1)):
        assert not torch.equal(order, other_order)
        assert sum(torch.equal(a, b) for a, b in zip(views, other, strict=True)) == 0


def test_the_views_of_an_image_do_not_depend_on_the_process_that_makes_them():
    def by_index(world, size):
        found = {}
        for rank in range(world):
            data = TrainingData(textured(24), TWO_SIZES, batch_size=size, rank=rank, world=world, seed=3)
            for batch in data.batches(0, data.steps_per_epoch):
                for row, index in enumerate(batch.indices.tolist()):
                    found[index] = [view[row] for view in batch.views]
        return found

    one, three = by_index(1, 6), by_index(3, 4)
    assert one.keys() == three.keys() == set(range(24))
    for index, views in one.items():
        assert all(torch.equal(a, b) for a, b in zip(views, three[index], strict=True))


@pytest.mark.parametrize("kind", ["none", "multi"])
def test_without_one_label_per_image_there_are_none(kind):
    labels = Unlabelled(9) if kind == "none" else MultiLabel(("a", "b"), np.ones((9, 2), np.int8))
    data = Source("photos/", tuple("abcdefghi"), labels, Broken(9))
    (batch,) = stream(TrainingData(data, STILL, batch_size=4), 0, 1)
    assert batch.labels is None


# ---- random numbers


def draw_from_all(image):
    noise = [np.random.randint(256), random.randrange(256), int(torch.randint(256, ())), 0]
    return Crop((torch.tensor(noise, dtype=torch.uint8).repeat(3, 4, 1),), (0.0, 0.0, 4.0, 4.0))


@pytest.mark.parametrize("workers", [0, 2])
def test_numpy_and_random_are_seeded_for_every_image_too(workers, monkeypatch):
    monkeypatch.setattr(batch_module, "make_views", lambda view, channels, colours: draw_from_all)
    augment = Augment((View(1, 4),))
    expected = stream(TrainingData(textured(), augment, batch_size=5), 2, 6)
    found = stream(TrainingData(textured(), augment, batch_size=5, workers=workers), 2, 6)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    values = {tuple(image[0, 0].tolist()) for batch in found for image in batch.views[0]}
    assert len(values) == 20 and len({v[:2] for v in values}) > 15


@pytest.mark.parametrize("workers", [0, 1])
def test_the_callers_random_numbers_are_left_alone(workers):
    def numbers():
        return np.random.rand(), random.random(), torch.rand(1).item()

    for seed in (np.random.seed, random.seed, torch.manual_seed):
        seed(3)
    expected = numbers()
    for seed in (np.random.seed, random.seed, torch.manual_seed):
        seed(3)
    stream(TrainingData(textured(), TWO_SIZES, batch_size=5, workers=workers), 0, 3)
    assert numbers() == expected


# ---- images that cannot be read


@pytest.mark.parametrize("world", [1, 2])
def test_an_unreadable_image_is_replaced_by_one_that_is_not_in_the_batch(world, caplog):
    bad = {1, 2, 5, 14, 15, 28}
    runs = []
    for n_workers in (0, 2):
        data = TrainingData(
            source(Broken(30, bad)), STILL, batch_size=6, rank=world - 1, world=world, seed=1, workers=n_workers
        )
        with caplog.at_level(logging.WARNING, "sslbench"):
            runs.append(stream(data, 0, 3 * data.steps_per_epoch))
    assert all(same(a, b) for a, b in zip(*runs, strict=True))
    assert sum(batch.replaced for batch in runs[0]) >= 3
    for batch in runs[0]:
        shown = batch.indices.tolist()
        assert len(set(shown)) == 6 and not bad & set(shown)
        assert (batch.views[0] == batch.indices[:, None, None, None]).all()
        assert torch.equal(batch.labels, batch.indices % 3)
        assert batch.replaced <= len(batch.unreadable) and {i for i, _, _ in batch.unreadable} <= bad
        assert all(path == f"photos/{i}.png" for i, path, _ in batch.unreadable)
    mine = {i for batch in runs[0] for i, _, _ in batch.unreadable}
    logged = [record.getMessage() for record in caplog.records]
    assert sorted(logged) == sorted(
        2 * [f"cannot be read and is replaced by another image: photos/{i}.png: not an image (text)" for i in mine]
    )


def test_the_one_that_stands_in_varies():
    data = TrainingData(source(Broken(100, range(50))), STILL, batch_size=4)
    epochs = [{i for b in data.batches(25 * e, 25 * (e + 1)) for i in b.indices.tolist()} for e in range(2)]
    counts = np.bincount([i for b in data.batches(0, 100) for i in b.indices.tolist()], minlength=100)
    assert min(len(found) for found in epochs) > 40
    assert counts[:50].sum() == 0 and counts[50:].max() < 25, "no image stands in for all its neighbours"


@pytest.mark.parametrize("workers", [0, 2])
def test_when_nothing_can_be_read_the_first_files_are_named(workers):
    data = TrainingData(source(Broken(40, range(40))), STILL, batch_size=4, workers=workers)
    with pytest.raises(DataError) as caught:
        stream(data, 0, 3)
    text = str(caught.value)
    for part in ("photos/: 37 images tried for one batch", ".png (not an image (text))", "34 more", "check-data"):
        assert part in text


def test_when_too_few_can_be_read_for_a_batch_it_says_so():
    data = TrainingData(source(Broken(6, {4})), STILL, batch_size=6)
    with pytest.raises(
        DataError, match=r"1 image tried for one batch cannot be read, and no replacement is left.*4\.png"
    ):
        stream(data, 0, 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_in_a_source_arrive_as_they_are(workers):
    data = source(Broken(8, {3}, DataError("the archive is gone", "Put it back.")))
    with pytest.raises(DataError) as caught:
        stream(TrainingData(data, STILL, batch_size=4, workers=workers), 0, 2)
    assert str(caught.value) == "the archive is gone\nPut it back."


def test_a_mistake_in_a_source_names_the_file():
    data = source(Broken(8, {3}, ZeroDivisionError("a mistake in somebody's source")))
    with pytest.raises(ZeroDivisionError) as caught:
        stream(TrainingData(data, STILL, batch_size=4), 0, 2)
    assert "photos/3.png" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


# ---- settings that cannot work


def test_what_cannot_work_is_refused_at_once():
    for n, options, error, words in (
        (0, {}, DataError, ["photos/ has no images"]),
        (1, {}, DataError, ["photos/ has 1 image"]),
        (
            5,
            {},
            UsageError,
            ["8 images per process does not fit", "photos/ has 5 images", "at most 5 images per process"],
        ),
        (21, {"world": 3}, UsageError, ["7 for each of 3 processes", "at most 7 images per process, 21 in all"]),
        (21, {"batch_size": 0}, UsageError, ["a batch of 0 images"]),
        (21, {"seed": -1}, UsageError, ["seed should not be negative, not -1"]),
    ):
        with pytest.raises(error) as caught:
            TrainingData(source(Broken(n)), STILL, **{"batch_size": 8, **options})
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_batch_as_large_as_the_data_works():
    data = TrainingData(source(Broken(7)), STILL, batch_size=7)
    assert data.steps_per_epoch == 1
    assert [sorted(b.indices.tolist()) for b in data.batches(0, 2)] == [list(range(7))] * 2


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2)])
def test_a_stretch_that_is_none_is_refused(start, stop):
    with pytest.raises(ValueError, match="batches"):
        stream(TrainingData(textured(), STILL, batch_size=4), start, stop)


def test_an_empty_stretch_has_no_batches():
    assert stream(TrainingData(textured(), STILL, batch_size=4, workers=2), 5, 5) == []


# ---- processes


class Signalled(Broken):
    def __init__(self, n, name):
        super().__init__(n)
        self.name, self.parent = name, os.getpid()

    def read(self, index):
        if os.getpid() != self.parent:
            os.kill(os.getpid(), getattr(signal, self.name))
        return super().read(index)


def test_a_killed_worker_is_explained():
    data = TrainingData(source(Signalled(8, "SIGKILL")), STILL, batch_size=4, workers=1)
    with pytest.raises(DataError, match="was killed") as caught:
        stream(data, 0, 2)
    assert "--workers 0" in str(caught.value)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_workers_leave_signals_to_the_training_process(name, decoding_processes):
    data = TrainingData(source(Signalled(8, name)), STILL, batch_size=4, workers=2)
    assert len(stream(data, 0, 4)) == 4
    assert not decoding_processes()


def test_stopping_early_ends_the_workers(decoding_processes):
    running = TrainingData(textured(), STILL, batch_size=4, workers=2).batches(0, 10**6)
    next(running)
    assert len(decoding_processes()) == 2
    running.close()
    assert not decoding_processes()


def test_workers_last_over_epochs(decoding_processes):
    running = TrainingData(textured(), STILL, batch_size=11, workers=2).batches(0, 10)
    seen = set()
    for _ in running:
        seen |= {child.pid for child in decoding_processes()}
    assert len(seen) == 2


def test_colours_survive_a_fork_after_opencv_has_started_its_threads():
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(4)
    try:
        cv2.GaussianBlur(np.zeros((2000, 2000, 3), np.uint8), (9, 9), 2.0)
        data = TrainingData(textured(), TWO_SIZES, batch_size=4, workers=1)
        assert len(stream(data, 0, 2)) == 2
    finally:
        cv2.setNumThreads(before)


@pytest.mark.parametrize("packed_from", [10, 100])
def test_paths_of_many_files_are_in_a_file_that_workers_share(tmp_path, monkeypatch, packed_from):
    monkeypatch.setattr(text_rows, "PACKED_FROM", packed_from)
    written = []
    for i in range(60):
        Image.new("RGB", (9, 9), (i, i, i)).save(tmp_path / f"a rather long name of an image {i:03d} \xe9.png")
        written.append(f"a rather long name of an image {i:03d} \xe9.png")
    files = Source(
        "photos/", tuple(written), Classes(("a",), np.zeros(60, np.int64)), Files(tuple(written), str(tmp_path))
    )
    whole = TrainingData(files, STILL, batch_size=12, workers=2)
    monkeypatch.setattr(pretraining, "_MANY", 10)
    shared = TrainingData(files, STILL, batch_size=12, workers=2)
    assert len(pickle.dumps(shared._maker)) < len(pickle.dumps(whole._maker)) - 60 * 30
    alone = TrainingData(files, STILL, batch_size=12)
    assert all(same(a, b) for a, b in zip(stream(shared, 0, 5), stream(alone, 0, 5), strict=True))
    assert shared.bytes_ahead == 12 * sum(v[0].numel() for v in stream(shared, 0, 1)[0].views) * (2 * 2 + 1)
    index = shared._index
    assert index.exists()
    del shared
    gc.collect()
    assert not index.exists()


def test_what_goes_to_the_workers_can_be_pickled():
    """After CUDA was used, workers are not forked."""
    maker = TrainingData(textured(), TWO_SIZES, batch_size=4)._maker
    arrived = pickle.loads(pickle.dumps(maker))  # noqa: S301
    assert len(arrived.images) == 23
    item = (2, np.array([3, 1, 7]))
    assert same(arrived[item], maker[item])
    pickle.dumps(batch_module.start_worker)
