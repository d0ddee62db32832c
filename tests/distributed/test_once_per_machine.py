"""Work that one process of each machine does for all of its processes."""

import os
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest
import two_processes
from PIL import Image

from sslbench.data.formats import folder
from sslbench.data.open import open_data
from sslbench.distributed.collectives import once_per_machine
from sslbench.errors import DataError, SslbenchError

ODD = os.fsdecode(b"odd \xff.png")
"""Name that is not UTF-8."""


@pytest.fixture
def images(tmp_path):
    for name in ("train/a/1.png", "train/b/2.png", f"train/b/{ODD}", "val/a/3.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path, "png")
    return tmp_path / "photos"


def opened(rank, path, machines):
    """Splits as a process sees them, and folders that it listed."""
    listed, walk = [], folder._walk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "_walk", lambda root, *rest: (listed.append(Path(root).name), walk(root, *rest)))
        patch.setattr(socket, "gethostname", lambda: machines[rank])
        patch.setattr(tempfile, "tempdir", str(path.parent))
        parts = open_data(str(path), together=True)
    seen = {
        name: (
            part.ids,
            part.labels.classes,
            part.labels.values.tolist(),
            part.notes,
            part.images.read(len(part.ids) - 1),
        )
        for name, part in parts.items()
    }
    return seen, listed


@pytest.mark.parametrize("machines", ["aa", "ab"])
def test_a_folder_is_listed_once_on_each_machine(machines, images):
    expected = {
        name: (
            part.ids,
            part.labels.classes,
            part.labels.values.tolist(),
            part.notes,
            part.images.read(len(part.ids) - 1),
        )
        for name, part in open_data(str(images)).items()
    }
    (first, listed), (second, others) = two_processes.run(opened, images, machines)
    assert first == second == expected
    assert listed == ["train", "val"] and others == ([] if machines == "aa" else listed)
    assert not list(images.parent.glob("sslbench-*"))  # temporary files


def failing(rank, path):
    try:
        open_data(str(path), together=True)
    except DataError as error:
        return str(error), error.printed_by_rank_0


def test_an_error_of_the_one_is_that_of_all(tmp_path):
    (first, printed), (second, silent) = two_processes.run(failing, tmp_path)
    assert first == second and "has no image" in first
    assert (printed, silent) == (False, True)


def unwritable(rank, path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(path / "missing"))
        try:
            once_per_machine(lambda: [rank])
        except SslbenchError as error:
            return str(error)


def test_a_temporary_file_that_cannot_be_written_ends_all(tmp_path):
    first, second = two_processes.run(unwritable, tmp_path)
    assert first == second and "No such file or directory" in first


def values(rank):
    return once_per_machine(lambda: {"of": [rank, "text", None]})


def test_values_and_a_single_process():
    assert two_processes.run(values) == [{"of": [0, "text", None]}] * 2
    assert values(5) == {"of": [5, "text", None]}
