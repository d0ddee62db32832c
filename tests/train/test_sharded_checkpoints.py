"""Sharded checkpoints: written by two processes in the background, read by one, two or none; damage is found."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers import two_processes
from torch import nn

from sslbench.distributed import parallel, sharded
from sslbench.errors import SslbenchError, UsageError, WeightsError
from sslbench.train import checkpoints
from sslbench.train.checkpoints import newest_whole
from sslbench.weights.reading import folders
from sslbench.weights.reading.files import read
from sslbench.weights.reading.folders import checkpoint_files, newest_checkpoint

SHAPES = {"odd": (5, 3), "row": (1, 7), "vector": (4,), "number": ()}


class Net(nn.Module):
    """Parameters that two processes cannot halve, one without gradient, and a buffer that differs between processes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.randn(shape if shape else (1,))))
        self.frozen = nn.Parameter(torch.randn(3, 2), requires_grad=False)
        self.register_buffer("own", torch.tensor(0.0))
        self.register_buffer("whole", torch.arange(6).reshape(2, 3))

    def forward(self, x):
        return sum((p * p).sum() for p in self.parameters() if p.requires_grad) * x


def trained(net):
    optimizer = torch.optim.AdamW([{"params": [net.odd, net.row]}, {"params": [net.vector, net.number], "lr": 0.5}])
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(())).backward()
        optimizer.step()
    return optimizer


def tensors_of(net, optimizer):
    moments, rest = parallel.optimizer_shards(net, optimizer)
    return net.state_dict() | {f"optimizer.{name}": tensor for name, tensor in moments.items()}, rest


def save(rank, folder, steps, keep=9):
    net = Net()
    net.own.fill_(10.0 + rank)
    net = parallel.wrap(net, torch.device("cpu"), "fsdp")
    tensors, rest = tensors_of(net, trained(net))
    parts = {"state_dict": {"odd": "odd", "whole": "whole"}, "heads": {"head.0.bias": "vector"}}
    writer = sharded.BackgroundWriter()
    for step in steps:
        content = {"step": step, "optimizer": rest, "parts": parts, "backbone": "net"}
        part = checkpoints.unfinished(folder, step)
        writer.write(
            part, tensors, lambda part, files, all=content: checkpoints.finish_sharded(part, files, all, keep=keep)
        )
        with torch.no_grad():  # training goes on
            net.odd.zero_()
    writer.wait()
    return sorted(path.name for path in folder.iterdir())


