"""Worker processes: started in any way, they give the same; when one dies, the run says so instead of hanging."""

import gc
import os
import signal
import time

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.data import workers
from sslbench.data.decode.handlers import Reading
from sslbench.data.loading import loader
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.open import open_data
from sslbench.data.views import Augment, View
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import Preprocessing

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
