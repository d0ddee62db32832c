"""Features that are read as they come: streams and remote shards."""

import dataclasses
import multiprocessing
import os
import threading
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers import containers
from helpers.serving import serving
from helpers.waiting import SECONDS
from PIL import Image
from torch import nn

from sslbench.backbones.build import build
from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.data import remote
from sslbench.data.images import Files
from sslbench.data.loading import loader
from sslbench.data.loading.loader import PictureBatch
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.errors import BackboneError, DataError
from sslbench.features import streams
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.features.streamed import streamed
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes

SMALL = Preprocessing(32, (32, 32))


@pytest.fixture
def threads():
    """Function that sets torch's number of threads until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{i:02d}.png" for i in range(40)]
    for file in files:
        Image.fromarray(rng.integers(0, 255, (40, 36, 3), dtype=np.uint8)).save(file)
    labels = Classes(("even", "odd"), np.arange(40) % 2)
    return Source("pictures", tuple(f.name for f in files), labels, Files(tuple(files)))


def run(backbone, source, root, **settings):
    chosen = ExtractSettings(torch.device("cpu"), **{"batch_size": 10, "workers": 0} | settings)
    return extract(backbone, source, resolve_layers(backbone, ()), chosen, root=root, split="all")


def test_the_features_do_not_depend_on_the_number_of_streams(threads, monkeypatch, source, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what the user says holds, on a machine of one core too
    backbone = dataclasses.replace(build("resnet_basic_1-1-1-1w0.25"), preprocessing=SMALL)
    found = {}
    for number in (1, 2, 3):
        threads(number)
        assert streams.number_of_streams(torch.device("cpu")) == number
        (found[number],) = run(backbone, source, tmp_path / str(number)).features.values()
        assert torch.get_num_threads() == number, "restored"
    for number in (2, 3):
        np.testing.assert_array_equal(found[number].x, found[1].x)


class Noting(nn.Module):
    """Mean colours; notes the threads that compute."""

    seen: ClassVar[list[tuple[str, int]]] = []  # of the class, as every stream has a module of its own
    together = threading.Barrier(2, timeout=SECONDS)

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, images):
        if len(images) > 1 and threading.current_thread() is not threading.main_thread():
            self.seen.append((threading.current_thread().name, torch.get_num_threads()))
            if len(self.seen) <= 2:
                self.together.wait()  # two passes are under way at once, or the test fails
        return images * self.scale


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "on the fly"])
def test_passes_run_side_by_side_with_one_thread_each(threads, monkeypatch, source, tmp_path, stored):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads(2)
    Noting.seen.clear()
    backbone = from_module("noting", Noting(), SMALL)
    if stored:
        run(backbone, source, tmp_path / "store", batch_size=32)
    else:
        settings = ExtractSettings(torch.device("cpu"), batch_size=32, workers=0)
        rows = streamed(backbone, source, *resolve_layers(backbone, ()), settings).x
        assert len(rows[0:4]) == 4 and torch.get_num_threads() == 2, "all threads for what reads the rows"
    assert len({name for name, _ in Noting.seen}) == 2
    assert {own for _, own in Noting.seen} == {1}


class Waiting:
    """Encoder of nothing, and a twin of it."""

    device = torch.device("cpu")

    def twin(self):
        return self

    def rows(self, piece):
        return piece[:, 0, 0].numpy()


def test_few_batches_wait_in_memory(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads(2)
    batches = (PictureBatch(np.array([i]), torch.full((1, 3, 2, 2), float(i)), (), Counter()) for i in range(40))
    done = streams.encoded(batches, [Waiting()], lambda images: [images])
    next(done)
    left = sum(1 for _ in batches)
    assert left >= 40 - (1 + 2 * 2), "the batch itself, and two for each thread"
    done.close()


class Failing(Noting):
    """Network that fails on white images."""

    def forward(self, images):
        if images.min() > 2:
            raise ValueError("white")
        return images * self.scale


def test_what_fails_in_a_stream_is_raised(threads, monkeypatch, source, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads(2)
    white = Image.new("RGB", (40, 40), "white")
    for i in range(16, 24):
        white.save(source.images.path(i))
    backbone = from_module("failing", Failing(), SMALL)
    with pytest.raises(BackboneError, match="white"):
        run(backbone, source, tmp_path / "store", batch_size=8)
    assert torch.get_num_threads() == 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sslbench-stream")]


def test_unreadable_images_are_listed_or_left_out(threads, monkeypatch, source, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads(2)
    for i in (3, 12, 13, 30):
        open(source.images.path(i), "wb").write(b"no picture")  # noqa: SIM115, PTH123
    backbone = dataclasses.replace(build("resnet_basic_1-1-1-1w0.25"), preprocessing=SMALL)
    with pytest.raises(DataError, match=r"30\.png"):
        run(backbone, source, tmp_path / "store", batch_size=2)
    found = run(backbone, source, tmp_path / "store", batch_size=2, on_error="skip")
    (features,) = found.features.values()
    assert len(features) == 36
    assert [row["id"] for row in found.unreadable] == ["03.png", "12.png", "13.png", "30.png"]


def test_at_most_one_stream_for_each_core_by_default(threads, monkeypatch):
    threads(4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(streams, "usable_cores", lambda: 3)
    assert streams.number_of_streams(torch.device("cpu")) == 3
    assert streams.number_of_streams(torch.device("cuda")) == 1


CPU = ExtractSettings(torch.device("cpu"), batch_size=2, workers=0)
FORK = multiprocessing.get_context("fork")
SHARDS, EACH = 7, 8


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    return dataclasses.replace(build("resnet_basic_1-1-1-1w0.125"), preprocessing=Preprocessing(16, (16, 16)))


def run_on_shards(backbone, spec, root, progress=None):
    layers = resolve_layers(backbone, ("res5avg",))
    return extract(backbone, open_data(spec)["all"], layers, CPU, root=root, split="all", progress=progress)


def _rank(backbone, spec, root, rank, world, last, ahead):
    """Encode this process's rows; if it is the last one, after the other one has encoded all of its own."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    real = loader.batches

    def late(*arguments, **options):
        assert ahead.wait(SECONDS)
        yield from real(*arguments, **options)

    if rank == last:
        loader.batches = late
    run_on_shards(backbone, spec, root, progress=lambda done, total: done == total and ahead.set())