def load(rank, path):
    """Values of network and optimizer after reading, as arrays."""
    net = Net()
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.zero_()
    net = parallel.wrap(net, torch.device("cpu"), "fsdp")
    optimizer = torch.optim.AdamW([{"params": [net.odd, net.row]}, {"params": [net.vector, net.number]}])
    stored = {n.removeprefix("optimizer."): of for n, of in sharded.shapes(path).items() if n.startswith("optimizer.")}
    moments = parallel.empty_moments(net, stored)
    sharded.read(path, net.state_dict() | {f"optimizer.{name}": tensor for name, tensor in moments.items()})
    parallel.load_optimizer_shards(net, optimizer, moments, checkpoints.read(path)["optimizer"])
    tensors, rest = tensors_of(net, optimizer)
    return {name: parallel.whole(tensor).numpy() for name, tensor in tensors.items()}, rest["groups"][1]["lr"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    assert two_processes.run(save, folder, [1, 2, 3], 2) == [["step_000000002.ckpt", "step_000000003.ckpt"]] * 2
    return folder


@pytest.fixture
def copied(written, tmp_path):
    shutil.copytree(written, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_any_number_of_processes_reads_what_two_have_written(written, tmp_path):
    two_processes.run(save, tmp_path, [1])
    path = tmp_path / "step_000000001.ckpt"
    net = Net()
    expected, _ = tensors_of(net, trained(net))
    expected["own"] = torch.tensor(10.0)  # of the first process
    for found, rate in [load(0, path), *two_processes.run(load, path)]:
        assert found.keys() == expected.keys() and rate == 0.5
        for name, tensor in expected.items():
            np.testing.assert_allclose(found[name], tensor.detach().numpy(), rtol=1e-6, err_msg=name)


def test_it_is_a_weights_file_too(tmp_path):
    two_processes.run(save, tmp_path, [1])
    path = tmp_path / "step_000000001.ckpt"
    file, net = read(path), Net()
    trained(net)
    assert file.container == "sharded checkpoint"
    assert file.content["backbone"] == "net" and file.content["state_dict"].keys() == {"odd", "whole"}
    torch.testing.assert_close(file.content["state_dict"]["odd"], net.odd.detach())
    assert torch.equal(file.content["state_dict"]["whole"], net.whole)
    torch.testing.assert_close(file.content["heads"]["head.0.bias"], net.vector.detach())
    assert file.size == sum(one.stat().st_size for one in path.iterdir())
    assert not {"optimizer", "files", "parts"} & file.content.keys()


def failing(rank, folder, where):
    """Messages of a process after the disk of one is full, and what is left."""
    real = folders.crc32
    if rank == where:
        sharded.crc32 = lambda path: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    try:
        save(rank, folder, [4])
    except SslbenchError as error:
        return error.message, error.printed_by_rank_0, sorted(path.name for path in folder.iterdir())
    finally:
        sharded.crc32 = real


@pytest.mark.parametrize("where", [0, 1])
def test_the_full_disk_of_one_process_ends_all_and_leaves_earlier_checkpoints(where, copied):
    before = sorted(path.name for path in copied.iterdir())
    first, second = two_processes.run(failing, copied, where)
    assert first[0] == second[0] == f"process {where} cannot write its shards: No space left on device"
    assert (first[1], second[1]) == (False, True)
    assert first[2] == before


def full_disk(rank, folder):
    """Message of a process when the disk is full in the middle of state.torch, and what is left."""
    real = checkpoints.write_torch

    def write(path, content):
        path.write_bytes(b"x" * 1000)
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints.write_torch = write
    try:
        save(rank, folder, [4])
    except SslbenchError as error:
        return error.message, error.printed_by_rank_0
    finally:
        checkpoints.write_torch = real


def test_a_full_disk_while_the_state_is_written_is_one_message_and_leaves_nothing(copied):
    before = sorted(path.name for path in copied.iterdir())
    first, second = two_processes.run(full_disk, copied)
    assert first[0] == second[0] and (first[1], second[1]) == (False, True)
    assert "state.torch: No space left on device; " in first[0] and " bytes are free in " in first[0]
    assert sorted(path.name for path in copied.iterdir()) == before


def killed_while_removing(folder):
    """Write a checkpoint, and be killed after the first file of the oldest is deleted."""

    def rmtree(path, **options):
        if path.is_dir():
            (path / folders.STATE).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    shutil.rmtree = rmtree
    checkpoints.write(folder, 4, {"number": 4}, keep=2)


def test_a_run_killed_while_it_removes_an_old_checkpoint_continues_from_the_newest(copied, caplog):
    process = multiprocessing.get_context("fork").Process(target=killed_while_removing, args=(copied,))
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    assert [path.name for path in checkpoint_files(copied)] == ["step_000000003.ckpt", "step_000000004.ckpt"]
    assert len(list(copied.iterdir())) == 3  # and what is left of the deleted one
    path, content = newest_whole(copied)
    assert path.name == "step_000000004.ckpt" and content["number"] == 4
    assert len(list(copied.iterdir())) == 2
    (copied / "step_000000004.ckpt").unlink()
    assert newest_whole(copied)[0].name == "step_000000003.ckpt"
    assert not caplog.text


def test_an_old_one_that_cannot_be_removed_is_told_as_such(copied, caplog, monkeypatch):
    def refused(self, target):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    path = checkpoints.write(copied, 4, {"number": 4}, keep=2)
    assert f"{copied / 'step_000000002.ckpt'} cannot be removed: Permission denied" in caplog.text
    assert newest_whole(copied)[0] == path


def test_a_killed_save_is_no_checkpoint_and_is_removed(copied):
    part = checkpoints.unfinished(copied, 4)
    shutil.copytree(copied / "step_000000003.ckpt", part)
    assert newest_checkpoint(copied).name == "step_000000003.ckpt"
    newest_whole(copied)
    assert not part.exists()


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x10
    path.write_bytes(data)


DAMAGES = {
    "a shard is missing": lambda path: next(path.glob("shard-00002*")).unlink(),
    "a shard is cut off": lambda path: next(path.glob("shard-00002*")).write_bytes(b"x" * 20),
    "a byte is flipped": lambda path: flip(next(path.glob("shard-00001*"))),
    "no state": lambda path: (path / folders.STATE).unlink(),
    "half a state": lambda path: (path / folders.STATE).write_bytes((path / folders.STATE).read_bytes()[:300]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_passed_over(damage, copied, caplog):
    damage(copied / "step_000000003.ckpt")
    path, content = newest_whole(copied)
    assert path.name == "step_000000002.ckpt" and content["step"] == 2
    assert "step_000000003.ckpt is damaged" in caplog.text
    with pytest.raises(WeightsError):
        read(copied / "step_000000003.ckpt")


def test_a_named_folder_that_is_no_checkpoint_is_never_called_damaged(copied, tmp_path):
    empty, shard = tmp_path / "empty", next((copied / "step_000000003.ckpt").glob("shard-00001*"))
    empty.mkdir()
    for given, remedy in ((copied, "step_000000003.ckpt"), (copied.parent, "step_000000003.ckpt"), (empty, "no check")):
        with pytest.raises(UsageError, match="not a checkpoint") as caught:
            newest_whole(copied, given=given)
        assert remedy in str(caught.value) and "damaged" not in str(caught.value)
    with pytest.raises(UsageError, match="one of the shards"):
        newest_whole(copied, given=shard)
    assert newest_whole(copied, given=copied / "step_000000002.ckpt")[1]["step"] == 2


def test_a_part_or_an_unfinished_folder_is_refused_by_its_name(copied):
    whole = copied / "step_000000003.ckpt"
    for part in (whole / folders.STATE, next(whole.glob("shard-00001*"))):
        with pytest.raises(WeightsError, match="one file of a sharded checkpoint") as caught:
            read(part)
        assert caught.value.remedy == f"Give the folder: {whole}"
    for folder in (copied, copied.parent):
        with pytest.raises(WeightsError, match="is a folder") as caught:
            read(folder)
        assert caught.value.remedy.startswith(f"Did you mean {whole}")
    torn = checkpoints.unfinished(copied, 4)
    whole.rename(torn)
    (torn / folders.STATE).unlink()
    with pytest.raises(WeightsError, match=r"no complete checkpoint: it has no state\.torch"):
        read(torn)


def test_inspect_describes_the_newest_of_a_folder_and_refuses_an_unfinished_one(copied, monkeypatch):
    from sslbench.cli.commands import inspect

    seen, real = [], inspect._weights
    monkeypatch.setattr(inspect, "_weights", lambda path, *rest: seen.append(path) or 0)
    torn = checkpoints.unfinished(copied, 4)
    shutil.copytree(copied / "step_000000002.ckpt", torn, ignore=shutil.ignore_patterns(folders.STATE))
    inspect.command.main([str(copied)], standalone_mode=False)
    assert [Path(path).name for path in seen] == ["step_000000003.ckpt"]
    monkeypatch.setattr(inspect, "_weights", real)
    with pytest.raises(WeightsError, match="no complete checkpoint"):
        inspect.command.main([str(torn)], standalone_mode=False)


def test_a_link_to_an_old_checkpoint_is_removed_and_not_what_it_names(copied, tmp_path):
    kept = tmp_path / "elsewhere"
    (copied / "step_000000002.ckpt").rename(kept)
    (copied / "step_000000002.ckpt").symlink_to(kept)
    checkpoints.write(copied, 4, {"number": 4}, keep=2)
    assert sorted(path.name for path in copied.iterdir()) == ["step_000000003.ckpt", "step_000000004.ckpt"]
    assert folders.is_sharded(kept)


def test_the_last_one_that_is_kept_may_be_of_either_form(copied):
    checkpoints.write(copied, 4, {"number": 4}, keep=2)
    assert [path.name for path in checkpoint_files(copied)] == ["step_000000003.ckpt", "step_000000004.ckpt"]
    (aside, _) = checkpoints.set_aside(copied, after=2)
    assert aside.is_dir()
    shutil.copytree(aside, copied / "step_000000003.ckpt")  # the updates are repeated, and set aside again
    assert checkpoints.set_aside(copied, after=2) == [aside] and aside.is_dir()


def rewritten(path, tensors, offsets):
    """A sharded checkpoint whose only file of shards says what a stranger wants."""
    for file in path.glob("shard-*"):
        file.unlink()
    header = {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": value} for name, value in offsets.items()})}
    safetensors.torch.save_file(tensors, path / "shard.safetensors", metadata=header)
    content = checkpoints.read(path)
    size = (path / "shard.safetensors").stat().st_size
    content["files"] = {"shard.safetensors": {"bytes": size, "crc32": folders.crc32(path / "shard.safetensors")}}
    content["parts"] = {"state_dict": {"odd": "odd"}}
    torch.save(content, path / folders.STATE)


@pytest.mark.parametrize(
    "offset", [[1 << 40, 0], [-1, 0], [0], ["a", 0], None, [0, 0, 0]], ids="huge negative short text none long".split()
)
def test_offsets_that_lie_are_refused(offset, copied):
    path = copied / "step_000000003.ckpt"
    rewritten(path, {"odd": torch.ones(5, 3)}, {"odd": [0, 0]})
    assert read(path).content["state_dict"]["odd"].sum() == 15
    rewritten(path, {"odd": torch.ones(5, 3)}, {"odd": offset})
    with pytest.raises(WeightsError, match="shards"):
        read(path)


def test_files_outside_the_folder_are_refused(copied):
    path = copied / "step_000000003.ckpt"
    content = checkpoints.read(path)
    content["files"] = {"../step_000000002.ckpt/state.torch": {"bytes": 1, "crc32": 0}}
    torch.save(content, path / folders.STATE)
    with pytest.raises(WeightsError, match="wrong entry"):
        read(path)
