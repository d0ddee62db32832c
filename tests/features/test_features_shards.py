"""Extraction from shards behind URLs: each is fetched once, by one process or by two, and the store is the same."""

import dataclasses
import multiprocessing
import os

import numpy as np
import pytest
import torch
from helpers import containers
from helpers.serving import serving
from helpers.waiting import SECONDS

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data import remote
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.preprocessing import Preprocessing

CPU = ExtractSettings(torch.device("cpu"), batch_size=2, workers=0)
FORK = multiprocessing.get_context("fork")
SHARDS, EACH = 7, 8


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    return dataclasses.replace(build("resnet18w0.125"), preprocessing=Preprocessing(16, (16, 16)))


def run(backbone, spec, root, progress=None):
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
    run(backbone, spec, root, progress=lambda done, total: done == total and ahead.set())


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
        found, alone = run(backbone, spec, tmp_path / "f"), run(backbone, local, tmp_path / "local")
    assert found.decoded == 0 and alone.decoded == len(samples)
    ours, files = found.features["res5avg"], alone.features["res5avg"]
    assert ours.ids == files.ids
    assert np.allclose(ours.x, files.x, atol=1e-5)
    assert f",{server.address}/s-0000.tar/" in (found.entry.folder / "index.csv").read_text()
