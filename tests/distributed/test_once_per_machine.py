"""Work that one process of each machine does for all of its processes."""

import os
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers import two_processes
from PIL import Image

from sslbench.data.formats import folder
from sslbench.data.open import open_data
from sslbench.distributed.collectives import once_per_machine, process_group_if_known
from sslbench.errors import DataError, SslbenchError
from sslbench.evaluation import Request, RunSettings, encode, make_task, opening

ODD = os.fsdecode(b"odd \xff.png")
"""Name that is not UTF-8."""


@pytest.fixture
def images(tmp_path):
    for name in ("train/a/1.png", "train/b/2.png", f"train/b/{ODD}", "val/a/3.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path, "png")
    return tmp_path / "photos"


def opened(rank, path, machines, spec="{}", containers="aa"):
    """Splits as a process sees them, and folders that it listed."""
    listed, walk = [], folder._walk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "_walk", lambda root, *rest: (listed.append(Path(root).name), walk(root, *rest)))
        patch.setattr(socket, "gethostname", lambda: machines[rank])
        temporary = path.parent / containers[rank]
        temporary.mkdir(exist_ok=True)
        patch.setattr(tempfile, "tempdir", str(temporary))
        parts = open_data(spec.format(path), together=True)
    seen = {
        name: (
            part.ids,
            part.target.classes,
            part.target.values.tolist(),
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
            part.target.classes,
            part.target.values.tolist(),
            part.notes,
            part.images.read(len(part.ids) - 1),
        )
        for name, part in open_data(str(images)).items()
    }
    (first, listed), (second, others) = two_processes.run(opened, images, machines)
    assert first == second == expected
    assert listed == ["train", "val"] and others == ([] if machines == "aa" else listed)
    assert not list(images.parent.glob("*/sslbench-*"))  # temporary files


def test_containers_of_one_name_do_not_look_for_each_others_files(images):
    (first, listed), (second, others) = two_processes.run(opened, images, "aa", "{}", "ab")
    assert first == second and listed == others == ["train", "val"]


def test_folders_of_several_sources_are_listed_once(images):
    spec = "several:one={},two={}"
    (first, listed), (second, others) = two_processes.run(opened, images, "aa", spec.replace("{}", "{0}"))
    assert first == second and len(first["train"][0]) == 6
    assert listed == ["train", "val"] * 2 and others == []


def evaluated(rank, path):
    """Ids that an evaluation and an extraction open, folders that a process listed, and groups that were joined."""
    listed, walk, joined = [], folder._walk, []
    request, run = Request("random", str(path), (make_task("knn", {}),), backbone="resnet18"), RunSettings(device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "_walk", lambda root, *rest: (listed.append(Path(root).name), walk(root, *rest)))
        for module in (opening, encode):
            patch.setattr(
                module, "process_group_if_known", lambda device: joined.append(device) or process_group_if_known(device)
            )
        data = opening.open_train_test(request, run)
        parts = encode._parts_to_encode(request, run, None)
    return [data.train.ids, data.test.ids, *(part.ids for part in parts.values())], listed, len(joined)


def test_evaluations_and_extractions_list_once(images):
    (first, listed, joined), (second, others, also) = two_processes.run(evaluated, images)
    assert first == second and len(first[0]) == 3
    assert listed == ["train", "val"] * 2 and others == []
    assert joined == also == 2  # the group is there while the data are opened


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
