"""sampler=shards: every image once, a few shards at a time, and what is said where that cannot be."""

import fsspec
import numpy as np
import pytest
from helpers import containers
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.data.images import Arrays
from sslbench.data.loading.loader import survey
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.loading.samplers import epoch_order
from sslbench.data.open import open_data
from sslbench.data.sharded import by_shard, rows_of, shards_of
from sslbench.data.source import Source
from sslbench.data.views import Augment, View
from sslbench.errors import UsageError
from sslbench.targets.none import Unlabelled

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=9).filter(lambda sizes: sum(sizes) > 0)
VIEWS = Augment((View(1, 8, scale=(0.2, 0.9)),))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))


def shards_with(sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


def order_of(shards, epoch=0, seed=0, window=3):
    return epoch_order("shards", len(shards), None, seed=seed, epoch=epoch, shards=shards, window=window)


@settings(max_examples=100, deadline=None)
@given(SIZES, st.integers(0, 3), st.integers(1, 5))
def test_every_image_once_from_at_most_window_shards_at_a_time(sizes, epoch, window):
    shards = shards_with(sizes)
    order = order_of(shards, epoch, window=window)
    assert sorted(order) == list(range(len(shards)))
    seen = shards[order]
    first = {shard: np.flatnonzero(seen == shard)[0] for shard in np.unique(seen)}
    last = {shard: np.flatnonzero(seen == shard)[-1] for shard in np.unique(seen)}
    for moment in range(len(seen)):
        assert sum(first[shard] <= moment <= last[shard] for shard in first) <= window


def test_the_order_depends_on_seed_and_epoch():
    shards = shards_with([41, 40, 39, 17, 80, 3, 40, 40])
    assert np.array_equal(order_of(shards), order_of(shards))
    for other in ({"epoch": 1}, {"seed": 1}):
        assert not np.array_equal(order_of(shards), order_of(shards, **other))
    turns = [list(dict.fromkeys(shards[order_of(shards, epoch=epoch, window=1)].tolist())) for epoch in (0, 1)]
    assert turns[0] != turns[1] and sorted(turns[0]) == sorted(turns[1]) == list(range(8))


def test_within_the_window_images_are_mixed():
    shards = shards_with([100] * 6)
    seen = shards[order_of(shards, window=3)]
    runs = np.diff(np.flatnonzero(np.diff(seen, prepend=-1, append=-1)))
    assert runs.mean() < 2.5  # a shard read from start to end would be a run of 100


def write(tmp_path, n=24, shards=6):
    return containers.write_shards(tmp_path, containers.pictures(n), shards)


class Remote:
    """Images in shards of these sizes, to be fetched, whose rows run across the shards."""

    def __init__(self, sizes, fetched=1):
        self.numbers = np.random.default_rng(0).permutation(shards_with(sizes))
        self.bytes = np.full(len(sizes), fetched)

    def __len__(self):
        return len(self.numbers)

    def shards(self):
        return self.numbers

    def fetched(self):
        return self.bytes


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(1, 5))
def test_processes_have_every_row_once_and_whole_shards_if_their_shares_are_near_equal(sizes, world):
    images = Remote(sizes)
    parts = [rows_of(images, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(parts)) == list(range(len(images)))
    assert all(np.all(np.diff(part) > 0) for part in parts)
    if len(images) and max(sizes) <= len(images) / world / 3:
        assert max(map(len, parts)) <= len(images) / world * 4 / 3
        assert sum(len(np.unique(images.numbers[part])) for part in parts) == np.count_nonzero(sizes)
    else:
        assert np.concatenate(parts).tolist() == list(range(len(images)))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_rows_of_local_shards_and_of_few_shards_are_neighbours():
    for images in (Remote([8] * 6, fetched=0), Remote([8] * 5), Remote([40, 8, 8, 8, 8, 8])):
        assert rows_of(images, 1, 2).tolist() == list(range(len(images) // 2, len(images)))
    assert np.unique(Remote([8] * 6).numbers[rows_of(Remote([8] * 6), 1, 2)]).tolist() == [3, 4, 5]


def test_by_shard_keeps_all_indices_and_the_order_within_a_shard(tmp_path):
    images = open_data(write(tmp_path))["all"].images
    order = by_shard(images, np.arange(24)[::2])
    assert sorted(order) == list(range(0, 24, 2))
    assert np.all(np.diff(shards_of(images)[order]) >= 0)
    assert all(np.all(np.diff(order[shards_of(images)[order] == k]) > 0) for k in range(6))


@pytest.mark.parametrize("kind", ["tar", "zip", "tfds"])
def test_containers_say_in_which_file_an_image_lies(tmp_path, kind):
    writers = {"tar": containers.write_shards, "zip": containers.write_zip, "tfds": containers.write_tfds}
    (source,) = open_data(writers[kind](tmp_path, containers.pictures())).values()
    shards = shards_of(source.images)
    assert shards.shape == (12,)
    assert len(np.unique(shards)) == {"tar": 3, "zip": 1, "tfds": 2}[kind]


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_training_shows_every_image_once_and_resumes_in_the_middle(tmp_path, world, workers):
    source = open_data(write(tmp_path))["all"]
    shown = []
    for rank in range(world):
        data = TrainingData(
            source, VIEWS, batch_size=4, rank=rank, world=world, workers=workers, sampler="shards", shard_window=2
        )
        whole = [batch.indices.tolist() for batch in data.batches(0, 2 * data.steps_per_epoch)]
        assert [batch.indices.tolist() for batch in data.batches(1, 3)] == whole[1:3]
        assert whole[: data.steps_per_epoch] != whole[data.steps_per_epoch :]
        shown += [index for batch in whole[: data.steps_per_epoch] for index in batch]
    assert sorted(shown) == list(range(24))


def test_without_shards_it_is_refused():
    arrays = Arrays(np.zeros((8, 9, 9, 3), dtype=np.uint8), "p")
    source = Source("pictures", tuple("abcdefgh"), Unlabelled(8), arrays)
    with pytest.raises(
        UsageError, match=r"sampler=shards needs images in shards.*which pictures does not have\nLeave out"
    ):
        TrainingData(source, VIEWS, batch_size=2, sampler="shards")


def remote_source(tmp_path):
    system = fsspec.filesystem("memory")
    system.store.clear()
    write(tmp_path)
    for path in tmp_path.glob("*.tar"):
        system.pipe(f"/sh/{path.name}", path.read_bytes())
    return (tmp_path / "s-0000.tar").stat().st_size


def test_a_window_that_does_not_fit_is_refused_with_the_number_needed(tmp_path, monkeypatch, caplog):
    size = remote_source(tmp_path)
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", str(3 * size))
    source = open_data("memory://sh/s-{0000..0005}.tar")["all"]
    needed = rf"needs 5 shards .* at once: {5 * size:,} bytes, and the cache holds {3 * size:,}\n"
    with pytest.raises(
        UsageError, match=rf"{needed}Raise \$SSLBENCH_REMOTE_CACHE to {5 * size:,}, or .*shard_window=2"
    ):
        TrainingData(source, VIEWS, batch_size=2, sampler="shards")
    TrainingData(source, VIEWS, batch_size=2, sampler="shards", shard_window=2)
    assert "downloaded repeatedly" not in caplog.text
    TrainingData(source, VIEWS, batch_size=2)
    assert "Give sampler=shards, or raise $SSLBENCH_REMOTE_CACHE" in caplog.text
    with pytest.raises(UsageError, match="shard_window=0 should be at least 1 shard"):
        TrainingData(source, VIEWS, batch_size=2, sampler="shards", shard_window=0)


def test_shards_that_fit_are_read_in_any_order_without_a_word(tmp_path, caplog):
    remote_source(tmp_path)
    TrainingData(open_data("memory://sh/s-{0000..0005}.tar")["all"], VIEWS, batch_size=2)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_what_cannot_be_read_is_listed_in_the_order_that_was_asked_for(tmp_path):
    samples = containers.pictures(24)
    broken = [name for i, name in enumerate(samples) if i % 5 == 0]
    samples |= {name: (b"no image", samples[name][1]) for name in broken}
    source = open_data(containers.write_shards(tmp_path, samples, 6))["all"]
    rows = np.arange(24)[::-1]
    found = survey(source, rows, 0).unreadable
    assert [source.ids[index] for index, _, _ in found] == sorted(broken, reverse=True)