@pytest.mark.parametrize(("world", "last"), [(1, None), (2, None), (2, 0), (2, 1)])
def test_each_shard_is_fetched_once_however_far_one_process_is_ahead(backbone, tmp_path, monkeypatch, world, last):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    with serving(tmp_path / "served") as server:
        # Names run across the shards: in order of id, every image would lie in another shard than the one before.
        samples = containers.pictures(SHARDS * EACH)
        local = containers.write_shards(tmp_path / "served", samples, SHARDS)
        size = (tmp_path / "served" / "s-0000.tar").stat().st_size
        monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", str((1 + 2 * world) * size + 2000))
        spec = f"{server.address}/s-{{0000..{SHARDS - 1:04d}}}.tar"
        open_data(spec)
        for copy in remote.folder().rglob("s-*.tar"):
            copy.unlink()
        server.requests.clear()
        ahead = FORK.Event()
        arguments = [(backbone, spec, tmp_path / "f", r, world, last, ahead) for r in range(world)]
        ranks = [FORK.Process(target=_rank, args=of_rank) for of_rank in arguments]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(SECONDS)
            assert process.exitcode == 0
        assert server.fetched() == {f"s-{k:04d}.tar": 1 for k in range(SHARDS)}
        found, alone = run_on_shards(backbone, spec, tmp_path / "f"), run_on_shards(backbone, local, tmp_path / "local")
    assert found.decoded == 0 and alone.decoded == len(samples)
    ours, files = found.features["res5avg"], alone.features["res5avg"]
    assert ours.ids == files.ids
    assert np.allclose(ours.x, files.x, atol=1e-5)
    assert f",{server.address}/s-0000.tar/" in (found.entry.folder / "index.csv").read_text()
